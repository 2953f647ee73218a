"""What a request was made of is gone with its answer: nothing is left to the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from .test_whole_server import Site, begin, legacy, modern, site

REQUESTS = 50
# Of the rig itself, and of what is made once.
SLACK = 100


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def exchange(each: Site, request: bytes) -> None:
    async with each.peers() as peer:
        for _ in range(REQUESTS):
            await peer.send(request)
            assert (await peer.answer()).status == 200


@pytest.mark.parametrize("kind", ["json", "events"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_an_answered_request_leaves_no_cycles(era: str, kind: str, uncollected: None) -> None:
    async with site() as each:
        tool, arguments = ("add", {"a": 1, "b": 2}) if kind == "json" else ("flood", {"lines": 2})
        async with each.peers() as peer:
            session = await begin(peer)
        call = legacy("tools/call", session, 1, name=tool, arguments=arguments, _meta={"progressToken": 1})
        request = modern(tool, arguments, token=1) if era == "modern" else call
        await exchange(each, request)
        gc.collect()
        await exchange(each, request)
        assert gc.collect() < REQUESTS + SLACK
