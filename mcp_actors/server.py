"""The server: one object that serves every revision over any number of transports.

Beside `Server` this module has the types of what its users hold or write: middleware, lifespans and statistics.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Generic

import trio

from mcp_actors._actors.admission import LimiterStatistics
from mcp_actors._actors.call_statistics import CallStatistics
from mcp_actors._actors.counters import SessionStatistics
from mcp_actors._actors.event_bus import EventBus, EventBusStatistics
from mcp_actors._actors.limits import Limits
from mcp_actors._argument_checks import require_trio
from mcp_actors._eras.changes import EventKind
from mcp_actors._eras.modern.request_state import StateSealer
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors._gc import rare_full_passes
from mcp_actors._server.dispatch import lifecycle_handlers, stamp_of
from mcp_actors._server.features import FeatureName, Features, OfferedExtension
from mcp_actors._server.frames import LineNamed
from mcp_actors._server.middleware import CallNext, Middleware, NotificationMiddleware
from mcp_actors._server.registration import Registration
from mcp_actors._server.runtime import ServerRuntime, ServerStatistics
from mcp_actors._server.scope import ServerScope, StateT
from mcp_actors._server.settings import check_settings
from mcp_actors._server.state_key import state_key_of_environment
from mcp_actors._server.stop_signals import serve_until_signal
from mcp_actors._server.task_rules import TaskRules
from mcp_actors._server.terminal_hint import write_terminal_hint
from mcp_actors.abc import ServerTransport, SharedState, Telemetry
from mcp_actors.abc.asgi import AsgiServer
from mcp_actors.bridges.bridged_call import calling_bridge
from mcp_actors.bridges.running_loop import refuse_asyncio
from mcp_actors.context import Context
from mcp_actors.discovery import server_transport
from mcp_actors.loading import stop_if_loaded
from mcp_actors.shared import MemoryShared
from mcp_actors.types import CacheScope, Icon, Implementation, LoggingLevel

__all__ = [
    "CallNext",
    "CallStatistics",
    "EventBusStatistics",
    "EventKind",
    "FeatureName",
    "Lifespan",
    "LimiterStatistics",
    "Middleware",
    "NotificationMiddleware",
    "Server",
    "ServerStatistics",
    "SessionStatistics",
    "TaskRules",
]

Lifespan = Callable[["Server[Any]"], AbstractAsyncContextManager[StateT]]
"""Makes the context manager that is entered once for each `Server.serve`; the value it yields is ``ctx.state``."""


class Server(Registration, Generic[StateT]):
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
            left after its last call; the value it yields is ``ctx.state``.
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
            the log has both. By default only clients that the transport has authenticated are, as they belong to
            others than whoever runs the server. A `ToolError` is always sent as it is.
        shared: The place of what outlives a session: tasks, events for clients that come back, and what makes several
            processes one server. By default it is a `~mcp_actors.shared.MemoryShared`, and ends with the process.
        telemetry: Is told of each call in both directions, of sessions and of what the server holds: a
            `~mcp_actors.telemetry.otel.OpenTelemetry`, `~mcp_actors.telemetry.Metrics` or ``Together(…)`` of both. By
            default there is none, which costs nothing.

    Raises:
        TypeError: An argument is of another kind, or ``lifespan`` makes no async context manager.
        LocalProtocolError: Two extensions have the same id, or something else of the same name.
        ValueError: ``versions`` is empty or has an unknown version, ``state_key`` or that of the environment is too
            short or malformed, ``page_size`` is less than 1, ``ttl_ms`` is negative, ``cache_scope`` is neither of the
            two, or ``capabilities`` has an unknown name.
    """

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
        lifespan: Lifespan[StateT] | None = None,
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
        shared: SharedState | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        with LineNamed():
            check_settings(
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
            )
            key = state_key_of_environment() if state_key is None else state_key
            self._sealer = StateSealer(key)
        self.name = name
        self.info = Implementation(
            name,
            version,
            title=title,
            description=description,
            website_url=website_url,
            icons=list(icons) or None,
        )
        self.limits = limits or Limits()
        self.versions = tuple(v for v in VERSIONS if v in versions)
        self.on_subscribe: Callable[[str], None] = lambda uri: None
        self.on_unsubscribe: Callable[[str], None] = lambda uri: None
        self.on_listen: Callable[[Context], None] = lambda ctx: None
        self.on_unlisten: Callable[[Context], None] = lambda ctx: None
        bus = EventBus(
            on_first_subscriber=lambda uri: self.on_subscribe(uri),
            on_last_unsubscribed=lambda uri: self.on_unsubscribe(uri),
        )
        only_declared = extensions if isinstance(extensions, Mapping) else None
        super().__init__(Features(bus, page_size, only_declared, experimental, capabilities), bus)
        self._lifespan = lifespan
        self._mask_errors = mask_errors
        stamp = stamp_of(self.info, ttl_ms, cache_scope)
        served = name, self.limits, self.versions, self._features, bus, stamp
        self._runtime = ServerRuntime(*served, shared or MemoryShared(), key, telemetry)
        handlers = self._features.handlers
        handlers |= lifecycle_handlers(self.info, instructions)
        handlers["resources/subscribe"] = self._runtime.subscribe
        handlers["resources/unsubscribe"] = self._runtime.unsubscribe
        for each in () if extensions is None or isinstance(extensions, Mapping) else extensions:
            self.add_extension(each)

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

    def __repr__(self) -> str:
        return f"<Server {self.name!r} {self._features!r} {self._runtime!r}>"

    # -- serving ---------------------------------------------------------------------------------------------------

    def run(
        self,
        *targets: str | ServerTransport,
        task_status: trio.TaskStatus[tuple[Any, ...]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves in a Trio loop of its own until every transport is done or a signal to stop arrives.

        The signals are SIGINT and SIGTERM, and on Windows SIGBREAK too. At the signal the server stops as by `stop`; a
        second one cancels what is left at once. They are caught while this runs in the main thread; no other thread
        gets signals, so there only `stop`, or the end of every transport, ends it. The garbage collector makes full
        passes rarely. A program that has a Trio loop uses `serve`.

        Without targets, and with a terminal as standard input and error, a line on standard error says first how to
        try the server and how to stop it.

        Args:
            targets: URLs or transports; by default ``"stdio:"``, one client on standard input and output.
            task_status: As in `serve`.

        Raises:
            RuntimeError: An event loop runs in this thread already, Trio's or asyncio's.
            LocalProtocolError: The server is served in another event loop, or an admin endpoint is the only target.
            TypeError: A target is neither a URL nor a transport.
            TransportNotFound: There is no binding for a URL.
            ValueError: A URL or its options are malformed.
            OSError: A transport cannot listen: the port is taken, or the path may not be used.
        """
        stop_if_loaded(self)
        if trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "server.run() starts a Trio loop, and one runs here: use 'await server.serve(...)'"
            )
        refuse_asyncio("server.run()", "await mcp_actors.asyncio.serve(server, ...)")
        if not targets:
            write_terminal_hint(self.name)
        with rare_full_passes():
            serve = partial(self.serve, *(targets or ("stdio:",)), task_status=task_status)
            trio.run(serve_until_signal, self, serve)

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
        binding = importlib.import_module("mcp_transports.http.asgi")
        application: AsgiServer = binding.AsgiApp(self, path=path, websocket=websocket, **settings)
        return application

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end, then ends every `serve`. Never waits itself.

        After `Limits.drain_grace` and `Limits.close_timeout` seconds the calls that are left are cancelled. Legal from
        any task and any thread, any number of times. The server can be served again later.

        Raises:
            LocalProtocolError: The event loop in which the server is served is blocked, or has broken down.
        """
        self._runtime.stop()

    @property
    def stopping(self) -> bool:
        """Whether the server was told to stop, since it was served last."""
        return self._runtime.stopping

    @asynccontextmanager
    async def _scope(self) -> AsyncIterator[ServerScope]:
        async with AsyncExitStack() as stack:
            state = None if self._lifespan is None else await stack.enter_async_context(self._lifespan(self))
            sessions = self._runtime.sessions
            yield ServerScope(
                self,
                state,
                self._sealer,
                self.limits,
                sessions.peer_session,
                sessions.elicitations,
                self._mask_errors,
                trio.lowlevel.current_trio_token(),
                calling_bridge.get(),
            )

    # -- clients in sessions, outside of calls -----------------------------------------------------------------------

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
            Whether the client was told: not if its revision has no such notification (it calls again when the person is
            done), if it declined, or if its session has ended.

        Raises:
            LocalProtocolError: The event loop is blocked.
        """
        return self._runtime.sessions.elicitations.complete(elicitation_id)

    # -- watching --------------------------------------------------------------------------------------------------

    def tree(self) -> ServerStatistics:
        """Returns a snapshot of everything that runs: sessions, calls in flight with age and method, queue lengths."""
        return self._runtime.statistics()
