"""A client as programs see it that do not run on Trio: how it is made, opened and closed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import trio

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.faces import AsyncioFace, Face, Opened, SyncFace
from mcp_actors.bridges.held_block import HeldBlock
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import LocalProtocolError

__all__ = ["AsyncioClientFace", "SyncClientFace"]

# The options of a client that are functions of the program.
CALLBACKS = ("sampling", "elicitation", "roots", "on_log", "on_change", "on_notification", "on_lost")
OPENED_BEFORE = "a Client is opened once; make a new one"


class ClientFace(Face):
    """A client for programs without Trio; its originals are made by ``make``."""

    make: Callable[..., Any]

    def __init__(self, target: Any, **options: Any) -> None:
        opened = Opened()
        adapted = {
            name: self._adapted(value, opened) if name in CALLBACKS and callable(value) else value
            for name, value in options.items()
        }
        super().__init__(type(self).make(target, **adapted), opened)
        self._block: HeldBlock[Any] | None = None

    @staticmethod
    def _adapted(function: Callable[..., Any], opened: Opened) -> Callable[..., Any]:
        """Returns an async function for the engine that calls one of the program where that belongs."""
        raise NotImplementedError

    def _begin(self, bridge: AsyncioBridge | ThreadBridge) -> HeldBlock[Any]:
        if self._block is not None:
            raise LocalProtocolError(OPENED_BEFORE)
        self._opened.engine, self._opened.bridge = bridge.engine, bridge
        self._block = HeldBlock(lambda: self._original)
        return self._block

    async def _close(self) -> None:
        """Closes the connection and waits for its end, in the engine."""
        await self._original.aclose()
        # A callback of the client would wait for itself.
        if self._block is not None and not _in_callback():
            await self._block.leave()


class AsyncioClientFace(ClientFace, AsyncioFace):
    """A client for asyncio programs."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def open(self) -> Self:
        """Connects, for programs that have no block to do it in: a notebook, for example. `aclose` is for its end.

        Raises:
            McpError: What entering the block raises.
        """
        bridge = AsyncioBridge.of_running_loop()
        block = self._begin(bridge)
        try:
            await bridge.call(block.enter)
        except BaseException:
            # The engine may have connected just before this was cancelled.
            await bridge.call(block.leave)
            raise
        return self

    async def aclose(self) -> None:
        """Closes the connection and waits for its end; calls in flight raise `ConnectionLost`.

        Legal from any task and any loop, a callback's included, and any number of times. A client that is closed before
        it is opened cannot be opened any more. Cancelled, the connection is closed all the same.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """
        await AsyncioBridge.of_running_loop().call(self._close)

    @staticmethod
    def _adapted(function: Callable[..., Any], opened: Opened) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            assert opened.bridge is not None
            return await opened.bridge.run(function, *args)

        return call


class SyncClientFace(ClientFace, SyncFace):
    """A client for programs without a loop."""

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def open(self) -> Self:
        """Connects, for programs that have no block to do it in. `close` is for its end.

        Raises:
            McpError: What entering the block raises.
        """
        bridge = ThreadBridge()
        block = self._begin(bridge)
        try:
            bridge.call(block.enter)
        except BaseException:
            ThreadBridge().call(block.leave)
            raise
        return self

    def close(self) -> None:
        """Closes the connection and waits for its end; calls in flight raise `ConnectionLost`.

        Legal from any thread, a callback's included, and any number of times. A client that is closed before it is
        opened cannot be opened any more.

        Raises:
            Exception: What the lifespan of a server in this process raised at its end.
        """
        ThreadBridge().call(self._close)

    @staticmethod
    def _adapted(function: Callable[..., Any], opened: Opened) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):
            return function

        async def call(*args: Any) -> Any:
            result = await trio.to_thread.run_sync(partial(function, *args), abandon_on_cancel=True)
            return await result if inspect.isawaitable(result) else result

        return call


def _in_callback() -> bool:
    """Whether a function runs here, or has called this, that the engine has called."""
    return calling_bridge.get() is not None
