"""Bad tokens, other users, other sites and floods at the admin endpoint."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
import trustme
from structlog.testing import capture_logs

from mcp_actors import Client
from mcp_actors.auth import Principal, ResourceServer, StaticVerifier
from mcp_actors.errors import ConnectFailed, ConnectionLost, RemoteProtocolError
from mcp_actors.telemetry.live_view import Action, ActionOutcome, Feed
from mcp_actors.telemetry.snapshot import NodeSnapshot
from mcp_transports.admin import AdminClient, AdminRefused, AdminTransport
from mcp_transports.admin.access import AdminCaller, Owner
from mcp_transports.admin.endpoint import LIMITS, EventStream
from mcp_transports.http.server import Request
from tests.telemetry.served import TOKEN, loopback, make_server, operator, serving

# Watchers that come at once; by hand 1,000.
WATCHERS = int(os.environ.get("ADMIN_WATCHERS", "60"))
PATHS = (("GET", "/snapshot"), ("GET", "/events"), ("POST", "/actions"))


@pytest.mark.parametrize("token", [None, "wrong", TOKEN[:-1], TOKEN + "x", "ä" * 20])
async def test_a_wrong_token_sees_and_does_nothing(token: str | None) -> None:
    async with (
        serving(make_server(), "memory:tokens", loopback()) as (_, where),
        operator(where, None) as person,
    ):
        headers = {} if token is None else {"authorization": f"Bearer {token}".encode()}
        for method, path in PATHS:
            answer = await person.http.request(method, path, headers=headers, content=b"{}")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "watched" not in answer.text
        assert (await person.http.get("/")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:1"},
        {"origin": "null"},
    ],
)
async def test_other_names_and_other_sites_are_refused_with_the_token_too(headers: dict[str, str]) -> None:
    async with serving(make_server(), "memory:sites", loopback()) as (_, where), operator(where) as person:
        for method, path in (*PATHS, ("GET", "/")):
            answer = await person.http.request(method, path, headers=headers)
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers


async def test_the_page_of_this_address_may_act_and_a_form_may_not() -> None:
    async with serving(make_server(), "memory:forms", loopback()) as (_, where), operator(where) as person:
        own = {"origin": where}
        wanted = {"action": "end_session", "node": "?", "target": "?"}
        assert (await person.http.post("/actions", json=wanted, headers=own)).status_code == 409
        form = await person.http.post("/actions", content=b"{}", headers={"content-type": "text/plain"})
        assert form.status_code == 415


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"action":"stop","node":"","target":""}',
        b'{"action":"cancel_call"}',
        b"\xff\xfe",
    ],
)
async def test_what_is_no_action_is_refused(body: bytes) -> None:
    async with serving(make_server(), "memory:bodies", loopback()) as (_, where), operator(where) as person:
        answer = await person.http.post(
            "/actions", content=body, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["done"]) == (400, False)


async def test_unknown_paths_methods_and_long_bodies_are_refused() -> None:
    async with serving(make_server(), "memory:paths", loopback()) as (_, where), operator(where) as person:
        assert (await person.http.get("/etc/passwd")).status_code == 404
        assert (await person.http.delete("/snapshot")).status_code == 405
        assert (await person.http.post("/")).status_code == 405
        assert (await person.http.post("/actions", content=b"x" * 5000)).status_code == 413


async def test_another_user_is_refused_at_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says who connects; here it says somebody else, as it would where the file's mode was widened."""
    monkeypatch.setattr("mcp_transports.admin.access.owner_of", lambda connected: Owner(4711, 12))
    with capture_logs() as logs:
        async with serving(make_server(), "memory:users", AdminTransport(f"unix:{tmp_path}/a.sock")) as (
            _,
            where,
        ):
            with pytest.raises(AdminRefused, match="not for this user") as refused:
                await AdminClient(where).snapshot()
    assert refused.value.status == 403
    assert "unix uid 4711 pid 12" in [each.get("owner") for each in logs]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("http://0.0.0.0:9000", {}),
        ("http://192.0.2.1:9000", {}),
        ("http://example.org:9000", {}),
        ("https://example.org:9000", {}),
        ("http://127.0.0.1:9000/path", {}),
        ("http://user@127.0.0.1:9000", {}),
        ("tcp://127.0.0.1:9000", {}),
        ("unix:", {}),
        ("unix:/x", {"token": TOKEN}),
        ("http://127.0.0.1:0", {"token": "short"}),
        ("http://127.0.0.1:0", {"interval": 0}),
        ("http://[::1]:0", {"token": TOKEN, "authenticate": lambda request: "x"}),
    ],
)
def test_it_is_served_nowhere_without_authorization(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        AdminTransport(url, **options)


async def test_a_program_may_say_itself_who_looks() -> None:
    def authenticate(request: Request) -> str | None:
        return request.headers.get("x-user")

    admin = AdminTransport("http://127.0.0.1:0", authenticate=authenticate)
    with capture_logs() as logs:
        async with (
            serving(make_server(), "memory:program", admin) as (_, where),
            operator(where, None) as person,
        ):
            assert (await person.http.get("/snapshot")).status_code == 403
            headers = {"x-user": "alice"}
            assert (await person.http.get("/snapshot", headers=headers)).status_code == 200
            wanted = {"action": "end_session", "node": "?", "target": "?"}
            await person.http.post("/actions", json=wanted, headers=headers)
    (acted,) = [each for each in logs if each["event"] == "an operator acted"]
    assert acted["who"].startswith("alice from 127.0.0.1:")


async def test_a_random_token_is_shown_once_and_is_in_no_repr_and_no_log() -> None:
    lines: list[str] = []
    admin = AdminTransport("http://127.0.0.1:0", say=lines.append)
    with capture_logs() as logs:
        async with serving(make_server(), "memory:random", admin) as (_, where):
            (line,) = lines
            url = line.removeprefix("live view at ")
            token = url.partition("#")[2]
            snapshot = await AdminClient(url).snapshot()
            assert url.startswith(where)
            assert len(token) >= 32
            assert token not in f"{admin!r} {AdminClient(url)!r} {logs!r}"
    assert snapshot.nodes[0].server == "watched"


async def test_a_random_token_is_written_to_standard_error_and_nowhere_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(make_server(), "memory:shown", AdminTransport("http://127.0.0.1:0")):
        said = capsys.readouterr()
    assert (said.out, said.err[:13]) == ("", "live view at ")
    # A program without standard error, whose standard output may belong to the protocol.
    monkeypatch.setattr(sys, "stderr", None)
    async with serving(make_server(), "memory:silent", AdminTransport("http://127.0.0.1:0")):
        assert capsys.readouterr().out == ""


async def test_watchers_have_a_bound_and_a_server_goes_on_while_a_flood_is_refused() -> None:
    count = WATCHERS
    statuses: list[object] = []

    async def watch(where: str) -> None:
        try:
            async with AdminClient(where, TOKEN).watching() as snapshots:
                await snapshots.__anext__()
                statuses.append(200)
                await trio.sleep_forever()
        except AdminRefused as error:
            statuses.append(error.status)

    admin = loopback(max_watchers=16)
    async with (
        serving(make_server(), "http://127.0.0.1:0/mcp", admin) as (url, where),
        Client(url) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(count):
            nursery.start_soon(watch, where)
        while len(statuses) < count:
            await client.call_tool("echo", {"text": "meanwhile"})
        assert statuses.count(200) == 16
        assert statuses.count(503) == count - 16
        nursery.cancel_scope.cancel()


class SlowReader:
    """A response whose peer reads only while it is told to; fulfils what `EventStream` uses of one."""

    def __init__(self) -> None:
        self.full = self.gone = self.aborted = False
        self.on_gone: Callable[[], None] | None = None
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.gone = self.aborted = True


class NoNodes:
    """A live view of nothing."""

    async def snapshot(self) -> list[NodeSnapshot]:
        await trio.lowlevel.checkpoint()
        return []

    async def act(self, action: Action, who: str) -> ActionOutcome:
        await trio.lowlevel.checkpoint()
        return ActionOutcome(False, "there is nothing")


async def test_a_watcher_that_does_not_read_is_dropped_and_others_go_on(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    feed = Feed(NoNodes(), 1.0)
    nursery.start_soon(feed.run)
    slow, busy, quick = SlowReader(), SlowReader(), SlowReader()
    for each in (slow, busy, quick):
        EventStream(each, feed, AdminCaller("a peer")).begin()  # type: ignore[arg-type]
    slow.full = busy.full = True
    await trio.sleep(3.5)
    assert slow.written == []
    busy.full = False
    with capture_logs() as logs:
        await trio.sleep(3)
    assert (slow.aborted, busy.aborted) == (True, False)
    assert len(busy.written) == 3
    assert len(quick.written) == 7
    assert len(feed.watchers) == 2
    assert [each["who"] for each in logs] == ["a peer"]


async def test_nothing_is_taken_while_nobody_watches(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    taken: list[float] = []

    class Counting(NoNodes):
        async def snapshot(self) -> list[NodeSnapshot]:
            taken.append(trio.current_time())
            return await super().snapshot()

    feed = Feed(Counting(), 1.0)
    nursery.start_soon(feed.run)
    await trio.sleep(100)
    assert taken == []
    watcher = EventStream(SlowReader(), feed, AdminCaller("a peer"))  # type: ignore[arg-type]
    watcher.begin()
    await trio.sleep(2.5)
    feed.remove(watcher)
    await trio.sleep(100)
    assert len(taken) == 3
    for _ in range(50):
        await feed.latest()
    assert len(taken) == 4


async def test_a_snapshot_that_takes_long_is_taken_less_often(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    class Large(NoNodes):
        async def snapshot(self) -> list[NodeSnapshot]:
            await super().snapshot()
            return [
                NodeSnapshot(
                    node="n",
                    server="s",
                    version="",
                    host="",
                    pid=1,
                    state="serving",
                    uptime=0,
                    at=0,
                    took=0.1,
                )
            ]

    feed, watcher = Feed(Large(), 1.0), SlowReader()
    nursery.start_soon(feed.run)
    EventStream(watcher, feed, AdminCaller("a peer")).begin()  # type: ignore[arg-type]
    await trio.sleep(14)
    assert len(watcher.written) == 3


async def test_a_peer_that_sends_its_head_byte_by_byte_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_transports.admin.endpoint.LIMITS", attrs.evolve(LIMITS, head_time=1.0))
    async with serving(make_server(), "memory:loris", loopback()) as (_, where), operator(where) as person:
        stream = await trio.open_tcp_stream("127.0.0.1", int(where.rpartition(":")[2]))
        await stream.send_all(b"GET /snapshot HTTP/1.1\r\nhost: ")
        answer = b""
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                while True:
                    await stream.send_all(b"l")
                    assert (await person.snapshot())["nodes"]

            nursery.start_soon(drip)
            answer = await stream.receive_some()
            nursery.cancel_scope.cancel()
        await stream.aclose()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert (LIMITS.head_time, LIMITS.body_bytes, LIMITS.connections) == (5.0, 4096, 128)


async def test_a_snapshot_that_fails_costs_itself_and_its_watchers_see_the_next() -> None:
    class FailsOnce(NoNodes):
        def __init__(self) -> None:
            self.asked = 0

        async def snapshot(self) -> list[NodeSnapshot]:
            self.asked += 1
            if self.asked in (1, 3):
                raise SystemExit(3)
            return await super().snapshot()

    admin = loopback(interval=0.05)
    with trio.fail_after(30), capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            where = await nursery.start(
                lambda task_status: admin.serve_view(FailsOnce(), task_status=task_status)
            )
            async with operator(where) as person:
                assert (await person.http.get("/snapshot")).status_code == 500
                async with person.client.watching() as snapshots:
                    seen = [await anext(snapshots) for _ in range(4)]
            nursery.cancel_scope.cancel()
    assert len(seen) == 4
    assert {each["event"] for each in logs} == {"admin action failed", "admin snapshots failed"}


# A reason that has the state in it steers the terminal of whoever is told it.
HOSTILE_STATE = (
    b'{"at":1,"interval":1,"watchers":1,"nodes":[{"node":"n","server":"s","version":"","host":"h","pid":1,'
    b'"state":"\\u001b[2J"}]}'
)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{"at":1}',
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(HOSTILE_STATE), HOSTILE_STATE),
        b"HTTP/1.1 200 \x1b[2J\r\n\x1b[2J: \x1b[2J\r\n\r\n",
    ],
)
async def test_what_is_no_live_view_is_an_error_in_words(answer: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        client = AdminClient(f"http://127.0.0.1:{port}")
        with trio.fail_after(60):
            with pytest.raises((ConnectFailed, ConnectionLost, RemoteProtocolError)) as caught:
                await client.snapshot()
            assert str(caught.value).isprintable()
            with pytest.raises((ConnectFailed, ConnectionLost, RemoteProtocolError, StopAsyncIteration)):
                async with client.watching() as snapshots:
                    await anext(snapshots)
        nursery.cancel_scope.cancel()
    assert repr(client).startswith("<AdminClient http://127.0.0.1:")


@pytest.mark.parametrize("where", ["ftp://x", "", "x", "http://", "http://127.0.0.1:1/path"])
def test_what_is_no_place_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match="live view"):
        AdminClient(where)


# -- The admin endpoint at an address that others reach: TLS, access tokens, and what ends with them -----

OPERATOR, USER = "token-of-an-operator", "token-of-a-user"


def operators_only() -> ResourceServer:
    """Tokens of operators have a scope that those of the users of the server have not."""
    return ResourceServer(
        resource="https://admin.example",
        issuer="https://login.example",
        scopes=["operate"],
        verifier=StaticVerifier(
            {OPERATOR: Principal("olga", scopes=["operate"]), USER: Principal("ulf", scopes=["read"])}
        ),
    )


async def test_everywhere_with_tls_and_access_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    admin = AdminTransport(
        "https://0.0.0.0:0", auth=operators_only(), ssl_context=context, allowed_hosts=["127.0.0.1"]
    )
    with capture_logs() as logs:
        async with serving(make_server(), "memory:tls", admin) as (_, where):
            where = where.replace("0.0.0.0", "127.0.0.1")
            with pytest.raises(ConnectFailed, match="certificate"):
                await AdminClient(where, OPERATOR).snapshot()
            authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
            client = AdminClient(where, OPERATOR)
            (node,) = (await client.snapshot()).nodes
            outcome = await client.act(Action("end_session", node.node, "?"))
            assert (node.server, outcome.done) == ("watched", False)
            for token, status in ((None, 401), ("wrong", 401), (USER, 403)):
                with pytest.raises(AdminRefused) as refused:
                    await AdminClient(where, token).snapshot()
                assert refused.value.status == status
            with pytest.raises(AdminRefused) as refused:
                await AdminClient(where.replace("127.0.0.1", "localhost"), OPERATOR).snapshot()
    (acted,) = [each for each in logs if each["event"] == "an operator acted"]
    assert acted["who"].startswith("olga from 127.0.0.1:")
    assert not any(token in f"{logs!r}" for token in (OPERATOR, USER))


async def test_a_name_that_was_not_given_is_refused_at_all_addresses() -> None:
    admin = AdminTransport("http://0.0.0.0:0", authenticate=lambda request: "anybody")
    async with serving(make_server(), "memory:names", admin) as (_, where):
        async with operator(where.replace("0.0.0.0", "127.0.0.1"), None) as person:
            answer = await person.http.get("/snapshot")
            assert answer.status_code == 403
            assert "allowed_hosts" in answer.text


async def test_what_an_operator_watches_ends_with_their_access(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    feed = Feed(NoNodes(), 1.0)
    nursery.start_soon(feed.run)
    short, long = SlowReader(), SlowReader()
    EventStream(short, feed, AdminCaller("olga", 4.5)).begin()  # type: ignore[arg-type]
    EventStream(long, feed, AdminCaller("otto")).begin()  # type: ignore[arg-type]
    await trio.sleep(9.5)
    assert (short.aborted, len(short.written)) == (True, 5)
    assert (long.aborted, len(long.written)) == (False, 10)


@pytest.mark.parametrize(("uid", "told"), [(os.getuid(), True), (0, True), (4711, False)])
async def test_no_token_is_told_to_a_socket_of_another_user(
    uid: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_transports.admin.access.owner_of", lambda connected: Owner(uid, 12))
    received = bytearray()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "a.sock"))
        listening.listen()

        async def serve() -> None:
            stream, _ = await trio.socket.from_stdlib_socket(listening).accept()
            with stream:
                while b"\r\n\r\n" not in received:
                    received.extend(await stream.recv(4096))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                with pytest.raises(ConnectionLost):
                    await AdminClient(f"unix:{tmp_path}/a.sock", OPERATOR).snapshot()
    assert (OPERATOR.encode() in received) == told
