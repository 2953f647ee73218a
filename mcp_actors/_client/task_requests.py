"""The requests about tasks: a client looks at them, waits for their changes, and asks again where the connection fails.

There are two dialects of tasks, MCP 2025-11-25 and SEP-2663. `TaskDialect` is the table of their differences; the same
`TaskLook` comes out of both.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import trio

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._actors.session import Session
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.notifications import Listener, Subscriptions
from mcp_actors._client.requests import Requests
from mcp_actors._eras.era import Era, read_result
from mcp_actors.errors import (
    INVALID_PARAMS,
    AuthorizationError,
    ConnectFailed,
    ConnectionLost,
    InboxUnavailable,
    McpError,
    MethodNotFound,
    Overloaded,
    RemoteProtocolError,
    RpcError,
    SessionExpired,
    SharedStateUnavailable,
    SubscriptionLost,
    TaskNotFound,
    Unavailable,
)
from mcp_actors.supervision.arguments import require_trio
from mcp_actors.supervision.logging import log
from mcp_actors.types import SubscriptionFilter
from mcp_actors.types.tasks import CreateTaskResult, DetailedTask, Task, TaskStatus

__all__ = [
    "EXTENSION",
    "Answering",
    "TaskChanges",
    "TaskDialect",
    "TaskLook",
    "TaskRequests",
    "dialect_of",
    "pause_before_look",
    "task_status",
]

EXTENSION = "io.modelcontextprotocol/tasks"
"""SEP-2663."""

# Seconds between two looks, whatever a server asks for: a mistaken or hostile one must neither make a client spin nor
# put it to sleep for good.
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 60.0
# Seconds between the first looks where a server does not say; they grow by half each time, to the second number.
FIRST_PAUSE = 0.5
GROWN_PAUSE = 5.0
# Seconds before a request about a task is made again that failed for the connection; the last one repeats.
TRY_AGAIN = (0.1, 0.5, 1.0, 2.0)
# Seconds before a message is sent again for which a task has no room, unless the server names more; they grow.
SEND_AGAIN, LONGEST_SEND_AGAIN = 0.1, 1.0
# Seconds that a subscription to tasks lasts at least before it is replaced by one to other tasks.
LISTEN_AGAIN = 1.0
# Tasks that one subscription names; those beyond it are only looked at.
MAX_LISTENED = 100
# Milliseconds, a thousand years: longer times of a server are read as this one.
_LONGEST = 31_557_600_000_000

_PASSING = (
    ConnectFailed,
    ConnectionLost,
    SessionExpired,
    Overloaded,
    SharedStateUnavailable,
    Unavailable,
)

Answering = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Returns the answers to questions of a task, both as JSON values, by key."""


