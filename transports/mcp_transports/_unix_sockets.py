"""Opening listening Unix sockets whose path survives crashes."""

from __future__ import annotations

import os
import socket
import stat
import sys

import trio

from mcp_transports._inherited import taken, unix_key
from mcp_transports._sockets import BACKLOG, InvalidSocketPath, ListenError, ListeningSocket, is_abstract

if sys.platform != "win32":
    import fcntl

__all__ = ["REFUSED_TIME", "bind_unix", "check_unix_path", "is_refused_when_full", "new_unix_socket"]

# Seconds for which another server may hold the folder's lock; all it does meanwhile is probe, bind and listen.
_LOCK_TIME = 2.0
_LOCK_PAUSE = 0.01
# Bytes that sockaddr_un has room for, without a terminator: 108 on Linux, 104 on macOS and the BSDs.
_LONGEST_PATH = 107 if sys.platform == "linux" else 103
# Seconds for which a refused connection is tried again, where that does not say that nobody listens. A server that
# works accepts what waits within some turns of its loop.
REFUSED_TIME = 0.5
_REFUSED_PAUSE = 0.01
_NONE_ON_WINDOWS = "Python has no Unix sockets on Windows: use tcp: or http: at 127.0.0.1"


def is_refused_when_full() -> bool:
    """Whether this system refuses a connection to a Unix socket whose queue is full, as if nobody listened there.

    macOS and the BSDs do. On Linux `connect` says EAGAIN then.
    """
    return sys.platform != "linux"


def new_unix_socket() -> socket.socket:
    """Returns a Unix socket that does not block.

    Raises:
        InvalidSocketPath: This system has none.
        OSError: The process has no descriptor left.
    """
    if sys.platform == "win32":
        raise InvalidSocketPath(_NONE_ON_WINDOWS)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


async def bind_unix(path: str, *, mode: int = 0o600, backlog: int = BACKLOG) -> ListeningSocket:
    """Listens on a Unix socket that only this user may connect to, unless ``mode`` says otherwise.

    A socket that a crashed server left behind is replaced; anything else that is there is left alone.

    Args:
        path: One that begins with NUL is an abstract name: it has no file and no mode, and every process in the same
            network namespace may connect.
        mode: The permissions of the socket's file.
        backlog: Connections that the kernel keeps until they are accepted.

    Raises:
        InvalidSocketPath: The path is too long for the system, or is none.
        ListenError: Something is in the way: a live server, or a file that is no socket.
    """
    if sys.platform == "win32":
        raise InvalidSocketPath(_NONE_ON_WINDOWS)
    check_unix_path(path)
    inherited = taken(unix_key(path))
    if inherited is not None:
        return ListeningSocket(inherited[0], path=path, inherited=True)
    if is_abstract(path):
        try:
            return ListeningSocket(_bind_unix(path, None, backlog), path=path)
        except OSError as error:
            raise ListenError(f"cannot listen on @{path[1:]}: {error.strerror}") from error
    folder = os.path.split(path)[0] or "."
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {folder}: {error.strerror}") from error
    try:
        # Of two servers that find the same stale socket, neither may replace the other's new one.
        await _lock(lock, path)
        await _remove_stale(path)
        return ListeningSocket(_bind_unix(path, mode, backlog), path=path)
    except OSError as error:
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.close(lock)


def check_unix_path(path: str) -> None:
    """Checks a Unix socket's path, or abstract name.

    Raises:
        InvalidSocketPath: It cannot be one on this system.
    """
    if sys.platform == "win32":
        raise InvalidSocketPath(_NONE_ON_WINDOWS)
    if is_abstract(path) and sys.platform != "linux":
        raise InvalidSocketPath(f"only Linux has abstract names of Unix sockets, give a path: @{path[1:]!r}")
    name = path[1:] if is_abstract(path) else path
    if not name or "\0" in name or len(os.fsencode(path)) > _LONGEST_PATH:
        raise InvalidSocketPath(f"a Unix socket's path has 1 to {_LONGEST_PATH} bytes and no NUL: {path!r}")


async def _lock(folder: int, path: str) -> None:
    with trio.move_on_after(_LOCK_TIME):
        while True:
            try:
                _lock_now(folder)
            except BlockingIOError:
                await trio.sleep(_LOCK_PAUSE)
            else:
                return
    raise ListenError(f"cannot listen on {path}: another process holds its folder's lock")


def _lock_now(folder: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"cannot listen on {path}: there is something that is no socket")
    if is_refused_when_full():
        for _ in range(round(REFUSED_TIME / _REFUSED_PAUSE)):
            _require_nobody(path)
            await trio.sleep(_REFUSED_PAUSE)
    _require_nobody(path)
    os.unlink(path)  # no server listens any more


def _require_nobody(path: str) -> None:
    """Returns if a connection to a path is refused.

    Raises:
        ListenError: A server listens there.
        OSError: It cannot be connected to for another reason.
    """
    with new_unix_socket() as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            raise ListenError(f"cannot listen on {path}: a busy server is there already") from None
    raise ListenError(f"cannot listen on {path}: a server is there already")


def _bind_unix(path: str, mode: int | None, backlog: int) -> socket.socket:
    listening = new_unix_socket()
    try:
        listening.bind(path)
        # No client can connect before listen(), so the mode is never too wide for a connection.
        if mode is not None:
            os.chmod(path, mode)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening
