"""What a client mirrors of its calls of tools: the parameters that the tools it has seen listed are annotated for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcp_actors._eras.modern.annotations import MirroredParam, annotated_params
from mcp_actors._logs import log
from mcp_actors.errors import LocalProtocolError
from mcp_actors.types import Tool

__all__ = ["Mirroring"]


class Mirroring:
    """Annotations by tool name. A tool that nobody has listed mirrors nothing: its server will complain."""

    def __init__(self) -> None:
        self._annotated: dict[str, tuple[MirroredParam, ...]] = {}
        self._refused: dict[str, str] = {}
        self.listings = 0
        """How often the tools were listed to find out what a server complained of."""

    def __repr__(self) -> str:
        return f"<Mirroring annotated={len(self._annotated)} refused={len(self._refused)}>"

    def learn(self, tools: Iterable[Tool]) -> list[Tool]:
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

    def forget(self) -> None:
        """The tools changed: until they are listed again nobody knows what is to be mirrored."""
        self._annotated.clear()
        self._refused.clear()

    def params_of(self, name: Any) -> tuple[MirroredParam, ...]:
        """The mirrored parameters of a tool; raises `LocalProtocolError` for one that was left out of its list."""
        if not isinstance(name, str):
            return ()
        if name in self._refused:
            raise LocalProtocolError(f"the tool {name!r} cannot be called: {self._refused[name]}")
        return self._annotated.get(name, ())
