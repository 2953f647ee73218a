"""-32042: one revision asks for a visit to a url by an error, and the client makes the call again after it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors import Client, RpcError, Server
from mcp_actors.types import ElicitResult, ElicitUrlParams

REVISION = "2025-11-25"
ENTRY = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "e1"}


def make_server(entries: Any, calls: list[int]) -> Server:
    server = Server("s")

    @server.tool
    async def private() -> str:
        """Needs somebody who is signed in."""
        calls.append(1)
        if len(calls) == 1:
            raise RpcError(-32042, "sign in first", {"elicitations": entries})
        return "secret"

    return server


async def test_the_person_is_sent_there_and_the_call_is_made_again() -> None:
    visited: list[str] = []
    calls: list[int] = []

    async def visit(params: Any) -> ElicitResult:
        assert isinstance(params, ElicitUrlParams)
        visited.append(f"{params.url} {params.elicitation_id}")
        return ElicitResult("accept")

    async with Client(make_server([ENTRY, ENTRY], calls), era=REVISION, elicitation=visit) as client:
        result = await client.call_tool("private")
    assert [block.text for block in result.content] == ["secret"]  # type: ignore[union-attr]
    assert visited == ["https://example.com/in e1"] * 2
    assert len(calls) == 2


@pytest.mark.parametrize("entries", [[ENTRY], [], None, "x", [5], [{"mode": "form"}]])
async def test_without_consent_the_error_is_the_callers(entries: Any) -> None:
    calls: list[int] = []

    async def decline(params: Any) -> ElicitResult:
        return ElicitResult("decline")

    async with Client(make_server(entries, calls), era=REVISION, elicitation=decline) as client:
        with pytest.raises(RpcError) as caught:
            await client.call_tool("private")
    assert caught.value.code == -32042
    assert len(calls) == 1


async def test_a_client_that_answers_nothing_is_told() -> None:
    async with Client(make_server([ENTRY], []), era=REVISION) as client:
        with pytest.raises(RpcError) as caught:
            await client.call_tool("private")
    assert caught.value.data == {"elicitations": [ENTRY]}


async def test_nobody_goes_in_circles() -> None:
    server = Server("s")

    @server.tool
    async def never() -> str:
        """Is never content."""
        raise RpcError(-32042, "again", {"elicitations": [ENTRY]})

    visits: list[int] = []

    async def visit(params: Any) -> ElicitResult:
        visits.append(1)
        return ElicitResult("accept")

    async with Client(server, era=REVISION, elicitation=visit, max_rounds=3) as client:
        with pytest.raises(RpcError):
            await client.call_tool("never")
    assert len(visits) == 3
