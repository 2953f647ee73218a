"""Components: what a server offers, as rules and switches see it, and the order of their versions.

A *component* is a tool, a prompt, a resource or a resource template. Rules (`mcp_actors._server.visibility`) are asked
about one; switches name some of them by name, kind and tag. Clients see tags and version in ``_meta`` of the list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec

from mcp_actors._eras.era import EventKind
from mcp_actors.errors import LocalProtocolError

__all__ = [
    "KINDS_OF_LISTS",
    "KINDS_OF_NAMED_LISTS",
    "TAGS",
    "VERSION",
    "VERSIONS",
    "Component",
    "ComponentKind",
    "Switch",
    "Switches",
    "described_in_meta",
    "make_switch",
    "switched",
    "switched_by",
    "version_order",
]

ComponentKind = Literal["tool", "prompt", "resource", "template"]
"""The kinds of what a server offers."""

KINDS_OF_LISTS: Mapping[str, EventKind] = {
    "tool": "tools",
    "prompt": "prompts",
    "resource": "resources",
    "template": "resources",
}
"""The list of whose changes clients are notified, for each kind."""

KINDS_OF_NAMED_LISTS: Mapping[str, ComponentKind] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "templates": "template",
}
"""The kind of what each list has."""

TAGS = "mcp-actors/tags"
"""The member of a component's ``_meta`` that has its tags."""
VERSION = "mcp-actors/version"
"""The member of a component's ``_meta`` that has its version, and of a request's that asks for another one."""
VERSIONS = "mcp-actors/versions"
"""The member of a component's ``_meta`` that has all versions that the caller may ask for, the newest first."""

# Of one server and of one session. Programs that switch more name single callers or components, which is what
# ``visible=`` is for.
MOST_SWITCHES = 1_000


class Component(msgspec.Struct, frozen=True):
    """A tool, prompt, resource or resource template, as ``visible=`` and ``auth=`` are asked about it.

    A resource that a template serves has the tags, version and ``meta`` of its template. A component of a mounted
    server has the name that it has in the server that asks.
    """

    kind: ComponentKind
    name: str
    """The name for clients; the URI of a resource, the text of a template."""
    tags: frozenset[str] = frozenset()
    version: str | None = None
    meta: Mapping[str, Any] = {}
    """The component's ``_meta``, as it was registered."""


def described_in_meta(component: Component) -> dict[str, Any] | None:
    """Returns the ``_meta`` with which clients are shown a component."""
    shown = dict(component.meta)
    if component.tags:
        shown[TAGS] = sorted(component.tags)
    if component.version is not None:
        shown[VERSION] = component.version
    return shown or None


# -- versions: a component may be there several times under one name ---

_PARTS = re.compile(r"\d+|[A-Za-z]+")
_Part = tuple[int, int, str]
_END: _Part = (1, 0, "")


def version_order(version: str) -> tuple[_Part, ...]:
    """Returns a key that sorts versions: number by number, and what has letters behind it before what has not.

    So ``2.0rc1`` comes before ``2.0``, and that before ``2.0.1`` and ``10``. Dates are in order, too.
    """
    parts = (
        (2, int(each), "") if each.isdigit() else (0, 0, each.lower()) for each in _PARTS.findall(version)
    )
    return (*parts, _END)


# -- switches: what is hidden and shown again, by name, kind and tag ---


class Switch(msgspec.Struct, frozen=True):
    """Hides or shows the components that it names, until a later one says otherwise."""

    shown: bool
    names: frozenset[str]
    kind: ComponentKind | None
    tags: frozenset[str]

    def names_one(self, component: Component) -> bool:
        """Whether it is about a component."""
        return (
            (self.kind is None or self.kind == component.kind)
            and (not self.names or component.name in self.names)
            and (not self.tags or not self.tags.isdisjoint(component.tags))
        )


Switches = tuple[Switch, ...]
"""The latest is first."""


def make_switch(
    shown: bool, names: Iterable[str], kind: ComponentKind | None, tags: Collection[str]
) -> Switch:
    """Returns a switch.

    Raises:
        TypeError: It names nothing, ``tags`` is one text, or a name or tag is none.
        ValueError: There is no such kind.
    """
    word = "show" if shown else "hide"
    if isinstance(tags, str):
        raise TypeError(f"tags={tags!r} is a text: write a list of tags")
    found = Switch(shown, frozenset(names), kind, frozenset(tags))
    if not all(isinstance(each, str) for each in (*found.names, *found.tags)):
        raise TypeError(f'{word}() takes names and tags, which are texts: write {word}("NAME", tags=["TAG"])')
    if kind is not None and kind not in get_args(ComponentKind):
        raise ValueError(f"kind={kind!r}: write one of {', '.join(get_args(ComponentKind))}")
    if not found.names and not found.tags and kind is None:
        raise TypeError(f"{word}() says nothing: give it names, a kind or tags")
    return found


def switched(switches: Switches, latest: Switch) -> Switches:
    """Returns switches with one more, which replaces an earlier one for the same.

    Raises:
        LocalProtocolError: There are too many.
    """
    about = latest.names, latest.kind, latest.tags
    others = tuple(each for each in switches if (each.names, each.kind, each.tags) != about)
    if len(others) >= MOST_SWITCHES:
        raise LocalProtocolError(
            f"there are {MOST_SWITCHES} switches already: hide and show by tags, or write a visible= that decides"
        )
    return (latest, *others)


def switched_by(switches: Switches, component: Component) -> bool | None:
    """Whether a component is shown by what was switched last, ``None`` if nothing is about it."""
    return next((each.shown for each in switches if each.names_one(component)), None)
