"""Reports and comparisons of results that were made up."""

from __future__ import annotations

import itertools
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.suite.command import main
from benchmarks.suite.goal_table import goal_rows, goals_markdown, write_readme
from benchmarks.suite.goals import COLUMNS, GOALS, ITSELF, Against, Goal, goal_cases
from benchmarks.suite.page import page
from benchmarks.suite.peers import PEERS
from benchmarks.suite.report import RATIO, markdown
from benchmarks.suite.views import NODE_WARM_UP, groups, ratios, warmth
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.recorder import encoded
from mcp_actors.cli.bench.report import Plot, PlotLine
from mcp_actors.cli.bench.results import (
    METRICS,
    Document,
    JobFailure,
    Key,
    ResultRow,
    adjusted,
    compare,
    comparison_text,
    interval,
    mann_whitney,
    median,
    ratio_interval,
    smallest_p,
)

PEERS_SUITE_REPORTS = ("ours", "floor", "official")


def made_up(rounds: int = 6, *, seed: int = 1, drift: float = 1.0, ours: float = 1.0) -> Document:
    """A run in which ours is slowed by ``ours`` on HTTP, and the machine as a whole by ``drift``."""
    chance = random.Random(seed)
    options = {"size": "full", "rounds": rounds, "seconds": 1.0, "seed": seed}
    document = Document({"processor": "made up"}, {"trio": "0.35"}, "abc", "2026-01-01", options)
    for turn in range(1, rounds + 1):
        for transport in ("stdio", "http"):
            for window in (1, 16, 64):
                for peer in PEERS_SUITE_REPORTS:
                    slower = drift * (ours if (peer, transport) == ("ours", "http") else 1.0)
                    us = 100.0 * slower * chance.uniform(0.99, 1.01)
                    took = [us / 1e6 * chance.lognormvariate(0, 0.3) for _ in range(200)]
                    metrics = {
                        "per_second": window * 1e6 / us,
                        "p50_us": us,
                        "p99_us": 2 * us,
                        "cpu_us": us / 2,
                    }
                    at: dict[str, int | str] = {"in_flight": window}
                    row = ResultRow(
                        turn,
                        "roundtrip",
                        transport,
                        "modern",
                        peer,
                        at,
                        metrics,
                        encoded((each, 1) for each in took),
                        0.1,
                    )
                    document.rows.append(row)
    return document


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    document = made_up(2)
    document.failures.append(JobFailure("mixed", "http", "legacy", "floor", "no"))
    document.write(tmp_path / "a.json")
    assert Document.read(tmp_path / "a.json") == document


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 0}', '{"format": 1, "rows": [{}], "failures": []}']
)
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(LoadError):
        Document.read(tmp_path / "a.json")


def test_a_planted_regression_is_found_where_it_is_and_nowhere_else() -> None:
    comparison = compare(made_up(), made_up(seed=2, ours=1.3))
    assert {(change.key.transport, change.key.peer) for change in comparison.regressions} == {
        ("http", "ours")
    }
    assert {change.metric for change in comparison.regressions} == {
        "per_second",
        "p50_us",
        "p99_us",
        "cpu_us",
    }
    text = comparison_text(comparison)
    assert "Regressions: 12 sure" in text
    assert "Improvements: 0 sure" in text


def test_what_became_faster_is_an_improvement() -> None:
    comparison = compare(made_up(ours=1.3), made_up(seed=2))
    assert not comparison.regressions
    assert {change.key.transport for change in comparison.of("improvement") if change.sure} == {"http"}


def test_the_same_run_twice_shows_no_change() -> None:
    comparison = compare(made_up(), made_up())
    assert {change.verdict for change in comparison.changes} == {"no clear change"}


@pytest.mark.slow
def test_a_drift_of_the_machine_cancels_out_beside_the_floor() -> None:
    before, after = made_up(), made_up(seed=2, drift=1.5)
    assert len(compare(before, after).regressions) == len(compare(before, after).changes)
    assert not compare(before, after, beside="floor").regressions
    slower = compare(before, made_up(seed=2, drift=1.5, ours=1.3), beside="floor")
    assert {(change.key.transport, change.key.peer) for change in slower.regressions} == {("http", "ours")}


