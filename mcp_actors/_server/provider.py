"""Providers: sources of components that a server asks instead of keeping them, and the components that they return.

A `Provider` may have a million tools, or other ones for each caller: a server reads one page of them for each page of a
list that a client asks for, and one component for each call of a name that is not registered. A `Provided` is such a
component, with the options of `Server.add_tool`, `Server.add_resource` and `Server.add_prompt`.

The decorators `tool`, `resource` and `prompt` mark functions of a module for `Server.add_modules`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from mcp_actors._eras.era import EventKind
from mcp_actors._server.components import KINDS_OF_LISTS, ComponentKind
from mcp_actors._server.failures import LineNamed
from mcp_actors._server.invoke import name_of
from mcp_actors._server.options import (
    PromptOptions,
    ResourceOptions,
    ToolOptions,
    check_decorated,
    check_options,
)
from mcp_actors._server.resources import check_uri
from mcp_actors._server.visibility import Caller
from mcp_actors._wire.uri_template import UriTemplate

__all__ = ["Provided", "ProvidedPage", "Provider", "marked", "prompt", "resource", "tool"]

F = TypeVar("F", bound=Callable[..., Any])

# A task outlives its call and may run again in another process, which has to find the tool without its caller. What a
# template lists is what its provider lists.
_OF_REGISTERED = ("task", "restartable", "before_task", "list")


class Provided:
    """A tool, a prompt, a resource or a resource template that a `Provider` returns.

    `tool`, `prompt` and `resource` make one. What its schemas and validators cost is paid once for each object: a
    provider that returns the same object again is faster.
    """

    __slots__ = ("_template", "entries", "function", "kind", "name", "options")

    def __init__(
        self, kind: ComponentKind, name: str, function: Callable[..., Any], options: Mapping[str, Any]
    ) -> None:
        for each in _OF_REGISTERED:
            if options.get(each):
                raise TypeError(f"{each}= is for what is registered: a provider has no such {kind}")
        self.kind: ComponentKind = kind
        self.name = name
        self.function = function
        self.options = dict(options)
        self._template: UriTemplate | None = None
        # By the source of a server. Functions refer to what they are marked as: a table there would keep it for ever.
        self.entries: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Provided {self.kind} {self.name!r}>"

    @classmethod
    def tool(cls, function: Callable[..., Any], **options: Unpack[ToolOptions]) -> Provided:
        """Makes a tool.

        Args:
            function: The function, as `Server.add_tool` takes it.
            options: Those of `Server.add_tool`, without ``task``, ``restartable`` and ``before_task``.

        Raises:
            TypeError, ValueError: An option does not fit, or the function has no name and ``name`` is missing.
        """
        check_options(options, ToolOptions)
        return cls("tool", options.get("name") or name_of(function), function, options)

    @classmethod
    def prompt(cls, function: Callable[..., Any], **options: Unpack[PromptOptions]) -> Provided:
        """Makes a prompt.

        Args:
            function: The function, as `Server.add_prompt` takes it.
            options: Those of `Server.add_prompt`.

        Raises:
            TypeError, ValueError: As `tool` does.
        """
        check_options(options, PromptOptions)
        return cls("prompt", options.get("name") or name_of(function), function, options)

    @classmethod
    def resource(cls, uri: str, function: Callable[..., Any], **options: Unpack[ResourceOptions]) -> Provided:
        """Makes a resource, or a template if ``uri`` has variables.

        Args:
            uri: The URI, or the text of the template.
            function: The function, as `Server.add_resource` takes it.
            options: Those of `Server.add_resource`, without ``list``.

        Raises:
            TypeError, ValueError: As `tool` does, and for what is no URI.
        """
        check_uri(uri)
        check_options(options, ResourceOptions)
        return cls("template" if "{" in uri else "resource", uri, function, options)

    def named(self, name: str) -> Provided:
        """Returns the same tool or prompt under another name."""
        return Provided(self.kind, name, self.function, {**self.options, "name": name})

    def matches(self, uri: str) -> bool:
        """Whether this resource or template serves a URI."""
        if self.kind != "template":
            return self.kind == "resource" and self.name == uri
        if self._template is None:
            self._template = UriTemplate(self.name)
        return self._template.match(uri) is not None


class ProvidedPage(NamedTuple):
    """One page of what a `Provider` has."""

    items: Sequence[Provided]
    next_cursor: str | None = None
    """What the provider is given for the next page, at most 1,024 characters; ``None`` on the last one."""


class Provider(abc.ABC):
    """A source of components: `Server.add_provider` shows them beside what is registered.

    All methods run on the event loop of the engine, which is that of Trio. `list` and `get` may wait: for a time that
    `Server.add_provider` bounds, after which they are cancelled. What they raise is logged, and costs the part of the
    list, or the call, that they were asked for; an `~mcp_actors.errors.RpcError` of `get` is sent to the client.

    What a provider returns for a caller is checked like what is registered: ``scopes=``, ``visible=``, ``auth=``,
    `Server.hide` and versions count. A component that is registered, or that a provider has which was added before,
    goes first where two have the same name.
    """

    kinds: Collection[ComponentKind] = ("tool", "prompt", "resource", "template")
    """What it has; it is not asked for other kinds, which clients are not told of either."""

    _followers: tuple[Callable[[EventKind], None], ...] = ()

    @abc.abstractmethod
    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        """Returns a page of what a caller has.

        Args:
            kind: What is listed.
            caller: Who lists.
            cursor: ``None`` for the first page, else what an earlier page had as ``next_cursor``. Clients carry it, and
                can read it, but cannot make another one.
            limit: How many items there is room for. More of them, 5,000 at most, are shown on several pages, for each
                of which the provider is asked again.
        """

    @abc.abstractmethod
    async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
        """Returns one component, ``None`` if the caller has no such one.

        Args:
            kind: What is asked for. For a ``"resource"`` a template that matches may be returned as well.
            name: The name; the URI of a resource, the text of a template. It comes from the client, and is checked no
                further.
            caller: Who asks.
        """

    def fingerprint(self, kind: ComponentKind, caller: Caller) -> Hashable | None:
        """Returns a value that changes when what a caller is listed changes; it must not wait.

        With it `changed` notifies only those for whom it changed. ``None``, the default, says that this is not known.
        """
        return None

    def changed(self, kind: ComponentKind) -> None:
        """Notifies clients that the list of a kind is another one. Never waits; safe from any thread."""
        for follow in self._followers:
            follow(KINDS_OF_LISTS[kind])


# -- marks of functions that modules of a folder have ---

_MARK = "__mcp_provided__"


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(function: None = None, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Decorator, with or without options: marks a function of a module as a tool, for `Server.add_modules`.

    Args:
        function: The function, when the decorator is used without options.
        options: Those of `Server.add_tool`, without ``task``, ``restartable`` and ``before_task``.

    Raises:
        TypeError, ValueError: As `Provided.tool` does.
    """
    check_decorated(function, "tool")
    return _marking(function, lambda each: Provided.tool(each, **options))


