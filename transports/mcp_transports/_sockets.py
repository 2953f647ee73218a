"""Opening listening sockets: TCP on one or more addresses, and Unix sockets whose path survives crashes.

Shared by the bindings that listen.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable

import trio

from mcp_actors.budget import holder_of
from mcp_actors.logging import log
from mcp_transports._inherited import has_more_than_others, taken, tcp_key, unix_key

__all__ = [
    "BACKLOG",
    "InvalidSocketPath",
    "ListenError",
    "ListeningSocket",
    "address_text",
    "bind_tcp",
    "bind_unix",
    "check_unix_path",
    "is_abstract",
]

# The kernel limits it to its own maximum (4096 on Linux). A burst of clients that connect at once must fit.
BACKLOG = 2048
# sockaddr_un has room for 108 bytes, one of them a terminator.
_LONGEST_PATH = 107
# Attempts to share a port that the kernel chose for one family with the other one, where it may be taken.
_TRIES_FOR_A_PORT = 20
# Seconds for which another server may hold the folder's lock; all it does meanwhile is probe, bind and listen.
_LOCK_TIME = 2.0
_LOCK_PAUSE = 0.01
# Connections accepted before other tasks run. Of what several processes accept from, each takes one after the other:
# so that a burst of connections goes to all of them, and to those that are busy with calls less often.
_ACCEPT_AT_ONCE = 64
_ACCEPT_AT_ONCE_OF_OTHERS = 1
# Seconds for which a process with more connections leaves a new one to the others: some calls of theirs.
_PRECEDENCE = 0.005
# Without descriptors or memory nothing can be accepted until some are freed.
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
_PAUSE_WHEN_EXHAUSTED = 0.1
_NO_SUCH_FAMILY = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT))


# The listening socket itself cannot be used; every other error is about the connection that would have been accepted.
_UNUSABLE = frozenset((errno.EBADF, errno.EINVAL, errno.ENOTSOCK))


class ListenError(Exception):
    """An address cannot be listened at; the text says which and why."""


class InvalidSocketPath(ValueError):
    """A text cannot be a Unix socket's path, or abstract name, on this system."""


class ListeningSocket:
    """A listening socket. The owner closes it.

    Args:
        listening: The socket.
        path: The path of a Unix socket.
        inherited: Whether other processes accept from it, too: then its path is theirs, and it is closed here alone.
    """

    def __init__(self, listening: socket.socket, *, path: str | None = None, inherited: bool = False) -> None:
        self.socket = listening
        self.path = path
        self.inherited = inherited
        self._identity = _identity(path) if path is not None and not inherited else None
        self._closed = False
        self._exhausted = False
        name = listening.getsockname()
        self.host: str | None = None if path is not None else name[0]
        """The address bound to; ``None`` for a Unix socket."""
        self.port: int | None = None if path is not None else name[1]
        """The port bound to, the real one when 0 was asked for; ``None`` for a Unix socket."""

    def __repr__(self) -> str:
        closed = " closed" if self.socket.fileno() < 0 else ""
        return f"<{type(self).__name__} {self.where('tcp')}{closed}>"

    def where(self, scheme: str) -> str:
        """Returns the address as a URL: ``SCHEME://127.0.0.1:8000``, or ``unix:/run/x.sock`` whatever the scheme."""
        if self.path is not None:
            return f"unix:{f'@{self.path[1:]}' if is_abstract(self.path) else self.path}"
        return f"{scheme}://{address_text((self.host, self.port))}"

    def accept(self) -> tuple[socket.socket, object]:
        """Returns one connection and its peer's address, without waiting.

        Raises:
            OSError: As the system's ``accept`` does; `BlockingIOError` when there is no connection.
        """
        return self.socket.accept()

    async def accept_many(
        self, connections: Callable[[], int] = lambda: 0
    ) -> list[tuple[socket.socket, object]]:
        """Waits for connections and returns those that there are, 64 at most. Cancelling loses none.

        Of an inherited socket it returns one, and processes with fewer connections come first for a moment.

        Args:
            connections: Returns how many connections are open, of those that were accepted before.

        When the process has no descriptors or memory left, it logs that once, and tries again until there are some.

        Raises:
            ListenError: The listening socket is closed or broken, and will never have a connection again.
        """
        found: list[tuple[socket.socket, object]] = []
        most = _ACCEPT_AT_ONCE_OF_OTHERS if self.inherited else _ACCEPT_AT_ONCE
        while not found:
            await trio.lowlevel.wait_readable(self.socket)
            if self.inherited and has_more_than_others(connections()):
                await trio.sleep(_PRECEDENCE)
            while len(found) < most:
                try:
                    found.append(self.accept())
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _UNUSABLE:
                        where = self.where("tcp")
                        raise ListenError(f"cannot listen on {where} any more: {error.strerror}") from error
                    if error.errno in _EXHAUSTED:
                        if not self._exhausted:
                            # The reason is part of the event: without descriptors a log line may go without details.
                            reason = f"cannot accept connections for now: {error.strerror}"
                            log.error(reason, listener=self.where("tcp"))
                        self._exhausted = True
                        break
                    continue  # its peer gave this connection up before it was accepted
                self._exhausted = False
            if self._exhausted and not found:
                await trio.sleep(_PAUSE_WHEN_EXHAUSTED)
        return found

    def describe(self, address: object) -> str:
        """Returns a peer's address as text: ``127.0.0.1:4711``, ``[::1]:4711``, or ``unix``."""
        return "unix" if self.path is not None else address_text(address)

    def holder_of(self, peer: str) -> str | None:
        """Returns who answers for a connection of ``peer``; ``None`` over Unix sockets, whose peers have no address."""
        return None if self.path is not None else holder_of(peer)

    def close(self) -> None:
        """Closes the socket and removes its path, unless another socket has replaced it. Legal any number of times."""
        if self._closed:
            return
        self._closed = True
        # Removed before it is closed: a path whose socket is closed is one that another server may take over.
        try:
            if (
                self.path is not None
                and self._identity is not None
                and _identity(self.path) == self._identity
            ):
                os.unlink(self.path)
        except OSError as error:
            log.warning("a Unix socket could not be removed", path=self.path, reason=error.strerror)
        finally:
            self.socket.close()


