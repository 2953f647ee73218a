"""Calls functions of the user: awaited, in a worker thread, or in place on the event loop.

- An ``async def`` is awaited. It never runs in place: once begun it could not be moved to a task of its own.
- A plain ``def`` runs in one of the `WorkerThreads` that all features of a server share, in a copy of the caller's
  context variables. Cancelling the call abandons the thread: the call ends at once, while the function runs on to its
  end, holding its thread, and its result is dropped.
- An ``async def`` declared with ``loop="asyncio"`` is awaited in an asyncio loop, which
  `mcp_actors._server.asyncio_context` does.
- A plain ``def`` declared ``inline`` runs on the event loop, in the session's own turn, without any task: right for
  what takes microseconds and never blocks.
"""

from __future__ import annotations

import inspect
import os
import queue
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
import outcome
import trio

from mcp_actors._eras.era import InvalidResult
from mcp_actors._server.content import read_files
from mcp_actors._wire.uri_template import LONGEST_URI
from mcp_actors.errors import LocalProtocolError, invalid_params
from mcp_actors.errors.protocol import see_page
from mcp_actors.supervision.blockages import blockage_log
from mcp_actors.types.records import Number, ValueRecord, frozen_record

__all__ = [
    "ISOLATED",
    "PROCESS_ENDS",
    "ForSync",
    "Function",
    "Handler",
    "Loop",
    "ProcessStatistics",
    "ServingLoop",
    "ThreadUse",
    "WorkerThreads",
    "asyncio_calls",
    "body_of",
    "called",
    "check_async",
    "current",
    "function",
    "in_loop",
    "is_async",
    "middleware_in_loop",
    "name_of",
    "on_loop",
    "string_param",
    "thread_use",
    "uri_param",
    "with_files_read",
]


# Loads the module that has `in_asyncio`, `method_in_asyncio` and `middleware_in_asyncio`, by the name of the loop. The
# module is loaded at its first use, since it imports asyncio, and entered from above, since it needs contexts.
LOOPS: dict[str, Callable[[], Any]] = {}

# Loads the module that runs functions in processes, in the same way and for the same reasons.
ISOLATED: dict[str, Callable[[], Any]] = {}


class IsolationOfProcess:
    """The processes for functions of all servers of this process."""

    def __init__(self) -> None:
        self.started = 0
        """Those that were started."""
        self.ended: Counter[str] = Counter()
        """Those of them that have ended, by the reason."""


isolation_of_process = IsolationOfProcess()


@frozen_record(eq=False, repr=False)
class ProcessStatistics(ValueRecord):
    """A snapshot of one of the processes of a server that run functions with ``isolate="process"``."""

    number: Number
    """Its number among those of the server, from 1 on; the process that replaces it has the same."""
    pid: Number | None
    """``None`` while there is no process."""
    state: str
    """``"starting"``, ``"idle"``, or ``"busy"``."""
    tool: str | None
    """The tool whose function it runs."""
    age: float
    """Seconds for which it has run its call; without one, since it was started."""
    calls: Number
    """The calls that it has had."""
    replaced: Number
    """How often the process of this number has been replaced since the server began."""
    reason: str | None
    """Why it was replaced last, in one word: one of `PROCESS_ENDS`; ``None`` for the first one."""


PROCESS_ENDS = (
    "cancelled",
    "cpu",
    "crash",
    "exit",
    "killed",
    "memory",
    "server",
    "stale",
    "start",
    "threads",
)
"""Why a process for functions ends: as ``_meta["mcp-actors/ended"]`` has it; and because its call was cancelled or ran
out of time, the server ended, or its module was loaded again."""

asyncio_calls: dict[Any, Any] = {}
"""The contexts of the calls whose functions run in asyncio loops now, by their
`mcp_actors.bridges.asyncio_call.AsyncioCall`. A watchdog reads it in another thread."""

Loop = Literal["asyncio"] | None
"""The loop that an ``async def`` needs; by default that of the engine."""

ForSync = Callable[[Any, bool], Any]
"""Makes the context of a sync function, of that of its call and of whether it is inline; ``end()`` ends its use."""


