"""Connections of a client's own: what is told on them as a whole HTTP client would, and how they are kept."""

from __future__ import annotations

import gzip
import socket
import ssl
from base64 import b64encode
from collections import Counter

import attrs
import httpcore2
import httpx2
import pytest
import trio
import trio.testing
import trustme
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors import Client, ConnectFailed, ConnectionLost, Server
from mcp_actors.abc import NoAnswer
from mcp_transports.http.client import HttpChannel, HttpClientTransport, from_url, session_state
from mcp_transports.http.client.http import HttpRequester
from mcp_transports.http.client.pool import ClientConnection, ConnectionPool, HttpAddress, SocketStream
from mcp_transports.http.client.senders import PooledSender, RequestBody
from mcp_transports.http.server import HttpServerTransport

from .scripted import LEGACY, Asked, Stream, connected, handshake, json_answer, request, sse, stream_pair
from .test_client_sockets import RawServer, ask, echo, json_reply, no_request_in_flight

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def headers(head: bytes) -> dict[str, str]:
    """By names in lower case, none of them twice."""
    pairs = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
    found = {name.lower(): value for name, value in pairs}
    assert len(found) == len(pairs)
    return found


async def told(
    count: int = 1, reply: bytes = b"", *, user: str = "", **options: object
) -> list[dict[str, str]]:
    """The headers of some requests; ``reply`` is added to the head of every answer."""
    heads = []

    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        heads.append(headers(head))
        await stream.send_all(json_reply(body).replace(b"\r\n\r\n", b"\r\n" + reply + b"\r\n", 1))
        return True

    async with RawServer(answer).channel() as channel:
        url = httpx2.URL(channel.peer).copy_with(userinfo=user.encode())
        async with from_url(str(url), **options).connect() as other:
            for id in range(count):
                assert isinstance(other, HttpChannel)
                assert (await ask(other, id)).data == request(id).data
    return heads


# -- what is told -----------------------------------------------------------------------------------------------------


async def test_servers_are_told_what_a_whole_client_would_tell_them() -> None:
    (head,) = await told()
    assert head["host"].startswith("127.0.0.1:")
    assert head["user-agent"] == f"python-httpx2/{httpx2.__version__}"
    assert head["accept-encoding"] == "identity"


async def test_headers_of_the_user_stand_in_for_ours() -> None:
    (head,) = await told(headers={"Host": "front", "User-Agent": "me", "Accept-Encoding": "gzip"})
    assert (head["host"], head["user-agent"], head["accept-encoding"]) == ("front", "me", "gzip")


async def test_user_and_password_of_the_url_are_basic_authorization() -> None:
    (head,) = await told(user="me:secret", headers={"Authorization": "Bearer other"})
    assert head["authorization"] == "Basic " + b64encode(b"me:secret").decode()


async def test_cookies_come_back_to_the_server_that_set_them() -> None:
    first, second, third = await told(
        3, b"Set-Cookie: node=7; Path=/mcp\r\nSet-Cookie: no=1; Path=/other\r\n"
    )
    assert "cookie" not in first
    assert second["cookie"] == "node=7"
    assert second == third


async def test_cookies_of_the_user_are_left_alone() -> None:
    heads = await told(2, b"Set-Cookie: node=7\r\n", headers={"cookie": "mine=1"})
    assert [head["cookie"] for head in heads] == ["mine=1", "mine=1"]


