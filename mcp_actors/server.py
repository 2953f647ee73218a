"""The server: one object that serves every revision over any number of transports.

Beside `Server` this module has the types of what its users hold or write: middleware, lifespans and statistics.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Never, Self, TypeGuard, TypeVar, Unpack, get_args, overload
from urllib.parse import quote

import trio

from mcp_actors._actors.dispatcher import SessionStatistics
from mcp_actors._actors.event_bus import EventBus, EventBusStatistics
from mcp_actors._actors.inbound_call import CallStatistics
from mcp_actors._actors.limits import LimiterStatistics, Limits
from mcp_actors._eras.era import Era, EraName, EventKind, Peer
from mcp_actors._eras.modern import StateSealer
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors._server import stop_if_loaded, stopped_at_run
from mcp_actors._server.apps import App
from mcp_actors._server.as_tools import prompts_as_tools, resources_as_tools
from mcp_actors._server.components import Component, ComponentKind, make_switch
from mcp_actors._server.context import Context, SyncContext, current_context
from mcp_actors._server.dependencies import Depends, kept_values
from mcp_actors._server.dispatch import lifecycle_handlers, stamp_of
from mcp_actors._server.failures import LineNamed
from mcp_actors._server.features import FeatureName, Features, OfferedExtension
from mcp_actors._server.invoke import Loop, ProcessStatistics, check_async, in_loop, middleware_in_loop
from mcp_actors._server.middleware import CallNext, Middleware, NotificationMiddleware
from mcp_actors._server.mounts import LiveMounts, Mount, Mounts
from mcp_actors._server.names import NameTable
from mcp_actors._server.options import (
    PromptOptions,
    ResourceOptions,
    SkillOptions,
    ToolOptions,
    check_decorated,
    check_icons,
    check_options,
    check_rule,
)
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.process import (
    rare_full_passes,
    serve_until_signal,
    write_terminal_hint,
)
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.provider import Provided, ProvidedPage, Provider
from mcp_actors._server.questions import FormResult
from mcp_actors._server.reshape import Argument, Reshape, ReshapedCall, reshape_tool, reshaped_names
from mcp_actors._server.resources import Resources, Unscreened, check_uri
from mcp_actors._server.runtime import ServerRuntime, ServerStatistics
from mcp_actors._server.scope import ServerScope, StateT, state_key_of_environment
from mcp_actors._server.tools import Arguments, TaskRules, Tools
from mcp_actors._server.turns import Turn, TurnKey, TurnStatistics
from mcp_actors._server.user_state import SyncUserState, UserState
from mcp_actors._server.visibility import AccessRule, Caller
from mcp_actors.abc import OpenState, ServerTransport, SharedState, Telemetry
from mcp_actors.abc.discovery import find_application, find_source, server_transport
from mcp_actors.abc.http import AsgiServer
from mcp_actors.bridges.bridged_call import calling_bridge, refuse_asyncio
from mcp_actors.errors import LocalProtocolError, McpError
from mcp_actors.shared import MemoryShared
from mcp_actors.supervision import descriptors
from mcp_actors.supervision.arguments import instance_of, require, require_number, require_trio
from mcp_actors.supervision.tracebacks import shorten
from mcp_actors.types import CacheScope, Icon, Implementation, LoggingLevel, ServerCapabilities
from mcp_actors.types.apps import APP_SCHEME

__all__ = [
    "AccessRule",
    "App",
    "Argument",
    "CallNext",
    "CallStatistics",
    "Caller",
    "Component",
    "ComponentKind",
    "Context",
    "Depends",
    "Era",
    "EraName",
    "EventBusStatistics",
    "EventKind",
    "FeatureName",
    "FormResult",
    "Lifespan",
    "LimiterStatistics",
    "Middleware",
    "NotificationMiddleware",
    "Peer",
    "PeerSession",
    "ProcessStatistics",
    "Provided",
    "ProvidedPage",
    "Provider",
    "Reshape",
    "ReshapedCall",
    "Server",
    "ServerStatistics",
    "SessionStatistics",
    "SyncContext",
    "SyncUserState",
    "TaskRules",
    "Turn",
    "TurnKey",
    "TurnStatistics",
    "Unscreened",
    "UserState",
    "current_context",
    "prompts_as_tools",
    "resources_as_tools",
    "stop_if_loaded",
    "stopped_at_run",
]


M = TypeVar("M", bound=Middleware)
F = TypeVar("F", bound=Callable[..., Any])

Lifespan = Callable[["Server[Any]"], AbstractAsyncContextManager[StateT]]
"""Makes the context manager that is entered once for each `Server.serve`; the value it yields is ``ctx.state``."""

# Seconds that the loading of changed files may take. Nothing else waits, and a file is not loaded in half.
_MODULES_WAIT = 60.0

# Seconds after which a watchdog may take a loop for blocked: below, it would look more often than it sees anything.
_WATCHDOG = (0.02, 3600)

_NOT_MOUNTABLE = (
    "what a gateway offers is known while it serves: give its upstreams to one gateway, or mount in it"
)


class Server(Generic[StateT]):
    """A server: its tools, resources and prompts, and the engine that serves them to any number of clients.

    What clients see is registered by decorators and by `add_tool`, `add_resource` and `add_prompt`; `run` or `serve`
    serves it. A function that fails costs the one call it was made for, and is logged.

    For type checkers ``Server[Database]`` is one whose lifespan yields a ``Database``. They find it out by themselves;
    the functions of the server say so again by ``ctx: Context[Database]``.

    Four attributes take functions that are called in the event loop, must not wait, and do nothing by default:
    ``on_subscribe(uri)`` before the first client subscribes to a resource (what it raises refuses the subscription),
    ``on_unsubscribe(uri)`` after the last one has unsubscribed, ``on_listen(ctx)`` and ``on_unlisten(ctx)`` when a
    client of a stateless revision begins and ends to listen (MCP 2026-07-28, Subscriptions).

    Args:
        name: The server's name, for programs and logs.
        version: The server's own version, not that of the protocol.
        title: The name for people; by default clients show ``name``.
        description: A sentence for people.
        website_url: The page where people read more.
        instructions: A text for the model on how to use the server.
        icons: Icons that clients may show.
        lifespan: ``lifespan(server)`` returns an async context manager, which is entered once for each `serve` and
            left after its last call; the value it yields is ``ctx.state``. Of a list of them each is entered in its
            turn, and ``ctx.state`` is the tuple of their values.
        page_size: How many entries one page of a list has: 100, so that small servers have one page.
        limits: The bounds on calls in flight, queues and waiting; see `Limits`.
        versions: The protocol versions that are served; by default all that this engine knows.
        state_key: The key that authenticates the state of calls that ask for input, and the nonces for proofs of
            possession: at least 16 bytes. A retry may reach another process, so all processes that serve one URL need
            the same key. By default it is that of the environment variable ``MCP_ACTORS_STATE_KEY``, in hexadecimal
            digits or in base64; without it, 32 random bytes, with which the retry fails after a restart, too.
        ttl_ms: For how many milliseconds clients may cache lists and resources; 0, the default, promises nothing.
        cache_scope: ``"private"``, the default, keeps caches that several users share from storing them; ``"public"``
            allows it.
        capabilities: What is declared from the start although nothing of it is registered yet, out of ``"tools"``,
            ``"resources"``, ``"prompts"`` and ``"completions"``; nothing by default. A server that registers things
            while it serves names them here: in a session, clients list what was declared when it began, and are
            notified of changes of nothing else.
        extensions: A list of `~mcp_actors.extensions.ServerExtension`, which are offered to clients; or a mapping of
            ids to settings that are only declared, under ``capabilities.extensions``. None by default.
        experimental: Declared as they are under ``capabilities.experimental``.
        mask_errors: Whether clients are sent a reference in place of the text of an exception that a function raises;
            the log has both. By default only clients that the transport has authenticated are, as they are
            rarely those of the server's operator. A `ToolError` is always sent as it is.
        lists_all: Whether lists show callers also what they lack the scopes for. By default they do not, so that a
            model does not try it; a call of it says which scope is missing in any case.
        visible: ``visible(caller, component)`` says whether a caller sees a component of the server, in addition to
            what each says itself; everything by default. See `add_tool`.
        inline_refs: Whether the schemas that are made of type hints are written without ``$ref``, as many hosts cannot
            read one; those of classes that contain themselves keep it. A schema that the program gives stays as it is.
        arguments: What becomes of arguments that do not fit a tool: ``"repair"``, the default, makes of a text what it
            can stand for alone, such as ``3`` of ``"3"`` where no text is taken, tells the model so in the result, and
            counts it; ``"strict"`` refuses them as all others.
        budget: Tokens that the list of tools may cost in a prompt, estimated as four bytes of JSON each. A longer list
            is answered with ``search_tools``, ``call_tool``, what is ``pinned`` and what the session has called. By
            default lists are whole.
        pinned: Patterns of the names of tools, as of `fnmatch`, that are listed whatever the budget is.
        shared: The place of what outlives a session: tasks, events for clients that come back, and what makes several
            processes one server. By default it is a `~mcp_actors.shared.MemoryShared`, and ends with the process.
        telemetry: Receives each call in both directions, the sessions and what the server holds: a
            `~mcp_actors.telemetry.otel.OpenTelemetry`, `~mcp_actors.telemetry.Metrics` or ``Together(…)`` of both. None
            by default, which costs nothing.
        watchdog: Seconds after which a function that blocks the event loop, or an asyncio loop with functions of the
            server, is named in the log, the live view, metrics and the errors of calls that were late because of it.
            By default nothing looks, as programs choose their threads themselves; ``mcp-actors serve`` has it look
            after 0.25 s, above what anybody notices as a pause.

    Raises:
        TypeError: An argument is of another kind, or ``lifespan`` makes no async context manager.
        LocalProtocolError: Two extensions have the same id, or something else of the same name.
        ValueError: ``versions`` is empty or has an unknown version, ``state_key`` or that of the environment is too
            short or malformed, ``page_size`` is less than 1, ``ttl_ms`` is negative, ``watchdog`` is less than 0.02,
            ``cache_scope`` is neither of the two, ``arguments`` is neither of its, ``budget`` is less than 1,
            ``capabilities`` has an unknown name, or clients must reject an icon.
        RuntimeError: ``budget`` is given, and this Python has SQLite without FTS5.
    """

    _is_mountable = True

    def __init__(
        self,
        name: str,
        *,
        version: str = "0",
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        instructions: str | None = None,
        icons: Sequence[Icon] = (),
        lifespan: Lifespan[StateT] | Sequence[Lifespan[Any]] | None = None,
        page_size: int = 100,
        limits: Limits | None = None,
        versions: Sequence[str] = VERSIONS,
        state_key: bytes | None = None,
        ttl_ms: int = 0,
        cache_scope: CacheScope = "private",
        capabilities: Collection[FeatureName] = (),
        extensions: Mapping[str, Any] | Sequence[OfferedExtension] | None = None,
        experimental: Mapping[str, Any] | None = None,
        mask_errors: bool | None = None,
        lists_all: bool = False,
        visible: AccessRule | None = None,
        inline_refs: bool = True,
        arguments: Arguments = "repair",
        budget: int | None = None,
        pinned: Collection[str] = (),
        shared: SharedState | None = None,
        telemetry: Telemetry | None = None,
        watchdog: float | None = None,
    ) -> None:
        with LineNamed():
            _check_settings(
                name=name,
                limits=limits,
                versions=versions,
                state_key=state_key,
                extensions=extensions,
                shared=shared,
                telemetry=telemetry,
                lifespan=lifespan,
                page_size=page_size,
                ttl_ms=ttl_ms,
                cache_scope=cache_scope,
                arguments=arguments,
                icons=icons,
                visible=visible,
                watchdog=watchdog,
            )
            key = state_key_of_environment() if state_key is None else state_key
            self._sealer = StateSealer(key)
        self.name = name
        shown: Any = {"title": title, "description": description, "website_url": website_url}
        self.info = Implementation(name, version, icons=list(icons) or None, **shown)
        self.versions = tuple(v for v in VERSIONS if v in versions)
        self.on_subscribe: Callable[[str], None] = lambda uri: None
        self.on_unsubscribe: Callable[[str], None] = lambda uri: None
        self.on_listen: Callable[[Context], None] = lambda ctx: None
        self.on_unlisten: Callable[[Context], None] = lambda ctx: None
        self._mounts = Mounts()
        self.bus = bus = EventBus(
            on_first_subscriber=self._on_first_subscriber, on_last_unsubscribed=self._on_last_unsubscribed
        )
        only_declared = extensions if isinstance(extensions, Mapping) else None
        offered = bus, page_size, only_declared, experimental, capabilities
        self._features = Features(*offered, lists_all, inline_refs, arguments, visible)
        self._lifespan = lifespan
        self._mask_errors = mask_errors
        stamp = stamp_of(self.info, ttl_ms, cache_scope)
        served = name, limits or Limits(), self.versions, self._features, bus, stamp
        self._runtime = ServerRuntime(*served, shared or MemoryShared(), key, telemetry)
        self._runtime.watchdog = watchdog
        handlers = self._features.handlers
        handlers |= lifecycle_handlers(self.info, instructions)
        handlers["resources/subscribe"] = self._runtime.subscribe
        handlers["resources/unsubscribe"] = self._runtime.unsubscribe
        for each in () if extensions is None or isinstance(extensions, Mapping) else extensions:
            self.add_extension(each)
        self._begin_search(budget, pinned)

    def _begin_search(self, budget: int | None, pinned: Collection[str]) -> None:
        if budget is not None:
            # Most servers list few tools: they load no database for a search.
            search = importlib.import_module("mcp_actors._server.search")
            with LineNamed():
                search.ToolSearch(self._features, budget, pinned)

    def __repr__(self) -> str:
        return f"<Server {self.name!r} {self._features!r} {self._runtime!r}>"

    @property
    def limits(self) -> Limits:
        """The bounds on calls in flight, queues and waiting. Others may be set while it is not served.

        Setting raises `LocalProtocolError` while it is served.
        """
        return self._runtime.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._runtime.limits = limits

    @property
    def shared(self) -> SharedState:
        """The place of what outlives a session. A new one is opened by the next `serve`."""
        return self._runtime.shared

    @shared.setter
    def shared(self, shared: SharedState) -> None:
        self._runtime.shared = shared

    @property
    def telemetry(self) -> Telemetry | None:
        """The receiver of each call. Another one counts from the next `serve` on."""
        return self._runtime.telemetry

    @telemetry.setter
    def telemetry(self, telemetry: Telemetry | None) -> None:
        self._runtime.telemetry = telemetry

    @property
    def watchdog(self) -> float | None:
        """Seconds after which a function that blocks an event loop is named; ``None`` if nothing looks.

        Another value counts from the next `serve` on. Setting raises `ValueError` as the argument does.
        """
        return self._runtime.watchdog

    @watchdog.setter
    def watchdog(self, seconds: float | None) -> None:
        _check_watchdog(seconds)
        self._runtime.watchdog = seconds

    # -- servers of what exists ---------------------------------------------------------------------------------

    @classmethod
    def from_openapi(cls, document: Any, **options: Any) -> Self:
        """Makes a server of an API that an OpenAPI document describes: each operation becomes a tool.

        Versions 3.0 and 3.1, as JSON or, with the extra ``openapi``, as YAML. It is read at once, which waits for the
        network if it is there. `mcp_actors.openapi` has the types of the options.

        Args:
            document: A path, a URL, or the document itself as parsed JSON. Other documents that it refers to are read
                from its folder, or its origin, alone.
            options: ``client``, an `httpx2.AsyncClient` for all requests, which stays open, by default one of the
                server's own with 100 connections at most. A request has its headers and its ``auth``, and none of its
                cookies. ``base_url``, where the API is, by default the base URL of the client, or else the first
                server of the document with ``variables``, a mapping, for its variables. ``routes``, a mapping of
                patterns such as ``{"GET /users/{id}": "resource", "tag:admin": "nothing"}``, or a function of an
                `~mcp_actors.openapi.Operation`; what it does not mention becomes a tool, unless it is deprecated or
                internal. ``credentials(ctx, scheme)``, plain or async, which returns what the caller has for a
                security scheme, and ``headers(ctx)``, which returns further headers; nothing of it is kept.
                ``timeout``, in seconds, for a call, 60 by default. ``retries``, 2 by default: how often a request is
                repeated after a failure, if that does no harm. ``max_bytes`` of an answer, 4 MiB by default.
                ``references``, other places from which documents may be read: beginnings of URLs, and folders. All
                others are those of `Server`; ``name``, ``version`` and ``instructions`` are those of the document by
                default.

        Raises:
            ApiDocumentError: The document cannot be read, is malformed or over a bound, or names no server.
            ImportError: It is YAML, and the extra ``openapi`` is missing.
            TypeError, ValueError: An option is of another kind.
        """
        made: Self = find_source("openapi")(cls, document, **options)
        return made

    @classmethod
    def from_asgi(cls, app: Any, **options: Any) -> Self:
        """Makes a server of an ASGI application that describes itself by OpenAPI, such as one of FastAPI.

        Requests are made without a socket, in the asyncio loop of the program or in one of the engine's own, so that
        the application's middleware, dependencies and authorization work as ever. Its lifespan runs while the server is
        served; where the server is mounted in the same application, the web server runs that. Such a mount does not
        become a tool.

        Args:
            app: The application.
            options: ``document``, the path under which the application answers with its document, by default
                ``/openapi.json``, or the document itself. ``base_url``, under which the application sees itself, by
                default ``http://localhost``. ``routes``, ``credentials``, ``headers``, ``timeout`` and ``max_bytes`` as
                `from_openapi` has them, and those of `Server`.

        Raises:
            ApiDocumentError: The document is malformed or over a bound.
            LocalProtocolError: The application does not answer with it.
            TypeError, ValueError: An option is of another kind.
        """
        made: Self = find_source("asgi")(cls, app, **options)
        return made

    # -- registering what clients see ---------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, function: None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a tool, and returns the function as it is.

        ``@server.tool`` and ``@server.tool(title="Search")`` are the two forms.

        Args:
            function: The function, when the decorator is used without options.
            options: Those of `add_tool`.

        Raises:
            TypeError: The signature cannot be used.
            ValueError: A schema cannot be used.
            LocalProtocolError: The name is taken.
        """

        def add(function: F) -> F:
            self.add_tool(function, **options)
            return function

        check_decorated(function, "tool")
        return add if function is None else add(function)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Adds a tool. MCP 2026-07-28, Tools.

        The input schema comes from the function's type hints, the output schema from its return type, the description
        from its docstring. Text, content blocks, `Image`, `Audio`, `File` and lists of these are sent as content, other
        values as structured content. An ``async def`` is awaited; a plain ``def`` runs in one of 40 worker threads,
        which a cancelled call abandons. A `ToolError` is shown to the model as it is. For any other exception but an
        `~mcp_actors.errors.RpcError`, which is sent as a JSON-RPC error, the model is shown the tool's name and the
        exception, unless ``mask_errors`` of the server masks it.

        Args:
            function: Takes the arguments by name, and the `Context` in a parameter that is annotated with it.
            options: ``name``, the name for clients, by default the function's; ``title``, the name for people;
                ``description``; ``annotations`` (`~mcp_actors.types.ToolAnnotations`); ``icons``; ``meta``, the tool's
                ``_meta``; ``inline=True`` runs a sync function on the event loop instead of in a thread, for functions
                that take microseconds and never block; ``loop="asyncio"`` awaits an ``async def`` in the program's
                asyncio loop, or in one of the engine's own where there is none, see `Context`; ``input_schema``, a JSON
                Schema with ``type: object``, makes the function take the arguments as one dict; ``output_schema``, a
                JSON Schema, replaces the one of the return type; ``timeout``, in seconds, none by default, cancels a
                call that takes longer (a function in a worker thread runs on, and its result is dropped) and tells the
                model so; ``turn``, a text such as ``"{path}"``, a plain function of context and arguments, or a `Turn`,
                has calls with the same key run one after the other; ``isolate="process"`` runs the function in a
                process of its own, which is killed when the call is cancelled, and ``memory``, in bytes, and ``cpu``,
                in seconds of processor time, bound a call there; ``lifespan``, a function with one yield that
                contextlib decorates, is entered once in each such process, and ``ctx.state`` is its value; ``scopes``,
                a list, are those that a caller needs, all of them, see `InsufficientScope`: callers over HTTP and
                WebSocket have those of their principal, and over other bindings nothing is checked;
                ``visible`` and ``auth`` are plain functions of the
                `Caller` and the `Component`, which run on the event loop: what ``visible`` denies is not listed, and
                a call is answered as that of an unknown
                name; what ``auth`` denies is not listed either, and a call raises `NotAllowed`, or the `RpcError`
                that ``auth`` raises; ``tags``, a list, are for `hide` and rules, and clients see them in ``_meta``;
                ``version`` makes it one of several under the name: the newest that a caller may see is listed, and
                ``_meta`` of a call asks for another one by ``mcp-actors/version``; ``task``, ``restartable`` and
                ``before_task`` make tasks of calls, see `mcp_actors.tasks`; ``app`` is the page on which hosts show
                results (SEP-1865): a file of HTML, relative to the one that the function is written in, which is read
                now; a function that returns HTML; the ``ui://`` URI of a resource; or an `App`, which says more.

        Raises:
            TypeError: The signature cannot be used, or the function has no name of its own and ``name`` is missing.
            ValueError: A schema cannot be used, the name is empty, clients must reject an icon, or the file of ``app``
                is not there, leads out of its folder, or is not a document of HTML of 4 MiB at most.
            LocalProtocolError: There is a tool with this name, or another page with the URI of this one, or it is the
                first one with ``task`` and the server serves: ``Server(extensions=[Tasks()])`` is ready for tools that
                are added later.
        """
        with LineNamed():
            check_options(options, ToolOptions)
            self._features.loop.call(self._features.add_tool, function, options)

    def remove_tool(self, name: str) -> None:
        """Removes a tool, with all its versions. Calls in flight go on.

        Args:
            name: The name for clients.

        Raises:
            LocalProtocolError: There is no such tool.
        """
        with LineNamed():
            self._features.loop.call(self._features.tools.remove, name)

    def reshape(self, name: str, reshape: Reshape, /, *, keep: bool = False) -> None:
        """Shows a tool in another shape: with another name, other texts, arguments or results, in another function.

        The schema that clients see is made here, and checked. Arguments are checked against it, get the names that the
        tool has for them, and are checked by the tool then. Everything else about the tool stays: scopes, tasks,
        progress, cancellation. One that is shown by `mount` is reshaped there: ``mount(…, tools={"x": Reshape(…)})``.

        Args:
            name: The name of the tool for clients, which may have been reshaped before.
            reshape: The other shape.
            keep: Whether the tool stays as it is beside its other shape, which has to have another name then. By
                default the other shape takes its place, at the end of the list.

        Raises:
            LocalProtocolError: There is no tool with this name, it is one of a mount, or the new name is taken.
            ValueError: An argument does not exist, two would have the same name, a value does not fit its schema, the
                tool needs one that nobody gives, or the schema cannot be used.
            TypeError: The function of ``wrap`` has other parameters, or returns what has no form in JSON.
        """
        with LineNamed():
            if not isinstance(reshape, Reshape):
                raise TypeError(f"{reshape!r:.80} is no shape: write Reshape(…)")
            for mount in self._mounts.by_name.values():
                own = mount.own_tool(name)
                if own is not None:
                    raise LocalProtocolError(
                        f"the tool {name!r} is one of the mount {mount.name!r}: write "
                        f"mount({mount.name!r}, …, tools={{{own!r}: Reshape(…)}})"
                    )
            self._features.loop.call(reshape_tool, self._features.tools, name, reshape, keep)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Decorator: adds a resource, or a template if ``uri`` has variables, and returns the function as it is.

        Args:
            uri: The URI, or a URI template (RFC 6570).
            options: Those of `add_resource`.

        Raises:
            TypeError: The function's parameters are not the template's variables, or an option does not fit.
            ValueError: The template is malformed, the name is empty, or clients must reject an icon.
            LocalProtocolError: The URI is taken.
        """

        def add(function: F) -> F:
            self.add_resource(uri, function, **options)
            return function

        with LineNamed():
            check_uri(uri)
            check_options(options, ResourceOptions)
        return add

    def add_resource(
        self, uri: str, function: Callable[..., Any], **options: Unpack[ResourceOptions]
    ) -> None:
        """Adds a resource, or a template (RFC 6570) if ``uri`` has variables. MCP 2026-07-28, Resources.

        The function returns text, bytes, contents, a list of contents, or any typed value, which is sent as JSON. It
        raises `ResourceNotFound` when there is nothing. A URI is looked up among the resources first, then in the
        templates in the order in which they were added.

        Args:
            uri: The URI, or a template such as ``weather://{city}/now``.
            function: Takes the template's variables by name, and the `Context` as tools do. The variables are text;
                for a parameter that takes none they are read as for prompts.
            options: ``name``, ``title``, ``description``, ``icons``, ``meta``, ``inline``, ``loop``, ``scopes``,
                ``tags``, ``version``, ``visible`` and ``auth`` as `add_tool` has them (who may use it also counts for
                subscriptions and completions, and the functions are asked about each resource of a template, too);
                ``mime_type``; ``annotations`` (`~mcp_actors.types.Annotations`); ``size``, in bytes, for resources
                only; ``list``, for templates only, is a function that returns the `~mcp_actors.types.Resource` objects
                that exist now: ``resources/list`` shows them, and calls it for every page.

        Raises:
            TypeError: The function's parameters are not the template's variables, or an option does not fit.
            ValueError: The template is malformed, the name is empty, or clients must reject an icon.
            LocalProtocolError: There is a resource or template with this URI.
        """
        with LineNamed():
            check_options(options, ResourceOptions)
            self._features.loop.call(partial(self._features.resources.add, uri, function, **options))

    def remove_resource(self, uri: str) -> None:
        """Removes a resource or a template, with all its versions. Calls in flight go on.

        Args:
            uri: The URI or the template, as it was added.

        Raises:
            LocalProtocolError: It does not exist.
        """
        with LineNamed():
            self._features.loop.call(self._features.resources.remove, uri)

    @overload
    def prompt(self, function: F, /) -> F: ...

    @overload
    def prompt(self, function: None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...

    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a prompt, and returns the function as it is.

        Args:
            function: The function, when the decorator is used without options.
            options: Those of `add_prompt`.

        Raises:
            TypeError: The signature cannot be used.
            LocalProtocolError: The name is taken.
        """

        def add(function: F) -> F:
            self.add_prompt(function, **options)
            return function

        check_decorated(function, "prompt")
        return add if function is None else add(function)

    def add_prompt(self, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        """Adds a prompt. MCP 2026-07-28, Prompts.

        The function returns a string, a content block or an `Image`, `Audio` or `File` (one message of the user), a
        `~mcp_actors.types.PromptMessage`, a list of these, or a whole `~mcp_actors.types.GetPromptResult`.

        Args:
            function: Its parameters are the prompt's arguments, optional if they have a default. The protocol has
                text for them, which is read as JSON for a parameter that takes no text: ``3``, ``true``, ``["a"]``.
                It takes the `Context` as tools do.
            options: ``name``, ``title``, ``description``, ``icons``, ``meta``, ``inline``, ``loop``, ``scopes``,
                ``tags``, ``version``, ``visible`` and ``auth`` as `add_tool` has them (who may use it also counts for
                completions).

        Raises:
            TypeError: Nothing can be written for a parameter, or the function has no name of its own and ``name`` is
                missing.
            ValueError: The name is empty, or clients must reject an icon.
            LocalProtocolError: There is a prompt with this name.
        """
        with LineNamed():
            check_options(options, PromptOptions)
            self._features.loop.call(partial(self._features.prompts.add, function, **options))

    def remove_prompt(self, name: str) -> None:
        """Removes a prompt, with all its versions. Calls in flight go on.

        Args:
            name: The name for clients.

        Raises:
            LocalProtocolError: There is no such prompt.
        """
        with LineNamed():
            self._features.loop.call(self._features.prompts.remove, name)

    def completion(
        self,
        *,
        argument: str,
        prompt: str | None = None,
        resource: str | None = None,
        inline: bool = False,
        loop: Loop = None,
    ) -> Callable[[F], F]:
        """Decorator: the function completes an argument of a prompt or a variable of a resource template.

        MCP 2026-07-28, Completion. The function takes the text that was typed so far and, if it has parameters for
        them, the arguments that have a value already (a mapping of strings) and the `Context`. It returns strings, the
        best one first, or a `~mcp_actors.types.Completion`. Clients are sent at most 100 values. Arguments whose
        annotation lists their values are completed without such a function.

        Args:
            argument: The name of the argument or variable.
            prompt: The name of the prompt; it may be added later.
            resource: The text of the resource template; it may be added later.
            inline: Whether a sync function runs on the event loop instead of in a thread; then it must not block.
            loop: ``"asyncio"`` for an ``async def`` that needs it, as `add_tool` has it.

        Raises:
            TypeError: Not exactly one of ``prompt`` and ``resource`` is given, or the function takes other arguments.
            LocalProtocolError: There is a function for this argument already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._features.completions.add(
                    function, prompt=prompt, resource=resource, argument=argument, inline=inline, loop=loop
                )
            return function

        return add

    def method(self, name: str, *, scopes: Collection[str] = (), loop: Loop = None) -> Callable[[F], F]:
        """Decorator: the function answers a method that is not part of the protocol, in every revision.

        It is ``async def f(params: dict[str, Any], ctx: Context) -> dict[str, Any]``. It raises
        `~mcp_actors.errors.RpcError` to answer with an error of its own; for any other exception the client is sent
        -32603 with its text, unless ``mask_errors`` of the server masks it.

        Args:
            name: The method, as clients send it.
            scopes: A list of those that a caller needs, all of them, as `add_tool` has them.
            loop: ``"asyncio"`` if the function needs it, as `add_tool` has it.

        Raises:
            TypeError: The name or a scope is malformed, or the function is not of this form.
            LocalProtocolError: The method is answered already, by the protocol or by another function.
        """

        def add(function: F) -> F:
            with LineNamed():
                check_async(function, "params, ctx")
                self._features.add_method(name, in_loop(function, loop), scopes)
            return function

        with LineNamed():
            if not isinstance(name, str):
                raise TypeError('a method has a name: write @server.method("my/method")')
            check_options({"scopes": scopes}, PromptOptions)
        return add

    def notification(self, name: str, *, inline: bool = False, loop: Loop = None) -> Callable[[F], F]:
        """Decorator: the function takes a notification of clients: one of your own, or a change of their roots.

        The latter is ``notifications/roots/list_changed`` (MCP 2025-11-25, Roots, Root List Changes). The parameters
        are those members of the notification's params that the function wants, with the types that they have to have,
        and the `Context` as tools take it: in a session the function may ask the client, log and keep state. It runs in
        a task of its own, counts among the calls in flight, and is cancelled with its session. There is no answer: what
        it returns is dropped, and what it raises is logged, as are params that do not fit. Notifications come before
        the handshake, too, and from stateless clients, to which nothing can be sent.

        Args:
            name: The method, as clients send it.
            inline: Whether a sync function runs on the event loop instead of in a thread; then it must not block.
            loop: ``"asyncio"`` for an ``async def`` that needs it, as `add_tool` has it.

        Raises:
            TypeError: The signature cannot be used.
            LocalProtocolError: The notification is taken already, by the engine or by another function.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._features.notifications.add(name, function, inline=inline, loop=loop)
            return function

        with LineNamed():
            if not isinstance(name, str):
                raise TypeError('a notification has a name: write @server.notification("notifications/my")')
        return add

    def add_extension(self, extension: OfferedExtension) -> None:
        """Offers an extension to clients (SEP-2133), as ``extensions=[extension]`` does, before the server serves.

        Args:
            extension: A `~mcp_actors.extensions.ServerExtension`, complete, and for this server alone.

        Raises:
            TypeError: It is not such an extension.
            LocalProtocolError: Its id, or a method, notification or member of subscriptions of it, is taken, or it is
                offered by a server already, or this server serves.
        """
        with LineNamed():
            self._features.add_extension(extension)

    # -- running functions round requests -----------------------------------------------------------------------

    @overload
    def middleware(self, function: M, /) -> M: ...

    @overload
    def middleware(self, function: None = None, /, *, loop: Loop = None) -> Callable[[M], M]: ...

    def middleware(self, function: Any = None, /, *, loop: Loop = None) -> Any:
        """Decorator, with or without ``loop``: runs a function round every request but ``ping`` and ``initialize``.

        Those two are answered at once even when everything else waits, because a peer whose ping is not answered takes
        the server for dead. With middleware every other request runs in a task of its own, inline tools as well. An
        object of a class with ``async def notification(self, ctx, call_next)`` has that run round the functions of
        notifications, too. One with ``added_to(self, server)`` has that called first, to add tools that belong to it.
        `mcp_actors.middleware` has objects that are ready.

        Args:
            function: ``async def f(ctx, call_next)``. It returns the result of ``await call_next()``, or another one,
                or raises. The function that was added first is the outermost.
            loop: ``"asyncio"`` for a function that needs it, as `add_tool` has it.

        Raises:
            TypeError: The function is not of this form, or is for clients.
        """

        def add(function: M) -> M:
            with LineNamed():
                if getattr(function, "for_side", None) == "client":
                    name = getattr(function, "__name__", type(function).__name__)
                    raise TypeError(f"{name} is for clients: write Client(…, middleware=[{name}(…)])")
                check_async(function, "ctx, call_next")
                added_to = getattr(function, "added_to", None)
                if added_to is not None:
                    added_to(self)
                self._features.add_middleware(middleware_in_loop(function, loop))
            return function

        return add if function is None else add(function)

    # -- serving ------------------------------------------------------------------------------------------------

    def run(
        self,
        *targets: str | ServerTransport,
        task_status: trio.TaskStatus[tuple[Any, ...]] = trio.TASK_STATUS_IGNORED,
        **unknown: Never,
    ) -> None:
        """Serves in a Trio loop of its own until every transport is done or a signal to stop arrives.

        The signals are SIGINT and SIGTERM, and on Windows SIGBREAK too. At the signal the server stops as by `stop`; a
        second one cancels what is left at once. They are caught while this runs in the main thread; no other thread
        gets signals, so there only `stop`, or the end of every transport, ends it. The garbage collector makes full
        passes rarely, and the process may open as many files as the system allows it, 65,536 at most (the soft limit
        of ``RLIMIT_NOFILE`` is raised). A program that has a Trio loop uses `serve`, which does neither.

        Without targets, and with a terminal as standard input and error, a line on standard error says first how to
        try the server and how to stop it.

        Args:
            targets: URLs or transports; by default ``"stdio:"``, one client on standard input and output.
            task_status: As in `serve`.
            unknown: There are no others: what other SDKs take, such as ``transport=``, is answered with what to write.

        Raises:
            RuntimeError: An event loop runs in this thread already, Trio's or asyncio's.
            LocalProtocolError: The server is served in another event loop, or an admin endpoint is the only target.
            TypeError: A target is neither a URL nor a transport.
            TransportNotFound: There is no binding for a URL.
            ValueError: A URL or its options are malformed.
            OSError: A transport cannot listen: the port is taken, or the path may not be used.
        """
        if unknown:
            raise TypeError(
                f"server.run() has no {next(iter(unknown))}=: write server.run('http://127.0.0.1:8000/mcp') to serve "
                "at a URL, and server.run() for standard input and output"
            )
        stop_if_loaded(self)
        if trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "server.run() starts a Trio loop, and one runs here: use 'await server.serve(...)'"
            )
        refuse_asyncio("server.run()", "await mcp_actors.asyncio.serve(server, ...)")
        if not targets:
            write_terminal_hint(self.name)
        descriptors.raise_limit()
        with rare_full_passes():
            serve = partial(self.serve, *(targets or ("stdio:",)), task_status=task_status)
            try:
                trio.run(serve_until_signal, self, serve)
            except McpError as error:
                shorten(error)
                raise

    async def serve(
        self,
        *targets: str | ServerTransport,
        task_status: trio.TaskStatus[tuple[Any, ...]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until every transport is done, or until this is cancelled or the server stopped.

        Cancelled, it cancels the calls in flight and closes every connection at once; `stop` lets calls end first. May
        be called several times, also at the same time. A connection that fails ends alone. A transport that fails ends
        the whole `serve`.

        Args:
            targets: URLs such as ``"http://127.0.0.1:8000/mcp"``, or transports; without any it returns at once.
            task_status: Is given the tuple of the places where they accept connections, once all of them do.

        Raises:
            TransportNotFound: There is no binding for a URL.
            ValueError: A URL or its options are malformed.
            OSError: A transport cannot listen: the port is taken, or the path may not be used.
            TypeError: A target is neither a URL nor a transport.
            RuntimeError: There is no Trio loop, under asyncio for example.
            LocalProtocolError: A transport object is served already, or the server in another event loop, by
                `mcp_actors.asyncio` for example; or an admin endpoint is the only target.
            Exception: Whatever else a transport or the lifespan raises, alone and not in a group.
        """
        require_trio("await server.serve(...)", "serve")
        transports = [server_transport(each) if isinstance(each, str) else each for each in targets]
        for each in transports:
            if not isinstance(each, ServerTransport):
                raise TypeError(f"a server serves at URLs and transports, not at {each!r:.80}")
        await self._runtime.serve(transports, self._scope, task_status)

    def asgi(self, path: str = "/mcp", *, websocket: str | None = None, **settings: Any) -> AsgiServer:
        """Returns an ASGI 3 application that serves this server over HTTP: see `mcp_transports.http.asgi.AsgiApp`.

        For programs that have a web server: uvicorn, hypercorn, granian, or a framework that mounts applications.

        Args:
            path: The path of Streamable HTTP, below where the application is mounted.
            websocket: The path of WebSocket there; ``None`` for none.
            settings: Those of `~mcp_transports.http.server.HttpServerTransport`, all but the URL and TLS.

        Raises:
            ImportError, TypeError, ValueError: A setting is wrong, or needs an extra that is missing.
        """
        served: AsgiServer = find_application("asgi")(self, path=path, websocket=websocket, **settings)
        return served

    def stop(self, delay: float | None = None) -> None:
        """Takes no new work, lets calls in flight end, then ends every `serve`. Never waits itself.

        At first it goes on for ``delay`` seconds: it says that it is not ready, and ends each connection of HTTP with
        its next answer, so that clients and proxies go elsewhere. Then calls have `Limits.drain_grace` seconds; those
        that are left are cancelled and answered with `ServerStopping`, and after `Limits.close_timeout` all is over.
        Safe from any task and any thread; a second time it does nothing, but for ending the delay where that is 0. The
        server can be served again later.

        Args:
            delay: Seconds; by default `Limits.drain_delay`.

        Raises:
            LocalProtocolError: The event loop in which the server is served is blocked, or has broken down.
        """
        self._runtime.stop(delay)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called since the server was served last."""
        return self._runtime.stopping

    @asynccontextmanager
    async def _scope(self, shared: OpenState) -> AsyncIterator[ServerScope]:
        async with AsyncExitStack() as stack:
            state = await self._entered_lifespan(stack)
            sessions = self._runtime.sessions
            scope = ServerScope(
                self,
                state,
                self._sealer,
                self.limits,
                sessions.peer_session,
                sessions.elicitations,
                self._mask_errors,
                trio.lowlevel.current_trio_token(),
                calling_bridge.get(),
                self._features.threads,
                shared=shared,
            )
            scope.kept = await stack.enter_async_context(kept_values(self._features.overrides))
            self._start_ahead(scope)
            await stack.enter_async_context(LiveMounts(self, scope, self._runtime.calls))
            yield scope

    def _start_ahead(self, scope: ServerScope) -> None:
        """Starts the processes of isolated functions."""
        self._features.start_ahead(scope)

    async def _entered_lifespan(self, stack: AsyncExitStack) -> Any:
        """Enters the lifespan, which ``stack`` leaves, and returns what ``ctx.state`` is then."""
        if self._lifespan is None:
            return None
        if isinstance(self._lifespan, Sequence):
            return tuple([await stack.enter_async_context(each(self)) for each in self._lifespan])
        return await stack.enter_async_context(self._lifespan(self))

    # -- other servers in this one --------------------------------------------------------------------------------

    def mount(
        self,
        name: str,
        other: Server[Any],
        /,
        *,
        prefix: str | None = None,
        rename: Mapping[str, str] | None = None,
        include: Collection[str] = ("*",),
        exclude: Collection[str] = (),
        scopes: Collection[str] = (),
        tools: Mapping[str, Reshape] | None = None,
    ) -> None:
        """Shows everything that another server has in this one, and keeps it as it is there.

        Tools and prompts get names that begin with the prefix; the URIs of resources and templates stay, since results
        contain them, but for those of the pages of tools, of which ``ui://board`` is ``ui://NAME/board``. What
        ``other`` registers later appears, what it removes goes, and clients are notified. A call runs as it does at
        home: ``ctx.server`` and ``ctx.state`` are those of ``other``, its middleware runs inside of that of this
        server, and its lifespan is entered once for each `serve` of this server, or now if that serves: then it is
        shown when the lifespan has been entered, and the log says if that fails. Methods and notifications beyond the
        protocol are taken over under their own names. Limits, page size, masking of errors and everything else about
        connections are those of this server. ``other`` may have mounts itself, be mounted several times, and be served
        itself as well.

        Args:
            name: The name of the mount, for `unmount`, errors and the log.
            other: The server, which is no `~mcp_actors.gateway.Gateway`.
            prefix: What the names of its tools and prompts begin with; by default ``name`` and ``_``, and with ``""``
                nothing.
            rename: Names of tools and prompts, as ``other`` has them, that are others here, without the prefix.
            include: Patterns of the names (its own) and URIs that are shown, as of `fnmatch`.
            exclude: Patterns of the names and URIs that are not shown, although they are included.
            scopes: Those that a caller needs for anything of it, beside its own.
            tools: Other shapes of tools, by the names that ``other`` has: see `Reshape`. One that it registers later
                and that cannot have its shape is not shown, which is logged.

        Raises:
            LocalProtocolError: Something of it has a name that is taken here, there is a mount of this name, it has an
                extension that this server does not offer, a tool cannot have the shape that it is to have, or it is
                this server, or one that this one is mounted in.
            TypeError: It is no `Server`, or one of a kind that cannot be mounted, or ``tools`` has no shapes.
            ValueError: Two things are renamed alike, twice or to nothing, or patterns are a text.
        """
        with LineNamed():
            if not isinstance(other, Server) or not other._is_mountable:
                hint = _NOT_MOUNTABLE if isinstance(other, Server) else "give a Server object"
                raise TypeError(f"{other!r:.80} cannot be mounted: {hint}")
            check_options({"scopes": scopes}, PromptOptions)
            of = f"mount {name!r}"
            shapes = tools or {}
            renamed = reshaped_names(of, shapes)
            begin = f"{name}_" if prefix is None else prefix
            # Two servers that know nothing of each other may call their pages the same.
            folders = {APP_SCHEME: quote(name, safe="")} if begin else {}
            names = NameTable(of, begin, rename or {}, include, exclude, renamed, folders)
            self._features.loop.call(self._begin_mount, Mount(name, self, other, names, scopes, shapes))

    def _begin_mount(self, mount: Mount) -> None:
        if mount.name in self._mounts.by_name:
            raise LocalProtocolError(f"there is already a mount {mount.name!r}: give this one another name")
        if mount.server is self or any(each is self for each in mount.server._all_mounted()):
            raise LocalProtocolError(f"{mount!r} would contain itself")
        self._mounts.by_name[mount.name] = mount
        try:
            mount.begin()
        except BaseException:
            del self._mounts.by_name[mount.name]
            raise

    def unmount(self, name: str) -> None:
        """Takes a server out that was mounted. Calls in flight go on, and its lifespan is left after the last one.

        Args:
            name: The name of the mount.

        Raises:
            LocalProtocolError: There is no such mount.
        """
        with LineNamed():
            if name not in self._mounts.by_name:
                raise LocalProtocolError(f"there is no mount {name!r}")
            self._features.loop.call(self._end_mount, name)

    def _end_mount(self, name: str) -> None:
        mount = self._mounts.by_name.pop(name)
        mount.hide()
        for each in self._mounts.live:
            each.leave_later(mount)

    def _all_mounted(self) -> Iterator[Server[Any]]:
        for each in self._mounts.by_name.values():
            yield each.server
            yield from each.server._all_mounted()

    def _on_first_subscriber(self, uri: str) -> None:
        self.on_subscribe(uri)
        try:
            for each in self._mounts.by_name.values():
                if each.covers(uri):
                    each.server._on_first_subscriber(each.names.own_uri(uri))
        except BaseException:
            self.on_unsubscribe(uri)
            raise

    def _on_last_unsubscribed(self, uri: str) -> None:
        for each in self._mounts.by_name.values():
            if each.covers(uri):
                each.server._on_last_unsubscribed(each.names.own_uri(uri))
        self.on_unsubscribe(uri)

    @contextmanager
    def override(self, function: Callable[..., Any], replacement: Callable[..., Any], /) -> Iterator[None]:
        """Has another function make what functions get by ``Depends(function)``, within the block. For tests.

        It counts in this server and in all that is mounted in it, for what is made from then on: what was made already
        for a session or for the server stays.

        Args:
            function: The one that ``Depends`` was given.
            replacement: Any function that ``Depends`` takes, such as ``lambda: FakeDatabase()``. It is made for the
                same scope, and closed in the same way.

        Raises:
            TypeError: ``replacement`` cannot be used as a dependency.
            LocalProtocolError: ``function`` is overridden in this server already.
        """
        with LineNamed():
            self._features.overrides.add(function, replacement)
        try:
            yield
        finally:
            self._features.overrides.remove(function)

    # -- components that are not registered -------------------------------------------------------------------------

    def add_provider(self, provider: Provider, /, *, wait: float = 5.0) -> None:
        """Shows what a provider has, behind everything that is registered: a database, a folder, another API.

        A list goes on from what is registered into the providers, page by page, and no provider is read further than a
        client asks. A call of a name that is not registered asks for that one component. One that fails or is too slow
        costs its own part of a list, of which clients are told by a log message, and calls of what it has.

        Args:
            provider: The provider, which may be added to several servers.
            wait: Seconds that each of its answers may take, after which it is cancelled; 5, since clients give up on
                lists after 10 or more. After that lists do not wait for it for 30 s.

        Raises:
            TypeError: It is no `Provider`, or this server is a `~mcp_actors.gateway.Gateway`.
            ValueError: ``wait`` is less than 0.01 or more than 3,600, or ``kinds`` has an unknown one.
            LocalProtocolError: It was added already.
        """
        with LineNamed():
            if not isinstance(provider, Provider):
                raise TypeError(f"{provider!r:.80} is no provider: give an object of a class of Provider")
            self._check_providing()
            require_number("wait", wait, 0.01, 3600)
            add = self._features.add_provider
            self._features.loop.call(partial(add, provider, type(provider).__name__, wait))

    def _check_providing(self) -> None:
        if not self._is_mountable:
            raise TypeError("a gateway has no providers: give the server that has them to it as an upstream")

    def remove_provider(self, provider: Provider, /) -> None:
        """Shows no longer what a provider has. Calls in flight go on.

        Args:
            provider: The provider.

        Raises:
            LocalProtocolError: It was not added.
        """
        with LineNamed():
            self._features.loop.call(self._features.remove_provider, provider)

    def add_modules(self, folder: str | PathLike[str], /, *, reload: bool = False) -> None:
        """Shows the functions in a folder's Python files that are marked by `tool`, `resource` and `prompt`.

        The files are loaded now, those in folders below included. The name of a tool or prompt begins with that of its
        file: ``create`` in ``issues.py`` is ``issues_create``, unless it has ``name=``, or the name of its file. Files
        and folders whose names begin with ``_`` or ``.`` are left out.

        Args:
            folder: The folder, relative to that of the process.
            reload: Whether files that have changed are loaded again when clients ask for something, at most once a
                second. What cannot be loaded again stays as it was, and is logged.

        Raises:
            LocalProtocolError: There is no such folder, it has more than 1,000 files, or two functions the same name.
            TypeError, ValueError: A function cannot be used, as `add_tool` says, or this server is a gateway.
            Exception: What a file raises.
        """
        with LineNamed():
            self._check_providing()
            # Most servers have no such folder.
            modules = importlib.import_module("mcp_actors._server.modules")
            provider = modules.ModuleProvider(Path(folder).resolve(), reload=reload)
            self._features.loop.call(self._add_modules, provider)

    def _add_modules(self, provider: Any) -> None:
        source = self._features.add_provider(provider, "modules", _MODULES_WAIT)
        try:
            for each in provider.items:
                source.entry(each)
        except BaseException:
            self._features.remove_provider(provider)
            raise

    # -- skills -----------------------------------------------------------------------------------------------------

    def add_skills(
        self, folder: str | PathLike[str], /, *, reload: bool = False, **options: Unpack[SkillOptions]
    ) -> None:
        """Serves the skills in a folder (SEP-2640): each folder with a ``SKILL.md``, at any depth, with its files.

        A folder is called as its skill is, and its URI is ``skill://`` and its path below this one. A client lists the
        skills with what each says of itself and with the SHA-256 and the size of each file, and reads the files as
        resources. They are read now, and kept in memory. Links are refused; names that begin with a dot are left out.

        Args:
            folder: The folder, relative to that of the process; it may be a skill itself.
            reload: Whether files that have changed are read again when clients ask for something, at most once a
                second, which clients are notified of. What cannot be served then stays as it was, and is logged.
            options: Who sees the skills: ``scopes``, ``tags``, ``visible`` and ``auth``, as `add_resource` has them.

        Raises:
            LocalProtocolError: There is no such folder, no skill in it, something that cannot be served, such as a
                skill of more than 512 files or 16 MiB, or a skill that is there already; or the server has no skills
                yet, and serves.
            TypeError: An option does not fit, or this server is a gateway.
            ImportError: The library for YAML is not installed: ``pip install 'pyyaml>=6.0.2'``.
        """
        with LineNamed():
            skills = self._skills(options)
            found = skills.SkillFolder(Path(folder).resolve(), options)
            found.read()
            methods_of = skills.methods_of
            self._features.loop.call(lambda: methods_of(self._features).add_folder(found, reload=reload))

    def add_skill(
        self,
        files: Mapping[str, str | bytes | Callable[..., Any]],
        /,
        *,
        folder: str = "",
        **options: Unpack[SkillOptions],
    ) -> None:
        """Serves a skill that the program has made (SEP-2640), as `add_skills` does.

        Args:
            files: What the skill has, by paths such as ``"references/FORMS.md"``: text, bytes, or a function as
                `add_resource` takes it, which is called for each read. ``"SKILL.md"`` is text or bytes, and begins with
                the frontmatter. A skill with a function in it is *dynamic*: clients cannot compare what they read, and
                some decline it.
            folder: The folder above it, such as ``"acme/billing"``; none by default.
            options: Who sees it, as `add_skills` has them.

        Raises:
            ValueError: It is not a skill, or has more than 512 files or 16 MiB.
            TypeError: A file has other contents, an option does not fit, or this server is a gateway.
            LocalProtocolError: There is a skill of its URI, or too many; or the server has no skills yet, and serves.
            ImportError: As `add_skills`.
        """
        with LineNamed():
            skills = self._skills(options)
            made = skills.make_skills(skills.place_of(folder), files, options)
            methods_of = skills.methods_of
            self._features.loop.call(lambda: methods_of(self._features).add(made))

    def remove_skill(self, uri: str, /) -> None:
        """Removes a skill that `add_skill` has added, and those in it. Reads in flight go on.

        Args:
            uri: The URI of its ``SKILL.md``.

        Raises:
            LocalProtocolError: There is no such skill.
        """
        with LineNamed():
            found = self._features.skills
            if found is None:
                raise LocalProtocolError(f"add_skill() has added no skill {uri!r}")
            self._features.loop.call(partial(found.remove, uri))

    def _skills(self, options: Mapping[str, Any]) -> Any:
        check_options(options, SkillOptions)
        self._check_providing()
        # Most servers have none.
        return importlib.import_module("mcp_actors._server.skills")

    # -- who sees what ----------------------------------------------------------------------------------------------

    def hide(self, *names: str, kind: ComponentKind | None = None, tags: Collection[str] = ()) -> None:
        """Hides components from all clients, until `show` shows them again.

        They are not listed, and a call of one is answered as that of an unknown name. They may be registered later.
        What was called last counts. Clients are notified if their lists are others then. `PeerSession.hide` and
        `PeerSession.show` do the same for one session: ``ctx.session.show(tags=["admin"])``. Safe from any thread; it
        counts for this process.

        Args:
            names: Names of tools and prompts, URIs of resources and texts of templates; without any, names do not
                count.
            kind: One of ``"tool"``, ``"prompt"``, ``"resource"`` and ``"template"``; by default all kinds.
            tags: Those of which a component has at least one; without any, tags do not count.

        Raises:
            TypeError: Nothing is named, or by something that is no text.
            ValueError: There is no such kind.
            LocalProtocolError: A thousand different things are switched already.
        """
        with LineNamed():
            self._features.loop.call(self._features.switch, make_switch(False, names, kind, tags))

    def show(self, *names: str, kind: ComponentKind | None = None, tags: Collection[str] = ()) -> None:
        """Shows components to all clients that `hide` has hidden. What ``visible=`` and ``auth=`` hide stays hidden.

        Args:
            names: As `hide` has them.
            kind: As `hide` has it.
            tags: As `hide` has them.

        Raises:
            TypeError, ValueError, LocalProtocolError: As `hide` does.
        """
        with LineNamed():
            self._features.loop.call(self._features.switch, make_switch(True, names, kind, tags))

    def visibility_changed(self) -> None:
        """Notifies those clients whose lists are others than before. Never waits; safe from any thread.

        For functions given as ``visible=`` and ``auth=`` that decide by something that has changed.
        """
        self._features.publish_lists()

    # -- telling clients outside of calls -----------------------------------------------------------------------

    def resource_updated(self, uri: str) -> None:
        """Notifies every client that subscribed to this resource or to one that its URI lies below.

        Never waits; safe from any thread. Updates that a slow client has not taken yet count as one.

        Args:
            uri: The resource that has changed.
        """
        self.bus.publish("resource_updated", uri)

    def resources_changed(self) -> None:
        """Notifies clients that the list of resources is another one. Never waits; safe from any thread.

        For templates whose ``list=`` finds other resources than before: what is added and removed here is announced
        without it.
        """
        self.bus.publish("resources")

    def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> None:
        """Sends a log message to the client of every legacy session that wants messages of this level. Never waits.

        MCP 2025-11-25, Logging. It must hold no secrets. It is dropped for a client that reads too slowly, or has no
        stream open on which it could come. Stateless clients get log messages only within their calls: `Context.log`.

        Args:
            level: One of `mcp_actors.types.LOGGING_LEVELS`.
            data: Any JSON value.
            logger: The name of the part of the server that logs.

        Raises:
            LocalProtocolError: There is no such level, the message is longer than a connection carries, or the event
                loop is blocked.
            TypeError, ValueError: JSON cannot hold ``data``.
        """
        self._runtime.sessions.log(level, data, logger)

    def elicitation_complete(self, elicitation_id: str) -> bool:
        """Tells the client that was asked that the person has finished at the URL of an elicitation. Never waits.

        MCP 2025-11-25, Elicitation, Completion Notifications for URL Mode Elicitation. For what handles the page, which
        knows the id from `Context.elicit_url` and runs outside of the call.

        Args:
            elicitation_id: The id; it is used up by this.

        Returns:
            Whether the client was notified: not if its revision lacks the notification (it calls again when the person
            is done), if it declined, or if its session has ended.

        Raises:
            LocalProtocolError: The event loop is blocked.
        """
        return self._runtime.sessions.elicitations.complete(elicitation_id)

    # -- looking at it ------------------------------------------------------------------------------------------

    @property
    def tools(self) -> Tools:
        """The tools that are registered now: ``name in tools``, ``len``, iteration, ``get(name)``."""
        return self._features.tools

    @property
    def resources(self) -> Resources:
        """The resources and templates that are registered now: ``uri in resources``, ``len``, ``covers(uri)``."""
        return self._features.resources

    @property
    def prompts(self) -> Prompts:
        """The prompts that are registered now: ``name in prompts``, ``len``, iteration, ``get(name)``."""
        return self._features.prompts

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that are declared to clients: those for which something was ever registered, and logging."""
        return self._features.capabilities()

    def tree(self) -> ServerStatistics:
        """Returns a snapshot of everything that runs: sessions, calls in flight with age and method, queue lengths."""
        return self._runtime.statistics()


# -- Checks of the arguments: an error is raised where the server is made, and says what to write instead ---

_KINDS = {
    "limits": instance_of((Limits, type(None)), "a Limits object"),
    "versions": instance_of((list, tuple, set, frozenset), "a list of protocol versions"),
    "extensions": instance_of(
        (list, tuple, Mapping, type(None)),
        "a list of ServerExtension objects, or a mapping of ids to settings that are only declared",
    ),
    "state_key": instance_of((bytes, type(None)), "bytes"),
    "telemetry": instance_of((Telemetry, type(None)), "an object of mcp_actors.telemetry"),
    "shared": instance_of(
        (SharedState, type(None)),
        "a MemoryShared, SqliteShared or RedisShared; mcp_actors.shared.shared_state(URL) makes one",
    ),
}


def _check_settings(
    *,
    name: object,
    versions: Sequence[str],
    lifespan: object,
    page_size: object,
    ttl_ms: object,
    cache_scope: object,
    arguments: object,
    icons: Iterable[object],
    visible: object,
    watchdog: object,
    **kinds: Any,
) -> None:
    """Raises `TypeError` or `ValueError` for the first argument that cannot be used."""
    if not isinstance(name, str):
        raise TypeError(f'name is a text, not {name!r:.80}: write Server("NAME")')
    if isinstance(versions, str):
        raise TypeError(
            f"versions is a list of protocol versions, not {versions!r}: write versions=[{versions!r}]"
        )
    require(_KINDS, {"versions": versions, **kinds})
    unknown = set(versions) - set(VERSIONS)
    if unknown or not versions:
        raise ValueError(f"unknown protocol versions {sorted(unknown)}; known: {', '.join(VERSIONS)}")
    if not _is_whole(page_size) or page_size < 1:
        raise ValueError(f"page_size={page_size!r}: write how many entries a page has, 1 or more")
    if not _is_whole(ttl_ms) or ttl_ms < 0:
        raise ValueError(f"ttl_ms={ttl_ms!r}: write a number of milliseconds, or 0 to promise nothing")
    if cache_scope not in ("private", "public"):
        raise ValueError(f'cache_scope={cache_scope!r}: write "private" or "public"')
    if arguments not in get_args(Arguments):
        raise ValueError(f'arguments={arguments!r}: write "repair" or "strict"')
    check_icons(icons)
    _check_watchdog(watchdog)
    if visible is not None:
        check_rule("visible", visible)
    for each in lifespan if isinstance(lifespan, Sequence) else (lifespan,):
        if each is not None:
            _check_lifespan(each)


def _check_watchdog(seconds: object) -> None:
    if seconds is not None:
        require_number("Server(watchdog=)", seconds, *_WATCHDOG)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_lifespan(lifespan: Any) -> None:
    function = inspect.unwrap(lifespan)
    if not callable(lifespan) or (
        function is lifespan
        and (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function))
    ):
        raise TypeError(
            "lifespan is an async function with one 'yield', decorated with contextlib.asynccontextmanager, "
            f"not {lifespan!r:.80}"
        )
    if inspect.isgeneratorfunction(function):
        raise TypeError(
            "lifespan is an async context manager: make it 'async def' and decorate it with "
            "contextlib.asynccontextmanager, not contextmanager"
        )
