"""Everything that one server offers: its registries, their handlers, and the capabilities declared for them."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import attrs
import msgspec

from mcp_actors._actors.dispatcher import Dispatcher, prepare_unanswered, start_unanswered
from mcp_actors._actors.event_bus import EventBus
from mcp_actors._actors.inbound_call import CallOwner, Continuation
from mcp_actors._eras.era import IDEMPOTENCY, Event, EventKind, Invocation, Method, declared_names
from mcp_actors._schema.signature import InvalidArguments, read_signature
from mcp_actors._server.approvals import APPROVALS
from mcp_actors._server.apps import App, PageResource, as_app, page_for
from mcp_actors._server.completion import Completions
from mcp_actors._server.components import KINDS_OF_LISTS, ComponentKind, Switch, Switches, switched
from mcp_actors._server.context import Context, SyncContext, holder_of
from mcp_actors._server.dependencies import Overrides, function
from mcp_actors._server.invoke import (
    ISOLATED,
    LOOPS,
    Function,
    Handler,
    Loop,
    ServingLoop,
    WorkerThreads,
    current,
)
from mcp_actors._server.middleware import Around, Middleware, NotificationMiddleware, through
from mcp_actors._server.options import ToolOptions
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.provider import Provider, ProviderSource
from mcp_actors._server.registry import NO_SCOPES, ComponentSource, Registry
from mcp_actors._server.resources import Resources
from mcp_actors._server.scope import ServerScope
from mcp_actors._server.streams import STREAM_METHODS, stream_handlers
from mcp_actors._server.subscriptions import ListenMember, listen_handler
from mcp_actors._server.tools import Arguments, Tools
from mcp_actors._server.visibility import AccessRule, Caller, ListWatch, Visibility
from mcp_actors.abc import OpenState, Outlet
from mcp_actors.abc.discovery import find_extension
from mcp_actors.errors import LocalProtocolError, invalid_params
from mcp_actors.supervision.logging import log
from mcp_actors.types import PromptsCapability, ResourcesCapability, ServerCapabilities, Tool, ToolsCapability
from mcp_actors.types.apps import APPS

__all__ = ["OWN_EXTENSIONS", "TASKS", "FeatureName", "Features", "NotificationHandlers", "OfferedExtension"]


FeatureName = Literal["tools", "resources", "prompts", "completions"]
"""What a server can declare before anything of it is registered."""

# The extension that makes tasks of calls (SEP-2663).
TASKS = "io.modelcontextprotocol/tasks"
OWN_EXTENSIONS = {TASKS: "tasks", IDEMPOTENCY: "idempotency"}
"""What a server offers by itself once a tool needs it, by the ids: the name of each to `find_extension`."""
# The options of tools that need one.
_NEEDED = {"task": TASKS, "idempotent": IDEMPOTENCY}
# Sync functions run here unless they are declared inline; as many as Trio itself allows by default.
WORKER_THREADS = 40

LOOPS["asyncio"] = partial(importlib.import_module, "mcp_actors._server.asyncio_context")
ISOLATED["process"] = partial(importlib.import_module, "mcp_actors._server.isolation")


@runtime_checkable
class OfferedExtension(Protocol):
    """An extension of a server: a `mcp_actors.extensions.ServerExtension`, or that of a `ReplaceableServer`."""

    id: str
    settings: Mapping[str, Any]
    core: Mapping[str, Any]
    """Members of the server's capabilities by which revisions know it that have it in their core."""

    def offered(self, features: Features) -> None:
        """Adds its methods and notifications, and what runs round requests; nothing can be added to it later."""

    def served(
        self, responder: Any, owner: CallOwner, shared: OpenState
    ) -> AbstractAsyncContextManager[object]:
        """Is entered once for each `serve`, with the `MethodDispatch` that answers its calls by these features."""

    def goes_on_from(self, former: object) -> bool:
        """Whether this one, in replaced features, goes on with what ``former`` does, and is not entered itself."""


