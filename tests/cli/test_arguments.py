""""""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import click
import pytest
import trio

from mcp_actors import Server
from mcp_actors.abc import ServerHandler
from mcp_actors.cli.arguments import (
    argument_lines,
    fitted,
    may_need_schema,
    signature,
    text_arguments,
    tool_arguments,
    value_of,
)
from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.target import load_again, load_server
from tests.cli.conftest import Mcp


def test_text_and_json() -> None:
    words = ["city=Berlin", "days:=3", "exact:=true", 'box:={"a": [1]}', "empty=", "nothing:=null"]
    assert tool_arguments(words) == {
        "city": "Berlin",
        "days": 3,
        "exact": True,
        "box": {"a": [1]},
        "empty": "",
        "nothing": None,
    }


def test_text_is_never_parsed() -> None:
    assert tool_arguments(["a=3", "b=true", "c=x=y", "d=:=1", "e=k:=1"]) == {
        "a": "3",
        "b": "true",
        "c": "x=y",
        "d": ":=1",
        "e": "k:=1",
    }


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("city", "write key=text"),
        ("=x", "has no key"),
        (":=1", "has no key"),
        ("days:=three", "is not JSON"),
        ("days:=", "write days="),
    ],
)
def test_what_is_no_argument_is_wrong_usage(word: str, says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        tool_arguments([word])


def test_a_key_comes_once() -> None:
    with pytest.raises(click.UsageError, match="given twice"):
        tool_arguments(["a=1", "a:=1"])


def test_prompts_take_text_only() -> None:
    assert text_arguments(["branch=main", "since=2026"]) == {"branch": "main", "since": "2026"}
    with pytest.raises(click.UsageError, match="write n=3"):
        text_arguments(["n:=3"])


# -- ``--header`` and ``--bearer-env``: what is sent with them, and that no error shows what they hold ---

SECRET = "s3cret-value"


class Demanding(BaseHTTPRequestHandler):
    """An MCP server that keeps the headers of each request, and demands some of them."""

    demanded: dict[str, str] = {}
    received: list[dict[str, str]] = []

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.received.append(headers)
        message = json.loads(self.rfile.read(int(headers["content-length"])))
        if any(headers.get(name) != value for name, value in self.demanded.items()):
            self.answer(401, b"")
        elif message["method"] == "tools/list":
            tool = {"name": "hello", "inputSchema": {"type": "object"}}
            self.answer(200, self.result(message, {"tools": [tool]}))
        elif message["method"] == "initialize":
            self.answer(
                200,
                self.result(
                    message,
                    {
                        "protocolVersion": "2025-06-18",
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "demanding", "version": "1"},
                    },
                ),
            )
        else:
            self.answer(202, b"")

    def do_GET(self) -> None:
        self.answer(405, b"")

    def result(self, message: dict[str, object], result: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def demanding() -> Iterator[tuple[str, type[Demanding]]]:
    handler = type("DemandingOnce", (Demanding,), {"demanded": {}, "received": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp", handler
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_headers_come_with_every_request(mcp: Mcp, demanding: tuple[str, type[Demanding]]) -> None:
    url, handler = demanding
    handler.demanded = {"x-api-key": SECRET, "x-tenant": "a:b"}
    words = ["--header", f"X-Api-Key: {SECRET} ", "--header", "X-Tenant:a:b"]
    result = mcp("list", url, "--era", "legacy", *words)
    assert (result.returncode, result.stderr) == (0, "")
    assert "  hello()" in result.stdout.splitlines()
    assert len(handler.received) >= 3


def test_a_token_comes_from_the_environment(
    mcp: Mcp, demanding: tuple[str, type[Demanding]], environment: dict[str, str]
) -> None:
    url, handler = demanding
    handler.demanded = {"authorization": f"Bearer {SECRET}"}
    environment["MY_TOKEN"] = f"{SECRET}\n"
    result = mcp("list", url, "--era", "legacy", "--bearer-env", "MY_TOKEN")
    assert (result.returncode, result.stderr) == (0, "")
    environment["MY_TOKEN"] = "another"
    refused = mcp("list", url, "--era", "legacy", "--bearer-env", "MY_TOKEN")
    assert refused.returncode == 1
    assert "it does not accept the headers that were given" in refused.stderr
    assert "another" not in refused.stderr


HTTP = "http://127.0.0.1:9/mcp"


@pytest.mark.parametrize(
    ("url", "words", "says"),
    [
        ("stdio:true", ["--header", f"X-Key:{SECRET}"], "are for http, https, ws and wss URLs"),
        ("tcp://127.0.0.1:9", ["--bearer-env", "HELD"], "are for http, https, ws and wss URLs"),
        (HTTP, ["--header", SECRET], "--header number 1 has no colon: write --header NAME:VALUE"),
        (HTTP, ["--header", f"X Key {SECRET}:1"], "--header number 1 has no usable name"),
        (HTTP, ["--header", f"X-Key:{SECRET}\nY:1"], "the value of --header X-Key holds a line break"),
        (HTTP, ["--header", f"X-Key:{SECRET}é"], "the value of --header X-Key holds"),
        (HTTP, ["--header", "a:1", "--header", f"A:{SECRET}"], "--header A is given twice"),
        (HTTP, ["--header", f"Mcp-Method:{SECRET}"], "the protocol sets these headers itself: mcp-method"),
        ("ws://127.0.0.1:9/", ["--header", f"Upgrade:{SECRET}"], "sets these headers itself: upgrade"),
        (HTTP, ["--bearer-env", SECRET], "is not set; it takes the name of a variable, not a token"),
        (HTTP, ["--bearer-env", "EMPTY"], "the environment variable EMPTY is empty"),
        (HTTP, ["--bearer-env", "BLANKS"], "the environment variable BLANKS holds no token"),
        (HTTP, ["--bearer-env", "HELD", "--header", "authorization:x"], "exclude each other"),
    ],
)
def test_wrong_headers(mcp: Mcp, environment: dict[str, str], url: str, words: list[str], says: str) -> None:
    environment.update(EMPTY=" ", BLANKS=f"Bearer {SECRET}", HELD=SECRET)
    result = mcp("list", url, *words)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())
    assert SECRET not in result.stderr
    assert "Traceback" not in result.stderr


PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
    "required": ["city"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {
            "type": "integer",
            "minimum": 1,
            "maximum": 14,
            "default": 3,
            "description": "For how\nmany days.",
        },
        "exact": {"type": "boolean"},
        "text": {"type": "string"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}},
        "place": {"$ref": "#/$defs/Place", "description": "Where."},
        "level": {"enum": [1, 2]},
        "several": {"type": ["integer", "boolean"]},
        "unknown": {},
    },
    "required": ["days", "place"],
    "$defs": {"Place": PLACE},
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("days=3", 3),
        ("days=3.0", 3.0),
        ("days=3.5", "3.5"),
        ("days=three", "three"),
        ("days=true", "true"),
        ("days=Infinity", "Infinity"),
        ('days:="3"', "3"),
        ("exact=true", True),
        ("exact=True", "True"),
        ("exact=1", "1"),
        ("text=3", "3"),
        ("text=null", "null"),
        ("either=3", "3"),
        ("maybe=null", None),
        ("maybe=-1e3", -1000.0),
        ('tags=["a"]', ["a"]),
        ("tags=a", "a"),
        ('place={"city": "Bonn"}', {"city": "Bonn"}),
        ("level=2", 2),
        ("several=false", False),
        ("unknown=3", "3"),
        ("nowhere=3", "3"),
    ],
)
def test_text_becomes_what_the_schema_wants(word: str, value: Any) -> None:
    (fit,) = fitted(tool_arguments([word]), [word], SCHEMA).values()
    assert fit == value
    assert type(fit) is type(value)


