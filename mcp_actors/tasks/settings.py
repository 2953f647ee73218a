"""The bounds of tasks, with their reasons."""

from __future__ import annotations

import attrs

from mcp_actors.abc import TaskBounds

__all__ = ["TaskSettings"]

# Seconds, a thousand years: who asks for more asks for no end. The numbers of stores and of JSON have room for it.
LONGEST_TTL = 31_557_600_000.0


@attrs.frozen
class TaskSettings:
    """The times and bounds of the tasks of one server; see `mcp_actors.tasks.Tasks` for each of them.

    Raises:
        ValueError: A time is not greater than 0, a number less than 1, or ``ttl`` greater than ``max_ttl``.
    """

    ttl: float
    max_ttl: float | None
    poll_interval: float
    running: int
    per_principal: int
    in_all: int
    bytes_per_principal: int
    bytes_in_all: int

    def __attrs_post_init__(self) -> None:
        """Checks every setting.

        Raises:
            ValueError: See the class.
        """
        for name in ("ttl", "poll_interval"):
            _check_number(name, getattr(self, name))
        if self.max_ttl is not None:
            _check_number("max_ttl", self.max_ttl)
            if self.ttl > self.max_ttl:
                raise ValueError(f"ttl={self.ttl!r} is greater than max_ttl={self.max_ttl!r}: raise max_ttl")
        for name in ("running", "per_principal", "in_all", "bytes_per_principal", "bytes_in_all"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: write a whole number that is at least 1")

    @property
    def bounds(self) -> TaskBounds:
        """The bounds that the store applies."""
        return TaskBounds(self.per_principal, self.in_all, self.bytes_per_principal, self.bytes_in_all)

    def granted_ttl(self, asked: float | None) -> float | None:
        """Returns the seconds for which a task is kept whose client asked for milliseconds, ``None`` for no end."""
        if asked is None or asked > LONGEST_TTL * 1000:
            # Before any arithmetic: an integer of JSON has as many digits as a client likes.
            return self.max_ttl
        return asked / 1000 if self.max_ttl is None else min(asked / 1000, self.max_ttl)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_TTL:
        raise ValueError(
            f"{name}={value!r}: write a number of seconds greater than 0, a thousand years at most"
        )
