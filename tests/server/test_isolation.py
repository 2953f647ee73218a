"""Functions in processes of their own: what crosses, what ends them, and that nobody else notices."""

from __future__ import annotations

import base64
import functools
import gc
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Depends, Limits, Overloaded, Server
from mcp_actors._server import isolated_call, isolation
from mcp_actors._server.invoke import isolation_of_process
from mcp_actors.errors import RpcError
from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.otel import OpenTelemetry
from mcp_actors.types import CreateMessageResult, ElicitResult, Root, TextContent
from tests.server import isolated_functions as functions

pytestmark = pytest.mark.slow

ERAS = ["legacy", "modern"]
MIB = 1024 * 1024
# Seconds for everything in one test, which nothing comes near to unless it hangs.
PATIENCE = 120
# Calls of the storm; a measurement takes 10,000.
STORM = int(os.environ.get("MCP_ACTORS_ISOLATED", "60"))
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals that end a process")
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not bound the memory, nor count threads"
)


def make_server(*calls: Callable[..., Any], processes: int = 1, **options: Any) -> Server:
    server = Server("isolating", limits=Limits(isolated_processes=processes), mask_errors=False)
    for call in calls:
        server.add_tool(call, isolate="process", **options)
    return server


@asynccontextmanager
async def called(server: Server, **options: Any) -> AsyncIterator[Client]:
    with trio.fail_after(PATIENCE):
        async with Client(server, **options) as client:
            yield client


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def value_of(result: Any) -> Any:
    """The structured value, which some revisions have as an object only."""
    value = result.structured_content
    return value["result"] if isinstance(value, dict) and [*value] == ["result"] else value


def ended(result: Any) -> Any:
    assert result.is_error
    return result.meta["mcp-actors/ended"]


def exists(pid: int) -> bool:
    """Whether a process runs. One that has ended, and waits for its parent to notice, does not."""
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except (OSError, ValueError):
        return False


def exists_file(path: str) -> bool:
    return os.path.exists(path)


async def until(is_so: Callable[[], object]) -> None:
    """Waits for something that another process does, which can tell nobody."""
    while True:
        if is_so():
            return
        await trio.sleep(0.01)


@pytest.fixture
def hasty() -> MockClock:
    """A clock that goes as that of the machine does, and jumps where a test says so."""
    return MockClock(rate=1.0)


async def until_gone(*pids: int) -> None:
    await until(lambda: not any(map(exists, pids)))


async def read_pids(path: Path) -> list[int]:
    def read() -> list[int]:
        return [int(each) for each in path.read_text().split()] if path.exists() else []

    await until(read)
    return read()


# -- what crosses ---


async def test_arguments_and_results_cross_as_for_any_tool() -> None:
    server = make_server(
        functions.add, functions.mirror, functions.picture, functions.picture_of, functions.whole, functions.wrong,
        functions.on_trio,
    )  # fmt: skip
    server.add_tool(functions.on_asyncio, isolate="process", loop="asyncio")
    server.add_tool(functions.raw, isolate="process", input_schema={"type": "object", "required": ["a"]})
    async with called(server) as client:
        results = {
            "add": await client.call_tool("add", {"a": 2}),
            "repaired": await client.call_tool("add", {"a": "2", "b": 2}),
            "mirror": await client.call_tool("mirror", {"point": {"x": 3}, "times": [1.5]}),
            "picture": await client.call_tool("picture"),
            "file": await client.call_tool("picture_of", {"path": "/nowhere.png"}),
            "whole": await client.call_tool("whole"),
            "wrong": await client.call_tool("wrong"),
            "raw": await client.call_tool("raw", {"a": [None]}),
            "refused": await client.call_tool("raw", {}),
            "trio": await client.call_tool("on_trio", {"n": 1}),
            "asyncio": await client.call_tool("on_asyncio", {"n": 1}),
        }

    assert {name: each.structured_content for name, each in results.items() if not each.is_error} == {
        "add": 3,
        "repaired": 4,
        "mirror": {"x": 0, "y": 4},
        "picture": results["picture"].structured_content,
        "whole": {"n": 1},
        "raw": {"got": {"a": [None]}},
        "trio": 2,
        "asyncio": 3,
    }
    assert base64.b64decode(results["picture"].content[0].data).startswith(b"\x89PNG")  # type: ignore[union-attr]
    assert results["whole"].meta["mine"] == 1  # type: ignore[index]
    assert text_of(results["wrong"]).startswith(
        "wrong: it returned what cannot be sent: what was returned is not of"
    )
    assert "No such file" in text_of(results["file"])
    assert "a: is required" in text_of(results["refused"])


async def test_failures_of_a_function_are_those_of_any_tool() -> None:
    server = make_server(functions.fail)
    with capture_logs() as lines:
        async with called(server) as client:
            tool = await client.call_tool("fail", {"how": "tool"})
            group = await client.call_tool("fail", {"how": "group"})
            with pytest.raises(RpcError) as rpc:
                await client.call_tool("fail", {"how": "rpc"})
            other = await client.call_tool("fail", {"how": "other"})

    assert (text_of(tool), text_of(group)) == ("the author says so", "alone in it")
    assert (rpc.value.code, rpc.value.data) == (-32050, {"a": 1})
    assert text_of(other) == "fail: KeyError: 'secret'"
    (line,) = [each for each in lines if each["event"] == "handler failed"]
    assert 'raise KeyError("secret")' in line["traceback"]
    assert "isolated.py" not in line["traceback"]


@pytest.mark.parametrize(
    "how", ["several", "tool surrogate", "other surrogate", "rpc object", "result surrogate"]
)
async def test_a_failure_that_has_no_form_in_json_is_that_of_a_function_in_a_thread(how: str) -> None:
    server = make_server(functions.fail)
    server.add_tool(functions.fail, name="fail_in_thread")
    told: list[str] = []
    async with called(server) as client:
        for tool in ("fail_in_thread", "fail"):
            try:
                result = await client.call_tool(tool, {"how": how})
            except RpcError as error:
                told.append(repr(error))
            else:
                assert result.is_error
                told.append(text_of(result).replace("fail_in_thread", "fail"))
        (process,) = server.tree().processes

    assert told[0] == told[1]
    assert process.replaced == 0


