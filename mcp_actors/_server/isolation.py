"""Functions of tools that run in processes of their own, which can be ended: ``isolate="process"``.

A `Processes` belongs to one `serve` of a server, and is bounded. Each of its places has a task, which starts a process,
reads what it sends, and starts another one when it has ended. A call takes a process, alone, until its function ends:

=====================================  ================================================================================
the call                               its process
=====================================  ================================================================================
ends with a result or an error         takes the next call
is cancelled, or runs out of its time  is killed, and replaced
asks its client by a retry             has a second to leave the function, whose question raises `CallCancelled` there
takes more memory or processor time    is replaced
ends its process, or crashes it        is replaced
has left threads behind                is replaced
=====================================  ================================================================================

A process that runs nothing when it is to end closes its lifespans first. A function is imported in the process by its
module and qualified name; `mcp_actors._server.isolated` is the other side. Nothing is forked: a process is a new
interpreter, on every system. A module that cannot be imported fails the calls of its functions alone, each of which
tries it again.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import trio

from mcp_actors._actors.limits import Limits
from mcp_actors._schema.signature import Signature, provided_parameters
from mcp_actors._server import isolated_process
from mcp_actors._server.context import Context, holder_of
from mcp_actors._server.failures import ProcessEnded
from mcp_actors._server.invoke import (
    Function,
    Loop,
    ProcessStatistics,
    WorkerThreads,
    isolation_of_process,
)
from mcp_actors._server.isolated_call import Imports, IsolatedFunction, IsolatedProcess, NotBegun, frame_of
from mcp_actors._server.isolated_messages import SCRIPT, FunctionPlace, LifespanPlace
from mcp_actors._server.process_start import Starter
from mcp_actors.errors import LocalProtocolError, Overloaded
from mcp_actors.supervision.containment import start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ISOLATED_PROCESS

__all__ = ["Isolate", "IsolatedFunction", "Processes", "isolated_function", "start_ahead"]

Isolate = Literal["process"]
"""Where a function runs that can be ended."""
# Seconds before a process is started again that could not be started, or has ended by itself before its first call, the
# first and the longest.
_PAUSES = 0.2, 10.0


def _processors() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Processes that start at once: they import for a part of a second each, and one processor is left to the server.
_STARTS_AT_ONCE = max(1, _processors() - 1)
# Modules that cannot be imported, with different reasons, that are in the log.
_MOST_REPORTED = 100

# Modules whose versions are known. Each `--reload` gives the files of a folder new names.
_MOST_VERSIONS = 1000
# The time and size of the file of each module when its last function was registered, and the version that it has since.
_versions: dict[str, tuple[tuple[int, int], int]] = {}
_numbers = itertools.count(1)


# -- What is decided at registration ---


class GivenArguments(dict[str, Any]):
    """Arguments bound to parameters, with those that came, which cross to the process."""

    __slots__ = ("given",)
    given: dict[str, Any]


def isolated_function(
    call: Callable[..., Any],
    signature: Signature,
    tool: str,
    *,
    isolate: object,
    memory: int | None,
    cpu: float | None,
    lifespan: Callable[[], Any] | None,
    inline: bool,
    loop: Loop,
    takes_dict: bool,
    output_schema: Mapping[str, Any] | None,
    declares_output: bool,
) -> tuple[IsolatedFunction, Function]:
    """Decides how a function runs in a process, and returns what runs it there.

    Raises:
        TypeError: The function cannot be found by its module and name, or takes what cannot cross.
        ValueError: An option is out of its range, or contradicts another one.
    """
    if isolate != "process":
        raise ValueError(f'isolate={isolate!r}: write "process", or leave it out')
    if inline:
        raise ValueError(
            'isolate="process": an inline function runs on the event loop itself; remove inline=True'
        )
    _check_bound("memory", memory, "bytes", whole=True)
    _check_bound("cpu", cpu, "seconds", whole=False)
    if provided_parameters(call):
        name = next(iter(provided_parameters(call)))
        raise TypeError(
            f'{_shown(call)}: what Depends makes for {name!r} is in the process of the server; with isolate="process" '
            "make it in the function, or in the lifespan= of the tool, once for each process"
        )
    module, file, packages = _module_of(call)
    place = FunctionPlace(
        "",
        module,
        file,
        packages,
        call.__qualname__,
        takes_dict,
        loop,
        None if output_schema is None else dict(output_schema),
        declares_output,
        memory,
        cpu,
        None if lifespan is None else _lifespan_place(lifespan),
    )
    # Providers make the same tool again and again, which is one function for a process.
    place = msgspec.structs.replace(place, id=hashlib.sha256(frame_of(place).data).hexdigest())
    found = IsolatedFunction(tool, place, frame_of(place), _version(module, file))

    async def run(ctx: Context, arguments: dict[str, Any]) -> Any:
        assert isinstance(arguments, GivenArguments)
        return await processes_of(ctx).run(ctx, found, arguments.given)

    return found, Function(run, inline=False)


def _lifespan_place(lifespan: Callable[[], Any]) -> LifespanPlace:
    body = inspect.unwrap(lifespan)
    if body is lifespan or not (inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body)):
        raise TypeError(
            "lifespan= is a function with one yield, decorated with contextlib.contextmanager or "
            f"contextlib.asynccontextmanager, not {lifespan!r:.80}"
        )
    if any(each.default is each.empty for each in inspect.signature(body).parameters.values()):
        raise TypeError(
            f"the lifespan {_shown(lifespan)} takes no arguments: the server is not in the process that opens it"
        )
    return LifespanPlace(*_module_of(lifespan), lifespan.__qualname__)


def keeping_given(
    bind: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns what binds arguments as ``bind`` does, and keeps those that came."""

    def bound(arguments: dict[str, Any]) -> dict[str, Any]:
        given = GivenArguments(bind(arguments))
        given.given = arguments
        return given

    return bound


