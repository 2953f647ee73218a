"""Checks of what one era has: the handshake, ping and batches of the one, discovery and metadata of the other."""

from __future__ import annotations

from typing import Any

from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import CAPABILITIES, CLIENT_INFO, SUBSCRIPTION_ID, VERSION
from mcp_actors._wire.codec import encode_value
from mcp_actors.cli.inspect.conversation import ServerAnswer, is_reply, make_meta, request_message, shown
from mcp_actors.cli.inspect.http_conversation import VERSION_HEADER, HttpConversation
from mcp_actors.cli.inspect.inspected import NotApplicable, SpokenEra, initialize
from mcp_actors.errors import INVALID_PARAMS, METHOD_NOT_FOUND, HeaderMismatch, UnsupportedVersion

__all__ = [
    "acknowledged_first",
    "batches",
    "discovers",
    "empty_ping",
    "initialize_result",
    "nameless_clients",
    "names_its_versions",
    "needs_capabilities",
    "needs_version",
    "same_version",
    "unknown_version",
    "unsupported_version",
]


# -- Revisions with sessions ---------------------------------------------------------------------------

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
        found.append("its instructions are not text")
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


# -- Revisions without sessions: discovery, metadata of requests, versions, subscriptions --------------

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


async def discovers(spoken: SpokenEra) -> list[str]:
    """``server/discover`` is answered with versions and capabilities."""
    if spoken.handshake.result is None:
        return [f"server/discover was answered by {spoken.handshake.summary()}"]
    said, found = spoken.said, []
    versions = said.get("supportedVersions")
    if not isinstance(versions, list) or not versions or not all(isinstance(each, str) for each in versions):
        found.append(f"the supportedVersions are {shown(versions)}")
    if not isinstance(said.get("capabilities"), dict):
        found.append(f"the capabilities are {shown(said.get('capabilities'))}")
    return found


def _without(spoken: SpokenEra, *keys: str) -> dict[str, Any]:
    return {key: value for key, value in make_meta(spoken.era).items() if key not in keys}


def _refused(answer: ServerAnswer, codes: tuple[int, ...], what: str) -> list[str]:
    if answer.code not in codes:
        return [f"{what} was answered by {answer.summary()}, not by {codes[0]}"]
    if answer.status is not None and answer.status != 400:
        return [f"{what} was refused with HTTP {answer.status}, not 400"]
    return []


async def needs_capabilities(spoken: SpokenEra) -> list[str]:
    """A request without the client's capabilities is refused."""
    answer = await spoken.conversation.ask("server/discover", meta=_without(spoken, CAPABILITIES))
    return _refused(answer, (INVALID_PARAMS,), "a request without clientCapabilities in its _meta")


async def needs_version(spoken: SpokenEra) -> list[str]:
    """A request whose header names a version, and whose body does not, is refused."""
    answer = await spoken.conversation.ask("server/discover", meta=_without(spoken, VERSION))
    # The header then has nothing to match, which is a failure of its own.
    codes = (INVALID_PARAMS, HeaderMismatch.CODE)
    return _refused(answer, codes, "a request without protocolVersion in its _meta")


async def nameless_clients(spoken: SpokenEra) -> list[str]:
    """A request that does not say who sends it is served."""
    answer = await spoken.conversation.ask("server/discover", meta=_without(spoken, CLIENT_INFO))
    if answer.result is None and spoken.handshake.result is not None:
        return [f"a request without clientInfo, which is optional, was answered by {answer.summary()}"]
    return []


async def unsupported_version(spoken: SpokenEra) -> list[str]:
    """A version that does not exist is refused with those that do."""
    meta = {**make_meta(spoken.era), VERSION: NO_VERSION}
    headers = {VERSION_HEADER: NO_VERSION}
    answer = await spoken.conversation.ask("server/discover", meta=meta, headers=headers)
    what = f"the version {NO_VERSION}"
    if found := _refused(answer, (UnsupportedVersion.CODE,), what):
        return found
    data = (answer.error or {}).get("data")
    data = data if isinstance(data, dict) else {}
    supported = data.get("supported")
    if not isinstance(supported, list) or spoken.era.version not in supported:
        found.append(f"the refusal of {what} names as supported {shown(supported)}")
    if data.get("requested") != NO_VERSION:
        found.append(f"the refusal of {what} names as requested {shown(data.get('requested'))}")
    return found


async def names_its_versions(spoken: SpokenEra) -> list[str]:
    """The refusal of ``initialize`` names the versions that the server speaks."""
    if len(spoken.server.spoken) > 1:
        raise NotApplicable("it speaks revisions with sessions too")
    refusals = [
        each
        for each in spoken.server.record.of("legacy")
        if each.method == "initialize" and each.error is not None
    ]
    if not refusals:
        raise NotApplicable("initialize was not refused by an error")
    text = str(refusals[0].error)
    if any(version in text for version in spoken.versions):
        return []
    return [f"initialize was refused without a version that is spoken: {refusals[0].summary()}"]


async def acknowledged_first(spoken: SpokenEra) -> list[str]:
    """A subscription is acknowledged before anything else of it, and with its id."""
    id = spoken.server.record.next_id()
    answer = await spoken.conversation.ask(
        "subscriptions/listen",
        {
            "notifications": {
                "toolsListChanged": True,
                "promptsListChanged": True,
                "resourcesListChanged": True,
            }
        },
        id=id,
        enough=lambda message: _subscription(message) is not None or message.get("method") == ACKNOWLEDGED,
    )
    if answer.code == METHOD_NOT_FOUND:
        raise NotApplicable("it has no subscriptions")
    if not spoken.is_http and answer.error is None:
        await spoken.conversation.notify("notifications/cancelled", {"requestId": id})
    own = [
        each for each in answer.messages if _subscription(each) == id or each.get("method") == ACKNOWLEDGED
    ]
    if not own:
        return [f"subscriptions/listen was answered by {answer.summary()}, and not acknowledged"]
    if own[0].get("method") != ACKNOWLEDGED:
        return [f"the first message of a subscription was {shown(own[0].get('method'))}"]
    if _subscription(own[0]) != id:
        return [f"the subscription {id} was acknowledged as {shown(_subscription(own[0]))}"]
    return []


def _subscription(message: dict[str, Any]) -> object:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(SUBSCRIPTION_ID) if isinstance(meta, dict) else None
