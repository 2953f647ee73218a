"""The clients of others log in to our server: over Streamable HTTP, in both eras."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from interop.installation import Peers
from mcp_actors.auth import (
    ClientCredentials,
    EnterpriseManaged,
    IntrospectionVerifier,
    OAuth,
    WorkloadIdentity,
)
from mcp_actors.errors import AuthorizationFailed, TokenRefused

from .identity_provider import CLIENT, IdentityProvider, Signer
from .ours import Person, SeenStore, connected, serving, whoami
from .programs import CLIENTS, Issuer, drive
from .test_logins import SERVERS, Reach, reach

__all__ = ["reach"]


every_client = pytest.mark.parametrize("client", CLIENTS)


async def driven(peers: Peers, client: str, url: str, **settings: object) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(drive, peers, client, url, **settings))


@every_client
@pytest.mark.parametrize("known", ["registers", "has-a-document", "is-registered"])
async def test_login_and_refresh(peers: Peers, issuer: Issuer, client: str, known: str) -> None:
    settings = {
        "registers": {},
        "has-a-document": {"metadata_url": "https://client.test/metadata.json"},
        "is-registered": {"client_id": "registered", "client_secret": "registered-secret"},
    }[known]
    async with serving(issuer) as url:
        report = await driven(peers, client, url, tools=["whoami", "expire", "whoami"], **settings)
    person = {"subject": "alice", "client": report["client_id"], "scopes": ["mcp:read"]}
    assert [json.loads(text) for _, text in report["calls"]] == [person, person]
    assert report["version"] == CLIENTS[client]
    assert (report["logins"], report["tokens"]) == (1, 2)


@every_client
@pytest.mark.parametrize("grant", ["secret", "key"])
async def test_machine(peers: Peers, issuer: Issuer, signer: Signer, client: str, grant: str) -> None:
    settings = {
        "secret": {"client_id": "machine", "client_secret": "machine-secret"},
        "key": {"client_id": "machine-with-key", "private_key": signer.private_pem},
    }[grant]
    async with serving(issuer) as url:
        report = await driven(peers, client, url, grant=grant, **settings)
    ((_, text),) = report["calls"]
    assert json.loads(text)["client"] == settings["client_id"]


@every_client
async def test_introspection(peers: Peers, issued: Callable[..., Issuer], client: str) -> None:
    verifier = IntrospectionVerifier(client_id="resource-server", client_secret="resource-server-secret")
    async with serving(issued(opaque=True), verifier=verifier) as url:
        report = await driven(peers, client, url)
    ((_, text),) = report["calls"]
    assert json.loads(text)["subject"] == "alice"


@pytest.mark.parametrize("client", list(CLIENTS))
async def test_step_up(peers: Peers, issuer: Issuer, client: str) -> None:
    """The tool that needs a scope of its own leads to a second login of the same client.

    One that registers itself fails there: it may ask for no more than it registered for, and does not register anew.
    """
    settings = {"client_id": "registered", "client_secret": "registered-secret"}
    async with serving(issuer) as url:
        report = await driven(peers, client, url, tools=["whoami", "write", "whoami"], **settings)
    (_, before), written, (_, after) = report["calls"]
    assert written == ["write", "written"]
    assert json.loads(before)["scopes"] == ["mcp:read"]
    assert json.loads(after)["scopes"] == ["mcp:read", "mcp:write"]
    assert report["logins"] == 2


# -- Tokens that are bound to a key (RFC 9449): our client and our server with a real authorization server ---


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", ["yes", "nonces"])
async def test_login_and_refresh_proofs(issued: Callable[..., Issuer], kind: str, era: str) -> None:
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
    assert issuer.count(f"granted refresh_token {known['client']}", 1) == 1


@pytest.mark.parametrize("kind", ["yes", "nonces"])
async def test_login_over_websocket(issued: Callable[..., Issuer], kind: str) -> None:
    issuer, person = issued(dpop=kind), Person()
    async with serving(issuer, "ws", dpop="required", dpop_nonces=kind == "nonces") as url:
        async with connected(url, person.auth()) as session:
            assert (await whoami(session))["subject"] == "alice"
    assert person.logins == 1


async def test_machine_proofs(issued: Callable[..., Issuer]) -> None:
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


# -- Programs have access of their own, by each grant without a person, at our server and at those of others ---


def by_secret(signer: Signer, identity: IdentityProvider) -> Any:
    return ClientCredentials(client_id="machine", client_secret="machine-secret")


def by_key(signer: Signer, identity: IdentityProvider) -> Any:
    return ClientCredentials(client_id="machine-with-key", private_key=signer.private_pem)


def by_platform(signer: Signer, identity: IdentityProvider) -> Any:
    return WorkloadIdentity(assertion=lambda audience: signer.sign(audience, "job-7"), client_id="workload")


def by_enterprise(signer: Signer, identity: IdentityProvider, lifetimes: list[int] | None = None) -> Any:
    """``lifetimes`` are the seconds that each ID token lives, one after the other."""
    left = iter(lifetimes or ())
    return EnterpriseManaged(
        id_token=lambda: identity.id_token(lifetime=next(left, 60)),
        idp_issuer=identity.signer.issuer,
        idp_token_endpoint=identity.token_endpoint,
        idp_client_id=CLIENT[0],
        idp_client_secret=CLIENT[1],
        client_id="enterprise",
        client_secret="enterprise-secret",
    )


GRANTS = {
    by_secret: ("machine", "machine"),
    by_key: ("machine-with-key", "machine-with-key"),
    by_platform: ("job-7", "workload"),
    by_enterprise: ("alice", "enterprise"),
}
"""How access is had, and the subject and the client that the server sees."""


@pytest.mark.parametrize("grant", GRANTS, ids=lambda grant: str(grant.__name__))
@pytest.mark.parametrize("server", SERVERS)
async def test_access(
    reach: Reach, signer: Signer, identity: IdentityProvider, server: str, grant: Any
) -> None:
    auth = OAuth(grant(signer, identity), store=SeenStore())
    async with reach(server) as url, connected(url, auth) as session:
        known = await whoami(session)
    assert (known["subject"], known["client"]) == GRANTS[grant]
    assert known["scopes"] == ["mcp:read"]


async def test_the_enterprise_is_asked_for_this_server(
    issuer: Issuer, signer: Signer, identity: IdentityProvider
) -> None:
    async with serving(issuer) as url:
        async with connected(url, OAuth(by_enterprise(signer, identity))) as session:
            await whoami(session)
    exchanged = identity.exchanged[-1]
    assert (exchanged["audience"], exchanged["resource"]) == (issuer.url, url)


async def test_an_id_token_that_is_over_is_asked_for_again_once(
    issuer: Issuer, signer: Signer, identity: IdentityProvider
) -> None:
    async with serving(issuer) as url:
        auth = OAuth(by_enterprise(signer, identity, lifetimes=[-600]))
        async with connected(url, auth) as session:
            assert (await whoami(session))["subject"] == "alice"
        before = len(identity.refused)
        with pytest.raises(TokenRefused):
            async with connected(url, OAuth(by_enterprise(signer, identity, lifetimes=[-600] * 9))):
                raise AssertionError("it was let in")
    assert len(identity.refused) - before == 2


async def test_a_refused_workload_is_not_tried_again(issuer: Issuer, signer: Signer) -> None:
    stranger = Signer(signer.issuer)
    grant = WorkloadIdentity(
        assertion=lambda audience: stranger.sign(audience, "job-7"), client_id="workload"
    )
    before = issuer.count("refused urn:ietf:params:oauth:grant-type:jwt-bearer")
    async with serving(issuer) as url:
        with pytest.raises(TokenRefused) as caught:
            async with connected(url, OAuth(grant)):
                raise AssertionError("it was let in")
    assert caught.value.error == "invalid_grant"
    assert issuer.count("refused urn:ietf:params:oauth:grant-type:jwt-bearer", before + 1) == before + 1
