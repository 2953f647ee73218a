"""The exit codes of all commands: the page, the help, and what the commands do are the same."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mcp_actors.cli import main
from mcp_actors.cli.failures import EXIT_CODES, reported
from mcp_actors.errors import CallTimeout
from tests.cli.conftest import CTRL_C, ROOT, SERVED, Mcp, Terminal
from tests.cli.test_inspect import BROKEN
from tests.cli.test_serve import PROTECTED, serving

Ended = Callable[..., tuple[object, str]]
PAGE = (
    (ROOT / "docs" / "reference" / "failures.md")
    .read_text()
    .partition("\n## Exit codes\n")[2]
    .partition("\n## ")[0]
)
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

# A recording of one call.
DAY = "".join(
    json.dumps(line) + "\n"
    for line in (
        {"recording": 1},
        {"t": 0, "connection": 1, "event": "opened", "side": "client"},
        {
            "t": 0,
            "connection": 1,
            "event": "sent",
            "text": '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "nothing"}}',
        },
        {"t": 1, "connection": 1, "event": "received", "text": '{"jsonrpc": "2.0", "id": 1, "result": {}}'},
        {"t": 1, "connection": 1, "event": "closed"},
    )
)

# Takes everything and answers nothing.
SILENT = "import sys; sys.stdin.read()"

# `{shy}`, `{broken}`, `{half}`, `{silent}` and `{locked}` are URLs of servers, `{served}` is a target, and
# `{of_nobody}`, `{of_locked}` and `{of_nothing}` are configurations.
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
        ("{served} --rest", 2),
        ("{served} --rest --listen http://127.0.0.1:0/", 2),
        (
            "{served} --rest --listen http://127.0.0.1:0/mcp --resource http://127.0.0.1/mcp"
            " --issuer https://login.example.org",
            2,
        ),
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
    "rest": [
        ("htp://x", 2),
        (f"{NOBODY} stdio:", 2),
        (f"{NOBODY} http://127.0.0.1:0", 2),
        (f"{NOBODY} http://127.0.0.1:0/mcp --api-keys nowhere", 2),
        (f"{NOBODY} http://127.0.0.1:0/mcp", 1),
    ],
    "record": [
        ("htp://x day.jsonl", 2),
        (f"{NOBODY} day.jsonl htp://127.0.0.1:0", 2),
        (f"{NOBODY} no/such/folder/day.jsonl", 1),
    ],
    "mock": [
        ("nowhere.jsonl", 2),
        ("{day} --listen htp://127.0.0.1:0", 2),
        ("{day} --listen unix:/no/such/folder/socket", 1),
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
    "lock": [
        (NOBODY, 1),
        ("htp://x", 2),
        ("{locked}", 3),
        ("{served_url} --check -o {approving_nothing}", 4),
        ("{half}", 7),
        ("{silent} --timeout 0.1", 9),
    ],
    "diff": [
        ("{day} " + NOBODY, 1),
        ("nowhere.jsonl {served_url}", 2),
        ("{day} {locked}", 3),
        ("{day} {served_url}", 6),
        ("{day} {silent} --timeout 0.1", 9),
    ],
    "card": [
        (NOBODY, 1),
        ("htp://x", 2),
        ("{locked}", 3),
        ("--check {of_nobody}", 4),
        ("{silent} --timeout 0.1", 9),
    ],
    "bench": [
        (f"{NOBODY} add", 1),
        ("htp://x add", 2),
        ("{locked} add", 3),
        ("{served_url} add a=1 --calls 5 --warm-up 0 --fail-if 'mean>0us'", 6),
        ("{silent} add --timeout 0.1", 9),
    ],
    "config": [("check nowhere.toml", 2), ("show list", 2), ("api-key 'a b'", 2)],
    "list": [
        (NOBODY, 1),
        ("htp://x", 2),
        ("{locked}", 3),
        ("{served_url} --lock {approving_nothing}", 4),
        ("{half}", 7),
        ("{silent} --timeout 0.1", 9),
    ],
    "call": [
        (f"{NOBODY} add", 1),
        ("htp://x add", 2),
        ("{locked} add", 3),
        ("{served_url} add a=1 --lock {approving_nothing}", 4),
        ("{served_url} nothing", 7),
        ("{served_url} refuse", 8),
        ("{silent} add --timeout 0.1", 9),
    ],
    "read": [
        (f"{NOBODY} a:b", 1),
        ("htp://x a:b", 2),
        ("{locked} a:b", 3),
        ("{served_url} note://nothing", 7),
        ("{silent} a:b --timeout 0.1", 9),
    ],
    "prompt": [
        (f"{NOBODY} p", 1),
        ("htp://x p", 2),
        ("{locked} p", 3),
        ("{served_url} nothing", 7),
        ("{silent} p --timeout 0.1", 9),
    ],
    "tasks": [
        (NOBODY, 1),
        ("htp://x", 2),
        ("{locked}", 3),
        ("{served_url} get nothing", 7),
        ("{silent} --timeout 0.1", 9),
    ],
    "login": [(NOBODY, 1), ("htp://x", 2)],
    "logout": [("stdio:x", 2)],
    "whoami": [("htp://x", 2), (NOBODY, 3)],
}
# A failure of the demo is one of the engine: `tests/cli/test_demo.py` has what it does then. A task ends as its tool
# does, which `tests/cli/test_clients.py` shows.
ELSEWHERE = {"demo": {1}, "tasks": {8}}


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
    for name, program in (("shy", SHY), ("broken", BROKEN), ("half", HALF), ("silent", SILENT)):
        (tmp_path / f"{name}.py").write_text(program)
        places[name] = shlex.quote(f"stdio:{shlex.join([sys.executable, str(tmp_path / name)])}.py")
    for name, url in (("nobody", NOBODY), ("locked", locked), ("nothing", 1)):
        config = tmp_path / f"{name}.json"
        config.write_text(json.dumps({"mcpServers": {"one": {"url": url}}}))
        places[f"of_{name}"] = str(config)
    places["approving_nothing"] = str(tmp_path / "mcp.lock")
    (tmp_path / "mcp.lock").write_text('{"lock": 1, "servers": {"served": {}}}')
    places["day"] = str(tmp_path / "day.jsonl")
    (tmp_path / "day.jsonl").write_text(DAY)
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


# -- Each row of the terminal's table in ``docs/reference/failures.md`` has tests; they are named here -------------

TESTS = Path(__file__).parent.parent
PAGE_FAILURES_PAGE = TESTS.parent / "docs" / "reference" / "failures.md"

# What happens -> what shows it at the terminal, and what shows what a program gets.
TESTED_BY = {
    "a tool fails": [
        "cli/test_clients.py::test_an_error_of_a_tool",
        "cli/test_exit_codes.py::test_a_failed_tool_is_seen_at_the_end_in_red",
        "server/test_failures.py::test_each_row",
    ],
    "the server writes to its stderr": [
        "cli/test_exit_codes.py::test_what_a_server_prints_is_shown_with_its_name",
        "transports/test_stdio_client.py::test_a_childs_stderr_is_inherited",
    ],
    "the server sends something else than a message": [
        "cli/test_exit_codes.py::test_what_came_instead_of_messages_is_shown",
        "cli/test_exit_codes.py::test_a_warning_has_a_line_of_its_own_beside_what_is_waited_for",
        "server/test_server.py::test_the_timeout_of_the_handshake_names_it",
    ],
    "the program ends without a message, as a file without `server.run()` does": [
        "cli/test_exit_codes.py::test_a_file_without_run_is_told_apart",
        "server/test_server.py::test_a_program_that_serves_nothing_is_told_apart",
    ],
    "something takes longer than two seconds": [
        "cli/test_exit_codes.py::test_what_is_waited_for_is_said_on_a_terminal",
    ],
    "a clock runs out": ["cli/test_clients.py::test_the_idle_clock"],
    "the server asks for authorization, and you have not logged in, or not for enough": [
        "cli/test_login.py::test_nothing_stored_says_what_to_run",
        "cli/test_login.py::test_a_login_that_ended_asks_for_another_one",
        "transports/http/test_client_responses.py::test_who_is_not_let_in_learns_the_challenge",
    ],
    "Ctrl-C": ["cli/test_terminal.py::test_ctrl_c_cancels_the_call"],
    "one of the lists cannot be had": ["cli/test_exit_codes.py::test_list_shows_what_can_be_listed"],
    "with `--lock`, something is not [as approved](../how-to/lock.md)": [
        "cli/test_lock.py::test_a_change_is_shown_and_has_an_exit_code_of_its_own",
        "client/test_lock.py::test_a_tool_that_changed_after_approval_is_hidden_and_not_called",
    ],
    "the server has no such tool": [
        "cli/test_exit_codes.py::test_an_unknown_tool_is_answered_with_a_known_one",
    ],
    "the target of `mcp-actors serve` cannot be imported": [
        "cli/test_arguments.py::test_one_line_says_what_is_wrong",
    ],
    "what is given to `Client` is not a server": [
        "cli/test_clients.py::test_wrong_words",
        "server/test_arguments.py::test_what_is_no_target_says_what_to_write",
    ],
    "`mcp-actors serve --shared` names a place that cannot be used": [
        "cli/test_serve.py::test_failures_are_one_line",
        "shared/test_memory.py::test_other_urls_are_refused",
        "shared/test_sqlite.py::test_a_file_that_cannot_be_used_is_refused_and_left",
    ],
    "the task was cancelled, or is not known": [
        "cli/test_clients.py::test_a_task_is_cancelled",
        "cli/test_clients.py::test_what_is_wrong_is_said",
        "client/test_tasks.py::test_a_task_that_somebody_else_cancels",
        "client/test_tasks.py::test_a_task_that_is_forgotten",
    ],
    "an option of `Client` cannot be": [
        "cli/test_clients.py::test_wrong_words",
        "server/test_arguments.py::test_an_option_of_a_client",
    ],
}


def test_every_row_of_the_page_is_tested() -> None:
    table = PAGE_FAILURES_PAGE.read_text().partition("\n## At the terminal\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(TESTED_BY)


@pytest.mark.parametrize("name", sorted({name for names in TESTED_BY.values() for name in names}))
def test_the_test_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert function in {
        node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


# -- What a person is told when a server prints, hangs or lacks something, or is asked for what it does not have ---

# Ends after it was asked something, so that nobody waits for a clock.
BABBLES = """
import sys
print('Welcome!', flush=True)
print('Listening on \\x1b[31m port 9000', flush=True)
sys.stdin.readline()
"""
# Declares three kinds of things and has a handler for one of them, as some real servers do.
HALF = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        answer = {"result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
            "serverInfo": {"name": "half", "version": "1"},
        }}
    elif message.get("method") == "tools/list":
        answer = {"result": {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]}}
    else:
        answer = {"error": {"code": -32603, "message": "it is away"}}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def python(code: str) -> str:
    return f"stdio:{shlex.join([sys.executable, '-c', code])}"


@pytest.mark.parametrize("words", [["list"], ["read", "a://b"], ["prompt", "p"], ["call", "t"]])
def test_what_came_instead_of_messages_is_shown(mcp: Mcp, words: list[str]) -> None:
    command, *rest = words
    result = mcp(command, python(BABBLES), *rest, "--era", "legacy")
    assert result.returncode == 1
    # The log, which has them too, comes before.
    assert result.stderr.endswith(
        "a program that serves has to call server.run() at its end\n"
        "what came was no JSON-RPC message (a program on stdio prints to stderr, never to stdout):\n"
        "  Welcome!\n  Listening on \\x1b[31m port 9000\n"
    )


def test_a_file_without_run_is_told_apart(mcp: Mcp) -> None:
    result = mcp("list", python("from mcp_actors import Server; Server('s')"))
    assert result.returncode == 1
    assert "a program that serves has to call server.run() at its end" in result.stderr


def test_what_is_waited_for_is_said_on_a_terminal(terminal: Callable[..., Terminal]) -> None:
    session = terminal(
        "list", python("import sys; print('up', file=sys.stderr); sys.stdin.read()"), "--era", "legacy"
    )
    session.until(lambda: "waiting for initialize from python" in session.text)
    session.until(lambda: "s left; Ctrl-C stops" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    assert f"[{Path(sys.executable).name}] up" in session.text


def lines_on(screen: str) -> list[str]:
    """What a terminal shows after these texts: a carriage return lets the next one be written over the line."""
    shown = []
    for line in screen.split("\n"):
        seen = ""
        for text in line.split("\r"):
            seen = text + seen[len(text) :]
        shown.append(seen.rstrip())
    return shown


def test_a_warning_has_a_line_of_its_own_beside_what_is_waited_for(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text(
        "import pathlib, sys, time\n"
        "while not pathlib.Path('now').exists():\n    time.sleep(0.05)\n"
        "print('Welcome!', flush=True)\nsys.stdin.read()\n"
    )
    session = terminal("list", f"stdio:{shlex.quote(sys.executable)} late.py", "--era", "legacy")
    waiting = f"waiting for initialize from {Path(sys.executable).name} late.py, "
    session.until(lambda: waiting in session.text)
    (tmp_path / "now").touch()
    session.until(lambda: "text=Welcome!" in session.text)
    session.until(lambda: waiting in session.text.partition("text=Welcome!")[2])
    warning, line = lines_on(session.text)[:2]
    assert warning.startswith("20")
    assert warning.endswith(
        "[warning  ] the server sent text that is not a message session=client#1 text=Welcome!"
    )
    assert line.startswith(waiting)
    session.type(CTRL_C)
    assert session.wait() == 130


def test_a_failed_tool_is_seen_at_the_end_in_red(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "from mcp_actors import Server\nserver = Server('fails')\n"
        "@server.tool\ndef fail() -> str:\n    raise OSError('disk full')\nserver.run()\n"
    )
    session = terminal("call", f"stdio:{shlex.quote(sys.executable)} fails.py", "fail")
    assert session.wait() == 8
    assert session.text.endswith("fail: OSError: disk full\n")
    assert session.text.index("[fails] OSError: disk full") < session.text.rindex("fail: ")
    assert b"\x1b[31mfail: OSError: disk full" in session.screen
    plain = terminal("call", f"stdio:{shlex.quote(sys.executable)} fails.py", "fail", NO_COLOR="1")
    assert plain.wait() == 8
    assert b"\x1b[31m" not in plain.screen


def test_a_long_failure_is_broken_between_words(terminal: Callable[..., Terminal]) -> None:
    session = terminal("list", python("from mcp_actors import Server; Server('s')"))
    assert session.wait() == 1
    lines = session.text[session.text.index("mcp-actors: ") :].splitlines()
    assert len(lines) > 1
    assert all(len(line) < 120 for line in lines)
    assert " ".join(" ".join(lines).split()).endswith("has to call server.run() at its end")


def test_what_a_server_prints_is_shown_with_its_name(mcp: Mcp, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import sys\nfrom mcp_actors import Server\nserver = Server('loud')\n"
        "@server.tool(inline=True)\ndef speak() -> str:\n"
        "    print('\\x1b[31mopening', file=sys.stderr, flush=True)\n    return 'done'\n"
        "server.run()\n"
    )
    result = mcp("call", f"stdio:{shlex.quote(sys.executable)} loud.py", "speak")
    assert (result.stdout, result.stderr) == ("done\n", "[loud] \\x1b[31mopening\n")


def test_list_shows_what_can_be_listed(mcp: Mcp) -> None:
    result = mcp("list", python(HALF))
    assert result.returncode == 7
    assert "  hello()" in result.stdout.splitlines()
    assert [line.partition(" could not be listed: ")[0] for line in result.stderr.splitlines()] == [
        "mcp-actors: resources",
        "resource templates",
        "prompts",
    ]
    as_json = mcp("list", python(HALF), "--json")
    assert (as_json.returncode, as_json.stderr) == (7, "")
    found = json.loads(as_json.stdout)
    assert [tool["name"] for tool in found["tools"]] == ["hello"]
    assert list(found["failures"]) == ["resources", "resource templates", "prompts"]


def test_an_unknown_tool_is_answered_with_a_known_one(mcp: Mcp, url: str) -> None:
    result = mcp("call", url, "ehco")
    assert result.returncode == 7
    first, second = result.stderr.splitlines()
    assert first == "mcp-actors: the server has no tool 'ehco'; did you mean 'echo'?"
    assert second.startswith("its tools: add, ask, ")


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("run.sh", "run.sh is no Python file: TARGET is a .py file or a module"),
        ("none.py", "there is no file"),
    ],
)
def test_a_target_that_is_no_python(mcp: Mcp, tmp_path: Path, file: str, says: str) -> None:
    (tmp_path / "run.sh").write_text("exit 0\n")
    result = mcp("serve", file)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert says in result.stderr


@pytest.mark.parametrize("options", [[], [click.Option(["--timeout"])]])
def test_a_timeout_names_the_option_that_the_command_has(options: list[click.Parameter]) -> None:
    def hang(**options: object) -> None:
        with reported(show_traceback=False):
            raise CallTimeout("initialize", "idle", 30)

    result = CliRunner().invoke(click.Command("hang", params=options, callback=hang))
    assert result.exit_code == 9
    assert ("--timeout sets it" in result.output) == bool(options)
    assert "no answer and no progress for 30 s" in result.output


def test_serve_on_a_terminal_says_what_to_do(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from mcp_actors import Server\nserver = Server('one', version='2')\n"
        "@server.tool\ndef one() -> int:\n    return 1\n"
        "@server.resource('one://{a}')\ndef read(a: str) -> str:\n    return a"
    )
    session = terminal("serve", "one.py")
    session.until(lambda: "--listen http" in session.text)
    assert "one 2: 1 tool, 1 resource template; it waits for a client's messages on" in session.text
    assert "mcp-actors list 'stdio:mcp-actors serve one.py'" in session.text
    session.type(CTRL_C)
    assert session.wait() == 0
    session = terminal("serve", "one.py", "--listen", "tcp://127.0.0.1:0")
    session.until(lambda: "serving tcp://127.0.0.1:0 at tcp://127.0.0.1:" in session.text)
    assert session.text.startswith("one 2: 1 tool, 1 resource template; Ctrl-C stops, a second one at once\n")


def test_an_answer_that_was_typed_at_the_first_prompt_counts(
    terminal: Callable[..., Terminal], url: str
) -> None:
    session = terminal("call", url, "ask")
    session.until(lambda: "answer?" in session.text)
    session.type(b"Ada\n")
    session.until(lambda: "age (integer): " in session.text)
    assert "name: " not in session.text
    session.type(b"36\n")
    session.until(lambda: "colour" in session.text)
    session.type(b"\n")
    assert session.wait() == 0
    assert "accept [('age', 36), ('colour', 'green'), ('name', 'Ada')]" in session.text
