"""How a client finds out what a server speaks: every kind of server, every way to fail, at the public edge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, McpError, Server
from mcp_actors._client.supervisor import ERA_CACHE
from mcp_actors._eras.client_negotiation import DECISIONS, Answer, Asked, Lifetime, NextStep
from mcp_actors._eras.legacy import LATEST_LEGACY
from mcp_actors._eras.modern import LATEST_MODERN
from mcp_actors.abc import Frame, FrameChannel, NoAnswer
from mcp_actors.abc.discovery import register_transport
from mcp_actors.errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RpcError,
    Unavailable,
    UnsupportedVersion,
)
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.types import Implementation
from tests.messages import MODERN, TASKS_DECLARED, discover_result, error, initialize_result, result
from tests.scripted_peers import (
    CAPABILITIES,
    EVERY,
    LEGACY,
    VERSION,
    entered,
    fail,
    greet,
    play_initialize,
    reply,
)

__all__ = ["DISCOVERY", "INITIALIZE", "SLOW", "ReactingServer"]

# -- A server in memory that reacts to each request of a handshake in a way of its own -------------------
#
# And counts what it was asked.

# Seconds that a slow server takes for each answer: more than a client waits before it sends initialize too.
SLOW = 12.0

Message = dict[str, Any]


class ReactingChannel(FrameChannel):
    """The client's end of one connection; the server's end is the two reactions."""

    def __init__(self, server: ReactingServer, nursery: trio.Nursery) -> None:
        self._server = server
        self._nursery = nursery
        self._arrive, self._arrived = trio.open_memory_channel[Frame](100)
        self.asked: list[str] = []

    async def send(self, value: Frame) -> None:
        message = json.loads(value.data)
        await trio.lowlevel.checkpoint()
        if "id" in message and "method" in message:
            self.asked.append(message["method"])
            self._server.asked.append(message["method"])
            self._nursery.start_soon(self._react, message)

    async def _react(self, message: Message) -> None:
        server = self._server
        style = server.discover if message["method"] == "server/discover" else server.initialize
        reactions = DISCOVERY if message["method"] == "server/discover" else INITIALIZE
        if style.startswith("slow "):
            await trio.sleep(SLOW)
        answer = reactions[style](message, self)
        if answer == "end":
            self._arrive.close()
        elif isinstance(answer, Frame):
            await self._arrive.send(answer)
        elif answer is not None:
            await self._arrive.send(Frame(json.dumps(answer).encode()))

    async def lose(self) -> None:
        """Ends the connection as a server does that goes away."""
        await trio.testing.wait_all_tasks_blocked()
        self._arrive.close()

    def first(self, method: str) -> bool:
        """Whether the server was asked that for the first time."""
        return self._server.asked.count(method) == 1

    async def receive(self) -> Frame:
        return await self._arrived.receive()

    def loss_report(self) -> dict[str, Any]:
        return {"has_read": False} if self._server.discover == "cannot start" else {}

    async def aclose(self) -> None:
        self._arrived.close()
        await trio.lowlevel.checkpoint()


class ReactingServer:
    """A client's transport to a server that reacts by the names of two reactions."""

    def __init__(self, discover: str, initialize: str) -> None:
        self.discover = discover
        self.initialize = initialize
        self.asked: list[str] = []
        self.connections: list[ReactingChannel] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        async with trio.open_nursery() as nursery:
            channel = ReactingChannel(self, nursery)
            self.connections.append(channel)
            yield channel
            nursery.cancel_scope.cancel()


def _failed(message: Message, reason: Exception) -> Frame:
    return NoAnswer(b"", about=message["id"], reason=reason)


def _discovered(message: Message, channel: ReactingChannel) -> Message:
    return result(message, discover_result())


def _session(message: Message, channel: ReactingChannel) -> Message:
    return result(message, initialize_result("2025-11-25"))


def _once(
    first: Callable[[Message], Any], then: Callable[..., Any]
) -> Callable[[Message, ReactingChannel], Any]:
    return lambda message, channel: (
        first(message) if channel.first(message["method"]) else then(message, channel)
    )


