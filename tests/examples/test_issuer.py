"""The decisions of the example authorization server: a good request of each kind, and those that differ in one way."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey

from mcp_actors.auth.jose import DpopKey, client_assertion, public_jwk, read_claims, read_jws, sign
from mcp_actors.examples.issuer.bounded import ExpiringTable, OAuthError, Parameters
from mcp_actors.examples.issuer.clients import (
    ASSERTION_TYPE,
    DOCUMENT_LIFETIME,
    FAILURE_LIFETIME,
    MAX_REGISTERED,
    REGISTRATION_LIFETIME,
    machine_client,
    read_public_key,
)
from mcp_actors.examples.issuer.issuer import (
    CONSENT_LIFETIME,
    MAX_CONSENTS,
    ConsentRequest,
    Issuer,
    Redirection,
    checked_url,
)
from mcp_actors.examples.issuer.tokens import (
    ACCESS_LIFETIME,
    CODE_LIFETIME,
    GRANT_LIFETIME,
    KEY_LIFETIME,
    KEY_PUBLISHED,
    MAX_GRANTS,
)

URL = "http://127.0.0.1:9000"
NOTES = "http://127.0.0.1:8000/mcp"
CALLBACK = "http://127.0.0.1:5000/callback"
START = 1_800_000_000.0
BROWSER = "the-cookie-of-one-browser"
DOCUMENT = "https://client.example/metadata.json"
VERIFIER = "v" * 43
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
MACHINE_KEY = ECKey.generate_key("P-256")
PEM = MACHINE_KEY.as_pem(private=True).decode()
Values = dict[str, Any]


class World:
    """An issuer, its clock, and a client that has registered itself."""

    def __init__(self, **metadata: Any) -> None:
        self.time = START
        self.reported: list[str] = []
        machines = [
            machine_client("machine", ["mcp:write"], secret="machine-secret"),
            machine_client(
                "robot", ["mcp:read"], key=read_public_key(MACHINE_KEY.as_pem(private=False).decode())
            ),
        ]
        self.issuer = Issuer(
            URL,
            {"ann": ["mcp:read", "mcp:write"], "bob": ["mcp:read"]},
            machines,
            now=lambda: self.time,
            report=self.reported.append,
        )
        self.client = self.registered(**metadata)
        self.client_id: str = self.client["client_id"]

    def registered(self, **metadata: Any) -> Values:
        wanted = {
            "client_name": "tests",
            "redirect_uris": [CALLBACK],
            "grant_types": ["authorization_code", "refresh_token"],
            "token_endpoint_auth_method": "none",
        }
        return self.issuer.register({**wanted, **metadata})

    def authorize(self, **changed: str | None) -> ConsentRequest | Redirection:
        return self.issuer.authorize(parameters(self.login(), changed), BROWSER)

    def login(self) -> Values:
        return {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": CALLBACK,
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "state": "the state",
            "resource": NOTES,
            "scope": "mcp:read",
        }

    def answer(self, user: str = "ann", **changed: str | None) -> Values:
        """What the client is sent after a login."""
        consent = self.authorize(**changed)
        assert isinstance(consent, ConsentRequest), consent
        form = parameters({"ticket": consent.ticket, "user": user}, {})
        return answer_of(self.issuer.decide(form, BROWSER))

    def code(self, user: str = "ann", **changed: str | None) -> str:
        return str(self.answer(user, **changed)["code"])

    def redeem(self, code: str, /, proof: str | None = None, **changed: str | None) -> Values:
        form = {
            "grant_type": "authorization_code",
            "client_id": self.client_id,
            "code": code,
            "redirect_uri": CALLBACK,
            "code_verifier": VERIFIER,
            "resource": NOTES,
        }
        return self.issuer.token(parameters(form, changed), None, proof)

    def refresh(self, token: str, proof: str | None = None, **changed: str | None) -> Values:
        form = {"grant_type": "refresh_token", "client_id": self.client_id, "refresh_token": token}
        return self.issuer.token(parameters(form, changed), None, proof)

    def machine(self, authorization: str | None = None, **changed: str | None) -> Values:
        form = {"grant_type": "client_credentials", "resource": NOTES}
        if authorization is None:
            form |= {"client_id": "machine", "client_secret": "machine-secret"}
        return self.issuer.token(parameters(form, changed), authorization, None)

    def proof(self, key: DpopKey) -> str:
        return key.proof("POST", f"{URL}/token", now=self.time)


def parameters(values: Values, changed: Values) -> Parameters:
    """Returns parameters, but for those that are changed; ``None`` leaves one out."""
    return Parameters((name, value) for name, value in {**values, **changed}.items() if value is not None)


def answer_of(outcome: ConsentRequest | Redirection) -> Values:
    assert isinstance(outcome, Redirection), outcome
    return dict(parse_qsl(urlsplit(outcome.uri).query))


def claims_of(answer: Values) -> Values:
    return read_claims(read_jws(answer["access_token"]))


def refused(function: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """Returns the code of the error that a function raises."""
    with pytest.raises(OAuthError) as caught:
        function(*arguments, **named)
    return caught.value.error


def answered(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Returns what a function returns, or the code of the error that it raises."""
    try:
        return function(*arguments, **named)
    except OAuthError as error:
        return error.error


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


@pytest.fixture
def world() -> World:
    return World()


# -- This machine only ----------------------------------------------------------------------------


