"""Sessions at any node, with Redis between the nodes."""

from __future__ import annotations

import httpx2
import trio

from mcp_actors.shared.redis import RedisShared
from tests.redis_server import RedisServer
from tests.transports.http.nodes import Node
from tests.transports.http.site import bare, call, message_of, text


async def test_a_session_is_served_at_every_node_and_its_events_outlive_its_node(
    redis_server: RedisServer,
) -> None:
    made = [Node(shared=RedisShared(redis_server.url, lease=2.0)) for _ in range(3)]
    a, b, c = made
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, a.http, b.http, c.http:
            for node in made:
                await nursery.start(node.live)
            session = await a.open()
            for id, node in enumerate((b, c, a), 1):
                assert text((await node.post(call(id, "add", a=id, b=1), session)).json()) == str(id + 1)
            async with b.stream("POST", call(7, "wait"), session) as events:
                assert (await events.__anext__()).data == b""
                last = (await events.__anext__()).id or ""
            a.go.set()
            async with c.stream("GET", None, session, **{"last-event-id": last}) as events:
                assert (await message_of(events))["params"]["progress"] == 2
                assert text(await message_of(events)) == "waited"
            answered: list[httpx2.Response] = []

            async def wait() -> None:
                answered.append(await b.post(call(8, "silent"), session))

            a.go, a.called = trio.Event(), trio.Event()
            async with trio.open_nursery() as calling:
                calling.start_soon(wait)
                await a.called.wait()
                a.scope.cancel()
            assert answered[0].status_code in (404, 502)
            headers = {**bare(session), "accept": "text/event-stream"}
            for node in (b, c):
                # What is forwarded while the node ends is lost with it.
                while (status := (await node.http.get(node.url, headers=headers)).status_code) == 502:
                    pass
                assert status == 404
            nursery.cancel_scope.cancel()
