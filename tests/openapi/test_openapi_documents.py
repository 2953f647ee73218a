"""What is read of a document, what is refused, which schemas models get, and what they are told of responses."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors._schema.validate import compile_schema
from mcp_actors.errors import ApiDocumentError, RpcError, UrlRefused
from mcp_actors.openapi.api import read_api
from mcp_actors.openapi.document import ApiDocument, read_document
from mcp_actors.openapi.schemas import read_schema
from mcp_actors.types import CallToolResult, EmbeddedResource, ImageContent, TextResourceContents
from mcp_transports.auth.fetcher import CheckedTransport

from .test_openapi_requests import Api, body_of, call, document, parameter, serving


def written(schema: Any, *, openapi: str = "3.1.0", sent: bool = True, **schemas: Any) -> dict[str, Any]:
    """The schema that a model gets of one of a document with these others."""
    root = {"openapi": openapi, "components": {"schemas": schemas}}
    found = read_schema(ApiDocument(root, {}, ""), schema, sent=sent)
    compile_schema(found)
    return found


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("openapi", "schema", "found"),
    [
        ("3.0.3", {"type": "string", "nullable": True}, {"anyOf": [{"type": "string"}, NULL]}),
        ("3.1.0", {"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, NULL]}),
        ("3.1.0", {"anyOf": [{"type": "integer"}, NULL]}, {"anyOf": [{"type": "integer"}, NULL]}),
        (
            "3.0.3",
            {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            {"type": "integer", "minimum": 2},
        ),
        ("3.1.0", {"type": "integer", "exclusiveMaximum": 9}, {"type": "integer", "maximum": 8}),
        ("3.1.0", {"type": "number", "exclusiveMinimum": 0}, {"type": "number", "minimum": 0}),
        (
            "3.0.3",
            {"type": "number", "maximum": 1.5, "exclusiveMaximum": True},
            {"type": "number", "maximum": 1.5},
        ),
        ("3.1.0", {"exclusiveMinimum": 2, "minimum": 3}, {"minimum": 3}),
        ("3.1.0", {"type": "integer", "exclusiveMinimum": 2.5}, {"type": "integer", "minimum": 2.5}),
        ("3.1.0", {"const": "a"}, {"enum": ["a"]}),
        ("3.1.0", {"type": "string", "format": "int64"}, {"type": "string"}),
        ("3.1.0", {"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ("3.1.0", {"type": "string", "pattern": "^(?!x)"}, {"type": "string"}),
        ("3.1.0", {"type": "string", "pattern": "^x"}, {"type": "string", "pattern": "^x"}),
        ("3.1.0", {"type": "array", "prefixItems": [{"type": "string"}]}, {"type": "array", "items": {}}),
        ("3.1.0", {"not": {"type": "string"}, "x-more": 1, "externalDocs": {}}, {}),
        ("3.1.0", True, {}),
        ("3.1.0", {"oneOf": [{"type": "string"}]}, {"type": "string"}),
        (
            "3.1.0",
            {"oneOf": [{"type": "string"}, {"type": "integer"}], "discriminator": {"propertyName": "x"}},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        ("3.1.0", {"type": "object", "required": True, "properties": []}, {"type": "object"}),
    ],
)
def test_a_schema_is_written_for_hosts(openapi: str, schema: Any, found: Any) -> None:
    assert written(schema, openapi=openapi) == found


def test_references_and_parts_are_put_together() -> None:
    named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    cat = {"allOf": [ref("Named"), {"properties": {"lives": {"type": "integer"}}, "required": ["lives"]}]}
    assert written(ref("Cat"), Named=named, Cat=cat) == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "lives": {"type": "integer"}},
        "required": ["name", "lives"],
    }


def test_what_contains_itself_ends() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": ref("Tree")}}}
    assert written(ref("Tree"), Tree=tree) == {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"type": "object"}}},
    }
    assert written(ref("A"), A=ref("B"), B=ref("A")) == {}
    assert written(ref("A"), A={"allOf": [ref("A"), {"type": "object"}]}) == {"type": "object"}


def test_a_bomb_of_references_is_written_in_bounded_time_and_length() -> None:
    bomb = {
        f"L{level}": {
            "type": "object",
            "properties": {f"p{each}": ref(f"L{level + 1}") for each in range(50)},
        }
        for level in range(30)
    }
    found = written(ref("L0"), **bomb, L30={"type": "string"})
    assert len(json.dumps(found)) < 60_000
    assert len(found["properties"]) == 50


def test_members_that_are_only_read_are_not_sent_and_the_other_way_round() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "readOnly": True},
            "password": {"type": "string", "writeOnly": True},
            "old": {"type": "string", "deprecated": True},
            "needed": {"type": "string", "deprecated": True},
            "secret": {"type": "string", "x-internal": True},
        },
        "required": ["id", "needed", "password"],
        "additionalProperties": False,
    }
    sent, received = written(schema), written(schema, sent=False)
    assert (list(sent["properties"]), sent["required"]) == (["password", "needed"], ["password", "needed"])
    assert "additionalProperties" in sent
    assert "password" not in received["properties"]
    assert received["required"] == ["id", "needed"]
    assert written({"type": "object", "required": ["a"]}) == {
        "type": "object", "properties": {"a": {}}, "required": ["a"]
    }  # fmt: skip
    assert "additionalProperties" not in received


# -- documents -------------------------------------------------------------------------------------------------------

YAML = """\
openapi: 3.0.3
info: {title: Places, version: 010}
servers: [{url: 'https://example.com'}]
paths:
  /countries:
    get:
      operationId: countries
      parameters:
        - {name: code, in: query, schema: {type: string, enum: [no, se, on]}}
        - {name: since, in: query, schema: {type: string, default: 2020-01-01}}
      responses:
        200: {description: ok}
