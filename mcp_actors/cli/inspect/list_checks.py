"""Checks of what a server lists, and of how its lists are paged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

from mcp_actors._eras.era import check_id
from mcp_actors._eras.modern import annotated_params
from mcp_actors._wire.uri_template import UriTemplate
from mcp_actors.cli.inspect.conversation import shown
from mcp_actors.cli.inspect.inspected import LISTS, NotApplicable, SpokenEra
from mcp_actors.errors import INVALID_PARAMS

__all__ = [
    "declared_lists_work",
    "deterministic",
    "extension_names",
    "mirrored_annotations",
    "nothing_undeclared",
    "one_scope",
    "prompt_shapes",
    "resource_shapes",
    "tool_names",
    "tool_schemas",
    "tool_shapes",
    "unknown_cursor",
]

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# What no URI has in it, by RFC 3986.
_NOT_IN_URIS = re.compile(r"[\x00-\x20\x7f-\U0010ffff<>\"{}|\\^`]")
_NO_CURSOR = "mcp-actors-inspect: no cursor of yours"
# A template that is longer, or has more expressions, is not taken apart.
LONGEST_TEMPLATE, EXPRESSIONS = 4096, 64
_DIALECTS = ("draft/2020-12", "draft/2019-09", "draft-07", "draft-06", "draft-04")


def _items(spoken: SpokenEra, *names: str) -> list[tuple[str, Any]]:
    found = [
        (name.removesuffix("s"), item)
        for name in names
        if name in spoken.lists
        for item in spoken.lists[name].items
    ]
    if not any(name in spoken.lists for name in names):
        raise NotApplicable(f"it declares no {names[0]}")
    return found


def _named(kind: str, item: Any) -> str:
    return f"the {kind} {shown(item.get('name')) if isinstance(item, Mapping) else shown(item)}"


async def declared_lists_work(spoken: SpokenEra) -> list[str]:
    """Each declared list can be read."""
    if not spoken.lists:
        raise NotApplicable("it declares nothing that can be listed")
    return [
        f"{LISTS[name][0]} was answered by {found.stopped}"
        for name, found in spoken.lists.items()
        if found.stopped is not None and found.answers[-1].result is None
    ]


async def nothing_undeclared(spoken: SpokenEra) -> list[str]:
    """Nothing is offered that is not declared."""
    found = []
    for name, (method, member) in LISTS.items():
        if not spoken.declares(method) and name != "resource templates":
            answer = await spoken.conversation.ask(method)
            items = (answer.result or {}).get(member)
            if isinstance(items, list) and items:
                found.append(f"{method} lists {len(items)} {name}, and no {name} are declared")
    return found


async def tool_shapes(spoken: SpokenEra) -> list[str]:
    """Each tool has a name, and a schema of its arguments whose type is object."""
    found = []
    for kind, tool in _items(spoken, "tools"):
        schema = tool.get("inputSchema") if isinstance(tool, Mapping) else None
        output = tool.get("outputSchema") if isinstance(tool, Mapping) else None
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
            found.append(f"{_named(kind, tool)} has no name that is a string")
        elif not isinstance(schema, Mapping):
            found.append(f"{_named(kind, tool)} has the inputSchema {shown(schema)}")
        elif schema.get("type") != "object":
            found.append(f"{_named(kind, tool)} has an inputSchema of the type {shown(schema.get('type'))}")
        elif output is not None and not isinstance(output, Mapping):
            found.append(f"{_named(kind, tool)} has the outputSchema {shown(output)}")
    return found


async def tool_schemas(spoken: SpokenEra) -> list[str]:
    """Each schema is a valid one of its dialect."""
    found = []
    for kind, tool in _items(spoken, "tools"):
        for member in ("inputSchema", "outputSchema"):
            schema = tool.get(member) if isinstance(tool, Mapping) else None
            if isinstance(schema, dict) and (fault := _schema_fault(schema)) is not None:
                found.append(f"the {member} of {_named(kind, tool)} is not a JSON Schema: {shown(fault)}")
    return found


def _schema_fault(schema: dict[str, Any]) -> str | None:
    dialect = schema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    if not isinstance(dialect, str):
        return "$schema is not a string"
    if not any(each in dialect for each in _DIALECTS):
        return None
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        return error.message
    except (ValueError, jsonschema_rs.ReferencingError):
        return None
    return None


async def tool_names(spoken: SpokenEra) -> list[str]:
    """Names of tools are short, of few characters, and unique."""
    names = [
        tool["name"]
        for _, tool in _items(spoken, "tools")
        if isinstance(tool, Mapping) and isinstance(tool.get("name"), str)
    ]
    found = [
        f"the tool {shown(name)} has {len(name)} characters" for name in names if not 1 <= len(name) <= 128
    ]
    found += [
        f"the name of the tool {shown(name)} has characters beside letters, digits, _, - and ."
        for name in names
        if 1 <= len(name) <= 128 and not _TOOL_NAME.fullmatch(name)
    ]
    return found + [
        f"{number} tools are called {shown(name)}" for name, number in Counter(names).items() if number > 1
    ]


async def resource_shapes(spoken: SpokenEra) -> list[str]:
    """Each resource has a URI and a name, each template a URI template and a name."""
    found = []
    for kind, item in _items(spoken, "resources", "resource templates"):
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            found.append(f"{_named(kind, item)} has no name that is a string")
        elif kind == "resource" and not _is_uri(item.get("uri")):
            found.append(f"{_named(kind, item)} has the uri {shown(item.get('uri'))}")
        elif kind != "resource" and not _is_template(item.get("uriTemplate")):
            found.append(f"{_named(kind, item)} has the uriTemplate {shown(item.get('uriTemplate'))}")
    return found


def _is_uri(value: object) -> bool:
    return isinstance(value, str) and bool(_SCHEME.match(value)) and not _NOT_IN_URIS.search(value)


def _is_template(value: object) -> bool:
    if not isinstance(value, str):
        return False
    if len(value) > LONGEST_TEMPLATE or value.count("{") > EXPRESSIONS:
        return True
    try:
        UriTemplate(value)
    except ValueError:
        return False
    return True


async def prompt_shapes(spoken: SpokenEra) -> list[str]:
    """Each prompt has a name, and its arguments have names."""
    found = []
    for kind, prompt in _items(spoken, "prompts"):
        arguments = prompt.get("arguments") or [] if isinstance(prompt, Mapping) else []
        if not isinstance(prompt, Mapping) or not isinstance(prompt.get("name"), str):
            found.append(f"{_named(kind, prompt)} has no name that is a string")
        elif not isinstance(arguments, list) or not all(
            isinstance(each, Mapping) and isinstance(each.get("name"), str) for each in arguments
        ):
            found.append(f"{_named(kind, prompt)} has an argument without a name")
    return found


async def mirrored_annotations(spoken: SpokenEra) -> list[str]:
    """Annotations for headers are at a place where they may be, and name a header."""
    found = []
    for kind, tool in _items(spoken, "tools"):
        schema = tool.get("inputSchema") if isinstance(tool, Mapping) else None
        if isinstance(schema, dict):
            try:
                annotated_params(schema)
            except ValueError as error:
                found.append(f"{_named(kind, tool)}: {shown(str(error))}")
    return found


async def unknown_cursor(spoken: SpokenEra) -> list[str]:
    """A cursor that the server never gave out is refused."""
    found = []
    if not spoken.lists:
        raise NotApplicable("it declares nothing that can be listed")
    for name in spoken.lists:
        method = LISTS[name][0]
        answer = await spoken.conversation.ask(method, {"cursor": _NO_CURSOR})
        if answer.code != INVALID_PARAMS:
            found.append(
                f"{method} with a cursor that the server never gave out was answered by {answer.summary()}"
            )
    return found


async def one_scope(spoken: SpokenEra) -> list[str]:
    """All pages of a list have one cache scope."""
    found = []
    for name, listed in spoken.lists.items():
        scopes = {str((answer.result or {}).get("cacheScope")) for answer in listed.answers}
        if len(scopes) > 1:
            found.append(
                f"the pages of {LISTS[name][0]} have different scopes: {shown(', '.join(sorted(scopes)))}"
            )
    return found


async def deterministic(spoken: SpokenEra) -> list[str]:
    """The tools come in the same order each time."""
    if "tools" not in spoken.lists:
        raise NotApplicable("it declares no tools")
    before = [
        shown(each) for each in _tool_names((spoken.lists["tools"].answers[0].result or {}).get("tools"))
    ]
    after = (await spoken.conversation.ask("tools/list")).result or {}
    now = [shown(each) for each in _tool_names(after.get("tools"))]
    same = sorted(before) == sorted(now)
    return ["the same tools came in another order the second time"] if same and before != now else []


def _tool_names(tools: Any) -> Iterator[object]:
    for each in tools if isinstance(tools, list) else ():
        yield each.get("name") if isinstance(each, Mapping) else None


async def extension_names(spoken: SpokenEra) -> list[str]:
    """The ids of extensions have a prefix, and settings that are an object."""
    extensions = spoken.capabilities.get("extensions")
    if extensions is None:
        raise NotApplicable("it declares no extensions")
    if not isinstance(extensions, Mapping):
        return [f"the extensions are {shown(extensions)}"]
    found = [
        f"the settings of {shown(id)} are {shown(each)}"
        for id, each in extensions.items()
        if not isinstance(each, Mapping)
    ]
    for id in extensions:
        try:
            check_id(id)
        except ValueError as error:
            found.append(shown(str(error)))
    return found
