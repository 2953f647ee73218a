"""A page in a real browser uses our server over WebSocket and HTTP, and one from a foreign origin does not get in.

The names of origins are made to lead to this machine, so that every refusal is the server's and none the network's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from mcp_actors import Server
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.websocket.server import WebSocketServerTransport

from .chromium import LIMIT, Site, visit

TEXT = "gruß 🐍"


@attrs.define
class Served:
    """Our server over both bindings: where it is, as the page wants it, and for whom its tool ran."""

    query: str
    websocket: WebSocketServerTransport
    echoed: list[str]

    @classmethod
    @asynccontextmanager
    async def open(cls, allowed_origins: Sequence[str] | None) -> AsyncIterator[Served]:
        server = Server("for-pages")
        echoed: list[str] = []

        @server.tool
        async def echo(message: str) -> str:
            echoed.append(message)
            return message

        websocket = WebSocketServerTransport("ws://127.0.0.1:0/ws", allowed_origins=allowed_origins)
        http = HttpServerTransport("http://127.0.0.1:0/mcp", allowed_origins=allowed_origins)
        async with trio.open_nursery() as nursery:
            urls = await nursery.start(server.serve, websocket, http)
            yield cls("ws={}&http={}".format(*urls), websocket, echoed)
            nursery.cancel_scope.cancel()


async def reported(browser: str, name: str, allowed: str | None) -> tuple[dict[str, Any], Served]:
    """What a page from the host ``name`` tells; ``allowed`` is the host that the server was told to let in."""
    with trio.fail_after(LIMIT + 10):
        async with Site.open() as site:
            origins = None if allowed is None else [f"http://{allowed}:{site.port}"]
            async with Served.open(origins) as served:
                report = await visit(browser, site, name, served.query)
                assert report["origin"] == f"http://{name}:{site.port}"
                return report, served


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        pytest.param("app.example.com", "app.example.com", id="named"),
        pytest.param("localhost", None, id="loopback-by-default"),
    ],
)
async def test_a_page_that_may(browser: str, name: str, allowed: str | None) -> None:
    report, served = await reported(browser, name, allowed)
    introduction = {"server": "for-pages", "tools": ["echo"], "text": TEXT}
    assert report["websocket"] == {
        **introduction,
        "protocol": "mcp",
        "extensions": "",
        "closed": 1003,  # a binary frame is none of MCP's
    }
    assert report["http"] == {**introduction, "session": True, "ended": True}
    assert report["modern"] == {"text": TEXT}
    assert report["title"] == "works"
    assert len(served.echoed) == 3
    assert served.websocket.statistics().refused == 0


@pytest.mark.parametrize(
    "allowed",
    [pytest.param("app.example.com", id="others-are-named"), pytest.param(None, id="nobody-is-named")],
)
async def test_a_page_from_a_foreign_origin_is_refused(browser: str, allowed: str | None) -> None:
    report, served = await reported(browser, "evil.example.com", allowed)
    assert report["websocket"] == {"refused": "closed with 1006"}  # pages are told no more
    assert served.websocket.statistics().refused == 1
    assert report["http"] == {"refused": "Failed to fetch"}
    assert report["modern"] == {"refused": "Failed to fetch"}
    assert report["title"] == "refused"
    # What needs no leave of the server was sent: the browser shows nothing of the answer, and nothing was done.
    assert report["blind"] == {"saw": "opaque"}
    assert served.echoed == []


async def test_loopback_pages_are_foreign_once_another_origin_is_named(browser: str) -> None:
    report, served = await reported(browser, "localhost", "app.example.com")
    assert report["websocket"] == {"refused": "closed with 1006"}
    assert report["http"] == {"refused": "Failed to fetch"}
    assert served.echoed == []
