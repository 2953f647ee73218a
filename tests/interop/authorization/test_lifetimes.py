"""Tokens end: refreshed, revoked, opaque and introspected, and with the keys of their issuer changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
import trio

from interop.installation import Peers
from interop.servers import free_port
from mcp_actors import Client
from mcp_actors.auth import IntrospectionVerifier, JwtVerifier, OAuth

from .ours import Person, Withdrawing, connected, serving, whoami
from .programs import Issuer, rotating


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
    assert issuer.count(f"granted refresh_token {known['client']}") == 1
    assert person.logins == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_refresh_when_the_server_believes_the_token_no_more(issuer: Issuer, era: str) -> None:
    person, verifier = Person(), Withdrawing()
    async with serving(issuer, verifier=verifier) as url:
        async with connected(url, person.auth(), era) as session:
            known = await whoami(session)
            verifier.withdraw()
            assert await whoami(session) == known
    assert issuer.count(f"granted refresh_token {known['client']}") == 1
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
    assert issuer.count(f"refused refresh_token {known['client']} invalid_grant") == 1


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
