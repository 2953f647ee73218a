"""``mcp-actors login``, ``logout`` and ``whoami``, and the commands that use what a login has stored."""

from __future__ import annotations

import base64
import json
import re
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.cli.login import LoginStatus, expiry_in_words, login_lines, subject_of
from tests.cli.conftest import CTRL_C, Mcp, Terminal

from .authorization_server import Issued, protected_server

pytestmark = pytest.mark.slow

Terminals = Callable[..., Terminal]

# A browser: it follows the redirections of the login to this machine.
BROWSER = """
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=30).read()
"""


@pytest.fixture
def issued() -> Iterator[Issued]:
    with protected_server() as servers:
        yield servers


@pytest.fixture(autouse=True)
def home(environment: dict[str, str], tmp_path: Path) -> Path:
    """A home of its own for each test, and a browser that logs in without a person."""
    folder = tmp_path / "home"
    folder.mkdir()
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER)
    for name in [each for each in environment if each.startswith("XDG_")]:
        del environment[name]
    environment["HOME"] = str(folder)
    environment["BROWSER"] = f"{shlex.join([sys.executable, str(browser)])} %s"
    return folder


def logged_in(terminal: Terminals, issued: Issued, *words: str) -> Terminal:
    session = terminal("login", issued.resource, *words)
    assert session.wait() == 0, session.text
    return session


def redirected(url: str) -> str:
    """Returns where a browser is sent by a login page."""

    class Stays(HTTPRedirectHandler):
        def redirect_request(self, *_words: object) -> None:
            return None

    with pytest.raises(HTTPError) as refused:
        build_opener(Stays).open(url, timeout=30)
    with refused.value as answer:
        return str(answer.headers["Location"])


