"""Changes of a client's file: what is written, what is kept, what is undone, and what is left alone."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from mcp_actors.cli.failures import CommandFailure, WrongUsage
from mcp_actors.cli.install import config_file
from mcp_actors.cli.install.change import Configuration, Manner, undo
from mcp_actors.cli.install.config_file import (
    KEPT,
    ChangedMeanwhile,
    FileHistory,
    Untouchable,
    open_config,
    state_folder,
)
from mcp_actors.cli.install.config_text import ConfigText
from mcp_actors.cli.install.install import with_our_entry
from mcp_transports.auth.file_store import FileLock

OURS = {"command": "/bin/python", "args": ["-P", "-m", "mcp_actors", "serve", "weather.py"]}
THEIRS = {"command": "npx", "args": ["theirs"]}
YES = Manner(yes=True)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mcp.json"


def configuration(path: Path, client: str = "cursor") -> Configuration:
    return Configuration(client, str(path))


def put(path: Path, entry: dict[str, Any] = OURS, *, name: str = "weather", client: str = "cursor") -> bool:
    def edit(file: Configuration, config: ConfigText) -> str:
        return file.with_entry(config, name, entry)

    return configuration(path, client).change(name, edit, YES)


def copies(path: Path) -> list[bytes]:
    folder = FileHistory(os.path.realpath(path))._folder
    return [each.read_bytes() for each in sorted(folder.glob("*.copy"))]


def servers(path: Path) -> Any:
    return json.loads(path.read_text())["mcpServers"]


def test_a_copy_is_kept_and_undo_brings_back_each_byte(path: Path) -> None:
    before = b'\xef\xbb\xbf{"mcpServers" : {"theirs":{"command":"npx","args":["theirs"]} } }\r\n\r\n'
    path.write_bytes(before)
    assert put(path)
    assert path.read_bytes().startswith(b"\xef\xbb\xbf{")
    assert json.loads(path.read_text("utf-8-sig"))["mcpServers"] == {"theirs": THEIRS, "weather": OURS}
    assert copies(path) == [before]
    assert undo(configuration(path), YES)
    assert path.read_bytes() == before
    assert copies(path) == []


def test_a_file_that_was_not_there_comes_and_goes(path: Path) -> None:
    assert put(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert servers(path) == {"weather": OURS}
    assert undo(configuration(path), YES)
    assert not path.exists()


def test_an_empty_file_counts_as_one_without_entries(path: Path) -> None:
    path.write_bytes(b"")
    assert put(path)
    assert servers(path) == {"weather": OURS}
    assert undo(configuration(path), YES)
    assert path.read_bytes() == b""


def test_undo_leaves_what_others_have_changed_since(path: Path) -> None:
    path.write_text(json.dumps({"mcpServers": {"theirs": THEIRS}}))
    put(path)
    value = json.loads(path.read_text())
    value["mcpServers"]["later"] = THEIRS
    value["theme"] = "dark"
    path.write_text(json.dumps(value, indent=3))
    assert undo(configuration(path), YES)
    assert json.loads(path.read_text()) == {
        "mcpServers": {"theirs": THEIRS, "later": THEIRS},
        "theme": "dark",
    }


def test_undo_puts_back_the_entry_that_was_replaced(path: Path) -> None:
    older = OURS | {"env": {"A": "1"}}
    path.write_text(json.dumps({"mcpServers": {"weather": older}}))
    put(path)
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"theme": 1}))
    assert undo(configuration(path), YES)
    assert json.loads(path.read_text()) == {"mcpServers": {"weather": older}, "theme": 1}


@pytest.mark.parametrize("edited", [OURS | {"disabled": True}, None])
def test_undo_does_not_touch_an_entry_that_was_edited_since(path: Path, edited: Any) -> None:
    path.write_text("{}")
    put(path)
    path.write_text(json.dumps({"mcpServers": {"weather": edited} if edited else {}}))
    before = path.read_bytes()
    with pytest.raises(
        CommandFailure, match=r"weather was edited since; undo that by hand, with the copy .*copy"
    ):
        undo(configuration(path), YES)
    assert path.read_bytes() == before


def test_changes_are_undone_one_after_the_other(path: Path) -> None:
    put(path, name="one")
    first = path.read_bytes()
    put(path, name="two")
    undo(configuration(path), YES)
    assert path.read_bytes() == first
    undo(configuration(path), YES)
    assert not path.exists()
    with pytest.raises(CommandFailure, match="no change of it is kept"):
        undo(configuration(path), YES)


def test_a_change_that_was_undone_by_hand_is_passed_over(path: Path) -> None:
    path.write_text("{}")
    put(path, name="one")
    first = path.read_bytes()
    put(path, name="two")
    path.write_bytes(first)
    assert undo(configuration(path), YES)
    assert path.read_text() == "{}"


def test_undo_of_a_file_that_was_damaged_since_leaves_it(path: Path) -> None:
    put(path)
    path.write_text('{"mcpServers": {')
    with pytest.raises(CommandFailure, match="is no JSON that Cursor reads"):
        undo(configuration(path), YES)
    assert path.read_text() == '{"mcpServers": {'


def test_a_damaged_record_is_said(path: Path) -> None:
    put(path)
    (record,) = FileHistory(str(path))._folder.glob("*.json")
    record.write_text('{"name": 1}')
    with pytest.raises(CommandFailure, match="is damaged, so that nothing can be undone by it"):
        undo(configuration(path), YES)
    assert servers(path) == {"weather": OURS}


def test_few_copies_are_kept_and_nobody_else_may_read_them(path: Path) -> None:
    for number in range(KEPT + 3):
        put(path, name=f"n{number}")
    folder = FileHistory(str(path))._folder
    # The first change had no file to copy.
    assert len(copies(path)) == len(list(folder.glob("*.json"))) == KEPT
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_symbolic_link_stays_and_its_file_keeps_its_rights(path: Path, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    real = dotfiles / "mcp.json"
    real.write_text("{}")
    real.chmod(0o640)
    path.symlink_to(real)
    put(path)
    assert path.is_symlink()
    assert servers(real) == {"weather": OURS}
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    undo(configuration(path), YES)
    assert path.is_symlink()
    assert real.read_text() == "{}"
    assert sorted(each.name for each in dotfiles.iterdir()) == ["mcp.json"]


def test_a_link_to_a_file_that_is_not_there_makes_that_file(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "real.json")
    put(path)
    assert path.is_symlink()
    assert servers(tmp_path / "real.json") == {"weather": OURS}


def read_only(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0o444)


def several_names(path: Path) -> None:
    path.write_text("{}")
    os.link(path, path.with_name("other"))


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def socket_of_that_name(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(config_file.MAX_CONFIG_BYTES + 1)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_bytes(b'{"a": "\xff"}'), "it is not UTF-8 .byte 7."),
        (lambda path: path.write_bytes('{"a": 1}'.encode("utf-16")), "it is not UTF-8"),
        (lambda path: path.write_text('{"a": 1'), "line 1, column 8: the text ends too early"),
        (
            lambda path: path.write_text('{"a": 1, // c\n"b": 2}'),
            "there is a comment, which this client does not",
        ),
        (lambda path: path.write_text('{"mcpServers": []}'), "'mcpServers' is no object"),
        (lambda path: path.write_text('{"mcpServers": {}, "mcpServers": {}}'), "occurs 2 times"),
        (lambda path: path.write_text('["mcpServers"]'), "the whole is no object"),
        (lambda path: path.mkdir(), "it is no file"),
        (os.mkfifo, "it is no file"),
        (socket_of_that_name, "it cannot be read"),
        (link_to_itself, "it cannot be read"),
        (read_only, "it is read-only"),
        (several_names, "it has several names"),
        (huge, f"it has more than {config_file.MAX_CONFIG_BYTES} bytes"),
    ],
)
def test_what_is_damaged_or_foreign_is_left_alone(path: Path, make: Any, why: str, state: Path) -> None:
    make(path)
    seen = path.lstat()
    with pytest.raises(CommandFailure, match=f"is left as it is: .*{why}"):
        put(path)
    assert path.lstat() == seen or stat.S_ISREG(seen.st_mode)
    assert (path.lstat().st_ino, path.lstat().st_mtime_ns) == (seen.st_ino, seen.st_mtime_ns)
    assert not list(state.rglob("*.copy"))


def test_a_file_of_another_user_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("{}")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(CommandFailure, match="belongs to another user"):
        put(path)
    assert path.read_text() == "{}"


def test_a_file_in_the_folder_of_another_user_is_not_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: path.parent.stat().st_uid + 1)
    with pytest.raises(CommandFailure, match="belongs to another user: run this as that user"):
        put(path)
    assert not path.exists()


class Killed(BaseException):
    """Takes the place of the end of the process: nothing of the program catches it."""


@pytest.mark.parametrize("place", range(6))
def test_a_process_that_is_ended_anywhere_leaves_the_old_file_or_the_new_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    before = json.dumps({"mcpServers": {"theirs": THEIRS}})
    path.write_text(before)
    calls = 0

    def ending(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > place:
                raise Killed  # from here on nothing works any more, the removal of what was begun neither
            return original(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "unlink", "utime"):
            patch.setattr(os, name, ending(getattr(os, name)))
        with pytest.raises(Killed):
            put(path)
        assert calls > place
    assert path.read_text() == before or servers(path) == {"theirs": THEIRS, "weather": OURS}
    # Whatever was left behind is in nobody's way.
    put(path, OURS | {"env": {"A": "1"}})
    assert [each.name for each in path.parent.iterdir() if each.name != "state"] == ["mcp.json"]
    undo(configuration(path), YES)
    while path.read_text() != before:
        undo(configuration(path), YES)
    assert path.read_text() == before


def test_comments_stay_where_the_client_reads_them(path: Path) -> None:
    text = '{\n  // my settings\n  "theme": "dark",\n}\n'
    path.write_text(text)
    assert put(path, client="zed")
    assert "// my settings" in path.read_text()
    assert '"context_servers"' in path.read_text()
    undo(configuration(path, "zed"), YES)
    assert path.read_text() == text


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file module as it finds itself there: what POSIX alone has is missing."""
    monkeypatch.setattr(config_file, "sys", SimpleNamespace(platform="win32"))
    for name in ("geteuid", "chown", "O_NONBLOCK"):
        monkeypatch.delattr(os, name)


