"""Apps of a server (SEP-1865): pages of tools as resources, who may call a tool, and what hosts without them see."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcp_actors import App, Client, Context, Provided, ProvidedPage, Provider, Server
from mcp_actors.errors import LocalProtocolError, ResourceNotFound
from mcp_actors.server import Caller, ComponentKind
from mcp_actors.types import AppCsp, AppPage, BlobResourceContents, ReadResourceResult, TextResourceContents

APPS = "io.modelcontextprotocol/ui"
MIME = "text/html;profile=mcp-app"
HTML = "<!doctype html><title>Board</title>"
EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])


@pytest.fixture
def show(tmp_path: Path) -> Callable[[], dict[str, int]]:
    """A function that is written in a file of ``tmp_path``, beside which pages lie."""
    (tmp_path / "ui").mkdir()
    (tmp_path / "ui" / "a board.html").write_text(HTML)
    (tmp_path / "shop.py").write_text("def show() -> dict[str, int]:\n    return {'cards': 2}\n")
    scope: dict[str, Any] = {}
    exec(compile((tmp_path / "shop.py").read_text(), str(tmp_path / "shop.py"), "exec"), scope)
    found: Callable[[], dict[str, int]] = scope["show"]
    return found


async def listed(client: Client) -> dict[str, Any]:
    return {tool.name: tool async for tool in client.tools(for_apps=True)}


# -- pages -----------------------------------------------------------------------------------------------------------


@EACH_ERA
async def test_a_tool_has_the_page_in_a_file_beside_it(era: str, show: Any) -> None:
    server = Server("shop")
    server.add_tool(show, app="ui/a board.html")
    async with Client(server, era=era) as client:
        assert (client.server_capabilities.extensions or {})[APPS] == {}
        tool = (await listed(client))["show"]
        uri = "ui://ui/a%20board.html"
        # Hosts before the extension was final look for the second one.
        assert tool.meta == {"ui": {"resourceUri": uri}, "ui/resourceUri": uri}
        (resource,) = [each async for each in client.resources()]
        assert (resource.uri, resource.mime_type, resource.size) == (uri, MIME, len(HTML))
        assert await client.app(tool) == AppPage(uri, HTML)
        # Hosts without the extension show what the tool returns.
        result = await client.call_tool("show")
        assert (result.structured_content, result.text) == ({"cards": 2}, '{"cards":2}')


@EACH_ERA
async def test_a_page_says_what_it_needs_in_the_list_and_when_it_is_read(era: str) -> None:
    server = Server("shop")
    csp = AppCsp(
        connect=["https://api.example.com", "wss://*.example.com:8443"],
        resources=["https://cdn.example.com"],
        frames=["https://video.example.com"],
        base_uris=["https://base.example.com"],
    )

    def board(ctx: Context) -> str:
        return f"{HTML}{ctx.server.name}"

    app = App(
        board, csp=csp, permissions=["camera", "clipboardWrite"], domain="x.example.com", prefers_border=False
    )

    @server.tool(app=app)
    def show() -> str:
        return "two cards"

    said = {
        "csp": {
            "connectDomains": ["https://api.example.com", "wss://*.example.com:8443"],
            "resourceDomains": ["https://cdn.example.com"],
            "frameDomains": ["https://video.example.com"],
            "baseUriDomains": ["https://base.example.com"],
        },
        "permissions": {"camera": {}, "clipboardWrite": {}},
        "domain": "x.example.com",
        "prefersBorder": False,
    }
    async with Client(server, era=era) as client:
        (resource,) = [each async for each in client.resources()]
        assert (resource.uri, resource.meta) == ("ui://board", {"ui": said})
        (content,) = (await client.read_resource("ui://board")).contents
        assert content == TextResourceContents("ui://board", f"{HTML}shop", MIME, meta={"ui": said})
        page = await client.app("ui://board")
        assert (page.permissions, page.domain, page.prefers_border) == (
            {"camera", "clipboardWrite"},
            "x.example.com",
            False,
        )
        assert page.allow == "camera; clipboard-write"
        assert page.content_security_policy == (
            "default-src 'none'; script-src 'self' 'unsafe-inline' https://cdn.example.com; "
            "style-src 'self' 'unsafe-inline' https://cdn.example.com; "
            "img-src 'self' data: https://cdn.example.com; font-src 'self' https://cdn.example.com; "
            "media-src 'self' data: https://cdn.example.com; "
            "connect-src https://api.example.com wss://*.example.com:8443; "
            "frame-src https://video.example.com; object-src 'none'; base-uri https://base.example.com"
        )


async def test_a_page_that_needs_nothing_reaches_nothing() -> None:
    assert AppPage("ui://a", HTML).content_security_policy == (
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self'; media-src 'self' data:; connect-src 'none'; frame-src 'none'; "
        "object-src 'none'; base-uri 'self'"
    )


async def test_a_resource_with_such_a_uri_is_a_page() -> None:
    server = Server("shop")

    @server.resource("ui://boards/{name}", meta={"ui": {"prefersBorder": True}, "own": 1})
    def board(name: str) -> str | bytes:
        return HTML if name == "text" else HTML.encode()

    @server.tool(app="ui://boards/text")
    def show() -> str:
        return "two cards"

    async with Client(server) as client:
        tool = (await listed(client))["show"]
        assert await client.app(tool) == AppPage("ui://boards/text", HTML, prefers_border=True)
        assert await client.app("ui://boards/bytes") == AppPage(
            "ui://boards/bytes", HTML, prefers_border=True
        )
        (content,) = (await client.read_resource("ui://boards/bytes")).contents
        assert content == BlobResourceContents(
            "ui://boards/bytes",
            base64.b64encode(HTML.encode()).decode(),
            MIME,
            meta={"ui": {"prefersBorder": True}},
        )
        with pytest.raises(ResourceNotFound):
            await client.app("ui://nothing")


async def test_two_tools_have_one_page_and_two_pages_have_two_uris(show: Any, tmp_path: Path) -> None:
    server = Server("shop")
    server.add_tool(show, app="ui/a board.html")
    server.add_tool(show, name="again", app="ui/a board.html")
    with pytest.raises(LocalProtocolError, match=r"ui://ui/a%20board\.html"):
        server.add_tool(show, name="other", app=App("ui/a board.html", prefers_border=True))
    server.add_tool(show, name="third", app=App("ui/a board.html", uri="ui://third", prefers_border=True))
    absolute = tmp_path / "ui" / "a board.html"
    server.add_tool(partial(show), name="fourth", app=App(absolute, uri="ui://fourth"))
    async with Client(server) as client:
        assert {each.uri async for each in client.resources()} == {
            "ui://ui/a%20board.html",
            "ui://third",
            "ui://fourth",
        }
        assert list(await listed(client)) == ["show", "again", "third", "fourth"]


async def test_a_page_made_by_a_function_without_a_name_is_called_like_its_uri() -> None:
    server = Server("shop")

    def show() -> str:
        return "2 cards"

    def page(html: str = "") -> str:
        return html

    with pytest.raises(TypeError, match="uri='ui://shop/board'"):
        server.add_tool(show, app=lambda: HTML)
    server.add_tool(show, app=App(lambda: HTML, uri="ui://shop/votes/"))
    server.add_tool(show, name="again", app=App(partial(page, HTML), uri="ui://shop/again"))
    async with Client(server, apps=True) as client:
        assert {each.uri: each.name async for each in client.resources()} == {
            "ui://shop/votes/": "votes",
            "ui://shop/again": "again",
        }
        assert (await client.app("ui://shop/votes/")).html == HTML


async def test_a_page_that_was_removed_can_be_another_one(show: Any, tmp_path: Path) -> None:
    server = Server("shop")
    server.add_tool(show, app="ui/a board.html")
    server.remove_tool("show")
    server.remove_resource("ui://ui/a%20board.html")
    (tmp_path / "ui" / "a board.html").write_text(f"{HTML}new")
    async with Client(server) as client:
        server.add_tool(show, app="ui/a board.html")
        assert (await client.app((await listed(client))["show"])).html == f"{HTML}new"


def test_a_tool_that_cannot_be_added_leaves_no_page(show: Any) -> None:
    server = Server("shop")
    server.add_tool(show)
    with pytest.raises(LocalProtocolError, match="there is already a tool"):
        server.add_tool(show, app="ui/a board.html")
    assert "ui://ui/a%20board.html" not in server.resources


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../secret.html", "ui/../../secret.html", "ui/link.html"])
def test_a_path_that_leads_out_of_the_folder_is_refused(show: Any, tmp_path: Path, path: str) -> None:
    secret = tmp_path.parent / "secret.html"
    secret.write_text(HTML)
    (tmp_path / "ui" / "link.html").symlink_to(secret)
    with pytest.raises(ValueError, match="leads out of"):
        Server("shop").add_tool(show, app=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no page", "no document of HTML"),
        (b"<!doctype html>\xff", "not UTF-8"),
        (b"<!doctype html>" + b" " * 4 * 1024 * 1024, "more than 4,194,304 bytes"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_page_is_refused(
    show: Any, tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "page.html").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Server("shop").add_tool(show, app="page.html")


@pytest.mark.parametrize(
    "origin",
    [
        "https://a.example; script-src *",
        "https://a.example https://b.example",
        "https://a.example/path",
        "https://user@a.example",
        "javascript:alert(1)",
        "'unsafe-eval'",
        "*",
        "",
        1,
    ],
)
def test_what_is_no_origin_is_refused(origin: Any) -> None:
    with pytest.raises(ValueError, match="is no origin"):
        App("page.html", csp=AppCsp(resources=[origin]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"page": 1}, TypeError, "a page is a file"),
        ({"page": "a.html", "csp": {}}, TypeError, "write AppCsp"),
        (
            {"page": "a.html", "csp": AppCsp(connect="https://a.example")},
            TypeError,
            "write a list of origins",
        ),
        ({"page": "a.html", "permissions": "camera"}, TypeError, "write a list"),
        ({"page": "a.html", "permissions": ["usb"]}, ValueError, "there is no 'usb'"),
        ({"page": "a.html", "visibility": ["user"]}, ValueError, "there is no 'user'"),
        ({"page": "a.html", "visibility": []}, ValueError, "nobody may call"),
        ({"page": "a.html", "uri": "https://a.example"}, ValueError, "is no URI of a page"),
        ({"page": "a.html", "uri": "ui://{name}"}, ValueError, "is no URI of a page"),
        ({"page": "ui://a b"}, ValueError, "is no URI of a page"),
        ({"page": "ui://a", "prefers_border": True}, ValueError, "says itself what it needs"),
        ({"permissions": ["camera"]}, ValueError, "there is no page"),
    ],
)
def test_what_is_wrong_with_an_app_is_said_where_it_is_written(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        App(**options)


def test_the_metadata_of_a_page_is_written_once(show: Any) -> None:
    with pytest.raises(ValueError, match="leave that to app="):
        Server("shop").add_tool(show, app="ui/a board.html", meta={"ui": {}})
    with pytest.raises(TypeError, match="write the path of a file of HTML"):
        Server("shop").add_tool(show, app=3)


# -- who may call a tool ---------------------------------------------------------------------------------------------


@EACH_ERA
async def test_a_tool_for_pages_alone_is_not_offered_to_models(era: str, show: Any) -> None:
    server = Server("shop")
    server.add_tool(show, app="ui/a board.html")
    server.add_tool(show, name="refresh", app=App(visibility=["app"]))
    server.add_tool(show, name="draw", app=App("ui://board", visibility=["model"]))
    async with Client(server, era=era) as client:
        assert [each.name async for each in client.tools()] == ["show", "draw"]
        assert [each.name for each in (await client.list_tools()).tools] == ["show", "draw"]
        found = await listed(client)
        assert found["refresh"].meta == {"ui": {"visibility": ["app"]}}
        assert {name: sorted(each.visibility) for name, each in found.items()} == {
            "show": ["app", "model"],
            "refresh": ["app"],
            "draw": ["model"],
        }
        assert (await client.call_tool("refresh")).structured_content == {"cards": 2}
        with pytest.raises(LocalProtocolError, match="has no page"):
            await client.app(found["refresh"])


class Pages(Provider):
    """Has a tool for pages alone, and one for everybody."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def make(self, name: str) -> Provided:
        async def called() -> str:
            self.calls.append(name)
            return name

        callers = ["app"] if name == "provided" else ["model", "app"]
        return Provided.tool(called, name=name, app=App(visibility=callers))

    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        return ProvidedPage([self.make("provided"), self.make("common")] if kind == "tool" else [])

    async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
        return self.make(name) if kind == "tool" and name in ("provided", "common") else None


