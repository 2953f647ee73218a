"""The file of settings of all that serves, and of ``bench``; ``mcp-actors config`` checks and shows it.

The file is TOML: a table for each command, in ``pyproject.toml`` below ``tool.mcp-actors``, whose keys are the names of
the command's options without the dashes. What a key may have follows from the declaration of the option alone, so an
option that is added has a key without anything here.

The standard library reads TOML and says where it is malformed, but not where a value was written. `Positions` finds
that in a text that has been read already, so that it need not judge anything.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from mcp_actors.cli.commands import command_of
from mcp_actors.cli.credentials import new_key
from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.output import echo, safe
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.gateway.server_entry import (
    CommandOutputs,
    NotExpanded,
    UnusableFile,
    Variables,
    commands_in,
    read_file,
)
from mcp_actors.supervision.arguments import did_you_mean

__all__ = ["CommandSettings", "Positions", "SettingsFile", "command", "settings_of"]

CONFIGURABLE = ("serve", "gateway", "bridge", "from-openapi", "rest", "bench")
"""The commands that have a table in the file."""
# Bytes: a file with every option has some thousand.
MAX_SETTINGS_BYTES = 1024 * 1024
MASK = "***"
_PYPROJECT = "pyproject.toml"
_OWN_TABLE = ("tool", "mcp-actors")

KeyPath = tuple[str | int, ...]
"""The keys and places in lists that lead to a value."""


# -- Where keys and values are in a TOML document ------------------------------------------------------

_STRING = re.compile(
    r'''"""(?s:(?:\\.|[^\\])*?)"""(?:"{0,2}) | \'\'\'(?s:.*?)\'\'\'(?:'{0,2}) | "(?:\\.|[^"\\])*+" | '[^']*+' ''',
    re.VERBOSE,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]++")
_OTHER_VALUE = re.compile(r"[^,\]}#\n]++")
_BETWEEN = re.compile(r"(?:[\s,]++|#[^\n]*+)*+")


class Positions:
    """The places of all keys and values of a document.

    Args:
        text: The document, which `tomllib` has read.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._keys: dict[KeyPath, int] = {}
        self._values: dict[KeyPath, int] = {}
        # The number of tables in each array of tables.
        self._tables: dict[KeyPath, int] = {}
        table: KeyPath = ()
        while self._is_before(""):
            start = self._at
            if text.startswith("[", start):
                table = self._header(double=text.startswith("[[", start))
                self._keys.setdefault(table, start)
            else:
                self._pair(table)

    def __repr__(self) -> str:
        return f"<Positions {len(self._keys)} keys>"

    def __iter__(self) -> Iterator[KeyPath]:
        """Iterates over the paths of all values."""
        return iter(self._values)

    def of_key(self, path: KeyPath) -> tuple[int, int]:
        """Returns the line and column of a key or of the header of a table."""
        return self._place(self._keys.get(path, self._nearest(path)))

    def of_value(self, path: KeyPath) -> tuple[int, int]:
        """Returns the line and column of a value, or of the key of a value that has no place of its own."""
        return self._place(self._values.get(path, self._nearest(path)))

    def _nearest(self, path: KeyPath) -> int:
        for length in range(len(path), 0, -1):
            for places in (self._values, self._keys):
                if path[:length] in places:
                    return places[path[:length]]
        return 0

    def _place(self, offset: int) -> tuple[int, int]:
        return self._text.count("\n", 0, offset) + 1, offset - self._text.rfind("\n", 0, offset)

    def _is_before(self, end: str) -> bool:
        """Goes on to what comes next, and returns whether that is something else than the end."""
        found = _BETWEEN.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        if self._at == len(self._text):
            return False
        if end and self._text.startswith(end, self._at):
            self._at += 1
            return False
        return True

    def _header(self, *, double: bool) -> KeyPath:
        self._at += 2 if double else 1
        path: KeyPath = ()
        for part in self._key():
            path = (*path, part)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        if double:
            # The last part may have been found as the array itself.
            array = path[:-1] if path and isinstance(path[-1], int) else path
            number = self._tables[array] = self._tables.get(array, 0) + 1
            path = (*array, number - 1)
        self._at = self._text.index("]", self._at) + (2 if double else 1)
        return path

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._blanks()
            bare = _BARE_KEY.match(self._text, self._at)
            found = bare or _STRING.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            parts.append(found[0] if bare else tomllib.loads(f"key = {found[0]}")["key"])
            self._blanks()
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _blanks(self) -> None:
        while self._text.startswith((" ", "\t"), self._at):
            self._at += 1

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        path = (*table, *self._key())
        for length in range(len(table) + 1, len(path) + 1):
            self._keys.setdefault(path[:length], start)
        self._at = self._text.index("=", self._at) + 1
        self._blanks()
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._values[path] = self._at
        if self._text.startswith("[", self._at):
            self._at += 1
            number = 0
            while self._is_before("]"):
                self._value((*path, number))
                number += 1
        elif self._text.startswith("{", self._at):
            self._at += 1
            while self._is_before("}"):
                self._pair(path)
        else:
            found = _STRING.match(self._text, self._at) or _OTHER_VALUE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()


