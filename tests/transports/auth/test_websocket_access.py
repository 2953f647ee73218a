"""A WebSocket client with credentials: they are those of the upgrade request."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
import trio.testing

from mcp_actors import Client
from mcp_actors.abc import FrameChannel
from mcp_actors.auth import AuthorizationCode, BearerToken, ClientAuth, OAuth, UrlPolicy
from mcp_actors.auth.effects import (
    Fetched,
    LoadRecord,
    Lock,
    LogIn,
    OpenRedirect,
    RedirectAnswer,
    Steps,
    SwapRecord,
    Unlock,
)
from mcp_actors.errors import AuthorizationFailed, LoginFailed
from mcp_transports.auth import FileTokenStore, LoopbackBrowser
from mcp_transports.auth.authorizer import Performer
from mcp_transports.auth.fetcher import Fetcher
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.websocket.client import WebSocketClientTransport, WebSocketRefused
from tests.transports.http.scripted import URL, Asked, Script
from tests.transports.websocket.test_client import accepted

from .issuer import Issuer, Person, Protected

URL_WEBSOCKET_ACCESS = "ws://mcp.test/mcp"


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


@asynccontextmanager
async def opened(
    server: Upgrades, auth: ClientAuth | None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FrameChannel]:
    monkeypatch.setattr(trio, "open_tcp_stream", server.open_tcp_stream)
    async with trio.open_nursery() as server.nursery:
        try:
            transport = WebSocketClientTransport(URL_WEBSOCKET_ACCESS, auth=auth, connect_timeout=5.0)
            async with transport.connect() as channel:
                yield channel
        finally:
            server.nursery.cancel_scope.cancel()


async def test_a_person_has_more_time_than_the_connection(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Upgrades(issuer), Person(200.0)
    async with opened(server, OAuth(AuthorizationCode(browser=person)), monkeypatch) as channel:
        assert channel.peer == URL_WEBSOCKET_ACCESS
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
        assert channel.peer == URL_WEBSOCKET_ACCESS
    assert person.open == 0


def test_two_sets_of_credentials_are_refused() -> None:
    for more in ({"headers": {"Authorization": "Bearer other"}}, {"url": "ws://user@mcp.test/"}):
        with pytest.raises(ValueError, match="two sets of credentials"):
            WebSocketClientTransport(**{"url": URL_WEBSOCKET_ACCESS, "auth": OAuth(), **more})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="auth is OAuth"):
        WebSocketClientTransport(URL_WEBSOCKET_ACCESS, auth="secret")  # type: ignore[arg-type]


# -- Tokens that are bound to a key: each sending has a proof of its own (RFC 9449) ----------------------


class BindingIssuer(Issuer):
    """An authorization server whose tokens are bound."""

    def metadata(self) -> dict[str, Any]:
        return {**super().metadata(), "dpop_signing_alg_values_supported": ["ES256"]}

    def token(self, form: dict[str, str]) -> Fetched:
        answer = super().token(form)
        value = {**json.loads(answer.body), "token_type": "DPoP"}
        return Fetched(answer.status, answer.headers, json.dumps(value).encode())


class Binding(Protected):
    """A server that wants its newest nonce in each proof, and changes it when it is told to."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(issuer)
        self.nonce = "nonce-1"
        self.proofs: list[dict[str, Any]] = []

    async def __call__(self, asked: Asked) -> httpx2.Response:
        scheme, _, token = asked.headers.get("authorization", "").partition(" ")
        if scheme != "DPoP" or token not in self.issuer.valid:
            return httpx2.Response(401, headers={"www-authenticate": "DPoP"})
        claims = asked.headers["dpop"].split(".")[1]
        self.proofs.append(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))))
        if self.proofs[-1].get("nonce") != self.nonce:
            challenge = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": self.nonce}
            return httpx2.Response(401, headers=challenge)
        response = await super().__call__(with_bearer(asked, token))
        response.headers["dpop-nonce"] = self.nonce
        return response


def with_bearer(asked: Asked, token: str) -> Asked:
    headers = {**asked.headers, "authorization": f"Bearer {token}"}
    return Asked(asked.method, asked.url, headers, asked.body, asked.at)


