"""The table of `.ci/windows`: what it runs on Windows is there, and each test that cannot pass there has a reason."""

from __future__ import annotations

import ast
import tomllib
from typing import Any

import pytest

from .pretended import ROOT

CHECKS = ROOT / ".ci" / "on_windows"
SECTIONS = ("not started", "wine", "posix")


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((CHECKS / "windows.toml").read_text(encoding="utf-8"))


def test_what_is_to_run_is_there_and_runs_once(table: dict[str, dict[str, Any]]) -> None:
    names = [name for batch in table["batches"].values() for name in batch]
    assert [name for name in names if not (ROOT / name).exists()] == []
    assert len(set(names)) == len(names)
    inside = [
        (one, other) for one in names for other in names if one != other and one.startswith(f"{other}/")
    ]
    assert inside == []


def test_a_limit_is_one_of_a_test_that_runs_and_has_a_reason(table: dict[str, dict[str, Any]]) -> None:
    assert set(table) == {"batches", *SECTIONS}
    chosen = [name for batch in table["batches"].values() for name in batch]
    for section in SECTIONS:
        for name, reason in table[section].items():
            file, _, test = name.partition("::")
            programs = file.startswith(("inside/", "between/"))
            path = (CHECKS if programs else ROOT) / file
            defined = {
                node.name
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert test.partition("[")[0] in defined, name
            assert programs or any(file == each or file.startswith(f"{each}/") for each in chosen), name
            assert len(reason.split()) > 2, name
