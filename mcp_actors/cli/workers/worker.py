"""The worker's own side: it serves on sockets that it has inherited, reports to its supervisor, and listens to it.

A worker finds `Assignment` in its environment. One socket connects the two: the worker sends one message, `Ready` or
`Failed`; the supervisor sends `RETIRE`, or nothing. When the socket ends, the other process is gone.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
import trio

from mcp_actors import Server
from mcp_actors.abc import SharedState
from mcp_actors.errors import McpError
from mcp_actors.supervision.logging import log, note_process

__all__ = ["ASSIGNMENT", "RETIRE", "STATE_KEY", "Assignment", "Employment", "Failed", "Ready", "employment"]


ASSIGNMENT = "MCP_ACTORS_WORKER"
"""The environment variable that makes a process a worker; it holds an `Assignment` as JSON."""
STATE_KEY = "MCP_ACTORS_STATE_KEY"
"""The variable that has the key of all processes of a server, where a program gives none."""
RETIRE = b"r"
"""From the supervisor: another worker has taken the place of this one."""


class Assignment(msgspec.Struct, frozen=True):
    """The place of a worker among others. The worker takes it out of its environment: its children have none."""

    number: int
    """From 1 on; that of a replacement is the same."""
    of: int
    """How many workers there are."""
    control: int
    """The descriptor of the socket to the supervisor."""
    counts: int
    """The descriptor of the memory in which the workers note how many connections they have; -1 for none."""
    linger: float
    """Seconds in which it still answers on idle connections of HTTP, once it has to retire."""
    sockets: dict[str, list[list[int]]]
    """The descriptors of the listening sockets, as `mcp_transports.listening.inherit` takes them."""
    key: str
    """The key that all workers have in common where their environment has none, as hexadecimal digits."""
    view: int = -1
    """The descriptor of the socket over which the supervisor looks at the worker; -1 if it does not."""
    pages: int = -1
    """The descriptor of the socket over which the worker asks for the metrics of all workers; -1 if it does not."""
    shared: int = -1
    """The descriptor of the socket over which it shares sessions and events with the others; -1 if it does not."""

    def __repr__(self) -> str:
        return f"<Assignment {self.number} of {self.of}>"


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it accepts connections."""

    places: list[str]
    """The URLs, with the real ports."""
    offer: str
    """A line on what is served."""
    drain: float
    """Seconds that it takes to end, at most, once it is asked to."""
    delay: float = 0.0
    """Seconds of these for which it still accepts connections."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot serve."""

    reason: str
    exit_code: int


# Seconds more than draining takes at most, until a worker without a supervisor ends itself, whatever it hangs in.
_MARGIN = 5.0
# Seconds to drain before it is known how many the server allows itself.
_DRAIN = 6.0


def employment() -> Employment | None:
    """Returns the place of this process among the workers of a supervisor, ``None`` if it is not a worker.

    The processes that it starts itself do not learn of it.
    """
    text = os.environ.pop(ASSIGNMENT, None)
    return None if text is None else Employment(msgspec.json.decode(text, type=Assignment))


