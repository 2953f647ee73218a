"""Plays recordings back: as the client of a server, or as the server of a client."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from mcp_actors.abc import (
    ClientTransport,
    Frame,
    FrameChannel,
    NewAccess,
    NoAnswer,
    NotificationsMissed,
    Waiting,
)
from mcp_actors.abc.discovery import client_transport
from mcp_actors.errors import ConnectFailed
from mcp_actors.server import Server
from mcp_actors.supervision.containment import reraised
from mcp_actors.testing.recording import Recording, Side

__all__ = ["PlaybackReport", "RecordedServer", "play_to_server"]

Normal = Callable[[bytes], bytes]
_ENDINGS = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen
class PlaybackReport:
    """The difference between what a peer sent and what the recorded peer sent."""

    expected: tuple[bytes, ...]
    """The frames that the recorded peer sent, in order."""
    received: tuple[bytes, ...]
    """The frames that this peer sent, in order."""
    missing: tuple[bytes, ...]
    """Expected frames that did not come."""
    unexpected: tuple[bytes, ...]
    """Frames that were not expected."""
    misplaced: tuple[int, ...]
    """Indexes in ``received`` of frames that are out of order; only found when the comparison is exact."""
    unsent: int
    """The number of our frames that could not be sent, because the peer had ended or read nothing."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.unexpected or self.misplaced or self.unsent)

    def __str__(self) -> str:
        if self.same:
            return f"no difference in {len(self.received)} frames"
        lines = [f"missing:    {data.decode('utf-8', 'replace')}" for data in self.missing]
        lines += [f"unexpected: {data.decode('utf-8', 'replace')}" for data in self.unexpected]
        lines += [f"misplaced:  number {place}" for place in self.misplaced]
        lines += (
            [f"not sent:   {self.unsent} frames, the peer had ended or took nothing"] if self.unsent else []
        )
        return "\n".join(lines)


async def play_to_server(
    recording: Recording,
    target: Server | ClientTransport,
    *,
    connection: int = 1,
    exact: bool = False,
    normal: Normal | None = None,
    patience: float = 5.0,
    quiet: float = 0.1,
) -> PlaybackReport:
    """Plays the client of a recorded connection to a server, and reports how its answers differ.

    A frame is sent when as many frames have come back as had when it was recorded, or none came for ``patience``
    seconds.

    Args:
        recording: what to play.
        target: a server, which is served in memory for that time, or a transport that connects to one.
        connection: the number of the recorded connection, from 1.
        exact: compares bytes and order. By default frames are compared as JSON values, in any order.
        normal: applied to the frames of both sides before they are compared, to remove what differs each time, such as
            tokens and times of day.
        patience: seconds to wait for a frame that was recorded, 5 by default.
        quiet: seconds to wait at the end for frames that were not recorded, 0.1 by default.

    Raises:
        ConnectFailed: the server could not be reached.
        ValueError: the recording does not have the connection.
    """
    script = recording.script(connection)
    if not isinstance(target, Server):
        async with target.connect() as channel:
            return await _play(channel, script, "client", _Comparison(exact, normal), patience, quiet)
    # Both sides are the same object, which `connect` alone does not say.
    transport: Any = client_transport("memory:")
    async with trio.open_nursery() as nursery:
        await nursery.start(target.serve, transport)
        report = await play_to_server(
            recording,
            transport,
            connection=connection,
            exact=exact,
            normal=normal,
            patience=patience,
            quiet=quiet,
        )
        nursery.cancel_scope.cancel(reason="the recording is played")
    return report


