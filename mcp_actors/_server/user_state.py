"""``ctx.user_state``: what is kept for the caller of a call, over stateless calls and over processes.

Everything of one user is one value in the `mcp_actors.abc.ValueStore` of the server, which is replaced as a whole where
no other call was faster. Whose it is follows from what the transport has authenticated, and from nothing that a client
says. In a server without authentication it belongs to the session, and is in its memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
import trio

from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.scope import ServerScope
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import LocalProtocolError, SharedStateUnavailable
from mcp_actors.supervision.principal import Principal

__all__ = ["SyncUserState", "UserState", "user_place"]

TTL = 30 * 86400.0
"""Seconds for which a value is kept after it was set: a month, so that state ends with users who do not come back."""
MOST_KEYS = 256
MOST_BYTES = 64 * 1024
LONGEST_KEY = 200
# Calls of one user that change a value at the same moment: the last of 50 has waited for all others.
_ATTEMPTS = 100
_LONGEST_PAUSE = 0.05

_Entries = dict[str, tuple[msgspec.Raw, float]]
_decode = msgspec.json.Decoder(_Entries).decode


class _Place(Protocol):
    async def load(self) -> bytes | None: ...

    async def replace(self, before: bytes | None, after: bytes | None, seconds: float) -> bool: ...


class _InShared(msgspec.Struct, frozen=True):
    """The place of a user in the shared state of the server."""

    shared: Any
    user: str

    async def load(self) -> bytes | None:
        found: bytes | None = await self.shared.values.load(self.user)
        return found

    async def replace(self, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        done: bool = await self.shared.values.replace(self.user, before, after, seconds)
        return done


class _InSession:
    """The places of one session, by the name of the server, for callers that nothing is known of."""

    def __init__(self) -> None:
        self.by_server: dict[str, _InMemory] = {}


class _InMemory:
    def __init__(self) -> None:
        self._value: bytes | None = None

    async def load(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return self._value

    async def replace(self, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        await trio.lowlevel.checkpoint()
        if self._value != before:
            return False
        self._value = after
        return True


def user_place(scope: ServerScope, principal: Principal | None, session: PeerSession | None) -> _Place:
    """Returns the place of the caller of a call.

    Raises:
        LocalProtocolError: Nothing is known of the caller, and there is no session.
    """
    server = scope.server.name
    if principal is not None:
        # A server that is mounted in another one has its own values.
        return _InShared(scope.shared, encode_value([server, principal.key]).decode())
    if session is None:
        raise LocalProtocolError(
            "ctx.user_state belongs to a caller, and nothing is known of this one: the transport authenticates no"
            " callers, and there is no session; demand tokens or keys, or take an id as an argument"
        )
    return session.get(_InSession).by_server.setdefault(server, _InMemory())


class UserState:
    """Values that are kept for one caller, by keys: ``ctx.user_state``.

    They are JSON values, of 64 KiB and 256 keys together, and each is kept for 30 days after it was set, or for its
    ``ttl``. No other caller ever sees them. Each method raises `SharedStateUnavailable` when the shared state cannot be
    reached or is full; cancelled, a change is made or not made.
    """

    def __init__(self, place: _Place) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    async def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or ``default`` without one.

        Args:
            key: A text of up to 200 characters.
            default: Is returned where nothing is kept.
        """
        _check_key(key)
        found = _entries(await self._place.load()).get(key)
        return default if found is None else msgspec.json.decode(found[0])

    async def set(self, key: str, value: Any, *, ttl: float | None = None) -> None:
        """Keeps a value.

        Args:
            key: A text of up to 200 characters.
            value: A JSON value.
            ttl: Seconds for which it is kept; by default 30 days.

        Raises:
            LocalProtocolError: There are too many keys or bytes.
            TypeError, ValueError: JSON cannot hold the value, or ``ttl`` is not positive.
        """
        await self._change(key, lambda _: value, None, ttl)

    async def delete(self, key: str) -> bool:
        """Drops a value, and returns whether there was one.

        Args:
            key: The key.
        """
        _check_key(key)
        for pause in _pauses():
            before = await self._place.load()
            entries = _entries(before)
            if entries.pop(key, None) is None:
                return False
            if await self._replaced(before, entries):
                return True
            await pause()
        raise _too_many_changes()

    async def update(
        self, key: str, function: Callable[[Any], Any], default: Any = None, *, ttl: float | None = None
    ) -> Any:
        """Puts what a function makes of a value in its place, and returns that. No change of another call is lost.

        Args:
            key: A text of up to 200 characters.
            function: Takes the value, and returns the next one. It must not wait, and is called again when another
                call was faster.
            default: Is given to the function where nothing is kept.
            ttl: As for `set`.

        Raises:
            LocalProtocolError: There are too many keys or bytes.
            TypeError, ValueError: JSON cannot hold the value, or ``ttl`` is not positive.
            Exception: What ``function`` raises; then nothing is changed.
        """
        return await self._change(key, function, default, ttl)

    async def _change(self, key: str, function: Callable[[Any], Any], default: Any, ttl: float | None) -> Any:
        _check_key(key)
        seconds = TTL if ttl is None else ttl
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise ValueError(f"ttl={ttl!r}: write a number of seconds greater than 0, or leave it out")
        for pause in _pauses():
            before = await self._place.load()
            entries = _entries(before)
            found = entries.get(key)
            value = function(default if found is None else msgspec.json.decode(found[0]))
            entries[key] = (msgspec.Raw(encode_value(value)), time.time() + seconds)
            if await self._replaced(before, entries):
                return value
            await pause()
        raise _too_many_changes()

    async def _replaced(self, before: bytes | None, entries: _Entries) -> bool:
        if not entries:
            return await self._place.replace(before, None, 0)
        after = msgspec.json.encode(entries)
        if len(entries) > MOST_KEYS or len(after) > MOST_BYTES:
            raise LocalProtocolError(
                f"ctx.user_state would have {len(entries)} keys and {len(after)} bytes, and the limits are "
                f"{MOST_KEYS} and {MOST_BYTES}: keep what is large elsewhere, and its id here"
            )
        seconds = max(until for _, until in entries.values()) - time.time()
        return await self._place.replace(before, after, max(seconds, 0.001))


