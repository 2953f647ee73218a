"""Imports the target again, in a thread that is given up when it takes too long."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import outcome
import trio

from mcp_actors import Server
from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.reload.modules import OwnModules
from mcp_actors.cli.target import load_again

__all__ = ["ImportTooLong", "Importer"]

# Seconds that an import may take: the file may import for the first time what takes many.
IMPORT_BOUND = 30.0
# Imports that were given up and have not ended. Each has a thread, which nothing can end while it waits.
MOST_GIVEN_UP = 8


class ImportTooLong(CommandFailure):
    """The target was not imported in time."""


class _GivenUp(BaseException):
    """Ends an import that nobody waits for."""


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
        """The threads that run, in which imports were given up, beside that of the import that is waited for."""
        self._is_loading = False
        self._good = modules.loaded()
        self.files = modules.files()
        """The files of the last import, or those that it came to."""

    @asynccontextmanager
    async def load(self) -> AsyncIterator[Server]:
        """Imports the modules again and yields the server. Where the block raises, those before are imported again.

        Cancelled, it gives the import up.

        Raises:
            CommandFailure: The target failed, did not end, or too many imports before have not ended.
        """
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
                # It has the locks of the modules that it is importing, and would stop every other import of them.
                locks = getattr(importlib.import_module("importlib._bootstrap"), "_module_locks", {})
                for name in self._modules.loaded():
                    locks.pop(name, None)

    def _late(self, thread: _ImportThread) -> None:
        """Takes note that an import has ended: one that was given up takes its modules out of Python's again."""
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
        finally:
            try:
                self._token.run_sync_soon(self._end)
            except trio.RunFinishedError:
                return

    def _end(self) -> None:
        self.ended.set()
        self._on_end(self)

    def take_server(self) -> Server:
        """Returns what was loaded.

        Raises:
            CommandFailure: The target failed, with whatever it has raised.
        """
        result, self._outcome = self._outcome, None
        try:
            assert result is not None
            return result.unwrap()
        except CommandFailure:
            raise
        except BaseException as error:
            # Also what would end a program: in this thread it ends nothing but the import.
            raise CommandFailure(f"cannot import {self._target}: {type(error).__name__}") from error

    def give_up(self) -> None:
        """Raises `_GivenUp` in the thread, as soon as it runs Python code."""
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_GivenUp))
