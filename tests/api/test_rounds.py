"""Calls that ask for input in the stateless revision, seen from the wire: every rule of the rounds."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors.testing import raw_client

from .asking import ALL, FORM, HELLO, ROOTS, accept, ask_tool, make_server
from .peers import SERVER_INFO, begin, modern


async def test_the_shape_of_a_question() -> None:
    async with raw_client(make_server()) as peer:
        result = (await ask_tool(peer, 1, "twice", **HELLO))["result"]
        assert set(result) == {
            "resultType",
            "inputRequests",
            "requestState",
            "_meta",
        }  # no caching hints on it
        assert result["resultType"] == "input_required"
        assert result["_meta"][SERVER_INFO]["name"] == "asking"
        assert result["inputRequests"] == {
            "first": {
                "method": "elicitation/create",
                "params": {"mode": "form", "message": "First name?", "requestedSchema": FORM},
            }
        }
        assert isinstance(result["requestState"], str)


async def test_round_after_round_until_there_is_an_answer() -> None:
    async with raw_client(make_server()) as peer:
        first = (await ask_tool(peer, 1, "twice", **HELLO))["result"]
        answers: dict[str, Any] = {"first": accept("Ada")}
        second = (
            await ask_tool(
                peer, 2, "twice", **HELLO, inputResponses=answers, requestState=first["requestState"]
            )
        )["result"]
        assert second["inputRequests"]["last"]["params"]["message"] == "Last name of Ada?"
        assert list(second["inputRequests"]) == ["last"]  # what was answered is not asked again
        answers = {"last": accept("Lovelace")}
        third = (
            await ask_tool(
                peer, 3, "twice", **HELLO, inputResponses=answers, requestState=second["requestState"]
            )
        )["result"]
        assert third["resultType"] == "complete"
        assert third["content"][0]["text"] == "Hello Ada Lovelace"


async def test_any_process_with_the_key_goes_on() -> None:
    async with raw_client(make_server()) as here, raw_client(make_server()) as there:
        first = (await ask_tool(here, 1, "twice", **HELLO))["result"]
        answers = {"first": accept("Ada")}
        second = (
            await ask_tool(
                there, 1, "twice", **HELLO, inputResponses=answers, requestState=first["requestState"]
            )
        )["result"]
        answers = {"last": accept("L")}
        third = (
            await ask_tool(
                here, 2, "twice", **HELLO, inputResponses=answers, requestState=second["requestState"]
            )
        )["result"]
        assert third["content"][0]["text"] == "Hello Ada L"


async def test_answers_without_state_are_good_too() -> None:
    async with raw_client(make_server()) as peer:
        answers = {"first": accept("Ada"), "last": accept("L"), "unknown": {"what": "ever"}}
        result = (await ask_tool(peer, 1, "twice", **HELLO, inputResponses=answers))["result"]
        assert result["content"][0]["text"] == "Hello Ada L"


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_is_an_answer(action: str) -> None:
    async with raw_client(make_server()) as peer:
        result = (await ask_tool(peer, 1, "twice", **HELLO, inputResponses={"first": {"action": action}}))[
            "result"
        ]
        assert result["content"][0]["text"] == f"no name: {action}"


async def test_missing_answers_are_asked_for_again() -> None:
    async with raw_client(make_server()) as peer:
        first = (await ask_tool(peer, 1, "both"))["result"]
        assert set(first["inputRequests"]) == {"name", "where"}
        for id, retry in enumerate(({}, {"inputResponses": {}}, {"inputResponses": {"other": {}}})):
            again = (await ask_tool(peer, f"r{id}", "both", requestState=first["requestState"], **retry))[
                "result"
            ]
            assert set(again["inputRequests"]) == {"name", "where"}
        half = {"inputResponses": {"where": ROOTS}, "requestState": first["requestState"]}
        second = (await ask_tool(peer, 2, "both", **half))["result"]
        assert set(second["inputRequests"]) == {"name"}
        rest = {"inputResponses": {"name": accept("Ada")}, "requestState": second["requestState"]}
        assert (await ask_tool(peer, 3, "both", **rest))["result"]["content"][0][
            "text"
        ] == "Ada in ['file:///a']"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        "yes",
        [],
        {},
        {"action": "maybe"},
        {"action": "accept"},
        {"action": "accept", "content": []},
        {"action": "accept", "content": {"name": 5}},
        {"action": "accept", "content": {}},
    ],
)
async def test_an_answer_that_is_none_is_invalid(answer: Any) -> None:
    async with raw_client(make_server()) as peer:
        error = (await ask_tool(peer, 1, "twice", **HELLO, inputResponses={"first": answer}))["error"]
        assert error["code"] == -32602
        assert "first" in error["message"]


async def test_keys_by_default_are_the_same_in_each_run() -> None:
    async with raw_client(make_server()) as peer:
        (key,) = (await ask_tool(peer, 1, "roots"))["result"]["inputRequests"]
        result = (await ask_tool(peer, 2, "roots", inputResponses={key: ROOTS}))["result"]
        assert result["content"][0]["text"] == "file:///a"


async def test_a_handler_cannot_swallow_the_question() -> None:
    async with raw_client(make_server()) as peer:
        assert (await ask_tool(peer, 1, "shielded"))["result"]["resultType"] == "input_required"


async def test_prompts_and_resources_ask_too() -> None:
    async with raw_client(make_server()) as peer:
        for method, params in (("prompts/get", {"name": "letter"}), ("resources/read", {"uri": "x://n"})):
            first = (await modern(peer, method, method, params, capabilities=ALL))["result"]
            assert first["resultType"] == "input_required"
            assert "ttlMs" not in first
            (key,) = first["inputRequests"]
            retry = {**params, "inputResponses": {key: ROOTS}, "requestState": first["requestState"]}
            second = (await modern(peer, method, method, retry, capabilities=ALL))["result"]
            assert second["resultType"] == "complete"


async def test_a_method_that_cannot_ask_fails_instead_of_going_in_circles() -> None:
    async with raw_client(make_server()) as peer:
        answer = await modern(peer, 1, "acme/ask", {}, capabilities=ALL)
        assert answer["error"]["code"] == -32603
        await begin(peer, "2025-11-25", {"roots": {}})
        await peer.send(
            {"jsonrpc": "2.0", "id": 2, "method": "acme/ask"}
        )  # a session can be asked at any time
        question = await peer.receive()
        assert question["method"] == "roots/list"
