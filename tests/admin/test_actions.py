"""What an operator ends, in every state of a call and a session, and how much of a large server is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import pytest
import trio
import trio.testing

from mcp_actors import Client, Limits, RpcError, Server
from mcp_actors.abc import ServerHandler
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.middleware import AuditEntry, AuditLog
from mcp_actors.telemetry.live_view import Action, ActionOutcome, ServerView
from mcp_actors.telemetry.snapshot import NodeSnapshot, cleaned
from mcp_actors.types import Implementation

from .served import make_server, serving

Clock = trio.testing.MockClock


class Looking:
    """A companion that looks at its server without an endpoint."""

    is_companion: Literal[True] = True

    def __init__(self) -> None:
        self.view: ServerView | None = None

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.view = ServerView(handler)
        task_status.started(None)
        await trio.sleep_forever()

    async def node(self) -> NodeSnapshot:
        assert self.view is not None
        (found,) = await self.view.snapshot()
        return found

    async def act(self, action: Literal["cancel_call", "end_session"], target: str) -> ActionOutcome:
        assert self.view is not None
        return await self.view.act(Action(action, self.view.node, target), "a test")


@asynccontextmanager
async def looked_at(server: Server, name: str) -> AsyncIterator[Looking]:
    looking = Looking()
    async with serving(server, f"memory:{name}", looking):
        yield looking


async def ended(client: Client, tool: str, errors: list[str]) -> None:
    try:
        await client.call_tool(tool, {"name": "x"})
    except RpcError as error:
        errors.append(str(error))


async def test_a_call_that_waits_for_a_place_is_ended(autojump_clock: Clock) -> None:
    server, errors = Server("watched", limits=Limits(max_in_flight=1)), list[str]()
    begun: list[str] = []

    @server.tool
    async def hold(name: str) -> str:
        begun.append(name)
        await trio.sleep_forever()
        return name

    async with looked_at(server, "places") as looking, Client("memory:places") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended, client, "hold", [])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ended, client, "hold", errors)
            await trio.testing.wait_all_tasks_blocked()
            first, second = (await looking.node()).calls
            assert (first.state, second.state) == ("running", "waiting")
            assert (await looking.act("cancel_call", second.key)).done
            await trio.testing.wait_all_tasks_blocked()
            assert [each.key for each in (await looking.node()).calls] == [first.key]
            nursery.cancel_scope.cancel()
    assert (len(errors), len(begun)) == (1, 1)


async def test_an_audit_does_not_take_it_for_a_question(autojump_clock: Clock) -> None:
    server, entries, errors = make_server(), list[AuditEntry](), list[str]()
    server.middleware(AuditLog(entries.append))
    async with looked_at(server, "audited") as looking, Client("memory:audited") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended, client, "hold", errors)
            await trio.testing.wait_all_tasks_blocked()
            (call,) = (await looking.node()).calls
            assert (await looking.act("cancel_call", call.key)).done
    assert [entry.ending for entry in entries if entry.method == "tools/call"] == ["error -32603"]


async def test_a_function_that_cleans_up_is_shown_as_that_and_answered_after_it(
    autojump_clock: Clock,
) -> None:
    server, errors = Server("watched"), list[str]()

    @server.tool
    async def slow(name: str) -> str:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
        return name

    async with looked_at(server, "cleaning") as looking, Client("memory:cleaning") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended, client, "slow", errors)
            await trio.testing.wait_all_tasks_blocked()
            (call,) = (await looking.node()).calls
            assert (await looking.act("cancel_call", call.key)).done
            (left,) = (await looking.node()).calls
            assert (left.state, errors) == ("replaced", [])
            again = await looking.act("cancel_call", call.key)
            assert (again.done, "already" in again.text) == (False, True)
        assert (await looking.node()).calls == []
    assert "an operator of the server" in errors[0]


async def test_a_function_that_swallows_its_cancellation_is_answered_with_the_error(
    autojump_clock: Clock,
) -> None:
    server, errors = Server("watched"), list[str]()

    @server.tool
    async def stubborn(name: str) -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "as if nothing had happened"
        return name

    async with looked_at(server, "stubborn") as looking, Client("memory:stubborn") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ended, client, "stubborn", errors)
            await trio.testing.wait_all_tasks_blocked()
            (call,) = (await looking.node()).calls
            await looking.act("cancel_call", call.key)
    assert len(errors) == 1


async def test_another_node_another_call_and_another_session_are_none_of_this_server(
    autojump_clock: Clock,
) -> None:
    async with looked_at(make_server(), "others") as looking:
        assert looking.view is not None
        assert not (await looking.view.act(Action("cancel_call", "elsewhere", "x"), "a test")).done
        assert not (await looking.act("cancel_call", "x")).done
        assert not (await looking.act("end_session", "watched#99")).done


def test_a_handler_of_another_engine_cannot_be_looked_at() -> None:
    with pytest.raises(TypeError, match="this engine"):
        ServerView(object())  # type: ignore[arg-type]


async def test_of_many_calls_the_oldest_are_shown_and_all_are_counted(autojump_clock: Clock) -> None:
    async with looked_at(make_server(), "many") as looking, Client("memory:many") as client:
        async with trio.open_nursery() as nursery:
            for _ in range(250):
                nursery.start_soon(ended, client, "hold", [])
                await trio.sleep(0.01)
            node = await looking.node()
            nursery.cancel_scope.cancel()
    ages = [each.age for each in node.calls]
    assert len(ages) == 200
    assert ages == sorted(ages, reverse=True)
    assert ages[0] > 2.4
    assert node.queues is not None
    assert node.queues.running == 250


async def test_other_tasks_run_while_many_sessions_are_looked_at(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the sessions ends meanwhile: it is counted, and not shown."""
    monkeypatch.setattr("mcp_actors.telemetry.snapshot.SLICE", 1)
    async with looked_at(make_server(), "parts") as looking, AsyncExitStack() as opened:
        clients = [Client("memory:parts", era="legacy") for _ in range(30)]
        for each in clients[1:]:
            await opened.enter_async_context(each)
        async with clients[0]:
            async with trio.open_nursery() as nursery:
                for number, each in enumerate(clients):
                    nursery.start_soon(ended, each, "hold", [])
                    await trio.sleep(number / 100)
                before = await looking.node()
                turns: list[int] = []

                async def turn() -> None:
                    while True:
                        turns.append(1)
                        if len(turns) == 1:
                            assert (await looking.act("end_session", before.sessions[0].name)).done
                        await trio.lowlevel.checkpoint()

                async with trio.open_nursery() as meanwhile:
                    meanwhile.start_soon(turn)
                    after = await looking.node()
                    meanwhile.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
    assert len(turns) >= 30
    assert len(before.sessions) == len(before.calls) == 30
    assert before.sessions[0].name not in {each.name for each in after.sessions}
    assert len(after.sessions) == 29
    assert after.totals.requests == before.totals.requests


