"""Calls all the time by an official client for Python, until its standard input ends; then it says what came of it.

Usage: calling.py URL NAME v1|legacy|auto|fastmcp LONGEST

It prints ``calling`` once each kind of call has been answered, and at the end one line of JSON: how many calls were
answered, which failed, how many reports of progress and changes of a resource were due and came, and how many tasks
ended.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread

PATIENCE = 30.0  # seconds until a change of a resource must have been told
PAUSE = 0.2
PAUSE_OF_CHANGES = 0.6

Call = Callable[..., Awaitable[Any]]
Notified = Callable[[str], None]


class Connected:
    """One client: what differs between the generations of the SDK."""

    def __init__(self, call: Call, session: Any, listen: Any = None) -> None:
        self.call = call
        self.session = session
        self.listen = listen

    async def job(self, arguments: dict[str, Any]) -> Any:
        """Calls a tool as a task, and waits for its result."""
        from mcp import types

        tasks = self.session.experimental
        id = (await tasks.call_tool_as_task("job", arguments, ttl=60_000)).task.taskId
        async for _ in tasks.poll_task(id):
            pass
        return await tasks.get_task_result(id, types.CallToolResult)


@asynccontextmanager
async def connected_v1(url: str, name: str, notified: Notified) -> AsyncIterator[Connected]:
    from mcp import ClientSession, types
    from mcp.client.streamable_http import streamable_http_client

    async def take(message: Any) -> None:
        root = getattr(message, "root", None)
        if isinstance(root, types.ResourceUpdatedNotification):
            notified(str(root.params.uri))

    info = types.Implementation(name=name, version="1")
    async with (
        streamable_http_client(url) as (read, write, _),
        ClientSession(read, write, message_handler=take, client_info=info) as session,
    ):
        await session.initialize()

        async def call(tool: str, arguments: dict[str, Any], progress: Any = None) -> Any:
            return await session.call_tool(tool, arguments, progress_callback=progress)

        yield Connected(call, session)


@asynccontextmanager
async def connected_v2(url: str, name: str, notified: Notified, mode: str) -> AsyncIterator[Connected]:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types import Implementation

    async def take(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            notified(str(message.params.uri))

    info = Implementation(name=name, version="1")
    async with Client(
        streamable_http_client(url), mode=mode, message_handler=take, client_info=info
    ) as client:

        async def call(tool: str, arguments: dict[str, Any], progress: Any = None) -> Any:
            return await client.call_tool(tool, arguments, progress_callback=progress)

        is_modern = client.protocol_version >= "2026"
        yield Connected(call, client.session, client.listen if is_modern else None)


@asynccontextmanager
async def connected_fastmcp(url: str, name: str, notified: Notified) -> AsyncIterator[Connected]:
    from fastmcp import Client
    from mcp.types import Implementation

    async def take(message: Any) -> None:
        message = getattr(message, "root", message)
        if getattr(message, "method", "") == "notifications/resources/updated":
            notified(str(message.params.uri))

    info = Implementation(name=name, version="1")
    async with Client(url, mode="legacy", message_handler=take, client_info=info) as client:

        async def call(tool: str, arguments: dict[str, Any], progress: Any = None) -> Any:
            return await client.call_tool(tool, arguments, progress_handler=progress)

        yield Connected(call, client.session)


class Load:
    """The calls of one client, and what came of them."""

    def __init__(self, name: str, longest: float) -> None:
        self.name = name
        self.longest = longest
        self.over = anyio.Event()
        self.seen: dict[str, anyio.Event] = {}
        self.answered = dict.fromkeys(("short", "medium", "long"), 0)
        self.progress = {"due": 0, "came": 0}
        self.changes = {"due": 0, "came": 0, "refetched": 0}
        self.tasks = 0
        self.failed: list[str] = []
        self.began = anyio.Event()
        self._number = 0

    def notified(self, uri: str) -> None:
        if uri in self.seen:
            self.seen[uri].set()

    def token(self) -> str:
        self._number += 1
        return f"{self.name}-{self._number}"

    def fail(self, what: str, error: object) -> None:
        self.failed.append(f"{anyio.current_time():.1f} {what}: {error!r}"[:600])

    async def call(self, client: Connected, kind: str, seconds: float, steps: int) -> None:
        token, came = self.token(), 0

        async def progress(*_: Any) -> None:
            nonlocal came
            came += 1

        try:
            result = await client.call(
                "work", {"token": token, "seconds": seconds, "steps": steps}, progress if steps > 1 else None
            )
            assert result.content[0].text == token, result
        except Exception as error:
            self.fail(f"{kind} call of {seconds:.2f} s", error)
            await anyio.sleep(1)
            return
        self.answered[kind] += 1
        if steps > 1:
            # A handler of what comes beside may run behind the answer.
            await anyio.sleep(0.2)
            self.progress["due"] += steps
            self.progress["came"] += min(came, steps)

    async def calls(self, client: Connected, kind: str, least: float, most: float, steps: int) -> None:
        while not self.over.is_set():
            await self.call(client, kind, random.uniform(least, most), steps)
            await anyio.sleep(PAUSE)

    async def until_stream_is_open(self, client: Connected) -> None:
        """Has one topic change until that is told: the client opens its stream beside its first calls, and what changes
        before that is told to nobody."""
        topic = self.token()
        uri = f"news://{topic}"
        self.seen[uri] = anyio.Event()
        await client.session.subscribe_resource(uri)
        while not self.seen[uri].is_set():
            await client.call("change", {"topic": topic})
            with anyio.move_on_after(PAUSE_OF_CHANGES):
                await self.seen[uri].wait()
        await client.session.unsubscribe_resource(uri)
        del self.seen[uri]

    async def subscribed(self, client: Connected) -> None:
        """Has the news of one topic change after the other, and waits each time until that is told."""
        await self.until_stream_is_open(client)
        while not self.over.is_set():
            topic = self.token()
            uri = f"news://{topic}"
            self.seen[uri] = anyio.Event()
            try:
                await client.session.subscribe_resource(uri)
                await client.call("change", {"topic": topic})
                self.changes["due"] += 1
                with anyio.move_on_after(PATIENCE):
                    await self.seen[uri].wait()
                    self.changes["came"] += 1
                if not self.seen[uri].is_set():
                    self.fail("change", "it was not told")
                await client.session.unsubscribe_resource(uri)
            except Exception as error:
                self.fail("change", error)
                await anyio.sleep(1)
            del self.seen[uri]
            await anyio.sleep(PAUSE_OF_CHANGES)

    async def listened(self, client: Connected) -> None:
        """The same in the stateless revision. There a stream that ends in order has what changed be fetched."""
        while not self.over.is_set():
            topic = self.token()
            try:
                async with client.listen(resource_subscriptions=[f"news://{topic}"]) as subscription:
                    await client.call("change", {"topic": topic})
                    self.changes["due"] += 1
                    with anyio.move_on_after(PATIENCE) as scope:
                        try:
                            await subscription.__anext__()
                            self.changes["came"] += 1
                        except StopAsyncIteration:
                            self.changes["refetched"] += 1
                    if scope.cancelled_caught:
                        self.fail("change", "it was not told")
            except Exception as error:
                self.fail("change", error)
                await anyio.sleep(1)
            await anyio.sleep(PAUSE_OF_CHANGES)

    async def jobs(self, client: Connected) -> None:
        while not self.over.is_set():
            token = self.token()
            try:
                result = await client.job({"token": token, "seconds": random.uniform(0.01, self.longest / 2)})
                assert result.content[0].text == token, result
                self.tasks += 1
            except Exception as error:
                self.fail("task", error)
                await anyio.sleep(1)
            await anyio.sleep(PAUSE)

    async def until_begun(self, modes: str) -> None:
        while not (self.answered["short"] and self.changes["came"] and (self.tasks or modes != "v1")):  # noqa: ASYNC110 - simplest
            await anyio.sleep(0.1)
        print("calling", flush=True)


async def main(url: str, name: str, mode: str, longest: str) -> None:
    load = Load(name, float(longest))
    connecting = {
        "v1": lambda: connected_v1(url, name, load.notified),
        "fastmcp": lambda: connected_fastmcp(url, name, load.notified),
    }.get(mode, lambda: connected_v2(url, name, load.notified, mode))
    async with connecting() as client, anyio.create_task_group() as group:
        group.start_soon(load.calls, client, "short", 0.01, 0.3, 1)
        group.start_soon(load.calls, client, "medium", 0.3, load.longest / 4, 10)
        group.start_soon(load.calls, client, "long", load.longest / 2, load.longest, 20)
        group.start_soon(load.listened if client.listen is not None else load.subscribed, client)
        if mode == "v1":
            group.start_soon(load.jobs, client)
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(load.until_begun, mode)
            await anyio.to_thread.run_sync(sys.stdin.read)
            waiting.cancel_scope.cancel()
        load.over.set()
    report = {
        "answered": load.answered,
        "progress": load.progress,
        "changes": load.changes,
        "tasks": load.tasks,
        "failed": load.failed,
    }
    print(json.dumps(report))


anyio.run(main, *sys.argv[1:])
