"""The measurements themselves, too short to measure anything: they run, and refuse what is no good answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
FLOOR = (sys.executable, "-m", "benchmarks.peers.floor_http")
RUN_WITHIN_SECONDS = 60.0


def run(*arguments: str, server: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "http", *arguments, "--", *server]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_WITHIN_SECONDS, check=False
    )


def measured(*arguments: str, server: tuple[str, ...] = ()) -> dict[str, Any]:
    result = run(*arguments, server=server)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_load(era: str) -> None:
    answer = measured("load", "--era", era, "--number", "4", "--seconds", "0.1")
    assert answer["requests"] >= 4
    assert answer["per_second"] > 0


@pytest.mark.parametrize("options", [(), ("--inline",)])
def test_the_floor_is_loaded_alike(options: tuple[str, ...]) -> None:
    answer = measured("load", "--number", "4", "--seconds", "0.1", server=(*FLOOR, *options))
    assert answer["requests"] >= 4


def test_idle_sessions() -> None:
    assert measured("sessions", "--number", "20")["sessions"] == 20


def test_a_disconnect_ends_its_handler() -> None:
    answer = measured("disconnect", "--number", "3")
    assert answer["disconnects"] == 3
    assert answer["never"] == 0


def test_calls_beside_a_stalled_reader() -> None:
    answer = measured("stalled", "--number", "4", "--seconds", "0.1")
    assert answer["per_second_beside"] > 0


def test_wrong_answers_are_no_figure(tmp_path: Path) -> None:
    liar = tmp_path / "liar.py"
    liar.write_text(
        "import sys, trio\n"
        "from benchmarks.peers import floor_http\n"
        "async def add(a, b): return {'total': 0}\n"
        "floor_http.add = add\n"
        "trio.run(floor_http.main, int(sys.argv[-1]), True)\n"
    )
    command = f"import sys; sys.path.insert(0, '.'); exec(open({str(liar)!r}).read())"
    result = run("load", "--number", "2", "--seconds", "0.1", server=(sys.executable, "-c", command))
    assert result.returncode == 1
    assert "a wrong sum" in result.stderr


def test_a_server_that_does_not_start_is_no_figure() -> None:
    result = run("load", "--seconds", "0.1", server=(sys.executable, "-c", "raise SystemExit(3)"))
    assert result.returncode == 1
    assert "does not listen" in result.stderr
