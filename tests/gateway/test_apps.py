"""Apps behind a gateway (SEP-1865): each upstream's pages in a folder of its own, and its tools called by them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from mcp_actors import App, Client, Context, ResourceNotFound, RpcError, Server
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import (
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from tests.server.test_access import Authenticating

APPS = "io.modelcontextprotocol/ui"
MIME = "text/html;profile=mcp-app"
EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
EACH_UPSTREAM_ERA = pytest.mark.parametrize("upstream_era", ["legacy", "modern"])


def html(text: str) -> str:
    return f"<!doctype html>{text}"


def _said(text: str) -> str:
    return text


def shop(name: str, *more: str) -> Server:
    server = Server(name)

    def board() -> str:
        return html(name)

    @server.tool(app=board)
    def show(ctx: Context) -> str:
        return f"{name} {ctx.shows_apps}"

    @server.tool(app=App("ui://board", visibility=["app"]))
    def refresh() -> str:
        return f"fresh {name}"

    for each in more:
        server.add_tool(partial(_said, f"{each} of {name}"), name=each, app=App(visibility=["app"]))
    return server


def upstream(name: str, target: Any, **settings: Any) -> Upstream:
    return Upstream(name=name, target=target, **settings)


async def listed(client: Client) -> dict[str, Any]:
    return {tool.name: tool async for tool in client.tools(for_apps=True)}


@EACH_UPSTREAM_ERA
@EACH_ERA
async def test_pages_of_two_servers_are_kept_apart(era: str, upstream_era: str) -> None:
    gateway = Gateway(
        [
            upstream("a", shop("one"), era=upstream_era),
            upstream("b", shop("two"), era=upstream_era),
            upstream("c", Server("plain")),
        ]
    )
    async with Client(gateway, era=era, apps=True) as client:
        assert (client.server_capabilities.extensions or {})[APPS] == {}
        found = await listed(client)
        for name, text in (("a", "one"), ("b", "two")):
            uri = f"ui://{name}/board"
            tool = found[f"{name}_show"]
            assert tool.meta == {"ui": {"resourceUri": uri}, "ui/resourceUri": uri}
            assert (await client.app(tool)).html == html(text)
            # The upstream is told what the client shows.
            assert (await client.call_tool(tool.name)).text == f"{text} True"
            read = await client.read_resource(uri)
            assert [each.uri for each in read.contents] == [uri]
        assert [each.uri async for each in client.resources()] == ["ui://a/board", "ui://b/board"]
        assert [each.name async for each in client.tools()] == ["a_show", "b_show"]
        assert sorted(found["a_refresh"].visibility) == ["app"]
        assert (await client.call_tool("a_refresh")).text == "fresh one"


@EACH_ERA
async def test_a_page_has_no_uri_but_that_in_its_folder(era: str) -> None:
    gateway = Gateway([upstream("a", shop("one")), upstream("b", shop("two"))])
    async with Client(gateway, era=era) as client:
        for uri in ("ui://board", "ui://a/nothing", "ui://c/board"):
            with pytest.raises(ResourceNotFound) as missing:
                await client.read_resource(uri)
            assert missing.value.uri == uri


async def test_a_server_cannot_have_its_tools_shown_on_a_page_of_another_one() -> None:
    thief = Server("thief")

    @thief.tool(meta={"ui": {"resourceUri": "ui://a/board"}, "ui/resourceUri": "ui://a/board"})
    def show() -> str:
        return "stolen"

    @thief.resource("ui://a/board")
    def board() -> str:
        return html("thief")

    for prefix in (None, ""):
        gateway = Gateway([upstream("b", thief, prefix=prefix), upstream("a", shop("one"))])
        async with Client(gateway) as client:
            found = await listed(client)
            tool = found["show" if prefix == "" else "b_show"]
            assert tool.app_uri == tool.meta["ui/resourceUri"] == "ui://b/a/board"
            assert (await client.app(tool)).html == html("thief")
            assert (await client.app(found["a_show"])).html == html("one")


@EACH_UPSTREAM_ERA
@EACH_ERA
async def test_pages_in_results_have_the_uris_of_the_gateway(era: str, upstream_era: str) -> None:
    server = Server("shop")

    @server.tool
    def show() -> CallToolResult:
        content = [
            TextContent("ui://board"),
            ResourceLink("ui://board", "board"),
            ResourceLink("data://board", "board"),
            EmbeddedResource(TextResourceContents("ui://board", html("x"), MIME)),
        ]
        return CallToolResult(content, {"uri": "ui://board"}, meta={"ui": {"resourceUri": "ui://board"}})

    gateway = Gateway([upstream("a", server, era=upstream_era)])
    async with Client(gateway, era=era) as client:
        result = await client.call_tool("a_show")
        text, page, data, embedded = result.content
        assert isinstance(text, TextContent)
        assert text.text == "ui://board"
        assert isinstance(page, ResourceLink)
        assert isinstance(data, ResourceLink)
        assert isinstance(embedded, EmbeddedResource)
        assert (page.uri, data.uri, embedded.resource.uri) == ("ui://a/board", "data://board", "ui://a/board")
        # What the tool returned as a value is its own.
        assert result.structured_content == {"uri": "ui://board"}
        assert (result.meta or {})["ui"] == {"resourceUri": "ui://a/board"}


@pytest.mark.parametrize("prefix", [None, ""])
@EACH_ERA
async def test_a_page_calls_the_tools_of_its_server_by_their_own_names(era: str, prefix: str | None) -> None:
    gateway = Gateway(
        [
            upstream("a", shop("one", "only")),
            upstream("b", shop("two", "other"), prefix=prefix),
            upstream("c", Server("plain")),
        ]
    )
    async with Client(gateway, era=era) as client:
        await listed(client)
        assert (await client.call_tool("only")).text == "only of one"
        assert (await client.call_tool("other")).text == "other of two"
        if prefix is None:
            # Two servers have it, and the call does not say whose page has made it.
            with pytest.raises(RpcError, match="unknown tool"):
                await client.call_tool("refresh")
        with pytest.raises(RpcError, match="unknown tool"):
            await client.call_tool("nothing")


async def test_a_page_is_found_by_a_gateway_that_has_listed_nothing_yet() -> None:
    gateway = Gateway([upstream("a", shop("one", "only")), upstream("b", shop("two"))])
    async with Client(gateway) as client:
        assert (await client.call_tool("only")).text == "only of one"
        assert (await client.app("ui://b/board")).html == html("two")


async def test_a_tool_of_a_server_without_pages_has_one_name() -> None:
    plain = Server("plain")
    plain.add_tool(lambda: "done", name="only")
    models = Server("models")
    models.add_tool(lambda: "done", name="drawn", app=App("ui://board", visibility=["model"]))
    async with Client(Gateway([upstream("a", plain), upstream("b", models)])) as client:
        assert list(await listed(client)) == ["a_only", "b_drawn"]
        for name in ("only", "drawn"):
            with pytest.raises(RpcError, match="unknown tool"):
                await client.call_tool(name)


async def test_what_is_not_offered_is_not_called_by_its_own_name() -> None:
    upstreams = [upstream("a", shop("one", "only", "more"), exclude=["only"], scopes=["boards"])]
    gateway = Gateway([*upstreams, upstream("b", Server("plain"))])
    transport = Authenticating(Principal("x", scopes=["boards"]))
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.serve, transport)
        async with Client(transport) as client:
            assert (await client.call_tool("more")).text == "more of one"
            with pytest.raises(RpcError, match="unknown tool"):
                await client.call_tool("only")
        nursery.cancel_scope.cancel()
    poor = Authenticating(Principal("y", scopes=[]))
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.serve, poor)
        async with Client(poor) as client:
            with pytest.raises(RpcError, match="unknown tool"):
                await client.call_tool("more")
        nursery.cancel_scope.cancel()


async def test_a_page_that_is_not_offered_is_not_named() -> None:
    gateway = Gateway([upstream("a", shop("one"), exclude=["ui://*"])])
    async with Client(gateway) as client:
        found = await listed(client)
        assert found["a_show"].app_uri is None
        assert found["a_refresh"].meta == {"ui": {"visibility": ["app"]}}
        with pytest.raises(ResourceNotFound):
            await client.read_resource("ui://a/board")


async def test_a_bridge_leaves_pages_where_they_are() -> None:
    gateway = Gateway([upstream("a", shop("one"), prefix="")], presents=True)
    async with Client(gateway) as client:
        assert (client.server_capabilities.extensions or {})[APPS] == {}
        found = await listed(client)
        assert found["show"].app_uri == "ui://board"
        assert (await client.app(found["show"])).html == html("one")


async def test_a_gateway_has_pages_of_its_own_and_of_gateways_behind_it() -> None:
    inner = Gateway([upstream("a", shop("one", "only"))])
    outer = Gateway([upstream("in", inner), upstream("b", shop("two"))])

    @outer.tool(app="ui://own")
    def own() -> str:
        return "own"

    outer.add_resource("ui://own", lambda: html("own"), name="own")
    async with Client(outer) as client:
        found = await listed(client)
        assert (await client.app(found["own"])).html == html("own")
        assert found["in_a_show"].app_uri == "ui://in/a/board"
        assert (await client.app(found["in_a_show"])).html == html("one")
        assert (await client.call_tool("a_only")).text == "only of one"
