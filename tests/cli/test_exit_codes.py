"""The exit codes of all commands: the page, the help, and what the commands do are the same."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcp_actors.cli import main
from mcp_actors.cli.failures import EXIT_CODES
from tests.cli.conftest import ROOT, SERVED, Ran
from tests.cli.test_inspect import BROKEN
from tests.cli.test_serve_http import serving
from tests.cli.test_serve_protected import PROTECTED

Mcp = Callable[..., Ran]
Ended = Callable[..., tuple[object, str]]
PAGE = (ROOT / "docs" / "failures.md").read_text().partition("\n## Exit codes\n")[2].partition("\n## ")[0]
NOBODY = "http://127.0.0.1:1/mcp"
AT = ["--listen", "http://127.0.0.1:0/mcp"]
# Ends for ever when it is asked for something that it may refuse in any way.
SHY = """
import json, pathlib, sys
known = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
gone = pathlib.Path(__file__ + ".gone")

def answer(message):
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        version = version if version in known else known[-1]
        info = {"name": "shy", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"logging": {}}, "serverInfo": info}
        return reply | {"result": result}
    if message["method"] == "logging/setLevel":
        gone.touch()
        sys.exit()
    if message["method"] == "ping":
        return reply | {"result": {}}
    return reply | {"error": {"code": -32601, "message": "no"}}

for line in () if gone.exists() else sys.stdin:
    message = json.loads(line)
    messages = message if isinstance(message, list) else [message]
    replies = [answer(each) for each in messages if "id" in each]
    if replies:
        print(json.dumps(replies if isinstance(message, list) else replies[0]), flush=True)
"""

# `{shy}`, `{broken}` and `{locked}` are URLs of servers, `{served}` is a target, and `{of_nobody}`, `{of_locked}` and
# `{of_nothing}` are configurations.
CASES: dict[str, list[tuple[str, int]]] = {
    "demo": [("--sessions 0", 2)],
    "serve": [
        ("{served} --listen htp://127.0.0.1:0", 2),
        ("{served} --listen nonsense", 2),
        ("{served} --listen ''", 2),
        ("{served} --listen stdio:python", 2),
        ("{served} --listen http:///mcp", 2),
        ("{served} --listen https://127.0.0.1:0/mcp", 2),
        ("{served} --listen http://127.0.0.1:99999/mcp", 2),
        ("{served} --listen tcp://127.0.0.1", 2),
        ("{served} --listen unix:", 2),
        ("{served} --listen htp://127.0.0.1:0 --workers 2", 2),
        ("{served} --listen http://127.0.0.1:99999/mcp --workers 2", 2),
        ("{served} --listen tcp://127.0.0.1 --workers 2", 2),
        ("{served} --workers 2", 2),
        ("{served} --listen http://127.0.0.1:0/mcp --allow-origin nonsense", 2),
        ("{served} --listen http://127.0.0.1:0/mcp --allow-host 'a b'", 2),
        ("{served} --listen ws://127.0.0.1:0/mcp --allow-origin nonsense", 2),
        ("{served} --listen http://127.0.0.1:0/mcp --health '/a b'", 2),
        ("{served} --allow-host example.org", 2),
        ("{served} --listen tcp://127.0.0.1:0 --allow-origin https://example.org", 2),
        ("{served} --listen http://127.0.0.1:0/mcp --admin ftp:/x", 2),
        ("{served} --shared tasks.db", 2),
        ("{served} --reload-dir .", 2),
        ("{served} --reload --reload-dir nowhere", 2),
        ("nowhere.py", 2),
        ("{served}:nothing", 2),
        ("{served} --listen unix:/no/such/folder/socket", 1),
        ("{served} --shared redis://127.0.0.1:1", 1),
    ],
    "gateway": [
        ("nowhere.json", 2),
        ("{of_nobody} --listen htp://127.0.0.1:0", 2),
        ("{of_nobody} --allow-host example.org", 2),
        ("{of_nobody} --listen unix:/no/such/folder/socket", 1),
        ("{of_nobody} --check", 1),
        ("{of_locked} --check", 3),
        ("{of_nothing} --check", 2),
    ],
    "bridge": [
        ("htp://x stdio:", 2),
        (f"{NOBODY} htp://127.0.0.1:0", 2),
        (f"{NOBODY} stdio: --era 1999-01-01", 2),
        (f"{NOBODY} stdio: --issuer https://login.example.org", 2),
        (f"{NOBODY} stdio:python", 2),
        (f"{NOBODY} unix:/no/such/folder/socket", 1),
    ],
    "top": [("htp://x", 2), ("nonsense", 2), ("unix:/nowhere", 1)],
    "install": [
        ("nowhere.py --client cursor", 2),
        ("{served} --client nobody", 2),
        ("{served} --client cursor --config /no/such/mcp.json --yes", 1),
    ],
    "uninstall": [("served --client nobody", 2), ("served --client cursor --config /no/such/mcp.json", 1)],
    "inspect": [
        (NOBODY, 1),
        ("htp://x", 2),
        ("{locked}", 3),
        ("{broken} --in-flight 0", 4),
        ("{shy} --in-flight 0", 5),
    ],
    "bench": [
        (f"{NOBODY} add", 1),
        ("htp://x add", 2),
        ("{locked} add", 3),
        ("{served_url} add a=1 --calls 5 --warm-up 0 --fail-if 'mean>0us'", 6),
    ],
    "list": [(NOBODY, 1), ("htp://x", 2), ("{locked}", 3)],
    "call": [(f"{NOBODY} add", 1), ("htp://x add", 2), ("{locked} add", 3)],
    "read": [(f"{NOBODY} a:b", 1), ("htp://x a:b", 2), ("{locked} a:b", 3)],
    "prompt": [(f"{NOBODY} p", 1), ("htp://x p", 2), ("{locked} p", 3)],
    "tasks": [(NOBODY, 1), ("htp://x", 2), ("{locked}", 3)],
    "login": [(NOBODY, 1), ("htp://x", 2)],
    "logout": [("stdio:x", 2)],
    "whoami": [("htp://x", 2), (NOBODY, 3)],
}
# A failure of the demo is one of the engine: `tests/cli/test_demo.py` has what it does then.
ELSEWHERE = {"demo": {1}}


def rows(heading: str) -> list[list[str]]:
    """Returns the cells of the table of the page that begins with a heading."""
    lines = PAGE[PAGE.index(f"\n| {heading} |") :].strip().partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """The URL of a server that demands tokens."""
    with serving(SERVED, *AT, *PROTECTED) as (_, (port,)):
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ended:
    """Runs words in this process, since each of many would take a second of its own; returns the code and the text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as end:
            main(words)
        return end.value.code, "".join(capfd.readouterr())

    return run


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [(command, words, code) for command, cases in CASES.items() for words, code in cases],
)
def test_the_code_of_a_command(
    ended: Ended, tmp_path: Path, locked: str, command: str, words: str, code: int
) -> None:
    serving_words = [sys.executable, "-m", "mcp_actors", "serve", str(SERVED)]
    places = {"served": str(SERVED), "locked": locked}
    places["served_url"] = shlex.quote(f"stdio:{shlex.join(serving_words)}")
    for name, program in (("shy", SHY), ("broken", BROKEN)):
        (tmp_path / f"{name}.py").write_text(program)
        places[name] = shlex.quote(f"stdio:{shlex.join([sys.executable, str(tmp_path / name)])}.py")
    for name, url in (("nobody", NOBODY), ("locked", locked), ("nothing", 1)):
        config = tmp_path / f"{name}.json"
        config.write_text(json.dumps({"mcpServers": {"one": {"url": url}}}))
        places[f"of_{name}"] = str(config)
    found, shown = ended(command, *shlex.split(words.format(**places)))
    assert found == code, shown
    assert shown
    assert "Traceback" not in shown


