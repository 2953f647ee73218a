"""A server in memory that reacts to each request of a handshake in a way of its own, and counts what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from mcp_actors.abc import Frame, FrameChannel, NoAnswer
from mcp_actors.errors import ConnectionLost, RemoteProtocolError, Unavailable
from tests.messages import MODERN, discover_result, error, initialize_result, result

__all__ = ["DISCOVERY", "INITIALIZE", "SLOW", "ReactingServer"]

# Seconds that a slow server takes for each answer: more than a client waits before it sends initialize too.
SLOW = 12.0

Message = dict[str, Any]


class ReactingChannel(FrameChannel):
    """The client's end of one connection; the server's end is the two reactions."""

    def __init__(self, server: ReactingServer, nursery: trio.Nursery) -> None:
        self._server = server
        self._nursery = nursery
        self._arrive, self._arrived = trio.open_memory_channel[Frame](100)
        self.asked: list[str] = []

    async def send(self, value: Frame) -> None:
        message = json.loads(value.data)
        await trio.lowlevel.checkpoint()
        if "id" in message and "method" in message:
            self.asked.append(message["method"])
            self._server.asked.append(message["method"])
            self._nursery.start_soon(self._react, message)

    async def _react(self, message: Message) -> None:
        server = self._server
        style = server.discover if message["method"] == "server/discover" else server.initialize
        reactions = DISCOVERY if message["method"] == "server/discover" else INITIALIZE
        if style.startswith("slow "):
            await trio.sleep(SLOW)
        answer = reactions[style](message, self)
        if answer == "end":
            self._arrive.close()
        elif isinstance(answer, Frame):
            await self._arrive.send(answer)
        elif answer is not None:
            await self._arrive.send(Frame(json.dumps(answer).encode()))

    async def lose(self) -> None:
        """Ends the connection as a server does that goes away."""
        await trio.testing.wait_all_tasks_blocked()
        self._arrive.close()

    def first(self, method: str) -> bool:
        """Whether the server was asked that for the first time."""
        return self._server.asked.count(method) == 1

    async def receive(self) -> Frame:
        return await self._arrived.receive()

    async def aclose(self) -> None:
        self._arrived.close()
        await trio.lowlevel.checkpoint()


class ReactingServer:
    """A client's transport to a server that reacts by the names of two reactions."""

    def __init__(self, discover: str, initialize: str) -> None:
        self.discover = discover
        self.initialize = initialize
        self.asked: list[str] = []
        self.connections: list[ReactingChannel] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with trio.open_nursery() as nursery:
            channel = ReactingChannel(self, nursery)
            self.connections.append(channel)
            yield channel
            nursery.cancel_scope.cancel()


def _failed(message: Message, reason: Exception) -> Frame:
    return NoAnswer(b"", about=message["id"], reason=reason)


def _discovered(message: Message, channel: ReactingChannel) -> Message:
    return result(message, discover_result())


def _session(message: Message, channel: ReactingChannel) -> Message:
    return result(message, initialize_result("2025-11-25"))


def _once(
    first: Callable[[Message], Any], then: Callable[..., Any]
) -> Callable[[Message, ReactingChannel], Any]:
    return lambda message, channel: (
        first(message) if channel.first(message["method"]) else then(message, channel)
    )


def _outage(message: Message, *_: object) -> Frame:
    return _failed(message, Unavailable("503"))


def _refused(message: Message, *_: object) -> Message:
    return error(message, -32601, "no")


def _names(*versions: str) -> Callable[..., Message]:
    return lambda message, *_: error(message, -32022, "no", {"supported": list(versions)})


def _versions(*versions: str) -> Callable[..., Message]:
    return lambda message, *_: result(message, discover_result(supportedVersions=list(versions)))


DISCOVERY: dict[str, Callable[[Message, ReactingChannel], Any]] = {
    "stateless": _discovered,
    "both": _versions("2025-11-25", MODERN),
    "named": _once(_names(MODERN), _discovered),
    "outage once": _once(_outage, _discovered),
    "lost once": _once(lambda message: _failed(message, ConnectionLost("reset")), _discovered),
    "slow stateless": _discovered,
    "sessions": _versions("2025-06-18", "2025-11-25"),
    "sessions in an error": _names("2025-11-25"),
    "refused": _refused,
    "4xx": lambda message, _: _failed(message, RemoteProtocolError("404")),
    "slow refused": _refused,
    "silent": lambda *_: None,
    "outage": _outage,
    "dies": lambda *_: "end",
    "others": _versions("2099-01-01"),
    "others in an error": _names("2099-01-01"),
    "header mismatch": lambda message, _: error(message, -32020, "no"),
}

INITIALIZE: dict[str, Callable[[Message, ReactingChannel], Any]] = {
    "session": _session,
    "slow session": _session,
    "slow names stateless": _names(MODERN),
    "slow refused": _refused,
    "outage once": _once(_outage, _session),
    "session unless discovered": lambda message, channel: (
        error(message, -32600, "this session is initialized already")
        if "server/discover" in channel.asked
        else _session(message, channel)
    ),
    "names stateless": _names(MODERN),
    "refused": _refused,
    "names others": lambda message, _: error(message, -32602, "no", {"supported": ["1999-01-01"]}),
    "other version": lambda message, _: result(message, initialize_result("1999-01-01")),
    "silent": lambda *_: None,
    "outage": _outage,
    "dies": lambda *_: "end",
}
