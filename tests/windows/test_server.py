"""The stdio server with the branches for Windows: threads read and write, and nobody else gets the protocol."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
import trio.testing

from mcp_transports.stdio.windows.standard_streams import BlockingReceiveStream, BlockingSendStream

from .pretended import ROOT

TIMEOUT = 30
SERVER = """
import os, subprocess, sys
from tests.windows.pretended import pretend
from tests.windows.system import FakeLibrary, fake_msvcrt
pretend(kernel32=FakeLibrary, msvcrt=fake_msvcrt())
import trio
from mcp_actors import Server
from mcp_actors.errors import McpError
server = Server("on windows", version="1")

@server.tool
def noise(text: str) -> str:
    print("from print")
    os.write(1, b"from os.write\\\\n")
    subprocess.run([sys.executable, "-c", "print('from a child', input() if 0 else '')"], check=True)
    return f"{text} {os.read(0, 10)!r}"

try:
    server.run()
except McpError as error:
    os.write(2, f"{type(error).__name__}: {error}\\\\n".encode())
os.write(2, b"ended\\\\n")
os.write(1, b"after\\\\n")
""".replace("\\\\", "\\")
INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip


def call(number: int, text: str) -> dict[str, object]:
    params = {"name": "noise", "arguments": {"text": text}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@contextmanager
def served(**options: object) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT)


def exchange(process: subprocess.Popen[bytes], *messages: dict[str, object]) -> list[dict[str, object]]:
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for message in messages:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        if "id" in message:
            answers.append(json.loads(process.stdout.readline()))
    return answers


def test_only_the_protocol_goes_through_the_pipes() -> None:
    with served() as process:
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        answers = exchange(process, INITIALIZE, ready, call(2, "x"), call(3, "y" * 200_000))
        output, errors = process.communicate(timeout=TIMEOUT)

    texts = [answer["result"]["content"][0]["text"] for answer in answers[1:]]  # type: ignore[index]
    assert texts == ["x b''", "y" * 200_000 + " b''"]
    # Descriptor 1 is the peer's again at the end, and not before.
    assert output == b"after\n"
    assert (
        errors.count(b"from print\n")
        == errors.count(b"from os.write\n")
        == errors.count(b"from a child")
        == 2
    )
    assert errors.endswith(b"ended\n")
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.Signals(21)], ids=["INT", "TERM", "BREAK"]
)
def test_a_signal_ends_a_server_whose_thread_reads(number: signal.Signals) -> None:
    with served(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)) as process:
        exchange(process, INITIALIZE)
        process.send_signal(number)
        # Its input is open, and nothing on Linux can end the thread's call: it is left to the end of the process.
        assert process.wait(TIMEOUT) == 0


def test_a_file_is_served_to_its_end(tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "input")
    with open(path, "wb") as file:
        file.write(json.dumps(INITIALIZE).encode())
    with open(path, "rb") as file, served(stdin=file) as process:
        output, _ = process.communicate(timeout=TIMEOUT)

    first, _, rest = output.partition(b"\n")
    assert json.loads(first)["result"]["serverInfo"]["name"] == "on windows"
    assert rest == b"after\n"


def test_a_closed_standard_output_is_said() -> None:
    with served(preexec_fn=lambda: os.close(1), stdout=None) as process:
        _, errors = process.communicate(b"", timeout=TIMEOUT)

    assert b"ConnectFailed: standard output is closed" in errors


# -- Streams on descriptors whose calls block ------------------------------------------------------------
#
# What is cancelled, closed, interrupted, and who closes the descriptor.


class Pipe:
    """A pipe of the system; `interrupt` ends a read as CancelSynchronousIo does, by another way."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.interrupted: list[int] = []
        self.works = True
        self.reads = 0

    def interrupt(self, thread: int) -> bool:
        self.interrupted.append(thread)
        if self.works:
            os.write(self.writing, b"!")
        return self.works


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    made = Pipe()
    real = os.read

    def read(fd: int, size: int) -> bytes:
        made.reads += fd == made.reading
        return real(fd, size)

    monkeypatch.setattr(os, "read", read)
    yield made
    for fd in (made.writing, made.reading):
        if is_open(fd):
            os.close(fd)


def is_open(fd: int) -> bool:
    """Whether a descriptor is still a pipe: its number is another file's soon after it was closed."""
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await trio.testing.wait_all_tasks_blocked(0.001)


