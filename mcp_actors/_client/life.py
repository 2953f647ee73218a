"""The task in which a client lives from its opening to its end, in the nursery of a block or of a pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import trio

from mcp_actors._client.connectivity import OPENED_BEFORE
from mcp_actors._client.in_process import CLOSE_TIMEOUT
from mcp_actors._client.notifications import Notifications
from mcp_actors._client.subscriptions import Subscriptions
from mcp_actors._client.supervisor import Supervisor
from mcp_actors.errors import LocalProtocolError
from mcp_actors.supervision import Containment, start, start_again, start_and_wait
from mcp_actors.task_kinds import CLIENT_LIFE, CLIENT_NOTIFICATIONS, CLIENT_SUBSCRIPTION

__all__ = ["ClientLife"]

Lifespan = Callable[[], AbstractAsyncContextManager[object]]


class ClientLife:
    """Opens a client in a task of its own, which can be told to end from any task.

    Args:
        supervisor: Keeps the client's connection.
        notifications: Calls the client's handlers of notifications.
        subscriptions: Gets the nursery of the client's tasks.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        notifications: Notifications,
        subscriptions: Subscriptions,
    ) -> None:
        self._supervisor = supervisor
        self._notifications = notifications
        self._subscriptions = subscriptions
        self._has_begun = False
        self._ending = trio.Event()
        self._ended = trio.Event()
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<ClientLife {'ended' if self._ended.is_set() else 'ending' if self._ending.is_set() else 'open'}>"

    async def begin(self, nursery: trio.Nursery, lifespans: Sequence[Lifespan] = ()) -> None:
        """Connects; the client lives in ``nursery`` from then on. Raises as entering a `Client` does.

        Cancelled, or if it fails, nothing is left. ``lifespans`` make what extensions enter once the client is
        connected, and leave when it is closed; they have the client, which therefore does not have them.
        """
        if self._has_begun:
            raise LocalProtocolError(OPENED_BEFORE)
        self._has_begun = True
        await start_and_wait(nursery, CLIENT_LIFE, self._live, lifespans, about=repr(self._supervisor))

    def end(self) -> None:
        """Tells the client to close its connection and end. Legal from any task, any time."""
        self._ending.set()

    async def wait_until_ended(self) -> None:
        """Waits until nothing is left of the client, cancelled or not, but no longer than closing may take."""
        with trio.move_on_after(2 * CLOSE_TIMEOUT, shield=True):
            await self._ended.wait()

    def raise_failure(self) -> None:
        """Raises what the lifespan of a server in this process raised at its end; once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _live(self, lifespans: Sequence[Lifespan], *, task_status: trio.TaskStatus[None]) -> None:
        is_open = False
        try:
            async with self._supervisor.running() as nursery:
                self._subscriptions.run_in(nursery)
                start_again(nursery, CLIENT_NOTIFICATIONS, self._notifications.run)
                if self._notifications.follows_changes:
                    follow, changed = self._subscriptions.follow, self._notifications.changed
                    start(nursery, CLIENT_SUBSCRIPTION, follow, changed, about="on_change")
                async with AsyncExitStack() as stack:
                    for each in lifespans:
                        await stack.enter_async_context(each())
                    is_open = True
                    task_status.started()
                    with Containment(CLIENT_LIFE):
                        await self._ending.wait()
        except Exception as error:
            if not is_open:
                raise
            # The task of a server in this process has written it to the log.
            self._failure = error
        finally:
            self._notifications.close()
            self._ended.set()
