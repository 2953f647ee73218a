"""A session with a connection, and its pace: it reads until the peer ends, then drains and closes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import trio

from mcp_actors._actors.dispatcher import (
    Dispatcher,
    DispatchRules,
    Loss,
    Negotiation,
    NotificationHandler,
    SessionStatistics,
    ignore,
)
from mcp_actors._actors.inbound_call import Responder
from mcp_actors._actors.limits import ClientMemory, ConcurrencyLimiter, Limits
from mcp_actors._actors.link import Link
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors._wire.codec import JsonRpcNotification
from mcp_actors.abc import Frame, FrameChannel
from mcp_actors.errors import (
    INVALID_REQUEST,
    ConnectionLost,
    MalformedMessage,
    RemoteProtocolError,
    SessionExpired,
)
from mcp_actors.supervision.containment import Containment, TaskKind, start, start_again
from mcp_actors.supervision.task_kinds import CONNECTION_WRITER, SESSION

__all__ = ["ReadingPace", "Session"]


# -- the budget of notifications that connections share; beyond it they are not read for a while -------------------
#
# Requests and answers are bounded by their number in flight. Nothing bounds what a peer tells unasked, and each message
# takes its part of the loop: so the reader waits, and the peer feels it.


class ReadingPace:
    """Counts notifications, which are forgotten at a rate.

    Args:
        rate: Notifications a second in the long run; as many may come at once.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._taken = 0.0
        self._at = trio.current_time()

    def __repr__(self) -> str:
        return f"<ReadingPace {self._taken:.0f}/{self._rate}>"

    def take(self, messages: Iterable[object]) -> float:
        """Counts the notifications among what was read; returns for how many seconds nothing more is to be read."""
        count = 0
        for message in messages:
            if isinstance(message, JsonRpcNotification):
                count += 1
            elif isinstance(message, list):
                count += len(message)
        if not count:
            return 0.0
        now = trio.current_time()
        self._taken = max(0.0, self._taken - (now - self._at) * self._rate) + count
        self._at = now
        return max(0.0, self._taken / self._rate - 1.0)


