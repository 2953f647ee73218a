"""mcpo, by which Open WebUI calls servers, beside our REST API of the same server: the same answers.

The documents of both are held to the specification by a validator of others.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.cli.rest.document import document_of

from .installation import install_separately
from .servers import free_port

pytestmark = pytest.mark.peers

LIMIT = 120.0  # seconds until a program serves; it takes three
SERVER = '''
from typing import Any

from mcp_actors import Server
from mcp_actors.errors import RpcError
from mcp_actors.types import CallToolResult, ImageContent, TextContent

server = Server("both", version="3", instructions="Compared.")


@server.tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool
def shout(text: str, times: int | None = None) -> str:
    return text.upper() * (times or 1)


@server.tool
def nested(address: dict[str, Any], tags: list[str]) -> dict[str, Any]:
    return {"address": address, "tags": tags}


@server.tool
def content(kind: str) -> CallToolResult:
    blocks: dict[str, list[Any]] = {
        "none": [],
        "json": [TextContent('{"a": [1, 2.5, true]}')],
        "text": [TextContent("plain {")],
        "quoted": [TextContent('"quoted"')],
        "image": [ImageContent("AAAA", "image/png")],
        "several": [TextContent("one"), TextContent("2"), ImageContent("AAAA", "image/jpeg")],
    }
    return CallToolResult(blocks[kind])


@server.tool
def fails() -> CallToolResult:
    return CallToolResult([TextContent("out of paper"), TextContent("and ink")], is_error=True)


@server.tool
def fails_silently() -> CallToolResult:
    return CallToolResult([ImageContent("AAAA", "image/png")], is_error=True)


@server.tool
async def refuses(code: int) -> str:
    raise RpcError(code, "no", {"why": "so"})
'''

# Both have to give the same status and body.
SAME: list[tuple[str, Any]] = [
    ("add", {"a": 1}),
    ("add", {"a": 1, "b": 40}),
    ("add", {"a": "41", "b": 1}),
    ("shout", {"text": "hö 🐍"}),
    ("shout", {"text": "a", "times": 3}),
    ("shout", {"text": "42"}),
    ("nested", {"address": {"street": {"name": "x", "numbers": [1, 2]}}, "tags": ["a", "b"]}),
    *(("content", {"kind": each}) for each in ("none", "json", "text", "quoted", "image", "several")),
    *(("refuses", {"code": each}) for each in (-32700, -32600, -32601, -32602, -32603, -32042, 7)),
]
# Both refuse, each in its own words.
SAME_STATUS: list[tuple[str, Any, int]] = [
    ("add", {}, 422),
    ("add", {"a": "x"}, 422),
    ("add", [1], 422),
    ("nested", {"address": 1, "tags": []}, 422),
    ("nothing", {}, 404),
    # It wraps its own error of a failure in another one, whose text has the words of the tool as Python shows them.
    ("fails", {}, 500),
    ("fails_silently", {}, 500),
]


@contextmanager
def serving(command: list[str], url: str) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            transport = httpx2.HTTPTransport(retries=0)
            with httpx2.Client(transport=transport, timeout=1) as client:
                for _ in range(int(LIMIT * 5)):
                    assert process.poll() is None, command
                    try:
                        document = client.get(f"{url}/openapi.json")
                        if document.status_code == 200 and document.json()["paths"]:
                            break
                    except httpx2.TransportError:
                        pass
                    # Neither says on a stream of its own that the server behind it was met.
                    with pytest.raises(subprocess.TimeoutExpired):
                        process.wait(0.2)
                else:
                    raise AssertionError(f"{command} does not serve")
            yield url
        finally:
            process.terminate()
            process.wait(LIMIT)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of ours and of mcpo."""
    file = tmp_path_factory.mktemp("both") / "both.py"
    file.write_text(SERVER)
    served = [sys.executable, "-m", "mcp_actors", "serve", str(file)]
    ours, theirs = free_port(), free_port()
    rest = [sys.executable, "-m", "mcp_actors", "rest", f"stdio:{shlex.join(served)}"]
    mcpo: Path = install_separately("mcpo").parent / "mcpo"
    with ExitStack() as stack:
        yield (
            stack.enter_context(serving([*rest, f"http://127.0.0.1:{ours}/mcp"], f"http://127.0.0.1:{ours}")),
            stack.enter_context(
                serving(
                    [str(mcpo), "--host", "127.0.0.1", "--port", str(theirs), "--", *served],
                    f"http://127.0.0.1:{theirs}",
                )
            ),
        )


