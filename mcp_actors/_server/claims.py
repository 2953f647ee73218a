"""Claims: what is done once over all nodes has an entry in the shared state, which is claimed before it begins.

The entry says who has claimed it, and later what came of it. One that finds the claim of another

- takes the outcome, if it is there;
- waits for it, while the node that claimed it says that it runs;
- raises `OutcomeUnknown` otherwise. Nothing is begun that may have been done.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from mcp_actors.abc import OpenState
from mcp_actors.errors import OutcomeUnknown

__all__ = ["Claim", "ClaimEntry", "Claims", "entry_with_outcome", "load", "lose_all", "replace"]

# Seconds between two looks at what another one has claimed, at first and at last.
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 1.0

Claim = tuple[str, str]
"""The address of a node, and the name of what runs there."""


class ClaimEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of the shared state. Without an outcome it is claimed, and lost once its claim is nobody's."""

    claim: Claim
    outcome: Any = None
    """A JSON value."""
    digest: str = ""
    """What tells the request that began it from others."""


_read = msgspec.json.Decoder(ClaimEntry).decode

# What runs in this process by the names of the claims: for all its servers, and for one that was reloaded in between.
# Weakly: what was given up in any way, with the task or thread that had it, runs no longer.
_running: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)


def lose_all() -> None:
    """Lets all that runs in this process count as lost."""
    _running.clear()


class Claims:
    """Makes the claims of one `serve`, by which others know whether an outcome may still come."""

    def __init__(self) -> None:
        self._address = ""

    def __repr__(self) -> str:
        return f"<Claims {self._address}>"

    def begin(self, shared: OpenState, work: object) -> Claim:
        """Returns a new claim, which counts until `end`, or for as long as there is ``work``."""
        if not self._address:
            # Messages to it say nothing but that somebody asks whether this node is there. It ends with the node.
            self._address, _ = shared.bus.open_mailbox(lambda message: None)
        name = secrets.token_urlsafe(12)
        _running[name] = work
        return self._address, name

    def end(self, claim: Claim) -> None:
        """Its work runs no longer. Idempotent, and allowed in any thread."""
        _running.pop(claim[1], None)

    async def is_running(self, shared: OpenState, claim: Claim) -> bool:
        """Whether the outcome of a claim may still come; raises `SharedStateUnavailable`."""
        address, name = claim
        return name in _running or (address != self._address and await shared.bus.send(address, b""))


async def load(shared: OpenState, key: str) -> ClaimEntry | None:
    """Returns the entry of a key; raises `SharedStateUnavailable`."""
    data = await shared.values.load(key)
    return None if data is None else _read(data)


async def replace(
    shared: OpenState, key: str, before: ClaimEntry | None, after: ClaimEntry | None, seconds: float
) -> bool:
    """Puts an entry in the place of another one, in one atomic step, and returns whether nobody was faster.

    Args:
        shared: The shared state.
        key: The key.
        before: The entry that has to be there, ``None`` for none.
        after: The next one; ``None`` for none.
        seconds: How long it is kept.

    Raises:
        SharedStateUnavailable: The state cannot be reached, and it may have been replaced; or it has no room.
    """
    encoded = [None if each is None else msgspec.json.encode(each) for each in (before, after)]
    return await shared.values.replace(key, encoded[0], encoded[1], seconds)


async def entry_with_outcome(
    shared: OpenState,
    claims: Claims,
    key: str,
    what: str,
    check: Callable[[ClaimEntry], None] = lambda entry: None,
) -> ClaimEntry | None:
    """Returns an entry that somebody else has claimed, once it has an outcome; ``None`` if it is not there any more.

    It was given back then, or is kept no longer. Cancelled, this has changed nothing.

    Args:
        shared: The shared state.
        claims: Those of this `serve`.
        key: The key.
        what: What was begun, for the error.
        check: Is called with each entry that is found, and may raise.

    Raises:
        OutcomeUnknown: The node that claimed it does not run it any more, and has left no outcome.
        SharedStateUnavailable: The state cannot be reached.
    """
    pause, seen = _FIRST_PAUSE, None
    while True:
        entry = await load(shared, key)
        if entry is None:
            return None
        if entry == seen:
            raise OutcomeUnknown(what)
        check(entry)
        if entry.outcome is not None:
            return entry
        if await claims.is_running(shared, entry.claim):
            await trio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)
        else:
            # Its outcome may have come after it was read: then it is another entry now.
            seen = entry
