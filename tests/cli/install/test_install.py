"""``mcp-actors install`` and ``uninstall`` as a person runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.install import install
from mcp_actors.sync import Client
from mcp_transports.stdio import StdioClientTransport
from tests.cli.conftest import CTRL_C, Mcp, Ran, Terminal

pytestmark = pytest.mark.slow

WEATHER = """
import os, sys
from mcp_actors import Server

def server(*args: str) -> Server:
    made = Server("my weather", version="1")

    @made.tool
    def told() -> list[str]:
        return [os.environ.get("KEY", ""), os.environ.get("ELSEWHERE", ""), os.getcwd(), *args]

    return made
"""


@pytest.fixture
def home(environment: dict[str, str], tmp_path: Path) -> Path:
    """A user who has Cursor, and a server in the folder in which the commands are run."""
    (tmp_path / "home" / ".cursor").mkdir(parents=True)
    (tmp_path / "weather.py").write_text(WEATHER)
    environment["HOME"] = str(tmp_path / "home")
    environment.pop("XDG_STATE_HOME", None)
    return tmp_path / "home"


@pytest.fixture
def config(home: Path) -> Path:
    return home / ".cursor" / "mcp.json"


def install_install(mcp: Mcp, *words: str) -> Ran:
    return mcp("install", "--client", "cursor", *words)


def test_a_client_starts_what_was_installed_and_it_comes_and_goes(
    mcp: Mcp, config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    environment["KEY"], environment["ELSEWHERE"] = "from-here", "not handed on"
    config.write_text('{"mcpServers": {"theirs": {"command": "npx"}}}')
    before = config.read_bytes()
    (tmp_path / "shop.db").touch()
    result = install_install(mcp, "--yes", "--env", "KEY", "weather.py", "--", "shop.db", "--fast")
    assert result.returncode == 0, result.stderr
    assert f"installed my weather as my-weather in {config}" in result.stdout
    assert '"KEY": "***"' in result.stdout
    assert "from-here" not in result.stdout + result.stderr
    installed = config.read_bytes()
    entry = json.loads(installed)["mcpServers"]["my-weather"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # Files with these names are in the folder of many a project, and must not be imported from there.
    for name in ("click.py", "trio.py", "mcp_actors.py"):
        (elsewhere / name).write_text("raise SystemExit('imported from the folder of a project')")
    command = [entry["command"], *entry["args"]]
    with Client(StdioClientTransport(command, env={"PATH": "/bin", **entry["env"]}, cwd=elsewhere)) as client:
        told: Any = client.call_tool("told", {}).data
    assert told == ["from-here", "", str(elsewhere), str(tmp_path / "shop.db"), "--fast"]

    gone = mcp("uninstall", "my-weather", "--client", "cursor", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert "removed my-weather" in gone.stdout
    assert config.read_bytes() == before
    for expected in (installed, before):
        undone = install_install(mcp, "--undo", "--yes")
        assert undone.returncode == 0, undone.stderr
        assert config.read_bytes() == expected


@pytest.mark.parametrize(
    "text", ["{}", '{\n  "a": 1\n}', '{\n  "mcpServers": {}\n}\n', '{\r\n  "mcpServers": {\r\n  }\r\n}\r\n']
)
def test_what_was_installed_and_taken_out_leaves_the_file_as_it_was(
    mcp: Mcp, config: Path, text: str
) -> None:
    config.write_bytes(text.encode())
    assert install_install(mcp, "--yes", "--name", "w", "weather.py").returncode == 0
    assert config.read_bytes() != text.encode()
    assert mcp("uninstall", "w", "--client", "cursor", "--yes").returncode == 0
    assert config.read_bytes() == text.encode()


def test_a_client_starts_a_gateway(
    mcp: Mcp, config: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    words = {"command": sys.executable, "args": ["-m", "mcp_actors", "serve", str(tmp_path / "weather.py")]}
    keyed = {"url": "tcp://127.0.0.1:1", "headers": {"A": "${TICKETS_KEY}"}, "lazy": True}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"inner": words, "keyed": keyed}}))
    environment["TICKETS_KEY"] = "s3cr3t"
    result = install_install(mcp, "--yes", "--name", "all", "servers.json")
    assert result.returncode == 0, result.stderr
    assert "server of the gateway cannot be used: " in result.stderr
    assert "server 'keyed', headers.A: the environment variable TICKETS_KEY is not set" in result.stderr
    assert "; --env TICKETS_KEY hands it on\n" in result.stderr
    entry = json.loads(config.read_text())["mcpServers"]["all"]
    with Client([entry["command"], *entry["args"]]) as client:
        assert [tool.name for tool in client.tools()] == ["inner_told"]
    assert mcp("uninstall", "all", "--client", "cursor", "--yes").returncode == 0
    itself = install_install(mcp, "--yes", str(config))
    assert itself.returncode == 2
    assert "must not be one of its servers" in itself.stderr


def test_a_dry_run_and_nobody_to_ask_write_nothing(mcp: Mcp, home: Path, tmp_path: Path) -> None:
    words = ["install", "weather.py", "--client", "vscode", "--config", "mcp.json", "--name", "w"]
    shown = mcp(*words, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert '+"w": {' in shown.stdout
    assert '+  "type": "stdio",' in shown.stdout
    assert "nothing was changed: --dry-run" in shown.stderr
    asked = mcp(*words)
    assert asked.returncode == 2
    assert "there is nobody to ask: add --yes" in asked.stderr
    assert list(tmp_path.rglob("*.json")) == []


def test_a_person_is_asked(terminal: Callable[..., Terminal], config: Path) -> None:
    session = terminal("install", "weather.py", "--client", "cursor")
    session.until(lambda: "write this? [y/N]" in session.text)
    assert '+"my-weather": {' in session.text
    session.type(b"y\n")
    assert session.wait() == 0
    assert "my-weather" in config.read_text()


def is_asleep(pid: int) -> bool:
    """Whether a process waits: a signal just before it begins to read is seen by Python when it has read a line."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_ctrl_c_at_the_question_writes_nothing(terminal: Callable[..., Terminal], config: Path) -> None:
    session = terminal("install", "weather.py", "--client", "cursor")
    session.until(lambda: "write this? [y/N]: " in session.text and is_asleep(session.process.pid))
    session.type(CTRL_C)
    assert session.wait() == 130
    assert "nothing was changed" in session.text
    assert "Traceback" not in session.text
    assert not config.exists()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ([], 2, "TARGET is missing"),
        (["missing.py"], 2, "there is no file missing.py"),
        (["weather.py", "--name", "a b"], 2, "'a b' is no name for an entry"),
        (["weather.py", "--env", "KEY"], 2, "the variable KEY is not set here"),
        (["weather.py", "--undo"], 2, "it takes no TARGET"),
        (["--undo"], 1, "no change of it is kept that could be undone"),
        (["weather"], 1, "there is no module weather"),
        (["broken.py"], 1, "ZeroDivisionError"),
        (["weather.py", "--name", "theirs"], 1, "has an entry theirs that mcp-actors has not written"),
    ],
)
def test_what_cannot_be_installed_is_said_and_nothing_is_changed(
    mcp: Mcp, config: Path, tmp_path: Path, words: list[str], code: int, why: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    config.write_text('{"mcpServers": {"theirs": {"command": "npx"}}}')
    result = install_install(mcp, *words, "--yes")
    assert (result.returncode, why in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr
    assert config.read_text() == '{"mcpServers": {"theirs": {"command": "npx"}}}'


def test_a_file_that_is_damaged_is_left_before_anything_is_started(
    mcp: Mcp, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "weather.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    config.write_text('{"mcpServers": {"a": 1,}}')
    result = install_install(mcp, "weather.py", "--yes")
    assert result.returncode == 1
    assert f"{config} is left as it is: it is no JSON that Cursor reads: line 1, column 24" in result.stderr
    assert not (tmp_path / "ran").exists()


def test_a_client_that_is_not_there_is_said(mcp: Mcp, home: Path) -> None:
    result = mcp("install", "weather.py", "--client", "windsurf", "--yes")
    assert result.returncode == 1
    assert "is Windsurf installed?" in result.stderr
    assert not (home / ".codeium").exists()


def test_only_entries_of_ours_are_taken_out(mcp: Mcp, config: Path) -> None:
    text = '{"mcpServers": {"theirs": {"command": "npx"}}}'
    config.write_text(text)
    for name, why in (("theirs", "is none that mcp-actors has written"), ("ours", "it has no entry ours")):
        result = mcp("uninstall", name, "--client", "cursor", "--yes")
        assert result.returncode == 1
        assert why in result.stderr
    assert config.read_text() == text


def test_the_help_of_both_names_the_clients(mcp: Mcp) -> None:
    for command in ("install", "uninstall"):
        result: subprocess.CompletedProcess[str] = mcp(command, "--help")
        assert "claude-desktop|claude-code|cursor|vscode" in "".join(result.stdout.split())


def test_a_url_is_no_target(mcp: Mcp, config: Path) -> None:
    result = mcp("install", "http://127.0.0.1:8000/mcp", "--client", "cursor", "--config", str(config))
    assert result.returncode == 2
    assert "is a URL: TARGET is a .py file, a module or" in result.stderr


# -- Whether a server starts as a client would start it --------------------------------------------------

SILENT = "import sys; print('I wait', file=sys.stderr); sys.stdin.read()"
CHATTY = """
import sys
for number in range(1000):
    print("line", number, file=sys.stderr)
sys.exit("no key")
"""


def tried(program: str) -> str:
    return install.try_out([sys.executable, "-c", program], {})


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "TRIAL_TIMEOUT", 0.2)
    with pytest.raises(CommandFailure, match=r"did not answer within 0\.2 s .*nothing was changed"):
        tried(SILENT)


def test_what_a_server_wrote_last_is_shown() -> None:
    with pytest.raises(CommandFailure, match="does not start as a client starts it") as raised:
        tried(CHATTY)
    lines = raised.value.message.splitlines()
    assert lines[-2:] == ["line 999", "no key"]
    assert lines.count("no key") == 1
    assert len(lines) < 30


def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(CommandFailure, match="no-such-program"):
        install.try_out(["/no-such-program"], {})
