"""What may leave a task that should not have, and servers whose handlers let it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
import trio
from structlog.testing import LogCapture

from mcp_actors.abc import FrameChannel
from mcp_actors.supervision.principal import Principal


class Unexpected(BaseException):
    """Neither an `Exception` nor known to Python or Trio."""


async def raise_error() -> None:
    raise ValueError("a mistake")


async def raise_base_exception() -> None:
    raise Unexpected("a mistake")


async def raise_system_exit() -> None:
    raise SystemExit(3)


async def raise_group() -> None:
    raise BaseExceptionGroup("two", [Unexpected("a mistake"), ValueError("another")])


async def stray_cancelled() -> trio.Cancelled:
    """A `trio.Cancelled` that was kept, and whose scope is over."""
    kept: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept.append(error)
            raise
    return kept.pop()


async def raise_stray_cancelled() -> None:
    raise await stray_cancelled()


CRASHES: dict[str, Callable[[], Awaitable[None]]] = {
    "an exception": raise_error,
    "a BaseException": raise_base_exception,
    "SystemExit": raise_system_exit,
    "a group": raise_group,
    "a stray Cancelled": raise_stray_cancelled,
}


class CrashingOnce:
    """A handler that crashes over the first frame ``crash``, and sends every other one back."""

    def __init__(self, crash: Callable[[], Awaitable[None]]) -> None:
        self._crash = crash
        self.leaving, self.stopping = trio.Event(), trio.Event()

    async def __call__(self, channel: FrameChannel, principal: Principal | None = None) -> None:
        try:
            while True:
                for frame in await channel.receive_many():
                    if frame.data == b'"crash"':
                        await self._crash()
                    await channel.send(frame)
        except (trio.EndOfChannel, trio.BrokenResourceError):
            return
        finally:
            with trio.move_on_after(1, shield=True):
                await channel.aclose()


class captured_logs:
    """Records every log line of the engine, debug and info included: those appear in a program that wants them."""

    def __enter__(self) -> list[Any]:
        self._before = structlog.get_config()
        self._was_configured = structlog.is_configured()
        capture = LogCapture()
        structlog.configure(processors=[capture])
        return capture.entries

    def __exit__(self, *exc: object) -> None:
        structlog.reset_defaults()
        if self._was_configured:
            structlog.configure(**self._before)


def loud(logs: list[Any]) -> list[Any]:
    """The lines above debug, and those with a traceback."""
    return [each for each in logs if each["log_level"] != "debug" or each.get("exc_info")]
