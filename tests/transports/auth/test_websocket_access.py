"""A WebSocket client with credentials: they are those of the upgrade request."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mcp_actors.abc import FrameChannel
from mcp_actors.auth import AuthorizationCode, BearerToken, ClientAuth, OAuth
from mcp_actors.errors import AuthorizationFailed, LoginFailed
from mcp_transports.websocket.client import WebSocketClientTransport, WebSocketRefused
from tests.transports.websocket.test_client import accepted

from .issuer import Issuer, Person

URL = "ws://mcp.test/mcp"


class Upgrades:
    """A server in memory that upgrades requests with a token of ``issuer``, and refuses all others."""

    def __init__(self, issuer: Issuer, status: int = 401) -> None:
        self.issuer = issuer
        self.status = status
        self.asked: list[str] = []
        self.nursery: trio.Nursery | None = None

    async def open_tcp_stream(self, host: str, port: int) -> trio.abc.Stream:
        assert (host, port) == ("mcp.test", 80)
        assert self.nursery is not None
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: trio.abc.Stream) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive_some()
        found = re.search(rb"(?im)^authorization: (.*)\r$", head)
        self.asked.append("" if found is None else found[1].decode())
        if self.asked[-1].removeprefix("Bearer ") in self.issuer.valid:
            await stream.send_all(accepted(head))
            while await stream.receive_some():
                pass
        else:
            await stream.send_all(
                b"HTTP/1.1 %d No\r\nWWW-Authenticate: Basic\r\nWWW-Authenticate: Bearer realm=x\r\n"
                b"Content-Length: 0\r\n\r\n" % self.status
            )
        await stream.aclose()


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    issuer = Issuer()
    monkeypatch.setattr("mcp_transports.auth.authorizer.Fetcher", lambda policy, url: issuer)
    return issuer


@asynccontextmanager
async def opened(
    server: Upgrades, auth: ClientAuth | None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FrameChannel]:
    monkeypatch.setattr(trio, "open_tcp_stream", server.open_tcp_stream)
    async with trio.open_nursery() as server.nursery:
        try:
            transport = WebSocketClientTransport(URL, auth=auth, connect_timeout=5.0)
            async with transport.connect() as channel:
                yield channel
        finally:
            server.nursery.cancel_scope.cancel()


async def test_a_person_has_more_time_than_the_connection(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Upgrades(issuer), Person(200.0)
    async with opened(server, OAuth(AuthorizationCode(browser=person)), monkeypatch) as channel:
        assert channel.peer == URL
    assert person.logins == 1
    assert server.asked[0] == ""
    assert server.asked[1].startswith("Bearer access-secret")
    assert {each.url for each in issuer.asked if "resource" in each.url} == {
        "http://mcp.test/.well-known/oauth-protected-resource/mcp"
    }


async def test_a_token_that_has_ended_is_refreshed_at_the_next_opening(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Upgrades(issuer), Person()
    auth = OAuth(AuthorizationCode(browser=person))
    for _ in range(2):
        async with opened(server, auth, monkeypatch):
            issuer.revoke_all()
    assert issuer.grants == {"authorization_code": 1, "refresh_token": 1}
    assert [each[:6] for each in server.asked] == ["", "Bearer", "Bearer", "Bearer"]


async def test_a_login_that_is_refused_ends_the_opening(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Upgrades(issuer), Person(refuses=True)
    with pytest.RaisesGroup(LoginFailed):
        async with opened(server, OAuth(AuthorizationCode(browser=person)), monkeypatch):
            pytest.fail("nobody has logged in")
    assert (person.logins, person.open, len(server.asked)) == (1, 0, 1)


async def test_a_fixed_token_that_is_refused_is_told_so(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server = Upgrades(issuer)
    with pytest.RaisesGroup(pytest.RaisesExc(AuthorizationFailed, match="bearer token")):
        async with opened(server, BearerToken("configured"), monkeypatch):
            pytest.fail("it is not let in")
    assert server.asked == ["Bearer configured"]


async def test_a_403_without_a_lack_of_scopes_is_the_callers(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server = Upgrades(issuer, 403)
    with pytest.RaisesGroup(pytest.RaisesExc(WebSocketRefused, check=lambda each: each.status == 403)):
        async with opened(server, OAuth(), monkeypatch):
            pytest.fail("it is not let in")
    assert issuer.asked == []


async def test_without_auth_the_refusal_says_how_to_give_it(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server = Upgrades(issuer)
    matching = pytest.RaisesExc(WebSocketRefused, match=re.escape("Client(auth=OAuth())"))
    with pytest.RaisesGroup(matching):
        async with opened(server, None, monkeypatch):
            pytest.fail("it is not let in")
    assert server.asked == [""]


@pytest.mark.parametrize("seconds", [0.25, 0.75, 1.25, 1.75, 2.25, 2.75])
async def test_an_opening_that_is_cancelled_leaves_nothing_behind(
    seconds: float, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Upgrades(issuer), Person()
    auth = OAuth(AuthorizationCode(browser=person))
    with trio.move_on_after(seconds) as scope:
        async with opened(server, auth, monkeypatch):
            pytest.fail("it takes longer")
    assert (scope.cancelled_caught, person.open) == (True, 0)
    async with opened(server, auth, monkeypatch) as channel:
        assert channel.peer == URL
    assert person.open == 0


def test_two_sets_of_credentials_are_refused() -> None:
    for more in ({"headers": {"Authorization": "Bearer other"}}, {"url": "ws://user@mcp.test/"}):
        with pytest.raises(ValueError, match="two sets of credentials"):
            WebSocketClientTransport(**{"url": URL, "auth": OAuth(), **more})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="auth is OAuth"):
        WebSocketClientTransport(URL, auth="secret")  # type: ignore[arg-type]
