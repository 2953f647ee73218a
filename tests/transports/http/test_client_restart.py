"""A server that forgets its sessions, and clients that go on: one new session for all, nothing run twice."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from mcp_actors import Client, ConnectFailed, ConnectionLost, Server
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport

CALLERS = 32


class Forgetful:
    """A server whose sessions the test can take away."""

    def __init__(self) -> None:
        self.server = Server("forgetful")
        self.transport = HttpServerTransport("http://127.0.0.1:0/mcp")
        self.runs: Counter[int] = Counter()

        @self.server.tool
        async def run(number: int) -> int:
            self.runs[number] += 1
            return number

    def forget(self) -> None:
        assert self.transport._service.sessions is not None
        self.transport._service.sessions.close_all()

    @property
    def sessions(self) -> int:
        return len(self.server.tree().sessions)


@pytest.fixture
def forgetful() -> Forgetful:
    return Forgetful()


async def test_all_callers_share_one_new_session_and_no_call_runs_twice(
    forgetful: Forgetful, nursery: trio.Nursery
) -> None:
    (url,) = await nursery.start(forgetful.server.serve, forgetful.transport)
    handshakes = 0
    forgetful_log: list[int] = []

    async def call(client: Client, number: int) -> None:
        await client.call_tool("run", {"number": number})
        forgetful_log.append(number)

    async with Client(HttpClientTransport(url), era="legacy", restart=True) as client:
        await call(client, -1)
        for round in range(3):
            forgetful.forget()
            assert forgetful.sessions == 0
            async with trio.open_nursery() as callers:
                for number in range(CALLERS):
                    callers.start_soon(call, client, round * CALLERS + number)
            handshakes += forgetful.sessions
    assert handshakes == 3  # one for each time, however many were asking
    assert sorted(forgetful_log) == [-1, *range(3 * CALLERS)]
    assert set(forgetful.runs.values()) == {1}
    nursery.cancel_scope.cancel()


async def test_a_session_is_begun_anew_without_being_told_so(
    forgetful: Forgetful, nursery: trio.Nursery
) -> None:
    (url,) = await nursery.start(forgetful.server.serve, forgetful.transport)
    async with Client(url, era="legacy") as client:
        for round in range(3):
            async with trio.open_nursery() as callers:
                for number in range(CALLERS):
                    callers.start_soon(client.call_tool, "run", {"number": round * CALLERS + number})
            forgetful.forget()
    assert forgetful.runs == dict.fromkeys(range(3 * CALLERS), 1)
    nursery.cancel_scope.cancel()


async def test_the_end_of_a_server_is_no_forgotten_session(
    forgetful: Forgetful, nursery: trio.Nursery
) -> None:
    async with trio.open_nursery() as servers:
        (url,) = await servers.start(forgetful.server.serve, forgetful.transport)
        async with Client(url, era="legacy") as client:
            await client.call_tool("run", {"number": 1})
            servers.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                for _ in range(2):
                    with pytest.raises((ConnectionLost, ConnectFailed)):
                        await client.call_tool("run", {"number": 2})
    assert forgetful.runs == {1: 1}
