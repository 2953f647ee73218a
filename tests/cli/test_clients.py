""""""

from __future__ import annotations

import base64
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import CTRL_C, LIMIT, Mcp, Ran, Started, Terminal

pytestmark = pytest.mark.slow


def test_list_for_people(mcp: Mcp, socket_url: str) -> None:
    result = mcp("list", socket_url)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].startswith("served 1.2  modern era, protocol ")
    assert "  add(a: integer, b?: integer)" in lines
    assert "      Adds two numbers." in lines
    assert "  note://text text/plain" in lines
    assert "  note://{topic}/{number}" in lines
    assert "  greet(name, manner?)" in lines
    assert any(line.startswith("capabilities: ") and "tools" in line for line in lines)


@pytest.mark.parametrize(
    ("era", "version"), [("legacy", None), ("modern", None), ("2025-03-26", "2025-03-26")]
)
def test_list_as_json_in_an_era(mcp: Mcp, socket_url: str, era: str, version: str | None) -> None:
    result = mcp("list", socket_url, "--json", "--era", era)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["server"]["name"] == "served"
    assert found["era"] == ("modern" if era == "modern" else "legacy")
    assert version is None or found["version"] == version
    assert {tool["name"] for tool in found["tools"]} >= {"add", "refuse", "wait"}
    assert found["tools"][0]["inputSchema"]["type"] == "object"
    assert [each["uriTemplate"] for each in found["resourceTemplates"]] == ["note://{topic}/{number}"]


def test_list_shows_the_pages_of_tools(mcp: Mcp, socket_url: str, tmp_path: Path) -> None:
    program = tmp_path / "board.py"
    program.write_text(
        """
from mcp_actors import App, Server

server = Server("board")

@server.tool(app="ui://board")
def show() -> str:
    return "shown"

@server.tool(app=App(visibility=["app"]))
def refresh() -> str:
    return "fresh"

server.run()
"""
    )
    shown = mcp("list", f"stdio:{sys.executable} {program}").stdout
    assert "  show()  on ui://board\n" in shown
    assert "  refresh()  for pages alone\n" in shown


def test_list_with_skills(mcp: Mcp, socket_url: str, tmp_path: Path) -> None:
    program = tmp_path / "skilled.py"
    program.write_text(
        r"""
from mcp_actors import Server

server = Server("skilled")
server.add_skill({"SKILL.md": '---\nname: a\ndescription: "One of \\x1b[2J three"\n---\n', "b": "b"})
server.add_skill({"SKILL.md": "---\nname: d\ndescription: Made\n---\n", "b": lambda: "b"})
"""
    )
    url = "stdio:" + shlex.join([sys.executable, "-m", "mcp_actors", "serve", str(program)])
    result = mcp("list", url, "--skills")
    assert (result.returncode, "\x1b" in result.stdout) == (0, False), result.stderr
    _, shown = result.stdout.split("skills (2)\n")
    assert [line.strip() for line in shown.splitlines()][::2] == [
        "skill://a/SKILL.md 2 files, 53 bytes",
        "skill://d/SKILL.md dynamic",
    ]
    listed = json.loads(mcp("list", url, "--skills", "--json").stdout)["skills"]
    assert [each["resources"] == "dynamic" for each in listed] == [False, True]
    # Without the option none are asked for, and a server without skills has none.
    assert "skills" not in json.loads(mcp("list", url, "--json").stdout)
    assert json.loads(mcp("list", socket_url, "--skills", "--json").stdout)["skills"] == []


def test_call_with_json_arguments(mcp: Mcp, url: str) -> None:
    result = mcp("call", url, "add", "a:=2", "b:=40")
    assert (result.returncode, result.stdout, result.stderr) == (0, "42\n", "")


def test_call_as_json(mcp: Mcp, socket_url: str) -> None:
    result = mcp("call", socket_url, "echo", 'value:={"é": [1, null]}', "--json")
    answer = json.loads(result.stdout)
    assert answer["structuredContent"] == {"é": [1, None]}
    assert answer["content"][0]["type"] == "text"


