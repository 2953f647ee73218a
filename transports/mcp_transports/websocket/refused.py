"""A refusal of the upgrade request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcp_actors.errors import ConnectFailed

__all__ = ["WebSocketRefused"]


class WebSocketRefused(ConnectFailed):
    """The server answered the upgrade request with an HTTP status of its own.

    ``status`` is that status, ``headers`` came with it (lower-case names), ``text`` is the beginning of its body, and
    ``challenges`` are its ``WWW-Authenticate`` lines.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        headers: Mapping[str, str],
        text: str,
        challenges: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.text = text
        self.challenges = challenges