def test_three_rounds_are_said_to_be_too_few() -> None:
    comparison = compare(made_up(3), made_up(3, seed=2, ours=3.0))
    assert {change.verdict for change in comparison.changes} == {"too few rounds"}
    assert "too few rounds to show anything" in comparison_text(comparison)


def test_what_differs_between_the_machines_is_told() -> None:
    after = made_up(seed=2)
    after.machine["processor"] = "another"
    assert "processor differs: made up / another" in comparison_text(compare(made_up(), after))


def test_the_report_tells_medians_ratios_and_what_failed() -> None:
    document = made_up(ours=0.5)
    document.failures.append(JobFailure("mixed", "http", "legacy", "floor", "it broke"))
    document.warnings.append("the generator was busy")
    text = markdown(document)
    assert "ours / official" in text
    twice, half = ("2.00x", "1.99x", "2.01x"), ("0.50x", "0.49x", "0.51x")
    of_calls = [line for line in text.splitlines() if "| throughput" in line and "| HTTP |" in line]
    of_times = [line for line in text.splitlines() if "| median latency" in line and "| HTTP |" in line]
    assert [line for line in of_calls if not any(each in line for each in twice)] == []
    assert [line for line in of_times if not any(each in line for each in half)] == []
    assert of_calls
    assert of_times
    assert "it broke" in text
    assert "the generator was busy" in text


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(made_up())
    assert text.count("<svg") == text.count("</svg>") > 5
    for svg in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + svg.partition("</svg>")[0] + "</svg>")
    for outside in ("http://", "https://", "<script", "src=", "@import", "url("):
        assert outside not in text


def test_the_page_begins_with_a_sentence_and_its_contents() -> None:
    document = made_up()
    document.failures.append(JobFailure("mixed", "http", "legacy", "floor", "no"))
    text = page(document)
    begins = [text.index(part) for part in ('<p class="sentence">', "<nav ", "<h2 ")]
    assert begins == sorted(begins)
    assert "over HTTP (modern, 64 in flight)" in text.partition("</p>")[0]  # what came of it
    links, targets = re.findall(r'href="#([^"]*)"', text), re.findall(r'<h2 id="([^"]*)"', text)
    assert links == targets
    assert len(set(targets)) == len(targets) > 4


def test_throughput_comes_before_latency() -> None:
    text = page(made_up())
    titles = re.findall(r"<h2 id=[^>]*>([^<]*)</h2>", text)
    assert titles.index("Throughput") < titles.index("Own transports beside each other")
    assert titles.index("Own transports beside each other") < titles.index("Latency")
    plots = re.findall(r'<svg [^>]*aria-label="([^"]*)"', text)
    assert plots[0].startswith("Throughput")


def test_a_ratio_is_defined_once_and_in_one_direction() -> None:
    document = made_up()
    # A goal of the table, so that this section is there as well.
    for key in GOALS[0].keys:
        document.rows += [
            ResultRow(turn, *key[:3], key.peer, dict(key.at), {GOALS[0].metric: 10.0}) for turn in range(1, 7)
        ]
    for text in (page(document), markdown(document)):
        assert text.count(RATIO) == 1
        assert "better mcp-actors" not in text
        assert "against official" not in text
        assert len(re.findall(r"ratio is", text)) == 1
        assert text.index(RATIO) < text.index("Goals</h2>" if "</h2>" in text else "## Goals")
    [group] = [
        each
        for each in groups(made_up(ours=0.5))
        if each.transport == "http" and each.at == (("in_flight", 1),)
    ]
    for metric in ("per_second", "p50_us"):
        mine, theirs = group.samples["ours"][metric], group.samples["official"][metric]
        assert ratios(group, metric, "official") == [mine[at] / theirs[at] for at in range(6)]


def test_a_legend_is_dashed_as_its_line_is() -> None:
    names = ["ours", "floor", "floor_inline", "ours, beside stalled"]
    lines = [PlotLine(name, [(1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 2.0)]) for name in names]
    svg = ElementTree.fromstring(Plot("t", "x", "y", lines).svg())
    drawn = {each.get("stroke-dasharray") for each in svg.findall("polyline")}
    in_legend = [
        each.get("stroke-dasharray") for each in svg.findall("line") if each.get("stroke-width") == "3"
    ]
    assert len(in_legend) == len(names)
    assert set(in_legend) == drawn
    assert len(drawn - {None}) == 3


