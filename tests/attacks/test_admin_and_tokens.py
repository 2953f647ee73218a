"""Attacks on the admin endpoint and its page, on WebSockets with tokens, and on the files that tokens are kept in."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Client, Context, Server
from mcp_actors.errors import TokenStoreFailed
from mcp_actors.supervision import principal as principals
from mcp_actors.types import Implementation
from mcp_transports.admin import AdminTransport, access
from mcp_transports.admin.endpoint import Page
from mcp_transports.auth import FileTokenStore
from mcp_transports.http.server import HttpServerTransport, Request
from mcp_transports.websocket.server import WebSocketServerTransport
from tests import messages
from tests.telemetry.served import TOKEN, loopback, make_server, operator, serving
from tests.transports.http.protected import PRINCIPALS, Tokens, caller, resource_server
from tests.transports.websocket.raw import CLOSE, TEXT, RawPeer, connected, frame, raw_peer


def quick(**options: Any) -> AdminTransport:
    """An admin endpoint whose snapshots are never old."""
    return loopback(**{"interval": 0.001, **options})


async def asked(
    where: str, method: str, path: str, *headers: str, host: str = "127.0.0.1", body: bytes = b""
) -> bytes:
    """Returns the answer to one request, byte for byte; headers are lines of any kind."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "connection: close", *headers]
    if body:
        lines.append(f"content-length: {len(body)}")
    stream = await trio.open_tcp_stream("127.0.0.1", int(where.rpartition(":")[2]))
    answer = b""
    async with stream:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        try:
            while more := await stream.receive_some():
                answer += more
        except trio.BrokenResourceError:
            pass
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


BEARER = f"authorization: Bearer {TOKEN}"


# -- the token ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        f"bearer{TOKEN}",
        f"Basic {TOKEN}",
        f"DPoP {TOKEN}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer {TOKEN},",
        f'Bearer "{TOKEN}"',
        f"Bearer Bearer {TOKEN}",
        f"Bearer {TOKEN}%00",
        "Bearer " + "x" * 8000,
        TOKEN,
    ],
)
async def test_what_is_nearly_the_token_opens_nothing(header: str) -> None:
    async with serving(make_server(), "memory:nearly", quick()) as (_, where):
        answer = await asked(where, "GET", "/snapshot", f"authorization: {header}")
        assert (status_of(answer), b"watched" in answer) == (401, False)


@pytest.mark.parametrize(
    "path",
    [
        f"/snapshot?token={TOKEN}",
        f"/snapshot?access_token={TOKEN}",
        f"/snapshot/{TOKEN}",
        f"/snapshot;{TOKEN}",
    ],
)
async def test_a_token_in_the_url_opens_nothing(path: str) -> None:
    async with serving(make_server(), "memory:query", quick()) as (_, where):
        answer = await asked(where, "GET", path, f"cookie: token={TOKEN}", f"x-token: {TOKEN}")
        assert status_of(answer) in (401, 404)
        assert b"watched" not in answer


