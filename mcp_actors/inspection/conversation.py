"""Conversations with a server below the client: each message exactly as a rule wants it, and all that comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mcp_actors._eras.era import Era
from mcp_actors.inspection.answers import ServerAnswer

__all__ = [
    "CLIENT_INFO",
    "Conversation",
    "Enough",
    "Headers",
    "is_reply",
    "make_meta",
    "notification_message",
    "request_message",
    "same_id",
]

CLIENT_INFO = {"name": "mcp-actors inspect", "version": "1"}

Enough = Callable[[dict[str, Any]], bool]
"""Whether a message is one with which no more are waited for, beside the reply."""
Headers = Mapping[str, str | None]
"""Headers to be sent in place of the right ones; ``None`` leaves one out."""


def make_meta(era: Era, log_level: str | None = None) -> dict[str, Any]:
    """Returns the ``_meta`` of a request as the era wants it; empty where sessions exist."""
    return era.client.request_meta(era.version, {}, CLIENT_INFO, log_level)


class Conversation(Protocol):
    """One conversation in one revision. It sends what it is told, right or wrong."""

    era: Era
    is_http: bool

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can be sent."""

    async def ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Headers | None = None,
        enough: Enough | None = None,
        keep: bool = True,
    ) -> ServerAnswer:
        """Sends a request and waits for its answer.

        Args:
            method: The method.
            params: The params without ``_meta``.
            id: The id; by default one that was never used.
            meta: The ``_meta``; by default what the revision wants.
            headers: Headers, over HTTP, in place of the right ones.
            enough: Ends the wait with another message than the reply.
            keep: Whether the answer is kept for the rules that look at all of them.

        Raises:
            InspectionEnded: A bound of the inspection was reached.
            AuthorizationError: A login is needed.
        """

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> ServerAnswer:
        """Sends a notification. Over HTTP the answer is the response to it; over a channel there is none yet."""

    async def send(self, data: bytes, wait_for: tuple[int | str, ...] = ()) -> ServerAnswer:
        """Sends bytes as they are, and waits for the answers with these ids; without one for the first message."""


def request_message(era: Era, id: int | str, method: str, params: Any, meta: Mapping[str, Any] | None) -> Any:
    """Returns a request; ``meta`` takes the place of what the revision wants."""
    own = make_meta(era) if meta is None else dict(meta)
    body = {**(params or {}), **({"_meta": own} if own else {})}
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    return {**message, "params": body} if body else message


def notification_message(era: Era, method: str, params: Mapping[str, Any] | None) -> Any:
    """Returns a notification."""
    own = make_meta(era)
    body = {**(params or {}), **({"_meta": own} if own else {})}
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return {**message, "params": body} if body else message


def same_id(one: object, other: object) -> bool:
    """Whether two ids are one, with the same JSON type."""
    return type(one) is type(other) and one == other


def is_reply(message: Mapping[str, Any]) -> bool:
    """Whether a message is a response."""
    return "method" not in message
