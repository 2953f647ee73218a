"""Starts a child process with three pipes, as the leader of a process group and session of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import trio

from mcp_transports.stdio.group import ChildGroup
from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream, EndHook

if sys.platform == "win32":
    raise ImportError("on Windows a child is started by mcp_transports.stdio.windows.starting")

__all__ = ["ChildOutput", "StartedChild", "start_child"]


class ChildOutput(DescriptorReceiveStream):
    """Gives its pipe to ``discard`` when it is closed, because a child that cannot write might never exit.

    MCP 2026-07-28, Transports, stdio, Shutdown: the client closes the child's stdin first and waits for its exit.
    """

    def __init__(
        self, fd: int, *, before_end: EndHook, discard: Callable[[DescriptorReceiveStream], object]
    ) -> None:
        super().__init__(fd, before_end=before_end)
        self._discard = discard

    def close(self) -> None:
        fd = self.release()
        if fd is not None:
            self._discard(DescriptorReceiveStream(fd))


class StartedChild:
    """A child that was just started, with its pipes, for a `ChildProcess`.

    Args:
        process: The process.
        fds: This process's ends of its standard input, output and error.
    """

    def __init__(self, process: trio.Process, fds: tuple[int, int, int]) -> None:
        self.process = process
        self.group = ChildGroup(process.pid)
        self._fds = fds

    def streams(
        self,
        before_end: Callable[[], Awaitable[object]],
        discard: Callable[[DescriptorReceiveStream], object],
    ) -> tuple[DescriptorSendStream, DescriptorReceiveStream, DescriptorReceiveStream]:
        """Returns the streams of standard input, output and error. To be called once.

        Args:
            before_end: Is awaited before an end of the first two is reported.
            discard: Is given the pipe of the output, when its stream is closed.
        """
        stdin, stdout, stderr = self._fds
        return (
            DescriptorSendStream(stdin, before_end=before_end),
            ChildOutput(stdout, before_end=before_end, discard=discard),
            DescriptorReceiveStream(stderr),
        )


async def start_child(
    command: Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None
) -> StartedChild:
    """Starts a child.

    Args:
        command: The program and its arguments.
        env: Its environment; ``None`` for that of this process.
        cwd: Its working directory; ``None`` for that of this process.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: It cannot be started.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        child_in, to_child = os.pipe()  # close-on-exec, all of them: no other child holds an end open
        theirs.callback(os.close, child_in)
        ours.callback(os.close, to_child)
        from_child, child_out = os.pipe()
        theirs.callback(os.close, child_out)
        ours.callback(os.close, from_child)
        errors_from_child, child_err = os.pipe()
        theirs.callback(os.close, child_err)
        ours.callback(os.close, errors_from_child)
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=child_in,
            stdout=child_out,
            stderr=child_err,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        ours.pop_all()
    return StartedChild(process, (to_child, from_child, errors_from_child))
