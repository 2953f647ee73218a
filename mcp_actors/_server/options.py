"""The options of tools, resources and prompts, written once for decorators, methods and type checkers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from os import PathLike
from typing import Any, Literal, TypedDict

from mcp_actors._server.apps import App
from mcp_actors._server.failures import LineNamed
from mcp_actors._server.invoke import is_async
from mcp_actors._server.turns import Turn, TurnKey
from mcp_actors._server.visibility import AccessRule
from mcp_actors._wire.codec import encode_value
from mcp_actors.types import Annotations, Icon, ToolAnnotations
from mcp_actors.types.content import is_icon_source

__all__ = [
    "PromptOptions",
    "ResourceOptions",
    "SkillOptions",
    "ToolOptions",
    "check_decorated",
    "check_icons",
    "check_options",
    "check_rule",
]


class PromptOptions(TypedDict, total=False):
    """Everything is optional: the name comes from the function, the description from its docstring."""

    name: str
    """What clients call it."""
    title: str
    """What people see."""
    description: str
    icons: Sequence[Icon]
    meta: Mapping[str, Any]
    """The entry's ``_meta``."""
    inline: bool
    """Run a sync function on the event loop instead of in a worker thread; it must not block."""
    loop: Literal["asyncio"]
    """The loop that an ``async def`` needs, if it is not Trio's."""
    scopes: Collection[str]
    """The scopes that a caller needs, all of them."""
    tags: Collection[str]
    """For `Server.hide` and rules; clients see them in ``_meta``."""
    version: str
    """One of several under the name; clients choose by ``_meta``."""
    visible: AccessRule
    """Says who sees it. It runs on the event loop."""
    auth: AccessRule
    """Says who may use it. It runs on the event loop."""


class IsolationOptions(PromptOptions, total=False):
    isolate: Literal["process"]
    """Run the function in a process of its own, which ends with a call that is cancelled, too large or too long."""
    memory: int
    """Bytes that a call of an isolated function may take, beyond what its process had before. On Linux."""
    cpu: float
    """Seconds of processor time that a call of an isolated function may take. Not on Windows."""
    lifespan: Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
    """What each process of an isolated function opens before its first call: ``ctx.state`` is its value."""


class ToolOptions(IsolationOptions, total=False):
    annotations: ToolAnnotations
    input_schema: Mapping[str, Any]
    """A raw JSON Schema: the function takes one dict."""
    output_schema: Mapping[str, Any]
    """Replaces what the return type says."""
    timeout: float
    """Seconds after which a call is cancelled; without it the tool may take as long as its client waits."""
    turn: Turn | TurnKey
    """Calls with the same key run one after the other: a text such as ``"{path}"``, a function, or a `Turn`."""
    task: Literal["optional", "required"]
    """Whether a call may, or must, become a task that outlives its caller."""
    restartable: bool
    """Whether a task is run again from its start when the process that ran it is gone."""
    before_task: Callable[..., Any]
    """An ``async def f(arguments, ctx)`` that runs before the task exists, and returns the arguments."""
    idempotent: timedelta
    """How long the answer to a call with a key is kept; calls with keys are refused without it."""
    confirm: str
    """What a person is asked before each call, with ``{parameters}``; without their approval it does not run."""
    confirm_by: Literal["form", "page"]
    """Whether the client asks its person, or a page of `mcp_actors.extensions.ApprovalPages` does."""
    app: App | str | PathLike[str] | Callable[..., Any]
    """The page on which hosts show its results: a file of HTML, a function, a ``ui://`` URI, or an `App`."""
    preview: Callable[..., Any]
    """Takes some of the tool's parameters, and returns what ``{preview}`` stands for in ``confirm``."""


class ResourceOptions(PromptOptions, total=False):
    mime_type: str
    size: int
    """In bytes, of a resource; a template has none."""
    annotations: Annotations
    list: Callable[..., Any]
    """For templates: a function that returns the resources of the family that exist now."""


class SkillOptions(TypedDict, total=False):
    """The options of resources that all files of a skill have: they say who sees it."""

    scopes: Collection[str]
    tags: Collection[str]
    visible: AccessRule
    auth: AccessRule


