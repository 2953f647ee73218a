"""The process that runs functions of tools for a server: ``isolate="process"``.

`main` is what it runs. It imports the modules of the functions, and then runs one call after the other, in its first
thread; a second thread reads what the server sends. When that ends, nobody waits for a function that runs, and the
process ends at once; one that runs none closes its lifespans, and has `CLOSE_TIME` seconds for that.

A process that is replaced costs what it imports. So this imports neither Trio nor contexts nor what else serves: they
come with the first function that is async, takes its context or asks for it, or names a lifespan; with the log that an
operator has set up; and with the first call whose telemetry goes on here.

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
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from mcp_actors import types as t
from mcp_actors._eras.era import InvalidResult, ValueResult
from mcp_actors._schema.signature import read_signature
from mcp_actors._schema.validate import compile_schema
from mcp_actors._server import isolated_process, stopped_at_run
from mcp_actors._server.content import UnreadFiles, finishing, read_files
from mcp_actors._server.isolated_messages import (
    LONGEST_TEXT,
    MOST_BYTES,
    SCRIPT,
    Channel,
    Done,
    FunctionPlace,
    LifespanPlace,
    ModuleImport,
    ProcessCaller,
    ProcessReady,
    ProcessRun,
)
from mcp_actors.errors import RpcError, ToolError
from mcp_actors.supervision.printable import encodable, text_of
from mcp_actors.supervision.tracebacks import users_frames

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


# -- One call ---

_CONTEXTS = "mcp_actors._server.isolated_context"


class _NotImported:
    """Stands for `Context` as long as that is not imported: no parameter can be annotated with it then."""


def _context_class() -> type:
    """Returns the class whose parameters are given the context, and imports the context of this process with it."""
    module = sys.modules.get("mcp_actors._server.context")
    if module is None:
        return _NotImported
    _contexts()
    found: type = module.Context
    return found


def _contexts() -> Any:
    return importlib.import_module(_CONTEXTS)


class _RunningCall:
    """The call that runs, whose context is made when something asks for it.

    Args:
        caller: What the server says of the call.
        channel: Leads to the server.
        lifespan: The lifespan that its tool names.
    """

    def __init__(self, caller: ProcessCaller, channel: Channel, lifespan: Any) -> None:
        self._caller = caller
        self._channel = channel
        self._lifespan = lifespan
        self._context: Any = None

    def observe(self) -> None:
        """Has lines of the log and spans belong to it, if there may be any."""
        # What writes the engine's log comes with this module.
        if self._caller.carried or _CONTEXTS in sys.modules:
            self.context()

    def context(self) -> Any:
        """Returns the context; from its first use on, lines of the log and spans belong to the call."""
        if self._context is None:
            contexts = _contexts()
            state = None if self._lifespan is None else (self._lifespan.value,)
            self._context = contexts.context_of(self._caller, self._channel, state)
            contexts.observe(self._caller)
        return self._context

    def value_of(self, call: Callable[[], Any], loop: str | None) -> Any:
        """Calls a function, and returns its value; that of an async one comes from the loop that it needs."""
        in_loop = None if self._lifespan is None else self._lifespan.run
        if loop is not None:
            return importlib.import_module(loop).run(_awaited(call)) if in_loop is None else in_loop(call)
        value = call()
        # That of an async function, or of a plain wrapper round one, is its coroutine.
        if not hasattr(type(value), "__await__"):
            return value
        run = importlib.import_module("trio").run if in_loop is None else in_loop
        return run(partial(_awaited, lambda: value))


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()


_running: contextvars.ContextVar[_RunningCall | None] = contextvars.ContextVar("running", default=None)


def _context_here() -> Any:
    call = _running.get()
    return None if call is None else call.context()


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
        signature = read_signature(call, injected=_context_class(), raw=place.takes_dict)
        if inspect.iscoroutinefunction(call):
            # Not at its first call, which would wait for it, and whose memory it would count as.
            importlib.import_module(place.loop or "trio")
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

    def __init__(self, channel: Channel, begun: int | None) -> None:
        self._channel = channel
        self._begun = begun
        self._places: dict[str, FunctionPlace] = {}
        self._functions: dict[str, _ProcessFunction] = {}
        self._lifespans: dict[tuple[str, str, str | None], Any] = {}
        self._usual_threads: set[int] = set()

    def know(self, place: FunctionPlace) -> None:
        """Takes note of a function, which is imported at its first call at the latest."""
        self._places[place.id] = place

    def function(self, id: str) -> _ProcessFunction:
        """Returns a function; raises what importing it raises."""
        found = self._functions.get(id)
        if found is None:
            found = self._functions[id] = _ProcessFunction.at(self._places[id])
        return found

    def lifespan(self, place: FunctionPlace) -> Any:
        """Returns the lifespan that a function needs, and opens it if need be; raises what that raises."""
        if place.lifespan is None:
            return None
        make, contexts = load(place.lifespan), _contexts()
        loop = place.loop if contexts.is_async_block(make) else None
        key = place.lifespan.module, place.lifespan.name, loop
        found = self._lifespans.get(key)
        if found is None:
            found = self._lifespans[key] = contexts.Lifespan(make, loop)
        return found

    def open_ahead(self) -> None:
        """Opens the lifespans of all functions that are there. A call that needs one that has failed opens it again."""
        for each in self._functions.values():
            if each.place.lifespan is not None:
                # Should that end this process, the server knows whose it was.
                self._channel.send(ModuleImport(each.place.module))
            try:
                self.lifespan(each.place)
            except BaseException as error:
                _contexts().log_lifespan(error)

    def close(self) -> None:
        """Closes the lifespans, the last one first."""
        for each in reversed(self._lifespans.values()):
            try:
                each.close()
            except Exception as error:
                _contexts().log_lifespan(error)

    def note_threads(self) -> None:
        """Takes the threads that there are for those that modules have started."""
        self._usual_threads = {each.native_id or 0 for each in threading.enumerate()}

    def run(self, run: ProcessRun) -> Done:
        """Runs one call, and returns how it has ended."""
        if sys.platform != "win32" and self._begun is not None:
            # Should this process end, the server knows whether it may run the function in another one.
            os.pwrite(self._begun, run.number.to_bytes(8, "little"), 0)
        try:
            function = self.function(run.function)
        except BaseException as error:
            return Done("start", _cause(error))
        try:
            lifespan = self.lifespan(function.place)
        except BaseException as error:
            return _failed(error)
        self.note_threads()
        call = _RunningCall(run.caller, self._channel, lifespan)
        done = contextvars.copy_context().run(self._called, function, call, run.arguments)
        if not done.retires and self._has_left_threads():
            done = msgspec.structs.replace(done, retires=True)
        return done

    def _called(self, function: _ProcessFunction, running: _RunningCall, given: dict[str, Any]) -> Done:
        _running.set(running)
        running.observe()
        place = function.place
        try:
            arguments = function.bind(given)
            if function.context_name is not None:
                arguments[function.context_name] = running.context()
            call = partial(function.call, **arguments)
            with _ProcessBounds(place.memory, place.cpu):
                return _sent(function, running.value_of(call, place.loop))
        except BaseException as error:
            return _failed(error)

    def _has_left_threads(self) -> bool:
        # Trio and asyncio keep threads that have ended their work, under these names; ours write the log.
        return any(
            (each.native_id or 0) not in self._usual_threads
            and not each.name.startswith(("Trio thread", "asyncio_", "mcp-actors "))
            for each in threading.enumerate()
        )


def _sent(function: _ProcessFunction, value: Any) -> Done:
    try:
        try:
            answer = function.finish(value)
        except UnreadFiles as unread:
            answer = function.finish(read_files(unread.value))
        if isinstance(answer, ValueResult):
            done = Done("value", [answer.text] if answer.value is t.UNSET else [answer.text, answer.value])
        else:
            done = Done("result", _contexts().result_members(answer))
        size = len(msgspec.json.encode(done))
    except UnicodeEncodeError as error:
        # In the words of `encode_reply`, which would meet it in a thread.
        raise InvalidResult(f"result has half of a surrogate pair at position {error.start}") from error
    except Exception as error:
        raise InvalidResult(str(error)) from error
    if size > MOST_BYTES:
        raise InvalidResult(f"a result of {size} bytes; a process can return {MOST_BYTES}")
    return done


def _failed(error: BaseException) -> Done:
    if isinstance(error, MemoryError):
        return Done("memory", retires=True)
    if isinstance(error, BaseExceptionGroup):
        if error.subgroup(MemoryError) is not None:
            return Done("memory", retires=True)
        only = importlib.import_module("mcp_actors.supervision.containment").sole_cause(error)
        if isinstance(only, ToolError):
            return Done("tool", encodable(str(only)))
    if isinstance(error, SystemExit):
        return Done("exit", _exit_code(error), retires=True)
    if isinstance(error, ToolError):
        return Done("tool", encodable(str(error)))
    if isinstance(error, RpcError):
        return Done("rpc", [error.code, encodable(error.message), _json_or_none(error.data)])
    if isinstance(error, InvalidResult):
        return Done("invalid", str(error)[:LONGEST_TEXT])
    frames = users_frames(error.__traceback__) or error.__traceback__
    shown = "".join(traceback.format_exception(type(error), error, frames))
    return Done("raised", [_cause(error), encodable(shown[-_LONGEST_TRACEBACK:])])


def _exit_code(error: SystemExit) -> int:
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


def _cause(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        summary: str = importlib.import_module("mcp_actors._server.failures").summary(error)
        return summary
    text, kind = text_of(error), type(error).__qualname__
    return f"{kind}: {text}"[:LONGEST_TEXT] if text else kind


def _json_or_none(data: Any) -> Any:
    """``data``, or ``None`` if it has no form in JSON."""
    try:
        msgspec.json.encode(data)
    except Exception:
        return None
    return data


# -- The process ---


def main(begun: int | None) -> None:
    """Runs functions for the server at the other end of standard input and output, until that is gone.

    Args:
        begun: The descriptor of a file for the number of the call that is begun; ``None`` where there is none.
    """
    isolated_process.is_here = True
    isolated_process.context = _context_here
    _close_inherited(begun)
    channel = Channel(*_taken_over())
    assignment = channel.first()
    _bind_to_server(assignment.parent)
    sys.path[:] = assignment.path
    sys.argv[:] = assignment.arguments
    if assignment.log is not None:
        # Its lines say which call they belong to.
        _contexts()
        importlib.import_module("mcp_actors.supervision.logging").configure_log(*assignment.log)
    calls = _ProcessCalls(channel, begun)
    for each in assignment.functions:
        calls.know(each)
    threading.Thread(target=channel.read_all, name="mcp-actors reader", daemon=True).start()
    _import_ahead(calls, assignment.functions, channel)
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


def _import_ahead(calls: _ProcessCalls, functions: list[FunctionPlace], channel: Channel) -> None:
    """Imports the modules of functions. One that cannot be imported is left to the calls of its functions."""
    failed: set[str] = set()
    begun: set[str] = set()
    for each in functions:
        if each.module not in begun:
            begun.add(each.module)
            channel.send(ModuleImport(each.module))
        if each.module in failed:
            continue
        try:
            calls.function(each.id)
        except BaseException as error:
            failed.add(each.module)
            channel.send(ModuleImport(each.module, _cause(error)))
            raised = _failed(error)
            sys.stderr.write(raised.value[1] if raised.kind == "raised" else "")
            sys.stderr.flush()


def _close_inherited(begun: int | None) -> None:
    """Closes what the server has left open for its own children, such as sockets that listen."""
    if sys.platform == "linux":
        for each in map(int, os.listdir("/proc/self/fd")):
            # That of the folder itself is closed by now. What this interpreter has opened is not inheritable.
            with suppress(OSError):
                if each > 2 and each != begun and os.get_inheritable(each):
                    os.close(each)
    if begun is not None:
        os.set_inheritable(begun, False)


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
