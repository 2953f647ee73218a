"""The guide to writing a transport is run as it stands there."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import mcp_actors
import mcp_actors.examples.transports
from mcp_actors.abc import Frame
from mcp_actors.abc.discovery import client_transport

ROOT = Path(mcp_actors.__file__).parent.parent
FOLDER = Path(mcp_actors.examples.transports.__file__).parent
GUIDE = (FOLDER / "README.md").read_text()
SECONDS = 120
# The histograms of the benchmarks declare structures in a way that CPython 3.14 warns of.
WARNINGS = "error,ignore:Due to '_pack_'"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def programs() -> dict[str, str]:
    """The Python blocks by the file name in their first line."""
    return {text.partition("\n")[0].removeprefix("# "): text for text in blocks("python")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "transports")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": WARNINGS}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_programs_are_there() -> None:
    assert set(programs()) == {"packets.py", "meet.py", "exchange.py", "test_packets.py"}


def test_the_transport_carries_both_eras(folder: Path) -> None:
    assert run(folder, "meet.py") == blocks("text")[0]


def test_the_transport_passes_the_kit(folder: Path) -> None:
    assert "1 passed" in run(
        folder, "-m", "pytest", "-p", "no:asyncio", "-o", "trio_mode=true", "test_packets.py"
    )


def test_the_transport_is_as_small_as_promised() -> None:
    code = [line for line in programs()["packets.py"].splitlines() if line.strip()]
    assert len(code) <= 60


async def test_the_heart_of_an_exchange_binding_answers(folder: Path) -> None:
    answer = runpy.run_path(str(folder / "exchange.py"))["answer"]
    done: list[Any] = []

    class Handler:
        def sort(self, frame: Frame) -> Any:
            return type("Arrival", (), {"refusal": Frame(b"no") if frame.data == b"bad" else None})

        async def exchange(self, arrival: Any, outlet: Any) -> None:
            outlet.post(Frame(b"yes", last=True))

    class Outlet:
        def post(self, frame: Frame) -> None:
            done.append(frame.data)

    await answer(Handler(), b"good", {}, Outlet())
    await answer(Handler(), b"bad", {}, Outlet())

    assert done == [b"yes", b"no"]


def test_the_benchmark_takes_the_transport(folder: Path) -> None:
    """The guide's own command, with less of everything."""
    command = next(line for line in GUIDE.splitlines() if line.startswith("python -m benchmarks run"))
    python, *arguments = shlex.split(command)
    assert python == "python"
    less = ["--rounds", "1", "--seconds", "0.1", "--peers", "ours", "--eras", "modern", "-o", "out.json"]
    run(folder, *arguments, *less)
    rows = (folder / "out.md").read_text()
    assert rows.count("| packets | modern |") > 5
    assert "## No figure" not in rows


def test_the_entry_point_is_one() -> None:
    [text] = blocks("toml")
    groups = tomllib.loads(text)["project"]["entry-points"]
    module, _, name = groups["mcp_actors.transports"]["packets"].partition(":")
    assert f"def {name}(url)" in programs()[f"{module}.py"]


def test_the_examples_are_where_the_guide_says() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", GUIDE)
    assert targets
    assert all((FOLDER / target).is_file() for target in targets)


@pytest.mark.parametrize(("module", "url"), [("http2", "h2stdio:cat"), ("broker", "broker:work")])
def test_the_examples_register_themselves(module: str, url: str) -> None:
    pytest.importorskip(f"mcp_actors.examples.transports.{module}")
    assert client_transport(url)
