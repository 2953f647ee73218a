"""Metadata of resources and authorization servers: believed when it speaks for what it was asked about."""

from __future__ import annotations

import ast
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_actors.auth.effects import Fetched
from mcp_actors.auth.metadata import (
    Challenge,
    authorization_server_from,
    first_parameter,
    format_challenge,
    guessed_authorization_server,
    parse_challenges,
    read_authorization_server,
    read_protected_resource,
)
from mcp_actors.auth.urls import (
    authorization_server_urls,
    canonical_resource,
    covers,
    is_loopback,
    origin,
    protected_resource_urls,
    require_usable,
    same_origin,
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


# -- The ``WWW-Authenticate`` header, as others write it and as we do ------------------------------------

PRM = "https://h/.well-known/oauth-protected-resource/mcp?a=b"

CASES: list[tuple[list[str], list[tuple[str, dict[str, str]]]]] = [
    ([], []),
    ([""], []),
    (["Bearer"], [("bearer", {})]),
    (['bEaReR ERROR="invalid_token"'], [("bearer", {"error": "invalid_token"})]),
    ([f'Bearer resource_metadata="{PRM}"'], [("bearer", {"resource_metadata": PRM})]),
    ([f"Bearer resource_metadata={PRM}"], [("bearer", {"resource_metadata": PRM})]),
    (['Bearer scope="a b", error="x"'], [("bearer", {"scope": "a b", "error": "x"})]),
    (['Bearer scope="a" error="x"'], [("bearer", {"scope": "a", "error": "x"})]),
    (['Bearer, DPoP algs="ES256"'], [("bearer", {}), ("dpop", {"algs": "ES256"})]),
    (['Basic realm="a", Bearer scope="b"'], [("basic", {"realm": "a"}), ("bearer", {"scope": "b"})]),
    (['Negotiate abc==, Bearer scope="b"'], [("negotiate", {}), ("bearer", {"scope": "b"})]),
    (["Negotiate abc==", 'Bearer scope="b"'], [("negotiate", {}), ("bearer", {"scope": "b"})]),
    (
        [r'Bearer error_description="say \"a, b\" \\"'],
        [("bearer", {"error_description": r'say "a, b" ' + "\\"})],
    ),
    (['Bearer scope="a", scope="b"'], [("bearer", {"scope": "a"})]),
    (['Bearer error="x", scope="never ends'], [("bearer", {"error": "x"})]),
    (['Bearer scope=""'], [("bearer", {"scope": ""})]),
    (['Bearer  realm = "a" ,, scope = b'], [("bearer", {"realm": "a", "scope": "b"})]),
    (['scope="a"'], []),
]


@pytest.mark.parametrize(("lines", "found"), CASES)
def test_challenges_are_read(lines: list[str], found: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(lines) == [Challenge(scheme, params) for scheme, params in found]


def test_a_parameter_is_that_of_the_first_scheme_we_know_that_has_it() -> None:
    challenges = parse_challenges(['Basic scope="no"', "Bearer", 'DPoP scope="yes"', 'Bearer scope="late"'])
    assert first_parameter(challenges, "scope") == "yes"
    assert first_parameter(challenges, "error") is None


@given(st.lists(st.text(), max_size=4))
@example(['Bearer a="\\'])
@example(['Bearer a="' + "\\" * 99])
@example(["a" * 20000, "a " * 9000, 'a="' * 7000])
def test_no_line_is_too_odd(lines: list[str]) -> None:
    for challenge in parse_challenges(lines):
        assert challenge.scheme == challenge.scheme.lower()


@pytest.mark.parametrize(
    "piece", ["a ", 'a="', "a=b ", 'a="b" ', ", ", "a,", "a\t", "\\", 'x="\\"', "A" * 50 + " "]
)
def test_a_response_takes_time_in_proportion(piece: str) -> None:
    line = "Bearer " + piece * (1024 * 1024 // len(piece))
    began = time.process_time()
    parse_challenges([line] * 10_000)
    assert time.process_time() - began < 2


@given(st.dictionaries(st.sampled_from(["scope", "error", "resource_metadata"]), st.text(), min_size=1))
@example({"scope": 'a"\r\nSet-Cookie: x=\\'})
def test_a_challenge_of_ours_is_one_clean_line(params: dict[str, str]) -> None:
    line = format_challenge("Bearer", params)
    assert line.isascii()
    assert line.isprintable()
    (found,) = parse_challenges([line])
    assert found.scheme == "bearer"
    assert list(found.params) == list(params)


def test_a_challenge_of_ours_says_what_it_was_given() -> None:
    params = {"error": "invalid_token", "scope": "a b", "resource_metadata": PRM}
    assert format_challenge("Bearer", params) == (
        f'Bearer error="invalid_token", scope="a b", resource_metadata="{PRM}"'
    )
    assert format_challenge("Bearer", {}) == "Bearer"


# -- The URLs of authorization: canonical forms, well-known places, and those that are refused -----------

RESOURCE = "/.well-known/oauth-protected-resource"
OAUTH, OPENID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp"),
        ("HTTPS://MCP.Example.com/Mcp", "https://mcp.example.com/Mcp"),
        ("https://h/", "https://h"),
        ("https://h", "https://h"),
        ("https://h/mcp/", "https://h/mcp/"),
        ("https://h:443/mcp#here", "https://h/mcp"),
        ("https://h:8443/mcp?tenant=a", "https://h:8443/mcp?tenant=a"),
        ("http://user:word@localhost:80/mcp", "http://localhost/mcp"),
        ("ws://[::1]:9/mcp", "http://[::1]:9/mcp"),
        ("wss://h/mcp", "https://h/mcp"),
    ],
)
def test_the_canonical_resource(url: str, canonical: str) -> None:
    assert canonical_resource(url) == canonical


@pytest.mark.parametrize("url", ["", "mcp", "ftp://h/x", "https://", "https://[::1", "https://h:99999/x"])
def test_what_is_no_url_of_a_server_has_no_resource(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical_resource(url)


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("https://h/a/b?q=1", [f"https://h{RESOURCE}/a/b", f"https://h{RESOURCE}"]),
        ("https://h/mcp/", [f"https://h{RESOURCE}/mcp", f"https://h{RESOURCE}"]),
        ("https://H:8443/mcp", [f"https://h:8443{RESOURCE}/mcp", f"https://h:8443{RESOURCE}"]),
        ("https://h/", [f"https://h{RESOURCE}"]),
        ("https://h", [f"https://h{RESOURCE}"]),
        ("wss://h/mcp", [f"https://h{RESOURCE}/mcp", f"https://h{RESOURCE}"]),
    ],
)
def test_the_places_of_a_resources_metadata(url: str, places: list[str]) -> None:
    assert protected_resource_urls(url) == places