async def test_an_answer_that_is_compressed_all_the_same_is_read(connections_are_kept: None) -> None:
    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        packed = json_reply(gzip.compress(body))
        await stream.send_all(packed.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n", 1))
        return True

    server = RawServer(answer)
    async with server.channel() as channel:
        for id in (1, 2):
            assert (await ask(channel, id)).data == request(id).data
    assert server.connections == 1


async def test_certificates_that_are_trusted(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, connections_are_kept: None
) -> None:
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(ours)
    authority.issue_cert("localhost").configure_cert(theirs)
    monkeypatch.setattr("mcp_transports.http.client.client_transport._trusted_authorities", lambda: ours)
    tcp = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    server = RawServer(echo)
    listener = trio.SSLListener(tcp, theirs, https_compatible=True)
    nursery.start_soon(trio.serve_listeners, server.serve, [listener])
    async with from_url(f"https://localhost:{tcp.socket.getsockname()[1]}/mcp").connect() as channel:
        for id in (1, 2):
            assert isinstance(channel, HttpChannel)
            assert (await ask(channel, id)).data == request(id).data
    await server.closed.wait()
    assert (server.connections, server.open) == (1, 0)
    nursery.cancel_scope.cancel()


# -- the pool ones ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Pairs(HttpAddress):
    """Every connection leads to a socket of the test."""

    far: list[trio.SocketStream]
    # What is there to be read on a new one.
    hello: bytes = b""
    host: str = "x"
    port: int = 80
    unix_path: str | None = None
    tls: ssl.SSLContext | None = None
    connect_timeout: float = 5.0

    async def connect(self) -> SocketStream:
        ours, theirs = stream_pair()
        self.far.append(theirs)
        await theirs.send_all(self.hello)
        await trio.lowlevel.checkpoint()
        return ours


async def exchanged(connection: ClientConnection, far: trio.SocketStream) -> None:
    """One request and its answer, so that the connection can take another."""
    await far.send_all(OK)
    await connection.exchange(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await connection.read() == b""


async def test_the_connection_that_was_used_last_is_used_first() -> None:
    address = Pairs(far=[])
    pool = ConnectionPool(address, max_connections=4, keepalive_expiry=4)
    first, second = await pool.acquire(), await pool.acquire()
    for connection, far in zip((first, second), address.far, strict=True):
        await exchanged(connection, far)
        await pool.release(connection)
    assert await pool.acquire() is second
    assert await pool.acquire() is first
    assert "2 open, 0 idle" in repr(pool)
    for connection in (first, second):
        await connection.aclose()
    for far in address.far:
        await far.aclose()


async def test_one_that_was_idle_for_long_and_one_that_ended_are_not_used(
    autojump_clock: trio.abc.Clock,
) -> None:
    address = Pairs(far=[])
    pool = ConnectionPool(address, max_connections=4, keepalive_expiry=4)
    connections = [await pool.acquire() for _ in range(3)]
    for connection, far in zip(connections, address.far, strict=True):
        await exchanged(connection, far)
    await pool.release(connections[0])
    await trio.sleep(3)
    await pool.release(connections[1])
    await trio.sleep(2)
    # Who gives back closes what has been there for too long.
    await pool.release(connections[2])
    assert connections[0].is_closed
    await address.far[2].aclose()
    assert await pool.acquire() is connections[1]
    assert connections[2].is_closed
    assert "1 open, 0 idle" in repr(pool)
    await exchanged(connections[1], address.far[1])
    await pool.release(connections[1])
    await trio.sleep(4)
    fresh = await pool.acquire()
    assert fresh not in connections
    assert connections[1].is_closed
    await pool.release(fresh)
    assert "0 open" in repr(pool)
    for far in address.far:
        await far.aclose()


async def test_no_more_than_there_may_be(autojump_clock: trio.abc.Clock, nursery: trio.Nursery) -> None:
    address = Pairs(far=[])
    pool = ConnectionPool(address, max_connections=1, keepalive_expiry=4)
    taken = await pool.acquire()
    with trio.move_on_after(1) as impatient:
        await pool.acquire()
    assert impatient.cancelled_caught
    got = []

    async def take() -> None:
        got.append(await pool.acquire())

    nursery.start_soon(take)
    nursery.start_soon(take)
    await trio.testing.wait_all_tasks_blocked()
    assert got == []
    await exchanged(taken, address.far[0])
    await pool.release(taken)
    await trio.testing.wait_all_tasks_blocked()
    assert got == [taken]
    await pool.release(taken)  # not idle to its end this time: nothing was asked on it
    await trio.testing.wait_all_tasks_blocked()
    assert len(got) == 2
    await pool.aclose()
    for connection in got:
        await connection.aclose()
    for far in address.far:
        await far.aclose()


async def test_an_answer_that_was_read_leaves_its_connection_to_others() -> None:
    address = Pairs(far=[], hello=OK)
    pool = ConnectionPool(address, max_connections=1, keepalive_expiry=4)
    requester = HttpRequester(PooledSender(pool, httpx2.URL("http://x/"), []), max_message_bytes=10, peer="x")
    async with requester.request("GET", []) as response:
        assert await response.read_body() == b""
        assert "1 open, 1 idle" in repr(pool)
    assert "1 open, 1 idle" in repr(pool)
    await pool.aclose()
    assert await address.far[0].receive_some() != b""
    await address.far[0].aclose()


async def test_requests_that_failed_leave_their_room_to_others() -> None:
    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        return False

    server = RawServer(answer)
    async with server.channel(max_posts=1) as channel:
        for id in range(40):
            assert isinstance(await ask(channel, id), NoAnswer)
    assert server.connections == 40


# -- A connection that ends before a byte of the answer: which requests are sent once more ----------------------------


@pytest.mark.parametrize(
    ("method", "is_repeated"),
    [
        *[(each, True) for each in ("tools/list", "resources/read", "server/discover", "ping")],
        *[(each, False) for each in ("tools/call", "prompts/get", "x/own")],
    ],
)
async def test_what_changes_nothing_is_sent_again_when_an_idle_connection_ends(
    method: str, is_repeated: bool, connections_are_kept: None
) -> None:
    """Servers close idle connections, and what a client sends just then may have been read or not."""
    bodies: list[bytes] = []

    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        bodies.append(body)
        if len(bodies) == 2:
            return False
        return await echo(stream, head, body)

    server = RawServer(answer)
    async with server.channel() as channel:
        assert (await ask(channel, 1)).data == request(1).data
        await no_request_in_flight(channel)
        await channel.send(request(2, method, modern=True))
        frame = await channel.receive()
    assert bodies[1:] == [request(2, method).data] * (2 if is_repeated else 1)
    if is_repeated:
        assert frame.data == request(2, method).data
    else:
        assert isinstance(frame, NoAnswer)
        assert isinstance(frame.reason, ConnectionLost)


async def test_one_that_ends_with_a_part_of_the_answer_has_its_request_lost() -> None:
    bodies: list[bytes] = []

    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        bodies.append(body)
        if len(bodies) == 2:
            await stream.send_all(b"HTTP/1.1 200")
            return False
        return await echo(stream, head, body)

    async with RawServer(answer).channel() as channel:
        await ask(channel, 1)
        await no_request_in_flight(channel)
        await channel.send(request(2, "tools/list", modern=True))
        assert isinstance(await channel.receive(), NoAnswer)
    assert len(bodies) == 2


class Refusing(SocketStream):
    """A connection that breaks while the request is written."""

    async def send_all(self, data: bytes) -> None:
        raise httpcore2.WriteError("Broken pipe")


@attrs.frozen(kw_only=True)
class Breaking(Pairs):
    """As many connections as ``left`` says break while a request is written; the others answer."""

    left: list[int]

    async def connect(self) -> SocketStream:
        if not self.left[0]:
            return await Pairs.connect(self)
        self.left[0] -= 1
        near, far = socket.socketpair()
        near.setblocking(False)
        far.close()
        return Refusing(near)


@pytest.mark.parametrize(("breaks", "is_answered"), [(0, True), (1, True), (2, False)])
async def test_a_request_that_the_server_cannot_have_read_is_sent_once_more(
    breaks: int, is_answered: bool
) -> None:
    """Whatever it asks for, it has not been carried out."""
    address = Breaking(far=[], hello=OK, left=[breaks])
    pool = ConnectionPool(address, max_connections=1, keepalive_expiry=4)
    requester = HttpRequester(PooledSender(pool, httpx2.URL("http://x/"), []), max_message_bytes=10, peer="x")
    body = RequestBody(b"{}", trio.Event())
    if is_answered:
        async with requester.request("POST", [], body) as response:
            assert await response.read_body() == b""
        assert body.sent.is_set()
    else:
        with pytest.raises(ConnectionLost):
            await requester.send("POST", [], body, None)
        assert "0 open" in repr(pool)
    assert (address.left, len(address.far)) == ([0], int(is_answered))
    await pool.aclose()
    for far in address.far:
        await far.aclose()


@pytest.mark.parametrize(("name", "connections"), [(b"dpop", 1), (b"x-own", 2)])
async def test_a_proof_of_possession_is_not_sent_twice(name: bytes, connections: int) -> None:
    address = Pairs(far=[])
    pool = ConnectionPool(address, max_connections=1, keepalive_expiry=4)
    requester = HttpRequester(PooledSender(pool, httpx2.URL("http://x/"), []), max_message_bytes=10, peer="x")
    first = await pool.acquire()
    await exchanged(first, address.far[0])
    await pool.release(first)
    async with trio.open_nursery() as nursery:

        async def end_each() -> None:
            for number in range(connections):
                while len(address.far) <= number:
                    await trio.lowlevel.checkpoint()
                seen = b""
                while name not in seen:
                    seen += await address.far[number].receive_some()
                await address.far[number].aclose()

        nursery.start_soon(end_each)
        with pytest.raises(ConnectionLost):
            await requester.send("GET", [(name, b"x")], None, None)
        nursery.cancel_scope.cancel()
    assert len(address.far) == connections


async def test_a_server_that_lets_nobody_in_is_not_waited_for(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: object, **options: object) -> trio.SocketStream:
        await trio.sleep_forever()

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    address = HttpAddress(host="x", port=80, unix_path=None, tls=None, connect_timeout=7)
    pool = ConnectionPool(address, max_connections=1, keepalive_expiry=4)
    for _ in range(2):
        with pytest.raises(httpcore2.ConnectTimeout):
            await pool.acquire()
    assert trio.current_time() == 14
    assert "0 open" in repr(pool)


async def test_a_handshake_that_is_given_up_leaves_no_socket(autojump_clock: trio.abc.Clock) -> None:
    near, far = trio.socket.socketpair()
    address = HttpAddress(
        host="x", port=80, unix_path=None, tls=ssl.create_default_context(), connect_timeout=7
    )
    with trio.move_on_after(1) as scope:
        await address._start_tls(trio.SocketStream(near), ssl.create_default_context())
    assert scope.cancelled_caught
    assert near.fileno() == -1
    far.close()


# -- A server that forgets its sessions, and clients that go on: one new session for all, nothing run twice ---

CALLERS = 32


class Forgetful:
    """A server whose sessions the test can take away."""

    def __init__(self) -> None:
        self.server = Server("forgetful")
        self.transport = HttpServerTransport("http://127.0.0.1:0/mcp")
        self.runs: Counter[int] = Counter()

        @self.server.tool
        async def run(number: int) -> int:
            self.runs[number] += 1
            return number

    def forget(self) -> None:
        assert self.transport._service.sessions is not None
        self.transport._service.sessions.close_all()

    @property
    def sessions(self) -> int:
        return len(self.server.tree().sessions)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Forgetful:
    # Each call in flight has to be told that it never ran, which on a busy machine takes more than a second.
    monkeypatch.setattr(session_state, "EXPIRY_GRACE", 60)
    return Forgetful()


async def test_all_callers_share_one_new_session_and_no_call_runs_twice(
    forgetful: Forgetful, nursery: trio.Nursery
) -> None:
    (url,) = await nursery.start(forgetful.server.serve, forgetful.transport)
    handshakes = 0
    forgetful_log: list[int] = []

    async def call(client: Client, number: int) -> None:
        await client.call_tool("run", {"number": number})
        forgetful_log.append(number)

    async with Client(HttpClientTransport(url), era="legacy", restart=True) as client:
        await call(client, -1)
        for round in range(3):
            forgetful.forget()
            assert forgetful.sessions == 0
            async with trio.open_nursery() as callers:
                for number in range(CALLERS):
                    callers.start_soon(call, client, round * CALLERS + number)
            handshakes += forgetful.sessions
    assert handshakes == 3  # one for each time, however many were asking
    assert sorted(forgetful_log) == [-1, *range(3 * CALLERS)]
    assert set(forgetful.runs.values()) == {1}
    nursery.cancel_scope.cancel()


async def test_a_session_is_begun_anew_without_being_told_so(
    forgetful: Forgetful, nursery: trio.Nursery
) -> None:
    (url,) = await nursery.start(forgetful.server.serve, forgetful.transport)
    async with Client(url, era="legacy") as client:
        for round in range(3):
            async with trio.open_nursery() as callers:
                for number in range(CALLERS):
                    callers.start_soon(client.call_tool, "run", {"number": round * CALLERS + number})
            forgetful.forget()
    assert forgetful.runs == dict.fromkeys(range(3 * CALLERS), 1)
    nursery.cancel_scope.cancel()


async def test_the_end_of_a_server_is_no_forgotten_session(
    forgetful: Forgetful, nursery: trio.Nursery
) -> None:
    async with trio.open_nursery() as servers:
        (url,) = await servers.start(forgetful.server.serve, forgetful.transport)
        async with Client(url, era="legacy") as client:
            await client.call_tool("run", {"number": 1})
            servers.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                for _ in range(2):
                    with pytest.raises((ConnectionLost, ConnectFailed)):
                        await client.call_tool("run", {"number": 2})
    assert forgetful.runs == {1: 1}


# -- Property: however a stream is cut and come back to, every message arrives once and in order ---------


class Resumable:
    """Keeps the events of one call and gives, on each connection, what comes after ``Last-Event-ID``, up to a cut."""

    def __init__(self, messages: int, cuts: list[tuple[int, bool]]) -> None:
        self.events = [b"id: %d\ndata: m%d\n\n" % (number, number) for number in range(1, messages + 1)]
        self.cuts = cuts

    def stream_after(self, last: int) -> httpx2.Response:
        rest = b"".join(self.events[last:])
        # The first event always comes, or there would be nothing to come back with.
        least = 0 if last else len(self.events[0])
        if not self.cuts:
            return sse(Stream(rest))
        length, clean = self.cuts.pop()
        stream = Stream(rest[: least + length])
        stream.end(None if clean else httpx2.ReadError("cut"))
        return sse(stream)

    async def __call__(self, asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return self.stream_after(int(asked.headers["last-event-id"]))
        if b'"initialize"' in asked.body:
            return json_answer()
        if asked.body == b"{}":
            return httpx2.Response(202)
        return self.stream_after(0)


@given(
    messages=st.integers(1, 20),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=12),
)
def test_each_message_arrives_once_and_in_order(messages: int, cuts: list[tuple[int, bool]]) -> None:
    async def main() -> list[bytes]:
        # Each attempt that brings nothing counts as a failure.
        async with connected(Resumable(messages, cuts), listen=False, resume_attempts=99) as (channel, _):
            await handshake(channel)
            await channel.send(request(2, metadata=LEGACY))
            got: list[bytes] = []
            while len(got) < messages:
                got += [frame.data for frame in await channel.receive_many()]
            return got

    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(main, clock=clock) == [b"m%d" % number for number in range(1, messages + 1)]
