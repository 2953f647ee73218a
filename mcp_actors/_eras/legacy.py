"""The revisions with sessions as values: their methods, what each of them added, and how a message is written for each.

==========  ===========================================================================================================
2024-11-05  the first: tools, resources, prompts, sampling, roots, logging, and completion that is not declared
2025-03-26  audio, annotations of tools, messages of progress, declared completion; JSON-RPC batches, here only
2025-06-18  titles, output schemas, structured content, resource links, elicitation; HTTP mirrors the version
2025-11-25  icons, tasks, tools in sampling, elicitation by URL, choices with titles; event streams can be resumed
==========  ===========================================================================================================

`CHANGES_BY_REVISION` is this table member by member. What a revision added is missing in every earlier one: a member is
left out when it is written, and kept in ``extra`` when it is received. An object that cannot simply be left out is
replaced, such as a content block by a text block that describes it. A request that the revision cannot express is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import attrs
import msgspec

from mcp_actors import types as t
from mcp_actors._eras.era import (
    RESULT_STAMPS,
    ClientRules,
    Era,
    Invocation,
    Method,
    Peer,
    TextBlock,
    ValueResult,
    made_late,
    progress_token,
)
from mcp_actors._eras.vocabulary import Hook, describer
from mcp_actors._wire.codec import RequestId, encode_value
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    LocalProtocolError,
    MissingCapability,
    RpcError,
)
from mcp_actors.types import (
    UNSET,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

__all__ = [
    "CHANGES_BY_REVISION",
    "CLIENT_RULES",
    "DEFAULT_LOG_LEVEL",
    "LATEST_LEGACY",
    "LEGACY",
    "REVISIONS",
    "Revision",
    "absent_in",
    "client_methods",
    "client_notifications",
    "downgraded_in",
    "open_method",
    "server_methods",
    "server_notifications",
]


# -- requests and notifications ------------------------------------------------------------------------------------

_SERVER = (
    Method("initialize", "InitializeParams", "InitializeResult"),
    Method("ping", "RequestParams", "EmptyResult"),
    Method("tools/list", "PaginatedParams", "ListToolsResult", requires="tools"),
    Method("tools/call", "CallToolParams", "CallToolResult", requires="tools", target="name", may_ask=True),
    Method("resources/list", "PaginatedParams", "ListResourcesResult", requires="resources"),
    Method(
        "resources/templates/list", "PaginatedParams", "ListResourceTemplatesResult", requires="resources"
    ),
    Method(
        "resources/read",
        "ReadResourceParams",
        "ReadResourceResult",
        requires="resources",
        target="uri",
        may_ask=True,
    ),
    Method(
        "resources/subscribe", "SubscribeParams", "EmptyResult", requires="resources.subscribe", target="uri"
    ),
    Method(
        "resources/unsubscribe",
        "UnsubscribeParams",
        "EmptyResult",
        requires="resources.subscribe",
        target="uri",
    ),
    Method("prompts/list", "PaginatedParams", "ListPromptsResult", requires="prompts"),
    Method(
        "prompts/get", "GetPromptParams", "GetPromptResult", requires="prompts", target="name", may_ask=True
    ),
    Method("completion/complete", "CompleteParams", "CompleteResult", requires="completions"),
    Method("logging/setLevel", "SetLevelParams", "EmptyResult", requires="logging"),
)
# The first revision has completion but no capability for it.
_UNDECLARED_COMPLETION = Method("completion/complete", "CompleteParams", "CompleteResult")

_CLIENT = (
    Method("ping", "RequestParams", "EmptyResult"),
    Method("roots/list", "ListRootsParams", "ListRootsResult", requires="roots"),
    Method("sampling/createMessage", "CreateMessageParams", "CreateMessageResult", requires="sampling"),
)
_ELICITATION = Method("elicitation/create", "ElicitParams", "ElicitResult", requires="elicitation")
# The tasks of either side, which the other one looks at (MCP 2025-11-25, Tasks).
_TASKS = (
    Method("tasks/get", dict, dict, requires="tasks", target="taskId", shown=False),
    Method("tasks/result", dict, dict, requires="tasks", target="taskId", shown=False),
    Method("tasks/list", dict, dict, requires="tasks.list"),
    Method("tasks/cancel", dict, dict, requires="tasks.cancel", target="taskId", shown=False),
)
_TASK_STATUS = "notifications/tasks/status"

_FROM_CLIENT = frozenset(
    {
        "notifications/initialized",
        "notifications/cancelled",
        "notifications/progress",
        "notifications/roots/list_changed",
    }
)
_FROM_SERVER = frozenset(
    {
        "notifications/cancelled",
        "notifications/progress",
        "notifications/message",
        "notifications/resources/updated",
        "notifications/resources/list_changed",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
    }
)


def server_methods(revision: str) -> Mapping[str, Method]:
    """Returns the requests that a server answers."""
    if revision == "2024-11-05":
        return _table((*_SERVER, _UNDECLARED_COMPLETION))
    return _table((*_SERVER, *_TASKS) if revision >= "2025-11-25" else _SERVER)


def client_methods(revision: str) -> Mapping[str, Method]:
    """Returns the requests that a client answers."""
    if revision >= "2025-11-25":
        return _table((*_CLIENT, _ELICITATION, *_TASKS))
    return _table((*_CLIENT, _ELICITATION) if revision >= "2025-06-18" else _CLIENT)


def client_notifications(revision: str) -> frozenset[str]:
    """Returns the notifications that a client may send."""
    return _FROM_CLIENT | {_TASK_STATUS} if revision >= "2025-11-25" else _FROM_CLIENT


def server_notifications(revision: str) -> frozenset[str]:
    """Returns the notifications that a server may send."""
    if revision >= "2025-11-25":
        return _FROM_SERVER | {"notifications/elicitation/complete", _TASK_STATUS}
    return _FROM_SERVER


def _table(methods: Iterable[Method]) -> Mapping[str, Any]:
    return MappingProxyType({method.name: method for method in methods})


# -- replacements of objects that the peer's revision lacks; an argument that can stay is returned -----------------


def audio_as_text(block: AudioContent) -> TextContent:
    return TextContent(_description(block), annotations=block.annotations)


def link_as_text(block: ResourceLink) -> TextContent:
    return TextContent(_description(block), annotations=block.annotations)


def tool_use_as_text(block: t.ToolUseContent) -> TextContent:
    return TextContent(_description(block))


def tool_result_as_text(block: t.ToolResultContent) -> TextContent:
    return TextContent(_description(block))


def _description(block: Any) -> str:
    """The block described in words, for a peer that does not get the block itself."""
    match block:
        case TextContent(text=text):
            return text
        case AudioContent() | ImageContent():
            kind = "audio" if isinstance(block, AudioContent) else "image"
            return f"[{kind} left out: {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case ResourceLink():
            words = f"[resource link: {block.title or block.name} <{block.uri}>"
            words += f", {block.mime_type}" if block.mime_type else ""
            return f"{words}]" + (f" {block.description}" if block.description else "")
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case EmbeddedResource(resource=resource):
            return f"[resource left out: {resource.uri}]"
        case t.ToolUseContent():
            return f"[tool call {block.id}: {block.name} {encode_value(block.input).decode()}]"
        case t.ToolResultContent():
            failed = " failed" if block.is_error else ""
            return "\n".join([f"[tool call {block.tool_use_id}{failed}]", *map(_description, block.content)])
    return f"[{getattr(block, 'type', type(block).__name__)} left out]"


def one_block_a_message(params: t.CreateMessageParams) -> t.CreateMessageParams:
    """Returns params with one block a message: a list of blocks becomes as many messages of the same role."""
    if not any(isinstance(message.content, list) for message in params.messages):
        return params
    messages: list[t.SamplingMessage] = []
    for message in params.messages:
        if isinstance(message.content, list):
            messages.extend(attrs.evolve(message, content=block) for block in message.content)
        else:
            messages.append(message)
    return attrs.evolve(params, messages=messages)


def message_in_one_block(message: t.SamplingMessage) -> t.SamplingMessage:
    """Returns the message with one block, for a message on its own, which cannot become several."""
    return (
        attrs.evolve(message, content=_joined(message.content))
        if isinstance(message.content, list)
        else message
    )


def result_in_one_block(result: t.CreateMessageResult) -> t.CreateMessageResult:
    """Returns the result with one block: several become one text, as a result is one message."""
    return (
        attrs.evolve(result, content=_joined(result.content)) if isinstance(result.content, list) else result
    )


def _joined(blocks: list[t.SamplingContent]) -> t.SamplingContent:
    return blocks[0] if len(blocks) == 1 else TextContent("\n".join(map(_description, blocks)))


WRAPPED = "result"
"""The member under which a value that is not an object is put into structured content, as other SDKs do."""


def tool_with_object_output(tool: Tool) -> Tool:
    """Returns the tool with an output schema of the type object, as revisions with sessions allow no other.

    The schema of a value that is never an object becomes that of an object with the value as `WRAPPED`. Where a value
    may be either, and where references would no longer lead to the same place, the tool has none.
    """
    schema = tool.output_schema
    if schema is None or schema.get("type") == "object":
        return tool
    return attrs.evolve(tool, output_schema=None if _may_be_object(schema) else _wrapping(schema))


def _may_be_object(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return True
    kind, choices = schema.get("type"), schema.get("enum")
    if kind is not None:
        return "object" in kind if isinstance(kind, list) else kind == "object"
    if "const" in schema:
        return isinstance(schema["const"], dict)
    if isinstance(choices, list):
        return any(isinstance(each, dict) for each in choices)
    parts = schema.get("anyOf", schema.get("oneOf"))
    return not isinstance(parts, list) or any(map(_may_be_object, parts))


def _wrapping(schema: dict[str, Any]) -> dict[str, Any] | None:
    value = dict(schema)
    definitions = value.pop("$defs", None)
    if not _refers_to_definitions(value) or not _refers_to_definitions(definitions):
        return None
    # The mark by which FastMCP knows that the value is meant and not the object.
    wrapping = {
        "type": "object",
        "properties": {WRAPPED: value},
        "required": [WRAPPED],
        "x-fastmcp-wrap-result": True,
    }
    return wrapping if definitions is None else {**wrapping, "$defs": definitions}


def _refers_to_definitions(value: Any) -> bool:
    """Whether all references of a schema lead to its own definitions, wherever else the rest of it stands."""
    if isinstance(value, list):
        return all(map(_refers_to_definitions, value))
    if not isinstance(value, dict):
        return True
    reference = value.get("$ref", "#/$defs/")
    is_own = isinstance(reference, str) and reference.startswith("#/$defs/")
    return is_own and "$dynamicRef" not in value and all(map(_refers_to_definitions, value.values()))


def result_with_object(result: CallToolResult) -> CallToolResult:
    """Returns the result with an object as structured content: another value is put into one, as `WRAPPED`."""
    if result.structured_content is UNSET or isinstance(result.structured_content, dict):
        return result
    return attrs.evolve(result, structured_content={WRAPPED: result.structured_content})


def content_with_object(content: t.ToolResultContent) -> t.ToolResultContent:
    """Returns the block without structured content that is no object. Its text stays in ``content``."""
    if content.structured_content is UNSET or isinstance(content.structured_content, dict):
        return content
    return attrs.evolve(content, structured_content=UNSET)


def form_with_plain_enums(params: t.ElicitFormParams) -> t.ElicitFormParams:
    """Returns the form for revisions before SEP-1330: titles are in ``enumNames``, and only booleans have defaults.

    Raises `LocalProtocolError` for a choice of several values, which those revisions do not have.
    """
    properties = params.requested_schema.get("properties")
    if not isinstance(properties, dict):
        return params
    plain = {name: _plain_property(name, schema) for name, schema in properties.items()}
    return attrs.evolve(params, requested_schema={**params.requested_schema, "properties": plain})


def _plain_property(name: str, schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "array":
        raise LocalProtocolError(
            f"{name!r} is a choice of several, which this peer's revision cannot ask for"
        )
    plain = dict(schema)
    if plain.get("type") != "boolean":
        plain.pop("default", None)
    titled = plain.pop("oneOf", None)
    if isinstance(titled, list):
        plain["enum"] = [option["const"] for option in titled]
        plain["enumNames"] = [option.get("title", option["const"]) for option in titled]
    return plain


def no_forms_that_were_not_declared(capabilities: t.ClientCapabilities) -> t.ClientCapabilities:
    """Without elicitation for a client that visits URLs only: in the revisions without modes it would promise forms."""
    elicitation = capabilities.elicitation
    if elicitation is None or elicitation.url is None or elicitation.form is not None:
        return capabilities
    return attrs.evolve(capabilities, elicitation=None)


def refuse_url_elicitation(params: t.ElicitUrlParams) -> NoReturn:
    """Raises `LocalProtocolError`."""
    raise LocalProtocolError("this peer's revision has no elicitation by url")


def refuse_input_required(result: t.InputRequiredResult) -> NoReturn:
    """Raises `LocalProtocolError`: with sessions, a server asks the client by requests."""
    raise LocalProtocolError("a session is asked by requests: its revision has no input-required results")


# -- what each revision added --------------------------------------------------------------------------------------

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Oldest first. They compare as text only among themselves."""