@pytest.mark.usefixtures("on_windows")
def test_a_file_is_replaced_on_windows(path: Path) -> None:
    path.write_bytes(b'{\r\n\t"theme": 1\r\n}\r\n')
    before = path.read_bytes()
    assert put(path)
    assert b'"command": "/bin/python",\r\n' in path.read_bytes()
    assert undo(configuration(path), YES)
    assert path.read_bytes() == before


@pytest.mark.usefixtures("on_windows")
def test_a_file_that_a_client_holds_open_is_left_on_windows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("{}")

    def in_use(*_: Any) -> None:
        raise PermissionError(13, "The process cannot access the file because it is being used")

    monkeypatch.setattr(os, "replace", in_use)
    with pytest.raises(CommandFailure, match=r"is left as it is: it cannot be written .*being used"):
        put(path)
    assert path.read_text() == "{}"
    assert [each.name for each in path.parent.iterdir() if each.name != "state"] == ["mcp.json"]


def test_no_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CommandFailure, match=r"is Windsurf installed\? --config names another file"):
        Configuration("windsurf").opened()
    assert not (tmp_path / ".codeium").exists()


def test_nothing_is_written_where_nothing_may_be(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("{}")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CommandFailure, match=r"cannot be written \(No space left"):
        put(path)
    assert path.read_text() == "{}"
    assert copies(path) == []
    assert [each.name for each in path.parent.iterdir() if each.name != "state"] == ["mcp.json"]


