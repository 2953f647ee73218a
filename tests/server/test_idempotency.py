"""Calls with keys: made again after a loss, at any node, they begin nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server
from mcp_actors.abc import SharedState
from mcp_actors.errors import (
    CallTimeout,
    DeadlineExceeded,
    InsufficientScope,
    KeyConflict,
    LocalProtocolError,
    OutcomeUnknown,
    Overloaded,
    RpcError,
    ServerStopping,
    SharedStateUnavailable,
    ToolError,
    ToolFailed,
)
from mcp_actors.extensions import IDEMPOTENCY, KEY, Idempotency
from mcp_actors.server import Limits, Reshape
from mcp_actors.shared import MemoryShared
from mcp_actors.shared.memory import MemoryValueStore
from mcp_actors.shared.redis import RedisShared
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.testing import raw_client
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams
from tests.messages import modern_meta, request
from tests.redis_server import RedisServer
from tests.server.asking import ALL, FORM, accept
from tests.server.asking import KEY as STATE_KEY

ERAS = ["2025-11-25", "2026-07-28"]
DAY = timedelta(hours=24)


class Bank:
    """A server whose tools take keys, and count what they do."""

    def __init__(self, shared: SharedState | None = None, **options: Any) -> None:
        self.server = Server(
            "bank",
            shared=shared,
            state_key=STATE_KEY,
            extensions=[Idempotency(**options)] if options else [],
            mask_errors=False,
            limits=Limits(drain_grace=0.05),
        )
        self.done: list[Any] = []
        self.begun, self.gate = trio.Event(), trio.Event()
        self.fails: list[Exception] = []
        self.refuses: list[Exception] = []
        self.ends: list[str] = []

        @self.server.middleware
        async def refuse(ctx: Context, call_next: Any) -> Any:
            if ctx.method == "tools/call" and self.refuses:
                raise self.refuses.pop()
            return await call_next()

        @self.server.tool(idempotent=DAY)
        async def transfer(cents: int, to: str = "Ann") -> str:
            self.done.append(cents)
            await trio.lowlevel.checkpoint()
            if self.fails:
                raise self.fails.pop()
            return f"{cents} to {to}, number {len(self.done)}"

        @self.server.tool(idempotent=DAY)
        async def slow(ctx: Context) -> str:
            self.done.append("slow")
            self.begun.set()
            try:
                await self.gate.wait()
                await ctx.progress(1, 1)
            except trio.Cancelled:
                self.ends.append("cancelled")
                raise
            return "slowly"

        @self.server.tool(idempotent=DAY)
        async def asks(ctx: Context) -> str:
            self.done.append("asks")
            street = await ctx.elicit("street please", FORM)
            town = await ctx.elicit("town please", FORM)
            assert street.content is not None
            assert town.content is not None
            return f"{street.content['name']} {town.content['name']}"

        @self.server.tool
        async def plain() -> str:
            self.done.append("plain")
            return "plainly"


async def answer(question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult("accept", {"name": question.message.split()[0]})


@pytest.mark.parametrize("era", ERAS)
async def test_the_same_key_has_the_same_answer(era: str) -> None:
    bank = Bank()
    async with Client(bank.server, era=era) as client:
        first = await client.call_tool("transfer", {"cents": 5, "to": "Bob"}, key="a", returns=str)
        # The order of the arguments says nothing.
        again = await client.call_tool("transfer", {"to": "Bob", "cents": 5}, key="a", returns=str)
        other = await client.call_tool("transfer", {"cents": 5, "to": "Bob"}, key="b", returns=str)
        without = await client.call_tool("transfer", {"cents": 5, "to": "Bob"}, returns=str)
    assert first == again == "5 to Bob, number 1"
    assert (other, without) == ("5 to Bob, number 2", "5 to Bob, number 3")


@pytest.mark.parametrize("era", ERAS)
async def test_a_key_belongs_to_one_request(era: str) -> None:
    bank = Bank()
    async with Client(bank.server, era=era) as client:
        await client.call_tool("transfer", {"cents": 5}, key="a")
        with pytest.raises(KeyConflict, match="'a' of 'transfer' belongs to a call with other arguments"):
            await client.call_tool("transfer", {"cents": 6}, key="a")
        bank.gate.set()
        # That of another tool is another key.
        assert await client.call_tool("slow", key="a", returns=str) == "slowly"
    assert bank.done == [5, "slow"]


@pytest.mark.parametrize("key", ["", "x" * 257, 7, None, ["a"]])
async def test_what_is_no_key_is_refused(key: Any) -> None:
    bank = Bank()
    async with Client(bank.server) as client:
        with pytest.raises(RpcError, match="a text of 1 to 256 characters"):
            await client.call_tool("transfer", {"cents": 5}, meta={KEY: key})
        assert bank.done == []


@pytest.mark.parametrize("key", [7, b"order-1", ["a"]])
async def test_what_is_no_text_is_not_sent_as_a_key(key: Any) -> None:
    """JSON would make a text of bytes, which is another key than that text without its encoding."""
    bank = Bank()
    async with Client(bank.server) as client:
        with pytest.raises(TypeError, match="the key of a call is a text"):
            await client.call_tool("transfer", {"cents": 5}, key=key)
        assert bank.done == []


async def test_a_tool_that_keeps_no_answers_refuses_keys() -> None:
    bank = Bank()
    async with Client(bank.server) as client:
        for name in ("plain", "nowhere"):
            with pytest.raises(RpcError, match="keeps no answers"):
                await client.call_tool(name, key="a")
        listed = {each.name: each.meta async for each in client.tools()}
    assert listed == {name: {"mcp-actors/idempotent": 86400.0} for name in ("transfer", "slow", "asks")} | {
        "plain": None
    }
    assert bank.done == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_without_keys_is_sent_none(era: str) -> None:
    called: list[str] = []
    server = Server("s")

    @server.tool
    def pay() -> None:
        called.append("pay")

    async with Client(server, era=era) as client:
        with pytest.raises(
            LocalProtocolError, match=rf"takes no keys \({IDEMPOTENCY}\), and nothing was sent"
        ):
            await client.call_tool("pay", key="a")
    assert called == []


@pytest.mark.parametrize("era", ERAS)
async def test_one_that_comes_meanwhile_waits(era: str) -> None:
    bank = Bank()
    answers: list[str] = []

    async with Client(bank.server, era=era) as client:

        async def call() -> None:
            answers.append(await client.call_tool("slow", key="a", returns=str))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await bank.begun.wait()
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(KeyConflict):
                await client.call_tool("slow", {"more": 1}, key="a")
            bank.gate.set()
    assert answers == ["slowly", "slowly"]
    assert bank.done == ["slow"]


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


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_another_node_has_the_answer(kind: str, era: str, tmp_path: Path, redis: RedisServer) -> None:
    here, there = map(Bank, two_states(kind, tmp_path, redis))
    async with Client(here.server, era=era) as one, Client(there.server, era=era) as two:
        first = await one.call_tool("transfer", {"cents": 5}, key=f"a{era}", returns=str)
        assert await two.call_tool("transfer", {"cents": 5}, key=f"a{era}", returns=str) == first
        with pytest.raises(KeyConflict):
            await two.call_tool("transfer", {"cents": 6}, key=f"a{era}")
    assert (here.done, there.done) == ([5], [])


@pytest.mark.parametrize("era", ERAS)
async def test_one_that_comes_meanwhile_waits_at_another_node(era: str, redis: RedisServer) -> None:
    here, there = Bank(RedisShared(redis.url)), Bank(RedisShared(redis.url))
    answers: list[str] = []

    async def call(client: Client) -> None:
        answers.append(await client.call_tool("slow", key=f"w{era}", returns=str))

    async with Client(here.server, era=era) as one, Client(there.server, era=era) as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, one)
            await here.begun.wait()
            nursery.start_soon(call, two)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(KeyConflict):
                await two.call_tool("slow", {"more": 1}, key=f"w{era}")
            here.gate.set()
    assert answers == ["slowly", "slowly"]
    assert (here.done, there.done) == (["slow"], [])


@asynccontextmanager
async def served_over_http(bank: Bank) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        places = await nursery.start(bank.server.serve, "http://127.0.0.1:0/mcp")
        yield places[0]
        nursery.cancel_scope.cancel()


async def test_a_function_runs_on_when_its_connection_is_lost() -> None:
    bank = Bank()

    @bank.server.tool(idempotent=DAY)
    async def ticks(ctx: Context) -> str:
        bank.done.append("ticks")
        bank.begun.set()
        while not bank.gate.is_set():
            await ctx.progress(1, 2)
            await trio.sleep(0.01)
        return "slowly"

    async with served_over_http(bank) as url, Client(url) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.call_tool("ticks", key="a"))
            await bank.begun.wait()
            # A stateless client over HTTP has no other way to leave than to close the connection.
            nursery.cancel_scope.cancel()
        # The one that waits hears of the progress.
        text = await client.call_tool("ticks", key="a", returns=str, on_progress=lambda each: bank.gate.set())
    assert text == "slowly"
    assert bank.done == ["ticks"]


@pytest.mark.parametrize("era", ERAS)
async def test_what_its_caller_has_cancelled_is_cancelled(era: str) -> None:
    bank = Bank()
    async with Client(bank.server, era=era) as client:
        with pytest.raises(CallTimeout):
            await client.call_tool("slow", key="a", cap=0.05)
        await trio.testing.wait_all_tasks_blocked()
        assert bank.ends == ["cancelled"]
        with pytest.raises(OutcomeUnknown, match="'slow, key a' was begun before"):
            await client.call_tool("slow", key="a")
    assert bank.done == ["slow"]


async def test_a_cancelled_call_with_another_that_waits_goes_on() -> None:
    bank = Bank()
    async with Client(bank.server) as client, trio.open_nursery() as nursery:
        answers: list[str] = []

        async def call() -> None:
            answers.append(await client.call_tool("slow", key="a", returns=str))

        nursery.start_soon(call)
        await bank.begun.wait()
        with pytest.raises(CallTimeout):
            await client.call_tool("slow", key="a", cap=0.05)
        bank.gate.set()
    assert (answers, bank.done, bank.ends) == (["slowly"], ["slow"], [])


async def test_the_outcome_of_a_node_that_was_stopped_is_unknown(redis: RedisServer) -> None:
    here, there = Bank(RedisShared(redis.url)), Bank(RedisShared(redis.url))
    async with Client(there.server) as client:
        async with Client(here.server) as other, trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(ServerStopping, match="was stopped while"):
                    await other.call_tool("slow", key="stopped")

            nursery.start_soon(call)
            await here.begun.wait()
            here.server.stop()
        with pytest.raises(OutcomeUnknown):
            await client.call_tool("slow", key="stopped")
    assert there.done == []
    assert here.ends == ["cancelled"]


@pytest.mark.parametrize("era", ERAS)
async def test_each_round_of_questions_happens_once(era: str) -> None:
    bank = Bank()
    async with Client(bank.server, era=era, elicitation=answer) as client:
        assert await client.call_tool("asks", key="a", returns=str) == "street town"
        runs = len(bank.done)
        assert runs == (1 if era == ERAS[0] else 3)
        # The last answer has taken the place of the first question.
        assert await client.call_tool("asks", key="a", returns=str) == "street town"
    assert len(bank.done) == runs


async def test_a_round_that_is_sent_again_asks_the_same() -> None:
    bank = Bank()
    async with raw_client(bank.server) as peer:

        async def call(id: int, **retry: Any) -> Any:
            meta = {**modern_meta(ALL), KEY: "a"}
            await peer.send(
                request(id, "tools/call", {"name": "asks", "arguments": {}, "_meta": meta, **retry})
            )
            return await peer.receive()

        def retry_of(answer: dict[str, Any], name: str) -> dict[str, Any]:
            result = answer["result"]
            responses = {key: accept(name) for key in result["inputRequests"]}
            return {"inputResponses": responses, "requestState": result["requestState"]}

        first = await call(1)
        assert (await call(2))["result"] == first["result"]
        second = await call(3, **retry_of(first, "street"))
        assert (await call(4, **retry_of(first, "street")))["result"] == second["result"]
        other = await call(5, **retry_of(first, "road"))
        assert other["error"]["data"] == {"reason": "key_conflict"}
        last = await call(6, **retry_of(second, "town"))
        assert last["result"]["content"][0]["text"] == "street town"
        assert (await call(7))["result"] == last["result"]
    assert len(bank.done) == 3


NOTHING_BEGUN = [
    Overloaded("server", 1, 1),
    InsufficientScope({"pay"}),
    ServerStopping(),
    DeadlineExceeded("transfer", begun=False),
]


@pytest.mark.parametrize("error", NOTHING_BEGUN, ids=lambda each: type(each).__name__)
async def test_an_answer_that_says_that_nothing_was_begun_is_not_kept(
    error: RpcError, autojump_clock: Any
) -> None:
    bank = Bank()
    bank.refuses = [error]
    async with Client(bank.server) as client:
        with pytest.raises(type(error)):
            await client.call_tool("transfer", {"cents": 5}, key="a", cap=0.5)
        assert await client.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 1"


@pytest.mark.parametrize("error", NOTHING_BEGUN, ids=lambda each: type(each).__name__)
async def test_what_a_function_raises_says_nothing_of_what_it_has_done(
    error: RpcError, autojump_clock: Any
) -> None:
    bank = Bank()
    bank.fails = [error]
    async with Client(bank.server) as client:
        for _ in range(2):
            with pytest.raises(type(error)):
                await client.call_tool("transfer", {"cents": 5}, key="a", cap=0.5)
    assert bank.done == [5]


async def test_arguments_that_do_not_fit_use_up_no_key() -> None:
    bank = Bank()
    async with Client(bank.server) as client:
        with pytest.raises(ToolFailed, match="cents"):
            await client.call_tool("transfer", {"cents": "five"}, key="a", returns=str)
        assert await client.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 1"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ToolError("no money"), ToolFailed),
        (RpcError(-32000, "no money"), RpcError),
        (KeyError("x"), ToolFailed),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else type(each).__name__,
)
async def test_a_failure_is_an_answer(error: Exception, raised: type[Exception], era: str) -> None:
    bank = Bank()
    bank.fails = [error]
    async with Client(bank.server, era=era) as client:
        texts = set()
        for _ in range(2):
            with pytest.raises(raised) as caught:
                await client.call_tool("transfer", {"cents": 5}, key="a", returns=str)
            texts.add(str(caught.value))
    assert bank.done == [5]
    assert len(texts) == 1


async def test_without_the_shared_state_nothing_is_begun(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    bank = Bank()
    put = MemoryValueStore.put

    def away(*arguments: Any) -> bool:
        raise SharedStateUnavailable("values", "away")

    async with Client(bank.server) as client:
        monkeypatch.setattr(MemoryValueStore, "put", away)
        with pytest.raises(SharedStateUnavailable):
            await client.call_tool("transfer", {"cents": 5}, key="a")
        assert bank.done == []
        monkeypatch.setattr(MemoryValueStore, "put", put)
        assert await client.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 1"


async def test_a_claim_of_which_nothing_was_begun_is_given_back(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    bank = Bank()
    put = MemoryValueStore.put

    def kept_and_lost(self: MemoryValueStore, *arguments: Any) -> bool:
        put(self, *arguments)
        raise SharedStateUnavailable("values", "the answer was lost")

    async with Client(bank.server) as client:
        monkeypatch.setattr(MemoryValueStore, "put", kept_and_lost)
        with pytest.raises(SharedStateUnavailable):
            await client.call_tool("transfer", {"cents": 5}, key="a")
        monkeypatch.setattr(MemoryValueStore, "put", put)
        await trio.sleep(10)
        assert await client.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 1"


async def test_an_answer_is_kept_once_the_shared_state_is_back(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    shared = MemoryShared()
    here, there = Bank(shared), Bank(shared)
    put = MemoryValueStore.put

    def away(*arguments: Any) -> bool:
        raise SharedStateUnavailable("values", "away")

    async with Client(here.server) as one, Client(there.server) as two, trio.open_nursery() as nursery:
        answers: list[str] = []

        async def call(client: Client) -> None:
            answers.append(await client.call_tool("slow", key="a", returns=str))

        nursery.start_soon(call, one)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(MemoryValueStore, "put", away)
        here.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == ["slowly"]
        await trio.sleep(3)
        monkeypatch.setattr(MemoryValueStore, "put", put)
        # The claim is still there, and its node says that the answer may come.
        nursery.start_soon(call, two)
        await trio.sleep(10)
        assert answers == ["slowly", "slowly"]
    assert there.done == []


async def test_answers_of_a_caller_are_bounded() -> None:
    bank = Bank(per_caller=2)
    async with Client(bank.server) as client:
        for each in ("a", "b", "c"):
            await client.call_tool("transfer", {"cents": 5}, key=each)
        texts = [await client.call_tool("transfer", {"cents": 5}, key=each, returns=str) for each in "bca"]
    # The oldest one was dropped, so that its call is a new one.
    assert texts == ["5 to Ann, number 2", "5 to Ann, number 3", "5 to Ann, number 4"]


async def test_bytes_of_answers_of_a_caller_are_bounded() -> None:
    bank = Bank(bytes_per_caller=2500)

    @bank.server.tool(idempotent=DAY)
    def large() -> str:
        bank.done.append("large")
        return "x" * 1000

    async with Client(bank.server) as client:
        for each in ("a", "b", "c", "a"):
            await client.call_tool("large", key=each)
    assert len(bank.done) == 4


async def test_running_calls_with_keys_are_bounded() -> None:
    bank = Bank(running=1)
    async with Client(bank.server) as client, trio.open_nursery() as nursery:

        async def call() -> None:
            await client.call_tool("slow", key="a")

        nursery.start_soon(call)
        await bank.begun.wait()
        with pytest.raises(Overloaded, match="running calls with keys"):
            await client.call_tool("transfer", {"cents": 5}, key="b")
        assert await client.call_tool("plain", returns=str) == "plainly"
        bank.gate.set()
    assert bank.done == ["slow", "plain"]


@pytest.mark.parametrize("bounds", [{"running": 0}, {"per_caller": 0}, {"bytes_per_caller": 0}])
def test_bounds_have_to_leave_room(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"room|fit"):
        Idempotency(**bounds)


@pytest.mark.parametrize("kept", [timedelta(0), timedelta(hours=-1)])
def test_answers_are_kept_for_some_time(kept: timedelta) -> None:
    server = Server("s")
    with pytest.raises(ValueError, match="for some time"):
        server.add_tool(lambda: None, name="x", idempotent=kept)
    with pytest.raises(TypeError, match="a timedelta"):
        server.add_tool(lambda: None, name="x", idempotent=3600)  # type: ignore[arg-type]
    assert server.capabilities.extensions is None


async def test_an_answer_is_kept_for_its_time(autojump_clock: Any) -> None:
    now = [1000.0]
    bank = Bank(MemoryShared(clock=lambda: now[0]))
    async with Client(bank.server) as client:
        await client.call_tool("transfer", {"cents": 5}, key="a")
        now[0] += DAY.total_seconds() - 1
        assert await client.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 1"
        now[0] += 2
        assert await client.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 2"


async def test_a_call_that_becomes_a_task_has_one_task() -> None:
    done: list[str] = []
    server = Server("s")

    @server.tool(task="optional", idempotent=DAY)
    async def job() -> str:
        done.append("job")
        return "done"

    async with raw_client(server) as peer:
        meta = {**modern_meta({"extensions": {"io.modelcontextprotocol/tasks": {}}}), KEY: "a"}
        ids = set()
        for id in (1, 2):
            await peer.send(request(id, "tools/call", {"name": "job", "arguments": {}, "_meta": meta}))
            ids.add((await peer.receive())["result"]["taskId"])
    assert len(ids) == 1
    assert done == ["job"]


async def test_a_mounted_tool_has_keys() -> None:
    bank, host = Bank(), Server("host")
    host.mount("bank", bank.server)
    async with Client(host) as client:
        first = await client.call_tool("bank_transfer", {"cents": 5}, key="a", returns=str)
        assert await client.call_tool("bank_transfer", {"cents": 5}, key="a", returns=str) == first
    assert bank.done == [5]


async def test_a_reshaped_tool_has_keys() -> None:
    bank = Bank()
    bank.server.reshape("transfer", Reshape(name="pay"))
    async with Client(bank.server) as client:
        first = await client.call_tool("pay", {"cents": 5}, key="a", returns=str)
        assert await client.call_tool("pay", {"cents": 5}, key="a", returns=str) == first
    assert bank.done == [5]
