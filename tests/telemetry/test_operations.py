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


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    # Two panels in one place would hide each other.
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "job", "instance"}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'instance=~"$instance"' in target["expr"]
