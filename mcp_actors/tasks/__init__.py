"""Tasks: calls of tools that outlive their caller (MCP 2025-11-25, Tasks; SEP-2663).

::

    @server.tool(task="optional")
    async def render(scene: str, ctx: Context) -> str:
        for frame in range(100):
            await ctx.progress(frame, 100)
            ...

With ``task="optional"`` a call becomes a task where the client can look at it: in MCP 2025-11-25 if the call asks for
it, in stateless revisions if the request declares the extension. Every other client gets the plain result. With
``task="required"`` a call that cannot become a task is refused. In the function ``ctx`` works as in any call:

- progress becomes the status message; in a session that began the task with a progress token it is reported there too;
- ``ctx.log`` and ``ctx.notify`` reach the session that began the task, as long as that is there;
- questions put the task into ``input_required``; the function waits for the answers, and never runs again for them;
- ``ctx.session`` is the session of the call until that has ended; ``ctx.principal`` is the caller of the call.

``before_task=f`` is an ``async def f(arguments, ctx)`` that runs in the call, before the task exists, and returns the
arguments to use. It may ask: of a stateless client in rounds (MCP 2026-07-28, Multi Round-Trip Requests). It is given
the arguments as they came, not checked. It runs for plain calls as well.

``restartable=True`` is for functions that may run twice. A task whose process has died is found by its lease, where
the store of the server's shared state is one of several processes or outlives them: it becomes ``failed`` or, if it is
restartable, is run again from its start at another node, at most three times in all. It has the principal, claims and
scopes of the call, and no token.

A task is bound to the principal that created it, and to the revision. An unauthenticated caller needs
nothing but the id, which is unguessable; ``tasks/list`` shows it the tasks of its own session alone.

When the server stops, tasks have `Limits.drain_grace` seconds, as calls have, behind the last call. Then they are
cancelled: in a store that outlives the process the restartable ones are left to be found, and the others fail.

`Tasks` has the bounds, and goes into ``Server(extensions=[Tasks(…)])`` where its defaults do not fit.
"""

from __future__ import annotations

from mcp_actors.tasks.extension import TASKS, Tasks

__all__ = ["TASKS", "Tasks"]
