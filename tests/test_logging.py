"""Log lines: writing one never raises and never blocks, whatever standard error is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import structlog

from mcp_actors.logging import QUEUE_BYTES, log

# Lines of some 200 bytes: ten times what fills a pipe and froze a server.
LINES = 8_000


def run(program: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    code = textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", code], timeout=60, check=False, **options)  # type: ignore[call-overload, no-any-return]


FLOOD = f"""
    from mcp_actors.logging import log
    for number in range({LINES}):
        log.warning("x" * 150, number=number)
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
        from mcp_actors.logging import log
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
        from mcp_actors.logging import log
        for number in range({LINES}):
            log.warning("x" * 150, number=number)
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
