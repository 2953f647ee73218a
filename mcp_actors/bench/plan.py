"""A load as data: what one process is to send, to which server, for how long."""

from __future__ import annotations

import json
from typing import Any

import attrs

from mcp_actors.bench.calls import PlannedCall
from mcp_actors.bench.eras import Era

__all__ = ["LoadPlan", "Stage", "ramp_stages"]

RAMP_STAGES = 10
SLICES = 10
# Of each stage of a ramp, which has fewer seconds.
SLICES_OF_A_STAGE = 4


@attrs.frozen
class Stage:
    """A part of a load: ``window`` requests in flight, or ``rate`` requests a second, whichever is not 0.

    It ends after ``seconds`` or after ``calls`` requests, if that is not 0.
    """

    seconds: float
    window: int = 0
    rate: float = 0.0
    calls: int = 0
    slices: int = SLICES

    @property
    def at(self) -> dict[str, int | str]:
        return {"arrivals_per_second": round(self.rate)} if self.rate else {"in_flight": self.window}


@attrs.frozen
class LoadPlan:
    """Everything that a load process needs to know. ``headers`` may be secrets: they are in no result.

    ``through_client`` says that the transport's own client is needed, and ``login`` that it uses a stored login.
    """

    url: str
    era: Era
    version: str
    calls: list[PlannedCall]
    stages: list[Stage]
    sessions: int = 1
    warm_up: float = 0.0
    cancel_share: float = 0.0
    timeout: float = 30.0
    seed: int = 0
    through_client: bool = False
    login: bool = False
    headers: dict[str, str] = attrs.field(factory=dict, repr=False)

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LoadPlan:
        members: dict[str, Any] = json.loads(text)
        members["calls"] = [PlannedCall(**each) for each in members["calls"]]
        members["stages"] = [Stage(**each) for each in members["stages"]]
        return cls(**members)


def ramp_stages(low: float, high: float, seconds: float) -> list[Stage]:
    """Returns stages from one rate to another, each by the same factor above the one before."""
    factor = (high / low) ** (1 / (RAMP_STAGES - 1))
    each = seconds / RAMP_STAGES
    rates = [low * factor**number for number in range(RAMP_STAGES)]
    return [Stage(each, rate=rate, slices=SLICES_OF_A_STAGE) for rate in rates]
