"""The engine for programs without an event loop: its clients, with the methods of `mcp_actors.Client`.

Each class is made from the one of the engine, so that the two cannot drift apart; see `mcp_actors.bridges.faces`.
"""

from __future__ import annotations

import mcp_actors
from mcp_actors.bridges.client_faces import SyncClientFace, SyncGroupFace, SyncPoolFace
from mcp_actors.bridges.faces import SyncListener, SyncTaskHandle, SyncToolStream, mirror

__all__ = ["Client", "ClientGroup", "ClientPool", "Listener", "TaskHandle", "ToolStream"]


Client = mirror(
    mcp_actors.Client,
    SyncClientFace,
    """A client of one server for programs without an event loop, used as ``with Client(target) as client``.

It is `mcp_actors.Client` in the engine's own thread, which is started at first use and ends with the program. Where
there is no block, ``client = Client(target).open()`` opens it, and ``client.close()`` closes it. It may be used
from any number of threads at the same time. ``KeyboardInterrupt`` cancels the call at the server. ``on_progress``
runs in the thread of its call, which waits; other callbacks run in a thread of their own if they are plain
functions, and in the engine, on Trio, if they are async. Exceptions are those of the original.
""",
    module=__name__,
    _make=mcp_actors.Client,
    without=("aclose",),
)
TaskHandle = mirror(
    mcp_actors.client.TaskHandle,
    SyncTaskHandle,
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
    SyncListener,
    """The changes that were subscribed to, as an iterator of `Event`; made by `Client.listen`.

Changes that arrive between reads are coalesced, so a slow reader sees the newest state and nothing grows. The
iteration ends when the subscription ended in order; it raises `SubscriptionLost` when it broke off.
""",
    module=__name__,
    without=("deliver", "end", "missed", "raise_if_lost"),
)
ToolStream = mirror(
    mcp_actors.client.ToolStream,
    SyncToolStream,
    """The parts of a tool's result, as an iterator; made by `Client.stream_tool`.

A part is text, a content block, a list of these, or the JSON value that the tool has yielded; with ``returns=``
it is an object of that class. A tool or a server without parts has one part, which is the whole. Each part comes
once.
""",
    module=__name__,
)
ClientPool = mirror(
    mcp_actors.ClientPool,
    SyncPoolFace,
    """Owns many clients, used as ``with ClientPool() as pool``; leaving the block closes all of them at once.

    Clients of programs without a loop may be closed in any order, from any thread, without it too. A client that fails
    costs nothing but itself.
    """,
    module=__name__,
    _make=mcp_actors.ClientPool,
)
ClientGroup = mirror(
    mcp_actors.ClientGroup,
    SyncGroupFace,
    """Clients of many servers for programs without a loop, used as ``with ClientGroup("mcp.json") as group``.

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
