"""The form that the messages of a sampling request have to have, checked by who sends them and by who receives them."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_actors import types as t

__all__ = ["history_problem"]


def history_problem(messages: Sequence[t.SamplingMessage]) -> str | None:
    """Returns what is wrong with tool uses and their results among the messages, ``None`` if nothing is.

    MCP 2025-11-25, Sampling, Message Content Constraints: each use is answered in the next message, by a result with
    its id, and a message with results holds nothing else. Uses are the model's, results the user's.
    """
    open_uses: set[str] = set()
    for message in messages:
        blocks = _blocks(message)
        results = [block for block in blocks if isinstance(block, t.ToolResultContent)]
        if results and len(results) < len(blocks):
            return "a message with tool results must hold nothing else"
        if open_uses != {block.tool_use_id for block in results}:
            return "every tool use needs its result in the next message, and no other"
        if results and message.role != "user":
            return "tool results belong into a message of the role user"
        open_uses = {block.id for block in blocks if isinstance(block, t.ToolUseContent)}
        if open_uses and message.role != "assistant":
            return "tool uses belong into a message of the role assistant"
    return f"tool uses without a result: {', '.join(sorted(open_uses))[:200]}" if open_uses else None


def _blocks(message: t.SamplingMessage) -> Sequence[t.SamplingContent]:
    return message.content if isinstance(message.content, list) else [message.content]