@pytest.mark.parametrize(
    ("word", "needs"),
    [("a=3", True), ("a=true", True), ("a=[]", True), ("a=Berlin", False), ('a="3"', False), ("a:=3", False)],
)
def test_the_schema_is_asked_for_only_if_it_may_matter(word: str, needs: bool) -> None:
    assert may_need_schema(["b=text", word]) is needs


def test_arguments_are_shown_with_limits_descriptions_and_what_is_inside() -> None:
    assert signature(SCHEMA).startswith(
        "days: integer, exact?: boolean, text?: string, either?: integer|string, "
    )
    assert list(argument_lines(SCHEMA)) == [
        "days: integer, at least 1, at most 14, default 3 - For how many days.",
        "tags?: string[], each 9 characters or fewer",
        "place: object - Where.",
        "  city: string",
        "  zip?: integer",
    ]


RECURSIVE = {
    "properties": {"node": {"$ref": "#/$defs/Node"}},
    "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}},
}
LOOP = {
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
}
WRONG = {
    "properties": {
        "a": {"type": 3, "enum": 3, "anyOf": 3, "items": 3, "required": 3},
        "b": 3,
        "c": {"$ref": "elsewhere"},
    },
    "required": "a",
}


@pytest.mark.parametrize("schema", [RECURSIVE, LOOP, WRONG, {}, None, 3, {"properties": 3}])
def test_any_schema_can_be_shown(schema: Any) -> None:
    assert isinstance(signature(schema), str)
    assert len(list(argument_lines(schema))) < 10
    assert value_of("text", "a", schema) == "text"


