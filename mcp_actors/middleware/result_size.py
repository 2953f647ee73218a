"""A bound on the bytes of a result."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from mcp_actors.errors import INTERNAL_ERROR, RpcError
from mcp_actors.middleware.callers import as_json
from mcp_actors.server import CallNext, Context
from mcp_actors.supervision.arguments import require_number
from mcp_actors.types import UNSET, CallToolResult, TextContent

__all__ = ["ResultSize"]

# Bytes that a character of a text takes at most as JSON, and those of the members round a text.
_PER_CHARACTER, _PER_BLOCK = 6, 100
# Bytes that a program may allow: 1 TiB.
MOST_BYTES = 1 << 40
# Bytes that are left for the remark that a text was cut.
_REMARK = 200


class ResultSize:
    """Middleware of a server: a result may have so many bytes, for models whose context is small.

    A tool's result that is longer becomes a failure that says so, which the model can act on, and any other result an
    error. The bytes are those of the result as JSON, without what is added to every result.

    Args:
        limit: Bytes; at least 1,024, so that there is room for what replaces a result.
        over: ``"error"``, or ``"truncate"``: then the text of a tool's result is cut to fit, with a remark at its end,
            and its images and other blocks are left out where they do not fit. A result with structured content has to
            fit its schema and is never cut.

    Raises:
        ValueError: An argument is not one of these.
        TypeError: The limit is not a whole number.
    """

    for_side: ClassVar = "server"

    def __init__(self, limit: int, *, over: Literal["error", "truncate"] = "error") -> None:
        require_number("ResultSize(limit=)", limit, 1024, MOST_BYTES, whole=True)
        if over not in ("error", "truncate"):
            raise ValueError(f'ResultSize(over=) is "error" or "truncate", not {over!r:.80}')
        self.limit = limit
        self.over = over

    def __repr__(self) -> str:
        return f"<ResultSize {self.limit} {self.over}>"

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Lets a result pass that is short enough.

        Raises:
            RpcError: It is too long, and not that of a tool.
        """
        result = await call_next()
        if result is None or self._is_surely_short(result):
            return result
        size = len(as_json(ctx, result))
        if size <= self.limit:
            return result
        text = f"the result is too long: it has {size} bytes, the limit is {self.limit}; ask for less"
        if not isinstance(result, CallToolResult):
            raise RpcError(INTERNAL_ERROR, text)
        if self.over == "truncate" and result.structured_content is UNSET:
            return self._cut(ctx, result, size)
        return CallToolResult([TextContent(text)], is_error=True)

    def _is_surely_short(self, result: Any) -> bool:
        """Whether a result that is nothing but text is short enough however it is written."""
        if not isinstance(result, CallToolResult) or result.structured_content is not UNSET:
            return False
        if result.meta is not None or result.extra:
            return False
        most = 0
        for block in result.content:
            if type(block) is not TextContent or block.annotations is not None or block.meta is not None:
                return False
            most += len(block.text) * _PER_CHARACTER + _PER_BLOCK
        return most <= self.limit - _PER_BLOCK

    def _cut(self, ctx: Context, result: CallToolResult, size: int) -> CallToolResult:
        room = self.limit - _REMARK
        blocks: list[Any] = []
        left_out = 0
        for block in result.content:
            taken = len(as_json(ctx, block)) + 1
            if taken <= room:
                room -= taken
                blocks.append(block)
                continue
            # Of its annotations it keeps those that say for whom it is.
            long = block if isinstance(block, TextContent) else None
            left = 0 if long is None else room - len(as_json(ctx, attrs.evolve(long, text=""))) - _PER_BLOCK
            if long is not None and left > 0:
                blocks.append(attrs.evolve(long, text=_cut_text(ctx, long.text, left)))
                room = 0
            else:
                left_out += 1
        more = f", and {left_out} blocks are left out" if left_out else ""
        blocks.append(TextContent(f"[cut: the result has {size} bytes, the limit is {self.limit}{more}]"))
        return CallToolResult(blocks, is_error=result.is_error)


def _cut_text(ctx: Context, text: str, room: int) -> str:
    """Returns the beginning of a text that has at most ``room`` bytes as JSON."""
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        if len(as_json(ctx, {"": text[:middle]})) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low]