async def test_a_search_calls_no_tool_for_pages_alone_beside_a_provider_either() -> None:
    server, provider = Server("shop", budget=1), Pages()
    server.add_provider(provider)

    @server.tool(app=App(visibility=["app"]))
    def registered() -> str:
        provider.calls.append("registered")
        return "registered"

    async with Client(server) as client:
        for name in ("registered", "provided"):
            refused = await client.call_tool("call_tool", {"name": name, "arguments": {}})
            assert refused.is_error
        assert (await client.call_tool("call_tool", {"name": "common", "arguments": {}})).text == "common"
        # A page still calls them by their names.
        assert (await client.call_tool("provided")).text == "provided"
    assert provider.calls == ["common", "provided"]


async def test_a_search_offers_no_tool_for_pages_alone() -> None:
    server = Server("shop", budget=1)

    @server.tool(app=App(visibility=["app"]))
    def refresh_board() -> str:
        return "fresh"

    @server.tool
    def show_board() -> str:
        return "two cards"

    async with Client(server) as client:
        assert [each.name async for each in client.tools()] == ["search_tools", "call_tool"]
        assert "refresh_board" in await listed(client)
        found = await client.call_tool("search_tools", {"query": "board"})
        assert [each["name"] for each in found.structured_content["tools"]] == ["show_board"]
        refused = await client.call_tool("call_tool", {"name": "refresh_board", "arguments": {}})
        assert refused.is_error
        assert (await client.call_tool("refresh_board")).text == "fresh"