def answer(url: str, tool: str, arguments: Any) -> tuple[int, Any]:
    found = httpx2.post(f"{url}/{tool}", json=arguments, timeout=LIMIT)
    return found.status_code, found.json()


@pytest.mark.parametrize(("tool", "arguments"), SAME, ids=json.dumps)
def test_a_call_has_the_same_answer(both: tuple[str, str], tool: str, arguments: Any) -> None:
    ours, theirs = (answer(url, tool, arguments) for url in both)
    assert ours == theirs


@pytest.mark.parametrize(("tool", "arguments", "status"), SAME_STATUS, ids=json.dumps)
def test_a_refusal_has_the_same_status(both: tuple[str, str], tool: str, arguments: Any, status: int) -> None:
    assert [answer(url, tool, arguments)[0] for url in both] == [status, status]


def test_the_documents_have_the_same_tools(both: tuple[str, str]) -> None:
    ours, theirs = (httpx2.get(f"{url}/openapi.json", timeout=LIMIT).json() for url in both)
    assert {path.removeprefix("/tools") for path in ours["paths"]} == set(theirs["paths"])
    for each in ("title", "version", "description"):
        assert ours["info"][each] == theirs["info"][each]
    for path, item in theirs["paths"].items():
        described = item["post"].get("description")
        assert described in (None, ours["paths"][f"/tools{path}"]["post"]["description"])


# -- the document and OpenAPI ----------------------------------------------------------------------------------------

# Exits with 1 and the first problem of a file that is not what OpenAPI says.
VALIDATE = """
import json, sys
from openapi_spec_validator import OpenAPIV31SpecValidator
for path in sys.argv[1:]:
    document = json.load(open(path))
    assert document["openapi"].startswith("3.1"), document["openapi"]
    for problem in OpenAPIV31SpecValidator(document).iter_errors():
        sys.exit(f"{path}: {problem}")
"""


def problems(*documents: Path) -> str:
    """What a validator says against documents; empty if it says nothing."""
    python = install_separately("mcpo")
    done = subprocess.run(
        [python, "-c", VALIDATE, *documents], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stderr


async def tricky_document() -> dict[str, Any]:
    """The document of a server whose names and schemas are as odd as the protocol lets them be."""
    server = Server("tricky", instructions="*" * 1000)
    recursive = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/tree",
        "type": "object",
        "properties": {
            "tree": {"$ref": "#/$defs/Tree"},
            "$ref": {"type": "string", "default": "#/none"},
            "required": {"enum": [{"$ref": "#/none"}, None]},
        },
        "required": ["tree"],
        "patternProperties": {"^x-": {"type": "string"}},
        "$defs": {
            "Tree": {
                "$anchor": "tree",
                "anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/Tree"}}],
            }
        },
    }

    async def taken(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    for name in ("a.b", "a_b", "a/b", "a b", "prompt_greet", "resources", "docs", "openapi.json", "ä?#{x}"):
        server.add_tool(taken, name=name, input_schema=recursive, output_schema=recursive)

    @server.prompt
    def greet(name: str, manner: str = "kindly") -> str:
        return f"{name} {manner}"

    @server.resource("note://{name}")
    def note(name: str) -> str:
        return name

    async with Client(server) as client:
        return await document_of(client, with_keys=True)


def test_the_documents_are_those_of_openapi(both: tuple[str, str], tmp_path: Path) -> None:
    served, tricky = tmp_path / "served.json", tmp_path / "tricky.json"
    served.write_text(httpx2.get(f"{both[0]}/openapi.json", timeout=LIMIT).text)
    tricky.write_text(json.dumps(trio.run(tricky_document)))
    assert problems(served, tricky) == ""


@pytest.mark.parametrize(
    "defect", ["no description of an answer", "one name for two operations", "a type of none"]
)
def test_a_document_with_a_defect_is_seen(tmp_path: Path, defect: str) -> None:
    document = trio.run(tricky_document)
    operation = document["paths"]["/tools/a.b"]["post"]
    if defect == "no description of an answer":
        del operation["responses"]["200"]["description"]
    elif defect == "one name for two operations":
        operation["operationId"] = "a_b"
    else:
        document["components"]["schemas"]["Failure"]["type"] = "none"
    path = tmp_path / "document.json"
    path.write_text(json.dumps(document))
    assert str(path) in problems(path)
