"""Tasks as the bytes that a store outside of the process keeps."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mcp_actors.abc.shared import TaskRecord
from mcp_actors.logging import log

__all__ = ["read_record", "read_records", "stored_record"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TaskRecord).decode


def stored_record(record: TaskRecord) -> bytes:
    """Returns the bytes of a task."""
    return _encode(record)


def read_record(data: object) -> TaskRecord | None:
    """Returns the task that a store has kept; ``None`` for what is none, so that it costs nobody but itself.

    Others can write to a store: programs of another version, or people. What they have written is no task then, and is
    dropped with its time.
    """
    try:
        return _decode(data)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        log.warning("a stored task cannot be read and is passed over", reason=str(error)[:200])
        return None


def read_records(found: Iterable[object]) -> list[TaskRecord]:
    """Returns the tasks that a store has kept, without what is none."""
    return [record for data in found if (record := read_record(data)) is not None]
