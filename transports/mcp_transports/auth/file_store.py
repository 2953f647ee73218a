"""A store of tokens in a file, for all processes of a user.

The file is replaced as a whole, under a lock that processes share, and which a process that dies gives back. Only the
user may read it. On POSIX the mode and the owner of a file say who may, and they are checked. On Windows these are
access lists, which a file takes from its folder. The default folder is in the profile of the user, which the system
keeps from others. A folder that is made here is kept from others too, by CPython from 3.11.10 and 3.12.4 on (os.mkdir
with the mode 0o700); a folder that exists already is taken as it is.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Any, TypeVar

import msgspec
import trio

from mcp_actors.auth import StoredRecord
from mcp_actors.errors import TokenStoreFailed
from mcp_actors.supervision.logging import log

__all__ = [
    "NEW_FILE",
    "READ",
    "FileLock",
    "FileTokenStore",
    "default_token_file",
    "patiently",
    "require_private_file",
    "require_private_folder",
    "state_folder",
    "sync_folder",
]

# Bytes of the file; a record has a few KiB.
MAX_FILE_BYTES = 16 * 1024 * 1024
# Seconds for another process to write its change, and for one to refresh a token: its requests take 10 s at most
# each, and several processes may wait in a row.
WRITE_LOCK_TIMEOUT = 10.0
KEY_LOCK_TIMEOUT = 60.0
VERSION = 1
FOLDER_MODE, FILE_MODE = 0o700, 0o600

T = TypeVar("T")

# The user who may replace any file anyway.
ROOT = 0
# Seconds in which a file is tried again that another process has open: reading it takes a millisecond.
PATIENCE = 2.0
PAUSE = 0.01


# -- The store -------------------------------------------------------------------------------------


class _Record(msgspec.Struct, gc=False):
    generation: int
    value: dict[str, Any]


class _Document(msgspec.Struct, gc=False):
    version: int
    records: dict[str, _Record]
    changes: int
    """The generation of the last change."""


class _Damaged(Exception):
    """The file was not written by this class."""


def default_token_file() -> Path:
    """Returns the file of tokens of this user: ``mcp-actors/tokens.json`` in the state directory of XDG.

    On Windows it is in the folder of local data, ``%LOCALAPPDATA%``.
    """
    return state_folder() / "mcp-actors" / "tokens.json"


class FileTokenStore:
    """Keeps records in a file that any number of processes share. A `~mcp_actors.auth.TokenStore`.

    Only its user may read the file: another one is refused, and so is a folder in which others could replace it (on
    Windows who may read it is up to the access list of the folder; the default one is in the user's profile). A
    change replaces the whole file at once, so that no reader and no crash ever sees a part. A file that is damaged is
    kept under another name, with a warning, and a new one is begun. File operations run in threads.

    Args:
        path: The file; by default `default_token_file`. Its folder is made if it is not there. Files with the same
            beginning are beside it, for locks. It must be on a file system that has locks.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        # A symbolic link is followed once, here: what is replaced is the file, not the link.
        self._path = os.path.realpath(default_token_file() if path is None else os.path.expanduser(path))

    def __repr__(self) -> str:
        return f"<FileTokenStore {self._path}>"

    async def load(self, key: str) -> StoredRecord | None:
        """Returns the record of a key.

        Raises:
            TokenStoreFailed: The file cannot be read, others can read it, or a later version has written it.
        """
        try:
            document = await self._in_thread(self._read)
        except _Damaged:
            async with self._writing():
                document = await self._in_thread(self._read_or_begin_anew)
        found = document.records.get(key)
        return None if found is None else StoredRecord(found.value, found.generation)

    async def swap(self, key: str, expected: int | None, value: Mapping[str, Any] | None) -> bool:
        """Replaces a record if its generation is ``expected``; see `~mcp_actors.auth.TokenStore.swap`.

        Cancelled, the change is made or not made, never a part of it.

        Raises:
            TokenStoreFailed: The file cannot be read or written; it is left as it is.
        """
        async with self._writing():
            return await self._in_thread(partial(self._swap, key, expected, value))

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Holds the key for the length of the block, against all processes; see `~mcp_actors.auth.TokenStore.lock`.

        Raises:
            TokenStoreFailed: The lock cannot be had within a minute, or there can be no lock.
        """
        # A key may be longer than the name of a file.
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        async with self._held(f"{self._path}.{name}.lock", KEY_LOCK_TIMEOUT):
            yield

    def _writing(self) -> Any:
        return self._held(f"{self._path}.lock", WRITE_LOCK_TIMEOUT)

    @asynccontextmanager
    async def _held(self, path: str, timeout: float) -> AsyncIterator[None]:
        lock = FileLock(path)
        await self._in_thread(self._make_folder)
        try:
            with trio.move_on_after(timeout) as waiting:
                await lock.acquire()
        except OSError as error:
            raise self._failed("locked", error) from error
        if waiting.cancelled_caught:
            raise TokenStoreFailed(
                f"{path} is locked by another process for more than {timeout:g} s: end it, or wait for it"
            )
        try:
            yield
        finally:
            lock.release()

    async def _in_thread(self, operation: Callable[[], T]) -> T:
        try:
            # Not abandoned when cancelled: a change is finished, and its result is not lost.
            return await trio.to_thread.run_sync(operation)
        except OSError as error:
            raise self._failed("used", error) from error

    def _failed(self, verb: str, error: OSError) -> TokenStoreFailed:
        return TokenStoreFailed(
            f"the file of tokens {self._path} cannot be {verb} ({error.strerror}): make it and its folder writable, or"
            " give FileTokenStore another path"
        )

    # -- in a thread ----------------------------------------------------------------------------------------------

    def _make_folder(self) -> None:
        folder = os.path.dirname(self._path)
        os.makedirs(folder, FOLDER_MODE, exist_ok=True)
        require_private_folder(folder)

    def _read(self) -> _Document:
        try:
            descriptor = patiently(partial(os.open, self._path, READ))
        except FileNotFoundError:
            return _Document(VERSION, {}, 0)
        with os.fdopen(descriptor, "rb") as file:
            require_private_file(self._path, os.fstat(descriptor))
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise _Damaged
        try:
            version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
            if isinstance(version, int) and version > VERSION:
                raise TokenStoreFailed(
                    f"{self._path} was written by a later version of mcp-actors: install that, or give FileTokenStore"
                    " another path"
                )
            return msgspec.json.decode(data, type=_Document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _Damaged from None

    def _read_or_begin_anew(self) -> _Document:
        """Reads the file, and puts a damaged one aside. The lock is held."""
        try:
            return self._read()
        except _Damaged:
            kept = f"{self._path}.damaged-{time_ns()}"
            patiently(partial(os.replace, self._path, kept))
            log.warning("the file of tokens is damaged, and a new one is begun", path=self._path, kept=kept)
            # Greater than any generation of the file that is put aside.
            return _Document(VERSION, {}, time_ns() // 1000)

    def _swap(self, key: str, expected: int | None, value: Mapping[str, Any] | None) -> bool:
        document = self._read_or_begin_anew()
        records = document.records
        found = records.get(key)
        if (None if found is None else found.generation) != expected:
            return False
        if value is not None:
            document.changes += 1
            records[key] = _Record(document.changes, dict(value))
        elif found is not None:
            del records[key]
        else:
            return True
        self._replace(msgspec.json.encode(document))
        return True

    def _replace(self, data: bytes) -> None:
        if len(data) > MAX_FILE_BYTES:
            raise TokenStoreFailed(
                f"{self._path} would have more than {MAX_FILE_BYTES} bytes: log out somewhere"
            )
        fresh = f"{self._path}.new"
        with _removed(fresh):
            descriptor = os.open(fresh, NEW_FILE, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            patiently(partial(os.replace, fresh, self._path))
        sync_folder(os.path.dirname(self._path))


@contextmanager
def _removed(path: str) -> Iterator[None]:
    """Removes a file that a process left behind when it was killed, and one that could not be finished."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    try:
        yield
    except BaseException:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        raise


# -- The lock --------------------------------------------------------------------------------------


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


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
        descriptor = os.open(self._path, _FLAGS, LOCK_MODE)
        locked = False
        try:
            locked = _lock(descriptor)
        finally:
            if not locked:
                os.close(descriptor)
        if not locked:
            return False
        self._descriptor = descriptor
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


# -- Private files ---------------------------------------------------------------------------------


if sys.platform == "win32":
    READ = os.O_RDONLY | os.O_BINARY
    NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_BINARY
else:
    READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def state_folder() -> Path:
    """Returns the folder for what programs of this user keep: the state directory of XDG, or that of local data."""
    if sys.platform == "win32":
        folder, otherwise = os.environ.get("LOCALAPPDATA", ""), Path.home() / "AppData" / "Local"
    else:
        folder, otherwise = os.environ.get("XDG_STATE_HOME", ""), Path.home() / ".local" / "state"
    # The XDG Base Directory Specification has relative paths ignored.
    return Path(folder) if os.path.isabs(folder) else otherwise


def require_private_folder(folder: str) -> None:
    """Checks that no other user may replace files in a folder; on Windows that is left to its access list.

    Args:
        folder: The folder.

    Raises:
        TokenStoreFailed: Others may.
        OSError: It cannot be looked at.
    """
    if sys.platform != "win32":
        found = os.stat(folder)
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            raise TokenStoreFailed(f"others may replace files in {folder}: run 'chmod go-w {folder}'")
        if found.st_uid not in (os.geteuid(), ROOT):
            raise TokenStoreFailed(
                f"{folder} belongs to another user, who may replace files in it: give FileTokenStore another path"
            )


def require_private_file(path: str, found: os.stat_result) -> None:
    """Looks whether an open file is one that only this user may read; on Windows that is left to its access list.

    Args:
        path: Its path, for the texts.
        found: What `os.fstat` says of it.

    Raises:
        TokenStoreFailed: It is not a file, or others may read it.
    """
    if not stat.S_ISREG(found.st_mode):
        raise TokenStoreFailed(f"{path} is no file: give FileTokenStore another path")
    if sys.platform != "win32":
        if found.st_uid != os.geteuid():
            raise TokenStoreFailed(f"{path} belongs to another user: give FileTokenStore another path")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise TokenStoreFailed(
                f"others may read the tokens in {path}: run 'chmod 600 {path}', and log in anew if somebody"
                " may have read them"
            )


def patiently(operation: Callable[[], T]) -> T:
    """Does what Windows refuses as long as another process has the file open. Elsewhere it is done once.

    Args:
        operation: Opens, replaces or removes a file. It blocks, so this is called in a thread.

    Raises:
        OSError: What the operation raises; `PermissionError` on Windows only after `PATIENCE` seconds.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return operation()
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > end:
                raise
        time.sleep(PAUSE)


def sync_folder(folder: str) -> None:
    """Has the disk know which file has the name; Windows has no call for that, and keeps a journal.

    Args:
        folder: The folder.

    Raises:
        OSError: The disk does not work.
    """
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some file systems have no such thing; the change is made all the same.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)
