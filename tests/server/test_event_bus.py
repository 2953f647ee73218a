"""The bus: nobody waits, nothing grows, and the last event is never lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors._actors.event_bus import EventBus, Subscription, levels, uris_above
from mcp_actors._actors.limits import Budgets, Limits
from mcp_actors._eras.era import Event, EventKind
from mcp_actors._wire.uri_template import LONGEST_URI
from mcp_actors.abc import Bus
from mcp_actors.errors import LocalProtocolError, Overloaded, RpcError
from mcp_actors.supervision.budget import Account, Budget
from mcp_actors.types import SubscriptionFilter


@attrs.frozen
class Wanted:
    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: Sequence[str] | None = None


def updated(uri: str) -> Event:
    return Event("resource_updated", uri)


async def test_only_what_was_asked_for_arrives_oldest_first() -> None:
    bus = EventBus()
    with bus.subscribe(Wanted(tools_list_changed=True, resource_subscriptions=["a://1"])) as subscription:
        bus.publish("resource_updated", "a://1")
        bus.publish("prompts")
        bus.publish("resource_updated", "a://2")
        bus.publish("tools")
        assert await subscription.receive_many() == [updated("a://1"), Event("tools")]
        assert subscription.take() == []


async def test_the_same_event_waits_once() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resources_list_changed=True, resource_subscriptions=["a://1"]))
    for _ in range(1000):
        bus.publish("resources")
        bus.publish("resource_updated", "a://1")
    assert subscription.statistics().pending == 2
    assert subscription.statistics().coalesced == 1998
    assert await subscription.receive_many() == [Event("resources"), updated("a://1")]
    bus.publish("resources")
    assert await subscription.receive_many() == [Event("resources")]
    assert subscription.statistics().delivered == 3


async def test_a_waiting_reader_is_woken_and_cancelling_it_loses_nothing(autojump_clock: object) -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(tools_list_changed=True))
    with trio.move_on_after(1) as scope:
        await subscription.receive_many()
    assert scope.cancelled_caught
    received: list[Event] = []

    async def read() -> None:
        received.extend(await subscription.receive_many())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert subscription.statistics().waiting
        bus.publish("tools")
    assert received == [Event("tools")]
    bus.publish("tools")
    with trio.CancelScope() as scope:
        scope.cancel()
        await subscription.receive_many()
    assert scope.cancelled_caught
    assert subscription.take() == [Event("tools")]


async def test_an_event_taken_back_before_the_reader_ran_lets_it_wait_on(autojump_clock: object) -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["a://1", "a://2"]))
    received: list[Event] = []

    async def read() -> None:
        received.extend(await subscription.receive_many())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        bus.publish("resource_updated", "a://1")
        subscription.discard_uri("a://1")
        await trio.testing.wait_all_tasks_blocked()
        assert received == []
        bus.publish("resource_updated", "a://2")
    assert received == [updated("a://2")]


async def test_two_tasks_cannot_receive_at_once() -> None:
    subscription = EventBus().subscribe(Wanted(tools_list_changed=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.receive_many)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await subscription.receive_many()
        nursery.cancel_scope.cancel()


async def test_a_subscriber_without_a_task_is_called_once_until_it_has_taken() -> None:
    bus = EventBus()
    calls: list[int] = []
    subscription = bus.subscribe(
        Wanted(tools_list_changed=True, prompts_list_changed=True), on_pending=lambda: calls.append(1)
    )
    bus.publish("tools")
    bus.publish("prompts")
    assert len(calls) == 1
    assert subscription.take() == [Event("tools"), Event("prompts")]
    bus.publish("tools")
    assert len(calls) == 2


async def test_a_subscribed_uri_covers_what_lies_below_it_and_nothing_else() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["file:///a", "file:///dir/"]))
    for uri in ("file:///ab", "file:///", "file:///dir", "file://"):
        bus.publish("resource_updated", uri)
    assert subscription.take() == []
    for uri in ("file:///a/b.txt", "file:///dir/c"):
        bus.publish("resource_updated", uri)
    assert subscription.take() == [updated("file:///a/b.txt"), updated("file:///dir/c")]


async def test_several_updates_below_one_subscribed_uri_become_its_own() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["file:///a"]))
    for number in range(1000):
        bus.publish("resource_updated", f"file:///a/{number}")
    assert subscription.take() == [updated("file:///a")]


async def test_an_event_for_several_resources_outlives_the_uri_that_they_lie_below() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["a:"]))
    bus.publish("resource_updated", "a:")
    bus.publish("resource_updated", "a:/1")
    subscription.add_uri("a:/1")
    subscription.add_uri("b:")
    subscription.discard_uri("a:")
    assert subscription.take() == [updated("a:/1")]


async def test_a_subscriber_to_a_uri_and_one_above_it_hears_of_it_once() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["file:///a", "file:///a/b"]))
    bus.publish("resource_updated", "file:///a/b")
    bus.publish("resource_updated", "file:///a/b/c")
    assert subscription.take() == [updated("file:///a/b")]


async def test_giving_up_a_uri_leaves_its_event_to_the_one_above_it() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["file:///a", "file:///a/b"]))
    bus.publish("resource_updated", "file:///a/b/c")
    subscription.discard_uri("file:///a/b")
    assert subscription.take() == [updated("file:///a/b/c")]


@given(uri=st.text("a/", max_size=8), subscribed=st.sets(st.text("a/", max_size=8), max_size=12))
def test_both_ways_to_find_who_covers_a_uri_agree(uri: str, subscribed: set[str]) -> None:
    index = dict.fromkeys(subscribed)
    more = {**index, **{f"other:{number}": None for number in range(40)}}
    expected = [each for each in levels(uri) if each in index]
    assert list(uris_above(uri, index)) == expected
    assert list(uris_above(uri, more)) == expected


async def test_endless_slashes_cost_nothing_special() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["a:"]))
    bus.publish("resource_updated", "a:" + "/" * 2_000_000)
    assert subscription.statistics().pending == 1


async def test_the_hooks_see_the_first_and_the_last_of_each_uri() -> None:
    seen: list[str] = []
    bus = EventBus(
        on_first_subscriber=lambda uri: seen.append(f"+{uri}"),
        on_last_unsubscribed=lambda uri: seen.append(f"-{uri}"),
    )
    one = bus.subscribe(Wanted(resource_subscriptions=["a:1", "a:1"]))
    two = bus.subscribe(Wanted(resource_subscriptions=["a:1", "a:2"]))
    two.add_uri("a:2")
    one.close()
    assert seen == ["+a:1", "+a:2"]
    two.discard_uri("a:2")
    two.discard_uri("a:2")
    two.close()
    two.close()
    assert seen == ["+a:1", "+a:2", "-a:2", "-a:1"]
    assert bus.statistics().uris == 0


async def test_a_hook_that_refuses_leaves_nothing_subscribed() -> None:
    bus = EventBus()
    gone: list[str] = []

    def refuse(uri: str) -> None:
        if uri == "a:2":
            raise RpcError(1, "no")

    bus.on_first_subscriber = refuse
    bus.on_last_unsubscribed = gone.append
    with pytest.raises(RpcError, match="no"):
        bus.subscribe(Wanted(tools_list_changed=True, resource_subscriptions=["a:1", "a:2"]))
    assert bus.statistics().subscriptions == 0
    assert bus.statistics().uris == 0
    assert gone == ["a:1"]
    bus.publish("tools")


async def test_a_hook_that_refuses_takes_back_what_was_charged() -> None:
    bus = EventBus()
    account = Account(Budget(1000), "peer")
    subscription = bus.subscribe(Wanted(resource_subscriptions=["a:1"]), account=account)
    held = account.held

    def refuse(uri: str) -> None:
        raise RpcError(1, "no")

    bus.on_first_subscriber = refuse
    with pytest.raises(RpcError, match="no"):
        subscription.add_uri("a:" + "2" * 100)
    assert account.held == held
    subscription.close()
    assert account.held == 0


async def test_a_failing_unsubscribe_hook_does_not_keep_a_subscription_alive() -> None:
    bus = EventBus()

    def fail(uri: str) -> None:
        raise RuntimeError(uri)

    bus.on_last_unsubscribed = fail
    subscription = bus.subscribe(Wanted(resource_subscriptions=["a:1", "a:2"]))
    subscription.close()
    assert bus.statistics().uris == 0


async def test_one_subscriber_may_not_hold_more_than_its_share_of_uris() -> None:
    bus = EventBus(max_uris=2)
    subscription = bus.subscribe(Wanted(resource_subscriptions=["a:1", "a:2"]))
    with pytest.raises(RpcError, match="at most 2") as caught:
        subscription.add_uri("a:3")
    assert caught.value.code == -32602
    subscription.discard_uri("a:1")
    subscription.add_uri("a:3")
    assert subscription.uris == ("a:2", "a:3")


async def test_closing_a_subscription_ends_its_reader_and_drops_what_waits() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(tools_list_changed=True))

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await subscription.receive_many()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        subscription.close()
    bus.publish("tools")
    assert subscription.take() == []
    with pytest.raises(LocalProtocolError):
        subscription.add_uri("a:1")


async def test_closing_the_bus_lets_readers_drain_first() -> None:
    bus = EventBus()
    full = bus.subscribe(Wanted(resource_subscriptions=["a:1"]))
    empty = bus.subscribe(Wanted(tools_list_changed=True))

    async def read() -> None:
        with pytest.raises(trio.EndOfChannel):
            await empty.receive_many()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        bus.publish("resource_updated", "a:1")
        bus.close()
        bus.close()
    assert await full.receive_many() == [updated("a:1")]
    with pytest.raises(trio.EndOfChannel):
        await full.receive_many()
    full.close()
    with pytest.raises(trio.ClosedResourceError):
        await full.receive_many()


async def test_a_subscriber_closed_by_the_callback_of_another_gets_nothing() -> None:
    bus = EventBus()
    victims: list[Subscription] = []
    bus.subscribe(Wanted(tools_list_changed=True), on_pending=lambda: victims[0].close())
    victims.append(bus.subscribe(Wanted(tools_list_changed=True)))
    bus.publish("tools")
    assert victims[0].take() == []


async def test_publishing_from_a_worker_thread_reaches_the_reader() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(resource_subscriptions=["a:1"]))
    received: list[Event] = []

    async def read() -> None:
        received.extend(await subscription.receive_many())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(bus.publish, "resource_updated", "a:1")
    assert received == [updated("a:1")]


def test_publishing_with_no_loop_at_all_is_harmless_before_and_after_one() -> None:
    bus = EventBus()
    bus.publish("tools")

    async def main() -> None:
        bus.subscribe(Wanted(tools_list_changed=True))
        await trio.to_thread.run_sync(bus.publish, "tools")

    trio.run(main)
    bus.publish("tools")
    assert bus.statistics().published >= 2


@pytest.mark.parametrize(("kind", "uri"), [("resource_updated", None), ("tools", "a:1"), ("prompt", None)])
def test_an_event_that_does_not_exist_is_refused(kind: EventKind, uri: str | None) -> None:
    with pytest.raises(LocalProtocolError, match="no such event"):
        EventBus().publish(kind, uri)


async def test_statistics_show_the_state() -> None:
    bus = EventBus()
    subscription = bus.subscribe(Wanted(tools_list_changed=True, resource_subscriptions=["a:1"]))
    bus.publish("tools")
    found = bus.statistics()
    assert (found.subscriptions, found.uris, found.pending) == (1, 1, 1)
    subscription.close()
    found = bus.statistics()
    assert (found.subscriptions, found.uris, found.pending) == (0, 0, 0)


URIS = ["a:", "a:/1", "a:/1/x", "a:/1/y", "a:/2", "b:"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(URIS)),
        st.tuples(st.just("list"), st.sampled_from(["tools", "prompts", "resources"])),
        st.tuples(st.just("add"), st.sampled_from(URIS)),
        st.tuples(st.just("discard"), st.sampled_from(URIS)),
        st.tuples(st.just("take"), st.none()),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_the_last_event_is_never_lost_and_the_mailbox_stays_bounded(steps: list[tuple[str, str]]) -> None:
    async def main() -> None:
        bus = EventBus()
        subscription = bus.subscribe(Wanted(tools_list_changed=True, resources_list_changed=True))
        # What changed since the last take: each must be told by an event for itself or for a uri above it.
        stale: set[tuple[str, str | None]] = set()
        for verb, what in steps:
            if verb == "publish":
                bus.publish("resource_updated", what)
                if any(each in subscription.uris for each in levels(what)):
                    stale.add(("resource_updated", what))
            elif verb == "list":
                bus.publish(what)  # type: ignore[arg-type]
                if what != "prompts":
                    stale.add((what, None))
            elif verb == "add":
                subscription.add_uri(what)
            elif verb == "discard":
                subscription.discard_uri(what)
                stale = {(k, u) for k, u in stale if u is None or set(levels(u)) & set(subscription.uris)}
            else:
                stale = _tell(subscription, stale)
                assert not stale
            assert subscription.statistics().pending <= len(subscription.uris) + 2
        assert not _tell(subscription, stale)

    trio.run(main)


def _tell(subscription: Subscription, stale: set[tuple[str, str | None]]) -> set[tuple[str, str | None]]:
    for event in subscription.take():
        stale = {
            (kind, uri)
            for kind, uri in stale
            if kind != event.kind or (uri is not None and event.uri not in set(levels(uri)))
        }
    return stale


# -- The keys of extensions on the bus: subscribed to one by one, coalesced, bounded, and charged --------


def subscribe(bus: EventBus, *keys: str, account: Account | None = None) -> Subscription:
    subscription = bus.subscribe(SubscriptionFilter(), account=account)
    for key in keys:
        subscription.add_key("t", key)
    return subscription


async def test_only_the_keys_that_were_subscribed_to_are_pending_each_once() -> None:
    bus = EventBus()
    subscription = subscribe(bus, "a", "b")
    for topic, key in [("t", "a"), ("t", "b"), ("t", "a"), ("t", "c"), ("u", "a"), ("t", "a/b")]:
        bus.publish_key(topic, key)
    assert await subscription.receive_many() == []
    assert subscription.take_keys() == [("t", "a"), ("t", "b")]
    assert subscription.take_keys() == []


async def test_a_key_wakes_whoever_waits() -> None:
    bus = EventBus()
    subscription = subscribe(bus, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscription.receive_many)
        await trio.testing.wait_all_tasks_blocked()
        assert subscription.statistics().waiting
        bus.publish_key("t", "a")
    assert subscription.take_keys() == [("t", "a")]


async def test_a_key_that_was_given_back_is_not_heard_of() -> None:
    bus = EventBus()
    subscription = subscribe(bus, "a", "b")
    bus.publish_key("t", "a")
    subscription.discard_key("t", "a")
    subscription.discard_key("t", "never subscribed")
    bus.publish_key("t", "a")
    assert subscription.take_keys() == []
    assert bus.subscribed_keys("t") == ["b"]


@pytest.mark.parametrize("ending", [Subscription.end, Subscription.close])
async def test_nothing_is_left_of_a_subscription_that_ended(ending: object) -> None:
    bus = EventBus()
    subscription = subscribe(bus, "a")
    assert callable(ending)
    ending(subscription)
    bus.publish_key("t", "a")
    assert bus.subscribed_keys("t") == []
    assert subscription.take_keys() == []
    with pytest.raises(LocalProtocolError, match="ended"):
        subscription.add_key("t", "b")


async def test_keys_and_uris_share_one_bound() -> None:
    bus = EventBus(max_uris=2)
    subscription = subscribe(bus, "a")
    subscription.add_uri("x://a")
    subscription.add_key("t", "a")
    with pytest.raises(RpcError, match="too many"):
        subscription.add_key("t", "b")
    with pytest.raises(RpcError, match="too many"):
        subscription.add_uri("x://b")
    subscription.discard_key("t", "a")
    subscription.add_key("t", "b")
    assert bus.subscribed_keys("t") == ["b"]


async def test_a_long_key_is_refused() -> None:
    with pytest.raises(RpcError, match="characters"):
        subscribe(EventBus(), "x" * (LONGEST_URI + 1))


async def test_keys_are_charged_and_given_back() -> None:
    budgets = Budgets(Limits(kept_bytes=100, server_kept_bytes=1000))
    account = Account(budgets.kept, "peer")
    bus = EventBus()
    subscription = subscribe(bus, "x" * 60, account=account)
    with pytest.raises(Overloaded):
        subscription.add_key("t", "y" * 60)
    subscription.discard_key("t", "x" * 60)
    subscription.add_key("t", "y" * 60)
    subscription.close()
    assert account.held == 0


async def test_a_thread_that_publishes_is_not_waited_for() -> None:
    bus = EventBus()
    subscription = subscribe(bus, "a")
    await trio.to_thread.run_sync(bus.publish_key, "t", "a")
    await subscription.receive_many()
    assert subscription.take_keys() == [("t", "a")]


async def test_every_kind_counts_as_changed_when_another_node_may_have_said_so() -> None:
    bus, missed = EventBus(), list[Callable[[], None]]()

    class Elsewhere:
        """A bus that tells when events were lost."""

        def subscribe(self, take: Callable[[str, str], None], lost: Callable[[], None]) -> Callable[[], None]:
            missed.append(lost)
            return missed.clear

    detach = bus.attach(cast(Bus, Elsewhere()))
    before = dict(bus.changes)
    missed[0]()
    assert bus.changes == {kind: count + 1 for kind, count in before.items()}
    detach()
    assert missed == []
