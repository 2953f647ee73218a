"""What is sent to an API: names, schemas, every style of parameter, every kind of body, credentials, repetitions."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import Message
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client, Context, Server
from mcp_actors.openapi import SecurityScheme
from mcp_actors.types import CallToolResult


def document(*paths: tuple[str, str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A document with these operations: (method, path, operation)."""
    found: dict[str, Any] = {}
    for method, path, operation in paths:
        found.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "7"},
        "servers": [{"url": "https://api.example.com/v1"}],
        "paths": found,
        **more,
    }


def parameter(name: str, place: str = "query", schema: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": schema or {"type": "string"}, **more}


class Api:
    """An API that answers as it is told, and keeps what it was asked."""

    def __init__(self, *answers: httpx2.Response | type[httpx2.TransportError]) -> None:
        self.asked: list[httpx2.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        answer = self._answers.pop(0) if self._answers else httpx2.Response(200, json={"ok": True})
        if isinstance(answer, type):
            raise answer("not now")
        return answer

    @property
    def line(self) -> str:
        """Method, path and query of the only request."""
        [request] = self.asked
        return f"{request.method} {request.url.raw_path.decode()}"

    @property
    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self))


@asynccontextmanager
async def serving(api: Api, described: Any, **options: Any) -> AsyncGenerator[Client]:
    async with Client(Server.from_openapi(described, client=api.client, **options)) as client:
        yield client


async def call(api: Api, described: Any, arguments: dict[str, Any], **options: Any) -> CallToolResult:
    """Calls the only tool of a document."""
    async with serving(api, described, **options) as client:
        [tool] = [each async for each in client.tools()]
        result: CallToolResult = await client.call_tool(tool.name, arguments)
        return result


async def test_an_operation_is_a_tool_with_its_names_hints_and_schema() -> None:
    operation = {
        "operationId": "pets.show",
        "summary": "Show a pet",
        "description": "Shows **one** pet. See [the guide](https://example.com).",
        "parameters": [parameter("petId", "path", {"type": "integer"}), parameter("filter[age]")],
    }
    async with serving(Api(), document(("get", "/pets/{petId}", operation))) as client:
        [tool] = [each async for each in client.tools()]
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("Shop", "7")
    assert (tool.name, tool.title) == ("pets_show", "Show a pet")
    assert tool.description == "Show a pet. Shows one pet. See the guide."
    assert tool.input_schema == {
        "type": "object",
        "properties": {"petId": {"type": "integer"}, "filter_age": {"type": "string"}},
        "required": ["petId"],
        "additionalProperties": False,
    }
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint is True
    assert tool.annotations.idempotent_hint is True
    assert tool.annotations.destructive_hint is False


@pytest.mark.parametrize(
    ("method", "destructive", "idempotent"),
    [("post", None, False), ("put", True, True), ("patch", True, False), ("delete", True, True)],
)
async def test_the_method_says_what_a_call_may_change(
    method: str, destructive: Any, idempotent: bool
) -> None:
    async with serving(Api(), document((method, "/x", {}))) as client:
        [tool] = [each async for each in client.tools()]
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint is False
    assert tool.annotations.destructive_hint is destructive
    assert tool.annotations.idempotent_hint is idempotent


async def test_names_are_unique_and_short_enough_for_hosts_and_depend_on_the_document_alone() -> None:
    long = "a" * 80
    described = document(
        ("get", f"/{long}/x", {}),
        ("get", f"/{long}/y", {}),
        ("get", "/1", {"operationId": "1.st/thing"}),
        ("get", "/2", {"operationId": "same"}),
        ("get", "/3", {"operationId": "SAME"}),
        ("get", "/old", {"operationId": "same", "deprecated": True}),
    )
    async with serving(Api(), described) as client:
        first = [each.name async for each in client.tools()]
    async with serving(Api(), described, routes={"GET /2": "nothing"}) as client:
        second = [each.name async for each in client.tools()]
    assert len({each.lower() for each in first}) == 5
    assert all(len(each) <= 64 and (each[0].isalpha() or each[0] == "_") for each in first)
    assert first[2:4] == ["_1_st_thing", "same"]
    assert [each for each in first if each != "same"] == second


