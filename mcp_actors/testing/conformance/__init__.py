"""The conformance kit of bindings: see `mcp_actors.testing.check_transport`."""

from __future__ import annotations

from mcp_actors.testing.conformance.checking import check_transport
from mcp_actors.testing.conformance.rules import TransportBreach, TransportReport
from mcp_actors.testing.conformance.subject import ChannelAction, TransportMaker

__all__ = ["ChannelAction", "TransportBreach", "TransportMaker", "TransportReport", "check_transport"]
