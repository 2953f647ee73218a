"""The stdio server as a real process: what its peer sees, and how it leaves the descriptors."""

from __future__ import annotations

import errno
import os
import pty
import signal
import socket
import subprocess
import sys
import tty
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

# Echoes each line. Around it, the state of descriptors 0 and 1 goes to stderr: before, within and after.
SERVER = """
import ctypes, os, subprocess, sys, threading, trio
from mcp_actors.abc import Frame
from mcp_actors.errors import McpError
from mcp_transports.stdio import StdioServerTransport

def report(when):
    modes = [f"{os.get_blocking(fd)}/{os.fstat(fd).st_dev}/{os.fstat(fd).st_ino}" for fd in (0, 1)]
    os.write(2, f"{when} {modes[0]} {modes[1]} threads={threading.active_count()}\\n".encode())

async def noise():
    print("from print")
    os.write(1, b"from os.write\\n")
    ctypes.CDLL(None).puts(b"from puts")
    await trio.run_process([sys.executable, "-c", "print('from a child', repr(input() if 0 else None))"])
    os.write(2, b"stdin reads " + repr(os.read(0, 10)).encode() + b"\\n")

async def handler(channel):
    report("within")
    scope.deadline = trio.current_time() + (float(sys.argv[1]) if sys.argv[1:] else 60)
    try:
        while True:
            frames = await channel.receive_many()
            for frame in frames:
                if frame.data == b"noise":
                    await noise()
                elif frame.data == b"print":
                    print("from print")
                    ctypes.CDLL(None).puts(b"from puts")
                elif frame.data == b"raise":
                    raise KeyError("handler")
                elif frame.data == b"interrupt":
                    os.kill(os.getpid(), 2)
                    await trio.sleep_forever()
                elif frame.data.startswith(b"big "):
                    await channel.send(Frame(b"x" * int(frame.data[4:])))
                else:
                    await channel.send(frame)
    except (trio.EndOfChannel, trio.BrokenResourceError) as error:
        os.write(2, f"ended {type(error).__name__} {error.__cause__}\\n".encode())
        await channel.aclose()

scope = trio.CancelScope()

async def main():
    with scope:
        await StdioServerTransport(max_message_bytes=3_000_000).serve(handler)
    os.write(2, f"cancelled {scope.cancelled_caught}\\n".encode())

print("printed before")
report("before")
try:
    trio.run(main)
except McpError as error:
    os.write(2, f"{type(error).__name__}: {error}\\n".encode())
except BaseException as error:
    os.write(2, f"raised {error!r}\\n".encode())
finally:
    report("after")
"""
TIMEOUT = 60


