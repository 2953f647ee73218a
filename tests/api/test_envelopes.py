"""What a caller adds to a request's ``_meta``, and what of it reaches whom."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Progress, Server
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    TextContent,
)
from tests.messages import TASKS_DECLARED

from .peers import CAPABILITIES, CLIENT_INFO, EVERY, LEGACY, LOG_LEVEL, MODERN, VERSION, scripted

FORGED = {
    VERSION: "1999-01-01",
    CAPABILITIES: {"sampling": {}},
    CLIENT_INFO: {"name": "somebody else", "version": "1"},
    LOG_LEVEL: "debug",
    "progressToken": 5,
    "acme/mine": 1,
}


def make_server(seen: list[Any]) -> Server:
    server = Server("s")

    @server.tool
    async def look(ctx: Context) -> str:
        """Looks at what came along."""
        info = ctx.peer.info
        seen.append(
            (ctx.peer.version, info and info.name, ctx.peer.raw_capabilities, ctx.meta.get("acme/mine"))
        )
        await ctx.progress(1)
        return "seen"

    @server.method("acme/report")
    async def report(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        await ctx.progress(1)
        return {}

    return server


@pytest.mark.parametrize("version", EVERY)
async def test_a_callers_meta_never_replaces_what_the_client_says_of_itself(version: str) -> None:
    seen: list[Any] = []
    async with Client(make_server(seen), era=version) as client:
        assert (await client.call_tool("look", meta=FORGED)).content == [TextContent("seen")]
    declared = TASKS_DECLARED if version == MODERN else {}
    assert seen == [(version, "mcp-actors", declared, 1)]


@pytest.mark.parametrize("version", EVERY)
async def test_a_callers_token_never_takes_the_reports_of_another_call(version: str) -> None:
    reports: list[Progress] = []
    async with Client(make_server([]), era=version) as client:
        await client.call_tool("look", meta=FORGED, on_progress=reports.append)
        await client.request("acme/report", {"_meta": {"progressToken": 5}})
        assert client.tree().counters.late == 0
    assert [report.progress for report in reports] == [1]


async def test_the_level_of_one_call_can_be_asked_for_where_the_client_has_none() -> None:
    async with scripted(MODERN) as (client, peer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.request, "acme/x", {"_meta": {LOG_LEVEL: "debug"}})
            asked = await peer.receive()
            assert asked["params"]["_meta"][LOG_LEVEL] == "debug"
            await peer.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"resultType": "complete"}})


@pytest.mark.parametrize("version", [each for each in LEGACY if each >= "2025-06-18"])
async def test_the_meta_of_a_question_reaches_the_handler(version: str) -> None:
    metas: list[Any] = []

    async def elicitation(params: Any) -> ElicitResult:
        metas.append(params.meta)
        return ElicitResult("decline")

    async def sampling(params: CreateMessageParams) -> CreateMessageResult:
        metas.append(params.meta)
        return CreateMessageResult("assistant", TextContent("hi"), "m")

    server = Server("asks")

    @server.tool
    async def ask(ctx: Context) -> str:
        """Asks two things."""
        form = {"type": "object", "properties": {}}
        questions = {
            "form": ElicitFormParams("?", form, meta={"acme/why": 1}),
            "model": CreateMessageParams([], 5, meta={"acme/why": 2}),
        }
        return " ".join(await ctx.ask(questions))

    async with Client(server, era=version, elicitation=elicitation, sampling=sampling) as client:
        assert (await client.call_tool("ask")).content == [TextContent("form model")]
    assert metas == [{"acme/why": 1}, {"acme/why": 2}]
