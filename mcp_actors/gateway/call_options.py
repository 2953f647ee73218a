"""The news of a client with a session outside of calls, for the upstreams with a connection of that client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import Era
from mcp_actors._eras.modern import CAPABILITIES, CLIENT_INFO, ENVELOPE, LOG_LEVEL, SUBSCRIPTION_ID
from mcp_actors._server.invoke import Handler
from mcp_actors.client import Progress
from mcp_actors.errors import LocalProtocolError
from mcp_actors.gateway.callbacks import passive_extensions, send_to_call
from mcp_actors.gateway.connections import UpstreamConnection
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import UPSTREAM_LOG_LEVEL

__all__ = ["ROOTS_CHANGED", "Present", "call_options", "pass_roots_changed", "set_log_level"]


# -- The options of a request that is made at an upstream for a client: its ``_meta``, its progress, its log messages
# ---
#
# ``_meta`` passes both ways, without the members that belong to one hop: the version, the capabilities and the name
# of the client, its token for progress, its log level, the id of its subscription and that of its task. In place of
# those an upstream without sessions is told the gateway's own version and name, and the capabilities and the log
# level of the client on whose behalf the request is made. The name stays the gateway's, which is who the server is
# connected to.
#
# An upstream is asked for reports of progress if the client wants them. Each one restarts the clock of silence at the
# gateway and, passed on, at the client. While the upstream is silent the gateway sends the client beats of its own
# (`Limits.beat`): the call is alive as long as the gateway waits for it, and the gateway waits for ``timeout``
# seconds of silence and no longer. So a client that waits for the gateway is told of a server that hangs within that
# time.

Present = Callable[[], Context[Any] | None]
"""Returns the request of the client that waits for a call now, ``None`` while the client is asked by a result."""

_OF_ONE_HOP = ENVELOPE | {LOG_LEVEL, SUBSCRIPTION_ID, "io.modelcontextprotocol/related-task"}


def call_options(ctx: Context[Any], connection: UpstreamConnection, present: Present) -> CallOptions:
    """Returns the options of a request that is made on behalf of a client."""
    defaults = connection.client._requests.options
    invocation, era = ctx.call.invocation, connection.era
    names_requests = connection.traits.names_requests
    # A task shows its reports to whoever looks at it.
    wants_progress = invocation.progress_token is not None or ctx.call.client_link is not None
    if not (invocation.meta or wants_progress or names_requests or era.declares_in_requests):
        return defaults
    return CallOptions(
        idle=defaults.idle,
        cap=defaults.cap,
        on_progress=_reporter(present) if wants_progress else None,
        meta={key: value for key, value in invocation.meta.items() if key not in _OF_ONE_HOP},
        is_forwarded=True,
        envelope=_envelope(ctx, connection, era) if era.declares_in_requests else None,
        on_message=_message_taker(era, present) if names_requests else None,
    )


def _envelope(ctx: Context[Any], connection: UpstreamConnection, era: Era) -> dict[str, Any]:
    own = connection.client._connectivity.session.outbound.meta
    peer = ctx.peer
    declared = peer.raw_capabilities
    if declared and peer.era is not era:
        declared = era.unstructure(peer.capabilities)
    if "extensions" in declared:
        extensions = declared["extensions"]
        passive = passive_extensions(extensions if isinstance(extensions, dict) else None)
        declared = {**declared, "extensions": passive}
    envelope = {**own, CAPABILITIES: declared, CLIENT_INFO: own.get(CLIENT_INFO)}
    level = ctx.log_level
    if level is not None and connection.knows_whose_logs:
        envelope[LOG_LEVEL] = level
    else:
        envelope.pop(LOG_LEVEL, None)
    return envelope


def _reporter(present: Present) -> Callable[[Progress], Any]:
    async def report(progress: Progress) -> None:
        ctx = present()
        if ctx is None:
            return
        try:
            await ctx.progress(progress.progress, progress.total, progress.message)
        except (LocalProtocolError, trio.BrokenResourceError) as error:
            log.debug("a report of progress was not passed on", error=str(error))

    return report


def _message_taker(era: Era, present: Present) -> Callable[[str, dict[str, Any]], bool]:
    """Takes what comes with a request, over bindings that tell so: log messages, and what is beyond the protocol."""

    def take(method: str, params: dict[str, Any]) -> bool:
        if method != "notifications/message" and method in era.server_notifications:
            return False
        ctx = present()
        try:
            if ctx is not None:
                send_to_call(ctx, method, params)
        except LocalProtocolError as error:
            log.debug("a notification of an upstream was dropped", method=method, error=str(error))
        return True

    return take


# ----------------------------------------------------------------------------------------------------

ROOTS_CHANGED = "notifications/roots/list_changed"


def set_log_level(own: Handler, actors: Iterable[UpstreamActor], ctx: Context[Any]) -> Any:
    """Answers ``logging/setLevel``, and gives the client's own connections the level, each in a task of it.

    Connections that are made later are given it before the first call over them.

    Args:
        own: The handler of the server.
        actors: The upstreams.
        ctx: The request.
    """
    result = own(ctx)
    for each in _connections_of(actors, ctx):
        level = each.level_to_set(ctx)
        if level is not None:
            dispatcher = each.client._connectivity.session.dispatcher
            dispatcher.start_task(UPSTREAM_LOG_LEVEL, partial(each.set_log_level, level))
    return result


def pass_roots_changed(actors: Iterable[UpstreamActor], ctx: Context[Any]) -> None:
    """Tells the servers that were told of the client's roots that these have changed. Never waits."""
    for each in _connections_of(actors, ctx):
        if each.declared.roots is not None and ROOTS_CHANGED in each.era.client_notifications:
            each.client._connectivity.session.dispatcher.post(ROOTS_CHANGED)


def _connections_of(actors: Iterable[UpstreamActor], ctx: Context[Any]) -> Iterator[UpstreamConnection]:
    session = ctx.session
    if session is not None:
        for actor in actors:
            for each in actor.connections:
                if each.key is session and each.is_open:
                    yield each