@overload
def prompt(function: F, /) -> F: ...


@overload
def prompt(function: None = None, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...


def prompt(function: Any = None, /, **options: Any) -> Any:
    """Decorator, with or without options: marks a function of a module as a prompt, for `Server.add_modules`.

    Args:
        function: The function, when the decorator is used without options.
        options: Those of `Server.add_prompt`.

    Raises:
        TypeError, ValueError: As `Provided.prompt` does.
    """
    check_decorated(function, "prompt")
    return _marking(function, lambda each: Provided.prompt(each, **options))


def resource(uri: str, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
    """Decorator: marks a function of a module as a resource, or as a template, for `Server.add_modules`.

    Args:
        uri: The URI, or a URI template (RFC 6570).
        options: Those of `Server.add_resource`, without ``list``.

    Raises:
        TypeError, ValueError: As `Provided.resource` does.
    """
    with LineNamed():
        check_uri(uri)
    marking: Callable[[F], F] = _marking(None, lambda each: Provided.resource(uri, each, **options))
    return marking


def _marking(function: Any, make: Callable[[Any], Provided]) -> Any:
    def mark(function: Any) -> Any:
        with LineNamed():
            setattr(function, _MARK, (*marked(function), make(function)))
        return function

    return mark if function is None else mark(function)


def marked(function: object) -> tuple[Provided, ...]:
    """Returns what a function is marked as."""
    found = getattr(function, _MARK, ())
    return found if isinstance(found, tuple) else ()
