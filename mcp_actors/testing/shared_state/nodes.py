"""Checks of nodes, of the session directory and of the replay guard.

The checks of nodes are about their names, servers apart from each other, and nodes that vanish.
"""

from __future__ import annotations

from functools import partial

from mcp_actors.abc.shared import SessionPlace
from mcp_actors.testing.conformance.rules import Check, expect
from mcp_actors.testing.shared_state.events import BusSubscriber, append_kept
from mcp_actors.testing.shared_state.subject import (
    DESCRIBED,
    FORGOTTEN,
    FOUND,
    NAME,
    NAMES_APART,
    NODE_GONE,
    NODE_NAMES,
    REPLAYED,
    ROOMY,
    USED_ONCE,
    VALUES,
    VALUES_END,
    StateUnderTest,
    all_at_once,
    make_task,
)

__all__ = ["NODES", "REPLAYS", "SESSIONS", "USERS"]


async def states_describe_themselves(tested: StateUnderTest) -> None:
    """The name of a node and the properties of the roles have their types, and stay."""
    async with tested.node() as node:
        expect(isinstance(node.node, str) and bool(node.node), DESCRIBED, f"the node's name is {node.node!r}")
        for role in (node.sessions, node.events, node.bus, node.tasks, node.replays, node.values):
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


# -- the session directory -----------------------------------------------------------------------------

ODD_TEXTS = ("", "a b", "é漢", "a\x00b", "{x}:*?[z]", "x" * 300)


async def registered_sessions_are_found(tested: StateUnderTest) -> None:
    """Sessions of two nodes, of principals with odd keys, are found at both nodes and not confused."""
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


# -- the replay guard ----------------------------------------------------------------------------------


async def names_are_used_once(tested: StateUnderTest) -> None:
    """Names of any bytes, at the same and at another node, and 20 uses at once."""
    async with tested.nodes() as nodes:
        used = nodes if nodes[0].replays.spans_processes else nodes[:1]
        for name in (b"", b"\x00", b"\x00\x00", b"\xff\xfe", b"a b", b"*", b"x" * 64):
            expect(await used[0].replays.first_use(name, 60), USED_ONCE, f"{name!r} counts as used before")
            for node in used:
                again = await node.replays.first_use(name, 60)
                expect(not again, USED_ONCE, f"{name!r} was taken twice")
        acts = [
            partial(used[number % len(used)].replays.first_use, b"all at once", 60) for number in range(20)
        ]
        taken = sum(await all_at_once(acts))
        expect(taken == 1, USED_ONCE, f"of 20 uses of one name at the same time {taken} were the first")


async def names_are_free_after_their_time(tested: StateUnderTest) -> None:
    """A name is free when its seconds are over, not earlier, and a longer one beside it is not."""
    seconds = tested.quiet * 5
    async with tested.node() as node:
        early = tested.earlier_than(seconds)
        for name, time in ((b"short", seconds), (b"long", 3600.0)):
            await node.replays.first_use(name, time)
        is_free = await node.replays.first_use(b"short", seconds)
        expect(not (is_free and early()), USED_ONCE, "a name was free at once")
        await tested.subject.pass_time(seconds * 1.2)
        expect(await node.replays.first_use(b"short", 60), USED_ONCE, "a name was not free after its time")
        expect(not await node.replays.first_use(b"long", 60), USED_ONCE, "a name was free before its time")


async def many_names_are_remembered(tested: StateUnderTest) -> None:
    """Many names are used, and the first of them is still known."""
    async with tested.node() as node:
        names = [b"%d" % number for number in range(tested.many)]
        for begin in range(0, len(names), 50):
            part = [partial(node.replays.first_use, name, 3600) for name in names[begin : begin + 50]]
            taken = sum(await all_at_once(part))
            expect(taken == len(part), USED_ONCE, f"of {len(part)} new names {taken} counted as new")
        for name in names[:50]:
            expect(not await node.replays.first_use(name, 3600), USED_ONCE, "an early name was forgotten")


REPLAYS = (
    Check(names_are_used_once, USED_ONCE),
    Check(names_are_free_after_their_time, USED_ONCE),
    Check(many_names_are_remembered, USED_ONCE),
)


# -- the values -------------------------------------------------------------------------------


async def values_are_compared(tested: StateUnderTest) -> None:
    """A value is made, replaced and dropped, at the same and at another node, and by 20 at once."""
    async with tested.nodes() as nodes:
        used = nodes if nodes[0].values.spans_processes else nodes[:1]
        first, last = used[0].values, used[-1].values
        for key in ("", "alice", "a b", "ü*", "x" * 500):
            expect(await last.load(key) is None, VALUES, f"{key!r} has a value from the start")
            expect(not await first.replace(key, b"0", b"1", 60), VALUES, "what was not there was replaced")
            expect(await first.replace(key, None, b"\x00\xff", 60), VALUES, "the first value was refused")
            expect(await last.load(key) == b"\x00\xff", VALUES, f"the value of {key!r} is another one")
            expect(not await last.replace(key, None, b"2", 60), VALUES, "a value counted as missing")
            expect(await last.replace(key, b"\x00\xff", b"2", 60), VALUES, "the next value was refused")
            expect(not await first.replace(key, b"\x00\xff", b"3", 60), VALUES, "a value was replaced twice")
            expect(await first.replace(key, b"2", None, 60), VALUES, "a value could not be dropped")
            expect(await last.load(key) is None, VALUES, "a dropped value is there")
        acts = [
            partial(used[number % len(used)].values.replace, "all", None, b"%d" % number, 60)
            for number in range(20)
        ]
        won = sum(await all_at_once(acts))
        expect(won == 1, VALUES, f"of 20 that replaced a value at the same time {won} did")


async def values_end_with_their_time(tested: StateUnderTest) -> None:
    """A value is there until its seconds are over, and a longer one beside it stays."""
    seconds = tested.quiet * 5
    async with tested.node() as node:
        values = node.values
        early = tested.earlier_than(seconds)
        await values.replace("short", None, b"1", seconds)
        await values.replace("long", None, b"2", 3600.0)
        found = await values.load("short")
        expect(found == b"1" or not early(), VALUES_END, "a value was not there at once")
        await tested.subject.pass_time(seconds * 1.2)
        expect(await values.load("short") is None, VALUES_END, "a value was there after its time")
        expect(await values.replace("short", None, b"3", 60), VALUES_END, "an old value was in the way")
        expect(await values.load("long") == b"2", VALUES_END, "a value was gone before its time")


USERS = (
    Check(values_are_compared, VALUES),
    Check(values_end_with_their_time, VALUES_END),
)