def _check_bound(option: str, value: object, unit: str, *, whole: bool) -> None:
    kinds = int if whole else (int, float)
    if value is None or (isinstance(value, kinds) and not isinstance(value, bool) and value > 0):
        return
    raise ValueError(f"{option}={value!r}: write a number of {unit} greater than 0, or leave it out")


def _shown(call: Callable[..., Any]) -> str:
    return getattr(call, "__qualname__", None) or repr(call)


def _module_of(call: Callable[..., Any]) -> tuple[str, str | None, tuple[tuple[str, tuple[str, ...]], ...]]:
    """Returns the name of a function's module in another process, its file, and packages that have none."""
    where = "another process imports it by its module and name"
    if not inspect.isfunction(call):
        raise TypeError(
            f'{_shown(call)} is no plain function, and isolate="process" needs one: {where}; write a def at the top '
            "of a module that calls it"
        )
    if "<" in call.__qualname__:
        kind = "a lambda" if call.__name__ == "<lambda>" else "defined inside another function"
        raise TypeError(
            f'{_shown(call)} is {kind}, and isolate="process" cannot find it: {where}; move it to the top of its '
            "module, and give it as arguments what it takes from around it"
        )
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError(
            f'{_shown(call)} yields its values one by one, which isolate="process" cannot send: collect them in a '
            "list, and return it"
        )
    module = sys.modules.get(call.__module__)
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None)
    if call.__module__ == "__main__":
        if spec is not None and spec.name.rpartition(".")[2] != "__main__":
            return spec.name, spec.origin, ()
        if file is None or not Path(file).is_file():
            raise TypeError(
                f'{_shown(call)} is typed in a session without a file, and isolate="process" cannot find it: {where}; '
                "put it into a module, and import it"
            )
        return SCRIPT, os.path.abspath(file), ()
    packages: list[tuple[str, tuple[str, ...]]] = []
    parts = call.__module__.split(".")
    for number in range(1, len(parts)):
        name = ".".join(parts[:number])
        package = sys.modules.get(name)
        if package is not None and getattr(package, "__spec__", None) is None:
            packages.append((name, tuple(getattr(package, "__path__", ()))))
    return call.__module__, None if file is None else os.path.abspath(file), tuple(packages)


def _version(module: str, file: str | None) -> int:
    """Returns a number that grows when a module has changed, so that no file that changes back runs older functions."""
    try:
        status = os.stat(file or "")
        stamp = status.st_mtime_ns, status.st_size
    except OSError:
        stamp = 0, 0
    former, version = _versions.pop(module, (None, 0))
    _versions[module] = stamp, version if former == stamp else next(_numbers)
    if len(_versions) > _MOST_VERSIONS:
        # The one that was registered longest ago. It has a greater number if it comes again, as if it had changed.
        del _versions[next(iter(_versions))]
    return _versions[module][1]


# -- All processes of a server ---


