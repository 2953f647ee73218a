"""Starts a child process on Windows, with three pipes, a process group and a job of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from mcp_transports.stdio.windows.commands import full_environment, words_to_start
from mcp_transports.stdio.windows.jobs import ChildJob
from mcp_transports.stdio.windows.kernel32 import (
    CREATE_NEW_PROCESS_GROUP,
    CREATE_NO_WINDOW,
    CREATE_SUSPENDED,
    kernel32,
)
from mcp_transports.stdio.windows.pipes import ChildReceivePipe, ChildSendPipe

__all__ = ["StartedInJob", "start_in_job"]


class StartedInJob:
    """A child that was just started, with its pipes, for a `ChildProcess`.

    Args:
        process: The process, whose three streams are Trio's.
        group: Its job.
    """

    def __init__(self, process: trio.Process, group: ChildJob) -> None:
        self.process = process
        self.group = group

    def streams(
        self, before_end: Callable[[], Awaitable[object]], discard: Callable[[ChildReceivePipe], object]
    ) -> tuple[ChildSendPipe, ChildReceivePipe, ChildReceivePipe]:
        """Returns the streams of standard input, output and error. To be called once.

        Args:
            before_end: Is awaited before an end of the first two is reported.
            discard: Is given the pipe of the output, when its stream is closed.
        """
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        return (
            ChildSendPipe(process.stdin, before_end=before_end),
            ChildReceivePipe(process.stdout, before_end=before_end, on_close=discard),
            ChildReceivePipe(process.stderr),
        )


async def start_in_job(
    command: Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None
) -> StartedInJob:
    """Starts a child. It runs only once it is in its job, so that no process of it can escape.

    With a console, which the child then shares, it is in a process group of its own: Ctrl-C does not reach it, and
    Ctrl-Break can be sent to it. Without one it gets no window.

    Args:
        command: The program and its arguments.
        env: Its environment; ``None`` for that of this process.
        cwd: Its working directory; ``None`` for that of this process.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: It cannot be started.
    """
    kernel = kernel32()
    asks = kernel.has_console()
    flags = CREATE_SUSPENDED | (CREATE_NEW_PROCESS_GROUP if asks else CREATE_NO_WINDOW)
    # The types of Trio are those of the system on which they are checked.
    open_process: Any = trio.lowlevel.open_process
    process: trio.Process = await open_process(
        words_to_start(command, env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else full_environment(env),
        cwd=cwd,
        creationflags=flags,
    )
    try:
        return StartedInJob(process, ChildJob(kernel, process.pid, asks=asks))
    except OSError:
        process.kill()
        raise
