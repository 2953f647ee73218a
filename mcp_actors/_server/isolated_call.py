"""A process that runs a function of a tool, seen from the server: its life, and one call in it."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import ValueResult
from mcp_actors._eras.server_negotiation import newest_era
from mcp_actors._server.context import Context
from mcp_actors._server.failures import ProcessEnded, RaisedElsewhere
from mcp_actors._server.isolated_messages import (
    CLOSE_TIME,
    MOST_BYTES,
    Done,
    FromProcess,
    FunctionPlace,
    ModuleImport,
    ProcessAnswer,
    ProcessAsk,
    ProcessAssignment,
    ProcessCaller,
    ProcessReady,
    ProcessRun,
    raised_of,
)
from mcp_actors._server.process_start import StartedProcess
from mcp_actors.abc import Frame
from mcp_actors.abc.framing import LineChannel
from mcp_actors.abc.telemetry import carried, log_members
from mcp_actors.errors import CallCancelled, LocalProtocolError, RpcError, ToolError
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import given_log, members_of_process
from mcp_actors.supervision.task_kinds import ISOLATED_REQUEST

__all__ = ["Imports", "IsolatedFunction", "IsolatedProcess", "NotBegun", "frame_of"]

MOST_THREADS = 256
"""Threads of a process, above which the call is ended that runs in it. Only Linux says how many there are."""
MOST_FUNCTIONS = 1000
"""Functions, or forms of one, that a process is told of after its start; it keeps them, and is replaced before more."""
# Seconds between two looks at the threads.
_LOOK = 0.25
# What a function may have asked for at once that is not answered: in number, and in bytes.
_MOST_ASKS = 4_000
# Seconds in which a function leaves by itself that has asked the client, when the question has ended its call.
_LEAVE_TIME = 1.0
# Seconds that a process may take to import its modules.
_START_TIME = 60.0

_decoder = msgspec.json.Decoder(FromProcess)
# What the decoder raises: for other shapes, for bytes that are no text, and for what is nested too deep.
_NO_MESSAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class IsolatedFunction(NamedTuple):
    """A function that runs in processes."""

    tool: str
    place: FunctionPlace
    frame: Frame
    """The place as a message."""
    version: int
    """A number that is greater than that of a function which was registered before its module's file changed. A process
    that has imported the module before that is not used for it."""


def frame_of(message: Any) -> Frame:
    """Returns a message as it is sent."""
    return Frame(msgspec.json.encode(message))


# -- What a function may have done in the server ---


async def _progress(ctx: Context, arguments: Any, call: _Call) -> None:
    await ctx.progress(*arguments)


async def _notify(ctx: Context, arguments: Any, call: _Call) -> None:
    await ctx.notify(*arguments)


async def _log(ctx: Context, arguments: Any, call: _Call) -> None:
    await ctx.log(*arguments)


async def _close_stream(ctx: Context, arguments: Any, call: _Call) -> None:
    ctx.close_stream()
    await trio.lowlevel.checkpoint()


# What a function may ask its client, by the names of the classes.
_QUESTIONS = {
    each.__name__: each
    for each in (t.ElicitFormParams, t.ElicitUrlParams, t.CreateMessageParams, t.ListRootsParams)
}


async def _ask(ctx: Context, arguments: Any, call: _Call) -> Any:
    asked, ttl = arguments
    era = newest_era()
    questions = {key: era.structure(value, _QUESTIONS[kind]) for key, (kind, value) in asked.items()}
    call.questions += 1
    try:
        answers = await ctx.ask(questions, ttl=ttl)
    except Exception:
        # When it is cancelled, the call is over with the question open.
        call.questions -= 1
        raise
    call.questions -= 1
    return {key: [_kind_of(each), era.unstructure(each)] for key, each in answers.items()}


def _kind_of(answer: Any) -> str:
    kinds = (t.ElicitResult, t.CreateMessageResult, t.ListRootsResult)
    return next(each.__name__ for each in kinds if isinstance(answer, each))


async def _once(ctx: Context, arguments: Any, call: _Call) -> Any:
    name, function = arguments
    effect = await ctx._effect(name, _stand_in(function))
    if effect.is_over:
        return effect.outcome
    call.effects[name] = effect
    return None


def _stand_in(name: str) -> Callable[[], Any]:
    """A function with the name of one in the process, whose results come as JSON."""

    def stand_in() -> Any:
        return None

    stand_in.__module__, _, stand_in.__qualname__ = name.partition(".")
    return stand_in


async def _once_over(ctx: Context, arguments: Any, call: _Call) -> None:
    name, outcome = arguments
    await call.effects.pop(name).over(outcome)


_METHODS: dict[str, Callable[[Context, Any, _Call], Awaitable[Any]]] = {
    "progress": _progress,
    "notify": _notify,
    "log": _log,
    "close_stream": _close_stream,
    "ask": _ask,
    "once": _once,
    "once_over": _once_over,
}
"""What a function may have done in the server. Nothing else is."""

# -- A call, and a process ---


class _Call:
    """One call, while its function runs in a process."""

    __slots__ = (
        "asks",
        "began",
        "bytes",
        "done",
        "effects",
        "ended",
        "is_begun",
        "number",
        "open",
        "questions",
        "unanswered",
        "woken",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = trio.current_time()
        self.woken = trio.Event()
        self.asks: list[tuple[ProcessAsk, int]] = []
        """Those that are not begun, with their bytes."""
        self.open: set[int] = set()
        """The numbers of those that are not answered."""
        self.unanswered = 0
        """How many are not answered, several with one number included."""
        self.bytes = 0
        """The bytes of those that are not answered."""
        self.done: Done | None = None
        self.ended: ProcessEnded | None = None
        self.is_begun = True
        """Whether the process has begun it, as far as that is known."""
        self.effects: dict[str, Any] = {}
        self.questions = 0
        """Questions to the client that are open."""

    @property
    def is_over(self) -> bool:
        return self.done is not None or self.ended is not None


class Imports(msgspec.Struct):
    """The imports of a process, ahead of the calls."""

    module: str | None = None
    """The last one that it has begun."""
    failed: dict[str, str] = {}
    """The modules that cannot be imported, with the reasons."""
    ended: str | None = None
    """Why the process is of no use."""


class NotBegun(Exception):
    """The process has ended before it has begun the call, which may be made in another one. The cause says how."""


class IsolatedProcess:
    """A process that runs functions, from its start to its end."""

    def __init__(self, started: StartedProcess, on_free: Callable[[IsolatedProcess], object]) -> None:
        self._started = started
        self._on_free = on_free
        self._channel = LineChannel(
            started.source, started.sink, max_message_bytes=MOST_BYTES, peer=f"process {started.pid}"
        )
        self._sending = trio.Lock()
        self._versions: dict[str, tuple[str | None, int]] = {}
        # The functions that it knows, and whether it was told of them after its start.
        self._known: dict[str, bool] = {}
        self._call: _Call | None = None
        self._function: IsolatedFunction | None = None
        self._reason: tuple[str, str] | None = None
        self._patience = trio.CancelScope()
        self.calls = 0
        """The calls that it has had."""
        self._is_sending = False
        self.is_retired = False
        """Whether it takes no call any more."""
        self.was_used = False
        """Whether it has had a call, or was ended by the server."""

    def __repr__(self) -> str:
        state = "idle" if self.tool is None else f"runs {self.tool}"
        return f"<IsolatedProcess {self._started.pid} {state}>"

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def tool(self) -> str | None:
        """The tool whose function it runs."""
        return None if self._function is None else self._function.tool

    @property
    def began(self) -> float | None:
        """The moment at which its call began."""
        return None if self._call is None else self._call.began

    @property
    def ended(self) -> str:
        """The reason of its end, in one word, once it has ended."""
        return "crash" if self._reason is None else self._reason[0]

    # -- in its own task -------------------------------------------------------------------------------------------

    async def begin(self, functions: Sequence[IsolatedFunction]) -> Imports:
        """Has it import the modules of functions, and returns what has come of it."""
        self._known = dict.fromkeys((each.place.id for each in functions), False)
        for each in sorted(functions, key=lambda each: each.version):
            self._versions[each.place.module] = each.place.file, each.version
        places = [each.place for each in functions]
        assignment = ProcessAssignment([*sys.path], [*sys.argv], os.getpid(), places, given_log())
        imports = Imports()
        try:
            with trio.fail_after(_START_TIME):
                await self._channel.send(frame_of(assignment))
                while True:
                    message = _decoder.decode((await self._channel.receive()).data)
                    if isinstance(message, ProcessReady):
                        return imports
                    if not isinstance(message, ModuleImport) or message.module not in self._versions:
                        imports.ended = "it wrote what nobody has asked for"
                        return imports
                    imports.module = message.module
                    if message.failure is not None:
                        imports.failed[message.module] = message.failure
        except (trio.EndOfChannel, trio.BrokenResourceError):
            imports.ended = "it has ended"
        except _NO_MESSAGE:
            imports.ended = "it wrote what is no message"
        except trio.TooSlowError:
            imports.ended = f"it takes more than {_START_TIME:g} s"
        return imports

    async def read(self) -> None:
        """Reads what it sends, until it ends, breaks a rule, or does not leave a call that is over."""
        try:
            with self._patience:
                while not self.is_retired:
                    for each in await self._channel.receive_many():
                        self._received(_decoder.decode(each.data), len(each.data))
                        if self.is_retired:
                            return
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return
        except (trio.BrokenResourceError, *_NO_MESSAGE) as error:
            self._reason = "crash", f"its process wrote what is no message: {error.__cause__ or error}"

    def _received(self, message: Any, size: int) -> None:
        call = self._call
        if isinstance(message, Done):
            if self._function is None or message.number != self.calls:
                self.kill(("crash", "its process wrote a result that no call waits for"))
                return
            if message.retires:
                self.is_retired = True
                self._reason = (
                    message.kind if message.kind in ("exit", "memory") else "threads",
                    "it is replaced",
                )
            if call is None:
                self._free()
            else:
                call.done = message
        elif isinstance(message, ProcessAsk):
            if call is None:
                self._refuse(message.number)
            else:
                call.asks.append((message, size))
                call.open.add(message.number)
                call.unanswered += 1
                call.bytes += size
                if call.unanswered > _MOST_ASKS or call.bytes > MOST_BYTES:
                    self.kill(("crash", "its process asked for more at once than the server keeps"))
        if call is not None:
            call.woken.set()

    def kill(self, reason: tuple[str, str]) -> None:
        """Ends it, with everything that it has started."""
        self._started.kill()
        self.retire(reason)

    def retire(self, reason: tuple[str, str] | None = None) -> None:
        """Has its own task end it, and says why, unless its exit code does."""
        self.is_retired = self.was_used = True
        self._reason = self._reason or reason
        # Its pipe does not end with it when it has forked a process that has left its group.
        self._patience.cancel(reason="the process was ended")

    async def end(self, *, in_order: bool) -> None:
        """Ends it, and waits until it is gone, `_REAP_TIME` seconds at most. Not cancellable.

        Args:
            in_order: Whether it has `CLOSE_TIME` seconds before, if it runs no function, to close what it has opened.
        """
        self.is_retired = True
        with trio.CancelScope(shield=True):
            if in_order and self._function is None:
                with trio.move_on_after(CLOSE_TIME):
                    await self._started.leave()
            code = await self._started.end()
            await self._channel.aclose()
        call, function = self._call, self._function
        if self._reason is None and function is not None and call is None:
            self._reason = "cancelled", "its function did not leave a call that was over"
        kind, text = self._reason = self._reason or _reason_of(code)
        if call is not None and function is not None and not call.is_over:
            call.is_begun = self._started.last_begun >= call.number
            call.ended = ProcessEnded(kind, f"{function.tool}: {text}")
            call.woken.set()

    # -- in the task of a call -------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; its own task may not know it yet."""
        return self.is_retired or self._started.has_ended()

    def takes(self, function: IsolatedFunction) -> bool:
        """Whether it knows a function or has room for it, and has its module no older than that, or not yet at all."""
        place = function.place
        if place.id not in self._known and sum(self._known.values()) >= MOST_FUNCTIONS:
            return False
        file, version = self._versions.setdefault(place.module, (place.file, function.version))
        return file == place.file and version >= function.version

    async def run(self, ctx: Context, function: IsolatedFunction, arguments: dict[str, Any]) -> Any:
        """Runs a function, and returns its answer; cancelled, it ends the process.

        Raises:
            ProcessEnded: The process ended before the function.
            NotBegun: It ended before it has begun the call.
            RaisedElsewhere: The function raised an exception.
            ToolError, RpcError, InvalidResult: As they say.
        """
        self.calls += 1
        call = self._call = _Call(self.calls)
        self._function = function
        self.was_used = True
        try:
            run = frame_of(ProcessRun(function.place.id, arguments, _caller_of(ctx), call.number))
            if function.place.id not in self._known:
                self._known[function.place.id] = True
                await self._send(function.frame)
            await self._send(run)
            await self._until_over(ctx, call)
        except trio.BrokenResourceError:
            # It ended before the call was sent: its own task says how.
            self._end_reading()
            while not call.is_over:
                await call.woken.wait()
                call.woken = trio.Event()
        finally:
            for each in call.effects.values():
                each.lost()
            self._leave(call)
        if call.done is None:
            assert call.ended is not None
            if call.is_begun:
                raise call.ended
            raise NotBegun from call.ended
        return _answer_of(call.done, function)

    async def _until_over(self, ctx: Context, call: _Call) -> None:
        await self._wait(call)
        if call.is_over:
            return
        async with trio.open_nursery() as nursery:
            while not call.is_over:
                asks, call.asks = call.asks, []
                for each, size in asks:
                    start(nursery, ISOLATED_REQUEST, self._answer, ctx, call, each, size)
                await self._wait(call)
            nursery.cancel_scope.cancel(reason="the function has ended")

    async def _wait(self, call: _Call) -> None:
        while not call.woken.is_set():
            with trio.move_on_after(_LOOK):
                await call.woken.wait()
                break
            if self._started.has_ended():
                # A process that it has forked keeps its pipe open.
                self._end_reading()
            elif self._started.threads() > MOST_THREADS:
                self.kill(
                    ("threads", f"its process was ended, because it had more than {MOST_THREADS} threads")
                )
        call.woken = trio.Event()

    def _end_reading(self) -> None:
        """Has its own task end it soon: what it has written before its end is in the pipe."""
        self._patience.deadline = min(self._patience.deadline, trio.current_time() + _LOOK)

    async def _answer(self, ctx: Context, call: _Call, ask: ProcessAsk, size: int) -> None:
        method = _METHODS.get(ask.method)
        try:
            if method is None:
                raise LocalProtocolError(f"a process has no method {ask.method!r:.40}")
            answer = ProcessAnswer(ask.number, await method(ctx, ask.arguments, call))
        except Exception as error:
            answer = ProcessAnswer(ask.number, None, raised_of(error))
        try:
            await self._send(frame_of(answer))
        except trio.BrokenResourceError:
            return  # the function has gone with its process
        call.open.discard(ask.number)
        call.unanswered -= 1
        call.bytes -= size

    async def _send(self, frame: Frame) -> None:
        if not self._channel.write_now(frame):
            async with self._sending:
                self._is_sending = True
                await self._channel.send(frame)
                self._is_sending = False

    def _leave(self, call: _Call) -> None:
        """The call is over, or given up."""
        if call.is_over:
            self._free()
        elif call.questions and not call.effects:
            # The function waits for an answer, and learns that none will come.
            self._call = None
            self._patience.deadline = trio.current_time() + _LEAVE_TIME
            for each in call.open:
                self._refuse(each)
        else:
            self._call = None
            self.kill(("cancelled", "its call was cancelled"))

    def _refuse(self, number: int) -> None:
        error = CallCancelled("the call has ended: nobody waits for its result any more")
        with suppress(trio.BrokenResourceError):
            self._channel.write_now(frame_of(ProcessAnswer(number, None, raised_of(error))))

    def _free(self) -> None:
        self._call = self._function = None
        self._patience.deadline = math.inf
        if self.is_retired or self._is_sending:
            # An answer that was cut off has left a part of itself in the pipe.
            self.kill(("cancelled", "an answer to its function was cut off"))
        self._on_free(self)


