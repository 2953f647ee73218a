"""The kit on bindings that keep the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.testing import check_transport
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport

from .media import ENDS_TO_END, ERAS, LINKS, close_one_way, memory, pipes, reset, send_eof, stdio, tcp


async def test_memory_under_virtual_time(autojump_clock: trio.testing.MockClock) -> None:
    report = await check_transport(memory, senders_at_once=True)
    assert len(report.passed) == LINKS + 1 + 2 * ENDS_TO_END
    assert dict(report.skipped) == {
        "a_half_closed_peer_still_reads": "half_close was not given",
        "breakage_is_no_clean_end": "break_off was not given",
    }
    assert "frames_arrive_in_order" in report.passed
    assert "load_changes_nothing[modern]" in report.passed


async def test_memory_under_the_real_clock() -> None:
    report = await check_transport(memory, quiet=0.01)
    assert len(report.passed) == LINKS + 2 * ENDS_TO_END


async def test_pipes() -> None:
    report = await check_transport(pipes, half_close=close_one_way, quiet=0.02)
    assert len(report.passed) == LINKS + 1 + 2 * ENDS_TO_END


@pytest.mark.long
async def test_child_processes() -> None:
    report = await check_transport(stdio, connections=3, quiet=0.05, patience=30, timeout=120, eras=ERAS)
    assert len(report.passed) == LINKS + len(ERAS) * ENDS_TO_END


async def test_sockets() -> None:
    report = await check_transport(tcp, half_close=send_eof, break_off=reset, quiet=0.02)
    assert len(report.passed) == LINKS + 2 + 2 * ENDS_TO_END


async def test_an_exchange_binding() -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        yield HttpServerTransport("http://127.0.0.1:0/mcp"), HttpClientTransport

    report = await check_transport(maker, exchange=True, quiet=0.02)
    assert len(report.passed) == 1 + 2 * ENDS_TO_END
    assert dict(report.skipped)["frames_arrive_in_order"].startswith("an exchange binding has no channel")


async def test_an_exchange_binding_must_be_called_one() -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        yield HttpServerTransport("http://127.0.0.1:0/mcp"), HttpClientTransport

    with pytest.raises(AssertionError, match="if this is an exchange binding, say exchange=True"):
        await check_transport(maker, patience=0.1, only=["frames_arrive_in_order"])


async def test_a_medium_for_one_connection(autojump_clock: trio.testing.MockClock) -> None:
    report = await check_transport(memory, connections=1, eras=["modern"])
    assert ("many_connections_stand_alone", "connections=1") in report.skipped
    assert len(report.passed) == LINKS - 2 + ENDS_TO_END


async def test_only_some_checks() -> None:
    report = await check_transport(memory, only=["frames_arrive_in_order"])
    assert report.passed == ("frames_arrive_in_order",)
    assert ("large_frames_arrive", "not asked for") in report.skipped
    with pytest.raises(ValueError, match="no such checks: flies"):
        await check_transport(memory, only=["flies"])
