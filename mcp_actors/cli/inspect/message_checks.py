"""Checks of messages: of all that came, of what is the same in both eras, and of calls of tools.

Tools are called only where that was allowed, and only those that say of themselves that they only read, and that need
no arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mcp_actors._eras.modern import LOG_LEVEL, SERVER_INFO
from mcp_actors._schema.validate import compile_schema
from mcp_actors._wire.codec import encode_value
from mcp_actors.cli.inspect.conversation import ServerAnswer, is_id, is_reply, request_message, shown
from mcp_actors.cli.inspect.inspected import NotApplicable, SpokenEra
from mcp_actors.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    URL_ELICITATION_REQUIRED,
    ResourceNotFound,
)

__all__ = [
    "bad_json_refused",
    "cached",
    "callable_tools",
    "content_blocks",
    "described",
    "error_shape",
    "events_stop",
    "foreign_codes",
    "ids_kept",
    "media_types",
    "message_shape",
    "no_null_ids",
    "no_questions",
    "no_unwanted_logs",
    "notifications_unanswered",
    "only_messages",
    "session_ids",
    "structured_results",
    "typed_results",
    "unbuffered_streams",
    "unknown_method",
    "unknown_prompt",
    "unknown_resource",
    "unknown_tool",
    "wrong_log_level",
]


# -- Every message that came during the inspection; these checks send nothing --------------------------

# The codes that the specification reserves for itself, and those that it has defined there so far.
_RESERVED = range(-32099, -32019)
_DEFINED = (-32020, -32021, -32022)
_WITHDRAWN = (ResourceNotFound.CODE, URL_ELICITATION_REQUIRED)
_CACHED = (
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)


def _messages(spoken: SpokenEra) -> Iterator[tuple[str, dict[str, Any]]]:
    for answer in spoken.answers:
        yield from ((answer.method or "a malformed message", message) for message in answer.messages)


def _results(spoken: SpokenEra) -> Iterator[tuple[str, dict[str, Any]]]:
    for answer in spoken.answers:
        if answer.result is not None:
            yield answer.method, answer.result


async def message_shape(spoken: SpokenEra) -> list[str]:
    """Each message is a request, a notification, a result or an error of JSON-RPC 2.0."""
    return [
        f"in answer to {method} came {shown(message)}: {fault}"
        for method, message in _messages(spoken)
        if (fault := _fault(message)) is not None
    ]


def _fault(message: dict[str, Any]) -> str | None:
    if message.get("jsonrpc") != "2.0":
        return f'"jsonrpc" is {shown(message.get("jsonrpc"))}'
    if "method" in message:
        if not isinstance(message["method"], str):
            return "its method is not a string"
        if "result" in message or "error" in message:
            return "it has a method and a result or an error"
        return None if isinstance(message.get("params", {}), dict) else "its params are not an object"
    if ("result" in message) == ("error" in message):
        return "it has not exactly one of result and error"
    if "result" in message and not isinstance(message["result"], dict):
        return "its result is not an object"
    if "result" in message and not is_id(message.get("id")):
        return "a result without an id"
    return None


async def error_shape(spoken: SpokenEra) -> list[str]:
    """Each error has an integer as its code and a string as its message."""
    found = []
    for method, message in _messages(spoken):
        if "error" not in message or "method" in message:
            continue
        error = message["error"]
        code = error.get("code") if isinstance(error, dict) else None
        if not isinstance(error, dict) or not isinstance(code, int) or isinstance(code, bool):
            found.append(f"{method} was refused without an integer as the code: {shown(error)}")
        elif not isinstance(error.get("message"), str):
            found.append(f"{method} was refused without a message: {shown(error)}")
    return found


async def no_null_ids(spoken: SpokenEra) -> list[str]:
    """An error whose request could not be read has no id, rather than null."""
    return [
        f"the error {shown(message.get('error'))}, in answer to {method}, has the id null"
        for method, message in _messages(spoken)
        if is_reply(message) and "id" in message and message["id"] is None
    ]


async def only_messages(spoken: SpokenEra) -> list[str]:
    """Nothing but messages comes over a channel."""
    return [f"{each.start} came: {each.reason}" for answer in spoken.answers for each in answer.malformed]


async def no_questions(spoken: SpokenEra) -> list[str]:
    """Without sessions a server sends no requests."""
    return [
        f"in answer to {method} came the request {shown(message['method'])}"
        for method, message in _messages(spoken)
        if "method" in message and "id" in message
    ]


async def typed_results(spoken: SpokenEra) -> list[str]:
    """Each result says of which type it is."""
    return [
        f"the result of {method} has the resultType {shown(result.get('resultType'))}"
        for method, result in _results(spoken)
        if not isinstance(result.get("resultType"), str)
    ]


async def described(spoken: SpokenEra) -> list[str]:
    """Each result says which server sent it."""
    methods: dict[str, None] = {}
    for method, result in _results(spoken):
        meta = result.get("_meta")
        if not isinstance(meta, dict) or not _is_implementation(meta.get(SERVER_INFO)):
            methods[method] = None
    return [f"the result of {method} has no serverInfo in its _meta" for method in methods]


def _is_implementation(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(each), str) for each in ("name", "version"))


async def cached(spoken: SpokenEra) -> list[str]:
    """Complete results of what can be cached have both hints, and ``ttlMs`` is an integer that is not negative."""
    found: dict[str, None] = {}
    for method, result in _results(spoken):
        if method not in _CACHED or result.get("resultType", "complete") != "complete":
            continue
        ttl, scope = result.get("ttlMs"), result.get("cacheScope")
        if not isinstance(ttl, int) or isinstance(ttl, bool) or ttl < 0:
            found[f"the result of {method} has the ttlMs {shown(ttl)}"] = None
        if scope not in ("public", "private"):
            found[f"the result of {method} has the cacheScope {shown(scope)}"] = None
    return list(found)


async def foreign_codes(spoken: SpokenEra) -> list[str]:
    """No error has a code that only the specification may give out, or that it has withdrawn."""
    return [
        f"{answer.method or 'a malformed message'} was answered with the error {answer.code}"
        for answer in spoken.answers
        if answer.code is not None
        and ((answer.code in _RESERVED and answer.code not in _DEFINED) or answer.code in _WITHDRAWN)
    ]


async def no_unwanted_logs(spoken: SpokenEra) -> list[str]:
    """No log messages come with the answer to a request that asked for none."""
    return [
        f"log messages came with the answer to {answer.method}, which named no level"
        for answer in spoken.answers
        if LOG_LEVEL not in answer.asked
        and any(message.get("method") == "notifications/message" for message in answer.messages)
    ]


async def media_types(spoken: SpokenEra) -> list[str]:
    """A request is answered with JSON or with a stream of events."""
    return [
        f"{answer.method} was answered with HTTP {answer.status} and {shown(answer.media_type or 'no media type')}"
        for answer in spoken.answers
        if answer.status == 200
        and answer.id is not None
        and answer.media_type not in ("application/json", "text/event-stream")
    ]


async def events_stop(spoken: SpokenEra) -> list[str]:
    """A stream of events ends after the response that it was for."""
    return [
        f"the stream of {answer.method} was still open after its response"
        for answer in spoken.answers
        if answer.streamed and answer.reply is not None and not answer.ended
    ]


async def unbuffered_streams(spoken: SpokenEra) -> list[str]:
    """Streams of events tell proxies not to hold them back."""
    streams = [each for each in spoken.answers if each.streamed]
    if not streams:
        raise NotApplicable("no answer was a stream of events")
    if all("nginx" in each.headers.get("server", "").lower() for each in streams):
        raise NotApplicable("nginx obeys this header, and does not pass it on")
    wrong = {
        each.method: None for each in streams if each.headers.get("x-accel-buffering", "").lower() != "no"
    }
    return [f"the stream of {method} has no header X-Accel-Buffering: no" for method in wrong]


async def session_ids(spoken: SpokenEra) -> list[str]:
    """No session ids are given out where sessions do not exist."""
    if len(spoken.server.spoken) > 1:
        raise NotApplicable("the server speaks revisions with sessions too")
    methods = {each.method: None for each in spoken.answers if "mcp-session-id" in each.headers}
    return [f"the answer to {method} has a session id" for method in methods]


# -- Requests that are the same in both eras: ids, unknown methods and targets, malformed messages -----

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
    """A message that is not JSON is refused as such, and the connection goes on where it can."""
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
        found.append(f"a message that is not JSON was answered by {said}")
    if not spoken.is_http:
        id = spoken.server.record.next_id()
        message = request_message(spoken.era, id, cheapest(spoken), {}, None)
        after = await spoken.conversation.send(encode_value(message), (id,))
        if after.reply is None:
            found.append(f"after a message that is not JSON nothing is answered any more: {after.summary()}")
    return found


# -- Calls of tools ------------------------------------------------------------------------------------

# Tools that are called.
MAX_CALLS = 8
# The members that a block of content of a type must have.
_BLOCKS = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
    "resource": ("resource",),
}


def callable_tools(spoken: SpokenEra) -> list[dict[str, Any]]:
    """Returns the tools that only read, by their own words, and that need no arguments."""
    if not spoken.declares("tools") or "tools" not in spoken.lists:
        raise NotApplicable("it declares no tools")
    return [tool for tool in spoken.lists["tools"].items if isinstance(tool, dict) and _may_be_called(tool)][
        :MAX_CALLS
    ]


def _may_be_called(tool: Mapping[str, Any]) -> bool:
    annotations, schema = tool.get("annotations"), tool.get("inputSchema")
    return (
        isinstance(tool.get("name"), str)
        and isinstance(annotations, Mapping)
        and annotations.get("readOnlyHint") is True
        and isinstance(schema, Mapping)
        and not schema.get("required")
    )


async def _called(spoken: SpokenEra) -> list[tuple[dict[str, Any], ServerAnswer]]:
    tools = callable_tools(spoken)
    if not tools:
        raise NotApplicable("no tool says that it only reads, and needs no arguments")
    done = spoken.calls
    for tool in tools:
        if tool["name"] not in done:
            params = {"name": tool["name"], "arguments": {}}
            answer = await spoken.conversation.ask("tools/call", params)
            done[tool["name"]] = answer
            if answer.gone is not None and (not spoken.is_http or not spoken.era.asks_by_retry):
                # It took longer than the wait here, which no rule forbids.
                await spoken.conversation.notify("notifications/cancelled", {"requestId": answer.id})
    return [(tool, done[tool["name"]]) for tool in tools]


async def unknown_tool(spoken: SpokenEra) -> list[str]:
    """A tool that does not exist is refused by an error of the protocol."""
    if not spoken.declares("tools"):
        raise NotApplicable("it declares no tools")
    answer = await spoken.conversation.ask("tools/call", {"name": NO_NAME, "arguments": {}})
    if answer.error is None:
        return [f"a call of a tool that does not exist was answered by {answer.summary()}"]
    return []


async def content_blocks(spoken: SpokenEra) -> list[str]:
    """The result of a call has content, whose blocks are of types that exist."""
    found = []
    for tool, answer in await _called(spoken):
        name = shown(tool["name"])
        if answer.result is None:
            if answer.error is None and answer.gone is None:
                found.append(f"the call of the tool {name} was answered by {answer.summary()}")
            continue
        if answer.result.get("resultType", "complete") != "complete":
            continue
        content = answer.result.get("content")
        if not isinstance(content, list):
            found.append(f"the result of the tool {name} has the content {shown(content)}")
            continue
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            members = _BLOCKS.get(kind) if isinstance(kind, str) else None
            if members is None or any(each not in block for each in members):
                found.append(f"the result of the tool {name} has the block {shown(block)}")
    return found


async def structured_results(spoken: SpokenEra) -> list[str]:
    """A tool with a schema of its output gives structured content that fits it."""
    found, judged = [], 0
    for tool, answer in await _called(spoken):
        schema, result = tool.get("outputSchema"), answer.result
        if not isinstance(schema, dict) or result is None or result.get("isError") is True:
            continue
        if result.get("resultType", "complete") != "complete":
            continue
        judged += 1
        if "structuredContent" not in result:
            found.append(f"the tool {shown(tool['name'])} has an outputSchema, and gave no structuredContent")
            continue
        try:
            problems = compile_schema(schema).problems(result["structuredContent"])
        except ValueError:
            continue
        found += [
            f"the structuredContent of the tool {shown(tool['name'])}: {shown(each)}" for each in problems[:3]
        ]
    if not judged:
        raise NotApplicable("no tool that was called has an outputSchema")
    return found