async def test_an_error_of_a_function_whose_text_has_no_form_in_json_keeps_its_code() -> None:
    async with called(make_server(functions.fail)) as client:
        with pytest.raises(RpcError) as rpc:
            await client.call_tool("fail", {"how": "rpc surrogate"})

    assert (rpc.value.code, rpc.value.message, rpc.value.data) == (-32050, "half a ? pair", None)


async def test_output_of_a_function_harms_nobody() -> None:
    async with called(make_server(functions.prints)) as client:
        assert text_of(await client.call_tool("prints")) == "read ''"
        assert text_of(await client.call_tool("prints")) == "read ''"


@LINUX
async def test_a_process_has_no_descriptor_of_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "secret")
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.set_inheritable(descriptor, True)
    async with called(make_server(functions.open_files)) as client:
        found = value_of(await client.call_tool("open_files"))
    os.close(descriptor)

    assert path not in found
    assert len(found) == 6  # three standard streams, the two ends of the pipe, and the number of the call


async def test_large_values_cross() -> None:
    async with called(make_server(functions.large)) as client:
        text = "x" * (3 * MIB)
        assert text_of(await client.call_tool("large", {"size": len(text), "text": text})) == text


@pytest.mark.parametrize("era", ERAS)
async def test_progress_log_and_what_is_known_of_the_call_cross(era: str) -> None:
    reports: list[Any] = []
    logged: list[Any] = []
    server = make_server(functions.works, functions.works_on_trio)
    async with called(
        server, era=era, on_log=lambda level, data, logger: logged.append(data), log_level="info"
    ) as client:
        result = await client.call_tool(
            "works", {"days": 3}, on_progress=reports.append, meta={"mine": "yours"}
        )
        other = await client.call_tool("works_on_trio", {"days": 3}, on_progress=reports.append)

    method, _, mine, version, has_time = text_of(result).split()
    assert (method, mine, version, has_time) == ("tools/call", "yours", client.version, "True")
    assert [(each.progress, each.total) for each in reports[:3]] == [(1, 3), (2, 3), (3, 3)]
    assert [each.message for each in reports[:3]] == ["day 1", "day 2", "day 3"]
    assert len(reports) > 3
    assert text_of(other) == "tools/call"
    assert logged[0] == {"half": "of it"}
    assert "nobody wants this" not in logged


async def answer(question: Any) -> ElicitResult:
    return ElicitResult("accept", {"first": question.message.split()[0]})


