"""`mcp_actors.sync.Client`: the same methods for programs without a loop, and the same endings."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Context, Progress, Server, sync
from mcp_actors import asyncio as in_asyncio
from mcp_actors.errors import (
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    McpError,
    RpcError,
    TaskCancelled,
)
from mcp_actors.sync import Client, ClientPool
from mcp_actors.tasks import Tasks as TaskExtension
from mcp_actors.types import CreateMessageResult, ElicitResult, TextContent
from tests.bridges.watched import Watched, held


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


# -- Clients that nobody refers to any more without having closed them: they are closed, and the program is told ---

SECONDS = 10


def until_nothing_is_held() -> None:
    ends = time.monotonic() + SECONDS
    while held():
        assert time.monotonic() < ends


def test_a_sync_client_that_is_dropped_is_closed() -> None:
    server = Watched().server
    # What came of a client keeps it open.
    handles = [sync.Client(server).open().start_tool("add", {"a": 1, "b": 2})]
    iterators = [sync.Client(server).open().tools()]
    gc.collect()
    assert handles[0].result().structured_content == 3
    assert next(iterators[0]).name == "add"
    with pytest.warns(ResourceWarning, match="a client was not closed.*connected"):
        handles.clear()
    with pytest.warns(ResourceWarning, match="a client was not closed"):
        iterators.clear()
    until_nothing_is_held()


def test_an_asyncio_client_that_is_dropped_is_closed_before_its_loop_ends() -> None:
    server = Watched().server

    async def main() -> None:
        for _ in range(3):
            clients = [await in_asyncio.Client(server).open()]
            with pytest.warns(ResourceWarning, match="a client was not closed"):
                clients.clear()
        await asyncio.to_thread(until_nothing_is_held)

    asyncio.run(main())


@pytest.mark.filterwarnings("error")
def test_a_client_that_was_closed_or_never_opened_is_dropped_without_a_word() -> None:
    server = Watched().server
    sync.Client(server)
    with pytest.raises(TypeError):
        sync.Client(server, nonsense=1)
    with sync.Client(server) as client:
        client.ping()
    del client

    async def main() -> None:
        # Its loop closes it.
        global left
        left = await in_asyncio.Client(server).open()
        closed = await in_asyncio.Client(server).open()
        await closed.aclose()
        with sync.ClientPool() as pool:
            pool.open(sync.Client(server))
            gc.collect()

    asyncio.run(main())
    globals().pop("left")
    gc.collect()
    assert held() == []


# -- Tasks that clients of other worlds start, with functions of both loops that ask while they run as tasks ---

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
# Where a function with `loop="asyncio"` runs for a client of each world that has the server in its process.
LOOPS = {"asyncio": "MainThread", "sync": "mcp-actors-asyncio"}
PATIENCE = 20  # seconds
PROGRAM = 120  # seconds for one program, of which nothing takes a tenth on a machine that is not busy
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


class Tasks:
    """A server whose tools become tasks."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.server = server = Server("tasks", extensions=[TaskExtension(poll_interval=0.02)])

        @server.tool(task="required")
        async def asks(ctx: Context) -> str:
            answer = await ctx.elicit("Who?", NAME)
            return f"Trio {(answer.content or {})['name']}"

        @server.tool(task="required", loop="asyncio")
        async def asks_from_asyncio(ctx: Context) -> str:
            answer = await ctx.elicit("Who?", NAME)
            await asyncio.sleep(0)
            return f"{threading.current_thread().name} {(answer.content or {})['name']}"

        @server.tool(task="required")
        async def waits(ctx: Context) -> None:
            await ctx.progress(1, message="on it")
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled.set()


@ERAS
def test_a_task_of_the_asyncio_client_asks_is_cancelled_and_outlives_its_caller(era: str) -> None:
    async def main(tasks: Tasks) -> None:
        loop = asyncio.get_running_loop()

        async def person(question: Any) -> ElicitResult:
            assert asyncio.get_running_loop() is loop
            return ElicitResult("accept", {"name": "Ann"})

        options: dict[str, Any] = {"era": era, "elicitation": person}
        async with mcp_actors.asyncio.Client(tasks.server, **options) as client:
            handle = await client.start_tool("asks")
            assert handle.id is not None
            assert (await handle.result()).text == "Trio Ann"
            assert [each.status async for each in client.task(handle.id).updates()] == ["completed"]
            assert (await client.call_tool("asks_from_asyncio")).text == f"{LOOPS['asyncio']} Ann"

            handle = await client.start_tool("waits")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await handle.result()
            assert not tasks.cancelled.is_set()
            await handle.cancel()
            with pytest.raises(TaskCancelled):
                await handle.result()
            assert await asyncio.to_thread(tasks.cancelled.wait, PATIENCE)

    asyncio.run(asyncio.wait_for(main(Tasks()), PATIENCE))