class RecordedServer:
    """A `~mcp_actors.abc.ClientTransport` whose server is a recorded one, one recorded connection after the other::

        recorded = RecordedServer(Recording.load("session.jsonl"))
        async with Client(recorded) as client:
            ...
        assert recorded.reports[0].same

    A frame is sent when as many frames have come from the client as had when it was recorded, or none came for
    ``patience`` seconds.

    Args:
        recording: what to play.
        exact: as for `play_to_server`.
        normal: as for `play_to_server`.
        patience: seconds to wait for a frame of the client that was recorded, 5 by default.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        exact: bool = False,
        normal: Normal | None = None,
        patience: float = 5.0,
    ) -> None:
        self._scripts = [recording.script(number) for number in recording.connections]
        self._comparison = _Comparison(exact, normal)
        self._patience = patience
        self._connected = 0
        self.reports: list[PlaybackReport] = []
        """How the client differed, for each connection that has ended."""

    def __repr__(self) -> str:
        return f"<RecordedServer {self._connected} of {len(self._scripts)} connections played>"

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        """Opens the next connection. Leaving the block closes it and makes the report.

        Raises:
            ConnectFailed: no further connection was recorded.
        """
        if self._connected == len(self._scripts):
            raise ConnectFailed(f"the recording has {len(self._scripts)} connections, and they are played")
        script = self._scripts[self._connected]
        self._connected += 1
        played = trio.Event()

        async def handle(channel: FrameChannel) -> None:
            self.reports.append(
                await _play(channel, script, "server", self._comparison, self._patience, None)
            )
            played.set()

        transport: Any = client_transport("memory:")
        with reraised() as body:
            async with trio.open_nursery() as nursery:
                await nursery.start(transport.serve, handle)
                with body:
                    async with transport.connect() as channel:
                        yield channel
                # The player finds the channel closed, so this takes no time.
                with trio.move_on_after(self._patience, shield=True):
                    await played.wait()
                nursery.cancel_scope.cancel(reason="the connection is closed")


@attrs.frozen
class _Comparison:
    """The way in which frames are compared."""

    exact: bool
    normal: Normal | None

    def key(self, data: bytes) -> Hashable:
        if self.normal is not None:
            data = self.normal(data)
        if self.exact:
            return data
        try:
            return json.dumps(json.loads(data), sort_keys=True)
        except (ValueError, RecursionError):
            return data

    def compare(self, expected: Sequence[bytes], received: Sequence[bytes], unsent: int) -> PlaybackReport:
        wanted, got = [self.key(data) for data in expected], [self.key(data) for data in received]
        misplaced = [
            place for place, (one, other) in enumerate(zip(wanted, got, strict=False)) if one != other
        ]
        return PlaybackReport(
            tuple(expected),
            tuple(received),
            _without(expected, wanted, got),
            _without(received, got, wanted),
            tuple(misplaced) if self.exact else (),
            unsent,
        )


def _without(
    data: Sequence[bytes], keys: Sequence[Hashable], others: Sequence[Hashable]
) -> tuple[bytes, ...]:
    """Returns those of ``data`` whose keys are not among the others, each of which counts once."""
    left = Counter(others)
    rest = []
    for each, key in zip(data, keys, strict=True):
        if left[key]:
            left[key] -= 1
        else:
            rest.append(each)
    return tuple(rest)


async def _play(
    channel: FrameChannel,
    script: Sequence[tuple[Side, Frame]],
    side: Side,
    comparison: _Comparison,
    patience: float,
    quiet: float | None,
) -> PlaybackReport:
    """Plays ``side``. At the end it waits ``quiet`` seconds for unexpected frames, or for the peer's end."""
    received: list[bytes] = []
    expected: list[bytes] = []
    unsent = given_up = 0
    changed = trio.lowlevel.ParkingLot()
    ended = trio.Event()

    async def collect() -> None:
        try:
            while True:
                frames = await channel.receive_many()
                told = (Waiting, NewAccess, NotificationsMissed)
                messages = [_take(channel, each) for each in frames if not isinstance(each, told)]
                received.extend(messages)
                if messages:
                    changed.unpark_all()
        except _ENDINGS:
            ended.set()
            changed.unpark_all()

    async def catch_up() -> None:
        nonlocal given_up
        while len(received) + given_up < len(expected) and not ended.is_set():
            before = len(received)
            with trio.move_on_after(patience):
                await changed.park()
            if len(received) == before:
                # Frames that do not come are waited for only once.
                given_up = len(expected) - before

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        for sender, frame in script:
            if sender != side:
                expected.append(frame.data)
                continue
            await catch_up()
            unsent += 1
            with trio.move_on_after(patience):
                try:
                    await channel.send(frame)
                    unsent -= 1
                except _ENDINGS:
                    pass  # counted: what the peer sent before it ended is compared all the same
        await catch_up()
        if quiet is None:
            await ended.wait()
        else:
            with trio.move_on_after(quiet):
                await ended.wait()
        nursery.cancel_scope.cancel(reason="the recording is played")
    return comparison.compare(expected, received, unsent)


def _take(channel: FrameChannel, frame: Frame) -> bytes:
    """Returns what was received. As the engine does, it calls `settled` on the channel for a response."""
    if isinstance(frame, NoAnswer):
        return f"no answer to {frame.about!r}: {frame.reason}".encode()
    try:
        message = json.loads(frame.data)
    except (ValueError, RecursionError):
        return frame.data
    if isinstance(message, dict) and "method" not in message and isinstance(message.get("id"), int | str):
        channel.settled(message["id"])
    return frame.data
