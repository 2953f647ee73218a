"""``mcp-actors top``: what is shown, what keys do, and what a hostile server can make of the terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mcp_actors._actors.dispatcher import Counters
from mcp_actors.cli.top import command
from mcp_actors.cli.top.panes import PANES, seconds
from mcp_actors.cli.top.screen import TopState, everything, picture, split
from mcp_actors.extensions import TaskStatistics
from mcp_actors.server import CallStatistics, ProcessStatistics, SessionStatistics
from mcp_actors.supervision.containment import Crash
from mcp_actors.telemetry.exposition import FINE_BUCKETS
from mcp_actors.telemetry.history import OperationRow
from mcp_actors.telemetry.live_view import Action
from mcp_actors.telemetry.snapshot import HealthTrouble, KindRow, NodeSnapshot, Queues, Rates, Snapshot

from .conftest import SERVED, Ran, Started, announced

TOOLS, CALLS, TASKS, SESSIONS, UPSTREAMS, NODES, CRASHES, ENGINE = range(8)
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\r\n日本語"


def call(number: int, age: float = 1.0, target: str = "forecast") -> CallStatistics:
    return CallStatistics(
        key=f"key{number}",
        session=f"s#{number}",
        method="tools/call",
        target=target,
        principal="alice",
        id=str(number),
        age=age,
        state="running",
    )


def session(number: int, client: str = "probe") -> SessionStatistics:
    return SessionStatistics(
        name=f"s#{number}",
        client=client,
        version="2025-11-25",
        principal="alice",
        peer="127.0.0.1:1",
        state="open",
        age=5.0,
        calls=(),
        pending=(),
        link=None,
        counters=Counters(requests=10 * number),
        in_flight=number,
    )


def node(name: str = "n1", calls: int = 3, sessions: int = 2, text: str = "x") -> NodeSnapshot:
    queues = Queues(
        sessions=sessions,
        running=calls,
        running_limit=10,
        waiting=0,
        queued=0,
        blocked=0,
        subscriptions=0,
        events=0,
        in_flight_bytes=0,
        in_flight_limit=1,
        kept_bytes=0,
        kept_limit=1,
    )
    kind = KindRow(name="drain", supervisor="server", costs="nothing", restarted=True, tasks=1, crashes=2)
    return NodeSnapshot(
        node=name,
        server=text,
        version=text,
        host=text,
        pid=7,
        state="serving",
        uptime=100,
        at=1e9,
        lag=0.001,
        queues=queues,
        rates=Rates(requests=12345.0, cancelled=0, malformed=0, refused=0, events=0),
        sessions=[session(each, text) for each in range(sessions)],
        calls=[call(each, float(each), text) for each in range(calls)],
        kinds=[kind],
        crashes=[Crash(kind=text, task=text, error=text, at=1e300, restarted=True)],
        processes=[ProcessStatistics(1, 7, "busy", text, 2.0, 3, 4, text)],
        note=text,
    )


def state(*nodes: NodeSnapshot) -> TopState:
    return TopState(snapshot=snapshot(*nodes), number=CALLS)


def snapshot(*nodes: NodeSnapshot, troubles: Sequence[HealthTrouble] = ()) -> Snapshot:
    return Snapshot(at=1e9, interval=1.0, watchers=1, nodes=list(nodes), troubles=list(troubles))


def press(top: TopState, *names: str) -> list[Action]:
    return [action for name in names if (action := top.press(name)) is not None]


def text_of(top: TopState, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in picture(top, "unix:/x", width, height))


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 60), (20, 5), (1, 1)])
@pytest.mark.parametrize("pane", range(len(PANES)))
def test_every_pane_fits_its_terminal(size: tuple[int, int], pane: int) -> None:
    width, height = size
    top = state(node(calls=100, sessions=100, text=HOSTILE), *(node(f"n{each}") for each in range(9)))
    top.number = pane
    lines = picture(top, "unix:/x", width, height)
    assert len(lines) == max(height, 1)
    assert all(cell_len(line.plain) <= width for line in lines)


def test_the_eleventh_pane_has_the_processes_of_functions() -> None:
    top = state(node(text="render"))
    press(top, "-")
    lines = text_of(top, 120).splitlines()
    assert " - processes 1 " in lines[2]
    assert lines[4].split() == ["1", "busy", "render", "2.00s", "3", "4", "render", "7"]


@pytest.mark.parametrize("pane", range(len(PANES)))
def test_no_control_character_of_a_server_reaches_the_terminal(pane: int) -> None:
    top = state(node(HOSTILE, text=HOSTILE))
    top.number = pane
    lines = [*picture(top, HOSTILE, 120, 30), *everything(state(node(HOSTILE, text=HOSTILE)), HOSTILE)]
    assert all(line.plain.isprintable() for line in lines)


def test_json_for_scripts_does_not_steer_a_terminal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hostile:
        async def snapshot(self) -> Snapshot:
            await trio.lowlevel.checkpoint()
            return Snapshot(at=1e9, interval=1.0, watchers=1, nodes=[node(HOSTILE, text=HOSTILE)])

    monkeypatch.setattr("mcp_actors.cli.top.screen.client_of", lambda where, token: Hostile())
    shown = CliRunner().invoke(command, ["--json", "unix:/x"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["nodes"][0]["server"] == HOSTILE
    assert all(each.isprintable() or each == "\n" for each in shown.stdout)


def test_the_oldest_call_is_first_and_keys_sort_and_turn_round() -> None:
    top = state(node())
    assert [row.key[1] for row in top.rows()] == ["key2", "key1", "key0"]
    press(top, "r")
    assert [row.key[1] for row in top.rows()] == ["key0", "key1", "key2"]
    press(top, "tab", "tab", "s")
    assert PANES[top.number].name == "sessions"
    assert PANES[top.number].columns[top.choice.sort].title == "REQ/S"


def test_numbers_of_a_server_that_is_gone_are_not_shown_as_new_ones() -> None:
    top = state(node())
    top.trouble = "no live view at unix:/x"
    lines = picture(top, "unix:/x", 80, 24)
    assert lines[0].plain.startswith("GONE, what is below is 0.0")
    assert lines[0].plain.rstrip().endswith("s old; trying again: no live view at unix:/x")
    assert {line.style for line in lines[1:-1] if line.plain} == {"dim"}
    press(top, "4", "x", "n")
    assert text_of(top).endswith("nothing was done")
    assert top.snapshot is not None
    top.take(top.snapshot)
    assert "GONE" not in text_of(top)


def test_whether_it_is_healthy_is_said_first() -> None:
    top = state(node())
    assert text_of(top).startswith("mcp-actors top  healthy  unix:/x")
    late = [HealthTrouble(node="n1", grave=False, text="late")]
    top.take(snapshot(node(), troubles=late))
    assert text_of(top).startswith("mcp-actors top  healthy  unix:/x")
    assert text_of(top).splitlines()[1] == "! late"
    top.take(snapshot(node(), troubles=[HealthTrouble(node="n1", grave=True, text=HOSTILE)] * 9))
    lines = picture(top, "unix:/x", 80, 24)
    assert lines[0].plain.startswith("mcp-actors top  9 troubles  ")
    assert [str(line.style) for line in lines[1:5]] == ["bold red"] * 3 + [""]
    assert all(line.plain.isprintable() for line in lines)


def test_tools_are_shown_with_what_they_take_and_how_many_failed() -> None:
    buckets = [0] * (len(FINE_BUCKETS) + 1)
    buckets[FINE_BUCKETS.index(0.01)] = 90
    row = OperationRow(
        method="tools/call",
        target="save",
        ended=90,
        rate=2.5,
        calls=90,
        failed=9,
        buckets=buckets,
        series=[0] * 30 + [3] * 30,
        series_failed=[0] * 60,
    )
    upstream = msgspec.structs.replace(row, method="", target=None, upstream="a")
    top = state(msgspec.structs.replace(node(), operations=[row, upstream]))
    top.number = TOOLS
    (shown,) = top.rows()
    assert shown.cells[:4] == ("save", "2.5", "90", "9")
    assert shown.cells[4:6] == ("8.5ms", "9.97ms")
    assert shown.cells[6] == " " * 10 + "█" * 10
    assert shown.style == "red"


def test_a_supervisor_is_no_trouble_and_a_worker_that_is_gone_is() -> None:
    supervisor = msgspec.structs.replace(node("supervisor"), queues=None, note="2 of 2 workers")
    gone = msgspec.structs.replace(node("worker 2"), queues=None, state="gone", note="killed")
    silent = msgspec.structs.replace(node("n3"), note="silent for 3.0 s")
    well = msgspec.structs.replace(node("n4"), note=None)
    top = state(supervisor, gone, silent, well)
    top.number = NODES
    styles = {row.key[0]: row.style for row in top.rows()}
    assert styles == {"supervisor": "", "worker 2": "red", "n3": "red", "n4": ""}


def test_the_keys_are_explained_until_the_next_one() -> None:
    top = state(node())
    press(top, "?")
    assert "end the chosen call, task or session" in text_of(top, 120)
    assert len(picture(top, "unix:/x", 80, 10)) == 10
    # A usual terminal has room for every word, and none is cut.
    lines = [line.plain for line in picture(top, "unix:/x", 80, 24)]
    assert "…" not in "".join(lines)
    assert (len(lines), max(map(len, lines)) <= 80) == (24, True)
    assert "processes of functions" in " ".join(" ".join(lines).split())
    assert any(line.startswith("red") for line in lines)
    assert press(top, "x") == []
    assert (top.helping, top.wanted) == (False, None)


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 200])
@pytest.mark.parametrize("pane", range(len(PANES)))
def test_a_column_is_shown_whole_or_not_at_all(width: int, pane: int) -> None:
    top = state(node())
    top.number = pane
    titles = text_of(top, width).splitlines()[3].replace("▼", " ").split()
    assert titles == [each.title for each in PANES[pane].columns[: len(titles)]]
    assert len(titles) == len(PANES[pane].columns) or width < 120


def test_what_is_left_out_of_a_large_server_is_said() -> None:
    large = node(calls=3, sessions=2)
    assert large.queues is not None
    many = msgspec.structs.replace(large.queues, running=240, waiting=10, sessions=100_000)
    top = state(node("n2"), msgspec.structs.replace(large, queues=many))
    assert " 2 calls 6 of 253   4 sessions 4 of 100.0k   6 nodes 2   7 crashes 2   0 engine 2 " in text_of(
        top, 120
    )


def test_a_filter_shows_only_rows_with_the_text() -> None:
    top = state(node(calls=2))
    press(top, "/", *"S#1", "enter")
    assert [row.key[1] for row in top.rows()] == ["key1"]
    assert "/S#1" in text_of(top)
    press(top, "escape")
    assert len(top.rows()) == 2


def test_the_chosen_row_stays_chosen_where_it_moves_and_when_it_is_gone() -> None:
    top = state(node(calls=3))
    top.rows()
    press(top, "down")
    assert top.choice.key == ("n1", "key1")
    press(top, "r")
    top.rows()
    assert (top.choice.key, top.choice.index) == (("n1", "key1"), 1)
    top.take(state(node(calls=1)).snapshot)  # type: ignore[arg-type]
    top.rows()
    assert top.choice.key == ("n1", "key0")
    top.take(state(node(calls=0)).snapshot)  # type: ignore[arg-type]
    assert top.rows() == []
    assert press(top, "x", "y") == []


def test_nothing_is_ended_without_a_yes() -> None:
    top = state(node())
    top.rows()
    assert press(top, "x") == []
    asked = text_of(top, 120).splitlines()[-1]
    assert asked == "cancel the call of x, 2.00s old, of alice, and tell its client? y/n"
    assert press(top, "q") == []
    assert not top.done
    assert press(top, "x", "y") == [Action("cancel_call", "n1", "key2")]
    press(top, "4", "x")
    asked = text_of(top, 120).splitlines()[-1]
    assert asked == "end the session of x, 5.00s old, of alice, with 1 calls, and tell its client? y/n"
    assert press(top, "y") == [Action("end_session", "n1", "s#1")]
    assert press(top, "8", "x") == []
    assert "only calls, tasks and sessions" in text_of(top)


def test_a_task_of_a_client_is_cancelled() -> None:
    task = TaskStatistics(
        key="k1",
        tool="report",
        principal=None,
        state="working",
        message="page 3",
        age=185.0,
        left=None,
        runs=1,
    )
    top = state(msgspec.structs.replace(node(), tasks=[task], running_tasks=1))
    press(top, "3", "x")
    asked = text_of(top, 120).splitlines()[-1]
    assert asked.startswith("cancel the task of report, 3m05 old, of a caller who is not authenticated")
    assert press(top, "y") == [Action("cancel_task", "n1", "k1")]


def test_what_is_paused_stays_and_what_is_typed_is_bounded() -> None:
    top = state(node(calls=1))
    press(top, " ")
    top.take(state(node(calls=3)).snapshot)  # type: ignore[arg-type]
    assert len(top.rows()) == 1
    assert "PAUSED" in text_of(top)
    press(top, "/", *("a" * 500))
    assert len(top.pattern) == 60
    press(top, "enter", "q")
    assert top.done


@given(st.binary(max_size=40))
def test_any_bytes_are_keys_or_nothing(data: bytes) -> None:
    top = state(node())
    top.rows()
    for name in split(data):
        assert name.isprintable()
        top.press(name)
    assert text_of(top)


def test_sequences_of_a_terminal_are_keys() -> None:
    assert list(split(b"\x1b[A\x1bOBq\x1b[5~\xc3\xa9\x1b[99X\t\x7f\x1b")) == [
        "up",
        "down",
        "q",
        "page up",
        "é",
        "tab",
        "backspace",
        "escape",
    ]


def test_times_are_short() -> None:
    assert [seconds(each) for each in (0.123, 12.3, 185, 7380, 370000, 1e6)] == [
        "0.12s",
        "12s",
        "3m05",
        "2h03",
        "4d06",
        "11d13",
    ]


@pytest.mark.slow
def test_without_a_terminal_it_prints_one_snapshot(
    mcp: Callable[..., Ran], started: Started, tmp_path: Path
) -> None:
    where = f"unix:{tmp_path}/admin.sock"
    words = ("serve", str(SERVED), "--listen", "http://127.0.0.1:0/mcp", "--admin", where)
    with started(*words, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        announced(process.stderr)
        shown = mcp("top", where)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "req/s" in shown.stdout
        assert "companion" in shown.stdout
        found: Any = json.loads(mcp("top", "--json", where).stdout)
    assert found["nodes"][0]["pid"] == process.pid


@pytest.mark.slow
def test_a_server_that_is_not_there_and_a_place_that_is_none(mcp: Callable[..., Ran], tmp_path: Path) -> None:
    missing = mcp("top", f"unix:{tmp_path}/none.sock")
    assert missing.returncode == 1
    assert "no live view at unix:" in missing.stderr
    assert "`mcp-actors serve --admin`" in missing.stderr
    empty = mcp("top", "unix:")
    assert (empty.returncode, "unix: needs a path" in empty.stderr) == (2, True)
    assert mcp("top", "ftp://x").returncode == 2
    assert mcp("serve", str(SERVED), "--admin", "http://0.0.0.0:1").returncode == 2


def test_the_chosen_row_stays_between_the_first_and_the_last() -> None:
    top = state(node(sessions=2))
    top.number = SESSIONS
    press(top, *["down"] * 5)
    assert top.choice.index == len(top.rows()) - 1
    press(top, *["up"] * 5)
    assert top.choice.index == 0
