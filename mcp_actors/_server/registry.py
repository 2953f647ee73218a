"""The ordered set of entries that every capability keeps: added and removed by key, listed in order of arrival."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Required, TypedDict, TypeVar

import msgspec

from mcp_actors._server.context import Context, has_scopes, note_listing
from mcp_actors._server.invoke import ForSync, WorkerThreads
from mcp_actors.errors import LocalProtocolError, invalid_params
from mcp_actors.types import CacheScope

__all__ = [
    "DEFAULT_PAGE_SIZE",
    "NO_SCOPES",
    "Follower",
    "Listed",
    "ListedElsewhere",
    "Registered",
    "Registry",
    "RegistryOptions",
    "page",
]


# Enough for nearly every server to answer in one page, and some 50 KiB of tools at most.
DEFAULT_PAGE_SIZE = 100
NO_SCOPES: frozenset[str] = frozenset()


class Listed(Protocol):
    """An entry of a list. ``serial`` grows along the list and ``key`` is unique in it."""

    @property
    def serial(self) -> int: ...
    @property
    def key(self) -> str: ...


class Registered(Listed, Protocol):
    """An entry of a registry. ``scopes`` are those that a caller needs."""

    @property
    def scopes(self) -> frozenset[str]: ...


class Follower(Protocol):
    """Shows the entries of a registry in another one, and follows its changes; see `mcp_actors._server.mounts`."""

    def check(self, key: str) -> None:
        """Raises `LocalProtocolError` if an entry with this key cannot be shown there."""

    def inserted(self, entry: Any) -> None: ...

    def replaced(self, entry: Any) -> None:
        """An entry has the place of the former one with its key; clients see no difference."""

    def removed(self, key: str) -> None: ...


class ListedElsewhere(NamedTuple):
    """Tells what servers behind this one have listed."""

    has: Callable[[str], bool]
    """Says whether one of them has listed a name."""
    names: Callable[[], Iterable[str]]
    """Returns the names that they have listed."""


E = TypeVar("E", bound=Registered)
R = TypeVar("R", bound=Registered)


class RegistryOptions(TypedDict, total=False):
    """The arguments of every registry."""

    injected: Required[type]
    """The class whose annotation marks the parameter that is handed the call's context."""
    for_sync: Required[ForSync]
    """Makes the context of a sync function of that of its call."""
    threads: Required[WorkerThreads]
    """Bounds the worker threads."""
    on_change: Callable[[], None] | None
    """Is called after each change, when the new state can already be seen."""
    page_size: int
    """Entries on one page of the list."""
    lists_all: bool
    """Whether entries are listed to callers who lack the scopes for them."""