async def test_each_sending_has_a_new_proof_and_a_nonce_costs_no_login(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    issuer, person = BindingIssuer(), Person()
    monkeypatch.setattr("mcp_transports.auth.authorizer.Fetcher", lambda policy, url: issuer)
    server = Binding(issuer)
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        auth = OAuth(AuthorizationCode(browser=person))
        async with Client(HttpClientTransport(URL, client=http, auth=auth), era="modern") as client:
            await client.call_tool("echo")
            server.nonce = "nonce-2"
            await client.call_tool("echo")
            await client.call_tool("echo")
    assert person.logins == 1
    assert server.calls == 3
    assert len({proof["jti"] for proof in server.proofs}) == len(server.proofs)
    assert [proof.get("nonce") for proof in server.proofs] == [
        None,
        "nonce-1",
        "nonce-1",
        "nonce-1",
        "nonce-2",
        "nonce-2",
    ]
    assert {(proof["htm"], proof["htu"]) for proof in server.proofs} == {("POST", URL)}


# -- The machines' logins, performed in the browser and the store that users have ------------------------
#
# What is left when one ends anywhere.

URL_LOGIN_PERFORMED = "https://as.example/authorize"
PATIENCE = 60


def machine(uris: list[str], *, locks: bool = False) -> Steps[RedirectAnswer]:
    """Logs in and stores the answer, as the client's machine does."""
    if locks:
        yield Lock("key")
    uri = yield OpenRedirect()
    uris.append(uri)
    answer: RedirectAnswer = yield LogIn(f"{URL_LOGIN_PERFORMED}?to={uri}", bool)
    found = yield LoadRecord("key")
    yield SwapRecord("key", None if found is None else found.generation, {"whole": "x" * 1000, "code": 1})
    if locks:
        yield Unlock("key")
    return answer


async def visit(url: str) -> None:
    uri = urlsplit(url.partition("?to=")[2])
    async with await trio.open_tcp_stream("127.0.0.1", uri.port or 0) as stream:
        await stream.send_all(f"GET {uri.path}?code=1 HTTP/1.1\r\nhost: {uri.netloc}\r\n\r\n".encode())
        await stream.receive_some()


def performer(path: Path, *, opens: object = visit, login_timeout: float = PATIENCE) -> Performer:
    browser = LoopbackBrowser(open=opens)  # type: ignore[arg-type]
    fetcher = Fetcher(UrlPolicy(), "https://mcp.example/mcp")
    return Performer(fetcher, FileTokenStore(path), lambda: browser, login_timeout)


def is_free(uri: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(uri).port or 0)) != 0


async def test_a_login_is_performed_and_stored(tmp_path: Path) -> None:
    uris: list[str] = []
    asked: list[bool] = []
    with trio.fail_after(PATIENCE):
        answer = await performer(tmp_path / "tokens.json").run(machine(uris, locks=True), asked.append)
    assert answer == [("code", "1")]
    assert asked == [True, False]
    assert is_free(uris[0])
    found = await FileTokenStore(tmp_path / "tokens.json").load("key")
    assert found is not None
    assert found.generation == 1


async def test_a_person_who_does_not_come_back_leaves_nothing_open(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    uris: list[str] = []
    waits = performer(tmp_path / "tokens.json", opens=lambda url: None, login_timeout=300)
    start = trio.current_time()
    with pytest.raises(LoginFailed, match="nobody logged in"):
        await waits.run(machine(uris), lambda asked: None)
    assert 300 <= trio.current_time() - start < 310
    assert is_free(uris[0])


async def test_cancelled_anywhere_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    works = performer(path)
    uris: list[str] = []
    ended, generation = 0, 0
    for ticks in range(0, 160, 2):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:

                async def cancel(scope: trio.CancelScope = scope, ticks: int = ticks) -> None:
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel)
                await works.run(machine(uris, locks=True), lambda asked: None)
            ended += scope.cancelled_caught
        assert all(is_free(uri) for uri in uris)
        uris.clear()  # later a port may be somebody else's
        found = await FileTokenStore(path).load("key")
        now = 0 if found is None else found.generation
        assert now in (generation, generation + 1)
        assert found is None or found.value == {"whole": "x" * 1000, "code": 1}
        generation = now
        assert not [each for each in os.listdir(tmp_path) if each.endswith(".new")]
    assert ended
    with trio.fail_after(PATIENCE):
        assert await works.run(machine(uris, locks=True), lambda asked: None)
