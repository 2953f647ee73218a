"""`check_tool`: what it finds in tools with faults, and what it does not find in those without."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.errors import ToolError
from mcp_actors.examples import filesystem, git, sqlite
from mcp_actors.examples.everything import server as everything
from mcp_actors.testing import Effects, ToolReport, check_tool
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitResult,
    TextContent,
    ToolAnnotations,
)

pytestmark = pytest.mark.slow

FORM = {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}
REPEATABLE = ToolAnnotations(idempotent_hint=True)
KEY = b"k" * 32


class Bank:
    """What the tools of a world have effects on; each effect has a wait before and behind it."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects
        self.done: set[str] = effects.kept.setdefault("done", set())
        self.nursery: trio.Nursery

    @asynccontextmanager
    async def open(self, server: Server) -> AsyncIterator[None]:
        """The lifespan of the server: what is begun in the nursery goes on behind its call."""
        async with trio.open_nursery() as self.nursery:
            yield
            self.nursery.cancel_scope.cancel()

    async def charge(self) -> str:
        await trio.sleep(0.1)
        self.effects.note("charge")
        await trio.sleep(0.1)
        return "paid"

    async def mail(self) -> None:
        await trio.sleep(0.1)
        self.effects.note("mail")
        await trio.sleep(0.1)


Build = Callable[[Server, Bank], None]


async def checked(build: Build, **options: Any) -> ToolReport:
    """Checks the tool ``transfer`` of a world that is made anew for each call."""
    effects = Effects()

    def make() -> Server:
        bank = Bank(effects)
        server = Server("bank", state_key=KEY, mask_errors=False, lifespan=bank.open)
        build(server, bank)
        return server

    return await check_tool(make, "transfer", {}, effects=effects, **options)


def found(report: ToolReport) -> set[tuple[str, str | None, str]]:
    """The kind, the effect, and whether that ran too often or never, of each fault."""
    return {
        (each.kind, each.effect, "twice" if each.times > each.expected else "never") for each in report.faults
    }


# -- ten tools with one fault each -------------------------------------------------------------------------------------


