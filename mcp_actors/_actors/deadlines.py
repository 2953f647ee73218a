"""Deadlines: how long the caller of a request still waits for it, as a duration that travels with the request.

A client says in ``_meta`` how many milliseconds are left (`DEADLINE`), and never a time of day, since clocks differ.
The receiver counts from when it has read the request. What becomes of a request with a deadline:

==========================================  =====================================================================
when the time is over                       what happens
==========================================  =====================================================================
when it arrives (0 ms are left)             it is refused, `DeadlineExceeded` with ``begun`` false
while it waits for its place                the same, and it leaves the queue
while its function runs                     the function sees `trio.Cancelled`; `DeadlineExceeded`, ``begun`` true
while it is a task of the protocol          the same: the task fails with that error
==========================================  =====================================================================

The error is sent all the same, although most callers have given up by then: a gateway or a log in between learns why.

What the function asks for inherits the time, less `HOP`: questions to the client, requests at the upstream of a
gateway, and those of a `Client(deadlines=True)`. A context variable says how much is left, also in threads and in other
event loops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import DEADLINE
from mcp_actors.errors import DeadlineExceeded, invalid_params

__all__ = ["HOP", "LONGEST_DEADLINE", "forget_inherited", "in_time", "time_left", "with_time_left"]

HOP = 0.02
"""Seconds that are kept back from what a request inherits, so that its failure arrives while the call still runs."""

LONGEST_DEADLINE = 7 * 86400.0
"""Seconds: a longer time counts as this one. A client may write an integer of any length."""


class _Inherited:
    """The deadline of a call that runs; afterwards none, for tasks that go on after it."""

    __slots__ = ("_at", "_loop", "_monotonic")

    def __init__(self, at: float) -> None:
        self._at = at
        self._loop = trio.lowlevel.current_trio_token()
        # Other event loops have other clocks: that of programs without Trio runs in a thread of its own.
        self._monotonic = time.monotonic() + at - trio.current_time()

    @property
    def left(self) -> float:
        """Seconds until the deadline; `math.inf` once the call has ended."""
        if trio.lowlevel.current_trio_token() is self._loop:
            return self._at - trio.current_time()
        return self._monotonic - time.monotonic()

    @property
    def ends_this_task(self) -> bool:
        """Whether this task is cancelled at the deadline, as those of the call are."""
        if trio.lowlevel.current_trio_token() is not self._loop:
            return False
        return trio.current_effective_deadline() <= self._at

    def end(self) -> None:
        """The call has ended."""
        self._at = self._monotonic = math.inf


_inherited: ContextVar[_Inherited | None] = ContextVar("inherited", default=None)


def time_left(meta: Mapping[str, Any]) -> float:
    """Returns the seconds that a request with a deadline has left.

    Raises:
        RpcError: -32602: it is not a number of milliseconds, or less than 0.
    """
    left = meta[DEADLINE]
    if isinstance(left, bool) or not isinstance(left, int | float) or not left >= 0:
        raise invalid_params(f"{DEADLINE} must be a number of milliseconds that is at least 0")
    # Compared before it is divided: an integer of a peer may be too large for a float.
    return min(left, LONGEST_DEADLINE * 1000) / 1000


async def in_time(continuation: Any, at: float, what: str, began_before: bool = False) -> Any:
    """Runs the rest of a call until its deadline, and returns its result.

    Args:
        continuation: Is called without arguments, and returns an awaitable.
        at: The deadline, in Trio's time.
        what: The method, with the name of what is called, for the error.
        began_before: Whether an earlier run of the call may have done something.

    Raises:
        DeadlineExceeded: The time is over. What the function raises while it is cancelled is its cause.
    """
    if at <= trio.current_time():
        raise DeadlineExceeded(what, begun=began_before)
    held = _Inherited(at)
    _inherited.set(held)
    try:
        with trio.move_on_at(at) as scope:
            try:
                return await continuation()
            except Exception as error:
                if scope.cancel_called:
                    raise DeadlineExceeded(what, begun=True) from error
                raise
    finally:
        held.end()
    raise DeadlineExceeded(what, begun=True)


def forget_inherited() -> None:
    """Lets this task inherit nothing, since its requests go on after the call that has begun it."""
    _inherited.set(None)


def with_time_left(method: str, options: CallOptions) -> tuple[Mapping[str, Any] | None, float]:
    """Returns the ``_meta`` of a request that says how much of its time is left, and its cap.

    The idle clock counts only where no report of progress can move it. Around the request count the cancel scopes of
    its task, and the deadline of the call that is answered there, less `HOP`.

    Raises:
        DeadlineExceeded: The call that is answered has no time left. Nothing is sent.
    """
    cap = options.cap
    moves = options.wants_progress or options.on_progress is not None
    left = cap if moves else min(cap, options.idle)
    around = trio.current_effective_deadline() - trio.current_time()
    if around > 0:
        left = min(left, around)
    held = _inherited.get()
    if held is not None:
        rest = held.left - HOP
        if rest <= 0:
            raise DeadlineExceeded(method, begun=False)
        left = min(left, rest)
        if not held.ends_this_task:
            # Such as that of a thread: its request has to end by its own clock.
            cap = min(cap, rest)
    if left == math.inf:
        return options.meta, cap
    return {**(options.meta or {}), DEADLINE: max(1, int(left * 1000))}, cap
