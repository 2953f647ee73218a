"""The smallest ASGI application, under uvicorn, which answers at once and so cancels nothing: ``floor_asgi URL``."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from benchmarks.suite.programs.floor_inline import answer

JSON = (b"content-type", b"application/json")


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    pieces = []
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        pieces.append(event.get("body", b""))
        more = event.get("more_body", False)
    data = b"".join(pieces)
    body = answer(data) if data else None
    length = (b"content-length", b"%d" % len(body or b""))
    status = 202 if body is None else 200
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length]})
    await send({"type": "http.response.body", "body": body or b""})


if __name__ == "__main__":
    port = urlsplit(sys.argv[1]).port
    assert port is not None
    uvicorn.run(application, port=port, log_level="warning", access_log=False, lifespan="off")
