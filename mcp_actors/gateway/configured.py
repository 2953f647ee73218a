"""Gateways from configurations, and bridges: a gateway with one upstream, which presents itself as that."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from mcp_actors._client.options import Access
from mcp_actors.errors import ConfigurationError
from mcp_actors.gateway.gateway import Gateway
from mcp_actors.gateway.lists.names import NameTable
from mcp_actors.gateway.upstream.settings import SessionPolicy, Upstream, UpstreamTarget
from mcp_actors.server_entries import ServerEntries, ServerEntry, read_server_entries

__all__ = ["bridge_to", "configured_gateway", "upstreams_of"]


def configured_gateway(
    configuration: str | os.PathLike[str] | Mapping[str, Any] | ServerEntries,
    *,
    access: Mapping[str, Access] | None = None,
    **options: Any,
) -> Gateway[Any]:
    """Returns a gateway to all servers of a configuration that are not disabled.

    Args:
        configuration: As for `~mcp_actors.server_entries.read_server_entries`, or what that returned. Its object
            ``gateway`` has a name and instructions; where it is served is for whoever serves it.
        access: As for `upstreams_of`.
        options: Those of `Gateway`, which take precedence.

    Raises:
        ConfigurationError: The configuration cannot be used.
        ValueError: As `Gateway`.
        TypeError: As `Gateway`.
    """
    entries = (
        configuration if isinstance(configuration, ServerEntries) else read_server_entries(configuration)
    )
    section = {"name": entries.gateway.name, "instructions": entries.gateway.instructions}
    given = {name: value for name, value in section.items() if value is not None}
    upstreams = upstreams_of(entries, access=access)
    try:
        # Each says here, where the file is known, that its names cannot be.
        for each in upstreams:
            NameTable(each)
    except ValueError as error:
        raise ConfigurationError(str(error), file=entries.source.name) from error
    return Gateway(upstreams, **{**given, **options})


def upstreams_of(
    entries: Iterable[ServerEntry], *, access: Mapping[str, Access] | None = None
) -> list[Upstream]:
    """Returns the settings of an upstream for each entry; variables are looked up whenever it is connected to.

    Args:
        entries: The servers.
        access: The ``auth`` of servers that take it, by their names. None by default.
    """
    given = access or {}
    return [_upstream(each, given.get(each.name)) for each in entries]


def bridge_to(
    target: UpstreamTarget,
    *,
    sessions: SessionPolicy = "auto",
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Gateway[Any]:
    """Returns a server that passes everything on to one other server, to be served over another binding.

    Args:
        target: As `Upstream.target`.
        sessions: As `Upstream.sessions`.
        settings: Other settings of the `Upstream`, such as ``era`` and ``timeout``. None by default.
        options: Those of `Gateway`.

    Raises:
        ConfigurationError: The target is nothing to connect to.
        ValueError: As `Gateway`.
        TypeError: As `Gateway`.
    """
    upstream = Upstream(name="bridge", target=target, prefix="", sessions=sessions, **(settings or {}))
    return Gateway([upstream], **{"name": "bridge", "presents": True, **options})


def _upstream(entry: ServerEntry, auth: Access | None) -> Upstream:
    options: dict[str, Any] = {"auth": auth} if auth is not None and entry.takes_auth else {}
    return Upstream(name=entry.name, target=partial(entry.target, **options), **entry.gateway.given())
