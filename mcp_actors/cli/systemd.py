"""The two sides of systemd: a process that serves tells it its state, and takes the sockets that it has opened.

================ ======================================================================================================
NOTIFY_SOCKET    where the state goes (``sd_notify(3)``): ready, reloading, ready again, stopping; with ``WatchdogSec=``
                 also that the event loop runs
LISTEN_FDS       how many sockets this process was given (``sd_listen_fds(3)``), from descriptor 3 on; each is that of
                 the ``--listen`` with its port or its path
================ ======================================================================================================

The variables leave the environment, because what a tool starts is no part of the service.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import trio

from mcp_actors.abc import ServerHandler
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.errors import McpError
from mcp_actors.supervision.logging import log

__all__ = ["ServiceCompanion", "ServiceNotifier", "service_notifier", "take_sockets"]

NOTIFY_SOCKET = "NOTIFY_SOCKET"
WATCHDOG = ("WATCHDOG_USEC", "WATCHDOG_PID")
LISTEN = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_FIRST_DESCRIPTOR = 3


class ServiceNotifier:
    """Tells a service manager the state of this process.

    Args:
        path: The path of its socket; one that begins with ``@`` is of the abstract namespace of Linux.
        watchdog: Seconds within which it wants to hear that the process is well; ``None`` if it does not.
    """

    def __init__(self, path: str, watchdog: float | None = None) -> None:
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._watchdog = watchdog

    def __repr__(self) -> str:
        return f"<ServiceNotifier {self._address!r}>"

    def ready(self) -> None:
        """It serves, or has ended what `reloading` began."""
        self._tell("READY=1")

    def reloading(self) -> None:
        """It obeys SIGHUP, and says `ready` when that has ended, also where it came to nothing."""
        # By this clock the manager knows that the message is not older than its signal.
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """It has begun to stop."""
        self._tell("STOPPING=1")

    async def keep_alive(self) -> None:
        """Says twice in the time of the watchdog that the event loop runs, until it is cancelled."""
        if self._watchdog is None:
            await trio.sleep_forever()
        else:
            while True:
                self._tell("WATCHDOG=1")
                await trio.sleep(self._watchdog / 2)

    def _tell(self, *lines: str) -> None:
        if sys.platform == "win32":
            return  # it has no such manager
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                # A manager that reads nothing must not hold up the server.
                sending.setblocking(False)
                sending.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.debug("the service manager does not hear", state=lines[0], reason=error.strerror)


def service_notifier() -> ServiceNotifier | None:
    """Returns what tells the service manager of this process its state; ``None`` where there is none."""
    path = os.environ.pop(NOTIFY_SOCKET, "")
    microseconds, pid = (os.environ.pop(each, "") for each in WATCHDOG)
    if sys.platform == "win32" or not path.startswith(("/", "@")):
        return None
    is_watched = microseconds.isdecimal() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
    return ServiceNotifier(path, int(microseconds) / 1e6 if is_watched else None)


class ServiceCompanion:
    """Tells a service manager that a server stops, and that it is well. A companion of transports."""

    is_companion: Literal[True] = True

    def __init__(self, notifier: ServiceNotifier) -> None:
        self._notifier = notifier

    def __repr__(self) -> str:
        return f"<ServiceCompanion {self._notifier!r}>"

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs until it is cancelled, which is when the server has ended."""
        task_status.started("")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notifier.keep_alive)
            await handler.leaving.wait()
            self._notifier.stopping()


def take_sockets(urls: Sequence[str]) -> None:
    """Has this process listen at the sockets that it was given for URLs, instead of opening its own.

    Args:
        urls: Where it is going to listen.

    Raises:
        WrongUsage: A socket is that of no URL, or is no stream socket.
    """
    number, pid, _ = (os.environ.pop(each, "") for each in LISTEN)
    if not number.isdecimal() or pid != str(os.getpid()):
        return
    listening: Any = importlib.import_module("mcp_transports.listening")
    try:
        listening.adopt(list(urls), range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(number)))
    except (ValueError, OSError, McpError) as error:
        raise WrongUsage(f"the sockets of the service manager: {error}") from error
