"""JWTs: which are served, and that every other one is refused in the same words."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import OKPKey
from structlog.testing import capture_logs

from mcp_actors.auth import Denial, JwtVerifier, Principal

from .authority import (
    EC_KEY,
    FOREIGN_KEY,
    ISSUER,
    JWKS,
    METADATA,
    NEW_KEY,
    RESOURCE,
    RSA_KEY,
    START,
    Authority,
    Listener,
    Request,
    bearer,
    token,
    unsigned,
)

INVALID = (
    'Bearer error="invalid_token", error_description="The access token is not valid for this server.", '
    'resource_metadata="https://h.example/.well-known/oauth-protected-resource/mcp"'
)
OTHER = "https://other.example"
GOOD_CLAIMS = {"iss": ISSUER, "aud": RESOURCE, "sub": "a", "exp": START + 60}


async def test_a_good_token_is_its_issuer_client_and_subject() -> None:
    found = await Listener().ask(bearer(token({"scope": "read write", "extra": 1})))
    assert found == Principal("alice", ISSUER, "c1")
    assert isinstance(found, Principal)
    assert found.scopes == {"read", "write"}
    assert found.claims["extra"] == 1
    assert found.expires_at == START + 600


@pytest.mark.parametrize(
    ("claims", "header", "key"),
    [
        ({}, {"typ": "application/at+jwt"}, EC_KEY),
        ({}, {"typ": "AT+JWT"}, EC_KEY),
        ({}, {"kid": None}, EC_KEY),
        ({}, {"alg": "RS256", "kid": "rsa1"}, RSA_KEY),
        ({}, {"alg": "PS256", "kid": "rsa1"}, RSA_KEY),
        ({}, {"alg": "PS256", "kid": None}, RSA_KEY),
        ({"aud": [OTHER, RESOURCE]}, {}, EC_KEY),
        ({"exp": START - 29}, {}, EC_KEY),
        ({"nbf": START + 29}, {}, EC_KEY),
        ({"iat": START + 29}, {}, EC_KEY),
        ({"exp": START + 0.5, "iat": None, "scope": None}, {}, EC_KEY),
        ({}, {"jku": "https://evil.example", "x5u": "https://evil.example"}, EC_KEY),
    ],
)
async def test_a_token_may_be_made_in_several_ways(claims: Any, header: Any, key: Any) -> None:
    assert await Listener().status(bearer(token(claims, header, key))) == 200


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": None, "scp": ["a", "b", 1]}, {"a", "b"}),
        ({"scope": None, "scp": "a b"}, {"a", "b"}),
        ({"scope": ["a"]}, {"a"}),
        ({"scope": None}, set()),
        ({"scope": {"a": 1}}, set()),
        ({"scope": " a  b "}, {"a", "b"}),
    ],
)
async def test_scopes_are_read_from_either_claim(claims: Any, scopes: set[str]) -> None:
    found = await Listener().ask(bearer(token(claims)))
    assert isinstance(found, Principal)
    assert found.scopes == scopes


def by_the_public_key_as_a_secret() -> str:
    secret = RSA_KEY.as_pem(private=False)
    head, body, _ = unsigned(GOOD_CLAIMS, {"alg": "HS256", "typ": "at+jwt", "kid": "rsa1"}).split(".")
    tag = hmac.digest(secret, f"{head}.{body}".encode(), hashlib.sha256)
    return f"{head}.{body}.{base64.urlsafe_b64encode(tag).decode().rstrip('=')}"


def with_another_payload() -> str:
    head, _, tag = token().split(".")
    return f"{head}.{unsigned(GOOD_CLAIMS, {}).split('.')[1]}.{tag}"


def with_claims(encoded: bytes) -> str:
    head, _, tag = token().split(".")
    return f"{head}.{base64.urlsafe_b64encode(encoded).decode().rstrip('=')}.{tag}"


BAD = {
    "alg none": unsigned(GOOD_CLAIMS, {"alg": "none", "typ": "at+jwt"}),
    "alg none, no signature": unsigned(GOOD_CLAIMS, {"alg": "none", "typ": "at+jwt"}, b""),
    "alg None": unsigned(GOOD_CLAIMS, {"alg": "None", "typ": "at+jwt"}),
    "HS256 with the public key": by_the_public_key_as_a_secret(),
    "alg switched": token(header={"alg": "RS256", "kid": "ec1"}, key=RSA_KEY),
    "alg is no text": unsigned(GOOD_CLAIMS, {"alg": ["ES256"], "typ": "at+jwt"}),
    "alg missing": unsigned(GOOD_CLAIMS, {"typ": "at+jwt"}),
    "alg not configured": token(header={"alg": "RS512", "kid": "rsa1"}, key=RSA_KEY),
    "signature of another token": with_another_payload(),
    "no signature": token().rpartition(".")[0] + ".",
    "cut": token()[:-4],
    "key of another issuer": token(key=FOREIGN_KEY),
    "own key in the header": token(header={"jwk": FOREIGN_KEY.as_dict(private=False)}, key=FOREIGN_KEY),
    "own key at a URL": token(header={"jku": "https://evil.example/k", "kid": "evil"}, key=FOREIGN_KEY),
    "own certificate": token(header={"x5u": "https://evil.example/c", "x5c": ["AAAA"]}, key=FOREIGN_KEY),
    "crit": token(header={"crit": ["exp"], "exp": 1}),
    "crit b64": token(header={"crit": ["b64"], "b64": True}),
    "unknown kid": token(header={"kid": "nobody"}),
    "kid is no text": token(header={"kid": 1}),
    "kid is a list": token(header={"kid": ["ec1"]}),
    "typ JWT": token(header={"typ": "JWT"}),
    "typ missing": token(header={"typ": None}),
    "typ is no text": token(header={"typ": ["at+jwt"]}),
    "typ of a proof": token(header={"typ": "dpop+jwt"}),
    "iss other": token({"iss": OTHER}),
    "iss with a slash": token({"iss": ISSUER + "/"}),
    "iss in capitals": token({"iss": ISSUER.replace("as", "AS")}),
    "iss missing": token({"iss": None}),
    "iss is a list": token({"iss": [ISSUER]}),
    "aud other": token({"aud": OTHER}),
    "aud missing": token({"aud": None}),
    "aud list without us": token({"aud": [OTHER, ISSUER]}),
    "aud longer": token({"aud": RESOURCE + "2"}),
    "aud shorter": token({"aud": RESOURCE[:-1]}),
    "aud is the origin": token({"aud": "https://h.example"}),
    "aud with a slash": token({"aud": RESOURCE + "/"}),
    "aud in capitals": token({"aud": RESOURCE.upper()}),
    "aud is an object": token({"aud": {RESOURCE: 1}}),
    "aud is empty": token({"aud": []}),
    "exp missing": token({"exp": None}),
    "exp passed": token({"exp": START - 30}),
    "exp is a text": token({"exp": str(START + 60)}),
    "exp is true": token({"exp": True}),
    "exp is huge": unsigned(GOOD_CLAIMS | {"exp": 10**400}, {"alg": "ES256", "typ": "at+jwt"}),
    "exp has more digits than Python reads": with_claims(b'{"exp":' + b"9" * 5000 + b"}"),
    "exp has no end": with_claims(
        json.dumps(GOOD_CLAIMS).encode().replace(b'"exp": 18', b'"exp": ' + b"9" * 400)
    ),
    "exp of ages": token({"exp": 1e300}),
    "nbf ahead": token({"nbf": START + 31}),
    "nbf is a text": token({"nbf": "soon"}),
    "iat ahead": token({"iat": START + 31}),
    "sub missing": token({"sub": None}),
    "sub is a number": token({"sub": 7}),
    "sub is empty": token({"sub": ""}),
    "sub with a line feed": token({"sub": "c1\nbob"}),
    "client with a line feed": token({"client_id": "c1\nbob"}),
    "sub is long": token({"sub": "s" * 1025}),
    "bound to a key": token({"cnf": {"jkt": "x"}}),
    "bound to a certificate": token({"cnf": {"x5t#S256": "x"}}),
    "bound to nothing known": token({"cnf": "x"}),
    "a proof": token(header={"typ": "dpop+jwt"}),
    "garbage": "abc",
    "garbage in three parts": "a.b.c",
    "deep header": f"{base64.urlsafe_b64encode(b'[' * 3000).decode()}.e30.AAAA",
    "deep claims": with_claims(b"[" * 9000),
    "deep members": with_claims(b'{"a":' * 2000),
    "header too long": token(header={"x": "y" * 4000}),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_refused_without_a_word_about_the_reason(name: str) -> None:
    listener = Listener()
    assert await listener.refuses(bearer(BAD[name])) == INVALID
    assert listener.authority.count(JWKS) <= 1
    assert "evil" not in str(listener.authority.fetched)
    assert await listener.status(bearer(token())) == 200


@pytest.mark.parametrize("claim", ["at_hash", "c_hash"])
async def test_an_id_token_is_no_access_token_even_where_its_type_is_accepted(claim: str) -> None:
    listener = Listener(verifier=JwtVerifier(types=("at+jwt", "JWT")))
    for kind in ("JWT", None, "jwt", "application/jwt"):
        assert await listener.status(bearer(token({"aud": "c1"}, {"typ": kind}))) == 401
        assert await listener.status(bearer(token({claim: "x"}, {"typ": kind}))) == 401
        assert await listener.status(bearer(token({}, {"typ": kind}))) == 200


async def test_a_key_of_one_issuer_is_never_tried_for_another() -> None:
    listener = Listener(issuer=[ISSUER, "https://as2.example"])
    listener.authority.bodies["https://as2.example/.well-known/oauth-authorization-server"] = json.dumps(
        {"issuer": "https://as2.example", "jwks_uri": "https://as2.example/keys"}
    ).encode()
    listener.authority.bodies["https://as2.example/keys"] = json.dumps(
        {"keys": [NEW_KEY.as_dict(private=False)]}
    ).encode()
    second = {"iss": "https://as2.example"}
    assert await listener.status(bearer(token())) == 200
    assert await listener.status(bearer(token(second, {"kid": "ec2"}, NEW_KEY))) == 200
    assert await listener.status(bearer(token(second))) == 401
    assert await listener.status(bearer(token({}, {"kid": "ec2"}, NEW_KEY))) == 401


async def test_another_audience_can_be_configured() -> None:
    listener = Listener(audiences=["urn:mine"])
    assert await listener.status(bearer(token({"aud": "urn:mine"}))) == 200
    assert await listener.status(bearer(token())) == 200
    assert await listener.status(bearer(token({"aud": "urn:other"}))) == 401


@pytest.mark.parametrize("name", ["Ed25519", "EdDSA"])
async def test_a_curve_has_an_old_and_a_new_name(name: str) -> None:
    key = OKPKey.generate_key("Ed25519", {"kid": "ed", "alg": "EdDSA"})
    listener = Listener(verifier=JwtVerifier(algorithms=["Ed25519", "EdDSA"]))
    listener.authority.keys = [key]
    plain = OKPKey.import_key({n: v for n, v in key.as_dict(private=True).items() if n != "alg"})
    assert await listener.status(bearer(token({}, {"alg": name, "kid": "ed"}, plain))) == 200


async def test_a_flood_of_unknown_keys_leads_to_one_fetch_in_each_interval() -> None:
    listener = Listener()
    assert await listener.status(bearer(token())) == 200
    for number in range(300):
        listener.clock.time = START + number / 5
        assert await listener.status(bearer(token({}, {"kid": f"k{number}"}))) == 401
    assert listener.authority.count(JWKS) == 2
    assert listener.authority.count(METADATA) == 1


async def test_a_flood_at_one_time_waits_for_one_fetch(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener()
    listener.authority.seconds = 5.0
    statuses: list[int] = []

    async def ask(text: str) -> None:
        statuses.append(await listener.status(bearer(text)))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, token({"jti": str(number)}))
    assert statuses == [200] * 100
    assert (listener.authority.count(METADATA), listener.authority.count(JWKS)) == (1, 1)
    assert trio.current_time() <= 20


async def test_a_new_key_is_found_and_the_old_one_is_gone_with_the_set() -> None:
    listener = Listener(verifier=JwtVerifier(remembered_for=0.0))
    old, new = token(), token({}, {"kid": "ec2"}, NEW_KEY)
    assert await listener.status(bearer(old)) == 200
    listener.authority.keys = [NEW_KEY]
    assert await listener.status(bearer(new)) == 401
    listener.clock.time += 30
    assert await listener.status(bearer(new)) == 200
    assert await listener.status(bearer(old)) == 401
    assert listener.authority.count(JWKS) == 2


async def test_a_withdrawn_key_is_forgotten_although_no_token_names_another() -> None:
    listener = Listener(verifier=JwtVerifier(remembered_for=0.0))
    good = token({"exp": START + 10_000})
    assert await listener.status(bearer(good)) == 200
    listener.authority.keys = [NEW_KEY]
    listener.clock.time += 599
    assert await listener.status(bearer(good)) == 200
    listener.clock.time += 1
    assert await listener.status(bearer(good)) == 401


async def test_the_known_keys_are_used_while_no_others_can_be_fetched() -> None:
    listener = Listener(verifier=JwtVerifier(remembered_for=0.0))
    good = token({"exp": START + 10_000})
    assert await listener.status(bearer(good)) == 200
    listener.authority.down = True
    listener.clock.time += 3600
    assert await listener.status(bearer(good)) == 200
    assert await listener.status(bearer(token({"exp": START + 10_000}, {"kid": "ec2"}, NEW_KEY))) == 503
    listener.authority.down = False
    listener.authority.keys = [EC_KEY, NEW_KEY]
    listener.clock.time += 5
    assert await listener.status(bearer(token({"exp": START + 10_000}, {"kid": "ec2"}, NEW_KEY))) == 200


def spoil_metadata(authority: Authority, body: bytes) -> None:
    authority.bodies[METADATA] = body


@pytest.mark.parametrize(
    "spoil",
    [
        lambda authority: setattr(authority, "down", True),
        lambda authority: authority.bodies.update({JWKS: b"not json"}),
        lambda authority: authority.bodies.update({JWKS: b"{}"}),
        lambda authority: authority.bodies.update({JWKS: b'{"keys": {}}'}),
        lambda authority: authority.bodies.update({JWKS: b"[" * 100_000}),
        lambda authority: authority.metadata.update(issuer=ISSUER + "/"),
        lambda authority: authority.metadata.update(jwks_uri=None),
        lambda authority: authority.metadata.update(jwks_uri="http://as.example/jwks"),
        lambda authority: authority.metadata.update(jwks_uri="file:///etc/passwd"),
        lambda authority: spoil_metadata(authority, b'{"a":' * 50_000),
        lambda authority: spoil_metadata(authority, b"[]"),
    ],
)
async def test_without_keys_the_answer_is_503_and_no_challenge(spoil: Any) -> None:
    listener = Listener()
    spoil(listener.authority)
    found = await listener.ask(bearer(token()))
    assert isinstance(found, Denial)
    assert found.status == 503
    headers = dict(found.headers)
    assert int(headers["Retry-After"]) in range(1, 31)
    assert "WWW-Authenticate" not in headers
    fetches = len(listener.authority.fetched)
    for number in range(50):
        assert await listener.status(bearer(token({"jti": str(number)}))) == 503
    assert len(listener.authority.fetched) == fetches
    listener.clock.time += 31
    listener.authority.down = False
    assert await listener.status(bearer(token())) in (200, 503)
    assert len(listener.authority.fetched) > fetches


async def test_keys_that_nobody_can_use_are_passed_over() -> None:
    listener = Listener()
    listener.authority.keys = [
        {},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "ec1"},
        EC_KEY.as_dict(private=True),
        {**EC_KEY.as_dict(private=False), "use": "enc"},
        {**EC_KEY.as_dict(private=False), "use": 7},
        {"kty": "XX", "kid": "ec1"},
        EC_KEY,
    ]
    assert await listener.status(bearer(token())) == 200


async def test_a_verified_token_is_remembered_for_a_while_and_never_longer_than_it_lives() -> None:
    listener = Listener()
    listener.authority.keys = [EC_KEY]
    long, short = bearer(token()), bearer(token({"exp": START + 20}))
    assert await listener.status(long) == await listener.status(short) == 200
    assert isinstance(listener.guard.known(long), Principal)
    listener.clock.time = START + 20
    assert listener.guard.known(short) is None
    assert isinstance(listener.guard.known(long), Principal)
    listener.clock.time = START + 60
    assert listener.guard.known(long) is None


async def test_what_is_remembered_is_bounded_and_holds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors.auth.server.guard.MAX_TOKENS", 3)
    listener = Listener()
    requests = [bearer(token({"jti": str(number)})) for number in range(5)]
    for request in requests:
        assert await listener.status(request) == 200
    kept = [listener.guard.known(request) is not None for request in requests]
    assert kept == [False, False, True, True, True]
    state = str([vars(listener.guard), vars(listener.settings.verifier)])
    assert not any(request.headers["authorization"].split(".")[2] in state for request in requests)


async def test_what_is_remembered_is_bounded_by_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors.auth.server.guard.MAX_CLAIM_CHARACTERS", 10_000)
    listener = Listener()
    requests = [bearer(token({"jti": str(number), "photo": "x" * 4_000})) for number in range(4)]
    for request in [*requests, requests[-1]]:
        assert await listener.status(request) == 200
    kept = [listener.guard.known(request) is not None for request in requests]
    assert kept == [False, False, True, True]


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_any_authorization_field_has_an_answer(field: str) -> None:
    listener = Listener()

    async def ask() -> int:
        return await listener.status(Request(authorization=field))

    assert trio.run(ask) in (400, 401)
    assert trio.run(lambda: listener.status(Request(authorization=f"Bearer {field}"))) in (400, 401)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CLAIMS = st.dictionaries(
    st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "scope", "client_id", "cnf"]), VALUES
)
HEADERS = st.dictionaries(st.sampled_from(["alg", "typ", "kid", "crit", "jwk", "jku", "b64"]), VALUES)


@given(CLAIMS, HEADERS)
def test_any_header_and_claims_without_a_signature_are_refused(
    claims: dict[str, Any], header: dict[str, Any]
) -> None:
    listener = Listener()
    text = unsigned(GOOD_CLAIMS | claims, {"alg": "ES256", "typ": "at+jwt", "kid": "ec1"} | header)
    assert trio.run(listener.status, bearer(text)) == 401


@given(CLAIMS)
def test_any_signed_claims_have_an_answer(claims: dict[str, Any]) -> None:
    listener = Listener()
    text = token(claims)
    found = trio.run(listener.ask, bearer(text))
    assert isinstance(found, Principal) or found.status == 401


async def test_the_log_has_the_reason_and_nothing_of_the_token() -> None:
    reasons = set()
    for text in BAD.values():
        with capture_logs() as lines:
            await Listener().ask(bearer(text))
        (line,) = [each for each in lines if each["event"] == "authorization refused"]
        assert set(line) == {"event", "log_level", "resource", "what", "reason"}
        assert line["log_level"] == "debug"
        reasons.add(line["reason"])
    assert reasons == {
        "another algorithm",
        "another audience",
        "another issuer",
        "another typ",
        "bad signature",
        "bound to a key, and sent without a proof",
        "bound in an unknown way",
        "expired",
        "malformed kid",
        "malformed names",
        "malformed times",
        "no expiry",
        "no signed JWT",
        "no subject",
        "not valid yet",
        "unknown key",
    }


async def test_a_function_of_the_program_cannot_change_the_claims_of_the_next_request() -> None:
    listener = Listener()
    found = await listener.ask(bearer(token()))
    assert isinstance(found, Principal)
    with pytest.raises(TypeError):
        found.claims["sub"] = "root"  # type: ignore[index]
