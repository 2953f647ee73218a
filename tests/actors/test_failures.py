"""What its peer sees when a handler fails: that this call failed, and nothing of why if errors are masked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from mcp_actors import RpcError, Server, ToolError
from mcp_actors.testing import connected_pair

from .peers import (
    arrived,
    call,
    cancelled,
    legacy_client,
    settled,
)

SECRET = "hunter2"


# -- a handler that raises -------------------------------------------------------------------------------------------


async def plainly() -> None:
    raise ValueError(SECRET)


async def in_its_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(plainly)


async def deep_in_nurseries() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_its_nursery)


async def twice() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plainly)
        nursery.start_soon(plainly)


async def with_a_bad_text() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError(SECRET)

    raise Unprintable


async def unencodable() -> Any:
    return {"a": object()}


async def by_recursion() -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return endless


async def by_stopping_iteration() -> None:
    raise StopAsyncIteration(SECRET)


async def with_a_timeout() -> None:
    with trio.fail_after(1):
        await trio.sleep_forever()


async def with_a_foreign_cancellation() -> None:
    """Cancels a scope of its own and loses the exception: nobody outside may take it for theirs."""
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    "fail",
    [
        plainly,
        in_its_nursery,
        deep_in_nurseries,
        twice,
        with_a_bad_text,
        unencodable,
        by_recursion,
        by_stopping_iteration,
        with_a_timeout,
        with_a_foreign_cancellation,
    ],
)
async def test_a_handler_that_raises_fails_its_call_and_tells_nothing(
    fail: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server("s", mask_errors=True)
    server.add_tool(fail, name="fail")

    @server.tool
    async def nap() -> str:
        await trio.sleep(10)
        return "slept"

    async with legacy_client(server) as peer:
        await peer.send(call("sibling", "nap"))
        refusal = await peer.request(1, "tools/call", {"name": "fail"})
        assert refusal["result"]["isError"] is True
        assert "reference" in refusal["result"]["content"][0]["text"]
        assert SECRET not in json.dumps(refusal)
        assert "Traceback" not in json.dumps(refusal)
        [answer] = await arrived(peer, within=20)
        assert answer["id"] == "sibling"
        assert "result" in answer
        [session] = server.tree().sessions
        assert session.calls == ()


@pytest.mark.parametrize("nested", [False, True])
async def test_an_error_response_on_purpose_speaks_for_itself(nested: bool) -> None:
    server = Server("s")

    async def refuse() -> None:
        raise RpcError(1234, "on purpose", {"why": [1, None]})

    @server.tool
    async def fail() -> None:
        if not nested:
            await refuse()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)

    async with connected_pair(server) as client:
        with pytest.raises(RpcError) as caught:
            await client.call_tool("fail")
        error = caught.value
        assert (error.code, error.message, error.data) == (1234, "on purpose", {"why": [1, None]})


async def test_a_tool_error_reaches_the_model() -> None:
    server = Server("s")

    @server.tool
    async def fail() -> None:
        raise ToolError("no such city")

    async with connected_pair(server) as client:
        result = await client.call_tool("fail")
        assert result.is_error
        assert result.content[0].text == "no such city"  # type: ignore[union-attr]


@pytest.mark.parametrize("grouped", [False, True])
async def test_raising_while_cleaning_up_after_cancellation_says_nothing(
    grouped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server("s")

    async def messy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError(SECRET)

    @server.tool
    async def fail() -> None:
        if not grouped:
            await messy()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(messy)
            nursery.start_soon(trio.sleep_forever)

    async with legacy_client(server) as peer:
        await peer.send(call(1, "fail"))
        await settled()
        await peer.send(cancelled(1))
        assert await arrived(peer, within=1000) == []
        assert server.tree().sessions[0].calls == ()
        assert "result" in await peer.request(2, "ping")


async def test_raising_while_the_server_is_cancelled_does_not_come_out_of_serve(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server("s")

    @server.tool
    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError(SECRET)

    async with legacy_client(server) as peer:
        await peer.send(call(1, "fail"))
        await settled()
    assert server.tree().sessions == ()