# OpenAPI 3.1, Style Examples: the values of its table, in each place.
LIST = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}


@pytest.mark.parametrize(
    ("style", "explode", "value", "sent"),
    [
        ("matrix", False, "blue", ";color=blue"),
        ("matrix", False, LIST, ";color=blue,black,brown"),
        ("matrix", False, OBJECT, ";color=R,100,G,200,B,150"),
        ("matrix", True, LIST, ";color=blue;color=black;color=brown"),
        ("matrix", True, OBJECT, ";R=100;G=200;B=150"),
        ("label", False, "blue", ".blue"),
        ("label", False, LIST, ".blue,black,brown"),
        ("label", True, LIST, ".blue.black.brown"),
        ("label", True, OBJECT, ".R=100.G=200.B=150"),
        ("simple", False, LIST, "blue,black,brown"),
        ("simple", False, OBJECT, "R,100,G,200,B,150"),
        ("simple", True, OBJECT, "R=100,G=200,B=150"),
        ("simple", False, "a/b c?d", "a%2Fb%20c%3Fd"),
        ("simple", False, True, "true"),
    ],
)
async def test_styles_in_the_path(style: str, explode: bool, value: Any, sent: str) -> None:
    api = Api()
    operation = {
        "parameters": [parameter("color", "path", {"type": ["string", "array", "object", "boolean"]})]
    }
    operation["parameters"][0] |= {"style": style, "explode": explode}
    await call(api, document(("get", "/x/{color}", operation)), {"color": value})
    assert api.line == f"GET /v1/x/{sent}"


@pytest.mark.parametrize(
    ("given", "value", "sent"),
    [
        ({}, "blue", "color=blue"),
        ({}, LIST, "color=blue&color=black&color=brown"),
        ({}, OBJECT, "R=100&G=200&B=150"),
        ({"explode": False}, LIST, "color=blue,black,brown"),
        ({"explode": False}, OBJECT, "color=R,100,G,200,B,150"),
        ({"style": "spaceDelimited", "explode": False}, LIST, "color=blue%20black%20brown"),
        ({"style": "pipeDelimited", "explode": False}, LIST, "color=blue%7Cblack%7Cbrown"),
        ({"style": "pipeDelimited", "explode": False}, OBJECT, "color=R%7C100%7CG%7C200%7CB%7C150"),
        (
            {"style": "deepObject", "explode": True},
            OBJECT,
            "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150",
        ),
        ({"style": "deepObject"}, {"a": {"b": [1]}}, "color%5Ba%5D%5Bb%5D%5B0%5D=1"),
        ({}, "a&b=c d/e", "color=a%26b%3Dc%20d%2Fe"),
        ({"allowReserved": True}, "a&b/c:d", "color=a%26b/c:d"),
        ({}, 1.5, "color=1.5"),
        ({}, None, ""),
    ],
)
async def test_styles_in_the_query(given: dict[str, Any], value: Any, sent: str) -> None:
    api = Api()
    operation = {"parameters": [{"name": "color", "in": "query", "schema": {}, **given}]}
    await call(api, document(("get", "/x", operation)), {"color": value})
    assert api.line == "GET /v1/x" + (f"?{sent}" if sent else "")


async def test_parameters_with_a_media_type_are_sent_as_json() -> None:
    api = Api()
    operation = {
        "parameters": [{"name": "where", "in": "query", "content": {"application/json": {"schema": {}}}}]
    }
    await call(api, document(("get", "/x", operation)), {"where": {"a": [1]}})
    assert api.line == "GET /v1/x?where=%7B%22a%22%3A%5B1%5D%7D"


