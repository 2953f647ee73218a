"""The process that runs functions of tools for a server: ``isolate="process"``.

`main` is what it runs. It imports the modules of the functions, and then runs one call after the other, in its first
thread; a second thread reads what the server sends. When that ends, nobody waits for a function that runs, and the
process ends at once; one that runs none closes its lifespans, and has `CLOSE_TIME` seconds for that.

The process bounds itself for each call: its memory by ``RLIMIT_DATA``, counted from what it had before, and its
processor time by ``ITIMER_PROF``, whose signal ends it. What a system lacks of that bounds nothing there.
"""

from __future__ import annotations

import atexit
import contextvars
import importlib
import importlib.util
import inspect
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import msgspec
import outcome
import trio

from mcp_actors import types as t
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import ValueResult
from mcp_actors._schema.signature import read_signature
from mcp_actors._schema.validate import compile_schema
from mcp_actors._server.content import UnreadFiles, read_files
from mcp_actors._server.context import Context
from mcp_actors._server.failures import tool_error_in, users_frames
from mcp_actors._server.invoke import current, is_async, isolation_of_process
from mcp_actors._server.isolated_context import Channel, IsolatedContext, context_of
from mcp_actors._server.isolated_messages import (
    LONGEST_TEXT,
    MOST_BYTES,
    SCRIPT,
    Done,
    FunctionPlace,
    LifespanPlace,
    ProcessReady,
    ProcessRun,
    newest_era,
)
from mcp_actors._server.process import stopped_at_run
from mcp_actors._server.tools import finishing
from mcp_actors.abc.telemetry import Observation, ObservedRequest, current_call, guarded, log_members
from mcp_actors.errors import RpcError, ToolError
from mcp_actors.supervision import logging

if sys.platform != "win32":
    import resource

__all__ = ["main"]

# Characters of a traceback that the server is sent.
_LONGEST_TRACEBACK = 20_000
# The option of prctl(2) for the signal that a process gets when the one that has started it is gone.
_PR_SET_PDEATHSIG = 1

# -- Finding functions ---


class _ProcessWouldRun(BaseException):
    """Leaves a script where it would run its server; no ``except Exception`` of the script is in the way."""


def _leave(server: object) -> NoReturn:
    raise _ProcessWouldRun


def load(place: FunctionPlace | LifespanPlace) -> Callable[..., Any]:
    """Returns a function, and imports its module.

    Raises:
        ImportError, AttributeError: It is not there.
        Exception: What the module raises.
    """
    found: Any = _module(place)
    for part in place.name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise ImportError(f"{place.module}.{place.name} is no function in a process of its own")
    call: Callable[..., Any] = found
    return call


