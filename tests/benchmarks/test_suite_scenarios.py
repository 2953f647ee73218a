"""Every scenario at toy size, so that the suite cannot rot: it runs and gives the figures it is known for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.suite.command import main
from benchmarks.suite.gateways import GATEWAYS, chain_of
from benchmarks.suite.goals import GOALS, goal_cases
from benchmarks.suite.job import BenchmarkJob
from benchmarks.suite.peers import PEERS, PROGRAMS, Peer
from benchmarks.suite.plan import FULL, QUICK, TOY, Case, make_plan
from benchmarks.suite.running import run_job, run_plan
from benchmarks.suite.scenarios import streams
from benchmarks.suite.scenarios.table import SCENARIOS
from benchmarks.suite.worker import measure
from mcp_actors.cli.bench.plan import Era, LoadError
from mcp_actors.cli.bench.results import METRICS, Document

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
    monkeypatch.setattr(streams, "BESIDE_WITHIN_SECONDS", 0.0)
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
            assert "floor_inline" not in case.peers or case.scenario.name == "roundtrip"
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
