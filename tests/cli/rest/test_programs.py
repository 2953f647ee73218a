"""Whole programs with a REST API, as their callers see them: ``serve --rest``, ``gateway --rest`` and ``rest``."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from mcp_actors.cli.credentials import new_key
from tests.cli.conftest import LIMIT, SERVED, Started

pytestmark = pytest.mark.slow

AT = ["--listen", "http://127.0.0.1:0/mcp"]
CHILD = [sys.executable, "-m", "mcp_actors", "serve", str(SERVED)]


@contextmanager
def calling(started: Started, *words: str, headers: dict[str, str] | None = None) -> Iterator[httpx2.Client]:
    """Starts a program, and yields a client of its REST API."""
    with started(*words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        said = ""
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)/mcp$", said)) is None:
            line = process.stderr.readline()
            assert line, said
            said = line.strip()
        with httpx2.Client(base_url=f"http://127.0.0.1:{found[1]}", headers=headers, timeout=LIMIT) as client:
            yield client


def appears(path: Path) -> None:
    end = time.monotonic() + LIMIT
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


def leave_during_a_call(client: httpx2.Client, path: str, folder: Path) -> str:
    """Calls a tool that waits, goes away once its first event came, and returns that, after the tool was cancelled."""
    arguments = {"begun": str(folder / "begun"), "ended": str(folder / "ended")}
    with client.stream("POST", path, json=arguments, headers={"accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.iter_lines()
        event = next(line for line in lines if line.startswith("event:"))
        shown = f"{event} {next(lines)}"
        appears(folder / "begun")
        assert not (folder / "ended").exists()
    appears(folder / "ended")
    return shown


PROGRESS = 'event: progress data: {"progress":1,"total":4,"message":"waiting"}'


def test_a_server_is_called_by_those_with_a_key_and_its_scopes(started: Started, tmp_path: Path) -> None:
    made = {name: new_key(name, scopes) for name, scopes in (("ann", ["use"]), ("bob", []))}
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{line}\n" for _, line in made.values()))
    limit = ["--limit", "http.body_bytes=64KiB"]
    words = ["serve", str(SERVED), *AT, "--rest", "--api-keys", str(keys), "--scope", "use", *limit]
    with calling(started, *words) as client:
        assert client.get("/").status_code == 200
        assert client.get("/openapi.json").status_code == 401
        assert client.post("/tools/add", json={"a": 1}).status_code == 401
        client.headers["authorization"] = f"Bearer {made['bob'][0]}"
        assert client.post("/tools/add", json={"a": 1}).status_code == 403
        client.headers["authorization"] = f"Bearer {made['ann'][0]}"
        added = client.post("/tools/add", json={"a": 1})
        assert (added.status_code, added.json()) == (200, 2)
        assert client.post("/tools/echo", json={"value": {"a": "x" * 60_000}}).status_code == 200
        assert client.post("/tools/echo", json={"value": {"a": "x" * 70_000}}).status_code == 413
        assert client.post("/tools/add", json={"a": 1}, headers={"host": "evil.example"}).status_code == 403
        assert leave_during_a_call(client, "/tools/wait", tmp_path) == PROGRESS


def test_a_gateway_is_called_by_the_names_that_it_gives(started: Started, tmp_path: Path) -> None:
    entry = {"command": CHILD[0], "args": CHILD[1:]}
    configuration = tmp_path / "mcp.json"
    configuration.write_text(json.dumps({"mcpServers": {"one": entry, "two": entry}}))
    with calling(started, "gateway", str(configuration), "--rest", *AT) as client:
        paths = client.get("/openapi.json").json()["paths"]
        assert {"/tools/one_add", "/tools/two_add"} <= set(paths)
        added = client.post("/two_add", json={"a": "1", "b": 2})
        assert (added.status_code, added.json()) == (200, 3)
        assert client.post("/one_nothing", json={}).status_code == 404
        refused = client.post("/one_refuse", json={})
        assert (refused.status_code, refused.json()["detail"]["message"][:11]) == (500, "no, because")
        assert leave_during_a_call(client, "/two_wait", tmp_path) == PROGRESS
        # The other calls of that server go on.
        assert client.post("/two_add", json={"a": 1}).status_code == 200


def test_a_server_that_ends_in_a_call_is_away_and_started_again(started: Started) -> None:
    server = f"stdio:{shlex.join(CHILD)}"
    with calling(started, "rest", server, "http://127.0.0.1:0/mcp") as client:
        assert client.post("/add", json={"a": 1}).json() == 2
        crashed = client.post("/crash", json={})
        assert crashed.status_code == 502
        assert crashed.json()["detail"]["message"]
        assert client.post("/add", json={"a": 1}).json() == 2
