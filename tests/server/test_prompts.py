"""Prompts: arguments from the signature, text only, and messages from what the function returns."""

from __future__ import annotations

import base64
import datetime
import enum
import threading
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors import Client, Server
from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.registry import page
from mcp_actors._server.scope import VARIABLE, derived_key, state_key_of_environment
from mcp_actors.errors import LocalProtocolError, ResourceNotFound, RpcError
from mcp_actors.types import (
    EmbeddedResource,
    GetPromptResult,
    PromptMessage,
    PromptReference,
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


def test_a_parameter_that_nothing_can_be_written_for_is_refused_at_once(prompts: Prompts) -> None:
    def nothing(a: None) -> str: ...  # type: ignore[empty-body]

    with pytest.raises(TypeError, match="'a' takes nothing that can be written as text"):
        prompts.add(nothing)
    assert not prompts


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Place:
    name: str
    height: int


# A parameter, what the client is told of it, texts with what the function is handed, and texts that are refused.
READ: dict[str, tuple[Any, str | None, dict[str, Any], list[str]]] = {
    "int": (int, "value (a whole number)", {"3": 3, "-1": -1, "3.0": 3}, ["three", "3.5", "", "true", "0x3"]),
    "float": (float, "value (a number)", {"3": 3.0, "1e2": 100.0}, ["nan", "1e999", "x"]),
    "bool": (bool, "value (true or false)", {"true": True, "False": False}, ["yes", "1", ""]),
    "enum": (Level, "value (a whole number)", {"2": Level.HIGH}, ["3", "HIGH"]),
    "literal": (Literal[1, 2], "value (a whole number)", {"2": 2}, ["3"]),
    "date": (datetime.date, None, {"2026-11-23": datetime.date(2026, 11, 23)}, ["23.11.2026", "1"]),
    "list": (list[str], "value (a JSON array)", {'["a"]': ["a"]}, ["a", "[1]", "["]),
    "class": (
        Place,
        "value (a JSON object)",
        {'{"name": "a", "height": "3"}': Place("a", 3)},
        ["a", '{"name": "a"}', '{"name": "a", "name": "b", "height": 1}'],
    ),
    "int or text": (int | str, None, {"3": "3"}, []),
}


@pytest.mark.parametrize(("annotation", "told", "taken", "refused"), READ.values(), ids=READ.keys())
async def test_what_the_function_takes_is_read_from_the_text(
    annotation: Any, told: str | None, taken: dict[str, Any], refused: list[str]
) -> None:
    server = Server("s")
    handed: list[Any] = []

    async def take(value: Any) -> str:
        handed.append(value)
        return "taken"

    take.__annotations__["value"] = annotation
    server.add_prompt(take)
    server.add_resource("take://{value}", take)
    async with Client(server) as client:
        [prompt] = [each async for each in client.prompts()]
        assert [each.description for each in prompt.arguments or ()] == [told]
        for text, value in taken.items():
            await client.get_prompt("take", {"value": text})
            await client.read_resource(f"take://{quote(text, safe='')}")
            assert handed == [value, value]
            assert {type(each) for each in handed} == {type(value)}
            handed.clear()
        for text in refused:
            with pytest.raises(RpcError) as caught:
                await client.get_prompt("take", {"value": text})
            assert caught.value.code == -32602
            with pytest.raises(ResourceNotFound):
                await client.read_resource(f"take://{quote(text, safe='')}")
    assert handed == []


async def test_an_empty_text_for_an_optional_number_is_none_and_values_are_completed() -> None:
    server = Server("s")

    @server.prompt
    async def plan(days: int = 7, level: Level | None = None, sure: bool = False, note: str = "x") -> str:
        return f"{days} {level!r} {sure} {note!r}"

    async with Client(server) as client:
        prompt = await client.get_prompt("plan", {"days": "", "level": "", "sure": "true", "note": ""})
        assert prompt.messages[0].content == TextContent("7 None True ''")
        for argument, values in {"level": ["1", "2"], "sure": ["true", "false"], "days": []}.items():
            found = await client.complete(PromptReference("plan"), argument, "")
            assert found.values == values


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


# -- Pages and cursors: every entry once, through any change of the list, and no cursor but our own ------


@attrs.frozen
class Row:
    serial: int
    key: str


def rows(count: int, first: int = 1) -> list[Row]:
    return [Row(number, f"row {number}") for number in range(first, first + count)]


def walk(entries: list[Row], size: int) -> list[str]:
    seen: list[str] = []
    params: dict[str, object] = {}
    while True:
        shown, cursor = page(entries, params, kind="rows", size=size)
        assert 0 < len(shown) <= size or not entries
        seen += [row.key for row in shown]
        if cursor is None:
            return seen
        params = {"cursor": cursor}


@given(count=st.integers(0, 60), size=st.integers(1, 20))
def test_walking_all_pages_shows_every_entry_once_in_order(count: int, size: int) -> None:
    entries = rows(count)
    assert walk(entries, size) == [row.key for row in entries]


@given(data=st.data(), count=st.integers(1, 30), size=st.integers(1, 7))
def test_what_stays_in_a_changing_list_is_shown_exactly_once(
    data: st.DataObject, count: int, size: int
) -> None:
    entries = rows(count)
    always = {row.key for row in entries}
    seen: list[str] = []
    params: dict[str, object] = {}
    next_serial = count + 1
    while True:
        shown, cursor = page(entries, params, kind="rows", size=size)
        seen += [row.key for row in shown]
        if cursor is None:
            break
        params = {"cursor": cursor}
        gone = data.draw(st.sets(st.sampled_from(entries), max_size=3)) if entries else set()
        entries = [row for row in entries if row not in gone]
        always -= {row.key for row in gone}
        if data.draw(st.booleans()) and next_serial < 60:
            entries.append(Row(next_serial, f"row {next_serial}"))
            next_serial += 1
    assert len(set(seen)) == len(seen)
    assert always <= set(seen)


def test_an_entry_that_was_removed_and_added_again_does_not_end_the_list_early() -> None:
    entries = rows(4)
    _, cursor = page(entries, {}, kind="rows", size=2)
    moved = [entries[0], entries[2], entries[3], Row(5, "row 2")]
    shown, _ = page(moved, {"cursor": cursor}, kind="rows", size=10)
    assert shown == []  # the entry the cursor names is last now, and all before it were there to be seen


def test_a_cursor_means_the_same_in_another_process_with_another_order() -> None:
    _, cursor = page(rows(4), {}, kind="rows", size=2)
    other = [Row(1, "row 4"), Row(2, "row 1"), Row(3, "row 2"), Row(4, "row 3")]
    shown, _ = page(other, {"cursor": cursor}, kind="rows", size=10)
    assert [row.key for row in shown] == ["row 3"]


def test_a_cursor_at_the_end_of_a_list_that_shrank_gives_an_empty_last_page() -> None:
    _, cursor = page(rows(3), {}, kind="rows", size=2)
    assert page(rows(1), {"cursor": cursor}, kind="rows", size=2) == ([], None)


def test_null_and_absent_cursor_mean_the_first_page() -> None:
    assert page(rows(3), {"cursor": None}, kind="rows", size=2) == page(rows(3), {}, kind="rows", size=2)


@pytest.mark.parametrize(
    "cursor", ["", "=", "x", "ÿ", "bm90IGpzb24", "WyJyb3dzIiwtMSwiYSJd", "W10", 0, 7, True, [], {}, "=" * 99]
)
def test_anything_but_our_own_cursor_is_refused(cursor: object) -> None:
    with pytest.raises(RpcError, match="cursor") as caught:
        page(rows(3), {"cursor": cursor}, kind="rows", size=2)
    assert caught.value.code == -32602


@given(st.text(max_size=40))
def test_any_text_but_our_own_cursor_is_refused(text: str) -> None:
    with pytest.raises(RpcError) as caught:
        page(rows(3), {"cursor": text}, kind="rows", size=2)
    assert caught.value.code == -32602


def test_the_cursor_of_another_list_is_refused() -> None:
    _, cursor = page(rows(3), {}, kind="tools", size=2)
    with pytest.raises(RpcError, match="invalid cursor"):
        page(rows(3), {"cursor": cursor}, kind="prompts", size=2)


def test_a_cursor_shows_no_name_in_clear_text_and_survives_any_key() -> None:
    entries = [Row(1, "ключ/☃"), Row(2, "b")]
    _, cursor = page(entries, {}, kind="rows", size=1)
    assert cursor is not None
    assert cursor.isascii()
    assert page(entries, {"cursor": cursor}, kind="rows", size=1) == ([entries[1]], None)


# -- The key that the processes of one server share may come from the environment ------------------------

KEY = bytes(range(200, 232))


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode().rstrip("="),
        f"  {KEY.hex()}\n",
    ],
)
def test_a_key_is_hexadecimal_or_base64(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert state_key_of_environment() == KEY


@pytest.mark.parametrize(
    ("text", "said"),
    [("secret word!", "neither hexadecimal"), ("abcd", "has 2 bytes"), ("c2hvcnQ=", "has 5 bytes")],
)
def test_a_key_that_is_none_is_refused_where_the_server_is_made(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=said) as refused:
        Server("kiosk")
    assert text not in str(refused.value)


def test_a_program_that_gives_a_key_does_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "not a key")
    assert Server("kiosk", state_key=KEY).name == "kiosk"


@pytest.mark.parametrize("empty", ["", "  "])
def test_without_a_key_each_server_has_one_of_its_own(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, empty)
    assert state_key_of_environment() != state_key_of_environment()


def test_derived_keys_are_the_same_for_one_purpose_only() -> None:
    assert derived_key(KEY, "nonces") == derived_key(KEY, "nonces")
    assert (
        len({derived_key(KEY, "nonces"), derived_key(KEY, "others"), derived_key(KEY[:16], "nonces"), KEY})
        == 4
    )
