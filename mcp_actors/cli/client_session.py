"""Runs one command with a client of a URL. Ctrl-C cancels the call in order, at the server as well."""

from __future__ import annotations

import functools
import importlib
import math
import os
import shlex
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import click
import trio

from mcp_actors import Client
from mcp_actors.abc import ClientTransport
from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure, LoginNeeded, WrongUsage, asks_for_login
from mcp_actors.cli.headers import bearer_from_environment, given_headers, takes_headers
from mcp_actors.cli.output import safe
from mcp_actors.cli.progress import CallView
from mcp_actors.client import OutboundCallStatistics
from mcp_actors.discovery import client_transport
from mcp_actors.errors import ConnectFailed, McpError

__all__ = ["ConnectionOptions", "Interrupted", "client_options", "run_with_client"]

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

# Seconds after which a person is told what is being waited for.
PATIENCE = 2.0
# Seconds without an answer to discovery after which `Client` tries `initialize` too.
PROBE_TIMEOUT = 5.0
HANDSHAKE = ("server/discover", "initialize")


class Interrupted(CommandFailure):
    """Ctrl-C or SIGTERM ended the command; ``connected`` says whether a server was connected then."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self, connected: bool) -> None:
        super().__init__("cancelled; the server was told" if connected else "interrupted while connecting")


@attrs.frozen
class ConnectionOptions:
    """The server that a command talks to and how long it waits: the words that `client_options` adds to it."""

    url: str
    era: str
    timeout: float
    cap: float
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)


def client_options(function: _F) -> Callable[..., Any]:
    """Adds ``URL``, ``--era``, ``--timeout``, ``--cap``, ``--header`` and ``--bearer-env`` to a command.

    The command gets them as ``connection``.
    """

    @functools.wraps(function)
    def with_connection(
        url: str,
        era: str,
        timeout: float,
        cap: float,
        header: tuple[str, ...],
        bearer_env: str | None,
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
            metavar="NAME:VALUE",
            multiple=True,
            help="A header of every request (http, https, ws, wss); may be repeated.",
        ),
        click.option(
            "--cap",
            type=float,
            default=300.0,
            show_default=True,
            help="Seconds for a call in all, progress or not.",
        ),
        click.option(
            "--timeout",
            type=float,
            default=30.0,
            show_default=True,
            help="Seconds without answer or progress.",
        ),
        click.option(
            "--era",
            default="auto",
            show_default=True,
            metavar="ERA",
            help="auto, legacy, modern, or a revision to insist on.",
        ),
        click.argument("url", callback=_checked_url),
    ):
        command = option(command)
    return command


def _checked_url(_ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    if url == "stdio:":
        raise click.UsageError("stdio: needs the command that starts the server: 'stdio:python server.py'")
    if ":" not in url:
        meant = f"'stdio:python {url}'" if url.endswith(".py") else "'stdio:COMMAND ARG...'"
        raise click.UsageError(f"{url!r} is no URL: write {meant} as one word, or scheme://...")
    return url


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


def run_with_client(
    connection: ConnectionOptions, work: Callable[[Client], Awaitable[_T]], view: CallView, **options: Any
) -> _T:
    """Connects, awaits ``work(client)``, closes and returns the result.

    The first Ctrl-C cancels ``work``, so that the server is told of a cancelled call, and closes in order. A second one
    cancels the closing too.

    Args:
        connection: The server, and how to talk to it.
        work: What to do with the client.
        view: Shows what the server writes to its stderr, and what is being waited for.
        options: Further ones of `~mcp_actors.Client`.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came before there was a result.
        WrongUsage: The era or the URL does not exist, or a number of seconds is none.
        McpError: What connecting or ``work`` raised.
    """
    return trio.run(_run_with_client, connection, work, view, options)


def _what_to_do(failure: Exception, connection: ConnectionOptions) -> CommandFailure | None:
    """Returns a failure in words for the command line; ``None`` if its own are as good."""
    if type(failure) is ConnectFailed and isinstance(failure.__cause__, ValueError):
        # Some bindings look at their options when they are used, such as at headers that they set themselves.
        return WrongUsage(str(failure.__cause__))
    if not asks_for_login(failure):
        return None
    url = shlex.quote(connection.url)
    if connection.headers:
        return CommandFailure(
            "the server asks for authorization: it does not accept the headers that were given"
        )
    return LoginNeeded(f"the server asks for authorization; run: mcp-actors login {url}")


@attrs.define(eq=False)
class _Interrupt:
    """Cancels on a signal: everything while connecting, the work once connected, everything the second time."""

    everything: trio.CancelScope
    work: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connected: bool = False
    happened: bool = False

    async def watch(self, signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            (self.work if self.connected and not self.happened else self.everything).cancel()
            self.happened = True


async def _run_with_client(
    connection: ConnectionOptions,
    work: Callable[[Client], Awaitable[_T]],
    view: CallView,
    options: dict[str, Any],
) -> _T:
    failure: Exception | None = None
    answers: list[_T] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            interrupt = _Interrupt(nursery.cancel_scope)
            nursery.start_soon(interrupt.watch, signals)
            try:
                target = await _target(connection, view)
                unconnected = _client(target, connection, options)
                nursery.start_soon(_say_what_is_waited_for, unconnected, view, connection)
                async with unconnected as client:
                    interrupt.connected = True
                    if client.server_info is not None:
                        view.server = client.server_info.name
                    with interrupt.work:
                        answers.append(await work(client))
            except Exception as error:  # kept, because the nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    view.waits_for("")
    if answers and not failure:
        return answers[0]
    if interrupt.happened:
        raise Interrupted(interrupt.connected)
    assert failure is not None
    advice = _what_to_do(failure, connection)
    if advice is not None:
        raise advice from failure
    raise failure


def _client(target: str | ClientTransport, connection: ConnectionOptions, options: dict[str, Any]) -> Client:
    try:
        return Client(
            target,
            era=connection.era,
            timeout=connection.timeout,
            cap=connection.cap,
            probe_timeout=PROBE_TIMEOUT,
            **options,
        )
    except (ValueError, TypeError, McpError) as error:  # a URL, an era or a time that does not exist
        raise WrongUsage(str(error)) from error


async def _target(connection: ConnectionOptions, view: CallView) -> str | ClientTransport:
    """A child's stderr goes to the view, and requests to a URL have the headers or the login of a person."""
    url, headers = connection.url, connection.headers
    scheme, _, rest = url.partition(":")
    view.server = safe(url)
    options: dict[str, Any] = {"headers": headers} if headers else {}
    if scheme.lower() == "stdio":
        options = {"stderr": view.server_line}
    elif takes_headers(url) and "authorization" not in map(str.lower, headers):
        # Only such a URL needs this module, and what it imports.
        auth = await importlib.import_module("mcp_actors.cli.stored_login").stored_auth(url)
        options |= {} if auth is None else {"auth": auth}
    if not options:
        return url
    try:
        transport = client_transport(url, **options)
    except (ValueError, TypeError, McpError) as error:
        raise WrongUsage(str(error)) from error
    if scheme.lower() == "stdio":
        program, *words = shlex.split(rest)
        # Of an interpreter, the script says more than its own name does.
        script = [os.path.basename(words[0])] if words and not words[0].startswith("-") else []
        view.server = safe(" ".join([os.path.basename(program), *script]))
    return transport


