"""``mcp-actors from-openapi``: what it says of options and documents before it serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Mcp

pytestmark = pytest.mark.slow

SECRET = "s3cr3t"


@pytest.fixture
def relative(tmp_path: Path) -> str:
    """A document whose server is a path alone, as many are that an API serves itself."""
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Shelves", "version": "1"},
        "servers": [{"url": "/api/v3"}],
        "paths": {"/shelves": {"get": {}}},
    }
    path = tmp_path / "shelves.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "its server '/api/v3' is no whole URL: say where the API is by base_url= or --base-url"),
        (["--base-url", "localhost:8080"], "base_url='localhost:8080' is no whole URL, such as https://"),
        (["--base-url", "http://h/?a=1"], "base_url='http://h/?a=1' is no whole URL, such as https://"),
        (["--header", f"X Key:{SECRET}"], "--header number 1 has no usable name before its colon"),
        (["--header", SECRET], "--header number 1 has no colon: write --header NAME:VALUE"),
        (["--header", f"X-Key:{SECRET}\nb"], "the value of --header X-Key holds a line break"),
    ],
)
def test_what_no_request_can_be_made_with_is_wrong_usage(
    mcp: Mcp, relative: str, words: list[str], says: str
) -> None:
    where = [] if not words or "--base-url" in words else ["--base-url", "http://127.0.0.1:9"]
    result = mcp("from-openapi", relative, *where, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())
    assert SECRET not in result.stderr


def test_a_check_says_that_nobody_knows_where_the_api_is(mcp: Mcp, relative: str) -> None:
    result = mcp("from-openapi", relative, "--check")
    assert result.returncode == 0
    assert "tool" in result.stdout
    assert "its server '/api/v3' is no whole URL" in result.stderr
    assert mcp("from-openapi", relative, "--check", "--base-url", "http://127.0.0.1:9").stderr == ""
