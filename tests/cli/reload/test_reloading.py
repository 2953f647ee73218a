"""``mcp-actors serve --reload``: what becomes of a server when its files change, in every way they do.

``RELOAD_CHANGES`` makes it more changes in the storm.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from mcp_actors import Client, McpError
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.reload import Reloading, reloading
from mcp_actors.cli.reload.reloading import OwnModules
from mcp_actors.cli.target import load_server
from tests.cli.conftest import LIMIT, Ran, Started

pytestmark = pytest.mark.slow

__all__ = ["SERVER", "Project"]


# -- A folder with a server that is served with ``--reload``, in memory, and changed by the tests --------

LIMIT_PROJECTS = 30  # seconds: nothing here takes a tenth of it

SERVER = """
import helper
from mcp_actors import Server

server = Server("project", version=str(helper.NUMBER))

@server.tool
async def number() -> int:
    return helper.NUMBER
"""


class Project:
    """A folder with ``main.py``, which has a server, and ``helper.py``, which has its number."""

    def __init__(self, folder: Path, helper: str = "helper") -> None:
        self.folder = folder
        self.helper = f"{helper}.py"
        self.said: list[str] = []
        self._heard = trio.Event()
        self.write("main.py", SERVER.replace("helper", helper))
        self.write(self.helper, "NUMBER = 1\n")

    def write(self, name: str, text: str) -> None:
        """Writes a file in place."""
        (self.folder / name).write_text(text)

    def put(self, name: str, text: str) -> None:
        """Puts a new file in the place of another one, as most editors do."""
        new = self.folder / f".{name}.new"
        new.write_text(text)
        os.replace(new, self.folder / name)

    @asynccontextmanager
    async def served(
        self, *folders: str, target: str | None = None, bound: float = LIMIT_PROJECTS
    ) -> AsyncIterator[tuple[Client, Reloading]]:
        """Serves it, with a client that has a session."""
        path = str(self.folder / "main.py") if target is None else target
        token = trio.lowlevel.current_trio_token()

        def tell(text: str) -> None:
            trio.from_thread.run_sync(self._tell, text, trio_token=token)

        first = await trio.to_thread.run_sync(load_server, path, [])
        reloading = Reloading(
            path, [], first, folders, lambda server: server.info.version, bound=bound, tell=tell
        )
        transport: Any = client_transport("memory:")
        with trio.fail_after(LIMIT_PROJECTS):
            async with trio.open_nursery() as nursery:
                await nursery.start(reloading.server.serve, transport)
                async with Client(transport) as client:
                    yield client, reloading
                reloading.server.stop()

    def _tell(self, text: str) -> None:
        self.said.append(text)
        self._heard.set()

    async def reloads(self, name: str, text: str) -> None:
        """Puts a file until it is served: an import whose bound is a part of a second may need more."""
        while True:
            self.put(name, text)
            if "reloaded in" in await self.hears("reloaded"):
                return

    async def hears(self, text: str) -> str:
        """Waits until a line with ``text`` is said, after all that was waited for before, and returns it."""
        while True:
            while self.said:
                said = self.said.pop(0)
                if text in said:
                    return said
            self._heard = trio.Event()
            await self._heard.wait()


async def number_of(client: Client) -> Any:
    return (await client.call_tool("number")).structured_content


@contextmanager
def modules_kept() -> Iterator[None]:
    """Takes back what importing changes in this process, and lets go what waits for the event ``held``."""
    held = threading.Event()
    sys.modules["held"] = held  # type: ignore[assignment]
    modules, path, writes = dict(sys.modules), list(sys.path), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        held.set()
        for thread in threading.enumerate():
            if thread.name == "mcp-actors import":
                thread.join()
        for name in sys.modules.keys() - modules.keys():
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith("/tmp"):
                del sys.modules[name]
        sys.path[:] = path
        sys.dont_write_bytecode = writes


# -- What becomes of the server when its files change ----------------------------------------------------

CHANGES = int(os.environ.get("RELOAD_CHANGES", "100"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with modules_kept():
        yield Project(tmp_path)


@pytest.mark.parametrize("how", ["in place", "renamed over"])
async def test_a_change_is_served_to_the_sessions_that_there_are(project: Project, how: str) -> None:
    async with project.served() as (client, reloading):
        assert await number_of(client) == 1
        for number in (2, 3):
            change = project.write if how == "in place" else project.put
            change("helper.py", f"NUMBER = {number}\n")
            assert f": {number}" in await project.hears("reloaded")
            assert await number_of(client) == number
        assert len(reloading.server.tree().sessions) == 1


BROKEN = {
    "NUMBER = (\n": "SyntaxError",
    "NUMBER = 1 / 0\n": "ZeroDivisionError: division by zero",
    "import sys\nsys.exit(3)\n": "SystemExit: 3",
    "raise KeyboardInterrupt\n": "KeyboardInterrupt",
    "class Odd(BaseException): ...\nraise Odd('\\x1b[31mred')\n": "Odd: \\x1b[31mred",
    "raise ExceptionGroup('several', [ValueError('one')])\n": "ValueError: one",
    "": "AttributeError",
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_an_error_is_shown_with_the_own_frames_and_waited_out(project: Project, broken: str) -> None:
    async with project.served() as (client, _):
        project.put("helper.py", broken)
        block = await project.hears("was not reloaded")
        assert BROKEN[broken] in block
        assert "helper.py" in block or "main.py" in block
        assert "target.py" not in block
        assert "importlib" not in block
        assert "serves on" in block.splitlines()[-1]
        assert "\x1b" not in block
        assert await number_of(client) == 1
        # What the old code imports later is what it was.
        assert sys.modules["helper"].NUMBER == 1
        project.put("helper.py", "NUMBER = 2\n")
        await project.hears("reloaded in")
        assert await number_of(client) == 2


async def test_a_target_without_a_server_is_an_error_like_any_other(project: Project) -> None:
    async with project.served() as (client, _):
        project.put("main.py", "import helper\n")
        assert "has no Server" in await project.hears("was not reloaded")
        assert await number_of(client) == 1
        project.put("main.py", SERVER)
        await project.hears("reloaded in")


async def test_a_file_that_goes_and_comes_back(project: Project) -> None:
    async with project.served() as (client, _):
        for name in ("main.py", "helper.py"):
            (project.folder / name).rename(project.folder / "elsewhere")
            await project.hears("was not reloaded")
            assert await number_of(client) == 1
            (project.folder / "elsewhere").rename(project.folder / name)
            await project.hears("reloaded in")
            assert await number_of(client) == 1


async def test_a_module_that_was_missing_mends_it_when_it_comes(project: Project) -> None:
    async with project.served() as (client, _):
        project.put("helper.py", "from more import NUMBER\n")
        assert "No module named 'more'" in await project.hears("was not reloaded")
        project.put("more.py", "NUMBER = 5\n")
        await project.hears("reloaded in")
        assert await number_of(client) == 5
        project.put("more.py", "NUMBER = 6\n")
        await project.hears("reloaded in")
        assert await number_of(client) == 6


HANGING = {
    "computing": "while True: pass\n",
    "waiting": "import held\nheld.wait(60)\n",
    "stubborn": "while True:\n    try:\n        while True: pass\n    except Exception: pass\n",
}


@pytest.mark.parametrize("hanging", HANGING)
async def test_an_import_that_never_ends_is_given_up(project: Project, hanging: str) -> None:
    async with project.served(bound=0.2) as (client, _):
        for _ in range(2):
            project.put("helper.py", HANGING[hanging])
            assert "was not imported within 0.2 s" in await project.hears("was not reloaded")
            assert await number_of(client) == 1
        await project.reloads("helper.py", "NUMBER = 2\n")
        assert await number_of(client) == 2
        assert sys.modules["helper"].NUMBER == 2


async def test_a_change_gives_up_an_import_that_has_had_its_time(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_actors.cli.reload.reloading.PATIENCE", 0.1)
    async with project.served() as (client, _):
        project.put(
            "helper.py",
            f"import pathlib\npathlib.Path({str(project.folder / 'begun')!r}).touch()\nwhile True: pass\n",
        )
        while not (project.folder / "begun").exists():  # noqa: ASYNC110 - a file is no event
            await trio.sleep(0.01)
        project.put("helper.py", "NUMBER = 2\n")
        await project.hears("reloaded in")
        assert await number_of(client) == 2


async def test_after_too_many_imports_that_wait_for_ever_it_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "MOST_GIVEN_UP", 1)
    async with project.served(bound=0.1) as (client, _):
        project.put("helper.py", "import held\nheld.wait(60)\n")
        await project.hears("was not imported within")
        project.put("helper.py", "NUMBER = 2\n")
        assert "start mcp-actors again" in await project.hears("was not reloaded")
        assert await number_of(client) == 1


async def test_an_import_that_ends_late_takes_nothing_away(project: Project) -> None:
    async with project.served(bound=0.1) as (client, _):
        project.put("helper.py", "import held\nheld.wait(60)\nNUMBER = 7\n")
        await project.hears("was not imported within")
        [thread] = [each for each in threading.enumerate() if each.name == "mcp-actors import"]
        await project.reloads("helper.py", "NUMBER = 2\n")
        sys.modules["held"].set()
        await trio.to_thread.run_sync(thread.join)
        while "helper" not in sys.modules:  # noqa: ASYNC110 - nothing tells of it
            await trio.sleep(0.01)
        assert sys.modules["helper"].NUMBER == 2
        assert await number_of(client) == 2


async def test_of_a_storm_of_changes_the_last_one_is_served(project: Project) -> None:
    def storm() -> None:
        for number in range(2, CHANGES + 2):
            project.put("helper.py", f"NUMBER = {number}\n" if number % 3 else "NUMBER = (\n")
        project.put("helper.py", "NUMBER = 0\n")

    async with project.served() as (client, _), trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, storm)
        while await number_of(client) != 0:  # noqa: ASYNC110 - several reloads may come before
            await trio.sleep(0.01)
        # Many changes are one reload.
        assert len(project.said) < CHANGES / 2


async def test_a_change_in_a_named_folder_counts_whatever_it_is(project: Project) -> None:
    data = project.folder / "data"
    (data / "below").mkdir(parents=True)
    (data / "below" / "number.txt").write_text("1")
    text = f"import pathlib\nNUMBER = int(pathlib.Path({str(data / 'below' / 'number.txt')!r}).read_text())\n"
    project.write("helper.py", text)
    async with project.served(str(data)) as (client, _):
        while await number_of(client) != 2:
            # Until the folder is watched, changes of it are not seen.
            (data / "below" / "number.txt").write_text("2")
            await trio.sleep(0.05)
        assert "reloaded" in await project.hears("reloaded")


MODULES = """
from mcp_actors import Server