async def _say_what_is_waited_for(client: Client, view: CallView, connection: ConnectionOptions) -> None:
    """Says it after `PATIENCE` seconds of waiting for one thing, and again every second."""
    # A handshake has a clock of its own, which its requests do not show.
    handshake = connection.timeout + (PROBE_TIMEOUT if connection.era == "auto" else 0)
    since = trio.current_time()
    doing = "connecting to"
    while True:
        await trio.sleep(PATIENCE / 2)
        try:
            pending = client.tree().pending
        except McpError:
            waited = trio.current_time() - since
            view.waits_for(
                f"{doing} {view.server} for {waited:.0f} s; Ctrl-C stops" if waited >= PATIENCE else ""
            )
            continue
        since, doing = trio.current_time(), "ending the connection to"
        view.waits_for(_waited_for(pending, view.server, handshake))


def _waited_for(pending: Sequence[OutboundCallStatistics], server: str, handshake: float) -> str:
    if not pending or pending[0].age < PATIENCE:
        return ""
    longest = pending[0]
    remaining = longest.remaining
    if longest.method in HANDSHAKE:
        remaining = max(0, handshake - longest.age)
    left = "" if math.isinf(remaining) else f", {remaining:.0f} s left"
    return f"waiting for {longest.method} from {server}{left}; Ctrl-C stops"
