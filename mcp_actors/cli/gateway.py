"""``mcp-actors gateway`` and ``mcp-actors bridge``: many servers, or one, served anew."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import attrs
import click
import structlog
import trio

from mcp_actors import Client, ClientGroup
from mcp_actors.abc import ClientTransport, ServerHandler
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.commands import package_version
from mcp_actors.cli.connection_options import (
    ConfigurableCommand,
    ConnectionOptions,
    Section,
    lock_option,
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
from mcp_actors.cli.serve import employed, join_service, serve_here, supervise_workers, supervises
from mcp_actors.cli.serve_options import (
    ServeOptions,
    equip,
    is_own_address,
    options_of,
    require_fitting,
    sections_of,
    set_log,
    upstream_limits,
)
from mcp_actors.cli.start import has_terminal
from mcp_actors.client import LockFile, ServerLock
from mcp_actors.errors import CallTimeout, ConfigurationError, ConnectFailed, McpError
from mcp_actors.gateway import Gateway, SessionPolicy, Upstream, UpstreamTarget, bridge_to, upstreams_of
from mcp_actors.gateway.server_entries import ServerEntries, read_server_entries
from mcp_actors.gateway.server_entry import WITHIN, ServerEntry
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable

__all__ = [
    "CONNECTION",
    "ConfigurationReload",
    "ConfiguredUpstreams",
    "bridge_command",
    "check_servers",
    "command",
    "load_access",
    "serve_bridge",
    "stored_access",
    "transport_of",
]


GATEWAY = (Section("The gateway", ["--check", "--name", "--lock"]), *sections_of("gateway"))
_LOGIN = "A login of mcp-actors login URL is used by itself. What the clients of the bridge present is never passed on."
CONNECTION = Section("The server", ["--header", "--bearer-env", "--era", "--timeout", "--cap"], _LOGIN)
BRIDGE = (
    attrs.evolve(CONNECTION, options=[*CONNECTION.options, "--sessions"]),
    Section("Faults on purpose", ["--chaos", "--chaos-seed"]),
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
@lock_option
@click.option("--check", is_flag=True, help="Connect to each server once, show what is there, and end.")
@traceback_option
def command(
    config: str, name: str | None, lock: str | None, check: bool, show_traceback: bool, **given: Any
) -> None:
    """Serve the servers of a configuration as one.

    \b
    CONFIG  the file of Claude Desktop, Claude Code, Cursor, Windsurf (mcpServers)
            or Visual Studio Code (servers); its object "gateway" may have
            listen, name and instructions

    \b
    mcp-actors gateway ~/.cursor/mcp.json --check
    mcp-actors gateway ~/.cursor/mcp.json --listen http://127.0.0.1:8000/mcp

    A server that is away, and an entry that is malformed, cost only their own tools. The file is read again when it has
    changed and at SIGHUP: servers whose entries are the same notice nothing. Ends as mcp-actors serve does, with the
    processes that it started.

    With --lock, what a server offers and mcp-actors lock has not written, or otherwise, is not offered and not called;
    the log has the difference. The file is read again with the configuration.

    The exit code of --check is 1 if a server cannot be used, and 3 if a person has to log in for each that cannot.
    """
    options = ServeOptions(**given)
    with employed() as worker, reported(show_traceback):
        path = _path(config, is_worker=worker is not None)
        entries = _entries(path)
        options = attrs.evolve(options, listen=options.listen or entries.gateway.listen)
        _refuse_itself(entries, options.listen)
        require_fitting(options)
        if worker is None:
            _say_what_is_unused(entries)
        if check:
            os.environ[WITHIN] = _within(path)
            check_servers(entries, stored_access(entries))
            return
        set_log(options)
        if supervises(options, worker):
            supervise_workers("gateway", options, reloads=True)
            return
        os.environ[WITHIN] = _within(path)
        _log_malformed(entries.malformed)
        upstreams = ConfiguredUpstreams(path, upstream_limits(options), options.listen, lock)
        settings: dict[str, Any] = {"version": package_version() or "0", **entries.gateway.given()}
        settings |= {} if name is None else {"name": name}
        gateway = Gateway(trio.run(upstreams.of, entries), **settings)
        equip(gateway, options)
        names = [entry.name for entry in entries]
        said = f"{gateway.info.name}: {len(names)} servers: {safe(', '.join(names))}"
        manager = None if worker is not None else join_service(options)
        reload = ConfigurationReload(gateway, upstreams, entries, manager)
        serve_here(
            gateway,
            options,
            worker,
            said,
            companions=[reload],
            without_tasks=gateway.forgo_tasks,
            manager=manager,
        )


def _path(config: str, *, is_worker: bool) -> str:
    """Returns the path of a configuration.

    Raises:
        WrongUsage: It does not exist, or one of its servers is this gateway.
    """
    expanded = os.path.expanduser(config)
    if not os.path.exists(expanded):
        meant = f"; for one server: mcp-actors bridge {config} TO" if "://" in config else ""
        raise WrongUsage(f"there is no file {config}{meant}")
    if not is_worker and os.path.realpath(expanded) in os.environ.get(WITHIN, "").split(os.pathsep):
        raise WrongUsage(
            f"a server of {config} is a gateway that serves {config}: it would start itself for ever. Take its entry"
            f" out of the file, or give the gateway a file of its own"
        )
    return os.path.abspath(expanded)


def _within(path: str) -> str:
    """Returns what the servers that are started learn of the gateways that they are behind."""
    outer = os.environ.get(WITHIN, "").split(os.pathsep)
    return os.pathsep.join([*filter(None, outer), os.path.realpath(path)])


def _entries(path: str) -> ServerEntries:
    """Reads a configuration.

    Raises:
        ConfigurationError: It cannot be used at all, or every entry of it is malformed.
        WrongUsage: It has no server.
    """
    entries = read_server_entries(path, leaves_out=True)
    if not any(True for _ in entries):
        for error in entries.malformed.values():
            raise error
        raise WrongUsage(f"{path} has no server that is not disabled")
    return entries


def _refuse_itself(entries: Iterable[ServerEntry], listen: Sequence[str]) -> None:
    for entry in entries:
        if entry.url is not None and is_own_address(entry.url, listen):
            raise WrongUsage(
                f"the server {entry.name} is at {entry.url}, where this gateway serves: it would ask itself for"
                f" ever. Take the entry out, or serve at another URL"
            )


def _log_malformed(malformed: Mapping[str, ConfigurationError]) -> None:
    for name, error in malformed.items():
        log.error(
            "a server of the configuration is left out", upstream=printable(name, 100), reason=str(error)
        )


def _say_what_is_unused(entries: ServerEntries) -> None:
    unused: list[tuple[str, Sequence[str]]] = [(entry.name, entry.unknown) for entry in entries]
    for name, members in [("gateway", entries.gateway.unknown), *unused]:
        if members:
            text = f"mcp-actors: {name}: these members have no effect here: {', '.join(members)}"
            echo(safe(text), file=sys.stderr)


# -- The configuration is read again while the gateway serves ------------------------------------------

# Seconds between two looks at whether the file has changed.
LOOK_EVERY = 1.0


@attrs.frozen
class _Configured:
    """An upstream, with what it was made of."""

    entry: ServerEntry
    outputs: Mapping[str, str | None] = attrs.field(repr=False)
    variables: Mapping[str, str] | None = attrs.field(repr=False)
    has_login: bool
    lock: ServerLock | None
    upstream: Upstream = attrs.field(eq=False)


class ConfiguredUpstreams:
    """The upstreams of a configuration. One whose entry is the same again is the same object again.

    Args:
        path: The file.
        limits: The limits of each upstream.
        listen: Where the gateway serves.
        lock: The file of what was approved of the servers.
    """

    def __init__(
        self, path: str, limits: Mapping[str, Any], listen: Sequence[str], lock: str | None = None
    ) -> None:
        self.path = path
        self._limits = limits
        self._listen = listen
        self._lock = lock
        self._made: dict[str, _Configured] = {}

    def __repr__(self) -> str:
        return f"<ConfiguredUpstreams {', '.join(self._made)}>"

    def read(self) -> ServerEntries:
        """Reads the file, and runs the commands in it. It waits for them, so it is for a thread.

        Raises:
            ConfigurationError: It cannot be used at all, or every entry of it is malformed.
            WrongUsage: It has no server.
        """
        entries = _entries(self.path)
        for entry in entries:
            entry.command_outputs()
        return entries

    async def of(self, entries: ServerEntries) -> list[Upstream]:
        """Returns the upstreams of a configuration, in its order; behind them those whose entries are malformed now.

        Raises:
            TokenStoreFailed: The stored logins cannot be read.
            ConfigurationError: The lock cannot be read.
        """
        access = await load_access(entries)
        made: dict[str, _Configured] = {}
        locked = None if self._lock is None else LockFile.read(self._lock)
        for entry in entries:
            if entry.url is not None and is_own_address(entry.url, self._listen):
                log.error("a server is at an address of the gateway, and left out", upstream=entry.name)
                continue
            auth = access.get(entry.name)
            (upstream,) = upstreams_of([entry], access=access)
            lock = None if locked is None else locked.of(entry.name)
            upstream = attrs.evolve(upstream, lock=lock, **self._limits)
            found = _Configured(
                entry, entry.command_outputs(), entry.file_variables(), auth is not None, lock, upstream
            )
            former = self._made.get(entry.name)
            made[entry.name] = former if former == found and former is not None else found
        # What somebody is about to mend goes on as it was.
        made |= {name: self._made[name] for name in entries.malformed if name in self._made}
        self._made = made
        return [each.upstream for each in made.values()]


class ConfigurationReload:
    """Reads the configuration of a gateway again at SIGHUP, and when its file has changed. A companion of transports.

    A configuration that cannot be used changes nothing, and is logged.

    Args:
        gateway: The gateway.
        upstreams: Its upstreams.
        entries: The configuration as it was read at first.
        manager: A `mcp_actors.cli.systemd.ServiceNotifier`, if a service manager wants to know of it.
    """

    is_companion: Literal[True] = True

    def __init__(
        self,
        gateway: Gateway[Any],
        upstreams: ConfiguredUpstreams,
        entries: ServerEntries,
        manager: Any = None,
    ) -> None:
        self._gateway = gateway
        self._manager = manager
        self._upstreams = upstreams
        self._section = entries.gateway
        self._seen = self._signature()

    def __repr__(self) -> str:
        return f"<ConfigurationReload {self._upstreams.path}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Watches until it is cancelled."""
        had_terminal = has_terminal()
        with _hangups() as hangups:
            task_status.started("")
            while True:
                with trio.move_on_after(LOOK_EVERY) as looking:
                    if hangups is None:
                        await trio.sleep_forever()
                    else:
                        await anext(hangups)
                if looking.cancelled_caught:
                    if self._signature() == self._seen:
                        continue
                elif had_terminal and not has_terminal():
                    # The terminal was closed: no person could stop this any more.
                    self._gateway.stop()
                    continue
                if self._manager is not None:
                    self._manager.reloading()
                await self._reload()
                if self._manager is not None:
                    self._manager.ready()

    async def _reload(self) -> None:
        self._seen = self._signature()
        try:
            entries = await trio.to_thread.run_sync(self._upstreams.read, abandon_on_cancel=True)
            _log_malformed(entries.malformed)
            before = self._gateway.upstreams
            after = await self._upstreams.of(entries)
            self._gateway.set_upstreams(after)
        except (McpError, WrongUsage, ValueError) as error:
            reason = error.format_message() if isinstance(error, WrongUsage) else str(error)
            log.error("the configuration cannot be used: the servers stay as they are", reason=reason)
            return
        if entries.gateway != self._section:
            log.warning("the members of gateway change when it is started again")
        log.info(
            "the configuration was read again",
            begun=[each.name for each in after if all(each is not other for other in before)],
            ended=[each.name for each in before if all(each is not other for other in after)],
            unchanged=sum(any(each is other for other in before) for each in after),
        )

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._upstreams.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


