"""The conformance kit of shared state: see `mcp_actors.testing.check_shared_state`."""

from __future__ import annotations

from mcp_actors.testing.shared_state.checking import SharedStateBreach, SharedStateReport, check_shared_state
from mcp_actors.testing.shared_state.subject import SharedStateSubject

__all__ = ["SharedStateBreach", "SharedStateReport", "SharedStateSubject", "check_shared_state"]
