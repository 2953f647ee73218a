"""The load's own reading of wires, however the bytes are cut; and that an open loop hides nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import soak_asyncio, waiting
from benchmarks.soak_asyncio import COUNTED, SPARE_KIB, SPARE_OBJECTS, Levels, Soak
from benchmarks.soak_server import hanging
from benchmarks.suite.bench import Bench, ThisProcess
from benchmarks.suite.command import main
from benchmarks.suite.endpoints import RaggedWrites
from benchmarks.suite.gateways import GATEWAYS, chain_of
from benchmarks.suite.goals import GOALS, goal_cases
from benchmarks.suite.job import BenchmarkJob
from benchmarks.suite.peers import NODE_WARM_UP_CALLS, PEERS, PROGRAMS, Peer
from benchmarks.suite.plan import FULL, QUICK, TOY, Case, make_plan
from benchmarks.suite.running import run_job, run_plan
from benchmarks.suite.scenarios import cancel, loops, streams
from benchmarks.suite.scenarios.table import SCENARIOS
from benchmarks.suite.server import HandlerEvents
from benchmarks.suite.worker import measure
from mcp_actors.cli.bench.field import Arrival, Field, run_blocking
from mcp_actors.cli.bench.http import ResponseReader
from mcp_actors.cli.bench.plan import Calls, Era, LoadError, Message, check_sums, id_of
from mcp_actors.cli.bench.results import METRICS, Document
from mcp_actors.cli.bench.streams import Framing, Lines, StreamField, WebSocketFrames

pytestmark = pytest.mark.slow

# -- Every scenario at toy size, so that the suite cannot rot: it runs and gives the figures it is known for ---

HERE = {"python": sys.executable}
# A transport of somebody else's, in a file of their own: lines over TCP under another name.
PIGEON = """
from mcp_actors.abc.discovery import register_transport
from mcp_transports.sockets import TcpTransport

register_transport("pigeon", lambda url: TcpTransport(url.replace("pigeon:", "tcp:")))
"""


@pytest.fixture(autouse=True)
def _little_is_sent_to_a_stalled_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FILL_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def _machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured alone is late after seconds; beside other tests it may be late by as many."""
    monkeypatch.setattr(streams, "BESIDE_WITHIN_SECONDS", 60.0)
    monkeypatch.setattr(cancel, "CANCEL_WITHIN_SECONDS", 60.0)
    monkeypatch.setattr(cancel, "BEGIN_WITHIN_SECONDS", 60.0)


def toy(scenario: str, transport: str, peer: str = "ours", era: Era = "modern") -> list[dict[str, float]]:
    """The metrics of each place."""
    parameters = SCENARIOS[scenario].parameters("toy")
    job = BenchmarkJob(scenario, transport, peer, era, 1, TOY.seconds, parameters, HERE)
    places = [metrics for _, metrics in places_of(job)]
    assert places
    assert all(METRICS.keys() >= metrics.keys() for metrics in places)
    return places


