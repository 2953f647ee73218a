"""A client of the everything server in memory, with somebody behind it who answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

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

from .everything_server import server

__all__ = ["User", "connected"]

LIMIT = 120.0  # seconds for one test, which takes less than one


class User:
    """The client's side of every question, and what was asked."""

    def __init__(self) -> None:
        self.forms: list[ElicitFormParams] = []
        self.logged: list[tuple[str, Any]] = []
        self.answer: dict[str, Any] = {}

    async def sampling(self, params: CreateMessageParams) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(text="Paris"), model="fake-1")

    async def elicitation(self, params: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        assert isinstance(params, ElicitFormParams)
        self.forms.append(params)
        known = params.requested_schema["properties"]
        return ElicitResult(
            action="accept", content={name: value for name, value in self.answer.items() if name in known}
        )

    def on_log(self, level: str, data: Any, logger: str | None) -> None:
        self.logged.append((level, data))


@asynccontextmanager
async def connected(era: str, user: User | None = None, **options: Any) -> AsyncIterator[Client]:
    if user is not None:
        options = {
            "sampling": user.sampling,
            "elicitation": user.elicitation,
            "roots": ["file:///home/user"],
            "on_log": user.on_log,
            **options,
        }
    with trio.fail_after(LIMIT):
        async with Client(server, era=era, **options) as client:
            yield client
