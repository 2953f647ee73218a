"""The messages between a server and a process that runs functions of its tools: ``isolate="process"``.

Both directions are lines of JSON, one message a line, as `mcp_actors.abc.framing.LineChannel` has them on the server's
side, and `Channel` in the process. The server trusts nothing of what comes: it is decoded into the messages below, and
never unpickled. A process imports this before anything else, so it knows no Trio, nor what else the engine has.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from typing import Any, Protocol

import msgspec

from mcp_actors.errors import RpcError

__all__ = [
    "CLOSE_TIME",
    "LONGEST_TEXT",
    "MOST_BYTES",
    "SCRIPT",
    "AnswerWaiter",
    "Channel",
    "Done",
    "FromProcess",
    "FunctionPlace",
    "LifespanPlace",
    "ModuleImport",
    "ProcessAnswer",
    "ProcessAsk",
    "ProcessAssignment",
    "ProcessCaller",
    "ProcessReady",
    "ProcessRun",
    "Raised",
    "ToProcess",
    "raised_of",
]

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of one message between a server and a process: four of the longest that a client can send by default."""
SCRIPT = "__mcp_main__"
"""The name under which the script of the server is imported, so that its part for ``__main__`` does not run."""
CLOSE_TIME = 2.0
"""Seconds that a process has to close what it has opened, once there is nothing left for it to do."""
LONGEST_TEXT = 10_000
"""Characters of an exception's text that cross."""
# Bytes that a process reads at once.
_READ = 64 * 1024


# -- The messages, from the server ---


class LifespanPlace(msgspec.Struct, array_like=True, frozen=True):
    """A lifespan, by the place where it is found, as a function."""

    module: str
    file: str | None
    packages: tuple[tuple[str, tuple[str, ...]], ...]
    name: str


class FunctionPlace(msgspec.Struct, array_like=True, frozen=True, tag="function"):
    """A function, by the place where it is found, and how it is to be called. It is sent before its first call."""

    id: str
    """A digest of the rest."""
    module: str
    file: str | None
    """The file of a module that no finder would find by its name, such as a script."""
    packages: tuple[tuple[str, tuple[str, ...]], ...]
    """The packages round the module that have no file, with their folders."""
    name: str
    """The qualified name in the module."""
    takes_dict: bool
    loop: str | None
    output_schema: Any
    declares_output: bool
    memory: int | None
    cpu: float | None
    lifespan: LifespanPlace | None


class ProcessAssignment(msgspec.Struct, array_like=True, frozen=True, tag="assignment"):
    """The first message: what the process is to have, and which functions it will be asked for."""

    path: list[str]
    """``sys.path`` of the server."""
    arguments: list[str]
    """``sys.argv`` of the server."""
    parent: int
    functions: list[FunctionPlace]
    log: tuple[str, str] | None
    """How an operator wants the log, as `mcp_actors.supervision.logging.given_log` has it."""


class ProcessCaller(msgspec.Struct, array_like=True, frozen=True):
    """The part of a call that its function is shown."""

    id: int | str
    method: str
    meta: dict[str, Any]
    version: str
    session: str
    log_level: str | None
    reports: bool
    """Whether the client wants reports of progress."""
    seconds: float | None
    """Seconds until the caller gives up."""
    capabilities: Any
    info: Any
    principal: dict[str, Any] | None
    log_members: dict[str, Any]
    """What lines of the log say of the call, and of the process of the server."""
    carried: list[tuple[str, Any]]
    """As `mcp_actors.abc.telemetry.Observation.carried`."""


class ProcessRun(msgspec.Struct, array_like=True, frozen=True, tag="run"):
    """A call of a function."""

    function: str
    arguments: dict[str, Any]
    caller: ProcessCaller
    number: int
    """The number of the call in its process."""


class Raised(msgspec.Struct, array_like=True, frozen=True):
    """An exception of the engine that crosses from one process to the other."""

    kind: str
    """The class, of `mcp_actors.errors`."""
    text: str
    code: int | None = None
    data: Any = None


class ProcessAnswer(msgspec.Struct, array_like=True, frozen=True, tag="answer"):
    """The answer to an `ProcessAsk`."""

    number: int
    value: Any
    raised: Raised | None = None


