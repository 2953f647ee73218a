"""What ``mcp-actors inspect`` finds at official servers. Each finding was checked by hand, in the specification.

- The revision 2025-03-26 is agreed on, and its batches are not received (MCP 2025-03-26, Overview, Batching).
- The TypeScript server over stdio serves requests in any version once it has served one (MCP 2026-07-28, Versioning
  and Compatibility, Protocol Version Negotiation: "the server accepts or rejects each request independently").
- Servers that run on loopback answer pages of any origin, unless their author adds a check.
"""

from __future__ import annotations

import pytest
import trio

from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.inspect.conversation import Bounds
from mcp_actors.cli.inspect.inspection import ServerReport, inspect_server

BOTH, LEGACY = ["modern", "legacy"], ["legacy"]
SECONDS = 120
# What these servers say nothing to, they say nothing to in a second either.
BOUNDS = Bounds(raw_time=1.0)
# The rules of each server that are violated (MUST): its eras, and the rules with the era.
EXPECTED: dict[tuple[str, str], tuple[list[str], set[tuple[str, str]]]] = {
    ("ours", "sse"): (LEGACY, set()),
    ("python", "stdio"): (BOTH, {("batches", "legacy")}),
    ("python", "http"): (BOTH, {("batches", "legacy")}),
    ("typescript", "stdio"): (BOTH, {("batches", "legacy"), ("unsupported-version", "modern")}),
    ("typescript", "http"): (BOTH, {("foreign-origin", "modern"), ("foreign-origin", "legacy")}),
    ("everything", "http"): (LEGACY, {("foreign-origin", "legacy"), ("ended-session", "legacy")}),
}


async def inspected(target: str, in_flight: int) -> ServerReport:
    options = {"stderr": None} if target.startswith("stdio:") else {}
    with trio.fail_after(SECONDS):
        return await inspect_server(
            client_transport(target, **options), url=target, in_flight=in_flight, bounds=BOUNDS
        )


@pytest.mark.parametrize("target", EXPECTED, ids="-".join, indirect=True)
async def test_official_servers(target: str, request: pytest.FixtureRequest) -> None:
    server: tuple[str, str] = request.node.callspec.params["target"]
    eras, errors = EXPECTED[server]
    report = await inspected(target, in_flight=2)
    assert [each.era for each in report.eras] == eras
    assert {(each.rule, each.era) for each in report.findings if each.severity == "error"} == errors
    assert all(each.lists["tools"].count for each in report.eras)
    assert all(each.failed == 0 for era in report.eras for each in era.latency)
    if server[0] == "ours":
        assert report.findings == ()
    # The server of the tests for TypeScript ends at a message that is no JSON, which it parses itself.
    unchecked = {each.rule for each in report.outcomes if each.result == "not checked"}
    assert unchecked == ({"bad-json"} if server == ("typescript", "http") else set())
