"""Prompts: arguments from the signature, text only, and messages from what the function returns."""

from __future__ import annotations

import threading
import uuid
from typing import Annotated, Any, Literal

import pytest

from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._server.prompts import Prompts
from mcp_actors.errors import LocalProtocolError, RpcError
from mcp_actors.types import (
    EmbeddedResource,
    GetPromptResult,
    PromptMessage,
    TextContent,
    TextResourceContents,
)

from .fakes import FakeContext, answer, options


async def review(
    code: str, style: Literal["terse", "kind"] = "kind", since: str | None = None, *, ctx: FakeContext
) -> str:
    """Reviews code.

    Args:
        code: What to review.
        style: In which tone.
    """
    return f"{style}: {code} {since} {ctx.server}"


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(**options())


async def get(prompts: Prompts, name: Any, arguments: Any = None, **more: Any) -> Any:
    return await answer(prompts.handlers()["prompts/get"], {"name": name, "arguments": arguments}, **more)


async def returned(value: Any) -> GetPromptResult:
    prompts = Prompts(**options())

    async def give():  # type: ignore[no-untyped-def]
        """Gives."""
        return value

    prompts.add(give)
    result = await get(prompts, "give")
    assert isinstance(result, GetPromptResult)
    return result


async def test_a_prompt_is_listed_with_the_arguments_of_its_signature(prompts: Prompts) -> None:
    prompt = prompts.add(review, title="Review")
    listed: Any
    (listed,) = (await answer(prompts.handlers()["prompts/list"], {})).prompts
    assert listed.title == "Review"
    assert listed.description.startswith("Reviews code.")
    assert [(each.name, each.description, each.required) for each in listed.arguments] == [
        ("code", "What to review.", True),
        ("style", "In which tone.", False),
        ("since", None, False),
    ]
    assert listed is prompt is prompts.get("review")


async def test_a_prompt_without_arguments_lists_none_and_has_a_description(prompts: Prompts) -> None:
    def bare() -> str:
        return "x"

    listed = prompts.add(bare)
    assert listed.arguments is None
    assert listed.description == "bare"
    assert (await get(prompts, "bare", {})).messages == [PromptMessage("user", TextContent("x"))]


async def test_the_list_comes_in_pages() -> None:
    prompts = Prompts(**options(page_size=1))
    prompts.add(review)
    prompts.add(review, name="again")
    first = await answer(prompts.handlers()["prompts/list"], {})
    second = await answer(prompts.handlers()["prompts/list"], {"cursor": first.next_cursor})
    assert [each.name for each in first.prompts + second.prompts] == ["review", "again"]
    with pytest.raises(RpcError, match="invalid cursor"):
        await answer(prompts.handlers()["prompts/list"], {"cursor": ""})


async def test_arguments_and_context_reach_the_function(prompts: Prompts) -> None:
    prompts.add(review)
    result = await get(prompts, "review", {"code": "x = 1", "style": "terse"}, server="s")
    assert result.messages == [PromptMessage("user", TextContent("terse: x = 1 None s"))]
    assert result.description.startswith("Reviews code.")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "name"),
        ({"name": 7}, "name"),
        ({"name": "other"}, "unknown prompt: other"),
        ({"name": "review"}, "missing argument: code"),
        ({"name": "review", "arguments": {"style": "kind"}}, "missing argument: code"),
        ({"name": "review", "arguments": {"code": "x", "tone": "y"}}, "unknown argument: tone"),
        ({"name": "review", "arguments": {"code": "x", "ctx": "y"}}, "unknown argument: ctx"),
        ({"name": "review", "arguments": {"code": 7}}, "'code' must be a string"),
        ({"name": "review", "arguments": {"code": None}}, "'code' must be a string"),
        ({"name": "review", "arguments": {"code": "x", "since": None}}, "'since' must be a string"),
        ({"name": "review", "arguments": {"code": "x", "style": "rude"}}, "style"),
        ({"name": "review", "arguments": []}, "'arguments' must be an object"),
    ],
)
async def test_wrong_params_are_errors_of_the_protocol(
    prompts: Prompts, params: dict[str, Any], message: str
) -> None:
    prompts.add(review)
    with pytest.raises(RpcError, match=message) as caught:
        await answer(prompts.handlers()["prompts/get"], params)
    assert caught.value.code == -32602


