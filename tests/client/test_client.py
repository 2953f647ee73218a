"""The client's typed methods in every revision, and one typed exception for each way to fail."""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, ClientPool, ConnectFailed, Context, McpError, Server
from mcp_actors.abc import Frame, FrameChannel, Waiting
from mcp_actors.abc.discovery import register_transport
from mcp_actors.auth import AuthorizationCode, BearerToken, ClientCredentials, EnterpriseManaged, OAuth
from mcp_actors.errors import (
    AuthorizationFailed,
    AuthorizationUnavailable,
    CallTimeout,
    ConnectionLost,
    LocalProtocolError,
    MethodNotFound,
    MissingCapability,
    Overloaded,
    RemoteProtocolError,
    ResourceNotFound,
    RpcError,
    TokenRefused,
    TransportNotFound,
    UnsupportedVersion,
)
from mcp_actors.testing import connected_pair
from mcp_actors.types import (
    ClientCapabilities,
    Completion,
    Implementation,
    ListToolsResult,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
    Tool,
)
from mcp_transports.http import HttpTransport
from mcp_transports.http.client import HttpClientTransport
from tests.messages import CAPABILITIES, TASKS, discover_result, result
from tests.scripted_peers import EVERY, MODERN, fail, notify, reply, scripted
from tests.test_every_task import OnlyHttpSse


def make_server() -> Server:
    server = Server("full", version="9", instructions="be kind")

    @server.tool
    async def count(to: int, ctx: Context) -> int:
        """Counts."""
        for number in range(to):
            await ctx.progress(number + 1, to, f"at {number + 1}")
        return to

    @server.resource("x://{name}")
    async def document(name: str) -> str:
        """A document."""
        return f"text of {name}"

    @server.prompt
    async def greet(name: str, tone: str = "warm") -> str:
        """Greets."""
        return f"{tone} {name}"

    @server.completion(prompt="greet", argument="tone")
    async def tones(value: str, settled: dict[str, str]) -> list[str]:
        return [f"{value}{settled.get('name', '')}"]

    @server.completion(resource="x://{name}", argument="name")
    async def names(value: str) -> list[str]:
        return [f"n{number}" for number in range(150) if f"n{number}".startswith(value)]

    return server


@pytest.mark.parametrize("version", EVERY)
async def test_every_typed_method(version: str) -> None:
    async with connected_pair(make_server(), era=version, info=Implementation("me", "1")) as client:
        assert client.version == version
        assert client.era == ("modern" if version == MODERN else "legacy")
        assert (client.server_info.name, client.server_info.version) == ("full", "9")
        assert client.instructions == "be kind"
        assert client.server_capabilities.tools is not None

        assert [tool.name for tool in (await client.list_tools()).tools] == ["count"]
        assert (await client.call_tool("count", {"to": 2})).content == [TextContent("2")]
        assert [template.uri_template async for template in client.resource_templates()] == ["x://{name}"]
        assert (await client.list_resources()).resources == []
        read = await client.read_resource("x://a%20b")
        assert read.contents == [TextResourceContents("x://a%20b", "text of a b", "text/plain")]
        (prompt,) = [prompt async for prompt in client.prompts()]
        assert [(argument.name, argument.required) for argument in prompt.arguments or ()] == [
            ("name", True),
            ("tone", False),
        ]
        assert (await client.get_prompt("greet", {"name": "Ada"})).messages[0].content == TextContent(
            "warm Ada"
        )

        completion = await client.complete(PromptReference("greet"), "tone", "c", {"name": "Ada"})
        assert completion.values == ["cAda"]
        completion = await client.complete(ResourceTemplateReference("x://{name}"), "name", "n")
        assert (len(completion.values), completion.total, completion.has_more) == (100, 150, True)
        assert isinstance(completion, Completion)
        await client.ping()


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_all_progress_in_order_and_before_the_result(version: str, flavour: str) -> None:
    seen: list[Any] = []

    async def later(report: Any) -> None:
        await trio.lowlevel.checkpoint()
        seen.append((report.progress, report.total, report.message))

    handler: Any = later if flavour == "async" else lambda p: seen.append((p.progress, p.total, p.message))
    async with Client(make_server(), era=version) as client:
        await client.call_tool("count", {"to": 50}, on_progress=handler)
        seen.append("result")
    text = version >= "2025-03-26"
    assert seen == [(n + 1, 50, f"at {n + 1}" if text else None) for n in range(50)] + ["result"]


