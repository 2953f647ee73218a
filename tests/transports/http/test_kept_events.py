"""With a log that other nodes read, an event leaves only once it is kept there."""

from __future__ import annotations

import json

import trio
import trio.testing

from tests.shared.spanning import Spanning
from tests.transports.http.nodes import nodes
from tests.transports.http.site import bare, call, message_of, text


async def test_no_event_leaves_before_it_is_kept_and_none_overtakes_another() -> None:
    async with nodes(1, Spanning()) as (a,):
        session = await a.open()
        a.state.events.hold = True
        async with a.stream("POST", call(1, "wait"), session) as events:
            await a.called.wait()
            a.go.set()
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.05) as early:
                await events.__anext__()
            assert early.cancelled_caught
            held = a.state.events.held
            # The last event is kept first: it still goes out last.
            held.reverse()
            a.state.events.release()
            assert (await events.__anext__()).data == b""
            assert (await message_of(events))["params"]["progress"] == 1
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
            assert [event async for event in events] == []


async def test_a_stream_whose_events_cannot_be_kept_goes_on_without_ids() -> None:
    async with nodes(1, shared := Spanning()) as (a,):
        session = await a.open()
        shared.keeps = False
        a.go.set()
        async with a.stream("POST", call(1, "wait"), session) as events:
            found = [event async for event in events if event.is_message]
        assert [event.id for event in found] == [None] * 3
        assert text(json.loads(found[-1].data)) == "waited"
        assert (await a.post(call(2, "add", a=1, b=1), session)).status_code == 200


async def test_a_client_resumes_at_another_node_and_gets_the_rest_once() -> None:
    async with nodes(3, Spanning()) as (a, b, c):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            assert (await events.__anext__()).data == b""
            last = (await events.__anext__()).id or ""
        async with c.stream("GET", None, session, **{"last-event-id": last}) as events:
            a.go.set()
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
            assert [event async for event in events] == []
        again = await b.http.get(
            b.url, headers={**bare(session), "accept": "text/event-stream", "last-event-id": last}
        )
        assert again.text.count("id: ") == 2


async def test_a_client_that_resumes_waits_for_events_that_are_not_kept_yet() -> None:
    async with nodes(2, Spanning()) as (a, b):
        session = await a.open()
        async with a.stream("POST", call(1, "wait"), session) as events:
            assert (await events.__anext__()).data == b""
            last = (await events.__anext__()).id or ""
            a.state.events.hold = True
            a.go.set()
        async with b.stream("GET", None, session, **{"last-event-id": last}) as events:
            await trio.testing.wait_all_tasks_blocked()
            a.state.events.release()
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