@pytest.mark.parametrize("given", ["", "x", TOKEN[:-1] + "x", "x" + TOKEN[1:], TOKEN * 100, TOKEN])
async def test_every_token_is_compared_in_constant_time(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    real = secrets.compare_digest
    monkeypatch.setattr(secrets, "compare_digest", compare)
    for scheme in ("Bearer", "Basic"):
        headers = {"authorization": f"{scheme} {given}"}
        found = await access.TokenAccess(TOKEN).caller(
            Request("GET", "/", "/", "", headers, b"", "1.1", True, peer="x")
        )
        assert isinstance(found, access.AdminCaller) == (scheme == "Bearer" and given == TOKEN)
    assert compared == [(given.encode(), TOKEN.encode())] * 2


async def test_a_token_twice_in_one_request_is_refused() -> None:
    async with serving(make_server(), "memory:twice", quick()) as (_, where):
        assert status_of(await asked(where, "GET", "/snapshot", BEARER, BEARER)) == 400
        assert status_of(await asked(where, "GET", "/snapshot", BEARER, "authorization: Bearer x")) == 400


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/Snapshot", 404),
        ("GET", "/snapshot/", 404),
        ("GET", "//snapshot", 404),
        ("GET", "/./snapshot", 404),
        ("GET", "/%73napshot", 404),
        ("GET", "/snapshot%00", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/page.html", 404),
        ("GET", "/actions", 405),
        ("HEAD", "/snapshot", 405),
        ("OPTIONS", "/actions", 405),
        ("PUT", "/actions", 405),
        ("POST", "/snapshot", 405),
        ("POST", "/events", 405),
        ("BREW", "/snapshot", 501),
        ("CONNECT", "/snapshot", 501),
        ("TRACE", "/snapshot", 501),
    ],
)
async def test_another_path_or_method_shows_nothing_to_the_token_either(
    method: str, path: str, status: int
) -> None:
    async with serving(make_server(), "memory:methods", quick()) as (_, where):
        answer = await asked(where, method, path, BEARER)
        assert status_of(answer) == status, answer
        assert b"watched" not in answer
        assert b"watched" in await asked(where, "GET", "/snapshot", BEARER)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("", None),
        ("127.0.0.1:99999", None),
        ("127.0.0.1@evil.example", None),
        ("evil.example#127.0.0.1", None),
        ("localhost.evil.example", None),
        ("0.0.0.0", None),
        ("[::ffff:127.0.0.1]", None),
        ("2130706433", None),
        ("127.1", None),
        ("127.0.0.1", "http://127.0.0.1.evil.example"),
        ("127.0.0.1", "http://127.0.0.1@evil.example"),
        ("127.0.0.1", "file://"),
        ("127.0.0.1", "chrome-extension://x"),
        ("127.0.0.1", "http://localhost:1 http://evil.example"),
        ("127.0.0.1", "HTTP://EVIL.EXAMPLE"),
        ("127.0.0.1", ""),
    ],
)
async def test_a_page_under_another_name_is_refused(host: str, origin: str | None) -> None:
    more = [] if origin is None else [f"origin: {origin}"]
    async with serving(make_server(), "memory:names", quick()) as (_, where):
        answer = await asked(where, "GET", "/snapshot", BEARER, *more, host=host)
        assert status_of(answer) in (400, 403), answer
        assert b"watched" not in answer
        assert b"access-control-allow" not in answer.lower()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 4000,
        b'{"x":' + b"[" * 4000,
        b'{"x":' * 800,
        b'{"action":"end_session","node":"\\ud800","target":"x"}',
        b'{"action":"end_session","node":"n","target":"\\u001b[2J\\r\\nGET / HTTP/1.1"}',
        b'{"action":"end_session","node":null,"target":"x"}',
        b'{"action":["end_session"],"node":"n","target":"x"}',
        b'{"action":"END_SESSION","node":"n","target":"x"}',
        b'{"action":"end_session","node":"n","target":"*"}',
        b'{"action":"end_session","node":"n","target":"' + b"x" * 4000 + b'"}',
        b'{"action":"cancel_call","node":"n","target":"x"}{"action":"cancel_call","node":"n","target":"x"}',
        b'{"action":"cancel_call","node":"n","target":1e999}',
        b"\xef\xbb\xbf{}",
        b'{"__class__":"x","action":"cancel_call"}',
    ],
)
async def test_a_hostile_action_is_answered_as_one_and_is_one_line_in_the_log(body: bytes) -> None:
    with capture_logs() as logs:
        async with serving(make_server(), "memory:acting", quick()) as (_, where):
            kind = "content-type: application/json"
            answer = await asked(where, "POST", "/actions", BEARER, kind, body=body)
            assert status_of(answer) in (400, 409), answer
            assert b'"done":false' in answer
            assert b"watched" in await asked(where, "GET", "/snapshot", BEARER)
    assert [each for each in logs if each["log_level"] == "error"] == []


@pytest.mark.parametrize(
    "target",
    [
        "call",
        "session",
        "all",
        "*",
        "%",
        "",
        "0",
        "-1",
        "__dict__",
        "../weather#1",
        "weather#1\x00",
        "watched#1' or 1",
    ],
)
async def test_a_target_that_is_guessed_ends_nothing_of_others(target: str) -> None:
    async with (
        serving(make_server(), "http://127.0.0.1:0/mcp", quick()) as (url, where),
        operator(where) as person,
        Client(url, era="legacy") as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.call_tool, "hold", {"name": "x"})
        node = await person.until("calls", 1)
        for action in ("cancel_call", "end_session"):
            assert (await person.act(action, node["node"], target)).status_code == 409
            assert (await person.act(action, "*", node["calls"][0]["key"])).status_code == 409
        # A call's key is no session, and a session's name no call.
        assert (await person.act("end_session", node["node"], node["calls"][0]["key"])).status_code == 409
        assert (await person.act("cancel_call", node["node"], node["sessions"][0]["name"])).status_code == 409
        left = await person.node()
        nursery.cancel_scope.cancel()
    assert (len(left["calls"]), len(left["sessions"])) == (1, 1)


# -- names on the page -------------------------------------------------------------------------------------------------