async def test_what_the_vocabulary_does_not_know_is_kept() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call_tool("t"))

        nursery.start_soon(call)
        content = [{"type": "text", "text": "x", "acme": 1}]
        await reply(peer, await peer.receive(), {"content": content, "acme": [2], "_meta": {"acme/x": 3}})
        await wait_all_tasks_blocked()
        (result,) = results
        assert result.extra == {"acme": [2]}
        assert result.content[0].extra == {"acme": 1}
        assert result.meta["acme/x"] == 3


async def test_arguments_go_as_they_are() -> None:
    """Nulls, zeros and empty things are arguments like any other; no arguments are none."""
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        for arguments in (None, {}, {"a": None, "b": 0, "c": "", "d": []}):
            nursery.start_soon(client.call_tool, "t", arguments)
            params = (request := await peer.receive())["params"]
            assert params.get("arguments") == arguments
            assert ("arguments" in params) == (arguments is not None)
            await reply(peer, request, {"content": []})


@pytest.mark.parametrize(
    ("code", "data", "raised"),
    [
        (-32601, None, MethodNotFound),
        (-32603, {"a": 1}, RpcError),
        (-32002, {"uri": "x://a"}, ResourceNotFound),
        (-32021, {"requiredCapabilities": {"roots": {}}}, MissingCapability),
        (-32022, {"supported": ["x"], "requested": "y"}, UnsupportedVersion),
        (429, None, Overloaded),
        (-1, "rejected", RpcError),
    ],
)
async def test_each_error_has_its_type(code: int, data: Any, raised: type[RpcError]) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        errors: list[RpcError] = []

        async def call() -> None:
            with pytest.raises(RpcError) as refused:
                await client.call_tool("t")
            errors.append(refused.value)

        nursery.start_soon(call)
        await fail(peer, await peer.receive(), code, data, "why")
        await wait_all_tasks_blocked()
        (error,) = errors
        assert type(error) is raised
        assert (error.code, error.message, error.data) == (code, "why", data)


@pytest.mark.parametrize(
    ("data", "uri"), [({"uri": "x://a"}, "x://a"), (None, ""), ({"uri": 5}, ""), (["x://a"], "")]
)
async def test_the_error_of_a_missing_resource_has_its_uri(data: Any, uri: str) -> None:
    async with scripted("2025-11-25") as (client, peer), trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(ResourceNotFound) as missing:
                await client.read_resource("x://a")
            assert missing.value.uri == uri
            nursery.cancel_scope.cancel()

        nursery.start_soon(read)
        await fail(peer, await peer.receive(), -32002, data, "why")
    assert ResourceNotFound("x://b").uri == "x://b"


@pytest.mark.parametrize(
    "result",
    [5, None, [], "x", {}, {"content": "x"}, {"content": [{"type": "dance"}]}, {"content": [], "isError": 1}],
)
async def test_a_malformed_result_is_the_servers_fault(result: Any) -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(RemoteProtocolError):
                await client.call_tool("t")
            nursery.cancel_scope.cancel()

        nursery.start_soon(call)
        await reply(peer, await peer.receive(), result)
        await trio.sleep_forever()
    assert nursery.cancel_scope.cancelled_caught


