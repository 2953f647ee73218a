"""Talks to a server with tasks, message by message, in both dialects."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors import Server
from mcp_actors.abc import SharedState
from mcp_actors.tasks import TASKS, Tasks
from mcp_actors.testing import ScriptedPeer, raw_client
from tests.messages import modern_meta

from .nodes import FakeShared

__all__ = ["CORE", "DECLARED", "EXTENSION", "Talk", "make_server", "talking"]

CORE, EXTENSION = "2025-11-25", "2026-07-28"
DECLARED = {"extensions": {TASKS: {}}}
ASKED = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


def make_server(shared: SharedState | None = None, **settings: Any) -> Server:
    """A server whose tasks live by virtual time."""
    tasks = Tasks(clock=trio.current_time, **settings)
    return Server("s", extensions=[tasks], shared=shared or FakeShared(spans=False))


class Talk:
    """One client's connection."""

    def __init__(self, peer: ScriptedPeer, version: str, capabilities: dict[str, Any]) -> None:
        self.peer = peer
        self.version = version
        self.notified: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self._capabilities = capabilities
        self._answers: dict[int, dict[str, Any]] = {}
        self._ids = itertools.count(1)

    async def send(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> int:
        """Sends a request and returns its id."""
        id = next(self._ids)
        sent = dict(params or {})
        if self.version == EXTENSION:
            sent["_meta"] = modern_meta(self._capabilities, **meta)
        elif meta:
            sent["_meta"] = meta
        await self.peer.send({"jsonrpc": "2.0", "id": id, "method": method, "params": sent})
        return id

    async def answer_to(self, id: int) -> dict[str, Any]:
        """Waits for the answer to a request; keeps what else comes."""
        while id not in self._answers:
            message: dict[str, Any] = await self.peer.receive()
            if "method" not in message:
                self._answers[message["id"]] = message
            else:
                (self.asked if "id" in message else self.notified).append(message)
        return self._answers.pop(id)

    async def ask(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        """Sends a request and returns the message that answers it."""
        return await self.answer_to(await self.send(method, params, **meta))

    async def result(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        """Sends a request and returns its result."""
        answer = await self.ask(method, params, **meta)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def code(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> int:
        """Sends a request and returns the code of the error that answers it."""
        answer = await self.ask(method, params, **meta)
        assert "error" in answer, answer
        code: int = answer["error"]["code"]
        return code

    async def begin(self, name: str, arguments: dict[str, Any] | None = None, **meta: Any) -> str:
        """Calls a tool as a task and returns the task's id."""
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        if self.version == CORE:
            created = await self.result("tools/call", {**params, "task": {}}, **meta)
            id: str = created["task"]["taskId"]
        else:
            id = (await self.result("tools/call", params, **meta))["taskId"]
        return id

    async def get(self, id: str) -> dict[str, Any]:
        return await self.result("tasks/get", {"taskId": id})

    async def until(self, id: str, *states: str) -> dict[str, Any]:
        """Polls until the task is in one of the states, by default in one that it never leaves."""
        wanted = states or ("completed", "failed", "cancelled")
        while True:
            task = await self.get(id)
            if task["status"] in wanted:
                return task
            await trio.sleep(task.get("pollInterval", task.get("pollIntervalMs")) / 1000)


@asynccontextmanager
async def talking(
    server: Server, version: str, capabilities: dict[str, Any] | None = None
) -> AsyncIterator[Talk]:
    """Connects a client of a revision, which declares tasks and that it answers everything by default."""
    if capabilities is None:
        capabilities = {**ASKED, **DECLARED}
    async with raw_client(server) as peer:
        if version == CORE:
            await peer.initialize(version, capabilities)
        yield Talk(peer, version, capabilities)
