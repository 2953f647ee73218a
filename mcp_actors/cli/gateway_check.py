"""``mcp-actors gateway --check``: each server of a configuration, connected to once."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import click
import structlog

from mcp_actors import Client, ClientGroup
from mcp_actors.abc import ClientTransport
from mcp_actors.cli.failures import CommandFailure, LoginNeeded, asks_for_login, sentence
from mcp_actors.cli.interruptible import run_interruptible
from mcp_actors.cli.output import safe
from mcp_actors.errors import ConnectFailed
from mcp_actors.server_entries import ServerEntries, ServerEntry

__all__ = ["check"]

_TITLES = ("server", "is", "protocol", "tools", "resources + templates", "prompts")
# Characters of the reason why a server is not there.
_LONGEST_REASON = 400
# Lines of what a server that is not there has written.
_MOST_LINES = 20
# Entries of a list that are counted one by one.
_MOST = 10_000


def check(entries: ServerEntries, access: Mapping[str, Any]) -> None:
    """Connects to each server and prints a table of those that are there; the others are told by the error.

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
        click.echo(f"connecting to {safe(', '.join(servers))}", err=True)
    found = run_interruptible(lambda: _facts(servers.values(), access), "the check was interrupted")
    there = {name: facts for name, facts in found.items() if not isinstance(facts, Exception)}
    for line in _table([(name, *facts) for name, facts in there.items()]):
        click.echo(line)
    failures = {name: _reason(facts) for name, facts in found.items() if isinstance(facts, Exception)}
    if failures:
        lines = [f"{len(failures)} of {len(found)} servers cannot be used"]
        for name, failure in failures.items():
            lines += servers[name].told(failure)
        kind = LoginNeeded if all(map(asks_for_login, failures.values())) else CommandFailure
        raise kind("\n".join(lines))


@attrs.frozen
class _Overheard:
    """A server whose stderr is kept, and shown to nobody if all is well."""

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

    def told(self, failure: Exception) -> Iterator[str]:
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
    """Returns why a server of a group is not there: its own error, without the name of the server."""
    cause = error.__cause__
    return cause if type(error) is ConnectFailed and isinstance(cause, Exception) else error
