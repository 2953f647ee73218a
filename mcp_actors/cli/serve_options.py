"""The options of ``mcp-actors serve`` as one value, the rules that they obey together, and the transports they name."""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

import attrs
import click

from mcp_actors import Limits, Server
from mcp_actors.abc import ServerTransport, SharedState
from mcp_actors.abc.discovery import server_transport
from mcp_actors.cli.arguments import NumberRange
from mcp_actors.cli.connection_options import Section
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.errors import McpError
from mcp_actors.supervision.access_log import access_log
from mcp_actors.supervision.arguments import did_you_mean
from mcp_actors.supervision.logging import LogFormat, LogLevel, configure_log

__all__ = [
    "HTTP",
    "RULES",
    "STDIO",
    "TOKEN_VARIABLE",
    "WITH_HOST",
    "ServeOptions",
    "add_middleware",
    "admin_transport",
    "equip",
    "given_limits",
    "is_own_address",
    "known_limits",
    "offer",
    "options_of",
    "require_fitting",
    "rest_application",
    "routes_beside",
    "sections_of",
    "serving_transports",
    "set_log",
    "upstream_limits",
]


_F = TypeVar("_F", bound=Callable[..., Any])

STDIO = "stdio:"
HTTP = ("http:", "https:", "http+unix:")
TLS = ("https:", "wss:")
WITH_HOST = (*HTTP, "ws:", "wss:")
"""Bindings in which a request names its host and its origin."""


WATCHDOG = 0.25
"""Seconds after which a command that serves takes a loop for blocked; above what anybody notices as a pause."""

EVERY = ("serve", "gateway", "bridge", "from-openapi", "rest")
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
_LIMITS, _PROCESSES = "Limits and middleware", "Several processes"
_ENDING, _DEVELOPMENT = "The end", "Development"
_SERVE = ("serve",)
_SERVE_AND_GATEWAY = ("serve", "gateway")
# A REST API is beside MCP in each of them, and takes no access tokens.
_BUT_REST = ("serve", "gateway", "bridge", "from-openapi")
_FILE = click.Path(exists=True, dir_okay=False)


# -- ``--limit NAME=VALUE`` ----------------------------------------------------------------------------

# The limits that are arguments of what is made for an address, by the prefix of their names and the schemes.
_OF_TRANSPORTS: Mapping[str, tuple[tuple[str, ...], Sequence[str]]] = {
    "http": (HTTP, ("max_message_bytes", "max_sessions", "max_sessions_per_peer", "session_idle")),
    "websocket": (
        ("ws:", "wss:"),
        (
            "max_message_bytes",
            "held_bytes",
            "max_connections",
            "max_connections_per_peer",
            "handshake_time",
            "ping_interval",
            "ping_timeout",
            "write_timeout",
            "close_timeout",
        ),
    ),
    "sockets": (
        ("tcp:", "unix:"),
        ("max_message_bytes", "held_bytes", "max_connections", "max_connections_per_peer"),
    ),
}
UPSTREAM_LIMITS = ("max_in_flight", "max_connections", "max_notifications")
_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
# What the names of those that are seconds end with.
_SECONDS = ("_time", "_timeout", "_interval", "_idle")
_LIMIT = re.compile(r"([\w.]+)=(\d+(?:\.\d+)?|inf)(KiB|MiB|GiB|)")


def known_limits() -> dict[str, bool]:
    """Returns the names that ``--limit`` takes, and whether each is a whole number.

    They are those of `mcp_actors.Limits`, and others behind a prefix.
    """
    found = {each.name: not isinstance(each.default, float) for each in attrs.fields(Limits)}
    found |= {
        f"http.{each.name}": not isinstance(each.default, float) for each in attrs.fields(_http_limits())
    }
    for prefix, (_, names) in _OF_TRANSPORTS.items():
        found |= {f"{prefix}.{name}": not name.endswith(_SECONDS) for name in names}
    return found | {f"upstream.{name}": True for name in UPSTREAM_LIMITS}


def _http_limits() -> Any:
    # Whoever changes no limit does not import the binding for it.
    return importlib.import_module("mcp_transports.http.h1.limits").HttpLimits


