"""What an idle legacy session costs: memory of the server's process, and how fast sessions begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.http.driver import Conversation, Driven, drive
from benchmarks.http.listening import ListeningServer
from benchmarks.http.wire import FIRST_ID, call, handshake, initialized, result_of
from benchmarks.suite.process import LoadError, cpu_seconds, resident_kib

__all__ = ["SessionsMeasured", "measure_sessions"]

CONNECTIONS = 32
# So many come before the first look at the memory: what is loaded and allocated once belongs to no session.
WARM_UP_SESSIONS = 200


@dataclass
class SessionsMeasured:
    """``kib_each`` is what the process grew by, a session; ``cpu_us`` processor time of the server per set-up,
    ``generator`` the share of a processor that the clients took.
    """

    sessions: int
    kib_each: float
    per_second: float
    cpu_us: float
    generator: float


def _begin(port: int, ids: Iterator[int]) -> Conversation:
    """Sessions one after the other: ``initialize``, ``initialized``, one call; then nothing more is heard of them."""
    for id in ids:
        reply = yield handshake(port)
        result_of(reply)
        session = reply.session
        reply = yield initialized(port, session)
        if reply.status != 202:
            raise LoadError(f"initialized: {reply.status} {reply.body[:300]!r}")
        reply = yield call(port, "legacy", session, id, "add", {"a": id, "b": 1})
        if result_of(reply).get("structuredContent") != {"total": id + 1}:
            raise LoadError(f"a wrong sum: {reply.body[:300]!r}")


def _begin_many(port: int, number: int) -> Driven:
    ids = iter(range(FIRST_ID, FIRST_ID + number))
    return drive(port, [_begin(port, ids) for _ in range(min(CONNECTIONS, number))])


def measure_sessions(command: list[str], *, sessions: int) -> SessionsMeasured:
    """Starts ``command PORT`` and leaves so many sessions behind in it."""
    with ListeningServer(command) as server:
        _begin_many(server.port, WARM_UP_SESSIONS)
        before, cpu_before = resident_kib(server.pid), cpu_seconds(server.pid)
        driven = _begin_many(server.port, sessions)
        after, cpu_after = resident_kib(server.pid), cpu_seconds(server.pid)
    driven.warn()
    return SessionsMeasured(
        sessions=sessions,
        kib_each=(after - before) / sessions,
        per_second=sessions / driven.seconds,
        cpu_us=(cpu_after - cpu_before) / sessions * 1e6,
        generator=driven.own_share,
    )
