"""The command line on a pseudo-terminal: the bar, Ctrl-C, questions, bytes."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mcp_actors.cli.commands import command_names
from mcp_actors.cli.progress import answer_field

from .conftest import CTRL_C, LIMIT, SERVED, Started, Terminal, announced
from .hostile import EVIL

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_ctrl_c_cancels_the_call(
    terminal: Callable[..., Terminal], url: str, tmp_path: Path, era: str
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    session = terminal("call", url, "wait", f"begun={begun}", f"ended={ended}", "--era", era)
    session.until(begun.exists)
    session.until(lambda: "1/4" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 130
    assert ended.exists()  # the handler saw its cancellation
    assert "mcp-actors: cancelled; the server was told" in session.text
    assert "Traceback" not in session.text


@pytest.mark.parametrize("seen", ["typed tools", "sessions live"])
def test_ctrl_c_in_the_demo_leaves_a_clean_terminal(terminal: Callable[..., Terminal], seen: str) -> None:
    session = terminal("demo", "--sessions", "8", "--seconds", "600", COLUMNS="40")
    session.until(lambda: seen in session.text)
    settings = termios.tcgetattr(session.master)
    session.type(CTRL_C)
    assert session.wait() == 130
    assert session.screen.rfind(b"\x1b[?25h") >= session.screen.rfind(b"\x1b[?25l")  # the cursor is seen
    assert termios.tcgetattr(session.master) == settings
    assert "Traceback" not in session.text


def test_ctrl_c_ends_a_load_with_its_figures(terminal: Callable[..., Terminal], url: str) -> None:
    session = terminal("bench", url, "add", "a=1", "--duration", "60", "--warm-up", "0")
    session.until(lambda: "Ctrl-C ends it early" in session.text and "p99" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 0
    assert "answered" in session.text
    assert "Mind: it was ended early." in session.text
    assert "Traceback" not in session.text


def test_ctrl_c_while_connecting(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    session = terminal("list", "stdio:sh -c 'echo started >&2; touch here; exec sleep 60'")
    session.until((tmp_path / "here").exists)
    session.type(CTRL_C)
    assert session.wait() == 130
    assert "interrupted while connecting" in session.text


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_question_is_asked_on_the_terminal(terminal: Callable[..., Terminal], url: str, era: str) -> None:
    session = terminal("call", url, "ask", "--era", era)
    session.until(lambda: "Who are you?" in session.text and "answer?" in session.text)
    session.type(b"y\n")
    session.until(lambda: "name: " in session.text)
    session.type(b"Ada\n")
    session.until(lambda: "age (integer): " in session.text)
    session.type(b"old\n")
    session.until(lambda: "write a whole number" in session.text)
    session.type(b"36\n")
    session.until(lambda: "colour" in session.text)
    session.type(b"\n")
    assert session.wait() == 0
    assert "accept [('age', 36), ('colour', 'green'), ('name', 'Ada')]" in session.text


@pytest.mark.parametrize(
    ("keys", "action", "code"),
    [(b"n\n", "decline []", 0), (b"\x04", "cancel []", 0), (CTRL_C, "cancelled", 130)],
)
def test_a_question_can_be_refused(
    terminal: Callable[..., Terminal], url: str, keys: bytes, action: str, code: int
) -> None:
    session = terminal("call", url, "ask")
    session.until(lambda: "answer?" in session.text)
    session.type(keys)
    assert session.wait() == code
    assert action in session.text


def test_bytes_are_kept_off_the_terminal(terminal: Callable[..., Terminal], url: str) -> None:
    session = terminal("read", url, "note://bytes")
    assert session.wait() == 2
    assert "3 bytes, which do not belong on a terminal" in session.text
    assert b"\xff" not in session.screen


def test_a_server_cannot_command_the_terminal(terminal: Callable[..., Terminal], url: str) -> None:
    session = terminal("call", url, "refuse", NO_COLOR="1")
    assert session.wait() == 8
    assert "no, because \\x1b[31mred\\x1b[0m" in session.text
    assert b"\x1b[31m" not in session.screen


COMMANDS: dict[str, tuple[str, ...]] = {
    "list": ("list", "{server}"),
    "call": ("call", "{server}", "works"),
    "call that fails": ("call", "{server}", "fails"),
    "call that breaks": ("call", "{server}", "breaks"),
    "call that asks": ("call", "{server}", "asks"),
    "call of no tool": ("call", "{server}", "nothing", "a=1"),
    "call with its traceback": ("call", "{server}", "breaks", "--traceback"),
    "call as JSON": ("call", "{server}", "works", "--json"),
    "list as JSON": ("list", "{server}", "--json"),
    "read": ("read", "{server}", "x://y"),
    "prompt": ("prompt", "{server}", "greet"),
    "tasks": ("tasks", "{server}"),
    "inspect": ("inspect", "{server}"),
    "inspect as JSON": ("inspect", "{server}", "--json"),
    "bench": ("bench", "{server}", "works", "--calls", "20", "--warm-up", "0"),
    "bench of no tool": ("bench", "{server}", "nothing", "--calls", "1"),
    "gateway --check": ("gateway", "{config}", "--check"),
    "gateway": ("gateway", "{config}"),
    "from-openapi --check": ("from-openapi", "{document}", "--check"),
    "from-openapi of what is none": ("from-openapi", "{config}", "--check"),
    "bridge": ("bridge", "{server}", "stdio:"),
    "rest": ("rest", "{server}", "http://127.0.0.1:0/mcp"),
    "record": ("record", "{server}", "{settings}"),
    "mock": ("mock", "{recording}", "--listen", "tcp://127.0.0.1:0"),
    "diff": ("diff", "{recording}", "{server}"),
    "lock": ("lock", "{server}", "-o", "{settings}"),
    "lock --check": ("lock", "{server}", "-o", "{lock}", "--check"),
    "card": ("card", "{server}", "--name", "org.example/x"),
    "card --check": ("card", "--check", "{card}"),
    "serve": ("serve", "{file}", "--listen", "tcp://127.0.0.1:0"),
    "install": ("install", "{file}", "--client", "cursor", "--config", "{settings}", "--yes"),
    "install of a gateway": ("install", "{config}", "--client", "cursor", "--config", "{settings}", "--yes"),
    "uninstall": ("uninstall", EVIL, "--client", "cursor", "--config", "{settings}", "--yes"),
    "login": ("login", "{site}"),
    "login with its traceback": ("login", "{site}", "--traceback"),
    "whoami": ("whoami", "{site}"),
    "logout": ("logout", "{site}"),
    "list where a login is needed": ("list", "{site}"),
}
# They say nothing of what the server said.
QUIET = {
    "card --check",
    "mock",
    "from-openapi of what is none",
    "install of a gateway",
    "list where a login is needed",
    "whoami",
    "logout",
}
# They talk to no server, and what the live view of one shows has a test of its own below.
ALONE = {"config", "demo", "docs", "top"}

SERVED_EVIL = f"""
from mcp_actors import Server

