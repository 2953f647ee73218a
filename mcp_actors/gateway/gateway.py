"""The gateway: a server whose tools, resources and prompts are those of other servers.

It declares what it has itself and what any of its upstreams has. An upstream that was never met may have anything, so
everything is declared as long as there is one. The others are known from their handshakes, and what was declared once
stays declared. A bridge is a gateway with one upstream, which presents itself as that.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, get_args

import attrs
import trio

from mcp_actors._actors.event_bus import DEFAULT_MAX_URIS
from mcp_actors._actors.inbound_call import Continuation, finished
from mcp_actors._client.connectivity import Negotiated
from mcp_actors._client.options import Access
from mcp_actors._eras.era import IDEMPOTENCY, Method, ValueResult
from mcp_actors._server.features import FeatureName, Features
from mcp_actors._server.invoke import Handler, string_param, uri_param
from mcp_actors._server.registry import ListedElsewhere, Registry
from mcp_actors._server.reshape import Shape
from mcp_actors._server.runtime import UpstreamStatistics
from mcp_actors._server.scope import ServerScope, StateT
from mcp_actors._server.tools import ToolElsewhere, with_repairs
from mcp_actors.abc import OpenState
from mcp_actors.abc.discovery import find_extension
from mcp_actors.errors import (
    MethodNotFound,
    ResourceNotFound,
    RpcError,
    UpstreamUnavailable,
    invalid_params,
)
from mcp_actors.gateway.connections import UpstreamConnection
from mcp_actors.gateway.forwarded_apps import with_apps
from mcp_actors.gateway.forwarded_skills import (
    GET_SKILL,
    READ_DIRECTORY,
    file_of_skill,
    forward_about_skill,
    refusal_of_read,
    with_skills,
)
from mcp_actors.gateway.forwarded_tasks import run_as_task, takes_task
from mcp_actors.gateway.forwarding import ForwardedCall, forward
from mcp_actors.gateway.listing import LIST_KINDS, ListKind
from mcp_actors.gateway.lists import HANDSHAKE_WAIT, ListedRow
from mcp_actors.gateway.live import ROOTS_CHANGED, GatewayPlan, LiveUpstreams, opened
from mcp_actors.gateway.results import result_of_tool
from mcp_actors.gateway.routes import CachingHints, Route, Visible, merged_page
from mcp_actors.gateway.server_entries import ServerEntries, read_server_entries
from mcp_actors.gateway.server_entry import ServerEntry
from mcp_actors.gateway.upstream import UpstreamActor
from mcp_actors.gateway.upstream_settings import SessionPolicy, Upstream, UpstreamTarget
from mcp_actors.server import Context, Server
from mcp_actors.supervision.arguments import require_number
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.supervision.task_kinds import UPSTREAM_WAIT
from mcp_actors.tasks import TASKS, Tasks
from mcp_actors.types import CompleteResult, Completion, Implementation, ServerCapabilities

__all__ = [
    "LONGEST_INSTRUCTIONS",
    "LONGEST_MERGED",
    "Gateway",
    "bridge_to",
    "configured_gateway",
    "described",
    "merged_instructions",
    "presented",
    "upstreams_of",
    "without_tasks",
]

# Characters of the instructions of one upstream, and of all together: they are a part of every prompt of a model.
LONGEST_INSTRUCTIONS = 8_000
LONGEST_MERGED = 64_000
_FEATURES: tuple[FeatureName, ...] = get_args(FeatureName)
# Names of tools of upstreams, and as many of prompts, by which telemetry tells calls apart; and their characters.
MOST_LABELS = 1000
LONGEST_LABEL = 128
_TOOLS, _PROMPTS = LIST_KINDS["tools"], LIST_KINDS["prompts"]


class Gateway(Server[StateT]):
    """A server that offers what other servers offer, and passes requests on to them.

    Its own tools, resources and prompts come first, then those of its upstreams in their order. A name that two of them
    have belongs to the first; the other one is not offered, which is logged.

    Args:
        upstreams: The servers.
        name: As that of `Server`.
        visible: ``visible(principal, upstream, kind, name)`` says whether a caller sees and may use something of an
            upstream: ``kind`` is ``"tools"``, ``"prompts"``, ``"resources"`` or ``"templates"``, and ``name`` its name
            there, or its URI. It must not wait; an exception hides. By default everybody sees what the `Upstream` lets.
        presents: Whether the gateway describes itself as its one upstream does: a bridge. Name, version, instructions
            and capabilities are then those of that server, and without it no client is let in.
        wait: Seconds for which an upstream may delay a list, once, where its `Upstream.wait` says nothing else; 30 by
            default, because ``npx -y`` and ``uvx`` take as long where nothing is in their caches, and clients wait 60.
        options: The other options of `Server`.

    Raises:
        ValueError: Two upstreams have the same name, the names of one are not possible, or ``presents`` is for several;
            else as `Server`.
        ConfigurationError: The target of an upstream cannot be connected to.
    """

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        name: str = "gateway",
        *,
        visible: Visible | None = None,
        presents: bool = False,
        wait: float = 30.0,
        **options: Any,
    ) -> None:
        require_number("wait", wait, 0, math.inf)
        budget, pinned = options.pop("budget", None), options.pop("pinned", ())
        if presents and len(upstreams) != 1:
            raise ValueError(f"presents= is for a gateway of one upstream, not of {len(upstreams)}")
        super().__init__(name, **options)
        features = self._features
        self._described = set(options.get("capabilities", ()))
        self._presents = presents
        self._instructions: str | None = options.get("instructions")
        self._page_size: int = options.get("page_size", 100)
        self._hints = CachingHints(options.get("ttl_ms", 0), options.get("cache_scope", "private"))
        self._plan = GatewayPlan(upstreams, visible, features.bus.publish, self._met, wait, presents=presents)
        self._live: dict[ServerScope, LiveUpstreams] = {}
        # An upstream may have anything that is asked for; what clients see declared is what there really is.
        features.declare_also(("tools", "resources", "prompts", "completions"))
        features.tools.elsewhere = self._tool_elsewhere
        self._labels: dict[str, set[str]] = {"tools": set(), "prompts": set()}
        for kind, names in (("tools", features.tools), ("prompts", features.prompts)):
            listed = partial(self._is_label, kind), partial(self._listed_names, kind)
            names.listed_elsewhere = ListedElsewhere(*listed)
        # Those of upstreams; a server that was given tasks of its own declares them in any case.
        self._adds_tasks = TASKS not in features.extensions
        self._keeps_tasks = True
        if self._adds_tasks:
            self.add_extension(Tasks())
        for name in (LIST_KINDS["skills"].method, GET_SKILL, READ_DIRECTORY):
            method = Method(name, dict, dict, cacheable=True)
            features.add_handler(method, partial(Continuation, self._ask_about_skill), ())
        self._adds_keys = IDEMPOTENCY not in features.extensions
        if self._adds_keys:
            self.add_extension(find_extension("idempotency")())
        first, last = features.bus.on_first_subscriber, features.bus.on_last_unsubscribed
        features.bus.on_first_subscriber = partial(self._first_subscribed, first)
        features.bus.on_last_unsubscribed = partial(self._last_unsubscribed, last)
        self._own: Mapping[str, Handler] = dict(features.handlers)
        features.handlers |= {
            "initialize": partial(self._describe, "initialize"),
            "server/discover": partial(self._describe, "server/discover"),
            "tools/call": partial(self._ask_for_named, _TOOLS, features.tools.by_key),
            "prompts/get": partial(self._ask_for_named, _PROMPTS, features.prompts.by_key),
            "resources/read": self._read,
            "completion/complete": self._complete,
            "resources/subscribe": self._subscribe,
            "subscriptions/listen": lambda ctx: Continuation(self._listen, ctx),
            **{kind.method: partial(Continuation, self._merged, kind) for kind in LIST_KINDS.values()},
            "logging/setLevel": self._set_log_level,
        }
        # The search asks for the merged list, which takes the place of the server's own here.
        self._begin_search(budget, pinned)
        self._runtime.upstreams = self._upstream_statistics
        self.notification(ROOTS_CHANGED, inline=True)(self._roots_changed)
        for each in upstreams:
            self._forward_methods(each)

    _is_mountable = False

    def mount(self, name: str, target: UpstreamTarget, /, **settings: Any) -> Upstream:  # type: ignore[override]
        """Adds an upstream behind the others. While the gateway serves, clients are notified that lists have changed.

        Args:
            name: Its name in the gateway.
            target: A `Server`, or whatever else the target of an `Upstream` may be.
            settings: The other settings of an `Upstream`.

        Returns:
            The settings of it.

        Raises:
            ValueError: An upstream has this name, the names of this one are not possible, or the gateway presents
                itself as another one.
            TypeError: A setting does not exist.
            ConfigurationError: The target cannot be connected to.
            LocalProtocolError: One of its methods is answered already, or the event loop is blocked.
        """
        if self._presents:
            raise ValueError("a gateway that presents itself as its upstream has no others")
        upstream = Upstream(name=name, target=target, **settings)
        self._features.loop.call(partial(self._mount, upstream))
        return upstream

    def _mount(self, upstream: Upstream) -> None:
        self._replace([*self._plan.upstreams, upstream])

    def forgo_tasks(self) -> None:
        """Makes calls of upstreams' tools no tasks, because other processes serve too, and would not find them."""
        self._keeps_tasks = False

    @property
    def upstreams(self) -> list[Upstream]:
        """The settings of the upstreams, in their order."""
        return list(self._plan.upstreams)

    def set_upstreams(self, upstreams: Sequence[Upstream]) -> None:
        """Puts other upstreams in the place of all, as for a configuration that was read again.

        An upstream that is one of the former objects goes on with its connections, and its calls notice nothing. Calls
        in flight at one that is taken out, or replaced by another of its name, end in their own time, and its
        connections are closed after the last one. While the gateway serves, clients are notified that lists have
        changed.

        Args:
            upstreams: All of them, in their order. The methods of one that was not there from the start are passed on
                only if a former one of its name had them.

        Raises:
            ValueError: Two upstreams have the same name, the names of one are not possible, or the gateway presents
                itself as another one. Nothing is changed then.
            ConfigurationError: The target of one cannot be connected to. Nothing is changed then.
            LocalProtocolError: The event loop is blocked.
        """
        if self._presents:
            raise ValueError("a gateway that presents itself as its upstream keeps it")
        self._features.loop.call(partial(self._replace, list(upstreams)))

    def _replace(self, upstreams: Sequence[Upstream]) -> None:
        former = {each.name for each in self._plan.upstreams}
        self._plan.replace(upstreams)
        for each in upstreams:
            if each.name not in former:
                self._forward_methods(each)
        for live in self._live.values():
            live.replace(upstreams)

    def _forward_methods(self, upstream: Upstream) -> None:
        for method in upstream.methods:
            self.method(method, scopes=upstream.scopes)(partial(self._forward_method, upstream.name))

    @asynccontextmanager
    async def _scope(self, shared: OpenState) -> AsyncIterator[ServerScope]:
        self._plan.telemetry = self.telemetry
        async with opened(self._plan) as live, super()._scope(shared) as scope:
            self._live[scope] = live
            try:
                yield scope
            finally:
                del self._live[scope]

    # -- what the gateway is -------------------------------------------------------------------------------------------

    def _met(self, actor: UpstreamActor, connection: UpstreamConnection) -> None:
        """A connection to an upstream was made: a bridge answers as that server from now on."""
        if self._presents:
            self.info = connection.server.negotiated.info
            self._runtime.present(self.info)

    def _describe(self, method: str, ctx: Context[StateT]) -> Any:
        live = self._live[ctx._scope]
        live.circle.refuse_itself(_declared_by(ctx))
        if live.is_met(also_lazy=self._presents):
            return self._description(method, ctx)
        return Continuation(self._describe_all, method, ctx)

    async def _describe_all(self, method: str, ctx: Context[StateT]) -> Any:
        await self._live[ctx._scope].meet(ctx, presents=self._presents)
        return self._description(method, ctx)

    def _description(self, method: str, ctx: Context[StateT]) -> Any:
        live = self._live[ctx._scope]
        result = self._own[method](ctx)
        if self._presents:
            actor = next(iter(live.actors.values()))
            found = presented(actor, result.capabilities)
            if found is None:
                raise UpstreamUnavailable(actor.settings.name, "it cannot be connected to")
            info, result.capabilities, result.instructions = found
            if method == "initialize":
                result.server_info = info
        else:
            actors = live.routes.seen_by(ctx)
            result.capabilities = described(
                result.capabilities, self._features, self._described, live.actors.values()
            )
            result.instructions = merged_instructions(self._instructions, actors)
            result.capabilities = with_skills(result.capabilities, live.actors.values())
            result.capabilities = with_apps(result.capabilities, live.actors.values())
        if self._adds_tasks and not self._has_tasks(live):
            result.capabilities = without_tasks(result.capabilities)
        if self._adds_keys and not self._takes_keys(live):
            result.capabilities = _without_extension(result.capabilities, IDEMPOTENCY)
        result.capabilities = live.circle.declared_to(_declared_by(ctx), result.capabilities)
        if method == "initialize" and ctx.session is not None:
            ctx.session.declared(result.capabilities)
        return result

    # -- lists ---------------------------------------------------------------------------------------------------------

    async def _merged(self, kind: ListKind, ctx: Context[StateT]) -> Any:
        own = await self._own_rows(kind, ctx)
        live = self._live[ctx._scope]
        page = await merged_page(live.lists, live.routes, ctx, kind, own, self._hints, self._page_size)
        if not self._registry(kind).is_same_for_all:
            page.cache_scope = "private"
        return page

    def _registry(self, kind: ListKind) -> Registry[Any]:
        features = self._features
        registries: dict[str, Registry[Any]] = {"tools": features.tools, "prompts": features.prompts}
        return registries.get(kind.name, features.resources)

    async def _own_rows(self, kind: ListKind, ctx: Context[StateT]) -> list[ListedRow]:
        features = self._features
        if kind.name == "tools":
            tools = features.tools.seen_by(ctx, features.tools.listing())
            return [ListedRow(each.key, each.serial, each.tool, "") for each in tools]
        if kind.name == "prompts":
            prompts = features.prompts.seen_by(ctx, features.prompts.listing())
            return [ListedRow(each.key, each.serial, each.prompt, "") for each in prompts]
        if kind.name == "templates":
            entries = features.resources.templates_seen_by(ctx)
            return [ListedRow(each.key, each.serial, each.listed, "") for each in entries]
        if kind.extension is not None:
            return []
        rows = await features.resources.rows(ctx)
        return [ListedRow(each.key, each.serial, each.listed, "") for each in rows]

    def _has_tasks(self, live: LiveUpstreams) -> bool:
        """Whether any tool, of an upstream or of the gateway, may run as a task."""
        met = [actor.met for actor in live.actors.values() if self._keeps_tasks]
        return any(each is not None and each.server.has_tasks for each in met) or any(
            entry.rules is not None for entry in self._features.tools
        )

    def _tool_elsewhere(self, name: str) -> ToolElsewhere | None:
        """Finds a tool of an upstream that was listed. Its calls may become tasks; a plain call of it waits."""
        for live in self._live.values() if self._keeps_tasks else ():
            claim = live.lists.claims["tools"].owners.get(name)
            listing = None if claim is None else live.lists.known.get((claim.upstream, "tools"))
            if claim is not None and listing is not None:
                actor = live.actors[claim.upstream]
                kept = actor.settings.answers_kept(claim.target)
                return listing.tool_elsewhere(claim.target, kept, _takes_keys(actor))
        return None

    def _takes_keys(self, live: LiveUpstreams) -> bool:
        """Whether any tool, of an upstream or of the gateway, may keep its answers."""
        return any(each.settings.idempotent or _takes_keys(each) for each in live.actors.values()) or any(
            entry.answers_kept for entry in self._features.tools
        )

    def _is_label(self, kind: str, name: str) -> bool:
        """Whether telemetry names what is asked for: an upstream has listed it, as one of the first `MOST_LABELS`.

        No upstream makes time series without end by listing other names each time.
        """
        known = self._labels[kind]
        if name in known:
            return True
        is_listed = any(live.lists.is_listed(LIST_KINDS[kind], name) for live in self._live.values())
        is_fit = len(name) <= LONGEST_LABEL and name.isprintable()
        if is_listed and is_fit and len(known) < MOST_LABELS:
            known.add(name)
        return name in known

    def _listed_names(self, kind: str) -> Iterator[str]:
        for live in self._live.values():
            yield from live.lists.claims[kind].owners

    # -- requests for upstreams ----------------------------------------------------------------------------------------

    def _ask_for_named(self, kind: ListKind, own: Container[str], ctx: Context[StateT]) -> Any:
        name = string_param(ctx.params, "name")
        if name in own:
            return self._own[ctx.method](ctx)
        route = self._live[ctx._scope].routes.listed(ctx, kind, name)
        if route is None:
            return Continuation(self._forward_named, kind, ctx)
        settings = route.upstream.settings
        if settings.lock is not None:
            # Its list may have to be read again before the call.
            return Continuation(self._forward_named, kind, ctx)
        if kind is _TOOLS and route.target in settings.tools:
            shape = self._shape(ctx, route)
            if shape is None or settings.arguments == "repair":
                return Continuation(self._forward_named, kind, ctx)
            return self._forward_reshaped(ctx, route, shape, ctx.params.get("arguments"))
        if kind is _TOOLS and settings.arguments == "repair":
            repaired = self._repaired(ctx, route)
            if repaired is not None:
                return Continuation(self._forward_repaired, ctx, route, *repaired)
        return ForwardedCall(ctx, route, {**ctx.params, "name": route.target})

    def _repaired(self, ctx: Context[StateT], route: Route) -> tuple[dict[str, Any], list[str]] | None:
        """Returns arguments that fit the tool of an upstream, where those of a call do not, and what is different."""
        arguments = ctx.params.get("arguments")
        live = self._live[ctx._scope]
        listing = live.lists.newest(route.upstream, ctx, _TOOLS)
        tool = None if listing is None else listing.entries.get(route.target)
        if tool is None or not isinstance(arguments, dict):
            return None
        schema = live.tool_schemas.of(tool.name, tool.input_schema)
        return None if schema is None else schema.repaired(arguments)

    async def _forward_repaired(
        self, ctx: Context[StateT], route: Route, arguments: dict[str, Any], paths: list[str]
    ) -> Any:
        params = {**ctx.params, "name": route.target, "arguments": arguments}
        return self._noted(ctx, await forward(ctx, route, params), paths)

    def _noted(self, ctx: Context[StateT], result: Any, paths: list[str]) -> Any:
        """Returns the result of a call with repaired arguments, which is counted."""
        self._features.tools.repairs.note(ctx.params["name"], paths)
        return with_repairs(result.as_result() if isinstance(result, ValueResult) else result, paths)

    def _shape(self, ctx: Context[StateT], route: Route) -> Shape | None:
        """Returns the shape of a tool of an upstream; ``None`` where it is not listed, or cannot have its shape."""
        listing = self._live[ctx._scope].lists.newest(route.upstream, ctx, _TOOLS)
        return None if listing is None else listing.shapes.get(route.target)

    def _forward_reshaped(self, ctx: Context[StateT], route: Route, shape: Shape, arguments: Any) -> Any:
        """Passes on a call of a tool in another shape, or returns the refusal of its arguments."""
        if not isinstance(arguments, dict):
            if arguments is not None:
                raise invalid_params("'arguments' must be an object")
            arguments = {}
        refusal = shape.refusal(arguments)
        if refusal is not None:
            return refusal
        params = {**ctx.params, "name": route.target}
        if shape.is_plain:
            return ForwardedCall(ctx, route, {**params, "arguments": shape.mapped(arguments)})

        def run(later: Context[Any]) -> Any:
            def forward_own(own: dict[str, Any]) -> Any:
                return forward(later, route, {**params, "arguments": own})

            return shape.call(later, arguments, forward_own, partial(result_of_tool, later, shape.inner))

        met = route.upstream.met
        if met is not None and met.server.has_tasks and takes_task(ctx):
            return Continuation(run_as_task, ctx, run)
        return Continuation(run, ctx)

    async def _forward_named(self, kind: ListKind, ctx: Context[StateT]) -> Any:
        name = ctx.params["name"]
        route = await self._live[ctx._scope].routes.named(ctx, kind, name)
        if route is None and kind is _TOOLS:
            route = await self._live[ctx._scope].routes.of_page(ctx, name)
        if route is None:
            raise invalid_params(f"unknown {kind.what}: {name:.200}")
        await self._live[ctx._scope].routes.require_approved(ctx, kind, route)
        if self._plan.telemetry is not None:
            await self._live[ctx._scope].lists.learn(ctx, kind, route.upstream)
        settings = route.upstream.settings
        is_reshaped = kind is _TOOLS and route.target in settings.tools
        repaired = None
        if is_reshaped or (kind is _TOOLS and settings.arguments == "repair"):
            # What the tool takes is not known before it was listed.
            found = await self._live[ctx._scope].lists.of_all(ctx, kind, [route.upstream])
            if is_reshaped and not found:
                raise UpstreamUnavailable(route.upstream.settings.name, "its tools cannot be listed")
            repaired = self._repaired(ctx, route) if settings.arguments == "repair" else None
        if is_reshaped:
            shape = self._shape(ctx, route)
            if shape is None:
                raise invalid_params(f"unknown tool: {name:.200}")
            arguments = ctx.params.get("arguments") if repaired is None else repaired[0]
            result = await finished(self._forward_reshaped(ctx, route, shape, arguments))
            return result if repaired is None else self._noted(ctx, result, repaired[1])
        if repaired is not None:
            return await self._forward_repaired(ctx, route, *repaired)
        return await forward(ctx, route, {**ctx.params, "name": route.target})

    def _read(self, ctx: Context[StateT]) -> Any:
        uri = uri_param(ctx.params)
        if self._features.resources.covers(uri):
            return self._own["resources/read"](ctx)
        return Continuation(self._forward_read, ctx, uri)

    async def _forward_read(self, ctx: Context[StateT], uri: str) -> Any:
        refusal: RpcError | None = None
        for route in await self._live[ctx._scope].routes.to_ask(ctx, uri):
            try:
                result = await forward(ctx, route, {**ctx.params, "uri": route.target})
            except RpcError as error:
                refusal = refusal or refusal_of_read(error, route, uri)
            else:
                table = self._live[ctx._scope].routes.table_of(route)
                return result if route.target == uri else file_of_skill(table, result)
        try:
            raise refusal or ResourceNotFound(uri)
        finally:
            # Its traceback has this frame, which the collector would have to free.
            del refusal

    async def _ask_about_skill(self, ctx: Context[StateT]) -> Any:
        return await forward_about_skill(ctx, self._live[ctx._scope].routes, uri_param(ctx.params))

    def _complete(self, ctx: Context[StateT]) -> Any:
        ref: Any = ctx.params.get("ref")
        kind = ref.get("type") if isinstance(ref, dict) else None
        if kind == "ref/prompt" and string_param(ref, "name") not in self._features.prompts.by_key:
            return Continuation(self._forward_completion, ctx, ref)
        if kind == "ref/resource" and uri_param(ref) not in self._features.resources.by_key:
            return Continuation(self._forward_completion, ctx, ref)
        # Its own handler refuses what is neither.
        return self._own["completion/complete"](ctx)

    async def _forward_completion(self, ctx: Context[StateT], ref: dict[str, Any]) -> Any:
        routes = self._live[ctx._scope].routes
        member = "name" if ref["type"] == "ref/prompt" else "uri"
        target = ref[member]
        if member == "name":
            route = await routes.named(ctx, _PROMPTS, target)
        else:
            route = await routes.of_template(ctx, target)
        if route is None:
            raise invalid_params(f"unknown {ref['type'][4:]}: {target:.200}")
        if not route.upstream.can_answer(ctx.method):
            # The gateway declares completion because another upstream has it.
            return CompleteResult(Completion([]))
        return await forward(ctx, route, {**ctx.params, "ref": {**ref, member: route.target}})

    def _upstream_statistics(self) -> tuple[UpstreamStatistics, ...]:
        live = self._live.values()
        return tuple(actor.statistics() for each in live for actor in each.actors.values())

    async def _forward_method(self, upstream: str, params: dict[str, Any], ctx: Context[StateT]) -> Any:
        actor = self._live[ctx._scope].actors.get(upstream)
        if actor is None:
            raise MethodNotFound(ctx.method)
        return await forward(ctx, Route(actor, ""), params)

    def _roots_changed(self, ctx: Context[StateT]) -> None:
        self._live[ctx._scope].roots_changed(ctx)

    def _set_log_level(self, ctx: Context[StateT]) -> Any:
        result = self._own["logging/setLevel"](ctx)
        self._live[ctx._scope].set_log_level(ctx)
        return result

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def _first_subscribed(self, of_program: Any, uri: str) -> None:
        of_program(uri)
        for live in self._live.values():
            live.subscriptions.first_subscribed(uri)

    def _last_unsubscribed(self, of_program: Any, uri: str) -> None:
        for live in self._live.values():
            live.subscriptions.last_unsubscribed(uri)
        of_program(uri)

    def _subscribe(self, ctx: Context[StateT]) -> Any:
        uri = uri_param(ctx.params)
        if self._features.resources.covers(uri):
            return self._own["resources/subscribe"](ctx)
        return Continuation(self._subscribe_upstream, ctx, uri)

    async def _subscribe_upstream(self, ctx: Context[StateT], uri: str) -> dict[str, Any]:
        live = self._live[ctx._scope]
        live.subscriptions.refuse_circle(ctx, uri)
        routes = await live.routes.of_uri(ctx, uri)
        async with live.subscriptions.subscribed(ctx, routes, uri):
            self._runtime.subscribe_to(ctx, uri)
        return {}

    async def _listen(self, ctx: Context[StateT]) -> Any:
        """Subscribes at the upstreams first, so that what they refuse is left out of the acknowledgement."""
        asked: Any = ctx.params.get("notifications")
        uris = asked.get("resourceSubscriptions") if isinstance(asked, dict) else None
        async with AsyncExitStack() as stack:
            # Too many of them, and what is no URI, are refused by the server's own handler.
            if isinstance(uris, list) and len(uris) <= DEFAULT_MAX_URIS:
                granted = {each for each in uris if isinstance(each, str)}
                foreign = {each for each in granted if not self._features.resources.covers(each)}
                granted -= foreign
                # Where a resource is found in the lists, those that come late are waited for first.
                with trio.move_on_after(self._plan.longest_wait + HANDSHAKE_WAIT):
                    async with trio.open_nursery() as nursery:
                        for each in sorted(foreign):
                            start(nursery, UPSTREAM_WAIT, self._grant, ctx, each, stack, granted)
                left = [each for each in uris if not isinstance(each, str) or each in granted]
                ctx.params = {**ctx.params, "notifications": {**asked, "resourceSubscriptions": left}}
            return await self._own["subscriptions/listen"](ctx)()

    async def _grant(self, ctx: Context[StateT], uri: str, stack: AsyncExitStack, granted: set[str]) -> None:
        live = self._live[ctx._scope]
        try:
            live.subscriptions.refuse_circle(ctx, uri)
            routes = await live.routes.of_uri(ctx, uri)
            await stack.enter_async_context(live.subscriptions.subscribed(ctx, routes, uri))
        except RpcError as error:
            log.debug("a subscription is not granted", error=printable(str(error), 200))
        else:
            granted.add(uri)


