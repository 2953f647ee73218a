"""The addresses that options of ``mcp-actors`` name: their transports, and what is said once they are there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence, Sized

import attrs
import click

from mcp_actors import Server
from mcp_actors.abc import ServerTransport
from mcp_actors.cli.admin_option import admin_transport
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.serve_options import HTTP, STDIO, WITH_HOST, ServeOptions
from mcp_actors.discovery import server_transport
from mcp_actors.errors import McpError

__all__ = ["Announcement", "offer", "routes_beside", "serve_at", "serves_stdio_alone", "serving_transports"]


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
    counts: dict[str, Sized] = {"tool": server.tools, "resource": server.resources, "prompt": server.prompts}
    has = [f"{len(each)} {name}{'' if len(each) == 1 else 's'}" for name, each in counts.items() if len(each)]
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
        # A transport for either side makes that for servers now, so that it refuses its options before it serves.
        make = getattr(transport, "for_servers", None)
        return transport if make is None else make()
    except (ValueError, McpError) as error:
        raise WrongUsage(str(error)) from error


class Announcement:
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


def serve_at(server: Server, options: ServeOptions, hint: str) -> None:
    """Serves in this process until every address is done, or a signal to stop.

    Args:
        server: The server.
        options: Those of the command line.
        hint: What a person on a terminal is told about the server.

    Raises:
        WrongUsage: An address cannot be served so.
        OSError: An address is taken, or may not be used.
    """
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