def places_of(job: BenchmarkJob) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Each place with its metrics, measured in this process, which has imported everything.

    But for what is in memory: that leaves a variable in the environment, so it gets a process of its own.
    """
    if job.transport == "memory":
        return [(point["at"], point["metrics"]) for point in run_job(job)]
    return [(point.at, point.metrics) for point in measure(job)]


@pytest.mark.parametrize("peer", ["ours", "floor"])
@pytest.mark.parametrize("transport", ["stdio", "http", "tcp", "unix", "ws"])
def test_round_trips(transport: str, peer: str) -> None:
    assert all(metrics["per_second"] > 0 for metrics in toy("roundtrip", transport, peer))


@pytest.mark.parametrize("transport", ["memory", "http+unix"])
def test_round_trips_where_there_is_no_floor(transport: str) -> None:
    assert all(metrics["per_second"] > 0 for metrics in toy("roundtrip", transport))


# A connection has one kind of cancellation in both eras, and HTTP one in each.
@pytest.mark.parametrize(
    ("transport", "era"),
    [("stdio", "legacy"), ("http", "legacy"), ("http", "modern"), ("memory", "modern"), ("ws", "modern")],
)
def test_cancels_reach_their_handlers(transport: str, era: Era) -> None:
    (metrics,) = toy("cancel_latency", transport, era=era)
    assert metrics["never"] == 0


def test_the_floor_cancels_too() -> None:
    assert toy("cancel_latency", "stdio", "floor")[0]["never"] == 0


# Each once, and each transport twice: the round trips show that the transports work, whatever is sent over them.
@pytest.mark.parametrize(
    ("scenario", "transport"),
    [
        ("eras", "stdio"),
        ("eras", "http"),
        ("startup", "memory"),
        ("startup", "http"),
        ("large_payload", "stdio"),
        ("mixed", "memory"),
    ],
)
def test_scenarios_on_one_connection(scenario: str, transport: str) -> None:
    assert toy(scenario, transport)


@pytest.mark.parametrize("transport", ["stdio", "http", "ws"])
def test_round_trips_answered_in_the_reader(transport: str) -> None:
    assert all(metrics["per_second"] > 0 for metrics in toy("roundtrip", transport, "floor_inline"))


@pytest.mark.parametrize("peer", ["ours", "floor"])
def test_round_trips_of_a_tool_that_awaits_once(peer: str) -> None:
    assert all(metrics["per_second"] > 0 for metrics in toy("awaits_once", "stdio", peer))


@pytest.mark.parametrize("peer", ["ours", "floor", "floor_inline"])
def test_round_trips_of_requests_that_arrive_in_pieces(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[int] = []
    monkeypatch.setattr(RaggedWrites, "cut", noted(RaggedWrites.cut, cuts))
    assert all(metrics["per_second"] > 0 for metrics in toy("ragged_arrival", "stdio", peer))
    assert len(set(cuts)) > 5


def noted(cut: Callable[[RaggedWrites, bytes], int], cuts: list[int]) -> Callable[[RaggedWrites, bytes], int]:
    def noting(self: RaggedWrites, data: bytes) -> int:
        cuts.append(cut(self, data))
        return cuts[-1]

    return noting


def test_round_trips_with_an_access_token() -> None:
    assert all(metrics["per_second"] > 0 for metrics in toy("roundtrip", "http", "ours_protected"))


@pytest.mark.parametrize(
    ("transport", "era"), [("stdio", "modern"), ("http", "legacy"), ("memory", "modern"), ("tcp", "legacy")]
)
def test_clients_are_measured(transport: str, era: Era) -> None:
    assert all(
        metrics["call_us"] >= 0 < metrics["per_second"] for metrics in toy("client_calls", transport, era=era)
    )


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_floor_of_a_client(era: Era) -> None:
    one, two = toy("client_calls", "http", "floor", era)
    assert one["per_second"] > 0 < two["per_second"]


@pytest.mark.parametrize(("transport", "face"), [("http", "sync"), ("memory", "asyncio")])
def test_clients_of_other_programs_are_measured(transport: str, face: str) -> None:
    one, two = toy("client_calls", transport, face)
    assert one["each_us"] > 0 < two["per_second"]


def test_a_client_that_fails_is_no_figure() -> None:
    job = BenchmarkJob("client_calls", "nowhere=nowhere:", "ours", "modern", 1, 0.05, {"windows": [1]}, HERE)
    with pytest.raises(LoadError, match="the client"):
        run_job(job)


@pytest.mark.parametrize("peer", ["ours", "floor"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_every_progress_report_is_counted(transport: str, peer: str) -> None:
    assert toy("progress_stream", transport, peer)[0]["per_second"] > 0


@pytest.mark.parametrize("transport", ["http", "tcp"])
def test_many_sessions(transport: str) -> None:
    assert toy("many_sessions", transport, era="legacy")[-1]["churn_per_second"] > 0


@pytest.mark.parametrize(("transport", "era"), [("http", "legacy"), ("http", "modern"), ("ws", "legacy")])
def test_a_change_is_told_to_all(transport: str, era: Era) -> None:
    assert toy("fan_out", transport, era=era)[0]["p99_us"] > 0


@pytest.mark.parametrize("transport", ["http", "tcp"])
def test_calls_beside_a_stalled_peer(transport: str) -> None:
    alone, beside = toy("stalled_peer", transport)
    assert "growth_mib" not in alone
    assert "growth_mib" in beside


def test_a_server_that_answers_nobody_beside_a_stalled_peer_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stall = StreamField.stall

    async def stall_and_hear_no_more(field: StreamField, lane: int) -> None:
        await stall(field, lane)
        monkeypatch.setattr(StreamField, "post", lambda *_: None)

    monkeypatch.setattr(StreamField, "stall", stall_and_hear_no_more)
    monkeypatch.setattr(streams, "BESIDE_WITHIN_SECONDS", 0.05)
    monkeypatch.setattr(streams, "FILL_SECONDS", 0.0)
    job = BenchmarkJob("stalled_peer", "tcp", "ours", "modern", 1, 0.05, {"live": [4]}, HERE)
    with pytest.raises(LoadError, match="nobody is answered beside"):
        measure(job)


@pytest.mark.parametrize("peer", ["ours", "floor"])
def test_codec(peer: str) -> None:
    assert all(metrics["decode_us"] > 0 for metrics in toy("codec", "codec", peer))


def test_no_program_of_a_peer_hides_a_module_of_python() -> None:
    """Those that run by their path have their folder in front of Python's own."""
    assert not {path.stem for path in PROGRAMS.iterdir()} & sys.stdlib_module_names