def test_text_becomes_what_the_tool_wants(mcp: Mcp, socket_url: str) -> None:
    result = mcp("call", socket_url, "add", "a=2", "b=40")
    assert (result.returncode, result.stdout, result.stderr) == (0, "42\n", "")
    raw = mcp("call", socket_url, "add", 'a:="two"')
    assert (raw.returncode, raw.stdout) == (8, "")
    assert "a: expected integer, got string" in raw.stderr


def test_an_error_of_a_tool(mcp: Mcp, socket_url: str) -> None:
    result = mcp("call", socket_url, "refuse")
    assert (result.returncode, result.stdout) == (8, "")
    assert result.stderr.startswith("no, because")
    as_json = mcp("call", socket_url, "refuse", "--json")
    assert as_json.returncode == 8
    assert json.loads(as_json.stdout)["isError"] is True


def test_json_has_what_the_server_has_sent_and_nothing_else(mcp: Mcp, socket_url: str) -> None:
    listed = json.loads(mcp("call", socket_url, "add", "a=1", "--json").stdout)
    assert listed.keys() <= {"content", "structuredContent", "isError", "_meta", "resultType"}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["call", "{url}", "nothing"], 7, "the server has no tool 'nothing'"),
        (
            ["call", "{url}", "wait", "begun={at}/b", "ended={at}/e", "--timeout", "2"],
            9,
            "no answer and no progress for 2 s",
        ),
        (["read", "{url}", "note://nothing"], 7, "note://nothing"),
        (["prompt", "{url}", "nothing"], 7, "unknown prompt"),
        (["tasks", "{url}", "get", "x"], 7, "method not found: tasks/get"),
        (["list", "tcp://127.0.0.1:1"], 1, "cannot connect to tcp://127.0.0.1:1"),
        (["inspect", "htp://x"], 2, "htp"),
        (["call", "{url}", "add", "a=1", "--timeout", "soon"], 2, "'soon' is not a valid float"),
        (["list", "{url}", "--no-such-option"], 2, "no such option"),
        (["top", "unix:/nowhere"], 1, "/nowhere"),
    ],
)
def test_with_json_a_failure_is_json(
    mcp: Mcp, socket_url: str, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    result = mcp(*(word.format(url=socket_url, at=tmp_path) for word in words), "--json")
    assert result.returncode == code
    error = json.loads(result.stdout)["error"]
    assert error["exitCode"] == code
    assert says.lower() in error["message"].lower()
    assert "mcp-actors: " not in result.stderr


def test_an_error_answer_has_its_code_and_data(mcp: Mcp, socket_url: str) -> None:
    error = json.loads(mcp("read", socket_url, "note://nothing", "--json").stdout)["error"]
    assert error["code"] in (-32602, -32002)
    assert error["data"] == {"uri": "note://nothing"}


def test_what_is_no_text_is_named(mcp: Mcp, socket_url: str) -> None:
    assert mcp("call", socket_url, "picture").stdout == "[image/png, 3 bytes; --json shows them]\n"
    assert json.loads(mcp("call", socket_url, "picture", "--json").stdout)["content"] == [
        {"type": "image", "data": "AAEC", "mimeType": "image/png"}
    ]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_logs_go_to_stderr(mcp: Mcp, socket_url: str, era: str) -> None:
    result = mcp("call", socket_url, "chatty", "--era", era)
    assert result.stdout == "done\n"
    assert result.stderr == "  warning train: mind the gap\n"


def test_questions_are_declined_without_a_terminal(mcp: Mcp, socket_url: str) -> None:
    result = mcp("call", socket_url, "ask", text="Eve\n3\n")
    assert result.stdout == "decline []\n"
    assert "no terminal to ask on: Who are you?" in result.stderr


def test_the_idle_clock(mcp: Mcp, socket_url: str, tmp_path: Path) -> None:
    result = mcp("call", socket_url, "wait", f"begun={tmp_path}/b", f"ended={tmp_path}/e", "--timeout", "2")
    assert result.returncode == 9
    failed, page = result.stderr.splitlines()
    assert "the idle clock" in failed
    assert page == "see: mcp-actors docs troubleshooting"


def test_read(mcp: Mcp, socket_url: str) -> None:
    assert mcp("read", socket_url, "note://text").stdout == "no newline"
    assert mcp("read", socket_url, "note://trains/7").stdout == "trains 7"
    raw = mcp("read", socket_url, "note://bytes", "--json")
    assert base64.b64decode(json.loads(raw.stdout)["contents"][0]["blob"]) == b"\x00\x01\xff"


def test_read_what_is_not_there(mcp: Mcp, socket_url: str) -> None:
    result = mcp("read", socket_url, "note://nothing")
    assert result.returncode == 7
    assert len(result.stderr.splitlines()) == 1
    assert "note://nothing" in result.stderr


def test_prompt(mcp: Mcp, socket_url: str) -> None:
    result = mcp("prompt", socket_url, "greet", "name=Ada")
    assert (result.returncode, result.stdout) == (0, "user: Greet Ada kindly.\n")
    as_json = mcp("prompt", socket_url, "greet", "name=Ada", "manner=twice", "--json")
    assert json.loads(as_json.stdout)["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Greet Ada twice."}}
    ]


