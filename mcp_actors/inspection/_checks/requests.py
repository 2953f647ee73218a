"""Checks by requests that are the same in both eras: ids, unknown methods and targets, malformed messages."""

from __future__ import annotations

from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR, ResourceNotFound
from mcp_actors.inspection.answers import shown
from mcp_actors.inspection.conversation import is_reply, request_message
from mcp_actors.inspection.inspected import SpokenEra
from mcp_actors.inspection.rule import NotApplicable

__all__ = [
    "bad_json_refused",
    "ids_kept",
    "notifications_unanswered",
    "unknown_method",
    "unknown_prompt",
    "unknown_resource",
    "wrong_log_level",
]

NO_METHOD = "mcp-actors-inspect/no-such-method"
NO_URI = "mcp-actors-inspect://nowhere/no-such-resource"
NO_NAME = "mcp-actors-inspect-no-such-name"
NO_ID = "mcp-actors-inspect-no-such-request"


def cheapest(spoken: SpokenEra) -> str:
    """Returns the request that every server of an era answers: ``ping`` or ``server/discover``."""
    return spoken.era.client.ping_method


async def ids_kept(spoken: SpokenEra) -> list[str]:
    """An answer has the id of its request, with the same JSON type."""
    found = []
    for id in (f"inspect-{spoken.server.record.next_id()}", spoken.server.record.next_id(), 0):
        if id == 0 and not spoken.era.asks_by_retry and not spoken.is_http:
            # Within a session no id may come twice, and this conversation has used many.
            id = spoken.server.record.next_id() + 1_000_000
        answer = await spoken.conversation.ask(cheapest(spoken), id=id)
        if answer.reply is None or answer.reply.get("id") != id:
            others = [shown(each.get("id")) for each in answer.messages if is_reply(each)]
            said = f"an answer with the id {others[0]}" if others else answer.summary()
            found.append(f"{cheapest(spoken)} with the id {id!r} got {said}")
    return found


async def unknown_method(spoken: SpokenEra) -> list[str]:
    """A method that does not exist is refused as such; over HTTP without sessions with status 404 too."""
    answer = await spoken.conversation.ask(NO_METHOD)
    if answer.code != METHOD_NOT_FOUND:
        return [f"a method that does not exist was answered by {answer.summary()}"]
    if spoken.era.asks_by_retry and spoken.is_http and answer.status != 404:
        return [f"the error {METHOD_NOT_FOUND} came with HTTP {answer.status}"]
    return []


async def unknown_resource(spoken: SpokenEra) -> list[str]:
    """A resource that does not exist is refused, by the code of the revision."""
    if not spoken.declares("resources"):
        raise NotApplicable("it declares no resources")
    wanted = INVALID_PARAMS if spoken.era.asks_by_retry else ResourceNotFound.CODE
    answer = await spoken.conversation.ask("resources/read", {"uri": NO_URI})
    contents = (answer.result or {}).get("contents")
    if isinstance(contents, list) and contents:
        raise NotApplicable("it has a resource for every URI")
    if answer.code != wanted:
        return [f"a resource that does not exist was answered by {answer.summary()}, in place of {wanted}"]
    return []


async def unknown_prompt(spoken: SpokenEra) -> list[str]:
    """A prompt that does not exist is refused as a wrong parameter."""
    if not spoken.declares("prompts"):
        raise NotApplicable("it declares no prompts")
    answer = await spoken.conversation.ask("prompts/get", {"name": NO_NAME})
    if answer.code != INVALID_PARAMS:
        return [f"a prompt that does not exist was answered by {answer.summary()}"]
    return []


async def wrong_log_level(spoken: SpokenEra) -> list[str]:
    """A log level that does not exist is refused as a wrong parameter."""
    if not spoken.declares("logging"):
        raise NotApplicable("it declares no logging")
    if spoken.era.client.log_level_method is None:
        meta = spoken.era.client.request_meta(
            spoken.era.version, {}, {"name": "inspect", "version": "1"}, "loud"
        )
        answer = await spoken.conversation.ask(cheapest(spoken), meta=meta)
    else:
        answer = await spoken.conversation.ask(spoken.era.client.log_level_method, {"level": "loud"})
    if answer.code != INVALID_PARAMS:
        return [f'the log level "loud" was answered by {answer.summary()}']
    return []


async def notifications_unanswered(spoken: SpokenEra) -> list[str]:
    """A notification is not answered; over HTTP it is accepted with 202 and no body, or refused by an error status."""
    params = {"requestId": NO_ID, "reason": "there is no such request"}
    answer = await spoken.conversation.notify("notifications/cancelled", params)
    if spoken.is_http:
        if answer.status is not None and (answer.status >= 400 or (answer.status == 202 and not answer.body)):
            return []
        body = " and a body" if answer.body else ""
        return [f"a notification was answered by HTTP {answer.status}{body}, not by 202 without one"]
    after = await spoken.conversation.ask(cheapest(spoken))
    replies = [each for each in after.messages if is_reply(each) and each is not after.reply]
    return [f"a notification was answered by {shown(each)}" for each in replies[:1]]


async def bad_json_refused(spoken: SpokenEra) -> list[str]:
    """A message that is no JSON is refused as such, and the connection goes on where it can."""
    if spoken.server.is_http_sse:
        raise NotApplicable("over HTTP+SSE it is refused by a status, which is not seen here")
    answer = await spoken.conversation.send(b'{"jsonrpc": "2.0", "id": 1, "method"')
    found = []
    codes = {
        (each.get("error") or {}).get("code")
        for each in answer.messages
        if isinstance(each.get("error"), dict)
    }
    if PARSE_ERROR not in codes:
        said = answer.summary() if spoken.is_http else (f"error {codes}" if codes else answer.summary())
        found.append(f"a message that is no JSON was answered by {said}")
    if not spoken.is_http:
        id = spoken.server.record.next_id()
        message = request_message(spoken.era, id, cheapest(spoken), {}, None)
        after = await spoken.conversation.send(encode_value(message), (id,))
        if after.reply is None:
            found.append(f"after a message that is no JSON nothing is answered any more: {after.summary()}")
    return found
