"""One worker, as its supervisor sees it: a child process, and the socket that tells what became of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import msgspec
import trio

from mcp_actors.cli.workers.messages import ASSIGNMENT, RETIRE, Assignment, Failed, Ready
from mcp_actors.cli.workers.view import ViewedWorker
from mcp_actors.logging import log

if sys.platform == "win32":
    raise ImportError("workers inherit listening sockets and obey signals, and Windows has neither")

__all__ = ["Worker"]

# Seconds for the kernel to end a process that was killed.
_KILLED = 2.0
# Bytes of the one message of a worker: places and a reason fit many times.
_LONGEST_MESSAGE = 65_536
_MESSAGE: msgspec.json.Decoder[Ready | Failed] = msgspec.json.Decoder(Ready | Failed)


@attrs.define(eq=False)
class Worker:
    """A worker process.

    Args:
        number: Its place, from 1 on.
        of: How many workers there are.
    """

    number: int
    of: int
    said: Ready | Failed | None = None
    """Its message on what became of it."""
    decided: trio.Event = attrs.field(factory=trio.Event)
    """Set once it is ready, or has ended without that."""
    gone: trio.Event = attrs.field(factory=trio.Event)
    """Set once it has ended, or another worker has its place."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    process: trio.Process | None = None
    view: ViewedWorker | None = None
    """The way to look at it; ``None`` if nobody looks at the workers."""
    _signal: signal.Signals | None = None
    _control: trio.SocketStream | None = None

    @property
    def ready(self) -> Ready | None:
        """Its message that it is ready; ``None`` if it never was."""
        return self.said if isinstance(self.said, Ready) else None

    @property
    def pid(self) -> int:
        """Its process id; 0 before it is started."""
        return 0 if self.process is None else self.process.pid

    async def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        sockets: Mapping[str, Sequence[Sequence[int]]],
        counts: int,
        linger: float,
        key: str,
        watched: bool = False,
    ) -> None:
        """Starts the process and returns when it has ended. Cancelled, or when anything fails, it kills it.

        Args:
            command: The program and its arguments.
            environment: That of the process, but for what a worker is told.
            sockets: The descriptors of the listening sockets, which the process inherits.
            counts: The descriptor of the workers' shared counts of connections; -1 for none.
            linger: Seconds in which it still answers on idle connections, once it has to retire.
            key: The key of all workers, as hexadecimal digits.
            watched: Whether the supervisor looks at its workers.

        Raises:
            OSError: The process cannot be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._viewed(watched) as viewed:
                assignment = Assignment(
                    self.number,
                    self.of,
                    theirs.fileno(),
                    counts,
                    linger,
                    {name: [list(each) for each in several] for name, several in sockets.items()},
                    key,
                    viewed,
                )
                inherited = [fd for several in sockets.values() for each in several for fd in each]
                self.process = await trio.lowlevel.open_process(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    env={**environment, ASSIGNMENT: msgspec.json.encode(assignment).decode()},
                    pass_fds=[theirs.fileno(), *inherited, *(each for each in (counts, viewed) if each >= 0)],
                    # Ctrl-C is for the supervisor alone, which tells the workers: of it they would get two.
                    process_group=0,
                )
            if self._signal is not None:
                self.process.send_signal(self._signal)
            ours.setblocking(False)
            self._control = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            await self._listen(self._control)
            await self.process.wait()
        finally:
            if self.process is not None and self.process.returncode is None:
                self.process.kill()
                with trio.move_on_after(_KILLED, shield=True):
                    await self.process.wait()
            if self._control is not None:
                await trio.aclose_forcefully(self._control)
            ours.close()
            if self.view is not None:
                self.view.close()
            self.decided.set()
            self.gone.set()
            self.ended.set()

    @contextmanager
    def _viewed(self, watched: bool) -> Iterator[int]:
        """Yields the descriptor of the worker's side of `view`, -1 without one."""
        if not watched:
            yield -1
            return
        ours, theirs = socket.socketpair()
        self.view = ViewedWorker(ours)
        with theirs:
            yield theirs.fileno()

    async def _listen(self, control: trio.SocketStream) -> None:
        """Takes the worker's message; returns when the worker has closed its side, as its end does."""
        received = b""
        while True:
            try:
                more = await control.receive_some()
            except trio.BrokenResourceError:
                return
            received += more
            if not more or len(received) > _LONGEST_MESSAGE:
                return
            line, newline, received = received.partition(b"\n")
            if not newline:
                received = line
                continue
            try:
                self.said = _MESSAGE.decode(line)
            except msgspec.MsgspecError as error:
                log.error("a worker said something unknown", worker=self.number, reason=str(error))
                return
            if self.ready is not None:
                self.decided.set()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal if the process is there, or as soon as it is."""
        if self.process is None:
            self._signal = number
        elif self.process.returncode is None:
            self.process.send_signal(number)

    async def retire(self) -> None:
        """Tells the worker that another one has taken its place.

        Raises:
            trio.BrokenResourceError: It is ending already.
        """
        if self._control is not None:
            await self._control.send_all(RETIRE)

    def how_it_ended(self) -> str:
        """Returns a few words on the end of the process, for people."""
        code = None if self.process is None else self.process.returncode
        if isinstance(self.said, Failed):
            return self.said.reason
        if code is None:
            return "it could not be started"
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
