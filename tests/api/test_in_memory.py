"""A client and a server in one process are as far apart as any two, whoever's turn a frame is delivered in."""

from __future__ import annotations

import contextvars

import pytest
import trio
import trio.testing

from mcp_actors import CallTimeout, Client, ConnectionLost, Context, Server
from mcp_actors._actors.dispatcher import Dispatcher

who = contextvars.ContextVar("who", default="nobody")

eras = pytest.mark.parametrize("era", ["legacy", "modern"])


def make_server() -> Server:
    server = Server("s")

    @server.tool
    async def asks_who() -> str:
        return who.get()

    @server.tool(inline=True)
    def at_once() -> str:
        return "done"

    @server.tool
    async def counts(ctx: Context) -> str:
        for number in range(1, 4):
            await ctx.progress(number)
        return "done"

    @server.tool
    async def tidies_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1000)

    return server


@eras
async def test_a_handler_sees_nothing_of_its_callers_context(era: str) -> None:
    async with Client(make_server(), era=era) as client:
        who.set("the caller")
        for _ in range(2):
            result = await client.call_tool("asks_who")
            assert result.content[0].text == "nobody"  # type: ignore[union-attr]


@eras
async def test_a_call_that_is_answered_at_once_is_a_checkpoint_all_the_same(era: str) -> None:
    async with Client(make_server(), era=era) as client:
        with trio.testing.assert_checkpoints():
            await client.call_tool("at_once")
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.call_tool("at_once")
        assert scope.cancelled_caught


@eras
async def test_progress_comes_before_the_answer_and_in_order(era: str) -> None:
    seen: list[float] = []
    async with Client(make_server(), era=era) as client:
        result = await client.call_tool("counts", on_progress=lambda p: seen.append(p.progress))
        assert (seen, result.is_error) == ([1, 2, 3], None)


@eras
async def test_nobody_waits_for_a_handler_that_tidies_up(
    era: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with Client(make_server(), era=era) as client:
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await client.call_tool("tidies_up", timeout=5)
        with trio.move_on_after(5):
            await client.call_tool("tidies_up")
        assert trio.current_time() - began == 10
        assert [call.state for call in client.tree().calls] == []


@eras
async def test_what_fails_while_it_is_delivered_ends_the_session_and_not_the_sender(
    era: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with Client(make_server(), era=era) as client:

        def fail(self: Dispatcher, request: object, outlet: object) -> None:
            raise ZeroDivisionError("a bug of ours")

        monkeypatch.setattr(Dispatcher, "begin", fail)
        with pytest.raises(ConnectionLost):
            await client.call_tool("at_once")
    assert "session failed" in "".join(capsys.readouterr())