async def test_headers_and_cookies() -> None:
    api = Api()
    operation = {
        "parameters": [
            parameter("X-Colors", "header", {"type": "array", "items": {"type": "string"}}),
            parameter("X-Object", "header", {"type": "object"}, explode=True),
            parameter("Authorization", "header"),
            parameter("session", "cookie"),
            parameter("many", "cookie", {"type": "array", "items": {"type": "integer"}}, explode=False),
        ]
    }
    async with serving(api, document(("get", "/x", operation))) as client:
        [tool] = [each async for each in client.tools()]
        # OpenAPI, Parameter Object: such a definition is ignored.
        assert "Authorization" not in tool.input_schema["properties"]
        arguments = {"X-Colors": LIST, "X-Object": {"a": 1, "b": 2}, "session": "a;b", "many": [1, 2]}
        await client.call_tool(tool.name, arguments)
        broken = await client.call_tool(tool.name, {"X-Colors": ["a\r\nX-Evil: 1"]})
        beyond = await client.call_tool(tool.name, {"X-Colors": ["Ĝ"]})
        await client.call_tool(tool.name, {"X-Colors": ["Ö"]})
    request, latin = api.asked
    assert (b"x-colors", b"\xd6") in [(name.lower(), value) for name, value in latin.headers.raw]
    assert beyond.is_error
    assert request.headers["x-colors"] == "blue,black,brown"
    assert request.headers["x-object"] == "a=1,b=2"
    assert request.headers["cookie"] == "session=a%3Bb; many=1,2"
    assert broken.is_error
    assert "line break" in broken.text


@pytest.mark.parametrize("value", ["", ".", "..", "../admin", "a/../../b", "..\\x"])
async def test_a_value_never_leads_to_another_path(value: str) -> None:
    api = Api()
    result = await call(
        api, document(("get", "/x/{id}/y", {"parameters": [parameter("id", "path")]})), {"id": value}
    )
    assert result.is_error
    assert not api.asked


def body_of(
    schema: Any, media_type: str = "application/json", required: bool = True, **more: Any
) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {media_type: {"schema": schema, **more}}}}


PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "id": {"type": "integer", "readOnly": True},
    },
    "required": ["name", "id"],
}


async def test_the_members_of_a_body_are_arguments() -> None:
    api = Api()
    operation = {"parameters": [parameter("id", "path")], **body_of(PET)}
    async with serving(api, document(("put", "/pets/{id}", operation))) as client:
        [tool] = [each async for each in client.tools()]
        await client.call_tool(tool.name, {"id": "7", "name": "Rex"})
    assert list(tool.input_schema["properties"]) == ["id", "name", "age"]
    assert tool.input_schema["required"] == ["id", "name"]
    assert api.asked[0].content == b'{"name":"Rex"}'
    assert api.asked[0].headers["content-type"] == "application/json"


async def test_equal_names_in_different_places_are_told_apart() -> None:
    api = Api()
    operation = {
        "parameters": [parameter("name", "path"), parameter("name", "query")],
        **body_of({"type": "object", "properties": {"name": {"type": "string"}}}),
    }
    await call(
        api, document(("post", "/x/{name}", operation)), {"name": "a", "name_query": "b", "name_body": "c"}
    )
    assert api.line == "POST /v1/x/a?name=b"
    assert api.asked[0].content == b'{"name":"c"}'


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "x"),
    ],
)
async def test_a_body_without_known_members_is_one_argument(schema: Any, value: Any) -> None:
    api = Api()
    await call(api, document(("post", "/x", body_of(schema))), {"body": value})
    assert httpx2.Response(200, content=api.asked[0].content).json() == value


async def test_an_optional_body_is_left_out() -> None:
    api = Api()
    await call(api, document(("post", "/x", body_of(PET, required=False))), {})
    assert api.asked[0].content == b""
    assert "content-type" not in api.asked[0].headers


