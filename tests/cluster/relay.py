"""Relays TCP connections from one address to another, and stops to on SIGUSR1 until SIGUSR2.

Usage: relay.py FROM TO PORT...

While it is cut, no byte goes through, connections stay open, and new ones are not answered.
"""

from __future__ import annotations

import signal
import sys

import trio

CHUNK = 65536  # bytes that are carried at once


class Relay:
    def __init__(self, target: str) -> None:
        self.target = target
        self.whole = trio.Event()
        self.whole.set()

    async def serve(self, address: str, port: int) -> None:
        async def relay(near: trio.SocketStream) -> None:
            await self.whole.wait()
            try:
                far = await trio.open_tcp_stream(self.target, port)
            except OSError:
                await near.aclose()
                return
            async with near, far, trio.open_nursery() as nursery:
                nursery.start_soon(self.carry, near, far, nursery.cancel_scope)
                nursery.start_soon(self.carry, far, near, nursery.cancel_scope)

        await trio.serve_tcp(relay, port, host=address)

    async def carry(
        self, source: trio.SocketStream, target: trio.SocketStream, ends: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(CHUNK):
                await self.whole.wait()
                await target.send_all(data)
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            ends.cancel()


async def main(address: str, target: str, *ports: str) -> None:
    relay = Relay(target)
    with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2) as signals:
        async with trio.open_nursery() as nursery:
            for port in ports:
                nursery.start_soon(relay.serve, address, int(port))
            print("ready", flush=True)
            async for number in signals:
                if number == signal.SIGUSR1:
                    relay.whole = trio.Event()
                else:
                    relay.whole.set()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
