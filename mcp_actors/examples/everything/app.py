"""The server object that the other modules of this example hang their functions on."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from mcp_actors import Server

__all__ = ["PIXEL_BASE64", "PIXEL_PNG", "SILENCE_BASE64", "Activity", "server"]


@attrs.define
class Activity:
    """Counts what the server did since it started; one object per ``serve``, made by the lifespan."""

    sleeping: int = 0
    slept: int = 0
    cancelled: int = 0
    watched_text: str = "Watched resource content"


@asynccontextmanager
async def lifespan(server: Server) -> AsyncIterator[Activity]:
    """The state of one run of the server, which every call finds in ``ctx.state``."""
    yield Activity()


server = Server(
    "mcp-actors-everything",
    version="1.0.0",
    title="Everything",
    description="Every feature of the Model Context Protocol, once",
    website_url="https://modelcontextprotocol.io",
    instructions="Call any tool. Those that begin with test_ are fixtures of the conformance suite.",
    lifespan=lifespan,
)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _one_red_pixel() -> bytes:
    """A PNG of 1 by 1 pixel, eight bits a channel, RGB."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    row = b"\x00" + bytes((255, 0, 0))  # filter type, then the pixel
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(row)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _short_silence() -> bytes:
    """A WAV of eight samples: mono, 8 kHz, 16 bits."""
    samples = bytes(16)
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


PIXEL_PNG = _one_red_pixel()
SILENCE_WAV = _short_silence()
PIXEL_BASE64 = base64.b64encode(PIXEL_PNG).decode("ascii")
SILENCE_BASE64 = base64.b64encode(SILENCE_WAV).decode("ascii")