HOSTILE_NAMES = (
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[H",
    "\x9b31m",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "a\r\ndata: {}\r\n\r\n",
    "\u2028\u2029",
    "\x00\x08\x7f",
    "x" * 5000,
)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_a_name_of_a_peer_steers_neither_a_terminal_nor_a_stream(name: str) -> None:
    def authenticate(request: Request) -> str:
        return f"p{name}"

    async with (
        serving(
            make_server(), HttpServerTransport("http://127.0.0.1:0/mcp", authenticate=authenticate), quick()
        ) as (
            url,
            where,
        ),
        operator(where) as person,
        Client(url, era="legacy", info=Implementation(name, name)) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.request, "tools/call", {"name": "hold", "arguments": {"name": name}})
        await person.until("calls", 1)
        raw = (await person.http.get("/snapshot")).text
        nursery.cancel_scope.cancel()
    node = json.loads(raw)["nodes"][0]
    (session,), (call,) = node["sessions"], node["calls"]
    for shown in (session["client"], session["principal"], call["target"], call["principal"]):
        assert shown.isprintable()
        assert len(shown) <= 260
    assert raw.isprintable()


def test_the_page_makes_no_html_of_what_it_is_told() -> None:
    text = Path(str(access.__file__)).with_name("page.html").read_text("utf-8")
    banned = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|srcdoc|javascript:|\.on\w+\s*="
    assert re.findall(banned, text.partition("<script>")[2]) == []
    assert re.findall(r"""(src|href|action)\s*=\s*["']?(https?:)?//""", text) == []
    assert "'unsafe" not in Page().policy
    assert "trusted-types-for 'script'" in Page().policy


# -- floods ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["leave", "break off"])
async def test_watchers_that_come_and_go_leave_no_place_taken(ends: str) -> None:
    head = f"GET /events HTTP/1.1\r\nhost: 127.0.0.1\r\n{BEARER}\r\n\r\n".encode()
    async with serving(make_server(), "memory:leaving", quick(max_watchers=2)) as (_, where):
        for _ in range(30):
            first = b"HTTP/1.1 503 "
            while first.startswith(b"HTTP/1.1 503 "):  # that the one before has left is not seen yet
                stream = await trio.open_tcp_stream("127.0.0.1", int(where.rpartition(":")[2]))
                await stream.send_all(head)
                first = await stream.receive_some()
                if ends == "leave":
                    await stream.send_eof()
                await stream.aclose()
            assert first.startswith(b"HTTP/1.1 200 ")
        assert b"watched" in await asked(where, "GET", "/snapshot", BEARER)


async def test_a_request_without_a_token_takes_no_place_of_a_watcher() -> None:
    async with serving(make_server(), "memory:places", quick(max_watchers=1)) as (_, where):
        async with operator(where, None) as stranger, operator(where) as person:
            for _ in range(20):
                assert (await stranger.http.get("/events")).status_code == 401
            assert len(await person.events(1)) == 1


@pytest.mark.parametrize("uid", [1, 99, 4711, 65534, 2**31 - 1])
async def test_a_connection_of_another_user_gets_no_byte_of_the_server(
    uid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_transports.admin.access.owner_of", lambda connected: access.Owner(uid, 12))
    async with serving(make_server(), "memory:users", AdminTransport(f"unix:{tmp_path}/a.sock")):
        stream = await trio.open_unix_socket(str(tmp_path / "a.sock"))
        answer = b""
        try:
            await stream.send_all(b"GET /snapshot HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while more := await stream.receive_some():
                answer += more
        except trio.BrokenResourceError:
            pass
        await stream.aclose()
        assert b"watched" not in answer
        assert answer[:12] in (b"", b"HTTP/1.1 403")


# -- WebSockets with tokens --------------------------------------------------------------------------------------------


class Waiting:
    """A server behind tokens at a WebSocket, and what became of the calls of its callers."""

    def __init__(self, tokens: Tokens | None = None, **settings: Any) -> None:
        self.tokens = tokens or Tokens(remembered_for=0.0)
        self.ends: list[str] = []
        self.began: list[str] = []
        self.server = server = Server("protected")
        auth = resource_server(self.tokens)
        self.transport = WebSocketServerTransport("ws://127.0.0.1:0/ws", auth=auth, **settings)

        @server.tool
        async def hang(ctx: Context) -> str:
            who = str(ctx.principal)
            self.began.append(who)
            try:
                await trio.sleep_forever()
            finally:
                self.ends.append(who)

        @server.tool
        async def whoami(ctx: Context) -> str:
            return str(ctx.principal)


async def said(peer: RawPeer, message: Any) -> None:
    await peer.send(frame(TEXT, json.dumps(message).encode()))


async def heard(peer: RawPeer) -> Any:
    opcode, payload = await peer.frame()
    assert opcode == TEXT, (opcode, payload)
    return json.loads(payload)


async def begun(peer: RawPeer) -> None:
    await said(peer, messages.initialize(0))
    assert (await heard(peer))["result"]["serverInfo"]["name"] == "protected"
    await said(peer, messages.INITIALIZED)


async def until(is_so: Any) -> None:
    while not is_so():
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/ws?access_token=ann", {}),
        ("/ws?token=ann&authorization=Bearer%20ann", {}),
        ("/ws", {"Cookie": "access_token=ann; authorization=Bearer ann"}),
        ("/ws", {"Sec-WebSocket-Protocol": "mcp, bearer, ann"}),
        ("/ws", {"Sec-WebSocket-Protocol": "mcp, bearer.ann"}),
        ("/ws", {"Sec-WebSocket-Protocol": "Authorization, Bearer ann"}),
        ("/ws", {"Proxy-Authorization": "Bearer ann"}),
        ("/ws", {"X-Forwarded-Authorization": "Bearer ann", "X-Forwarded-User": "ann"}),
        ("/ws", {"Authorization": "ann"}),
        ("/ws", {"Authorization": "Basic YW5uOmFubg=="}),
        ("/ws", {"Authorization": "Bearer ann, Bearer bob"}),
        ("/ws", {"Authorization": "Bearer ANN"}),
        ("/ws", {"Authorization": "Bearer expired"}),
        ("/ws", {"Authorization": "Bearer ann-useless"}),
        ("/ws?access_token=ann", {"Authorization": "Bearer bob"}),
    ],
)
async def test_a_token_counts_in_its_header_alone(path: str, headers: dict[str, str]) -> None:
    waiting = Waiting()
    waiting.tokens.principals = {**PRINCIPALS, "expired": caller("ann", lasts=-3600.0)}
    del waiting.tokens.principals["bob"]
    async with serving(waiting.server, waiting.transport) as (url,), connected(url) as peer:
        await peer.upgrade(path, **{name.replace("-", "_"): value for name, value in headers.items()})
        status, found = await peer.head()
        assert status in (400, 401, 403)
        assert "www-authenticate" in found
        assert waiting.server.tree().sessions == ()


async def test_a_connection_ends_with_its_access_and_its_calls_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(principals, "STREAM_GRACE", 0.0)
    waiting = Waiting(Tokens(principals={"ann": caller("ann")}))
    async with serving(waiting.server, waiting.transport) as (url,):
        async with raw_peer(url, Authorization="Bearer ann") as long:
            await begun(long)
            # A busy machine needs a part of it for the handshake.
            waiting.tokens.principals["short"] = caller("ann", lasts=2.0)
            async with raw_peer(url, Authorization="Bearer short") as short:
                await begun(short)
                await said(short, messages.call(1, "hang"))
                opcode, _ = await short.frame()
                assert opcode == CLOSE
                assert waiting.ends == ["ann"]
            # The other connection of the same caller has an access that lasts.
            await said(long, messages.call(1, "whoami"))
            assert (await heard(long))["result"]["content"][0]["text"] == "ann"
        async with connected(url) as again:
            del waiting.tokens.principals["short"]
            await again.upgrade("/ws", Authorization="Bearer short")
            assert (await again.head())[0] == 401


async def test_a_revoked_token_opens_no_second_connection() -> None:
    waiting = Waiting()
    async with (
        serving(waiting.server, waiting.transport) as (url,),
        raw_peer(url, Authorization="Bearer ann") as open,
    ):
        await begun(open)
        waiting.tokens.principals = {}
        async with connected(url) as again:
            await again.upgrade("/ws", Authorization="Bearer ann")
            assert (await again.head())[0] == 401


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_one_connection_cancels_no_call_of_another_with_the_same_id(era: str) -> None:
    waiting = Waiting()
    hang = messages.call(1, "hang") if era == "legacy" else messages.modern_call(1, "hang")
    async with (
        serving(waiting.server, waiting.transport) as (url,),
        raw_peer(url, Authorization="Bearer ann") as ann,
        raw_peer(url, Authorization="Bearer bob") as bob,
    ):
        if era == "legacy":
            await begun(ann)
            await begun(bob)
        await said(ann, hang)
        await until(lambda: waiting.began == ["ann"])
        await said(bob, messages.cancelled(1))
        await said(bob, messages.call(2, "whoami") if era == "legacy" else messages.modern_call(2, "whoami"))
        assert (await heard(bob))["result"]["content"][0]["text"] == "bob"
        assert waiting.ends == []
        await said(ann, messages.cancelled(1))
        await until(lambda: waiting.ends == ["ann"])


@pytest.mark.parametrize(
    "claimed",
    [
        {"_meta": {"principal": "bob", "authorization": "Bearer bob"}},
        {"_meta": {"io.modelcontextprotocol/principal": "bob"}},
        {"arguments": {"principal": "bob"}},
        {"principal": "bob", "authorization": "Bearer bob"},
    ],
)
async def test_nobody_becomes_another_by_a_message(claimed: dict[str, Any]) -> None:
    waiting = Waiting()
    async with (
        serving(waiting.server, waiting.transport) as (url,),
        raw_peer(url, Authorization="Bearer ann") as ann,
    ):
        await begun(ann)
        await said(ann, messages.request(1, "tools/call", {"name": "whoami", "arguments": {}, **claimed}))
        answer = await heard(ann)
        assert "bob" not in json.dumps(answer.get("result", {}).get("content", "")).replace("'principal'", "")


@pytest.mark.parametrize("requires", [False, True])
@pytest.mark.parametrize(
    ("offered", "is_ours"),
    [
        (None, False),
        ("", False),
        ("MCP", False),
        ("mcp2", False),
        ("mcp;q=1", False),
        ("mcp mcp", False),
        ("graphql-ws", False),
        ("graphql-ws, mcp", True),
        ("mcp, mcp", True),
        (", ".join(f"p{number}" for number in range(500)), False),
        ("mcp\tx", False),
        ('"mcp"', False),
    ],
)
async def test_no_other_subprotocol_is_confirmed(requires: bool, offered: str | None, is_ours: bool) -> None:
    waiting = Waiting(require_subprotocol=requires)
    async with serving(waiting.server, waiting.transport) as (url,), connected(url) as peer:
        await peer.upgrade("/ws", Authorization="Bearer ann", Sec_WebSocket_Protocol=offered)
        status, headers = await peer.head()
        assert status == 101 if is_ours else status in ((400,) if requires else (101, 400))
        assert headers.get("sec-websocket-protocol") == ("mcp" if is_ours else None)


# -- files of tokens ---------------------------------------------------------------------------------------------------


def plant(kind: str, at: Path, elsewhere: Path) -> None:
    """Puts there what another program of this machine could."""
    if kind == "link":
        at.symlink_to(elsewhere)
    elif kind == "folder":
        at.mkdir()
    elif kind == "pipe":
        os.mkfifo(at, 0o600)
    elif kind == "device":
        at.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(at))


