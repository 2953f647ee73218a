"""The part of a server that registers what it has for clients: tools, resources, prompts and methods of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, Unpack, overload

from mcp_actors._actors.event_bus import EventBus
from mcp_actors._server.dispatch import Middleware
from mcp_actors._server.features import Features
from mcp_actors._server.options import PromptOptions, ResourceOptions, ToolOptions
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.resources import Resources
from mcp_actors._server.tools import Tools
from mcp_actors.types import ServerCapabilities

__all__ = ["Registration"]

F = TypeVar("F", bound=Callable[..., Any])


class Registration:
    """The part of `Server` that registers tools, resources, prompts, completions, methods and middleware.

    All of it may be called while the server serves; clients are then notified that a list has changed.
    """

    def __init__(self, features: Features, bus: EventBus) -> None:
        self.bus = bus
        self._features = features

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
