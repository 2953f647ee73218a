"""What a person is told when a server prints, hangs or lacks something, or is asked for what it does not have."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ran
from .test_terminal import CTRL_C, Terminal, terminal

__all__ = ["terminal"]

Mcp = Callable[..., Ran]
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
        answer = {"error": {"code": -32601, "message": "Method not found"}}
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
    assert session.wait() == 1
    assert session.text.endswith("fail: OSError: disk full\n")
    assert session.text.index("[fails] OSError: disk full") < session.text.rindex("fail: ")
    assert b"\x1b[31mfail: OSError: disk full" in session.screen
    plain = terminal("call", f"stdio:{shlex.quote(sys.executable)} fails.py", "fail", NO_COLOR="1")
    assert plain.wait() == 1
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
    assert result.returncode == 1
    assert "  hello()" in result.stdout.splitlines()
    assert [line.partition(" could not be listed: ")[0] for line in result.stderr.splitlines()] == [
        "mcp-actors: resources",
        "resource templates",
        "prompts",
    ]
    as_json = mcp("list", python(HALF), "--json")
    assert as_json.returncode == 1
    found = json.loads(as_json.stdout)
    assert [tool["name"] for tool in found["tools"]] == ["hello"]
    assert list(found["failures"]) == ["resources", "resource templates", "prompts"]


def test_an_unknown_tool_is_answered_with_a_known_one(mcp: Mcp, url: str) -> None:
    result = mcp("call", url, "ehco")
    assert result.returncode == 1
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


def test_serve_on_a_terminal_says_what_to_do(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from mcp_actors import Server\nserver = Server('one', version='2')\n"
        "@server.tool\ndef one() -> int:\n    return 1"
    )
    session = terminal("serve", "one.py")
    session.until(lambda: "--listen http" in session.text)
    assert "one 2: 1 tool; it waits for a client's messages on standard input, Ctrl-C stops" in session.text
    assert "mcp-actors list 'stdio:mcp-actors serve one.py'" in session.text
    session.type(CTRL_C)
    assert session.wait() == 0
    session = terminal("serve", "one.py", "--listen", "tcp://127.0.0.1:0")
    session.until(lambda: "serving tcp://127.0.0.1:0 at tcp://127.0.0.1:" in session.text)
    assert session.text.startswith("one 2: 1 tool; Ctrl-C stops, a second one at once\n")


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
