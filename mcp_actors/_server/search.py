"""A list of tools within a budget of tokens: what is beyond it is found by a search.

Hosts put the name, the description and the input schema of each listed tool into every prompt. A list that costs more
than the budget is answered with two tools of this module in place of the others, with those that the program pins, and
with those that the session has called, the last ones first, as far as the budget goes:

================  ====================================================================================================
``search_tools``  returns the names, descriptions and schemas of the tools that fit a description best
``call_tool``     calls one of them; a call by the tool's own name works as well
================  ====================================================================================================

Both see exactly what the caller would be listed: they ask for that list, through all middleware. `call_tool` is turned
into a call of the tool before middleware sees it. Words are weighed by BM25, which is that of SQLite's FTS5.
"""

from __future__ import annotations

import fnmatch
import re
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from mcp_actors._schema.repair import Repair
from mcp_actors._schema.signature import InvalidArguments, read_signature
from mcp_actors._server.context import Context, check_scopes
from mcp_actors._server.failures import failed
from mcp_actors._server.features import Features
from mcp_actors._server.middleware import MOST_PAGES, Around, CallNext, pages_within
from mcp_actors._server.sources import found_in_sources
from mcp_actors._server.tools import RepairedArguments
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import ToolError
from mcp_actors.supervision.arguments import did_you_mean, require_number
from mcp_actors.supervision.logging import log
from mcp_actors.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

__all__ = [
    "CALL_TOOL",
    "SEARCH_TOOLS",
    "ToolIndex",
    "ToolSearch",
    "shown_schema",
    "tokens_of",
    "tokens_of_json",
]

SEARCH_TOOLS, CALL_TOOL = "search_tools", "call_tool"
# Bytes of JSON for one token. Tokenisers of the large models make one of 3.5 to 4.5 bytes of schemas and English.
BYTES_OF_A_TOKEN = 4
# Tools that one search returns at most; a model reads the schemas of all of them.
MOST_FOUND = 20
# Characters and words of a query that are looked at.
LONGEST_QUERY, MOST_WORDS = 1_000, 50
# Tools that are remembered as used for one session, and characters of their names: middleware may answer any name.
MOST_USED, LONGEST_USED = 50, 256
# Pages of a list that are searched where providers have a part of it, which may be without an end, and slow.
MOST_OF_PROVIDERS = 20
# Tools in the index beyond twice those of one caller, after which it is made anew: upstreams list other ones each time.
MOST_STALE = 10_000


def shown_schema(tool: Tool) -> dict[str, Any]:
    """Returns the part of a tool that hosts show models."""
    shown: dict[str, Any] = {"name": tool.name}
    if tool.description:
        shown["description"] = tool.description
    return {**shown, "inputSchema": tool.input_schema}


def tokens_of(tool: Tool) -> int:
    """Returns how many tokens a tool costs in a prompt, as `tokens_of_json`."""
    return tokens_of_json(shown_schema(tool))


