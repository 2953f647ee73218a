"""Replaces objects that the peer's revision does not have by objects that it has.

Each function returns its argument if that needs no change.
"""

from __future__ import annotations

from typing import Any, NoReturn

import attrs

from mcp_actors import types as t
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import LocalProtocolError
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


def tool_with_object_output(tool: Tool) -> Tool:
    """Returns the tool without an output schema that describes no object, which only stateless revisions have."""
    if tool.output_schema is None or tool.output_schema.get("type") == "object":
        return tool
    return attrs.evolve(tool, output_schema=None)


def object_output_only(result: CallToolResult | t.ToolResultContent) -> CallToolResult | t.ToolResultContent:
    """Returns the result without structured content that is no object, which only stateless revisions have.

    Its text stays in ``content``.
    """
    if result.structured_content is UNSET or isinstance(result.structured_content, dict):
        return result
    return attrs.evolve(result, structured_content=UNSET)


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
