"""Tokens that only their authorization server understands (RFC 7662)."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import parse_qs

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey

from mcp_actors.auth import Denial, IntrospectionVerifier, Principal
from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.auth.jose import is_signed_by, read_claims, read_jws
from mcp_actors.errors import UrlRefused

from .authority import INTROSPECTION, ISSUER, METADATA, RESOURCE, START, Listener, Request, bearer

ACTIVE = {
    "active": True,
    "sub": "alice",
    "client_id": "c1",
    "exp": START + 600,
    "iat": START,
    "iss": ISSUER,
    "aud": RESOURCE,
    "scope": "read write",
    "token_type": "Bearer",
}


def listener(answer: Any = ACTIVE, **verifier: Any) -> Listener:
    settings = {"client_id": "rs:1", "client_secret": "s&cret", **verifier}
    found = Listener(verifier=IntrospectionVerifier(**settings))
    say(found, answer)
    return found


def say(found: Listener, answer: Any) -> None:
    if not isinstance(answer, Fetched | FetchFailed):
        answer = Fetched(200, (), answer if isinstance(answer, bytes) else json.dumps(answer).encode())
    found.authority.introspect = lambda fetch: answer


def changed(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in (ACTIVE | members).items() if value is not None}


async def test_an_active_token_is_its_issuer_client_and_subject() -> None:
    found = await listener().ask(bearer("opaque"))
    assert found == Principal("alice", ISSUER, "c1")
    assert isinstance(found, Principal)
    assert found.scopes == {"read", "write"}


@pytest.mark.parametrize(
    "answer", [changed(iss=None), changed(exp=None), changed(aud=["x", RESOURCE]), changed(client_id=None)]
)
async def test_an_answer_may_leave_out_some_members(answer: Any) -> None:
    assert await listener(answer).status(bearer("opaque")) == 200


@pytest.mark.parametrize(
    "answer",
    [
        {"active": False},
        changed(active="true"),
        changed(active=1),
        changed(active=None),
        {},
        changed(aud="https://other.example"),
        changed(aud=None),
        changed(aud=RESOURCE + "/"),
        changed(iss="https://other.example"),
        changed(exp=START - 31),
        changed(exp="tomorrow"),
        changed(nbf=START + 31),
        changed(sub=None),
        changed(sub="a\nb"),
        changed(cnf={"jkt": "x"}),
        changed(cnf={}),
    ],
)
async def test_every_other_token_is_refused_without_a_word_about_the_reason(answer: Any) -> None:
    challenge = await listener(answer).refuses(bearer("opaque"))
    assert challenge.startswith(
        'Bearer error="invalid_token", error_description="The access token is not valid for this server.", '
    )


@pytest.mark.parametrize(
    "answer",
    [
        FetchFailed("there is no connection"),
        FetchFailed("the URL must not be used", refused=True),
        Fetched(401, (), b'{"error":"invalid_client"}'),
        Fetched(302, (("location", "https://evil.example"),), b""),
        Fetched(500, (), json.dumps(ACTIVE).encode()),
        b"not json",
        b"[]",
        b'{"active":' * 20_000,
    ],
)
async def test_without_an_answer_it_is_503_and_no_challenge(answer: Any) -> None:
    found = await listener(answer).ask(bearer("opaque"))
    assert isinstance(found, Denial)
    assert found.status == 503
    assert {"WWW-Authenticate", "Retry-After"} & {name for name, _ in found.headers} == {"Retry-After"}


@pytest.mark.parametrize("out_of_order", [FetchFailed("there is no connection"), Fetched(503, (), b"")])
async def test_an_endpoint_that_is_out_of_order_is_left_alone_for_a_while(out_of_order: Any) -> None:
    protected = listener()
    assert await protected.status(bearer("known")) == 200
    say(protected, out_of_order)
    for number in range(50):
        found = await protected.ask(bearer(f"unknown{number}"))
        assert isinstance(found, Denial)
        assert (found.status, "Retry-After" in dict(found.headers)) == (503, True)
    assert protected.authority.count(INTROSPECTION) == 2
    # Who is remembered is served meanwhile.
    assert await protected.status(bearer("known")) == 200
    say(protected, ACTIVE)
    protected.clock.time += 14.9
    assert await protected.status(bearer("unknown1")) == 503
    protected.clock.time += 0.2
    assert await protected.status(bearer("unknown1")) == 200
    assert protected.authority.count(INTROSPECTION) == 3


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_an_answer_that_may_be_about_one_token_stops_no_other_question(status: int) -> None:
    protected = listener(Fetched(status, (), b"{}"))
    assert await protected.status(bearer("strange")) == 503
    say(protected, ACTIVE)
    assert await protected.status(bearer("opaque")) == 200


async def test_without_metadata_it_is_503_too() -> None:
    protected = listener()
    protected.authority.metadata = {"issuer": ISSUER}
    assert await protected.status(bearer("opaque")) == 503
    assert protected.authority.count(INTROSPECTION) == 0


async def test_a_revoked_token_is_refused_after_the_time_for_which_it_was_remembered() -> None:
    protected = listener()
    assert await protected.status(bearer("opaque")) == 200
    say(protected, {"active": False})
    protected.clock.time += 29
    assert await protected.status(bearer("opaque")) == 200
    protected.clock.time += 1
    assert await protected.status(bearer("opaque")) == 401
    assert protected.authority.count(INTROSPECTION) == 2


async def test_a_refusal_is_believed_for_five_seconds() -> None:
    protected = listener({"active": False})
    for _ in range(20):
        assert await protected.status(bearer("opaque")) == 401
    assert protected.authority.count(INTROSPECTION) == 1
    say(protected, ACTIVE)
    protected.clock.time += 5
    assert await protected.status(bearer("opaque")) == 200


@pytest.mark.parametrize("answer", [ACTIVE, {"active": False}])
async def test_a_token_is_asked_about_once_however_its_header_is_spelt(answer: Any) -> None:
    protected = listener(answer)
    first = await protected.status(bearer("opaque"))
    spellings = ["bearer opaque", "BEARER opaque", "Bearer" + " " * 50 + "opaque", "bEaReR  opaque \t"]
    assert {await protected.status(Request(authorization=each)) for each in spellings} == {first}
    assert protected.authority.count(INTROSPECTION) == 1


async def test_an_answer_is_never_believed_beyond_the_end_of_the_token() -> None:
    protected = listener(changed(exp=START + 10))
    assert await protected.status(bearer("opaque")) == 200
    protected.clock.time += 10
    assert protected.guard.known(bearer("opaque")) is None


def form(fetch: Fetch) -> dict[str, str]:
    return {name: value for name, (value,) in parse_qs((fetch.body or b"").decode()).items()}


async def asked(protected: Listener) -> Fetch:
    seen: list[Fetch] = []

    def answer(fetch: Fetch) -> Fetched:
        seen.append(fetch)
        return Fetched(200, (), json.dumps(ACTIVE).encode())

    protected.authority.introspect = answer
    assert await protected.status(bearer("op+que=")) == 200
    (fetch,) = seen
    assert (fetch.method, fetch.url, fetch.redirects) == ("POST", INTROSPECTION, 0)
    return fetch


async def test_the_server_authenticates_by_basic_with_encoded_parts() -> None:
    fetch = await asked(listener())
    assert form(fetch) == {"token": "op+que=", "token_type_hint": "access_token"}
    encoded = base64.b64encode(b"rs%3A1:s%26cret").decode()
    assert dict(fetch.headers)["authorization"] == f"Basic {encoded}"
    assert "cret" not in repr(fetch)


async def test_or_by_its_secret_in_the_body() -> None:
    fetch = await asked(listener(secret_in_body=True))
    assert form(fetch)["client_secret"] == "s&cret"
    assert form(fetch)["client_id"] == "rs:1"
    assert "authorization" not in dict(fetch.headers)


async def test_or_by_an_assertion_with_its_key() -> None:
    key = ECKey.generate_key("P-256")
    fetch = await asked(listener(private_key=key.as_pem(private=True).decode(), key_id="k"))
    sent = form(fetch)
    assert sent["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    assertion = read_jws(sent["client_assertion"])
    assert is_signed_by(assertion, key, ["ES256"])
    assert read_claims(assertion)["aud"] == ISSUER
    assert "authorization" not in dict(fetch.headers)
    assert "client_secret" not in sent


async def test_a_token_of_a_client_itself_is_served_where_that_is_configured() -> None:
    answer = changed(sub=None)
    assert await listener(answer).status(bearer("opaque")) == 401
    found = await listener(answer, clients_are_subjects=True).ask(bearer("opaque"))
    assert found == Principal("c1", ISSUER, "c1")
    assert (
        await listener(changed(sub=None, client_id=None), clients_are_subjects=True).status(bearer("o"))
        == 401
    )


async def test_the_endpoint_may_be_configured() -> None:
    protected = listener(endpoint=INTROSPECTION)
    assert await protected.status(bearer("opaque")) == 200
    assert protected.authority.count(METADATA) == 0
    with pytest.raises(UrlRefused):
        listener(endpoint="http://as.example/introspect")


def test_no_secret_is_shown() -> None:
    shown = repr(IntrospectionVerifier(client_id="c", client_secret="s3cret", private_key="pr1vate"))
    assert "s3cret" not in shown
    assert "pr1vate" not in shown


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary(max_size=100) | st.dictionaries(st.sampled_from([*sorted(ACTIVE), "cnf", "nbf"]), JSON))
def test_any_answer_is_served_refused_or_503(answer: Any) -> None:
    whole = answer if isinstance(answer, bytes) else ACTIVE | answer
    protected = listener(whole)
    assert trio.run(protected.status, bearer("opaque")) in (200, 401, 503)
