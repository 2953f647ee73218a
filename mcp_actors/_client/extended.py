"""The extensions of a client as its requests see them, and what their functions are given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import attrs

from mcp_actors._actors.outbound_call import CallOptions

__all__ = ["Answer", "AnsweredCall", "Around", "AroundRequest", "AskedRequest", "Extensions"]


class Send(Protocol):
    """Sends any request and returns its raw result; raises what `Client.request` raises."""

    def __call__(
        self, method: str, params: dict[str, Any], options: CallOptions
    ) -> Awaitable[dict[str, Any]]: ...


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
