"""Reads the configurations of servers that Claude, Cursor, Windsurf, Visual Studio Code and others have.

Sources, each as of November 2026: the documentation of Claude Desktop (modelcontextprotocol.io, quickstart for users),
Claude Code (MCP, scopes and expansion), Cursor (MCP), Windsurf (Cascade, MCP), Visual Studio Code (MCP configuration
reference), Gemini CLI (MCP servers).
"""

from __future__ import annotations

import glob
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import attrs

from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import MODERN
from mcp_actors.errors import ConfigurationError
from mcp_actors.gateway.server_entry import (
    WITH_HEADERS,
    ConfigSource,
    GatewayMembers,
    ServerEntry,
    UnusableFile,
    over_unix_socket,
    read_file,
)
from mcp_actors.server import Argument, Reshape
from mcp_actors.supervision.platform import split_line

__all__ = ["GatewayMembers", "GatewaySection", "ServerEntries", "ServerEntry", "read_server_entries"]


# -- JSON as settings have it: with comments, and a comma behind the last member --------------------------------------

# Each of these takes an unfinished one up to its end, so that no text is looked at twice.
_PARTS = re.compile(
    r"""
      (?P<string> " (?: [^"\\\n]++ | \\. )*+ "? )
    | (?P<comment> // [^\n\r]*+ | /\* (?s: .*? ) (?: \*/ | \Z ) )
    """,
    re.VERBOSE,
)
_COMMAS = re.compile(r'(?P<string>"(?:[^"\\\n]++|\\.)*+"?)|(?P<comma>,)(?=\s*+[}\]])')
_VISIBLE = re.compile(r"[^\n\r]")


class NotReadable(Exception):
    """The text is no JSON. The message says where, and shows nothing of the text."""


def read_json(text: str) -> dict[str, Any]:
    """Returns the object that a text has.

    Raises:
        NotReadable: It is not JSON even so, an object has a name twice, or it is not an object.
    """
    if not text.strip():
        raise NotReadable("it is empty")
    # What is left out becomes blanks, so that the places in errors are those of the text.
    bare = _PARTS.sub(lambda found: _blanks(found) if found["comment"] else found[0], text)
    bare = _COMMAS.sub(lambda found: " " if found["comma"] else found[0], bare)
    try:
        value = json.loads(bare, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        message = f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise NotReadable(message) from None
    except RecursionError:
        raise NotReadable("it is nested too deep") from None
    except ValueError as error:
        # Ours, and Python's own for a number with thousands of digits.
        raise NotReadable(
            str(error) if isinstance(error, _NoJson) else "it has a number that is too long"
        ) from None
    if not isinstance(value, dict):
        raise NotReadable("the whole is no object")
    return value


class _NoJson(ValueError):
    """Leaves the JSON reader."""


def _blanks(found: re.Match[str]) -> str:
    return _VISIBLE.sub(" ", found[0])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name in made if counts[name] > 1)
        raise _NoJson(f"an object has the name {twice[:80]!r} twice")
    return made


def _no_constant(_name: str) -> None:
    raise _NoJson("it has NaN or an infinity, which is no JSON")


# -- the members that an entry may have, and what each may be, in the words of a refusal ------------------------------

