"""Results as their readers want them, and the annotations, arguments and schemas behind them."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import attrs
import pydantic
import pytest
import trio
from structlog.testing import capture_logs
from typing_extensions import TypedDict

import mcp_actors.sync
from mcp_actors import (
    Audio,
    Client,
    File,
    Image,
    RemoteProtocolError,
    Server,
    ToolError,
    ToolFailed,
    UnexpectedResult,
)
from mcp_actors.types import (
    UNSET,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    PromptMessage,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
    Tool,
)
from mcp_actors.types.media import LONGEST_FILE, Media
from mcp_transports.http.server import Refusal

ERAS = ["legacy", "modern"]
BLOCKS: list[ContentBlock] = [TextContent("a"), ImageContent("eA==", "image/png"), TextContent("b")]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("hint", "value", "content"),
    [
        (list[TextContent], BLOCKS[:1], BLOCKS[:1]),
        (list[ContentBlock], BLOCKS, BLOCKS),
        (Sequence[ContentBlock], tuple(BLOCKS), BLOCKS),
        (Iterable[ContentBlock], BLOCKS, BLOCKS),
        (Iterable[ContentBlock], lambda: iter(BLOCKS), BLOCKS),
        (Iterator[TextContent], lambda: iter(BLOCKS[:1]), BLOCKS[:1]),
        (list[str | ImageContent], ["a", BLOCKS[1]], BLOCKS[:2]),
        (Sequence[ContentBlock], [], []),
    ],
)
async def test_sequences_of_blocks_are_content(hint: Any, value: Any, content: Any, era: str) -> None:
    server = Server("content")

    async def give() -> Any:
        return value() if callable(value) else value

    give.__annotations__["return"] = hint
    server.add_tool(give)
    async with Client(server, era=era) as client:
        [tool] = [each async for each in client.tools()]
        assert tool.output_schema is None
        result = await client.call_tool("give")
    assert result.content == content
    assert result.structured_content is UNSET


@pytest.mark.parametrize("era", ERAS)
async def test_a_list_of_values_is_no_content(era: str) -> None:
    server = Server("content")

    @server.tool
    async def give() -> Sequence[str]:
        return []

    async with Client(server, era=era) as client:
        assert (await client.call_tool("give")).text == "[]"


def test_text_and_data() -> None:
    result = CallToolResult(BLOCKS, {"a": 1})
    assert (result.text, result.data) == ("a\nb", {"a": 1})
    assert (CallToolResult([]).text, CallToolResult([]).data) == ("", None)


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_without_arguments_has_properties_all_the_same(era: str) -> None:
    server = Server("schemas")

    @server.tool
    async def now() -> str:
        return "now"

    async with Client(server, era=era) as client:
        [tool] = [each async for each in client.tools()]
    assert tool.input_schema["properties"] == {}


@pytest.mark.parametrize("era", ERAS)
async def test_one_point_zero_is_an_integer(era: str) -> None:
    server = Server("numbers")

    @server.tool
    async def add(numbers: list[int], more: int = 0, ratio: float = 1.5) -> str:
        return repr((numbers, more, ratio))

    async with Client(server, era=era) as client:
        wide = {"numbers": [1.0, 2], "more": 3.0, "ratio": 2.0}
        assert (await client.call_tool("add", wide)).text == "([1, 2], 3, 2.0)"
        refused = await client.call_tool("add", {"numbers": [1.5], "more": True})
    assert refused.is_error
    assert "numbers[0]: expected integer, got number" in refused.text
    assert "more: expected integer, got boolean" in refused.text


@dataclass
class Stop:
    name: str
    country: str = "CH"
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Route:
    stops: list[Stop]
    last: Stop | None = None
    title: str = "a route"


@pytest.mark.parametrize("era", ERAS)
async def test_an_argument_is_returned_with_the_defaults_of_its_classes(era: str) -> None:
    server = Server("routes")

    @server.tool
    async def declared(route: Route) -> Route:
        return route

    @server.tool
    async def undeclared(route: Route) -> Any:
        return {"members": vars(route.stops[0]), "route": route}

    stop = {"name": "Bern", "country": "CH", "tags": []}
    whole = {"stops": [stop], "last": stop, "title": "a route"}
    given = {"route": {"stops": [{"name": "Bern"}], "last": {"name": "Bern"}}}
    async with Client(server, era=era) as client:
        assert (await client.call_tool("declared", given)).data == whole
        assert (await client.call_tool("undeclared", given)).data == {"members": stop, "route": whole}
        made = await client.call_tool("undeclared", given, returns=dict[str, Route | Stop])
        assert vars(made["members"]) == stop


def test_a_refusal_writes_its_body() -> None:
    assert Refusal(401, "a token is needed").body.endswith(b'"message":"a token is needed"}}')
    assert (Refusal(404).body, Refusal(404, "x", body=b"mine").body) == (b"", b"mine")


# -- ``call_tool(…, returns=…)`` returns objects of the caller's class; results have their text, value and bytes ---


@dataclass
class Forecast:
    city: str
    day: date
    degrees: float


@attrs.frozen
class Weather:
    city: str
    degrees: float


class Model(pydantic.BaseModel):
    city: str
    degrees: float


class Plain(TypedDict):
    city: str
    degrees: float


server = Server("returns")


@server.tool
def forecast(city: str) -> Forecast:
    return Forecast(city, date(2026, 7, 28), 21)


@server.tool
def count() -> int:
    return 3


@server.tool
def forecasts() -> list[Forecast]:
    return [forecast("Bonn"), forecast("Ulm")]


@server.tool
def spoken() -> str:
    return "fine"


@server.tool
def as_text() -> str:
    return '{"city": "Bonn", "degrees": 3.5}'


@server.tool
def in_two_parts() -> list[TextContent]:
    return [TextContent("[1,"), TextContent("2]")]


@server.tool
def wrapped() -> dict[str, Any]:
    return {"result": 5}


@server.tool
def failing() -> Forecast:
    raise ToolError("the station is closed")


@server.tool
def silent() -> None:
    return None


ERAS_RETURNS = pytest.mark.parametrize("era", ["legacy", "modern"])


@ERAS_RETURNS
async def test_the_class_is_returned(era: str) -> None:
    async with Client(server, era=era) as client:
        found = await client.call_tool("forecast", {"city": "Bonn"}, returns=Forecast)
        assert found == Forecast("Bonn", date(2026, 7, 28), 21.0)
        # A session has no structured content but objects: the value is in the text.
        assert await client.call_tool("count", returns=int) == 3
        assert await client.call_tool("count", returns=float) == 3
        assert (await client.call_tool("forecasts", returns=list[Forecast]))[1].city == "Ulm"
        assert await client.call_tool("count", returns=int | None) == 3


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Weather, Weather("Bonn", 3.5)),
        (Model, Model(city="Bonn", degrees=3.5)),
        (Plain, {"city": "Bonn", "degrees": 3.5}),
        (dict[str, Any], {"city": "Bonn", "degrees": 3.5}),
        (str, '{"city": "Bonn", "degrees": 3.5}'),
    ],
)
async def test_json_in_text_is_a_value_too(kind: Any, expected: object) -> None:
    async with Client(server) as client:
        assert await client.call_tool("as_text", returns=kind) == expected


async def test_text_is_a_value() -> None:
    async with Client(server) as client:
        assert await client.call_tool("spoken", returns=str) == "fine"
        assert await client.call_tool("in_two_parts", returns=str) == "[1,\n2]"


async def test_a_value_under_result_is_taken_out_if_it_does_not_fit_otherwise() -> None:
    async with Client(server) as client:
        assert await client.call_tool("wrapped", returns=int) == 5
        assert await client.call_tool("wrapped", returns=dict[str, int]) == {"result": 5}


@ERAS_RETURNS
async def test_a_failure_inside_the_tool_is_raised(era: str) -> None:
    async with Client(server, era=era) as client:
        with pytest.raises(ToolFailed, match="the tool 'failing' failed: the station is closed") as raised:
            await client.call_tool("failing", returns=Forecast)
        assert (raised.value.tool, raised.value.text) == ("failing", "the station is closed")
        assert raised.value.result.is_error
        assert not isinstance(
            raised.value, ToolError
        )  # which would be shown to the model of whoever calls us


async def test_what_does_not_fit_is_named() -> None:
    async with Client(server) as client:
        with pytest.raises(
            UnexpectedResult, match=r"'forecast' returned does not fit: .*expected string"
        ) as raised:
            await client.call_tool("forecast", {"city": "Bonn"}, returns=dict[str, str])
        assert raised.value.result.data["city"] == "Bonn"
        with pytest.raises(UnexpectedResult, match="neither structured content nor text"):
            await client.call_tool("silent", returns=Forecast)


def test_texts_of_peers_are_cut() -> None:
    result = CallToolResult([])
    assert len(str(ToolFailed("t", "x" * 5000, result))) < 1100
    assert len(str(UnexpectedResult("t", "x" * 5000, result))) < 1100


async def test_a_class_without_a_form_in_json_is_refused_before_anything_is_sent() -> None:
    async with Client(server) as client:
        with pytest.raises(TypeError, match="no form in JSON"):
            await client.call_tool("failing", returns=Server)


@pytest.mark.parametrize("mark", [{"x-fastmcp-wrap-result": True}, {"title": "countOutput"}, {}])
async def test_a_listed_schema_says_whether_the_value_is_wrapped(mark: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"result": {"type": "integer"}},
        "required": ["result"],
        **mark,
    }
    other = Server("wraps")

    @other.tool(name="count", output_schema=schema)
    def count() -> Any:
        return {"result": 3}

    async with Client(other) as client:
        assert (await client.call_tool("count")).data == {"result": 3}
        assert [type(each) for each in (await client.list_tools()).tools] == [Tool]
        result = await client.call_tool("count")
        assert result.data == (3 if mark else {"result": 3})
        assert result.structured_content == {"result": 3}
        assert result == CallToolResult(result.content, {"result": 3}, meta=result.meta)
        assert await client.call_tool("count", returns=int) == 3


def test_text_has_embedded_resources() -> None:
    file = EmbeddedResource(TextResourceContents("file:///a.txt", "inside"))
    blob = EmbeddedResource(BlobResourceContents("file:///b", "AAAA"))
    assert CallToolResult([TextContent("before"), file, blob]).text == "before\ninside"
    messages = [PromptMessage("user", TextContent("one")), PromptMessage("assistant", file)]
    assert GetPromptResult(messages).text == "one\ninside"


def test_bytes() -> None:
    contents = [TextResourceContents("a:b", "ä"), BlobResourceContents("a:c", "AAE=")]
    assert ReadResourceResult(contents).to_bytes() == "ä".encode() + b"\x00\x01"
    assert ImageContent("AAE=", "image/png").to_bytes() == b"\x00\x01"
    with pytest.raises(RemoteProtocolError, match="no base64"):
        ImageContent("?", "image/png").to_bytes()


def test_the_client_of_a_plain_program_returns_the_class_too() -> None:
    with mcp_actors.sync.Client(server) as client:
        found = client.call_tool("forecast", {"city": "Bonn"}, returns=Forecast)
        assert found == Forecast("Bonn", date(2026, 7, 28), 21.0)
        with pytest.raises(ToolFailed, match="the station is closed"):
            client.call_tool("failing", returns=Forecast)
        with pytest.raises(UnexpectedResult):
            client.call_tool("forecast", {"city": "Bonn"}, returns=int)


# -- `Image`, `Audio` and `File`: what tools and prompts return of files and bytes -----------------------

PNG = b"\x89PNG\r\n\x1a\n0"
WAVE = b"RIFF\x00\x00\x00\x00WAVEfmt "


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("media", "expected"),
    [
        (Image(PNG), ImageContent(encoded(PNG), "image/png")),
        (Image(b"\xff\xd8\xff"), ImageContent("/9j/", "image/jpeg")),
        (Image(b"RIFF\x00\x00\x00\x00WEBP"), ImageContent("UklGRgAAAABXRUJQ", "image/webp")),
        (Image(bytearray(PNG)), ImageContent(encoded(PNG), "image/png")),  # type: ignore[arg-type]
        (Image(b"?", mime_type="image/x-own"), ImageContent("Pw==", "image/x-own")),
        (Audio(WAVE), AudioContent(encoded(WAVE), "audio/wav")),
        (Audio(b"ID3"), AudioContent("SUQz", "audio/mpeg")),
        (
            File(b"a,b", name="my report.csv"),
            EmbeddedResource(TextResourceContents("file:///my%20report.csv", "a,b", "text/csv")),
        ),
        (
            File(b"{}", name="a.json"),
            EmbeddedResource(TextResourceContents("file:///a.json", "{}", "application/json")),
        ),
        (File("ä".encode()), EmbeddedResource(TextResourceContents("file:///file", "ä", "text/plain"))),
        (
            File(b"\xff", uri="data://x"),
            EmbeddedResource(BlobResourceContents("data://x", "/w==", "application/octet-stream")),
        ),
        # The name says text, and the bytes are none.
        (
            File(b"\xff", name="a.txt"),
            EmbeddedResource(BlobResourceContents("file:///a.txt", "/w==", "text/plain")),
        ),
        (
            File(b"%PDF-1"),
            EmbeddedResource(BlobResourceContents("file:///file", "JVBERi0x", "application/pdf")),
        ),
        (
            File(b"\x1f\x8b", name="a.txt.gz"),
            EmbeddedResource(BlobResourceContents("file:///a.txt.gz", "H4s=", "application/gzip")),
        ),
    ],
)
def test_the_block_of_bytes(media: Media, expected: ContentBlock) -> None:
    assert media.to_block() == expected


@pytest.mark.parametrize(
    ("name", "data", "cls", "mime_type"),
    [
        ("a.bin", PNG, Image, "image/png"),
        ("a.jpg", b"?", Image, "image/jpeg"),
        ("a.svg", b"<svg/>", Image, "image/svg+xml"),
        ("a.mp3", b"?", Audio, "audio/mpeg"),
        ("a.wav", b"?", Audio, "audio/wav"),
    ],
)
def test_the_media_type_of_a_file(tmp_path: Path, name: str, data: bytes, cls: Any, mime_type: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert cls(tmp_path / name).to_block().mime_type == mime_type
    assert cls(str(tmp_path / name)).to_block().to_bytes() == data


@pytest.mark.parametrize(
    ("media", "message"),
    [
        (Image(b"?"), "nothing tells the type of <Image 1 bytes>: give it mime_type='image/…'"),
        (Image(b"?", mime_type="text/plain"), "text/plain is no type"),
        (Audio(PNG), "nothing tells the type"),
    ],
)
def test_a_type_that_nobody_can_tell_is_asked_for(media: Media, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        media.to_block()


def test_what_is_neither_a_path_nor_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="Image takes a path or the bytes themselves, not a int"):
        Image(5)  # type: ignore[arg-type]


def test_a_file_that_fits_into_no_message_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "big.png").open("wb") as file:
        file.truncate(LONGEST_FILE + 1)
    with pytest.raises(ValueError, match=r"big.png is longer than 12582912 bytes"):
        Image(tmp_path / "big.png").to_block()


def drawing(folder: Path) -> Server:
    server = Server("drawing")
    (folder / "plot.png").write_bytes(PNG)

    @server.tool
    async def one() -> Image:
        return Image(folder / "plot.png")

    @server.tool
    def in_thread() -> Image:
        return Image(folder / "plot.png")

    @server.tool(inline=True)
    def in_place() -> Image:
        return Image(folder / "plot.png")

    @server.tool
    async def of_bytes() -> Image:
        return Image(PNG)

    @server.tool
    async def mixed() -> list[str | Image | File]:
        return ["Here:", Image(folder / "plot.png"), File(b"x", name="a.txt")]

    @server.tool
    async def drawn() -> Iterator[Image]:
        return iter([Image(folder / "plot.png"), Image(PNG)])

    @server.tool
    async def missing() -> Image:
        return Image(folder / "none.png")

    @server.prompt
    async def look() -> list[Any]:
        return ["Look:", Image(folder / "plot.png")]

    @server.prompt(inline=True)
    def look_in_place() -> Image:
        return Image(folder / "plot.png")

    return server


IMAGE = ImageContent(encoded(PNG), "image/png")


@pytest.mark.parametrize("tool", ["one", "in_thread", "in_place", "of_bytes"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_tool_returns_an_image(tmp_path: Path, tool: str, era: str) -> None:
    async with Client(drawing(tmp_path), era=era) as client:
        listed = {each.name: each async for each in client.tools()}
        assert listed[tool].output_schema is None
        assert (await client.call_tool(tool)).content == [IMAGE]


async def test_media_stand_in_lists(tmp_path: Path) -> None:
    async with Client(drawing(tmp_path)) as client:
        text, image, file = (await client.call_tool("mixed")).content
        assert (text, image) == (TextContent("Here:"), IMAGE)
        assert file == EmbeddedResource(TextResourceContents("file:///a.txt", "x", "text/plain"))
        assert (await client.call_tool("drawn")).content == [IMAGE, IMAGE]


async def test_prompts_return_media(tmp_path: Path) -> None:
    async with Client(drawing(tmp_path)) as client:
        messages = (await client.get_prompt("look")).messages
        assert [each.content for each in messages] == [TextContent("Look:"), IMAGE]
        assert [each.content for each in (await client.get_prompt("look_in_place")).messages] == [IMAGE]


async def test_a_file_that_is_not_there_fails_its_call_alone(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with Client(drawing(tmp_path)) as client:
            result = await client.call_tool("missing")
            assert result.is_error
            assert "No such file" in result.text
            assert (await client.call_tool("one")).content == [IMAGE]
    assert [each["event"] for each in logs] == ["handler failed"]


async def test_a_file_is_read_in_a_worker_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    read = Image.to_block

    def noticed(image: Image) -> ContentBlock:
        threads.append(threading.current_thread())
        return read(image)

    monkeypatch.setattr(Image, "to_block", noticed)
    async with Client(drawing(tmp_path)) as client:
        for tool in ("one", "in_thread", "in_place"):
            await client.call_tool(tool)
    assert len(threads) == 3
    assert threading.current_thread() not in threads


async def test_reading_is_cancelled_with_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slowly(image: Image) -> ContentBlock:
        reading.set()
        go_on.wait(10)
        return IMAGE

    monkeypatch.setattr(Image, "to_block", slowly)
    try:
        async with Client(drawing(tmp_path)) as client:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.call_tool, "one")
                    await trio.to_thread.run_sync(reading.wait, 10)
                    scope.cancel()
            assert scope.cancelled_caught
            await client.list_tools()
    finally:
        go_on.set()
