"""Clients of Windows at servers of Linux, and the other way round, over each binding of a network."""

from __future__ import annotations

import json

import pytest
import trio
from conftest import BINDINGS, PATIENCE, PATIENT, PROGRAMS, Windows
from environment import in_wine

from mcp_actors import Client, Progress

ANSWERS = [{"a": [20 + day for day in range(days)]} for days in range(1, 11)]


@pytest.mark.parametrize("kind", ["trio", "asyncio", "sync"])
@pytest.mark.parametrize("binding", BINDINGS)
def test_a_client_of_windows(windows: Windows, linux_server: dict[str, str], binding: str, kind: str) -> None:
    done = windows.run(in_wine(PROGRAMS / "asking.py"), kind, linux_server[binding])
    assert done.code == 0, done.output
    assert json.loads(done.output) == {
        "platform": "win32",
        "era": "modern",
        "answers": ANSWERS,
        "cancelled": True,
        "page": "Köln: sunny",
    }


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_server_of_windows(windows_server: dict[str, str], binding: str, era: str) -> None:
    told: list[Progress] = []
    with trio.fail_after(PATIENCE):
        async with Client(windows_server[binding], era=era, **PATIENT) as client:
            assert {"forecast", "die"} <= {tool.name async for tool in client.tools()}
            result = await client.call_tool("forecast", {"city": "a", "days": 5}, on_progress=told.append)
            assert result.data == ANSWERS[4]
            assert [report.progress for report in told] == [1, 2, 3, 4, 5]
            assert (await client.call_tool("in_a_thread", {"text": "€"})).text == "€ ä"
            before = await client.call_tool("count_cancelled", returns=int)
            with trio.move_on_after(0.3) as scope:
                await client.call_tool("wait_for_ever")
            assert scope.cancelled_caught
            while await client.call_tool("count_cancelled", returns=int) == before:
                pass
            assert (await client.read_resource("weather://Köln/now")).text == "Köln: sunny"
            text = "x" * 1_000_000
            assert (await client.call_tool("in_a_thread", {"text": text})).text == f"{text} ä"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_many_clients_at_a_server_of_windows(windows_server: dict[str, str], binding: str) -> None:
    answers: list[object] = []

    async def ask() -> None:
        async with Client(windows_server[binding], **PATIENT) as client:
            answers.append((await client.call_tool("forecast", {"city": "a", "days": 1})).data)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(ask)
    assert answers == [ANSWERS[0]] * 30
