"""Requests that are sent again because nothing of them was begun.

=================================================== ====================================================================
what an attempt met                                 the next attempt
=================================================== ====================================================================
a session that the server had forgotten             once, in the new session
a connection that ended before anything was sent    in the next one, where lost connections are made again
a connection that could not be made, in HTTP        after a pause
a server that stops, and says that nothing began    after the pause that it names
HTTP 429, or 503 with ``Retry-After`` from a proxy  after the pause that it names
any of these, whatever was begun                    the same, for a call with a key (`Idempotency`)
=================================================== ====================================================================

All attempts together have the time of one call, and the last refusal is raised when that does not suffice. A gateway
waits for no server (`CallOptions.waits_for_server`): it says at once which one is away, and its clients ask again. What
may have been run is never sent again here without a key: of its own calls a program says so by
`mcp_actors.middleware.Retry`.
"""

from __future__ import annotations

import random

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions, Deadline
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._eras.era import KEY
from mcp_actors.errors import (
    ConnectionLost,
    HeaderMismatch,
    McpError,
    ServerStopping,
    SessionExpired,
    Unavailable,
)

__all__ = ["REFUSALS", "Repetition", "may_be_repeated"]

REFUSALS = (SessionExpired, ConnectionLost, Unavailable, ServerStopping)
"""The errors after which a request may be sent again, where they say that nothing of it was begun."""
# Seconds: pauses grow from the one to the other, unless the server names a longer one.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


def may_be_repeated(error: Exception, options: CallOptions | None) -> bool:
    """Whether a request failed in a way for which it may be sent again: nothing of it was run, or it has a key."""
    if (
        options is not None
        and options.meta is not None
        and KEY in options.meta
        and isinstance(error, REFUSALS)
    ):
        return True
    if isinstance(error, SessionExpired | ConnectionLost | Unavailable):
        return error.never_run
    if isinstance(error, ServerStopping):
        return not error.begun
    return isinstance(error, HeaderMismatch)


class Repetition:
    """The attempts of one request.

    Args:
        options: The options of the request.
        connectivity: Where a session is waited for.
        deadline: The clocks of the first attempt; by default they start now.
    """

    __slots__ = ("_connectivity", "_deadline", "_options", "_pause", "_was_forgotten")

    def __init__(
        self, options: CallOptions, connectivity: Connectivity, deadline: Deadline | None = None
    ) -> None:
        self._options = options
        self._connectivity = connectivity
        self._deadline = deadline or Deadline.of(options.idle, options.cap)
        self._pause = FIRST_PAUSE
        self._was_forgotten = False

    def __repr__(self) -> str:
        return f"<Repetition pause={self._pause:g}>"

    async def wait(self, refusal: McpError, session: Session) -> CallOptions:
        """Waits until the request may be sent again, and returns the options of the next attempt.

        Args:
            refusal: One of `REFUSALS`, which the last attempt has met. It is raised where there is no next attempt.
            session: The session of that attempt.

        Raises:
            ConnectFailed: The connection was lost and could not be made again.
        """
        if not may_be_repeated(refusal, self._options):
            raise refusal
        options = await self._next(refusal, session)
        # The server that is there now may be another one, which would begin it again.
        if not may_be_repeated(refusal, None) and not self._connectivity.negotiated.takes_keys:
            raise refusal
        return options

    async def _next(self, refusal: McpError, session: Session) -> CallOptions:
        if isinstance(refusal, SessionExpired):
            if self._was_forgotten:
                raise refusal
            self._was_forgotten = True
            # All who met the same refusal wait together for the session that takes its place.
            await self._connectivity.live_session(self._options.idle, session)
            return self._next_options()
        if not self._options.waits_for_server:
            raise refusal
        restarts = self._connectivity.restarts
        left = self._deadline.at - trio.current_time()
        asked = refusal.retry_after if isinstance(refusal, Unavailable | ServerStopping) else None
        is_lost = isinstance(refusal, ConnectionLost) and session.outbound.ended
        if left <= 0 or (asked is not None and asked >= left) or (is_lost and not restarts):
            raise refusal
        pause = left if is_lost else min(left, (asked or 0.0) + self._next_pause())
        try:
            # The session may end meanwhile: of a binding with connections, or of a server that stops.
            await self._connectivity.live_session(pause, session)
        except McpError:
            if restarts:
                raise
            raise refusal from None
        if self._deadline.at <= trio.current_time():
            raise refusal
        return self._next_options()

    def _next_pause(self) -> float:
        # With a random part, so that many clients do not come together.
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)

    def _next_options(self) -> CallOptions:
        left = max(0.0, self._deadline.ends_at - trio.current_time())
        return attrs.evolve(self._options, cap=left)
