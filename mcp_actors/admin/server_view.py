"""The server of this process, watched and steered."""

from __future__ import annotations

import trio

from mcp_actors._actors.connectionless import ConnectionlessSession
from mcp_actors._server.runtime import ServerRuntime
from mcp_actors._server.transport_handler import TransportHandler
from mcp_actors.abc import ServerHandler
from mcp_actors.admin.actions import Action, ActionOutcome
from mcp_actors.admin.snapshot import NodeSnapshot
from mcp_actors.admin.taking import ServerSight
from mcp_actors.errors import INTERNAL_ERROR, RpcError
from mcp_actors.logging import log

__all__ = ["ServerView"]

# Seconds for the calls of a session that ends to be answered.
_ANSWER_TIME = 1.0
# The text that a client is sent for its call.
_CALL_ENDED = "the call was cancelled by an operator of the server"
_SESSION_ENDED = "the session was ended by an operator of the server"


class ServerView:
    """A `LiveView` of the server that a handler belongs to, and of no other node.

    Args:
        handler: What `ServerTransport.serve` was given.
        worker: The number of this process among the workers of a supervisor; ``None`` if it is none.

    Raises:
        TypeError: The handler is none of this engine.
    """

    def __init__(self, handler: ServerHandler, worker: int | None = None) -> None:
        if not isinstance(handler, TransportHandler) or not isinstance(handler.running, ServerRuntime):
            raise TypeError(f"a live view needs a handler of this engine, not {handler!r:.80}")
        responder = handler.responder
        self._sight = ServerSight(
            handler.running, handler.shared.node, lambda: responder.scope.server.info, worker
        )

    def __repr__(self) -> str:
        return f"<ServerView {self._sight!r}>"

    @property
    def node(self) -> str:
        """The name of the node."""
        return self._sight.node

    async def own_snapshot(self) -> NodeSnapshot:
        """Returns where the server of this process stands, and how long a turn of its event loop takes."""
        began = trio.current_time()
        await trio.lowlevel.checkpoint()
        turn = trio.current_time() - began
        return await self._sight.take(turn)

    async def snapshot(self) -> list[NodeSnapshot]:
        """See `LiveView.snapshot`."""
        return [await self.own_snapshot()]

    async def act(self, action: Action, who: str) -> ActionOutcome:
        """Ends a call or a session. Its clients are told: calls are answered with an error.

        Args:
            action: What to do.
            who: Who wants it, for the log.
        """
        outcome = await self._act(action)
        log.warning(
            "an operator acted",
            action=action.action,
            target=action.target[:64],
            who=who,
            done=outcome.done,
            outcome=outcome.text,
        )
        return outcome

    async def _act(self, action: Action) -> ActionOutcome:
        await trio.lowlevel.checkpoint()
        if action.node != self.node:
            return ActionOutcome(False, "there is no such node")
        if action.action == "cancel_call":
            return self._cancel_call(action.target)
        return await self._end_session(action.target)

    def _cancel_call(self, key: str) -> ActionOutcome:
        call = self._sight.call_named(key)
        if call is None:
            return ActionOutcome(False, "the call is not in flight any more")
        if call.cut_short:
            return ActionOutcome(False, "the call is cancelled already, and its function cleans up")
        call.end_with(RpcError(INTERNAL_ERROR, _CALL_ENDED))
        return ActionOutcome(True, f"{call.invocation.method.name} was cancelled")

    async def _end_session(self, name: str) -> ActionOutcome:
        session = self._sight.session_named(name)
        if session is None:
            return ActionOutcome(False, "the session has ended")
        for call in tuple(session.dispatcher.calls.values()):
            call.end_with(RpcError(INTERNAL_ERROR, _SESSION_ENDED))
        if isinstance(session, ConnectionlessSession):
            # Answered before the session is gone: a client that is told 404 for a call makes it again in a new session.
            with trio.move_on_after(_ANSWER_TIME):
                await session.wait_until_idle()
            session.end()
        else:
            session.stop()
        return ActionOutcome(True, f"{name} ends")