@pytest.mark.parametrize("url", [URL, f"{URL}/", "http://[::1]:9000", "http://localhost:1"])
def test_an_address_of_this_machine_is_an_issuer(url: str) -> None:
    assert checked_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://0.0.0.0:9000",
        "http://[::]:9000",
        "http://192.168.1.2:9000",
        "http://login.example.com:9000",
        "http://localhost.example.com:9000",
        "http://127.0.0.1.example.com:9000",
        "http://127.0.0.1:9000@example.com",
        "https://127.0.0.1:9000",
        "http+unix://%2Ftmp%2Fx",
        "http://127.0.0.1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:9000/path",
        "",
    ],
)
def test_any_other_address_is_refused_with_one_sentence(url: str) -> None:
    with pytest.raises(ValueError, match="asks for no password") as caught:
        checked_url(url)
    assert "\n" not in str(caught.value)


RESOURCES = [
    "https://mcp.example.com/mcp",
    "http://192.168.1.2/mcp",
    "http://127.0.0.1@example.com/mcp",
    "http://127.0.0.1:8000/mcp#part",
    "http://127.0.0.1:x/mcp",
    "urn:notes",
    "/mcp",
]


@pytest.mark.parametrize("resource", [None, *RESOURCES])
def test_a_token_is_for_a_server_on_this_machine(world: World, resource: str | None) -> None:
    assert answer_of(world.authorize(resource=resource))["error"] == "invalid_target"
    assert refused(world.machine, resource=resource) == "invalid_target"


def test_a_token_is_for_one_server(world: World) -> None:
    twice = Parameters([*world.login().items(), ("resource", "http://127.0.0.1:8001/mcp")])
    assert answer_of(world.issuer.authorize(twice, BROWSER))["error"] == "invalid_target"


# -- The whole way --------------------------------------------------------------------------------


def test_a_login_leads_to_a_token_for_one_person_client_and_server(world: World) -> None:
    answer = world.answer("ann", scope="mcp:write mcp:read")
    assert (answer["state"], answer["iss"]) == ("the state", URL)
    token = world.redeem(answer["code"])
    assert (token["token_type"], token["expires_in"], token["scope"]) == ("Bearer", 300, "mcp:write mcp:read")
    claims = claims_of(token)
    assert claims | {"jti": ""} == {
        "iss": URL,
        "sub": "ann",
        "aud": NOTES,
        "client_id": world.client_id,
        "scope": "mcp:write mcp:read",
        "iat": START,
        "exp": START + ACCESS_LIFETIME,
        "jti": "",
    }
    header = read_jws(token["access_token"]).header
    (key,) = world.issuer.jwks()["keys"]
    assert (header["typ"], header["kid"]) == ("at+jwt", key["kid"])
    assert not {"d", "k"} & key.keys()


def test_a_person_grants_no_more_than_they_have(world: World) -> None:
    assert world.redeem(world.code("bob", scope="mcp:read mcp:write"))["scope"] == "mcp:read"
    assert world.answer("bob", scope="mcp:write")["error"] == "access_denied"
    assert world.redeem(world.code("ann", scope=None))["scope"] == "mcp:read mcp:write"


def test_no_other_person_can_be_chosen(world: World) -> None:
    assert world.answer("eve\x1b[2J\n")["error"] == "access_denied"
    assert all(line.isprintable() for line in world.reported)


def test_a_refusal_comes_back_to_the_client(world: World) -> None:
    consent = world.authorize()
    assert isinstance(consent, ConsentRequest)
    form = parameters({"ticket": consent.ticket, "user": "ann", "deny": "yes"}, {})
    answer = answer_of(world.issuer.decide(form, BROWSER))
    assert (answer["error"], answer["state"], answer["iss"]) == ("access_denied", "the state", URL)


def test_a_page_answers_once_in_one_browser_and_for_ten_minutes(world: World) -> None:
    consent = world.authorize()
    assert isinstance(consent, ConsentRequest)
    form = parameters({"ticket": consent.ticket, "user": "ann"}, {})
    assert refused(world.issuer.decide, form, "another browser") == "invalid_request"
    assert "code" in answer_of(world.issuer.decide(form, BROWSER))
    assert refused(world.issuer.decide, form, BROWSER) == "invalid_request"

    late = world.authorize()
    assert isinstance(late, ConsentRequest)
    world.time += CONSENT_LIFETIME
    assert (
        refused(world.issuer.decide, parameters({"ticket": late.ticket, "user": "ann"}, {}), BROWSER)
        == "invalid_request"
    )


def test_the_metadata_names_what_is_there(world: World) -> None:
    metadata = world.issuer.metadata()
    assert metadata["issuer"] == URL
    assert metadata["code_challenge_methods_supported"] == ["S256"]
    assert metadata["scopes_supported"] == ["mcp:read", "mcp:write"]
    assert metadata["authorization_response_iss_parameter_supported"] is True
    assert all(
        value.startswith(URL) for name, value in metadata.items() if name.endswith(("_endpoint", "_uri"))
    )


def test_no_secret_is_reported_or_shown(world: World) -> None:
    code = world.code()
    first = world.redeem(code)
    second = world.refresh(first["refresh_token"])
    confidential = world.registered(token_endpoint_auth_method="client_secret_post")
    shown = "\n".join(
        [*world.reported, repr(world.issuer), repr(vars(world.issuer)), repr(world.authorize())]
    )
    secrets_of_all = [code, VERIFIER, CHALLENGE, BROWSER, confidential["client_secret"], "machine-secret"]
    for answer in (first, second):
        secrets_of_all += [answer["access_token"], answer["refresh_token"]]
    assert [each for each in secrets_of_all if each in shown] == []
    assert len(world.reported) >= 4