def test_a_login_serves_every_command(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    session = logged_in(terminal, issued)
    assert f"logged in to {issued.resource}" in session.text
    waiting = "waiting until you have logged in, Ctrl-C stops"
    assert f"a browser opens for the login at {issued.origin}; {waiting}\n" in session.text
    listed = mcp("list", issued.resource, "--era", "legacy")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "  hello()" in listed.stdout.splitlines()
    called = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert (called.returncode, called.stdout, called.stderr) == (0, "hello\n", "")
    assert len(issued.authorizations) == 1
    assert issued.grants == ["authorization_code"]


def test_nothing_stored_says_what_to_run(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    says = f"mcp-actors: the server asks for authorization; run: mcp-actors login {issued.resource}\n"
    for words in (["list"], ["call", "hello"], ["read", "a://b"], ["prompt", "p"]):
        command, *rest = words
        result = mcp(command, issued.resource, *rest, "--era", "legacy")
        assert (result.returncode, result.stdout, result.stderr) == (3, "", says)
    session = terminal("list", issued.resource, "--era", "legacy")
    assert session.wait() == 3
    assert " ".join(session.text.split()) == says.strip()
    assert issued.authorizations == []


def wait_for_the_end_of_a_token(seconds: float) -> None:
    """Tokens expire by the clock of the machine, which another process reads."""
    end = time.time() + seconds
    while time.time() <= end:
        time.sleep(0.05)


def test_an_expired_token_is_renewed_without_a_login(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    issued.expires_in = 1
    logged_in(terminal, issued)
    wait_for_the_end_of_a_token(1)
    issued.expires_in = 3600
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr
    assert issued.grants == ["authorization_code", "refresh_token"]
    assert len(issued.authorizations) == 1


def test_a_login_that_ended_asks_for_another_one(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    logged_in(terminal, issued)
    issued.access_tokens.clear()
    issued.refuses_refresh = True
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert result.returncode == 3
    assert result.stderr.splitlines()[-1].startswith(
        f"mcp-actors: the server asks for authorization; run: mcp-actors login {issued.resource}"
    )
    assert not any(secret in result.stderr for secret in issued.secrets)
    assert len(issued.authorizations) == 1


def test_a_lack_of_scopes_says_which_login_has_them(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    logged_in(terminal, issued)
    issued.needed_scope = "mcp:write"
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert result.returncode == 3
    _, found, command = result.stderr.splitlines()[-1].partition("; run: ")
    assert found, result.stderr
    program, login, url, *words = shlex.split(command)
    assert (program, login, url, words) == (
        "mcp-actors",
        "login",
        issued.resource,
        ["--scope", "mcp:read mcp:write"],
    )
    logged_in(terminal, issued, *words)
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr


def test_whoami_tells_everything_but_the_tokens(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    nobody = mcp("whoami", issued.resource)
    assert nobody.returncode == 3
    assert f"run: mcp-actors login {issued.resource}" in nobody.stderr
    logged_in(terminal, issued)
    result = mcp("whoami", issued.resource)
    assert (result.returncode, result.stderr) == (0, "")
    for line in (
        f"  issuer:    {issued.issuer}",
        f"  resource:  {issued.resource}",
        "  client:    client-1",
        "  subject:   ada (as the token says)",
        "  scopes:    mcp:read",
        "  renewal:   by itself, without a login",
    ):
        assert line in result.stdout.splitlines()
    assert re.search(
        r"^  expires:   in 59 minutes \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)$", result.stdout, re.M
    )
    assert not any(secret in result.stdout for secret in issued.secrets)


def test_logout_forgets_and_revokes(mcp: Mcp, terminal: Terminals, issued: Issued, home: Path) -> None:
    logged_in(terminal, issued)
    tokens = {*issued.access_tokens, *issued.refresh_tokens}
    result = mcp("logout", issued.resource)
    assert (result.returncode, result.stdout) == (0, f"logged out of {issued.resource}\n"), result.stderr
    assert issued.refresh_tokens <= set(issued.revoked) <= tokens
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert not any(token.encode() in kept for token in tokens)
    assert mcp("whoami", issued.resource).returncode == 3
    assert mcp("list", issued.resource, "--era", "legacy").returncode == 3
    again = mcp("logout", issued.resource)
    assert (again.returncode, again.stdout) == (0, f"there was no login at {issued.resource}\n")


def test_logout_forgets_without_the_authorization_server(mcp: Mcp, terminal: Terminals, home: Path) -> None:
    with protected_server() as gone:
        logged_in(terminal, gone)
    result = mcp("logout", gone.resource)
    assert result.returncode == 0, result.stderr
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert not any(secret.encode() in kept for secret in gone.secrets)


def test_the_answer_is_pasted_without_a_browser(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    session = terminal("login", issued.resource, "--no-browser")
    session.until(lambda: re.search(r"\S+/authorize\?\S+\s", session.text) is not None)
    found = re.search(r"(http\S+/authorize\?\S+)", session.text)
    assert found is not None
    session.type(f"{redirected(found[1])}\n".encode())
    assert session.wait() == 0, session.text
    assert mcp("call", issued.resource, "hello", "--era", "legacy").stdout == "hello\n"


def test_the_words_of_a_client_are_remembered(
    mcp: Mcp, terminal: Terminals, issued: Issued, environment: dict[str, str]
) -> None:
    issued.client_secret = "the-secret-of-the-client"
    issued.expires_in = 1
    words = [
        "--client-id",
        "registered-client",
        "--client-secret-env",
        "HELD",
        "--scope",
        "mcp:read mcp:write",
    ]
    session = terminal("login", issued.resource, *words, "--scope", "mcp:admin", HELD=issued.client_secret)
    assert session.wait() == 0, session.text
    (asked,) = issued.authorizations
    assert asked["client_id"] == "registered-client"
    assert {"mcp:read", "mcp:write", "mcp:admin"} <= set(asked["scope"].split())
    wait_for_the_end_of_a_token(1)
    issued.expires_in = 3600
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr
    assert issued.grants == ["authorization_code", "refresh_token"]
    again = logged_in(terminal, issued)
    assert issued.authorizations[-1]["client_id"] == "registered-client"
    assert not any(secret in session.text + again.text for secret in issued.secrets)


def test_a_registered_client_is_never_shown_to_another_authorization_server(
    mcp: Mcp, terminal: Terminals, issued: Issued
) -> None:
    issued.client_secret = "the-secret-of-the-client"
    words = ["--client-id", "registered-client", "--client-secret-env", "HELD"]
    session = terminal("login", issued.resource, *words, HELD=issued.client_secret)
    assert session.wait() == 0, session.text
    first = issued.issuer
    issued.name = "another"
    issued.access_tokens.clear()
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert result.returncode == 1
    assert first in result.stderr
    assert issued.issuer in result.stderr
    assert issued.grants == ["authorization_code"]


def test_a_store_that_others_can_read_is_not_used(
    mcp: Mcp, terminal: Terminals, issued: Issued, home: Path
) -> None:
    logged_in(terminal, issued)
    (file,) = home.rglob("tokens.json")
    file.chmod(0o644)
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert result.returncode == 1
    failed, page = result.stderr.splitlines()
    assert f"chmod 600 {file}" in failed
    assert page.startswith("see: mcp-actors docs authorization")


def test_what_is_stored_is_for_its_owner_only(terminal: Terminals, issued: Issued, home: Path) -> None:
    session = logged_in(terminal, issued)
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(b"refresh" in path.read_bytes() for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert not any(secret in session.text for secret in issued.secrets)


def test_a_login_that_is_refused_stores_nothing(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    issued.denies = True
    session = terminal("login", issued.resource)
    assert session.wait() == 1
    assert "access_denied" in session.text
    assert "Traceback" not in session.text
    assert mcp("whoami", issued.resource).returncode == 3


def test_ctrl_c_leaves_nothing_half_done(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    session = terminal("login", issued.resource, BROWSER="true %s")
    session.until(lambda: "waiting until you have logged in" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    assert "interrupted; no login was stored" in session.text
    assert "Traceback" not in session.text
    assert mcp("whoami", issued.resource).returncode == 3


def test_a_failed_login_keeps_the_one_before(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    logged_in(terminal, issued)
    issued.denies = True
    assert terminal("login", issued.resource, "--client-id", "another").wait() == 1
    result = mcp("call", issued.resource, "hello", "--era", "legacy")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr


def test_headers_of_a_person_go_before_a_login(mcp: Mcp, terminal: Terminals, issued: Issued) -> None:
    logged_in(terminal, issued)
    result = mcp("list", issued.resource, "--era", "legacy", "--header", "Authorization: Bearer mine")
    assert result.returncode == 1
    assert "it does not accept the headers that were given" in result.stderr
    assert issued.grants == ["authorization_code"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["login", "stdio:true"], "there are logins at http, https, ws and wss URLs only"),
        (["whoami", "localhost:8000"], "there are logins at http, https, ws and wss URLs only"),
        (["logout", "http://[::1"], "there are logins at http, https, ws and wss URLs only"),
        (["login", "https://me:hidden@example.org/mcp"], "needs no login"),
        (
            ["login", "https://example.org", "--client-secret-env", "hidden"],
            "is for the client of --client-id",
        ),
        (["login", "https://example.org", "--scope", 'a"b'], "which no scope is"),
        (
            ["login", "https://example.org", "--client-metadata-url", "http://c.example/c"],
            "client_metadata_url",
        ),
        (
            ["login", "https://example.org", "--client-id", "c", "--client-secret-env", "hidden"],
            "that --client-secret-env names is not set",
        ),
        (
            [
                "login",
                "https://example.org",
                "--client-id",
                "c",
                "--client-metadata-url",
                "https://c.example",
            ],
            "exclude each other",
        ),
    ],
)
def test_wrong_words_of_a_login(mcp: Mcp, words: list[str], says: str) -> None:
    result = mcp(*words)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())
    assert "hidden" not in result.stderr


# -- A login in words: what is shown, and that a token never is ------------------------------------------

NOW = 1_800_000_000.0
STATUS = LoginStatus(
    issuer="https://login.example.org",
    resource="https://mcp.example.org/mcp",
    client_id="client",
    scopes=("mcp:read", "mcp:write"),
    expires_at=None,
    refreshable=False,
    token="opaque-token",
)


def jwt(claims: Any) -> str:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{part}.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("expires_at", "says"),
    [
        (None, "not known; the authorization server did not say"),
        (NOW + 1, "in 1 second (2027-01-15 08:00:01 UTC)"),
        (NOW + 3599, "in 59 minutes (2027-01-15 08:59:59 UTC)"),
        (NOW + 2 * 86400, "in 2 days (2027-01-17 08:00:00 UTC)"),
        (NOW, "0 seconds ago (2027-01-15 08:00:00 UTC)"),
        (NOW - 7200, "2 hours ago (2027-01-15 06:00:00 UTC)"),
        (1e300, "not known; the authorization server said a time that no calendar has"),
    ],
)
def test_an_expiry(expires_at: float | None, says: str) -> None:
    assert expiry_in_words(expires_at, NOW) == says


def test_a_login_that_cannot_be_renewed_says_what_to_run() -> None:
    assert login_lines(STATUS, "https://mcp.example.org/mcp?a&b") == [
        "  issuer:    https://login.example.org",
        "  resource:  https://mcp.example.org/mcp",
        "  client:    client",
        "  scopes:    mcp:read mcp:write",
        "  expires:   not known; the authorization server did not say",
        "  renewal:   none; then run: mcp-actors login 'https://mcp.example.org/mcp?a&b'",
    ]


def test_the_subject_of_a_jwt_is_shown_without_what_a_terminal_obeys() -> None:
    lines = login_lines(attrs.evolve(STATUS, token=jwt({"sub": "ada\x1b[31m"})), "https://mcp.example.org")
    assert "  subject:   ada\\x1b[31m (as the token says)" in lines


def test_no_name_makes_up_another_fact_or_turns_a_line_round() -> None:
    forged = attrs.evolve(
        STATUS,
        client_id="c\n  issuer:    https://bank.example\r\x9b2J\u202e\t",
        token=jwt({"sub": "ada\n  scopes:    none"}),
        scopes=["s" * 250] * 200,
    )
    lines = login_lines(forged, "https://mcp.example.org")
    assert "  client:    c\\n  issuer:    https://bank.example\\r\\x9b2J\\u202e\\t" in lines
    assert all(line.isprintable() and len(line) < 2100 for line in lines)
    assert len(lines) == 7


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b.c",
        jwt(["sub"]),
        jwt({"sub": 1}),
        jwt({"sub": ""}),
        f"e30.{'A' * 100_000}.c2ln",
        f"e30.{base64.urlsafe_b64encode(b'[' * 40_000).decode()}.c2ln",
    ],
)
def test_what_has_no_subject(token: str) -> None:
    assert subject_of(token) is None


@given(st.text())
def test_any_text_may_be_a_token(token: str) -> None:
    assert subject_of(token) is None or token.count(".") == 2


def test_a_status_shows_no_token() -> None:
    assert "opaque-token" not in repr(STATUS)
    assert not any("opaque-token" in line for line in login_lines(STATUS, "https://mcp.example.org"))
