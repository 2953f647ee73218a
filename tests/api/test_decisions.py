"""The client's decisions about an era: every combination of answers, silences, outages and beliefs, in virtual time.

What is expected is said here a second time, by what kind of server it is and not by the rows of the table.
"""

from __future__ import annotations

from itertools import product

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, McpError
from mcp_actors._client.supervisor import ERA_CACHE
from mcp_actors._eras.client_negotiation import DECISIONS, Answer, Asked, Lifetime, NextStep
from mcp_actors._eras.legacy import LATEST_LEGACY
from mcp_actors._eras.modern import LATEST_MODERN
from mcp_actors.abc.discovery import register_transport
from mcp_actors.errors import ConnectFailed, Unavailable

from .reacting import DISCOVERY, INITIALIZE, SLOW, ReactingServer

KNOWN = {None: None, "legacy": LATEST_LEGACY, "modern": LATEST_MODERN}
# Seconds: what one connection may take, by the default options.
BOUND = 30 + 5

ANSWERS_DISCOVERY = {"stateless", "both", "named", "outage once", "lost once"}
REFUSES_DISCOVERY = {"sessions", "sessions in an error", "refused", "4xx"}
OUT_OF_REACH = {"others", "others in an error", "header mismatch"}
BEGINS_SESSION = {"session", "slow session", "outage once"}

# The era that is spoken, and the one that is remembered for all clients of the URL; "" is what was known before.
Expected = tuple[str | None, str]
FAILS: Expected = (None, "")


def expected(known: str | None, discover: str, initialize: str) -> Expected:
    if known == "legacy":
        return initialize_first(discover, initialize)
    if discover in ANSWERS_DISCOVERY:
        return "modern", "modern"
    if discover in OUT_OF_REACH:
        return FAILS
    if discover == "dies":
        restarted = known is None and initialize in BEGINS_SESSION | {"session unless discovered"}
        return ("legacy", "") if restarted else FAILS
    if discover == "slow stateless":
        if initialize in {"session", "outage once"}:
            return "legacy", ""
        return FAILS if initialize == "dies" else ("modern", "modern")
    is_verdict = discover in REFUSES_DISCOVERY or (
        discover == "slow refused" and initialize == "slow session"
    )
    if initialize in BEGINS_SESSION:
        return "legacy", "legacy" if is_verdict else ""
    if (
        initialize == "session unless discovered"
        and known is None
        and discover in REFUSES_DISCOVERY | {"outage"}
    ):
        return "legacy", "legacy" if is_verdict else ""
    return FAILS


def initialize_first(discover: str, initialize: str) -> Expected:
    if initialize in BEGINS_SESSION | {"session unless discovered"}:
        return "legacy", "legacy"
    if initialize in {
        "names stateless",
        "refused",
        "slow names stateless",
        "slow refused",
    } and discover in ANSWERS_DISCOVERY | {"slow stateless"}:
        return "modern", "modern"
    return FAILS


@pytest.mark.parametrize(("discover", "initialize"), list(product(DISCOVERY, INITIALIZE)))
async def test_every_combination(discover: str, initialize: str, autojump_clock: MockClock) -> None:
    for known, believed in KNOWN.items():
        server = ReactingServer(discover, initialize)
        url = f"reacting-{known}-{discover}-{initialize}".replace(" ", "-").lower() + ":x"
        register_transport(url[:-2], lambda url, server=server: server)
        if believed is not None:
            ERA_CACHE.put(url, believed)
        era, remembered = expected(known, discover, initialize)
        began = trio.current_time()
        spoken = None
        try:
            async with Client(url) as client:
                spoken = client.era
                took = trio.current_time() - began
        except McpError:
            took = trio.current_time() - began
        assert spoken == era, (known, server.asked)
        kept = ERA_CACHE.get(url)
        assert (kept and kept.name) == (remembered or known), (known, server.asked)
        assert took <= BOUND * len(server.connections)
        assert len(server.connections) <= 2
        if discover in OUT_OF_REACH and known != "legacy":
            assert "initialize" not in server.asked


@pytest.mark.parametrize("discover", DISCOVERY)
async def test_a_client_of_stateless_versions_never_initializes(
    discover: str, autojump_clock: MockClock
) -> None:
    server = ReactingServer(discover, "session")
    spoken = None
    try:
        async with Client(server, era="modern") as client:
            spoken = client.era
    except McpError:
        assert trio.current_time() <= BOUND
    assert (spoken == "modern") == (discover in ANSWERS_DISCOVERY | {"slow stateless"})
    assert set(server.asked) == {"server/discover"}


