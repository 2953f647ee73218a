"""Requests of a session that reach a node which does not hold it."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.supervision.principal import Principal
from mcp_transports.http.server import forwarded_messages, forwarder
from mcp_transports.http.server.forwarded_messages import (
    CHUNK,
    CutOff,
    Head,
    MalformedForward,
    Piece,
    decode_message,
    encode_message,
)
from tests.actors.witness import still_running
from tests.shared.spanning import Spanning
from tests.transports.http.nodes import Node, nodes
from tests.transports.http.site import INITIALIZED, Events, bare, call, initialize, message_of, text

pytestmark = pytest.mark.slow


async def test_a_call_reaches_the_node_that_holds_its_session() -> None:
    async with nodes(3, Spanning()) as (a, b, c):
        session = await a.open()
        for id, node in enumerate((b, c, a, b), 1):
            response = await node.post(call(id, "add", a=id, b=1), session)
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/json"
            assert text(response.json()) == str(id + 1)
        assert [node.transport.statistics().sessions.open for node in (a, b, c)] == [1, 0, 0]


async def test_a_notification_and_the_end_of_a_session_reach_it_too() -> None:
    async with nodes(2, Spanning()) as (a, b):
        response = await a.post(initialize("2025-11-25"))
        session = response.headers["mcp-session-id"]
        assert (await b.post(INITIALIZED, session)).status_code == 202
        assert (await b.http.delete(b.url, headers=bare(session))).status_code == 200
        for node in (a, b):
            assert (await node.post(call(1, "add", a=1, b=1), session)).status_code == 404
            assert (await node.http.delete(node.url, headers=bare(session))).status_code == 404


async def test_a_stream_comes_back_piece_by_piece() -> None:
    async with nodes(2, Spanning()) as (a, b):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            progress = await message_of(events)
            assert progress["method"] == "notifications/progress"
            a.go.set()
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
            assert [event async for event in events] == []


async def test_a_server_asks_through_another_node_and_is_answered_through_a_third() -> None:
    async with nodes(3, Spanning()) as (a, b, c):
        session = await a.open()
        async with b.stream("POST", call(1, "ask"), session) as events:
            question = await message_of(events)
            answer = {"action": "accept", "content": {"name": "Ann"}}
            sent = await c.post({"jsonrpc": "2.0", "id": question["id"], "result": answer}, session)
            assert sent.status_code == 202
            assert text(await message_of(events)) == "hello Ann"


async def test_an_id_that_no_node_knows_is_not_found() -> None:
    async with nodes(2, Spanning()) as (a, b):
        for node in (a, b):
            response = await node.post(call(1, "add", a=1, b=1), "nobody")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == -32001


async def test_bodies_and_answers_that_are_longer_than_any_window_come_whole() -> None:
    async with nodes(2, Spanning(latency=0)) as (a, b):

        @a.server.tool
        async def repeat(text: str) -> str:
            return text * 2

        session = await a.open()
        long = "".join(f"{number:08}" for number in range(300_000))
        response = await b.post(call(1, "repeat", text=long), session)
        assert text(response.json()) == long * 2


async def test_a_session_is_its_principals_at_every_node() -> None:
    def authenticate(request: object) -> Principal:
        name = request.headers["authorization"]  # type: ignore[attr-defined]
        return Principal(name, claims={"level": 3})

    shared = Spanning()
    async with nodes(2, shared, authenticate=authenticate) as (a, b):
        ann, bob = {"authorization": "Ann-secret"}, {"authorization": "Bob"}
        response = await a.post(initialize("2025-11-25"), **ann)
        session = response.headers["mcp-session-id"]
        assert (await b.post(INITIALIZED, session, **ann)).status_code == 202
        assert (await b.post(call(1, "add", a=1, b=1), session, **ann)).status_code == 200
        for node in (a, b):
            assert (await node.post(call(2, "add", a=1, b=1), session, **bob)).status_code == 404
        # The name is the principal's; the header that proved it stayed where it came.
        assert not [message for _, message in shared.sent if b"authorization" in message]


async def test_without_the_directory_a_session_does_not_begin() -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        shared.away = True
        response = await a.post(initialize("2025-11-25"))
        assert response.status_code == 503
        assert response.json()["error"]["data"] == {"reason": "shared_state_unavailable", "role": "sessions"}
        assert "mcp-session-id" not in response.headers
        # What a node holds itself needs nothing of it.
        assert (await a.post(call(1, "add", a=1, b=1), session)).status_code == 200
        assert (await b.post(call(2, "add", a=1, b=1), session)).status_code == 503
        shared.away = False
        assert text((await b.post(call(3, "add", a=1, b=2), session)).json()) == "3"
        statistics = a.transport.statistics().sessions
        assert statistics is not None
        assert statistics.open == 1


async def test_a_client_that_leaves_is_noticed_where_its_session_is() -> None:
    async with nodes(2, Spanning()) as (a, b):
        session = await a.open()
        async with b.stream("GET", None, session) as events:
            assert (await events.__anext__()).id
            second = await b.http.get(b.url, headers={**bare(session), "accept": "text/event-stream"})
            assert second.status_code == 409
        while a.transport.statistics().event_streams:
            await trio.lowlevel.checkpoint()


async def test_http_sse_may_post_anywhere() -> None:
    async with nodes(2, Spanning()) as (a, b):
        async with a.stream("GET", path="/sse") as events:
            endpoint = (await events.__anext__()).data.decode()
            url = b.url.removesuffix("/mcp") + endpoint
            assert (await b.http.post(url, json=initialize("2024-11-05"))).status_code == 202
            assert (await message_of(events))["result"]["protocolVersion"] == "2024-11-05"
            unknown = await b.http.post(url + "x", json=INITIALIZED)
            assert unknown.status_code == 404


async def test_a_node_that_is_lost_costs_its_calls_an_error_and_its_sessions_a_404() -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        answered = []

        async def wait() -> None:
            answered.append(await b.post(call(1, "silent"), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await a.called.wait()
            shared.lose(a.state.node)
        (response,) = answered
        assert response.status_code == 502
        assert "may have been done" in response.json()["error"]["message"]
        assert (await b.post(call(2, "add", a=1, b=1), session)).status_code == 404


async def test_events_of_a_lost_node_are_replayed_anywhere_once() -> None:
    shared = Spanning()
    async with nodes(3, shared) as (a, b, c):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            first = await events.__anext__()
            assert json.loads((await events.__anext__()).data)["params"]["progress"] == 1
            shared.lose(a.state.node)
        headers = {**bare(session), "accept": "text/event-stream"}
        replayed = await c.http.get(c.url, headers={**headers, "last-event-id": first.id or ""})
        assert replayed.status_code == 200
        assert '"progress":1' in replayed.text
        last = replayed.text.split("id: ")[1].split("\n")[0]
        for node in (b, c):
            assert (
                await node.http.get(node.url, headers={**headers, "last-event-id": last})
            ).status_code == 404
            assert (await node.http.get(node.url, headers=headers)).status_code == 404


# -- What is lost on the way between two nodes, and what no node would have sent -------------------------


def loses_one(cls: type) -> Any:
    """Loses the first message of a class, as a Redis does that was flushed."""
    lost: list[bytes] = []

    def loses(address: str, message: bytes) -> bool:
        if not lost and isinstance(decode_message(message), cls):
            lost.append(message)
            return True
        return False

    return loses


@pytest.mark.parametrize("cls", [forwarded_messages.Begun, Head])
async def test_a_message_that_is_lost_costs_its_call_an_error(cls: type) -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        shared.loses = loses_one(cls)
        assert (await b.post(call(1, "add", a=1, b=1), session)).status_code == 502
        assert text((await b.post(call(2, "add", a=1, b=1), session)).json()) == "2"


async def test_a_piece_that_is_lost_cuts_its_stream_off() -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            assert (await message_of(events))["params"]["progress"] == 1
            shared.loses = loses_one(Piece)
            a.go.set()
            with pytest.raises(AssertionError, match="the end came before"):
                await _last(events)


async def _last(events: Events) -> Any:
    """The answer at the end of a stream."""
    while "result" not in (message := await message_of(events)):
        pass
    return message


async def test_the_bus_may_be_away_for_a_moment_in_the_middle_of_an_answer() -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            assert (await message_of(events))["params"]["progress"] == 1
            shared.away = True
            a.go.set()
            await shared.refused.wait()
            shared.away = False
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"


async def test_a_node_that_falls_silent_costs_its_calls_an_error_and_is_heard_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is there for the shared state, as a process is that was stopped."""
    monkeypatch.setattr(forwarder, "WATCH_INTERVAL", 0.05)
    monkeypatch.setattr(forwarder, "MAX_SILENCE", 60)
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            before = await events.__anext__()
            assert (await message_of(events))["params"]["progress"] == 1
            shared.loses = lambda address, message: decode_message(message).source.startswith(a.state.node)
            monkeypatch.setattr(forwarder, "MAX_SILENCE", 0.2)
            assert (await b.post(call(2, "silent"), session)).status_code == 502
            with pytest.raises(AssertionError, match="the end came before"):
                await _last(events)
        # The events that it has sent are still there for a client that resumes.
        async with b.stream("GET", None, session, **{"last-event-id": before.id or ""}) as resumed:
            assert [json.loads(event.data)["params"]["progress"] async for event in resumed] == [1]
        monkeypatch.setattr(forwarder, "MAX_SILENCE", 60)
        shared.loses = lambda address, message: False
        a.go.set()
        assert text((await b.post(call(3, "add", a=1, b=1), session)).json()) == "2"