def charges_before_it_asks(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer(ctx: Context) -> str:
        await bank.charge()
        return (await ctx.elicit("where?", FORM)).action


def charges_behind_a_question(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer(ctx: Context) -> str:
        await ctx.elicit("where?", FORM)
        return await bank.charge()


def mails_beside_what_happens_once(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer(ctx: Context) -> str:
        await ctx.elicit("where?", FORM)
        await ctx.once("charge", bank.charge)
        await bank.mail()
        return "done"


def says_that_it_may_be_repeated(server: Server, bank: Bank) -> None:
    @server.tool(annotations=REPEATABLE)
    async def transfer() -> str:
        return await bank.charge()


def looks_before_it_writes_down(server: Server, bank: Bank) -> None:
    @server.tool(annotations=REPEATABLE)
    async def transfer() -> str:
        if "order" not in bank.done:
            await bank.charge()
            bank.done.add("order")
        return "paid"


def writes_down_before_it_charges(server: Server, bank: Bank) -> None:
    @server.tool(annotations=REPEATABLE)
    async def transfer() -> str:
        if "order" not in bank.done:
            bank.done.add("order")
            await bank.charge()
        return "paid"


def forgets_when_it_is_cut_off(server: Server, bank: Bank) -> None:
    @server.tool(annotations=REPEATABLE)
    async def transfer() -> str:
        if "order" in bank.done:
            return "paid"
        bank.done.add("order")
        try:
            return await bank.charge()
        except BaseException:
            bank.done.discard("order")
            raise


def charges_again_when_it_is_cancelled(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer() -> str:
        try:
            return await bank.charge()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await bank.charge()
            raise


def mails_when_it_has_answered(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer() -> str:
        await bank.charge()
        bank.nursery.start_soon(bank.mail)
        return "a mail comes"


def never_ends_once_it_was_cut_off(server: Server, bank: Bank) -> None:
    lock = trio.Semaphore(1)

    @server.tool(annotations=REPEATABLE)
    async def transfer() -> str:
        await lock.acquire()
        if "order" not in bank.done:
            bank.done.add("order")
            await bank.charge()
        lock.release()
        return "paid"


FAULTY: list[tuple[Build, set[tuple[str, str | None, str]]]] = [
    (charges_before_it_asks, {("plain", "charge", "twice")}),
    (charges_behind_a_question, {("lose", "charge", "twice"), ("repeat", "charge", "twice")}),
    (mails_beside_what_happens_once, {("repeat", "mail", "twice"), ("lose", "mail", "twice")}),
    (says_that_it_may_be_repeated, {("lose", "charge", "twice"), ("repeat", "charge", "twice")}),
    (looks_before_it_writes_down, {("repeat", "charge", "twice"), ("kill", "charge", "twice")}),
    (writes_down_before_it_charges, {("lose", "charge", "never"), ("kill", "charge", "never")}),
    (forgets_when_it_is_cut_off, {("lose", "charge", "twice")}),
    (charges_again_when_it_is_cancelled, {("cancel", "charge", "twice")}),
    (mails_when_it_has_answered, {("kill", "mail", "never")}),
    (never_ends_once_it_was_cut_off, {("lose", None, "never")}),
]


@pytest.mark.parametrize(("build", "faults"), FAULTY, ids=[each[0].__name__ for each in FAULTY])
async def test_a_fault_is_found(
    build: Build, faults: set[tuple[str, str | None, str]], autojump_clock: Any
) -> None:
    report = await checked(build)
    print(report)
    assert not report.ok
    assert faults <= found(report)


# -- tools without faults ----------------------------------------------------------------------------------------------


def everything_once(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer(ctx: Context) -> str:
        await ctx.once("charge", bank.charge)
        answer = await ctx.elicit("where?", FORM)
        await ctx.once("mail", bank.mail)
        await ctx.elicit("and?", FORM)
        return answer.action


def one_effect(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer() -> str:
        return await bank.charge()


def shielded(server: Server, bank: Bank) -> None:
    @server.tool
    async def transfer() -> str:
        with trio.CancelScope(shield=True):
            await bank.charge()
            await bank.mail()
        return "done"


def locked(server: Server, bank: Bank) -> None:
    lock = trio.Lock()

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def transfer() -> str:
        async with lock:
            await trio.sleep(1)
        return "nothing done"


def in_a_thread(server: Server, bank: Bank) -> None:
    @server.tool
    def transfer(ctx: SyncContext) -> str:
        ctx.once("charge", bank.effects.note, "charge")
        return ctx.elicit("where?", FORM).action


@pytest.mark.parametrize(
    "build", [everything_once, one_effect, shielded, locked, in_a_thread], ids=lambda each: each.__name__
)
async def test_nothing_is_found_in_a_tool_without_faults(build: Build, autojump_clock: Any) -> None:
    report = await checked(build)
    assert report.ok, report
    assert report.waits >= 2
    assert report.runs > report.waits


def keyed(server: Server, bank: Bank) -> None:
    @server.tool(idempotent=timedelta(hours=1))
    async def transfer() -> str:
        await bank.charge()
        await bank.mail()
        return "done"


async def test_a_whole_call_is_repeated_with_its_key(autojump_clock: Any) -> None:
    report = await checked(keyed, key="order-1")
    assert report.ok, report
    assert report.expected == {"charge": 1, "mail": 1}


async def test_a_whole_call_is_repeated_where_its_caller_does_so(autojump_clock: Any) -> None:
    assert (await checked(one_effect)).ok
    report = await checked(one_effect, repeatable=True)
    assert found(report) == {(kind, "charge", "twice") for kind in ("lose", "repeat", "kill")}
    report = await checked(says_that_it_may_be_repeated, repeatable=False)
    assert report.ok, report


# -- how effects are seen, and what is said of them --------------------------------------------------------------------

SHOP = """
from mcp_actors import Context, Server

def make() -> Server:
    server = Server("shop", mask_errors=False)

    @server.tool
    async def buy(ctx: Context) -> str:
        charge(1)
        await Post().send()
        return (await ctx.elicit("where?", {"type": "object", "properties": {}})).action

    return server

def charge(cents):
    return cents

class Post:
    async def send(self):
        return "sent"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "shop_of_test.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("shop_of_test")
    del sys.modules["shop_of_test"]


async def test_functions_are_named_and_the_report_says_where(shop: Any, autojump_clock: Any) -> None:
    charge, send = shop.charge, shop.Post.send
    report = await check_tool(shop.make, "buy", effects=["shop_of_test.charge", "shop_of_test.Post.send"])
    assert (shop.charge, shop.Post.send) == (charge, send)
    assert report.expected == {"charge": 1, "send": 1}
    text = str(report)
    assert text.startswith("buy: ")
    assert "  charge ran 2 times in place of 1, in a plain call (modern)\n" in text
    assert (
        "  send ran 3 times in place of 1, when the request was sent twice at shop_of_test.py:11 in buy, "
        '`return (await ctx.elicit("where?", {"type": "object", "properties": {}})).action` (modern)'
    ) in text


@pytest.mark.parametrize(
    ("effects", "error"),
    [
        ("shop_of_test.charge", TypeError),
        ([1], TypeError),
        (["shop_of_test.SHOP"], AttributeError),
        (["shop_of_test.__name__"], TypeError),
        (["nowhere_at_all.charge"], ImportError),
        (["charge"], ImportError),
    ],
)
async def test_a_name_that_leads_nowhere_is_said(
    effects: Any, error: type[Exception], shop: Any, autojump_clock: Any
) -> None:
    with pytest.raises(error):
        await check_tool(shop.make, "buy", effects=effects)


@pytest.mark.parametrize("server", [None, "shop", lambda: "shop"])
async def test_a_server_is_one(server: Any, autojump_clock: Any) -> None:
    with pytest.raises(TypeError, match="server"):
        await check_tool(server, "buy", effects=Effects())


async def test_a_call_that_fails_is_said_and_no_more_is_tried(autojump_clock: Any) -> None:
    def refuses(server: Server, bank: Bank) -> None:
        @server.tool
        async def transfer() -> str:
            raise ToolError("there is no money")

    report = await checked(refuses)
    assert report.runs == 2
    assert [str(each) for each in report.faults] == [
        f"the call fails (there is no money) in a plain call ({era})" for era in ("legacy", "modern")
    ]


async def test_what_is_half_done_is_said_and_is_no_fault(autojump_clock: Any) -> None:
    def two_effects(server: Server, bank: Bank) -> None:
        @server.tool
        async def transfer() -> str:
            await bank.charge()
            await bank.mail()
            return "done"

    report = await checked(two_effects)
    assert report.ok, report
    assert {(each.kind, each.effect) for each in report.half} == {("cancel", "mail")}
    assert "half done:\n  mail never ran when the call was cancelled at test_check_tool.py:" in str(report)


async def test_questions_are_answered_as_the_caller_says(autojump_clock: Any) -> None:
    asked: list[str] = []

    def asks(server: Server, bank: Bank) -> None:
        @server.tool
        async def transfer(ctx: Context) -> str:
            answer = await ctx.elicit("where?", FORM)
            said = await ctx.sample("why?", max_tokens=5)
            [root] = await ctx.list_roots()
            asked.append(f"{answer.content} {said.text} {root.uri}")
            return "done"

    async def person(question: Any) -> ElicitResult:
        return ElicitResult("accept", {"street": "Elm"})

    async def model(params: CreateMessageParams) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("because"), "m")

    assert (await checked(asks)).ok
    assert set(asked) == {"{'street': 'text'} ok file:///"}
    asked.clear()
    assert (await checked(asks, elicitation=person, sampling=model)).ok
    assert set(asked) == {"{'street': 'Elm'} because file:///"}


async def test_there_is_a_bound_for_waits(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def loops(server: Server, bank: Bank) -> None:
        @server.tool
        async def transfer() -> None:
            for _ in range(8):
                await trio.sleep(1)

    monkeypatch.setattr("mcp_actors.testing.tool_check.MOST_WAITS", 5)
    report = await checked(loops)
    assert report.waits == 16
    assert report.runs == 2 + 2 * 5
    assert report.skipped == (
        "4 of its waits with legacy: there are too many",
        "4 of its waits with modern: there are too many",
    )


async def test_a_server_object_keeps_its_middleware_and_is_not_ended_while_it_runs(
    autojump_clock: Any,
) -> None:
    effects = Effects()
    server = Server("bank")
    says_that_it_may_be_repeated(server, Bank(effects))
    report = await check_tool(server, "transfer", effects=effects)
    assert "kill" not in {each.kind for each in report.faults if "at test_check_tool" in each.where}
    assert report.skipped == ("the end of the process at a wait: give a function that makes the server",)
    assert server._features.middleware == []


async def test_it_brings_its_own_time() -> None:
    began = time.monotonic()
    effects = Effects()

    def make() -> Server:
        server = Server("slow")

        @server.tool
        async def wait() -> str:
            await trio.sleep(3000)
            effects.note("waited")
            return "long"

        return server

    report = await check_tool(make, "wait", effects=effects)
    assert report.ok, report
    assert report.expected == {"waited": 1}
    assert time.monotonic() - began < 3000


@pytest.fixture
def real_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need more than a second for a program or a thread, none of which waits for virtual time."""
    monkeypatch.setattr("mcp_actors.testing.tool_check._PATIENCE", 60.0)


@pytest.mark.usefixtures("real_time_is_waited_for")
async def test_functions_of_asyncio_and_of_threads_have_real_time(autojump_clock: Any) -> None:
    def real(server: Server, bank: Bank) -> None:
        @server.tool(loop="asyncio", timeout=100)
        async def transfer() -> str:
            await asyncio.sleep(0.02)
            bank.effects.note("charge")
            return "paid"

    report = await checked(real)
    assert report.ok, report
    assert report.expected == {"charge": 1}


def test_functions_are_wrapped_by_hand() -> None:
    effects = Effects()

    async def send(text: str) -> str:
        return text

    assert effects.wrap(len, "length")("abc") == 3
    assert trio.run(effects.wrap(send), "x") == "x"
    assert effects.counts == {"length": 1, "send": 1}
    effects.clear()
    assert effects.counts == {}


# -- the servers of the examples ---------------------------------------------------------------------------------------

ARGUMENTS: dict[str, dict[str, Any]] = {
    "add": {"a": 1, "b": 2},
    "divide": {"a": 1, "b": 2},
    "echo": {"message": "x"},
    "greet": {"name": "Ann"},
    "json_schema_2020_12_tool": {"email": "a", "phone": "1"},
    "sleep": {"seconds": 5, "steps": 3},
    "test_custom_header": {"region": "north"},
    "test_elicitation": {"message": "x"},
    "test_sampling": {"prompt": "x"},
    "touch": {"text": "x"},
}
FAIL_ON_PURPOSE = {"test_error_handling", "failing_job", "protocol_error_job"}


async def test_nothing_is_found_in_the_example_that_has_everything(autojump_clock: Any) -> None:
    async with Client(everything) as client:
        tools = [tool.name async for tool in client.tools() if tool.name not in FAIL_ON_PURPOSE]
    assert len(tools) > 30
    effects = ["mcp_actors.server.Server.resource_updated"]
    for tool in tools:
        report = await check_tool(lambda: everything, tool, ARGUMENTS.get(tool), effects=effects)
        assert report.ok, report


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {"path": "a.txt"}),
        ("list_directory", {}),
        ("search_files", {"pattern": "*.txt"}),
    ],
)
async def test_nothing_is_found_in_what_reads_files(
    tool: str, arguments: dict[str, Any], tmp_path: Path, autojump_clock: Any
) -> None:
    (tmp_path / "a.txt").write_text("a")
    report = await check_tool(lambda: filesystem.server(str(tmp_path)), tool, arguments, effects=[])
    assert report.ok, report


async def test_nothing_is_found_in_what_writes_files(tmp_path: Path, autojump_clock: Any) -> None:
    # Repeated as its hint allows, it writes the same file again: that is no second effect.
    report = await check_tool(
        lambda: filesystem.server(str(tmp_path)),
        "write_file",
        {"path": "a.txt", "content": "a"},
        effects=["mcp_actors.examples.filesystem.RootFolder.write"],
        repeatable=False,
    )
    assert report.ok, report
    assert report.expected == {"write": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("real_time_is_waited_for")
@pytest.mark.parametrize("tool", ["log", "show"])
async def test_nothing_is_found_in_what_asks_git(tool: str, tmp_path: Path, autojump_clock: Any) -> None:
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        who = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
        await trio.run_process(["git", "-C", str(tmp_path), *who, *words])
    report = await check_tool(lambda: git.server(str(tmp_path)), tool, effects=[], repeatable=False)
    assert report.ok, report


@pytest.mark.slow
@pytest.mark.usefixtures("real_time_is_waited_for")
async def test_nothing_is_found_in_what_asks_sqlite(tmp_path: Path, autojump_clock: Any) -> None:
    file = tmp_path / "rows.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table rows (x)")
    effects = ["mcp_actors.examples.sqlite.Database.query"]
    report = await check_tool(
        lambda: sqlite.server("--write", str(file)),
        "query",
        {"sql": "insert into rows values (1)"},
        effects=effects,
    )
    assert report.ok, report
    assert report.expected == {"query": 1}
