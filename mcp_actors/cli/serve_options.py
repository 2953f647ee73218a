"""The options of ``mcp-actors serve`` as one value, the rules that they obey together, and the transports they name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import click

from mcp_actors import Server
from mcp_actors.abc import ServerTransport
from mcp_actors.abc.discovery import server_transport
from mcp_actors.cli.connection_options import Section
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.output import echo
from mcp_actors.errors import McpError

__all__ = [
    "HTTP",
    "RULES",
    "STDIO",
    "TOKEN_VARIABLE",
    "WITH_HOST",
    "Announcement",
    "ServeOptions",
    "admin_transport",
    "is_own_address",
    "offer",
    "options_of",
    "require_fitting",
    "routes_beside",
    "sections_of",
    "serve_at",
    "serves_stdio_alone",
    "serving_transports",
    "set_ending",
]


_F = TypeVar("_F", bound=Callable[..., Any])

STDIO = "stdio:"
HTTP = ("http:", "https:", "http+unix:")
WITH_HOST = (*HTTP, "ws:", "wss:")
"""Bindings in which a request names its host and its origin."""


EVERY = ("serve", "gateway", "bridge")
_DECLARED = "option"


@attrs.frozen
class _Declared:
    """The form of an option of `ServeOptions` on the command line."""

    name: str
    section: str
    commands: Sequence[str]
    decorate: Callable[..., Any]


def _option(name: str, section: str, *, on: Sequence[str] = EVERY, **settings: Any) -> Any:
    """Declares an option: the only place where it is written down.

    It becomes an option of click, is in its section of the help, is a field of `ServeOptions`, and reaches worker
    processes, which are started with the same command line.

    Args:
        name: Such as ``--health``; the field has the same name.
        section: Its heading in the help.
        on: The commands that have it.
        settings: Those of `click.option`.
    """
    default: Any = () if settings.get("multiple") else False if settings.get("is_flag") else None
    declared = _Declared(name, section, on, click.option(name, **settings))
    return attrs.field(default=default, metadata={_DECLARED: declared})


_ADDRESSES, _TOKENS, _OPERATORS = "Addresses", "Authorization, for HTTP and WebSocket", "For operators"
_PROCESSES, _ENDING, _DEVELOPMENT = "Several processes", "The end", "Development"
_SERVE = ("serve",)


@attrs.frozen(kw_only=True)
class ServeOptions:
    """The options of ``serve``, ``gateway`` and ``bridge``, by the names that click gives their values."""

    listen: Sequence[str] = _option(
        "--listen",
        _ADDRESSES,
        on=("serve", "gateway"),
        metavar="URL",
        multiple=True,
        help="Where to serve; may be repeated. Default: stdio:",
    )
    allow_host: Sequence[str] = _option(
        "--allow-host",
        _ADDRESSES,
        metavar="HOST",
        multiple=True,
        help="For HTTP and WebSocket: a name by which clients may call this server. Default: the address itself.",
    )
    allow_origin: Sequence[str] = _option(
        "--allow-origin",
        _ADDRESSES,
        metavar="ORIGIN",
        multiple=True,
        help="For HTTP and WebSocket: a web site whose pages may use it, such as https://app.example.org.",
    )
    issuer: Sequence[str] = _option(
        "--issuer",
        _TOKENS,
        metavar="URL",
        multiple=True,
        help="Demand access tokens, of this authorization server; may be repeated.",
    )
    resource: str | None = _option(
        "--resource", _TOKENS, metavar="URL", help="With --issuer: the URL that clients know the server by."
    )
    scope: Sequence[str] = _option(
        "--scope",
        _TOKENS,
        metavar="SCOPE",
        multiple=True,
        help="With --issuer: scopes that every request needs; blanks between several, may be repeated.",
    )
    admin: str | None = _option(
        "--admin",
        _OPERATORS,
        metavar="URL",
        help="Where operators may look at what runs: unix:PATH, or http://127.0.0.1:PORT with a token. See "
        "mcp-actors top.",
    )
    metrics: str | None = _option(
        "--metrics",
        _OPERATORS,
        metavar="PATH",
        help="For HTTP: a path, such as /metrics, where Prometheus finds the numbers of this server.",
    )
    health: str | None = _option(
        "--health",
        _OPERATORS,
        metavar="PATH",
        help="For HTTP: a path, such as /health, where load balancers may ask how the server is.",
    )
    telemetry: str | None = _option(
        "--telemetry",
        _OPERATORS,
        type=click.Choice(["otel"]),
        help="Trace and measure by OpenTelemetry, to where OTEL_EXPORTER_OTLP_ENDPOINT says.",
    )
    workers: int | None = _option(
        "--workers",
        _PROCESSES,
        on=_SERVE,
        metavar="N",
        type=click.IntRange(min=1),
        help="Serve with N processes, which are started again when they die. Not for stdio:",
    )
    shared: str | None = _option(
        "--shared",
        _PROCESSES,
        on=_SERVE,
        metavar="URL",
        help="Where sessions, events and tasks are kept: memory: (default), sqlite:///PATH or another store.",
    )
    drain_delay: float | None = _option(
        "--drain-delay",
        _ENDING,
        metavar="S",
        type=click.FloatRange(min=0),
        help="At SIGTERM, seconds for which it serves on, unready, so that load balancers go elsewhere. Default: 0",
    )
    drain: float | None = _option(
        "--drain",
        _ENDING,
        metavar="S",
        type=click.FloatRange(min=0),
        help="Seconds for calls in flight after that; what is left is answered with an error. Default: 5",
    )
    reload: bool = _option(
        "--reload", _DEVELOPMENT, on=_SERVE, is_flag=True, help="Serve TARGET anew whenever its files change."
    )
    reload_dir: Sequence[str] = _option(
        "--reload-dir",
        _DEVELOPMENT,
        on=_SERVE,
        metavar="DIR",
        multiple=True,
        help="With --reload: a folder in which every change counts, beside the modules of TARGET's own folder.",
    )

    def paths(self) -> dict[str, str]:
        """Returns the paths that are served beside MCP, by their options."""
        named = {"--health": self.health, "--metrics": self.metrics}
        return {option: path for option, path in named.items() if path is not None}

    def serves(self, schemes: tuple[str, ...]) -> bool:
        """Returns whether a URL has one of some schemes."""
        return any(url.lower().startswith(schemes) for url in self.listen)


# Paragraphs after sections of the help of ``serve``.
_REMARKS = {
    _OPERATORS: "--metrics answers those who may call this server by its name, and --health anybody (with 503 from "
    "SIGTERM on, also at PATH/ready, and with 200 at PATH/live), both without a token.",
    _PROCESSES: "SIGHUP replaces the processes one by one by new ones, which import TARGET again; no connection is "
    "refused and no call is lost. Without a --shared that keeps sessions, clients over HTTP have none, and no "
    "HTTP+SSE: a request may reach any of them. Each counts its own metrics, and its lines have its number.",
    _DEVELOPMENT: "A reload keeps the connections; an error in a file is shown, and what was there serves on.",
}


def _declared(command: str) -> list[_Declared]:
    found = [each.metadata[_DECLARED] for each in attrs.fields(ServeOptions)]
    return [each for each in found if command in each.commands]


def options_of(command: str) -> Callable[[_F], _F]:
    """Returns a decorator that gives a command its options, which become a `ServeOptions`."""

    def decorate(function: _F) -> _F:
        for each in reversed(_declared(command)):
            function = each.decorate(function)
        return function

    return decorate


def sections_of(command: str) -> list[Section]:
    """Returns the sections of a command's help with its options, in the order in which they are declared."""
    options: dict[str, list[str]] = {}
    for each in _declared(command):
        options.setdefault(each.section, []).append(each.name)
    if command in _SERVE:
        options[_DEVELOPMENT].append("--traceback")
    remarks = _REMARKS if command in _SERVE else {}
    return [Section(title, names, remarks.get(title, "")) for title, names in options.items()]


