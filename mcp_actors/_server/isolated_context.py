"""The context of a function that runs in a process of its own, and the pipe by which the server does what it asks."""

from __future__ import annotations

import itertools
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._eras.era import Era, Peer
from mcp_actors._eras.server_negotiation import era_of
from mcp_actors._server.context import SyncContext
from mcp_actors._server.invoke import is_async
from mcp_actors._server.isolated_messages import (
    CLOSE_TIME,
    LONGEST_TEXT,
    FunctionPlace,
    ProcessAnswer,
    ProcessAsk,
    ProcessAssignment,
    ProcessCaller,
    ProcessRun,
    ToProcess,
    error_of,
    newest_era,
)
from mcp_actors._server.once import Effect
from mcp_actors._server.peer_session import is_wanted
from mcp_actors.errors import CallCancelled, LocalProtocolError, RpcError, ToolError
from mcp_actors.supervision.principal import Principal

__all__ = ["Channel", "IsolatedContext", "context_of"]

# Bytes that are read at once.
_READ = 64 * 1024

T = TypeVar("T")


# -- The context ---


class _ProcessWaiter(Protocol):
    """Waits for an answer where the function runs."""

    def put(self, answer: ProcessAnswer) -> None:
        """Is called by the thread that reads."""

    async def get(self) -> ProcessAnswer: ...


class _ThreadWaiter:
    """Blocks the thread, and never yields."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[ProcessAnswer] = queue.SimpleQueue()
        self.put = self._answers.put

    async def get(self) -> ProcessAnswer:
        return self._answers.get()


class _ProcessTrioWaiter:
    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._is_there = trio.Event()
        self._answer: ProcessAnswer | None = None

    def put(self, answer: ProcessAnswer) -> None:
        self._answer = answer
        try:
            self._token.run_sync_soon(self._is_there.set)
        except trio.RunFinishedError:
            return  # nobody waits for it any more

    async def get(self) -> ProcessAnswer:
        await self._is_there.wait()
        assert self._answer is not None
        return self._answer


class _ProcessAsyncioWaiter:
    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._future = loop.create_future()

    def put(self, answer: ProcessAnswer) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set, answer)
        except RuntimeError:
            return  # the loop is closed: nobody waits for it any more

    def _set(self, answer: ProcessAnswer) -> None:
        if not self._future.done():
            self._future.set_result(answer)

    async def get(self) -> ProcessAnswer:
        answer: ProcessAnswer = await self._future
        return answer


def _asyncio_loop() -> Any:
    """The asyncio loop that runs here, ``None`` if there is none."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_in_loop() -> bool:
    return trio.lowlevel.in_trio_run() or _asyncio_loop() is not None


