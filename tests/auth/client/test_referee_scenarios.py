"""The core of each scenario of the official conformance suite, without a socket."""

from __future__ import annotations

from typing import Any

import pytest
from joserfc.jwk import ECKey

from mcp_actors.auth import AuthorizationCode, ClientCredentials, EnterpriseManaged, OAuth, WorkloadIdentity
from mcp_actors.auth.client.authorization import Answered
from mcp_actors.auth.effects import Fetch, Fetched
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationFailed,
    LoginFailed,
    MetadataMismatch,
    TokenRefused,
)
from tests.auth.scripted import (
    ISSUER,
    SERVER,
    WELL_KNOWN_RESOURCE,
    WELL_KNOWN_SERVER,
    AuthServer,
    Caller,
    ProtectedServer,
    World,
    answer,
    claims_of,
    scene,
)

OPENID = "/.well-known/openid-configuration"
CIMD = "https://conformance-test.local/client-metadata.json"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def paths(world: World, method: str = "GET") -> list[str]:
    return [each.url for each in world.fetches if each.method == method]


def test_metadata_default() -> None:
    world, _, _, caller = scene()
    assert caller.call() == 200
    assert paths(world) == [f"https://rs.example{WELL_KNOWN_RESOURCE}/mcp", ISSUER + WELL_KNOWN_SERVER]
    (login,) = world.authorization_requests()
    (redeemed,) = world.posts(f"{ISSUER}/token")
    assert login["resource"] == redeemed["resource"] == SERVER
    assert login["code_challenge_method"] == "S256"
    assert redeemed["client_id"] == login["client_id"] == "as.example-client-1"
    assert "client_secret" not in redeemed
    assert all(
        dict(each.headers).get("mcp-protocol-version") for each in world.fetches if each.method == "GET"
    )


@pytest.mark.parametrize(
    ("issuer", "prefix", "places", "prm", "is_hinted", "resource", "asked"),
    [
        (ISSUER, "", [OPENID], f"{WELL_KNOWN_RESOURCE}/mcp", False, SERVER, 3),
        (
            f"{ISSUER}/tenant1",
            "/tenant1",
            [f"{WELL_KNOWN_SERVER}/tenant1"],
            WELL_KNOWN_RESOURCE,
            False,
            "https://rs.example",
            3,
        ),
        (
            f"{ISSUER}/tenant1",
            "/tenant1",
            [f"/tenant1{OPENID}"],
            "/custom/metadata/location.json",
            True,
            SERVER,
            4,
        ),
    ],
    ids=["var1", "var2", "var3"],
)
def test_metadata_variants(
    issuer: str, prefix: str, places: list[str], prm: str, is_hinted: bool, resource: str, asked: int
) -> None:
    world = World()
    auth = AuthServer(world, issuer, places=places, prefix=prefix)
    document = {"resource": resource, "authorization_servers": [issuer]}
    server = ProtectedServer(world, auth, document=document, places=[prm], is_hinted=is_hinted)
    assert Caller(world, OAuth(), server).call() == 200
    assert len(paths(world)) == asked
    assert ISSUER + WELL_KNOWN_SERVER not in paths(world) or not prefix
    (login,) = world.authorization_requests()
    assert login["resource"] == world.posts(f"{auth.base}/token")[0]["resource"] == resource


def test_basic_cimd() -> None:
    settings = OAuth(AuthorizationCode(client_metadata_url=CIMD))
    world, auth, _, caller = scene(settings, client_id_metadata_document_supported=True)
    assert caller.call() == 200
    assert world.authorization_requests()[0]["client_id"] == CIMD
    assert world.posts(f"{ISSUER}/token")[0]["client_id"] == CIMD
    assert not auth.clients
    assert CIMD not in paths(world)


def test_scope_from_www_authenticate() -> None:
    world, _, server, caller = scene()
    server.scope = "mcp:basic"
    server.document["scopes_supported"] = ["mcp:other"]
    assert caller.call() == 200
    assert world.authorization_requests()[0]["scope"] == "mcp:basic"


