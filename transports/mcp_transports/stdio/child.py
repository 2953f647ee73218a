"""Starts, reads, stops and reaps one child process, with all the processes that it started.

The child leads a process group of its own. When its process ends the connection ends, even if other processes still
hold its pipes, and the rest of its group is ended too, so that programs such as npx or a shell leave no
process behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import trio

from mcp_actors.abc.framing import SupportsUnread
from mcp_actors.errors import ConnectFailed
from mcp_actors.supervision.containment import reraised, start_again
from mcp_actors.supervision.logging import wait_until_written, write_to_stderr
from mcp_actors.supervision.task_kinds import CHILD_OUTPUT

if sys.platform == "win32":
    import locale

    from mcp_transports.stdio.windows.starting import ChildReceivePipe as ReceivePipe
    from mcp_transports.stdio.windows.starting import StartedInJob as StartedChild
    from mcp_transports.stdio.windows.starting import start_in_job as start_child
else:
    from mcp_transports.stdio.starting import StartedChild, start_child
    from mcp_transports.stdio.streams import DescriptorReceiveStream as ReceivePipe

__all__ = ["ChildProcess", "StderrTail", "spawn"]

# Seconds. A process that is killed ends at once but for one inside an uninterruptible system call, which is left to the
# system.
REAP_TIMEOUT = 1.0
# Seconds. The end of the pipe usually comes a moment before the exit status, so it is reported this much later.
EXIT_STATUS_WAIT = 0.5
# Bytes of a line of stderr that are kept: enough for a message, too short to be a memory problem.
KEPT_LINE_BYTES = 2048
# Bytes of a line that are handed on: a long log line fits, and a line without an end does not fill the memory.
STDERR_LINE_BYTES = 32 * 1024
_LONGEST_CHARACTER = 4  # bytes of UTF-8


class StderrTail:
    """The last lines that a child wrote to stderr, as text.

    Bytes that are not UTF-8 are read in the code page of Windows, in which programs write there unless they are told
    otherwise, and replaced elsewhere.
    """

    def __init__(self, max_lines: int, on_line: Callable[[str], object] | None) -> None:
        self._lines: deque[str] = deque(maxlen=max_lines)
        self._on_line = on_line
        self._partial = b""

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    async def wait_until_shown(self) -> None:
        """Waits until the lines are on standard error, if they go there, so that they come before what is said next."""
        if self._on_line is write_to_stderr:
            await wait_until_written()

    def feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(self._partial + line)
            self._partial = b""
        self._partial = (self._partial + rest[:STDERR_LINE_BYTES])[:STDERR_LINE_BYTES]

    def finish(self) -> None:
        """Adds the bytes after the last newline as a line."""
        if self._partial:
            self._add(self._partial)
            self._partial = b""

    def _add(self, raw: bytes) -> None:
        line = _text(raw[:STDERR_LINE_BYTES]).rstrip("\r")
        self._lines.append(_text(raw[:KEPT_LINE_BYTES]).rstrip("\r"))
        if self._on_line is not None:
            try:
                self._on_line(line)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                # The callback must not end the connection; the kept lines say that it is called no more.
                self._on_line = None
                self._lines.append(f"[the stderr callback failed and was dropped: {error!r}]")


def _text(raw: bytes) -> str:
    if sys.platform == "win32":
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if error.start > len(raw) - _LONGEST_CHARACTER:
                return raw.decode("utf-8", "replace")  # cut within a character
            return raw.decode(locale.getpreferredencoding(False), "replace")
    return raw.decode("utf-8", "replace")


class ChildProcess:
    """A running child, its three pipes, and the tasks that look after it."""

    def __init__(self, started: StartedChild, tail: StderrTail) -> None:
        self._started = started
        self.stdin, self.stdout, self._stderr = started.streams(self._wait_for_report, self._discard_from)
        self._unwanted: ReceivePipe | None = None
        self._tail = tail
        self._exited = trio.Event()
        self._hung_up = trio.Event()
        self._stderr_ended = trio.Event()
        self._group_ended = trio.Event()
        # `watch` goes on when its owner is cancelled, so that the pipes are drained while the child is stopped.
        self._watching = trio.CancelScope(shield=True)
        self._watch_failed = False

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"<ChildProcess {self.pid}: {state}>"

    @property
    def pid(self) -> int:
        return self._started.process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the child runs, and negative for the signal that ended it."""
        return self._started.process.returncode if self._exited.is_set() else None

    @property
    def has_read(self) -> bool | None:
        """Whether the child, or a process that has its standard input, has read anything; ``None`` if nobody knows."""
        if not isinstance(self.stdin, SupportsUnread) or (unread := self.stdin.unread()) is None:
            return None
        return unread < self.stdin.sent

    @property
    def stderr_lines(self) -> tuple[str, ...]:
        return self._tail.lines

    @trio.lowlevel.enable_ki_protection
    async def watch(self, kill_after: float) -> None:
        """Drains the child's output, notices its exit and ends the rest of its group, until `stop` ends this.

        Cancelling it has no effect: it runs as long as the child may still have to write.
        """
        with self._watching, reraised() as body:
            async with trio.open_nursery() as nursery:
                start_again(nursery, CHILD_OUTPUT, self._drain_stderr, about="on stderr")
                start_again(nursery, CHILD_OUTPUT, self._discard_output, about="that is not read")
                with body:
                    await self._wait_for_exit()
                    self._finish_streams()
                    await self._started.group.end_rest(kill_after)
                    self._group_ended.set()
                if not self._group_ended.is_set():
                    nursery.cancel_scope.cancel(reason="the watching has failed")

    def watch_failed(self, crash: BaseException) -> None:
        """Ends the connection, because `watch` crashed: nothing would notice the exit of the child any more."""
        self._watch_failed = True
        self._finish_streams()

    @trio.lowlevel.enable_ki_protection
    async def stop(self, grace: float, kill_after: float) -> None:
        """Closes stdin, waits ``grace``, sends SIGTERM, waits ``kill_after``, sends SIGKILL. Then the group is gone.

        On Windows it sends Ctrl-Break instead of SIGTERM, where there is a console, and ends the job of the child.

        Not cancellable, and bounded: at most ``grace + 2 * kill_after + 3 * REAP_TIMEOUT`` seconds.
        """
        with trio.CancelScope(shield=True):
            self.stdin.close()
            self.stdout.close()
            if not await self._exits_within(grace) and not (
                self._started.group.ask_to_end() and await self._exits_within(kill_after)
            ):
                if not self._started.group.kill():
                    self._started.process.kill()
                await self._exits_within(REAP_TIMEOUT)
            if self._exited.is_set():
                with trio.move_on_after(kill_after + 2 * REAP_TIMEOUT):
                    if self._watch_failed:
                        await self._started.group.end_rest(kill_after)
                    else:
                        await self._group_ended.wait()
            self._watching.cancel()
            self._started.group.close()
            self._stderr.close()
            if self._unwanted is not None:
                self._unwanted.close()

    async def _exits_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self._wait_for_exit()
        return self._exited.is_set()

    async def _wait_for_exit(self) -> None:
        await self._started.process.wait()
        self._exited.set()

    def _finish_streams(self) -> None:
        for stream in (self.stdin, self.stdout, self._unwanted, self._stderr):
            if stream is not None:
                stream.finish()

    def _discard_from(self, output: ReceivePipe) -> None:
        self._unwanted = output
        if self._exited.is_set():
            self._unwanted.finish()
        self._hung_up.set()

    async def _wait_for_report(self) -> None:
        """Waits a moment for the exit status and the last lines of stderr."""
        with trio.move_on_after(EXIT_STATUS_WAIT):
            await self._exited.wait()
            await self._stderr_ended.wait()
            await self._tail.wait_until_shown()

    async def _drain_stderr(self) -> None:
        try:
            while data := await self._stderr.receive_some():
                self._tail.feed(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the child has ended or the stream was closed: either way there is no more to read
        finally:
            self._tail.finish()
            self._stderr_ended.set()

    async def _discard_output(self) -> None:
        await self._hung_up.wait()
        assert self._unwanted is not None
        try:
            while await self._unwanted.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # as above


async def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path | None,
    tail: StderrTail,
) -> ChildProcess:
    """Starts the child with three pipes of its own.

    Raises:
        ConnectFailed: the child cannot be started.
    """
    try:
        return ChildProcess(await start_child(command, env, cwd), tail)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConnectFailed(_why_not_started(command, cwd, error)) from error


def _why_not_started(command: Sequence[str], cwd: str | Path | None, error: Exception) -> str:
    # The arguments are not named, because they may hold secrets.
    what = f"cannot start {command[0]!r}"
    if not isinstance(error, OSError):
        return f"{what}: {error}"
    if cwd is not None and (error.filename == str(cwd) or not os.path.isdir(cwd)):
        return f"{what}: the working directory {str(cwd)!r}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        hint = (
            "; its arguments have to be words of their own: put them into args in a configuration"
            if " " in command[0]
            else f"; to start a Python file write the interpreter first: python {command[0]}"
            if command[0].endswith(".py")
            else ""
        )
        return f"{what}: there is no command {command[0]!r}{hint}"
    return f"{what}: {error.strerror}"