async def test_hostile_messages_change_nothing(logs: list[MutableMapping[str, Any]]) -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        for state in (a.state, b.state):
            (address,) = state.mailboxes
            for message in (
                b"",
                b"\xc1",
                b"\x93\x03",
                msgspec.msgpack.encode([4, "x", 1, 1, b"x" * (CHUNK + 1), True]),
            ):
                state.mailboxes[address](message)
            for number in range(3):
                for known in (
                    Head(address, number, 200, None, [], b"", True),
                    Piece(address, number, 7, b"", True),
                    CutOff(address, number),
                    forwarded_messages.ClientGone(address, [number, number]),
                    forwarded_messages.Unknown(address, [number]),
                    forwarded_messages.Consumed(address, number, -1),
                    forwarded_messages.Received(address, number, 1 << 60),
                    forwarded_messages.BodyPart(address, number, 1, b"x", True),
                ):
                    state.mailboxes[address](encode_message(known))
        assert text((await b.post(call(1, "add", a=1, b=1), session)).json()) == "2"
    malformed = [entry for entry in logs if "malformed" in entry["event"]]
    assert len(malformed) == 8
    assert not [entry for entry in logs if entry["log_level"] == "error"]


async def test_what_comes_behind_the_last_part_of_a_request_is_not_served(
    logs: list[MutableMapping[str, Any]],
) -> None:
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        (address,) = a.state.mailboxes
        (source,) = b.state.mailboxes
        begun = forwarded_messages.Begun(
            source=f"{b.state.node}/{source}",
            number=77,
            method="DELETE",
            path="/mcp",
            query="",
            headers={"mcp-session-id": session},
            peer="10.0.0.1",
            secure=False,
            http_sse=False,
            principal=None,
            answer_headers=[],
            body=b"x",
            last=False,
        )
        for message in (
            begun,
            forwarded_messages.BodyPart(begun.source, 77, 1, b"y", True),
            forwarded_messages.BodyPart(begun.source, 77, 2, b"z", True),
        ):
            a.state.mailboxes[address](encode_message(message))
        await trio.testing.wait_all_tasks_blocked()
    assert not [entry for entry in logs if entry["log_level"] == "error"]


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_malformed(data: bytes) -> None:
    try:
        message = decode_message(data)
    except MalformedForward:
        return
    assert decode_message(encode_message(message)) == message


async def test_a_node_that_is_cancelled_at_any_step_of_its_start_ends() -> None:
    for steps in range(40):
        node = Node(shared=Spanning())
        async with node.http, trio.open_nursery() as nursery:
            nursery.start_soon(node.live)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
            assert await still_running(nursery) == [], steps


async def test_a_client_may_leave_at_any_moment() -> None:
    shared = Spanning(latency=0.01)
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        for moment in range(12):
            with trio.move_on_after(moment * 0.005):
                await b.post(call(moment, "add", a=1, b=1), session)
        assert text((await b.post(call("last", "add", a=1, b=1), session)).json()) == "2"
        while a.transport.statistics().sessions.calls:  # type: ignore[union-attr]
            await trio.lowlevel.checkpoint()
