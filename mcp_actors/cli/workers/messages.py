"""The words between a supervisor and a worker: what a worker is given when it starts, and what it says then.

A worker finds `Assignment` in its environment. One socket connects the two: the worker sends one message, `Ready` or
`Failed`; the supervisor sends `RETIRE`, or nothing. When the socket ends, the other process is gone.
"""

from __future__ import annotations

import msgspec

__all__ = ["ASSIGNMENT", "RETIRE", "STATE_KEY", "Assignment", "Failed", "Ready"]

ASSIGNMENT = "MCP_ACTORS_WORKER"
"""The variable of the environment that makes a process a worker; it has JSON of `Assignment`."""
STATE_KEY = "MCP_ACTORS_STATE_KEY"
"""The variable that has the key of all processes of a server, where a program gives none."""
RETIRE = b"r"
"""From the supervisor: another worker has taken the place of this one."""


class Assignment(msgspec.Struct, frozen=True):
    """The place of a worker among others. It takes it out of its environment, so that its own children have none."""

    number: int
    """From 1 on; that of a replacement is the same."""
    of: int
    """How many workers there are."""
    control: int
    """The descriptor of the socket to the supervisor."""
    counts: int
    """The descriptor of the memory in which the workers note how many connections they have; -1 for none."""
    linger: float
    """Seconds in which it still answers on idle connections of HTTP, once it has to retire."""
    sockets: dict[str, list[list[int]]]
    """The descriptors of the listening sockets, as `mcp_transports.listening.inherit` takes them."""
    key: str
    """The key that all workers have in common where their environment has none, as hexadecimal digits."""
    view: int = -1
    """The descriptor of the socket over which the supervisor looks at the worker; -1 if nobody looks."""

    def __repr__(self) -> str:
        return f"<Assignment {self.number} of {self.of}>"


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it accepts connections."""

    places: list[str]
    """The URLs, with the real ports."""
    offer: str
    """A line on what is served."""
    drain: float
    """Seconds that it takes to end, at most, when it is told to."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot serve."""

    reason: str
    exit_code: int
