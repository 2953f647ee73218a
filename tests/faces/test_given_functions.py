"""Functions of the program in what a client is given: extensions, and authorization."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import mcp_actors.asyncio
import mcp_actors.sync
from mcp_actors import Context, Server
from mcp_actors.auth import BearerToken, EnterpriseManaged, OAuth
from mcp_actors.bridges.client_faces import AsyncioClientFace, adapted_access
from mcp_actors.errors import McpError
from mcp_actors.extensions import AskedRequest, ClientExtension
from mcp_actors.types import CreateMessageParams, CreateMessageResult, TextContent

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
