"""The choice of a way to wait for many sockets: epoll where there is one, and otherwise Trio's own way.

On Linux epoll is the faster one (docs/platforms.md has the figures). Trio's way works on every system that Trio runs
on, with kqueue on macOS and the BSDs.
"""

from __future__ import annotations

import os
import sys

from mcp_transports._poller import Poller
from mcp_transports._portable_poller import PortablePoller

if sys.platform == "linux":
    from mcp_transports._epoll import EpollPoller

    _OF_THE_SYSTEM: type[Poller] = EpollPoller
else:
    _OF_THE_SYSTEM = PortablePoller

__all__ = ["open_poller"]

_VARIABLE = "MCP_ACTORS_WAITING"


def open_poller() -> Poller:
    """Returns a new poller: the fastest of this system, or the portable one if the environment asks for it.

    Raises:
        ValueError: ``MCP_ACTORS_WAITING`` is set to something else than ``portable``.
        OSError: The process has no descriptor left.
    """
    asked = os.environ.get(_VARIABLE, "")
    if asked not in ("", "portable"):
        raise ValueError(f"{_VARIABLE} may be 'portable' or not be set, not {asked!r}")
    return PortablePoller() if asked else _OF_THE_SYSTEM()
