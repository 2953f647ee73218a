"""Programs have access of their own, by each grant without a person, at our server and at those of others."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors.auth import ClientCredentials, EnterpriseManaged, OAuth, WorkloadIdentity
from mcp_actors.errors import TokenRefused

from .identity_provider import CLIENT, IdentityProvider, Signer
from .ours import SeenStore, connected, serving, whoami
from .programs import Issuer
from .test_logins import SERVERS, Reach, reach

__all__ = ["reach"]


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
    assert issuer.count("refused urn:ietf:params:oauth:grant-type:jwt-bearer") == before + 1