class _Starts:
    """The starts of processes: how many go on at once, and the modules that they leave out."""

    def __init__(self) -> None:
        self.at_once = trio.CapacityLimiter(_STARTS_AT_ONCE)
        self.by_calls: set[str] = set()
        """Those that have ended a process which imported them ahead, or opened a lifespan for them: the calls of their
        functions do that."""
        self._reported: set[tuple[str, str]] = set()

    def note(self, imports: Imports) -> bool:
        """Takes note of the imports of a process, and returns whether the next one has one module less to import."""
        for failed, why in imports.failed.items():
            self._report(failed, why)
        module = imports.module
        if imports.ended is None or module is None:
            return False
        self.by_calls.add(module)
        self._report(module, f"{imports.ended} while it is imported, or opens a lifespan")
        return True

    def _report(self, module: str, why: str) -> None:
        # Every process that starts would say the same.
        if (module, why) not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add((module, why))
            log.error("a module of isolated functions cannot be imported", module=module, why=why)


class _ProcessPlace(msgspec.Struct, eq=False):
    """The place of one process, and of those that replace it."""

    number: int
    scope: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)
    """That of its task."""
    process: IsolatedProcess | None = None
    is_ready: bool = False
    """Whether the process has imported its modules, and opened its lifespans."""
    ends: int = 0
    """The processes that have ended here."""
    reason: str | None = None
    """Why the last one has."""
    since: float = msgspec.field(default_factory=trio.current_time)
    """When that was, or the process was started."""

    def started(self, process: IsolatedProcess) -> None:
        self.process, self.since = process, trio.current_time()
        isolation_of_process.started += 1

    def ended(self, reason: str) -> None:
        self.process, self.is_ready, self.since = None, False, trio.current_time()
        self.ends += 1
        self.reason = reason
        isolation_of_process.ended[reason] += 1

    def statistics(self) -> ProcessStatistics:
        process, now = self.process, trio.current_time()
        if process is None:
            pid, tool, calls, began = None, None, 0, None
        else:
            pid, tool, calls, began = process.pid, process.tool, process.calls, process.began
        state = "starting" if not self.is_ready else "idle" if tool is None else "busy"
        age = now - (self.since if began is None else began)
        return ProcessStatistics(self.number, pid, state, tool, age, calls, self.ends, self.reason)


