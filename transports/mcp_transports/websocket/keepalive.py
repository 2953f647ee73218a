"""One clock for all connections of a listener: the silent are pinged, those that stay so or take nothing dropped."""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import trio

__all__ = ["KeepAlive", "KeepAliveTimes", "Member"]

# The ticker's longest and shortest sleep, seconds.
_LONGEST_TICK = 5.0
_SHORTEST_TICK = 0.02


def _positive(_times: KeepAliveTimes, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be greater than zero, not {value!r}")


@attrs.frozen(kw_only=True)
class KeepAliveTimes:
    """How long a peer may do nothing, seconds. Kept by a ticker: never early, late by up to two of its ticks."""

    ping_interval: float = attrs.field(default=20.0, validator=_positive)
    """Silence after which a ping asks whether the peer is there; under the minute after which proxies hang up."""

    ping_timeout: float = attrs.field(default=20.0, validator=_positive)
    """Further silence after which the peer counts as gone. Any byte ends the silence."""

    write_timeout: float = attrs.field(default=30.0, validator=_positive)
    """How long a peer may take no byte of what is sent to it before it is dropped."""

    close_timeout: float = attrs.field(default=0.5, validator=_positive)
    """How long closing waits for the peer's own goodbye; shorter than what the engine allows for closing."""


class Member(Protocol):
    """A connection, as far as the clock is concerned."""

    def tick(self, now: float, times: KeepAliveTimes) -> None: ...


class KeepAlive:
    """Looks at every member now and then; sleeps for good while there is none."""

    def __init__(self, times: KeepAliveTimes) -> None:
        self.times = times
        self._members: set[Member] = set()
        shortest = min(times.ping_interval, times.ping_timeout, times.write_timeout)
        self._tick = max(_SHORTEST_TICK, min(_LONGEST_TICK, shortest / 4))
        self._awake = trio.Event()

    def __repr__(self) -> str:
        return f"<KeepAlive of {len(self._members)}>"

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Member) -> None:
        """A connection begins."""
        self._members.add(member)
        self._awake.set()

    def discard(self, member: Member) -> None:
        """A connection has ended."""
        self._members.discard(member)

    async def run(self) -> None:
        """Keeps time until cancelled."""
        while True:
            if not self._members:
                self._awake = trio.Event()
                await self._awake.wait()
            await trio.sleep(self._tick)
            now = trio.current_time()
            for member in list(self._members):
                member.tick(now, self.times)
