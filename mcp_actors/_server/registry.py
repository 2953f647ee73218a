"""The ordered set of entries that every capability keeps: added and removed by key, listed in order of arrival."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Required, TypedDict, TypeVar

import attrs
import msgspec

from mcp_actors._server.components import (
    KINDS_OF_NAMED_LISTS,
    VERSION,
    VERSIONS,
    ComponentKind,
    version_order,
)
from mcp_actors._server.context import Context, check_scopes, note_listing, scopes_suffice
from mcp_actors._server.invoke import ForSync, WorkerThreads
from mcp_actors._server.visibility import Caller, Exposure, Visibility, caller_of, note_list
from mcp_actors.errors import LocalProtocolError, RpcError, invalid_params
from mcp_actors.types import CacheScope

__all__ = [
    "DEFAULT_PAGE_SIZE",
    "NO_SCOPES",
    "ComponentSource",
    "Follower",
    "Listed",
    "ListedElsewhere",
    "Registered",
    "Registry",
    "RegistryOptions",
    "page",
]


# Enough for nearly every server to answer in one page, and some 50 KiB of tools at most.
# Bytes of the entries of a page, where each may be long.
MOST_BYTES_A_PAGE = 1024 * 1024
DEFAULT_PAGE_SIZE = 100
NO_SCOPES: frozenset[str] = frozenset()
# Names of sources that are remembered, for telemetry and to ask the right one first, and their characters.
MOST_LEARNED, LONGEST_LEARNED = 1_000, 256


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
    @property
    def exposure(self) -> Exposure: ...


class Follower(Protocol):
    """Shows the entries of a registry in another one, and follows its changes; see `mcp_actors._server.mounts`."""

    def check(self, key: str, version: str | None) -> None:
        """Raises `LocalProtocolError` if an entry with this key and version cannot be shown there."""

    def inserted(self, entry: Any) -> None: ...

    def replaced(self, entry: Any) -> None:
        """An entry has the place of the former one with its key; clients see no difference."""

    def removed(self, key: str) -> None: ...


class ComponentSource(Protocol):
    """Has entries that a registry does not keep; see `mcp_actors._server.provider` and `mcp_actors._server.mounts`.

    Its methods raise `UpstreamUnavailable` if it fails or is too slow.
    """

    name: str
    kinds: Collection[ComponentKind]

    @property
    def provider(self) -> Any:
        """The provider that it asks in the end, here or in a mounted server."""

    @property
    def is_late(self) -> bool:
        """Whether it was too slow lately, so that lists do not wait for it."""

    async def page(
        self, caller: Caller, kind: ComponentKind, cursor: str | None, limit: int
    ) -> tuple[Sequence[Any], str | None]:
        """Returns the entries of one page, and the cursor of the next one."""

    async def get(self, caller: Caller, kind: ComponentKind, key: str) -> Any | None:
        """Returns one entry, ``None`` if it has none."""

    def fingerprint(self, caller: Caller, kind: ComponentKind) -> Hashable | None:
        """Returns a value for what a caller is listed, ``None`` if that is not known."""


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
    visibility: Required[Visibility]
    """The rules and switches of the server."""


class _Settings(NamedTuple):
    """The arguments of a registry that stay as they are."""

    injected: type
    for_sync: ForSync
    threads: WorkerThreads
    page_size: int
    lists_all: bool


class Registry(Generic[E]):
    """The entries of one kind of feature, by key. See `RegistryOptions` for the arguments."""

    what: ClassVar[str]
    """Names an entry in error messages (``"tool"``)."""
    shown_as: ClassVar[str]
    """The member of an entry that clients are shown."""

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
        visibility: Visibility,
    ) -> None:
        self.visibility = visibility
        self.is_plain = not visibility.is_active
        """Whether an entry is found by its name alone: nothing is hidden, and nothing has versions."""
        self.on_change = on_change
        self._settings = _Settings(injected, for_sync, threads, page_size, lists_all)
        self.version = 0
        self.scoped = False
        """Whether any entry ever needed a scope."""
        self.by_key: dict[str, E] = {}
        """The entries, of those with several versions the newest."""
        self._versions: dict[str, tuple[E, ...]] = {}
        self.followers: tuple[Follower, ...] = ()
        """Other registries that show these entries, too."""
        self.sources: tuple[ComponentSource, ...] = ()
        """What has entries that are not kept here, in the order in which they are listed and asked."""
        self.learned: dict[str, ComponentSource] = {}
        """The sources of the first `MOST_LEARNED` keys that they had."""
        self._next_serial = 1
        self._listing: tuple[int, tuple[E, ...]] = (0, ())

    @property
    def _injected(self) -> type:
        return self._settings.injected

    @property
    def _for_sync(self) -> ForSync:
        return self._settings.for_sync

    @property
    def _threads(self) -> WorkerThreads:
        return self._settings.threads

    @property
    def page_size(self) -> int:
        return self._settings.page_size

    @property
    def _lists_all(self) -> bool:
        return self._settings.lists_all

    def is_listed_elsewhere(self, name: str) -> bool:
        """Whether a name is one of a bounded number that a server behind this one has listed."""
        return name in self.learned or (self.listed_elsewhere is not None and self.listed_elsewhere.has(name))

    def counted_names(self, most: int) -> tuple[str, ...]:
        """Returns the first ``most`` names by which telemetry tells calls apart."""
        elsewhere = () if self.listed_elsewhere is None else self.listed_elsewhere.names()
        return tuple(islice(chain(self.by_key, self.learned, elsewhere), most))

    def learn(self, key: str, source: ComponentSource) -> None:
        """Takes note that a source has an entry, if there is room."""
        if len(key) <= LONGEST_LEARNED and (key in self.learned or len(self.learned) < MOST_LEARNED):
            self.learned[key] = source

    def remove_source(self, source: ComponentSource) -> None:
        """Removes a source."""
        self.sources = tuple(each for each in self.sources if each is not source)
        self.learned = {key: each for key, each in self.learned.items() if each is not source}

    def next_serial(self) -> int:
        """A number that no other entry has, greater than all before: the place of the next entry in the list."""
        serial = self._next_serial
        self._next_serial += 1
        return serial

    def insert(self, entry: E) -> None:
        """Adds an entry, or another version of one.

        Raises:
            LocalProtocolError: The key is taken: two entries under one key that are not two versions are a mistake.
        """
        version = entry.exposure.component.version
        self.check(entry.key, version)
        former = self.versions(entry.key)
        if former:
            if _owner(former[0]) is not _owner(entry):
                raise LocalProtocolError(f"there is already a {self.what} {entry.key!r}; remove it first")
            # A name has one place in the list, whichever of its versions a caller sees.
            moved: Any = entry
            entry = msgspec.structs.replace(moved, serial=former[0].serial)
            found = sorted((*former, entry), key=_newest_first, reverse=True)
            self._versions[entry.key] = tuple(found)
            self.by_key[entry.key] = found[0]
        else:
            self.by_key[entry.key] = entry
        self.is_plain = self.is_plain and version is None
        self.scoped = self.scoped or bool(entry.scopes)
        if entry.exposure.is_ruled:
            self.visibility.activate(same_for_all=False)
        for each in self.followers:
            each.inserted(entry)
        self._changed()

    def check(self, key: str, version: str | None = None) -> None:
        """Raises `LocalProtocolError` when a key is taken, here or where these entries are shown, too."""
        taken = [each.exposure.component.version for each in self.versions(key)]
        if taken and (version is None or None in taken):
            raise LocalProtocolError(f"there is already a {self.what} {key!r}; remove it first")
        if version in taken:
            raise LocalProtocolError(f"there is already a {self.what} {key!r} of the version {version!r}")
        for each in self.followers:
            each.check(key, version)

    def versions(self, key: str) -> tuple[E, ...]:
        """All versions of an entry, the newest first."""
        found = self._versions.get(key)
        if found is None:
            entry = self.by_key.get(key)
            found = () if entry is None else (entry,)
        return found

    def entries(self) -> Iterator[E]:
        """All entries in the order of the list, each with all of its versions."""
        return chain.from_iterable(map(self.versions, tuple(self.by_key)))

    def replace(self, entry: E) -> None:
        """Puts an entry in the place of the one with its key and version. Clients see no difference."""
        version = entry.exposure.component.version
        found = tuple(
            entry if each.exposure.component.version == version else each for each in self.versions(entry.key)
        )
        if len(found) > 1:
            self._versions[entry.key] = found
        self.by_key[entry.key] = found[0]
        self.version += 1
        for each in self.followers:
            each.replaced(entry)

    def remove(self, key: str) -> None:
        """Removes an entry with all versions; calls in flight go on. Raises `LocalProtocolError` if there is none."""
        if self.by_key.pop(key, None) is None:
            raise LocalProtocolError(f"there is no {self.what} {key!r}")
        self._versions.pop(key, None)
        for each in self.followers:
            each.removed(key)
        self._changed()

    def scopes_of(self, key: object) -> frozenset[str]:
        """The scopes that a caller of the entry ``key`` needs; the empty set for an unknown key.

        What a caller must not know of needs none: where something may be hidden, `find` checks them.
        """
        entry = self.by_key.get(key) if isinstance(key, str) else None
        return NO_SCOPES if entry is None else self.scopes_of_any(entry)

    def scopes_of_any(self, entry: E) -> frozenset[str]:
        """The scopes that a caller needs for an entry in any version; those of one version are checked with it."""
        if self.visibility.is_active:
            return NO_SCOPES
        several = self._versions.get(entry.key)
        return entry.scopes if several is None else frozenset.intersection(*(each.scopes for each in several))

    def listing(self) -> tuple[E, ...]:
        """All entries in the order in which they were added; the same object until something changes."""
        version, listing = self._listing
        if version != self.version:
            # The version is read first: a listing that a worker thread makes during a change is not taken for the new.
            version, listing = self.version, tuple(self.by_key.values())
            self._listing = (version, listing)
        return listing

    def seen_by(self, ctx: Context, entries: Sequence[R], which: str = "") -> Sequence[R]:
        """Those of ``entries`` that a caller is listed, which are the entries of the list ``which``."""
        if self.is_same_for_all and self.is_plain:
            return entries
        caller = caller_of(ctx)
        found = self._listed_to(caller, entries)
        if not self.is_same_for_all:
            note_listing(ctx)
            if which:
                note_list(caller, which, self._digest(caller, found, which))
        if not self._versions:
            return found
        return tuple(self._with_versions(caller, each) for each in found)

    def digest_for(self, caller: Caller, entries: Sequence[Registered], which: str) -> int | None:
        """A number for what a caller is listed of ``entries``; ``None`` if any change counts for everybody.

        ``which`` is the list of these entries, to which sources may add others.
        """
        if self.is_same_for_all or self.listed_elsewhere is not None:
            return None
        return self._digest(caller, self._listed_to(caller, entries), which)

    def _digest(self, caller: Caller, entries: Iterable[Registered], which: str) -> int | None:
        kind = KINDS_OF_NAMED_LISTS[which]
        added = [each.fingerprint(caller, kind) for each in self.sources if kind in each.kinds]
        if None in added:
            return None
        # The registry counts, too: after a reload another one has entries of the same numbers.
        own = ((each.serial, each.exposure.component.version) for each in entries)
        return hash((id(self), *own, *added))

    def _listed_to(self, caller: Caller, entries: Sequence[R]) -> tuple[R, ...]:
        if not self._versions:
            return tuple(each for each in entries if self.lists(caller, each))
        # Other versions are of the same class.
        several: Mapping[str, tuple[Any, ...]] = self._versions
        versions = (several.get(each.key, (each,)) for each in entries)
        newest = (next((each for each in some if self.lists(caller, each)), None) for some in versions)
        return tuple(each for each in newest if each is not None)

    def lists(self, caller: Caller, entry: Registered) -> bool:
        """Whether a caller is listed an entry."""
        if not self.visibility.sees(caller, entry.exposure):
            return False
        return self._lists_all or (
            scopes_suffice(caller.principal, caller.request, entry.scopes)
            and self.visibility.allows(caller, entry.exposure)
        )

    def _with_versions(self, caller: Caller, entry: R) -> R:
        """The entry with the versions that a caller can ask for, if there are several."""
        several = [each for each in self.versions(entry.key) if self.lists(caller, each)]
        if len(several) < 2:
            return entry
        shown = getattr(entry, self.shown_as)
        known = {**(shown.meta or {}), VERSIONS: [each.exposure.component.version for each in several]}
        shown = attrs.evolve(shown, meta=known)
        changed: R = msgspec.structs.replace(entry, **{self.shown_as: shown})  # type: ignore[type-var]
        return changed

    def find(self, ctx: Context, key: str) -> E | None:
        """The entry that a caller asks for: the newest version that it sees, or the one that its ``_meta`` names.

        ``None`` without one, and for one that the caller must not know of.

        Raises:
            InsufficientScope: The caller lacks a scope of what it sees.
            NotAllowed: ``auth=`` refuses what it sees.
        """
        if self.is_plain:
            return self.by_key.get(key)
        return self.chosen(ctx, self.versions(key))

    def chosen(self, ctx: Context, versions: Sequence[E]) -> E | None:
        """The first one of some versions that a caller may use and asks for; see `find`."""
        caller, refusal = caller_of(ctx), None
        wanted = ctx.params.get(VERSION, ctx.meta.get(VERSION))
        for each in versions:
            if wanted is not None and each.exposure.component.version not in (None, wanted):
                continue
            if not self.visibility.sees(caller, each.exposure):
                continue
            try:
                check_scopes(ctx.call, ctx._scope, each.scopes)
                self.visibility.check(caller, each.exposure)
            except RpcError as error:
                refusal = refusal or error
            else:
                return each
        try:
            if refusal is not None:
                raise refusal
        finally:
            # Its traceback has this frame, which the collector would have to free.
            del refusal
        return None

    def names_seen_by(self, ctx: Context) -> Iterator[str]:
        """The keys of the entries that a caller is listed, without taking note of a listing."""
        entries = self.listing()
        if not self.is_same_for_all or not self.is_plain:
            entries = self._listed_to(caller_of(ctx), entries)
        return (each.key for each in entries)

    @property
    def is_same_for_all(self) -> bool:
        """Whether all callers are listed the same."""
        return (not self.scoped or self._lists_all) and self.visibility.is_same_for_all and not self.sources

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


def _owner(entry: Registered) -> object:
    """Tells the entries of mounted servers from each other and from own ones: they are never versions of one."""
    viewed = entry.exposure.viewed
    return None if viewed is None else viewed.visibility


def _newest_first(entry: Registered) -> tuple[tuple[int, int, str], ...]:
    return version_order(entry.exposure.component.version or "")


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
    entries: Sequence[L],
    params: Mapping[str, Any],
    *,
    kind: str,
    size: int = DEFAULT_PAGE_SIZE,
    weigh: Callable[[L], int] | None = None,
) -> tuple[Sequence[L], str | None]:
    """The page that ``params["cursor"]`` asks for, and the cursor of the next one (``None`` on the last).

    With ``weigh``, which returns the bytes of an entry, a page ends where it would have more than `MOST_BYTES_A_PAGE`,
    but after the first entry. ``kind`` keeps the cursors of different lists apart. Raises `RpcError` (-32602) for a
    cursor that is not ours; an empty string is a cursor too (presence counts, not truth).
    """
    cursor = params.get("cursor")
    start = 0 if cursor is None else _start_after(entries, cursor, kind)
    shown = entries[start : start + size]
    if weigh is not None:
        weights = accumulate(map(weigh, shown))
        shown = shown[: max(1, sum(each <= MOST_BYTES_A_PAGE for each in weights))]
    if start + len(shown) >= len(entries):
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