@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        ("https://as", [f"https://as{OAUTH}", f"https://as{OPENID}"]),
        ("https://as/", [f"https://as{OAUTH}", f"https://as{OPENID}"]),
        ("https://as/t1", [f"https://as{OAUTH}/t1", f"https://as{OPENID}/t1", f"https://as/t1{OPENID}"]),
        ("https://as/t1/", [f"https://as{OAUTH}/t1", f"https://as{OPENID}/t1", f"https://as/t1{OPENID}"]),
        (
            "http://[::1]:9/a/b",
            [f"http://[::1]:9{each}" for each in (f"{OAUTH}/a/b", f"{OPENID}/a/b", f"/a/b{OPENID}")],
        ),
    ],
)
def test_the_places_of_an_authorization_servers_metadata(issuer: str, places: list[str]) -> None:
    assert authorization_server_urls(issuer) == places


@pytest.mark.parametrize(
    ("resource", "server", "is_covered"),
    [
        ("https://h/mcp", "https://h/mcp", True),
        ("https://h", "https://h/mcp", True),
        ("https://h/", "https://h/mcp", True),
        ("https://h/mcp/", "https://h/mcp", True),
        ("https://H:443/mcp", "https://h/mcp/x", True),
        ("https://h/mcp", "wss://h/mcp", True),
        ("http://10.0.0.1/mcp", "http://10.0.0.1/mcp", True),
        ("https://h/mcp", "https://h/mcp?x", True),
        ("https://h/mcp?x", "https://h/mcp?x", True),
        ("https://h/mcp?y", "https://h/mcp?x", False),
        ("https://h/mcpx", "https://h/mcp", False),
        ("https://h/mcp", "https://h/mcpx", False),
        ("https://h/mcp/x", "https://h/mcp", False),
        ("https://h/Mcp", "https://h/mcp", False),
        ("https://evil/mcp", "https://h/mcp", False),
        ("https://h.evil/mcp", "https://h/mcp", False),
        ("https://h:8443/mcp", "https://h/mcp", False),
        ("http://h/mcp", "https://h/mcp", False),
        ("https://h/mcp#", "https://h/mcp", False),
        ("https://h/mcp#x", "https://h/mcp", False),
        ("https://u@h/mcp", "https://h/mcp", False),
        ("https://h@evil/mcp", "https://h/mcp", False),
        ("https://h/mcp", "https://h/mcp/../other", False),
        ("https://h/mcp", "https://h/mcp/%2E%2e/other", False),
        ("https://h\\@evil/mcp", "https://h/mcp", False),
        ("https://h/m\ncp", "https://h/mcp", False),
        ("api://h/mcp", "https://h/mcp", False),
        ("urn:x", "https://h/mcp", False),
        ("", "https://h/mcp", False),
    ],
)
def test_the_resources_that_a_server_may_have(resource: str, server: str, is_covered: bool) -> None:
    assert covers(resource, server) is is_covered


