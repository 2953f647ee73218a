"""Checks of the arguments of a `Server`: each mistake is told where the server is made, with what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from mcp_actors._actors.limits import Limits
from mcp_actors._argument_checks import instance_of, require
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors.abc import SharedState, Telemetry

__all__ = ["check_settings"]

_KINDS = {
    "limits": instance_of((Limits, type(None)), "a Limits object"),
    "versions": instance_of((list, tuple, set, frozenset), "a list of protocol versions"),
    "extensions": instance_of(
        (list, tuple, Mapping, type(None)),
        "a list of ServerExtension objects, or a mapping of ids to settings that are only declared",
    ),
    "state_key": instance_of((bytes, type(None)), "bytes"),
    "telemetry": instance_of((Telemetry, type(None)), "an object of mcp_actors.telemetry"),
    "shared": instance_of(
        (SharedState, type(None)),
        "a MemoryShared, SqliteShared or RedisShared; mcp_actors.shared.shared_state(URL) makes one",
    ),
}


def check_settings(
    *,
    name: object,
    versions: Sequence[str],
    lifespan: object,
    page_size: object,
    ttl_ms: object,
    cache_scope: object,
    **kinds: Any,
) -> None:
    """Raises `TypeError` or `ValueError` for the first argument that cannot be used."""
    if not isinstance(name, str):
        raise TypeError(f'name is a text, not {name!r:.80}: write Server("NAME")')
    if isinstance(versions, str):
        raise TypeError(
            f"versions is a list of protocol versions, not {versions!r}: write versions=[{versions!r}]"
        )
    require(_KINDS, {"versions": versions, **kinds})
    unknown = set(versions) - set(VERSIONS)
    if unknown or not versions:
        raise ValueError(f"unknown protocol versions {sorted(unknown)}; known: {', '.join(VERSIONS)}")
    if not _is_whole(page_size) or page_size < 1:
        raise ValueError(f"page_size={page_size!r}: write how many entries a page has, 1 or more")
    if not _is_whole(ttl_ms) or ttl_ms < 0:
        raise ValueError(f"ttl_ms={ttl_ms!r}: write a number of milliseconds, or 0 to promise nothing")
    if cache_scope not in ("private", "public"):
        raise ValueError(f'cache_scope={cache_scope!r}: write "private" or "public"')
    if lifespan is not None:
        _check_lifespan(lifespan)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_lifespan(lifespan: Any) -> None:
    function = inspect.unwrap(lifespan)
    if not callable(lifespan) or (
        function is lifespan
        and (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function))
    ):
        raise TypeError(
            "lifespan is an async function with one 'yield', decorated with contextlib.asynccontextmanager, "
            f"not {lifespan!r:.80}"
        )
    if inspect.isgeneratorfunction(function):
        raise TypeError(
            "lifespan is an async context manager: make it 'async def' and decorate it with "
            "contextlib.asynccontextmanager, not contextmanager"
        )
