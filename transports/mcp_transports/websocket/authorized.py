"""Opens a WebSocket with credentials: those of the upgrade request are the only ones that there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from mcp_actors.auth import ClientAuth
from mcp_actors.supervision.containment import reraised
from mcp_transports.auth.authorizer import Answered, Authorizer, SentRequest
from mcp_transports.websocket.opening import WebSocketRefused

__all__ = ["open_with_access"]

T = TypeVar("T")

# What scopes are counted for: when a connection is opened, no call is known yet.
OPERATION = "open"


async def open_with_access(
    auth: ClientAuth, url: str, open_with: Callable[[Sequence[tuple[bytes, bytes]]], Awaitable[T]]
) -> T:
    """Calls ``open_with`` with the headers that give access until that is not refused, and returns what it returns.

    Args:
        auth: The settings.
        url: The URL of the server, with ``http`` for ``ws`` and ``https`` for ``wss``: metadata are found there.
        open_with: Opens the WebSocket, with a bound of its own, in which no person is asked.

    Raises:
        AuthorizationError: Access could not be had.
        ConnectFailed: What else ``open_with`` raises.
    """
    with reraised() as body:
        async with trio.open_nursery() as nursery:
            authorizer = Authorizer(auth, url, nursery)
            with body:
                opened = await _open(authorizer, url, open_with)
            authorizer.close()
    return opened


async def _open(
    authorizer: Authorizer, url: str, open_with: Callable[[Sequence[tuple[bytes, bytes]]], Awaitable[T]]
) -> T:
    sent: SentRequest | None = None
    # The authorizer bounds this: it sends a request again with a few tokens only.
    while True:
        if not authorizer.is_ready:
            await authorizer.prepare()
        token = authorizer.token
        headers = authorizer.headers("GET", url)
        try:
            opened = await open_with(
                [(name.encode("ascii"), value.encode("ascii")) for name, value in headers]
            )
        except WebSocketRefused as refused:
            if refused.status not in (401, 403):
                raise
            answer = Answered(
                refused.status,
                list(refused.challenges),
                refused.headers.get("dpop-nonce"),
            )
            if sent is None:
                sent = SentRequest("GET", url, OPERATION, token)
            else:
                sent.sent_again(token)
            if not await authorizer.react(sent, answer):
                raise
        else:
            authorizer.accepted(url, None, OPERATION)
            return opened
