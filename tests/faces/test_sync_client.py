"""`mcp_actors.sync.Client`: the same methods for programs without a loop, and the same endings."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio

from mcp_actors import Progress
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, RpcError
from mcp_actors.sync import Client, ClientPool
from mcp_actors.types import CreateMessageResult, ElicitResult, TextContent

from .watched import Watched, held


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_methods_of_a_client(watched: Watched) -> None:
    with Client(watched.server) as client:
        assert client.call_tool("add", {"a": 1, "b": 2}).structured_content == 3
        assert "add" in [tool.name for tool in client.tools()]
        assert client.list_prompts().prompts[0].name == "greet"
        assert client.read_resource("note:/one").contents[0].text == "one"
        assert client.server_info is not None
        assert client.server_info.name == "watched"
        assert client.tree().state == "open"
        client.ping()
        with pytest.raises(RpcError, match="unknown tool: none"):
            client.call_tool("none")
        assert repr(client) == "<sync.Client 'Server' connected>"
        handle = client.start_tool("add", {"a": 1, "b": 2})
        assert handle.result().structured_content == 3
        assert [status.status for status in handle.updates()] == ["completed"]
    with pytest.raises(ConnectionLost):
        client.call_tool("add")
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(client)
    assert held() == []


def test_reports_arrive_in_the_thread_that_waits(watched: Watched) -> None:
    seen: list[float] = []

    def report(progress: Progress) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen.append(progress.progress)

    def fail(progress: Progress) -> None:
        raise LookupError("no such file")

    with Client(watched.server) as client:
        client.call_tool("report", {"times": 3}, on_progress=report)
        assert seen == [0, 1, 2]
        with pytest.raises(LookupError, match="no such file"):
            client.call_tool("wait", on_progress=fail)
        assert [watched.next_event(), watched.next_event()] == ["began", "cancelled"]
        assert client.call_tool("add", {"a": 1, "b": 2}).structured_content == 3


def test_an_interrupt_cancels_the_call_at_the_server(watched: Watched) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with Client(watched.server) as client:
        with pytest.raises(KeyboardInterrupt):
            client.call_tool("wait", on_progress=interrupt)
        assert [watched.next_event(), watched.next_event()] == ["began", "cancelled"]
        assert client.tree().pending == ()
        assert client.call_tool("add", {"a": 1, "b": 2}).structured_content == 3
    assert held() == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_callbacks_are_plain_functions_in_threads_or_async_ones_in_the_engine(
    era: str, watched: Watched
) -> None:
    threads: list[threading.Thread] = []
    logged: list[Any] = []
    all_logged = threading.Event()

    def elicit(question: Any) -> ElicitResult:
        threads.append(threading.current_thread())
        return ElicitResult("accept", {"name": "Ada"})

    async def sample(params: Any) -> CreateMessageResult:
        await trio.lowlevel.checkpoint()
        return CreateMessageResult(role="assistant", content=TextContent("said"), model="m")

    def on_log(level: Any, data: Any, logger: Any) -> None:
        logged.append(data)
        if len(logged) == 3:
            all_logged.set()

    options: dict[str, Any] = {"elicitation": elicit, "sampling": sample, "roots": lambda: ["file:///work"]}
    with Client(watched.server, era=era, on_log=on_log, **options) as client:
        assert client.call_tool("ask").content[0].text == "accept Ada"
        assert client.call_tool("sample").content[0].text == "said"
        assert client.call_tool("roots").content[0].text == "file:///work"
        client.call_tool("logs", {"times": 3})
        assert all_logged.wait(10)
    assert logged == [0, 1, 2]
    assert threads[0] is not threading.main_thread()
    assert threads[0].name != "mcp-actors"


def test_a_callback_that_never_returns_does_not_hold_up_the_end(watched: Watched) -> None:
    asked, may_return = threading.Event(), threading.Event()

    def elicit(question: Any) -> ElicitResult:
        asked.set()
        may_return.wait()
        return ElicitResult("cancel")

    client = Client(watched.server, era="legacy", elicitation=elicit).open()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.call_tool, "ask")
        assert asked.wait(10)
        client.close()
        assert isinstance(call.exception(10), ConnectionLost)
    may_return.set()
    assert held() == []


def test_a_callback_closes_its_client(watched: Watched) -> None:
    closed = threading.Event()

    def on_log(level: Any, data: Any, logger: Any) -> None:
        client.close()
        closed.set()

    client = Client(watched.server, on_log=on_log).open()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(client.call_tool, "logs", {"times": 1}).exception(10)
    assert closed.wait(10)
    client.close()
    assert held() == []


def test_many_threads_use_one_client(watched: Watched) -> None:
    with Client(watched.server) as client, ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda number: client.call_tool("add", {"a": number, "b": 1}), range(50))
        assert [each.structured_content for each in results] == list(range(1, 51))


def test_changes_are_listened_to(watched: Watched) -> None:
    for era in ("legacy", "modern"):
        with Client(watched.server, era=era) as client, client.listen(tools=True) as changes:
            client.call_tool("grow", {"name": era})
            assert next(changes).kind == "tools"
    assert held() == []


def test_a_client_is_opened_once_and_closed_at_any_time(watched: Watched) -> None:
    client = Client(watched.server)
    with pytest.raises(LocalProtocolError, match="use 'with Client"):
        client.call_tool("add")
    with client:
        with pytest.raises(LocalProtocolError, match="opened once"):
            client.open()
    client.close()
    discarded = Client(watched.server)
    discarded.close()
    with pytest.raises(McpError):
        discarded.open()
    with pytest.raises(ConnectFailed):
        Client("tcp://127.0.0.1:1").open()
    assert held() == []


def test_a_pool_closes_its_clients(watched: Watched) -> None:
    with ClientPool() as pool:
        first, second = [pool.open(Client(watched.server)) for _ in range(2)]
        pool.close(first)
        with pytest.raises(ConnectionLost):
            first.call_tool("add")
        assert second.call_tool("add", {"a": 1, "b": 2}).structured_content == 3
    with pytest.raises(ConnectionLost):
        second.call_tool("add")
    assert held() == []
