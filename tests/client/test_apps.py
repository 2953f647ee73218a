"""Pages of tools as a client reads them (SEP-1865): what must not be shown is refused, or left out."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from structlog.testing import capture_logs

from mcp_actors import Client, Server
from mcp_actors.errors import AppRefused, LocalProtocolError, ResourceNotFound
from mcp_actors.types import AppCsp, AppPage, BlobResourceContents, TextResourceContents, Tool

URI = "ui://shop/board"
MIME = "text/html;profile=mcp-app"
HTML = "<!doctype html><p>two cards"
MOST = 4 * 1024 * 1024
EACH_ERA = pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])


def serving(*contents: Any, **listed: Any) -> Server:
    """A server with one page, which is what a test says, and not what it should be."""
    server = Server("shop")
    server.add_resource(URI, lambda: list(contents), name="board", **{"mime_type": "text/plain", **listed})
    return server


def page(text: str = HTML, mime: str | None = MIME, **meta: Any) -> TextResourceContents:
    return TextResourceContents(URI, text, mime, meta=meta or None)


async def refusal(server: Server, of: Any = URI) -> str:
    async with Client(server) as client:
        with pytest.raises(AppRefused) as caught:
            await client.app(of)
        return caught.value.reason


@pytest.mark.parametrize(
    "mime", ["text/html", "text/plain", "TEXT/HTML;profile=mcp-app", "text/uri-list", None]
)
async def test_another_type_is_refused(mime: str | None) -> None:
    assert await refusal(serving(page(mime=mime))) == "type"


async def test_too_much_is_refused() -> None:
    assert await refusal(serving(page("x" * (MOST + 1)))) == "limits"
    # Fewer characters than bytes.
    assert await refusal(serving(page("ü" * (MOST // 2 + 1)))) == "limits"
    blob = base64.b64encode(b"x" * (MOST + 1)).decode()
    assert await refusal(serving(BlobResourceContents(URI, blob, MIME))) == "limits"
    async with Client(serving(page("x" * MOST))) as client:
        assert len((await client.app(URI)).html) == MOST


@pytest.mark.parametrize(
    "contents",
    [
        (page(), page()),
        (page(" \n"),),
        (BlobResourceContents(URI, "###", MIME),),
        (BlobResourceContents(URI, base64.b64encode(b"\xff").decode(), MIME),),
    ],
)
async def test_what_is_not_one_document_is_refused(contents: tuple[Any, ...]) -> None:
    assert await refusal(serving(*contents)) == "contents"


@pytest.mark.parametrize(
    "uri",
    ["https://a.example/board", "file:///etc/passwd", "UI://shop/board", f"ui://{'x' * 5000}", "ui://a\nb"],
)
@pytest.mark.parametrize("member", ["ui", "ui/resourceUri"])
async def test_another_uri_is_refused_and_never_asked_for(uri: str, member: str) -> None:
    asked: list[str] = []
    server = Server("shop")

    @server.resource("{+uri}")
    def read(uri: str) -> str:
        asked.append(uri)
        return HTML

    meta: dict[str, Any] = {member: {"resourceUri": uri} if member == "ui" else uri}
    assert await refusal(server, Tool("show", {"type": "object"}, meta=meta)) == "uri"
    assert asked == []


@pytest.mark.parametrize(
    "meta", [None, {}, {"ui": None}, {"ui": []}, {"ui": {"resourceUri": 1}}, {"ui/resourceUri": []}]
)
async def test_a_tool_without_a_page_has_none(meta: dict[str, Any] | None) -> None:
    tool = Tool("show", {"type": "object"}, meta=meta)
    assert (tool.app_uri, tool.visibility) == (None, {"model", "app"})
    async with Client(serving(page())) as client:
        with pytest.raises(LocalProtocolError, match="has no page"):
            await client.app(tool)
        with pytest.raises(ResourceNotFound):
            await client.app("ui://shop/other")


@EACH_ERA
async def test_what_a_page_asks_for_and_must_not_get_is_left_out(era: str) -> None:
    origins = [
        "https://api.example.com",
        "https://a.example; script-src *",
        "https://a.example 'unsafe-eval'",
        "*",
        "https:",
        "https://a.example\n",
        ["https://a.example"],
        None,
    ]
    ui = {
        "csp": {
            "connectDomains": origins,
            "resourceDomains": "https://a.example",
            "frameDomains": [f"https://{n}.example" for n in range(65)],
            "other": 1,
        },
        "permissions": {"camera": {}, "usb": {}, "microphone": None, "geolocation": False},
        "domain": 7,
        "prefersBorder": "yes",
    }
    with capture_logs() as logs:
        async with Client(serving(page(ui=ui)), era=era) as client:
            found = await client.app(URI)
    csp = AppCsp(connect=("https://api.example.com",))
    assert found == AppPage(URI, HTML, csp=csp, permissions=frozenset({"camera"}))
    (warning,) = [each for each in logs if each["event"].startswith("what a page asks for is left out")]
    assert warning["number"] == 8


@pytest.mark.parametrize("ui", [None, [], "x", {"csp": [], "permissions": ["camera"]}])
async def test_malformed_metadata_asks_for_nothing(ui: Any) -> None:
    async with Client(serving(page(ui=ui))) as client:
        assert await client.app(URI) == AppPage(URI, HTML)


@EACH_ERA
async def test_what_the_list_says_counts_where_the_page_says_nothing(era: str) -> None:
    meta = {"ui": {"prefersBorder": True}}
    async with Client(serving(page(), meta=meta), era=era) as client:
        assert (await client.app(URI)).prefers_border is True
    async with Client(serving(page(ui={"prefersBorder": False}), meta=meta), era=era) as client:
        assert (await client.app(URI)).prefers_border is False