@pytest.mark.parametrize("era", ERAS)
async def test_questions_to_the_client_cross(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that leaves its function later, as one may on a busy machine, is not kept.
    monkeypatch.setattr(isolated_call, "_LEAVE_TIME", PATIENCE)

    async def sample(params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent("said"), model="m")

    server = make_server(functions.asks, functions.asks_on_trio, functions.samples, functions.pid)
    async with called(
        server, era=era, elicitation=answer, sampling=sample, roots=[Root("file:///srv")]
    ) as client:
        before = await client.call_tool("pid")
        asked = await client.call_tool("asks")
        on_trio = await client.call_tool("asks_on_trio")
        sampled = await client.call_tool("samples")

    # A question ends a modern call, and its answer begins it again; the process leaves the function and is kept.
    assert text_of(asked) == f"First Last in {value_of(before)}"
    assert text_of(on_trio) == f"First in {value_of(before)}"
    assert text_of(sampled) == "said file:///srv"


@pytest.mark.parametrize("era", ERAS)
async def test_effects_happen_once(era: str, tmp_path: Path) -> None:
    path = tmp_path / "effects"
    async with called(make_server(functions.charges), era=era, elicitation=answer) as client:
        result = await client.call_tool("charges", {"path": str(path)})

    assert text_of(result) == "42 sent Who?"
    assert path.read_text().split() == ["charged", "mailed"]


@pytest.mark.parametrize(
    "what", ["state", "server", "session", "request", "user_state", "extensions", "inbox"]
)
async def test_what_stays_in_the_server_says_so(what: str) -> None:
    async with called(make_server(functions.looks)) as client:
        result = await client.call_tool("looks", {"what": what})

    assert f"ctx.{what} is in the process of the server" in text_of(result)


@pytest.mark.parametrize("options", [{}, {"share": 0.0}])
async def test_spans_and_lines_of_a_function_belong_to_the_trace_of_its_call(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    server = make_server(functions.traced, functions.traced_on_trio)
    server.add_tool(functions.traced_on_asyncio, isolate="process", loop="asyncio")
    server.telemetry = OpenTelemetry(tracer_provider=provider, **options)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    trace = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-0{int(not options)}", "baggage": "who=alice"}
    async with called(server) as client:
        results = [
            value_of(await client.call_tool(each, meta=trace))
            for each in ("traced", "traced_on_trio", "traced_on_asyncio")
        ]

    assert [each[0] for each in results] == [trace_id] * 3
    assert {each[2] for each in results} == {"alice"}
    # Lines of the log keep no process from its next call.
    assert len({each[3] for each in results}) == 1
    made = {f"{each.context.span_id:016x}" for each in spans.get_finished_spans() if each.context}
    assert all((each[1] in made) is not bool(options) for each in results)
    written = capfd.readouterr().err
    for each in results:
        assert re.search(rf"by structlog.*span_id={each[1]}.*trace_id={trace_id}", written)
    assert "by the standard library" in written


def test_the_log_of_a_function_is_as_the_operator_wants_it(tmp_path: Path) -> None:
    script = write(
        tmp_path / "logs.py",
        """
        import trio
        from mcp_actors import Client, Server, SyncContext
        from mcp_actors.supervision.logging import configure_log, note_process
        from mcp_actors.telemetry import Metrics

        server = Server("logs", telemetry=Metrics())

        @server.tool(isolate="process")
        def logs(ctx: SyncContext) -> None:
            import logging
            ctx.logger.info("by structlog")
            logging.getLogger("mine").info("by the standard library")

        async def main() -> None:
            async with Client(server) as client:
                await client.call_tool("logs")

        if __name__ == "__main__":
            configure_log("info", "json")
            note_process(worker=7)
            trio.run(main)
        """,
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=PATIENCE, check=True)
    lines = [json.loads(each) for each in ran.stderr.splitlines()]
    found = [(each["event"], each["session"], each["worker"]) for each in lines if "by " in each["event"]]
    assert found == [("by structlog", "logs#1", 7), ("by the standard library", "logs#1", 7)]


# -- what ends a process ---

ENDS = [
    ("sys.exit", "exit", "with exit code 3", {}),
    ("os._exit", "exit", "with exit code 4", {}),
    pytest.param("segfault", "crash", "SIGSEGV", {}, marks=POSIX),
    pytest.param("abort", "crash", "SIGABRT", {}, marks=POSIX),
    pytest.param("kill", "killed", "killed from outside", {}, marks=POSIX),
    pytest.param("memory", "memory", "209715200 bytes", {"memory": 200 * MIB}, marks=LINUX),
    pytest.param("memory in pieces", "memory", "209715200 bytes", {"memory": 200 * MIB}, marks=LINUX),
    pytest.param("cpu", "cpu", "processor time", {"cpu": 0.2}, marks=POSIX),
    pytest.param("lock", "cpu", "processor time", {"cpu": 0.2}, marks=POSIX),
    pytest.param("threads", "threads", "more than 256 threads", {}, marks=LINUX),
    ("noise", "crash", "no message", {}),
    ("closes", "crash", "", {}),
    pytest.param("forks", "crash", "SIGSEGV", {}, marks=POSIX),
    pytest.param("flood", "crash", "more at once than the server keeps", {}, marks=LINUX),
]


@pytest.mark.parametrize(("how", "kind", "text", "options"), ENDS)
async def test_the_end_of_a_process_costs_its_call_alone(
    how: str, kind: str, text: str, options: dict[str, Any]
) -> None:
    server = make_server(functions.end, processes=2, **options)
    server.add_tool(functions.pid, isolate="process")
    with capture_logs() as lines:
        async with called(server) as client:
            beside: list[Any] = []

            async def call_beside() -> None:
                beside.append(await client.call_tool("pid"))

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(call_beside)
                result = await client.call_tool("end", {"how": how})
            pids = {each.structured_content for each in beside}
            after = await client.call_tool("end", {"how": "not at all"})
            await until(lambda: kind in [each.reason for each in server.tree().processes])

    assert ended(result) == kind
    assert text_of(result).startswith("end: ")
    assert text in text_of(result)
    assert not any(each.is_error for each in [*beside, after])
    assert not any(map(exists, pids))
    (line,) = [each for each in lines if each["event"].startswith("the process of a tool has ended")]
    assert (line["tool"], line["why"], line["log_level"]) == ("end", kind, "warning")


@pytest.mark.parametrize("how", ["sleep", pytest.param("lock", marks=POSIX)])
async def test_the_timeout_of_a_tool_ends_its_process(how: str, tmp_path: Path, hasty: MockClock) -> None:
    server, results = make_server(functions.end, timeout=30), list[Any]()
    async with called(server, timeout=10 * PATIENCE) as client:

        async def call() -> None:
            results.append(await client.call_tool("end", {"how": how, "mark": str(tmp_path / "pid")}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            pids = await read_pids(tmp_path / "pid")
            hasty.jump(30)
        await until_gone(*pids)
        after = await client.call_tool("end", {"how": "not at all"})

    assert text_of(results[0]) == "end: stopped, because it may take no longer than 30 s"
    assert not after.is_error


@pytest.mark.parametrize("how", ["sleep", "children", pytest.param("lock", marks=POSIX)])
async def test_cancelling_a_call_ends_its_process_and_what_that_has_started(how: str, tmp_path: Path) -> None:
    async with called(make_server(functions.end)) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "end", {"how": how, "mark": str(tmp_path / "pid")})
            pids = await read_pids(tmp_path / "pid")
            nursery.cancel_scope.cancel()
        await until_gone(*pids)
        after = await client.call_tool("end", {"how": "not at all"})

    assert not after.is_error
    assert text_of(after) not in map(str, pids)


@POSIX
async def test_a_process_outside_the_group_does_not_keep_the_place_of_a_cancelled_call(
    tmp_path: Path,
) -> None:
    async with called(make_server(functions.end)) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                client.call_tool, "end", {"how": "leaves its group", "mark": str(tmp_path / "pid")}
            )
            (left,) = await read_pids(tmp_path / "pid.left")
            nursery.cancel_scope.cancel()
        try:
            after = await client.call_tool("end", {"how": "not at all"})
        finally:
            os.kill(left, signal.SIGKILL)

    assert not after.is_error


FORGED = [
    '["done","value",["forged"],false]',
    "[" * 100_000,
    '["done","\xff"]',
    '["done","value",["forged"],false,99]',
]


@pytest.mark.parametrize("line", FORGED)
async def test_what_a_function_writes_to_the_pipe_ends_its_process(line: str) -> None:
    with capture_logs() as lines:
        async with called(make_server(functions.writes, functions.add)) as client:
            result = await client.call_tool("writes", {"line": line, "number": 1})
            after = [await client.call_tool("add", {"a": each}) for each in range(5)]

    assert ended(result) == "crash"
    assert [value_of(each) for each in after] == [1, 2, 3, 4, 5]
    assert [each["event"] for each in lines if each["log_level"] in ("warning", "error")] == [
        "the process of a tool has ended, and is replaced"
    ]


@POSIX
async def test_a_function_that_returns_in_a_copy_of_its_process_answers_once() -> None:
    async with called(make_server(functions.returns_twice, processes=2)) as client:
        found: list[tuple[int, int]] = []

        async def call(number: int) -> None:
            found.append((number, value_of(await client.call_tool("returns_twice", {"number": number}))))

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(call, number)
                await trio.lowlevel.checkpoint()

    assert sorted(found) == [(number, number) for number in range(60)]


async def test_an_answer_that_comes_at_the_end_of_a_call_does_not_disturb_the_next_one(
    tmp_path: Path,
) -> None:
    async def answer_at_length(question: Any) -> ElicitResult:
        (tmp_path / "asked").write_text("")
        return ElicitResult("accept", {"first": "x" * (3 * MIB)})

    server = make_server(functions.leaves_a_question, functions.add)
    async with called(server, era="legacy", elicitation=answer_at_length) as client:
        left = await client.call_tool("leaves_a_question", {"asked": str(tmp_path / "asked")})
        after = await client.call_tool("add", {"a": 1})

    assert text_of(left) == "left"
    assert value_of(after) == 2


async def test_a_thread_that_a_function_has_left_is_not_met_by_the_next_call() -> None:
    async with called(make_server(functions.leaves_a_thread, functions.pid)) as client:
        left = await client.call_tool("leaves_a_thread")
        after = await client.call_tool("pid")

        assert after.structured_content != left.structured_content
        await until_gone(left.structured_content)


@LINUX
async def test_memory_is_counted_for_each_call() -> None:
    async with called(make_server(functions.takes, functions.pid, memory=100 * MIB)) as client:
        for _ in range(3):
            assert (await client.call_tool("takes", {"mib": 80})).structured_content == 80
        before = await client.call_tool("pid")
        assert ended(await client.call_tool("takes", {"mib": 120})) == "memory"
        assert (await client.call_tool("pid")).structured_content != before.structured_content


# -- the pool ---


async def test_calls_wait_for_a_process_and_too_many_are_refused(tmp_path: Path) -> None:
    server = make_server(functions.end, functions.pid)
    server.limits = Limits(isolated_processes=1, max_waiting=1)
    async with called(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "end", {"how": "sleep", "mark": str(tmp_path / "pid")})
            await read_pids(tmp_path / "pid")
            async with trio.open_nursery() as waiting:
                waiting.start_soon(client.call_tool, "pid")
                for _ in range(200):
                    await trio.lowlevel.checkpoint()
                with pytest.raises(Overloaded) as refused:
                    await client.call_tool("pid")
                waiting.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        assert not (await client.call_tool("pid")).is_error

    assert refused.value.data["scope"] == "pool of processes"


async def test_processes_are_started_ahead_and_end_with_the_server() -> None:
    server = make_server(functions.pid, processes=2)
    async with called(server) as client:
        first = [(await client.call_tool("pid")).structured_content for _ in range(20)]

    assert 1 <= len(set(first)) <= 2
    assert not any(map(exists, first))


@POSIX
async def test_a_process_that_was_killed_while_it_was_idle_fails_no_call() -> None:
    async with called(make_server(functions.pid, processes=2)) as client:
        pids = set()
        for _ in range(10):
            pid = value_of(await client.call_tool("pid"))
            pids.add(pid)
            os.kill(pid, signal.SIGKILL)

    assert len(pids) == 10


@LINUX
async def test_a_call_that_its_process_has_not_read_is_made_in_another_one() -> None:
    async with called(make_server(functions.pid, processes=1)) as client:
        first = value_of(await client.call_tool("pid"))
        os.kill(first, signal.SIGSTOP)
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call_tool("pid"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            for _ in range(200):
                await trio.lowlevel.checkpoint()
            os.kill(first, signal.SIGKILL)

    (result,) = results
    assert not result.is_error
    assert value_of(result) != first


@LINUX
async def test_starts_leave_a_processor_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = tmp_path / "times"
    write(
        tmp_path / "slow_start.py",
        f"""
        import os, time
        def note(change: int) -> None:
            with open({str(times)!r}, "a") as file:
                file.write(f"{{time.perf_counter()}} {{change}}\\n")
        def add(a: int) -> int:
            return a
        note(1)
        time.sleep(0.1)
        note(-1)
        """,
    )
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = __import__("slow_start")
    processors = len(os.sched_getaffinity(0))
    processes = processors + 1
    times.unlink()
    async with called(make_server(module.add, processes=processes)):
        await until(lambda: times.exists() and len(times.read_text().splitlines()) == 2 * processes)

    changes = [
        int(each.split()[1])
        for each in sorted(times.read_text().splitlines(), key=lambda each: float(each.split()[0]))
    ]
    assert max(itertools.accumulate(changes)) <= max(1, processors - 1)


async def test_versions_of_a_module_do_not_replace_processes_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "in_turns.py", "import os\ndef pid() -> int:\n    return os.getpid()\n")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = __import__("in_turns")
    server = make_server()
    server.add_tool(module.pid, name="older", isolate="process")
    os.utime(file, (1, 1))
    server.add_tool(module.pid, name="newer", isolate="process")
    async with called(server) as client:
        pids = {value_of(await client.call_tool(name)) for name in ["older", "newer"] * 3}

    assert len(pids) <= 2


async def test_a_module_whose_version_is_forgotten_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_MOST_VERSIONS", 2)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("forgotten", "beside_a", "beside_b"):
        write(tmp_path / f"{name}.py", "def value() -> int:\n    return 1\n")
    modules: list[Any] = [__import__(each) for each in ("forgotten", "beside_a", "beside_b")]
    server = make_server(modules[0].value)
    async with called(server) as client:
        before = value_of(await client.call_tool("value"))
        for each in modules[1:]:
            server.add_tool(each.value, name=each.__name__, isolate="process")
        write(tmp_path / "forgotten.py", "def value() -> int:\n    return 222\n")
        server.add_tool(modules[0].value, name="again", isolate="process")
        after = value_of(await client.call_tool("again"))

    assert (before, after) == (1, 222)
    assert len(isolation._versions) <= 2


async def test_a_process_that_was_told_of_too_many_functions_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolated_call, "MOST_FUNCTIONS", 3)
    server = make_server(functions.pid)
    async with called(server) as client:
        pids = [value_of(await client.call_tool("pid"))]
        for number in range(7):
            schema = {"type": "integer", "minimum": -number}
            server.add_tool(functions.pid, name=f"pid{number}", isolate="process", output_schema=schema)
            pids.append(value_of(await client.call_tool(f"pid{number}")))
            assert value_of(await client.call_tool("pid")) == pids[-1]
        reasons = [each.reason for each in server.tree().processes]

    assert [pids.count(each) for each in dict.fromkeys(pids)] == [4, 3, 1]
    assert reasons == ["stale"]


async def test_a_process_imports_no_more_than_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "lean.py",
        """
        import sys

        def loaded(with_context: bool) -> list[str]:
            if with_context:
                from mcp_actors import current_context
                assert current_context().method == "tools/call"
                current_context().progress(1)
            return sorted(sys.modules)
        """,
    )
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = __import__("lean")
    async with called(make_server(module.loaded)) as client:
        loaded = value_of(await client.call_tool("loaded", {"with_context": False}))
        with_context = value_of(await client.call_tool("loaded", {"with_context": True}))

    assert "mcp_actors._server.isolated" in loaded
    assert {"trio", "asyncio", "ssl", "structlog", "mcp_actors.server", "mcp_actors._server.context"} & {
        *loaded
    } == set()
    assert "trio" in with_context


