"""Waits for a change, makes the server anew, and puts it in the place of the one that serves.

`FileWatch` notices the change, `OwnModules` knows what to import again, and `Importer` does that in a thread. A failure
is written to standard error (`failure_block`), and the old server goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import sleep
from types import ModuleType
from typing import Any

import outcome
import trio
from watchfiles import DefaultFilter, watch

from mcp_actors import Server
from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.output import echo, safe
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.cli.target import is_ours, load_again, split_target
from mcp_actors.supervision.containment import start, start_again
from mcp_actors.supervision.task_kinds import RELOAD, RELOAD_WATCH

__all__ = ["FileWatch", "ImportTooLong", "Importer", "OwnModules", "Reloading", "Signatures", "failure_block"]


# Seconds that an import may take: the file may import something slow for the first time.
IMPORT_BOUND = 30.0
# Seconds that the new server's lifespan and extensions may take to begin.
BEGIN_BOUND = 30.0
# Seconds after which a reload is given up for the next change. A change that comes earlier waits for it, so that one
# that is always followed by others ends all the same.
PATIENCE = 2.0
# Seconds between the begins of two reloads.
PAUSE = 0.25


class Reloading:
    """A target that is served, and loaded again when its files change.

    Args:
        target: As `load_server` has it.
        args: The arguments for a function that makes a server.
        first: The server that was loaded from it.
        folders: Folders in which every change counts, beside the files that were imported.
        offer: Says in a line what a server has.
        equip: Gives a server that was loaded again what the first one was given, beside its own.
    """

    def __init__(
        self,
        target: str,
        args: Sequence[str],
        first: Server,
        folders: Sequence[str],
        offer: Callable[[Server], str],
        equip: Callable[[Server], object] = lambda server: None,
        *,
        bound: float = IMPORT_BOUND,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        place, attribute = split_target(target)
        if place.endswith(".py") or os.sep in place:
            # The program may change its working directory.
            target = os.path.abspath(place) + (f":{attribute}" if attribute else "")
        self.server = ReplaceableServer(first, self.run)
        """The server to serve."""
        self._target = target
        self._offer = offer
        self._equip = equip
        self._tell = tell or _tell_person
        modules = OwnModules(target)
        self._importer = Importer(target, args, modules, bound)
        self._watch = FileWatch(modules.root, [os.path.abspath(each) for each in folders])
        self._since = time.time()

    async def run(self) -> None:
        """Reloads whenever something changes; never returns."""
        watch = self._watch
        watch.expect(self._importer.files, {}, failed=False)
        async with trio.open_nursery() as nursery:
            start_again(nursery, RELOAD_WATCH, watch.watch_files)
            if watch.others:
                start_again(nursery, RELOAD_WATCH, watch.watch_others, about="named folders")
            await watch.changed()
            while True:
                scope, ended = trio.CancelScope(), trio.Event()
                begun = trio.current_time()
                start(nursery, RELOAD, self._reload_within, scope, ended)
                await watch.changed()
                with trio.move_on_at(begun + PATIENCE):
                    await ended.wait()
                scope.cancel(reason="a file has changed again")
                await ended.wait()
                await trio.sleep_until(begun + PAUSE)

    async def _reload_within(self, scope: trio.CancelScope, ended: trio.Event) -> None:
        try:
            with scope:
                await self._reload()
        finally:
            ended.set()

    async def _reload(self) -> None:
        before = await trio.to_thread.run_sync(self._watch.look)
        begun = trio.current_time()
        try:
            async with self._importer.load() as server:
                self._equip(server)
                with trio.move_on_after(BEGIN_BOUND) as bound:
                    await self.server.replace(server)
                if bound.cancelled_caught:
                    raise CommandFailure(f"its lifespan did not begin within {BEGIN_BOUND:g} s")
        except (Exception, SystemExit) as error:
            self._watch.expect(self._importer.files, before, failed=True)
            await self._say(failure_block(self._target, error, self._since))
            return
        self._watch.expect(self._importer.files, before, failed=False)
        self._since = time.time()
        seconds = trio.current_time() - begun
        await self._say(f"mcp-actors: reloaded in {seconds:.2f} s: {safe(self._offer(server))}")

    async def _say(self, text: str) -> None:
        # The reader of standard error may be slow.
        await trio.to_thread.run_sync(self._tell, text, abandon_on_cancel=True)


def _tell_person(text: str) -> None:
    echo(text, err=True)


# -- The modules of the target's own folder: the only ones that a reload imports again -----------------

# The engine runs, and must not be imported a second time, where the target is in a checkout of it.
_ENGINE = ("mcp_actors", "mcp_transports")
_NOT_ENGINE = "mcp_actors.examples"
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class OwnModules:
    """The modules in the folder of a target and below it, except for what is installed there.

    Args:
        target: As `mcp_actors.cli.target.load_server` has it; a module has to be imported already.
    """

    def __init__(self, target: str) -> None:
        self.root = _folder_of(split_target(target)[0])

    def __repr__(self) -> str:
        return f"<OwnModules below {self.root}>"

    def loaded(self) -> dict[str, ModuleType]:
        """Returns the modules that are imported now, by name."""
        # One step: a list of the items may start the collector, and code that it runs may import something.
        return {name: each for name, each in sys.modules.copy().items() if self._is_own(name, each)}

    def files(self) -> list[str]:
        """Returns the files of the modules that are imported now."""
        return [str(each.__file__) for each in self.loaded().values()]

    def take_out(self) -> dict[str, ModuleType]:
        """Makes Python forget these modules, so that it imports them again, and returns them."""
        taken = self.loaded()
        for name in taken:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return taken

    def put_back(self, taken: Mapping[str, ModuleType]) -> None:
        """Puts back what `take_out` has returned, in the place of all that was imported since."""
        for name in self.loaded().keys() - taken.keys():
            sys.modules.pop(name, None)
        sys.modules.update(taken)

    def _is_own(self, name: str, module: object) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or name == "__main__":
            return False
        if _within(name, _ENGINE) and not _within(name, (_NOT_ENGINE,)):
            return False
        path = Path(file)
        if not path.is_relative_to(self.root) or not _INSTALLED.isdisjoint(path.parts):
            return False
        prefix = Path(sys.prefix)
        return not (prefix.is_relative_to(self.root) and path.is_relative_to(prefix))


def _within(name: str, packages: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in packages)


def _folder_of(place: str) -> Path:
    """Returns the folder of a file, or of the package or module that is imported first for a module."""
    if place.endswith(".py") or os.sep in place:
        return Path(place).resolve().parent
    top = _NOT_ENGINE if _within(place, (_NOT_ENGINE,)) else place.partition(".")[0]
    spec = importlib.util.find_spec(top)
    # A package without an `__init__.py` has no file, but places.
    places = (
        [] if spec is None else [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    )
    if not places or places[0] is None:
        return Path.cwd()
    first = Path(places[0]).resolve()
    return first if first.is_dir() else first.parent


# -- The import, in a thread that is given up when it takes too long -----------------------------------

# Imports that were given up and have not ended. Each has a thread, which nothing can end while it waits.
MOST_GIVEN_UP = 8


class ImportTooLong(CommandFailure):
    """The target was not imported in time."""


class _GivenUp(BaseException):
    """Ends an import that is no longer waited for."""


class Importer:
    """Makes the server of a target again and again.

    An import that is given up is ended where it runs Python code. Where it waits, for a network or a lock, its thread
    stays until that returns, and does no harm meanwhile: the process ends without it.

    Args:
        target: As `load_server` has it.
        args: The arguments for a function that makes a server.
        modules: The modules that are imported again.
        bound: The seconds that an import may take.
    """

    def __init__(
        self, target: str, args: Sequence[str], modules: OwnModules, bound: float = IMPORT_BOUND
    ) -> None:
        self._target = target
        self._args = args
        self._modules = modules
        self._bound = bound
        self._given_up: set[_ImportThread] = set()
        """The running threads of imports that were given up; the current import is not among them."""
        self._is_loading = False
        self._good = modules.loaded()
        self.files = modules.files()
        """The files of the last import, or those that it reached before it failed."""

    @asynccontextmanager
    async def load(self) -> AsyncIterator[Server]:
        """Imports the modules again and yields the server. If the block raises, the modules from before are put back.

        Cancelled, it gives the import up.

        Raises:
            CommandFailure: The target failed, did not end, or too many imports before have not ended.
        """
        self._given_up = {each for each in self._given_up if each.is_alive()}
        if len(self._given_up) >= MOST_GIVEN_UP:
            raise ImportTooLong(
                f"{len(self._given_up)} imports of {self._target} have not ended: start mcp-actors again"
            )
        before = self._modules.take_out()
        self._is_loading = True
        try:
            server = await self._imported()
            self.files = self._modules.files()
            yield server
        except BaseException:
            self.files = [*{*self.files, *self._modules.files()}]
            self._modules.put_back(before)
            raise
        finally:
            self._good = self._modules.loaded()
            self._is_loading = False

    async def _imported(self) -> Server:
        thread = _ImportThread(self._target, self._args, trio.lowlevel.current_trio_token(), self._late)
        self._given_up.add(thread)
        thread.start()
        try:
            with trio.move_on_after(self._bound):
                await thread.ended.wait()
            if not thread.ended.is_set():
                raise ImportTooLong(f"{self._target} was not imported within {self._bound:g} s")
            return thread.take_server()
        finally:
            if thread.ended.is_set():
                self._given_up.discard(thread)
            else:
                thread.give_up()
                # It holds the locks of the modules that it imports, and would block every other import of them.
                locks = getattr(importlib.import_module("importlib._bootstrap"), "_module_locks", {})
                for name in self._modules.loaded():
                    locks.pop(name, None)

    def _late(self, thread: _ImportThread) -> None:
        """Notes that an import has ended; if it was given up, its modules are removed again."""
        if thread in self._given_up and not self._is_loading:
            self._given_up.discard(thread)
            self._modules.put_back(self._good)


class _ImportThread(threading.Thread):
    """Imports a target. It is a daemon: the process does not wait for it at its end."""

    def __init__(
        self,
        target: str,
        args: Sequence[str],
        token: trio.lowlevel.TrioToken,
        on_end: Callable[[_ImportThread], None],
    ) -> None:
        super().__init__(name="mcp-actors import", daemon=True)
        self.ended = trio.Event()
        self._target = target
        self._args = args
        self._token = token
        self._on_end = on_end
        self._outcome: outcome.Outcome[Server] | None = None

    def run(self) -> None:
        try:
            self._outcome = outcome.capture(load_again, self._target, self._args)
            self._token.run_sync_soon(self._end)
        except (_GivenUp, trio.RunFinishedError):
            # It was given up just as it ended, or the server has ended meanwhile.
            return

    def _end(self) -> None:
        self.ended.set()
        self._on_end(self)

    def take_server(self) -> Server:
        """Returns what was loaded.

        Raises:
            CommandFailure: The target failed; the cause is what it raised.
        """
        result, self._outcome = self._outcome, None
        try:
            assert result is not None
            return result.unwrap()
        except CommandFailure:
            raise
        except BaseException as error:
            # This includes what would end a program: in this thread it ends only the import.
            raise CommandFailure(f"cannot import {self._target}: {type(error).__name__}") from error

    def give_up(self) -> None:
        """Raises `_GivenUp` in the thread, as soon as it runs Python code."""
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_GivenUp))


# -- The lines that ``--reload`` writes to standard error ----------------------------------------------

# Frames that are shown of a traceback: those where it ended.
MOST_FRAMES = 12
_ENGINE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_EXAMPLES_FOLDER = os.path.join(_ENGINE_FOLDER, "examples")
_LIBRARY = frozenset({contextlib.__file__, importlib.__file__})
_TRIO = f"{os.sep}site-packages{os.sep}trio{os.sep}"


def failure_block(what: str, error: BaseException, since: float) -> str:
    """Returns the report of a reload that failed: the error, the user's own frames, and what goes on.

    Args:
        what: The target.
        error: The error, or the `CommandFailure` that it was turned into.
        since: When the version was loaded that serves on, in seconds since the epoch.
    """
    cause = error.__cause__ if isinstance(error, CommandFailure) else error
    clock = time.strftime("%H:%M:%S", time.localtime(since))
    if cause is None:
        lines = [f"mcp-actors: {what} was not reloaded: {error}"]
    else:
        lines = [f"mcp-actors: {what} was not reloaded:", *_frames(cause)]
    lines.append(f"mcp-actors: what was loaded at {clock} serves on; the next change of a file is tried")
    return "\n".join(safe(line) for line in lines)


def _frames(error: BaseException) -> Iterator[str]:
    """Yields the lines of the user's own frames, and of the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    trace = traceback.TracebackException.from_exception(error)
    own = [frame for frame in trace.stack if not _is_of_the_engine(frame.filename)]
    shown = traceback.StackSummary.from_list(own[-MOST_FRAMES:])
    for text in (*shown.format(), *trace.format_exception_only()):
        yield from text.rstrip("\n").split("\n")


