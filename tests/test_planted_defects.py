"""The table of planted defects fits the code: each one can be planted, and every folder of the product has one."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.planted_defects import DEFECTS, ROOT, Defect

PACKAGES = ("mcp_actors", "transports/mcp_transports")


def folders_with_code() -> set[str]:
    """The folders of both packages that hold more than the `__init__` which says what a package is."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.parent.relative_to(ROOT)) for path in found if path.name != "__init__.py"}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda each: each.name)
def test_a_defect_can_be_planted(defect: Defect) -> None:
    text = (ROOT / defect.file).read_text()
    assert text.count(defect.old) == 1, "the text that it takes the place of is there once"
    planted = text.replace(defect.old, defect.new)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text)), "it changes what the file does"
    changed = max(defect.old.count("\n"), defect.new.count("\n"))
    assert changed <= 3, "it is as small as a slip is"
    assert defect.tests
    for file in defect.tests:
        assert Path(file).name.startswith("test_")
        assert (ROOT / "tests" / file).is_file()


def test_there_are_forty_and_each_has_a_name_of_its_own() -> None:
    assert len(DEFECTS) >= 40
    assert Counter(each.name for each in DEFECTS).most_common(1)[0][1] == 1


def test_every_folder_of_the_product_has_one() -> None:
    assert folders_with_code() - {str(Path(each.file).parent) for each in DEFECTS} == set()
