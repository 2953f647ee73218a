"""Every difference between the revisions: one test for each row of the table."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from mcp_actors import types
from mcp_actors._eras.era import Era
from mcp_actors._eras.legacy import CHANGES_BY_REVISION, LATEST_LEGACY, LEGACY, REVISIONS
from mcp_actors._eras.modern import LATEST_MODERN, MODERN
from mcp_actors.errors import LocalProtocolError
from mcp_actors.types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolParams,
    CallToolResult,
    ClientCapabilities,
    CompleteParams,
    CompletionArgument,
    CompletionContext,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitFormParams,
    ElicitUrlParams,
    EmbeddedResource,
    EnumOption,
    Icon,
    ImageContent,
    Implementation,
    InputRequiredResult,
    LegacyTitledEnumSchema,
    ListToolsResult,
    ProgressParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    PromptReference,
    Resource,
    ResourceLink,
    ResourceTemplate,
    Root,
    RootsCapability,
    SamplingCapability,
    SamplingMessage,
    ServerCapabilities,
    StringSchema,
    TextContent,
    TextResourceContents,
    TitledMultiSelectEnumSchema,
    TitledSingleSelectEnumSchema,
    Tool,
    ToolAnnotations,
    ToolChoice,
    ToolExecution,
    ToolResultContent,
    ToolsCapability,
    ToolUseContent,
    form_schema,
)

ERAS: dict[str, Era] = {**LEGACY, **MODERN}
VERSIONS = tuple(ERAS)
META = {"k": 1}
ICONS = [Icon("data:,")]


def named(each: Any) -> str | None:
    return each if isinstance(each, str) else type(each).__name__


def has(thing: Any, wire: str) -> list[str]:
    """The revisions in which ``thing`` is written with a member ``wire``."""
    return [version for version, era in ERAS.items() if wire in era.unstructure(thing)]


ROWS: list[tuple[Any, str, str]] = [
    (Tool("t", {}, annotations=ToolAnnotations()), "annotations", "2025-03-26"),
    (ProgressParams(1, 1, message="m"), "message", "2025-03-26"),
    (ServerCapabilities(completions={}), "completions", "2025-03-26"),
    (Tool("t", {}, title="T"), "title", "2025-06-18"),
    (Prompt("p", title="P"), "title", "2025-06-18"),
    (PromptArgument("a", title="A"), "title", "2025-06-18"),
    (PromptReference("p", "P"), "title", "2025-06-18"),
    (Resource("u", "r", title="R"), "title", "2025-06-18"),
    (ResourceTemplate("u", "r", title="R"), "title", "2025-06-18"),
    (Implementation("n", "1", title="N"), "title", "2025-06-18"),
    (Tool("t", {}, output_schema={"type": "object"}), "outputSchema", "2025-06-18"),
    (CallToolResult([], {"a": 1}), "structuredContent", "2025-06-18"),
    (TextContent("x", meta=META), "_meta", "2025-06-18"),
    (ImageContent("", "image/png", meta=META), "_meta", "2025-06-18"),
    (EmbeddedResource(TextResourceContents("u", "x"), meta=META), "_meta", "2025-06-18"),
    (TextResourceContents("u", "x", meta=META), "_meta", "2025-06-18"),
    (BlobResourceContents("u", "", meta=META), "_meta", "2025-06-18"),
    (Resource("u", "r", meta=META), "_meta", "2025-06-18"),
    (ResourceTemplate("u", "r", meta=META), "_meta", "2025-06-18"),
    (Tool("t", {}, meta=META), "_meta", "2025-06-18"),
    (Prompt("p", meta=META), "_meta", "2025-06-18"),
    (Root("file:///a", meta=META), "_meta", "2025-06-18"),
    (Annotations(last_modified="2025-01-01T00:00:00Z"), "lastModified", "2025-06-18"),
    (
        CompleteParams(PromptReference("p"), CompletionArgument("a", ""), CompletionContext({"b": "c"})),
        "context",
        "2025-06-18",
    ),
    (ClientCapabilities(elicitation=ElicitationCapability()), "elicitation", "2025-06-18"),
    (ClientCapabilities(elicitation=ElicitationCapability(form={}, url={})), "elicitation", "2025-06-18"),
    (ElicitationCapability(form={}), "form", "2025-11-25"),
    (ElicitationCapability(url={}), "url", "2025-11-25"),
    (ElicitFormParams("m", {}), "mode", "2025-11-25"),
    (Implementation("n", "1", icons=ICONS), "icons", "2025-11-25"),
    (Implementation("n", "1", description="d"), "description", "2025-11-25"),
    (Implementation("n", "1", website_url="w"), "websiteUrl", "2025-11-25"),
    (Tool("t", {}, icons=ICONS), "icons", "2025-11-25"),
    (Prompt("p", icons=ICONS), "icons", "2025-11-25"),
    (Resource("u", "r", icons=ICONS), "icons", "2025-11-25"),
    (ResourceTemplate("u", "r", icons=ICONS), "icons", "2025-11-25"),
    (CreateMessageParams([], 1, tools=[]), "tools", "2025-11-25"),
    (CreateMessageParams([], 1, tool_choice=ToolChoice()), "toolChoice", "2025-11-25"),
    (SamplingCapability(tools={}), "tools", "2025-11-25"),
    (SamplingCapability(context={}), "context", "2025-11-25"),
    (SamplingMessage("user", TextContent("x"), meta=META), "_meta", "2025-11-25"),
    (CallToolResult([]), "resultType", "2026-07-28"),
    (ListToolsResult([], ttl_ms=1), "ttlMs", "2026-07-28"),
    (ListToolsResult([], cache_scope="public"), "cacheScope", "2026-07-28"),
    (CallToolParams("t", request_state="s"), "requestState", "2026-07-28"),
    (CallToolParams("t", input_responses={}), "inputResponses", "2026-07-28"),
]


# Here the revisions before know the member, but not such a value of it.
VALUES: list[tuple[Any, str, str]] = [
    (CallToolResult([], 3), "structuredContent", "2026-07-28"),
    (CallToolResult([], None), "structuredContent", "2026-07-28"),
    (Tool("t", {}, output_schema={"type": "array"}), "outputSchema", "2026-07-28"),
    (Tool("t", {}, output_schema={"anyOf": []}), "outputSchema", "2026-07-28"),
]


@pytest.mark.parametrize(("thing", "wire", "since"), ROWS + VALUES, ids=named)
def test_a_member_is_written_since_its_revision(thing: Any, wire: str, since: str) -> None:
    assert has(thing, wire) == [version for version in VERSIONS if version >= since]


@pytest.mark.parametrize(("thing", "wire", "since"), ROWS, ids=named)
def test_before_its_revision_a_member_that_arrives_is_unknown_and_kept(
    thing: Any, wire: str, since: str
) -> None:
    plain = ERAS[since].unstructure(thing)
    for era in [era for version, era in ERAS.items() if version < since]:
        arrived = era.structure(plain, type(thing))
        assert arrived.extra[wire] == plain[wire]
        assert era.unstructure(arrived)[wire] == plain[wire]


@pytest.mark.parametrize(
    ("thing", "wire", "versions"),
    [
        (Tool("t", {}, execution=ToolExecution("optional")), "execution", ["2025-11-25"]),
        (ServerCapabilities(tasks={}), "tasks", ["2025-11-25"]),
        (ClientCapabilities(tasks={}), "tasks", ["2025-11-25"]),
        (RootsCapability(list_changed=True), "listChanged", list(LEGACY)),
        (ServerCapabilities(extensions={"a/b": {}}), "extensions", list(VERSIONS)),
        # Where elicitation has no modes, it would promise forms.
        (ClientCapabilities(elicitation=ElicitationCapability(url={})), "elicitation", list(VERSIONS[3:])),
        (ClientCapabilities(extensions={"a/b": {}}), "extensions", list(VERSIONS)),
        (ClientCapabilities(experimental={}), "experimental", list(VERSIONS)),
        (ServerCapabilities(logging={}), "logging", list(VERSIONS)),
        (ServerCapabilities(tools=ToolsCapability()), "tools", list(VERSIONS)),
        (ClientCapabilities(roots=RootsCapability()), "roots", list(VERSIONS)),
        (ClientCapabilities(sampling=SamplingCapability()), "sampling", list(VERSIONS)),
    ],
    ids=named,
)
def test_what_came_and_went_and_what_always_was(thing: Any, wire: str, versions: list[str]) -> None:
    assert has(thing, wire) == versions


def test_elicitation_ids_belong_to_one_revision() -> None:
    question = ElicitUrlParams("m", "u", "id-1")
    assert LATEST_LEGACY.unstructure(question)["elicitationId"] == "id-1"
    assert "elicitationId" not in LATEST_MODERN.unstructure(question)


# -- blocks that a revision does not have -----------------------------------------------------------------------------


def told(version: str, block: Any) -> Any:
    (plain,) = ERAS[version].unstructure(CallToolResult([block]))["content"]
    return plain


def test_audio_becomes_text_before_there_was_audio() -> None:
    audio = AudioContent("AAAA", "audio/wav", annotations=Annotations(priority=1))
    assert told("2024-11-05", audio) == {
        "type": "text",
        "text": "[audio left out: audio/wav, 3 bytes]",
        "annotations": {"priority": 1},
    }
    assert [told(version, audio)["type"] for version in VERSIONS[1:]] == ["audio"] * 4


def test_resource_links_become_text_before_there_were_any() -> None:
    link = ResourceLink("file:///a", "a", title="The A", description="All of it.", mime_type="text/plain")
    text = "[resource link: The A <file:///a>, text/plain] All of it."
    for version in VERSIONS[:2]:
        assert told(version, link) == {"type": "text", "text": text}
    assert [told(version, link)["type"] for version in VERSIONS[2:]] == ["resource_link"] * 3


def test_prompt_messages_are_told_the_same_way() -> None:
    message = PromptMessage("user", AudioContent("", "audio/wav"))
    assert LEGACY["2024-11-05"].unstructure(message)["content"]["type"] == "text"


def test_blocks_of_a_newer_revision_can_be_read_at_any() -> None:
    plain = {"content": [{"type": "audio", "data": "", "mimeType": "audio/wav"}]}
    assert LEGACY["2024-11-05"].structure(plain, CallToolResult).content == [AudioContent("", "audio/wav")]


# -- sampling ---------------------------------------------------------------------------------------------------------

TWO: list[Any] = [TextContent("a"), ImageContent("AAAA", "image/png")]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_a_list_of_blocks_becomes_messages_of_one_block(version: str) -> None:
    params = CreateMessageParams(
        [SamplingMessage("user", TWO), SamplingMessage("assistant", TextContent("c"))], 9
    )
    assert LEGACY[version].unstructure(params)["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "a"}},
        {"role": "user", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
        {"role": "assistant", "content": {"type": "text", "text": "c"}},
    ]
    assert params.messages[0].content is TWO


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_a_list_of_blocks_stays_a_list_later(version: str) -> None:
    plain = ERAS[version].unstructure(SamplingMessage("user", TWO))
    assert [block["type"] for block in plain["content"]] == ["text", "image"]


def test_a_result_has_one_block_in_older_revisions() -> None:
    older = LEGACY["2025-06-18"]
    one = CreateMessageResult("assistant", [TextContent("a")], "m")
    many = CreateMessageResult("assistant", TWO, "m")
    none = CreateMessageResult("assistant", [], "m")
    assert older.unstructure(one)["content"] == {"type": "text", "text": "a"}
    assert older.unstructure(many)["content"] == {
        "type": "text",
        "text": "a\n[image left out: image/png, 3 bytes]",
    }
    assert older.unstructure(none)["content"] == {"type": "text", "text": ""}
    assert older.unstructure(SamplingMessage("user", [TextContent("a")]))["content"] == {
        "type": "text",
        "text": "a",
    }
    assert isinstance(LATEST_LEGACY.unstructure(many)["content"], list)


def test_tool_calls_are_told_in_words_before_there_were_any() -> None:
    older = LEGACY["2025-06-18"]
    blocks: list[Any] = [
        ToolUseContent("7", "add", {"a": 1}),
        ToolResultContent(
            "7", [TextContent("2"), EmbeddedResource(BlobResourceContents("u", ""))], is_error=True
        ),
    ]
    params = CreateMessageParams([SamplingMessage("user", [block]) for block in blocks], 9)
    assert [message["content"] for message in older.unstructure(params)["messages"]] == [
        {"type": "text", "text": '[tool call 7: add {"a":1}]'},
        {"type": "text", "text": "[tool call 7 failed]\n2\n[resource left out: u]"},
    ]


def test_tool_results_carry_objects_only_before_the_stateless_revision() -> None:
    block = ToolResultContent("7", [], structured_content=[1])
    assert "structuredContent" not in LATEST_LEGACY.unstructure(block)
    assert LATEST_MODERN.unstructure(block)["structuredContent"] == [1]
    kept = ToolResultContent("7", [], structured_content={"a": 1})
    assert LATEST_LEGACY.unstructure(kept)["structuredContent"] == {"a": 1}


# -- elicitation ------------------------------------------------------------------------------------------------------


def test_forms_lose_what_the_first_form_revision_does_not_know() -> None:
    schema = form_schema(
        {
            "name": StringSchema(default="x", title="Name"),
            "sure": {"type": "boolean", "default": True},
            "colour": TitledSingleSelectEnumSchema([EnumOption("r", "Red")], default="r"),
            "size": LegacyTitledEnumSchema(["s"], ["Small"]),
        },
        required=["name"],
    )
    question = ElicitFormParams("m", schema)
    assert LEGACY["2025-06-18"].unstructure(question)["requestedSchema"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Name"},
            "sure": {"type": "boolean", "default": True},
            "colour": {"type": "string", "enum": ["r"], "enumNames": ["Red"]},
            "size": {"type": "string", "enum": ["s"], "enumNames": ["Small"]},
        },
        "required": ["name"],
    }
    assert LATEST_LEGACY.unstructure(question)["requestedSchema"] is schema
    assert "default" in schema["properties"]["name"]


def test_what_cannot_be_asked_is_refused_here() -> None:
    older = LEGACY["2025-06-18"]
    several = ElicitFormParams("m", form_schema({"c": TitledMultiSelectEnumSchema([EnumOption("r", "Red")])}))
    with pytest.raises(LocalProtocolError, match="'c' is a choice of several"):
        older.unstructure(several)
    with pytest.raises(LocalProtocolError, match="no elicitation by url"):
        older.unstructure(ElicitUrlParams("m", "u", "i"))
    with pytest.raises(LocalProtocolError, match="no input-required results"):
        LATEST_LEGACY.unstructure(InputRequiredResult(request_state="s"))


# -- the table itself -------------------------------------------------------------------------------------------------


def test_the_table_names_real_attributes_of_real_revisions() -> None:
    assert [added.since for added in CHANGES_BY_REVISION[:-1]] == list(REVISIONS[1:])
    assert CHANGES_BY_REVISION[-1].since > REVISIONS[-1]
    for added in CHANGES_BY_REVISION:
        assert [name for name in added.replacements if not hasattr(types, name)] == []
        for cls, names in added.members.items():
            fields = attrs.fields_dict(getattr(types, cls))
            assert [n for n in names.split() if n not in fields and n not in ("mode", "result_type")] == []


def test_the_vocabulary_is_not_touched_by_writing() -> None:
    tool = Tool("t", {}, title="T", output_schema={"type": "array"}, icons=ICONS)
    before = attrs.evolve(tool)
    for era in ERAS.values():
        era.unstructure(tool)
    assert tool == before
