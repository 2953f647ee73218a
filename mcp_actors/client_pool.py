"""Clients that are opened and closed in any order, from any task."""

from __future__ import annotations

import trio

from mcp_actors._argument_checks import require_trio
from mcp_actors._client.nesting import BlockNursery
from mcp_actors.client import Client
from mcp_actors.errors import LocalProtocolError

__all__ = ["ClientPool"]


class ClientPool:
    """Owns the tasks of many clients, used as ``async with ClientPool() as pool``.

    An ``async with Client(…)`` block has to be left by the task that entered it, before every block that was entered
    earlier. A program that keeps clients in a map cannot do that: it opens them here. Leaving the block closes all of
    them at once, within a bounded time. A client that fails costs nothing but itself. The pool's own block is one of
    those that are left where they were entered; else it raises `ClosedElsewhere`.
    """

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._nursery: trio.Nursery | None = None
        self._block = BlockNursery(type(self).__name__)
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<ClientPool {len(self._clients)} clients>"

    async def __aenter__(self) -> ClientPool:
        """Opens the pool; raises `LocalProtocolError` if it was opened before, and `RuntimeError` outside of Trio."""
        require_trio("async with ClientPool()", "ClientPool")
        if self._nursery is not None:
            raise LocalProtocolError("a ClientPool is good for one 'async with' block; make a new one")
        self._nursery = await self._block.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_closing = True
        clients = list(self._clients)
        for client in clients:
            client._life.end()
        for client in clients:
            # One that is still connecting is not waited for.
            with trio.CancelScope(shield=True):
                await client.aclose()
                await client._life.wait_until_ended()
        await self._block.close()

    async def open(self, client: Client) -> Client:
        """Opens ``client``, which stays open until `close`, its own `Client.aclose`, or the end of the pool's block.

        Legal from any task. Cancelled, or if it fails, nothing is left of the client.

        Args:
            client: A client that was never opened: ``await pool.open(Client("stdio:COMMAND", timeout=5))``.

        Returns:
            The same client.

        Raises:
            LocalProtocolError: The pool is not open, or the client was opened before.
            McpError: What else entering a `Client` raises.
        """
        if self._nursery is None or self._is_closing:
            raise LocalProtocolError("this ClientPool is not open: use 'async with ClientPool() as pool'")
        if client in self._clients:
            raise LocalProtocolError("this client is in the pool already")
        self._clients.add(client)
        try:
            await client._begin(self._nursery)
        except BaseException:
            self._clients.discard(client)
            raise
        return client

    async def close(self, client: Client) -> None:
        """Closes ``client`` and waits until nothing is left of it; calls in flight raise `ConnectionLost`.

        Legal from any task, and any number of times. Cancelled, it is closed all the same.

        Args:
            client: A client of this pool; nothing happens if it is none, or was closed before.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """
        if client in self._clients:
            client._life.end()
            await client._life.wait_until_ended()
            self._clients.discard(client)
            client._life.raise_failure()
