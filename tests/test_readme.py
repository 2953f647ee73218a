"""What the README shows is run as it stands there."""

from __future__ import annotations

import inspect
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_actors
from mcp_transports.http.server import HttpLimits

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SECONDS = 60

Block = tuple[str, str]


def blocks() -> list[Block]:
    """(language, text) of every fenced block, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [(language, text) for language, text in found]


def programs() -> dict[str, str]:
    """The Python blocks by the file name in their first line."""
    return {
        text.partition("\n")[0].removeprefix("# "): text
        for language, text in blocks()
        if language == "python"
    }


def output_after(name: str) -> str:
    """The text block that follows the program ``name``."""
    every = blocks()
    place = next(n for n, (_, text) in enumerate(every) if text.startswith(f"# {name}\n"))
    language, text = every[place + 1]
    assert language == "text"
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    """`python` and `mcp-actors` are those of this environment, and they find this checkout."""
    scripts = str(Path(sys.executable).parent)
    packages = [str(Path(mcp_actors.__file__).parent.parent), str(ROOT / "transports")]
    return {
        **os.environ,
        "PATH": scripts + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(packages),
        "PYTHONWARNINGS": "error",
    }


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_are_there() -> None:
    assert set(programs()) == {"weather.py", "ask.py", "web.py", "embedding.py", "watch.py"}


@pytest.mark.parametrize("name", ["ask.py", "web.py", "embedding.py"])
def test_the_program_prints_what_stands_below_it(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    assert run(["python", name], folder, environment) == output_after(name)


def test_the_first_ten_minutes(folder: Path, environment: dict[str, str]) -> None:
    lines = [line for language, text in blocks() if language == "console" for line in text.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    script = "set -e\n" + "\n".join(line.removeprefix("$ ") for line in lines)
    printed = run(["bash", "-c", script], folder, environment)
    assert "list_tables" in printed
    assert "Momo" in printed
    assert "create table books" in printed.lower()


def test_the_query_that_never_ends_is_cancelled(folder: Path, environment: dict[str, str]) -> None:
    lines = [line for _, text in blocks() for line in text.splitlines()]
    never_ends = next(line for line in lines if line.startswith("mcp-actors call") and "recursive" in line)
    setting = next(line for line in lines if line.startswith("$ export SERVER=")).removeprefix("$ ")
    (folder / "my.db").touch()
    screen, terminal = pty.openpty()  # progress is drawn on terminals only
    process = subprocess.Popen(
        ["bash", "-c", f"{setting}\nexec {never_ends}"], cwd=folder, env=environment, stderr=terminal
    )
    os.close(terminal)
    try:
        seen = b""
        while b"0 rows, 1 s" not in seen:
            seen += os.read(screen, 4096)
        process.send_signal(signal.SIGINT)
        while b"cancelled" not in seen:
            seen += os.read(screen, 4096)
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def test_a_changed_file_is_seen(folder: Path, environment: dict[str, str]) -> None:
    watched = folder / "watched"
    watched.mkdir()
    note = watched / "note.txt"
    note.write_text("one")
    process = subprocess.Popen(
        ["python", "watch.py", str(watched), note.as_uri()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            note.write_text("two")
            assert process.stdout.readline() == f"resource_updated {note.as_uri()}\n"
        finally:
            process.terminate()


def test_the_limits_are_the_defaults() -> None:
    """Every row of the table that names where to change a limit holds that limit's default."""
    table = README.partition("## Limits and defaults")[2].partition("\n## ")[0]
    checked = 0
    for row in re.findall(r"^\|(.*)\|$", table, re.MULTILINE):
        _, shown, where = row.split("|")
        numbers = {float(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", shown)}
        for owner, name in re.findall(r"((?:Http)?Limits)\.(\w+)", where):
            shown_value = getattr({"Limits": mcp_actors.Limits, "HttpLimits": HttpLimits}[owner](), name)
            # Sizes stand there in KiB or MiB.
            assert numbers & {shown_value, shown_value / 2**10, shown_value / 2**20}, name
            checked += 1
        for face in re.findall(r"(?:Client|Server)\((?:\w+=(?:, )?)+\)", where):
            parameters = inspect.signature(getattr(mcp_actors, face.partition("(")[0])).parameters
            for name in re.findall(r"(\w+)=", face):
                assert parameters[name].default in numbers, name
                checked += 1
    assert checked >= 20


def test_the_commands_of_the_front_page_are_those_that_ci_runs() -> None:
    first, second = [text for language, text in blocks() if language == ""][:2]
    assert first == "pip install . && mcp-actors demo\n"
    assert second == "pip install -e '.[test]' && pytest\n"
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "pip install --quiet -e '.[test]'" in ci
    assert ci.index("pytest") < ci.index("pytest -m peers")


def test_links_inside_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in anchors
        elif not target.startswith("http"):
            assert (ROOT / target).exists()