async def test_progress_and_logs_of_strangers_do_not_disturb() -> None:
    async with scripted(MODERN) as (client, peer), trio.open_nursery() as nursery:
        reports: list[Any] = []

        async def call() -> None:
            await client.call_tool("t", on_progress=reports.append)

        nursery.start_soon(call)
        request = await peer.receive()
        token = request["params"]["_meta"]["progressToken"]
        for odd in (
            {"progressToken": str(token), "progress": 1},
            {"progressToken": 10**6, "progress": 1},
            {"progressToken": True, "progress": 1},
            {"progressToken": token},
            {"progressToken": token, "progress": "1"},
            {"progressToken": [token], "progress": 1},
        ):
            await notify(peer, "notifications/progress", **odd)
        await notify(peer, "notifications/progress", progressToken=token, progress=0.5, total="x", message=5)
        await reply(peer, request, {"content": []})
        await wait_all_tasks_blocked()
        assert [(report.progress, report.total, report.message) for report in reports] == [(0.5, None, None)]


async def test_the_ways_to_fail_without_a_peer(autojump_clock: MockClock) -> None:
    for url in ("no-scheme", "acme+unknown:x"):
        with pytest.raises(TransportNotFound):
            async with Client(url):
                raise AssertionError("never reached")
    client = Client(make_server())
    with pytest.raises(McpError):
        await client.list_tools()
    with pytest.raises(LocalProtocolError):
        _ = client.version
    async with client:
        await client.aclose()
        with pytest.raises(ConnectionLost):
            await client.list_tools()
    with pytest.raises(LocalProtocolError):
        async with client:
            raise AssertionError("never reached")
    with pytest.raises(ValueError, match="era"):
        Client(make_server(), era="2099-01-01")


async def test_a_process_without_descriptors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = importlib.import_module("resource")  # which Windows does not have
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (lowest + 1, hard))
    with pytest.raises(ConnectFailed, match=r"no descriptors left .* raise its limit \(ulimit -n\)"):
        async with Client(Server("s")):
            pass


async def test_both_clocks_name_themselves(autojump_clock: MockClock) -> None:
    async with scripted(MODERN, timeout=3, cap=7) as (client, peer):
        with pytest.raises(CallTimeout) as idle:
            await client.call_tool("t")
        assert (idle.value.clock, idle.value.seconds, idle.value.method) == ("idle", 3, "tools/call")
        request = await peer.receive()
        assert (await peer.receive())["params"]["requestId"] == request["id"]
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(CallTimeout) as cap:
                    await client.call_tool("t", on_progress=lambda report: None)
                assert (cap.value.clock, cap.value.seconds) == ("cap", 7)
                nursery.cancel_scope.cancel()

            nursery.start_soon(call)
            token = (await peer.receive())["params"]["_meta"]["progressToken"]
            for number in range(100):
                await notify(peer, "notifications/progress", progressToken=token, progress=number)
                await trio.sleep(1)
        assert nursery.cancel_scope.cancelled_caught


async def test_no_exception_group_leaves_the_client() -> None:
    class Mine(Exception):
        pass

    async def use() -> None:
        async with Client(make_server()) as client:
            await client.list_tools()
            raise Mine

    with pytest.raises(Mine):
        await use()


# -- `Client(auth=…)`: what takes it, what is declared, and what is said where nobody can take it --------

Message = dict[str, Any]
CREDENTIALS = ClientCredentials(client_id="id", client_secret="secret")
ENTERPRISE = EnterpriseManaged(
    id_token=lambda: "token",
    idp_issuer="https://idp.test",
    idp_token_endpoint="https://idp.test/token",
    idp_client_id="id",
    client_id="id",
)


@pytest.mark.parametrize("url", ["http://h/mcp", "https://h/mcp", "ws://h/mcp", "wss://h/mcp"])
def test_urls_of_http_and_websocket_take_it(url: str) -> None:
    client = Client(url, auth=OAuth(CREDENTIALS))
    assert repr(client) == f"<Client {url!r} not connected>"
    with pytest.raises(ValueError, match="two sets of credentials"):
        Client(url.replace("//", "//user:password@"), auth=OAuth())