def test_scope_from_scopes_supported() -> None:
    world, _, server, caller = scene()
    server.document["scopes_supported"] = ["mcp:basic", "mcp:read", "mcp:write"]
    assert caller.call() == 200
    assert world.authorization_requests()[0]["scope"] == "mcp:basic mcp:read mcp:write"


def test_scope_omitted_when_undefined() -> None:
    world, _, _, caller = scene(scopes_supported=["offline_access", "mcp:all"])
    assert caller.call() == 200
    assert "scope" not in world.authorization_requests()[0]
    assert "scope" not in world.posts(f"{ISSUER}/register")[0]


def test_scope_step_up() -> None:
    world, _, server, caller = scene()
    server.scope = "mcp:basic"
    server.document["scopes_supported"] = ["mcp:profile"]
    server.needed["tools/call:t"] = "mcp:write"
    assert caller.call("tools/list") == 200
    assert caller.call("tools/call:t") == 200
    assert [each["scope"] for each in world.authorization_requests()] == ["mcp:basic", "mcp:basic mcp:write"]


@pytest.mark.parametrize("scopes", ["mcp:admin", "mcp:admin mcp:more"])
def test_scope_retry_limit(scopes: str) -> None:
    world, _, server, caller = scene()
    server.scope = "mcp:admin"
    forbidden = Answered(403, server.challenge(scope=scopes, error="insufficient_scope"))
    server.refuses = lambda operation: forbidden if server.tokens[-1] else None
    for operation in ("initialize", "tools/list", "tools/call:t", "initialize"):
        with pytest.raises(AuthorizationFailed):
            caller.call(operation)
    assert 1 <= len(world.logins) <= 3


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", "none"])
def test_token_endpoint_auth(method: str) -> None:
    world, auth, _, caller = scene(token_endpoint_auth_methods_supported=[method])
    assert caller.call() == 200
    (registered,) = world.posts(f"{ISSUER}/register")
    assert registered["token_endpoint_auth_method"] == method
    (redeemed,) = world.posts(f"{ISSUER}/token")
    (headers,) = [dict(each.headers) for each in world.fetches if each.url == f"{ISSUER}/token"]
    (client,) = auth.clients.values()
    assert ("authorization" in headers) is (method == "client_secret_basic")
    assert ("client_id" in redeemed) is (method != "client_secret_basic")
    assert redeemed.get("client_secret") == (
        client["client_secret"] if method == "client_secret_post" else None
    )


def test_pre_registration() -> None:
    grant = AuthorizationCode(client_id="pre-registered-client", client_secret="pre-secret", issuer=ISSUER)
    world, _, _, caller = scene(
        OAuth(grant),
        registration_endpoint=None,
        token_endpoint_auth_methods_supported=["client_secret_basic"],
    )
    assert caller.call() == 200
    assert world.authorization_requests()[0]["client_id"] == "pre-registered-client"
    assert not world.posts(f"{ISSUER}/register")


def test_resource_mismatch() -> None:
    world, _, server, caller = scene()
    server.document["resource"] = "https://evil.example.com/mcp"
    with pytest.raises(MetadataMismatch):
        caller.call()
    assert not world.logins
    assert len(world.fetches) == 1


def test_offline_access() -> None:
    world, _, server, caller = scene(scopes_supported=["mcp:basic", "offline_access"])
    server.scope = "mcp:basic"
    assert caller.call() == 200
    assert world.authorization_requests()[0]["scope"] == "mcp:basic offline_access"
    assert "refresh_token" in world.posts(f"{ISSUER}/register")[0]["grant_types"]
    assert world.posts(f"{ISSUER}/register")[0]["application_type"] == "native"


def test_offline_access_not_supported() -> None:
    world, _, server, caller = scene(scopes_supported=["mcp:basic", "mcp:read"])
    server.scope = "mcp:basic"
    assert caller.call() == 200
    assert world.authorization_requests()[0]["scope"] == "mcp:basic"


