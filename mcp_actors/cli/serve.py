"""``mcp-actors serve``: serves a target, and imports nothing that draws."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from mcp_actors import Server
from mcp_actors.abc import SharedState
from mcp_actors.cli.connection_options import CommandWithSections
from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.serve_options import (
    STDIO,
    Announcement,
    ServeOptions,
    admin_transport,
    offer,
    options_of,
    require_fitting,
    routes_beside,
    sections_of,
    serves_stdio_alone,
    serving_transports,
    set_ending,
)
from mcp_actors.cli.target import load_server
from mcp_actors.supervision.platform import join_words

__all__ = ["command"]

# The variable that makes this process a worker: see `mcp_actors.cli.workers.worker`, which only workers import.
_ASSIGNMENT = "MCP_ACTORS_WORKER"


@click.command("serve", cls=CommandWithSections, sections=sections_of("serve"), short_help="Serve a Server.")
@click.argument("target")
@options_of("serve")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@traceback_option
def command(target: str, args: tuple[str, ...], show_traceback: bool, **given: Any) -> None:
    """Serve a Server from a file or a module.

    \b
    TARGET  path.py or package.module, then optionally :attribute,
            which is a Server or a function that makes one from ARGS.
            Without :attribute: `server`, else the only Server of the
            module, else the function `make_server` or `main`.
    ARGS    strings for that function; put -- before them if one starts with -

    \b
    mcp-actors serve weather.py
    mcp-actors serve mcp_actors.examples.sqlite -- shop.db
    mcp-actors serve weather.py:server --listen http://127.0.0.1:8000/mcp
    mcp-actors serve weather.py --listen http://0.0.0.0:8000/mcp --allow-host example.org
    mcp-actors serve weather.py --listen http://127.0.0.1:8000/mcp --resource http://127.0.0.1:8000/mcp \\
        --issuer https://login.example.org
    mcp-actors serve weather.py --listen http://127.0.0.1:8000/mcp --workers 4 --shared sqlite:///var/tasks.db

    Ends on SIGINT and SIGTERM, and when every address has ended by itself (stdio: at end of input). Exit code 0 for
    these, 1 if the target cannot be imported or an address cannot be served, 2 if the target does not exist.
    """
    options = ServeOptions(**given)
    require_fitting(options)
    if options.reload:
        # Compiled files record a change to the second only: of two within one second they would keep the first.
        sys.dont_write_bytecode = True
    worker = _employment()
    with _told(worker), reported(show_traceback):
        if options.workers is not None and worker is None:
            _serve_with_workers(options, options.workers)
            return
        server = _loaded(target, args, options)
        set_ending(server, options)
        companions = _companions(options, worker)
        routes = routes_beside(server, options, None if worker is None else worker.number)
        if serves_stdio_alone(options):
            terminal = sys.stdin.isatty() and sys.stderr.isatty()
            hint = _stdio_hint(server, target, args) if terminal else ""
            server.run(STDIO, *companions, task_status=Announcement((), hint))
            return
        several = worker is not None and worker.of > 1
        if several:
            state = importlib.import_module("mcp_actors.cli.workers.serving")
            server.shared = state.StateOfSeveral(server)
        transports = serving_transports(options, routes, several=several)
        hint = f"{offer(server)}; Ctrl-C stops, a second one at once" if sys.stderr.isatty() else ""
        status = (
            Announcement(options.listen, hint) if worker is None else worker.status(server, offer(server))
        )
        server.run(*transports, *companions, task_status=status)


def _serve_with_workers(options: ServeOptions, count: int) -> None:
    words = _words(click.get_current_context())
    serving = importlib.import_module("mcp_actors.cli.workers.serving")
    view = None if options.admin is None else admin_transport(options.admin)
    serving.serve_with_workers(
        words, options.listen, count, lambda ready: _announce(options.listen, ready), view
    )


def _companions(options: ServeOptions, worker: Any) -> list[Any]:
    """Returns what shows the server to operators, or to the supervisor of this worker."""
    if options.admin is None:
        return []
    return [admin_transport(options.admin) if worker is None else worker.view()]


def _stdio_hint(server: Server, target: str, args: Sequence[str]) -> str:
    """Returns the hint for a person who has started a server that waits for a program."""
    words = join_words(["mcp-actors", "serve", target, *(["--", *args] if args else [])])
    at_url = join_words(["mcp-actors", "serve", target, "--listen", "http://127.0.0.1:8000/mcp"])
    return (
        f"{offer(server)}; it waits for a client's messages on standard input, Ctrl-C stops\n"
        f"to look at it:         mcp-actors list {join_words([f'stdio:{words}'])}\n"
        f"to serve it at a URL:  {at_url}{' -- ' + join_words(args) if args else ''}"
    )


def _employment() -> Any:
    """Returns this process's place among the workers of a supervisor; only a worker imports what that takes."""
    if _ASSIGNMENT not in os.environ:
        return None
    return importlib.import_module("mcp_actors.cli.workers.worker").employment()


@contextmanager
def _told(worker: Any) -> Iterator[None]:
    """Reports what the block raises to the supervisor of a worker."""
    try:
        yield
    except click.ClickException as error:
        if worker is None:
            raise
        worker.failed(error.format_message(), error.exit_code)
        raise click.exceptions.Exit(error.exit_code) from None


def _loaded(target: str, args: Sequence[str], options: ServeOptions) -> Server:
    """Returns the server of TARGET; with ``--reload`` one that follows the changes of its files."""
    server = load_server(target, args)
    if options.shared is not None:
        server.shared = _shared_state(options.shared)
    if options.reload:
        # Imported where it is used: most servers are not reloaded.
        reload = importlib.import_module("mcp_actors.cli.reload")
        server = reload.Reloading(target, args, server, options.reload_dir, offer).server
    return server


def _words(context: click.Context) -> list[str]:
    """Returns the words of the command line again, for another process."""
    words = ["serve"]
    behind: list[str] = []
    for each in context.command.params:
        given = context.params.get(each.name or "")
        several = given if isinstance(given, tuple) else () if given is None else (given,)
        if isinstance(each, click.Argument):
            behind += several
        elif isinstance(given, bool):
            words += each.opts[:1] if given else []
        else:
            words += [word for value in several for word in (each.opts[0], str(value))]
    return [*words, "--", *behind]


def _announce(listen: Sequence[str], ready: Any) -> None:
    hint = f"{ready.offer}; Ctrl-C stops, a second one at once" if sys.stderr.isatty() else ""
    Announcement(listen, hint).started(ready.places)


def _shared_state(url: str) -> SharedState:
    make = importlib.import_module("mcp_actors.shared").shared_state
    try:
        state: SharedState = make(url)
    except (ValueError, ImportError) as error:
        raise WrongUsage(str(error)) from error
    return state
