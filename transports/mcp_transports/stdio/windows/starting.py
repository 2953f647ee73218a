"""Starts a child process on Windows, with three pipes, a process group and a job of its own.

Windows takes a command as one line of text, and runs a batch file through its interpreter. The process group is for
Ctrl-Break; no process can leave the job. The pipes are Trio's with overlapped calls; another task can end them
(`finish`), and they report when that has happened.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from mcp_actors.supervision.logging import log
from mcp_transports.stdio.windows.kernel32 import (
    CREATE_NEW_PROCESS_GROUP,
    CREATE_NO_WINDOW,
    CREATE_SUSPENDED,
    Kernel32,
    kernel32,
)

__all__ = [
    "ChildJob",
    "ChildReceivePipe",
    "ChildSendPipe",
    "StartedInJob",
    "start_in_job",
    "words_to_start",
]

_BATCH = (".bat", ".cmd")
# Nothing quotes them in a batch file: a percent sign names a variable even between quotation marks.
_UNQUOTABLE = frozenset('"%\r\n\0')

# Seconds that the system has to end processes.
_REAP_TIMEOUT = 1.0
# Seconds between two looks at a job; the pause doubles from the first to the second.
_LOOK_AGAIN = 0.002
_LOOK_AGAIN_AT_MOST = 0.05

_RECEIVE_BYTES = 64 * 1024
# Seconds. The child is gone, so what it wrote is in the pipe. Another process may have its end open, and may even
# write: reading goes on until nothing comes for the first time, and for the second at most.
_QUIET = 0.05
_REST = 0.5


# -- The child -------------------------------------------------------------------------------------


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
    command: Sequence[str], env: Mapping[str, str], cwd: str | Path | None
) -> StartedInJob:
    """Starts a child. It runs only once it is in its job, so that no process of it can escape.

    With a console, which the child then shares, it is in a process group of its own: Ctrl-C does not reach it, and
    Ctrl-Break can be sent to it. Without one it gets no window.

    Args:
        command: The program and its arguments.
        env: Its whole environment.
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
        env=dict(env),
        cwd=cwd,
        creationflags=flags,
    )
    try:
        return StartedInJob(process, ChildJob(kernel, process.pid, asks=asks))
    except OSError:
        process.kill()
        for each in (process.stdin, process.stdout, process.stderr):
            if each is not None:
                await trio.aclose_forcefully(each)
        raise


# -- The command as one line of text ---------------------------------------------------------------


def words_to_start(command: Sequence[str], env: Mapping[str, str]) -> str | list[str]:
    """Returns what `subprocess.Popen` is to be given, so that ``npx`` is found although it is a file ``npx.cmd``.

    A batch file is run by ``cmd.exe``, whose rules of quoting differ from those of all programs. Everything is put
    between quotation marks there, and what they cannot protect is refused: it could run another command.

    Args:
        command: The program and its arguments.
        env: The environment of the child, whose path is searched.

    Raises:
        ValueError: An argument of a batch file cannot be handed over.
        OSError: The command is a batch file, and there is no interpreter of commands.
    """
    found = shutil.which(command[0], path=_variable(env, "PATH")) or command[0]
    if not found.lower().endswith(_BATCH):
        return [found, *command[1:]]
    if any(_UNQUOTABLE.intersection(each) for each in (found, *command[1:])):
        raise ValueError(
            "it is a batch file, and no argument of one can have a quotation mark, a percent sign or a new line:"
            " start the program itself, such as node.exe with the script"
        )
    interpreter = _variable(os.environ, "COMSPEC") or "cmd.exe"
    # /d: no command of the registry before it; /v:off: an exclamation mark is one; /s: the outer marks are taken off.
    words = " ".join(_quoted(each) for each in (found, *command[1:]))
    return f'{subprocess.list2cmdline([interpreter])} /d /e:on /v:off /s /c "{words}"'


def _variable(environment: Mapping[str, str], name: str) -> str | None:
    """Looks for a variable: the names have no case."""
    return next((value for each, value in environment.items() if each.upper() == name), None)


def _quoted(word: str) -> str:
    # The program behind the batch file takes a backslash before a quotation mark for an escape.
    backslashes = len(word) - len(word.rstrip("\\"))
    return f'"{word}{backslashes * chr(92)}"'


# -- The processes of a child ----------------------------------------------------------------------


