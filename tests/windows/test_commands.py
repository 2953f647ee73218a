"""The command of a child on Windows: what is found, batch files, and the environment."""

from __future__ import annotations

import shutil

import pytest

from mcp_transports.stdio.windows import starting
from mcp_transports.stdio.windows.starting import full_environment, words_to_start

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
        {"Path": "ours", "ComSpec": r"C:\Windows\cmd.exe", "SystemRoot": r"C:\Windows"},
    )
    return searched


def test_a_program_is_started_itself() -> None:
    assert words_to_start(["node", "a b", 'say "hi"', "100%"], None) == [
        PROGRAMS["node"],
        "a b",
        'say "hi"',
        "100%",
    ]
    assert words_to_start(["missing", "x"], None) == ["missing", "x"]


def test_a_batch_file_is_run_by_its_interpreter_with_everything_between_marks() -> None:
    assert words_to_start(
        ["npx", "-y", "mcp-remote", "https://x/?a=1&b=2", "C:\\dir\\", "", "(a|b)^!"], None
    ) == (
        r'C:\Windows\cmd.exe /d /e:on /v:off /s /c ""C:\Program Files\node\npx.CMD" "-y" "mcp-remote"'
        r' "https://x/?a=1&b=2" "C:\dir\\" "" "(a|b)^!""'
    )


@pytest.mark.parametrize("argument", ['{"a": 1}', '" & calc & "', "%PATH%", "100%", "a\nb", "a\r", "a\0"])
def test_a_batch_file_gets_no_argument_that_could_run_another_command(argument: str) -> None:
    with pytest.raises(ValueError, match="it is a batch file, and no argument of one can have"):
        words_to_start(["npx", argument], None)


def test_the_path_of_the_child_is_searched(windows: list[str | None]) -> None:
    words_to_start(["npx"], None)
    words_to_start(["npx"], {"PATH": "theirs"})
    words_to_start(["npx"], {})
    assert windows == ["ours", "theirs", None]


def test_a_child_gets_the_variable_that_no_program_can_do_without() -> None:
    assert full_environment({"A": "1"}) == {"A": "1", "SYSTEMROOT": r"C:\Windows"}
    assert full_environment({"systemroot": "D:"}) == {"systemroot": "D:"}