def _outage(message: Message, *_: object) -> Frame:
    return _failed(message, Unavailable("503"))


def _refused(message: Message, *_: object) -> Message:
    return error(message, -32601, "no")


def _names(*versions: str) -> Callable[..., Message]:
    return lambda message, *_: error(message, -32022, "no", {"supported": list(versions)})


def _versions(*versions: str) -> Callable[..., Message]:
    return lambda message, *_: result(message, discover_result(supportedVersions=list(versions)))


DISCOVERY: dict[str, Callable[[Message, ReactingChannel], Any]] = {
    "stateless": _discovered,
    "both": _versions("2025-11-25", MODERN),
    "named": _once(_names(MODERN), _discovered),
    "outage once": _once(_outage, _discovered),
    "lost once": _once(lambda message: _failed(message, ConnectionLost("reset")), _discovered),
    "slow stateless": _discovered,
    "sessions": _versions("2025-06-18", "2025-11-25"),
    "sessions in an error": _names("2025-11-25"),
    "refused": _refused,
    "4xx": lambda message, _: _failed(message, RemoteProtocolError("404")),
    "slow refused": _refused,
    "silent": lambda *_: None,
    "outage": _outage,
    "dies": lambda *_: "end",
    "cannot start": lambda *_: "end",
    "others": _versions("2099-01-01"),
    "others in an error": _names("2099-01-01"),
    "header mismatch": lambda message, _: error(message, -32020, "no"),
}

INITIALIZE: dict[str, Callable[[Message, ReactingChannel], Any]] = {
    "session": _session,
    "slow session": _session,
    "slow names stateless": _names(MODERN),
    "slow refused": _refused,
    "outage once": _once(_outage, _session),
    "session unless discovered": lambda message, channel: (
        error(message, -32600, "this session is initialized already")
        if "server/discover" in channel.asked
        else _session(message, channel)
    ),
    "names stateless": _names(MODERN),
    "refused": _refused,
    "names others": lambda message, _: error(message, -32602, "no", {"supported": ["1999-01-01"]}),
    "other version": lambda message, _: result(message, initialize_result("1999-01-01")),
    "silent": lambda *_: None,
    "outage": _outage,
    "dies": lambda *_: "end",
}


# -- How a client finds out what a server speaks ---------------------------------------------------------

FAILURES: dict[str, tuple[int, Any]] = {
    "-32601": (-32601, None),
    "-32602": (-32602, None),
    "-32600": (-32600, {"supported": ["2025-11-25"]}),
    "-32000": (-32000, None),
    "-32022 without versions": (-32022, None),
    "-32022 with legacy versions": (-32022, {"supported": list(LEGACY), "requested": MODERN}),
}
STYLES = [*FAILURES, "silence", "empty result", "no object", "legacy versions in a result"]


async def refuse(peer: ScriptedPeer, probe: dict[str, Any], style: str) -> None:
    """What a server with sessions answers to ``server/discover``."""
    if style in FAILURES:
        code, data = FAILURES[style]
        await fail(peer, probe, code, data)
    elif style == "empty result":
        await reply(peer, probe, {})
    elif style == "no object":
        await reply(peer, probe, "what?")
    elif style == "legacy versions in a result":
        await reply(peer, probe, {"supportedVersions": ["2025-06-18"], "capabilities": {}})


