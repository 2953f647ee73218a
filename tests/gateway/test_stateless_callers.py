"""Callers of the stateless revisions at servers of sessions: what their revision wants, whatever the server says."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Context, Server
from mcp_actors.errors import InputRequired, MissingCapability
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.tasks import Tasks
from mcp_actors.types import ElicitResult

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def in_front_of(server: Server) -> Gateway:
    return Gateway([Upstream(name="x", target=server, era="legacy")])


async def never(question: object) -> ElicitResult:
    raise AssertionError("it is asked by a result")


async def test_a_capability_that_is_missing_has_the_code_of_the_callers_revision() -> None:
    server = Server("behind")

    @server.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("Who?", FORM))

    async with Client(in_front_of(server), era="modern") as client:
        with pytest.raises(MissingCapability) as refused:
            await client.call_tool("x_ask", {})
    assert refused.value.code == -32021
    assert refused.value.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_each_round_of_a_held_call_has_a_state_of_its_own(autojump_clock: MockClock) -> None:
    server = Server("behind")

    @server.tool
    async def ask(ctx: Context) -> str:
        names = [(await ctx.elicit(each, FORM)).content for each in ("Who?", "And who?")]
        return str(names)

    gateway = in_front_of(server)
    async with Client(gateway, era="modern", elicitation=never, answer_input=False) as client:
        with pytest.raises(InputRequired) as first:
            await client.call_tool("x_ask", {})
        answers = dict.fromkeys(first.value.requests, ElicitResult("accept", {"name": "Ann"}))
        with pytest.raises(InputRequired) as second:
            await client.call_tool("x_ask", {}, answers=answers, state=first.value.state)
        answers = dict.fromkeys(second.value.requests, ElicitResult("accept", {"name": "Bob"}))
        result = await client.call_tool("x_ask", {}, answers=answers, state=second.value.state)
    # No time passed, so that only the round can make the difference.
    assert first.value.state != second.value.state
    assert result.text == "[{'name': 'Ann'}, {'name': 'Bob'}]"


async def test_the_param_of_tasks_of_sessions_is_ignored() -> None:
    """SEP-2663: a call with ``task`` is neither refused nor made a task."""
    server = Server("behind")
    server.add_extension(Tasks())

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool(task="optional")
    async def later() -> str:
        await trio.lowlevel.checkpoint()
        return "now"

    async with Client(in_front_of(server), era="modern") as client:
        task = {"ttl": 1000}
        added = await client.request(
            "tools/call", {"name": "x_add", "arguments": {"a": 1, "b": 2}, "task": task}
        )
        said = await client.request("tools/call", {"name": "x_later", "arguments": {}, "task": task})
    assert added["content"][0]["text"] == "3"
    assert said["content"][0]["text"] == "now"


def server_that_remembers() -> Server:
    """Returns one that asks for the roots once in a session, as nothing tells it that another client is behind it."""
    server = Server("behind")
    server.add_resource("data://r", lambda: "r", name="r")

    @server.tool
    async def roots(ctx: Context) -> str:
        assert ctx.session is not None
        known = ctx.session.get(list[str])
        if not known:
            known += [root.uri for root in await ctx.list_roots()]
        return known[0]

    return server


async def test_a_client_is_asked_for_its_roots_although_another_one_has_said_its_own(
    nursery: trio.Nursery,
) -> None:
    (url,) = await nursery.start(in_front_of(server_that_remembers()).serve, "http://127.0.0.1:0/mcp")
    for root in ("file:///home/ann", "file:///home/bob"):
        async with Client(url, era="modern", roots=[root]) as client:
            assert (await client.call_tool("x_roots")).text == root
    nursery.cancel_scope.cancel()


async def test_what_a_client_has_subscribed_to_stays_so_after_it_has_said_its_roots(
    nursery: trio.Nursery,
) -> None:
    server = server_that_remembers()
    (url,) = await nursery.start(in_front_of(server).serve, "http://127.0.0.1:0/mcp")
    async with (
        Client(url, era="modern", roots=["file:///home/ann"]) as ann,
        Client(url, era="modern", roots=["file:///home/bob"]) as bob,
        ann.listen(uris=["data://r"]) as changes,
    ):
        assert (await ann.call_tool("x_roots")).text == "file:///home/ann"
        assert (await bob.call_tool("x_roots")).text == "file:///home/bob"
        server.resource_updated("data://r")
        assert (await anext(changes)).uri == "data://r"
    nursery.cancel_scope.cancel()
