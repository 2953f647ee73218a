"""Starts workers, starts them again when they die, and replaces or ends them on request.

================ ======================================================================================================
SIGTERM, SIGINT   every worker drains and ends; a second one ends them at once
SIGHUP            each worker in turn: a new one gets ready, then the old one retires; workers that read their
                  configuration again themselves get the signal
a worker dies     it is started again after a pause, which grows as long as it keeps dying soon
================ ======================================================================================================
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import msgspec
import trio

from mcp_actors.cli.start import has_terminal
from mcp_actors.cli.workers.store import WorkerStore
from mcp_actors.cli.workers.view import ViewedWorker, WorkersMetrics, WorkerState
from mcp_actors.cli.workers.worker import ASSIGNMENT, RETIRE, Assignment, Failed, Ready
from mcp_actors.supervision.containment import crash_log, one_error, start, start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import (
    WORKER_PAGES,
    WORKER_PROCESS,
    WORKER_REPLACEMENT,
    WORKER_SIGNALS,
    WORKER_SLOT,
    WORKER_STORE,
)

__all__ = ["Worker", "WorkerSupervisor", "WorkerTimes", "WorkersFailed"]


if sys.platform == "win32":
    raise ImportError("workers inherit listening sockets and obey signals, and Windows has neither")


# Seconds that a worker has to end after the signal that allows no waiting.
_AT_ONCE = 2.0
# Seconds more than a worker says that it takes to drain: only one that hangs needs them.
_DRAIN_MARGIN = 5.0
# Seconds that a worker has to end which is not ready: there is nothing to drain, and `mcp_actors.cli.start` takes 3.
_START_MARGIN = 4.0
# Seconds between the end of accepting here and that in the workers.
_CLOSED_BEFORE = 0.2
# Times that the first worker may die without a reason before any was ever ready.
_FIRST_TRIES = 3


class WorkersFailed(Exception):
    """The workers cannot serve; the text says why.

    Args:
        reason: A sentence for people.
        exit_code: The code that the program ends with.
    """

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


@attrs.frozen(kw_only=True)
class WorkerTimes:
    """Times in seconds."""

    pause: float = 0.1
    """Before a worker that died is started again; it doubles with each death that comes soon."""
    longest_pause: float = 30.0
    """The bound of the pause, so long that it neither floods the log nor keeps the machine busy."""
    stable: float = 60.0
    """After so long a life, a death has a new reason: the pause starts from its first value."""
    start: float = 60.0
    """For a worker to get ready: imports and lifespans of real servers take seconds."""
    linger: float = 6.0
    """In which a worker that was replaced still answers on idle connections of HTTP. Clients in use close theirs after
    4 or 5 s, so that no server closes one on which a request is on its way."""


@attrs.define(eq=False)
class _Slot:
    """The place of one worker; the workers in it change."""

    number: int
    current: Worker | None = None
    pause: float = 0.0
    reason: str = ""
    """Why the last worker there has died."""


class WorkerSupervisor:
    """Keeps a number of workers alive.

    Args:
        command: The program of a worker, with its arguments.
        count: How many workers there are.
        sockets: The descriptors of the listening sockets; the caller closes them.
        environment: That of the workers.
        announce: Called once, when all workers are ready for the first time, with what the first said of itself.
        close: Called when no more connections are to be accepted.
        counts: The descriptor of a file of 8 bytes for each worker, in which they note how many connections they have;
            -1 for none.
        key: The key of all workers where their environment has none, as hexadecimal digits; by default each has its
            own.
        watched: Whether `states` is used, so that workers can be looked at.
        reloads: Whether workers read their configuration again at SIGHUP, so that they are not replaced.
        measured: Whether the workers have a page of metrics, which is that of all.
        manager: A `mcp_actors.cli.systemd.ServiceNotifier`, if a service manager wants to know the state.
        times: See `WorkerTimes`.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        sockets: Mapping[str, Sequence[Sequence[int]]],
        *,
        environment: Mapping[str, str],
        announce: Callable[[Ready], object],
        close: Callable[[], object],
        counts: int = -1,
        key: str = "",
        watched: bool = False,
        reloads: bool = False,
        measured: bool = False,
        manager: Any = None,
        times: WorkerTimes | None = None,
    ) -> None:
        self._announce = announce
        self._manager = manager
        self._reloads = reloads
        self._close = close
        self._times = times = times or WorkerTimes()
        self._run_worker = partial(
            Worker.run,
            command=command,
            environment=environment,
            sockets=sockets,
            counts=counts,
            key=key,
            watched=watched,
            linger=times.linger,
            store=WorkerStore(),
            page=self._page if measured else None,
        )
        self._metrics = WorkersMetrics(self._measured, self._states, count)
        self._slots = [_Slot(number) for number in range(1, count + 1)]
        self._workers: set[Worker] = set()
        self._failure: WorkersFailed | None = None
        self._stopping = trio.Event()
        self._was_ready = False
        # The replacements of all workers that were asked for, the current one included: a change since that began needs
        # one more.
        self._rounds = 0

    def __repr__(self) -> str:
        state = "stopping" if self._stopping.is_set() else "serving" if self._was_ready else "starting"
        return f"<WorkerSupervisor of {len(self._slots)} workers: {state}, {len(self._workers)} processes>"

    def states(self) -> list[WorkerState]:
        """Returns the places of the workers, and how to look at those that are ready."""
        return [_state(each) for each in self._slots]

    def _page(self) -> Awaitable[str]:
        return self._metrics.text()

    def _measured(self) -> list[ViewedWorker]:
        """Returns all workers that are ready, also those whose place another one has by now."""
        return [each.view for each in self._workers if each.view is not None and each.ready is not None]

    def _states(self) -> dict[str, int]:
        ready = sum(_state(each).view is not None for each in self._slots)
        return {"ready": ready, "starting": len(self._slots) - ready}

    async def run(self) -> None:
        """Runs the workers until SIGTERM or SIGINT. Cancelled, it kills them.

        Raises:
            WorkersFailed: The first worker said that it cannot serve, or died several times before it was ready.
        """
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with trio.open_signal_receiver(*signals) as arrived:
            async with trio.open_nursery() as nursery:
                start_again(nursery, WORKER_SIGNALS, self._obey, arrived, nursery)
                if self._manager is not None:
                    start_again(nursery, WORKER_SIGNALS, self._manager.keep_alive, about="watchdog")
                await self._serve(nursery)
                nursery.cancel_scope.cancel(reason="every worker has ended")
        if self._failure is not None:
            raise self._failure

    async def _serve(self, nursery: trio.Nursery) -> None:
        async with trio.open_nursery() as slots:
            first, *others = self._slots
            # The first worker shows whether they can serve at all, so that a failure is reported once.
            start_again(slots, WORKER_SLOT, self._keep, first, nursery, about="1")
            await self._until_ready(first)
            for each in others:
                start_again(slots, WORKER_SLOT, self._keep, each, nursery, about=f"{each.number}")
            for each in others:
                await self._until_ready(each)
            if first.current is not None and first.current.ready is not None and not self._stopping.is_set():
                self._announce(first.current.ready)
            await self._stopping.wait()
            if self._manager is not None:
                self._manager.stopping()
            await self._drain()

    async def _until_ready(self, slot: _Slot) -> None:
        while not self._stopping.is_set():
            worker = slot.current
            if worker is not None:
                # It may take a minute to decide, and a signal must not wait for that.
                with trio.move_on_after(self._times.pause / 2):
                    await worker.decided.wait()
                if worker.ready is not None:
                    return
            with trio.move_on_after(self._times.pause / 2):
                await self._stopping.wait()

    # -- one place ---------------------------------------------------------------------------------------------------

    async def _keep(self, slot: _Slot, nursery: trio.Nursery) -> None:
        """Keeps a worker in a slot until the supervisor stops."""
        deaths = 0
        while not self._stopping.is_set():
            if slot.current is None:
                slot.current = self._launch(slot.number, nursery)
            worker, began = slot.current, trio.current_time()
            with trio.move_on_after(self._times.start):
                await worker.decided.wait()
            if not worker.decided.is_set():
                log.error("a worker did not get ready in time", worker=slot.number, seconds=self._times.start)
                worker.signal(signal.SIGKILL)
            self._was_ready = self._was_ready or worker.ready is not None
            await worker.gone.wait()
            if slot.current is not worker or self._stopping.is_set():
                deaths = 0
                continue
            slot.current = None
            deaths += 1
            self._metrics.died(slot.number)
            if not self._was_ready and (isinstance(worker.said, Failed) or deaths >= _FIRST_TRIES):
                self._give_up(worker, deaths)
                return
            slot.reason = worker.how_it_ended()
            crash_log.note(
                WORKER_PROCESS.name,
                f"{WORKER_PROCESS.name} {slot.number}",
                WorkersFailed(slot.reason, 1),
                True,
            )
            if trio.current_time() - began >= self._times.stable:
                slot.pause = 0.0
            slot.pause = min(slot.pause * 2 or self._times.pause, self._times.longest_pause)
            log.error(
                "a worker has died and is started again",
                worker=slot.number,
                pid=worker.pid,
                reason=slot.reason,
                after=slot.pause,
            )
            with trio.move_on_after(slot.pause):
                await self._stopping.wait()

    def _launch(self, number: int, nursery: trio.Nursery) -> Worker:
        worker = Worker(number, len(self._slots))
        self._workers.add(worker)
        start(nursery, WORKER_PROCESS, self._run, worker, about=f"{number}")
        return worker

    async def _run(self, worker: Worker) -> None:
        try:
            await self._run_worker(worker)
        finally:
            self._workers.discard(worker)
            if worker.view is not None:
                self._metrics.ended(worker.view)

    def _give_up(self, worker: Worker, deaths: int) -> None:
        if isinstance(worker.said, Failed):
            self._failure = WorkersFailed(worker.said.reason, worker.said.exit_code)
        else:
            reason = f"the first worker died {deaths} times before it was ready: {worker.how_it_ended()}"
            self._failure = WorkersFailed(reason, 1)
        self._stopping.set()

    # -- signals -----------------------------------------------------------------------------------------------------

    async def _obey(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        had_terminal = has_terminal()
        async for number in signals:
            is_asked = number == signal.SIGHUP and (has_terminal() or not had_terminal)
            if is_asked and self._reloads:
                for worker in self._workers:
                    if worker.ready is not None:
                        worker.signal(signal.SIGHUP)
                if self._manager is not None:
                    self._manager.reloading()
                    self._manager.ready()
                continue
            if is_asked:
                self._rounds = min(self._rounds + 1, 2)
                if self._rounds == 1:
                    start(nursery, WORKER_REPLACEMENT, self._replace_all, nursery)
                continue
            # A terminal that was closed says so by SIGHUP: no person could stop this any more.
            if self._stopping.is_set():
                for worker in list(self._workers):
                    worker.signal(signal.SIGTERM)
                start(nursery, WORKER_REPLACEMENT, self._kill_soon, list(self._workers), about="at once")
            self._stopping.set()

    async def _kill_soon(self, workers: Sequence[Worker]) -> None:
        await trio.sleep(_AT_ONCE)
        for worker in workers:
            worker.signal(signal.SIGKILL)

    async def _drain(self) -> None:
        workers = list(self._workers)
        delay = max((each.ready.delay for each in workers if each.ready is not None), default=0.0)
        if not delay:
            self._close()
        for worker in workers:
            worker.signal(signal.SIGTERM)
        async with trio.open_nursery() as closing:
            start(closing, WORKER_REPLACEMENT, self._close_before, delay, about="closes")
            async with trio.open_nursery() as ending:
                for worker in workers:
                    start(ending, WORKER_REPLACEMENT, self._until_ended, worker, 0.0, about="drains")
            closing.cancel_scope.cancel(reason="every worker has ended")
        self._close()

    async def _close_before(self, delay: float) -> None:
        """Closes the sockets here before the workers do: nobody would accept what comes behind the last of them."""
        await trio.sleep(max(0.0, delay - _CLOSED_BEFORE))
        self._close()

    async def _until_ended(self, worker: Worker, extra: float) -> None:
        """Waits until a worker that was asked to end has ended, and kills it if it does not."""
        has = _START_MARGIN if worker.ready is None else worker.ready.drain + extra + _DRAIN_MARGIN
        with trio.move_on_after(has):
            await worker.ended.wait()
        if not worker.ended.is_set():
            log.error("a worker did not end and is killed", worker=worker.number, pid=worker.pid)
            worker.signal(signal.SIGKILL)
            await worker.ended.wait()

    async def _replace_all(self, nursery: trio.Nursery) -> None:
        if self._manager is not None:
            self._manager.reloading()
        try:
            while self._rounds:
                for slot in self._slots:
                    if self._stopping.is_set() or not await self._replace(slot, nursery):
                        break
                else:
                    # Whoever has sent the signal looks for this at the usual level.
                    log.warning("every worker was replaced", workers=len(self._slots))
                self._rounds -= 1
        finally:
            self._rounds = 0
            if self._manager is not None and not self._stopping.is_set():
                self._manager.ready()

    async def _replace(self, slot: _Slot, nursery: trio.Nursery) -> bool:
        """Puts a new worker into a slot, once that is ready, and ends the old one. Returns whether it could."""
        younger = self._launch(slot.number, nursery)
        with trio.move_on_after(self._times.start):
            await younger.decided.wait()
        if younger.ready is None or self._stopping.is_set():
            younger.signal(signal.SIGKILL if younger.ready is None else signal.SIGTERM)
            if not self._stopping.is_set():
                reason = younger.how_it_ended() if younger.ended.is_set() else "it did not get ready in time"
                log.error("the workers are not replaced: a new one failed", worker=slot.number, reason=reason)
            return False
        older, slot.current = slot.current, younger
        self._was_ready = True
        self._metrics.replaced()
        if older is not None and not older.ended.is_set():
            older.gone.set()
            try:
                await older.retire()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("a worker ended before it could retire", worker=slot.number)
            await self._until_ended(older, self._times.linger)
        return True


def _state(slot: _Slot) -> WorkerState:
    worker = slot.current
    if worker is None:
        return WorkerState(slot.number, 0, None, slot.reason)
    view = worker.view if worker.ready is not None and not worker.ended.is_set() else None
    return WorkerState(slot.number, worker.pid, view, slot.reason)


# -- One worker: a child process, and the socket that reports what became of it ------------------------

# Seconds for what a process has said to be read, once it has ended.
_LAST_WORDS = 1.0
# Seconds for the kernel to end a process that was killed.
_KILLED = 2.0
# Bytes of the one message of a worker, far more than URLs and a reason need.
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
    """The way to look at it; ``None`` if the workers are not looked at."""
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
        store: WorkerStore,
        watched: bool = False,
        page: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Starts the process and returns when it has ended. Cancelled, or when anything fails, it kills it.

        Args:
            command: The program and its arguments.
            environment: That of the process, but for what is added for a worker.
            sockets: The descriptors of the listening sockets, which the process inherits.
            counts: The descriptor of the workers' shared counts of connections; -1 for none.
            linger: Seconds in which it still answers on idle connections, once it has to retire.
            key: The key of all workers, as hexadecimal digits.
            store: What all workers share.
            watched: Whether the supervisor looks at its workers.
            page: Returns the metrics of all workers; ``None`` if they have no page of them.

        Raises:
            OSError: The process cannot be started.
        """
        ours, theirs = socket.socketpair()
        shared, sharing = socket.socketpair()
        try:
            with (
                theirs,
                sharing,
                self._viewed(watched or page is not None, page is not None) as (viewed, pages),
            ):
                assignment = Assignment(
                    self.number,
                    self.of,
                    theirs.fileno(),
                    counts,
                    linger,
                    {name: [list(each) for each in several] for name, several in sockets.items()},
                    key,
                    viewed,
                    pages,
                    sharing.fileno(),
                )
                given = [theirs.fileno(), sharing.fileno(), counts, viewed, pages]
                given += [fd for several in sockets.values() for each in several for fd in each]
                self.process = await trio.lowlevel.open_process(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    env={**environment, ASSIGNMENT: msgspec.json.encode(assignment).decode()},
                    pass_fds=[each for each in given if each >= 0],
                    # Ctrl-C is for the supervisor alone, which signals the workers: they would get it twice.
                    process_group=0,
                )
            if self._signal is not None:
                self.process.send_signal(self._signal)
            ours.setblocking(False)
            self._control = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            await self._accompanied(self._control, self.process, store, shared, page)
        finally:
            if self.process is not None and self.process.returncode is None:
                self.process.kill()
                with trio.move_on_after(_KILLED, shield=True):
                    await self.process.wait()
            if self._control is not None:
                await trio.aclose_forcefully(self._control)
            ours.close()
            shared.close()
            if self.view is not None:
                self.view.close()
            self.decided.set()
            self.gone.set()
            self.ended.set()

    async def _accompanied(
        self,
        control: trio.SocketStream,
        process: trio.Process,
        store: WorkerStore,
        shared: socket.socket,
        page: Callable[[], Awaitable[str]] | None,
    ) -> None:
        """Listens to the worker until it has ended, and meanwhile gives it what it shares, and the page of metrics."""
        with one_error():
            async with trio.open_nursery() as nursery:
                done = trio.Event()

                async def serve() -> None:
                    try:
                        if page is not None and self.view is not None:
                            await self.view.serve_pages(page)
                    finally:
                        done.set()

                start(
                    nursery,
                    WORKER_STORE,
                    store.serve,
                    shared,
                    about=f"{self.number}",
                    on_crash=lambda error: self.signal(signal.SIGTERM),
                )
                start(nursery, WORKER_PAGES, serve, about=f"{self.number}")
                await self._listen(control)
                await process.wait()
                # What it has said last may not be read yet.
                with trio.move_on_after(_LAST_WORDS):
                    await done.wait()
                nursery.cancel_scope.cancel(reason="the worker has ended")

    @contextmanager
    def _viewed(self, watched: bool, measured: bool) -> Iterator[tuple[int, int]]:
        """Yields the descriptors of the worker's sides of `view`, -1 where there is none."""
        if not watched:
            yield -1, -1
            return
        ours, theirs = socket.socketpair()
        self.view = ViewedWorker(ours)
        with theirs:
            if not measured:
                yield theirs.fileno(), -1
                return
            self.view.pages, others = socket.socketpair()
            with others:
                yield theirs.fileno(), others.fileno()

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
