"""The page about authorization names a test for each attack: each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs/authorization.md").read_text()
ATTACKS = [row for row in PAGE.partition("## Attacks")[2].splitlines() if row.startswith("| ")][1:]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def written_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(row: str) -> list[str]:
    return [f"{file}::{test}" for file, test in NAMED.findall(row) if test not in written_in(file)]


@pytest.mark.parametrize("row", ATTACKS, ids=lambda row: str(row).split("|")[1].strip())
def test_each_attack_has_its_tests(row: str) -> None:
    assert NAMED.search(row)
    assert missing(row) == []


def test_there_are_all_attacks_of_the_checklist() -> None:
    assert len(ATTACKS) >= 27


def test_a_test_that_is_gone_is_found() -> None:
    assert missing("| a | b | `auth/test_checklist.py::test_gone` |") == ["auth/test_checklist.py::test_gone"]