def test_a_server_that_exits_at_once(mcp: Mcp) -> None:
    program = "import sys; print('cannot find my config', file=sys.stderr); sys.exit(3)"
    result = mcp("list", f"stdio:{shlex.join([sys.executable, '-c', program])}")
    first, *_, last = result.stderr.splitlines()
    assert result.returncode == 1
    assert first == f"[{Path(sys.executable).name}] cannot find my config"
    assert last.startswith("mcp-actors: the connection to ")
    assert last.endswith("it exited with code 3")
    assert "Traceback" not in result.stderr


def test_a_server_that_dies_in_a_call(mcp: Mcp, url: str) -> None:
    result = mcp("call", url, "crash")
    assert result.returncode == 1
    assert "the last words" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["list", "stdio:/no/such/program"], 1, "/no/such/program"),
        (["list", "nosuchscheme://x"], 2, "nosuchscheme"),
        (["list", "localhost:8000"], 2, "write http://localhost:8000/mcp"),
        (["list", "http://"], 2, "the URL names no host: write http://HOST:PORT/PATH"),
        (["list", "http://127.0.0.1:notaport/mcp"], 2, "the port of a URL is a number from 0 to 65535"),
        (["list", "stdio:"], 2, "'stdio:python server.py'"),
        (["list", "stdio:true", "--timeout", "-1"], 2, "timeout is a number of seconds above 0"),
        (["serve", __file__.replace(".py", ".nothing")], 2, "there is no file"),
        (["call", "stdio:true", "t", "what"], 2, "write key=text"),
        (["list", "server.py"], 2, "'server.py' is no URL: write 'stdio:python server.py'"),
        (["list", "stdio:true", "--era", "paleozoic"], 2, "paleozoic"),
        (["nonsense"], 2, "there is no command 'nonsense'"),
        (["list", "python weather.py"], 2, "write 'stdio:python weather.py' as one word"),
        (["list", "stdio:weather.py"], 1, "write the interpreter first: python weather.py"),
        (["srve", "x.py"], 2, "there is no command 'srve'; did you mean 'serve'?"),
        (["run", "x.py"], 2, "there is no command 'run'; write mcp-actors serve"),
        (["dev", "x.py"], 2, "there is no command 'dev'; write mcp-actors serve --reload"),
        (
            ["serve", "x.py", "--port", "80"],
            2,
            "there is no --port: write --listen http://127.0.0.1:PORT/mcp",
        ),
        (["serve", "x.py", "--host", "h"], 2, "there is no --host: write --listen http://HOST:8000/mcp"),
        (
            ["serve", "x.py", "--transport", "sse"],
            2,
            "there is no --transport: write --listen http://127.0.0.1",
        ),
        (["call", "stdio:true", "t", "--port", "80"], 2, "--port"),
    ],
)
def test_wrong_words(mcp: Mcp, words: list[str], code: int, says: str) -> None:
    result = mcp(*words)
    assert result.returncode == code, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_traceback_where_it_is_asked_for(mcp: Mcp) -> None:
    assert "Traceback" in mcp("list", "stdio:/no/such/program", "--traceback").stderr


