"""Host, Origin and CORS: who gets in by default, what a setting changes, and that nothing hostile gets through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_transports.http.server.origin_policy import ALLOWED_HEADERS, EXPOSED_HEADERS, OriginPolicy, Verdict

LOCAL = OriginPolicy("127.0.0.1")
ALLOWED = Verdict(None, ())


def cors(origin: str) -> Verdict:
    return Verdict(
        None,
        (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", EXPOSED_HEADERS),
            ("Vary", "Origin"),
        ),
    )


@pytest.mark.parametrize(
    "bound", ["127.0.0.1", "localhost", "LOCALHOST.", "::1", "[::1]", "::ffff:127.0.0.1"]
)
@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "LocalHost:1",
        "localhost.",
        "localhost.:8000",
        "127.0.0.1",
        "127.0.0.1:65535",
        "[::1]",
        "[::1]:8000",
        "[0:0:0:0:0:0:0:1]:8000",
        "[0:0::0001]",
    ],
)
def test_a_loopback_listener_serves_the_names_of_loopback_at_any_port(bound: str, host: str) -> None:
    assert OriginPolicy(bound).check(host, None) == ALLOWED


HOSTILE_HOSTS = [
    None,
    "",
    " ",
    ".",
    ":",
    ":8000",
    "evil.example.com",
    "localhost.evil.com",
    "127.0.0.1.evil.com",
    "evil.com.localhost",
    "localhostx",
    "xlocalhost",
    "localhost..",
    ".localhost",
    "localhost:",
    "localhost:0",
    "localhost:65536",
    "localhost:99999999999999999999",
    "localhost:8o",
    "localhost:+80",
    "localhost:-1",
    "localhost:8000:8000",
    "localhost: 8000",
    "localhost :8000",
    " localhost",
    "localhost ",
    "localhost,evil.com",
    "localhost, evil.com",
    "localhost/",
    "localhost/@evil.com",
    "localhost@evil.com",
    "evil.com@localhost",
    "user:pw@localhost",
    "evil.com#localhost",
    "evil.com?localhost",
    "http://localhost",
    "localhost%2eevil.com",
    "localhost\x00",
    "localhost\x00.evil.com",
    "localhost\r\nX: y",
    "localhost\n",
    "localhost\t",
    "localh\u00f6st",
    "\u017flocalhost",
    "localho\u017ft",
    "\uff4cocalhost",
    "localhost:\u0668\u0660",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "127.0.0.01",
    "127.0.0.2",
    "0.0.0.0",
    "::1",
    "::1:8000",
    "[::1",
    "::1]",
    "[::1]x",
    "[::1].evil.com",
    "[::1]]",
    "[[::1]]",
    "[]",
    "[:::::]",
    "[1:2]",
    "[::1%25lo]",
    "[::1%lo]",
    "[::2]",
    "[127.0.0.1]",
    "[localhost]",
    "[::ffff:127.0.0.1]",
    "*",
    "l" * 100_000,
    "." * 100_000,
    "[" + ":" * 100_000 + "]",
]


@pytest.mark.parametrize("host", HOSTILE_HOSTS, ids=lambda each: ascii(each)[:40])
def test_any_other_host_is_refused_with_the_name_of_the_setting(host: str | None) -> None:
    verdict = LOCAL.check(host, None)
    assert verdict.refusal is not None
    assert "allowed_hosts" in verdict.refusal
    assert verdict.headers == ()


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ("http://localhost:6274", "http://localhost:6274"),
        ("http://localhost", "http://localhost"),
        ("https://localhost", "https://localhost"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("HTTP://LocalHost:6274", "http://localhost:6274"),
        ("http://localhost:80", "http://localhost"),
        ("https://localhost:80", "https://localhost:80"),
    ],
)
def test_local_pages_may_talk_to_a_local_server(origin: str, told: str) -> None:
    assert LOCAL.check("localhost:8000", origin) == cors(told)


HOSTILE_ORIGINS = [
    "",
    "null",
    "NULL",
    "*",
    "localhost",
    "localhost:8000",
    "//localhost",
    "http:localhost",
    "http:/localhost",
    "http://",
    "http://evil.example.com",
    "https://localhost.evil.com",
    "http://127.0.0.1.evil.com",
    "http://evil.com:80@localhost",
    "http://localhost@evil.com",
    "http://localhost:80@evil.com",
    "http://user@localhost",
    "http://localhost/",
    "http://localhost/path",
    "http://localhost?x",
    "http://localhost#x",
    "http://localhost\\@evil.com",
    "http://localhost http://evil.com",
    "http://evil.com http://localhost",
    "http://localhost, http://evil.com",
    "http://localhost\r\nSet-Cookie: a=b",
    "http://localhost\n",
    "http://localhost\x00",
    " http://localhost",
    "http://localhost ",
    "http://localhost:",
    "http://localhost:99999",
    "http://localh\u00f6st",
    "http://localho\u017ft",
    "ws://localhost",
    "ftp://localhost",
    "file://",
    "file:///etc/passwd",
    "file://localhost",
    "chrome-extension://aapbdbdomjkkjkaonfhkkikfgjllcleb",
    "moz-extension://localhost",
    "vscode-webview://localhost",
    "data:text/html,x",
    "javascript://localhost",
    "http://" + "a" * 100_000,
    "a" * 100_000 + "://localhost",
]


@pytest.mark.parametrize("origin", HOSTILE_ORIGINS, ids=lambda each: ascii(each)[:40])
def test_any_other_origin_is_refused_with_the_name_of_the_setting(origin: str) -> None:
    verdict = LOCAL.check("localhost", origin)
    assert verdict.refusal is not None
    assert "allowed_origins" in verdict.refusal
    assert verdict.headers == ()


def test_a_host_is_judged_before_an_origin() -> None:
    refusal = LOCAL.check("evil.com", "http://localhost").refusal
    assert refusal is not None
    assert "allowed_hosts" in refusal


@pytest.mark.parametrize(
    "bad", ["<script>alert(1)</script>", "a\r\nSet-Cookie: x=y", "a'b\"c\\", "\u00e9\x00\x7f", "%0d"]
)
def test_a_refusal_tells_nothing_back_that_could_mean_something(bad: str) -> None:
    for verdict in (LOCAL.check(bad, None), LOCAL.check("localhost", bad)):
        assert verdict.refusal is not None
        assert bad not in verdict.refusal
        assert verdict.refusal.isascii()
        assert verdict.refusal.isprintable()
        assert not set('<>"\\&%') & set(verdict.refusal)


def test_a_refusal_is_short() -> None:
    verdict = LOCAL.check("a" * 5000, None)
    assert verdict.refusal is not None
    assert len(verdict.refusal) < 250


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "[::]", "", "::ffff:0.0.0.0"])
def test_a_listener_on_all_addresses_serves_nobody_until_it_is_told_its_names(bound: str) -> None:
    guard = OriginPolicy(bound)
    assert guard.refuses_all
    for host in ("localhost", "127.0.0.1", "0.0.0.0", "mcp.example.com", "", None):
        refusal = guard.check(host, None).refusal
        assert refusal is not None
        assert "allowed_hosts" in refusal
    told = OriginPolicy(bound, allowed_hosts=["mcp.example.com"])
    assert not told.refuses_all
    assert told.check("mcp.example.com", None) == ALLOWED
    assert told.check("localhost", None).refusal is not None


@pytest.mark.parametrize(
    ("bound", "host"),
    [
        ("192.168.1.5", "192.168.1.5:8000"),
        ("box.lan", "BOX.lan"),
        ("fe80::1", "[fe80:0::1]:8000"),
        ("[fe80::1]", "[fe80::1]"),
        ("fe80::1%eth0", "[fe80::1]"),
        ("127.0.0.2", "127.0.0.2:80"),
    ],
)
def test_the_one_address_that_was_bound_may_be_named(bound: str, host: str) -> None:
    guard = OriginPolicy(bound)
    assert guard.check(host, None) == ALLOWED
    assert not guard.refuses_all
    assert guard.check("evil.com", None).refusal is not None
    assert (guard.check("localhost", None).refusal is None) == (bound == "127.0.0.2")


@pytest.mark.parametrize(
    ("entry", "host", "passes"),
    [
        ("mcp.example.com", "mcp.example.com", True),
        ("mcp.example.com", "MCP.Example.COM.:444", True),
        ("MCP.example.com.", "mcp.example.com", True),
        ("mcp.example.com:*", "mcp.example.com:444", True),
        ("mcp.example.com", "x.mcp.example.com", False),
        ("mcp.example.com", "example.com", False),
        ("mcp.example.com", "localhost", False),
        ("mcp.example.com:8443", "mcp.example.com:8443", True),
        ("mcp.example.com:8443", "mcp.example.com", False),
        ("mcp.example.com:8443", "mcp.example.com:8444", False),
        ("mcp.example.com:443", "mcp.example.com", True),
        ("mcp.example.com:443", "mcp.example.com:443", True),
        ("mcp.example.com:443", "mcp.example.com:80", False),
        ("[2001:db8::1]", "[2001:DB8:0::1]:5", True),
        ("[2001:db8::1]:5", "[2001:db8::1]:5", True),
        ("[2001:db8::1]:5", "[2001:db8::1]:6", False),
        ("*", "anything.example", True),
        ("*", "", True),
        ("*", "no host at all\x00", True),
    ],
)
def test_a_listed_host_passes_and_no_other(entry: str, host: str, passes: bool) -> None:
    assert (OriginPolicy("127.0.0.1", allowed_hosts=[entry]).check(host, None).refusal is None) == passes


@pytest.mark.parametrize(
    ("settings", "origin", "passes"),
    [
        ({"allowed_hosts": ["a.example"]}, "https://a.example", True),
        ({"allowed_hosts": ["a.example"]}, "http://a.example:99", True),
        ({"allowed_hosts": ["a.example"]}, "http://localhost:6274", False),
        ({"allowed_hosts": ["a.example:443"]}, "https://a.example", True),
        ({"allowed_hosts": ["a.example:443"]}, "http://a.example", False),
        ({"allowed_hosts": ["*"]}, "https://a.example", False),
        ({"allowed_hosts": ["*"]}, "null", False),
        ({"allowed_hosts": ["*"], "allowed_origins": []}, "https://a.example", False),
        ({"allowed_hosts": ["a.example", "*"], "allowed_origins": []}, "https://a.example", False),
        ({"allowed_hosts": ["*"], "allowed_origins": ["https://b.example"]}, "https://b.example", True),
        ({"allowed_hosts": ["*"], "allowed_origins": ["https://b.example"]}, "https://b.example:443", True),
        ({"allowed_hosts": ["*"], "allowed_origins": ["https://b.example:443"]}, "https://b.example", True),
        ({"allowed_hosts": ["*"], "allowed_origins": ["https://b.example"]}, "http://b.example", False),
        ({"allowed_hosts": ["*"], "allowed_origins": ["https://b.example"]}, "https://b.example:8443", False),
        ({"allowed_hosts": ["*"], "allowed_origins": ["https://b.example"]}, "https://x.b.example", False),
        (
            {"allowed_hosts": ["*"], "allowed_origins": ["https://b.example:*"]},
            "https://b.example:8443",
            True,
        ),
        (
            {"allowed_hosts": ["*"], "allowed_origins": ["chrome-extension://abc"]},
            "chrome-extension://abc",
            True,
        ),
        (
            {"allowed_hosts": ["*"], "allowed_origins": ["chrome-extension://abc"]},
            "chrome-extension://abd",
            False,
        ),
    ],
)
def test_a_listed_origin_passes_and_no_other(
    settings: dict[str, list[str]], origin: str, passes: bool
) -> None:
    verdict = OriginPolicy(
        "0.0.0.0", allowed_hosts=settings["allowed_hosts"], allowed_origins=settings.get("allowed_origins")
    ).check("a.example", origin)
    assert (verdict.refusal is None) == passes
    assert bool(verdict.headers) == passes


def test_loopback_pages_still_pass_a_loopback_listener_that_has_other_names() -> None:
    guard = OriginPolicy("127.0.0.1", allowed_hosts=["tunnel.example"])
    assert guard.check("tunnel.example", "http://localhost:6274") == cors("http://localhost:6274")
    assert guard.check("tunnel.example", "https://tunnel.example") == cors("https://tunnel.example")
    listed = OriginPolicy("127.0.0.1", allowed_origins=["https://a.example"])
    assert listed.check("localhost", "http://localhost:6274").refusal is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_hosts": [""]},
        {"allowed_hosts": ["http://a.example"]},
        {"allowed_hosts": ["a.example/"]},
        {"allowed_hosts": ["a.example:80:*"]},
        {"allowed_hosts": ["*.example"]},
        {"allowed_hosts": ["::1"]},
        {"allowed_hosts": "localhost"},
        {"allowed_origins": ["null"]},
        {"allowed_origins": ["a.example"]},
        {"allowed_origins": ["https://a.example/"]},
        {"allowed_origins": ["https://a.example:80:*"]},
        {"allowed_origins": ["https://*.example"]},
        {"allowed_origins": ["file://"]},
        {"allowed_origins": "https://a.example"},
        {"allowed_headers": ["X Y"]},
        {"allowed_headers": ["X\r\nY"]},
    ],
)
def test_an_entry_that_could_never_match_is_refused_at_once(settings: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match=r"allowed_|list of names"):
        OriginPolicy("127.0.0.1", **settings)  # type: ignore[arg-type]


def test_letters_that_only_look_alike_once_lowered_do_not_pass() -> None:
    guard = OriginPolicy("127.0.0.1", allowed_hosts=["kit.example"])
    assert guard.check("KIT.example", None) == ALLOWED
    for host in ("\u212aIT.example", "k\u0130t.example"):
        assert guard.check(host, None).refusal is not None
        assert guard.check("kit.example", f"https://{host}").refusal is not None


def test_verdicts_are_remembered_within_bounds_and_refusals_are_not() -> None:
    guard = OriginPolicy("127.0.0.1")
    first = guard.check("localhost:1", "http://localhost")
    assert guard.check("localhost:1", "http://localhost") is first
    for port in range(1, 2000):
        assert guard.check(f"localhost:{port}", None) == ALLOWED
        assert guard.check(f"{port}.evil.com", None).refusal is not None
        assert len(guard.remembered) <= 256
    assert not any("evil" in (host or "") for host, _ in guard.remembered)
    anything = OriginPolicy("127.0.0.1", allowed_hosts=["*"])
    anything.check("x" * 10_000, None)
    assert anything.remembered == {}


# -- What a browser is told: the protocol's own headers, and of what it asked for only what is safe in an answer ---


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
