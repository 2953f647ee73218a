"""``mcp-actors serve``: serves a target, in this process or in workers, and imports nothing that draws.

The second half serves any server, and is that of ``gateway`` and ``bridge`` too.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import click

from mcp_actors import Server
from mcp_actors.cli.connection_options import WORDS, WORKER_SETTINGS, ConfigurableCommand
from mcp_actors.cli.failures import reported, traceback_option
from mcp_actors.cli.output import echo
from mcp_actors.cli.serve_options import (
    STDIO,
    ServeOptions,
    add_middleware,
    admin_transport,
    equip,
    offer,
    options_of,
    require_fitting,
    rest_application,
    routes_beside,
    sections_of,
    serving_transports,
    set_log,
)
from mcp_actors.cli.start import Start
from mcp_actors.cli.target import load_server
from mcp_actors.supervision.logging import write_line, writes_json
from mcp_actors.supervision.platform import join_words

__all__ = [
    "Announcement",
    "command",
    "employed",
    "join_service",
    "serve_here",
    "supervise_workers",
    "supervises",
]


@click.command(
    "serve",
    cls=ConfigurableCommand,
    sections=sections_of("serve"),
    beside="target",
    short_help="Serve a Server.",
)
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
    set_log(options)
    if options.reload:
        # Compiled files record a change to the second only: of two within one second they would keep the first.
        sys.dont_write_bytecode = True
    with employed() as worker, reported(show_traceback):
        if supervises(options, worker):
            supervise_workers("serve", options)
            return
        server = load_server(target, args)
        equip(server, options)
        if options.reload:
            # Imported where it is used: most servers are not reloaded.
            reload = importlib.import_module("mcp_actors.cli.reload")
            server = reload.Reloading(
                target, args, server, options.reload_dir, offer, lambda each: add_middleware(each, options)
            ).server
        serve_here(server, options, worker, offer(server), _stdio_hint(server, target, args))


def _stdio_hint(server: Server, target: str, args: Sequence[str]) -> str:
    """Returns the hint for a person who has started a server that waits for a program."""
    words = join_words(["mcp-actors", "serve", target, *(["--", *args] if args else [])])
    at_url = join_words(["mcp-actors", "serve", target, "--listen", "http://127.0.0.1:8000/mcp"])
    return (
        f"{offer(server)}; it waits for a client's messages on standard input, Ctrl-C stops\n"
        f"to look at it:         mcp-actors list {join_words([f'stdio:{words}'])}\n"
        f"to serve it at a URL:  {at_url}{' -- ' + join_words(args) if args else ''}"
    )


# -- A process that serves: ``gateway`` and ``bridge`` use this too ------------------------------------

# The variable that makes this process a worker: see `mcp_actors.cli.workers.worker`, which only workers import.
_ASSIGNMENT = "MCP_ACTORS_WORKER"


class Announcement:
    """A task status that says on stderr where the server is to be found, once it is there.

    Args:
        urls: The URLs that are served and have to be announced; none for standard input.
        hint: What a person on a terminal reads before.
        manager: A `mcp_actors.cli.systemd.ServiceNotifier`, if there is one.
    """

    def __init__(self, urls: Sequence[str], hint: str, manager: Any = None) -> None:
        self._urls = urls
        self._hint = hint
        self._manager = manager

    def started(self, places: Sequence[object] = ()) -> None:
        if self._hint and not writes_json():
            echo(self._hint, err=True)
        for url, place in zip(self._urls, places, strict=False):
            at = place if isinstance(place, str) and place != url else None
            if writes_json():
                write_line("serving", {"url": url, "at": at or url})
            else:
                echo(f"serving {url}{'' if at is None else f' at {at}'}", err=True)
        if self._manager is not None:
            self._manager.ready()


@contextmanager
def employed() -> Iterator[Any]:
    """Yields this process's place among the workers of a supervisor, ``None`` if it is not a worker.

    What the block raises is reported to the supervisor.
    """
    worker = None
    if _ASSIGNMENT in os.environ:
        # Only a worker imports what that takes.
        worker = importlib.import_module("mcp_actors.cli.workers.worker").employment()
    try:
        yield worker
    except click.ClickException as error:
        if worker is None:
            raise
        worker.failed(error.format_message(), error.exit_code)
        raise click.exceptions.Exit(error.exit_code) from None


def supervises(options: ServeOptions, worker: Any) -> bool:
    """Returns whether this process is to keep workers, and not to serve itself."""
    return options.workers is not None and worker is None


def supervise_workers(command: str, options: ServeOptions, *, reloads: bool = False) -> None:
    """Keeps workers, which are started with the same command line, until a signal ends them.

    Args:
        command: The command.
        options: Those of the command line, with ``--workers``.
        reloads: Whether SIGHUP is for the workers themselves, which read their configuration again. By default it has
            them replaced.

    Raises:
        CommandFailure: They cannot serve.
    """
    context = click.get_current_context()
    if context.default_map:
        os.environ[WORKER_SETTINGS] = json.dumps(context.default_map)
    assert options.workers is not None
    if Start.current is not None:
        Start.current.keep_hangup()
    manager = join_service(options)
    serving = importlib.import_module("mcp_actors.cli.workers.serving")
    serving.serve_with_workers(
        [command, *context.meta[WORDS]],
        options.listen,
        options.workers,
        lambda ready: _announce(options.listen, ready, manager),
        None if options.admin is None else admin_transport(options),
        reloads=reloads,
        measured=options.metrics is not None,
        manager=manager,
    )


# What a service manager gives to a process: see `mcp_actors.cli.systemd`, which only its services import.
_SERVICE = ("NOTIFY_SOCKET", "LISTEN_FDS")


def join_service(options: ServeOptions) -> Any:
    """Takes the sockets that systemd has opened, and returns what tells it the state; ``None`` without it.

    Raises:
        WrongUsage: A socket is that of no address.
    """
    if not any(os.environ.get(each) for each in _SERVICE):
        return None
    systemd = importlib.import_module("mcp_actors.cli.systemd")
    systemd.take_sockets(options.listen)
    return systemd.service_notifier()


def _announce(listen: Sequence[str], ready: Any, manager: Any) -> None:
    hint = f"{ready.offer}; {_STOPS}" if sys.stderr.isatty() else ""
    Announcement(listen, hint, manager).started(ready.places)


_STOPS = "Ctrl-C stops, a second one at once"


def serve_here(
    server: Server,
    options: ServeOptions,
    worker: Any,
    said: str,
    stdio_hint: str = "",
    companions: Sequence[Any] = (),
    without_tasks: Callable[[], object] | None = None,
    manager: Any = None,
) -> None:
    """Serves in this process until every address is done, or a signal to stop.

    Args:
        server: The server, with all that `equip` gives it.
        options: Those of the command line.
        worker: The place of this process among the workers of a supervisor; ``None`` if it is not a worker.
        said: What a person on a terminal reads about the server.
        stdio_hint: The same where standard input and output are the only address; by default ``said``, and that it
            waits.
        companions: What runs beside the transports.
        without_tasks: As `StateOfSeveral` has it.
        manager: What `join_service` has returned, where it was asked.

    Raises:
        WrongUsage: An address cannot be served so.
        OSError: An address is taken, or may not be used.
    """
    several = worker is not None and worker.of > 1
    routes = routes_beside(server, options, worker)
    if options.rest:
        application = rest_application(options)
        # What has a path of its own goes on to answer there.
        routes = {**routes, "/": application}
        companions = [*companions, application]
    if worker is not None:
        server.shared = worker.share(server.shared)
        # Its supervisor looks at it.
        companions = [*companions, *worker.companions()]
    elif options.admin is not None:
        companions = [*companions, admin_transport(options)]
    if several:
        state = importlib.import_module("mcp_actors.cli.workers.serving")
        server.shared = state.StateOfSeveral(server, without_tasks)
    if worker is None:
        manager = manager or join_service(options)
    if manager is not None:
        systemd = importlib.import_module("mcp_actors.cli.systemd")
        companions = [*companions, systemd.ServiceCompanion(manager)]
    listen = tuple(options.listen) or (STDIO,)
    transports = serving_transports(attrs.evolve(options, listen=listen), routes, several=several)
    status: Any
    if worker is not None:
        status = worker.status(server, said)
    else:
        places = () if listen == (STDIO,) else listen
        status = Announcement(places, _hint(listen, said, stdio_hint), manager)
    server.run(*transports, *companions, task_status=status)


def _hint(listen: Sequence[str], said: str, stdio_hint: str) -> str:
    """Returns what a person on a terminal reads; nothing for a program that has started the server."""
    if not sys.stderr.isatty() or (STDIO in listen and not sys.stdin.isatty()):
        return ""
    if tuple(listen) == (STDIO,) and stdio_hint:
        return stdio_hint
    waits = "; it waits for a client's messages on standard input" if STDIO in listen else ""
    return f"{said}{waits}; {_STOPS}"
