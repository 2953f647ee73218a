"""The server under inspection, and the form of a rule that judges it.

A rule is a sentence, its place in the specification, and a function that finds what violates it in one era of a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Literal

import attrs

from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy import REVISIONS
from mcp_actors._eras.modern import LATEST_MODERN, SERVER_INFO
from mcp_actors.abc import ClientTransport, HttpRequests, HttpRequestTransport
from mcp_actors.auth.urls import is_loopback
from mcp_actors.cli.inspect.conversation import (
    CLIENT_INFO,
    Conversation,
    Record,
    ServerAnswer,
    StreamConversation,
)
from mcp_actors.cli.inspect.http_conversation import SESSION_HEADER, HttpConversation
from mcp_actors.errors import McpError

__all__ = [
    "LISTS",
    "Check",
    "InspectedServer",
    "ListedItems",
    "NotApplicable",
    "Rule",
    "Severity",
    "Source",
    "SpokenEra",
    "first",
    "initialize",
    "latest",
    "modern",
    "second",
    "third",
]


# -- The server: how it is reached, and what it has said of itself in each era that it speaks ----------

LISTS = {
    "tools": ("tools/list", "tools"),
    "resources": ("resources/list", "resources"),
    "resource templates": ("resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts/list", "prompts"),
}
"""What can be listed: the method, and the member of its result. The capability is the method's first word."""


@attrs.define
class ListedItems:
    """All pages of one list."""

    answers: list[ServerAnswer] = attrs.field(factory=list)
    items: list[Any] = attrs.field(factory=list)
    size: int = 0
    """Bytes of all pages."""
    stopped: str | None = None
    """Why not everything was listed."""


@attrs.define(eq=False)
class SpokenEra:
    """An era that the server speaks, with the revision that is inspected."""

    server: InspectedServer
    era: Era
    conversation: Conversation
    handshake: ServerAnswer
    versions: tuple[str, ...] = ()
    """The revisions of this era that it is known to speak, oldest first."""
    negotiated: dict[str, str] = attrs.field(factory=dict)
    """What ``initialize`` was answered with, by the version that it asked for."""
    lists: dict[str, ListedItems] = attrs.field(factory=dict)
    calls: dict[str, ServerAnswer] = attrs.field(factory=dict)
    """The answers of tools that were called, by name."""

    @property
    def is_http(self) -> bool:
        """Whether it is spoken by single HTTP requests."""
        return self.conversation.is_http

    @property
    def answers(self) -> list[ServerAnswer]:
        """All answers of this era."""
        return self.server.record.of(self.era.name)

    @property
    def said(self) -> Mapping[str, Any]:
        """The result of the handshake: that of ``initialize`` or ``server/discover``; empty without one."""
        return self.handshake.result or {}

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The capabilities that were declared."""
        found = self.said.get("capabilities")
        return found if isinstance(found, dict) else {}

    def server_info(self) -> Mapping[str, Any]:
        """Returns the name and version of the server, as far as they are known."""
        meta = self.said.get("_meta")
        found = self.said.get("serverInfo") or (meta.get(SERVER_INFO) if isinstance(meta, dict) else None)
        return found if isinstance(found, dict) else {}

    def declares(self, name: str) -> bool:
        """Whether a capability is declared, by its name up to the first slash or space."""
        first = name.partition("/")[0].partition(" ")[0].rstrip("s")
        return any(
            each.rstrip("s") == first and value is not None for each, value in self.capabilities.items()
        )


class InspectedServer:
    """The way to a server, the conversations with it, and all that it has sent.

    Args:
        transport: Reaches the server. One that is a `~mcp_actors.abc.HttpRequestTransport` is used for single requests.
        record: Takes all answers.
        url: The URL of the server, if it has one.
        bare: Reaches the same server without credentials, where ``transport`` has some.
    """

    def __init__(
        self,
        transport: ClientTransport,
        record: Record,
        *,
        url: str | None = None,
        bare: ClientTransport | None = None,
    ) -> None:
        self.record = record
        self.url = url
        self.spoken: list[SpokenEra] = []
        self.refusing: SpokenEra | None = None
        """The server without credentials, if it asks for some; its handshake has the status 401 or 403."""
        self.bare = bare
        self.requests: HttpRequests | None = None
        self.is_http_sse = False
        """Whether it is reached by HTTP+SSE, the binding of the first revision."""
        self._transport = transport
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"<InspectedServer {self._transport!r}, {', '.join(e.era.name for e in self.spoken) or 'nothing'}>"

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[None]:
        """Keeps everything that is opened until the end of the block."""
        async with self._stack:
            if isinstance(self._transport, HttpRequestTransport):
                self.requests = await self._stack.enter_async_context(self._transport.open_requests())
            yield

    @property
    def is_local(self) -> bool:
        """Whether the server is reached by a loopback address of this machine."""
        return self.url is not None and is_loopback(self.url)

    async def open_bare(self, era: Era) -> Conversation | None:
        """Opens a conversation without credentials, where there are some; ``None`` otherwise."""
        if not isinstance(self.bare, HttpRequestTransport):
            return None
        requests = await self._stack.enter_async_context(self.bare.open_requests())
        return HttpConversation(requests, era, self.record)

    def without_single_requests(self) -> None:
        """Uses the channel of the transport from now on: of HTTP the server speaks the oldest binding only."""
        self.requests = None
        self.is_http_sse = True

    async def open(self, era: Era) -> Conversation:
        """Opens a conversation for the length of the inspection. Must not be called below a cancel scope of a rule.

        Raises:
            ConnectFailed: The server cannot be reached.
            InspectionEnded: There were too many connections.
        """
        return await self._stack.enter_async_context(self.fresh(era))

    @asynccontextmanager
    async def fresh(self, era: Era) -> AsyncIterator[Conversation]:
        """Opens a conversation for the length of a block; nothing is sent yet. Raises as `open` does."""
        if self.requests is not None:
            conversation = HttpConversation(self.requests, era, self.record)
            try:
                yield conversation
            finally:
                await _end_session(conversation)
            return
        self.record.count_connection()
        async with self._transport.connect() as channel:
            yield StreamConversation(channel, era, self.record)

    async def renew(self, spoken: SpokenEra) -> None:
        """Opens the conversation of an era again if it has ended. Raises as `open` does."""
        if spoken.conversation.has_ended:
            spoken.conversation = await self.open(spoken.era)
            if not spoken.era.asks_by_retry:
                await initialize(spoken.conversation, spoken.era)


async def initialize(conversation: Conversation, era: Era, version: str | None = None) -> ServerAnswer:
    """Begins a session, and confirms it where the answer names the revision of the conversation.

    Args:
        conversation: A new one.
        era: The revision to ask for.
        version: Another text to ask for in its place.
    """
    params = {"protocolVersion": version or era.version, "capabilities": {}, "clientInfo": CLIENT_INFO}
    answer = await conversation.ask("initialize", params)
    if isinstance(conversation, HttpConversation):
        conversation.session = answer.headers.get(SESSION_HEADER)
        conversation.initialized = True
    if answer.result is not None and answer.result.get("protocolVersion") == era.version:
        await conversation.notify("notifications/initialized")
    return answer


async def _end_session(conversation: HttpConversation) -> None:
    """Frees a session, as clients should (MCP 2025-11-25, Transports, Session Management)."""
    if conversation.session is not None:
        headers = conversation.headers(None, {})
        # A server that has sent too much, or is gone, frees it by itself.
        with suppress(McpError):
            await conversation.exchange("DELETE", headers, None, "DELETE", keep=False)
        conversation.session = None


# -- Rules ---------------------------------------------------------------------------------------------

Severity = Literal["error", "warning", "note"]
"""Whether the specification says MUST (or its schema demands it), or SHOULD."""
Binding = Literal["any", "http", "stream"]


class NotApplicable(Exception):
    """A rule says nothing about this server, for the reason that is the text."""


Check = Callable[[SpokenEra], Awaitable[list[str]]]
"""Returns what a server does against a rule, one sentence for each; empty if it follows it.