class TaskRequests:
    """Asks the server about tasks, again and again where the connection fails, and listens for their changes.

    Args:
        requests: Make the requests.
        connectivity: Where a new connection is waited for.
        subscriptions: Hold the subscription to changes of tasks.
    """

    def __init__(self, requests: Requests, connectivity: Connectivity, subscriptions: Subscriptions) -> None:
        self.requests = requests
        self.connectivity = connectivity
        self._subscriptions = subscriptions
        self._watched: dict[str, dict[TaskChanges, None]] = {}
        # The subscription of the moment: its tasks, its beginning, and the scope that ends it.
        self._listened: frozenset[str] = frozenset()
        self._listened_since = 0.0
        self._listening: trio.CancelScope | None = None
        self._is_listening = False
        self._refused_in: Session | None = None

    def __repr__(self) -> str:
        return f"<TaskRequests watched={len(self._watched)}>"

    @property
    def era(self) -> Era:
        """The revision that is spoken; raises `LocalProtocolError` before the client is entered."""
        return self.connectivity.negotiated.era

    @property
    def declared(self) -> dict[str, Any] | None:
        """The declaration of tasks by a session's server; ``None`` without one."""
        return self.connectivity.negotiated.capabilities.tasks

    @property
    def dialect(self) -> TaskDialect:
        """The dialect that is spoken."""
        return dialect_of(self.era)

    async def look(self, id: str, options: CallOptions) -> TaskLook:
        """Asks for a task, with ``tasks/get``; raises as `ask` does."""
        raw = await self.ask("tasks/get", id, {}, options)
        look = self.dialect.look(self.era, raw)
        if look.status.id != id:
            raise RemoteProtocolError("the server has answered for another task than it was asked for")
        return look

    async def ask(
        self, method: str, id: str, params: dict[str, Any], options: CallOptions, *, patiently: bool = True
    ) -> dict[str, Any]:
        """Makes a request about a task. What fails for the connection is made again: all of them may be repeated.

        Args:
            method: The method.
            id: The task.
            params: The other parameters.
            options: The clocks of the request; ``idle`` also bounds for how long it is made again.
            patiently: Whether it is made again at all.

        Raises:
            TaskNotFound: The server knows no such task.
            McpError: What else `Requests.send` raises; of a connection only once it did not come back.
        """
        require_trio("a TaskHandle", "Client")
        asked = {"taskId": id, **params}
        until = trio.current_time() + options.idle
        tries = 0
        while True:
            try:
                return await self.requests.send(method, asked, options)
            except _PASSING as error:
                if not patiently or isinstance(error, AuthorizationError) or trio.current_time() >= until:
                    raise
                await self.connectivity.live_session(until - trio.current_time())
                await trio.sleep(TRY_AGAIN[min(tries, len(TRY_AGAIN) - 1)])
                tries += 1
            except RpcError as error:
                # ``tasks/result`` also fails with what the call itself failed with.
                if error.code == INVALID_PARAMS and method != "tasks/result":
                    raise TaskNotFound(id) from error
                raise

    async def send(self, id: str, message: Any, options: CallOptions) -> None:
        """Sends a message to the function of a task; again only where there was no room for it, within ``idle``.

        Raises:
            CallEnded: The task has ended.
            InboxUnavailable: The server takes no messages for tasks.
            Overloaded: There was no room for the whole time.
            TaskNotFound: The server knows no such task.
            McpError: What else `Requests.send` raises: then the message may be there or not.
        """
        params = {"message": message}
        until, pause = trio.current_time() + options.idle, SEND_AGAIN
        while True:
            try:
                await self.ask("mcp-actors/tasks/send", id, params, options, patiently=False)
                return
            except MethodNotFound:
                raise _no_inbox() from None
            except TaskNotFound:
                # Some servers have no other code for a method that they do not know: then they know the task.
                await self.look(id, options)
                raise _no_inbox() from None
            except Overloaded as error:
                wait = max(pause, error.retry_after or 0.0)
                if trio.current_time() + wait > until:
                    raise
            await trio.sleep(wait)
            pause = min(2 * pause, LONGEST_SEND_AGAIN)

    # -- changes ---------------------------------------------------------------------------------------------------

    def watching(self, id: str) -> TaskChanges:
        """Returns what is woken by each change of a task that the server tells of, until `leave`."""
        watch = TaskChanges()
        self._watched.setdefault(id, {})[watch] = None
        self._adapt()
        if self.dialect.listens and not self._is_listening:
            self._is_listening = True
            self._subscriptions.run(self._listen)
        return watch

    def leave(self, id: str, watch: TaskChanges) -> None:
        """Takes `watching` back."""
        waiting = self._watched[id]
        del waiting[watch]
        if not waiting:
            del self._watched[id]
            self._adapt()

    def notified(self, params: dict[str, Any]) -> None:
        """Takes a notification of a task's change. It wakes those who wait, and they look at the task's state."""
        id = params.get("taskId")
        if isinstance(id, str):
            for watch in self._watched.get(id, ()):
                watch.wake()

    async def _listen(self) -> None:
        """Holds one subscription to all tasks that are waited for, until the last one has ended or it is refused."""
        try:
            while self._watched and self.dialect.listens:
                ids = tuple(self._watched)[:MAX_LISTENED]
                began = trio.current_time()
                session = await self.connectivity.live_session(self.requests.options.idle)
                try:
                    granted = session is not self._refused_in and await self._listen_to(ids)
                except SubscriptionLost as error:
                    log.debug("tasks are only looked at for a while", error=str(error))
                    granted = not isinstance(error.__cause__, RpcError)
                if not granted:
                    self._refused_in = session
                    return
                await trio.sleep_until(began + LISTEN_AGAIN)
        except McpError as error:
            log.debug("tasks are only looked at", error=str(error))
        finally:
            self._is_listening = False

    async def _listen_to(self, ids: tuple[str, ...]) -> bool:
        """Listens until other tasks are waited for; whether the server granted it."""
        listener = Listener(SubscriptionFilter(extra={"taskIds": list(ids)}))
        async with self._subscriptions.opened(listener):
            honored = None if listener.honored is None else listener.honored.extra.get("taskIds")
            if not isinstance(honored, list) or not honored:
                return False
            # Changes before the subscription are not sent.
            for id in ids:
                self.notified({"taskId": id})
            with trio.CancelScope() as scope:
                self._listening, self._listened = scope, frozenset(ids)
                self._listened_since = trio.current_time()
                self._adapt()
                try:
                    async for _ in listener:
                        pass
                finally:
                    self._listening = None
        return True

    def _adapt(self) -> None:
        """Ends the subscription if it no longer fits, but never soon after its beginning."""
        if self._listening is not None and (
            not self._watched or not self._listened.issuperset(self._watched)
        ):
            soonest = max(self._listened_since + LISTEN_AGAIN, trio.current_time())
            self._listening.deadline = min(self._listening.deadline, soonest)


def _no_inbox() -> InboxUnavailable:
    return InboxUnavailable("the server takes no messages for tasks, and the task goes on")


