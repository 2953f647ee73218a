"""The actions of operators on a running server: they end a call, or end a session."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from mcp_actors.admin.snapshot import NodeSnapshot

__all__ = ["Action", "ActionOutcome", "LiveView"]


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action on a call or a session of one node."""

    action: Literal["cancel_call", "end_session"]
    node: str
    """`NodeSnapshot.node`."""
    target: str
    """`CallRow.key` or `SessionRow.name`."""


class ActionOutcome(msgspec.Struct, frozen=True):
    """The outcome of an action."""

    done: bool
    text: str
    """A sentence for the operator."""


class LiveView(Protocol):
    """Something that an admin endpoint shows: a server, all nodes of one, or workers."""

    async def snapshot(self) -> list[NodeSnapshot]:
        """Returns where every node stands. Bounded in time: a node that does not answer is left out."""

    async def act(self, action: Action, who: str) -> ActionOutcome:
        """Does what an operator asks for, and logs it with ``who``. Bounded in time."""