def test_what_was_not_checked_is_said(mcp: Mcp, tmp_path: Path) -> None:
    (tmp_path / "shy.py").write_text(SHY)
    url = f"stdio:{shlex.join([sys.executable, str(tmp_path / 'shy.py')])}"
    result = mcp("inspect", url, "--in-flight", "0")
    assert (
        "rules could not be checked, and the server may violate them: the server has answered nothing since"
        in (" ".join(result.stderr.split()))
    )
    shown = result.stdout.partition("not checked (legacy era): the server has answered nothing since")[2]
    assert "undeclared-lists" in shown.partition(" rules: ")[0]
    assert "nothing was found that violates a rule" not in result.stdout
    (tmp_path / "shy.py.gone").unlink()
    report = json.loads(mcp("inspect", url, "--in-flight", "0", "--json").stdout)
    assert (report["violates"], report["complete"]) == (False, False)
    outcomes = {each["rule"]: each for each in report["outcomes"]}
    assert outcomes["undeclared-lists"]["result"] == "not checked"
    assert outcomes["undeclared-lists"]["reason"] == report["stopped"]


def test_the_page_has_each_command_with_its_codes() -> None:
    found = {row[0].strip("`"): {int(code) for code in row[1].split(", ")} for row in rows("command")}
    assert found == {
        command: {code for _, code in cases} | ELSEWHERE.get(command, set())
        for command, cases in CASES.items()
    }


def test_the_help_and_the_page_have_the_same_codes(mcp: Mcp) -> None:
    said = {int(code): text for code, text in rows("code")}
    assert said == EXIT_CODES
    shown = mcp("--help").stdout.partition("Exit codes\n")[2]
    found = dict(re.findall(r"^ *(\d+) +(\S.*)$", shown, re.MULTILINE))
    assert {int(code): text for code, text in found.items()} == EXIT_CODES