# -- what a gateway says of itself ----------------------------------------------------------------------------------


def _declared_by(ctx: Context[Any]) -> Mapping[str, Any]:
    """Returns the capabilities of the client whose handshake this is."""
    declared = ctx.params.get("capabilities") if ctx.method == "initialize" else ctx.peer.raw_capabilities
    return declared if isinstance(declared, Mapping) else {}


def described(
    whole: ServerCapabilities, own: Features, declared: set[str], actors: Iterable[UpstreamActor]
) -> ServerCapabilities:
    """Returns the part of the capabilities that is really there: at the gateway itself or at any of its upstreams.

    Args:
        whole: All that can be declared.
        own: The features of the gateway itself.
        declared: What was declared before, and stays so; it is added to.
        actors: The upstreams.
    """
    declared.update(name for name in ("tools", "prompts", "resources") if len(getattr(own, name)))
    if len(own.completions) or len(own.prompts) or own.resources.has_templates:
        declared.add("completions")
    shown = set(declared)
    for actor in actors:
        if actor.met is None:
            shown.update(_FEATURES)
        else:
            capabilities = actor.met.server.negotiated.capabilities
            found = {each for each in _FEATURES if getattr(capabilities, each) is not None}
            declared |= found
            shown |= found
    absent: dict[str, Any] = {each: None for each in _FEATURES if each not in shown}
    return attrs.evolve(whole, **absent)


