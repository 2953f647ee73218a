"""Reading and writing with a converter that knows everything: strictness, absence, unknown members, complaints."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from cattrs import Converter, transform_error

from mcp_actors import types
from mcp_actors._eras.convert import StructureError, make_converter, structure_error_text
from mcp_actors._eras.vocabulary import wire_name
from mcp_actors.types import (
    UNSET,
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolParams,
    CallToolResult,
    CancelledParams,
    CompleteParams,
    CompletionArgument,
    ContentBlock,
    ElicitFormParams,
    ElicitParams,
    ElicitResult,
    ElicitUrlParams,
    EmbeddedResource,
    GetPromptParams,
    Icon,
    ImageContent,
    Implementation,
    InputRequiredResult,
    ListResourcesResult,
    ListRootsParams,
    ListToolsResult,
    LoggingMessageParams,
    ProgressParams,
    PromptMessage,
    PromptReference,
    ReadResourceResult,
    Resource,
    ResourceLink,
    ResourceTemplateReference,
    RootsCapability,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    Tool,
    ToolResultContent,
    ToolUseContent,
)

FULL = make_converter()

PAIRS: list[tuple[Any, dict[str, Any]]] = [
    (TextContent("hi"), {"type": "text", "text": "hi"}),
    (
        ImageContent(
            "AA==", "image/png", annotations=Annotations(audience=["user"], priority=0.5), meta={"k": 1}
        ),
        {
            "type": "image",
            "data": "AA==",
            "mimeType": "image/png",
            "annotations": {"audience": ["user"], "priority": 0.5},
            "_meta": {"k": 1},
        },
    ),
    (AudioContent("AA==", "audio/wav"), {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}),
    (
        ResourceLink("file:///a", "a", title="A", size=3),
        {"type": "resource_link", "uri": "file:///a", "name": "a", "title": "A", "size": 3},
    ),
    (
        EmbeddedResource(TextResourceContents("file:///a", "x", "text/plain")),
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x", "mimeType": "text/plain"}},
    ),
    (
        ReadResourceResult([BlobResourceContents("file:///a", "AA==")], ttl_ms=0, cache_scope="public"),
        {
            "resultType": "complete",
            "contents": [{"uri": "file:///a", "blob": "AA=="}],
            "ttlMs": 0,
            "cacheScope": "public",
        },
    ),
    (
        CallToolResult([TextContent("x")], structured_content={"a": [1]}, is_error=False),
        {
            "resultType": "complete",
            "content": [{"type": "text", "text": "x"}],
            "structuredContent": {"a": [1]},
            "isError": False,
        },
    ),
    (
        SamplingMessage("assistant", [ToolUseContent("1", "f", {"a": 1}), TextContent("x")]),
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                {"type": "text", "text": "x"},
            ],
        },
    ),
    (
        SamplingMessage("user", ToolResultContent("1", [TextContent("x")], structured_content=None)),
        {
            "role": "user",
            "content": {
                "type": "tool_result",
                "toolUseId": "1",
                "content": [{"type": "text", "text": "x"}],
                "structuredContent": None,
            },
        },
    ),
    (
        CompleteParams(PromptReference("p"), CompletionArgument("a", "")),
        {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}},
    ),
    (ResourceTemplateReference("a://{b}"), {"type": "ref/resource", "uri": "a://{b}"}),
    (
        InputRequiredResult({"q": ElicitUrlParams("go", "https://x.y"), "r": ListRootsParams()}, "state"),
        {
            "resultType": "input_required",
            "inputRequests": {
                "q": {
                    "method": "elicitation/create",
                    "params": {"mode": "url", "message": "go", "url": "https://x.y"},
                },
                "r": {"method": "roots/list", "params": {}},
            },
            "requestState": "state",
        },
    ),
    (
        Implementation("n", "1", website_url="https://x.y", icons=[Icon("data:,", sizes=["any"])]),
        {
            "name": "n",
            "version": "1",
            "websiteUrl": "https://x.y",
            "icons": [{"src": "data:,", "sizes": ["any"]}],
        },
    ),
    (RootsCapability(), {}),
    (RootsCapability(list_changed=True), {"listChanged": True}),
    (ListResourcesResult([], ""), {"resultType": "complete", "resources": [], "nextCursor": ""}),
    (CancelledParams(0, ""), {"requestId": 0, "reason": ""}),
    (ElicitResult("accept", {}), {"action": "accept", "content": {}}),
]


@pytest.mark.parametrize(("typed", "plain"), PAIRS, ids=lambda each: type(each).__name__)
def test_both_directions(typed: Any, plain: dict[str, Any]) -> None:
    assert FULL.unstructure(typed) == plain
    assert FULL.structure(plain, type(typed)) == typed


@pytest.mark.parametrize(
    ("attribute", "wire"),
    [("meta", "_meta"), ("mime_type", "mimeType"), ("open_world_hint", "openWorldHint"), ("name", "name")],
)
def test_names_on_the_wire(attribute: str, wire: str) -> None:
    assert wire_name(attribute) == wire


# -- absence ----------------------------------------------------------------------------------------------------------


def test_null_is_a_value_only_where_it_can_be_one() -> None:
    assert "structuredContent" not in FULL.unstructure(CallToolResult([]))
    assert FULL.unstructure(CallToolResult([], structured_content=None))["structuredContent"] is None
    assert FULL.structure({"content": []}, CallToolResult).structured_content is UNSET
    assert (
        FULL.structure({"content": [], "structuredContent": None}, CallToolResult).structured_content is None
    )
    assert FULL.structure({"level": "info", "data": None}, LoggingMessageParams).data is None
    assert FULL.unstructure(LoggingMessageParams("info", None)) == {"level": "info", "data": None}


def test_null_for_an_optional_member_means_that_it_is_absent() -> None:
    tool = FULL.structure({"name": "t", "inputSchema": {}, "title": None, "icons": None}, Tool)
    assert (tool.title, tool.icons, tool.extra) == (None, None, {})


# -- icons, which clients show --------------------------------------------------------------------------------------

SAFE = ["https://x/i.png", "HTTP://x/i.png", "data:image/png;base64,AA=="]
UNSAFE = [
    *("javascript:alert(1)", "JavaScript:alert(1)", " javascript:alert(1)", "java\nscript:alert(1)"),
    *("file:///etc/passwd", "ftp://x/i.png", "ws://x", "vbscript:x", "app://x", "//x/i.png", "i.png", ""),
]


def icons_of(sources: list[str]) -> list[dict[str, Any]]:
    return [{"src": each, "sizes": ["any"]} for each in sources]


def test_an_icon_of_another_scheme_is_left_out_and_the_rest_is_read() -> None:
    plain = {"name": "t", "inputSchema": {}, "icons": icons_of([*UNSAFE, *SAFE, *UNSAFE])}
    tool = FULL.structure(plain, Tool)
    assert [(each.src, each.sizes) for each in tool.icons or ()] == [(each, ["any"]) for each in SAFE]
    assert FULL.structure({**plain, "icons": icons_of(UNSAFE)}, Tool).icons == []


def test_an_icon_of_another_scheme_is_not_kept_where_the_revision_has_no_icons() -> None:
    """Such members are passed on to clients of newer revisions, which would read icons."""
    older = make_converter({"Tool": frozenset(["icons"])})
    plain = {"name": "t", "inputSchema": {}, "icons": [*icons_of(UNSAFE), *icons_of(SAFE), 3, {}]}
    tool = older.structure(plain, Tool)
    assert (tool.icons, tool.extra) == (None, {"icons": icons_of(SAFE)})
    for value in ({"src": SAFE[0]}, "javascript:x", None):
        assert older.structure({**plain, "icons": value}, Tool).extra == {}


def test_result_type_may_be_left_out_only_where_that_means_complete() -> None:
    assert FULL.structure({"content": []}, CallToolResult) == CallToolResult([])
    assert (
        complaint({"content": [], "resultType": "task"}, CallToolResult) == "resultType: must be 'complete'"
    )
    assert complaint({"requestState": "s"}, InputRequiredResult) == "lacks 'resultType'"


# -- unknown members --------------------------------------------------------------------------------------------------


def test_unknown_members_are_kept_and_written_back() -> None:
    plain = {
        "content": [{"type": "text", "text": "x", "new": {"a": None}}],
        "resultType": "complete",
        "task": {"taskId": "1"},
        "is_error": "a member of that name, not ours",
    }
    result = FULL.structure(plain, CallToolResult)
    assert result.extra == {"task": {"taskId": "1"}, "is_error": "a member of that name, not ours"}
    assert result.content[0].extra == {"new": {"a": None}}
    assert FULL.unstructure(result) == plain


def test_extra_cannot_forge_a_known_member() -> None:
    block = TextContent("real", extra={"text": "forged", "type": "image", "more": 1})
    assert FULL.unstructure(block) == {"type": "text", "text": "real", "more": 1}


def test_what_is_any_goes_through_untouched() -> None:
    schema, arguments, meta, structured = (
        {"type": "object", "x": [{}]},
        {"a": {"b": 1}},
        {"k": [1]},
        {"deep": [{}]},
    )
    tool = FULL.structure({"name": "t", "inputSchema": schema, "_meta": meta}, Tool)
    assert tool.input_schema is schema
    assert tool.meta is meta
    assert FULL.structure({"name": "t", "arguments": arguments}, CallToolParams).arguments is arguments
    assert (
        FULL.unstructure(CallToolResult([], structured_content=structured))["structuredContent"] is structured
    )
    assert FULL.unstructure(tool)["inputSchema"] is schema


# -- bad input --------------------------------------------------------------------------------------------------------


def complaint(value: Any, cls: Any) -> str:
    with pytest.raises(StructureError) as caught:
        FULL.structure(value, cls)
    return structure_error_text(caught.value)


COMPLAINTS: list[tuple[Any, Any, str]] = [
    ({}, CallToolParams, "lacks 'name'"),
    ({"name": 1}, CallToolParams, "name: must be a string, not a number"),
    ({"name": None}, CallToolParams, "name: must be a string, not null"),
    ({"name": "t", "arguments": []}, CallToolParams, "arguments: must be an object, not an array"),
    ([], CallToolParams, "must be an object, not an array"),
    (None, CallToolParams, "must be an object, not null"),
    ({"uri": "u", "name": "n", "size": "3"}, Resource, "size: must be a whole number, not a string"),
    ({"uri": "u", "name": "n", "size": True}, Resource, "size: must be a whole number, not a boolean"),
    ({"uri": "u", "name": "n", "size": 3.5}, Resource, "size: must be a whole number, not a number"),
    ({"content": [], "isError": 1}, CallToolResult, "isError: must be true or false, not a number"),
    (
        {"progressToken": 1.0, "progress": 1},
        ProgressParams,
        "progressToken: must be a string or a whole number",
    ),
    (
        {"progressToken": True, "progress": 1},
        ProgressParams,
        "progressToken: must be a string or a whole number",
    ),
    ({"progressToken": 0, "progress": "1"}, ProgressParams, "progress: must be a number, not a string"),
    ({"progressToken": 0, "progress": False}, ProgressParams, "progress: must be a number, not a boolean"),
    ({"level": "loud", "data": 1}, LoggingMessageParams, "level: must be one of 'debug', 'info'"),
    ({"level": ["info"], "data": 1}, LoggingMessageParams, "level: must be one of 'debug', 'info'"),
    ({"name": "p", "arguments": {"a": 1}}, GetPromptParams, "arguments.a: must be a string, not a number"),
    (
        {"content": [{"type": "text", "text": "x"}, {"type": "text"}]},
        CallToolResult,
        "content[1]: lacks 'text'",
    ),
    ({"content": [{"text": "x"}]}, CallToolResult, "content[0]: lacks 'type'"),
    ({"content": [{"type": "video"}]}, CallToolResult, "content[0].type: must be one of text, image, audio"),
    ({"content": [{"type": ["text"]}]}, CallToolResult, "content[0].type: must be one of text, image, audio"),
    ({"content": ["text"]}, CallToolResult, "content[0]: must be an object, not a string"),
    ({"content": {"type": "text", "text": ""}}, CallToolResult, "content: must be an array, not an object"),
    (
        {"role": "user", "content": {"type": "tool_use"}},
        PromptMessage,
        "content.type: must be one of text, image",
    ),
    ({"role": "user", "content": [{"type": "text"}]}, SamplingMessage, "content[0]: lacks 'text'"),
    ({"type": "resource", "resource": {"uri": "u"}}, EmbeddedResource, "resource: lacks 'text' or 'blob'"),
    ({"tools": [{"name": "t"}]}, ListToolsResult, "tools[0]: lacks 'inputSchema'"),
    (
        {"tools": [{"name": "t", "inputSchema": None}]},
        ListToolsResult,
        "tools[0].inputSchema: must be an object",
    ),
    ({"text": "x"}, TextContent, "lacks 'type'"),
    ({"type": "image", "text": "x"}, TextContent, "type: must be 'text'"),
    ({"mode": "voice", "message": "m"}, ElicitParams, "mode: must be one of form, url"),
    (
        {"resultType": "input_required", "inputRequests": {"q": {"method": "tools/call"}}},
        InputRequiredResult,
        "inputRequests.q.method: must be one of elicitation/create, sampling/createMessage, roots/list",
    ),
    (
        {
            "resultType": "input_required",
            "inputRequests": {"q": {"method": "sampling/createMessage", "params": {}}},
        },
        InputRequiredResult,
        "inputRequests.q.params: lacks 'messages', 'maxTokens'",
    ),
]


@pytest.mark.parametrize(("value", "cls", "text"), COMPLAINTS, ids=lambda each: str(each)[:50])
def test_a_complaint_names_the_member(value: Any, cls: Any, text: str) -> None:
    assert complaint(value, cls).startswith(text)


def test_an_integral_float_is_an_integer_as_in_json_schema() -> None:
    size = FULL.structure({"uri": "u", "name": "n", "size": 3.0}, Resource).size
    assert size == 3
    assert type(size) is int


def test_errors_of_cattrs_itself_get_a_text_too() -> None:
    @attrs.define
    class Foreign:
        a: int

    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever cattrs raises
        Converter().structure({"a": "x"}, Foreign)
    assert structure_error_text(caught.value) == "; ".join(transform_error(caught.value))
    assert structure_error_text(ValueError()) == "ValueError"


# -- unions and odd objects -------------------------------------------------------------------------------------------


def test_unions_can_be_read_by_themselves() -> None:
    read: Any = FULL.structure
    assert read({"type": "text", "text": "x"}, ContentBlock) == TextContent("x")
    assert read({"message": "m", "requestedSchema": {}}, ElicitParams) == ElicitFormParams("m", {})
    assert read({"mode": "url", "message": "m", "url": "u"}, ElicitParams) == ElicitUrlParams("m", "u")


def test_one_block_stays_one_block_and_a_list_a_list() -> None:
    block = {"type": "text", "text": "x"}
    one = FULL.structure({"role": "user", "content": block}, SamplingMessage)
    many = FULL.structure({"role": "user", "content": [block]}, SamplingMessage)
    assert one.content == TextContent("x")
    assert many.content == [TextContent("x")]
    assert FULL.unstructure(one)["content"] == block
    assert FULL.unstructure(many)["content"] == [block]


def test_plain_json_among_objects_is_written_as_it_is() -> None:
    block = {"type": "text", "text": "x"}
    assert FULL.unstructure(CallToolResult([block]))["content"] == [block]  # type: ignore[list-item]


def test_what_is_no_object_of_the_protocol_is_refused() -> None:
    with pytest.raises(TypeError, match="str is not an object of the protocol: 'x'"):
        FULL.unstructure(CallToolResult(["x"]))  # type: ignore[list-item]


def test_a_subclass_is_written_like_its_class_with_its_own_members() -> None:
    @attrs.define
    class Loud(TextContent):
        loud_ness: int = 3

    assert FULL.unstructure(CallToolResult([Loud("x")]))["content"] == [
        {"type": "text", "text": "x", "loudNess": 3}
    ]


def test_a_hook_registered_for_a_class_is_obeyed_inside_others() -> None:
    converter = make_converter()
    converter.register_structure_hook(TextContent, lambda value, _: TextContent(value["text"].upper()))
    converter.register_unstructure_hook(
        TextContent, lambda block: {"type": "text", "text": block.text.lower()}
    )
    result = converter.structure({"content": [{"type": "text", "text": "x"}]}, CallToolResult)
    assert result.content == [TextContent("X")]
    assert converter.unstructure(result)["content"] == [{"type": "text", "text": "x"}]


def test_a_converter_can_lack_members_and_tell_objects_otherwise() -> None:
    converter = make_converter(
        {"TextContent": frozenset({"annotations"}), "CreateMessageParams": frozenset({"tools"})},
        {"AudioContent": lambda block: TextContent(f"heard {block.mime_type}")},
    )
    block = TextContent("x", annotations=Annotations(priority=1))
    assert converter.unstructure(block) == {"type": "text", "text": "x"}
    arrived = {"type": "text", "text": "x", "annotations": "not even an object"}
    assert converter.structure(arrived, TextContent).extra == {"annotations": "not even an object"}
    assert converter.unstructure(CallToolResult([AudioContent("", "audio/wav")]))["content"] == [
        {"type": "text", "text": "heard audio/wav"}
    ]


def test_a_class_of_another_program_is_not_taken_for_one_of_the_same_name() -> None:
    @attrs.define
    class Tool:
        title: str
        extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)

    converter = make_converter({"Tool": frozenset({"title"})})
    assert converter.unstructure(Tool("mine")) == {"title": "mine"}
    assert converter.unstructure(types.Tool("t", {}, title="theirs")) == {"name": "t", "inputSchema": {}}
