"""The context of a function that runs in a process of its own: the server does what it asks.

It is loaded with the first function that needs it, because it brings Trio and much of the engine with it.
"""

from __future__ import annotations

import importlib
import inspect
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import outcome
import trio

from mcp_actors import errors
from mcp_actors import types as t
from mcp_actors._eras.era import Era, Peer
from mcp_actors._eras.server_negotiation import era_of, newest_era
from mcp_actors._server.context import SyncContext
from mcp_actors._server.isolated_messages import (
    AnswerWaiter,
    Channel,
    ProcessAnswer,
    ProcessAsk,
    ProcessCaller,
    Raised,
)
from mcp_actors._server.once import Effect, failure, is_awaitable
from mcp_actors._server.peer_session import is_wanted
from mcp_actors.abc.telemetry import Observation, ObservedRequest, current_call, guarded, log_members
from mcp_actors.errors import CallCancelled, LocalProtocolError, RpcError
from mcp_actors.supervision import logging
from mcp_actors.supervision.principal import Principal

__all__ = [
    "IsolatedContext",
    "Lifespan",
    "context_of",
    "is_async_block",
    "log_lifespan",
    "observe",
    "result_members",
]

T = TypeVar("T")


# -- The context ---


class _ProcessWaiter(AnswerWaiter, Protocol):
    """Waits in one of the ways that functions have."""

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
    ``ctx.extensions``, ``ctx.user_state`` and ``ctx.inbox``.
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

    @property
    def inbox(self) -> Any:
        raise _elsewhere(
            "ctx.inbox", "leave isolate= out of a tool that takes messages, or ask the client a question"
        )

    def close_stream(self) -> None:
        self._wait(self._close_stream)

    async def _close_stream(self) -> None:
        await _asked(self._channel, "close_stream", None)

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
            await _asked(self._channel, "progress", [progress, total, message])

    async def _remote_notify(self, method: str, params: dict[str, Any]) -> None:
        await _asked(self._channel, "notify", [method, params])

    async def _remote_log(self, level: t.LoggingLevel, data: Any, logger: str | None = None) -> None:
        if is_wanted(level, self.log_level):
            await _asked(self._channel, "log", [level, data, logger])

    async def _remote_ask(
        self, questions: Mapping[str, t.InputRequest], *, ttl: float | None = None
    ) -> dict[str, Any]:
        era = newest_era()
        asked = {key: [type(each).__name__, era.unstructure(each)] for key, each in questions.items()}
        answers = await _asked(self._channel, "ask", [asked, ttl])
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
        effect.outcome = await _asked(self._channel, "once", [name, effect.function])
        if effect.is_over:
            return effect.recall()
        try:
            value = function(*arguments)
            if is_awaitable(value):
                value = await value if _is_in_loop() else trio.run(_awaited, value)
        except Exception as error:
            await effect.raised(error, retry_errors)
            raise
        return await effect.returned(value)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


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
            await _asked(self._channel, "once_over", [self.name, None])
        elif isinstance(error, Exception):
            await self._keep(failure(error))

    async def _keep(self, outcome: list[Any], size: int | None = None) -> None:
        await _asked(self._channel, "once_over", [self.name, outcome])


# -- What the server is asked for ---


async def _asked(channel: Channel, method: str, arguments: Any) -> Any:
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
    number = next(channel.numbers)
    channel.waiters[number] = waiter
    try:
        channel.send(ProcessAsk(number, method, arguments))
        answer = await waiter.get()
    finally:
        del channel.waiters[number]
    if answer.raised is not None:
        raise _error_of(answer.raised)
    return answer.value


def _error_of(raised: Raised) -> Exception:
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


def result_members(answer: t.CallToolResult) -> Any:
    """Returns a result as it crosses."""
    return newest_era().unstructure(answer)


# -- Lines of the log, and spans ---

logging.members_of_call = log_members


