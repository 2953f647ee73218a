"""A stdio server whose handler lives in another process: ``python relay.py SOCKET`` passes frames on, both ways.

Each check of the kit starts several, so a relay imports what it needs of the package and not the engine: to import
that takes longer than all that a relay does.
"""

from __future__ import annotations

import importlib.util
import sys

import trio

specification = importlib.util.find_spec("mcp_actors")
assert specification is not None
sys.modules["mcp_actors"] = importlib.util.module_from_spec(specification)  # it is not executed

from mcp_actors.abc import FrameChannel  # noqa: E402
from mcp_actors.abc.framing import LineChannel  # noqa: E402
from mcp_transports.stdio import StdioServerTransport  # noqa: E402


async def pass_on(source: FrameChannel, sink: FrameChannel, scope: trio.CancelScope) -> None:
    try:
        while True:
            await sink.send_many(await source.receive_many())
    except (trio.EndOfChannel, trio.BrokenResourceError):
        scope.cancel()


async def relay(near: FrameChannel) -> None:
    stream = await trio.open_unix_socket(sys.argv[1])
    async with LineChannel(stream, stream) as far, trio.open_nursery() as nursery:
        nursery.start_soon(pass_on, near, far, nursery.cancel_scope)
        nursery.start_soon(pass_on, far, near, nursery.cancel_scope)


if __name__ == "__main__":
    trio.run(StdioServerTransport().serve, relay)