def require_fitting(options: ServeOptions) -> None:
    """Raises `click.UsageError` for the first rule that the options break."""
    for broken, text in RULES:
        for found in broken(options):
            raise click.UsageError(text.format(**found))


_Found = Iterable[dict[str, object]]


def _if(is_broken: object) -> _Found:
    return [{}] if is_broken else []


def _without_tokens(options: ServeOptions) -> _Found:
    # An address without tokens would be a way round those that demand them.
    if options.issuer:
        for url in options.listen or (STDIO,):
            if not url.lower().startswith(WITH_HOST):
                yield {"url": url}


def _without_http(options: ServeOptions) -> _Found:
    if not options.serves(HTTP):
        for option in options.paths():
            yield {"option": option}


def _no_path(options: ServeOptions) -> _Found:
    paths = options.paths()
    for option, path in paths.items():
        if not path.startswith("/") or list(paths.values()).count(path) > 1:
            yield {"option": option, "example": f"/{option[2:]}", "path": repr(path)}


def _path_of_mcp(options: ServeOptions) -> _Found:
    for option, path in options.paths().items():
        if any(urlsplit(url).path == path for url in options.listen):
            yield {"option": option, "example": f"/{option[2:]}", "path": path}


def _without_host(options: ServeOptions) -> _Found:
    if not options.serves(WITH_HOST):
        for option, given in (("--allow-host", options.allow_host), ("--allow-origin", options.allow_origin)):
            if given:
                yield {"option": option}