def _is_of_the_engine(filename: str) -> bool:
    if is_ours(filename) or filename in _LIBRARY or _TRIO in filename:
        return True
    return filename.startswith(_ENGINE_FOLDER + os.sep) and not filename.startswith(_EXAMPLES_FOLDER + os.sep)


# -- Changes of files: noticed at once where the system reports them, once a second elsewhere ----------

# Milliseconds between two looks where the system sends no notices: network file systems, a folder that was deleted and
# made again.
LOOK_EVERY = 1000
# Milliseconds without a change after which changes are reported, and the most for which they are collected before: an
# editor that saves makes several.
STEP, DEBOUNCE = 50, 400
# Python files of a folder that are watched when it is unknown which of them matter.
MOST_FILES = 1000

Signatures = Mapping[str, tuple[int, ...] | None]
"""The look of files: their time, size and inode, ``None`` for one that is not there."""
_Tell = Callable[[Signatures], None]


class FileWatch:
    """Watches the files that the target was imported from, and folders that the user names.

    Folders are watched rather than files, as editors put a new file in the place of the old one.

    Args:
        folder: The folder of the target.
        others: Folders in which every change counts, with all below them.
    """

    def __init__(self, folder: Path, others: Sequence[str]) -> None:
        self.others = others
        self._folder = str(folder)
        self._files: frozenset[str] = frozenset()
        self._all_python = False
        self._expected: Signatures = {}
        self._has_changed = trio.Event()
        self._stop = trio.Event()

    def __repr__(self) -> str:
        return f"<FileWatch of {len(self._files)} files>"

    def look(self) -> Signatures:
        """Returns how all files look that may matter to the next import. For a worker thread."""
        beside = (file for each in self._folders() for file in _python_files(each))
        return _signatures([*self._files, *beside])

    def expect(self, files: Iterable[str], before: Signatures, *, failed: bool) -> None:
        """Watches the files of an import from now on.

        Args:
            files: The files.
            before: The result of `look` before the import, so that a change during it counts.
            failed: Whether the import failed: then every Python file beside them may mend it.
        """
        self._files = frozenset(files)
        self._all_python = failed
        known = before if failed else {file: before[file] for file in self._files if file in before}
        self._expected = {**_signatures(self._files - before.keys()), **known}
        # The folders may have changed.
        self._stop.set()

    async def changed(self) -> None:
        """Waits until something has changed since this returned last."""
        await self._has_changed.wait()
        self._has_changed = trio.Event()

    async def watch_files(self) -> None:
        """Watches what the target was imported from; never returns."""
        while True:
            self._stop = stop = trio.Event()
            looked = partial(self._looked, stop)
            await _in_thread(partial(self._watch_files, self._folders()), stop, looked)

    async def watch_others(self) -> None:
        """Watches the other folders; never returns."""
        while True:
            await _in_thread(self._watch_others, trio.Event(), lambda _: self._has_changed.set())

    def _folders(self) -> list[str]:
        return sorted({self._folder, *(os.path.dirname(file) for file in self._files)})

    def _watch_files(self, folders: Sequence[str], stop: trio.Event, tell: _Tell) -> None:
        for _ in _looks(folders, stop, recursive=False):
            tell(self.look() if self._all_python else _signatures(self._files))

    def _looked(self, stop: trio.Event, seen: Signatures) -> None:
        if not stop.is_set() and seen != self._expected:
            self._expected = seen
            self._has_changed.set()

    def _watch_others(self, stop: trio.Event, tell: _Tell) -> None:
        accepts = DefaultFilter()
        for changes in _looks(self.others, stop, recursive=True):
            if any(accepts(*each) for each in changes):
                tell({})


