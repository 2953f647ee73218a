"""URL -> Client for the length of one command, with Ctrl-C that cancels the call and not the terminal."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import attrs
import click
import trio

from mcp_actors import Client
from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure, WrongUsage

__all__ = ["Interrupted", "client_options", "talk"]

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])


class Interrupted(CommandFailure):
    """Ctrl-C (or SIGTERM) ended the command; ``connected`` says whether there was a server to tell."""

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


def talk(url: str, era: str, work: Callable[[Client], Awaitable[_T]], **options: Any) -> _T:
    """Connects, awaits ``work(client)`` and closes; raises what it raised, or `Interrupted`.

    The first Ctrl-C cancels ``work`` (so that the server hears of a cancelled call) and closes in order; a second one
    cancels the closing as well, whose steps are bounded anyway.
    """
    return trio.run(_talk, url, era, work, options)


@attrs.define(eq=False)
class _Interrupt:
    """What a signal cancels: all of it while connecting, the work once connected, all of it the second time."""

    everything: trio.CancelScope
    work: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    connected: bool = False
    happened: bool = False

    async def watch(self, signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            (self.work if self.connected and not self.happened else self.everything).cancel()
            self.happened = True


async def _talk(url: str, era: str, work: Callable[[Client], Awaitable[_T]], options: dict[str, Any]) -> _T:
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
            except Exception as error:  # kept, for a nursery would wrap it in a group
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
