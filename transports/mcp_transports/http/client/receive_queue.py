"""The queue of the frames that a channel has received: many streams put them, and the engine's reader takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from mcp_actors.abc import Frame

__all__ = ["ReceiveQueue"]

# Frames that wait for the engine before the streams they come from have to wait. It takes all there are at a time.
MAX_FRAMES = 256


def _take_nothing(frame: Frame) -> bool:
    return False


class ReceiveQueue:
    """A bounded queue of frames that knows which of them its reader has processed.

    Args:
        max_bytes: the bound for the bytes of all frames that wait. A single longer frame is accepted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        # Frames are numbered from 1 in the order in which they were put. These are the numbers of the last one that was
        # put, and processed.
        self._put = 0
        self._processed = 0
        self._deliver: Callable[[Frame], bool] = _take_nothing
        self._closed = False
        self._ended = False
        self._cause: BaseException | None = None
        self._arrival = trio.lowlevel.ParkingLot()
        self._space = trio.lowlevel.ParkingLot()
        self._processed_events: list[tuple[int, trio.Event]] = []

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._ended else "open"
        return f"<ReceiveQueue {state}: {len(self._frames)}/{MAX_FRAMES}>"

    def __len__(self) -> int:
        return len(self._frames)

    def put_at_once(self, frame: Frame) -> int:
        """Puts a frame even when the queue is full, and returns its number. One that comes after the end is dropped."""
        if self._closed or self._ended:
            return self._put
        self._put = number = self._put + 1
        # Whoever waits has processed all that was put before.
        if self._arrival and not self._frames and self._deliver(frame):
            self._processed = max(self._processed, number)
            return number
        self._frames.append(frame)
        self._bytes += len(frame.data)
        self._arrival.unpark_all()
        return number

    def deliver_to(self, take: Callable[[Frame], bool]) -> None:
        """Gives each frame to ``take`` at once while a reader waits, and keeps those that it does not take."""
        self._deliver = take

    async def put(self, frame: Frame) -> int:
        """Waits for space, puts a frame and returns its number. Cancelled while it waits, it has put nothing."""
        while self._frames and (len(self._frames) >= MAX_FRAMES or self._bytes >= self._max_bytes):
            await self._space.park()
        return self.put_at_once(frame)

    async def take(self, max_frames: int = MAX_FRAMES) -> list[Frame]:
        """Waits for at least one frame. Cancelled, it has taken nothing.

        The call also says that the caller has processed the frames that it took before.

        Raises:
            trio.ClosedResourceError: the queue was closed.
            trio.EndOfChannel: no frame is left, and the server ended the channel.
            trio.BrokenResourceError: no frame is left, and the channel failed.
        """
        taken = self._put - len(self._frames)
        if self._processed != taken:
            self._processed = taken
            events, self._processed_events = self._processed_events, []
            for number, event in events:
                self.set_when_processed(number, event)
        await trio.lowlevel.checkpoint()
        while not self._frames or self._closed:
            if self._closed:
                raise trio.ClosedResourceError("the channel is closed")
            if self._ended:
                if self._cause is None:
                    raise trio.EndOfChannel
                raise trio.BrokenResourceError(str(self._cause)) from self._cause
            await self._arrival.park()
        frames = [self._frames.popleft() for _ in range(min(max_frames, len(self._frames)))]
        self._bytes -= sum(len(frame.data) for frame in frames)
        self._space.unpark_all()
        return frames

    def set_when_processed(self, number: int, event: trio.Event) -> None:
        """Sets ``event`` once the reader has processed the frame with that number and asks for more."""
        if number <= self._processed:
            event.set()
        else:
            self._processed_events.append((number, event))

    def end(self, cause: BaseException | None) -> None:
        """Accepts no more frames. Those in the queue can still be taken; then `take` raises the end, with ``cause``."""
        if not self._ended:
            self._ended, self._cause = True, cause
            self._arrival.unpark_all()

    def close(self) -> None:
        """Drops all frames; a reader that waits gets `trio.ClosedResourceError`."""
        self._closed = True
        self._frames.clear()
        self._arrival.unpark_all()
        self._space.unpark_all()
