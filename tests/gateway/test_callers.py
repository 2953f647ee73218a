"""What a caller sees of a gateway is what it may see, over a connection of its own where the server keeps sessions."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.errors import InsufficientScope, ResourceNotFound
from mcp_actors.gateway import Gateway, Upstream
from tests.gateway.test_lists import make_library, make_server, names_of
from tests.middleware.callers import served

ERAS = ("legacy", "modern")


@pytest.mark.parametrize("era", ERAS)
async def test_without_the_scopes_of_a_server_nobody_sees_or_uses_it(era: str) -> None:
    gateway = Gateway(
        [
            Upstream(name="a", target=make_library("a", "aa")),
            Upstream(name="b", target=make_library("b", "bb"), scopes=["books"]),
            Upstream(name="c", target=make_server("c", "x", instructions="Of c."), scopes=["c"]),
        ],
        instructions="Own.",
    )
    async with served(gateway) as way:
        async with way.client("alice", scopes=["books"], era=era) as client:
            assert [each.uri async for each in client.resources()] == ["aa://index", "bb://index"]
            assert (await client.read_resource("bb://books/emma")).text == "b book emma"
            assert client.instructions == "Own."
        async with way.client("bob", era=era) as client:
            assert [each.uri async for each in client.resources()] == ["aa://index"]
            assert [each.name async for each in client.prompts()] == ["a_greet"]
            assert await names_of(client) == []
            requests: list[tuple[str, dict[str, Any]]] = [
                ("tools/call", {"name": "c_x"}),
                ("prompts/get", {"name": "b_greet", "arguments": {"who": "x"}}),
                ("resources/read", {"uri": "bb://index"}),
                ("resources/read", {"uri": "bb://books/emma"}),
            ]
            for method, params in requests:
                with pytest.raises(InsufficientScope):
                    await client.request(method, params)
            with pytest.raises(ResourceNotFound):
                await client.read_resource("cc://unlisted")


async def test_each_session_has_the_lists_of_its_own_session_at_the_server() -> None:
    server = Server("s", capabilities=["tools"])

    @server.tool
    async def log_in(ctx: Context) -> None:
        """Shows another tool in this session."""
        assert ctx.session is not None
        ctx.session.get(list[str]).append("secret")
        ctx.session.notify("notifications/tools/list_changed", {})

    listed = server._features.handlers["tools/list"]

    def of_session(ctx: Context) -> Any:
        page = listed(ctx)
        assert ctx.session is not None
        return page if not ctx.session.get(list[str]) else {"tools": [{"name": "secret", "inputSchema": {}}]}

    server._features.handlers["tools/list"] = of_session
    gateway = Gateway([Upstream(name="u", target=server, era="legacy")])
    async with (
        served(gateway) as way,
        way.client(None, era="legacy") as one,
        way.client(None, era="legacy") as other,
        one.listen(tools=True) as changes,
    ):
        assert await names_of(one) == await names_of(other) == ["u_log_in"]
        await one.call_tool("u_log_in")
        await anext(changes)
        assert await names_of(one) == ["u_secret"]
        assert await names_of(other) == ["u_log_in"]


async def test_parameters_that_are_sent_in_headers_are_so_on_both_sides(nursery: trio.Nursery) -> None:
    server = Server("s")
    seen: list[str | None] = []

    def region(arguments: dict[str, Any], ctx: Context) -> str:
        assert ctx.request is not None
        seen.append(ctx.request.headers.get("mcp-param-region"))
        return str(arguments["region"])

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    server.add_tool(region, name="region", description="Says it.", input_schema=schema, inline=True)
    (behind,) = await nursery.start(server.serve, "http://127.0.0.1:0/mcp")
    gateway = Gateway([Upstream(name="u", target=behind, era="modern")])
    (url,) = await nursery.start(gateway.serve, "http://127.0.0.1:0/mcp")
    async with Client(url, era="modern") as client:
        # Neither the client nor the gateway has listed the tool, so both learn from a refusal what is sent in headers.
        assert (await client.call_tool("u_region", {"region": "eu"})).text == "eu"
        assert [each.input_schema async for each in client.tools()] == [schema]
        assert (await client.call_tool("u_region", {"region": "us"})).text == "us"
    assert seen == ["eu", "us"]
    nursery.cancel_scope.cancel()
