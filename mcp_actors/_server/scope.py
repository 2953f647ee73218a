"""The values that all calls of one `serve` share: the server, its lifespan's state, and the key for answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import trio
from typing_extensions import TypeVar

from mcp_actors._actors.inbound_call import CallOwner, InboundCall, SupportsKept
from mcp_actors._actors.limits import Limits
from mcp_actors._eras.era import KEY, Invocation
from mcp_actors._eras.modern import StateSealer
from mcp_actors._server.claims import Claims
from mcp_actors._server.invoke import WorkerThreads
from mcp_actors._server.once import CallEffects
from mcp_actors._server.peer_session import PeerSession, UrlElicitations
from mcp_actors.abc import OpenState
from mcp_actors.bridges.bridged_call import Bridge

__all__ = ["VARIABLE", "OpenedBlock", "ServerScope", "StateT", "derived_key", "state_key_of_environment"]


# The class of what a server's lifespan yields. Without one, `Server` and `Context` are written without brackets.
StateT = TypeVar("StateT", default=Any)


class ServerScope(msgspec.Struct, eq=False, weakref=True):
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
    threads: WorkerThreads
    """The threads of the server's functions."""
    detached: set[object] = msgspec.field(default_factory=set)
    """The calls that were answered, and whose functions run on."""
    mounted: dict[Any, ServerScope] = msgspec.field(default_factory=dict)
    """The scopes of what is mounted in the server, by the `mcp_actors._server.mounts.Mount`."""
    shared: OpenState | None = None
    """The shared state that the `serve` has opened."""
    kept: Any = None
    """The `mcp_actors._server.dependencies.ServeValues` of the server."""
    claims: Claims = msgspec.field(default_factory=Claims)
    """What calls do once at present."""

    # The scope of a detached call is a copy, and belongs to the same `serve`.
    def __hash__(self) -> int:
        return id(self.detached)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerScope) and other.detached is self.detached

    def recorded_answers(self, invocation: Invocation) -> dict[str, Any]:
        """The answers of all rounds so far: those sealed in the state and those that came with this retry.

        Raises `RpcError` -32602 for a state that is forged, too old or another call's.
        """
        return {**self.sealed_answers(invocation), **(invocation.answers or {})}

    def sealed_answers(self, invocation: Invocation) -> dict[str, Any]:
        """The answers that `seal_answers` has packed for this retry, without those of the client; raises as above."""
        if invocation.state is None:
            return {}
        answers: dict[str, Any] = self._opened(invocation)["answers"]
        return answers

    def seal_answers(
        self,
        invocation: Invocation,
        answers: dict[str, Any],
        effects: CallEffects | None = None,
        approval: Any = None,
    ) -> str:
        """Packs the answers that were used, so that the next round need not ask for them again, and what was done.

        Raises `OnceConflict` as `CallEffects.sealed`.
        """
        state, until = {"answers": answers}, math.inf
        if approval is not None:
            state["approval"] = approval
        if effects is not None:
            state |= effects.sealed()
            until = effects.until
        return self.sealer.seal(state, now=time.time(), until=until, **self._binding(invocation))

    def sealed_approval(self, invocation: Invocation) -> Any:
        """The approval that `seal_answers` has packed for this retry, ``None`` without one; raises as above."""
        return None if invocation.state is None else self._opened(invocation).get("approval")

    def effects_of(self, call: InboundCall) -> CallEffects:
        """Returns what a call does once. Raises `RpcError` -32602 as `recorded_answers`."""
        if call.effects is None:
            invocation = call.invocation
            voice = call.client_link
            if voice is not None:
                kept = voice.kept if isinstance(voice, SupportsKept) else None
                call.effects = (
                    CallEffects(None, 0.0, False) if kept is None else CallEffects(*kept, is_claimed=True)
                )
            elif not invocation.era.asks_by_retry or not invocation.method.may_ask:
                call.effects = CallEffects(None, 0.0, False)
            elif invocation.state is None:
                call.effects = CallEffects.of_new_call()
            else:
                call.effects = CallEffects.of_retry(self._opened(invocation))
        effects: CallEffects = call.effects
        return effects

    def _opened(self, invocation: Invocation) -> dict[str, Any]:
        if invocation.opened is None:
            assert invocation.state is not None
            now = time.time()
            invocation.opened = self.sealer.open(invocation.state, now=now, **self._binding(invocation))
        return invocation.opened

    def _binding(self, invocation: Invocation) -> dict[str, Any]:
        """A state is good for the same request by the same principal, with the same key, only."""
        key = invocation.meta.get(KEY)
        return {
            "method": invocation.method.name,
            "target": invocation.params if key is None else [invocation.params, key],
            "principal": invocation.principal,
        }


class OpenedBlock:
    """A context manager that a task of its own enters, holds open until `left`, and leaves."""

    def __init__(self) -> None:
        self.left = trio.Event()
        self.ended = trio.Event()

    async def hold(
        self,
        open_block: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        task_status: trio.TaskStatus[Any],
    ) -> None:
        """Is the task: it reports the value of the block when it was entered."""
        try:
            async with open_block() as value:
                task_status.started(value)
                await self.left.wait()
        finally:
            self.ended.set()


# -- The key that all processes of one server have in common ---

VARIABLE = "MCP_ACTORS_STATE_KEY"
"""The environment variable that has the key where a program gives none, in hexadecimal digits or in base64."""

_KEY_BYTES = 32
_SHORTEST = 16
_HEXADECIMAL = r"(?:[0-9A-Fa-f]{2})+"


def state_key_of_environment() -> bytes:
    """Returns the key of `VARIABLE`, or a random one if it is not set.

    Raises:
        ValueError: It is neither hexadecimal nor base64, or too short. The text does not show it.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return secrets.token_bytes(_KEY_BYTES)
    try:
        if re.fullmatch(_HEXADECIMAL, text):
            key = bytes.fromhex(text)
        else:
            standard = text.replace("-", "+").replace("_", "/").rstrip("=")
            key = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except ValueError:
        raise ValueError(
            f"{VARIABLE} is neither hexadecimal digits nor base64: make one with `openssl rand -hex {_KEY_BYTES}`"
        ) from None
    if len(key) < _SHORTEST:
        raise ValueError(
            f"{VARIABLE} has {len(key)} bytes, and at least {_SHORTEST} are needed: make one with "
            f"`openssl rand -hex {_KEY_BYTES}`"
        )
    return key


def derived_key(key: bytes, purpose: str) -> bytes:
    """Returns a key for one purpose, from which neither ``key`` nor the key for another purpose is known."""
    return hmac.digest(key, f"mcp-actors {purpose}".encode(), hashlib.sha256)