# -- A file, and the settings of one command in it -----------------------------------------------------

_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


@attrs.frozen
class SettingsFile:
    """A file that was read: the tables of the commands, and where everything in them is."""

    name: str
    """Its name as it was given, for people."""
    tables: Mapping[str, Any]
    positions: Positions
    root: KeyPath
    """The keys of the table in which the tables of the commands are."""

    @classmethod
    def read(cls, name: str) -> SettingsFile | None:
        """Reads a file.

        Returns:
            The file; ``None`` for a ``pyproject.toml`` without a table of ours.

        Raises:
            WrongUsage: It cannot be read, or is not TOML.
        """
        try:
            text = read_file(os.path.expanduser(name), MAX_SETTINGS_BYTES).replace("\r\n", "\n")
        except UnusableFile as error:
            raise WrongUsage(f"{name}: {error}") from error
        is_pyproject = os.path.basename(name) == _PYPROJECT
        if is_pyproject and _OWN_TABLE[1] not in text:
            return None
        try:
            document: Any = tomllib.loads(text)
            positions = Positions(text)
        except tomllib.TOMLDecodeError as error:
            raise WrongUsage(_malformed(name, text, str(error))) from None
        except RecursionError:
            raise WrongUsage(f"{name}: it is nested too deep") from None
        if not is_pyproject:
            return cls(name, document, positions, ())
        tools = document.get(_OWN_TABLE[0])
        tables: Any = tools.get(_OWN_TABLE[1]) if isinstance(tools, dict) else None
        file = cls(name, tables, positions, _OWN_TABLE)
        if tables is not None and not isinstance(tables, dict):
            raise WrongUsage(
                f"{file.where(())}: {'.'.join(_OWN_TABLE)} has to be a table, of tables of commands"
            )
        return None if tables is None else file

    def where(self, path: KeyPath, *, key: bool = False) -> str:
        """Returns ``FILE:LINE:COLUMN`` of a value below the table of ours, or of its key."""
        whole = (*self.root, *path)
        line, column = self.positions.of_key(whole) if key else self.positions.of_value(whole)
        return f"{self.name}:{line}:{column}"

    def wrong_tables(self) -> Iterator[str]:
        """Returns a line for each entry that is not the table of a command."""
        for name, table in self.tables.items():
            if name not in CONFIGURABLE:
                meant = did_you_mean(name, CONFIGURABLE) or f": the tables are {', '.join(CONFIGURABLE)}"
                yield f"{self.where((name,), key=True)}: there are no settings of {name[:80]!r}{meant}"
            elif not isinstance(table, dict):
                yield f"{self.where((name,))}: {name} has to be a table, with the options of the command"


def _malformed(name: str, text: str, message: str) -> str:
    found = _AT.fullmatch(message)
    if found is None:
        return f"{name}: {message}"
    line, column = found[2], found[3]
    if line is None:
        line, column = str(text.count("\n") + 1), str(len(text) - text.rfind("\n"))
    return f"{name}:{line}:{column}: {found[1][:1].lower()}{found[1][1:]}"


@attrs.frozen
class Setting:
    """The value that a file has for one option."""

    raw: Any
    """As it is written."""
    place: str
    """``FILE:LINE``."""
    value: Any = attrs.field(repr=False)
    """What the option gets; its variables have been put in, so it may be a secret."""