@pytest.fixture(autouse=True)
def sigint_is_not_ignored() -> Iterator[None]:
    """A run in the background ignores SIGINT, which child processes inherit; they do not inherit that it is caught."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def closing_all() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(
    stack: ExitStack, *args: str, command: Sequence[str] = (sys.executable, "-c", SERVER), **streams: Any
) -> subprocess.Popen[bytes]:
    # Buffered, as a server usually is: what is still in a buffer when descriptor 1 is put back must not go there.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen([*command, *args], stderr=subprocess.PIPE, env=env, **streams)

    def end() -> None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    stack.callback(end)
    return process


def states(stderr: bytes) -> dict[str, str]:
    """What `report` wrote, by its first word."""
    lines = [line.split(" ", 1) for line in stderr.decode().splitlines()]
    return {line[0]: line[1].rsplit(" ", 1)[0] for line in lines if line[0] in ("before", "within", "after")}


def assert_put_back(stderr: bytes) -> None:
    found = states(stderr)
    assert found["before"] == found["after"]
    assert found["within"] != found["before"]


def test_pipes_echo_and_are_put_back(closing_all: ExitStack) -> None:
    server = start(closing_all, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = server.communicate(b'{"a":1}\r\n\n{"b":2}\n{"last":3}', timeout=TIMEOUT)

    assert out == b'printed before\n{"a":1}\n{"b":2}\n{"last":3}\n'
    assert_put_back(err)
    assert b"ended EndOfChannel" in err
    assert b"threads=1" in next(line for line in err.splitlines() if line.startswith(b"within"))
    assert server.returncode == 0


def test_nothing_but_the_protocol_reaches_stdout(closing_all: ExitStack) -> None:
    server = start(closing_all, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    server.stdin.write(b"noise\nafter the noise\n")
    server.stdin.flush()
    assert server.stdout is not None
    # Input is still open: reading descriptor 0 in the server has come to an end all the same.
    assert server.stdout.readline() + server.stdout.readline() == b"printed before\nafter the noise\n"
    out, err = server.communicate(timeout=TIMEOUT)

    assert out == b""
    for text in (b"from print", b"from os.write", b"from puts", b"from a child None", b"stdin reads b''"):
        assert text in err
    assert_put_back(err)


@pytest.mark.parametrize("message", [b"raise\n", b"interrupt\n"])
def test_put_back_when_the_handler_raises_or_is_interrupted(closing_all: ExitStack, message: bytes) -> None:
    server = start(closing_all, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    server.stdin.write(message)
    server.stdin.flush()
    assert server.wait(TIMEOUT) == 0
    _, err = server.communicate(timeout=TIMEOUT)

    assert b"KeyError('handler')" in err or b"KeyboardInterrupt" in err
    assert_put_back(err)


def test_put_back_when_cancelled_while_it_waits_on_an_open_pipe(closing_all: ExitStack) -> None:
    server = start(closing_all, "0.3", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.wait(TIMEOUT) == 0
    _, err = server.communicate(timeout=TIMEOUT)

    assert b"cancelled True" in err
    assert_put_back(err)


def test_the_open_file_shared_with_the_parent_keeps_its_mode_even_if_the_server_is_killed(
    closing_all: ExitStack,
) -> None:
    read_end, write_end = os.pipe()
    closing_all.callback(os.close, write_end)
    closing_all.callback(os.close, read_end)
    server = start(closing_all, stdin=read_end, stdout=subprocess.PIPE)
    os.write(write_end, b"hello\n")
    assert server.stdout is not None
    assert server.stdout.readline() == b"printed before\n"
    assert server.stdout.readline() == b"hello\n"

    assert os.get_blocking(read_end)
    server.send_signal(signal.SIGKILL)
    server.wait(TIMEOUT)
    assert os.get_blocking(read_end)


def test_one_socket_both_ways_is_blocking_again_afterwards(closing_all: ExitStack) -> None:
    ours, theirs = socket.socketpair()
    closing_all.enter_context(closing(ours))
    closing_all.enter_context(closing(theirs))
    server = start(closing_all, stdin=theirs, stdout=theirs)
    ours.sendall(b"hello\n")
    ours.shutdown(socket.SHUT_WR)
    _, err = server.communicate(timeout=TIMEOUT)

    ours.settimeout(TIMEOUT)
    assert ours.recv(100) == b"printed before\nhello\n"
    assert theirs.getblocking()
    assert os.get_blocking(theirs.fileno())
    assert states(err)["after"].startswith("True/")
    assert_put_back(err)


@pytest.mark.parametrize("hang_up", [False, True])
def test_a_terminal(closing_all: ExitStack, hang_up: bool) -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    if not hang_up:
        closing_all.callback(os.close, master)
    closing_all.callback(os.close, slave)
    server = start(closing_all, stdin=slave, stdout=slave)
    os.write(master, b"hello\n")
    seen = b""
    while b"hello\n" not in seen:
        seen += os.read(master, 100)
    assert seen.endswith(b"printed before\nhello\n")
    assert os.get_blocking(slave)

    if hang_up:
        os.close(master)
    else:
        server.send_signal(signal.SIGINT)
    _, err = server.communicate(timeout=TIMEOUT)
    assert (b"ended EndOfChannel" if hang_up else b"KeyboardInterrupt") in err
    assert os.get_blocking(slave)
    assert_put_back(err)


def test_a_terminal_in_line_mode_ends_with_control_d(closing_all: ExitStack) -> None:
    master, slave = pty.openpty()
    closing_all.callback(os.close, master)
    closing_all.callback(os.close, slave)
    server = start(closing_all, stdin=slave, stdout=subprocess.PIPE)
    os.write(master, b"typed\n\x04")
    out, err = server.communicate(timeout=TIMEOUT)

    assert out == b"printed before\ntyped\n"
    assert b"ended EndOfChannel" in err
    assert_put_back(err)


def test_regular_files(closing_all: ExitStack, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"1\n2\n" + b"3" * 200_000)
    with (tmp_path / "in").open("rb") as stdin, (tmp_path / "out").open("wb") as stdout:
        server = start(closing_all, stdin=stdin, stdout=stdout)
        _, err = server.communicate(timeout=TIMEOUT)

    assert (tmp_path / "out").read_bytes() == b"printed before\n1\n2\n" + b"3" * 200_000 + b"\n"
    assert_put_back(err)


def test_dev_null_is_an_empty_input(closing_all: ExitStack) -> None:
    server = start(closing_all, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, err = server.communicate(timeout=TIMEOUT)

    assert server.returncode == 0
    assert b"ended EndOfChannel" in err
    assert states(err)["before"] == states(err)["after"]


def test_a_named_fifo_whose_writer_is_gone_already(closing_all: ExitStack, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    closing_all.callback(os.close, reading)
    writing = os.open(fifo, os.O_WRONLY)
    os.write(writing, b"from a fifo\n")
    os.close(writing)
    server = start(closing_all, stdin=reading, stdout=subprocess.PIPE)
    out, err = server.communicate(timeout=TIMEOUT)

    assert out == b"printed before\nfrom a fifo\n"
    assert os.get_blocking(reading)
    assert_put_back(err)


@pytest.mark.parametrize(
    ("redirection", "expected"),
    [
        ("<&-", b"ConnectFailed: standard input is closed\n"),
        (">&-", b"ConnectFailed: standard output is closed\n"),
        ("2>&-", b""),
    ],
)
def test_a_standard_stream_that_is_closed(closing_all: ExitStack, redirection: str, expected: bytes) -> None:
    plain = SERVER.replace("def report(when):", "def report(when):\n    return").replace(
        'print("printed before")', ""
    )
    shell = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, plain]
    server = start(closing_all, command=shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = server.communicate(b"print\nhello\n", timeout=TIMEOUT)

    assert err == expected
    assert out == (b"" if expected else b"hello\n")


def test_what_was_printed_is_dropped_when_nobody_reads_stderr(closing_all: ExitStack) -> None:
    silent = SERVER.replace("os.write(2,", "(lambda *_: None)(2,")
    server = start(
        closing_all, command=[sys.executable, "-c", silent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stderr is not None
    server.stderr.close()
    server.stderr = None
    out, _ = server.communicate(b"print\nhello\n", timeout=TIMEOUT)

    assert out == b"printed before\nhello\n"
    assert server.returncode == 0


def test_a_peer_that_reads_nothing_does_not_hold_the_loop(closing_all: ExitStack) -> None:
    server = start(closing_all, "0.5", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    server.stdin.write(b"big 1000000\n")
    server.stdin.flush()
    # The deadline inside the server can only pass if the full pipe does not hold its event loop.
    assert server.wait(TIMEOUT) == 0
    assert server.stderr is not None
    err = server.stderr.read()
    assert b"cancelled True" in err
    assert_put_back(err)


def test_a_peer_that_left_breaks_the_channel(closing_all: ExitStack) -> None:
    broken = start(closing_all, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert broken.stdin is not None
    assert broken.stdout is not None
    assert broken.stdout.readline() == b"printed before\n"
    broken.stdout.close()
    broken.stdin.write(b"hello\n")
    broken.stdin.flush()
    assert broken.wait(TIMEOUT) == 0
    assert broken.stderr is not None
    err = broken.stderr.read()
    assert b"ended NothingSent" in err
    assert os.strerror(errno.EPIPE).encode() in err


def test_a_message_over_the_limit_ends_the_connection(closing_all: ExitStack) -> None:
    server = start(closing_all, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = server.communicate(b"hello\n" + b"x" * 3_000_001, timeout=TIMEOUT)

    assert out == b"printed before\nhello\n"
    assert b"ended BrokenResourceError message longer than 3000000 bytes" in err


def test_a_large_message_passes_whole(closing_all: ExitStack) -> None:
    server = start(closing_all, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    message = bytes(range(33, 127)) * 30_000
    out, _ = server.communicate(message + b"\n", timeout=TIMEOUT)

    assert out == b"printed before\n" + message + b"\n"


def test_serving_twice_at_once_is_refused(closing_all: ExitStack) -> None:
    code = SERVER.replace('report("within")', "await StdioServerTransport().serve(handler)")
    server = start(
        closing_all, command=[sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    _, err = server.communicate(b"", timeout=TIMEOUT)

    assert b"LocalProtocolError: standard input and output are served already" in err
