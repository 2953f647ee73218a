"""`check_tool`: what it finds in tools with faults, and what it does not find in those without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import trio

from mcp_actors import Context, Server, SyncContext
from mcp_actors.testing import Effects, ToolReport, check_tool
from mcp_actors.types import (
    ToolAnnotations,
)

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
