"""The comparison of the ways to wait for sockets measures both of them."""

from __future__ import annotations

import re

import pytest

from benchmarks import waiting


def test_each_case_has_a_row_with_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    waiting.main(["--rounds", "1", "--reads", "64", "--sockets", "64"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [each.split(" | ")[0] for each in rows] == [
        "| 1 sockets, 1 ready",
        "| 64 sockets, 1 ready",
        "| 64 sockets, 64 ready",
        "| a socket added and removed",
    ]
    for each in rows:
        assert re.search(r"\| [\d.]+ us \| [\d.]+ us \| [\d.]+x", each)
