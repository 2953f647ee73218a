"""``mcp-actors serve``: imports neither rich nor anything else that draws."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import click

from mcp_actors import Server
from mcp_actors.abc import ServerTransport, SharedState
from mcp_actors.cli.admin_option import admin_transport
from mcp_actors.cli.failures import WrongUsage, reported, traceback_option
from mcp_actors.cli.sections import SERVE, CommandWithSections
from mcp_actors.cli.serve_options import HTTP, STDIO, WITH_HOST, ServeOptions, require_fitting
from mcp_actors.cli.target import load_server
from mcp_actors.discovery import server_transport
from mcp_actors.errors import McpError
from mcp_actors.platform.command_lines import join_words

__all__ = ["command"]

# The variable that makes this process a worker: see `mcp_actors.cli.workers.messages`, which only workers import.
_ASSIGNMENT = "MCP_ACTORS_WORKER"


@click.command("serve", cls=CommandWithSections, sections=SERVE, short_help="Serve a Server.")
@click.argument("target")
@click.option(
    "--listen", metavar="URL", multiple=True, help="Where to serve; may be repeated. Default: stdio:"
)
@click.option(
    "--allow-host",
    metavar="HOST",
    multiple=True,
    help="For HTTP and WebSocket: a name by which clients may call this server. Default: the address itself.",
)
@click.option(
    "--allow-origin",
    metavar="ORIGIN",
    multiple=True,
    help="For HTTP and WebSocket: a web site whose pages may use it, such as https://app.example.org.",
)
@click.option(
    "--issuer",
    metavar="URL",
    multiple=True,
    help="Demand access tokens, of this authorization server; may be repeated.",
)
@click.option("--resource", metavar="URL", help="With --issuer: the URL that clients know the server by.")
@click.option(
    "--scope",
    metavar="SCOPE",
    multiple=True,
    help="With --issuer: scopes that every request needs; blanks between several, may be repeated.",
)
@click.option(
    "--health",
    metavar="PATH",
    help="For HTTP: a path, such as /health, where load balancers may ask how the server is.",
)
@click.option(
    "--admin",
    metavar="URL",
    help="Where operators may look at what runs: unix:PATH, or http://127.0.0.1:PORT with a token. See mcp-actors top.",
)
@click.option(
    "--metrics",
    metavar="PATH",
    help="For HTTP: a path, such as /metrics, where Prometheus finds the numbers of this server.",
)
@click.option(
    "--telemetry",
    type=click.Choice(["otel"]),
    help="Trace and measure by OpenTelemetry, to where OTEL_EXPORTER_OTLP_ENDPOINT says.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Serve with N processes, which are started again when they die. Not for stdio:",
)
@click.option(
    "--shared",
    metavar="URL",
    help="Where sessions, events and tasks are kept: memory: (default), sqlite:///PATH or redis://HOST.",
)
@click.option("--reload", is_flag=True, help="Serve TARGET anew whenever its files change.")
@click.option(
    "--reload-dir",
    metavar="DIR",
    multiple=True,
    help="With --reload: a folder in which every change counts, beside the modules of TARGET's own folder.",
)
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
    mcp-actors serve weather.py --listen http://127.0.0.1:8000/mcp --workers 4 --shared redis://127.0.0.1

    Ends on SIGINT and SIGTERM, and when every address has ended by itself (stdio: at end of input). Exit code 0 for
    these, 1 if the target cannot be imported or an address cannot be served, 2 if there is no such target.
    """
    options = ServeOptions(**given)
    require_fitting(options)
    if options.reload:
        # Compiled files know the second of a change only: of two changes within one they would keep the first.
        sys.dont_write_bytecode = True
    worker = _employment()
    with _told(worker), reported(show_traceback):
        if options.workers is not None and worker is None:
            _serve_with_workers(options, options.workers)
            return
        server = _loaded(target, args, options)
        companions = _companions(options, worker)
        routes = _routes(server, options, worker)
        if not options.listen or options.listen == (STDIO,):
            terminal = sys.stdin.isatty() and sys.stderr.isatty()
            hint = _stdio_hint(server, target, args) if terminal else ""
            server.run(STDIO, *companions, task_status=_Announcement((), hint))
            return
        settings = _settings(options)
        several = worker is not None and worker.of > 1
        if several:
            state = importlib.import_module("mcp_actors.cli.workers.state_of_several")
            server.shared = state.StateOfSeveral(server)
        transports = [_transport(url, settings, several, routes) for url in options.listen]
        hint = f"{_offer(server)}; Ctrl-C stops, a second one at once" if sys.stderr.isatty() else ""
        status = (
            _Announcement(options.listen, hint) if worker is None else worker.status(server, _offer(server))
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


def _offer(server: Server) -> str:
    """Returns a line that says who a server is and what it has."""
    counts: dict[str, Sized] = {"tool": server.tools, "resource": server.resources, "prompt": server.prompts}
    has = [f"{len(each)} {name}{'' if len(each) == 1 else 's'}" for name, each in counts.items() if len(each)]
    return f"{server.info.name} {server.info.version}: {', '.join(has) or 'nothing registered yet'}"


def _stdio_hint(server: Server, target: str, args: Sequence[str]) -> str:
    """Returns what a person is told who has started a server that waits for a program."""
    words = join_words(["mcp-actors", "serve", target, *(["--", *args] if args else [])])
    at_url = join_words(["mcp-actors", "serve", target, "--listen", "http://127.0.0.1:8000/mcp"])
    return (
        f"{_offer(server)}; it waits for a client's messages on standard input, Ctrl-C stops\n"
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
    """Has the supervisor of a worker say what the block raises."""
    try:
        yield
    except click.ClickException as error:
        if worker is None:
            raise
        worker.failed(error.format_message(), error.exit_code)
        raise click.exceptions.Exit(error.exit_code) from None


def _routes(server: Server, options: ServeOptions, worker: Any) -> Mapping[str, object]:
    """Returns what is served beside MCP, and gives the server the telemetry that was asked for."""
    routes: dict[str, object] = {}
    if options.health is not None:
        routes[options.health] = importlib.import_module("mcp_transports.http.server").health
    if options.metrics is not None or options.telemetry is not None:
        observe = importlib.import_module("mcp_actors.cli.observing").observe
        number = None if worker is None else worker.number
        routes |= observe(server, options.metrics, options.telemetry, number)
    return routes


def _loaded(target: str, args: Sequence[str], options: ServeOptions) -> Server:
    """Returns the server of TARGET; with ``--reload`` one that becomes what its files become when they change."""
    server = load_server(target, args)
    if options.shared is not None:
        server.shared = _shared_state(options.shared)
    if options.reload:
        # Imported where it is used: most servers are not reloaded.
        reload = importlib.import_module("mcp_actors.cli.reload")
        server = reload.Reloading(target, args, server, options.reload_dir, _offer).server
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
    _Announcement(listen, hint).started(ready.places)


def _shared_state(url: str) -> SharedState:
    make = importlib.import_module("mcp_actors.shared").shared_state
    try:
        state: SharedState = make(url)
    except (ValueError, ImportError) as error:
        raise WrongUsage(str(error)) from error
    return state


def _settings(options: ServeOptions) -> dict[str, object]:
    """Returns the settings of addresses of HTTP and WebSocket: who may call there."""
    named = {"allowed_hosts": options.allow_host, "allowed_origins": options.allow_origin}
    settings: dict[str, object] = {name: each for name, each in named.items() if each}
    if options.resource is not None:
        settings["auth"] = _protection(options.resource, options.issuer, options.scope)
    return settings


def _protection(resource: str, issuer: Sequence[str], scope: Sequence[str]) -> object:
    """Returns what demands access tokens; only such a server imports it."""
    scopes = [word for each in scope for word in each.split()]
    settings = importlib.import_module("mcp_actors.auth").ResourceServer
    try:
        return settings(resource=resource, issuer=list(issuer), scopes=scopes)
    except (ValueError, TypeError, ImportError) as error:
        raise WrongUsage(str(error)) from error


def _transport(
    url: str, settings: Mapping[str, object], several: bool, routes: Mapping[str, object]
) -> ServerTransport:
    given = dict(settings) if url.lower().startswith(WITH_HOST) else {}
    if several and url.lower().startswith(HTTP):
        given["sessions"] = "shared"
    if routes and url.lower().startswith(HTTP):
        given["routes"] = routes
    try:
        transport = server_transport(url, **given)
        # A transport for either side makes that for servers now, so that it refuses its options before it serves.
        make = getattr(transport, "for_servers", None)
        return transport if make is None else make()
    except (ValueError, McpError) as error:
        raise WrongUsage(str(error)) from error


class _Announcement:
    """A task status that says on stderr where the server is to be found, once it is there.

    Args:
        urls: The URLs that are served and have to be told; none for standard input.
        hint: What a person on a terminal is told before.
    """

    def __init__(self, urls: Sequence[str], hint: str) -> None:
        self._urls = urls
        self._hint = hint

    def started(self, places: Sequence[object] = ()) -> None:
        if self._hint:
            click.echo(self._hint, err=True)
        for url, place in zip(self._urls, places, strict=False):
            where = f" at {place}" if isinstance(place, str) and place != url else ""
            click.echo(f"serving {url}{where}", err=True)