@ERAS
def test_a_task_of_the_client_without_a_loop_asks_and_is_cancelled(era: str) -> None:
    def person(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"name": "Ann"})

    tasks = Tasks()
    with mcp_actors.sync.Client(tasks.server, era=era, elicitation=person) as client:
        handle = client.start_tool("asks")
        assert handle.id is not None
        assert handle.result().text == "Trio Ann"
        assert [each.status for each in client.task(handle.id).updates()] == ["completed"]
        assert client.call_tool("asks_from_asyncio").text == f"{LOOPS['sync']} Ann"

        handle = client.start_tool("waits")
        handle.cancel()
        with pytest.raises(TaskCancelled):
            handle.result()
        assert tasks.cancelled.wait(PATIENCE)


# -- Ctrl-C, and the end of a program that has closed nothing, before a server that writes all messages down ---

SERVER = """
import json, sys
written = open(sys.argv[1], "a", buffering=1)
say = lambda **message: print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    written.write(json.dumps(message) + "\\n")
    params = message.get("params", {})
    if message["method"] == "initialize":
        say(id=message["id"], result={"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                                      "serverInfo": {"name": "writes", "version": "1"}})
    elif message["method"] == "tools/call":
        token = params["_meta"]["progressToken"]
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
written.write(json.dumps({"method": "end"}) + "\\n")
"""
SYNC = """
import sys
from mcp_actors.sync import Client
with Client([sys.executable, *sys.argv[1:]], era="legacy") as client:
    client.call_tool("wait", on_progress=lambda progress: print("began", flush=True))
"""
ASYNCIO = """
import asyncio, sys
from mcp_actors.asyncio import Client
async def main():
    async with Client([sys.executable, *sys.argv[1:]], era="legacy") as client:
        await client.call_tool("wait", on_progress=lambda progress: print("began", flush=True))
asyncio.run(main())
"""
LEFT_OPEN = """
import sys, threading
from mcp_actors.sync import Client
client = Client([sys.executable, *sys.argv[1:]], era="legacy").open()
began = threading.Event()
call = lambda: client.call_tool("wait", on_progress=lambda progress: began.set())
threading.Thread(target=call, daemon=True).start()
began.wait()
"""
LEFT_OPEN_BY_A_LOOP = """
import asyncio, sys
from mcp_actors.asyncio import Client
async def main():
    global client, call
    client = await Client([sys.executable, *sys.argv[1:]], era="legacy").open()
    began = asyncio.Event()
    call = asyncio.create_task(client.call_tool("wait", on_progress=lambda progress: began.set()))
    await began.wait()
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""

FORKED = """
import os
from mcp_actors import Server
from mcp_actors.sync import Client
server = Server("s")
server.add_tool(lambda: 3, name="three")
client = Client(server).open()
child = os.fork()
if child == 0:
    try:
        client.call_tool("three")
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    client.close()
    with Client(server) as own:
        print(own.call_tool("three").structured_content, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(client.call_tool("three").structured_content)
client.close()
"""


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return [str(path), str(tmp_path / "written")]


def written(server: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(server[1]).read_text().splitlines()]


@pytest.mark.parametrize("program", [SYNC, ASYNCIO], ids=["sync", "asyncio"])
def test_ctrl_c_cancels_the_call_at_the_server(program: str, server: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program, *server], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "began\n"
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PROGRAM)
    assert said.rstrip().endswith("KeyboardInterrupt")
    # The interrupt shows the frames of whatever function it has met.
    lines = [line for line in said.splitlines() if not line.startswith(("  File ", "    "))]
    assert "trio" not in "".join(lines).lower()
    messages = written(server)
    call = next(each for each in messages if each["method"] == "tools/call")
    cancelled = next(each for each in messages if each["method"] == "notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]
    assert messages[-1]["method"] == "end"


@pytest.mark.parametrize("program", [LEFT_OPEN, LEFT_OPEN_BY_A_LOOP], ids=["sync", "asyncio"])
def test_a_program_that_closes_nothing_ends_and_leaves_nothing(program: str, server: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", program, *server], capture_output=True, text=True, timeout=PROGRAM, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert written(server)[-1]["method"] == "end"


def test_a_fork_has_clients_of_its_own() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=PROGRAM, check=True
    )
    refused, *results = ran.stdout.splitlines()
    assert refused.startswith("EngineStopped this belongs to the process that forked this one")
    assert results == ["3", "3"]
