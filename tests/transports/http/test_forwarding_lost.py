"""What is lost on the way between two nodes, and what no node would have sent."""

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
from tests.shared.spanning import Spanning
from tests.transports.http.nodes import nodes
from tests.transports.http.site import Events, call, message_of, text


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
    monkeypatch.setattr(forwarder, "MAX_SILENCE", 0.2)
    shared = Spanning()
    async with nodes(2, shared) as (a, b):
        session = await a.open()
        async with b.stream("POST", call(1, "wait"), session) as events:
            before = await events.__anext__()
            assert (await message_of(events))["params"]["progress"] == 1
            shared.loses = lambda address, message: decode_message(message).source.startswith(a.state.node)
            assert (await b.post(call(2, "silent"), session)).status_code == 502
            with pytest.raises(AssertionError, match="the end came before"):
                await _last(events)
        # The events that it has sent are still there for a client that resumes.
        async with b.stream("GET", None, session, **{"last-event-id": before.id or ""}) as resumed:
            assert [json.loads(event.data)["params"]["progress"] async for event in resumed] == [1]
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