# -- Logins that are wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        None,
        "http://127.0.0.1:5000/callback/",
        "http://127.0.0.1:5000/callback?x=1",
        "http://127.0.0.1:5000/CALLBACK",
        "http://127.0.0.1:5000/",
        "http://127.0.0.1:99999/callback",
        "http://127.0.0.1:0/callback",
        "http://127.0.0.1:5000@evil.example/callback",
        "http://127.0.0.1.evil.example:5000/callback",
        "http://localhost:5000/callback",
        "http://[::1]:5000/callback",
        "https://127.0.0.1:5000/callback",
        "https://evil.example/callback",
        "javascript:alert(1)",
    ],
)
def test_a_redirect_uri_that_is_not_the_clients_leads_nowhere(world: World, uri: str | None) -> None:
    assert refused(world.authorize, redirect_uri=uri) == "invalid_request"


def test_a_port_of_this_machine_is_free_and_no_other(world: World) -> None:
    assert isinstance(world.authorize(redirect_uri="http://127.0.0.1:61000/callback"), ConsentRequest)
    named = world.registered(redirect_uris=["http://localhost:5000/cb", "https://app.example:444/cb"])
    world.client_id = named["client_id"]
    for uri in ("http://localhost:5001/cb", "https://app.example:445/cb", "https://app.example/cb"):
        assert refused(world.authorize, redirect_uri=uri) == "invalid_request"


@given(at=st.integers(0, len(CALLBACK) - 1), character=st.characters(codec="ascii"))
def test_a_redirect_uri_with_another_character_is_another_one(at: int, character: str) -> None:
    changed = CALLBACK[:at] + character + CALLBACK[at + 1 :]
    port = CALLBACK.index("5000")
    if changed == CALLBACK or (port <= at < port + 4 and character.isdigit()):
        return
    assert refused(World().authorize, redirect_uri=changed) == "invalid_request"


@pytest.mark.parametrize("client_id", [None, "nobody", "machine-secret", "https://not.fetched/yet.json"])
def test_a_client_that_is_not_known_leads_nowhere(world: World, client_id: str | None) -> None:
    assert refused(world.authorize, client_id=client_id) in ("invalid_client", "invalid_request")


WRONG_LOGINS: dict[str, tuple[Values, str]] = {
    "another response type": ({"response_type": "token"}, "unsupported_response_type"),
    "no response type": ({"response_type": None}, "invalid_request"),
    "no PKCE": ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
    "PKCE without a method": ({"code_challenge_method": None}, "invalid_request"),
    "PKCE in plain": ({"code_challenge_method": "plain", "code_challenge": VERIFIER}, "invalid_request"),
    "a method in small letters": ({"code_challenge_method": "s256"}, "invalid_request"),
    "a challenge of another length": ({"code_challenge": CHALLENGE[:-1]}, "invalid_request"),
    "a challenge with padding": ({"code_challenge": f"{CHALLENGE}="}, "invalid_request"),
    "a scope that nobody has": ({"scope": "mcp:read admin"}, "invalid_scope"),
    "a thumbprint that is none": ({"dpop_jkt": "x"}, "invalid_request"),
    "a long state": ({"state": "s" * 2049}, "invalid_request"),
}


@pytest.mark.parametrize("name", WRONG_LOGINS)
def test_a_wrong_login_is_told_to_a_client_on_this_machine(world: World, name: str) -> None:
    changed, error = WRONG_LOGINS[name]
    answer = answer_of(world.authorize(**changed))
    assert (answer["error"], answer["iss"]) == (error, URL)
    assert answer.get("state") == (None if "state" in changed else "the state")
    assert "code" not in answer


@pytest.mark.parametrize("name", WRONG_LOGINS)
def test_a_wrong_login_is_no_way_to_another_machine(world: World, name: str) -> None:
    uri = "https://app.example/cb"
    world.client_id = world.registered(redirect_uris=[uri])["client_id"]
    changed, error = WRONG_LOGINS[name]
    assert refused(world.authorize, redirect_uri=uri, **changed) == error


@pytest.mark.parametrize("name", ["client_id", "redirect_uri", "state", "code_challenge", "scope"])
def test_a_parameter_that_is_given_twice_is_refused(world: World, name: str) -> None:
    twice = Parameters([*world.login().items(), (name, world.login()[name])])
    if name in ("client_id", "redirect_uri"):
        assert refused(world.issuer.authorize, twice, BROWSER) == "invalid_request"
    else:
        assert answer_of(world.issuer.authorize(twice, BROWSER))["error"] == "invalid_request"


def test_a_program_with_access_of_its_own_logs_nobody_in(world: World) -> None:
    assert refused(world.authorize, client_id="machine") == "invalid_request"


@given(state=st.text(min_size=1, max_size=200))
def test_a_state_comes_back_as_it_was(state: str) -> None:
    world = World()
    uri = "http://127.0.0.1:5000/cb?kept=a%20b"
    world.client_id = world.registered(redirect_uris=[uri])["client_id"]
    consent = world.authorize(redirect_uri=uri, state=state)
    assert isinstance(consent, ConsentRequest)
    answer = answer_of(
        world.issuer.decide(parameters({"ticket": consent.ticket, "user": "ann"}, {}), BROWSER)
    )
    assert (answer["state"], answer["kept"]) == (state, "a b")


