"""Content blocks and results from what functions return. No Trio here: processes that run functions import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mcp_actors._eras.era import InvalidResult, ValueResult
from mcp_actors._schema.validate import Validator
from mcp_actors._wire.codec import encode_value
from mcp_actors.types import UNSET, CallToolResult, ContentBlock, TextContent
from mcp_actors.types.content import BLOCKS
from mcp_actors.types.media import MEDIA, Media

__all__ = ["ToolAnswer", "UnreadFiles", "as_blocks", "finishing", "read_files"]

ToolAnswer = CallToolResult | ValueResult
"""What answers ``tools/call``."""

_CONTENT = (*BLOCKS, *MEDIA)


class UnreadFiles(Exception):
    """There are files in the ``value`` of a function that have to be read, which the event loop must not do."""

    def __init__(self, value: Any) -> None:
        super().__init__("there are files to be read")
        self.value = value


def as_blocks(value: Any) -> list[ContentBlock] | None:
    """``value`` as content, or ``None`` when it is not meant as content.

    Content is a block, an `Image`, `Audio` or `File`, a string, or a sequence or iterator of these. A list of strings
    alone is a value, not content. Raises `UnreadFiles` for one with paths in it, `ValueError`
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


def read_files(value: Any) -> Any:
    """Returns ``value`` with the content blocks of its files, for which it blocks; raises what reading them raises."""
    if isinstance(value, Media):
        return value.to_block()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [read_files(item) for item in value]
    return value


# -- the result of a tool ---


def finishing(
    encode: Callable[[Any], Any], compiled: Validator | None, *, declared: bool, content: bool
) -> Callable[[Any], ToolAnswer]:
    """Returns the function that makes the result of the value that a tool returned.

    A tool with an output schema has to return structured content (MCP, Tools, Output Schema): whatever it returns is
    that value, unless it builds the whole result itself. A value that does not fit raises, and the call fails. With
    ``content`` an empty list means without content; otherwise it is a value.
    """

    def structured(value: Any) -> ToolAnswer:
        encoded = encode(value)
        if compiled is not None:
            _check(compiled, encoded)
        return ValueResult(encode_value(encoded).decode(), encoded)

    def for_schema(value: Any) -> ToolAnswer:
        if not isinstance(value, CallToolResult):
            # As in `structured`, which is not called, because most calls come here.
            encoded = encode(value)
            if compiled is not None:
                _check(compiled, encoded)
            return ValueResult(encode_value(encoded).decode(), encoded)
        if not value.is_error:
            if value.structured_content is UNSET:
                raise TypeError(
                    "a tool with an output schema returned a CallToolResult without structured_content"
                )
            if compiled is not None:
                _check(compiled, value.structured_content)
        return value

    def free(value: Any) -> ToolAnswer:
        if value.__class__ is str:
            return ValueResult(value)
        if value is None or (content and value == []):
            return CallToolResult([])
        if isinstance(value, CallToolResult):
            return value
        blocks = as_blocks(value)
        return structured(value) if blocks is None else CallToolResult(blocks)

    return for_schema if declared else free


def _check(compiled: Validator, content: Any) -> None:
    problems = compiled.problems(content)
    if problems:
        raise ValueError(f"the result does not fit the output schema: {'; '.join(problems)}")
