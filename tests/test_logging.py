"""Log lines: writing one never raises and never blocks, whatever standard error is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import structlog

from mcp_actors.supervision.logging import BURST, QUEUE_BYTES, TEXTS, WINDOW, RepeatLimit, log

# Lines of some 200 bytes: ten times what fills a pipe and froze a server.
LINES = 8_000


def run(program: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    code = textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", code], timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]


FLOOD = f"""
    from mcp_actors.supervision.logging import log
    for number in range({LINES}):
        log.warning(f"{{number:05}}" + "x" * 150)
    print("done", flush=True)
"""


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    try:
        assert run(FLOOD, stderr=writing, stdout=subprocess.PIPE).stdout == b"done\n"
    finally:
        os.close(reading)
        os.close(writing)


def test_a_pipe_that_is_broken_ends_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = run(FLOOD, stderr=writing, stdout=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


def test_a_disk_that_is_full_ends_nobody() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = run(FLOOD, stderr=full, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


@pytest.mark.parametrize("how", ["sys.stderr.close()", "sys.stderr = None", "os.close(2)"])
def test_a_standard_error_that_is_closed_ends_nobody(how: str) -> None:
    program = f"import os, sys\n{how}\n" + textwrap.dedent(FLOOD)
    ended = run(program, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert ended.stdout == b"done\n"


def test_what_is_written_is_all_there_in_order() -> None:
    program = """
        from mcp_actors.supervision.logging import log
        for number in range(500):
            log.warning(f"line {number} of many")
    """
    ended = run(program, stderr=subprocess.PIPE)
    assert [line.split(b"line ")[1].split()[0] for line in ended.stderr.splitlines()] == [
        str(number).encode() for number in range(500)
    ]


def test_what_was_dropped_is_counted_when_somebody_reads_again() -> None:
    program = f"""
        import os
        import sys
        import threading
        from mcp_actors.supervision.logging import log
        for number in range({LINES}):
            log.warning(f"{{number:05}}" + "x" * 150)
        print("full", flush=True)
        sys.stdin.readline()
        while True:
            log.warning("once more")
            if not sys.stdin.readline():
                break
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == b"full\n"
    child.stdin.write(b"\n")
    child.stdin.flush()
    seen = 0
    for line in child.stderr:
        seen += 1
        if b"log lines were dropped" in line:
            dropped = int(line.split()[0])
            break
        if b"once more" in line:
            child.stdin.write(b"\n")
            child.stdin.flush()
    child.communicate(timeout=60)
    # The queue and the pipe hold something, and nothing else is missing.
    assert 0 < dropped < LINES
    assert (LINES - dropped) * 150 < QUEUE_BYTES + 4 * 65536
    assert seen > 0


@pytest.mark.parametrize("lines", [1_000, 10_000])
def test_lines_that_say_the_same_are_written_so_often_and_then_counted(lines: int) -> None:
    now = [0.0]
    limit = RepeatLimit(lambda: now[0])

    def written(
        level: str = "error", event: str = "handler failed", **details: object
    ) -> list[dict[str, Any]]:
        try:
            return [limit(None, level, {"event": event, **details})]
        except structlog.DropEvent:
            return []

    kept = [line for number in range(lines) for line in written(id=number)]
    assert [line["id"] for line in kept] == list(range(BURST))
    # Others are not held back by it.
    assert written(event="another") == [{"event": "another"}]
    assert written(level="warning") == [{"event": "handler failed"}]
    now[0] += WINDOW
    assert written(id=-1) == [{"event": "handler failed", "id": -1, "dropped_before": lines - BURST}]
    assert written(id=-2) == [{"event": "handler failed", "id": -2}]


def test_texts_without_end_are_not_all_remembered() -> None:
    limit = RepeatLimit()
    for number in range(10 * TEXTS):
        assert limit(None, "error", {"event": f"text {number}"})
    assert len(limit._windows) <= TEXTS


def test_standard_error_gets_no_more_than_that() -> None:
    program = f"""
        from mcp_actors.supervision.logging import log
        for number in range({LINES}):
            log.error("handler failed", number=number)
        log.error("something else")
    """
    ended = run(program, stderr=subprocess.PIPE)
    assert BURST + 1 <= len(ended.stderr.splitlines()) <= 3 * BURST
    assert b"something else" in ended.stderr


class Unspeakable:
    """Fails when it is written."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_a_sink_of_the_program_that_raises_ends_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*args: object) -> dict[str, object]:
        raise ValueError("a processor of the program's own")

    structlog.configure(processors=[fails])
    try:
        log.error("something happened", session="s#1", detail=Unspeakable())
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr().err
    assert (
        "'something happened' session='s#1' detail=<Unspeakable: ZeroDivisionError> (ValueError)" in written
    )
