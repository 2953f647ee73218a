"""A call at a server with sessions is held while a client without one is asked, and ends when nobody comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Context, Limits, Server
from mcp_actors.errors import InputRequired, RpcError
from mcp_actors.gateway import Gateway, Upstream, held_calls
from mcp_actors.types import ElicitResult
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ANN = ElicitResult("accept", {"name": "Ann"})


async def never(question: Any) -> ElicitResult:
    raise AssertionError("it is asked by a result, and answers by a retry")


class Behind:
    """A server with a tool that asks, and what becomes of its calls."""

    def __init__(self) -> None:
        # It waits longer for an answer than the gateway does.
        self.server = Server("behind", limits=Limits(ask_timeout=1e5))
        self.running = 0
        self.cancelled = 0
        self.changed = trio.Event()
        self.server.add_tool(self.ask, name="ask")
        self.server.add_tool(self.wait, name="wait")

    async def ask(self, ctx: Context, patience: float = 1e6) -> str:
        self.running += 1
        try:
            with trio.move_on_after(patience):
                answer = await ctx.elicit("Who?", FORM)
                return str(answer.content and answer.content["name"])
            return "nobody came"
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self.changed.set()

    async def wait(self) -> str:
        self.changed.set()
        return await self.ask_never()

    async def ask_never(self) -> str:
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled += 1

    @asynccontextmanager
    async def connected(self, **settings: Any) -> AsyncIterator[Client]:
        gateway = Gateway([Upstream(name="x", target=self.server, era="legacy", cap=1e6, **settings)])
        async with Client(gateway, era="modern", elicitation=never, answer_input=False, cap=1e6) as client:
            yield client


async def asked(client: Client, **arguments: Any) -> InputRequired:
    with pytest.raises(InputRequired) as required:
        await client.call_tool("x_ask", arguments)
    return required.value


async def retried(client: Client, question: InputRequired, answer: Any = ANN) -> str:
    answers = dict.fromkeys(question.requests, answer)
    result = await client.call_tool("x_ask", {}, answers=answers, state=question.state)
    return result.text


async def test_the_retry_gets_the_result_of_the_call_that_was_held(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        assert behind.running == 1
        await trio.sleep(500)
        assert await retried(client, question) == "Ann"
        assert (behind.running, behind.cancelled) == (0, 0)
        with pytest.raises(RpcError, match="the call has ended"):
            await retried(client, question)


async def test_a_client_that_does_not_come_back_ends_the_call(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        await trio.sleep(held_calls.HELD_TIMEOUT + 1)
        assert (behind.running, behind.cancelled) == (0, 1)
        with pytest.raises(RpcError, match="nobody answered in time") as refused:
            await retried(client, question)
    assert refused.value.code == -32602


async def test_a_result_that_was_there_before_the_answers_waits_for_the_retry(
    autojump_clock: MockClock,
) -> None:
    behind = Behind()
    async with behind.connected() as client:
        with pytest.raises(InputRequired) as required:
            await client.call_tool("x_ask", {"patience": 10.0})
        await trio.sleep(20)
        assert behind.running == 0
        answers = dict.fromkeys(required.value.requests, ANN)
        result = await client.call_tool(
            "x_ask", {"patience": 10.0}, answers=answers, state=required.value.state
        )
    assert result.text == "nobody came"


async def test_a_state_is_good_for_the_same_request_alone(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        assert question.state is not None
        forged = question.state[:-2] + ("AA" if question.state[-2:] != "AA" else "BB")
        for name, arguments, state in (
            ("x_ask", {}, forged),
            ("x_ask", {"patience": 1.0}, question.state),
            ("x_wait", {}, question.state),
        ):
            with pytest.raises(RpcError, match="requestState") as refused:
                await client.call_tool(name, arguments, state=state, answers={})
            assert refused.value.code == -32602
        assert await retried(client, question) == "Ann"


async def test_an_answer_that_does_not_fit_is_refused_and_the_call_goes_on(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        question = await asked(client)
        with pytest.raises(RpcError, match="does not fit the form"):
            await retried(client, question, ElicitResult("accept", {"name": 7}))
        again = await asked_again(client, question)
        assert list(again.requests) == list(question.requests)
        assert await retried(client, again) == "Ann"


async def asked_again(client: Client, question: InputRequired) -> InputRequired:
    """A retry without answers is asked the same once more."""
    with pytest.raises(InputRequired) as required:
        await client.call_tool("x_ask", {}, answers={}, state=question.state)
    return required.value


async def test_one_retry_at_a_time_waits_for_a_call(autojump_clock: MockClock) -> None:
    server, asking = Server("behind"), trio.Event()

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.elicit("Who?", FORM)
        asking.set()
        await trio.sleep(5)
        return "done"

    behind = Behind()
    behind.server = server
    async with behind.connected() as client, trio.open_nursery() as nursery:
        question = await asked(client)

        async def first() -> None:
            assert await retried(client, question) == "done"

        nursery.start_soon(first)
        await asking.wait()
        with pytest.raises(RpcError, match="another retry of this call is in flight"):
            await retried(client, question)


async def test_a_client_that_cancels_its_retry_ends_the_call(autojump_clock: MockClock) -> None:
    behind = Behind()
    async with behind.connected() as client:
        with trio.move_on_after(1):
            await client.call_tool("x_wait")
        await behind.changed.wait()
        await trio.sleep(0.1)
        assert behind.cancelled == 1


async def test_a_gateway_that_ends_ends_what_it_holds(autojump_clock: MockClock) -> None:
    behind = Behind()
    with capture_logs() as lines:
        async with behind.connected() as client:
            await asked(client)
    assert behind.running == 0
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_as_many_calls_as_one_caller_may_have_are_held(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_BY_CALLER", 2)
    behind = Behind()
    async with behind.connected() as client:
        questions = [await asked(client) for _ in range(2)]
        with pytest.raises(
            RpcError, match="too many calls that wait for input of this client: the limit is 2"
        ):
            await client.call_tool("x_ask")
        assert await retried(client, questions[0]) == "Ann"
        # Its place is free for the next one.
        await asked(client)


async def test_as_many_bytes_as_one_caller_may_have_are_held(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_calls, "MAX_HELD_BYTES", 8 * 1000)
    server = Server("behind")

    @server.tool
    async def ask(ctx: Context, text: str) -> str:
        return (await ctx.elicit(text, FORM)).action

    behind = Behind()
    behind.server = server
    async with behind.connected() as client:
        await asked(client, text="a" * 300)
        with pytest.raises(RpcError, match="too many bytes in the calls that wait for input"):
            await client.call_tool("x_ask", {"text": "a" * 900})


async def test_the_state_of_one_principal_is_of_no_use_to_another_one() -> None:
    behind = Behind()
    gateway = Gateway([Upstream(name="x", target=behind.server, era="legacy")])
    transport = HttpServerTransport(
        "http://127.0.0.1:0/mcp", authenticate=lambda request: request.headers["x-who"]
    )
    async with trio.open_nursery() as nursery:
        (where,) = await nursery.start(gateway.serve, transport)

        def as_somebody(name: str) -> Client:
            target = HttpClientTransport(str(where), headers={"x-who": name})
            return Client(target, era="modern", elicitation=never, answer_input=False)

        async with as_somebody("ann") as ann, as_somebody("bob") as bob:
            question = await asked(ann)
            with pytest.raises(RpcError, match="requestState was not issued for this request"):
                await retried(bob, question)
            assert await retried(ann, question) == "Ann"
        nursery.cancel_scope.cancel()
