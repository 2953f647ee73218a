"""The sessions of one server, each with what it has subscribed to."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import trio

from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._actors.event_bus import EventBus
from mcp_actors._actors.inbound_call import CallOwner
from mcp_actors._actors.session import Session
from mcp_actors._server.subscriptions import SessionSubscriber

__all__ = ["AnySession", "SessionRegistry"]

AnySession = Session | ConnectionlessSession


@attrs.define
class _Registered:
    session: AnySession
    subscriber: SessionSubscriber | None = None


class SessionRegistry:
    """The sessions of one server, by their dispatchers, which is what a call knows of its session."""

    def __init__(self, bus: EventBus) -> None:
        self.ended = trio.lowlevel.ParkingLot()
        self._bus = bus
        self._registered: dict[object, _Registered] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<SessionRegistry {len(self._registered)}>"

    def __iter__(self) -> Iterator[AnySession]:
        return iter([each.session for each in self._registered.values()])

    def __len__(self) -> int:
        return len(self._registered)

    def next_number(self) -> int:
        """Returns the number of the next session."""
        self._count += 1
        return self._count

    def add(self, session: AnySession) -> None:
        """Registers a session that begins."""
        self._registered[session.dispatcher] = _Registered(session)

    def remove(self, session: AnySession) -> None:
        """Forgets a session that has ended, and what it has subscribed to."""
        registered = self._registered.pop(session.dispatcher)
        if registered.subscriber is not None:
            registered.subscriber.close()
        self.ended.unpark_all()

    def subscriber(self, owner: CallOwner) -> SessionSubscriber | None:
        """Returns what delivers changes to the session of a call; ``None`` if the call belongs to none.

        It is made at first use: when the client is past its handshake, or subscribes before.
        """
        registered = self._registered.get(owner)
        if registered is None:
            return None
        if registered.subscriber is None:
            registered.subscriber = SessionSubscriber(registered.session.dispatcher, self._bus)
        return registered.subscriber
