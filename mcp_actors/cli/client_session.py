"""Runs one command with a client of a URL. Ctrl-C cancels the call in order, at the server as well."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import attrs
import trio

from mcp_actors import Client
from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.connection_options import ConnectionOptions, takes_headers
from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure, LoginNeeded, WrongUsage, asks_for_login
from mcp_actors.cli.output import safe
from mcp_actors.cli.progress import CallView
from mcp_actors.client import OutboundCallStatistics
from mcp_actors.errors import ConnectFailed, LoginRequired, McpError
from mcp_actors.supervision.platform import STOP_SIGNALS, join_words, split_line

__all__ = ["Interrupted", "run_with_client"]

_T = TypeVar("_T")

# Seconds after which a line says what the command waits for.
PATIENCE = 2.0
# Seconds without an answer to discovery after which `Client` tries `initialize` too.
PROBE_TIMEOUT = 5.0
HANDSHAKE = ("server/discover", "initialize")


class Interrupted(CommandFailure):
    """Ctrl-C or SIGTERM ended the command; ``connected`` says whether a server was connected then."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self, connected: bool) -> None:
        super().__init__("cancelled; the server was told" if connected else "interrupted while connecting")


def run_with_client(
    connection: ConnectionOptions, work: Callable[[Client], Awaitable[_T]], view: CallView, **options: Any
) -> _T:
    """Connects, awaits ``work(client)``, closes and returns the result.

    The first Ctrl-C cancels ``work``, so that the server learns of a cancelled call, and closes in order. A second one
    cancels the closing too.

    Args:
        connection: The server, and how to talk to it.
        work: What to do with the client.
        view: Shows what the server writes to its stderr, and what is being waited for.
        options: Further ones of `~mcp_actors.Client`.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came before there was a result.
        WrongUsage: The era or the URL does not exist, or a timeout is not a number.
        McpError: What connecting or ``work`` raised.
    """
    return trio.run(_run_with_client, connection, work, view, options)


def _what_to_do(failure: Exception, connection: ConnectionOptions) -> CommandFailure | None:
    """Returns a failure with advice for the command line; ``None`` if its own message is as good."""
    if type(failure) is ConnectFailed and isinstance(failure.__cause__, ValueError):
        # Some bindings check their options when they are used, such as headers that they set themselves.
        return WrongUsage(str(failure.__cause__))
    if not asks_for_login(failure):
        return None
    if connection.headers:
        return CommandFailure(
            "the server asks for authorization: it does not accept the headers that were given"
        )
    words = ["mcp-actors", "login", connection.url]
    if isinstance(failure, LoginRequired) and failure.url is not None:
        # If the server asks for more scopes now, a login for the same as before would not be enough.
        for scope in parse_qs(urlsplit(failure.url).query).get("scope", ()):
            words += ["--scope", scope]
    return LoginNeeded(f"the server asks for authorization; run: {join_words(words)}")


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
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            interrupt = _Interrupt(nursery.cancel_scope)
            nursery.start_soon(interrupt.watch, signals)
            try:
                async with AsyncExitStack() as opened:
                    target = await _target(connection, view, opened)
                    unconnected = _client(target, connection, options)
                    nursery.start_soon(_say_what_is_waited_for, unconnected, view, connection)
                    async with unconnected as client:
                        interrupt.connected = True
                        if client.server_info.name:
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
            **{name: value for name, value in options.items() if value is not None},
        )
    except (ValueError, TypeError, McpError) as error:  # a URL, an era or a time that does not exist
        raise WrongUsage(str(error)) from error


async def _target(
    connection: ConnectionOptions, view: CallView, opened: AsyncExitStack
) -> str | ClientTransport:
    """Returns where to connect, and has ``opened`` close what that needs.

    A child's stderr goes to the view, and requests to a URL have the headers or the login of a person.
    """
    url, headers = connection.url, connection.headers
    scheme, _, rest = url.partition(":")
    options: dict[str, Any] = {"headers": headers} if headers else {}
    if scheme.lower() in ("http", "https") and urlsplit(url).path in ("", "/"):
        # A domain may say where its servers are; few URLs are one, and looking takes a module of its own.
        catalog = importlib.import_module("mcp_actors.cli.catalog")
        url, http = await catalog.found_at(url, view.said, has_headers=bool(headers))
        if http is not None:
            options["client"] = await opened.enter_async_context(http)
    view.url, view.server = url, safe(url)
    if scheme.lower() == "stdio":
        options = {"stderr": view.server_line, "env": "inherit"}
    elif takes_headers(url) and "authorization" not in map(str.lower, headers):
        # Only such a URL needs this module, and what it imports.
        auth = await importlib.import_module("mcp_actors.cli.login").stored_auth(url)
        options |= {} if auth is None else {"auth": auth}
    if not options:
        return url
    try:
        transport = client_transport(url, **options)
    except (ValueError, TypeError, McpError) as error:
        raise WrongUsage(str(error)) from error
    if scheme.lower() == "stdio":
        program, *words = split_line(rest)
        # The name of a script says more than that of its interpreter.
        script = [os.path.basename(words[0])] if words and not words[0].startswith("-") else []
        view.server = safe(" ".join([os.path.basename(program), *script]))
    return transport


async def _say_what_is_waited_for(client: Client, view: CallView, connection: ConnectionOptions) -> None:
    """Says what is waited for after `PATIENCE` seconds, and again every second."""
    # A handshake has a timeout of its own, which its requests do not show.
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
