"""The store of tokens and registrations: the interface, and one in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, runtime_checkable

import attrs

__all__ = ["MemoryTokenStore", "StoredRecord", "TokenStore"]


@attrs.frozen
class StoredRecord:
    """A record: JSON values, and a number that grows with each change. Its ``repr`` shows no values.

    No two states of a store have records with the same key and number, not even if one was deleted between them.
    """

    value: Mapping[str, Any] = attrs.field(repr=False)
    generation: int


@runtime_checkable
class TokenStore(Protocol):
    """Keeps records by key. The keys name the issuer and the resource, and the values hold secrets.

    Everything may raise `~mcp_actors.errors.TokenStoreFailed`, and then nothing was changed.
    """

    async def load(self, key: str) -> StoredRecord | None:
        """Returns the record of a key, ``None`` if there is none."""

    async def swap(self, key: str, expected: int | None, value: Mapping[str, Any] | None) -> bool:
        """Replaces a record if its generation is ``expected`` (``None``: none yet), and returns whether it was.

        ``value`` is ``None`` to delete it. Cancelled, the record is the old one or the new one, never a part.
        """

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """Holds the key for the length of an ``async with`` block, against all who share the store.

        It is held round the refresh of a token, never round a call or a login. A process that dies frees it. The
        store bounds the wait for it: its caller does not.
        """


class MemoryTokenStore:
    """Keeps records for as long as this process. The default: a login ends with the program. A `TokenStore`."""

    def __init__(self) -> None:
        self._records: dict[str, StoredRecord] = {}
        self._changes = 0

    def __repr__(self) -> str:
        return f"<MemoryTokenStore {len(self._records)} records>"

    async def load(self, key: str) -> StoredRecord | None:
        """Returns the record of a key. Never waits."""
        return self._records.get(key)

    async def swap(self, key: str, expected: int | None, value: Mapping[str, Any] | None) -> bool:
        """Replaces a record if its generation is ``expected``. Never waits."""
        found = self._records.get(key)
        if (None if found is None else found.generation) != expected:
            return False
        if value is None:
            self._records.pop(key, None)
        else:
            self._changes += 1
            self._records[key] = StoredRecord(dict(value), self._changes)
        return True

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Does nothing: within one process a refresh runs once for all who need it."""
        yield
