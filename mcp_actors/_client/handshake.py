"""The client's handshake: it finds out which revision the server speaks and introduces the client.

MCP 2026-07-28, Versioning and Discovery: ``server/discover``; the revisions up to 2025-11-25, Lifecycle,
Initialization: ``initialize``. What the answers to the first mean is a table in `mcp_actors._eras.probe`.
"""

from __future__ import annotations

import math
from typing import Any

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import Negotiated
from mcp_actors._client.options import ClientOptions
from mcp_actors._eras.client_negotiation import ClientNegotiation, request_meta
from mcp_actors._eras.era import Era, read_result
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.modern.meta_keys import SERVER_INFO
from mcp_actors._eras.modern.mirror import VERSION_HEADER
from mcp_actors._eras.probe import verdict_on_error, verdict_on_result
from mcp_actors.errors import CallTimeout, RemoteProtocolError, RpcError, UnsupportedVersion
from mcp_actors.logging import log
from mcp_actors.types import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    LoggingLevel,
)

__all__ = ["Handshake"]

# A server may refuse the first version that we name, even one that it then says it supports.
MAX_PROBES = 3
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
        self._probe_timeout = options.probe_timeout
        self._timeout = options.call.idle
        self._logs = options.on_log is not None
        self.log_level: LoggingLevel | None = options.log_level
        """What servers are asked for; ``None`` leaves a session as its server likes it."""

    def __repr__(self) -> str:
        return f"<Handshake {', '.join(self._versions)}>"

    @property
    def speaks_both(self) -> bool:
        """Whether the client may find a server of either kind."""
        return any(version in LEGACY for version in self._versions) and any(
            version in MODERN for version in self._versions
        )

    def introduce(self, session: Session, era: Era) -> None:
        """Sets what each request of ``session`` says about this client, where requests of ``era`` do so."""
        level = self.log_level or (DEFAULT_LOG_LEVEL if self._logs else None)
        session.outbound.meta = request_meta(era, self._info, self._capabilities, level)

    async def perform(self, session: Session, negotiation: ClientNegotiation, hint: Era | None) -> Negotiated:
        """Finds out the era and performs its handshake.

        Cancelled, it leaves a session that is good for nothing: the connection has to be closed.

        Args:
            session: A session in which nothing was sent yet.
            negotiation: What ``session`` was made with; it is told the era.
            hint: The era to try first.

        Raises:
            UnsupportedVersion: No version is common.
            CallTimeout: The server did not answer.
            ConnectionLost: The connection ended.
            RpcError: The server refused.
            RemoteProtocolError: The server answered with what cannot be understood.
        """
        if hint is not None and hint.client.handshake_method == "initialize":
            try:
                negotiated = await self._initialize(session, negotiation)
            except RpcError:
                discovered = await self._discover(session, None)
                if discovered is None:
                    raise
                negotiated = discovered
        else:
            negotiated = await self._discover(session, hint) or await self._initialize(session, negotiation)
        negotiation.era = negotiated.era
        self.introduce(session, negotiated.era)
        return negotiated

    # -- server/discover -------------------------------------------------------------------------------------------

    async def _discover(self, session: Session, hint: Era | None) -> Negotiated | None:
        """Returns ``None`` when the server wants ``initialize``, or we speak no revision with discovery.

        What a stateless server refuses is raised: it would not understand ``initialize`` either.
        """
        tried = hint or next((MODERN[v] for v in reversed(self._versions) if v in MODERN), None)
        if tried is None:
            return None
        result, era = await self._probe(session, tried)
        if era is None or era.client.handshake_method == "initialize":
            return None
        discovered: DiscoverResult = read_result(era, result, DiscoverResult)
        meta = result.get("_meta")
        info = meta.get(SERVER_INFO) if isinstance(meta, dict) else None
        return Negotiated(
            era,
            discovered.capabilities,
            read_result(era, info, Implementation) if isinstance(info, dict) else None,
            discovered.instructions,
        )

    async def _probe(self, session: Session, tried: Era) -> tuple[dict[str, Any], Era | None]:
        """Asks until the server and we mean the same version; a server may refuse the first one we name.

        Without an era the server is a legacy one; a client that speaks nothing legacy raises what it got instead.
        """
        speaks_legacy = any(version in LEGACY for version in self._versions)
        for _ in range(MAX_PROBES):
            try:
                result = await self._ask_discovery(session, tried)
            except RpcError as error:
                era = verdict_on_error(error, self._versions, tried)
                if era is None and speaks_legacy:
                    return {}, None
                if era is None or not isinstance(error, UnsupportedVersion):
                    raise
                if era.client.handshake_method == "initialize":
                    return {}, era
                tried = era
                continue
            except (CallTimeout, RemoteProtocolError):
                if speaks_legacy:
                    return {}, None
                raise
            era = verdict_on_result(result, self._versions)
            if era is None and not speaks_legacy:
                raise RemoteProtocolError("the server's answer to server/discover names no supportedVersions")
            return result, era
        raise RemoteProtocolError("the server refuses each version that it says it supports")

    async def _ask_discovery(self, session: Session, era: Era) -> dict[str, Any]:
        method, mirrored = era.client.handshake_method, era.client.mirrored
        meta = request_meta(era, self._info, self._capabilities, None)
        # A legacy server that never answers must not be confused by a cancellation it cannot know.
        options = CallOptions(idle=self._probe_timeout, cap=math.inf, meta=meta, cancellable=False)
        metadata = None
        if mirrored is not None and session.link.channel.mirrors:
            metadata = mirrored(era.version, method, {}, ())
        return await session.outbound.request(method, {}, options, metadata=metadata)

    # -- initialize ------------------------------------------------------------------------------------------------

    async def _initialize(self, session: Session, negotiation: ClientNegotiation) -> Negotiated:
        ours = [version for version in self._versions if version in LEGACY]
        asked = LEGACY[ours[-1]]
        params = {
            "protocolVersion": asked.version,
            "capabilities": asked.unstructure(self._capabilities),
            "clientInfo": asked.unstructure(self._info),
        }
        # MCP 2025-11-25, Cancellation: initialize must not be cancelled. A client that gives up closes the connection.
        options = CallOptions(idle=self._timeout, cap=math.inf, cancellable=False)
        result = await session.outbound.request("initialize", params, options)
        version = result.get("protocolVersion")
        if version not in ours:
            raise UnsupportedVersion(asked.version, [version] if isinstance(version, str) else [])
        era = LEGACY[version]
        initialized: InitializeResult = read_result(era, result, InitializeResult)
        negotiation.era = era
        if era.mirrors_version:
            session.link.metadata = {VERSION_HEADER: era.version}
        await session.notify("notifications/initialized")
        if self.log_level is not None and initialized.capabilities.logging is not None:
            await self._set_log_level(session, era, self.log_level)
        return Negotiated(era, initialized.capabilities, initialized.server_info, initialized.instructions)

    async def _set_log_level(self, session: Session, era: Era, level: str) -> None:
        assert era.client.log_level_method is not None
        options = CallOptions(idle=self._timeout, cap=math.inf)
        try:
            await session.outbound.request(era.client.log_level_method, {"level": level}, options)
        except RpcError as error:
            # A server that is too loud is a server all the same.
            log.debug("the log level could not be set", error=str(error))
