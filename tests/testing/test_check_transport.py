"""The kit on bindings that keep the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors.testing import TransportBreach, check_transport
from mcp_actors.testing.conformance import rules
from mcp_transports.http.client import HttpClientTransport
from mcp_transports.http.server import HttpServerTransport
from mcp_transports.memory import MemoryTransport

from . import faulty_media as faults
from .faulty_media import Planted
from .media import ENDS_TO_END, ERAS, LINKS, close_one_way, memory, pipes, reset, send_eof, stdio, tcp

pytestmark = pytest.mark.slow
# Seconds that the kit gives a step and a check where time is real: a busy machine needs more than its defaults.
PATIENT: dict[str, Any] = {"patience": 60, "timeout": 240}


async def test_memory_under_virtual_time(autojump_clock: trio.testing.MockClock) -> None:
    report = await check_transport(memory, senders_at_once=True)
    assert len(report.passed) == LINKS + 1 + 2 * ENDS_TO_END
    assert dict(report.skipped) == {
        "a_half_closed_peer_still_reads": "half_close was not given",
        "breakage_is_no_clean_end": "break_off was not given",
    }
    assert "frames_arrive_in_order" in report.passed
    assert "load_changes_nothing[modern]" in report.passed


async def test_memory_under_the_real_clock() -> None:
    report = await check_transport(memory, quiet=0.01, **PATIENT)
    assert len(report.passed) == LINKS + 2 * ENDS_TO_END


async def test_pipes() -> None:
    report = await check_transport(pipes, half_close=close_one_way, quiet=0.02, **PATIENT)
    assert len(report.passed) == LINKS + 1 + 2 * ENDS_TO_END


@pytest.mark.long
async def test_child_processes() -> None:
    report = await check_transport(stdio, connections=3, quiet=0.05, eras=ERAS, **PATIENT)
    assert len(report.passed) == LINKS + len(ERAS) * ENDS_TO_END


async def test_sockets() -> None:
    report = await check_transport(tcp, half_close=send_eof, break_off=reset, quiet=0.02, **PATIENT)
    assert len(report.passed) == LINKS + 2 + 2 * ENDS_TO_END


async def test_an_exchange_binding() -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        yield HttpServerTransport("http://127.0.0.1:0/mcp"), HttpClientTransport

    report = await check_transport(maker, exchange=True, quiet=0.02, **PATIENT)
    assert len(report.passed) == 1 + 2 * ENDS_TO_END
    assert dict(report.skipped)["frames_arrive_in_order"].startswith("an exchange binding has no channel")


async def test_an_exchange_binding_must_be_called_one() -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        yield HttpServerTransport("http://127.0.0.1:0/mcp"), HttpClientTransport

    with pytest.raises(AssertionError, match="if this is an exchange binding, say exchange=True"):
        await check_transport(maker, patience=2, only=["frames_arrive_in_order"])


async def test_a_medium_for_one_connection(autojump_clock: trio.testing.MockClock) -> None:
    report = await check_transport(memory, connections=1, eras=["modern"])
    assert ("many_connections_stand_alone", "connections=1") in report.skipped
    assert len(report.passed) == LINKS - 2 + ENDS_TO_END


async def test_only_some_checks() -> None:
    report = await check_transport(memory, only=["frames_arrive_in_order"])
    assert report.passed == ("frames_arrive_in_order",)
    assert ("large_frames_arrive", "not asked for") in report.skipped
    with pytest.raises(ValueError, match="no such checks: flies"):
        await check_transport(memory, only=["flies"])


# -- The kit is red for every rule that is broken, and names the rule ------------------------------------

# (the fault, the check that finds it, the rule that the message names)
CHANNELS: list[tuple[type[faults.Passing], str, str]] = [
    (faults.DropsEveryTenth, "frames_arrive_in_order", rules.NO_LOSS),
    (faults.SendsTwice, "frames_arrive_in_order", rules.NO_DUPLICATION),
    (faults.SendsBurstsBackwards, "frames_arrive_in_order", rules.ORDER),
    (faults.ChangesText, "frames_arrive_unchanged", rules.WHOLE),
    (faults.SwallowsTheEnd, "what_was_sent_arrives_before_the_end", rules.CLEAN_END),
    (faults.EndsOnce, "what_was_sent_arrives_before_the_end", rules.CLEAN_END),
    (faults.BreaksAtACleanEnd, "what_was_sent_arrives_before_the_end", rules.CLEAN_END),
    (faults.RaisesOSError, "what_was_sent_arrives_before_the_end", rules.ENDINGS),
    (faults.DropsWhatIsUnderWay, "what_was_sent_arrives_before_the_end", rules.DELIVERED),
    (faults.ClosesOnlyOnce, "a_closed_channel_says_so", rules.CLOSING),
    (faults.HangsWhenClosedAgain, "a_closed_channel_says_so", rules.CLOSING),
    (faults.NeverWakesItsReceiver, "closing_wakes_who_waits", rules.CLOSING),
    (faults.LosesWhenCancelled, "cancelled_receives_lose_nothing", rules.CANCELLED_RECEIVE),
    (faults.TakesAFloodAtOnce, "a_flood_leaves_others_their_turn", rules.TURNS),
    (faults.CarriesAnything, "longer_frames_are_refused", rules.LIMIT),
    (faults.LosesLongFrames, "longer_frames_are_refused", rules.LIMIT),
    (faults.SaysThatItWrote, "writing_at_once_keeps_its_promise", rules.NO_LOSS),
    (faults.DeliversPastTheQueue, "deliveries_keep_the_order", rules.ORDER),
    (faults.TakesWhenClosed, "handing_over_keeps_its_promise", rules.HAND_OVER),
]
END_TO_END: list[tuple[type[faults.Passing], str, str]] = [
    (faults.DropsEveryTenth, "calls_do_not_wait_for_each_other[modern]", rules.CALLS),
    (faults.ForgetsCancellations, "cancellation_reaches_the_handler[legacy]", rules.CANCELLED_CALL),
    (faults.AnswersBeforeProgress, "progress_comes_before_the_answer[modern]", rules.PROGRESS),
    (faults.ForgetsProgress, "silent_calls_are_reported_for[legacy]", rules.PROGRESS),
    (faults.ForgetsChanges, "changes_arrive[legacy]", rules.CHANGES),
    (faults.ForgetsQuestions, "questions_reach_the_client[legacy]", rules.QUESTIONS),
    (faults.LosesWhenCancelled, "calls_survive_cancelled_receives[modern]", rules.CANCELLED_RECEIVE),
    (faults.SwallowsTheEnd, "calls_fail_when_the_server_ends[legacy]", rules.SERVER_GONE),
    (faults.KeepsWhatItCarried, "ended_calls_keep_nothing[modern]", rules.NOTHING_KEPT),
    (faults.SubscribesOnce, "subscriptions_can_be_entered_again[legacy]", rules.CHANGES),
    (faults.NeverWakesItsReceiver, "a_closed_client_channel_says_so", rules.CLOSING),
]
TRANSPORTS: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: MemoryTransport(max_buffer=100_000), "a_peer_that_does_not_read_is_waited_for", rules.PRESSURE),
    (faults.ToldTooEarly, "connections_are_accepted_once_started", rules.ACCEPTING),
    (faults.NeverTold, "connections_are_accepted_once_started", rules.ACCEPTING),
    (faults.LeavesHandlersRunning, "cancelled_serve_closes_everything", rules.SERVE_CANCELLED),
    (faults.LeavesATask, "nothing_is_left_behind", rules.NO_TASK_LEFT),
    (faults.EndedByVisitors, "visitors_end_nothing[modern]", rules.ISOLATION),
    (faults.OneAtATime, "many_connections_stand_alone", rules.NO_LOSS),
    (
        faults.TwoPieces,
        "cancelled_sends_tear_nothing",
        rules.CANCELLED_SEND,
    ),
]


async def breach_of(make: Callable[[], Any], **options: Any) -> TransportBreach:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        transport = make()
        yield transport, lambda where: transport

    with pytest.raises(TransportBreach) as raised:
        await check_transport(maker, **options)
    return raised.value


@pytest.mark.parametrize(
    ("fault", "check", "rule"), CHANNELS, ids=lambda value: getattr(value, "__name__", "")
)
async def test_a_faulty_channel_is_found(
    fault: type[faults.Passing], check: str, rule: str, autojump_clock: trio.testing.MockClock
) -> None:
    breach = await breach_of(lambda: Planted(fault), only=[check])
    assert (breach.check, breach.rule) == (check, rule)
    assert rule in str(breach)
    assert f"only=['{check}']" in str(breach)


@pytest.mark.parametrize(("make", "check", "rule"), TRANSPORTS)
async def test_a_faulty_transport_is_found(
    make: Callable[[], Any], check: str, rule: str, autojump_clock: trio.testing.MockClock
) -> None:
    breach = await breach_of(make, only=[check])
    assert (breach.check, breach.rule) == (check, rule)


@pytest.mark.parametrize("fault", [each for each, _, _ in CHANNELS], ids=lambda each: each.__name__)
async def test_a_faulty_channel_does_not_pass(
    fault: type[faults.Passing], autojump_clock: trio.testing.MockClock
) -> None:
    breach = await breach_of(lambda: Planted(fault), eras=())
    assert breach.rule in vars(rules).values()


async def test_a_clean_end_is_no_breakage(autojump_clock: trio.testing.MockClock) -> None:
    """A medium that is broken off and tells its peer of an ordinary end."""
    breach = await breach_of(MemoryTransport, break_off=lambda channel: channel.aclose())
    assert (breach.check, breach.rule) == ("breakage_is_no_clean_end", rules.BREAKAGE)


async def test_a_half_close_that_closes_everything(autojump_clock: trio.testing.MockClock) -> None:
    breach = await breach_of(MemoryTransport, half_close=lambda channel: channel.aclose())
    assert breach.check == "a_half_closed_peer_still_reads"


async def test_senders_at_once_that_exclude_each_other() -> None:
    """What the pipes of stdio do not promise, and no engine needs."""
    with pytest.raises(TransportBreach) as raised:
        await check_transport(pipes, senders_at_once=True, only=["senders_at_once"])
    assert raised.value.rule in (rules.ENDINGS, rules.WHOLE)


async def test_the_soil_is_good(autojump_clock: trio.testing.MockClock) -> None:
    @asynccontextmanager
    async def maker() -> AsyncIterator[tuple[Any, Any]]:
        transport = Planted(faults.Passing)
        yield transport, lambda where: transport

    report = await check_transport(maker)
    assert len(report.passed) == LINKS + 2 * ENDS_TO_END


async def test_a_fault_is_found_under_the_real_clock() -> None:
    breach = await breach_of(lambda: Planted(faults.SendsTwice), only=["frames_arrive_in_order"], quiet=0.02)
    assert breach.rule == rules.NO_DUPLICATION


async def test_a_step_that_does_not_end_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    breach = await breach_of(
        lambda: Planted(faults.SwallowsTheEnd), only=["what_was_sent_arrives_before_the_end"], patience=1.0
    )
    assert breach.rule == rules.CLEAN_END
    assert "(within 1 s)" in breach.seen
