"""The live view of several workers: what is shown of those that live, die, hang and say nonsense."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx2
import msgspec
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client
from mcp_actors.cli.workers import view
from mcp_actors.cli.workers.view import (
    PageMessage,
    Question,
    ViewedWorker,
    WorkerAnswer,
    WorkerPages,
    WorkersMetrics,
    WorkerState,
    WorkersView,
)
from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.exposition import Family, Sample
from mcp_actors.telemetry.live_view import Action, ActionOutcome
from mcp_actors.telemetry.snapshot import NodeSnapshot
from mcp_transports.admin import AdminClient
from tests.cli.conftest import LIMIT, Started, announced
from tests.telemetry.test_metrics import read, value

from .test_workers import SERVER, children, replace_workers, serving, until


def snapshot(worker: int) -> NodeSnapshot:
    return NodeSnapshot(
        node=f"n{worker}",
        server="s",
        version="1",
        host="h",
        pid=worker,
        worker=worker,
        state="serving",
        uptime=1.0,
        at=1.0,
    )


async def answering(theirs: trio.SocketStream, answer: Callable[[Question], bytes]) -> None:
    async with theirs:
        async for data in theirs:
            for line in data.splitlines():
                await theirs.send_all(answer(msgspec.json.decode(line, type=Question)))


def scripted(number: int, nursery: trio.Nursery, answer: Callable[[Question], bytes]) -> WorkerState:
    ours, other = socket.socketpair()
    other.setblocking(False)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(other))
    nursery.start_soon(answering, stream, answer)
    return WorkerState(number, 100 + number, ViewedWorker(ours), "")


def good(number: int) -> Callable[[Question], bytes]:
    def answer(question: Question) -> bytes:
        outcome = None if question.action is None else ActionOutcome(True, f"{question.who} at {number}")
        return msgspec.json.encode(WorkerAnswer(question.number, [snapshot(number)], outcome)) + b"\n"

    return answer


# Virtual time goes well with the pairs of sockets here: what is written at one end is at the other one at once.


async def test_workers_that_hang_say_nonsense_or_are_gone_are_shown_as_that(
    autojump_clock: MockClock,
) -> None:
    with trio.fail_after(30), capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            workers = [
                scripted(1, nursery, good(1)),
                scripted(2, nursery, lambda question: b""),
                scripted(3, nursery, lambda question: b"[]\n"),
                WorkerState(4, 0, None, "killed by SIGKILL"),
                scripted(5, nursery, lambda question: b'{"number": 0}\n' + good(5)(question)),
            ]
            view = WorkersView(lambda: workers)
            nodes = await view.snapshot()
            done = await view.act(Action("cancel_call", "n5", "key"), "bob")
            unknown = await view.act(Action("cancel_call", "n9", "key"), "bob")
            nursery.cancel_scope.cancel()
    for each in workers:
        if each.view is not None:
            each.view.close()
    assert {(each.node, each.state, each.note) for each in nodes} == {
        ("supervisor", "serving", "4 of 5 workers"),
        ("n1", "serving", None),
        ("n5", "serving", None),
        ("worker 2", "gone", "does not answer"),
        ("worker 3", "gone", "does not answer"),
        ("worker 4", "gone", "killed by SIGKILL"),
    }
    assert (done, unknown.done) == (ActionOutcome(True, "bob at 5"), False)
    assert [each["event"] for each in logs] == ["a worker said something unknown"]


async def test_a_worker_speaks_for_itself_and_one_that_ended_is_forgotten(autojump_clock: MockClock) -> None:
    def knows_both(question: Question) -> bytes:
        stale = msgspec.structs.replace(snapshot(2), note="silent for 3.0 s")
        outcome = None if question.action is None else ActionOutcome(True, "by the wrong one")
        return msgspec.json.encode(WorkerAnswer(question.number, [snapshot(1), stale], outcome)) + b"\n"

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            workers = [scripted(1, nursery, knows_both), scripted(2, nursery, good(2))]
            views = [each.view for each in workers]
            view = WorkersView(lambda: workers)
            nodes = await view.snapshot()
            done = await view.act(Action("cancel_call", "n2", "key"), "bob")
            # Another process has its place now.
            workers = [scripted(2, nursery, good(3))]
            views.append(workers[0].view)
            await view.snapshot()
            gone = await view.act(Action("cancel_call", "n2", "key"), "bob")
            nursery.cancel_scope.cancel()
    for each in views:
        if each is not None:
            each.close()
    assert [(each.node, each.note) for each in nodes[1:]] == [("n1", None), ("n2", None)]
    assert done == ActionOutcome(True, "bob at 2")
    assert not gone.done


@pytest.mark.slow
async def test_the_supervisor_shows_all_workers_and_why_one_was_started_again(
    started: Started, tmp_path: Path
) -> None:
    (tmp_path / "several.py").write_text(SERVER)
    where = f"unix:{tmp_path}/admin.sock"
    words = ("serve", str(tmp_path / "several.py"), "--listen", "http://127.0.0.1:0/mcp", "--workers", "2")
    with started(*words, "--admin", where, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        await trio.to_thread.run_sync(announced, process.stderr)
        client = AdminClient(where)
        first, *workers = (await client.snapshot()).nodes
        assert (first.node, first.pid) == ("supervisor", process.pid)
        assert sorted(each.worker or 0 for each in workers) == [1, 2]
        killed = workers[0]
        os.kill(killed.pid, signal.SIGKILL)
        async with client.watching() as snapshots:
            async for each in snapshots:
                reasons = [crash.error for crash in each.nodes[0].crashes]
                alive = {node.pid for node in each.nodes[1:] if node.state == "serving"}
                if reasons and len(alive) == 2 and killed.pid not in alive:
                    break
        assert "killed by SIGKILL" in reasons[0]
        process.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(process.wait) == 0
    assert not await trio.Path(where.removeprefix("unix:")).exists()


# -- the metrics of all workers ------------------------------------------------------------------------


def measured(number: int, calls: int) -> Callable[[Question], bytes]:
    def answer(question: Question) -> bytes:
        assert question.metrics
        families = [
            Family("calls_total", "counter", "", [Sample({"target": "a"}, calls)]),
            Family("inside", "gauge", "", [Sample({}, number)]),
        ]
        return msgspec.json.encode(WorkerAnswer(question.number, families=families)) + b"\n"

    return answer


async def test_workers_that_end_or_hang_take_nothing_from_the_sum(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        hangs = trio.Event()

        def sometimes(question: Question) -> bytes:
            return b"" if hangs.is_set() else measured(2, 10)(question)

        states = [scripted(1, nursery, measured(1, 100)), scripted(2, nursery, sometimes)]
        views = [each.view for each in states if each.view is not None]
        left = list(views)
        metrics = WorkersMetrics(lambda: left, lambda: {"ready": len(left), "starting": 2 - len(left)}, 2)
        page = await metrics.text()
        assert (value(page, "calls_total", target="a"), value(page, "inside")) == (110, 3)
        assert value(page, "mcp_actors_worker_deaths_total", worker="1") == 0
        assert value(page, "mcp_actors_workers", state="silent") == 0
        hangs.set()
        page = await metrics.text()
        assert (value(page, "calls_total"), value(page, "inside")) == (110, 1)
        assert value(page, "mcp_actors_workers", state="silent") == 1
        # The next scrapes do not wait for it for as long: they may have less time than this one.
        began = trio.current_time()
        page = await metrics.text()
        assert trio.current_time() - began == 1
        assert value(page, "mcp_actors_workers", state="silent") == 1
        metrics.died(1)
        metrics.ended(left.pop(0))
        page = await metrics.text()
        assert value(page, "calls_total") == 110
        assert "inside" not in read(page)
        assert value(page, "mcp_actors_worker_deaths_total", worker="1") == 1
        assert value(page, "mcp_actors_workers", state="starting") == 1
        nursery.cancel_scope.cancel()
    for each in views:
        each.close()


class CountingClock:
    """A clock that goes on with each look at it, and knows which threads have looked."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self._numbers = count(1)

    def monotonic(self) -> float:
        self.threads.add(threading.get_ident())
        return next(self._numbers) / 1000


