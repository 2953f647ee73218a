"""What a client says outside the body too, where its channel carries that: version, method, name, tool parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.response_cache import ResponseCache
from mcp_actors._eras.era import Era
from mcp_actors._eras.modern.annotations import MirroredParam, annotated_params
from mcp_actors._eras.modern.mirror import mirrored
from mcp_actors.errors import LocalProtocolError
from mcp_actors.logging import log
from mcp_actors.types import ListToolsResult, Tool

__all__ = ["HeaderMirroring"]

# A server that never ends its list of tools must not keep a call that only wants to know one of them.
MAX_PAGES = 100


class HeaderMirroring:
    """Makes the metadata of requests; knows the annotations of the tools that its client has seen listed.

    A tool that nobody has listed mirrors nothing: its server will complain. ``call(method, params, options)``
    sends a request and returns its typed result, ``cache`` is where that may come from instead.
    """

    def __init__(self, call: Callable[..., Awaitable[Any]], cache: ResponseCache) -> None:
        self._call = call
        self._cache = cache
        self._annotated: dict[str, tuple[MirroredParam, ...]] = {}
        self._refused: dict[str, str] = {}
        self._listing = trio.Lock()
        self.active = False
        """Whether the last request was mirrored: its connection does it, and its era has something to mirror."""
        self.listings = 0
        """How often the tools were listed to find out what a server complained of."""

    def __repr__(self) -> str:
        state = "on" if self.active else "off"
        return f"<HeaderMirroring {state} annotated={len(self._annotated)} refused={len(self._refused)}>"

    def image(self, session: Session, era: Era, method: str, params: dict[str, Any]) -> dict[str, str] | None:
        """What is mirrored of a request; ``None`` where nothing is. A legacy session tells its version by itself.

        Raises `LocalProtocolError` for a tool that was left out of its list, and for what no header can tell.
        """
        self.active = era.name == "modern" and session.link.channel.mirrors
        if not self.active:
            return None
        annotated = self._params_of(params.get("name")) if method == "tools/call" else ()
        return mirrored(era.version, method, params, annotated)

    async def list_tools(
        self, cursor: str | None = None, options: CallOptions | None = None
    ) -> ListToolsResult:
        """One page of the tools, without those that must not be called over this connection."""
        params = {} if cursor is None else {"cursor": cursor}
        page: ListToolsResult = await self._call("tools/list", params, options)
        if self.active:
            page.tools = self._learn(page.tools)
        return page

    async def list_anew(self, listings: int, options: CallOptions) -> None:
        """Lists the tools to learn what they mirror, unless that was done since there were ``listings``.

        Calls that fail together do it once; the next one takes over from one that failed or was cancelled.
        """
        async with self._listing:
            if self.listings != listings:
                return
            self._cache.discard("tools/list")
            # The reports of progress and the metadata are those of the call that failed.
            options = CallOptions(idle=options.idle, cap=options.cap)
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                cursor = (await self.list_tools(cursor, options)).next_cursor
                if cursor is None:
                    break
            self.listings += 1

    def forget(self) -> None:
        """The tools changed: until they are listed again nobody knows what is to be mirrored."""
        self._annotated.clear()
        self._refused.clear()

    def _learn(self, tools: Iterable[Tool]) -> list[Tool]:
        """Takes note of listed tools and returns those that may be used: one with a bad annotation may not."""
        return [tool for tool in tools if self._learned(tool)]

    def _learned(self, tool: Tool) -> bool:
        refused = self._refused.pop(tool.name, None)
        self._annotated.pop(tool.name, None)
        try:
            annotated = annotated_params(tool.input_schema)
        except ValueError as error:
            reason = self._refused[tool.name] = str(error)
            # Lists are read again and again; the reason is told once.
            if refused != reason:
                log.warning("tool left out: a header cannot be made of it", tool=tool.name, reason=reason)
            return False
        if annotated:
            self._annotated[tool.name] = annotated
        return True

    def _params_of(self, name: Any) -> tuple[MirroredParam, ...]:
        if not isinstance(name, str):
            return ()
        if name in self._refused:
            raise LocalProtocolError(f"the tool {name!r} cannot be called: {self._refused[name]}")
        return self._annotated.get(name, ())
