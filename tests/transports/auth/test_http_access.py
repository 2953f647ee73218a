"""What a client over HTTP sends with its credentials, where it sends it, and what it does when that is refused."""

from __future__ import annotations

import json
import math
import re
import traceback
from pathlib import Path

import httpx2
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client
from mcp_actors.abc import NewAccess, Waiting
from mcp_actors.auth import AuthorizationCode, BearerToken, ClientCredentials, MemoryTokenStore, OAuth
from mcp_actors.auth.effects import Fetch
from mcp_actors.errors import AuthorizationError, AuthorizationFailed, ConnectionLost, LoginFailed, McpError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.testing import RecordingTransport
from mcp_transports.http.client import AccessRefused, HttpClientTransport, HttpRefused
from tests.messages import discover_result, initialize_result, result
from tests.transports.http.scripted import (
    URL,
    Asked,
    Script,
    Stream,
    connected,
    handshake,
    json_answer,
    request,
    sse,
)

from .issuer import Issuer, Person, Protected

TOKEN = BearerToken("configured-token")
MACHINE = ClientCredentials(client_id="machine", client_secret="configured-secret")


def bearers(script: Script) -> set[str]:
    return {asked.headers.get("authorization", "none") for asked in script.asked}


async def test_every_request_of_a_session_has_the_token(autojump_clock: trio.abc.Clock) -> None:
    async def serve(asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return sse(Stream(b": nothing\n\n"))
        return json_answer(headers={"mcp-session-id": "s1"})

    async with connected(serve, auth=TOKEN) as (channel, script):
        await handshake(channel)
        await trio.testing.wait_all_tasks_blocked()
    assert [asked.method for asked in script.asked] == ["POST", "POST", "GET", "DELETE"]
    assert bearers(script) == {"Bearer configured-token"}


async def test_a_stream_that_is_resumed_has_the_token_of_the_moment(autojump_clock: trio.abc.Clock) -> None:
    tokens = iter(["first", "second"])

    async def serve(asked: Asked) -> httpx2.Response:
        if asked.headers["authorization"] == "Bearer first" and asked.method == "GET":
            return httpx2.Response(401)
        body = (
            b'data: {"jsonrpc":"2.0","id":7,"result":{}}\n\n'
            if asked.method == "GET"
            else b"id: a\ndata:\n\n"
        )
        return sse(Stream(body, end=True))

    async with connected(serve, auth=BearerToken(lambda: next(tokens)), listen=False) as (channel, script):
        await channel.send(request(7, metadata={"mcp-protocol-version": "2025-11-25"}))
        assert isinstance(await channel.receive(), NewAccess)
        assert json.loads((await channel.receive()).data)["id"] == 7
    assert [asked.headers["authorization"] for asked in script.of("GET")] == ["Bearer first", "Bearer second"]


async def test_the_posts_to_the_endpoint_of_http_sse_have_the_token(autojump_clock: trio.abc.Clock) -> None:
    stream = Stream(b"event: endpoint\ndata: /messages?session=1\n\n")

    async def serve(asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return sse(stream)
        if "/messages" not in asked.url:
            return httpx2.Response(405)
        message = json.loads(asked.body)
        if message["method"] == "initialize":
            answer = json.dumps(result(message, initialize_result("2024-11-05", {})))
            stream.write(f"data: {answer}\n\n".encode())
        return httpx2.Response(202)

    script = Script(serve)
    async with httpx2.AsyncClient(transport=script) as http:
        async with Client(HttpClientTransport(URL, client=http, auth=TOKEN), era="legacy"):
            pass
    assert len([asked for asked in script.of("POST") if "/messages" in asked.url]) == 2
    assert bearers(script) == {"Bearer configured-token"}


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirection_takes_nothing_to_another_origin(
    status: int, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    async def serve(asked: Asked) -> httpx2.Response:
        return httpx2.Response(status, headers={"location": "http://evil.test/mcp", "set-cookie": "a=b"})

    for auth in (TOKEN, OAuth(MACHINE)):
        async with connected(serve, auth=auth) as (channel, script):
            await channel.send(request(1, "initialize"))
            refused = await channel.receive()
            assert isinstance(getattr(refused, "reason", None), HttpRefused)
        assert {httpx2.URL(asked.url).host for asked in script.asked} == {"mcp.test"}
    assert issuer.asked == []


async def test_an_endpoint_of_another_origin_gets_nothing(autojump_clock: trio.abc.Clock) -> None:
    async def serve(asked: Asked) -> httpx2.Response:
        if asked.method == "GET":
            return sse(Stream(b"event: endpoint\ndata: http://evil.test/messages\n\n"))
        return httpx2.Response(405)

    async with connected(serve, auth=TOKEN) as (channel, script):
        await channel.send(request(1, "initialize"))
        assert isinstance(getattr(await channel.receive(), "reason", None), McpError)
    assert {httpx2.URL(asked.url).host for asked in script.asked} == {"mcp.test"}


async def test_a_client_without_auth_says_how_to_give_it(autojump_clock: trio.abc.Clock) -> None:
    async def serve(asked: Asked) -> httpx2.Response:
        return httpx2.Response(401, headers={"www-authenticate": "Bearer"})

    async with httpx2.AsyncClient(transport=Script(serve)) as http:
        with pytest.raises(AccessRefused, match=re.escape("Client(auth=OAuth())")) as caught:
            async with Client(HttpClientTransport(URL, client=http)):
                pytest.fail("it is not let in")
    assert caught.value.www_authenticate == "Bearer"


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"Authorization": "Bearer other"}},
        {"url": "http://user:password@mcp.test/mcp"},
        {"client": httpx2.AsyncClient(auth=("user", "password"))},
        {"client": httpx2.AsyncClient(headers={"authorization": "Bearer other"})},
    ],
    ids=["header", "url", "client-auth", "client-header"],
)
def test_two_sets_of_credentials_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="two sets of credentials"):
        HttpClientTransport(**{"url": URL, "auth": TOKEN, **options})  # type: ignore[arg-type]


