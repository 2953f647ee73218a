"""The sessions of one server, each as functions see it, and with what it has subscribed to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import attrs
import msgspec
import trio

from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._actors.dispatcher import SessionStatistics, Totals
from mcp_actors._actors.event_bus import EventBus
from mcp_actors._actors.inbound_call import CallOwner
from mcp_actors._actors.session import Session
from mcp_actors._eras.era import Event, EventKind, shared_kinds
from mcp_actors._eras.server_negotiation import LegacySessionState, LifecycleState
from mcp_actors._server.components import Switch, Switches
from mcp_actors._server.features import Features
from mcp_actors._server.invoke import ServingLoop
from mcp_actors._server.peer_session import PeerSession, UrlElicitations
from mcp_actors._server.subscriptions import SessionSubscriber
from mcp_actors.abc import Telemetry
from mcp_actors.abc.telemetry import ObservedSession, guarded
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import LoggingLevel

__all__ = ["AnySession", "SessionRecord", "SessionRegistry"]

AnySession = Session | ConnectionlessSession
# Characters of a client's name and version that operators are shown.
LONGEST_NAME = 200


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a session that another node needs to go on with it."""

    version: str
    """The revision that was agreed on."""
    capabilities: dict[str, Any]
    """Those of the client, as it sent them, and so is ``info``."""
    info: Any
    log_level: str | None
    operates: bool
    """Whether the handshake is over."""
    kinds: list[EventKind]
    """The lists of whose changes the client is notified."""
    uris: list[str]
    """The resources that it has subscribed to."""
    pending: list[tuple[EventKind, str | None, str | None]]
    """Changes that it was not told of: the kind, the URI, and the URI that was subscribed to."""
    scopes: list[str] | None
    """The scopes with which it has listed; ``None`` where that does not matter."""
    last_id: int
    """The last id of a request to it."""
    switches: Switches = ()
    """The components that are hidden from it, or shown to it."""
    position: str
    """The place in the events of all nodes up to which ``pending`` is complete; see `mcp_actors.abc.Bus.position`."""
    tasks: tuple[str, ...] = ()
    """The ids of the tasks that it has created."""


class _Registered(msgspec.Struct):
    session: AnySession
    legacy: LegacySessionState
    peer: PeerSession
    principal: Principal | None
    subscriber: SessionSubscriber | None = None
    began: float = msgspec.field(default_factory=trio.current_time)


