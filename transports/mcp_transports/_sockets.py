"""Sockets for the bindings: listening at TCP and Unix addresses, accepting, and the settings of connections.

A process that serves with others at the same addresses accepts from sockets that they all have. It gets them when it
is started (`inherit`), and a listener that would bind an address first looks here for them (`taken`). When the process
is replaced by a younger one (`retire`), it accepts nothing more, and its connections of HTTP end with the next answer,
while the others go on accepting: no client is refused or surprised.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import ssl
import stat
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import trio

from mcp_actors.supervision import descriptors
from mcp_actors.supervision.budget import holder_of
from mcp_actors.supervision.containment import start_again
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import ACCEPT

if sys.platform != "win32":
    import fcntl
if sys.platform == "linux":
    import struct
    import termios

    _ZERO = struct.pack("i", 0)
    # A filter of one instruction, "return 0": code, two jumps, operand (socket(7), linux/filter.h).
    _SO_ATTACH_FILTER = 26
    _DROP_ALL = (0x06, 0, 0, 0)

__all__ = [
    "BACKLOG",
    "NONE_ON_WINDOWS",
    "REFUSED_TIME",
    "InvalidSocketPath",
    "ListenError",
    "ListeningSocket",
    "accept_until",
    "address_text",
    "advice_about",
    "at_retirement",
    "bind_tcp",
    "bind_unix",
    "check_unix_path",
    "enable_keepalive",
    "has_more_than_others",
    "holds_bytes",
    "inherit",
    "inherit_counts",
    "is_abstract",
    "is_refused_when_full",
    "is_unix",
    "new_unix_socket",
    "nothing_is_under_way",
    "retire",
    "send_without_delay",
    "taken",
    "tcp_key",
    "unix_key",
    "why_not_connected",
]

# The kernel limits it to its own maximum (4096 on Linux). A burst of clients that connect at once must fit.
BACKLOG = 2048
# Attempts to share a port that the kernel chose for one family with the other one, where it may be taken.
_TRIES_FOR_A_PORT = 20
# Connections accepted before other tasks run. From a socket that several processes share each takes one
# at a time, so that a burst of connections is spread over all of them, and busy ones get fewer.
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
# Seconds for which another server may hold the folder's lock; all it does meanwhile is probe, bind and listen.
_LOCK_TIME = 2.0
_LOCK_PAUSE = 0.01
# Bytes that sockaddr_un has room for, without a terminator: 108 on Linux, 104 on macOS and the BSDs.
_LONGEST_PATH = 107 if sys.platform == "linux" else 103
# Seconds for which a refused connection is tried again, where a live server refuses too when its queue is full. It
# accepts what waits within some turns of its loop.
REFUSED_TIME = 0.5
_REFUSED_PAUSE = 0.01
NONE_ON_WINDOWS = "Python has no Unix sockets on Windows: use tcp: or http: at 127.0.0.1"


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
            OSError: As the system's ``accept`` does; `BlockingIOError` when no connection waits.
        """
        return self.socket.accept()

    async def accept_many(
        self, connections: Callable[[], int] = lambda: 0
    ) -> list[tuple[socket.socket, object]]:
        """Waits for connections and returns those that there are, 64 at most. Cancelling loses none.

        When the descriptors that peers may have are used up, it returns one at a time. Of an inherited socket it
        returns one, and processes with fewer connections come first for a moment.

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
                    if not descriptors.leaves_room(accepted.fileno()):
                        break  # those that are cut for it need a turn to close
            if self._exhausted and not found:
                await trio.sleep(_PAUSE_WHEN_EXHAUSTED)
        return found

    def accept_waiting(self) -> list[tuple[socket.socket, object]]:
        """Returns the connections that wait now, before it is closed: the system resets those that are left then."""
        found: list[tuple[socket.socket, object]] = []
        while True:
            try:
                found.append(self.accept())
            except OSError:
                # Nothing waits any more, or nothing can be accepted.
                return found

    def accept_last(self) -> list[tuple[socket.socket, object]]:
        """Returns the connections that wait, where it is closed at once, and has Linux make no further one.

        One that was made between the last accept and the closing would be reset, perhaps with a request. The system
        drops its packets, and its peer, which tries again after a second, finds the port closed.
        """
        if not self.inherited and self.path is None:
            self._drop_packets()
        return self.accept_waiting()

    def _drop_packets(self) -> None:
        if sys.platform == "linux":
            program = array("B", struct.pack("HBBI", *_DROP_ALL))
            with suppress(OSError):  # a kernel without such filters
                self.socket.setsockopt(
                    socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, program.buffer_info()[0])
                )

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
        """Returns the holder of the budget for ``peer``; ``None`` over Unix sockets, whose peers have no address."""
        return None if self.path is not None else holder_of(peer)

    def close(self) -> None:
        """Closes the socket and removes its path, unless another socket has replaced it. Idempotent."""
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
    """Returns a socket's address as people write it; ``unix`` for one that is not a pair of host and port."""
    if not isinstance(address, tuple):
        return "unix"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_abstract(path: str) -> bool:
    """Whether a Unix socket's name is one of Linux's abstract ones, which have no file."""
    return path.startswith("\0")


