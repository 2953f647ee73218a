"""A server of a document: which operation becomes a tool, a resource or nothing, and where its requests go."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

import attrs
import httpx2
import msgspec

from mcp_actors.abc.discovery import find_http
from mcp_actors.errors import INTERNAL_ERROR, ApiDocumentError, ResourceNotFound, RpcError, ToolError
from mcp_actors.openapi.calls import (
    ApiAnswer,
    ApiCalls,
    CallSettings,
    Credentials,
    RequestHeaders,
    failure_text,
    is_text,
    result_of,
)
from mcp_actors.openapi.document import ApiDocument, list_of, object_of, read_document, text_of
from mcp_actors.openapi.operations import Operation, OperationArgument, read_operations
from mcp_actors.openapi.schemas import plain_text
from mcp_actors.server import Context, Server, current_context
from mcp_actors.types import BlobResourceContents, CallToolResult, TextResourceContents, ToolAnnotations

__all__ = ["Api", "OperationOutcome", "Routes", "ServedAs", "make_server", "read_api"]

ServedAs = Literal["tool", "resource", "nothing"]
"""The kinds of what an operation becomes."""
Routes = Mapping[str, ServedAs] | Callable[[Operation], ServedAs | None]
"""What operations become. In a mapping the first pattern counts that matches ``METHOD PATH``, or ``tag:NAME`` with one
of the tags, with ``*`` for any characters; a function returns ``None`` for what it leaves to the defaults."""

# Connections to an API at a time, and those that wait for the next call.
CONNECTIONS = httpx2.Limits(max_connections=100, max_keepalive_connections=20)
# Bytes of an answer: base64 of it, and the text beside it, fit into a message of 16 MiB.
MAX_BYTES = 4 * 1024 * 1024
# Characters of the description of an API, which models read once.
MOST_INSTRUCTIONS = 500
# Methods of which a model learns nothing that the others do not say.
_SILENT = ("HEAD", "OPTIONS", "TRACE")

_OWN, _CHECKED = "own", "checked"


@attrs.frozen
class OperationOutcome:
    """An operation, the kind of component that it is ``served_as``, and the ``reason`` if that is nothing."""

    operation: Operation
    served_as: ServedAs
    reason: str = ""


class Api:
    """The operations of a document, and what each of them becomes.

    Args:
        document: The document.
        routes: What operations become, where the program says it.
        left_out: Beginnings of paths that are left out.
    """

    def __init__(
        self, document: ApiDocument, routes: Routes | None = None, left_out: Collection[str] = ()
    ) -> None:
        self.document = document
        _check_routes(routes)
        self.outcomes: tuple[OperationOutcome, ...] = tuple(
            _outcome(each, routes, left_out) for each in read_operations(document)
        )

    def __repr__(self) -> str:
        return f"<Api {self.title!r} of {len(self.outcomes)} operations>"

    @property
    def title(self) -> str:
        """The name that the document has."""
        return text_of(object_of(self.document.root.get("info")).get("title")) or "api"

    def add_to(self, server: Server[Any], calls: ApiCalls, loop: Literal["asyncio"] | None = None) -> None:
        """Adds the tools and resources to a server.

        Raises:
            ValueError: A schema cannot be used.
            LocalProtocolError: A name is taken.
        """
        scheme = re.sub("[^a-z0-9]+", "-", self.title.lower()).strip("-")
        scheme = scheme if re.match("[a-z]", scheme) else f"api-{scheme}".rstrip("-")
        for each in self.outcomes:
            options: dict[str, Any] = {"loop": loop} if loop else {}
            if each.served_as == "tool":
                self._add_tool(server, each.operation, calls, options)
            elif each.served_as == "resource":
                self._add_resource(server, each.operation, calls, scheme, options)

    def _add_tool(
        self, server: Server[Any], operation: Operation, calls: ApiCalls, options: dict[str, Any]
    ) -> None:
        async def call(arguments: dict[str, Any], ctx: Context) -> CallToolResult:
            answer = await calls.call(operation, arguments, ctx)
            return result_of(operation, answer, arguments)

        if operation.title:
            options["title"] = operation.title
        if operation.output_schema is not None:
            options["output_schema"] = operation.output_schema
        server.add_tool(
            call,
            name=operation.name,
            description=operation.description,
            input_schema=operation.input_schema,
            annotations=_hints(operation),
            **options,
        )

    def _add_resource(
        self, server: Server[Any], operation: Operation, calls: ApiCalls, scheme: str, options: dict[str, Any]
    ) -> None:
        variables = {_identifier(each): each for each in operation.arguments if _is_variable(each)}
        path = operation.path.lstrip("/")
        for name, each in variables.items():
            path = path.replace(f"{{{each.wire}}}", f"{{{name}}}")
        asked = [name for name, each in variables.items() if each.place == "query"]
        uri = f"{scheme}://{path}" + (f"{{?{','.join(asked)}}}" if asked else "")

        async def read(**values: str) -> TextResourceContents | BlobResourceContents:
            ctx = current_context()
            arguments = {variables[name].name: value for name, value in values.items()}
            shown = ctx.params.get("uri") or uri
            try:
                return _contents(shown, await calls.call(operation, arguments, ctx))
            except ToolError as error:
                raise RpcError(INTERNAL_ERROR, str(error)) from None

        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str) for name in variables
        ]
        read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        read.__annotations__ = dict.fromkeys(variables, str)
        if operation.title:
            options["title"] = operation.title
        server.add_resource(uri, read, name=operation.name, description=operation.description, **options)


def _check_routes(routes: object) -> None:
    values = (
        routes.values() if isinstance(routes, Mapping) else () if routes is None or callable(routes) else None
    )
    if values is None:
        raise TypeError(
            "routes= is a mapping of patterns, such as {'GET /users/*': 'resource'}, or a function"
        )
    for each in values:
        if each not in ("tool", "resource", "nothing"):
            raise ValueError(f'routes: {each!r}: write "tool", "resource" or "nothing"')


def _outcome(operation: Operation, routes: Routes | None, left_out: Collection[str]) -> OperationOutcome:
    wanted = _wanted(operation, routes)
    reason = ""
    if operation.problem:
        reason = operation.problem
    elif any(operation.path == each or operation.path.startswith(f"{each}/") for each in left_out):
        reason = "it is where a server of ours is mounted"
    elif wanted == "nothing":
        reason = "routes= leaves it out"
    elif wanted is None and operation.internal:
        reason = "it is internal"
    elif wanted is None and operation.deprecated:
        reason = "it is deprecated"
    elif wanted is None and operation.method in _SILENT:
        reason = f"{operation.method} has nothing to tell a model"
    elif wanted == "resource" and operation.method != "GET":
        reason = "a resource is read by GET"
    elif wanted == "resource" and any(
        each.required and not _is_variable(each) for each in operation.arguments
    ):
        reason = "a resource has its arguments in its path and query"
    return OperationOutcome(operation, "nothing" if reason else wanted or "tool", reason)


def _wanted(operation: Operation, routes: Routes | None) -> ServedAs | None:
    if routes is None:
        return None
    if not isinstance(routes, Mapping):
        return routes(operation)
    texts = [f"{operation.method} {operation.path}", *(f"tag:{each}" for each in operation.tags)]
    for pattern, wanted in routes.items():
        if any(fnmatchcase(text, pattern) for text in texts):
            return wanted
    return None


def _hints(operation: Operation) -> ToolAnnotations:
    """The hints that follow from the method (RFC 9110 section 9.2); of POST nothing follows."""
    return ToolAnnotations(
        read_only_hint=operation.is_safe,
        destructive_hint=None if operation.method == "POST" else not operation.is_safe,
        idempotent_hint=operation.is_idempotent,
        open_world_hint=True,
    )


def _is_variable(argument: OperationArgument) -> bool:
    return argument.place == "path" or (argument.place == "query" and argument.required)


def _identifier(argument: OperationArgument) -> str:
    name = re.sub("[^A-Za-z0-9_]", "_", argument.name)
    return name if name.isidentifier() and name != "ctx" else f"_{name}"


def _contents(uri: str, answer: ApiAnswer) -> TextResourceContents | BlobResourceContents:
    if answer.status == 404:
        raise ResourceNotFound(uri)
    if not 200 <= answer.status < 300:
        raise RpcError(INTERNAL_ERROR, failure_text(answer))
    kind = answer.media_type or None
    if is_text(answer):
        return TextResourceContents(uri, answer.text, kind)
    return BlobResourceContents(uri, base64.b64encode(answer.body).decode(), kind)


# -- where requests go -----------------------------------------------------------------------------------------------


class Bases:
    """Says of each operation which URL its path is put behind, and which client it is called by.

    A document that came over the network says itself where requests go, and its author is somebody else. So it leads to
    its own origin, or to an address that is global, and over TLS; nowhere else does a request go unless the program
    names the place.

    Args:
        document: The document.
        base_url: The URL that the program names, which then holds for all operations.
        variables: Values for the variables of the document's servers.

    Raises:
        ApiDocumentError: The document names no server that can be used.
        ValueError: ``base_url`` is no whole URL.
    """

    def __init__(self, document: ApiDocument, base_url: str | None, variables: Mapping[str, str]) -> None:
        if base_url is not None and not _is_whole(base_url):
            raise ValueError(
                f"base_url={base_url[:200]!r} is no whole URL, such as https://api.example.com/v1"
            )
        self._document = document
        self._base_url = base_url
        self._variables = variables
        servers = [each for each in list_of(document.root.get("servers")) if isinstance(each, dict)]
        self._of_all = base_url or self._resolved(servers[0] if servers else {"url": "/"})

    def of(self, operation: Operation) -> tuple[str, str]:
        """Returns the URL and the name of the client.

        Raises:
            ToolError: The operation names a server that must not be used.
        """
        if self._base_url is not None:
            return self._base_url, _OWN
        try:
            url = self._resolved(operation.servers[0]) if operation.servers else self._of_all
        except ApiDocumentError as error:
            raise ToolError(str(error)) from None
        is_elsewhere = self._document.is_remote and _origin(url) != _origin(self._document.location)
        return url, _CHECKED if is_elsewhere else _OWN

    def _resolved(self, server: Mapping[str, Any]) -> str:
        given = object_of(server.get("variables"))

        def value(found: re.Match[str]) -> str:
            said = object_of(given.get(found[1]))
            wanted = self._variables.get(found[1])
            if wanted is not None and (choices := list_of(said.get("enum"))) and wanted not in choices:
                raise ApiDocumentError(
                    f"variables={{{found[1]!r}: {wanted!r}}}: its values are {', '.join(map(str, choices))}",
                    file=self._document.location or "the document",
                )
            return str(said.get("default", "") if wanted is None else wanted)

        url = re.sub(r"\{([^{}]+)\}", value, text_of(server.get("url")) or "/")
        if self._document.is_remote:
            url = urljoin(self._document.location, url)
        if not _is_whole(url):
            raise ApiDocumentError(
                f"its server {url[:200]!r} is no whole URL: say where the API is by base_url= or --base-url",
                file=self._document.location or "the document",
            )
        return url


def _is_whole(url: str) -> bool:
    """Returns whether paths may be put behind a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
    )


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