def test_transports_have_the_names_that_people_know() -> None:
    document = made_up(2)
    for row in document.rows:
        row.transport = {"stdio": "mine=mine:{directory}/nest", "http": "ws"}[row.transport]
    for text in (page(document), markdown(document)):
        assert "{directory}" not in text
        assert "WebSocket" in text
    assert "Throughput against concurrency: mine, modern" in page(document)


def test_names_in_a_page_are_no_markup() -> None:
    document = made_up(2)
    document.warnings.append("<b>bold</b>")
    document.failures.append(JobFailure("mixed", "http", "legacy", "<i>", "<u>"))
    text = page(document)
    assert "<b>bold" not in text
    assert "<i>" not in text
    assert "<u>" not in text


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("points", [[(1.0, 5.0)], [(1.0, 5.0), (2.0, 5.0)], [(1.0, 0.001), (1000.0, 1e7)]])
def test_a_plot_stays_in_its_frame(log: bool, points: list[tuple[float, float]]) -> None:
    line = PlotLine("ours", [(x, y, y, y) for x, y in points])
    svg = ElementTree.fromstring(Plot("t", "x", "y", [line], log_x=log, log_y=log).svg())
    circles = svg.findall("circle")
    assert len(circles) == len(points)
    assert all(
        0 <= float(each.attrib["cx"]) <= 460 and 0 <= float(each.attrib["cy"]) <= 300 for each in circles
    )


def test_nothing_has_no_place_on_a_logarithmic_scale() -> None:
    line = PlotLine("floor", [(1.0, 0.0, 0.0, 0.0), (2.0, 3.0, 3.0, 3.0)])
    assert Plot("t", "x", "y", [line]).svg().count("<circle") == 1
    assert Plot("t", "x", "y", [line], log_y=False).svg().count("<circle") == 2


def test_reports_are_written_from_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_up(2).write(tmp_path / "a.json")
    assert main(["report", str(tmp_path / "a.json")]) == 0
    assert (tmp_path / "a.md").read_text().startswith("# Benchmarks")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_a_comparison_can_fail_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_up().write(tmp_path / "a.json")
    made_up(seed=2, ours=1.5).write(tmp_path / "b.json")
    both = ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main(both) == 0
    assert main([*both, "--fail"]) == 1
    assert "Regressions" in capsys.readouterr().out


def test_what_is_unknown_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "juggling"]) == 2
    assert main(["list"]) == 0
    assert "many_sessions" in capsys.readouterr().out


def test_every_metric_says_what_is_better() -> None:
    assert {metric.better for metric in METRICS.values()} == {"higher", "lower"}


# -- The table of goals: what is reached, what is not, what is missing, and that its jobs are those it needs ---

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
    goal = Goal("more", "each_us", OURS, (Against(ITSELF, OTHER, 200.0, "difference"),))
    _, row = goal_rows(run_of(each_us=[(ours, 100.0)]), [goal])
    more = f"100 us, then {ours:g} us: {ours - 100:g} us more, goal ≤ 200 us more"
    assert row[1] == (more + (": not reached" if missed else ""), missed)


@pytest.mark.parametrize(("ours", "missed"), [(5.0, False), (5.5, True)])
def test_a_goal_may_be_a_figure_of_ours_alone(ours: float, missed: bool) -> None:
    goal = Goal("memory", "kib_each", OURS, (Against(ITSELF, OURS, 5.0, "figure"),))
    _, row = goal_rows(run_of(kib_each=[(ours, 0.0)]), [goal])
    assert row[1] == (f"{ours:g} KiB, goal ≤ 5 KiB" + (": not reached" if missed else ""), missed)


