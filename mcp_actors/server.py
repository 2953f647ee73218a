"""The server's face: declare what it offers, then serve it to any number of clients of both eras."""

from __future__ import annotations

import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, Unpack, overload

import trio

from mcp_actors._actors.event_bus import EventBus
from mcp_actors._actors.limits import Limits
from mcp_actors._eras.modern.request_state import StateSealer
from mcp_actors._eras.server_negotiation import VERSIONS
from mcp_actors._exception_groups import one_error
from mcp_actors._gc import rare_full_passes
from mcp_actors._server.dispatch import Middleware, lifecycle_handlers, stamp_of
from mcp_actors._server.features import Features
from mcp_actors._server.options import PromptOptions, ResourceOptions, ToolOptions
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.resources import Resources
from mcp_actors._server.runtime import ServerRuntime, ServerStatistics
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.tools import Tools
from mcp_actors.abc import ServerTransport
from mcp_actors.context import Context
from mcp_actors.discovery import server_transport
from mcp_actors.supervision import SIGNALS, start_again
from mcp_actors.types import CacheScope, Icon, Implementation, ServerCapabilities

__all__ = ["Server", "ServerStatistics"]

F = TypeVar("F", bound=Callable[..., Any])
Lifespan = Callable[["Server"], AbstractAsyncContextManager[Any]]


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
        self.bus = EventBus(
            on_first_subscriber=lambda uri: self.on_subscribe(uri),
            on_last_unsubscribed=lambda uri: self.on_unsubscribe(uri),
        )
        self._lifespan = lifespan
        self._sealer = StateSealer(state_key or secrets.token_bytes(32))
        self._features = Features(self.bus, page_size, extensions, experimental)
        stamp = stamp_of(self.info, ttl_ms, cache_scope)
        self._runtime = ServerRuntime(name, self.limits, self.versions, self._features, self.bus, stamp)
        self._features.handlers.update(
            {
                **lifecycle_handlers(self.info, instructions, self.versions),
                "resources/subscribe": self._runtime.subscribe,
                "resources/unsubscribe": self._runtime.unsubscribe,
            }
        )

    def __repr__(self) -> str:
        return f"<Server {self.name!r} {self._features!r} {self._runtime!r}>"

    # -- what it offers --------------------------------------------------------------------------------------------

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, function: None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a tool; see `add_tool`."""

        def add(function: F) -> F:
            self.add_tool(function, **options)
            return function

        return add if function is None else add(function)

    @overload
    def prompt(self, function: F, /) -> F: ...

    @overload
    def prompt(self, function: None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...

    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a prompt; see `add_prompt`."""

        def add(function: F) -> F:
            self.add_prompt(function, **options)
            return function

        return add if function is None else add(function)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Decorator: adds a resource, or a template if ``uri`` has variables; see `add_resource`."""

        def add(function: F) -> F:
            self.add_resource(uri, function, **options)
            return function

        return add

    def completion(
        self, *, argument: str, prompt: str | None = None, resource: str | None = None, inline: bool = False
    ) -> Callable[[F], F]:
        """Decorator: completes ``argument`` of a prompt, or of a resource template, named as it was declared."""

        def add(function: F) -> F:
            self._features.completions.add(
                function, prompt=prompt, resource=resource, argument=argument, inline=inline
            )
            return function

        return add

    def method(self, name: str) -> Callable[[F], F]:
        """Decorator: answers a method of your own, ``async def f(params: dict, ctx: Context) -> dict``, in any era."""

        def add(function: F) -> F:
            self._features.add_method(name, function)
            return function

        return add

    def middleware(self, function: Middleware) -> Middleware:
        """Decorator: runs ``async def f(ctx, call_next)`` round every request but ``ping`` and ``initialize``.

        The first one added is the outermost. It returns what ``await call_next()`` gave it, or something else.
        """
        self._features.middleware.append(function)
        return function

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Adds a tool, also while serving: clients are told.

        Options: ``name``, ``title``, ``description``, ``annotations``, ``icons``, ``meta``; ``inline=True`` runs a
        sync function on the event loop instead of in a worker thread; ``input_schema`` (a raw JSON Schema) makes the
        function take one dict, ``output_schema`` replaces what its return type says. Raises `TypeError` or
        `ValueError` for a signature or schema that cannot be used, `LocalProtocolError` for a name that is taken.
        """
        self._features.tools.add(function, **options)

    def remove_tool(self, name: str) -> None:
        """Takes a tool away; raises `LocalProtocolError` if there is none. Calls in flight go on."""
        self._features.tools.remove(name)

    def add_resource(
        self, uri: str, function: Callable[..., Any], **options: Unpack[ResourceOptions]
    ) -> None:
        """Adds a resource or a template (RFC 6570), also while serving.

        Options: ``name``, ``title``, ``description``, ``mime_type``, ``size`` (bytes), ``annotations``, ``icons``,
        ``meta``, ``inline``; ``list``, for templates, is a function that returns the resources of the family that
        exist now, for ``resources/list``. Raises like `add_tool`.
        """
        self._features.resources.add(uri, function, **options)

    def remove_resource(self, uri: str) -> None:
        """Takes a resource or template away; raises `LocalProtocolError` if there is none."""
        self._features.resources.remove(uri)

    def add_prompt(self, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        """Adds a prompt, also while serving. See `add_tool` for options and what is raised."""
        self._features.prompts.add(function, **options)

    def remove_prompt(self, name: str) -> None:
        """Takes a prompt away; raises `LocalProtocolError` if there is none."""
        self._features.prompts.remove(name)

    def resource_updated(self, uri: str) -> None:
        """Tells everybody who subscribed to ``uri``, or to something above it. Never waits; safe from any thread."""
        self.bus.publish("resource_updated", uri)

    @property
    def tools(self) -> Tools:
        """The tools of the moment: ``in``, ``len``, ``get(name)``."""
        return self._features.tools

    @property
    def resources(self) -> Resources:
        """The resources and templates of the moment: ``in``, ``len``, ``covers(uri)``."""
        return self._features.resources

    @property
    def prompts(self) -> Prompts:
        """The prompts of the moment: ``in``, ``len``, ``get(name)``."""
        return self._features.prompts

    @property
    def capabilities(self) -> ServerCapabilities:
        """What is declared to clients: what something was registered for, and logging."""
        return self._features.capabilities()

    # -- serving ---------------------------------------------------------------------------------------------------

    def run(
        self,
        *targets: str | ServerTransport,
        task_status: trio.TaskStatus[tuple[Any, ...]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until the peer is gone or SIGINT or SIGTERM arrives, then drains and returns. Default: stdio.

        A second signal does not wait for the drain. Takes over the process's signals, and has its garbage collector
        make full passes rarely; inside a program that has a Trio loop already, use `serve`.
        """
        with rare_full_passes():
            trio.run(self._run, targets or ("stdio:",), task_status)

    async def _run(
        self, targets: Sequence[str | ServerTransport], task_status: trio.TaskStatus[tuple[Any, ...]]
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            with one_error():
                async with trio.open_nursery() as nursery:
                    start_again(nursery, SIGNALS, self._stop_on, signals, nursery.cancel_scope)
                    await self.serve(*targets, task_status=task_status)
                    nursery.cancel_scope.cancel(reason="served")

    async def _stop_on(self, signals: AsyncIterator[int], everything: trio.CancelScope) -> None:
        async for _ in signals:
            if self._runtime.stopping:
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
        await self._runtime.serve(transports, self._scope, task_status)

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within `Limits.drain_grace`, then ends every `serve`.

        Legal from any task, any number of times.
        """
        self._runtime.stop()

    @asynccontextmanager
    async def _scope(self) -> AsyncIterator[ServerScope]:
        if self._lifespan is None:
            yield ServerScope(self, None, self._sealer, self.limits)
        else:
            async with self._lifespan(self) as state:
                yield ServerScope(self, state, self._sealer, self.limits)

    # -- watching --------------------------------------------------------------------------------------------------

    def tree(self) -> ServerStatistics:
        """The whole live actor tree: sessions, calls in flight with age and method, depths of mailboxes."""
        return self._runtime.statistics()
