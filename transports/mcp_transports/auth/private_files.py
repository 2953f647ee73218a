"""Files that only their user may read, and that are replaced at once: the rules of POSIX, and of Windows.

On POSIX the mode and the owner of a file say who may read it, and they are checked. On Windows these are access lists,
which a file takes from its folder. The default folder is in the profile of the user, which the system keeps from
others. A folder that is made here is kept from others too, by CPython from 3.11.10 and 3.12.4 on (os.mkdir with the
mode 0o700); a folder that is there already is taken as it is.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mcp_actors.errors import TokenStoreFailed

__all__ = [
    "NEW_FILE",
    "READ",
    "patiently",
    "require_private_file",
    "require_private_folder",
    "state_folder",
    "sync_folder",
]

T = TypeVar("T")

# The user who may replace any file anyway.
ROOT = 0
# Seconds in which a file is tried again that another process has open: reading it takes a millisecond.
PATIENCE = 2.0
PAUSE = 0.01

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
    """Looks whether nobody else may replace files in a folder; on Windows that is left to its access list.

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
        TokenStoreFailed: It is no file, or others may read it.
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
