"""Calls that ask for input: what may be asked of whom, whose state is good for what, and how sessions are asked."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors._eras.modern import StateSealer
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import ScriptedPeer, raw_client

from .asking import ALL, HELLO, KEY, accept, ask_tool, make_server
from .peers import begin, modern

# -- capabilities --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "declared", "required"),
    [
        ("twice", {}, {"elicitation": {"form": {}}}),
        ("twice", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("visit", {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("visit", {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
        ("draw", {"elicitation": {}}, {"sampling": {}}),
        ("roots", {}, {"roots": {}}),
        ("both", {"elicitation": {}}, {"roots": {}}),
    ],
)
async def test_only_what_this_very_request_declared_is_asked(
    tool: str, declared: dict[str, Any], required: dict[str, Any]
) -> None:
    async with raw_client(make_server()) as peer:
        arguments = HELLO if tool == "twice" else {}
        assert "result" in await ask_tool(
            peer, 1, tool, **arguments
        )  # an earlier request of the same client had it all
        error = (await ask_tool(peer, 2, tool, declared, **arguments))["error"]
        assert error["code"] == -32021
        assert error["data"] == {"requiredCapabilities": required}


async def test_an_empty_elicitation_means_forms() -> None:
    async with raw_client(make_server()) as peer:
        assert "result" in await ask_tool(peer, 1, "twice", {"elicitation": {}}, **HELLO)


async def test_a_url_has_no_id_here() -> None:
    async with raw_client(make_server()) as peer:
        result = (await ask_tool(peer, 1, "visit"))["result"]
        (question,) = result["inputRequests"].values()
        assert question["params"] == {"mode": "url", "message": "Go there", "url": "https://example.org/x"}


# -- the state -----------------------------------------------------------------------------------------------------


async def a_state(peer: ScriptedPeer) -> str:
    return str((await ask_tool(peer, "state", "twice", **HELLO))["result"]["requestState"])


async def test_a_tampered_state_is_refused() -> None:
    async with raw_client(make_server()) as peer:
        state = await a_state(peer)
        for id, bad in enumerate(
            (state[:-1], state + "A", "A" + state[1:], "", "!", "ü", state.swapcase(), " " + state)
        ):
            error = (await ask_tool(peer, id, "twice", **HELLO, requestState=bad))["error"]
            assert error["code"] == -32602, bad


@pytest.mark.parametrize("tool", ["never_asks", "inline"])
async def test_a_forged_state_is_refused_even_by_who_does_not_look(tool: str) -> None:
    async with raw_client(make_server()) as peer:
        assert (await ask_tool(peer, 1, tool, requestState="forged"))["error"]["code"] == -32602
        assert "result" in await ask_tool(peer, 2, tool)


async def test_a_state_is_good_for_its_own_call_only() -> None:
    async with raw_client(make_server()) as peer:
        state = await a_state(peer)
        others: list[tuple[str, dict[str, Any]]] = [
            ("twice", {"arguments": {"greeting": "Goodbye"}}),
            ("twice", {}),
            ("both", HELLO),
        ]
        for id, (tool, params) in enumerate(others):
            assert (await ask_tool(peer, id, tool, **params, requestState=state))["error"]["code"] == -32602
        params = {"name": "twice", **HELLO, "requestState": state}
        assert (await modern(peer, 9, "prompts/get", params, capabilities=ALL))["error"]["code"] == -32602
        assert "result" in await ask_tool(peer, 10, "twice", **HELLO, requestState=state)


async def test_a_state_of_another_server_is_refused() -> None:
    async with raw_client(make_server(b"a" * 32)) as one, raw_client(make_server(b"b" * 32)) as other:
        state = await a_state(one)
        assert (await ask_tool(other, 1, "twice", **HELLO, requestState=state))["error"]["code"] == -32602


async def test_a_state_expires_and_belongs_to_somebody() -> None:
    sealer = StateSealer(KEY)
    target = {"name": "twice", **HELLO}
    forever = 10.0**11

    def sealed(now: float, principal: Principal | None) -> str:
        return sealer.seal(
            {"answers": {"first": accept("Ada")}},
            method="tools/call",
            target=target,
            principal=principal,
            now=now,
        )

    async with raw_client(make_server()) as peer:
        good = (await ask_tool(peer, 1, "twice", **HELLO, requestState=sealed(forever, None)))["result"]
        assert list(good["inputRequests"]) == ["last"]
        for id, bad in enumerate(
            (sealed(0, None), sealed(forever, Principal("somebody")), sealed(forever, Principal("")))
        ):
            error = (await ask_tool(peer, f"r{id}", "twice", **HELLO, requestState=bad))["error"]
            assert error["code"] == -32602


# -- the same functions in a session -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_session_is_asked_by_requests(version: str) -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, version, {"elicitation": {}})
        params = {"name": "twice", **HELLO}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        for name in ("Ada", "L"):
            question = await peer.receive()
            assert question["method"] == "elicitation/create"
            assert ("mode" in question["params"]) == (version == "2025-11-25")
            await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": accept(name)})
        assert (await peer.receive())["result"]["content"][0]["text"] == "Hello Ada L"


@pytest.mark.parametrize(
    ("version", "tool", "declared"),
    [
        ("2025-11-25", "visit", {"elicitation": {}}),
        ("2025-11-25", "twice", {"elicitation": {"url": {}}}),
        ("2025-06-18", "draw", {}),
        ("2024-11-05", "roots", {}),
    ],
)
async def test_a_session_is_not_asked_what_it_did_not_declare(
    version: str, tool: str, declared: dict[str, Any]
) -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, version, declared)
        params = {"name": tool, **(HELLO if tool == "twice" else {})}
        answer = await peer.request(1, "tools/call", params)
        assert answer["error"]["code"] == -32602  # sessions have no code of its own for that
        assert answer["error"]["data"].keys() == {"requiredCapabilities"}


async def test_revisions_without_forms_are_not_asked_for_one() -> None:
    """Whatever they declare: the method does not exist there."""
    for version in ("2024-11-05", "2025-03-26"):
        async with raw_client(make_server()) as peer:
            await begin(peer, version, {"elicitation": {}})
            answer = await peer.request(1, "tools/call", {"name": "twice", **HELLO})
            assert "error" in answer


async def test_an_unusable_answer_of_a_session_fails_the_call_alone() -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, "2025-11-25", {"roots": {}})
        for id, (answer, code) in enumerate(
            [
                ({"result": {"roots": 5}}, None),
                ({"result": {}}, None),
                ({"error": {"code": -1, "message": "User rejected"}}, -1),
            ]
        ):
            params = {"name": "roots"}
            await peer.send({"jsonrpc": "2.0", "id": f"c{id}", "method": "tools/call", "params": params})
            question = await peer.receive()
            await peer.send({"jsonrpc": "2.0", "id": question["id"], **answer})
            outcome = await peer.receive()
            if code is None:
                assert outcome["result"]["isError"] is True
                assert "RemoteProtocolError" in outcome["result"]["content"][0]["text"]
            else:
                assert outcome["error"]["code"] == code
