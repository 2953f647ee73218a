"""Connections of a client's own: what is told on them as a whole HTTP client would, and how they are kept."""

from __future__ import annotations

import gzip
import socket
import ssl
from base64 import b64encode

import attrs
import httpcore2
import httpx2
import pytest
import trio
import trustme

from mcp_actors.abc import NoAnswer
from mcp_transports.http.client import HttpChannel, from_url
from mcp_transports.http.client.http import HttpRequester
from mcp_transports.http.client.pool import ClientConnection, ConnectionPool, HttpAddress, SocketStream
from mcp_transports.http.client.senders import PooledSender

from .scripted import request
from .test_client_sockets import RawServer, ask, echo, json_reply

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


async def test_an_answer_that_is_compressed_all_the_same_is_read() -> None:
    async def answer(stream: trio.abc.Stream, head: bytes, body: bytes) -> bool:
        packed = json_reply(gzip.compress(body))
        await stream.send_all(packed.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n", 1))
        return True

    server = RawServer(answer)
    async with server.channel() as channel:
        for id in (1, 2):
            assert (await ask(channel, id)).data == request(id).data
    assert server.connections == 1


async def test_certificates_that_are_trusted(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def line() -> tuple[SocketStream, trio.SocketStream]:
    near, far = socket.socketpair()
    near.setblocking(False)
    return SocketStream(near), trio.SocketStream(trio.socket.from_stdlib_socket(far))


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
        ours, theirs = await line()
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
