"""Checks of nodes: their names, servers apart, nodes that vanish."""

from __future__ import annotations

from mcp_actors.testing.conformance.report import Check, expect
from mcp_actors.testing.shared_state.bus import BusSubscriber
from mcp_actors.testing.shared_state.events import append_kept
from mcp_actors.testing.shared_state.rules import DESCRIBED, NAMES_APART, NODE_GONE, NODE_NAMES, REPLAYED
from mcp_actors.testing.shared_state.subject import NAME, ROOMY, StateUnderTest, make_task

__all__ = ["NODES"]


async def states_describe_themselves(tested: StateUnderTest) -> None:
    """The name of a node and the properties of the roles have their types, and stay."""
    async with tested.node() as node:
        expect(isinstance(node.node, str) and bool(node.node), DESCRIBED, f"the node's name is {node.node!r}")
        for role in (node.sessions, node.events, node.bus, node.tasks, node.replays):
            spans: object = role.spans_processes
            expect(isinstance(spans, bool), DESCRIBED, f"{role!r}.spans_processes is {spans!r}")
        survives: object = node.tasks.survives
        expect(isinstance(survives, bool), DESCRIBED, f"{node.tasks!r}.survives is {survives!r}")


async def nodes_have_names_of_their_own(tested: StateUnderTest) -> None:
    """Nodes that are open together, and nodes that are opened in turn by one and by several processes."""
    names = []
    shared = tested.subject.share()
    async with tested.nodes(3) as nodes:
        names += [node.node for node in nodes]
    for _ in range(3):
        async with shared.open(NAME) as node:
            names.append(node.node)
    expect(len(set(names)) == len(names), NODE_NAMES, f"{len(names)} nodes had {len(set(names))} names")


async def servers_share_nothing(tested: StateUnderTest) -> None:
    """Two servers of different names use one state: neither sees anything of the other's."""
    async with tested.node() as node, tested.node("another") as other:
        address, _ = node.bus.open_mailbox(lambda message: None)
        listener = BusSubscriber(other)
        await tested.subject.pass_time(tested.quiet)
        await node.sessions.register("session", "alice", address)
        record = make_task(tested, node)
        await node.tasks.create(record, ROOMY)
        await node.replays.first_use(b"name", 60)
        node.bus.publish("task", "key")
        ids = await append_kept(tested, node, "session", "a", [b"1", b"2"])
        seen: dict[str, object] = {
            "a session": await other.sessions.find("session"),
            "a task": await other.tasks.get([record.id]),
            "a page of tasks": await other.tasks.page("alice", None, 10),
            "an event": await other.events.after("session", ids[0]),
            "a used name": not await other.replays.first_use(b"name", 60),
        }
        await tested.subject.pass_time(tested.quiet)
        seen["an event of the bus"] = listener.taken
        for thing, found in seen.items():
            expect(not found, NAMES_APART, f"{thing} of another server is seen")
        full = make_task(tested, other)
        refused = await other.tasks.create(full, ROOMY._replace(of_owner=1, of_all=1))
        expect(refused is None, NAMES_APART, "the tasks of another server take room")


async def lost_nodes_are_gone(tested: StateUnderTest) -> None:
    """A node vanishes without a word. After its lease, and not after the lease of another, it is gone."""
    assert tested.subject.lose is not None
    async with tested.node() as stays:
        async with tested.node() as lost, tested.node() as other:
            addresses = {}
            for node, session in ((lost, "lost"), (other, "other")):
                addresses[session], _ = node.bus.open_mailbox(lambda message: None)
                await node.sessions.register(session, "alice", addresses[session])
            ids = await append_kept(tested, lost, "lost", "a", [b"1", b"2"])
            await tested.subject.lose(lost)
            for _ in range(8):
                await tested.subject.pass_time(tested.subject.lease / 4)
                if stays.sessions.spans_processes:
                    place = await stays.sessions.find("other")
                    expect(
                        place is not None and place.alive, NODE_GONE, "a node that is there counts as gone"
                    )
            if stays.sessions.spans_processes:
                place = await stays.sessions.find("lost")
                expect(
                    place is None or not place.alive, NODE_GONE, "a session of a lost node counts as alive"
                )
            if stays.bus.spans_processes:
                there = await stays.bus.send(addresses["lost"], b"x")
                expect(not there, NODE_GONE, "send says that a lost node is there")
                there = await stays.bus.send(addresses["other"], b"x")
                expect(there, NODE_GONE, "send says that a node is not there that is")
            if stays.events.spans_processes:
                replay = await stays.events.after("lost", ids[0])
                expect(
                    replay is not None and [data for _, data in replay.events] == [b"2"],
                    REPLAYED,
                    f"{replay} after the first of two events of a lost node",
                )


NODES = (
    Check(states_describe_themselves, DESCRIBED),
    Check(nodes_have_names_of_their_own, NODE_NAMES),
    Check(servers_share_nothing, NAMES_APART),
    Check(lost_nodes_are_gone, NODE_GONE, needs="lose"),
)