current: ContextVar[Any] = ContextVar("current", default=None)
"""The context of the call that is answered here, as its function would be handed it; of an inline function, which may
not ask for it, what makes it (`ForSync`) and what it is made of."""


class Function(msgspec.Struct, frozen=True, eq=False):
    """A user's function made ready. ``call`` takes the context and the keyword arguments, a dict of its own."""

    call: Callable[[Any, dict[str, Any]], Any]
    inline: bool
    """Whether ``call`` returns the value itself; if not, it returns an awaitable of it."""


def function(
    call: Callable[..., Any],
    *,
    injected_name: str | None,
    for_sync: ForSync,
    inline: bool,
    threads: WorkerThreads,
    draw: Callable[[Any], Any] | None = None,
    loop: Loop = None,
) -> Function:
    """Decides once how ``call`` will be called.

    ``injected_name`` is the keyword by which it takes the context, if it does; a sync function takes what
    ``for_sync`` makes of it. ``inline=True`` changes nothing for an ``async def``. ``draw`` is
    applied to what a plain function returns, in the thread where it ran: the body of a generator belongs there too.
    ``loop`` is for an ``async def`` that needs another loop than Trio's.

    Raises `TypeError` for what cannot be called so.
    """
    if loop is not None:
        _check_loop(call, loop, inline)
        return Function(LOOPS[loop]().in_asyncio(call, injected_name), inline=False)
    if is_async(call):
        return Function(_awaited(call, injected_name), inline=False)
    body = body_of(call)
    if inspect.isasyncgenfunction(body) or (draw is None and inspect.isgeneratorfunction(body)):
        kind = "a generator" if inspect.isgeneratorfunction(body) else "an async generator"
        raise TypeError(
            f"{_shown(call)} is {kind}, whose values would come one by one: collect them in a list, and return it"
        )
    if draw is not None:
        call = _drawn(call, draw)
    if not inline:
        return Function(_threaded(call, injected_name, for_sync, threads), inline=False)
    return Function(_in_place(call, injected_name, for_sync), inline=True)


async def called(call: Callable[[Any], Any], ctx: Any) -> Any:
    """Calls a plain or an async function of the user's with a context, on the event loop, and returns its result."""
    current.set(ctx)
    value = call(ctx)
    return await value if hasattr(type(value), "__await__") else value


