"""What clients connect to for an entry, with variables put in; secrets are shown nowhere."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from mcp_actors import Client, Context, Server, TransportNotFound
from mcp_actors.abc import ClientTransport
from mcp_actors.errors import ConfigurationError, MissingVariable
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.gateway.server_entry import MAX_ENV_FILE_BYTES, ServerEntry, UnusableFile, read_env_file

SERVES = Path(__file__).with_name("serves.py")
SECRET = "s3cr3t"


def entry_of(**members: Any) -> ServerEntry:
    return read_server_entries({"mcpServers": {"one": members}}).servers["one"]


async def test_a_process_is_started_with_arguments_variables_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "two words")
    monkeypatch.setenv("TAKEN_AWAY", "x")
    (tmp_path / ".cursor").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / ".env").write_text("# comment\nexport FROM_FILE='a b' # c\nTOKEN=old\n")
    config = tmp_path / ".cursor" / "mcp.json"
    config.write_text(
        """{"mcpServers": {"one": {
          "command": "${PYTHON}", "args": ["${SCRIPT}", "${WORD}", "${NONE:-d e}"], "cwd": "work", "envFile": ".env",
          "env": {"TOKEN": "${env:WORD}!", "TAKEN_AWAY": null, "FOLDER": "${workspaceFolderBasename}"}
        }}}"""
    )
    (entry,) = read_server_entries(config)
    environ = {**os.environ, "PYTHON": sys.executable, "SCRIPT": str(SERVES)}
    target = entry.target(environ=environ)
    assert isinstance(target, ClientTransport)
    async with Client(target) as client:
        names = ["FROM_FILE", "TOKEN", "TAKEN_AWAY", "FOLDER", "PATH"]
        found = await client.call_tool("started", {"names": names}, returns=dict[str, str | None])
    assert found == {
        "FROM_FILE": "a b",
        "TOKEN": "two words!",
        "TAKEN_AWAY": None,
        "FOLDER": tmp_path.name,
        "PATH": os.environ["PATH"],
        "args": "two words|d e",
        "cwd": str(tmp_path / "work"),
    }


async def test_the_requests_to_a_url_have_the_headers(nursery: Any) -> None:
    server = Server("seen")

    @server.tool
    async def key(ctx: Context) -> str:
        assert ctx.request is not None
        return ctx.request.headers["x-key"]

    (url,) = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
    entry = entry_of(type="http", url="${BASE}/mcp", headers={"X-Key": "Key ${KEY}"})
    target = entry.target(environ={"BASE": url.removesuffix("/mcp"), "KEY": SECRET})
    assert SECRET not in repr(target)
    async with Client(target) as client:
        assert await client.call_tool("key", returns=str) == f"Key {SECRET}"
    nursery.cancel_scope.cancel()


def test_a_target_is_made_anew_with_the_variables_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(url="http://${HOST}/mcp")
    monkeypatch.setenv("HOST", "a.example")
    assert entry.target() == "http://a.example/mcp"
    monkeypatch.setenv("HOST", "b.example")
    assert entry.target() == "http://b.example/mcp"
    with_headers = entry_of(url="http://a.example/mcp", headers={"A": "b"})
    assert with_headers.target() is not with_headers.target()


MISSING: list[tuple[dict[str, Any], str, str]] = [
    ({"command": "${MISSING}"}, "command", "MISSING"),
    ({"command": "x", "args": ["a", "${env:MISSING}"]}, "args[1]", "MISSING"),
    ({"command": "x", "env": {"A": "${MISSING}"}}, "env.A", "MISSING"),
    ({"command": "x", "cwd": "${MISSING}"}, "cwd", "MISSING"),
    ({"command": "x", "envFile": "${MISSING}"}, "envFile", "MISSING"),
    ({"command": "x", "env": {"A": "${input:api-key}"}}, "env.A", "INPUT_API_KEY"),
    ({"url": "http://${MISSING}"}, "url", "MISSING"),
    ({"url": "http://a", "headers": {"A": "${MISSING}"}}, "headers.A", "MISSING"),
]


@pytest.mark.parametrize(("members", "member", "variable"), MISSING, ids=lambda each: str(each)[:40])
def test_a_missing_variable_is_named_with_server_and_member(
    members: dict[str, Any], member: str, variable: str
) -> None:
    with pytest.raises(MissingVariable) as caught:
        entry_of(**members).target(environ={})
    error = caught.value
    assert (error.server, error.member, error.variable) == ("one", member, variable)
    assert str(error).startswith(f"the configuration, server 'one', {member}: ")
    assert variable in str(error)


def test_inputs_come_from_the_environment_or_from_their_defaults() -> None:
    value = {
        "inputs": [{"id": "region", "default": "eu"}, {"id": "key", "password": True, "default": "no"}],
        "servers": {"one": {"url": "http://${input:region}.example/${input:key}"}},
    }
    (entry,) = read_server_entries(value)
    assert entry.target(environ={"INPUT_KEY": "k"}) == "http://eu.example/k"
    assert entry.target(environ={"INPUT_KEY": "k", "INPUT_REGION": "us"}) == "http://us.example/k"
    with pytest.raises(MissingVariable, match="set the environment variable INPUT_KEY"):
        entry.target(environ={})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url": "http://a/${command:pick}"}, "'${command:pick' cannot be expanded; known are ${VAR}"),
    ({"url": "http://a/${A:-${B}}"}, "a ${ has no }, or stands inside of another one"),
    ({"url": "http://a/${A"}, "a ${ has no }, or stands inside of another one"),
    ({"url": "http://a/${workspaceFolder}"}, "is known only in a file"),
    ({"command": "${EMPTY}"}, "it is empty, or has a NUL character"),
    ({"command": "x", "envFile": "/nowhere/.env"}, "/nowhere/.env: it cannot be read (No such file"),
    ({"url": "http://a", "headers": {"A B": "c"}}, "it is no name of a header"),
    ({"url": "http://a", "headers": {"A": "x\n${KEY}"}}, "a character that no header can have"),
    ({"url": "tcp://127.0.0.1:1", "headers": {"A": "${KEY}"}}, "does not take all of: headers"),
    ({"url": "http://user:${KEY}/mcp"}, "its port is no number from 0 to 65535"),
    ({"url": "http:///${KEY}"}, "it names no host: write scheme://HOST:PORT/PATH"),
]


@pytest.mark.parametrize(("members", "says"), REFUSED, ids=lambda each: str(each)[:40])
def test_what_cannot_be_used_is_refused_without_its_secrets(members: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        entry_of(**members).target(environ={"KEY": SECRET, "EMPTY": ""})
    assert says in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_scheme_without_transport_is_told_without_the_url() -> None:
    with pytest.raises(TransportNotFound) as caught:
        entry_of(url="dodo://${KEY}").target(environ={"KEY": SECRET})
    assert str(caught.value) == "the configuration, server 'one', url: no transport is installed for 'dodo'"
    with pytest.raises(TransportNotFound, match="it is no URL"):
        entry_of(url="${KEY}").target(environ={"KEY": SECRET})
    with pytest.raises(TransportNotFound, match="it has no scheme: write http:// before it"):
        entry_of(url="127.0.0.1:8000/${KEY}").target(environ={"KEY": SECRET})


def test_blanks_around_a_url_are_none_of_its_own() -> None:
    entry = entry_of(url=" ${URL}")
    assert entry.target(environ={"URL": "http://127.0.0.1:1/mcp\n"}) == "http://127.0.0.1:1/mcp"
    assert entry.address(environ={"URL": "http://127.0.0.1:1/mcp\n"}) == "http://127.0.0.1:1/mcp"


def test_an_entry_shows_neither_arguments_nor_paths() -> None:
    assert repr(entry_of(command="/opt/npx", args=[SECRET], env={"A": SECRET})) == "<ServerEntry one npx>"
    url = f"https://user:{SECRET}@host.example/{SECRET}?key={SECRET}"
    assert repr(entry_of(url=url, disabled=True)) == "<ServerEntry one https://host.example disabled>"


@pytest.mark.parametrize(
    ("members", "takes"),
    [
        ({"url": "https://a/mcp"}, True),
        ({"url": "wss://a/mcp", "headers": {"X": "y"}}, True),
        ({"url": "https://a/mcp", "headers": {"authorization": "x"}}, False),
        ({"url": "https://user@a/mcp"}, False),
        ({"url": "tcp://a:1"}, False),
        ({"command": "x"}, False),
    ],
)
def test_a_login_is_for_urls_without_credentials(members: dict[str, Any], takes: bool) -> None:
    assert entry_of(**members).takes_auth is takes


def test_a_file_of_variables(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(
        '\ufeffA=1\n\n# B=2\nexport C = three  # comment\nD="x\\n\\"y\\" # no comment"\nE=\'\\n\'\nF=\nG=a#b\nA=4\n'
    )
    assert read_env_file(path) == {
        "A": "4",
        "C": "three",
        "D": 'x\n"y" # no comment',
        "E": "\\n",
        "F": "",
        "G": "a#b",
    }
    for line in ("no equals", '="x"', 'A="open', "A='open", 'A="x" y', "1A=x"):
        path.write_text(f"OK=1\n{line}\n")
        with pytest.raises(UnusableFile, match="line 2 is no NAME=VALUE"):
            read_env_file(path)
    path.write_text("A=" + "x" * MAX_ENV_FILE_BYTES)
    with pytest.raises(UnusableFile, match=f"more than {MAX_ENV_FILE_BYTES} bytes"):
        read_env_file(path)