class TaskChanges:
    """Wakes one who waits for a task to change."""

    def __init__(self) -> None:
        self._changed = trio.Event()
        self._looked = -math.inf

    def __repr__(self) -> str:
        return f"<TaskChanges {'changed' if self._changed.is_set() else 'quiet'}>"

    def wake(self) -> None:
        """Notes that the task may have changed."""
        self._changed.set()

    def looking(self) -> None:
        """Notes that a look begins: later changes wake again."""
        self._changed = trio.Event()
        self._looked = trio.current_time()

    async def pause(self, seconds: float) -> None:
        """Waits for a change, ``seconds`` at most; looks keep a pause even if changes arrive without one."""
        with trio.move_on_after(seconds):
            await self._changed.wait()
        await trio.sleep_until(self._looked + SHORTEST_PAUSE)


def pause_before_look(wanted: float | None, looks: int) -> float:
    """Returns the seconds to wait before the next look at a task.

    Args:
        wanted: The seconds that the server asked for with the last look, if it did.
        looks: How many looks there were.
    """
    if wanted is None:
        return min(FIRST_PAUSE * 1.5 ** min(looks, 10), GROWN_PAUSE)
    # NaN compares with nothing: it counts as no answer at all.
    return min(max(wanted, SHORTEST_PAUSE), LONGEST_PAUSE) if wanted == wanted else GROWN_PAUSE


# -- the dialects ----------------------------------------------------------------------------------------------------


@attrs.frozen
class TaskLook:
    """One look at a task: its status, and what came with it."""

    status: TaskStatus
    questions: Mapping[str, Any] = MappingProxyType({})
    """The questions as JSON by key, where they are values."""
    result: dict[str, Any] | None = None
    error: RpcError | None = None


@attrs.frozen(kw_only=True)
class TaskDialect:
    """The differences between the dialects for a client."""

    created: Callable[[Era, dict[str, Any]], TaskLook]
    """Reads the answer that creates a task."""
    look: Callable[[Era, dict[str, Any]], TaskLook]
    """Reads the answer to ``tasks/get``."""
    result_method: str | None
    """The request that waits for a result, and through which the server asks; ``None`` where looks have all that."""
    update_method: str | None
    """The request that answers questions; ``None`` where they are requests of the server."""
    listens: bool
    """Whether changes are sent to subscriptions with the task's id; if not, a session gets them without asking."""


def _core_created(era: Era, raw: dict[str, Any]) -> TaskLook:
    created: CreateTaskResult = read_result(era, raw, CreateTaskResult)
    return TaskLook(task_status(created.task))


def _core_look(era: Era, raw: dict[str, Any]) -> TaskLook:
    return TaskLook(task_status(read_result(era, raw, Task)))


def _detailed_created(era: Era, raw: dict[str, Any]) -> TaskLook:
    task: DetailedTask = read_result(era, raw, DetailedTask)
    # A task may be created in any state, but what that brings (questions, a result) only comes with a look.
    return TaskLook(attrs.evolve(_status_of(task, task.ttl_ms, task.poll_interval_ms), status="working"))


def _detailed_look(era: Era, raw: dict[str, Any]) -> TaskLook:
    task: DetailedTask = read_result(era, raw, DetailedTask)
    status = _status_of(task, task.ttl_ms, task.poll_interval_ms)
    # Members that do not belong to the state are not looked at: a server that mixes them is not believed.
    if task.status == "input_required":
        return TaskLook(status, questions=task.input_requests or {})
    if task.status == "completed":
        if task.result is None:
            raise RemoteProtocolError("the server says that a task is completed, without its result")
        return TaskLook(status, result=task.result)
    if task.status == "failed":
        return TaskLook(status, error=_error_of(task.error))
    return TaskLook(status)


def _error_of(error: dict[str, Any] | None) -> RpcError:
    code = None if error is None else error.get("code")
    message = None if error is None else error.get("message")
    if error is None or type(code) is not int or not isinstance(message, str):
        raise RemoteProtocolError("the server says that a task has failed, without a well-formed error")
    return RpcError.from_wire(code, message, error.get("data"))


def task_status(task: Task) -> TaskStatus:
    """Returns a task of MCP 2025-11-25 as both dialects have it."""
    return _status_of(task, task.ttl, task.poll_interval)


def _status_of(task: Task | DetailedTask, ttl: float | None, poll_interval: float | None) -> TaskStatus:
    return TaskStatus(
        id=task.task_id,
        status=task.status,
        message=task.status_message,
        created_at=task.created_at,
        updated_at=task.last_updated_at,
        ttl=_seconds(ttl),
        poll_interval=_seconds(poll_interval),
    )


def _seconds(milliseconds: float | None) -> float | None:
    # Compared before any arithmetic: an integer of JSON has as many digits as a server likes.
    return None if milliseconds is None else min(max(0, milliseconds), _LONGEST) / 1000


_CORE = TaskDialect(
    created=_core_created,
    look=_core_look,
    result_method="tasks/result",
    update_method=None,
    listens=False,
)

_DETAILED = TaskDialect(
    created=_detailed_created,
    look=_detailed_look,
    result_method=None,
    update_method="tasks/update",
    listens=True,
)


def dialect_of(era: Era) -> TaskDialect:
    """Returns the dialect of a revision: where questions are values, tasks carry them."""
    return _DETAILED if era.asks_by_retry else _CORE
