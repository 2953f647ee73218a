"""Clients of many servers at once, each of which may fail alone.

The names of their tools and prompts (`GroupNames`) stay what they are when servers come and go. The clients are made
from what a program names or a configuration has (`GroupEntry`), anew whenever a server is connected to.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Protocol, TypeVar

import attrs
import trio

from mcp_actors._actors.outbound_call import ProgressCallback
from mcp_actors.abc import ClientTransport
from mcp_actors.client import Client, ClientPool, Target
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, RemoteProtocolError
from mcp_actors.supervision.arguments import did_you_mean, require_number, require_trio
from mcp_actors.supervision.containment import one_error, start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import without_paths
from mcp_actors.supervision.task_kinds import GROUP_WORK
from mcp_actors.supervision.tracebacks import shorten
from mcp_actors.types import CallToolResult, GetPromptResult, Prompt, Resource, ResourceTemplate, Tool

__all__ = ["ClientGroup", "GroupEntry"]


# Everything but what the APIs of models allow in the name of a tool.
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


class GroupNames:
    """The prefixes of servers, no one of which is the beginning of another one.

    Args:
        servers: The names of the servers.
        separator: What each ends with.

    Raises:
        ValueError: The separator has a character that names of tools cannot have, or two servers look alike.
    """

    def __init__(self, servers: Collection[str], separator: str) -> None:
        if _NOT_ALLOWED.search(separator):
            raise ValueError(f"the separator has letters, digits, - and _ only, not {separator[:80]!r}")
        self._prefixes = {name: _NOT_ALLOWED.sub("_", name) + separator for name in servers}
        self._servers = {prefix: name for name, prefix in self._prefixes.items()}
        self._longest = max(map(len, self._servers), default=0)
        # In this order, a name that begins with a prefix follows right after it.
        ordered = sorted(self._prefixes.items(), key=lambda each: each[1])
        for (name, prefix), (other, longer) in itertools.pairwise(ordered):
            if longer.startswith(prefix):
                raise ValueError(
                    f"the tools of {name[:80]!r} and {other[:80]!r} could not be told apart behind {prefix[:80]!r}: "
                    "rename one of the servers, or give another separator"
                )

    def __repr__(self) -> str:
        return f"<GroupNames {', '.join(self._servers)}>"

    def of(self, server: str, name: str) -> str:
        """Returns the name in the group of a tool or prompt of a server."""
        return self._prefixes[server] + name

    def split(self, name: str) -> tuple[str, str] | None:
        """Returns the server that a name in the group belongs to, and the name there; ``None`` without one."""
        for end in range(1, min(self._longest, len(name)) + 1):
            server = self._servers.get(name[:end])
            if server is not None:
                return server, name[end:]
        return None


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Entries of one list of one server, and the seconds that it may take in all.
MAX_LISTED = 10_000
LIST_TIME = 60.0


async def each_alone(
    work: Mapping[K, Callable[[], Awaitable[T]]], at_once: int, *, needed: Collection[K] = ()
) -> dict[K, T | Exception]:
    """Does everything at once, and returns the outcomes, results or exceptions, in the same order.

    Args:
        work: The functions to call.
        at_once: How many of them run at a time.
        needed: If one of these fails, the rest is cancelled, and has no outcome.
    """
    outcomes: dict[K, T | Exception] = {}
    limiter = trio.CapacityLimiter(at_once)

    def failed(key: K, error: BaseException) -> None:
        outcomes[key] = error if isinstance(error, Exception) else ConnectFailed(f"it failed: {error!r}")
        if key in needed:
            nursery.cancel_scope.cancel(reason="something that was needed has failed")

    async def do(key: K, function: Callable[[], Awaitable[T]]) -> None:
        async with limiter:
            try:
                outcomes[key] = await function()
            except Exception as error:
                failed(key, error)

    with one_error():
        async with trio.open_nursery() as nursery:
            for key, function in work.items():
                start(nursery, GROUP_WORK, do, key, function, about=str(key), on_crash=partial(failed, key))
    return {key: outcomes[key] for key in work if key in outcomes}


async def all_of(entries: Callable[[Client], AsyncIterator[T]], client: Client) -> list[T]:
    """Returns all entries of a list of a server.

    Raises:
        RemoteProtocolError: There are more of them, or they take longer, than a caller would wait for.
        McpError: What else listing raises.
    """
    found: list[T] = []
    with trio.move_on_after(LIST_TIME):
        async for entry in entries(client):
            if len(found) == MAX_LISTED:
                raise RemoteProtocolError(f"its list has more than {MAX_LISTED} entries")
            found.append(entry)
        return found
    raise RemoteProtocolError(f"its list took more than {LIST_TIME:g} seconds")


OptionsFor = Callable[[str], Mapping[str, Any]]
"""Returns options for the client of the server with a name."""

_WITH_ACCESS = ("http:", "https:", "ws:", "wss:")


class GroupEntry(Protocol):
    """A server of a configuration, as `mcp_actors.gateway.server_entries.ServerEntry` is one."""

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
            McpError: The server does not have it.
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
        TypeError: It, or one of its targets, has another type.
        ValueError: A target cannot be.
        TransportNotFound: No binding is installed for the URL of a target.
    """
    # A mistake in the options is reported here, and not as the failure of every server.
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
                    # Disabled ones are left out.
                    if name in entries:
                        yield name, partial(self._of_entry, entries[name])
                    continue
                if not isinstance(name, str) or not name:
                    raise TypeError(f"the names of servers are texts, not {name!r:.80}")
                # A mistake is reported here, where the program has made it.
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
    """Returns whether a mapping has servers in a member, in place of being one itself."""
    sections = [servers[name] for name in ("mcpServers", "servers") if name in servers]
    return any(
        isinstance(each, Mapping) and all(isinstance(one, Mapping) for one in each.values())
        for each in sections
    )


