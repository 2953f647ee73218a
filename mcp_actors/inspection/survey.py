"""Finds out which eras and revisions a server speaks, and lists what it offers."""

from __future__ import annotations

from typing import Any

from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._eras.modern.eras import LATEST_MODERN, MODERN
from mcp_actors.errors import METHOD_NOT_FOUND, HeaderMismatch, MissingCapability, UnsupportedVersion
from mcp_actors.inspection.answers import ServerAnswer
from mcp_actors.inspection.conversation import Conversation
from mcp_actors.inspection.inspected import LISTS, InspectedServer, ListedItems, SpokenEra, initialize

__all__ = ["list_everything", "survey"]

_MODERN_CODES = (HeaderMismatch.CODE, MissingCapability.CODE, UnsupportedVersion.CODE)
_REFUSED = (401, 403)


async def survey(server: InspectedServer) -> None:
    """Finds the eras of a server, and keeps a conversation in each.

    MCP 2026-07-28, Versioning and Compatibility, Backward Compatibility.

    Raises:
        ConnectFailed: The server cannot be reached.
        AuthorizationError: A login is needed.
        InspectionEnded: A bound was reached.
    """
    bare = await server.open_bare(LATEST_MODERN)
    if bare is not None:
        _note_refusal(server, bare, await bare.ask("server/discover", keep=False))
    if await _find_modern(server):
        await _find_legacy(server)
    if not server.spoken and server.refusing is None and server.requests is not None:
        # HTTP+SSE, the binding of the first revision: its channel finds the place to post to.
        server.without_single_requests()
        await _find_legacy(server)


def _note_refusal(server: InspectedServer, conversation: Conversation, answer: ServerAnswer) -> bool:
    """Notes that a server asks for authorization, and returns whether it does."""
    if answer.status not in _REFUSED:
        return False
    if server.refusing is None:
        server.refusing = SpokenEra(server, conversation.era, conversation, answer)
    return True


async def _find_modern(server: InspectedServer) -> bool:
    """Returns whether it is worth looking for revisions with sessions."""
    conversation = await server.open(LATEST_MODERN)
    answer = await conversation.ask("server/discover")
    if _note_refusal(server, conversation, answer):
        return False
    if answer.code == UnsupportedVersion.CODE:
        named = _newest((answer.error or {}).get("data"))
        if named is not None:
            conversation.era = named
            answer = await conversation.ask("server/discover")
    elif answer.code == METHOD_NOT_FOUND:
        listed = await conversation.ask("tools/list")
        if listed.result is None or "resultType" not in listed.result:
            return True
    elif answer.code not in _MODERN_CODES and not _names_modern(answer):
        return True
    named_versions = (answer.result or {}).get("supportedVersions")
    versions = tuple(each for each in MODERN if isinstance(named_versions, list) and each in named_versions)
    server.spoken.append(
        SpokenEra(server, conversation.era, conversation, answer, versions or (conversation.era.version,))
    )
    return True


def _names_modern(answer: ServerAnswer) -> bool:
    named = (answer.result or {}).get("supportedVersions")
    return isinstance(named, list) and any(each in MODERN for each in named if isinstance(each, str))


def _newest(data: Any) -> Era | None:
    supported = data.get("supported") if isinstance(data, dict) else None
    if not isinstance(supported, list):
        return None
    return next((era for version, era in reversed(list(MODERN.items())) if version in supported), None)


async def _find_legacy(server: InspectedServer) -> None:
    answered: dict[str, str] = {}
    spoken: SpokenEra | None = None
    for era in reversed(list(LEGACY.values())):
        if spoken is None:
            conversation = await server.open(era)
            answer = await initialize(conversation, era)
            version = (answer.result or {}).get("protocolVersion")
            if _note_refusal(server, conversation, answer):
                return
            if not isinstance(version, str):
                if answer.gone is not None:
                    return
                continue
            if version in LEGACY and version != era.version:
                conversation.era = LEGACY[version]
                await conversation.notify("notifications/initialized")
            spoken = SpokenEra(server, conversation.era, conversation, answer)
        else:
            async with server.fresh(era) as another:
                answer = await initialize(another, era)
            version = (answer.result or {}).get("protocolVersion")
        if isinstance(version, str):
            answered[era.version] = version
    if spoken is not None:
        spoken.negotiated = answered
        spoken.versions = tuple(each for each in LEGACY if each in answered.values())
        server.spoken.append(spoken)


async def list_everything(spoken: SpokenEra) -> None:
    """Asks for every page of every list whose capability is declared.

    Raises:
        InspectionEnded: A bound was reached.
    """
    for name, (method, member) in LISTS.items():
        if spoken.declares(method):
            spoken.lists[name] = await _list(spoken, method, member)


async def _list(spoken: SpokenEra, method: str, member: str) -> ListedItems:
    bounds = spoken.server.record.bounds
    found, cursors = ListedItems(), set[str]()
    cursor: str | None = None
    while True:
        answer = await spoken.conversation.ask(method, {} if cursor is None else {"cursor": cursor})
        found.answers.append(answer)
        found.size += answer.size
        items = (answer.result or {}).get(member)
        if not isinstance(items, list):
            found.stopped = answer.summary()
            return found
        found.items += items[: bounds.items - len(found.items)]
        cursor = (answer.result or {}).get("nextCursor")
        if not isinstance(cursor, str):
            return found
        if cursor in cursors:
            found.stopped = "a cursor came twice, so that the pages would never end"
        elif len(found.answers) >= bounds.pages or len(found.items) >= bounds.items:
            found.stopped = f"there are more than {len(found.answers)} pages"
        cursors.add(cursor)
        if found.stopped is not None:
            return found
