"""``mcp-actors serve --reload``: what becomes of a server when its files change, in every way they do.

``RELOAD_CHANGES`` makes it more changes in the storm.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from mcp_actors import McpError
from mcp_actors.cli.reload import reloading

from .projects import SERVER, Project, modules_kept, number_of

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
        project.put("helper.py", "NUMBER = 2\n")
        await project.hears("reloaded in")
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
        project.put("helper.py", "NUMBER = 2\n")
        await project.hears("reloaded in")
        [thread] = [each for each in threading.enumerate() if each.name == "mcp-actors import"]
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