def tokens_of_json(tool: Mapping[str, Any]) -> int:
    """Returns how many tokens a tool of a list costs in a prompt: the bytes of what is shown by `BYTES_OF_A_TOKEN`."""
    shown = {word: tool[word] for word in ("name", "description", "inputSchema") if word in tool}
    return -(-len(encode_value(shown)) // BYTES_OF_A_TOKEN)


# -- the index ---------------------------------------------------------------------------------------------------------

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")
# Words of a question that say nothing of a tool.
_STOPPED = frozenset(
    _WORD.findall(
        """
        a an and any are as at be by can could do does for from get got has have how i if in into is
        it its let me my of on one or our please so some that the their them then there these this
        those to up us want was we what when where which who will with would you your
        """
    )
)
# Verbs, and below them nouns, that interfaces and people use for the same. All of a line count as its first word.
_VERBS = """
    create add new open make insert register write put build compose publish prepare
    delete remove erase drop destroy discard throw
    list show enumerate see
    get read fetch retrieve view look
    update edit change modify alter set correct adjust
    search find query lookup locate
    send post deliver dispatch
    start run launch execute trigger begin
    stop halt terminate end kill shut
    cancel abort revoke withdraw
    archive hide
    assign give allocate
    merge join combine
    reply respond answer
    upload attach
    export download save dump
    schedule plan book
    approve accept confirm
    reject decline refuse
    restore recover undo
    move transfer
    copy duplicate clone
    share grant
"""
_NOUNS = """
    user person member people
    picture image photo
    invoice bill
    refund repay reimburse
    customer client buyer
    issue ticket bug
    folder directory
    meeting event appointment
    mail email letter
    comment remark note
    history changelog
"""


def _first_words(lines: str) -> Iterator[tuple[str, str]]:
    """Yields each word of some lines, in its forms, with the first word of its line."""
    for first, *others in map(str.split, lines.strip().splitlines()):
        for word in (first, *others):
            stem = word.removesuffix("e")
            for form in (word, f"{word}s", f"{word}es", f"{stem}ed", f"{stem}ing"):
                yield form, first


_FIRST = dict([*_first_words(_NOUNS), *_first_words(_VERBS)])
_ACTIONS = frozenset(first for _, first in _first_words(_VERBS))
# What the first finds say counts by so much: a tool of the same kind of thing is more likely than one of another.
_FEEDBACK, _FEEDBACK_FROM = 0.8, 2
# A tool whose name has the verb that is asked for gets this part of the best score. Where none has it, or the question
# has no verb, one that reads is likelier than one that makes something, and that likelier than one that takes it away.
_ACTION = 0.5
_LIKELY = {"list": 0.15, "get": 0.15, "search": 0.15, "create": 0.1}


class _Indexed(NamedTuple):
    tool: Tool
    row: int
    tokens: int
    name: frozenset[str]


class ToolIndex:
    """Finds tools by words, and keeps what each costs. It holds those of all callers, and is asked for some of them."""

    def __init__(self) -> None:
        # By the identity of a tool, which lives as long as its entry.
        self._known: dict[int, _Indexed] = {}
        self._begin()

    def __repr__(self) -> str:
        return f"<ToolIndex of {len(self._known)}>"

    def _begin(self) -> None:
        self._known.clear()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name, description, arguments, tokenize='porter unicode61')"
        )

    def tokens(self, tools: Iterable[Tool]) -> int:
        """Returns what tools cost together."""
        return sum(self._of(each).tokens for each in tools)

    def _of(self, tool: Tool) -> _Indexed:
        found = self._known.get(id(tool))
        if found is None:
            name = _words(tool.name, tool.title or "")
            texts = _words(tool.description or ""), _words(*_argument_texts(tool.input_schema))
            values = tuple(map(" ".join, (name, *texts)))
            row = self._connection.execute("INSERT INTO tools VALUES (?, ?, ?)", values).lastrowid or 0
            found = self._known[id(tool)] = _Indexed(tool, row, tokens_of(tool), frozenset(name))
        return found

    def search(self, tools: Sequence[Tool], query: str, limit: int) -> list[Tool]:
        """Returns those of some tools that fit a query best, the best first.

        The names of the first finds are searched for as well, with less weight: a question that calls a thing by
        another name than its tools do finds one of them by its description, and the others by that one.
        """
        if len(self._known) > 2 * len(tools) + MOST_STALE:
            self._begin()
        rows = {(found := self._of(each)).row: found for each in tools}
        wanted = [each for each in _words(query[:LONGEST_QUERY]) if each not in _STOPPED][:MOST_WORDS]
        scores = self._scores(wanted, rows)
        best = sorted(scores, key=lambda row: (-scores[row], row))[:_FEEDBACK_FROM]
        actions = _ACTIONS.intersection(wanted)
        kinds = {word for row in best for word in rows[row].name if word not in _ACTIONS}
        for row, score in self._scores(sorted(kinds), rows).items():
            scores[row] = scores.get(row, 0.0) + _FEEDBACK * score
        top = max(scores.values(), default=0.0)
        is_there = any(not actions.isdisjoint(rows[row].name) for row in best)
        bonus = dict.fromkeys(actions, _ACTION) if is_there else _LIKELY | dict.fromkeys(actions, _ACTION)
        for row in scores:
            scores[row] += top * max((bonus.get(word, 0.0) for word in rows[row].name), default=0.0)
        return [rows[row].tool for row in sorted(scores, key=lambda row: (-scores[row], row))[:limit]]

    def _scores(self, words: Iterable[str], rows: Collection[int]) -> dict[int, float]:
        """The scores of those rows that have any of some words."""
        # In quotation marks nothing is an operator.
        expression = " OR ".join(f'"{each}"' for each in dict.fromkeys(words))
        if not expression:
            return {}
        # A word in the name counts more than one in the description, and that more than one in the arguments.
        ranked = self._connection.execute(
            "SELECT rowid, -bm25(tools, 4.0, 2.0, 0.5) FROM tools WHERE tools MATCH ?", (expression,)
        )
        return {row: score for row, score in ranked if row in rows}


