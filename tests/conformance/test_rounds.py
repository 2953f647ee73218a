"""Input-required results, round by round, as the conformance suite makes them: by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

from mcp_actors import Client, InputRequired, RpcError

from .user import User, connected


async def ask(client: Client, name: str, method: str = "tools/call", **members: Any) -> dict[str, Any]:
    """One request, with the answers and the state that a retry carries."""
    arguments: dict[str, Any] = {"arguments": {}} if method == "tools/call" else {}
    return dict(await client.request(method, {"name": name, **arguments, **members}))


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


@asynccontextmanager
async def by_hand(**options: Any) -> AsyncIterator[Client]:
    user = User()
    async with connected("modern", user, answer_input=False, **options) as client:
        yield client


@attrs.frozen
class Question:
    """An input-required result."""

    requests: dict[str, Any]
    state: str


async def question(client: Client, name: str, method: str = "tools/call", **members: Any) -> Question:
    """One request that is answered with questions, and with the marker that says so."""
    result = await ask(client, name, method, **members)
    assert result["resultType"] == "input_required"
    return Question(result["inputRequests"], result["requestState"])


SAMPLED = {
    "role": "assistant",
    "content": {"type": "text", "text": "Hi"},
    "model": "fake-1",
    "stopReason": "endTurn",
}


async def test_one_round() -> None:
    name = "test_input_required_result_elicitation"
    async with by_hand() as client:
        first = await question(client, name)
        assert list(first.requests) == ["user_name"]
        result = await ask(
            client, name, inputResponses={"user_name": accept(name="Alice")}, requestState=first.state
        )
        assert result["content"] == [{"type": "text", "text": "Hello, Alice!"}]


async def test_wrong_and_extra_answers() -> None:
    name = "test_input_required_result_elicitation"
    async with by_hand() as client:
        again = await question(client, name, inputResponses={"wrong_key": accept(data="wrong")})
        assert list(again.requests) == ["user_name"]
        answers = {"user_name": accept(name="Alice"), "extra": accept(data="ignored")}
        result = await ask(client, name, inputResponses=answers, requestState=again.state)
        assert result["content"][0]["text"] == "Hello, Alice!"


@pytest.mark.parametrize("responses", [{"user_name": 12345}, {"user_name": None}, None, 7])
async def test_invalid_answers_never_complete(responses: Any) -> None:
    """They are refused, or asked for again."""
    name = "test_input_required_result_elicitation"
    async with by_hand() as client:
        first = await question(client, name)
        keys, code = ["user_name"], -32602
        try:
            again = await question(client, name, inputResponses=responses, requestState=first.state)
            keys = list(again.requests)
        except RpcError as error:
            code = error.code
        assert (keys, code) == (["user_name"], -32602)


async def test_many_rounds() -> None:
    name = "test_input_required_result_multi_round"
    async with by_hand() as client:
        first = await question(client, name)
        assert list(first.requests) == ["step1"]
        answers = {"step1": accept(name="Alice")}
        second = await question(client, name, inputResponses=answers, requestState=first.state)
        assert list(second.requests) == ["step2"]
        assert second.state != first.state
        answers = {"step2": accept(color="blue")}
        result = await ask(client, name, inputResponses=answers, requestState=second.state)
        assert result["content"][0]["text"] == "Alice likes blue"


async def test_three_questions_at_once() -> None:
    name = "test_input_required_result_multiple_inputs"
    async with by_hand() as client:
        first = await question(client, name)
        assert set(first.requests) == {"user_name", "greeting", "client_roots"}
        assert isinstance(first.state, str)
        answers = {"user_name": accept(name="Alice"), "greeting": SAMPLED, "client_roots": {"roots": []}}
        result = await ask(client, name, inputResponses=answers, requestState=first.state)
        assert result["content"][0]["text"] == "Name: Alice; Greeting: Hi; Roots: 0"


async def test_tampered_state() -> None:
    name = "test_input_required_result_tampered_state"
    async with by_hand() as client:
        first = await question(client, name)
        with pytest.raises(RpcError) as caught:
            await ask(
                client,
                name,
                inputResponses={"confirm": accept(ok=True)},
                requestState=f"{first.state}-TAMPERED",
            )
        assert caught.value.code == -32602


async def test_state_belongs_to_its_call() -> None:
    async with by_hand() as client:
        first = await question(client, "test_input_required_result_tampered_state")
        with pytest.raises(RpcError) as caught:
            await ask(
                client,
                "test_input_required_result_request_state",
                inputResponses={"confirm": accept(ok=True)},
                requestState=first.state,
            )
        assert caught.value.code == -32602


async def test_only_declared_capabilities_are_asked_for() -> None:
    async with by_hand(elicitation=None) as client:
        first = await question(client, "test_input_required_result_capabilities")
        assert list(first.requests) == ["sample_input"]


async def test_prompts_ask_too() -> None:
    name = "test_input_required_result_prompt"
    async with by_hand() as client:
        first = await question(client, name, "prompts/get")
        answers = {"user_context": accept(context="chess")}
        result = await ask(client, name, "prompts/get", inputResponses=answers, requestState=first.state)
        assert result["messages"][0]["content"]["text"] == "Prompt with context: chess"


async def test_lists_never_ask() -> None:
    async with by_hand() as client:
        for method in ("tools/list", "prompts/list", "resources/list"):
            assert (await client.request(method))["resultType"] == "complete"


async def test_a_client_that_does_not_answer_raises_the_question() -> None:
    async with by_hand() as client:
        with pytest.raises(InputRequired) as caught:
            await client.call_tool("test_input_required_result_elicitation")
    assert list(caught.value.requests) == ["user_name"]
    assert caught.value.state
