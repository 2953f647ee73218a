"""Checks of the session directory."""

from __future__ import annotations

from mcp_actors.abc.shared import SessionPlace
from mcp_actors.testing.conformance.report import Check, expect
from mcp_actors.testing.shared_state.rules import FORGOTTEN, FOUND, NODE_GONE
from mcp_actors.testing.shared_state.subject import StateUnderTest

__all__ = ["SESSIONS"]

ODD_TEXTS = ("", "a b", "é漢", "a\x00b", "{x}:*?[z]", "x" * 300)


async def registered_sessions_are_found(tested: StateUnderTest) -> None:
    """Sessions of two nodes, of principals with odd keys, are found at both nodes and told apart."""
    async with tested.nodes() as nodes:
        spans = nodes[0].sessions.spans_processes
        for number, node in enumerate(nodes):
            address, _ = node.bus.open_mailbox(lambda message: None)
            for index, owner in enumerate(ODD_TEXTS):
                session = f"session-{number}-{index}"
                await node.sessions.register(session, owner, address)
                for reader in nodes if spans else [node]:
                    place = await reader.sessions.find(session)
                    expect(
                        place == SessionPlace(address, owner, True),
                        FOUND,
                        f"{place} was found for a session of {owner[:20]!r}",
                    )
        for session in ("session-9", "session", "", "*", "session-0-*"):
            found = await nodes[0].sessions.find(session)
            expect(found is None, FOUND, f"{found} was found for {session!r}, which was never registered")


async def forgotten_sessions_are_not_found(tested: StateUnderTest) -> None:
    """One of two sessions is forgotten, also twice, and one that never was."""
    async with tested.nodes() as (holder, other):
        reader = other if holder.sessions.spans_processes else holder
        address, _ = holder.bus.open_mailbox(lambda message: None)
        for session in ("one", "two"):
            await holder.sessions.register(session, "alice", address)
        for _ in range(2):
            holder.sessions.forget("one")
            holder.sessions.forget("never registered")

        async def is_forgotten() -> bool:
            return await reader.sessions.find("one") is None

        await tested.until(is_forgotten, FORGOTTEN, "a session that was forgotten is still found")
        expect(
            await reader.sessions.find("two") == SessionPlace(address, "alice", True),
            FORGOTTEN,
            "forgetting one session forgot another",
        )


async def sessions_of_a_node_that_ended_are_dead(tested: StateUnderTest) -> None:
    """A node ends in good order: at once none of its sessions is alive, and those of others are."""
    async with tested.node() as stays:
        if not stays.sessions.spans_processes:
            return
        async with tested.node() as leaves:
            for node, session in ((stays, "stays"), (leaves, "leaves")):
                address, _ = node.bus.open_mailbox(lambda message: None)
                await node.sessions.register(session, "alice", address)
        place = await stays.sessions.find("leaves")
        expect(place is None or not place.alive, NODE_GONE, "a session of a node that ended counts as alive")
        place = await stays.sessions.find("stays")
        expect(place is not None and place.alive, NODE_GONE, "with one node's end another's session died")


SESSIONS = (
    Check(registered_sessions_are_found, FOUND),
    Check(forgotten_sessions_are_not_found, FORGOTTEN),
    Check(sessions_of_a_node_that_ended_are_dead, NODE_GONE),
)
