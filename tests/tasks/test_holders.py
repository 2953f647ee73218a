"""The bounds of callers that nobody has authenticated: each address has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from mcp_actors import Server
from mcp_actors.abc.discovery import server_transport
from mcp_actors.tasks import Tasks
from tests.messages import modern_meta

from .talking import CORE, DECLARED, EXTENSION

ACCEPT = {"accept": "application/json, text/event-stream"}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    server = Server("s", extensions=[Tasks(**settings)])

    @server.tool(task="optional")
    async def forever() -> str:
        await trio.sleep_forever()
        return "never"

    @server.tool(task="optional")
    async def quick() -> str:
        return "done"

    async with trio.open_nursery() as nursery:
        (place,) = await nursery.start(server.serve, server_transport("http://127.0.0.1:0/mcp"))
        yield str(place)
        nursery.cancel_scope.cancel()


class Caller:
    """A client at an address; the whole of 127.0.0.0/8 is this host."""

    def __init__(self, url: str, version: str, address: str) -> None:
        self._url = url
        self._version = version
        self._transport = httpx2.AsyncHTTPTransport(local_address=address)

    async def codes(self, tool: str, times: int) -> list[int]:
        """Begins tasks, in a session of its own, and returns the codes of the errors, 0 for a task that is there."""
        headers = {**ACCEPT, "mcp-protocol-version": self._version}
        async with httpx2.AsyncClient(transport=self._transport, headers=headers) as http:
            if self._version == CORE:
                hello = {
                    "protocolVersion": CORE,
                    "capabilities": {},
                    "clientInfo": {"name": "c", "version": "0"},
                }
                response = await self._post(http, "initialize", hello)
                http.headers["mcp-session-id"] = response.headers["mcp-session-id"]
                params: dict[str, Any] = {"name": tool, "arguments": {}, "task": {}}
            else:
                params = {"name": tool, "arguments": {}, "_meta": modern_meta(DECLARED)}
                http.headers.update({"mcp-method": "tools/call", "mcp-name": tool})
            answers = [(await self._post(http, "tools/call", params)).json() for _ in range(times)]
            return [each.get("error", {}).get("code", 0) for each in answers]

    async def _post(self, http: httpx2.AsyncClient, method: str, params: dict[str, Any]) -> httpx2.Response:
        return await http.post(
            self._url, json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        )


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_one_address_cannot_take_the_places_of_all(version: str) -> None:
    async with serving(running=4) as url:
        greedy = Caller(url, version, "127.0.0.1")
        assert await greedy.codes("forever", 3) == [0, 0, 429]
        # Another session of the same address is no other caller.
        assert await Caller(url, version, "127.0.0.1").codes("forever", 1) == [429]
        assert await Caller(url, version, "127.0.0.2").codes("forever", 2) == [0, 0]


@pytest.mark.parametrize("version", [CORE, EXTENSION])
async def test_tasks_that_are_kept_count_for_their_address(version: str) -> None:
    async with serving(per_principal=2) as url:
        assert await Caller(url, version, "127.0.0.1").codes("quick", 3) == [0, 0, 429]
        assert await Caller(url, version, "127.0.0.1").codes("quick", 1) == [429]
        assert await Caller(url, version, "127.0.0.2").codes("quick", 1) == [0]