def _int(a: int) -> str: ...  # type: ignore[empty-body]
def _list(a: list[str]) -> str: ...  # type: ignore[empty-body]
def _numbers(a: Literal[1, 2]) -> str: ...  # type: ignore[empty-body]
def _optional_int(a: int | None = None) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [_int, _list, _numbers, _optional_int])
def test_a_parameter_that_takes_no_text_is_refused_at_once(prompts: Prompts, function: Any) -> None:
    with pytest.raises(TypeError, match="'a' must be annotated with str"):
        prompts.add(function)
    assert not prompts


async def test_a_type_that_is_written_as_text_is_read_from_it(prompts: Prompts) -> None:
    async def show(id: uuid.UUID, note: Annotated[str, "any"] = "") -> str:
        assert isinstance(id, uuid.UUID)
        return f"{id}"

    prompts.add(show)
    text = str(uuid.UUID(int=7))
    assert (await get(prompts, "show", {"id": text})).messages[0].content == TextContent(text)
    with pytest.raises(RpcError, match="id"):
        await get(prompts, "show", {"id": "seven"})


IMAGE = EmbeddedResource(TextResourceContents("a:1", "x"))


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hello", [PromptMessage("user", TextContent("hello"))]),
        (IMAGE, [PromptMessage("user", IMAGE)]),
        (PromptMessage("assistant", IMAGE), [PromptMessage("assistant", IMAGE)]),
        (
            [PromptMessage("assistant", IMAGE), "b", IMAGE],
            [
                PromptMessage("assistant", IMAGE),
                PromptMessage("user", TextContent("b")),
                PromptMessage("user", IMAGE),
            ],
        ),
        (("a", "b"), [PromptMessage("user", TextContent("a")), PromptMessage("user", TextContent("b"))]),
        ([], []),
    ],
)
async def test_what_is_returned_becomes_messages(value: Any, messages: list[PromptMessage]) -> None:
    result = await returned(value)
    assert result.messages == messages
    assert result.description == "Gives."


async def test_a_whole_result_is_sent_as_it_is() -> None:
    whole = GetPromptResult([])
    assert await returned(whole) is whole


@pytest.mark.parametrize("value", [None, 7, {"role": "user"}, [None], [["a"]]])
async def test_anything_else_fails_the_call(value: Any) -> None:
    with pytest.raises(InvalidResult, match="a prompt returns strings"):
        await returned(value)


async def test_plain_functions_run_in_a_thread_or_inline(prompts: Prompts) -> None:
    def where() -> str:
        return "loop" if threading.current_thread() is threading.main_thread() else "thread"

    prompts.add(where)
    prompts.add(where, name="inline", inline=True)
    assert (await get(prompts, "where")).messages[0].content == TextContent("thread")
    attempt = prompts.handlers()["prompts/get"]
    assert attempt is not None
    assert isinstance(attempt(FakeContext({"name": "where"})), Continuation)
    assert attempt(FakeContext({"name": "inline"})).messages[0].content == TextContent("loop")


async def test_errors_of_the_function_pass_through(prompts: Prompts) -> None:
    async def fail() -> str:
        raise RpcError(-5, "no")

    prompts.add(fail)
    with pytest.raises(RpcError, match="no") as caught:
        await get(prompts, "fail")
    assert caught.value.code == -5


def test_names_that_are_taken_or_unknown_are_refused(prompts: Prompts) -> None:
    prompts.add(review)
    with pytest.raises(LocalProtocolError, match="already a prompt"):
        prompts.add(review)
    prompts.remove("review")
    with pytest.raises(LocalProtocolError, match="no prompt"):
        prompts.remove("review")
