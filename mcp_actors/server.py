"""The server's face: declare what it offers, then serve it to any number of clients of both eras."""

from __future__ import annotations

import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

import attrs
import trio

from mcp_actors._actors.gate import Gate, GateStatistics
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.link import Link
from mcp_actors._actors.session import Session, SessionStatistics
from mcp_actors._actors.supervise import converse, one_error
from mcp_actors._capabilities.broadcast import Bus, BusStatistics
from mcp_actors._capabilities.completion import Completions
from mcp_actors._capabilities.handler import Handler, string_param
from mcp_actors._capabilities.prompts import Prompts
from mcp_actors._capabilities.resources import Resources
from mcp_actors._capabilities.serving import (
    Middleware,
    Serving,
    at_once,
    declared_gates,
    lifecycle_handlers,
    stamp_of,
)
from mcp_actors._capabilities.subscriptions import LegacySubscriber, listen_handler
from mcp_actors._capabilities.tools import Tools
from mcp_actors._eras.choice import VERSIONS, ServerOpening
from mcp_actors._eras.era import Method
from mcp_actors._eras.modern.request_state import StateSealer
from mcp_actors._logs import log
from mcp_actors.abc import FrameChannel, ServerTransport
from mcp_actors.context import Context, Home
from mcp_actors.discovery import server_transport
from mcp_actors.errors import LocalProtocolError, ResourceNotFound
from mcp_actors.types import (
    CacheScope,
    Icon,
    Implementation,
    PromptsCapability,
    ResourcesCapability,
    ServerCapabilities,
    ToolsCapability,
)

__all__ = ["Server", "ServerStatistics"]

F = TypeVar("F", bound=Callable[..., Any])
Lifespan = Callable[["Server"], AbstractAsyncContextManager[Any]]


# Sync functions run here unless they are declared inline; as many as Trio itself allows by default.
WORKER_THREADS = 40


@attrs.frozen
class ServerStatistics:
    """The whole live actor tree of a server."""

    name: str
    sessions: tuple[SessionStatistics, ...]
    """Open connections, each with its calls in flight and its link."""
    gate: GateStatistics
    """Calls in flight on all connections together."""
    bus: BusStatistics
    """Subscriptions and events that wait in them."""


