"""The goals for the speed of this package, as ratios, and the jobs that measure exactly those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from benchmarks.suite.peers import ASGI, ASGI_FLOOR, FACES, FLOOR, INLINE_FLOOR, OURS, PEERS, PROTECTED
from benchmarks.suite.plan import Case, Size
from benchmarks.suite.scenarios.table import SCENARIOS
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.results import METRICS, Key

__all__ = ["COLUMNS", "GOALS", "GOALS_SIZE", "ITSELF", "Against", "Goal", "goal_cases"]

# The budget leaves some of half an hour for the job that is running then and for the report.
GOALS_SIZE = Size("goals", 5, 0.75, (), (), budget=1740.0)

OFFICIAL, TYPESCRIPT, ITSELF = "official", "typescript1", "itself"
PYTHON_PROXY, NODE_PROXY = "python_proxy", "node_proxy"
COLUMNS = {
    ITSELF: "mcp-actors",
    OFFICIAL: "official Python SDK",
    TYPESCRIPT: "official TypeScript SDK 1.x",
    FLOOR: "floor, a task for each call; of clients bare httpx2",
    INLINE_FLOOR: "floor without a task",
    PYTHON_PROXY: "gateway in Python",
    NODE_PROXY: "gateway in Node",
}

# Of all that is measured beside each other: enough sessions to see what each costs, few enough for the slowest.
IDLE_SESSIONS = 2_000
FEW_SESSIONS, MANY_SESSIONS = 10, 10_000
# "Unchanged" and "flat": what is left to the chance of a shared machine.
UNCHANGED = 1.2
# A token that was verified before costs a look into a table, and its bytes.
VERIFIED = 1.25
LIVE_CALLS = 200
# Of the faces of the client and of the mounted server.
FACE_BESIDE_OFFICIAL, FACE_MORE_US = 4.0, 200.0
ASGI_MORE_US = 50.0
# Of servers with 64 in flight over stdio.
BESIDE_TYPESCRIPT, BESIDE_OFFICIAL, TIMES_BEFORE = 1.5, 65.0, 2.3
# Of the client and server in memory, beside the official ones, by era and number in flight.
MEMORY_BOUNDS = {("legacy", 64): 16.0, ("legacy", 1): 9.0, ("modern", 64): 10.0, ("modern", 1): 6.0}
# What an idle session may take.
IDLE_KIB = {"http": 5.0, "ws": 12.0}
# Of gateways: calls a second beside each of the others, and what a hop adds to the median.
PROXY_BOUNDS = {PYTHON_PROXY: 5.0, NODE_PROXY: 2.0}
HOP_MORE_US = 80.0
BINDING_NAMES = {"stdio": "stdio", "http": "HTTP", "ws": "WebSocket"}
# The bindings that a gateway serves and reaches its upstream by, in which era, and which others can do that.
HOPS_BESIDE: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("stdio", "stdio", "legacy", {PYTHON_PROXY: "fastmcp_proxy"}),
    ("stdio", "stdio", "modern", {PYTHON_PROXY: "fastmcp_proxy"}),
    ("http", "stdio", "legacy", {PYTHON_PROXY: "mcp_proxy", NODE_PROXY: "supergateway"}),
    ("http", "stdio", "legacy", {PYTHON_PROXY: "fastmcp_proxy"}),
    ("stdio", "http", "legacy", {PYTHON_PROXY: "mcp_proxy", NODE_PROXY: "supergateway"}),
    ("stdio", "http", "legacy", {PYTHON_PROXY: "fastmcp_proxy", NODE_PROXY: "mcp_remote"}),
)


class Against(NamedTuple):
    """Ours / the figure at ``key`` is to be at least ``bound``, or at most where less is better. Without a bound it is
    shown, and nothing is asked of it.

    As a ``difference`` it is ours - the figure, and as a ``figure`` it is ours alone. Where ``times_before`` is given,
    that many times the ratio of an earlier run on the same machine is enough as well.
    """

    column: str
    key: Key
    bound: float | None
    kind: Literal["ratio", "difference", "figure"] = "ratio"
    times_before: float = 0.0


@dataclass(frozen=True)
class Goal:
    what: str
    metric: str
    ours: Key
    against: tuple[Against, ...]

    @property
    def at_least(self) -> bool:
        return METRICS[self.metric].better == "higher"

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.ours, *(each.key for each in self.against)


def _key(scenario: str, transport: str, era: str, peer: str, **at: int | str) -> Key:
    return Key(scenario, transport, era, tuple(sorted(at.items())), peer)


def _goal(what: str, metric: str, ours: Key, **bounds: float | None) -> Goal:
    """Against peers at the same place. The TypeScript SDK 1.x has one era: it is what it is compared in."""
    against = []
    for peer, bound in bounds.items():
        key = ours._replace(peer=peer, at=tuple(member for member in ours.at if member[0] != "tool"))
        if peer == TYPESCRIPT:
            key = key._replace(era="legacy")
        against.append(Against(peer, key, bound))
    return Goal(what, metric, ours, tuple(against))


def _calls(transport: str, era: str, window: int, scenario: str = "roundtrip", **at: str) -> Key:
    return _key(scenario, transport, era, OURS, in_flight=window, **at)


def _client(transport: str, era: str, window: int) -> Key:
    return _key("client_calls", transport, era, OURS, in_flight=window)


def _hop(served: str, reached: str, era: str, hops: int, window: int) -> Key:
    return _key("gateway_hop", served, era, OURS, to=reached, hops=hops, in_flight=window)


def _over_stdio() -> Iterator[Goal]:
    for era in ("legacy", "modern"):
        what, many = f"stdio, {era}, 64 in flight", _calls("stdio", era, 64)
        beside = _goal(what, "per_second", many, typescript1=BESIDE_TYPESCRIPT, floor=0.6, floor_inline=None)
        official = Against(OFFICIAL, many._replace(peer=OFFICIAL), BESIDE_OFFICIAL, times_before=TIMES_BEFORE)
        yield replace(beside, against=(official, *beside.against))
        inline = _calls("stdio", era, 64, tool="inline")
        yield _goal(f"{what}, inline sync tool", "per_second", inline, typescript1=1.0)
    for era in ("legacy", "modern"):
        what = f"stdio, {era}, 64 in flight, ragged arrival"
        ragged = _calls("stdio", era, 64, "ragged_arrival")
        yield _goal(what, "per_second", ragged, typescript1=BESIDE_TYPESCRIPT, floor=None, floor_inline=None)
    for era in ("legacy", "modern"):
        what = f"stdio, {era}, 64 in flight, the tool awaits once"
        # A floor without a task has nothing that could wait.
        yield _goal(what, "per_second", _calls("stdio", era, 64, "awaits_once"), typescript1=1.0, floor=None)
    for era in ("legacy", "modern"):
        what = f"stdio, {era}, one at a time"
        one = _calls("stdio", era, 1)
        yield _goal(what, "per_second", one, official=6.0, typescript1=1.0, floor=0.8, floor_inline=None)


def _over_sockets() -> Iterator[Goal]:
    for era in ("legacy", "modern"):
        what, many = f"HTTP with JSON, {era}, 32 connections", _calls("http", era, 32)
        yield _goal(what, "per_second", many, official=10.0, typescript1=4.0, floor=None, floor_inline=0.8)
    for era in ("legacy", "modern"):
        what = f"WebSocket, {era}, 64 in flight"
        yield _goal(what, "per_second", _calls("ws", era, 64), floor=None, floor_inline=4.0)


def _of_protection() -> Iterator[Goal]:
    for era in ("legacy", "modern"):
        alone = _calls("http", era, 32)
        what = f"processor time a request, a verified JWT beside none, HTTP, {era}"
        yield Goal(what, "cpu_us", alone._replace(peer=PROTECTED), (Against(ITSELF, alone, VERIFIED),))


def _of_clients() -> Iterator[Goal]:
    for era in ("legacy", "modern"):
        # In the modern era a client does what it does by itself, which in memory need not be what is on a wire.
        for window in (64, 1):
            load = "64 in flight" if window > 1 else "one at a time"
            what, bound = f"client in memory, {era}, {load}", MEMORY_BOUNDS[era, window]
            yield _goal(what, "per_second", _client("memory", era, window), official=bound)
    for era in ("legacy", "modern"):
        what = f"client over stdio to the inline floor, {era}, 64 in flight"
        yield _goal(what, "per_second", _client("stdio", era, 64), official=6.0)
    for era in ("legacy", "modern"):
        what = f"client over HTTP, {era}, 32 at a time"
        yield _goal(what, "per_second", _client("http", era, 32), official=2.0, floor=0.7)


def _of_faces() -> Iterator[Goal]:
    # They call the methods of the Trio client, and have nothing of their own that depends on the era.
    for face in FACES:
        for transport, name in (("stdio", "stdio to the inline floor"), ("http", "HTTP")):
            many = _client(transport, "modern", 64)._replace(peer=face)
            what = f"{face} client over {name}, modern, 64 {'threads' if face == 'sync' else 'in flight'}"
            yield _goal(what, "per_second", many, official=FACE_BESIDE_OFFICIAL)
        for transport, name in (("stdio", "stdio to the inline floor"), ("http", "HTTP")):
            trio_face = _client(transport, "modern", 1)
            what = f"{face} client over {name}, modern, one at a time, beside the Trio client"
            against = Against(ITSELF, trio_face, FACE_MORE_US, "difference")
            yield Goal(what, "each_us", trio_face._replace(peer=face), (against,))


def _of_mounts() -> Iterator[Goal]:
    for era in ("legacy", "modern"):
        mounted = _calls("http", era, 64)._replace(peer=ASGI)
        what = f"processor time a request under uvicorn, beside a bare application, {era}, 64 connections"
        against = Against(ITSELF, mounted._replace(peer=ASGI_FLOOR), ASGI_MORE_US, "difference")
        yield Goal(what, "cpu_us", mounted, (against,))


def _of_sessions() -> Iterator[Goal]:
    for transport, bound in IDLE_KIB.items():
        idle = _key("many_sessions", transport, "legacy", OURS, sessions=IDLE_SESSIONS)
        what = f"idle legacy {BINDING_NAMES[transport]} session, memory"
        yield Goal(what, "kib_each", idle, (Against(ITSELF, idle, bound, "figure"),))
    start = _key("startup", "stdio", "legacy", OURS)
    yield _goal("start to initialize answered on stdio", "start_ms", start, official=0.5, typescript1=0.8)
    for transport, name in (("http", "HTTP"), ("ws", "WebSocket")):
        alone = _key("stalled_peer", transport, "modern", OURS, live_calls=LIVE_CALLS, beside="nobody")
        beside = _key("stalled_peer", transport, "modern", OURS, live_calls=LIVE_CALLS, beside="stalled")
        what = f"99th percentile of {LIVE_CALLS} live calls beside a stalled peer, {name}"
        yield Goal(what, "p99_us", beside, (Against(ITSELF, alone, UNCHANGED),))
    for transport, name in (("http", "HTTP"), ("ws", "WebSocket")):
        few = _key("many_sessions", transport, "legacy", OURS, sessions=FEW_SESSIONS)
        many = _key("many_sessions", transport, "legacy", OURS, sessions=MANY_SESSIONS)
        what = f"processor time a request, {FEW_SESSIONS} to {MANY_SESSIONS:,} sessions, {name}"
        yield Goal(what, "cpu_us", many, (Against(ITSELF, few, UNCHANGED),))


def _of_gateways() -> Iterator[Goal]:
    for served, reached, era, others in HOPS_BESIDE:
        many = _hop(served, reached, era, 1, 64)
        against = [
            Against(column, many._replace(peer=each), PROXY_BOUNDS[column]) for column, each in others.items()
        ]
        route = f"{BINDING_NAMES[served]} to {BINDING_NAMES[reached]}"
        peers = " and ".join(PEERS[each].title for each in others.values())
        what = f"one hop, {route}, {era}, 64 in flight, beside {peers}"
        yield Goal(what, "per_second", many, tuple(against))
    for era in ("legacy", "modern"):
        alone, behind = (_hop("stdio", "stdio", era, hops, 1) for hops in (0, 1))
        what = f"median latency that a hop adds, stdio to stdio, {era}"
        yield Goal(what, "p50_us", behind, (Against(ITSELF, alone, HOP_MORE_US, "difference"),))


GOALS = (
    *_over_stdio(),
    *_over_sockets(),
    *_of_protection(),
    *_of_clients(),
    *_of_faces(),
    *_of_mounts(),
    *_of_sessions(),
    *_of_gateways(),
)

# Which parameter of a scenario brings a member of a place.
PARAMETERS = {
    "in_flight": "windows",
    "sessions": "sessions",
    "live_calls": "live",
    "to": "to",
    "hops": "hops",
}


def goal_cases(scenarios: Sequence[str] = ()) -> list[Case]:
    """Returns the jobs for the rows, of all or of some scenarios, and no more. The parameters of a peer are the places
    at which it is needed. Raises `LoadError` for a scenario without a goal.
    """
    known = dict.fromkeys(goal.ours.scenario for goal in GOALS)
    unknown = [name for name in scenarios if name not in known]
    if unknown:
        raise LoadError(f"no goal is measured by {', '.join(unknown)}; there are: {', '.join(known)}")
    needed: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for goal in GOALS:
        if scenarios and goal.ours.scenario not in scenarios:
            continue
        for key in goal.keys:
            by_peer = needed.setdefault((key.scenario, key.transport, key.era), {})
            parameters = by_peer.setdefault(key.peer, {})
            if key.scenario == "roundtrip":
                parameters.setdefault("rates", [])
                parameters["inline"] = parameters.get("inline", False) or ("tool", "inline") in key.at
            for member, value in key.at:
                if member in PARAMETERS:
                    values = parameters.setdefault(PARAMETERS[member], [])
                    parameters[PARAMETERS[member]] = sorted({*values, value})
    return [
        Case(
            SCENARIOS[scenario], transport, "legacy" if era == "legacy" else "modern", tuple(by_peer), by_peer
        )
        for (scenario, transport, era), by_peer in needed.items()
    ]