# -- The messages, to the server ---


class ModuleImport(msgspec.Struct, array_like=True, frozen=True, tag="import"):
    """A module is about to be imported ahead of the calls, or a lifespan to be opened that its functions name; or the
    module has not been imported, for a ``failure``."""

    module: str
    failure: str | None = None


class ProcessReady(msgspec.Struct, array_like=True, frozen=True, tag="ready"):
    """The modules are imported, those that can be."""


class ProcessAsk(msgspec.Struct, array_like=True, frozen=True, tag="ask"):
    """A method of the context is to be called, in the server."""

    number: int
    method: str
    arguments: Any


class Done(msgspec.Struct, array_like=True, frozen=True, tag="done"):
    """The end of a call.

    ``kind`` is ``"value"`` (a text, and structured content or nothing), ``"result"`` (a `CallToolResult`), ``"tool"``
    (a `ToolError`), ``"rpc"`` (an `RpcError`), ``"invalid"`` (what cannot be sent), ``"raised"`` (any other exception),
    ``"memory"``, ``"exit"``, or ``"start"`` (its module cannot be imported).
    """

    kind: str
    value: Any = None
    retires: bool = False
    """Whether the process is to be replaced: the call has left something behind."""
    number: int = 0
    """The number of the call that has ended."""


ToProcess = ProcessAssignment | FunctionPlace | ProcessRun | ProcessAnswer
FromProcess = ModuleImport | ProcessReady | ProcessAsk | Done


def raised_of(error: Exception) -> Raised:
    """Returns what the other process needs to raise ``error`` there."""
    if isinstance(error, RpcError):
        return Raised("RpcError", error.message, error.code, error.data)
    return Raised(type(error).__name__, str(error)[:LONGEST_TEXT])


# -- The pipe, in the process ---


class AnswerWaiter(Protocol):
    """Waits for an answer where the function runs."""

    def put(self, answer: ProcessAnswer) -> None:
        """Is called by the thread that reads."""


class Channel:
    """The pipe to the server. Threads may use it at the same time.

    Args:
        source: The descriptor to read from.
        sink: The descriptor to write to.
    """

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._partial = bytearray()
        self._lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.waiters: dict[int, AnswerWaiter] = {}
        """Who waits for the answer with a number."""
        self.calls: queue.SimpleQueue[ProcessRun | FunctionPlace | None] = queue.SimpleQueue()
        """What the server sends, and ``None`` when it sends nothing more."""
        self.is_idle = False
        """Whether nothing is lost if the process ends."""
        self._decoder = msgspec.json.Decoder(ToProcess)

    def send(self, message: Any) -> None:
        """Writes a message; if the server is gone, this process ends."""
        line = msgspec.json.encode(message) + b"\n"
        view = memoryview(line)
        with self._lock:
            while view:
                try:
                    view = view[os.write(self._sink, view) :]
                except OSError:
                    os._exit(0)

    def first(self) -> ProcessAssignment:
        """Reads the first message."""
        while b"\n" not in self._partial:
            self._read()
        line, _, rest = bytes(self._partial).partition(b"\n")
        self._partial = bytearray(rest)
        return msgspec.json.decode(line, type=ProcessAssignment)

    def read_all(self) -> None:
        """Reads until the server is gone, and then has the process end; runs in a thread of its own."""
        while True:
            *lines, rest = bytes(self._partial).split(b"\n")
            self._partial = bytearray(rest)
            for each in lines:
                self._take(self._decoder.decode(each))
            self._read()
            while b"\n" not in self._partial[-_READ:]:
                self._read()

    def _take(self, message: Any) -> None:
        if isinstance(message, ProcessAnswer):
            waiter = self.waiters.get(message.number)
            if waiter is not None:
                waiter.put(message)
        else:
            self.calls.put(message)

    def _read(self) -> None:
        try:
            data = os.read(self._source, _READ)
        except OSError:
            # The function has closed the pipe, or has another file in its place.
            os.abort()
        if not data:
            if self.is_idle:
                self.calls.put(None)
                time.sleep(CLOSE_TIME)
            # Whatever runs here, nobody waits for it any more.
            os._exit(0)
        self._partial += data
