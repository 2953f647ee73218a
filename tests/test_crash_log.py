"""The last crashes of tasks, for whoever looks from outside."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import trio

from mcp_actors.supervision.containment import CHARACTERS, KEPT, CrashLog, crash_log, start_again
from mcp_actors.supervision.task_kinds import DRAIN


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no words")


async def test_a_crash_is_counted_and_kept(autojump_clock: trio.abc.Clock) -> None:
    before = crash_log.counts[DRAIN.name]
    crashes = [RuntimeError("first"), Unspeakable()]

    async def work() -> None:
        if crashes:
            raise crashes.pop(0)

    async with trio.open_nursery() as nursery:
        start_again(nursery, DRAIN, work, about="of a test")
    assert crash_log.counts[DRAIN.name] == before + 2
    first, second = list(crash_log.recent)[-2:]
    assert (first.kind, first.task, first.error) == ("drain", "drain of a test", "RuntimeError('first')")
    assert second.error == "Unspeakable"
    assert first.restarted


def test_it_is_bounded() -> None:
    log = CrashLog()
    for number in range(3 * KEPT):
        log.note("kind", "t" * 1000, ValueError(f"{number} " + "e" * 10_000), restarted=False)
    assert log.counts["kind"] == 3 * KEPT
    assert len(log.recent) == KEPT
    assert {(len(each.task), len(each.error)) for each in log.recent} == {(CHARACTERS, CHARACTERS)}
    assert log.recent[-1].error.startswith(f"ValueError('{3 * KEPT - 1} ")


def test_threads_lose_no_crash() -> None:
    log, threads, crashes = CrashLog(), 8, 500
    together = threading.Barrier(threads)

    def work() -> None:
        together.wait()
        for number in range(crashes):
            log.note("kind", "task", ValueError(number), restarted=True)
            assert len(list(log.recent)) <= KEPT

    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(work) for _ in range(threads)]:
            each.result()
    assert log.counts["kind"] == threads * crashes
    assert len(log.recent) == KEPT
