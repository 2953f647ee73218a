"""Completion: what may be asked for, and how many values are told."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest
import trio

from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._server.completion import Completions
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.resources import Resources
from mcp_actors.errors import LocalProtocolError, RpcError
from mcp_actors.types import Completion

from .fakes import FakeContext, answer, options

TEMPLATE = "git://{repo}/{path}"


@pytest.fixture
def completions() -> Completions:
    prompts, resources = Prompts(**options()), Resources(**options())

    def review(branch: str, style: Literal["terse", "Tender", "kind"] = "kind") -> str:
        return branch

    def file(repo: str, path: str) -> str:
        return path

    prompts.add(review)
    resources.add(TEMPLATE, file)
    resources.add("config://a", lambda: "", name="config")
    return Completions(
        injected=FakeContext,
        for_sync=lambda ctx, inline: ctx,
        limiter=trio.CapacityLimiter(1),
        prompts=prompts,
        resources=resources,
    )


async def complete(
    completions: Completions,
    name: str = "branch",
    value: str = "",
    *,
    prompt: str = "review",
    resource: str | None = None,
    **params: Any,
) -> Completion:
    ref = (
        {"type": "ref/prompt", "name": prompt}
        if resource is None
        else {"type": "ref/resource", "uri": resource}
    )
    params = {"ref": ref, "argument": {"name": name, "value": value}, **params}
    result = await answer(completions.handlers()["completion/complete"], params, server="s")
    assert isinstance(result.completion, Completion)
    return result.completion


async def given(completions: Completions, found: Any) -> Completion:
    async def complete_branch(value: str) -> Any:
        return found

    completions.add(complete_branch, prompt="review", argument="branch")
    return await complete(completions)


async def test_a_function_gets_what_is_typed_the_other_arguments_and_the_context(
    completions: Completions,
) -> None:
    async def branches(typed: str, others: Mapping[str, str], ctx: FakeContext) -> list[str]:
        return [typed, *others.values(), ctx.server]

    completions.add(branches, prompt="review", argument="branch")
    found = await complete(completions, value="ma", context={"arguments": {"style": "kind"}})
    assert found == Completion(["ma", "kind", "s"], 3, False)
    assert (await complete(completions)).values == ["", "s"]
    assert (await complete(completions, context={})).values == ["", "s"]


async def test_a_template_variable_is_completed_under_the_text_of_the_template(
    completions: Completions,
) -> None:
    completions.add(lambda value: [f"{value}.py"], resource=TEMPLATE, argument="path")
    assert (await complete(completions, "path", "a", resource=TEMPLATE)).values == ["a.py"]


async def test_a_known_argument_without_a_function_has_no_values(completions: Completions) -> None:
    assert await complete(completions) == Completion([], 0, False)
    assert await complete(completions, "repo", resource=TEMPLATE) == Completion([], 0, False)


@pytest.mark.parametrize(
    ("typed", "values"),
    [("", ["terse", "Tender", "kind"]), ("t", ["terse", "Tender"]), ("TER", ["terse"]), ("x", [])],
)
async def test_an_argument_that_lists_its_values_completes_by_itself(
    completions: Completions, typed: str, values: list[str]
) -> None:
    assert (await complete(completions, "style", typed)).values == values


async def test_a_function_wins_over_the_listed_values(completions: Completions) -> None:
    completions.add(lambda value: ["own"], prompt="review", argument="style")
    assert (await complete(completions, "style")).values == ["own"]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"ref": None, "argument": {"name": "branch", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "review"}},
        {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "branch"}},
        {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "branch", "value": 7}},
        {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "other", "value": ""}},
        {"ref": {"type": "ref/prompt", "name": "other"}, "argument": {"name": "branch", "value": ""}},
        {"ref": {"type": "ref/prompt", "uri": TEMPLATE}, "argument": {"name": "path", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": "git://x"}, "argument": {"name": "path", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": TEMPLATE}, "argument": {"name": "branch", "value": ""}},
        {"ref": {"type": "ref/resource", "uri": "config://a"}, "argument": {"name": "path", "value": ""}},
        {"ref": {"type": "ref/tool", "name": "review"}, "argument": {"name": "branch", "value": ""}},
        {"ref": {"type": 7, "name": "review"}, "argument": {"name": "branch", "value": ""}},
    ],
)
async def test_what_cannot_be_completed_is_an_error_of_the_protocol(
    completions: Completions, params: dict[str, Any]
) -> None:
    with pytest.raises(RpcError) as caught:
        await answer(completions.handlers()["completion/complete"], params)
    assert caught.value.code == -32602


async def test_the_error_tells_an_unknown_prompt_from_an_unknown_argument(completions: Completions) -> None:
    with pytest.raises(RpcError, match="unknown prompt: other"):
        await complete(completions, prompt="other")
    with pytest.raises(RpcError, match="the prompt review has no argument other"):
        await complete(completions, "other")


@pytest.mark.parametrize("arguments", [7, [], {"style": 7}])
async def test_other_arguments_must_be_an_object_of_strings(completions: Completions, arguments: Any) -> None:
    completions.add(lambda value, others: [], prompt="review", argument="branch")
    with pytest.raises(RpcError, match=r"context\.arguments"):
        await complete(completions, context={"arguments": arguments})


NAMES = [f"name {number}" for number in range(250)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], Completion([], 0, False)),
        (NAMES[:100], Completion(NAMES[:100], 100, False)),
        (NAMES[:101], Completion(NAMES[:100], 101, True)),
        (tuple(NAMES), Completion(NAMES[:100], 250, True)),
        (iter(NAMES[:3]), Completion(NAMES[:3], 3, False)),
        (iter(NAMES), Completion(NAMES[:100], None, True)),
        (map(str, itertools.count()), Completion([str(n) for n in range(100)], None, True)),
        (Completion(["a"], 7, True), Completion(["a"], 7, True)),
        (Completion(NAMES), Completion(NAMES[:100], 250, True)),
        (Completion(NAMES, 999), Completion(NAMES[:100], 999, True)),
    ],
)
async def test_at_most_a_hundred_values_are_told_and_the_rest_is_counted(
    completions: Completions, found: Any, expected: Completion
) -> None:
    assert await given(completions, found) == expected


@pytest.mark.parametrize("found", [None, "text", 7, [1], ["a", None]])
async def test_anything_but_strings_fails_the_call(completions: Completions, found: Any) -> None:
    with pytest.raises(InvalidResult, match=r"a completion returns|not strings"):
        await given(completions, found)


async def test_the_body_of_a_plain_generator_runs_in_the_worker_thread(completions: Completions) -> None:
    def branches(value: str) -> Iterator[str]:
        yield "loop" if threading.current_thread() is threading.main_thread() else "thread"

    completions.add(branches, prompt="review", argument="branch")
    assert (await complete(completions)).values == ["thread"]


async def test_what_needs_no_task_is_answered_inline(completions: Completions) -> None:
    attempt = completions.handlers()["completion/complete"]
    assert attempt is not None
    ref = {"type": "ref/prompt", "name": "review"}
    params = {"ref": ref, "argument": {"name": "branch", "value": ""}}
    assert attempt(FakeContext(params)).completion.values == []
    completions.add(lambda value: ["a"], prompt="review", argument="branch", inline=True)
    assert attempt(FakeContext(params)).completion.values == ["a"]
    completions.remove(prompt="review", argument="branch")
    completions.add(lambda value: ["a"], prompt="review", argument="branch")
    assert isinstance(attempt(FakeContext(params)), Continuation)


def test_registration_refuses_what_cannot_work(completions: Completions) -> None:
    with pytest.raises(TypeError, match="give one of"):
        completions.add(lambda value: [], argument="a")
    with pytest.raises(TypeError, match="give one of"):
        completions.add(lambda value: [], argument="a", prompt="p", resource="r")
    with pytest.raises(TypeError, match="takes what is typed"):
        completions.add(list, argument="a", prompt="p")
    with pytest.raises(TypeError, match="takes what is typed"):
        completions.add(lambda *values: [], argument="a", prompt="p")
    completions.add(lambda value: [], argument="a", prompt="p")
    with pytest.raises(LocalProtocolError, match="already a completion"):
        completions.add(lambda value: [], argument="a", prompt="p")
    completions.remove(argument="a", prompt="p")
    with pytest.raises(LocalProtocolError, match="no completion"):
        completions.remove(argument="a", prompt="p")
    assert not completions