def given_limits(_ctx: click.Context, _option: click.Parameter, words: Sequence[str]) -> dict[str, float]:
    """Returns the limits of the command line by their names.

    Raises:
        click.UsageError: A word is not NAME=VALUE, or a name does not exist.
    """
    found: dict[str, float] = {}
    known = known_limits() if words else {}
    for word in words:
        name = word.partition("=")[0]
        if name not in known:
            # Those of bindings have their prefix, which somebody may not know.
            like = [each for each in known if each.endswith(f".{name}")]
            meant = f"; did you mean {like[0]!r}?" if like else did_you_mean(name, known)
            raise click.UsageError(f"--limit: there is no limit {name!r}{meant}")
        match = _LIMIT.fullmatch(word)
        value = float(match[2]) * _UNITS[match[3]] if match else math.nan
        if math.isnan(value) or (known[name] and not value.is_integer()):
            example = (
                "a whole number, such as 100 or 16MiB" if known[name] else "a number, such as 0.5 or inf"
            )
            raise click.UsageError(f"--limit {name}: write {name}=VALUE with {example}")
        found[name] = int(value) if known[name] else value
        if name.startswith("upstream.") and value < 1:
            raise click.UsageError(f"--limit {name} is at least 1, not {value:g}")
    try:
        of_engine: dict[str, Any] = {name: value for name, value in found.items() if "." not in name}
        Limits(**of_engine)
    except ValueError as error:
        raise click.UsageError(f"--limit {error}") from error
    return found


def _limits_below(options: ServeOptions, prefix: str) -> dict[str, Any]:
    named = ((name.rpartition("."), value) for name, value in dict(options.limit).items())
    return {name: value for (before, _, name), value in named if before == prefix}


def upstream_limits(options: ServeOptions) -> dict[str, Any]:
    """Returns the limits of each upstream of a gateway, as `mcp_actors.gateway.Upstream` has them."""
    return _limits_below(options, "upstream")


def _limits_of_address(options: ServeOptions, url: str) -> dict[str, Any]:
    """Returns the limits for the transport of an address, as its arguments."""
    found: dict[str, Any] = {}
    for prefix, (schemes, names) in _OF_TRANSPORTS.items():
        if url.lower().startswith(schemes):
            given = _limits_below(options, prefix)
            found |= {name: given.pop(name) for name in names if name in given}
            try:
                found |= {"limits": _http_limits()(**given)} if given else {}
            except ValueError as error:
                raise WrongUsage(f"--limit {prefix}.{error}") from error
    return found