def test_what_is_shown_without_a_goal_is_never_missed() -> None:
    goal = Goal("calls", "per_second", OURS, (Against("official", OTHER, None),))
    document = run_of(per_second=[(1.0, 100.0)])
    assert official(document, goal) == ("0.01x", False)
    absent = Against("floor", OTHER._replace(peer="floor"), None)
    document.failures.append(JobFailure("roundtrip", "stdio", "legacy", "floor", "it broke"))
    _, row = goal_rows(document, [Goal("calls", "per_second", OURS, (*goal.against, absent))])
    assert row[-1] == ("no figure", False)


@pytest.mark.parametrize(
    ("before", "ours", "missed"),
    [(10.0, 24.0, False), (10.0, 22.0, True), (100.0, 66.0, False), (100.0, 64.0, True)],
)
def test_so_many_times_the_ratio_of_an_earlier_tree_is_enough(
    before: float, ours: float, missed: bool
) -> None:
    goal = Goal("calls", "per_second", OURS, (Against("official", OTHER, 65.0, times_before=2.3),))
    earlier = run_of(per_second=[(100.0 * before, 100.0)])
    _, row = goal_rows(run_of(per_second=[(100.0 * ours, 100.0)]), [goal], earlier)
    text = f"{ours:.1f}x, goal ≥ 65x or 2.3 times the tree before, which is {2.3 * before:.1f}x"
    assert row[-1] == (text + (": not reached" if missed else ""), missed)


def test_without_an_earlier_tree_the_bound_is_what_counts() -> None:
    goal = Goal("calls", "per_second", OURS, (Against("official", OTHER, 65.0, times_before=2.3),))
    text, missed = official(run_of(per_second=[(2400.0, 100.0)]), goal)
    assert text == "24.0x, goal ≥ 65x or 2.3 times the tree before: not reached"
    assert missed


def test_an_earlier_tree_is_named_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ours in (("before", 1000.0), ("after", 2400.0)):
        run_of(per_second=[(ours, 100.0)]).write(tmp_path / f"{name}.json")
    assert main(["goals", str(tmp_path / "after.json"), "--before", str(tmp_path / "before.json")]) == 0
    assert "24.0x, goal ≥ 65x or 2.3 times the tree before, which is 23.0x |" in capsys.readouterr().out


def test_the_table_and_the_reports_say_how_warm_node_was() -> None:
    document = run_of(per_second=[(1000.0, 100.0)])
    assert warmth(document) == ""
    document.rows.append(
        ResultRow(1, "roundtrip", "stdio", "legacy", "typescript1", dict(OURS.at), {"per_second": 10.0})
    )
    assert "not known to be warm" in goals_markdown(document)
    document.options[NODE_WARM_UP] = 20_000
    for text in (goals_markdown(document), markdown(document), page(document)):
        assert "rograms on Node answer 20,000 calls before a ratio to their speed is taken" in text


# The rows that were asked for: what, beside what, and at least or at most how much.
ASKED = [
    ("stdio, legacy, 64 in flight", "typescript1", 1.5),
    ("stdio, modern, 64 in flight", "typescript1", 1.5),
    ("stdio, legacy, 64 in flight", "official", 65.0),
    ("stdio, modern, 64 in flight", "official", 65.0),
    ("stdio, legacy, 64 in flight, ragged arrival", "typescript1", 1.5),
    ("stdio, modern, 64 in flight, ragged arrival", "typescript1", 1.5),
    ("stdio, legacy, 64 in flight, the tool awaits once", "typescript1", 1.0),
    ("stdio, modern, 64 in flight, the tool awaits once", "typescript1", 1.0),
    ("stdio, legacy, one at a time", "typescript1", 1.0),
    ("stdio, modern, one at a time", "typescript1", 1.0),
    ("HTTP with JSON, legacy, 32 connections", "floor_inline", 0.8),
    ("HTTP with JSON, modern, 32 connections", "floor_inline", 0.8),
    ("HTTP with JSON, legacy, 32 connections", "typescript1", 4.0),
    ("HTTP with JSON, modern, 32 connections", "typescript1", 4.0),
    ("client in memory, legacy, 64 in flight", "official", 16.0),
    ("client in memory, legacy, one at a time", "official", 9.0),
    ("client in memory, modern, 64 in flight", "official", 10.0),
    ("client in memory, modern, one at a time", "official", 6.0),
    ("WebSocket, legacy, 64 in flight", "floor_inline", 4.0),
    ("WebSocket, modern, 64 in flight", "floor_inline", 4.0),
    ("median latency that a hop adds, stdio to stdio, legacy", ITSELF, 80.0),
    ("median latency that a hop adds, stdio to stdio, modern", ITSELF, 80.0),
    ("one hop, stdio to HTTP, legacy, 64 in flight, beside mcp-proxy and supergateway", "node_proxy", 2.0),
    (
        "processor time a request under uvicorn, beside a bare application, legacy, 64 connections",
        ITSELF,
        50.0,
    ),
    (
        "processor time a request under uvicorn, beside a bare application, modern, 64 connections",
        ITSELF,
        50.0,
    ),
    ("sync client over stdio to the inline floor, modern, 64 threads", "official", 4.0),
    ("start to initialize answered on stdio", "typescript1", 0.8),
    ("idle legacy WebSocket session, memory", ITSELF, 12.0),
    ("idle legacy HTTP session, memory", ITSELF, 5.0),
]


