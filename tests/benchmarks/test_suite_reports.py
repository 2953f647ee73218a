"""Reports and comparisons of results that were made up."""

from __future__ import annotations

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.suite.command import main
from benchmarks.suite.goals import GOALS
from benchmarks.suite.page import page
from benchmarks.suite.report import RATIO, markdown
from benchmarks.suite.views import groups, ratios
from mcp_actors.cli.bench.plan import LoadError
from mcp_actors.cli.bench.recorder import encoded
from mcp_actors.cli.bench.report import Plot, PlotLine
from mcp_actors.cli.bench.results import METRICS, Document, JobFailure, ResultRow, compare, comparison_text

PEERS = ("ours", "floor", "official")


def made_up(rounds: int = 6, *, seed: int = 1, drift: float = 1.0, ours: float = 1.0) -> Document:
    """A run in which ours is slowed by ``ours`` on HTTP, and the machine as a whole by ``drift``."""
    chance = random.Random(seed)
    options = {"size": "full", "rounds": rounds, "seconds": 1.0, "seed": seed}
    document = Document({"processor": "made up"}, {"trio": "0.35"}, "abc", "2026-01-01", options)
    for turn in range(1, rounds + 1):
        for transport in ("stdio", "http"):
            for window in (1, 16, 64):
                for peer in PEERS:
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
                        turn, "roundtrip", transport, "modern", peer, at, metrics, encoded(took), 0.1
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
    assert "<b>" not in text
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
