"""The contents of reports: medians with intervals, ratios side by side, merged distributions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.suite.peers import FLOOR, OURS, PEERS
from mcp_actors.cli.bench.results import Document, Interval, Key, Place, interval, median

__all__ = [
    "NODE_WARM_UP",
    "SHOWN",
    "Group",
    "compared_peers",
    "groups",
    "ratio_text",
    "ratios",
    "shown_metrics",
    "transport_name",
    "warmth",
]

# The option of a document that says by how many calls programs on Node were warmed.
NODE_WARM_UP = "node_warm_up_calls"
# The metrics that a reader looks at, by scenario; of others all that there are.
SHOWN = {
    "roundtrip": ("per_second", "p50_us", "p99_us", "p999_us", "cpu_us"),
    "awaits_once": ("per_second", "p50_us", "p99_us", "cpu_us"),
    "ragged_arrival": ("per_second", "p50_us", "p99_us", "cpu_us"),
    "eras": ("per_second", "p50_us", "cpu_us"),
    "client_calls": ("per_second", "each_us", "call_us"),
    "startup": ("start_ms", "start_cpu_ms", "rss_mib"),
    "many_sessions": (
        "kib_each",
        "setups_per_second",
        "setup_cpu_us",
        "churn_per_second",
        "cpu_us",
        "p99_us",
    ),
    "mixed": ("per_second", "p50_us", "p99_us", "cpu_us"),
}

_TRANSPORT_NAMES = {
    "http": "HTTP",
    "http+unix": "HTTP over a Unix socket",
    "tcp": "TCP",
    "unix": "Unix socket",
    "ws": "WebSocket",
}


class Group(NamedTuple):
    """All peers at one place."""

    scenario: str
    transport: str
    era: str
    at: Place
    samples: dict[str, dict[str, list[float]]]  # of each peer, of each metric


def groups(document: Document) -> list[Group]:
    """In the order in which they were measured."""
    found: dict[Key, Group] = {}
    for key, metrics in document.samples().items():
        place = key._replace(peer="")
        group = found.setdefault(place, Group(key.scenario, key.transport, key.era, key.at, {}))
        group.samples[key.peer] = metrics
    return list(found.values())


def shown_metrics(scenario: str, all_of_it: Iterable[Group]) -> list[str]:
    there = dict.fromkeys(
        metric for group in all_of_it for metrics in group.samples.values() for metric in metrics
    )
    wanted = SHOWN.get(scenario)
    return [metric for metric in wanted if metric in there] if wanted else list(there)


def ratios(group: Group, metric: str, other: str) -> list[float]:
    """Returns ours divided by the figure of ``other``, in each round; nothing where one of them is missing or zero."""
    mine = group.samples.get(OURS, {}).get(metric)
    theirs = group.samples.get(other, {}).get(metric)
    if not mine or not theirs or len(mine) != len(theirs) or not all(theirs):
        return []
    return [ours / their for ours, their in zip(mine, theirs, strict=True)]


def ratio_text(group: Group, metric: str, other: str) -> str:
    """Returns the median of the `ratios` of the rounds, with its interval."""
    found = ratios(group, metric, other)
    if not found:
        return "-"
    where: Interval = interval(found)
    return f"{median(found):.2f}x" + (f" ({where.low:.2f} to {where.high:.2f})" if len(found) > 1 else "")


def transport_name(transport: str) -> str:
    """Returns how people call a transport; one of the reader's own has the name that was given to it."""
    return _TRANSPORT_NAMES.get(transport) or transport.partition("=")[0]


def warmth(document: Document) -> str:
    """Says how warm the programs on Node were before their figures were taken; nothing without such programs."""
    there = {row.peer for row in document.rows}
    if not any(peer.warm_up_calls for name, peer in PEERS.items() if name in there):
        return ""
    calls = document.options.get(NODE_WARM_UP)
    if not calls:
        return "programs on Node were not known to be warm: ratios to them may flatter us by a third"
    return f"programs on Node answer {calls:,} calls before a ratio to their speed is taken, but among many sessions"


def warnings_in_short(document: Document) -> list[str]:
    """The warnings, those that differ in nothing but place and number together."""
    found: dict[tuple[str, str], list[str]] = {}
    for warning in document.warnings:
        where, _, note = warning.partition(": ")
        found.setdefault((where.partition(" ")[0], re.sub(r"\d+", "N", note)), []).append(warning)
    short = []
    for several in found.values():
        more = f" (and {len(several) - 1} more like it)" if len(several) > 1 else ""
        short.append(several[0] + more)
    return short


def compared_peers(document: Document) -> list[str]:
    """Those that ours is compared with: all others, the floor last."""
    there = {row.peer for row in document.rows}
    return [name for name in PEERS if name in there and name not in (OURS, FLOOR)] + [FLOOR] * (
        FLOOR in there
    )
