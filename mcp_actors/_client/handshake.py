"""The client's handshake: it finds out which revision the server speaks and introduces the client.

MCP 2026-07-28, Versioning and Discovery: ``server/discover``; the revisions up to 2025-11-25, Lifecycle,
Initialization: ``initialize``. `Handshake` makes both requests and knows what the client says about itself;
`VersionNegotiation` decides which of them is sent when, on one connection. The meaning of the answers is a table in
`mcp_actors._eras.client_negotiation`, and nothing here decides on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import Negotiated
from mcp_actors._client.options import ClientOptions, declared_in_requests
from mcp_actors._eras.client_negotiation import (
    DECISIONS,
    Answer,
    Asked,
    ClientNegotiation,
    Lifetime,
    NextStep,
    Outcome,
    discoverable,
    read_discovery,
    read_initialize,
    request_meta,
)
from mcp_actors._eras.era import Era, read_result
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import MODERN, SERVER_INFO, VERSION_HEADER
from mcp_actors.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    McpError,
    RemoteProtocolError,
    RpcError,
    Unavailable,
    UnsupportedVersion,
)
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import CLIENT_HANDSHAKE
from mcp_actors.types import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    LoggingLevel,
)

__all__ = ["ConnectAnew", "FoundVersion", "Handshake", "Preference", "VersionNegotiation"]

# Seconds before a request that could not be served is repeated; the last one repeats. A server may ask for more.
PAUSES = (0.25, 0.5)
# More than the table lets a client ask in one connection.
MAX_OUTCOMES = 32
# The negotiation has clocks of its own. Neither request may be cancelled: MCP 2025-11-25, Cancellation, for initialize.
UNBOUNDED = CallOptions(idle=math.inf, cap=math.inf, cancellable=False)
# What an eager client gets that has a log handler and asks for no level.
DEFAULT_LOG_LEVEL: LoggingLevel = "info"
DISCOVER, INITIALIZE = "server/discover", "initialize"


class Handshake:
    """Performs a client's handshakes, and knows what the client says about itself.

    Args:
        options: The client's options.
        capabilities: What the client declares.
    """

    def __init__(self, options: ClientOptions, capabilities: ClientCapabilities) -> None:
        self._info = options.info
        self._versions = options.versions
        self._capabilities = capabilities
        self._in_requests = declared_in_requests(capabilities, options)
        self._probe_timeout = options.probe_timeout
        self._timeout = options.call.idle
        self._logs = options.on_log is not None
        self.log_level: LoggingLevel | None = options.log_level
        """What servers are asked for; ``None`` leaves a session as its server likes it."""

    def __repr__(self) -> str:
        return f"<Handshake {', '.join(self._versions)}>"

    def introduce(self, session: Session, era: Era) -> None:
        """Sets what each request of ``session`` says about this client, where requests of ``era`` do so."""
        session.outbound.version = era.version
        level = self.log_level or (DEFAULT_LOG_LEVEL if self._logs else None)
        session.outbound.meta = request_meta(era, self._info, self._in_requests, level)

    async def perform(
        self, session: Session, negotiation: ClientNegotiation, preference: Preference
    ) -> tuple[Negotiated, Lifetime]:
        """Finds out the era, performs its handshake, and returns with the result how long the era is remembered.

        Cancelled, it leaves a session that is good for nothing: the connection has to be closed.

        Args:
            session: A session in which nothing was sent yet.
            negotiation: What ``session`` was made with; it learns the era.
            preference: What to ask first.

        Raises:
            ConnectAnew: Another connection is to be made.
            McpError: What else `VersionNegotiation.run` raises.
        """
        found = await self._find(session, preference)
        negotiated = _negotiated(found.era, found.result)
        negotiation.era = found.era
        if found.era.client.handshake_method == "initialize":
            await self._begin_session(session, negotiated)
        self.introduce(session, found.era)
        return negotiated, found.lifetime

    def believe(
        self, session: Session, negotiation: ClientNegotiation, prior: DiscoverResult
    ) -> tuple[Negotiated, Lifetime]:
        """As `perform`, without asking: takes an earlier answer of the server, and teaches other clients nothing."""
        era = MODERN[discoverable(self._versions, prior)]
        negotiation.era = era
        self.introduce(session, era)
        info = (prior.meta or {}).get(SERVER_INFO)
        return _agreed(era, prior, info), Lifetime.CONNECTION

    async def _find(self, session: Session, preference: Preference) -> FoundVersion:
        async def discover(era: Era) -> dict[str, Any]:
            method, mirrored = era.client.handshake_method, era.client.mirrored
            meta = request_meta(era, self._info, self._in_requests, None)
            metadata = None
            if mirrored is not None and session.link.channel.mirrors:
                metadata = mirrored(era.version, method, {}, ())
            # A legacy server must not be confused by a cancellation of what it does not know.
            options = attrs.evolve(UNBOUNDED, meta=meta)
            return await session.outbound.request(method, {}, options, metadata=metadata)

        async def initialize(era: Era) -> dict[str, Any]:
            params = {
                "protocolVersion": era.version,
                "capabilities": era.unstructure(self._capabilities),
                "clientInfo": era.unstructure(self._info),
            }
            return await session.outbound.request("initialize", params, UNBOUNDED)

        conversation = VersionNegotiation(
            [MODERN[version] for version in self._versions if version in MODERN],
            [LEGACY[version] for version in self._versions if version in LEGACY],
            {"server/discover": discover, "initialize": initialize},
            lambda: session.outbound.ended,
            probe_timeout=self._probe_timeout,
            timeout=self._timeout,
        )
        session.outbound.on_wait = conversation.exchange.suspend_clocks
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                found = await conversation.run(nursery, preference)
            except Exception as error:
                # It is raised outside of the nursery, which would make a group of it.
                failure = error
            finally:
                session.outbound.on_wait = None
                nursery.cancel_scope.cancel(reason="the version was found, or will not be")
        if isinstance(failure, CallTimeout):
            failure.received = session.outbound.received
            failure.peer = session.peer
        if failure is not None:
            raise failure
        return found

    async def _begin_session(self, session: Session, negotiated: Negotiated) -> None:
        era = negotiated.era
        if era.mirrors_version:
            session.link.metadata = {VERSION_HEADER: era.version}
        await session.notify("notifications/initialized")
        if self.log_level is not None and negotiated.capabilities.logging is not None:
            await self._set_log_level(session, era, self.log_level)

    async def _set_log_level(self, session: Session, era: Era, level: str) -> None:
        assert era.client.log_level_method is not None
        options = CallOptions(idle=self._timeout, cap=math.inf)
        try:
            await session.outbound.request(era.client.log_level_method, {"level": level}, options)
        except RpcError as error:
            # A server that is too loud is a server all the same.
            log.debug("the log level could not be set", error=str(error))


def _negotiated(era: Era, result: dict[str, Any]) -> Negotiated:
    """Reads the result of a handshake; raises `RemoteProtocolError` if it is malformed."""
    if era.client.handshake_method == "initialize":
        initialized: InitializeResult = read_result(era, result, InitializeResult)
        return Negotiated(
            era, initialized.capabilities, initialized.server_info, initialized.instructions, None
        )
    meta = result.get("_meta")
    info = meta.get(SERVER_INFO) if isinstance(meta, dict) else None
    return _agreed(era, read_result(era, result, DiscoverResult), info)


def _agreed(era: Era, discovered: DiscoverResult, info: Any) -> Negotiated:
    return Negotiated(
        era,
        discovered.capabilities,
        read_result(era, info, Implementation) if isinstance(info, dict) else Implementation("", ""),
        discovered.instructions,
        discovered,
    )


# -- finding the version ---------------------------------------------------------------------------------------------


@attrs.frozen
class Preference:
    """A belief about the era of the server, which says what is asked first: it may be wrong."""

    era: Era | None = None
    lifetime: Lifetime = Lifetime.CONNECTION


@attrs.frozen
class FoundVersion:
    """The version that client and server speak, the result that said so, and how long it is remembered."""

    era: Era
    result: dict[str, Any]
    lifetime: Lifetime


class ConnectAnew(Exception):
    """This connection leads nowhere, and the next one may if it begins with ``initialize``.

    Args:
        cause: The exception if no other connection follows.
        lifetime: How long the result of the next one is remembered.
    """

    def __init__(self, cause: McpError, lifetime: Lifetime) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.lifetime = lifetime


class VersionNegotiation:
    """The requests and answers of one connection, until a version was found.

    Args:
        stateless: The versions without sessions that may be spoken, oldest first.
        with_sessions: The versions with sessions that may be spoken, oldest first.
        requests: Send ``server/discover`` and ``initialize`` in a version, and wait for the answer until cancelled.
        has_ended: Whether the connection is over.
        probe_timeout: Seconds without an answer to discovery after which ``initialize`` is sent too.
        timeout: Seconds for all of it; ``probe_timeout`` is added where both kinds of versions may be spoken.
    """

    def __init__(
        self,
        stateless: Sequence[Era],
        with_sessions: Sequence[Era],
        requests: Mapping[str, Callable[[Era], Awaitable[dict[str, Any]]]],
        has_ended: Callable[[], bool],
        *,
        probe_timeout: float,
        timeout: float,
    ) -> None:
        self._stateless = stateless
        self._with_sessions = with_sessions
        self._ours = tuple(era.version for era in (*with_sessions, *stateless))
        self._requests = requests
        self._has_ended = has_ended
        self._probe_timeout = probe_timeout
        self._timeout = timeout
        self._has_discovered = False
        now = trio.current_time()
        self.exchange = _HandshakeExchange(
            silent_at=now + probe_timeout,
            bound=now + timeout + (probe_timeout if stateless and with_sessions else 0),
        )

    def __repr__(self) -> str:
        return f"<VersionNegotiation waits for {', '.join(self.exchange.unanswered) or 'nothing'}>"

    async def run(self, nursery: trio.Nursery, preference: Preference) -> FoundVersion:
        """Asks until a version was found. ``nursery`` owns the requests; those that are left are to be cancelled then.

        Raises:
            ConnectAnew: Another connection is to be made.
            UnsupportedVersion: No version is common.
            CallTimeout: The server did not answer.
            ConnectionLost: The connection ended.
            ConnectFailed: The server cannot be reached, or access is denied.
            Unavailable: The server, or a proxy before it, cannot serve us at present.
            RpcError: The server refused.
            RemoteProtocolError: The server answered with what cannot be understood.
        """
        exchange, hint, lifetime = self.exchange, preference.era, preference.lifetime
        self._has_discovered = hint in self._stateless
        if not self._stateless or hint in self._with_sessions:
            self._ask(nursery, INITIALIZE, self._with_sessions[-1])
        else:
            self._ask(nursery, DISCOVER, next((e for e in self._stateless if e is hint), self._stateless[-1]))
        while True:
            seen = await self._next()
            step, kept = exchange.decide(seen, self._can)
            lifetime = kept or lifetime
            if step is NextStep.SPEAK:
                assert seen.named is not None
                assert isinstance(seen.outcome, dict)
                return FoundVersion(seen.named, seen.outcome, lifetime)
            if step is NextStep.CONNECT_ANEW:
                raise ConnectAnew(self._failure(seen), lifetime)
            self._take(step, nursery, seen)

    def _can(self, step: NextStep) -> bool:
        """Whether the versions of this client, and what it knows of the server, leave it that step."""
        needs = {
            NextStep.DISCOVER: (self._stateless,),
            NextStep.INITIALIZE: (self._with_sessions,),
            # A server that has answered discovery before does not die of it.
            NextStep.CONNECT_ANEW: (self._stateless, self._with_sessions, not self._has_discovered),
        }
        return all(needs.get(step, ()))

    def _take(self, step: NextStep, nursery: trio.Nursery, seen: _Observation) -> None:
        """Asks what the step says; raises where there is nothing more to ask or to wait for."""
        exchange, outcome = self.exchange, seen.outcome
        if step is NextStep.DISCOVER:
            self._ask(nursery, DISCOVER, seen.named or self._stateless[-1])
        elif step is NextStep.INITIALIZE:
            self._ask(nursery, INITIALIZE, self._with_sessions[-1])
        elif step is NextStep.REPEAT:
            pause = PAUSES[min(exchange.counts[seen.asked, seen.answer], len(PAUSES)) - 1]
            if isinstance(outcome, Unavailable) and outcome.retry_after is not None:
                pause = max(pause, outcome.retry_after)
            if trio.current_time() + pause >= exchange.bound:
                raise self._failure(seen)
            self._ask(nursery, seen.request, exchange.last_era[seen.request], pause)
        elif step is NextStep.FAIL or not exchange.unanswered:
            raise self._failure(seen)

    def _failure(self, seen: _Observation) -> McpError:
        """Returns the error for an answer that leads nowhere."""
        outcome, is_discovery = seen.outcome, seen.request == DISCOVER
        if seen.answer is Answer.NAMES_STATELESS and is_discovery:
            return RemoteProtocolError("the server refuses each version that it says it supports")
        if seen.answer is Answer.NAMES_OTHERS and not isinstance(outcome, McpError):
            theirs = outcome["supportedVersions"] if is_discovery else [outcome.get("protocolVersion")]
            asked = self.exchange.last_era[seen.request].version
            return UnsupportedVersion(asked, [each for each in theirs if isinstance(each, str)])
        if is_discovery and self.exchange.refusal is not None and seen.answer is not Answer.STATELESS_ERROR:
            # What the server said to initialize helps more than what it says to a discovery that it may not know.
            return self.exchange.refusal
        if isinstance(outcome, McpError):
            return outcome
        return RemoteProtocolError(f"the server's answer to {seen.request} names no version that we speak")

    # -- requests --------------------------------------------------------------------------------------------------

    def _ask(self, nursery: trio.Nursery, request: str, era: Era, pause: float = 0.0) -> None:
        exchange = self.exchange
        exchange.last_era[request] = era
        exchange.unanswered.append(request)
        start(
            nursery,
            CLIENT_HANDSHAKE,
            self._requested,
            request,
            era,
            pause,
            about=request,
            on_crash=lambda crash: exchange.put(request, _crashed(crash)),
        )

    async def _requested(self, request: str, era: Era, pause: float) -> None:
        if pause:
            await trio.sleep(pause)
        try:
            outcome: Outcome = await self._requests[request](era)
        except McpError as error:
            outcome = error
        self.exchange.put(request, outcome)

    async def _next(self) -> _Observation:
        """Waits for an answer, or for a clock to run out."""
        exchange = self.exchange
        probes = bool(self._with_sessions) and INITIALIZE not in exchange.last_era
        with exchange.in_time(probes):
            request, outcome = await exchange.receive()
            asked = exchange.asked(request)
            if isinstance(outcome, ConnectionLost) and self._has_ended():
                end = Answer.LOST if outcome.has_read else Answer.UNREAD
                return _Observation(request, asked, end, outcome)
            read = read_discovery if request == DISCOVER else read_initialize
            answer, named = read(outcome, self._ours)
            return _Observation(request, asked, answer, outcome, named)
        if probes and trio.current_time() < exchange.bound:
            silence = CallTimeout(DISCOVER, "idle", self._probe_timeout)
            return _Observation(DISCOVER, Asked.DISCOVER, Answer.SILENT, silence)
        request = INITIALIZE if INITIALIZE in exchange.last_era else DISCOVER
        late = exchange.refusal or CallTimeout(request, "idle", self._timeout)
        return _Observation(request, exchange.asked(request), Answer.LATE, late)


@attrs.frozen
class _Observation:
    """An answer, or its absence, as the table of decisions sees it."""

    request: str
    asked: Asked
    answer: Answer
    outcome: Outcome
    named: Era | None = None


class _HandshakeExchange:
    """The requests and answers of one handshake, and until when there is time."""

    def __init__(self, *, silent_at: float, bound: float) -> None:
        self.silent_at = silent_at
        self.bound = bound
        self._asked_since: float | None = None
        self._until = bound
        self._scope = trio.CancelScope()
        self.last_era: dict[str, Era] = {}
        """The version in which each request was made last."""
        self.unanswered: list[str] = []
        self.counts: Counter[tuple[Asked, Answer]] = Counter()
        self.refusal: McpError | None = None
        """What the server last said against ``initialize``."""
        self._put, self._received = trio.open_memory_channel[tuple[str, Outcome]](MAX_OUTCOMES)

    @contextmanager
    def in_time(self, probes: bool) -> Iterator[None]:
        """Ends the block when the clocks say so: that of silence too, if ``probes``."""
        self._until = min(self.bound, self.silent_at) if probes else self.bound
        with trio.move_on_at(self._until if self._asked_since is None else math.inf) as self._scope:
            yield

    def suspend_clocks(self, begins: bool) -> None:
        """Stops both clocks while a person is asked for access, or lets them go on."""
        now = trio.current_time()
        if begins:
            self._asked_since = now
            self._scope.deadline = math.inf
        elif self._asked_since is not None:
            seconds, self._asked_since = now - self._asked_since, None
            self.bound += seconds
            self.silent_at += seconds
            self._until += seconds
            self._scope.deadline = self._until

    def put(self, request: str, outcome: Outcome) -> None:
        """Takes what came of a request."""
        self._put.send_nowait((request, outcome))

    async def receive(self) -> tuple[str, Outcome]:
        """Waits for what comes of any request. Cancelled, it has lost nothing."""
        request, outcome = await self._received.receive()
        self.unanswered.remove(request)
        if request == INITIALIZE and isinstance(outcome, McpError):
            self.refusal = outcome
        return request, outcome

    def asked(self, request: str) -> Asked:
        """Returns what a request is beside the others of this connection."""
        if request == DISCOVER:
            return Asked.DISCOVER_LATE if INITIALIZE in self.last_era else Asked.DISCOVER
        if DISCOVER not in self.last_era:
            return Asked.INITIALIZE
        return Asked.INITIALIZE_BESIDE if DISCOVER in self.unanswered else Asked.INITIALIZE_AFTER

    def decide(self, seen: _Observation, can: Callable[[NextStep], bool]) -> tuple[NextStep, Lifetime | None]:
        """Looks the answer up in the table; the steps that ``can`` refuses are not taken."""
        decision = DECISIONS[seen.asked, seen.answer]
        self.counts[seen.asked, seen.answer] += 1
        steps = [decision.step] if self.counts[seen.asked, seen.answer] <= decision.times else []
        return next(filter(can, [*steps, decision.otherwise, NextStep.FAIL])), decision.kept


def _crashed(crash: BaseException) -> ConnectFailed:
    failed = ConnectFailed(f"could not connect: {crash!r}")
    failed.__cause__ = crash
    return failed