@pytest.mark.parametrize(
    "url",
    [
        "https://as/token",
        "https://as:8443/token?x=1;y=$(z)&w",
        "http://localhost:9/token",
        "http://127.0.0.1/token",
        "http://127.1.2.3/token",
        "http://[::1]:9/token",
    ],
)
def test_urls_that_are_used(url: str) -> None:
    assert require_usable(url, "token_endpoint") == url


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JavaScript://h/%0aalert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "ftp://h/x",
        "ws://h/x",
        "http://as/token",
        "http://10.0.0.1/token",
        "http://localhost.evil/token",
        "http://127.0.0.1.evil/token",
        "http://0x7f.1/token",
        "http://2130706433/token",
        "https://u:p@as/token",
        "https://@as/token",
        "https:///token",
        "https:token",
        "//as/token",
        "/token",
        "",
        "https://as/to ken",
        "https://as/token\n",
        "https://as\t/token",
        "https://as/token#x",
        "https://as\\@evil/token",
        "https://as/`x`",
        "https://as/\u202e",
        "https://ás/",
        "https://[::1/",
        "https://as:99999/",
        "https://as/" + "x" * 5000,
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        require_usable(url, "token_endpoint")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@given(st.text())
@example("https://[")
@example("https://a]")
@example("https://\u2100/")
@example("http://[::1]x:9/")
def test_no_text_is_too_odd_for_a_url(text: str) -> None:
    for url in (text, f"https://{text}", f"https://h/{text}"):
        for reads in (canonical_resource, protected_resource_urls, authorization_server_urls, origin):
            with suppress(ValueError):
                assert reads(url)
        assert covers(url, "https://h/mcp") in (True, False)
        assert is_loopback(url) in (True, False)
        with suppress(UrlRefused):
            assert require_usable(url, "x") == url


def test_origins() -> None:
    assert same_origin("https://H/a", "https://h:443/b?c")
    assert not same_origin("https://h/a", "http://h/a")
    assert not same_origin("https://h/a", "https://h:444/a")
    assert not same_origin("", "")
    assert is_loopback("http://LOCALHOST:3/x")
    assert not is_loopback("http://localhost.example/x")


# -- The page about authorization names a test for each attack: each of them is there --------------------

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs/how-to/authorization.md").read_text()
ATTACKS = [row for row in PAGE.partition("## Attacks")[2].splitlines() if row.startswith("| ")][1:]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def written_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(row: str) -> list[str]:
    return [f"{file}::{test}" for file, test in NAMED.findall(row) if test not in written_in(file)]


@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: str(row).split("|")[1].strip())
def test_each_attack_has_its_tests(row: str) -> None:
    assert NAMED.search(row)
    assert missing(row) == []


def test_there_are_all_attacks_of_the_checklist() -> None:
    assert len(ATTACKS) >= 27


def test_a_test_that_is_gone_is_found() -> None:
    assert missing("| a | b | `auth/test_metadata.py::test_gone` |") == ["auth/test_metadata.py::test_gone"]
