"""The names of keys in Redis."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import quote

__all__ = ["Keys", "short"]

_DIGEST_BYTES = 16


def short(text: str | bytes) -> str:
    """Returns a name of 22 characters for a text of any length: what others chose, or what is secret, is no key."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Keys:
    """The names of the keys of one server.

    Args:
        prefix: What the keys of all servers begin with.
        server: The server's name.
    """

    def __init__(self, prefix: str, server: str) -> None:
        self.root = f"{prefix}:{quote(server, safe='')}:"
        self.bus = f"{self.root}bus"
        # Exists while nodes may be writing again what Redis has forgotten or let end.
        self.returning = f"{self.root}returning"

    def __repr__(self) -> str:
        return f"<Keys {self.root}>"

    def node(self, node: str) -> str:
        """The lease of a node: it exists while the node does."""
        return f"{self.root}node:{node}"

    def ended(self, node: str) -> str:
        """The mark of a node that has ended, and will not come back."""
        return f"{self.root}ended:{node}"

    def mailbox(self, node: str) -> str:
        """The stream of messages to a node."""
        return f"{self.root}mail:{node}"

    def session(self, session: str) -> str:
        """The place of a session."""
        return f"{self.root}session:{short(session)}"

    def events(self, session: str) -> str:
        """The stream of a session's events."""
        return f"{self.root}events:{short(session)}"

    def heads(self, session: str) -> str:
        """The last event of each open stream of a session."""
        return f"{self.root}heads:{short(session)}"

    def used(self, name: bytes) -> str:
        """The mark of something that was used."""
        return f"{self.root}used:{short(name)}"