@EACH_ERA
async def test_a_server_asks_whether_its_client_shows_pages(era: str) -> None:
    server = Server("shop")

    @server.tool(app="ui://board")
    def show(ctx: Context) -> str:
        return f"{ctx.shows_apps} {APPS in ctx.extensions}"

    async with Client(server, era=era, apps=True) as client:
        assert (await client.call_tool("show")).text == "True True"
        assert client.extensions == {APPS: {}}
    async with Client(server, era=era) as client:
        assert (await client.call_tool("show")).text == "False False"
    async with Client(server, era=era, extensions={APPS: {"mimeTypes": ["text/plain"]}}) as client:
        assert (await client.call_tool("show")).text == "False True"


# -- providers and mounts --------------------------------------------------------------------------------------------


class Shelf(Provider):
    def __init__(self, *items: Provided) -> None:
        self.items = items

    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        return ProvidedPage([each for each in self.items if each.kind == kind])

    async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
        return next((each for each in self.items if (each.kind, each.name) == (kind, name)), None)


def board() -> str:
    return HTML


def draw() -> str:
    return "drawn"


async def test_the_tool_of_a_provider_has_a_page_of_the_provider() -> None:
    server, inner = Server("shop"), Server("inner")
    shelf = Shelf(Provided.tool(draw, app="ui://board"), Provided.resource("ui://board", board))
    inner.add_provider(shelf)
    server.mount("in", inner)
    async with Client(inner) as client:
        assert (await client.app((await listed(client))["draw"])).html == HTML
    async with Client(server) as client:
        tool = (await listed(client))["in_draw"]
        assert tool.app_uri == "ui://in/board"
        assert (await client.app(tool)).html == HTML


