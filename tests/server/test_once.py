"""``ctx.once``: an effect happens once for a call, however often its function runs, and whoever repeats what."""

from __future__ import annotations

import asyncio
import base64
import functools
import math
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.abc import SharedState
from mcp_actors.errors import (
    LocalProtocolError,
    OnceConflict,
    OnceFailed,
    OutcomeUnknown,
    RpcError,
    SharedStateUnavailable,
    ToolError,
)
from mcp_actors.shared import MemoryShared
from mcp_actors.shared.redis import RedisShared
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams
from tests.messages import modern_meta as meta
from tests.messages import notification, request
from tests.redis_server import RedisServer
from tests.scripted_peers import modern
from tests.server.asking import ALL, FORM, KEY, accept

ERAS = ["2025-11-25", "2026-07-28"]


@dataclass
class Payment:
    id: str
    cents: int


class Shop:
    """A server whose tools have effects, which it counts."""

    def __init__(self, shared: SharedState | None = None, key: bytes = KEY) -> None:
        self.effects: list[str] = []
        self.server = Server("shop", state_key=key, shared=shared, mask_errors=False)
        self.gate = trio.Event()
        self.begun = trio.Event()
        self.fails: list[Exception] = []

    async def charge(self, cents: int) -> Payment:
        self.effects.append(f"charge {cents}")
        await trio.lowlevel.checkpoint()
        return Payment(f"p{len(self.effects)}", cents)

    async def mail(self, text: str) -> None:
        self.effects.append(f"mail {text}")

    async def slow(self) -> str:
        self.effects.append("slow")
        self.begun.set()
        await self.gate.wait()
        return "slowly"

    async def failing(self) -> str:
        self.effects.append("try")
        if self.fails:
            raise self.fails.pop(0)
        return "done"