def _missing_folder(options: ServeOptions) -> _Found:
    return ({"folder": each} for each in options.reload_dir if not os.path.isdir(each))


RULES: Sequence[tuple[Callable[[ServeOptions], _Found], str]] = (
    (
        lambda given: _if(not given.issuer and (given.resource is not None or given.scope)),
        "--resource and --scope need --issuer: the authorization server of the tokens",
    ),
    (
        lambda given: _if(given.issuer and given.resource is None),
        "--issuer needs --resource: the URL that clients know the server by",
    ),
    (_without_tokens, "--issuer is for HTTP and WebSocket: {url} takes no access tokens"),
    (
        _without_host,
        "{option} needs --listen with a URL of HTTP or WebSocket: http://127.0.0.1:8000/mcp for example",
    ),
    (
        _without_http,
        "{option} needs --listen with a URL of HTTP: http://127.0.0.1:8000/mcp for example",
    ),
    (_no_path, "{option} takes a path that nothing else has, such as {example}, not {path}"),
    (_path_of_mcp, "{option}: {path} is the path of MCP itself; take another, such as {example}"),
    (lambda given: _if(given.reload_dir and not given.reload), "--reload-dir needs --reload"),
    (
        lambda given: _if(given.reload and given.workers is not None),
        "--reload is for one process: leave --workers out",
    ),
    (_missing_folder, "--reload-dir: there is no folder {folder}"),
    (
        lambda given: _if(given.workers is not None and sys.platform == "win32"),
        "--workers is for other systems: on Windows no process inherits listening sockets",
    ),
    (
        lambda given: _if(given.workers is not None and (not given.listen or given.serves((STDIO,)))),
        "--workers needs --listen URL, and not stdio:, which has one client: http://127.0.0.1:8000/mcp for example",
    ),
)
"""Each rule finds what breaks it, with the values for its text; the first broken rule is reported."""


# -- Addresses: their transports, and what is announced once they are served ---------------------------


def serves_stdio_alone(options: ServeOptions) -> bool:
    """Returns whether standard input and output are the only address, as they are by default."""
    return not options.listen or tuple(options.listen) == (STDIO,)


def serving_transports(
    options: ServeOptions, routes: Mapping[str, object], *, several: bool = False
) -> list[ServerTransport]:
    """Returns a transport for each address.

    Args:
        options: Those of the command line.
        routes: What is served beside MCP over HTTP.
        several: Whether other processes serve at the same addresses.

    Raises:
        WrongUsage: An address cannot be served so.
    """
    settings = _settings(options)
    return [_transport(url, settings, several, routes) for url in options.listen]


def offer(server: Server) -> str:
    """Returns a line that says who a server is and what it has."""
    templates = sum(1 for each in server.resources if each.template is not None)
    counts = {
        "tool": len(server.tools),
        "resource": len(server.resources) - templates,
        "resource template": templates,
        "prompt": len(server.prompts),
    }
    has = [f"{number} {name}{'' if number == 1 else 's'}" for name, number in counts.items() if number]
    return f"{server.info.name} {server.info.version}: {', '.join(has) or 'nothing registered yet'}"


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
        # A transport for both sides makes its server side now, so that it refuses wrong options before it serves.
        make = getattr(transport, "for_servers", None)
        return transport if make is None else make()
    except (ValueError, McpError) as error:
        raise WrongUsage(str(error)) from error


