"""The kinds of calls that a conversation makes: plain ones, or those that telemetry is told of.

The latter are imported where they are used. Most programs have no telemetry, and pay nothing for it.
"""

from __future__ import annotations

import importlib

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound import CallCarrier, OutboundCalls
from mcp_actors.abc import Telemetry

__all__ = ["call_class_for", "outbound_calls_for"]


def call_class_for(telemetry: Telemetry | None) -> type[InboundCall]:
    """Returns the class of the calls of the peer."""
    if telemetry is None:
        return InboundCall
    observed: type[InboundCall] = importlib.import_module("mcp_actors._actors.observed").ObservedCall
    return observed


def outbound_calls_for(
    telemetry: Telemetry | None, carrier: CallCarrier, limits: Limits, name: str
) -> OutboundCalls:
    """Returns the table of the requests of ours in a session with this name."""
    if telemetry is None:
        return OutboundCalls(carrier, limits)
    module = importlib.import_module("mcp_actors._actors.observed")
    observed: OutboundCalls = module.ObservedOutboundCalls(carrier, limits, name, telemetry)
    return observed