@pytest.mark.parametrize(
    "target",
    [
        "stdio:server",
        "tcp://127.0.0.1:1",
        "unix:///tmp/x",
        "memory:",
        ["server"],
        Server("s"),
        HttpTransport("http://h/"),
    ],
    ids=["stdio", "tcp", "unix", "memory", "command", "server", "transport"],
)
@pytest.mark.parametrize("auth", [OAuth(), BearerToken("configured-secret")], ids=["oauth", "bearer"])
def test_nothing_else_drops_it_silently(target: Any, auth: Any) -> None:
    with pytest.raises(ValueError, match="environment") as caught:
        Client(target, auth=auth)
    assert "configured-secret" not in str(caught.value)


def test_a_file_does_not_take_it_either(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text("")
    with pytest.raises(ValueError, match="environment"):
        Client(path, auth=OAuth())


def test_what_is_no_authorization_is_refused() -> None:
    with pytest.raises(TypeError, match="not the class OAuth"):
        Client("http://127.0.0.1:1/mcp", auth=OAuth)
    with pytest.raises(TypeError, match="auth is OAuth"):
        Client("http://h/mcp", auth="secret")  # type: ignore[arg-type]


class Speaking(FrameChannel):
    """A server that answers discovery and calls ``seconds`` after a person was asked for ``asks`` seconds."""

    def __init__(self, asks: float, seconds: float) -> None:
        self.asks = asks
        self.seconds = seconds
        self.sent: list[Message] = []
        self._put, self._get = trio.open_memory_channel[Frame](10)
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with trio.open_nursery() as self._nursery:
            yield self
            self._nursery.cancel_scope.cancel()

    async def send(self, value: Frame) -> None:
        await trio.lowlevel.checkpoint()
        message = json.loads(value.data)
        self.sent.append(message)
        if "id" in message:
            assert self._nursery is not None
            self._nursery.start_soon(self._answer, message)

    async def _answer(self, message: Message) -> None:
        if self.asks:
            await self._put.send(Waiting(b""))
            await trio.sleep(self.asks)
            await self._put.send(Waiting(b"", over=True))
        await trio.sleep(self.seconds)
        discovers = message["method"] == "server/discover"
        value = discover_result({"tools": {}}) if discovers else {"content": [], "resultType": "complete"}
        await self._put.send(Frame(json.dumps(result(message, value)).encode()))

    async def receive(self) -> Frame:
        return await self._get.receive()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self._get.close()


async def test_no_clock_runs_while_a_channel_waits_for_a_person(autojump_clock: trio.abc.Clock) -> None:
    speaking = Speaking(1000.0, 2.0)
    async with Client(speaking, timeout=5.0, cap=6.0, probe_timeout=3.0) as client:
        assert [each["method"] for each in speaking.sent] == ["server/discover"]
        assert trio.current_time() == pytest.approx(1002.0)
        await client.call_tool("echo")
        speaking.asks, speaking.seconds = 100.0, 50.0
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await client.call_tool("echo")
        assert trio.current_time() - began == pytest.approx(105.0)


async def test_silence_counts_on_when_the_person_has_answered(autojump_clock: trio.abc.Clock) -> None:
    speaking = Speaking(100.0, 4.0)
    async with Client(speaking, timeout=5.0, probe_timeout=3.0):
        methods = [each["method"] for each in speaking.sent]
    assert methods == ["server/discover", "initialize"]


@pytest.mark.parametrize(
    ("grant", "name"),
    [
        (CREDENTIALS, "io.modelcontextprotocol/oauth-client-credentials"),
        (ENTERPRISE, "io.modelcontextprotocol/enterprise-managed-authorization"),
        (AuthorizationCode(), None),
    ],
    ids=["credentials", "enterprise", "person"],
)
async def test_the_extension_of_a_grant_is_declared(
    grant: Any, name: str | None, autojump_clock: trio.abc.Clock
) -> None:
    speaking = Speaking(0.0, 0.0)
    register_transport("declared", lambda url, auth=None: speaking)  # type: ignore[arg-type,misc]
    own = ClientCapabilities(extensions={"example.com/own": {}})
    async with Client("declared:x", auth=OAuth(grant), capabilities=own) as client:
        await client.call_tool("echo")
    declared = speaking.sent[-1]["params"]["_meta"][CAPABILITIES]["extensions"]
    assert declared == {TASKS: {}, "example.com/own": {}} | ({name: {}} if name else {})


class Refusing:
    """A transport whose first connection works, and whose later ones get no access."""

    def __init__(self, error: ConnectFailed) -> None:
        self.error = error
        self.opened = 0
        self.channel: Speaking | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        self.opened += 1
        if self.opened > 1:
            raise self.error
        self.channel = Speaking(0.0, 0.0)
        async with self.channel.connect() as channel:
            yield channel

    def lose(self) -> None:
        assert self.channel is not None
        self.channel._put.close()


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (AuthorizationFailed("no"), 2),
        (TokenRefused("no", "invalid_grant"), 2),
        (AuthorizationUnavailable("later"), 5),
        (ConnectFailed("nobody there"), 5),
    ],
    ids=["failed", "refused", "unavailable", "nobody"],
)
async def test_a_client_that_restarts_asks_once_for_access(
    error: ConnectFailed, attempts: int, autojump_clock: trio.abc.Clock
) -> None:
    transport = Refusing(error)
    async with Client(transport, restart=True, timeout=5.0) as client:
        transport.lose()
        await trio.sleep(30)
        assert (transport.opened == attempts) if attempts == 2 else (transport.opened >= attempts)
        with pytest.raises(type(error)) as caught:
            await client.call_tool("echo")
        assert caught.value is not error
        assert str(caught.value) == str(error)
        assert getattr(caught.value, "error", None) == getattr(error, "error", None)


