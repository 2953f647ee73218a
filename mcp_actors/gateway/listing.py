"""One list of one connection: asked for page by page, bounded, and read entry by entry.

A server is not trusted: it may page without an end, list without a bound, or send malformed entries. That costs its own
entries only: what is malformed is left out with a warning, and what is too much is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import attrs
import trio

from mcp_actors import types as t
from mcp_actors._client.lock import LOCKED_KINDS
from mcp_actors._client.pages import FEW_PAGES
from mcp_actors._client.skills import read_skill, written_skill
from mcp_actors._eras.convert import structure_error_text
from mcp_actors._eras.era import Era, EventKind
from mcp_actors._eras.modern import annotated_params
from mcp_actors._server.names import NameTable
from mcp_actors._server.reshape import Shape
from mcp_actors._server.tools import IDEMPOTENT, TaskRules, ToolElsewhere, tool_without_references
from mcp_actors._wire.codec import encode_value
from mcp_actors._wire.skill_format import SKILLS
from mcp_actors._wire.uri_template import LONGEST_URI, UriTemplate
from mcp_actors.errors import MethodNotFound, RemoteProtocolError
from mcp_actors.gateway.connections import GATEWAYS, GatewayCircle, UpstreamConnection
from mcp_actors.gateway.upstream_settings import Upstream
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.types.skills import Skill

__all__ = [
    "LIST_KINDS",
    "MAX_BYTES",
    "MAX_ENTRIES",
    "ListKind",
    "UpstreamListing",
    "read_listing",
    "renamed_skill",
]

# Entries of one list of one upstream; no client shows that many, and a model reads a hundredth of them.
MAX_ENTRIES = 5000
# Bytes of one list as JSON.
MAX_BYTES = 8 * 1024 * 1024
# Entries that are read in one turn of the loop.
ENTRIES_A_TURN = 100
# Seconds for which a list is good whose server promises nothing: all pages of one listing, and a burst of clients.
LEAST_AGE = 1.0
# Seconds. What a server calls good for longer is asked for again after a day.
MAX_AGE = 24 * 3600.0
# Of a tool or prompt. What model providers take is a tenth of them.
_NAME_CHARACTERS = 1024
# Characters of a name or an error that the log shows.
_SHOWN = 200
LONGEST_KEPT = 7 * 86400.0
"""Seconds for which answers are kept at most, whatever the server of a tool says."""
_MAY_BE_TASK = TaskRules("optional", restartable=False, before=None)


@attrs.frozen(kw_only=True)
class ListKind:
    """One of the lists that a server has."""

    name: str
    what: str
    """Names an entry in the log."""
    method: str
    member: str
    """The member of the result that has the entries."""
    capability: str
    event: EventKind
    """The change that makes it stale."""
    of: type
    """The class of an entry."""
    key: str
    """The attribute of an entry that it is known by."""
    longest_key: int
    """Characters of it."""
    result: Callable[..., Any]
    """Makes the result of the gateway."""
    extension: str | None = None
    """The extension that a server has to have declared, too."""
    read: Callable[[Era, Any], Any]
    """Makes an entry of what the server sent; raises if that is none."""
    weigh: Callable[[Any], int] | None = None
    """Returns the bytes of a line, where the entries of a page may be too long together."""
    renamed: Callable[[Any, str, NameTable], Any]
    """Returns an entry as it is in the gateway under another name or URI."""


def _structured(of: type, era: Era, item: Any) -> Any:
    return era.structure(item, of)


def _renamed(key: str, entry: Any, name: str, table: NameTable) -> Any:
    return attrs.evolve(entry, **{key: name})


def _renamed_tool(tool: t.Tool, name: str, table: NameTable) -> t.Tool:
    """Returns a tool as it is in the gateway, with the URI that its page has there (SEP-1865)."""
    return attrs.evolve(tool, name=name, meta=table.outside_meta(tool.meta))


def renamed_skill(skill: Skill, uri: str, table: NameTable) -> Skill:
    """Returns a skill as it is in the gateway: all of its files lie where its ``SKILL.md`` lies."""
    resources = skill.resources
    if not isinstance(resources, str):
        resources = tuple(
            attrs.evolve(each, uri=table.outside_uri(each.uri) or each.uri) for each in resources
        )
    return attrs.evolve(skill, uri=uri, resources=resources)


def skills_result(
    skills: Sequence[Skill], cursor: str | None, *, ttl_ms: int | None, cache_scope: str | None
) -> dict[str, Any]:
    """Returns the result of ``skills/list``."""
    hints = {"nextCursor": cursor, "ttlMs": ttl_ms, "cacheScope": cache_scope}
    return {
        "skills": [written_skill(each) for each in skills],
        **{name: value for name, value in hints.items() if value is not None},
    }


def _weight(row: Any) -> int:
    return len(encode_value(written_skill(row.entry)))


LIST_KINDS: Mapping[str, ListKind] = {
    kind.name: kind
    for kind in (
        ListKind(
            name="tools",
            what="tool",
            method="tools/list",
            member="tools",
            capability="tools",
            event="tools",
            of=t.Tool,
            read=partial(_structured, t.Tool),
            renamed=_renamed_tool,
            key="name",
            longest_key=_NAME_CHARACTERS,
            result=t.ListToolsResult,
        ),
        ListKind(
            name="prompts",
            what="prompt",
            method="prompts/list",
            member="prompts",
            capability="prompts",
            event="prompts",
            of=t.Prompt,
            read=partial(_structured, t.Prompt),
            renamed=partial(_renamed, "name"),
            key="name",
            longest_key=_NAME_CHARACTERS,
            result=t.ListPromptsResult,
        ),
        ListKind(
            name="resources",
            what="resource",
            method="resources/list",
            member="resources",
            capability="resources",
            event="resources",
            of=t.Resource,
            read=partial(_structured, t.Resource),
            renamed=partial(_renamed, "uri"),
            key="uri",
            longest_key=LONGEST_URI,
            result=t.ListResourcesResult,
        ),
        ListKind(
            name="templates",
            what="resource template",
            method="resources/templates/list",
            member="resourceTemplates",
            capability="resources",
            event="resources",
            of=t.ResourceTemplate,
            read=partial(_structured, t.ResourceTemplate),
            renamed=partial(_renamed, "uri_template"),
            key="uri_template",
            longest_key=LONGEST_URI,
            result=t.ListResourceTemplatesResult,
        ),
        ListKind(
            name="skills",
            what="skill",
            method="skills/list",
            member="skills",
            capability="resources",
            extension=SKILLS,
            event="resources",
            of=Skill,
            read=lambda era, item: read_skill(item),
            renamed=renamed_skill,
            key="uri",
            longest_key=LONGEST_URI,
            result=skills_result,
            weigh=_weight,
        ),
    )
}
"""The lists, by name."""


def _kept_there(tool: t.Tool) -> float:
    """Returns for how many seconds the server of a tool says that it keeps its answers."""
    seconds = (tool.meta or {}).get(IDEMPOTENT)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        return 0.0
    return min(float(seconds), LONGEST_KEPT)


def _is_destructive(tool: t.Tool) -> bool:
    """MCP 2026-07-28, Tools, Tool Annotations: a tool of which nothing is said may be destructive."""
    hints = tool.annotations
    return hints is None or not (hints.read_only_hint is True or hints.destructive_hint is False)


@attrs.define(eq=False)
class UpstreamListing:
    """One list of one connection, as its server had it."""

    entries: dict[str, Any]
    """The entries by their own names or URIs, in the server's order."""
    ttl_ms: int | None = None
    """Milliseconds for which the server calls it good; ``None`` if it does not say."""
    cache_scope: t.CacheScope | None = None
    """Whether the server lets caches that several users share keep it; ``None`` if it does not say."""
    read_at: float = attrs.field(factory=trio.current_time)
    held: set[str] = attrs.field(factory=set)
    """The names in the gateway that are claimed for it."""
    shapes: Mapping[str, Shape] = attrs.field(factory=dict)
    """The shapes of the tools that have another one in the gateway, by their own names."""
    uses: int = 0
    """At how many places it is kept."""
    _tools: dict[str, ToolElsewhere] = attrs.field(factory=dict)

    def tool_elsewhere(self, name: str, kept: float, takes_keys: bool) -> ToolElsewhere | None:
        """Returns what the gateway has to know of a tool that clients call by it, ``None`` where it is not listed.

        Args:
            name: Its own name.
            kept: Seconds for which the gateway keeps its answers.
            takes_keys: Whether its server may keep them, too.
        """
        found = self._tools.get(name)
        tool = self.entries.get(name)
        if found is None and tool is not None:
            try:
                mirrored = annotated_params(tool.input_schema)
            except ValueError:
                # Clients leave such a tool out.
                mirrored = ()
            support = None if tool.execution is None else tool.execution.task_support
            rules = None if support in (None, "forbidden") else _MAY_BE_TASK
            there = _kept_there(tool) if takes_keys else 0.0
            found = self._tools[name] = ToolElsewhere(
                mirrored, rules, kept or there, there > 0, _is_destructive(tool)
            )
        return found

    @cached_property
    def has_pages(self) -> bool:
        """Whether a tool of it has a page."""
        return any(each.app_uri is not None for each in self.entries.values())

    def lets_pages_call(self, name: str) -> bool:
        """Whether it is a list of tools with pages, which may call the tool of a name."""
        tool = self.entries.get(name)
        return tool is not None and "app" in tool.visibility and self.has_pages

    @cached_property
    def templates(self) -> tuple[UriTemplate, ...]:
        """The templates of it that can be matched."""
        return tuple(_templates(self.entries))

    @cached_property
    def schemes(self) -> frozenset[str]:
        """The schemes of the URIs or templates of it."""
        return frozenset(each.partition(":")[0].lower() for each in self.entries)

    def left_ms(self, now: float) -> int | None:
        """Returns for how many milliseconds it is good from now on; ``None`` if its server does not say."""
        if self.ttl_ms is None:
            return None
        return max(0, math.ceil(self.ttl_ms - (now - self.read_at) * 1000))