server = Server("project", capabilities=["tools"])
server.add_modules({folder!r})
"""


NUMBER_OF_MODULES = """
from mcp_actors import tool
from ._numbers import NUMBER

@tool
async def number() -> int:
    return NUMBER
"""


async def test_a_file_of_a_folder_of_modules_is_a_file_of_the_server(project: Project) -> None:
    folder = project.folder / "tools"
    folder.mkdir()
    project.write("tools/_numbers.py", "NUMBER = 1\n")
    project.write("tools/number.py", NUMBER_OF_MODULES)
    project.write("main.py", MODULES.format(folder=str(folder)))
    async with project.served(str(folder)) as (client, _):
        # Both who watch the folder may see one change.
        for name, text, number in (
            ("tools/_numbers.py", "NUMBER = 22\n", 22),
            ("tools/number.py", NUMBER_OF_MODULES.replace("return NUMBER", "return NUMBER + 1"), 23),
        ):
            project.write(name, text)
            while await number_of(client) != number:
                await project.hears("reloaded in")
        project.write("tools/number.py", "number = 1 / 0\n")
        assert "ZeroDivisionError" in await project.hears("was not reloaded")
        assert await number_of(client) == 23
        project.write("tools/number.py", NUMBER_OF_MODULES)
        while await number_of(client) != 22:
            await project.hears("reloaded in")
        project.write("tools/more.py", NUMBER_OF_MODULES)
        while [tool.name async for tool in client.tools()] != ["more_number", "number"]:
            await project.hears("reloaded in")


async def test_what_the_file_prints_and_runs_is_no_matter(project: Project) -> None:
    async with project.served() as (client, _):
        project.put("main.py", f"{SERVER}\nprint('printed')\nserver.run()\n")
        await project.hears("reloaded in")
        assert await number_of(client) == 1


async def test_a_package_is_reloaded_with_all_its_modules(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = project.folder / "reloaded_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("NUMBER = 1\n")
    (package / "main.py").write_text(
        SERVER.replace("import helper", "from reloaded_package import deep as helper")
    )
    monkeypatch.syspath_prepend(str(project.folder))
    async with project.served(target="reloaded_package.main:server") as (client, _):
        (package / "deep.py").write_text("NUMBER = 2\n")
        await project.hears("reloaded in")
        assert await number_of(client) == 2


async def test_a_lifespan_that_fails_leaves_the_modules_of_the_last_good_one(project: Project) -> None:
    failing = """