async def test_a_pool_opens_clients_with_auth(autojump_clock: trio.abc.Clock) -> None:
    given: list[Any] = []

    def from_url(url: str, auth: Any = None) -> Any:
        given.append(auth)
        return Speaking(0.0, 0.0)

    register_transport("pooled", from_url)
    auth = OAuth(CREDENTIALS)
    async with ClientPool() as pool:
        client = await pool.open(Client("pooled:x", auth=auth))
        await client.call_tool("echo")
    assert given == [auth, auth]


# -- Clients of all bindings that come and go in random order --------------------------------------------
#
# From random tasks, while half of their servers are killed.
#
# ``python -m tests.client.test_client 200 60`` does it with 200 clients at a time for a minute, and prints figures.

CHILD = (
    "from mcp_actors import Server\nserver = Server('child')\n"
    "@server.tool\nasync def pid() -> int:\n    import os\n    return os.getpid()\nserver.run('stdio:')\n"
)
BINDINGS = ("in process", "memory", "stdio", "tcp", "unix", "http modern", "http legacy", "http+sse", "ws")


def new_server() -> Server:
    server = Server("churn")

    @server.tool
    async def pid() -> int:
        return os.getpid()

    return server


def children() -> list[str]:
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):
        # A thread may end meanwhile.
        with (
            suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{task}/children") as file,
        ):
            found += file.read().split()
    return found


def tasks() -> list[str]:
    found, todo = [], [trio.lowlevel.current_root_task()]
    while todo:
        task = todo.pop()
        assert task is not None
        found.append(task.name)
        todo += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return sorted(found)


def held() -> Counter[str]:
    """What this process has: its tasks and children by their names, and the number of its descriptors."""
    gc.collect()
    return Counter([*tasks(), *children()]) + Counter(descriptors=len(os.listdir("/proc/self/fd")))