def test_what_is_no_authorization_is_refused() -> None:
    with pytest.raises(TypeError, match="auth is OAuth"):
        HttpClientTransport(URL, auth="secret")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Unix socket"):
        HttpClientTransport("http+unix://%2Ftmp%2Fx/mcp", auth=OAuth())


@pytest.mark.parametrize("token", ["", "two words", "line\nfeed", "ü"])
def test_a_bearer_token_that_no_header_may_have_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        BearerToken(token)


@pytest.mark.parametrize("returned", ["", "two words", None, b"bytes"])
async def test_a_function_that_returns_no_bearer_token_is_told_so(
    returned: object, autojump_clock: trio.abc.Clock
) -> None:
    async def serve(asked: Asked) -> httpx2.Response:
        return json_answer()

    async with connected(serve, auth=BearerToken(lambda: returned)) as (channel, script):  # type: ignore[arg-type,return-value]
        await channel.send(request(1, "initialize"))
        reason = getattr(await channel.receive(), "reason", None)
    assert isinstance(reason, AuthorizationError)
    assert "must return a text" in str(reason)
    assert script.asked == []


async def test_a_function_that_fails_is_named_and_not_quoted(autojump_clock: trio.abc.Clock) -> None:
    async def serve(asked: Asked) -> httpx2.Response:
        return json_answer()

    async def from_the_vault() -> str:
        raise LookupError("vault-secret")

    async with connected(serve, auth=BearerToken(from_the_vault)) as (channel, _):
        await channel.send(request(1, "initialize"))
        reason = getattr(await channel.receive(), "reason", None)
    assert isinstance(reason, AuthorizationError)
    assert "from_the_vault" in str(reason)
    assert "vault-secret" not in str(reason)


async def test_more_scopes_are_asked_for_and_the_call_is_made_again(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person()
    server.lacking = {"write": 'Bearer error="insufficient_scope", scope="write"'}

    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=OAuth(AuthorizationCode(browser=person)))
        async with Client(transport) as client:
            asked = len(issuer.asked)

            def granted(fetch: object) -> None:
                if len(issuer.asked) > asked + 2:
                    server.lacking = {}

            issuer.before = granted
            await client.call_tool("write")
            assert person.logins == 2
            server.lacking = {"other": 'Bearer error="insufficient_scope", scope="other"'}
            issuer.before = lambda fetch: None
            for _ in range(2):
                with pytest.raises(AuthorizationFailed):
                    await client.call_tool("other")
            await client.call_tool("write")
    assert person.logins <= 4
    assert server.calls == 2


async def test_a_403_of_another_kind_is_the_callers(issuer: Issuer, autojump_clock: trio.abc.Clock) -> None:
    server = Protected(issuer)
    server.lacking = {"write": "Basic"}
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        async with Client(HttpClientTransport(URL, client=http, auth=OAuth(MACHINE))) as client:
            with pytest.raises(AccessRefused) as caught:
                await client.call_tool("write")
    assert caught.value.status == 403
    assert issuer.grants == {"client_credentials": 1}