async def _in_thread(function: Callable[[trio.Event, _Tell], None], stop: trio.Event, tell: _Tell) -> None:
    """Runs a function in a thread of its own until ``stop`` is set, which a cancellation does."""
    token = trio.lowlevel.current_trio_token()

    def tell_loop(seen: Signatures) -> None:
        try:
            token.run_sync_soon(tell, seen)
        except trio.RunFinishedError:
            stop.set()

    try:
        await trio.to_thread.run_sync(
            function, stop, tell_loop, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
    finally:
        stop.set()


def _looks(folders: Sequence[str], stop: trio.Event, *, recursive: bool) -> Iterator[set[tuple[Any, str]]]:
    """Yields the changes in some folders, or none of them when it is time to look; ends soon after ``stop`` is set.

    It also ends when a folder comes or goes, and looks only once a second where nothing can be watched.
    """
    yield set()
    there = [each for each in folders if os.path.isdir(each)]
    try:
        for changes in watch(
            *there,
            watch_filter=None,
            step=STEP,
            debounce=DEBOUNCE,
            stop_event=stop,
            rust_timeout=LOOK_EVERY,
            yield_on_timeout=True,
            raise_interrupt=False,
            ignore_permission_denied=True,
            recursive=recursive,
        ):
            yield changes
            if there != [each for each in folders if os.path.isdir(each)]:
                return
    except (OSError, RuntimeError):
        # This machine allows no more watches, or a folder has gone meanwhile.
        sleep(LOOK_EVERY / 1000)


def _python_files(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(each.path for each in entries if each.name.endswith(".py"))
    except OSError:
        return []
    return found[:MOST_FILES]


def _signatures(files: Iterable[str]) -> dict[str, tuple[int, ...] | None]:
    return {file: _signature(file) for file in files}


def _signature(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