def merged_instructions(own: str | None, actors: Sequence[UpstreamActor]) -> str | None:
    """Returns the gateway's own instructions and those of the upstreams that were met, each under its name."""
    parts = [] if own is None else [own]
    left = LONGEST_MERGED - len(own or "")
    for actor in actors:
        text = None if actor.met is None else _instructions_of(actor.settings, actor.met.server.negotiated)
        if text:
            part = f"## {actor.settings.name}\n\n{_cut(text, LONGEST_INSTRUCTIONS)}"
            if len(part) > left:
                break
            left -= len(part) + 2
            parts.append(part)
    return "\n\n".join(parts) or None


def presented(
    actor: UpstreamActor, own: ServerCapabilities
) -> tuple[Implementation, ServerCapabilities, str | None] | None:
    """Returns how the server of an upstream has described itself, ``None`` before it was met.

    Two things are the gateway's own: it keeps the log level of its clients, so that logging is declared in any case,
    and it has the tasks of a server that has any in the dialect of each client.

    Args:
        actor: The upstream.
        own: What the gateway itself would declare.
    """
    if actor.met is None:
        return None
    negotiated = actor.met.server.negotiated
    declared = negotiated.capabilities
    extensions = dict(declared.extensions or {})
    has_tasks = extensions.pop(TASKS, None) is not None or declared.tasks is not None
    if has_tasks:
        extensions[TASKS] = (own.extensions or {}).get(TASKS, {})
    if actor.settings.idempotent:
        extensions[IDEMPOTENCY] = {}
    capabilities = attrs.evolve(
        declared,
        logging=declared.logging or {},
        tasks=own.tasks if has_tasks else None,
        extensions=extensions or None,
    )
    return negotiated.info, capabilities, _instructions_of(actor.settings, negotiated)