_STATELESS = "stateless"
"""All revisions without sessions. It sorts after every date."""


class Revision(msgspec.Struct, frozen=True, eq=False):
    """The additions of one revision.

    ``members`` has the added attributes by the name of their class. ``replacements`` has functions, by class too, that
    return the object to send to peers of earlier revisions.
    """

    since: str
    members: Mapping[str, str]
    replacements: Mapping[str, Callable[[Any], Any]] = msgspec.field(default_factory=dict)


CHANGES_BY_REVISION = (
    Revision(
        "2025-03-26",
        {
            "Tool": "annotations",
            "ProgressParams": "message",
            "ServerCapabilities": "completions",
        },
        {"AudioContent": audio_as_text},
    ),
    Revision(
        "2025-06-18",
        {
            "Implementation": "title",
            "Tool": "title output_schema meta",
            "Prompt": "title meta",
            "PromptArgument": "title",
            "PromptReference": "title",
            "Resource": "title meta",
            "ResourceTemplate": "title meta",
            "TextResourceContents": "meta",
            "BlobResourceContents": "meta",
            "Root": "meta",
            "TextContent": "meta",
            "ImageContent": "meta",
            "AudioContent": "meta",
            "EmbeddedResource": "meta",
            "Annotations": "last_modified",
            "CallToolResult": "structured_content",
            "CompleteParams": "context",
            "ClientCapabilities": "elicitation",
        },
        {"ResourceLink": link_as_text},
    ),
    Revision(
        "2025-11-25",
        {
            "Implementation": "description website_url icons",
            "Tool": "icons execution",
            "Prompt": "icons",
            "Resource": "icons",
            "ResourceTemplate": "icons",
            "SamplingCapability": "context tools",
            "ElicitationCapability": "form url",
            "ClientCapabilities": "tasks",
            "ServerCapabilities": "tasks",
            "ElicitFormParams": "mode",
            "CreateMessageParams": "tools tool_choice",
            "SamplingMessage": "meta",
        },
        {
            "CreateMessageParams": one_block_a_message,
            "SamplingMessage": message_in_one_block,
            "CreateMessageResult": result_in_one_block,
            "ToolUseContent": tool_use_as_text,
            "ToolResultContent": tool_result_as_text,
            "ElicitFormParams": form_with_plain_enums,
            "ElicitUrlParams": refuse_url_elicitation,
            "ClientCapabilities": no_forms_that_were_not_declared,
        },
    ),
    Revision(
        _STATELESS,
        {
            "CallToolParams": "input_responses request_state",
            "GetPromptParams": "input_responses request_state",
            "ReadResourceParams": "input_responses request_state",
            "EmptyResult": "result_type",
            "CallToolResult": "result_type",
            "GetPromptResult": "result_type",
            "CompleteResult": "result_type",
            "SubscriptionsListenResult": "result_type",
            "DiscoverResult": "result_type ttl_ms cache_scope",
            "ListToolsResult": "result_type ttl_ms cache_scope",
            "ListPromptsResult": "result_type ttl_ms cache_scope",
            "ListResourcesResult": "result_type ttl_ms cache_scope",
            "ListResourceTemplatesResult": "result_type ttl_ms cache_scope",
            "ReadResourceResult": "result_type ttl_ms cache_scope",
        },
        {
            "Tool": tool_with_object_output,
            "CallToolResult": result_with_object,
            "ToolResultContent": content_with_object,
            "InputRequiredResult": refuse_input_required,
        },
    ),
)