async def test_totals_keep_what_ended_sessions_did(autojump_clock: Clock) -> None:
    async with looked_at(make_server(), "totals") as looking:
        for _ in range(3):
            async with Client("memory:totals", era="legacy") as client:
                await client.call_tool("echo", {"text": "x"})
        await trio.testing.wait_all_tasks_blocked()
        node = await looking.node()
    assert node.sessions == []
    # Each has sent initialize, the list that a call needs, and the call.
    assert node.totals.requests >= 6
    assert node.totals.requests % 3 == 0


async def test_the_tree_says_whose_a_session_is_and_how_old(autojump_clock: Clock) -> None:
    server = make_server()
    async with looked_at(server, "tree"):
        async with Client("memory:tree", era="legacy", info=Implementation("probe", "7")):
            await trio.sleep(5)
            (session,) = server.tree().sessions
    assert (session.client, session.version, session.principal) == ("probe 7", "2025-11-25", None)
    assert session.age >= 5


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "a\nb", "\u202eevil", "\x9b", "\ud800", "\u2066x", "\u061cx", "\x00"]
)
def test_a_text_of_a_peer_cannot_steer_a_terminal(text: str) -> None:
    shown = cleaned(text * 200)
    assert shown is not None
    assert len(shown) == 120
    assert shown.isprintable()
    assert shown.encode()


def test_no_text_stays_none() -> None:
    assert cleaned(None) is None


async def test_a_server_that_was_replaced_is_shown_as_the_one_that_serves_now() -> None:
    server = ReplaceableServer(Server("first", version="1"))
    async with looked_at(server, "replaced-view") as looking:
        before = await looking.node()
        await server.replace(Server("second", version="2"))
        after = await looking.node()
    assert (before.server, before.version) == ("first", "1")
    assert (after.server, after.version) == ("second", "2")