def test_a_peer_says_what_it_needs_and_has_not(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="pip install nowhere_to_be_found"):
        Peer("mine", "mine", "mine", needs=("nowhere_to_be_found",)).prepare(tmp_path)


def test_a_hop_through_a_gateway_costs_something() -> None:
    """Over HTTP; over stdio those of the next test do, and the goals ask for it."""
    alone, behind, *_ = toy("gateway_hop", "http")
    assert alone["per_second"] > 0 < behind["per_second"]
    assert "cpu_us" not in alone
    assert behind["rss_mib"] > 10


def test_three_hops_take_turns_with_two_bindings() -> None:
    """Which needs processes of all kinds: some are started by the one before them, and some stand alone."""
    parameters = {"to": ["http"], "hops": [3], "windows": [4]}
    points = measure(BenchmarkJob("gateway_hop", "stdio", "ours", "modern", 1, TOY.seconds, parameters, HERE))
    assert [point.at for point in points] == [{"to": "http", "hops": hops, "in_flight": 4} for hops in (0, 3)]
    alone, behind = (point.metrics for point in points)
    assert "cpu_us" not in alone
    assert behind["rss_mib"] > 10
    assert chain_of("stdio", "http", 3) == ("stdio", "http", "stdio", "http")


def test_a_gateway_is_asked_for_hops_that_it_can_make() -> None:
    assert GATEWAYS["mcp_remote"].can(chain_of("stdio", "http", 1))
    assert not GATEWAYS["mcp_remote"].can(chain_of("stdio", "http", 3))
    assert GATEWAYS["supergateway"].can(chain_of("http", "stdio", 3))
    assert not GATEWAYS["supergateway"].can(chain_of("stdio", "stdio", 1))
    job = BenchmarkJob(
        "gateway_hop", "http", "mcp_remote", "legacy", 1, 0.05, {"to": ["stdio"], "hops": [1]}, HERE
    )
    with pytest.raises(LoadError, match="cannot make any of these hops"):
        measure(job)


def test_every_gateway_is_a_peer_and_has_a_command_for_each_of_its_hops() -> None:
    prepared = {"python": "/env/bin/python", "node": "/env/node", "modules": "/env"}
    for name, gateway in GATEWAYS.items():
        for served, reached in gateway.hops:
            url = {"stdio": "stdio:", "http": "http://127.0.0.1:9001/mcp"}[served]
            upstream = {"stdio": ["upstream"], "http": "http://127.0.0.1:9002/mcp"}[reached]
            command = " ".join(gateway.command(prepared, url, upstream))
            assert PEERS[name].has(served)
            assert ("9001" in command) is (served == "http")
            assert ("9002" in command) is (reached == "http")
            assert ("upstream" in command) is (reached == "stdio")


@pytest.mark.parametrize("peer", ["ours_asgi", "floor_asgi"])
def test_round_trips_under_uvicorn(peer: str) -> None:
    assert all(metrics["per_second"] > 0 for metrics in toy("roundtrip", "http", peer))


def test_every_scenario_has_a_test_of_its_own() -> None:
    text = Path(__file__).read_text()
    assert not [name for name in SCENARIOS if f'"{name}"' not in text]