def test_help_names_commands_and_exit_codes(mcp: Mcp) -> None:
    result = mcp("--help")
    assert result.returncode == 0
    for word in ("serve", "list", "call", "read", "prompt", "login", "logout", "whoami", "demo"):
        assert f"\n  {word} " in result.stdout
    commands = result.stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert [line for line in commands if line[2] == " "] == []  # each command has one line
    for word in ("Exit codes", "130", "NO_COLOR"):
        assert word in result.stdout
    assert mcp("--version").stdout.startswith("mcp-actors")


# -- Tasks on the command line: they are started, left running, and come back to -------------------------

SERVED = Path(__file__).with_name("tasks_served.py")


@pytest.fixture
def address(started: Started, tmp_path: Path) -> Iterator[str]:
    """The URL of a server that outlives the commands."""
    path = tmp_path / "socket"
    with started("serve", str(SERVED), "--listen", f"unix://{path}"):
        end = time.monotonic() + LIMIT
        while not path.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        yield f"unix://{path}"


def id_in(text: str) -> str:
    found = re.search(r"^.*?task (\S{16,})", text, re.MULTILINE)
    assert found, text
    return found[1]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_task_is_started_and_waited_for(
    mcp: Callable[..., Ran], address: str, tmp_path: Path, era: str
) -> None:
    released = tmp_path / "released"
    released.touch()
    ran = mcp("call", "--task", "--era", era, address, "until", f"released={released}")
    assert (ran.returncode, ran.stdout) == (0, "released\n")
    assert id_in(ran.stderr)


def test_a_tool_without_tasks_is_just_called(mcp: Callable[..., Ran], address: str) -> None:
    ran = mcp("call", "--task", address, "plain")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "at once\n", "")


