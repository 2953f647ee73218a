"""What the identity provider of an enterprise issues: how long it is used, and what it is bound to."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest

from mcp_actors.auth import AuthorizationCode, ClientCredentials, EnterpriseManaged, OAuth
from mcp_actors.auth.effects import Effect, Fetch, Fetched, LogIn
from mcp_actors.errors import TokenRefused
from tests.auth.scripted import ISSUER, AuthServer, Caller, World, answer, claims_of, scene

IDP = "https://idp.example"
TOKEN = f"{ISSUER}/token"
MACHINE = ClientCredentials(client_id="machine", client_secret="configured-secret")
PROOFS = {"dpop_signing_alg_values_supported": ["ES256"]}


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _thumbprint(jwk: dict[str, str]) -> str:
    text = json.dumps({name: jwk[name] for name in ("crv", "kty", "x", "y")}, separators=(",", ":"))
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def enterprise(
    *, dpop: bool | None = None, bind: Any = None, expires_in: Any = 300, **metadata: Any
) -> tuple[World, AuthServer, Caller]:
    """A world with an identity provider, which binds what it issues to ``bind(key)`` of the proof it got."""
    grant = EnterpriseManaged(
        id_token=lambda: "SECRET-id-token",
        idp_issuer=IDP,
        idp_token_endpoint=f"{IDP}/token",
        idp_client_id="idp-client",
        client_id="c",
    )
    world, auth, server, caller = scene(OAuth(grant, dpop=dpop), **metadata)
    server.document |= metadata  # proofs are made where both sides take them

    def idp(fetch: Fetch) -> Fetched:
        proof = dict(fetch.headers).get("dpop")
        claims: dict[str, Any] = {"jti": world.secret("jti")}
        if proof is not None and bind is not None:
            header, said = claims_of(proof)
            assert (said["htu"], said["htm"]) == (f"{IDP}/token", "POST")
            claims["cnf"] = {"jkt": bind(header["jwk"])}
        assertion = f"{_part({'typ': 'oauth-id-jag+jwt'})}.{_part(claims)}.{world.secret('signature')}"
        issued = "urn:ietf:params:oauth:token-type:id-jag"
        document = {"access_token": assertion, "token_type": "N_A", "issued_token_type": issued}
        return answer({**document, "expires_in": expires_in})

    world.handlers[IDP] = idp
    return world, auth, caller


def test_an_assertion_is_used_for_as_long_as_it_lives() -> None:
    world, auth, caller = enterprise()
    auth.expires_in = 100
    for _ in range(4):
        assert caller.call() == 200
        world.now += 80
    assert len(world.posts(f"{IDP}/token")) == 1
    world.now += 100
    assert caller.call() == 200
    assert len(world.posts(f"{IDP}/token")) == 2
    assert len(world.posts(TOKEN)) == 5
    assert len({each["assertion"] for each in world.posts(TOKEN)}) == 2


def test_an_assertion_that_is_taken_only_once_is_replaced() -> None:
    world, auth, caller = enterprise()
    assert caller.call() == 200
    auth.tokens.clear()
    auth.next = [answer({"error": "invalid_grant"}, 400)]
    assert caller.call() == 200
    assertions = [each["assertion"] for each in world.posts(TOKEN)]
    assert assertions[0] == assertions[1] != assertions[2]


@pytest.mark.parametrize("expires_in", [None, 0, "soon"])
def test_an_assertion_whose_end_is_not_known_is_used_once(expires_in: Any) -> None:
    world, auth, caller = enterprise(expires_in=expires_in)
    for _ in range(2):
        auth.tokens.clear()
        assert caller.call() == 200
    assert len(world.posts(f"{IDP}/token")) == 2


def test_a_login_and_a_logout_forget_the_assertion() -> None:
    world, _, caller = enterprise()
    assert caller.call() == 200
    world.run(caller.machine.log_in())
    assert len(world.posts(f"{IDP}/token")) == 2
    world.run(caller.machine.log_out())
    assert caller.call() == 200
    assert len(world.posts(f"{IDP}/token")) == 3


@pytest.mark.parametrize("dpop", [None, True])
def test_an_assertion_is_bound_to_the_key_of_the_tokens(dpop: bool | None) -> None:
    world, _, caller = enterprise(dpop=dpop, bind=_thumbprint, **PROOFS)
    assert caller.call() == 200
    proofs = [dict(each.headers)["dpop"] for each in world.fetches if each.method == "POST"]
    assert len(proofs) == 2
    assert claims_of(proofs[0])[0]["jwk"] == claims_of(proofs[1])[0]["jwk"]


@pytest.mark.parametrize(
    ("dpop", "bind", "error"),
    [
        (True, None, "not bound"),
        (None, lambda jwk: "another-key", "another key"),
        (None, lambda jwk: 7, "another key"),
        (None, lambda jwk: "", "another key"),
    ],
)
def test_an_assertion_that_is_bound_to_something_else_is_not_redeemed(
    dpop: bool | None, bind: Any, error: str
) -> None:
    world, _, caller = enterprise(dpop=dpop, bind=bind, **PROOFS)
    with pytest.raises(TokenRefused, match=error):
        caller.call()
    assert not world.posts(TOKEN)


def test_an_identity_provider_without_proofs_will_do_where_none_are_demanded() -> None:
    _, _, caller = enterprise(**PROOFS)
    assert caller.call() == 200


@pytest.mark.parametrize("grant", [AuthorizationCode(), MACHINE])
def test_what_the_program_adds_goes_to_the_token_endpoint_too(grant: Any) -> None:
    world, auth, _, caller = scene(OAuth(grant, extra_params={"audience": "https://api"}))
    auth.gives_refresh = True
    for _ in range(2):
        assert caller.call() == 200
        auth.tokens.clear()
    forms = world.posts(TOKEN)
    assert [each["audience"] for each in forms] == ["https://api"] * 2
    assert len({each["grant_type"] for each in forms}) == (2 if isinstance(grant, AuthorizationCode) else 1)


def test_the_proof_for_a_code_is_made_when_the_person_has_come_back() -> None:
    world, _, server, caller = scene(**PROOFS)
    server.document |= PROOFS

    def wait(effect: Effect) -> None:
        if isinstance(effect, LogIn):
            world.now += 250

    world.before = wait
    assert caller.call() == 200
    (sent,) = [each for each in world.fetches if each.url == TOKEN]
    assert claims_of(dict(sent.headers)["dpop"])[1]["iat"] == int(world.now)
