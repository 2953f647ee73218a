"""An exchange binding over a message broker: many servers share the work of one queue, and do not know their callers.

The broker here is a substitute that lives in this process, with what brokers have: one request queue with competing
consumers, a reply topic for each caller, cancellation as a message, leases. It delivers *at most once*: a request that
a worker has taken is never given to another one. A worker renews the leases of what it runs; when it is lost, so is the
lease, and the caller gets a `ConnectionLost`, since the call may have come any distance.

Requests are stateless, so this is for the modern era: any worker takes any request, also the one that brings the
answers to questions, if all are made with the same ``state_key``. A ``subscriptions/listen`` hears what happens at the
worker that took it. Run it: ``python -m mcp_actors.examples.transports.broker``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio

from mcp_actors import Client, Context, Server, register_transport
from mcp_actors.abc import Frame, FrameChannel, NoAnswer, ServerHandler
from mcp_actors.errors import ConnectFailed, ConnectionLost, LocalProtocolError, McpError, Overloaded
from mcp_actors.supervision.logging import log
from mcp_actors.types import ElicitResult

__all__ = ["Broker", "BrokerClient", "BrokerWorker", "from_url", "open_broker"]

MAX_MESSAGE = 1024 * 1024  # bytes, as brokers have it
MAX_QUEUED = 1000  # requests that wait for a worker; the next one is refused
MAX_REPLIES = 64  # frames that wait in a reply topic before the handlers that fill it wait
STALL = 30.0  # seconds in which a caller that takes nothing counts as gone

_brokers: dict[str, Broker] = {}


class Topic:
    """The queue of the replies for one caller."""

    def __init__(self) -> None:
        self.incoming, self._out = trio.open_memory_channel[Frame](
            math.inf
        )  # bounded by `full`, and by one answer a call
        self.room = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        return self.incoming.statistics().current_buffer_used >= MAX_REPLIES

    def post(self, frame: Frame) -> None:
        """Takes a frame, and drops it if the caller has left."""
        with suppress(trio.BrokenResourceError):
            self.incoming.send_nowait(frame)

    async def receive(self) -> Frame:
        frame = await self._out.receive()
        self.room.unpark_all()
        return frame

    def close(self) -> None:
        """The caller is gone."""
        self._out.close()
        self.room.unpark_all()


@attrs.define(eq=False)
class Job:
    """A message on its way to a worker, and who waits for the replies."""

    message: Frame
    topic: Topic
    withdrawn: bool = False
    finished: bool = False
    worker: BrokerWorker | None = None
    lease: float = math.inf


class Broker:
    """The queue and the jobs in progress; made by `open_broker`."""

    def __init__(self, name: str, lease: float) -> None:
        self.name, self.lease = name, lease
        self.queue, self._take = trio.open_memory_channel[Job](MAX_QUEUED)
        self._taken: set[Job] = set()
        self.topics: set[Topic] = set()

    def publish(self, message: Frame, topic: Topic) -> Job:
        """Queues a message; raises `Overloaded` if too many are waiting."""
        job = Job(message, topic)
        try:
            self.queue.send_nowait(job)
        except trio.WouldBlock:
            raise Overloaded("queue", len(self._taken), MAX_QUEUED) from None
        except trio.ClosedResourceError:
            raise trio.BrokenResourceError("the broker is gone") from None
        return job

    def withdraw(self, job: Job) -> None:
        """The answer is not wanted any more: a queued job is not run, a worker that has it is sent a message."""
        job.withdrawn = True
        if job in self._taken and job.worker is not None:
            self._taken.remove(job)
            job.worker.cancellations.send_nowait(job)

    async def take(self, worker: BrokerWorker) -> Job:
        """Waits for a job: it is this worker's alone, and is given to no other one, ever."""
        while (job := await self._take.receive()).withdrawn:
            pass
        job.worker, job.lease = worker, trio.current_time() + self.lease
        self._taken.add(job)
        return job

    def renew(self, job: Job) -> bool:
        """Says that a job is still worked on; false if its lease had run out, and its caller knows it."""
        job.lease = trio.current_time() + self.lease
        return job in self._taken

    def reply(self, job: Job, frame: Frame) -> None:
        """Raises `trio.BrokenResourceError` if the job was taken from this worker."""
        if job not in self._taken:
            raise trio.BrokenResourceError("this job is not waited for any more")
        job.topic.post(Frame(frame.data, about=job.message.request))

    def finish(self, job: Job, failure: McpError | None = None) -> None:
        """Nothing more is done about a job; a caller that was not answered learns why not."""
        job.finished = True
        if job in self._taken:
            self._taken.remove(job)
            if failure is not None:
                job.topic.post(NoAnswer(b"", about=job.message.request, reason=failure))

    async def watch(self) -> None:
        """Gives up jobs whose worker was silent for too long."""
        while True:
            await trio.sleep(self.lease / 4)
            for job in [each for each in self._taken if each.lease <= trio.current_time()]:
                text = f"the worker was lost: nothing was heard of it for {self.lease:g} s; the call may have been run"
                self.finish(job, ConnectionLost(text))


