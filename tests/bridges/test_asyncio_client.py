"""`mcp_actors.asyncio.Client`: the same methods in an asyncio loop, and the same endings."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio

from mcp_actors import Context, Progress, Server
from mcp_actors.asyncio import Client, ClientPool
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, RpcError
from mcp_actors.types import CreateMessageResult, ElicitResult, TextContent
from tests.bridges.watched import Watched, held

if sys.platform == "win32":  # where there is no uvloop, and the loop of asyncio.run waits for completions
    new_loop = asyncio.SelectorEventLoop
else:
    from uvloop import new_event_loop as new_loop

Run = Callable[[Coroutine[Any, Any, Any]], Any]
PATIENCE = 20


def on_asyncio(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def in_time() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await coroutine

    return asyncio.run(in_time())


def on_another_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(coroutine)


@pytest.fixture(params=[on_asyncio, on_another_loop])
def run(request: pytest.FixtureRequest) -> Run:
    loop: Run = request.param
    return loop


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_methods_of_a_client(run: Run, watched: Watched) -> None:
    async def main() -> None:
        async with Client(watched.server) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
            assert "add" in [tool.name async for tool in client.tools()]
            assert (await client.list_prompts()).prompts[0].name == "greet"
            assert (await client.read_resource("note:/one")).contents[0].text == "one"
            assert client.server_info is not None
            assert client.server_info.name == "watched"
            assert client.tree().state == "open"
            await client.ping()
            with pytest.raises(RpcError, match="unknown tool: none"):
                await client.call_tool("none")
            assert repr(client) == "<asyncio.Client 'Server' connected>"
        with pytest.raises(ConnectionLost):
            await client.call_tool("add", {"a": 1, "b": 2})

    run(main())
    assert held() == []


def test_reports_arrive_in_the_loop_and_before_the_result(run: Run, watched: Watched) -> None:
    seen: list[float] = []

    async def later(progress: Progress) -> None:
        await asyncio.sleep(0)
        assert threading.current_thread() is threading.main_thread()
        seen.append(progress.progress)

    def at_once(progress: Progress) -> None:
        asyncio.get_running_loop()
        seen.append(progress.progress)

    async def main() -> None:
        async with Client(watched.server) as client:
            for callback in (later, at_once):
                await client.call_tool("report", {"times": 3}, on_progress=callback)

    run(main())
    assert seen == [0, 1, 2, 0, 1, 2]


def test_a_report_that_fails_ends_its_call_and_nothing_else(watched: Watched) -> None:
    async def fail(progress: Progress) -> None:
        raise LookupError("no such file")

    async def main() -> None:
        async with Client(watched.server) as client:
            with pytest.raises(LookupError, match="no such file"):
                await client.call_tool("wait", on_progress=fail)
            assert watched.next_event() == "began"
            assert await asyncio.to_thread(watched.next_event) == "cancelled"
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3

    on_asyncio(main())


async def cancel_by_timeout(client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as bound:
            # A call whose time is over before it has come to the server is never seen there.
            await client.call_tool("wait", on_progress=lambda progress: bound.reschedule(0.0))


async def cancel_by_wait_for(client: Client) -> None:
    is_called = asyncio.Event()
    task = asyncio.create_task(client.call_tool("wait", on_progress=lambda progress: is_called.set()))
    await is_called.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 0.05)


async def cancel_by_group(client: Client) -> None:
    is_called = asyncio.Event()

    async def leave_the_group() -> None:
        await is_called.wait()
        raise LookupError

    async def enter_the_group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.call_tool("wait", on_progress=lambda progress: is_called.set()))
            tasks.create_task(leave_the_group())

    with pytest.raises(BaseExceptionGroup) as group:
        await enter_the_group()
    assert group.value.subgroup(LookupError) is not None


async def cancel_in_a_callback(client: Client) -> None:
    is_called = asyncio.Event()

    async def never(progress: Progress) -> None:
        is_called.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(client.call_tool("wait", on_progress=never))
    await is_called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "cancel", [cancel_by_timeout, cancel_by_wait_for, cancel_by_group, cancel_in_a_callback]
)
def test_a_cancelled_call_is_cancelled_at_the_server(
    run: Run, watched: Watched, cancel: Callable[[Client], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with Client(watched.server) as client:
            await cancel(client)
            assert await asyncio.to_thread(watched.next_event) == "began"
            assert await asyncio.to_thread(watched.next_event) == "cancelled"
            assert client.tree().pending == ()

    run(main())


@pytest.mark.parametrize("turns", range(6))
def test_a_call_that_is_cancelled_early_or_late_leaves_nothing(turns: int, watched: Watched) -> None:
    """After so many turns of the loop: before the engine has begun the call, and while the result is under way."""

    async def main() -> None:
        async with Client(watched.server) as client:
            task = asyncio.create_task(client.call_tool("add", {"a": 1, "b": 2}))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.result().structured_content == 3
            assert client.tree().pending == ()
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3

    on_asyncio(main())
    assert held() == []


class NeverConnects:
    """A transport of a server that nobody answers for."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ended = threading.Event()

    async def _connect(self) -> Any:
        self.began.set()
        try:
            await trio.sleep_forever()
        finally:
            self.ended.set()

    def connect(self) -> Any:
        return self

    async def __aenter__(self) -> Any:
        return await self._connect()

    async def __aexit__(self, *exc_info: object) -> None: ...


