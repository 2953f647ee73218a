"""The values that all calls of one `serve` share: the server, its lifespan's state, and the key for answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import trio
from typing_extensions import TypeVar

from mcp_actors._actors.inbound_call import CallOwner
from mcp_actors._actors.limits import Limits
from mcp_actors._eras.era import Invocation
from mcp_actors._eras.modern.request_state import StateSealer
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.url_elicitations import UrlElicitations
from mcp_actors.bridges.bridged_call import Bridge

__all__ = ["ServerScope", "StateT"]

# The class of what a server's lifespan yields. Programs that name none keep `Server` and `Context` as they are.
StateT = TypeVar("StateT", default=Any)


@attrs.define(eq=False)
class ServerScope:
    """The values that all calls of one `serve` share."""

    server: Any
    state: Any
    sealer: StateSealer
    limits: Limits
    session_of: Callable[[CallOwner], PeerSession | None]
    elicitations: UrlElicitations
    mask_errors: bool | None
    """See `Server`."""
    token: trio.lowlevel.TrioToken
    """The event loop."""
    bridge: Bridge | None
    """The program's loop or thread that called `serve`, if that is not the one that runs the engine."""
    detached: set[object] = attrs.field(factory=set)
    """The calls that were answered, and whose functions run on."""

    def recorded_answers(self, invocation: Invocation) -> dict[str, Any]:
        """The answers of all rounds so far: those sealed in the state and those that came with this retry.

        Raises `RpcError` -32602 for a state that is forged, too old or another call's.
        """
        return {**self.sealed_answers(invocation), **(invocation.answers or {})}

    def sealed_answers(self, invocation: Invocation) -> dict[str, Any]:
        """What `seal_answers` has packed for this retry, and none of what the client has added; raises as above."""
        if invocation.state is None:
            return {}
        opened = self.sealer.open(invocation.state, now=time.time(), **self._binding(invocation))
        answers: dict[str, Any] = opened["answers"]
        return answers

    def seal_answers(self, invocation: Invocation, answers: dict[str, Any]) -> str:
        """Packs the answers that were used, so that the next round need not ask for them again."""
        return self.sealer.seal({"answers": answers}, now=time.time(), **self._binding(invocation))

    def _binding(self, invocation: Invocation) -> dict[str, Any]:
        """A state is good for the same request by the same principal only."""
        return {
            "method": invocation.method.name,
            "target": invocation.params,
            "principal": invocation.principal,
        }
