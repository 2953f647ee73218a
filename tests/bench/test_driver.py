"""The loops of a load over a field that a test plays the server of, on a clock that the field moves."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from mcp_actors.cli.bench.field import Arrival, Field, run_blocking
from mcp_actors.cli.bench.load import RunningLoad, document_of
from mcp_actors.cli.bench.plan import LoadError, LoadPlan, Message, Stage, ramp_stages, tool_call

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
    assert len(held) < 10
    rates = [stage["at"]["arrivals_per_second"] for stage in result["stages"] if stage["held"]]
    assert max(rates) <= 300


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
