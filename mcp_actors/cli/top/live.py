"""``mcp-actors top`` on a terminal: snapshots and keys change what is shown, until the person has seen enough."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any, Self

import trio
from rich.console import Console, Group
from rich.live import Live

from mcp_actors.admin import Action, cleaned
from mcp_actors.cli.top.keys import keys, one_by_one
from mcp_actors.cli.top.screen import everything, picture
from mcp_actors.cli.top.state import TopState
from mcp_actors.errors import ConnectFailed, ConnectionLost, RemoteProtocolError

__all__ = ["client_of", "one_picture", "watch"]

# Seconds between two attempts to reach a server that was there before.
_TRY_AGAIN = 1.0
_FAILURES = (ConnectFailed, ConnectionLost, RemoteProtocolError)


def client_of(where: str, token: str | None) -> Any:
    """Returns a `mcp_transports.admin.AdminClient`.

    Raises:
        ValueError: ``where`` is no place of an admin endpoint.
    """
    return importlib.import_module("mcp_transports.admin").AdminClient(where, token)


async def one_picture(client: Any) -> str:
    """Returns one snapshot as text, the first one that has rates: so it takes an interval, if nobody else watches.

    Raises:
        ConnectFailed, ConnectionLost, RemoteProtocolError: There is no snapshot to be had.
    """
    state = TopState()
    async with client.watching() as snapshots:
        async for snapshot in snapshots:
            rated = state.snapshot is not None or any(each.rates for each in snapshot.nodes)
            state.snapshot = snapshot
            if rated:
                break
    return "\n".join(line.plain for line in everything(state, client.name))


async def watch(client: Any) -> None:
    """Shows snapshots until the person quits.

    Raises:
        ConnectFailed, ConnectionLost, RemoteProtocolError: There is no first snapshot to be had.
    """
    state = TopState(snapshot=await client.snapshot())
    with _signals() as signals, _Screen(client, state) as screen:
        screen.draw()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(screen.follow)
            if signals is not None:
                nursery.start_soon(screen.stop_and_go_on, signals)
            if screen.descriptor is None:
                return
            async with aclosing(keys(screen.descriptor)) as pressed:
                async for key in pressed:
                    screen.press(key, nursery)
                    if state.done:
                        break
            nursery.cancel_scope.cancel()


@contextmanager
def _signals() -> Iterator[AsyncIterator[int] | None]:
    """Catches what stops a program, lets it go on, or changes the size of its terminal; nothing on Windows."""
    if sys.platform == "win32":
        yield None
    else:
        with trio.open_signal_receiver(signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH) as signals:
            yield signals


def _stop() -> None:
    """Stops this process as the signal does that it has caught; returns when it goes on."""
    if sys.platform != "win32":
        caught = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, caught)


class _Screen:
    """The screen of one person, a context manager that takes the terminal and gives it back as it was."""

    def __init__(self, client: Any, state: TopState) -> None:
        self._client = client
        self._state = state
        self._console = Console(highlight=False, markup=False)
        self._taken = ExitStack()
        self._live: Live | None = None
        self.descriptor: int | None = None
        """Where keys come from; ``None`` where none can be had."""

    def __enter__(self) -> Self:
        self.descriptor = self._taken.enter_context(one_by_one())
        live = Live(console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live = self._taken.enter_context(live)
        return self

    def __exit__(self, *_: object) -> None:
        self._live = None
        self._taken.close()

    def draw(self) -> None:
        """Draws what is to be shown now."""
        if self._live is not None:
            width, height = self._console.size
            shown = picture(self._state, self._client.name, width, height)
            self._live.update(Group(*shown), refresh=True)

    def press(self, key: str, nursery: trio.Nursery) -> None:
        """Takes a key, and does at the server what it asks for, while other keys are taken."""
        action = self._state.press(key)
        if action is not None:
            self._state.message = "the server is asked"
            nursery.start_soon(self._act, action)
        self.draw()

    async def _act(self, action: Action) -> None:
        try:
            outcome = await self._client.act(action)
            self._state.message = cleaned(outcome.text) or ""
        except _FAILURES as error:
            self._state.message = str(error)
        self.draw()

    async def stop_and_go_on(self, signals: AsyncIterator[int]) -> None:
        """Gives the terminal back before Ctrl-Z stops this process, and takes it again when it goes on."""
        async for number in signals:
            if sys.platform != "win32" and number != signal.SIGWINCH:
                self.__exit__()
                if number == signal.SIGTSTP:
                    _stop()
                self.__enter__()
            self.draw()

    async def follow(self) -> None:
        """Shows snapshots as they come; tries again when the server is gone."""
        while True:
            try:
                async with self._client.watching() as snapshots:
                    async for snapshot in snapshots:
                        self._state.take(snapshot)
                        self.draw()
                self._state.trouble = "trying again: the server has ended"
            except _FAILURES as error:
                self._state.trouble = f"trying again: {error}"
            self.draw()
            await trio.sleep(_TRY_AGAIN)