# -- Codes ----------------------------------------------------------------------------------------

OTHER_KEY = DpopKey.generate()
WRONG_REDEMPTIONS: dict[str, Values] = {
    "another verifier": {"code_verifier": "w" * 43},
    "the challenge as a verifier": {"code_verifier": CHALLENGE},
    "a short verifier": {"code_verifier": "v"},
    "another redirect URI": {"redirect_uri": "http://127.0.0.1:5001/callback"},
}


@pytest.mark.parametrize("name", WRONG_REDEMPTIONS)
def test_a_code_in_the_wrong_hands_is_worth_nothing_and_spent(world: World, name: str) -> None:
    code = world.code()
    assert refused(world.redeem, code, **WRONG_REDEMPTIONS[name]) == "invalid_grant"
    assert refused(world.redeem, code) == "invalid_grant"


@pytest.mark.parametrize("missing", ["code", "code_verifier", "redirect_uri"])
def test_a_redemption_needs_everything(world: World, missing: str) -> None:
    assert refused(world.redeem, world.code(), **{missing: None}) == "invalid_request"


def test_a_code_is_for_the_client_that_asked_for_it(world: World) -> None:
    code = world.code()
    other = world.registered()["client_id"]
    assert refused(world.redeem, code, client_id=other) == "invalid_grant"
    assert refused(world.redeem, code) == "invalid_grant"


def test_a_code_is_good_for_a_minute(world: World) -> None:
    code = world.code()
    world.time += CODE_LIFETIME
    assert refused(world.redeem, code) == "invalid_grant"


def test_a_code_that_is_used_again_ends_everything_that_came_of_it(world: World) -> None:
    code = world.code()
    token = world.redeem(code)
    assert refused(world.redeem, code) == "invalid_grant"
    assert refused(world.refresh, token["refresh_token"]) == "invalid_grant"


def test_a_redemption_for_another_server_is_refused(world: World) -> None:
    assert refused(world.redeem, world.code(), resource="http://127.0.0.1:8001/mcp") == "invalid_target"
    assert claims_of(world.redeem(world.code(), resource=None))["aud"] == NOTES


@given(text=st.text(alphabet="abcABC012-_.", max_size=90))
def test_no_text_is_a_code_or_a_refresh_token_by_luck(text: str) -> None:
    world = World()
    token = world.redeem(world.code())["refresh_token"]
    name, number, mac = token.split(".")
    forged = [
        text,
        f"{name}.0{number}.{mac}",
        f"{name}.{text}0.{mac}",
        f"{name}.{int(number) + 1}.{mac}",
        f"{name}.0.{mac}",
    ]
    for each in filter(None, forged):
        assert refused(world.refresh, each) in ("invalid_grant", "invalid_request")
        assert refused(world.redeem, each) in ("invalid_grant", "invalid_request")
    # Nothing that was not issued ends a login.
    assert "access_token" in world.refresh(token)


# -- Refresh tokens -------------------------------------------------------------------------------


@given(uses=st.lists(st.integers(0, 5), max_size=12))
def test_of_all_refresh_tokens_the_last_one_is_good_until_another_comes_again(uses: list[int]) -> None:
    world = World()
    issued = [world.redeem(world.code())["refresh_token"]]
    alive = True
    for use in uses:
        token = issued[-1 - use % len(issued)]
        alive = alive and token == issued[-1]
        if alive:
            issued.append(world.refresh(token)["refresh_token"])
        else:
            assert refused(world.refresh, token) == "invalid_grant"
    assert len(set(issued)) == len(issued)


def test_a_refresh_brings_no_more_than_was_granted(world: World) -> None:
    token = world.redeem(world.code("ann", scope="mcp:read mcp:write"))["refresh_token"]
    narrow = world.refresh(token, scope="mcp:read")
    assert narrow["scope"] == "mcp:read"
    # The login still has both (OAuth 2.1 section 4.3.1).
    whole = world.refresh(narrow["refresh_token"])
    assert whole["scope"] == "mcp:read mcp:write"
    assert refused(world.refresh, whole["refresh_token"], scope="mcp:read admin") == "invalid_scope"

    read = world.redeem(world.code("ann", scope="mcp:read"))["refresh_token"]
    assert refused(world.refresh, read, scope="mcp:write") == "invalid_scope"
    # A mistake is no theft: the token was not used up.
    assert world.refresh(read)["scope"] == "mcp:read"


def test_a_refresh_is_for_the_same_server_and_client(world: World) -> None:
    token = world.redeem(world.code())["refresh_token"]
    assert refused(world.refresh, token, resource="http://127.0.0.1:8001/mcp") == "invalid_target"
    other = world.registered()["client_id"]
    assert refused(world.refresh, token, client_id=other) == "invalid_grant"
    assert refused(world.refresh, token) == "invalid_grant"


def test_a_login_ends_after_a_day(world: World) -> None:
    token = world.redeem(world.code())["refresh_token"]
    world.time += GRANT_LIFETIME / 2
    token = world.refresh(token)["refresh_token"]
    world.time += GRANT_LIFETIME / 2
    world.client_id = world.registered()["client_id"]
    assert refused(world.refresh, token) == "invalid_grant"


def test_a_client_that_did_not_ask_for_refresh_tokens_gets_none() -> None:
    world = World(grant_types=["authorization_code"])
    assert "refresh_token" not in world.redeem(world.code())


