"""Tools: lookup, arguments, the three ways a function runs, and what becomes of its value."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._eras.era import ValueResult
from mcp_actors._server.invoke import WorkerThreads
from mcp_actors._server.tools import Tools
from mcp_actors.errors import LocalProtocolError, MissingCapability, RpcError, ToolError
from mcp_actors.types import UNSET, CallToolResult, ImageContent, TextContent, ToolAnnotations

from .fakes import Changes, FakeContext, answer, options


@dataclass
class Sum:
    total: int


async def add(a: int, b: int = 1) -> Sum:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return Sum(a + b)


@pytest.fixture
def tools() -> Tools:
    return Tools(**options())


async def call(tools: Tools, name: Any, arguments: Any = UNSET, **more: Any) -> Any:
    params: dict[str, Any] = {"name": name}
    if arguments is not UNSET:
        params["arguments"] = arguments
    result = await answer(tools.handlers()["tools/call"], params, **more)
    return result.as_result() if isinstance(result, ValueResult) else result


async def returned(value: Any, **how: Any) -> CallToolResult:
    """The result of a tool without annotations that returns ``value``."""
    tools = Tools(**options())

    async def give():  # type: ignore[no-untyped-def]
        return value

    tools.add(give, **how)
    result = await call(tools, "give")
    assert isinstance(result, CallToolResult)
    return result


# -- the registry ----------------------------------------------------------------------------------------------------


async def test_a_tool_is_listed_as_it_was_declared(tools: Tools) -> None:
    tool = tools.add(add, title="Sum", annotations=ToolAnnotations(read_only_hint=True), meta={"a/b": 1})
    listed: Any
    (listed,) = (await answer(tools.handlers()["tools/list"], {})).tools
    assert (listed.name, listed.title, listed.meta) == ("add", "Sum", {"a/b": 1})
    assert listed.description.startswith("Adds two numbers.")
    assert listed.input_schema["required"] == ["a"]
    assert listed.input_schema["properties"]["a"]["description"] == "The first."
    assert listed.output_schema["properties"]["total"]["type"] == "integer"
    assert listed is tool is tools.get("add")


async def test_every_tool_has_a_description(tools: Tools) -> None:
    async def bare() -> None: ...

    assert tools.add(bare).description == "bare"
    assert tools.add(bare, name="titled", title="A title").description == "A title"
    assert tools.add(add, description="Mine").description == "Mine"


async def test_the_list_keeps_the_order_of_adding_and_comes_in_pages() -> None:
    tools = Tools(**options(page_size=2))
    for number in (3, 1, 2):
        tools.add(add, name=f"tool_{number}")
    first = await answer(tools.handlers()["tools/list"], {})
    second = await answer(tools.handlers()["tools/list"], {"cursor": first.next_cursor})
    assert [tool.name for tool in first.tools + second.tools] == ["tool_3", "tool_1", "tool_2"]
    assert second.next_cursor is None


def test_changes_are_announced_when_they_can_be_seen() -> None:
    sizes: list[int] = []
    registry: Tools = Tools(**options(on_change=lambda: sizes.append(len(registry.listing()))))
    registry.add(add)
    registry.remove("add")
    assert sizes == [1, 0]
    assert registry.version == 2
    assert not registry


def test_names_that_are_taken_or_unknown_are_refused() -> None:
    changes = Changes()
    tools = Tools(**options(on_change=changes))
    tools.add(add)
    with pytest.raises(LocalProtocolError, match="already a tool 'add'"):
        tools.add(add)
    with pytest.raises(LocalProtocolError, match="no tool 'sub'"):
        tools.remove("sub")
    assert changes.count == 1


@pytest.mark.parametrize(
    ("name", "warned"), [("a.B_9-x", False), ("a b", True), ("x" * 129, True), ("ä", True), ("", True)]
)
def test_an_unusual_name_is_taken_with_a_warning(tools: Tools, name: str, warned: bool) -> None:
    with structlog.testing.capture_logs() as logs:
        assert tools.add(add, name=name).name == name
    assert [entry["log_level"] for entry in logs] == ["warning"] * warned


def test_a_function_without_a_name_needs_one(tools: Tools) -> None:
    with pytest.raises(TypeError, match="give name="):
        tools.add(lambda: None)
    with pytest.raises(TypeError, match="give name="):
        tools.add(functools.partial(add, b=2))


# -- arguments -------------------------------------------------------------------------------------------------------


async def test_a_call_binds_runs_and_answers_structured(tools: Tools) -> None:
    tools.add(add)
    result = await call(tools, "add", {"a": 1, "b": 2})
    assert result.structured_content == {"total": 3}
    assert result.content == [TextContent('{"total":3}')]
    assert result.is_error is None


async def test_an_unknown_tool_is_an_error_of_the_protocol(tools: Tools) -> None:
    with pytest.raises(RpcError, match="unknown tool: sub") as caught:
        await call(tools, "sub", {})
    assert caught.value.code == -32602


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": None},
        {"name": 7},
        {"name": ["add"]},
        {"name": {}},
        {"name": "add", "arguments": []},
        {"name": "add", "arguments": "a"},
        {"name": "add", "arguments": 0},
        {"name": "add", "arguments": False},
    ],
)
async def test_params_of_the_wrong_form_are_errors_of_the_protocol(
    tools: Tools, params: dict[str, Any]
) -> None:
    tools.add(add)
    with pytest.raises(RpcError) as caught:
        await answer(tools.handlers()["tools/call"], params)
    assert caught.value.code == -32602


@pytest.mark.parametrize("arguments", [UNSET, None, {}])
async def test_no_arguments_are_an_empty_object(tools: Tools, arguments: Any) -> None:
    async def nothing() -> str:
        return "done"

    tools.add(nothing)
    assert (await call(tools, "nothing", arguments)).content == [TextContent("done")]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({}, "a"), ({"a": "1"}, "a"), ({"a": 1, "b": None}, "b"), ({"a": 1, "c": 2}, "c")],
)
async def test_wrong_arguments_reach_the_model_by_name(tools: Tools, arguments: Any, named: str) -> None:
    tools.add(add)
    result = await call(tools, "add", arguments)
    assert result.is_error is True
    assert named in result.content[0].text
    assert result.structured_content is UNSET


async def test_a_raw_schema_gives_the_function_one_dict(tools: Tools) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "$comment": "kept",
    }

    async def raw(arguments: dict[str, Any], ctx: FakeContext) -> dict[str, Any]:
        assert ctx.params["name"] == "raw"
        return arguments

    assert tools.add(raw, input_schema=schema).input_schema == schema
    assert (await call(tools, "raw", {"n": 1, "more": [2]})).structured_content == {"n": 1, "more": [2]}
    refused = await call(tools, "raw", {"n": "1"})
    assert refused.is_error
    assert "n" in refused.content[0].text


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array"},
        {"type": "object", "properties": 7},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}},
    ],
)
def test_a_raw_schema_that_cannot_be_used_is_refused_at_once(tools: Tools, schema: dict[str, Any]) -> None:
    async def raw(arguments: dict[str, Any]) -> None: ...

    with pytest.raises(ValueError, match=r".+"):
        tools.add(raw, input_schema=schema)
    assert not tools


async def test_the_context_is_injected_and_in_no_schema(tools: Tools) -> None:
    async def who(name: str, *, ctx: FakeContext) -> str:
        return f"{name} {ctx.server}"

    assert list(tools.add(who).input_schema["properties"]) == ["name"]
    assert (await call(tools, "who", {"name": "I"}, server="here")).content[0].text == "I here"
    refused = await call(tools, "who", {"name": "I", "ctx": {}})
    assert refused.is_error


# -- three ways to run -----------------------------------------------------------------------------------------------

marker: contextvars.ContextVar[str] = contextvars.ContextVar("marker", default="unset")


async def test_a_plain_function_runs_in_a_worker_thread_with_the_context_variables(tools: Tools) -> None:
    def where(ctx: FakeContext) -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        trio.from_thread.check_cancelled()
        return [marker.get(), ctx.server]

    tools.add(where)
    marker.set("mine")
    assert (await call(tools, "where", server="s")).structured_content == ["mine", "s"]


async def test_worker_threads_are_bounded_and_a_cancelled_call_abandons_its_own() -> None:
    threads = WorkerThreads(1)
    tools = Tools(**{**options(), "threads": threads})
    release = threading.Event()

    def block() -> str:
        release.wait()
        return "late"

    tools.add(block)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, tools, "block")
        while threads.running < 1:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(call, tools, "block")
        while threads.waiting < 1:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert threads.running == 1
    release.set()
    while threads.running:
        await trio.lowlevel.checkpoint()


async def test_an_inline_function_answers_without_a_task(tools: Tools) -> None:
    def quick(a: int, ctx: FakeContext) -> int:
        assert threading.current_thread() is threading.main_thread()
        if a > 9:
            raise ToolError("too big")
        return a

    tools.add(quick, inline=True)
    attempt = tools.handlers()["tools/call"]
    assert attempt is not None
    assert attempt(FakeContext({"name": "quick", "arguments": {"a": 3}})) == ValueResult("3", 3)
    assert attempt(FakeContext({"name": "quick", "arguments": {"a": 10}})).is_error
    assert attempt(FakeContext({"name": "quick", "arguments": {"a": "3"}})).is_error


async def test_what_cannot_run_inline_declines_before_anything_ran(tools: Tools) -> None:
    ran: list[str] = []

    async def slow() -> None:
        ran.append("slow")

    def plain() -> None:
        ran.append("plain")

    tools.add(slow, inline=True)
    tools.add(plain)
    attempt = tools.handlers()["tools/call"]
    assert attempt is not None
    assert isinstance(attempt(FakeContext({"name": "slow"})), Continuation)
    assert isinstance(attempt(FakeContext({"name": "plain"})), Continuation)
    assert ran == []
    with pytest.raises(RpcError, match="unknown tool"):
        attempt(FakeContext({"name": "other"}))


async def test_a_plain_function_round_an_async_one_is_awaited_on_the_loop(tools: Tools) -> None:
    def decorated(a: int) -> Any:
        return add(a)

    tools.add(decorated)
    assert (await call(tools, "decorated", {"a": 1})).structured_content == {"total": 2}
    tools.add(decorated, name="inline", inline=True)
    with pytest.raises(TypeError, match="async def"):
        await call(tools, "inline", {"a": 1})


async def test_bound_methods_partials_and_callable_objects_are_tools_too(tools: Tools) -> None:
    class Adder:
        async def method(self, a: int) -> int:
            return a + 1

        async def __call__(self, a: int) -> int:
            return a + 2

    tools.add(Adder().method)
    tools.add(Adder(), name="object")
    tools.add(functools.partial(add, b=3), name="partial")
    assert (await call(tools, "method", {"a": 1})).structured_content == 2
    assert (await call(tools, "object", {"a": 1})).structured_content == 3
    assert (await call(tools, "partial", {"a": 1})).structured_content == {"total": 4}


def test_a_generator_is_not_inline(tools: Tools) -> None:
    async def stream():  # type: ignore[no-untyped-def]
        yield 1

    with pytest.raises(TypeError, match="remove inline=True"):
        tools.add(stream, inline=True)


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [True, False])
async def test_a_tool_error_reaches_the_model(tools: Tools, inline: bool) -> None:
    def fail() -> str:
        raise ToolError("no such table: x")

    tools.add(fail, inline=inline)
    result = await call(tools, "fail")
    assert result == CallToolResult([TextContent("no such table: x")], is_error=True)


@pytest.mark.parametrize(
    "error", [RpcError(-1, "rejected"), MissingCapability({"sampling": {}}), ZeroDivisionError("inner")]
)
async def test_every_other_exception_passes_through(tools: Tools, error: Exception) -> None:
    async def fail() -> None:
        raise error

    tools.add(fail)
    with pytest.raises(type(error)) as caught:
        await call(tools, "fail")
    assert caught.value is error


# -- results ---------------------------------------------------------------------------------------------------------

IMAGE = ImageContent("iVBORw0KGgo=", "image/png")


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, []),
        ("", [TextContent("")]),
        ("a\nb", [TextContent("a\nb")]),
        (IMAGE, [IMAGE]),
        ([IMAGE, "and text"], [IMAGE, TextContent("and text")]),
        ((IMAGE,), [IMAGE]),
    ],
)
async def test_content_is_sent_as_content(value: Any, content: list[Any]) -> None:
    result = await returned(value)
    assert result.content == content
    assert result.structured_content is UNSET


@pytest.mark.parametrize(
    ("value", "structured", "text"),
    [
        ({"a": [1, None]}, {"a": [1, None]}, '{"a":[1,null]}'),
        (Sum(3), {"total": 3}, '{"total":3}'),
        (["a", "b"], ["a", "b"], '["a","b"]'),
        ([], [], "[]"),
        (0, 0, "0"),
        (False, False, "false"),
        ({"ä": "☃"}, {"ä": "☃"}, '{"ä":"☃"}'),
    ],
)
async def test_any_other_value_is_structured_with_its_json_as_text(
    value: Any, structured: Any, text: str
) -> None:
    result = await returned(value)
    assert result.structured_content == structured
    assert result.content == [TextContent(text)]


@pytest.mark.parametrize("hint", [list, tuple, Sequence, list[Any], list[object], Sequence[Any], Any, object])
async def test_a_sequence_of_anything_is_sent_by_what_is_in_it(tools: Tools, hint: Any) -> None:
    returns: list[Any] = [["a", IMAGE], ["a", "b"], []]

    async def items() -> Any:
        return returns.pop(0)

    items.__annotations__["return"] = hint
    assert tools.add(items).output_schema is None
    found = [await call(tools, "items") for _ in range(3)]
    assert [(each.content, each.structured_content) for each in found] == [
        ([TextContent("a"), IMAGE], UNSET),
        ([TextContent('["a","b"]')], ["a", "b"]),
        ([TextContent("[]")], []),
    ]


@pytest.mark.parametrize("value", [[1, IMAGE], (IMAGE, {"a": 1}), iter([None, IMAGE])])
async def test_other_values_among_blocks_are_refused_with_what_to_write(value: Any) -> None:
    with pytest.raises(
        InvalidResult, match=r"among content blocks; return text in its place, or CallToolResult"
    ):
        await returned(value)


async def test_a_whole_result_is_sent_as_it_is() -> None:
    result = CallToolResult([IMAGE], is_error=True)
    assert await returned(result) is result


async def test_a_tool_with_an_output_schema_owes_structured_content(tools: Tools) -> None:
    async def names(how: int) -> list[str]:
        return ["a"] if how else CallToolResult([])  # type: ignore[return-value]

    assert tools.add(names).output_schema is not None
    assert (await call(tools, "names", {"how": 1})).structured_content == ["a"]
    with pytest.raises(InvalidResult, match="without structured_content"):
        await call(tools, "names", {"how": 0})


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"total": "3"},
        lambda: CallToolResult([], structured_content={"total": "3"}),
        lambda: CallToolResult([]),
        lambda: "text",
        lambda: None,
    ],
)
async def test_a_value_that_misses_the_raw_output_schema_fails_the_call(make: Callable[[], Any]) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    with pytest.raises(InvalidResult):
        await returned(make(), output_schema=schema)


async def test_a_raw_output_schema_is_listed_and_its_values_pass(tools: Tools) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    assert tools.add(add, output_schema=schema).output_schema == schema
    assert (await call(tools, "add", {"a": 1})).structured_content == {"total": 2}
    failed = CallToolResult([TextContent("no")], is_error=True)
    assert await returned(failed, output_schema=schema) is failed


@pytest.mark.parametrize("value", [object(), {1, object()}, {"a": object()}])
async def test_a_value_that_is_no_json_fails_the_call(value: Any) -> None:
    with pytest.raises(InvalidResult):
        await returned(value)
