"""A node that is told to stop: its clients notice at most one 404, and go on elsewhere."""

from __future__ import annotations

import httpx2
import trio

from tests.shared.spanning import Spanning
from tests.transports.http.nodes import nodes
from tests.transports.http.site import bare, call, text


async def test_an_idle_session_of_a_node_that_stops_is_not_found_anywhere() -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        async with b.stream("GET", None, session) as events:
            assert (await events.__anext__()).data == b""
            a.server.stop()
            # The stream ends in order, and says when to come back.
            assert [event async for event in events if event.is_message] == []
        assert (await b.post(call(1, "add", a=1, b=1), session)).status_code == 404
        assert shared.places == {}
        assert text((await b.post(call(2, "add", a=1, b=1), await b.open())).json()) == "2"


async def test_a_call_of_a_node_that_stops_is_answered_through_another() -> None:
    async with nodes(2, Spanning()) as (a, b):
        session = await a.open()
        answered: list[httpx2.Response] = []

        async def wait() -> None:
            answered.append(await b.post(call(1, "silent"), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await a.called.wait()
            a.server.stop()
            response = await b.post(call(2, "add", a=1, b=1), session)
            assert response.status_code == 404
            get = await b.http.get(b.url, headers={**bare(session), "accept": "text/event-stream"})
            assert get.status_code == 404
            a.go.set()
        assert text(answered[0].json()) == "at last"
        assert (await b.post(call(3, "add", a=1, b=1), session)).status_code == 404
