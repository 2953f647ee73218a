"""Clocks that jump, callers that evade limits, and servers without memory."""

from __future__ import annotations

import json
import math
import random
import sqlite3
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, RpcError, Server
from mcp_actors._eras.modern import StateSealer
from mcp_actors.abc import Frame
from mcp_actors.auth import JwtVerifier, Principal
from mcp_actors.auth.client.authorization import Answered
from mcp_actors.auth.effects import Fetched
from mcp_actors.errors import AuthorizationFailed, McpError
from mcp_actors.middleware import ConcurrencyLimit, RateLimit, ResultCache
from mcp_actors.middleware import rate as rate_module
from mcp_actors.shared import sqlite_steps
from mcp_actors.shared.memory import MemoryShared, MemoryTaskStore
from mcp_actors.shared.sqlite import SqliteShared
from mcp_actors.tasks import Tasks
from mcp_actors.tasks.states import completed, restarted
from mcp_actors.types import Implementation
from mcp_transports.memory import MemoryTransport
from tests import messages
from tests.auth.scripted import scene
from tests.auth.server.authority import JWKS, METADATA, NEW_KEY, START, Listener, bearer, token
from tests.auth.server.test_introspection import ACTIVE, listener, say
from tests.middleware.callers import served
from tests.shared.task_records import ROOMY, make_record

# Seconds by which the clock of a machine is set back: a correction, a time zone, a day, a battery that is empty.
BACK = pytest.mark.parametrize("seconds", [90.0, 3600.0, 86_400.0, 1_700_000_000.0])
ENDS_LATE = {"exp": 9_000_000_000}


# -- the wall clock is set back ----------------------------------------------------------------------------------------


@BACK
async def test_a_revocation_takes_effect_although_the_clock_was_set_back(seconds: float) -> None:
    protected = listener({**ACTIVE, "iat": 0, "exp": START + 600})
    assert await protected.status(bearer("opaque")) == 200
    say(protected, {"active": False})
    protected.clock.time -= seconds
    assert await protected.status(bearer("opaque")) == 401


@BACK
async def test_a_refusal_is_not_believed_for_the_time_that_the_clock_was_ahead(seconds: float) -> None:
    protected = listener({"active": False})
    assert await protected.status(bearer("opaque")) == 401
    say(protected, {**ACTIVE, "iat": 0})
    protected.clock.time -= seconds
    assert await protected.status(bearer("opaque")) == 200


@BACK
async def test_an_authorization_server_that_was_away_is_asked_again(seconds: float) -> None:
    protected = listener(Fetched(503, (), b""))
    assert await protected.status(bearer("opaque")) == 503
    say(protected, {**ACTIVE, "iat": 0})
    protected.clock.time -= seconds
    assert await protected.status(bearer("opaque")) == 200


@BACK
@pytest.mark.parametrize("url", [METADATA, JWKS])
async def test_metadata_and_keys_that_could_not_be_had_are_asked_for_again(seconds: float, url: str) -> None:
    protected = Listener(verifier=JwtVerifier(remembered_for=0.0))
    protected.authority.bodies[url] = b""
    good = token({"iat": 0, **ENDS_LATE})
    assert await protected.status(bearer(good)) == 503
    del protected.authority.bodies[url]
    protected.clock.time -= seconds
    assert await protected.status(bearer(good)) == 200


@BACK
async def test_a_new_key_is_found_although_the_clock_was_set_back(seconds: float) -> None:
    protected = Listener(verifier=JwtVerifier(remembered_for=0.0))
    assert await protected.status(bearer(token({"iat": 0, **ENDS_LATE}))) == 200
    protected.authority.keys = [NEW_KEY]
    protected.clock.time -= seconds
    assert await protected.status(bearer(token({"iat": 0, **ENDS_LATE}, {"kid": "ec2"}, NEW_KEY))) == 200


@BACK
async def test_a_withdrawn_key_is_forgotten_although_the_clock_was_set_back(seconds: float) -> None:
    protected = Listener(verifier=JwtVerifier(remembered_for=0.0))
    good = token({"iat": 0, **ENDS_LATE})
    assert await protected.status(bearer(good)) == 200
    protected.authority.keys = [NEW_KEY]
    protected.clock.time -= seconds
    assert await protected.status(bearer(good)) == 401


