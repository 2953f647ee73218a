"""The client's handshake: it finds out which revision the server speaks and introduces the client.

MCP 2026-07-28, Versioning and Discovery: ``server/discover``; the revisions up to 2025-11-25, Lifecycle,
Initialization: ``initialize``. What the answers mean is a table in `mcp_actors._eras.decisions`.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import Negotiated
from mcp_actors._client.declared import declared_in_requests
from mcp_actors._client.options import ClientOptions
from mcp_actors._client.version_negotiation import FoundVersion, Preference, VersionNegotiation
from mcp_actors._eras.client_negotiation import ClientNegotiation, request_meta
from mcp_actors._eras.decisions import Lifetime
from mcp_actors._eras.era import Era, read_result
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.modern.meta_keys import SERVER_INFO
from mcp_actors._eras.modern.mirror import VERSION_HEADER
from mcp_actors._eras.probe import discoverable
from mcp_actors.errors import CallTimeout, RpcError
from mcp_actors.logging import log
from mcp_actors.types import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    LoggingLevel,
)

__all__ = ["Handshake"]

# The negotiation has clocks of its own. Neither request may be cancelled: MCP 2025-11-25, Cancellation, for initialize.
UNBOUNDED = CallOptions(idle=math.inf, cap=math.inf, cancellable=False)
# What an eager client gets that has a log handler and asks for no level.
DEFAULT_LOG_LEVEL: LoggingLevel = "info"


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
            negotiation: What ``session`` was made with; it is told the era.
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
        session.outbound.on_wait = conversation.person_asked
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
