"""Requests of ours that telemetry is told of. They are made in place of plain ones where there is telemetry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.observed_call import MESSAGE_CHARACTERS
from mcp_actors._actors.outbound import CallCarrier, OutboundCalls
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors.abc.telemetry import CallEnding, ObservedRequest, OutboundObservation, Telemetry, guarded
from mcp_actors.errors import CallTimeout, ConnectionLost, RpcError, SessionExpired

__all__ = ["ObservedOutboundCalls"]

# The member of params that says what is meant, by method; other methods have none that is worth telling.
_TARGETS = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}


class ObservedOutboundCalls(OutboundCalls):
    """The requests of one session, which `Telemetry.outbound` is told of.

    Args:
        name: The name of the session.
        telemetry: Is told.
    """

    def __init__(self, carrier: CallCarrier, limits: Limits, name: str, telemetry: Telemetry) -> None:
        super().__init__(carrier, limits)
        self._name = name
        self._telemetry = telemetry

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
    # Made anew member by member: `attrs.evolve` takes three times as long.
    return CallOptions(
        idle=options.idle,
        cap=options.cap,
        on_progress=options.on_progress,
        wants_progress=options.wants_progress,
        # What the program itself has put there is left alone.
        meta={**(observation.meta or {}), **sent, **(options.meta or {})},
        cancellable=options.cancellable,
        envelope=options.envelope,
        on_message=options.on_message,
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
