"""Connection options shared by all client commands, headers among them, and the kinds of commands that have options.

`CommandWithSections` has headings in its help, and `ConfigurableCommand` takes its options from the environment and
from a file of settings too.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import click

__all__ = [
    "BENCH",
    "HTTP_SCHEMES",
    "SETTINGS_VARIABLE",
    "WORDS",
    "WORKER_SETTINGS",
    "CommandWithSections",
    "ConfigurableCommand",
    "ConnectionOptions",
    "SecretOption",
    "Section",
    "TextWithBlanks",
    "bearer_from_environment",
    "client_options",
    "configuration_or_client_options",
    "given_headers",
    "inspection_options",
    "lock_option",
    "takes_headers",
    "upstream_options",
]


# -- Options under headings in the help of a command ---------------------------------------------------


@attrs.frozen
class Section:
    """Options that belong together.

    Args:
        title: The heading.
        options: The options by their names, in the order of the help.
        remark: A paragraph behind them, or nothing.
    """

    title: str
    options: Sequence[str]
    remark: str = ""


# The options of other SDKs for where to serve.
_OF_OTHERS = {
    "--host": "--listen http://HOST:8000/mcp",
    "--path": "--listen http://127.0.0.1:8000/PATH",
    "--port": "--listen http://127.0.0.1:PORT/mcp",
    "--transport": "--listen http://127.0.0.1:8000/mcp, or nothing for standard input and output",
}


class CommandWithSections(click.Command):
    """A command with headings in its help; an option that no section names comes at the end, with ``--help``.

    Args:
        sections: In the order of the help.
    """

    def __init__(self, *words: Any, sections: Sequence[Section] = (), **settings: Any) -> None:
        super().__init__(*words, **settings)
        self._sections = sections

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = _OF_OTHERS.get(error.option_name) if "--listen" in self._named else None
            if meant is None:
                raise
            raise click.UsageError(f"there is no {error.option_name}: write {meant}", ctx) from None

    @property
    def _named(self) -> set[str]:
        return {name for each in self.params for name in each.opts}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        left = {each.opts[0]: record for each in options if (record := each.get_help_record(ctx))}
        for section in self._sections:
            with formatter.section(section.title):
                formatter.write_dl([left.pop(name) for name in section.options])
                if section.remark:
                    formatter.write_paragraph()
                    formatter.write_text(section.remark)
        with formatter.section("Help"):
            formatter.write_dl(list(left.values()))


# -- Options that come from the environment and from a file of settings as well -------------------------

SETTINGS_VARIABLE = "MCP_ACTORS_SETTINGS"
"""The environment variable that names the file of settings, as ``--settings`` does."""
WORKER_SETTINGS = "MCP_ACTORS_WORKER_SETTINGS"
"""The environment variable in which a worker gets the settings that its supervisor has read, as JSON. They are not on
its command line, which every user of the machine can read."""
WORDS = "mcp_actors.words"
"""The key under which the context of a command has the words of its command line."""
# The name that means no file.
_NO_FILE = "none"
# The files of settings, in the order in which they are looked for.
_SETTINGS_FILES = ("mcp-actors.toml", "pyproject.toml")


class SecretOption(click.Option):
    """An option whose values are secrets, as those of ``--header`` may be: they are shown masked."""

    is_secret = True


class TextWithBlanks(click.types.StringParamType):
    """The values of an option that may have blanks, as headers do: in the environment each is a line."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [line for line in rv.splitlines() if line.strip()]


