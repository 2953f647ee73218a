"""Runs a command that Ctrl-C may end at any moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

from mcp_actors.cli.failures import EXIT_INTERRUPTED, CommandFailure
from mcp_actors.platform.signals import STOP_SIGNALS

__all__ = ["run_interruptible"]

_T = TypeVar("_T")


class _StoppedBySignal(CommandFailure):
    """Ctrl-C or SIGTERM ended the command."""

    exit_code = EXIT_INTERRUPTED


def run_interruptible(work: Callable[[], Awaitable[_T]], stopped: str) -> _T:
    """Awaits ``work()`` and returns its result. Ctrl-C and SIGTERM cancel it.

    Args:
        work: What to do.
        stopped: What a person is told after Ctrl-C.

    Raises:
        CommandFailure: Ctrl-C or SIGTERM came before there was a result; its exit code is 130.
        McpError: What ``work`` raised.
    """
    return trio.run(_run, work, stopped)


async def _run(work: Callable[[], Awaitable[_T]], stopped: str) -> _T:
    failure: Exception | None = None
    results: list[_T] = []
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, signals, nursery.cancel_scope)
            try:
                results.append(await work())
            except Exception as error:  # kept, because the nursery would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise _StoppedBySignal(stopped)
    return results[0]


async def _cancel_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