class CommandSettings:
    """The table of one command in a file, read by the declarations of the command's options.

    Args:
        file: The file.
        command: The command.
        ctx: Its context.
        outputs: Where the outputs of commands come from; ``None`` if no command is to be run.
        is_named: Whether a person has named the file. One that was found in a folder runs no commands.
    """

    def __init__(
        self,
        file: SettingsFile,
        command: click.Command,
        ctx: click.Context,
        outputs: CommandOutputs | None,
        *,
        is_named: bool,
    ) -> None:
        self.file = file
        self.problems: list[str] = []
        """What is wrong, a line each: ``FILE:LINE:COLUMN: …``."""
        self.found: dict[str, Setting] = {}
        """By the names of the parameters."""
        self._name = str(command.name)
        self._ctx = ctx
        self._outputs = outputs
        self._is_named = is_named
        folder = Path(os.path.expanduser(file.name)).absolute().parent
        self._variables = Variables(os.environ, outputs or CommandOutputs(), folder)
        table = file.tables.get(self._name, {})
        known = options_of(command)
        for key, raw in table.items() if isinstance(table, dict) else ():
            path = (self._name, key)
            if key not in known:
                close = did_you_mean(key.replace("_", "-"), known)
                self._wrong(path, f"{self._name} has no option {key[:80]!r}{close}", key=True)
                continue
            value = self._converted(known[key], raw, path)
            place = file.where(path, key=True).rpartition(":")[0]
            self.found[known[key].name or ""] = Setting(raw, place, value)

    def __repr__(self) -> str:
        return f"<CommandSettings of {self._name} in {self.file.name}: {', '.join(self.found)}>"

    def values(self) -> dict[str, Any]:
        """Returns the values of the options, by the names of the parameters."""
        return {name: each.value for name, each in self.found.items()}

    def _wrong(self, path: KeyPath, text: str, *, key: bool = False) -> None:
        self.problems.append(f"{self.file.where(path, key=key)}: {safe(text)}")

    def _converted(self, option: click.Option, raw: Any, path: KeyPath) -> Any:
        """Returns the value as the command line would have it; notes what is wrong with it."""
        before = len(self.problems)
        if option.is_flag:
            if not isinstance(raw, bool):
                self._wrong(path, f"{path[-1]} is true or false")
            return raw
        places = [path]
        value: Any = None
        if not option.multiple:
            value = self._scalar(option, raw, path)
        elif isinstance(raw, dict) and option.metavar in _PAIRS:
            separator = _PAIRS[option.metavar]
            pairs = list(_flat(raw, path))
            value = [f"{name}{separator}{self._pair_value(each, inner)}" for name, each, inner in pairs]
            places = [inner for _, _, inner in pairs]
        else:
            several = raw if isinstance(raw, list) else [raw]
            places = [(*path, at) for at in range(len(several))]
            value = [self._scalar(option, each, place) for each, place in zip(several, places, strict=True)]
        if len(self.problems) == before and (self._outputs is not None or not list(_commands(raw))):
            self._check(option, value, raw, places)
        return value

    def _check(self, option: click.Option, value: Any, raw: Any, places: Sequence[KeyPath]) -> None:
        """Has each value of an option judged by the option itself."""
        name = name_of(option)
        for each, place in zip(value if option.multiple else [value], places, strict=True):
            try:
                option.process_value(self._ctx, (each,) if option.multiple else each)
            except click.UsageError as error:
                # The text may show what the variables stand for.
                hidden = f"{name}: it does not fit once its variables have their values"
                self._wrong(place, hidden if "${" in str(raw) else f"{name}: {error.message}")

    def _pair_value(self, raw: Any, path: KeyPath) -> str:
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            self._wrong(path, f"{path[-1]} is a text or a number")
            return ""
        return self._expanded(raw, path) if isinstance(raw, str) else str(raw)

    def _scalar(self, option: click.Option, raw: Any, path: KeyPath) -> Any:
        if isinstance(raw, str):
            return self._expanded(raw, path)
        is_whole = isinstance(option.type, type(click.INT))
        is_number = is_whole or isinstance(option.type, type(click.FLOAT))
        fits = isinstance(raw, int if is_whole else (int, float)) and not isinstance(raw, bool)
        if not is_number or not fits:
            wanted = (
                "a whole number" if is_whole else "a number" if is_number else "a text, in quotation marks"
            )
            several = f", or a list of such{_table_too(option)}" if option.multiple else ""
            self._wrong(path, f"{path[1]} is {wanted}{several}")
        return raw

    def _expanded(self, text: str, path: KeyPath) -> str:
        if commands_in(text):
            if not self._is_named:
                self._wrong(
                    path,
                    f"a file that was found in a folder runs no command: name it, by --settings {self.file.name}",
                )
                return text
            if self._outputs is None:
                return text
        try:
            return self._variables.expand(text)
        except NotExpanded as problem:
            self._wrong(path, str(problem))
            return text


# The forms of options whose values are pairs, which may be a table, with what comes between the two.
_PAIRS = {"NAME=VALUE": "=", "NAME:VALUE": ": "}


