"""The end of an elicitation by URL, told by what handles the page, outside of the call that asked."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context, Server
from mcp_actors.testing import ScriptedPeer, raw_client

from .peers import modern
from .test_declared_early import nothing

REVISION = "2025-11-25"
COMPLETE = "notifications/elicitation/complete"
CAPABLE = {"elicitation": {"url": {}}}


def make_server(ids: list[str]) -> Server:
    server = Server("asks")

    @server.tool
    async def sign_in(ctx: Context) -> str:
        """Sends the person to a page."""

        def page(id: str) -> str:
            ids.append(id)
            return f"https://example.org/in?elicitation={id}"

        return (await ctx.elicit_url("Sign in", page)).action

    return server


async def asked(peer: ScriptedPeer, id: int) -> dict[str, Any]:
    """Calls the tool; the question that comes of it."""
    params = {"name": "sign_in", "arguments": {}}
    await peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    question: dict[str, Any] = await peer.receive()
    assert question["method"] == "elicitation/create"
    return question


async def answer(peer: ScriptedPeer, question: dict[str, Any], action: str) -> None:
    """Answers a question, and takes the result of the call."""
    await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": action}})
    assert (await peer.receive())["result"]["content"][0]["text"] == action


async def test_the_client_that_was_asked_is_told_of_the_end_once(autojump_clock: MockClock) -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        question = await asked(peer, 1)
        assert question["params"]["elicitationId"] == ids[0]
        assert question["params"]["url"].endswith(ids[0])
        await answer(peer, question, "accept")
        assert server.elicitation_complete(ids[0])
        told = {"jsonrpc": "2.0", "method": COMPLETE, "params": {"elicitationId": ids[0]}}
        assert await peer.receive() == told
        assert not server.elicitation_complete(ids[0])
        assert not server.elicitation_complete("unknown")
        await nothing(peer)


async def test_a_person_may_be_done_before_the_client_answers() -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        question = await asked(peer, 1)
        assert server.elicitation_complete(ids[0])
        assert (await peer.receive())["method"] == COMPLETE
        await answer(peer, question, "accept")


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_what_was_declined_has_no_end(action: str) -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        await answer(peer, await asked(peer, 1), action)
        assert not server.elicitation_complete(ids[0])


async def test_a_session_takes_its_elicitations_along_and_keeps_few() -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        await peer.initialize(REVISION, CAPABLE)
        for number in range(300):
            await answer(peer, await asked(peer, number), "accept")
        assert not server.elicitation_complete(ids[0])
        assert server.elicitation_complete(ids[299])
        open_ones = server._runtime.sessions.elicitations
        assert len(open_ones) == 255
        await peer.channel.aclose()
        await wait_all_tasks_blocked()
        assert len(open_ones) == 0
        assert not server.elicitation_complete(ids[298])


async def test_a_stateless_client_is_told_nothing() -> None:
    ids: list[str] = []
    server = make_server(ids)
    async with raw_client(server) as peer:
        params = {"name": "sign_in", "arguments": {}}
        result = (await modern(peer, 1, "tools/call", params, capabilities=CAPABLE))["result"]
        [question] = result["inputRequests"].values()
        assert question["params"] == {
            "mode": "url",
            "message": "Sign in",
            "url": f"https://example.org/in?elicitation={ids[0]}",
        }
        assert not server.elicitation_complete(ids[0])
