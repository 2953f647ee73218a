"""Rules that the client and the server both check: what one of them lets out, the other one takes."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, MissingCapability, Server
from mcp_actors.types import (
    ClientCapabilities,
    CreateMessageResult,
    ElicitationCapability,
    ElicitResult,
    SamplingCapability,
    TextContent,
)

from .peers import EVERY

COMPLETE = "notifications/elicitation/complete"


async def accept(question: Any) -> ElicitResult:
    return ElicitResult("accept", {"name": "x"} if hasattr(question, "requested_schema") else None)


async def sample(question: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(question.include_context), model="m")


@pytest.mark.parametrize("url", [None, "memory:ends", "ws://127.0.0.1:0/ws", "http://127.0.0.1:0/mcp"])
async def test_a_program_hears_that_the_person_is_done_at_a_url(url: str | None) -> None:
    server = Server("asks")
    asked: list[str] = []
    heard: list[Any] = []
    told = trio.Event()

    @server.tool
    async def sign_in(ctx: Context) -> str:
        def page(id: str) -> str:
            asked.append(id)
            return "https://example.org/in"

        return (await ctx.elicit_url("Sign in", page)).action

    def on_notification(method: str, params: dict[str, Any]) -> None:
        heard.append((method, params))
        told.set()

    async with trio.open_nursery() as nursery:
        target: Any = server
        if url is not None:
            (target,) = await nursery.start(server.serve, url)
        async with Client(
            target, era="2025-11-25", elicitation=accept, on_notification=on_notification
        ) as client:
            assert (await client.call_tool("sign_in")).text == "accept"
            with trio.fail_after(10):
                # Over HTTP the stream on which it comes is opened beside the first call.
                while not (told.is_set() or server.elicitation_complete(asked[0])):
                    assert (await client.call_tool("sign_in")).text == "accept"
                    asked.pop(0)
                await told.wait()
        nursery.cancel_scope.cancel()
    assert heard == [(COMPLETE, {"elicitationId": asked[0]})]


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("context", [None, {}])
@pytest.mark.parametrize("included", ["none", "thisServer", "allServers"])
async def test_the_context_of_other_servers_is_asked_for_where_it_is_given(
    version: str, context: Any, included: Any
) -> None:
    server = Server("asks")

    @server.tool
    async def draw(ctx: Context) -> str:
        try:
            answer = await ctx.sample("hi", max_tokens=5, include_context=included)
        except MissingCapability:
            return "not declared"
        assert isinstance(answer.content, TextContent)
        return answer.content.text

    capabilities = ClientCapabilities(sampling=SamplingCapability(context=context))
    async with Client(server, era=version, sampling=sample, capabilities=capabilities) as client:
        text = (await client.call_tool("draw")).text
    may = included == "none" or context is not None or version < "2025-11-25"
    assert text == (included if may else "not declared")


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("root", ["file:///a", "FILE:///a", "File://host/a"])
async def test_the_roots_that_a_client_may_have_are_those_that_a_server_takes(
    version: str, root: str
) -> None:
    server = Server("asks")

    @server.tool
    async def look(ctx: Context) -> str:
        return " ".join(each.uri for each in await ctx.list_roots())

    async with Client(server, era=version, roots=[root]) as client:
        assert (await client.call_tool("look")).text == root


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize(
    "capability", [ElicitationCapability(), ElicitationCapability(form={}), ElicitationCapability(url={})]
)
async def test_only_questions_that_are_answered_are_asked(
    version: str, capability: ElicitationCapability
) -> None:
    server = Server("asks")

    @server.tool
    async def form(ctx: Context) -> str:
        fields = {"type": "object", "properties": {"name": {"type": "string"}}}
        try:
            return (await ctx.elicit("Who?", fields)).action
        except MissingCapability:
            return "not asked"

    @server.tool
    async def visit(ctx: Context) -> str:
        try:
            return (await ctx.elicit_url("Sign in", "https://example.org/in")).action
        except MissingCapability:
            return "not asked"

    capabilities = ClientCapabilities(elicitation=capability)
    async with Client(server, era=version, elicitation=accept, capabilities=capabilities) as client:
        answered = ((await client.call_tool("form")).text, (await client.call_tool("visit")).text)
    has_url = capability.url is not None and version >= "2025-11-25"
    has_form = capability.url is None and version >= "2025-06-18"
    assert answered == ("accept" if has_form else "not asked", "accept" if has_url else "not asked")
