"""The parts of a load without a server: its figures, its calls, its limits, and how answers are sorted."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import click
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.cli.bench.driver import incoming, outcome
from mcp_actors.cli.bench.load import figures, knee
from mcp_actors.cli.bench.plan import (
    MOST_CALLS,
    CallMix,
    LoadPlan,
    PlannedCall,
    Stage,
    ramp_stages,
    read_calls,
    tool_call,
)
from mcp_actors.cli.bench.recorder import LatencyCounts, LoadRecorder
from mcp_actors.cli.bench.report import parse_threshold

TIMES = st.lists(st.floats(1e-7, 500.0), min_size=1, max_size=200)


@given(TIMES, st.floats(0.0, 1.0))
def test_a_percentile_is_right_to_a_percent(times: list[float], share: float) -> None:
    counts = LatencyCounts()
    for each in times:
        counts.add(each)
    found, ordered = counts.percentile(share), sorted(times)
    wanted = ordered[max(0, min(len(times) - 1, -int(-share * len(times) // 1) - 1))]
    assert found == pytest.approx(wanted, rel=0.01, abs=2e-9)
    assert counts.highest == max(times)
    assert counts.mean == pytest.approx(sum(times) / len(times))


@given(TIMES, TIMES)
def test_merged_counts_are_those_of_all(first: list[float], second: list[float]) -> None:
    both, one, other = LatencyCounts(), LatencyCounts(), LatencyCounts()
    for counts, times in ((both, [*first, *second]), (one, first), (other, second)):
        for each in times:
            counts.add(each)
    one.merge(other)
    assert (one.total, one.highest) == (both.total, both.highest)
    assert [one.percentile(share) for share in (0, 0.5, 0.99, 1)] == [
        both.percentile(share) for share in (0, 0.5, 0.99, 1)
    ]
    assert HdrHistogram.decode(one.encoded()).total_count == both.total


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"id": 1, "result": {"content": []}}, ""),
        ({"result": {"structuredContent": {"id": 7, "isError": True}}, "id": 1}, ""),
        (
            {"id": 1, "result": {"content": [{"type": "text", "text": "no\u202e\n"}], "isError": True}},
            "tool error",
        ),
        ({"id": 1, "error": {"code": -32602, "message": "what?"}}, "rpc error -32602"),
        ({"id": 1, "error": "odd"}, "malformed answer"),
        ({"id": 1}, "malformed answer"),
        ({"id": 1, "result": {"resultType": "input_required", "inputRequests": {}}}, "input required"),
        ({"id": 1, "result": {"resultType": "complete"}}, ""),
    ],
)
def test_answers_are_sorted(message: dict[str, object], kind: str) -> None:
    found = incoming(json.dumps({"jsonrpc": "2.0"} | message).encode())
    assert found is not None
    assert found.id == 1
    how = outcome(found)
    assert how.kind == kind
    assert how.text.isprintable()


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"x"', b"\xff"])
def test_what_is_no_message_is_none(data: bytes) -> None:
    assert incoming(data) is None


def test_calls_are_drawn_by_their_weights() -> None:
    calls = [tool_call("add", {"a": 1}, 9), PlannedCall("resources/read", {"uri": "a:b"}, 1)]
    mix = CallMix("modern", calls, random.Random(1))
    drawn = [mix.draw(id) for id in range(2000)]
    counted = Counter(mix.labels[label] for _, label in drawn)
    assert mix.labels == ["add", "resources/read a:b"]
    assert 1700 < counted["add"] < 1900
    for id, (message, _) in enumerate(drawn[:20]):
        body = json.loads(message.data)
        assert body["id"] == message.id == id
        assert body["jsonrpc"] == "2.0"
        assert "io.modelcontextprotocol/protocolVersion" in body["params"]["_meta"]
    legacy, _ = CallMix("legacy", calls[:1], random.Random(1)).draw(3)
    assert json.loads(legacy.data)["params"] == {"name": "add", "arguments": {"a": 1}}


def test_a_file_of_calls_is_read(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text(
        '{"tool": "add", "arguments": {"a": 1}, "weight": 3}\n\n{"method": "prompts/get", "params": {"name": "p"}}\n'
    )
    assert read_calls(file) == [tool_call("add", {"a": 1}, 3), PlannedCall("prompts/get", {"name": "p"})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no calls"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1: write"),
        ('{"tool": "a", "method": "b"}', "line 1: write"),
        ('{"tool": "a", "wieght": 2}', "wieght is no member"),
        ('{"tool": "a", "weight": 0}', "above 0"),
        ('{"tool": "a", "weight": true}', "above 0"),
        ('{"tool": "a", "arguments": []}', "objects"),
        ('{"tool": 1}', "a name is text"),
        ('{"recording": 7}', "no recording of format"),
        ("\n".join(f'{{"tool": "t{number}"}}' for number in range(MOST_CALLS + 1)), "is the most"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "calls.jsonl").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_calls(tmp_path / "calls.jsonl")


@pytest.mark.parametrize(
    ("text", "figure", "limit", "crossed_by"),
    [
        ("p99>50ms", "p99", 0.05, 0.0501),
        ("p99.9 >= 1s", "p99.9", 1.0, 1.0),
        ("max>10us", "max", 1e-5, 1.0),
        ("errors>0", "errors", 0, 1),
        ("errors>1%", "errors%", 1, 1.1),
        ("throughput<1000", "throughput", 1000, 999),
        ("knee<100/s", "knee", 100, 0),
    ],
)
def test_a_limit_is_crossed_on_its_own_side(text: str, figure: str, limit: float, crossed_by: float) -> None:
    threshold = parse_threshold(text)
    assert (threshold.figure, threshold.limit) == (figure, pytest.approx(limit))
    assert threshold.text in threshold.crossed({figure: crossed_by})
    inside = limit / 2 if ">" in text else limit * 2
    assert threshold.crossed({figure: inside}) == ""
    assert "no such figure" in threshold.crossed({})


@pytest.mark.parametrize(
    "text", ["", "p99", "p99>50", "p98>1ms", "errors>1ms", "throughput<5%", "errors>1/s", "p99=1s"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_threshold(text)


def test_a_plan_is_read_as_it_was_written_and_shows_no_header() -> None:
    calls = [tool_call("add", {"a": 1}, 2)]
    plan = LoadPlan(
        "tcp://a:1", "legacy", "v", calls, ramp_stages(10, 1000, 5), headers={"Authorization": "Bearer x"}
    )
    assert LoadPlan.from_json(plan.to_json()) == plan
    assert "Bearer" not in repr(plan)


def test_a_ramp_goes_from_one_rate_to_the_other_by_equal_factors() -> None:
    stages = ramp_stages(100, 10_000, 30)
    rates = [stage.rate for stage in stages]
    assert (rates[0], rates[-1]) == (100, pytest.approx(10_000))
    assert [after / before for before, after in itertools.pairwise(rates)] == pytest.approx(
        [10 ** (2 / 9)] * 9
    )
    assert sum(stage.seconds for stage in stages) == pytest.approx(30)
    assert Stage(1, window=4).at == {"in_flight": 4}


def test_the_knee_is_the_last_rate_before_the_first_that_was_not_held() -> None:
    def stage(rate: int, held: bool) -> dict[str, object]:
        return {
            "at": {"arrivals_per_second": rate},
            "held": held,
            "per_second": rate,
            "total": {"count": 9, "p99": rate / 1e6},
        }

    stages = [stage(10, True), stage(20, True), stage(40, False), stage(80, True)]
    details = {"stages": stages, "ramp": True, "total": {"count": 90}, "failed": 10}
    assert knee(details) == 20
    assert figures(details) == {
        "p99": 20 / 1e6,
        "throughput": 20,
        "errors": 10,
        "errors%": 10.0,
        "knee": 20,
    }
    assert knee(details | {"stages": stages[2:]}) == 0
    assert knee(details | {"ramp": False}) is None


def test_kinds_of_failures_are_bounded() -> None:
    recorder = LoadRecorder(["add"])
    recorder.begin(0.0, 0.0)
    for number in range(1000):
        recorder.failed_call(0, f"rpc error {number}", "")
    assert len(recorder.failures) == 51
    assert recorder.failed == recorder.calls[0].failures == 1000