def _read(source: str | os.PathLike[str] | Mapping[str, Any]) -> Iterable[GroupEntry]:
    # Imported where it is used: most programs have no configuration.
    entries: Iterable[GroupEntry] = importlib.import_module(
        "mcp_actors.gateway.server_entries"
    ).read_server_entries(source)
    return entries


class ClientGroup:
    """Clients of many servers, used as ``async with ClientGroup("mcp.json") as group``.

    Entering the block connects to all of them at once. One that cannot be connected to is among `failures`, and the
    others are there; a connection that is lost later is made again by itself. ``group["name"]`` is the `Client` of a
    server. Leaving the block closes all of them, within a bounded time.

    A tool or prompt is called ``server__tool`` here: the name of its server, with ``_`` for every character that the
    APIs of models do not allow, the separator, and its own name. The name is that long even where the tool's own would
    do: it would change its meaning when another server comes. Names of servers that could not be distinguished so
    are refused.

    Args:
        servers: The path of a configuration, its text or the mapping that it contains, as in
            `read_server_entries`; what that returned, or some of its entries; or a mapping
            of names to whatever a `Client` takes as its target, and to entries of a configuration.
        required: Names of servers without which entering the block fails.
        separator: What separates the name of a server from that of its tool.
        at_once: How many servers are connected to at a time, and how many calls one `call_all` has in flight.
        connect_timeout: Seconds after which a server that has not completed its handshake counts as failed. A program
            that is downloaded first may need more than the 60 of the default: `reconnect` tries again.
        options_for: Returns more options for the client of the server with a name, so that ``elicitation``, for
            example, knows which server asks, as a host has to show (MCP 2026-07-28, Elicitation).
        options: Options of each `Client`; ``restart`` is true by default here. The members ``era``, ``timeout`` and
            ``cap`` of an entry take precedence, and ``auth`` is for the servers at URLs of HTTP and WebSocket that have
            no credentials of their own.

    Raises:
        ConfigurationError: The configuration as a whole cannot be read.
        TypeError: A target or an option is of a wrong kind.
        ValueError: A target or an option cannot be, a required server is not among them, or two names of servers cannot
            be distinguished.
        TransportNotFound: No binding is installed for the URL of a target outside of a configuration.
    """

    def __init__(
        self,
        servers: GroupServers,
        *,
        required: Collection[str] = (),
        separator: str = "__",
        at_once: int = 32,
        connect_timeout: float = 60.0,
        options_for: OptionsFor | None = None,
        **options: Any,
    ) -> None:
        require_number("ClientGroup(at_once=)", at_once, 1, 10_000, whole=True)
        require_number("ClientGroup(connect_timeout=)", connect_timeout, 0.001, 86_400)
        options.setdefault("restart", True)
        try:
            self._members = {each.name: each for each in members_of(servers, options, options_for)}
        except (McpError, TypeError) as error:
            shorten(error)
            raise
        self._names = GroupNames(self._members, separator)
        self._required = frozenset(required)
        if missing := sorted(self._required - set(self._members)):
            raise ValueError(
                f"required= names {missing[0]!r}{did_you_mean(missing[0], self._members)}: no such server"
            )
        self._at_once = at_once
        self._connect_timeout = connect_timeout
        self._pool = ClientPool()
        self._is_open: bool | None = None

    def __repr__(self) -> str:
        there = sum(member.client is not None for member in self._members.values())
        return f"<ClientGroup {there} of {len(self._members)} servers>"

    async def __aenter__(self) -> ClientGroup:
        """Connects to all servers. Cancelled, nothing is left.

        Raises:
            LocalProtocolError: The group was entered before.
            McpError: What a required server failed by.
            RuntimeError: There is no Trio loop.
        """
        require_trio("async with ClientGroup(...)", "ClientGroup")
        if self._is_open is not None:
            raise LocalProtocolError("a ClientGroup is good for one 'async with' block; make a new one")
        await self._pool.__aenter__()
        self._is_open = True
        try:
            outcomes = await each_alone(
                {name: partial(self._connect, name) for name in self._members},
                self._at_once,
                needed=self._required,
            )
            for name in self._members:
                if name in self._required and isinstance(outcome := outcomes.get(name), Exception):
                    raise outcome
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_open = False
        await self._pool.__aexit__()

    # -- the servers -----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Client:
        """Returns the client of a server.

        Raises:
            KeyError: The group has no server of this name.
            ConnectFailed: It could not be connected to; the reason is the cause.
        """
        member = self._members[name]
        if member.client is None:
            raise ConnectFailed(f"{name}: {member.failure or 'it is not connected'}") from member.failure
        return member.client

    @property
    def names(self) -> Sequence[str]:
        """The names of all servers, in the order in which they were given."""
        return tuple(self._members)

    @property
    def failures(self) -> Mapping[str, McpError]:
        """The reasons why servers cannot be used at present, by their names.

        A server is among them if it could not be connected to, if its connection was lost and is not made again yet,
        and if the last list that was asked of it could not be had. One that is there again is no longer among them.
        """
        found = {member.name: member.why_not() for member in self._members.values()}
        return {name: failure for name, failure in found.items() if failure is not None}

    async def reconnect(self, name: str) -> Client:
        """Connects to a server anew, whether it failed before or is connected; its variables are looked up again.

        Cancelled, or if it fails, the server is not connected.

        Args:
            name: The server.

        Returns:
            Its client, which is another one than before.

        Raises:
            KeyError: The group has no server of this name.
            LocalProtocolError: The group is not open, or the server is being connected to.
            McpError: What entering a `Client` raises; it is among `failures`, too.
        """
        return await self._connect(name)

    async def _connect(self, name: str) -> Client:
        member = self._members[name]
        if member.is_connecting:
            raise LocalProtocolError(f"{name} is being connected to already")
        self._require_open()
        member.is_connecting = True
        try:
            former, member.client = member.client, None
            if former is not None:
                await self._pool.close(former)
            with trio.move_on_after(self._connect_timeout):
                member.client = await self._pool.open(member.make())
                member.failure = None
                return member.client
            raise ConnectFailed(f"there was no answer within {self._connect_timeout:g} seconds")
        except Exception as error:
            # What else making a client raises, such as a function of the program, is a failure of this server, too.
            member.failure = (
                error if isinstance(error, McpError) else ConnectFailed(f"{type(error).__name__}: {error}")
            )
            text = without_paths(str(error))
            log.warning("a server of a group cannot be connected to", server=name, error=text)
            raise
        finally:
            member.is_connecting = False

    # -- tools -----------------------------------------------------------------------------------------------------

    async def tools(self, *, refresh: bool = False) -> list[Tool]:
        """Returns the tools of all servers, under the names that `call_tool` takes, in the order of the servers.

        A server whose list cannot be had is left out; it is among `failures` then.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """
        listed = await self._listed("tools", lambda client: client.tools(refresh=refresh))
        return [
            attrs.evolve(each, name=self._names.of(server, each.name))
            for server, all_ in listed.items()
            for each in all_
        ]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Calls a tool of one of the servers; `Client.call_tool` has more options.

        Args:
            name: The tool, as `tools` names it: ``"weather__forecast"``.
            arguments: Its arguments, as JSON values.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            on_progress: A function, sync or async, that is called with each report.
            meta: Further members of the request's ``_meta``.

        Raises:
            LocalProtocolError: No server of the group has a name that this one begins with.
            ConnectFailed: The server could not be connected to.
            McpError: What else `Client.call_tool` raises.
        """
        client, own = self._route(name)
        return await client.call_tool(
            own, arguments, timeout=timeout, cap=cap, on_progress=on_progress, meta=meta
        )

    async def call_all(
        self,
        calls: Iterable[tuple[str, Mapping[str, Any] | None]],
        *,
        timeout: float | None = None,
        cap: float | None = None,
    ) -> list[CallToolResult | Exception]:
        """Makes many calls at once, each of which fails alone; ``at_once`` of them are in flight at a time.

        Cancelled, all of them are, at their servers as well.

        Args:
            calls: The tools, as `tools` names them, and their arguments.
            timeout: Seconds that each may take without an answer or a progress report; by default those of its client.
            cap: Seconds that each may take in all; by default those of its client.

        Returns:
            The result of each call, or the exception that `call_tool` raised for it, in the order of the calls.
        """
        work = {
            number: partial(self.call_tool, name, arguments, timeout=timeout, cap=cap)
            for number, (name, arguments) in enumerate(calls)
        }
        return list((await each_alone(work, self._at_once)).values())

    async def for_each(self, function: Callable[[Client], Awaitable[T]]) -> dict[str, T | Exception]:
        """Calls a function with the client of each server, for all of them at once; each call fails alone.

        Cancelled, all calls are.

        Args:
            function: An async function of the program, such as ``Client.ping``.

        Returns:
            What it returned or raised, by the names of the servers; `ConnectFailed` for one without a client.
        """

        async def call(name: str) -> T:
            return await function(self[name])

        return await each_alone({name: partial(call, name) for name in self._members}, self._at_once)

    # -- prompts and resources -------------------------------------------------------------------------------------

    async def prompts(self, *, refresh: bool = False) -> list[Prompt]:
        """Returns the prompts of all servers, under the names that `get_prompt` takes; see `tools`.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """
        listed = await self._listed("prompts", lambda client: client.prompts(refresh=refresh))
        return [
            attrs.evolve(each, name=self._names.of(server, each.name))
            for server, all_ in listed.items()
            for each in all_
        ]

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """Fills in a prompt of one of the servers.

        Args:
            name: The prompt, as `prompts` names it.
            arguments: Its arguments; all are text.

        Raises:
            LocalProtocolError: No server of the group has a name that this one begins with.
            ConnectFailed: The server could not be connected to.
            McpError: What else `Client.get_prompt` raises.
        """
        client, own = self._route(name)
        return await client.get_prompt(own, arguments)

    async def resources(self, *, refresh: bool = False) -> dict[str, list[Resource]]:
        """Returns the resources of all servers, by the names of the servers, whose ``read_resource`` takes their URIs.

        URIs are not prefixed, and two servers may have the same one. A server whose list cannot be had is left out, and
        is among `failures` then.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """
        return await self._listed("resources", lambda client: client.resources(refresh=refresh))

    async def resource_templates(self, *, refresh: bool = False) -> dict[str, list[ResourceTemplate]]:
        """Returns the resource templates of all servers, by the names of the servers; see `resources`.

        Args:
            refresh: Whether servers are asked even if an earlier answer is good still, as they said themselves.

        Raises:
            LocalProtocolError: The group is not open.
        """
        return await self._listed("resources", lambda client: client.resource_templates(refresh=refresh))

    # -- all at once -----------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if not self._is_open:
            raise LocalProtocolError(
                "this ClientGroup is not open: use 'async with ClientGroup(...) as group'"
            )

    def _route(self, name: str) -> tuple[Client, str]:
        """Returns the client that a name leads to, and the name that its server knows."""
        found = self._names.split(name)
        if found is None:
            raise LocalProtocolError(f"no server of this group has the name that {name[:80]!r} begins with")
        return self[found[0]], found[1]

    async def _listed(
        self, capability: str, entries: Callable[[Client], AsyncIterator[T]]
    ) -> dict[str, list[T]]:
        """Returns all entries of a list of each server that declared it and has answered."""
        self._require_open()
        work = {
            member.name: partial(all_of, entries, member.client)
            for member in self._members.values()
            if member.client is not None
            and getattr(member.client.server_capabilities, capability) is not None
        }
        listed: dict[str, list[T]] = {}
        for name, outcome in (await each_alone(work, self._at_once)).items():
            member = self._members[name]
            if isinstance(outcome, Exception):
                member.failure = (
                    outcome if isinstance(outcome, McpError) else RemoteProtocolError(repr(outcome))
                )
                log.warning(
                    "a server of a group could not be listed",
                    server=name,
                    list=capability,
                    error=str(outcome),
                )
            else:
                member.failure = None
                listed[name] = outcome
        return listed
