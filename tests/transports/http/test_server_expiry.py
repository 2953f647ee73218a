"""A clock that runs out at the worst moment ends one connection, never the clock itself or the server."""

from __future__ import annotations

import random
import sys

import pytest
import structlog
import trio
import trio.testing

from .raw import GET, RawPeer, Served, echo, serving

HALF = GET[:-9]
# Steps of a connection's task from the first byte of its peer to its end, with some to spare.
STEPS = 20
# The load that once ended a server in 13 to 70 seconds was 200 to 500 such peers a second against a tick of a second.
# Here are as many a second against forty ticks, so that a second is worth forty of them.
PEERS = 4000
HEAD_TIME = 0.1


class ExpiresAtStep(trio.abc.Instrument):
    """Expires every connection after one chosen step of the connection's task, wherever that is then."""

    def __init__(self, served: Served, step: int) -> None:
        self._served = served
        self._left = step
        self.failure: Exception | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith("serve_stream"):
            self._left -= 1
        if self._left == 0:
            try:
                self._served.server.expire(sys.float_info.max)
            except Exception as error:  # Trio would only log it
                self.failure = error
            self._left = -1


@pytest.mark.parametrize(
    "sent", [b"", HALF, GET, GET + HALF], ids=["nothing", "half", "one", "one and a half"]
)
async def test_a_connection_may_expire_between_any_two_steps(
    sent: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(echo, memory=True) as served:
        with structlog.testing.capture_logs() as logs:
            for step in range(1, STEPS):
                peer = served.attach()
                if sent:
                    await peer.send(sent)
                instrument = ExpiresAtStep(served, step)
                trio.lowlevel.add_instrument(instrument)
                await peer.aclose()
                await served.settled()
                await trio.testing.wait_all_tasks_blocked()
                trio.lowlevel.remove_instrument(instrument)
                assert instrument.failure is None
        assert [each for each in logs if each["log_level"] == "error"] == []
        peer = served.attach()
        await peer.send(GET)
        assert (await peer.answer()).status == 200
        assert not served.done.is_set()


@pytest.mark.slow
async def test_peers_that_leave_when_their_time_is_over_end_nothing_but_themselves() -> None:
    async def leave_late(served: Served) -> None:
        peer = RawPeer(await trio.open_tcp_stream("127.0.0.1", served.port))
        await peer.send(HALF)
        await trio.sleep(HEAD_TIME * random.uniform(1.0, 1.5))
        await peer.aclose()

    async with serving(echo, head_time=HEAD_TIME) as served:
        async with trio.open_nursery() as nursery:
            for _ in range(PEERS):
                nursery.start_soon(leave_late, served)
                await trio.sleep(0.0005)
        peer = await served.connect()
        await peer.send(GET)
        assert (await peer.answer()).status == 200