class Processes:
    """The processes of one server in one `serve`, and the calls that wait for one.

    One caller has half of them at most, so that the other half is there for others.

    Args:
        nursery: Owns the tasks of the processes.
        limits: Says how many there are, how many calls may wait for one, and for how long.
    """

    def __init__(self, nursery: trio.Nursery, limits: Limits) -> None:
        self._nursery = nursery
        self._limits = limits
        self._places = WorkerThreads(limits.isolated_processes)
        self._starter = Starter()
        self._functions: dict[tuple[str, str], IsolatedFunction] = {}
        self._idle: list[IsolatedProcess] = []
        self._all: set[IsolatedProcess] = set()
        self._process_places: list[_ProcessPlace] = []
        self._changed = trio.lowlevel.ParkingLot()
        self._failure: str | None = None
        self._starts = _Starts()
        self._waiting = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Processes {len(self._idle)} idle of {len(self._all)}>"

    def know(self, functions: Sequence[IsolatedFunction]) -> None:
        """Has processes that start from now on import the modules of functions, and starts the first ones."""
        for each in functions:
            key = each.place.module, each.place.name
            if key in self._functions and self._functions[key].version < each.version:
                self._starts.by_calls.discard(each.place.module)
            self._functions[key] = each
        while len(self._process_places) < self._limits.isolated_processes:
            place = _ProcessPlace(len(self._process_places) + 1)
            self._process_places.append(place)
            start_again(self._nursery, ISOLATED_PROCESS, self._keep, place)

    def close(self) -> None:
        """Ends all processes; their tasks wait for that."""
        self._is_closed = True
        for each in self._process_places:
            each.scope.cancel(reason="the server has ended")
        self._close_starter()

    def _close_starter(self) -> None:
        # Not before: Linux ends a process with the thread that has started it.
        if self._is_closed and not self._all:
            self._starter.close()

    def statistics(self) -> list[ProcessStatistics]:
        """Returns what each process does."""
        return [each.statistics() for each in self._process_places]

    async def run(self, ctx: Context, function: IsolatedFunction, arguments: dict[str, Any]) -> Any:
        """Runs a function in a process, alone, when one is free. Cancelled, it ends the process.

        Raises:
            Overloaded: Too many calls wait for a process, or this one has waited too long.
            ProcessEnded: The process ended before the function, or none can be started.
            Exception: As `IsolatedProcess.run`.
        """
        known = self._functions.get((function.place.module, function.place.name))
        if known is None or known.version < function.version:
            self.know([function])
        limits, caller, borrower = self._limits, holder_of(ctx), object()
        if self._waiting >= limits.max_waiting:
            raise self._refusal()
        self._waiting += 1
        has_place = False
        try:
            process = None
            with trio.move_on_after(limits.max_wait):
                await self._places.acquire(borrower, caller)
                has_place = True
                process = await self._taken(function)
        except BaseException:
            if has_place:
                self._places.release(borrower, caller)
            raise
        finally:
            self._waiting -= 1
        try:
            # Each of them may have been killed while it was idle, and nobody has noticed.
            tries = limits.isolated_processes + 1
            while process is not None:
                try:
                    return await process.run(ctx, function, arguments)
                except NotBegun as error:
                    tries -= 1
                    if not tries and error.__cause__ is not None:
                        raise error.__cause__ from None
                process = None
                with trio.move_on_after(limits.max_wait):
                    process = await self._taken(function)
            raise self._refusal()
        finally:
            if has_place:
                self._places.release(borrower, caller)

    def _refusal(self) -> Overloaded:
        return Overloaded("pool of processes", self._limits.isolated_processes, self._waiting)

    async def _taken(self, function: IsolatedFunction) -> IsolatedProcess:
        while True:
            while self._idle:
                process = self._idle.pop()
                if not process.has_ended and process.takes(function):
                    return process
                # It was killed while it was idle, its module was loaded again, or it knows too many functions.
                process.retire(None if process.has_ended else ("stale", "it is replaced"))
            if self._failure is not None:
                raise ProcessEnded("start", f"{function.tool}: its process cannot be started", self._failure)
            await self._changed.park()

    def _freed(self, process: IsolatedProcess) -> None:
        if not process.is_retired:
            self._idle.append(process)
            self._changed.unpark()

    # -- the tasks of the processes ----------------------------------------------------------------------------------

    async def _keep(self, place: _ProcessPlace) -> None:
        """Keeps one process, and another one when it has ended."""
        pause, longest = _PAUSES
        with place.scope:
            while not self._is_closed:
                failure, was_used = await self._live(place)
                if was_used:
                    pause = _PAUSES[0]
                    continue
                if failure is None:
                    log.error("a process for functions has ended before its first call", again_in=pause)
                else:
                    log.error("a process for functions cannot be started", why=failure, again_in=pause)
                    self._failure = failure
                    self._changed.unpark_all()
                await trio.sleep(pause)
                pause = min(pause * 2, longest)

    async def _live(self, place: _ProcessPlace) -> tuple[str | None, bool]:
        """Starts a process, and waits for its end.

        Returns:
            Why it cannot begin, if so; and whether the server has called it or ended it, or leaves out what it could
            not import, so that the next one may be started at once.
        """
        process: IsolatedProcess | None = None
        try:
            async with self._starts.at_once:
                try:
                    started = await self._starter.begin()
                except OSError as error:
                    return f"{error.strerror}", False
                process = IsolatedProcess(started, self._freed)
                place.started(process)
                self._all.add(process)
                ahead = [
                    each
                    for each in self._functions.values()
                    if each.place.module not in self._starts.by_calls
                ]
                imports = await process.begin(ahead)
            is_left_out = self._starts.note(imports)
            if imports.ended is not None:
                return (None, True) if is_left_out else (imports.ended, False)
            self._failure = None
            place.is_ready = True
            self._freed(process)
            await process.read()
        finally:
            if process is not None:
                if process in self._idle:
                    self._idle.remove(process)
                await process.end(in_order=place.is_ready)
                self._all.discard(process)
                self._close_starter()
                place.ended("server" if self._is_closed else process.ended if place.is_ready else "start")
        return None, process.was_used


def processes_of(ctx: Context) -> Processes:
    """Returns the processes of the server that answers a call."""
    return _processes_in(ctx._scope.kept, ctx._scope.limits)


def start_ahead(kept: Any, limits: Limits, functions: Sequence[IsolatedFunction]) -> None:
    """Starts the processes of a server that has such functions when it is served.

    Args:
        kept: The `mcp_actors._server.dependencies.ServeValues` of the server.
        limits: Its limits.
        functions: The functions.
    """
    _processes_in(kept, limits).know(functions)


def _processes_in(kept: Any, limits: Limits) -> Processes:
    if isolated_process.is_here:
        raise LocalProtocolError(
            "a process for isolated functions imports the program, which serves while it is imported: put what runs it "
            'below if __name__ == "__main__":'
        )
    if kept.processes is None:
        kept.processes = Processes(kept.nursery, limits)
    found: Processes = kept.processes
    return found
