"""Objects of the engine as programs see them that do not run on Trio: each has one of the engine, and calls it there.

`mcp_actors.bridges.mirrored` makes their classes from those of the engine.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import outcome

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.bridged_call import Bridge
from mcp_actors.bridges.engine_thread import EngineThread
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import LocalProtocolError

__all__ = ["AsyncioFace", "Face", "Opened", "SyncFace", "in_engine"]

# Seconds between two looks at whether the engine is still there, in a thread that waits for it.
LOOK_AGAIN = 1.0

T = TypeVar("T")


class Opened:
    """The engine that a client and all that came of it live in, and the bridge to whoever opened the client."""

    def __init__(self) -> None:
        self.engine: EngineThread | None = None
        self.bridge: Bridge | None = None

    def __repr__(self) -> str:
        return f"<Opened {self.engine!r} {self.bridge!r}>"


class Face:
    """An object of the engine as a program without Trio sees it.

    Args:
        original: The object of the engine.
        opened: Where it lives.
        source: The object that it came of.
    """

    _world: str
    """The name of the module that programs take it from."""
    _usage: str
    """How a client is opened there."""
    _faces: Mapping[type, type[Face]] = {}
    """The classes of the same world by the classes of the engine, for what methods return."""

    def __init__(self, original: Any, opened: Opened, source: Face | None = None) -> None:
        self._original = original
        self._opened = opened
        # A client lives as long as what came of it is in use.
        self._source = source

    def __repr__(self) -> str:
        return f"<{self._world}.{repr(self._original).removeprefix('<')}"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises `TypeError`: neither a copy nor a pickle could have the connection."""
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: it belongs to this process")

    def _faced(self, value: Any) -> Any:
        """Returns what a program gets for a value of the engine."""
        face = self._faces.get(type(value))
        return value if face is None else face(value, self._opened, self)

    def _not_here(self) -> NoReturn:
        """Raises why there is nothing that could be called in the engine of this process."""
        engine = self._opened.engine
        if engine is None:
            raise LocalProtocolError(f"not connected: use '{self._usage}'")
        raise engine.stopped()


class AsyncioFace(Face):
    """An object of the engine as an asyncio program sees it."""

    _world = "asyncio"
    _usage = "async with Client(...) as client"

    def _bridge(self) -> AsyncioBridge:
        bridge = AsyncioBridge.of_running_loop()
        if self._opened.engine is not bridge.engine:
            self._not_here()
        return bridge


class SyncFace(Face):
    """An object of the engine as a program without a loop sees it."""

    _world = "sync"
    _usage = "with Client(...) as client"

    def _bridge(self) -> ThreadBridge:
        bridge = ThreadBridge()
        if self._opened.engine is not bridge.engine:
            self._not_here()
        return bridge


def in_engine(engine: EngineThread, function: Callable[[], T]) -> T:
    """Calls a function of the engine that does not wait, in its thread, and waits for what it returns.

    Raises:
        EngineStopped: The interpreter exits.
        Exception: What ``function`` raises.
    """
    if engine.is_current:
        return function()
    results: queue.SimpleQueue[outcome.Outcome[T]] = queue.SimpleQueue()
    engine.post(lambda: results.put(outcome.capture(function)))
    while True:
        try:
            return results.get(timeout=LOOK_AGAIN).unwrap()
        except queue.Empty:
            if engine.has_ended:
                raise engine.stopped() from None
