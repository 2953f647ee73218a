"""A client's session, seen from functions: what they keep in it, and what they send its client outside of any call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

import trio

from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors._actors.event_bus import Subscription
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import METHOD_OF_KIND, EventKind, Peer, shared_kinds
from mcp_actors._eras.server_negotiation import LegacySessionState
from mcp_actors._server.components import ComponentKind, Switch, Switches, make_switch
from mcp_actors._server.invoke import ServingLoop
from mcp_actors._wire.codec import encode_notification
from mcp_actors.abc import Frame
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision.logging import log
from mcp_actors.types import LOGGING_LEVELS, LoggingLevel, ServerCapabilities

__all__ = ["PeerSession", "UrlElicitations", "is_wanted"]


T = TypeVar("T")

_RANK: dict[str, int] = {level: rank for rank, level in enumerate(LOGGING_LEVELS)}
_ELICITATION_COMPLETE = "notifications/elicitation/complete"


def is_wanted(level: str, wanted: str | None) -> bool:
    """Whether a client that wants messages of ``wanted`` and above is sent one of ``level``.

    Raises:
        LocalProtocolError: There is no such level.
    """
    if level not in _RANK:
        raise LocalProtocolError(f"no such level: {level!r}; use one of {', '.join(LOGGING_LEVELS)}")
    return wanted is not None and _RANK[level] >= _RANK.get(wanted, 0)


# Most sessions have none, and share it.
_NONE: Mapping[Hashable, Callable[[], object]] = {}


class PeerSession:
    """One session of a client, seen from functions; ``ctx.session`` of each call in it.

    It lives as long as the session, or as the connection that carries one, and frees what is kept in it when that ends.
    It may be held and used outside of calls, in the event loop's thread and in any other.
    """

    __slots__ = (
        "_at_end",
        "_dispatcher",
        "_kept",
        "_legacy",
        "_listed_for",
        "_loop",
        "_on_switch",
        "list_kinds",
        "subscriptions",
        "switches",
        "tasks",
        "watch",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        legacy: LegacySessionState,
        loop: ServingLoop,
        on_switch: Callable[[PeerSession, Switch], None],
    ) -> None:
        self._loop = loop
        self._on_switch = on_switch
        self.switches: Switches = ()
        """The components that `hide` and `show` were called for."""
        self.subscriptions: tuple[Subscription, ...] = ()
        """Those of the listen streams of a stateless client on this connection."""
        self.watch: Any = None
        """The `mcp_actors._server.visibility.ListWatch` of what this client was listed, once that differs by caller."""
        self._dispatcher = dispatcher
        self._legacy = legacy
        self._kept: dict[Any, Any] = {}
        # The functions that are called when the session ends; None once it has ended.
        self._at_end: Mapping[Hashable, Callable[[], object]] | None = _NONE
        self.list_kinds: frozenset[EventKind] = frozenset()
        """The lists of whose changes the client is notified, by what was declared to it."""
        self.tasks: tuple[str, ...] = ()
        """The ids of the tasks that it has created, oldest first. Another process goes on with them."""
        # The scopes with which it has listed what differs by scopes; None once it was told to list again.
        self._listed_for: frozenset[str] | None = None

    def __repr__(self) -> str:
        return f"<PeerSession {self.name} keeps {len(self._kept)}>"

    @property
    def name(self) -> str:
        """The name of the session in the log and in `Server.tree`."""
        return self._dispatcher.name

    def get(self, make: Callable[[], T]) -> T:
        """Returns the object of this session that ``make`` made, which is called at first use.

        ``ctx.session.get(Cart)`` is the session's one ``Cart``, and a type checker knows it. Nothing is kept for
        sessions that never ask. What is kept is dropped, and not closed, when the session ends.

        Args:
            make: A class, or a function without parameters. It is the key, too: the same one finds the same object.

        Raises:
            Exception: What ``make`` raises; then nothing is kept.
        """
        if make not in self._kept:
            # Of two worker threads that both made one, the first to get here decides.
            self._kept.setdefault(make, make())
        return cast(T, self._kept[make])

    def hide(self, *names: str, kind: ComponentKind | None = None, tags: Collection[str] = ()) -> None:
        """Hides components of the server from this client; see `mcp_actors.Server.hide`. Never waits.

        What is switched for a session counts before what is switched for the server, and ends with the session. The
        client is notified if its lists are others then.

        Args:
            names: Names of tools and prompts, URIs of resources and texts of templates. One counts in each server that
                has it, those that are mounted included.
            kind: One of ``"tool"``, ``"prompt"``, ``"resource"`` and ``"template"``; by default all kinds.
            tags: Those of which a component has at least one; without any, tags do not count.

        Raises:
            TypeError: Nothing is named, or by something that is no text.
            ValueError: There is no such kind.
            LocalProtocolError: A thousand different things are switched already, or the event loop is blocked.
        """
        self._loop.call(self._on_switch, self, make_switch(False, names, kind, tags))

    def show(self, *names: str, kind: ComponentKind | None = None, tags: Collection[str] = ()) -> None:
        """Shows components to this client that are hidden by a switch, for all or for it; see `hide`.

        A component that ``visible=`` or ``auth=`` hides stays hidden.

        Args:
            names: As `hide` has them.
            kind: As `hide` has it.
            tags: As `hide` has them.

        Raises:
            TypeError, ValueError, LocalProtocolError: As `hide` does.
        """
        self._loop.call(self._on_switch, self, make_switch(True, names, kind, tags))

    def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> None:
        """Sends a log message to this client outside of any call, if it wants messages of this level. Never waits.

        MCP 2025-11-25, Logging. It must hold no secrets. It is dropped when the client reads too slowly to have room
        for it, has no stream open on which it could come, is not past its handshake, or has no legacy session.

        Args:
            level: One of `mcp_actors.types.LOGGING_LEVELS`.
            data: Any JSON value.
            logger: The name of the part of the server that logs.

        Raises:
            LocalProtocolError: There is no such level, the message is longer than the connection carries or has half
                of a surrogate pair, or the event loop is blocked.
            TypeError: JSON cannot hold ``data``.
        """
        if is_wanted(level, self._legacy.wanted_log_level):
            params = {"level": level, "data": data}
            self._send_now(
                "notifications/message", params if logger is None else {**params, "logger": logger}
            )

    def notify(self, method: str, params: dict[str, Any]) -> bool:
        """Sends this client a notification outside of any call, for methods that are not part of the protocol.

        Never waits. It is dropped when the client reads too slowly to have room for it, or has no stream open on which
        it could come.

        Args:
            method: The method of the notification.
            params: Its parameters, as JSON values.

        Returns:
            Whether it was sent.

        Raises:
            LocalProtocolError: The message is longer than the connection carries or has half of a surrogate pair, or
                the event loop is blocked.
            TypeError: JSON cannot hold ``params``.
        """
        return self._send_now(method, params)

    def elicitation_complete(self, elicitation_id: str) -> bool:
        """Tells this client that the person has finished at the URL of an elicitation. Never waits.

        MCP 2025-11-25, Elicitation, Completion Notifications for URL Mode Elicitation.

        Args:
            elicitation_id: The id of the elicitation.

        Returns:
            Whether it was sent: false for clients whose revision does not have it, and after the session's end.

        Raises:
            LocalProtocolError: The event loop is blocked.
        """
        era = self._legacy.era
        if era is None or _ELICITATION_COMPLETE not in era.server_notifications:
            return False
        return self._send_now(_ELICITATION_COMPLETE, {"elicitationId": elicitation_id})

    @property
    def peer(self) -> Peer | None:
        """The client's own description, ``None`` before its handshake, and in revisions without one."""
        return self._legacy.peer

    async def request(self, method: str, params: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Sends this client a request outside of any call, and returns its raw result. Cancelled, it is taken back.

        It belongs to the event loop's thread.

        Args:
            method: The method.
            params: Its params, as JSON values.
            timeout: How many seconds the answer may take.

        Raises:
            RpcError: The client answered with an error.
            CallTimeout: It did not answer in time, or there is no stream on which the request could reach it.
            LocalProtocolError: There is no session.
            ConnectionLost: The connection ended before the answer.
            SessionExpired: The session ended before the answer.
        """
        return await self._dispatcher.request(method, params, CallOptions(idle=timeout, cap=timeout))

    def on_end(self, key: Hashable, callback: Callable[[], object]) -> None:
        """Registers a function that is called once when the session ends, in the event loop; at once if it has ended.

        It must not wait, and what it raises is logged. It is for what is kept for the session somewhere else, and has
        to be closed.

        Args:
            key: Whose function it is: it takes the place of an earlier one with the same key.
            callback: The function, without parameters.
        """
        if self._at_end is None:
            callback()
        else:
            self._at_end = {**self._at_end, key: callback}

    @property
    def is_bound(self) -> bool:
        """Whether objects are kept in it, or somewhere else for it: another process cannot go on with it."""
        return bool(self._kept or self._at_end)

    @property
    def scopes_of_lists(self) -> frozenset[str] | None:
        """The scopes that `listed_for` was given; ``None`` if the client has to list again, or has not yet."""
        return self._listed_for

    def end(self) -> None:
        """Calls what `on_end` was given; the session has ended."""
        callbacks, self._at_end = self._at_end or _NONE, None
        # It has the caller, and that this session: what is freed at once needs no collector.
        self.watch = None
        for each in callbacks.values():
            try:
                each()
            except Exception as error:
                log.error("a function for the end of a session failed", session=self.name, exc_info=error)

    def declared(self, capabilities: ServerCapabilities) -> None:
        """Takes note of what was declared in the handshake: the client is notified of changes of nothing else."""
        self.list_kinds = shared_kinds(frozenset(_list_kinds(capabilities)))

    def listed_for(self, scopes: frozenset[str]) -> None:
        """Takes note that the client was listed what callers with these scopes see."""
        self._listed_for = scopes

    def called_with(self, scopes: frozenset[str]) -> None:
        """Notifies the client that its lists have changed, if it has listed with other scopes than these.

        The owner of a session may show another token with each request (MCP 2025-11-25, Authorization, Step-Up
        Authorization Flow): then other things are listed to it than before.
        """
        if self._listed_for is not None and self._listed_for != scopes:
            self._listed_for = None
            for kind in self.list_kinds:
                self._send_now(METHOD_OF_KIND[kind], {})

    def _send_now(self, method: str, params: dict[str, Any]) -> bool:
        carrier = self._dispatcher.carrier
        if carrier is not None:
            frame = Frame(encode_notification(method, params), method=method)
            with suppress(trio.BrokenResourceError):
                return self._loop.call(carrier.outlet.send_nowait, frame)
        return False


def _list_kinds(capabilities: ServerCapabilities) -> Iterable[EventKind]:
    kinds: tuple[EventKind, ...] = ("tools", "prompts", "resources")
    for kind in kinds:
        feature = getattr(capabilities, kind)
        if feature is not None and feature.list_changed:
            yield kind


# -- Elicitations by URL that were begun in sessions: their clients can be notified of the end ---

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
        """Notifies the client that was asked that the person has finished, once; returns whether it did."""
        return id in self._session_of and self._loop.call(self._complete, id)

    def _complete(self, id: str) -> bool:
        session = self._session_of.get(id)
        if session is None:
            return False
        self.forget(id)
        return session.elicitation_complete(id)

    def forget(self, id: str) -> None:
        """Forgets an elicitation that will not end: it was declined, or never answered."""
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