@asynccontextmanager
async def open_broker(name: str, *, lease: float = 5.0) -> AsyncIterator[Broker]:
    """Runs a broker that ``broker:NAME`` finds. ``lease`` seconds after a worker was last heard of, it is lost."""
    if name in _brokers:
        raise LocalProtocolError(f"there is a broker {name!r} already")
    broker = _brokers[name] = Broker(name, lease)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.watch)
            yield broker
            nursery.cancel_scope.cancel(reason="the broker is closed")
    finally:
        del _brokers[name]
        broker.queue.close()
        for topic in broker.topics:
            topic.incoming.close()  # what is there can still be received


def _find(name: str) -> Broker:
    if name not in _brokers:
        raise ConnectFailed(f"there is no broker {name!r} in this process")
    return _brokers[name]


@attrs.define(eq=False)
class ReplyOutlet:
    """The `Outlet` of one job: what is sent goes to its caller's topic."""

    broker: Broker
    job: Job
    longest: int = MAX_MESSAGE

    def post(self, frame: Frame) -> None:
        if len(frame.data) > self.longest:
            raise LocalProtocolError(f"a message of more than {self.longest} bytes")
        self.broker.reply(self.job, frame)
        if frame.last:
            self.broker.finish(self.job)

    def send_nowait(self, frame: Frame) -> bool:
        if self.job.topic.full:
            return False
        self.post(frame)
        return True

    async def send(self, frame: Frame) -> None:
        while not self.send_nowait(frame):
            with trio.move_on_after(STALL) as waiting:
                await self.job.topic.room.park()
            if waiting.cancelled_caught:
                raise trio.BrokenResourceError("the caller takes nothing")

    def settle(self) -> None:
        self.broker.finish(self.job)

    def close_stream(self) -> None:
        """A topic is one stream for everything: it stays."""