Raises `NotApplicable` where the rule says nothing about the server.
"""


@attrs.frozen
class Source:
    """The place of a rule: the oldest revision that has it in these words, the page and the section."""

    revision: str
    page: str
    section: str

    def __str__(self) -> str:
        return f"MCP {self.revision}, {self.page}, {self.section}"


@attrs.frozen(kw_only=True)
class Rule:
    """A rule. It is checked in each era for which it has a source."""

    name: str
    severity: Severity
    text: str
    """What the specification demands, in one sentence."""
    check: Check
    legacy: Source | None = None
    modern: Source | None = None
    binding: Binding = "any"
    """Where it exists: everywhere, over single HTTP requests, or over a channel."""
    calls: bool = False
    """Whether the check calls tools, which it may only where that was allowed."""
    access: bool = False
    """Whether it is about the refusal of a request without credentials."""
    disruptive: bool = False
    """Whether a server that breaks the rule may crash on it, so that all other rules are checked before."""
    last: bool = False
    """Whether it judges all answers of the inspection, and so comes after all rules that send requests."""

    def source_for(self, spoken: SpokenEra) -> Source | None:
        """Returns the place of the rule for an era; ``None`` if the rule is not one of the inspected revision."""
        if spoken.era.asks_by_retry:
            return self.modern
        source = self.legacy
        if source is None or REVISIONS.index(source.revision) > REVISIONS.index(spoken.era.version):
            return None
        return source


def first(page: str, section: str) -> Source:
    """A place in the first revision, whose rule the later ones with sessions have too."""
    return Source(REVISIONS[0], page, section)


def second(page: str, section: str) -> Source:
    """As `first`, of the second revision."""
    return Source(REVISIONS[1], page, section)


def third(page: str, section: str) -> Source:
    """As `first`, of the third revision."""
    return Source(REVISIONS[2], page, section)


def latest(page: str, section: str) -> Source:
    """A place in the latest revision with sessions."""
    return Source(REVISIONS[-1], page, section)


def modern(page: str, section: str) -> Source:
    """A place in the revision without sessions."""
    return Source(LATEST_MODERN.version, page, section)
