"""The table of goals: what is reached, what is not, what is missing, and that its jobs are those it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.suite.command import main
from benchmarks.suite.goal_table import goal_rows, goals_markdown, write_readme
from benchmarks.suite.goals import COLUMNS, GOALS, ITSELF, Against, Goal, goal_cases
from benchmarks.suite.page import page
from benchmarks.suite.peers import PEERS
from benchmarks.suite.report import markdown
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.results import Document, JobFailure, Key, ResultRow

ROOT = Path(__file__).parent.parent.parent
OURS, OTHER = (
    Key("roundtrip", "stdio", "legacy", (("in_flight", 64),), peer) for peer in ("ours", "official")
)
FASTER = Goal("calls", "per_second", OURS, (Against("official", OTHER, 20.0),))
SMALLER = Goal("memory", "kib_each", OURS, (Against("official", OTHER, 0.5),))


def run_of(**figures: list[tuple[float, float]]) -> Document:
    """Of each metric, ours and the other's in each round."""
    options = {"size": "goals", "rounds": 3, "seconds": 0.75, "seed": 1}
    machine = {"processor": "made up", "system": "Linux 6", "python": "3.11.7"}
    versions = {"trio": "0.35.0", "official": "mcp 2.3.0", "attrs": "26.1"}
    document = Document(machine, versions, "abc", "2026-01-01 10:00 UTC", options)
    for metric, rounds in figures.items():
        for turn, pair in enumerate(rounds, 1):
            for key, value in zip((OURS, OTHER), pair, strict=True):
                at = dict(key.at)
                row = ResultRow(turn, key.scenario, key.transport, key.era, key.peer, at, {metric: value})
                document.rows.append(row)
    return document


def official(document: Document, goal: Goal) -> tuple[str, bool]:
    _, row = goal_rows(document, [goal])
    cell = row[1 + list(COLUMNS).index("official")]
    return cell.text, cell.missed


@pytest.mark.parametrize(("ours", "missed"), [(2000.0, False), (1999.0, True)])
def test_more_is_to_be_at_least(ours: float, missed: bool) -> None:
    text, told = official(run_of(per_second=[(ours, 100.0)]), FASTER)
    assert told is missed
    assert text == "20.0x, goal ≥ 20x" + (": not reached" if missed else "")


@pytest.mark.parametrize(("ours", "missed"), [(50.0, False), (51.0, True)])
def test_less_is_to_be_at_most(ours: float, missed: bool) -> None:
    text, told = official(run_of(kib_each=[(ours, 100.0)]), SMALLER)
    assert told is missed
    assert "goal ≤ 0.5x" in text


def test_ratios_are_taken_within_rounds() -> None:
    """The machine was ten times as slow in the second round, for both."""
    text, missed = official(run_of(per_second=[(3000.0, 100.0), (300.0, 10.0), (3000.0, 100.0)]), FASTER)
    assert text.startswith("30.0x (30.0 to 30.0)")
    assert not missed


def test_a_round_that_one_of_them_missed_is_in_no_ratio() -> None:
    document = run_of(per_second=[(3000.0, 100.0), (1.0, 1.0)])
    document.rows.pop()
    assert official(document, FASTER)[0].startswith("30.0x, goal")


def test_a_goal_beside_itself_tells_both_figures() -> None:
    goal = Goal("flat", "cpu_us", OURS, (Against(ITSELF, OTHER, 1.2),))
    _, row = goal_rows(run_of(cpu_us=[(66.0, 50.0)]), [goal])
    assert row[1].text == "50 us, then 66 us: 1.32x, goal ≤ 1.2x: not reached"


@pytest.mark.parametrize(("ours", "missed"), [(300.0, False), (301.0, True)])
def test_a_goal_may_be_a_difference(ours: float, missed: bool) -> None:
    goal = Goal("more", "each_us", OURS, (Against(ITSELF, OTHER, 200.0, difference=True),))
    _, row = goal_rows(run_of(each_us=[(ours, 100.0)]), [goal])
    more = f"100 us, then {ours:g} us: {ours - 100:g} us more, goal ≤ 200 us more"
    assert row[1] == (more + (": not reached" if missed else ""), missed)


