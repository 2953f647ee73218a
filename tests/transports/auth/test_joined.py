"""Fetches of many tasks for one document."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_transports.auth.guarding import MAX_FETCHES, PATIENCE, JoinedFetches

KEYS = Fetch("GET", "https://as.example.org/keys", [("accept", "application/json")])


class Network:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Fetch] = []
        self.running = 0
        self.go = trio.Event()

    async def fetch(self, fetch: Fetch) -> Fetched | FetchFailed:
        self.asked.append(fetch)
        self.running += 1
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return Fetched(200, [], str(len(self.asked)).encode())


async def test_many_who_want_the_same_document_fetch_it_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    answers = []

    async def ask() -> None:
        answers.append(await joined(KEYS))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        network.go.set()
    assert len(network.asked) == 1
    assert answers == [Fetched(200, [], b"1")] * 50
    # Nothing is remembered: the next one asks anew.
    assert await joined(KEYS) == Fetched(200, [], b"2")


async def test_questions_about_one_token_are_one(autojump_clock: trio.testing.MockClock) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    answers: dict[bytes, set[bytes]] = {b"token=a": set(), b"token=b": set()}

    async def ask(body: bytes) -> None:
        answer = await joined(Fetch("POST", KEYS.url, KEYS.headers, body))
        assert isinstance(answer, Fetched)
        answers[body].add(answer.body)

    async with trio.open_nursery() as nursery:
        for _ in range(1_000):
            nursery.start_soon(ask, b"token=a")
        nursery.start_soon(ask, b"token=b")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(each.body or b"" for each in network.asked) == sorted(answers)
        network.go.set()
    # Everybody who asked about a token has the answer of its question.
    assert [len(each) for each in answers.values()] == [1, 1]
    assert repr(joined) == "<JoinedFetches 0 in flight>"


async def test_if_the_one_that_fetches_is_cancelled_another_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    first = trio.CancelScope()
    answers = []

    async def leader() -> None:
        with first:
            await joined(KEYS)

    async def ask() -> None:
        answers.append(await joined(KEYS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(10):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (len(network.asked), network.running) == (2, 1)
        network.go.set()
    assert answers == [Fetched(200, [], b"2")] * 10
    assert repr(joined) == "<JoinedFetches 0 in flight>"


@pytest.mark.parametrize(
    "other",
    [
        Fetch("GET", "https://as.example.org/other", KEYS.headers),
        Fetch("GET", KEYS.url, [("accept", "text/plain")]),
        Fetch("POST", KEYS.url, KEYS.headers),
        Fetch("GET", KEYS.url, KEYS.headers, b"token=a"),
    ],
)
async def test_what_differs_is_not_joined(other: Fetch, autojump_clock: trio.testing.MockClock) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    async with trio.open_nursery() as nursery:
        for fetch in (KEYS, other):
            nursery.start_soon(joined, fetch)
        await trio.testing.wait_all_tasks_blocked()
        assert len(network.asked) == 2
        assert KEYS in network.asked
        assert other in network.asked
        network.go.set()


async def test_a_flood_of_tokens_is_some_requests_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    joined = JoinedFetches(network.fetch)
    answers = []

    async def ask(number: int) -> None:
        answers.append(await joined(Fetch("POST", KEYS.url, (), b"token=%d" % number)))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, number)
        await trio.testing.wait_all_tasks_blocked()
        assert network.running == MAX_FETCHES
    assert trio.current_time() - began == PATIENCE
    assert all(isinstance(each, FetchFailed) and not each.refused for each in answers)
    assert len(answers) == 200
