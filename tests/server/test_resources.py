"""Resources: what is found under a uri, in which order it is looked for, and what becomes of its value."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import pytest

from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._server.completion import Completions
from mcp_actors._server.invoke import WorkerThreads
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.resources import Resources, Unscreened
from mcp_actors.errors import LocalProtocolError, ResourceNotFound, RpcError
from mcp_actors.types import (
    BlobResourceContents,
    Completion,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from .fakes import Changes, FakeContext, answer, options


@dataclass
class Weather:
    city: str
    day: str


async def weather(city: str, day: str, ctx: FakeContext) -> Weather:
    """The weather.

    Args:
        city: Where.
        day: When.
    """
    return Weather(city, day)


async def config() -> str:
    """The settings."""
    return "a=1"


@pytest.fixture
def resources() -> Resources:
    return Resources(**options())


async def read(resources: Resources, uri: Any, **more: Any) -> Any:
    return (await answer(resources.handlers()["resources/read"], {"uri": uri}, **more)).contents


async def returned(value: Any, **how: Any) -> ReadResourceResult:
    resources = Resources(**options())

    async def give():  # type: ignore[no-untyped-def]
        return value

    resources.add("a:1", give, **how)
    result = await answer(resources.handlers()["resources/read"], {"uri": "a:1"})
    assert isinstance(result, ReadResourceResult)
    return result


async def listed(resources: Resources, method: str = "resources/list", **params: Any) -> Any:
    return await answer(resources.handlers()[method], params)


# -- lists -----------------------------------------------------------------------------------------------------------


async def test_resources_and_templates_are_listed_apart_in_order(resources: Resources) -> None:
    resources.add("config://b", config, name="b", size=3, mime_type="text/x", title="B")
    resources.add("weather://{city}/{day}", weather)
    resources.add("config://a", config)
    assert (await listed(resources)).resources == [
        Resource("config://b", "b", title="B", description="The settings.", mime_type="text/x", size=3),
        Resource("config://a", "config", description="The settings."),
    ]
    (template,) = (await listed(resources, "resources/templates/list")).resource_templates
    assert isinstance(template, ResourceTemplate)
    assert (template.uri_template, template.name) == ("weather://{city}/{day}", "weather")
    assert resources.has_templates
    assert len(resources) == 3


async def test_both_lists_come_in_pages_with_cursors_of_their_own() -> None:
    resources = Resources(**options(page_size=1))
    for number in range(2):
        resources.add(f"a:{number}", config)
        resources.add(f"b{number}:{{city}}/{{day}}", weather)
    first = await listed(resources)
    second = await listed(resources, cursor=first.next_cursor)
    assert [each.uri for each in first.resources + second.resources] == ["a:0", "a:1"]
    assert second.next_cursor is None
    with pytest.raises(RpcError, match="invalid cursor"):
        await listed(resources, "resources/templates/list", cursor=first.next_cursor)


async def test_a_template_may_list_what_exists_now() -> None:
    resources = Resources(**options(page_size=2))
    files = ["x", "y", "z", "config"]

    def present() -> Iterator[Resource]:
        assert threading.current_thread() is not threading.main_thread()
        return (Resource(f"file:///{name}", name) for name in files)

    resources.add("file:///config", config)
    resources.add("file:///{name}", lambda name: name, name="files", list=present)
    assert isinstance(resources.handlers()["resources/list"](FakeContext()), Continuation)
    first = await listed(resources)
    files.remove("x")
    second = await listed(resources, cursor=first.next_cursor)
    assert [each.uri for each in first.resources] == ["file:///config", "file:///x"]
    assert [each.uri for each in second.resources] == ["file:///y", "file:///z"]


async def test_an_async_list_with_the_context(resources: Resources) -> None:
    async def present(ctx: FakeContext) -> list[Resource]:
        return [Resource(f"x://{ctx.params['who']}/1", "one")]

    resources.add("x://{who}/{day}", lambda who, day: who, name="x", list=present)
    assert [each.uri for each in (await listed(resources, who="me")).resources] == ["x://me/1"]


def test_registration_refuses_what_cannot_work(resources: Resources) -> None:
    with pytest.raises(TypeError, match="no parameter for the variable day"):
        resources.add("w://{city}/{day}", lambda city: city, name="w")
    with pytest.raises(TypeError, match="no variable for the parameter day"):
        resources.add("w://{city}", weather)
    with pytest.raises(TypeError, match="no variable for the parameter city, day"):
        resources.add("w://x", weather)
    with pytest.raises(TypeError, match="has no size"):
        resources.add("w://{city}/{day}", weather, size=1)
    with pytest.raises(TypeError, match="list= is for templates"):
        resources.add("w://x", config, list=list)
    with pytest.raises(TypeError, match="takes no arguments"):
        resources.add("w://{city}/{day}", weather, list=lambda x: [])
    with pytest.raises(TypeError, match="'n' takes nothing that can be written as text"):
        resources.add("w://{n}", _nothing)
    with pytest.raises(ValueError, match=r".+"):
        resources.add("w://{city", weather)
    assert len(resources) == 0


def _nothing(n: None) -> str:
    return str(n)


def test_uris_that_are_taken_or_unknown_are_refused_and_changes_announced() -> None:
    changes = Changes()
    resources = Resources(**options(on_change=changes))
    resources.add("a:1", config)
    resources.add("w://{city}/{day}", weather)
    with pytest.raises(LocalProtocolError, match="already a resource 'a:1'"):
        resources.add("a:1", config)
    resources.remove("w://{city}/{day}")
    assert not resources.has_templates
    with pytest.raises(LocalProtocolError, match="no resource"):
        resources.remove("w://{city}/{day}")
    assert changes.count == 3


# -- reading ---------------------------------------------------------------------------------------------------------


async def test_a_resource_comes_before_templates_and_templates_in_order(resources: Resources) -> None:
    resources.add("a://{x}/1", lambda x: f"first {x}", name="first", inline=True)
    resources.add("a://{x}/{y}", lambda x, y: f"second {x} {y}", name="second", inline=True)
    resources.add("a://s/1", lambda: "itself", name="static", inline=True)
    assert (await read(resources, "a://s/1"))[0].text == "itself"
    assert (await read(resources, "a://t/1"))[0].text == "first t"
    assert (await read(resources, "a://t/2"))[0].text == "second t 2"
    resources.remove("a://{x}/1")
    assert (await read(resources, "a://t/1"))[0].text == "second t 1"


async def test_a_typed_value_is_read_as_json(resources: Resources) -> None:
    resources.add("weather://{city}/{day}", weather)
    assert await read(resources, "weather://Bern/today") == [
        TextResourceContents("weather://Bern/today", '{"city":"Bern","day":"today"}', "application/json")
    ]


@pytest.mark.parametrize(
    "uri", ["b:1", "a:1/x", "", "w://{city}/{day}/{x}", "raises:", "kind:tall", "x" * 5000]
)
async def test_what_is_not_there_is_not_found(resources: Resources, uri: str) -> None:
    async def nothing() -> str:
        raise ResourceNotFound("raises:")

    async def kind(kind: Literal["big", "small"]) -> str:
        return kind

    resources.add("a:1", config)
    resources.add("raises:", nothing)
    resources.add("kind:{kind}", kind)
    with pytest.raises(ResourceNotFound) as caught:
        await read(resources, uri)
    assert caught.value.data == {"uri": uri}


# Values that lead out of a folder, and to no file; each as it is written in a URI.
LEAD_AWAY = [
    *(
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/x",
        "a/..",
        "a/../b",
        "..%5cx",
        "..%20/x",
        "..",
        "a%5c..%5c..",
        "...%2f..%2f",
    ),
    *("/etc/passwd", "%2fetc%2fpasswd", "%5c%5cserver%5cshare", "C:%5cx", "c:x", "C%3A/x"),
    *("a%00b", "%00", "a%2500b", "%252e%252e%252fx", "%25252e%25252e%25252fx"),
    *("con", "NUL.txt", "a/Prn", "lpt1:", "COM\u00b2", "aux%20.c", "CONIN$"),
]
STAY = [
    "a",
    "a..b",
    "..a",
    "a...",
    ".",
    "a/./b",
    ".hidden",
    "console",
    "ab:c",
    "company",
    "nulls",
    "100%25",
    "caf\u00e9/x",
    "...",
]


@pytest.mark.parametrize("value", LEAD_AWAY)
async def test_a_value_that_leads_away_names_nothing(resources: Resources, value: str) -> None:
    async def file(path: str) -> str:
        raise AssertionError(f"called with {path!r}")

    resources.add("file:///{+path}", file)
    resources.add("{+path}", file)
    uri = f"file:///{value}"
    with pytest.raises(ResourceNotFound):
        await read(resources, uri)
    assert not resources.covers(uri)


async def test_a_value_that_is_decoded_without_an_end_names_nothing(resources: Resources) -> None:
    async def file(path: str) -> str:
        return path

    resources.add("file:///{+path}", file)
    for times, found in ((7, True), (9, False), (4000, False)):
        assert resources.covers(f"file:///%{'25' * times}41") is found


@pytest.mark.parametrize("value", STAY)
async def test_a_value_that_stays_is_handed_over(resources: Resources, value: str) -> None:
    async def file(path: str) -> str:
        return path

    resources.add("file:///{+path}", file)
    assert [each.text for each in await read(resources, f"file:///{value}")] == [unquote(value)]


async def test_a_variable_may_be_let_through(resources: Resources) -> None:
    async def file(name: str, path: Annotated[str, Unscreened()]) -> str:
        return f"{name} {path}"

    resources.add("file://{name}/{+path}", file)
    assert [each.text for each in await read(resources, "file://a/../x")] == ["a ../x"]
    with pytest.raises(ResourceNotFound):
        await read(resources, "file://../x")


@pytest.mark.parametrize("uri", [None, 7, ["a:1"]])
async def test_a_uri_that_is_no_string_is_an_error_of_the_protocol(resources: Resources, uri: Any) -> None:
    with pytest.raises(RpcError, match="'uri' must be a string") as caught:
        await read(resources, uri)
    assert caught.value.code == -32602


@pytest.mark.parametrize(
    ("value", "how", "contents"),
    [
        ("x", {}, TextResourceContents("a:1", "x", "text/plain")),
        ("", {"mime_type": "text/css"}, TextResourceContents("a:1", "", "text/css")),
        (b"\x00\xff", {}, BlobResourceContents("a:1", "AP8=", "application/octet-stream")),
        (bytearray(b""), {"mime_type": "image/png"}, BlobResourceContents("a:1", "", "image/png")),
        (TextResourceContents("a:1/b", "x"), {}, TextResourceContents("a:1/b", "x")),
        ({"a": 1}, {}, TextResourceContents("a:1", '{"a":1}', "application/json")),
        (["a", "b"], {"mime_type": "x/json"}, TextResourceContents("a:1", '["a","b"]', "x/json")),
        (0, {}, TextResourceContents("a:1", "0", "application/json")),
    ],
)
async def test_what_is_returned_becomes_contents(value: Any, how: dict[str, Any], contents: Any) -> None:
    assert (await returned(value, **how)).contents == [contents]


async def test_several_contents_may_be_mixed_with_text_and_bytes() -> None:
    one = TextResourceContents("a:1/1", "one", "text/x")
    assert (await returned([one, "two", b"3"])).contents == [
        one,
        TextResourceContents("a:1", "two", "text/plain"),
        BlobResourceContents("a:1", "Mw==", "application/octet-stream"),
    ]
    whole = ReadResourceResult([one])
    assert await returned(whole) is whole


@pytest.mark.parametrize("value", [None, object(), {"a": object()}])
async def test_a_value_that_is_no_contents_fails_the_call(value: Any) -> None:
    with pytest.raises(InvalidResult):
        await returned(value)


async def test_variables_take_types_that_are_written_as_text_and_defaults(resources: Resources) -> None:
    async def show(path: Path, page: str = "1") -> str:
        return f"{path.name} {page}"

    resources.add("f:///{path}{?page}", show)
    assert (await read(resources, "f:///x?page=2"))[0].text == "x 2"
    assert (await read(resources, "f:///x"))[0].text == "x 1"


async def test_plain_functions_run_in_a_thread_or_inline(resources: Resources) -> None:
    def where() -> str:
        return "loop" if threading.current_thread() is threading.main_thread() else "thread"

    resources.add("a:thread", where)
    resources.add("a:inline", where, inline=True)
    attempt = resources.handlers()["resources/read"]
    assert attempt is not None
    assert isinstance(attempt(FakeContext({"uri": "a:thread"})), Continuation)
    assert attempt(FakeContext({"uri": "a:inline"})).contents[0].text == "loop"
    assert (await read(resources, "a:thread"))[0].text == "thread"


def test_what_is_covered_and_which_variables_a_template_has(resources: Resources) -> None:
    resources.add("a:1", config)
    resources.add("weather://{city}/{day}", weather)
    assert resources.covers("a:1")
    assert resources.covers("weather://a/b")
    assert not resources.covers("weather://a")
    variables = resources.by_key["weather://{city}/{day}"].arguments.by_name
    assert variables["city"].description == "Where."
    assert "ctx" not in variables


# -- Completion: what may be asked for, and how many values are told -------------------------------------

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
        threads=WorkerThreads(1),
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


def test_registration_refuses_what_cannot_work_completion(completions: Completions) -> None:
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