def test_a_file_that_was_changed_while_a_person_was_asked_is_read_anew(path: Path) -> None:
    path.write_text("{}")
    rounds = 0

    def edit(file: Configuration, config: ConfigText) -> str:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            path.write_text(json.dumps({"mcpServers": {"theirs": THEIRS}}))
        return file.with_entry(config, "weather", OURS)

    assert configuration(path).change("weather", edit, YES)
    assert rounds == 2
    assert servers(path) == {"theirs": THEIRS, "weather": OURS}


def test_a_file_that_changes_again_and_again_is_left_to_the_other(path: Path) -> None:
    path.write_text("{}")
    rounds = 0

    def edit(file: Configuration, config: ConfigText) -> str:
        nonlocal rounds
        rounds += 1
        path.write_text(json.dumps({"round": rounds}))
        return file.with_entry(config, "weather", OURS)

    with pytest.raises(CommandFailure, match="another program changes it again and again"):
        configuration(path).change("weather", edit, YES)
    assert json.loads(path.read_text()) == {"round": rounds}
    assert copies(path) == []


def test_a_change_between_the_last_look_and_the_write_is_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("{}")
    file = open_config(path)
    sync = os.fsync

    def others_write(descriptor: int) -> None:
        sync(descriptor)
        path.write_text('{"theirs": 1}')

    monkeypatch.setattr(os, "fsync", others_write)
    with pytest.raises(ChangedMeanwhile):
        file.replace(b"ours")
    assert path.read_text() == '{"theirs": 1}'
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"]


def test_what_would_be_too_large_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("{}")
    monkeypatch.setattr(config_file, "MAX_CONFIG_BYTES", 100)
    with pytest.raises(Untouchable, match="would have more than 100 bytes"):
        open_config(path).replace(b" " * 101)
    assert path.read_text() == "{}"


def test_a_word_that_is_no_text_is_refused(path: Path) -> None:
    path.write_text("{}")
    with pytest.raises(CommandFailure, match="no text that a JSON file can hold"):
        put(path, OURS | {"args": [os.fsdecode(b"\xff")]})
    assert path.read_text() == "{}"


