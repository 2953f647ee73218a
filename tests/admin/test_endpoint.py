"""The admin endpoint shows what runs, and ends what an operator wants to end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, RpcError, Server
from mcp_actors.errors import ConnectionLost, LocalProtocolError
from mcp_actors.telemetry.snapshot import NodeSnapshot
from mcp_actors.types import Implementation
from mcp_transports._sockets import inherit, unix_key
from mcp_transports.admin import AdminTransport
from mcp_transports.http.h1.http_server import open_unix
from mcp_transports.http.server import HttpServerTransport, Request

from .served import loopback, make_server, operator, serving


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
    assert (session["version"], session["principal"], session["calls"]) == ("2025-11-25", "alice", 1)
    assert (call["session"], call["method"], call["target"]) == (session["name"], "tools/call", "hold")
    assert (call["principal"], call["state"]) == ("alice", "running")
    assert node["queues"]["running"] == 1
    kinds = {each["name"]: each["tasks"] for each in node["kinds"]}
    assert kinds["companion"] == 1
    assert kinds["call"] >= 1


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
    with trio.fail_after(10):
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
