"""An extension of a server (SEP-2133): methods, notifications and more that clients use who declare it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import attrs

from mcp_actors._actors.inbound_call import CallOwner
from mcp_actors._eras.capabilities import declared_names
from mcp_actors._eras.era import Method
from mcp_actors._eras.extension_ids import check_id
from mcp_actors._server.context import Context
from mcp_actors._server.detached import Serving
from mcp_actors._server.dispatch import MethodDispatch, Middleware
from mcp_actors._server.features import Features
from mcp_actors._server.frames import LineNamed
from mcp_actors._server.handler import Continuation
from mcp_actors._server.invoke import check_async
from mcp_actors._server.options import PromptOptions, check_options
from mcp_actors._server.subscriptions import ListenMember
from mcp_actors.abc import OpenState
from mcp_actors.errors import LocalProtocolError, MethodNotFound, MissingCapability
from mcp_actors.types import ServerCapabilities

__all__ = ["ServerExtension"]

F = TypeVar("F", bound=Callable[..., Any])
ParamsOf = Callable[[Sequence[str], Context], Awaitable[Mapping[str, Mapping[str, Any]]]]


@attrs.frozen(eq=False)
class _Around:
    function: Middleware
    when: Callable[[Mapping[str, Any]], bool]


@attrs.frozen(eq=False)
class _Offered:
    """A method of an extension, until it is offered."""

    method: Method
    function: Callable[[dict[str, Any], Context], Awaitable[Any]]
    scopes: Collection[str]
    core: bool


class ServerExtension:
    """An extension of the protocol that a server offers: ``Server(extensions=[extension])``.

    It is complete before it is given to a server, and belongs to that server alone. A client uses it that declares it
    too: one of a stateless revision in each request, one with a session in its handshake. The settings that the client
    declared are ``ctx.extensions[id]``.

    Args:
        id: A reverse domain, a slash and a name, such as ``"com.example/search"``.
        settings: What the server declares of it, as JSON values; by default nothing but that it is there.
        core: Members of `~mcp_actors.types.ServerCapabilities`, such as ``{"tasks": {…}}``, by which revisions that
            have the same in their core know it. In these its methods need no declaration of the client, if the revision
            itself has them.

    Raises:
        ValueError: The id is of another form, or ``core`` has a name that is no such member.
    """

    def __init__(
        self,
        id: str,
        *,
        settings: Mapping[str, Any] | None = None,
        core: Mapping[str, Any] | None = None,
    ) -> None:
        with LineNamed():
            self.id = check_id(id)
            self.core: Mapping[str, Any] = dict(core or {})
            unknown = self.core.keys() - {each.name for each in attrs.fields(ServerCapabilities)}
            if unknown:
                raise ValueError(f"no revision has a capability {min(unknown)!r} in its core")
        self.settings: Mapping[str, Any] = dict(settings or {})
        self._methods: list[_Offered] = []
        self._notifications: dict[str, Callable[..., Any]] = {}
        self._around: list[tuple[str, _Around]] = []
        self._topics: dict[str, ListenMember] = {}
        self._serving: list[Callable[[Serving], AbstractAsyncContextManager[object]]] = []
        self._features: Features | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {len(self._methods)} methods>"

    # -- what clients use ------------------------------------------------------------------------------------------

    def method(
        self, name: str, *, target: str | None = None, scopes: Collection[str] = (), core: bool = False
    ) -> Callable[[F], F]:
        """Decorator: the function answers a method, ``async def f(params: dict[str, Any], ctx: Context) -> result``.

        A client that has not declared the extension is refused: in a stateless revision with -32021, which names it,
        and in a session with -32601. What the function raises is told as that of `Server.method`.

        Args:
            name: The method, as clients send it.
            target: The member of the params that says what is meant. Over HTTP, clients of stateless revisions repeat
                it in the header ``Mcp-Name``, and the server refuses a request whose header says something else
                (SEP-2243). By default there is none.
            scopes: A list of those that a caller needs, all of them, as `Server.add_tool` has them.
            core: Whether it is answered only in revisions that have it in their core, and is unknown in all others.

        Raises:
            TypeError: A scope is none, or the function is not of this form.
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._check_open()
                check_async(function, "params, ctx")
            # What only revisions with sessions have is mirrored nowhere.
            method = Method(name, dict, dict, target=None if core else target, shown=False)
            self._methods.append(_Offered(method, function, scopes, core))
            return function

        with LineNamed():
            check_options({"scopes": scopes}, PromptOptions)
        return add

    def notification(self, name: str) -> Callable[[F], F]:
        """Decorator: the function takes a notification of clients, as that of `Server.notification` does.

        One of a client that has not declared the extension is dropped.

        Args:
            name: The method of the notification.

        Raises:
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._check_open()
            self._notifications[name] = function
            return function

        return add

    def around(self, method: str, *, when: Callable[[Mapping[str, Any]], bool]) -> Callable[[F], F]:
        """Decorator: the function runs round some requests of a method, ``async def f(ctx, call_next) -> result``.

        It runs outside of all middleware, whether the client has declared the extension or not: ``ctx.extensions``
        tells. It returns the result of ``await call_next()``, or another one, or raises. ``call_next(ctx2)`` runs the
        middleware and the handler with another context, such as one of `detached`.

        Args:
            method: The method; ``ping`` and ``initialize`` have nothing round them.
            when: Is called with the params of each request of this method, in the event loop, and says whether the
                function runs. It must be quick; requests for which it says no cost nothing else.

        Raises:
            TypeError: The function is not of this form.
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._check_open()
                check_async(function, "ctx, call_next")
            self._around.append((method, _Around(function, when)))
            return function

        return add

    def listen(self, member: str, notification: str) -> Callable[[ParamsOf], ParamsOf]:
        """Decorator: a list of keys in the filter of ``subscriptions/listen``. MCP 2026-07-28, Subscriptions.

        The function is ``async def f(keys: Sequence[str], ctx: Context) -> Mapping[str, params]``: of these keys, those
        that the caller may hear of, with the params of the notification for each. It is called once with all keys that
        are asked for, and those that it leaves out are not granted; and then with those for which `publish` was called.
        Several calls for one key before a client has read count as one. A client that has not declared the extension
        is refused with -32021. What the function raises ends the subscription, as an answer.

        Args:
            member: The name of the member, such as ``"taskIds"``.
            notification: The method of the notification.

        Raises:
            TypeError: The function is not of this form.
            LocalProtocolError: A server offers the extension already.
        """

        def add(function: ParamsOf) -> ParamsOf:
            with LineNamed():
                self._check_open()
                check_async(function, "keys, ctx")
            self._topics[member] = ListenMember(
                member, f"{self.id}/{member}", notification, self.id, function
            )
            return function

        return add

    def serving(
        self, function: Callable[[Serving], AbstractAsyncContextManager[object]]
    ) -> Callable[[Serving], AbstractAsyncContextManager[object]]:
        """Decorator: an async context manager that is entered once for each `Server.serve`, and given a `Serving`.

        It is entered after the server's lifespan and before the first connection, and left when all transports are
        done, or cancelled with the server. A nursery of the extension lives in it. What it raises ends the ``serve``.

        Args:
            function: ``async def f(serving)`` with one ``yield``, decorated with ``contextlib.asynccontextmanager``.

        Raises:
            LocalProtocolError: A server offers the extension already.
        """
        with LineNamed():
            self._check_open()
        self._serving.append(function)
        return function

    # -- while it is offered -----------------------------------------------------------------------------------------

    def publish(self, member: str, key: str) -> None:
        """Tells whoever subscribed to a key that it has changed, at all nodes. Never waits; safe from any thread.

        Args:
            member: A member that `listen` has declared.
            key: The key.

        Raises:
            LocalProtocolError: There is no such member, or no server offers the extension.
        """
        self._offering().bus.publish_key(self._member(member).name, key)

    def subscribed(self, member: str) -> list[str]:
        """Returns the keys that clients have subscribed to at this node, for whoever has to look at them by itself.

        Raises:
            LocalProtocolError: There is no such member, or no server offers the extension.
        """
        return self._offering().bus.subscribed_keys(self._member(member).name)

    def is_negotiated(self, ctx: Context) -> bool:
        """Whether a caller may use the extension's method that it calls: see `method`."""
        if (core := ctx.era.server_methods.get(ctx.method)) is not None:
            return core.requires is None or core.requires in declared_names(ctx.server.capabilities)
        return self.id in ctx.extensions

    def offered(self, features: Features) -> None:
        """Is called by the server that it is given to."""
        self._check_open()
        for each in self._methods:
            features.add_handler(each.method, self._handler(each), each.scopes)
        for name, function in self._notifications.items():
            features.notifications.add(name, function, inline=False, extension=self.id)
        for method, around in self._around:
            features.around.setdefault(method, []).append(around)
        for member, topic in self._topics.items():
            if member in features.topics:
                raise LocalProtocolError(f"an extension has the member {member!r} of subscriptions already")
            features.topics[member] = topic
        self._features = features

    @asynccontextmanager
    async def served(
        self, responder: MethodDispatch, owner: CallOwner, shared: OpenState
    ) -> AsyncIterator[None]:
        """Is entered by the server for each ``serve``."""
        serving = Serving(shared, responder, owner)
        async with AsyncExitStack() as stack:
            for each in self._serving:
                await stack.enter_async_context(each(serving))
            yield

    def goes_on_from(self, former: object) -> bool:
        """Whether this one goes on with what ``former`` does, in whose place it is offered while the server serves.

        Then what `serving` was given is not entered again, and that of ``former`` goes on. By default it is entered,
        and that of ``former`` is left after the last call that began with it.

        Args:
            former: The extension that was offered under the same id.
        """
        return False

    def _handler(self, offered: _Offered) -> Callable[[Context], Continuation]:
        def handler(ctx: Context) -> Continuation:
            if offered.core and ctx.method not in ctx.era.server_methods:
                raise MethodNotFound(ctx.method)
            if not self.is_negotiated(ctx):
                if not ctx.era.declares_in_requests:
                    raise MethodNotFound(ctx.method)
                raise MissingCapability({"extensions": {self.id: {}}})
            return Continuation(offered.function, ctx.params, ctx)

        return handler

    def _check_open(self) -> None:
        if self._features is not None:
            raise LocalProtocolError(
                f"the extension {self.id!r} is offered already: complete it before a server is given it"
            )

    def _offering(self) -> Features:
        if self._features is None:
            raise LocalProtocolError(f"no server offers {self.id!r}: write Server(extensions=[…])")
        return self._features

    def _member(self, member: str) -> ListenMember:
        if member not in self._topics:
            raise LocalProtocolError(f"the extension {self.id!r} has no member {member!r} of subscriptions")
        return self._topics[member]