class ChildJob:
    """A child with all processes that it starts. They end with this process at the latest, however that ends.

    Args:
        kernel: The system's functions.
        pid: The child, which was created suspended and runs from now on.
        asks: Whether the child shares the console of this process, so that it can be sent Ctrl-Break.

    Raises:
        OSError: The child cannot be resumed.
    """

    def __init__(self, kernel: Kernel32, pid: int, *, asks: bool) -> None:
        self._kernel = kernel
        self._pid = pid
        self._asks = asks
        self._job = kernel.create_job()
        if self._job is not None and not kernel.put_into_job(self._job, pid):
            self.close()
        if self._job is None:
            log.warning("a child has no job object: the processes that it starts may outlive it", pid=pid)
        if not kernel.resume(pid):
            self.close()
            raise OSError(errno.EPERM, "the system did not let the new process run")

    def ask_to_end(self) -> bool:
        """Sends Ctrl-Break, which the processes may handle; returns false if they cannot be asked."""
        return self._asks and self._kernel.send_break(self._pid)

    def kill(self) -> bool:
        """Ends all processes; returns false if there is no job."""
        return self._job is not None and self._kernel.end_job(self._job)

    async def end_rest(self, grace: float) -> None:
        """Ends the processes that the child, which has ended, left behind: with Ctrl-Break, then without asking.

        Args:
            grace: Seconds between the two.
        """
        if await self._has_ended(0):
            return
        if not (self.ask_to_end() and await self._has_ended(grace)):
            self.kill()
            await self._has_ended(_REAP_TIMEOUT)

    async def _has_ended(self, seconds: float) -> bool:
        end = trio.current_time() + seconds
        pause = _LOOK_AGAIN
        while self._job is not None and self._kernel.active_processes(self._job):
            if trio.current_time() >= end:
                return False
            await trio.sleep(pause)
            pause = min(2 * pause, _LOOK_AGAIN_AT_MOST)
        return True

    def close(self) -> None:
        """Gives the job back; what is left in it ends."""
        job, self._job = self._job, None
        if job is not None:
            self._kernel.close(job)


# -- The pipes to a child --------------------------------------------------------------------------


class ChildReceivePipe(trio.abc.ReceiveStream):
    """Receives from a child and owns the pipe.

    Args:
        inner: Trio's stream.
        before_end: Is awaited before the end of the stream is reported, clean or broken.
        on_close: Is given the pipe, still open, when this stream is closed; without it the pipe is closed too.
        reading: Is held while the pipe is read: it is the same one after `on_close`, until a read that was cancelled
            has ended.
    """

    def __init__(
        self,
        inner: trio.abc.ReceiveStream,
        *,
        before_end: Callable[[], Awaitable[object]] | None = None,
        on_close: Callable[[ChildReceivePipe], object] | None = None,
        reading: trio.Lock | None = None,
    ) -> None:
        self._inner = inner
        self._before_end = before_end
        self._on_close = on_close
        self._reading = trio.Lock() if reading is None else reading
        self._waiting: trio.CancelScope | None = None
        self._closed = False
        self._end_by = math.inf

    def finish(self) -> None:
        """Ends the stream after the bytes that the pipe holds now, even if another process has the other end open."""
        if self._end_by == math.inf:
            self._end_by = trio.current_time() + _REST
            self._wake()

    def close(self) -> None:
        """Closes the stream; a task that receives gets `trio.ClosedResourceError`."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        if self._on_close is not None:
            self._on_close(ChildReceivePipe(self._inner, reading=self._reading))
        else:
            _close(self._inner)

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes; ``b""`` is the end. Cancelling loses nothing.

        Args:
            max_bytes: The most to return; 64 KiB by default.

        Raises:
            trio.BrokenResourceError: The pipe cannot be read.
            trio.ClosedResourceError: This stream was closed.
        """
        async with self._reading:
            while not self._closed:
                rest = self._end_by < math.inf
                until = min(self._end_by, trio.current_time() + _QUIET) if rest else math.inf
                with trio.CancelScope(deadline=until) as self._waiting:
                    data = await self._read(max_bytes or _RECEIVE_BYTES)
                    if data:
                        return data
                if not self._waiting.cancelled_caught or rest:
                    break
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        await self._report()
        return b""

    async def _read(self, max_bytes: int) -> bytes:
        try:
            return bytes(await self._inner.receive_some(max_bytes))
        except (trio.BrokenResourceError, OSError) as error:
            await self._report()
            raise trio.BrokenResourceError(f"reading failed: {error}") from error

    async def _report(self) -> None:
        if self._before_end is not None:
            await self._before_end()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


class ChildSendPipe(trio.abc.SendStream):
    """Sends to a child and owns the pipe.

    Args:
        inner: Trio's stream.
        before_end: Is awaited before the stream is reported as broken.
    """

    def __init__(self, inner: trio.abc.SendStream, *, before_end: Callable[[], Awaitable[object]]) -> None:
        self._inner = inner
        self._before_end = before_end
        self._waiting: trio.CancelScope | None = None
        self._broken = self._closed = False

    def finish(self) -> None:
        """Breaks the stream, because the child reads no more, though another process may still have its end open."""
        self._broken = True
        self._wake()

    def close(self) -> None:
        """Closes the stream and the pipe."""
        if not self._closed:
            self._closed = True
            self._wake()
            _close(self._inner)

    async def aclose(self) -> None:
        """As `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends everything. Cancelled, a part may have been sent.

        Args:
            data: The bytes.

        Raises:
            trio.BrokenResourceError: The child reads no more.
            trio.ClosedResourceError: This stream was closed.
        """
        cause: Exception | None = None
        if not (self._closed or self._broken):
            with trio.CancelScope() as self._waiting:
                try:
                    await self._inner.send_all(data)
                    return
                except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                    cause = error
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed") from cause
        self._broken = True
        await self._before_end()
        raise trio.BrokenResourceError("the peer is gone") from cause

    async def wait_send_all_might_not_block(self) -> None:
        """Returns at once: the system does not tell."""
        await trio.lowlevel.checkpoint()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


def _close(stream: object) -> None:
    """Closes one of Trio's pipes, which can be closed without waiting although their abstract classes do not say so."""
    close: Callable[[], None] = getattr(stream, "close")  # noqa: B009
    close()
