"""The processes of a child: a process group for Ctrl-Break, and a job object that none of them can leave."""

from __future__ import annotations

import errno

import trio

from mcp_actors.logging import log
from mcp_transports.stdio.windows.kernel32 import Kernel32

__all__ = ["ChildJob"]

# Seconds that the system has to end processes.
_REAP_TIMEOUT = 1.0
# Seconds between two looks at a job; the pause doubles from the first to the second.
_LOOK_AGAIN = 0.002
_LOOK_AGAIN_AT_MOST = 0.05


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
