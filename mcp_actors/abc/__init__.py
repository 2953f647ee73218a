"""The contracts that programs may fulfil in place of this project: transports, and state that several processes share.

`mcp_actors.abc.transport` is the contract of bindings, `mcp_actors.abc.shared` that of shared state, and
`mcp_actors.abc.telemetry` that of observers of calls.
"""

from __future__ import annotations

from mcp_actors.abc.http import HttpAnswer, HttpEvent, HttpRequests, HttpRequestTransport
from mcp_actors.abc.shared import (
    Bus,
    EventLog,
    OpenState,
    Replay,
    ReplayGuard,
    SessionDirectory,
    SessionPlace,
    SharedState,
    TaskBounds,
    TaskRecord,
    TaskState,
    TaskStore,
    ValueStore,
)
from mcp_actors.abc.telemetry import Telemetry
from mcp_actors.abc.transport import (
    Arrival,
    ClientTransport,
    Companion,
    ConnectionHandler,
    Frame,
    FrameChannel,
    HttpRequest,
    NewAccess,
    NoAnswer,
    NothingSent,
    NotificationsMissed,
    Outlet,
    RequestId,
    ServerHandler,
    ServerSession,
    ServerTransport,
    SessionOutlet,
    StopPart,
    Waiting,
)

__all__ = [
    "Arrival",
    "Bus",
    "ClientTransport",
    "Companion",
    "ConnectionHandler",
    "EventLog",
    "Frame",
    "FrameChannel",
    "HttpAnswer",
    "HttpEvent",
    "HttpRequest",
    "HttpRequestTransport",
    "HttpRequests",
    "NewAccess",
    "NoAnswer",
    "NothingSent",
    "NotificationsMissed",
    "OpenState",
    "Outlet",
    "Replay",
    "ReplayGuard",
    "RequestId",
    "ServerHandler",
    "ServerSession",
    "ServerTransport",
    "SessionDirectory",
    "SessionOutlet",
    "SessionPlace",
    "SharedState",
    "StopPart",
    "TaskBounds",
    "TaskRecord",
    "TaskState",
    "TaskStore",
    "Telemetry",
    "ValueStore",
    "Waiting",
]
