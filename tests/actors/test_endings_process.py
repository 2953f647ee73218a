"""How a served process ends: signals and the end of its input, on a real child with real time.

What these tests wait for is bounded, loosely: a busy machine is no failure, waiting for a grace period is. A call that
shall answer after the end of something waits for that end, and not for a time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .peers import LEGACY, call, cancelled, request

# Seconds. The grace of the servers below is far longer where nothing may wait for it, and shorter where it must.
PATIENCE = 60.0

SERVER = """
import sys, trio
from contextlib import asynccontextmanager
from mcp_actors import Server, Limits

grace = float(sys.argv[1])

@asynccontextmanager
async def lifespan(server):
    try:
        yield
    finally:
        print("lifespan over", file=sys.stderr, flush=True)

server = Server("child", limits=Limits(drain_grace=grace, end_grace=grace), lifespan=lifespan)

@server.tool
async def hang() -> str:
    print("begun", file=sys.stderr, flush=True)
    try:
        await trio.sleep_forever()
    finally:
        print("cleaned up", file=sys.stderr, flush=True)

# Answers once nothing new is taken: the end of input was read, or the server is stopping.
@server.tool
async def last() -> str:
    print("begun", file=sys.stderr, flush=True)
    while server.tree().sessions[0].state == "open":
        await trio.sleep(0.01)
    return "answered"

@server.tool
def thread(seconds: float) -> str:
    print("begun", file=sys.stderr, flush=True)
    import time
    time.sleep(seconds)
    return "slept in a thread"

stop = server.stop

def noted():
    stop()
    print("stopping", file=sys.stderr, flush=True)

server.stop = noted
server.run()
print("returned", file=sys.stderr, flush=True)
"""


class Child:
    """A server process, spoken to line by line."""

    def __init__(self, grace: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._lines: dict[int, bytes] = {}

    def send(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def _line(self, stream: Any) -> bytes:
        """One line, or ``b""`` at the end; fails after a while instead of hanging."""
        fd, until = stream.fileno(), time.monotonic() + PATIENCE
        buffered = self._lines.pop(fd, b"")
        while b"\n" not in buffered:
            ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"nothing came for {PATIENCE} s"
            data = os.read(fd, 65536)
            if not data:
                return buffered
            buffered += data
        line, _, self._lines[fd] = buffered.partition(b"\n")
        return line

    def receive(self) -> Any:
        return json.loads(self._line(self.process.stdout))

    def says(self, text: str) -> None:
        line = self._line(self.process.stderr).decode()
        while line == "stopping" != text:
            line = self._line(self.process.stderr).decode()
        assert line == text

    def greet(self) -> None:
        self.send(request(0, "initialize", {"protocolVersion": LEGACY, "capabilities": {}}))
        assert self.receive()["result"]["protocolVersion"] == LEGACY

    def ends(self) -> tuple[int, bytes]:
        """Its exit code and what it still wrote to stdout."""
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        return code, self._lines.pop(self.process.stdout.fileno(), b"") + self.process.stdout.read()


@pytest.fixture
def patient() -> Iterator[Child]:
    """A child that would let calls go on for ten minutes."""
    yield from child(600)


@pytest.fixture
def hurried() -> Iterator[Child]:
    """A child that gives calls a fifth of a second."""
    yield from child(0.2)


def child(grace: float) -> Iterator[Child]:
    made = Child(grace)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        for stream in (made.process.stdin, made.process.stdout, made.process.stderr):
            assert stream is not None
            stream.close()


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
def test_one_signal_ends_an_idle_server(patient: Child, number: signal.Signals) -> None:
    patient.greet()
    patient.process.send_signal(number)
    assert patient.ends() == (0, b"")
    patient.says("lifespan over")
    patient.says("returned")


@SIGNALS
def test_a_signal_lets_a_call_in_flight_answer(patient: Child, number: signal.Signals) -> None:
    patient.greet()
    patient.send(call(1, "last"))
    patient.says("begun")
    patient.process.send_signal(number)
    code, rest = patient.ends()
    assert code == 0
    assert json.loads(rest)["id"] == 1
    patient.says("lifespan over")
    patient.says("returned")


@SIGNALS
def test_the_grace_after_a_signal_is_bounded(hurried: Child, number: signal.Signals) -> None:
    hurried.greet()
    hurried.send(call(1, "hang"))
    hurried.says("begun")
    hurried.process.send_signal(number)
    hurried.says("cleaned up")
    code, rest = hurried.ends()
    assert code == 0
    answer = json.loads(rest)
    assert answer["id"] == 1
    assert answer["error"]["data"]["reason"] == "server_stopping"
    hurried.says("lifespan over")
    hurried.says("returned")


@SIGNALS
def test_a_second_signal_does_not_wait_for_the_grace(patient: Child, number: signal.Signals) -> None:
    patient.greet()
    patient.send(call(1, "hang"))
    patient.says("begun")
    patient.process.send_signal(number)
    # Two that come together would count as one.
    patient.says("stopping")
    patient.process.send_signal(number)
    patient.says("cleaned up")
    assert patient.ends() == (0, b"")


def test_a_thread_that_goes_on_does_not_keep_the_process(hurried: Child) -> None:
    hurried.greet()
    hurried.send(call(1, "thread", seconds=600))
    hurried.says("begun")
    hurried.process.send_signal(signal.SIGTERM)
    assert hurried.ends()[0] == 0


def test_the_end_of_input_lets_calls_answer_and_ends_the_process(patient: Child) -> None:
    patient.greet()
    patient.send(call(1, "last"))
    patient.send(call(2, "hang"))
    patient.send(cancelled(2))
    assert patient.process.stdin is not None
    patient.process.stdin.close()
    code, rest = patient.ends()
    assert code == 0
    assert [json.loads(line)["id"] for line in rest.splitlines()] == [1]


def test_a_peer_that_vanishes_ends_the_process_at_once(patient: Child) -> None:
    """Both pipes are gone: the writer finds out with the first answer, and the hanging call has nobody left."""
    patient.greet()
    patient.send(call(1, "hang"))
    patient.says("begun")
    patient.send(call(2, "last"))
    patient.says("begun")
    assert patient.process.stdin is not None
    assert patient.process.stdout is not None
    patient.process.stdout.close()
    patient.process.stdin.close()
    patient.says("cleaned up")
    assert patient.process.wait(PATIENCE) == 0


def test_after_the_end_of_input_a_call_in_flight_keeps_nothing_from_its_cleanup(hurried: Child) -> None:
    hurried.greet()
    hurried.send(call(1, "hang"))
    hurried.says("begun")
    assert hurried.process.stdin is not None
    hurried.process.stdin.close()
    hurried.says("cleaned up")
    hurried.says("lifespan over")
    hurried.says("returned")
    assert hurried.ends() == (0, b"")


@SIGNALS
def test_after_the_end_of_input_the_first_signal_ends_the_grace(
    patient: Child, number: signal.Signals
) -> None:
    patient.greet()
    patient.send(call(1, "hang"))
    patient.says("begun")
    patient.send(call(2, "last"))
    patient.says("begun")
    assert patient.process.stdin is not None
    patient.process.stdin.close()
    # The answer comes after the end of input was read, or the signal would count as one before it.
    assert patient.receive()["id"] == 2
    patient.process.send_signal(number)
    patient.says("cleaned up")
    patient.says("lifespan over")
    patient.says("returned")
    assert patient.ends() == (0, b"")