def _caller_of(ctx: Context) -> ProcessCaller:
    call = ctx.call
    invocation = call.invocation
    peer, principal = invocation.peer, invocation.principal
    deadline = invocation.deadline
    return ProcessCaller(
        call.id,
        invocation.method.name,
        invocation.meta,
        invocation.era.version,
        call.owner.name,
        ctx.log_level,
        invocation.progress_token is not None or call.reports is not None or call.client_link is not None,
        None if deadline is None else deadline - trio.current_time(),
        peer.raw_capabilities,
        peer.raw_info,
        None
        if principal is None
        else {
            "subject": principal.subject,
            "issuer": principal.issuer,
            "client": principal.client,
            "scopes": [*principal.scopes],
            "claims": principal.claims,
            "expires_at": principal.expires_at,
        },
        _log_members(),
        [*carried()],
    )


def _log_members() -> dict[str, Any]:
    found = {**members_of_process(), **log_members()}
    return {name: value if isinstance(value, str | int) else repr(value) for name, value in found.items()}


def _answer_of(done: Done, function: IsolatedFunction) -> ValueResult | t.CallToolResult:
    value = done.value
    match done.kind:
        case "value":
            return ValueResult(*value)
        case "result":
            answer: t.CallToolResult = newest_era().structure(value, t.CallToolResult)
            return answer
        case "tool":
            raise ToolError(value)
        case "rpc":
            raise RpcError.from_wire(*value)
        case "invalid":
            raise InvalidResult(value)
        case "memory":
            most = function.place.memory
            bound = "there is" if most is None else f"{most} bytes, the most that a call of it may take"
            raise ProcessEnded(
                "memory", f"{function.tool}: stopped, because it wanted more memory than {bound}"
            )
        case "start":
            raise ProcessEnded("start", f"{function.tool}: its module cannot be imported in a process", value)
        case "exit":
            raise ProcessEnded(
                "exit", f"{function.tool}: its function has ended its process with exit code {value}"
            )
        case _:
            raise RaisedElsewhere(*value)


def _reason_of(code: int | None) -> tuple[str, str]:
    """Returns the reason of an exit code, in one word, and as a clause."""
    if code is None:
        return "crash", "its process has closed its pipe to the server"
    if code >= 0:
        # Windows has a status of this size for a crash.
        kind = "exit" if code < _CRASHED else "crash"
        return kind, f"its function has ended its process with exit code {code}"
    name = signal.Signals(-code).name if -code in [*signal.Signals] else f"signal {-code}"
    if name == "SIGPROF":
        return "cpu", "stopped, because it took more processor time than a call of it may take"
    if name == "SIGKILL":
        return "killed", "its process was killed from outside, as the system does when memory is short"
    return "crash", f"its process has crashed: {name}"


# Exit codes from here on are of a process that Windows has ended.
_CRASHED = 0x8000_0000
