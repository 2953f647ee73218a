"""How a client finds out what a server speaks: every kind of server, every way to fail, at the public edge."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.errors import CallTimeout, ConnectionLost, RemoteProtocolError, RpcError, UnsupportedVersion
from mcp_actors.testing import ScriptedPeer, raw_server
from mcp_actors.types import Implementation
from tests.messages import TASKS_DECLARED

from .peers import CAPABILITIES, EVERY, LEGACY, MODERN, VERSION, entered, fail, greet, play_initialize, reply

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
