"""The alerts and the dashboard in ``docs/how-to/operations``: they ask for metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from mcp_actors.cli.workers.view import WorkersMetrics
from mcp_actors.telemetry import Metrics
from mcp_actors.telemetry.metrics import GAUGES
from tests.pages import DOCS, PAGES

OPERATIONS = DOCS / "how-to" / "operations"
ALERTS = (OPERATIONS / "alerts.yml").read_text()
DASHBOARD: dict[str, Any] = json.loads((OPERATIONS / "dashboard.json").read_text())
# What the exporter of Prometheus adds to the name of a histogram.
PARTS = ("_bucket", "_sum", "_count")


def expressions() -> Iterator[tuple[str, str]]:
    """(what asks, the expression) for each alert and each query of a panel."""
    yield from re.findall(r"- alert: (\w+)\n\s+expr: (.*?)\n\s+(?:for|labels):", ALERTS, re.DOTALL)
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


async def names() -> set[str]:
    """The names of all metrics."""
    metrics = Metrics()
    found = {each.name: each.kind for each in metrics.families()} | {each.name: each.kind for each in GAUGES}
    page = await WorkersMetrics(list, lambda: {"ready": 1}, 1).text()
    found |= dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    histograms = [name for name, kind in found.items() if kind == "histogram"]
    return {*found, *(f"{name}{part}" for name in histograms for part in PARTS), "up"}


@pytest.mark.parametrize(("what", "expression"), list(expressions()), ids=lambda text: text[:40])
async def test_an_expression_asks_for_what_there_is(what: str, expression: str) -> None:
    asked = set(re.findall(r"\b(?:mcp|process)_\w+|\bup\b(?=\{)", re.sub(r'"[^"]*"', '""', expression)))
    asked -= {"mcp_method_name"}
    assert asked, what
    assert asked <= await names()


def test_the_page_tells_of_each_alert() -> None:
    page = PAGES["how-to/telemetry.md"]
    assert [each for each in re.findall(r"- alert: (\w+)", ALERTS) if f"`{each}`" not in page] == []


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    """The cells of the grid that a panel covers."""
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    return {(column, place["y"] + row) for column in columns for row in range(place["h"])}


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    covered = [cell for panel in DASHBOARD["panels"] for cell in cells(panel)]
    # Two panels in one place would hide each other, and a gap is one that was forgotten.
    assert len(set(covered)) == len(covered) == 24 * (1 + max(row for _, row in covered))
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "job", "instance"}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'instance=~"$instance"' in target["expr"]


def test_the_dashboard_asks_for_no_servers_of_others() -> None:
    """`up` and `process_*` are metrics of every job, so that all jobs must be those that have our metrics."""
    (job,) = (each for each in DASHBOARD["templating"]["list"] if each["name"] == "job")
    assert "allValue" not in job


def test_a_legend_names_what_tells_its_series_apart() -> None:
    drawn = [panel for panel in DASHBOARD["panels"] if panel["type"] in ("timeseries", "state-timeline")]
    for title, target in ((panel["title"], target) for panel in drawn for target in panel["targets"]):
        expression = target["expr"]
        groups = re.findall(r"\bby \(([^)]*)\)", expression)
        # What is not aggregated is a number of each server.
        labels = {label for each in groups for label in each.split(", ")} - {"le"}
        if not re.search(r"\b(?:sum|max|min|count)\b", expression):
            labels = {"instance"}
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named == labels, title
        assert target["legendFormat"], title


def test_the_dashboard_counts_the_failures_that_the_alert_counts() -> None:
    (panel,) = (each for each in DASHBOARD["panels"] if each["title"] == "Failing calls")
    (rule,) = (expression for what, expression in expressions() if what == "McpErrors")
    failures = re.compile(r'ending="[^}]*')
    assert set(failures.findall(panel["targets"][0]["expr"])) == set(failures.findall(rule))
