"""Servers that are mounted in another one: what they have is shown there, and runs as it does at home.

A mount has a view of each entry of the mounted server in the registries of its host, and keeps them as these are: what
is added later appears, what is removed goes. A view is an entry like any other, with the name that it has in the host,
so that lists, calls, completions, scopes and telemetry know nothing of mounts. What differs is the function: it runs
with the `ServerScope` of the mounted server, in which ``ctx.server`` and ``ctx.state`` are those of that server, and
through its middleware if it has any. A mount in a mount is entered in one step.

Each `serve` of the host enters the lifespan of a mounted server once. One that is mounted while the host serves is
shown when its lifespan has been entered; one that is unmounted is hidden at once, and its lifespan is left when the
last call that was in flight then has ended.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any

import attrs
import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import Continuation, InboundCall
from mcp_actors._eras.era import Method
from mcp_actors._server.components import VERSION, ComponentKind
from mcp_actors._server.context import Context
from mcp_actors._server.dependencies import kept_values
from mcp_actors._server.features import OWN_EXTENSIONS
from mcp_actors._server.invoke import Function, Handler
from mcp_actors._server.middleware import Middleware, through
from mcp_actors._server.names import NameTable
from mcp_actors._server.registry import ComponentSource
from mcp_actors._server.reshape import Reshape, reshaped_entry
from mcp_actors._server.scope import OpenedBlock, ServerScope
from mcp_actors._server.visibility import Caller, Exposure, ViewedEntry
from mcp_actors._wire.uri_template import UriTemplate
from mcp_actors.errors import LocalProtocolError, UpstreamUnavailable
from mcp_actors.supervision.containment import sole_cause, start, start_and_wait
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import MOUNT, MOUNT_END

__all__ = ["LiveMounts", "Mount", "Mounts"]

# Seconds between two looks whether the calls in flight of a server that was unmounted have ended.
LOOK_EVERY = 0.25


class Mount:
    """One server in another one, from `mcp_actors.Server.mount` on until `mcp_actors.Server.unmount`.

    Args:
        name: Its name in the host, for errors and the log.
        host: The server that shows it.
        server: The server that is mounted.
        names: The names that its entries have in the host.
        scopes: Those that a caller needs beside the ones of an entry.
        tools: Other shapes of tools, by their names in the server.
    """

    def __init__(
        self,
        name: str,
        host: Any,
        server: Any,
        names: NameTable,
        scopes: Collection[str] = (),
        tools: Mapping[str, Reshape] = {},
    ) -> None:
        self.name = name
        self.host = host
        self.server = server
        self.names = names
        self.scopes = frozenset(scopes)
        self._shapes = dict(tools)
        features = server._features
        host_features = host._features
        self._resources = _Views(self, features.resources, host_features.resources, self._resource)
        self._tools = _Views(self, features.tools, host_features.tools, self._tool)
        self._followers = (
            self._tools,
            _Views(self, features.prompts, host_features.prompts, self._prompt),
            self._resources,
        )
        self._completions = _Completions(self)
        self._sources: dict[ComponentSource, _MountedSource] = {}
        self._waiting = 0
        self._stop_forwarding: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Mount of {self.server.name!r} as {self.name!r} in {self.host.name!r}>"

    @property
    def is_shown(self) -> bool:
        """Whether the host shows it."""
        return self._stop_forwarding is not None

    # -- showing and hiding --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Shows the server in its host: at once, or when its lifespan has been entered where the host serves.

        Raises:
            LocalProtocolError: Something of it has a name that the host has already, or an extension that the host does
                not offer.
        """
        self.check()
        lives = tuple(self.host._mounts.live)
        self._waiting = len(lives)
        for live in lives:
            live.enter_later(self)
        if not lives:
            self.show()

    def check(self) -> None:
        """Raises `LocalProtocolError` if something of the server cannot be shown in the host."""
        features = self.server._features
        for each in self._followers:
            for entry in each.source.entries():
                each.check(entry.key, entry.exposure.component.version)
        for own in self._shapes:
            self._check_shape(own)
        for method in features.own_methods:
            self.check_method(method)
        for id in features.extensions:
            self.check_extension(id)
        host = self.host._features
        if features.skills is not None and host.skills is None and host.is_served:
            raise LocalProtocolError(
                f"the mount {self.name!r} has skills, and its host has none: a server cannot have its first ones while "
                "it serves"
            )

    def _check_shape(self, own: str) -> None:
        """Raises `LocalProtocolError` if a tool cannot have the shape that it is to have."""
        entry = self.server._features.tools.by_key.get(own)
        if entry is None:
            log.warning("a tool that is to be reshaped is not there yet", mount=self.name, tool=own)
            return
        try:
            reshaped_entry(entry, self._shapes[own], own, 0)
        except (TypeError, ValueError) as error:
            raise LocalProtocolError(
                f"the mount {self.name!r} cannot reshape the tool {own!r}: {error}"
            ) from None

    def own_tool(self, name: str) -> str | None:
        """Returns the name that a tool of the host has in the server, ``None`` for one that is not of this server."""
        return self._tools.own(name)

    def check_method(self, method: str) -> None:
        """Raises `LocalProtocolError` if the host answers a method already."""
        if method in self.host._features.handlers:
            raise LocalProtocolError(
                f"the mount {self.name!r} has the method {method!r}, which {self.host.name!r} answers already"
            )

    def check_extension(self, id: str) -> None:
        """Raises `LocalProtocolError` if the host does not offer an extension, which clients could not know then."""
        host = self.host._features
        if id not in host.extensions and (id not in OWN_EXTENSIONS or host.is_served):
            raise LocalProtocolError(
                f"the mount {self.name!r} has the extension {id!r}, which its host does not offer: give it to the host"
            )

    def entered(self, live: LiveMounts) -> None:
        """One `serve` of the host has entered the lifespan."""
        self._waiting -= 1
        if self._waiting <= 0 and not self.is_shown and self.host._mounts.by_name.get(self.name) is self:
            self.check()
            self.show()

    def show(self) -> None:
        """Shows everything, and keeps it as it is in the server."""
        features, host = self.server._features, self.host._features
        for id in features.extensions:
            if id not in host.extensions:
                host.add_own_extension(id)
        if features.skills is not None:
            features.skills.declare_in(host)
        if features.has_apps:
            host.declare_apps()
        for each in self._followers:
            each.follow()
        self._completions.follow()
        for name, method in features.own_methods.items():
            self.add_method(method, features.scopes_of_method(name))
        for name, entry in features.notifications.entries():
            self.add_notification(name, entry)
        features.mounts += (self,)
        for source in features.sources:
            self.add_source(source)
        if features.visibility.is_active:
            host.visibility.activate(same_for_all=features.visibility.is_same_for_all)
        host.declare_also(features.declared_names())
        self._stop_forwarding = self.server.bus.forward(self._forward)

    def hide(self) -> None:
        """Hides everything."""
        if self._stop_forwarding is None:
            return
        features, host = self.server._features, self.host._features
        self._stop_forwarding()
        self._stop_forwarding = None
        features.mounts = tuple(each for each in features.mounts if each is not self)
        for each in self._followers:
            each.leave()
        self._completions.leave()
        for method in features.own_methods:
            self.remove_method(method)
        host.notifications.remove_of(self)
        for source in features.sources:
            self.remove_source(source)

    def add_source(self, source: ComponentSource) -> None:
        """Has the host show what a source of the server has."""
        shown = self._sources[source] = _MountedSource(self, source)
        self.host._features.add_source(shown)

    def remove_source(self, source: ComponentSource) -> None:
        """Has the host show no longer what a source of the server has."""
        self.host._features.remove_source(self._sources.pop(source))

    def refresh(self) -> None:
        """Makes all views again: the server has its first middleware, through which they go from now on."""
        for each in self._followers:
            for entry in each.source.entries():
                each.replaced(entry)
        self._completions.leave()
        self._completions.follow()

    def _forward(self, kind: str, key: str | None) -> None:
        # What the registries of the host publish themselves is left out, and what the mount does not show.
        outside = None if key is None else self.names.outside_uri(key) or key
        is_hidden = (
            key is not None
            and self.server._features.resources.covers(key)
            and not self.covers(outside or key)
        )
        if kind in ("resources", "resource_updated") and not is_hidden:
            self.host.bus.republish(kind, outside)

    def covers(self, uri: str) -> bool:
        """Whether a resource of the server, as it is shown in the host, serves a URI."""
        key = self.host._features.resources.key_of(uri)
        return key is not None and self._resources.shows(key)

    # -- entering ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def scope_in(
        self, scope: ServerScope, calls: Callable[[], set[InboundCall]]
    ) -> AsyncIterator[None]:
        """Enters the lifespan of the server, and those of what is mounted in it, for one `serve` of the host.

        Args:
            scope: The scope of the host, in which that of the server is found meanwhile.
            calls: The calls in flight of that `serve`.
        """
        async with AsyncExitStack() as stack:
            state = await self.server._entered_lifespan(stack)
            overrides = self.server._features.overrides
            kept = await stack.enter_async_context(kept_values(overrides, within=scope.kept))
            inner = msgspec.structs.replace(scope, server=self.server, state=state, mounted={}, kept=kept)
            self.server._features.start_ahead(inner)
            await stack.enter_async_context(LiveMounts(self.server, inner, calls))
            scope.mounted[self] = inner
            try:
                yield
            finally:
                del scope.mounted[self]

    def inside(self, ctx: Context) -> ServerScope:
        """Returns the scope of the server for a call of the host.

        Raises:
            UpstreamUnavailable: Its lifespan has failed.
        """
        inner = ctx._scope.mounted.get(self)
        if inner is None:
            raise UpstreamUnavailable(self.name, "it is mounted, and its lifespan has failed")
        return inner

    # -- views ---------------------------------------------------------------------------------------------------------

    @property
    def _middleware(self) -> list[Middleware]:
        middleware: list[Middleware] = self.server._features.middleware
        return middleware

    def _exposure(self, entry: Any, name: str) -> Exposure:
        exposure: Exposure = entry.exposure
        return exposure.named(name, ViewedEntry(self.server._features.visibility, exposure, self.entered_by))

    def entered_by(self, caller: Caller) -> Caller | None:
        """Returns a caller as it is in the server, ``None`` if its lifespan has failed."""
        inner = caller._scope.mounted.get(self)
        return None if inner is None else msgspec.structs.replace(caller, _scope=inner)

    def _function(self, entry: Any, method: str, **params: Any) -> Function:
        """The function of an entry, which returns the whole result where it goes through middleware."""
        own: Function = entry.function
        if not self._middleware:
            return _entering(self, own)
        if entry.exposure.component.version is not None:
            params[VERSION] = entry.exposure.component.version
        return Function(partial(self._through, method, params), inline=False)

    async def _through(
        self, method: str, own: dict[str, Any], ctx: Context, arguments: dict[str, Any]
    ) -> Any:
        params = {**ctx.params, **own}
        if method == "tools/call":
            # Those of a tool in another shape are not the ones that the client has sent.
            params["arguments"] = arguments
        if method == "resources/read":
            params["uri"] = self.names.own_uri(params["uri"])
        inner = _context(ctx, self.inside(ctx), params)
        result = await through(self._middleware, inner, self.server._features.handlers[method])
        if params.get("uri") != ctx.params.get("uri") and isinstance(result, t.ReadResourceResult):
            contents = [
                attrs.evolve(each, uri=self.names.outside_uri(each.uri) or each.uri)
                for each in result.contents
            ]
            result = attrs.evolve(result, contents=contents)
        return result

    def completing(self, own: Function, reference: dict[str, Any]) -> Function:
        """Returns the function of a completion of what ``reference`` is in the server."""
        if not self._middleware:
            return _entering(self, own)

        async def complete(ctx: Context, arguments: dict[str, Any]) -> Any:
            result = await self._through("completion/complete", {"ref": reference}, ctx, arguments)
            return result.completion

        return Function(complete, inline=False)

    def _tool(self, entry: Any, name: str, serial: int) -> Any:
        changes: dict[str, Any] = {
            "key": name,
            "serial": serial,
            "tool": self._described(entry.tool, name),
            "function": self._function(entry, "tools/call", name=entry.key),
            "scopes": entry.scopes | self.scopes,
            "exposure": self._exposure(entry, name),
            # Its processes are those of the server that is mounted.
            "isolated": None,
        }
        if self._middleware:
            # Middleware sees the arguments as they came, and what it passes on is checked then.
            changes.update(bind=_as_it_is, finish=_as_it_is, repair=None)
        elif entry.repair is not None:
            count = self.host._features.tools.repairs
            changes["repair"] = msgspec.structs.replace(entry.repair, tool=name, count=count)
        view = msgspec.structs.replace(entry, **changes)
        shape = self._shapes.get(entry.key)
        return view if shape is None else reshaped_entry(view, shape, name, serial)

    def _described(self, tool: t.Tool, name: str) -> t.Tool:
        meta = self.names.outside_meta(tool.meta)
        return tool if (tool.name, tool.meta) == (name, meta) else attrs.evolve(tool, name=name, meta=meta)

    def _prompt(self, entry: Any, name: str, serial: int) -> Any:
        return msgspec.structs.replace(
            entry,
            key=name,
            serial=serial,
            prompt=entry.prompt if entry.prompt.name == name else attrs.evolve(entry.prompt, name=name),
            function=self._function(entry, "prompts/get", name=entry.key),
            scopes=entry.scopes | self.scopes,
            exposure=self._exposure(entry, name),
        )

    def _resource(self, entry: Any, uri: str, serial: int) -> Any:
        template, own = entry.template, entry.key
        if own != uri:
            # The page of an app.
            member = "uri" if template is None else "uri_template"
            entry = msgspec.structs.replace(
                entry,
                key=uri,
                listed=attrs.evolve(entry.listed, **{member: uri}),
                template=None if template is None else UriTemplate(uri),
            )
        return msgspec.structs.replace(
            entry,
            serial=serial,
            function=self._reading(entry, is_moved=own != uri),
            lister=None if entry.lister is None else _entering(self, entry.lister),
            scopes=entry.scopes | self.scopes,
            exposure=self._exposure(entry, uri),
        )

    def _reading(self, entry: Any, *, is_moved: bool) -> Function:
        """The function of a resource, which is asked for by its own URI if that is another one in the host."""
        own: Function = entry.function
        if not is_moved or self._middleware:
            return self._function(entry, "resources/read")

        def read(ctx: Context, arguments: dict[str, Any]) -> Any:
            params = {**ctx.params, "uri": self.names.own_uri(ctx.params["uri"])}
            return own.call(_context(ctx, ctx._scope, params), arguments)

        return _entering(self, Function(read, own.inline))

    # -- what only a source of the server has --------------------------------------------------------------------------

    def own(self, kind: ComponentKind, outside: str) -> str | None:
        """Returns the name in the server of what only a source of it may have, ``None`` if it cannot be that."""
        features = self.server._features
        if kind in ("resource", "template"):
            uri = self.names.own_uri(outside)
            own = uri if self.names.outside_uri(uri) == outside else None
            is_own = own is not None and (own in features.resources or features.resources.covers(own))
        else:
            own = (self.names.tools if kind == "tool" else self.names).own(outside)
            is_own = own in (features.tools if kind == "tool" else features.prompts)
        return None if is_own else own

    def view(self, kind: ComponentKind, entry: Any) -> Any | None:
        """Returns the view of an entry that a source has made, ``None`` if it is not shown."""
        own: str = entry.key
        if kind in ("resource", "template"):
            uri = self.names.outside_uri(own)
            is_own = own in self.server._features.resources
            return None if uri is None or is_own else self._resource(entry, uri, 0)
        names = self.names.tools if kind == "tool" else self.names
        outside = names.outside(own)
        if outside is None or self.own(kind, outside) is None:
            return None
        try:
            return (self._tool if kind == "tool" else self._prompt)(entry, outside, 0)
        except (TypeError, ValueError) as error:
            log.error(
                "a tool is not shown: it cannot be reshaped", mount=self.name, tool=own, error=str(error)
            )
            return None

    # -- what has no name ----------------------------------------------------------------------------------------------

    def add_method(self, method: Method, scopes: Iterable[str]) -> None:
        """Has the host answer a method as the server does."""
        needed = frozenset(scopes) | self.scopes
        self.host._features.add_own_handler(method, self._handler(method.name), needed)

    def remove_method(self, method: str) -> None:
        """Has the host no longer answer a method."""
        self.host._features.remove_own_handler(method)

    def _handler(self, method: str) -> Handler:
        return lambda ctx: Continuation(self._through, method, {}, ctx, {})

    def add_notification(self, name: str, entry: Any) -> None:
        """Has the host call a function of the server for a notification, beside all others."""
        function = Function(partial(self._notified, entry), inline=False)
        self.host._features.notifications.insert(
            name, msgspec.structs.replace(entry, function=function, origin=self)
        )

    async def _notified(self, entry: Any, ctx: Context, arguments: dict[str, Any]) -> None:
        inner = _context(ctx, self.inside(ctx), ctx.params)

        async def call() -> None:
            outcome = entry.function.call(inner, arguments)
            if not entry.function.inline:
                await outcome

        await through(self.server._features.notifications.middleware, inner, lambda _: Continuation(call))


