"""The keys of extensions on the bus: subscribed to one by one, coalesced, bounded, and charged."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import trio
import trio.testing

from mcp_actors._actors.event_bus import EventBus, Subscription
from mcp_actors._actors.limits import Budgets, Limits
from mcp_actors._wire.uri_template import LONGEST_URI
from mcp_actors.abc import Bus
from mcp_actors.errors import LocalProtocolError, Overloaded, RpcError
from mcp_actors.supervision.budget import Account
from mcp_actors.types import SubscriptionFilter


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
