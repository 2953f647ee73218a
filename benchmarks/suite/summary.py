"""The figures of a run in a few sentences, for readers who stop there."""

from __future__ import annotations

from benchmarks.suite.goal_table import goal_rows
from benchmarks.suite.peers import FLOOR, OURS, PEERS
from benchmarks.suite.views import Group, compared_peers, groups, ratios, transport_name
from mcp_actors.cli.bench.results import Document, median

__all__ = ["summary"]


def summary(document: Document) -> str:
    """Returns the throughput of ours beside the others, how many goals were reached, and what gave no figure."""
    found = list(_busiest(document).values())
    others = [peer for peer in compared_peers(document) if not peer.startswith(FLOOR)]
    # Where there is another SDK on some transport, the others say little.
    beside = [group for group in found if any(peer in group.samples for peer in others)]
    rates = [_throughput(group, others) for group in beside or found]
    sentences = [f"mcp-actors answers {'; '.join(rates)}."] if rates else []
    if not rates:
        scenarios = list(dict.fromkeys(row.scenario for row in document.rows))
        sentences.append(
            f"{len(document.rows)} rows of figures: {', '.join(scenarios) or 'nothing was measured'}."
        )
    goals = [cell for row in goal_rows(document)[1:] for cell in row[1:] if "goal " in cell.text]
    if goals:
        sentences.append(f"{sum(not cell.missed for cell in goals)} of {len(goals)} goals are reached.")
    if document.failures:
        sentences.append(f"Jobs that gave no figure: {len(document.failures)}, listed at the end.")
    return " ".join(sentences)


def _busiest(document: Document) -> dict[str, Group]:
    """For each transport the closed loop of roundtrip with the most peers, and then with the most in flight."""
    found: dict[str, Group] = {}
    ranks: dict[str, tuple[int, int]] = {}
    for group in groups(document):
        at = dict(group.at)
        if group.scenario != "roundtrip" or set(at) != {"in_flight"} or not _ours(group):
            continue
        rank = len(group.samples), int(at["in_flight"])
        if rank > ranks.get(group.transport, (0, 0)):
            ranks[group.transport], found[group.transport] = rank, group
    return found


def _ours(group: Group) -> list[float]:
    return group.samples.get(OURS, {}).get("per_second", [])


def _throughput(group: Group, others: list[str]) -> str:
    beside = [
        f"{_times(median(found))}x that of {PEERS[other].title}"
        for other in others
        if (found := ratios(group, "per_second", other))
    ]
    window = dict(group.at)["in_flight"]
    rate = (
        f"{median(_ours(group)):,.0f} requests a second over {transport_name(group.transport)} "
        f"({group.era}, {window} in flight)"
    )
    return rate + (f", {_listed(beside)}" if beside else "")


def _listed(texts: list[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"