def test_a_client_that_is_cancelled_while_it_connects_leaves_nothing() -> None:
    transport = NeverConnects()

    async def main() -> None:
        task = asyncio.create_task(Client(transport).open())
        await asyncio.to_thread(transport.began.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transport.ended.is_set()

    on_asyncio(main())
    assert held() == []


@pytest.mark.parametrize("turns", range(8))
def test_an_opening_that_is_cancelled_at_any_time_leaves_nothing(turns: int, watched: Watched) -> None:
    async def main() -> None:
        client = Client(watched.server)
        task = asyncio.create_task(client.open())
        for _ in range(turns**2):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            assert held() == []
        await client.aclose()

    on_asyncio(main())
    assert held() == []


def test_callbacks_run_in_the_loop(run: Run, watched: Watched) -> None:
    loops: list[Any] = []
    logged: list[Any] = []
    all_logged = threading.Event()

    async def elicit(question: Any) -> ElicitResult:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return ElicitResult("accept", {"name": "Ada"})

    def sample(params: Any) -> CreateMessageResult:
        loops.append(asyncio.get_running_loop())
        return CreateMessageResult(role="assistant", content=TextContent("said"), model="m")

    def roots() -> list[str]:
        loops.append(asyncio.get_running_loop())
        return ["file:///work"]

    async def on_log(level: Any, data: Any, logger: Any) -> None:
        await asyncio.sleep(0)
        logged.append(data)
        if len(logged) == 3:
            all_logged.set()

    async def main(era: str) -> None:
        options: dict[str, Any] = {
            "elicitation": elicit,
            "sampling": sample,
            "roots": roots,
            "on_log": on_log,
        }
        async with Client(watched.server, era=era, **options) as client:
            assert (await client.call_tool("ask")).content[0].text == "accept Ada"
            assert (await client.call_tool("sample")).content[0].text == "said"
            assert (await client.call_tool("roots")).content[0].text == "file:///work"
            await client.call_tool("logs", {"times": 3})
            await asyncio.to_thread(all_logged.wait, 10)
        assert set(loops) == {asyncio.get_running_loop()}
        assert logged == [0, 1, 2]

    for era in ("legacy", "modern"):
        run(main(era))
        loops.clear()
        logged.clear()
        all_logged.clear()


def test_a_callback_that_fails_costs_its_call(watched: Watched) -> None:
    async def elicit(question: Any) -> ElicitResult:
        raise LookupError("no person")

    async def main() -> None:
        async with Client(watched.server, elicitation=elicit) as client:
            with pytest.raises(LookupError, match="no person"):
                await client.call_tool("ask")
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3

    on_asyncio(main())


def test_a_callback_that_never_returns_does_not_hold_up_the_end(watched: Watched) -> None:
    asked, ended = threading.Event(), threading.Event()

    async def elicit(question: Any) -> ElicitResult:
        asked.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    async def main() -> None:
        client = await Client(watched.server, era="legacy", elicitation=elicit).open()
        call = asyncio.create_task(client.call_tool("ask"))
        await asyncio.to_thread(asked.wait, 10)
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await call

    on_asyncio(main())
    assert ended.is_set()
    assert held() == []


def test_a_callback_closes_its_client(watched: Watched) -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def on_log(level: Any, data: Any, logger: Any) -> None:
            await client.aclose()
            closed.set()

        client = await Client(watched.server, on_log=on_log).open()
        call = asyncio.create_task(client.call_tool("logs", {"times": 1}))
        await closed.wait()
        await asyncio.wait([call])
        await client.aclose()

    on_asyncio(main())
    assert held() == []


def test_changes_are_listened_to(run: Run, watched: Watched) -> None:
    async def main() -> None:
        for era in ("legacy", "modern"):
            async with Client(watched.server, era=era) as client, client.listen(tools=True) as changes:
                assert changes.filter.tools_list_changed
                assert changes.honored is not None
                await client.call_tool("grow", {"name": era})
                assert (await anext(changes)).kind == "tools"

    run(main())
    assert held() == []


def test_a_tool_is_started_and_waited_for(watched: Watched) -> None:
    async def main() -> None:
        async with Client(watched.server) as client:
            handle = await client.start_tool("add", {"a": 1, "b": 2})
            assert handle.id is None
            assert (await handle.result()).structured_content == 3
            assert [status.status async for status in handle.updates()] == ["completed"]
            assert repr(handle) == "<asyncio.TaskHandle without a task completed>"

    on_asyncio(main())


def test_a_client_is_opened_and_closed_without_a_block(watched: Watched) -> None:
    async def main() -> None:
        client = Client(watched.server)
        with pytest.raises(LocalProtocolError, match="use 'async with Client"):
            await client.call_tool("add")
        with pytest.raises(LocalProtocolError, match="use 'async with Client"):
            _ = client.era
        assert await client.open() is client
        with pytest.raises(LocalProtocolError, match="opened once"):
            await client.open()
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
        await client.aclose()
        await client.aclose()
        discarded = Client(watched.server)
        await discarded.aclose()
        with pytest.raises(McpError):
            await discarded.open()

    on_asyncio(main())
    assert held() == []


def test_what_cannot_connect_says_so() -> None:
    async def main() -> None:
        with pytest.raises(ConnectFailed):
            async with Client("tcp://127.0.0.1:1"):
                raise AssertionError("connected")

    on_asyncio(main())
    assert held() == []


def test_a_client_is_used_from_another_loop(watched: Watched) -> None:
    async def main() -> None:
        async with Client(watched.server) as client:

            def elsewhere() -> Any:
                return asyncio.run(client.call_tool("add", {"a": 2, "b": 2}))

            results = await asyncio.gather(
                asyncio.to_thread(elsewhere), client.call_tool("add", {"a": 1, "b": 2})
            )
            assert [each.structured_content for each in results] == [4, 3]

    on_asyncio(main())


def test_a_loop_that_is_closed_closes_its_clients(watched: Watched) -> None:
    async def main() -> Client:
        return await Client(watched.server).open()

    for _ in range(2):
        client = on_asyncio(main())
        assert held() == []
    with pytest.raises(ConnectionLost):
        on_asyncio(client.call_tool("add", {"a": 1, "b": 2}))


def test_a_pool_closes_its_clients(watched: Watched) -> None:
    async def main() -> None:
        async with ClientPool() as pool:
            first, second = [await pool.open(Client(watched.server)) for _ in range(2)]
            assert (await first.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
            await pool.close(first)
            with pytest.raises(ConnectionLost):
                await first.call_tool("add")
            assert (await second.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
            with pytest.raises(LocalProtocolError, match="opened once"):
                await pool.open(second)
        with pytest.raises(ConnectionLost):
            await second.call_tool("add")

    on_asyncio(main())
    assert held() == []


def test_a_client_is_neither_copied_nor_pickled(watched: Watched) -> None:
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a Client cannot be copied or pickled"):
            way(Client(watched.server))


def test_a_tool_for_asyncio_runs_in_the_loop_of_the_client() -> None:
    server = Server("s")
    began, ended = threading.Event(), threading.Event()

    @server.tool(loop="asyncio")
    async def where(ctx: Context) -> int:
        await asyncio.sleep(0)
        await ctx.progress(1)
        return id(asyncio.get_running_loop())

    @server.tool(loop="asyncio")
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def main() -> None:
        reports: list[Progress] = []
        async with Client(server) as client:
            result = await client.call_tool("where", on_progress=reports.append)
            assert result.structured_content == id(asyncio.get_running_loop())
            assert len(reports) == 1
            call = asyncio.create_task(client.call_tool("wait"))
            await asyncio.to_thread(began.wait, 10)
            call.cancel()
            await asyncio.wait([call])
            assert await asyncio.to_thread(ended.wait, 10)

    on_asyncio(main())
