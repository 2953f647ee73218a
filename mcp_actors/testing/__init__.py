"""Tools for tests of programs that use mcp-actors, and of transports.

- `connected_pair`, `raw_client` and `raw_server`: a server and a client in memory, and a peer that the test drives.
- `check_transport`: proves that a binding keeps the contract of `mcp_actors.abc`.
- `check_shared_state`: proves that an implementation of shared state keeps the contracts of `mcp_actors.abc.shared`.
- `FaultyTransport`: latency, bandwidth, loss and the like added to any binding, the same each time.
- `check_tool`: makes a call of your tool with a fault at each of its waits, and says what ran twice or never.
- `RecordingTransport`, `Recording`, `play_to_server` and `RecordedServer`: sessions recorded and played back.
- `MockServer`: a server that answers any client by a recording.

Everything here works under `trio.testing.MockClock` with autojump, as far as the transport in use does.
"""

from __future__ import annotations

from mcp_actors.testing.conformance import (
    ChannelAction,
    TransportBreach,
    TransportMaker,
    TransportReport,
    check_transport,
)
from mcp_actors.testing.faults import Faults, FaultStatistics, FaultyTransport
from mcp_actors.testing.mocked import MockServer
from mcp_actors.testing.playback import PlaybackReport, RecordedServer, play_to_server
from mcp_actors.testing.recording import RecordedEvent, Recording, RecordingTransport
from mcp_actors.testing.scripted import RawServer, ScriptedPeer, connected_pair, raw_client, raw_server
from mcp_actors.testing.shared_state import (
    SharedStateBreach,
    SharedStateReport,
    SharedStateSubject,
    check_shared_state,
)
from mcp_actors.testing.tool_check import Effects, FaultKind, ToolFault, ToolReport, check_tool

__all__ = [
    "ChannelAction",
    "Effects",
    "FaultKind",
    "FaultStatistics",
    "Faults",
    "FaultyTransport",
    "MockServer",
    "PlaybackReport",
    "RawServer",
    "RecordedEvent",
    "RecordedServer",
    "Recording",
    "RecordingTransport",
    "ScriptedPeer",
    "SharedStateBreach",
    "SharedStateReport",
    "SharedStateSubject",
    "ToolFault",
    "ToolReport",
    "TransportBreach",
    "TransportMaker",
    "TransportReport",
    "check_shared_state",
    "check_tool",
    "check_transport",
    "connected_pair",
    "play_to_server",
    "raw_client",
    "raw_server",
]