def test_what_is_missing_in_a_row_is_told_and_rows_without_any_ratio_are_not() -> None:
    goal = Goal(
        "calls", "per_second", OURS, (*FASTER.against, Against("floor", OTHER._replace(peer="floor"), 0.6))
    )
    document = run_of(per_second=[(3000.0, 100.0)])
    _, row = goal_rows(document, [goal])
    assert row[-1] == ("not run, goal ≥ 0.6x", False)
    document.failures.append(JobFailure("roundtrip", "stdio", "legacy", "floor", "it broke"))
    _, row = goal_rows(document, [goal])
    assert row[-1] == ("no figure, goal ≥ 0.6x", True)
    assert goal_rows(document, [SMALLER]) == []


def test_the_table_says_where_with_what_when_and_how_it_was_taken() -> None:
    text = goals_markdown(run_of(per_second=[(1000.0, 100.0)]))
    for told in (
        "made up",
        "Python 3.11.7",
        "mcp 2.3.0",
        "2026-01-01 10:00 UTC",
        "python -m benchmarks run --goals",
    ):
        assert told in text
    assert "**10.0x, goal ≥ 20x: not reached**" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def _section(shown: str, title: str) -> str:
    return shown[shown.index(f">{title}</h2>") :].partition("<h2 ")[0]


def test_reports_show_the_goals_first() -> None:
    document = run_of(per_second=[(1000.0, 100.0)])
    told, shown = markdown(document), page(document)
    assert told.index("## Goals") < told.index("## roundtrip")
    assert "class=missed" in _section(shown, "Goals")


def test_a_document_without_figures_for_goals_has_no_table() -> None:
    document = run_of(churn_per_second=[(1.0, 1.0)])
    assert "Goals" not in markdown(document)
    assert "<h2>Goals" not in page(document)
    with pytest.raises(LoadError, match="run --goals"):
        goals_markdown(document)


def test_the_readme_gets_the_table_between_its_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(per_second=[(1000.0, 100.0)]).write(tmp_path / "a.json")
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    assert main(["goals", str(tmp_path / "a.json"), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert capsys.readouterr().out in text
    assert text.startswith("before\n<!-- figures: begin -->\nmade up")
    assert text.endswith("|\n<!-- figures: end -->\nafter\n")
    assert "old" not in text


def test_a_readme_without_marks_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("mine")
    with pytest.raises(LoadError, match="no marks"):
        write_readme(readme, "table")
    assert readme.read_text() == "mine"


def test_the_jobs_are_those_that_the_rows_need() -> None:
    cases = goal_cases()
    needed = {(key.scenario, key.transport, key.era, key.peer) for goal in GOALS for key in goal.keys}
    planned = [(case.scenario.name, case.transport, case.era, peer) for case in cases for peer in case.peers]
    assert set(planned) == needed
    assert len(planned) == len(needed)
    assert all(peer in PEERS and era in PEERS[peer].eras for _, _, era, peer in planned)


def test_a_peer_is_asked_for_its_own_places_only() -> None:
    sessions = next(
        case for case in goal_cases() if (case.scenario.name, case.transport) == ("many_sessions", "http")
    )
    assert sessions.parameters["ours"] == {"sessions": [10, 2000, 10_000]}
    assert sessions.parameters["typescript1"] == {"sessions": [2000]}
    stdio = next(
        case for case in goal_cases() if case.scenario.name == "roundtrip" and case.transport == "stdio"
    )
    assert stdio.parameters["ours"] == {"rates": [], "inline": True, "windows": [1, 64]}
    assert stdio.parameters["floor"] == {"rates": [], "inline": False, "windows": [1, 64]}


def test_goals_say_by_themselves_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--peers", "ours", "--goals"]) == 2
    assert "--goals says" in capsys.readouterr().err


def test_goals_can_be_those_of_some_scenarios() -> None:
    assert {case.scenario.name for case in goal_cases(["gateway_hop"])} == {"gateway_hop"}
    with pytest.raises(LoadError, match="no goal is measured by codec; there are: roundtrip"):
        goal_cases(["codec"])


def test_the_table_has_the_columns_that_its_rows_need() -> None:
    head, _ = goal_rows(run_of(per_second=[(1000.0, 100.0)]), [FASTER])
    assert [cell.text for cell in head] == ["what", "mcp-actors", "official Python SDK"]


def test_what_is_not_installed_is_told_in_one_line() -> None:
    """-S: an interpreter without any installed package."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks", "list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "pip install 'mcp-actors[benchmarks]'" in done.stderr