# -- Revocation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["refresh_token", "access_token"])
def test_a_token_that_is_given_back_ends_its_login(world: World, kind: str) -> None:
    answer = world.redeem(world.code())
    form = {"client_id": world.client_id, "token": answer[kind]}
    other = world.registered()["client_id"]
    for stranger in (other, world.client_id):
        assert world.issuer.revoke(parameters(form, {"client_id": stranger}), None) == {}
        if stranger == other:
            answer |= world.refresh(answer["refresh_token"])
            form["token"] = answer[kind]
    assert refused(world.refresh, answer["refresh_token"]) == "invalid_grant"


@pytest.mark.parametrize("token", ["nonsense", "a.b.c", "x" * 5000])
def test_nobody_learns_whether_a_token_was_one(world: World, token: str) -> None:
    form = parameters({"client_id": world.client_id, "token": token}, {})
    assert world.issuer.revoke(form, None) == {}
    assert refused(world.issuer.revoke, parameters({"client_id": "nobody", "token": token}, {}), None)


# -- Keys that tokens are bound to ----------------------------------------------------------------


def test_a_token_is_bound_to_the_key_of_a_proof_and_so_is_its_refresh(world: World) -> None:
    key = DpopKey.generate()
    answer = world.redeem(world.code(), world.proof(key))
    assert answer["token_type"] == "DPoP"
    assert claims_of(answer)["cnf"] == {"jkt": key.thumbprint}
    assert refused(world.refresh, answer["refresh_token"], world.proof(OTHER_KEY)) == "invalid_grant"
    again = world.redeem(world.code(), world.proof(key))
    assert refused(world.refresh, again["refresh_token"]) == "invalid_grant"
    third = world.redeem(world.code(), world.proof(key))
    assert claims_of(world.refresh(third["refresh_token"], world.proof(key)))["cnf"] == {
        "jkt": key.thumbprint
    }


def test_a_proof_is_good_once_and_for_the_token_endpoint(world: World) -> None:
    key = DpopKey.generate()
    used = world.proof(key)
    token = world.redeem(world.code(), used)["refresh_token"]
    wrong = [
        used,
        key.proof("POST", f"{URL}/revoke", now=world.time),
        key.proof("GET", f"{URL}/token", now=world.time),
        key.proof("POST", "http://localhost:9000/token", now=world.time),
        key.proof("POST", f"{URL}/token", now=world.time - 301),
        f"{world.proof(key)}, {world.proof(key)}",
        "nonsense",
    ]
    for proof in wrong:
        assert refused(world.refresh, token, proof) == "invalid_dpop_proof"
    # None of them was about the token, which is as it was.
    assert world.refresh(token, world.proof(key))["token_type"] == "DPoP"


def test_a_code_may_be_bound_to_a_key_beforehand(world: World) -> None:
    key = DpopKey.generate()
    for proof in (None, world.proof(OTHER_KEY)):
        assert refused(world.redeem, world.code(dpop_jkt=key.thumbprint), proof) == "invalid_grant"
    assert world.redeem(world.code(dpop_jkt=key.thumbprint), world.proof(key))["token_type"] == "DPoP"


def test_a_client_that_registered_for_bound_tokens_gets_no_others() -> None:
    world = World(dpop_bound_access_tokens=True)
    code = world.code()
    assert refused(world.redeem, code) == "invalid_dpop_proof"
    assert world.redeem(code, world.proof(OTHER_KEY))["token_type"] == "DPoP"


def test_too_many_proofs_make_each_need_a_nonce(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.issuer._proofs, "_limit", 4)
    key = DpopKey.generate()
    token = world.redeem(world.code())["refresh_token"]
    for _ in range(4):
        token = world.refresh(token, world.proof(key))["refresh_token"]
    with pytest.raises(OAuthError) as caught:
        world.refresh(token, world.proof(key))
    assert caught.value.error == "use_dpop_nonce"
    nonce = dict(caught.value.headers)["dpop-nonce"]
    proof = key.proof("POST", f"{URL}/token", now=world.time, nonce=nonce)
    assert "access_token" in world.refresh(token, proof)


# -- Programs with access of their own ------------------------------------------------------------


def test_a_machine_has_its_own_scopes_and_no_refresh_token(world: World) -> None:
    answer = world.machine()
    claims = claims_of(answer)
    assert (claims["sub"], claims["aud"], claims["scope"]) == ("machine", NOTES, "mcp:write")
    assert "refresh_token" not in answer
    assert refused(world.machine, scope="mcp:read") == "invalid_scope"
    assert refused(world.machine, scope="mcp:write mcp:read") == "invalid_scope"
    assert world.machine(basic("machine", "machine-secret"))["scope"] == "mcp:write"


@pytest.mark.parametrize(
    ("authorization", "changed"),
    [
        (None, {"client_secret": "wrong"}),
        (None, {"client_secret": None}),
        (None, {"client_id": "nobody"}),
        (None, {"client_id": None}),
        (basic("machine", "wrong"), {}),
        (basic("nobody", "machine-secret"), {}),
        ("Basic nonsense", {}),
        ("Bearer machine-secret", {}),
        ("Basic " + base64.b64encode(b"machine").decode(), {}),
    ],
)
def test_who_proves_nothing_gets_nothing(world: World, authorization: str | None, changed: Values) -> None:
    with pytest.raises(OAuthError) as caught:
        world.machine(authorization, **changed)
    assert (caught.value.error, caught.value.status) == ("invalid_client", 401)
    assert bool(caught.value.headers) == (authorization is not None)


