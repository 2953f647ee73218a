"""Our client logs in at a real authorization server, to be let in by our server and by those of others."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from interop.installation import Peers
from interop.servers import free_port
from interop.user import LEGACY, LIMIT, MODERN
from mcp_actors import Client
from mcp_actors.auth import IntrospectionVerifier, JwtVerifier, OAuth
from mcp_transports.auth.file_store import FileTokenStore

from .ours import Person, Withdrawing, connected, serving, whoami
from .programs import PROGRAMS, Issuer, rotating

VERSIONS = {"legacy": LEGACY, "modern": MODERN}
CLIENTS: dict[str, dict[str, Any]] = {
    "registers": {},
    "has-a-document": {"client_metadata_url": "https://client.test/metadata.json"},
    "is-registered": {"client_id": "registered", "client_secret": "registered-secret"},
}
SERVERS = ["ours", "fastmcp", "python"]
Reach = Callable[[str], Any]


@pytest.fixture
def reach(guarded: Callable[[str], str], issuer: Issuer) -> Reach:
    """The URL of a protected server, ours or one of others."""

    @asynccontextmanager
    async def reached(server: str) -> AsyncIterator[str]:
        if server == "ours":
            async with serving(issuer) as url:
                yield url
        else:
            yield guarded(server)

    return reached


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("era", VERSIONS)
@pytest.mark.parametrize("server", SERVERS)
async def test_login(reach: Reach, server: str, era: str, client: str) -> None:
    person = Person()
    auth = person.auth(settings={"dpop": None}, **CLIENTS[client])
    with capture_logs() as logged:
        async with reach(server) as url:
            async with connected(url, auth, era) as session:
                assert session.version == VERSIONS[era]
                first = await whoami(session)
                shown = repr((session, auth, session.tree()))
            # A second client shares what the first one was given.
            async with connected(url, auth, era) as session:
                assert await whoami(session) == first
    assert (first["subject"], first["scopes"]) == ("alice", ["mcp:read"])
    known = CLIENTS[client].get("client_id") or CLIENTS[client].get("client_metadata_url")
    assert known is None or first["client"] == known
    assert person.logins == 1
    secrets = person.store.secrets
    assert len(secrets) >= 2  # an access token and a refresh token
    assert not [secret for secret in secrets if secret in f"{logged}{shown}"]


async def test_login_over_websocket(issuer: Issuer) -> None:
    person = Person()
    async with serving(issuer, "ws") as url:
        async with connected(url, person.auth()) as session:
            assert (await whoami(session))["subject"] == "alice"
    assert person.logins == 1


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("era", VERSIONS)
async def test_step_up(issuer: Issuer, era: str, client: str) -> None:
    """The tool needs a scope of its own: the person is asked once more, and the calls go on."""
    person = Person()
    async with serving(issuer) as url, connected(url, person.auth(**CLIENTS[client]), era) as session:
        before = await whoami(session)
        result = await session.call_tool("write", {})
        assert result.content[0].text == "written"
        after = await whoami(session)
    assert (before["scopes"], after["scopes"]) == (["mcp:read"], ["mcp:read", "mcp:write"])
    assert person.logins == 2
    # This issuer lets a client that registered itself ask for nothing beyond that, so it has to register anew.
    assert (before["client"] == after["client"]) == (client != "registers")


# -- Tokens end: refreshed, revoked, opaque and introspected, and with the keys of their issuer changed ---


async def revoke(issuer: Issuer, client_id: str, token: str) -> None:
    """As the person could at the authorization server (RFC 7009)."""
    async with httpx2.AsyncClient() as http:
        data = {"token": token, "client_id": client_id}
        response = await http.post(f"{issuer.url}/token/revocation", data=data)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_refresh_ahead_of_the_end(issuer: Issuer, era: str) -> None:
    person = Person()
    async with serving(issuer) as url:
        async with connected(url, person.auth(), era) as session:
            known = await whoami(session)
        await person.store.age()
        async with connected(url, person.auth(), era) as session:
            assert await whoami(session) == known
    assert issuer.count(f"granted refresh_token {known['client']}", 1) == 1
    assert person.logins == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_refresh_when_the_server_believes_the_token_no_more(issuer: Issuer, era: str) -> None:
    person, verifier = Person(), Withdrawing()
    async with serving(issuer, verifier=verifier) as url:
        async with connected(url, person.auth(), era) as session:
            known = await whoami(session)
            verifier.withdraw()
            assert await whoami(session) == known
    assert issuer.count(f"granted refresh_token {known['client']}", 1) == 1
    assert person.logins == 1


async def test_revoked_refresh_token(issuer: Issuer) -> None:
    """There is one new login, and the calls go on."""
    person, verifier = Person(), Withdrawing()
    async with serving(issuer, verifier=verifier) as url:
        async with connected(url, person.auth()) as session:
            known = await whoami(session)
            await revoke(issuer, known["client"], person.store.values("refresh_token")[-1])
            verifier.withdraw()
            for _ in range(3):
                assert await whoami(session) == known
    assert person.logins == 2
    assert issuer.count(f"refused refresh_token {known['client']} invalid_grant", 1) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_introspection(issued: Callable[..., Issuer], era: str) -> None:
    issuer, person = issued(opaque=True), Person()
    verifier = IntrospectionVerifier(client_id="resource-server", client_secret="resource-server-secret")
    async with serving(issuer, verifier=verifier) as url:
        async with connected(url, person.auth(), era) as session:
            known = await whoami(session)
    assert (known["subject"], known["scopes"]) == ("alice", ["mcp:read"])
    assert "." not in person.store.values("access_token")[-1]  # no JWT


async def key_ids(issuer: Issuer) -> list[str]:
    async with httpx2.AsyncClient() as http:
        keys = (await http.get(f"{issuer.url}/.well-known/jwks.json")).json()["keys"]
    return [key["kid"] for key in keys]


async def test_key_rotation(peers: Peers, tmp_path: Path) -> None:
    """The issuer changes its key while calls are made: they go on, and whoever comes with the new one is let in."""
    done: list[int] = []

    async def call(client: Client, number: int) -> None:
        await whoami(client)
        done.append(number)

    def auth() -> OAuth:
        return Person().auth(settings={"extra_params": {"login_hint": "persona-auto-login:alice"}})

    resource = f"http://127.0.0.1:{free_port()}/mcp"
    verifier = JwtVerifier(types=["JWT"], interval=0.1)  # it says nothing more exact
    with rotating(peers, tmp_path, resource) as issuer:
        async with (
            serving(issuer, resource=resource, verifier=verifier) as url,
            connected(url, auth()) as session,
        ):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(call, session, number)
                (old,) = await key_ids(issuer)
                async with httpx2.AsyncClient() as http:
                    response = await http.post(f"{issuer.url}/api/keys/rotate")
                assert response.status_code == 200, response.text
                assert (await key_ids(issuer))[0] != old
                for number in range(20, 40):
                    nursery.start_soon(call, session, number)
                async with connected(url, auth()) as newcomer:
                    assert (await whoami(newcomer))["subject"] == "alice"
    assert sorted(done) == list(range(40))


# -- Many who share one login ----------------------------------------------------------------------------
#
# A refresh token is good once, and the issuer ends the whole grant if it is used twice.

PROCESSES, CALLS = 4, 125


async def test_processes(issuer: Issuer, tmp_path: Path) -> None:
    """One has logged in. Four others go on with what it stored, and each of them needs the next token every time."""
    person, path = Person(), tmp_path / "tokens.json"
    outputs: list[str] = []

    async def run(url: str) -> None:
        command = [sys.executable, str(PROGRAMS / "sharing_client.py"), str(path), str(CALLS), url]
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        outputs.append(done.stdout.decode())

    with trio.fail_after(PROCESSES * LIMIT):
        async with serving(issuer) as url:
            auth = person.auth(settings={"store": FileTokenStore(path)})
            async with connected(url, auth) as session:
                client_id = (await whoami(session))["client"]
            async with trio.open_nursery() as nursery:
                for _ in range(PROCESSES):
                    nursery.start_soon(run, url)
            rotations = issuer.count(f"granted refresh_token {client_id}", CALLS)
    assert outputs == ["alice\n"] * PROCESSES
    assert rotations >= CALLS  # each of them alone would have needed as many
    assert issuer.count(f"refused refresh_token {client_id}") == 0
    assert person.logins == 1


async def test_a_thousand_calls_when_the_token_ends(issuer: Issuer) -> None:
    """All are refused at once, one of them gets the next token, and none fails."""
    person, verifier = Person(), Withdrawing()
    done: list[int] = []

    async def call(client: Client, number: int) -> None:
        result = await client.call_tool("whoami", {}, timeout=LIMIT)
        assert not result.is_error
        done.append(number)

    async with serving(issuer, verifier=verifier) as url, connected(url, person.auth()) as session:
        client_id = (await whoami(session))["client"]
        verifier.withdraw()
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(partial(call, session, number))
    assert sorted(done) == list(range(1000))
    assert issuer.count(f"granted refresh_token {client_id}", 1) == 1
    assert person.logins == 1