def _templates(texts: Mapping[str, Any]) -> Iterator[UriTemplate]:
    for text in texts:
        try:
            yield UriTemplate(text)
        except ValueError as error:
            log.debug("a template of an upstream cannot be matched", template=text[:_SHOWN], error=str(error))


async def read_listing(
    connection: UpstreamConnection,
    kind: ListKind,
    upstream: Upstream,
    circle: GatewayCircle,
    meta: Mapping[str, Any],
) -> UpstreamListing:
    """Asks the server of a connection for all of a list.

    A server that did not declare it has an empty one.

    Args:
        connection: The connection, which is open.
        kind: The list.
        upstream: The settings of the upstream.
        circle: Says which entries have come back to the gateway, and are left out.
        meta: The ``_meta`` of the request for which the list is read.

    Raises:
        RemoteProtocolError: The answer is not a list.
        McpError: What else `Client.request` raises.
    """
    requests = connection.client._requests
    negotiated = connection.server.negotiated
    is_declared = kind.extension is None or kind.extension in (negotiated.capabilities.extensions or {})
    if kind.capability not in negotiated.declared or not is_declared:
        return UpstreamListing({}, ttl_ms=round(MAX_AGE * 1000), cache_scope="public")
    reading = _ListReader(connection, kind, upstream, circle)
    options = requests.options
    if connection.server.gateway is not None:
        options = attrs.evolve(options, meta={GATEWAYS: circle.path_of(meta)})
    cursor: str | None = None
    for _ in range(FEW_PAGES):
        params = {} if cursor is None else {"cursor": cursor}
        try:
            result = await requests.send(kind.method, params, options)
        except MethodNotFound:
            # Several servers declare a capability and have none of its lists.
            if cursor is not None:
                raise
            break
        cursor = await reading.take(result)
        if cursor is None or reading.is_full:
            break
    if cursor is not None:
        log.warning(
            "a list of an upstream is longer than the gateway reads: the rest is left out",
            upstream=upstream.name,
            list=kind.name,
            entries=len(reading.entries),
        )
    return reading.listing()