def test_two_methods_in_one_request_are_refused(world: World) -> None:
    header = basic("machine", "machine-secret")
    assert refused(world.machine, header, client_secret="machine-secret") == "invalid_request"
    assert refused(world.machine, header, client_id="robot") == "invalid_request"


def test_a_client_that_registered_itself_has_no_access_of_its_own(world: World) -> None:
    grants = ["client_credentials"], ["authorization_code", "client_credentials"], ["password"]
    for grant_types in grants:
        assert refused(world.registered, grant_types=grant_types) == "invalid_client_metadata"
    form = parameters(
        {"grant_type": "client_credentials", "client_id": world.client_id, "resource": NOTES}, {}
    )
    assert refused(world.issuer.token, form, None, None) == "unauthorized_client"


def test_a_public_client_has_no_secret_to_prove_itself_by(world: World) -> None:
    assert refused(world.redeem, world.code(), client_secret="anything") == "invalid_client"


def test_a_confidential_client_needs_its_secret() -> None:
    world = World(token_endpoint_auth_method="client_secret_basic")
    assert refused(world.redeem, world.code()) == "invalid_client"
    assert world.redeem(world.code(), client_secret=world.client["client_secret"])["scope"] == "mcp:read"


def signed(world: World, key: Any = MACHINE_KEY, header: Values | None = None, **changed: Any) -> Values:
    """A good request of the program with a key, but for the claims that are changed."""
    claims = {
        "iss": "robot",
        "sub": "robot",
        "aud": URL,
        "exp": world.time + 60,
        "jti": secrets.token_urlsafe(8),
    } | changed
    claims = {name: value for name, value in claims.items() if value is not None}
    head = {"alg": "ES256", "typ": "JWT"} | (header or {})
    return {
        "grant_type": "client_credentials",
        "resource": NOTES,
        "client_assertion_type": ASSERTION_TYPE,
        "client_assertion": sign(head, claims, key),
    }


def test_an_assertion_of_our_client_is_good_once(world: World) -> None:
    form = signed(world)
    form["client_assertion"] = client_assertion(PEM, "ES256", "robot", URL, world.time)
    assert claims_of(world.issuer.token(parameters(form, {}), None, None))["sub"] == "robot"
    assert refused(world.issuer.token, parameters(form, {}), None, None) == "invalid_client"


@pytest.mark.parametrize(
    "changed",
    [
        {"key": ECKey.generate_key("P-256")},
        {"iss": "machine", "sub": "machine"},
        {"iss": "machine"},
        {"sub": None},
        {"iss": 1, "sub": 1},
        {"aud": None},
        {"aud": "https://other.example"},
        {"aud": [{"x": 1}]},
        {"exp": None},
        {"exp": START - 31},
        {"exp": START + 3600},
        {"exp": True},
        {"nbf": START + 60},
        {"jti": None},
        {"jti": ""},
        {"jti": "j" * 257},
    ],
)
def test_a_bad_assertion_proves_nothing(world: World, changed: Values) -> None:
    form = parameters(signed(world, **changed), {})
    assert refused(world.issuer.token, form, None, None) == "invalid_client"


def test_an_assertion_goes_with_its_type_and_its_client(world: World) -> None:
    assert refused(world.issuer.token, parameters(signed(world), {"client_assertion_type": "x"}), None, None)
    named = parameters(signed(world), {"client_id": "machine"})
    assert refused(world.issuer.token, named, None, None) == "invalid_client"
    good = parameters(signed(world, aud=[f"{URL}/token"]), {"client_id": "robot"})
    assert "access_token" in world.issuer.token(good, None, None)


@pytest.mark.parametrize("pem", ["", "nonsense", PEM], ids=["empty", "nonsense", "private"])
def test_a_public_key_is_one_in_pem(pem: str) -> None:
    with pytest.raises(ValueError, match=r"^it is ") as caught:
        read_public_key(pem)
    assert "BEGIN" not in str(caught.value)


# -- Clients that register themselves -------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": None}, "invalid_client_metadata"),
        ({"redirect_uris": CALLBACK}, "invalid_client_metadata"),
        ({"redirect_uris": [CALLBACK] * 11}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://app.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["http://127.0.0.1.evil.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://user@app.example/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://app.example/cb#part"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://app.example/cb; script-src *"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://app.example;x/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://app.example\r\nx: y/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https:///cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["https://app.example:port/cb"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["data:text/html,x"]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["file:///etc/passwd"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [f"https://app.example/{'x' * 2048}"]}, "invalid_redirect_uri"),
        ({"token_endpoint_auth_method": "tls_client_auth"}, "invalid_client_metadata"),
        ({"token_endpoint_auth_method": ["none"]}, "invalid_client_metadata"),
        ({"token_endpoint_auth_method": "private_key_jwt"}, "invalid_client_metadata"),
        (
            {"token_endpoint_auth_method": "private_key_jwt", "jwks": {"keys": [{"kty": "oct", "k": "eA"}]}},
            "invalid_client_metadata",
        ),
        (
            {"token_endpoint_auth_method": "private_key_jwt", "jwks_uri": "https://app.example/jwks"},
            "invalid_client_metadata",
        ),
        ({"response_types": ["token"]}, "invalid_client_metadata"),
        ({"application_type": "other"}, "invalid_client_metadata"),
    ],
)
def test_a_registration_that_cannot_be_is_refused(world: World, changed: Values, error: str) -> None:
    assert refused(world.registered, **changed) == error