class Churn:
    """Lives of clients; ``errors`` counts what was raised, by type."""

    def __init__(self, seed: int, folder: str) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.errors: Counter[str] = Counter()
        self.untyped: list[BaseException] = []
        self.lives: Counter[str] = Counter()
        self.killed = 0
        self.lost = 0
        self._names = 0

    @asynccontextmanager
    async def serving(self, binding: str) -> AsyncIterator[tuple[Any, str, Callable[[], None]]]:
        """A server of its own, as a target, with the era to speak and what kills it."""
        if binding == "in process":
            yield new_server(), "auto", lambda: None
            return
        if binding == "stdio":
            yield f"stdio:{sys.executable} {self.folder}/child.py", "auto", lambda: None
            return
        self._names += 1
        kind, _, era = binding.partition(" ")
        url = {
            "memory": f"memory:churn{self._names}",
            "tcp": "tcp://127.0.0.1:0",
            "unix": f"unix:{self.folder}/{self._names}",
            "ws": "ws://127.0.0.1:0/",
        }.get(kind, "http://127.0.0.1:0/mcp")
        async with trio.open_nursery() as nursery:
            [target] = await nursery.start(new_server().serve, url)
            scope = nursery.cancel_scope
            if kind == "http+sse":
                async with httpx2.AsyncClient(transport=OnlyHttpSse()) as http:
                    sse = HttpClientTransport(target.removesuffix("/mcp") + "/sse", client=http)
                    yield sse, "legacy", scope.cancel
            else:
                yield target, era or "auto", scope.cancel
            scope.cancel()

    async def live(self, binding: str, pool: ClientPool, other: trio.Nursery) -> None:
        """One life: open, call, perhaps lose the server, and be closed by another task at another time."""
        rng = self.rng
        self.lives[binding] += 1
        closed = trio.Event()
        with trio.CancelScope():
            async with self.serving(binding) as (target, era, kill):
                client = Client(target, era=era, timeout=20, restart=rng.random() < 0.3, on_lost=self._lost)
                try:
                    await trio.sleep(rng.uniform(0, 0.2))
                    await pool.open(client)
                    answer: Any = (await client.call_tool("pid")).content[0]
                    if rng.random() < 0.5:
                        self.killed += 1
                        if binding == "stdio":
                            os.kill(int(answer.text), signal.SIGKILL)
                        # The server is gone before, during or after the next call.
                        with trio.CancelScope(shield=True):
                            other.start_soon(self._call, client)
                            kill()
                            await trio.sleep(rng.uniform(0, 0.1))
                    else:
                        await self._call(client)
                except McpError as error:
                    self.errors[type(error).__name__] += 1
                except Exception as error:
                    self.untyped.append(error)
                with trio.CancelScope(shield=True):
                    other.start_soon(self._close, pool, client, closed)
                    await closed.wait()

    def _lost(self, error: Exception) -> None:
        self.lost += 1

    async def _call(self, client: Client) -> None:
        try:
            await client.call_tool("pid", timeout=5)
        except McpError as error:
            self.errors[type(error).__name__] += 1
        except Exception as error:
            self.untyped.append(error)

    async def _close(self, pool: ClientPool, client: Client, closed: trio.Event) -> None:
        await trio.sleep(self.rng.uniform(0, 0.3))
        try:
            await pool.close(client)
        except Exception as error:
            self.untyped.append(error)
        closed.set()

    async def round(self, clients: int) -> None:
        bindings = [BINDINGS[number % len(BINDINGS)] for number in range(clients)]
        self.rng.shuffle(bindings)
        async with trio.open_nursery() as other, ClientPool() as pool, trio.open_nursery() as nursery:
            for binding in bindings:
                nursery.start_soon(self.live, binding, pool, other)


async def churn(seed: int, clients: int, seconds: float) -> tuple[Churn, Counter[str]]:
    """Returns what happened, and what is left of it: tasks, descriptors and children that were not there before."""
    with tempfile.TemporaryDirectory() as folder:
        await trio.Path(folder, "child.py").write_text(CHILD)
        warmed = Churn(seed, folder)
        # What the process makes once: threads, caches, sockets of the event loop.
        await warmed.round(len(BINDINGS))
        before = held()
        tested = Churn(seed + 1, folder)
        until = trio.current_time() + seconds
        await tested.round(clients)
        while trio.current_time() < until:
            await tested.round(clients)
        for _ in range(600):
            left = held() - before
            if not left:
                break
            await trio.sleep(0.05)
        return tested, left


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_left_and_all_errors_are_typed(seed: int) -> None:
    with capture_logs() as logs:
        done, left = await churn(seed, 2 * len(BINDINGS), 0)
    assert left == Counter()
    assert done.untyped == []
    assert set(done.lives) == set(BINDINGS)
    assert done.killed > 0
    assert set(done.errors) <= {"ConnectionLost", "ConnectFailed", "SessionExpired", "CallTimeout"}
    assert [each for each in logs if each["log_level"] == "error"] == []


