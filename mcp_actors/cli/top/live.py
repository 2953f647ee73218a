"""``mcp-actors top`` on a terminal: snapshots and keys change what is shown, until the person has seen enough."""

from __future__ import annotations

import importlib
from contextlib import aclosing
from typing import Any

import trio
from rich.console import Console, Group
from rich.live import Live

from mcp_actors.admin import Action
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
    console = Console(highlight=False, markup=False)
    with (
        one_by_one() as descriptor,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        screen = _Screen(client, state, console, live)
        screen.draw()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(screen.follow)
            if descriptor is None:
                return
            async with aclosing(keys(descriptor)) as pressed:
                async for key in pressed:
                    await screen.press(key)
                    if state.done:
                        break
            nursery.cancel_scope.cancel()


class _Screen:
    """The screen of one person."""

    def __init__(self, client: Any, state: TopState, console: Console, live: Live) -> None:
        self._client = client
        self._state = state
        self._console = console
        self._live = live

    def draw(self) -> None:
        """Draws what is to be shown now."""
        width, height = self._console.size
        self._live.update(Group(*picture(self._state, self._client.name, width, height)), refresh=True)

    async def press(self, key: str) -> None:
        """Takes a key, and does at the server what it asks for."""
        action = self._state.press(key)
        self.draw()
        if action is not None:
            self._state.message = await self._act(action)
            self.draw()

    async def _act(self, action: Action) -> str:
        try:
            outcome = await self._client.act(action)
        except _FAILURES as error:
            return str(error)
        return str(outcome.text)

    async def follow(self) -> None:
        """Shows snapshots as they come; tries again when the server is gone."""
        while True:
            try:
                async with self._client.watching() as snapshots:
                    async for snapshot in snapshots:
                        self._state.take(snapshot)
                        self.draw()
                self._state.message = "trying again: the server has ended"
            except _FAILURES as error:
                self._state.message = f"trying again: {error}"
            self.draw()
            await trio.sleep(_TRY_AGAIN)