class Features:
    """The registries of a server and the handlers of its methods. Every change is published on the bus."""

    def __init__(
        self,
        bus: EventBus,
        page_size: int,
        extensions: Mapping[str, Any] | None,
        experimental: Mapping[str, Any] | None,
        declared: Collection[FeatureName],
        lists_all: bool,
        inline_refs: bool,
        arguments: Arguments,
        visible: AccessRule | None = None,
    ) -> None:
        unknown = sorted(set(declared) - set(get_args(FeatureName)))
        if unknown or isinstance(declared, str):
            known = ", ".join(get_args(FeatureName))
            raise ValueError(f"capabilities must be a list of names out of {known}, not {declared!r}")
        self.loop = ServingLoop(lambda: [each.host._features.loop for each in self.mounts])
        self.threads = threads = WorkerThreads(WORKER_THREADS, holder_of)
        same: dict[str, Any] = {
            "injected": Context,
            "for_sync": SyncContext.of,
            "threads": threads,
            "page_size": page_size,
            "lists_all": lists_all,
            "visibility": Visibility(visible, self._visibility_activated),
        }
        self.visibility: Visibility = same["visibility"]
        self.tools = Tools(on_change=lambda: self._changed("tools"), **same)
        self.tools.inline_refs = inline_refs
        self.tools.is_strict = arguments == "strict"
        self.resources = Resources(on_change=lambda: self._changed("resources"), **same)
        self.prompts = Prompts(on_change=lambda: self._changed("prompts"), **same)
        self.completions = Completions(
            injected=Context,
            for_sync=SyncContext.of,
            threads=threads,
            prompts=self.prompts,
            resources=self.resources,
        )
        self.notifications = NotificationHandlers(threads, lambda: self.mounts)
        self.custom: dict[str, Method] = dict(STREAM_METHODS)
        self._custom_scopes: dict[str, frozenset[str]] = {}
        self.overrides = Overrides()
        self.own_methods: dict[str, Method] = {}
        """The methods in `custom` that came with no extension."""
        self.middleware: list[Middleware] = []
        self.around: dict[str, list[Around]] = {}
        self.layered = False
        self.topics: dict[str, ListenMember] = {}
        self.extensions: dict[str, OfferedExtension] = {}
        self.skills: Any = None
        """The `mcp_actors._server.skills.SkillMethods`, if this server or one that is mounted in it has skills."""
        # The pages of tools that were added with them, by their URIs.
        self._pages: dict[str, PageResource] = {}
        self.sources: tuple[ComponentSource, ...] = ()
        """What has components that are not registered, those of mounted servers included."""
        self.mounts: tuple[Any, ...] = ()
        """The `mcp_actors._server.mounts.Mount` of each server that shows these features, too."""
        self._served = 0
        self.handlers: dict[str, Handler] = {
            **self.tools.handlers(),
            **self.resources.handlers(),
            **self.prompts.handlers(),
            **self.completions.handlers(),
            "subscriptions/listen": listen_handler(bus, self.topics),
            **stream_handlers(),
        }
        self.bus = bus
        self._settings = dict(extensions or {})
        self._experimental = None if experimental is None else dict(experimental)
        # What was offered once stays declared, be its list empty: clients have learned that they can ask for it.
        self._offered: set[str] = set(declared)
        self._capabilities: ServerCapabilities | None = None
        self.declared: frozenset[str] | None = None
        self.scoped = self.visibility.is_active
        """Whether anything ever needed a scope, or may be hidden: calls are checked before middleware."""
        self.is_replaced = False
        """Whether other features have the place of these."""

    def __repr__(self) -> str:
        return (
            f"<Features tools={len(self.tools)} resources={len(self.resources)} prompts={len(self.prompts)}"
            f" methods={len(self.custom) - len(STREAM_METHODS)}>"
        )

    def add_tool(self, function: Callable[..., Any], options: ToolOptions) -> None:
        """Adds a tool, and the extension that makes tasks of calls if the tool needs it; see `Server.add_tool`."""
        needed = [id for option, id in _NEEDED.items() if options.get(option) is not None]
        if options.get("confirm_by") == "page" and APPROVALS not in self.extensions:
            raise LocalProtocolError(
                "confirm_by='page': there is no page yet, write Server(extensions=[ApprovalPages(…)])"
            )
        missing = [id for id in needed if id not in self.extensions]
        for each in self.mounts:
            for id in missing:
                each.check_extension(id)
        tool = self._add_with_page(function, options)
        try:
            for id in missing:
                self.add_own_extension(id)
        except BaseException:
            self.tools.remove(tool.name)
            raise

    def _add_with_page(self, function: Callable[..., Any], options: ToolOptions) -> Tool:
        """Adds a tool and the page that it has, which another tool may have added before."""
        given = options.get("app")
        if given is None:
            return self.tools.add(function, **options)
        app = as_app(given)
        page = page_for(app, function)
        is_new = page is not None and (page.uri not in self.resources or self._pages.get(page.uri) != page)
        if page is not None:
            if is_new:
                self.resources.add(page.uri, page.read, **page.options)
            options = {**options, "app": App(page.uri, visibility=app.visibility)}
        try:
            tool = self.tools.add(function, **options)
        except BaseException:
            if page is not None and is_new:
                self.resources.remove(page.uri)
            raise
        if page is not None:
            self._pages[page.uri] = page
        self.declare_apps()
        return tool

    def declare_apps(self) -> None:
        """Declares the extension of apps, here and where these features are shown, too."""
        if APPS not in self._settings and APPS not in self.extensions:
            self._settings[APPS] = {}
            self._capabilities = self.declared = None
        for each in self.mounts:
            each.host._features.declare_apps()

    @property
    def has_apps(self) -> bool:
        """Whether a tool of this server, or of one that is mounted in it, ever had a page."""
        return APPS in self._settings

    def start_ahead(self, scope: ServerScope) -> None:
        """Starts the processes for functions of tools that run in some, when the server is served."""
        isolated = [each.isolated for each in self.tools.entries() if each.isolated is not None]
        if isolated:
            ISOLATED["process"]().start_ahead(scope.kept, scope.limits, isolated)

    def add_own_extension(self, id: str) -> None:
        """Offers one of `OWN_EXTENSIONS`."""
        # Imported where it is used: most servers have none of them.
        self.add_extension(find_extension(OWN_EXTENSIONS[id])())

    def add_method(
        self, name: str, function: Callable[[dict[str, Any], Context], Any], scopes: Iterable[str] = ()
    ) -> None:
        """Adds a method of the user's own; raises `LocalProtocolError` for a name that is taken."""
        self.add_own_handler(
            Method(name, dict, dict), lambda ctx: Continuation(_method_begun, function, ctx), scopes
        )

    def add_own_handler(self, method: Method, handler: Handler, scopes: Iterable[str]) -> None:
        """As `add_handler`, for a method of no extension: servers that show these features answer it, too."""
        for each in self.mounts:
            each.check_method(method.name)
        self.add_handler(method, handler, scopes)
        self.own_methods[method.name] = method
        for each in self.mounts:
            each.add_method(method, scopes)

    def add_handler(self, method: Method, handler: Handler, scopes: Iterable[str]) -> None:
        """Adds a method that is not part of every revision; raises `LocalProtocolError` for a name that is taken."""
        name = method.name
        if name in self.handlers:
            raise LocalProtocolError(f"the method {name!r} is answered already")
        self.custom[name] = method
        self.handlers[name] = handler
        self._custom_scopes[name] = frozenset(scopes)
        self.scoped = self.scoped or bool(self._custom_scopes[name])

    def remove_own_handler(self, name: str) -> None:
        """Removes a method that `add_own_handler` has added, here and where it was added for that."""
        del self.custom[name], self.handlers[name], self.own_methods[name]
        self._custom_scopes.pop(name, None)
        for each in self.mounts:
            each.remove_method(name)

    def add_provider(self, provider: Provider, name: str, wait: float) -> ProviderSource:
        """Shows what a provider has; raises `LocalProtocolError` for one that is there already."""
        if any(each.provider is provider for each in self._provided()):
            raise LocalProtocolError(f"{provider!r:.80} was added already")
        taken = {each.name for each in self.sources}
        named = (name if number == 1 else f"{name} {number}" for number in count(1))
        unique = next(each for each in named if each not in taken)
        makers: dict[ComponentKind, Callable[..., Any]] = {
            "tool": self.tools.entry,
            "prompt": self.prompts.entry,
            "resource": self.resources.entry,
            "template": self.resources.entry,
        }
        source = ProviderSource(provider, unique, wait, makers, self._provider_changed)
        self.add_source(source)
        source.begin()
        return source

    def remove_provider(self, provider: Provider) -> None:
        """Shows no longer what a provider has; raises `LocalProtocolError` if it was not added."""
        source = next((each for each in self._provided() if each.provider is provider), None)
        if source is None:
            raise LocalProtocolError(f"{provider!r:.80} was not added")
        source.end()
        self.remove_source(source)

    def _provided(self) -> list[ProviderSource]:
        return [each for each in self.sources if isinstance(each, ProviderSource)]

    def _provider_changed(self, kind: EventKind) -> None:
        if not self.is_replaced:
            self.publish_lists((kind,))

    def declare_skills(
        self, skills: Any, id: str, settings: Mapping[str, Any], methods: Mapping[Method, Handler]
    ) -> None:
        """Declares the extension of skills, and answers its methods; see `mcp_actors._server.skills.methods_of`."""
        if id in self.extensions or id in self._settings:
            raise LocalProtocolError(f"the extension {id!r} is offered already: leave it to add_skills()")
        if self._served:
            raise LocalProtocolError(
                "a server cannot have its first skills while it serves, since clients know what there is: add some "
                "before serve()"
            )
        for method, handler in methods.items():
            self.add_handler(method, handler, ())
        self.skills = skills
        self._settings[id] = settings
        # Files of skills are resources, and servers with skills have to declare these (SEP-2640).
        self.declare_also(("resources",))
        self._capabilities = self.declared = None

    def add_source(self, source: ComponentSource) -> None:
        """Lists and finds what a source has behind everything else; raises `ValueError` for an unknown kind."""
        for kind in source.kinds:
            if kind not in KINDS_OF_LISTS:
                raise ValueError(f"kinds of {source.name!r}: there is no kind {kind!r:.80}")
        self.sources += (source,)
        # Calls of what it has are checked when it was asked.
        self.scoped = True
        registries = self._registries_of(source)
        for registry in registries.values():
            registry.sources += (source,)
        self._offered.update(registries)
        if "prompt" in source.kinds or "template" in source.kinds:
            self._offered.add("completions")
        self._capabilities = self.declared = None
        for each in self.mounts:
            each.add_source(source)
        self.publish_lists(registries)

    def remove_source(self, source: ComponentSource) -> None:
        """Removes a source, here and where it is shown."""
        self.sources = tuple(each for each in self.sources if each is not source)
        registries = self._registries_of(source)
        for registry in registries.values():
            registry.remove_source(source)
        for each in self.mounts:
            each.remove_source(source)
        self.publish_lists(registries)

    def _registries_of(self, source: ComponentSource) -> dict[EventKind, Registry[Any]]:
        registries: dict[EventKind, Registry[Any]] = {
            "prompts": self.prompts,
            "resources": self.resources,
            "tools": self.tools,
        }
        kinds = {KINDS_OF_LISTS[kind] for kind in source.kinds}
        return {kind: registry for kind, registry in registries.items() if kind in kinds}

    def scopes_of_method(self, method: str) -> frozenset[str]:
        """The scopes that a caller needs for a method that `add_handler` has added."""
        return self._custom_scopes.get(method, NO_SCOPES)

    def add_middleware(self, function: Middleware) -> None:
        """Adds a function that runs round every request, and its ``notification`` round notifications."""
        # New lists, since calls in flight go on through those that they began with.
        is_first = not self.middleware
        self.middleware = [*self.middleware, function]
        self.layered = True
        if isinstance(function, NotificationMiddleware):
            self.notifications.middleware = [*self.notifications.middleware, function.notification]
        if is_first:
            for each in self.mounts:
                each.refresh()

    def add_extension(self, extension: OfferedExtension) -> None:
        """Offers an extension; raises `TypeError` for other objects, `LocalProtocolError` for a name that is taken."""
        if not isinstance(extension, OfferedExtension):
            raise TypeError(
                f"a server offers objects of mcp_actors.extensions.ServerExtension, not {extension!r:.80}"
            )
        if extension.id in self.extensions or extension.id in self._settings:
            raise LocalProtocolError(f"the extension {extension.id!r} is offered already")
        if self._served:
            raise LocalProtocolError(
                f"{extension.id!r} cannot be offered while the server serves, since clients know what there is: "
                f"write Server(extensions=[…]), or add it before serve()"
            )
        for each in self.mounts:
            each.check_extension(extension.id)
        extension.offered(self)
        self.extensions[extension.id] = extension
        self.layered = self.layered or bool(self.around)
        self._capabilities = self.declared = None

    @asynccontextmanager
    async def extensions_served(
        self, responder: Any, owner: CallOwner, shared: OpenState
    ) -> AsyncIterator[None]:
        """Enters what the extensions do while the server serves, in the order in which they were given.

        That of calls with keys comes last: its functions may use the others until they end.
        """
        self._served += 1
        try:
            async with AsyncExitStack() as stack:
                for each in sorted(self.extensions.values(), key=lambda each: each.id == IDEMPOTENCY):
                    await stack.enter_async_context(each.served(responder, owner, shared))
                yield
        finally:
            self._served -= 1

    def capabilities(self) -> ServerCapabilities:
        """Returns what is declared to clients: what the program named or ever registered something for, and logging."""
        if self._capabilities is None:
            # Arguments that list their values complete by themselves.
            offered = self._offered
            if self.completions or self.prompts or self.resources.has_templates:
                offered.add("completions")
            extensions = {
                **self._settings,
                **{each.id: dict(each.settings) for each in self.extensions.values()},
            }
            capabilities = ServerCapabilities(
                experimental=self._experimental,
                logging={},
                completions={} if "completions" in offered else None,
                prompts=PromptsCapability(list_changed=True) if "prompts" in offered else None,
                resources=ResourcesCapability(subscribe=True, list_changed=True)
                if "resources" in offered
                else None,
                tools=ToolsCapability(list_changed=True) if "tools" in offered else None,
                extensions=extensions or None,
            )
            for each in self.extensions.values():
                capabilities = attrs.evolve(capabilities, **each.core)
            self._capabilities = capabilities
        return self._capabilities

    @property
    def is_served(self) -> bool:
        """Whether a server with these features serves."""
        return self._served > 0

    def declared_names(self) -> frozenset[str]:
        """The names of everything that was ever offered, or named by the program."""
        return frozenset(self._offered)

    def declare_also(self, names: Iterable[str]) -> None:
        """Declares more than what is registered here; see `FeatureName`. What was declared once stays declared."""
        if not self._offered.issuperset(names):
            self._offered.update(names)
            self._capabilities = self.declared = None

    def present(self, capabilities: ServerCapabilities) -> None:
        """Declares exactly ``capabilities``, whatever is registered here, until something changes."""
        self._capabilities = capabilities
        self.declared = None

    def declare(self) -> frozenset[str]:
        """Returns the dotted names of what is declared, and keeps them until something changes."""
        self.declared = declared_names(self.capabilities())
        return self.declared

    def counted_names(self, most: int) -> dict[str, tuple[str, ...]]:
        """Returns the first ``most`` names of each kind by which telemetry tells calls apart, by the method of these.

        There are too many URIs for that: a server with resources has their method without a name.
        """
        found = {
            "tools/call": self.tools.counted_names(most),
            "prompts/get": self.prompts.counted_names(most),
        }
        named = {method: names for method, names in found.items() if names}
        has_resources = len(self.resources) or self.resources.sources
        return {**named, "resources/read": ()} if has_resources else named

    def scopes_needed(self, method: str, params: Mapping[str, Any]) -> frozenset[str]:
        """Returns all scopes that a caller needs for a request; none for params that the method does not have."""
        match method:
            case "tools/call":
                return self.tools.scopes_of(params.get("name"))
            case "prompts/get":
                return self.prompts.scopes_of(params.get("name"))
            case "resources/read":
                return self.resources.scopes_to_read(params.get("uri"))
            case "resources/subscribe":
                return self.resources.scopes_to_subscribe(params.get("uri"))
            case "completion/complete":
                return self.completions.scopes_of(params.get("ref"))
            case "subscriptions/listen":
                asked = params.get("notifications")
                uris = asked.get("resourceSubscriptions") if isinstance(asked, dict) else None
                return self.resources.scopes_to_subscribe_all(uris) if isinstance(uris, list) else NO_SCOPES
        return self._custom_scopes.get(method, NO_SCOPES)

    # -- who sees what -------------------------------------------------------------------------------------------------

    def _visibility_activated(self) -> None:
        for registry in self._registries():
            registry.is_plain = False
        self.scoped = True
        for each in self.mounts:
            each.host._features.visibility.activate(same_for_all=self.visibility.is_same_for_all)

    def _registries(self) -> tuple[Registry[Any], ...]:
        return self.tools, self.prompts, self.resources

    def check_seen(self, ctx: Context) -> None:
        """Checks that a caller may use what it asks for, before anything of the call runs.

        Raises:
            InsufficientScope, NotAllowed: It may not.
            RpcError: It must not know of it.
        """
        params = ctx.params
        match ctx.method:
            case "tools/call":
                name = params.get("name")
                if isinstance(name, str) and name in self.tools and self.tools.find(ctx, name) is None:
                    raise self.tools.unknown(ctx, name)
            case "prompts/get":
                name = params.get("name")
                if isinstance(name, str) and name in self.prompts and self.prompts.find(ctx, name) is None:
                    raise invalid_params(f"unknown prompt: {name}")
            case "resources/read" | "resources/subscribe":
                uri = params.get("uri")
                if isinstance(uri, str) and self.resources.covers(uri):
                    self.resources.check_seen(ctx, uri)

    def switch(self, switch: Switch) -> None:
        """Hides or shows components for all callers; raises `LocalProtocolError` if too much is switched."""
        before = self._switched_on(())
        self.visibility.switch(switch)
        self.publish_lists(self._kinds_between(before, (), switch))

    def switch_for(self, session: PeerSession, switch: Switch) -> list[EventKind]:
        """As `switch`, for one session; returns the kinds of lists that may be others for it then."""
        before = self._switched_on(session.switches)
        session.switches = switched(session.switches, switch)
        self.visibility.activate(same_for_all=False)
        return self._kinds_between(before, session.switches, switch)

    def _switched_on(self, session: Switches) -> list[tuple[ComponentKind, bool]]:
        return [
            (entry.exposure.component.kind, self.visibility.is_on(session, entry.exposure))
            for registry in self._registries()
            for entry in registry.entries()
        ]

    def _kinds_between(
        self, before: list[tuple[ComponentKind, bool]], session: Switches, switch: Switch
    ) -> list[EventKind]:
        kinds = {
            KINDS_OF_LISTS[now[0]]
            for then, now in zip(before, self._switched_on(session), strict=True)
            if then != now
        }
        # What a template serves is known when it is listed.
        if switch.kind in (None, "resource") and any(
            each not in self.resources and self.resources.covers(each) for each in switch.names
        ):
            kinds.add("resources")
        # What a source has is known when it is listed.
        kinds |= {
            KINDS_OF_LISTS[kind]
            for source in self.sources
            for kind in source.kinds
            if switch.kind in (None, kind)
        }
        return sorted(kinds)

    def publish_lists(self, kinds: Iterable[EventKind] = ("prompts", "resources", "tools")) -> None:
        """Notifies those clients whose lists are others now, also of servers that show these features."""
        for kind in kinds:
            self.bus.publish(kind)
            # Those of resources are forwarded by the bus.
            for each in self.mounts if kind != "resources" else ():
                each.host._features.publish_lists((kind,))

    def digest_of(self, caller: Caller, which: str) -> int | None:
        """Returns a number for what a caller is listed; ``None`` if any change counts, as after a reload."""
        if self.is_replaced:
            return None
        match which:
            case "tools":
                return self.tools.digest_for(caller, self.tools.listing(), which)
            case "prompts":
                return self.prompts.digest_for(caller, self.prompts.listing(), which)
        # `Server.resources_changed` says what middleware does to the list.
        return None if self.middleware else self.resources.digest_of(caller, which)

    def concerns(self, watch: ListWatch | None, caller: Caller | None, event: Event) -> bool:
        """Whether a caller is told of an event.

        Args:
            watch: The lists that it knows; ``None`` before it has listed anything that differs by caller.
            caller: The caller, ``None`` if that is not known.
            event: The event.
        """
        if not self.scoped:
            return True
        if event.uri is not None:
            return caller is None or self.is_replaced or self.resources.is_seen_by(caller, event.uri)
        return watch is None or watch.is_changed(event, self.digest_of)

    # -- in the place of others ---------------------------------------------------------------------------------------

    def join(self, bus: EventBus, loop: ServingLoop, handlers: Mapping[str, Handler]) -> None:
        """Prepares these features for `take_over`: what changes them meanwhile runs in ``loop``, and is not published.

        Args:
            bus: The bus of the server that has the connections.
            loop: Where it serves.
            handlers: Replace those that are bound to another server.
        """
        self.loop = loop
        self.handlers.update(
            {**handlers, "subscriptions/listen": listen_handler(bus, self.topics)},
        )

    def take_over(self, former: Features) -> list[EventKind]:
        """Takes the place of features that are served, and returns the kinds of lists that look different now.

        What connections refer to stays the same object; what was offered to clients stays declared.
        """
        former.custom.clear()
        former.custom.update(self.custom)
        self.custom, self.bus = former.custom, former.bus
        former.is_replaced = True
        self._offered |= former._offered
        self._served = former._served
        self.tools.turns = former.tools.turns
        self._capabilities = self.declared = None
        kinds: tuple[EventKind, ...] = ("tools", "resources", "prompts")
        if self.visibility.is_active or former.visibility.is_active or self.sources or former.sources:
            return list(kinds)
        return [kind for kind in kinds if self._listed(kind) != former._listed(kind)]

    def _listed(self, kind: EventKind) -> object:
        match kind:
            case "tools":
                return [entry.tool for entry in self.tools.entries()]
            case "prompts":
                return [entry.prompt for entry in self.prompts.entries()]
        # What a function lists is unknown, so it counts as different from every other.
        return [(entry.listed, entry.lister) for entry in self.resources.entries()]

    def _changed(self, kind: EventKind) -> None:
        self.scoped |= (
            self.visibility.is_active or self.tools.scoped or self.resources.scoped or self.prompts.scoped
        )
        self._offered.add(kind)
        self._capabilities = self.declared = None
        self.bus.publish(kind)


