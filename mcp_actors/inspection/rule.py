"""The form of a rule: a sentence, its place in the specification, and a function that judges a server by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import attrs

from mcp_actors._eras.legacy.revisions import REVISIONS
from mcp_actors._eras.modern.eras import LATEST_MODERN
from mcp_actors.inspection.inspected import SpokenEra

__all__ = [
    "Check",
    "NotApplicable",
    "Rule",
    "Severity",
    "Source",
    "first",
    "latest",
    "modern",
    "second",
    "third",
]

Severity = Literal["error", "warning"]
"""Whether the specification says MUST (or its schema demands it), or SHOULD."""
Binding = Literal["any", "http", "stream"]


class NotApplicable(Exception):
    """A rule says nothing about this server, for the reason that is the text."""


Check = Callable[[SpokenEra], Awaitable[list[str]]]
"""Returns what a server does against a rule, one sentence for each; empty if it follows it.

Raises `NotApplicable` where the rule says nothing about the server.
"""


@attrs.frozen
class Source:
    """The place of a rule: the oldest revision that has it in these words, the page and the section."""

    revision: str
    page: str
    section: str

    def __str__(self) -> str:
        return f"MCP {self.revision}, {self.page}, {self.section}"


@attrs.frozen(kw_only=True)
class Rule:
    """A rule. It is checked in each era for which it has a source."""

    name: str
    severity: Severity
    text: str
    """What the specification demands, in one sentence."""
    check: Check
    legacy: Source | None = None
    modern: Source | None = None
    binding: Binding = "any"
    """Where it exists: everywhere, over single HTTP requests, or over a channel."""
    calls: bool = False
    """Whether the check calls tools, which it may only where that was allowed."""
    access: bool = False
    """Whether it is about the refusal of a request without credentials."""
    disruptive: bool = False
    """Whether a server that breaks the rule may end of it, so that all other rules are checked before."""
    last: bool = False
    """Whether it judges all answers of the inspection, and so comes after all rules that ask."""

    def source_for(self, spoken: SpokenEra) -> Source | None:
        """Returns the place of the rule for an era; ``None`` if the rule is not one of the inspected revision."""
        if spoken.era.asks_by_retry:
            return self.modern
        source = self.legacy
        if source is None or REVISIONS.index(source.revision) > REVISIONS.index(spoken.era.version):
            return None
        return source


def first(page: str, section: str) -> Source:
    """A place in the first revision, whose rule the later ones with sessions have too."""
    return Source(REVISIONS[0], page, section)


def second(page: str, section: str) -> Source:
    """As `first`, of the second revision."""
    return Source(REVISIONS[1], page, section)


def third(page: str, section: str) -> Source:
    """As `first`, of the third revision."""
    return Source(REVISIONS[2], page, section)


def latest(page: str, section: str) -> Source:
    """A place in the latest revision with sessions."""
    return Source(REVISIONS[-1], page, section)


def modern(page: str, section: str) -> Source:
    """A place in the revision without sessions."""
    return Source(LATEST_MODERN.version, page, section)
