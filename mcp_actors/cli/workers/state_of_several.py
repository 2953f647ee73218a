"""Shared state as one of several processes needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp_actors import Server
from mcp_actors.abc import OpenState, SharedState
from mcp_actors.cli.failures import WrongUsage

__all__ = ["StateOfSeveral"]


class StateOfSeveral:
    """The shared state of a server, refused when it is opened if the server needs more of it than it has.

    Args:
        server: A server that several processes serve.
    """

    def __init__(self, server: Server) -> None:
        self._inner: SharedState = server.shared
        names = [each.tool.name for each in server.tools]
        self._with_tasks = [each for each in names if server.tools.task_rules(each) is not None]

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[OpenState]:
        """As `SharedState.open`.

        Args:
            name: The server's name.

        Raises:
            WrongUsage: Tools make tasks, which the other processes would not find.
        """
        async with self._inner.open(name) as state:
            if self._with_tasks and not state.tasks.spans_processes:
                raise WrongUsage(
                    f"the tool {self._with_tasks[0]} makes tasks, and several workers need one place for them: "
                    "add --shared sqlite:///PATH or --shared redis://HOST, or serve with --workers 1"
                )
            yield state