class Session:
    """One peer's conversation over one connection; see `Dispatcher` for the arguments."""

    def __init__(
        self,
        name: str,
        channel: FrameChannel,
        negotiation: Negotiation,
        responder: Responder,
        rules: DispatchRules,
        *,
        limits: Limits,
        limiter: ConcurrencyLimiter | None = None,
        memory: ClientMemory | None = None,
        on_notification: NotificationHandler = ignore,
    ) -> None:
        self.limits = limits
        self.link = self.outlet = Link(channel, limits, self._broken)
        self.request_ended = channel.settled
        self.dispatcher = Dispatcher(
            name,
            self,
            negotiation,
            responder,
            rules,
            limits=limits,
            limiter=limiter,
            memory=memory,
            on_notification=on_notification,
        )
        self.outbound = self.dispatcher.outbound
        """The requests of ours."""
        self._ended: trio.Event | None = None
        self.pace: ReadingPace | None = None
        """The budget of notifications of the peer, if it has one."""
        self._reading = trio.CancelScope()
        self._writing: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None
        self._breaking: BaseException | None = None
        self._stop_grace = limits.drain_grace

    def __repr__(self) -> str:
        dispatcher = self.dispatcher
        return (
            f"<Session {dispatcher.name} {dispatcher.state} calls={len(dispatcher.calls)} "
            f"pending={len(dispatcher.outbound.pending)}>"
        )

    # -- the actor -------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Converses until the peer ends, the link breaks or `stop` is called; then drains, closes and returns.

        Calls in flight may go on for `Limits.end_grace` seconds after the peer's clean end and for `Limits.drain_grace`
        seconds after `stop`; a broken link cancels them at once. A defect of ours ends this connection, is logged, and
        goes no further. Cancelled, the session closes at once.
        """
        with Containment(SESSION, details={"session": self.dispatcher.name}):
            dispatcher, link = self.dispatcher, self.link
            try:
                async with trio.open_nursery() as calls:
                    self._nursery = calls
                    link.write_by(self._start_writer)
                    dispatcher.pool = TaskPool(calls, self.limits.idle_tasks)
                    link.attach(dispatcher, self._crashed)
                    task_status.started()
                    self._end_calls(await self._read())
                    await dispatcher.wait_for_deferred()
            except BaseException:
                self._stop_writing()
                raise
            finally:
                try:
                    dispatcher.end(self._breaking)
                    dispatcher.abandon_deferred()
                    await link.aclose()
                finally:
                    self._stop_writing()
                    self.ended.set()

    @property
    def ended(self) -> trio.Event:
        """Set when the session has ended; made at first use, since most sessions of a server never need it."""
        if self._ended is None:
            self._ended = trio.Event()
        return self._ended

    def _start_writer(self) -> None:
        # The writer is a sibling of the session's task: it outlives the calls, and most sessions never have one.
        assert self._nursery is not None
        siblings = self._nursery.parent_task.parent_nursery
        assert siblings is not None
        scope = self._writing = trio.CancelScope()

        async def write() -> None:
            with scope:
                await self.link.run()

        start(siblings, CONNECTION_WRITER, write, on_crash=self._broken)

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel(reason="the session ended")

    def _end_calls(self, broken: BaseException | None) -> None:
        """Takes no new calls. Those in flight are cancelled if the connection is ``broken``, or have a grace."""
        dispatcher, calls = self.dispatcher, self._nursery
        assert dispatcher.pool is not None
        assert calls is not None
        dispatcher.end(broken)
        dispatcher.pool.close()
        if broken is not None:
            calls.cancel_scope.cancel(reason="the connection broke")
        else:
            calls.cancel_scope.deadline = trio.current_time() + self._grace()
            dispatcher.drain()

    def lose(self, reason: str) -> None:
        """Ends the connection as if it had broken, for ``reason``; calls raise `ConnectionLost`. Legal at any time."""
        self._broken(trio.BrokenResourceError(reason))

    def stop(self, grace: float | None = None) -> None:
        """Takes no new work, lets calls in flight end within the grace, then closes. Legal from any task, any time.

        Calls that a peer has left behind by ending its input have had their grace: they are cancelled at once.

        Args:
            grace: Seconds of the grace; by default `Limits.drain_grace`.
        """
        if grace is not None:
            self._stop_grace = grace
        if self._peer_left and self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason="the peer has left, and the session is stopping")
        self._reading.cancel(reason="the session is stopping")

    @property
    def _peer_left(self) -> bool:
        """Whether the session ended because the peer ended its input, and not because it was stopped."""
        return self.dispatcher.state == "ended" and not self._reading.cancel_called

    def _grace(self) -> float:
        limits = self.limits
        return min(limits.end_grace, limits.drain_grace) if self._peer_left else self._stop_grace

    async def _read(self) -> BaseException | None:
        """Reads to the end; returns what broke the link, or ``None`` for a clean end."""
        link = self.link
        try:
            with self._reading:
                while True:
                    messages = link.take_all(await link.channel.receive_many())
                    if link.in_burst:
                        await self._dispatch_burst(messages)
                    else:
                        self.dispatcher.dispatch(messages[0], link)
                    wait = 0.0 if self.pace is None else self.pace.take(messages)
                    # An idle session must not keep what the peer sent last.
                    del messages
                    if wait:
                        await trio.sleep(wait)
                    if link.congested:
                        await link.flow()
        except trio.EndOfChannel:
            return None
        except trio.BrokenResourceError as error:
            cause = error.__cause__
            if isinstance(cause, RemoteProtocolError):
                if not isinstance(cause, MalformedMessage):
                    cause = MalformedMessage(str(cause), code=INVALID_REQUEST)
                self.dispatcher.malformed(cause, link)
            self._breaking = error
        except trio.ClosedResourceError:
            return None
        return self._breaking

    async def _dispatch_burst(self, messages: list[Any]) -> None:
        link, dispatch, pool = self.link, self.dispatcher.dispatch, self.dispatcher.pool
        assert pool is not None
        pool.is_eager = False
        for number, message in enumerate(messages):
            if number and number % link.messages_in_a_turn == 0:
                # The peer reads its first answers while the last of its messages are dispatched.
                await trio.lowlevel.cancel_shielded_checkpoint()
            dispatch(message, link)
        pool.is_eager = True
        link.in_burst = False

    def _crashed(self, error: Exception) -> None:
        """Dispatching a message failed in the task that delivered it, which is not to blame."""
        with Containment(SESSION, details={"session": self.dispatcher.name}):
            try:
                raise error
            finally:
                # Its traceback has this frame: the message would wait for the garbage collector.
                del error
        self._breaking = trio.BrokenResourceError("a message could not be dispatched")
        self._reading.cancel(reason="dispatching failed")

    def _broken(self, error: BaseException) -> None:
        self._breaking = error
        self._reading.cancel(reason="the link broke")
        if self.dispatcher.state == "ended" and self._nursery is not None:
            # The link broke while the session drained: there is no peer left to answer.
            self._nursery.cancel_scope.cancel(reason="the connection broke")

    # -- as the carrier of its dispatcher ----------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self.link.channel.peer

    def start_task(self, kind: TaskKind, fn: Callable[[], Awaitable[object]]) -> None:
        if self._nursery is not None:
            begin = start_again if kind.restarted else start
            begin(self._nursery, kind, fn)

    def connection_lost(self, broken: BaseException | None) -> Loss:
        channel = self.link.channel
        if broken is not None and isinstance(broken.__cause__, SessionExpired):
            # By `NoAnswer` the channel has named the requests that it had begun to send: no other was ever run.
            expired = SessionExpired(*broken.__cause__.args, never_run=True)
            expired.__cause__ = broken
            return expired
        report = channel.loss_report()
        code = report.get("exit_code")
        text = f"the connection to {channel.peer} " + (f"broke: {broken}" if broken else "ended")
        if code is not None:
            text += f"; it exited with code {code}"
            if code == 0 and self.link.statistics().frames_in == self.dispatcher.counters.malformed:
                text += " before it sent a message: a program that serves has to call server.run() at its end"
        if broken is None and report.get("close_reason"):
            text += f": {report['close_reason']}"
        lost = ConnectionLost(
            text,
            exit_code=code,
            stderr=tuple(report.get("stderr", ())),
            received=self.outbound.received,
            has_read=report.get("has_read", True),
        )
        lost.__cause__ = broken
        return lost

    def withdraw(self) -> Iterable[Frame]:
        return self.link.withdraw()

    @property
    def is_broken(self) -> bool:
        """Whether the connection broke, rather than being ended by one side."""
        return self._breaking is not None

    # -- for those who hold the session ------------------------------------------------------------------------------

    @property
    def loss(self) -> Loss | None:
        """The reason why there is no connection any more, ``None`` while there is one."""
        return self.dispatcher.outbound.loss() if self.dispatcher.state == "ended" else None

    async def notify(
        self, method: str, params: dict[str, Any] | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Sends a notification; see `Dispatcher.notify`."""
        await self.dispatcher.notify(method, params, metadata)

    def statistics(self) -> SessionStatistics:
        """Returns a snapshot of the session, its calls and its link."""
        return self.dispatcher.statistics(self.peer, self.link.statistics())
