"""The soak of the asyncio face in small; ``MCP_SOAK_CALLS`` makes it as large as wanted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import soak_asyncio
from benchmarks.soak_asyncio import COUNTED, SPARE_KIB, SPARE_OBJECTS, Levels, Soak
from benchmarks.soak_server import hanging

ROOT = Path(__file__).parent.parent.parent
CALLS = int(os.environ.get("MCP_SOAK_CALLS", "2000"))
QUIET = Levels(tasks=4, threads=2, futures=0, descriptors=9, children=0, objects=50_000, kib=50_000)
KINDS = ("plain", "with progress", "cancelled", "out of time", "with a question", "cancelled by its group")
LOOPS = ("in order", "raising", "left open", "cancelled", "closed early")


@pytest.mark.long
def test_nothing_is_left_of_many_calls_in_loops_that_come_and_go() -> None:
    """In a process of its own, which has nothing but the engine to begin with."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak_asyncio", "--calls", str(CALLS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120 + CALLS / 200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stderr == ""
    told = done.stdout.splitlines()[-1]
    assert not [kind for kind in KINDS if f"'{kind}': " not in told]
    assert not [kind for kind in LOOPS if f"'loops {kind}': " not in told]


@pytest.mark.parametrize("name", COUNTED)
def test_one_of_anything_that_is_left_is_too_many(name: str) -> None:
    assert QUIET.is_quiet(QUIET)
    assert not replace(QUIET, **{name: getattr(QUIET, name) + 1}).is_quiet(QUIET)


def test_a_call_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_asyncio, "hanging", {*hanging, 1})
    assert not QUIET.is_quiet(QUIET)


def test_memory_that_grows_is_noticed() -> None:
    assert replace(QUIET, objects=QUIET.objects + SPARE_OBJECTS).is_small(QUIET, 0)
    assert not replace(QUIET, objects=QUIET.objects + SPARE_OBJECTS + 2).is_small(QUIET, 1000)
    assert not replace(QUIET, kib=QUIET.kib + SPARE_KIB + 1).is_small(QUIET, 10**9)


def test_levels_see_a_future_and_a_descriptor_that_somebody_keeps() -> None:
    loop = asyncio.new_event_loop()
    before = Levels.now()
    kept = loop.create_future()
    ends = os.pipe()
    after = Levels.now()
    for end in ends:
        os.close(end)
    loop.close()
    assert not kept.done()
    assert (after.futures, after.descriptors) == (before.futures + 1, before.descriptors + 2)


def test_a_wrong_answer_ends_the_soak() -> None:
    soak = Soak(1)

    class Liar:
        async def call_tool(self, *_: object) -> object:
            return type("Result", (), {"content": [type("Text", (), {"text": "something else"})]})

    with pytest.raises(AssertionError):
        asyncio.run(soak._plain(Liar()))
