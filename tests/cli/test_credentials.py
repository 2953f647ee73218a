"""TLS and API keys by options: who gets in, and what happens when the files change."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from mcp_actors import Client
from mcp_actors.cli.credentials import LOOK_EVERY, MAX_KEYS, ApiKeys, KeysFile, new_key, tls_context
from mcp_actors.gateway.server_entry import UnusableFile
from mcp_transports.http import HttpTransport
from tests.cli.conftest import SERVED, Mcp, Started
from tests.cli.test_gateway import serving, written

URL = "http://127.0.0.1:0/mcp"


class Asked:
    """A request with a key, as a listener hands it to ``authenticate``."""

    def __init__(self, field: str | None) -> None:
        self.headers: Mapping[str, str] = {} if field is None else {"authorization": field}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def look(self) -> None:
        self.now += LOOK_EVERY


# -- Keys -----------------------------------------------------------------------------------------------------------


def test_a_key_lets_its_subject_in_with_its_scopes(tmp_path: Path) -> None:
    key, line = new_key("ann", ["mcp:read", "mcp:write"])
    other, other_line = new_key("ben", [])
    assert key not in line
    path = tmp_path / "keys"
    path.write_text(f"# callers\n\n{line}\n{other_line}\n")
    keys = ApiKeys(str(path), ["mcp:read"])
    ann = keys(Asked(f"Bearer {key}"))
    assert (ann.subject, ann.scopes) == ("ann", {"mcp:read", "mcp:write"})
    lacking = keys(Asked(f"bearer {other}"))
    assert (lacking.status, dict(lacking.headers)["WWW-Authenticate"]) == (
        403,
        'Bearer error="insufficient_scope", scope="mcp:read"',
    )
    for field in (
        None,
        key,
        f"Basic {key}",
        f"DPoP {key}",
        "Bearer",
        f"Bearer {key} {key}",
        f"Bearer {key}x",
        "Bearer x",
    ):
        refused = keys(Asked(field))
        assert (refused.status, dict(refused.headers)["WWW-Authenticate"]) == (401, "Bearer")


def test_a_file_that_changes_counts_a_second_later(tmp_path: Path) -> None:
    (first, first_line), (second, second_line) = new_key("ann", []), new_key("ben", [])
    path, clock = tmp_path / "keys", Clock()
    path.write_text(first_line)
    keys = ApiKeys(str(path), clock=clock)
    assert keys(Asked(f"Bearer {second}")).status == 401
    path.write_text(f"{first_line}\n{second_line}\n")
    assert keys(Asked(f"Bearer {second}")).status == 401
    clock.look()
    assert keys(Asked(f"Bearer {second}")).subject == "ben"
    path.write_text(f"{second_line}\n")
    clock.look()
    assert keys(Asked(f"Bearer {first}")).status == 401


def test_a_malformed_line_costs_its_own_key_and_is_logged_without_it(tmp_path: Path) -> None:
    key, line = new_key("ann", [])
    path, clock = tmp_path / "keys", Clock()
    path.write_text(line)
    keys = ApiKeys(str(path), clock=clock)
    path.write_text(
        f'{line}\nben {hashlib.sha256(b"x").hexdigest()}\ncleo md5:123\n{line.replace("ann", "dan")} a"b\n'
    )
    clock.look()
    with capture_logs() as logs:
        assert keys(Asked(f"Bearer {key}")).subject == "ann"
    assert [each["problem"].rpartition("keys:")[2] for each in logs] == [
        "2: it is not SUBJECT sha256:DIGEST [SCOPE ...]",
        "3: it is not SUBJECT sha256:DIGEST [SCOPE ...]",
        "4: a scope has characters that no scope has",
    ]


def test_nobody_is_let_in_while_the_file_cannot_be_read(tmp_path: Path) -> None:
    key, line = new_key("ann", [])
    path, clock = tmp_path / "keys", Clock()
    path.write_text(line)
    keys = ApiKeys(str(path), clock=clock)
    path.rename(tmp_path / "away")
    clock.look()
    with capture_logs() as logs:
        assert keys(Asked(f"Bearer {key}")).status == 401
        clock.look()
        assert keys(Asked(f"Bearer {key}")).status == 401
    assert [each["event"] for each in logs] == ["the API keys cannot be read: nobody is let in"]
    (tmp_path / "away").rename(path)
    clock.look()
    assert keys(Asked(f"Bearer {key}")).subject == "ann"


def test_so_many_keys_are_for_an_authorization_server(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\n".join(f"s{n} sha256:{'0' * 64}" for n in range(MAX_KEYS + 1)))
    with pytest.raises(UnusableFile, match="use an authorization server, by --issuer"):
        KeysFile.read(str(path))


def test_the_command_makes_a_line_and_shows_the_key_once(mcp: Mcp, tmp_path: Path) -> None:
    result = mcp("config", "api-key", "ci@example.org", "--scope", "mcp:read", "--scope", "a b")
    assert result.returncode == 0
    found = re.search(r"^mcp_[\w-]{43}$", result.stderr, re.MULTILINE)
    assert found is not None
    digest = hashlib.sha256(found[0].encode()).hexdigest()
    assert result.stdout == f"ci@example.org sha256:{digest} mcp:read a b\n"
    for words in (["a b"], ["#ann"], ["ann", "--scope", 'x"y']):
        assert mcp("config", "api-key", *words).returncode == 2


async def test_a_server_demands_a_key_and_a_client_presents_it(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    key, line = new_key("ann", [])
    (tmp_path / "keys").write_text(line)
    with serving(started, "serve", str(SERVED), "--listen", URL, "--api-keys", "keys") as (_, (place,)):
        port = int(place.rpartition(":")[2].partition("/")[0])
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("POST", "/mcp", b"{}", {"Content-Type": "application/json"})
            with connection.getresponse() as answer:
                assert (answer.status, answer.getheader("WWW-Authenticate")) == (401, "Bearer")
                assert "An API key is needed" in json.load(answer)["error"]["message"]
        headers = {"Authorization": f"Bearer {key}"}
        async with Client(HttpTransport(place, headers=headers)) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == 3


def test_a_gateway_demands_one_too(
    started: Started, mcp: Mcp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    key, line = new_key("ann", [])
    (tmp_path / "keys").write_text(line)
    config = written(tmp_path, {"one": {"url": "tcp://127.0.0.1:1", "lazy": True}})
    with serving(started, "gateway", config, "--listen", URL, "--api-keys", "keys") as (_, (place,)):
        refused = mcp("list", place)
        assert refused.returncode != 0
        assert "An API key is needed: Authorization: Bearer KEY." in refused.stderr
        assert mcp("list", place, "--header", f"Authorization: Bearer {key}").returncode == 0


# -- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def wrote(folder: Path, authority: trustme.CA, name: str = "127.0.0.1") -> trustme.LeafCert:
    """A certificate and its key, in the files ``cert`` and ``key``."""
    made = authority.issue_cert(name)
    (folder / "cert").write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    (folder / "key").write_bytes(made.private_key_pem.bytes())
    return made


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "gateway"])
async def test_an_address_of_tls_is_served_with_the_files(
    started: Started, tmp_path: Path, authority: trustme.CA, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrote(tmp_path, authority)
    authority.cert_pem.write_to_path(tmp_path / "authority")
    target = str(SERVED)
    if command == "gateway":
        target = written(tmp_path, {"one": {"url": "tcp://127.0.0.1:1", "lazy": True}})
    listen = ["--listen", "https://127.0.0.1:0/mcp", "--listen", "wss://127.0.0.1:0/ws"]
    words = [command, target, *listen, "--certificate", "cert", "--key", "key"]
    with serving(started, *words, addresses=2) as (_, (place, socket)):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority"))
        for url in (place, socket):
            async with Client(url) as client:
                assert client.server_info.name in ("served", "gateway")


async def handshake(context: ssl.SSLContext, authority: trustme.CA, name: str) -> None:
    """Raises `trio.BrokenResourceError` if the certificate is not for a name."""
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    ours, theirs = trio.testing.memory_stream_pair()
    server = trio.SSLStream(ours, context, server_side=True)
    client = trio.SSLStream(theirs, trusting, server_hostname=name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.do_handshake)
        await client.do_handshake()


async def test_a_certificate_that_was_renewed_is_that_of_the_next_connections(
    tmp_path: Path, authority: trustme.CA
) -> None:
    clock = Clock()
    wrote(tmp_path, authority, "one.example")
    context = tls_context(str(tmp_path / "cert"), str(tmp_path / "key"), clock)
    await handshake(context, authority, "one.example")
    (tmp_path / "cert").write_bytes(b"half a certificate")
    clock.look()
    with capture_logs() as logs:
        await handshake(context, authority, "one.example")
    assert [each["event"] for each in logs] == [
        "a certificate has changed and cannot be used: the former one goes on"
    ]
    wrote(tmp_path, authority, "two.example")
    clock.look()
    await handshake(context, authority, "two.example")


def test_a_file_may_have_both(tmp_path: Path, authority: trustme.CA) -> None:
    made = authority.issue_cert("one.example")
    (tmp_path / "both").write_bytes(made.private_key_and_cert_chain_pem.bytes())
    assert isinstance(tls_context(str(tmp_path / "both"), None), ssl.SSLContext)


# -- What cannot be -------------------------------------------------------------------------------------------------

HTTPS = ["--listen", "https://127.0.0.1:0/mcp"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            HTTPS,
            "https://127.0.0.1:0/mcp needs --certificate FILE and --key FILE; behind a proxy that has the",
        ),
        (["--listen", "wss://127.0.0.1:0/"], "wss://127.0.0.1:0/ needs --certificate FILE and --key FILE"),
        ([*HTTPS, "--key", "key"], "needs --certificate FILE"),
        (["--listen", URL, "--certificate", "cert"], "--certificate needs --listen with https:// or wss://"),
        (["--listen", URL, "--key", "key"], "--key needs --certificate"),
        ([*HTTPS, "--certificate", "nowhere"], "'nowhere' does not exist"),
        (
            [*HTTPS, "--certificate", "keys"],
            "--certificate keys: it is not a certificate with its key, as PEM",
        ),
        (
            [*HTTPS, "--certificate", "cert"],
            "--certificate cert: it is not a certificate with its key, as PEM",
        ),
        (
            [*HTTPS, "--certificate", "cert", "--key", "other"],
            "cert and other: it is not a certificate with its",
        ),
        (
            [*HTTPS, "--certificate", "cert", "--key", "locked"],
            "--certificate cert and locked: the private key has a password: nobody is asked",
        ),
        (["--api-keys", "keys"], "--api-keys is for HTTP and WebSocket: stdio: takes no access tokens"),
        (
            ["--listen", URL, "--api-keys", "empty"],
            "empty: it has no key; mcp-actors config api-key SUBJECT makes",
        ),
        (["--listen", URL, "--api-keys", "cert"], "cert:1: it is not SUBJECT sha256:DIGEST"),
        (
            [
                "--listen",
                URL,
                "--api-keys",
                "keys",
                "--issuer",
                "https://a.example",
                "--resource",
                "https://b.example",
            ],
            "--issuer and --api-keys exclude each other",
        ),
        (
            ["--listen", URL, "--scope", "x"],
            "--scope needs --issuer, the authorization server of the tokens, or",
        ),
    ],
)
def test_what_cannot_be_says_what_to_do(
    mcp: Mcp, tmp_path: Path, authority: trustme.CA, words: list[str], says: str
) -> None:
    made = wrote(tmp_path, authority)
    (tmp_path / "other").write_bytes(authority.issue_cert("x").private_key_pem.bytes())
    (tmp_path / "locked").write_bytes(_locked(made))
    (tmp_path / "keys").write_text(new_key("ann", [])[1])
    (tmp_path / "empty").write_text("# nobody\n")
    result = mcp("serve", str(SERVED), *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())


def _locked(made: trustme.LeafCert) -> bytes:
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