class Registry(Generic[E]):
    """The entries of one kind of feature, by key. See `RegistryOptions` for the arguments."""

    what: ClassVar[str]
    """Names an entry in error messages (``"tool"``)."""

    listed_elsewhere: ListedElsewhere | None = None
    """In a server in front of others, what those have listed; ``None`` in all others."""

    def __init__(
        self,
        *,
        injected: type,
        for_sync: ForSync,
        threads: WorkerThreads,
        on_change: Callable[[], None] | None = None,
        page_size: int = DEFAULT_PAGE_SIZE,
        lists_all: bool = False,
    ) -> None:
        self.on_change = on_change
        self._injected = injected
        self._for_sync = for_sync
        self._threads = threads
        self._page_size = page_size
        self._lists_all = lists_all
        self.version = 0
        self.scoped = False
        """Whether any entry ever needed a scope."""
        self.by_key: dict[str, E] = {}
        self.followers: tuple[Follower, ...] = ()
        """Other registries that show these entries, too."""
        self._next_serial = 1
        self._listing: tuple[int, tuple[E, ...]] = (0, ())

    def is_listed_elsewhere(self, name: str) -> bool:
        """Whether a name is one of a bounded number that a server behind this one has listed."""
        return self.listed_elsewhere is not None and self.listed_elsewhere.has(name)

    def counted_names(self, most: int) -> tuple[str, ...]:
        """Returns the first ``most`` names by which telemetry tells calls apart."""
        elsewhere = () if self.listed_elsewhere is None else self.listed_elsewhere.names()
        return tuple(islice(chain(self.by_key, elsewhere), most))

    def next_serial(self) -> int:
        """A number that no other entry has, greater than all before: the place of the next entry in the list."""
        serial = self._next_serial
        self._next_serial += 1
        return serial

    def insert(self, entry: E) -> None:
        """Raises `LocalProtocolError` when the key is taken: two entries under one key are always a mistake."""
        self.check(entry.key)
        self.by_key[entry.key] = entry
        self.scoped = self.scoped or bool(entry.scopes)
        for each in self.followers:
            each.inserted(entry)
        self._changed()

    def check(self, key: str) -> None:
        """Raises `LocalProtocolError` when a key is taken, here or where these entries are shown, too."""
        if key in self.by_key:
            raise LocalProtocolError(f"there is already a {self.what} {key!r}; remove it first")
        for each in self.followers:
            each.check(key)

    def replace(self, entry: E) -> None:
        """Puts an entry in the place of the one with its key. Clients see no difference, and are told nothing."""
        self.by_key[entry.key] = entry
        self.version += 1
        for each in self.followers:
            each.replaced(entry)

    def remove(self, key: str) -> None:
        """Raises `LocalProtocolError` when there is no such entry. Calls in flight go on to their end."""
        if self.by_key.pop(key, None) is None:
            raise LocalProtocolError(f"there is no {self.what} {key!r}")
        for each in self.followers:
            each.removed(key)
        self._changed()

    def scopes_of(self, key: object) -> frozenset[str]:
        """The scopes that a caller of the entry ``key`` needs; the empty set for an unknown key."""
        entry = self.by_key.get(key) if isinstance(key, str) else None
        return NO_SCOPES if entry is None else entry.scopes

    def listing(self) -> tuple[E, ...]:
        """All entries in the order in which they were added; the same object until something changes."""
        version, listing = self._listing
        if version != self.version:
            # The version is read first: a listing that a worker thread makes during a change is not taken for the new.
            version, listing = self.version, tuple(self.by_key.values())
            self._listing = (version, listing)
        return listing

    def seen_by(self, ctx: Context, entries: Sequence[R]) -> Sequence[R]:
        """Those of ``entries`` that a caller has the scopes for."""
        if self.is_same_for_all:
            return entries
        note_listing(ctx)
        return tuple(each for each in entries if has_scopes(ctx.call, each.scopes))

    def names_seen_by(self, ctx: Context) -> Iterator[str]:
        """The keys of the entries that a caller is listed, without taking note of a listing."""
        entries = self.listing()
        return (each.key for each in entries if self.is_same_for_all or has_scopes(ctx.call, each.scopes))

    @property
    def is_same_for_all(self) -> bool:
        """Whether all callers are listed the same."""
        return not self.scoped or self._lists_all

    @property
    def list_cache_scope(self) -> CacheScope | None:
        """The promise of a list for caches that several users share; ``None`` for that of the server."""
        return None if self.is_same_for_all else "private"

    def _changed(self) -> None:
        self.version += 1
        if self.on_change is not None:
            self.on_change()

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[E]:
        return iter(self.listing())

    def __contains__(self, key: object) -> bool:
        return key in self.by_key

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.by_key)} {self.what}s, version {self.version}>"


# -- Pages of a list and the cursors between them (MCP 2026-07-28, Pagination) ---
#
# A cursor is opaque to the client and carries all that the server needs, so it survives without any memory of a
# session and means the same in another process that serves the same list. It names the last entry that was shown: the
# next page begins after that entry, wherever it is by then. When that entry is gone, the page begins at the first
# one that was registered after it. So no entry of a registry is skipped or shown twice, whatever comes and goes.

L = TypeVar("L", bound=Listed)

_encode_place = msgspec.json.Encoder().encode
_decode_place = msgspec.json.Decoder(tuple[str, int, str]).decode


def page(
    entries: Sequence[L], params: Mapping[str, Any], *, kind: str, size: int = DEFAULT_PAGE_SIZE
) -> tuple[Sequence[L], str | None]:
    """The page that ``params["cursor"]`` asks for, and the cursor of the next one (``None`` on the last).

    ``kind`` keeps the cursors of different lists apart. Raises `RpcError` (-32602) for a cursor that is not
    ours; an empty string is a cursor too (presence counts, not truth).
    """
    cursor = params.get("cursor")
    start = 0 if cursor is None else _start_after(entries, cursor, kind)
    shown = entries[start : start + size]
    if start + size >= len(entries):
        return shown, None
    last = shown[-1]
    return shown, _cursor(kind, last.serial, last.key)


def _cursor(kind: str, serial: int, key: str) -> str:
    return base64.urlsafe_b64encode(_encode_place((kind, serial, key))).decode("ascii").rstrip("=")


def _start_after(entries: Sequence[Listed], cursor: Any, kind: str) -> int:
    serial, key = _place(cursor, kind)
    start = bisect_left(entries, serial, key=lambda entry: entry.serial)
    if start < len(entries) and entries[start].key == key:
        return start + 1
    # Another process may have registered the same entries in another order: the key counts more than the number.
    for index, entry in enumerate(entries):
        if entry.key == key:
            return index + 1
    return start


def _place(cursor: Any, kind: str) -> tuple[int, str]:
    if not isinstance(cursor, str):
        raise invalid_params("'cursor' must be a string")
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found_kind, serial, key = _decode_place(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, msgspec.DecodeError, RecursionError):
        raise invalid_params("invalid cursor") from None
    if found_kind != kind or serial < 0:
        raise invalid_params("invalid cursor")
    return serial, key