def test_authorization_server_migration() -> None:
    world, first, server, caller = scene()
    first.gives_refresh = True
    assert caller.call("initialize") == 200
    second = AuthServer(world, "https://as2.example")
    server.auth, server.document["authorization_servers"] = second, [second.issuer]
    assert caller.call("tools/list") == 200
    assert caller.call("tools/call:t") == 200
    assert [each["client_id"] for each in world.authorization_requests()] == [
        "as.example-client-1",
        "as2.example-client-1",
    ]
    sent = world.sent_to("https://as2.example")
    theirs = {*first.clients, *first.tokens, *first.refresh_tokens}
    theirs |= {each["client_secret"] for each in first.clients.values()}
    assert not [each for each in theirs if each in sent]
    assert len(world.posts(f"{ISSUER}/token")) == 1


@pytest.mark.parametrize(
    ("is_promised", "iss", "goes_on"),
    [
        (True, ISSUER, True),
        (False, None, True),
        (False, ISSUER, True),
        (True, None, False),
        (True, "https://evil.example.com", False),
        (False, "https://evil.example.com", False),
        (True, f"{ISSUER}/", False),
        (True, "https://AS.example", False),
        (True, "https://as.example:443", False),
        (True, "", False),
    ],
)
def test_iss(is_promised: bool, iss: str | None, goes_on: bool) -> None:
    world, auth, _, caller = scene(authorization_response_iss_parameter_supported=is_promised)
    auth.answer_iss = iss
    if goes_on:
        assert caller.call() == 200
        return
    with pytest.raises(LoginFailed):
        caller.call()
    assert len(world.logins) == 1
    assert not world.posts(f"{ISSUER}/token")


def test_metadata_issuer_mismatch() -> None:
    world, _, _, caller = scene()
    auth_metadata = {
        "issuer": "https://attacker.example.com",
        "token_endpoint": f"{ISSUER}/mismatched-as/token",
        "authorization_endpoint": f"{ISSUER}/mismatched-as/authorize",
    }
    world.handlers[ISSUER] = lambda fetch: answer(auth_metadata)
    with pytest.raises(MetadataMismatch):
        caller.call()
    assert paths(world)[1:] == [ISSUER + WELL_KNOWN_SERVER]
    assert not world.logins
    assert not paths(world, "POST")


def private_key() -> str:
    return ECKey.generate_key("P-256").as_pem(private=True).decode()


def test_client_credentials_jwt() -> None:
    grant = ClientCredentials(client_id="conformance-test-client", private_key=private_key())
    world, _, _, caller = scene(OAuth(grant), token_endpoint_auth_methods_supported=["private_key_jwt"])
    assert caller.call() == 200
    (form,) = world.posts(f"{ISSUER}/token")
    header, claims = claims_of(form["client_assertion"])
    assert form["grant_type"] == "client_credentials"
    assert form["client_assertion_type"].endswith(":jwt-bearer")
    assert (header["alg"], claims["iss"], claims["sub"], claims["aud"]) == (
        "ES256",
        "conformance-test-client",
        "conformance-test-client",
        ISSUER,
    )
    assert form["resource"] == SERVER
    assert "client_id" not in form
    assert not world.logins


def test_client_credentials_basic() -> None:
    grant = ClientCredentials(client_id="a:b", client_secret="c d/e")
    world, _, _, caller = scene(OAuth(grant), token_endpoint_auth_methods_supported=["client_secret_basic"])
    assert caller.call() == 200
    (token,) = [each for each in world.fetches if each.method == "POST"]
    assert dict(token.headers)["authorization"] == "Basic YSUzQWI6YytkJTJGZQ=="
    assert "client_id" not in world.posts(f"{ISSUER}/token")[0]


def test_enterprise_managed_authorization() -> None:
    exchanged: list[dict[str, str]] = []
    grant = EnterpriseManaged(
        id_token=lambda: "SECRET-id-token",
        idp_issuer="https://idp.example",
        idp_token_endpoint="https://idp.example/token",
        idp_client_id="idp-client",
        client_id="xaa-client",
        client_secret="xaa-secret",
    )
    world, _, _, caller = scene(OAuth(grant), token_endpoint_auth_methods_supported=["client_secret_basic"])

    def idp(fetch: Fetch) -> Fetched:
        exchanged.extend(world.posts(fetch.url)[-1:])
        issued = "urn:ietf:params:oauth:token-type:id-jag"
        return answer({"access_token": "SECRET-id-jag", "token_type": "N_A", "issued_token_type": issued})

    world.handlers["https://idp.example"] = idp
    assert caller.call() == 200
    assert exchanged == [
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": ISSUER,
            "resource": SERVER,
            "subject_token": "SECRET-id-token",
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": "idp-client",
        }
    ]
    (form,) = world.posts(f"{ISSUER}/token")
    assert form == {"grant_type": JWT_BEARER, "assertion": "SECRET-id-jag", "resource": SERVER}
    (token,) = [each for each in world.fetches if each.url == f"{ISSUER}/token"]
    assert dict(token.headers)["authorization"].startswith("Basic ")