def test_installs_at_the_same_time_lose_nothing(path: Path) -> None:
    names = [f"n{number}" for number in range(6)]
    failures: list[str] = []

    def install(name: str) -> None:
        try:
            while not _tried(name):
                pass
        except Exception as error:
            failures.append(str(error))

    def _tried(name: str) -> bool:
        try:
            return put(path, name=name)
        except CommandFailure as error:
            # What a person is told, who then runs it again.
            if "again and again" in error.message:
                return False
            raise

    threads = [threading.Thread(target=install, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(servers(path)) == names
    assert len(copies(path)) == len(names) - 1


def test_another_process_that_keeps_the_file_locked_is_waited_for_within_a_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_file, "LOCK_TIMEOUT", 0.01)
    path.write_text("{}")
    folder = FileHistory(str(path))._folder
    folder.mkdir(parents=True)
    lock = FileLock(str(folder / "lock"))
    trio.run(lock.acquire)
    try:
        with pytest.raises(CommandFailure, match="another mcp-actors changes that file"):
            put(path)
    finally:
        lock.release()
    assert path.read_text() == "{}"
    assert put(path)


def test_nobody_is_there_to_ask(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("{}")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(WrongUsage, match="add --yes, or --dry-run"):
        configuration(path).change(
            "weather", lambda file, config: file.with_entry(config, "weather", OURS), Manner()
        )
    assert path.read_text() == "{}"


class Person(io.StringIO):
    """Somebody at a terminal, who types what it is made of."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "written"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_person_says_whether_it_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, written: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Person(typed))
    changed = configuration(path).change(
        "weather", lambda file, config: file.with_entry(config, "weather", OURS), Manner()
    )
    assert changed is path.exists() is written


def test_what_a_person_added_to_our_entry_stays(path: Path) -> None:
    older = OURS | {"disabled": True, "env": {"KEY": "1", "MINE": "2"}}
    path.write_text(json.dumps({"mcpServers": {"weather": older}}))
    moved = OURS | {"args": ["-P", "-m", "mcp_actors", "serve", "moved.py"], "env": {"KEY": "3"}}
    edit = partial(with_our_entry, name="weather", entry=moved)
    assert configuration(path).change("weather", edit, YES)
    expected = moved | {"disabled": True, "env": {"KEY": "3", "MINE": "2"}}
    assert servers(path) == {"weather": expected}
    assert not configuration(path).change("weather", edit, YES)


def test_a_change_shows_no_values_of_variables(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = {"command": "npx", "env": {"TOKEN": "their-secret"}, "headers": {"Authorization": "Bearer x1"}}
    path.write_text(json.dumps({"mcpServers": {"theirs": theirs}}))
    put(path, OURS | {"env": {"KEY": "our-secret"}})
    shown = capsys.readouterr().out
    assert '+    "KEY": "***"' in shown
    assert '+"weather": {' in shown
    assert "theirs" not in shown
    assert "secret" not in shown
    put(path, OURS | {"env": {"KEY": "another-secret"}})
    shown = capsys.readouterr().out
    assert "only values that are not shown here" in shown
    assert "secret" not in shown


def test_only_the_entry_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(
        json.dumps({"key": "a secret", "mcpServers": {"weather": OURS | {"command": "x" * 10_000}}})
    )
    put(path)
    shown = capsys.readouterr().out
    assert "secret" not in shown
    assert '+  "command": "/bin/python",' in shown
    assert '-  "command": "xxx' in shown
    assert '   "-P",' in shown
    assert len(shown) < 2000


def test_an_escape_sequence_in_a_file_does_not_reach_the_terminal(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text('{"mcpServers": {"weather": {"\x9b31m": "\\u001b[31m"}}}')
    put(path)
    shown = capsys.readouterr().out
    assert "\\x9b31m" in shown
    assert not {"\x9b", "\x1b"} & set(shown)


def test_comments_in_the_entry_itself_are_no_damage(path: Path) -> None:
    text = '{"servers": {"weather": {"command": "x", /* my own */ "args": ["-m", "mcp_actors", "serve", "a.py",], }}}'
    path.write_text(text)
    edit = partial(with_our_entry, name="weather", entry=OURS)
    assert configuration(path, "vscode").change("weather", edit, YES)
    assert json.loads(path.read_text())["servers"] == {"weather": OURS}
    path.write_text(path.read_text().replace('"command"', '/* again */ "command"'))
    assert undo(configuration(path, "vscode"), YES)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("system", "environ", "place"),
    [
        ("linux", {"XDG_STATE_HOME": "/s"}, "/s"),
        ("linux", {"XDG_STATE_HOME": "relative"}, "~/.local/state"),
        ("darwin", {}, "~/.local/state"),
        ("win32", {"LOCALAPPDATA": "/users/me/AppData/Local"}, "/users/me/AppData/Local"),
        ("win32", {}, "~/AppData/Local"),
    ],
)
def test_the_place_of_the_copies(system: str, environ: dict[str, str], place: str) -> None:
    assert state_folder(system=system, environ=environ) == Path(place).expanduser()