class Announcement:
    """A task status that says on stderr where the server is to be found, once it is there.

    Args:
        urls: The URLs that are served and have to be announced; none for standard input.
        hint: What a person on a terminal reads before.
    """

    def __init__(self, urls: Sequence[str], hint: str) -> None:
        self._urls = urls
        self._hint = hint

    def started(self, places: Sequence[object] = ()) -> None:
        if self._hint:
            echo(self._hint, err=True)
        for url, place in zip(self._urls, places, strict=False):
            where = f" at {place}" if isinstance(place, str) and place != url else ""
            echo(f"serving {url}{where}", err=True)


def serve_at(server: Server, options: ServeOptions, hint: str) -> None:
    """Serves in this process until every address is done, or a signal to stop.

    Args:
        server: The server.
        options: Those of the command line.
        hint: What a person on a terminal reads about the server.

    Raises:
        WrongUsage: An address cannot be served so.
        OSError: An address is taken, or may not be used.
    """
    set_ending(server, options)
    companions = [] if options.admin is None else [admin_transport(options.admin)]
    routes = routes_beside(server, options)
    listen = tuple(options.listen) or (STDIO,)
    if sys.stdin.isatty() and sys.stderr.isatty():
        waits = "; it waits for a client's messages on standard input" if STDIO in listen else ""
        hint = f"{hint}{waits}; Ctrl-C stops, a second one at once"
    else:
        hint = ""
    transports = serving_transports(attrs.evolve(options, listen=listen), routes)
    places = () if listen == (STDIO,) else listen
    server.run(*transports, *companions, task_status=Announcement(places, hint))


def set_ending(server: Server, options: ServeOptions) -> None:
    """Gives the server the seconds that it has to end, where the command line has some."""
    limits = server.limits
    if options.drain_delay is not None:
        limits = attrs.evolve(limits, drain_delay=options.drain_delay)
    if options.drain is not None:
        limits = attrs.evolve(limits, drain_grace=options.drain)
    if limits is not server.limits:
        server.limits = limits


def routes_beside(server: Server, options: ServeOptions, worker: int | None = None) -> Mapping[str, object]:
    """Returns what is served beside MCP, and gives the server the telemetry that was asked for.

    Args:
        server: The server.
        options: Those of the command line.
        worker: The number of this process, if it is one of several.
    """
    routes: dict[str, object] = {}
    if options.health is not None:
        routes[options.health] = importlib.import_module("mcp_transports.http.server").health
    if options.metrics is not None or options.telemetry is not None:
        observe = importlib.import_module("mcp_actors.cli.observing").observe
        routes |= observe(server, options.metrics, options.telemetry, worker)
    return routes


# -- Whether a URL leads to this process itself --------------------------------------------------------

# Names of this machine, and what listens at all of its addresses.
_HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def is_own_address(url: str, listen: Iterable[str]) -> bool:
    """Returns whether a client that connects to ``url`` reaches what listens at one of the URLs ``listen``."""
    return _place(url) in map(_place, listen)


def _place(url: str) -> tuple[str, ...]:
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return (url,)
    # A free port that the system chooses is not known yet.
    if not host or port == 0:
        return (url,)
    return (parts.scheme, "" if host in _HERE else host, str(port), parts.path)


# -- ``--admin URL``: the live view of the server, for ``mcp-actors top`` and browsers -----------------

TOKEN_VARIABLE = "MCP_ACTORS_ADMIN_TOKEN"
"""The environment variable that has the token of a loopback address; without it, a random one is shown."""


def admin_transport(url: str) -> Any:
    """Returns a `mcp_transports.admin.AdminTransport`. The token leaves the environment, which tools hand on.

    Args:
        url: That of the command line.

    Raises:
        WrongUsage: The URL cannot be one of an admin endpoint, or the token is too short.
    """
    token = os.environ.pop(TOKEN_VARIABLE, None)
    binding = importlib.import_module("mcp_transports.admin")
    try:
        return binding.AdminTransport(url, token=token if not url.startswith("unix:") else None)
    except ValueError as error:
        raise WrongUsage(str(error)) from error