@attrs.frozen(kw_only=True)
class ServeOptions:
    """The options of all that serves, by the names that click gives their values."""

    listen: Sequence[str] = _option(
        "--listen",
        _ADDRESSES,
        on=("serve", "gateway", "from-openapi"),
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
    rest: bool = _option(
        "--rest",
        _ADDRESSES,
        on=_BUT_REST,
        is_flag=True,
        help="For HTTP: serve the same as a REST API too, at every path but that of MCP; / is a page to try it.",
    )
    card: str | None = _option(
        "--card",
        _ADDRESSES,
        on=_BUT_REST,
        metavar="NAME",
        help="For HTTP: serve a server card, at PATH/server-card, and a catalogue that names it; such as "
        "com.example/weather, or com.example/weather=URL with the URL that clients know it by.",
    )
    issuer: Sequence[str] = _option(
        "--issuer",
        _TOKENS,
        on=_BUT_REST,
        metavar="URL",
        multiple=True,
        help="Demand access tokens, of this authorization server; may be repeated.",
    )
    resource: str | None = _option(
        "--resource",
        _TOKENS,
        on=_BUT_REST,
        metavar="URL",
        help="With --issuer: the URL that clients know the server by.",
    )
    scope: Sequence[str] = _option(
        "--scope",
        _TOKENS,
        metavar="SCOPE",
        multiple=True,
        help="With --issuer or --api-keys: scopes that every request needs; blanks between several, may be repeated.",
    )
    certificate: str | None = _option(
        "--certificate",
        _ADDRESSES,
        metavar="FILE",
        type=_FILE,
        help="For https: and wss:, the certificate with those that it is signed by, as PEM. A new one counts at once.",
    )
    key: str | None = _option(
        "--key", _ADDRESSES, metavar="FILE", type=_FILE, help="With --certificate: its private key, as PEM."
    )
    api_keys: str | None = _option(
        "--api-keys",
        _TOKENS,
        metavar="FILE",
        type=_FILE,
        help="Demand a key that the file has; mcp-actors config api-key makes one. A change counts at once.",
    )
    limit: Mapping[str, float] = _option(
        "--limit",
        _LIMITS,
        metavar="NAME=VALUE",
        multiple=True,
        callback=given_limits,
        help="A limit that the page reference/limits names, such as max_in_flight=100 or http.body_bytes=1MiB.",
    )
    spill: int | None = _option(
        "--spill",
        _LIMITS,
        on=_BUT_REST,
        metavar="BYTES",
        type=click.IntRange(min=1024),
        help="Keep results of tools that are larger for an hour, and send their beginning and a link; such as 64000.",
    )
    middleware: Sequence[str] = _option(
        "--middleware",
        _LIMITS,
        metavar="MODULE:FUNCTION",
        multiple=True,
        help="A function that is run round every request, inside of those that the server has itself.",
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
    log_level: str | None = _option(
        "--log-level",
        _OPERATORS,
        type=click.Choice(get_args(LogLevel)),
        help="The least severe lines of the log, on standard error. Default: warning",
    )
    log_format: str | None = _option(
        "--log-format",
        _OPERATORS,
        type=click.Choice(get_args(LogFormat)),
        help="Lines for people, or an object of JSON each. Default: text",
    )
    access_log: bool = _option(
        "--access-log",
        _OPERATORS,
        is_flag=True,
        help="Write a line to the log for each HTTP request, and for each call by another way.",
    )
    watchdog: float | None = _option(
        "--watchdog",
        _OPERATORS,
        on=_BUT_REST,
        metavar="S",
        type=NumberRange(min=0),
        help="Seconds after which a function that blocks the event loop is named in the log; 0 for never. Default: "
        f"{WATCHDOG:g}",
    )
    workers: int | None = _option(
        "--workers",
        _PROCESSES,
        on=_SERVE_AND_GATEWAY,
        metavar="N",
        type=click.IntRange(min=1),
        help="Serve with N processes, which are started again when they die. Not for stdio:",
    )
    shared: str | None = _option(
        "--shared",
        _PROCESSES,
        on=_SERVE_AND_GATEWAY,
        metavar="URL",
        help="Where sessions, events and tasks are kept: sqlite:///PATH or another store. Default: memory:",
    )
    sessions: str | None = _option(
        "--sessions",
        _PROCESSES,
        on=_SERVE_AND_GATEWAY,
        metavar="auto|none",
        type=click.Choice(["auto", "none"]),
        help="For HTTP: sessions for clients of older revisions, which any worker serves, or none. Default: auto",
    )
    drain_delay: float | None = _option(
        "--drain-delay",
        _ENDING,
        metavar="S",
        type=NumberRange(min=0),
        help="At SIGTERM, seconds for which it serves on, unready, so that load balancers go elsewhere. Default: 0",
    )
    drain: float | None = _option(
        "--drain",
        _ENDING,
        metavar="S",
        type=NumberRange(min=0),
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
    "refused and no call is lost. Every process serves all sessions, which go on at the new ones; with --sessions none "
    "there is no HTTP+SSE either. --metrics shows the sum of all, and lines of the log have a number.",
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
    for option, given in (("--issuer", options.issuer), ("--api-keys", options.api_keys)):
        for url in options.listen or (STDIO,) if given else ():
            if not url.lower().startswith(WITH_HOST):
                yield {"url": url, "option": option}


def _without_http(options: ServeOptions) -> _Found:
    if not options.serves(HTTP):
        beside = {"--rest": options.rest, "--card": options.card}
        for option in (*options.paths(), *(name for name, given in beside.items() if given)):
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


def _no_place_for_rest(options: ServeOptions) -> _Found:
    for url in options.listen if options.rest else ():
        if url.lower().startswith(HTTP) and urlsplit(url).path in ("", "/"):
            yield {"url": url, "example": f"{url.rstrip('/')}/mcp"}


def _without_host(options: ServeOptions) -> _Found:
    if not options.serves(WITH_HOST):
        for option, given in (("--allow-host", options.allow_host), ("--allow-origin", options.allow_origin)):
            if given:
                yield {"option": option}


def _without_certificate(options: ServeOptions) -> _Found:
    if options.certificate is None:
        return ({"url": url} for url in _with_tls(options))
    return ()


def _with_tls(options: ServeOptions) -> list[str]:
    return [url for url in (*options.listen, options.admin or "") if url.lower().startswith(TLS)]


def _missing_folder(options: ServeOptions) -> _Found:
    return ({"folder": each} for each in options.reload_dir if not os.path.isdir(each))


RULES: Sequence[tuple[Callable[[ServeOptions], _Found], str]] = (
    (
        lambda given: _if(not given.issuer and given.resource is not None),
        "--resource needs --issuer: the authorization server of the tokens",
    ),
    (
        lambda given: _if(not given.issuer and given.api_keys is None and given.scope),
        "--scope needs --issuer, the authorization server of the tokens, or --api-keys",
    ),
    (
        lambda given: _if(given.issuer and given.api_keys is not None),
        "--issuer and --api-keys exclude each other: callers present tokens or keys",
    ),
    (
        _without_certificate,
        "{url} needs --certificate FILE and --key FILE; behind a proxy that has the certificate, serve at http:// or ws://",
    ),
    (
        lambda given: _if(given.certificate is not None and not _with_tls(given)),
        "--certificate needs --listen with https:// or wss://",
    ),
    (lambda given: _if(given.key is not None and given.certificate is None), "--key needs --certificate"),
    (
        lambda given: _if(given.issuer and given.resource is None),
        "--issuer needs --resource: the URL that clients know the server by",
    ),
    (_without_tokens, "{option} is for HTTP and WebSocket: {url} takes no access tokens"),
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
    (_no_place_for_rest, "a REST API is beside MCP: serve at {example}, not at {url}"),
    (
        lambda given: _if(given.rest and given.issuer),
        "--rest takes no access tokens, so --issuer cannot protect it: demand keys, by --api-keys",
    ),
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


# -- Addresses, and what the server itself gets --------------------------------------------------------


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
    settings, secured = _settings(options), _tls(options)
    sessions = False if options.sessions == "none" else "shared" if several else True
    return [
        _transport(
            url,
            {
                **(settings if url.lower().startswith(WITH_HOST) else {}),
                **(secured if url.lower().startswith(TLS) else {}),
                **_limits_of_address(options, url),
            },
            sessions,
            routes,
        )
        for url in options.listen
    ]


def set_log(options: ServeOptions) -> None:
    """Has the log of this process be as the command line says; without options, as the program says."""
    if options.log_level is not None or options.log_format is not None:
        level: Any = options.log_level
        form: Any = options.log_format
        configure_log(level, form)
    access_log.is_on = options.access_log


def equip(server: Server, options: ServeOptions) -> None:
    """Gives a server that is not served yet its shared state, its limits and its middleware.

    Raises:
        WrongUsage: A store or a function does not exist, or cannot be used so.
    """
    if options.shared is not None:
        server.shared = _shared_state(options.shared)
    given = _limits_below(options, "")
    ending = {"drain_delay": options.drain_delay, "drain_grace": options.drain}
    given |= {name: seconds for name, seconds in ending.items() if seconds is not None}
    if given:
        server.limits = attrs.evolve(server.limits, **given)
    _set_watchdog(server, options.watchdog)
    add_middleware(server, options)


def _set_watchdog(server: Server, seconds: float | None) -> None:
    """Sets the watchdog of a command line, which a server may have in its own way."""
    try:
        if seconds is not None:
            server.watchdog = seconds or None
        elif server.watchdog is None:
            server.watchdog = WATCHDOG
    except ValueError as error:
        raise WrongUsage(f"--watchdog {seconds:g}: {error}") from error


def add_middleware(server: Server, options: ServeOptions) -> None:
    """Gives a server the middleware of the command line.

    Raises:
        WrongUsage: A function does not exist, or is no middleware of servers; or a tool has the name of one of
            ``--spill``.
    """
    if options.spill is not None:
        spill = importlib.import_module("mcp_actors.middleware").Spill
        try:
            server.middleware(spill(options.spill, head=min(options.spill // 4, 4000)))
        except McpError as error:
            raise WrongUsage(f"--spill: {error}") from error
    for place in options.middleware:
        try:
            server.middleware(_middleware(place))
        except TypeError as error:
            raise WrongUsage(f"--middleware {place}: {error}") from error


def _shared_state(url: str) -> SharedState:
    make = importlib.import_module("mcp_actors.shared").shared_state
    try:
        state: SharedState = make(url)
    except (ValueError, ImportError) as error:
        raise WrongUsage(str(error)) from error
    return state


def _middleware(place: str) -> Any:
    module, colon, name = place.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise WrongUsage(f"--middleware takes MODULE:FUNCTION, not {place!r}")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise WrongUsage(f"--middleware {place}: there is no module {error.name}") from error
    except AttributeError:
        raise WrongUsage(f"--middleware {place}: {module} has no {name}") from None
    return found


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
    scopes = _scopes(options)
    if options.resource is not None:
        settings["auth"] = _protection(options.resource, options.issuer, scopes)
    if options.api_keys is not None:
        settings["authenticate"] = _keys(options.api_keys, scopes)
    return settings


def _keys(path: str, scopes: Sequence[str]) -> Any:
    try:
        return _credentials().ApiKeys(path, scopes)
    except ValueError as error:
        raise WrongUsage(f"--api-keys {error}") from error


def rest_application(options: ServeOptions) -> Any:
    """Returns the `mcp_actors.cli.rest.application.RestApplication` of a server, for the route ``/``.

    Args:
        options: Those of the command line, with ``--rest``.

    Raises:
        WrongUsage: The file of the keys cannot be used.
    """
    keys = None if options.api_keys is None else _keys(options.api_keys, _scopes(options))
    return importlib.import_module("mcp_actors.cli.rest.application").RestApplication(keys)


def _scopes(options: ServeOptions) -> list[str]:
    return [word for each in options.scope for word in each.split()]


def _tls(options: ServeOptions) -> dict[str, object]:
    """Returns the settings of addresses with TLS. Those that share a port need the same context."""
    if options.certificate is None:
        return {}
    try:
        return {"ssl_context": _credentials().tls_context(options.certificate, options.key)}
    except ValueError as error:
        raise WrongUsage(f"--certificate {error}") from error


def _credentials() -> Any:
    # Most servers have none, and what reads them has imports of its own.
    return importlib.import_module("mcp_actors.cli.credentials")


def _protection(resource: str, issuer: Sequence[str], scopes: Sequence[str]) -> object:
    """Returns what demands access tokens; only such a server imports it."""
    settings = importlib.import_module("mcp_actors.auth").ResourceServer
    try:
        return settings(resource=resource, issuer=list(issuer), scopes=list(scopes))
    except (ValueError, TypeError, ImportError) as error:
        raise WrongUsage(str(error)) from error


def _transport(
    url: str, settings: Mapping[str, object], sessions: bool | str, routes: Mapping[str, object]
) -> ServerTransport:
    given = dict(settings)
    if sessions is not True and url.lower().startswith(HTTP):
        given["sessions"] = sessions
        given |= {} if sessions else {"sse_path": None}
    if routes and url.lower().startswith(HTTP):
        given["routes"] = routes
    try:
        transport = server_transport(url, **given)
        # A transport for both sides makes its server side now, so that it refuses wrong options before it serves.
        make = getattr(transport, "for_servers", None)
        return transport if make is None else make()
    except (ValueError, McpError) as error:
        raise WrongUsage(str(error)) from error


def routes_beside(server: Server, options: ServeOptions, worker: Any = None) -> Mapping[str, object]:
    """Returns what is served beside MCP, and gives the server the telemetry that was asked for.

    Args:
        server: The server.
        options: Those of the command line.
        worker: The place of this process among those of a supervisor, if it is one of several.
    """
    routes: dict[str, object] = {}
    if options.health is not None:
        routes[options.health] = importlib.import_module("mcp_transports.http.server").health
    if options.card is not None:
        routes |= _card_routes(server, options)
    if options.metrics is not None or options.telemetry is not None:
        observe = importlib.import_module("mcp_actors.cli.observing").observe
        shown = None if worker is None else worker.pages
        routes |= observe(server, options.metrics, options.telemetry, shown)
    if options.admin is not None:
        counting = importlib.import_module("mcp_actors.telemetry.history").counting
        server.telemetry = counting(server.telemetry)
    if options.access_log:
        # Only a server with a log of its calls imports what that takes.
        telemetry: Any = importlib.import_module("mcp_actors.telemetry.combined")
        own, logged = server.telemetry, telemetry.AccessLog()
        server.telemetry = logged if own is None else telemetry.Together(own, logged)
    return routes


def _card_routes(server: Server, options: ServeOptions) -> Mapping[str, object]:
    name, _, url = (options.card or "").partition("=")
    try:
        routes: Mapping[str, object] = importlib.import_module("mcp_transports.http.server").card_routes(
            name,
            lambda: server.info,
            [urlsplit(each).path or "/mcp" for each in options.listen if each.lower().startswith(HTTP)],
            url=url or options.resource,
        )
    except ValueError as error:
        raise WrongUsage(f"--card: {error}") from error
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


def admin_transport(options: ServeOptions) -> Any:
    """Returns a `mcp_transports.admin.AdminTransport`. The token leaves the environment, which tools hand on.

    Args:
        options: Those of the command line, with an ``--admin``.

    Raises:
        WrongUsage: The URL cannot be one of an admin endpoint, or the token is too short.
    """
    url = options.admin or ""
    token = os.environ.pop(TOKEN_VARIABLE, None)
    binding = importlib.import_module("mcp_transports.admin")
    secured = _tls(options) if url.lower().startswith(TLS) else {}
    try:
        return binding.AdminTransport(url, token=token if not url.startswith("unix:") else None, **secured)
    except ValueError as error:
        raise WrongUsage(str(error)) from error
