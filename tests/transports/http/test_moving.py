"""Sessions of a node that ends: another node goes on with them, and what is in flight ends where it began."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Context, Server
from mcp_actors.tasks import Tasks
from mcp_transports._sockets import retire
from mcp_transports.http.server import session_streams, sessions
from tests import messages
from tests.messages import LEGACY
from tests.shared.spanning import Spanning, SpanningNode
from tests.transports.crashes import captured_logs
from tests.transports.http.nodes import Node, nodes
from tests.transports.http.raw import eventually
from tests.transports.http.site import INITIALIZED, Events, bare, call, initialize, message_of, text

GET = {"accept": "text/event-stream"}
LONG = 1000.0


@asynccontextmanager
async def stocked(number: int, shared: Spanning | None = None, **options: Any) -> AsyncIterator[list[Node]]:
    """Nodes with a resource, a tool that changes it, and tools that use what a session is."""
    async with nodes(number, shared or Spanning(), **options) as made:
        for node in made:
            stock(node)
        yield made


def stock(node: Node) -> None:
    server = node.server

    @server.resource("stock://{name}")
    def stock(name: str) -> str:
        return name

    @server.tool
    async def change(what: str) -> str:
        server.resource_updated(f"stock://{what}")
        return "changed"

    @server.tool
    async def introduce(ctx: Context) -> str:
        peer = ctx.call.invocation.peer
        return json.dumps(
            [peer.raw_info["name"], sorted(peer.raw_capabilities), peer.log_level, peer.version]
        )

    @server.tool
    async def tell(ctx: Context) -> str:
        node.called.set()
        await node.go.wait()
        assert ctx.session is not None
        ctx.session.log("error", "from the call")
        return "told"

    @server.tool
    async def conceal(ctx: Context) -> None:
        assert ctx.session is not None
        ctx.session.hide("add")

    @server.tool
    async def keep(ctx: Context) -> str:
        assert ctx.session is not None
        ctx.session.get(dict)
        return "kept"


async def gone(node: Node) -> None:
    """Stops a node, and waits until it has handed its sessions over."""
    node.server.stop()
    await eventually(lambda: node.server._runtime._stopping.is_set())


async def subscribed(node: Node, session: str, name: str) -> None:
    message = messages.request("s", "resources/subscribe", {"uri": f"stock://{name}"})
    assert (await node.post(message, session)).status_code == 200


async def updates(events: Events, number: int) -> list[str]:
    found: list[str] = []
    while len(found) < number:
        message = await message_of(events)
        assert message["method"] == "notifications/resources/updated"
        found.append(message["params"]["uri"].removeprefix("stock://"))
    return found


async def test_a_session_goes_on_at_another_node_as_it_was() -> None:
    async with stocked(3) as (a, b, c):
        session = await a.open()
        level = messages.request("l", "logging/setLevel", {"level": "warning"})
        assert (await a.post(level, session)).status_code == 200
        was = text((await a.post(call(1, "introduce"), session)).json())
        await gone(a)
        for id, node in enumerate((b, c, b), 2):
            assert text((await node.post(call(id, "introduce"), session)).json()) == was
        assert [node.transport.statistics().sessions.open for node in (b, c)] == [1, 0]
        assert (await c.http.delete(c.url, headers=bare(session))).status_code == 200
        assert (await b.post(call(5, "add", a=1, b=1), session)).status_code == 404


async def test_a_session_that_is_being_taken_over_is_handed_on_by_a_node_that_ends_too() -> None:
    shared = Spanning()
    async with stocked(3, shared) as (a, b, c), trio.open_nursery() as nursery:
        session = await a.open()
        await gone(a)
        shared.latency = 0.3
        answers: list[int] = []

        async def post() -> None:
            answers.append((await b.post(call(1, "add", a=1, b=1), session)).status_code)

        nursery.start_soon(post)
        await eventually(lambda: not shared.records)
        await gone(b)
        assert (await c.post(call(2, "add", a=1, b=1), session)).status_code == 200
        await eventually(lambda: bool(answers))
        assert answers == [200]


async def test_a_session_with_tasks_goes_on_with_them() -> None:
    def make(name: str, **settings: Any) -> Server:
        return Server(name, extensions=[Tasks()], **settings)

    async with nodes(2, Spanning(), make=make) as (a, b):
        for node in (a, b):

            @node.server.tool(task="optional")
            async def job() -> str:
                return "done"

        session = await a.open()
        work = messages.request(1, "tools/call", {"name": "job", "arguments": {}, "task": {"ttl": 60_000}})
        id = (await a.post(work, session)).json()["result"]["task"]["taskId"]
        await gone(a)
        listed = (await b.post(messages.request(2, "tasks/list"), session)).json()
        assert [each["taskId"] for each in listed["result"]["tasks"]] == [id]


async def test_what_is_hidden_from_a_session_stays_so_at_the_next_node() -> None:
    async with stocked(2) as (a, b):
        session, other = await a.open(), await b.open()
        assert (await a.post(call(1, "conceal"), session)).status_code == 200
        await gone(a)
        for each, is_listed in ((session, False), (other, True)):
            answer = (await b.post(messages.request(2, "tools/list"), each)).json()
            assert ("add" in [tool["name"] for tool in answer["result"]["tools"]]) == is_listed


async def test_the_stream_of_a_session_loses_nothing_that_changed_meanwhile() -> None:
    async with stocked(2) as (a, b):
        session = await a.open()
        other = await b.open()
        await subscribed(a, session, "x")
        await subscribed(a, session, "y")
        async with a.stream("GET", None, session) as events:
            first = await events.__anext__()
            assert (await b.post(call(1, "change", what="x"), other)).status_code == 200
            event = await events.__anext__()
            assert b"stock://x" in event.data
            await gone(a)
            # It ends in order, and says when to come back.
            assert [event.retry async for event in events] == [500]
        # No node has the session now.
        for name in ("x", "y", "z"):
            assert (await b.post(call(2, "change", what=name), other)).status_code == 200
        async with b.stream("GET", None, session, **{"last-event-id": event.id or first.id or ""}) as events:
            assert await updates(events, 2) == ["x", "y"]
            assert (await b.post(call(3, "change", what="y"), session)).status_code == 200
            assert await updates(events, 1) == ["y"]


async def test_a_client_that_was_given_no_event_id_gets_what_changed_all_the_same() -> None:
    async with stocked(2) as (a, b):
        session = await a.open("2025-06-18")
        other = await b.open()
        await subscribed(a, session, "x")
        async with a.stream("GET", None, session) as events:
            await eventually(lambda: a.transport.statistics().event_streams == 1)
            await gone(a)
            assert [event async for event in events] == []
        assert (await b.post(call(1, "change", what="x"), other)).status_code == 200
        # A call makes the session be taken over before its stream is there.
        assert text((await b.post(call(2, "add", a=1, b=1), session)).json()) == "2"
        async with b.stream("GET", None, session) as events:
            assert await updates(events, 1) == ["x"]


@pytest.mark.parametrize("version", ["2025-06-18", LEGACY])
@pytest.mark.parametrize("changed", ["before", "behind"])
async def test_a_client_that_comes_back_after_two_nodes_have_ended_gets_what_changed(
    version: str, changed: str
) -> None:
    """A client that takes its time for the stream may have made calls at a node that ends before it is there."""
    async with stocked(3) as (a, b, c):
        session = await a.open(version)
        await subscribed(a, session, "x")
        async with a.stream("GET", None, session) as events:
            await eventually(lambda: a.transport.statistics().event_streams == 1)
            last = (await events.__anext__()).id if version == LEGACY else None
            await gone(a)
        resuming = {"last-event-id": last} if last else {}
        assert text((await b.post(call(1, "add", a=1, b=1), session)).json()) == "2"
        if changed == "before":
            assert (await b.post(call(2, "change", what="x"), session)).status_code == 200
        await gone(b)
        assert text((await c.post(call(3, "add", a=1, b=1), session)).json()) == "2"
        if changed == "behind":
            assert (await c.post(call(4, "change", what="x"), session)).status_code == 200
        async with c.stream("GET", None, session, **resuming) as events:
            assert await updates(events, 1) == ["x"]


async def test_what_a_full_stream_has_not_taken_comes_through_the_next_node() -> None:
    async with stocked(2) as (a, b):
        session = await a.open()
        names = [f"{number}{'x' * 8000}" for number in range(1000)]
        for name in names:
            await subscribed(a, session, name)
        async with a.stream("GET", None, session) as events:
            last = (await events.__anext__()).id or ""
            # More than the connection takes of a client that reads nothing.
            for name in names:
                a.server.resource_updated(f"stock://{name}")
            await trio.testing.wait_all_tasks_blocked()
            await gone(a)
        came: set[str] = set()
        async with b.stream("GET", None, session, **{"last-event-id": last}) as events:
            while len(came) < len(names):
                came.update(await updates(events, 1))


async def test_a_call_in_flight_ends_where_it_began_while_others_begin_at_another_node() -> None:
    async with stocked(3) as (a, b, c):
        session = await a.open()
        answers: dict[str, Any] = {}

        async def ask(node: Node, name: str) -> None:
            answers[name] = (await node.post(call(name, "silent"), session)).json()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, a, "direct")
            nursery.start_soon(ask, c, "forwarded")
            await eventually(lambda: len(a.server._runtime.calls()) == 2)
            await gone(a)
            assert text((await b.post(call(3, "add", a=1, b=1), session)).json()) == "2"
            a.go.set()
        assert {name: text(answer) for name, answer in answers.items()} == {
            "direct": "at last",
            "forwarded": "at last",
        }


async def test_the_stream_of_a_call_in_flight_is_resumed_through_the_next_node() -> None:
    async with stocked(3) as (a, b, c):
        session = await a.open()
        async with a.stream("POST", call(1, "wait"), session) as events:
            last = (await events.__anext__()).id or ""
            await a.called.wait()
        await gone(a)
        assert text((await b.post(call(2, "add", a=1, b=1), session)).json()) == "2"
        async with c.stream("GET", None, session, **{"last-event-id": last}) as events:
            assert (await message_of(events))["params"]["progress"] == 1
            a.go.set()
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
        await eventually(lambda: "gone" in a.ends)
        async with b.stream("GET", None, session, **{"last-event-id": last}) as events:
            assert [(await message_of(events)).get("id") for _ in range(3)] == [None, None, 1]


async def test_a_node_does_not_end_before_the_last_answer_is_kept_and_sent() -> None:
    async with stocked(2) as (a, b):
        session = await a.open()
        async with a.stream("POST", call(1, "wait"), session) as events:
            assert (await message_of(events))["params"]["progress"] == 1
            await gone(a)
            a.state.events.hold = True
            a.go.set()
            await eventually(lambda: len(a.state.events.held) == 2)
            assert text((await b.post(call(2, "add", a=1, b=1), session)).json()) == "2"
            assert "gone" not in a.ends
            a.state.events.release()
            assert (await message_of(events))["params"]["progress"] == 2
            assert text(await message_of(events)) == "waited"
            # The end of the response follows, and not just that of the connection.
            with pytest.raises(StopAsyncIteration):
                await events.__anext__()
        await eventually(lambda: "gone" in a.ends)


@pytest.mark.parametrize("through", ["next", "last"])
async def test_what_a_client_says_of_a_call_in_flight_reaches_it(through: str) -> None:
    async with stocked(3) as (a, b, c):
        session = await a.open()
        node = b if through == "next" else c
        async with (
            a.stream("POST", call(1, "ask"), session) as asked,
            a.stream("POST", call(2, "wait"), session) as waited,
        ):
            question = await message_of(asked)
            await message_of(waited)
            await gone(a)
            assert text((await b.post(call(3, "add", a=1, b=1), session)).json()) == "2"
            answer = messages.result(question, {"action": "accept", "content": {"name": "Ann"}})
            assert (await node.post(answer, session)).status_code == 202
            assert text(await message_of(asked)) == "hello Ann"
            assert (await node.post(messages.cancelled(2), session)).status_code == 202
            assert [event async for event in waited if event.is_message] == []
        assert "cancelled" in a.ends


async def test_a_message_beside_a_call_in_flight_reaches_the_stream_at_the_next_node() -> None:
    async with stocked(2) as (a, b):
        session = await a.open()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append((await a.post(call(1, "tell"), session)).json())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await a.called.wait()
            await gone(a)
            async with b.stream("GET", None, session) as events:
                await events.__anext__()
                a.go.set()
                assert (await message_of(events))["params"] == {"level": "error", "data": "from the call"}
        assert text(answers[0]) == "told"


async def test_what_the_last_call_of_a_node_said_beside_waits_for_the_next_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "_PASSING_ON", 60)
    async with stocked(2) as (a, b):
        session = await a.open()
        answers: list[Any] = []

        async def ask() -> None:
            answers.append((await a.post(call(1, "tell"), session)).json())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await a.called.wait()
            await gone(a)
            a.go.set()
            await eventually(lambda: bool(answers))
            async with b.stream("GET", None, session) as events:
                assert (await message_of(events))["params"] == {"level": "error", "data": "from the call"}
        await eventually(lambda: "gone" in a.ends)


@pytest.mark.parametrize(("room", "kept"), [(200, ["x", "y"]), (100, ["x"])])
async def test_what_waits_for_a_client_is_bounded_by_its_weight(
    room: int, kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_streams, "MAX_HELD_BYTES", room)
    async with stocked(2) as (a, b):
        session = await a.open()
        for name in ("x", "y"):
            await subscribed(a, session, name)
        async with a.stream("GET", None, session) as events:
            last = (await events.__anext__()).id or ""
            await gone(a)
        for id, name in enumerate(("x", "y"), 1):
            assert (await b.post(call(id, "change", what=name), session)).status_code == 200
        async with b.stream("GET", None, session, **{"last-event-id": last}) as events:
            assert await updates(events, len(kept)) == kept
            assert (await b.post(call(3, "change", what="x"), session)).status_code == 200
            assert await updates(events, 1) == ["x"]


async def test_the_end_of_a_session_ends_its_calls_at_every_node() -> None:
    async with stocked(2) as (a, b):
        session = await a.open()
        async with a.stream("POST", call(1, "wait"), session) as events:
            await message_of(events)
            await gone(a)
            assert text((await b.post(call(2, "add", a=1, b=1), session)).json()) == "2"
            assert (await b.http.delete(b.url, headers=bare(session))).status_code == 200
            assert [event async for event in events if event.is_message] == []
        assert "cancelled" in a.ends


async def test_a_session_may_move_again_while_calls_of_it_end_at_two_nodes() -> None:
    async with stocked(3) as (a, b, c):
        session = await a.open()
        async with a.stream("POST", call(1, "wait"), session) as events:
            first = (await events.__anext__()).id or ""
            await message_of(events)
        await gone(a)
        async with b.stream("POST", call(2, "wait"), session) as events:
            second = (await events.__anext__()).id or ""
            await message_of(events)
        await gone(b)
        assert text((await c.post(call(3, "add", a=1, b=1), session)).json()) == "2"
        for node, last in ((a, first), (b, second)):
            async with c.stream("GET", None, session, **{"last-event-id": last}) as events:
                assert (await message_of(events))["params"]["progress"] == 1
                node.go.set()
                assert (await message_of(events))["params"]["progress"] == 2
                assert text(await message_of(events)) == "waited"


async def test_many_requests_at_once_make_one_node_go_on() -> None:
    async with stocked(3) as (a, b, c):
        session = await a.open()
        await gone(a)
        answers: list[str] = []

        async def ask(id: int) -> None:
            answers.append(text((await (b, c)[id % 2].post(call(id, "add", a=id, b=0), session)).json()))

        async with trio.open_nursery() as nursery:
            for id in range(10):
                nursery.start_soon(ask, id)
        assert sorted(answers, key=int) == [str(each) for each in range(10)]
        assert sorted(node.transport.statistics().sessions.open for node in (b, c)) == [0, 1]


async def test_a_session_that_objects_of_its_process_belong_to_ends() -> None:
    async with stocked(2) as (a, b):
        session = await a.open()
        assert text((await a.post(call(1, "keep"), session)).json()) == "kept"
        await gone(a)
        assert (await b.post(call(2, "add", a=1, b=1), session)).status_code == 404


async def test_a_session_that_begins_while_its_node_ends_moves_too() -> None:
    async with stocked(2) as (a, b):
        a.server.stop(LONG)
        response = await a.post(initialize("2025-11-25"))
        session = response.headers["mcp-session-id"]
        assert (await a.post(INITIALIZED, session)).status_code == 202
        a.server.stop(0)
        await eventually(lambda: a.server._runtime._stopping.is_set())
        assert text((await b.post(call(1, "add", a=1, b=1), session)).json()) == "2"


async def test_a_session_is_not_handed_over_to_another_principal() -> None:
    def authenticate(request: Any) -> str:
        return str(request.headers["authorization"])

    async with stocked(2, authenticate=authenticate) as (a, b):
        ann, bob = {"authorization": "Ann"}, {"authorization": "Bob"}
        response = await a.post(initialize("2025-11-25"), **ann)
        session = response.headers["mcp-session-id"]
        await gone(a)
        assert (await b.post(call(1, "add", a=1, b=1), session, **bob)).status_code == 404
        assert (await b.post(call(2, "add", a=1, b=1), session, **ann)).status_code == 200


async def test_without_the_directory_sessions_end_with_their_node() -> None:
    shared = Spanning()
    async with stocked(2, shared) as (a, b):
        session = await a.open()
        shared.away = True
        await gone(a)
        shared.away = False
        await eventually(lambda: "gone" in a.ends)
        assert (await b.post(call(1, "add", a=1, b=1), session)).status_code == 404


async def test_a_record_of_another_program_costs_its_session_alone() -> None:
    shared = Spanning()
    async with stocked(2, shared) as (a, b):
        spoilt, good = await a.open(), await a.open()
        await gone(a)
        shared.records[spoilt] = b"?"
        assert (await b.post(call(1, "add", a=1, b=1), spoilt)).status_code == 404
        assert text((await b.post(call(2, "add", a=1, b=1), good)).json()) == "2"
        assert spoilt not in shared.places


async def test_a_node_that_retires_hands_its_sessions_over_when_its_last_connection_ends() -> None:
    """As a worker that is replaced does, whose clients have connections to other workers."""
    shared = Spanning()
    async with stocked(1, shared) as (a,):
        session = await a.open()
        retire()
        async with stocked(1, shared) as (b,):
            assert (await b.post(call(1, "add", a=1, b=1), session)).status_code == 200
            await a.http.aclose()
            await eventually(lambda: a.ends == ["gone"])
            assert (await b.post(call(2, "add", a=1, b=1), session)).status_code == 200


async def test_a_mistake_of_the_shared_state_behind_the_last_connection_costs_the_hand_over_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hand_over(*records: object) -> None:
        raise ValueError("a mistake")

    with captured_logs() as logs:
        async with stocked(1) as (a,):
            await a.open()
            monkeypatch.setattr(SpanningNode, "hand_over", hand_over)
            retire()
            await a.http.aclose()
            await eventually(lambda: a.ends == ["gone"])
            assert [each["event"] for each in logs if each["log_level"] == "error"] == [
                "part in the stop failed"
            ]


async def test_what_is_forwarded_to_a_node_while_it_ends_is_answered_by_it_or_by_the_next_one() -> None:
    shared = Spanning()
    async with stocked(1, shared) as (a,):
        session = await a.open()
        retire()
        async with stocked(1, shared) as (b,):
            answers: list[int] = []

            async def post() -> None:
                answers.append((await b.post(call(1, "add", a=1, b=1), session)).status_code)

            async def post_until_the_end() -> None:
                while a.ends != ["gone"]:
                    await post()

            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(post_until_the_end)
                await eventually(lambda: len(answers) > 20)
                await a.http.aclose()
            await post()
        assert set(answers) == {200}
