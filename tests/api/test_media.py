"""`Image`, `Audio` and `File`: what tools and prompts return of files and bytes."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mcp_actors import Audio, Client, File, Image, Server
from mcp_actors.types import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)
from mcp_actors.types.media import LONGEST_FILE, Media

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
