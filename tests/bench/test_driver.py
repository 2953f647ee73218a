"""The loops of a load over a field that a test plays the server of, on a clock that the field moves."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from mcp_actors.cli.bench.bench import parse_threshold
from mcp_actors.cli.bench.driver import incoming, outcome
from mcp_actors.cli.bench.field import Arrival, Field, channels, run_blocking
from mcp_actors.cli.bench.load import RunningLoad, document_of, figures, knee
from mcp_actors.cli.bench.plan import (
    MOST_CALLS,
    CallMix,
    LoadError,
    LoadPlan,
    Message,
    PlannedCall,
    Stage,
    opening,
    ramp_stages,
    read_calls,
    tool_call,
)
from mcp_actors.cli.bench.recorder import LoadRecorder, encoded
from mcp_actors.supervision.histogram import Histogram
from mcp_transports.memory import MemoryTransport
from tests.actors.peers import AsksForAccess, counting

Answer = Callable[["ScriptedField", int, dict[str, Any]], None]
# Seconds that each message takes to send: what takes none has no rate.
SENDING = 2e-5


class FieldClock:
    """Stands for `time.perf_counter`. It moves when the field sends or waits, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


CLOCK = FieldClock()


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", CLOCK)


class ScriptedField(Field):
    """Gives each message to a function, which may answer it at once, later, or make trouble."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("legacy")
        self.answer = answer
        self.found: list[Arrival] = []
        self.later: list[tuple[float, int, dict[str, Any]]] = []
        self.cancelled: list[int] = []
        self.abandoned: list[int] = []
        self.replies: list[dict[str, Any]] = []
        self.refuses: int = 0
        self._lanes = itertools.count(1)

    def reply(self, lane: int, id: Any, result: Any = None, after: float = 0.0, **members: Any) -> None:
        message = {"jsonrpc": "2.0", "id": id} | (members or {"result": result or {}})
        self.later.append((time.perf_counter() + after, lane, message))

    async def connect(self) -> int:
        if self.refuses:
            self.refuses -= 1
            raise LoadError("nobody listens")
        return next(self._lanes)

    def post(self, lane: int, message: Message) -> None:
        CLOCK.now += SENDING
        body = json.loads(message.data)
        if body.get("method") == "initialize":
            self.reply(lane, body["id"], {"protocolVersion": "agreed"})
        elif "method" not in body:
            self.replies.append(body)
        elif "id" in body:
            self.answer(self, lane, body)

    def cancel(self, lane: int, id: int) -> None:
        self.cancelled.append(id)

    def abandon(self, lane: int, id: int) -> None:
        self.abandoned.append(id)

    async def arrivals(self, until: float | None = None) -> list[Arrival]:
        assert until is not None
        if self.troubles:
            return []
        CLOCK.now = max(CLOCK.now, min([until, *(each[0] for each in self.later)]))
        due = [each for each in self.later if each[0] <= CLOCK.now]
        self.later = [each for each in self.later if each[0] > CLOCK.now]
        return [(lane, json.dumps(message).encode()) for _, lane, message in due]

    async def leave(self, lane: int) -> None: ...

    async def pause(self, seconds: float) -> None: ...

    async def stall(self, lane: int) -> None: ...


def loaded(
    answer: Answer, *stages: Stage, field: ScriptedField | None = None, **options: Any
) -> dict[str, Any]:
    plan = LoadPlan("tcp://nowhere", "legacy", "", [tool_call("add", {})], list(stages), seed=1, **options)
    return run_blocking(RunningLoad(plan, lambda _: None).run(field or ScriptedField(answer)))


def at_once(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
    field.reply(lane, body["id"])


def test_a_closed_loop_ends_after_so_many_calls_and_all_are_answered() -> None:
    result = loaded(at_once, Stage(60, window=4, calls=100))
    assert result["total"]["count"] == 100
    assert result["failed"] == 0
    (stage,) = result["stages"]
    assert stage["at"] == {"in_flight": 4}
    assert len(stage["slices"]) == 10
    assert result["sessions"] == {"opened": 1, "wanted": 1, "lost": 0}


def test_a_stage_is_over_with_the_last_of_its_calls() -> None:
    began = CLOCK.now
    result = loaded(at_once, Stage(60, window=4, calls=100))
    assert result["total"]["count"] == 100
    assert CLOCK.now - began < 1


def test_no_more_are_in_flight_than_the_window() -> None:
    flying, most = set[int](), 0

    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        nonlocal most
        flying.difference_update(
            {each for each in flying if each not in {m["id"] for _, _, m in field.later}}
        )
        flying.add(body["id"])
        most = max(most, len(flying))
        field.reply(lane, body["id"], after=0.001)

    loaded(answer, Stage(60, window=3, calls=60))
    assert most == 3


def test_a_stall_counts_for_every_call_that_was_due_meanwhile() -> None:
    stalled = 0.1
    began: list[float] = []

    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        began.append(time.perf_counter())
        field.reply(lane, body["id"], after=max(0.0, began[0] + stalled - time.perf_counter()))

    result = loaded(answer, Stage(0.2, rate=500))
    assert 90 <= result["total"]["count"] <= 100
    # Half of them were due during the stall, the first one waits for all of it.
    assert result["total"]["max"] >= stalled * 0.95
    assert result["total"]["p90"] > stalled * 0.5


def test_failures_are_counted_by_kind_and_end_nothing() -> None:
    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        turn = body["id"] % 4
        if turn == 0:
            field.reply(lane, body["id"], error={"code": -32000, "message": "busy"})
        elif turn == 1:
            field.reply(lane, body["id"], {"isError": True, "content": [{"type": "text", "text": "no"}]})
        elif turn == 2:
            field.fail(lane, body["id"], "http 503", "503 later")
        else:
            field.reply(lane, body["id"])

    result = loaded(answer, Stage(60, window=2, calls=200))
    counts = {kind: found["count"] for kind, found in result["failures"].items()}
    assert set(counts) == {"rpc error -32000", "tool error", "http 503"}
    assert sum(counts.values()) + result["total"]["count"] == 200
    assert result["failures"]["tool error"]["example"] == "no"


def test_a_call_without_an_answer_times_out_and_is_cancelled() -> None:
    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        if body["id"] % 10:
            field.reply(lane, body["id"])

    field = ScriptedField(answer)
    result = loaded(answer, Stage(60, window=20, calls=40), field=field, timeout=0.05)
    assert result["failures"]["timeout"]["count"] == len(field.cancelled) == len(field.abandoned) > 0
    assert result["total"]["count"] + result["failed"] == 40


def test_a_lost_session_costs_its_calls_and_is_opened_again() -> None:
    broken: list[int] = []

    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        if body["id"] > 20 and not broken:
            broken.append(lane)
            field.fail(lane, None, "connection lost", "the server closed a connection")
        elif lane not in broken:
            field.reply(lane, body["id"])

    result = loaded(answer, Stage(60, window=4, calls=60), sessions=2)
    assert result["sessions"]["lost"] == 1
    assert 1 <= result["failures"]["connection lost"]["count"] <= 4
    assert result["total"]["count"] + result["failed"] == 60


def test_cancelled_calls_are_told_apart_by_what_the_server_does_then() -> None:
    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        field.reply(lane, body["id"], after=0.004)

    field = ScriptedField(answer)
    result = loaded(answer, Stage(0.3, window=8), field=field, cancel_share=0.5)
    cancelled = result["cancelled"]
    assert cancelled["sent"] == len(field.cancelled) > 0
    # This one answers as if nothing had happened, but for those that the end of the load met.
    assert 0 < cancelled["answered"]["count"] <= cancelled["sent"]
    assert cancelled["answered"]["max"] < 0.1
    assert result["failed"] == 0


def test_a_ramp_ends_behind_the_knee() -> None:
    free = [0.0]

    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        # A server that takes four milliseconds for each, one after the other.
        free[0] = max(free[0], time.perf_counter()) + 0.004
        field.reply(lane, body["id"], after=free[0] - time.perf_counter())

    result = loaded(answer, *ramp_stages(50, 5000, 2.0))
    held = [stage["held"] for stage in result["stages"]]
    assert held[0]
    assert held[-2:] == [False, False]
    # That is the server's doing, although the load was late: it had too many in flight.
    assert not any(stage["missed"] or stage["repeats"] for stage in result["stages"])
    assert len(held) < 10
    rates = [stage["at"]["arrivals_per_second"] for stage in result["stages"] if stage["held"]]
    assert max(rates) <= 300


def stalling(stalls: Callable[[int], bool]) -> Answer:
    """A server that answers at once, to a load that now and then does nothing for half a second."""
    calls = itertools.count(1)

    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        field.reply(lane, body["id"], after=0.0005)
        if stalls(next(calls)):
            CLOCK.now += 0.5

    return answer


def test_a_step_that_the_load_itself_missed_is_made_again() -> None:
    # In the second step of the ramp; all steps together have some 1,200 calls.
    result = loaded(stalling(lambda number: number == 40), *ramp_stages(100, 1000, 3.0))
    assert [stage["held"] for stage in result["stages"]] == [True] * 10
    assert [stage["repeats"] for stage in result["stages"]] == [0, 1] + [0] * 8
    assert knee(result) == 1000


def test_a_step_that_the_load_missed_each_time_is_not_judged() -> None:
    result = loaded(
        stalling(lambda number: 40 <= number < 160 and number % 10 == 0), *ramp_stages(100, 1000, 3.0)
    )
    missed = [stage for stage in result["stages"] if stage["missed"]]
    assert {stage["repeats"] for stage in missed} == {2}
    assert knee(result) == max(
        stage["at"]["arrivals_per_second"] for stage in result["stages"] if stage["held"]
    )
    plan = LoadPlan("tcp://nowhere", "legacy", "", [tool_call("add", {})], ramp_stages(100, 1000, 3.0))
    assert "missed by the load itself, 3 times: this rate is not judged" in str(
        document_of(plan, "s", result, 3.0).warnings
    )


def test_a_server_without_sessions_is_said_in_one_line() -> None:
    field = ScriptedField(at_once)
    field.refuses = 10**9
    with pytest.raises(LoadError, match="no session could be opened: nobody listens"):
        loaded(at_once, Stage(1, window=1), field=field)


def test_a_load_without_a_good_answer_says_why() -> None:
    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        field.reply(lane, body["id"], error={"code": -32602, "message": "Unknown tool"})

    with pytest.raises(LoadError, match=r"every call failed \(rpc error -32602, 30 of 30\): Unknown tool"):
        loaded(answer, Stage(60, window=3, calls=30))


def test_questions_of_the_server_are_answered() -> None:
    asked: list[int] = []

    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        if not asked:
            asked.append(body["id"])
            field.later.append((0.0, lane, {"jsonrpc": "2.0", "id": "a", "method": "ping"}))
            field.later.append((0.0, lane, {"jsonrpc": "2.0", "id": "b", "method": "roots/list"}))
            field.later.append(
                (0.0, lane, {"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
            )
        field.reply(lane, body["id"])

    field = ScriptedField(answer)
    result = loaded(answer, Stage(60, window=1, calls=20), field=field)
    assert result["total"]["count"] == 20
    assert [(each["id"], "result" in each) for each in field.replies] == [("a", True), ("b", False)]


def test_a_person_ends_it_early_and_has_the_figures() -> None:
    loads: list[RunningLoad] = []

    def answer(field: ScriptedField, lane: int, body: dict[str, Any]) -> None:
        if body["id"] == 50:
            loads[0].stop()
        field.reply(lane, body["id"])

    plan = LoadPlan("tcp://nowhere", "legacy", "", [tool_call("add", {})], [Stage(600, window=2)])
    loads.append(RunningLoad(plan, lambda _: None))
    result = run_blocking(loads[0].run(ScriptedField(answer)))
    assert result["interrupted"]
    assert 45 <= result["total"]["count"] <= 60


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@example.org/mcp?key=secret#x", "https://example.org/mcp"),
        ("stdio:/opt/serve --token=secret", "stdio:serve"),
    ],
)
def test_what_is_kept_of_a_run_has_no_secrets_of_the_address(url: str, shown: str) -> None:
    headers = {"Authorization": "Bearer secret"}
    plan = LoadPlan(
        url, "legacy", "", [tool_call("add", {})], [Stage(60, window=1, calls=10)], headers=headers
    )
    result = run_blocking(RunningLoad(plan, lambda _: None).run(ScriptedField(at_once)))
    document = document_of(plan, "adder 1", result, 1.0)
    assert document.options["url"] == shown
    assert "secret" not in repr(document)


# -- The parts of a load without a server: its figures, its calls, its limits, and how answers are sorted ---

TIMES = st.lists(st.floats(1e-7, 500.0), min_size=1, max_size=200)


@given(TIMES, st.floats(0.0, 1.0))
def test_a_percentile_is_right_to_a_percent(times: list[float], share: float) -> None:
    counts = Histogram()
    for each in times:
        counts.add(each)
    found, ordered = counts.quantile(share), sorted(times)
    wanted = ordered[max(0, min(len(times) - 1, -int(-share * len(times) // 1) - 1))]
    assert found == pytest.approx(wanted, rel=0.01, abs=2e-9)
    assert counts.largest == max(times)
    assert counts.mean == pytest.approx(sum(times) / len(times))


@given(TIMES, TIMES)
def test_merged_counts_are_those_of_all(first: list[float], second: list[float]) -> None:
    both, one, other = Histogram(), Histogram(), Histogram()
    for counts, times in ((both, [*first, *second]), (one, first), (other, second)):
        for each in times:
            counts.add(each)
    one.merge(other)
    assert (one.count, one.largest) == (both.count, both.largest)
    assert [one.quantile(share) for share in (0, 0.5, 0.99, 1)] == [
        both.quantile(share) for share in (0, 0.5, 0.99, 1)
    ]
    assert HdrHistogram.decode(encoded(one.values())).total_count == both.count


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
        ('{"tool": "a", "wieght": 2}', "wieght is not a member"),
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


async def test_what_a_channel_says_of_access_is_no_arrival() -> None:
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(counting().serve, transport)
        async with channels("legacy", AsksForAccess(transport)) as field:
            lane = await field.connect()
            field.post(lane, opening("legacy", 1))
            assert [json.loads(data)["id"] for _, data in await field.arrivals()] == [1]
        nursery.cancel_scope.cancel()
