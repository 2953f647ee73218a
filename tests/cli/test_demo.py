from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.abc.discovery import register_transport
from mcp_actors.cli.demo import load, servers, tour
from mcp_actors.cli.demo.demo import command, next_steps, plain_table, summary, tour_lines
from mcp_actors.cli.demo.load import DemoLoad, Tally, WrongAnswer
from mcp_actors.cli.demo.tour import TOUR, Demonstration, DemoStage, Shown
from mcp_actors.cli.output import rendered
from mcp_actors.testing import Faults, FaultyTransport
from mcp_transports.memory import MemoryTransport

from .conftest import LIMIT, Ran, Started, Terminal

pytestmark = pytest.mark.slow


def test_the_demo_makes_calls_over_every_binding_in_both_eras(mcp: Callable[..., Ran]) -> None:
    result = mcp("demo", "--sessions", "24", "--seconds", "1", "--seed", "7")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "seed 7" in result.stdout
    rows = [
        line.split()
        for line in result.stdout.splitlines()
        if re.match(r" *(memory|http|ws|tcp|stdio) ", line)
    ]
    assert {(row[0], row[1]) for row in rows} == {
        (binding.name, era) for binding in load.BINDINGS for era in load.ERAS
    }
    words = re.search(
        r"(\d[\d,]*) calls cancelled in flight, (\d[\d,]*) confirmed by their handlers\n", result.stdout
    )
    assert words is not None
    assert words[1] == words[2] != "0"
    assert " 0 errors" in result.stdout
    lines = result.stdout.splitlines()
    begins = [next(at for at, line in enumerate(lines) if line.startswith(each.title)) for each in TOUR]
    assert begins == sorted(begins)  # first what it can do, and then under what load
    assert begins[-1] < lines.index(next(line for line in lines if line.startswith("Under load")))


