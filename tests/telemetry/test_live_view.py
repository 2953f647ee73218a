"""The admin endpoint shows what runs, and ends what an operator wants to end."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client, Limits, RpcError, Server
from mcp_actors.abc import ServerHandler
from mcp_actors.cli.reload.replacement import ReplaceableServer
from mcp_actors.errors import ConnectionLost, LocalProtocolError
from mcp_actors.middleware import AuditEntry, AuditLog
from mcp_actors.telemetry.live_view import Action, ActionOutcome, ServerView
from mcp_actors.telemetry.snapshot import NodeSnapshot, cleaned
from mcp_actors.types import Implementation
from mcp_transports._sockets import inherit, unix_key
from mcp_transports.admin import AdminTransport
from mcp_transports.http.h1.http_server import open_unix
from mcp_transports.http.server import HttpServerTransport, Request
from tests.server import isolated_functions
from tests.telemetry.served import loopback, make_server, operator, serving


async def hold(client: Client, name: str, caught: list[RpcError]) -> None:
    try:
        await client.call_tool("hold", {"name": name})
    except RpcError as error:
        caught.append(error)


async def test_sessions_and_calls_are_shown_with_whose_they_are(tmp_path: Path) -> None:
    def authenticate(request: Request) -> str:
        return "alice"

    transport = HttpServerTransport("http://127.0.0.1:0/mcp", authenticate=authenticate)
    async with (
        serving(make_server(), transport, AdminTransport(f"unix:{tmp_path}/admin.sock")) as (url, where),
        operator(where) as person,
        Client(url, era="legacy", info=Implementation("probe", "7")) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(hold, client, "x", [])
        node = await person.until("calls", 1)
        nursery.cancel_scope.cancel()
    assert (node["server"], node["version"], node["pid"], node["state"]) == (
        "watched",
        "1.2",
        os.getpid(),
        "serving",
    )
    (session,), (call,) = node["sessions"], node["calls"]
    assert session["client"] == "probe 7"
    assert session["peer"].startswith("127.0.0.1:")
    assert (session["version"], session["principal"], session["in_flight"]) == ("2025-11-25", "alice", 1)
    assert (call["session"], call["method"], call["target"]) == (session["name"], "tools/call", "hold")
    assert (call["principal"], call["state"]) == ("alice", "running")
    assert node["queues"]["running"] == 1
    kinds = {each["name"]: each["tasks"] for each in node["kinds"]}
    assert kinds["companion"] == 1
    assert kinds["call"] >= 1


async def test_the_processes_of_functions_are_shown() -> None:
    server = make_server()
    server.limits = Limits(isolated_processes=1)
    server.add_tool(isolated_functions.pid, isolate="process")
    async with (
        serving(server, "http://127.0.0.1:0/mcp", loopback()) as (url, where),
        operator(where) as person,
    ):
        async with Client(url) as client:
            pid = await client.call_tool("pid", returns=int)
        (row,) = (await person.node())["processes"]
    assert row.pop("age") >= 0
    assert row == {
        "number": 1, "pid": pid, "state": "idle", "tool": None, "calls": 1, "replaced": 0, "reason": None,
    }  # fmt: skip


async def test_a_call_without_a_session_is_shown_and_cancelled_with_an_answer() -> None:
    caught: list[RpcError] = []
    with capture_logs() as logs:
        async with (
            serving(make_server(), "http://127.0.0.1:0/mcp", loopback()) as (url, where),
            operator(where) as person,
            Client(url) as client,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold, client, "x", caught)
                node = await person.until("calls", 1)
                (call,) = node["calls"]
                assert call["session"] is None
                answer = await person.act("cancel_call", node["node"], call["key"])
                assert answer.json() == {"done": True, "text": "tools/call was cancelled"}
            assert await client.call_tool("echo", {"text": "still here"})
            again = await person.act("cancel_call", node["node"], call["key"])
    assert "an operator of the server" in str(caught[0])
    assert (again.status_code, again.json()["done"]) == (409, False)
    acted = [each for each in logs if each["event"] == "an operator acted"]
    assert [each["done"] for each in acted] == [True, False]
    assert acted[0]["who"].startswith("token from 127.0.0.1:")


async def test_the_oldest_of_calls_with_one_id_is_cancelled_and_no_other() -> None:
    caught: list[RpcError] = []
    async with (
        serving(make_server(), "http://127.0.0.1:0/mcp", loopback()) as (url, where),
        operator(where) as person,
        Client(url) as first,
        Client(url) as second,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(hold, first, "first", caught)
        await person.until("calls", 1)
        nursery.start_soon(hold, second, "second", [])
        node = await person.until("calls", 2)
        assert len({each["id"] for each in node["calls"]}) == 1
        oldest, other = node["calls"]
        await person.act("cancel_call", node["node"], oldest["key"])
        left = await person.until("calls", 1)
        nursery.cancel_scope.cancel()
    assert [each["key"] for each in left["calls"]] == [other["key"]]
    assert len(caught) == 1


@pytest.mark.parametrize("scheme", ["http", "ws", "unix"])
async def test_a_session_is_ended_and_its_client_told(scheme: str, tmp_path: Path) -> None:
    at = f"unix://{tmp_path}/mcp.sock" if scheme == "unix" else f"{scheme}://127.0.0.1:0/mcp"
    caught: list[Exception] = []
    async with (
        serving(make_server(), at, loopback()) as (url, where),
        operator(where) as person,
        Client(url, era="legacy") as client,
    ):

        async def call() -> None:
            try:
                await client.call_tool("hold", {"name": "x"})
            except Exception as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            node = await person.until("calls", 1)
            answer = await person.act("end_session", node["node"], node["sessions"][0]["name"])
            assert answer.status_code == 200
        await person.until_gone(node["sessions"][0]["name"])
        if scheme == "http":
            # It is told 404, and begins another session (MCP 2025-11-25, Transports, Session Management).
            assert (await client.call_tool("echo", {"text": "x"})).text == "x"
        else:
            with pytest.raises(ConnectionLost):
                await client.call_tool("echo", {"text": "x"})
    (told,) = caught
    assert isinstance(told, RpcError)
    assert "an operator of the server" in str(told)


async def test_rates_are_differences_and_all_watchers_see_the_same_snapshots() -> None:
    async with (
        serving(make_server(), "http://127.0.0.1:0/mcp", loopback(interval=0.25)) as (url, where),
        operator(where) as person,
        Client(url, era="legacy") as client,
    ):
        seen: list[list[NodeSnapshot]] = []

        async def watch() -> None:
            seen.append(await person.events(3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(watch)
            while len(seen) < 2:
                await client.call_tool("echo", {"text": "x"})
    first, second = seen
    assert len({each.at for each in first} & {each.at for each in second}) >= 2
    rates, rate = first[-1].rates, first[-1].sessions[0].rate
    assert rates is not None
    assert rates.requests > 0
    assert rate is not None
    assert rate > 0


async def test_the_file_of_the_socket_is_for_its_owner_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    async with serving(make_server(), "memory:owner-alone", AdminTransport(f"unix:{path}")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_it_never_keeps_a_server_from_ending(tmp_path: Path) -> None:
    server = make_server()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def serve(*, task_status: trio.TaskStatus[object]) -> None:
                where = AdminTransport(f"unix:{tmp_path}/admin.sock")
                await server.serve("http://127.0.0.1:0/mcp", where, task_status=task_status)

            await nursery.start(serve)
            server.stop()
    assert server.tree().transports == ()


async def test_alone_it_has_nothing_to_show_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match=r"brings no clients: serve a URL or 'stdio:' beside it"):
        await make_server().serve(AdminTransport(f"unix:{tmp_path}/admin.sock"))
    assert not (tmp_path / "admin.sock").exists()


async def test_a_crash_of_it_costs_no_call_of_the_server() -> None:
    class Crashing(AdminTransport):
        async def serve_view(self, watch: object, *, task_status: trio.TaskStatus[str]) -> None:  # type: ignore[override]
            task_status.started("crashing")
            raise SystemExit(3)

    with capture_logs() as logs:
        async with (
            serving(make_server(), "http://127.0.0.1:0/mcp", Crashing("unix:/unused")) as (url, _),
            Client(url) as client,
        ):
            result = await client.call_tool("echo", {"text": "goes on"})
    assert result.content[0].text == "goes on"  # type: ignore[union-attr]
    assert [each["costs"] for each in logs if each["event"] == "companion failed"] == ["member"]


async def test_one_object_is_served_once_at_a_time(tmp_path: Path) -> None:
    admin = AdminTransport(f"unix:{tmp_path}/admin.sock")
    async with serving(make_server(), "memory:once", admin):
        with pytest.raises(LocalProtocolError, match="served already"):
            await Server("other").serve("memory:twice", admin)
    assert "AdminTransport" in repr(admin)


async def test_a_socket_that_other_processes_have_too_keeps_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "admin.sock")
    opened = await open_unix(path)
    inherit({unix_key(path): [[os.dup(opened.socket.fileno())]]})
    async with serving(make_server(), "memory:inherited-admin", AdminTransport(f"unix:{path}")):
        pass
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    opened.close()
    assert not await trio.Path(path).exists()


# -- What an operator ends, in every state of a call and a session, and how much of a large server is shown ---

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
