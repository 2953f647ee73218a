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
from click.testing import CliRunner

from mcp_actors import Server
from mcp_actors.cli.demo import load, servers, tour
from mcp_actors.cli.demo.demo import command, plain_table, summary, tour_lines
from mcp_actors.cli.demo.load import DemoLoad, Tally, WrongAnswer
from mcp_actors.cli.demo.tour import TOUR, Demonstration, DemoStage, Shown
from mcp_actors.cli.output import rendered

from .conftest import LIMIT, Ran, Started


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


def test_what_it_says_to_type_next_works(mcp: Callable[..., Ran]) -> None:
    shown = mcp("demo", "--sessions", "6", "--seconds", "0.2").stdout
    commands = [shlex.split(line) for line in shown.partition("What to type next:\n")[2].splitlines()]
    assert [each[:2] for each in commands] == [["mcp-actors", word] for word in ("list", "serve", "inspect")]
    listed = mcp(*commands[0][1:])
    assert listed.returncode == 0, listed.stderr
    assert "tools (" in listed.stdout


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


def test_ctrl_c_ends_it_early_with_the_summary(started: Started) -> None:
    with started("demo", "--sessions", "8", "--seconds", "600", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while "sessions live" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, rest
    assert "8 sessions, " in rest


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
    rows = DemoLoad(300, 1, random.Random(0)).rows
    for row in rows:
        row.opened, row.calls, row.cancelled, row.confirmed = row.planned, 123_456, 9_999, 9_999
        row.latencies.add(0.9999)
    shown = [Shown(each.title, "words, " * 24) for each in TOUR]
    text = "\n".join([*(tour_lines(each, width) for each in shown), plain_table(rows, 10, width)])
    text += "\n" + summary(rows, 10, width)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", rendered(text))
    assert [line for line in plain.splitlines() if len(line) > width] == []
    for title in ("sessions", "calls", "calls/s", "cancelled", "confirmed", "p50 ms", "p99 ms", "errors"):
        assert plain.count(f" {title}") >= 1  # a narrow terminal has every column too
    assert plain.count("words,") == 24 * len(TOUR)


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
        row.latencies.add(number)
    rows[1].failures.add("x")
    total = Tally.total(rows)
    assert (total.planned, total.calls, total.failures.count, total.latencies.count) == (3, 3, 1, 2)
