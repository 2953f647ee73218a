"""The table of the commands. The one that is run is imported, so that ``serve`` does not import the parts that draw.

`_COMMANDS` says where each command is: `serve`, `gateway` (with ``bridge``), `record` (with ``mock``), `from_openapi`,
`listing`, `call` (with ``read`` and ``prompt``), `tasks`, `settings` (``config``), `docs`, `lock`, `diff`, `card` and
`login` (with ``logout`` and ``whoami``) are files; `bench`, `demo`, `inspect`, `install`, `rest` and `top` are folders,
and so is what two options of ``serve`` do: `reload` and `workers`. `catalog` is for clients of a domain.

The commands share `target` (TARGET -> Server), `client_session` (URL -> Client, Ctrl-C), `connection_options`,
`arguments` (``key=text``), `output` (results -> text or JSON), `progress` (the bar), `failures` (exceptions -> one line
and an exit code), `serve_options` (the options of what serves) and `observing` (telemetry).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import click

from mcp_actors.cli.failures import EXIT_CODES, EXIT_INTERRUPTED, CommandFailure, FailureAsJson
from mcp_actors.cli.output import echo
from mcp_actors.cli.start import Start
from mcp_actors.supervision.arguments import did_you_mean
from mcp_actors.supervision.platform import write_utf8

__all__ = ["command_names", "command_of", "package_version", "run"]

_EPILOG = """\b
URL     stdio:COMMAND ARG...   one shell word, for example 'stdio:python server.py'
        or any scheme that an installed binding serves
Exit codes
{}Colours appear on terminals only; NO_COLOR=1 turns them off.
""".format("".join(f"  {code:<5} {text}\n" for code, text in EXIT_CODES.items()))

# The words of other SDKs for what we have under another name.
_MEANT = {
    "connect": "list",
    "dev": "serve --reload",
    "inspector": "inspect",
    "proxy": "gateway",
    "run": "serve",
    "start": "serve",
    "test": "inspect",
    "tools": "list",
    "version": "--version",
}

# name -> (module, the name of the command there, short help). The help is here so that `--help` imports nothing.
# First those for authors and operators of servers, then those of clients, then logins.
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("demo.demo", "command", "Show what the engine can do, then under what load."),
    "serve": ("serve", "command", "Serve a Server from a file or a module, over stdio or at URLs."),
    "gateway": ("gateway", "command", "Serve the servers of a configuration as one."),
    "from-openapi": ("from_openapi", "command", "Serve an API that an OpenAPI document describes."),
    "rest": ("rest", "command", "Serve any server as a REST API, with a page to try it."),
    "bridge": ("gateway", "bridge_command", "Serve a server at another address, over another binding."),
    "record": ("record", "command", "Serve a server at another address, and record what is said."),
    "mock": ("record", "mock_command", "Serve a recording, as the server that was recorded."),
    "top": ("top", "command", "Show what runs in a server, live; end calls and sessions."),
    "install": (
        "install.install",
        "command",
        "Put a server into the settings of Claude, VS Code, Cursor, ...",
    ),
    "uninstall": ("install.install", "uninstall_command", "Take it out again."),
    "inspect": ("inspect.inspect", "command", "Say what a server is, what it violates, and how fast it is."),
    "lock": ("lock", "command", "Write down what servers offer, and find what has changed."),
    "diff": ("diff", "command", "Make the calls of a recording at another server, and compare."),
    "card": ("card", "command", "Print or check the card of a server, or its server.json."),
    "bench": ("bench.bench", "command", "Put a load on a server: throughput, latencies, limits for CI."),
    "config": (
        "settings",
        "command",
        "Check settings, show what is in force, make API keys.",
    ),
    "docs": ("docs", "command", "Find a page of the documentation, without a network."),
    "list": ("listing", "command", "Show the tools, resources, prompts and era of a server."),
    "call": ("call", "command", "Call a tool, with a live progress bar; Ctrl-C cancels it."),
    "read": ("call", "read_command", "Read a resource; text and bytes go to stdout as they are."),
    "prompt": ("call", "prompt_command", "Get a prompt with its arguments filled in."),
    "tasks": ("tasks", "command", "List the tasks at a server; get, wait for or cancel one."),
    "login": ("login", "command", "Log in to a server that asks for it: a browser opens, once."),
    "logout": ("login", "logout_command", "Forget the login at a server."),
    "whoami": ("login", "whoami_command", "Show the login that is stored for a server."),
}


def command_names() -> list[str]:
    """The names of the commands, in the order of ``mcp-actors --help``."""
    return list(_COMMANDS)


def command_of(name: str) -> click.Command:
    """Imports a command and returns it."""
    module, attribute, _ = _COMMANDS[name]
    command = getattr(importlib.import_module(f"mcp_actors.cli.{module}"), attribute)
    assert isinstance(command, click.Command)
    return command


# The key under which the context has the words of the command line.
_WORDS = "mcp_actors.command line"


def _wants_json(words: Sequence[str]) -> bool:
    """Returns whether a command line asks for JSON on stdout; bench has another ``--json``, which names a file."""
    if not words or words[0] not in _COMMANDS or "--json" not in words:
        return False
    options = (each for each in command_of(words[0]).params if isinstance(each, click.Option))
    return any(each.is_flag and "--json" in each.opts for each in options)


class _Interrupted(CommandFailure):
    """A signal has ended a command that did not catch it itself."""

    exit_code = EXIT_INTERRUPTED


def _interrupted(start: Start | None) -> Exception:
    if start is not None and not start.exit_code:
        return click.exceptions.Exit(0)
    return _Interrupted("interrupted")


class _CommandTable(click.Group):
    """A group that imports a command when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return command_of(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            meant = _MEANT.get(name)
            close = f"; write mcp-actors {meant}" if meant else did_you_mean(name, _COMMANDS)
            ctx.fail(f"there is no command {name!r}{close}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return self._invoke(ctx)
        except click.ClickException as failure:
            if _wants_json(ctx.meta[_WORDS]):
                raise FailureAsJson(failure) from failure
            raise

    def _invoke(self, ctx: click.Context) -> object:
        start = ctx.obj
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _interrupted(start) from None
        except BaseException:
            # Some libraries make another exception of what the signal has raised.
            if start is not None and start.stopped:
                raise _interrupted(start) from None
            raise
        finally:
            if start is not None:
                start.ended()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (*_, text) in _COMMANDS.items()])


def package_version() -> str | None:
    """Returns the version of this package; ``None`` in a checkout that is not installed."""
    try:
        return version("mcp-actors")
    except PackageNotFoundError:
        return None


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    found = package_version()
    echo(f"mcp-actors{f' {found}' if found else ', run from a checkout that is not installed'}")
    ctx.exit()


@click.group(cls=_CommandTable, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it."
)
@click.pass_context
def _group(ctx: click.Context) -> None:
    """Serve, inspect and call Model Context Protocol servers of every revision."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def run(words: Sequence[str] | None, start: Start | None) -> None:
    """Runs a command line and exits.

    Args:
        words: The words after the name of the program; ``None`` for those of the process.
        start: What the signals do until the command catches them; ``None`` where they belong to another program.
    """
    if sys.platform == "win32":
        write_utf8()
    _group.main(words, prog_name="mcp-actors", obj=start)
