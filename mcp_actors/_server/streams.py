"""Tools that are generators: each value that they yield is a part of the result, and is sent when it is there.

=====================================================  ===========================================================
the client                                             gets
=====================================================  ===========================================================
asks for parts (`mcp_actors._server.inbox`)            each part as a partial result, numbered, and the whole
has given a token for reports of progress              each part as the message of such a report, and the whole
neither, or the call is a task or has a key            the whole; a task shows the newest part as its message
=====================================================  ===========================================================

The whole is the result that the protocol knows: text parts are joined, content is listed, and values are the list that
the tool's output schema describes. An async generator runs and is closed in the task of its call, and a plain one in
one worker thread. It waits at its ``yield`` while the client has more than its window to read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import wraps
from typing import Any

import trio

from mcp_actors._actors.inbound_call import Continuation, InboundCall
from mcp_actors._eras.era import CALL_MESSAGE, PARTS_READ, InvalidResult, Method
from mcp_actors._schema.convert import to_json_value
from mcp_actors._schema.signature import Signature
from mcp_actors._server.content import UnreadFiles, as_blocks
from mcp_actors._server.context import Context, SyncContext, principal_of
from mcp_actors._server.inbox import CallLink, token_of
from mcp_actors._server.invoke import Handler, body_of, current, with_files_read
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import CallEnded, ToolError, invalid_params

__all__ = [
    "LONGEST_MESSAGE",
    "MOST_STREAMED",
    "STREAM_METHODS",
    "collecting",
    "is_generator",
    "shown",
    "stream_handlers",
]


MOST_STREAMED = 8 * 1024 * 1024
"""Bytes of all parts of one result, as JSON: the whole of it is one message at the end, for every client."""
LONGEST_MESSAGE = 4_000
"""Characters of a part in a report of progress, whose messages are for people."""


def is_generator(call: Callable[..., Any]) -> bool:
    """Whether calling it makes a generator, an async one or not."""
    body = body_of(call)
    return inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body)


def collecting(call: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """Returns the function that calls a generator, sends its parts, and returns all of them as one value.

    Args:
        call: The generator, with the signature that the returned function has, too.
        signature: The signature, whose output is that of the whole.
    """
    encode = None if signature.output_schema is None else signature.encode_output
    if inspect.isasyncgenfunction(body_of(call)):

        @wraps(call)
        async def collected(**arguments: Any) -> Any:
            parts = _Parts(current.get(), encode)
            async with aclosing(call(**arguments)) as values:
                async for value in values:
                    await parts.add(value)
            return await parts.whole()

        return collected

    @wraps(call)
    def collected_in_thread(**arguments: Any) -> Any:
        parts = _Parts(current.get(), encode)
        values = call(**arguments)
        try:
            for value in values:
                parts.add(value)
        finally:
            values.close()
        return parts.whole()

    return collected_in_thread


class _Parts:
    """The parts of one call, on their way to the client and until the whole is made of them.

    Args:
        ctx: The context of the call, as its function has it.
        encode: Makes the JSON values of a list of parts; ``None`` for text and content.
    """

    def __init__(self, ctx: Context[Any], encode: Callable[[Any], Any] | None) -> None:
        self._ctx = ctx
        self._encode = encode
        self._values: list[Any] = []
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<_Parts {len(self._values)}, {self._bytes} bytes>"

    def add(self, value: Any) -> Any:
        """Sends a part: an awaitable, or waits for it in a worker thread.

        Raises:
            ToolError: There are more than `MOST_STREAMED` bytes.
            InvalidResult: It has no form in JSON, or is not of the type that the function declares.
            Exception: What `CallLink.send` and `Context.progress` raise.
        """
        ctx = self._ctx
        return ctx._wait(self._add, value) if isinstance(ctx, SyncContext) else self._add(value)

    async def _add(self, value: Any) -> None:
        await trio.lowlevel.checkpoint()
        try:
            part, value = await self._part(value)
            size = len(encode_value(part))
        except (TypeError, ValueError) as error:
            raise InvalidResult(str(error)) from error
        self._bytes += size
        if self._bytes > MOST_STREAMED:
            raise ToolError(
                f"the parts of the result are more than {MOST_STREAMED} bytes: the tool was stopped at part "
                f"{len(self._values)}, since the whole result must fit into one message; ask for less"
            )
        self._values.append(value)
        link = CallLink.of(self._ctx.call)
        if link is not None:
            await link.send(part, size)
        elif (reports := self._ctx.call.reports) is not None:
            await self._report(reports, part)

    async def _part(self, value: Any) -> tuple[dict[str, Any], Any]:
        """Returns a part as it is sent, and as it is kept for the whole."""
        if self._encode is not None:
            return {"structuredContent": self._encode([value])[0]}, value
        if value.__class__ is str:
            return {"content": [{"type": "text", "text": value}]}, value
        try:
            blocks = as_blocks(value)
        except UnreadFiles as unread:
            value = await with_files_read(unread.value)
            blocks = as_blocks(value)
        if blocks is None:
            return {"structuredContent": to_json_value(value)}, value
        return {"content": [self._ctx.era.unstructure(each) for each in blocks]}, value

    async def _report(self, reports: Any, part: dict[str, Any]) -> None:
        """Sends a part as the message of a report, which is one more than the last if the function reports nothing."""
        ctx, number = self._ctx, len(self._values)
        if not ctx.era.progress_message:
            return
        message = shown(part)
        last = getattr(reports, "last", None)
        if last is not None and last[0] >= number:
            await reports.say(message)
        else:
            await reports.report(number, None, message)

    def whole(self) -> Any:
        """Returns what the tool would have returned without a stream: an awaitable, or waits as `add` does."""
        ctx = self._ctx
        return ctx._wait(self._whole) if isinstance(ctx, SyncContext) else self._whole()

    async def _whole(self) -> Any:
        values, link = self._values, CallLink.of(self._ctx.call)
        if not values and link is not None:
            # A part without anything: by it the client knows that there are none, and the whole is not one.
            await link.send({}, 0)
        if self._encode is not None:
            return values
        if values and all(isinstance(each, str) for each in values):
            return "".join(values)
        if len(values) < 2:
            return next(iter(values), None)
        whole: list[Any] = []
        for each in values:
            # A part of several blocks is as many of the whole.
            is_content = isinstance(each, list | tuple) and as_blocks(each) is not None
            whole.extend(each if is_content else (each,))
        return whole


def shown(part: Mapping[str, Any]) -> str:
    """Returns a part as the message of a report, cut at `LONGEST_MESSAGE` characters."""
    content = part.get("content")
    if content is None:
        message = encode_value(part.get("structuredContent")).decode()
    else:
        blocks = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
        message = "".join(str(each.get("text", f"[{each.get('type')}]")) for each in blocks)
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"


# -- What clients send about calls that run ----------------------------------------------------------------------------

STREAM_METHODS = {name: Method(name, dict, dict) for name in (PARTS_READ, CALL_MESSAGE)}
"""The methods of the extension, which every server answers: a link exists for calls that ask for it only."""


def stream_handlers() -> dict[str, Handler]:
    """Returns the handlers of `STREAM_METHODS`. They never wait: the places of all calls may be taken by such calls."""
    return {PARTS_READ: _has_read, CALL_MESSAGE: _take_message}


def _has_read(ctx: Context[Any]) -> dict[str, Any]:
    number = ctx.params.get("seq")
    if type(number) is not int:
        raise invalid_params("'seq' must be an integer")
    _link_named(ctx).has_read(number)
    return {}


def _take_message(ctx: Context[Any]) -> Any:
    if "message" not in ctx.params:
        raise invalid_params("'message' is missing")
    link = _link_named(ctx)
    if link.forward is not None:
        return Continuation(_forwarded, link.forward, ctx.params["message"])
    link.inbox.put(ctx.params["message"])
    return {}


async def _forwarded(forward: Callable[[Any], Any], message: Any) -> dict[str, Any]:
    await forward(message)
    return {}


def _link_named(ctx: Context[Any]) -> CallLink:
    """Returns the link of the call that a request names.

    A session's calls are looked at, and in the stateless revisions those that came by themselves to this node. The
    number of calls in flight is bounded, and no table has to be kept for calls that never hear of this.

    Raises:
        RpcError: -32602: There is no token.
        CallEnded: There is no such call of this caller.
    """
    token = ctx.params.get("token")
    if not isinstance(token, str):
        raise invalid_params("'token' must be a string")
    owner: Any = ctx.call.owner
    for call in owner.calls.values():
        if token_of(call) == token and call.state in ("running", "waiting") and _is_same_caller(ctx, call):
            link = CallLink.of(call)
            if link is not None:
                return link
    raise CallEnded()


def _is_same_caller(ctx: Context[Any], call: InboundCall) -> bool:
    mine, other = principal_of(ctx.call), principal_of(call)
    return mine is other or (mine is not None and other is not None and mine.key == other.key)
