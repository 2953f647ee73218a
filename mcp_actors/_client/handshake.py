"""A client's connection: one channel, one session, and what the two sides agreed when they met."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from mcp_actors._actors.inbound_call import DispatchRules
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.request_handlers import RequestHandlers
from mcp_actors._eras.capabilities import declared_names
from mcp_actors._eras.client_negotiation import ClientNegotiation, request_meta
from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import MODERN
from mcp_actors._eras.modern.meta_keys import SERVER_INFO
from mcp_actors._eras.modern.mirror import VERSION_HEADER, mirrored
from mcp_actors._eras.probe import verdict_on_error, verdict_on_result
from mcp_actors.abc import FrameChannel
from mcp_actors.errors import CallTimeout, RemoteProtocolError, RpcError, UnsupportedVersion
from mcp_actors.logging import log
from mcp_actors.types import DiscoverResult, Implementation, InitializeResult, ServerCapabilities

__all__ = ["ClientConnection", "HandshakeOptions", "Negotiated"]

# A server may refuse the first version that we name, even one that it then says it supports.
MAX_PROBES = 3


@attrs.frozen
class Negotiated:
    """What the two sides agreed on."""

    era: Era
    capabilities: ServerCapabilities
    info: Implementation | None
    instructions: str | None

    @functools.cached_property
    def declared(self) -> frozenset[str]:
        """The dotted names of what the server declared."""
        return declared_names(self.capabilities)


@attrs.frozen
class HandshakeOptions:
    """What the client brings to a meeting. Times are seconds.

    ``log_level`` tells what a session is asked for, ``None`` to leave it to the server.
    """

    versions: Sequence[str]
    info: Implementation
    answers: RequestHandlers
    probe_timeout: float
    handshake_timeout: float
    log_level: Callable[[], str | None]


class ClientConnection:
    """One channel with its session; `agree` performs the handshake of the era that the server speaks."""

    def __init__(
        self,
        channel: FrameChannel,
        name: str,
        limits: Limits,
        answers: RequestHandlers,
        on_notification: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.opening = ClientNegotiation()
        self.session = Session(
            name,
            channel,
            self.opening,
            answers,
            DispatchRules(answers_malformed=False),
            limits=limits,
            on_notification=on_notification,
        )

    def __repr__(self) -> str:
        return f"<ClientConnection {self.opening.era.version if self.opening.era else '-'} {self.session!r}>"

    async def agree(self, options: HandshakeOptions, hint: Era | None) -> Negotiated:
        """Finds out the era, trying ``hint`` first, and performs its handshake.

        Raises `UnsupportedVersion` when no version is common, `CallTimeout` and `ConnectionLost` as calls do.
        """
        agreed: Negotiated | None
        if hint is not None and hint.name == "legacy":
            try:
                agreed = await self._initialize(options)
            except RpcError:
                agreed = await self._discover(options, None)
                if agreed is None:
                    raise
        else:
            agreed = await self._discover(options, hint) or await self._initialize(options)
        self.opening.era = agreed.era
        return agreed

    # -- modern ----------------------------------------------------------------------------------------------------

    async def _discover(self, options: HandshakeOptions, hint: Era | None) -> Negotiated | None:
        """``None`` when the server is a legacy one, or we speak nothing else.

        What a modern server refuses is raised: it would not understand ``initialize`` either.
        """
        tried = hint or next((MODERN[v] for v in reversed(options.versions) if v in MODERN), None)
        if tried is None:
            return None
        result, era = await self._probe(options, tried)
        if era is None or era.name == "legacy":
            return None
        discovered: DiscoverResult = read(era, result, DiscoverResult)
        meta = result.get("_meta")
        info = meta.get(SERVER_INFO) if isinstance(meta, dict) else None
        return Negotiated(
            era,
            discovered.capabilities,
            read(era, info, Implementation) if isinstance(info, dict) else None,
            discovered.instructions,
        )

    async def _probe(self, options: HandshakeOptions, tried: Era) -> tuple[dict[str, Any], Era | None]:
        """Asks until the server and we mean the same version; a server may refuse the first one we name.

        No era means a legacy server; a client that speaks nothing legacy raises what it got instead.
        """
        speaks_legacy = any(version in LEGACY for version in options.versions)
        for _ in range(MAX_PROBES):
            try:
                result = await self._ask(options, "server/discover", tried, options.probe_timeout)
            except RpcError as error:
                era = verdict_on_error(error, options.versions, tried)
                if era is None and speaks_legacy:
                    return {}, None
                if era is None or not isinstance(error, UnsupportedVersion):
                    raise
                if era.name == "legacy":
                    return {}, era
                tried = era
                continue
            except (CallTimeout, RemoteProtocolError):
                if speaks_legacy:
                    return {}, None
                raise
            era = verdict_on_result(result, options.versions)
            if era is None and not speaks_legacy:
                raise RemoteProtocolError("the server's answer to server/discover names no supportedVersions")
            return result, era
        raise RemoteProtocolError("the server refuses each version that it says it supports")

    # -- legacy ----------------------------------------------------------------------------------------------------

    async def _initialize(self, options: HandshakeOptions) -> Negotiated:
        ours = [version for version in options.versions if version in LEGACY]
        asked = LEGACY[ours[-1]]
        params = {
            "protocolVersion": asked.version,
            "capabilities": asked.unstructure(options.answers.capabilities),
            "clientInfo": asked.unstructure(options.info),
        }
        # initialize is never cancelled by message: a client that gives up closes the connection.
        result = await self.session.request(
            "initialize", params, CallOptions(idle=options.handshake_timeout, cap=math.inf, cancellable=False)
        )
        version = result.get("protocolVersion")
        if version not in ours:
            raise UnsupportedVersion(asked.version, [version] if isinstance(version, str) else [])
        era = LEGACY[version]
        initialized: InitializeResult = read(era, result, InitializeResult)
        self.opening.era = era
        if era.mirrors_version:
            self.session.link.metadata = {VERSION_HEADER: era.version}
        await self.session.notify("notifications/initialized")
        level = options.log_level()
        if level is not None and initialized.capabilities.logging is not None:
            await self._set_log_level(level, options.handshake_timeout)
        return Negotiated(era, initialized.capabilities, initialized.server_info, initialized.instructions)

    async def _set_log_level(self, level: str, seconds: float) -> None:
        try:
            await self.session.request(
                "logging/setLevel", {"level": level}, CallOptions(idle=seconds, cap=math.inf)
            )
        except RpcError as error:
            # A server that is too loud is a server all the same.
            log.debug("the log level could not be set", error=str(error))

    async def _ask(self, options: HandshakeOptions, method: str, era: Era, seconds: float) -> dict[str, Any]:
        params = {"_meta": request_meta(era, options.info, options.answers.capabilities, None)}
        metadata = mirrored(era.version, method, params) if self.session.link.channel.mirrors else None
        # A legacy server that never answers must not be confused by a cancellation it cannot know.
        return await self.session.request(
            method, params, CallOptions(idle=seconds, cap=math.inf, cancellable=False), metadata=metadata
        )


def read(era: Era, value: Any, cls: type) -> Any:
    """A server's JSON as a typed object; raises `RemoteProtocolError` when it does not fit."""
    try:
        return era.structure(value, cls)
    except Exception as error:  # cattrs raises whatever the member's own conversion raised
        raise RemoteProtocolError(f"the server sent a malformed {cls.__name__}: {error}") from error
