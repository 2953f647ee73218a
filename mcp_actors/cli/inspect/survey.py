"""The survey of a server: the eras and revisions that it speaks, what it offers, and how fast it answers.

Speed is measured with one request after the other, and with several at once, bounded in number and in time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import LATEST_MODERN, MODERN
from mcp_actors.cli.inspect.conversation import (
    Conversation,
    ServerAnswer,
    StreamConversation,
    request_message,
    same_id,
)
from mcp_actors.cli.inspect.inspected import LISTS, InspectedServer, ListedItems, SpokenEra, initialize
from mcp_actors.errors import (
    METHOD_NOT_FOUND,
    HeaderMismatch,
    McpError,
    MissingCapability,
    UnsupportedVersion,
)
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.task_kinds import INSPECTION_REQUEST

__all__ = ["Latency", "list_everything", "measure", "survey"]


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


# -- Speed ---------------------------------------------------------------------------------------------

# Requests one after the other, and seconds for them.
ALONE, ALONE_TIME = 30, 3.0
# Requests for each that is in flight at once, and seconds for all of them.
ROUNDS, TOGETHER_TIME = 12, 5.0
# The share of the bytes of an inspection that each measurement may use, of which there are at most eight: the rules
# come afterwards, and need the rest.
SHARE = 32


@attrs.frozen(kw_only=True)
class Latency:
    """The speed at which one method was answered."""

    method: str
    in_flight: int
    """Requests that were in flight at once."""
    answered: int
    failed: int
    """Requests that were refused or not answered."""
    median_ms: float
    p99_ms: float
    """The 99th percentile, in milliseconds: of fewer than a hundred requests, the slowest."""
    per_second: float


async def measure(spoken: SpokenEra, in_flight: int) -> list[Latency]:
    """Measures the cheapest request, and the list of tools where there is one.

    Args:
        spoken: The era that is measured.
        in_flight: How many requests are sent at once, beside the measurement with one.

    Raises:
        InspectionEnded: A bound of the inspection was reached.
    """
    methods = [spoken.era.client.ping_method]
    methods += ["tools/list"] if spoken.declares("tools") else []
    found = []
    record = spoken.server.record
    for method in methods:
        before = record.bytes
        alone = await _one_by_one(spoken, method)
        found.append(alone)
        # Long answers are not requested at once: what is on the way cannot be taken back.
        if (
            in_flight > 1
            and alone.answered
            and (record.bytes - before) // alone.answered * in_flight <= _room(spoken)
        ):
            found.append(await _together(spoken, method, in_flight))
    return found


def _room(spoken: SpokenEra) -> int:
    return spoken.server.record.bounds.total_bytes // SHARE


def _summary(method: str, in_flight: int, seconds: Sequence[float], failed: int, total: float) -> Latency:
    ordered = sorted(seconds)
    rank = max(0, math.ceil(0.99 * len(ordered)) - 1)
    return Latency(
        method=method,
        in_flight=in_flight,
        answered=len(ordered),
        failed=failed,
        median_ms=round(1000 * ordered[len(ordered) // 2], 3) if ordered else 0.0,
        p99_ms=round(1000 * ordered[rank], 3) if ordered else 0.0,
        per_second=round(len(ordered) / total, 1) if total > 0 else 0.0,
    )


async def _one_by_one(spoken: SpokenEra, method: str) -> Latency:
    seconds: list[float] = []
    failed = 0
    record = spoken.server.record
    began, most = trio.current_time(), record.bytes + _room(spoken)
    while len(seconds) + failed < ALONE and trio.current_time() - began < ALONE_TIME and record.bytes <= most:
        answer = await spoken.conversation.ask(method, keep=False)
        if answer.result is None:
            failed += 1
            if answer.gone is not None:
                break
        else:
            seconds.append(answer.seconds)
    return _summary(method, 1, seconds, failed, trio.current_time() - began)


async def _together(spoken: SpokenEra, method: str, in_flight: int) -> Latency:
    began = trio.current_time()
    if isinstance(spoken.conversation, StreamConversation):
        seconds, failed = await _over_channel(spoken, spoken.conversation, method, in_flight)
    else:
        seconds, failed = await _over_http(spoken, method, in_flight)
    return _summary(method, in_flight, seconds, failed, trio.current_time() - began)


async def _over_channel(
    spoken: SpokenEra, conversation: StreamConversation, method: str, in_flight: int
) -> tuple[list[float], int]:
    """Keeps ``in_flight`` requests on the way, in one task: each answer lets the next request go."""
    sent: dict[int | str, float] = {}
    seconds: list[float] = []
    failed, left = 0, in_flight * ROUNDS

    async def send_one() -> None:
        nonlocal left
        left -= 1
        id = spoken.server.record.next_id()
        sent[id] = trio.current_time()
        await conversation.send_message(request_message(spoken.era, id, method, {}, None), method, id)

    record = spoken.server.record
    deadline, most = trio.current_time() + TOGETHER_TIME, record.bytes + _room(spoken)
    for _ in range(in_flight):
        await send_one()
    while sent and not conversation.has_ended:
        messages = await conversation.next_messages(deadline)
        if not messages and trio.current_time() >= deadline + record.bounds.answer_time:
            break
        for message in messages:
            own = next((id for id in (message.get("id"),) if isinstance(id, int | str) and id in sent), None)
            if own is None or not same_id(own, message.get("id")) or "method" in message:
                continue
            waited = trio.current_time() - sent.pop(own)
            if isinstance(message.get("result"), dict):
                seconds.append(waited)
            else:
                failed += 1
            if left and trio.current_time() < deadline and record.bytes <= most:
                await send_one()
    return seconds, failed + len(sent)


async def _over_http(spoken: SpokenEra, method: str, in_flight: int) -> tuple[list[float], int]:
    seconds: list[float] = []
    failed = 0
    ended: list[McpError] = []
    record = spoken.server.record
    deadline, most = trio.current_time() + TOGETHER_TIME, record.bytes + _room(spoken)

    async def ask_again_and_again(nursery: trio.Nursery) -> None:
        nonlocal failed
        try:
            for _ in range(ROUNDS):
                if trio.current_time() >= deadline or record.bytes > most:
                    return
                answer = await spoken.conversation.ask(method, keep=False)
                if answer.result is None:
                    failed += 1
                    return
                seconds.append(answer.seconds)
        except McpError as error:
            # A bound was reached, or a login is needed, which ends more than this task.
            ended.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            start(nursery, INSPECTION_REQUEST, ask_again_and_again, nursery, about=method)
    if ended:
        raise ended[0]
    return seconds, failed
