"""The exact answers to requests that are not served: status, headers and body (RFC 6750, RFC 9449, RFC 9728)."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.auth import AccessGuard, Denial, JwtVerifier, Principal, ResourceServer, StaticVerifier
from mcp_actors.auth.metadata import parse_challenges
from mcp_actors.auth.server.guard import MAX_TOKEN, MalformedCredentials, read_credentials

from .authority import ISSUER, RESOURCE, Listener, Request, bearer

PLACE = 'resource_metadata="https://h.example/.well-known/oauth-protected-resource/mcp"'
ALGS = 'algs="ES256 ES384 PS256 RS256 Ed25519"'
NOT_VALID = 'error="invalid_token", error_description="The access token is not valid for this server."'
MALFORMED = 'error="invalid_request", error_description="The Authorization header must have exactly one access token."'
LACKS = 'error="insufficient_scope", error_description="The access token lacks a scope that this needs."'
BAD_PROOF = 'error="invalid_dpop_proof", error_description="The DPoP proof is not valid for this request."'
USERS = {
    "reader": Principal("alice", ISSUER, "c1", {"read"}),
    "other": Principal("bob", ISSUER, "c1", {"other", "offline_access"}),
    "bound": Principal("alice", ISSUER, "c1", {"read"}, {"cnf": {"jkt": "t"}}),
}


def listener(**settings: Any) -> Listener:
    return Listener(**{"scopes": ["read"], "verifier": StaticVerifier(USERS), **settings})


def request(field: str | None, **more: str) -> Request:
    return Request(**({} if field is None else {"authorization": field}), **more)


TABLE = [
    # dpop, Authorization, DPoP: status, challenges, error of the body
    ("no", None, None, 401, [f'Bearer {PLACE}, scope="read"'], "unauthorized"),
    ("no", "Basic YTpi", None, 401, [f'Bearer {PLACE}, scope="read"'], "unauthorized"),
    ("no", "Bearerx reader", None, 401, [f'Bearer {PLACE}, scope="read"'], "unauthorized"),
    ("no", "DPoP bound", "x", 401, [f'Bearer {PLACE}, scope="read"'], "unauthorized"),
    ("no", "", None, 401, [f'Bearer {PLACE}, scope="read"'], "unauthorized"),
    ("no", "Bearer", None, 400, [f"Bearer {MALFORMED}, {PLACE}"], "invalid_request"),
    ("no", "Bearer ", None, 400, [f"Bearer {MALFORMED}, {PLACE}"], "invalid_request"),
    ("no", "Bearer a b", None, 400, [f"Bearer {MALFORMED}, {PLACE}"], "invalid_request"),
    ("no", "Bearer reader, Bearer reader", None, 400, [f"Bearer {MALFORMED}, {PLACE}"], "invalid_request"),
    ("no", "Bearer reader,reader", None, 400, [f"Bearer {MALFORMED}, {PLACE}"], "invalid_request"),
    ("no", "Bearer token=reader", None, 400, [f"Bearer {MALFORMED}, {PLACE}"], "invalid_request"),
    ("no", "Bearer é", None, 400, [f"Bearer {MALFORMED}, {PLACE}"], "invalid_request"),
    ("no", "Bearer nobody", None, 401, [f'Bearer {NOT_VALID}, {PLACE}, scope="read"'], "invalid_token"),
    ("no", "Bearer bound", None, 401, [f'Bearer {NOT_VALID}, {PLACE}, scope="read"'], "invalid_token"),
    ("no", "Bearer other", None, 403, [f'Bearer {LACKS}, {PLACE}, scope="read"'], "insufficient_scope"),
    (
        "allowed",
        None,
        None,
        401,
        [f'Bearer {PLACE}, scope="read"', f'DPoP {ALGS}, {PLACE}, scope="read"'],
        "unauthorized",
    ),
    ("allowed", "Bearer nobody", None, 401, [f'Bearer {NOT_VALID}, {PLACE}, scope="read"'], "invalid_token"),
    (
        "allowed",
        "Bearer bound",
        None,
        401,
        [f'DPoP {NOT_VALID}, {ALGS}, {PLACE}, scope="read"'],
        "invalid_token",
    ),
    (
        "allowed",
        "DPoP reader",
        "x",
        401,
        [f'DPoP {NOT_VALID}, {ALGS}, {PLACE}, scope="read"'],
        "invalid_token",
    ),
    ("allowed", "DPoP bound", None, 401, [f"DPoP {BAD_PROOF}, {ALGS}, {PLACE}"], "invalid_dpop_proof"),
    ("allowed", "DPoP bound", "x", 401, [f"DPoP {BAD_PROOF}, {ALGS}, {PLACE}"], "invalid_dpop_proof"),
    ("required", None, None, 401, [f'DPoP {ALGS}, {PLACE}, scope="read"'], "unauthorized"),
    (
        "required",
        "Bearer reader",
        None,
        401,
        [f'DPoP {NOT_VALID}, {ALGS}, {PLACE}, scope="read"'],
        "invalid_token",
    ),
    ("required", "DPoP", None, 400, [f"DPoP {MALFORMED}, {ALGS}, {PLACE}"], "invalid_request"),
]


@pytest.mark.parametrize(("dpop", "field", "proof", "status", "challenges", "error"), TABLE)
async def test_each_refusal_has_this_status_these_headers_and_this_body(
    dpop: str, field: str | None, proof: str | None, status: int, challenges: list[str], error: str
) -> None:
    more = {} if proof is None else {"dpop": proof}
    found = await listener(dpop=dpop).ask(request(field, **more))
    assert isinstance(found, Denial)
    assert found.status == status
    assert found.headers == (
        ("Content-Type", "application/json"),
        ("Cache-Control", "no-store"),
        *(("WWW-Authenticate", each) for each in challenges),
    )
    body = json.loads(found.body)
    assert set(body) == {"error", "error_description"}
    assert body["error"] == error


async def test_without_scopes_the_challenge_names_none() -> None:
    assert await listener(scopes=()).refuses(request(None)) == f"Bearer {PLACE}"


@pytest.mark.parametrize("field", ["Bearer reader", "bearer reader", "BEARER   reader"])
async def test_the_scheme_is_one_in_any_case(field: str) -> None:
    assert await listener().ask(request(field)) == USERS["reader"]


async def test_a_token_in_the_query_or_in_a_body_is_never_read() -> None:
    class WithQuery(Request):
        query = "access_token=reader"
        body = b"access_token=reader"
        target = "/mcp?access_token=reader"

    found = await listener().refuses(WithQuery("GET"))
    assert found == f'Bearer {PLACE}, scope="read"'


async def test_host_and_forwarded_headers_change_nothing_of_what_is_published() -> None:
    spoofed = request(None, host="evil.example", x_forwarded_host="evil.example", x_forwarded_proto="http")
    assert await listener().refuses(spoofed) == f'Bearer {PLACE}, scope="read"'


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_the_answer_is_the_same_for_every_method(method: str) -> None:
    assert await listener().status(Request(method)) == 401
    assert await listener().status(Request(method, authorization="Bearer nobody")) == 401
    assert await listener().status(Request(method, authorization="Bearer reader")) == 200


def header(denial: Denial, name: str = "WWW-Authenticate") -> str:
    return dict(denial.headers)[name]


def test_a_lack_of_scopes_names_all_scopes_of_the_operation() -> None:
    guard = listener().guard
    denial = guard.lacking(USERS["other"], frozenset({"write", "admin"}), repeats_granted=False)
    assert denial.status == 403
    assert header(denial) == f'Bearer {LACKS}, {PLACE}, scope="admin write"'
    assert json.loads(denial.body)["error"] == "insufficient_scope"


def test_for_older_clients_it_also_repeats_what_was_granted() -> None:
    guard = listener().guard
    denial = guard.lacking(USERS["other"], frozenset({"write"}), repeats_granted=True)
    assert header(denial) == f'Bearer {LACKS}, {PLACE}, scope="write other"'
    many = Principal("m", scopes={f"s{number}" for number in range(5000)})
    assert len(header(guard.lacking(many, frozenset({"write"}), repeats_granted=True))) < 1000


def test_a_bound_token_is_told_so_in_its_own_scheme() -> None:
    denial = listener(dpop="allowed").guard.lacking(USERS["bound"], frozenset({"w"}), repeats_granted=False)
    assert header(denial) == f'DPoP {LACKS}, {ALGS}, {PLACE}, scope="w"'


async def test_a_broad_scope_includes_narrow_ones_over_any_number_of_steps() -> None:
    implies = {"admin": ["write"], "write": ["read"], "a": ["b"], "b": ["a"]}
    users = {"t": Principal("root", scopes={"admin"}), "u": Principal("u", scopes={"a"})}
    protected = listener(verifier=StaticVerifier(users), implies=implies)
    found = await protected.ask(request("Bearer t"))
    assert isinstance(found, Principal)
    assert found.scopes == {"admin", "write", "read"}
    assert await protected.status(request("Bearer u")) == 403


HOSTILE = 'a\r\nSet-Cookie: x=1"\\é\x00\x7f\u2028 b'


def test_nothing_breaks_out_of_a_challenge() -> None:
    guard = AccessGuard(
        ResourceServer(resource=RESOURCE, issuer=ISSUER, verifier=StaticVerifier({}), name=HOSTILE)
    )
    denial = guard.lacking(Principal("x"), frozenset({HOSTILE}), repeats_granted=False)
    for name, value in denial.headers:
        assert re.fullmatch(r"[\x20-\x7e]+", name + value)
    (challenge,) = parse_challenges([header(denial)])
    assert set(challenge.params) == {"error", "error_description", "resource_metadata", "scope"}
    assert '"' not in challenge.params["scope"]


@given(st.sets(st.text(max_size=20), min_size=1, max_size=4))
def test_any_scopes_make_one_clean_challenge(scopes: set[str]) -> None:
    denial = listener().guard.lacking(Principal("x"), frozenset(scopes), repeats_granted=True)
    line = header(denial)
    assert re.fullmatch(r"[\x20-\x7e]+", line)
    (challenge,) = parse_challenges([line])
    assert challenge.params["error"] == "insufficient_scope"
    assert challenge.params["resource_metadata"].startswith("https://h.example/.well-known/")


@given(st.text(max_size=80) | st.from_regex(r"(?i:bearer|dpop)[ \t]*[ -~]{0,40}", fullmatch=True))
def test_any_field_has_one_token_or_none_or_is_malformed(field: str) -> None:
    try:
        found = read_credentials(field)
    except MalformedCredentials:
        assert field[:4].lower() in ("bear", "dpop")
        return
    if found is not None:
        assert re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", found.token)
        assert field.rstrip(" \t").endswith(found.token)
        assert repr(found) == f"Credentials(scheme={found.scheme!r})"


def test_a_token_may_be_long_and_not_longer() -> None:
    found = read_credentials("Bearer " + "a" * MAX_TOKEN)
    assert found is not None
    assert len(found.token) == MAX_TOKEN
    with pytest.raises(MalformedCredentials):
        read_credentials("Bearer " + "a" * (MAX_TOKEN + 1))


async def test_a_huge_field_costs_little_and_is_malformed() -> None:
    protected = listener()
    for field in ("Bearer " + "a" * 1_000_000, "Bearer " * 100_000, "Bearer " + " " * 1_000_000):
        assert await protected.status(request(field)) == 400
    assert await protected.status(request("x" * 1_000_000)) == 401


async def test_a_verifier_of_the_program_may_give_a_token_that_has_expired() -> None:
    protected = listener()
    users = {"t": Principal("x", scopes={"read"}, expires_at=protected.clock() - 31)}
    protected = listener(verifier=StaticVerifier(users))
    assert await protected.status(bearer("t")) == 401


async def test_the_metadata_of_the_issuer_is_mirrored_where_it_is_asked_for() -> None:
    assert listener().guard.mirror_path is None
    protected = listener(mirror_metadata=True)
    assert protected.guard.mirror_path == "/.well-known/oauth-authorization-server"
    protected.authority.down = True
    found = await protected.guard.mirror(protected.authority.fetch)
    assert isinstance(found, Denial)
    assert found.status == 503
    protected.authority.down = False
    protected.clock.time += 5
    assert json.loads(await protected.guard.mirror(protected.authority.fetch)) == protected.authority.metadata
    fetches = len(protected.authority.fetched)
    await protected.guard.mirror(protected.authority.fetch)
    assert len(protected.authority.fetched) == fetches


def test_nothing_secret_is_in_a_repr() -> None:
    protected = listener()
    shown = repr([protected.guard, protected.settings, USERS["bound"], StaticVerifier(USERS)])
    assert "reader" not in shown
    assert "jkt" not in shown


# -- The settings of a protected server, and the metadata that it publishes ------------------------------

ISSUER_SETTINGS = "https://as.example/t1"


def document(**settings: Any) -> Any:
    guard = AccessGuard(ResourceServer(issuer=ISSUER_SETTINGS, **{"resource": "https://h/mcp", **settings}))
    return json.loads(next(iter(guard.documents.values())))


def test_the_metadata_has_the_resource_and_the_issuer_as_they_were_written() -> None:
    resource = "HTTPS://Host.Example:443/%7euser/MCP/".replace("HTTPS", "https")
    assert document(resource=resource) == {
        "resource": resource,
        "authorization_servers": [ISSUER_SETTINGS],
        "bearer_methods_supported": ["header"],
    }


def test_the_metadata_has_what_is_set_and_nothing_else() -> None:
    assert document(scopes=["b", "a", "b"], name="Mine", dpop="required") == {
        "resource": "https://h/mcp",
        "authorization_servers": [ISSUER_SETTINGS],
        "scopes_supported": ["b", "a"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Mine",
        "dpop_signing_alg_values_supported": ["ES256", "ES384", "PS256", "RS256", "Ed25519"],
        "dpop_bound_access_tokens_required": True,
    }


ROOT = "/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("resource", "paths", "challenged"),
    [
        ("https://h", [ROOT], f"https://h{ROOT}"),
        ("https://h/", [ROOT], f"https://h{ROOT}"),
        ("https://h:8443/mcp", [f"{ROOT}/mcp", ROOT], f"https://h:8443{ROOT}/mcp"),
        ("https://h/a/mcp/", [f"{ROOT}/a/mcp/", f"{ROOT}/a/mcp", ROOT], f"https://h{ROOT}/a/mcp/"),
        ("http://[::1]:80/mcp?x=1/2", [f"{ROOT}/mcp", ROOT], f"http://[::1]:80{ROOT}/mcp?x=1/2"),
    ],
)
def test_the_metadata_is_where_rfc_9728_puts_it(resource: str, paths: list[str], challenged: str) -> None:
    guard = AccessGuard(ResourceServer(resource=resource, issuer=ISSUER_SETTINGS))
    assert list(guard.documents) == paths
    denial = guard.known(RequestSettings({}))
    assert dict(denial.headers)["WWW-Authenticate"] == f'Bearer resource_metadata="{challenged}"'


class RequestSettings:
    method, path = "POST", "/mcp"

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"resource": "h/mcp"}, ValueError),
        ({"resource": "https://h/mcp#x"}, ValueError),
        ({"resource": "https://user@h/mcp"}, ValueError),
        ({"resource": 'https://h/"'}, ValueError),
        ({"resource": "https://h/\r\nx: y"}, ValueError),
        ({"resource": "https://h/é"}, ValueError),
        ({"resource": "urn:x"}, ValueError),
        ({"issuer": ()}, ValueError),
        ({"issuer": "as.example"}, ValueError),
        ({"scopes": "a b"}, TypeError),
        ({"scopes": ["a b"]}, ValueError),
        ({"scopes": ['a"b']}, ValueError),
        ({"scopes": ["a\r\n"]}, ValueError),
        ({"scopes": [""]}, ValueError),
        ({"scopes": ["offline_access"]}, ValueError),
        ({"dpop": "maybe"}, ValueError),
    ],
)
def test_settings_that_cannot_be_published_are_refused(settings: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(settings)) + "|scope"):
        ResourceServer(**{"resource": "https://h/mcp", "issuer": ISSUER_SETTINGS, **settings})


@pytest.mark.parametrize("missing", ["resource", "issuer"])
def test_resource_and_issuer_must_be_given(missing: str) -> None:
    settings: Any = {"resource": "https://h/mcp", "issuer": ISSUER_SETTINGS}
    del settings[missing]
    with pytest.raises(TypeError, match=missing):
        ResourceServer(**settings)


@pytest.mark.parametrize("algorithms", [["none"], ["HS256"], ["RS256", "HS512"], []])
def test_tokens_are_never_verified_by_algorithms_without_a_public_key(algorithms: list[str]) -> None:
    with pytest.raises(ValueError, match="algorithms are some of"):
        JwtVerifier(algorithms=algorithms)


def test_without_the_extra_the_default_verifier_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp_actors.auth.jose", None)
    with pytest.raises(ImportError, match=r"pip install 'joserfc>=1.8'"):
        ResourceServer(resource="https://h/mcp", issuer=ISSUER_SETTINGS)
    settings = ResourceServer(resource="https://h/mcp", issuer=ISSUER_SETTINGS, verifier=StaticVerifier({}))
    assert settings.scopes == ()
