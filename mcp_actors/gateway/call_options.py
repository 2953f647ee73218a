"""The options of a request that is made at an upstream for a client: its ``_meta``, its progress, its log messages.

``_meta`` passes both ways, without the members that belong to one hop: the version, the capabilities and the name of
the client, its token for progress, its log level, the id of its subscription, that of its task, its key, and its
deadline: the upstream is sent what is left of the time of the call. An upstream without sessions receives the gateway's
own version and name, and the capabilities and the log level of the client on whose behalf the request is made. The name
stays the gateway's, because that is who the server is connected to.

An upstream is asked for reports of progress if the client wants them. Each one restarts the clock of silence at the
gateway and, passed on, at the client. While the upstream is silent the gateway sends the client beats of its own
(`Limits.beat`): the call is alive as long as the gateway waits for it, and the gateway waits for ``timeout`` seconds of
silence and no longer. So a client that waits for the gateway learns within that time that a server hangs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import DEADLINE, ETAG, KEY, PARTIAL_RESULT, STREAMS
from mcp_actors._eras.modern import CAPABILITIES, CLIENT_INFO, ENVELOPE, LOG_LEVEL, SUBSCRIPTION_ID
from mcp_actors._wire.codec import encode_value
from mcp_actors.client import Progress
from mcp_actors.errors import LocalProtocolError
from mcp_actors.gateway.callbacks import passive_extensions, send_to_call
from mcp_actors.gateway.connections import GATEWAYS, is_gateway
from mcp_actors.gateway.upstream import Lease
from mcp_actors.supervision.logging import log

__all__ = ["call_options"]

_OF_ONE_HOP = ENVELOPE | {
    LOG_LEVEL,
    SUBSCRIPTION_ID,
    "io.modelcontextprotocol/related-task",
    GATEWAYS,
    KEY,
    DEADLINE,
    ETAG,
    STREAMS,
}


def call_options(lease: Lease) -> CallOptions:
    """Returns the options of the request that a call makes at its upstream."""
    connection, call = lease.connection, lease.ctx.call
    defaults = connection.client._requests.options
    invocation, needs_envelope = call.invocation, lease.era.declares_in_requests
    names_requests = connection.server.names_requests
    # A task shows its reports to anyone who looks at it.
    wants_progress = invocation.progress_token is not None or call.client_link is not None
    passes_gateways = connection.server.gateway is not None
    if not (invocation.meta or wants_progress or names_requests or needs_envelope or passes_gateways):
        return defaults
    meta = {key: value for key, value in invocation.meta.items() if key not in _OF_ONE_HOP}
    if KEY in invocation.meta and (key := _key_there(lease)) is not None:
        meta[KEY] = key
    if passes_gateways:
        meta[GATEWAYS] = lease.upstream.circle.path_of(invocation.meta)
    return CallOptions(
        idle=defaults.idle,
        cap=defaults.cap,
        on_progress=_reporter(lease) if wants_progress else None,
        meta=meta,
        is_forwarded=True,
        envelope=_envelope(lease) if needs_envelope else None,
        on_message=_message_taker(lease) if names_requests else None,
        waits_for_server=False,
        # While the client of a held call is asked, its request has ended, and with it the time that it had.
        sends_deadline=invocation.deadline is not None and lease.held is None,
    )


def _key_there(lease: Lease) -> str | None:
    """Returns the key of a call at a server that takes keys: all callers of the gateway are one caller there."""
    ctx = lease.ctx
    found = ctx.server._features.tools.elsewhere(ctx.params.get("name"))
    # What is there now may be another server than the one that was listed.
    if found is None or not found.passes_key or not lease.connection.server.negotiated.takes_keys:
        return None
    owner = "" if ctx.principal is None else ctx.principal.key
    return hashlib.sha256(encode_value([owner, ctx.meta[KEY]])).hexdigest()


def _envelope(lease: Lease) -> dict[str, Any]:
    connection, era = lease.connection, lease.era
    own = connection.client._connectivity.session.outbound.meta
    peer = lease.ctx.call.invocation.peer
    declared = peer.raw_capabilities
    if declared and peer.era is not era:
        declared = era.unstructure(peer.capabilities)
    if is_gateway(declared):
        experimental = {
            **declared["experimental"],
            GATEWAYS: lease.upstream.circle.path_of(declared["experimental"]),
        }
        declared = {**declared, "experimental": experimental}
    if "extensions" in declared:
        extensions = declared["extensions"]
        passive = passive_extensions(extensions if isinstance(extensions, dict) else None)
        declared = {**declared, "extensions": passive}
    envelope = {**own, CAPABILITIES: declared, CLIENT_INFO: own.get(CLIENT_INFO)}
    level = lease.ctx.log_level if connection.knows_whose_logs else None
    if level is not None:
        envelope[LOG_LEVEL] = level
    else:
        envelope.pop(LOG_LEVEL, None)
    return envelope


def _reporter(lease: Lease) -> Callable[[Progress], Any]:
    async def report(progress: Progress) -> None:
        ctx = lease.present
        if ctx is None:
            return
        try:
            await ctx.progress(progress.progress, progress.total, progress.message)
        except (LocalProtocolError, trio.BrokenResourceError) as error:
            log.debug("a report of progress was not passed on", error=str(error))

    return report


def _message_taker(lease: Lease) -> Callable[[str, dict[str, Any]], bool]:
    """Returns a function for what comes with a request: log messages, and what is beyond the protocol."""

    def take(method: str, params: dict[str, Any]) -> bool:
        if method == PARTIAL_RESULT or (
            method != "notifications/message" and method in lease.era.server_notifications
        ):
            return False
        ctx = lease.present
        try:
            if ctx is not None:
                send_to_call(ctx, method, params)
        except LocalProtocolError as error:
            log.debug("a notification of an upstream was dropped", method=method, error=str(error))
        return True

    return take
