"""The table of clients, and the words of an entry."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.install.clients import (
    CLIENTS,
    is_ours,
    name_from,
    named,
    place_of,
    started_with,
    variables,
)

HOME = Path("/home/ann")
MAC = "~/Library/Application Support"
ROAMING = "/roaming"


@pytest.mark.parametrize(
    ("client", "linux", "darwin", "win32"),
    [
        (
            "claude-desktop",
            "~/.config/Claude/claude_desktop_config.json",
            f"{MAC}/Claude/claude_desktop_config.json",
            f"{ROAMING}/Claude/claude_desktop_config.json",
        ),
        ("claude-code", *["~/.claude.json"] * 3),
        ("cursor", *["~/.cursor/mcp.json"] * 3),
        (
            "vscode",
            "~/.config/Code/User/mcp.json",
            f"{MAC}/Code/User/mcp.json",
            f"{ROAMING}/Code/User/mcp.json",
        ),
        (
            "vscode-insiders",
            "~/.config/Code - Insiders/User/mcp.json",
            f"{MAC}/Code - Insiders/User/mcp.json",
            f"{ROAMING}/Code - Insiders/User/mcp.json",
        ),
        ("windsurf", *["~/.codeium/windsurf/mcp_config.json"] * 3),
        ("zed", *["~/.config/zed/settings.json"] * 2, f"{ROAMING}/Zed/settings.json"),
        ("gemini-cli", *["~/.gemini/settings.json"] * 3),
        ("cline", *["~/.cline/data/settings/cline_mcp_settings.json"] * 3),
        ("lm-studio", *["~/.lmstudio/mcp.json"] * 3),
    ],
)
def test_each_client_has_its_place_on_each_system(client: str, linux: str, darwin: str, win32: str) -> None:
    for system, place in (("linux", linux), ("darwin", darwin), ("win32", win32)):
        found = place_of(CLIENTS[client], system=system, environ={"APPDATA": ROAMING}, home=HOME)
        assert found == Path(place.replace("~", str(HOME)))


@pytest.mark.parametrize(
    ("client", "system", "environ", "place"),
    [
        ("zed", "linux", {"XDG_CONFIG_HOME": "/x"}, "/x/zed/settings.json"),
        ("zed", "linux", {"XDG_CONFIG_HOME": "x"}, "/home/ann/.config/zed/settings.json"),
        ("zed", "darwin", {"XDG_CONFIG_HOME": "/x"}, "/home/ann/.config/zed/settings.json"),
        ("vscode", "win32", {}, "/home/ann/AppData/Roaming/Code/User/mcp.json"),
        ("claude-code", "linux", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("claude-code", "linux", {"CLAUDE_CONFIG_DIR": ""}, "/home/ann/.claude.json"),
        ("cline", "darwin", {"CLINE_MCP_SETTINGS_PATH": "/c/m.json"}, "/c/m.json"),
    ],
)
def test_variables_may_move_it(client: str, system: str, environ: dict[str, str], place: str) -> None:
    assert place_of(CLIENTS[client], system=system, environ=environ, home=HOME) == Path(place)


def test_an_entry_has_the_form_of_its_client() -> None:
    words = ["/bin/python", "-m", "mcp_actors", "serve", "a.py"]
    plain = {"command": "/bin/python", "args": words[1:]}
    forms = {name: client.entry(words, {}) for name, client in CLIENTS.items()}
    typed = {"claude-code", "cursor", "vscode", "vscode-insiders"}
    assert forms == {name: {"type": "stdio", **plain} if name in typed else plain for name in CLIENTS}
    assert CLIENTS["zed"].entry(words, {"A": "1"}) == {**plain, "env": {"A": "1"}}
    sections = {name: client.section for name, client in CLIENTS.items() if client.section != "mcpServers"}
    assert sections == {"vscode": "servers", "vscode-insiders": "servers", "zed": "context_servers"}
    assert all(client.afterwards for client in CLIENTS.values())


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        ({"command": "python", "args": ["-P", "-m", "mcp_actors", "serve", "a.py"]}, True),
        ({"command": "python", "args": ["-P", "-m", "mcp_actors", "gateway", "a.json"]}, True),
        ({"command": "python", "args": ["-m", "mcp_actors", "call"]}, False),
        ({"command": "python", "args": ["mcp_actors", "serve", "-m"]}, False),
        ({"command": "python", "args": "-m mcp_actors serve"}, False),
        ({"url": "https://example.org"}, False),
        (["-m", "mcp_actors", "serve"], False),
        (None, False),
    ],
)
def test_our_entries_are_recognised_by_what_they_start(entry: object, ours: bool) -> None:
    assert is_ours(entry) is ours


def test_nothing_in_the_words_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("weather.py", "shop.db", "odd:name.py"):
        Path(name).touch()
    start = [sys.executable, "-P", "-m", "mcp_actors", "serve"]
    assert Path(sys.executable).is_absolute()
    assert started_with("weather.py", []) == [*start, f"{tmp_path}/weather.py"]
    assert started_with("./weather.py:make", []) == [*start, f"{tmp_path}/weather.py:make"]
    assert started_with("odd:name.py", []) == [*start, f"{tmp_path}/odd:name.py"]
    assert started_with("my.package:make", ["shop.db", "--fast", ""]) == [
        *start, "my.package:make", "--", f"{tmp_path}/shop.db", "--fast", "",
    ]  # fmt: skip
    Path("mcp.json").touch()
    assert started_with("mcp.json", []) == [*start[:-1], "gateway", f"{tmp_path}/mcp.json"]
    with pytest.raises(WrongUsage, match="a gateway takes no ARGS"):
        started_with("mcp.json", ["shop.db"])
    with pytest.raises(WrongUsage, match=r"there is no file no\.json"):
        started_with("no.json", [])
    with pytest.raises(WrongUsage, match=r"there is no file missing\.py"):
        started_with("missing.py:make", [])
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(WrongUsage, match="cannot say where it is"):
        started_with("weather.py", [])


def test_variables_are_given_or_taken_over() -> None:
    assert variables(["A=1", "B", "C=", "D=x=y"], {"B": "2"}) == {"A": "1", "B": "2", "C": "", "D": "x=y"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["=secret"], "--env takes NAME=VALUE"),
        (["9A=secret"], "--env takes NAME=VALUE"),
        (["A B=secret"], "--env takes NAME=VALUE"),
        (["A=1", "A=secret"], "A is given twice"),
        (["A"], "A is not set here"),
        (["A=secret\0"], "NUL"),
    ],
)
def test_odd_variables_are_refused_without_their_values(words: list[str], why: str) -> None:
    with pytest.raises(WrongUsage, match=why) as raised:
        variables(words, {})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["a", "Weather-2", "a_b", "a" * 64])
def test_a_name_that_every_client_takes(name: str) -> None:
    assert named(name) == name
    assert name_from(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "__proto__", "a b", "a.b", "a/b", "a" * 65, "wétter", "a\n", "\x1b[31m"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(WrongUsage, match="is no name for an entry"):
        named(name)


def test_a_name_is_made_of_the_servers_own() -> None:
    assert name_from("my weather! (2)") == "my-weather-2"
    assert name_from("__proto__") == "proto"
    assert len(name_from("a" * 100)) == 64
    with pytest.raises(WrongUsage, match="give one with --name"):
        name_from("天気")


def test_the_places_are_those_of_this_user_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert place_of(CLIENTS["cursor"]) == Path("/home/ann/.cursor/mcp.json")
    assert os.environ["HOME"] == "/home/ann"
