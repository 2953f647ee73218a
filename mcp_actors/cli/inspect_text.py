"""The report of an inspection as text for people. Nothing that a server sent reaches a terminal as it came."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

import click

from mcp_actors.cli.output import safe
from mcp_actors.inspection import EraReport, Finding, Latency, ServerReport

__all__ = ["report_lines"]

_COLOURS = {"error": "red", "warning": "yellow"}
# Names of each list that are shown.
SHOWN_NAMES = 8


def report_lines(report: ServerReport) -> Iterator[str]:
    """Returns the lines of a report."""
    yield click.style(safe(report.target), bold=True)
    if not report.eras and report.authorization is None:
        yield "no revision of the protocol was found here"
    if report.authorization is not None:
        asked = report.authorization
        yield f"asks for authorization: HTTP {asked.status}, {', '.join(map(safe, asked.challenges)) or 'no challenge'}"
        for url in asked.metadata_urls:
            yield f"  metadata: {safe(url)}"
    for era in report.eras:
        yield ""
        yield from _era_lines(era)
    yield ""
    yield from _finding_lines(report)
    yield from _unchecked_lines(report)
    yield ""
    yield from _closing_lines(report)


def _era_lines(era: EraReport) -> Iterator[str]:
    name = f"{era.server_name or 'a server without a name'} {era.server_version}".strip()
    yield click.style(f"{era.era} era", bold=True, underline=True)
    yield f"  server        {safe(name)}"
    yield f"  revisions     {', '.join(map(safe, era.versions))} (inspected: {era.inspected})"
    yield f"  capabilities  {', '.join(map(safe, era.capabilities)) or 'none'}"
    if era.extensions:
        yield f"  extensions    {', '.join(map(safe, era.extensions))}"
    if era.instructions:
        yield f"  instructions  {era.instructions:,} characters"
    for what, found in era.lists.items():
        pages = f" in {found.pages} pages" if found.pages > 1 else ""
        names = ", ".join(map(safe, found.names[:SHOWN_NAMES]))
        more = ", …" if found.count > SHOWN_NAMES else ""
        which = f": {names}{more}" if found.names else ""
        yield f"  {what:<18}  {found.count}{pages}, {found.size:,} bytes{which}"
        if found.stopped is not None:
            yield f"  {'':<18}  not everything was listed: {safe(found.stopped)}"
    if era.latency:
        yield "  answers             in flight   median      p99    a second"
        yield from map(_latency_line, era.latency)


def _latency_line(each: Latency) -> str:
    failed = f"   {each.failed} failed" if each.failed else ""
    return (
        f"    {each.method:<18}{each.in_flight:>9}{each.median_ms:>7.1f} ms{each.p99_ms:>6.1f} ms"
        f"{each.per_second:>12,.0f}{failed}"
    )


def _finding_lines(report: ServerReport) -> Iterator[str]:
    if not report.findings and not report.unchecked and report.eras:
        yield click.style("nothing was found that violates a rule", fg="green")
    shown: set[tuple[str, str]] = set()
    for severity in ("error", "warning"):
        for each in report.findings:
            if each.severity == severity:
                if (each.rule, each.era) not in shown:
                    shown.add((each.rule, each.era))
                    yield from _rule_lines(each)
                yield f"    - {safe(each.observed)}"


def _rule_lines(finding: Finding) -> Iterator[str]:
    head = click.style(f"{finding.severity:<8}", fg=_COLOURS[finding.severity], bold=True)
    yield f"{head}{finding.rule} ({finding.era} era)"
    yield f"    {finding.demand}"
    yield click.style(f"    {finding.source}", dim=True)


def _unchecked_lines(report: ServerReport) -> Iterator[str]:
    rules: dict[tuple[str, str], list[str]] = {}
    for each in report.unchecked:
        rules.setdefault((each.era, each.reason), []).append(each.rule)
    for (era, reason), names in rules.items():
        head = click.style("not checked", fg="yellow", bold=True)
        yield f"{head} ({era} era): {safe(reason)}"
        yield textwrap.fill(", ".join(names), 100, initial_indent=" " * 4, subsequent_indent=" " * 4)


def _closing_lines(report: ServerReport) -> Iterator[str]:
    results = Counter(each.result for each in report.outcomes)
    yield (
        f"{len(report.outcomes)} rules: {results['followed']} followed, {results['violated']} violated, "
        f"{results['not applicable']} not applicable, {results['not checked']} not checked"
    )
    yield (
        f"{report.requests} messages, {report.received_bytes:,} bytes received, in {report.seconds:.1f} s"
        + (f"; stopped early: {safe(report.stopped)}" if report.stopped is not None else "")
    )