@pytest.mark.parametrize("wanted", [None, [], "text", 1])
def test_a_registration_is_an_object(world: World, wanted: object) -> None:
    assert refused(world.issuer.register, wanted) == "invalid_client_metadata"


@pytest.mark.parametrize(
    "uri", ["https://app.example/cb", "http://localhost:1/cb", "http://[::1]/cb", "com.example.app:/cb"]
)
def test_a_client_has_redirect_uris_of_three_kinds(world: World, uri: str) -> None:
    answer = world.registered(redirect_uris=[uri])
    assert answer["redirect_uris"] == [uri]
    world.client_id = answer["client_id"]
    assert isinstance(world.authorize(redirect_uri=uri), ConsentRequest)


def test_a_name_does_nothing_to_a_terminal(world: World) -> None:
    world.registered(client_name="a\x1b[2J\n\u202eb" + "c" * 1000)
    assert all(line.isprintable() and len(line) < 300 for line in world.reported)


def test_thousands_of_registrations_are_bounded_and_one_that_is_used_stays(world: World) -> None:
    first = world.registered()["client_id"]
    for number in range(3 * MAX_REGISTERED):
        world.registered()
        if number % 500 == 0:
            assert isinstance(world.authorize(), ConsentRequest)
    assert len(world.issuer.clients) <= MAX_REGISTERED + 2
    assert isinstance(world.authorize(), ConsentRequest)
    assert refused(world.authorize, client_id=first) == "invalid_client"


def test_a_registration_that_nobody_uses_is_forgotten(world: World) -> None:
    world.time += REGISTRATION_LIFETIME
    assert refused(world.authorize) == "invalid_client"


def test_floods_of_logins_are_bounded(world: World) -> None:
    tickets = []
    for _ in range(MAX_CONSENTS + 10):
        consent = world.authorize()
        assert isinstance(consent, ConsentRequest)
        tickets.append(consent.ticket)
    assert len(world.issuer._consents) == MAX_CONSENTS
    tokens = [world.redeem(world.code())["refresh_token"] for _ in range(MAX_GRANTS + 10)]
    assert len(world.issuer._grants) == MAX_GRANTS
    assert refused(world.refresh, tokens[0]) == "invalid_grant"
    assert "access_token" in world.refresh(tokens[-1])


# -- Clients that have a document -----------------------------------------------------------------


def described(**changed: Any) -> Values:
    return {"client_id": DOCUMENT, "client_name": "documented", "redirect_uris": [CALLBACK], **changed}


def test_a_client_may_be_described_by_the_document_that_is_its_id(world: World) -> None:
    world.client_id = DOCUMENT
    clients = world.issuer.clients
    assert clients.wants_document(DOCUMENT)
    clients.learn(DOCUMENT, described(grant_types=["authorization_code", "refresh_token"]))
    assert not clients.wants_document(DOCUMENT)
    token = world.redeem(
        world.code(redirect_uri="http://127.0.0.1:1234/callback"),
        redirect_uri="http://127.0.0.1:1234/callback",
    )
    assert claims_of(token)["client_id"] == DOCUMENT
    world.time += DOCUMENT_LIFETIME
    assert clients.wants_document(DOCUMENT)
    assert refused(world.refresh, token["refresh_token"]) == "invalid_client"


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        described(client_id="https://other.example/metadata.json"),
        described(client_id=None),
        described(redirect_uris=["http://app.example/cb"]),
        described(token_endpoint_auth_method="client_secret_basic"),
        described(token_endpoint_auth_method="private_key_jwt"),
        OAuthError("invalid_client", "its host answers 404"),
    ],
)
def test_a_document_that_cannot_be_used_is_remembered_for_a_moment(world: World, document: object) -> None:
    clients = world.issuer.clients
    clients.learn(DOCUMENT, document)
    assert not clients.wants_document(DOCUMENT)
    with pytest.raises(OAuthError, match="the document of the client cannot be used"):
        world.authorize(client_id=DOCUMENT)
    world.time += FAILURE_LIFETIME
    assert clients.wants_document(DOCUMENT)


@pytest.mark.parametrize(
    "client_id",
    [
        None,
        "http://client.example/metadata.json",
        "https://client.example",
        "https://client.example/",
        "https://user@client.example/metadata.json",
        "https://client.example/a/../metadata.json",
        "https://client.example/%2e%2e/metadata.json",
        "https://client.example/metadata.json#part",
        "https://client.example:port/metadata.json",
        "https://client.example/a b",
        f"https://client.example/{'x' * 2048}",
        "ftp://client.example/metadata.json",
    ],
)
def test_other_ids_are_not_fetched(world: World, client_id: str | None) -> None:
    assert not world.issuer.clients.wants_document(client_id)


def test_a_client_with_a_document_may_sign(world: World) -> None:
    key = ECKey.generate_key("P-256")
    clients = world.issuer.clients
    method = {"token_endpoint_auth_method": "private_key_jwt", "jwks": {"keys": [public_jwk(key)]}}
    clients.learn(DOCUMENT, described(**method))
    world.client_id = DOCUMENT
    assertion = client_assertion(key.as_pem(private=True).decode(), "ES256", DOCUMENT, URL, world.time)
    proven = {"client_assertion": assertion, "client_assertion_type": ASSERTION_TYPE}
    assert clients.claimed(parameters(proven, {}), None) == DOCUMENT
    assert "access_token" in world.redeem(world.code(), client_id=None, **proven)
    assert refused(world.redeem, world.code()) == "invalid_client"