server = Server("n" + {EVIL!r}, version="1" + {EVIL!r}, title="t" + {EVIL!r})
"""


@contextmanager
def hostile_site() -> Iterator[str]:
    """A server that asks for a login, and an authorization server that refuses every client in hostile words."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here = f"http://127.0.0.1:{site.server_port}"
            if "oauth-protected-resource" in self.path:
                document: Any = {"resource": f"{here}/mcp", "authorization_servers": [here]}
                self.answer(200, {**document, "resource_name": f"r{EVIL}", "scopes_supported": ["a"]})
            elif self.path.startswith("/.well-known/"):
                names = ("authorization", "token", "registration")
                document = {"issuer": here, **{f"{each}_endpoint": f"{here}/{each}" for each in names}}
                methods = {"code_challenge_methods_supported": ["S256"], "response_types_supported": ["code"]}
                self.answer(200, {**document, **methods})
            else:
                self.answer(401, {"error": f"e{EVIL}"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            error = {"error": "invalid_client_metadata", "error_description": f"d{EVIL}"}
            self.answer(400 if self.path == "/registration" else 401, error)

        def answer(self, status: int, document: Any) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        serving = threading.Thread(target=site.serve_forever, args=(0.05,))
        serving.start()
        yield f"http://127.0.0.1:{site.server_port}/mcp"
        site.shutdown()
        serving.join()


def recorded() -> str:
    """A recording of a server that had no tools, and one whose name is hostile."""
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    answered = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": f"t{EVIL}", "inputSchema": {}}]}}
    )
    lines: list[dict[str, Any]] = [
        {"recording": 1},
        {"event": "opened", "side": "client"},
        {"event": "sent", "request": 1, "method": "tools/list", "text": asked},
        {"event": "received", "text": answered},
        {"event": "closed"},
    ]
    return "\n".join(
        json.dumps({"t": 0.0, "connection": 1, **each} if "event" in each else each) for each in lines
    )


def test_the_walk_has_all_commands() -> None:
    assert {words[0] for words in COMMANDS.values()} | ALONE == set(command_names())


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_lets_a_server_command_the_terminal(
    terminal: Callable[..., Terminal], tmp_path: Path, name: str
) -> None:
    words = COMMANDS[name]
    command = [sys.executable, str(Path(__file__).parent / "hostile.py")]
    config = tmp_path / "mcp.json"
    entry = {"command": command[0], "args": command[1:]}
    config.write_text(json.dumps({"mcpServers": {f"evil{EVIL}": entry, "good": entry}}))
    file, settings = tmp_path / "served.py", tmp_path / "settings.json"
    file.write_text(SERVED_EVIL)
    document = tmp_path / "openapi.json"
    operation = {"operationId": f"read{EVIL}", "summary": EVIL, "x-internal": True}
    paths = {f"/a{EVIL}": {"get": operation, "put": {"deprecated": True}}, "/b": {"get": {}}}
    described = {
        "openapi": "3.1.0",
        "info": {"title": f"t{EVIL}"},
        "servers": [{"url": EVIL}],
        "paths": paths,
    }
    document.write_text(json.dumps(described))
    recording, lock, card = tmp_path / "day.jsonl", tmp_path / "mcp.lock", tmp_path / "card.json"
    recording.write_text(recorded())
    lock.write_text(json.dumps({"lock": 1, "servers": {"s": {}}}))
    card.write_text(json.dumps({"name": f"n{EVIL}", f"x{EVIL}": 1}))
    server = f"stdio:{shlex.join(command)}"
    places = {"server": server, "config": config, "file": file, "settings": settings, "document": document}
    places |= {"recording": recording, "lock": lock, "card": card}
    with hostile_site() as site:
        session = terminal(*(word.format(site=site, **places) for word in words), HOME=str(tmp_path))
        converse(session, words)
        session.wait()
    assert ("OWNED" in session.text) == (name not in QUIET)
    # A server over stdio writes messages to its standard output, whatever that is, and whatever is on the line already.
    lines = b"\n".join(line.partition(b'{"jsonrpc"')[0] for line in session.screen.splitlines())
    for sequence in ("\x1b]", "\x07", "\x1b[8m", "\x9b", "\u202e"):
        assert sequence.encode() not in lines
    assert ("Traceback" in session.text) == ("--traceback" in words)


def converse(session: Terminal, words: tuple[str, ...]) -> None:
    """Does what a person or a client does until the command ends."""
    if words[-1] == "asks":
        session.until(lambda: "answer?" in session.text)
        session.type(b"y\n")
        session.until(lambda: "one of" in session.text)
        session.type(b"another\n")
        session.until(lambda: "write one of" in session.text)
        session.type(b"\x04")
    elif words[0] in ("serve", "rest", "mock"):
        session.until(lambda: "serving" in session.text)
        session.type(CTRL_C)
    elif words[0] in ("bridge", "gateway", "record") and "--check" not in words:
        # A message that is longer than the terminal's buffer would be cut in two by the first line of the command.
        session.until(lambda: words[0] != "gateway" or "waits for a client" in session.text)
        session.type(
            b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",'
        )
        session.type(b' "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}}\n')
        session.type(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        session.type(b'{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}\n')
        session.until(lambda: '"id":2' in session.text)
        session.until(lambda: "stderr" in session.text)
        session.type(CTRL_C)


# What writes to a standard stream, and who may.
WRITES = re.compile(
    r"\bclick\.(echo|secho|style|prompt|confirm|pause|echo_via_pager|progressbar)\b|(?<![.\w])print\("
    r"|\bsys\.(__)?std(out|err)(__)?\.(write|buffer)\b|\bos\.write\((_?STD|[12],)|\btraceback\.print_|\bpprint\("
)
# What draws pictures of its own, whose parts the tests of the commands look at.
DRAWS = re.compile(r"\b(Console|Live)\(")
DRAWERS = {
    "mcp_actors/cli/bench/bench.py",
    "mcp_actors/cli/demo/demo.py",
    "mcp_actors/cli/progress.py",
    "mcp_actors/cli/top/screen.py",
}
DOORS = {
    "mcp_actors/cli/output.py",
    "mcp_actors/cli/start.py",  # its own words, before anything else is loaded
    "mcp_actors/supervision/logging.py",
    "mcp_actors/cli/bench/load.py",  # a pipe to the process that shows it
    "mcp_actors/_server/process.py",  # the words of the person who started it
    "mcp_actors/_server/isolated.py",  # the traceback of a module of the person who serves it
    "transports/mcp_transports/auth/browsers.py",  # its own sentences
    "transports/mcp_transports/auth/login.py",  # one URL, cleaned there
}


@pytest.mark.parametrize(("pattern", "doors"), [(WRITES, DOORS), (DRAWS, DRAWERS)], ids=["writes", "draws"])
def test_nothing_in_the_product_passes_the_door_to_the_terminal(
    pattern: re.Pattern[str], doors: set[str]
) -> None:
    root = Path(__file__).parent.parent.parent
    files = [*(root / "mcp_actors").rglob("*.py"), *(root / "transports" / "mcp_transports").rglob("*.py")]
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, path in sorted((str(each.relative_to(root)), each) for each in files)
        if name not in doors and "/examples/" not in name
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line.partition("#")[0]) and "``" not in line and line.strip() != "print(report)"
    ]
    assert found == []


