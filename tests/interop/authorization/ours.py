"""Our side: a protected server in this process, and a person who logs in with our client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio

from interop.servers import free_port
from interop.user import LIMIT, text_of
from mcp_actors import Client, Context, Server
from mcp_actors.auth import (
    AuthorizationCode,
    Expected,
    Fetching,
    JwtVerifier,
    MemoryTokenStore,
    OAuth,
    Principal,
    ResourceServer,
    TokenInvalid,
)
from mcp_transports.auth.browsers import LoopbackBrowser
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.websocket.server import WebSocketServerTransport

from .programs import Issuer

__all__ = ["Person", "SeenStore", "Withdrawing", "connected", "serving", "whoami"]

SECRET_FIELDS = frozenset({"access_token", "refresh_token", "client_secret", "d", "id_token"})


class SeenStore(MemoryTokenStore):
    """A store that remembers everything that it was ever given to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Mapping[str, Any]] = []

    async def swap(self, key: str, expected: int | None, value: Mapping[str, Any] | None) -> bool:
        if value is not None:
            self.seen.append(value)
        return await super().swap(key, expected, value)

    async def age(self) -> None:
        """Lets the time come at which a client gets the next token before it uses the one that it has."""
        for key, record in list(self._records.items()):
            if "renew_at" in record.value:
                assert await self.swap(key, record.generation, {**record.value, "renew_at": 0.0})

    def values(self, field: str) -> list[str]:
        """Every value of a field, however deep in the records it was, in the order of keeping."""
        return [str(value) for record in self.seen for value in _found(record, field)]

    @property
    def secrets(self) -> set[str]:
        return {value for field in SECRET_FIELDS for value in self.values(field)}


def _found(value: Any, field: str) -> list[Any]:
    if isinstance(value, list | tuple):
        return [found for each in value for found in _found(each, field)]
    if not isinstance(value, Mapping):
        return []
    own = [value[field]] if value.get(field) is not None else []
    return own + [found for each in value.values() for found in _found(each, field)]


class Withdrawing(JwtVerifier):
    """Believes no token any more that it has seen up to now, once it is told."""

    def __init__(self) -> None:
        super().__init__(remembered_for=0.0)
        self._seen: set[str] = set()
        self._withdrawn: set[str] = set()

    def withdraw(self) -> None:
        self._withdrawn |= self._seen

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        if token in self._withdrawn:
            raise TokenInvalid("withdrawn")
        self._seen.add(token)
        return await super().verify(token, expected, fetch, now)


class Person:
    """Somebody with a browser, who logs in wherever the client sends it and agrees to everything."""

    def __init__(self) -> None:
        self.logins = 0
        self.store = SeenStore()

    async def open(self, url: str) -> None:
        self.logins += 1
        async with httpx2.AsyncClient(follow_redirects=True, timeout=LIMIT) as browser:
            response = await browser.get(url)
        assert response.status_code == 200, response.text[:1000]

    def auth(self, *, settings: Mapping[str, Any] | None = None, **client: Any) -> OAuth:
        """What our client is given; ``client`` says how it is known to the authorization server."""
        grant = AuthorizationCode(browser=LoopbackBrowser(open=self.open), **client)
        return OAuth(grant, **{"store": self.store, **(settings or {})})


@asynccontextmanager
async def serving(
    issuer: Issuer, binding: str = "http", *, resource: str | None = None, **settings: Any
) -> AsyncIterator[str]:
    """The URL of our server, which takes the tokens of an issuer."""
    server = Server("protected-ours")

    @server.tool
    async def whoami(*, ctx: Context) -> dict[str, Any]:
        assert ctx.principal is not None
        return {
            "subject": ctx.principal.subject,
            "client": ctx.principal.client,
            "scopes": sorted(ctx.principal.scopes),
        }

    @server.tool(scopes=["mcp:write"])
    async def write() -> str:
        return "written"

    # A resource is named by a URL for HTTP, also where WebSocket serves it.
    path = {"http": "mcp", "ws": "ws"}[binding]
    resource = resource or f"http://127.0.0.1:{free_port()}/{path}"
    url = resource.replace("http:", f"{binding}:")
    auth = ResourceServer(resource=resource, issuer=issuer.url, scopes=["mcp:read"], **settings)
    transport = (WebSocketServerTransport if binding == "ws" else HttpServerTransport)(url, auth=auth)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        yield url
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(url: str, auth: OAuth, era: str = "auto") -> AsyncIterator[Client]:
    with trio.fail_after(LIMIT):
        async with Client(url, era=era, auth=auth) as client:
            yield client


async def whoami(client: Client) -> dict[str, Any]:
    result = await client.call_tool("whoami", {})
    known: dict[str, Any] = json.loads(text_of(result.content))
    return known
