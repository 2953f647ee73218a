"""A server that plays one task by a script, in either dialect, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from mcp_actors import Client
from mcp_actors.testing import RawServer, ScriptedPeer, raw_server
from tests.messages import LEGACY, MODERN, TEXT, discover_result, initialize_result
from tests.scripted_peers import fail, notify, reply, tell

ID = "task-0123456789"
EXTENSION = "io.modelcontextprotocol/tasks"
EACH_DIALECT = (LEGACY, MODERN)
CORE = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}


class TaskScript:
    """Plays ``looks``, one for each ``tasks/get``; the last one is repeated.

    A look is the members of a task beside its id; an ``int`` is an error with this code, and ``"lost"`` ends the
    connection.
    """

    def __init__(self, version: str, *looks: Any, poll: Any = 500, result: Any = None) -> None:
        self.version = version
        self.looks = list(looks)
        self.poll = poll
        self.result = TEXT if result is None else result
        self.support = "required"
        self.grants_listening = True
        self.asked: list[dict[str, Any]] = []
        self.looked_at: list[float] = []
        self.peer: ScriptedPeer | None = None
        self.subscription: Any = None
        self.ended = trio.Event()

    @property
    def methods(self) -> list[str]:
        return [each["method"] for each in self.asked]

    def params(self, method: str) -> list[dict[str, Any]]:
        return [each["params"] for each in self.asked if each["method"] == method]

    def task(self, look: dict[str, Any]) -> dict[str, Any]:
        poll = "pollIntervalMs" if self.version == MODERN else "pollInterval"
        task = {
            "taskId": ID,
            "createdAt": "2026-01-01T00:00:00Z",
            "lastUpdatedAt": "2026-01-01T00:00:00Z",
            **look,
        }
        task.update({"ttlMs" if self.version == MODERN else "ttl": None})
        return task if self.poll is None else {**task, poll: self.poll}

    async def serve(self, server: RawServer) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._play_to_the_end, await server.accept())

    async def _play_to_the_end(self, peer: ScriptedPeer) -> None:
        with suppress(trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
            await self._play(peer)

    async def _play(self, peer: ScriptedPeer) -> None:
        self.peer = peer
        while True:
            message = await peer.receive()
            if message.get("method") in ("notifications/initialized", None):
                self.asked.append({"method": "answer", "params": message.get("result")})
                continue
            if "id" not in message:
                self.asked.append(message)
                continue
            if message["method"] not in ("server/discover", "initialize"):
                self.asked.append(message)
            if await self._answer(peer, message) == "lost":
                await peer.channel.aclose()
                return

    async def _answer(self, peer: ScriptedPeer, request: dict[str, Any]) -> Any:
        method = request["method"]
        if method == "server/discover" and self.version == MODERN:
            await reply(peer, request, discover_result({"tools": {}, "extensions": {EXTENSION: {}}}))
        elif method == "initialize":
            await reply(peer, request, initialize_result(self.version, {"tools": {}, "tasks": CORE}))
        elif method == "tools/list":
            tool = {
                "name": "t",
                "inputSchema": {"type": "object"},
                "execution": {"taskSupport": self.support},
            }
            await reply(peer, request, self._stamped({"tools": [tool]}))
        elif method == "tools/call":
            task = self.task({"status": "working"})
            core = {"task": task}
            await reply(peer, request, {**task, "resultType": "task"} if self.version == MODERN else core)
        elif method == "tasks/get":
            return await self._look(peer, request)
        elif method == "tasks/result" and self.version != MODERN:
            await self.give_result(peer, request)
        elif method == "tasks/cancel":
            await reply(peer, request, self._stamped(self.task({"status": "cancelled"})))
            self.ended.set()
        elif method == "tasks/update" and self.version == MODERN:
            await reply(peer, request, {"resultType": "complete"})
        elif method == "tasks/list" and self.version != MODERN:
            await reply(peer, request, {"tasks": [self.task({"status": "working"})]})
        elif method == "subscriptions/listen" and self.grants_listening:
            self.subscription = request["id"]
            granted = request["params"]["notifications"]
            await tell(peer, request["id"], "notifications/subscriptions/acknowledged", notifications=granted)
        else:
            await fail(peer, request, -32601)
        return None

    async def _look(self, peer: ScriptedPeer, request: dict[str, Any]) -> Any:
        self.looked_at.append(trio.current_time())
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look == "lost":
            return look
        if isinstance(look, int):
            await fail(peer, request, look)
        else:
            await reply(peer, request, self._stamped(self.task(look)))
        return None

    async def give_result(self, peer: ScriptedPeer, request: dict[str, Any]) -> None:
        if isinstance(self.result, int):
            await fail(peer, request, self.result)
        else:
            await reply(peer, request, self.result)

    async def changed(self) -> None:
        """Tells the client that the task has changed."""
        assert self.peer is not None
        if self.version == MODERN:
            await tell(
                self.peer, self.subscription, "notifications/tasks", **self.task({"status": "working"})
            )
        else:
            await notify(self.peer, "notifications/tasks/status", **self.task({"status": "working"}))

    def _stamped(self, value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "resultType": "complete"} if self.version == MODERN else value


def completed(version: str) -> dict[str, Any]:
    """The last look at a task that went well."""
    return {"status": "completed", **({"result": TEXT} if version == MODERN else {})}


def failed(version: str, code: int) -> dict[str, Any]:
    error = {"code": code, "message": "no"}
    return {"status": "failed", **({"error": error} if version == MODERN else {})}


@asynccontextmanager
async def playing(script: TaskScript, lists: bool = True, **options: Any) -> AsyncIterator[Client]:
    """A client of the script, which has listed the tools or not."""
    async with raw_server() as server, trio.open_nursery() as nursery:
        nursery.start_soon(script.serve, server)
        async with Client(server.transport, era=script.version, **options) as client:
            if lists:
                await client.list_tools()
            script.asked.clear()
            yield client
        nursery.cancel_scope.cancel()
