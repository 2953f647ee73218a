"""Starting a process that runs functions of tools, and ending it, by operating system. Nothing is forked."""

from __future__ import annotations

import importlib
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import outcome
import trio

from mcp_actors.abc import NothingSent

__all__ = ["StartedProcess", "Starter"]

# Seconds for which the end of a killed process is waited for: it is immediate, unless its memory is very large.
_REAP_TIME = 1.0
# Seconds of these in which it may end by itself once its pipes are closed.
_LAST_WORDS = 0.3
# Seconds between two looks whether it has ended, the first and the longest.
_REAP_LOOKS = 0.001, 0.02
# The highest descriptor of standard streams.
_LAST_STANDARD = 2
# POSIX_SPAWN_SETSID of <spawn.h> on Linux, and bytes that are enough for its opaque structures.
_SETSID = 0x80
_OPAQUE = 1024


def _command(begun: int | None = None) -> list[str]:
    # The modules of the engine may be where only the server's process looks for them.
    path = [each for each in sys.path if isinstance(each, str)]
    code = f"import sys; sys.path[:] = {path!r}; from mcp_actors._server.isolated import main; main({begun})"
    return [sys.executable, "-c", code]


class StartedProcess:
    """A process that has started, with its pipes.

    Args:
        process: A `subprocess.Popen`, a `trio.Process`, or what has their ``pid``, ``poll`` and ``kill``.
        sink: Leads to its standard input.
        source: Comes from its standard output.
        begun: The descriptor of a file with the number of the call that it has begun last, as `last_begun` reads it.
    """

    def __init__(
        self,
        process: Any,
        sink: trio.abc.SendStream,
        source: trio.abc.ReceiveStream,
        begun: int | None = None,
    ) -> None:
        self._process = process
        self.sink = sink
        self.source = source
        self._begun = begun
        self._is_gone = False
        self.last_begun = 0 if begun is not None else sys.maxsize
        """When it has ended, the number of the last call that it has begun; a high one where nobody knows."""

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    def kill(self) -> None:
        """Kills it, and what it has started in its process group."""
        if self._is_gone:
            return
        if sys.platform == "win32":
            self._process.kill()
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # It has ended: there is no group, or macOS allows nobody to signal one that only waits to be reaped.
            self._process.kill()

    async def leave(self) -> None:
        """Says that nothing more is to be done, and waits until it has ended."""
        await self.sink.aclose()
        await self._exit_code()

    async def end(self) -> int | None:
        """Kills it, and waits until it is gone.

        Returns:
            The exit code of one that ended by itself, or by `kill`; ``None`` of one that only this has ended.
        """
        code: int | None = None
        with trio.move_on_after(_REAP_TIME):
            # One that ends by itself closes its pipes a moment before it has an exit code.
            with trio.move_on_after(_LAST_WORDS):
                code = await self._exit_code()
            # Also when it has ended: it may have started others.
            self.kill()
            self._is_gone = True
            await self._exit_code()
        if sys.platform != "win32" and self._begun is not None:
            # Whatever the function has written there, or has made of it.
            self.last_begun = int.from_bytes(os.pread(self._begun, 8, 0), "little")
            os.close(self._begun)
            self._begun = None
        return code

    async def _exit_code(self) -> int:
        pause, longest = _REAP_LOOKS
        while (code := self._process.poll()) is None:
            await trio.sleep(pause)
            pause = min(pause * 2, longest)
        found: int = code
        return found

    def has_ended(self) -> bool:
        """Whether it has ended, also when another process has a copy of its pipe."""
        return self._process.poll() is not None

    def threads(self) -> int:
        """The number of its threads; 0 where the system does not say."""
        if sys.platform != "linux":
            return 0
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as state:
                # The name of the program, in brackets, may have blanks and brackets in it. See proc(5).
                return int(state.read().rpartition(b")")[2].split()[17])
        except (OSError, ValueError, IndexError):
            return 0