@BACK
def test_a_client_asks_again_although_the_clock_was_set_back(seconds: float) -> None:
    world, _, server, caller = scene()
    server.refuses = lambda operation: Answered(401, server.challenge())
    with pytest.raises(AuthorizationFailed):
        caller.call("initialize")
    world.now -= seconds
    refusals = [Answered(401, server.challenge())]
    server.refuses = lambda operation: refusals.pop() if refusals else None
    assert caller.call() == 200


# -- it is set forward -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [601.0, 3600.0, 86_400.0, 1e9, 1e12])
async def test_no_token_outlives_a_clock_that_is_set_forward(seconds: float) -> None:
    protected = Listener()
    good = token()
    assert await protected.status(bearer(good)) == 200
    protected.clock.time += seconds + 31
    assert await protected.status(bearer(good)) == 401
    protected.clock.time -= seconds + 31
    assert await protected.status(bearer(good)) == 200


@pytest.mark.parametrize("jump", [-1e9, -86_400.0, -1.0, 0.0, 299.0, 300.0, 301.0, 1e9, 1e15])
def test_a_sealed_state_ends_with_its_lifetime_and_is_never_somebody_elses(jump: float) -> None:
    sealer = StateSealer(b"k" * 32, lifetime=300.0)
    ann, bob = Principal("ann"), Principal("bob")
    sealed = sealer.seal({"answers": []}, method="tools/call", target={"a": 1}, principal=ann, now=START)

    def opens(principal: Principal | None, target: Any, method: str = "tools/call") -> bool:
        try:
            sealer.open(sealed, method=method, target=target, principal=principal, now=START + jump)
        except RpcError:
            return False
        return True

    assert opens(ann, {"a": 1}) == (jump < 300.0)
    assert not opens(bob, {"a": 1})
    assert not opens(None, {"a": 1})
    assert not opens(ann, {"a": 2})
    assert not opens(ann, {"a": 1}, "prompts/get")


@pytest.mark.parametrize("now", [-1e9, 0.0, START - 1e9, START, START + 1e9, 1e15])
def test_the_time_that_a_stream_may_stay_open_is_a_time(now: float) -> None:
    left = Principal("ann", expires_at=START).seconds_left(now)
    assert 0.0 <= left <= max(START - now, 0.0) + 60.0
    assert Principal("ann").seconds_left(now) == math.inf


@pytest.mark.parametrize("jump", [-1e9, -86_400.0, 0.0, 59.0, 60.0, 86_400.0, 1e12])
async def test_tasks_in_memory_end_by_the_clock_and_no_jump_breaks_the_store(jump: float) -> None:
    now = [time.time()]
    store = MemoryTaskStore(clock=lambda: now[0])
    record = make_record("n", ttl=60.0, created=now[0])
    assert await store.create(record, ROOMY) is None
    now[0] += jump
    assert bool(await store.get([record.id])) == (jump < 60.0)
    later = make_record("n", ttl=60.0, created=now[0])
    assert await store.create(later, ROOMY) is None
    assert set(await store.get([later.id])) == {later.id}
    now[0] += 60.0
    assert await store.get([later.id]) == {}
    assert len(await store.page("alice", None, 10)) == (1 if jump < 0 else 0)