class Employment:
    """This process as a worker.

    When the socket ends, the supervisor is gone, and the worker ends as by SIGTERM, and soon in any case. A thread
    waits for that, so that it also happens while the event loop hangs or has not started yet.

    Args:
        assignment: What the supervisor has given to it.

    Raises:
        OSError: A descriptor that it was given is not open.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.of = assignment.of
        self.number = assignment.number
        self._linger = assignment.linger
        self._drain = _DRAIN
        self._delay = 0.0
        self._server: Server | None = None
        self._control = socket.socket(fileno=assignment.control)
        os.set_inheritable(assignment.control, False)
        self._has_key = bool(assignment.key) and not os.environ.get(STATE_KEY, "").strip()
        if self._has_key:
            os.environ[STATE_KEY] = assignment.key
        self._listening = importlib.import_module("mcp_transports.listening")
        self._listening.inherit(assignment.sockets)
        if assignment.counts >= 0:
            self._listening.inherit_counts(assignment.counts, assignment.number - 1, assignment.of)
        self._token: trio.lowlevel.TrioToken | None = None
        self._assignment = assignment
        self._pages: Any = None
        for descriptor in (assignment.view, assignment.pages, assignment.shared):
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)
        structlog.contextvars.bind_contextvars(worker=assignment.number)
        note_process(worker=assignment.number)
        threading.Thread(target=self._obey, name="mcp-actors supervisor", daemon=True).start()

    def pages(self, metrics: Any) -> Any:
        """Returns the metrics of all workers, for the page of one.

        Args:
            metrics: The `mcp_actors.telemetry.Metrics` of this worker.
        """
        if self._assignment.pages < 0:
            return metrics
        view = importlib.import_module("mcp_actors.cli.workers.view")
        self._pages = view.WorkerPages(self._assignment.pages, metrics)
        return self._pages

    def share(self, state: SharedState) -> SharedState:
        """Returns the shared state of a server with what its supervisor keeps for all workers."""
        if self._assignment.shared < 0:
            return state
        shared = importlib.import_module("mcp_actors.cli.workers.shared")
        made: SharedState = shared.WorkersShared(state, socket.socket(fileno=self._assignment.shared))
        return made

    def companions(self) -> list[Any]:
        """Returns the companions of the transports through which the supervisor looks at this worker, if it does."""
        if self._assignment.view < 0:
            return []
        view = importlib.import_module("mcp_actors.cli.workers.view")
        return [view.WorkerView(self._assignment.view, self._assignment.number, self._pages)]

    def status(self, server: Server, offer: str) -> trio.TaskStatus[Sequence[object]]:
        """Returns a task status for `Server.run` that tells the supervisor when the server accepts connections."""
        if self._has_key:
            # The server has the key now. Programs that tools start inherit the environment, and must not get the key.
            del os.environ[STATE_KEY]
        self._server, limits = server, server.limits
        self._delay = limits.drain_delay
        self._drain = limits.drain_delay + limits.drain_grace + limits.close_timeout
        return _ReadyStatus(lambda places: self._ready(places, offer))

    def failed(self, reason: str, exit_code: int) -> None:
        """Tells the supervisor why this worker cannot serve."""
        self._tell(Failed(reason, exit_code))

    def _ready(self, places: Sequence[object], offer: str) -> None:
        self._token = trio.lowlevel.current_trio_token()
        urls = [each if isinstance(each, str) else "" for each in places]
        self._tell(Ready(urls, offer, self._drain, self._delay))

    def _tell(self, message: Ready | Failed) -> None:
        try:
            self._control.sendall(msgspec.json.encode(message) + b"\n")
        except OSError as error:
            log.debug("the supervisor is gone", reason=error.strerror)

    def _obey(self) -> None:
        """Runs in a thread for as long as the process lives."""
        try:
            while self._control.recv(1) == RETIRE:
                self._retire()
        except OSError as error:
            log.debug("the supervisor is gone", reason=error.strerror)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._drain + _MARGIN)
        os._exit(1)

    def _retire(self) -> None:
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._listening.retire)
            except trio.RunFinishedError:
                return
            time.sleep(self._linger)
        if self._server is None:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        try:
            # Nothing comes any more that a delay could be for.
            self._server.stop(0.0)
        except McpError as error:
            log.error("a worker that was replaced does not obey, and is ended", reason=str(error))
            os.kill(os.getpid(), signal.SIGTERM)


class _ReadyStatus:
    """A `trio.TaskStatus` that calls a function with the places where a server serves."""

    def __init__(self, tell: Callable[[Sequence[object]], None]) -> None:
        self._tell = tell

    def started(self, places: Sequence[object] = ()) -> None:
        self._tell(places)
