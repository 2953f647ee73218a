"""The part of a server that registers what it has for clients: tools, resources, prompts and methods of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from mcp_actors._actors.event_bus import EventBus
from mcp_actors._server.features import Features, OfferedExtension
from mcp_actors._server.frames import LineNamed
from mcp_actors._server.invoke import Loop, check_async, in_loop
from mcp_actors._server.middleware_registration import MiddlewareRegistration
from mcp_actors._server.options import (
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_decorated,
    check_options,
)
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.resources import Resources, check_uri
from mcp_actors._server.tools import Tools
from mcp_actors.types import ServerCapabilities

__all__ = ["Registration"]

F = TypeVar("F", bound=Callable[..., Any])


class Registration(MiddlewareRegistration):
    """The part of `Server` that registers tools, resources, prompts, completions, methods and middleware.

    All of it may be called while the server serves, from any thread; clients are then notified that a list has changed.
    """

    def __init__(self, features: Features, bus: EventBus) -> None:
        super().__init__(features)
        self.bus = bus

    @overload
    def tool(self, function: F, /) -> F: ...

    @overload
    def tool(self, function: None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a tool, and returns the function as it is.

        ``@server.tool`` and ``@server.tool(title="Search")`` are the two forms.

        Args:
            function: The function, when the decorator is used without options.
            options: Those of `add_tool`.

        Raises:
            TypeError: The signature cannot be used.
            ValueError: A schema cannot be used.
            LocalProtocolError: The name is taken.
        """

        def add(function: F) -> F:
            self.add_tool(function, **options)
            return function

        check_decorated(function, "tool")
        return add if function is None else add(function)

    @overload
    def prompt(self, function: F, /) -> F: ...

    @overload
    def prompt(self, function: None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...

    def prompt(self, function: Any = None, /, **options: Any) -> Any:
        """Decorator, with or without options: adds a prompt, and returns the function as it is.

        Args:
            function: The function, when the decorator is used without options.
            options: Those of `add_prompt`.

        Raises:
            TypeError: The signature cannot be used.
            LocalProtocolError: The name is taken.
        """

        def add(function: F) -> F:
            self.add_prompt(function, **options)
            return function

        check_decorated(function, "prompt")
        return add if function is None else add(function)

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Decorator: adds a resource, or a template if ``uri`` has variables, and returns the function as it is.

        Args:
            uri: The URI, or a URI template (RFC 6570).
            options: Those of `add_resource`.

        Raises:
            TypeError: The function's parameters are not the template's variables, or an option does not fit.
            ValueError: The template is malformed.
            LocalProtocolError: The URI is taken.
        """

        def add(function: F) -> F:
            self.add_resource(uri, function, **options)
            return function

        with LineNamed():
            check_uri(uri)
            check_options(options, ResourceOptions)
        return add

    def completion(
        self,
        *,
        argument: str,
        prompt: str | None = None,
        resource: str | None = None,
        inline: bool = False,
        loop: Loop = None,
    ) -> Callable[[F], F]:
        """Decorator: the function completes an argument of a prompt or a variable of a resource template.

        MCP 2026-07-28, Completion. The function takes the text that was typed so far and, if it has parameters for
        them, the arguments that have a value already (a mapping of strings) and the `Context`. It returns strings, the
        best one first, or a `~mcp_actors.types.Completion`. Clients are sent at most 100 values. Arguments whose
        annotation lists their values are completed without such a function.

        Args:
            argument: The name of the argument or variable.
            prompt: The name of the prompt; it may be added later.
            resource: The text of the resource template; it may be added later.
            inline: Whether a sync function runs on the event loop instead of in a thread; then it must not block.
            loop: ``"asyncio"`` for an ``async def`` that needs it, as `add_tool` has it.

        Raises:
            TypeError: Not exactly one of ``prompt`` and ``resource`` is given, or the function takes other arguments.
            LocalProtocolError: There is a function for this argument already.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._features.completions.add(
                    function, prompt=prompt, resource=resource, argument=argument, inline=inline, loop=loop
                )
            return function

        return add

    def method(self, name: str, *, scopes: Collection[str] = (), loop: Loop = None) -> Callable[[F], F]:
        """Decorator: the function answers a method that is not part of the protocol, in every revision.

        It is ``async def f(params: dict[str, Any], ctx: Context) -> dict[str, Any]``. It raises
        `~mcp_actors.errors.RpcError` to answer with an error of its own; for any other exception the client is sent
        -32603 with its text, unless ``mask_errors`` of the server masks it.

        Args:
            name: The method, as clients send it.
            scopes: A list of those that a caller needs, all of them, as `add_tool` has them.
            loop: ``"asyncio"`` if the function needs it, as `add_tool` has it.

        Raises:
            TypeError: The name or a scope is none, or the function is not of this form.
            LocalProtocolError: The method is answered already, by the protocol or by another function.
        """

        def add(function: F) -> F:
            with LineNamed():
                check_async(function, "params, ctx")
                self._features.add_method(name, in_loop(function, loop), scopes)
            return function

        with LineNamed():
            if not isinstance(name, str):
                raise TypeError('a method has a name: write @server.method("my/method")')
            check_options({"scopes": scopes}, PromptOptions)
        return add

    def notification(self, name: str, *, inline: bool = False, loop: Loop = None) -> Callable[[F], F]:
        """Decorator: the function takes a notification of clients: one of your own, or a change of their roots.

        The latter is ``notifications/roots/list_changed`` (MCP 2025-11-25, Roots, Root List Changes). The parameters
        are those members of the notification's params that the function wants, with the types that they have to have,
        and the `Context` as tools take it: in a session the function may ask the client, log and keep state. It runs in
        a task of its own, counts among the calls in flight, and is cancelled with its session. Nobody is answered: what
        it returns is dropped, and what it raises is logged, as are params that do not fit. Notifications come before
        the handshake, too, and from stateless clients, which can be told nothing.

        Args:
            name: The method, as clients send it.
            inline: Whether a sync function runs on the event loop instead of in a thread; then it must not block.
            loop: ``"asyncio"`` for an ``async def`` that needs it, as `add_tool` has it.

        Raises:
            TypeError: The signature cannot be used.
            LocalProtocolError: The notification is taken already, by the engine or by another function.
        """

        def add(function: F) -> F:
            with LineNamed():
                self._features.notifications.add(name, function, inline=inline, loop=loop)
            return function

        with LineNamed():
            if not isinstance(name, str):
                raise TypeError('a notification has a name: write @server.notification("notifications/my")')
        return add

    def add_extension(self, extension: OfferedExtension) -> None:
        """Offers an extension to clients (SEP-2133), as ``extensions=[extension]`` does, before the server serves.

        Args:
            extension: A `~mcp_actors.extensions.ServerExtension`, complete, and for this server alone.

        Raises:
            TypeError: It is no such extension.
            LocalProtocolError: Its id, or a method, notification or member of subscriptions of it, is taken, or it is
                offered by a server already, or this server serves.
        """
        with LineNamed():
            self._features.add_extension(extension)

    def add_tool(self, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> None:
        """Adds a tool. MCP 2026-07-28, Tools.

        The input schema comes from the function's type hints, the output schema from its return type, the description
        from its docstring. Text, content blocks, `Image`, `Audio`, `File` and lists of these are sent as content, other
        values as structured content. An ``async def`` is awaited; a plain ``def`` runs in one of 40 worker threads,
        which a cancelled call abandons. A `ToolError` is shown to the model as it is. For any other exception but an
        `~mcp_actors.errors.RpcError`, which is sent as a JSON-RPC error, the model is shown the tool's name and the
        exception, unless ``mask_errors`` of the server masks it.

        Args:
            function: Takes the arguments by name, and the `Context` in a parameter that is annotated with it.
            options: ``name``, the name for clients, by default the function's; ``title``, the name for people;
                ``description``; ``annotations`` (`~mcp_actors.types.ToolAnnotations`); ``icons``; ``meta``, the tool's
                ``_meta``; ``inline=True`` runs a sync function on the event loop instead of in a thread, for functions
                that take microseconds and never block; ``loop="asyncio"`` awaits an ``async def`` in the program's
                asyncio loop, or in one of the engine's own where there is none, see `Context`; ``input_schema``, a JSON
                Schema with ``type: object``, makes the function take the arguments as one dict; ``output_schema``, a
                JSON Schema, replaces the one of the return type; ``timeout``, in seconds, none by default, cancels a
                call that takes longer (a function in a worker thread runs on, and its result is dropped) and tells the
                model so; ``scopes``, a list, are those that a caller needs, all of them, see `InsufficientScope`:
                callers over HTTP and WebSocket have those of their principal, and over other bindings nothing is
                checked; ``task``, ``restartable`` and ``before_task`` make tasks of calls, see `mcp_actors.tasks`.

        Raises:
            TypeError: The signature cannot be used, or the function has no name of its own and none is given.
            ValueError: A schema cannot be used.
            LocalProtocolError: There is a tool with this name, or it is the first one with ``task`` and the server
                serves: ``Server(extensions=[Tasks()])`` is ready for tools that are added later.
        """
        with LineNamed():
            check_options(options, ToolOptions)
            self._features.loop.call(self._features.add_tool, function, options)

    def remove_tool(self, name: str) -> None:
        """Removes a tool. Calls in flight go on.

        Args:
            name: The name for clients.

        Raises:
            LocalProtocolError: There is no such tool.
        """
        with LineNamed():
            self._features.loop.call(self._features.tools.remove, name)

    def add_resource(
        self, uri: str, function: Callable[..., Any], **options: Unpack[ResourceOptions]
    ) -> None:
        """Adds a resource, or a template (RFC 6570) if ``uri`` has variables. MCP 2026-07-28, Resources.

        The function returns text, bytes, contents, a list of contents, or any typed value, which is sent as JSON. It
        raises `ResourceNotFound` when there is nothing. A URI is looked up among the resources first, then in the
        templates in the order in which they were added.

        Args:
            uri: The URI, or a template such as ``weather://{city}/now``.
            function: Takes the template's variables, as text, by name, and the `Context` as tools do.
            options: ``name``, ``title``, ``description``, ``icons``, ``meta``, ``inline``, ``loop``, ``scopes`` as
                `add_tool` has them (``scopes`` also count for subscriptions and completions);
                ``mime_type``; ``annotations`` (`~mcp_actors.types.Annotations`); ``size``, in bytes, for resources
                only; ``list``, for templates only, is a function that returns the `~mcp_actors.types.Resource` objects
                that exist now: ``resources/list`` shows them, and calls it for every page.

        Raises:
            TypeError: The function's parameters are not the template's variables, or an option does not fit.
            ValueError: The template is malformed.
            LocalProtocolError: There is a resource or template with this URI.
        """
        with LineNamed():
            check_options(options, ResourceOptions)
            self._features.loop.call(partial(self._features.resources.add, uri, function, **options))

    def remove_resource(self, uri: str) -> None:
        """Removes a resource or a template. Calls in flight go on.

        Args:
            uri: The URI or the template, as it was added.

        Raises:
            LocalProtocolError: There is none.
        """
        with LineNamed():
            self._features.loop.call(self._features.resources.remove, uri)

    def add_prompt(self, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> None:
        """Adds a prompt. MCP 2026-07-28, Prompts.

        The function returns a string, a content block or an `Image`, `Audio` or `File` (one message of the user), a
        `~mcp_actors.types.PromptMessage`, a list of these, or a whole `~mcp_actors.types.GetPromptResult`.

        Args:
            function: Its parameters are the prompt's arguments: text, optional if they have a default. It takes the
                `Context` as tools do.
            options: ``name``, ``title``, ``description``, ``icons``, ``meta``, ``inline``, ``loop``, ``scopes`` as
                `add_tool` has them (``scopes`` also count for completions).

        Raises:
            TypeError: A parameter takes no text, or the function has no name of its own and none is given.
            LocalProtocolError: There is a prompt with this name.
        """
        with LineNamed():
            check_options(options, PromptOptions)
            self._features.loop.call(partial(self._features.prompts.add, function, **options))

    def remove_prompt(self, name: str) -> None:
        """Removes a prompt. Calls in flight go on.

        Args:
            name: The name for clients.

        Raises:
            LocalProtocolError: There is no such prompt.
        """
        with LineNamed():
            self._features.loop.call(self._features.prompts.remove, name)

    def resource_updated(self, uri: str) -> None:
        """Notifies every client that subscribed to this resource or to one that its URI lies below.

        Never waits; safe from any thread. Updates that a slow client has not taken yet count as one.

        Args:
            uri: The resource that has changed.
        """
        self.bus.publish("resource_updated", uri)

    @property
    def tools(self) -> Tools:
        """The tools that are registered now: ``name in tools``, ``len``, iteration, ``get(name)``."""
        return self._features.tools

    @property
    def resources(self) -> Resources:
        """The resources and templates that are registered now: ``uri in resources``, ``len``, ``covers(uri)``."""
        return self._features.resources

    @property
    def prompts(self) -> Prompts:
        """The prompts that are registered now: ``name in prompts``, ``len``, iteration, ``get(name)``."""
        return self._features.prompts

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that are declared to clients: those for which something was ever registered, and logging."""
        return self._features.capabilities()