async def test_a_tool_that_is_added_while_the_server_serves_has_processes() -> None:
    server = Server("later", capabilities=["tools"])
    async with called(server) as client:
        server.add_tool(functions.add, isolate="process")
        assert (await client.call_tool("add", {"a": 1})).structured_content == 2


async def test_a_mounted_server_has_processes_of_its_own() -> None:
    outer = Server("outer")
    outer.mount("inner", make_server(functions.pid))
    async with called(outer) as client:
        (tool,) = [each.name for each in (await client.list_tools()).tools]
        found = (await client.call_tool(tool)).structured_content

    assert found != os.getpid()
    assert not exists(found)


async def test_what_the_processes_do_is_seen(tmp_path: Path) -> None:
    metrics = Metrics()
    outer = Server("outer", telemetry=metrics)
    outer.mount("inner", make_server(functions.end, functions.leaves_a_thread, processes=2))
    outer.limits = Limits(isolated_processes=2)

    def seen() -> list[tuple[Any, ...]]:
        found = sorted(outer.tree().processes, key=lambda each: each.number)
        assert all(each.age >= 0 for each in found)
        return [(each.state, each.tool, each.calls, each.replaced, each.reason) for each in found]

    before = dict(isolation_of_process.ended)
    unused = "idle", None, 0, 0, None
    async with called(outer) as client:
        await until(lambda: seen() == [unused] * 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "inner_end", {"how": "sleep", "mark": str(tmp_path / "pid")})
            (pid,) = await read_pids(tmp_path / "pid")
            busy = [each for each in outer.tree().processes if each.pid == pid]
            nursery.cancel_scope.cancel()
        await until(lambda: ("idle", None, 0, 1, "cancelled") in seen())
        assert unused in seen()
        await client.call_tool("inner_leaves_a_thread")
        await until(lambda: "threads" in [each[-1] for each in seen()])
        # A process that is not there when the server ends is not counted below.
        await until(lambda: {each[0] for each in seen()} == {"idle"})
        page = metrics.text()

    assert [(each.state, each.tool, each.calls, each.replaced) for each in busy] == [("busy", "end", 1, 0)]
    assert 'mcp_actors_isolated_processes{state="idle"}' in page
    assert re.search(r'mcp_actors_isolated_ended_total\{reason="cancelled"\} [1-9]', page)
    assert 'mcp_actors_isolated_ended_total{reason="cpu"}' in page
    more = {key: number - before.get(key, 0) for key, number in isolation_of_process.ended.items()}
    assert {key: number for key, number in more.items() if number} == {
        "cancelled": 1,
        "threads": 1,
        "server": 2,
    }
    assert outer.tree().processes == ()


