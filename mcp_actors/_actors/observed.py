"""Calls in both directions that telemetry observes. With telemetry they are made in place of the plain ones.

The table of kinds (`mcp_actors._actors.outbound.KINDS`) gets these classes when this module is imported. From then on
the log also says which call a line belongs to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from mcp_actors._actors.inbound_call import CallOwner, DetachedCall, InboundCall
from mcp_actors._actors.limits import Admission, Limits
from mcp_actors._actors.outbound import KINDS, CallCarrier, CallKinds, OutboundCalls
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import Invocation, shown_target
from mcp_actors._wire.codec import decode_value, encode_value
from mcp_actors.abc import Frame, Outlet
from mcp_actors.abc.telemetry import (
    CallEnding,
    EndingKind,
    Observation,
    ObservedRequest,
    OutboundObservation,
    Telemetry,
    current_call,
    guarded,
    log_members,
)
from mcp_actors.errors import INTERNAL_ERROR, CallTimeout, ConnectionLost, RpcError, SessionExpired
from mcp_actors.supervision import logging
from mcp_actors.supervision.printable import masked_uri

__all__ = [
    "MESSAGE_CHARACTERS",
    "ObservedCall",
    "ObservedDetachedCall",
    "ObservedOutboundCalls",
    "ending_of_answer",
    "failed",
    "observed_request",
]


# Characters of an error's text that telemetry receives: it may repeat what a peer sent.
MESSAGE_CHARACTERS = 256
# A quotation mark inside of a JSON string is escaped, so this cannot be part of a text.
_IS_ERROR = b'"isError":true'

logging.members_of_call = log_members


def failed(error: Exception) -> None:
    """Logs what telemetry has raised."""
    logging.log.error("telemetry failed", exc_info=error)


def observed_request(
    invocation: Invocation, owner: CallOwner, outlet: Outlet | None = None, *, is_task: bool = False
) -> ObservedRequest:
    """Returns a request as telemetry sees it; ``outlet`` is where its answer goes."""
    method, target = invocation.method, shown_target(invocation)
    return ObservedRequest(
        method.name,
        target,
        target is not None and owner.responder.is_registered(method.name, target),
        # A notification has no id, and the name of its method in place of one.
        None if invocation.id == method.name else invocation.id,
        invocation.meta,
        invocation.era.version,
        owner.name,
        invocation.address or owner.peer,
        invocation.principal,
        is_task,
        getattr(outlet, "http_request", None),
    )


def ending_of_answer(data: bytes, is_failure: bool) -> tuple[EndingKind, int | None, str | None]:
    """Returns what an encoded answer means: its kind, and the code and the text of an error.

    Args:
        data: The answer.
        is_failure: Whether the call failed. Otherwise an answer is decoded only if it may be an error of a tool.
    """
    if not is_failure and _IS_ERROR not in data:
        return "answered", None, None
    answer = decode_value(data)
    if type(answer) is not dict:
        return "answered", None, None
    error = answer.get("error")
    if error is not None:
        return "error", error["code"], error["message"][:MESSAGE_CHARACTERS]
    result = answer.get("result")
    return (
        ("tool_error" if type(result) is dict and result.get("isError") is True else "answered"),
        None,
        None,
    )


class ObservedCall(InboundCall):
    """A call that `Telemetry.inbound` receives when it begins; its observer receives how it ended."""

    born_at_once = True

    _observed: tuple[ObservedRequest, Observation] | None = None
    """The observer, with the request as it sees it; ``None`` before the call began and when nothing observes it."""
    _ending: CallEnding | None = None
    _failure_of: Frame | None = None
    """The answer of a handler that failed."""
    _waited: float = 0.0

    def _begin(self) -> tuple[ObservedRequest, Observation] | None:
        telemetry: Telemetry | None = self.owner.responder.telemetry
        if telemetry is not None:
            try:
                request = observed_request(self.invocation, self.owner, self.outlet)
                observation = telemetry.inbound(request)
            except Exception as error:
                failed(error)
                return None
            if observation is not None:
                self._observed = request, observation
        return self._observed

    def begin_without_task(self, start: Callable[[InboundCall], None]) -> bool:
        """An observed call always has a task, in which its observer is entered."""
        return False

    # The two that follow are the hot path of each observed call, so they name the class and call nothing in between.

    def answer_now(self) -> Frame | None:
        observed = self._begin()
        if observed is None:
            return InboundCall.answer_now(self)
        request, observation = observed
        token = current_call.set(observed)
        # Most functions run in a task, and are entered there: to enter them twice would be measurable.
        entered = self.owner.responder.runs_in_place(request.method, request.target)
        try:
            if entered:
                observation.enter()
        except Exception as error:
            failed(error)
        try:
            frame = InboundCall.answer_now(self)
        finally:
            try:
                if entered:
                    observation.leave()
            except Exception as error:
                failed(error)
            current_call.reset(token)
        if frame is not None:
            self._note_answer(frame)
            self._report()
        return frame

    async def _outcome(self) -> Frame | None:
        # A notification begins here.
        observed = self._observed or self._begin()
        if observed is None:
            return await InboundCall._outcome(self)
        observation = observed[1]
        token = current_call.set(observed)
        try:
            observation.enter()
        except Exception as error:
            failed(error)
        try:
            frame = await InboundCall._outcome(self)
        finally:
            try:
                observation.leave()
            except Exception as error:
                failed(error)
            current_call.reset(token)
        if frame is not None:
            self._note_answer(frame)
        return frame

    async def _wait_for_admission(self, admission: Admission) -> None:
        began = trio.current_time()
        try:
            await super()._wait_for_admission(admission)
        finally:
            self._waited = trio.current_time() - began

    def failure(self, error: BaseException) -> Frame:
        self._failure_of = super().failure(error)
        return self._failure_of

    async def finish(self) -> None:
        ending = self.replacement
        if isinstance(ending, RpcError):
            # An operator has ended it.
            self._note("error", ending.code, ending.message[:MESSAGE_CHARACTERS])
        else:
            self._note("input_required" if self.state == "replaced" else "cancelled")
        await super().finish()

    def fail(self, error: BaseException) -> None:
        self._note("error", INTERNAL_ERROR)
        super().fail(error)

    def refuse(self, error: RpcError) -> None:
        self._note("error", error.code, error.message[:MESSAGE_CHARACTERS])
        super().refuse(error)

    def close(self) -> None:
        if self._observed is not None:
            if self.state == "cancelled":
                self._note("cancelled")
            elif self.state != "answered":
                self._note("lost")
            self._report()
        InboundCall.close(self)

    def _post_too_long(self, frame: Frame) -> None:
        self._note("error", INTERNAL_ERROR, "the answer is too long to be sent")
        super()._post_too_long(frame)

    def _note_answer(self, frame: Frame) -> None:
        data = frame.data
        if frame is not self._failure_of and _IS_ERROR not in data:
            # Nothing in between is called for a plain result, as most answers are.
            seconds = trio.current_time() - self.started
            self._ending = CallEnding("answered", seconds, None, None, self._waited, len(data))
        else:
            failure, self._failure_of = self._failure_of, None
            self._note(*ending_of_answer(data, frame is failure), size=len(data))

    def _note(
        self, kind: EndingKind, code: int | None = None, message: str | None = None, size: int = 0
    ) -> None:
        seconds = trio.current_time() - self.started
        self._ending = CallEnding(kind, seconds, code, message, self._waited, size)

    def _report(self) -> None:
        observed, self._observed = self._observed, None
        ending, self._ending = self._ending, None
        if observed is not None and ending is not None:
            request = observed[0]
            try:
                if not request.is_registered and request.target is not None:
                    # The first call of a tool is what makes a gateway ask its upstream for the tools that it has.
                    request.is_registered = self.owner.responder.is_registered(request.method, request.target)
                observed[1].ended(ending)
            except Exception as error:
                failed(error)


class ObservedDetachedCall(DetachedCall):
    """A detached call, which is a call of its own to telemetry: the call that created it was answered before."""

    async def outcome(self, function: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        request, observation = guarded(self._observe) or (None, None)
        if request is None or observation is None:
            return await super().outcome(function)
        token, began = current_call.set((request, observation)), trio.current_time()
        guarded(observation.enter)
        answer: dict[str, Any] | None = None
        try:
            answer = await super().outcome(function)
        finally:
            guarded(observation.leave)
            current_call.reset(token)
            guarded(observation.ended, _ending_of_outcome(answer, trio.current_time() - began))
        return answer

    def _observe(self) -> tuple[ObservedRequest, Observation | None]:
        telemetry = self.owner.responder.telemetry
        assert telemetry is not None
        request = observed_request(self.invocation, self.owner, is_task=True)
        return request, telemetry.inbound(request)


def _ending_of_outcome(answer: dict[str, Any] | None, seconds: float) -> CallEnding:
    if answer is None:
        return CallEnding("cancelled", seconds)
    error = answer.get("error")
    if error is not None:
        return CallEnding("error", seconds, error["code"], error["message"][:MESSAGE_CHARACTERS])
    result = answer["result"]
    is_error = type(result) is dict and result.get("isError") is True
    return CallEnding("tool_error" if is_error else "answered", seconds, size=len(encode_value(result)))


# The member of params that says what is meant, by method; other methods have none that is of interest.
_TARGETS = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}


class ObservedOutboundCalls(OutboundCalls):
    """The requests of one session, each of which `Telemetry.outbound` receives.

    Args:
        name: The name of the session.
        telemetry: Observes the requests.
    """

    def __init__(
        self, carrier: CallCarrier, limits: Limits, name: str = "", telemetry: Telemetry | None = None
    ) -> None:
        assert telemetry is not None
        super().__init__(carrier, limits)
        self._name = name
        self._telemetry = telemetry

    @property
    def is_plain(self) -> bool:
        """False, because each request goes through `request`."""
        return False

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        options: CallOptions,
        *,
        call: InboundCall | None = None,
        id: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if self.ended:
            raise self.loss()
        if id is None:
            id = self.next_id()
        began = trio.current_time()
        observation = guarded(self._observe, method, params, options, call, id)
        if observation is None:
            return await super().request(method, params, options, call=call, id=id, metadata=metadata)
        # A subclass may have left out the initializer that sets it.
        if getattr(observation, "meta", None):
            options = guarded(_with_meta, options, observation, params.get("_meta", {})) or options
        try:
            result = await super().request(method, params, options, call=call, id=id, metadata=metadata)
        except BaseException as error:
            guarded(observation.ended, _ending_of(error, trio.current_time() - began))
            raise
        guarded(observation.ended, _ending_of_result(result, trio.current_time() - began))
        return result

    def _observe(
        self,
        method: str,
        params: dict[str, Any],
        options: CallOptions,
        call: InboundCall | None,
        id: int,
    ) -> OutboundObservation | None:
        named = _TARGETS.get(method)
        target = None if named is None else params.get(named)
        if named == "uri" and type(target) is str:
            target = masked_uri(target)
        version = self.version if call is None else call.invocation.era.version
        carrier = self._carrier
        return self._telemetry.outbound(
            ObservedRequest(
                method,
                target if type(target) is str else None,
                False,
                id,
                options.meta or {},
                version,
                self._name,
                "" if carrier is None else carrier.peer,
            )
        )


def _with_meta(
    options: CallOptions, observation: OutboundObservation, sent: Mapping[str, Any]
) -> CallOptions:
    own, given = observation.meta or {}, {**sent, **(options.meta or {})}
    # Made anew member by member: `attrs.evolve` takes three times as long.
    return CallOptions(
        idle=options.idle,
        cap=options.cap,
        on_progress=options.on_progress,
        wants_progress=options.wants_progress,
        # What the program itself has put there is left alone.
        meta={**given, **own} if options.is_forwarded else {**own, **given},
        cancellable=options.cancellable,
        is_forwarded=options.is_forwarded,
        envelope=options.envelope,
        on_message=options.on_message,
        waits_for_server=options.waits_for_server,
        sends_deadline=options.sends_deadline,
    )


def _ending_of_result(result: dict[str, Any], seconds: float) -> CallEnding:
    if result.get("isError") is True:
        return CallEnding("tool_error", seconds)
    if result.get("resultType") == "input_required":
        return CallEnding("input_required", seconds)
    return CallEnding("answered", seconds)


def _ending_of(error: BaseException, seconds: float) -> CallEnding:
    if isinstance(error, RpcError):
        return CallEnding("error", seconds, error.code, error.message[:MESSAGE_CHARACTERS])
    if isinstance(error, CallTimeout):
        return CallEnding("timeout", seconds, None, str(error)[:MESSAGE_CHARACTERS])
    if isinstance(error, (ConnectionLost, SessionExpired)):
        return CallEnding("lost", seconds, None, str(error)[:MESSAGE_CHARACTERS])
    if isinstance(error, Exception):
        return CallEnding("error", seconds, None, type(error).__name__)
    return CallEnding("cancelled", seconds)


KINDS[True] = CallKinds(ObservedCall, ObservedDetachedCall, ObservedOutboundCalls)