@pytest.mark.parametrize("has_middleware", [False, True])
@EACH_ERA
async def test_pages_of_two_mounts_are_kept_apart(era: str, has_middleware: bool) -> None:
    def shop(name: str) -> Server:
        server = Server(name)

        def board() -> str:
            return f"{HTML}{name}"

        @server.tool(app=board)
        def show() -> str:
            return name

        @server.resource("ui://boards/{number}")
        def boards(number: int) -> list[TextResourceContents]:
            return [TextResourceContents(f"ui://boards/{number}", f"{HTML}{name}{number}", MIME)]

        if has_middleware:

            @server.middleware
            async def around(ctx: Context, call_next: Any) -> Any:
                return await call_next()

        return server

    host, outer = Server("host"), Server("outer")
    host.mount("a", shop("a"))
    host.mount("b", shop("b"))
    outer.mount("o", host)
    async with Client(host, era=era) as client:
        assert (client.server_capabilities.extensions or {})[APPS] == {}
        found = await listed(client)
        for name in ("a", "b"):
            assert found[f"{name}_show"].app_uri == f"ui://{name}/board"
            assert (await client.app(found[f"{name}_show"])).html == f"{HTML}{name}"
            assert (await client.app(f"ui://{name}/boards/3")).html == f"{HTML}{name}3"
        assert [each.uri async for each in client.resources()] == ["ui://a/board", "ui://b/board"]
        assert [each.uri_template async for each in client.resource_templates()] == [
            "ui://a/boards/{number}",
            "ui://b/boards/{number}",
        ]
        with pytest.raises(ResourceNotFound):
            await client.read_resource("ui://board")
        read: ReadResourceResult = await client.read_resource("ui://a/board")
        assert [each.uri for each in read.contents] == ["ui://a/board"]
    async with Client(outer, era=era) as client:
        tool = (await listed(client))["o_a_show"]
        assert tool.app_uri == "ui://o/a/board"
        assert (await client.app(tool)).html == f"{HTML}a"
