"""Metadata of resources and authorization servers: believed when it speaks for what it was asked about."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_actors.auth.effects import Fetched
from mcp_actors.auth.metadata import (
    authorization_server_from,
    guessed_authorization_server,
    read_authorization_server,
    read_protected_resource,
)
from mcp_actors.errors import (
    AuthorizationError,
    AuthorizationUnavailable,
    DiscoveryFailed,
    MetadataMismatch,
    UrlRefused,
)

SERVER = "https://h/mcp"
ISSUER = "https://as/t1"
DOCUMENT = {
    "issuer": ISSUER,
    "token_endpoint": "https://as/t1/token",
    "authorization_endpoint": "https://as/t1/authorize",
    "code_challenge_methods_supported": ["S256"],
    "dpop_signing_alg_values_supported": ["ES256"],
    "authorization_response_iss_parameter_supported": True,
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def answer(document: Any, status: int = 200) -> Fetched:
    return Fetched(status, [("content-type", "application/json")], json.dumps(document).encode())


def test_a_resource_is_read_verbatim() -> None:
    found = read_protected_resource(
        answer(
            {
                "resource": "https://H:443/",
                "authorization_servers": ["https://as/", 7],
                "scopes_supported": ["a", "b"],
            }
        ),
        SERVER,
    )
    assert found is not None
    assert found.resource == "https://H:443/"
    assert found.authorization_servers == ("https://as/",)
    assert found.scopes_supported == ("a", "b")
    assert not found.dpop_required


@pytest.mark.parametrize(
    "named", ["https://evil/mcp", "https://h/mcpx", "https://h/mcp#", None, 7, ["https://h/mcp"]]
)
def test_the_metadata_of_another_resource_is_an_error(named: Any) -> None:
    with pytest.raises(MetadataMismatch, match="pass resource="):
        read_protected_resource(answer({"resource": named, "authorization_servers": [ISSUER]}), SERVER)


def test_a_resource_that_the_user_named_is_taken_at_their_word() -> None:
    document = answer({"resource": "api://x", "authorization_servers": [ISSUER]})
    found = read_protected_resource(document, SERVER, resource="api://x")
    assert found is not None
    assert found.resource == "api://x"
    with pytest.raises(MetadataMismatch):
        read_protected_resource(document, SERVER, resource="api://x/")


@pytest.mark.parametrize("issuers", [[], None, "https://as", [7], {}])
def test_a_resource_without_an_authorization_server_is_an_error(issuers: Any) -> None:
    with pytest.raises(DiscoveryFailed):
        read_protected_resource(answer({"resource": SERVER, "authorization_servers": issuers}), SERVER)


@pytest.mark.parametrize("status", [204, 302, 400, 401, 403, 404, 500, 502])
def test_any_other_status_is_no_metadata(status: int) -> None:
    assert read_protected_resource(answer({"resource": SERVER}, status), SERVER) is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff{}", b"[" * 200_000, b'{"error": "x"}'])
def test_what_is_no_document_is_none(body: bytes) -> None:
    assert read_protected_resource(Fetched(200, [], body), SERVER) is None
    assert read_authorization_server(Fetched(200, [], body), ISSUER) is None


def test_an_authorization_server_is_read_and_written() -> None:
    found = read_authorization_server(answer(DOCUMENT), ISSUER)
    assert found is not None
    assert found.token_endpoint == "https://as/t1/token"
    assert found.code_challenge_methods_supported == ("S256",)
    assert found.token_endpoint_auth_methods_supported is None
    assert found.authorization_response_iss_parameter_supported
    assert not found.client_id_metadata_document_supported
    assert authorization_server_from(json.loads(json.dumps(found.as_document()))) == found


@pytest.mark.parametrize(
    "issuer",
    ["https://as/t1/", "https://AS/t1", "https://as:443/t1", "https://as/%741", "https://as", None, 7],
)
def test_an_issuer_is_compared_character_by_character(issuer: Any) -> None:
    with pytest.raises(MetadataMismatch, match="trusted_issuers="):
        read_authorization_server(answer({**DOCUMENT, "issuer": issuer}), ISSUER)


def test_an_issuer_that_the_user_trusts_may_differ() -> None:
    document = answer({**DOCUMENT, "issuer": "https://as/t1/"})
    found = read_authorization_server(document, ISSUER, expected="https://as/t1/")
    assert found is not None
    assert found.issuer == "https://as/t1/"


@pytest.mark.parametrize(
    ("status", "raises"), [(500, True), (503, True), (502, False), (404, False), (401, False)]
)
def test_an_authorization_server_that_is_out_of_order(status: int, raises: bool) -> None:
    if raises:
        with pytest.raises(AuthorizationUnavailable):
            read_authorization_server(answer({}, status), ISSUER)
    else:
        assert read_authorization_server(answer({}, status), ISSUER) is None


@pytest.mark.parametrize("name", ["token_endpoint", "authorization_endpoint", "registration_endpoint"])
@pytest.mark.parametrize("url", ["javascript:alert(1)", "http://evil/x", "file:///x", "https://u@as/x"])
def test_one_bad_url_spoils_the_document(name: str, url: str) -> None:
    with pytest.raises(UrlRefused, match=name):
        read_authorization_server(answer({**DOCUMENT, name: url}), ISSUER)


def test_a_token_endpoint_must_be_there() -> None:
    with pytest.raises(DiscoveryFailed, match="token_endpoint"):
        read_authorization_server(answer({"issuer": ISSUER}), ISSUER)


def test_endpoints_are_guessed_from_the_server() -> None:
    found = guessed_authorization_server("http://localhost:9")
    assert (found.token_endpoint, found.registration_endpoint) == (
        "http://localhost:9/token",
        "http://localhost:9/register",
    )
    with pytest.raises(UrlRefused):
        guessed_authorization_server("http://h")


NAMES = st.sampled_from([*DOCUMENT, "resource", "authorization_servers", "scopes_supported"])


@given(st.dictionaries(NAMES, JSON))
@example({"resource": SERVER, "authorization_servers": ["\ud800"]})
@example({"resource": "\x00" * 100, "authorization_servers": []})
def test_no_document_is_too_odd(document: dict[str, Any]) -> None:
    for read in (
        lambda fetched: read_protected_resource(fetched, SERVER),
        lambda fetched: read_authorization_server(fetched, ISSUER),
    ):
        raised = ""
        try:
            read(answer({"issuer": ISSUER, "resource": SERVER, **document}))
        except AuthorizationError as error:
            raised = str(error)
        assert raised.isprintable()


@given(st.binary())
def test_no_body_is_too_odd(body: bytes) -> None:
    assert read_protected_resource(Fetched(200, [], body), SERVER) is None
