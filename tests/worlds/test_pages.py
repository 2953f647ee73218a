"""The programs of the pages that are made with packages of others, and the notebook, run where those are."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from interop.installation import Peers
from interop.servers import free_port

from mcp_actors.auth import BearerToken
from mcp_actors.sync import Client
from tests.pages import PAGES, WITH_FRAMEWORKS, blocks, name_in, outputs, programs

from .conftest import PROGRAMS

PATIENCE = 60  # seconds; the slowest of them takes ten
PORT = "8000"
Folder = tuple[Path, dict[str, str]]


@pytest.fixture
def folder(peers: Peers, environment: dict[str, str], tmp_path: Path) -> Folder:
    """All programs of the pages in a folder, and the environment in which commands are those of the frameworks."""
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    # What a program starts is not handed PYTHONPATH, so the interpreter brings it along.
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "python").write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(environment["PYTHONPATH"])} exec {shlex.quote(str(peers.worlds))} "$@"\n'
    )
    (bin / "python").chmod(0o755)
    commands = os.pathsep.join([str(bin), str(peers.worlds.parent), os.environ["PATH"]])
    return tmp_path, {**environment, "PATH": commands, "PYTHONWARNINGS": "default"}


def commands_of(page: str) -> list[str]:
    return [line for language, text in blocks(PAGES[page]) if language == "" for line in text.splitlines()]


SERVED_BY = [
    *commands_of("how-to/asgi.md"),
    *(f"uvicorn {name}:app --port 8000" for name in ("pool", "page", "members")),
]
# Program -> the path of MCP, a call with its text, and a page of the application beside it with its text.
SERVED = {
    "shop": ("/tools/mcp", "price", {"item": "tea"}, "3", "/items", '["cake","tea"]'),
    "pool": ("/tools/mcp", "add", {"title": "Momo"}, "added Momo", "/books", '["Momo"]'),
    "page": ("/mcp", "hello", {"name": "Ada"}, "Hello, Ada!", "/", "a page"),
    "forms": ("/tools/mcp", "hello", {"name": "Ada"}, "Hello, Ada!", "/", "a page"),
    "members": (
        "/tools/mcp",
        "whoami",
        {},
        "You are ada.",
        "/.well-known/oauth-protected-resource/tools/mcp",
        None,
    ),
}


@contextmanager
def running(command: str, folder: Path, environment: dict[str, str], port: str) -> Iterator[None]:
    """The server of the command, until the block ends; then it has to end by itself, and in order."""
    words = shlex.split(command.replace(PORT, port))
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=PATIENCE)
            assert "Traceback" not in said, said
        finally:
            process.kill()


def got(url: str) -> str:
    """The body of the page at ``url``, once there is a server."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert time.monotonic() < end, f"nothing serves {url}"
            time.sleep(0.05)


@pytest.mark.parametrize("command", SERVED_BY)
def test_a_program_of_the_page_is_served(command: str, folder: Folder) -> None:
    place, environment = folder
    name = next(name for name in SERVED if f" {name}:app" in command)
    path, tool, arguments, said, page, shown = SERVED[name]
    port = str(free_port())
    program = place / f"{name}.py"
    program.write_text(program.read_text().replace(PORT, port))
    origin = f"http://127.0.0.1:{port}"
    with running(command, place, environment, port):
        got(f"{origin}{page}")
        auth = BearerToken("ada-token") if name == "members" else None
        with Client(f"{origin}{path}", auth=auth) as client:
            assert client.call_tool(tool, arguments).text == said
        if name == "members":
            assert json.loads(got(f"{origin}{page}"))["resource"] == f"{origin}{path}"
            with Client(f"ws://127.0.0.1:{port}/tools/ws", auth=auth) as client:
                assert client.call_tool(tool, arguments).text == said
        else:
            assert got(f"{origin}{page}") == shown


def test_a_database_in_a_lifespan(folder: Folder, peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    place, environment = folder
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", environment["PATH"])
    with Client(["python", "books.py"]) as client:
        assert client.call_tool("add", {"title": "Momo"}).text == "added Momo"
        assert client.call_tool("titles", returns=list[str]) == ["Momo"]


def test_an_agent_asks_a_server(folder: Folder, peers: Peers) -> None:
    place, environment = folder
    done = subprocess.run(
        ["python", "with_pydantic_ai.py"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == outputs()["with_pydantic_ai.py"]


def cells() -> list[tuple[str, str]]:
    """Every cell of the page of notebooks, and the output that stands below it."""
    found = re.findall(
        r"^```ipython\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", PAGES["how-to/notebooks.md"], re.S | re.M
    )
    return [(cell, output) for cell, output in found]


def test_the_cells_of_the_notebook(folder: Folder, peers: Peers) -> None:
    place, environment = folder
    done = subprocess.run(
        [str(peers.worlds), str(PROGRAMS / "cells.py")],
        cwd=place,
        env=environment,
        input=json.dumps([cell for cell, _ in cells()]),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [output for _, output in cells()]
    assert len(cells()) == 5


# Page -> the interpreter of what it is compared with. Their programs are in blocks that are called `py` and `js`.
THEIRS = {
    "how-to/coming-from-fastmcp.md": lambda peers: peers.fastmcp,
    "how-to/coming-from-python-sdk.md": lambda peers: peers.python,
    "how-to/coming-from-typescript.md": lambda peers: peers.node,
}


THEIR_PROGRAMS = {
    name_in(text).split()[-1]: (page, text, shown)
    for page in THEIRS
    for (language, text), (_, shown) in pairwise(blocks(PAGES[page]))
    if language in ("py", "js")
}


@pytest.mark.parametrize("name", THEIR_PROGRAMS)
def test_their_program_prints_what_is_below_it(name: str, peers: Peers, tmp_path: Path) -> None:
    page, text, shown = THEIR_PROGRAMS[name]
    program = tmp_path / name
    program.write_text(text)
    (tmp_path / "node_modules").symlink_to(peers.modules / "node_modules")
    done = subprocess.run(
        [str(THEIRS[page](peers)), str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


@pytest.mark.parametrize("command", ["mypy", "basedpyright"])
def test_they_are_typed(command: str, folder: Folder, peers: Peers) -> None:
    place, environment = folder
    # A cell is code of a coroutine, as for the kernel.
    together = "\n".join(cell for cell, _ in cells())
    (place / "cells.py").write_text("async def main() -> None:\n" + textwrap.indent(together, "    "))
    sources = environment["PYTHONPATH"].split(os.pathsep)
    settings = {"extraPaths": sources, "typeCheckingMode": "strict"}
    (place / "pyrightconfig.json").write_text(json.dumps(settings))
    words = {
        "mypy": ["mypy", "--strict", "--no-error-summary", "--python-executable", str(peers.worlds)],
        "basedpyright": ["basedpyright", "--pythonpath", str(peers.worlds), "--level", "error"],
    }[command]
    done = subprocess.run(
        [*words, *sorted(WITH_FRAMEWORKS), "cells.py"],
        cwd=place,
        env={**environment, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
