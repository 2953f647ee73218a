"""Makes a process look like macOS to whatever is imported from then on. To be run in a subprocess, not by pytest.

Trio and the rest of the standard library go on with Linux. The modules of this project find a `sys.platform` of
``darwin`` and none of the names that only Linux has, and their sockets and files fail as those of macOS do:

- there is no ``/proc``;
- an abstract name of a Unix socket does not exist, and a path has 103 bytes at most;
- a connection to a Unix socket whose queue is full is refused, as if nobody listened there;
- ``TIOCOUTQ`` on a socket is refused; ``SO_NWRITE`` says the same of TCP, and always 0 of a Unix socket;
- ``accept`` may return a connection whose peer is gone already, without an address, and options of it are refused;
- the end of a pipe that is written to says with ``FIONREAD`` what waits for itself, which is nothing.

The lists of names are those that typeshed has for Linux and not for macOS.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import importlib
import io
import os
import socket
import stat
import struct
import sys
import termios
from collections.abc import Callable, Iterable
from typing import Any

import trio

from tests.windows.pretended import PACKAGES, Pretended

__all__ = ["NO_NAMES", "Counts", "MacSocket", "counts", "pretend"]

NO_NAMES = {
    "os": (
        "EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE GRND_NONBLOCK GRND_RANDOM MFD_ALLOW_SEALING MFD_CLOEXEC O_DIRECT "
        "O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE P_PIDFD SCHED_BATCH SCHED_IDLE copy_file_range eventfd "
        "eventfd_read eventfd_write fdatasync getrandom getresgid getresuid getxattr listxattr memfd_create "
        "pidfd_open pipe2 posix_fadvise posix_fallocate removexattr sched_getaffinity sched_getparam "
        "sched_getscheduler sched_setaffinity sched_setparam sched_setscheduler setns setresgid setresuid setxattr "
        "splice unshare"
    ),
    "socket": (
        "AF_ALG AF_CAN AF_NETLINK AF_PACKET AF_TIPC AF_VSOCK MSG_CMSG_CLOEXEC MSG_CONFIRM MSG_FASTOPEN MSG_MORE "
        "MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_DOMAIN SO_INCOMING_CPU SO_MARK SO_PASSCRED "
        "SO_PEERCRED SO_PEERSEC SO_PRIORITY SO_PROTOCOL TCP_CONGESTION TCP_CORK TCP_DEFER_ACCEPT TCP_INFO "
        "TCP_KEEPIDLE TCP_LINGER2 TCP_QUICKACK TCP_SYNCNT TCP_USER_TIMEOUT TCP_WINDOW_CLAMP"
    ),
    "select": (
        "EPOLLERR EPOLLET EPOLLEXCLUSIVE EPOLLHUP EPOLLIN EPOLLMSG EPOLLONESHOT EPOLLOUT EPOLLPRI EPOLLRDHUP "
        "EPOLL_CLOEXEC epoll"
    ),
    "signal": (
        "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo struct_siginfo"
    ),
    "time": "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    "mmap": "MADV_DOFORK MADV_DONTFORK MADV_HUGEPAGE MADV_REMOVE MAP_POPULATE",
    "resource": "RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_OFILE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING prlimit",
    "sys": "",
}
SO_NWRITE = 0x1024
LONGEST_PATH = 103
_real_socket, _real_ioctl = socket.socket, fcntl.ioctl


class Counts:
    """How often a fake has answered as macOS does."""

    asked_for_unsent = 0
    gone_at_accept = 0
    options_refused = 0
    refused_when_full = 0
    no_proc = 0


counts = Counts()


class MacSocket(socket.socket):
    """A socket that fails as one of macOS does."""

    gone_peers = 0
    """How many of the next connections over TCP have lost their peers when they are accepted."""

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, address = super().accept()
        made = MacSocket(fileno=accepted.detach())
        if self.family != socket.AF_UNIX and MacSocket.gone_peers:
            MacSocket.gone_peers -= 1
            counts.gone_at_accept += 1
            if MacSocket.gone_peers % 2:
                return made, None
            made.is_gone = True
        return made, address

    is_gone = False

    def setsockopt(self, *args: Any) -> None:
        if self.is_gone:
            counts.options_refused += 1
            raise OSError(errno.EINVAL, "Invalid argument")
        super().setsockopt(*args)

    def getsockopt(self, level: int, option: int, *length: int) -> Any:
        if (level, option) == (socket.SOL_SOCKET, SO_NWRITE):
            counts.asked_for_unsent += 1
            if self.family == socket.AF_UNIX:
                return 0
            return struct.unpack("i", _real_ioctl(self, termios.TIOCOUTQ, bytes(4)))[0]
        return super().getsockopt(level, option, *length)

    def bind(self, address: Any) -> None:
        self._check(address)
        super().bind(address)

    def connect(self, address: Any) -> None:
        self._check(address)
        try:
            super().connect(address)
        except BlockingIOError as error:
            if self.family == socket.AF_UNIX and error.errno == errno.EAGAIN:
                counts.refused_when_full += 1
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused") from None
            raise

    def connect_ex(self, address: Any) -> int:
        self._check(address)
        code = super().connect_ex(address)
        if self.family == socket.AF_UNIX and code == errno.EAGAIN:
            counts.refused_when_full += 1
            return errno.ECONNREFUSED
        return code

    def _check(self, address: Any) -> None:
        if self.family == socket.AF_UNIX:
            if len(os.fsencode(address)) > LONGEST_PATH:
                raise OSError("AF_UNIX path too long")
            if address.startswith("\0"):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")


def _ioctl(descriptor: Any, request: int, argument: Any = 0, mutate: bool = True) -> Any:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    mode = os.fstat(number).st_mode
    if request == termios.TIOCOUTQ and stat.S_ISSOCK(mode):
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
    writes = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    if request == termios.FIONREAD and stat.S_ISFIFO(mode) and writes:
        argument[0] = 0
        return 0
    return _real_ioctl(descriptor, request, argument, mutate)


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *args: Any, **options: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and str(path).startswith("/proc"):
            counts.no_proc += 1
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return function(path, *args, **options)

    return call


def pretend(first: Iterable[str]) -> None:
    """Loads modules as they are on Linux, then makes this process look like macOS.

    Args:
        first: The modules. Others that are imported later take this process for one on macOS.
    """
    assert not any(name.partition(".")[0] in PACKAGES for name in sys.modules), "too late: ours is loaded"
    for name in first:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # an extra that is not installed, or a module of another system
    added: dict[str, dict[str, Any]] = {
        # The numbers are those of Linux, whose kernel gets them.
        "socket": {"socket": MacSocket, "TCP_KEEPALIVE": socket.TCP_KEEPIDLE},
        "sys": {"platform": "darwin"},
    }
    for name, absent in NO_NAMES.items():
        real = importlib.import_module(name)
        sys.modules[name] = Pretended(real, frozenset(absent.split()), added.get(name, {}))
    fcntl.ioctl = _ioctl  # type: ignore[assignment]
    from_stdlib_socket = trio.socket.from_stdlib_socket

    def taken(made: socket.socket) -> trio.socket.SocketType:
        """Trio takes sockets of the one class only."""
        return from_stdlib_socket(_real_socket(fileno=made.detach()))

    trio.socket.from_stdlib_socket = taken
    for function in ("listdir", "readlink", "open", "stat"):
        setattr(os, function, _without_proc(getattr(os, function)))
    builtins.open = io.open = _without_proc(io.open)