# -- the server ------------------------------------------------------------------------------------------------------


def read_api(
    document: str | Path | Mapping[str, Any],
    *,
    routes: Routes | None = None,
    references: Collection[str] = (),
) -> Api:
    """Reads a document and decides about its operations; `mcp_actors.Server.from_openapi` has the arguments."""
    return Api(read_document(document, references=references), routes)


def make_server(
    kind: type[Server[Any]],
    document: str | Path | Mapping[str, Any] | Api,
    *,
    client: httpx2.AsyncClient | None = None,
    base_url: str | None = None,
    variables: Mapping[str, str] = {},
    routes: Routes | None = None,
    credentials: Credentials | None = None,
    headers: RequestHeaders | None = None,
    timeout: float = 60.0,
    retries: int = 2,
    max_bytes: int = MAX_BYTES,
    references: Collection[str] = (),
    **settings: Any,
) -> Server[Any]:
    """Makes a server: see `mcp_actors.Server.from_openapi`.

    Raises:
        TypeError: ``client`` is of another library.
    """
    check_numbers(timeout, retries, max_bytes)
    if client is not None and not isinstance(client, httpx2.AsyncClient):
        raise TypeError(f"client= is an httpx2.AsyncClient, not {client!r:.80}")
    api = document if isinstance(document, Api) else read_api(document, routes=routes, references=references)
    if base_url is None and client is not None and str(client.base_url):
        base_url = str(client.base_url)
    clients: dict[str, Callable[[], httpx2.AsyncClient]] = {}
    if client is None:
        clients[_OWN] = partial(httpx2.AsyncClient, limits=CONNECTIONS)
        clients[_CHECKED] = lambda: httpx2.AsyncClient(
            transport=find_http("checked")(CONNECTIONS.max_connections)
        )
    else:
        clients[_OWN] = clients[_CHECKED] = lambda: client
    calls = ApiCalls(
        CallSettings(credentials, headers, timeout, retries, max_bytes),
        Bases(api.document, base_url, variables).of,
        clients,
        own=client is None,
    )
    server = server_for(kind, api, lambda server: calls.opened(), settings)
    api.add_to(server, calls)
    return server


