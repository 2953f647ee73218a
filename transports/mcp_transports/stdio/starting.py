"""Starts a child process with three pipes, as the leader of a process group and session of its own.

The group is signalled as a whole, so that all of its processes end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import trio

from mcp_transports.stdio.streams import DescriptorReceiveStream, DescriptorSendStream, EndHook

__all__ = ["ChildGroup", "ChildOutput", "StartedChild", "end_group", "signal_group", "start_child"]


if sys.platform == "win32":
    raise ImportError(
        "on Windows the processes of a child are in a job: mcp_transports.stdio.windows.starting"
    )


# Seconds. SIGKILL works at once but for a process inside an uninterruptible system call, which is left to the system.
REAP_TIMEOUT = 1.0
# Seconds between two checks of a process group that was signalled; the pause doubles from the first to the second.
_LOOK_AGAIN = 0.002
_LOOK_AGAIN_AT_MOST = 0.05


class ChildGroup:
    """The process group that a child leads.

    Args:
        leader: The process id of the child.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader

    def ask_to_end(self) -> bool:
        """Sends SIGTERM; returns true, because a process can always be asked."""
        signal_group(self._leader, signal.SIGTERM)
        return True

    def kill(self) -> bool:
        """Sends SIGKILL; returns false if there is no process."""
        return signal_group(self._leader, signal.SIGKILL)

    async def end_rest(self, grace: float) -> None:
        """As `end_group`, once the leader was reaped.

        Args:
            grace: Seconds between SIGTERM and SIGKILL.
        """
        await end_group(self._leader, grace)

    def close(self) -> None:
        """Does nothing: a group belongs to the system."""


async def end_group(leader: int, grace: float) -> None:
    """Ends the processes that the leader, which was just reaped, left behind in its group.

    The kernel gives the group's number to no other group while one of them is left. They get SIGTERM, and SIGKILL
    after ``grace`` seconds.
    """
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, REAP_TIMEOUT)):
        if not await _group_remains(leader):
            return
        signal_group(leader, number)
        with trio.move_on_after(seconds):
            pause = _LOOK_AGAIN
            while await _group_remains(leader):
                await trio.sleep(pause)
                pause = min(2 * pause, _LOOK_AGAIN_AT_MOST)


async def _group_remains(leader: int) -> bool:
    """Whether a process of the group still runs. Zombies that their new parent does not reap do not count."""
    if not signal_group(leader, 0):
        return False
    # Rarely reached. Reading a hundred small files costs the event loop little.
    return await trio.to_thread.run_sync(_has_running_member, leader)


def _has_running_member(group: int) -> bool:
    try:
        processes = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True
    for process in processes:
        try:
            stat = Path(f"/proc/{process}/stat").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        # proc(5): "pid (name) state ppid pgrp …", and the name may hold anything
        state, _parent, its_group = stat[stat.rindex(b")") + 2 :].split(maxsplit=3)[:3]
        if int(its_group) == group and state not in b"ZX":
            return True
    return False


def signal_group(leader: int, number: int) -> bool:
    """Signals the group; returns false if it has no process, or none that we may signal."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if sys.platform == "win32":
    raise ImportError("on Windows a child is started by mcp_transports.stdio.windows.starting")


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


async def start_child(command: Sequence[str], env: Mapping[str, str], cwd: str | Path | None) -> StartedChild:
    """Starts a child.

    Args:
        command: The program and its arguments.
        env: Its whole environment.
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
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        ours.pop_all()
    return StartedChild(process, (to_child, from_child, errors_from_child))
