"""``mcp-actors lock``: writes down what servers offer, and compares with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from mcp_actors import Client, ClientGroup
from mcp_actors.cli.client_session import run_with_client
from mcp_actors.cli.connection_options import ConnectionOptions, configuration_or_client_options
from mcp_actors.cli.failures import (
    CommandFailure,
    LoginNeeded,
    WrongUsage,
    asks_for_login,
    not_as_approved,
    reported,
    run_interruptible,
    sentence,
    traceback_option,
)
from mcp_actors.cli.gateway import stored_access
from mcp_actors.cli.output import echo, safe, styled
from mcp_actors.cli.progress import CallView
from mcp_actors.client import Drift, LockFile, ServerLock
from mcp_actors.gateway.server_entries import read_server_entries

__all__ = ["command"]

DEFAULT = "mcp.lock"
# The name in the file of a server without a name.
_NAMELESS = "server"


@click.command("lock", short_help="Write down what servers offer.")
@configuration_or_client_options
@click.option(
    "--output", "-o", metavar="FILE", default=DEFAULT, show_default=True, help="The file that is written."
)
@click.option(
    "--check", is_flag=True, help="Write nothing: compare with the file, and exit with 4 if it differs."
)
@traceback_option
def command(connection: ConnectionOptions, output: str, check: bool, show_traceback: bool) -> None:
    """Write down what a server offers, tools, prompts, resource templates, skills and instructions, with its SHA-256.

    \b
    URL  a server, or a configuration of servers, as for mcp-actors gateway

    \b
    mcp-actors lock ~/.cursor/mcp.json
    mcp-actors gateway ~/.cursor/mcp.json --lock mcp.lock
    mcp-actors lock ~/.cursor/mcp.json --check

    Read the file before you rely on it: it has what a model is told. If there was one before, the differences are
    shown. It is written when every server has answered, and not otherwise. Of a file with several servers a URL changes
    one, which is found by the name that it gives itself, and is added if there is none.
    """
    with reported(show_traceback):
        former = LockFile.read(output) if check or os.path.exists(output) else None
        path = os.path.expanduser(connection.url)
        is_one = not os.path.isfile(path)
        offered = _of_server(connection, former) if is_one else _of_configuration(path)
        drifts = [] if former is None else list(_differences(former, LockFile(offered), is_one=is_one))
        if check and drifts:
            raise not_as_approved(drifts)
        for each in drifts:
            echo(styled(safe(str(each)), bold=True))
            for line in each.diff.splitlines():
                echo(safe(line))
        others = _others(former, offered) if is_one else {}
        if not check:
            try:
                LockFile({**others, **offered}).write(output)
            except OSError as error:
                raise CommandFailure(f"{output} cannot be written: {error.strerror}") from error
        for name, lock in offered.items():
            echo(safe(f"{name}: {_counted(lock)}"))
        if former is not None and not check and not is_one:
            for name in sorted(former.servers.keys() - offered.keys()):
                echo(safe(f"{name}: left out, as it is not among the servers any more"))
        said = (
            f"{output}: everything is as approved"
            if check
            else f"written to {output}: read it before you rely on it"
        )
        if others and not check:
            kept = f"{len(others)} other server{'' if len(others) == 1 else 's'}"
            said += f"; what it has of {kept} is as it was"
        echo(safe(said))


def _counted(lock: ServerLock) -> str:
    words = {
        "tools": "tool",
        "prompts": "prompt",
        "resourceTemplates": "resource template",
        "skills": "skill",
    }
    counts = [(len(found), words[name]) for name, found in lock.definitions.items()]
    parts = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts if number]
    return ", ".join([*parts, *(["instructions"] if lock.instructions else [])]) or "nothing"


def _differences(former: LockFile, offered: LockFile, *, is_one: bool) -> list[Drift]:
    """Returns how what is offered differs from a file; servers that only the file has are left aside.

    With ``is_one`` it is the server of a URL, for which a file of one server is meant whatever that calls itself now.
    """
    found: list[Drift] = []
    for name, lock in offered.servers.items():
        approved = former.sole() if is_one and len(former.servers) == 1 else former.of(name)
        found += approved.differences(lock)
    return found


def _others(former: LockFile | None, offered: Mapping[str, ServerLock]) -> dict[str, ServerLock]:
    """Returns what a file of several servers keeps when one of them is approved anew."""
    if former is None or len(former.servers) == 1:
        return {}
    return {name: each for name, each in former.servers.items() if name not in offered}


def _of_server(connection: ConnectionOptions, former: LockFile | None) -> Mapping[str, ServerLock]:
    lock = run_with_client(connection, lambda client: client.approve(), CallView())
    known = {} if former is None else former.servers
    # A configuration has names of its own for its servers.
    names = [name for name, each in known.items() if each.server == lock.server]
    if former is not None and len(names) > 1:
        raise WrongUsage(
            f"{former.path} has several servers that call themselves {lock.server or _NAMELESS!r} "
            f"({', '.join(names)}): lock the configuration that they are in, or give another file by -o"
        )
    return {names[0] if names else lock.server or _NAMELESS: lock}


def _of_configuration(path: str) -> Mapping[str, ServerLock]:
    entries = read_server_entries(path)
    access = stored_access(entries)
    servers = list(entries)
    if not servers:
        raise WrongUsage(f"{path} has no server that is not disabled")

    def options_for(name: str) -> Mapping[str, Any]:
        return {"auth": access[name]} if name in access else {}

    async def approve(client: Client) -> ServerLock:
        return await client.approve()

    async def ask() -> dict[str, ServerLock | Exception]:
        async with ClientGroup(servers, options_for=options_for, restart=False) as group:
            return await group.for_each(approve)

    found = run_interruptible(ask, "it was interrupted, and nothing was written")
    failures = {name: each for name, each in found.items() if isinstance(each, Exception)}
    if failures:
        lines = [f"{len(failures)} of {len(found)} servers cannot be asked, so that nothing was written"]
        lines += [f"{name}: {sentence(each, with_page=False)}" for name, each in failures.items()]
        kind = LoginNeeded if all(map(asks_for_login, failures.values())) else CommandFailure
        raise kind("\n".join(lines))
    return {name: each for name, each in found.items() if isinstance(each, ServerLock)}
