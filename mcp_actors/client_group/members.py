"""The servers of a group: a client is made for each whenever it is connected to."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from mcp_actors.abc import ClientTransport
from mcp_actors.client import Client, Target
from mcp_actors.errors import ConnectFailed, ConnectionLost, McpError

__all__ = ["GroupEntry", "GroupMember", "GroupServers", "OptionsFor", "members_of"]

OptionsFor = Callable[[str], Mapping[str, Any]]
"""Returns options for the client of the server with a name."""

_WITH_ACCESS = ("http:", "https:", "ws:", "wss:")


class GroupEntry(Protocol):
    """A server of a configuration, as `mcp_actors.server_entries.ServerEntry` is one."""

    @property
    def name(self) -> str:
        """The name of the server."""

    @property
    def gateway(self) -> Any:
        """An object with ``era``, ``timeout`` and ``cap``, each ``None`` where the entry has none."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of its requests."""

    @property
    def takes_auth(self) -> bool:
        """Whether `target` may be given ``auth``."""

    def target(self, **options: Any) -> str | ClientTransport:
        """Returns what a `Client` connects to.

        Args:
            options: More options of the transport.

        Raises:
            McpError: There is no such thing.
        """


GroupServers = str | os.PathLike[str] | Mapping[str, Any] | Iterable[GroupEntry]
"""A configuration, entries of one, or targets by their names."""


class GroupMember:
    """One server of a group.

    Args:
        name: Its name.
        make: Makes a client of it, with the variables of the moment.
    """

    def __init__(self, name: str, make: Callable[[], Client]) -> None:
        self.name = name
        self.make = make
        self.client: Client | None = None
        self.failure: McpError | None = None
        """Why it could not be connected to, or a list of it could not be had, last."""
        self.is_connecting = False

    def __repr__(self) -> str:
        return f"<GroupMember {self.name} {self.client!r}>"

    def why_not(self) -> McpError | None:
        """Returns why it cannot be used at present, ``None`` if it can."""
        if self.failure is not None:
            return self.failure
        if self.client is None:
            return ConnectFailed("it is not connected")
        connectivity = self.client._connectivity
        if connectivity.is_connected:
            return None
        return connectivity.loss or ConnectionLost("it was closed")


def members_of(
    servers: GroupServers, options: Mapping[str, Any], options_for: OptionsFor | None
) -> list[GroupMember]:
    """Returns the servers of a group.

    Args:
        servers: What the group was given.
        options: The options of all clients.
        options_for: More of them for each server.

    Raises:
        ConfigurationError: It is a configuration that cannot be read.
        TypeError: It is nothing of the kind, or a target is none.
        ValueError: A target cannot be.
        TransportNotFound: There is no binding for the URL of a target.
    """
    # A mistake in the options is told here, and not as the failure of every server.
    Client(_Nowhere(), **{name: value for name, value in options.items() if name != "auth"})
    making = _Making(options, options_for)
    members: dict[str, GroupMember] = {}
    for name, make in making.each(servers):
        if name in members:
            raise ValueError(f"two servers of a ClientGroup have the name {name[:80]!r}")
        members[name] = GroupMember(name, make)
    return list(members.values())


class _Nowhere:
    """A transport that is never used."""

    def connect(self) -> Any:
        raise NotImplementedError


class _Making:
    """Makes clients with the options of a group."""

    def __init__(self, options: Mapping[str, Any], options_for: OptionsFor | None) -> None:
        self._options = options
        self._options_for = options_for

    def each(self, servers: GroupServers) -> Iterator[tuple[str, Callable[[], Client]]]:
        """Returns the names of the servers, and what makes a client of each."""
        if isinstance(servers, Mapping) and not _is_configuration(servers):
            described = {name: each for name, each in servers.items() if isinstance(each, Mapping)}
            entries = {each.name: each for each in _read({"mcpServers": described})} if described else {}
            for name, target in servers.items():
                if name in described:
                    # One that is disabled is none of them.
                    if name in entries:
                        yield name, partial(self._of_entry, entries[name])
                    continue
                if not isinstance(name, str) or not name:
                    raise TypeError(f"the names of servers are texts, not {name!r:.80}")
                # A mistake is told here, where the program has it.
                self._of_target(name, target)
                yield name, partial(self._of_target, name, target)
            return
        if not isinstance(servers, Iterable | os.PathLike):
            raise TypeError(
                f"a ClientGroup takes a configuration or targets by their names, not {type(servers).__name__}"
            )
        found = _read(servers) if isinstance(servers, str | os.PathLike | Mapping) else servers
        for entry in found:
            yield entry.name, partial(self._of_entry, entry)

    def _of_target(self, name: str, target: Target) -> Client:
        options = self._options_of(name)
        if not (isinstance(target, str) and target.lower().startswith(_WITH_ACCESS)):
            options.pop("auth", None)
        return Client(target, **options)

    def _of_entry(self, entry: GroupEntry) -> Client:
        options = self._options_of(entry.name)
        given = {name: getattr(entry.gateway, name) for name in ("era", "timeout", "cap")}
        options |= {name: value for name, value in given.items() if value is not None}
        auth = options.pop("auth", None)
        to_transport: dict[str, Any] = {}
        if auth is not None and entry.takes_auth:
            # A client takes it for a URL only, and headers need a transport.
            (to_transport if entry.headers else options)["auth"] = auth
        target = entry.target(**to_transport)
        try:
            return Client(target, **options)
        except (ValueError, TypeError) as error:
            raise ConnectFailed(str(error)) from error

    def _options_of(self, name: str) -> dict[str, Any]:
        return {**self._options, **({} if self._options_for is None else self._options_for(name))}


def _is_configuration(servers: Mapping[str, Any]) -> bool:
    """Returns whether a mapping has servers in a member, and is none of servers itself."""
    sections = [servers[name] for name in ("mcpServers", "servers") if name in servers]
    return any(
        isinstance(each, Mapping) and all(isinstance(one, Mapping) for one in each.values())
        for each in sections
    )


def _read(source: str | os.PathLike[str] | Mapping[str, Any]) -> Iterable[GroupEntry]:
    # Imported where it is used: most programs have no configuration.
    entries: Iterable[GroupEntry] = importlib.import_module("mcp_actors.server_entries").read_server_entries(
        source
    )
    return entries