async def test_the_end_of_a_session_asks_nobody(issuer: Issuer, autojump_clock: trio.abc.Clock) -> None:
    server, person = Protected(issuer), Person()
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=OAuth(AuthorizationCode(browser=person)))
        async with Client(transport, era="legacy"):
            await trio.testing.wait_all_tasks_blocked()
            issuer.revoke_all()
            asked = len(issuer.asked)
    assert (person.logins, len(issuer.asked)) == (1, asked)


async def test_the_stream_of_a_session_asks_no_person_who_has_refused(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(refuses=True)
    server.is_open = {"initialize"}
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=OAuth(AuthorizationCode(browser=person)))
        async with Client(transport, era="legacy") as client:
            await trio.sleep(60)
            assert person.logins == 1
            with pytest.raises(LoginFailed):
                await client.call_tool("echo")
    assert person.logins == 2


async def test_a_resumption_that_gets_no_access_says_that_the_answer_is_lost(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def serve(asked: Asked) -> httpx2.Response:
        return httpx2.Response(401) if asked.method == "GET" else sse(Stream(b"id: a\ndata:\n\n", end=True))

    async with connected(serve, auth=TOKEN, listen=False) as (channel, script):
        await channel.send(request(7, metadata={"mcp-protocol-version": "2025-11-25"}))
        reason = getattr(await channel.receive(), "reason", None)
    assert isinstance(reason, ConnectionLost)
    assert isinstance(reason.__cause__, AuthorizationFailed)
    assert len(script.of("GET")) == 1


async def test_a_call_that_was_refused_and_is_given_up_is_not_mentioned_to_the_server(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(100.0)
    script = Script(server)
    async with httpx2.AsyncClient(transport=script) as http:
        transport = HttpClientTransport(
            URL, client=http, auth=OAuth(AuthorizationCode(browser=person)), listen=False
        )
        async with Client(transport, era="legacy") as client:
            await trio.sleep(1)
            server.is_open = {"notifications/cancelled"}
            issuer.revoke_all()
            issuer.out_of_order = True
            issuer.seconds = 50.0
            with trio.move_on_after(10.0):
                await client.call_tool("echo")
            await trio.sleep(100)
    assert not [asked for asked in script.asked if b"notifications/cancelled" in asked.body]


async def test_the_channel_says_when_a_person_is_asked(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(10.0)
    auth = OAuth(AuthorizationCode(browser=person))
    async with connected(server, auth=auth) as (channel, _):
        for id in (1, 2):
            await channel.send(request(id))
        frames = [await channel.receive() for _ in range(4)]
    assert [type(frame) for frame in frames[:2]] == [Waiting, Waiting]
    assert [frame.over for frame in frames[:2] if isinstance(frame, Waiting)] == [False, True]


EFFECTS = [0.25, 0.75, 1.25, 1.75, 2.25, 2.75]


@pytest.mark.parametrize("seconds", EFFECTS)
async def test_a_client_that_is_cancelled_at_any_effect_leaves_nothing_behind(
    seconds: float, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person, store = Protected(issuer), Person(), MemoryTokenStore()

    async def use(deadline: float) -> bool:
        auth = OAuth(AuthorizationCode(browser=person), store=store)
        with trio.move_on_after(deadline):
            async with httpx2.AsyncClient(transport=Script(server)) as http:
                async with Client(HttpClientTransport(URL, client=http, auth=auth)) as client:
                    await client.call_tool("echo")
                    return True
        return False

    began = trio.current_time()
    assert not await use(seconds)
    assert trio.current_time() - began < seconds + 0.1
    assert person.open == 0
    assert await use(math.inf)
    assert person.open == 0


async def test_no_secret_is_shown_anywhere(
    tmp_path: Path, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person()
    auth = OAuth(AuthorizationCode(browser=person))
    shown: list[str] = []
    with capture_logs() as logs:
        async with httpx2.AsyncClient(transport=Script(server)) as http:
            inner = HttpClientTransport(URL, client=http, auth=auth)
            transport = RecordingTransport(inner, tmp_path / "session.jsonl")
            async with Client(transport) as client:
                await client.call_tool("echo")
                issuer.revoke_all()
                await client.call_tool("echo")
                shown += [repr(client), repr(client.tree()), repr(inner), repr(auth), repr(auth.store)]
                issuer.revoke_all()
                issuer.out_of_order = True
                with pytest.raises(McpError) as caught:
                    await client.call_tool("echo")
                shown += [
                    str(caught.value),
                    repr(caught.value),
                    "".join(traceback.format_exception(caught.value)),
                ]
    shown += [repr(logs), (tmp_path / "session.jsonl").read_text()]
    secrets = issuer.secrets | person.secrets
    assert len(secrets) >= 6
    assert [secret for secret in secrets if any(secret in text for text in shown)] == []


# -- What is kept of answers when requests are made with other access -------------------------------------------------


class Listing(Protected):
    """A server whose lists and resources are good for an hour; it says which token it has answered."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(issuer)
        self.asked: list[str] = []

    async def __call__(self, asked: Asked) -> httpx2.Response:
        message = json.loads(asked.body) if asked.body else {}
        method, token = message.get("method"), asked.headers.get("authorization", "").partition(" ")[2]
        if (
            method not in ("server/discover", "tools/list", "resources/read")
            or token not in self.issuer.valid
        ):
            return await super().__call__(asked)
        stamps = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "private"}
        if method == "server/discover":
            found = discover_result({"tools": {"listChanged": True}, "resources": {}}, ttlMs=0)
            return httpx2.Response(200, json=result(message, found))
        self.asked.append(method)
        tools = [{"name": f"known_to_{token[-1]}", "inputSchema": {"type": "object"}}]
        contents = [{"uri": "x://mine", "text": token}]
        body = {"tools": tools} if method == "tools/list" else {"contents": contents}
        return httpx2.Response(200, json=result(message, {**body, **stamps}))


async def kept(client: Client) -> tuple[str, str]:
    """What the client says that the server lists, and has in a resource."""
    tools = [each.name async for each in client.tools()]
    return tools[0], (await client.read_resource("x://mine")).text


def lacks(issuer: Issuer, server: Protected, name: str) -> None:
    """Refuses calls of a tool until another token is asked for."""
    server.lacking = {name: f'Bearer error="insufficient_scope", scope="{name}"'}

    def asked(fetch: Fetch) -> None:
        if fetch.url.endswith("/token"):
            server.lacking = {}

    issuer.before = asked


async def test_answers_are_dropped_when_requests_are_made_with_more_scopes(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person, changes = Listing(issuer), Person(), list[str]()
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=OAuth(AuthorizationCode(browser=person)))
        async with Client(
            transport, era="modern", on_change=lambda kind, uri: changes.append(kind)
        ) as client:
            for _ in range(2):
                assert await kept(client) == ("known_to_1", "access-secret-1")
            assert server.asked == ["tools/list", "resources/read"]
            lacks(issuer, server, "write")
            await client.call_tool("write")
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(changes) == ["resources", "tools"]
            for _ in range(2):
                assert await kept(client) == ("known_to_2", "access-secret-2")
    assert server.asked == ["tools/list", "resources/read"] * 2


async def test_answers_are_kept_when_a_token_was_refreshed(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person, changes = Listing(issuer), Person(), list[str]()
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=OAuth(AuthorizationCode(browser=person)))
        async with Client(
            transport, era="modern", on_change=lambda kind, uri: changes.append(kind)
        ) as client:
            assert await kept(client) == ("known_to_1", "access-secret-1")
            issuer.revoke_all()
            await client.call_tool("any")
            assert issuer.grants["refresh_token"] == 1
            assert await kept(client) == ("known_to_1", "access-secret-1")
    assert (person.logins, changes) == (1, [])


async def test_answers_are_dropped_when_a_program_has_another_token(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server = Listing(issuer)
    issuer.valid = {"ann-1"}
    tokens = iter(["ann-1", "bob-2"])
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=BearerToken(lambda: next(tokens)))
        async with Client(transport, era="modern") as client:
            assert await kept(client) == ("known_to_1", "ann-1")
            issuer.valid = {"bob-2"}
            await client.call_tool("any")
            assert await kept(client) == ("known_to_2", "bob-2")


async def test_clients_of_a_gateway_are_told_when_it_has_other_access(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person, changed = Listing(issuer), Person(), trio.Event()
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=OAuth(AuthorizationCode(browser=person)))
        gateway = Gateway([Upstream(name="u", target=lambda: transport, era="modern")])

        def changes(kind: str, uri: str | None) -> None:
            if kind == "tools":
                changed.set()

        async with Client(gateway, era="legacy", on_change=changes) as client:
            assert [each.name async for each in client.tools()] == ["u_known_to_1"]
            lacks(issuer, server, "known_to_1")
            await client.call_tool("u_known_to_1")
            with trio.fail_after(60):
                await changed.wait()
            assert [each.name async for each in client.tools()] == ["u_known_to_2"]
