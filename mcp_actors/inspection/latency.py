"""The speed of a server: one request after the other, and several at once. Bounded in number and in time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import trio

from mcp_actors.errors import McpError
from mcp_actors.inspection.conversation import request_message, same_id
from mcp_actors.inspection.inspected import SpokenEra
from mcp_actors.inspection.stream_conversation import StreamConversation
from mcp_actors.supervision import start
from mcp_actors.task_kinds import INSPECTION_REQUEST

__all__ = ["Latency", "measure"]

# Requests one after the other, and seconds for them.
ALONE, ALONE_TIME = 30, 3.0
# Requests for each that is in flight at once, and seconds for all of them.
ROUNDS, TOGETHER_TIME = 12, 5.0
# The share of the bytes of an inspection that each measurement may use, of which there are at most eight: the rules
# come afterwards, and need the rest.
SHARE = 32


@attrs.frozen(kw_only=True)
class Latency:
    """The speed at which one method was answered."""

    method: str
    in_flight: int
    """Requests that were in flight at once."""
    answered: int
    failed: int
    """Requests that were refused or not answered."""
    median_ms: float
    p99_ms: float
    """The 99th percentile, in milliseconds: of fewer than a hundred requests, the slowest."""
    per_second: float


async def measure(spoken: SpokenEra, in_flight: int) -> list[Latency]:
    """Measures the cheapest request, and the list of tools where there is one.

    Args:
        spoken: The era that is measured.
        in_flight: How many requests are sent at once, beside the measurement with one.

    Raises:
        InspectionEnded: A bound of the inspection was reached.
    """
    methods = [spoken.era.client.ping_method]
    methods += ["tools/list"] if spoken.declares("tools") else []
    found = []
    record = spoken.server.record
    for method in methods:
        before = record.bytes
        alone = await _one_by_one(spoken, method)
        found.append(alone)
        # Long answers are not asked for at once: what is on the way cannot be taken back.
        if (
            in_flight > 1
            and alone.answered
            and (record.bytes - before) // alone.answered * in_flight <= _room(spoken)
        ):
            found.append(await _together(spoken, method, in_flight))
    return found


def _room(spoken: SpokenEra) -> int:
    return spoken.server.record.bounds.total_bytes // SHARE


def _summary(method: str, in_flight: int, seconds: Sequence[float], failed: int, total: float) -> Latency:
    ordered = sorted(seconds)
    rank = max(0, math.ceil(0.99 * len(ordered)) - 1)
    return Latency(
        method=method,
        in_flight=in_flight,
        answered=len(ordered),
        failed=failed,
        median_ms=round(1000 * ordered[len(ordered) // 2], 3) if ordered else 0.0,
        p99_ms=round(1000 * ordered[rank], 3) if ordered else 0.0,
        per_second=round(len(ordered) / total, 1) if total > 0 else 0.0,
    )


async def _one_by_one(spoken: SpokenEra, method: str) -> Latency:
    seconds: list[float] = []
    failed = 0
    record = spoken.server.record
    began, most = trio.current_time(), record.bytes + _room(spoken)
    while len(seconds) + failed < ALONE and trio.current_time() - began < ALONE_TIME and record.bytes <= most:
        answer = await spoken.conversation.ask(method, keep=False)
        if answer.result is None:
            failed += 1
            if answer.gone is not None:
                break
        else:
            seconds.append(answer.seconds)
    return _summary(method, 1, seconds, failed, trio.current_time() - began)


async def _together(spoken: SpokenEra, method: str, in_flight: int) -> Latency:
    began = trio.current_time()
    if isinstance(spoken.conversation, StreamConversation):
        seconds, failed = await _over_channel(spoken, spoken.conversation, method, in_flight)
    else:
        seconds, failed = await _over_http(spoken, method, in_flight)
    return _summary(method, in_flight, seconds, failed, trio.current_time() - began)


async def _over_channel(
    spoken: SpokenEra, conversation: StreamConversation, method: str, in_flight: int
) -> tuple[list[float], int]:
    """Keeps ``in_flight`` requests on the way, in one task: each answer lets the next request go."""
    sent: dict[int | str, float] = {}
    seconds: list[float] = []
    failed, left = 0, in_flight * ROUNDS

    async def send_one() -> None:
        nonlocal left
        left -= 1
        id = spoken.server.record.next_id()
        sent[id] = trio.current_time()
        await conversation.send_message(request_message(spoken.era, id, method, {}, None), method, id)

    record = spoken.server.record
    deadline, most = trio.current_time() + TOGETHER_TIME, record.bytes + _room(spoken)
    for _ in range(in_flight):
        await send_one()
    while sent and not conversation.has_ended:
        messages = await conversation.next_messages(deadline)
        if not messages and trio.current_time() >= deadline + record.bounds.answer_time:
            break
        for message in messages:
            own = next((id for id in (message.get("id"),) if isinstance(id, int | str) and id in sent), None)
            if own is None or not same_id(own, message.get("id")) or "method" in message:
                continue
            waited = trio.current_time() - sent.pop(own)
            if isinstance(message.get("result"), dict):
                seconds.append(waited)
            else:
                failed += 1
            if left and trio.current_time() < deadline and record.bytes <= most:
                await send_one()
    return seconds, failed + len(sent)


async def _over_http(spoken: SpokenEra, method: str, in_flight: int) -> tuple[list[float], int]:
    seconds: list[float] = []
    failed = 0
    ended: list[McpError] = []
    record = spoken.server.record
    deadline, most = trio.current_time() + TOGETHER_TIME, record.bytes + _room(spoken)

    async def ask_again_and_again(nursery: trio.Nursery) -> None:
        nonlocal failed
        try:
            for _ in range(ROUNDS):
                if trio.current_time() >= deadline or record.bytes > most:
                    return
                answer = await spoken.conversation.ask(method, keep=False)
                if answer.result is None:
                    failed += 1
                    return
                seconds.append(answer.seconds)
        except McpError as error:
            # A bound was reached, or a login is needed, which ends more than this task.
            ended.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            start(nursery, INSPECTION_REQUEST, ask_again_and_again, nursery, about=method)
    if ended:
        raise ended[0]
    return seconds, failed
