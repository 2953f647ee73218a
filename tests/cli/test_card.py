"""Server cards on the command line: served, found by a catalogue, printed, checked."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mcp_actors import Client
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions
from mcp_actors.cli.progress import CallView
from mcp_actors.errors import McpError
from mcp_actors.types import Icon, Implementation
from mcp_actors.types.cards import card_of, problems_of, registry_document, remote_url
from tests.cli.conftest import SERVED, Mcp
from tests.cli.test_serve import serving

pytestmark = pytest.mark.slow

AT = ("--listen", "http://127.0.0.1:0/mcp")


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    method = headers.pop("method", "GET")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=named, method=method)
    try:
        response: HTTPResponse
        with urllib.request.urlopen(request, timeout=60) as response:
            return (
                response.status,
                {key.lower(): each for key, each in response.headers.items()},
                response.read(),
            )
    except urllib.error.HTTPError as error:
        return error.code, {key.lower(): each for key, each in error.headers.items()}, error.read()


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """Where a server with a card is."""
    with serving(SERVED, *AT, "--card", "com.example/served") as (_, (port,)):
        yield f"http://127.0.0.1:{port}"


def test_a_card_and_a_catalogue_are_served(root: str, tmp_path: Path, mcp: Mcp) -> None:
    status, headers, body = get(f"{root}/mcp/server-card", Accept="application/mcp-server-card+json")
    assert status == 200
    assert headers["content-type"] == "application/mcp-server-card+json"
    assert headers["cache-control"] == "public, max-age=3600"
    card = json.loads(body)
    assert card["name"] == "com.example/served"
    assert card["remotes"] == [{"type": "streamable-http", "url": f"{root}/mcp"}]
    assert not {"tools", "prompts", "resources", "capabilities", "instructions"} & card.keys()
    (tmp_path / "card.json").write_bytes(body)
    assert mcp("card", "--check", "card.json").returncode == 0
    status, headers, body = get(f"{root}/.well-known/ai-catalog.json")
    assert (status, headers["content-type"]) == (200, "application/ai-catalog+json")
    assert json.loads(body) == {
        "specVersion": "1.0",
        "entries": [
            {
                "identifier": "urn:air:example.com:mcp:served",
                "type": "application/mcp-server-card+json",
                "url": f"{root}/mcp/server-card",
            }
        ],
    }


def test_pages_of_every_origin_may_read_it_and_only_under_a_host_that_is_served(root: str) -> None:
    url = f"{root}/mcp/server-card"
    status, headers, _ = get(url, Origin="https://elsewhere.example")
    assert (status, headers["access-control-allow-origin"]) == (200, "*")
    assert headers["access-control-expose-headers"] == "ETag"
    status, headers, body = get(url, method="OPTIONS", Origin="https://elsewhere.example")
    assert (status, headers["access-control-allow-methods"], body) == (204, "GET", b"")
    assert get(url, Host="evil.example")[0] == 403
    assert get(url, method="POST")[0] == 405


def test_a_card_that_is_known_is_not_sent_again(root: str) -> None:
    url = f"{root}/mcp/server-card"
    tag = get(url)[1]["etag"]
    status, headers, body = get(url, If_None_Match=f'"other", W/{tag}')
    assert (status, headers["etag"], body) == (304, tag, b"")
    assert get(url, If_None_Match='"other"')[0] == 200


def test_a_domain_is_enough_to_find_its_server(root: str, mcp: Mcp) -> None:
    for url in (root, f"{root}/"):
        ran = mcp("list", url, "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["tools"]
        assert f"names {root}/mcp" in ran.stderr


def test_without_the_option_there_is_no_card(mcp: Mcp) -> None:
    with serving(SERVED, *AT) as (_, (port,)):
        for path in ("/mcp/server-card", "/.well-known/ai-catalog.json"):
            assert get(f"http://127.0.0.1:{port}{path}")[0] == 404
        ran = mcp("list", f"http://127.0.0.1:{port}")
        assert ran.returncode != 0
        assert "catalogue" not in ran.stderr


CARD = {"type": "application/mcp-server-card+json"}


def card(url: str, title: str = "") -> dict[str, Any]:
    return {
        **CARD,
        "identifier": "x",
        "data": {"name": "a/b", "title": title, "remotes": [{"type": "streamable-http", "url": url}]},
    }


CATALOGS: dict[str, tuple[list[Any], str]] = {
    "several": (
        [card("https://a.example/mcp"), card("https://b.example/mcp")],
        "several servers: give the URL",
    ),
    "a title that looks like a server": (
        [card("https://a.example/mcp", "A\nhttps://c.example/mcp"), card("https://b.example/mcp")],
        "\nhttps://a.example/mcp  A https://c.example/mcp\nhttps://b.example/mcp  a/b\n",
    ),
    "none": ([{"type": "application/a2a", "url": "https://x.example"}], "no server that can be used"),
    "not over TLS elsewhere": ([card("http://a.example/mcp")], "no server that can be used"),
    "a program": ([card("stdio:rm")], "no server that can be used"),
    "a card at a private address": (
        [{**CARD, "url": "https://169.254.169.254/card"}],
        "no server that can be used",
    ),
    "a server at a private address": ([card("https://169.254.169.254/mcp")], "no server that can be used"),
    "a server in a private network": ([card("https://10.0.0.1/mcp")], "no server that can be used"),
    "a server with a user": ([card("https://name:word@a.example/mcp")], "no server that can be used"),
    "no URL of a server": ([card("https://[a.example/mcp")], "no server that can be used"),
    "no URL of a card": ([{**CARD, "url": "https://[a.example/card"}], "no server that can be used"),
}


@contextmanager
def catalog(entries: list[Any]) -> Iterator[str]:
    """The URL of a domain with a catalogue, and nothing else."""
    text = json.dumps({"specVersion": "1.0", "entries": entries}).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_catalog = self.path == "/.well-known/ai-catalog.json"
            self.send_response(200 if is_catalog else 404)
            self.send_header("Content-Length", str(len(text) if is_catalog else 0))
            self.end_headers()
            self.wfile.write(text if is_catalog else b"")

        def log_message(self, *words: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", CATALOGS)
def test_a_catalogue_is_not_trusted(kind: str, mcp: Mcp) -> None:
    entries, said = CATALOGS[kind]
    with catalog(entries) as url:
        ran = mcp("list", url)
    assert ran.returncode == 2, ran.stderr
    assert said in ran.stderr


def test_headers_go_to_no_other_origin(mcp: Mcp) -> None:
    with catalog([card("https://a.example/mcp")]) as url:
        ran = mcp("list", url, "--header", "Authorization: Bearer s3cr3t")
    assert ran.returncode == 2
    assert "elsewhere" in ran.stderr
    assert "s3cr3t" not in ran.stderr


def test_a_card_is_printed_and_so_is_a_server_json(root: str, mcp: Mcp, tmp_path: Path) -> None:
    ran = mcp("card", f"{root}/mcp", "--name", "com.example/served", "--description", "Serves.")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["name"], found["description"]) == ("com.example/served", "Serves.")
    assert found["remotes"][0]["url"] == f"{root}/mcp"
    assert "2026-07-28" in found["remotes"][0]["supportedProtocolVersions"]
    ran = mcp("card", f"{root}/mcp", "--registry", "-o", "server.json")
    assert ran.returncode == 0, ran.stderr
    assert "supportedProtocolVersions" not in (tmp_path / "server.json").read_text()
    # A server that was found by its domain is where the catalogue says.
    assert json.loads(mcp("card", root).stdout)["remotes"][0]["url"] == f"{root}/mcp"
    assert mcp("card", "--check", "server.json").returncode == 0


def test_a_card_has_no_secrets_of_the_url_that_was_given(root: str, mcp: Mcp) -> None:
    ran = mcp("card", f"{root}/mcp?apiKey=s3cr3t", "--name", "com.example/served")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["remotes"][0]["url"] == f"{root}/mcp"


def test_what_is_wrong_with_a_card_is_said(mcp: Mcp, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(json.dumps({"name": "none", "version": "^1.0", "packages": []}))
    ran = mcp("card", "--check", "card.json")
    assert ran.returncode == 4
    assert "card.json has 5 problems" in ran.stderr
    assert "description is missing" in ran.stderr
    (tmp_path / "card.json").write_text("nonsense")
    assert mcp("card", "--check", "card.json").returncode == 4
    assert mcp("card", "--check", "nothing.json").returncode == 2
    assert mcp("card", "stdio:x", "--name", "none").returncode == 2


@pytest.mark.parametrize("name", ["none", "a b/c", ""])
def test_a_name_of_another_form_is_refused(name: str, mcp: Mcp) -> None:
    ran = mcp("serve", str(SERVED), *AT, "--card", f"{name}=https://example.com/mcp")
    assert ran.returncode == 2
    assert "com.example/weather" in ran.stderr


# -- what a card may be ------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = card_of(
    "com.example/x", Implementation("x", "1.0.2"), [("https://x.example/mcp", ["2025-11-25"])]
)
REGISTERED = registry_document(GOOD)
PACKAGE = {"registryType": "pypi", "identifier": "x", "version": "1.0.2", "transport": {"type": "stdio"}}


# The least that is a card, and one that a person has to fill in: the repository of the extension has such examples, two
# that are cards and five that are none, which are all told apart here by the same facts.
LEAST = {
    "$schema": GOOD["$schema"],
    "name": "example-org/least",
    "version": "1.0.0",
    "description": "The least.",
}
TO_FILL_IN = {
    **LEAST,
    "version": "2.1.0",
    "title": "To fill in",
    "websiteUrl": "https://example.com",
    "remotes": [
        {
            "type": "streamable-http",
            "url": "https://{shop}.example.com/mcp",
            "headers": [
                {
                    "name": "Authorization",
                    "description": "Who calls.",
                    "isRequired": True,
                    "isSecret": True,
                    "value": "Bearer {token}",
                    "variables": {"token": {"description": "A token.", "isRequired": True, "isSecret": True}},
                }
            ],
            "variables": {"shop": {"description": "The shop.", "isRequired": True, "default": "main"}},
            "supportedProtocolVersions": ["2025-06-18", "2025-11-25"],
        }
    ],
}
SCHEMAS = "https://static.modelcontextprotocol.io/schemas"


def without(member: str) -> dict[str, Any]:
    return {name: value for name, value in LEAST.items() if name != member}


@pytest.mark.parametrize(
    "document",
    [
        LEAST,
        TO_FILL_IN,
        GOOD,
        REGISTERED,
        {**REGISTERED, "packages": [PACKAGE]},
        {**GOOD, "version": "2.1.0-alpha+x86"},
        {
            **GOOD,
            "remotes": [{"type": "sse", "url": "{base}/sse", "variables": {"base": {"isRequired": True}}}],
        },
        {**GOOD, "repository": {"url": "https://example.com/x", "source": "github", "subfolder": "a/b"}},
    ],
)
def test_a_good_card_has_no_problems(document: Any) -> None:
    assert problems_of(document) == []


def test_a_url_that_somebody_has_to_fill_in_is_not_used() -> None:
    assert remote_url(TO_FILL_IN) is None


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "it is not a JSON object"),
        *((without(member), member) for member in LEAST),
        ({**LEAST, "name": "no-slash"}, "name is a namespace"),
        ({**LEAST, "$schema": f"{SCHEMAS}/2025-11-25/server-card.schema.json"}, "$schema is"),
        ({**LEAST, "$schema": f"{SCHEMAS}/v1/server.schema.json"}, "$schema is"),
        ({**GOOD, "$schema": REGISTERED["$schema"].replace("server.", "card.")}, "$schema is"),
        ({**GOOD, "name": "a/b/c"}, "name is a namespace"),
        ({**GOOD, "name": "a" * 200 + "/b"}, "name is a namespace"),
        *(
            ({**GOOD, "version": each}, "is a range")
            for each in ("^1.2", "~1", ">=1.2.3", "1.x", "1.*", "1 - 2")
        ),
        ({**GOOD, "description": "x" * 101}, "description is a text of 1 to 100 characters"),
        ({**GOOD, "title": ""}, "title is a text"),
        ({**GOOD, "websiteUrl": "nowhere"}, "websiteUrl is a URL"),
        (
            {**GOOD, "repository": {"url": "https://x.example", "source": "x", "subfolder": "../x"}},
            "without ..",
        ),
        ({**GOOD, "packages": [PACKAGE]}, "packages are for the registry"),
        ({**GOOD, "icons": [{"src": "a b", "theme": "pink"}]}, "icons[0].src is a URL"),
        *(
            (
                {**GOOD, "icons": [{"src": "https://x.example/a.png", "sizes": each}]},
                "icons[0].sizes is an array",
            )
            for each in ("48x48", None, [48])
        ),
        ({**GOOD, "icons": [{"src": "https://[x/a.png"}]}, "icons[0].src is a URL"),
        ({**GOOD, "icons": None}, "icons is an array"),
        ({**GOOD, "remotes": None}, "remotes is an array"),
        (
            {**GOOD, "remotes": [{"type": "sse", "url": "https://x", "headers": None}]},
            "remotes[0].headers is an array",
        ),
        ({**REGISTERED, "packages": None}, "packages is an array"),
        ({**GOOD, "remotes": {}}, "remotes is an array"),
        ({**GOOD, "remotes": ["x"]}, "remotes[0] is an object"),
        ({**GOOD, "remotes": [{"type": "ws", "url": "https://x.example"}]}, "remotes[0].type is"),
        ({**GOOD, "remotes": [{"type": "sse", "url": "ws://x.example"}]}, "remotes[0].url begins with"),
        (
            {**GOOD, "remotes": [{"type": "sse", "url": "https://x", "headers": [{"value": "a"}]}]},
            "remotes[0].headers[0].name is missing",
        ),
        (
            {
                **GOOD,
                "remotes": [
                    {
                        "type": "sse",
                        "url": "https://x",
                        "variables": {"k": {"isSecret": True, "default": "s"}},
                    }
                ],
            },
            "a secret that everybody reads",
        ),
        ({**REGISTERED, "packages": [{**PACKAGE, "version": "latest"}]}, "neither latest nor a range"),
        ({**REGISTERED, "packages": [{**PACKAGE, "fileSha256": "x"}]}, "64 hexadecimal digits"),
        ({**REGISTERED, "packages": [{**PACKAGE, "transport": "stdio"}]}, "transport is an object"),
        ({**GOOD, "_meta": []}, "_meta is an object"),
    ],
)
def test_a_bad_card_has_its_problem(document: Any, problem: str) -> None:
    found = problems_of(document)
    assert any(problem in each for each in found), found


def test_a_card_has_what_its_server_says_and_no_more() -> None:
    info = Implementation(
        "x",
        "",
        title="T" * 200,
        description="Does\n much. " * 30,
        website_url="https://x.example",
        icons=[Icon("https://x.example/a.png", "image/png", ["48x48"])],
    )
    found = card_of("com.example/x", info)
    assert problems_of(found) == []
    assert found["version"] == "0"
    assert len(found["description"]) == 100
    assert found["icons"] == [{"src": "https://x.example/a.png", "mimeType": "image/png", "sizes": ["48x48"]}]
    assert "remotes" not in found


def test_a_server_elsewhere_is_connected_to_at_an_address_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner gives its name another address between the check and the connection."""
    found = socket.getaddrinfo
    asked: list[str] = []

    def rebinding(host: Any, *words: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name != "rebinding.example":
            return found(host, *words, **options)
        asked.append(name)
        return found("198.41.0.4" if len(asked) == 1 else "10.0.0.1", *words, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)

    async def list_tools(client: Client) -> Any:
        return await client.list_tools()

    with catalog([card("https://rebinding.example/mcp")]) as url, pytest.raises(McpError) as refused:
        run_with_client(ConnectionOptions(url, "auto", 20, 20), list_tools, CallView())
    assert "leads to a private address" in str(refused.value)
    assert len(asked) == 2
