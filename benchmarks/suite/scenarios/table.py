"""The scenarios: each is a row here and a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.suite.bench import Bench
from benchmarks.suite.gateways import GATEWAYS
from benchmarks.suite.job import BenchmarkJob, Point
from benchmarks.suite.scenarios.cancel import cancel_latency
from benchmarks.suite.scenarios.clients import client_calls
from benchmarks.suite.scenarios.hops import gateway_hop
from benchmarks.suite.scenarios.mixed import mixed
from benchmarks.suite.scenarios.roundtrip import awaits_once, ragged_arrival, roundtrip
from benchmarks.suite.scenarios.sessions import fan_out, many_sessions
from benchmarks.suite.scenarios.solo import Start, codec, eras, startup
from benchmarks.suite.scenarios.streams import large_payload, progress_stream, stalled_peer

__all__ = ["SCENARIOS", "Scenario"]

KIB, MIB = 1024, 2**20
# Ours alone has what they ask for, or it is not asked for in the same way elsewhere.
OURS_ALONE = ("ours",)
BOTH = ("legacy", "modern")


@dataclass(frozen=True)
class Scenario:
    """``run`` drives one server that was started for it; ``solo`` starts its own. ``quick``, ``full`` and ``toy`` are
    the parameters of the three sizes. ``lanes`` means that one connection is not enough; ``streams`` means that servers
    which can choose must answer with streams over HTTP. ``quick_extra`` are transports that a quick run adds, in the
    modern era, and ``quick_peers`` peers. ``clients`` means that clients are measured, not servers.
    ``ragged`` means that requests are written in pieces: see `RaggedWrites`. ``schemes`` and
    ``peers`` are all if they are empty.
    """

    name: str
    title: str
    run: Callable[[Bench], Awaitable[list[Point]]] | None = None
    solo: Callable[[BenchmarkJob, Start], Awaitable[list[Point]]] | None = None
    quick: dict[str, Any] = field(default_factory=dict)
    full: dict[str, Any] = field(default_factory=dict)
    toy: dict[str, Any] = field(default_factory=dict)
    eras: tuple[str, ...] = BOTH
    quick_eras: tuple[str, ...] = BOTH
    peers: tuple[str, ...] = ()
    quick_extra: tuple[str, ...] = ()
    quick_peers: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    lanes: bool = False
    streams: bool = False
    clients: bool = False
    ragged: bool = False
    share: float = 1.0

    def parameters(self, size: str) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, size)
        return found


SCENARIOS = {
    each.name: each
    for each in (
        Scenario(
            "roundtrip",
            "calls of a small typed tool, closed and open loop",
            run=roundtrip,
            quick={"windows": [1, 64], "rates": [500], "inline": True},
            full={"windows": [1, 8, 32, 64, 256, 1024], "rates": [500, 2000], "inline": True},
            toy={"windows": [1, 4], "rates": [100], "inline": True},
            quick_extra=("memory", "tcp", "unix", "ws"),
            quick_peers=("fastmcp", "typescript1"),
        ),
        Scenario(
            "awaits_once",
            "calls of a small typed tool that lets others run once before it answers",
            run=awaits_once,
            quick={"windows": [64]},
            full={"windows": [1, 64]},
            toy={"windows": [1, 4]},
            quick_eras=("modern",),
            schemes=("stdio",),
        ),
        Scenario(
            "ragged_arrival",
            "calls of a small typed tool that arrive in small groups, and in pieces",
            run=ragged_arrival,
            quick={"windows": [64]},
            full={"windows": [8, 64]},
            toy={"windows": [4]},
            quick_eras=("modern",),
            schemes=("stdio",),
            ragged=True,
        ),
        Scenario(
            "eras",
            "modern against legacy on the same transport, in turns",
            solo=eras,
            quick={"windows": [32]},
            full={"windows": [1, 32]},
            toy={"windows": [4]},
            eras=("modern",),
            quick_eras=("modern",),
            share=2.0,
        ),
        Scenario(
            "client_calls",
            "clients: calls of a small typed tool in a closed loop",
            solo=client_calls,
            quick={"windows": [1, 64]},
            full={"windows": [1, 32, 64]},
            toy={"windows": [1, 2]},
            quick_eras=("modern",),
            quick_extra=("memory",),
            clients=True,
        ),
        Scenario(
            "startup",
            "from starting the process to its first answer",
            solo=startup,
            quick_eras=("modern",),
        ),
        Scenario(
            "cancel_latency",
            "from the caller's cancel to the handler's Cancelled",
            run=cancel_latency,
            quick={"cancels": 15},
            full={"cancels": 60},
            toy={"cancels": 2},
            quick_extra=("memory", "ws"),
            streams=True,
        ),
        Scenario(
            "stalled_peer",
            "live calls beside a peer that reads nothing",
            run=stalled_peer,
            quick={"live": [32]},
            full={"live": [32, 200]},
            toy={"live": [4]},
            eras=("modern",),
            quick_eras=("modern",),
            lanes=True,
            streams=True,
        ),
        Scenario(
            "progress_stream",
            "calls that report progress",
            run=progress_stream,
            quick={"messages": [100]},
            full={"messages": [1, 30, 1000]},
            toy={"messages": [3]},
            quick_eras=("modern",),
            streams=True,
        ),
        Scenario(
            "large_payload",
            "one text there and back, 1 KiB to 10 MiB",
            run=large_payload,
            quick={"bytes": [KIB, MIB]},
            full={"bytes": [KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB, 10 * MIB]},
            toy={"bytes": [10, KIB]},
            quick_eras=("legacy",),
        ),
        Scenario(
            "many_sessions",
            "idle sessions: memory, set-ups, churn, and what a call costs among them",
            run=many_sessions,
            quick={"sessions": [10, 500]},
            full={"sessions": [10, 100, 1000, 10_000]},
            toy={"sessions": [2, 5]},
            eras=("legacy",),
            quick_eras=("legacy",),
            lanes=True,
        ),
        Scenario(
            "fan_out",
            "one change, sent to all subscribers",
            run=fan_out,
            quick={"subscribers": [10, 200], "changes": 10},
            full={"subscribers": [10, 100, 500], "changes": 30},
            toy={"subscribers": [2], "changes": 2},
            quick_eras=("modern",),
            peers=OURS_ALONE,
            lanes=True,
            streams=True,
        ),
        Scenario(
            "mixed",
            "users who think, then ask one of several things",
            run=mixed,
            quick={"users": [50]},
            full={"users": [10, 100, 1000]},
            toy={"users": [3]},
            quick_eras=("modern",),
            peers=("ours", "official", "fastmcp", "typescript1", "typescript2"),
            streams=True,
        ),
        Scenario(
            "gateway_hop",
            "calls of a small typed tool through gateways, beside the server alone",
            solo=gateway_hop,
            quick={"to": ["stdio"], "hops": [1], "windows": [1, 64]},
            full={"to": ["stdio", "http"], "hops": [1, 3], "windows": [1, 64]},
            toy={"to": ["stdio"], "hops": [1], "windows": [1, 4]},
            schemes=("stdio", "http"),
            peers=tuple(GATEWAYS),
        ),
        Scenario(
            "codec",
            "from bytes to a message and back, no transport",
            solo=codec,
            eras=("modern",),
            quick_eras=("modern",),
            schemes=("codec",),
        ),
    )
}