class _Views:
    """The views of the entries of one registry."""

    def __init__(self, mount: Mount, source: Any, target: Any, view: Callable[[Any, str, int], Any]) -> None:
        self.source = source
        self._mount = mount
        self._target = target
        self._view = view
        # The keys in the host, by the own ones.
        self._keys: dict[str, str] = {}

    def _outside(self, key: str) -> str | None:
        names = self._mount.names
        if self.source.what == "resource":
            return names.outside_uri(key)
        return (names.tools if self.source.what == "tool" else names).outside(key)

    def shows(self, key: str) -> bool:
        """Whether an entry of the mounted server is shown in the host."""
        return key in self._keys

    def own(self, outside: str) -> str | None:
        """Returns the key in the mounted server of what the host has under ``outside``, ``None`` if it is no view."""
        return next((own for own, each in self._keys.items() if each == outside), None)

    def check(self, key: str, version: str | None) -> None:
        """See `mcp_actors._server.registry.Follower`."""
        outside = self._outside(key)
        is_shown = key in self._keys
        if outside is not None and (version is not None or not is_shown):
            try:
                # Another version of it is welcome, and one of an entry that the host has itself is not.
                self._target.check(outside, version if is_shown else None)
            except LocalProtocolError as error:
                raise LocalProtocolError(
                    f"the mount {self._mount.name!r} cannot show its {self.source.what} {key!r}: {error}, or give the "
                    "mount another prefix, rename= or exclude="
                ) from None

    def follow(self) -> None:
        for entry in self.source.entries():
            self.inserted(entry)
        self.source.followers += (self,)

    def leave(self) -> None:
        self.source.followers = tuple(each for each in self.source.followers if each is not self)
        for key in list(self._keys):
            self.removed(key)

    def inserted(self, entry: Any) -> None:
        outside = self._outside(entry.key)
        if outside is None:
            return
        try:
            view = self._view(entry, outside, self._target.next_serial())
        except (TypeError, ValueError) as error:
            # It was registered after the mount was checked.
            log.error(
                "a tool is not shown: it cannot be reshaped",
                mount=self._mount.name,
                tool=entry.key,
                error=str(error),
            )
            return
        self._target.insert(view)
        self._keys[entry.key] = outside

    def replaced(self, entry: Any) -> None:
        outside = self._keys.get(entry.key)
        former = None if outside is None else self._target.by_key.get(outside)
        if former is not None:
            self._target.replace(self._view(entry, former.key, former.serial))

    def removed(self, key: str) -> None:
        outside = self._keys.pop(key, None)
        # The program may have removed it from the host itself.
        if outside is not None and outside in self._target:
            self._target.remove(outside)