def test_colours_on_a_terminal_only_where_wanted(terminal: Callable[..., Terminal], url: str) -> None:
    coloured, plain = terminal("list", url), terminal("list", url, NO_COLOR="1")
    assert (coloured.wait(), plain.wait()) == (0, 0)
    assert b"\x1b[1m" in coloured.screen
    assert b"\x1b[" not in plain.screen
    assert coloured.text == plain.text


def test_ctrl_c_while_a_target_is_imported(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    session = terminal("serve", "slow.py")
    session.until(lambda: "importing" in session.text)
    session.type(CTRL_C)
    assert session.wait() == 0  # as whenever it is ended by Ctrl-C
    assert "Traceback" not in session.text


WEATHER = """
from mcp_actors import Server

server = Server("weather")


@server.tool
def forecast(city: str) -> str:
    return city


server.run()
"""


def test_a_person_who_types_a_server_is_told_how_to_try_and_stop_it(
    terminal: Callable[..., Terminal], tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "my weather.py").write_text(WEATHER)
    session = terminal("an argument", program=["my weather.py"])
    session.until(lambda: "Ctrl-C stops it.\n" in session.text)
    line = "".join(session.text.splitlines())
    assert line.startswith(
        "weather speaks MCP over standard input and output, and waits for a client's messages."
    )
    shown = line.partition("To try it: ")[2].removesuffix(". Ctrl-C stops it.")
    program, *words = shlex.split(shown)
    tried = subprocess.run(
        [sys.executable, "-m", "mcp_actors", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    session.type(CTRL_C)
    assert session.wait() == 0
    assert program == "mcp-actors"
    assert "forecast" in tried.stdout
    assert "To try it" not in tried.stderr
    assert session.text.count("To try it") == 1
    assert "Traceback" not in session.text


def test_a_program_that_starts_a_server_is_told_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "weather.py").write_text(WEATHER)
    command = [sys.executable, "weather.py"]
    ran = subprocess.run(
        command, input=b"", cwd=tmp_path, env=environment, capture_output=True, timeout=LIMIT, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_a_log_file_is_told_nothing_of_the_terminal(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "weather.py").write_text(WEATHER)
    master, slave = pty.openpty()
    os.write(master, b"\x04")  # Ctrl-D: the end of input
    command = [sys.executable, "weather.py"]
    ran = subprocess.run(
        command, stdin=slave, cwd=tmp_path, env=environment, capture_output=True, timeout=LIMIT, check=False
    )
    os.close(slave)
    os.close(master)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_a_live_view_shows_a_server_until_a_key_ends_it(
    terminal: Callable[..., Terminal], started: Started, tmp_path: Path
) -> None:
    where = f"unix:{tmp_path}/admin.sock"
    words = ("serve", str(SERVED), "--listen", "http://127.0.0.1:0/mcp", "--admin", where)
    with started(*words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        announced(process.stderr)
        session = terminal("top", where, LINES="24", COLUMNS="80")
        session.until(lambda: "q quit" in session.text)
        before = session.text.count("SUPERVISOR")
        session.type(b"0")
        session.until(lambda: session.text.count("SUPERVISOR") > before)
        session.type(b"q")
        assert session.wait() == 0
        # The screen that was there before is shown again, with its cursor.
        assert session.screen.rstrip().endswith((b"\x1b[?25h", b"\x1b[?1049l"))
        second = terminal("top", where, LINES="24", COLUMNS="80")
        second.until(lambda: "q quit" in second.text)
        process.kill()
        process.wait(LIMIT)
        second.until(lambda: "trying again" in second.text)
        second.type(CTRL_C)
        assert second.wait() == 130


# A shell with one program: it says when that has stopped or ended, and whether the terminal echoes then.
SHELL = """
import os, signal, subprocess, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-m", "mcp_actors", *sys.argv[1:]], process_group=0)
os.tcsetpgrp(0, child.pid)
stopped = True
while stopped:
    status = os.waitpid(child.pid, os.WUNTRACED)[1]
    stopped = os.WIFSTOPPED(status)
    os.tcsetpgrp(0, os.getpid())
    echoes = bool(termios.tcgetattr(0)[3] & termios.ECHO)
    print("STOPPED" if stopped else "ENDED", "echo" if echoes else "silent", flush=True)
    if stopped:
        input()
        os.tcsetpgrp(0, child.pid)
        os.kill(child.pid, signal.SIGCONT)
"""
OTHER_SCREEN, OWN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def test_top_gives_the_terminal_back_while_it_is_stopped_and_when_it_is_killed(
    terminal: Callable[..., Terminal], started: Started, tmp_path: Path
) -> None:
    where = f"unix:{tmp_path}/admin.sock"
    words = ("serve", str(SERVED), "--listen", "http://127.0.0.1:0/mcp", "--admin", where)
    with started(*words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        announced(process.stderr)
        session = terminal("top", where, program=("-c", SHELL))
        session.until(lambda: "req/s" in session.text)
        session.type(b"\x1a")
        session.until(lambda: "STOPPED echo" in session.text)
        assert session.screen.count(OTHER_SCREEN) == session.screen.count(OWN_SCREEN) == 1
        before = len(session.screen)
        session.type(b"\n")
        session.until(lambda: OTHER_SCREEN in session.screen[before:] and b"req/s" in session.screen[before:])
        process.kill()
        session.until(lambda: "trying again" in session.text)
        session.type(CTRL_C)
        assert session.wait() == 0
    assert "ENDED echo" in session.text
    assert session.screen.count(OTHER_SCREEN) == session.screen.count(OWN_SCREEN)
    assert "Traceback" not in session.text


def test_top_goes_on_while_a_server_answers_no_action_and_shows_none_of_its_control_characters(
    terminal: Callable[..., Terminal],
) -> None:
    rows = {
        "key": "k",
        "session": None,
        "method": "m",
        "target": None,
        "principal": None,
        "id": "1",
        "age": 1.0,
    }
    node = {
        "node": "n",
        "server": "liar",
        "version": "",
        "host": "h",
        "pid": 1,
        "state": "serving",
        "at": 1.0,
    }
    node |= {"uptime": 1.0, "calls": [{**rows, "state": "running"}]}
    snapshot = json.dumps({"at": 1.0, "interval": 1.0, "watchers": 1, "nodes": [node]}).encode()
    outcomes = [json.dumps({"done": False, "text": "\x1b]0;owned\x07\x9b2J said"}).encode()]
    asked: list[bytes] = []

    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(b"data: %b\n\n" % snapshot if self.path == "/events" else snapshot)

        def do_POST(self) -> None:
            asked.append(b"action")
            if outcomes:
                self.answer(outcomes.pop())
            else:
                never.wait(LIMIT)

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    never = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        session = terminal("top", f"http://127.0.0.1:{server.server_port}")
        session.until(lambda: "liar" in session.text)
        session.type(b"2")
        for count, said in ((1, "said"), (2, "the server is asked")):
            session.type(b"xy")
            session.until(lambda said=said: said in session.text)  # type: ignore[misc]
            session.until(lambda count=count: len(asked) == count)  # type: ignore[misc]
        session.type(b"q")
        assert session.wait() == 0
        never.set()
        server.shutdown()
        serving.join()
    assert b"\x1b]0;owned" not in session.screen
    assert "\x9b" not in session.screen.decode()


ENUM = {"type": "string", "enum": ["r", "g"]}
NAMED = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}
TITLED = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]}
SOME = {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}}
SOME_TITLED = {
    "type": "array",
    "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
}


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "integer"}, "3", 3),
        ({"type": "number"}, "3.5", 3.5),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "false", False),
        (ENUM, "g", "g"),
        (NAMED, "Green", "g"),
        (TITLED, "Red", "r"),
        (TITLED, "r", "r"),
        (SOME, "r, g", ["r", "g"]),
        (SOME, "", []),
        (SOME_TITLED, "Green", ["g"]),
    ],
)
def test_a_line_becomes_what_the_field_wants(field: dict[str, Any], text: str, value: Any) -> None:
    assert answer_field(field, text) == value


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ({"type": "integer"}, "3.5", "whole number"),
        ({"type": "number"}, "three", "write a number"),
        ({"type": "boolean"}, "perhaps", "yes or no"),
        (ENUM, "b", "one of: r, g"),
        (SOME_TITLED, "Red, Blue", "one of: Red, Green"),
    ],
)
def test_what_does_not_fit_says_what_to_write(field: dict[str, Any], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        answer_field(field, text)