# -- legacy servers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
async def test_a_legacy_server_is_recognised_however_it_fails(style: str, autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        peer = await server.accept()
        probe = await peer.receive()
        assert probe["method"] == "server/discover"
        assert probe["params"]["_meta"][VERSION] == MODERN
        assert probe["params"]["_meta"][CAPABILITIES] == TASKS_DECLARED
        await refuse(peer, probe, style)
        request = await play_initialize(peer)
        assert request["id"] != probe["id"]  # an id is not used twice in a session
        assert request["params"]["protocolVersion"] == "2025-11-25"
        client = await outcome.receive()
        assert (client.era, client.version) == ("legacy", "2025-11-25")


async def test_silence_is_bounded(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server, probe_timeout=2.5) as (_, _nursery):
        peer = await server.accept()
        await peer.receive()
        began = trio.current_time()
        assert (await peer.receive())["method"] == "initialize"
        assert trio.current_time() - began == pytest.approx(2.5)


@pytest.mark.parametrize("late", ["result", "error"])
async def test_a_late_answer_to_the_probe_changes_nothing(late: str, autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        peer = await server.accept()
        probe = await peer.receive()
        await play_initialize(peer, "2025-06-18")
        client = await outcome.receive()
        if late == "error":
            await fail(peer, probe, -32601)
        else:
            await reply(peer, probe, {"supportedVersions": [MODERN], "capabilities": {}})
        ping = trio.Event()

        async def pinged() -> None:
            await client.ping()
            ping.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pinged)
            request = await peer.receive()
            assert request["method"] == "ping"  # not a word about the probe: no cancellation either
            await reply(peer, request, {})
        assert ping.is_set()
        assert (client.era, client.version) == ("legacy", "2025-06-18")
        assert client.tree().counters.late == 1


async def test_a_server_that_dies_of_the_probe_is_started_once_more(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        first = await server.accept()
        assert (await first.receive())["method"] == "server/discover"
        await first.channel.aclose()
        second = await server.accept()
        await play_initialize(second)
        assert (await outcome.receive()).era == "legacy"


async def test_a_server_that_dies_of_everything_is_given_up(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        for method in ("server/discover", "initialize"):
            peer = await server.accept()
            assert (await peer.receive())["method"] == method
            await peer.channel.aclose()
        assert isinstance(await outcome.receive(), ConnectionLost)


# -- modern servers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("supported", [[MODERN], ["2025-11-25", MODERN], ["2099-01-01", MODERN]])
async def test_a_modern_or_dual_server_is_spoken_to_without_a_session(
    supported: list[str], autojump_clock: MockClock
) -> None:
    async with raw_server() as server, entered(server) as (outcome, nursery):
        peer = await server.accept()
        await greet(peer, supportedVersions=supported)
        client = await outcome.receive()
        assert (client.era, client.version) == ("modern", MODERN)
        assert client.server_info.name == "scripted"
        nursery.start_soon(client.list_tools)
        request = await peer.receive()
        assert request["method"] == "tools/list"
        assert request["params"]["_meta"][VERSION] == MODERN
        await reply(peer, request, {"tools": []})


async def test_a_server_may_leave_out_what_it_does_not_need_to_say(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        peer = await server.accept()
        await reply(peer, await peer.receive(), {"supportedVersions": [MODERN], "capabilities": {}})
        client = await outcome.receive()
        assert client.era == "modern"
        assert client.server_info == Implementation("", "")


async def test_a_refused_version_is_replaced_by_one_that_is_supported(autojump_clock: MockClock) -> None:
    """Even by the very same one: some servers refuse whatever comes first."""
    async with raw_server() as server, entered(server) as (outcome, _):
        peer = await server.accept()
        await fail(peer, await peer.receive(), -32022, {"supported": [MODERN], "requested": MODERN})
        await greet(peer)
        assert (await outcome.receive()).era == "modern"


async def test_a_server_that_refuses_what_it_supports_is_given_up(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        peer = await server.accept()
        for _ in range(3):
            probe = await peer.receive()
            assert probe["method"] == "server/discover"
            await fail(peer, probe, -32022, {"supported": [MODERN], "requested": MODERN})
        assert isinstance(await outcome.receive(), RemoteProtocolError)


@pytest.mark.parametrize(
    ("code", "data", "raised"),
    [
        (-32022, {"supported": ["2099-01-01"], "requested": MODERN}, UnsupportedVersion),
        (-32021, {"requiredCapabilities": {"sampling": {}}}, RpcError),
        (-32020, None, RpcError),
    ],
)
async def test_a_modern_refusal_never_leads_to_initialize(
    code: int, data: Any, raised: type, autojump_clock: MockClock
) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        peer = await server.accept()
        await fail(peer, await peer.receive(), code, data)
        error = await outcome.receive()
        assert isinstance(error, raised)
        assert error.code == code
        with pytest.raises(trio.EndOfChannel):
            await peer.receive()


async def test_a_discovery_without_a_common_version_never_leads_to_initialize(
    autojump_clock: MockClock,
) -> None:
    async with raw_server() as server, entered(server) as (outcome, _):
        peer = await server.accept()
        await greet(peer, supportedVersions=["2099-01-01"])
        error = await outcome.receive()
        assert isinstance(error, UnsupportedVersion)
        assert error.supported == ["2099-01-01"]


# -- pinned --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", *LEGACY])
async def test_a_client_that_is_told_to_speak_legacy_does_not_probe(
    era: str, autojump_clock: MockClock
) -> None:
    version = "2025-11-25" if era == "legacy" else era
    async with raw_server() as server, entered(server, era=era) as (outcome, _):
        peer = await server.accept()
        request = await play_initialize(peer, version)
        assert request["params"]["protocolVersion"] == version
        assert (await outcome.receive()).version == version


async def test_a_pinned_revision_accepts_no_other(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server, era="2025-06-18") as (outcome, _):
        peer = await server.accept()
        request = await peer.receive()
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "serverInfo": {"name": "s", "version": "1"},
        }
        await reply(peer, request, result)
        error = await outcome.receive()
        assert isinstance(error, UnsupportedVersion)
        assert error.supported == ["2025-11-25"]
        with pytest.raises(trio.EndOfChannel):  # it disconnects and says nothing more
            await peer.receive()


@pytest.mark.parametrize("era", ["modern", MODERN])
async def test_a_client_that_is_told_to_speak_modern_never_initializes(
    era: str, autojump_clock: MockClock
) -> None:
    async with raw_server() as server, entered(server, era=era) as (outcome, _):
        peer = await server.accept()
        await fail(peer, await peer.receive(), -32601)
        error = await outcome.receive()
        assert isinstance(error, RpcError)
        assert error.code == -32601
        with pytest.raises(trio.EndOfChannel):
            await peer.receive()


async def test_a_silent_server_times_out_for_a_modern_client(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server, era="modern") as (outcome, _):
        peer = await server.accept()
        await peer.receive()
        assert isinstance(await outcome.receive(), CallTimeout)


async def test_a_client_that_is_pinned_does_not_start_a_dying_server_twice(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server, era="legacy") as (outcome, _):
        peer = await server.accept()
        assert (await peer.receive())["method"] == "initialize"
        await peer.channel.aclose()
        assert isinstance(await outcome.receive(), ConnectionLost)


async def test_a_silent_initialize_times_out_and_is_not_cancelled(autojump_clock: MockClock) -> None:
    async with raw_server() as server, entered(server, era="legacy", timeout=3) as (outcome, _):
        peer = await server.accept()
        await peer.receive()
        error = await outcome.receive()
        assert isinstance(error, CallTimeout)
        with pytest.raises(trio.EndOfChannel):
            await peer.receive()


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("narrow", ["client", "server"])
async def test_client_and_server_of_ours_agree_on_each_version(
    version: str, narrow: str, autojump_clock: MockClock
) -> None:
    server = Server("s", versions=(version,)) if narrow == "server" else Server("s")
    async with Client(server, era="auto" if narrow == "server" else version) as client:
        assert client.version == version


@pytest.mark.parametrize(("client_era", "server_versions"), [("legacy", (MODERN,)), ("modern", LEGACY)])
async def test_a_client_without_a_common_version_is_told_which_there_are(
    client_era: str, server_versions: tuple[str, ...]
) -> None:
    with pytest.raises(RpcError) as refused:
        async with Client(Server("s", versions=server_versions), era=client_era):
            raise AssertionError("never reached")
    assert refused.value.data["supported"] == list(server_versions)


# -- The client's decisions about an era -----------------------------------------------------------------
#
# Every combination of answers, silences, outages and beliefs, in virtual time.
#
# What is expected is said here a second time, by what kind of server it is and not by the rows of the table.

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
    if discover in OUT_OF_REACH or discover == "cannot start":
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
        assert len(server.connections) <= (1 if discover == "cannot start" and known != "legacy" else 2)
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