class Server:
    """A server: what it offers, and the engine that serves it.

    ``name`` and ``version``, with ``title``, ``description``, ``website_url`` and ``icons``, are shown to people;
    ``instructions`` are for the model. ``lifespan`` is an async context manager function that is entered once for each
    `serve`; what it yields is ``ctx.state``. ``page_size`` is how many entries a list answers at once. ``versions``
    narrows the protocol revisions that are served (default: all). ``state_key`` (32 bytes or more) seals the state of
    calls that ask for input: servers that share a load share the key; by default it is random. ``ttl_ms`` and
    ``cache_scope`` are the caching hints of lists and resources; the defaults promise nothing. ``extensions`` and
    ``experimental`` are declared as they are.
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
        lifespan: Lifespan | None = None,
        page_size: int = 100,
        limits: Limits | None = None,
        versions: Sequence[str] = VERSIONS,
        state_key: bytes | None = None,
        ttl_ms: int = 0,
        cache_scope: CacheScope = "private",
        extensions: Mapping[str, Any] | None = None,
        experimental: Mapping[str, Any] | None = None,
    ) -> None:
        unknown = set(versions) - set(VERSIONS)
        if unknown or not versions:
            raise ValueError(f"unknown protocol versions {sorted(unknown)}; known: {', '.join(VERSIONS)}")
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
        self._lifespan = lifespan
        self._sealer = StateSealer(state_key or secrets.token_bytes(32))
        self._extensions = None if extensions is None else dict(extensions)
        self._experimental = None if experimental is None else dict(experimental)
        self._sessions: dict[Session, LegacySubscriber | None] = {}
        self._connections = 0
        self._serving = 0
        self._stopping = trio.Event()
        self._session_ended = trio.lowlevel.ParkingLot()
        self._gate = Gate(
            "server", self.limits.server_max_in_flight, self.limits.max_waiting, self.limits.max_wait
        )
        self.bus = Bus(
            on_first_subscriber=lambda uri: self.on_subscribe(uri),
            on_last_unsubscribed=lambda uri: self.on_unsubscribe(uri),
        )
        limiter = trio.CapacityLimiter(WORKER_THREADS)
        common: dict[str, Any] = {"injected": Context, "limiter": limiter, "page_size": page_size}
        self.tools = Tools(on_change=lambda: self._changed("tools"), **common)
        self.resources = Resources(on_change=lambda: self._changed("resources"), **common)
        self.prompts = Prompts(on_change=lambda: self._changed("prompts"), **common)
        self.completions = Completions(
            injected=Context, limiter=limiter, prompts=self.prompts, resources=self.resources
        )
        self._custom: dict[str, Method] = {}
        self._middleware: list[Middleware] = []
        self._stamp = stamp_of(self.info, ttl_ms, cache_scope)
        self._handlers: dict[str, Handler] = {
            **lifecycle_handlers(self.info, instructions, self.versions),
            **self.tools.handlers(),
            **self.resources.handlers(),
            **self.prompts.handlers(),
            **self.completions.handlers(),
            "resources/subscribe": at_once(self._subscribe),
            "resources/unsubscribe": at_once(self._unsubscribe),
            "subscriptions/listen": listen_handler(self.bus),
        }
        self._declared: tuple[ServerCapabilities, frozenset[str]] | None = None

    def __repr__(self) -> str:
        return f"<Server {self.name!r} sessions={len(self._sessions)} calls={self._gate.statistics().inside}>"

    # -- what it offers --------------------------------------------------------------------------------------------

    def tool(self, function: F | None = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a tool; see `add_tool`."""
        return _decorate(self.add_tool, function, options)

    def prompt(self, function: F | None = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a prompt; see `add_prompt`."""
        return _decorate(self.add_prompt, function, options)

    def resource(self, uri: str, **options: Any) -> Callable[[F], F]:
        """Decorator: adds a resource, or a template if ``uri`` has variables; see `add_resource`."""

        def add(function: F) -> F:
            self.add_resource(uri, function, **options)
            return function

        return add

    def completion(
        self, *, argument: str, prompt: str | None = None, resource: str | None = None
    ) -> Callable[[F], F]:
        """Decorator: completes ``argument`` of a prompt, or of a resource template, named as it was declared."""

        def add(function: F) -> F:
            self.completions.add(function, prompt=prompt, resource=resource, argument=argument)
            self._declared = None
            return function

        return add

    def method(self, name: str) -> Callable[[F], F]:
        """Decorator: answers a method of your own, ``async def f(params: dict, ctx: Context) -> dict``, in any era."""

        def add(function: F) -> F:
            if name in self._handlers:
                raise LocalProtocolError(f"the method {name!r} is answered already")
            self._custom[name] = Method(name, dict, dict)
            self._handlers[name] = Handler(lambda ctx: function(ctx.params, ctx))
            return function

        return add

    def middleware(self, function: Middleware) -> Middleware:
        """Decorator: runs ``async def f(ctx, call_next)`` round every request but ``ping`` and ``initialize``.

        The first one added is the outermost. It returns what ``await call_next()`` gave it, or something else.
        """
        self._middleware.append(function)
        return function

    def add_tool(self, function: Callable[..., Any], **options: Any) -> None:
        """Adds a tool, also while serving: clients are told.

        Options: ``name``, ``title``, ``description``, ``annotations``, ``icons``, ``meta``; ``inline=True`` runs a
        sync function on the event loop instead of in a worker thread; ``input_schema`` (a raw JSON Schema) makes the
        function take one dict, ``output_schema`` replaces what its return type says.
        """
        self.tools.add(function, **options)

    def remove_tool(self, name: str) -> None:
        """Takes a tool away; raises `LocalProtocolError` if there is none. Calls in flight go on."""
        self.tools.remove(name)

    def add_resource(self, uri: str, function: Callable[..., Any], **options: Any) -> None:
        """Adds a resource or a template (RFC 6570), also while serving.

        Options: ``name``, ``title``, ``description``, ``mime_type``, ``size``, ``annotations``, ``icons``, ``meta``,
        ``inline``.
        """
        self.resources.add(uri, function, **options)

    def remove_resource(self, uri: str) -> None:
        """Takes a resource or template away; raises `LocalProtocolError` if there is none."""
        self.resources.remove(uri)

    def add_prompt(self, function: Callable[..., Any], **options: Any) -> None:
        """Adds a prompt, also while serving. Options: ``name``, ``title``, ``description``, ``icons``, ``meta``."""
        self.prompts.add(function, **options)

    def remove_prompt(self, name: str) -> None:
        """Takes a prompt away; raises `LocalProtocolError` if there is none."""
        self.prompts.remove(name)

    def resource_updated(self, uri: str) -> None:
        """Tells everybody who subscribed to ``uri``, or to something above it. Never waits; safe from any thread."""
        self.bus.publish("resource_updated", uri)

    @property
    def capabilities(self) -> ServerCapabilities:
        """What is declared to clients: what something was registered for, and logging."""
        return self._declare()[0]

    def _gates(self) -> frozenset[str]:
        return self._declare()[1]

    def _declare(self) -> tuple[ServerCapabilities, frozenset[str]]:
        if self._declared is None:
            capabilities = ServerCapabilities(
                experimental=self._experimental,
                logging={},
                completions={} if self.completions or self.prompts or self.resources.has_templates else None,
                prompts=PromptsCapability(list_changed=True) if self.prompts else None,
                resources=ResourcesCapability(subscribe=True, list_changed=True) if self.resources else None,
                tools=ToolsCapability(list_changed=True) if self.tools else None,
                extensions=self._extensions,
            )
            self._declared = capabilities, declared_gates(capabilities)
        return self._declared

    def _changed(self, kind: Any) -> None:
        self._declared = None
        self.bus.publish(kind)

    # -- serving ---------------------------------------------------------------------------------------------------

    def run(self, *targets: str | ServerTransport) -> None:
        """Serves until the peer is gone or SIGINT or SIGTERM arrives, then drains and returns. Default: stdio.

        A second signal does not wait for the drain. Takes over the process's signals; inside a program that has a
        Trio loop already, use `serve`.
        """
        trio.run(self._run, targets or ("stdio:",))

    async def _run(self, targets: Sequence[str | ServerTransport]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            with one_error():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_on, signals, nursery.cancel_scope)
                    await self.serve(*targets)
                    nursery.cancel_scope.cancel(reason="served")

    async def _stop_on(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        async for _ in signals:
            if self._stopping.is_set():
                everything.cancel(reason="a second signal")
            self.stop()

    async def serve(
        self,
        *targets: str | ServerTransport,
        task_status: trio.TaskStatus[tuple[Any, ...]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves URLs or transport objects until all of them are done, or until it is cancelled or stopped.

        ``task_status`` reports where, once all of them accept connections. Cancelled, every connection is closed at
        once; `stop` lets calls in flight end. Raises what a transport raises when it cannot begin.
        """
        transports = [server_transport(each) if isinstance(each, str) else each for each in targets]
        async with self._entered() as state:
            home = Home(self, state, self._sealer, self.limits)
            with one_error():
                async with trio.open_nursery() as supervisor:
                    supervisor.start_soon(self._drain, supervisor.cancel_scope, name="drain")
                    async with trio.open_nursery() as nursery:
                        places = [
                            await nursery.start(each.serve, lambda channel: self._converse(channel, home))
                            for each in transports
                        ]
                        task_status.started(tuple(places))
                    supervisor.cancel_scope.cancel(reason="every transport is done")

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within `Limits.drain_grace`, then ends every `serve`.

        Legal from any task, any number of times.
        """
        self._stopping.set()

    async def _drain(self, everything: trio.CancelScope) -> None:
        await self._stopping.wait()
        for session in self._sessions:
            session.stop()
        with trio.move_on_after(self.limits.drain_grace + self.limits.close_timeout):
            while self._sessions:
                await self._session_ended.park()
        everything.cancel(reason="stopped")

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Any]:
        if self._serving == 0:
            self._stopping = trio.Event()
        self._serving += 1
        try:
            if self._lifespan is None:
                yield None
            else:
                async with self._lifespan(self) as state:
                    yield state
        finally:
            self._serving -= 1

    async def _converse(self, channel: FrameChannel, home: Home) -> None:
        if self._stopping.is_set():
            return
        self._connections += 1
        session = Session(
            f"{self.name}#{self._connections}",
            Link(channel, self.limits),
            ServerOpening(self.versions, self._custom),
            Serving(home, self._handlers, self._middleware, self._gates, self._stamp),
            limits=self.limits,
            server_gate=self._gate,
            on_notification=lambda name, params: self._notified(session, name),
            answers_malformed=True,
        )
        self._sessions[session] = None
        try:
            await converse(session.link, session)
        finally:
            subscriber = self._sessions.pop(session)
            if subscriber is not None:
                subscriber.close()
            self._session_ended.unpark_all()

    def _notified(self, session: Session, name: str) -> None:
        if name == "notifications/initialized":
            self._subscriber(session)
        else:
            log.debug("notification ignored", session=session.name, method=name)

    def _subscriber(self, session: Session) -> LegacySubscriber:
        subscriber = self._sessions[session]
        if subscriber is None:
            subscriber = self._sessions[session] = LegacySubscriber(session, self.bus)
        return subscriber

    def _subscribe(self, ctx: Context) -> dict[str, Any]:
        uri = string_param(ctx.params, "uri")
        if not self.resources.covers(uri):
            raise ResourceNotFound(uri)
        self._subscriber(cast(Session, ctx.call.conversation)).subscribe(uri)
        return {}

    def _unsubscribe(self, ctx: Context) -> dict[str, Any]:
        self._subscriber(cast(Session, ctx.call.conversation)).unsubscribe(string_param(ctx.params, "uri"))
        return {}

    # -- watching --------------------------------------------------------------------------------------------------

    def tree(self) -> ServerStatistics:
        """The whole live actor tree: sessions, calls in flight with age and method, depths of mailboxes."""
        return ServerStatistics(
            self.name,
            tuple(session.statistics() for session in self._sessions),
            self._gate.statistics(),
            self.bus.statistics(),
        )


def _decorate(add: Callable[..., None], function: F | None, options: dict[str, Any]) -> Any:
    def decorate(decorated: F) -> F:
        add(decorated, **options)
        return decorated

    return decorate if function is None else decorate(function)
