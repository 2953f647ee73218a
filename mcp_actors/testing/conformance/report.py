"""The results of `check_transport`: the checks that ran, or the rule that was broken."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal

import attrs

__all__ = ["Check", "RuleBroken", "TransportBreach", "TransportReport", "expect"]


class TransportBreach(AssertionError):
    """A binding broke a rule of `mcp_actors.abc`. The text says which, what was seen and how to see it again.

    ``check`` is the name of the check that found it, ``rule`` the rule, ``seen`` what happened instead.
    """

    def __init__(self, check: str, rule: str, seen: str) -> None:
        super().__init__(
            f"check_transport: {check} failed\n"
            f"  rule (mcp_actors.abc): {rule}\n"
            f"  seen: {seen}\n"
            f"  to see it again: await check_transport(maker, only=[{check!r}])"
        )
        self.check = check
        self.rule = rule
        self.seen = seen


class RuleBroken(AssertionError):
    """Raised inside a check; becomes a `TransportBreach` that names the check too."""

    def __init__(self, rule: str, seen: str) -> None:
        super().__init__(rule, seen)
        self.rule = rule
        self.seen = seen


def expect(holds: bool, rule: str, seen: str) -> None:
    """Raises `RuleBroken` unless ``holds``."""
    if not holds:
        raise RuleBroken(rule, seen)


@attrs.frozen
class Check:
    """One check: an async function of the transport under test (and the era), and the rule that it is about."""

    run: Callable[..., Awaitable[None]]
    rule: str
    """What is broken when the check does not come to its end."""
    tier: Literal["link", "client", "eras"] = "link"
    """``link`` needs a channel at both ends, ``client`` one at the client's, ``eras`` none."""
    needs: str | None = None
    """The name of the flag without which it cannot run."""
    era: str | None = None
    """The era that the client is told to speak, for checks of the tier ``eras``."""

    @property
    def name(self) -> str:
        """The name of the function, with the era in brackets if there is one."""
        name: str = self.run.__name__
        return name if self.era is None else f"{name}[{self.era}]"

    @property
    def about(self) -> str:
        """A description of the check."""
        return inspect.getdoc(self.run) or self.rule


@attrs.frozen
class TransportReport:
    """The checks that `check_transport` ran and skipped."""

    passed: tuple[str, ...]
    """The checks that ran, in order. None failed, or there would be no report."""
    skipped: tuple[tuple[str, str], ...]
    """The checks that did not run, each with the reason."""
    seconds: float
    """How long it took, by the clock of the Trio run."""
