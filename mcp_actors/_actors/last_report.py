"""The distance between the last report of progress of a call and its answer.

The official TypeScript clients handle answers at once but notifications a step later, and forget the callback for the
reports of a call when its answer comes. What one read brings them is handled in one step, so a report that is read
together with the answer is lost. Therefore the answer to a call that reported is sent only when the peer has read the
report, or is likely to have. Only that call waits: the others on its connection, and calls without reports, do not.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import Invocation
from mcp_actors.abc import Outlet
from mcp_actors.errors import McpError

__all__ = ["SupportsWaitUntilRead", "wait_for_last_report"]

# Seconds that an answer waits at most. Over a network that is slower than this the two arrive apart anyway.
READING_LIMIT = 0.1
# Seconds between the two where nothing tells whether the peer has read.
READING_TIME = 0.005
_PING = CallOptions(idle=math.inf, cap=math.inf, cancellable=False)

# Names and versions of clients that handle what they read strictly in order: ours, and the official Python SDK's if
# the program that uses it gives no other. `None` is any version. A wrong name costs the peer that gives it a report.
_HANDLE_IN_ORDER: frozenset[tuple[str, str | None]] = frozenset((("mcp-actors", None), ("mcp", "0.1.0")))


@runtime_checkable
class SupportsWaitUntilRead(Protocol):
    """An outlet on which messages of one call may be read together. Those with a stream for each call are none."""

    async def wait_until_read(self) -> bool:
        """Waits until the peer has read what was sent before, and returns true; false if that cannot be known."""


class Asker(Protocol):
    """The dispatcher of a call, by which the peer can be sent a request."""

    async def request(self, method: str, params: dict[str, Any], options: CallOptions) -> dict[str, Any]: ...


async def wait_for_last_report(invocation: Invocation, outlet: Outlet, owner: Asker) -> None:
    """Waits as long as the answer to a call that reported progress has to, for at most `READING_LIMIT`.

    Where the binding cannot tell what the peer has read, a ``ping`` does, which every peer of the legacy era answers
    (MCP 2025-11-25, Ping). Cancelled, it has changed nothing.
    """
    if not isinstance(outlet, SupportsWaitUntilRead) or _handles_in_order(invocation.peer.raw_info):
        return
    with trio.move_on_after(READING_LIMIT), suppress(McpError):
        if not await outlet.wait_until_read():
            if "ping" in invocation.era.client_methods:
                await owner.request("ping", {}, _PING)
            else:
                await trio.sleep(READING_TIME)


def _handles_in_order(info: Any) -> bool:
    name, version = (info.get("name"), info.get("version")) if isinstance(info, dict) else (None, None)
    return isinstance(name, str) and (
        (name, None) in _HANDLE_IN_ORDER or (isinstance(version, str) and (name, version) in _HANDLE_IN_ORDER)
    )
