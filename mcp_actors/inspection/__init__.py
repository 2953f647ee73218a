"""Looks at a server from outside: what it is, which rules of the protocol it violates, and how fast it answers.

`inspect_server` does it, and ``mcp-actors inspect URL`` on the command line. `RULES` is the table of all rules, each
with its place in the specification.
"""

from __future__ import annotations

from mcp_actors.inspection.inspection import inspect_server
from mcp_actors.inspection.latency import Latency
from mcp_actors.inspection.record import Bounds
from mcp_actors.inspection.report import (
    AuthorizationReport,
    EraReport,
    Finding,
    ListReport,
    RuleOutcome,
    ServerReport,
)
from mcp_actors.inspection.rule import Rule, Source
from mcp_actors.inspection.rules import RULES

__all__ = [
    "RULES",
    "AuthorizationReport",
    "Bounds",
    "EraReport",
    "Finding",
    "Latency",
    "ListReport",
    "Rule",
    "RuleOutcome",
    "ServerReport",
    "Source",
    "inspect_server",
]
