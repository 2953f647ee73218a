"""The live view of a running server: snapshots of it, the actions of operators, and the way to its other nodes.

`mcp_transports.admin.AdminTransport` serves it over HTTP at a Unix socket or a loopback address, and ``mcp-actors top``
shows it.
"""

from __future__ import annotations

from mcp_actors.admin.actions import Action, ActionOutcome, LiveView
from mcp_actors.admin.cluster import ClusterView
from mcp_actors.admin.feed import Feed, Watcher
from mcp_actors.admin.server_view import ServerView
from mcp_actors.admin.snapshot import (
    CallRow,
    Counts,
    CrashRow,
    KindRow,
    NodeSnapshot,
    Queues,
    Rates,
    SessionRow,
    Snapshot,
    UpstreamRow,
    cleaned,
)
from mcp_actors.admin.taking import this_process

__all__ = [
    "Action",
    "ActionOutcome",
    "CallRow",
    "ClusterView",
    "Counts",
    "CrashRow",
    "Feed",
    "KindRow",
    "LiveView",
    "NodeSnapshot",
    "Queues",
    "Rates",
    "ServerView",
    "SessionRow",
    "Snapshot",
    "UpstreamRow",
    "Watcher",
    "cleaned",
    "this_process",
]
