"""The world of an experiment: servers, clients and the links between them, and one run of it."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import attrs
import trio

from mcp_actors.client import Client
from mcp_actors.errors import McpError
from mcp_actors.server import Server
from mcp_actors.supervision.containment import one_error
from mcp_actors.testing.simulate.links import (
    Constant,
    Distribution,
    Exponential,
    LinkProfile,
    SimulatedClientTransport,
    SimulatedServerTransport,
    TrafficCounts,
    VirtualClock,
    as_distribution,
    drawn,
    run,
)
from mcp_actors.testing.simulate.report import DIGITS, NUMBER, CallLedger, Report, latencies, name_of
from mcp_actors.types import CallToolResult

__all__ = ["User", "World", "simulate"]

# Seconds that a client waits after a failed connection before it tries again.
TRY_AGAIN = Exponential(1.0)


class User:
    """The user of one client, which is what a behaviour gets."""

    def __init__(
        self, number: int, client: Client, rng: random.Random, ledger: CallLedger, world: World
    ) -> None:
        self.number = number
        """The number of the user, from 0."""
        self.client = client
        """The client, connected when the behaviour begins. Calls made with it directly are not counted."""
        self.rng = rng
        """The only source of random numbers that a behaviour may use."""
        self._ledger = ledger
        self._world = world

    def __repr__(self) -> str:
        return f"<User {self.number} {self.client!r}>"

    async def think(self, time: Distribution | float | None = None) -> None:
        """Waits for a time that is drawn from ``time``, in seconds, or from the world's ``think`` by default."""
        await trio.sleep(drawn(as_distribution(self._world.think if time is None else time), self.rng))

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, patience: float = math.inf
    ) -> CallToolResult | None:
        """Calls a tool and counts how the call ended.

        Args:
            tool: the name of the tool.
            arguments: its arguments.
            patience: seconds after which the call is cancelled, never by default.

        Returns:
            The result, or ``None`` if there was none; the report has the reason.
        """
        call = self._ledger.begin()
        result: CallToolResult | None = None
        try:
            with trio.move_on_after(patience):
                result = await self.client.call_tool(tool, arguments, meta={NUMBER: call.number})
        except McpError as error:
            self._ledger.failed(call, name_of(error))
            return None
        if result is None:
            self._ledger.given_up(call)
            return None
        if result.is_error:
            self._ledger.failed(call, "isError")
        else:
            self._ledger.answered(call)
        return result


Behaviour = Callable[[User], Awaitable[None]]


async def think_and_call(user: User) -> None:
    """The default behaviour: thinks and calls the tool ``work``, again and again."""
    world = user._world
    while True:
        await user.think()
        seconds = drawn(world.service, user.rng)
        impatient = world.cancel > 0 and user.rng.random() < world.cancel
        patience = drawn(world.cancel_after, user.rng) if impatient else math.inf
        await user.call("work", {"seconds": seconds}, patience=patience)


def worker() -> Server:
    """Returns the default server, whose tool ``work`` takes the time that the call says."""
    server = Server("simulated")

    @server.tool
    async def work(seconds: float) -> str:
        await trio.sleep(seconds)
        return "done"

    return server


@attrs.frozen(kw_only=True)
class World:
    """The world of an experiment. A number in place of a distribution means `Constant`; times are seconds.

    Computing takes no time in it, only sleeping does: the speed of a server follows from the sleeps of its handlers and
    from its limits.

    Raises:
        ValueError: there is no client or server, ``cancel`` is not within 0 and 1, or a time is out of range.
    """

    clients: int
    """The number of clients, each with a session of its own, distributed evenly over the servers."""
    link: LinkProfile = attrs.field(factory=LinkProfile)
    """The properties of each client's connection."""
    servers: int = 1
    """The number of servers."""
    server: Callable[[], Server] = worker
    """Makes a server. Tools must be async or ``inline=True``, because threads do not run in virtual time."""
    behaviour: Behaviour = think_and_call
    """What each user does; when it returns, the client is closed. The fields below are for the default one."""
    think: Distribution = attrs.field(default=Exponential(10.0), converter=as_distribution)
    """Time between an answer and the next call."""
    service: Distribution = attrs.field(default=Constant(0.05), converter=as_distribution)
    """How long the server works for a call. Drawn from the caller's rng, so that worlds which differ in their links
    have the same calls."""
    cancel: float = 0.0
    """The share of calls that is cancelled when there is no answer after ``cancel_after``."""
    cancel_after: Distribution = attrs.field(default=Constant(1.0), converter=as_distribution)
    """See ``cancel``."""
    ramp: float = 1.0
    """Seconds within which all clients connect."""
    era: str = "modern"
    """As for `~mcp_actors.Client`, as are the rest."""
    timeout: float = 30.0
    cap: float = 300.0
    restart: bool = True

    def __attrs_post_init__(self) -> None:
        if self.clients < 1 or self.servers < 1:
            raise ValueError("a world has one client and one server at least")
        if not 0 <= self.cancel <= 1:
            raise ValueError("cancel is a share, from 0 to 1")
        if not 0 <= self.ramp < math.inf:
            raise ValueError("ramp is a number of seconds")
        if not (self.timeout > 0 and self.cap > 0):
            raise ValueError("timeout and cap are numbers of seconds, more than 0")


