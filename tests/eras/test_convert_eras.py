"""The era values: their methods, their notifications, and how each seals a result."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors._eras.era import Era, Method
from mcp_actors._eras.legacy import LATEST_LEGACY, LEGACY
from mcp_actors._eras.modern import LATEST_MODERN, MODERN
from mcp_actors.errors import LocalProtocolError
from mcp_actors.types import (
    CallToolResult,
    DiscoverResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    EmptyResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    ReadResourceResult,
    ServerCapabilities,
    TextContent,
    Tool,
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


def test_structured_content_for_sessions() -> None:
    results = [CallToolResult([], value) for value in ({"a": 1}, [1], None)]
    for version, era in LEGACY.items():
        kept = ["structuredContent" in seal(era, "tools/call", result) for result in results]
        assert kept == [version >= "2025-06-18", False, False]
        plain = {"content": [], "structuredContent": {"a": 1}}
        assert ("structuredContent" in seal(era, "tools/call", plain)) == (version >= "2025-06-18")
        assert "structuredContent" not in seal(era, "tools/call", {"content": [], "structuredContent": 3})


def test_output_schemas_for_sessions() -> None:
    listed = ListToolsResult(
        [Tool("a", {}, output_schema={"type": "object"}), Tool("b", {}, output_schema={})]
    )
    for version, era in LEGACY.items():
        one, other = seal(era, "tools/list", listed)["tools"]
        assert ("outputSchema" in one) == (version >= "2025-06-18")
        assert "outputSchema" not in other


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
