"""Large results are kept for a while, and a model gets their beginning, a link, and tools to read and search the rest.

======================================  ===============================================================================
of a result that is too large           what becomes of it
======================================  ===============================================================================
a text                                  its beginning, how much there is, and a `ResourceLink` to all of it
an image, audio or embedded resource    a link to it
structured content                      is left out and kept as JSON. A schema may demand it, so the result is marked as
                                        an error, which no schema binds (MCP 2026-07-28, Tools, Output Schema)
======================================  ===============================================================================

What is kept is in the `mcp_actors.abc.ValueStore` of the server, in pages, under a key that is made of an unguessable
id and of the caller: another caller finds nothing under its URI. The oldest of a caller makes room for the newest.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, ClassVar

import msgspec

from mcp_actors._wire.codec import encode_value
from mcp_actors.abc import OpenState
from mcp_actors.errors import ResourceNotFound, SharedStateUnavailable, ToolError
from mcp_actors.middleware.callers import as_json, caller_of
from mcp_actors.server import CallNext, Context
from mcp_actors.supervision.arguments import require_number
from mcp_actors.supervision.logging import RareWarning
from mcp_actors.types import (
    UNSET,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolAnnotations,
)

__all__ = ["Spill"]

READ, SEARCH = "spill_read", "spill_search"
_SCHEME = "spill://"
# Characters of a page; of base64 it is a multiple of four, so that pages can be decoded one by one.
_PAGE = 32 * 1024
# Bytes that a program may give, and seconds.
_MOST_BYTES, _MOST_SECONDS = 1 << 40, 30 * 86400
# Results of one caller that are kept, whatever their bytes are.
_MOST_KEPT = 256
# Bytes that a character of a text takes at most as JSON, and those of the members round a text.
_PER_CHARACTER, _PER_BLOCK = 6, 100
# Characters of a line that a search holds at most.
_LONGEST_UNBROKEN = 8 * _PAGE
# Times that the table of a caller is changed again, because another call of it was faster.
_ATTEMPTS = 20
# Lines that one search returns, and characters of each.
_MOST_LINES, _LONGEST_LINE = 100, 400
_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


class _KeptResult(msgspec.Struct, frozen=True):
    """A part of a result that is kept."""

    id: str
    until: float
    """Seconds since the epoch."""
    length: int
    """Characters; of bytes, those in base64."""
    size: int
    """Bytes that there were. Not all of them are kept if they were too many."""
    pages: int
    mime_type: str
    used: int
    """Bytes that are kept."""
    is_binary: bool = False
    tool: str = ""


_read_table = msgspec.json.Decoder(list[_KeptResult]).decode


class Spill:
    """Middleware of a server: a tool's result that is too large becomes its beginning and a link to all of it.

    It adds the tools ``spill_read`` and ``spill_search``, and a resource template, by which the caller reads what was
    kept: in pages, by range, and by the text of its lines. Over HTTP callers are told apart by their principals, or
    else by their addresses; over stdio what is kept belongs to the session. Results of these two tools are not kept
    again. In a `~mcp_actors.gateway.Gateway` it is for the results of all servers behind it.

    Args:
        above: Bytes of a result as JSON that are still sent whole: 64,000 by default, some 16,000 tokens.
        head: Characters of the beginning of a text that are sent; 4,000 by default.
        keep: Seconds for which it is kept; an hour by default.
        weight: Bytes that are kept for one caller; 16 MiB by default. Of a result that is larger the beginning is kept.

    Raises:
        ValueError: A number is out of range, or ``head`` is not less than ``above``.
        TypeError: One of them is not a number.
    """

    for_side: ClassVar = "server"

    def __init__(
        self,
        above: int = 64_000,
        *,
        head: int = 4_000,
        keep: float = 3600.0,
        weight: int = 16 * 1024 * 1024,
    ) -> None:
        require_number("Spill(above=)", above, 1024, _MOST_BYTES, whole=True)
        require_number("Spill(head=)", head, 0, above - 1, whole=True)
        require_number("Spill(keep=)", keep, 1, _MOST_SECONDS)
        require_number("Spill(weight=)", weight, above, _MOST_BYTES, whole=True)
        self.above = above
        self.head = head
        self.keep = keep
        self.weight = weight
        self._failed = RareWarning("large results are cut, because the shared state does not take them")

    def __repr__(self) -> str:
        return f"<Spill above {self.above} bytes>"

    def added_to(self, server: Any) -> None:
        """Adds the tools and the resource template. Raises `LocalProtocolError` if a name is taken."""
        length = self.above // 4

        async def read(
            uri: Annotated[str, msgspec.Meta(description="A URI that begins with spill://, of a result")],
            ctx: Context[Any],
            offset: Annotated[int, msgspec.Meta(ge=0, description="The first character")] = 0,
            length: Annotated[int, msgspec.Meta(ge=1, le=length, description="How many")] = length,
        ) -> str:
            store = _Store.of(ctx)
            kept = await self._found(store, uri)
            if kept.is_binary:
                raise ToolError(f"{uri} is {kept.mime_type}, and no text: read it as a resource")
            text = await store.text(kept, offset, length)
            end = offset + len(text)
            if offset >= kept.length:
                return f"[{uri} has {kept.length} characters]"
            return (
                text if end >= kept.length else f"{text}\n[{kept.length - end} more characters from {end} on]"
            )

        async def search(
            uri: Annotated[str, msgspec.Meta(description="A URI that begins with spill://, of a result")],
            text: Annotated[str, msgspec.Meta(min_length=1, description="What a line has to contain")],
            ctx: Context[Any],
        ) -> str:
            store = _Store.of(ctx)
            kept = await self._found(store, uri)
            if kept.is_binary:
                raise ToolError(f"{uri} is {kept.mime_type}, and no text")
            return await self._search(store, kept, text)

        async def resource(id: str, ctx: Context[Any]) -> str | bytes:
            store = _Store.of(ctx)
            kept = await store.find(id)
            if kept is None:
                raise ResourceNotFound(f"{_SCHEME}{id}")
            text = await store.text(kept, 0, kept.length)
            return base64.b64decode(text) if kept.is_binary else text

        server.add_tool(
            read,
            name=READ,
            description="Read a part of a large result that was kept, by its spill:// URI.",
            annotations=_READ_ONLY,
        )
        server.add_tool(
            search,
            name=SEARCH,
            description="Find the lines of a large result that contain a text, whatever the case.",
            annotations=_READ_ONLY,
        )
        server.add_resource(
            f"{_SCHEME}{{id}}", resource, name="large results", description="Large results that were kept."
        )

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any:
        """Lets a result pass that is small enough, and keeps the others."""
        result = await call_next()
        if ctx.method != "tools/call" or ctx.params.get("name") in (READ, SEARCH):
            return result
        if isinstance(result, dict) and "content" in result:
            # That of a server behind a gateway, in the form in which it came.
            if len(as_json(ctx, result)) <= self.above:
                return result
            result = ctx.era.converter.structure(result, CallToolResult)
        # Others ask the client for something, or are tasks.
        if not isinstance(result, CallToolResult) or self._is_surely_small(result):
            return result
        return result if len(as_json(ctx, result)) <= self.above else await self._spilled(ctx, result)

    def _is_surely_small(self, result: CallToolResult) -> bool:
        """Whether a result that is nothing but text is small enough however it is written."""
        if result.structured_content is not UNSET or result.meta is not None or result.extra:
            return False
        most = 0
        for block in result.content:
            if type(block) is not TextContent or block.annotations is not None or block.meta is not None:
                return False
            most += len(block.text) * _PER_CHARACTER + _PER_BLOCK
        return most <= self.above - _PER_BLOCK

    # -- keeping ---------------------------------------------------------------------------------------------------

    async def _spilled(self, ctx: Context, result: CallToolResult) -> CallToolResult:
        store, tool = _Store.of(ctx), str(ctx.params.get("name"))
        blocks: list[ContentBlock] = []
        structured = result.structured_content
        if structured is not UNSET and len(encode_value(structured)) > self.head:
            text = encode_value(structured).decode()
            blocks += await self._of_text(store, tool, text, "application/json")
            # The text beside it is the same for clients that know no structure (MCP 2026-07-28, Tools).
            return CallToolResult(blocks, is_error=True, meta=result.meta)
        for block in result.content:
            if isinstance(block, TextContent) and len(block.text) > self.head:
                blocks += await self._of_text(store, tool, block.text, "text/plain")
            elif isinstance(block, ImageContent | AudioContent):
                blocks += await self._of_bytes(store, tool, block.data, block.mime_type)
            elif isinstance(block, EmbeddedResource):
                blocks += await self._of_resource(store, tool, block)
            else:
                blocks.append(block)
        if structured is UNSET:
            return CallToolResult(blocks, is_error=result.is_error, meta=result.meta)
        return CallToolResult(blocks, structured, is_error=result.is_error, meta=result.meta)

    async def _of_resource(self, store: _Store, tool: str, block: EmbeddedResource) -> list[ContentBlock]:
        contents = block.resource
        if isinstance(contents, BlobResourceContents):
            return await self._of_bytes(
                store, tool, contents.blob, contents.mime_type or "application/octet-stream"
            )
        if len(contents.text) <= self.head:
            return [block]
        return await self._of_text(store, tool, contents.text, contents.mime_type or "text/plain")

    async def _of_text(self, store: _Store, tool: str, text: str, mime_type: str) -> list[ContentBlock]:
        """Returns the beginning of a text, with a link to all of it."""
        head = text[: self.head]
        kept = await self._keep(store, tool, text, mime_type, len(text.encode("utf-8", "replace")), False)
        if kept is None:
            return [
                TextContent(
                    f"{head}\n[{len(text) - len(head)} more characters could not be kept: ask for less]"
                )
            ]
        cut = "" if kept.length == len(text) else f"; of it the first {kept.length} are kept"
        uri = f"{_SCHEME}{kept.id}"
        more = (
            f"[{len(text) - len(head)} more characters of {len(text)}{cut}. Read them with {READ}, from offset "
            f"{len(head)} on, or find lines with {SEARCH}: {uri}]"
        )
        return [TextContent(f"{head}\n{more}"), self._link(kept)]

    async def _of_bytes(self, store: _Store, tool: str, data: str, mime_type: str) -> list[ContentBlock]:
        """Returns a link to what is in base64, which has no beginning that could be shown."""
        size = len(data) * 3 // 4 - data.count("=", -2)
        if len(data) <= self.weight and (kept := await self._keep(store, tool, data, mime_type, size, True)):
            return [self._link(kept)]
        return [TextContent(f"[{mime_type} of {size} bytes, which could not be kept: ask for less]")]

    async def _keep(
        self, store: _Store, tool: str, text: str, mime_type: str, size: int, is_binary: bool
    ) -> _KeptResult | None:
        try:
            kept = await store.keep(text, mime_type, size, is_binary, tool, self.keep, self.weight)
        except SharedStateUnavailable as error:
            self._failed(str(error.cause or error))
            return None
        self._failed.over()
        return kept

    def _link(self, kept: _KeptResult) -> ResourceLink:
        return ResourceLink(
            f"{_SCHEME}{kept.id}", f"result of {kept.tool}", mime_type=kept.mime_type, size=kept.size
        )

    # -- reading ---------------------------------------------------------------------------------------------------

    async def _found(self, store: _Store, uri: str) -> _KeptResult:
        kept = await store.find(uri.removeprefix(_SCHEME)) if uri.startswith(_SCHEME) else None
        if kept is None:
            raise ToolError(
                f"there is no result {uri!r:.200}: it was kept for {self.keep:g} s; call the tool again"
            )
        return kept

    async def _search(self, store: _Store, kept: _KeptResult, text: str) -> str:
        wanted, offset = text.casefold(), 0
        found: list[str] = []
        async with aclosing(store.lines(kept)) as lines:
            async for line in lines:
                place = line.casefold().find(wanted)
                if place >= 0:
                    if len(found) == _MOST_LINES:
                        found.append("[more lines contain it: search for more of the text]")
                        break
                    # Of a long line what is round the text.
                    begin = max(0, place - _LONGEST_LINE // 2)
                    found.append(f"{offset + begin}: {line[begin : begin + _LONGEST_LINE]}")
                offset += len(line) + 1
        return "\n".join(found) or f"no line contains {text!r}"


class _Store:
    """The results that are kept for one caller.

    Args:
        shared: The state that a `serve` has opened.
        caller: A text that is the same for all calls of the caller.
    """

    def __init__(self, shared: OpenState, caller: str) -> None:
        self._values = shared.values
        # A text of one's own must not be a key in the store, where operators see it.
        self._owner = hashlib.blake2b(caller.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    @classmethod
    def of(cls, ctx: Context) -> _Store:
        """Returns those of the caller of a call."""
        shared: Any = ctx._scope.shared
        return cls(shared, caller_of(ctx))

    def _key(self, *parts: object) -> str:
        return encode_value(["spill", self._owner, *parts]).decode()

    async def find(self, id: str) -> _KeptResult | None:
        """Returns what was kept under an id, ``None`` if that is not there, or not this caller's."""
        now = time.time()
        return next((each for each in await self._table() if each.id == id and each.until > now), None)

    async def _table(self) -> list[_KeptResult]:
        data = await self._values.load(self._key())
        return [] if data is None else _read_table(data)

    async def keep(
        self, text: str, mime_type: str, size: int, is_binary: bool, tool: str, seconds: float, weight: int
    ) -> _KeptResult:
        """Keeps a text, or as much of it as ``weight`` allows, and drops older ones of the caller to make room.

        Raises:
            SharedStateUnavailable: The state cannot be reached, or has no room.
        """
        id, pages, length, used = secrets.token_urlsafe(18), 0, 0, 0
        for begin in range(0, len(text), _PAGE):
            page = text[begin : begin + _PAGE].encode("utf-8", "replace")
            if used + len(page) > weight:
                break
            await self._values.replace(self._key(id, pages), None, page, seconds)
            pages, length, used = pages + 1, length + min(_PAGE, len(text) - begin), used + len(page)
        kept = _KeptResult(id, time.time() + seconds, length, size, pages, mime_type, used, is_binary, tool)
        await self._enter(kept, seconds, weight)
        return kept

    async def _enter(self, kept: _KeptResult, seconds: float, weight: int) -> None:
        for _ in range(_ATTEMPTS):
            before = await self._values.load(self._key())
            table = [] if before is None else _read_table(before)
            left, room = [kept], weight - kept.used
            dropped: list[_KeptResult] = []
            for each in reversed(table):
                room -= each.used
                (
                    left if room >= 0 and len(left) < _MOST_KEPT and each.until > time.time() else dropped
                ).append(each)
            after = msgspec.json.encode(left[::-1])
            if await self._values.replace(self._key(), before, after, max(seconds, 1.0)):
                for each in dropped:
                    await self._drop(each)
                return
        raise SharedStateUnavailable("values", "too many results of one caller come at the same moment")

    async def _drop(self, kept: _KeptResult) -> None:
        for page in range(kept.pages):
            key = self._key(kept.id, page)
            data = await self._values.load(key)
            if data is not None:
                await self._values.replace(key, data, None, 1.0)

    async def text(self, kept: _KeptResult, offset: int, length: int) -> str:
        """Returns a part of a text. A page that is gone ends it."""
        first, end = offset // _PAGE, min(offset + length, kept.length)
        parts: list[str] = []
        for page in range(first, -(-end // _PAGE)):
            data = await self._values.load(self._key(kept.id, page))
            if data is None:
                break
            parts.append(data.decode("utf-8", "replace"))
        begin = offset - first * _PAGE
        return "".join(parts)[begin : begin + max(0, end - offset)]

    async def lines(self, kept: _KeptResult) -> AsyncGenerator[str]:
        """Yields the lines of a text without holding all of it; a line is cut where it is longer than some pages."""
        rest = ""
        for page in range(kept.pages):
            lines = (rest + await self.text(kept, page * _PAGE, _PAGE)).split("\n")
            rest = lines.pop()
            for line in lines:
                yield line
            if len(rest) > _LONGEST_UNBROKEN:
                yield rest
                rest = ""
        if rest:
            yield rest
