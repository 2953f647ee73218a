"""`Client(auth=…)`: what takes it, what is declared, and what is said where nobody can take it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, ClientPool, ConnectFailed, Server
from mcp_actors.abc import Frame, FrameChannel, Waiting
from mcp_actors.abc.discovery import register_transport
from mcp_actors.auth import AuthorizationCode, BearerToken, ClientCredentials, EnterpriseManaged, OAuth
from mcp_actors.errors import AuthorizationFailed, AuthorizationUnavailable, CallTimeout, TokenRefused
from mcp_actors.types import ClientCapabilities
from mcp_transports.http import HttpTransport
from tests.messages import CAPABILITIES, TASKS, discover_result, result

Message = dict[str, Any]
CREDENTIALS = ClientCredentials(client_id="id", client_secret="secret")
ENTERPRISE = EnterpriseManaged(
    id_token=lambda: "token",
    idp_issuer="https://idp.test",
    idp_token_endpoint="https://idp.test/token",
    idp_client_id="id",
    client_id="id",
)


@pytest.mark.parametrize("url", ["http://h/mcp", "https://h/mcp", "ws://h/mcp", "wss://h/mcp"])
def test_urls_of_http_and_websocket_take_it(url: str) -> None:
    client = Client(url, auth=OAuth(CREDENTIALS))
    assert repr(client) == f"<Client {url!r} not connected>"
    with pytest.raises(ValueError, match="two sets of credentials"):
        Client(url.replace("//", "//user:password@"), auth=OAuth())


@pytest.mark.parametrize(
    "target",
    [
        "stdio:server",
        "tcp://127.0.0.1:1",
        "unix:///tmp/x",
        "memory:",
        ["server"],
        Server("s"),
        HttpTransport("http://h/"),
    ],
    ids=["stdio", "tcp", "unix", "memory", "command", "server", "transport"],
)
@pytest.mark.parametrize("auth", [OAuth(), BearerToken("configured-secret")], ids=["oauth", "bearer"])
def test_nothing_else_drops_it_silently(target: Any, auth: Any) -> None:
    with pytest.raises(ValueError, match="environment") as caught:
        Client(target, auth=auth)
    assert "configured-secret" not in str(caught.value)


def test_a_file_does_not_take_it_either(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text("")
    with pytest.raises(ValueError, match="environment"):
        Client(path, auth=OAuth())


def test_what_is_no_authorization_is_refused() -> None:
    with pytest.raises(TypeError, match="not the class OAuth"):
        Client("http://127.0.0.1:1/mcp", auth=OAuth)
    with pytest.raises(TypeError, match="auth is OAuth"):
        Client("http://h/mcp", auth="secret")  # type: ignore[arg-type]


class Speaking(FrameChannel):
    """A server that answers discovery and calls ``seconds`` after a person was asked for ``asks`` seconds."""

    def __init__(self, asks: float, seconds: float) -> None:
        self.asks = asks
        self.seconds = seconds
        self.sent: list[Message] = []
        self._put, self._get = trio.open_memory_channel[Frame](10)
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with trio.open_nursery() as self._nursery:
            yield self
            self._nursery.cancel_scope.cancel()

    async def send(self, value: Frame) -> None:
        await trio.lowlevel.checkpoint()
        message = json.loads(value.data)
        self.sent.append(message)
        if "id" in message:
            assert self._nursery is not None
            self._nursery.start_soon(self._answer, message)

    async def _answer(self, message: Message) -> None:
        if self.asks:
            await self._put.send(Waiting(b""))
            await trio.sleep(self.asks)
            await self._put.send(Waiting(b"", over=True))
        await trio.sleep(self.seconds)
        discovers = message["method"] == "server/discover"
        value = discover_result({"tools": {}}) if discovers else {"content": [], "resultType": "complete"}
        await self._put.send(Frame(json.dumps(result(message, value)).encode()))

    async def receive(self) -> Frame:
        return await self._get.receive()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self._get.close()


async def test_no_clock_runs_while_a_channel_waits_for_a_person(autojump_clock: trio.abc.Clock) -> None:
    speaking = Speaking(1000.0, 2.0)
    async with Client(speaking, timeout=5.0, cap=6.0, probe_timeout=3.0) as client:
        assert [each["method"] for each in speaking.sent] == ["server/discover"]
        assert trio.current_time() == pytest.approx(1002.0)
        await client.call_tool("echo")
        speaking.asks, speaking.seconds = 100.0, 50.0
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await client.call_tool("echo")
        assert trio.current_time() - began == pytest.approx(105.0)


async def test_silence_counts_on_when_the_person_has_answered(autojump_clock: trio.abc.Clock) -> None:
    speaking = Speaking(100.0, 4.0)
    async with Client(speaking, timeout=5.0, probe_timeout=3.0):
        methods = [each["method"] for each in speaking.sent]
    assert methods == ["server/discover", "initialize"]


@pytest.mark.parametrize(
    ("grant", "name"),
    [
        (CREDENTIALS, "io.modelcontextprotocol/oauth-client-credentials"),
        (ENTERPRISE, "io.modelcontextprotocol/enterprise-managed-authorization"),
        (AuthorizationCode(), None),
    ],
    ids=["credentials", "enterprise", "person"],
)
async def test_the_extension_of_a_grant_is_declared(
    grant: Any, name: str | None, autojump_clock: trio.abc.Clock
) -> None:
    speaking = Speaking(0.0, 0.0)
    register_transport("declared", lambda url, auth=None: speaking)  # type: ignore[arg-type,misc]
    own = ClientCapabilities(extensions={"example.com/own": {}})
    async with Client("declared:x", auth=OAuth(grant), capabilities=own) as client:
        await client.call_tool("echo")
    declared = speaking.sent[-1]["params"]["_meta"][CAPABILITIES]["extensions"]
    assert declared == {TASKS: {}, "example.com/own": {}} | ({name: {}} if name else {})


class Refusing:
    """A transport whose first connection works, and whose later ones get no access."""

    def __init__(self, error: ConnectFailed) -> None:
        self.error = error
        self.opened = 0
        self.channel: Speaking | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        self.opened += 1
        if self.opened > 1:
            raise self.error
        self.channel = Speaking(0.0, 0.0)
        async with self.channel.connect() as channel:
            yield channel

    def lose(self) -> None:
        assert self.channel is not None
        self.channel._put.close()


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (AuthorizationFailed("no"), 2),
        (TokenRefused("no", "invalid_grant"), 2),
        (AuthorizationUnavailable("later"), 5),
        (ConnectFailed("nobody there"), 5),
    ],
    ids=["failed", "refused", "unavailable", "nobody"],
)
async def test_a_client_that_restarts_asks_once_for_access(
    error: ConnectFailed, attempts: int, autojump_clock: trio.abc.Clock
) -> None:
    transport = Refusing(error)
    async with Client(transport, restart=True, timeout=5.0) as client:
        transport.lose()
        await trio.sleep(30)
        assert (transport.opened == attempts) if attempts == 2 else (transport.opened >= attempts)
        with pytest.raises(type(error)) as caught:
            await client.call_tool("echo")
        assert caught.value is not error
        assert str(caught.value) == str(error)
        assert getattr(caught.value, "error", None) == getattr(error, "error", None)


async def test_a_pool_opens_clients_with_auth(autojump_clock: trio.abc.Clock) -> None:
    given: list[Any] = []

    def from_url(url: str, auth: Any = None) -> Any:
        given.append(auth)
        return Speaking(0.0, 0.0)

    register_transport("pooled", from_url)
    auth = OAuth(CREDENTIALS)
    async with ClientPool() as pool:
        client = await pool.open(Client("pooled:x", auth=auth))
        await client.call_tool("echo")
    assert given == [auth, auth]