def _instructions_of(settings: Upstream, negotiated: Negotiated) -> str | None:
    """Returns the instructions of an upstream, ``None`` if they are not what was approved of it."""
    if settings.lock is None:
        return negotiated.instructions
    return settings.lock.shown_instructions(negotiated.instructions, negotiated.info.name)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def without_tasks(capabilities: ServerCapabilities) -> ServerCapabilities:
    """Returns the capabilities without those that are about tasks, in either dialect."""
    return attrs.evolve(_without_extension(capabilities, TASKS), tasks=None)


def _without_extension(capabilities: ServerCapabilities, id: str) -> ServerCapabilities:
    extensions = {each: settings for each, settings in (capabilities.extensions or {}).items() if each != id}
    return attrs.evolve(capabilities, extensions=extensions or None)


def _takes_keys(actor: UpstreamActor) -> bool:
    """Whether the server of an upstream says that it keeps answers."""
    met = actor.met
    return met is not None and IDEMPOTENCY in (met.server.negotiated.capabilities.extensions or {})


# -- gateways from configurations, and bridges ------------------------------------------------------------------------


def configured_gateway(
    configuration: str | os.PathLike[str] | Mapping[str, Any] | ServerEntries,
    *,
    access: Mapping[str, Access] | None = None,
    **options: Any,
) -> Gateway[Any]:
    """Returns a gateway to all servers of a configuration that are not disabled.

    Args:
        configuration: As for `read_server_entries`, or what that returned. Its object
            ``gateway`` has a name and instructions; where it is served is up to the program.
        access: As for `upstreams_of`.
        options: Those of `Gateway`, which take precedence.

    Raises:
        ConfigurationError: The configuration cannot be used.
        ValueError: As `Gateway`.
        TypeError: As `Gateway`.
    """
    entries = (
        configuration if isinstance(configuration, ServerEntries) else read_server_entries(configuration)
    )
    upstreams = upstreams_of(entries, access=access)
    return Gateway(upstreams, **{**entries.gateway.given(), **options})


