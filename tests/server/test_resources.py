"""Resources: what is found under a uri, in which order it is looked for, and what becomes of its value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._server.resources import Resources
from mcp_actors.errors import LocalProtocolError, ResourceNotFound, RpcError
from mcp_actors.types import (
    BlobResourceContents,
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
    with pytest.raises(TypeError, match="must be annotated with str"):
        resources.add("w://{n}", _number)
    with pytest.raises(ValueError, match=r".+"):
        resources.add("w://{city", weather)
    assert len(resources) == 0


def _number(n: int) -> str:
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
    found = resources.variable("weather://{city}/{day}", "city")
    assert found is not None
    assert found.description == "Where."
    assert resources.variable("weather://{city}/{day}", "ctx") is None
    assert resources.variable("a:1", "city") is None
