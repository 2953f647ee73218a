"""``mcp-actors serve --workers N``, from the command line to the end of the last worker."""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mcp_actors import Server
from mcp_actors.abc import OpenState, SharedState
from mcp_actors.cli.failures import EXIT_USAGE, CommandFailure, WrongUsage
from mcp_actors.cli.workers.supervisor import WorkersFailed, WorkerSupervisor
from mcp_actors.cli.workers.view import WorkersView
from mcp_actors.cli.workers.worker import Ready
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.containment import one_error, reraised, start_again, start_and_wait
from mcp_actors.supervision.platform import STOP_SIGNALS
from mcp_actors.supervision.task_kinds import COMPANION, WORKER_SIGNALS

__all__ = ["StateOfSeveral", "serve_with_workers"]


if sys.platform == "win32":
    raise ImportError("workers inherit listening sockets and obey signals, and Windows has neither")


# As `mcp_transports.listening.inherit_counts` wants it.
_BYTES_OF_A_COUNT = 8


def serve_with_workers(
    words: Sequence[str],
    urls: Sequence[str],
    count: int,
    announce: Callable[[Ready], object],
    admin: Any = None,
    *,
    reloads: bool = False,
    measured: bool = False,
    manager: Any = None,
) -> None:
    """Opens the sockets of the URLs and keeps workers that accept from them, until a signal ends it.

    Args:
        words: The arguments of the command line that make a process serve, without the name of the program.
        urls: Where to serve.
        count: How many workers there are.
        announce: Called once all of them are ready, with what the first said of itself.
        admin: A `mcp_transports.admin.AdminTransport` at which all workers are looked at; ``None`` for none.
        reloads: As `WorkerSupervisor` has it.
        measured: Whether the workers have a page of metrics.
        manager: As `WorkerSupervisor` has it.

    Raises:
        CommandFailure: The workers cannot serve; `WrongUsage` if the command line is the reason.
        TransportNotFound: A URL cannot be served by several processes.
        ConnectFailed: An address cannot be listened at.
    """
    trio.run(_serve, words, urls, count, announce, admin, reloads, measured, manager)


async def _serve(
    words: Sequence[str],
    urls: Sequence[str],
    count: int,
    announce: Callable[[Ready], object],
    admin: Any,
    reloads: bool,
    measured: bool,
    manager: Any,
) -> None:
    # The supervisor catches these signals while there are workers. Before that and behind it, a signal ends what is
    # going on, and closes what was opened: a name is looked up, or the admin endpoint ends.
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals, one_error():
        async with trio.open_nursery() as nursery:
            start_again(
                nursery, WORKER_SIGNALS, _cancel_on, signals, nursery.cancel_scope, about="at the start"
            )
            await _supervise(words, urls, count, announce, admin, reloads, measured, manager)
            nursery.cancel_scope.cancel(reason="every worker has ended")


async def _cancel_on(signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
    async for number in signals:
        everything.cancel(reason=signal.Signals(number).name)


async def _supervise(
    words: Sequence[str],
    urls: Sequence[str],
    count: int,
    announce: Callable[[Ready], object],
    admin: Any,
    reloads: bool,
    measured: bool,
    manager: Any,
) -> None:
    listening = importlib.import_module("mcp_transports.listening")
    try:
        opened: Sequence[Any] = await listening.open_sockets(list(urls))
    except (ValueError, LocalProtocolError) as error:
        raise WrongUsage(str(error)) from error

    def close() -> None:
        for each in opened:
            each.close()

    sockets: dict[str, list[list[int]]] = {}
    for each in opened:
        sockets.setdefault(each.key, []).append(each.descriptors)
    counts = _shared_memory(_BYTES_OF_A_COUNT * count)
    supervisor = WorkerSupervisor(
        [sys.executable, "-m", "mcp_actors", *words],
        count,
        sockets,
        environment=os.environ,
        # A retry of a call may reach any of them.
        key=secrets.token_hex(32),
        announce=announce,
        close=close,
        counts=counts,
        watched=admin is not None,
        reloads=reloads,
        measured=measured,
        manager=manager,
    )
    try:
        async with _viewed(supervisor, admin):
            await supervisor.run()
    except WorkersFailed as failure:
        kind = WrongUsage if failure.exit_code == EXIT_USAGE else CommandFailure
        raise kind(str(failure)) from None
    finally:
        close()
        os.close(counts)


def _shared_memory(size: int) -> int:
    """Returns the descriptor of ``size`` bytes of zeros that processes can share, in memory or else in a file."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("connections of workers")
    else:
        descriptor, path = tempfile.mkstemp(prefix="mcp-actors-")
        os.unlink(path)
    os.truncate(descriptor, size)
    return descriptor


@asynccontextmanager
async def _viewed(supervisor: WorkerSupervisor, admin: Any) -> AsyncIterator[None]:
    """Shows the workers at the admin endpoint, if there is one, for the length of an ``async with`` block."""
    if admin is None:
        yield
        return
    view = WorkersView(supervisor.states)
    with reraised() as body:
        async with trio.open_nursery() as nursery:
            await start_and_wait(nursery, COMPANION, admin.serve_view, view, about=repr(admin))
            with body:
                yield
            nursery.cancel_scope.cancel(reason="every worker has ended")


# -- Shared state as one of several processes needs it -------------------------------------------------


class StateOfSeveral:
    """The shared state of a server, refused when it is opened if the server needs more of it than it has.

    Args:
        server: A server that several processes serve.
        without_tasks: Called where the processes have no place in common for tasks, for a server that can do without;
            by default one whose tools make tasks is refused.
    """

    def __init__(self, server: Server, without_tasks: Callable[[], object] | None = None) -> None:
        self._inner: SharedState = server.shared
        self._without_tasks = without_tasks
        names = [each.tool.name for each in server.tools]
        self._with_tasks = [each for each in names if server.tools.task_rules(each) is not None]

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[OpenState]:
        """As `SharedState.open`.

        Args:
            name: The server's name.

        Raises:
            WrongUsage: Tools make tasks, which the other processes would not find.
        """
        async with self._inner.open(name) as state:
            if self._without_tasks is not None and not state.tasks.spans_processes:
                self._without_tasks()
            elif self._with_tasks and not state.tasks.spans_processes:
                raise WrongUsage(
                    f"the tool {self._with_tasks[0]} makes tasks, and several workers need one place for them: "
                    "add --shared with a store that all of them reach, as sqlite:///PATH, or serve with --workers 1"
                )
            yield state
