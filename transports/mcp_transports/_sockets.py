"""Listening sockets: opening them for TCP on one or more addresses, and accepting from them.

Shared by the bindings that listen. `mcp_transports._unix_sockets` opens those of Unix sockets.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable

import trio

from mcp_actors.budget import holder_of
from mcp_actors.logging import log
from mcp_transports._inherited import has_more_than_others, taken, tcp_key

__all__ = [
    "BACKLOG",
    "InvalidSocketPath",
    "ListenError",
    "ListeningSocket",
    "address_text",
    "bind_tcp",
    "is_abstract",
]

# The kernel limits it to its own maximum (4096 on Linux). A burst of clients that connect at once must fit.
BACKLOG = 2048
# Attempts to share a port that the kernel chose for one family with the other one, where it may be taken.
_TRIES_FOR_A_PORT = 20
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
            for _ in range(most):
                try:
                    accepted, address = self.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _UNUSABLE and not self._listens_on(error):
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
                if self.path is None and not address:
                    accepted.close()  # as above, but macOS hands over what is left of it
                else:
                    found.append((accepted, address))
            if self._exhausted and not found:
                await trio.sleep(_PAUSE_WHEN_EXHAUSTED)
        return found

    def _listens_on(self, error: OSError) -> bool:
        """Whether an ``accept`` that failed was about one connection, although the error says that it is the socket.

        On macOS EINVAL may mean that the peer of a connection is gone already.
        """
        if sys.platform != "darwin" or error.errno != errno.EINVAL:
            return False
        try:
            return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0
        except OSError:
            return False

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
            advice = (
                "; end what listens there, or take another port" if error.errno == errno.EADDRINUSE else ""
            )
            raise ListenError(
                f"cannot listen on {host or 'loopback'}:{port}: {error.strerror}{advice}"
            ) from error
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
        if sys.platform == "win32":
            # There SO_REUSEADDR lets any program take over the port of another one that listens.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address, port))
        listening.listen(backlog)
    except BaseException:
        listening.close()
        raise
    return listening