def _driven(coroutine: Any) -> Any:
    """Runs a coroutine that waits by blocking its thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise LocalProtocolError("this method of the context needs an event loop, which a plain function has not")


class _ProcessOwner(msgspec.Struct):
    name: str


class _IsolatedInvocation(msgspec.Struct):
    era: Era
    method: Any
    meta: dict[str, Any]
    peer: Peer
    principal: Principal | None


class _IsolatedCall(msgspec.Struct):
    """The part of a call that contexts read."""

    id: int | str
    invocation: _IsolatedInvocation
    owner: _ProcessOwner
    outlet: None = None


class _MethodName(msgspec.Struct):
    name: str


class IsolatedContext(SyncContext, kw_only=True):
    """The `Context` of a function in a process of its own.

    In a plain function its methods wait; in an ``async def`` they are awaited, in either loop. ``ctx.state`` is the
    value of the lifespan that the tool names, if it names one. What is in the server's process raises
    `LocalProtocolError` here: ``ctx.state`` without that, ``ctx.server``, ``ctx.session``, ``ctx.request``,
    ``ctx.extensions`` and ``ctx.user_state``.
    """

    _channel: Channel
    _caller: ProcessCaller
    _ends: float = math.inf
    _lifespan: tuple[Any] | None = None
    """The value of the lifespan that the tool names."""

    @property
    def deadline(self) -> float:
        """When the caller gives up, in the time of the loop that runs here; without one, of `time.monotonic`."""
        if self._ends == math.inf:
            return math.inf
        left = self._ends - time.monotonic()
        if trio.lowlevel.in_trio_run():
            return trio.current_time() + left
        loop = _asyncio_loop()
        now: float = time.monotonic() if loop is None else loop.time()
        return now + left

    @property
    def log_level(self) -> str | None:
        return self._caller.log_level

    @property
    def state(self) -> Any:
        if self._lifespan is not None:
            return self._lifespan[0]
        raise _elsewhere(
            "ctx.state", "open what it needs in the lifespan= of the tool, once for each process"
        )

    @property
    def server(self) -> Any:
        raise _elsewhere("ctx.server")

    @property
    def session(self) -> Any:
        raise _elsewhere("ctx.session")

    @property
    def request(self) -> Any:
        raise _elsewhere("ctx.request")

    @property
    def extensions(self) -> Mapping[str, Any]:
        raise _elsewhere("ctx.extensions")

    @property
    def user_state(self) -> Any:
        raise _elsewhere("ctx.user_state")

    def close_stream(self) -> None:
        self._wait(self._close_stream)

    async def _close_stream(self) -> None:
        await self._channel.ask("close_stream", None)

    def _wait(self, method: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        remote: Callable[..., Any] | None = getattr(self, f"_remote_{getattr(method, '__name__', '')}", None)
        coroutine: Any = (method if remote is None else remote)(*args, **options)
        if _is_in_loop():
            return coroutine  # type: ignore[no-any-return]
        value: T = _driven(coroutine)
        return value

    async def _remote_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        if self._caller.reports:
            await self._channel.ask("progress", [progress, total, message])

    async def _remote_notify(self, method: str, params: dict[str, Any]) -> None:
        await self._channel.ask("notify", [method, params])

    async def _remote_log(self, level: t.LoggingLevel, data: Any, logger: str | None = None) -> None:
        if is_wanted(level, self.log_level):
            await self._channel.ask("log", [level, data, logger])

    async def _remote_ask(
        self, questions: Mapping[str, t.InputRequest], *, ttl: float | None = None
    ) -> dict[str, Any]:
        era = newest_era()
        asked = {key: [type(each).__name__, era.unstructure(each)] for key, each in questions.items()}
        answers = await self._channel.ask("ask", [asked, ttl])
        return {key: era.structure(value, getattr(t, kind)) for key, (kind, value) in answers.items()}

    async def _ask_one(self, question: t.InputRequest, key: str | None, ttl: float | None = None) -> Any:
        if key is None:
            key = self._key_of(question)
        return (await self._remote_ask({key: question}, ttl=ttl))[key]

    def _once(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], retry_errors: bool
    ) -> Any:
        coroutine = self._once_here(name, function, arguments, retry_errors)
        return coroutine if _is_in_loop() else _driven(coroutine)

    async def _once_here(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], retry_errors: bool
    ) -> Any:
        effect = _RemoteEffect(self._channel, name, function)
        effect.outcome = await self._channel.ask("once", [name, effect.function])
        if effect.is_over:
            return effect.recall()
        try:
            if not is_async(function):
                value = function(*arguments)
            elif _is_in_loop():
                value = await function(*arguments)
            else:
                value = trio.run(partial(function, *arguments))
        except Exception as error:
            await effect.raised(error, retry_errors)
            raise
        return await effect.returned(value)


def _elsewhere(what: str, instead: str = "pass what it needs as an argument") -> LocalProtocolError:
    return LocalProtocolError(
        f"{what} is in the process of the server, and this function runs in another: {instead}"
    )


def context_of(
    caller: ProcessCaller, channel: Channel, lifespan: tuple[Any] | None = None
) -> IsolatedContext:
    """Returns the context of a call. ``lifespan`` has the value of the one that its tool names."""
    era = era_of(caller.version)
    peer = Peer(era, caller.capabilities, caller.info, caller.log_level)
    principal = None if caller.principal is None else _principal(caller.principal)
    invocation = _IsolatedInvocation(era, _MethodName(caller.method), caller.meta, peer, principal)
    call: Any = _IsolatedCall(caller.id, invocation, _ProcessOwner(caller.session))
    ends = math.inf if caller.seconds is None else time.monotonic() + caller.seconds
    nothing: Any = None
    return IsolatedContext(
        call, {}, nothing, {}, _channel=channel, _caller=caller, _ends=ends, _lifespan=lifespan
    )


def _principal(members: dict[str, Any]) -> Principal:
    return Principal(**{**members, "scopes": frozenset(members["scopes"])})


class _RemoteEffect(Effect):
    """An effect whose outcome the server keeps."""

    __slots__ = ("_channel",)

    def __init__(self, channel: Channel, name: str, function: Callable[..., Any]) -> None:
        super().__init__(None, None, None, name, function)  # type: ignore[arg-type]
        self._channel = channel

    async def raised(self, error: BaseException, retry_errors: bool) -> None:
        if isinstance(error, CallCancelled):
            await self._keep(["unknown"])
        elif retry_errors:
            await self._channel.ask("once_over", [self.name, None])
        elif isinstance(error, ToolError):
            await self._keep(["tool", str(error)[:LONGEST_TEXT]])
        elif isinstance(error, RpcError):
            await self._keep(["rpc", error.code, error.message, error.data])
        else:
            await self._keep(["error", f"{type(error).__qualname__}: {error}"[:LONGEST_TEXT]])

    async def _keep(self, outcome: list[Any]) -> None:
        await self._channel.ask("once_over", [self.name, outcome])


# -- The pipe ---


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
        self._numbers = itertools.count(1)
        self._waiters: dict[int, _ProcessWaiter] = {}
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

    async def ask(self, method: str, arguments: Any) -> Any:
        """Has the server call a method of the context, and returns what that returns.

        Raises:
            Exception: What it raises.
        """
        loop = None if trio.lowlevel.in_trio_run() else _asyncio_loop()
        waiter: _ProcessWaiter
        if trio.lowlevel.in_trio_run():
            waiter = _ProcessTrioWaiter()
        else:
            waiter = _ThreadWaiter() if loop is None else _ProcessAsyncioWaiter(loop)
        number = next(self._numbers)
        self._waiters[number] = waiter
        try:
            self.send(ProcessAsk(number, method, arguments))
            answer = await waiter.get()
        finally:
            del self._waiters[number]
        if answer.raised is not None:
            raise error_of(answer.raised)
        return answer.value

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
            waiter = self._waiters.get(message.number)
            if waiter is not None:
                waiter.put(message)
        else:
            self.calls.put(message)

    def _read(self) -> None:
        try:
            data = os.read(self._source, _READ)
        except OSError:
            data = b""
        if not data:
            if self.is_idle:
                self.calls.put(None)
                time.sleep(CLOSE_TIME)
            # Whatever runs here, nobody waits for it any more.
            os._exit(0)
        self._partial += data