def test_ctrl_c_leaves_a_task_running_and_says_how_to_go_on(
    terminal: Callable[..., Terminal], mcp: Callable[..., Ran], address: str, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    session = terminal("call", "--task", address, "until", f"released={released}")
    session.until(lambda: "halfway" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    id = id_in(session.text)
    assert f"mcp-actors tasks {address} result {id}" in session.text
    seen = mcp("tasks", address, "get", id, "--json")
    assert json.loads(seen.stdout)["status"] == "working"
    released.touch()
    ran = mcp("tasks", address, "result", id)
    assert (ran.returncode, ran.stdout) == (0, "released\n")


def test_ctrl_c_cancels_a_task_that_a_plain_call_became(
    terminal: Callable[..., Terminal], mcp: Callable[..., Ran], address: str
) -> None:
    session = terminal("call", address, "ask")
    session.until(lambda: "answer?" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    assert "mcp-actors: cancelled; the server was told" in session.text


def test_result_asks_the_person_what_the_task_asks(terminal: Callable[..., Terminal], address: str) -> None:
    session = terminal("call", "--task", address, "ask")
    session.until(lambda: "answer?" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    later = terminal("tasks", address, "result", id_in(session.text))
    later.until(lambda: "answer?" in later.text)
    later.type(b"y\n")
    later.until(lambda: "name" in later.text)
    later.type(b"Ada\n")
    assert later.wait() == 0
    assert "accept {'name': 'Ada'}" in later.text


def test_a_task_is_cancelled(
    terminal: Callable[..., Terminal], mcp: Callable[..., Ran], address: str
) -> None:
    session = terminal("call", "--task", address, "until", "released=/nowhere/at/all")
    session.until(lambda: "halfway" in session.text)
    session.type(CTRL_C)
    session.wait()
    id = id_in(session.text)
    assert mcp("tasks", address, "cancel", id).returncode == 0
    ran = mcp("tasks", address, "result", id)
    assert ran.returncode == 1
    assert "was cancelled" in ran.stderr


def test_what_is_wrong_is_said(mcp: Callable[..., Ran], address: str) -> None:
    unknown = mcp("tasks", address, "get", "no-such-task")
    assert (unknown.returncode, "no such task" in unknown.stderr) == (7, True)
    assert mcp("tasks", address, "get").returncode == 2


# A server whose lists never end: each page is empty and names another one.
ENDLESS = """
import itertools, json, sys

numbers = itertools.count()
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method = request["method"]
    if method == "initialize":
        capabilities = {"tools": {}, "prompts": {}, "resources": {}, "tasks": {"list": {}}}
        info = {"name": "endless", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    elif method.endswith("/list"):
        member = {"tools/list": "tools", "prompts/list": "prompts", "tasks/list": "tasks"}.get(method)
        member = member or ("resourceTemplates" if "templates" in method else "resources")
        result = {member: [], "nextCursor": str(next(numbers))}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "called"}]}
    else:
        answer = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}}
        print(json.dumps(answer), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
GOES_ON = "list goes on after 1,000 pages"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("list", "{server}"), 1, GOES_ON),
        (("call", "{server}", "x", "a=1"), 0, "called"),
        (("bench", "{server}", "x", "--calls", "1"), 1, GOES_ON),
        (("tasks", "{server}"), 1, GOES_ON),
        (("gateway", "{config}", "--check"), 1, GOES_ON),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_a_list_without_an_end_ends_the_command(
    mcp: Mcp, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    program, config = tmp_path / "endless.py", tmp_path / "servers.json"
    program.write_text(ENDLESS)
    entry = {"command": sys.executable, "args": [str(program)]}
    config.write_text(json.dumps({"mcpServers": {"endless": entry}}))
    server = f"stdio:{shlex.join([sys.executable, str(program)])}"
    done = mcp(*(word.format(server=server, config=config) for word in words))
    assert says in " ".join((done.stdout + done.stderr).split()), done.stdout + done.stderr
    assert done.returncode == code
    assert "Traceback" not in done.stderr


# A server that declares all lists and has a method for that of its tools alone.
DECLARES = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        capabilities = {"tools": {}, "prompts": {}, "resources": {}}
        info = {"name": "declares", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
        print(json.dumps({**answer, "result": result}), flush=True)
    elif request["method"] == "tools/list":
        tools = [{"name": "only", "inputSchema": {"type": "object"}}]
        print(json.dumps({**answer, "result": {"tools": tools}}), flush=True)
    else:
        print(json.dumps({**answer, "error": {"code": -32601, "message": "Method not found"}}), flush=True)
"""


@pytest.mark.parametrize("words", [("list", "{server}"), ("gateway", "{config}", "--check")])
def test_a_server_that_has_no_method_for_a_list_that_it_declares_has_an_empty_one(
    mcp: Mcp, tmp_path: Path, words: tuple[str, ...]
) -> None:
    program, config = tmp_path / "declares.py", tmp_path / "servers.json"
    program.write_text(DECLARES)
    entry = {"command": sys.executable, "args": [str(program)]}
    config.write_text(json.dumps({"mcpServers": {"declares": entry}}))
    server = f"stdio:{shlex.join([sys.executable, str(program)])}"
    done = mcp(*(word.format(server=server, config=config) for word in words))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert ("only" if words[0] == "list" else "declares") in done.stdout