def _for_models(tools: Sequence[Tool]) -> list[Tool]:
    """Returns the tools that models are offered (SEP-1865, Visibility)."""
    return [each for each in tools if "model" in each.visibility]


def _words(*texts: str) -> list[str]:
    found = (each.lower() for text in texts for each in _WORD.findall(_CAMEL.sub(" ", text)))
    return [_FIRST.get(each, each) for each in found]


def _argument_texts(schema: Mapping[str, Any]) -> Iterable[str]:
    properties = schema.get("properties")
    for name, each in properties.items() if isinstance(properties, dict) else ():
        yield str(name)
        if isinstance(each, dict) and isinstance(each.get("description"), str):
            yield each["description"]


# -- the two tools -----------------------------------------------------------------------------------------------------


def _search_tools(
    query: Annotated[str, msgspec.Meta(description="What the tool is to do, in a few words")],
    limit: Annotated[int, msgspec.Meta(description="How many tools to return", ge=1, le=MOST_FOUND)] = 5,
) -> None:
    """Find tools by what they do. More tools exist than are listed here. Returns names, descriptions and schemas."""


def _call_tool(
    name: Annotated[str, msgspec.Meta(description="The name of the tool, as search_tools returned it")],
    arguments: Annotated[
        Mapping[str, Any], msgspec.Meta(description="Its arguments, by its inputSchema")
    ] = {},
) -> None:
    """Call a tool that search_tools has found."""


class _OwnTool:
    """One of the two tools: as clients see it, and the check of its arguments."""

    def __init__(self, name: str, function: Callable[..., None], features: Features, *, reads: bool) -> None:
        signature = read_signature(function, injected=Context)
        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False) if reads else None
        self.tool = Tool(name, signature.input_schema, description=signature.description, annotations=hints)
        self._bind = signature.bind
        self._repair = RepairedArguments(
            name, Repair(signature.input_schema), signature.bind, features.tools.repairs
        )

    def bound(self, arguments: Any) -> dict[str, Any]:
        """Returns the arguments of a call, repaired if need be; raises `InvalidArguments`."""
        given = arguments if isinstance(arguments, dict) else {}
        try:
            return self._bind(given)
        except InvalidArguments:
            repaired = self._repair(given)
            if repaired is None:
                raise
            return self._bind(repaired.arguments)


class _UsedTools:
    """The tools that a session has called, the last one last."""

    def __init__(self) -> None:
        self.names: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> None:
        self.names[name] = None
        self.names.move_to_end(name)
        if len(self.names) > MOST_USED:
            self.names.popitem(last=False)