# -- The functions of a server that take notifications of clients ---

# The engine itself handles these.
_OWN = frozenset(
    {"notifications/initialized", "initialized", "notifications/cancelled", "notifications/progress"}
)


class _NotificationEntry(msgspec.Struct, frozen=True, eq=False):
    method: Method
    names: Set[str]
    """The members of the params that the function takes; any others are those of a newer client."""
    bind: Callable[[dict[str, Any]], dict[str, Any]]
    function: Function
    extension: str | None
    """The extension that the client has to have declared."""
    origin: Any = None
    """The `mcp_actors._server.mounts.Mount` whose server has the function, if another one has."""


class NotificationHandlers:
    """The functions that take notifications, by the method of the notification.

    One is the server's own; each server that is mounted in it may have another one.
    """

    def __init__(self, threads: WorkerThreads, mounts: Callable[[], tuple[Any, ...]]) -> None:
        self.middleware: list[Middleware] = []
        self.mounts = mounts
        self._threads = threads
        self._entries: dict[str, tuple[_NotificationEntry, ...]] = {}

    def __repr__(self) -> str:
        return f"<NotificationHandlers of {len(self._entries)} methods>"

    def add(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        inline: bool,
        extension: str | None = None,
        loop: Loop = None,
    ) -> None:
        """Adds a function, of ``extension`` if it belongs to one; the errors are those of `Server.notification`."""
        if name in _OWN:
            raise LocalProtocolError(f"the engine itself takes {name!r}: no function can")
        if any(each.origin is None for each in self._entries.get(name, ())):
            raise LocalProtocolError(f"a function takes the notification {name!r} already")
        signature = read_signature(call, injected=Context)
        ready = function(
            call,
            injected_name=signature.injected_name,
            for_sync=SyncContext.of,
            inline=inline,
            threads=self._threads,
            loop=loop,
        )
        names = frozenset(signature.input_schema.get("properties", ()))
        self.insert(
            name, _NotificationEntry(Method(name, dict, dict), names, signature.bind, ready, extension)
        )

    def insert(self, name: str, entry: _NotificationEntry) -> None:
        """Adds a function that was made ready."""
        self._entries[name] = (*self._entries.get(name, ()), entry)
        if entry.extension is None:
            for each in self.mounts():
                each.add_notification(name, entry)

    def entries(self) -> list[tuple[str, _NotificationEntry]]:
        """All functions that belong to no extension, each with its notification."""
        return [
            (name, entry)
            for name, entries in self._entries.items()
            for entry in entries
            if entry.extension is None
        ]

    def remove_of(self, origin: object) -> None:
        """Removes the functions that came from a mounted server."""
        for name, entries in list(self._entries.items()):
            left = tuple(each for each in entries if each.origin is not origin)
            if left:
                self._entries[name] = left
            else:
                del self._entries[name]

    def method(self, name: str) -> Method | None:
        """Returns the method of a notification that a function takes, else ``None``."""
        entries = self._entries.get(name)
        return None if entries is None else entries[0].method

    def start(
        self,
        invocation: Invocation,
        dispatcher: Dispatcher,
        scope: ServerScope,
        arrived: Outlet | None = None,
    ) -> None:
        """Calls each function of a notification in a task of its own. Never waits."""
        for entry in self._entries.get(invocation.method.name, ()):
            call = prepare_unanswered(dispatcher, invocation, arrived)
            ctx = Context(call, invocation.params, scope)
            if not self.middleware:
                start_unanswered(call, dispatcher, _run, entry, ctx)
            else:
                handler = partial(Continuation, _run, entry)
                start_unanswered(call, dispatcher, through, self.middleware, ctx, handler)


async def _run(entry: _NotificationEntry, ctx: Context) -> None:
    core = ctx.method in ctx.era.client_notifications
    if entry.extension is not None and not core and entry.extension not in ctx.extensions:
        log.debug("notification ignored: its extension was not declared", method=ctx.method)
        return
    try:
        arguments = entry.bind({name: value for name, value in ctx.params.items() if name in entry.names})
    except InvalidArguments as error:
        log.warning(
            "notification dropped",
            session=ctx.call.owner.name,
            method=ctx.method,
            error=str(error)[:1000],
        )
        return
    outcome = entry.function.call(ctx, arguments)
    if not entry.function.inline:
        await outcome


def _method_begun(function: Callable[[dict[str, Any], Context], Any], ctx: Context) -> Any:
    current.set(ctx)
    return function(ctx.params, ctx)