async def test_a_form() -> None:
    api = Api()
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "deep": {"type": "object", "properties": {"a": {"type": "integer"}}},
            "json": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
    encoding = {"deep": {"style": "deepObject", "explode": True}, "tags": {"style": "form", "explode": False}}
    operation = body_of(schema, "application/x-www-form-urlencoded", encoding=encoding)
    arguments = {"name": "a b&c", "tags": ["x", "y"], "deep": {"a": 1}, "json": {"a": 2}}
    await call(api, document(("post", "/x", operation)), arguments)
    sent = b"name=a%20b%26c&tags=x,y&deep%5Ba%5D=1&json=%7B%22a%22%3A2%7D"
    assert api.asked[0].content == sent
    assert api.asked[0].headers["content-type"] == "application/x-www-form-urlencoded"


async def test_an_empty_form_is_no_body() -> None:
    api = Api()
    await call(
        api, document(("get", "/x", body_of({"properties": {}}, "application/x-www-form-urlencoded"))), {}
    )
    assert api.asked[0].content == b""


def parts_of(request: httpx2.Request) -> list[Message]:
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    parts = message_from_bytes(head + request.content).get_payload()
    assert isinstance(parts, list)
    return [each for each in parts if isinstance(each, Message)]


async def test_files_are_parts_of_a_multipart_body() -> None:
    api = Api()
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "meta": {"type": "object", "properties": {"a": {"type": "integer"}}},
            "image": {"type": "string", "format": "binary"},
            "more": {
                "type": "array",
                "items": {"type": "string", "contentMediaType": "application/octet-stream"},
            },
        },
        "required": ["image"],
    }
    operation = body_of(schema, "multipart/form-data")
    arguments = {
        "title": "Ä",
        "meta": {"a": 1},
        "image": {"base64": "iVA=", "filename": 'x"\r\n.png', "media_type": "image/png"},
        "more": [{"text": "one"}, {"text": "two"}],
    }
    await call(api, document(("post", "/x", operation)), arguments)
    title, meta, image, *more = parts_of(api.asked[0])
    assert title.get_payload(decode=True) == "Ä".encode()
    assert (meta.get_content_type(), meta.get_payload(decode=True)) == ("application/json", b'{"a":1}')
    assert (image.get_content_type(), image.get_filename()) == ("image/png", "x___.png")
    assert image.get_payload(decode=True) == b"\x89P"
    assert [each.get_payload(decode=True) for each in more] == [b"one", b"two"]


async def test_a_body_of_bytes_and_one_of_text() -> None:
    api = Api()
    await call(
        api,
        document(("post", "/x", body_of({}, "image/*"))),
        {"body": {"base64": "iVA=", "media_type": "image/png"}},
    )
    await call(api, document(("post", "/x", body_of({}, "text/plain"))), {"body": "Ä"})
    assert [each.content for each in api.asked] == [b"\x89P", "Ä".encode()]
    assert [each.headers["content-type"] for each in api.asked] == ["image/png", "text/plain; charset=utf-8"]


async def test_a_file_that_is_no_base64_is_the_models_mistake() -> None:
    api = Api()
    result = await call(
        api, document(("post", "/x", body_of({}, "application/zip"))), {"body": {"base64": "?"}}
    )
    assert result.is_error
    assert "not Base64" in result.text
    assert not api.asked


# -- credentials -----------------------------------------------------------------------------------------------------