_TEXT = (str, "a string")
# The values that the options take, and what to write for them; ``annotations`` differ between tools and resources.
_TAKEN: dict[str, tuple[type | tuple[type, ...], str]] = {
    "name": _TEXT,
    "title": _TEXT,
    "description": _TEXT,
    "mime_type": _TEXT,
    "icons": ((list, tuple), "a list of Icon objects"),
    "meta": (Mapping, "a dict"),
    "inline": (bool, "True or False"),
    "loop": (str, '"asyncio", or leave it out'),
    "isolate": (str, '"process", or leave it out'),
    "memory": (int, "a number of bytes"),
    "cpu": ((int, float), "a number of seconds"),
    "lifespan": (Callable, "a function with one yield, decorated by contextlib"),  # type: ignore[dict-item]
    "task": (str, '"optional" or "required"'),
    "restartable": (bool, "True or False"),
    "confirm": _TEXT,
    "preview": (Callable, "a function"),  # type: ignore[dict-item]
    "app": ((str, PathLike, Callable, App), "the path of a file of HTML, or App(…)"),  # type: ignore[dict-item]
    "idempotent": (timedelta, "a timedelta, such as timedelta(hours=24)"),
    "scopes": ((list, tuple, AbstractSet), "a list of scopes"),
    "tags": ((list, tuple, AbstractSet), "a list of tags"),
    "version": _TEXT,
    "visible": (Callable, "a function of caller and component"),  # type: ignore[dict-item]
    "auth": (Callable, "a function of caller and component"),  # type: ignore[dict-item]
    "size": (int, "a number of bytes"),
    "input_schema": (Mapping, "a dict"),
    "output_schema": (Mapping, "a dict"),
    "list": (Callable, "a function"),  # type: ignore[dict-item]
}
# RFC 6749 section 3.3.
_SCOPE = r"[\x21\x23-\x5B\x5D-\x7E]+"
_ANNOTATIONS: dict[type, type] = {ToolOptions: ToolAnnotations, ResourceOptions: Annotations}


def check_options(options: Mapping[str, Any], known: type) -> None:
    """Checks the options of a tool, resource, prompt or skill, of which ``known`` is the class.

    Raises:
        TypeError: There is no such option, or it takes other values.
        ValueError: The name is empty, or clients must reject an icon.
    """
    names = [*known.__annotations__]
    for name, value in options.items():
        if name not in names:
            raise TypeError(f"there is no option {name}=; the options are {', '.join(names)}")
        if value is None:
            continue
        taken = _TAKEN.get(name)
        if name == "annotations":
            taken = (_ANNOTATIONS[known], f"{_ANNOTATIONS[known].__name__}(…)")
        if taken is not None and not isinstance(value, taken[0]):
            raise TypeError(f"{name}={value!r}: write {taken[1]}")
        if name == "icons":
            check_icons(value)
        if name == "name" and not value:
            raise ValueError("name='': write a name of one character or more")
        if name == "scopes" and not all(
            isinstance(each, str) and re.fullmatch(_SCOPE, each) for each in value
        ):
            raise TypeError(f"scopes={value!r}: write a list of scopes, such as ['files:read']")
        if name == "tags" and not all(isinstance(each, str) and each for each in value):
            raise TypeError(f"tags={value!r}: write a list of tags, such as ['admin']")
        if name == "version" and not value:
            raise ValueError("version='': write a version, such as '2.0', or leave it out")
        if name in ("visible", "auth"):
            check_rule(name, value)
        if name == "meta":
            try:
                encode_value(dict(value))
            except (TypeError, ValueError) as error:
                raise TypeError(f"meta={value!r}: JSON cannot hold it: {error}") from None


def check_rule(name: str, rule: Any) -> None:
    """Raises `TypeError` for anything but a plain function, which decides at once."""
    if not callable(rule):
        raise TypeError(f"{name}={rule!r:.80}: write a function of caller and component")
    if is_async(rule):
        raise TypeError(
            f"{name}={rule!r:.80}: write a plain def, which decides at once: lists ask it for each entry"
        )


def check_icons(icons: Iterable[object]) -> None:
    """Checks the icons of a server, or of a tool, resource or prompt.

    Raises:
        TypeError: One of them is not an `Icon`.
        ValueError: One of them has a source that clients must reject.
    """
    for icon in icons:
        if not isinstance(icon, Icon):
            raise TypeError(f"icons={icons!r}: write a list of Icon objects, such as Icon(src='https://…')")
        if not is_icon_source(icon.src):
            raise ValueError(
                f"icons: clients reject {icon.src!r:.80}: write a URI of the scheme https, http or data"
            )


def check_decorated(function: Any, feature: str) -> None:
    """Raises `TypeError` for a decorator that was given anything but the function under it."""
    if function is not None and not callable(function):
        with LineNamed():
            option = f"name={function!r}" if isinstance(function, str) else "title=…"
            raise TypeError(f"{function!r} is not a function: write @server.{feature}({option})")
