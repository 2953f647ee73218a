"""The findings of an inspection, as values that become JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from mcp_actors.inspection.latency import Latency
from mcp_actors.inspection.rule import Severity

__all__ = ["AuthorizationReport", "EraReport", "Finding", "ListReport", "RuleOutcome", "ServerReport"]

Result = Literal["followed", "violated", "not applicable", "not checked"]


@attrs.frozen(kw_only=True)
class Finding:
    """Something that a server does against a rule."""

    rule: str
    severity: Severity
    era: str
    source: str
    """The revision, the page and the section of the specification."""
    demand: str
    """What the rule demands."""
    observed: str
    """What the server does, with its own words cut and without control characters."""


@attrs.frozen(kw_only=True)
class RuleOutcome:
    """The outcome of one rule in one era."""

    rule: str
    severity: Severity
    era: str
    source: str
    result: Result
    reason: str = ""
    """Why it was not checked, or says nothing about this server."""


@attrs.frozen(kw_only=True)
class ListReport:
    """One list of a server."""

    count: int
    pages: int
    size: int
    """Bytes of all pages."""
    names: tuple[str, ...]
    """The first names, cut."""
    stopped: str | None = None
    """Why not everything was listed."""


@attrs.frozen(kw_only=True)
class EraReport:
    """The words of a server about itself in one era."""

    era: str
    versions: tuple[str, ...]
    """The revisions that it speaks, oldest first."""
    inspected: str
    """The revision that the rules were checked in."""
    server_name: str
    server_version: str
    instructions: int
    """Characters of its instructions."""
    capabilities: tuple[str, ...]
    extensions: tuple[str, ...]
    lists: Mapping[str, ListReport]
    latency: tuple[Latency, ...] = ()


@attrs.frozen(kw_only=True)
class AuthorizationReport:
    """The way in which a server asks for authorization."""

    status: int
    challenges: tuple[str, ...]
    """The schemes of its challenges."""
    metadata_urls: tuple[str, ...]
    """The places of its metadata, that of its challenge or the well-known ones."""


@attrs.frozen(kw_only=True)
class ServerReport:
    """The report of one inspection."""

    target: str
    eras: tuple[EraReport, ...]
    authorization: AuthorizationReport | None
    findings: tuple[Finding, ...]
    outcomes: tuple[RuleOutcome, ...]
    requests: int
    received_bytes: int
    connections: int
    seconds: float
    stopped: str | None = None
    """Why the inspection ended early."""

    @property
    def violates(self) -> bool:
        """Whether something was found that the specification forbids."""
        return any(each.severity == "error" for each in self.findings)

    @property
    def unchecked(self) -> tuple[RuleOutcome, ...]:
        """The rules that could not be checked, each with the reason: a bound was reached, or nothing was answered."""
        return tuple(each for each in self.outcomes if each.result == "not checked")

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain JSON values."""
        found: dict[str, Any] = attrs.asdict(self)
        found |= {"violates": self.violates, "complete": not self.unchecked}
        return found