@pytest.mark.parametrize("initialize", INITIALIZE)
async def test_a_client_of_sessions_never_discovers(initialize: str, autojump_clock: MockClock) -> None:
    server = ReactingServer("stateless", initialize)
    spoken = None
    try:
        async with Client(server, era="legacy") as client:
            spoken = client.era
    except McpError:
        assert trio.current_time() <= BOUND
    assert (spoken == "legacy") == (initialize in BEGINS_SESSION | {"session unless discovered"})
    assert set(server.asked) == {"initialize"}


async def test_a_server_that_needs_twelve_seconds_to_start_is_met(autojump_clock: MockClock) -> None:
    """It reads both requests then, and refuses the one that it does not have."""
    for initialize in ("names stateless", "refused", "silent"):
        server = ReactingServer("slow stateless", f"slow {initialize}".replace("slow silent", "silent"))
        began = trio.current_time()
        async with Client(server) as client:
            assert client.era == "modern"
            assert trio.current_time() - began == pytest.approx(SLOW)


async def test_an_outage_that_lasts_is_told_as_such_and_soon(autojump_clock: MockClock) -> None:
    server = ReactingServer("outage", "outage")
    with pytest.raises(Unavailable):
        async with Client(server):
            raise AssertionError("never reached")
    assert trio.current_time() < 3
    assert server.asked == ["server/discover"] * 3 + ["initialize"] * 3


@pytest.mark.parametrize(("asked_for", "waits"), [(4.0, True), (3600.0, False)])
async def test_a_server_that_names_a_time_is_left_alone_until_then(
    asked_for: float, waits: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ReactingServer("outage once", "session")
    original = Unavailable.__init__

    def with_time(self: Unavailable, message: str) -> None:
        original(self, message, retry_after=asked_for)

    monkeypatch.setattr(Unavailable, "__init__", with_time)
    if waits:
        async with Client(server) as client:
            assert client.era == "modern"
            assert trio.current_time() == pytest.approx(asked_for)
    else:
        with pytest.raises(Unavailable):
            async with Client(server):
                raise AssertionError("never reached")
        assert trio.current_time() == 0


async def test_a_server_that_died_of_discovery_is_not_asked_again_by_the_same_client(
    autojump_clock: MockClock,
) -> None:
    server = ReactingServer("dies", "session")
    async with Client(server, restart=True) as client:
        assert server.asked == ["server/discover", "initialize"]
        await server.connections[-1].lose()
        await trio.sleep(1)
        assert client.era == "legacy"
    assert server.asked == ["server/discover", "initialize", "initialize"]


async def test_a_lost_connection_to_a_server_that_discovers_is_no_death_of_discovery(
    autojump_clock: MockClock,
) -> None:
    server = ReactingServer("stateless", "session")
    async with Client(server, restart=True) as client:
        server.discover = "dies"
        await server.connections[-1].lose()
        await trio.sleep(5)
        server.discover = "both"
        await trio.sleep(10)
        assert client.era == "modern"
    assert "initialize" not in server.asked


async def test_a_request_that_fails_on_this_side_fails_the_handshake(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr("mcp_actors._client.handshake.request_meta", broken)
    with capture_logs() as logs, pytest.raises(ConnectFailed, match="injected"):
        async with Client(ReactingServer("stateless", "session")):
            raise AssertionError("never reached")
    assert [each["event"] for each in logs] == ["handshake request failed"]


# -- the table itself ----------------------------------------------------------------------------------------------


def test_every_pair_that_can_come_up_has_a_row() -> None:
    only_errors_of_initialize = {Answer.STATELESS_ERROR, Answer.NAMES_SESSIONS, Answer.SILENT}
    for asked, answer in product(Asked, Answer):
        discovers = asked in (Asked.DISCOVER, Asked.DISCOVER_LATE)
        missing = answer in only_errors_of_initialize and not discovers
        missing |= answer is Answer.SILENT and asked is not Asked.DISCOVER
        assert ((asked, answer) in DECISIONS) != missing


def test_no_silence_and_no_outage_is_remembered_for_others() -> None:
    for (_, answer), decision in DECISIONS.items():
        if answer in (Answer.SILENT, Answer.LATE, Answer.UNAVAILABLE, Answer.LOST, Answer.UNREACHABLE):
            assert decision.kept is not Lifetime.PROCESS
            assert decision.step is not NextStep.SPEAK
        if decision.kept is not None:
            assert decision.taken_back
