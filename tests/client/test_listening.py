"""Subscriptions as a client has them: the same in both eras, and honest about how they end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Server
from mcp_actors._eras.era import Event
from mcp_actors.errors import CallTimeout, RpcError, SubscriptionLost
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.types import Resource
from tests.scripted_peers import MODERN, SUBSCRIPTION_ID, fail, greet, notify, reply, scripted, tell

ACK = "notifications/subscriptions/acknowledged"
TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


def make_server(**options: Any) -> Server:
    server = Server("s", **options)
    server.add_tool(lambda: None, name="t")
    server.add_prompt(lambda: "p", name="p")
    server.add_resource("x://a", lambda: "a", name="a")
    return server


class Listening:
    """A listener that runs in the background and keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.end: str | Exception | None = None

    async def run(self, client: Client, **filter: Any) -> None:
        try:
            async with client.listen(**filter) as events:
                async for event in events:
                    self.events.append(event)
            self.end = "in order"
        except Exception as error:
            self.end = error


async def acknowledged(peer: ScriptedPeer) -> dict[str, Any]:
    request: dict[str, Any] = await peer.receive()
    assert request["method"] == "subscriptions/listen"
    await tell(peer, request["id"], ACK, notifications=request["params"]["notifications"])
    await wait_all_tasks_blocked()
    return request


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_both_eras_look_alike(era: str) -> None:
    server = make_server()
    async with Client(server, era=era) as client:
        async with client.listen(tools=True, uris=("x://a",)) as events:
            server.remove_prompt("p")  # not asked for
            server.remove_tool("t")
            assert await anext(events) == Event("tools")
            server.resource_updated("x://a/b")
            assert await anext(events) == Event("resource_updated", "x://a/b")
        await wait_all_tasks_blocked()
        assert server.tree().bus.uris == 0


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_template_that_lists_other_resources_says_so(era: str) -> None:
    server, there = Server("s"), [Resource("x://a", "a")]
    server.add_resource("x://{name}", lambda name: name, name="x", list=lambda: there)
    async with Client(server, era=era) as client, client.listen(resources=True) as events:
        there.append(Resource("x://b", "b"))
        server.resources_changed()
        assert await anext(events) == Event("resources")
        assert [each.uri async for each in client.resources()] == ["x://a", "x://b"]


async def test_what_goes_over_the_wire() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        heard = Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True, uris=("x://a",)))
        request = await acknowledged(peer)
        assert request["params"]["notifications"] == {
            "toolsListChanged": True,
            "resourceSubscriptions": ["x://a"],
        }
        assert request["params"]["_meta"]
        nursery.cancel_scope.cancel()
    # Leaving the block told the server.


async def test_leaving_the_block_tells_the_server() -> None:
    async with scripted(MODERN) as (client, peer):
        ids: list[Any] = []

        async def play() -> None:
            ids.append((await acknowledged(peer))["id"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(play)
            async with client.listen(tools=True):
                pass
        cancelled = await peer.receive()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == ids[0]
        await tell(peer, ids[0], TOOLS)  # a stray event: nobody listens, nothing breaks
        await notify(peer, TOOLS)


async def test_events_are_told_apart_by_their_tags() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        one, two = Listening(), Listening()
        nursery.start_soon(lambda: one.run(client, tools=True))
        first = (await acknowledged(peer))["id"]
        nursery.start_soon(lambda: two.run(client, tools=True, prompts=True))
        second = (await acknowledged(peer))["id"]
        await tell(peer, second, TOOLS)
        await tell(peer, 999, TOOLS)
        await tell(peer, str(first), TOOLS)  # "1" is not 1
        for odd in ([first], {"id": first}, 1.5, True):
            await tell(peer, odd, TOOLS)
            await tell(peer, odd, ACK)
        await tell(peer, first, "notifications/prompts/list_changed")  # not what it asked for
        await wait_all_tasks_blocked()
        assert (one.events, two.events) == ([], [Event("tools")])
        await tell(peer, first, TOOLS)
        await wait_all_tasks_blocked()
        assert one.events == [Event("tools")]
        nursery.cancel_scope.cancel()


async def test_the_result_is_the_end_in_order() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        heard = Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True))
        request = await acknowledged(peer)
        await tell(peer, request["id"], TOOLS)
        await reply(peer, request, {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: request["id"]}})
        await wait_all_tasks_blocked()
        assert heard.events == [Event("tools")]  # nothing that was told is lost
        assert heard.end == "in order"


