"""Content blocks from what users return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import trio

from mcp_actors._actors.responses import InvalidResult
from mcp_actors.types import ContentBlock, TextContent
from mcp_actors.types.content import BLOCKS
from mcp_actors.types.media import MEDIA, Media

__all__ = ["UnreadFiles", "as_blocks", "read_files", "with_files_read"]


_CONTENT = (*BLOCKS, *MEDIA)


class UnreadFiles(Exception):
    """There are files in the ``value`` of a function that have to be read, which the event loop must not do."""

    def __init__(self, value: Any) -> None:
        super().__init__("there are files to be read")
        self.value = value


def as_blocks(value: Any) -> list[ContentBlock] | None:
    """``value`` as content, or ``None`` when it is not meant as content.

    Content is a block, an `Image`, `Audio` or `File`, a string, or a sequence or iterator of these. A list of strings
    alone is a value, not content. Raises `UnreadFiles` for one with paths in it, see `with_files_read`, `ValueError`
    for bytes of an unknown kind, and `InvalidResult` for a sequence in which there are other values beside blocks.
    """
    if isinstance(value, str):
        return [TextContent(value)]
    if isinstance(value, _CONTENT):
        return [_block(value, value)]
    if isinstance(value, Iterator):
        # It has no form in JSON either: nothing is lost if it is not content.
        value = list(value)
    if isinstance(value, Sequence) and any(isinstance(item, _CONTENT) for item in value):
        blocks: list[ContentBlock] = []
        for item in value:
            if isinstance(item, _CONTENT):
                blocks.append(_block(item, value))
            elif isinstance(item, str):
                blocks.append(TextContent(item))
            else:
                raise InvalidResult(
                    f"an object of the class {type(item).__name__} is among content blocks; return text in its place, "
                    "or CallToolResult(blocks, structured_content=...)"
                )
        return blocks
    return None


def _block(item: Any, value: Any) -> ContentBlock:
    if not isinstance(item, Media):
        block: ContentBlock = item
        return block
    if isinstance(item.source, Path):
        raise UnreadFiles(value)
    return item.to_block()


async def with_files_read(value: Any) -> Any:
    """Returns ``value`` with the content blocks of its files, which a worker thread reads.

    Raises `InvalidResult` for one that cannot be read. Cancelled, it leaves the thread alone, whose result is dropped.
    """
    try:
        return await trio.to_thread.run_sync(read_files, value, abandon_on_cancel=True)
    except Exception as error:
        raise InvalidResult(str(error)) from error


def read_files(value: Any) -> Any:
    """Returns ``value`` with the content blocks of its files, for which it blocks; raises what reading them raises."""
    if isinstance(value, Media):
        return value.to_block()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [read_files(item) for item in value]
    return value
