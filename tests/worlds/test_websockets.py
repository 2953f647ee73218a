"""WebSockets of uvicorn, with our client and with an official one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest
import trio
from interop.installation import Peers
from interop.servers import Endpoint, Served
from interop.test_official_clients import report_of, run, text_of

from mcp_actors import Client, McpError

from .conftest import Started

PATIENCE = 60  # seconds; nothing here takes a tenth of it


@pytest.fixture
def served(started: Started) -> Iterator[Served]:
    with started("uvicorn_websocket.py") as made:
        yield made


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_our_client_calls_hears_and_cancels(served: Served, era: str) -> None:
    with trio.fail_after(PATIENCE):
        async with Client(f"ws://127.0.0.1:{served.port()}/ws", era=era) as client:  # type: ignore[arg-type]
            assert (await client.call_tool("test_simple_text")).content
            told: list[float] = []
            await client.call_tool(
                "test_tool_with_progress", on_progress=lambda report: told.append(report.progress)
            )
            assert told == sorted(told)
            assert told
            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(client.call_tool, "test_simple_text")


async def test_the_end_of_uvicorn_ends_the_connection(served: Served) -> None:
    with trio.fail_after(PATIENCE):
        async with Client(f"ws://127.0.0.1:{served.port()}/ws", era="legacy") as client:
            await client.call_tool("test_simple_text")
            served.process.send_signal(signal.SIGINT)
            assert await trio.to_thread.run_sync(served.stop) in (0, -signal.SIGINT, -signal.SIGTERM)
            with pytest.raises(McpError):
                await client.call_tool("test_simple_text")
    assert "Traceback" not in served.output


async def test_a_page_of_another_site_is_refused(served: Served) -> None:
    request = (
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream("127.0.0.1", served.port()) as stream:
            await stream.send_all(request.encode())
            assert re.match(rb"HTTP/1.1 403 ", await stream.receive_some())


def test_the_official_client_uses_it(peers: Peers, served: Served) -> None:
    endpoint = Endpoint("ws", (f"ws://127.0.0.1:{served.port()}/ws",), served)
    report = report_of(run(peers, "typescript-sdk-legacy", endpoint), "typescript-sdk-legacy", served.output)
    assert report["server"]["name"] == "mcp-actors-everything"
    assert text_of(report["test_sampling"]) == "LLM response: I am the model"
    assert report["activity"]["cancelled"] == 1
    assert report["together"]
    assert report["closed"]
