"""Functions that go on after their call was answered, and the part of a server that runs them."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import msgspec

from mcp_actors._actors.detached_call import DetachedCall
from mcp_actors._actors.inbound_call import CallOwner, InboundCall
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.voice import Voice
from mcp_actors._eras.era import Invocation, Peer
from mcp_actors._eras.server_negotiation import era_of
from mcp_actors._server.access import principal_of, request_of
from mcp_actors._server.context import Context
from mcp_actors._server.dispatch import MethodDispatch
from mcp_actors._server.peer_session import PeerSession
from mcp_actors.abc import OpenState
from mcp_actors.errors import LocalProtocolError
from mcp_actors.principal import Principal

__all__ = ["Serving", "detached", "outcome", "remembered"]

# Bytes by which an outcome is shorter than the longest message: so much more stands round it in the answer in which a
# client is given it later, such as a status message of a thousand characters, each escaped.
_AROUND = 8192
# Bytes of the longest message, by default, of every transport: a function that is run again has no client.
_LONGEST_MESSAGE = 16 * 1024 * 1024


class _Remembered(msgspec.Struct, forbid_unknown_fields=True):
    """A request as it is kept outside of this process."""

    version: str
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    capabilities: dict[str, Any]
    info: Any = None
    log_level: str | None = None
    subject: str | None = None
    issuer: str | None = None
    client: str | None = None
    scopes: list[str] = []
    claims: dict[str, Any] = {}


def detached(ctx: Context, voice: Voice) -> Context:
    """Returns a context for a function that goes on after its call was answered.

    Its params, client, principal, revision, server and state are those of the call; the session is, for as long as it
    lives. What it tells and asks the client goes to ``voice``, and never through the call.

    Args:
        ctx: The context of the call.
        voice: Takes reports of progress, log messages and other notifications, and answers questions.
    """
    call = ctx.call
    invocation = msgspec.structs.replace(
        call.invocation,
        params=dict(call.invocation.params),
        progress_token=None,
        answers=None,
        state=None,
        principal=principal_of(call),
        reported=False,
    )
    owner = _LaterOwner(call.owner)
    longest = _longest_outcome(call.outlet.longest)
    later = DetachedCall(invocation, owner, request_of(call), longest, voice)
    session_of = partial(_while_it_lives, weakref.ref(call.owner), ctx._scope.session_of)
    return Context(later, attrs.evolve(ctx._scope, session_of=session_of))


def _while_it_lives(
    held: weakref.ref[CallOwner], session_of: Callable[[CallOwner], PeerSession | None], _: CallOwner
) -> PeerSession | None:
    owner = held()
    return None if owner is None else session_of(owner)


class _LaterOwner:
    """Stands for the dispatcher of a call that was answered, so that an ended session is not kept with its buffers."""

    def __init__(self, owner: CallOwner) -> None:
        self.name = owner.name
        self.peer = owner.peer
        self.responder = owner.responder
        self.rules = owner.rules
        self.limiters = owner.limiters

    async def request(
        self, method: str, params: dict[str, Any], options: CallOptions, *, call: InboundCall | None = None
    ) -> dict[str, Any]:
        """Raises `LocalProtocolError`: the call that could ask has been answered, and its function has a voice."""
        raise LocalProtocolError("the call was answered: its function asks by ctx.ask")

    def forget(self, call: InboundCall) -> None:
        """Does nothing: the call is in no table."""


def _longest_outcome(longest_message: int) -> int:
    return max(longest_message - _AROUND, longest_message // 2)


async def outcome(ctx: Context, function: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    """Runs a function and returns what the client of a plain call would be sent: ``{"result": …}`` or ``{"error": …}``.

    What it raises is logged, masked and told as it is for any call. Cancelled, it raises `trio.Cancelled`.

    Args:
        ctx: A context that `detached` or `Serving.begin_again` has made.
        function: Such as ``lambda: call_next(ctx)``.
    """
    call = ctx.call
    assert isinstance(call, DetachedCall)
    detached_calls = ctx._scope.detached
    detached_calls.add(call)
    try:
        if call.owner.responder.telemetry is None:
            return await call.outcome(function)
        # Imported where it is used: most servers have no telemetry.
        observed = importlib.import_module("mcp_actors._actors.observed_task")
        answer: dict[str, Any] = await observed.observed_outcome(call, function)
        return answer
    finally:
        detached_calls.discard(call)


def remembered(ctx: Context) -> bytes:
    """Returns the request of a context as JSON, so that another process can run it again: `Serving.begin_again`.

    It has the params, what the client says of itself, and the principal with its claims, but no token.

    Raises:
        TypeError: A claim of the principal is no JSON value.
    """
    peer, principal = ctx.peer, ctx.principal
    kept = _Remembered(
        peer.era.version,
        ctx.method,
        ctx.params,
        ctx.meta,
        peer.raw_capabilities,
        peer.raw_info,
        peer.log_level,
    )
    if principal is not None:
        kept.subject, kept.issuer, kept.client = principal.subject, principal.issuer, principal.client
        kept.scopes, kept.claims = sorted(principal.scopes), dict(principal.claims)
    return msgspec.json.encode(kept)


@attrs.frozen(eq=False)
class Serving:
    """One `Server.serve`, as an extension sees it: `ServerExtension.serving`."""

    shared: OpenState
    """What outlives a session, and what other nodes share."""
    _responder: MethodDispatch
    _owner: CallOwner
    longest: int = _longest_outcome(_LONGEST_MESSAGE)

    @property
    def server(self) -> Any:
        """The `Server`."""
        return self._responder.scope.server

    @property
    def state(self) -> Any:
        """The value that the server's lifespan yielded; ``None`` without a lifespan."""
        return self._responder.scope.state

    def begin_again(self, request: bytes, voice: Voice) -> tuple[Context, Callable[[], Awaitable[Any]]]:
        """Returns the context of a remembered request, and the function that runs it: middleware, then the handler.

        Args:
            request: What `remembered` returned, in this process or in another one.
            voice: As `detached` has it.

        Raises:
            ValueError: It was made by another version of this program, which remembers otherwise, or this server has
                no such method or revision.
        """
        try:
            kept = msgspec.json.decode(request, type=_Remembered)
            era = era_of(kept.version)
        except (msgspec.DecodeError, KeyError) as error:
            raise ValueError(f"the request was remembered in another form: {error}") from None
        features = self._responder.features
        method = era.server_methods.get(kept.method)
        if method is None or kept.method not in features.handlers:
            raise ValueError(f"this server does not answer {kept.method!r:.80}")
        peer = Peer(era, kept.capabilities, kept.info, kept.log_level)
        principal = None
        if kept.subject is not None:
            principal = Principal(kept.subject, kept.issuer, kept.client, frozenset(kept.scopes), kept.claims)
        id = f"again-{kept.method}"
        invocation = Invocation(era, method, kept.params, kept.meta, peer, id, None, kept.log_level)
        invocation.principal = principal
        call = DetachedCall(invocation, self._owner, None, self.longest, voice)
        ctx = Context(call, self._responder.scope)
        return ctx, lambda: self._responder.run_again(ctx)