@pytest.mark.parametrize("seconds", [90.0, 86_400.0, 1e9])
async def test_a_task_has_no_more_time_than_it_was_given_although_the_clock_was_set_back(
    seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    back, ended = [0.0], trio.Event()

    def clock() -> float:
        return 2e9 + trio.current_time() - back[0]

    server = Server("s", extensions=[Tasks(clock=clock, ttl=60.0)], shared=MemoryShared(clock=clock))

    @server.tool(task="optional")
    async def hangs() -> str:
        back[0] = seconds
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    with trio.fail_after(300):
        async with Client(server) as client:
            began = trio.current_time()
            handle = await client.start_tool("hangs")
            with pytest.raises(McpError):
                await handle.result()
            await ended.wait()
            assert trio.current_time() - began < 70


JUMPS = pytest.mark.parametrize("jump", [-1e9, -86_400.0, -90.0, 90.0, 86_400.0, 1e9])


@JUMPS
async def test_no_jump_of_the_time_of_day_ends_or_lengthens_a_lease(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes in one file, of which one lives and one has died; the clock of the machine itself goes on by hand."""
    machine, day, now = [1000.0], [2e9], time.time
    monkeypatch.setattr(sqlite_steps, "now_of_machine", lambda: machine[0])
    monkeypatch.setattr(time, "time", lambda: day[0] if day else now())
    shared = SqliteShared(tmp_path / "state.db", lease=600.0)
    with trio.fail_after(60):
        async with shared.open("s") as mine, shared.open("s") as alive, AsyncExitStack() as stack:
            dead = await stack.enter_async_context(shared.open("s"))
            ids = {}
            for name, state in (("alive", alive), ("dead", dead)):
                record = make_record(state.node, ttl=None)
                ids[record.id] = name
                assert await state.tasks.create(record, ROOMY) is None
            day[0] += jump
            assert await mine.tasks.abandoned(10) == []
            machine[0] += 599.0
            assert await mine.tasks.abandoned(10) == []
            with sqlite3.connect(tmp_path / "state.db") as file:
                file.execute("UPDATE nodes SET until = until + 600 WHERE name = ?", (alive.node,))
            file.close()
            machine[0] += 2.0
            assert {ids[each.id] for each in await mine.tasks.abandoned(10)} == {"dead"}
    monkeypatch.undo()


@pytest.mark.parametrize("seconds", [601.0, 86_400.0])
async def test_a_node_that_was_stopped_for_longer_than_its_lease_keeps_nothing_of_a_task_that_was_taken_over(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by SIGSTOP, or a machine in the cloud that is moved: others see its lease end, and it goes on later."""
    machine = [1000.0]
    monkeypatch.setattr(sqlite_steps, "now_of_machine", lambda: machine[0])
    shared = SqliteShared(tmp_path / "state.db", lease=600.0)
    with trio.fail_after(60):
        async with shared.open("s") as stopped, shared.open("s") as other:
            record = make_record(stopped.node, ttl=None, restartable=True)
            assert await stopped.tasks.create(record, ROOMY) is None
            machine[0] += seconds
            [found] = await other.tasks.abandoned(10)
            taken = restarted(found, other.node, record.updated + 1)
            assert taken is not None
            assert await other.tasks.replace(taken) is True
            late = completed(record, b"{}", record.updated + 2)
            assert late is not None
            assert await stopped.tasks.replace(late) is False
            kept = (await stopped.tasks.get([record.id]))[record.id]
            assert (kept.node, kept.state) == (other.node, "working")


@JUMPS
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_no_jump_of_the_time_of_day_changes_how_long_an_answer_is_kept(
    jump: float, era: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    server, read, now = Server("s", ttl_ms=60_000), list[int](), time.time
    server.middleware(ResultCache())

    @server.resource("text://fresh")
    async def fresh() -> str:
        read.append(1)
        return str(len(read))

    async with Client(server, era=era) as client:
        assert (await client.read_resource("text://fresh")).text == "1"
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        await trio.sleep(59)
        assert (await client.read_resource("text://fresh")).text == "1"
        await trio.sleep(2)
        assert (await client.read_resource("text://fresh")).text == "2"


# -- the monotonic clock jumps: the machine was suspended --------------------------------------------------------------


@pytest.mark.parametrize("seconds", [31.0, 3600.0, 86_400.0 * 30])
async def test_a_suspended_machine_leaves_no_place_taken_and_no_token_owed(
    seconds: float, mock_clock: trio.testing.MockClock
) -> None:
    # The call that hangs may end with its time or go on, by a sign of life that comes in the same moment: nobody waits
    # for its place.
    rate, places = RateLimit(1, burst=2), ConcurrencyLimit(2, per_caller=2, max_wait=30.0)
    server = Server("s")
    server.middleware(rate)
    server.middleware(places)
    ended: list[str] = []

    @server.tool
    async def hang() -> str:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("hang")

    @server.tool
    async def quick() -> str:
        return "quick"

    async with served(server) as at, at.client("ann", era="legacy") as ann, trio.open_nursery() as nursery:
        nursery.start_soon(tried, partial(ann.call_tool, "hang"))
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(seconds)
        assert (await ann.call_tool("quick")).text == "quick"
        assert (await ann.call_tool("quick")).text == "quick"
        nursery.cancel_scope.cancel()
    assert ended == ["hang"]
    assert places.statistics().running == 0


@pytest.mark.parametrize("seconds", [61.0, 3600.0, 86_400.0])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_that_was_in_flight_while_the_machine_slept_ends_in_one_way(
    seconds: float, era: Any, mock_clock: trio.testing.MockClock
) -> None:
    server, release, ends = Server("s"), trio.Event(), list[str]()

    @server.tool
    async def waits() -> str:
        await release.wait()
        return "waited"

    async def call(client: Client) -> None:
        try:
            ends.append((await client.call_tool("waits")).text)
        except McpError as error:
            ends.append(type(error).__name__)

    with trio.fail_after(10 * seconds):
        async with Client(server, era=era) as client, trio.open_nursery() as nursery:
            nursery.start_soon(call, client)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()
            release.set()
            await trio.testing.wait_all_tasks_blocked()
            assert len(ends) == 1
            # The session goes on, or says that it has ended; it is not half there.
            assert (await client.call_tool("waits")).text == "waited"


# -- callers that evade a limit ----------------------------------------------------------------------------------------

BURST = 5


class Shop:
    """A server with a limit of `BURST` calls, that counts what ran in spite of it."""

    def __init__(self) -> None:
        self.limit = RateLimit(1e-6, burst=BURST)
        self.server = server = Server("shop", capabilities=["completions"])
        server.middleware(self.limit)
        self.ran = 0

        @server.tool(task="optional")
        async def buy() -> str:
            self.ran += 1
            return "bought"

        @server.tool
        async def slow() -> str:
            self.ran += 1
            await trio.sleep_forever()
            return "never"

        @server.resource("shop://{item}")
        async def item(item: str) -> str:
            self.ran += 1
            return item

        @server.prompt
        async def ask() -> str:
            self.ran += 1
            return "ask"


async def tried(call: Any) -> bool:
    try:
        await call()
    except McpError:
        return False
    return True


async def bought_once(at: Any, tool: str = "buy", **options: Any) -> None:
    """Calls a tool in a connection of its own, which may be refused as the call may."""
    try:
        async with at.client("ann", **options) as ann:
            await ann.call_tool(tool)
    except McpError:
        pass


async def by_reconnecting(at: Any, shop: Shop) -> None:
    for _ in range(20):
        await bought_once(at, era="legacy")


async def by_changing_era(at: Any, shop: Shop) -> None:
    for number in range(20):
        await bought_once(at, era=("legacy", "modern")[number % 2])


async def by_many_sessions_at_once(at: Any, shop: Shop) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(at.client("ann", era="legacy")) for _ in range(10)]
        async with trio.open_nursery() as nursery:
            for client in clients * 3:
                nursery.start_soon(tried, partial(client.call_tool, "buy"))


async def by_cancelling(at: Any, shop: Shop) -> None:
    async with at.client("ann", era="legacy") as ann:
        for _ in range(20):
            with trio.move_on_after(0.1):
                await tried(lambda: ann.call_tool("slow"))


async def by_leaving_calls_behind(at: Any, shop: Shop) -> None:
    for _ in range(20):
        with trio.move_on_after(0.1):
            await bought_once(at, "slow", era="legacy")


async def by_scopes_and_claims(at: Any, shop: Shop) -> None:
    for number in range(20):
        await bought_once(at, scopes=[f"s{number}"], claims={"jti": number}, era="modern")


async def by_names_of_the_client(at: Any, shop: Shop) -> None:
    for number in range(20):
        await bought_once(at, era="legacy", info=Implementation(f"c{number}", "1"))


async def by_meta(at: Any, shop: Shop) -> None:
    async with at.client("ann", era="modern") as ann:
        for number in range(20):
            meta = {"principal": f"p{number}", "io.modelcontextprotocol/principal": f"p{number}"}
            await tried(
                lambda meta=meta: ann.request("tools/call", {"name": "buy", "arguments": {}, "_meta": meta})
            )


async def by_tasks(at: Any, shop: Shop) -> None:
    async with at.client("ann", era="legacy") as ann:
        for _ in range(20):
            await tried(lambda: ann.start_tool("buy"))
    await trio.sleep(1)


async def by_other_methods(at: Any, shop: Shop) -> None:
    async with at.client("ann", era="legacy") as ann:
        for number in range(10):
            await tried(lambda number=number: ann.read_resource(f"shop://{number}"))
            await tried(lambda: ann.get_prompt("ask"))
            await tried(lambda: ann.call_tool("buy"))


async def by_waiting_a_little(at: Any, shop: Shop) -> None:
    async with at.client("ann", era="legacy") as ann:
        for _ in range(20):
            await trio.sleep(1000)
            await tried(lambda: ann.call_tool("buy"))


async def by_refusals_before(at: Any, shop: Shop) -> None:
    async with at.client("ann", era="legacy") as ann:
        for number in range(30):
            await tried(lambda number=number: ann.call_tool(f"unknown{number}"))
            await tried(lambda: ann.call_tool("buy", {"no": "such"}))
            await tried(lambda: ann.call_tool("buy"))


EVASIONS = (
    by_reconnecting,
    by_changing_era,
    by_many_sessions_at_once,
    by_cancelling,
    by_leaving_calls_behind,
    by_scopes_and_claims,
    by_names_of_the_client,
    by_meta,
    by_tasks,
    by_other_methods,
    by_waiting_a_little,
    by_refusals_before,
)


@pytest.mark.parametrize("evade", EVASIONS, ids=lambda each: str(each.__name__))
async def test_a_rate_is_evaded(evade: Any, autojump_clock: Any) -> None:
    shop = Shop()
    async with served(shop.server) as at:
        await evade(at, shop)
        assert shop.ran <= BURST
        assert shop.limit.refused > 0
        assert len(shop.limit) == 1
        # Nobody else has paid for it.
        async with at.client("bob", era="legacy") as bob:
            assert (await bob.call_tool("buy")).text == "bought"


@pytest.mark.parametrize("size", [2, 50, 1000])
async def test_a_batch_counts_by_its_messages(size: int, autojump_clock: Any) -> None:
    shop = Shop()
    async with served(shop.server) as at:
        async with MemoryTransport.connect(at._transport) as channel:
            await channel.send(Frame(json.dumps(messages.initialize(0, messages.BATCHING)).encode()))
            await channel.receive()
            await channel.send(Frame(json.dumps(messages.INITIALIZED).encode()))
            batch = [messages.call(number, "buy") for number in range(1, size + 1)]
            await channel.send(Frame(json.dumps(batch).encode()))
            answers = json.loads((await channel.receive()).data)
    assert len(answers if isinstance(answers, list) else [answers]) in (size, 1)
    assert shop.ran <= BURST


@pytest.mark.parametrize("seed", range(10))
async def test_no_pattern_of_calls_gets_more_than_the_rate(seed: int, autojump_clock: Any) -> None:
    chance, limit = random.Random(seed), RateLimit(rate := 0.5 + seed, burst=1 + seed % 4)
    server = Server("s")
    server.middleware(limit)
    times: list[float] = []

    @server.tool
    async def now() -> str:
        times.append(trio.current_time())
        return "now"

    async with served(server) as at, at.client("ann", era="legacy") as ann:
        for _ in range(300):
            await trio.sleep(chance.choice((0.0, 0.0, 1e-9, chance.random() / rate, 1 / rate, 3.0)))
            await tried(lambda: ann.call_tool("now"))
    for first in range(len(times)):
        for last in range(first, len(times)):
            allowed = limit.burst + rate * (times[last] - times[first]) + 1e-6
            assert last - first + 1 <= math.floor(allowed + 1e-6)


async def test_callers_without_end_take_bounded_memory(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_module, "MAX_CALLERS", 20)
    shop = Shop()
    async with served(shop.server) as at:
        for number in range(60):
            async with at.client(f"p{number}", era="modern") as client:
                await client.call_tool("buy")
            assert len(shop.limit) <= 20


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("sessions", [1, 3, 10])
async def test_one_principal_has_its_places_in_all_its_sessions_together(
    era: Any, sessions: int, autojump_clock: Any
) -> None:
    limit, running = ConcurrencyLimit(4, per_caller=2, waiting=3, max_wait=5.0), [0, 0]
    server = Server("s")
    server.middleware(limit)

    @server.tool
    async def hold() -> str:
        running[0] += 1
        running[1] = max(running)
        try:
            await trio.sleep(60)
        finally:
            running[0] -= 1
        return "held"

    @server.tool
    async def quick() -> str:
        return "quick"

    async with served(server) as at, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(at.client("ann", era=era)) for _ in range(sessions)]
        bob = await stack.enter_async_context(at.client("bob", era=era))
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(tried, partial(clients[number % sessions].call_tool, "hold"))
            await trio.sleep(1)
            assert (await bob.call_tool("quick")).text == "quick"
            assert limit.statistics().callers == 1
            nursery.cancel_scope.cancel()
    assert running == [0, 2]
    assert (limit.statistics().running, limit.statistics().waiting, limit.statistics().callers) == (0, 0, 0)
