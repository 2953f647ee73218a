"""``mcp-actors serve --issuer``: a server that demands access tokens."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import Ran
from .test_serve_http import SECONDS, program, serving

__all__ = ["program"]

Mcp = Callable[..., Ran]
RESOURCE = "https://mcp.example.org/mcp"
ISSUER = "https://login.example.org"
PROTECTED = ["--issuer", ISSUER, "--resource", RESOURCE]


def answer_of(port: int, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    headers = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        with connection.getresponse() as answer:
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()


def test_it_demands_tokens_and_says_of_whom(program: Path) -> None:
    words = ["--listen", "http://127.0.0.1:0/mcp", *PROTECTED]
    with serving(program, *words, "--scope", "mcp:read mcp:list") as (_, (port,)):
        status, headers, _ = answer_of(port, "POST", "/mcp")
        assert status == 401
        assert headers["www-authenticate"].startswith("Bearer ")
        document = "https://mcp.example.org/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{document}"' in headers["www-authenticate"]
        status, _, body = answer_of(port, "GET", "/.well-known/oauth-protected-resource/mcp")
    assert status == 200
    published = json.loads(body)
    assert published["resource"] == RESOURCE
    assert published["authorization_servers"] == [ISSUER]
    assert published["scopes_supported"] == ["mcp:read", "mcp:list"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--issuer", ISSUER], "--issuer needs --resource"),
        (["--resource", RESOURCE], "--resource and --scope need --issuer"),
        (["--scope", "mcp:read"], "--resource and --scope need --issuer"),
        (PROTECTED, "stdio: takes no access tokens"),
        (
            [*PROTECTED, "--listen", "http://127.0.0.1:0/mcp", "--listen", "tcp://127.0.0.1:0"],
            "tcp://127.0.0.1:0 takes no access tokens",
        ),
        (
            ["--issuer", ISSUER, "--resource", "mcp.example.org", "--listen", "http://127.0.0.1:0/mcp"],
            "give the public URL of this server",
        ),
    ],
)
def test_words_that_protect_nothing(mcp: Mcp, program: Path, words: list[str], says: str) -> None:
    result = mcp("serve", str(program), *words)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
