"""Providers: sources of components that a server asks instead of keeping them, and the components that they return.

A `Provider` may have a million tools, or other ones for each caller: a server reads one page of them for each page of a
list that a client asks for, and one component for each call of a name that is not registered. A `Provided` is such a
component, with the options of `Server.add_tool`, `Server.add_resource` and `Server.add_prompt`.

A `ProviderSource` is what a server asks a provider by, within bounds.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack
from weakref import WeakKeyDictionary

import trio

from mcp_actors._eras.era import EventKind
from mcp_actors._server.components import KINDS_OF_LISTS, ComponentKind
from mcp_actors._server.invoke import name_of
from mcp_actors._server.options import PromptOptions, ResourceOptions, ToolOptions, check_options
from mcp_actors._server.resources import check_uri
from mcp_actors._server.visibility import Caller
from mcp_actors._wire.uri_template import UriTemplate
from mcp_actors.errors import RpcError, UpstreamUnavailable
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable

__all__ = ["Provided", "ProvidedPage", "Provider", "ProviderSource"]

# Items of a page that is longer than was asked for: as many as a gateway reads of a list.
MOST_ITEMS = 5_000
# Characters of a provider's cursor, which clients carry.
LONGEST_CURSOR = 1_024
# Characters of the name of a tool or a prompt. What model providers take is a tenth of them.
LONGEST_NAME = 1_024
# Items of which entries are made in one turn of the loop; a schema may take a millisecond.
ITEMS_A_TURN = 10
# Seconds for which lists do not wait for a provider that was too slow.
LATE_FOR = 30.0
# Characters of a name that the log shows.
_SHOWN = 200

T = TypeVar("T")

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

    kinds: tuple[ComponentKind, ...] = ("tool", "prompt", "resource", "template")
    """What it has; it is not asked for other kinds, which clients are not told of either."""

    _followers: tuple[Callable[[EventKind], None], ...] = ()

    @abc.abstractmethod
    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        """Returns a page of what a caller has.

        Args:
            kind: What is listed.
            caller: Who lists.
            cursor: ``None`` for the first page, else what an earlier page had as ``next_cursor``. Clients carry it, and
                can neither read it nor make another one.
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


# -- asking a provider ---


