"""The part of a server that adds middleware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from mcp_actors._server.features import Features
from mcp_actors._server.frames import LineNamed
from mcp_actors._server.invoke import Loop, check_async, middleware_in_loop
from mcp_actors._server.middleware import Middleware

__all__ = ["MiddlewareRegistration"]

M = TypeVar("M", bound=Middleware)


class MiddlewareRegistration:
    """The part of `Server` that adds functions which run round requests and notifications."""

    def __init__(self, features: Features) -> None:
        self._features = features

    @overload
    def middleware(self, function: M, /) -> M: ...

    @overload
    def middleware(self, function: None = None, /, *, loop: Loop = None) -> Callable[[M], M]: ...

    def middleware(self, function: Any = None, /, *, loop: Loop = None) -> Any:
        """Decorator, with or without ``loop``: runs a function round every request but ``ping`` and ``initialize``.

        Those two are answered at once even when everything else waits, because a peer whose ping is not answered takes
        the server for dead. With middleware every other request runs in a task of its own, inline tools as well. An
        object of a class with ``async def notification(self, ctx, call_next)`` has that run round the functions of
        notifications, too. `mcp_actors.middleware` has objects that are ready.

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
                self._features.add_middleware(middleware_in_loop(function, loop))
            return function

        return add if function is None else add(function)
