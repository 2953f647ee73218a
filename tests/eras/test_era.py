"""The era values: their methods, their notifications, and how each seals a result."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcp_actors import types
from mcp_actors._eras.era import RESULT_STAMPS, Era, Method, ValueResult, read_result
from mcp_actors._eras.legacy import CHANGES_BY_REVISION, LATEST_LEGACY, LEGACY, REVISIONS
from mcp_actors._eras.modern import LATEST_MODERN, MODERN
from mcp_actors._wire.codec import encode_reply, encode_value
from mcp_actors.errors import LocalProtocolError
from mcp_actors.types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolParams,
    CallToolResult,
    ClientCapabilities,
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageParams,
    CreateMessageResult,
    DiscoverResult,
    ElicitationCapability,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    EmbeddedResource,
    EmptyResult,
    EnumOption,
    GetPromptResult,
    Icon,
    ImageContent,
    Implementation,
    InputRequiredResult,
    LegacyTitledEnumSchema,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ProgressParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    PromptReference,
    ReadResourceResult,
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

EVERYWHERE = {
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
}
TASKS = {"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"}
SESSIONS_ONLY = {"initialize", "ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel"}
TOLD_BY_SERVERS = {
    "notifications/cancelled",
    "notifications/progress",
    "notifications/message",
    "notifications/resources/updated",
    "notifications/resources/list_changed",
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
}


def test_revisions_in_order() -> None:
    assert list(LEGACY) == ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
    assert list(MODERN) == ["2026-07-28"]
    assert LATEST_LEGACY is LEGACY["2025-11-25"]
    assert LATEST_MODERN is MODERN["2026-07-28"]
    assert {era.name for era in LEGACY.values()} == {"legacy"}
    assert {era.name for era in MODERN.values()} == {"modern"}
    assert [version for version, era in ERAS.items() if era.version != version] == []


def test_methods_that_a_server_answers() -> None:
    for version, era in LEGACY.items():
        tasks = TASKS if version == "2025-11-25" else set()
        assert set(era.server_methods) == EVERYWHERE | SESSIONS_ONLY | tasks
    assert set(LATEST_MODERN.server_methods) == EVERYWHERE | {"server/discover", "subscriptions/listen"}


def test_methods_that_a_client_answers() -> None:
    old = {"ping", "roots/list", "sampling/createMessage"}
    new = old | {"elicitation/create"}
    assert [set(era.client_methods) for era in LEGACY.values()] == [old, old, new, new | TASKS]
    assert set(LATEST_MODERN.client_methods) == new - {"ping"}


def test_notifications() -> None:
    told = [era.server_notifications for era in ERAS.values()]
    assert told[:3] == [TOLD_BY_SERVERS] * 3
    assert told[3] == TOLD_BY_SERVERS | {"notifications/elicitation/complete", "notifications/tasks/status"}
    assert told[4] == TOLD_BY_SERVERS | {"notifications/subscriptions/acknowledged"}
    for version, era in LEGACY.items():
        assert era.client_notifications == {
            "notifications/initialized",
            "notifications/cancelled",
            "notifications/progress",
            "notifications/roots/list_changed",
            *(["notifications/tasks/status"] if version == "2025-11-25" else []),
        }
    assert LATEST_MODERN.client_notifications == {"notifications/cancelled"}


def test_capabilities_that_methods_require() -> None:
    gates = {name: method.requires for name, method in LATEST_LEGACY.server_methods.items()}
    assert gates == {
        "initialize": None,
        "ping": None,
        "tools/list": "tools",
        "tools/call": "tools",
        "resources/list": "resources",
        "resources/templates/list": "resources",
        "resources/read": "resources",
        "resources/subscribe": "resources.subscribe",
        "resources/unsubscribe": "resources.subscribe",
        "prompts/list": "prompts",
        "prompts/get": "prompts",
        "completion/complete": "completions",
        "logging/setLevel": "logging",
        "tasks/get": "tasks",
        "tasks/result": "tasks",
        "tasks/list": "tasks.list",
        "tasks/cancel": "tasks.cancel",
    }
    assert LEGACY["2024-11-05"].server_methods["completion/complete"].requires is None
    assert LEGACY["2025-03-26"].server_methods["completion/complete"].requires == "completions"
    assert {name: method.requires for name, method in LATEST_MODERN.client_methods.items()} == {
        "roots/list": "roots",
        "sampling/createMessage": "sampling",
        "elicitation/create": "elicitation",
    }


def test_what_may_ask_what_is_cacheable_and_what_is_meant() -> None:
    modern = LATEST_MODERN.server_methods
    assert {name for name, method in modern.items() if method.may_ask} == {
        "tools/call",
        "prompts/get",
        "resources/read",
    }
    assert {name for name, method in modern.items() if method.cacheable} == {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    }
    assert {name: method.target for name, method in modern.items() if method.target} == {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
    }


def test_codes_batches_and_messages_of_progress() -> None:
    codes = [[era.error_codes.get(code, code) for era in ERAS.values()] for code in (-32002, -32021, -32042)]
    assert codes == [
        [-32002] * 4 + [-32602],
        [-32602] * 4 + [-32021],
        [-32603] * 3 + [-32042, -32603],
    ]
    assert [version for version, era in ERAS.items() if era.batches] == ["2025-03-26"]
    assert [version for version, era in ERAS.items() if not era.progress_message] == ["2024-11-05"]


@pytest.mark.parametrize("era", ERAS.values(), ids=lambda era: era.version)
def test_every_params_and_result_can_be_converted(era: Era) -> None:
    for method in (*era.server_methods.values(), *era.client_methods.values()):
        assert callable(era.converter.get_structure_hook(method.params))
        assert callable(era.converter.get_structure_hook(method.result))
        assert callable(era.converter.get_unstructure_hook(method.result))


def test_elicitation_params_are_either_form() -> None:
    method = LATEST_LEGACY.client_methods["elicitation/create"]
    form = LATEST_LEGACY.structure({"message": "m", "requestedSchema": {}}, method.params)
    url = LATEST_LEGACY.structure(
        {"mode": "url", "message": "m", "url": "u", "elicitationId": "i"}, method.params
    )
    assert form == ElicitFormParams("m", {})
    assert url == ElicitUrlParams("m", "u", "i")


# -- caching ---------------------------------------------------------------------------------------------------------

CACHED: dict[type, tuple[Any, ...]] = {
    ListToolsResult: ([],),
    ListPromptsResult: ([],),
    ListResourcesResult: ([],),
    ListResourceTemplatesResult: ([],),
    ReadResourceResult: ([],),
    DiscoverResult: ([], ServerCapabilities()),
}


@pytest.mark.parametrize("cls", CACHED)
def test_no_result_is_made_that_is_good_for_less_than_nothing(cls: type) -> None:
    with pytest.raises(ValueError, match="ttl_ms=-1: write a number of milliseconds, or 0"):
        cls(*CACHED[cls], ttl_ms=-1)
    made = cls(*CACHED[cls], ttl_ms=3)
    with pytest.raises(ValueError, match="ttl_ms=-1"):
        made.ttl_ms = -1


@pytest.mark.parametrize("cls", CACHED)
@pytest.mark.parametrize(("sent", "read"), [(-1, 0), (0, 0), (7, 7), (None, None)])
def test_a_result_that_is_good_for_less_than_nothing_is_read_as_stale(
    cls: type, sent: int | None, read: int | None
) -> None:
    plain = LATEST_MODERN.unstructure(cls(*CACHED[cls]))
    assert LATEST_MODERN.structure({**plain, "ttlMs": sent}, cls).ttl_ms == read


# -- sealing ----------------------------------------------------------------------------------------------------------

# Lone surrogates cannot be sent.
SENDABLE = st.characters(exclude_categories=["Cs"])
STAMP = {"ttl_ms": 5, "cache_scope": "public", "server_info": {"name": "s", "version": "1"}}
INFO = {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}}


def seal(era: Era, name: str, result: Any, stamp: dict[str, Any] = STAMP) -> dict[str, Any]:
    return era.seal(result, era.server_methods[name], stamp)


@pytest.mark.parametrize("era", LEGACY.values(), ids=lambda era: era.version)
@pytest.mark.parametrize("result", [None, {}, EmptyResult()])
def test_empty_results_of_sessions_are_exactly_empty(era: Era, result: Any) -> None:
    for name in ("ping", "logging/setLevel", "resources/subscribe"):
        assert seal(era, name, result) == {}


@pytest.mark.parametrize("era", LEGACY.values(), ids=lambda era: era.version)
def test_sessions_get_no_stamps(era: Era) -> None:
    listed = ListToolsResult([], ttl_ms=3, cache_scope="public")
    assert seal(era, "tools/list", listed) == {"tools": []}
    plain = {"tools": [], "resultType": "complete", "ttlMs": 3, "cacheScope": "public", "x": 1}
    assert seal(era, "tools/list", plain) == {"tools": [], "x": 1}
    assert plain["ttlMs"] == 3


@pytest.mark.parametrize(
    ("value", "sent"),
    [({"a": 1}, {"a": 1}), ([1], {"result": [1]}), (3, {"result": 3}), (None, {"result": None})],
)
@pytest.mark.parametrize("era", LEGACY.values(), ids=lambda era: era.version)
def test_structured_content_for_sessions_is_an_object(era: Era, value: Any, sent: Any) -> None:
    expected = {"structuredContent": sent} if era.version >= "2025-06-18" else {}
    for result in (CallToolResult([], value), {"content": [], "structuredContent": value}):
        sealed = seal(era, "tools/call", result)
        assert sealed == {"content": [], **expected}
    assert "structuredContent" not in seal(era, "tools/call", CallToolResult([]))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(SENDABLE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(SENDABLE), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from([*LEGACY.values(), LATEST_MODERN]),
    st.text(SENDABLE),
    st.just(types.UNSET) | JSON_VALUES,
    st.integers() | st.text(SENDABLE),
    st.booleans(),
)
def test_a_plain_value_is_sealed_as_its_result_is(
    era: Era, text: str, value: Any, id: int | str, named: bool
) -> None:
    """The template gives the bytes that the object of the vocabulary gives, in every revision."""
    stamp = {
        "ttl_ms": 5,
        **({"server_info": STAMP["server_info"], "meta": Raw(encode_value(INFO))} if named else {}),
    }
    plain = ValueResult(text, value)
    by_template = encode_reply(id, seal(era, "tools/call", plain, stamp))
    assert by_template == encode_reply(id, seal(era, "tools/call", plain.as_result(), stamp))


def test_output_schemas_for_sessions() -> None:
    listed = ListToolsResult(
        [Tool("a", {}, output_schema={"type": "object"}), Tool("b", {}, output_schema={})]
    )
    for version, era in LEGACY.items():
        one, other = seal(era, "tools/list", listed)["tools"]
        assert ("outputSchema" in one) == (version >= "2025-06-18")
        assert "outputSchema" not in other


NUMBER: dict[str, Any] = {"type": "integer"}
POINTS = {"type": "array", "items": {"$ref": "#/$defs/P"}}
WRAPPING = {"type": "object", "required": ["result"], "x-fastmcp-wrap-result": True}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "object", "title": "T"}, {"type": "object", "title": "T"}),
        (NUMBER, {**WRAPPING, "properties": {"result": NUMBER}}),
        ({"enum": [1, "a"]}, {**WRAPPING, "properties": {"result": {"enum": [1, "a"]}}}),
        ({"const": 1}, {**WRAPPING, "properties": {"result": {"const": 1}}}),
        (
            {"anyOf": [NUMBER, {"type": ["null", "string"]}]},
            {**WRAPPING, "properties": {"result": {"anyOf": [NUMBER, {"type": ["null", "string"]}]}}},
        ),
        (
            {**POINTS, "$defs": {"P": {"type": "object"}}},
            {**WRAPPING, "properties": {"result": POINTS}, "$defs": {"P": {"type": "object"}}},
        ),
        # The value may be an object, which is sent as it is.
        ({}, None),
        ({"type": ["object", "null"]}, None),
        ({"anyOf": [NUMBER, {"type": "object"}]}, None),
        ({"$ref": "#/$defs/P", "$defs": {"P": NUMBER}}, None),
        ({"enum": [1, {}]}, None),
        ({"const": {}}, None),
        # References that lead elsewhere after the move.
        ({"type": "array", "items": {"$ref": "#"}}, None),
        ({"type": "array", "items": {"$dynamicRef": "#a"}}, None),
        ({"type": "array", "items": {"$ref": 1}}, None),
    ],
)
def test_output_schemas_for_sessions_are_of_objects(
    schema: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    for version, era in LEGACY.items():
        (tool,) = seal(era, "tools/list", ListToolsResult([Tool("t", {}, output_schema=schema)]))["tools"]
        assert tool.get("outputSchema") == (sent if version >= "2025-06-18" else None)


@pytest.mark.parametrize("era", [*LEGACY.values(), LATEST_MODERN], ids=lambda era: era.version)
def test_a_result_may_lack_content_if_it_has_structured_content(era: Era) -> None:
    read = era.structure({"structuredContent": {"a": 1}}, CallToolResult)
    assert read.content == []
    with pytest.raises(ValueError, match="lacks 'content'"):
        era.structure({"isError": True}, CallToolResult)


def test_a_session_is_not_asked_by_a_result() -> None:
    with pytest.raises(LocalProtocolError):
        seal(LATEST_LEGACY, "tools/call", InputRequiredResult(request_state="s"))


def test_a_client_of_a_session_seals_its_answers_too() -> None:
    method = LATEST_LEGACY.client_methods["elicitation/create"]
    assert LATEST_LEGACY.seal(ElicitResult("accept", {"a": 1}), method, {}) == {
        "action": "accept",
        "content": {"a": 1},
    }


def test_stateless_results_say_what_they_are_and_who_sent_them() -> None:
    assert seal(LATEST_MODERN, "tools/call", CallToolResult([TextContent("x")], None)) == {
        "resultType": "complete",
        "content": [{"type": "text", "text": "x"}],
        "structuredContent": None,
        "_meta": INFO,
    }
    assert seal(LATEST_MODERN, "tools/call", None, {}) == {"resultType": "complete"}


def test_meta_of_the_result_is_kept_but_the_sender_is_ours() -> None:
    meta = {"k": 1, "io.modelcontextprotocol/serverInfo": {"name": "somebody else"}}
    assert seal(LATEST_MODERN, "tools/call", CallToolResult([], meta=meta))["_meta"] == {"k": 1, **INFO}
    assert meta["io.modelcontextprotocol/serverInfo"] == {"name": "somebody else"}


def test_caching_hints() -> None:
    listed = seal(LATEST_MODERN, "tools/list", ListToolsResult([]))
    assert (listed["ttlMs"], listed["cacheScope"]) == (5, "public")
    own = seal(LATEST_MODERN, "tools/list", ListToolsResult([], ttl_ms=0, cache_scope="private"))
    assert (own["ttlMs"], own["cacheScope"]) == (0, "private")
    unsaid = seal(LATEST_MODERN, "resources/read", ReadResourceResult([]), {})
    assert (unsaid["ttlMs"], unsaid["cacheScope"]) == (0, "private")
    called = seal(LATEST_MODERN, "tools/call", CallToolResult([]))
    assert "ttlMs" not in called
    asked = seal(LATEST_MODERN, "resources/read", InputRequiredResult(request_state="s"))
    assert asked == {"resultType": "input_required", "requestState": "s", "_meta": INFO}


def test_a_plain_result_is_stamped_but_not_changed() -> None:
    plain = {"tools": [], "ttlMs": 7}
    sealed = seal(LATEST_MODERN, "tools/list", plain)
    assert sealed == {
        "tools": [],
        "ttlMs": 7,
        "resultType": "complete",
        "cacheScope": "public",
        "_meta": INFO,
    }
    assert plain == {"tools": [], "ttlMs": 7}
    other = LATEST_MODERN.seal({"resultType": "task"}, Method("tools/list", dict, dict, cacheable=True), {})
    assert other == {"resultType": "task"}


# -- A result of another revision is passed on unread where that makes no difference ---------------------

META = {"k": 1}
NOTES = Annotations(["user"], 0.5, "2026-01-01T00:00:00Z")
TEXT = TextResourceContents("t:", "text", mime_type="text/plain", meta=META)
BLOB = BlobResourceContents("b:", "AA==", meta=META)
BLOCKS: list[Any] = [
    TextContent("t", annotations=NOTES, meta=META, extra={"unknown": [1, None]}),
    ImageContent("AA==", "image/png", annotations=NOTES, meta=META),
    AudioContent("AA==", "audio/wav", annotations=NOTES, meta=META),
    EmbeddedResource(TEXT, annotations=NOTES, meta=META),
    EmbeddedResource(BLOB),
    ResourceLink("r:", "r", title="R", icons=[Icon("data:,")], size=1, annotations=NOTES, meta=META),
]
RESULTS: dict[str, Any] = {
    "tools/call": CallToolResult(BLOCKS, {"a": [1, None]}, is_error=True, meta=META, extra={"unknown": 1}),
    "prompts/get": GetPromptResult([PromptMessage("user", each) for each in BLOCKS], "d", meta=META),
    "resources/read": ReadResourceResult([TEXT, BLOB], meta=META),
    "completion/complete": CompleteResult(Completion(["a"], 1, False), meta=META),
}


def passed_unread(own: Era, other: Era, method: str, raw: dict[str, Any]) -> dict[str, Any]:
    """What a client of ``own`` is sent if nobody reads ``raw``."""
    kept = raw if other.asks_by_retry else {key: raw[key] for key in raw if key not in RESULT_STAMPS}
    return own.seal(kept, own.server_methods[method], {})


def passed_read(own: Era, other: Era, method: str, raw: dict[str, Any]) -> dict[str, Any]:
    """What it is sent if a result is read and written anew."""
    return own.seal(
        read_result(other, raw, own.server_methods[method].result), own.server_methods[method], {}
    )


@pytest.mark.parametrize("method", RESULTS)
@pytest.mark.parametrize("other", ERAS)
@pytest.mark.parametrize("own", [version for version, era in ERAS.items() if era.has_all_results])
def test_nothing_would_be_changed_by_reading_it(own: str, other: str, method: str) -> None:
    raw = ERAS[other].seal(RESULTS[method], ERAS[other].server_methods[method], {})
    read = passed_read(ERAS[own], ERAS[other], method, raw)
    assert passed_unread(ERAS[own], ERAS[other], method, raw) == read


def test_revisions_that_lack_a_part_of_results_read_them() -> None:
    assert [version for version, era in ERAS.items() if not era.has_all_results] == [
        "2024-11-05",
        "2025-03-26",
        "2025-06-18",
    ]
    link = CallToolResult([BLOCKS[-1]])
    raw = ERAS["2026-07-28"].seal(link, ERAS["2026-07-28"].server_methods["tools/call"], {})
    own, other = ERAS["2025-06-18"], ERAS["2026-07-28"]
    assert passed_unread(own, other, "tools/call", raw) != passed_read(own, other, "tools/call", raw)


# -- Every difference between the revisions: one test for each row of the table --------------------------

VERSIONS = tuple(ERAS)
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
    (Tool("t", {}, output_schema={"anyOf": [{}]}), "outputSchema", "2026-07-28"),
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


@pytest.mark.parametrize("version", [*LEGACY, *MODERN])
def test_a_server_is_described_without_a_converter_as_with_one(version: str) -> None:
    era = LEGACY[version] if version in LEGACY else MODERN[version]
    described = types.InitializeResult(
        version,
        types.ServerCapabilities(
            experimental={"x": {}},
            logging={},
            completions={},
            prompts=types.PromptsCapability(list_changed=True),
            resources=types.ResourcesCapability(subscribe=False, extra={"more": 1}),
            tools=types.ToolsCapability(),
            tasks={"list": {}},
            extensions={"a/b": {"c": None}},
            extra={"logging": "ours wins", "new": 1},
        ),
        types.Implementation(
            "n",
            "1",
            title="t",
            description="",
            icons=[types.Icon("https://x", sizes=["any"]), {"src": "y"}],  # type: ignore[list-item]
        ),
        "do this",
        meta={"k": []},
    )
    assert era.describe(described) == era.unstructure(described)
    assert list(era.describe(described)) == list(era.unstructure(described))
    found = types.DiscoverResult([version], types.ServerCapabilities(), ttl_ms=0)
    assert era.describe(found) == era.unstructure(found)


def test_a_description_has_objects_of_the_protocol_only() -> None:
    wrong = types.Implementation("n", "1", icons=["https://x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="str is not an object of the protocol"):
        LATEST_MODERN.describe(wrong)