class ProviderSource:
    """Asks one provider, for one server.

    Args:
        provider: The provider.
        name: Names it in logs and cursors; no other source of the server has the name.
        wait: Seconds that each of its answers may take.
        makers: Make an entry of the arguments of a component, by its kind.
        publish: Notifies clients of a list that has changed.
    """

    def __init__(
        self,
        provider: Provider,
        name: str,
        wait: float,
        makers: dict[ComponentKind, Callable[..., Any]],
        publish: Callable[[EventKind], None],
    ) -> None:
        self.provider = provider
        self.name = name
        self.kinds: Collection[ComponentKind] = tuple(provider.kinds)
        self._wait = wait
        self._makers = makers
        self._publish = publish
        self._late_until = -math.inf
        # The lists that clients were shown without it.
        self._incomplete: set[EventKind] = set()

    def __repr__(self) -> str:
        return f"<ProviderSource {self.name!r}>"

    @property
    def is_late(self) -> bool:
        """Whether it was too slow lately, so that lists do not wait for it."""
        # A server may be served again by another run of Trio, whose clock has nothing in common with that of the first.
        return 0 < self._late_until - trio.current_time() <= LATE_FOR

    def begin(self) -> None:
        """Follows the changes of the provider."""
        self.provider._followers += (self._publish,)

    def end(self) -> None:
        """Follows them no longer."""
        # A bound method is another object each time, and equal.
        self.provider._followers = tuple(each for each in self.provider._followers if each != self._publish)

    def fingerprint(self, caller: Caller, kind: ComponentKind) -> Hashable | None:
        """Returns that of the provider; ``None``, by which any change counts, if it fails."""
        try:
            found = self.provider.fingerprint(kind, caller)
            hash(found)
        except Exception as error:
            log.error("fingerprint() of a provider failed", provider=self.name, exc_info=error)
            return None
        return found

    async def page(
        self, caller: Caller, kind: ComponentKind, cursor: str | None, limit: int
    ) -> tuple[Sequence[Any], str | None]:
        """Returns the entries of one page, and the cursor of the next one. What cannot be shown is left out.

        Raises:
            UpstreamUnavailable: The provider fails or is too slow, or its page is malformed.
            RpcError: The provider has raised it.
        """
        found = await self._answer("list", kind, partial(self.provider.list, kind, caller, cursor, limit))
        problem = _problem(found, cursor)
        if problem is not None:
            raise self._failed(f"a page of {kind}s {problem}")
        items, following = found
        entries, problems = [], []
        for index, item in enumerate(items):
            if index % ITEMS_A_TURN == ITEMS_A_TURN - 1:
                await trio.lowlevel.checkpoint()
            try:
                if not isinstance(item, Provided) or item.kind != kind:
                    raise TypeError(f"a {kind} is a Provided.{kind}(…)")
                entries.append(self.entry(item))
            except (TypeError, ValueError) as error:
                problems.append(_said(item, error))
        if problems:
            log.error(
                "components of a provider are left out",
                provider=self.name,
                number=len(problems),
                first=problems[0],
            )
        return entries, following

    async def get(self, caller: Caller, kind: ComponentKind, key: str) -> Any | None:
        """Returns the entry of one component, ``None`` if the provider has none.

        Raises:
            UpstreamUnavailable: The provider fails or is too slow, or returns another one.
            RpcError: The provider has raised it.
        """
        if kind in ("tool", "prompt") and len(key) > LONGEST_NAME:
            return None
        item = await self._answer("get", kind, partial(self.provider.get, kind, key, caller))
        if item is None:
            return None
        if not isinstance(item, Provided):
            raise self._failed(f"get() returned {item!r:.80}, which is no Provided")
        is_template = kind == "resource" and item.kind == "template"
        if not is_template and (item.kind, item.name) != (kind, key):
            raise self._failed(f"get() returned another one for the {kind} {printable(key, _SHOWN)!r}")
        try:
            entry = self.entry(item)
        except (TypeError, ValueError) as error:
            raise self._failed(_said(item, error)) from None
        return None if is_template and entry.template.match(key) is None else entry

    async def _answer(self, method: str, kind: ComponentKind, ask: Callable[[], Awaitable[T]]) -> T:
        """Awaits an answer of the provider, and announces the lists that clients have got without it meanwhile."""
        missed = {KINDS_OF_LISTS[kind]} if method == "list" else set()
        with trio.move_on_after(self._wait):
            try:
                found = await ask()
            except RpcError:
                self._incomplete |= missed
                raise
            except Exception as error:
                self._incomplete |= missed
                log.error(f"{method}() of a provider failed", provider=self.name, exc_info=error)
                raise UpstreamUnavailable(self.name, "it has failed") from error
            self._late_until = -math.inf
            missed, self._incomplete = self._incomplete, set()
            for each in sorted(missed):
                self._publish(each)
            return found
        # Meanwhile no list waits for it.
        self._late_until = trio.current_time() + LATE_FOR
        self._incomplete = {KINDS_OF_LISTS[each] for each in self.kinds}
        log.warning(f"{method}() of a provider took too long", provider=self.name, seconds=self._wait)
        raise UpstreamUnavailable(self.name, f"it has not answered for {self._wait:g} s")

    def _failed(self, problem: str) -> UpstreamUnavailable:
        log.error("a provider returned what cannot be used", provider=self.name, error=problem)
        return UpstreamUnavailable(self.name, "it returned what cannot be used")

    def entry(self, item: Provided) -> Any:
        """Returns the entry of a component; raises `TypeError` or `ValueError` as its registration would."""
        found = item.entries.get(self)
        if found is None:
            if item.kind in ("tool", "prompt") and len(item.name) > LONGEST_NAME:
                raise ValueError(f"a name has at most {LONGEST_NAME:,} characters")
            # What it is shown by: for a resource, the URI comes first.
            first = (item.name,) if item.kind in ("resource", "template") else ()
            found = self._makers[item.kind](*first, item.function, **item.options)
            if item.kind == "tool" and found.mirrored:
                # Requests are checked against their headers before a provider could be asked.
                raise ValueError("x-mcp-header is for tools that are registered")
            item.entries[self] = found
        return found


def _said(item: Any, error: Exception) -> str:
    """Says in the log why an item cannot be shown."""
    name = item.name if isinstance(item, Provided) else f"{item!r:.80}"
    return f"{printable(name, _SHOWN)}: {printable(str(error), _SHOWN)}"


def _problem(found: Any, cursor: str | None) -> str | None:
    """Says what is wrong with a page, ``None`` if nothing is."""
    if not isinstance(found, ProvidedPage):
        return f"is {found!r:.80}, and no ProvidedPage"
    items, following = found
    if not isinstance(items, Sequence) or len(items) > MOST_ITEMS:
        return f"has no list of at most {MOST_ITEMS} items"
    if following is not None and (not isinstance(following, str) or len(following) > LONGEST_CURSOR):
        return f"has a next_cursor that is no text of at most {LONGEST_CURSOR} characters"
    if following is not None and following == cursor:
        return "has its own cursor as that of the next one"
    return None