class _MountedSource:
    """Shows in the host what a source of a mounted server has."""

    def __init__(self, mount: Mount, inner: ComponentSource) -> None:
        self._mount = mount
        self._inner = inner
        self.name = f"{mount.name}/{inner.name}"
        self.kinds = inner.kinds

    @property
    def provider(self) -> Any:
        """The provider of the mounted server."""
        return self._inner.provider

    @property
    def is_late(self) -> bool:
        """Whether it was too slow lately."""
        return self._inner.is_late

    async def page(
        self, caller: Caller, kind: ComponentKind, cursor: str | None, limit: int
    ) -> tuple[list[Any], str | None]:
        """See `mcp_actors._server.registry.ComponentSource`."""
        inside = self._mount.entered_by(caller)
        if inside is None:
            return [], None
        entries, following = await self._inner.page(inside, kind, cursor, limit)
        views = (self._mount.view(kind, each) for each in entries)
        return [each for each in views if each is not None], following

    async def get(self, caller: Caller, kind: ComponentKind, key: str) -> Any | None:
        """See `mcp_actors._server.registry.ComponentSource`."""
        own, inside = self._mount.own(kind, key), self._mount.entered_by(caller)
        if own is None or inside is None:
            return None
        entry = await self._inner.get(inside, kind, own)
        return None if entry is None else self._mount.view(kind, entry)

    def fingerprint(self, caller: Caller, kind: ComponentKind) -> Hashable | None:
        """See `mcp_actors._server.registry.ComponentSource`."""
        inside = self._mount.entered_by(caller)
        return "left" if inside is None else self._inner.fingerprint(inside, kind)