SCHEMES = {
    "token": {"type": "http", "scheme": "bearer"},
    "login": {"type": "oauth2", "flows": {}},
    "basic": {"type": "http", "scheme": "basic"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
}


@pytest.mark.parametrize(
    ("name", "credential", "find"),
    [
        ("token", "s3cret", lambda request: request.headers["authorization"] == "Bearer s3cret"),
        ("login", "s3cret", lambda request: request.headers["authorization"] == "Bearer s3cret"),
        (
            "basic",
            ("ann", "s3cret"),
            lambda request: request.headers["authorization"] == "Basic YW5uOnMzY3JldA==",
        ),
        ("basic", "ann:s3cret", lambda request: request.headers["authorization"] == "Basic YW5uOnMzY3JldA=="),
        ("header", "s3cret", lambda request: request.headers["x-key"] == "s3cret"),
        ("query", "s3cret", lambda request: request.url.query == b"a=1&key=s3cret"),
        ("cookie", "s3cret", lambda request: request.headers["cookie"] == "sid=s3cret"),
    ],
)
async def test_credentials_go_where_the_scheme_says_and_into_no_log(
    name: str,
    credential: Any,
    find: Callable[[httpx2.Request], bool],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    api = Api(httpx2.Response(401, json={"message": "no"}))
    caplog.set_level(logging.DEBUG)
    seen: list[SecurityScheme] = []

    async def credentials(ctx: Context, scheme: SecurityScheme) -> Any:
        seen.append(scheme)
        return credential

    described = document(
        ("get", "/x", {"parameters": [parameter("a"), parameter("X-Key", "header"), parameter("key")]}),
        components={"securitySchemes": SCHEMES},
        security=[{name: ["read"]}],
    )
    result = await call(api, described, {"a": "1"}, credentials=credentials)
    assert [(each.name, each.scopes) for each in seen] == [(name, ("read",))]
    assert find(api.asked[0])
    assert result.is_error
    shown = result.text + caplog.text + "".join(capfd.readouterr())
    assert "s3cret" not in shown
    assert "YW5uOnMzY3JldA" not in shown


@pytest.mark.parametrize("both", [["header", "token"], ["token", "header"]])
async def test_the_first_alternative_that_the_caller_has_all_of_is_used(both: list[str]) -> None:
    api = Api()
    had = {"header": "k", "token": "t"}
    described = document(
        ("get", "/x", {"security": [{"query": []}, {name: [] for name in both}]}),
        components={"securitySchemes": SCHEMES},
    )
    await call(api, described, {}, credentials=lambda ctx, scheme: had.get(scheme.name))
    assert (api.asked[0].headers["x-key"], api.asked[0].headers["authorization"]) == ("k", "Bearer t")
    refused = await call(api, described, {}, credentials=lambda ctx, scheme: None)
    assert refused.is_error
    assert f"no credentials for query or {' and '.join(both)}" in refused.text
    anonymous = document(
        ("get", "/x", {"security": [{"query": []}, {}]}), components={"securitySchemes": SCHEMES}
    )
    await call(api, anonymous, {}, credentials=lambda ctx, scheme: None)
    assert len(api.asked) == 2


async def test_alternatives_that_are_required_parameters_are_wanted_together() -> None:
    api = Api()
    required = [{**parameter("key"), "required": True}, {**parameter("X-Key", "header"), "required": True}]
    described = document(
        ("get", "/x", {"parameters": required, "security": [{"query": []}, {"header": []}]}),
        components={"securitySchemes": SCHEMES},
    )
    await call(api, described, {}, credentials=lambda ctx, scheme: f"of {scheme.name}")
    assert (api.asked[0].url.params["key"], api.asked[0].headers["x-key"]) == ("of query", "of header")
    refused = await call(api, described, {}, credentials=lambda ctx, scheme: {"query": "k"}.get(scheme.name))
    assert "no credentials for query and header" in refused.text


async def test_further_headers_are_those_of_the_call() -> None:
    api = Api()
    described = document(("get", "/x", {}))
    await call(api, described, {}, headers=lambda ctx: {"X-Tenant": ctx.method})
    assert api.asked[0].headers["x-tenant"] == "tools/call"


async def test_cookies_of_one_call_are_not_those_of_the_next() -> None:
    api = Api(httpx2.Response(200, json=1, headers={"set-cookie": "sid=of-ann"}))
    async with serving(api, document(("get", "/x", {}))) as client:
        await client.call_tool("get_x")
        await client.call_tool("get_x")
    assert [each.headers.get("cookie") for each in api.asked] == [None, None]


# -- where requests go, and how often ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, "https://eu.example.com/v2/x"),
        ({"variables": {"region": "us"}}, "https://us.example.com/v2/x"),
        ({"base_url": "http://127.0.0.1:9/api/"}, "http://127.0.0.1:9/api/x"),
    ],
)
async def test_servers_with_variables(options: dict[str, Any], sent: str) -> None:
    api = Api()
    server = {
        "url": "https://{region}.example.com/v2",
        "variables": {"region": {"default": "eu", "enum": ["eu", "us"]}},
    }
    await call(api, document(("get", "/x", {}), servers=[server]), {}, **options)
    assert str(api.asked[0].url) == sent


