"""Where everything that arrives for a channel meets: many streams put, the engine's reader takes."""

from __future__ import annotations

from collections import deque

import trio

from mcp_actors.abc import Frame

__all__ = ["ReceiveQueue"]

# Frames that wait for the engine before the streams they come from wait too. It takes all there are at a time.
MAX_FRAMES = 256


class ReceiveQueue:
    """A bounded queue of frames that knows which of them the reader is done with.

    ``max_bytes`` bounds what waits, but one frame is always taken.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._put = 0
        self._taken = 0
        self._digested = 0
        self._closed = False
        self._ended = False
        self._cause: BaseException | None = None
        self._arrival = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._awaited: list[tuple[int, trio.Event]] = []

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._ended else "open"
        return f"<ReceiveQueue {state}: {len(self._frames)}/{MAX_FRAMES}>"

    def __len__(self) -> int:
        return len(self._frames)

    def post(self, frame: Frame) -> int:
        """Puts a frame, room or not, and returns its number."""
        self._put += 1
        if not self._closed and not self._ended:
            self._frames.append(frame)
            self._bytes += len(frame.data)
            self._arrival.unpark_all()
        return self._put

    async def put(self, frame: Frame) -> int:
        """Puts a frame when there is room, and returns its number. Cancelled while it waits, it has put nothing."""
        while self._frames and (len(self._frames) >= MAX_FRAMES or self._bytes >= self._max_bytes):
            await self._room.park()
        return self.post(frame)

    async def take(self, most: int = MAX_FRAMES) -> list[Frame]:
        """Waits for at least one frame; raises the ending when there is none left. Cancelled, it has taken nothing."""
        if self._digested != self._taken:
            self._digested = self._taken
            awaited, self._awaited = self._awaited, []
            for number, event in awaited:
                self.tell(number, event)
        await trio.lowlevel.checkpoint()
        while not self._frames or self._closed:
            if self._closed:
                raise trio.ClosedResourceError("the channel is closed")
            if self._ended:
                if self._cause is None:
                    raise trio.EndOfChannel
                raise trio.BrokenResourceError(str(self._cause)) from self._cause
            await self._arrival.park()
        frames = [self._frames.popleft() for _ in range(min(most, len(self._frames)))]
        self._taken = self._put - len(self._frames)
        self._bytes -= sum(len(frame.data) for frame in frames)
        self._room.unpark_all()
        return frames

    def tell(self, number: int, event: trio.Event) -> None:
        """Sets an event once the reader, done with the frame of that number, has come back for more."""
        if number <= self._digested:
            event.set()
        else:
            self._awaited.append((number, event))

    def end(self, cause: BaseException | None) -> None:
        """Nothing more comes: what is there can still be taken, then it is over, broken if there is a cause."""
        if not self._ended:
            self._ended, self._cause = True, cause
            self._arrival.unpark_all()

    def close(self) -> None:
        """Drops what is there; whoever waits gets `trio.ClosedResourceError`."""
        self._closed = True
        self._frames.clear()
        self._arrival.unpark_all()
        self._room.unpark_all()