@pytest.mark.parametrize("place", ["tokens.json", "tokens.json.new", "tokens.json.lock"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "device", "socket"])
def test_what_lies_in_the_place_of_a_file_gets_no_token(kind: str, place: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    store = FileTokenStore(tmp_path / "tokens.json")
    plant(kind, tmp_path / place, elsewhere)

    async def attempt() -> bool:
        with trio.fail_after(20):
            try:
                return await store.swap("key", None, {"token": "secret"})
            except TokenStoreFailed:
                return False

    done = trio.run(attempt)
    assert elsewhere.read_bytes() == b"precious"
    if done:
        found = os.lstat(tmp_path / "tokens.json")
        assert (stat.S_ISREG(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o600)


@pytest.mark.parametrize(
    "records",
    [
        b"[" * 100_000,
        b'{"version":1,"changes":0,"records":{"key":{"generation":"1","value":{}}}}',
        b'{"version":1,"changes":0,"records":{"key":{"generation":1,"value":[]}}}',
        b'{"version":1e999,"changes":0,"records":{}}',
        b'{"version":-1,"changes":-9223372036854775808,"records":{}}',
        b'{"version":true,"changes":0,"records":{}}',
        b'{"version":1,"changes":' + b"9" * 400 + b',"records":{}}',
        b"\x00" * 1000,
    ],
)
def test_a_file_of_somebody_elses_making_never_hangs_and_loses_no_later_token(
    records: bytes, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "tokens.json"
    path.write_bytes(records)
    path.chmod(0o600)
    store = FileTokenStore(path)

    async def attempt() -> Any:
        with trio.fail_after(20), capture_logs():
            found = await store.load("key")
            assert await store.swap("key", None if found is None else found.generation, {"token": "secret"})
            return await FileTokenStore(path).load("key")

    found = trio.run(attempt)
    assert found.value == {"token": "secret"}
