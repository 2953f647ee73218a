"""The admin endpoint at an address that others reach: TLS, access tokens, and what ends with them."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from structlog.testing import capture_logs

from mcp_actors.auth import Principal, ResourceServer, StaticVerifier
from mcp_actors.errors import ConnectFailed, ConnectionLost
from mcp_actors.telemetry.live_view import Action, Feed
from mcp_transports.admin import AdminClient, AdminRefused, AdminTransport
from mcp_transports.admin.access import Caller, Owner
from mcp_transports.admin.endpoint import EventStream

from .served import make_server, operator, serving
from .test_guarding import NoNodes, SlowReader

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
    EventStream(short, feed, Caller("olga", 4.5)).begin()  # type: ignore[arg-type]
    EventStream(long, feed, Caller("otto")).begin()  # type: ignore[arg-type]
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

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                with pytest.raises(ConnectionLost):
                    await AdminClient(f"unix:{tmp_path}/a.sock", OPERATOR).snapshot()
    assert (OPERATOR.encode() in received) == told
