"""The judgement of a run itself: it is red for what must not be, and for nothing else."""

from __future__ import annotations

import pytest

from .figures import Phase, failures, most_forgotten
from .load import Row

PHASES = [
    Phase("before", 0, 10, calm=True),
    Phase("killed", 10, 20, calm=False),
    Phase("calm", 20, 30, calm=True),
]
FORGOTTEN = "McpError: Session terminated"


def row(end: str, at: float, took: float = 1.0, client: str = "ours-legacy", error: str = "") -> Row:
    return {
        "client": client,
        "session": 0,
        "kind": "echo",
        "at": at,
        "took": took,
        "end": end,
        "error": error,
    }


@pytest.mark.parametrize(
    ("rows", "fails"),
    [
        ([row("right", 5)], False),
        ([row("wrong", 15)], True),
        ([row("silent", 15)], True),
        ([row("error", 15, error="ConnectionLost")], False),
        ([row("error", 9, took=2, error="ConnectionLost")], False),
        ([row("error", 5, error="ConnectionLost")], True),
        ([row("error", 25, error="ConnectionLost")], True),
        ([row("right", 5), row("error", 25, error=FORGOTTEN)], False),
        ([row("right", 5), row("error", 22, error=FORGOTTEN), row("right", 24)], False),
        ([row("right", 5), row("right", 22), row("error", 25, error=FORGOTTEN)], True),
        ([row("error", 5, error=FORGOTTEN)], True),
        ([row("unheard", 5, client="python-v1-legacy")], True),
        ([row("unheard", 25, client="python-v1-legacy")], False),
        ([row("unheard", 25)], True),
        ([row("unheard", 15)], False),
    ],
)
def test_a_run_fails_for_what_must_not_be(rows: list[Row], fails: bool) -> None:
    assert bool(failures(rows, PHASES)) == fails


def test_a_client_that_is_told_twice_is_counted() -> None:
    told = [row("error", 12, error=FORGOTTEN), row("error", 15, error=FORGOTTEN)]
    assert most_forgotten(told, PHASES[1]) == 2