async def test_cancelled_by_the_server_is_no_end_in_order(autojump_clock: MockClock) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        heard, other = Listening(), Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True))
        request = await acknowledged(peer)
        nursery.start_soon(lambda: other.run(client, tools=True))
        await acknowledged(peer)
        await notify(peer, "notifications/cancelled", requestId=request["id"], reason="making room")
        await wait_all_tasks_blocked()
        await reply(peer, request, {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: request["id"]}})
        await wait_all_tasks_blocked()
        assert isinstance(heard.end, SubscriptionLost)
        assert "making room" in str(heard.end)
        assert other.end is None
        with trio.move_on_after(60) as waited:
            await peer.receive()
        assert waited.cancelled_caught  # the server knows; it is not told
        nursery.cancel_scope.cancel()


async def test_cancelled_of_other_requests_means_nothing() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        heard = Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True))
        request = await acknowledged(peer)
        nursery.start_soon(client.list_tools)
        call = await peer.receive()
        for id in (call["id"], str(request["id"]), True, None, [1], 10**6):
            await notify(peer, "notifications/cancelled", requestId=id)
        await notify(peer, "notifications/cancelled")
        await reply(peer, call, {"tools": []})
        await wait_all_tasks_blocked()
        assert heard.end is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["error", "connection"])
async def test_an_abrupt_end_is_no_end_in_order(how: str) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        heard = Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True))
        request = await acknowledged(peer)
        await tell(peer, request["id"], TOOLS)
        if how == "error":
            await fail(peer, request, -32603)
        else:
            await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert heard.events == [Event("tools")]
        assert isinstance(heard.end, SubscriptionLost)


async def test_a_lost_session_is_no_end_in_order() -> None:
    async with scripted("2025-11-25") as (client, peer), trio.open_nursery() as nursery:
        heard = Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True))
        await wait_all_tasks_blocked()
        await notify(peer, TOOLS)
        await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert heard.events == [Event("tools")]
        assert isinstance(heard.end, SubscriptionLost)


@pytest.mark.parametrize("era", ["modern"])
async def test_a_server_that_stops_ends_it_in_order(era: str) -> None:
    server = make_server()
    async with Client(server, era=era) as client, trio.open_nursery() as nursery:
        heard = Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True))
        await wait_all_tasks_blocked()
        server.stop()
        await wait_all_tasks_blocked()
        assert heard.end == "in order"


async def test_a_server_that_cannot_be_listened_to_says_so() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        heard = Listening()
        nursery.start_soon(lambda: heard.run(client, tools=True))
        await fail(peer, await peer.receive(), -32601)
        await wait_all_tasks_blocked()
        assert isinstance(heard.end, SubscriptionLost | RpcError)


async def test_an_acknowledgement_that_never_comes_is_bounded(autojump_clock: MockClock) -> None:
    async with scripted(MODERN, timeout=7) as (client, peer):
        heard = Listening()
        await heard.run(client, tools=True)
        assert isinstance(heard.end, CallTimeout)
        request = await peer.receive()
        assert (await peer.receive())["params"]["requestId"] == request["id"]


async def test_a_quiet_subscription_never_times_out(autojump_clock: MockClock) -> None:
    server = make_server()
    async with Client(server, era="modern", timeout=1, cap=2) as client:
        async with client.listen(tools=True) as events:
            await trio.sleep(10_000)
            server.remove_tool("t")
            assert await anext(events) == Event("tools")


async def test_a_slow_listener_sees_the_newest_state_and_nothing_grows() -> None:
    server = make_server()
    async with Client(server, era="modern") as client:
        async with client.listen(tools=True, uris=("x://a",)) as events:
            for number in range(1000):
                server.add_tool(lambda: None, name=f"t{number}")
                server.resource_updated("x://a")
                if number % 100 == 0:
                    await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()
            seen = [await anext(events), await anext(events)]
            assert set(seen) == {Event("tools"), Event("resource_updated", "x://a")}
            with trio.move_on_after(0):
                seen.append(await anext(events))
            assert len(seen) == 2


async def test_legacy_subscriptions_are_shared_and_given_back() -> None:
    async with scripted("2025-11-25") as (client, peer), trio.open_nursery() as nursery:
        one, two = Listening(), Listening()
        scopes = [trio.CancelScope(), trio.CancelScope()]

        async def run(listening: Listening, scope: trio.CancelScope) -> None:
            with scope:
                await listening.run(client, uris=("x://a",))

        for listening, scope in zip((one, two), scopes, strict=True):
            nursery.start_soon(run, listening, scope)
            request = await peer.receive()
            assert (request["method"], request["params"]) == ("resources/subscribe", {"uri": "x://a"})
            await reply(peer, request, {})
            await wait_all_tasks_blocked()
        await notify(peer, UPDATED, uri="x://a")
        await notify(peer, UPDATED, uri="x://other")
        await wait_all_tasks_blocked()
        assert one.events == two.events == [Event("resource_updated", "x://a")]
        sent = client.tree().link.frames_out
        scopes[0].cancel()
        await wait_all_tasks_blocked()
        assert client.tree().link.frames_out == sent
        scopes[1].cancel()
        request = await peer.receive()  # only the last one unsubscribes
        assert (request["method"], request["params"]) == ("resources/unsubscribe", {"uri": "x://a"})
        await reply(peer, request, {})