def name_of(call: Callable[..., Any]) -> str:
    """The name under which ``call`` is registered; raises `TypeError` when it has none of its own."""
    if not callable(call):
        raise TypeError(f"{call!r} is not a function")
    name = getattr(call, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise TypeError(f"{call!r} has no name of its own: give name=")
    return name


def check_async(call: Any, parameters: str) -> None:
    """Raises `TypeError` for anything but an ``async def`` with these two parameters."""
    form = f"write async def f({parameters})"
    if not callable(call):
        raise TypeError(f"{call!r} is not a function: {form}")
    if isinstance(call, type):
        raise TypeError(f"{call.__name__} is a class: give an object of it, {call.__name__}(…)")
    if not is_async(call) and not is_async(inspect.unwrap(call)):
        raise TypeError(f"{_shown(call)} is not async: {form}")
    try:
        inspect.signature(call).bind(None, None)
    except TypeError:
        raise TypeError(f"{_shown(call)} does not take two arguments: {form}") from None


def in_loop(call: Callable[..., Any], loop: Loop) -> Callable[..., Any]:
    """Returns a function of ``(params, ctx)`` as it is awaited on the event loop; raises `TypeError` as `function`."""
    if loop is None:
        return call
    _check_loop(call, loop, False)
    awaited: Callable[..., Any] = LOOPS[loop]().method_in_asyncio(call)
    return awaited


def middleware_in_loop(call: Callable[..., Any], loop: Loop) -> Callable[..., Any]:
    """Returns middleware as it is awaited on the event loop; raises `TypeError` as `function` does."""
    if loop is None:
        return call
    _check_loop(call, loop, False)
    if hasattr(call, "notification"):
        raise TypeError(
            f'loop="asyncio" is for functions, and {_shown(call)} is an object with notification()'
        )
    awaited: Callable[..., Any] = LOOPS[loop]().middleware_in_asyncio(call)
    return awaited


def _check_loop(call: Callable[..., Any], loop: object, inline: bool) -> None:
    if loop != "asyncio":
        raise TypeError(f'loop={loop!r}: write "asyncio", or leave it out')
    if inline:
        raise TypeError('loop="asyncio": such a function runs in another thread; remove inline=True')
    if not is_async(call):
        raise TypeError(
            f'{_shown(call)} is not async: write async def, or remove loop="asyncio"; a plain def runs in a worker '
            "thread, where it may block"
        )


def is_async(call: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(body_of(call))


def body_of(call: Callable[..., Any]) -> Any:
    """The function that runs when ``call``, a function, partial or object, is called."""
    while isinstance(call, partial):
        call = call.func
    return call if inspect.isroutine(call) or isinstance(call, type) else getattr(call, "__call__", call)  # noqa: B004


def _shown(call: Callable[..., Any]) -> str:
    return getattr(call, "__qualname__", None) or repr(call)


def _awaited(
    call: Callable[..., Awaitable[Any]], injected_name: str | None
) -> Callable[[Any, dict[str, Any]], Awaitable[Any]]:
    # Plain functions that return the coroutine: an ``async def`` here would cost one more frame for each call.
    set_current, name = current.set, injected_name

    def without_context(ctx: Any, arguments: dict[str, Any]) -> Awaitable[Any]:
        set_current(ctx)
        return call(**arguments)

    def with_context(ctx: Any, arguments: dict[str, Any]) -> Awaitable[Any]:
        set_current(ctx)
        arguments[name] = ctx  # type: ignore[index]
        return call(**arguments)

    return without_context if name is None else with_context


def _drawn(call: Callable[..., Any], draw: Callable[[Any], Any]) -> Callable[..., Any]:
    def called(**arguments: Any) -> Any:
        value = call(**arguments)
        return value if hasattr(type(value), "__await__") else draw(value)

    return called


def _threaded(
    call: Callable[..., Any], injected_name: str | None, for_sync: ForSync, threads: WorkerThreads
) -> Callable[[Any, dict[str, Any]], Awaitable[Any]]:
    async def run(ctx: Any, arguments: dict[str, Any]) -> Any:
        handed = for_sync(ctx, False)
        current.set(handed)
        if injected_name is not None:
            arguments[injected_name] = handed
        try:
            boxed = await threads.run(ctx, lambda: [call(**arguments)])
            # A plain wrapper round an async function gives its coroutine back, which belongs on the loop. It comes in
            # a box, since Trio takes a coroutine out of a thread for a mistake.
            value = boxed[0]
            return await value if hasattr(type(value), "__await__") else value
        finally:
            handed.end()

    return run


class WorkerThreads:
    """The threads of a server that plain functions run in.

    One caller has half of them at most, those included that run on after their calls were cancelled, so that the other
    half is there for others. Callers that nothing is known of, as in memory and over stdio, share all of them.

    Args:
        number: How many there are.
        caller_of: Returns who makes a call, of its context; ``None`` if that is not known.
    """

    def __init__(self, number: int, caller_of: Callable[[Any], str | None] = lambda ctx: None) -> None:
        self._all = trio.CapacityLimiter(number)
        self._share = max(1, number // 2)
        self._caller_of = caller_of
        # Of callers that have a thread or wait for one.
        self._shares: dict[str, trio.CapacityLimiter] = {}

    def __repr__(self) -> str:
        return f"<WorkerThreads {self.running}/{self._all.total_tokens}>"

    @property
    def running(self) -> int:
        """The threads that are in use."""
        return self._all.borrowed_tokens

    @property
    def waiting(self) -> int:
        """The calls that wait for one, behind others of their caller or of all callers."""
        limiters = (self._all, *self._shares.values())
        return sum(each.statistics().tasks_waiting for each in limiters)

    async def run(self, ctx: Any, function: Callable[[], Any]) -> Any:
        """Runs ``function`` in a thread and returns its result; cancelled, it leaves it alone.

        ``ctx`` is the call, ``None`` for what is done for no single one.
        """
        caller = None if ctx is None else self._caller_of(ctx)
        limiter: Any = _ThreadOfCall(self, caller, thread_use.get())
        return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)

    async def acquire(self, borrower: object, caller: str | None) -> None:
        """Waits for a thread, and for one of the caller's first."""
        if caller is None:
            await self._all.acquire_on_behalf_of(borrower)
            return
        share = self._shares.get(caller)
        if share is None:
            share = self._shares[caller] = trio.CapacityLimiter(self._share)
        try:
            await share.acquire_on_behalf_of(borrower)
            try:
                await self._all.acquire_on_behalf_of(borrower)
            except BaseException:
                share.release_on_behalf_of(borrower)
                raise
        except BaseException:
            self._forget(caller, share)
            raise

    def release(self, borrower: object, caller: str | None) -> None:
        """Gives a thread back."""
        self._all.release_on_behalf_of(borrower)
        if caller is not None:
            share = self._shares[caller]
            share.release_on_behalf_of(borrower)
            self._forget(caller, share)

    def _forget(self, caller: str, share: trio.CapacityLimiter) -> None:
        if not share.borrowed_tokens and not share.statistics().tasks_waiting:
            self._shares.pop(caller, None)


class ThreadUse:
    """The threads that run for one call, which may go on when the call has ended.

    All middleware of the call shares one (`of`).
    """

    __slots__ = ("_call", "_then", "running")

    def __init__(self, call: object) -> None:
        self.running = 0
        self._call = call
        self._then: list[Callable[[], object]] = []

    @classmethod
    def of(cls, call: object) -> ThreadUse:
        """Returns that of a call. One that another call has left in this context is not meant."""
        use = thread_use.get()
        return use if use is not None and use._call is call else cls(call)

    def when_over(self, then: Callable[[], object]) -> None:
        """Calls ``then`` when no thread runs any more: at once, if there is none."""
        if self.running:
            self._then.append(then)
        else:
            then()

    def ended(self) -> None:
        """A thread has ended."""
        self.running -= 1
        while not self.running and self._then:
            self._then.pop()()


thread_use: ContextVar[ThreadUse | None] = ContextVar("thread_use", default=None)
"""What is told of the threads of the call whose task this is, by middleware that has to know."""


class _ThreadOfCall:
    """The limiter of one thread, for Trio, which acquires it before the thread begins and releases it at its end."""

    __slots__ = ("_caller", "_threads", "_use")

    def __init__(self, threads: WorkerThreads, caller: str | None, use: ThreadUse | None) -> None:
        self._threads = threads
        self._caller = caller
        self._use = use

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._threads.acquire(borrower, self._caller)
        if self._use is not None:
            self._use.running += 1

    def release_on_behalf_of(self, borrower: object) -> None:
        self._threads.release(borrower, self._caller)
        if self._use is not None:
            self._use.ended()


def _in_place(
    call: Callable[..., Any], injected_name: str | None, for_sync: ForSync
) -> Callable[[Any, dict[str, Any]], Any]:
    def begun(ctx: Any, arguments: dict[str, Any]) -> Any:
        current.set((for_sync, ctx))
        return call(**arguments)

    def run(ctx: Any, arguments: dict[str, Any]) -> Any:
        if injected_name is not None:
            arguments[injected_name] = for_sync(ctx, True)
        # In a copy of the session's context variables, as a task has one: what the function sets is its own.
        value = copy_context().run(begun, ctx, arguments)
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(
                f"{call!r} is declared inline but returned a coroutine; declare it with async def"
            )
        return value

    return run


# -- Handlers of protocol methods, and the params that several of them read ---

# Answers one protocol method: called with a `Context`, in the turn of the reader of the request, it returns the result,
# or a `Continuation` if the call needs a task. It raises `RpcError` for what cannot be answered.
Handler = Callable[[Any], Any]


def string_param(params: Mapping[str, Any], name: str) -> str:
    """Returns the required string member ``name`` of ``params``; raises `RpcError` (-32602) for any other value."""
    value = params.get(name)
    if type(value) is not str:
        raise invalid_params(f"{name!r} must be a string")
    return value


def uri_param(params: Mapping[str, Any]) -> str:
    """Returns the member ``uri`` of ``params``; raises `RpcError` (-32602) when it is not a string or too long."""
    uri = string_param(params, "uri")
    if len(uri) > LONGEST_URI:
        raise invalid_params(f"'uri' has {len(uri)} characters, the limit is {LONGEST_URI}")
    return uri


# -- Calls in the event loop's thread, the only one that changes a server while it serves ---
#
# Functions of the user run in worker threads and in asyncio loops, too, and use the same objects there as async ones in
# the event loop do. What those objects change or send goes through here, so that neither has to know where it runs.

# Seconds for which a thread waits for the event loop, which is never busy for so long unless something blocks it.
LONGEST_WAIT = 30.0

T = TypeVar("T")


class ServingLoop:
    """The event loop in which a server is served, while it is.

    Args:
        outer: Returns the loops of the servers in which it is mounted, which count while only those are served.
    """

    def __init__(self, outer: Callable[[], Iterable[ServingLoop]]) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._process = 0
        self._outer = outer

    def __repr__(self) -> str:
        return f"<ServingLoop {'none' if self._token is None else 'serving'}>"

    def begin(self) -> bool:
        """The server is served in the loop that runs here. Returns whether it was not served before.

        Raises:
            LocalProtocolError: It is served in another loop.
        """
        token = trio.lowlevel.current_trio_token()
        if token is self._token:
            return False
        if self._is_running():
            raise LocalProtocolError(
                "the server is served in another event loop of this program (mcp_actors.asyncio, mcp_actors.sync and "
                "server.asgi() have one together): serve it in one at a time, or make a Server for each; "
                f"{see_page('troubleshooting')}"
            )
        self._token, self._process = token, os.getpid()
        return True

    def _is_running(self) -> bool:
        """Whether the loop runs. A fork has a copy of what its parent serves, and no loop."""
        if self._token is None or self._process != os.getpid():
            return False
        try:
            self._token.run_sync_soon(_nothing)
        except trio.RunFinishedError:
            return False
        return True

    def end(self) -> None:
        """The server is served no longer."""
        self._token = None

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Like `on_loop`; while the server is not served, calls ``function`` in this thread."""
        token = self._running()
        return function(*args) if token is None else on_loop(token, function, *args)

    def _running(self) -> trio.lowlevel.TrioToken | None:
        if self._token is not None:
            return self._token
        return next((found for each in self._outer() if (found := each._running()) is not None), None)


def _nothing() -> None:
    pass


def on_loop(token: trio.lowlevel.TrioToken, function: Callable[..., T], *args: Any) -> T:
    """Returns ``function(*args)``, called in the event loop of ``token``. Any other thread waits for that.

    Raises:
        LocalProtocolError: That loop has ended, or something has blocked it for `LONGEST_WAIT` seconds.
        Exception: What ``function`` raises.
    """
    if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
        return function(*args)
    answers: queue.SimpleQueue[outcome.Outcome[T]] = queue.SimpleQueue()
    call = partial(copy_context().run, function, *args)
    try:
        token.run_sync_soon(lambda: answers.put(outcome.capture(call)))
        return answers.get(timeout=LONGEST_WAIT).unwrap()
    except trio.RunFinishedError:
        raise LocalProtocolError("the event loop in which the server was served has ended") from None
    except queue.Empty:
        blockage = blockage_log.within(LONGEST_WAIT)
        by = "" if blockage is None else f"; {blockage.sentence()}"
        raise LocalProtocolError(
            f"the server's event loop is blocked: it has answered nothing for {LONGEST_WAIT:g} s{by}"
        ) from None


async def with_files_read(value: Any) -> Any:
    """Returns ``value`` with the content blocks of its files, which a worker thread reads.

    Raises `InvalidResult` for one that cannot be read. Cancelled, it leaves the thread alone, whose result is dropped.
    """
    try:
        return await trio.to_thread.run_sync(read_files, value, abandon_on_cancel=True)
    except Exception as error:
        raise InvalidResult(str(error)) from error
