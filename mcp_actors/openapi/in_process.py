"""A server of an ASGI application of the same program, which is called without a socket.

The application runs in the asyncio loop of the program, or in one of the engine's own, and so does all that calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import httpx2
import msgspec

import mcp_actors.asyncio
from mcp_actors.abc.discovery import find_application
from mcp_actors.abc.http import AsgiApplication
from mcp_actors.asyncio.applications import ApplicationTransport, application_lifespan, get_in_process
from mcp_actors.errors import ApiDocumentError
from mcp_actors.openapi.api import MAX_BYTES, Api, Routes, check_numbers, server_for
from mcp_actors.openapi.calls import ApiCalls, CallSettings, Credentials, RequestHeaders
from mcp_actors.openapi.document import read_document
from mcp_actors.server import Server

__all__ = ["make_server"]

# What an application reads as its own address; its middleware may allow it as the host of tests.
BASE_URL = "http://localhost"
# Applications inside of applications that are looked through.
MOST_MOUNTS = 1_000


def make_server(
    kind: type[Server[Any]],
    app: AsgiApplication,
    *,
    document: str | Mapping[str, Any] = "/openapi.json",
    base_url: str = BASE_URL,
    routes: Routes | None = None,
    credentials: Credentials | None = None,
    headers: RequestHeaders | None = None,
    timeout: float = 60.0,
    max_bytes: int = MAX_BYTES,
    **settings: Any,
) -> Server[Any]:
    """Makes a server: see `mcp_actors.Server.from_asgi`.

    Raises:
        TypeError: ``app`` cannot be called.
    """
    check_numbers(timeout, 0, max_bytes)
    if not callable(app):
        raise TypeError(f"app is an ASGI application, not {app!r:.80}")
    mounted = [path for path, each in _mounts(app) if isinstance(each, _class_of_ours())]
    api = Api(read_document(_document_of(app, document)), routes, mounted)
    calls_of_app = _InProcess(app, timeout)
    calls = ApiCalls(
        CallSettings(credentials, headers, timeout, 0, max_bytes),
        lambda operation: (base_url, "application"),
        {"application": calls_of_app.client},
        own=True,
        in_trio=False,
    )

    @mcp_actors.asyncio.lifespan
    async def running(server: Server[Any]) -> AsyncIterator[None]:
        async with calls.opened():
            if calls_of_app.is_run_by_others(server):
                yield
            else:
                async with application_lifespan(app) as state:
                    calls_of_app.state = state
                    yield

    server = server_for(kind, api, running, settings)
    api.add_to(server, calls, loop="asyncio")
    return server


class _InProcess:
    """The application, and what its lifespan has left for requests."""

    def __init__(self, app: AsgiApplication, timeout: float) -> None:
        self._app = app
        self._timeout = timeout
        self.state: dict[str, Any] = {}

    def client(self) -> httpx2.AsyncClient:
        transport = ApplicationTransport(self._app, self._timeout)
        transport.state = self.state
        return httpx2.AsyncClient(transport=transport)

    def is_run_by_others(self, server: Server[Any]) -> bool:
        """Whether the server is itself a part of the application, whose lifespan a web server runs then."""
        ours = (each for _, each in _mounts(self._app) if isinstance(each, _class_of_ours()))
        return any(each.server is server for each in ours)


_class_of_ours: Any = partial(find_application, "asgi")


def _document_of(app: Any, document: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the document that FastAPI makes without a request, or that the application answers with."""
    if isinstance(document, Mapping):
        return document
    make = getattr(app, "openapi", None)
    if callable(make) and document == "/openapi.json":
        made: Any = make()
    else:
        try:
            made = msgspec.json.decode(get_in_process(app, document))
        except msgspec.DecodeError as error:
            raise ApiDocumentError(f"it is no JSON: {error}", file=document) from None
    if not isinstance(made, Mapping):
        raise ApiDocumentError("the application makes no document: give it by document=", file="openapi()")
    return made


def _mounts(app: Any) -> Iterator[tuple[str, Any]]:
    """The applications that are mounted in one of Starlette or FastAPI, with their paths."""
    pending: list[tuple[str, Any]] = [("", app)]
    seen: set[int] = set()
    while pending and len(seen) < MOST_MOUNTS:
        path, each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if path:
            yield path, each
        routes = getattr(each, "routes", ())
        for route in routes if isinstance(routes, Collection) else ():
            inner = getattr(route, "app", None)
            below = getattr(route, "path", None)
            # An endpoint is an application, too, and has nothing mounted.
            if inner is not None and isinstance(below, str):
                pending.append((f"{path}{below}", inner))
