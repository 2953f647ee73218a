"""The messages between a server and a process that runs functions of its tools: ``isolate="process"``.

Both directions are lines of JSON, one message a line, as `mcp_actors.abc.framing.LineChannel` has them on the server's
side. The server trusts nothing of what comes: it is decoded into the messages below, and never unpickled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import trio

from mcp_actors import errors
from mcp_actors._eras.era import Era
from mcp_actors._eras.server_negotiation import VERSIONS, era_of
from mcp_actors.abc import Frame
from mcp_actors.errors import RpcError
from mcp_actors.supervision.logging import LogFormat, LogLevel

__all__ = [
    "CLOSE_TIME",
    "LONGEST_TEXT",
    "MOST_BYTES",
    "SCRIPT",
    "Done",
    "FromProcess",
    "FunctionPlace",
    "IsolatedFunction",
    "LifespanPlace",
    "ProcessAnswer",
    "ProcessAsk",
    "ProcessAssignment",
    "ProcessCaller",
    "ProcessReady",
    "ProcessRun",
    "Raised",
    "ToProcess",
    "error_of",
    "frame_of",
    "newest_era",
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


# -- The messages, from the server ---


class LifespanPlace(msgspec.Struct, array_like=True, frozen=True):
    """A lifespan, by the place where it is found, as a function."""

    module: str
    file: str | None
    packages: tuple[tuple[str, tuple[str, ...]], ...]
    name: str


class FunctionPlace(msgspec.Struct, array_like=True, frozen=True, tag="function"):
    """A function, by the place where it is found, and how it is to be called. It is sent before its first call."""

    id: int
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
    log: tuple[LogLevel, LogFormat] | None
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

    function: int
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


class ProcessReady(msgspec.Struct, array_like=True, frozen=True, tag="ready"):
    """The modules are imported; or not, for a ``failure``."""

    failure: str | None = None


class ProcessAsk(msgspec.Struct, array_like=True, frozen=True, tag="ask"):
    """A method of the context is to be called, in the server."""

    number: int
    method: str
    arguments: Any


class Done(msgspec.Struct, array_like=True, frozen=True, tag="done"):
    """The end of a call.

    ``kind`` is ``"value"`` (a text, and structured content or nothing), ``"result"`` (a `CallToolResult`), ``"tool"``
    (a `ToolError`), ``"rpc"`` (an `RpcError`), ``"invalid"`` (what cannot be sent), ``"raised"`` (any other exception),
    ``"memory"`` or ``"exit"``.
    """

    kind: str
    value: Any = None
    retires: bool = False
    """Whether the process is to be replaced: the call has left something behind."""
    number: int = 0
    """The number of the call that has ended."""


ToProcess = ProcessAssignment | FunctionPlace | ProcessRun | ProcessAnswer
FromProcess = ProcessReady | ProcessAsk | Done


def frame_of(message: Any) -> Frame:
    """Returns a message as it is sent."""
    return Frame(msgspec.json.encode(message))


def newest_era() -> Era:
    """The era whose vocabulary has everything, in which objects of the protocol cross."""
    return era_of(VERSIONS[-1])


def raised_of(error: Exception) -> Raised:
    """Returns what the other process needs to raise ``error`` there."""
    if isinstance(error, RpcError):
        return Raised("RpcError", error.message, error.code, error.data)
    return Raised(type(error).__name__, str(error)[:LONGEST_TEXT])


def error_of(raised: Raised) -> Exception:
    """Returns the exception that was raised in the other process, as far as it is one of the engine or of Python."""
    if raised.code is not None:
        return RpcError.from_wire(raised.code, raised.text, raised.data)
    kind = getattr(errors, raised.kind, None) or {"TypeError": TypeError, "ValueError": ValueError}.get(
        raised.kind
    )
    if raised.kind in ("BrokenResourceError", "ClosedResourceError"):
        kind = trio.BrokenResourceError
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return RuntimeError(f"{raised.kind}: {raised.text}")
    error = kind.__new__(kind)
    # Their own arguments are not known here, and the text says it.
    Exception.__init__(error, raised.text)
    return error


class IsolatedFunction(NamedTuple):
    """A function that runs in processes."""

    tool: str
    place: FunctionPlace
    frame: Frame
    """The place as a message."""
    stamp: tuple[int, int]
    """The time and size of its module's file when it was registered: a process with another file is not used for it."""