class BrokerWorker:
    """One of the servers that compete for the jobs of a broker, ``at_once`` at a time. A `ServerTransport`."""

    def __init__(self, name: str, *, at_once: int = 16) -> None:
        self._name = name
        self._at_once = at_once
        self._running: dict[Job, trio.CancelScope] = {}
        self.cancellations, self._cancelled = trio.open_memory_channel[Job](
            math.inf
        )  # one for a running job at most

    async def serve(
        self, handler: ServerHandler, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Takes jobs until the server stops. Cancelled, it says nothing: the leases tell."""
        broker = _find(self._name)
        async with trio.open_nursery() as background:
            background.start_soon(self._renew, broker)
            background.start_soon(self._cancel)
            task_status.started(f"broker:{self._name}")
            async with trio.open_nursery() as calls:
                with trio.CancelScope() as taking:
                    background.start_soon(_cancel_when, handler.stopping, taking)
                    await self._work(broker, handler, calls)
            background.cancel_scope.cancel(reason="stopped")

    async def _work(self, broker: Broker, handler: ServerHandler, calls: trio.Nursery) -> None:
        places = trio.Semaphore(self._at_once)
        try:
            while True:
                await places.acquire()
                job = await broker.take(self)
                calls.start_soon(self._run, broker, handler, job, places)
        except (trio.EndOfChannel, trio.ClosedResourceError):
            log.debug("the broker is gone", broker=self._name)

    async def _run(self, broker: Broker, handler: ServerHandler, job: Job, places: trio.Semaphore) -> None:
        outlet = ReplyOutlet(broker, job)
        try:
            with trio.CancelScope() as self._running[job]:
                arrival = handler.sort(job.message)
                if arrival.refusal is not None:
                    outlet.post(arrival.refusal)
                else:
                    await handler.exchange(arrival, outlet)
                broker.finish(job)
        except trio.BrokenResourceError:
            log.debug("a caller has left, or the lease ran out")
            broker.finish(job)
        except Exception:
            log.exception("a job failed")
            broker.finish(job, ConnectionLost("the worker failed; the call may have been run"))
        finally:
            del self._running[job]
            places.release()

    async def _renew(self, broker: Broker) -> None:
        while True:
            await trio.sleep(broker.lease / 3)
            for job, scope in list(self._running.items()):
                if not broker.renew(job):
                    scope.cancel(reason="the lease ran out: the caller knows that the call was lost")

    async def _cancel(self) -> None:
        async for job in self._cancelled:
            if job in self._running:
                self._running[job].cancel(reason="the caller took the request back")


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="the server takes no more work")


class BrokerChannel(FrameChannel):
    """Frames as jobs and replies; made by `BrokerClient`."""

    max_message_bytes = MAX_MESSAGE
    mirrors = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = Topic()
        broker.topics.add(self._topic)
        self._jobs: dict[int | str, Job] = {}
        self._closed = False

    async def send(self, value: Frame) -> None:
        """Publishes a frame; never waits, since a full queue refuses."""
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        if value.cancels is not None:
            if value.cancels in self._jobs:
                self._broker.withdraw(self._jobs.pop(value.cancels))
            return
        if len(value.data) > MAX_MESSAGE:
            raise LocalProtocolError(f"a message of more than {MAX_MESSAGE} bytes")
        try:
            job = self._broker.publish(value, self._topic)
        except Overloaded as refusal:
            if value.request is not None:
                self._topic.post(NoAnswer(b"", about=value.request, reason=refusal))
        else:
            if value.request is not None:
                self._jobs[value.request] = job

    def settled(self, request: int | str) -> None:
        """Forgets a request that was answered; one that was given up is taken back by a frame that is still to come."""
        if request in self._jobs and self._jobs[request].finished:
            del self._jobs[request]

    async def receive(self) -> Frame:
        return await self._topic.receive()

    async def aclose(self) -> None:
        self._closed = True
        self._broker.topics.discard(self._topic)
        self._topic.close()
        for job in self._jobs.values():
            self._broker.withdraw(job)
        self._jobs.clear()
        await trio.lowlevel.checkpoint()


class BrokerClient:
    """A caller of the workers of a broker. A `ClientTransport`."""

    def __init__(self, name: str) -> None:
        self._name = name

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with BrokerChannel(_find(self._name)) as channel:
            yield channel


class BrokerAddress(BrokerWorker, BrokerClient):
    """The transport of ``broker:NAME``: the server that takes its jobs, or a client of such servers."""


def from_url(url: str) -> BrokerAddress:
    return BrokerAddress(url.partition(":")[2])


register_transport("broker", from_url)


def bakery(name: str, state_key: bytes) -> Server:
    """One of many equal servers."""
    server = Server(name, state_key=state_key)

    @server.tool
    async def bake(cake: str, ctx: Context) -> str:
        """Bakes a cake of the size that is asked for."""
        answer = await ctx.elicit(
            "How large?", {"type": "object", "properties": {"size": {"type": "string"}}}
        )
        return f"{name} baked a {(answer.content or {}).get('size', 'small')} {cake} cake"

    @server.tool
    async def prove() -> None:
        """Waits for the dough to rise, for ever."""
        await trio.sleep_forever()

    return server


async def say_large(params: Any) -> ElicitResult:
    return ElicitResult("accept", {"size": "large"})


async def work(*, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Three workers, until they are cancelled."""
    with trio.CancelScope() as shift:
        async with trio.open_nursery() as nursery:
            for name in ("Anna", "Ben", "Cleo"):
                await nursery.start(bakery(name, bytes(32)).serve, "broker:bakery")
            task_status.started(shift)


async def main() -> None:
    """Bakes cakes, and shows what becomes of a call whose worker is lost."""
    async with open_broker("bakery", lease=1.0), trio.open_nursery() as nursery:
        shift = await nursery.start(work)
        async with Client("broker:bakery", elicitation=say_large) as client:
            for cake in ("plum", "apple", "poppy"):
                print((await client.call_tool("bake", {"cake": cake})).content)
            shift.deadline = trio.current_time() + 0.2
            try:
                await client.call_tool("prove")
            except ConnectionLost as error:
                print(error)


if __name__ == "__main__":
    trio.run(main)