def _flat(table: Mapping[str, Any], path: KeyPath, before: str = "") -> Iterator[tuple[str, Any, KeyPath]]:
    """Returns the entries of a table and of those in it, whose names have the keys on the way with a full stop."""
    for key, value in table.items():
        name, inner = f"{before}{key}", (*path, key)
        if isinstance(value, dict):
            yield from _flat(value, inner, f"{name}.")
        else:
            yield name, value, inner


def _table_too(option: click.Option) -> str:
    return ", or a table" if option.metavar in _PAIRS else ""


def _commands(raw: Any) -> Iterator[str]:
    """Returns the commands in all texts of a value."""
    several: Any = raw if isinstance(raw, list) else [raw]
    if isinstance(raw, dict):
        several = (value for _, value, _ in _flat(raw, ()))
    for each in several:
        if isinstance(each, str):
            yield from commands_in(each)


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Returns the options of a command that a file may have, by their names there."""
    options = (each for each in command.params if isinstance(each, click.Option) and each.expose_value)
    return {name_of(each): each for each in options}


def name_of(option: click.Option) -> str:
    """Returns the name that an option has in a file."""
    return next(each for each in option.opts if each.startswith("--")).removeprefix("--")


def settings_of(
    command: click.Command, ctx: click.Context, files: Sequence[str], *, is_named: bool, runs: bool = True
) -> CommandSettings | None:
    """Returns the settings of a command in the first of some files that has any.

    Args:
        command: The command.
        ctx: Its context.
        files: The files.
        is_named: Whether a person has named the file.
        runs: Whether the commands in its values are run.

    Raises:
        WrongUsage: The file cannot be read, is not TOML, or something in the table of this command is wrong.
    """
    for name in files:
        file = SettingsFile.read(name)
        if file is not None:
            outputs = CommandOutputs() if runs else None
            settings = CommandSettings(file, command, ctx, outputs, is_named=is_named)
            problems = [*file.wrong_tables(), *settings.problems]
            if problems:
                raise WrongUsage("\n".join(problems))
            if runs and not is_named:
                echo(f"mcp-actors: settings of {name}", err=True)
            return settings
    if is_named:
        raise WrongUsage(f"{files[0]} has no table [{'.'.join(_OWN_TABLE)}]")
    return None


# -- ``mcp-actors config`` -----------------------------------------------------------------------------


@click.group("config", short_help="Check and show settings.")
def command() -> None:
    """Check a file of settings, and show what is in force for a command.

    \b
    mcp-actors config check
    mcp-actors config show serve weather.py --workers 4
    mcp-actors config api-key ann >> keys
    """


@command.command("check", short_help="Say what is wrong with a file of settings.")
@click.argument("file", required=False)
@traceback_option
def check_command(file: str | None, show_traceback: bool) -> None:
    """Check a file of settings: its tables, options and values, and whether its variables are set.

    FILE is mcp-actors.toml or pyproject.toml of the working directory by default. Each problem is a line, with the line
    and column of the mistake, and the exit code is 2 then. No command of the file is run.
    """
    with reported(show_traceback):
        read = _first_file([file] if file is not None else _settings_here(), is_named=file is not None)
        problems, counts = list(read.wrong_tables()), []
        for name in CONFIGURABLE:
            if isinstance(read.tables.get(name), dict):
                checked = command_of(name)
                context = click.Context(checked, info_name=name)
                settings = CommandSettings(read, checked, context, None, is_named=True)
                problems += settings.problems
                counts.append(f"{name} {len(settings.found)}")
        if problems:
            raise WrongUsage("\n".join(problems))
        echo(f"{read.name} is right; settings: {', '.join(counts) or 'none'}")


def _settings_here() -> list[str]:
    return [name for name in ("mcp-actors.toml", _PYPROJECT) if os.path.isfile(name)]


def _first_file(files: Sequence[str], *, is_named: bool) -> SettingsFile:
    found = next(filter(None, map(SettingsFile.read, files)), None)
    if found is None:
        table = ".".join(_OWN_TABLE)
        where = f"{files[0]} has no table [{table}]"
        here = f"there is neither mcp-actors.toml nor pyproject.toml with a table [{table}] in {os.getcwd()}"
        raise WrongUsage(where if is_named else here)
    return found


@command.command("api-key", short_help="Make a key for --api-keys.")
@click.argument("subject")
@click.option("--scope", metavar="SCOPE", multiple=True, help="What the key is for; may be repeated.")
@traceback_option
def api_key_command(subject: str, scope: tuple[str, ...], show_traceback: bool) -> None:
    """Make a key for a caller: its line for the file of --api-keys on stdout, and the key itself, once, on stderr.

    \b
    mcp-actors config api-key ann --scope mcp:read >> keys
    """
    with reported(show_traceback):
        try:
            key, line = new_key(subject, [word for each in scope for word in each.split()])
        except ValueError as error:
            raise WrongUsage(str(error)) from error
        echo(line)
        echo(
            f"the key of {subject}, which is shown once; it is sent as Authorization: Bearer KEY:\n{key}",
            err=True,
        )


@command.command(
    "show",
    short_help="Show what is in force, and where it comes from.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("name", metavar="COMMAND", type=click.Choice(CONFIGURABLE))
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@traceback_option
def show_command(name: str, words: tuple[str, ...], show_traceback: bool) -> None:
    """Show the value of each option of a command, and where it comes from.

    COMMAND is serve, gateway, bridge, from-openapi, rest or bench; WORDS are what would be written behind it. What is
    shown is TOML, and the origin of each value is its comment: option, the variable of the environment, FILE:LINE or
    default. Secrets are masked, variables of a file are shown by their names, and no command of it is run.
    """
    with reported(show_traceback):
        shown: Any = command_of(name)
        with click.Context(shown, info_name=name, **shown.context_settings) as context:
            given, _, _ = shown.make_parser(context).parse_args(list(words))
            settings = shown.read_settings(context, given, runs=False)
            configured = _configured(given.get("config"))
            lines = [_line(each, context, given, settings, configured) for each in options_of(shown).values()]
        width = min(max(len(left) for left, _ in lines), _WIDEST)
        echo(f"[{name}]")
        for left, origin in lines:
            echo(f"{left.ljust(width)}  # {origin}")


# Characters of a line before its comment, where that is in one column.
_WIDEST = 60
# The end of a help text, where that says what counts without the option.
_USUAL = re.compile(r"default: ([^\]]+?)\.?\]?$", re.IGNORECASE)
# A password that is not escaped may have any character; what begins with a port has none.
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*):(?!\d+[/?#])[^\s@]*@")
_SECRET_QUERY = re.compile(r"([?&][^=&\s]*(?:password|secret|token|key)[^=&\s]*=)[^&\s]*", re.IGNORECASE)


def _configured(config: object) -> dict[str, tuple[Any, str]]:
    """Returns what the configuration of a gateway has for its options, each with the name of the file."""
    if not isinstance(config, str) or not os.path.isfile(os.path.expanduser(config)):
        return {}
    section = read_server_entries(config, leaves_out=True).gateway
    found = {"listen": section.listen, "name": section.name}
    return {parameter: (value, config) for parameter, value in found.items() if value}


def _line(
    option: click.Option,
    context: click.Context,
    given: Mapping[str, Any],
    settings: CommandSettings | None,
    configured: Mapping[str, tuple[Any, str]],
) -> tuple[str, str]:
    """Returns the line of one option, and its origin."""
    name, parameter = name_of(option), option.name or ""
    value, source = option.consume_value(context, given)
    origin = "default"
    if source is click.core.ParameterSource.DEFAULT and parameter in configured:
        value, origin = configured[parameter]
    elif source is click.core.ParameterSource.DEFAULT:
        # Releases of click differ in what they have for an option without a default.
        if not isinstance(value, bool | int | float | str):
            # What counts then is decided where it is used, and the help says it.
            usual = _USUAL.search(option.help or "")
            return f"# {name}", f"not set; by default {usual[1]}" if usual else "not set"
    elif source is click.core.ParameterSource.DEFAULT_MAP and settings is not None:
        value, origin = settings.found[parameter].raw, settings.found[parameter].place
    else:
        read = option.process_value(context, value)
        # The words of a command line are texts, also where they are numbers.
        value = read if isinstance(read, bool | int | float) else value
        is_option = source is click.core.ParameterSource.COMMANDLINE
        origin = f"option --{name}" if is_option else f"environment {option.envvar}"
    return f"{name} = {_literal(_masked(option, value))}", origin


def _masked(option: click.Option, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked(option, each) if not _is_secret(option) else MASK for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(option, each) for each in value]
    if not isinstance(value, str):
        return value
    if _is_secret(option):
        name, separator, _ = value.partition(":")
        return f"{name}: {MASK}" if separator else MASK
    return _SECRET_QUERY.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", value))


def _is_secret(option: click.Option) -> bool:
    return getattr(option, "is_secret", False)


def _literal(value: Any) -> str:
    """Returns a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        pairs = (
            f"{json.dumps(str(key), ensure_ascii=False)} = {_literal(each)}" for key, each in value.items()
        )
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return str(value) if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)