async def test_what_comes_after_a_cancelled_receive_is_received_next(pipe: Pipe) -> None:
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        os.write(pipe.writing, b"12345")
        assert [await stream.receive_some(3), await stream.receive_some(3)] == [b"123", b"45"]
        os.close(pipe.writing)
        assert await stream.receive_some() == b""
    await stream.aclose()
    assert not is_open(pipe.reading)


async def test_two_receivers_are_one_too_many(pipe: Pipe) -> None:
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive_some()
            nursery.cancel_scope.cancel()
        await stream.aclose()


async def test_closing_interrupts_the_thread_which_closes_the_descriptor(pipe: Pipe) -> None:
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    endings: list[str] = []

    async def receive() -> None:
        try:
            await stream.receive_some()
        except trio.ClosedResourceError:
            endings.append("closed")

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await until(lambda: pipe.reads == 1)
            await stream.aclose()

    assert endings == ["closed"]
    assert pipe.interrupted
    assert threading.main_thread().native_id not in pipe.interrupted
    assert not is_open(pipe.reading)
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()


async def test_a_thread_that_cannot_be_interrupted_is_left_alone_and_closes_later(pipe: Pipe) -> None:
    pipe.works = False
    stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await until(lambda: pipe.reads == 1)
            nursery.cancel_scope.cancel()
        await stream.aclose()
        # A descriptor that is closed here would make Windows wait for the read.
        assert is_open(pipe.reading)
        os.write(pipe.writing, b"late")
        await until(lambda: not is_open(pipe.reading))


async def test_a_thread_that_ends_after_the_loop_harms_nobody(pipe: Pipe) -> None:
    pipe.works = False

    async def main() -> None:
        stream = BlockingReceiveStream(pipe.reading, pipe.interrupt)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await until(lambda: pipe.reads == 1)
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(trio.run, main)
    os.write(pipe.writing, b"late")
    with trio.fail_after(TIMEOUT):
        await until(lambda: all(each.name != "mcp-actors stdio" for each in threading.enumerate()))
    assert is_open(pipe.reading)


async def test_a_cancelled_send_is_the_last_one(pipe: Pipe) -> None:
    stream = BlockingSendStream(pipe.writing, pipe.interrupt)
    pipe.works = False
    with trio.fail_after(TIMEOUT):
        await stream.send_all(b"whole")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"x" * 1_000_000)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(trio.BrokenResourceError, match="an earlier call did not end"):
            await stream.send_all(b"more")
        await stream.aclose()
        os.close(pipe.reading)  # the write of the thread fails, and it closes the descriptor
        await until(lambda: not is_open(pipe.writing))


async def test_what_a_write_leaves_over_is_written_next(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        return real(fd, data[:3] if fd == pipe.writing else data)

    monkeypatch.setattr(os, "write", write)
    stream = BlockingSendStream(pipe.writing, pipe.interrupt)
    with trio.fail_after(TIMEOUT):
        await stream.send_all(b"whole and once")
        await stream.aclose()
    assert os.read(pipe.reading, 100) == b"whole and once"


async def test_a_reader_that_is_gone_breaks_sending(pipe: Pipe) -> None:
    os.close(pipe.reading)
    stream = BlockingSendStream(pipe.writing, pipe.interrupt)
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError, match="Broken pipe"):
            await stream.send_all(b"x")
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"x")


async def test_a_descriptor_that_cannot_be_read_is_broken() -> None:
    stream = BlockingReceiveStream(os.open("/", os.O_RDONLY))
    with pytest.raises(trio.BrokenResourceError, match="Is a directory"):
        await stream.receive_some()
    stream.close()
    stream.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(stream.fileno())


@pytest.mark.parametrize("kind", [BlockingReceiveStream, BlockingSendStream])
async def test_a_system_without_threads_breaks_the_stream_which_is_closed_all_the_same(
    kind: type[BlockingReceiveStream] | type[BlockingSendStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    reading, writing = os.pipe()
    ours, theirs = (reading, writing) if kind is BlockingReceiveStream else (writing, reading)
    stream = kind(ours)
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refuse)
    use = stream.receive_some if isinstance(stream, BlockingReceiveStream) else partial(stream.send_all, b"x")
    for _ in range(2):
        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            await use()
    stream.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)
    os.close(theirs)