def upstreams_of(
    entries: Iterable[ServerEntry], *, access: Mapping[str, Access] | None = None
) -> list[Upstream]:
    """Returns the settings of an upstream for each entry; variables are looked up whenever it is connected to.

    Args:
        entries: The servers.
        access: The ``auth`` of servers that take it, by their names. None by default.
    """
    given = access or {}
    return [_upstream(each, given.get(each.name)) for each in entries]


def bridge_to(
    target: UpstreamTarget,
    *,
    sessions: SessionPolicy = "auto",
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Gateway[Any]:
    """Returns a server that passes everything on to one other server, to be served over another binding.

    Args:
        target: As `Upstream.target`.
        sessions: As `Upstream.sessions`.
        settings: Other settings of the `Upstream`, such as ``era`` and ``timeout``. None by default.
        options: Those of `Gateway`.

    Raises:
        ConfigurationError: The target cannot be connected to.
        ValueError: As `Gateway`.
        TypeError: As `Gateway`.
    """
    upstream = Upstream(name="bridge", target=target, prefix="", sessions=sessions, **(settings or {}))
    return Gateway([upstream], **{"name": "bridge", "presents": True, **options})


def _upstream(entry: ServerEntry, auth: Access | None) -> Upstream:
    options: dict[str, Any] = {"auth": auth} if auth is not None and entry.takes_auth else {}
    return Upstream(name=entry.name, target=partial(entry.target, **options), **entry.gateway.given())
