"""A client and a pool of clients for programs that do not run on Trio: how they are made, opened and closed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import trio

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.engine_thread import EngineThread
from mcp_actors.bridges.faces import AsyncioFace, Face, Opened, SyncFace
from mcp_actors.bridges.held_block import HeldBlock
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision import start
from mcp_actors.task_kinds import BRIDGED_CALL

__all__ = ["AsyncioClientFace", "AsyncioPoolFace", "SyncClientFace", "SyncPoolFace"]

# The options of a client that are functions of the program.
CALLBACKS = ("sampling", "elicitation", "roots", "on_log", "on_change", "on_notification", "on_lost")
OPENED_BEFORE = "a Client is opened once; make a new one"
# Threads in which the functions of one client's program run at the same time.
CALLBACK_THREADS = 40


class ClientFace(Face):
    """A client for programs without Trio; its originals are made by ``_make``."""

    _make: Callable[..., Any]

    def __init__(self, target: Any, **options: Any) -> None:
        opened = Opened()
        adapted = {
            name: self._adapted(value, opened) if name in CALLBACKS and callable(value) else value
            for name, value in options.items()
        }
        super().__init__(type(self)._make(target, **adapted), opened)
        self._block: HeldBlock[Any] | None = None

    @staticmethod
    def _adapted(function: Callable[..., Any], opened: Opened) -> Callable[..., Any]:
        """Returns an async function for the engine that calls one of the program where that belongs."""
        raise NotImplementedError

    def _begin(self, bridge: AsyncioBridge | ThreadBridge) -> Any:
        """Takes note that the client is opened over ``bridge``, and returns the original."""
        if self._opened.engine is not None:
            raise LocalProtocolError(OPENED_BEFORE)
        self._opened.engine, self._opened.bridge = bridge.engine, bridge
        return self._original

    def _hold(self, bridge: AsyncioBridge | ThreadBridge) -> HeldBlock[Any]:
        original = self._begin(bridge)
        self._block = HeldBlock(lambda: original)
        return self._block

    async def _close(self) -> None:
        """Closes the connection and waits for its end, in the engine."""
        await self._original.aclose()
        if self._block is None:
            return
        if calling_bridge.get() is None:
            await self._block.leave()
        else:
            # A callback of the client would wait for itself.
            start(EngineThread.of_this_run().nursery, BRIDGED_CALL, self._block.leave)


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
        block = self._hold(bridge)
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
            try:
                return await opened.bridge.run(function, *args)
            except (Exception, trio.Cancelled):
                raise
            except BaseException as error:
                # A cancellation of another loop would mean nothing here, and an interrupt would end the engine.
                raise RuntimeError(f"a callback has raised {error!r}") from error

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
        block = self._hold(bridge)
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
        threads = trio.CapacityLimiter(CALLBACK_THREADS)

        async def call(*args: Any) -> Any:
            # One that never returns must not hold up the end of the client.
            result = await trio.to_thread.run_sync(
                partial(function, *args), abandon_on_cancel=True, limiter=threads
            )
            return await result if inspect.isawaitable(result) else result

        return call


class PoolFace(Face):
    """A pool of clients for programs without Trio; its originals are made by ``_make``."""

    _make: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__(type(self)._make(), Opened())
        self._block = HeldBlock[Any](lambda: self._original)

    def _begin(self, bridge: AsyncioBridge | ThreadBridge) -> HeldBlock[Any]:
        if self._opened.engine is not None:
            raise LocalProtocolError("a ClientPool is good for one block; make a new one")
        self._opened.engine = bridge.engine
        return self._block


class AsyncioPoolFace(PoolFace, AsyncioFace):
    """A pool of clients for asyncio programs."""

    _usage = "async with ClientPool() as pool"

    async def __aenter__(self) -> Self:
        bridge = AsyncioBridge.of_running_loop()
        block = self._begin(bridge)
        try:
            await bridge.call(block.enter)
        except BaseException:
            await bridge.call(block.leave)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._bridge().call(self._block.leave)

    async def open(self, client: Any) -> Any:
        """See `ClientPool.open`."""
        bridge = self._bridge()
        original = client._begin(bridge)
        try:
            await bridge.call(self._original.open, original)
        except BaseException:
            # The engine may have connected just before this was cancelled.
            await bridge.call(self._original.close, original)
            raise
        return client

    async def close(self, client: Any) -> None:
        """See `ClientPool.close`."""
        await self._bridge().call(self._original.close, client._original)


class SyncPoolFace(PoolFace, SyncFace):
    """A pool of clients for programs without a loop."""

    _usage = "with ClientPool() as pool"

    def __enter__(self) -> Self:
        bridge = ThreadBridge()
        block = self._begin(bridge)
        try:
            bridge.call(block.enter)
        except BaseException:
            ThreadBridge().call(block.leave)
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bridge().call(self._block.leave)

    def open(self, client: Any) -> Any:
        """See `ClientPool.open`."""
        bridge = self._bridge()
        original = client._begin(bridge)
        try:
            bridge.call(self._original.open, original)
        except BaseException:
            self._bridge().call(self._original.close, original)
            raise
        return client

    def close(self, client: Any) -> None:
        """See `ClientPool.close`."""
        self._bridge().call(self._original.close, client._original)
