"""The snapshot of a running server, as it travels in JSON: what the live view shows.

Everything in it that a peer has said, such as names and targets, is cut short and has no control characters; whoever
shows it still treats it as text of a stranger.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from mcp_actors.printable import printable

__all__ = [
    "LONGEST_TEXT",
    "CallRow",
    "Counts",
    "CrashRow",
    "KindRow",
    "NodeSnapshot",
    "Queues",
    "Rates",
    "SessionRow",
    "Snapshot",
    "UpstreamRow",
    "cleaned",
]

# Whoever answers at the address of a node may be none: a larger number breaks whatever divides by it or writes it.
_MOST = 2**63 - 1
Number = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
"""An integer that a snapshot may have; one with another is no snapshot."""

LONGEST_TEXT = 120
"""Characters of a text from a peer that a snapshot has."""


def cleaned(text: str | None) -> str | None:
    """Returns a text of a peer, cut short, with ``?`` for what steers a terminal or the direction of writing."""
    return None if text is None else printable(text, LONGEST_TEXT)


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A call in flight."""

    key: str
    """Names the call in an action, as long as it is in flight."""
    session: str | None
    """The name of its session; ``None`` for a call that came by itself."""
    method: str
    target: str | None
    """The tool, prompt or resource that is called."""
    principal: str | None
    id: str
    """The request's id."""
    age: float
    """Seconds since it arrived."""
    state: str


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session."""

    name: str
    """Names the session in an action."""
    client: str | None
    version: str | None
    """The revision that was agreed on."""
    principal: str | None
    peer: str
    state: str
    age: float
    """Seconds since it began."""
    calls: Number
    """Calls in flight."""
    pending: Number
    """Requests of the server that wait for the client's answer."""
    requests: Number
    """Requests since it began."""
    rate: float | None = None
    """Requests a second since the last snapshot; ``None`` in the first."""
    queued: Number = 0
    """Frames that wait for the writer of its connection."""
    blocked: Number = 0
    """Tasks that wait for room there."""
    bytes_in: Number = 0
    bytes_out: Number = 0
    kept_bytes: Number = 0


class KindRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of task, as `mcp_actors.task_kinds.TASKS` has it."""

    name: str
    supervisor: str
    """Whose nursery owns its tasks."""
    costs: str
    """What a crash of it ends."""
    restarted: bool
    tasks: Number
    """Tasks of this kind that live now."""
    crashes: Number
    """Crashes since the process began."""


class CrashRow(msgspec.Struct, frozen=True, kw_only=True):
    """A crash that was contained."""

    kind: str
    task: str
    error: str
    at: float
    """Seconds since the epoch."""
    restarted: bool


class UpstreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """A server behind a gateway."""

    name: str
    state: str
    """``connected``, ``connecting``, ``away`` or ``idle``."""
    server: str | None
    version: str | None
    """The protocol version that is spoken with it."""
    connections: Number
    calls: Number
    """Calls in flight."""
    callers: Number
    lost: Number
    """Connections that were lost."""
    circuit: str
    """``closed``, ``open`` while requests are refused at once, or ``half-open``."""
    failure: str | None
    """The last failure."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the server began, of all sessions and exchanges, of those that have ended, too."""

    requests: Number = 0
    cancelled: Number = 0
    late: Number = 0
    malformed: Number = 0
    refused: Number = 0
    events: Number = 0
    """Changes that were published to subscribers."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of `Counts` a second, since the last snapshot."""

    requests: float
    cancelled: float
    malformed: float
    refused: float
    events: float


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is in flight, waits, or is held, with the limits."""

    sessions: Number
    running: Number
    """Calls that have a place."""
    running_limit: Number
    waiting: Number
    """Calls that wait for a place of the server."""
    queued: Number
    """Frames that wait for writers, of the sessions that are shown."""
    blocked: Number
    """Tasks that wait for room in these queues."""
    subscriptions: Number
    events: Number
    """Events that wait in mailboxes of subscribers."""
    in_flight_bytes: Number
    in_flight_limit: Number
    kept_bytes: Number
    kept_limit: Number


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One process that serves."""

    node: str
    """Names the node in an action."""
    server: str
    version: str
    host: str
    pid: Number
    worker: Number | None = None
    """Its number among the workers of a supervisor."""
    state: Literal["serving", "stopping", "gone"]
    """``gone`` of a worker that has ended and is started again."""
    uptime: float
    at: float
    """Seconds since the epoch."""
    took: float = 0.0
    """Seconds of processor time that the snapshot took, in which nothing else of the event loop ran."""
    lag: float | None = None
    """Seconds that a turn of its event loop takes: for so long everything waits."""
    queues: Queues | None = None
    totals: Counts = Counts()
    rates: Rates | None = None
    sessions: list[SessionRow] = []
    calls: list[CallRow] = []
    kinds: list[KindRow] = []
    crashes: list[CrashRow] = []
    """The last ones, the newest first."""
    transports: list[dict[str, Any]] = []
    """What the transports say of themselves."""
    upstreams: list[UpstreamRow] = []
    """The servers behind it, where it is a gateway."""
    note: str | None = None
    """Why a worker is gone, or what else there is to say."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes, at one moment."""

    at: float
    interval: float
    """Seconds between two snapshots."""
    watchers: Number
    nodes: list[NodeSnapshot]
