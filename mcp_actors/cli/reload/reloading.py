"""Waits for a change, makes the server anew, and puts it in the place of the one that serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import click
import trio

from mcp_actors import Server
from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.output import safe
from mcp_actors.cli.reload.importing import IMPORT_BOUND, Importer
from mcp_actors.cli.reload.modules import OwnModules
from mcp_actors.cli.reload.report import failure_block
from mcp_actors.cli.reload.watching import FileWatch
from mcp_actors.cli.target import split_target
from mcp_actors.replacement import ReplaceableServer
from mcp_actors.supervision import start, start_again
from mcp_actors.task_kinds import RELOAD, RELOAD_WATCH

__all__ = ["Reloading"]

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
    """

    def __init__(
        self,
        target: str,
        args: Sequence[str],
        first: Server,
        folders: Sequence[str],
        offer: Callable[[Server], str],
        *,
        bound: float = IMPORT_BOUND,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        place, attribute = split_target(target)
        if place.endswith(".py") or os.sep in place:
            # The program may go to another folder.
            target = os.path.abspath(place) + (f":{attribute}" if attribute else "")
        self.server = ReplaceableServer(first, self.run)
        """The server to serve."""
        self._target = target
        self._offer = offer
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
        # Whoever reads standard error may be slow.
        await trio.to_thread.run_sync(self._tell, text, abandon_on_cancel=True)


def _tell_person(text: str) -> None:
    click.echo(text, err=True)