async def answer(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("accept", {"name": question.message.split()[0]})


async def name_of(ctx: Context, what: str) -> str:
    answer = await ctx.elicit(f"{what} please", FORM)
    assert answer.content is not None
    return str(answer.content["name"])


async def buy(shop: Shop, ctx: Context) -> str:
    payment = await ctx.once("charge", shop.charge, 42)
    assert isinstance(payment, Payment)
    first = await name_of(ctx, "street")
    await ctx.once("mail", shop.mail, first)
    second = await name_of(ctx, "town")
    again = await ctx.once("last", shop.charge, 1)
    return f"{payment.id} {payment.cents} {first} {second} {again.id}"


@pytest.mark.parametrize("era", ERAS)
async def test_effects_between_questions_happen_once(era: str) -> None:
    shop = Shop()

    @shop.server.tool(name="buy")
    async def tool(ctx: Context) -> str:
        return await buy(shop, ctx)

    async with Client(shop.server, era=era, elicitation=answer) as client:
        assert (await client.call_tool("buy")).text == "p1 42 street town p3"
    assert shop.effects == ["charge 42", "mail street", "charge 1"]


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_and_resources_have_it_too(era: str) -> None:
    shop = Shop()

    @shop.server.prompt
    async def letter(ctx: Context) -> str:
        await ctx.once("mail", shop.mail, "a")
        return await name_of(ctx, "Ann")

    @shop.server.resource("x://letter")
    async def page(ctx: Context) -> str:
        await ctx.once("mail", shop.mail, "b")
        return await name_of(ctx, "Ann")

    async with Client(shop.server, era=era, elicitation=answer) as client:
        assert (await client.get_prompt("letter")).text == "Ann"
        assert (await client.read_resource("x://letter")).text == "Ann"
    assert shop.effects == ["mail a", "mail b"]


@pytest.mark.parametrize("era", ERAS)
async def test_plain_functions_and_functions_of_asyncio_have_it(era: str) -> None:
    shop = Shop()

    def note(text: str) -> list[str]:
        shop.effects.append(text)
        return [text, text]

    async def note_later(text: str) -> dict[str, int]:
        await asyncio.sleep(0)
        shop.effects.append(text)
        return {text: 1}

    @shop.server.tool
    def in_thread(ctx: SyncContext) -> str:
        first = ctx.once("a", note, "a")
        second = ctx.once("b", shop.charge, 5)
        ctx.elicit("n please", FORM)
        return f"{first} {second.cents}"

    @shop.server.tool(loop="asyncio")
    async def in_asyncio(ctx: Context) -> str:
        first = await ctx.once("c", note_later, "c")
        second = await ctx.once("d", note, "d")
        await ctx.elicit("n please", FORM)
        return f"{first} {second}"

    @shop.server.tool
    async def in_trio(ctx: Context) -> str:
        first = await ctx.once("e", note, "e")
        await ctx.elicit("n please", FORM)
        return f"{first}"

    async with Client(shop.server, era=era, elicitation=answer) as client:
        assert (await client.call_tool("in_thread")).text == "['a', 'a'] 5"
        assert (await client.call_tool("in_asyncio")).text == "{'c': 1} ['d', 'd']"
        assert (await client.call_tool("in_trio")).text == "['e', 'e']"
    assert shop.effects == ["a", "charge 5", "c", "d", "e"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_function_that_only_makes_a_coroutine_is_awaited(era: str) -> None:
    shop = Shop()

    @functools.wraps(shop.charge)
    def decorated(cents: int) -> Awaitable[Payment]:
        return shop.charge(cents)

    async def note_later(text: str) -> str:
        await asyncio.sleep(0)
        shop.effects.append(text)
        return text

    @shop.server.tool
    def in_thread(ctx: SyncContext) -> str:
        first = ctx.once("a", lambda: shop.charge(1))
        second = ctx.once("b", decorated, 2)
        ctx.elicit("n please", FORM)
        return f"{first} {second.cents}"

    @shop.server.tool(loop="asyncio")
    async def in_asyncio(ctx: Context) -> str:
        first = await ctx.once("c", lambda: note_later("c"))
        await ctx.elicit("n please", FORM)
        return first

    @shop.server.tool
    async def in_trio(ctx: Context) -> str:
        first = await ctx.once("d", lambda: shop.charge(3))
        second = await ctx.once("e", decorated, 4)
        await ctx.elicit("n please", FORM)
        return f"{first} {second.cents}"

    async with Client(shop.server, era=era, elicitation=answer) as client:
        assert (await client.call_tool("in_thread")).text == "{'id': 'p1', 'cents': 1} 2"
        assert (await client.call_tool("in_asyncio")).text == "c"
        assert (await client.call_tool("in_trio")).text == "{'id': 'p4', 'cents': 3} 4"
    assert shop.effects == ["charge 1", "charge 2", "c", "charge 3", "charge 4"]


# -- what a client may do with the state that it was given ---------------------------------------------------------


def shop_that_sells(shared: SharedState | None = None) -> Shop:
    shop = Shop(shared)

    @shop.server.tool(name="buy")
    async def tool(ctx: Context, item: str = "") -> str:
        return await buy(shop, ctx)

    return shop


async def call(peer: ScriptedPeer, id: int, tool: str = "buy", **retry: Any) -> Any:
    message = await modern(peer, id, "tools/call", {"name": tool, "arguments": {}, **retry}, capabilities=ALL)
    return message.get("result") or message["error"]


def retry_of(result: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        "inputResponses": {key: accept(name) for key in result["inputRequests"]},
        "requestState": result["requestState"],
    }


async def test_a_retry_that_is_sent_again_does_nothing_again() -> None:
    shop = shop_that_sells()
    async with raw_client(shop.server) as peer:
        first = retry_of(await call(peer, 1), "street")
        second = [retry_of(await call(peer, 2 + number, **first), "town") for number in range(3)]
        texts = {
            (await call(peer, 10 + number, **each))["content"][0]["text"]
            for number, each in enumerate(second)
        }
        # An old state again, after the call has ended, and what follows from it.
        again = retry_of(await call(peer, 20, **first), "village")
        late = (await call(peer, 21, **again))["content"][0]["text"]
    assert texts == {"p1 42 street town p3"}
    assert late == "p1 42 street village p3"
    assert shop.effects == ["charge 42", "mail street", "charge 1"]


async def test_two_retries_at_the_same_time_have_one_effect() -> None:
    shop = Shop()

    @shop.server.tool
    async def wait(ctx: Context) -> str:
        await name_of(ctx, "a")
        return await ctx.once("slow", shop.slow)

    async with raw_client(shop.server) as one, raw_client(shop.server) as two:
        state = retry_of(await call(one, 1, "wait"), "x")
        results: list[str] = []

        async def repeat(peer: ScriptedPeer, id: int) -> None:
            results.append((await call(peer, id, "wait", **state))["content"][0]["text"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(repeat, one, 2)
            nursery.start_soon(repeat, two, 3)
            await shop.begun.wait()
            await trio.testing.wait_all_tasks_blocked()
            shop.gate.set()
    assert results == ["slowly", "slowly"]
    assert shop.effects == ["slow"]


async def test_what_was_cancelled_in_the_middle_is_not_begun_again() -> None:
    shop = Shop()

    @shop.server.tool
    async def wait(ctx: Context) -> str:
        await name_of(ctx, "a")
        return await ctx.once("slow", shop.slow)

    async with raw_client(shop.server) as peer:
        state = retry_of(await call(peer, 1, "wait"), "x")
        params = {"name": "wait", "arguments": {}, **state}
        await peer.send(request(2, "tools/call", {**params, "_meta": meta(ALL)}))
        await shop.begun.wait()
        await peer.send(notification("notifications/cancelled", requestId=2, _meta=meta(ALL)))
        error = await call(peer, 3, "wait", **state)
    assert (error["code"], error["data"]["reason"]) == (409, "outcome_unknown")
    assert "'slow' was begun before" in error["message"]
    assert shop.effects == ["slow"]


@pytest.mark.parametrize("questions", [1, 2])
async def test_what_a_function_has_cut_off_itself_is_not_begun_by_its_next_run(questions: int) -> None:
    shop = Shop()

    @shop.server.tool
    async def impatient(ctx: Context) -> str:
        for number in range(1, questions):
            await name_of(ctx, f"n{number}")
        with trio.CancelScope() as patience:

            async def endless() -> None:
                shop.effects.append("begun")
                patience.cancel()
                await trio.sleep_forever()

            await ctx.once("endless", endless)
        return await name_of(ctx, "last")

    async with Client(shop.server, era=ERAS[1], elicitation=answer) as client:
        with pytest.raises(OutcomeUnknown, match="'endless' was begun before"):
            await client.call_tool("impatient")
    assert shop.effects == ["begun"]


@pytest.mark.parametrize("era", ERAS)
async def test_what_was_cut_off_is_not_begun_again_in_the_same_run(era: str) -> None:
    shop = Shop()

    async def tool(ctx: Context) -> str:
        with trio.CancelScope() as patience:

            async def endless() -> None:
                shop.effects.append("begun")
                patience.cancel()
                await trio.sleep_forever()

            await ctx.once("endless", endless)
        await ctx.once("endless", endless)
        return "begun again"

    assert "is used twice in one call" in await conflict_of(tool, shop, era)
    assert shop.effects == ["begun"]


async def test_a_thread_that_learns_that_its_call_has_ended_has_no_outcome() -> None:
    shop, ended = Shop(), threading.Event()

    @shop.server.tool
    def slow(ctx: SyncContext) -> str:
        ctx.elicit("a please", FORM)

        def effect() -> str:
            shop.effects.append("begun")
            trio.from_thread.run_sync(shop.begun.set)
            ended.wait(30)
            ctx.progress(1)
            return "done"

        return str(ctx.once("effect", effect))

    async with raw_client(shop.server) as peer:
        state = retry_of(await call(peer, 1, "slow"), "x")
        params = {"name": "slow", "arguments": {}, **state}
        await peer.send(request(2, "tools/call", {**params, "_meta": meta(ALL)}))
        await shop.begun.wait()
        await peer.send(notification("notifications/cancelled", requestId=2, _meta=meta(ALL)))
        await trio.testing.wait_all_tasks_blocked()
        ended.set()
        with trio.fail_after(30):
            error = await call(peer, 3, "slow", **state)
    assert (error["code"], error["data"]["reason"]) == (409, "outcome_unknown")
    assert shop.effects == ["begun"]


async def test_nothing_of_what_is_kept_is_shown_to_the_client() -> None:
    shop = shop_that_sells()
    async with raw_client(shop.server) as peer:
        state = (await call(peer, 1))["requestState"]
    seen = base64.urlsafe_b64decode(state + "=" * (-len(state) % 4))
    assert not any(part in seen for part in (b"charge", b"cents", b"once"))


async def test_a_client_cannot_bring_an_outcome_of_its_own() -> None:
    shop = shop_that_sells()
    async with raw_client(shop.server) as peer:
        forged = {"once": [["charge", "x", ["value", {"id": "free", "cents": 0}]]]}
        result = await call(peer, 1, inputResponses={**forged, "charge": accept("free")})
    assert set(result["inputRequests"]) == {"elicitation-1"}
    assert shop.effects == ["charge 42"]


async def test_it_belongs_to_the_call_and_its_arguments() -> None:
    shop = shop_that_sells()
    async with raw_client(shop.server) as peer:
        state = retry_of(await call(peer, 1), "street")
        message = await modern(
            peer, 2, "tools/call", {"name": "buy", "arguments": {"item": "b"}, **state}, capabilities=ALL
        )
        assert message["error"]["data"] == {"reason": "invalid_request_state"}
        assert set(await call(peer, 3)) >= {"inputRequests"}
    # Another call, which has effects of its own.
    assert shop.effects == ["charge 42", "charge 42"]


async def test_a_call_takes_a_day_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    shop = shop_that_sells()
    async with raw_client(shop.server) as peer:
        result = await call(peer, 1)
        for hour in range(23):
            now += 3590
            result = await call(peer, 2 + hour, requestState=result["requestState"])
        now += 3590 + 23 * 10
        assert (await call(peer, 100, requestState=result["requestState"]))[
            "message"
        ] == "requestState has expired"
    assert shop.effects == ["charge 42"]


# -- where an outcome is kept --------------------------------------------------------------------------------------


async def test_what_is_large_is_in_the_shared_state_and_not_in_the_seal() -> None:
    shop = Shop()

    async def load() -> str:
        shop.effects.append("load")
        return "x" * 100_000

    @shop.server.tool
    async def wait(ctx: Context) -> str:
        text = await ctx.once("load", load)
        await name_of(ctx, "a")
        small = await ctx.once("small", shop.charge, 1)
        await name_of(ctx, "b")
        return f"{len(text)} {small.cents}"

    async with raw_client(shop.server) as peer:
        first = await call(peer, 1, "wait")
        second = await call(peer, 2, "wait", **retry_of(first, "x"))
        third = await call(peer, 3, "wait", **retry_of(second, "y"))
    assert max(len(each["requestState"]) for each in (first, second)) < 1_000
    assert third["content"][0]["text"] == "100000 1"
    assert shop.effects == ["load", "charge 1"]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def two_states(kind: str, tmp_path: Path, redis: RedisServer) -> tuple[SharedState, SharedState]:
    if kind == "memory":
        shared = MemoryShared()
        return shared, shared
    if kind == "sqlite":
        return SqliteShared(tmp_path / "state.db"), SqliteShared(tmp_path / "state.db")
    return RedisShared(redis.url), RedisShared(redis.url)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_another_node_goes_on_and_repeats_nothing(
    kind: str, tmp_path: Path, redis: RedisServer
) -> None:
    here, there = map(shop_that_sells, two_states(kind, tmp_path, redis))
    async with raw_client(here.server) as one, raw_client(there.server) as two:
        first = retry_of(await call(one, 1), "street")
        second = retry_of(await call(two, 1, **first), "town")
        assert retry_of(await call(one, 2, **first), "town").keys() == second.keys()
        text = (await call(one, 3, **second))["content"][0]["text"]
        assert (await call(two, 2, **second))["content"][0]["text"] == text
    assert sorted(here.effects + there.effects) == ["charge 1", "charge 42", "mail street"]


async def test_a_retry_at_another_node_waits_for_the_outcome(redis: RedisServer) -> None:
    shops = [Shop(RedisShared(redis.url)) for _ in range(2)]
    for shop in shops:

        @shop.server.tool
        async def wait(ctx: Context, shop: Any = None) -> str:
            await name_of(ctx, "a")
            return await ctx.once("slow", slow)

    begun, gate, effects = trio.Event(), trio.Event(), 0

    async def slow() -> str:
        nonlocal effects
        effects += 1
        begun.set()
        await gate.wait()
        return "slowly"

    async with raw_client(shops[0].server) as one, raw_client(shops[1].server) as two:
        state = retry_of(await call(one, 1, "wait"), "x")
        results: list[Any] = []

        async def repeat(peer: ScriptedPeer, id: int) -> None:
            results.append(await call(peer, id, "wait", **state))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(repeat, one, 2)
            await begun.wait()
            nursery.start_soon(repeat, two, 2)
            with trio.move_on_after(0.3):
                await trio.sleep_forever()
            gate.set()
    assert [each["content"][0]["text"] for each in results] == ["slowly", "slowly"]
    assert effects == 1


async def test_the_outcome_of_a_node_that_is_gone_is_unknown(redis: RedisServer) -> None:
    here, there = (Shop(RedisShared(redis.url)) for _ in range(2))
    for shop in (here, there):
        shop.server.add_tool(waiting_tool(shop), name="wait")
    async with raw_client(there.server) as two:
        async with raw_client(here.server) as one:
            state = retry_of(await call(one, 1, "wait"), "x")
            await one.send(
                request(2, "tools/call", {"name": "wait", "arguments": {}, **state, "_meta": meta(ALL)})
            )
            await here.begun.wait()
        error = await call(two, 1, "wait", **state)
    assert (error["code"], error["data"]["reason"]) == (409, "outcome_unknown")
    assert here.effects + there.effects == ["slow"]


def waiting_tool(shop: Shop) -> Callable[..., Awaitable[str]]:
    async def wait(ctx: Context) -> str:
        await name_of(ctx, "a")
        return await ctx.once("slow", shop.slow)

    return wait


async def test_without_the_shared_state_nothing_is_begun_that_may_have_been() -> None:
    shared = Breaking()
    shop = shop_that_sells(shared)
    async with raw_client(shop.server) as peer:
        first = retry_of(await call(peer, 1), "street")
        shared.is_broken = True
        error = await call(peer, 2, **first)
        assert (error["code"], shop.effects) == (503, ["charge 42"])
        shared.is_broken = False
        assert "inputRequests" in await call(peer, 3, **first)
    assert shop.effects == ["charge 42", "mail street"]


class Breaking(MemoryShared):
    """Shared state whose values can be made unreachable."""

    is_broken = False

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Any]:
        async with super().open(name) as state:
            replace = state.values.replace

            async def replaced(*arguments: Any) -> bool:
                if self.is_broken:
                    raise SharedStateUnavailable("values", "it is broken")
                return await replace(*arguments)

            state.values.replace = replaced  # type: ignore[method-assign,assignment]
            yield state


# -- errors --------------------------------------------------------------------------------------------------------


class Unreadable(Exception):
    def __str__(self) -> str:
        return str(1 // 0)


FAILURES: list[tuple[Exception, type[Exception], str]] = [
    (ToolError("no money"), ToolError, "no money"),
    (RpcError(-32000, "away", {"a": 1}), RpcError, "away"),
    (KeyError("card"), OnceFailed, "'try' has failed before: KeyError: 'card'"),
    # What JSON cannot hold is left out of what is kept.
    (ToolError("no \ud800 money"), ToolError, "no ? money"),
    (RpcError(-32000, "a\ud800way", {"a": object()}), RpcError, "a?way"),
    (KeyError("\ud800"), OnceFailed, "'try' has failed before: KeyError: '\\ud800'"),
    (ValueError("\ud800"), OnceFailed, "'try' has failed before: ValueError: ?"),
    (
        Unreadable(),
        OnceFailed,
        "'try' has failed before: Unreadable: its text cannot be read (ZeroDivisionError)",
    ),
]


@pytest.mark.parametrize(("raised", "later", "text"), FAILURES, ids=lambda each: type(each).__name__)
async def test_an_exception_is_an_outcome(raised: Exception, later: type[Exception], text: str) -> None:
    shop, seen = Shop(), list[tuple[type, str]]()
    shop.fails = [raised]

    @shop.server.tool
    async def wait(ctx: Context) -> str:
        try:
            return await ctx.once("try", shop.failing)
        except Exception as error:
            seen.append((type(error), "" if isinstance(error, Unreadable) else str(error)))
            return await name_of(ctx, "sorry")

    async with Client(shop.server, era=ERAS[1], elicitation=answer) as client:
        assert (await client.call_tool("wait")).text == "sorry"
    assert shop.effects == ["try"]
    assert [kind for kind, _ in seen] == [type(raised), later]
    assert text in seen[1][1]


@pytest.mark.parametrize("round", [1, 2])
async def test_an_exception_may_mean_that_nothing_was_done(round: int) -> None:
    shop = Shop()
    shop.fails = [KeyError("card")]

    @shop.server.tool
    async def wait(ctx: Context) -> str:
        for number in range(1, round):
            await name_of(ctx, f"n{number}")
        try:
            return await ctx.once("try", shop.failing, retry_errors=True)
        except KeyError:
            return await name_of(ctx, f"again{len(shop.effects)}")

    async with Client(shop.server, era=ERAS[1], elicitation=answer) as client:
        assert (await client.call_tool("wait")).text == "done"
    assert shop.effects == ["try"] * 2


@dataclass
class Picky:
    """It can be made by a program, and not of JSON."""

    cents: int

    def __post_init__(self) -> None:
        if self.cents == 1:
            self.cents = 2
        else:
            raise KeyError(self.cents)


UNKEPT: list[tuple[Any, Any, str]] = [
    (object, object(), "object has no form in JSON"),
    (int, "five", "expected integer, got string"),
    (float, math.nan, "expected number, got null"),
    (Picky, Picky(1), "2"),
    (str, "\ud800", "surrogates not allowed"),
]


@pytest.mark.parametrize(("hint", "value", "text"), UNKEPT)
async def test_what_json_cannot_have_is_an_error_and_happens_once(hint: Any, value: Any, text: str) -> None:
    shop, seen, texts = Shop(), list[type](), list[str]()

    async def make() -> Any:
        shop.effects.append("make")
        return value

    make.__annotations__["return"] = hint

    @shop.server.tool
    async def wait(ctx: Context) -> str:
        try:
            await ctx.once("make", make)
        except (TypeError, OnceFailed) as error:
            seen.append(type(error))
            texts.append(str(error))
            return await name_of(ctx, "sorry")
        return "?"

    async with Client(shop.server, era=ERAS[1], elicitation=answer) as client:
        assert (await client.call_tool("wait")).text == "sorry"
    assert (shop.effects, seen) == (["make"], [TypeError, OnceFailed])
    assert all("make returned what cannot be kept: " in each and text in each for each in texts)


class Name(str):
    __slots__ = ()


KEPT: list[tuple[Any, Any, Any]] = [
    (Any, {"when": (1, 2)}, {"when": [1, 2]}),
    (Any, Name("a"), "a"),
    (Any, math.nan, None),
    (Any, [Name("a"), None, 2**70, "\u2028"], ["a", None, 2**70, "\u2028"]),
    (str, Name("é"), "é"),
    (str, "é", "é"),
    (int, 2**70, 2**70),
    (float, 1, 1.0),
    (bool | None, True, True),
    (None, None, None),
    (Payment, Payment("p", 1), Payment("p", 1)),
    (list[Payment], [Payment("p", 1)], [Payment("p", 1)]),
]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("hint", "value", "kept"), KEPT)
async def test_the_first_run_gets_what_the_later_ones_get(hint: Any, value: Any, kept: Any, era: str) -> None:
    shop, seen = Shop(), list[Any]()

    @shop.server.tool
    async def wait(ctx: Context) -> str:
        async def make() -> Any:
            return value

        make.__annotations__["return"] = hint
        seen.append(await ctx.once("make", make))
        return await name_of(ctx, "a")

    async with Client(shop.server, era=era, elicitation=answer) as client:
        assert (await client.call_tool("wait")).text == "a"
    assert seen == [kept] * (1 if era == ERAS[0] else 2)
    assert {type(each) for each in seen} == {type(kept)}


# -- what does not fit ---------------------------------------------------------------------------------------------


async def conflict_of(tool: Callable[[Context], Awaitable[str]], shop: Shop, era: str = ERAS[1]) -> str:
    caught: list[OnceConflict] = []

    async def catching(ctx: Context) -> str:
        try:
            return await tool(ctx)
        except OnceConflict as error:
            caught.append(error)
            raise

    shop.server.add_tool(catching, name="catching")
    async with Client(shop.server, era=era, elicitation=answer) as client:
        result = await client.call_tool("catching")
    assert result.is_error
    assert isinstance(caught[0], LocalProtocolError)
    assert str(caught[0]) in result.text
    return str(caught[0])


@pytest.mark.parametrize("era", ERAS)
async def test_a_name_is_for_one_effect(era: str) -> None:
    shop = Shop()

    async def tool(ctx: Context) -> str:
        await ctx.once("charge", shop.charge, 1)
        await ctx.once("charge", shop.charge, 2)
        return ""

    assert "is used twice in one call" in await conflict_of(tool, shop, era)
    assert shop.effects == ["charge 1"]


@pytest.mark.parametrize("era", ERAS)
async def test_two_at_once_have_no_order(era: str) -> None:
    shop = Shop()

    async def tool(ctx: Context) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.once, "slow", shop.slow)
            await shop.begun.wait()
            try:
                await ctx.once("charge", shop.charge, 1)
            finally:
                nursery.cancel_scope.cancel()
        return ""

    shop.server.add_tool(tool, name="tool")
    async with Client(shop.server, era=era, elicitation=answer) as client:
        result = await client.call_tool("tool")
    assert "ctx.once('charge') begins while 'slow' runs" in result.text
    assert shop.effects == ["slow"]


@pytest.mark.parametrize("era", ERAS)
async def test_two_that_begin_at_once_have_no_order(era: str) -> None:
    """The end of one must not let a question through while the other runs, which its answer would begin again."""
    shop = Shop()

    @shop.server.tool
    async def tool(ctx: Context) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.once, "mail", shop.mail, "a")
            nursery.start_soon(ctx.once, "slow", shop.slow)
            await shop.begun.wait()
            name = await name_of(ctx, "a")
            shop.gate.set()
        return name

    async with Client(shop.server, era=era, elicitation=answer) as client:
        result = await client.call_tool("tool")
    assert re.search("ctx.once\\('(slow|mail)'\\) begins while '(slow|mail)' runs", result.text)
    assert len(shop.effects) <= 1


async def test_a_question_in_the_middle_of_an_effect_is_refused() -> None:
    shop = Shop()

    async def tool(ctx: Context) -> str:
        async def asks() -> str:
            shop.effects.append("begun")
            return await name_of(ctx, "a")

        return await ctx.once("asks", asks)

    assert "'asks' asks the client in the middle of ctx.once" in await conflict_of(tool, shop)
    assert shop.effects == ["begun"]


async def test_another_order_is_refused() -> None:
    shop = Shop()
    names = [["charge", "mail"], ["mail", "charge"]]

    async def tool(ctx: Context) -> str:
        for name in names.pop(0):
            await ctx.once(name, shop.mail, name)
        return await name_of(ctx, "a")

    assert "comes where an earlier run of this call had 'charge'" in await conflict_of(tool, shop)
    assert shop.effects == ["mail charge", "mail mail"]


async def test_an_effect_that_is_left_out_is_refused() -> None:
    shop = Shop()

    async def tool(ctx: Context) -> str:
        if not shop.effects:
            await ctx.once("mail", shop.mail, "x")
        await name_of(ctx, "a")
        return await name_of(ctx, "b")

    assert "had run 'mail' once before it asked, and this run has not" in await conflict_of(tool, shop)


async def test_another_function_is_refused() -> None:
    shop = Shop()
    functions = [shop.slow, shop.failing]
    shop.gate.set()

    async def tool(ctx: Context) -> str:
        await ctx.once("a", functions.pop(0))
        return await name_of(ctx, "a")

    assert "the server has changed in between" in await conflict_of(tool, shop)
    assert shop.effects == ["slow"]


async def test_another_type_is_refused() -> None:
    shop = Shop()

    def making(returned: type) -> Callable[[], Awaitable[Any]]:
        async def make() -> Any:
            shop.effects.append("make")
            return 5

        make.__annotations__["return"] = returned
        return make

    functions = [making(int), making(str)]

    async def tool(ctx: Context) -> str:
        await ctx.once("make", functions.pop(0))
        return await name_of(ctx, "a")

    assert "what it returned before is not what" in await conflict_of(tool, shop)
    assert shop.effects == ["make"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("", print), "takes a name of 1 to 200"),
        (("x" * 201, print), "takes a name"),
        (("a\ud800", print), "takes a name"),
        (("a", 5), "not 5"),
    ],
)
async def test_what_is_no_name_or_no_function_is_refused(arguments: tuple[Any, Any], text: str) -> None:
    shop = Shop()

    @shop.server.tool
    async def tool(ctx: Context) -> str:
        with pytest.raises(TypeError, match=text):
            await ctx.once(*arguments)
        return "refused"

    async with Client(shop.server) as client:
        assert (await client.call_tool("tool")).text == "refused"


async def test_effects_of_a_call_are_bounded() -> None:
    shop = Shop()

    async def tool(ctx: Context) -> str:
        for number in range(300):
            await ctx.once(f"n{number}", shop.mail, "x")
        return ""

    assert "at most 256 effects" in await conflict_of(tool, shop)
    assert len(shop.effects) == 256


def test_the_error_says_what_to_do() -> None:
    error = OutcomeUnknown("charge")
    again = RpcError.from_wire(error.code, error.message, error.data)
    assert type(again) is OutcomeUnknown
    assert "find out what it has done before you call again" in str(again)
