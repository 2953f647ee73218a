"""What the rows of a run say, by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .load import Row

__all__ = ["Phase", "failures", "most_forgotten", "table"]


@dataclass(frozen=True)
class Phase:
    """A part of a run; times are seconds since the epoch. In a calm one nothing is disturbed, nor shortly before."""

    name: str
    begins: float
    ends: float
    calm: bool

    def overlaps(self, row: Row) -> bool:
        return row["at"] < self.ends and row["at"] + row["took"] > self.begins


def phase_of(row: Row, phases: Sequence[Phase]) -> Phase:
    """The phase in which a call began; a call that reaches into a disturbance belongs to the disturbance."""
    disturbed = [phase for phase in phases if not phase.calm and phase.overlaps(row)]
    if disturbed:
        return disturbed[0]
    return next((phase for phase in phases if row["at"] < phase.ends), phases[-1])


def gives_up_listening(client: str) -> bool:
    """Whether a client may stop to listen: the SDKs try twice to get the stream of a session back, and then never.

    The sessions of our client, and subscriptions of the stateless revision, are there again.
    """
    return client.endswith("-legacy") and not client.startswith("ours")


def failures(rows: Iterable[Row], phases: Sequence[Phase]) -> list[Row]:
    """What must not be: wrong answers and silence ever, errors and unheard updates while nothing is disturbed.

    A client that called nothing meanwhile learns of the end of its session by its next call, which is no failure.
    """
    found = []
    answered: dict[tuple[str, int], float] = {}
    for row in sorted(rows, key=lambda row: row["at"] + row["took"]):
        session, phase = (row["client"], row["session"]), phase_of(row, phases)
        disturbed = max(
            (each.ends for each in phases if not each.calm and each.ends <= row["at"]), default=0.0
        )
        is_news = is_end_of_session(row) and 0.0 < answered.get(session, 0.0) < disturbed
        if is_failure(row, phase, phases[0]) and not is_news:
            found.append(row)
        if row["end"] == "right":
            answered[session] = row["at"]
    return found


def is_failure(row: Row, phase: Phase, first: Phase) -> bool:
    if row["end"] == "unheard":
        return phase is first or (phase.calm and not gives_up_listening(row["client"]))
    return row["end"] in {"wrong", "silent"} or (row["end"] == "error" and phase.calm)


def most_forgotten(rows: Iterable[Row], phase: Phase) -> int:
    """How often one client was told in a phase that its session is not there; the most of all."""
    told = Counter((row["client"], row["session"]) for row in rows if is_404(row) and phase.overlaps(row))
    return max(told.values(), default=0)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def longest_gap(rows: Sequence[Row]) -> float:
    """The longest time in which no call of any client was answered, in seconds."""
    answered = sorted(row["at"] + row["took"] for row in rows if row["end"] == "right")
    return max((later - earlier for earlier, later in pairwise(answered)), default=0.0)


def table(rows: Sequence[Row], phases: Sequence[Phase]) -> str:
    """The figures as text, of each phase and then of each client."""
    lines = [
        "phase          seconds  calls  right  error  wrong  silent  unheard  echo p50/p95/p99/max ms  gap s"
    ]
    for phase in phases:
        of = [row for row in rows if phase_of(row, phases) is phase]
        ends = Counter(row["end"] for row in of)
        took = [row["took"] * 1000 for row in of if row["end"] == "right" and row["kind"] == "echo"]
        spread = "/".join(f"{percentile(took, share):.0f}" for share in (0.5, 0.95, 0.99, 1.0))
        counts = "".join(f"{ends[end]:7}" for end in ("right", "error", "wrong", "silent", "unheard"))
        seconds = phase.ends - phase.begins
        lines.append(
            f"{phase.name:14} {seconds:7.1f}{len(of):7}{counts}  {spread:>22}  {longest_gap(of):5.1f}"
        )
    lines.append("")
    lines.append("client                sessions  connects  calls  errors  404s  longest call s")
    for client in sorted({row["client"] for row in rows}):
        of = [row for row in rows if row["client"] == client]
        connects = sum(row["kind"] == "connect" and row["end"] == "right" for row in of)
        errors = [row for row in of if row["end"] == "error"]
        forgotten = sum(map(is_404, errors))
        longest = max(row["took"] for row in of)
        sessions = len({row["session"] for row in of})
        lines.append(
            f"{client:22}{sessions:8}{connects:10}{len(of):7}{len(errors):8}{forgotten:6}{longest:10.1f}"
        )
    lines.append("")
    told = Counter(
        (phase_of(row, phases).name, row["client"], row["kind"], row.get("error", row["end"])[:190])
        for row in rows
        if row["end"] != "right"
    )
    for (phase_name, client, kind, error), times in sorted(told.items()):
        lines.append(f"{times:6} x {phase_name:10} {client:22} {kind:8} {error}")
    return "\n".join(lines)


def is_end_of_session(row: Row) -> bool:
    """Whether a client was told that its session has ended: that it is not there, or that its node was lost (502).

    A node is lost to the others when it has been silent for some seconds, which on a slow machine is over when the
    node that takes its place serves already.
    """
    lost = ("502", "the node that held the session was lost")
    return is_404(row) or (row["end"] == "error" and any(words in row["error"] for words in lost))


def is_404(row: Row) -> bool:
    """Whether a client was told that its session is not there."""
    told = ("404", "Session terminated", "SessionExpired", "session not found")
    return row["end"] == "error" and any(words in row["error"] for words in told)
