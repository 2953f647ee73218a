"""Content blocks from what users return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mcp_actors.types import ContentBlock, TextContent
from mcp_actors.types.content import BLOCKS

__all__ = ["as_blocks"]


def as_blocks(value: Any) -> list[ContentBlock] | None:
    """``value`` as content, or ``None`` when it is not meant as content.

    Content is a block, a string, or a sequence or iterator of blocks with strings between them. A list of strings alone
    is a value, not content.
    """
    if isinstance(value, str):
        return [TextContent(value)]
    if isinstance(value, BLOCKS):
        return [value]
    if isinstance(value, Iterator):
        # It has no form in JSON either: nothing is lost if it is not content.
        value = list(value)
    if isinstance(value, Sequence) and any(isinstance(item, BLOCKS) for item in value):
        blocks: list[ContentBlock] = []
        for item in value:
            if isinstance(item, BLOCKS):
                blocks.append(item)
            elif isinstance(item, str):
                blocks.append(TextContent(item))
            else:
                return None
        return blocks
    return None
