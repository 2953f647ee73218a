"""The client's side of a conversation with an official server: a person, a model, and a log window."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
import trio

from mcp_actors import Client
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    TextContent,
)

__all__ = ["LEGACY", "LIMIT", "MODERN", "User", "require_watched_tools", "rows", "stdio", "text_of"]

LIMIT = 150.0  # seconds for one test; they take about one, and forty on a machine that is full
LEGACY, MODERN = "2025-11-25", "2026-07-28"


def rows(server: str, *table: tuple[str, str], without: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Runs a test once for each (binding, era) of the table; ``without`` leaves eras out."""
    return pytest.mark.parametrize(
        ("target", "era"),
        [
            pytest.param((server, binding), era, id=f"{binding}-{era}")
            for binding, era in table
            if era not in without
        ],
        indirect=["target"],
    )


def stdio(*command: object) -> str:
    return "stdio:" + shlex.join(str(part) for part in command)


class User:
    """What a person, a model and a log window would do on the client's side, and what they saw."""

    def __init__(self) -> None:
        self.sampled: list[CreateMessageParams] = []
        self.elicited: list[ElicitFormParams | ElicitUrlParams] = []
        self.logged: list[tuple[str, Any]] = []
        self.changed: list[tuple[str, str | None]] = []
        self.answer: dict[str, Any] = {}
        self.news = trio.Event()

    async def sampling(self, params: CreateMessageParams) -> CreateMessageResult:
        self.sampled.append(params)
        return CreateMessageResult(
            role="assistant", content=TextContent(text="I am the model"), model="fake-1"
        )

    async def elicitation(self, params: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        self.elicited.append(params)
        return ElicitResult(action="accept", content=dict(self.answer))

    def on_log(self, level: str, data: Any, logger: str | None) -> None:
        self.logged.append((level, data))
        self._tell()

    def on_change(self, kind: str, uri: str | None) -> None:
        self.changed.append((kind, uri))
        self._tell()

    def _tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    def options(self) -> dict[str, Any]:
        return {
            "sampling": self.sampling,
            "elicitation": self.elicitation,
            "roots": ["file:///home/peer"],
            "on_log": self.on_log,
            "on_change": self.on_change,
        }


def text_of(content: Sequence[Any]) -> str:
    return "\n".join(block.text for block in content if isinstance(block, TextContent))


async def require_watched_tools(target: str, era: str) -> None:
    """Has a server with the tools ``echo`` and ``grow`` get one more, which our client sees."""
    grown = f"grown_{uuid4().hex}"
    with trio.fail_after(LIMIT):
        async with Client(target, era=era) as client, client.watch_tools() as tools:
            first = await anext(tools)
            assert "echo" in {tool.name for tool in first.added}
            await client.call_tool("grow", {"name": grown})
            async for change in tools:
                # Another test may have had it grow before.
                assert not change.removed
                if grown in {tool.name for tool in change.added}:
                    assert grown in {tool.name for tool in change.all}
                    break
