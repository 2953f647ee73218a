"""The tasks of calls: few for calls that never wait, one for each that does, and none that can be told apart."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors._actors import eager
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors.supervision.task_kinds import CALL_WORKER

from .peers import living

Body = Callable[["FakeCall"], Awaitable[None]]

colour = contextvars.ContextVar("colour", default="none")


class FakeCall:
    """Does what it is told in the order in which a `Call` would."""

    def __init__(self, name: str, body: Body, log: list[str]) -> None:
        self.invocation = SimpleNamespace(method=SimpleNamespace(name=name))
        self.name = name
        self.body = body
        self.log = log
        self.tasks: list[trio.lowlevel.Task] = []
        self.scope: trio.CancelScope | None = None
        self.cut_short = False
        self.waits = False

    def cancel(self) -> None:
        assert self.scope is not None
        self.cut_short = True
        self.scope.cancel()

    def begin(self, context: contextvars.Context, scope: trio.CancelScope) -> Coroutine[Any, Any, bool]:
        return self.run(scope)

    async def run(self, scope: trio.CancelScope) -> bool:
        self.scope = scope
        self.log.append(f"{self.name} begins")
        self.tasks.append(trio.lowlevel.current_task())
        try:
            await self.body(self)
            self.tasks.append(trio.lowlevel.current_task())
            self.log.append(f"{self.name} ends")
        finally:
            if not self.cut_short:
                self.close()
        return self.cut_short

    async def finish(self) -> None:
        self.log.append(f"{self.name} finishes")

    def fail(self, error: BaseException) -> None:
        pass

    def close(self) -> None:
        self.log.append(f"{self.name} closes")


async def at_once(call: FakeCall) -> None:
    pass


async def for_ever(call: FakeCall) -> None:
    await trio.sleep_forever()


async def a_while(call: FakeCall) -> None:
    await trio.sleep(1)


class Calls:
    """A pool and the calls that were given to it."""

    def __init__(self, pool: TaskPool) -> None:
        self.pool = pool
        self.log: list[str] = []

    def start(self, name: str, body: Body) -> FakeCall:
        call = FakeCall(name, body, self.log)
        self.pool.start(cast(Any, call))
        return call


@asynccontextmanager
async def calls(max_idle: int = 64) -> AsyncIterator[Calls]:
    async with trio.open_nursery() as nursery:
        pool = TaskPool(nursery, max_idle)
        yield Calls(pool)
        pool.close()


async def test_calls_that_never_wait_share_a_task(autojump_clock: object) -> None:
    async with calls() as made:
        before = living()
        started = [made.start(str(number), at_once) for number in range(100)]
        await trio.testing.wait_all_tasks_blocked()
        assert made.log[-1] == "99 closes"
        assert len({task for call in started for task in call.tasks}) == 1
        # One that ran them, one that came in case that a call should wait.
        assert living() - before <= 2


async def test_calls_that_wait_have_a_task_each_and_begin_in_order(autojump_clock: object) -> None:
    async with calls() as made:
        started = [made.start(str(number), a_while) for number in range(100)]
        await trio.testing.wait_all_tasks_blocked()
        assert made.log == [f"{number} begins" for number in range(100)]
        await trio.sleep(2)
        assert len({call.tasks[0] for call in started}) == 100
        assert all(call.tasks[0] is call.tasks[1] for call in started)
        assert sum(line.endswith("closes") for line in made.log) == 100
        # Whoever is not kept has ended.
        assert repr(made.pool) == "<TaskPool open idle=64/64>"


async def test_who_waits_holds_nobody_up(autojump_clock: object) -> None:
    async with calls() as made:
        bodies = [at_once, for_ever, at_once, a_while, at_once]
        started = [made.start(str(number), body) for number, body in enumerate(bodies)]
        await trio.testing.wait_all_tasks_blocked()
        assert [line for line in made.log if line.endswith("ends")] == ["0 ends", "2 ends", "4 ends"]
        late = made.start("late", at_once)
        await trio.testing.wait_all_tasks_blocked()
        assert late.log[-1] == "late closes"
        started[1].cancel()


async def test_a_cancelled_call_finishes_outside_of_its_scope_and_takes_its_task_along() -> None:
    async with calls() as made:
        doomed = made.start("doomed", for_ever)
        await trio.testing.wait_all_tasks_blocked()
        doomed.cancel()
        after = made.start("after", at_once)
        await trio.testing.wait_all_tasks_blocked()
        assert [line for line in made.log if "doomed" in line] == [
            "doomed begins",
            "doomed finishes",
            "doomed closes",
        ]
        assert made.log.count("after closes") == 1
        assert after.tasks[0] is not doomed.tasks[0]
        assert after.scope is not None
        assert not after.scope.cancel_called


async def test_every_call_is_closed_when_the_nursery_is_cancelled_before_any_began() -> None:
    async with trio.open_nursery() as nursery:
        made = Calls(TaskPool(nursery, 4))
        for number in range(20):
            made.start(str(number), for_ever)
        nursery.cancel_scope.cancel()
    assert sorted(line for line in made.log if "closes" in line) == sorted(f"{n} closes" for n in range(20))
    assert not [line for line in made.log if "finishes" in line]


async def test_closing_lets_queued_calls_run_and_idle_tasks_end() -> None:
    async with trio.open_nursery() as nursery:
        made = Calls(TaskPool(nursery, 4))
        made.start("first", at_once)
        await trio.testing.wait_all_tasks_blocked()
        made.start("second", at_once)
        made.start("third", at_once)
        made.pool.close()
    assert made.log[-1] == "third closes"


@pytest.mark.parametrize("body", [at_once, a_while])
async def test_context_variables_are_one_calls_own(body: Body, autojump_clock: object) -> None:
    seen: list[str] = []

    async def paints(call: FakeCall) -> None:
        seen.append(colour.get())
        colour.set(call.name)
        await body(call)
        seen.append(colour.get())

    colour.set("session's")
    async with calls() as made:
        for name in ("red", "green"):
            made.start(name, paints)
        await trio.sleep(2)
        made.start("blue", paints)
        await trio.sleep(2)
    assert sorted(seen) == sorted(["session's", "session's", "red", "green", "session's", "blue"])


async def test_what_trio_cannot_wait_for_is_the_calls_own_error() -> None:
    class Alien:
        def __await__(self) -> Any:
            yield "a future of somebody else's"

    async def waits_for_it(call: FakeCall) -> None:
        with pytest.raises(TypeError, match="somebody else's"):
            await Alien()
        call.log.append(f"{call.name} saw it")

    async with calls() as made:
        made.start("lost", waits_for_it)
        await trio.testing.wait_all_tasks_blocked()
        assert made.log == ["lost begins", "lost saw it", "lost ends", "lost closes"]


# -- How often a call switches between tasks, which costs more than everything else that is done for it ---

CALLS = 20
ROUNDS = 12


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks, and those of the tasks in which a server's calls run."""

    def __init__(self) -> None:
        self.count = 0
        self.of_calls = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        self.of_calls += task.name.partition(" ")[0] == CALL_WORKER.name


