"""The rules and switches that hide a server's components from some callers, or from all.

=============  ====================================  ==================  ===========================================
what           says                                  in lists            a call of it
=============  ====================================  ==================  ===========================================
``scopes=``    the caller's access                   left out            is refused with `InsufficientScope`
``auth=``      a function                            left out            is refused with `NotAllowed`
``visible=``   a function                            left out            is answered as if there were no such thing
``hide()``     the program, for all or one session   left out            is answered as if there were no such thing
=============  ====================================  ==================  ===========================================

One `Visibility` belongs to a server, and one `Exposure` to each entry of its registries. A server that has no rule and
no switch never asks: `Visibility.is_active` is set with the first one, at registration, and the registries look at
their own copy of it. What a mounted server hides is hidden in its host, too: the exposure of a view has that of the
entry, and the `Visibility` of its server.

Changes of lists are sent to those whose list is another one now: a `ListWatch` remembers what a caller was listed, as a
number, and whose caller it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from mcp_actors._eras.era import Event, EventKind, Peer
from mcp_actors._server.components import (
    Component,
    ComponentKind,
    Switch,
    Switches,
    described_in_meta,
    switched,
    switched_by,
)
from mcp_actors._server.context import Context, principal_of, request_of
from mcp_actors._server.peer_session import PeerSession
from mcp_actors._server.scope import ServerScope
from mcp_actors.abc import HttpRequest
from mcp_actors.errors import NotAllowed, RpcError
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.principal import Principal

__all__ = [
    "AccessRule",
    "Caller",
    "Exposure",
    "ListWatch",
    "ViewedEntry",
    "Visibility",
    "caller_of",
    "decided",
    "make_exposure",
    "note_list",
]


class Caller(msgspec.Struct, frozen=True, eq=False):
    """The caller for whom a rule decides: what `Context` knows of it, also when no call of it is answered.

    Rules are asked within calls and, when something has changed, between them.
    """

    principal: Principal | None
    """The caller that the transport authenticated, with the scopes and claims of its latest token."""
    request: HttpRequest | None
    """The HTTP request that brought the call, or the list or subscription that may have changed."""
    peer: Peer
    """The client's own description. Nothing of it is authenticated."""
    session: PeerSession | None
    """The session; ``None`` where each request is independent."""
    _scope: ServerScope

    @property
    def server(self) -> Any:
        """The `mcp_actors.Server` that has the rule."""
        return self._scope.server

    @property
    def state(self) -> Any:
        """The value that the lifespan of that server yielded."""
        return self._scope.state


def caller_of(ctx: Context[Any]) -> Caller:
    """Returns the caller of a call."""
    call = ctx.call
    return Caller(principal_of(call), request_of(call), call.invocation.peer, ctx.session, ctx._scope)


AccessRule = Callable[[Caller, Component], bool]
"""Says whether a caller sees a component, or may use it. It runs in the event loop, and must not wait."""


class ViewedEntry(msgspec.Struct, frozen=True, eq=False):
    """The entry of a mounted server of which another entry is the view."""

    visibility: Visibility
    exposure: Exposure
    enter: Callable[[Caller], Caller | None]
    """Returns the caller as it is in the mounted server, ``None`` if that cannot be entered."""


class Exposure(msgspec.Struct, frozen=True, eq=False):
    """One entry of a registry, as far as rules and switches are concerned."""

    component: Component
    visible: AccessRule | None = None
    auth: AccessRule | None = None
    viewed: ViewedEntry | None = None

    @property
    def is_ruled(self) -> bool:
        """Whether functions decide who sees it."""
        return self.visible is not None or self.auth is not None

    def named(self, name: str, viewed: ViewedEntry) -> Exposure:
        """Returns the exposure of a view, with the name that it has there."""
        return Exposure(msgspec.structs.replace(self.component, name=name), viewed=viewed)

    def of_resource(self, uri: str) -> Exposure:
        """Returns the exposure of a resource that this template serves."""
        component = msgspec.structs.replace(self.component, kind="resource", name=uri)
        viewed = self.viewed
        if viewed is not None:
            viewed = msgspec.structs.replace(viewed, exposure=viewed.exposure.of_resource(uri))
        return msgspec.structs.replace(self, component=component, viewed=viewed)


def make_exposure(
    kind: ComponentKind,
    name: str,
    meta: Mapping[str, Any] | None,
    tags: Iterable[str] = (),
    version: str | None = None,
    visible: AccessRule | None = None,
    auth: AccessRule | None = None,
) -> tuple[Exposure, dict[str, Any] | None]:
    """Returns the exposure of an entry that is registered with these options, and the ``_meta`` that clients see."""
    component = Component(kind, name, frozenset(tags), version, {} if meta is None else dict(meta))
    return Exposure(component, visible, auth), described_in_meta(component)


