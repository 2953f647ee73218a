"""Settings of connected sockets, and questions about them, whose names and meanings differ between systems."""

from __future__ import annotations

import socket
import sys

import trio

if sys.platform == "linux":
    import fcntl
    import struct
    import termios

    _ZERO = struct.pack("i", 0)

__all__ = ["enable_keepalive", "holds_bytes", "is_unix", "nothing_is_under_way", "send_without_delay"]

# The name of the time of silence differs: macOS has the second one only. A setting that a system lacks stays at its
# default.
_NAMES_OF_IDLE = ("TCP_KEEPIDLE", "TCP_KEEPALIVE")
# sys/socket.h of macOS; the module `socket` does not name it. Bytes in the sending buffer that the peer has not got.
_SO_NWRITE = 0x1024


def is_unix(connected: socket.socket) -> bool:
    """Whether a socket is a Unix socket; never where there are none."""
    return sys.platform != "win32" and connected.family == socket.AF_UNIX


def send_without_delay(connected: socket.socket) -> None:
    """Has TCP send small messages at once.

    macOS refuses to set options of a connection whose peer is gone already. Whoever receives finds that out, so that
    the error is dropped here.
    """
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        return


def enable_keepalive(
    connected: socket.socket | trio.socket.SocketType, *, idle: int, interval: int, probes: int
) -> None:
    """Has TCP ask a silent peer whether it is still there. An error is dropped, as in `send_without_delay`.

    Args:
        connected: A TCP socket.
        idle: Seconds of silence before the first probe.
        interval: Seconds from one probe to the next.
        probes: How many are left without an answer when the connection is taken for lost.
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
    """Whether the peer of a TCP connection has got everything; false where the system does not say.

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
