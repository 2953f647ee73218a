"""What a login and a token endpoint answer: checked in order, no type trusted, nothing unproven shown."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_actors.auth import AuthorizationCode, ClientCredentials, EnterpriseManaged, OAuth
from mcp_actors.auth.client.person_grant import CodeRequest, code_challenge, new_secret
from mcp_actors.auth.client.registration import RegisteredClient
from mcp_actors.auth.client.token_endpoint import MAX_LIFETIME, TokenAnswer, authenticate, read_token_answer
from mcp_actors.auth.effects import Effect, Fetch, Fetched, LogIn, RedirectAnswer
from mcp_actors.auth.metadata import AuthorizationServer
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationFailed,
    AuthorizationUnavailable,
    LoginFailed,
    TokenRefused,
)
from tests.auth.scripted import ISSUER, REDIRECT, SERVER, AuthServer, Caller, World, answer, claims_of, scene

HOSTILE = "HOSTILE-TEXT"


def request(*, promises_iss: bool = True) -> CodeRequest:
    server = AuthorizationServer(
        issuer=ISSUER,
        token_endpoint=f"{ISSUER}/token",
        authorization_endpoint=f"{ISSUER}/authorize?kept=1",
        code_challenge_methods_supported=("S256",),
        authorization_response_iss_parameter_supported=promises_iss,
    )
    return CodeRequest(
        server=server,
        client=RegisteredClient(client_id="c"),
        redirect_uri=REDIRECT,
        resource=SERVER,
        scopes=("a", "b"),
        state="the state",
        verifier="the verifier",
    )


def test_the_url_of_a_login() -> None:
    url = request().url({"audience": "x"}, "the thumbprint")
    assert url.startswith(f"{ISSUER}/authorize?kept=1&")
    assert dict(parse_qsl(urlsplit(url).query)) == {
        "kept": "1",
        "audience": "x",
        "response_type": "code",
        "client_id": "c",
        "redirect_uri": REDIRECT,
        "code_challenge": code_challenge("the verifier"),
        "code_challenge_method": "S256",
        "state": "the state",
        "resource": SERVER,
        "scope": "a b",
        "dpop_jkt": "the thumbprint",
    }


def test_a_challenge_is_that_of_the_rfc() -> None:
    # RFC 7636 appendix B.
    assert (
        code_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
        == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    )
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) >= 43


STATE, ISS, CODE = ("state", "the state"), ("iss", ISSUER), ("code", "the code")


@pytest.mark.parametrize(
    "states",
    [
        [],
        [("state", "")],
        [("state", "the state ")],
        [STATE, STATE],
        [STATE, ("state", "x")],
        [("state", "ß")],
        [("state", "\udc80")],
    ],
)
def test_an_answer_with_another_state_belongs_to_nobody(states: list[tuple[str, str]]) -> None:
    assert not request().accepts([*states, ISS, CODE])
    with pytest.raises(LoginFailed):
        request().code_of([*states, ISS, CODE])


def test_a_listener_goes_on_waiting_and_a_used_state_is_good_for_nothing() -> None:
    world, auth, _, caller = scene()
    attempts: list[LogIn] = []
    person = world.person

    def stray(effect: LogIn) -> RedirectAnswer:
        attempts.append(effect)
        assert not effect.accepts([("state", "x"), CODE])
        assert not effect.accepts([CODE])
        found = person(effect)
        assert effect.accepts(found)
        assert not any(other.accepts(found) for other in attempts[:-1])
        return found

    world.person = stray
    assert caller.call() == 200
    auth.tokens.clear()
    assert caller.call() == 200
    assert len(attempts) == 2


@pytest.mark.parametrize("promises_iss", [True, False])
@pytest.mark.parametrize(
    "issuers",
    [
        [("iss", "https://evil.example")],
        [("iss", f"{ISSUER}/")],
        [("iss", "https://AS.example")],
        [("iss", "https%3A%2F%2Fas.example")],
        [("iss", "")],
        [ISS, ISS],
        [ISS, ("iss", "https://evil.example")],
    ],
)
def test_an_answer_of_another_issuer_is_not_used_and_not_shown(
    issuers: list[tuple[str, str]], promises_iss: bool
) -> None:
    for rest in ([CODE], [("error", HOSTILE), ("error_description", HOSTILE)]):
        with pytest.raises(LoginFailed) as refused:
            request(promises_iss=promises_iss).code_of([STATE, *issuers, *rest])
        assert HOSTILE not in str(refused.value)


def test_an_issuer_may_be_missing_where_it_was_not_promised() -> None:
    assert request(promises_iss=False).code_of([STATE, CODE]) == "the code"
    assert request().code_of([STATE, ISS, CODE]) == "the code"
    with pytest.raises(LoginFailed, match="promises") as refused:
        request().code_of([STATE, ("error", HOSTILE)])
    assert HOSTILE not in str(refused.value)


def test_an_error_of_the_issuer_is_shown_without_control_characters() -> None:
    with pytest.raises(LoginFailed, match="access_denied") as refused:
        request().code_of(
            [STATE, ISS, ("error", "access_denied"), ("error_description", "no\x1b[31m\r\nno" * 200)]
        )
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "rest", [[], [CODE, CODE], [("code", "")], [("code", "x" * 20_000)], [("error", "x")] * 2]
)
def test_an_answer_without_one_code(rest: list[tuple[str, str]]) -> None:
    with pytest.raises(LoginFailed):
        request().code_of([STATE, ISS, *rest])


@given(
    st.lists(st.tuples(st.sampled_from(["state", "iss", "code", "error", "x"]), st.text() | st.just(ISSUER)))
)
@example([STATE, ISS, ("error", "\ud800")])
def test_no_answer_of_a_login_is_too_odd(found: list[tuple[str, str]]) -> None:
    raised = ""
    try:
        request().code_of([*found, STATE])
    except LoginFailed as error:
        raised = str(error)
    assert raised.isprintable()


# -- the token endpoint ------------------------------------------------------------------------------------------------


def token(**members: Any) -> Fetched:
    return answer({"access_token": "a", "token_type": "Bearer", **members})


def form(status: int = 200, kind: str = "application/x-www-form-urlencoded", **fields: str) -> Fetched:
    return Fetched(status, [("content-type", kind)], urlencode(fields).encode())


@pytest.mark.parametrize(
    ("fetched", "found"),
    [
        (
            answer({"access_token": "a", "token_type": "bEARER"}),
            TokenAnswer(access_token="a", token_type="bearer"),
        ),
        (
            answer(
                {
                    "access_token": "a",
                    "token_type": "Bearer",
                    "expires_in": "60",
                    "refresh_token": "r",
                    "scope": "x y",
                }
            ),
            TokenAnswer(
                access_token="a", token_type="bearer", expires_in=60, refresh_token="r", scope=("x", "y")
            ),
        ),
        (
            answer(
                {
                    "access_token": "a",
                    "token_type": "Bearer",
                    "expires_in": True,
                    "refresh_token": 7,
                    "scope": ["x"],
                }
            ),
            TokenAnswer(access_token="a", token_type="bearer"),
        ),
        (
            answer(
                {
                    "access_token": "a",
                    "token_type": "Bearer",
                    "expires_in": -5,
                    "refresh_token": "a b",
                    "scope": "",
                }
            ),
            TokenAnswer(access_token="a", token_type="bearer", expires_in=0),
        ),
        (
            token(expires_in=10**30),
            TokenAnswer(access_token="a", token_type="bearer", expires_in=MAX_LIFETIME),
        ),
        (
            token(expires_in="soon"),
            TokenAnswer(access_token="a", token_type="bearer"),
        ),
        (
            form(access_token="a", token_type="bearer", expires_in="60"),
            TokenAnswer(access_token="a", token_type="bearer", expires_in=60),
        ),
        (
            form(
                kind="application/x-www-form-urlencoded; charset=utf-8", access_token="a", token_type="bearer"
            ),
            TokenAnswer(access_token="a", token_type="bearer"),
        ),
    ],
)
def test_tokens_are_read(fetched: Fetched, found: TokenAnswer) -> None:
    assert read_token_answer(fetched, ISSUER) == found


@pytest.mark.parametrize(
    ("fetched", "error"),
    [
        (answer({"error": "invalid_grant"}, 400), "invalid_grant"),
        (answer({"error": "invalid_client"}, 401), "invalid_client"),
        (
            answer({"error": "bad_verification_code", "access_token": "a", "token_type": "bearer"}),
            "bad_verification_code",
        ),
        (form(error="bad_verification_code"), "bad_verification_code"),
        (answer({"error": 7}, 400), "invalid_response"),
        (answer({"error": "x\x9b2J\nfake line"}, 400), "invalid_response"),
        (answer({"error": "x" * 101}, 400), "invalid_response"),
        (answer({}, 400), "invalid_response"),
        (answer({"access_token": "a", "token_type": "Bearer"}, 302), "invalid_response"),
        (answer({"access_token": "a", "token_type": "Bearer"}, 201), "invalid_response"),
        (answer({"access_token": "a"}), "invalid_response"),
        (answer({"access_token": "a", "token_type": "mac"}), "invalid_response"),
        (answer({"access_token": "a", "token_type": "DPoP"}), "invalid_response"),
        (answer({"access_token": "a", "token_type": "N_A"}), "invalid_response"),
        (answer({"access_token": 7, "token_type": "Bearer"}), "invalid_response"),
        (answer({"access_token": "", "token_type": "Bearer"}), "invalid_response"),
        (answer({"access_token": "a\r\nSet-Cookie: x", "token_type": "Bearer"}), "invalid_response"),
        (answer({"access_token": "ä", "token_type": "Bearer"}), "invalid_response"),
        (answer({"access_token": "a" * 40_000, "token_type": "Bearer"}), "invalid_response"),
        (answer([]), "invalid_response"),
        (Fetched(200, [], b"<html>"), "invalid_response"),
        (Fetched(200, [], b"[" * 200_000), "invalid_response"),
    ],
)
def test_what_is_no_token_is_refused(fetched: Fetched, error: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        read_token_answer(fetched, ISSUER)
    assert refused.value.error == error


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_an_outage_is_no_refusal(status: int) -> None:
    with pytest.raises(AuthorizationUnavailable):
        read_token_answer(answer({"error": "invalid_grant"}, status), ISSUER)


def test_a_description_is_shown_unless_it_repeats_a_secret() -> None:
    fetched = answer(
        {"error": "invalid_grant", "error_description": "the token SECRET-1 is revoked\x07"}, 400
    )
    with pytest.raises(TokenRefused, match=r"SECRET-1 is revoked\?"):
        read_token_answer(fetched, ISSUER)
    fetched_too = answer({"error": "x", "error_description": "no " + "aB3-" * 10 + " here"}, 400)
    with pytest.raises(TokenRefused, match="no … here"):
        read_token_answer(fetched_too, ISSUER)
    with pytest.raises(TokenRefused) as refused:
        read_token_answer(fetched, ISSUER, secrets=["SECRET-1"])
    assert "SECRET" not in str(refused.value)
    with pytest.raises(TokenRefused) as refused:
        read_token_answer(answer({"error": "SECRET-1"}, 400), ISSUER, secrets=["SECRET-1"])
    assert "SECRET" not in f"{refused.value} {refused.value.error}"


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())
MEMBERS = st.sampled_from(
    ["access_token", "token_type", "expires_in", "scope", "refresh_token", "error", "error_description"]
)


@given(st.dictionaries(MEMBERS, VALUES), st.sampled_from([200, 400, 401, 500]), st.booleans())
@example({"access_token": "a", "token_type": "bearer", "expires_in": "9" * 5000}, 200, False)
@example({"access_token": "a", "token_type": "bearer", "expires_in": "nan"}, 200, False)
@example({"error": "\x1b" * 1000}, 200, False)
def test_no_answer_of_a_token_endpoint_is_too_odd(
    document: dict[str, Any], status: int, is_form: bool
) -> None:
    texts = {name: str(value) for name, value in document.items()}
    body = urlencode(texts, errors="replace").encode() if is_form else json.dumps(document).encode()
    kind = "application/x-www-form-urlencoded" if is_form else "application/json"
    raised = ""
    try:
        found = read_token_answer(Fetched(status, [("content-type", kind)], body), ISSUER)
        assert found.expires_in is None or 0 <= found.expires_in <= MAX_LIFETIME
        assert found.access_token.isprintable()
    except AuthorizationError as error:
        raised = str(error)
    assert raised.isprintable()


@given(
    st.binary(), st.sampled_from(["application/json", "application/x-www-form-urlencoded", "text/html", ""])
)
@example(b"&".join([b"a=b"] * 101), "application/x-www-form-urlencoded")
def test_no_body_is_too_odd(body: bytes, kind: str) -> None:
    with pytest.raises(AuthorizationError):
        read_token_answer(Fetched(400, [("content-type", kind)], body), ISSUER)


@pytest.mark.parametrize(
    ("secret", "registered", "listed", "method"),
    [
        (None, None, None, "none"),
        (None, "client_secret_basic", ("client_secret_basic",), "none"),
        ("s", None, None, "client_secret_basic"),
        ("s", None, ("none",), "none"),
        ("s", None, ("client_secret_post", "none"), "client_secret_post"),
        ("s", None, ("none", "client_secret_post", "client_secret_basic"), "client_secret_basic"),
        ("s", "client_secret_post", None, "client_secret_post"),
        ("s", "client_secret_post", ("client_secret_basic", "client_secret_post"), "client_secret_post"),
        ("s", "client_secret_post", ("client_secret_basic",), "client_secret_basic"),
        ("s", "made_up", ("made_up", "client_secret_post"), "client_secret_post"),
        ("s", None, ("tls_client_auth",), "client_secret_basic"),
    ],
)
def test_the_way_a_client_authenticates(secret: Any, registered: Any, listed: Any, method: str) -> None:
    server = AuthorizationServer(
        issuer=ISSUER, token_endpoint=f"{ISSUER}/token", token_endpoint_auth_methods_supported=listed
    )
    client = RegisteredClient(client_id="a:b", client_secret=secret, method=registered)
    headers, fields = authenticate(client, server, 0)
    expected: dict[str, tuple[list[tuple[str, str]], dict[str, str]]] = {
        "none": ([], {"client_id": "a:b"}),
        "client_secret_post": ([], {"client_id": "a:b", "client_secret": "s"}),
        "client_secret_basic": ([("authorization", "Basic YSUzQWI6cw==")], {}),
    }
    assert (headers, fields) == expected[method]


def test_what_the_program_adds_to_a_login() -> None:
    settings = OAuth(AuthorizationCode(), extra_params={"audience": "https://api"})
    world, _, _, caller = scene(settings)
    assert caller.call() == 200
    assert world.authorization_requests()[0]["audience"] == "https://api"


def test_a_private_key_that_is_not_taken_is_an_error_before_anything_is_sent() -> None:
    for key, listed in (("no key", ["private_key_jwt"]), ("no key", ["client_secret_basic"])):
        settings = OAuth(ClientCredentials(client_id="c", private_key=key))
        world, _, _, caller = scene(settings, token_endpoint_auth_methods_supported=listed)
        with pytest.raises(AuthorizationFailed, match="private"):
            caller.call()
        assert not [each for each in world.fetches if each.method == "POST"]


# -- What the identity provider of an enterprise issues: how long it is used, and what it is bound to ----

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


@pytest.mark.parametrize("seconds", [90, 3600, 1_700_000_000])
def test_an_assertion_is_not_used_for_longer_because_the_clock_was_set_back(seconds: float) -> None:
    world, auth, caller = enterprise()
    auth.expires_in = 100
    assert caller.call() == 200
    world.now -= seconds
    auth.tokens.clear()
    assert caller.call() == 200
    assert len(world.posts(f"{IDP}/token")) == 2


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
