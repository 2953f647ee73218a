"""Which modules are the user's own, and imported again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from mcp_actors.cli.reload.reloading import OwnModules


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
