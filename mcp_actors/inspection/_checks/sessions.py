"""Checks of the revisions with sessions: the handshake, ping, batches."""

from __future__ import annotations

from mcp_actors._eras.legacy.eras import LEGACY
from mcp_actors._wire.codec import encode_value
from mcp_actors.inspection.answers import shown
from mcp_actors.inspection.conversation import is_reply, request_message
from mcp_actors.inspection.http_conversation import HttpConversation
from mcp_actors.inspection.inspected import SpokenEra, initialize
from mcp_actors.inspection.rule import NotApplicable

__all__ = ["batches", "empty_ping", "initialize_result", "same_version", "unknown_version"]

NO_VERSION = "1999-12-31"


async def initialize_result(spoken: SpokenEra) -> list[str]:
    """The result of ``initialize`` has a version, capabilities, and the server's name and version."""
    said, found = spoken.said, []
    info = said.get("serverInfo")
    if not isinstance(said.get("protocolVersion"), str):
        found.append(f"its protocolVersion is {shown(said.get('protocolVersion'))}")
    if not isinstance(said.get("capabilities"), dict):
        found.append(f"its capabilities are {shown(said.get('capabilities'))}")
    if not isinstance(info, dict) or not all(isinstance(info.get(each), str) for each in ("name", "version")):
        found.append(f"its serverInfo is {shown(info)}")
    if not isinstance(said.get("instructions", ""), str):
        found.append("its instructions are no text")
    return [f"the result of initialize: {each}" for each in found]


async def same_version(spoken: SpokenEra) -> list[str]:
    """A version that the server has named is answered with the same."""
    answered = spoken.negotiated
    return [
        f"initialize in {named}, which it names itself, was answered with {shown(answered.get(named))}"
        for named in spoken.versions
        if answered.get(named) != named
    ]


async def unknown_version(spoken: SpokenEra) -> list[str]:
    """A version that does not exist is answered with another one, or refused with the versions that do."""
    async with spoken.server.fresh(spoken.era) as another:
        answer = await initialize(another, spoken.era, NO_VERSION)
    version = (answer.result or {}).get("protocolVersion")
    if version == NO_VERSION:
        return [f"initialize in {NO_VERSION}, which does not exist, was answered with the same"]
    data = (answer.error or {}).get("data")
    if version is None and not (isinstance(data, dict) and data.get("supported")):
        return [f"initialize in {NO_VERSION}, which does not exist, was answered by {answer.summary()}"]
    return []


async def empty_ping(spoken: SpokenEra) -> list[str]:
    """A ping is answered with an empty result."""
    answer = await spoken.conversation.ask("ping")
    if answer.result is None:
        return [f"ping was answered by {answer.summary()}"]
    more = [shown(each) for each in answer.result if each != "_meta"]
    return [f"the result of ping has members: {', '.join(more)}"] if more else []


async def batches(spoken: SpokenEra) -> list[str]:
    """Requests in a batch are all answered, in the one revision that has batches."""
    version = next(each for each in LEGACY.values() if each.batches)
    if version.version not in spoken.versions:
        raise NotApplicable(f"it does not speak {version.version}")
    async with spoken.server.fresh(version) as another:
        await initialize(another, version)
        ids = tuple(spoken.server.record.next_id() for _ in range(2))
        data = encode_value([request_message(version, id, "ping", {}, None) for id in ids])
        answer = await another.send(data, ids)
        if isinstance(another, HttpConversation) and answer.reply is None:
            answered = {each.get("id") for each in answer.messages if "result" in each}
        else:
            answered = {each.get("id") for each in answer.messages if is_reply(each) and "result" in each}
    missing = [id for id in ids if id not in answered]
    return (
        [f"of two pings in a batch {len(missing)} were not answered: {answer.summary()}"] if missing else []
    )
