"""The `Context` of a call, which a tool, resource or prompt function takes by annotating a parameter with it.

`SyncContext` is the same for functions without ``async``. Beside them this module has the types of their attributes:
the client (`Peer`), its session (`PeerSession`), the protocol revision (`Era`), and the answer to a form
(`FormResult`).
"""

from __future__ import annotations

from mcp_actors._eras.era import Era, EraName, Peer
from mcp_actors._server.context import Context
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.questions import FormResult
from mcp_actors._server.sync_context import SyncContext

__all__ = ["Context", "Era", "EraName", "FormResult", "Peer", "PeerSession", "SyncContext"]
