"""A lock that processes share, and that a process which dies gives back."""

from __future__ import annotations

import os
import sys

import trio

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileLock"]

# Seconds between two attempts: the system has no way to wait for a lock that could be cancelled.
PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02)
LOCK_MODE = 0o600
if sys.platform == "win32":
    _FLAGS = os.O_RDWR | os.O_CREAT
else:
    _FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class FileLock:
    """An advisory lock of a file, which is made for that and never removed. It is held once.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def __repr__(self) -> str:
        return f"<FileLock {self._path}{' held' if self._descriptor >= 0 else ''}>"

    async def acquire(self) -> None:
        """Waits for the lock, without a bound. Cancelled, it is not held.

        Raises:
            OSError: The file cannot be opened, or the file system has no locks.
        """
        attempts = 0
        try:
            # A thread is not abandoned when cancelled, so that what it has locked is known here.
            while not await trio.to_thread.run_sync(self._try):
                await trio.sleep(PAUSES[min(attempts, len(PAUSES) - 1)])
                attempts += 1
        except BaseException:
            self.release()
            raise

    def _try(self) -> bool:
        self._descriptor = os.open(self._path, _FLAGS, LOCK_MODE)
        if not _lock(self._descriptor):
            os.close(self._descriptor)
            self._descriptor = -1
            return False
        if self._is_current():
            return True
        self.release()  # somebody has removed the file, and others lock a new one
        return False

    def _is_current(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._descriptor))

    def release(self) -> None:
        """Gives the lock back, if it is held. A child that was forked meanwhile does not keep it."""
        if self._descriptor < 0:
            return
        try:
            _unlock(self._descriptor)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        """Locks the first byte, which need not exist; returns false if another process has it."""
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _lock(descriptor: int) -> bool:
        """Locks the file; returns false if another process has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
