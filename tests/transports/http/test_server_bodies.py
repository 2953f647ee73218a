"""The bytes of request bodies are limited by address and in all, from their first byte until their answer."""

from __future__ import annotations

import json

import pytest
import trio

from .raw import Slow, echo, eventually, post, serving

KIB = 1024
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("count", [20, 200])
async def test_half_sent_bodies_of_one_address_are_bounded(count: int) -> None:
    half, share = 64 * KIB, 4 * 64 * KIB
    async with serving(echo, held_bytes=2 * share, held_bytes_per_address=share) as served:
        statistics = served.server.statistics
        hostile = [await served.connect() for _ in range(count)]
        for peer in hostile:
            await peer.send(POST % (2 * half) + b"x" * half)
        await eventually(lambda: statistics().refused == count - 4)
        assert statistics().bodies.held <= share
        answer = await hostile[-1].answer()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-type"] == "application/json"
        assert str(share) in json.loads(answer.body)["error"]["message"]
        # Requests that fit into one read are served to everybody all the same.
        honest = await served.connect()
        await honest.send(post(b"y" * KIB))
        assert (await honest.answer()).status == 200
        for peer in hostile:
            await peer.aclose()
        await eventually(lambda: statistics().bodies.held == 0)
        await honest.send(post(b"y" * share))
        assert (await honest.answer()).status == 200


async def test_bodies_of_all_addresses_are_bounded_together() -> None:
    async with serving(echo, memory=True, held_bytes=300 * KIB, held_bytes_per_address=200 * KIB) as served:
        statistics = served.server.statistics
        async with trio.open_nursery() as nursery:
            for number in range(1, 4):
                mine, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(served.server.serve_stream, theirs, f"[2001:db8:{number}::7]:1")
                peer = served.add(mine)
                await peer.send(POST % (500 * KIB) + b"x" * 130 * KIB)
                expected = min(number, 2) * 130 * KIB
                await eventually(lambda: statistics().bodies.held >= expected)  # noqa: B023
            await eventually(lambda: statistics().refused == 1)
            assert statistics().bodies.held <= 300 * KIB
            answer = await peer.answer()
            assert answer.status == 503
            assert str(300 * KIB).encode() in answer.body
            nursery.cancel_scope.cancel()
        await served.settled()
        assert statistics().bodies.held == 0


async def test_a_body_counts_until_its_request_is_answered() -> None:
    app = Slow()
    async with serving(app, held_bytes=400 * KIB, held_bytes_per_address=300 * KIB) as served:
        statistics = served.server.statistics
        first = await served.connect()
        await first.send(post(b"x" * 250 * KIB))
        await app.until_begun()
        assert 180 * KIB < statistics().bodies.held <= 250 * KIB
        second = await served.connect()
        await second.send(post(b"x" * 250 * KIB))
        assert (await second.answer()).status == 503
        app.go.set()
        assert (await first.answer()).status == 200
        assert statistics().bodies.held == 0
        # The same connection may use it all again.
        for _ in range(3):
            await first.send(post(b"x" * 250 * KIB))
            assert (await first.answer()).status == 200
        assert statistics().bodies.held == 0
