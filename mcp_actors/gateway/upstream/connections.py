"""Says whose connection to an upstream is whose.

====================================  ============================================================================
server, caller                        connection
====================================  ============================================================================
one that keeps no sessions, or        one for all callers
``sessions="shared"``
one that keeps sessions, or           for a caller with a session one, until that ends; callers without a session
``sessions="own"``                    share one for each principal if they declare nothing that a server could ask
                                      for, and otherwise each call has one alone, which the next such call of the
                                      principal gets, unless the server was told roots over it
====================================  ============================================================================

A server that keeps sessions asks its client, not a call: so whatever it asks must have one client to go to.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import attrs
import trio

from mcp_actors._server.peer_session import PeerSession
from mcp_actors._wire.codec import encode_value
from mcp_actors.context import Context
from mcp_actors.errors import Overloaded
from mcp_actors.gateway.upstream.connection import UpstreamConnection
from mcp_actors.gateway.upstream.load import RETRY_AFTER

__all__ = ["ASKING_CAPABILITIES", "FIRST", "SHARED", "AloneKey", "ConnectionTable", "Key", "key_of"]

SHARED = "shared"
"""The key of the connection that all callers share."""
FIRST = "first"
"""The key of the connection that is made before anybody calls, to see what the server is."""
ASKING_CAPABILITIES = ("sampling", "elicitation", "roots")
"""The capabilities that let a server ask its client."""


@attrs.frozen
class AloneKey:
    """The key of connections that have one call at a time: of one principal's that declare the same."""

    principal: str | None
    declared: bytes


Key = Hashable


def key_of(ctx: Context[Any]) -> Key:
    """Returns the key of a caller's connection to a server that keeps sessions."""
    session: PeerSession | None = ctx.session
    if session is not None and ctx.call.voice is None:
        # The call of a task goes on when its session has ended.
        return session
    principal = None if ctx.principal is None else ctx.principal.key
    declared = ctx.peer.raw_capabilities
    asked = {name: declared[name] for name in ASKING_CAPABILITIES if name in declared}
    if asked or ctx.log_level is not None or ctx.call.voice is not None:
        return AloneKey(principal, encode_value(asked))
    return ("principal", principal)


class ConnectionTable:
    """The connections of one upstream, by whose they are.

    Args:
        limit: How many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.opening = 0
        """Connections that are being made."""
        self._of_key: dict[Key, UpstreamConnection] = {}
        self._free: dict[AloneKey, list[UpstreamConnection]] = {}
        self._lent: dict[UpstreamConnection, AloneKey] = {}

    def __repr__(self) -> str:
        return f"<ConnectionTable {len(self)}/{self.limit}>"

    def __len__(self) -> int:
        return len(self._of_key) + len(self._lent) + sum(map(len, self._free.values()))

    def __contains__(self, connection: object) -> bool:
        return any(each is connection for each in self)

    def __iter__(self) -> Iterator[UpstreamConnection]:
        yield from list(self._of_key.values())
        yield from list(self._lent)
        for each in list(self._free.values()):
            yield from list(each)

    def take(self, key: Key) -> UpstreamConnection | None:
        """Returns the open connection for a caller, ``None`` if one has to be made.

        One that the caller has alone is nobody else's until `give_back`.
        """
        if key.__class__ is not AloneKey:
            connection = self._of_key.get(key)
            return connection if connection is not None and connection.is_open else None
        assert isinstance(key, AloneKey)
        free = self._free.get(key, [])
        for connection in reversed(free):
            if connection.is_open and not connection.has_sent_roots:
                self._out_of_free(key, connection)
                self._lent[connection] = key
                return connection
        return None

    def put(self, key: Key, connection: UpstreamConnection) -> None:
        """Adds a connection; one alone is free at first."""
        connection.key = key
        connection.is_of_one = isinstance(key, PeerSession | AloneKey)
        if isinstance(key, AloneKey):
            self._free.setdefault(key, []).append(connection)
        else:
            self._of_key[key] = connection

    def give_back(self, connection: UpstreamConnection) -> bool:
        """A call has ended: a connection that it had alone is free for the next one. Others stay where they are.

        Returns:
            Whether it has to be closed: its server may remember the roots that it was told, and nothing says that the
            next call is the same client's.
        """
        if connection not in self._lent:
            return False
        if connection.has_sent_roots and not connection.followed:
            return True
        key = self._lent.pop(connection)
        if connection.is_open:
            self._free.setdefault(key, []).append(connection)
        return False

    def remove(self, connection: UpstreamConnection) -> bool:
        """Forgets a connection; returns whether it was there."""
        key = connection.key
        if not isinstance(key, AloneKey):
            was_there = self._of_key.get(key) is connection
            if was_there:
                del self._of_key[key]
            return was_there
        if self._lent.pop(connection, None) is not None:
            return True
        was_there = connection in self._free.get(key, ())
        if was_there:
            self._out_of_free(key, connection)
        return was_there

    def _out_of_free(self, key: AloneKey, connection: UpstreamConnection) -> None:
        free = self._free[key]
        free.remove(connection)
        if not free:
            del self._free[key]

    def adopt(self, key: Key, caller: str) -> bool:
        """Gives the connection that was made first to a caller; returns whether there is one that is open."""
        first = self._of_key.get(FIRST)
        if first is None or not first.is_open:
            return False
        del self._of_key[FIRST]
        first.caller = caller
        self.put(key, first)
        return True

    def idle(self) -> list[UpstreamConnection]:
        """Returns the connections that no session, call or subscription has, the one that is idle longest first.

        That of all callers is none of them.
        """
        found = [
            each
            for key, each in self._of_key.items()
            if key != SHARED and not isinstance(key, PeerSession) and not each.calls and not each.followed
        ]
        for free in self._free.values():
            found += [each for each in free if not each.followed]
        return sorted(found, key=lambda each: each.idle_since)

    def idle_for(self, seconds: float) -> list[UpstreamConnection]:
        """Returns those of `idle` that have been so for so many seconds."""
        now = trio.current_time()
        return [each for each in self.idle() if now - each.idle_since >= seconds]

    def require_room(self, caller: str | None, opening: int) -> UpstreamConnection | None:
        """Returns an idle connection that has to make room for another one, ``None`` if there is room.

        Args:
            caller: The caller for whom the other one is, ``None`` for nobody yet: one may have half of all.
            opening: How many are being made for the same caller.

        Raises:
            Overloaded: There is none.
        """
        of_caller = max(1, self.limit // 2)
        if caller is not None and opening + sum(each.caller == caller for each in self) >= of_caller:
            raise Overloaded.for_caller("connections to one server", of_caller, RETRY_AFTER)
        if len(self) + self.opening < self.limit:
            return None
        idle = self.idle()
        if not idle:
            raise Overloaded.for_caller("connections of all callers to one server", self.limit, RETRY_AFTER)
        return idle[0]