def address_text(address: object) -> str:
    """Returns a socket's address as people write it; ``unix`` for one that is no pair of host and port."""
    if not isinstance(address, tuple):
        return "unix"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_abstract(path: str) -> bool:
    """Whether a Unix socket's name is one of Linux's abstract ones, which no file stands for."""
    return path.startswith("\0")


def _identity(path: str) -> tuple[int, int] | None:
    if is_abstract(path):
        return None
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def bind_tcp(host: str | None, port: int, *, backlog: int = BACKLOG) -> list[ListeningSocket]:
    """Listens on every address of ``host``, or takes the sockets that this process has inherited for it.

    Args:
        host: ``None`` and ``"localhost"`` mean the loopback of IPv4 and, where there is one, of IPv6, on the same port;
            ``""`` means every interface.
        port: 0 lets the system choose it.
        backlog: Connections that the kernel keeps until they are accepted.

    Raises:
        ListenError: The name has no address, or an address cannot be listened at.
    """
    inherited = taken(tcp_key(host, port))
    if inherited is not None:
        return [ListeningSocket(each, inherited=True) for each in inherited]
    if host is None or host == "localhost":
        families = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        optional = True
    else:
        families = await _addresses(host, port)
        optional = False
    for attempt in range(_TRIES_FOR_A_PORT):
        try:
            return [ListeningSocket(each) for each in _bind_all(families, port, backlog, optional=optional)]
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port == 0 and attempt < _TRIES_FOR_A_PORT - 1:
                continue  # the port that one family got is taken in the other one
            raise ListenError(f"cannot listen on {host or 'loopback'}:{port}: {error.strerror}") from error
    raise AssertionError("the last attempt returns or raises")


async def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:  # the latter for names that cannot be any host's
        raise ListenError(f"cannot listen on {host!r}: {error}") from error
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bind_all(
    families: list[tuple[socket.AddressFamily, str]], port: int, backlog: int, *, optional: bool
) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for family, address in families:
            try:
                bound.append(_bind(family, address, port, backlog))
            except OSError as error:
                if not (optional and bound and error.errno in _NO_SUCH_FAMILY):
                    raise
                continue
            port = port or bound[0].getsockname()[1]
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


def _bind(family: socket.AddressFamily, address: str, port: int, backlog: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address, port))
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening


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
        _remove_stale(path)
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
    name = path[1:] if is_abstract(path) else path
    if not name or "\0" in name or len(os.fsencode(path)) > _LONGEST_PATH:
        raise InvalidSocketPath(f"a Unix socket's path has 1 to {_LONGEST_PATH} bytes and no NUL: {path!r}")


async def _lock(folder: int, path: str) -> None:
    with trio.move_on_after(_LOCK_TIME):
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await trio.sleep(_LOCK_PAUSE)
            else:
                return
    raise ListenError(f"cannot listen on {path}: another process holds its folder's lock")


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"cannot listen on {path}: there is something that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # no server listens any more
        except BlockingIOError:
            raise ListenError(f"cannot listen on {path}: a busy server is there already") from None
        else:
            raise ListenError(f"cannot listen on {path}: a server is there already")


def _bind_unix(path: str, mode: int | None, backlog: int) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(path)
        # No client can connect before listen(), so the mode is never too wide for a connection.
        if mode is not None:
            os.chmod(path, mode)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening
