"""The elicitations by URL that were begun in sessions and whose end the client can still be told."""

from __future__ import annotations

from mcp_actors._server.on_loop import ServingLoop
from mcp_actors._server.peer_session import PeerSession

__all__ = ["UrlElicitations"]

# Of one session. A person who visits more pages at once than this has given up the first ones.
MAX_OPEN = 256


class UrlElicitations:
    """The ids of elicitations by URL, each with the session whose client was asked."""

    def __init__(self, loop: ServingLoop) -> None:
        self._loop = loop
        self._session_of: dict[str, PeerSession] = {}
        self._ids_of: dict[PeerSession, dict[str, None]] = {}

    def __repr__(self) -> str:
        return f"<UrlElicitations {len(self._session_of)} open>"

    def __len__(self) -> int:
        return len(self._session_of)

    def begin(self, id: str, session: PeerSession) -> None:
        """Takes note of an elicitation; beyond the bound the oldest one of the session is forgotten."""
        ids = self._ids_of.setdefault(session, {})
        if len(ids) >= MAX_OPEN:
            self.forget(next(iter(ids)))
        ids[id] = None
        self._session_of[id] = session

    def complete(self, id: str) -> bool:
        """Tells the client that was asked that the person has finished; whether it was told. The id is used up."""
        return id in self._session_of and self._loop.call(self._complete, id)

    def _complete(self, id: str) -> bool:
        session = self._session_of.get(id)
        if session is None:
            return False
        self.forget(id)
        return session.elicitation_complete(id)

    def forget(self, id: str) -> None:
        """Forgets an elicitation that will have no end: it was declined, or nobody answered."""
        session = self._session_of.pop(id, None)
        if session is not None:
            ids = self._ids_of[session]
            del ids[id]
            if not ids:
                del self._ids_of[session]

    def session_ended(self, session: PeerSession) -> None:
        """Forgets all elicitations of a session."""
        for id in self._ids_of.pop(session, ()):
            del self._session_of[id]
