"""The functions of a gateway's client: what an upstream asks and reports over a connection reaches the right client.

A server with sessions speaks to its client, not to a call. So only a connection that is of one client leads anywhere:

=============================================  =====================================================================
the connection                                 what the server asks, and what it logs
=============================================  =====================================================================
is of one session                              goes to the last call in flight of that session: by a request, or, for
                                               a stateless client, by holding the call (`HeldCall`); outside of calls
                                               to the session itself
has one call at a time                         goes to that call
serves several clients                         is refused, and dropped: it is unknown for whom it is. Over HTTP the
                                               messages that come with a request are that request's all the same
=============================================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import trio

from mcp_actors._server.peer_session import PeerSession, is_wanted
from mcp_actors._server.questions import missing_capability, read_answer
from mcp_actors._wire.codec import encode_notification
from mcp_actors.abc import Frame
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    CallTimeout,
    LocalProtocolError,
    McpError,
    MissingCapability,
    Overloaded,
    RpcError,
)
from mcp_actors.gateway.connections import UpstreamConnection
from mcp_actors.gateway.held_calls import HELD_TIMEOUT, RETRY_AFTER
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.tasks import TASKS
from mcp_actors.types import (
    ClientCapabilities,
    CreateMessageParams,
    ElicitFormParams,
    ElicitUrlParams,
    InputRequest,
    ListRootsParams,
)

__all__ = [
    "MAX_QUESTIONS_OF_CONNECTION",
    "UpstreamCallbacks",
    "is_asked_by_result",
    "passive_extensions",
    "send_to_call",
]

MAX_QUESTIONS_OF_CONNECTION = 64
"""Questions over one connection that may wait for a client with a session. All upstreams ask it over that session."""

_MESSAGE = "notifications/message"
_ELICITATION_COMPLETE = "notifications/elicitation/complete"


def passive_extensions(declared: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the extensions of a client that an upstream learns of: all but that of tasks.

    The gateway waits for the results of that one itself. The others say only what a client can show.
    """
    return {id: settings for id, settings in (declared or {}).items() if id != TASKS}