class ToolSearch:
    """Keeps the list of tools of a server within a budget.

    Args:
        features: Those of the server.
        budget: Tokens.
        pinned: Patterns of names that are always listed, as of `fnmatch`.

    Raises:
        TypeError: ``budget`` is no number.
        ValueError: It is less than 1, or ``pinned`` is a text.
        RuntimeError: This Python has SQLite without FTS5.
    """

    def __init__(self, features: Features, budget: int, pinned: Collection[str]) -> None:
        require_number("budget", budget, 1, float("inf"), whole=True)
        if isinstance(pinned, str):
            raise ValueError(f"pinned={pinned!r}: write a list of names, such as [{pinned!r}]")
        self._features = features
        self._budget = budget
        self._pinned = tuple(pinned)
        try:
            self._index = ToolIndex()
        except sqlite3.OperationalError as error:
            raise RuntimeError(f"budget= needs SQLite with FTS5, which this Python lacks: {error}") from None
        self._own = {
            SEARCH_TOOLS: _OwnTool(SEARCH_TOOLS, _search_tools, features, reads=True),
            CALL_TOOL: _OwnTool(CALL_TOOL, _call_tool, features, reads=False),
        }
        self._warned: set[str] = set()
        for method, function in (("tools/list", self._list), ("tools/call", self._call)):
            # Outside of all others, so that they see what is called.
            features.around.setdefault(method, []).insert(0, Around(function, lambda params: True))
        features.layered = True

    def __repr__(self) -> str:
        return f"<ToolSearch budget={self._budget} {self._index!r}>"

    async def _list(self, ctx: Context, call_next: CallNext) -> Any:
        tools = await self._seen(ctx)
        offered = _for_models(tools)
        if self._index.tokens(offered) <= self._budget:
            return await call_next()
        # Hosts have to see what pages may call.
        hidden = [each for each in tools if "model" not in each.visibility]
        return ListToolsResult([*self._shown(ctx, offered), *hidden], cache_scope="private")

    async def _seen(self, ctx: Context) -> list[Tool]:
        """Returns the tools that the caller would be listed, page by page; of providers not more than can be read."""
        most = MOST_OF_PROVIDERS if self._features.tools.sources else MOST_PAGES
        pages = await pages_within(self._features, ctx, "tools/list", most)
        found: list[Tool] = [each for page in pages for each in page.tools]
        for each in found:
            if each.name in self._own and each.name not in self._warned:
                self._warned.add(each.name)
                log.warning("a tool is not listed: the search has its name", tool=each.name)
        return [each for each in found if each.name not in self._own]

    def _shown(self, ctx: Context, tools: Sequence[Tool]) -> list[Tool]:
        shown = [each.tool for each in self._own.values()]
        shown += [each for each in tools if any(fnmatch.fnmatchcase(each.name, one) for one in self._pinned)]
        left = self._budget - self._index.tokens(shown)
        by_name = {each.name: each for each in tools}
        session = ctx.session
        used = () if session is None else tuple(session.get(_UsedTools).names)
        pinned = {each.name for each in shown}
        for name in reversed(used):
            tool = by_name.get(name)
            if tool is None or name in pinned:
                continue
            left -= self._index.tokens([tool])
            if left < 0:
                break
            shown.append(tool)
        return shown

    async def _call(self, ctx: Context, call_next: CallNext) -> Any:
        name = ctx.params.get("name")
        own = self._own.get(name) if isinstance(name, str) else None
        if own is None:
            result = await call_next()
            self._note(ctx, name)
            return result
        try:
            arguments = own.bound(ctx.params.get("arguments"))
        except InvalidArguments as error:
            return failed(error)
        if name == SEARCH_TOOLS:
            return self._found(
                _for_models(await self._seen(ctx)), arguments["query"], arguments.get("limit", 5)
            )
        return await self._call_found(ctx, call_next, arguments["name"], arguments.get("arguments", {}))

    def _note(self, ctx: Context, name: Any) -> None:
        session = ctx.session
        if session is not None and isinstance(name, str) and len(name) <= LONGEST_USED:
            session.get(_UsedTools).add(name)

    def _found(self, tools: Sequence[Tool], query: str, limit: int) -> CallToolResult:
        found = {"tools": [shown_schema(each) for each in self._index.search(tools, query, limit)]}
        text = encode_value(found).decode()
        if not found["tools"]:
            text = f"none of the {len(tools)} tools has a word of this: describe it in other words"
        return CallToolResult([TextContent(text)], found)

    async def _provided(self, ctx: Context, name: str) -> Tool | None:
        """Returns a tool of this server or of one of its providers; ``None`` without one, which the call reports."""
        tools = self._features.tools
        entry = tools.find(ctx, name) or await found_in_sources(tools, ctx, "tool", name)
        return None if entry is None else entry.tool

    async def _call_found(
        self, ctx: Context, call_next: CallNext, name: str, arguments: dict[str, Any]
    ) -> Any:
        seen: set[str] = set()
        if self._features.tools.sources:
            # A provider knows its own, also those that are beyond what is read of it.
            tool = await self._provided(ctx, name)
            is_offered = tool is None or "model" in tool.visibility
        else:
            seen = {each.name for each in _for_models(await self._seen(ctx))}
            is_offered = name in seen
        if not is_offered:
            hint = did_you_mean(name, seen) or "; search_tools finds those that there are"
            return failed(ToolError(f"there is no tool {name!r:.200}{hint}"))
        check_scopes(ctx.call, ctx._scope, self._features.tools.scopes_of(name))
        params = {**ctx.params, "name": name, "arguments": arguments}
        inner = Context(ctx.call, params, ctx._scope, ctx._kept, ctx._asked, ctx._logger)
        result = await call_next(inner)
        self._note(ctx, name)
        return result