async def test_a_listener_and_a_subscription_of_the_session_do_not_end_each_other() -> None:
    server = make_server()
    told: list[str | None] = []
    async with Client(server, era="legacy", on_change=lambda kind, uri: told.append(uri)) as client:
        await client.subscribe_resource("x://a")
        async with client.listen(uris=("x://a",)):
            pass
        server.resource_updated("x://a")
        await wait_all_tasks_blocked()
        assert told == ["x://a"]
        async with client.listen(uris=("x://a",)) as events:
            await client.unsubscribe_resource("x://a")
            server.resource_updated("x://a")
            assert await anext(events) == Event("resource_updated", "x://a")
        await wait_all_tasks_blocked()
        assert server.tree().bus.uris == 0


async def test_a_client_that_is_started_again_listens_again(autojump_clock: MockClock) -> None:
    """What changed while nobody was connected is unknown, so every list counts as changed."""
    told: list[tuple[str, str | None]] = []
    async with raw_server() as server, trio.open_nursery() as nursery:
        peers: list[ScriptedPeer] = []
        ready = trio.Event()

        async def play() -> None:
            for _ in range(2):
                peers.append(await server.accept())
                await greet(peers[-1])
                await acknowledged(peers[-1])
            ready.set()

        nursery.start_soon(play)
        options: dict[str, Any] = {"restart": True, "on_change": lambda kind, uri: told.append((kind, uri))}
        async with Client(server.transport, **options):
            await wait_all_tasks_blocked()
            assert told == []
            await peers[0].channel.aclose()
            await ready.wait()
            await wait_all_tasks_blocked()
            assert sorted(told) == [("prompts", None), ("resources", None), ("tools", None)]


async def test_the_next_session_is_not_asked_to_take_back_what_the_last_one_subscribed_to() -> None:
    """The request could arrive after that of a listener that subscribes again, and leave it deaf."""
    async with raw_server() as server, trio.open_nursery() as nursery:
        peers: list[ScriptedPeer] = []

        async def play() -> None:
            for _ in range(2):
                peer = await server.accept()
                await greet(peer, "2025-11-25")
                peers.append(peer)

        nursery.start_soon(play)
        async with Client(server.transport, era="legacy", restart=True) as client:
            await wait_all_tasks_blocked()
            heard = Listening()
            nursery.start_soon(lambda: heard.run(client, uris=("x://a",)))
            await reply(peers[0], await peers[0].receive(), {})
            await wait_all_tasks_blocked()
            await peers[0].channel.aclose()
            with trio.fail_after(60):
                while len(peers) < 2 or heard.end is None:
                    await trio.lowlevel.checkpoint()
            assert isinstance(heard.end, SubscriptionLost)
            nursery.start_soon(lambda: Listening().run(client, uris=("x://b",)))
            request = await peers[1].receive()
            assert (request["method"], request["params"]) == ("resources/subscribe", {"uri": "x://b"})
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["ended", "cancelled", "refused"])
async def test_changes_are_followed_again_on_a_connection_that_goes_on(
    how: str, autojump_clock: MockClock
) -> None:
    """Over HTTP a stream may end and the server be there all the same; one that refuses is not pressed."""
    told: list[tuple[str, str | None]] = []
    times: list[float] = []
    async with raw_server() as server, trio.open_nursery() as nursery:

        async def play() -> None:
            peer = await server.accept()
            await greet(peer)
            for number in range(3):
                asked = await acknowledged(peer)
                times.append(trio.current_time())
                if number == 2:
                    await trio.sleep_forever()
                if how == "ended":
                    tag = {SUBSCRIPTION_ID: asked["id"]}
                    await reply(peer, asked, {"resultType": "complete", "_meta": tag})
                elif how == "cancelled":
                    gone = {"requestId": asked["id"], "reason": "tired"}
                    await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gone})
                else:
                    error = {"code": -32603, "message": "no"}
                    await peer.send({"jsonrpc": "2.0", "id": asked["id"], "error": error})
                    await trio.sleep_forever()

        nursery.start_soon(play)
        async with Client(server.transport, on_change=lambda kind, uri: told.append((kind, uri))):
            await trio.sleep(100)
        nursery.cancel_scope.cancel()
    waits = [round(after - before, 3) for before, after in pairwise(times)]
    assert waits == ([] if how == "refused" else [1.0, 2.0])
    # What changed meanwhile is unknown.
    assert sorted(told) == sorted([("prompts", None), ("resources", None), ("tools", None)] * len(waits))