@contextmanager
def _hangups() -> Iterator[AsyncIterator[int] | None]:
    """Yields the signals that ask for the configuration to be read again; ``None`` on Windows, which has none."""
    if sys.platform == "win32":
        yield None
        return
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        yield signals


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
@click.option(
    "--chaos",
    metavar="FAULTS",
    help="Disturb the connection to the server: 'latency=200ms jitter=50ms loss=1% lose-answers=2% stall=5s'.",
)
@click.option(
    "--chaos-seed", type=int, default=0, show_default=True, help="The same seed has the same faults."
)
@options_of("bridge")
@traceback_option
def bridge_command(
    connection: ConnectionOptions,
    to: str,
    sessions: SessionPolicy,
    chaos: str | None,
    chaos_seed: int,
    show_traceback: bool,
    **given: Any,
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
    with reported(show_traceback):
        disturbed = None if chaos is None else _disturbed(chaos, chaos_seed)
        serve_bridge(connection, ServeOptions(listen=(to,), **given), sessions, disturbed)


def _disturbed(chaos: str, seed: int) -> Callable[[UpstreamTarget], UpstreamTarget]:
    # Only a bridge with faults needs this module.
    testing = importlib.import_module("mcp_actors.testing.faults")
    try:
        faults = testing.Faults.parse(chaos)
    except ValueError as error:
        raise WrongUsage(f"--chaos: {error}") from error
    numbers = itertools.count(seed)

    def disturb(target: UpstreamTarget) -> UpstreamTarget:
        def make() -> ClientTransport:
            # What the bridge sends is late and stalls; it is lost, and so are answers, on the way back.
            out = attrs.evolve(faults, loss=0.0, lose_answers=0.0, duplicate=0.0)
            made: ClientTransport = testing.FaultyTransport(
                transport_of(target), out, back=faults, seed=next(numbers)
            )
            return made

        return make

    return disturb


def transport_of(target: UpstreamTarget) -> Any:
    """Returns a transport for one connection to what a bridge connects to."""
    made: Any = target() if callable(target) else target
    return client_transport(made) if isinstance(made, str) else made


def serve_bridge(
    connection: ConnectionOptions,
    options: ServeOptions,
    sessions: SessionPolicy,
    between: Callable[[UpstreamTarget], UpstreamTarget] | None = None,
) -> None:
    """Serves one server at another address until a signal ends it.

    Args:
        connection: The server.
        options: Those of the command line, with the one address.
        sessions: As `mcp_actors.gateway.Upstream` has it.
        between: Puts something between the bridge and the server, such as a recorder.

    Raises:
        click.ClickException: The server cannot be connected to so, or not be served there.
    """
    require_fitting(options)
    set_log(options)
    if is_own_address(connection.url, options.listen):
        raise WrongUsage(
            f"the server and the bridge are both at {options.listen[0]}: it would ask itself for ever"
        )
    settings: dict[str, Any] = {
        "era": connection.era,
        "timeout": connection.timeout,
        "cap": connection.cap,
    }
    settings_of_upstream = settings | upstream_limits(options)
    target = _target(connection, settings)
    bridge = bridge_to(
        target if between is None else between(target), sessions=sessions, settings=settings_of_upstream
    )
    equip(bridge, options)
    serve_here(bridge, options, None, f"a bridge to {connection.url.partition(':')[0]}:")


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
    """Returns the same as `load_access`, outside of an event loop."""
    return trio.run(load_access, entries)


async def load_access(entries: Iterable[ServerEntry]) -> dict[str, Any]:
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
    if not urls:
        return {}
    # Only a configuration with such a server needs what this imports.
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
    failures |= entries.malformed
    if failures:
        lines = [f"{len(failures)} of {len(found) + len(entries.malformed)} servers cannot be used"]
        for name, failure in failures.items():
            lines += _explained(name, failure, servers[name].written if name in servers else ())
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

    def _keep(self, line: str) -> None:
        self.written.append(line)
        del self.written[:-_MOST_LINES]


def _explained(name: str, failure: Exception, written: Iterable[str]) -> Iterator[str]:
    """Returns the lines that say why a server cannot be used, with what it has written."""
    first, *rest = sentence(failure, with_page=False).splitlines() or [""]
    if isinstance(failure, CallTimeout):
        # A gateway has no option for it.
        member = "timeout" if failure.clock == "idle" else "cap"
        first = f"{first.removesuffix(')')}; {member} in its entry sets it)"
    login = "; run: mcp-actors login URL" if asks_for_login(failure) else ""
    yield f"{safe(name)}: {safe(first)[:_LONGEST_REASON]}{login}"
    # A client that finds out which era a server has may have started it twice.
    yield from (f"    {line[:_LONGEST_REASON]}" for line in [*rest, *dict.fromkeys(written)])


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
