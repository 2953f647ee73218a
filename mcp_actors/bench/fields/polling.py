"""Waiting for many descriptors, by epoll: raw loads are for Linux, and elsewhere the engine's client makes the load."""

from __future__ import annotations

import sys

from mcp_actors.bench.errors import LoadError

__all__ = ["READABLE", "WRITABLE", "LoadPoll"]

if sys.platform == "linux":
    from select import EPOLLIN as READABLE
    from select import EPOLLOUT as WRITABLE
    from select import epoll as LoadPoll
else:
    READABLE, WRITABLE = 1, 4

    class LoadPoll:
        """Stands for epoll, which this system does not have.

        Raises:
            LoadError: Always.
        """

        def __init__(self) -> None:
            raise LoadError("raw loads need Linux: drive the server through the engine's client")

        def register(self, descriptor: object, events: int) -> None:
            """Is never called."""

        def modify(self, descriptor: object, events: int) -> None:
            """Is never called."""

        def unregister(self, descriptor: object) -> None:
            """Is never called."""

        def poll(self, timeout: float = -1) -> list[tuple[int, int]]:
            """Is never called."""
            return []

        def fileno(self) -> int:
            """Is never called."""
            return -1

        def close(self) -> None:
            """Is never called."""
