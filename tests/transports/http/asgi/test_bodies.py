"""Bodies that an ASGI server brings late, in pieces, or not at all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mcp_transports.http.h1.limits import HttpLimits
from tests.transports.http.asgi.test_requests import (
    INITIALIZE,
    POSTED,
    Exchange,
    Site,
    on_asyncio,
    scope_of,
    until,
)


@on_asyncio
async def test_a_server_that_never_waits_and_never_ends_a_body_is_refused() -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": True}

    exchange = Exchange()
    await Site().app(scope_of("POST", "/mcp", POSTED), receive, exchange.send)
    assert exchange.status == 400


@on_asyncio
async def test_a_body_that_does_not_come_is_given_up() -> None:
    exchange = Exchange()
    app = Site(limits=HttpLimits(body_time=0.05)).app
    await app(scope_of("POST", "/mcp", POSTED), exchange.receive, exchange.send)
    assert exchange.status == 408


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_a_body_that_comes_late_and_in_pieces_is_read(pause: float) -> None:
    pieces = [json.dumps(INITIALIZE).encode()[start:end] for start, end in ((0, 9), (9, 20), (20, None))]

    class Received:
        """What another server returns from ``receive``: awaitable, and no coroutine."""

        def __await__(self) -> Any:
            yield from asyncio.sleep(pause).__await__()
            yield from asyncio.sleep(pause).__await__()
            return {"type": "http.request", "body": pieces.pop(0), "more_body": len(pieces) > 0}

    async def run() -> None:
        exchange = Exchange()
        await Site().app(scope_of("POST", "/mcp", POSTED), Received, exchange.send)
        assert exchange.status == 200

    asyncio.run(run())


@on_asyncio
async def test_a_server_that_fails_while_a_body_is_awaited_gets_its_error_back() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0)
        raise OSError("reset")

    with pytest.raises(OSError, match="reset"):
        await Site().app(scope_of("POST", "/mcp", POSTED), receive, Exchange().send)


@on_asyncio
async def test_a_request_that_is_cancelled_while_its_body_is_awaited_cancels_the_wait() -> None:
    seen: list[str] = []

    async def receive() -> Any:
        try:
            seen.append("waits")
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    task = asyncio.ensure_future(Site().app(scope_of("POST", "/mcp", POSTED), receive, Exchange().send))
    await until(lambda: seen == ["waits"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["waits", "cancelled"]


@on_asyncio
async def test_a_client_that_leaves_in_mid_body_is_answered_with_nothing() -> None:
    exchange = Exchange()
    exchange.incoming.put_nowait({"type": "http.disconnect"})
    await Site().app(scope_of("POST", "/mcp", POSTED), exchange.receive, exchange.send)
    assert exchange.sent == []