@pytest.mark.long
def test_a_transport_of_somebody_else_takes_one_command(tmp_path: Path) -> None:
    (tmp_path / "pigeon.py").write_text(PIGEON)
    results = tmp_path / "results.json"
    chosen = ["run", "cancel_latency", "--toy", "--eras", "modern", "--load", str(tmp_path / "pigeon.py")]
    assert main([*chosen, "--transports", "pigeon,tcp", "-o", str(results)]) == 0
    document = Document.read(results)
    assert not document.failures
    assert {(row.transport, row.scenario) for row in document.rows} == {
        (transport, "cancel_latency") for transport in ("pigeon", "tcp")
    }
    assert "pigeon" in (tmp_path / "results.html").read_text()


def small(value: Any) -> Any:
    return min(value, 10) if isinstance(value, int) else value


@pytest.mark.parametrize("scenario", sorted({goal.ours.scenario for goal in GOALS}))
def test_the_places_of_goals_are_those_that_scenarios_give(scenario: str) -> None:
    """At toy size: a goal that names a place in another way than its scenario would never have a figure."""
    case = next(each for each in goal_cases() if each.scenario.name == scenario and "ours" in each.peers)
    few = {
        name: sorted({small(each) for each in values}) if isinstance(values, list) else values
        for name, values in case.parameters["ours"].items()
    }
    places = places_of(BenchmarkJob(scenario, case.transport, "ours", case.era, 1, TOY.seconds, few, HERE))
    wanted = [
        (goal.metric, {name: small(each) for name, each in key.at})
        for goal in GOALS
        for key in goal.keys
        if key[:3] == (scenario, case.transport, case.era) and key.peer == "ours"
    ]
    assert wanted
    for metric, at in wanted:
        assert any(found == at and metric in metrics for found, metrics in places)


def test_what_gives_no_figure_is_told_and_not_tried_again() -> None:
    case = Case(SCENARIOS["startup"], "nowhere=nowhere:{port}", "modern", ("ours",))
    document = run_plan(
        [case], TOY, {"ours": HERE}, rounds=2, seconds=0.05, seed=1, budget=60.0, console=Console(quiet=True)
    )
    assert not document.rows
    assert [failure.transport for failure in document.failures] == ["nowhere=nowhere:{port}"]


def test_nothing_is_begun_when_the_time_is_over() -> None:
    cases = make_plan(TOY, scenarios=["startup"])
    document = run_plan(
        cases, TOY, {"ours": HERE}, rounds=1, seconds=0.05, seed=1, budget=0.0, console=Console(quiet=True)
    )
    assert not document.rows
    assert "out of time" in document.warnings[0]


def test_plans_have_what_peers_can_do_and_nothing_else() -> None:
    for size in (QUICK, FULL):
        for case in make_plan(size):
            assert case.transport == "memory" or not case.scenario.lanes or case.transport != "stdio"
            assert "floor" not in case.peers or case.transport != "memory"
            of_the_inline_floor = case.scenario.name in ("roundtrip", "ragged_arrival")
            assert "floor_inline" not in case.peers or of_the_inline_floor
            assert case.scenario.name != "client_calls" or "typescript1" not in case.peers
            assert "typescript1" not in case.peers or case.era == "legacy"
    assert {case.scenario.name for case in make_plan(FULL)} == set(SCENARIOS)


def test_a_quick_run_has_the_peers_that_its_page_says() -> None:
    cases = [(case.scenario.name, case.peers) for case in make_plan(QUICK)]
    others = {"fastmcp", "typescript1"}
    assert {name for name, peers in cases if others & set(peers)} == {"roundtrip"}
    assert {peer for name, peers in cases if name == "roundtrip" for peer in peers} >= others | {
        "official",
        "ours",
    }
    assert "FastMCP and the TypeScript SDK 1.x in `roundtrip`" in (PROGRAMS.parent / "README.md").read_text()
    asked = make_plan(QUICK, peers=["ours"])
    assert {case.peers for case in asked} == {("ours",)}  # names that were given are all


@pytest.mark.parametrize("names", [{"scenarios": ["juggling"]}, {"peers": ["nobody"]}])
def test_unknown_names_are_refused(names: dict[str, list[str]]) -> None:
    with pytest.raises(LoadError, match="there are"):
        make_plan(QUICK, **names)  # type: ignore[arg-type]


# -- The load's own reading of wires, however the bytes are cut; and an open loop hides nothing ----------