class UpstreamCallbacks:
    """The functions of the client of one connection.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self._asking = 0

    def __repr__(self) -> str:
        return f"<UpstreamCallbacks calls={len(self._connection.calls)}>"

    def options(self, declared: ClientCapabilities) -> dict[str, Any]:
        """Returns options of a `Client`, which declares what the caller has declared and can be asked no more.

        Args:
            declared: The capabilities of the caller.
        """
        capabilities = attrs.evolve(
            declared, tasks=None, extensions=passive_extensions(declared.extensions) or None
        )
        options: dict[str, Any] = {
            "capabilities": capabilities,
            "on_log": self.logged,
            "on_notification": self.notified,
        }
        if declared.sampling is not None:
            options["sampling"] = self.ask
            options["sampling_tools"] = declared.sampling.tools is not None
        if declared.elicitation is not None:
            options["elicitation"] = self.ask
        if declared.roots is not None:
            options["roots"] = self._roots
        return options

    # -- questions -------------------------------------------------------------------------------------------------

    async def ask(self, question: ElicitFormParams | ElicitUrlParams | CreateMessageParams) -> Any:
        """Asks the client that a question is for, and returns its answer.

        Raises:
            RpcError: The client answered with an error, was not to be asked, or gave no answer.
        """
        return await self._asked(question)

    async def _roots(self) -> Any:
        roots = (await self._asked(ListRootsParams())).roots
        self._connection.has_sent_roots = True
        return roots

    async def _asked(self, question: InputRequest) -> Any:
        try:
            return await self._answer(question)
        except RpcError:
            raise
        except CallTimeout:
            raise RpcError(INTERNAL_ERROR, "the client has not answered in time") from None
        except McpError as error:
            log.info("a client could not be asked for an upstream", method=question.method, error=str(error))
            raise RpcError(
                INTERNAL_ERROR, "the client could not be asked, or its answer not be read"
            ) from None

    async def _answer(self, question: InputRequest) -> Any:
        connection = self._connection
        if not connection.is_of_one:
            raise RpcError(INVALID_REQUEST, "several clients are served here: nobody knows who is asked")
        ctx = next(reversed(connection.calls), None)
        if ctx is not None:
            held = connection.calls[ctx]
            if held is not None:
                return await held.ask(question)
            if is_asked_by_result(ctx):
                needed = missing_capability(question, {}, ctx.era)
                raise MissingCapability(needed or {})
        elif not isinstance(connection.key, PeerSession):
            raise RpcError(INVALID_REQUEST, "no call is in flight, and without one there is no client to ask")
        if self._asking >= MAX_QUESTIONS_OF_CONNECTION:
            raise Overloaded.for_caller("questions at once", MAX_QUESTIONS_OF_CONNECTION, RETRY_AFTER)
        self._asking += 1
        try:
            if ctx is None:
                assert isinstance(connection.key, PeerSession)
                return await _ask_session(connection.key, question)
            key = ctx._key_of(question)
            return (await ctx.ask({key: question}))[key]
        finally:
            self._asking -= 1

    # -- what the server reports -------------------------------------------------------------------------------------

    def logged(self, level: Any, data: Any, logger: str | None) -> None:
        """Passes a log message on, if the client wants it. Never waits."""
        if not self._connection.is_of_one:
            return
        params = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        try:
            session = self._connection.key
            if not self._sent_to_call(_MESSAGE, params) and isinstance(session, PeerSession):
                session.log(level, data, logger)
        except LocalProtocolError as error:
            log.debug("a log message of an upstream was dropped", error=str(error))

    def notified(self, method: str, params: dict[str, Any]) -> None:
        """Passes on notifications beyond the protocol, and the end of a visit to a URL. Never waits."""
        if not self._connection.is_of_one:
            return
        session = self._connection.key
        try:
            if method == _ELICITATION_COMPLETE:
                id = params.get("elicitationId")
                if isinstance(id, str) and isinstance(session, PeerSession):
                    session.elicitation_complete(id)
            elif not self._sent_to_call(method, params) and isinstance(session, PeerSession):
                session.notify(method, params)
        except LocalProtocolError as error:
            log.debug("a notification of an upstream was dropped", method=method, error=str(error))

    def _sent_to_call(self, method: str, params: dict[str, Any]) -> bool:
        """Sends a notification to the last call in flight that wants it; returns whether there was one."""
        calls = self._connection.calls
        for ctx in reversed(calls):
            held = calls[ctx]
            present = ctx if held is None else held.ctx
            if present is not None and send_to_call(present, method, params):
                return True
        return False


def is_asked_by_result(ctx: Context[Any]) -> bool:
    """Whether asking the client ends its request; if not, it is asked while the call waits, also for a task."""
    return ctx.era.asks_by_retry and not ctx.call.was_answered


def send_to_call(ctx: Context[Any], method: str, params: dict[str, Any]) -> bool:
    """Sends a notification on the stream of a call, without waiting; returns whether it was sent.

    It is not sent if it is a log message that the call does not want, where the client reads too slowly, and when the
    call has ended. It never waits, so that a client that does not read holds up no upstream.

    Raises:
        LocalProtocolError: It is longer than the connection carries, or a log message of no level.
    """
    call = ctx.call
    if call.state != "running":
        return False
    if method == _MESSAGE and not is_wanted(params.get("level", ""), ctx.log_level):
        return False
    if call.client_link is not None:
        # The request of a task was answered: only its session is left, where there is one.
        session = None if ctx.era.declares_in_requests else ctx.session
        return session is not None and session.notify(method, params)
    frame = Frame(encode_notification(method, params), call.id, method=method)
    try:
        return call.outlet.send_nowait(frame)
    except trio.BrokenResourceError:
        return False


async def _ask_session(session: PeerSession, question: InputRequest) -> Any:
    """Asks the client of a session outside of its calls."""
    peer = session.peer
    if peer is None:
        raise RpcError(INVALID_REQUEST, "the client can be asked during its calls only")
    needed = missing_capability(question, peer.raw_capabilities, peer.era)
    if needed is not None:
        raise MissingCapability(needed)
    raw = await session.request(question.method, peer.era.unstructure(question), timeout=HELD_TIMEOUT)
    return read_answer(question, raw, peer.era)
