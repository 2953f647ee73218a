"""A document as Markdown."""

from __future__ import annotations

from benchmarks.suite.goal_table import goal_rows, goals_markdown
from benchmarks.suite.peers import OURS, PEERS
from benchmarks.suite.scenarios.table import SCENARIOS
from benchmarks.suite.summary import summary
from benchmarks.suite.views import (
    Group,
    compared_peers,
    groups,
    ratio_text,
    shown_metrics,
    transport_name,
    warmth,
    warnings_in_short,
)
from mcp_actors.cli.bench.results import METRICS, Document, figure_text, interval, place_text

__all__ = ["RATIO", "about", "how_to_read", "markdown", "tables"]

RATIO = (
    "A ratio is ours divided by theirs, everywhere: of calls a second 2x is twice as many, of a time or of memory 0.5x "
    "is half as much."
)


def about(document: Document) -> list[tuple[str, str]]:
    """Returns the machine and the versions of the figures."""
    options = document.options
    size = (
        f"{options['size']}, {options['rounds']} rounds, loops of {options['seconds']:g} s, seed {options['seed']}, "
        f"{document.seconds:.0f} s in all"
    )
    versions = ", ".join(
        version if " " in version else f"{name} {version}" for name, version in document.versions.items()
    )
    there = {row.peer for row in document.rows}
    peers = "; ".join(f"{name}: {peer.title}" for name, peer in PEERS.items() if name in there)
    return [
        *document.machine.items(),
        ("peers", peers),
        ("versions", versions),
        ("commit", document.commit),
        ("date", document.started),
        ("run", size),
    ]


def how_to_read(document: Document) -> str:
    rounds = document.options["rounds"]
    samples = "One round: nothing is said of how sure a figure is. "
    if rounds > 1:
        confidence = interval([float(each) for each in range(rounds)]).confidence
        samples = (
            f"Medians of {rounds} rounds; in brackets where the median lies ({confidence:.0%} of the time, whatever "
            "the distribution). "
        )
    warm = warmth(document)
    about_node = f"{warm[0].upper()}{warm[1:]}. " if warm else ""
    return (
        f"{RATIO} {samples}{about_node}Every round measures all peers one after the other, and ratios are taken "
        "within a round. Load comes from a process of its own; open loops send at a fixed rate and count from when a "
        "request was meant to be sent. Compare ratios: absolute figures drift from machine to machine and from hour to "
        "hour."
    )


def tables(document: Document) -> list[tuple[str, list[list[str]]]]:
    """For every scenario its title and rows, the first of them the head."""
    others = compared_peers(document)
    by_scenario: dict[str, list[Group]] = {}
    for group in groups(document):
        by_scenario.setdefault(group.scenario, []).append(group)
    found = []
    for name, here in by_scenario.items():
        there = [peer for peer in (OURS, *others) if any(peer in group.samples for group in here)]
        against = [peer for peer in there if peer != OURS] if OURS in there else []
        head = ["transport", "era", "where", "what", *there, *(f"ours / {peer}" for peer in against)]
        rows = [head]
        for group in sorted(here, key=lambda each: (each.transport, each.era)):
            for metric in shown_metrics(name, here):
                cells = [
                    figure_text(group.samples[peer][metric]) if metric in group.samples.get(peer, {}) else "-"
                    for peer in there
                ]
                if set(cells) == {"-"}:
                    continue
                described = METRICS[metric]
                ratios = [ratio_text(group, metric, peer) for peer in against]
                unit = f", {described.unit}" if described.unit else ""
                what = f"{described.title}{unit} ({'more' if described.better == 'higher' else 'less'} is better)"
                where = transport_name(group.transport), group.era, place_text(group.at)
                rows.append([*where, what, *cells, *ratios])
        title = SCENARIOS[name].title if name in SCENARIOS else ""
        found.append((f"{name}: {title}", rows))
    return found


def markdown(document: Document) -> str:
    lines = ["# Benchmarks of mcp-actors", "", summary(document), ""]
    lines += [f"- {name}: {value}" for name, value in about(document)]
    lines += ["", how_to_read(document), ""]
    if document.warnings:
        lines += ["## Mind", "", *(f"- {warning}" for warning in warnings_in_short(document)), ""]
    if goal_rows(document):
        lines += ["## Goals", "", goals_markdown(document)]
    for title, rows in tables(document):
        lines += [f"## {title}", "", _line(rows[0]), "|" + "---|" * len(rows[0])]
        lines += [*map(_line, rows[1:]), ""]
    if document.failures:
        lines += ["## No figure", ""]
        for failure in document.failures:
            peer = PEERS[failure.peer].title if failure.peer in PEERS else failure.peer
            where = f"{failure.scenario}, {transport_name(failure.transport)}, {failure.era}, {peer}"
            lines.append(f"- {where}: {' '.join(failure.reason.split())}")
        lines.append("")
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