def absent_in(revision: str) -> dict[str, frozenset[str]]:
    """Returns the attributes that ``revision`` does not have, by class."""
    absent: dict[str, frozenset[str]] = {}
    for added in CHANGES_BY_REVISION:
        if added.since > revision:
            for cls, names in added.members.items():
                absent[cls] = absent.get(cls, frozenset()) | frozenset(names.split())
    return absent


def downgraded_in(revision: str) -> dict[str, Callable[[Any], Any]]:
    """Returns functions by class for the objects that ``revision`` does not have, which return a replacement.

    If several later revisions replace a class, the oldest of them decides.
    """
    replacements: dict[str, Callable[[Any], Any]] = {}
    for added in reversed(CHANGES_BY_REVISION):
        if added.since > revision:
            replacements.update(added.replacements)
    return replacements


# -- the revisions as values ---------------------------------------------------------------------------------------


def _request_meta(version: str, capabilities: Any, info: Any, log_level: str | None) -> dict[str, Any]:
    """The handshake says everything once, so requests repeat nothing."""
    return {}


def _mirrored_params(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    return ()


CLIENT_RULES = ClientRules(
    handshake_method="initialize",
    ping_method="ping",
    log_level_method="logging/setLevel",
    listen_method=None,
    visits_urls_on_error=True,
    request_meta=_request_meta,
    mirrored=None,
    mirrored_params=_mirrored_params,
)


DEFAULT_LOG_LEVEL = "info"


class _ValueOfSession(msgspec.Struct, gc=False):
    content: list[TextBlock]
    structuredContent: Any


def _make_seal(converter: Callable[[], Any], describe: Hook, *, structured: bool) -> Callable[..., Any]:
    def seal(result: Any, method: Method, stamp: Mapping[str, Any]) -> Any:
        """The result as this revision has it. Takes an object, a plain dict (left as it is) or ``None`` for ``{}``."""
        if result.__class__ is ValueResult:
            # Structured content is an object: see `result_with_object`.
            value = result.value if structured else UNSET
            if value is UNSET:
                value = msgspec.UNSET
            elif value.__class__ is not dict:
                value = {WRAPPED: value}
            return _ValueOfSession([TextBlock(result.text)], value)
        if result is None:
            return {}
        body: dict[str, Any]
        if result.__class__ is dict:
            body = result.copy()
        else:
            body = describe(result) if method.name == "initialize" else converter().unstructure(result)
        # Peers with sessions compare empty results with exactly {}.
        for name in RESULT_STAMPS:
            body.pop(name, None)
        # An object of the vocabulary is right already; a plain dict may come from anywhere.
        if method.name == "tools/call" and "structuredContent" in body:
            value = body["structuredContent"]
            if not structured:
                del body["structuredContent"]
            elif not isinstance(value, dict):
                body["structuredContent"] = {WRAPPED: value}
        return body

    return seal


def _wanted_log_level(invocation: Invocation) -> str | None:
    """The session remembers it; before the first ``logging/setLevel`` the choice is the server's (MCP, Logging)."""
    return invocation.peer.log_level or DEFAULT_LOG_LEVEL


def _error_codes(revision: str) -> dict[int, int]:
    """Missing capabilities have no code of their own in sessions, and visits to URLs have one in one revision only."""
    codes = {MissingCapability.CODE: INVALID_PARAMS}
    return codes if revision >= "2025-11-25" else {**codes, URL_ELICITATION_REQUIRED: INTERNAL_ERROR}


def _make_era(revision: str) -> Era:
    absent = absent_in(revision)
    describe = describer(absent)
    converter = made_late("make_converter", absent, downgraded_in(revision))
    return Era(
        name="legacy",
        version=revision,
        make_converter=converter,
        describe=describe,
        server_methods=server_methods(revision),
        client_methods=client_methods(revision),
        client_notifications=client_notifications(revision),
        server_notifications=server_notifications(revision),
        client=CLIENT_RULES,
        seal=_make_seal(converter, describe, structured=revision >= "2025-06-18"),
        error_codes=_error_codes(revision),
        make_tool_result_reader=made_late("tool_result_reader", absent["CallToolResult"]),
        wanted_log_level=_wanted_log_level,
        declares_sampling_context=revision >= "2025-11-25",
        batches=revision == "2025-03-26",
        progress_message=revision >= "2025-03-26",
        mirrors_version=revision >= "2025-06-18",
        resumes=revision >= "2025-11-25",
        has_all_results=revision >= "2025-11-25",
    )


LEGACY: Mapping[str, Era] = MappingProxyType({revision: _make_era(revision) for revision in REVISIONS})
"""Oldest first. An era's tables are small and its hooks are made at first use, so making all costs next to nothing."""

LATEST_LEGACY = LEGACY[REVISIONS[-1]]


def open_method(era: Era, method: Method, id: RequestId, params: dict[str, Any], peer: Peer) -> Invocation:
    """Takes ``_meta`` out of ``params``."""
    meta = params.pop("_meta", None)
    if meta is None:
        return Invocation(era, method, params, {}, peer, id, None, peer.log_level)
    if not isinstance(meta, dict):
        raise RpcError(INVALID_PARAMS, "_meta must be an object")
    return Invocation(era, method, params, meta, peer, id, progress_token(meta), peer.log_level)