@pytest.mark.parametrize(("what", "column", "bound"), ASKED)
def test_the_goals_that_were_asked_for_are_rows(what: str, column: str, bound: float) -> None:
    (goal,) = [goal for goal in GOALS if goal.what == what]
    assert [each.bound for each in goal.against if each.column == column] == [bound]


def test_a_row_is_in_the_table_once() -> None:
    assert len({goal.what for goal in GOALS}) == len(GOALS)
    for goal in GOALS:
        assert len({each.column for each in goal.against}) == len(goal.against)
        assert any(each.bound is not None for each in goal.against)


@pytest.mark.parametrize("transport", ["stdio", "http", "ws"])
def test_both_floors_stand_beside_calls_of_many(transport: str) -> None:
    rows = [goal for goal in GOALS if goal.ours.scenario == "roundtrip" and goal.ours.transport == transport]
    beside = [{each.column for each in goal.against} for goal in rows if goal.metric == "per_second"]
    assert sum({"floor", "floor_inline"} <= columns for columns in beside) >= 2


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
    text = goals_markdown(run_of(per_second=[(2000.0, 1000.0)]))
    for told in (
        "made up",
        "Python 3.11.7",
        "mcp 2.3.0",
        "2026-01-01 10:00 UTC",
        "python -m benchmarks run --goals",
    ):
        assert told in text
    assert "**2.00x, goal ≥ 65x or 2.3 times the tree before: not reached**" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def _section(shown: str, title: str) -> str:
    return shown[shown.index(f">{title}</h2>") :].partition("<h2 ")[0]


def test_reports_show_the_goals_first() -> None:
    document = run_of(per_second=[(1000.0, 100.0)])
    told, shown = markdown(document), page(document)
    assert told.index("## Goals") < told.index("## roundtrip")
    assert "class=missed" in _section(shown, "Goals")


def test_the_verdicts_come_before_the_contents_and_the_plots() -> None:
    document = run_of(per_second=[(2000.0, 1000.0)])
    text = page(document)
    begin = text.index('<ul class="verdicts"')
    assert begin < text.index("<nav") < text.index("<h2")
    cells = [cell for row in goal_rows(document)[1:] for cell in row[1:] if "goal " in cell.text]
    told = re.findall(r"<li( class=missed)? title=", text[begin:].partition("</ul>")[0])
    assert len(told) == len(cells) > 0
    # Those that are not reached come first.
    assert told == [" class=missed"] * sum(cell.missed for cell in cells) + [""] * sum(
        not cell.missed for cell in cells
    )
    assert 'class="verdicts"' not in page(run_of(churn_per_second=[(1.0, 1.0)]))


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
    few = next(case for case in goal_cases() if case.scenario.name == "awaits_once" and case.era == "legacy")
    assert few.peers == ("ours", "typescript1", "floor")
    assert few.parameters["typescript1"] == {"windows": [64]}
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
    assert "pip install -e '.[benchmarks]'" in done.stderr


# -- What the suite says about samples is true of any samples --------------------------------------------

SAMPLES = st.lists(st.floats(0.5, 1e6), min_size=1, max_size=12)
# Few different values, so that there are ties.
SMALL = st.lists(st.integers(1, 6).map(float), min_size=1, max_size=5)