def _identity(path: str) -> tuple[int, int] | None:
    if is_abstract(path):
        return None
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# -- TCP ---


def why_not_connected(error: OSError | UnicodeError) -> str:
    """Returns in one line why a connection was not made; Trio puts the failures of several addresses into a group."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        reasons = (getattr(each, "errno", None) for each in cause.exceptions)
        return "; ".join(dict.fromkeys(os.strerror(each) for each in reasons if each)) or str(error)
    return str((isinstance(error, OSError) and error.strerror) or cause or error)


def advice_about(error: BaseException) -> str:
    """Returns what to do about a connection that was not made, to be put behind the reason, or nothing."""
    causes = list(_causes_of(error))
    if any(isinstance(each, socket.gaierror) for each in causes):
        return "; is the name right, and is there a network?"
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
        return "; if that server is yours, name the certificate of its authority: SSL_CERT_FILE=authority.pem"
    if any(isinstance(each, ssl.SSLError) and each.reason == "WRONG_VERSION_NUMBER" for each in causes):
        return "; it speaks no TLS: is its URL one with http: in place of https:, or ws: in place of wss:?"
    return "; is the server running there?" if any(isinstance(each, OSError) for each in causes) else ""


def _causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and everything that has led to it."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            waiting += filter(None, (each.__cause__, each.__context__))


async def bind_tcp(host: str | None, port: int, *, backlog: int = BACKLOG) -> list[ListeningSocket]:
    """Listens on every address of ``host``, or takes the sockets that this process has inherited for it.

    Args:
        host: ``None`` and ``"localhost"`` mean the loopback of IPv4 and, if there is one, of IPv6, on the same port;
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


# -- Unix sockets, whose paths survive crashes ---


def is_refused_when_full() -> bool:
    """Whether this system refuses a connection to a Unix socket whose queue is full, as if no server listened.

    macOS and the BSDs do. On Linux `connect` says EAGAIN then.
    """
    return sys.platform != "linux"


def new_unix_socket() -> socket.socket:
    """Returns a Unix socket that does not block.

    Raises:
        InvalidSocketPath: This system has no Unix sockets.
        OSError: The process has no descriptor left.
    """
    if sys.platform == "win32":
        raise InvalidSocketPath(NONE_ON_WINDOWS)
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
        InvalidSocketPath: The path is malformed or too long for the system.
        ListenError: Something is in the way: a live server, or a file that is not a socket.
    """
    if sys.platform == "win32":
        raise InvalidSocketPath(NONE_ON_WINDOWS)
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
        raise InvalidSocketPath(NONE_ON_WINDOWS)
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
            _require_unused(path)
            await trio.sleep(_REFUSED_PAUSE)
    _require_unused(path)
    os.unlink(path)  # no server listens any more


def _require_unused(path: str) -> None:
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


# -- accepting, until the server stops or its process retires ---

ListenerT = TypeVar("ListenerT", bound=ListeningSocket)


async def accept_until(
    stopping: trio.Event,
    listeners: Sequence[ListenerT],
    arrived: Callable[[ListenerT, list[tuple[socket.socket, object]]], object],
    connections: Callable[[], int],
) -> ListenError | None:
    """Accepts from every listener, each in a task of its own, until ``stopping`` is set or this process retires.

    A task that crashes is started again. A listening socket that is broken ends the accepting from all of them,
    since its address is not served any more and starting again would not help.

    Args:
        stopping: Ends the accepting; nothing that was accepted is lost, nor what waited to be accepted if the caller
            closes the listeners at once.
        listeners: The caller closes them.
        arrived: Called with a listener and its new connections, at least one. Must not wait.
        connections: Returns how many of them are open.

    Returns:
        Why a listener cannot accept any more, or ``None`` if it was stopped.
    """
    broken: list[ListenError] = []

    async def accept(listener: ListenerT) -> None:
        try:
            while True:
                arrived(listener, await listener.accept_many(connections))
        except ListenError as error:
            broken.append(error)
            accepting.cancel_scope.cancel(reason="a listening socket is broken")

    def retire() -> None:
        accepting.cancel_scope.cancel(reason="another process accepts in place of this one")

    async with trio.open_nursery() as accepting:
        with at_retirement(retire):
            for listener in listeners:
                start_again(accepting, ACCEPT, accept, listener, about=f"at {listener.where('tcp')}")
            await stopping.wait()
            accepting.cancel_scope.cancel(reason="the server stops")
    if stopping.is_set() and not broken:
        for listener in listeners:
            if last := listener.accept_waiting():
                arrived(listener, last)
    return broken[0] if broken else None


# -- several processes at the same addresses ---

# The sockets of each address that are not taken yet. Two listeners at port 0 have different ones.
_waiting: dict[str, list[list[socket.socket]]] = {}
_at_retirement: set[Callable[[], object]] = set()
# The numbers of open connections of all processes, in memory that they share, and the place of this one's.
_counts: list[memoryview] = []
_place = 0
_BYTES_OF_A_COUNT = 8


def tcp_key(host: str | None, port: int) -> str:
    """Returns the name of an address as it was asked for, whatever it was bound to."""
    return f"tcp:{'localhost' if host is None else host}:{port}"


def unix_key(path: str) -> str:
    """Returns the name of a Unix socket's address."""
    return f"unix:{path}"