def simulate(world: World, *, seed: int, duration: float) -> Report:
    """Runs a world in virtual time, in a Trio loop of its own, and returns the figures.

    The same world and seed give the same report, in any process. Calls in flight at the end are counted as unfinished,
    then cancelled.

    Args:
        world: what to simulate.
        seed: the same seed gives the same run.
        duration: virtual seconds.

    Raises:
        ValueError: the duration is not positive and finite.
        RuntimeError: Trio runs already, or this version of it cannot be made repeatable.
        Exception: what a behaviour, a distribution or the making of a server raises, the first of them.
    """
    if not 0 < duration < math.inf:
        raise ValueError("duration is a number of seconds, more than 0")
    return run(_Run(world, seed, duration).main, seed)


class _Run:
    """One run of a world."""

    def __init__(self, world: World, seed: int, duration: float) -> None:
        self._world = world
        self._seed = seed
        self._duration = duration
        self._ledger = CallLedger()
        self._traffic = TrafficCounts()
        self._client_transports: list[SimulatedClientTransport] = []

    def __repr__(self) -> str:
        return f"<_Run seed={self._seed} {self._ledger!r}>"

    async def main(self, clock: VirtualClock) -> Report:
        """All of it, under the clock that runs it."""
        world = self._world
        with one_error():
            async with trio.open_nursery() as nursery:
                server_transports = [
                    SimulatedServerTransport(f"server {number}") for number in range(world.servers)
                ]
                for server_transport in server_transports:
                    server = world.server()
                    server.middleware(self._ledger.middleware)
                    await nursery.start(server.serve, server_transport)
                for number in range(world.clients):
                    name = f"{self._seed} client {number}"
                    server_transport = server_transports[number % world.servers]
                    transport = SimulatedClientTransport(
                        server_transport, world.link, clock, self._traffic, name
                    )
                    self._client_transports.append(transport)
                    nursery.start_soon(self._use, number, transport, random.Random(name), clock)
                with trio.move_on_after(self._duration):
                    await clock.failed.wait()
                if clock.failure is not None:
                    raise clock.failure
                report = self._report()
                nursery.cancel_scope.cancel(reason="the time is over")
        return report

    async def _use(
        self, number: int, transport: SimulatedClientTransport, rng: random.Random, clock: VirtualClock
    ) -> None:
        try:
            await self._use_until_it_ends(number, transport, rng)
        except Exception as error:
            # Of several users that fail at once, one is enough to end the run.
            clock.fail(error)

    async def _use_until_it_ends(
        self, number: int, transport: SimulatedClientTransport, rng: random.Random
    ) -> None:
        world = self._world
        await trio.sleep(rng.random() * world.ramp)
        while True:
            client = Client(
                transport, era=world.era, timeout=world.timeout, cap=world.cap, restart=world.restart
            )
            async with AsyncExitStack() as connected:
                try:
                    await connected.enter_async_context(client)
                except McpError as error:
                    self._ledger.refused[name_of(error)] += 1
                else:
                    self._ledger.connected += 1
                    await world.behaviour(User(number, client, rng, self._ledger, world))
                    return
            await trio.sleep(TRY_AGAIN.sample(rng))

    def _report(self) -> Report:
        ledger, traffic = self._ledger, self._traffic
        worked, wasted, wasted_runs = ledger.handlers.times()
        failed = sum(ledger.errors.values())
        return Report(
            seed=self._seed,
            duration=self._duration,
            clients=self._world.clients,
            servers=self._world.servers,
            calls=ledger.calls,
            answered=len(ledger.latencies),
            latency=latencies(ledger.latencies),
            cancelled=ledger.cancelled,
            cancels_confirmed=ledger.handlers.cancels_confirmed,
            failed=failed,
            errors=_most_first(ledger.errors),
            unfinished=ledger.unfinished,
            connected=ledger.connected,
            refused=_most_first(ledger.refused),
            reconnects=sum(max(0, transport.made - 1) for transport in self._client_transports),
            disconnects=traffic.disconnects,
            handler_runs=ledger.handlers.runs,
            handlers_stopped=ledger.handlers.stopped,
            handler_seconds=round(math.fsum(worked), DIGITS),
            wasted_seconds=round(math.fsum(wasted), DIGITS),
            wasted_runs=wasted_runs,
            messages=traffic.frames,
            messages_lost=traffic.frames_lost,
            bytes=traffic.bytes,
            stalls=traffic.stalls,
        )


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
