from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from mcp_actors import Server
from mcp_actors.abc import ServerHandler
from mcp_actors.cli.failures import CommandFailure
from mcp_actors.cli.target import load_again, load_server

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
        (None, "no.such.module", [], 2, "there is no module no.such.module"),
        (None, "mcp_actors.nothing_here", [], 2, "there is no module mcp_actors.nothing_here"),
        (None, "what-is-this", [], 2, "neither a path"),
        (ONE, "target_file", [], 0, ""),
        (ONE, "target_file.py:nothing", [], 2, "has no nothing; its servers: app"),
        (ONE + "number = 3\n", "target_file.py:number", [], 2, "is a int, not a Server"),
        (ONE + "two = Server('two')\n", "target_file.py", [], 2, "several servers.*:app or :two"),
        ("x = 1\n", "target_file.py", [], 2, "has no Server and no function"),
        (ONE, "target_file.py", ["x"], 2, "takes no ARGS"),
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
    with pytest.raises(CommandFailure, match=says) as caught:
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
