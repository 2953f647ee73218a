"""Scopes and the end of an access in the engine, for bindings that carry frames alone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server
from mcp_actors.abc import FrameChannel
from mcp_actors.errors import InsufficientScope
from mcp_actors.supervision.principal import STREAM_GRACE, Principal
from mcp_transports.memory import MemoryTransport

ERAS = ["2025-11-25", "2026-07-28"]


class Authenticating(MemoryTransport):
    """A binding of somebody else that authenticates its peers."""

    def __init__(self, principal: Principal | None) -> None:
        super().__init__()
        self.principal = principal

    async def serve(
        self, handler: Any, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async def as_principal(channel: FrameChannel, principal: Principal | None = None) -> None:
            await handler(channel, self.principal)

        await super().serve(as_principal, task_status=task_status)


def make_server() -> Server:
    server = Server("scoped")

    @server.tool(scopes=["files:write"])
    async def store(ctx: Context) -> str:
        return "nobody" if ctx.principal is None else ctx.principal.subject

    @server.middleware
    async def told(ctx: Context, call_next: Any) -> Any:
        """Sees requests that may be served only."""
        assert ctx.method != "tools/call" or ctx.principal is None or "files:write" in ctx.principal.scopes
        return await call_next()

    return server


@asynccontextmanager
async def client_of(principal: Principal | None, era: str) -> AsyncIterator[Client]:
    async with trio.open_nursery() as nursery:
        transport = Authenticating(principal)
        await nursery.start(make_server().serve, transport)
        async with Client(transport, era=era) as client:
            yield client
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ERAS)
async def test_a_binding_that_authenticates_nobody_has_no_scopes_to_check(era: str) -> None:
    async with client_of(None, era) as client:
        assert (await client.call_tool("store")).text == "nobody"


@pytest.mark.parametrize("era", ERAS)
async def test_the_scopes_of_an_authenticated_peer_count_whatever_the_binding(era: str) -> None:
    async with client_of(Principal("ann", scopes=["files:write"]), era) as client:
        assert (await client.call_tool("store")).text == "ann"
    async with client_of(Principal("ann", scopes=["files:read"]), era) as client:
        with pytest.raises(InsufficientScope) as refusal:
            await client.call_tool("store")
        assert refusal.value.data == {"reason": "insufficient_scope", "scopes": ["files:write"]}


async def test_a_subscription_ends_some_time_after_its_access(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = trio.current_time()
    async with (
        client_of(Principal("ann", expires_at=time.time() + 100), "2026-07-28") as client,
        client.listen(tools=True) as listener,
    ):
        assert [event async for event in listener] == []
        assert trio.current_time() - began == pytest.approx(100 + STREAM_GRACE, abs=5)


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        ("files:read", "write a list of scopes"),
        (["two words"], "such as"),
        ([""], "such as"),
        ([1], "such as"),
    ],
)
def test_scopes_are_checked_when_they_are_written(scopes: Any, message: str) -> None:
    server = Server("scoped")
    for add in (server.tool, server.prompt):
        with pytest.raises(TypeError, match=message):
            add(scopes=scopes)(lambda: "never")


def test_what_a_principal_is() -> None:
    ann = Principal("ann", "https://as.example.org", "an app", ["a"], {"email": "secret"}, 100.0)
    assert ann == Principal("ann", "https://as.example.org", "an app", ["b"])
    others = [
        Principal("ann"),
        Principal("ann", "https://as.example.org"),
        Principal("ann", "https://as.example.org", "other"),
    ]
    assert all(ann != other and ann.key != other.key for other in others)
    assert "secret" not in repr(ann)
    assert (ann.seconds_left(90.0), ann.seconds_left(500.0)) == (10 + STREAM_GRACE, STREAM_GRACE)
    assert others[0].seconds_left(500.0) == float("inf")
