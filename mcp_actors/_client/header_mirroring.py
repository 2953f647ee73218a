"""The headers in which a client repeats parts of its requests, where its channel carries them.

MCP 2026-07-28, Streamable HTTP, Standard and Custom Headers: the version, the method, what the request is about, and
the parameters of a tool whose input schema says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import trio

from mcp_actors._eras.era import Era
from mcp_actors._eras.modern.annotations import MirroredParam
from mcp_actors.errors import LocalProtocolError
from mcp_actors.logging import log
from mcp_actors.types import Tool

__all__ = ["HeaderMirroring"]


class HeaderMirroring:
    """Makes the metadata of the requests of one connection; knows the annotations of the tools that were listed in it.

    A tool that was not listed mirrors none of its parameters. If it has annotations the server refuses the call, and
    the tools have to be listed. ``targets`` are the members of params that say what extensions' methods are about.
    """

    def __init__(self, era: Era, targets: Mapping[str, str]) -> None:
        assert era.client.mirrored is not None
        self._version = era.version
        self._mirrored = era.client.mirrored
        self._targets = targets
        self._find_params = era.client.mirrored_params
        self._annotated: dict[str, tuple[MirroredParam, ...]] = {}
        self._refused: dict[str, str] = {}
        self.listing = trio.Lock()
        """Is held while the tools are listed because a server refused a call."""
        self.listings = 0
        """How often that was done."""

    def __repr__(self) -> str:
        return f"<HeaderMirroring annotated={len(self._annotated)} refused={len(self._refused)}>"

    def metadata_of(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        """Returns what is mirrored of a request.

        Raises:
            LocalProtocolError: The tool was left out of its list, or a value cannot be written in a header.
        """
        annotated = self._params_of(params.get("name")) if method == "tools/call" else ()
        return self._mirrored(self._version, method, params, annotated, self._targets.get(method))

    def learn(self, tools: Iterable[Tool]) -> list[Tool]:
        """Takes note of listed tools and returns those that may be called: one with a bad annotation may not."""
        return [tool for tool in tools if self._is_usable(tool)]

    def forget(self) -> None:
        """The tools have changed: until they are listed again nobody knows what is to be mirrored."""
        self._annotated.clear()
        self._refused.clear()

    def _is_usable(self, tool: Tool) -> bool:
        refused = self._refused.pop(tool.name, None)
        self._annotated.pop(tool.name, None)
        try:
            annotated = self._find_params(tool.input_schema)
        except ValueError as error:
            reason = self._refused[tool.name] = str(error)
            # Lists are read again and again; the reason is logged once.
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
