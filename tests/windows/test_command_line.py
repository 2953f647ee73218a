"""The program ``mcp-actors`` with the branches for Windows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .pretended import run_in_windows

PROGRAM = """
import io, json, os, sys
from tests.windows.pretended import pretend
from tests.windows.system import fake_msvcrt
pretend(everything=True, kernel32=lambda: None, msvcrt=fake_msvcrt())
import click
from mcp_actors.cli import main
from mcp_actors.cli.demo.demo import peak_memory
from mcp_actors.cli.target import split_target
from mcp_actors.supervision.platform import join_words, split_line
from mcp_actors.supervision.platform import STOP_SIGNALS
from mcp_actors.shared import shared_state

said = {}
real = sys.stdout
for words in (["serve", "x.py", "--listen", "http://127.0.0.1:0/mcp", "--workers", "2"], ["--version"]):
    sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    sys.stderr = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    try:
        main(words)
    except SystemExit as end:
        sys.stderr.flush()
        said[words[0]] = [end.code, sys.stderr.buffer.getvalue().decode(), sys.stdout.encoding]
sys.stdout = real
os.altsep, os.sep = "/", chr(92)
said["targets"] = [split_target(each) for each in ("C:\\\\x.py", "C:\\\\x.py:app", "D:/x.py", "pkg.mod:app", "pkg.mod")]
os.sep = "/"
said["sqlite"] = repr(shared_state("sqlite:///C:/data/tasks.db"))
said["memory"] = peak_memory()
said["signals"] = [int(each) for each in STOP_SIGNALS]
said["words"] = [split_line('a "b c" C:\\\\d'), join_words(["a", "b c"])]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_in_windows(PROGRAM))
    return found


def test_workers_are_refused_in_one_sentence(said: dict[str, Any]) -> None:
    code, errors, _ = said["serve"]
    assert code == 2
    assert "--workers is for other systems" in errors
    assert "Traceback" not in errors


def test_what_is_piped_can_have_any_character(said: dict[str, Any]) -> None:
    assert said["--version"][0] == 0
    assert said["--version"][2] == "utf-8"


def test_a_drive_is_part_of_a_path(said: dict[str, Any]) -> None:
    assert said["targets"] == [
        ["C:\\x.py", None], ["C:\\x.py", "app"], ["D:/x.py", None], ["pkg.mod", "app"], ["pkg.mod", None],
    ]  # fmt: skip
    assert said["sqlite"] == "SqliteShared('C:/data/tasks.db')"


def test_ctrl_break_ends_a_server_too(said: dict[str, Any]) -> None:
    assert said["signals"] == [2, 15, 21]


def test_commands_are_split_as_programs_of_windows_do(said: dict[str, Any]) -> None:
    assert said["words"] == [["a", "b c", "C:\\d"], 'a "b c"']
    assert said["memory"] is None