def test_alternatives_that_lead_back_to_themselves_are_followed_so_far_and_no_further() -> None:
    either = {"anyOf": [{"$ref": "#/$defs/Either"}, {"type": "integer"}]}
    schema = {"properties": {"a": {"$ref": "#/$defs/Either"}}, "$defs": {"Either": either}}
    assert value_of("3", "a", schema) == 3
    assert value_of("x", "a", schema) == "x"


IMPORT = "from mcp_actors import Server\n"
ONE = IMPORT + "app = Server('one')\n"


@pytest.fixture(autouse=True)
def _imports_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        module = sys.modules[name]
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(text: str, name: str = "target_file.py") -> str:
    Path(name).write_text(text)
    return name


@pytest.mark.parametrize(
    ("text", "attribute", "name"),
    [
        (ONE, "", "one"),
        (ONE, ":app", "one"),
        (ONE + "server = Server('two')\n", "", "two"),
        (ONE + "server = Server('two')\n", ":app", "one"),
        (IMPORT + "class Place:\n    inner = Server('deep')\n", ":Place.inner", "deep"),
        (IMPORT + "def server():\n    return Server('made')\n", "", "made"),
        (IMPORT + "def make_server():\n    return Server('made')\n", "", "made"),
        (IMPORT + "def build():\n    return Server('made')\n", ":build", "made"),
        (IMPORT + "def main():\n    Server('run by main').run()\n", "", "run by main"),
        (IMPORT + "Server('run at once').run()\nraise SystemExit(3)\n", "", "run at once"),
    ],
)
def test_what_is_served(text: str, attribute: str, name: str) -> None:
    assert load_server(write(text) + attribute, []).name == name


def test_a_function_gets_args_as_text() -> None:
    write(IMPORT + "def server(*args):\n    return Server(repr(args))\n")
    assert load_server("target_file.py", ["3", "--write"]).name == "('3', '--write')"


def test_a_module_by_name_and_its_neighbours() -> None:
    write("NAME = 'from a neighbour'\n", "target_neighbour.py")
    write(IMPORT + "from target_neighbour import NAME\nserver = Server(NAME)\n", "target_module.py")
    assert load_server("target_module", []).name == "from a neighbour"
    assert load_server("./target_module.py", []).name == "from a neighbour"


def test_a_file_does_not_hide_a_module_of_the_same_name() -> None:
    write(ONE, "json.py")
    assert load_server("json.py", []).name == "one"
    assert hasattr(sys.modules["json"], "loads")


def test_annotations_of_a_file_resolve() -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        + IMPORT
        + "server = Server('typed')\n"
        "@dataclass\nclass Point:\n    x: int\n"
        "@server.tool\nasync def mirror(point: Point) -> Point:\n    return point\n"
    )
    assert load_server(write(text), []).name == "typed"


@pytest.mark.parametrize(
    ("text", "target", "args", "code", "says"),
    [
        (None, "nowhere.py", [], 2, "there is no file nowhere.py"),
        (
            None,
            "no.such.module",
            [],
            2,
            "there is no module no.such.module, neither installed in this Python nor in HERE",
        ),
        (None, "mcp_actors.nothing_here", [], 2, "there is no module mcp_actors.nothing_here"),
        (None, "what-is-this", [], 2, "neither a path"),
        (ONE, "target_file", [], 0, ""),
        (ONE, "target_file.py:nothing", [], 2, "has no nothing; its servers: app"),
        (ONE + "number = 3\n", "target_file.py:number", [], 2, "is a int, not a Server"),
        (ONE + "two = Server('two')\n", "target_file.py", [], 2, "several servers.*:app or :two"),
        ("x = 1\n", "target_file.py", [], 2, "has no Server and no function"),
        (ONE, "target_file.py", ["x"], 2, "takes no ARGS"),
        (ONE, "target_file.py", ["http://h:80/mcp"], 2, "write --listen http://h:80/mcp"),
        ("import no_such_thing\n", "target_file.py", [], 1, "cannot import.*no_such_thing.*line 1"),
        ("x = 1\ny = undefined\n", "target_file.py", [], 1, "NameError: .*line 2"),
        ("def f(:\n", "target_file.py", [], 1, "SyntaxError"),
        ("raise SystemExit('enough')\n", "target_file.py", [], 1, "SystemExit: enough"),
        ("def server(file):\n    pass\n", "target_file.py", [], 2, r"server\(file\) got nothing: missing"),
        ("def server():\n    1 / 0\n", "target_file.py", [], 1, "cannot make.*ZeroDivisionError.*line 2"),
        (
            "def server():\n    raise ValueError('usage: x')\n",
            "target_file.py",
            [],
            2,
            "target_file.py: usage: x",
        ),
        ("def server():\n    return 'server'\n", "target_file.py", [], 2, "made a str, not a Server"),
        ("async def server():\n    pass\n", "target_file.py", [], 2, "made a coroutine, not a Server"),
    ],
)
def test_one_line_says_what_is_wrong(
    text: str | None, target: str, args: list[str], code: int, says: str
) -> None:
    if text is not None:
        write(text)
    if code == 0:
        assert load_server(target, args).name == "one"
        return
    with pytest.raises(CommandFailure, match=says.replace("HERE", re.escape(os.getcwd()))) as caught:
        load_server(target, args)
    assert caught.value.exit_code == code
    assert "\n" not in caught.value.message