MESSAGES = st.lists(
    st.binary(min_size=1, max_size=300).map(lambda data: data.replace(b"\n", b" ")), max_size=5
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def unmasked(data: bytes) -> bytes:
    """The frame as a server would send it: the mask was of zeros."""
    size = data[1] & 0x7F
    head = 2 + {126: 2, 127: 8}.get(size, 0)
    return bytes((data[0], size)) + data[2:head] + data[head + 4 :]


@pytest.mark.parametrize(("make", "turn"), [(Lines, bytes), (WebSocketFrames, unmasked)])
@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_messages_are_whole_however_they_are_cut(
    make: Callable[[], Framing], turn: Callable[[bytes], bytes], messages: list[bytes], cuts: list[int]
) -> None:
    framing = make()
    data = b"".join(turn(framing.wrap(each)) for each in messages)
    assert [each for piece in pieces(data, cuts) for each in framing.feed(piece)] == messages


@pytest.mark.parametrize("size", [125, 126, 65535, 65536])
def test_lengths_of_web_socket_frames(size: int) -> None:
    framing = WebSocketFrames()
    assert framing.feed(unmasked(framing.wrap(b"x" * size))) == [b"x" * size]


def test_a_ping_is_no_message_and_a_close_is_an_end() -> None:
    framing = WebSocketFrames()
    assert framing.feed(b"\x89\x02hi" + b"\x01\x02ab" + b"\x80\x01c") == [b"abc"]
    with pytest.raises(LoadError, match="closed"):
        framing.feed(b"\x88\x00")


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nMcp-Session-Id: s1\r\n\r\n" + b'{"a":1}'
CHUNKS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
    b'f\r\ndata: {"a":1}\n\n\r\n' + b'1c\r\nid: 1\n\nid: 2\ndata: {"b":2}\n\n\r\n0\r\n\r\n'
)
EMPTY = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"


@given(cuts=st.lists(st.integers(0, 400), max_size=8))
@pytest.mark.parametrize(
    ("data", "messages"), [(LENGTH, [b'{"a":1}']), (CHUNKS, [b'{"a":1}', b'{"b":2}']), (EMPTY, [])]
)
def test_responses_are_whole_however_they_are_cut(
    data: bytes, messages: list[bytes], cuts: list[int]
) -> None:
    reader = ResponseReader()
    for _ in range(2):
        responses = [reader.feed(piece) for piece in pieces(data, cuts)]
        assert [each for response in responses for each in response.messages] == messages
        assert [response.complete for response in responses].count(True) == 1
        assert responses[-1].complete


def test_a_session_is_known_as_soon_as_the_head_of_a_stream_is() -> None:
    unfinished = CHUNKS.replace(b"\r\n\r\n", b"\r\nmcp-session-id: s1\r\n\r\n", 1).removesuffix(b"0\r\n\r\n")
    response = ResponseReader().feed(unfinished)
    assert (len(response.messages), response.complete, response.session) == (2, False, "s1")


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(LoadError):
        ResponseReader().feed(data)


class StallingField(Field):
    """Answers at once, but for one stall: virtual time, one lane."""

    def __init__(self, stall_at: float, stall: float) -> None:
        super().__init__("modern")
        self.now = 0.0
        self._stall_at, self._stall = stall_at, stall
        self._asked: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    async def connect(self) -> int:
        return 0

    def post(self, lane: int, message: Message) -> None:
        assert message.id is not None
        self._asked.append(message.id)

    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        if not self._asked:
            assert until is not None
            self.now = max(self.now, until)
            return []
        if self.now >= self._stall_at:
            self.now += self._stall
            self._stall = 0.0
        self.now += 0.0001
        asked, self._asked = self._asked, []
        return [
            (0, json.dumps({"id": id, "result": {"structuredContent": {"total": id + 1}}}).encode())
            for id in asked
        ]

    async def leave(self, lane: int) -> None: ...
    async def pause(self, seconds: float) -> None: ...
    async def stall(self, lane: int) -> None: ...


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Bench, StallingField]:
    field = StallingField(stall_at=0.5, stall=0.2)
    monkeypatch.setattr(loops, "time", field)
    job = BenchmarkJob("roundtrip", "stdio", "ours", "modern", 1, 1.0, {})
    served = ThisProcess(HandlerEvents(tmp_path / "told"))
    return Bench(job, field, served, itertools.count(1), random.Random(1), "modern"), field