class _ListReader:
    """A list that is being read."""

    def __init__(
        self, connection: UpstreamConnection, kind: ListKind, upstream: Upstream, circle: GatewayCircle
    ) -> None:
        self.entries: dict[str, Any] = {}
        self.shapes: dict[str, Shape] = {}
        self._refused: set[str] = set()
        # What the server has listed, whether it was approved or not.
        self._offered: set[str] = set()
        self.is_full = False
        self._connection = connection
        self._kind = kind
        self._upstream = upstream
        self._circle = circle
        self._bytes = 0
        self._ttls: list[int | None] = []
        self._scopes: list[object] = []

    async def take(self, result: dict[str, Any]) -> str | None:
        """Reads one page, and returns the cursor of the next one, ``None`` after the last."""
        kind, era = self._kind, self._connection.server.negotiated.era
        items = result.get(kind.member)
        if not isinstance(items, list):
            raise RemoteProtocolError(f"the answer to {kind.method} has no array {kind.member!r}")
        # Each entry is weighed where the page is too long for them all.
        size = len(encode_value(result))
        is_weighed = self._bytes + size > MAX_BYTES
        self._bytes += 0 if is_weighed else size
        self._ttls.append(_ttl(result.get("ttlMs")))
        self._scopes.append(result.get("cacheScope"))
        problems: list[str] = []
        found: list[Any] = []
        for index, item in enumerate(items):
            if index % ENTRIES_A_TURN == ENTRIES_A_TURN - 1:
                await trio.lowlevel.checkpoint()
            self._bytes += len(encode_value(item)) if is_weighed else 0
            if len(self.entries) + len(found) >= MAX_ENTRIES or self._bytes > MAX_BYTES:
                self.is_full = True
                break
            try:
                found.append(kind.read(era, item))
            except Exception as error:  # cattrs raises whatever the member's own conversion raised
                problems.append(structure_error_text(error))
        lock, locked = self._upstream.lock, LOCKED_KINDS.get(kind.method)
        if lock is not None and locked is not None:
            server = self._connection.server.negotiated.info.name
            self._offered.update(getattr(each, kind.key) for each in found)
            found, _ = lock.kept(locked, found, era, server)
        if kind.of is t.Tool:
            found = list(map(_as_offered, self._connection.client._requests.learn_tools(found)))
            if self._upstream.inline_refs:
                found = [await _inlined(each) for each in found]
            if self._upstream.tools:
                found = list(filter(None, map(self._reshaped, found)))
        for entry in found:
            if self._circle.has_come_back(entry.meta):
                continue
            key = getattr(entry, kind.key)
            if len(key) > kind.longest_key:
                problems.append(f"a name of {len(key)} characters")
            elif key in self.entries:
                problems.append(f"{key!r} is there twice")
            else:
                self.entries[key] = entry
        if problems:
            log.warning(
                "entries of a list of an upstream are left out",
                upstream=self._upstream.name,
                list=kind.name,
                entries=len(problems),
                first=printable(problems[0], _SHOWN),
            )
        cursor = result.get("nextCursor")
        if self.is_full:
            return ""
        return cursor if isinstance(cursor, str) else None

    def _reshaped(self, tool: t.Tool) -> t.Tool | None:
        """Returns a tool in the shape that it has in the gateway, ``None`` if it cannot have that, which is logged."""
        reshape = self._upstream.tools.get(tool.name)
        if reshape is None or tool.name in self.shapes:
            return tool
        try:
            shape = self.shapes[tool.name] = Shape(tool, reshape)
        except (TypeError, ValueError) as error:
            self._refused.add(tool.name)
            log.error(
                "a tool of an upstream is not offered: it cannot be reshaped",
                upstream=self._upstream.name,
                tool=printable(tool.name, _SHOWN),
                error=printable(str(error), _SHOWN),
            )
            return None
        return shape.tool

    def listing(self) -> UpstreamListing:
        """Returns what was read."""
        lock, locked = self._upstream.lock, LOCKED_KINDS.get(self._kind.method)
        if lock is not None and locked is not None and not self.is_full:
            lock.log(lock.missing(locked, self._offered), self._connection.server.negotiated.info.name)
        if self._kind.of is t.Tool:
            for each in self._upstream.tools.keys() - self.entries.keys() - self._refused:
                log.warning(
                    "a tool that is to be reshaped is not listed", upstream=self._upstream.name, tool=each
                )
        ttls = [each for each in self._ttls if each is not None]
        scope: t.CacheScope | None = "private"
        if all(each == "public" for each in self._scopes):
            scope = "public"
        elif all(each is None for each in self._scopes):
            scope = None
        return UpstreamListing(
            self.entries,
            ttl_ms=min(ttls, default=None) if len(ttls) == len(self._ttls) else None,
            cache_scope=scope,
            shapes=self.shapes,
        )


async def _inlined(tool: t.Tool) -> t.Tool:
    # Each may take as long as the reading of many entries.
    await trio.lowlevel.checkpoint()
    return tool_without_references(tool)


def _as_offered(tool: t.Tool) -> t.Tool:
    """Returns a tool that runs as a task only as one that may: the gateway runs the task for who calls it plainly."""
    if tool.execution is None or tool.execution.task_support != "required":
        return tool
    return attrs.evolve(tool, execution=attrs.evolve(tool.execution, task_support="optional"))


def _ttl(value: Any) -> int | None:
    # An integer of a peer may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return round(max(0, min(value, MAX_AGE * 1000)))
