"""Opening listening sockets: TCP on one or more addresses, and Unix sockets whose path survives crashes."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import ssl
import stat

import trio

from mcp_actors.errors import ConnectFailed, LocalProtocolError

__all__ = ["HttpListener", "open_tcp", "open_unix"]

# The kernel cuts it to its own maximum (4096 on Linux today). A burst of clients that connect at once must fit.
_BACKLOG = 2048
# sockaddr_un has room for 108 bytes, one of them a terminator.
_LONGEST_PATH = 107
# Two families shall share one port that the kernel chose for the first of them.
_TRIES_FOR_A_PORT = 20
# How long another server may hold the folder's lock: it only probes, binds and listens meanwhile.
_LOCK_TIME = 2.0
_LOCK_PAUSE = 0.01
_NO_SUCH_FAMILY = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT))


class HttpListener:
    """A listening socket. `serve_http` closes it; whoever never serves it does so with `close`."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        ssl_context: ssl.SSLContext | None = None,
        path: str | None = None,
    ) -> None:
        self.socket = listening
        self.ssl_context = ssl_context
        self.path = path
        self._identity = _identity(path) if path is not None else None
        name = listening.getsockname()
        self.host: str | None = None if path is not None else name[0]
        """The address bound to; ``None`` for a Unix socket."""
        self.port: int | None = None if path is not None else name[1]
        """The port bound to, the real one when 0 was asked for; ``None`` for a Unix socket."""

    def __repr__(self) -> str:
        return f"<HttpListener {self.url}{'' if self.socket.fileno() >= 0 else ' closed'}>"

    @property
    def url(self) -> str:
        """Where clients reach it, without a path: ``http://127.0.0.1:8000``, ``unix:/run/x.sock``."""
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in str(self.host) else self.host
        return f"{'https' if self.ssl_context is not None else 'http'}://{host}:{self.port}"

    def accept(self) -> tuple[socket.socket, object]:
        """One connection and its peer's address; never waits, and raises what the system's ``accept`` does."""
        return self.socket.accept()

    def describe(self, address: object) -> str:
        """A peer's address, as ``Request.peer`` has it."""
        if self.path is not None or not isinstance(address, tuple):
            return "unix"
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Closes the socket and removes its path, unless that belongs to somebody else by now. Any number of times."""
        if self.socket.fileno() < 0:
            return
        if self.path is not None and _identity(self.path) == self._identity:
            os.unlink(self.path)
        self.socket.close()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def open_tcp(
    host: str | None, port: int, *, ssl_context: ssl.SSLContext | None = None, backlog: int = _BACKLOG
) -> list[HttpListener]:
    """Listens on every address of ``host``.

    ``None`` and ``"localhost"`` mean the loopback of IPv4 and, where there is one, of IPv6, on the same port; port 0
    lets the system choose it. ``""`` means every interface. Raises `ConnectFailed`.
    """
    if host is None or host == "localhost":
        families = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        optional = True
    else:
        families = await _addresses(host, port)
        optional = False
    for attempt in range(_TRIES_FOR_A_PORT):
        try:
            sockets = _bind_all(families, port, backlog, optional=optional)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port == 0 and attempt < _TRIES_FOR_A_PORT - 1:
                continue  # the port that one family got is taken in the other one
            raise ConnectFailed(f"cannot listen on {host or 'loopback'}:{port}: {error.strerror}") from error
        return [HttpListener(each, ssl_context=ssl_context) for each in sockets]
    raise AssertionError("the last attempt returns or raises")


async def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConnectFailed(f"cannot listen on {host!r}: {error.strerror}") from error
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


async def open_unix(path: str, *, mode: int = 0o600, backlog: int = _BACKLOG) -> HttpListener:
    """Listens on a Unix socket that only this user may connect to, unless ``mode`` says otherwise.

    A socket that a crashed server left behind is replaced. Raises `LocalProtocolError` for a path that is too long for
    the system or not a path, and `ConnectFailed` when something is in the way: a live server, or anything that is
    no socket, which is left alone.
    """
    if not path or "\0" in path or len(os.fsencode(path)) > _LONGEST_PATH:
        raise LocalProtocolError(f"a Unix socket's path has 1 to {_LONGEST_PATH} bytes and no NUL: {path!r}")
    folder = os.path.split(path)[0] or "."
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConnectFailed(f"cannot listen on {path}: {folder}: {error.strerror}") from error
    try:
        # Two servers that find the same stale socket must not each replace the other's new one.
        await _lock(lock, path)
        _make_way(path)
        return HttpListener(_bind_unix(path, mode, backlog), path=path)
    except OSError as error:
        raise ConnectFailed(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.close(lock)


async def _lock(folder: int, path: str) -> None:
    with trio.move_on_after(_LOCK_TIME):
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await trio.sleep(_LOCK_PAUSE)
            else:
                return
    raise ConnectFailed(f"cannot listen on {path}: another process holds its folder's lock")


def _make_way(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConnectFailed(f"cannot listen on {path}: there is something that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # nobody listens any more
        except BlockingIOError:
            raise ConnectFailed(f"cannot listen on {path}: a busy server is there already") from None
        else:
            raise ConnectFailed(f"cannot listen on {path}: a server is there already")


def _bind_unix(path: str, mode: int, backlog: int) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(path)
        # Nobody can connect before listen(), so there is no moment at which the wrong people could.
        os.chmod(path, mode)
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening
