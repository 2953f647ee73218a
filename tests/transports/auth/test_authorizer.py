"""A whole client at a server that demands authorization: who waits for whom, and what it costs."""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mcp_actors import Client
from mcp_actors.auth import AuthorizationCode, BearerToken, ClientCredentials, OAuth
from mcp_actors.auth.client.authorization import Authorization
from mcp_actors.auth.client.settings import Grant
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationFailed,
    AuthorizationUnavailable,
    CallTimeout,
    LoginFailed,
)
from mcp_transports.auth import FileTokenStore, LoopbackBrowser
from mcp_transports.auth.authorizer import Answered, Authorizer, SentRequest
from mcp_transports.http.client import HttpClientTransport
from tests.transports.http.scripted import URL, Script

from .issuer import ISSUER, RESOURCE, Issuer, Person, Protected

MACHINE = ClientCredentials(client_id="machine", client_secret="configured-secret")


@asynccontextmanager
async def client_of(server: Protected, auth: OAuth | BearerToken, **options: object) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(transport=Script(server)) as http:
        transport = HttpClientTransport(URL, client=http, auth=auth)
        async with Client(transport, **options) as client:  # type: ignore[arg-type]
            yield client


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
async def test_a_refused_client_gets_access_and_goes_on(
    era: str, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server = Protected(issuer)
    async with client_of(server, OAuth(MACHINE), era=era) as client:
        await client.call_tool("echo")
    assert server.calls == 1
    assert issuer.grants == {"client_credentials": 1}
    assert server.refusals == 1


async def test_a_thousand_calls_whose_token_expires_lead_to_one_refresh(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server = Protected(issuer)
    async with client_of(server, OAuth(AuthorizationCode(browser=Person()))) as client:
        await client.call_tool("echo")
        server.seconds = 1.0
        issuer.revoke_all()
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(client.call_tool, "echo")
    assert server.calls == 1001
    assert issuer.grants == {"authorization_code": 1, "refresh_token": 1}


async def test_clients_that_share_the_settings_share_the_access(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person()
    auth = OAuth(AuthorizationCode(browser=person))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(client_of(server, auth))
        second = await stack.enter_async_context(client_of(server, auth))
        issuer.revoke_all()
        async with trio.open_nursery() as nursery:
            for client in [first, second] * 25:
                nursery.start_soon(client.call_tool, "echo")
    assert (person.logins, server.calls) == (1, 50)
    assert issuer.grants == {"authorization_code": 1, "refresh_token": 1}


@pytest.fixture
def virtual_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dates of tokens pass as the virtual time does."""
    made = functools.partial(Authorization, now=lambda: 1e9 + trio.current_time())
    monkeypatch.setattr("mcp_transports.auth.authorizer.Authorization", made)


@pytest.mark.usefixtures("virtual_dates")
async def test_a_token_is_refreshed_before_it_ends(issuer: Issuer, autojump_clock: trio.abc.Clock) -> None:
    server, person = Protected(issuer), Person()
    issuer.lifetime = 100
    async with client_of(server, OAuth(AuthorizationCode(browser=person))) as client:
        refused = server.refusals
        for _ in range(10):
            await trio.sleep(30)
            await client.call_tool("echo")
        assert server.refusals == refused
    assert person.logins == 1
    assert issuer.grants["refresh_token"] in (3, 4, 5)


@pytest.mark.usefixtures("virtual_dates")
@pytest.mark.parametrize("grant", [AuthorizationCode(browser=Person()), MACHINE])
async def test_tokens_that_have_ended_when_they_come_are_not_asked_for_without_end(
    grant: Grant, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server = Protected(issuer)
    issuer.lifetime, issuer.seconds = 0, 0.01
    async with client_of(server, OAuth(grant)) as client:
        with trio.fail_after(1):
            await client.call_tool("echo")
    assert issuer.grants.total() <= 2
    assert server.calls == 1


@pytest.mark.usefixtures("virtual_dates")
async def test_a_refresh_that_fails_ahead_of_time_costs_no_call(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person()
    issuer.lifetime = 100
    async with client_of(server, OAuth(AuthorizationCode(browser=person))) as client:
        issuer.out_of_order = True
        await trio.sleep(80)
        asked = len(issuer.asked)
        with capture_logs() as logs:
            for _ in range(20):
                await client.call_tool("echo")
        assert len(issuer.asked) == asked + 1
    assert "the token could not be refreshed ahead of its end" in [each["event"] for each in logs]


@pytest.mark.parametrize("seconds", [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5])
async def test_the_leader_is_cancelled_and_the_others_go_on(
    seconds: float, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person()
    async with client_of(server, OAuth(AuthorizationCode(browser=person)), era="modern") as client:
        done = 0

        async def call() -> None:
            nonlocal done
            await client.call_tool("echo")
            done += 1

        async def lead() -> None:
            with trio.move_on_after(seconds):
                await call()

        issuer.revoke_all()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lead)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(50):
                nursery.start_soon(call)
    assert done - 50 in (0, 1)
    assert person.logins == 1
    assert issuer.grants == {"authorization_code": 1, "refresh_token": 1}


async def test_when_all_have_left_nobody_is_asked_any_more(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(200.0)
    with trio.move_on_after(50.0):
        async with client_of(server, OAuth(AuthorizationCode(browser=person))):
            pytest.fail("nobody has logged in")
    assert (person.logins, person.open) == (1, 0)
    person.seconds = 1.0
    async with client_of(server, OAuth(AuthorizationCode(browser=person))) as client:
        await client.call_tool("echo")
    assert (person.logins, person.open, server.calls) == (2, 0, 1)


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
async def test_the_time_of_a_person_is_nobodys_timeout(
    era: str, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(250.0)
    auth = OAuth(AuthorizationCode(browser=person))
    async with client_of(server, auth, era=era, timeout=10.0, cap=20.0, probe_timeout=3.0) as client:
        assert trio.current_time() > 250
        assert client.era == ("legacy" if era == "legacy" else "modern")
        await client.call_tool("echo")
    assert person.logins == 1


async def test_calls_that_wait_for_a_person_do_not_time_out_and_then_do(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(250.0)
    server.is_open = {"server/discover"}
    auth = OAuth(AuthorizationCode(browser=person))
    async with client_of(server, auth, era="modern", timeout=10.0, cap=20.0) as client:
        await client.call_tool("echo")
        assert trio.current_time() > 250
        server.seconds = 60.0
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await client.call_tool("echo")
        assert trio.current_time() - began == pytest.approx(10.0)


async def test_calls_behind_a_notification_that_waits_for_a_person(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(250.0)
    server.is_open = {"initialize"}
    auth = OAuth(AuthorizationCode(browser=person))
    async with client_of(server, auth, era="legacy", timeout=10.0, cap=20.0) as client:
        await client.call_tool("echo")
        assert trio.current_time() > 250
    assert (person.logins, server.calls) == (1, 1)


async def test_a_login_has_a_time_of_its_own(issuer: Issuer, autojump_clock: trio.abc.Clock) -> None:
    server, person = Protected(issuer), Person(1000.0)
    with pytest.raises(LoginFailed, match="within 120 s"):
        async with client_of(server, OAuth(AuthorizationCode(browser=person, login_timeout=120.0))):
            pytest.fail("nobody has logged in")
    assert trio.current_time() < 130
    assert (person.logins, person.open) == (1, 0)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_login_that_is_refused_is_not_tried_again(
    restart: bool, issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(refuses=True)
    with pytest.raises(LoginFailed, match="closed the window"):
        async with client_of(server, OAuth(AuthorizationCode(browser=person)), restart=restart):
            pytest.fail("nobody has logged in")
    assert person.logins == 1


async def test_an_outage_of_the_authorization_server_is_told(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server = Protected(issuer)
    async with client_of(server, OAuth(AuthorizationCode(browser=Person()))) as client:
        await client.call_tool("echo")
        issuer.revoke_all()
        issuer.out_of_order = True
        failures: list[AuthorizationError] = []

        async def call() -> None:
            with pytest.raises(AuthorizationUnavailable) as caught:
                await client.call_tool("echo")
            failures.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call)
        assert len({id(each) for each in failures}) == 10
        issuer.out_of_order = False
        await client.call_tool("echo")
    assert issuer.grants == {"authorization_code": 1, "refresh_token": 1}


async def test_a_function_is_asked_for_another_token_once(autojump_clock: trio.abc.Clock) -> None:
    issuer = Issuer()
    server, given = Protected(issuer), 0

    async def token() -> str:
        nonlocal given
        given += 1
        return f"given-{given}"

    issuer.valid = {"given-1"}
    async with client_of(server, BearerToken(token)) as client:
        await client.call_tool("echo")
        issuer.valid = {"given-2"}
        await client.call_tool("echo")
        issuer.valid = {"never"}
        with pytest.raises(AuthorizationFailed, match="refuses the bearer token"):
            await client.call_tool("echo")
    assert (given, server.calls) == (3, 2)


async def test_a_channel_that_closes_leaves_the_others_to_begin_anew(
    issuer: Issuer, autojump_clock: trio.abc.Clock
) -> None:
    server, person = Protected(issuer), Person(5.0)
    auth = OAuth(AuthorizationCode(browser=person))

    async def opened(seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with client_of(server, auth) as client:
                await client.call_tool("echo")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened, 3.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(opened, 100.0)
    assert (person.logins, person.open, server.calls) == (2, 0, 1)


async def test_two_stores_of_one_file_refresh_once(tmp_path: Path, issuer: Issuer) -> None:
    """What two processes do: each has settings of its own, and only the file is common."""
    issuer.seconds = 0.0
    server, person = Protected(issuer), Person(0.0)
    path = tmp_path / "tokens"
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            clients = []
            for _ in range(2):
                auth = OAuth(AuthorizationCode(browser=person), store=FileTokenStore(path))
                clients.append(await stack.enter_async_context(client_of(server, auth)))
            assert person.logins == 1
            for _ in range(3):
                issuer.revoke_all()
                async with trio.open_nursery() as nursery:
                    for client in clients * 10:
                        nursery.start_soon(client.call_tool, "echo")
    assert server.calls == 60
    assert person.logins == 1
    assert issuer.grants == {"authorization_code": 1, "refresh_token": 3}


# -- Who needs access is cancelled, at any step of a whole login with a port, a file and requests --------

PATIENCE = 90
REFUSED = Answered(401, ["Bearer"])


@pytest.mark.parametrize("has_follower", [False, True])
async def test_cancelled_at_any_step_others_go_on_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_follower: bool
) -> None:
    issuer, uris = Issuer(), []
    issuer.seconds = 0.0
    monkeypatch.setattr("mcp_transports.auth.authorizer.Fetcher", lambda policy, url: issuer)

    async def visit(url: str) -> None:
        query = dict(parse_qsl(urlsplit(url).query))
        uri = urlsplit(query["redirect_uri"])
        uris.append(uri)
        answer = urlencode({"code": "code", "state": query["state"], "iss": ISSUER})
        async with await trio.open_tcp_stream("127.0.0.1", uri.port or 0) as stream:
            await stream.send_all(f"GET {uri.path}?{answer} HTTP/1.1\r\nhost: {uri.netloc}\r\n\r\n".encode())
            await stream.receive_some()

    async def react(auth: OAuth) -> bool:
        async with trio.open_nursery() as nursery:
            authorizer = Authorizer(auth, RESOURCE, nursery)
            await authorizer.prepare()
            again = await authorizer.react(SentRequest("POST", RESOURCE, "tools/list"), REFUSED)
            assert authorizer.token in issuer.valid
            authorizer.close()
        return again

    cancelled = 0
    for ticks in range(0, 150, 6):
        path = tmp_path / str(ticks) / "tokens.json"
        grant = AuthorizationCode(browser=LoopbackBrowser(open=visit))
        auth, done = OAuth(grant, store=FileTokenStore(path)), []

        async def follow(auth: OAuth = auth, done: list[bool] = done) -> None:
            done.append(await react(auth))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:

                    async def cancel(scope: trio.CancelScope = scope, ticks: int = ticks) -> None:
                        for _ in range(ticks):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel)
                    if has_follower:
                        nursery.start_soon(follow)
                    await react(auth)
                cancelled += scope.cancelled_caught
            assert done == [True] * has_follower
            for uri in uris:
                with socket.socket() as probe:
                    assert probe.connect_ex(("127.0.0.1", uri.port or 0)) != 0
            uris.clear()  # later a port may be somebody else's
            if path.exists():
                assert json.loads(path.read_bytes())["version"] == 1
            assert not list(path.parent.glob("*.new"))
            assert await react(OAuth(grant, store=FileTokenStore(path)))
    assert cancelled
