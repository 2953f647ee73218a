"""Forms that are asked for by a class, and contexts that name what the server's lifespan yields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Optional

import attrs
import pydantic
import pytest
import trio
from structlog.testing import capture_logs
from typing_extensions import TypedDict

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.server import FormResult
from mcp_actors.types import ElicitFormParams, ElicitResult

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


@dataclass
class Order:
    dish: str
    size: Literal["small", "large"] = "small"
    number: int = 1
    note: str | None = None


@attrs.frozen
class Table:
    seats: int


class Guest(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def is_known(cls, name: str) -> str:
        if name == "nobody":
            raise ValueError("nobody knows them")
        return name


class Wish(TypedDict):
    wish: str


def answering(content: dict[str, Any] | None, action: Any = "accept") -> Any:
    async def elicit(question: object) -> ElicitResult:
        assert isinstance(question, ElicitFormParams)
        return ElicitResult(action, content)

    return elicit


def restaurant(seen: list[Any], form: Any) -> Server:
    server = Server("restaurant")

    @server.tool
    async def take(ctx: Context) -> str:
        answer = await ctx.elicit("What?", form)
        assert isinstance(answer, FormResult)
        seen.append((answer.action, answer.data))
        return "done"

    @server.tool(loop="asyncio")
    async def take_in_asyncio(ctx: Context) -> str:
        answer = await ctx.elicit("What?", form)
        assert isinstance(answer, FormResult)
        seen.append((answer.action, answer.data))
        return "done"

    @server.tool
    def take_in_thread(ctx: SyncContext) -> str:
        answer = ctx.elicit("What?", form)
        assert isinstance(answer, FormResult)
        seen.append((answer.action, answer.data))
        return "done"

    return server


@ERAS
@pytest.mark.parametrize("tool", ["take", "take_in_thread", "take_in_asyncio"])
@pytest.mark.parametrize(
    ("form", "content", "expected"),
    [
        (Order, {"dish": "soup", "number": 2}, Order("soup", "small", 2)),
        (Table, {"seats": 4}, Table(4)),
        (Guest, {"name": "Ada"}, Guest(name="Ada")),
        (Wish, {"wish": "peace"}, {"wish": "peace"}),
    ],
)
async def test_a_form_is_answered_with_an_object(
    era: str, tool: str, form: Any, content: dict[str, Any], expected: object
) -> None:
    seen: list[Any] = []
    async with Client(restaurant(seen, form), era=era, elicitation=answering(content)) as client:
        assert (await client.call_tool(tool)).text == "done"
    assert seen == [("accept", expected)]


@ERAS
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_form_that_is_not_accepted_has_no_data(era: str, action: str) -> None:
    seen: list[Any] = []
    async with Client(restaurant(seen, Order), era=era, elicitation=answering(None, action)) as client:
        await client.call_tool("take")
    assert seen == [(action, None)]


@ERAS
async def test_an_answer_that_the_class_refuses_never_reaches_the_function(era: str) -> None:
    seen: list[Any] = []
    async with Client(restaurant(seen, Guest), era=era, elicitation=answering({"name": "nobody"})) as client:
        with capture_logs() as logs, trio.fail_after(5):
            try:
                text = (await client.call_tool("take")).text
            except Exception as error:
                text = str(error)
    assert "does not fit the form" in text
    assert "nobody knows them" in text
    assert seen == []
    # With a session it fails the function that asked, which may catch it; a retry that does not fit is not run.
    assert [each["event"] for each in logs] == (["handler failed"] if era == "legacy" else [])


class Database:
    def __init__(self) -> None:
        self.rows = ["one"]


@asynccontextmanager
async def opened(server: Server[Database]) -> AsyncIterator[Database]:
    yield Database()


async def test_a_context_names_the_state() -> None:
    server = Server("typed", lifespan=opened)

    @server.tool
    async def named(ctx: Context[Database]) -> list[str]:
        # There is a context for each call: the parameter of the class must not make it any bigger.
        assert not hasattr(ctx, "__dict__")
        return ctx.state.rows

    @server.tool
    async def maybe(ctx: Context[Database] | None = None) -> list[str]:
        return ctx.state.rows if ctx is not None else []

    @server.tool
    async def old_maybe(ctx: Optional[Context[Database]] = None) -> list[str]:  # noqa: UP045
        return ctx.state.rows if ctx is not None else []

    @server.tool
    async def text(ctx: "Context[Database]") -> list[str]:  # noqa: UP037
        return ctx.state.rows

    @server.tool(loop="asyncio")
    async def in_asyncio(ctx: Context[Database]) -> list[str]:
        return ctx.state.rows

    @server.tool
    def in_thread(ctx: SyncContext[Database]) -> list[str]:
        return ctx.state.rows

    async with Client(server) as client:
        async for tool in client.tools():
            assert tool.input_schema["properties"] == {}
            assert await client.call_tool(tool.name, returns=list[str]) == ["one"]


@pytest.mark.parametrize("annotation", [SyncContext[Database], Optional[SyncContext[Database]]])  # noqa: UP045
def test_an_async_function_that_takes_the_sync_context_is_refused(annotation: Any) -> None:
    async def wrong(ctx: Any) -> None: ...

    wrong.__annotations__["ctx"] = annotation
    with pytest.raises(TypeError, match="is async, and awaits its context: write ctx: Context"):
        Server("typed").add_tool(wrong)