def inherit(sockets: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Takes over the descriptors of listening sockets that this process was started with.

    Args:
        sockets: By the name of an address: for each listener there, the descriptors of its sockets.

    Raises:
        OSError: A descriptor is not open, or is not a socket's.
    """
    for key, listeners in sockets.items():
        for numbers in listeners:
            opened = [socket.socket(fileno=each) for each in numbers]
            for each in opened:
                each.setblocking(False)
                os.set_inheritable(each.fileno(), False)
            _waiting.setdefault(key, []).append(opened)


def inherit_counts(descriptor: int, place: int, processes: int) -> None:
    """Takes the memory in which each process notes how many connections it has, so that all get about as many.

    Args:
        descriptor: A file of 8 bytes for each process.
        place: That of this process, from 0 on.
        processes: How many there are.

    Raises:
        OSError: The descriptor is not that of such a file.
    """
    global _place
    shared = mmap.mmap(descriptor, processes * _BYTES_OF_A_COUNT)
    os.close(descriptor)
    _place = place
    _counts[:] = [memoryview(shared).cast("q")]
    _counts[0][place] = 0


def has_more_than_others(connections: int) -> bool:
    """Notes how many connections this process has, and returns whether another process has fewer."""
    if not _counts:
        return False
    _counts[0][_place] = connections
    return min(_counts[0]) < connections


def taken(key: str) -> list[socket.socket] | None:
    """Returns the sockets of an address, which belong to the caller then; ``None`` if it has to be bound."""
    waiting = _waiting.get(key)
    return waiting.pop(0) if waiting else None


def retire() -> None:
    """Makes every listener of this process stop accepting, and ends connections where that costs nothing.

    Must be called in the event loop. Connections that are left end when the server is stopped.
    """
    for each in list(_at_retirement):
        each()


@contextmanager
def at_retirement(call: Callable[[], object]) -> Iterator[None]:
    """Calls ``call()``, which must not wait, if this process retires while the block runs."""
    _at_retirement.add(call)
    try:
        yield
    finally:
        _at_retirement.discard(call)


# -- connected sockets: settings, and questions about them, which differ between systems ---

# The name of the time of silence differs: macOS has the second one only. A setting that a system lacks stays at its
# default.
_NAMES_OF_IDLE = ("TCP_KEEPIDLE", "TCP_KEEPALIVE")
# sys/socket.h of macOS; the module `socket` does not name it. Bytes in the sending buffer that the peer has not got.
_SO_NWRITE = 0x1024


def is_unix(connected: socket.socket) -> bool:
    """Whether a socket is a Unix socket; never where there are none."""
    return sys.platform != "win32" and connected.family == socket.AF_UNIX


def send_without_delay(connected: socket.socket) -> None:
    """Makes TCP send small messages at once.

    macOS refuses to set options of a connection whose peer is gone already. The next read finds that out, so the
    error is dropped here.
    """
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        return


def enable_keepalive(
    connected: socket.socket | trio.socket.SocketType, *, idle: int, interval: int, probes: int
) -> None:
    """Makes TCP probe a silent peer. An error is dropped, as in `send_without_delay`.

    Args:
        connected: A TCP socket.
        idle: Seconds of silence before the first probe.
        interval: Seconds from one probe to the next.
        probes: How many go unanswered before the connection counts as lost.
    """
    settings = {**dict.fromkeys(_NAMES_OF_IDLE, idle), "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": probes}
    try:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in settings.items():
            option = getattr(socket, name, None)
            if option is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:
        return


def nothing_is_under_way(connected: socket.socket) -> bool:
    """Whether the peer of a TCP connection has received everything; false where the system does not say.

    Raises:
        OSError: The connection is broken, or the socket is closed.
    """
    if sys.platform == "linux":
        return fcntl.ioctl(connected, termios.TIOCOUTQ, _ZERO) == _ZERO
    if sys.platform == "darwin":
        return not is_unix(connected) and connected.getsockopt(socket.SOL_SOCKET, _SO_NWRITE) == 0
    return False


def holds_bytes(connected: socket.socket) -> bool:
    """Whether the kernel holds bytes of the peer that were not read. The socket does not block."""
    try:
        return connected.recv(1, socket.MSG_PEEK) != b""
    except OSError:
        return False  # nothing was sent, or the connection is broken
