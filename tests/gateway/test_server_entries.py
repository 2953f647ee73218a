"""Gateways of configurations, and bridges, as a library."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors import Client, Context, Server, TransportNotFound
from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.auth import BearerToken
from mcp_actors.errors import ConfigurationError, MissingVariable
from mcp_actors.gateway import SessionPolicy, Upstream, bridge_to, configured_gateway, upstreams_of
from mcp_actors.gateway.server_entries import (
    MAX_CONFIG_BYTES,
    MAX_SERVERS,
    NotReadable,
    ServerEntries,
    read_json,
    read_server_entries,
)
from mcp_actors.gateway.server_entry import (
    MAX_ENV_FILE_BYTES,
    GatewayMembers,
    ServerEntry,
    UnusableFile,
    read_env_file,
)

# -- Configurations as programs write them, and what is wrong with those that cannot be used -------------

CLAUDE_DESKTOP = """{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/ada/Desktop"]
    },
    "git": {"command": "uvx", "args": ["mcp-server-git", "--repository", "/srv/repo"], "env": {"GIT_PAGER": "cat"}}
  }
}
"""
VSCODE = """// Visual Studio Code: .vscode/mcp.json
{
  "inputs": [
    {"type": "promptString", "id": "perplexity-key", "description": "API key", "password": true},
    {"type": "promptString", "id": "region", "description": "Region", "default": "eu"},
  ],
  "servers": {
    /* remote */
    "github": {"type": "http", "url": "https://api.githubcopilot.com/mcp/"},
    "perplexity": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "server-perplexity-ask", "--region", "${input:region}"],
      "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}", "PORT": 3000, "DEBUG": null},
      "envFile": "${workspaceFolder}/.env", // of the project
    },
    "socket": {"type": "http", "url": "unix:///run/server.sock#/mcp/sub"},
  },
}
"""
CURSOR = {
    "mcpServers": {
        "remote": {"url": "http://localhost:3000/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
        "local": {"type": "stdio", "command": "${userHome}/bin/server", "args": [], "envFile": ".env"},
    }
}
WINDSURF = {
    "mcpServers": {
        "figma": {"serverUrl": "https://mcp.figma.com/mcp", "disabledTools": ["delete"]},
        "off": {"serverUrl": "https://example.com/sse", "disabled": True},
    }
}
CLAUDE_CODE = {
    "mcpServers": {
        "api": {
            "type": "sse",
            "url": "${API_BASE_URL:-https://api.example.com}/mcp",
            "headers": {"X-Key": "${KEY}"},
        },
        "live": {"type": "ws", "url": "wss://example.com/mcp"},
        "streaming": {"type": "streamable-http", "url": "https://example.com/mcp"},
    }
}


def problem(source: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        read_server_entries(source)
    return caught.value


def with_entry(**entry: Any) -> dict[str, Any]:
    return {"mcpServers": {"one": entry}}


def test_a_file_of_claude_desktop(tmp_path: Path) -> None:
    (tmp_path / "claude_desktop_config.json").write_text(CLAUDE_DESKTOP)
    entries = read_server_entries(tmp_path / "claude_desktop_config.json")
    files, git = entries
    assert (files.name, files.command, files.args[:2]) == (
        "filesystem",
        "npx",
        ("-y", "@modelcontextprotocol/server-filesystem"),
    )
    assert (git.command, git.args[0], git.env) == ("uvx", "mcp-server-git", {"GIT_PAGER": "cat"})
    assert repr(files) == "<ServerEntry filesystem npx>"
    assert files.gateway == GatewayMembers()


def test_a_file_of_visual_studio_code(tmp_path: Path) -> None:
    folder = tmp_path / ".vscode"
    folder.mkdir()
    (folder / "mcp.json").write_text(VSCODE)
    entries = read_server_entries(str(folder / "mcp.json"))
    github, perplexity, socket = entries
    assert github.url == "https://api.githubcopilot.com/mcp/"
    assert perplexity.env == {"PERPLEXITY_API_KEY": "${input:perplexity-key}", "PORT": "3000", "DEBUG": None}
    assert socket.url == "http+unix://%2Frun%2Fserver.sock/mcp/sub"
    assert entries.source.folder == tmp_path
    assert entries.source.inputs == {"perplexity-key": None, "region": "eu"}


def test_settings_of_visual_studio_code_have_the_same_in_an_object(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(
        f'{{"editor.tabSize": 4, "gateway": {{"name": "g"}}, "mcp": {VSCODE}}}'
    )
    entries = read_server_entries(tmp_path / "settings.json")
    assert [each.name for each in entries] == ["github", "perplexity", "socket"]
    assert entries.source.inputs == {"perplexity-key": None, "region": "eu"}
    assert entries.gateway.name == "g"
    # Beside servers of its own it is a member like any other one that is not known.
    assert [each.name for each in read_server_entries({"mcp": {"servers": {"a": {}}}, **CURSOR})] == [
        "remote",
        "local",
    ]


def test_entries_of_cursor_windsurf_and_claude_code() -> None:
    remote, local = read_server_entries(CURSOR)
    assert remote.headers == {"Authorization": "Bearer ${env:TOKEN}"}
    assert (local.command, local.args, local.env_file) == ("${userHome}/bin/server", (), ".env")
    windsurf = read_server_entries(WINDSURF)
    assert [entry.name for entry in windsurf] == ["figma"]
    assert windsurf.servers["off"].disabled
    assert windsurf.servers["figma"].unknown == ()
    assert [entry.url for entry in read_server_entries(CLAUDE_CODE)] == [
        "${API_BASE_URL:-https://api.example.com}/mcp",
        "wss://example.com/mcp",
        "https://example.com/mcp",
    ]


def test_tools_that_a_host_was_told_to_leave_out_are_not_offered() -> None:
    members = {"disabledTools": ["drop", "a[b]"], "exclude": ["x*"], "excludeTools": ["rm"]}
    (entry,) = read_server_entries(with_entry(command="x", **members))
    assert entry.gateway.given() == {"exclude": ["x*", "drop", "a[[]b]", "rm"]}
    assert entry.unknown == ()


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("\n")
    with pytest.raises(ConfigurationError, match="it is empty"):
        read_server_entries(tmp_path / "mcp.json")


def test_a_server_that_is_not_enabled_is_disabled() -> None:
    assert list(read_server_entries(with_entry(command="x", enabled=False))) == []
    assert [each.name for each in read_server_entries(with_entry(command="x", enabled=True))] == ["one"]


def test_any_url_of_a_transport_is_an_address() -> None:
    urls = ["tcp://127.0.0.1:9000", "unix:///run/s.sock", "memory:x", "stdio:python -m 'a b'"]
    entries = read_server_entries({"mcpServers": {url: {"url": url} for url in urls}})
    assert [(each.url, each.command, each.args) for each in entries] == [
        *((url, None, ()) for url in urls[:3]),
        (None, "python", ("-m", "a b")),
    ]


def test_members_for_a_gateway_stand_in_the_entry_and_beside_the_servers() -> None:
    members = {
        "prefix": "",
        "rename": {"a": "b"},
        "include": ["x*"],
        "sessions": "own",
        "lazy": True,
        "timeout": 5,
    }
    value = with_entry(command="x", scopes=["read"], **members)
    value["gateway"] = {
        "listen": "http://127.0.0.1:8000/mcp",
        "name": "all",
        "instructions": "Ask.",
        "colour": 1,
    }
    entries = read_server_entries(value)
    (entry,) = entries
    assert entry.gateway.given() == {**members, "scopes": ["read"]}
    assert entries.gateway.listen == ("http://127.0.0.1:8000/mcp",)
    assert (entries.gateway.name, entries.gateway.instructions) == ("all", "Ask.")
    assert entries.gateway.unknown == ("colour",)


def test_members_that_are_not_known_are_left_aside() -> None:
    (entry,) = read_server_entries(with_entry(command="x", autoApprove=["y"], headers={"A": "b"}, args=None))
    assert entry.unknown == ("autoApprove", "headers")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"command": ["npx"]}, "command: it has to be a text"),
    ({"command": ""}, "command: it has to be a text"),
    ({"command": "x", "args": "-y"}, "args: it has to be a list of texts"),
    ({"command": "x", "args": ["--port", 8080]}, "args: it has to be a list of texts"),
    ({"command": "x", "env": ["A=b"]}, "env: it has to be an object of names and texts"),
    ({"command": "x", "env": {"A": True}}, "env: it has to be an object of names and texts"),
    ({"command": "x", "env": {"A=B": "c"}}, "env: it has to be an object of names and texts"),
    ({"command": "x", "env": {"A": "b\0"}}, "env: it has to be an object of names and texts"),
    ({"command": "x", "disabled": "no"}, "disabled: it has to be true or false"),
    ({"command": "x", "timeout": 0}, "timeout: it has to be a number of seconds above 0"),
    ({"command": "x", "sessions": "mine"}, "sessions: it has to be one of 'auto', 'shared', 'own'"),
    ({"command": "x", "era": "moderm"}, "era: it has to be one of 'auto', 'legacy', 'modern', '2024-11-05'"),
    ({"url": "http://a", "headers": {"A": 1}}, "headers: it has to be an object of names and texts"),
    ({"url": "http://a", "type": "stdio"}, "type: this type needs a command"),
    ({"url": "http://a", "type": "ws"}, "type: this type needs a url with ws or wss"),
    ({"command": "x", "type": "sse"}, "type: this type needs a url with http or http+unix or https"),
    ({"command": "x", "type": "pigeon"}, "type: it has to be one of stdio, http"),
    ({"url": "stdio:"}, "url: it has no command"),
    ({"url": "stdio:'x"}, "url: it has no command"),
    ({"command": "x", "url": "http://a"}, "it needs either a command (with args) or a url"),
    ({}, "it needs either a command (with args) or a url"),
]


@pytest.mark.parametrize(("entry", "says"), WRONG, ids=lambda each: str(each)[:40])
def test_a_wrong_member_names_file_server_and_member(
    entry: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"one": entry}}))
    error = problem(path)
    assert str(error).startswith(f"{path}, server 'one'")
    assert says in str(error)
    assert (error.file, error.server) == (str(path), "one")
    assert error.member is None or says.startswith(error.member)


def test_what_is_wrong_as_a_whole(tmp_path: Path) -> None:
    assert "it names no servers" in str(problem({}))
    assert "it has to be an object" in str(problem({"mcpServers": []}))
    assert "it has to be an object" in str(problem({"mcpServers": {"a": "b"}}))
    assert "gateway.listen: it has to be a URL, or a list of URLs" in str(
        problem({"servers": {}, "gateway": {"listen": 1}})
    )
    assert "it has to be an object" in str(problem({"servers": {}, "gateway": 1}))
    both = {"servers": {"a": {"command": "x"}}, "mcpServers": {"a": {"command": "x"}}}
    assert "two servers have this name" in str(problem(both))
    assert f"more than {MAX_SERVERS} servers" in str(
        problem({"servers": {str(n): {"command": "x"} for n in range(MAX_SERVERS + 1)}})
    )
    assert "cannot be read (No such file" in str(problem(tmp_path / "none.json"))
    assert "it is no file" in str(problem(tmp_path))
    (tmp_path / "bad").write_bytes(b'{"a": "\xff"}')
    assert "it is not UTF-8 (byte 7)" in str(problem(tmp_path / "bad"))
    with open(tmp_path / "long", "wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    assert f"more than {MAX_CONFIG_BYTES} bytes" in str(problem(tmp_path / "long"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n "servers": {]}', "line 2, column 14: expecting property name"),
        ('{"servers": {} /* secret', "line 1, column 25: expecting ',' delimiter"),
        ('{"servers": {"a": {"command": "secret', "unterminated string"),
        ('{"servers": {"a": {}, "a": {}}}', "an object has the name 'a' twice"),
        ('{"servers": NaN}', "NaN or an infinity"),
        ('{"servers": ' + "9" * 5000 + "}", "a number that is too long"),
        ("[" * 100_000 + "{", "nested too deep"),
        ('["{"]', "the whole is no object"),
        ('{"servers": {},,}', "expecting property name"),
    ],
)
def test_a_text_that_is_no_json_is_shown_nowhere(text: str, says: str) -> None:
    error = problem(text)
    assert says in str(error)
    assert "secret" not in str(error)


def test_comments_and_last_commas_may_stand_in_strings() -> None:
    text = '{"a": "// no /* comment */ ,]", // yes\r\n "b": [1, 2, /* , */ ], "c": "\\\\", "d": "\\",}", }'
    assert read_json(text) == {"a": "// no /* comment */ ,]", "b": [1, 2], "c": "\\", "d": '",}'}


@pytest.mark.parametrize(
    "text", ["{" + "/* " * 200_000, '{"a": "' + '\\"' * 200_000, "{" + "," * 200_000, "{" + "/" * 200_000]
)
def test_no_text_takes_long(text: str) -> None:
    """Reading one of these twice over for each of its characters would take minutes."""
    with pytest.raises(NotReadable):
        read_json(text)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _json, max_size=4), st.sampled_from(["", "// c\n", "/* , } */", " \n"]))
def test_comments_between_the_parts_change_nothing(value: dict[str, Any], comment: str) -> None:
    """A comment goes behind each comma and colon that is no part of a string: those of an encoder of our own."""

    def write(part: Any) -> str:
        if isinstance(part, dict):
            return (
                "{" + "".join(f"{json.dumps(k)}:{comment}{write(v)},{comment}" for k, v in part.items()) + "}"
            )
        if isinstance(part, list):
            return "[" + "".join(f"{write(each)}{comment},{comment}" for each in part) + "]"
        return json.dumps(part)

    assert read_json(f"{comment}{write(value)}{comment}") == value


_entry = st.dictionaries(
    st.sampled_from(["command", "args", "url", "type", "env", "headers", "prefix", "timeout", "lazy", "x"]),
    _json,
)


@given(st.dictionaries(st.text(max_size=3), _entry | _json, max_size=3), _json)
def test_whatever_a_configuration_has_is_read_or_refused_with_its_place(servers: Any, section: Any) -> None:
    try:
        found: object = read_server_entries({"mcpServers": servers, "gateway": section})
    except ConfigurationError as error:
        found = error.file
    assert isinstance(found, ServerEntries) or found == "the configuration"


def test_a_name_that_is_there_twice_is_found_among_many_at_once() -> None:
    """Searching for each of them in all would take minutes."""
    names = ", ".join(f'"{number}": 1' for number in [*range(100_000), 99_999])
    with pytest.raises(ConfigurationError, match="'99999' twice"):
        read_server_entries(f'{{"mcpServers": {{}}, "x": {{{names}}}}}')


# -- What clients connect to for an entry, with variables put in; secrets are shown nowhere --------------

SERVES = Path(__file__).with_name("serves.py")
SECRET = "s3cr3t"


def entry_of(**members: Any) -> ServerEntry:
    return read_server_entries({"mcpServers": {"one": members}}).servers["one"]


async def test_a_process_is_started_with_arguments_variables_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "two words")
    for name in ("TAKEN_AWAY", "KEPT", "USER"):
        monkeypatch.setenv(name, "x")
    (tmp_path / ".cursor").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / ".env").write_text("# comment\nexport FROM_FILE='a b' # c\nTOKEN=old\n")
    config = tmp_path / ".cursor" / "mcp.json"
    config.write_text(
        """{"mcpServers": {"one": {
          "command": "${PYTHON}", "args": ["${SCRIPT}", "${WORD}", "${NONE:-d e}"], "cwd": "work", "envFile": ".env",
          "env": {"TOKEN": "${env:WORD}!", "TAKEN_AWAY": null, "USER": null, "FOLDER": "${workspaceFolderBasename}"}
        }}}"""
    )
    (entry,) = read_server_entries(config)
    environ = {**os.environ, "PYTHON": sys.executable, "SCRIPT": str(SERVES)}
    target = entry.target(environ=environ)
    assert isinstance(target, ClientTransport)
    async with Client(target) as client:
        names = ["FROM_FILE", "TOKEN", "TAKEN_AWAY", "KEPT", "USER", "FOLDER", "PATH"]
        found = await client.call_tool("started", {"names": names}, returns=dict[str, str | None])
    assert found == {
        "FROM_FILE": "a b",
        "TOKEN": "two words!",
        "TAKEN_AWAY": None,
        "KEPT": None,
        "USER": None,
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


# -- Gateways of configurations, and bridges, as a library -----------------------------------------------

SERVES_CONFIGURED = Path(__file__).with_name("serves.py")


def inner() -> Server:
    server = Server("inner", version="7", instructions="Ask the inner one.")

    @server.tool
    def greet(name: str) -> str:
        return f"hello {name}"

    return server


async def test_a_gateway_of_a_configuration(nursery: Any) -> None:
    await nursery.start(inner().serve, "memory:configured")
    value = {
        "mcpServers": {
            "memory": {"url": "memory:configured", "rename": {"greet": "hi"}},
            "child": {
                "command": sys.executable,
                "args": [str(SERVES_CONFIGURED), "${WORD}"],
                "env": {"A": "b"},
                "prefix": "c-",
            },
            "off": {"command": "nothing", "disabled": True},
        },
        "gateway": {"name": "all", "instructions": "Ask them."},
    }
    os.environ["WORD"] = "w"
    try:
        gateway = configured_gateway(value, version="3")
        async with Client(gateway) as client:
            assert (client.server_info.name, client.server_info.version) == ("all", "3")
            assert client.instructions is not None
            assert client.instructions.startswith("Ask them.")
            found = await client.call_tool("c-started", {"names": ["A"]}, returns=dict[str, str])
            assert (found["A"], found["args"]) == ("b", "w")
            assert (await client.call_tool("hi", {"name": "Ada"})).text == "hello Ada"
    finally:
        del os.environ["WORD"]
    nursery.cancel_scope.cancel()


def test_the_members_of_an_entry_are_the_settings_of_its_upstream() -> None:
    members: dict[str, Any] = {
        "prefix": "p-",
        "rename": {"a": "b"},
        "include": ["x*"],
        "exclude": ["xy"],
        "sessions": "own",
        "lazy": True,
        "era": "legacy",
        "timeout": 5,
        "cap": 50,
        "scopes": ["read"],
    }
    entries = read_server_entries(
        {"mcpServers": {"one": {"url": "https://a.example/mcp", **members}, "two": {"command": "x"}}}
    )
    one, two = upstreams_of(entries, access={"one": BearerToken("t"), "two": BearerToken("t")})
    assert {name: getattr(one, name) for name in members} == members
    assert two == Upstream(name="two", target=two.target)
    assert callable(one.target)
    # What takes no access is given none.
    assert callable(two.target)
    assert one.target() is not one.target()
    assert two.target() is not two.target()


def test_names_that_cannot_be_are_told_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"one": {"command": "x", "rename": {"a": "c", "b": "c"}}}}')
    with pytest.raises(ConfigurationError, match=r"mcp\.json, server 'one', rename: two names"):
        configured_gateway(path)


async def test_a_bridge_presents_itself_as_its_server() -> None:
    async with Client(bridge_to(inner())) as client:
        assert (client.server_info.name, client.server_info.version) == ("inner", "7")
        assert client.instructions == "Ask the inner one."
        assert [tool.name async for tool in client.tools()] == ["greet"]
        assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"


@pytest.mark.parametrize(("sessions", "connections"), [("shared", 1), ("own", 2)])
async def test_connections_of_a_bridge_may_be_shared_or_own(
    nursery: Any, sessions: SessionPolicy, connections: int
) -> None:
    made: list[ClientTransport] = []
    await nursery.start(inner().serve, "memory:bridged")

    def make() -> ClientTransport:
        made.append(client_transport("memory:bridged"))
        return made[-1]

    bridge = bridge_to(make, sessions=sessions, settings={"era": "legacy", "lazy": True})
    await nursery.start(bridge.serve, "memory:bridge")
    async with Client("memory:bridge", era="legacy") as one, Client("memory:bridge", era="legacy") as two:
        for client in (one, two, one, two):
            assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"
    assert len(made) == connections
    nursery.cancel_scope.cancel()
