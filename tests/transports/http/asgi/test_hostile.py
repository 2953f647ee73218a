"""What ASGI servers and programs may do to an application, and what it costs: nothing but what did it."""

from __future__ import annotations

import asyncio

import pytest
import trio

from mcp_actors import Server
from mcp_actors.asyncio import Client
from mcp_transports.http.asgi import websocket
from tests import messages
from tests.transports.http.asgi import test_websocket
from tests.transports.http.asgi.test_requests import INITIALIZE, Lifespan, Site, ask, on_asyncio, session


@on_asyncio
async def test_a_request_behind_the_stop_of_its_server_costs_no_other_server() -> None:
    site = Site()
    async with Client(Server("another")) as client:
        await session(site.app)
        site.server.stop()
        await site.saw("ended")
        assert (await ask(site.app, INITIALIZE)).status == 503
        begun = await Lifespan(site.app).tell("lifespan.startup", 1)
        assert begun["type"] == "lifespan.startup.failed"
        assert "the server was stopped" in begun["message"]
        await client.ping()


@on_asyncio
async def test_a_lifespan_that_breaks_off_leaves_the_server_to_the_others() -> None:
    site = Site()
    one, two = Lifespan(site.app), Lifespan(site.app)
    for each in (one, two):
        await each.tell("lifespan.startup", 1)
    two.task.cancel()
    await asyncio.wait([two.task])
    await session(site.app)
    assert site.seen == ["begun"]
    await one.tell("lifespan.shutdown", 2)
    assert site.seen == ["begun", "ended"]


async def test_a_websocket_whose_server_sends_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "WRITE_TIME", 0.1)
    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.1)
    async with test_websocket.site() as at:
        peer = at.connect()
        await peer.open()
        # Nothing of it is ever taken.
        peer.say(messages.call(1, "flood"))
        with trio.fail_after(10):
            await peer.ended.wait()
