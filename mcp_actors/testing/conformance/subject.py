"""The transport under test, served and connected to; the frames that checks send; and the server that the kit serves.

The server is for the checks from end to end, with a client of it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any

import attrs
import trio

from mcp_actors import Limits
from mcp_actors.abc import (
    Arrival,
    ClientTransport,
    Frame,
    FrameChannel,
    Outlet,
    ServerHandler,
    ServerSession,
    ServerTransport,
    StopPart,
)
from mcp_actors.client import Client
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_actors.server import Context, Server
from mcp_actors.shared import MemoryState
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing.conformance.rules import (
    ACCEPTING,
    BLOCK,
    CALLS,
    NO_DUPLICATION,
    NO_LOSS,
    ORDER,
    WHOLE,
    RuleBroken,
    expect,
)
from mcp_actors.types import ElicitResult, TextContent

__all__ = [
    "CHANGING",
    "ENDED",
    "ChannelAction",
    "ChannelHandler",
    "TransportMaker",
    "TransportUnderTest",
    "Witness",
    "compare",
    "connected_client",
    "echo",
    "make_frame",
    "make_frames",
    "make_server",
    "receive_all",
    "receive_count",
    "send_in_ways",
    "text_of",
]


_NOT_RUN = "the handler was not run for a new connection; if this is an exchange binding, say exchange=True"

TransportMaker = Callable[
    [], AbstractAsyncContextManager[tuple[ServerTransport, Callable[[Any], ClientTransport]]]
]
"""Makes one transport for one check: see `check_transport`."""

ChannelAction = Callable[[FrameChannel], Awaitable[object]]
"""A function that does something to a channel of the transport under test."""


class ChannelHandler:
    """A `ServerHandler` of a connection binding that runs a function for each connection, then closes its channel."""

    def __init__(self, handle: ChannelAction) -> None:
        self._handle = handle
        self.leaving = trio.Event()
        self.stopping = trio.Event()
        self.has_sessions = True
        self.shared = MemoryState()

    def stops_with(self, part: StopPart) -> AbstractContextManager[None]:
        """Has nothing of ``part``: the checks end a transport by cancelling it."""
        return nullcontext()

    def missing(self) -> Sequence[str]:
        """Returns nothing."""
        return ()

    def key_for(self, purpose: str) -> bytes:
        """Returns the key of one purpose, which is not a secret here."""
        return hashlib.sha256(purpose.encode()).digest()

    async def __call__(self, channel: FrameChannel, principal: Principal | None = None) -> None:
        """Runs a connection."""
        try:
            await self._handle(channel)
        finally:
            await channel.aclose()

    def sort(self, frame: Frame, *, in_session: bool = False) -> Arrival:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def scopes_needed(self, arrival: Arrival) -> frozenset[str]:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    async def exchange(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> None:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def begin(
        self, arrival: Arrival, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> Callable[[], None]:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def open_session(
        self, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> ServerSession:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def hand_over(self, session: ServerSession) -> bytes | None:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    async def go_on(
        self, record: bytes, outlet: Outlet, principal: Principal | None = None, peer: str | None = None
    ) -> ServerSession:
        """Raises `LocalProtocolError`: a connection binding has no exchanges."""
        raise self._no_exchange()

    def _no_exchange(self) -> LocalProtocolError:
        return LocalProtocolError("this binding has exchanges: call check_transport(maker, exchange=True)")


@attrs.frozen(kw_only=True)
class TransportUnderTest:
    """The transport under test and the properties of its medium; see `check_transport`."""

    maker: TransportMaker
    half_close: ChannelAction | None
    break_off: ChannelAction | None
    senders_at_once: bool
    connections: int
    max_buffered: int
    largest: int
    quiet: float
    patience: float

    @asynccontextmanager
    async def served(
        self, serve: Callable[..., Awaitable[None]], *, place: Callable[[Any], Any] = lambda where: where
    ) -> AsyncIterator[ClientTransport]:
        """Serves by ``serve(transport, task_status=…)``; yields the transport that connects there.

        Args:
            serve: Reports by its ``task_status`` where it serves.
            place: Finds in that report what the binding itself has reported.

        Raises:
            RuleBroken: ``serve`` did not report exactly once within the patience.
        """
        async with self.maker() as (server, client_for):
            async with trio.open_nursery() as nursery:
                try:
                    with trio.move_on_after(self.patience) as starting:
                        where = await nursery.start(serve, server)
                except RuntimeError as error:
                    raise RuleBroken(ACCEPTING, f"serve() did not call started() once: {error}") from error
                if starting.cancelled_caught:
                    raise RuleBroken(ACCEPTING, f"serve() did not call started() within {self.patience:g} s")
                yield client_for(place(where))
                nursery.cancel_scope.cancel(reason="the check is over")

    def serving(self, handle: ChannelAction) -> AbstractAsyncContextManager[ClientTransport]:
        """Serves every connection with ``handle(channel)``."""
        handler: ServerHandler = ChannelHandler(handle)

        async def serve(transport: ServerTransport, *, task_status: trio.TaskStatus[Any]) -> None:
            await transport.serve(handler, task_status=task_status)

        return self.served(serve)

    @asynccontextmanager
    async def connected(self, transport: ClientTransport) -> AsyncIterator[FrameChannel]:
        """Opens a connection for the length of the block.

        Raises:
            RuleBroken: Connecting failed, or it or leaving the block took longer than the patience.
        """
        open_ = False
        try:
            # Round the block, since a block may hold a nursery; its deadline is there on the way in and on the way out.
            with trio.move_on_after(self.patience) as bound:
                async with transport.connect() as channel:
                    open_, bound.deadline = True, math.inf
                    try:
                        yield channel
                    finally:
                        bound.deadline = trio.current_time() + self.patience
        except ConnectFailed as error:
            if open_:
                raise
            raise RuleBroken(ACCEPTING, f"connecting failed after started() was called: {error}") from error
        if bound.cancelled_caught:
            rule, what = (BLOCK, "leaving the block") if open_ else (ACCEPTING, "connecting")
            raise RuleBroken(rule, f"{what} took longer than {self.patience:g} s")

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[tuple[FrameChannel, FrameChannel]]:
        """A connection: the client's end and the server's end."""
        accepted, channels = trio.open_memory_channel[FrameChannel](1)
        over = trio.Event()

        async def handle(channel: FrameChannel) -> None:
            accepted.send_nowait(channel)
            await over.wait()

        async with self.serving(handle) as transport, self.connected(transport) as client:
            with self.soon(ACCEPTING, _NOT_RUN):
                server = await channels.receive()
            try:
                yield client, server
            finally:
                over.set()

    @contextmanager
    def soon(self, rule: str, seen: str) -> Iterator[None]:
        """Bounds the time of the block by the patience.

        Raises:
            RuleBroken: The block took longer: ``rule`` is broken, and ``seen`` says how.
        """
        with trio.move_on_after(self.patience) as waiting:
            yield
        if waiting.cancelled_caught:
            raise RuleBroken(rule, f"{seen} (within {self.patience:g} s)")


# -- frames --------------------------------------------------------------------------------------------

# Of the three endings, those that come from the other side.
ENDED = (trio.EndOfChannel, trio.BrokenResourceError)
# Not periodic in any size that a buffer is likely to have, so that a piece that went missing shows.
_FILLING = "".join(f"{number:x}." for number in range(30_011))


def make_frame(number: int, size: int = 0, tag: str = "frame") -> Frame:
    """A notification that carries its number and is exactly ``size`` bytes long, if that is long enough for it."""
    head = f'{{"jsonrpc":"2.0","method":"kit/{tag}","params":{{"n":{number},"fill":"'
    tail = '"}}'
    room = max(0, size - len(head) - len(tail))
    filling = (_FILLING * (room // len(_FILLING) + 1))[:room]
    return Frame(f"{head}{filling}{tail}".encode(), method=f"kit/{tag}")


def make_frames(count: int, tag: str = "frame", sizes: Sequence[int] = (0, 100, 1000, 5000)) -> list[Frame]:
    """Returns numbered frames with the given sizes in turn."""
    return [make_frame(number, sizes[number % len(sizes)], tag) for number in range(count)]


async def send_in_ways(channel: FrameChannel, frames: Sequence[Frame]) -> None:
    """Sends frames one by one and in bursts of every length up to 16, so that both are seen side by side."""
    at, burst = 0, 0
    while at < len(frames):
        burst = burst % 16 + 1
        if burst == 1:
            await channel.send(frames[at])
        else:
            await channel.send_many(frames[at : at + burst])
        at += burst


async def receive_count(channel: FrameChannel, count: int, patience: float, who: str) -> list[bytes]:
    """Receives at least ``count`` frames, alternately one and all that there are.

    Args:
        patience: The seconds that each frame may take at most.
        who: The words for these frames in a complaint.

    Raises:
        RuleBroken: A frame did not arrive in time.
    """
    got: list[bytes] = []
    turn = 0
    while len(got) < count:
        turn += 1
        with trio.move_on_after(patience) as waiting:
            if turn % 3 == 1:
                got.append((await channel.receive()).data)
            else:
                got.extend(frame.data for frame in await channel.receive_many())
        if waiting.cancelled_caught:
            raise RuleBroken(
                NO_LOSS, f"{who}: {len(got)} of {count} frames arrived, then none for {patience:g} s"
            )
    return got


async def receive_all(channel: FrameChannel) -> tuple[list[bytes], Exception]:
    """Receives until the end; returns what came and how it ended."""
    got: list[bytes] = []
    try:
        while True:
            got.extend(frame.data for frame in await channel.receive_many())
    except ENDED as ending:
        return got, ending


def compare(got: Sequence[bytes], want: Iterable[Frame | bytes], who: str) -> None:
    """Raises `RuleBroken` with the rule that fits the first difference."""
    wanted = [frame if isinstance(frame, bytes) else frame.data for frame in want]
    if list(got) == wanted:
        return
    known = {data: number for number, data in enumerate(wanted)}
    for place, data in enumerate(got):
        if data not in known:
            raise RuleBroken(WHOLE, f"{who}: number {place} of what arrived was never sent: {_shown(data)}")
    counts = Counter(got)
    for data, number in known.items():
        if counts[data] > 1:
            raise RuleBroken(NO_DUPLICATION, f"{who}: frame {number} arrived {counts[data]} times")
    missing = [number for data, number in known.items() if data not in counts]
    if missing:
        raise RuleBroken(
            NO_LOSS,
            f"{who}: {len(missing)} of {len(wanted)} frames did not arrive, the first is frame {missing[0]}",
        )
    place = next(i for i, (one, other) in enumerate(zip(got, wanted, strict=True)) if one != other)
    raise RuleBroken(ORDER, f"{who}: frame {known[got[place]]} came where frame {place} was due")


def _shown(data: bytes) -> str:
    return f"{data[:60]!r}… ({len(data)} bytes)" if len(data) > 60 else repr(data)


# -- the server from end to end ------------------------------------------------------------------------

CHANGING = "kit://changing"
# Seconds of silence until the engine reports for a call: short, because the kit waits for it.
BEAT = 0.1
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@attrs.define
class Witness:
    """Records what happened inside the handlers."""

    waiting: int = 0
    cancelled: int = 0
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def notify(self) -> None:
        """Wakes the tasks that wait for a number."""
        self.changed.unpark_all()

    async def saw(self, *, waiting: int = 0, cancelled: int = 0) -> None:
        """Waits until so many calls have begun to wait, and so many were cancelled."""
        while self.waiting < waiting or self.cancelled < cancelled:
            await self.changed.park()


def make_server(witness: Witness) -> Server:
    """Returns a server whose tools repeat, count, wait and ask."""
    server = Server("kit", limits=Limits(beat=BEAT))

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def count(ctx: Context, upto: int) -> str:
        for number in range(1, upto + 1):
            await ctx.progress(number, upto)
        return str(upto)

    @server.tool
    async def wait(text: str = "") -> str:
        witness.waiting += 1
        witness.notify()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            witness.cancelled += 1
            witness.notify()
            raise

    @server.tool
    async def ask(ctx: Context, greeting: str) -> str:
        answer = await ctx.elicit("Who is there?", FORM)
        return f"{greeting} {(answer.content or {}).get('name')}"

    @server.resource(CHANGING)
    async def changing() -> str:
        return "as ever"

    return server


async def _answer(question: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "kit"})


@asynccontextmanager
async def connected_client(
    tested: TransportUnderTest, era: str
) -> AsyncIterator[tuple[Client, Server, Witness]]:
    """Serves the server of the kit over the binding, and connects a client to it."""
    witness = Witness()
    server = make_server(witness)
    async with tested.served(server.serve, place=lambda places: places[0]) as transport:
        async with Client(transport, era=era, elicitation=_answer) as client:
            yield client, server, witness


def text_of(result: Any) -> str:
    """Returns the text that a tool answered with."""
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


async def echo(client: Client, text: str) -> None:
    """Calls the tool that repeats its argument."""
    heard = text_of(await client.call_tool("echo", {"text": text}))
    expect(
        heard == text,
        CALLS,
        f"{text[:40]!r} ({len(text)} characters) came back as {heard[:40]!r} ({len(heard)})",
    )
