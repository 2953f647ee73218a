"""Tokens that are bound to a key (RFC 9449): our client and our server with a real authorization server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio

from interop.installation import Peers
from mcp_actors.auth import ClientCredentials, OAuth
from mcp_actors.errors import AuthorizationFailed

from .ours import Person, connected, serving, whoami
from .programs import Issuer, drive


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", ["yes", "nonces"])
async def test_login_and_refresh(issued: Callable[..., Issuer], kind: str, era: str) -> None:
    """The refresh token is bound as well: only the key that was stored with it may use it."""
    issuer, person = issued(dpop=kind), Person()
    async with serving(issuer, dpop="required", dpop_nonces=kind == "nonces") as url:
        async with connected(url, person.auth(), era) as session:
            assert (await session.call_tool("write", {})).content[0].text == "written"
            known = await whoami(session)
        await person.store.age()
        async with connected(url, person.auth(), era) as session:
            assert (await whoami(session))["client"] == known["client"]
    assert (known["subject"], person.logins) == ("alice", 2)  # the second one is for the other scope
    assert issuer.count(f"granted refresh_token {known['client']}") == 1


@pytest.mark.parametrize("kind", ["yes", "nonces"])
async def test_login_over_websocket(issued: Callable[..., Issuer], kind: str) -> None:
    issuer, person = issued(dpop=kind), Person()
    async with serving(issuer, "ws", dpop="required", dpop_nonces=kind == "nonces") as url:
        async with connected(url, person.auth()) as session:
            assert (await whoami(session))["subject"] == "alice"
    assert person.logins == 1


async def test_machine(issued: Callable[..., Issuer]) -> None:
    issuer = issued(dpop="nonces")
    auth = OAuth(ClientCredentials(client_id="machine", client_secret="machine-secret"), dpop=True)
    async with serving(issuer, dpop="required", dpop_nonces=True) as url:
        async with connected(url, auth) as session:
            assert (await whoami(session))["client"] == "machine"


async def test_a_plain_token_is_not_taken_where_proofs_are_required(issued: Callable[..., Issuer]) -> None:
    issuer, person = issued(dpop="yes"), Person()
    async with serving(issuer, dpop="required") as url:
        with pytest.raises(AuthorizationFailed):
            async with connected(url, person.auth(settings={"dpop": False})):
                raise AssertionError("it was let in")


async def test_the_official_typescript_client(peers: Peers, issued: Callable[..., Issuer]) -> None:
    issuer = issued(dpop="yes")
    async with serving(issuer, dpop="required") as url:
        run = partial(drive, peers, "typescript-auto", url, dpop=True, tools=["whoami", "whoami"])
        report = await trio.to_thread.run_sync(run)
    assert [name for name, text in report["calls"] if '"alice"' in text] == ["whoami", "whoami"]