if sys.platform == "win32":

    class WindowsStarter:
        """Starts processes."""

        async def begin(self) -> StartedProcess:
            """Starts one; raises `OSError` if the system refuses."""
            process = await trio.lowlevel.open_process(
                _command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            return StartedProcess(process, process.stdin, process.stdout)

        def close(self) -> None:
            """Starts none any more."""

    Starter = WindowsStarter

else:

    class _Pipe(trio.abc.SendStream):
        """A pipe that can write short messages at once."""

        def __init__(self, descriptor: int) -> None:
            self._stream = trio.lowlevel.FdStream(descriptor)

        def send_at_once(self, data: bytes) -> bool:
            """Writes all of ``data`` now or nothing, as POSIX has it for no more than ``PIPE_BUF`` bytes."""
            if len(data) > select.PIPE_BUF:
                return False
            try:
                return os.write(self._stream.fileno(), data) == len(data)
            except BlockingIOError:
                return False
            except OSError as error:
                raise NothingSent from error

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await self._stream.send_all(data)

        async def wait_send_all_might_not_block(self) -> None:
            await self._stream.wait_send_all_might_not_block()

        async def aclose(self) -> None:
            await self._stream.aclose()

    class PosixStarter:
        """Starts processes in a thread that lasts: Linux ends a process with the thread that has started it."""

        def __init__(self) -> None:
            self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            self._thread: threading.Thread | None = None

        async def begin(self) -> StartedProcess:
            """Starts one; raises `OSError` if the system refuses. Not cancellable, which takes milliseconds."""
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mcp-actors processes", daemon=True)
                self._thread.start()
            token, is_there = trio.lowlevel.current_trio_token(), trio.Event()
            outcomes: list[outcome.Outcome[tuple[Any, int, int, int]]] = []

            def started() -> None:
                outcomes.append(outcome.capture(_started))
                token.run_sync_soon(is_there.set)

            self._wanted.put(started)
            with trio.CancelScope(shield=True):
                await is_there.wait()
            process, sink, source, begun = outcomes[0].unwrap()
            return StartedProcess(process, _Pipe(sink), trio.lowlevel.FdStream(source), begun)

        def close(self) -> None:
            """Starts none any more."""
            self._wanted.put(None)

        def _run(self) -> None:
            while (wanted := self._wanted.get()) is not None:
                wanted()

    def _started() -> tuple[Any, int, int, int]:
        """Returns a process, the descriptors that lead to and from it, and that of what it has begun."""
        theirs: list[int] = []
        ours: list[int] = []
        try:
            for mine, other in ((1, 0), (0, 1)):
                ends = os.pipe()
                ours.append(ends[mine])
                theirs.append(ends[other])
            ours.append(_nameless_file())
            process = _spawned(theirs[0], theirs[1], ours[2]) or subprocess.Popen(
                _command(ours[2]),
                stdin=theirs[0],
                stdout=theirs[1],
                pass_fds=ours[2:],
                start_new_session=True,
            )
        except BaseException:
            for each in ours:
                os.close(each)
            raise
        finally:
            for each in theirs:
                os.close(each)
        return process, ours[0], ours[1], ours[2]

    class _Spawned:
        """A process that posix_spawn(3) has started, with as much of `subprocess.Popen` as `StartedProcess` uses."""

        def __init__(self, pid: int) -> None:
            self.pid = pid
            self._code: int | None = None

        def poll(self) -> int | None:
            if self._code is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    # Somebody else has waited for all children; `subprocess` takes it for this, too.
                    self._code = 0
                else:
                    self._code = os.waitstatus_to_exitcode(status) if pid else None
            return self._code

        def kill(self) -> None:
            if self._code is None:
                os.kill(self.pid, signal.SIGKILL)

    def _spawned(source: int, sink: int, begun: int) -> _Spawned | None:
        """Starts a process by posix_spawn(3), on Linux; ``None`` where that is not to be had.

        `subprocess` keeps the interpreter's lock until the new process runs its program. When all processors are busy,
        that is milliseconds, in which the event loop stands still. A call by `ctypes` gives the lock away.
        """
        if sys.platform != "linux" or min(source, sink, begun) <= _LAST_STANDARD:
            return None
        try:
            ctypes = importlib.import_module("ctypes")
        except ImportError:
            return None
        library = ctypes.CDLL(None)
        actions, attributes = ctypes.create_string_buffer(_OPAQUE), ctypes.create_string_buffer(_OPAQUE)
        pid = ctypes.c_int()
        # One with another number, so that it stays open in the program.
        theirs = _LAST_STANDARD + 1 if begun != _LAST_STANDARD + 1 else begun + 1
        command = [each.encode(errors="surrogateescape") for each in _command(theirs)]
        variables = [name + b"=" + value for name, value in os.environb.items()]
        library.posix_spawn_file_actions_init(actions)
        library.posix_spawnattr_init(attributes)
        try:
            for mine, other in ((source, 0), (sink, 1), (begun, theirs)):
                library.posix_spawn_file_actions_adddup2(actions, mine, other)
            if library.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSID)):
                return None
            error = library.posix_spawn(
                ctypes.byref(pid),
                os.fsencode(sys.executable),
                actions,
                attributes,
                (ctypes.c_char_p * (len(command) + 1))(*command, None),
                (ctypes.c_char_p * (len(variables) + 1))(*variables, None),
            )
        finally:
            library.posix_spawn_file_actions_destroy(actions)
            library.posix_spawnattr_destroy(attributes)
        if error:
            raise OSError(error, os.strerror(error))
        return _Spawned(pid.value)

    def _nameless_file() -> int:
        if sys.platform == "linux":
            return os.memfd_create("begun")
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())

    Starter = PosixStarter
