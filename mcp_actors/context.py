"""The `Context` of a call, which a tool, resource or prompt function takes by annotating a parameter with it.

Beside it this module has the types of its attributes: the client (`Peer`), its session (`PeerSession`) and the
protocol revision (`Era`).
"""

from __future__ import annotations

from mcp_actors._eras.era import Era, EraName, Peer
from mcp_actors._server.context import Context
from mcp_actors._server.peer_session import PeerSession

__all__ = ["Context", "Era", "EraName", "Peer", "PeerSession"]
