"""A server with an admin endpoint, for tests that look at it and act on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2
import trio

from mcp_actors import Server
from mcp_actors.telemetry.snapshot import NodeSnapshot
from mcp_transports.admin import AdminClient, AdminTransport

__all__ = ["TOKEN", "Operator", "loopback", "make_server", "operator", "serving"]

TOKEN = "a-token-of-an-operator"


def make_server() -> Server:
    server = Server("watched", version="1.2")

    @server.tool
    async def hold(name: str) -> str:
        await trio.sleep_forever()
        return name

    @server.tool
    async def echo(text: str) -> str:
        return text

    return server


@attrs.frozen
class Operator:
    """Somebody who looks through an admin endpoint."""

    http: httpx2.AsyncClient
    client: AdminClient

    async def snapshot(self) -> Any:
        answer = await self.http.get("/snapshot")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def node(self) -> Any:
        (node,) = (await self.snapshot())["nodes"]
        return node

    async def until(self, rows: str, count: int) -> Any:
        """Returns the only node, once it has that many rows."""
        while True:
            node = await self.node()
            if len(node[rows]) == count:
                return node
            await trio.lowlevel.checkpoint()

    async def until_gone(self, session: str) -> None:
        """Returns once there is no session of that name."""
        while any(each["name"] == session for each in (await self.node())["sessions"]):
            await trio.lowlevel.checkpoint()

    async def act(self, action: str, node: str, target: str) -> httpx2.Response:
        return await self.http.post("/actions", json={"action": action, "node": node, "target": target})

    async def events(self, count: int) -> list[NodeSnapshot]:
        """Returns the node in so many snapshots of the event stream."""
        found: list[NodeSnapshot] = []
        async with self.client.watching() as snapshots:
            async for snapshot in snapshots:
                (node,) = snapshot.nodes
                found.append(node)
                if len(found) == count:
                    break
        return found


@asynccontextmanager
async def operator(where: str, token: str | None = TOKEN) -> AsyncIterator[Operator]:
    """Opens the way to an admin endpoint, which is at a URL or at ``unix:PATH``."""
    path = where.removeprefix("unix:")
    transport = httpx2.AsyncHTTPTransport(uds=path if path != where else None)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    base = "http://localhost" if path != where else where
    async with httpx2.AsyncClient(transport=transport, base_url=base, headers=headers) as http:
        yield Operator(http, AdminClient(where, token))


@asynccontextmanager
async def serving(server: Server, *targets: Any) -> AsyncIterator[tuple[Any, ...]]:
    """Serves ``server`` and yields the places; it is stopped at the end."""
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(lambda task_status: server.serve(*targets, task_status=task_status))
            nursery.cancel_scope.cancel()


def loopback(**options: Any) -> AdminTransport:
    return AdminTransport("http://127.0.0.1:0", token=TOKEN, **options)
