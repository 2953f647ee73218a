"""The engine for programs on asyncio, notebooks included: clients, and servers beside the program's own loop.

The classes of clients are made from those of the engine, so that the two cannot drift apart; see
`mcp_actors.bridges.faces`.
"""

from __future__ import annotations

import mcp_actors
from mcp_actors.asyncio.serving import lifespan, serve
from mcp_actors.bridges.client_faces import AsyncioClientFace, AsyncioGroupFace, AsyncioPoolFace
from mcp_actors.bridges.faces import AsyncioListener, AsyncioTaskHandle, AsyncioToolStream, mirror

__all__ = ["Client", "ClientGroup", "ClientPool", "Listener", "TaskHandle", "ToolStream", "lifespan", "serve"]


Client = mirror(
    mcp_actors.Client,
    AsyncioClientFace,
    """A client of one server for programs on asyncio, used as ``async with Client(target) as client``.

It is `mcp_actors.Client` in the engine's own thread, which is started at first use and ends with the program. Where
there is no block, as in a notebook, ``client = await Client(target).open()`` opens it, and ``await
client.aclose()`` closes it. It may be used from any loop, and is closed when the loop that opened it is closed.
Cancelling a call cancels it at the server. Callbacks are plain or async functions: they run in the loop that opened
the client, and ``on_progress`` in the loop of its call. Exceptions are those of the original.
""",
    module=__name__,
    _make=mcp_actors.Client,
)
TaskHandle = mirror(
    mcp_actors.client.TaskHandle,
    AsyncioTaskHandle,
    """A call of a tool that goes on at the server, whatever becomes of this program and its connection.

Made by `Client.start_tool` and `Client.task`. Dropping it changes nothing: the task goes on, and its ``id`` is good
for another handle, in another process too, as long as the caller is the same to the server. The id is a secret:
without authorization, any program that has it may read and cancel the task.
""",
    module=__name__,
    without=("look", "read", "wait", "wait_or_cancel"),
)
Listener = mirror(
    mcp_actors.client.Listener,
    AsyncioListener,
    """The changes that were subscribed to, as an async iterator of `Event`; made by `Client.listen`.

Changes that arrive between reads are coalesced, so a slow reader sees the newest state and nothing grows. The
iteration ends when the subscription ended in order; it raises `SubscriptionLost` when it broke off.
""",
    module=__name__,
    without=("deliver", "end", "missed", "raise_if_lost"),
)
ToolStream = mirror(
    mcp_actors.client.ToolStream,
    AsyncioToolStream,
    """The parts of a tool's result, as an async iterator; made by `Client.stream_tool`.

A part is text, a content block, a list of these, or the JSON value that the tool has yielded; with ``returns=``
it is an object of that class. A tool or a server without parts has one part, which is the whole. Each part comes
once.
""",
    module=__name__,
)
ClientPool = mirror(
    mcp_actors.ClientPool,
    AsyncioPoolFace,
    """Owns many clients, used as ``async with ClientPool() as pool``; leaving the block closes all of them at once.

    Clients of asyncio programs may be closed in any order, from any task, without it too. A client that fails costs
    nothing but itself.
    """,
    module=__name__,
    _make=mcp_actors.ClientPool,
)
ClientGroup = mirror(
    mcp_actors.ClientGroup,
    AsyncioGroupFace,
    """Clients of many servers for programs on asyncio, used as ``async with ClientGroup("mcp.json") as group``.

Entering the block connects to all of them at once. One that cannot be connected to is among `failures`, and the
others are there; a connection that is lost later is made again by itself. ``group["name"]`` is the `Client` of a
server. Leaving the block closes all of them, within a bounded time.

A tool or prompt is called ``server__tool`` here: the name of its server, with ``_`` for every character that the
APIs of models do not allow, the separator, and its own name.
""",
    module=__name__,
    without=("for_each",),
    _make=mcp_actors.ClientGroup,
    _client=Client,
)
for _face in (Client, TaskHandle, Listener, ToolStream):
    _face._faces = {
        mcp_actors.client.TaskHandle: TaskHandle,
        mcp_actors.client.Listener: Listener,
        mcp_actors.client.ToolStream: ToolStream,
    }
