"""`ClientGroup` for programs without Trio: the same methods, and callbacks where the program runs."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Context, Progress, Server
from mcp_actors import asyncio as in_asyncio
from mcp_actors import sync as in_threads
from mcp_actors.auth import BearerToken, EnterpriseManaged, OAuth
from mcp_actors.bridges import thread_bridge
from mcp_actors.bridges.client_faces import AsyncioClientFace, adapted_access
from mcp_actors.client import ClientCall
from mcp_actors.errors import ConnectFailed, LocalProtocolError, McpError, RemoteProtocolError, RpcError
from mcp_actors.extensions import AskedRequest, ClientExtension
from mcp_actors.sync import Client
from mcp_actors.types import (
    CallToolResult,
    CreateMessageParams,
    CreateMessageResult,
    ElicitResult,
    TextContent,
)
from tests.bridges.watched import held

PATIENCE = 20


def asking(name: str) -> Server:
    server = Server(name)

    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.progress(1)
        answer = await ctx.elicit("who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return f"{name}: {(answer.content or {}).get('name')}"

    return server


def servers() -> dict[str, Any]:
    return {"one": asking("one"), "two": asking("two"), "away": "tcp://127.0.0.1:1"}


async def in_a_loop() -> None:
    asked: list[object] = []
    loop = asyncio.get_running_loop()

    def options_for(name: str) -> dict[str, Any]:
        async def answer(question: object) -> ElicitResult:
            asked.append(asyncio.get_running_loop())
            return ElicitResult("accept", {"name": f"user of {name}"})

        return {"elicitation": answer}

    reports: list[Progress] = []
    group = mcp_actors.asyncio.ClientGroup(servers(), options_for=options_for)
    async with group:
        assert group.names == ("one", "two", "away")
        assert list(group.failures) == ["away"]
        assert [tool.name for tool in await group.tools()] == ["one__ask", "two__ask"]
        result = await group.call_tool("two__ask", on_progress=reports.append)
        assert result.text == "two: user of two"
        outcomes = await group.call_all([("one__ask", None), ("away__ask", None)])
        assert [type(each) for each in outcomes] == [CallToolResult, ConnectFailed]
        client = group["one"]
        assert isinstance(client, mcp_actors.asyncio.Client)
        assert (await client.call_tool("ask")).text == "one: user of one"
        assert isinstance(await group.reconnect("two"), mcp_actors.asyncio.Client)
        with pytest.raises(ConnectFailed, match="away"):
            group["away"]
        with pytest.raises(LocalProtocolError, match="good for one block"):
            await group.__aenter__()
    assert set(asked) == {loop}
    assert reports[0].progress == 1


def test_a_group_in_an_asyncio_loop() -> None:
    with capture_logs():
        asyncio.run(asyncio.wait_for(in_a_loop(), PATIENCE))
    assert held() == []


def test_a_group_without_a_loop() -> None:
    asked: list[int] = []

    def answer(question: object) -> ElicitResult:
        asked.append(threading.get_ident())
        return ElicitResult("accept", {"name": "Ada"})

    group = mcp_actors.sync.ClientGroup(servers(), elicitation=answer)
    with pytest.raises(LocalProtocolError, match="not connected"):
        group.tools()
    with capture_logs(), group:
        assert [tool.name for tool in group.tools()] == ["one__ask", "two__ask"]
        assert group.call_tool("one__ask").text == "one: Ada"
        outcomes = group.call_all([("two__ask", None), ("away__ask", None)])
        assert [type(each) for each in outcomes] == [CallToolResult, ConnectFailed]
        client = group["one"]
        assert isinstance(client, mcp_actors.sync.Client)
        assert client.call_tool("ask").text == "one: Ada"
        assert isinstance(group.reconnect("two"), mcp_actors.sync.Client)
        assert list(group.failures) == ["away"]
        assert group.resources() == {}
    assert len(asked) == 3
    assert held() == []


def test_a_required_server_that_fails_is_raised_where_the_block_is_entered() -> None:
    with capture_logs(), pytest.raises(ConnectFailed):
        with mcp_actors.sync.ClientGroup(servers(), required=["away"]):
            raise AssertionError("it is not entered")
    assert held() == []


# -- Middleware of clients that do not run on Trio: functions of the program, in its loop and in its threads ---

SECONDS = 20


def make_server() -> Server:
    server = Server("s")

    @server.tool
    async def echo(text: str, ctx: Context) -> str:
        """Says it again."""
        await ctx.log("info", text)
        if text == "bad":
            raise RpcError(77, "bad")
        return text

    return server


def doubled(call: ClientCall) -> ClientCall:
    return attrs.evolve(
        call, params={"name": "echo", "arguments": {"text": call.params["arguments"]["text"] * 2}}
    )


def test_an_asyncio_program_has_it_in_its_own_loop() -> None:
    async def main() -> None:
        here = asyncio.get_running_loop()
        heard = asyncio.Event()

        class Mine:
            async def __call__(self, call: ClientCall, call_next: Any) -> Any:
                assert asyncio.get_running_loop() is here
                await asyncio.sleep(0)
                return await call_next(doubled(call))

            async def notification(self, note: Any, call_next: Any) -> None:
                assert asyncio.get_running_loop() is here
                await call_next()

        async def plain(call: ClientCall, call_next: Any) -> Any:
            try:
                return await call_next()
            except RpcError as error:
                raise RpcError(78, "seen") from error

        def on_log(level: str, data: Any, logger: str | None) -> None:
            heard.set()

        async with in_asyncio.Client(make_server(), on_log=on_log, middleware=[Mine(), plain]) as client:
            assert (await client.call_tool("echo", {"text": "ab"})).text == "abab"
            await asyncio.wait_for(heard.wait(), SECONDS)

        async with in_asyncio.Client(make_server(), middleware=[plain]) as client:
            with pytest.raises(RpcError, match="seen"):
                await client.call_tool("echo", {"text": "bad"})

    asyncio.run(main())


def test_cancelling_an_asyncio_call_cancels_its_middleware() -> None:
    async def main() -> None:
        inside, unwound = asyncio.Event(), asyncio.Event()

        async def waits(call: ClientCall, call_next: Any) -> Any:
            try:
                inside.set()
                await asyncio.sleep(3600)
            finally:
                unwound.set()

        async with in_asyncio.Client(make_server(), middleware=[waits]) as client:
            task = asyncio.create_task(client.call_tool("echo", {"text": "x"}))
            await asyncio.wait_for(inside.wait(), SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert unwound.is_set()

    asyncio.run(main())


def test_a_program_without_a_loop_has_plain_functions_in_threads() -> None:
    threads: list[str] = []
    heard = threading.Event()

    class Mine:
        def __call__(self, call: ClientCall, call_next: Any) -> Any:
            threads.append(threading.current_thread().name)
            result = call_next(doubled(call))
            assert result.text == "abab"
            return result

        def notification(self, note: Any, call_next: Any) -> None:
            call_next()

    def on_log(level: str, data: Any, logger: str | None) -> None:
        heard.set()

    with in_threads.Client(make_server(), on_log=on_log, middleware=[Mine()]) as client:
        assert client.call_tool("echo", {"text": "ab"}).text == "abab"
        assert heard.wait(SECONDS)
    assert len(threads) == 1
    assert threads[0] != threading.current_thread().name


def test_async_functions_of_a_program_without_a_loop_run_in_the_engine() -> None:
    class Mine:
        async def __call__(self, call: ClientCall, call_next: Any) -> Any:
            return await call_next(doubled(call))

    with in_threads.Client(make_server(), middleware=[Mine()]) as client:
        assert client.call_tool("echo", {"text": "ab"}).text == "abab"


# -- Functions of the program in what a client is given: extensions, and authorization -------------------

asyncio_client, sync_client = mcp_actors.asyncio.Client, mcp_actors.sync.Client


@pytest.fixture
def server() -> Server:
    server = Server("s")

    @server.tool
    async def notify(ctx: Context) -> None:
        await ctx.notify("com.example/changed", {"what": "all"})

    @server.tool
    async def sample(ctx: Context) -> str:
        message: Any = await ctx.sample("Say it", max_tokens=5)
        return str(message.content.text)

    return server


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str | None]]]:
    """The URL of an HTTP server that refuses everything, and the credentials of the requests that it gets."""
    credentials: list[str | None] = []

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            credentials.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(403)

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refuses) as listening:
        serving = threading.Thread(target=listening.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{listening.server_port}/mcp", credentials
        listening.shutdown()
        serving.join()


def test_an_extension_works_in_the_loop(server: Server) -> None:
    async def main() -> None:
        loop, extension, changed = (
            asyncio.get_running_loop(),
            ClientExtension("com.example/x"),
            asyncio.Event(),
        )

        @extension.notification("com.example/changed")
        async def take(params: Any) -> None:
            assert asyncio.get_running_loop() is loop
            changed.set()

        @extension.around("sampling/createMessage", when=lambda params: True)
        async def twice(request: AskedRequest, call_next: Any) -> Any:
            assert asyncio.get_running_loop() is loop
            answer = await call_next()
            answer["content"]["text"] *= 2
            return answer

        async def sample(params: CreateMessageParams) -> CreateMessageResult:
            await asyncio.sleep(0)
            return CreateMessageResult(role="assistant", content=TextContent("ha"), model="m")

        options: dict[str, Any] = {"era": "legacy", "sampling": sample, "extensions": [extension]}
        async with asyncio_client(server, **options) as client:
            assert (await client.call_tool("sample")).content[0].text == "haha"
            await client.call_tool("notify")
            await changed.wait()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_extension_works_without_a_loop(server: Server) -> None:
    extension, changed = ClientExtension("com.example/x"), threading.Event()

    @extension.notification("com.example/changed")
    def take(params: Any) -> None:
        assert threading.current_thread().name != "mcp-actors"
        changed.set()

    with sync_client(server, extensions=[extension]) as client:
        client.call_tool("notify")
        assert changed.wait(10)


def test_a_token_is_asked_for_in_the_loop(asked: tuple[str, list[str | None]]) -> None:
    url, credentials = asked

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def token() -> str:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
            return "secret"

        with pytest.raises(McpError):
            await asyncio_client(url, auth=BearerToken(token)).open()

    asyncio.run(main())
    assert set(credentials) == {"Bearer secret"}


def test_a_token_is_asked_for_in_a_thread(asked: tuple[str, list[str | None]]) -> None:
    url, credentials = asked
    threads: list[str] = []

    def token() -> str:
        threads.append(threading.current_thread().name)
        return "secret"

    with pytest.raises(McpError):
        sync_client(url, auth=BearerToken(token)).open()
    assert set(credentials) == {"Bearer secret"}
    assert "mcp-actors" not in threads


def test_access_that_is_shared_stays_shared() -> None:
    granted = EnterpriseManaged(
        id_token=lambda: "id", idp_issuer="https://i.example", idp_token_endpoint="https://i.example/token",
        idp_client_id="a", client_id="b",
    )  # fmt: skip
    access, plain = OAuth(granted), OAuth()
    adapted = [adapted_access(access, lambda f: f, AsyncioClientFace._known_access) for _ in range(2)]
    assert adapted[0] is adapted[1]
    assert adapted[0].counts is access.counts
    assert adapted_access(plain, lambda f: f, AsyncioClientFace._known_access) is plain


# -- Plain callbacks of the sync client that call the client themselves ----------------------------------


def asking_server() -> Server:
    server = Server("asks")

    @server.tool
    async def ask(ctx: Context, question: str) -> str:
        answer = await ctx.elicit(question, {"type": "object", "properties": {"name": {"type": "string"}}})
        return answer.action

    return server


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_callbacks_wait_for_each_other_in_every_place_that_there_is(era: str) -> None:
    many = thread_bridge.MOST
    all_wait = threading.Barrier(many)

    def elicit(question: Any) -> ElicitResult:
        if question.message == "outer":
            all_wait.wait(SECONDS)
            client.call_tool("ask", {"question": "inner"})
        return ElicitResult("accept", {"name": "x"})

    client = Client(asking_server(), era=era, elicitation=elicit).open()
    with ThreadPoolExecutor(many) as pool:
        calls = [pool.submit(client.call_tool, "ask", {"question": "outer"}) for _ in range(many)]
        try:
            assert {each.result(SECONDS).text for each in calls} == {"accept"}
        finally:
            client.close()


def test_a_callback_that_leads_to_itself_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_bridge, "MOST_WAITING", 10)
    errors: list[Exception] = []

    def elicit(question: Any) -> ElicitResult:
        try:
            client.call_tool("ask", {"question": "again"})
        except McpError as error:
            errors.append(error)
        return ElicitResult("accept", {"name": "x"})

    with Client(asking_server(), era="legacy", elicitation=elicit) as client:
        assert client.call_tool("ask", {"question": "first"}).text == "accept"
    assert ["for ever" in str(each) for each in errors] == [True]


# -- a list without an end ---------------------------------------------------------------------------------------------


def endless() -> Server:
    server, numbers = Server("endless", capabilities=["tools"]), itertools.count()
    server._features.handlers["tools/list"] = lambda ctx: {"tools": [], "nextCursor": str(next(numbers))}
    return server


def test_a_list_without_an_end_is_an_error_without_trio_as_well() -> None:
    async def listed() -> None:
        async with in_asyncio.Client(endless()) as client:
            [_ async for _ in client.tools()]

    goes_on = "goes on after 1,000 pages"
    with pytest.raises(RemoteProtocolError, match=goes_on):
        asyncio.run(listed())
    with in_threads.Client(endless()) as client, pytest.raises(RemoteProtocolError, match=goes_on):
        list(client.tools())
