"""A budget of notifications for connections that share it; over it they are not read for a while.

Requests and answers are bounded by their number in flight. Nothing bounds what a peer tells unasked, and each message
takes its part of the loop: so the reader waits, and the peer feels it.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from mcp_actors._wire.messages import JsonRpcNotification

__all__ = ["ReadingPace"]


class ReadingPace:
    """Counts notifications, which are forgotten at a rate.

    Args:
        rate: Notifications a second in the long run; as many may come at once.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._taken = 0.0
        self._at = trio.current_time()

    def __repr__(self) -> str:
        return f"<ReadingPace {self._taken:.0f}/{self._rate}>"

    def take(self, messages: Iterable[object]) -> float:
        """Counts the notifications among what was read; returns for how many seconds nothing more is to be read."""
        count = 0
        for message in messages:
            if isinstance(message, JsonRpcNotification):
                count += 1
            elif isinstance(message, list):
                count += len(message)
        if not count:
            return 0.0
        now = trio.current_time()
        self._taken = max(0.0, self._taken - (now - self._at) * self._rate) + count
        self._at = now
        return max(0.0, self._taken / self._rate - 1.0)