class Noted:
    """A transport that is done at once."""

    def __init__(self) -> None:
        self.served = 0

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.served += 1
        task_status.started()


def runs() -> bool:
    """Returns whether a server runs here and now."""
    noted = Noted()
    Server("here").run(noted)
    return noted.served == 1


@pytest.mark.parametrize(
    "ending",
    ["Server('x').run()", "app = Server('x')", "raise ValueError('no')", "raise SystemExit(3)", "1 +"],
)
def test_a_server_can_run_again_after_loading(ending: str) -> None:
    with suppress(CommandFailure):
        load_server(write(f"{IMPORT}{ending}\n"), [])
    assert runs()


def test_a_target_that_loads_another_one_is_stopped_all_the_same() -> None:
    write(f"{IMPORT}Server('inner').run()\n", "inner.py")
    loads = "from mcp_actors.cli.target import load_again\nload_again('inner.py', [])\n"
    assert load_server(write(f"{IMPORT}{loads}Server('outer').run()\n"), []).name == "outer"
    assert runs()


def test_a_server_that_the_target_runs_in_a_thread_runs() -> None:
    events: list[object] = []
    sys.modules["runs_of_a_load"] = SimpleNamespace(runs=runs, events=events)  # type: ignore[assignment]
    thread = "import threading, runs_of_a_load as r\n" + (
        "beside = threading.Thread(target=lambda: r.events.append(r.runs()))\nbeside.start()\nbeside.join(30)\n"
    )
    try:
        assert load_server(write(f"{thread}{IMPORT}Server('x').run()\n"), []).name == "x"
    finally:
        del sys.modules["runs_of_a_load"]
    assert events == [True]


def test_a_file_of_a_package_is_told_its_name() -> None:
    Path("shop").mkdir()
    write("", "shop/__init__.py")
    write("STOCK = {}\n", "shop/stock.py")
    write("from .stock import STOCK\n" + ONE, "shop/server.py")
    with pytest.raises(
        CommandFailure, match=rf"as a module of its package, in {re.escape(os.getcwd())}, it is shop.server$"
    ):
        load_server("shop/server.py", [])
    assert load_server("shop.server", []).name == "one"


def test_what_a_target_prints_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    load_server(write(ONE + "import os\nos.write(1, b'hello')\nos.system('echo from a child')\n"), [])
    out, err = capfd.readouterr()
    assert out == ""
    assert "hello" in err
    assert "from a child" in err
    os.write(1, b"afterwards stdout is back\n")
    assert capfd.readouterr().out == "afterwards stdout is back\n"


def test_of_two_that_are_loaded_at_once_neither_takes_the_run_of_the_other(tmp_path: Path) -> None:
    """A load that was given up ends in the middle of the next one."""
    events = {name: threading.Event() for name in ("begun", "end")}
    sys.modules["events_of_a_load"] = events  # type: ignore[assignment]
    waiting, quick = tmp_path / "waiting.py", tmp_path / "quick.py"
    script = "from mcp_actors import Server\nServer('made').run()\n"
    waiting.write_text("import events_of_a_load as e\ne['begun'].set()\ne['end'].wait(30)\n" + script)
    quick.write_text("import events_of_a_load as e\ne['end'].set()\ne['thread'].join()\n" + script)
    made: list[Server] = []
    try:
        thread = threading.Thread(target=lambda: made.append(load_again(str(waiting), [])))
        events["thread"] = thread  # type: ignore[assignment]
        thread.start()
        events["begun"].wait(30)
        made.append(load_again(str(quick), []))
    finally:
        del sys.modules["events_of_a_load"]
    assert [each.name for each in made] == ["made", "made"]
    assert runs()
