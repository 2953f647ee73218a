"""``mcp-actors gateway`` and ``mcp-actors bridge``: many servers, or one, served anew."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import click
import structlog
import trio

from mcp_actors import Client, ClientGroup
from mcp_actors.abc import ClientTransport
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.connection_options import (
    ConfigurableCommand,
    ConnectionOptions,
    Section,
    takes_headers,
    upstream_options,
)
from mcp_actors.cli.failures import (
    CommandFailure,
    LoginNeeded,
    WrongUsage,
    asks_for_login,
    reported,
    run_interruptible,
    sentence,
    traceback_option,
)
from mcp_actors.cli.output import echo, safe
from mcp_actors.cli.serve_options import (
    ServeOptions,
    is_own_address,
    options_of,
    require_fitting,
    sections_of,
    serve_at,
)
from mcp_actors.errors import ConfigurationError, ConnectFailed, McpError
from mcp_actors.gateway import SessionPolicy, UpstreamTarget, bridge_to, configured_gateway
from mcp_actors.gateway.server_entries import ServerEntries, read_server_entries
from mcp_actors.gateway.server_entry import WITHIN, ServerEntry

__all__ = ["bridge_command", "check_servers", "command", "stored_access"]


GATEWAY = (Section("The gateway", ["--check", "--name"]), *sections_of("gateway"))
BRIDGE = (
    Section(
        "The server",
        ["--header", "--bearer-env", "--sessions", "--era", "--timeout", "--cap"],
        "A login of mcp-actors login URL is used by itself. What the clients of the bridge present is never passed on.",
    ),
    *sections_of("bridge"),
)


@click.command(
    "gateway",
    cls=ConfigurableCommand,
    sections=GATEWAY,
    beside="config",
    short_help="Serve many servers as one.",
)
@click.argument("config")
@options_of("gateway")
@click.option(
    "--name", metavar="NAME", help="The name of the gateway; by default that of CONFIG, or gateway."
)
@click.option("--check", is_flag=True, help="Connect to each server once, show what is there, and end.")
@traceback_option
def command(config: str, name: str | None, check: bool, show_traceback: bool, **given: Any) -> None:
    """Serve the servers of a configuration as one.

    \b
    CONFIG  the file of Claude Desktop, Claude Code, Cursor, Windsurf (mcpServers)
            or Visual Studio Code (servers); its object "gateway" may have
            listen, name and instructions

    \b
    mcp-actors gateway ~/.cursor/mcp.json --check
    mcp-actors gateway ~/.cursor/mcp.json --listen http://127.0.0.1:8000/mcp

    A server that is away costs only its own tools. Ends as mcp-actors serve does, with the processes that it started.

    The exit code of --check is 1 if a server cannot be used, and 3 if a person has to log in for each that cannot.
    """
    options = ServeOptions(**given)
    with reported(show_traceback):
        entries = _entries(config)
        options = attrs.evolve(options, listen=options.listen or entries.gateway.listen)
        _refuse_itself(entries, options.listen)
        require_fitting(options)
        _say_what_is_unused(entries)
        access = stored_access(entries)
        if check:
            check_servers(entries, access)
            return
        settings = {} if name is None else {"name": name}
        gateway = configured_gateway(entries, access=access, **settings)
        names = [entry.name for entry in entries]
        serve_at(gateway, options, f"{gateway.info.name}: {len(names)} servers: {safe(', '.join(names))}")


def _entries(config: str) -> ServerEntries:
    if not os.path.exists(os.path.expanduser(config)):
        meant = f"; for one server: mcp-actors bridge {config} TO" if "://" in config else ""
        raise WrongUsage(f"there is no file {config}{meant}")
    path = os.path.realpath(os.path.expanduser(config))
    outer = os.environ.get(WITHIN, "").split(os.pathsep)
    if path in outer:
        raise WrongUsage(
            f"a server of {config} is a gateway that serves {config}: it would start itself for ever. Take its entry"
            f" out of the file, or give the gateway a file of its own"
        )
    entries = read_server_entries(os.path.abspath(os.path.expanduser(config)))
    os.environ[WITHIN] = os.pathsep.join([*filter(None, outer), path])
    if not any(True for _ in entries):
        raise WrongUsage(f"{config} has no server that is not disabled")
    return entries


def _refuse_itself(entries: ServerEntries, listen: Sequence[str]) -> None:
    for entry in entries:
        if entry.url is not None and is_own_address(entry.url, listen):
            raise WrongUsage(
                f"the server {entry.name} is at {entry.url}, where this gateway serves: it would ask itself for"
                f" ever. Take the entry out, or serve at another URL"
            )


def _say_what_is_unused(entries: ServerEntries) -> None:
    unused: list[tuple[str, Sequence[str]]] = [(entry.name, entry.unknown) for entry in entries]
    for name, members in [("gateway", entries.gateway.unknown), *unused]:
        if members:
            text = f"mcp-actors: {name}: these members have no effect here: {', '.join(members)}"
            echo(safe(text), file=sys.stderr)


# -- ``mcp-actors bridge`` -------------------------------------------------------------------------------


@click.command(
    "bridge", cls=ConfigurableCommand, sections=BRIDGE, short_help="Serve a server at another address."
)
@upstream_options
@click.argument("to")
@click.option(
    "--sessions",
    type=click.Choice(["auto", "shared", "own"]),
    default="auto",
    show_default=True,
    help="Whether clients share a connection to the server: auto shares it where the server keeps no sessions.",
)
@options_of("bridge")
@traceback_option
def bridge_command(
    connection: ConnectionOptions, to: str, sessions: SessionPolicy, show_traceback: bool, **given: Any
) -> None:
    """Serve a server at another address, over another binding.

    \b
    URL  the server: stdio:COMMAND ARG... as one word, or any scheme
    TO   where it is served: stdio: for one client, or a URL of any scheme

    \b
    mcp-actors bridge 'stdio:npx -y @modelcontextprotocol/server-memory' http://127.0.0.1:8000/mcp
    mcp-actors bridge https://example.org/mcp stdio:
    mcp-actors bridge ws://127.0.0.1:9000/ws http://127.0.0.1:8000/mcp

    A server that keeps sessions has a connection, and over stdio a process, for each session of a client. Ends as
    mcp-actors serve does, with the processes that it started.
    """
    options = ServeOptions(listen=(to,), **given)
    require_fitting(options)
    with reported(show_traceback):
        if is_own_address(connection.url, [to]):
            raise WrongUsage(f"the server and the bridge are both at {to}: it would ask itself for ever")
        settings = {"era": connection.era, "timeout": connection.timeout, "cap": connection.cap}
        bridge = bridge_to(_target(connection, settings), sessions=sessions, settings=settings)
        serve_at(bridge, options, f"a bridge to {connection.url.partition(':')[0]}:")


def _target(connection: ConnectionOptions, settings: dict[str, Any]) -> UpstreamTarget:
    """Returns what the bridge connects to, with the headers or the login of a person."""
    url, headers = connection.url, connection.headers
    options: dict[str, Any] = {"headers": headers} if headers else {}
    if url.partition(":")[0].lower() == "stdio":
        options = {"env": "inherit"}
    elif takes_headers(url) and "authorization" not in map(str.lower, headers):
        # Only such a URL needs this module, and what it imports.
        auth = trio.run(importlib.import_module("mcp_actors.cli.login").stored_auth, url)
        options |= {} if auth is None else {"auth": auth}
    make = partial(client_transport, url, **options)
    try:
        Client(make(), **settings)
    except (ValueError, TypeError, McpError) as error:
        raise WrongUsage(str(error)) from error
    return make if options else url


# -- The logins that are stored for the servers of a configuration -------------------------------------


def stored_access(entries: Iterable[ServerEntry]) -> dict[str, Any]:
    """Returns the access to each server where somebody has logged in, by the names of the servers.

    Raises:
        TokenStoreFailed: The store cannot be read.
    """
    urls: dict[str, str] = {}
    for entry in entries:
        if entry.takes_auth:
            try:
                urls[entry.name] = entry.address() or ""
            except ConfigurationError:
                continue  # connecting to the server will report it
    # Only a configuration with such a server needs what this imports.
    return trio.run(_load, urls) if urls else {}


async def _load(urls: dict[str, str]) -> dict[str, Any]:
    stored_auth = importlib.import_module("mcp_actors.cli.login").stored_auth
    found = {name: await stored_auth(url) for name, url in urls.items()}
    return {name: auth for name, auth in found.items() if auth is not None}


# -- ``mcp-actors gateway --check``: each server is connected to once ----------------------------------

_TITLES = ("server", "is", "protocol", "tools", "resources + templates", "prompts")
# Characters of the reason why a server cannot be used.
_LONGEST_REASON = 400
# Lines of what a server that cannot be used has written.
_MOST_LINES = 20
# Entries of a list that are counted one by one.
_MOST = 10_000


def check_servers(entries: ServerEntries, access: Mapping[str, Any]) -> None:
    """Connects to each server and prints a table of those that are there; the error names the others.

    What a server writes to its stderr is shown only if it cannot be used.

    Args:
        entries: The configuration.
        access: The ``auth`` of servers, by their names.

    Raises:
        LoginNeeded: Servers cannot be used, each of them because a person has to log in.
        CommandFailure: Servers cannot be used, or Ctrl-C ended the check.
    """
    # The log would say again what the last lines say.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    servers = {each.name: _Overheard(each, each.name, each.gateway, each.headers) for each in entries}
    if sys.stderr.isatty():
        echo(f"connecting to {safe(', '.join(servers))}", err=True)
    found = run_interruptible(lambda: _facts(servers.values(), access), "the check was interrupted")
    there = {name: facts for name, facts in found.items() if not isinstance(facts, Exception)}
    for line in _table([(name, *facts) for name, facts in there.items()]):
        echo(line)
    failures = {name: _reason(facts) for name, facts in found.items() if isinstance(facts, Exception)}
    if failures:
        lines = [f"{len(failures)} of {len(found)} servers cannot be used"]
        for name, failure in failures.items():
            lines += servers[name].explain(failure)
        kind = LoginNeeded if all(map(asks_for_login, failures.values())) else CommandFailure
        raise kind("\n".join(lines))


@attrs.frozen
class _Overheard:
    """A server whose stderr is kept, and shown only after a failure."""

    entry: ServerEntry
    name: str
    gateway: Any
    headers: Mapping[str, str]
    written: list[str] = attrs.field(factory=list)

    @property
    def takes_auth(self) -> bool:
        return self.entry.takes_auth

    def target(self, **options: Any) -> str | ClientTransport:
        kept: dict[str, Any] = {} if self.entry.command is None else {"stderr": self._keep}
        return self.entry.target(**kept, **options)

    def explain(self, failure: Exception) -> Iterator[str]:
        """Returns the lines that say why it cannot be used."""
        first, *rest = sentence(failure).splitlines() or [""]
        login = "; run: mcp-actors login URL" if asks_for_login(failure) else ""
        yield f"{self.name}: {safe(first)[:_LONGEST_REASON]}{login}"
        # A client that finds out which era a server has may have started it twice.
        yield from (f"    {line[:_LONGEST_REASON]}" for line in [*rest, *dict.fromkeys(self.written)])

    def _keep(self, line: str) -> None:
        self.written.append(line)
        del self.written[:-_MOST_LINES]


async def _facts(
    servers: Iterable[_Overheard], access: Mapping[str, Any]
) -> dict[str, tuple[str, ...] | Exception]:
    def options_for(name: str) -> Mapping[str, Any]:
        return {"auth": access[name]} if name in access else {}

    async with ClientGroup(servers, options_for=options_for, restart=False) as group:
        return await group.for_each(_facts_of)


async def _facts_of(client: Client) -> tuple[str, ...]:
    declared = client.server_capabilities
    info = client.server_info
    resources = "-"
    if declared.resources is not None:
        resources = await _count(client.resources())
        templates = await _count(client.resource_templates())
        resources += f" + {templates}" if templates != "0" else ""
    return (
        f"{info.name} {info.version}".strip() or "a server without a name",
        f"{client.era} {client.version}",
        "-" if declared.tools is None else await _count(client.tools()),
        resources,
        "-" if declared.prompts is None else await _count(client.prompts()),
    )


async def _count(entries: AsyncIterator[Any]) -> str:
    count = 0
    async for _ in entries:
        count += 1
        if count == _MOST:
            return f"{count}..."
    return str(count)


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    shown = [_TITLES, *(tuple(safe(cell)[:60] for cell in row) for row in rows)]
    widths = [max(len(row[at]) for row in shown) for at in range(len(_TITLES))]
    for row in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _reason(error: Exception) -> Exception:
    """Returns why a server of a group cannot be used: its own error, without the name of the server."""
    cause = error.__cause__
    return cause if type(error) is ConnectFailed and isinstance(cause, Exception) else error
