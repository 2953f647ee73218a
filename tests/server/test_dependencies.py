"""Dependencies: what functions need is made for its scope, once, handed to them by name, and closed in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Annotated, Any

import pytest
import trio
import trio.lowlevel
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from mcp_actors import (
    Client,
    Context,
    Depends,
    LocalProtocolError,
    Server,
    SyncContext,
    ToolError,
)
from mcp_actors.errors import RpcError
from mcp_actors.types import PromptReference
from tests.transports.lines import until

ERAS = ["2025-11-25", "2026-07-28"]
EACH_ERA = pytest.mark.parametrize("era", ERAS)

Log = list[str]


@asynccontextmanager
async def serving(server: Server, within: trio.Nursery | None = None) -> AsyncIterator[str]:
    """Serves in memory under a name, for several clients."""
    name = f"memory:{uuid.uuid4()}"
    async with trio.open_nursery() as nursery:
        await (within or nursery).start(server.serve, name)
        yield name
        server.stop()


async def failure(client: Client, tool: str, arguments: dict[str, Any] | None = None) -> str:
    """The text of a call that fails."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.text


async def cancellable(
    call: Callable[[], Awaitable[None]], *, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await call()


class Thing:
    def __init__(self, name: str, log: Log | None = None) -> None:
        self.name = name
        self.log: Log = [] if log is None else log

    def close(self) -> None:
        self.log.append(f"close {self.name}")


class Db(Thing):
    async def __aenter__(self) -> Db:
        self.log.append(f"open {self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SyncDb(Thing):
    def __enter__(self) -> SyncDb:
        self.log.append(f"open {self.name}")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kinds(log: Log) -> dict[str, tuple[Callable[..., Any], Log]]:
    """Dependencies of every kind, each with what it does around a call."""

    def plain() -> Db:
        return Db("plain", log)

    async def awaited() -> Db:
        return Db("awaited", log)

    def generator() -> Generator[Db]:
        log.append("open generator")
        yield Db("generator")
        log.append("close generator")

    async def async_generator() -> AsyncGenerator[Db]:
        log.append("open async_generator")
        yield Db("async_generator")
        log.append("close async_generator")

    @contextmanager
    def managed() -> Generator[Db]:
        log.append("open managed")
        yield Db("managed")
        log.append("close managed")

    @asynccontextmanager
    async def async_managed() -> AsyncGenerator[Db]:
        log.append("open async_managed")
        yield Db("async_managed")
        log.append("close async_managed")

    class Own(Db):
        def __init__(self, name: str = "Own") -> None:
            super().__init__(name, log)

    class SyncOwn(SyncDb):
        def __init__(self) -> None:
            super().__init__("SyncOwn", log)

    def lock() -> contextlib.closing[Thing]:
        return contextlib.closing(Thing("lock", log))

    def both(name: str) -> Log:
        return [f"open {name}", f"close {name}"]

    return {
        "plain": (plain, []),
        "awaited": (awaited, []),
        "generator": (generator, both("generator")),
        "async_generator": (async_generator, both("async_generator")),
        "managed": (managed, both("managed")),
        "async_managed": (async_managed, both("async_managed")),
        "Own": (Own, both("Own")),
        "SyncOwn": (SyncOwn, both("SyncOwn")),
        "lock": (lock, ["close lock"]),
        "partial": (partial(Own, name="Part"), []),
        "lambda": (lambda: plain(), []),
    }


@pytest.mark.parametrize("loop", [None, "asyncio"])
@pytest.mark.parametrize("kind", kinds([]))
async def test_every_kind_is_made_and_closed_round_the_call(kind: str, loop: Any) -> None:
    log: Log = []
    server = Server("x")
    made, expected = kinds(log)[kind]

    async def use(db: Annotated[Thing, Depends(made)], more: int) -> str:
        log.append("call")
        return f"{db.name} {more}"

    server.add_tool(use, **({} if loop is None else {"loop": loop}))
    async with Client(server) as client:
        [tool] = [each async for each in client.tools()]
        assert list(tool.input_schema["properties"]) == ["more"]
        name = {"partial": "Part", "lambda": "plain"}.get(kind, kind)
        assert (await client.call_tool("use", {"more": 3})).text == f"{name} 3"
    opened = [each for each in expected if each.startswith("open")]
    assert log == [*opened, "call", *expected[len(opened) :]]


@EACH_ERA
async def test_whatever_a_server_answers_with_takes_them(era: str) -> None:
    server = Server("x")
    seen: Log = []

    async def open_db() -> Db:
        return Db("the db")

    Injected = Annotated[Db, Depends(open_db)]

    @server.tool
    def in_thread(db: Injected) -> str:
        return db.name

    @server.tool(inline=True)
    def in_place(db: Injected) -> str:
        return f"{db.name} {threading.current_thread() is threading.main_thread()}"

    @server.tool(input_schema={"type": "object"})
    def raw(arguments: dict[str, Any], db: Injected) -> str:
        return f"{db.name} {arguments}"

    @server.resource("x://{key}")
    async def read(key: str, db: Injected) -> str:
        return f"{key} of {db.name}"

    @server.prompt
    async def ask(db: Injected, what: str = "") -> str:
        return f"{what} of {db.name}"

    @server.completion(prompt="ask", argument="what")
    async def complete(text: str, db: Injected) -> list[str]:
        return [f"{text} of {db.name}"]

    @server.notification("notifications/x")
    async def noted(db: Injected) -> None:
        seen.append(db.name)

    async with Client(server, era=era) as client:
        assert (await client.call_tool("in_thread")).text == "the db"
        assert (await client.call_tool("in_place")).text == "the db True"
        assert (await client.call_tool("raw", {"a": 1})).text == "the db {'a': 1}"
        assert (await client.read_resource("x://k")).text == "k of the db"
        [prompt] = [each async for each in client.prompts()]
        assert [each.name for each in prompt.arguments or []] == ["what"]
        message = (await client.get_prompt("ask", {"what": "a"})).messages[0]
        assert message.content.text == "a of the db"  # type: ignore[union-attr]
        assert (await client.complete(PromptReference("ask"), "what", "b")).values == ["b of the db"]
        await client.notify("notifications/x", {})
        await wait_all_tasks_blocked()
    assert seen == ["the db"]


async def test_a_nested_one_is_made_once_a_call_and_closed_last() -> None:
    server, log = Server("x"), Log()

    @asynccontextmanager
    async def db() -> AsyncIterator[Db]:
        async with Db("db", log) as opened:
            yield opened

    @contextmanager
    def users(db: Annotated[Db, Depends(db)], limit: int = 3) -> Generator[str]:
        log.append("open users")
        yield f"{db.name} {limit}"
        log.append("close users")

    async def orders(db: Annotated[Db, Depends(db)], ctx: Context) -> str:
        return f"{db.name} {ctx.method}"

    @server.tool
    async def use(
        users: Annotated[str, Depends(users)],
        orders: Annotated[str, Depends(orders)],
        db: Annotated[Db, Depends(db)],
    ) -> str:
        return f"{users}, {orders}, {db.name}"

    async with Client(server) as client:
        for _ in range(2):
            log.clear()
            assert (await client.call_tool("use")).text == "db 3, db tools/call, db"
            assert log == ["open db", "open users", "close users", "close db"]


async def test_a_plain_function_gets_a_context_that_waits() -> None:
    server, seen = Server("x"), []

    def begin(ctx: SyncContext) -> Generator[str]:
        ctx.progress(1, 2)
        yield threading.current_thread().name
        ctx.progress(2, 2)

    @server.tool
    async def use(name: Annotated[str, Depends(begin)]) -> str:
        return str(name != threading.main_thread().name)

    async with Client(server) as client:
        result = await client.call_tool("use", on_progress=lambda each: seen.append(each.progress))
    assert (result.text, seen) == ("True", [1, 2])


@pytest.mark.parametrize("loop", [None, "asyncio"])
async def test_it_learns_how_the_call_has_ended_and_cannot_hide_it(loop: Any) -> None:
    server, log = Server("x"), Log()

    async def transaction() -> AsyncGenerator[str]:
        try:
            yield "open"
        except ToolError as error:
            log.append(f"rolled back: {error}")
        else:
            log.append("committed")

    async def use(state: Annotated[str, Depends(transaction)], fail: bool) -> str:
        if fail:
            raise ToolError("no such user")
        return state

    server.add_tool(use, **({} if loop is None else {"loop": loop}))
    async with Client(server) as client:
        assert (await client.call_tool("use", {"fail": False})).text == "open"
        assert await failure(client, "use", {"fail": True}) == "no such user"
    assert log == ["committed", "rolled back: no such user"]


@pytest.mark.parametrize("loop", [None, "asyncio"])
@pytest.mark.parametrize("when", ["opening", "closing"])
async def test_its_failure_is_that_of_the_call_and_names_it(when: str, loop: Any) -> None:
    server, log = Server("x"), Log()

    async def inner() -> AsyncGenerator[str]:
        try:
            yield ""
        finally:
            log.append("closed inner")

    async def open_db(inner: Annotated[str, Depends(inner)]) -> AsyncGenerator[str]:
        if when == "opening":
            raise ConnectionError("refused")
        yield "db"
        raise ConnectionError("lost")

    async def use(db: Annotated[str, Depends(open_db)]) -> str:
        return db

    async def read(db: Annotated[str, Depends(open_db)]) -> str:
        return db

    options: Any = {} if loop is None else {"loop": loop}
    server.add_tool(use, **options)
    server.add_resource("x://r", read, **options)
    said = (
        "failed: ConnectionError: refused"
        if when == "opening"
        else "failed when it was closed: ConnectionError: lost"
    )
    with capture_logs():
        async with Client(server) as client:
            assert await failure(client, "use") == f"use: the dependency open_db {said}"
            with pytest.raises(RpcError, match=f"the dependency open_db {said}"):
                await client.read_resource("x://r")
    assert log == ["closed inner", "closed inner"]


async def test_what_is_meant_for_the_model_or_the_client_is_sent_as_it_is() -> None:
    server = Server("x")

    async def user(ctx: Context) -> str:
        raise ToolError("log in first")

    @asynccontextmanager
    async def tasks() -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            yield nursery

    async def denied() -> str:
        raise RpcError(-32001, "denied")

    @server.tool
    async def use(user: Annotated[str, Depends(user)]) -> str:
        return user

    @server.tool
    async def within(tasks: Annotated[trio.Nursery, Depends(tasks)]) -> str:
        raise ValueError("own")

    @server.tool
    async def forbidden(denied: Annotated[str, Depends(denied)]) -> str:
        return denied

    with capture_logs():
        async with Client(server) as client:
            assert await failure(client, "use") == "log in first"
            assert await failure(client, "within") == "within: ValueError: own"
            with pytest.raises(RpcError, match="denied"):
                await client.call_tool("forbidden")


# -- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", [None, "asyncio"])
async def test_a_cancelled_call_closes_everything_in_order(loop: Any) -> None:
    server, log, began = Server("x"), Log(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def pause() -> None:
        if loop is None:
            await trio.lowlevel.checkpoint()
        else:
            await asyncio.sleep(0)

    async def first() -> AsyncGenerator[str]:
        try:
            yield "first"
        finally:
            await pause()
            log.append("close first")

    def second(first: Annotated[str, Depends(first)]) -> Generator[str]:
        try:
            yield "second"
        finally:
            log.append("close second")

    async def third(second: Annotated[str, Depends(second)]) -> AsyncGenerator[str]:
        try:
            yield "third"
        finally:
            await pause()
            log.append("close third")

    async def use(third: Annotated[str, Depends(third)]) -> None:
        token.run_sync_soon(began.set)
        if loop is None:
            await trio.sleep_forever()
        await asyncio.Event().wait()

    server.add_tool(use, **({} if loop is None else {"loop": loop}))
    async with Client(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "use")
            await began.wait()
            nursery.cancel_scope.cancel()
        await until(lambda: len(log) == 3)
        await until(lambda: not list(server.tree().sessions[0].calls))
    assert log == ["close third", "close second", "close first"]


async def test_what_does_not_close_is_cancelled_with_the_others(autojump_clock: object) -> None:
    server, log, began = Server("x"), Log(), trio.Event()

    async def first() -> AsyncGenerator[str]:
        try:
            yield ""
        finally:
            log.append("first began to close")

    async def stuck(first: Annotated[str, Depends(first)]) -> AsyncGenerator[str]:
        try:
            yield ""
        finally:
            await trio.sleep_forever()

    @server.tool(timeout=3)
    async def use(stuck: Annotated[str, Depends(stuck)]) -> None:
        began.set()
        await trio.sleep_forever()

    with capture_logs() as logs:
        async with Client(server) as client:
            said = await failure(client, "use")
    assert said == "use: stopped, because it may take no longer than 3 s"
    assert log == ["first began to close"]
    assert "dependencies of a call were cancelled, because they did not close" in [
        each["event"] for each in logs
    ]


async def test_a_thread_that_opens_for_a_cancelled_call_closes_what_it_opened() -> None:
    server, log = Server("x"), Log()
    goes_on, has_begun = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def slow() -> Generator[str]:
        token.run_sync_soon(has_begun.set)
        goes_on.wait(20)
        yield "opened"
        log.append("closed")

    @server.tool
    async def use(slow: Annotated[str, Depends(slow)]) -> str:
        return slow

    async with Client(server) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "use")
            await has_begun.wait()
            nursery.cancel_scope.cancel()
        await until(lambda: not list(server.tree().sessions[0].calls))
        goes_on.set()
        await until(lambda: bool(log))
    assert log == ["closed"]


# -- the scopes of a session and of a server --------------------------------------------------------------------------


def make_counted(scope: Any, log: Log, loop: Any = None, gate: trio.Event | None = None) -> Server:
    """A server whose tool says which value of a dependency it has got."""
    server = Server("counted")

    async def config() -> AsyncGenerator[str]:
        log.append("open config")
        yield "config"
        log.append("close config")

    async def pool(config: Annotated[str, Depends(config, scope="server")]) -> AsyncGenerator[str]:
        if gate is not None:
            await gate.wait()
        number = 1 + sum(each.startswith("open pool") for each in log)
        log.append(f"open pool {number}")
        yield f"{config} pool {number}"
        log.append(f"close pool {number}")

    async def which(pool: Annotated[str, Depends(pool, scope=scope)]) -> str:
        return pool

    server.add_tool(which, **({} if loop is None else {"loop": loop}))
    return server


@EACH_ERA
@pytest.mark.parametrize("loop", [None, "asyncio"])
async def test_one_for_the_server_is_made_once_and_closed_at_its_end(loop: Any, era: str) -> None:
    log = Log()
    server = make_counted("server", log, loop)
    async with serving(server) as name:
        for _ in range(2):
            async with Client(name, era=era) as client:
                for _ in range(2):
                    assert (await client.call_tool("which")).text == "config pool 1"
        assert log == ["open config", "open pool 1"]
    assert log[2:] == ["close pool 1", "close config"]


@EACH_ERA
@pytest.mark.parametrize("loop", [None, "asyncio"])
async def test_one_for_the_session_ends_with_it(loop: Any, era: str) -> None:
    log = Log()
    server = make_counted("session", log, loop)
    async with serving(server) as name:
        async with Client(name, era=era) as client, Client(name, era=era) as other:
            for _ in range(2):
                assert (await client.call_tool("which")).text == "config pool 1"
            assert (await other.call_tool("which")).text == "config pool 2"
        await until(lambda: len(log) == 5)
        assert sorted(log[3:]) == ["close pool 1", "close pool 2"]
    assert log[5:] == ["close config"]


async def test_without_a_session_it_is_that_of_the_call() -> None:
    log = Log()
    server = make_counted("session", log)
    async with trio.open_nursery() as nursery:
        [url] = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
        async with Client(url, era="2026-07-28") as client:
            for number in (1, 2):
                assert (await client.call_tool("which")).text == f"config pool {number}"
                assert log[-1] == f"close pool {number}"
        nursery.cancel_scope.cancel()


async def test_calls_that_need_it_at_the_same_time_get_one_value_although_the_first_is_cancelled() -> None:
    log, gate = Log(), trio.Event()
    server = make_counted("server", log, gate=gate)
    results: list[str] = []

    async def call(client: Client) -> None:
        results.append((await client.call_tool("which")).text)

    async with Client(server) as client, trio.open_nursery() as nursery:
        first = await nursery.start(cancellable, partial(call, client))
        await wait_all_tasks_blocked()
        for _ in range(5):
            nursery.start_soon(call, client)
        await wait_all_tasks_blocked()
        first.cancel()
        await wait_all_tasks_blocked()
        gate.set()
    assert results == ["config pool 1"] * 5
    assert log == ["open config", "open pool 1", "close pool 1", "close config"]


async def test_one_that_fails_is_made_again_by_the_next_call() -> None:
    server, attempts = Server("x"), Log()

    async def pool() -> str:
        attempts.append("")
        if len(attempts) == 1:
            raise ConnectionError("refused")
        return f"attempt {len(attempts)}"

    @server.tool
    async def which(pool: Annotated[str, Depends(pool, scope="server")]) -> str:
        return pool

    with capture_logs():
        async with Client(server) as client:
            assert (
                await failure(client, "which")
                == "which: the dependency pool failed: ConnectionError: refused"
            )
            for _ in range(2):
                assert (await client.call_tool("which")).text == "attempt 2"


async def test_one_that_breaks_down_is_made_again_and_the_log_says_so() -> None:
    server, breaks, opened = Server("x"), [trio.Event(), trio.Event()], Log()

    async def break_down(at: trio.Event) -> None:
        await at.wait()
        raise ConnectionError("lost")

    @asynccontextmanager
    async def link() -> AsyncIterator[str]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(break_down, breaks[len(opened)])
            opened.append("")
            yield f"link {len(opened)}"
            nursery.cancel_scope.cancel()

    @server.tool
    async def which(link: Annotated[str, Depends(link, scope="server")]) -> str:
        return link

    with capture_logs() as logs:
        async with Client(server) as client:
            assert (await client.call_tool("which")).text == "link 1"
            breaks[0].set()
            await wait_all_tasks_blocked()
            assert (await client.call_tool("which")).text == "link 2"
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["a dependency failed"]


async def test_a_serve_that_is_cancelled_closes_what_it_has() -> None:
    log = Log()
    server = make_counted("server", log)
    async with trio.open_nursery() as nursery:
        async with serving(server, nursery) as name, Client(name) as client:
            await client.call_tool("which")
            nursery.cancel_scope.cancel()
    assert log == ["open config", "open pool 1", "close pool 1", "close config"]


async def test_a_session_ends_its_values_after_the_last_call_that_has_one() -> None:
    server, log = Server("x"), Log()

    async def db() -> AsyncGenerator[str]:
        yield "db"
        log.append("close db")

    @server.tool
    async def use(db: Annotated[str, Depends(db, scope="session")]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            log.append("call ended")

    async with serving(server) as name, trio.open_nursery() as nursery:
        async with Client(name) as client:
            nursery.start_soon(client.call_tool, "use")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await until(lambda: len(log) == 2)
    assert log == ["call ended", "close db"]


# -- servers in servers, and tests ------------------------------------------------------------------------------------


async def test_a_mounted_server_keeps_its_own() -> None:
    log = Log()
    host, other = Server("host"), Server("other")

    async def pool(ctx: Context) -> str:
        return ctx.server.name

    async def shared() -> AsyncGenerator[Log]:
        log.append("open")
        yield [str(len(log))]
        log.append("close")

    async def which(
        pool: Annotated[str, Depends(pool)],
        shared: Annotated[Log, Depends(shared, scope="server")],
        own: Annotated[Log, Depends(shared, scope="session")],
    ) -> str:
        return f"{pool} {shared[0]} {own[0]}"

    for each in (host, other):
        each.add_tool(which)
    host.mount("other", other)
    async with Client(host) as client:
        for _ in range(2):
            assert (await client.call_tool("which")).text == "host 1 2"
            assert (await client.call_tool("other_which")).text == "other 3 4"
        host.unmount("other")
        await until(lambda: log.count("close") == 2)
    assert log == ["open"] * 4 + ["close"] * 4


@pytest.mark.parametrize("overridden", ["own", "host"])
@pytest.mark.parametrize("loop", [None, "asyncio"])
async def test_tests_put_others_in_their_place(overridden: str, loop: Any) -> None:
    log = Log()
    host, server = Server("host"), Server("own")

    async def settings() -> str:
        raise AssertionError("not in tests")

    async def open_db(settings: Annotated[str, Depends(settings)]) -> Db:
        return Db(settings)

    def fake_settings() -> Generator[str]:
        yield "fake"
        log.append("closed")

    async def use(db: Annotated[Db, Depends(open_db)]) -> str:
        return db.name

    server.add_tool(use, **({} if loop is None else {"loop": loop}))
    host.mount("own", server)
    with capture_logs():
        async with Client(host) as client:
            with {"own": server, "host": host}[overridden].override(settings, fake_settings):
                assert (await client.call_tool("own_use")).text == "fake"
            with host.override(open_db, lambda: Db("mine")):
                assert (await client.call_tool("own_use")).text == "mine"
            assert "AssertionError: not in tests" in await failure(client, "own_use")
    assert log == ["closed"]


def test_an_override_is_checked_where_it_is_written() -> None:
    server = Server("x")

    def open_db() -> str:
        return ""

    def wraps(db: Annotated[str, Depends(open_db)]) -> str:
        return db

    for fake, said in (
        ("db", "override takes"),
        (lambda url: url, "nothing fills the parameter url"),
        (wraps, "open_db needs itself: open_db → wraps → open_db"),
    ):
        with pytest.raises(TypeError, match=said), server.override(open_db, fake):  # type: ignore[arg-type]
            pass
    with server.override(open_db, str), pytest.raises(LocalProtocolError, match="overridden already"):
        with server.override(open_db, str):
            pass


# -- what is refused --------------------------------------------------------------------------------------------------


def of_call() -> str:
    return ""


def unfilled(url: str) -> str:
    return url


def around(value: Annotated[str, Depends(lambda: beyond)]) -> str:
    return value


def beyond(value: Annotated[str, Depends(around)]) -> str:
    return value


# As two functions have it that need each other and whose annotations are resolved late.
around.__annotations__["value"] = Annotated[str, Depends(beyond)]


def of_server(value: Annotated[str, Depends(of_call)]) -> str:
    return value


def of_all(ctx: Context) -> str:
    return ctx.method


def in_circle(value: Annotated[str, Depends(beyond)]) -> None: ...
def needs_more(value: Annotated[str, Depends(unfilled)]) -> None: ...
def narrower(value: Annotated[str, Depends(of_server, scope="server")]) -> None: ...
def for_one(value: Annotated[str, Depends(of_all, scope="server")]) -> None: ...
def as_default(value: str = Depends(of_call)) -> None: ...  # type: ignore[assignment]
def twice(value: Annotated[str, Depends(of_call), Depends(unfilled)]) -> None: ...


REFUSED: dict[Callable[..., Any], str] = {
    in_circle: "the dependency beyond needs itself: beyond → around → beyond",
    needs_more: "nothing fills the parameter url: give it a default",
    narrower: "of_server is kept for a server, and needs of_call, which is made for each call",
    for_one: "of_all is kept for all callers, and takes the context of one: remove ctx",
    as_default: r"write value: Annotated\[<type>, Depends\(of_call\)\]",
    twice: "the parameter value is marked twice",
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_cannot_be_made_is_refused_where_it_is_registered(function: Callable[..., Any]) -> None:
    said = REFUSED[function]
    server = Server("x")
    with pytest.raises(TypeError, match=said):
        server.add_tool(function)
    with pytest.raises(TypeError, match=said):
        server.add_resource("x://y", function)
    assert (len(server.tools), len(server.resources)) == (0, 0)


def test_a_mark_is_checked_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="Depends takes a function, not 'open_db'"):
        Depends("open_db")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scope='request': write one of 'call', 'session', 'server'"):
        Depends(str, scope="request")  # type: ignore[arg-type]
    assert repr(Depends(Db)) == "Depends(Db)"


async def test_a_function_that_needs_nothing_is_called_as_ever() -> None:
    server = Server("x")

    @server.tool
    async def plain(value: int) -> int:
        return value

    entry = server.tools.by_key["plain"]
    assert "dependencies" not in entry.function.call.__module__
