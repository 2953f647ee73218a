"""Pages of a list and the cursors between them (MCP 2026-07-28, Pagination).

A cursor is opaque to the client and carries all that the server needs, so it survives without any memory of a
session and means the same in another process that serves the same list. It names the last entry that was shown: the
next page begins after that entry, wherever it stands by then. When that entry is gone, the page begins at the first
one that was registered after it. So no entry of a registry is skipped or shown twice, whatever comes and goes.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from mcp_actors.errors import invalid_params

__all__ = ["DEFAULT_PAGE_SIZE", "Listed", "page"]

# Enough for nearly every server to answer in one page, and some 50 KiB of tools at most.
DEFAULT_PAGE_SIZE = 100


class Listed(Protocol):
    """An entry of a list. ``serial`` grows along the list and ``key`` is unique in it."""

    @property
    def serial(self) -> int: ...
    @property
    def key(self) -> str: ...


L = TypeVar("L", bound=Listed)

_encode_place = msgspec.json.Encoder().encode
_decode_place = msgspec.json.Decoder(tuple[str, int, str]).decode


def page(
    entries: Sequence[L], params: Mapping[str, Any], *, kind: str, size: int = DEFAULT_PAGE_SIZE
) -> tuple[Sequence[L], str | None]:
    """The page that ``params["cursor"]`` asks for, and the cursor of the next one (``None`` on the last).

    ``kind`` keeps the cursors of different lists apart. Raises `RpcError` (-32602) for a cursor that is none of
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