# -- lifespans ---


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which processes write what they open and close."""
    monkeypatch.setenv("ISOLATED_LIFE", str(tmp_path / "life"))
    return tmp_path / "life"


def lives_in(life: Path) -> Counter[str]:
    """How many processes have done the same."""
    of_process: dict[str, str] = {}
    for each in life.read_text().splitlines():
        what, pid = each.split()
        of_process[pid] = f"{of_process.get(pid, '')} {what}".strip()
    return Counter(of_process.values())


@pytest.mark.parametrize(
    ("block", "number"), [(functions.plain_block, 7), (functions.trio_block, 8), (functions.asyncio_block, 9)]
)
async def test_a_lifespan_is_opened_once_in_each_process_and_closed(
    block: Any, number: int, life: Path
) -> None:
    server = make_server(functions.add)
    if number != 9:
        server.add_tool(functions.uses, isolate="process", lifespan=block)
        server.add_tool(functions.uses_on_trio, isolate="process", lifespan=block)
    if number != 8:
        server.add_tool(functions.uses_on_asyncio, isolate="process", lifespan=block, loop="asyncio")
    reports: list[Any] = []
    async with called(server) as client:
        # It was opened before the first call.
        await until(lambda: "idle" in [each.state for each in server.tree().processes])
        assert lives_in(life) == {"opened": 1}
        names = [each.name for each in (await client.list_tools()).tools if each.name != "add"] * 2
        found = [value_of(await client.call_tool(each, on_progress=reports.append)) for each in names]

    numbers = [each if isinstance(each, int) else each[0] for each in found]
    assert numbers == [number] * len(names)
    assert len(reports) == len(names)
    assert lives_in(life) == {"opened closed": 1}


async def test_a_lifespan_that_cannot_be_opened_fails_the_calls_that_need_it(life: Path) -> None:
    away = life.with_suffix(".away")
    away.write_text("")
    server = make_server(functions.add)
    server.add_tool(functions.uses, isolate="process", lifespan=functions.trio_block)
    async with called(server) as client:
        failed = await client.call_tool("uses")
        other = await client.call_tool("add", {"a": 1})
        away.unlink()
        found = await client.call_tool("uses")

    assert text_of(failed) == "uses: OSError: the database is away"
    assert (value_of(other), value_of(found)) == (2, 8)
    assert lives_in(life) == {"opened closed": 1}


async def test_a_lifespan_that_ends_its_process_is_left_to_the_calls_that_need_it(
    life: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "beside_it.py", "def beside(a: int) -> int:\n    return a + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = __import__("beside_it")
    server = make_server()
    server.add_tool(functions.uses, isolate="process", lifespan=functions.ending_block)
    server.add_tool(module.beside, isolate="process")
    with capture_logs() as lines:
        async with called(server) as client:
            before = await client.call_tool("beside", {"a": 1})
            failed = await client.call_tool("uses")
            after = await client.call_tool("beside", {"a": 2})

    assert ended(failed) == "exit"
    assert "with exit code 6" in text_of(failed)
    assert (value_of(before), value_of(after)) == (2, 3)
    # Ahead, and by the call.
    assert lives_in(life) == {"opened": 2}
    left_out = [each["module"] for each in lines if "cannot be imported" in each["event"]]
    assert left_out == [functions.__name__]


@pytest.mark.parametrize("name", ["breaks", "exits"])
async def test_a_lifespan_that_fails_later_ends_its_process(name: str, life: Path) -> None:
    server = make_server()
    for each in (functions.uses, functions.breaks, functions.exits):
        server.add_tool(each, isolate="process", lifespan=functions.trio_block)
    async with called(server) as client:
        result = await client.call_tool(name)
        after = await client.call_tool("uses")

    assert ended(result) == "exit"
    assert value_of(after) == 8
    # A process that is killed closes nothing.
    assert lives_in(life) == {"opened": 1, "opened closed": 1}


async def test_a_lifespan_that_does_not_close_ends_with_its_process() -> None:
    server = make_server(functions.pid)
    server.add_tool(functions.uses, isolate="process", lifespan=functions.slow_block)
    async with called(server) as client:
        pid = value_of(await client.call_tool("pid"))

    assert not exists(pid)


# -- what is refused ---


def closure() -> Callable[..., Any]:
    def inside(n: int) -> int:
        return n

    return inside


class Counting:
    def count(self, n: int) -> int:
        return n


def generator() -> Any:
    yield 1


def needs(n: Annotated[int, Depends(lambda: 1)]) -> int:
    return n


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (closure(), {}, "is defined inside another function.*move it to the top of its module"),
    (lambda n: n, {"name": "x"}, "is a lambda"),
    (functools.partial(functions.add, 1), {"name": "x"}, "is no plain function"),
    (Counting().count, {}, "is no plain function"),
    (generator, {}, "yields its values one by one"),
    (needs, {}, "what Depends makes for 'n' is in the process of the server"),
    (functions.add, {"inline": True}, "remove inline=True"),
    (functions.add, {"isolate": "thread"}, 'write "process"'),
    (functions.add, {"memory": 0}, "memory=0: write a number of bytes"),
    (functions.add, {"cpu": -1}, "cpu=-1: write a number of seconds"),
    (functions.add, {"isolate": None, "memory": 1}, 'add isolate="process"'),
    (functions.add, {"isolate": None, "lifespan": functions.plain_block}, 'add isolate="process"'),
    (functions.add, {"lifespan": functions.add}, "decorated with contextlib"),
    (functions.add, {"lifespan": 7}, "a function with one yield"),
    (functions.add, {"lifespan": contextmanager(functions.takes_one)}, "takes no arguments"),
    (functions.add, {"lifespan": contextmanager(lambda: (yield))}, "is a lambda"),
]


@pytest.mark.parametrize(("call", "options", "text"), REFUSED)
def test_what_cannot_run_in_a_process_is_refused_at_registration(
    call: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        Server("refusing").add_tool(call, **{"isolate": "process", **options})


# -- programs ---


def write(path: Path, program: str) -> Path:
    path.write_text(textwrap.dedent(program))
    return path


SCRIPT = """
    import os, sys, time
    from mcp_actors import Server

    server = Server("script")

    @server.tool(isolate="process")
    def pid() -> list[int]:
        return [os.getpid(), os.getppid()]

    @server.tool(isolate="process")
    def hang(mark: str) -> None:
        open(mark, "w").write(str(os.getpid()))
        HANG

    if __name__ == "__main__":
        server.run()
