"""An extension of a client (SEP-2133): answers and notifications that servers send to clients which declare it.

`ClientExtension` is what a program makes. The other classes are what its functions are given, and `Extensions` is what
the requests of a client look up in all of its extensions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import attrs

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import check_id
from mcp_actors.errors import LocalProtocolError
from mcp_actors.types import ClientCapabilities

__all__ = [
    "Answer",
    "AnsweredCall",
    "Around",
    "AroundRequest",
    "AskedRequest",
    "ClientExtension",
    "Extensions",
]

F = TypeVar("F", bound=Callable[..., Any])


class ClientExtension:
    """An extension of the protocol that a client has: ``Client(extensions=[extension])``.

    It is declared to servers: to those of stateless revisions in each request, and in a session in the handshake. It is
    complete before it is given to a client, and may be given to many.

    Args:
        id: A reverse domain, a slash and a name, such as ``"com.example/search"``.
        settings: What the client declares of it, as JSON values; by default nothing but that it is there.
        core: Members of `~mcp_actors.types.ClientCapabilities`, such as ``{"tasks": {…}}``, by which revisions that
            have the same in their core know it.
        targets: The methods of the server's side that have one, with the member of their params that says what is
            meant. Over HTTP it is repeated in the header ``Mcp-Name`` (SEP-2243). None by default.

    Raises:
        ValueError: The id is of another form, or ``core`` has a name that is not such a member.
    """

    def __init__(
        self,
        id: str,
        *,
        settings: Mapping[str, Any] | None = None,
        core: Mapping[str, Any] | None = None,
        targets: Mapping[str, str] | None = None,
    ) -> None:
        self.id = check_id(id)
        self.settings: Mapping[str, Any] = dict(settings or {})
        self.core: Mapping[str, Any] = dict(core or {})
        unknown = self.core.keys() - {each.name for each in attrs.fields(ClientCapabilities)}
        if unknown:
            raise ValueError(f"no revision has a capability {min(unknown)!r} in its core")
        self.targets: Mapping[str, str] = dict(targets or {})
        self.results: dict[str, Answer] = {}
        """The functions of `result`, by kind."""
        self.notifications: dict[str, Callable[..., Any]] = {}
        """The functions of `notification`, by method."""
        self.methods: dict[str, Callable[[AskedRequest], Awaitable[Any]]] = {}
        """The functions of `method`, by name."""
        self.arounds: dict[str, list[AroundRequest]] = {}
        """The functions of `around`, by method."""
        self.lifespans: list[Callable[[Any], AbstractAsyncContextManager[object]]] = []
        """The functions of `lifespan`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def result(self, kind: str) -> Callable[[Answer], Answer]:
        """Decorator: the function turns an answer of a kind of its own into one of the kind ``complete``.

        It is ``async def f(call: AnsweredCall, raw: dict) -> dict``: it runs in the task that made the call, and is
        cancelled with it; it minds the clocks of ``call.options`` itself. What it raises, the call raises.

        Args:
            kind: The ``resultType`` of the answer (MCP 2026-07-28, Base Protocol, Results).

        Raises:
            LocalProtocolError: The kind is one of the protocol, or has a function already.
        """
        if kind in ("complete", "input_required") or kind in self.results:
            raise LocalProtocolError(f"answers of the kind {kind!r} are taken already")

        def add(function: Answer) -> Answer:
            self.results[kind] = function
            return function

        return add

    def notification(self, name: str) -> Callable[[F], F]:
        """Decorator: the function, sync or async, is called with the params of each notification of a method.

        It is called as a client's ``on_notification`` is, in the order of arrival, and in its place; the ``_meta`` of a
        notification of a subscription has the subscription's id.

        Args:
            name: The method.
        """

        def add(function: F) -> F:
            self.notifications[name] = function
            return function

        return add

    def method(self, name: str) -> Callable[[F], F]:
        """Decorator: the function answers a method that the revision lets servers ask of clients in sessions.

        It is ``async def f(request: AskedRequest) -> result``, and an `RpcError` of it is the answer.

        Args:
            name: The method.
        """

        def add(function: F) -> F:
            self.methods[name] = function
            return function

        return add

    def around(self, method: str, *, when: Callable[[Mapping[str, Any]], bool]) -> Callable[[Around], Around]:
        """Decorator: the function runs round some requests of servers in sessions.

        It is ``async def f(request: AskedRequest, call_next) -> dict``: ``await call_next()`` asks the client's handler
        and returns its answer as JSON, for a result or to be kept.

        Args:
            method: The method, such as ``sampling/createMessage``.
            when: Is called with the params, and says whether the function runs.
        """

        def add(function: Around) -> Around:
            self.arounds.setdefault(method, []).append(AroundRequest(function, when))
            return function

        return add

    def lifespan(
        self, function: Callable[[Any], AbstractAsyncContextManager[object]]
    ) -> Callable[[Any], AbstractAsyncContextManager[object]]:
        """Decorator: an async context manager that is entered once for each client, and given the `Client`.

        It is entered once the client is connected, and left when it is closed. A nursery of the extension lives in it.

        Args:
            function: ``async def f(client)`` with one ``yield``, decorated with ``contextlib.asynccontextmanager``.
        """
        self.lifespans.append(function)
        return function


@attrs.frozen
class AnsweredCall:
    """A call of the program that was answered by a result of an extension's own kind."""

    method: str
    params: Mapping[str, Any]
    """The params as they were sent, without ``_meta``."""
    options: CallOptions
    """The clocks of the call, its progress callback and its further metadata."""
    send: Send
    """Sends any request to the same server: ``await call.send(method, params, options)``."""
    began: float
    """The time of Trio's clock at which it was made, for what is left of ``options.cap``."""


class Send(Protocol):
    """Sends any request and returns its raw result; raises what `Client.request` raises."""

    def __call__(
        self, method: str, params: dict[str, Any], options: CallOptions
    ) -> Awaitable[dict[str, Any]]: ...


@attrs.frozen
class AskedRequest:
    """A request of the server of a session to the client."""

    method: str
    params: Mapping[str, Any]
    """Its params, without ``_meta``."""
    meta: Mapping[str, Any]


Answer = Callable[[AnsweredCall, dict[str, Any]], Awaitable[dict[str, Any]]]

CallNext = Callable[[], Awaitable[dict[str, Any]]]

Around = Callable[[AskedRequest, CallNext], Awaitable[dict[str, Any]]]


@attrs.frozen(eq=False)
class AroundRequest:
    """A function of an extension that runs round some requests of one method."""

    function: Around
    when: Callable[[Mapping[str, Any]], bool]


@attrs.frozen
class Extensions:
    """The extensions of one client, by what its requests look for."""

    declared: Mapping[str, Any]
    """The settings of all, by their ids."""
    results: Mapping[str, Answer]
    """The functions that make a result of an answer of another kind, by kind."""
    targets: Mapping[str, str]
    """The members of params that say what a method is about, by method."""