def server_for(
    kind: type[Server[Any]],
    api: Api,
    opened: Callable[[Server[Any]], AbstractAsyncContextManager[object]],
    settings: dict[str, Any],
) -> Server[Any]:
    """Makes a server, still empty, that has ``opened(server)`` entered round the lifespan of the program."""
    inner = settings.pop("lifespan", None)

    @asynccontextmanager
    async def lifespan(server: Server[Any]) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(opened(server))
            if isinstance(inner, Sequence):
                yield tuple([await stack.enter_async_context(each(server)) for each in inner])
            else:
                yield None if inner is None else await stack.enter_async_context(inner(server))

    info = object_of(api.document.root.get("info"))
    settings.setdefault("name", api.title)
    settings.setdefault("version", text_of(info.get("version")) or "0")
    instructions = plain_text(
        text_of(info.get("description")) or text_of(info.get("summary")), MOST_INSTRUCTIONS
    )
    if instructions:
        settings.setdefault("instructions", instructions)
    name = settings.pop("name")
    return kind(name, lifespan=lifespan, **settings)


def check_numbers(timeout: object, retries: object, max_bytes: object) -> None:
    """Raises `ValueError` for what is no number of its kind."""
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: write a number of seconds greater than 0")
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= 10:
        raise ValueError(f"retries={retries!r}: write how often a request is repeated, 0 to 10")
    if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
        raise ValueError(f"max_bytes={max_bytes!r}: write a number of bytes")


def characters_of(operation: Operation) -> int:
    """The characters of JSON that a model reads of a tool."""
    return len(msgspec.json.encode((operation.name, operation.description, operation.input_schema)))
