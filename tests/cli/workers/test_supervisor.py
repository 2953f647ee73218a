"""The supervisor with workers that die, hang and refuse on demand."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors.cli.workers.supervisor import WorkersFailed, WorkerSupervisor, WorkerTimes
from mcp_actors.cli.workers.worker import Ready

SCRIPTED = Path(__file__).with_name("scripted.py")
PATIENCE = 60  # seconds
QUICK = WorkerTimes(pause=0.01, longest_pause=0.05, stable=60, start=20, linger=0)


@attrs.define(eq=False)
class Supervised:
    """A supervisor of scripted workers, and what it did."""

    folder: Path
    supervisor: WorkerSupervisor
    announced: list[Ready]
    closed: list[bool]
    ended: trio.Event = attrs.field(factory=trio.Event)
    failure: WorkersFailed | None = None

    async def run(self) -> None:
        try:
            await self.supervisor.run()
        except WorkersFailed as failure:
            self.failure = failure
        self.ended.set()

    def lines(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 - most of it is about files of other processes
            await trio.sleep(0.01)


@asynccontextmanager
async def supervised(
    folder: Path, script: str, *, count: int = 1, times: WorkerTimes = QUICK
) -> AsyncIterator[Supervised]:
    (folder / "script").write_text(script)
    announced: list[Ready] = []
    closed: list[bool] = []
    supervisor = WorkerSupervisor(
        [sys.executable, "-S", "-E", str(SCRIPTED), str(folder)],
        count,
        {},
        environment=dict(os.environ),
        announce=announced.append,
        close=lambda: closed.append(True),
        times=times,
    )
    one = Supervised(folder, supervisor, announced, closed)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            yield one
            nursery.cancel_scope.cancel()


async def test_all_workers_are_announced_once_and_drain_at_sigterm(tmp_path: Path) -> None:
    async with supervised(tmp_path, "serves", count=3) as one:
        await one.until(lambda: one.announced)
        assert sorted(one.lines()) == ["1 serves", "2 serves", "3 serves"]
        os.kill(os.getpid(), signal.SIGTERM)
        await one.ended.wait()
    assert one.announced == [Ready(["somewhere"], "an offer", 0.0)]
    assert one.failure is None
    assert one.closed
    assert sorted(one.lines())[0::2] == ["1 SIGTERM", "2 SIGTERM", "3 SIGTERM"]


async def test_a_worker_that_dies_is_started_again(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with supervised(tmp_path, "brief serves") as one:
            await one.until(lambda: one.lines()[1:] == ["1 serves"])
    [line] = [each for each in logs if "died" in each["event"]]
    assert line["worker"] == 1
    assert line["reason"] == "exit code 3"


async def test_the_pause_grows_to_its_bound(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with supervised(tmp_path, "brief brief brief brief brief serves") as one:
            await one.until(lambda: "1 serves" in one.lines())
    assert [each["after"] for each in logs if "died" in each["event"]] == [0.01, 0.02, 0.04, 0.05, 0.05]


async def test_the_pause_begins_anew_after_a_while(tmp_path: Path) -> None:
    times = attrs.evolve(QUICK, stable=0)
    with capture_logs() as logs:
        async with supervised(tmp_path, "brief brief brief serves", times=times) as one:
            await one.until(lambda: "1 serves" in one.lines())
    assert [each["after"] for each in logs if "died" in each["event"]] == [0.01, 0.01, 0.01]


async def test_it_gives_up_when_the_first_worker_keeps_dying(tmp_path: Path) -> None:
    async with supervised(tmp_path, "dies", count=2) as one:
        await one.ended.wait()
    assert one.failure is not None
    assert str(one.failure) == "the first worker died 3 times before it was ready: exit code 7"
    assert one.failure.exit_code == 1
    assert one.lines() == ["1 dies"] * 3
    assert one.announced == []


async def test_it_gives_up_at_once_when_the_first_worker_says_why(tmp_path: Path) -> None:
    async with supervised(tmp_path, "refuses", count=2) as one:
        await one.ended.wait()
    assert one.failure is not None
    assert (str(one.failure), one.failure.exit_code) == ("it does not want to", 2)
    assert one.lines() == ["1 refuses"]


async def test_a_later_worker_that_refuses_is_tried_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, "serves refuses serves", count=2) as one:
        await one.until(lambda: one.announced)
    assert one.lines()[:3] == ["1 serves", "2 refuses", "2 serves"]
    assert one.failure is None


@pytest.mark.parametrize("word", ["hangs", "babbles"])
async def test_a_worker_that_never_gets_ready_is_killed(word: str, tmp_path: Path) -> None:
    times = attrs.evolve(QUICK, start=2)
    with capture_logs() as logs:
        async with supervised(tmp_path, f"{word} serves", times=times) as one:
            await one.until(lambda: one.announced)
    assert one.lines()[0] == f"1 {word}"
    assert any(each.get("reason") == "killed by SIGKILL" for each in logs)


async def test_sighup_replaces_one_after_the_other(tmp_path: Path) -> None:
    async with supervised(tmp_path, "serves", count=2) as one:
        await one.until(lambda: one.announced)
        os.kill(os.getpid(), signal.SIGHUP)
        await one.until(lambda: len(one.lines()) == 6)
        # A second one afterwards is obeyed as well.
        os.kill(os.getpid(), signal.SIGHUP)
        await one.until(lambda: len(one.lines()) == 10)
        os.kill(os.getpid(), signal.SIGTERM)
        await one.ended.wait()
    assert one.lines()[2:6] == ["1 serves", "1 retires", "2 serves", "2 retires"]
    assert len(one.announced) == 1


async def test_a_replacement_that_fails_leaves_the_old_worker(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with supervised(tmp_path, "serves refuses") as one:
            await one.until(lambda: one.announced)
            os.kill(os.getpid(), signal.SIGHUP)
            await one.until(lambda: any("not replaced" in each["event"] for each in logs))
            os.kill(os.getpid(), signal.SIGTERM)
            await one.ended.wait()
    assert one.lines() == ["1 serves", "1 refuses", "1 SIGTERM"]


async def test_a_second_signal_ends_a_worker_that_does_not_drain(tmp_path: Path) -> None:
    async with supervised(tmp_path, "deaf") as one:
        await one.until(lambda: one.announced)
        os.kill(os.getpid(), signal.SIGTERM)
        await one.until(lambda: one.lines()[1:] == ["1 SIGTERM"])
        os.kill(os.getpid(), signal.SIGINT)
        await one.until(lambda: one.lines()[1:] == ["1 SIGTERM"] * 2)
        await one.ended.wait()
    assert one.failure is None


async def test_cancelled_it_leaves_no_process(tmp_path: Path) -> None:
    async with supervised(tmp_path, "deaf", count=2) as one:
        await one.until(lambda: one.announced)
        pids = [each.pid for each in one.supervisor._workers]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_what_cannot_be_started_is_given_up(tmp_path: Path) -> None:
    supervisor = WorkerSupervisor(
        [str(tmp_path / "nothing")],
        1,
        {},
        environment={},
        announce=lambda ready: None,
        close=lambda: None,
        times=QUICK,
    )
    with trio.fail_after(PATIENCE), capture_logs() as logs:
        with pytest.raises(WorkersFailed, match="could not be started"):
            await supervisor.run()
    assert any(each["event"] == "worker process failed" for each in logs)
