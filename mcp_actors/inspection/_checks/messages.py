"""Checks of every message that came during the inspection; none of them sends anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcp_actors._eras.modern.meta_keys import LOG_LEVEL, SERVER_INFO
from mcp_actors.errors import URL_ELICITATION_REQUIRED, ResourceNotFound
from mcp_actors.inspection.answers import is_id, shown
from mcp_actors.inspection.conversation import is_reply
from mcp_actors.inspection.inspected import SpokenEra
from mcp_actors.inspection.rule import NotApplicable

__all__ = [
    "cached",
    "described",
    "error_shape",
    "events_stop",
    "foreign_codes",
    "media_types",
    "message_shape",
    "no_null_ids",
    "no_questions",
    "no_unwanted_logs",
    "only_messages",
    "session_ids",
    "typed_results",
    "unbuffered_streams",
]

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
            return "its method is no string"
        if "result" in message or "error" in message:
            return "it has a method and a result or an error"
        return None if isinstance(message.get("params", {}), dict) else "its params are no object"
    if ("result" in message) == ("error" in message):
        return "it has not exactly one of result and error"
    if "result" in message and not isinstance(message["result"], dict):
        return "its result is no object"
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