class SyncUserState(UserState):
    """The `UserState` of a plain function: its methods wait in its worker thread."""

    def __init__(self, place: _Place, wait: Callable[..., Any]) -> None:
        super().__init__(place)
        self._wait = wait

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key; see `UserState.get`."""
        return self._wait(super().get, key, default)

    def set(self, key: str, value: Any, *, ttl: float | None = None) -> None:  # type: ignore[override]
        """Keeps a value; see `UserState.set`."""
        return self._wait(super().set, key, value, ttl=ttl)  # type: ignore[no-any-return]

    def delete(self, key: str) -> bool:  # type: ignore[override]
        """Drops a value; see `UserState.delete`."""
        return self._wait(super().delete, key)  # type: ignore[no-any-return]

    def update(
        self, key: str, function: Callable[[Any], Any], default: Any = None, *, ttl: float | None = None
    ) -> Any:
        """Puts what a function makes of a value in its place; see `UserState.update`."""
        return self._wait(super().update, key, function, default, ttl=ttl)


def _check_key(key: object) -> None:
    if not isinstance(key, str) or len(key) > LONGEST_KEY:
        raise LocalProtocolError(f"a key of ctx.user_state is a text of up to {LONGEST_KEY} characters")


def _entries(value: bytes | None) -> _Entries:
    """Returns what a value has that is not over. What another program has written there counts as nothing."""
    if value is None:
        return {}
    try:
        entries = _decode(value)
    except msgspec.MsgspecError:
        return {}
    now = time.time()
    return {key: entry for key, entry in entries.items() if entry[1] > now}


def _pauses() -> list[Callable[[], Awaitable[None]]]:
    async def pause() -> None:
        await trio.sleep(random.uniform(0, _LONGEST_PAUSE))

    return [pause] * _ATTEMPTS


def _too_many_changes() -> SharedStateUnavailable:
    return SharedStateUnavailable("values", "other calls of the same user change it all the time")
