"""Listening sockets that another process has opened for this one, and the time when it is replaced by a younger one.

A process that serves with others at the same addresses accepts from sockets that they all have. It gets them when it is
started (`inherit`), and whoever would bind an address asks here first (`taken`). When it is replaced (`retire`) it
accepts nothing more, and its connections of HTTP end with the next answer, while the others go on accepting: no client
is refused, and none is surprised.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

__all__ = [
    "at_retirement",
    "has_more_than_others",
    "inherit",
    "inherit_counts",
    "retire",
    "taken",
    "tcp_key",
    "unix_key",
]

# The sockets of each address that nobody has taken yet. Two listeners at port 0 have different ones.
_waiting: dict[str, list[list[socket.socket]]] = {}
_at_retirement: set[Callable[[], object]] = set()
# The numbers of open connections of all processes, in memory that they share, and the place of this one's.
_counts: list[memoryview] = []
_place = 0
_BYTES_OF_A_COUNT = 8


def tcp_key(host: str | None, port: int) -> str:
    """Returns the name of an address as it was asked for, whatever it was bound to."""
    return f"tcp:{'localhost' if host is None else host}:{port}"


def unix_key(path: str) -> str:
    """Returns the name of a Unix socket's address."""
    return f"unix:{path}"


def inherit(sockets: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Makes the descriptors of listening sockets known, which belong to this module then.

    Args:
        sockets: By the name of an address: for each listener there, the descriptors of its sockets.

    Raises:
        OSError: A descriptor is not open, or is no socket.
    """
    for key, listeners in sockets.items():
        for descriptors in listeners:
            opened = [socket.socket(fileno=each) for each in descriptors]
            for each in opened:
                each.setblocking(False)
                os.set_inheritable(each.fileno(), False)
            _waiting.setdefault(key, []).append(opened)


def inherit_counts(descriptor: int, place: int, processes: int) -> None:
    """Takes the memory in which each process notes how many connections it has, so that all get about as many.

    Args:
        descriptor: A file of 8 bytes for each process.
        place: That of this process, from 0 on.
        processes: How many there are.

    Raises:
        OSError: The descriptor is no such file.
    """
    global _place
    shared = mmap.mmap(descriptor, processes * _BYTES_OF_A_COUNT)
    os.close(descriptor)
    _place = place
    _counts[:] = [memoryview(shared).cast("q")]
    _counts[0][place] = 0


def has_more_than_others(connections: int) -> bool:
    """Notes how many connections this process has, and returns whether another process has fewer."""
    if not _counts:
        return False
    _counts[0][_place] = connections
    return min(_counts[0]) < connections


def taken(key: str) -> list[socket.socket] | None:
    """Returns the sockets of an address, which belong to the caller then; ``None`` if it has to be bound."""
    waiting = _waiting.get(key)
    return waiting.pop(0) if waiting else None


def retire() -> None:
    """Has every listener of this process accept nothing more, and its connections end where that costs nothing.

    Must be called in the event loop. What is left when the server is stopped ends as it always does then.
    """
    for each in list(_at_retirement):
        each()


@contextmanager
def at_retirement(call: Callable[[], object]) -> Iterator[None]:
    """Has ``call()``, which must not wait, called if this process retires while the block runs."""
    _at_retirement.add(call)
    try:
        yield
    finally:
        _at_retirement.discard(call)
