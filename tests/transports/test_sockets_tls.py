"""TLS handshakes that come to nothing: each ends by itself, in bounded time, and nobody else notices."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import pytest
import trio
import trustme

from mcp_actors import Client
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_transports.sockets import SocketChannel, TcpTransport

from .lines import PATIENCE, LinePeer, Served, call, until


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's who trust each other."""
    authority = trustme.CA()
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    theirs = ssl.create_default_context()
    authority.configure_trust(theirs)
    return ours, theirs


async def distrusts(place: str) -> None:
    stranger = TcpTransport(place, ssl_context=ssl.create_default_context())
    with pytest.raises(ConnectFailed, match=r"no TLS: .*certificate verify failed"):
        async with stranger.connect():
            pass


async def speaks_plainly(place: str) -> None:
    peer = await LinePeer.to(place)
    await peer.stream.send_all(call(1, "add", a=1, b=2))
    try:
        while await peer.stream.receive_some():
            pass  # an alert of TLS, perhaps
    except trio.BrokenResourceError:
        pass  # it did not read all that was sent
    await peer.stream.aclose()


async def leaves_at_once(place: str) -> None:
    await (await LinePeer.to(place)).stream.aclose()


async def stops_half_way(place: str) -> None:
    peer = await LinePeer.to(place)
    await peer.stream.send_all(b"\x16\x03\x01\x02\x00\x01")
    await peer.stream.send_eof()
    while await peer.stream.receive_some():
        pass
    await peer.stream.aclose()


@pytest.mark.parametrize("behave", [distrusts, speaks_plainly, leaves_at_once, stops_half_way])
async def test_a_handshake_that_fails_ends_that_connection_alone(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], behave: Callable[[str], Awaitable[None]]
) -> None:
    ours, theirs = contexts
    transport = TcpTransport("tcp://127.0.0.1:0", ssl_context=ours)
    async with Served().at(transport) as place, Client(TcpTransport(place, ssl_context=theirs)) as sibling:
        await behave(place)

        def counted() -> tuple[int, int, int]:
            state = transport.statistics()
            assert state is not None
            return state.connections, state.accepted, state.handshakes_failed

        await until(lambda: counted() == (1, 1, 1))
        assert (await sibling.call_tool("add", {"a": 1, "b": 2})).structured_content == 3


async def test_whoever_is_silent_in_the_handshake_is_cut_off(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], mock_clock: trio.testing.MockClock
) -> None:
    ours, theirs = contexts
    transport = TcpTransport("tcp://127.0.0.1:0", ssl_context=ours, connect_timeout=10)
    async with Served().at(transport) as place, Client(TcpTransport(place, ssl_context=theirs)) as sibling:
        silent = [await LinePeer.to(place) for _ in range(3)]
        await silent[1].stream.send_all(b"\x16\x03\x01")

        def failed() -> int:
            state = transport.statistics()
            assert state is not None
            assert state.connections + state.handshakes_failed <= 4
            return state.handshakes_failed

        await until(lambda: transport.statistics().connections == 4)  # type: ignore[union-attr]
        mock_clock.jump(9.9)
        assert (await sibling.call_tool("add", {"a": 1, "b": 2})).structured_content == 3
        assert failed() == 0
        mock_clock.jump(0.2)
        await until(lambda: failed() == 3)
        for peer in silent:
            assert await peer.stream.receive_some() == b""
            await peer.stream.aclose()
        assert (await sibling.call_tool("add", {"a": 2, "b": 2})).structured_content == 4


async def test_a_second_close_does_not_wait_for_a_closing_alert_that_nobody_takes(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, theirs = contexts
    endings: list[BaseException] = []
    deaf = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def listen_no_more() -> None:
        stream = trio.SSLStream(await deaf[0].accept(), ours, server_side=True)
        try:
            await stream.do_handshake()
            await trio.sleep_forever()
        finally:
            await trio.aclose_forcefully(stream)

    async def send_much(channel: FrameChannel) -> None:
        try:
            await channel.send(Frame(b"x" * 15_000_000))
        except (trio.ClosedResourceError, trio.BrokenResourceError) as error:
            endings.append(error)

    async with deaf[0], trio.open_nursery() as nursery:
        nursery.start_soon(listen_no_more)
        place = f"tcp://127.0.0.1:{deaf[0].socket.getsockname()[1]}"
        with trio.fail_after(PATIENCE):
            async with TcpTransport(place, ssl_context=theirs).connect() as channel:
                async with trio.open_nursery() as users:
                    users.start_soon(send_much, channel)
                    await trio.testing.wait_all_tasks_blocked()
                    users.start_soon(channel.aclose)
                    await trio.testing.wait_all_tasks_blocked()
                    await channel.aclose()
                    assert isinstance(channel, SocketChannel)
                    assert channel._plain.socket.fileno() < 0
        assert len(endings) == 1
        nursery.cancel_scope.cancel()


async def test_a_client_with_tls_at_a_server_without_gives_up(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    _, theirs = contexts
    transport = TcpTransport("tcp://127.0.0.1:0")
    async with Served().at(transport) as place:
        with pytest.raises(ConnectFailed, match=r"no TLS|no answer within 0.3 s"):
            async with TcpTransport(place, ssl_context=theirs, connect_timeout=0.3).connect():
                pass
        await until(lambda: transport.statistics().connections == 0)  # type: ignore[union-attr]
        peer = await LinePeer.to(place)
        assert await peer.add(1, 2) == 3
        await peer.stream.aclose()


async def test_a_context_for_the_wrong_side_is_the_callers_mistake(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    ours, _ = contexts
    async with Served().at(TcpTransport("tcp://127.0.0.1:0")) as place:
        with pytest.raises(LocalProtocolError, match="not for clients"), trio.fail_after(PATIENCE):
            async with TcpTransport(place, ssl_context=ours).connect():
                pass
