"""The settings of a protected server, and the metadata that it publishes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from mcp_actors.auth import AccessGuard, JwtVerifier, ResourceServer, StaticVerifier

ISSUER = "https://as.example/t1"


def document(**settings: Any) -> Any:
    guard = AccessGuard(ResourceServer(issuer=ISSUER, **{"resource": "https://h/mcp", **settings}))
    return json.loads(next(iter(guard.documents.values())))


def test_the_metadata_has_the_resource_and_the_issuer_as_they_were_written() -> None:
    resource = "HTTPS://Host.Example:443/%7euser/MCP/".replace("HTTPS", "https")
    assert document(resource=resource) == {
        "resource": resource,
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
    }


def test_the_metadata_has_what_is_set_and_nothing_else() -> None:
    assert document(scopes=["b", "a", "b"], name="Mine", dpop="required") == {
        "resource": "https://h/mcp",
        "authorization_servers": [ISSUER],
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
    guard = AccessGuard(ResourceServer(resource=resource, issuer=ISSUER))
    assert list(guard.documents) == paths
    denial = guard.known(Request({}))
    assert dict(denial.headers)["WWW-Authenticate"] == f'Bearer resource_metadata="{challenged}"'


class Request:
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
        ResourceServer(**{"resource": "https://h/mcp", "issuer": ISSUER, **settings})


@pytest.mark.parametrize("missing", ["resource", "issuer"])
def test_resource_and_issuer_must_be_given(missing: str) -> None:
    settings: Any = {"resource": "https://h/mcp", "issuer": ISSUER}
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
    with pytest.raises(ImportError, match=r"pip install 'mcp-actors\[auth\]'"):
        ResourceServer(resource="https://h/mcp", issuer=ISSUER)
    settings = ResourceServer(resource="https://h/mcp", issuer=ISSUER, verifier=StaticVerifier({}))
    assert settings.scopes == ()
