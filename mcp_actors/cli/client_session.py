"""Runs one command with a client of a URL. Ctrl-C cancels the call in order, at the server as well."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import attrs
import click
import trio

from mcp_actors import Client
from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure, WrongUsage

__all__ = ["Interrupted", "client_options", "run_with_client"]

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])


class Interrupted(CommandFailure):
    """Ctrl-C or SIGTERM ended the command; ``connected`` says whether a server was connected then."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self, connected: bool) -> None:
        super().__init__("cancelled; the server was told" if connected else "interrupted while connecting")


def client_options(function: _F) -> _F:
    """Adds ``URL`` and ``--era`` to a command that talks to a server."""
    function = click.option(
        "--era",
        default="auto",
        show_default=True,
        metavar="ERA",
        help="auto, legacy, modern, or a revision to insist on.",
    )(function)
    return click.argument("url", callback=_checked_url)(function)


def _checked_url(_ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    if ":" not in url:
        raise click.UsageError(
            f"{url!r} is no URL: write 'stdio:COMMAND ARG...' as one word, or scheme://..."
        )
    return url


def run_with_client(url: str, era: str, work: Callable[[Client], Awaitable[_T]], **options: Any) -> _T:
    """Connects, awaits ``work(client)``, closes and returns the result.

    The first Ctrl-C cancels ``work``, so that the server is told of a cancelled call, and closes in order. A second one
    cancels the closing too.

    Args:
        url: the server.
        era: what to speak, as for `~mcp_actors.Client`.
        work: what to do with the client.
        options: those of `~mcp_actors.Client`.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came before there was a result.
        WrongUsage: the era or the URL does not exist.
        McpError: what connecting or ``work`` raised.
    """
    return trio.run(_run_with_client, url, era, work, options)


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
    url: str, era: str, work: Callable[[Client], Awaitable[_T]], options: dict[str, Any]
) -> _T:
    failure: Exception | None = None
    answers: list[_T] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            interrupt = _Interrupt(nursery.cancel_scope)
            nursery.start_soon(interrupt.watch, signals)
            try:
                async with _client(url, era, options) as client:
                    interrupt.connected = True
                    with interrupt.work:
                        answers.append(await work(client))
            except Exception as error:  # kept, because the nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    if answers and not failure:
        return answers[0]
    if interrupt.happened:
        raise Interrupted(interrupt.connected)
    assert failure is not None
    raise failure


def _client(url: str, era: str, options: dict[str, Any]) -> Client:
    try:
        return Client(url, era=era, **options)
    except ValueError as error:  # an era that does not exist
        raise WrongUsage(str(error)) from error