from contextlib import asynccontextmanager
@asynccontextmanager
async def lifespan(server):
    raise OSError("no such database")
    yield
"""
    async with project.served() as (client, _):
        project.put("main.py", failing + SERVER.replace("version=", "lifespan=lifespan, version="))
        block = await project.hears("was not reloaded")
        assert "OSError: no such database" in block
        assert "main.py" in block
        assert "replacement.py" not in block
        assert await number_of(client) == 1
        project.put("main.py", SERVER)
        await project.hears("reloaded in")


async def test_a_tool_that_is_gone_is_unknown(project: Project) -> None:
    async with project.served() as (client, _):
        project.put("main.py", SERVER.replace("async def number", "async def other"))
        await project.hears("reloaded in")
        with pytest.raises(McpError, match="unknown tool"):
            await number_of(client)


# -- Which modules are the user's own, and imported again ------------------------------------------------


def module(name: str, file: Path | None) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = None if file is None else str(file)
    return made


@pytest.mark.parametrize(
    ("name", "file", "own"),
    [
        ("near", "near.py", True),
        ("deep", "below/more/deep.py", True),
        ("compiled", "compiled.so", False),
        ("installed", ".venv/lib/python3.11/site-packages/installed.py", False),
        ("debian", "dist-packages/debian.py", False),
        ("environment", "environment/lib/environment.py", False),
        ("elsewhere", "../elsewhere.py", False),
        ("mcp_actors.stranger", "mcp_actors/stranger.py", False),
        ("mcp_transports", "transports/mcp_transports/__init__.py", False),
        ("mcp_actors.examples.own", "mcp_actors/examples/own.py", True),
        ("__main__", "main.py", False),
        ("builtin", None, False),
    ],
)
def test_what_is_imported_again(
    name: str, file: str | None, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = (tmp_path / "project").resolve()
    folder.mkdir()
    monkeypatch.setattr(sys, "prefix", str(folder / "environment"))
    path = None if file is None else Path(str((folder / file).resolve()))
    monkeypatch.setitem(sys.modules, name, module(name, path))
    modules = OwnModules(str(folder / "target.py"))
    assert (name in modules.loaded()) == own


def test_what_was_taken_out_comes_back_in_the_place_of_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, other = (module("kept", tmp_path / "kept.py") for _ in range(3))
    monkeypatch.setitem(sys.modules, "kept", old)
    modules = OwnModules(str(tmp_path / "target.py"))
    taken = modules.take_out()
    assert taken == {"kept": old}
    assert "kept" not in sys.modules
    sys.modules["kept"] = new
    monkeypatch.setitem(sys.modules, "added", other)
    modules.put_back(taken)
    assert sys.modules["kept"] is old
    assert "added" not in sys.modules


@pytest.mark.parametrize(
    ("target", "folder"),
    [
        ("mcp_actors.examples.sqlite:make_server", "mcp_actors/examples"),
        ("tests.cli.served", "tests"),
        ("tests/cli/served.py:server", "tests/cli"),
    ],
)
def test_the_folder_is_that_of_the_file_or_of_the_first_package(
    target: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    assert OwnModules(target).root == root / folder


# -- ``mcp-actors serve --reload`` as a process, over stdio ----------------------------------------------

SERVER_SERVE_RELOAD = """
import sys
from contextlib import asynccontextmanager
from mcp_actors import Server

