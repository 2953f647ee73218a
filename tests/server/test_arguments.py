"""A wrong argument is told where it is passed, in one line that says what to write."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
import trio
from msgspec import Meta

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Client, ClientPool, Context, Server
from mcp_actors.errors import ConnectFailed, InputRequired, LocalProtocolError, RpcError, TransportNotFound
from mcp_actors.testing import raw_client
from mcp_actors.types import ElicitResult
from mcp_transports.stdio import StdioServerTransport
from tests.scripted_peers import MODERN, ask, call

FILE = """
from mcp_actors import Server
server = Server("from a file")
server.run()
"""


def complaint(make: Callable[[], object], *kinds: type[Exception]) -> str:
    with pytest.raises(kinds) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", ["path", "list", "tuple"])
async def test_a_path_and_a_command_are_servers(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "my server.py"
    path.write_text(FILE)
    target: Any = {"path": path, "list": [sys.executable, str(path)], "tuple": (sys.executable, str(path))}[
        kind
    ]
    with trio.fail_after(60):
        async with Client(target) as client:
            assert client.server_info.name == "from a file"


async def test_a_path_of_a_program_is_started(tmp_path: Path) -> None:
    path = tmp_path / "program"
    (tmp_path / "server.py").write_text(FILE)
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/server.py\n")
    path.chmod(0o755)
    with trio.fail_after(60):
        async with Client(path) as client:
            assert client.era == "modern"


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        (None, TypeError, "a Client takes a Server object, a URL, a command as a list of strings"),
        (3, TypeError, "or a transport, not int"),
        (Server, TypeError, "Server is a class: make an object of it"),
        (StdioServerTransport(), TypeError, "StdioServerTransport can be served, not connected to"),
        (
            {"mcpServers": {"files": {"command": "npx"}}},
            TypeError,
            "not a configuration of 'files': write Client([",
        ),
        ([], ValueError, "a command is a list of strings, the program first"),
        (["python", 3], ValueError, "a command is a list of strings, the program first"),
        (Path("/no/such/server.py"), ValueError, "there is no file '/no/such/server.py'"),
        (Path(os.devnull).parent, ValueError, "there is no file '/dev'"),
        ("weather.py", TransportNotFound, "write 'stdio:python weather.py', or Client(Path('weather.py'))"),
        ("python weather.py", TransportNotFound, "to start this command write 'stdio:python weather.py'"),
        ("localhost:8000", TransportNotFound, "for an HTTP server write http://localhost:8000/mcp"),
        ("127.0.0.1:8000/x", TransportNotFound, "for an HTTP server write http://127.0.0.1:8000/x"),
        (
            "http://h:notaport/mcp",
            ValueError,
            "the port of a URL is a number from 0 to 65535, not 'notaport'",
        ),
        ("ws://h:99999/", ValueError, "the port of a URL is a number from 0 to 65535, not '99999'"),
        (r"unix://C:\x", LocalProtocolError, r"write unix:///C:\x for an absolute path"),
        ("http://", ValueError, "the URL names no host: write http://HOST:PORT/PATH"),
        ("wss:///x", ValueError, "the URL names no host: write wss://HOST:PORT/PATH"),
        ("stdio:python 'x", ConnectFailed, "cannot be split into words: No closing quotation"),
    ],
)
def test_what_is_no_target_says_what_to_write(target: Any, kind: type[Exception], says: str) -> None:
    assert says in complaint(lambda: Client(target), kind)


def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    text = complaint(lambda: Client(tmp_path / "notes.txt"), ValueError)
    assert text.endswith("is neither a .py file nor executable: write the command as a list")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("timeout", "3", "timeout is a number of seconds above 0"),
        ("timeout", True, "timeout is a number of seconds above 0"),
        ("cap", -1, "cap is a number of seconds above 0"),
        ("cap", float("nan"), "cap is a number of seconds above 0"),
        ("probe_timeout", None, "probe_timeout is a number of seconds above 0, not None"),
        ("max_rounds", "x", "max_rounds is a whole number, not 'x'"),
        (
            "sampling",
            3,
            "sampling is a function sampling(params) that takes CreateMessageParams, not 3",
        ),
        ("elicitation", "x", "elicitation is a function"),
        ("on_log", 3, "on_log is a function on_log(level, data, logger)"),
        ("on_change", 3, "on_change is a function on_change(kind, uri)"),
        ("roots", "file:///x", "roots is a list of roots"),
        ("log_level", "loud", "log_level is one of debug, info,"),
        ("info", "me", "info is an Implementation(name, version), not 'me'"),
        ("limits", 3, "limits is a Limits object"),
    ],
)
def test_an_option_of_a_client(name: str, value: Any, says: str) -> None:
    options: dict[str, Any] = {name: value}
    assert says in complaint(lambda: Client(Server("s"), **options), TypeError)


@pytest.mark.parametrize("words", [{"transport": "http"}, {"port": 8000}, {"host": "0.0.0.0"}])
def test_the_words_of_other_sdks_are_answered_with_ours(words: dict[str, Any]) -> None:
    text = complaint(lambda: Server("s").run(**words), TypeError)
    assert text.startswith(
        f"server.run() has no {next(iter(words))}=: write server.run('http://127.0.0.1:8000/mcp')"
    )


@pytest.mark.parametrize(("name", "url"), [("sse", "http://127.0.0.1:8000/mcp"), ("stdio", "stdio:")])
def test_the_names_that_other_sdks_have_for_transports(name: str, url: str) -> None:
    assert complaint(lambda: Server("s").run(name), TransportNotFound).endswith(f"; write '{url}'")


def one(message: str) -> None: ...


CALLBACKS = {
    "on_log": "on_log is a function on_log(level, data, logger), called with 3 arguments, not one(message",
    "on_change": "on_change is a function on_change(kind, uri), called with 2 arguments, not one(message",
    "on_notification": "a function on_notification(method, params), called with 2 arguments, not one(message",
    "on_lost": "on_lost is a function on_lost(why), not <lambda>()",
    "sampling": "sampling is a function sampling(params) that takes CreateMessageParams, not <lambda>()",
    "elicitation": "elicitation is a function elicitation(params) that takes the question, not <lambda>()",
    "roots": "roots is a list of roots or a function that returns one, not one(message",
}


@pytest.mark.parametrize("client", [Client, mcp_actors.asyncio.Client, mcp_actors.sync.Client])
@pytest.mark.parametrize(("name", "says"), CALLBACKS.items())
def test_a_callback_that_cannot_be_called_is_refused_at_once(name: str, says: str, client: Any) -> None:
    def fits(*args: Any, **more: Any) -> None: ...

    wrong = (lambda: None) if "<lambda>" in says else one
    assert says in complaint(lambda: client(Server("s"), **{name: wrong}), TypeError).replace(
        "test_a_callback_that_cannot_be_called_is_refused_at_once.<locals>.", ""
    )
    for right in (fits, functools.partial(fits, 1), print):
        client(Server("s"), **{name: right})


async def decorated_not(server: Server) -> Any:
    yield 1


async def coroutine(server: Server) -> None:
    """Forgets to yield."""


@contextlib.contextmanager
def not_async(server: Server) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "lifespan",
            decorated_not,
            "decorated with contextlib.asynccontextmanager, not <function decorated_not",
        ),
        ("lifespan", coroutine, "decorated with contextlib.asynccontextmanager, not <function coroutine"),
        ("lifespan", not_async, "make it 'async def' and decorate it with contextlib.asynccontextmanager"),
        ("lifespan", 3, "decorated with contextlib.asynccontextmanager, not 3"),
        ("name", 3, "name is a text, not 3"),
        ("versions", "2025-06-18", "versions is a list of protocol versions, not '2025-06-18'"),
        ("limits", 3, "limits is a Limits object"),
        ("state_key", "x", "state_key is bytes, not 'x'"),
        ("shared", "redis://localhost", "shared is a MemoryShared, SqliteShared or RedisShared"),
    ],
)
def test_an_argument_of_a_server(name: str, value: Any, says: str) -> None:
    options: dict[str, Any] = {"name": "s", name: value}
    assert says in complaint(lambda: Server(**options), TypeError)


async def test_arguments_of_a_call() -> None:
    server = Server("s")

    @server.tool
    def echo(value: str) -> str:
        return value

    wrong: Any
    async with Client(server) as client:
        for wrong, says in (
            (["x"], "the arguments of a tool are a dict of their names"),
            ({"value": {"deep": [1, object()]}}, "tools/call.arguments.value.deep[1] is a object"),
            ({1j: 2}, "Only dicts with"),
        ):
            with pytest.raises(TypeError, match=says.replace("[", r"\[")):
                await client.call_tool("echo", wrong)
        with pytest.raises(RpcError, match="unknown tool: ecko; did you mean 'echo'"):
            await client.call_tool("ecko", {"value": "x"})
        with pytest.raises(RpcError, match=r"unknown tool: e{1000} \(code"):
            await client.call_tool("e" * 1000)
        assert (await client.call_tool("echo", {"value": "x"})).content[0].text == "x"


async def in_a_notebook(what: str) -> None:
    client, server = Client(Server("s")), Server("s")
    if what == "enter":
        async with client:
            raise AssertionError("entered")
    elif what == "await":
        await client
    elif what == "call":
        await client.call_tool("echo")
    elif what == "iterate":
        await anext(client.tools())
    elif what == "listen":
        async with client.listen(tools=True):
            raise AssertionError("entered")
    elif what == "task":
        await client.task("id").status()
    elif what == "pool":
        async with ClientPool():
            raise AssertionError("entered")
    else:
        await server.serve("memory:")


@pytest.mark.parametrize("what", ["enter", "await", "call", "iterate", "listen", "task", "pool", "serve"])
def test_under_asyncio_one_line_names_what_to_use(what: str) -> None:
    text = complaint(lambda: asyncio.run(in_a_notebook(what)), RuntimeError)
    if what == "serve":
        assert text.endswith("use mcp_actors.asyncio.serve; see: mcp-actors docs asyncio")
    else:
        assert "use mcp_actors.asyncio.Client" in text
        assert "without a loop mcp_actors.sync.Client" in text


async def test_a_client_is_not_awaited_under_trio_either() -> None:
    with pytest.raises(TypeError, match="use 'async with Client"):
        await Client(Server("s"))


async def test_run_inside_of_trio_names_serve() -> None:
    text = complaint(lambda: Server("s").run("memory:"), RuntimeError)
    assert text.endswith("use 'await server.serve(...)'")


def test_run_under_asyncio_names_serve_there() -> None:
    async def main() -> None:
        Server("s").run("memory:")

    text = complaint(lambda: asyncio.run(main()), RuntimeError)
    assert text.endswith("use 'await mcp_actors.asyncio.serve(server, ...)'; see: mcp-actors docs asyncio")


def test_a_plain_with_names_the_client_without_a_loop() -> None:
    with pytest.raises(RuntimeError, match=r"without a loop mcp_actors\.sync\.Client"), Client(Server("s")):
        raise AssertionError("entered")


async def test_a_plain_with_on_trio_names_async_with() -> None:
    with pytest.raises(TypeError, match="async with"), Client(Server("s")):
        raise AssertionError("entered")


async def test_a_client_for_asyncio_names_the_others_on_trio() -> None:
    with pytest.raises(RuntimeError, match=r"on Trio use mcp_actors itself, without a loop"):
        async with mcp_actors.asyncio.Client(Server("s")):
            raise AssertionError("entered")


@pytest.mark.parametrize("target", [3, None])
def test_what_is_no_place_to_serve_at(target: Any) -> None:
    assert "a server serves at URLs and transports, not at" in complaint(
        lambda: Server("s").run(target), TypeError
    )


def test_run_works_in_a_thread_and_leaves_the_signals_alone() -> None:
    """In a process of its own, whose SIGTERM kills it as it would without a server."""
    program = (
        "import signal, threading, trio\nfrom mcp_actors import Client, Server\n"
        "server, started = Server('in a thread'), threading.Event()\n"
        "class Status:\n    def started(self, places):\n        self.url = places[0]; started.set()\n"
        "status = Status()\n"
        "run = lambda: server.run('tcp://127.0.0.1:0', task_status=status)\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "assert started.wait(30)\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "async def main():\n    async with Client(status.url) as client:\n        print(client.server_info.name)\n"
        "trio.run(main)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.returncode) == ("in a thread\n", 0), ran.stderr


# -- From type hints to the wire and back: what is listed, what is taken, what is refused ----------------


@dataclass
class Data:
    """A place."""

    x: int
    label: str = "none"


@attrs.define
class Attrs:
    x: int
    label: str | None = None


class Typed(TypedDict):
    x: int
    label: NotRequired[str]


class Named(NamedTuple):
    x: int
    label: str = "none"


class Struct(msgspec.Struct):
    x: int
    label: str = "none"


class Model(pydantic.BaseModel):
    x: int
    label: str = pydantic.Field("none", max_length=5)


# One type for each way through: the type; good JSON with what the function sees of it; bad JSON. Every type there is
# stands in ``schema/test_convert.py``.
ROWS: list[tuple[Any, list[tuple[Any, Any]], list[Any]]] = [
    (str, [("", ""), ("3", "3"), ('{"a":1}', '{"a":1}')], [3, None, True, [], {}]),
    (int, [(3, 3), (0, 0), (2**60, 2**60)], ["three", "3.5", 3.5, True, None]),
    (Annotated[int, Meta(ge=1, le=14)], [(1, 1), (14, 14)], [0, 15, "15"]),
    (Data, [({"x": 1}, Data(1)), ({"x": 1, "label": "a"}, Data(1, "a"))], [{}, {"x": "a"}, 1]),
    (Model, [({"x": 1}, Model(x=1))], [{}, {"x": "a"}, {"x": 1, "label": "too long"}]),
    (Any, [(None, None), ([1], [1]), ("3", "3")], []),
    (list[Data], [([{"x": 1}], [Data(1)])], [[{"x": "a"}]]),
]


def echoing(hint: Any, seen: list[Any]) -> Callable[..., Any]:
    def echo(value: Any) -> None:
        seen.append(value)

    echo.__annotations__ = {"value": hint, "return": None}
    echo.__doc__ = "Looks."
    return echo


@pytest.mark.parametrize(("hint", "good", "bad"), ROWS, ids=[str(row[0]) for row in ROWS])
async def test_a_type_is_listed_taken_and_refused(
    hint: Any, good: list[tuple[Any, Any]], bad: list[Any]
) -> None:
    seen: list[Any] = []
    server = Server("s")
    server.add_tool(echoing(hint, seen), name="echo", inline=True)
    async with Client(server, era="modern") as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["required"] == ["value"]
        assert tool.input_schema["additionalProperties"] is False
        for value, expected in good:
            result = await client.call_tool("echo", {"value": value})
            assert not result.is_error, result.content
            assert seen == [expected]
            assert type(seen.pop()) is type(expected)
        for value in bad:
            result = await client.call_tool("echo", {"value": value})
            assert result.is_error, (value, seen)
            assert "value" in result.content[0].text  # type: ignore[union-attr]
            assert seen == []


@pytest.mark.parametrize("hint", [Data, Attrs, Typed, Named, Struct, Model])
async def test_every_kind_of_class_as_a_result(hint: Any) -> None:
    def make() -> Any:
        return hint(x=1, label="a")

    make.__annotations__ = {"return": hint}
    server = Server("s")
    server.add_tool(make, description="Makes.")
    async with Client(server, era="modern") as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.output_schema is not None
        result = await client.call_tool("make")  # the client checks it against that schema
        if tool.output_schema.get("type") == "object":
            assert result.structured_content == {"x": 1, "label": "a"}
        assert "1" in result.content[0].text  # type: ignore[union-attr]


async def test_a_whole_signature() -> None:
    server = Server("s")

    @server.tool
    async def forecast(
        city: str,
        days: Annotated[int, Meta(ge=1, le=14)] = 3,
        unit: Literal["C", "F"] = "C",
        *,
        at: datetime | None = None,
        ctx: Context,
    ) -> Data:
        """Forecast for a city.

        Args:
            city: The name of the city.
            days: How many days.
        """
        return Data(days, city)

    async with raw_client(server) as peer:
        (tool,) = (await ask(peer, MODERN, 1, "tools/list"))["result"]["tools"]
        assert tool["description"] == "Forecast for a city."
        schema = tool["inputSchema"]
        assert list(schema["properties"]) == ["city", "days", "unit", "at"]  # the context is in no schema
        assert schema["required"] == ["city"]
        assert schema["properties"]["city"] == {"type": "string", "description": "The name of the city."}
        days = schema["properties"]["days"]
        assert (days["minimum"], days["maximum"], days["default"]) == (1, 14, 3)
        assert days["description"] == "How many days."
        assert set(schema["properties"]["unit"]["enum"]) == {"C", "F"}
        assert tool["outputSchema"]["type"] == "object"
        result = (await call(peer, MODERN, 2, "forecast", city="Paris"))["result"]
        assert result["structuredContent"] == {"x": 3, "label": "Paris"}


async def test_a_raw_schema_and_a_dict() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"positive": {"type": "integer", "exclusiveMinimum": 0}},
        "properties": {"n": {"$ref": "#/$defs/positive"}, "kind": {"const": "a"}},
        "required": ["n"],
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": {"properties": {"n": {"maximum": 5}}},
    }
    server = Server("s")

    @server.tool(input_schema=schema, output_schema={"type": "object", "required": ["n"]})
    async def raw(arguments: dict[str, Any]) -> dict[str, Any]:
        """Takes what the schema takes."""
        return {key: value for key, value in arguments.items() if value != 4}

    async with raw_client(server) as peer:
        (tool,) = (await ask(peer, MODERN, 1, "tools/list"))["result"]["tools"]
        assert tool["inputSchema"] == schema  # word for word
        assert (await call(peer, MODERN, 2, "raw", n=9))["result"]["structuredContent"] == {"n": 9}
        for id, arguments in enumerate(({"n": 0}, {"n": "0"}, {}, {"n": 6, "kind": "a"})):
            result = (await call(peer, MODERN, f"r{id}", "raw", **arguments))["result"]
            assert result["isError"] is True
        # What does not fit the output schema is the tool's own mistake.
        result = (await call(peer, MODERN, 3, "raw", n=4))["result"]
        assert result["isError"] is True
        assert "it returned what cannot be sent" in result["content"][0]["text"]


@dataclass
class Booking:
    """A form."""

    name: Annotated[str, Meta(min_length=1, description="Whose?")]
    guests: Annotated[int, Meta(ge=1, le=9)] = 2
    vegetarian: bool = False
    table: Literal["window", "door"] = "door"


async def test_a_class_as_a_form_is_flat() -> None:
    server = Server("s")

    @server.tool
    async def book(ctx: Context) -> str:
        """Books."""
        return (await ctx.elicit("A table?", Booking)).action

    async with Client(server, answer_input=False, elicitation=lambda params: params) as client:  # type: ignore[arg-type, return-value]
        with pytest.raises(InputRequired) as required:
            await client.call_tool("book")
        (question,) = required.value.requests.values()
        schema = question.requested_schema
        assert schema["type"] == "object"
        assert schema["required"] == ["name"]
        assert not {"$ref", "$defs", "allOf", "anyOf"} & set(schema)
        assert schema["properties"]["name"] == {"type": "string", "minLength": 1, "description": "Whose?"}
        assert schema["properties"]["guests"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 2}
        assert schema["properties"]["vegetarian"] == {"type": "boolean", "default": False}
        assert set(schema["properties"]["table"]["enum"]) == {"door", "window"}
        assert schema["properties"]["table"]["type"] == "string"


@dataclass
class Optionals:
    """Everything may stay empty."""

    note: str | None = None
    age: Annotated[int, Meta(ge=0)] | None = None
    colours: list[Literal["r", "g"]] | None = None


@dataclass
class Nested:
    """No form can ask for this."""

    place: Data


async def form_asked(schema: Any) -> Any:
    """The form that a client is shown, or the error that the call ends with."""
    server = Server("s")

    @server.tool
    async def book(ctx: Context) -> str:
        """Books."""
        try:
            return (await ctx.elicit("?", schema)).action
        except LocalProtocolError as error:
            return str(error)

    async def elicitation(params: Any) -> ElicitResult:
        return ElicitResult("decline")

    async with Client(server, answer_input=False, elicitation=elicitation) as client:
        try:
            return (await client.call_tool("book")).content[0].text  # type: ignore[union-attr]
        except InputRequired as required:
            (question,) = required.requests.values()
            return question.requested_schema["properties"]


async def test_what_may_stay_empty_is_simply_not_required() -> None:
    """Forms have no null: a field that nobody fills in is absent."""
    assert await form_asked(Optionals) == {
        "note": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "colours": {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}},
    }


@pytest.mark.parametrize(
    ("schema", "culprit"),
    [
        (Nested, "place"),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, "a"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}}, "a"),
        ({"type": "object", "properties": {"a": {}}}, "a"),
        ({"type": "string"}, "object"),
    ],
)
async def test_what_no_form_can_ask_for_is_the_servers_own_mistake(schema: Any, culprit: str) -> None:
    assert culprit in await form_asked(schema)