class ConfigurableCommand(CommandWithSections):
    """A command whose options have values in the environment and in a file of settings, too.

    An option on the command line takes precedence over ``MCP_ACTORS_COMMAND_OPTION`` of the environment, that over the
    file, and that over the default. The file is that of ``--settings``, or ``mcp-actors.toml``, or ``pyproject.toml``
    with a table of ours.

    Args:
        beside: The parameter that names a file which the command runs, or whose programs it runs: settings are looked
            for in the folder of that file, which decides what happens in any case. By default, and where it is no
            path, they are looked for in the working directory.
    """

    def __init__(
        self,
        name: str,
        *words: Any,
        beside: str | None = None,
        sections: Sequence[Section] = (),
        **settings: Any,
    ) -> None:
        prefix = f"MCP_ACTORS_{name.upper().replace('-', '_')}_"
        remark = (
            f"Each option has a key in the table [{name}] of the file, and is {prefix}OPTION in the environment. See "
            "mcp-actors config."
        )
        section = Section("Settings", ["--settings"], remark)
        super().__init__(name, *words, sections=[*sections, section], **settings)
        self._beside = beside
        for each in self.params:
            if isinstance(each, click.Option) and each.expose_value:
                option = next(opt for opt in each.opts if opt.startswith("--"))
                each.envvar = prefix + option[2:].replace("-", "_").upper()
        self.params.append(
            click.Option(
                ["--settings"],
                metavar="FILE",
                envvar=SETTINGS_VARIABLE,
                expose_value=False,
                help="The file of settings; none for none. Default: mcp-actors.toml, or pyproject.toml.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        asks_for_help = self.get_help_option(ctx)
        try:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
        except click.UsageError:
            pass  # it is raised again below
        else:
            # Help is shown whatever is wrong with a file.
            if asks_for_help is None or not given.get(asks_for_help.name):
                self.read_settings(ctx, given)
        return super().parse_args(ctx, args)

    def read_settings(self, ctx: click.Context, given: Mapping[str, Any], *, runs: bool = True) -> Any:
        """Makes the values of the file of settings, if there is one, defaults of the options.

        Args:
            ctx: The context of this command.
            given: What the command line has, by parameters.
            runs: Whether the commands in its values are run.

        Returns:
            The `mcp_actors.cli.settings.CommandSettings`; ``None`` without a file.

        Raises:
            click.ClickException: The file cannot be read or is malformed.
        """
        inherited = os.environ.pop(WORKER_SETTINGS, None)
        if inherited is not None:
            ctx.default_map = json.loads(inherited)
            return None
        named = given.get("settings") or os.environ.get(SETTINGS_VARIABLE)
        place = given.get(self._beside or "")
        folder = os.path.dirname(os.path.expanduser(place)) if isinstance(place, str) else ""
        places = (os.path.join(folder, name) for name in _SETTINGS_FILES)
        found = [named] if named else [place for place in places if os.path.isfile(place)]
        if not found or named == _NO_FILE:
            return None
        # Few programs have settings, and reading them takes a module of its own.
        module = importlib.import_module("mcp_actors.cli.settings")
        settings = module.settings_of(self, ctx, found, is_named=bool(named), runs=runs)
        if settings is not None:
            ctx.default_map = settings.values()
        return settings


BENCH = (
    Section(
        "The load",
        [
            "--window",
            "--rate",
            "--ramp",
            "--sessions",
            "--duration",
            "--calls",
            "--warm-up",
            "--cancel",
            "--calls-file",
        ],
    ),
    Section("The figures", ["--json", "--html", "--fail-if", "--compare"]),
    Section("The server", ["--era", "--timeout", "--cap", "--header", "--bearer-env"]),
)


_F = TypeVar("_F", bound=Callable[..., Any])


@attrs.frozen
class ConnectionOptions:
    """The server that a command talks to and how long it waits: the options that `client_options` adds to it."""

    url: str
    era: str
    timeout: float
    cap: float
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)


_SILENCE = "Seconds without answer or progress."
_IN_ALL = "Seconds for a call in all, progress or not."


def client_options(function: _F) -> Callable[..., Any]:
    """Adds ``URL``, ``--era``, ``--timeout``, ``--cap``, ``--header`` and ``--bearer-env`` to a command.

    The command gets them as ``connection``.
    """
    return _with_era(function, _clocks(30.0, 300.0, _SILENCE, _IN_ALL))


def upstream_options(function: _F) -> Callable[..., Any]:
    """Adds the same, with longer timeouts, for a command whose clients have timeouts of their own: see `Upstream`."""
    return _with_era(function, _clocks(300.0, 3600.0, _SILENCE, _IN_ALL))


def _with_era(
    function: _F, clocks: Sequence[Callable[..., Any]], check: Callable[..., str] | None = None
) -> Callable[..., Any]:
    era = click.option(
        "--era",
        default="auto",
        show_default=True,
        metavar="ERA",
        help="auto, legacy, modern, or a revision to insist on.",
    )
    return era(_with_connection(function, clocks, check or _checked_url))


def lock_option(function: _F) -> _F:
    """Adds ``--lock`` to a command, which gets it as ``lock``."""
    return click.option(
        "--lock",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Compare with what mcp-actors lock has written; exit with 4 if something is different.",
    )(function)


def configuration_or_client_options(function: _F) -> Callable[..., Any]:
    """Adds the same as `client_options`, for a command whose ``URL`` may be a configuration of servers, too."""
    return _with_era(function, _clocks(30.0, 300.0, _SILENCE, _IN_ALL), _checked_url_or_file)


def inspection_options(function: _F) -> Callable[..., Any]:
    """Adds what `client_options` adds, but ``--era``: an inspection looks at every era, and has other timeouts."""
    clocks = _clocks(10.0, 300.0, "Seconds for one answer, 10 at most.", "Seconds for all of it.")
    return _with_connection(function, clocks, _checked_url)


def _clocks(timeout: float, cap: float, timeout_help: str, cap_help: str) -> Sequence[Callable[..., Any]]:
    return (
        click.option("--cap", type=float, default=cap, show_default=True, help=cap_help),
        click.option("--timeout", type=float, default=timeout, show_default=True, help=timeout_help),
    )


def _with_connection(
    function: _F, clocks: Sequence[Callable[..., Any]], check: Callable[..., str]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_connection(
        url: str,
        timeout: float,
        cap: float,
        header: tuple[str, ...],
        bearer_env: str | None,
        era: str = "auto",
        **words: Any,
    ) -> Any:
        headers = _headers(url, header, bearer_env)
        return function(connection=ConnectionOptions(url, era, timeout, cap, headers), **words)

    command: Callable[..., Any] = with_connection
    for option in (
        click.option(
            "--bearer-env",
            metavar="VAR",
            help="The environment variable that holds a token for the server.",
        ),
        click.option(
            "--header",
            cls=SecretOption,
            type=TextWithBlanks(),
            metavar="NAME:VALUE",
            multiple=True,
            help="A header of every request (http, https, ws, wss); may be repeated.",
        ),
        *clocks,
        click.argument("url", callback=check),
    ):
        command = option(command)
    return command


def _checked_url(_ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    if url == "stdio:":
        raise click.UsageError("stdio: needs the command that starts the server: 'stdio:python server.py'")
    if ":" not in url:
        meant = "'stdio:COMMAND ARG...'"
        if " " in url.strip():
            meant = f"'stdio:{url.strip()}'"
        elif url.endswith(".py"):
            meant = f"'stdio:python {url}'"
        raise click.UsageError(f"{url!r} is no URL: write {meant} as one word, or scheme://...")
    return url


def _checked_url_or_file(ctx: click.Context, parameter: click.Parameter, url: str) -> str:
    return url if os.path.isfile(os.path.expanduser(url)) else _checked_url(ctx, parameter, url)


def _headers(url: str, words: Sequence[str], bearer_env: str | None) -> dict[str, str]:
    """Returns the headers that a person gave for the requests to ``url``."""
    headers = given_headers(words)
    if bearer_env is not None:
        if "authorization" in map(str.lower, headers):
            raise click.UsageError("--bearer-env and --header Authorization exclude each other")
        headers["Authorization"] = f"Bearer {bearer_from_environment(bearer_env)}"
    if headers and not takes_headers(url):
        raise click.UsageError("--header and --bearer-env are for http, https, ws and wss URLs")
    return headers


# -- ``--header`` and ``--bearer-env`` -----------------------------------------------------------------
#
# No error shows a value, for it may be a secret.

# Bindings whose requests, or whose opening, have headers.
HTTP_SCHEMES = frozenset({"http", "https", "http+unix", "ws", "wss"})

# RFC 9110 sections 5.1 and 5.5; servers disagree about characters that are not ASCII.
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
# The characters of RFC 6750 section 2.1, and those of the keys that servers make up themselves.
_TOKEN = re.compile(r"[\x21-\x7e]+")


def takes_headers(url: str) -> bool:
    """Returns whether requests to ``url`` have headers."""
    return url.partition(":")[0].lower() in HTTP_SCHEMES


def given_headers(words: Sequence[str]) -> dict[str, str]:
    """Parses each ``NAME:VALUE``; the space around a value is not part of it.

    Raises:
        click.UsageError: A word is nothing like that, or a name comes twice.
    """
    headers: dict[str, str] = {}
    for position, word in enumerate(words, 1):
        name, colon, value = word.partition(":")
        name, value = name.strip(), value.strip()
        if not colon:
            # The argument may be a secret whose name was forgotten.
            raise click.UsageError(f"--header number {position} has no colon: write --header NAME:VALUE")
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"--header number {position} has no usable name before its colon")
        if not _VALUE.fullmatch(value):
            raise click.UsageError(
                f"the value of --header {name} holds a line break or another character that no header can have"
            )
        if name.lower() in map(str.lower, headers):
            raise click.UsageError(f"--header {name} is given twice")
        headers[name] = value
    return headers


def bearer_from_environment(variable: str) -> str:
    """Returns the token that an environment variable holds.

    Raises:
        click.UsageError: The variable is not set or empty, or its value can be no token.
    """
    if variable not in os.environ:
        # The argument may be the token itself, given by mistake, so it is not shown.
        raise click.UsageError(
            "the environment variable that --bearer-env names is not set; it takes the name of a variable, not a token"
        )
    token = os.environ[variable].strip()
    if not token:
        raise click.UsageError(f"the environment variable {variable} is empty")
    if not _TOKEN.fullmatch(token):
        raise click.UsageError(f"the environment variable {variable} holds no token: one has no blanks in it")
    return token
