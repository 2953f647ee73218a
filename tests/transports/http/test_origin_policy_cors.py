"""What a browser is told: the protocol's own headers, and of what it asked for only what is safe in an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_transports.http.server.origin_policy import ALLOWED_HEADERS, EXPOSED_HEADERS, OriginPolicy, Verdict

LOCAL = OriginPolicy("127.0.0.1")


def test_a_preflight_allows_what_the_protocol_sends() -> None:
    verdict = LOCAL.check("localhost", "http://localhost:6274")
    assert LOCAL.preflight(verdict, None) == (
        *verdict.headers,
        ("Access-Control-Allow-Methods", "GET, POST, DELETE"),
        ("Access-Control-Allow-Headers", ALLOWED_HEADERS),
        ("Access-Control-Max-Age", "600"),
    )


@pytest.mark.parametrize(
    ("requested", "added"),
    [
        ("content-type,mcp-param-city", ", mcp-param-city"),
        ("Mcp-Param-City, mcp-param-day ,\tMCP-PARAM-CITY", ", mcp-param-city, mcp-param-day"),
        ("x-other, mcp-params, xmcp-param-a, cookie", ""),
        ("mcp-param-a\r\nSet-Cookie: x=y", ""),
        ("mcp-param-a b, mcp-param-\u00e9, mcp-param-a:b, mcp-param-a\x00", ""),
        ("mcp-param-" + "a" * 1000, ""),
        ("", ""),
        (",,,", ""),
    ],
)
def test_a_preflight_allows_mirrored_parameters_by_name(requested: str, added: str) -> None:
    guard = OriginPolicy("127.0.0.1", max_age=5)
    headers = dict(guard.preflight(guard.check("localhost", "http://localhost"), requested))
    assert headers["Access-Control-Allow-Headers"] == ALLOWED_HEADERS + added
    assert headers["Access-Control-Max-Age"] == "5"


def test_a_preflight_is_bounded() -> None:
    verdict = LOCAL.check("localhost", "http://localhost")
    headers = dict(LOCAL.preflight(verdict, ",".join(f"mcp-param-{number}" for number in range(10_000))))
    assert headers["Access-Control-Allow-Headers"].count("mcp-param-") == 64


def test_further_headers_can_be_allowed() -> None:
    guard = OriginPolicy("127.0.0.1", allowed_headers=["X-Api-Key"])
    headers = dict(guard.preflight(guard.check("localhost", "http://localhost"), None))
    assert headers["Access-Control-Allow-Headers"] == ALLOWED_HEADERS + ", X-Api-Key"


@pytest.mark.parametrize("origin", ["null", "https://any.example", "file://", "not an origin\r\nX: y"])
def test_any_origin_is_told_by_a_star_and_not_by_an_echo(origin: str) -> None:
    verdict = OriginPolicy("127.0.0.1", allowed_origins=["*"]).check("localhost", origin)
    assert verdict == Verdict(
        None, (("Access-Control-Allow-Origin", "*"), ("Access-Control-Expose-Headers", EXPOSED_HEADERS))
    )


@given(st.text(), st.text())
def test_no_text_breaks_it_or_gets_into_a_header(host: str, origin: str) -> None:
    assert LOCAL.check(host, None).refusal is not None or host.lower().rstrip(".").startswith(
        ("local", "127.", "[")
    )
    verdict = LOCAL.check("localhost", origin)
    for _, value in (*verdict.headers, *LOCAL.preflight(verdict, host)):
        assert value.isascii()
        assert value.isprintable()
