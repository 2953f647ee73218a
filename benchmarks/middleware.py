"""The processor time that each ready middleware adds to a call.

::

    python -m benchmarks.middleware
    python -m benchmarks.middleware --windows 301

All variants take turns in short windows in one process, which is client and server, in memory, with 64 calls in flight.
A refused call counts as a whole one, and is compared with one that is answered. Processor time is measured, because
other programs disturb it less. What a middleware adds is the median of the differences between its windows and those
without any, one just before and one just after it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio

from mcp_actors import Client, Context, Server
from mcp_actors.client import ClientCall, ClientMiddleware, SendNext
from mcp_actors.middleware import (
    AuditEntry,
    AuditLog,
    ConcurrencyLimit,
    RateLimit,
    ResultCache,
    ResultSize,
    Retry,
    Timing,
)
from mcp_actors.server import CallNext, Middleware
from mcp_actors.testing import ScriptedPeer, raw_client

AT_ONCE = 64
PARTS = ("server", "refused", "cache", "client")
TEXT = "a" * 1000

Burst = Callable[[int], Awaitable[None]]


async def nothing(ctx: Context, call_next: CallNext) -> Any:
    return await call_next()


async def nothing_at_all(call: ClientCall, call_next: SendNext) -> Any:
    return await call_next()


def drop(entry: AuditEntry) -> None:
    """Writes an entry nowhere."""


ON_SERVER: dict[str, Sequence[Middleware]] = {
    "none": (),
    "none, again": (),
    "a function that does nothing": (nothing,),
    "three of them": (nothing, nothing, nothing),
    "ConcurrencyLimit, places free": (ConcurrencyLimit(AT_ONCE * 4, per_caller=AT_ONCE * 2),),
    "ConcurrencyLimit, half of the calls wait": (ConcurrencyLimit(AT_ONCE, per_caller=AT_ONCE // 2),),
    "RateLimit": (RateLimit(1e9),),
    "Timing": (Timing(),),
    "AuditLog, entries dropped": (AuditLog(drop),),
    "ResultSize, 1,000 characters of text": (ResultSize(100_000),),
    "ResultSize, as near to the limit as to be counted": (ResultSize(5_000),),
}
REFUSING: dict[str, Sequence[Middleware]] = {
    "none, a call that is answered": (),
    "RateLimit, a call that is refused": (RateLimit(1e-6),),
    "ConcurrencyLimit, a call that is refused": (ConcurrencyLimit(1, waiting=0),),
}
READING: dict[str, Sequence[Middleware]] = {
    "none, a read of 1,000 characters": (),
    "ResultCache, a hit": (ResultCache(),),
}
ON_CLIENT: dict[str, Sequence[ClientMiddleware]] = {
    "none, at the client": (),
    "a function that does nothing, at the client": (nothing_at_all,),
    "Timing, at the client": (Timing(),),
    "Retry, a tool that is called once": (Retry(),),
    "Retry, a tool that may be called again": (Retry(tools=["text"]),),
}


def make_server(middleware: Sequence[Middleware]) -> Server:
    server = Server("bench", ttl_ms=3_600_000)
    for each in middleware:
        server.middleware(each)

    @server.tool
    async def text() -> str:
        await trio.lowlevel.checkpoint()
        return TEXT

    @server.tool
    async def hold() -> str:
        await trio.sleep_forever()
        return TEXT

    @server.resource("x://1", name="one")
    async def one() -> str:
        return TEXT

    return server


def burst_of(peer: ScriptedPeer, method: str, params: dict[str, Any], refused: bool = False) -> Burst:
    """Returns a function that makes so many calls, 64 at a time, all of which are answered or refused."""
    numbers = iter(range(1, 10**9))

    async def send() -> None:
        message = {"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": params}
        await peer.send(json.dumps(message).encode())

    async def burst(calls: int) -> None:
        for _ in range(AT_ONCE):
            await send()
        for number in range(calls):
            answer = await peer.receive()
            if refused != ("error" in answer):
                raise SystemExit(f"not as it should be: {answer}")
            if number < calls - AT_ONCE:
                await send()

    return burst


def burst_at_client(client: Client) -> Burst:
    async def burst(calls: int) -> None:
        async def some() -> None:
            for _ in range(calls // AT_ONCE):
                await client.call_tool("text")

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(some)

    return burst


async def microseconds(burst: Burst, calls: int) -> float:
    before = time.process_time()
    await burst(calls)
    return (time.process_time() - before) / calls * 1e6


async def compare(bursts: dict[str, Burst], windows: int, calls: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in bursts}
    added: dict[str, list[float]] = {name: [] for name in bursts}
    plain = next(iter(bursts.values()))
    for burst in bursts.values():
        await burst(calls)
    for _ in range(windows):
        for name, burst in bursts.items():
            before = await microseconds(plain, calls)
            value = await microseconds(burst, calls)
            after = await microseconds(plain, calls)
            took[name].append(value)
            added[name].append(value - (before + after) / 2)
    for name, values in took.items():
        more = statistics.median(added[name])
        print(f"{name:52} {statistics.median(values):7.1f} us a call, {more:+6.1f}", flush=True)


async def run(options: argparse.Namespace) -> None:
    call, read = ("tools/call", {"name": "text"}), ("resources/read", {"uri": "x://1"})
    for part, variants, (method, params) in (
        ("server", ON_SERVER, call),
        ("refused", REFUSING, call),
        ("cache", READING, read),
    ):
        if part not in options.parts:
            continue
        async with AsyncExitStack() as stack:
            bursts: dict[str, Burst] = {}
            for name, middleware in variants.items():
                peer = await stack.enter_async_context(raw_client(make_server(middleware)))
                await peer.initialize("2025-11-25", {})
                refused = part == "refused" and bool(middleware)
                if refused:
                    # It takes the one token, or the one place.
                    holding = {
                        "jsonrpc": "2.0",
                        "id": "held",
                        "method": "tools/call",
                        "params": {"name": "hold"},
                    }
                    await peer.send(json.dumps(holding).encode())
                bursts[name] = burst_of(peer, method, params, refused)
            await compare(bursts, options.windows, options.calls)
    if "client" not in options.parts:
        return
    async with AsyncExitStack() as stack:
        bursts = {}
        for name, of_client in ON_CLIENT.items():
            client = Client(make_server(()), era="legacy", middleware=list(of_client))
            bursts[name] = burst_at_client(await stack.enter_async_context(client))
        await compare(bursts, options.windows, options.calls)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=101, help="of each kind")
    parser.add_argument("--calls", type=int, default=320, help="of a window")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured; by default everything"
    )
    trio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