# -- Keys of the server, and its memory -----------------------------------------------------------


def test_a_key_signs_for_an_hour_and_is_shown_for_as_long_as_its_tokens_are_good(world: World) -> None:
    def kids() -> list[str]:
        return [each["kid"] for each in world.issuer.jwks()["keys"]]

    def kid() -> str:
        return str(read_jws(world.machine()["access_token"]).header["kid"])

    first = kid()
    world.time += KEY_LIFETIME - 1
    assert kid() == first
    last = world.redeem(world.code())
    world.time += 1
    second = kid()
    assert second != first
    assert kids() == [first, second]
    world.time += ACCESS_LIFETIME
    assert (
        world.issuer.revoke(
            parameters({"client_id": world.client_id, "token": last["access_token"]}, {}), None
        )
        == {}
    )
    assert refused(world.refresh, last["refresh_token"]) == "invalid_grant"
    world.time += KEY_PUBLISHED - ACCESS_LIFETIME
    assert kids() == [second]
    world.time += 100 * KEY_LIFETIME
    assert len(kids()) == 1
    # A clock that is set back lets no key sign for longer.
    world.time -= KEY_LIFETIME
    assert kid() not in (first, second)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "get", "pop", "renew", "wait"]), st.integers(0, 8)), max_size=60
    )
)
def test_a_table_keeps_the_newest_values_for_their_time(steps: Iterable[tuple[str, int]]) -> None:
    now = START
    table = ExpiringTable[int](4, 10.0, lambda: now)
    model: dict[str, tuple[float, int]] = {}
    for step, number in steps:
        key = str(number)
        model = {name: each for name, each in model.items() if each[0] > now}
        if step == "wait":
            now += number
        elif step == "put":
            table.put(key, number)
            model.pop(key, None)
            model = dict([*model.items()][-3:]) | {key: (now + 10.0, number)}
        elif step == "renew":
            table.renew(key)
            if key in model:
                model[key] = (now + 10.0, model.pop(key)[1])
        elif step == "pop":
            found = model.pop(key, None)
            assert table.pop(key) == (None if found is None else found[1])
        model = {name: each for name, each in model.items() if each[0] > now}
        assert len(table) == len(model) <= 4
        assert [table.get(str(each)) for each in range(9)] == [
            model.get(str(each), (0, None))[1] for each in range(9)
        ]


# -- Anything at all ------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [*World().login(), "dpop_jkt", "grant_type", "code", "code_verifier", "refresh_token", "client_secret",
     "client_assertion", "client_assertion_type", "token", "ticket", "user"]
)  # fmt: skip
PAIRS = st.lists(st.tuples(NAMES, st.text(max_size=40)), max_size=12)


@given(pairs=PAIRS, authorization=st.none() | st.text(max_size=40), proof=st.none() | st.text(max_size=40))
def test_any_request_is_refused_in_order(
    pairs: list[tuple[str, str]], authorization: str | None, proof: str | None
) -> None:
    world = World()
    found = Parameters(pairs)
    for decide in (
        lambda: world.issuer.authorize(found, BROWSER),
        lambda: world.issuer.decide(found, BROWSER),
        lambda: world.issuer.token(found, authorization, proof),
        lambda: world.issuer.revoke(found, authorization),
    ):
        error = refused(decide)
        assert error in ("invalid_request", "invalid_client", "invalid_dpop_proof")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
MEMBERS = st.sampled_from(
    ["client_name", "redirect_uris", "grant_types", "response_types", "token_endpoint_auth_method", "jwks",
     "application_type", "dpop_bound_access_tokens", "scope"]
)  # fmt: skip


@given(changed=st.dictionaries(MEMBERS, JSON, min_size=1, max_size=4))
def test_any_registration_is_answered_or_refused_in_order(changed: Values) -> None:
    answer = answered(World().registered, **changed)
    if isinstance(answer, str):
        assert answer in ("invalid_client_metadata", "invalid_redirect_uri")
    else:
        assert answer["redirect_uris"] == changed.get("redirect_uris", [CALLBACK])
        assert set(answer["grant_types"]) <= {"authorization_code", "refresh_token"}


@given(text=st.text(max_size=200))
def test_any_text_is_read_as_parameters_or_refused(text: str) -> None:
    assert answered(Parameters.read, text) == "invalid_request" or Parameters.read(text).get("") is None


@pytest.mark.parametrize("text", ["a=%ff", "&".join(["a=1"] * 65), f"a={'x' * 20000}"])
def test_parameters_have_bounds(text: str) -> None:
    assert refused(Parameters.read, text) == "invalid_request"


@given(text=st.text(max_size=200))
def test_a_description_has_the_characters_that_it_may_have(text: str) -> None:
    described = OAuthError("e", text).body()["error_description"]
    assert all("\x20" <= each <= "\x7e" and each not in '"\\' for each in described)


@pytest.mark.parametrize(
    ("users", "match"),
    [
        ({"a b": ["x"]}, "not a name"),
        ({"": ["x"]}, "not a name"),
        ({"ann": ["a b"]}, "no scope"),
        ({"ann": ['"']}, "no scope"),
    ],
)
def test_names_and_scopes_are_checked(users: Values, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Issuer(URL, users)
