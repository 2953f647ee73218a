"""The options of a client that have functions of the program in them, with functions for the engine in their place."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import attrs

__all__ = ["adapted_access", "adapted_extensions", "adapted_middleware", "adapted_options"]

Function = Callable[..., Any]
Adapt = Callable[[Function], Function]
"""Returns a function for the engine that calls one of the program where that belongs."""

# The options that are functions of the program, or may be.
CALLBACKS = ("sampling", "elicitation", "roots", "on_log", "on_change", "on_notification", "on_lost")
# The functions in ``auth``, and in the grant that it may have.
OF_ACCESS = ("token",)
OF_GRANT = ("id_token", "assertion")


def adapted_options(options: Mapping[str, Any], adapt: Adapt) -> dict[str, Any]:
    """Returns the options of a client with all callbacks in them adapted; see the functions below for the others."""
    return {
        name: adapt(value) if name in CALLBACKS and callable(value) else value
        for name, value in options.items()
    }


def adapted_access(access: Any, adapt: Adapt, known: WeakKeyDictionary[Any, Any]) -> Any:
    """Returns ``auth`` with the functions in it adapted, or as it is if it has none.

    The same object gives the same one again, found in ``known``: clients that share it share its tokens.
    """
    grant: Any = getattr(access, "grant", None)
    changed: dict[str, Any] = {name: adapt(each) for name, each in _functions(access, OF_ACCESS)}
    of_grant = {name: adapt(each) for name, each in _functions(grant, OF_GRANT)}
    if of_grant:
        changed["grant"] = attrs.evolve(grant, **of_grant)
    if not changed:
        return access
    if access not in known:
        known[access] = attrs.evolve(access, **changed)
        if hasattr(access, "counts"):
            # The program reads them from its own object.
            known[access].counts = access.counts
    return known[access]


def adapted_extensions(extensions: Any, adapt: Adapt, back: Adapt) -> Any:
    """Returns the extensions of a client with their functions adapted; those of lifespans stay in the engine.

    ``back`` returns a function for the program that calls one of the engine which the program's are given.
    """
    if not isinstance(extensions, list | tuple):
        return extensions
    return [_adapted_extension(each, adapt, back) for each in extensions]


def _adapted_extension(extension: Any, adapt: Adapt, back: Adapt) -> Any:
    if not hasattr(extension, "arounds"):
        # It is none, and the client says so.
        return extension

    def with_way_back(function: Function) -> Function:
        adapted = adapt(function)

        async def call(*args: Any) -> Any:
            return await adapted(*(_with_way_back(each, back) for each in args))

        return function if adapted is function else call

    made = copy.copy(extension)
    made.results = {kind: with_way_back(each) for kind, each in extension.results.items()}
    made.notifications = {name: adapt(each) for name, each in extension.notifications.items()}
    made.methods = {name: adapt(each) for name, each in extension.methods.items()}
    made.arounds = {
        name: [attrs.evolve(each, function=with_way_back(each.function)) for each in arounds]
        for name, arounds in extension.arounds.items()
    }
    return made


class _AdaptedMiddleware:
    """Middleware of the program for the engine; ``notification`` is there if the program's has it."""

    def __init__(self, call: Function, notification: Function | None) -> None:
        self._call = call
        if notification is not None:
            self.notification = notification

    async def __call__(self, *args: Any) -> Any:
        return await self._call(*args)


def adapted_middleware(middleware: Any, adapt: Adapt, back: Adapt) -> Any:
    """Returns the middleware of a client, each adapted as a function of an extension is.

    The objects of `mcp_actors.middleware` stay in the engine.
    """
    if not isinstance(middleware, list | tuple):
        return middleware
    return [_adapted_middleware(each, adapt, back) for each in middleware]


def _adapted_middleware(each: Any, adapt: Adapt, back: Adapt) -> Any:
    if not callable(each) or hasattr(each, "for_side"):
        return each

    def with_way_back(function: Function) -> Function:
        adapted = adapt(function)

        async def call(value: Any, call_next: Function) -> Any:
            return await adapted(value, back(call_next))

        return function if adapted is function else call

    function = each if inspect.isroutine(each) else each.__call__
    notification = getattr(each, "notification", None)
    return _AdaptedMiddleware(
        with_way_back(function), None if notification is None else with_way_back(notification)
    )


def _with_way_back(value: Any, back: Adapt) -> Any:
    if hasattr(value, "send"):
        return attrs.evolve(value, send=back(value.send))
    return back(value) if callable(value) else value


def _functions(owner: Any, names: tuple[str, ...]) -> list[tuple[str, Function]]:
    found = [(name, getattr(owner, name, None)) for name in names]
    return [(name, each) for name, each in found if callable(each)]