async def test_an_operation_may_have_a_server_of_its_own() -> None:
    api = Api()
    described = document(("get", "/x", {"servers": [{"url": "https://uploads.example.com"}]}))
    await call(api, described, {})
    assert str(api.asked[0].url) == "https://uploads.example.com/x"


@pytest.mark.parametrize(
    ("method", "answers", "times", "failed"),
    [
        ("get", [httpx2.Response(503), httpx2.Response(429, headers={"retry-after": "7"})], 3, False),
        ("get", [httpx2.ReadError, httpx2.RemoteProtocolError], 3, False),
        ("get", [httpx2.Response(500)], 1, True),
        ("get", [httpx2.Response(503)] * 3, 3, True),
        ("get", [httpx2.Response(429, headers={"retry-after": "3600"})], 1, True),
        ("delete", [httpx2.ReadError], 2, False),
        ("post", [httpx2.Response(503)], 1, True),
        ("post", [httpx2.ReadError], 1, True),
        ("post", [httpx2.ConnectError], 2, False),
    ],
)
async def test_only_what_may_be_repeated_is_repeated(
    method: str, answers: list[Any], times: int, failed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    api = Api(*answers)
    result = await call(api, document((method, "/x", {})), {})
    assert (len(api.asked), bool(result.is_error)) == (times, failed)


async def test_a_call_has_an_end(autojump_clock: trio.testing.MockClock) -> None:
    async def silent(request: httpx2.Request) -> httpx2.Response:
        await trio.sleep_forever()
        raise AssertionError

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(silent))
    server = Server.from_openapi(document(("get", "/x", {})), client=client, timeout=5)
    async with Client(server) as caller:
        result = await caller.call_tool("get_x")
    assert result.is_error
    assert "no whole answer within 5 s" in result.text


async def test_a_redirection_is_followed_within_one_origin_and_not_beyond() -> None:
    api = Api(
        httpx2.Response(302, headers={"location": "/v1/y"}),
        httpx2.Response(302, headers={"location": "https://evil.example.com/"}),
    )
    result = await call(api, document(("get", "/x", {})), {}, headers=lambda ctx: {"Authorization": "secret"})
    assert [each.url.path for each in api.asked] == ["/v1/x", "/v1/y"]
    assert "HTTP 302 Found, location: https://evil.example.com/" in result.text


@pytest.mark.parametrize("charset", ["latin-1", "no-such", "idna", "undefined", "punycode", "zlib"])
async def test_text_of_any_charset_is_read(charset: str) -> None:
    kind = f"text/plain; charset={charset}"
    api = Api(httpx2.Response(200, content=b"caf\xe9", headers={"content-type": kind}))
    result = await call(api, document(("get", "/x", {})), {})
    assert result.text == ("café" if charset == "latin-1" else "caf�")


TEXTS = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("path", "parameters", "arguments"),
    [
        ("/a/{b}/c", [parameter("b", "path")], {"b": ".."}),
        ("/a/{b}{d}/c", [parameter("b", "path"), parameter("d", "path")], {"b": "%2e", "d": "."}),
        ("/a/{b}.", [parameter("b", "path")], {"b": "."}),
        ("/a/{b}", [parameter("b", "path", TEXTS, style="label", explode=True)], {"b": ["", ""]}),
        ("/a/x{b}/c", [parameter("b", "path")], {"b": "/../.."}),
    ],
)
async def test_no_argument_leads_out_of_its_path(
    path: str, parameters: list[Any], arguments: dict[str, Any]
) -> None:
    api = Api()
    result = await call(api, document(("get", path, {"parameters": parameters})), arguments)
    assert result.is_error
    assert "a part of a path cannot be '.' or '..'" in result.text
    assert api.asked == []