def test_dpop() -> None:
    world, _, server, caller = scene(dpop_signing_alg_values_supported=["ES256", "none", "HS256"])
    server.scheme = "DPoP"
    assert caller.call() == 200
    assert caller.call("tools/call:t") == 200
    assert len({each["jti"] for each in server.proofs}) == len(server.proofs) == 2
    assert [(each["htm"], each["htu"]) for each in server.proofs] == [("POST", SERVER)] * 2
    assert world.authorization_requests()[0]["dpop_jkt"]


def test_dpop_nonce() -> None:
    world, auth, server, caller = scene(dpop_signing_alg_values_supported=["ES256"])
    server.scheme, server.nonce, auth.nonce = "DPoP", "rs-nonce", "as-nonce"
    assert caller.call() == 200
    assert caller.call() == 200
    assert len(world.logins) == 1
    assert len(world.posts(f"{ISSUER}/token")) == 2
    assert [each.get("nonce") for each in server.proofs] == [None, "rs-nonce", "rs-nonce"]
    assert "rs-nonce" not in world.sent_to(ISSUER)


def test_wif_jwt_bearer() -> None:
    audiences: list[str] = []

    def assertion(audience: str) -> str:
        audiences.append(audience)
        return "SECRET-workload-jwt"

    world, _, _, caller = scene(
        OAuth(WorkloadIdentity(assertion=assertion)), grant_types_supported=[JWT_BEARER]
    )
    assert caller.call() == 200
    assert audiences == [ISSUER]
    assert world.posts(f"{ISSUER}/token") == [
        {"grant_type": JWT_BEARER, "assertion": "SECRET-workload-jwt", "resource": SERVER}
    ]
    assert not world.posts(f"{ISSUER}/register")


def test_wif_is_not_tried_again() -> None:
    grant = WorkloadIdentity(assertion=lambda audience: "SECRET-workload-jwt")
    world, auth, _, caller = scene(OAuth(grant), grant_types_supported=[JWT_BEARER])
    auth.next = [answer({"error": "invalid_grant"}, 400)] * 2
    with pytest.raises(TokenRefused):
        caller.call()
    assert len(paths(world, "POST")) == 1


@pytest.mark.parametrize("has_metadata", [True, False])
def test_2025_03_26(has_metadata: bool) -> None:
    world = World()
    auth = AuthServer(
        world,
        "https://rs.example",
        prefix="/oauth" if has_metadata else "",
        places=[WELL_KNOWN_SERVER] * has_metadata,
    )
    server = ProtectedServer(world, auth, places=[])
    assert Caller(world, OAuth(), server).call() == 200
    assert world.authorization_requests()[0]["resource"] == SERVER
    assert paths(world) == [
        f"https://rs.example{WELL_KNOWN_RESOURCE}/mcp",
        f"https://rs.example{WELL_KNOWN_RESOURCE}",
        f"https://rs.example{WELL_KNOWN_SERVER}",
    ]


def test_an_answer_of_the_server_that_is_no_refusal_is_the_callers() -> None:
    _, _, server, caller = scene()
    every: list[Any] = [
        Answered(403, ['Bearer error="invalid_token"']),
        Answered(400, ['Bearer error="insufficient_scope"']),
        Answered(500),
        Answered(410),
    ]
    for each in every:
        server.refuses = lambda operation, each=each: each
        assert caller.call() == each.status
    server.refuses = lambda operation: Answered(401)
    with pytest.raises(AuthorizationError):
        caller.call()