class _Completions:
    """The completion functions of a mounted server, by the names that it has in the host."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._keys: dict[Any, Any] = {}

    def follow(self) -> None:
        source = self._mount.server._features.completions
        for key, entry in source.entries():
            self.inserted(key, entry)
        source.followers += (self,)

    def leave(self) -> None:
        source = self._mount.server._features.completions
        source.followers = tuple(each for each in source.followers if each is not self)
        for key in list(self._keys):
            self.removed(key)

    def inserted(self, key: tuple[Any, str, str], entry: Any) -> None:
        kind, own, argument = key
        names = self._mount.names
        outside = names.outside(own) if kind == "prompt" else names.outside_uri(own)
        target = self._mount.host._features.completions
        if outside is not None and not target.has((kind, outside, argument)):
            self._keys[key] = kind, outside, argument
            function = self._mount.completing(entry.function, _reference(kind, own))
            target.insert(self._keys[key], msgspec.structs.replace(entry, function=function))

    def removed(self, key: tuple[Any, str, str]) -> None:
        outside = self._keys.pop(key, None)
        if outside is not None:
            self._mount.host._features.completions.discard(outside)


def _reference(kind: str, own: str) -> dict[str, Any]:
    return {"type": f"ref/{kind}", "name" if kind == "prompt" else "uri": own}


class _Entering(Function, frozen=True, eq=False):
    """A function that runs in the scope of a mounted server: the last one of a path of mounts."""

    path: tuple[Mount, ...]
    innermost: Callable[[Any, dict[str, Any]], Any]


def _entering(mount: Mount, own: Function) -> Function:
    innermost = own.innermost if isinstance(own, _Entering) else own.call
    path = (mount, *own.path) if isinstance(own, _Entering) else (mount,)

    def run(ctx: Any, arguments: dict[str, Any]) -> Any:
        scope = ctx._scope
        for each in path:
            try:
                scope = scope.mounted[each]
            except KeyError:
                scope = each.inside(ctx)
        return innermost(Context(ctx.call, ctx.params, scope, ctx._kept, ctx._asked, ctx._logger), arguments)

    return _Entering(run, own.inline, path, innermost)


def _context(ctx: Context, scope: ServerScope, params: dict[str, Any]) -> Context:
    # What was asked already stays: the keys of questions count on.
    return Context(ctx.call, params, scope, ctx._kept, ctx._asked, ctx._logger)


def _as_it_is(value: Any) -> Any:
    return value


class Mounts:
    """Everything that is mounted in one server."""

    def __init__(self) -> None:
        self.by_name: dict[str, Mount] = {}
        self.live: list[LiveMounts] = []
        """One for each `serve`, and for each of a server that this one is mounted in."""

    def __repr__(self) -> str:
        return f"<Mounts {', '.join(self.by_name)}>"


# -- the mounts of one `serve` ----------------------------------------------------------------------------------------


class LiveMounts:
    """The mounts of one host in one `serve`, each with the task that holds its lifespan open.

    Entered as a context manager, it enters the lifespans of all that is mounted, and raises what one of them raises.

    Args:
        server: The host.
        scope: Its scope in this `serve`.
        calls: The calls in flight of this `serve`.
    """

    def __init__(self, server: Any, scope: ServerScope, calls: Callable[[], set[InboundCall]]) -> None:
        self._server = server
        self._scope = scope
        self._calls = calls
        self._manager = trio.open_nursery()
        self._blocks: dict[Mount, OpenedBlock] = {}

    async def __aenter__(self) -> None:
        self._nursery = await self._manager.__aenter__()
        # What is mounted from now on is entered by itself, and shown then.
        mounts = tuple(self._server._mounts.by_name.values())
        self._server._mounts.live.append(self)
        try:
            for each in mounts:
                await self.enter(each)
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._server._mounts.live.remove(self)
        self.leave_all()
        try:
            return bool(await self._manager.__aexit__(kind, error, traceback))
        except BaseExceptionGroup as group:
            # Only the collector could free a group round what came from outside.
            if sole_cause(group) is error:
                return False
            raise

    def __repr__(self) -> str:
        return f"<LiveMounts of {self._server.name!r}: {len(self._blocks)}>"

    async def enter(self, mount: Mount) -> None:
        """Enters the lifespan of a mount; raises what that raises."""
        block = self._blocks[mount] = OpenedBlock()
        held = partial(mount.scope_in, self._scope, self._calls)
        await start_and_wait(self._nursery, MOUNT, block.hold, held, about=mount.name)

    def enter_later(self, mount: Mount) -> None:
        """Enters the lifespan of a mount in a task, which shows the mount then."""
        start(self._nursery, MOUNT, self._enter_and_show, mount, about=mount.name)

    async def _enter_and_show(self, mount: Mount) -> None:
        try:
            await self.enter(mount)
        except Exception as error:
            self._blocks.pop(mount, None)
            log.error("a mount is not shown: its lifespan has failed", mount=mount.name, exc_info=error)
            return
        try:
            mount.entered(self)
        except LocalProtocolError as error:
            log.error("a mount is not shown", mount=mount.name, error=str(error))

    def leave_later(self, mount: Mount) -> None:
        """Leaves the lifespan of a mount that is hidden when the calls that are in flight now have ended."""
        start(self._nursery, MOUNT_END, self._leave, mount, self._calls(), about=mount.name)

    async def _leave(self, mount: Mount, calls: set[InboundCall]) -> None:
        while calls := calls & self._calls():  # noqa: ASYNC110 - the end of a call sets no event
            await trio.sleep(LOOK_EVERY)
        block = self._blocks.pop(mount, None)
        if block is not None:
            block.left.set()

    def leave_all(self) -> None:
        """Leaves every lifespan; their tasks end with the nursery."""
        for each in self._blocks.values():
            each.left.set()
        # Waiting for calls is over, too: those that are left end with the server.
        self._blocks.clear()