@given(SAMPLES)
def test_an_interval_is_between_two_samples_and_holds_the_median(samples: list[float]) -> None:
    low, high, confidence = interval(samples)
    assert low in samples
    assert high in samples
    assert low <= median(samples) <= high
    assert 0.0 <= confidence <= 1.0


@pytest.mark.parametrize("size", range(2, 30))
def test_the_confidence_of_an_interval_is_that_of_a_fair_coin(size: int) -> None:
    samples = [float(each) for each in range(size)]
    low, high, confidence = interval(samples)
    # The true median lies below or above each sample with equal chance: count the throws that keep it inside.
    inside = sum(math.comb(size, below) for below in range(int(low) + 1, int(high) + 1))
    assert confidence == pytest.approx(inside / 2**size)
    assert (low, high) == (0.0, size - 1.0) if size < 6 else confidence >= 0.95


def _by_trying_all(first: list[float], second: list[float]) -> float:
    values = [*first, *second]
    ranks = [sum(other < each for other in values) + (values.count(each) + 1) / 2 for each in values]
    middle = sum(ranks) * len(first) / len(values)
    seen = abs(sum(ranks[: len(first)]) - middle)
    splits = list(itertools.combinations(ranks, len(first)))
    return sum(abs(sum(split) - middle) >= seen - 1e-9 for split in splits) / len(splits)


@given(SMALL, SMALL)
def test_the_exact_p_value_is_that_of_all_splits(first: list[float], second: list[float]) -> None:
    assert mann_whitney(first, second) == pytest.approx(_by_trying_all(first, second))


@given(SAMPLES, SAMPLES)
def test_a_p_value_knows_no_order_and_no_unit(first: list[float], second: list[float]) -> None:
    p = mann_whitney(first, second)
    assert 0.0 < p <= 1.0 + 1e-9
    assert mann_whitney(second, first) == pytest.approx(p)
    assert mann_whitney([2.0 * x for x in first], [2.0 * x for x in second]) == pytest.approx(p)


@pytest.mark.parametrize(("first", "second"), [(3, 3), (4, 4), (5, 5), (2, 9), (8, 7)])
def test_samples_that_are_quite_apart_have_the_smallest_p_value(first: int, second: int) -> None:
    low, high = [float(x) for x in range(first)], [100.0 + x for x in range(second)]
    assert mann_whitney(low, high) == pytest.approx(smallest_p(first, second))


def test_many_samples_are_approximated_and_still_told_apart() -> None:
    low, high = [float(x) for x in range(40)], [30.0 + x for x in range(40)]
    assert mann_whitney(low, high) < 0.001
    assert mann_whitney(low, [x + 0.5 for x in low]) > 0.5
    assert mann_whitney([1.0] * 40, [1.0] * 40) == 1.0


@given(st.lists(st.floats(0.0, 1.0), max_size=20))
def test_corrected_p_values_are_no_smaller_and_keep_their_order(values: list[float]) -> None:
    corrected = adjusted(values)
    assert all(p <= q <= 1.0 for p, q in zip(values, corrected, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert all(corrected[a] <= corrected[b] for a, b in itertools.pairwise(order))


@settings(max_examples=25)  # each draws some ten thousand samples
@given(SAMPLES, SAMPLES, st.floats(0.1, 10.0))
def test_a_ratio_scales_with_its_samples(mine: list[float], other: list[float], factor: float) -> None:
    low, high, _ = ratio_interval(mine, other)
    assert low <= high
    scaled = ratio_interval([factor * each for each in mine], other)
    assert scaled.low == pytest.approx(factor * low)
    assert scaled.high == pytest.approx(factor * high)


def test_a_ratio_of_like_samples_holds_one() -> None:
    samples = [10.0, 11.0, 12.0, 13.0]
    low, high, _ = ratio_interval(samples, samples)
    assert low < 1.0 < high
    assert ratio_interval(samples, samples) == ratio_interval(samples, samples)


def test_nothing_is_said_of_a_ratio_to_nothing() -> None:
    assert math.isnan(ratio_interval([1.0], [0.0]).low)