print("printed at the import of VERSION")

@asynccontextmanager
async def lifespan(server):
    yield "VERSION"
    print("the end of VERSION", file=sys.stderr)

server = Server("reloaded", version="VERSION", lifespan=lifespan)

@server.tool
def VERSION() -> str:
    print("printed by the tool of VERSION")
    return "VERSION"
"""


def test_a_session_over_stdio_outlives_its_code_and_nothing_else_reaches_the_wire(
    started: Started, tmp_path: Path
) -> None:
    target = tmp_path / "target.py"
    target.write_text(SERVER_SERVE_RELOAD.replace("VERSION", "first"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("serve", "target.py", "--reload", cwd=tmp_path, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None

        def send(**message: Any) -> None:
            assert process.stdin is not None
            print(json.dumps({"jsonrpc": "2.0", **message}), file=process.stdin, flush=True)

        def receive() -> dict[str, Any]:
            assert process.stdout is not None
            message: dict[str, Any] = json.loads(process.stdout.readline())
            return message

        client = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"},
        }
        send(id=1, method="initialize", params=client)
        assert receive()["result"]["serverInfo"]["version"] == "first"
        send(method="notifications/initialized")
        send(id=2, method="tools/call", params={"name": "first"})
        assert receive()["result"]["content"][0]["text"] == "first"
        target.write_text(SERVER_SERVE_RELOAD.replace("VERSION", "second"))
        assert receive()["method"] == "notifications/tools/list_changed"
        send(id=3, method="tools/call", params={"name": "second"})
        assert receive()["result"]["content"][0]["text"] == "second"
        told = ""
        while "reloaded in" not in told:
            told += process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
        assert process.stdout.read() == ""
        told += process.stderr.read()
    for each in (
        "printed at the import of first",
        "printed by the tool of second",
        "the end of first",
        "the end of second",
        ": reloaded second: 1 tool",
    ):
        assert each in told
    assert not list(tmp_path.glob("__pycache__"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--reload", "--workers", "2", "--listen", "http://127.0.0.1:0/mcp"], "--reload is for one process"),
        (["--reload-dir", "."], "--reload-dir needs --reload"),
        (["--reload", "--reload-dir", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_words_that_do_not_fit_together(mcp: Callable[..., Ran], words: list[str], says: str) -> None:
    result = mcp("serve", "target.py", *words)
    assert result.returncode == 2
    assert says in result.stderr


def test_a_target_that_is_broken_from_the_start_ends_the_command(
    mcp: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "target.py").write_text("1 / 0\n")
    result = mcp("serve", "target.py", "--reload")
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr
