"""The server that the official conformance suite is run against: a ``Server`` named ``server``.

The fixtures live in the package, ``mcp_actors.examples.everything``: whoever installed it has them too.
"""

from __future__ import annotations

from mcp_actors.examples.everything import server

__all__ = ["server"]
