"""Our own servers over real bindings: nothing is found at them, and every rule about the binding is checked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mcp_actors import Server, SyncContext
from mcp_actors.cli.inspect.inspection import ServerReport, inspect_server
from mcp_actors.types import ToolAnnotations


def make_server() -> Server:
    server = Server("inspected", version="1")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def counted(ctx: SyncContext) -> dict[str, int]:
        """Counts."""
        return {"n": 1}

    @server.resource("a:one")
    def one() -> str:
        return "one"

    @server.prompt
    def greet(who: str = "you") -> str:
        return f"Hello, {who}!"

    return server


@asynccontextmanager
async def served(url: str) -> AsyncIterator[str]:
    server = make_server()
    async with trio.open_nursery() as nursery:
        where: Any = await nursery.start(server.serve, url)
        yield where[0] if isinstance(where, tuple) else str(where)
        nursery.cancel_scope.cancel()


def results(report: ServerReport) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in report.outcomes:
        found.setdefault(each.result, set()).add(each.rule)
    return found


async def test_streamable_http() -> None:
    async with served("http://127.0.0.1:0/mcp") as url:
        with trio.fail_after(30):
            report = await inspect_server(url, call=True, in_flight=4)
    assert report.findings == ()
    assert [each.era for each in report.eras] == ["modern", "legacy"]
    followed = results(report)["followed"]
    assert {"foreign-origin", "ended-session", "name-header", "structured-content", "media-types"} <= followed
    assert "not checked" not in results(report)
    assert {each.in_flight for each in report.eras[0].latency} == {1, 4}


@pytest.mark.parametrize("url", ["ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0", "memory:inspected"])
async def test_channels(url: str) -> None:
    async with served(url) as where:
        with trio.fail_after(30):
            report = await inspect_server(where, call=True, in_flight=4)
    assert report.findings == ()
    assert [each.era for each in report.eras] == ["modern", "legacy"]
    assert {"batches", "bad-json", "structured-content"} <= results(report)["followed"]
