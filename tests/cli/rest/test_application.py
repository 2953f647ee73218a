"""The REST API of a server: answers, failures, events, the document, keys, origins, and clients that leave."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import trio

from mcp_actors import App, Client, Context, Server
from mcp_actors.cli.credentials import ApiKeys, new_key
from mcp_actors.cli.rest import application
from mcp_actors.cli.rest.application import RestApplication
from mcp_actors.errors import MethodNotFound, Overloaded, RpcError
from mcp_actors.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_transports.http.server import HttpServerTransport
from tests.transports.http.raw import RawPeer, eventually


class Rest:
    """A server at a URL, as a REST API, and what its tools went through."""

    def __init__(self) -> None:
        self.server = server = Server("shop", version="7", instructions="Sells books.")
        self.http = httpx2.AsyncClient(timeout=30)
        self.url = ""
        self.api = RestApplication()
        self.begun = trio.Event()
        self.ends: list[str] = []

        @server.tool
        def add(a: int, b: int = 2) -> int:
            return a + b

        @server.tool
        def fails() -> str:
            raise ValueError("out of paper")

        @server.tool
        async def steps(ctx: Context, count: int = 2) -> str:
            for each in range(count):
                await ctx.progress(each + 1, count, f"step {each + 1}")
            return "done"

        @server.tool
        async def waits() -> None:
            self.begun.set()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                self.ends.append("cancelled")
                raise

        @server.resource("note://one")
        def note() -> str:
            return "hello"

        @server.resource("page://{name}")
        def page(name: str) -> str:
            return name

        @server.prompt
        def greet(name: str) -> str:
            return f"Greet {name}"

    async def call(self, path: str, arguments: Any = None, **headers: str) -> tuple[int, Any]:
        answer = await self.http.post(f"{self.url}{path}", json=arguments or {}, headers=headers)
        return answer.status_code, answer.json()

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        answer = await self.http.get(f"{self.url}{path}", headers=headers)
        return answer.status_code, answer.json()


@asynccontextmanager
async def served(rest: Rest, keys: Any = None, **options: Any) -> AsyncIterator[Rest]:
    rest.api = RestApplication(keys)
    settings = {"routes": {"/": rest.api}, "authenticate": keys, **options}
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", **settings)
    async with trio.open_nursery() as nursery, rest.http:
        url, _ = await nursery.start(rest.server.serve, transport, rest.api)
        rest.url = url.removesuffix("/mcp")
        yield rest
        nursery.cancel_scope.cancel()


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with served(Rest()) as found:
        yield found


# -- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/add", "/tools/add", "/tools/add/"])
async def test_a_tool_is_called_by_its_name(rest: Rest, path: str) -> None:
    assert await rest.call(path, {"a": 1, "b": 3}) == (200, 4)


async def test_arguments_that_can_be_meant_in_one_way_are_repaired(rest: Rest) -> None:
    assert await rest.call("/add", {"a": "40"}) == (200, 42)


async def test_a_call_without_a_body_has_no_arguments(rest: Rest) -> None:
    answer = await rest.http.post(f"{rest.url}/steps")
    assert (answer.status_code, answer.json()) == (200, "done")


CONTENT: dict[str, tuple[list[Any], Any]] = {
    "nothing": ([], []),
    "text": ([TextContent("a")], "a"),
    "text that is JSON": ([TextContent('{"a": [1, null]}')], {"a": [1, None]}),
    "text that is a number": ([TextContent("42")], 42),
    "text that only Python reads as JSON": ([TextContent("NaN")], "NaN"),
    "a number that no answer can have": ([TextContent("1e999")], "1e999"),
    "half of a character": ([TextContent('"\\ud800"')], '"\\ud800"'),
    "a number with many digits": ([TextContent("7" * 40)], int("7" * 40)),
    "what is nested deeply": ([TextContent("[" * 5000)], "[" * 5000),
    "an image": ([ImageContent("AAAA", "image/png")], "data:image/png;base64,AAAA"),
    "a sound": ([AudioContent("AAAA", "audio/wav")], "data:audio/wav;base64,AAAA"),
    "several": ([TextContent("a"), TextContent("[1]")], ["a", [1]]),
    "an embedded text": ([EmbeddedResource(TextResourceContents("a://b", "c"))], "c"),
    "embedded bytes": (
        [EmbeddedResource(BlobResourceContents("a://b", "AAAA"))],
        "data:application/octet-stream;base64,AAAA",
    ),
    "a link": (
        [ResourceLink("a://b", "c")],
        {"type": "resource_link", "uri": "a://b", "name": "c"},
    ),
}


@pytest.mark.parametrize("name", CONTENT)
async def test_the_content_of_a_result_is_the_answer(rest: Rest, name: str) -> None:
    content, expected = CONTENT[name]

    @rest.server.tool
    def made() -> CallToolResult:
        return CallToolResult(content)

    assert await rest.call("/made") == (200, expected)


async def test_a_result_of_structured_content_alone_is_that(rest: Rest) -> None:
    @rest.server.tool
    def made() -> CallToolResult:
        return CallToolResult([], structured_content={"a": 1})

    assert await rest.call("/made") == (200, {"a": 1})


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_tool_for_pages_alone_is_called_by_no_program(rest: Rest, accept: str) -> None:
    called: list[str] = []

    @rest.server.tool(app=App(visibility=["app"]))
    def vote() -> str:
        called.append("vote")
        return "voted"

    for _ in range(2):
        answer = await rest.http.post(f"{rest.url}/tools/vote", json={}, headers={"accept": accept})
        assert "there is no tool vote" in answer.text
    assert called == []
    listed = (await rest.get("/tools"))[1]["tools"]
    assert "vote" not in [each["name"] for each in listed]


# -- failures -------------------------------------------------------------------------------------------------------


async def test_a_failure_of_a_tool_is_500(rest: Rest) -> None:
    status, body = await rest.call("/fails")
    assert (status, list(body), list(body["detail"])) == (500, ["detail"], ["message"])
    assert "out of paper" in body["detail"]["message"]


async def test_a_failure_without_words_says_so(rest: Rest) -> None:
    @rest.server.tool
    def silent() -> CallToolResult:
        return CallToolResult([], is_error=True)

    message = "the tool failed and does not say why"
    assert await rest.call("/silent") == (500, {"detail": {"message": message}})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RpcError(-32600, "no", {"a": 1}), 400),
        (MethodNotFound("tools/x"), 404),
        (RpcError(-32602, "no"), 422),
        (RpcError(-32603, "no"), 500),
        (RpcError(-32099, "no"), 500),
        (RpcError(7, "no"), 500),
        (Overloaded("server", 1, 0), 429),
    ],
)
async def test_an_error_has_the_status_of_its_code(rest: Rest, error: RpcError, status: int) -> None:
    @rest.server.tool
    async def raises() -> str:
        raise error

    detail = {"message": error.message} | ({} if error.data is None else {"data": error.data})
    assert await rest.call("/raises") == (status, {"detail": detail})


async def test_arguments_that_do_not_fit_are_422(rest: Rest) -> None:
    status, body = await rest.call("/add", {"b": 1})
    assert (status, body["detail"]["data"]) == (422, ["a: is required but missing"])


@pytest.mark.parametrize(
    "body", [b"{", b"[1]", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\xff"}', b"[" * 100_000]
)
async def test_a_body_that_is_no_object_of_json_is_422(rest: Rest, body: bytes) -> None:
    answer = await rest.http.post(f"{rest.url}/add", content=body)
    assert answer.status_code == 422
    assert "the body is" in answer.json()["detail"]["message"]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"[" * 119 + b"]" * 119, 200),
        (b"[" * 120 + b"]" * 120, 422),
        (b"[" + b"[]," * 489_996 + b"[]]", 200),
        (b"[" + b"[]," * 489_997 + b"[]]", 422),
    ],
    ids=["deep", "too deep", "many", "too many"],
)
async def test_arguments_that_no_message_can_have_are_422(rest: Rest, value: bytes, status: int) -> None:
    async def taken(arguments: dict[str, Any]) -> str:
        return "taken"

    rest.server.add_tool(taken, input_schema={"type": "object"})
    answer = await rest.http.post(f"{rest.url}/taken", content=b'{"value": %b}' % value)
    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/nothing", "/tools/nothing"])
async def test_a_tool_that_is_not_there_is_404(rest: Rest, path: str) -> None:
    status, body = await rest.call(path)
    assert (status, "there is no tool nothing" in body["detail"]["message"]) == (404, True)


async def test_other_paths_and_methods_are_refused(rest: Rest) -> None:
    assert (await rest.get("/nothing"))[0] == 404
    assert (await rest.call("/tools/add/more"))[0] == 404
    status, body = await rest.get("/tools/add")
    assert (status, "POST calls a tool" in body["detail"]["message"]) == (405, True)
    answer = await rest.http.delete(f"{rest.url}/tools/add")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST, OPTIONS")


async def test_tools_that_come_change_and_go_are_seen(rest: Rest) -> None:
    def changing(a: int) -> int:
        return a

    rest.server.tool(changing)
    assert await rest.call("/changing", {"a": 1}) == (200, 1)
    rest.server.remove_tool("changing")
    assert (await rest.call("/changing", {"a": 1}))[0] == 404

    @rest.server.tool(name="changing")
    def changed(text: str) -> str:
        return text

    assert await rest.call("/changing", {"text": "new"}) == (200, "new")


async def test_a_server_without_tools_has_none() -> None:
    empty = Rest()
    empty.server = Server("empty")
    async with served(empty) as rest:
        assert (await rest.call("/add"))[0] == 404
        assert (await rest.get("/resources"))[0] == 404
        _, document = await rest.get("/openapi.json")
        assert document["paths"] == {}


# -- events ---------------------------------------------------------------------------------------------------------


async def events(rest: Rest, path: str, arguments: Any) -> list[tuple[str, Any]]:
    answer = await rest.http.post(
        f"{rest.url}{path}", json=arguments, headers={"accept": "text/event-stream"}
    )
    assert answer.headers["content-type"] == "text/event-stream"
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer.text)
    return [(kind, json.loads(data)) for kind, data in found]


async def test_progress_and_the_result_are_events(rest: Rest) -> None:
    assert await events(rest, "/steps", {}) == [
        ("progress", {"progress": 1, "total": 2, "message": "step 1"}),
        ("progress", {"progress": 2, "total": 2, "message": "step 2"}),
        ("result", "done"),
    ]


async def test_a_failure_is_an_event(rest: Rest) -> None:
    ((kind, data),) = await events(rest, "/nothing", {})
    assert (kind, data["status"]) == ("error", 404)
    ((kind, data),) = await events(rest, "/fails", {})
    assert (kind, data["status"]) == ("error", 500)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_that_leaves_cancels_its_call(rest: Rest, accept: str) -> None:
    port = int(rest.url.rpartition(":")[2])
    peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", port))
    head = f"POST /waits HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Length: 2\r\n\r\n"
    await peer.send(head.encode() + b"{}")
    with trio.fail_after(30):
        await rest.begun.wait()
        await peer.aclose()
        await eventually(lambda: rest.ends == ["cancelled"])
    assert await rest.call("/add", {"a": 1}) == (200, 3)


async def test_a_silent_stream_has_comments(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_SILENCE", 0.001)
    bodies: list[bytes] = []
    seen = trio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        bodies.append(message.get("body", b""))
        # The first one is there at once.
        if bodies.count(b":\n\n") == 3:
            seen.set()

    @rest.server.tool
    async def silent() -> str:
        await seen.wait()
        return "said"

    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/silent",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"accept", b"text/event-stream")],
    }
    with trio.fail_after(30):
        await rest.api(scope, receive, send)
    assert b'"said"' in b"".join(bodies)


async def test_a_client_that_takes_no_events_ends_its_call(rest: Rest) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if b"progress" in message.get("body", b""):
            raise OSError("the client has left, or takes nothing")

    @rest.server.tool
    async def begins(ctx: Context) -> None:
        await ctx.progress(1, 2)
        try:
            await trio.sleep_forever()
        finally:
            rest.ends.append("cancelled")

    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/begins",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"accept", b"text/event-stream")],
    }
    with pytest.raises(OSError, match="takes nothing"):
        await rest.api(scope, receive, send)
    await eventually(lambda: rest.ends == ["cancelled"])


# -- resources, prompts, the document, the page ---------------------------------------------------------------------


async def test_resources_are_listed_and_read(rest: Rest) -> None:
    status, listed = await rest.get("/resources")
    assert (status, [each["uri"] for each in listed["resources"]]) == (200, ["note://one"])
    assert [each["uriTemplate"] for each in listed["resourceTemplates"]] == ["page://{name}"]
    status, contents = await rest.get("/resources?uri=page%3A%2F%2Ftwo")
    assert (status, [each["text"] for each in contents]) == (200, ["two"])
    assert (await rest.get("/resources?uri=nothing://"))[0] == 404


async def test_prompts_are_listed_and_filled_in(rest: Rest) -> None:
    _, listed = await rest.get("/prompts")
    assert [each["name"] for each in listed["prompts"]] == ["greet"]
    _, messages = await rest.get("/prompts/greet?name=Ann")
    assert messages == [{"role": "user", "content": {"type": "text", "text": "Greet Ann"}}]
    assert (await rest.get("/prompts/greet"))[0] == 422
    status, body = await rest.get("/prompts/nothing")
    assert (status, "there is no prompt nothing" in body["detail"]["message"]) == (404, True)


NESTED = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/schema",
    "type": "object",
    "properties": {
        "$id": {"type": "string", "default": {"$ref": "#/no"}},
        "tree": {"$ref": "#/$defs/Tree"},
        "named": {"$ref": "#named"},
    },
    "$defs": {
        "Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}},
        "Named": {"$anchor": "named", "type": "string"},
    },
}


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for each in value for found in references(each)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for key, each in value.items() if key != "default" for found in references(each)]


async def test_the_document_describes_every_operation(rest: Rest) -> None:
    @rest.server.tool(name="a.b")
    def dotted(a: int) -> int:
        return a

    status, document = await rest.get("/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert document["info"] == {"title": "shop", "version": "7", "description": "Sells books."}
    tools = ("add", "fails", "steps", "waits", "a.b")
    assert set(document["paths"]) == {f"/tools/{each}" for each in tools} | {"/resources", "/prompts/greet"}
    identifiers = [
        operation["operationId"] for path in document["paths"].values() for operation in path.values()
    ]
    assert len(set(identifiers)) == len(identifiers)
    for each in references(document):
        found: Any = document
        for part in each.removeprefix("#/").split("/"):
            found = found[part]
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


async def test_a_schema_is_the_same_in_the_document() -> None:
    rest = Rest()

    async def taken(arguments: dict[str, Any]) -> str:
        return "taken"

    rest.server.add_tool(taken, input_schema=NESTED)
    async with served(rest):
        _, document = await rest.get("/openapi.json")
    schema = document["components"]["schemas"]["taken.input"]
    assert "$schema" not in schema
    assert schema["properties"]["$id"] == NESTED["properties"]["$id"]  # type: ignore[index]
    assert schema["properties"]["tree"] == {"$ref": "#/components/schemas/taken.input/$defs/Tree"}
    assert schema["properties"]["named"] == {}


async def test_a_server_that_is_made_of_the_document_calls_the_same_tools(rest: Rest) -> None:
    _, document = await rest.get("/openapi.json")
    made = Server.from_openapi(document, base_url=rest.url)
    async with Client(made) as client:
        names = [each.name async for each in client.tools()]
        assert {"add", "steps"} <= set(names)
        assert (await client.call_tool("add", {"a": 1})).text == "3"
        assert (await client.call_tool("fails", {})).is_error


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_the_page_asks_only_its_own_server(rest: Rest, path: str) -> None:
    answer = await rest.http.get(f"{rest.url}{path}")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?://|//[a-z]", answer.text)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    head = await rest.http.head(f"{rest.url}{path}")
    assert (head.status_code, head.content) == (200, b"")


async def test_mcp_is_served_beside_it(rest: Rest) -> None:
    async with Client(f"{rest.url}/mcp") as client:
        assert (await client.call_tool("add", {"a": 1})).text == "3"


# -- who may call ---------------------------------------------------------------------------------------------------


async def test_a_key_with_the_scopes_is_needed(tmp_path: Path) -> None:
    key, line = new_key("ann", ["use"])
    lacking, other = new_key("bob", [])
    (tmp_path / "keys").write_text(f"{line}\n{other}\n")
    keys = ApiKeys(str(tmp_path / "keys"), ["use"])
    async with served(Rest(), keys) as rest:
        for path in ("/openapi.json", "/tools", "/resources", "/prompts/greet?name=a"):
            assert (await rest.get(path))[0] == 401
        assert (await rest.call("/add", {"a": 1}))[0] == 401
        answer = await rest.http.post(f"{rest.url}/add", json={"a": 1})
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "An API key is needed" in answer.json()["detail"]["message"]
        status, _ = await rest.call("/add", {"a": 1}, authorization=f"Bearer {lacking}")
        assert status == 403
        assert await rest.call("/add", {"a": 1}, authorization=f"Bearer {key}") == (200, 3)
        _, document = await rest.get("/openapi.json", authorization=f"Bearer {key}")
        assert document["security"] == [{"key": []}]
        # The page has no secret, and asks for the key.
        assert (await rest.http.get(rest.url)).status_code == 200


def shop_of_two() -> Rest:
    """A server with a tool for callers with a scope, and one for the caller whose name it knows."""
    rest = Rest()

    @rest.server.tool(scopes=["write"])
    def write(ctx: Context) -> str:
        return f"written by {ctx.principal}"

    @rest.server.tool(visible=lambda caller, _: str(caller.principal) == "ann")
    def hers() -> str:
        return "hers"

    return rest


async def test_a_caller_is_whom_its_key_names(tmp_path: Path) -> None:
    made = {
        name: new_key(subject, scopes)
        for name, subject, scopes in (
            ("ann", "ann", ["write"]),
            ("ann, reading", "ann", []),
            ("bob", "bob", []),
        )
    }
    (tmp_path / "keys").write_text("".join(f"{line}\n" for _, line in made.values()))
    bearer = {name: f"Bearer {key}" for name, (key, _) in made.items()}
    async with served(shop_of_two(), ApiKeys(str(tmp_path / "keys"))) as rest:
        for _ in range(2):
            assert await rest.call("/write", authorization=bearer["ann"]) == (200, "written by ann")
            for name in ("ann, reading", "bob"):
                status, body = await rest.call("/write", authorization=bearer[name])
                assert (status, body["detail"]["data"]) == (
                    403,
                    {"reason": "insufficient_scope", "scopes": ["write"]},
                )
        assert await rest.call("/hers", authorization=bearer["ann, reading"]) == (200, "hers")
        assert (await rest.call("/hers", authorization=bearer["bob"]))[0] == 404
        paths = {
            name: set((await rest.get("/openapi.json", authorization=each))[1]["paths"])
            for name, each in bearer.items()
        }
        assert paths["ann"] - paths["bob"] >= {"/tools/hers"}


async def test_a_caller_without_a_name_has_no_scopes() -> None:
    async with served(shop_of_two()) as rest:
        assert (await rest.call("/write"))[0] == 403
        assert (await rest.call("/hers"))[0] == 404
        async with Client(f"{rest.url}/mcp") as client:
            with pytest.raises(RpcError) as refused:
                await client.call_tool("write")
            assert refused.value.code == 403


async def test_nothing_that_a_caller_presents_is_passed_on(tmp_path: Path) -> None:
    key, line = new_key("ann", [])
    (tmp_path / "keys").write_text(line)
    rest = Rest()

    @rest.server.tool
    def seen(ctx: Context) -> list[Any]:
        assert ctx.request is not None
        return [dict(ctx.request.headers), ctx.request.query]

    async with served(rest, ApiKeys(str(tmp_path / "keys"))):
        found = await rest.call("/seen?a=b", authorization=f"Bearer {key}", cookie="c=d")
        assert found == (200, [{}, ""])


async def test_a_caller_that_was_away_makes_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_MOST_CALLERS", 2)
    keys = {name: new_key(name, []) for name in ("ann", "bob", "cid")}
    (tmp_path / "keys").write_text("".join(f"{line}\n" for _, line in keys.values()))
    rest = Rest()
    async with served(rest, ApiKeys(str(tmp_path / "keys"))), trio.open_nursery() as nursery:
        bearer = {name: f"Bearer {key}" for name, (key, _) in keys.items()}

        async def wait(name: str) -> None:
            await rest.call("/waits", authorization=bearer[name])

        for _ in range(2):
            for each in bearer.values():
                assert await rest.call("/add", {"a": 1}, authorization=each) == (200, 3)
        for name in ("ann", "bob"):
            rest.begun = trio.Event()
            nursery.start_soon(wait, name)
            await rest.begun.wait()
        status, body = await rest.call("/add", {"a": 1}, authorization=bearer["cid"])
        assert (status, body["detail"]["message"]) == (503, "2 others call at this moment: retry later")
        assert await rest.call("/add", {"a": 1}, authorization=bearer["ann"]) == (200, 3)
        nursery.cancel_scope.cancel()


async def test_other_hosts_and_origins_are_refused(rest: Rest) -> None:
    assert (await rest.call("/add", {"a": 1}, host="evil.example.org"))[0] == 403
    assert (await rest.call("/add", {"a": 1}, origin="https://evil.example.org"))[0] == 403


async def test_a_page_of_an_allowed_origin_may_call() -> None:
    origin = "https://app.example.org"
    async with served(Rest(), allowed_origins=[origin]) as rest:
        asked = {"origin": origin, "access-control-request-method": "POST"}
        preflight = await rest.http.options(f"{rest.url}/add", headers=asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        answer = await rest.http.post(f"{rest.url}/add", json={"a": 1}, headers={"origin": origin})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)


async def test_before_the_server_is_met_it_is_503() -> None:
    rest = Rest()
    transport = HttpServerTransport("http://127.0.0.1:0/mcp", routes={"/": RestApplication()})
    async with trio.open_nursery() as nursery, rest.http:
        (url,) = await nursery.start(rest.server.serve, transport)
        rest.url = url.removesuffix("/mcp")
        assert (await rest.call("/add", {"a": 1}))[0] == 503
        nursery.cancel_scope.cancel()