class Visibility:
    """The rules and switches of one server.

    Args:
        rule: ``visible`` of the server, ``None`` if it has none.
        activated: Is called when the first rule or switch comes, and when the first one comes by which callers differ.
    """

    def __init__(self, rule: AccessRule | None, activated: Callable[[], None]) -> None:
        self._rule = rule
        self._activated = activated
        self.switches: Switches = ()
        self.is_active = rule is not None
        """Whether anything may be hidden."""
        self.is_same_for_all = rule is None
        """Whether all callers see the same, as far as this decides."""

    def __repr__(self) -> str:
        return f"<Visibility rule={self._rule is not None} switches={len(self.switches)}>"

    def activate(self, *, same_for_all: bool) -> None:
        """Has the registries ask from now on."""
        if not self.is_active or (self.is_same_for_all and not same_for_all):
            self.is_active = True
            self.is_same_for_all = self.is_same_for_all and same_for_all
            self._activated()

    def switch(self, switch: Switch) -> None:
        """Hides or shows components for all; raises what `switched` raises."""
        self.switches = switched(self.switches, switch)
        self.activate(same_for_all=True)

    def sees(self, caller: Caller, exposure: Exposure) -> bool:
        """Whether a caller sees a component. A function that fails hides it."""
        component, session = exposure.component, caller.session
        if not self._is_on(() if session is None else session.switches, component):
            return False
        for rule in (self._rule, exposure.visible):
            if rule is not None and not _holds(rule, caller, component):
                return False
        viewed = exposure.viewed
        if viewed is None:
            return True
        inside = viewed.enter(caller)
        return inside is not None and viewed.visibility.sees(inside, viewed.exposure)

    def is_on(self, session: Switches, exposure: Exposure) -> bool:
        """Whether no switch hides a component in a session that has these; without one it has none."""
        viewed = exposure.viewed
        return self._is_on(session, exposure.component) and (
            viewed is None or viewed.visibility.is_on(session, viewed.exposure)
        )

    def _is_on(self, session: Switches, component: Component) -> bool:
        for switches in (session, self.switches):
            shown = switched_by(switches, component) if switches else None
            if shown is not None:
                return shown
        return True

    def check(self, caller: Caller, exposure: Exposure) -> None:
        """Checks that a caller may use a component that it sees.

        Raises:
            NotAllowed: It may not, or the function has failed.
            RpcError: The function has raised it.
        """
        if exposure.auth is not None:
            component = exposure.component
            if not _holds(exposure.auth, caller, component, refuses=True):
                raise NotAllowed(component.kind, component.name)
        viewed = exposure.viewed
        if viewed is not None and (inside := viewed.enter(caller)) is not None:
            viewed.visibility.check(inside, viewed.exposure)

    def allows(self, caller: Caller, exposure: Exposure) -> bool:
        """Whether a caller may use a component that it sees."""
        try:
            self.check(caller, exposure)
        except RpcError:
            return False
        return True


def _holds(rule: AccessRule, caller: Caller, component: Component, *, refuses: bool = False) -> bool:
    try:
        return decided(rule(caller, component))
    except Exception as error:
        if refuses and isinstance(error, RpcError):
            raise
        word = "auth" if refuses else "visible"
        log.error(f"{word}= failed, so a {component.kind} is hidden", name=component.name, exc_info=error)
        return False


def decided(answer: object) -> bool:
    """Returns what a rule has decided.

    Raises:
        TypeError: It returned something to await, which counts as true and would show everything.
    """
    if hasattr(type(answer), "__await__"):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"it returned {answer!r:.80}: write a function that decides at once")
    return bool(answer)


# -- changes of lists, for those whose list is another one ---

ListDigest = Callable[[Caller, str], int | None]
"""Returns a number for what a caller is listed now in one list, ``None`` if any change counts."""

_LISTS_OF: Mapping[EventKind, tuple[str, ...]] = {
    "tools": ("tools",),
    "prompts": ("prompts",),
    "resources": ("resources", "templates"),
}


class ListWatch:
    """The lists of one caller, by which changes that it sees are told from those that it does not.

    Args:
        caller: The caller, as it was when it listed or began to listen.
    """

    __slots__ = ("_known", "caller")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self._known: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ListWatch of {', '.join(self._known)}>"

    def note(self, which: str, digest: int | None) -> None:
        """Takes note of what the caller was listed."""
        if digest is None:
            self._known.pop(which, None)
        else:
            self._known[which] = digest

    def begin(self, digest: ListDigest) -> None:
        """Takes note of all lists as they are."""
        for lists in _LISTS_OF.values():
            for which in lists:
                self.note(which, digest(self.caller, which))

    def is_changed(self, event: Event, digest: ListDigest) -> bool:
        """Whether a list is another one than the caller knows; it counts as known from now on."""
        lists = _LISTS_OF[event.kind]
        # Of resources and templates many clients list one only.
        known = [each for each in lists if each in self._known]
        changed = not known
        for which in lists:
            now = digest(self.caller, which)
            changed = changed or now is None or (which in known and self._known[which] != now)
            if which in known or not known:
                self.note(which, now)
        return changed


def note_list(caller: Caller, which: str, digest: int | None) -> None:
    """Takes note that a caller with a session was listed something that differs by caller."""
    session = caller.session
    if session is not None:
        watch: ListWatch | None = session.watch
        if watch is None:
            watch = session.watch = ListWatch(caller)
        watch.caller = caller
        watch.note(which, digest)