def adding() -> Server:
    server = Server("adding")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return server


async def steps_of_calls(client: Client) -> int:
    """Calls a tool again and again, and returns the steps of all tasks meanwhile."""
    await client.call_tool("add", {"a": 1, "b": 1})
    await trio.testing.wait_all_tasks_blocked()
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    for number in range(CALLS):
        result = await client.call_tool("add", {"a": number, "b": 1})
        assert result.text == str(number + 1)
    trio.lowlevel.remove_instrument(steps)
    return steps.count


@pytest.fixture(params=["eager", "woken"])
def steps_of_a_call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """One step of the caller; where the task of a call is woken, one of its own, too."""
    if request.param == "woken":
        monkeypatch.setattr(eager, "step", None)
    return 1 if eager.step is not None else 2


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_call_in_memory_is_one_step_of_its_caller_and_none_of_its_own_task(
    era: str, steps_of_a_call: int
) -> None:
    async with Client(adding(), era=era) as client:  # type: ignore[arg-type]
        assert await steps_of_calls(client) == steps_of_a_call * CALLS


async def test_a_client_that_follows_changes_takes_no_more_steps(steps_of_a_call: int) -> None:
    async with Client(adding(), era="modern", on_change=lambda kind, uri: None) as client:
        await trio.testing.wait_all_tasks_blocked()
        assert await steps_of_calls(client) == steps_of_a_call * CALLS


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_call_beside_others_that_take_long_takes_no_more_steps(
    era: str, steps_of_a_call: int, autojump_clock: trio.testing.MockClock
) -> None:
    server = adding()

    @server.tool
    async def wait() -> None:
        await trio.sleep_forever()

    async with Client(server, era=era) as client, trio.open_nursery() as nursery:  # type: ignore[arg-type]
        for _ in range(3):
            nursery.start_soon(client.call_tool, "wait")
        steps = Steps()
        for number in range(CALLS):
            await trio.sleep(0.1)
            trio.lowlevel.add_instrument(steps)
            await client.call_tool("add", {"a": number, "b": 1})
            trio.lowlevel.remove_instrument(steps)
        nursery.cancel_scope.cancel()

    # The first one starts the task that runs those after it.
    assert steps.count <= steps_of_a_call * CALLS + 3


async def test_calls_that_come_together_and_do_not_wait_share_a_step() -> None:
    async with Client(adding()) as client:
        await client.call_tool("add", {"a": 1, "b": 1})
        for _ in range(ROUNDS):
            await trio.testing.wait_all_tasks_blocked()
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            async with trio.open_nursery() as nursery:
                for number in range(CALLS):
                    nursery.start_soon(client.call_tool, "add", {"a": number, "b": 1})
            trio.lowlevel.remove_instrument(steps)
            # Those that find the connection idle begin before the others are read, in the turn that read them.
            assert steps.of_calls <= 2