Check = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what it has to be."""


def _is_text(value: object) -> bool:
    # No program can be given a NUL, and no header or path can have one.
    return isinstance(value, str) and "\0" not in value


def _is_some_text(value: object) -> bool:
    return _is_text(value) and value != ""


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


def _maps_to_texts(value: object) -> bool:
    return (
        isinstance(value, Mapping) and all(map(_is_some_text, value)) and all(map(_is_text, value.values()))
    )


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_some_text, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_environment(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and all(_is_some_text(name) and "=" not in name for name in value)
        and all(each is None or _is_text(each) or _is_number(each) for each in value.values())
    )


_TEXT: Check = (_is_some_text, "a text")
_TEXTS: Check = (_are_texts, "a list of texts")
_BOOLEAN: Check = (lambda value: isinstance(value, bool), "true or false")
_SECONDS: Check = (lambda value: _is_number(value) and value > 0, "a number of seconds above 0")
_SESSIONS = ("auto", "shared", "own")
_ERAS = ("auto", "legacy", "modern", *LEGACY, *MODERN)

ENTRY_MEMBERS: Mapping[str, Check] = {
    "type": _TEXT,
    "command": _TEXT,
    "args": _TEXTS,
    "env": (_is_environment, "an object of names and texts"),
    "envFile": _TEXT,
    "cwd": _TEXT,
    "url": _TEXT,
    "serverUrl": _TEXT,
    "httpUrl": _TEXT,
    "headers": (_maps_to_texts, "an object of names and texts"),
    "disabled": _BOOLEAN,
    "enabled": _BOOLEAN,
    "disabledTools": _TEXTS,
    "excludeTools": _TEXTS,
}
"""Those that hosts have."""

GATEWAY_MEMBERS: Mapping[str, Check] = {
    "prefix": (_is_text, "a text"),
    "rename": (_maps_to_texts, "an object of names and texts"),
    "include": _TEXTS,
    "exclude": _TEXTS,
    "tools": (
        lambda value: _is_object(value) and all(map(_is_object, value.values())),
        "an object of names and objects",
    ),
    "sessions": (lambda value: value in _SESSIONS, "one of " + ", ".join(map(repr, _SESSIONS))),
    "lazy": _BOOLEAN,
    "era": (lambda value: value in _ERAS, "one of " + ", ".join(map(repr, _ERAS))),
    "timeout": _SECONDS,
    "cap": _SECONDS,
    "wait": _SECONDS,
    "arguments": (lambda value: value in ("as-is", "repair"), "'as-is' or 'repair'"),
    "inline_refs": _BOOLEAN,
    "scopes": _TEXTS,
    "confirm": _TEXTS,
    "idempotent": (
        lambda value: _is_object(value) and all(_is_number(each) and each > 0 for each in value.values()),
        "an object of names and seconds",
    ),
}
"""Those for a gateway, which no host has."""

SHAPE_MEMBERS: Mapping[str, Check] = {
    "name": _TEXT,
    "title": _TEXT,
    "description": _TEXT,
    "arguments": (
        lambda value: (
            _is_object(value) and all(_is_text(each) or _is_object(each) for each in value.values())
        ),
        "an object of names and objects, or new names",
    ),
    "output_schema": (lambda value: value is False or _is_object(value), "an object, or false"),
}
"""Those of a tool in another shape, as `mcp_actors.Reshape` has them but for functions."""

ARGUMENT_MEMBERS: Mapping[str, Check] = {
    "name": _TEXT,
    "title": _TEXT,
    "description": _TEXT,
    "default": (lambda value: True, "any value"),
    "value": (lambda value: True, "any value"),
    "hidden": _BOOLEAN,
}
"""Those of an argument of it, as `mcp_actors.Argument` has them but for functions."""

SECTION_MEMBERS: Mapping[str, Check] = {
    "listen": (
        lambda value: _is_some_text(value) or (_are_texts(value) and all(value)),
        "a URL, or a list of URLs",
    ),
    "name": _TEXT,
    "instructions": _TEXT,
    "wait": _SECONDS,
    "budget": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
        "a number of tokens above 0",
    ),
    "pinned": _TEXTS,
}
"""Those of the object ``gateway`` of a file."""


# -- configurations ---------------------------------------------------------------------------------------------------

# Bytes. The largest that are known, of a client that keeps its history there too, have some tens of MiB.
MAX_CONFIG_BYTES = 32 * 1024 * 1024
MAX_SERVERS = 1000

_SECTIONS = ("mcpServers", "servers")
_HTTP = WITH_HEADERS - {"ws", "wss"}
# The types of hosts, in lower case and without - and _; and the schemes that a URL of one may have.
_TYPES: Mapping[str, frozenset[str]] = {
    "stdio": frozenset({"stdio"}),
    "http": _HTTP,
    "streamablehttp": _HTTP,
    # A server that has nothing newer is recognised without it.
    "sse": _HTTP,
    "ws": frozenset({"ws", "wss"}),
    "websocket": frozenset({"ws", "wss"}),
}
# The members with which Windsurf and Gemini CLI take tools of a server away.
_TAKEN_AWAY = ("disabledTools", "excludeTools")
# Folders in which a project keeps the settings of a program.
_SETTINGS_FOLDERS = (".vscode", ".cursor")


@attrs.frozen(kw_only=True)
class GatewaySection:
    """The object ``gateway`` of a configuration: the gateway as a whole."""

    listen: Sequence[str] = ()
    name: str | None = None
    instructions: str | None = None
    wait: float | None = None
    """Seconds, as `Gateway` takes them."""
    budget: int | None = None
    """Tokens, as `Gateway` takes them."""
    pinned: Sequence[str] | None = None
    unknown: Sequence[str] = ()
    """The names of the members that have no effect."""

    def given(self) -> dict[str, Any]:
        """Returns the options of `Gateway` that it has."""
        found = {each: getattr(self, each) for each in ("name", "instructions", "wait", "budget", "pinned")}
        return {name: value for name, value in found.items() if value is not None}


@attrs.frozen
class ServerEntries:
    """The servers of a configuration."""

    source: ConfigSource
    servers: Mapping[str, ServerEntry]
    """By their names, in the order of the configuration, with those that are disabled."""
    gateway: GatewaySection = attrs.field(factory=GatewaySection)
    malformed: Mapping[str, ConfigurationError] = attrs.field(factory=dict)
    """What is wrong with the entries that were left out, by their names."""

    def __iter__(self) -> Iterator[ServerEntry]:
        """Iterates over the servers that are not disabled."""
        return (entry for entry in self.servers.values() if not entry.disabled)


def read_server_entries(
    source: str | os.PathLike[str] | Mapping[str, Any], *, leaves_out: bool = False
) -> ServerEntries:
    """Reads a configuration: ``mcpServers`` of Claude, Cursor or Windsurf, or ``servers`` of Visual Studio Code.

    In the settings of Visual Studio Code, ``servers`` and ``inputs`` are in an object ``mcp``, which is read as well.
    Comments, and a comma behind the last member, are allowed. Members that are not known are left aside.

    Args:
        source: The path of a file, its text (a `str` with a brace in it), or the mapping that it contains.
        leaves_out: Whether a malformed entry costs itself alone, and is in `ServerEntries.malformed`; by default it is
            raised.

    Raises:
        ConfigurationError: It cannot be read, names no servers, or a member is of a wrong type; the message names file,
            server and member.
    """
    if isinstance(source, Mapping):
        return _EntryReader(ConfigSource("the configuration"), leaves_out).read(source)
    if isinstance(source, str) and "{" in source:
        return _read_text(source, ConfigSource("the configuration"), leaves_out)
    path = Path(source).expanduser()
    where = ConfigSource(str(path), _project_of(path))
    try:
        text = read_file(path, MAX_CONFIG_BYTES)
    except UnusableFile as error:
        raise ConfigurationError(str(error), file=where.name) from error
    return _read_text(text, where, leaves_out)


def _read_text(text: str, source: ConfigSource, leaves_out: bool) -> ServerEntries:
    try:
        value = read_json(text)
    except NotReadable as error:
        raise ConfigurationError(str(error), file=source.name) from error
    return _EntryReader(source, leaves_out).read(value)


def _project_of(path: Path) -> Path:
    folder = path.absolute().parent
    return folder.parent if folder.name in _SETTINGS_FOLDERS else folder


class _EntryReader:
    """Reads one configuration."""

    def __init__(self, source: ConfigSource, leaves_out: bool) -> None:
        self._source = source
        self._leaves_out = leaves_out

    def read(self, value: Mapping[str, Any]) -> ServerEntries:
        within = value.get("mcp")
        if isinstance(within, Mapping) and not any(name in value for name in _SECTIONS):
            # The settings of Visual Studio Code had it there before mcp.json.
            value = {"gateway": value.get("gateway"), **within}
        self._source = attrs.evolve(self._source, inputs=_inputs(value.get("inputs")))
        servers: dict[str, ServerEntry] = {}
        malformed: dict[str, ConfigurationError] = {}
        found = [name for name in _SECTIONS if value.get(name) is not None]
        if not found:
            self._fail(
                "it names no servers: there is neither mcpServers nor, as in Visual Studio Code, servers",
                None,
                None,
            )
        for section in found:
            entries = value[section]
            if not isinstance(entries, Mapping):
                self._fail("it has to be an object", None, section)
            if len(servers) + len(entries) > MAX_SERVERS:
                self._fail(f"it has more than {MAX_SERVERS} servers", None, section)
            for name, entry in entries.items():
                try:
                    if not isinstance(name, str) or not name or name in servers:
                        self._fail("two servers have this name, or it is empty", str(name), section)
                    servers[name] = self._entry(name, entry)
                except ConfigurationError as error:
                    if not self._leaves_out:
                        raise
                    malformed[str(name)] = error
        return ServerEntries(self._source, servers, self._section(value.get("gateway")), malformed)

    def _entry(self, name: str, entry: Any) -> ServerEntry:
        if not isinstance(entry, Mapping):
            self._fail("it has to be an object", name, None)
        given, unknown = self._checked(entry, {**ENTRY_MEMBERS, **GATEWAY_MEMBERS}, name)
        urls = [member for member in ("url", "serverUrl", "httpUrl") if member in given]
        if len(urls) + ("command" in given) != 1:
            self._fail("it needs either a command (with args) or a url", name, None)
        rename = given.get("rename", {})
        if "tools" in given:
            given["tools"] = {
                tool: self._shape(each, name, f"tools.{tool}") for tool, each in given["tools"].items()
            }
        shapes: Mapping[str, Reshape] = given.get("tools", {})
        outside = [*rename.values(), *(each.name for each in shapes.values() if each.name is not None)]
        if not rename.keys().isdisjoint(own for own, each in shapes.items() if each.name is not None):
            self._fail("a tool is renamed here, and in its shape", name, "rename")
        if len(set(outside)) < len(outside) or "" in outside:
            self._fail("two names are renamed to the same one, or one to nothing", name, "rename")
        members: dict[str, Any] = {
            "gateway": GatewayMembers(**_gateway_members(given)),
            "disabled": given.get("disabled", False) or not given.get("enabled", True),
        }
        url = given[urls[0]] if urls else None
        kind = self._kind(given.get("type"), url, name)
        if url is not None and url.lower().startswith("stdio:"):
            given |= dict(zip(("command", "args"), self._words(url, name), strict=True))
            url = None
        if url is None:
            env = {each: _env_value(value) for each, value in given.get("env", {}).items()}
            members |= {"command": given["command"], "args": tuple(given.get("args", ())), "env": env}
            members |= {"env_file": given.get("envFile"), "cwd": given.get("cwd")}
            unused = ["headers"]
        else:
            if url.lower().startswith("unix:") and kind is not None and _TYPES[kind] is _HTTP:
                url = over_unix_socket(url)
            members |= {"url": url, "headers": dict(given.get("headers", {}))}
            unused = ["args", "env", "envFile", "cwd"]
        unknown += [each for each in unused if each in given]
        return ServerEntry(name=name, source=self._source, unknown=tuple(unknown), **members)

    def _shape(self, value: Mapping[str, Any], server: str, member: str) -> Reshape:
        """Returns the shape that a tool has in the gateway."""
        given = self._known(value, SHAPE_MEMBERS, server, member)
        if given.get("output_schema") is False:
            given["output_schema"] = None
        try:
            arguments = {
                name: Argument(each)
                if isinstance(each, str)
                else Argument(**self._known(each, ARGUMENT_MEMBERS, server, f"{member}.arguments.{name}"))
                for name, each in given.pop("arguments", {}).items()
            }
            return Reshape(arguments=arguments, **given)
        except (TypeError, ValueError) as error:
            self._fail(str(error), server, member)

    def _known(
        self, value: Mapping[str, Any], checks: Mapping[str, Check], server: str, member: str
    ) -> dict[str, Any]:
        """Returns members that are all known: what is hidden by a misspelt word would be seen."""
        found: dict[str, Any] = {}
        for each, given in value.items():
            if each not in checks:
                self._fail(
                    f"it has a member {str(each)[:80]!r}; known are {', '.join(checks)}", server, member
                )
            if given is None and each not in ("default", "value"):
                continue
            if not checks[each][0](given):
                self._fail(f"it has to be {checks[each][1]}", server, f"{member}.{each}")
            found[each] = given
        return found

    def _kind(self, given: str | None, url: str | None, name: str) -> str | None:
        """Returns the type of an entry as `_TYPES` has it, which its URL must fit."""
        if given is None:
            return None
        kind = given.lower().replace("-", "").replace("_", "")
        if kind not in _TYPES:
            known = "stdio, http, streamable-http, sse, ws"
            self._fail(f"it has to be one of {known}, and is not needed beside a url", name, "type")
        scheme = "stdio" if url is None else url.partition(":")[0].lower()
        # The scheme may be that of a variable's value.
        fits = scheme in _TYPES[kind] or "${" in scheme or (scheme == "unix" and _TYPES[kind] is _HTTP)
        if not fits:
            needed = "command" if kind == "stdio" else f"url with {' or '.join(sorted(_TYPES[kind]))}"
            self._fail(f"this type needs a {needed}", name, "type")
        return kind

    def _words(self, url: str, name: str) -> tuple[str, list[str]]:
        try:
            program, *args = split_line(url.partition(":")[2])
        except ValueError:
            self._fail("it has no command, or a quotation mark without another one", name, "url")
        return program, args

    def _section(self, section: Any) -> GatewaySection:
        if section is None:
            return GatewaySection()
        if not isinstance(section, Mapping):
            self._fail("it has to be an object", None, "gateway")
        given, unknown = self._checked(section, SECTION_MEMBERS, None)
        listen = given.pop("listen", ())
        return GatewaySection(
            listen=(listen,) if isinstance(listen, str) else tuple(listen), unknown=tuple(unknown), **given
        )

    def _checked(
        self, value: Mapping[str, Any], checks: Mapping[str, Check], server: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """Returns the members that are known, which are of the right types, and the names of the others."""
        given: dict[str, Any] = {}
        unknown: list[str] = []
        for member, each in value.items():
            if member not in checks:
                unknown.append(str(member)[:80])
                continue
            # Programs write null for what an entry does not have.
            if each is None:
                continue
            allows, wanted = checks[member]
            if not allows(each):
                self._fail(
                    f"it has to be {wanted}", server, member if server is not None else f"gateway.{member}"
                )
            given[member] = each
        return given, unknown

    def _fail(self, problem: str, server: str | None, member: str | None) -> NoReturn:
        raise ConfigurationError(problem, file=self._source.name, server=server, member=member)


def _gateway_members(given: Mapping[str, Any]) -> dict[str, Any]:
    found = {each: given[each] for each in GATEWAY_MEMBERS if each in given}
    # Hosts name tools one by one there, and no patterns.
    taken_away = [glob.escape(tool) for each in _TAKEN_AWAY for tool in given.get(each, ())]
    if "idempotent" in found:
        found["idempotent"] = {name: timedelta(seconds=kept) for name, kept in found["idempotent"].items()}
    return found | ({"exclude": [*found.get("exclude", ()), *taken_away]} if taken_away else {})


def _env_value(value: str | float | None) -> str | None:
    return value if value is None or isinstance(value, str) else format(value)


def _inputs(value: Any) -> dict[str, str | None]:
    """Returns the inputs that a file declares, with their defaults; those of passwords have none."""
    each = [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
    found: dict[str, str | None] = {}
    for one in each:
        name, default = one.get("id"), one.get("default")
        if isinstance(name, str):
            found[name] = default if isinstance(default, str) and not one.get("password") else None
    return found
