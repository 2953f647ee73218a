"""The session: a switchboard with a connection. It reads until the peer ends, then drains and closes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from mcp_actors._actors.admission import ConcurrencyLimiter
from mcp_actors._actors.dispatcher import Dispatcher, Loss, Negotiation
from mcp_actors._actors.inbound_call import Responder
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.link import Link, LinkStatistics, Received
from mcp_actors._actors.task_pool import TaskPool
from mcp_actors.errors import (
    INVALID_REQUEST,
    ConnectionLost,
    MalformedMessage,
    RemoteProtocolError,
    SessionExpired,
)

__all__ = ["Session"]


class Session(Dispatcher):
    """One peer's conversation over one link; see `Dispatcher` for the arguments."""

    def __init__(
        self,
        name: str,
        link: Link,
        opening: Negotiation,
        responder: Responder,
        *,
        limits: Limits,
        server_limiter: ConcurrencyLimiter | None = None,
        on_notification: Callable[[str, dict[str, Any]], None],
        answers_malformed: bool,
    ) -> None:
        super().__init__(
            name,
            link,
            opening,
            responder,
            limits=limits,
            server_limiter=server_limiter,
            on_notification=on_notification,
            answers_malformed=answers_malformed,
            on_settled=link.channel.settled,
        )
        self.link = link
        self.ended = trio.Event()
        self._reading = trio.CancelScope()
        self._in_burst = False
        self._nursery: trio.Nursery | None = None
        self._breaking: BaseException | None = None
        self._lost_to: BaseException | None = None
        self._crash: Exception | None = None
        link.on_broken = self._broken
        link.on_message = self._delivered
        link.alone = self._is_alone

    def __repr__(self) -> str:
        return (
            f"<Session {self.name} {self.state} calls={len(self.calls)} pending={len(self.outbound.pending)}>"
        )

    def _is_alone(self) -> bool:
        """Only the one that sends now is in flight: who answers has left its table, who asks stands in the other.

        Answers to a burst had better leave as one.
        """
        return not self._in_burst and not self.calls and len(self.outbound.pending) <= 1

    # -- the actor -------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Converses until the peer ends, the link breaks or `stop` is called; then drains, closes, returns.

        A clean end lets calls in flight go on for ``drain_grace`` seconds; a broken link cancels them at once.
        """
        try:
            async with trio.open_nursery() as calls:
                self._nursery = calls
                self._pool = TaskPool(calls, self.limits.idle_tasks)
                task_status.started()
                broken = await self._read()
                self._end(broken)
                self._pool.close()
                if broken is not None:
                    calls.cancel_scope.cancel(reason="the connection broke")
                else:
                    calls.cancel_scope.deadline = trio.current_time() + self.limits.drain_grace
                    for call in list(self.calls.values()):
                        call.drain()
        finally:
            self._end(None)
            try:
                await self.link.aclose()
            finally:
                self.ended.set()

    @property
    def loss(self) -> Loss | None:
        """Why there is no connection any more, once there is none."""
        return self._ending

    def stop(self) -> None:
        """Takes no new work, lets calls in flight end within the grace, then closes. Legal from any task, any time."""
        self._reading.cancel(reason="the session is told to stop")

    def start_soon(self, fn: Callable[[], Any], name: str) -> None:
        """Runs ``fn`` as a task of this session, which ends it when it ends."""
        if self._nursery is not None and self._ending is None:
            self._nursery.start_soon(fn, name=name)

    async def _read(self) -> BaseException | None:
        """Reads to the end; returns what broke the link, or ``None`` for a clean end."""
        try:
            with self._reading:
                while True:
                    messages = await self.link.receive()
                    self._in_burst = len(messages) > 1
                    for number, message in enumerate(messages):
                        if number and number % self.link.turn == 0:
                            # The peer reads its first answers while we are at what it asked last.
                            await trio.lowlevel.cancel_shielded_checkpoint()
                        self._dispatch(message, self.link)
                    self._in_burst = False
                    if self.link.congested:
                        await self.link.flow()
        except trio.EndOfChannel:
            return None
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, RemoteProtocolError):
                self._malformed(MalformedMessage(str(error.__cause__), code=INVALID_REQUEST), self.link)
            return error
        except trio.ClosedResourceError:
            return None
        if self._crash is not None:
            raise self._crash
        return self._breaking

    def _delivered(self, message: Received) -> None:
        """What comes past the reader comes in the turn of the peer's task, which a bug of ours is no business of."""
        try:
            self._dispatch(message, self.link)
        except Exception as error:
            self._crash = error
            self._reading.cancel(reason="dispatching failed")

    def _broken(self, error: BaseException) -> None:
        self._breaking = error
        self._reading.cancel(reason="the link broke")
        if self._ending is not None and self._nursery is not None:
            # Found out while draining, when nobody reads any more: there is nobody left to answer.
            self._nursery.cancel_scope.cancel(reason="the connection broke")

    def _end(self, broken: BaseException | None) -> None:
        if self._ending is not None:
            return
        self._ending = self._loss(broken)
        self._lost_to = broken
        self.outbound.end(broken)

    @property
    def peer(self) -> str:
        return self.link.channel.peer

    def _link_statistics(self) -> LinkStatistics:
        return self.link.statistics()

    def _loss(self, broken: BaseException | None) -> Loss:
        broken = broken or self._lost_to
        if broken is not None and isinstance(broken.__cause__, SessionExpired):
            # The channel has told apart, by `NoAnswer`, what it had begun to send: nothing else was ever run.
            expired = SessionExpired(*broken.__cause__.args, never_run=True)
            expired.__cause__ = broken
            return expired
        report = self.link.channel.loss_report()
        code = report.get("exit_code")
        text = f"the connection to {self.link.channel.peer} " + (f"broke: {broken}" if broken else "ended")
        if code is not None:
            text += f"; it exited with code {code}"
        if broken is None and report.get("close_reason"):
            text += f": {report['close_reason']}"
        lost = ConnectionLost(text, exit_code=code, stderr=tuple(report.get("stderr", ())))
        lost.__cause__ = broken
        return lost