"""


@pytest.mark.parametrize("how", ["guarded", "unguarded", "served"])
async def test_functions_of_a_script_run_in_processes(how: str, tmp_path: Path) -> None:
    guard = 'if __name__ == "__main__":\n        '
    script = write(tmp_path / "json.py", SCRIPT if how == "guarded" else SCRIPT.replace(guard, ""))
    command = [sys.executable, *(["-m", "mcp_actors", "serve"] if how == "served" else []), str(script)]
    with trio.fail_after(PATIENCE):
        async with Client(command) as client:
            own, parent = value_of(await client.call_tool("pid"))

    assert own != parent
    assert not exists(own)


@LINUX
@pytest.mark.parametrize("hang", ["time.sleep(100)", "sum(range(10**12))"])
async def test_processes_end_with_a_server_that_is_killed(hang: str, tmp_path: Path) -> None:
    script = write(tmp_path / "server.py", SCRIPT.replace("HANG", hang))
    mark = tmp_path / "pid"
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": start},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "hang", "arguments": {"mark": str(mark)}}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in messages)
    with trio.fail_after(PATIENCE):
        process = await trio.lowlevel.open_process(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        async with process.stdin, process.stdout:
            await process.stdin.send_all(lines.encode())
            pids = await read_pids(mark)
            process.kill()
            await process.wait()
        await until_gone(*pids)


ONLY_HERE = """
    import os
    if os.environ.get("ONLY_HERE") != str(os.getpid()):
        FAIL
    def broken(a: int) -> int:
        return a
"""


def only_here(fail: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function whose module fails in every other process."""
    name = f"only_here_{fail.translate({ord(each): '_' for each in '/:.,()@ '})}".replace('"', "")
    write(folder / f"{name}.py", ONLY_HERE.replace("FAIL", fail))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("ONLY_HERE", str(os.getpid()))
    return __import__(name).broken