class SessionRegistry:
    """The sessions of one server, by their dispatchers, which is what a call knows of its session."""

    def __init__(self, bus: EventBus, loop: ServingLoop, features: Callable[[], Features]) -> None:
        self._features = features
        self.past = Totals()
        """The events of what has ended; ``sessions`` counts those that exist too."""
        self.telemetry: Telemetry | None = None
        """The receiver of sessions that begin and end."""
        self.ended = trio.lowlevel.ParkingLot()
        self.elicitations = UrlElicitations(loop)
        self._bus = bus
        self._loop = loop
        self._registered: dict[object, _Registered] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<SessionRegistry {len(self._registered)}>"

    def __iter__(self) -> Iterator[AnySession]:
        return iter([each.session for each in self._registered.values()])

    def __len__(self) -> int:
        return len(self._registered)

    def __contains__(self, session: AnySession) -> bool:
        return session.dispatcher in self._registered

    def next_number(self) -> int:
        """Returns the number of the next session."""
        self._count += 1
        return self._count

    def add(
        self, session: AnySession, legacy: LegacySessionState, principal: Principal | None = None
    ) -> None:
        """Registers a session that begins; ``principal`` is its user, if the transport has authenticated one."""
        self._registered[session.dispatcher] = _Registered(
            session, legacy, PeerSession(session.dispatcher, legacy, self._loop, self._switched), principal
        )
        self.past.sessions += 1
        if self.telemetry is not None:
            guarded(self.telemetry.session_began, "server")

    def remove(self, session: AnySession) -> None:
        """Forgets a session that has ended, and what it has subscribed to."""
        registered = self._registered.pop(session.dispatcher)
        self.past.add(
            session.dispatcher.counters, session.link.statistics() if isinstance(session, Session) else None
        )
        if self.telemetry is not None:
            version = None if registered.legacy.era is None else registered.legacy.era.version
            name, seconds = session.dispatcher.name, trio.current_time() - registered.began
            is_broken = isinstance(session, Session) and session.is_broken
            protocol = _protocol_of(session)
            ended = ObservedSession("server", name, session.peer, version, seconds, is_broken, protocol)
            guarded(self.telemetry.session_ended, ended)
        registered.legacy.end()
        self.elicitations.session_ended(registered.peer)
        if registered.subscriber is not None:
            registered.subscriber.close()
        registered.peer.end()
        self.ended.unpark_all()

    def hand_over(self, session: ConnectionlessSession, position: str) -> bytes | None:
        """Stops a session here, but for its calls in flight, and returns the `SessionRecord` for the next node.

        ``None``, with nothing done, for one that is not begun, or that objects of this process belong to.
        """
        registered = self._registered.get(session.dispatcher)
        if registered is None or registered.legacy.peer is None or registered.peer.is_bound:
            return None
        client, peer = registered.legacy.peer, registered.peer
        subscriber, registered.subscriber = registered.subscriber, None
        uris, pending = ([], []) if subscriber is None else subscriber.hand_over()
        scopes = peer.scopes_of_lists
        record = SessionRecord(
            version=client.version,
            capabilities=client.raw_capabilities,
            info=client.raw_info,
            log_level=client.log_level,
            operates=registered.legacy.state is LifecycleState.OPERATING,
            kinds=sorted(peer.list_kinds),
            uris=uris,
            pending=pending,
            scopes=None if scopes is None else sorted(scopes),
            last_id=session.dispatcher.outbound.last_id,
            switches=peer.switches,
            position=position,
            tasks=peer.tasks,
        )
        session.stop()
        return msgspec.json.encode(record)

    def go_on(self, session: ConnectionlessSession, record: SessionRecord) -> None:
        """Gives a new session what another node has handed over.

        Raises:
            Overloaded: Too many bytes would be kept of clients.
        """
        registered = self._registered[session.dispatcher]
        registered.peer.list_kinds = shared_kinds(frozenset(record.kinds))
        if record.scopes is not None:
            registered.peer.listed_for(frozenset(record.scopes))
        if record.switches:
            registered.peer.switches = record.switches
            self._features().visibility.activate(same_for_all=False)
        registered.peer.tasks = record.tasks
        session.dispatcher.outbound.go_on_behind(record.last_id)
        registered.legacy.go_on(
            record.version, record.capabilities, record.info, record.log_level, operates=record.operates
        )
        if record.uris or record.pending:
            subscriber = self.subscriber(session.dispatcher)
            assert subscriber is not None
            subscriber.go_on(record.uris, record.pending)

    def catch_up(self, session: ConnectionlessSession, published: Iterable[tuple[str, str]] | None) -> None:
        """Tells a session what was published while no node had it; ``None`` if that is not known."""
        registered = self._registered.get(session.dispatcher)
        if registered is not None and registered.subscriber is not None:
            registered.subscriber.catch_up(published)

    def peer_session(self, owner: CallOwner) -> PeerSession | None:
        """Returns the session of a call as functions see it; ``None`` if the call belongs to none."""
        registered = self._registered.get(owner)
        return None if registered is None else registered.peer

    def statistics(self, session: AnySession) -> SessionStatistics:
        """Returns a snapshot of a session, its calls and its link, with its owner."""
        registered = self._registered[session.dispatcher]
        peer, principal = registered.legacy.peer, registered.principal
        return attrs.evolve(
            session.statistics(),
            age=trio.current_time() - registered.began,
            version=None if peer is None else peer.version,
            client=None if peer is None else _client_name(peer.raw_info),
            principal=None if principal is None else principal.subject,
        )

    def log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        """Sends a log message to the clients of all sessions; raises what `PeerSession.log` raises."""
        if self._registered:
            self._loop.call(self._log, level, data, logger)

    def _log(self, level: LoggingLevel, data: Any, logger: str | None) -> None:
        for registered in tuple(self._registered.values()):
            registered.peer.log(level, data, logger)

    def subscriber(self, owner: CallOwner) -> SessionSubscriber | None:
        """Returns what delivers changes to the session of a call; ``None`` if the call belongs to none.

        It is made at first use: when the client is past its handshake, or subscribes before.
        """
        registered = self._registered.get(owner)
        if registered is None:
            return None
        if registered.subscriber is None:
            registered.subscriber = SessionSubscriber(
                registered.session.dispatcher,
                self._bus,
                registered.peer.list_kinds,
                partial(self._concerns, registered.peer),
            )
        return registered.subscriber

    def _concerns(self, peer: PeerSession, event: Event) -> bool:
        watch = peer.watch
        return self._features().concerns(watch, None if watch is None else watch.caller, event)

    def _switched(self, peer: PeerSession, switch: Switch) -> None:
        """Hides or shows components for one session, and notifies its client of the lists that are others then."""
        registered = next((each for each in self._registered.values() if each.peer is peer), None)
        for kind in self._features().switch_for(peer, switch):
            if registered is not None and registered.subscriber is not None:
                registered.subscriber.list_changed(kind)
            for each in peer.subscriptions:
                if kind in each.kinds:
                    each.put(Event(kind), None)


def _protocol_of(session: AnySession) -> str | None:
    if isinstance(session, ConnectionlessSession):
        protocol: str | None = getattr(session.outlet, "protocol", None)
        return protocol
    http = session.link.http_request
    if http is None:
        return None
    return "websocket" if "websocket" in http.headers.get("upgrade", "").lower() else "http"


def _client_name(info: object) -> str | None:
    """Returns the name and version that a client gave, unchecked and cut short."""
    if not isinstance(info, dict):
        return None
    said = (info.get("name"), info.get("version"))
    return " ".join(each for each in said if isinstance(each, str))[:LONGEST_NAME] or None
