"""The kit of shared state is green for what is right, and red for each rule that is broken, by its name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from mcp_actors.abc.shared import Replay, SessionPlace, TaskBounds, TaskRecord
from mcp_actors.testing import SharedStateBreach, check_shared_state
from mcp_actors.testing.shared_state import subject

from .cluster import Content, EventBus, Events, Node, Place, Replays, Sessions, Tasks, Values

LARGE = 1 << 60


# -- nodes
class NamesItAfterItsCount(Node):
    def __init__(self, place: Place, content: Any) -> None:
        super().__init__(place, content)
        self.node = f"node{sum(not each.ended for each in content.nodes.values())}"


class SharesBetweenServers(Place):
    def key_of(self, name: str) -> str:
        return "one for all"


class NeverDies(Node):
    alive = property(lambda self: True)


class DiesWithAnother(Node):
    @property
    def alive(self) -> bool:
        return not self.ended and all(each.lost_at is None for each in self.content.nodes.values())


class OpensDuringOutages(Place):
    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Any]:
        down, self.down = self.down, False
        async with super().open(name) as node:
            self.down = down
            yield node


class SaysNothingOfItsReach(Sessions):
    spans_processes = None  # type: ignore[assignment]


class LosesSessionsInAFlush(Content):
    def flush(self) -> None:
        super().flush()
        self.sessions = {}


class LosesMailboxesInOutages(Place):
    async def mend(self) -> None:
        await super().mend()
        for node in self.contents["kit"].nodes.values():
            node.bus.mailboxes.clear()
            node.ended = True


class HangsDuringOutages(Sessions):
    async def find(self, session: str) -> SessionPlace | None:
        if self.of.place.down:
            await trio.sleep_forever()
        return await super().find(session)


class AnswersDuringOutages(Sessions):
    async def find(self, session: str) -> SessionPlace | None:
        return None if self.of.place.down else await super().find(session)


class RaisesWhenItForgets(Sessions):
    def forget(self, session: str) -> None:
        if self.of.place.down:
            raise OSError("no route")
        super().forget(session)


# -- sessions
class MixesSessionsUp(Sessions):
    async def find(self, session: str) -> SessionPlace | None:
        return await super().find(session) or await super().find("session-0-0")


class LosesTheOwner(Sessions):
    async def register(self, session: str, owner: str, address: str) -> None:
        await super().register(session, owner.strip("\0"), address[:300])
        self.of.content.sessions[session] = (self.of.node, owner[:100], address)


class NeverForgets(Sessions):
    def forget(self, session: str) -> None:
        pass


class ForgetsOnlyWithoutOutage(Sessions):
    def forget(self, session: str) -> None:
        if not self.of.place.down:
            super().forget(session)


class KeepsThemToItself(Sessions):
    async def hand_over(self, records: Any, seconds: float) -> None:
        await self.of.reach("sessions")


class LetsAllTakeOver(Sessions):
    async def take_over(self, session: str, owner: str, address: str) -> bytes | None:
        record = self.record_of(session)
        await super().take_over(session, owner, address)
        if record is not None:
            self.of.content.records[session] = record, LARGE
        return record


class CutsRecords(Sessions):
    async def hand_over(self, records: Any, seconds: float) -> None:
        await super().hand_over({each: record[:100] for each, record in records.items()}, seconds)


class KeepsRecordsForEver(Sessions):
    async def hand_over(self, records: Any, seconds: float) -> None:
        await super().hand_over(records, LARGE)


class LosesRecordsWithItsNode(Node):
    def leave(self) -> None:
        super().leave()
        self.content.records.clear()


# -- events
class RepeatsIds(Events):
    def append(self, session: str, stream: str, data: bytes, kept: Any = None) -> str:
        super().append(session, stream, data, kept)
        return stream


class SkipsAnEvent(Events):
    async def after(self, session: str, event_id: str) -> Replay | None:
        replay = await super().after(session, event_id)
        return replay and replay._replace(events=replay.events[:1] + replay.events[2:])


class KnowsAnyId(Events):
    async def after(self, session: str, event_id: str) -> Replay | None:
        return await super().after(session, event_id) or Replay("a", [])


class ReplaysForAnySession(Events):
    async def after(self, session: str, event_id: str) -> Replay | None:
        await self.of.reach("events")
        found = [
            await self.of.content.log.after(each, event_id) for each in ("session", "other", "stays", "new")
        ]
        return next((each for each in found if each), None)


class DropsWhatEnded(Events):
    def end(self, session: str, stream: str) -> None:
        self.of.content.log.forget(session)


class KeepsWhatIsForgotten(Events):
    def forget(self, session: str) -> None:
        pass


class ForgetsEverySession(Events):
    def forget(self, session: str) -> None:
        for each in ("session", "other"):
            super().forget(each)


class NeverSaysThatItIsKept(Events):
    def append(self, session: str, stream: str, data: bytes, kept: Any = None) -> str:
        return super().append(session, stream, data, None)


class SaysLateThatItIsKept(Events):
    spans_processes = False

    def append(self, session: str, stream: str, data: bytes, kept: Any = None) -> str:
        if kept is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(kept, True)
        return super().append(session, stream, data, None)


class LosesItsEventsWithItsNode(Node):
    def leave(self) -> None:
        super().leave()
        self.events.forget("session")


class BeginsStreamsAnew(Events):
    def go_on(self, session: str, last: Any) -> None:
        self.of.content.log.forget(session)


class EndsWhatItLeaves(Events):
    async def leave(self, sessions: Any) -> None:
        await super().leave(sessions)
        for session in sessions:
            self.of.content.log.forget(session)


class KeepsWhatAnotherForgets(Events):
    def go_on(self, session: str, last: Any) -> None:
        self.has_moved = True

    def forget(self, session: str) -> None:
        if not getattr(self, "has_moved", False):
            super().forget(session)


# -- the bus
class TellsItself(EventBus):
    def deliver(self, waiting: list[tuple[str, str]], dropped: bool) -> None:
        super().deliver(waiting, dropped)
        self.take(waiting, dropped)


class ChangesKeys(EventBus):
    def publish(self, topic: str, key: str = "") -> None:
        super().publish(topic, key[:1000])


class PutsAllThatItIsGiven(EventBus):
    def publish(self, topic: str, key: str = "") -> None:
        self.of.place.soon(lambda: self.deliver([(topic, key)], False))


class DropsInSilence(EventBus):
    def deliver(self, waiting: list[tuple[str, str]], dropped: bool) -> None:
        super().deliver(waiting, False)


class DropsInOutages(EventBus):
    def deliver(self, waiting: list[tuple[str, str]], dropped: bool) -> None:
        if not any(key in "0123456789" for _, key in waiting if key):
            super().deliver(waiting, dropped)


class KeepsSubscribers(EventBus):
    def subscribe(self, take: Any, missed: Any) -> Any:
        super().subscribe(take, missed)
        return lambda: None


class SendsTwice(EventBus):
    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        await super().send(address, message, begins=begins)
        return await super().send(address, message, begins=begins)


class SendsToEveryMailbox(EventBus):
    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        for each in self.of.content.nodes.values():
            for box in each.bus.mailboxes:
                await super().send(box, message, begins=begins)
        return True


class CutsMessages(EventBus):
    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        return await super().send(address, message[:65536], begins=begins)


class SaysThatAllAreThere(EventBus):
    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        await super().send(address, message, begins=begins)
        return True


class ForgetsItsOwn(EventBus):
    async def since(self, position: str) -> Sequence[tuple[str, str]] | None:
        # It is read before the event loop runs anything else, as the pump would deliver the own events.
        found: list[tuple[str, str]] = self.of.content.published[int(position) :]
        await self.of.reach("bus")
        return found


class ReadsAllAgain(EventBus):
    async def since(self, position: str) -> Sequence[tuple[str, str]] | None:
        return await super().since("0")


class TakesOnAfterItIsShut(EventBus):
    async def shut(self, address: str) -> None:
        await self.of.reach("bus")


class DropsWhatCameBeforeItWasShut(EventBus):
    async def shut(self, address: str) -> None:
        await super().shut(address)
        self.mailboxes[address] = lambda message: None


class IsShutBeforeAllIsThere(EventBus):
    async def send(self, address: str, message: bytes, *, begins: bool = False) -> bool:
        if not begins or not await super().send(address, b"", begins=True):
            return await super().send(address, message)
        node = self.of.content.nodes[address.partition("/")[0]]
        trio.lowlevel.spawn_system_task(self.late, node.bus.mailboxes[address], message)
        return True

    async def late(self, take: Any, message: bytes) -> None:
        await trio.sleep(1)
        take(message)


# -- tasks
class LosesTheMessage(Tasks):
    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Any:
        return await super().create(msgspec.structs.replace(record, message=None), bounds)


class HasNoBounds(Tasks):
    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Any:
        return await super().create(record, TaskBounds(LARGE, LARGE, LARGE, LARGE))


class MixesBoundsUp(Tasks):
    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Any:
        return {"owner": "all", "all": "owner", None: None}[await super().create(record, bounds)]


class LooksBeforeItWaits(Tasks):
    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Any:
        answer = "owner" if len(self.store._tasks) >= bounds.of_owner else None
        await trio.sleep(0.1)
        return answer or await super().create(record, TaskBounds(LARGE, LARGE, LARGE, LARGE))


class CountsNoResults(Tasks):
    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Any:
        return await super().create(record, bounds._replace(bytes_of_owner=bounds.bytes_of_owner + 9_500))


class ReplacesAnyRevision(Tasks):
    async def replace(self, record: TaskRecord) -> bool:
        await self.of.reach("tasks")
        current = self.store._tasks.get(record.id)
        if current is None or current.is_terminal:
            return False
        self.store._keep(current, record)
        return True


class ComparesBeforeItWaits(Tasks):
    async def replace(self, record: TaskRecord) -> bool:
        current = self.store._tasks.get(record.id)
        await trio.sleep(0.1)
        if current is None or current.is_terminal or current.revision != record.revision - 1:
            return False
        self.store._keep(current, record)
        return True


class ReplacesTheLast(Tasks):
    async def replace(self, record: TaskRecord) -> bool:
        current = self.store._tasks.get(record.id)
        if current is None or current.revision != record.revision - 1:
            return await super().replace(record)
        self.store._keep(current, record)
        return True


class KeepsForEver(Tasks):
    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Any:
        return await super().create(msgspec.structs.replace(record, ttl=None), bounds)

    async def get(self, ids: Sequence[str]) -> Any:
        found = await super().get(ids)
        return {id: msgspec.structs.replace(each, ttl=0.5) for id, each in found.items()}


class PagesBackwards(Tasks):
    async def page(self, owner: str, after: str | None, limit: int) -> Any:
        return list(reversed(await super().page(owner, after, limit)))


class ForgetsPlacesOfDroppedTasks(Tasks):
    async def page(self, owner: str, after: str | None, limit: int) -> Any:
        known = after is None or bool(await super().get([after]))
        return await super().page(owner, after if known else None, limit)


class PagesOfAll(Tasks):
    async def page(self, owner: str, after: str | None, limit: int) -> Any:
        await self.of.reach("tasks")
        ids = list(self.store._tasks)
        begin = ids.index(after) + 1 if after in ids else 0
        return [self.store._tasks[each] for each in ids[begin : begin + limit]]


class AbandonsNothing(Tasks):
    def is_abandoned(self, record: TaskRecord) -> bool:
        return False


class AbandonsWhatEnded(Tasks):
    def is_abandoned(self, record: TaskRecord) -> bool:
        return not self.of.content.nodes[record.node].alive


class AbandonsTasksOfOthers(Tasks):
    def is_abandoned(self, record: TaskRecord) -> bool:
        return not record.is_terminal and record.node != self.of.node


class SurvivesInItsWordsOnly(Node):
    def leave(self) -> None:
        super().leave()
        if all(each.ended for each in self.content.nodes.values()):
            self.content.flush()


class HalfCreatesWhenCancelled(Tasks):
    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Any:
        answer = await super().create(record, bounds)
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            del self.store._tasks[record.id]
            self.store._tasks[f"{record.id} "] = msgspec.structs.replace(record, id=f"{record.id} ")
            self.store._ids[self.store._numbers[record.id]] = f"{record.id} "
            raise
        return answer


class LosesTheTaskWhenCancelled(Tasks):
    async def replace(self, record: TaskRecord) -> bool:
        current = self.store._tasks[record.id]
        self.store._tasks[record.id] = msgspec.structs.replace(record, message="half")
        await trio.lowlevel.checkpoint()
        self.store._tasks[record.id] = current
        return await super().replace(record)


class StaysLockedWhenCancelled(Tasks):
    locked = False

    async def get(self, ids: Sequence[str]) -> Any:
        if self.locked:
            await trio.sleep_forever()
        self.locked = True
        found = await super().get(ids)
        self.locked = False
        return found


# -- replays
class TakesEveryName(Replays):
    async def first_use(self, name: bytes, seconds: float) -> bool:
        await self.of.reach("replays")
        return True


class NeverFreesNames(Replays):
    async def first_use(self, name: bytes, seconds: float) -> bool:
        return await super().first_use(name, LARGE)


class LooksItUpFirst(Replays):
    async def first_use(self, name: bytes, seconds: float) -> bool:
        known = name in self.of.content.replays._until
        await trio.sleep(0.1)
        await super().first_use(name, seconds)
        return not known


class RemembersAFew(Replays):
    async def first_use(self, name: bytes, seconds: float) -> bool:
        until = self.of.content.replays._until
        while len(until) > 100:
            del until[next(iter(until))]
        return await super().first_use(name, seconds)


# -- values
class ReplacesAnyValue(Values):
    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        return await super().replace(key, await self.load(key), after, seconds)


class ComparesTooEarly(Values):
    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        if await self.load(key) != before:
            return False
        await trio.sleep(0.1)
        while not await super().replace(key, await self.load(key), after, seconds):
            pass
        return True


class KeepsValuesForEver(Values):
    async def replace(self, key: str, before: bytes | None, after: bytes | None, seconds: float) -> bool:
        return await super().replace(key, before, after, LARGE)


# (the fault, what it is put in place of, the check that finds it, the rule that the message names)
FAULTS: list[tuple[type[Any], str, str, str]] = [
    (SaysNothingOfItsReach, "sessions", "states_describe_themselves", subject.DESCRIBED),
    (NamesItAfterItsCount, "node", "nodes_have_names_of_their_own", subject.NODE_NAMES),
    (NeverDies, "node", "lost_nodes_are_gone", subject.NODE_GONE),
    (NeverDies, "node", "sessions_of_a_node_that_ended_are_dead", subject.NODE_GONE),
    (NeverDies, "node", "mailboxes_of_a_node_that_ended_are_gone", subject.NODE_GONE),
    (DiesWithAnother, "node", "lost_nodes_are_gone", subject.NODE_GONE),
    (HangsDuringOutages, "sessions", "unreachable_state_says_so", subject.UNAVAILABLE),
    (AnswersDuringOutages, "sessions", "unreachable_state_says_so", subject.UNAVAILABLE),
    (RaisesWhenItForgets, "sessions", "unreachable_state_says_so", subject.UNAVAILABLE),
    (MixesSessionsUp, "sessions", "registered_sessions_are_found", subject.FOUND),
    (LosesTheOwner, "sessions", "registered_sessions_are_found", subject.FOUND),
    (NeverForgets, "sessions", "forgotten_sessions_are_not_found", subject.FORGOTTEN),
    (KeepsThemToItself, "sessions", "handed_over_sessions_are_taken_once", subject.HANDED_OVER),
    (LetsAllTakeOver, "sessions", "handed_over_sessions_are_taken_once", subject.HANDED_OVER),
    (CutsRecords, "sessions", "handed_over_sessions_are_taken_once", subject.HANDED_OVER),
    (LosesRecordsWithItsNode, "node", "handed_over_sessions_outlive_their_node", subject.HANDED_OVER),
    (KeepsRecordsForEver, "sessions", "handed_over_sessions_are_kept_for_their_time", subject.HANDED_OVER),
    (BeginsStreamsAnew, "events", "streams_go_on_at_another_node", subject.REPLAYED),
    (EndsWhatItLeaves, "events", "streams_go_on_at_another_node", subject.REPLAYED),
    (KeepsWhatAnotherForgets, "events", "streams_go_on_at_another_node", subject.FORGOTTEN_EVENTS),
    (ForgetsItsOwn, "bus", "published_events_are_read_again", subject.PUBLISHED_SINCE),
    (ReadsAllAgain, "bus", "published_events_are_read_again", subject.PUBLISHED_SINCE),
    (TakesOnAfterItIsShut, "bus", "shut_mailboxes_take_nothing_that_begins", subject.SHUT),
    (DropsWhatCameBeforeItWasShut, "bus", "shut_mailboxes_take_nothing_that_begins", subject.SHUT),
    (IsShutBeforeAllIsThere, "bus", "shut_mailboxes_take_nothing_that_begins", subject.SHUT),
    (ForgetsOnlyWithoutOutage, "sessions", "outages_end_by_themselves", subject.FORGOTTEN),
    (LosesSessionsInAFlush, "content", "flushed_state_works_again", subject.FLUSHED),
    (RepeatsIds, "events", "event_ids_are_unique", subject.EVENT_IDS),
    (SkipsAnEvent, "events", "events_are_replayed_exactly", subject.REPLAYED),
    (SkipsAnEvent, "events", "long_streams_have_no_gaps", subject.REPLAYED),
    (KnowsAnyId, "events", "unknown_events_are_not_replayed", subject.UNKNOWN_EVENTS),
    (ReplaysForAnySession, "events", "unknown_events_are_not_replayed", subject.UNKNOWN_EVENTS),
    (KnowsAnyId, "events", "flushed_state_works_again", subject.FLUSHED),
    (DropsWhatEnded, "events", "ended_streams_are_replayed", subject.ENDED_STREAM),
    (KeepsWhatIsForgotten, "events", "forgotten_events_are_not_replayed", subject.FORGOTTEN_EVENTS),
    (ForgetsEverySession, "events", "forgotten_events_are_not_replayed", subject.FORGOTTEN_EVENTS),
    (NeverSaysThatItIsKept, "events", "events_are_replayed_exactly", subject.KEPT),
    (SaysLateThatItIsKept, "events", "events_are_replayed_exactly", subject.KEPT),
    (LosesItsEventsWithItsNode, "node", "events_of_a_node_that_ended_are_replayed", subject.REPLAYED),
    (TellsItself, "bus", "events_reach_every_other_node", subject.PUBLISHED),
    (ChangesKeys, "bus", "events_reach_every_other_node", subject.PUBLISHED),
    (PutsAllThatItIsGiven, "bus", "waiting_events_are_put_once", subject.COALESCED),
    (DropsInSilence, "bus", "lost_events_are_reported", subject.MISSED),
    (DropsInOutages, "bus", "outages_end_by_themselves", subject.MISSED),
    (KeepsSubscribers, "bus", "unsubscribed_functions_are_not_called", subject.UNSUBSCRIBED),
    (SendsTwice, "bus", "messages_arrive_in_order", subject.MESSAGES),
    (SendsToEveryMailbox, "bus", "messages_arrive_in_order", subject.MESSAGES),
    (CutsMessages, "bus", "messages_arrive_in_order", subject.MESSAGES),
    (SaysThatAllAreThere, "bus", "closed_mailboxes_get_nothing", subject.MAILBOXES),
    (LosesTheMessage, "tasks", "created_tasks_are_read_everywhere", subject.CREATED),
    (HasNoBounds, "tasks", "bounds_are_kept", subject.BOUNDS),
    (MixesBoundsUp, "tasks", "bounds_are_kept", subject.BOUNDS),
    (LooksBeforeItWaits, "tasks", "bounds_are_kept_at_once", subject.BOUNDS),
    (CountsNoResults, "tasks", "results_count_against_bounds", subject.BOUNDS),
    (ReplacesAnyRevision, "tasks", "only_the_next_value_is_kept", subject.COMPARED),
    (ComparesBeforeItWaits, "tasks", "one_of_several_values_wins", subject.COMPARED),
    (ReplacesTheLast, "tasks", "terminal_values_are_the_last", subject.LAST_VALUE),
    (KeepsForEver, "tasks", "tasks_live_for_their_time", subject.EXPIRED),
    (PagesBackwards, "tasks", "pages_are_whole", subject.PAGES),
    (PagesOfAll, "tasks", "pages_are_whole", subject.PAGES),
    (ForgetsPlacesOfDroppedTasks, "tasks", "pages_survive_dropped_tasks", subject.PAGES),
    (AbandonsNothing, "tasks", "tasks_of_a_node_that_ended_are_abandoned", subject.ABANDONED),
    (AbandonsNothing, "tasks", "tasks_of_a_lost_node_are_abandoned", subject.ABANDONED),
    (AbandonsWhatEnded, "tasks", "tasks_of_a_lost_node_are_abandoned", subject.ABANDONED),
    (AbandonsTasksOfOthers, "tasks", "tasks_of_a_node_that_ended_are_abandoned", subject.ABANDONED),
    (SurvivesInItsWordsOnly, "node", "tasks_survive_their_processes", subject.SURVIVES),
    (HalfCreatesWhenCancelled, "tasks", "cancelled_creations_leave_a_task_or_none", subject.CANCELLED),
    (LosesTheTaskWhenCancelled, "tasks", "cancelled_replacements_leave_one_value", subject.CANCELLED),
    (StaysLockedWhenCancelled, "tasks", "cancelled_calls_disturb_nothing", subject.CANCELLED),
    (TakesEveryName, "replays", "names_are_used_once", subject.USED_ONCE),
    (LooksItUpFirst, "replays", "names_are_used_once", subject.USED_ONCE),
    (NeverFreesNames, "replays", "names_are_free_after_their_time", subject.USED_ONCE),
    (RemembersAFew, "replays", "many_names_are_remembered", subject.USED_ONCE),
    (TakesEveryName, "replays", "cancelled_uses_are_first_uses_or_none", subject.CANCELLED),
    (ReplacesAnyValue, "values", "values_are_compared", subject.VALUES),
    (ComparesTooEarly, "values", "values_are_compared", subject.VALUES),
    (KeepsValuesForEver, "values", "values_end_with_their_time", subject.VALUES_END),
    (SharesBetweenServers, "place", "servers_share_nothing", subject.NAMES_APART),
    (OpensDuringOutages, "place", "unreachable_state_says_so", subject.OPENED),
    (LosesMailboxesInOutages, "place", "outages_end_by_themselves", subject.REACHED),
]


def place_with(fault: type[Any] | None, part: str) -> Place:
    if fault is None:
        return Place()
    return fault() if part == "place" else Place(**{part: fault})


async def check(fault: type[Any] | None, part: str, **options: Any) -> Any:
    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        yield place_with(fault, part).subject()

    return await check_shared_state(make, many=500, **options)


async def test_what_is_right_passes_every_check(autojump_clock: trio.testing.MockClock) -> None:
    report = await check(None, "")
    assert report.skipped == ()


class Slow(Node):
    """A node for which what is kept for a short time is over before anyone has looked at it."""

    async def reach(self, role: str) -> None:
        await super().reach(role)
        await trio.sleep(0.6)


async def test_what_is_slow_is_not_wrong(autojump_clock: trio.testing.MockClock) -> None:
    """What ends with its time may have ended when a busy machine looks at it."""
    ending = [
        "handed_over_sessions_are_kept_for_their_time",
        "pages_survive_dropped_tasks",
        "tasks_live_for_their_time",
        "names_are_free_after_their_time",
        "values_end_with_their_time",
    ]
    report = await check(Slow, "node", only=ending)
    assert sorted(report.passed) == sorted(ending)


@pytest.mark.parametrize(("fault", "part", "name", "rule"), FAULTS)
async def test_a_fault_is_found(
    fault: type[Any], part: str, name: str, rule: str, autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(SharedStateBreach) as raised:
        await check(fault, part, only=[name])
    assert (raised.value.check, raised.value.rule) == (name, rule)
    assert rule in str(raised.value)
    assert f"only=['{name}']" in str(raised.value)


def test_every_rule_has_a_fault_that_breaks_it() -> None:
    assert {rule for _, _, _, rule in FAULTS} == {
        rule
        for name in set(subject.__all__) - {"NAME"}
        if name.isupper() and isinstance(rule := getattr(subject, name), str)
    }
