"""Notifications of the peer that a function takes: calls that nobody waits for, and that are never answered."""

from __future__ import annotations

import sys
from typing import Any

import trio

from mcp_actors._actors.continuation import Continuation
from mcp_actors._actors.dispatcher import Dispatcher
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.era import Invocation
from mcp_actors.abc import Frame, HttpRequest, Outlet
from mcp_actors.errors import RpcError
from mcp_actors.logging import log

__all__ = ["UnansweredOutlet", "prepare_unanswered", "start_unanswered"]


class UnansweredOutlet:
    """The outlet of a notification: drops the answer, and sends what belongs to no request of the peer.

    Args:
        dispatcher: The conversation that the notification belongs to.
        arrived: The outlet that came with the notification.
    """

    def __init__(self, dispatcher: Dispatcher, arrived: Outlet | None) -> None:
        self._dispatcher = dispatcher
        self.http_request: HttpRequest | None = getattr(arrived, "http_request", None)

    @property
    def longest(self) -> int:
        """No answer is sent, so none is too long."""
        return sys.maxsize

    def post(self, frame: Frame) -> None:
        if not frame.last:
            self._way_back().post(_about_nothing(frame))

    def send_nowait(self, frame: Frame) -> bool:
        return frame.last or self._way_back().send_nowait(_about_nothing(frame))

    async def send(self, frame: Frame) -> None:
        if not frame.last:
            await self._way_back().send(_about_nothing(frame))

    def settle(self) -> None:
        """Does nothing, because nobody waits for an answer."""

    def close_stream(self) -> None:
        """Does nothing, because no stream waits for an answer."""

    def _way_back(self) -> Outlet:
        carrier = self._dispatcher.carrier
        if carrier is None:
            raise trio.BrokenResourceError("the session has ended")
        return carrier.outlet


def _about_nothing(frame: Frame) -> Frame:
    frame.about = None
    return frame


def prepare_unanswered(
    dispatcher: Dispatcher, invocation: Invocation, arrived: Outlet | None = None
) -> InboundCall:
    """Returns the call for a notification; give it to `start_unanswered`."""
    return dispatcher.responder.call_class(invocation, dispatcher, UnansweredOutlet(dispatcher, arrived))


def start_unanswered(call: InboundCall, dispatcher: Dispatcher, function: Any, *args: Any) -> None:
    """Runs ``function`` for a notification in a task of the pool. Never waits.

    It counts among the calls in flight, waits for its place as they do, and is dropped where they are refused. What it
    raises is logged.
    """
    try:
        call.admission = dispatcher.limiters.admit()
    except RpcError as error:
        log.warning(
            "notification dropped",
            session=dispatcher.name,
            method=call.invocation.method.name,
            error=str(error),
        )
        return
    call.continuation = Continuation(function, *args)
    call.key = object()
    dispatcher.calls[call.key] = call
    assert dispatcher.pool is not None
    dispatcher.pool.start(call)