@pytest.mark.parametrize(
    ("fail", "kind", "text"),
    [
        ('raise RuntimeError("not here")', "start", "RuntimeError: not here"),
        ("os.system.missing", "start", "AttributeError: "),
        ('exit("not here")', "start", "SystemExit: not here"),
        ("os._exit(5)", "exit", "with exit code 5"),
        pytest.param("os.abort()", "crash", "SIGABRT", marks=POSIX),
    ],
)
async def test_a_module_that_cannot_be_imported_fails_the_calls_of_its_functions_alone(
    fail: str, kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(only_here(fail, tmp_path, monkeypatch), functions.add)
    with capture_logs() as lines:
        async with called(server) as client:
            broken = [await client.call_tool("broken", {"a": 1}) for _ in range(2)]
            fine = await client.call_tool("add", {"a": 1})

    assert value_of(fine) == 2
    assert [ended(each) for each in broken] == [kind, kind]
    for each in broken:
        assert text_of(each).startswith("broken: ")
        assert text in text_of(each)
    (line,) = [each for each in lines if each["event"] == "a module of isolated functions cannot be imported"]
    assert line["log_level"] == "error"


async def test_a_module_that_can_be_imported_later_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(
        only_here(f"open({str(tmp_path / 'there')!r}).close()", tmp_path, monkeypatch), processes=1
    )
    async with called(server) as client:
        before = await client.call_tool("broken", {"a": 1})
        (tmp_path / "there").touch()
        after = await client.call_tool("broken", {"a": 1})

    assert ended(before) == "start"
    assert value_of(after) == 1


async def test_the_reason_why_a_module_cannot_be_imported_is_masked_as_other_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = 'raise RuntimeError("postgres://user:password@database")'
    server = Server("masking", mask_errors=True)
    server.add_tool(only_here(fail, tmp_path, monkeypatch), isolate="process")
    with capture_logs() as lines:
        async with called(server) as client:
            result = await client.call_tool("broken", {"a": 1})

    assert ended(result) == "start"
    assert text_of(result) == (
        "broken: its module cannot be imported in a process; the server's operator finds the reason in the log"
    )
    (line,) = [each for each in lines if each["event"] == "a tool cannot be started in a process"]
    assert line["reason"] == "RuntimeError: postgres://user:password@database"


@POSIX
async def test_a_process_that_ends_before_its_first_call_is_not_replaced_at_once() -> None:
    server, killed = make_server(functions.add), set[int | None]()

    def kill_idle() -> bool:
        (process,) = server.tree().processes
        if process.state == "idle" and process.pid not in killed:
            killed.add(process.pid)
            os.kill(process.pid or 0, signal.SIGKILL)
        return len(lines) >= 2

    with capture_logs() as lines:
        async with called(server):
            await until(kill_idle)

    assert [(each["event"], each["again_in"]) for each in lines[:2]] == [
        ("a process for functions has ended before its first call", 0.2),
        ("a process for functions has ended before its first call", 0.4),
    ]


async def test_a_script_that_serves_while_it_is_imported_is_told_what_to_do(tmp_path: Path) -> None:
    script = write(
        tmp_path / "unguarded.py",
        """
        import trio
        from mcp_actors import Client, Server

        server = Server("script")

        @server.tool(isolate="process")
        def add(a: int) -> int:
            return a

        async def main() -> None:
            async with Client(server) as client:
                print((await client.call_tool("add", {"a": 1})).content[0].text)

        trio.run(main)
        """,
    )
    with trio.fail_after(PATIENCE):
        ran = await trio.run_process([sys.executable, str(script)], capture_stdout=True, capture_stderr=True)

    assert b'put what runs it below if __name__ == "__main__":' in ran.stdout


async def version_after(client: Client, former: int) -> Any:
    while True:
        found = (await client.call_tool("version")).structured_content
        if found != former:
            return found
        # The folder is looked at once a second.
        await trio.sleep(0.1)


async def test_a_file_that_is_loaded_again_runs_anew_in_its_process(tmp_path: Path) -> None:
    program = """
        from mcp_actors import tool

        @tool(isolate="process")
        def version() -> int:
            return {}
        """
    file = write(tmp_path / "version.py", program.format(1))
    server = Server("modules", limits=Limits(isolated_processes=1))
    server.add_modules(tmp_path, reload=True)
    async with called(server) as client:
        assert (await client.call_tool("version")).structured_content == 1
        write(file, program.format(22))
        assert await version_after(client, 1) == 22


# -- a storm ---

# What ends a call, and the reason that it is told. The function notes its process and the time when it comes to that.
STORMY = """
    import ctypes, os, sys, time

    def note(mark: str) -> None:
        with open(mark + ".new", "w") as file:
            file.write(f"{os.getpid()} {time.perf_counter()}")
        os.rename(mark + ".new", mark)

    def end(how: str, mark: str) -> int:
        if how == "cpu":
            begun = time.process_time()
            while True:
                if time.process_time() - begun > 0.15 and not os.path.exists(mark):
                    note(mark)
        note(mark)
        if how == "sys.exit":
            sys.exit(3)
        elif how == "os._exit":
            os._exit(4)
        elif how == "segfault":
            ctypes.string_at(0)
        elif how == "kill":
            os.kill(os.getpid(), 9)
        elif how == "memory":
            return len(bytearray(400_000_000))
        elif how in ("cancel", "timeout"):
            time.sleep(60)
        return os.getpid()
"""
REASONS = {
    "sys.exit": "exit",
    "os._exit": "exit",
    **({"segfault": "crash", "kill": "killed", "cpu": "cpu"} if sys.platform != "win32" else {}),
    **({"memory": "memory"} if sys.platform == "linux" else {}),
}
STORM_TIMEOUT = 0.5
# Seconds within which a call ends after its cause, and, with room for a machine that does other things as well, in
# which it has to in a test.
PROMISED, ALLOWED = 1.0, 10.0


class Storm:
    """Calls that end in all ways at random, and what was seen of them."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.seen: Counter[str] = Counter()
        self.took: dict[str, list[float]] = defaultdict(list)
        """Seconds from what ended a call to its end, and to that of its process if it was cancelled."""
        self.pids: set[int] = set()
        self.beside: list[float] = []
        """Seconds of the calls of another tool in this window."""
        self.places = trio.CapacityLimiter(6)

    async def chunk(self, seeds: range) -> None:
        async with trio.open_nursery() as nursery:
            for each in seeds:
                nursery.start_soon(self.one, random.Random(each), str(self.folder / f"{each}"))

    async def one(self, chance: random.Random, mark: str) -> None:
        """Makes a call that ends in some way, and checks that it has ended in this way."""
        how = chance.choice(["fine", "cancel", "timeout", *REASONS])
        async with self.places:
            if how == "cancel":
                await self.cancelled(mark)
                told = "cancelled"
            else:
                tool = "short" if how == "timeout" else "end"
                begun = time.perf_counter()
                result = await self.client.call_tool(tool, {"how": how, "mark": mark})
                now = time.perf_counter()
                if how == "fine":
                    assert not result.is_error, text_of(result)
                    told = "its result"
                elif how == "timeout":
                    told = text_of(result)
                    assert told == f"short: stopped, because it may take no longer than {STORM_TIMEOUT} s"
                    self.took[how].append(now - begun - STORM_TIMEOUT)
                else:
                    told = ended(result)
                    assert told == REASONS[how], text_of(result)
                    # The system counts processor time by ticks, and may end a function before it has noted it.
                    if how != "cpu" or exists_file(mark):
                        self.took[how].append(now - self.noted(mark)[1])
        self.seen[f"{how}: {told}"] += 1

    async def cancelled(self, mark: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.client.call_tool, "end", {"how": "cancel", "mark": mark})
            await until(lambda: exists_file(mark))
            nursery.cancel_scope.cancel()
        cause = time.perf_counter()
        await until_gone(self.noted(mark)[0])
        self.took["cancel"].append(time.perf_counter() - cause)

    def noted(self, mark: str) -> tuple[int, float]:
        """Returns the process that a call has had, and the time when it came to what ends it."""
        pid, since = Path(mark).read_text().split()
        self.pids.add(int(pid))
        return int(pid), float(since)

    async def call_beside(self) -> None:
        while True:
            before = time.perf_counter()
            assert (await self.client.call_tool("beside", {"a": 1})).structured_content == 2
            self.beside.append(time.perf_counter() - before)
            await trio.sleep(0.005)

    async def settled(self) -> None:
        """Waits until there are processes again, so that none starts in a quiet window."""
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(
                    self.client.call_tool, "end", {"how": "fine", "mark": str(self.folder / f"s{number}")}
                )

    def window(self) -> tuple[float, float]:
        """Returns the milliseconds of the median and the 99th percentile of the calls beside, and forgets them."""
        found, self.beside = sorted(self.beside), []
        return 1e3 * found[len(found) // 2], 1e3 * found[len(found) * 99 // 100]

    def shown(self, windows: dict[str, list[tuple[float, float]]]) -> str:
        lines = [f"{name}: {count}" for name, count in sorted(self.seen.items())]
        for how, each in sorted(self.took.items()):
            each.sort()
            late = sum(one > PROMISED for one in each)
            lines.append(
                f"{how}: ended after p99 {1e3 * each[len(each) * 99 // 100]:.0f} ms, most {1e3 * each[-1]:.0f} ms; "
                f"{late} of {len(each)} after more than a second"
            )
        medians = {
            name: [statistics.median(each) for each in zip(*found, strict=True)]
            for name, found in windows.items()
        }
        for name, (p50, p99) in medians.items():
            lines.append(
                f"beside, {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms (medians of {len(windows[name])})"
            )
        if len(medians) == 2:
            lines.append(
                f"p99 beside the storm: {medians['storm'][1] / medians['quiet'][1]:.2f} times the quiet one"
            )
        return "\n".join(lines)


def held() -> tuple[int, float]:
    """The descriptors of this process, and the MiB of its memory."""
    gc.collect()
    if sys.platform != "linux":
        return 0, 0.0
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def test_a_storm_of_calls_ends_each_with_its_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "stormy.py", STORMY)
    monkeypatch.syspath_prepend(tmp_path)
    stormy: Any = __import__("stormy")
    server = make_server(stormy.end, processes=3, memory=200 * MIB, cpu=0.2)
    server.add_tool(stormy.end, name="short", isolate="process", timeout=STORM_TIMEOUT)
    server.add_tool(functions.add, name="beside", inline=True)
    windows: dict[str, list[tuple[float, float]]] = {"quiet": [], "storm": []}
    rounds = 20 if STORM >= 1000 else 3
    at_first = held()
    with trio.fail_after(PATIENCE + STORM):
        async with Client(server) as client, trio.open_nursery() as others:
            storm = Storm(client, tmp_path)
            await storm.settled()
            others.start_soon(storm.call_beside)
            for number in range(rounds):
                await storm.settled()
                storm.beside.clear()
                await until(lambda: len(storm.beside) >= (400 if rounds > 3 else 20))
                windows["quiet"].append(storm.window())
                await storm.chunk(range(number * STORM // rounds, (number + 1) * STORM // rounds))
                windows["storm"].append(storm.window())
                if number == 0:
                    warm = held()
                if rounds > 3:
                    print(f"\nafter {storm.seen.total()} calls: {held()}\n{storm.shown(windows)}", flush=True)
            await storm.settled()
            at_last = held()
            others.cancel_scope.cancel()
    after = held()

    print(f"\n{storm.shown(windows)}")
    for when, (files, memory) in {
        "before": at_first, "after the first round": warm, "after the last one": at_last, "after the server": after
    }.items():  # fmt: skip
        print(f"{when}: {files} descriptors, {memory:.1f} MiB")
    assert storm.seen.total() == STORM
    assert max(max(each) for each in storm.took.values()) < ALLOWED
    assert [each for each in storm.pids if exists(each)] == []
    shown = ["ps", "-o", "args=", "--ppid", str(os.getpid())]
    left = await trio.run_process(shown, capture_stdout=True, check=False)
    assert left.stdout.count(b"isolated") == 0
    assert after[0] <= at_first[0] + 1