def test_what_it_says_to_type_next_works(
    mcp: Callable[..., Ran], environment: dict[str, str], tmp_path: Path
) -> None:
    shown = mcp("demo", "--sessions", "6", "--seconds", "0.2").stdout
    _, _, steps = shown.partition("What to type next")
    export, *commands = (line.strip() for line in steps.splitlines()[1:])
    (tmp_path / "a file of mine").touch()
    for step, said in zip(commands, ("list_directory", "a file of mine", "modern era"), strict=True):
        done = subprocess.run(
            ["bash", "-c", f"{export}\n{step}"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=tmp_path,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


def test_where_the_command_is_not_found_the_next_steps_name_this_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert f"\n  {shlex.quote(sys.executable)} -P -m mcp_actors list " in next_steps()


def test_the_tour_and_the_figures_each_fit_a_screen(terminal: Callable[..., Terminal]) -> None:
    """Of 80 columns and 24 rows, with a row for the prompt."""
    screen = terminal("demo", "--sessions", "60", "--seconds", "0.5", COLUMNS="80", LINES="24")
    assert screen.wait() == 0, screen.text
    rows = screen.text.removesuffix("\n").split("\n")
    drawn = [state for row in rows for state in row.split("\r")]
    assert [row for row in drawn if len(row) > 80] == []
    assert any("sessions live" in state for state in drawn)
    table = next(at for at, row in enumerate(rows) if row.startswith("binding, era")) - 1
    assert table <= 24  # the tour, what the load is, and the line that is written over
    assert len(rows) - table <= 23
    assert "alone" in rows[table]
    assert rows[-1].endswith('inspect "$SERVER"')


def test_as_json_it_is_one_document(mcp: Callable[..., Ran]) -> None:
    result = mcp("demo", "--sessions", "24", "--seconds", "0.5", "--seed", "7", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    whole = json.loads(result.stdout)
    assert [each["title"] for each in whole["tour"]] == [each.title for each in TOUR]
    assert [each for each in whole["tour"] if each["failed"] or not each["text"]] == []
    load = whole["load"]
    assert (load["seed"], load["interrupted"], load["error_examples"]) == (7, False, [])
    for member in ("sessions", "calls", "cancelled", "confirmed", "errors", "progress_reports"):
        assert sum(row[member] for row in load["rows"]) == load["total"][member]
    assert load["total"]["sessions"] == 24
    assert load["total"]["cancelled"] == load["total"]["confirmed"]


def test_a_module_in_the_current_folder_is_not_run(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "trio.py").write_text("open('taken over', 'w')\nraise SystemExit\n")
    # As the installed command, which has its own folder and not the current one among those of modules.
    words = [sys.executable, "-P", "-m", "mcp_actors", "demo", "--sessions", "24", "--seconds", "0.2"]
    result = subprocess.run(
        words, capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path, env=environment, check=False
    )
    assert " 0 errors" in result.stdout
    assert os.listdir(tmp_path) == ["trio.py"]


@pytest.mark.parametrize(("phase", "seconds"), [("40 calls a second", "600"), ("all sessions call", "6")])
def test_ctrl_c_ends_it_early_with_the_summary(started: Started, phase: str, seconds: str) -> None:
    with started("demo", "--sessions", "8", "--seconds", seconds, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while f"8 sessions live, {phase}" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, rest
    assert "8 sessions: " in rest
    assert " 0 errors" in rest
    assert "What to type next" in rest


def test_ctrl_c_in_the_tour_ends_all_of_it(started: Started) -> None:
    with started("demo", "--seconds", "600", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert "What it can do" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, rest
    assert "Under load" not in rest
    assert said == "mcp-actors: the demo was interrupted\n"


async def test_no_session_counts_as_live_when_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = next(binding for binding in load.BINDINGS if binding.name == "memory")
    monkeypatch.setattr(load, "BINDINGS", (memory,))
    whole = load.DemoLoad(6, 0.2, random.Random(1))
    await whole.run()
    assert [(row.opened, row.live) for row in whole.rows] == [(3, 0), (3, 0)]


def test_a_wrong_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    honest_server = servers.server

    def lying_server() -> Server:
        server = honest_server()
        server.remove_tool("add")

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b + 1

        return server

    memory = next(binding for binding in load.BINDINGS if binding.name == "memory")
    monkeypatch.setattr(load, "BINDINGS", (memory,))
    monkeypatch.setattr(load.servers, "server", lying_server)
    result = CliRunner().invoke(command, ["--sessions", "4", "--seconds", "60", "--seed", "1"])
    assert result.exit_code == 1
    assert "WrongAnswer" in result.output


async def test_no_demonstration_depends_on_the_speed_of_its_link(autojump_clock: MockClock) -> None:
    """Every message takes longer than anything that a function of the server waits for."""
    memory = MemoryTransport("tour")
    register_transport("slow-tour", lambda url: FaultyTransport(memory, Faults(latency=0.4)))
    sighting = servers.Sighting()
    server = servers.server_that_tells(sighting)
    outcomes: list[Shown] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, memory)
        async with Client("slow-tour:") as child:
            urls = dict.fromkeys(("HTTP", "WebSocket", "TCP"), "slow-tour:")
            await tour.take_tour(DemoStage(server, sighting, urls, child), outcomes.append)
        nursery.cancel_scope.cancel()
    # Access is refused by a listener on a real socket, which virtual time does not wait for.
    failed = [each for each in outcomes if each.failed and each.title != "authorization"]
    assert failed == []
    assert [each.title for each in outcomes] == [each.title for each in TOUR]


def test_a_demonstration_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lie(stage: DemoStage) -> str:
        raise WrongAnswer("this came instead")

    memory = next(binding for binding in load.BINDINGS if binding.name == "memory")
    monkeypatch.setattr(load, "BINDINGS", (memory,))
    monkeypatch.setattr(tour, "TOUR", (Demonstration("tools", lie), TOUR[0]))
    result = CliRunner().invoke(command, ["--sessions", "1", "--seconds", "0.1"])
    assert result.exit_code == 1
    assert "failed: WrongAnswer: this came instead" in result.output
    assert f"\n{TOUR[0].title} " in result.output  # the others are shown all the same


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    load = DemoLoad(300, 1, random.Random(0))
    for row in load.rows:
        row.opened, row.calls, row.cancelled, row.confirmed = row.planned, 123_456, 9_999, 9_999
        for latencies in (row.latencies.alone, row.latencies.steady, row.latencies.busy):
            latencies.add(0.9999)
    load.began, load.ended = 0.0, 10.0
    shown = [Shown(each.title, "words, " * 24) for each in TOUR]
    text = "\n".join([*(tour_lines(each, width) for each in shown), plain_table(load, width)])
    text += "\n" + summary(load, width)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", rendered(text))
    assert [line for line in plain.splitlines() if len(line) > width] == []
    for title in ("alone", "200/s", "sessions", "calls/s", "cancelled", "p50 ms", "p99 ms", "errors"):
        assert plain.count(f" {title}") >= 1  # a narrow terminal has every column too
    assert plain.count("words,") == 24 * len(TOUR)


def test_what_was_not_measured_is_not_told() -> None:
    load = DemoLoad(300, 1, random.Random(0))
    assert summary(load, 80).startswith("no latency was measured yet\n")
    load.rows[0].latencies.alone.add(0.0005)
    assert summary(load, 80).startswith("p50 of a call: 0.50 ms alone\n")


def test_sessions_are_dealt_out_to_the_bindings() -> None:
    def planned(sessions: int) -> dict[tuple[str, str], int]:
        return {(row.binding, row.era): row.planned for row in DemoLoad(sessions, 1, random.Random(0)).rows}

    assert sum(planned(300).values()) == 300
    assert len(planned(300)) == len(load.BINDINGS) * len(load.ERAS)
    assert planned(1) == {("memory", "modern"): 1}


def test_the_sum_of_rows() -> None:
    rows = [Tally("a", "legacy", 1, 1), Tally("b", "modern", 2, 1)]
    for number, row in enumerate(rows, 1):
        row.calls = number
        row.latencies.busy.add(number)
    rows[1].failures.add("x")
    total = Tally.total(rows)
    assert (total.planned, total.calls, total.failures.count, total.latencies.busy.count) == (3, 3, 1, 2)
