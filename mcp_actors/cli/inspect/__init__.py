"""Looks at a server from outside: what it is, which rules of the protocol it violates, and how fast it answers.

`inspect_server` does it, and ``mcp-actors inspect URL`` on the command line. `RULES` is the table of all rules, each
with its place in the specification.
"""

from __future__ import annotations

from mcp_actors.cli.inspect.conversation import Bounds
from mcp_actors.cli.inspect.inspected import Rule, Source
from mcp_actors.cli.inspect.inspection import (
    AuthorizationReport,
    EraReport,
    Finding,
    ListReport,
    RuleOutcome,
    ServerReport,
    inspect_server,
)
from mcp_actors.cli.inspect.rules import RULES
from mcp_actors.cli.inspect.survey import Latency

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
