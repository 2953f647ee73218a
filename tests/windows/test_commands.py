"""The command of a child on Windows: what is found, batch files, and the environment."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.supervision.platform import join_words, split_line, split_windows_line
from mcp_transports.stdio.environment import child_environment
from mcp_transports.stdio.windows import starting
from mcp_transports.stdio.windows.starting import words_to_start

from .pretended import run_in_windows

PROGRAMS = {"node": r"C:\node\node.EXE", "npx": r"C:\Program Files\node\npx.CMD", "tool": r"C:\tool.bat"}


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Returns the paths that were searched."""
    searched: list[str | None] = []

    def which(name: str, *, path: str | None = None) -> str | None:
        searched.append(path)
        return PROGRAMS.get(name)

    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setattr(
        starting.os,
        "environ",
        {"Path": "ours", "ComSpec": r"C:\Windows\cmd.exe", "SystemRoot": r"C:\Windows", "TOKEN": "x"},
    )
    return searched


def test_a_program_is_started_itself() -> None:
    assert words_to_start(["node", "a b", 'say "hi"', "100%"], {}) == [
        PROGRAMS["node"],
        "a b",
        'say "hi"',
        "100%",
    ]
    assert words_to_start(["missing", "x"], {}) == ["missing", "x"]


def test_a_batch_file_is_run_by_its_interpreter_with_everything_between_marks() -> None:
    assert words_to_start(
        ["npx", "-y", "mcp-remote", "https://x/?a=1&b=2", "C:\\dir\\", "", "(a|b)^!"], {}
    ) == (
        r'C:\Windows\cmd.exe /d /e:on /v:off /s /c ""C:\Program Files\node\npx.CMD" "-y" "mcp-remote"'
        r' "https://x/?a=1&b=2" "C:\dir\\" "" "(a|b)^!""'
    )


@pytest.mark.parametrize("argument", ['{"a": 1}', '" & calc & "', "%PATH%", "100%", "a\nb", "a\r", "a\0"])
def test_a_batch_file_gets_no_argument_that_could_run_another_command(argument: str) -> None:
    with pytest.raises(ValueError, match="it is a batch file, and no argument of one can have"):
        words_to_start(["npx", argument], {})


def test_the_path_of_the_child_is_searched(windows: list[str | None]) -> None:
    words_to_start(["npx"], {"Path": "theirs"})
    words_to_start(["npx"], {})
    assert windows == ["theirs", None]


@pytest.mark.parametrize("env", [None, {}, {"A": "1"}, {"path": "theirs", "SYSTEMROOT": "D:"}])
def test_a_child_gets_what_no_program_can_do_without(env: dict[str, str | None] | None) -> None:
    given = child_environment(env, windows=True)
    names = [each.upper() for each in given]
    assert sorted({"PATH", "COMSPEC", "SYSTEMROOT", *map(str.upper, env or {})}) == sorted(names)
    assert (env or {}).items() <= given.items()


# -- The program ``mcp-actors`` with the branches for Windows --------------------------------------------

PROGRAM = """
import io, json, os, sys
from tests.windows.pretended import pretend
from tests.windows.system import fake_msvcrt
pretend(everything=True, kernel32=lambda: None, msvcrt=fake_msvcrt())
import click
from pathlib import Path
from mcp_actors import Client
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
notes, program = Path(sys.argv[1], "notes.txt"), Path(sys.argv[1], "SERVER.CMD")
for path in (notes, program):
    path.touch(0o755)
try:
    said["notes"] = repr(Client(notes))
except ValueError as error:
    said["notes"] = str(error)
said["program"] = repr(Client(program))
said["words"] = [split_line('a "b c" C:\\\\d'), join_words(["a", "b c"])]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_in_windows(PROGRAM, str(tmp_path_factory.mktemp("files"))))
    return found


@pytest.mark.slow
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


def test_a_file_that_is_no_program_is_refused(said: dict[str, Any]) -> None:
    # Every file may be executed there.
    assert said["notes"].endswith("is neither a .py file nor executable: write the command as a list")
    assert "SERVER.CMD" in said["program"]


def test_ctrl_break_ends_a_server_too(said: dict[str, Any]) -> None:
    assert said["signals"] == [2, 15, 21]


def test_commands_are_split_as_programs_of_windows_do(said: dict[str, Any]) -> None:
    assert said["words"] == [["a", "b c", "C:\\d"], 'a "b c"']
    assert said["memory"] is None


# -- Commands as one line, by the rules of Windows -------------------------------------------------------

WORDS = st.lists(st.text(st.sampled_from('ab \\"\t\n%&é'), max_size=8), max_size=5)


@given(WORDS)
def test_the_words_of_a_line_are_those_it_was_made_of(words: list[str]) -> None:
    # A new line needs no quotation for Python, although it separates words; it cannot be in a line that is typed.
    words = [each.replace("\n", "x") for each in words]
    assert split_windows_line(subprocess.list2cmdline(words)) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r"python C:\servers\weather.py", ["python", r"C:\servers\weather.py"]),
        (r'"C:\Program Files\x.exe" -a "b c" ""', [r"C:\Program Files\x.exe", "-a", "b c", ""]),
        (r"a\\\b d\"e f\\\"g", [r"a\\\b", 'd"e', r"f\"g"]),
        (r'a\\"b c" d', [r"a\b c", "d"]),
        ('"a""b"', ['a"b']),
        ("  \t ", []),
        ("x\\", ["x\\"]),
    ],
)
def test_examples_of_the_rules(line: str, words: list[str]) -> None:
    assert split_windows_line(line) == words


def test_a_mark_without_another_is_refused() -> None:
    with pytest.raises(ValueError, match="No closing quotation"):
        split_windows_line('python "a')


def test_elsewhere_the_rules_are_those_of_posix() -> None:
    words = ["python", "a b", "c\\d", "'"]
    assert join_words(words) == shlex.join(words)
    assert split_line(join_words(words)) == words
