"""Decodes and encodes messages with our codec, and with a bare JSON library for comparison."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from mcp_actors._wire.codec import decode, decode_value, encode_reply

__all__ = ["FLOOR", "OURS", "measure"]

SIZES = (100, 10_000, 1_000_000)


class Codec(NamedTuple):
    decode: Callable[[bytes], Any]
    encode: Callable[[dict[str, Any]], bytes]


def _decode(data: bytes) -> Any:
    envelope: Any = decode(data)
    return decode_value(envelope.params)


OURS = Codec(_decode, lambda result: encode_reply(1, result))
FLOOR = Codec(
    msgspec.json.Decoder().decode,
    lambda result: msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "result": result}),
)


def measure(codec: Codec, url: str) -> None:
    """Prints microseconds a message, by its size; the URL is ``codec:SECONDS``."""
    seconds = float(url.removeprefix("codec:"))
    answer = {}
    for size in SIZES:
        params = {"name": "echo", "arguments": {"text": "x" * size}}
        data = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        result = {"content": [{"type": "text", "text": "x" * size}]}
        answer[size] = {
            "decode_us": _each_us(lambda data=data: codec.decode(data), seconds),  # type: ignore[misc]
            "encode_us": _each_us(lambda result=result: codec.encode(result), seconds),  # type: ignore[misc]
        }
    print(json.dumps(answer))


def _each_us(work: Callable[[], Any], seconds: float) -> float:
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds / (2 * len(SIZES)):
        for _ in range(10):
            work()
        count += 10
    return elapsed / count * 1e6
