"""The options of ``mcp-actors serve`` as one value, and the rules by which they fit together, as a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import click

__all__ = [
    "HTTP",
    "RULES",
    "STDIO",
    "WITH_HOST",
    "ServeOptions",
    "address_options",
    "caller_options",
    "require_fitting",
]

_F = TypeVar("_F", bound=Callable[..., Any])

STDIO = "stdio:"
HTTP = ("http:", "https:", "http+unix:")
WITH_HOST = (*HTTP, "ws:", "wss:")
"""Bindings in which a request says whom it means to have called, and from where."""


@attrs.frozen(kw_only=True)
class ServeOptions:
    """The options, by the names that click gives their values."""

    listen: Sequence[str]
    allow_host: Sequence[str]
    allow_origin: Sequence[str]
    issuer: Sequence[str]
    resource: str | None
    scope: Sequence[str]
    health: str | None
    admin: str | None
    metrics: str | None
    telemetry: str | None
    workers: int | None = None
    shared: str | None = None
    reload: bool = False
    reload_dir: Sequence[str] = ()

    def paths(self) -> dict[str, str]:
        """Returns the paths that are served beside MCP, by their options."""
        named = {"--health": self.health, "--metrics": self.metrics}
        return {option: path for option, path in named.items() if path is not None}

    def serves(self, schemes: tuple[str, ...]) -> bool:
        """Returns whether a URL has one of some schemes."""
        return any(url.lower().startswith(schemes) for url in self.listen)


def require_fitting(options: ServeOptions) -> None:
    """Raises `click.UsageError` for the first rule that the options break."""
    for broken, text in RULES:
        for found in broken(options):
            raise click.UsageError(text.format(**found))


def address_options(function: _F) -> _F:
    """Adds the options that say where a command serves, and for whom: they become a `ServeOptions`."""
    listen = click.option(
        "--listen", metavar="URL", multiple=True, help="Where to serve; may be repeated. Default: stdio:"
    )
    return listen(caller_options(function))


def caller_options(function: _F) -> _F:
    """Adds those of `address_options` that say for whom a command serves, and who may look at it."""
    for option in reversed(_CALLER_OPTIONS):
        function = option(function)
    return function


_CALLER_OPTIONS: Sequence[Callable[..., Any]] = (
    click.option(
        "--allow-host",
        metavar="HOST",
        multiple=True,
        help="For HTTP and WebSocket: a name by which clients may call this server. Default: the address itself.",
    ),
    click.option(
        "--allow-origin",
        metavar="ORIGIN",
        multiple=True,
        help="For HTTP and WebSocket: a web site whose pages may use it, such as https://app.example.org.",
    ),
    click.option(
        "--issuer",
        metavar="URL",
        multiple=True,
        help="Demand access tokens, of this authorization server; may be repeated.",
    ),
    click.option("--resource", metavar="URL", help="With --issuer: the URL that clients know the server by."),
    click.option(
        "--scope",
        metavar="SCOPE",
        multiple=True,
        help="With --issuer: scopes that every request needs; blanks between several, may be repeated.",
    ),
    click.option(
        "--health",
        metavar="PATH",
        help="For HTTP: a path, such as /health, where load balancers may ask how the server is.",
    ),
    click.option(
        "--admin",
        metavar="URL",
        help="Where operators may look at what runs: unix:PATH, or http://127.0.0.1:PORT with a token. See "
        "mcp-actors top.",
    ),
    click.option(
        "--metrics",
        metavar="PATH",
        help="For HTTP: a path, such as /metrics, where Prometheus finds the numbers of this server.",
    ),
    click.option(
        "--telemetry",
        type=click.Choice(["otel"]),
        help="Trace and measure by OpenTelemetry, to where OTEL_EXPORTER_OTLP_ENDPOINT says.",
    ),
)


_Found = Iterable[dict[str, object]]


def _if(is_broken: object) -> _Found:
    return [{}] if is_broken else []


def _without_tokens(options: ServeOptions) -> _Found:
    # An address that asks for no tokens would be a way round those that do.
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
"""Each finds what breaks it, with the words that its text has places for; the first that does is told."""