class ScriptedSupervisor:
    """Reads who asks for the page of metrics, and answers."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.socket.settimeout(LIMIT)
        self.pages = WorkerPages(ours.detach(), Metrics())
        self._questions = self.socket.makefile("rb")

    def __enter__(self) -> ScriptedSupervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._questions, self.socket, self.pages._socket):
            each.close()

    def asked(self) -> int:
        return int(json.loads(self._questions.readline())["number"])

    def answer(self, number: int) -> None:
        self.socket.sendall(msgspec.json.encode(PageMessage(number, text=f"page {number}")) + b"\n")


def test_scrapes_that_wait_share_a_page_that_was_begun_after_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = CountingClock()
    monkeypatch.setattr(view, "time", clock)
    with ScriptedSupervisor() as supervisor, ThreadPoolExecutor(30) as threads:
        first = threads.submit(supervisor.pages.text)
        assert supervisor.asked() == 1
        waiting = [threads.submit(supervisor.pages.text) for _ in range(20)]
        while len(clock.threads) < 21:
            pass
        supervisor.answer(1)
        assert supervisor.asked() == 2
        supervisor.answer(2)
        assert first.result() == "page 1"
        assert {each.result() for each in waiting} == {"page 2"}


def test_a_page_that_comes_too_late_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedSupervisor() as supervisor, ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(view, "_PAGE_TIME", 0.05)
        with pytest.raises(TimeoutError):
            supervisor.pages.text()
        monkeypatch.setattr(view, "_PAGE_TIME", LIMIT)
        next_page = threads.submit(supervisor.pages.text)
        for number in (supervisor.asked(), supervisor.asked()):
            supervisor.answer(number)
        assert next_page.result() == "page 2"


async def scraped(url: str) -> str:
    async with httpx2.AsyncClient(timeout=LIMIT) as http:
        answer = await http.get(url.replace("/mcp", "/metrics"))
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.slow
async def test_a_scrape_is_the_sum_of_all_workers_with_those_that_have_ended(
    started: Started, tmp_path: Path
) -> None:
    (tmp_path / "several.py").write_text(SERVER)
    words = ["--listen", "http://127.0.0.1:0/mcp", "--workers", "2", "--metrics", "/metrics"]
    async with serving(started, str(tmp_path / "several.py"), *words) as (url, process):

        async def call(workers: int) -> int:
            """Calls until so many workers have answered, and returns how many calls that took."""
            pids: set[str] = set()
            for number in count(1):
                async with Client(url, era="modern") as client:
                    pids.add((await client.call_tool("pid")).text)
                if len(pids) == workers:
                    return number
            raise AssertionError

        calls = await call(2)
        page = await scraped(url)
        assert value(page, "mcp_actors_calls_total", target="pid", ending="answered") == calls
        assert value(page, "mcp_server_operation_duration_seconds_count", target="pid") == calls
        assert value(page, "mcp_actors_workers", state="ready") == 2
        assert value(page, "mcp_actors_worker_deaths_total") == 0
        assert value(page, "process_resident_memory_bytes") > 3e7
        assert all("worker" not in labels for labels, _ in read(page)["mcp_actors_calls_total"])
        # What a worker has counted when it was killed is what it said last.
        killed = children(process.pid)[0]
        os.kill(killed, signal.SIGKILL)
        await until(lambda: len(set(children(process.pid)) - {killed}) == 2)
        while value(page := await scraped(url), "mcp_actors_workers", state="ready") < 2:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert value(page, "mcp_actors_worker_deaths_total") == 1
        assert value(page, "mcp_actors_calls_total", target="pid", ending="answered") == calls
        # One that retires has said everything, also what no scrape has asked for.
        calls += await call(2)
        await replace_workers(process)
        calls += await call(2)
        page = await scraped(url)
        assert value(page, "mcp_actors_calls_total", target="pid", ending="answered") == calls
        assert value(page, "mcp_actors_worker_replacements_total") == 2
        process.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(process.wait) == 0
