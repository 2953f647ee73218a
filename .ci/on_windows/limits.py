"""A plugin of pytest that knows which tests meet a limit of Wine, and writes down what became of each test.

The table `windows.toml` names the tests that cannot pass there, each with its reason. One that fails is counted as a
limit, and never as passed; one that passes although the table names it has failed, so that the table does not outlive
what it is about. Those that would hang or end their process are not started.

Each line of the report is one JSON object, written before and after a test: a process that hangs or dies has named
the test in which it did so.
"""

from __future__ import annotations

import json
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

__all__ = ["REPORT", "SECTIONS", "pytest_configure", "table"]

REPORT = "WINDOWS_REPORT"
"""The environment variable that names the file for the report."""
_NOT_STARTED = "not started"
SECTIONS = {
    "wine": "limits of Wine",
    _NOT_STARTED: "not started for a limit of Wine",
    "posix": "that need POSIX",
}
"""The sections of the table that name tests, and what these are called at the end."""


@cache
def table() -> dict[str, dict[str, Any]]:
    """Returns the table: the files of the tests in batches, and the reason by the id of a test in each section."""
    return tomllib.loads(Path(__file__).with_name("windows.toml").read_text(encoding="utf-8"))


def pytest_configure(config: pytest.Config) -> None:
    if REPORT in os.environ:
        config.pluginmanager.register(_Limits(Path(os.environ[REPORT])), "windows-limits")


class _Limits:
    """Marks the tests of the table, and writes the report."""

    def __init__(self, report: Path) -> None:
        self._report = report.open("a", encoding="utf-8")
        self._sections: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for section in SECTIONS:
                names = table().get(section, {})
                reason = names.get(item.nodeid) or names.get(item.nodeid.partition("[")[0])
                if reason is not None:
                    self._sections[item.nodeid] = section
                    run = section != _NOT_STARTED
                    item.add_marker(pytest.mark.xfail(run=run, strict=True, reason=reason))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(began=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        if report.skipped and hasattr(report, "wasxfail"):
            outcome, why = self._sections.get(report.nodeid, "passed"), report.wasxfail
        else:
            outcome, why = report.outcome, "" if report.passed else report.longreprtext
        self._write(test=report.nodeid, outcome=outcome, why=why)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", why=report.longreprtext)

    def pytest_sessionfinish(self) -> None:
        self._write(ended=True)

    def _write(self, **line: object) -> None:
        print(json.dumps(line), file=self._report, flush=True)
