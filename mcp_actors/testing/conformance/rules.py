"""The rules of `mcp_actors.abc` that the kit checks, in the words in which a breach is reported, and the results."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Literal

import attrs

__all__ = [
    "ACCEPTING",
    "BLOCK",
    "BREAKAGE",
    "CALLS",
    "CANCELLED_CALL",
    "CANCELLED_RECEIVE",
    "CANCELLED_SEND",
    "CHANGES",
    "CLEAN_END",
    "CLOSING",
    "DELIVER",
    "DELIVERED",
    "ENDINGS",
    "HALF_CLOSE",
    "HAND_OVER",
    "ISOLATION",
    "LIMIT",
    "NOTHING_KEPT",
    "NO_DUPLICATION",
    "NO_LOSS",
    "NO_TASK_LEFT",
    "ORDER",
    "PRESSURE",
    "PROGRESS",
    "PROPERTIES",
    "QUESTIONS",
    "SERVER_GONE",
    "SERVE_CANCELLED",
    "SETTLED",
    "TURNS",
    "WHOLE",
    "WRITE_NOW",
    "Check",
    "RuleBroken",
    "TransportBreach",
    "TransportReport",
    "expect",
]


ORDER = "frames arrive in the order in which they were sent"
NO_LOSS = "no frame is lost"
NO_DUPLICATION = "no frame arrives twice"
WHOLE = "a frame arrives whole and unchanged"
LIMIT = (
    "max_message_bytes is the longest message a channel carries, in either direction: that long ones arrive, "
    "a longer one is refused with LocalProtocolError and nothing sent, or ends the connection"
)
PROPERTIES = (
    "max_message_bytes is a positive int or None, mirrors a bool, peer a str, and loss_report() a mapping"
)
SETTLED = "settled() must not wait, and may name a request the channel knows nothing of"
HAND_OVER = (
    "send_nowait hands one frame over whole, in order with what send was given, or raises WouldBlock "
    "and sends nothing"
)
WRITE_NOW = (
    "write_now takes all of a frame, in order with what send was given, or nothing, and says whether it did; "
    "it says no when the channel is closed"
)
DELIVER = (
    "what deliver_to was given takes frames only while a task waits in receive_many and nothing is ahead of them, "
    "and what it refuses is received"
)
PRESSURE = "send waits while the peer takes no more: memory is bounded when a peer does not read"
ISOLATION = "every connection is independent: one that stalls or ends holds up no other"
TURNS = (
    "receive_many returns a part of what has come, some hundred frames at most, and is a checkpoint each time: others "
    "have their turn beside a peer that floods"
)
ENDINGS = (
    "ClosedResourceError, BrokenResourceError and EndOfChannel (receiving only), and no other exception, "
    "come out of a channel"
)
CLEAN_END = (
    "receive raises EndOfChannel when the peer ended cleanly, after all that it sent, and goes on raising it"
)
BREAKAGE = "BrokenResourceError: the world broke it, and nothing can be sent any more"
DELIVERED = "what was sent before aclose arrives before the end"
HALF_CLOSE = "a peer that ended cleanly sends no more, but may read"
CLOSING = (
    "aclose closes both directions at once, may be called from any task and is idempotent, and a task that uses "
    "the channel then, or waits in it, gets ClosedResourceError"
)
BLOCK = "leaving the block of connect() closes the channel, within a bounded time"
CANCELLED_RECEIVE = "cancelling receive or receive_many loses nothing"
CANCELLED_SEND = (
    "a cancelled send may leave its frame sent, not sent or torn; a torn one is the last thing that was sent, so "
    "every later send raises an ending"
)
ACCEPTING = "task_status.started(where) is called once connections are accepted, and each gets its handler"
SERVE_CANCELLED = "serve, when cancelled, closes everything at once"
NO_TASK_LEFT = "nothing of a transport is left when serve and connect() have ended"
CALLS = "end to end: every call gets its own answer, once, whatever else is under way"
PROGRESS = "end to end: all progress of a call arrives, in order, before its answer"
CANCELLED_CALL = "end to end: a cancelled call is cancelled where it runs, and nothing else is"
CHANGES = "end to end: changes that were asked for arrive"
QUESTIONS = "end to end: what a handler asks reaches the client, and the answer comes back to it"
SERVER_GONE = (
    "end to end: when the server has ended, every call in flight fails soon, with an error of this engine"
)
NOTHING_KEPT = (
    "end to end: nothing that has ended keeps what a peer sent, not even until garbage is collected"
)


# -- the results of `check_transport` ------------------------------------------------------------------


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
    """The era that the client is configured to speak, for checks of the tier ``eras``."""

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