class _CarriedObservation(Observation):
    """The observer of a call, which is in the server: what it says in lines of the log."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members

    def log_members(self) -> Mapping[str, Any]:
        return self._members


def observe(caller: ProcessCaller) -> None:
    """Has what the function logs and traces belong to its call; nothing of that ends the call."""
    request = ObservedRequest(
        caller.method, None, False, caller.id, caller.meta, caller.version, caller.session, ""
    )
    current_call.set((request, _CarriedObservation(caller.log_members)))
    for place, argument in caller.carried:
        guarded(_carry_on, place, argument)


def _carry_on(place: str, argument: Any) -> None:
    module, _, name = place.partition(":")
    getattr(importlib.import_module(module), name)(argument)


# -- Lifespans ---


def is_async_block(make: Callable[[], Any]) -> bool:
    """Whether what makes a lifespan makes an asynchronous context manager."""
    return inspect.isasyncgenfunction(inspect.unwrap(make))


class Lifespan:
    """A lifespan that is open: its value, and how ``async`` functions of tools run that name it.

    A plain one is opened in the thread that runs plain functions. One that is ``async`` has a loop in a thread of its
    own, in which the ``async`` functions run, too: what it has opened belongs to that loop.

    Args:
        make: Makes the context manager.
        loop: ``"asyncio"``, or ``None`` for Trio.

    Raises:
        Exception: What opening it raises.
    """

    def __init__(self, make: Callable[[], Any], loop: str | None) -> None:
        self._make = make
        self._stack = ExitStack()
        self._opened: queue.SimpleQueue[outcome.Outcome[Any]] = queue.SimpleQueue()
        self._is_open = False
        self._leave: Callable[[], object] = bool
        self.run: Callable[[Callable[[], Any]], Any] | None = None
        """Runs an ``async`` function; ``None`` for one that is plain, beside which each call has a loop of its own."""
        self.value: Any = None
        if not is_async_block(make):
            self.value = self._stack.enter_context(make())
            return
        hold = self._hold_in_trio if loop is None else self._hold_in_asyncio
        self._thread = threading.Thread(
            target=importlib.import_module(loop or "trio").run,
            args=(hold,) if loop is None else (hold(),),
            name="mcp-actors lifespan",
            daemon=True,
        )
        self._thread.start()
        self.value = self._opened.get().unwrap()

    async def _hold_in_trio(self) -> None:
        left, token = trio.Event(), trio.lowlevel.current_trio_token()
        self.run = lambda call: trio.from_thread.run(outcome.acapture, call, trio_token=token).unwrap()
        self._leave = partial(trio.from_thread.run_sync, left.set, trio_token=token)
        await self._hold(left)

    async def _hold_in_asyncio(self) -> None:
        asyncio = importlib.import_module("asyncio")
        left, loop = asyncio.Event(), asyncio.get_running_loop()
        submit = asyncio.run_coroutine_threadsafe
        self.run = lambda call: submit(outcome.acapture(call), loop).result().unwrap()
        self._leave = partial(loop.call_soon_threadsafe, left.set)
        await self._hold(left)

    async def _hold(self, left: Any) -> None:
        found = await outcome.acapture(self._held, left)
        if not self._is_open:
            self._opened.put(found)
            return
        if isinstance(found, outcome.Error):
            log_lifespan(found.error)
        if not left.is_set():
            # What it has opened is gone: another process opens it again.
            logging.flush_to_stderr()
            os._exit(1)

    async def _held(self, left: Any) -> None:
        async with self._make() as value:
            self._is_open = True
            self._opened.put(outcome.Value(value))
            await left.wait()

    def close(self) -> None:
        """Leaves it, and waits for that."""
        self._stack.close()
        if self.run is not None:
            self._leave()
            self._thread.join()


def log_lifespan(error: BaseException) -> None:
    """Logs what a lifespan has raised."""
    logging.log.error("a lifespan of isolated functions has failed", exc_info=error)
