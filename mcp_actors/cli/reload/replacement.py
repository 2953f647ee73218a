"""A server that others replace while it serves: its connections and sessions stay, and what they find there changes.

The server that has the connections registers nothing itself. Every server that takes its place, the first one too, has
a task for its lifespan and one for each of its extensions, so that these can be left, in any order, while the
transports go on. What stays as it was at the start are the transports, `Server.limits`, the versions, the key of
states, `Server.shared` and `Server.telemetry`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from functools import partial
from typing import Any

import attrs
import trio

from mcp_actors._actors.inbound_call import CallOwner, InboundCall
from mcp_actors._server.dispatch import MethodDispatch
from mcp_actors._server.features import Features
from mcp_actors._server.scope import OpenedBlock, ServerScope
from mcp_actors.abc import OpenState
from mcp_actors.errors import INTERNAL_ERROR, LocalProtocolError, RpcError
from mcp_actors.server import Server
from mcp_actors.supervision.containment import start, start_again, start_and_wait
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import REPLACED_END, REPLACEMENT, TURN

__all__ = ["ReplaceableServer"]

# Seconds between two looks at whether the calls of a replaced server have ended. Two looks have to agree, since a call
# that becomes a task is seen as neither for a moment.
LOOK_EVERY = 0.1
# Replaced servers whose calls may still run; beyond them the calls of the oldest are answered with an error.
MOST_FORMER = 8
# Seconds in which the calls that were cancelled for that reason may clean up.
CLEANUP_BOUND = 5.0
# The text that a client is sent for such a call.
_REPLACED = "the server was replaced too often while the call ran: call again"
_NOT_SERVING = "a server is replaced while it serves: call replace() from beside it"


class _TurnBlock(OpenedBlock):
    """A block of a turn."""

    def __init__(self, responder: MethodDispatch | None = None) -> None:
        super().__init__()
        self.responder = responder
        """The responder for an extension, which reads the server and its state here."""


@attrs.define(eq=False)
class _Turn:
    """The time in which one server serves, from the beginning of its lifespan to the end."""

    server: Server[Any]
    scope: ServerScope
    lifespan: _TurnBlock
    extensions: dict[str, _TurnBlock] = attrs.field(factory=dict)
    is_late: trio.Event = attrs.field(factory=trio.Event)
    """Whether its calls may run no longer."""


class _Entrance:
    """An extension that no client sees: only extensions are entered when there is what answers calls."""

    id = "replaceable"
    settings: Mapping[str, Any] = {}
    core: Mapping[str, Any] = {}

    def __init__(
        self, served: Callable[[MethodDispatch, CallOwner, OpenState], AbstractAsyncContextManager[object]]
    ) -> None:
        self.served = served

    def offered(self, features: Features) -> None:
        """Adds nothing."""

    def goes_on_from(self, former: object) -> bool:
        return False


@attrs.frozen
class _Inside:
    """The parts of one `serve` that all servers in it need."""

    extensions: trio.Nursery
    replaced: trio.Nursery
    responder: MethodDispatch
    owner: CallOwner
    shared: OpenState


class ReplaceableServer(Server[Any]):
    """A server with the connections of ``first``, and with its place, which other servers take by `replace`.

    It is served once. To its clients all lists are declared from the start, so that they are notified also of
    what a later server has first.

    Args:
        first: The server that is served at first, complete and not served yet.
        beside: Runs while it serves, and is started again after a crash: the place for what calls `replace`. By
            default nothing runs.
    """

    def __init__(self, first: Server[Any], beside: Callable[[], Awaitable[object]] | None = None) -> None:
        self._first = first
        self._first_limits = first.limits
        self._beside = beside
        self._lifespans: trio.Nursery | None = None
        self._inside: _Inside | None = None
        self._turn: _Turn | None = None
        self._former: list[_Turn] = []
        self._replacing = trio.Lock()
        # The current replacement, or the last one.
        self._entering = trio.CancelScope()
        super().__init__(
            first.name,
            lifespan=self._hold_lifespans,
            limits=first.limits,
            versions=first.versions,
            capabilities=("tools", "resources", "prompts"),
            extensions=[_Entrance(self._take_turns)],
            state_key=first._runtime._config.state_key,
            shared=first.shared,
            telemetry=first.telemetry,
        )
        # It presents itself as the server that serves now.
        self._features, self.info = first._features, first.info

    def _start_ahead(self, scope: ServerScope) -> None:
        """Starts nothing: the first server starts its own processes, and so does each that takes its place."""

    async def replace(self, new: Server[Any]) -> None:
        """Serves ``new`` from now on: calls in flight end with the former server, all others are for this one.

        Its lifespan is entered first, and that of the former server is left after that server's last call. If this
        is cancelled or raises, the former server serves on.

        Args:
            new: The server, complete and never served.

        Raises:
            LocalProtocolError: This server does not serve, or ends meanwhile; or ``new`` serves, or has been given here
                before.
            Exception: What entering the lifespan or an extension raises.
        """
        async with self._replacing:
            with trio.CancelScope() as self._entering:
                await self._replace(new)
                return
        await trio.lowlevel.checkpoint_if_cancelled()
        raise LocalProtocolError(_NOT_SERVING)

    async def _replace(self, new: Server[Any]) -> None:
        inside, lifespans = self._inside, self._lifespans
        if inside is None or lifespans is None:
            raise LocalProtocolError(_NOT_SERVING)
        stamp = new._runtime._config.stamp
        own_bus = new.bus
        self._join(new)
        lifespan = _TurnBlock()
        scope = await start_and_wait(
            lifespans, TURN, lifespan.hold, partial(new._scope, inside.shared), about=new.name
        )
        turn = _Turn(new, scope, lifespan)
        try:
            going_on = await self._enter_extensions(turn, inside, stamp)
            if self._inside is None:
                # The last wait was over before the end of the server could cancel it.
                raise LocalProtocolError(_NOT_SERVING)
        except BaseException:
            _leave(turn)
            raise
        self._swap(turn, going_on, inside, stamp)
        self.bus.report_to(own_bus)

    def _swap(self, turn: _Turn, going_on: list[str], inside: _Inside, stamp: Any) -> None:
        """Gives a server the connections. Nothing waits in here, so that every call has one server or the other."""
        former, calls, new = self._turn, self._runtime.calls(), turn.server
        for id in going_on:
            assert former is not None
            block = turn.extensions[id] = former.extensions.pop(id)
            if block.responder is not None:
                block.responder.replace(new._features, turn.scope, stamp)
        self._turn, self._features, self.info = turn, new._features, new.info
        self._runtime.replace(new._features, turn.scope, stamp)
        if former is not None:
            self._retire(former, calls, inside)

    def _join(self, new: Server[Any]) -> None:
        """Connects a server with the connections of this one; its features are not served yet."""
        runtime = self._runtime
        if new._runtime is runtime or new._runtime.is_serving:
            raise LocalProtocolError(
                f"{new.name!r} was served already: give a new Server the place of the old one"
            )
        for name, changed in (
            ("limits", new.limits != self._first_limits),
            ("versions", new.versions != self.versions),
        ):
            if changed:
                log.warning(f"the server has other {name} now: those of the start are used", server=new.name)
        new._runtime, new._sealer, new.bus = runtime, self._sealer, self.bus
        new.versions = self.versions
        bound = {"resources/subscribe": runtime.subscribe, "resources/unsubscribe": runtime.unsubscribe}
        new._features.join(self.bus, runtime.features.loop, bound)

    async def _enter_extensions(self, turn: _Turn, inside: _Inside, stamp: Any) -> list[str]:
        """Enters the extensions of a server, and returns the ids of those that go on with what the former ones do."""
        features, former = turn.server._features, self._turn
        going_on: list[str] = []
        for id, each in features.extensions.items():
            before = None if former is None or id not in former.extensions else former.server
            if before is not None and each.goes_on_from(before._features.extensions[id]):
                going_on.append(id)
                continue
            responder = copy(inside.responder)
            responder.replace(features, turn.scope, stamp)
            block = _TurnBlock(responder)
            served = partial(each.served, responder, inside.owner, inside.shared)
            await start_and_wait(inside.extensions, TURN, block.hold, served, about=id)
            turn.extensions[id] = block
        return going_on

    # -- the end of a turn -------------------------------------------------------------------------------------------

    def _retire(self, former: _Turn, calls: set[InboundCall], inside: _Inside) -> None:
        self._former.append(former)
        if len(self._former) > MOST_FORMER:
            oldest = next((each for each in self._former if not each.is_late.is_set()), former)
            oldest.is_late.set()
        start(inside.replaced, REPLACED_END, self._end_turn, former, calls, about=former.server.name)

    async def _end_turn(self, turn: _Turn, calls: set[InboundCall]) -> None:
        """Waits for the last call of a server that was replaced, and leaves its extensions and its lifespan.

        Cancelled, it leaves that to the end of this server.
        """
        looks = 0
        while looks < 2 and not turn.is_late.is_set():
            with trio.move_on_after(LOOK_EVERY):
                await turn.is_late.wait()
            calls &= self._runtime.calls()
            looks = 0 if calls or turn.scope.detached else looks + 1
        if calls:
            log.warning("calls of a replaced server were ended: too many were replaced", calls=len(calls))
            for call in calls:
                call.end_with(RpcError(INTERNAL_ERROR, _REPLACED))
            with trio.move_on_after(CLEANUP_BOUND):
                while calls := calls & self._runtime.calls():  # noqa: ASYNC110 - the end of a call sets no event
                    await trio.sleep(LOOK_EVERY)
        for block in turn.extensions.values():
            block.left.set()
        for block in turn.extensions.values():
            await block.ended.wait()
        turn.lifespan.left.set()
        self._former.remove(turn)

    # -- while it serves ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _hold_lifespans(self, _: Server[Any]) -> AsyncIterator[None]:
        if self._lifespans is not None or self._turn is not None:
            raise LocalProtocolError(
                "a ReplaceableServer is served once, and was served already: make another one"
            )
        async with trio.open_nursery() as nursery:
            self._lifespans = nursery
            try:
                yield
            finally:
                self._lifespans = None
                for turn in self._turns():
                    turn.lifespan.left.set()

    @asynccontextmanager
    async def _take_turns(
        self, responder: MethodDispatch, owner: CallOwner, shared: OpenState
    ) -> AsyncIterator[None]:
        async with trio.open_nursery() as extensions:
            try:
                async with trio.open_nursery() as beside:
                    self._inside = _Inside(extensions, beside, responder, owner, shared)
                    try:
                        await self.replace(self._first)
                        if self._beside is not None:
                            start_again(beside, REPLACEMENT, self._beside)
                        yield
                        beside.cancel_scope.cancel(reason="every transport is done")
                    finally:
                        # A task that replaces a server at this moment ends here: what it enters would never be left.
                        self._inside = None
                        self._entering.cancel(reason="the server ends")
            finally:
                for turn in self._turns():
                    for block in turn.extensions.values():
                        block.left.set()

    def _turns(self) -> list[_Turn]:
        return [*self._former, *([] if self._turn is None else [self._turn])]


def _leave(turn: _Turn) -> None:
    for block in turn.extensions.values():
        block.left.set()
    turn.lifespan.left.set()