def _module(place: FunctionPlace | LifespanPlace) -> ModuleType:
    known = sys.modules.get(place.module)
    if known is not None:
        return known
    for name, folders in place.packages:
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = list(folders)
            sys.modules[name] = package
    if place.file is None:
        return importlib.import_module(place.module)
    spec = _spec_of(place.module, place.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place.file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Type hints are resolved through it.
    sys.modules[place.module] = module
    if place.module == SCRIPT:
        sys.modules["__main__"] = module
    try:
        with stopped_at_run(_leave):
            spec.loader.exec_module(module)
    except _ProcessWouldRun:
        # What the script has up to there is what the server has registered. An import would have dropped it now.
        return module
    except BaseException:
        sys.modules.pop(place.module, None)
        raise
    return module


def _spec_of(module: str, file: str) -> Any:
    """Returns the spec of a file: as the finders of this process find it by the module's name, or by its path."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None and os.path.samefile(spec.origin, file):
            return spec
    except (ImportError, ValueError, OSError):
        # It is a script, or has a name that only the server's process knows.
        return importlib.util.spec_from_file_location(module, file)
    return importlib.util.spec_from_file_location(module, file)


# -- Lifespans ---


_InLoop = Callable[[Callable[[], Any]], Any]


def _is_async_block(make: Callable[[], Any]) -> bool:
    return inspect.isasyncgenfunction(inspect.unwrap(make))


class _Lifespan:
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
        self.run: _InLoop | None = None
        """Runs an ``async`` function; ``None`` for one that is plain, beside which each call has a loop of its own."""
        self.value: Any = None
        if not _is_async_block(make):
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
            _log_lifespan(found.error)
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


def _log_lifespan(error: BaseException) -> None:
    logging.log.error("a lifespan of isolated functions has failed", exc_info=error)


# -- One call ---


class _ProcessFunction(msgspec.Struct):
    """A function with everything decided that can be decided before it is called."""

    call: Callable[..., Any]
    bind: Callable[[dict[str, Any]], dict[str, Any]]
    context_name: str | None
    finish: Callable[[Any], Any]
    place: FunctionPlace

    @classmethod
    def at(cls, place: FunctionPlace) -> _ProcessFunction:
        call = load(place)
        signature = read_signature(call, injected=Context, raw=place.takes_dict)
        compiled = None if place.output_schema is None else compile_schema(place.output_schema)
        finish = finishing(
            signature.encode_output,
            compiled,
            declared=place.declares_output,
            content=signature.returns_content,
        )
        return cls(call, signature.bind, signature.injected_name, finish, place)


class _ProcessBounds:
    """The bounds of one call, within the block."""

    def __init__(self, memory: int | None, cpu: float | None) -> None:
        self._memory = memory
        self._cpu = cpu

    def __enter__(self) -> None:
        if sys.platform != "win32":
            if self._memory is not None:
                _limit_memory(self._memory)
            if self._cpu is not None:
                # Its default is to end the process, whatever that does.
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_PROF, self._cpu)

    def __exit__(self, *_: object) -> None:
        if sys.platform != "win32":
            if self._memory is not None:
                _limit_memory(None)
            if self._cpu is not None:
                signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(more: int | None) -> None:
    """Lets this process have so many bytes more than it has now, on Linux, where ``RLIMIT_DATA`` counts all of them."""
    if sys.platform == "linux":
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        soft = limits[1]
        if more is not None:
            with open("/proc/self/statm", "rb") as numbers:
                soft = int(numbers.read().split()[5]) * os.sysconf("SC_PAGE_SIZE") + more
        resource.setrlimit(resource.RLIMIT_DATA, (soft, limits[1]))


class _ProcessCalls:
    """Runs the calls that the server sends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._places: dict[int, FunctionPlace] = {}
        self._functions: dict[int, _ProcessFunction] = {}
        self._lifespans: dict[tuple[str, str, str | None], _Lifespan] = {}
        self._usual_threads: set[int] = set()

    def know(self, place: FunctionPlace) -> None:
        """Takes note of a function, which is imported at its first call at the latest."""
        self._places[place.id] = place

    def function(self, id: int) -> _ProcessFunction:
        """Returns a function; raises what importing it raises."""
        found = self._functions.get(id)
        if found is None:
            found = self._functions[id] = _ProcessFunction.at(self._places[id])
        return found

    def lifespan(self, place: FunctionPlace) -> _Lifespan | None:
        """Returns the lifespan that a function needs, and opens it if need be; raises what that raises."""
        if place.lifespan is None:
            return None
        make = load(place.lifespan)
        key = place.lifespan.module, place.lifespan.name, place.loop if _is_async_block(make) else None
        found = self._lifespans.get(key)
        if found is None:
            found = self._lifespans[key] = _Lifespan(make, place.loop)
        return found

    def open_ahead(self) -> None:
        """Opens the lifespans of all functions. A call that needs one that has failed opens it again."""
        for each in self._places.values():
            try:
                self.lifespan(each)
            except Exception as error:
                _log_lifespan(error)

    def close(self) -> None:
        """Closes the lifespans, the last one first."""
        for each in reversed(self._lifespans.values()):
            try:
                each.close()
            except Exception as error:
                _log_lifespan(error)

    def note_threads(self) -> None:
        """Takes the threads that there are for those that modules have started."""
        self._usual_threads = {each.native_id or 0 for each in threading.enumerate()}

    def run(self, run: ProcessRun) -> Done:
        """Runs one call, and returns how it has ended."""
        try:
            function = self.function(run.function)
            lifespan = self.lifespan(function.place)
        except BaseException as error:
            return _failed(error)
        self.note_threads()
        state, in_loop = (None, None) if lifespan is None else ((lifespan.value,), lifespan.run)
        context = context_of(run.caller, self._channel, state)
        done = contextvars.copy_context().run(self._called, function, context, run.arguments, in_loop)
        if not done.retires and self._has_left_threads():
            done = msgspec.structs.replace(done, retires=True)
        return done

    def _called(
        self,
        function: _ProcessFunction,
        context: IsolatedContext,
        given: dict[str, Any],
        in_loop: _InLoop | None,
    ) -> Done:
        current.set(context)
        _observe(context)
        place = function.place
        try:
            arguments = function.bind(given)
            if function.context_name is not None:
                arguments[function.context_name] = context
            call = partial(function.call, **arguments)
            with _ProcessBounds(place.memory, place.cpu):
                value = _value_of(call, place.loop, in_loop)
                return _sent(function, value)
        except BaseException as error:
            return _failed(error)

    def _has_left_threads(self) -> bool:
        # Trio and asyncio keep threads that have ended their work, under these names; ours write the log.
        return any(
            (each.native_id or 0) not in self._usual_threads
            and not each.name.startswith(("Trio thread", "asyncio_", "mcp-actors "))
            for each in threading.enumerate()
        )


class _CarriedObservation(Observation):
    """The observer of a call, which is in the server: what it says in lines of the log."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = members

    def log_members(self) -> Mapping[str, Any]:
        return self._members


def _observe(context: IsolatedContext) -> None:
    """Has what the function logs and traces belong to its call; nothing of that ends the call."""
    caller = context._caller
    request = ObservedRequest(
        caller.method, None, False, caller.id, caller.meta, caller.version, caller.session, ""
    )
    current_call.set((request, _CarriedObservation(caller.log_members)))
    for place, argument in caller.carried:
        guarded(_carry_on, place, argument)


def _carry_on(place: str, argument: Any) -> None:
    module, _, name = place.partition(":")
    getattr(importlib.import_module(module), name)(argument)


def _value_of(call: Callable[[], Any], loop: str | None, in_loop: _InLoop | None) -> Any:
    if in_loop is not None and (loop is not None or is_async(call)):
        return in_loop(call)
    if loop is not None:
        return importlib.import_module(loop).run(_awaited(call))
    if is_async(call):
        return trio.run(call)
    value = call()
    # A plain wrapper round an async function gives its coroutine back.
    return trio.run(_awaited, lambda: value) if hasattr(type(value), "__await__") else value


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()


def _sent(function: _ProcessFunction, value: Any) -> Done:
    try:
        try:
            answer = function.finish(value)
        except UnreadFiles as unread:
            answer = function.finish(read_files(unread.value))
    except Exception as error:
        raise InvalidResult(str(error)) from error
    if isinstance(answer, ValueResult):
        done = Done("value", [answer.text] if answer.value is t.UNSET else [answer.text, answer.value])
    else:
        done = Done("result", newest_era().unstructure(answer))
    size = len(msgspec.json.encode(done))
    if size > MOST_BYTES:
        raise InvalidResult(f"a result of {size} bytes; a process can return {MOST_BYTES}")
    return done


def _failed(error: BaseException) -> Done:
    if isinstance(error, MemoryError):
        return Done("memory", retires=True)
    if isinstance(error, BaseExceptionGroup):
        if error.subgroup(MemoryError) is not None:
            return Done("memory", retires=True)
        found = tool_error_in(error) if isinstance(error, ExceptionGroup) else None
        if found is not None:
            return Done("tool", str(found))
    if isinstance(error, SystemExit):
        return Done("exit", _exit_code(error), retires=True)
    if isinstance(error, ToolError):
        return Done("tool", str(error))
    if isinstance(error, RpcError):
        return Done("rpc", [error.code, error.message, error.data])
    if isinstance(error, InvalidResult):
        return Done("invalid", str(error)[:LONGEST_TEXT])
    frames = users_frames(error.__traceback__) or error.__traceback__
    shown = "".join(traceback.format_exception(type(error), error, frames))
    return Done("raised", [type(error).__qualname__, _text(error), shown[-_LONGEST_TRACEBACK:]])


def _exit_code(error: SystemExit) -> int:
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


def _text(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_TEXT]
    except Exception as failure:
        return f"its text cannot be read ({type(failure).__name__})"


# -- The process ---


def main() -> None:
    """Runs functions for the server at the other end of standard input and output, until that is gone."""
    isolation_of_process.is_here = True
    channel = Channel(*_taken_over())
    assignment = channel.first()
    _bind_to_server(assignment.parent)
    sys.path[:] = assignment.path
    sys.argv[:] = assignment.arguments
    logging.members_of_call = log_members
    if assignment.log is not None:
        logging.configure_log(*assignment.log)
    calls = _ProcessCalls(channel)
    for each in assignment.functions:
        calls.know(each)
    threading.Thread(target=channel.read_all, name="mcp-actors reader", daemon=True).start()
    try:
        for each in assignment.functions:
            calls.function(each.id)
    except BaseException as error:
        raised = _failed(error)
        channel.send(ProcessReady(f"{type(error).__qualname__}: {_text(error)}"))
        sys.stderr.write(raised.value[2] if raised.kind == "raised" else "")
        sys.stderr.flush()
        os._exit(1)
    calls.open_ahead()
    own = os.getpid()
    channel.is_idle = True
    channel.send(ProcessReady())
    while (message := channel.calls.get()) is not None:
        if isinstance(message, FunctionPlace):
            calls.know(message)
        else:
            channel.is_idle = False
            done = calls.run(message)
            channel.is_idle = True
            if os.getpid() != own:
                # The function has forked, and returns in the copy as well, which has the same pipe.
                os._exit(0)
            channel.send(msgspec.structs.replace(done, number=message.number))
    calls.close()
    # What is left of the end of an interpreter takes far longer, and closes nothing.
    atexit._run_exitfuncs()
    os._exit(0)


def _taken_over() -> tuple[int, int]:
    """Takes the pipe out of the reach of functions, which find nothing to read, and whose output goes to stderr."""
    source, sink = os.dup(0), os.dup(1)
    if sys.platform == "win32":
        msvcrt = importlib.import_module("msvcrt")
        for each in (source, sink):
            msvcrt.setmode(each, os.O_BINARY)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(nothing, 1)  # the server has no standard error
    os.close(nothing)
    return source, sink


def _bind_to_server(parent: int) -> None:
    """Has the system end this process with the server, also while a function keeps the interpreter's lock."""
    if sys.platform != "win32":
        # A process that crashes on purpose or by a limit leaves no image of its memory.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        ctypes = importlib.import_module("ctypes")
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