"""


def test_yaml_is_read_as_openapi_wants_it(tmp_path: Path) -> None:
    file = tmp_path / "api.yaml"
    file.write_text(YAML)
    [outcome] = read_api(file).outcomes
    properties = outcome.operation.input_schema["properties"]
    assert properties["code"]["enum"] == ["no", "se", "on"]
    assert properties["since"]["default"] == "2020-01-01"


# Aliases of aliases: 300 bytes of YAML that are 43 million values.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + last] * 9)}]\n"
    for last, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "it is no JSON"),
        ("a: [", "neither JSON nor YAML"),
        ("a: !!python/object:os.system x", "neither JSON nor YAML"),
        ('{"swagger": "2.0"}', "it is Swagger 2.0: convert it"),
        ('{"openapi": "4.0"}', "no OpenAPI document of version 3.0 or 3.1"),
        ("[]", "no OpenAPI document"),
        ('{"openapi": "3.1.0", "info": {}, "paths": {}}', "say where the API is by base_url="),
        ('{"openapi": "3.1.0", "servers": [{"url": "ftp://x"}]}', "say where the API is by base_url="),
        (BOMB, "more than 5000000 values"),
        ("a: &a\n  b: *a\n", "levels"),
        ("[" * 500 + "]" * 500, "levels"),
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "api"
    file.write_text(text)
    with pytest.raises(ApiDocumentError, match=problem):
        Server.from_openapi(file)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ApiDocumentError, match=r"nowhere\.json: it cannot be read"):
        Server.from_openapi("/nowhere.json")


def test_other_documents_are_read_from_the_folder_of_the_first_one_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "api", tmp_path / "secrets"
    for each in (inside / "more", outside):
        each.mkdir(parents=True)
    (outside / "x.json").write_text('{"type": "string"}')
    (inside / "link.json").symlink_to(outside / "x.json")
    (inside / "more" / "b.json").write_text(
        '{"B": {"type": "object", "properties": {"c": {"$ref": "../c.json#/C"}}}}'
    )
    (inside / "c.json").write_text('{"C": {"type": "integer"}}')
    references = {
        "b": "more/b.json#/B",
        "up": "../secrets/x.json",
        "link": "link.json",
        "file": (outside / "x.json").as_uri(),
        "net": "http://127.0.0.1:9/x.json",
        "gone": "gone.json",
    }
    parameters = [parameter(name, schema={"$ref": each}) for name, each in references.items()]
    (inside / "a.json").write_text(json.dumps(document(("get", "/x", {"parameters": parameters}))))

    def schemas(**options: Any) -> dict[str, Any]:
        [outcome] = read_api(inside / "a.json", **options).outcomes
        found: dict[str, Any] = outcome.operation.input_schema["properties"]
        return found

    found = schemas()
    assert found["b"] == {"type": "object", "properties": {"c": {"type": "integer"}}}
    assert {name: each for name, each in found.items() if name != "b"} == {
        "up": {}, "link": {}, "file": {}, "net": {}, "gone": {}
    }  # fmt: skip
    assert schemas(references=[str(outside)])["up"] == {"type": "string"}


def test_paths_and_operations_may_be_references(tmp_path: Path) -> None:
    (tmp_path / "item.json").write_text('{"get": {"$ref": "get.json"}, "put": {"operationId": "put"}}')
    (tmp_path / "get.json").write_text('{"operationId": "get", "parameters": [{"$ref": "id.json"}]}')
    (tmp_path / "id.json").write_text(json.dumps(parameter("id", "path")))
    described = {**document(), "paths": {"/x/{id}": {"$ref": "item.json"}, "/y": {"$ref": "gone.json"}}}
    (tmp_path / "api.json").write_text(json.dumps(described))
    outcomes = read_api(tmp_path / "api.json").outcomes
    assert [(each.operation.name, each.served_as) for each in outcomes] == [
        ("get", "tool"),
        ("put", "nothing"),
    ]


@pytest.fixture
def site() -> Iterator[dict[str, tuple[int, dict[str, str], bytes]]]:
    """A web site on this machine: path -> status, headers, body. ``""`` has its address."""
    pages: dict[str, tuple[int, dict[str, str], bytes]] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = pages.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        pages[""] = (0, {}, f"http://127.0.0.1:{server.server_address[1]}".encode())
        yield pages
        server.shutdown()
        thread.join()


def test_a_document_of_the_network_leads_to_its_own_origin_alone(
    site: dict[str, tuple[int, dict[str, str], bytes]],
) -> None:
    base = site[""][2].decode()
    parameters = [
        parameter("near", schema={"$ref": "near.json"}),
        parameter("file", schema={"$ref": "file:///etc/hostname"}),
        parameter("far", schema={"$ref": "http://127.0.0.1:1/x.json"}),
        parameter("away", schema={"$ref": "away.json"}),
    ]
    described = document(("get", "/x", {"parameters": parameters}), servers=[{"url": "/v1"}])
    site["/api/openapi.json"] = (200, {}, json.dumps(described).encode())
    site["/api/near.json"] = (200, {}, b'{"type": "integer"}')
    site["/api/away.json"] = (302, {"Location": "http://127.0.0.1:1/"}, b"")
    [outcome] = read_api(f"{base}/api/openapi.json").outcomes
    assert outcome.operation.input_schema["properties"] == {
        "near": {"type": "integer"}, "file": {}, "far": {}, "away": {}
    }  # fmt: skip
    with pytest.raises(ApiDocumentError, match="HTTP 404"):
        read_api(f"{base}/nothing")


async def test_an_api_that_a_document_of_the_network_names_must_be_global(
    site: dict[str, tuple[int, dict[str, str], bytes]],
) -> None:
    base = site[""][2].decode()
    site["/v1/x"] = (200, {"Content-Type": "application/json"}, b'{"a": 1}')
    for name, url in {"own": "/v1", "inner": "https://127.0.0.1:9", "plain": "http://example.com"}.items():
        described = document(("get", "/x", {}), servers=[{"url": url}])
        site[f"/{name}.json"] = (200, {}, json.dumps(described).encode())

    async def result(name: str, **options: Any) -> CallToolResult:
        async with Client(Server.from_openapi(f"{base}/{name}.json", retries=0, **options)) as client:
            found: CallToolResult = await client.call_tool("get_x")
            return found

    assert (await result("own")).data == {"a": 1}
    assert "has a loopback address" in (await result("inner")).text
    assert "has to say https" in (await result("plain")).text
    assert (await result("inner", base_url=f"{base}/v1")).data == {"a": 1}


async def test_a_checked_transport_connects_to_global_addresses_alone() -> None:
    async with httpx2.AsyncClient(transport=CheckedTransport(10)) as client:
        for url in (
            "https://localhost/",
            "https://[::1]/",
            "https://169.254.169.254/latest",
            "https://10.0.0.1/",
        ):
            with pytest.raises(UrlRefused):
                await client.get(url)
        with pytest.raises(UrlRefused):
            await client.get("http://example.com/")


# -- what becomes of operations ------------------------------------------------------------------------------------


def test_what_becomes_of_each_operation() -> None:
    described = document(
        ("get", "/a", {"tags": ["admin"]}),
        ("get", "/old", {"deprecated": True}),
        ("get", "/inner", {"x-internal": True}),
        ("head", "/a", {}),
        ("get", "/u/{id}", {"parameters": [parameter("id", "path")]}),
        ("post", "/u/{id}", {"parameters": [parameter("id", "path")]}),
        ("get", "/broken/{id}", {}),
        ("get", "/style", {"parameters": [parameter("x", style="matrix")]}),
    )
    assert [(each.served_as, each.reason) for each in read_api(described).outcomes] == [
        ("tool", ""),
        ("nothing", "HEAD has nothing to tell a model"),
        ("nothing", "it is deprecated"),
        ("nothing", "it is internal"),
        ("tool", ""),
        ("tool", ""),
        ("nothing", "its path has {id}, of which it says nothing"),
        ("nothing", "its parameter x has the style matrix, which there is not in query"),
    ]
    routes = {"tag:admin": "nothing", "GET /old": "tool", "* /u/*": "resource"}
    found = read_api(described, routes=routes).outcomes  # type: ignore[arg-type]
    assert [each.served_as for each in found][:6] == [
        "nothing",
        "nothing",
        "tool",
        "nothing",
        "resource",
        "nothing",
    ]


@pytest.mark.parametrize("routes", [{"GET /": "toool"}, ["GET /"], "tool"])
def test_routes_that_cannot_be_meant(routes: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="routes"):
        Server.from_openapi(document(("get", "/x", {})), routes=routes)


async def test_a_resource_is_read_by_its_uri() -> None:
    api = Api(httpx2.Response(200, text="hello"), httpx2.Response(404), httpx2.Response(500, text="broken"))
    operation = {
        "parameters": [parameter("user-id", "path"), parameter("lang", required=True), parameter("more")]
    }
    described = document(("get", "/users/{user-id}/page", operation))
    async with serving(api, described, routes={"GET *": "resource"}) as client:
        [template] = [each async for each in client.resource_templates()]
        assert template.uri_template == "shop://users/{user_id}/page{?lang}"
        [contents] = (await client.read_resource("shop://users/7/page?lang=en")).contents
        assert isinstance(contents, TextResourceContents)
        assert contents.text == "hello"
        for text in ("resource not found", "HTTP 500 Internal Server Error: broken"):
            with pytest.raises(RpcError, match=text):
                await client.read_resource("shop://users/7/page?lang=en")
    assert str(api.asked[0].url) == "https://api.example.com/v1/users/7/page?lang=en"


# -- what the model is told ----------------------------------------------------------------------------------------


def answering(schema: Any, status: str = "200") -> dict[str, Any]:
    return {"responses": {status: {"description": "", "content": {"application/json": {"schema": schema}}}}}


COUNT = answering({"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]})


async def test_a_response_that_fits_is_structured() -> None:
    api = Api(httpx2.Response(200, json={"count": 3, "new": True}))
    result = await call(api, document(("get", "/x", COUNT)), {})
    assert result.structured_content == {"count": 3, "new": True}
    assert result.meta is not None
    assert result.meta["mcp-actors/http-status"] == 200
    assert not result.is_error


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx2.Response(200, json={"count": "many"}), ("count: expected integer, got string", '"many"')),
        (httpx2.Response(202, text="later"), ("HTTP 202 Accepted", "its body is no JSON", "later")),
        (httpx2.Response(204), ("HTTP 204 No Content", "without a body")),
    ],
)
async def test_a_response_that_does_not_fit_is_still_returned(answer: httpx2.Response, words: Any) -> None:
    result = await call(Api(answer), document(("get", "/x", COUNT)), {})
    assert result.is_error
    assert "the call was carried out" in result.text
    assert all(each in result.text for each in words)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (httpx2.Response(404, json={"message": "No such pet"}), "HTTP 404 Not Found: No such pet"),
        (
            httpx2.Response(422, json={"title": "Bad", "detail": "age is negative"}),
            'HTTP 422 Unprocessable Entity: age is negative {"title":"Bad"}',
        ),
        (httpx2.Response(400, json={"error": {"code": 7}}), 'HTTP 400 Bad Request: {"error":{"code":7}}'),
        (httpx2.Response(500, html="<title>Oops</title><p>stack"), "HTTP 500 Internal Server Error: Oops"),
        (httpx2.Response(503), "HTTP 503 Service Unavailable"),
        (
            httpx2.Response(429, headers={"retry-after": "60"}),
            "HTTP 429 Too Many Requests (it asks to wait 60 s)",
        ),
    ],
)
async def test_a_failure_has_the_words_of_the_api(answer: httpx2.Response, text: str) -> None:
    result = await call(Api(answer), document(("get", "/x", COUNT)), {}, retries=0)
    assert (result.is_error, result.text) == (True, text)


async def test_the_words_of_an_api_are_bounded() -> None:
    result = await call(Api(httpx2.Response(400, text="x" * 100_000)), document(("get", "/x", {})), {})
    assert len(result.text) < 2_100


async def test_a_link_to_the_next_page_is_told() -> None:
    link = '<https://api.example.com/v1/x?page=1>; rel="first", <https://api.example.com/v1/x?page=3&n=5>; rel="next"'
    operation = {"parameters": [parameter("page", schema={"type": "integer"}), parameter("n")]}
    api = Api(httpx2.Response(200, json=[1], headers={"link": link}))
    async with serving(api, document(("get", "/x", operation))) as client:
        [tool] = [each async for each in client.tools()]
        result = await client.call_tool("get_x", {"page": 2, "n": "5"})
    assert "ask for another one with page" in (tool.description or "")
    assert result.text == "[1]\nThere is a next page: call again with page=3."


async def test_bytes_become_content_of_their_kind() -> None:
    image = httpx2.Response(200, content=b"\x89P", headers={"content-type": "image/png"})
    archive = httpx2.Response(
        200,
        content=b"PK\0",
        headers={"content-type": "application/zip", "content-disposition": 'attachment; filename="a b.zip"'},
    )
    [shown] = (await call(Api(image), document(("get", "/x", {})), {})).content
    assert isinstance(shown, ImageContent)
    assert shown.to_bytes() == b"\x89P"
    [embedded] = (await call(Api(archive), document(("get", "/x", {})), {})).content
    assert isinstance(embedded, EmbeddedResource)
    assert embedded.resource.uri == "attachment:a_b.zip"


class Chunks(httpx2.AsyncByteStream):
    """A body that comes in chunks, and says when it was closed."""

    def __init__(self, chunks: list[bytes], *, ends: bool = True) -> None:
        self.chunks = chunks
        self.ends = ends
        self.closed = trio.Event()
        self.began = trio.Event()

    async def __aiter__(self) -> Any:
        for each in self.chunks:
            yield each
            self.began.set()
            await trio.lowlevel.checkpoint()
        if not self.ends:
            await trio.sleep_forever()

    async def aclose(self) -> None:
        self.closed.set()


async def test_a_download_reports_progress_and_has_a_bound() -> None:
    size = 256 * 1024
    seen: list[tuple[float, float | None]] = []
    headers = {"content-length": str(4 * size), "content-type": "text/plain"}

    def stream(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=headers, stream=Chunks([b"x" * size] * 4))

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(stream))
    described = document(("get", "/x", {}))
    async with Client(Server.from_openapi(described, client=client)) as caller:
        result = await caller.call_tool(
            "get_x", on_progress=lambda report: seen.append((report.progress, report.total))
        )
    assert len(result.text) == 4 * size
    assert seen[-1] == (4 * size, 4 * size)
    async with Client(Server.from_openapi(described, client=client, max_bytes=2 * size)) as caller:
        result = await caller.call_tool("get_x")
    assert result.is_error
    assert f"more than {2 * size} bytes" in result.text


async def test_a_packed_body_is_unpacked_up_to_the_bound() -> None:
    gzip = __import__("gzip")

    def stream(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["accept-encoding"] == "gzip"
        packed = gzip.compress(b"1" * 10_000_000)
        return httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=Chunks([packed]))

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(stream))
    result = await call_with(client, max_bytes=1_000_000)
    assert "more than 1000000 bytes" in result.text
    assert len((await call_with(client, max_bytes=10_000_000)).text) == 10_000_000


async def call_with(client: httpx2.AsyncClient, **options: Any) -> CallToolResult:
    async with Client(Server.from_openapi(document(("get", "/x", {})), client=client, **options)) as caller:
        result: CallToolResult = await caller.call_tool("get_x")
        return result


async def test_a_cancelled_call_closes_its_response() -> None:
    body = Chunks([b"x"], ends=False)
    client = httpx2.AsyncClient(
        transport=httpx2.MockTransport(lambda request: httpx2.Response(200, stream=body))
    )
    async with Client(Server.from_openapi(document(("get", "/x", {})), client=client)) as caller:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(caller.call_tool, "get_x")
            await body.began.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(30):
            await body.closed.wait()


async def test_everything_is_valid_for_hosts_and_the_body_of_a_patch_is_one_argument() -> None:
    described = document(("patch", "/x", body_of({"type": "array"}, "application/json-patch+json")))
    api = Api()
    await call(api, described, {"body": [{"op": "test"}]})
    assert api.asked[0].headers["content-type"] == "application/json-patch+json"
    assert isinstance(read_document(described), ApiDocument)
