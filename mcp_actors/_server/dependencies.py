"""Dependencies: what functions of a server need, made for a call, a session or a `serve`, and closed at its end.

``Annotated[Database, Depends(open_database)]`` marks a parameter that the server fills. What a function needs is found
out once, when it is registered: one that needs nothing is called as ever. Where the values are:

=============  ======================================  ===============================================================
made for       kept in                                 entered and left by
=============  ======================================  ===============================================================
a call         `_CallValues`                           the task of the call, which is shielded while it closes them
a session      a `_ScopeValues` for each session       a task of its own for each, so that a caller who is cancelled
a `serve`      the first `_ScopeValues`                takes it from no other caller
=============  ======================================  ===============================================================
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Any, Literal, get_args

import msgspec
import trio

from mcp_actors._schema.signature import FilledParameter, injected_parameter, provided_parameters
from mcp_actors._server import invoke
from mcp_actors._server.context import Context
from mcp_actors._server.failures import DependencyFailed
from mcp_actors._server.invoke import LOOPS, ForSync, Function, Loop, WorkerThreads, current, thread_use
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.scope import ServerScope
from mcp_actors.errors import CallCancelled, InputRequired, LocalProtocolError, RpcError, ToolError
from mcp_actors.supervision.containment import is_cancelled, reraised, sole_cause, start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import DEPENDENCY, DEPENDENCY_END

__all__ = ["Depends", "Overrides", "Scope", "ServeValues", "function", "kept_values"]

Scope = Literal["call", "session", "server"]
"""The scope for which a value is made: one call, one session of a client, or one `serve`."""

# From the shortest to the longest.
_SCOPES: tuple[Scope, ...] = get_args(Scope)
# Seconds that all values of a scope have together to be closed, once nothing waits for them any more.
CLOSE_TIME = 10.0
# These are sent, or end the call, as they are.
_AS_THEY_ARE = (ToolError, RpcError, CallCancelled, InputRequired, DependencyFailed)


class Depends(FilledParameter):
    """Marks a parameter that the server fills: ``database: Annotated[Database, Depends(open_database)]``.

    For functions of tools, resources, prompts, completions and notifications, and for those of other dependencies. The
    parameter is part of no schema, and for type checkers it is a ``Database``.

    Within its scope the function is called once, also when several calls need it at the same time, and its value is
    closed in reverse order when the scope has ended, also when the call was cancelled: then all that is closed has 10
    seconds together. It learns of the error that has ended a call, and cannot hide it. What it raises is the error of
    the call, and is tried again by the next one.

    Args:
        function: An ``async def``; a plain function, which runs in a worker thread; a generator or async generator with
            one ``yield``, behind which it closes what it has yielded; a function that returns a context manager of
            `contextlib`, or one that inherits from its abstract classes; or a class, which may be a context manager. It
            takes other dependencies and the `Context`, and its other parameters have defaults.
        scope: ``"call"``; ``"session"``, which is that of the call where there is no session, as for stateless clients
            over HTTP; or ``"server"``, for all calls of one `Server.serve`.
        loop: ``"asyncio"`` for what needs that loop; by default that of the function that has the parameter.

    Raises:
        TypeError: ``function`` cannot be called.
        ValueError: There is no such scope.
    """

    def __init__(self, function: Callable[..., Any], *, scope: Scope = "call", loop: Loop = None) -> None:
        if not callable(function):
            raise TypeError(f"Depends takes a function, not {function!r:.80}")
        if scope not in _SCOPES:
            raise ValueError(f"scope={scope!r}: write one of {', '.join(map(repr, _SCOPES))}")
        self.function = function
        self.scope: Scope = scope
        self.loop: Loop = loop

    def __repr__(self) -> str:
        return f"Depends({_name_of(self.function)})"


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
    """Decides once how ``call`` will be called, as `mcp_actors._server.invoke.function` does, and what it needs.

    A function that is declared ``inline`` and needs something runs on the event loop, in a task of its call.

    Raises `TypeError` as that does, and for dependencies that cannot be made.
    """
    ready = invoke.function(
        call,
        injected_name=injected_name,
        for_sync=for_sync,
        inline=inline,
        threads=threads,
        draw=draw,
        loop=loop,
    )
    needs = _needs_of(call, _PlainCalls(for_sync, threads), loop, ())
    return ready if not needs else Function(partial(_called, ready, needs), inline=False)


async def _called(ready: Function, needs: _Needs, ctx: Context, arguments: dict[str, Any]) -> Any:
    # It becomes a shield when something is closed although the call is cancelled.
    with trio.CancelScope() as closing:
        async with AsyncExitStack() as stack:
            values = _CallValues(ctx, stack, closing)
            for name, each in needs:
                arguments[name] = await values.get(each)
            value = ready.call(ctx, arguments)
            if not ready.inline:
                value = await value
    if closing.cancelled_caught:
        log.warning("dependencies of a call were cancelled, because they did not close", seconds=CLOSE_TIME)
        await trio.lowlevel.checkpoint_if_cancelled()
    return value


# -- What is decided at registration ----------------------------------------------------------------------------------


class _PlainCalls(msgspec.Struct, frozen=True):
    """The contexts and threads that plain functions of a server are called with."""

    for_sync: ForSync
    threads: WorkerThreads


class Dependency(msgspec.Struct, frozen=True, eq=False):
    """A dependency with everything decided that can be decided before its value is made."""

    function: Callable[..., Any]
    make: Callable[..., Any]
    """Returns the value, an awaitable of it, or a context manager."""
    scope: Scope
    loop: Loop
    context_name: str | None
    needs: _Needs
    is_async: bool
    """Whether it is made on an event loop; if not, in a worker thread."""
    is_manager: bool
    """Whether it makes objects that are entered, whatever their class inherits from."""
    making: _PlainCalls
    key: tuple[Any, ...]

    @property
    def name(self) -> str:
        return _name_of(self.function)


_Needs = tuple[tuple[str, Dependency], ...]


def _needs_of(
    call: Callable[..., Any], making: _PlainCalls, loop: Loop, above: tuple[Callable[..., Any], ...]
) -> _Needs:
    """Returns what a function needs, by its parameters. ``above`` are the dependencies that need it."""
    return tuple(
        (name, _dependency(mark.function, mark.scope, mark.loop or loop, making, above))
        for name, mark in provided_parameters(call).items()
        if isinstance(mark, Depends)
    )


def _dependency(
    function: Callable[..., Any],
    scope: Scope,
    loop: Loop,
    making: _PlainCalls,
    above: tuple[Callable[..., Any], ...] = (),
) -> Dependency:
    name = _name_of(function)
    path = (*above, function)
    if function in above:
        circle = " → ".join(map(_name_of, path[above.index(function) :]))
        raise TypeError(f"the dependency {name} needs itself: {circle}")
    needs = _needs_of(function, making, loop, path)
    for _, each in needs:
        if _SCOPES.index(each.scope) < _SCOPES.index(scope):
            raise TypeError(
                f"the dependency {name} is kept for a {scope}, and needs {each.name}, which is made for each "
                f"{each.scope}: give that one scope={scope!r}, too"
            )
    target: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    context_name = injected_parameter(target, Context)
    if context_name is not None and scope == "server":
        raise TypeError(
            f"the dependency {name} is kept for all callers, and takes the context of one: remove {context_name}"
        )
    _check_parameters(function, name, {context_name, *(each for each, _ in needs)})
    make, is_async, is_manager = _made_by(function)
    own_loop = loop if is_async else None
    return Dependency(
        function,
        make,
        scope,
        own_loop,
        context_name,
        needs,
        is_async,
        is_manager,
        making,
        (function, scope, own_loop),
    )


def _made_by(function: Callable[..., Any]) -> tuple[Callable[..., Any], bool, bool]:
    """Returns what makes a value, whether it runs on an event loop, and whether it makes what is always entered."""
    if isinstance(function, type):
        is_async = hasattr(function, "__aenter__")
        return function, is_async, is_async or hasattr(function, "__enter__")
    body = invoke.body_of(function)
    if inspect.isasyncgenfunction(body):
        return asynccontextmanager(function), True, True
    if inspect.isgeneratorfunction(body):
        return contextmanager(function), False, True
    is_async = invoke.is_async(function) or inspect.isasyncgenfunction(inspect.unwrap(body))
    return function, is_async, False


def _check_parameters(function: Callable[..., Any], name: str, filled: set[str | None]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a class written in C may have no signature
        return
    for each in parameters:
        if each.name in filled or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        if each.default is each.empty:
            raise TypeError(
                f"the dependency {name}: nothing fills the parameter {each.name}: give it a default, or write "
                f"{each.name}: Annotated[<type>, Depends(<function>)]"
            )


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


class Overrides:
    """The functions that tests put in the place of others, of one server."""

    def __init__(self) -> None:
        self._replacements: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __repr__(self) -> str:
        return f"<Overrides of {len(self._replacements)} functions>"

    def add(self, function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
        """Has ``replacement`` make what ``function`` makes; raises as `mcp_actors.Server.override`."""
        if not callable(function) or not callable(replacement):
            raise TypeError("override takes the function that Depends was given, and another one")
        if function in self._replacements:
            raise LocalProtocolError(f"{_name_of(function)} is overridden already")
        # What could be wrong with it does not depend on the server.
        _dependency(
            replacement, "call", None, _PlainCalls(lambda ctx, inline: ctx, WorkerThreads(1)), (function,)
        )
        self._replacements[function] = replacement

    def remove(self, function: Callable[..., Any]) -> None:
        """Has ``function`` itself make it again."""
        del self._replacements[function]

    def replaced(self, each: Dependency) -> Dependency | None:
        """Returns the dependency in the place of another one, if there is one."""
        replacement = self._replacements.get(each.function)
        if replacement is None:
            return None
        return _dependency(replacement, each.scope, each.loop, each.making)


# -- Values, from when they are made until they are closed ------------------------------------------------------------


class _CallValues:
    """The values of one call, which ``stack`` closes."""

    def __init__(self, ctx: Context, stack: AsyncExitStack, closing: trio.CancelScope) -> None:
        self._ctx = ctx
        self._kept: ServeValues = ctx._scope.kept
        self._stack = stack
        self._closing = closing
        self._made: dict[tuple[Any, ...], Any] = {}
        self._used: set[_ScopeValues] = set()

    async def get(self, each: Dependency) -> Any:
        """Returns the value of a dependency, which is made if there is none; raises what making it raises."""
        each = self._kept.overridden(each)
        if each.scope != "call":
            found = self._kept.of(each.scope, self._ctx.session)
            if found is not None:
                self._use(found)
                return await found.get(each, self._ctx)
        if each.key not in self._made:
            arguments = {name: await self.get(need) for name, need in each.needs}
            manager = _entering(each, self._ctx._scope, self._ctx, arguments)
            try:
                self._made[each.key] = await manager.__aenter__()
            except Exception as error:
                raise _named(each, error) from error
            self._stack.push_async_exit(_Closed(each, manager, self._closing))
        return self._made[each.key]

    def _use(self, values: _ScopeValues) -> None:
        if values not in self._used:
            self._used.add(values)
            values.users += 1
            self._stack.callback(values.leave)


class _Closed:
    """Closes one value of a call, as a context manager on its stack."""

    def __init__(
        self, each: Dependency, manager: AbstractAsyncContextManager[Any], closing: trio.CancelScope
    ) -> None:
        self._each = each
        self._manager = manager
        self._closing = closing

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        # A scope of its own would be closed before one that the value has opened, which Trio forbids.
        if is_cancelled():
            self._closing.shield = True
            self._closing.deadline = min(self._closing.deadline, trio.current_time() + CLOSE_TIME)
        try:
            await self._manager.__aexit__(kind, error, traceback)
        except Exception as failure:
            # A nursery of the value puts what has ended the call into a group: the call ends with it as it was.
            if sole_cause(failure) is not error:
                raise _named(self._each, failure, "failed when it was closed") from failure


def _named(each: Dependency, error: Exception, what: str = "failed") -> Exception:
    """Returns the error of a dependency as the call raises it."""
    if isinstance(sole_cause(error), _AS_THEY_ARE):
        return error
    named = DependencyFailed(f"the dependency {each.name} {what}")
    named.__cause__ = error
    return named


class _KeptValue:
    """A value of a session or of a `serve`, and the task that holds it."""

    def __init__(self, ctx: Context) -> None:
        self.ctx: Context | None = ctx
        """The call that it is made for, until it is made."""
        self.value: Any = None
        self.failure: Exception | None = None
        self.scope = trio.CancelScope(shield=True)
        self.opened, self.left, self.ended = trio.Event(), trio.Event(), trio.Event()


class _ScopeValues:
    """The values of a session, or of a `serve`: each is made once, whatever number of calls wait for it.

    Args:
        kept: Has the nursery for their tasks.
        name: Names the scope in the log.
        wider: The values of the scope round it.
    """

    def __init__(self, kept: ServeValues, name: str, wider: _ScopeValues | None) -> None:
        self._owner = kept
        self._name = name
        self._wider = wider
        self._by_key: dict[tuple[Any, ...], _KeptValue] = {}
        # In the order in which they were opened.
        self._opened: list[_KeptValue] = []
        self._is_over = False
        self.users = 0
        """The calls in flight that have a value of it."""
        self._unused = trio.Event()

    def leave(self) -> None:
        """A call that has a value of it has ended."""
        self.users -= 1
        if not self.users:
            self._unused.set()

    async def get(self, each: Dependency, ctx: Context) -> Any:
        """Returns the value of a dependency, which is made if there is none; raises what making it raises."""
        if each.scope == "server" and self._wider is not None:
            return await self._wider.get(each, ctx)
        kept = self._by_key.get(each.key)
        if kept is None:
            if self._is_over:
                raise DependencyFailed(f"the dependency {each.name} was not made: the {each.scope} has ended")
            kept = self._by_key[each.key] = _KeptValue(ctx)
            start(self._owner.nursery, DEPENDENCY, self._hold, each, kept, about=each.name)
        await kept.opened.wait()
        if kept.failure is not None:
            raise _named(each, kept.failure)
        return kept.value

    async def _hold(self, each: Dependency, kept: _KeptValue) -> None:
        """Is the task of one value."""
        current.set(None)
        thread_use.set(None)
        try:
            with kept.scope:
                async with await self._made(each, kept) as kept.value:
                    self._opened.append(kept)
                    kept.opened.set()
                    await kept.left.wait()
            if kept.scope.cancelled_caught:
                log.warning("a dependency was cancelled at the end", dependency=each.name, scope=self._name)
        except Exception as error:
            if kept.opened.is_set():
                log.error("a dependency failed", dependency=each.name, scope=self._name, exc_info=error)
            else:
                kept.failure = error
        finally:
            if not kept.opened.is_set():
                kept.failure = kept.failure or RuntimeError(f"the {each.scope} has ended")
            if self._by_key.get(each.key) is kept:
                del self._by_key[each.key]
            kept.opened.set()
            kept.ended.set()

    async def _made(self, each: Dependency, kept: _KeptValue) -> AbstractAsyncContextManager[Any]:
        ctx, kept.ctx = kept.ctx, None
        assert ctx is not None
        arguments = {name: await self.get(self._owner.overridden(need), ctx) for name, need in each.needs}
        return _entering(each, ctx._scope, None if each.context_name is None else ctx, arguments)

    async def close(self) -> None:
        """Closes everything in reverse order, when no call uses it any more, within `CLOSE_TIME` seconds."""
        self._is_over = True
        deadline = trio.current_time() + CLOSE_TIME
        with trio.CancelScope(shield=True):
            with trio.move_on_at(deadline):
                while self.users:
                    self._unused = trio.Event()
                    await self._unused.wait()
            for kept in list(self._by_key.values()):
                if not kept.opened.is_set():
                    kept.scope.cancel(reason="the scope has ended")
            for kept in reversed(self._opened):
                kept.scope.deadline = deadline
                kept.left.set()
                await kept.ended.wait()


class ServeValues:
    """The values of one server in one `serve`, for it and for its sessions.

    Args:
        nursery: Owns the tasks that hold them.
        overrides: Those of the server.
        within: The values of the server in which it is mounted.
    """

    def __init__(self, nursery: trio.Nursery, overrides: Overrides, within: ServeValues | None) -> None:
        self.nursery = nursery
        self._overrides = overrides
        self._within = within
        self._server = _ScopeValues(self, "server", None)
        self._sessions: dict[PeerSession, _ScopeValues] = {}
        self._is_over = False
        self.processes: Any = None
        """The `mcp_actors._server.isolation.Processes` of the server, once it needs them."""

    def __repr__(self) -> str:
        return f"<ServeValues of {len(self._sessions)} sessions>"

    def overridden(self, each: Dependency) -> Dependency:
        """Returns the dependency, or what tests have put in its place here or in a server round it."""
        found: ServeValues | None = self
        while found is not None:
            replaced = found._overrides.replaced(each)
            if replaced is not None:
                return replaced
            found = found._within
        return each

    def of(self, scope: Scope, session: PeerSession | None) -> _ScopeValues | None:
        """Returns the values of a scope; ``None`` for those of a session where there is none."""
        if scope == "server":
            return self._server
        if session is None or self._is_over:
            return None
        values = self._sessions.get(session)
        if values is None:
            values = self._sessions[session] = _ScopeValues(self, session.name, self._server)
            session.on_end(self, partial(self._end, session))
        return values

    def _end(self, session: PeerSession) -> None:
        values = self._sessions.get(session)
        if values is not None and not self._is_over:
            start(self.nursery, DEPENDENCY_END, self._close, session, values, about=session.name)

    async def _close(self, session: PeerSession, values: _ScopeValues) -> None:
        await values.close()
        self._sessions.pop(session, None)

    async def close(self) -> None:
        """Closes everything: what is kept for sessions first."""
        self._is_over = True
        if self.processes is not None:
            self.processes.close()
        for each in (*self._sessions.values(), self._server):
            await each.close()

    def release(self) -> None:
        """Forgets everything, so that a server that has ended is freed at once, and not by the collector."""
        self._sessions.clear()
        del self._server


@asynccontextmanager
async def kept_values(
    overrides: Overrides, *, within: ServeValues | None = None
) -> AsyncIterator[ServeValues]:
    """Yields what keeps the values of a server for one `serve`, and closes them after the block."""
    with reraised() as body:
        async with trio.open_nursery() as nursery:
            values = ServeValues(nursery, overrides, within)
            with body:
                yield values
            await values.close()
        # Not before: what was being made at the end may have looked for its dependencies until here.
        values.release()


# -- Making a value, and closing it -----------------------------------------------------------------------------------


def _entering(
    each: Dependency, scope: ServerScope, ctx: Context | None, arguments: dict[str, Any]
) -> AbstractAsyncContextManager[Any]:
    """Returns what makes a value when it is entered, and closes it when it is left."""

    def with_context(handed: Any) -> Callable[[], Any]:
        if each.context_name is not None:
            arguments[each.context_name] = handed
        return partial(each.make, **arguments)

    if not each.is_async:
        return _in_threads(each, ctx, with_context)
    if each.loop is None:
        current.set(ctx)
        return _on_loop(each, with_context(ctx))
    entered: AbstractAsyncContextManager[Any] = LOOPS[each.loop]().entered_in_asyncio(
        scope, ctx, lambda handed: _on_loop(each, with_context(handed))
    )
    return entered


@asynccontextmanager
async def _on_loop(each: Dependency, make: Callable[[], Any]) -> AsyncIterator[Any]:
    """Makes a value on the event loop that runs here, Trio's or asyncio's."""
    value = make()
    if (
        not each.is_manager
        and isinstance(value, Awaitable)
        and not isinstance(value, AbstractAsyncContextManager)
    ):
        value = await value
    if not each.is_manager and not _is_entered(value):
        yield value
    elif hasattr(value, "__aenter__"):
        async with value as entered:
            yield entered
    else:
        with value as entered:
            yield entered


@asynccontextmanager
async def _in_threads(
    each: Dependency, ctx: Context | None, with_context: Callable[[Any], Callable[[], Any]]
) -> AsyncIterator[Any]:
    """Makes a value in a worker thread, and closes it in one."""
    handed = None if ctx is None else each.making.for_sync(ctx, False)
    current.set(handed)
    run = partial(each.making.threads.run, ctx)
    made = _MadeInThread(with_context(handed), each.is_manager)
    try:
        try:
            await run(made.begin)
        except BaseException:
            if (manager := made.abandon()) is not None:
                with trio.move_on_after(CLOSE_TIME, shield=True):
                    await run(partial(manager.__exit__, None, None, None))
            raise
        if made.manager is not None:
            try:
                yield made.value
            except BaseException as error:
                await run(partial(made.manager.__exit__, type(error), error, error.__traceback__))
                raise
            await run(partial(made.manager.__exit__, None, None, None))
        else:
            async with _on_loop(each, lambda: made.value) as value:
                yield value
    finally:
        if handed is not None:
            handed.end()


class _MadeInThread:
    """A value that a thread makes, and closes itself when the call has left it alone meanwhile."""

    def __init__(self, make: Callable[[], Any], is_manager: bool) -> None:
        self._make = make
        self._always = is_manager
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.value: Any = None
        self.manager: AbstractContextManager[Any] | None = None

    def begin(self) -> None:
        """Makes the value, in the thread."""
        made = self._make()
        if not hasattr(made, "__enter__") or not (self._always or _is_entered(made)):
            self.value = made
            return
        self.value = made.__enter__()
        with self._lock:
            if not self._is_abandoned:
                self.manager = made
                return
        made.__exit__(None, None, None)

    def abandon(self) -> AbstractContextManager[Any] | None:
        """The call needs it no longer; returns what is entered already."""
        with self._lock:
            self._is_abandoned = True
            return self.manager


def _is_entered(value: object) -> bool:
    """Whether it is a context manager by its class: a connection or a lock that only has the methods is a value."""
    classes = type(value).__mro__
    return AbstractContextManager in classes or AbstractAsyncContextManager in classes
