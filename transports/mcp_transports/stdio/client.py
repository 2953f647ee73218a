"""The client side: starts a server as a child process and communicates through its pipes."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

import trio

from mcp_actors.abc import FrameChannel
from mcp_actors.abc.framing import DEFAULT_MAX_MESSAGE_BYTES, LineChannel
from mcp_actors.supervision.containment import reraised, start
from mcp_actors.supervision.logging import write_to_stderr
from mcp_actors.supervision.task_kinds import CHILD_WATCH
from mcp_transports.stdio.child import ChildProcess, StderrTail, spawn
from mcp_transports.stdio.environment import Environment, child_environment

__all__ = ["ChildChannel", "StdioClientTransport"]


class ChildChannel(LineChannel):
    """Frames to and from a child process. The end is reported after the exit status, so `loss_report` has it."""

    def __init__(self, child: ChildProcess, *, max_message_bytes: int, peer: str) -> None:
        super().__init__(child.stdout, child.stdin, max_message_bytes=max_message_bytes, peer=peer)
        self._child = child

    @property
    def pid(self) -> int:
        """The process id of the child, which is its process group and session as well."""
        return self._child.pid

    def loss_report(self) -> Mapping[str, Any]:
        """``exit_code`` (None while it runs, negative for a signal) and ``stderr``, its last lines, as a tuple.

        Of a child that has ended ``has_read`` as well, where its pipe says how much waits there.
        """
        report: dict[str, Any] = {"exit_code": self._child.exit_code, "stderr": self._child.stderr_lines}
        if self._child.exit_code is not None and (has_read := self._child.has_read) is not None:
            report["has_read"] = has_read
        return report


class StdioClientTransport:
    """Starts ``command`` once for each connection (MCP 2026-07-28, Transports, stdio). A `ClientTransport`.

    A process that the child moved to a session of its own (a daemon) is not stopped with it.

    Args:
        command: the program and its arguments; no shell is run.
        env: variables for the child, beside those that every child gets: HOME, LOGNAME, PATH, SHELL, TERM, USER and
            those of language, time zone and temporary files, or their like on Windows. None as a value takes one of
            them away. Others of our own environment are not handed on, because they may hold secrets; ``"inherit"``
            hands on all of them, as `subprocess` does.
        cwd: its working directory; default ours.
        grace: seconds that the child has to exit after its stdin was closed; then SIGTERM to its process group.
        kill_after: seconds after SIGTERM until SIGKILL. Both default to 2: time to write a file, short enough for
            a person who waits.
        stderr_lines: how many of its last stderr lines are kept for `ConnectionLost`, each up to 2 KiB; 50 by default.
        stderr: what becomes of the child's stderr beside that, line by line as it comes and cut at 32 KiB.
            ``"inherit"``, the default, writes it to the stderr of this process, from a thread, so that nothing blocks;
            where that cannot be written to, the lines are only kept. A callable is called with each line without its
            newline, and a text file gets the lines: both on the event loop, so they must not block. If one of them
            raises, it gets no more, and the kept lines say so. None only keeps the lines.
        max_message_bytes: the longest message in either direction, 16 MiB by default; see `LineChannel`.

    Raises:
        ValueError: ``command`` is empty, or a string.
        TypeError: ``stderr`` is of another type, or ``env`` is a string other than ``"inherit"``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Environment = None,
        cwd: str | Path | None = None,
        grace: float = 2.0,
        kill_after: float = 2.0,
        stderr_lines: int = 50,
        stderr: Callable[[str], object] | TextIO | Literal["inherit"] | None = "inherit",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        if isinstance(command, str) or not command:
            raise ValueError("command is a sequence of strings, the program first")
        self._command = tuple(command)
        if isinstance(env, str) and env != "inherit":
            raise TypeError(f"env is a mapping of variables, 'inherit' or None, not {env!r:.80}")
        self._env = env
        self._cwd = cwd
        self._grace = grace
        self._kill_after = kill_after
        self._stderr_lines = stderr_lines
        self._on_stderr = _line_handler(stderr)
        self._max_message_bytes = max_message_bytes

    def __repr__(self) -> str:
        return f"<StdioClientTransport {self._program}>"

    @property
    def _program(self) -> str:
        """The child's name in messages and logs: its arguments may hold secrets."""
        return os.path.basename(self._command[0])

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Starts the child and yields the channel to it.

        Leaving the block, also by cancellation, closes its stdin and waits for its exit, with signals if need be,
        while its output is still drained; afterwards nothing of its process group is left.

        Raises:
            ConnectFailed: the child cannot be started.
            ValueError: ``max_message_bytes`` is less than 1.
        """
        tail = StderrTail(self._stderr_lines, self._on_stderr)
        child = await spawn(self._command, env=child_environment(self._env), cwd=self._cwd, tail=tail)
        channel = ChildChannel(
            child,
            max_message_bytes=self._max_message_bytes,
            peer=f"{self._program} (pid {child.pid})",
        )
        with reraised() as body:
            async with trio.open_nursery() as nursery:
                start(
                    nursery,
                    CHILD_WATCH,
                    child.watch,
                    self._kill_after,
                    about=str(child.pid),
                    on_crash=child.watch_failed,
                )
                with body:
                    try:
                        yield channel
                    finally:
                        with trio.CancelScope(shield=True):
                            await channel.aclose()
                        await child.stop(self._grace, self._kill_after)


def _line_handler(
    stderr: Callable[[str], object] | TextIO | Literal["inherit"] | None,
) -> Callable[[str], object] | None:
    if stderr == "inherit":
        return write_to_stderr
    if stderr is None or callable(stderr):
        return stderr
    if isinstance(stderr, str) or not hasattr(stderr, "write"):
        raise TypeError(
            f"stderr is 'inherit', a callable that takes a line, a text file or None, not {stderr!r:.80}"
        )
    return functools.partial(print, file=stderr, flush=True)
