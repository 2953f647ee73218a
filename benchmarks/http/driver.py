"""Many conversations over plain sockets at once: epoll, one request outstanding a connection, no async library."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from benchmarks.http.wire import Reply, ReplyReader
from benchmarks.suite.process import LoadError

__all__ = ["Conversation", "Driven", "connect", "drive"]

ANSWER_WITHIN_SECONDS = 30.0
READ_BYTES = 65536
# Above it the server may have waited for us, and its figure is too low.
BUSY_SHARE = 0.9

# Yields requests, is sent their replies.
Conversation = Generator[bytes, Reply, None]


@dataclass
class Driven:
    """``own_share`` is how much of one processor this process took meanwhile."""

    seconds: float
    received: int
    own_share: float

    def warn(self) -> None:
        """Says so if the generator may have been what was measured."""
        if self.own_share > BUSY_SHARE:
            print(
                f"the generator was at {self.own_share:.0%} of a processor: the server can do more",
                file=sys.stderr,
            )


class _Connection:
    __slots__ = ("conversation", "reader", "receive", "send", "socket")

    def __init__(self, connection: socket.socket, conversation: Conversation) -> None:
        self.socket = connection
        self.receive = connection.recv
        self.send = connection.send
        self.reader = ReplyReader()
        self.conversation = conversation


def connect(port: int) -> socket.socket:
    """A connection to the server on this machine."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_WITHIN_SECONDS)
    except OSError as error:
        raise LoadError(f"port {port}: {error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def drive(port: int, conversations: Iterable[Conversation]) -> Driven:
    """Holds each conversation over a keep-alive connection of its own, until all of them have ended."""
    epoll = select.epoll()
    connections: dict[int, _Connection] = {}
    received = 0
    try:
        for conversation in conversations:
            connection = connect(port)
            connection.setblocking(False)
            connections[connection.fileno()] = _Connection(connection, conversation)
            epoll.register(connection.fileno(), select.EPOLLIN)
        started, cpu_started = time.perf_counter(), time.process_time()
        for each in tuple(connections.values()):
            each.send(next(each.conversation))
        while connections:
            events = epoll.poll(ANSWER_WITHIN_SECONDS)
            if not events:
                raise LoadError(f"no answer within {ANSWER_WITHIN_SECONDS:g} s")
            for fd, _ in events:
                each = connections[fd]
                data = each.receive(READ_BYTES)
                if not data:
                    raise LoadError("the server closed a connection; start it by hand to see why")
                reply = each.reader.feed(data)
                if reply is None:
                    continue
                try:
                    each.send(each.conversation.send(reply))
                except StopIteration:
                    received += each.reader.received
                    del connections[fd]
                    epoll.unregister(fd)
                    each.socket.close()
        seconds = time.perf_counter() - started
        return Driven(seconds, received, (time.process_time() - cpu_started) / seconds)
    except OSError as error:
        raise LoadError(f"a connection broke: {error}") from error
    finally:
        epoll.close()
        for each in connections.values():
            each.socket.close()