if __name__ == "__main__":
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    done, left = trio.run(churn, 1, int(sys.argv[1]), float(sys.argv[2]))
    print("lives", sum(done.lives.values()), dict(done.lives))
    print("killed", done.killed, "losses told", done.lost, "raised", dict(done.errors))
    print("not typed", done.untyped, "left", left)


async def test_a_list_without_an_end_ends_after_a_thousand_pages() -> None:
    server, pages = Server("s", capabilities=["tools"]), 0

    def next_page(ctx: Any) -> ListToolsResult:
        nonlocal pages
        pages += 1
        return ListToolsResult([Tool(f"t{pages}", {"type": "object"})], f"page {pages}")

    server._features.handlers["tools/list"] = next_page
    async with Client(server) as client:
        with pytest.raises(RemoteProtocolError, match="goes on after 1,000 pages"):
            async for _ in client.tools():
                pass
    assert pages == 1000


# -- texts that UTF-8 cannot carry ------------------------------------------------------------------------------------

HALF = "a\ud800b"


def unsendable() -> dict[str, Callable[[Client], Any]]:
    """What a program may send with half of a surrogate pair in it, by the place that the error names."""
    return {
        "tools/call.arguments.text": lambda client: client.call_tool("echo", {"text": HALF}),
        "tools/call.arguments.text.deep[1]": lambda client: client.call_tool(
            "echo", {"text": {"deep": [1, HALF]}}
        ),
        "tools/call.arguments.city": lambda client: client.call_tool("weather", {"city": HALF}),
        "tools/call.name": lambda client: client.call_tool(HALF),
        "tools/call._meta.mcp-actors/key": lambda client: client.call_tool("pay", key=HALF),
        "prompts/get.name": lambda client: client.get_prompt(HALF),
        "prompts/get.arguments.text": lambda client: client.get_prompt("greet", {"text": HALF}),
        "resources/read.uri": lambda client: client.read_resource(f"x://{HALF}"),
        "completion/complete.argument.value": lambda client: client.complete(
            PromptReference(name="greet"), "text", HALF
        ),
        "x/y.a": lambda client: client.notify("x/y", {"a": HALF}),
        "tools/call.x": lambda client: client.request("tools/call", {"x": HALF}),
    }


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("target", ["memory", "http"])
async def test_half_of_a_surrogate_pair_is_refused_and_nothing_is_sent(
    target: str, era: str, tmp_path: Path
) -> None:
    server = Server("s")
    seen: list[str] = []

    @server.middleware
    async def note(ctx: Context, call_next: Any) -> Any:
        seen.append(ctx.method)
        return await call_next()

    server.add_tool(lambda args: "", name="echo", input_schema={"type": "object"})
    city = {"type": "string", "x-mcp-header": "City"}
    server.add_tool(
        lambda args: "", name="weather", input_schema={"type": "object", "properties": {"city": city}}
    )
    server.add_tool(lambda: "paid", name="pay", idempotent=timedelta(hours=1))

    @server.prompt
    def greet(text: str) -> str:
        return text

    @server.completion(prompt="greet", argument="text")
    def texts(value: str) -> list[str]:
        return [value]

    @server.resource("x://{id}")
    def page(id: str) -> str:
        return id

    async with trio.open_nursery() as nursery:
        url = "http://127.0.0.1:0/mcp"
        reached: Any = server if target == "memory" else (await nursery.start(server.serve, url))[0]
        async with Client(reached, era=era) as client:
            await client.list_tools()
            seen.clear()
            for place, send in unsendable().items():
                with pytest.raises(LocalProtocolError) as refused:
                    await send(client)
                assert str(refused.value).startswith(f"{place} has half of a surrogate pair at position ")
                assert "nothing was sent: replace it" in str(refused.value)
            assert seen == []
            assert (await client.call_tool("pay")).text == "paid"
        nursery.cancel_scope.cancel()
