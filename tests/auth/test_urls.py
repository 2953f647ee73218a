"""The URLs of authorization: canonical forms, well-known places, and those that are refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
from mcp_actors.errors import UrlRefused

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