def test_an_open_loop_counts_those_who_would_have_come_during_a_stall(
    stalling: tuple[Bench, StallingField],
) -> None:
    bench, _ = stalling
    calls = Calls("modern")
    taken = run_blocking(loops.open_loop(bench, 0, calls.__getitem__, rate=100.0, seconds=1.0))
    assert len(taken.took) == 100
    # Twenty were meant to be sent in the 0.2 s of the stall; each waited for what was left of it.
    assert sum(took > 0.005 for took in taken.took) == pytest.approx(20, abs=1)
    assert max(taken.took) == pytest.approx(0.2, abs=0.01)


def test_a_closed_loop_would_have_hidden_them(stalling: tuple[Bench, StallingField]) -> None:
    bench, _ = stalling
    calls = Calls("modern")
    taken = run_blocking(loops.closed_loop(bench, [0], calls.__getitem__, window=1, seconds=1.0))
    assert sum(took > 0.005 for took in taken.took) == 1


def answered_by(field: StallingField, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of what the field is asked from now on."""
    ids: list[int] = []
    post = field.post

    def posting(lane: int, message: Message) -> None:
        assert message.id is not None
        ids.append(message.id)
        post(lane, message)

    monkeypatch.setattr(field, "post", posting)
    return ids


@pytest.mark.parametrize("peer", [name for name, peer in PEERS.items() if peer.npm])
def test_node_answers_its_calls_before_anything_is_measured(
    peer: str, stalling: tuple[Bench, StallingField], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, field = stalling
    bench.job = replace(bench.job, peer=peer, seconds=0.05)
    ids = answered_by(field, monkeypatch)
    run_blocking(loops.warm_up(bench, 0))
    assert len(ids) >= NODE_WARM_UP_CALLS == 20_000


def test_fast_calls_warm_node_for_some_seconds(stalling: tuple[Bench, StallingField]) -> None:
    bench, field = stalling
    bench.job = replace(bench.job, peer="typescript1", seconds=0.75)
    # One after the other in 0.1 ms, so that the calls alone would take two.
    run_blocking(loops.warm_up(bench, 0, window=1))
    assert field.now >= 4.0


def test_node_that_is_never_warm_gives_no_figure(
    stalling: tuple[Bench, StallingField], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = stalling
    bench.job = replace(bench.job, peer="typescript1")
    monkeypatch.setattr(loops, "WARM_WITHIN_SECONDS", 1.0)
    with pytest.raises(LoadError, match="of 20000 calls to warm it up in 1 s"):
        run_blocking(loops.warm_up(bench, 0, window=1))


def test_the_tool_that_is_measured_is_the_one_that_is_warmed(
    stalling: tuple[Bench, StallingField], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, field = stalling
    names: set[str] = set()
    post = field.post

    def posting(lane: int, message: Message) -> None:
        names.add(message.name)
        post(lane, message)

    monkeypatch.setattr(field, "post", posting)
    run_blocking(loops.warm_up(bench, 0, tool="add_awaiting"))
    assert names == {"add_awaiting"}


# -- Requests that do not arrive in one write ------------------------------------------------------------

ASKED = b"".join(Calls("legacy")[number].data + b"\n" for number in range(64))


def written(data: bytes, seed: int) -> list[bytes]:
    ragged, writes = RaggedWrites(random.Random(seed)), []
    while data:
        size = ragged.cut(data)
        writes.append(data[:size])
        data = data[size:]
    return writes


@given(st.integers(0, 10_000), st.lists(st.binary(min_size=1, max_size=40), max_size=20))
def test_all_that_is_written_in_pieces_is_written_once(seed: int, messages: list[bytes]) -> None:
    data = b"\n".join(messages)
    writes = written(data, seed)
    assert b"".join(writes) == data
    assert all(writes)


def test_writes_are_small_groups_and_end_inside_of_messages_too() -> None:
    writes = [each for seed in range(20) for each in written(ASKED, seed)]
    assert max(each.count(b"\n") for each in writes) == 8
    inside = [each for each in writes if not each.endswith(b"\n")]
    assert len(writes) / 4 < len(inside) < len(writes) * 3 / 4
    # The first write begins where a message does, so how far into a message it ends can be told.
    firsts = [written(ASKED, seed)[0] for seed in range(20)]
    ends = [len(each) - each.rfind(b"\n") - 1 for each in firsts if not each.endswith(b"\n")]
    assert ends
    assert all(end % 2 for end in ends)


def test_the_same_seed_cuts_in_the_same_places() -> None:
    assert written(ASKED, 7) == written(ASKED, 7)
    assert written(ASKED, 7) != written(ASKED, 8)


def test_wrong_answers_are_no_figure() -> None:
    good = b'{"id":1,"result":{"structuredContent":{"total":2}}}'
    check_sums([good], random.Random(1))
    for bad in (b'{"id":1,"error":{}}', good.replace(b"2}", b"3}"), b'{"result":{}}'):
        with pytest.raises(LoadError):
            check_sums([good, bad], random.Random(1))


def test_a_call_asks_for_its_own_id() -> None:
    message = Calls("legacy", "add_inline")[17]
    assert id_of(message.data) == 17
    assert json.loads(message.data)["params"] == {"name": "add_inline", "arguments": {"a": 17, "b": 1}}


# -- The comparison of the ways to wait for sockets measures both of them --------------------------------


def test_each_case_has_a_row_with_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    waiting.main(["--rounds", "1", "--reads", "64", "--sockets", "64"])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [each.split(" | ")[0] for each in rows] == [
        "| 1 sockets, 1 ready",
        "| 64 sockets, 1 ready",
        "| 64 sockets, 64 ready",
        "| a socket added and removed",
    ]
    for each in rows:
        assert re.search(r"\| [\d.]+ us \| [\d.]+ us \| [\d.]+x", each)


# -- The soak of the asyncio face in small; ``MCP_SOAK_CALLS`` makes it as large as wanted ---------------

ROOT = Path(__file__).parent.parent.parent
CALLS = int(os.environ.get("MCP_SOAK_CALLS", "2000"))
QUIET = Levels(tasks=4, threads=2, futures=0, descriptors=9, children=0, objects=50_000, kib=50_000)
KINDS = ("plain", "with progress", "cancelled", "out of time", "with a question", "cancelled by its group")
LOOPS = ("in order", "raising", "left open", "cancelled", "closed early")


@pytest.mark.long
def test_nothing_is_left_of_many_calls_in_loops_that_come_and_go() -> None:
    """In a process of its own, which has nothing but the engine to begin with."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak_asyncio", "--calls", str(CALLS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120 + CALLS / 200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stderr == ""
    told = done.stdout.splitlines()[-1]
    assert not [kind for kind in KINDS if f"'{kind}': " not in told]
    assert not [kind for kind in LOOPS if f"'loops {kind}': " not in told]


@pytest.mark.parametrize("name", COUNTED)
def test_one_of_anything_that_is_left_is_too_many(name: str) -> None:
    assert QUIET.is_quiet(QUIET)
    assert not replace(QUIET, **{name: getattr(QUIET, name) + 1}).is_quiet(QUIET)


def test_a_call_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_asyncio, "hanging", {*hanging, 1})
    assert not QUIET.is_quiet(QUIET)


def test_memory_that_grows_is_noticed() -> None:
    assert replace(QUIET, objects=QUIET.objects + SPARE_OBJECTS).is_small(QUIET, 0)
    assert not replace(QUIET, objects=QUIET.objects + SPARE_OBJECTS + 2).is_small(QUIET, 1000)
    assert not replace(QUIET, kib=QUIET.kib + SPARE_KIB + 1).is_small(QUIET, 10**9)


def test_levels_see_a_future_and_a_descriptor_that_somebody_keeps() -> None:
    loop = asyncio.new_event_loop()
    before = Levels.now()
    kept = loop.create_future()
    ends = os.pipe()
    after = Levels.now()
    for end in ends:
        os.close(end)
    loop.close()
    assert not kept.done()
    assert (after.futures, after.descriptors) == (before.futures + 1, before.descriptors + 2)


def test_a_wrong_answer_ends_the_soak() -> None:
    soak = Soak(1)

    class Liar:
        async def call_tool(self, *_: object) -> object:
            return type("Result", (), {"content": [type("Text", (), {"text": "something else"})]})

    with pytest.raises(AssertionError):
        asyncio.run(soak._plain(Liar()))
