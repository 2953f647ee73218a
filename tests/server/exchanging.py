"""An exchange binding without a wire: a test hands over what arrived and sees what each outlet was given."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from mcp_actors import Server
from mcp_actors.abc import Arrival, Frame, ServerHandler
from tests import messages
from tests.messages import INITIALIZED as INITIALIZED
from tests.messages import LEGACY as LEGACY
from tests.messages import MODERN as MODERN


class Recorder:
    """An outlet that keeps what it is given."""

    longest = 1_000_000

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.settled = 0
        self.closed = 0
        self.over = trio.Event()

    def post(self, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.last:
            self.over.set()

    def send_nowait(self, frame: Frame) -> bool:
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        await trio.lowlevel.checkpoint()
        self.post(frame)

    def settle(self) -> None:
        self.settled += 1
        self.over.set()

    def close_stream(self) -> None:
        self.closed += 1

    @property
    def messages(self) -> list[Any]:
        return [json.loads(frame.data) for frame in self.frames]

    @property
    def answer(self) -> Any:
        assert self.frames, "nothing was answered"
        assert self.frames[-1].last
        return self.messages[-1]

    @property
    def refusal(self) -> int | None:
        return self.frames[-1].refusal


class Desk:
    """A `ServerTransport` that lends its handler to the test; it awaits exchanges, or lets the engine begin them."""

    def __init__(self, begins: bool = False) -> None:
        self.handler: Any = None
        self.begins = begins

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self.handler = handler
        task_status.started("desk")
        await trio.sleep_forever()

    def sort(self, message: Any, in_session: bool = False, **metadata: str) -> Arrival:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        headers = {name.replace("_", "-"): value for name, value in metadata.items()}
        arrival: Arrival = self.handler.sort(Frame(data, metadata=headers), in_session=in_session)
        return arrival

    async def exchange(self, message: Any, outlet: Recorder | None = None, **metadata: str) -> Recorder:
        """Sorts and runs it; a refusal goes to the outlet as well, as a binding would have it."""
        outlet = outlet or Recorder()
        arrival = self.sort(message, **metadata)
        if arrival.refusal is not None:
            outlet.post(arrival.refusal)
        elif self.begins and arrival.requests:
            await self._begin(arrival, outlet)
        else:
            await self.handler.exchange(arrival, outlet)
        return outlet

    async def _begin(self, arrival: Arrival, outlet: Recorder) -> None:
        cancel = self.handler.begin(arrival, outlet)
        if cancel is None:
            return
        try:
            await outlet.over.wait()
        except trio.Cancelled:
            cancel()
            cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            raise

    def deliver(self, session: Any, message: Any, outlet: Recorder | None = None) -> Recorder:
        outlet = outlet or Recorder()
        arrival = self.sort(message, in_session=True)
        assert arrival.refusal is None
        session.deliver(arrival, outlet)
        return outlet


@asynccontextmanager
async def desk(server: Server, *, begins: bool = False) -> AsyncIterator[Desk]:
    transport = Desk(begins)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        yield transport
        nursery.cancel_scope.cancel()


def modern(id: Any, method: str, version: str = MODERN, capabilities: Any = None, **params: Any) -> Any:
    """A stateless request."""
    meta = params.pop("meta", {})
    return messages.modern_request(id, method, params, capabilities, version, **meta)


def mirror(method: str, name: str | None = None, version: str = MODERN) -> dict[str, str]:
    """What is mirrored of a stateless request."""
    named = {} if name is None else {"mcp_name": name}
    return {"mcp_protocol_version": version, "mcp_method": method, **named}


def legacy(id: Any, method: str, **params: Any) -> Any:
    return messages.request(id, method, params)


def initialize(id: Any = 0, version: str = LEGACY, **capabilities: Any) -> Any:
    return messages.initialize(id, version, capabilities)
