"""``mcp-actors bench``: loads of parts of a second on our own server, and what is made of their figures."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mcp_actors import Client
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.bench.bench import command
from mcp_actors.cli.bench.load import figures
from mcp_actors.cli.bench.plan import read_calls
from mcp_actors.cli.bench.recorder import encoded
from mcp_actors.cli.bench.report import page, summary_lines
from mcp_actors.cli.bench.results import Document, ResultRow, milliseconds
from mcp_actors.testing import RecordingTransport
from tests.cli.conftest import LIMIT, ROOT, SERVED, Mcp, announced
from tests.cli.test_serve import serving
from tests.pages import programs

pytestmark = pytest.mark.slow

# So many calls, and not so many seconds, in which a busy machine makes none or misses a part of the run.
FEW = ("--warm-up", "0", "--calls", "200")
PAGE = (ROOT / "docs" / "how-to" / "bench.md").read_text()


def test_a_load_over_stdio_with_its_files(mcp: Mcp, url: str, tmp_path: Path) -> None:
    names = "--json", "run.json", "--html", "run.html"
    done = mcp("bench", url, "add", "a=1", *FEW, *names, "--cancel", "0.2", "--fail-if", "errors>0")
    assert done.returncode == 0, done.stderr
    assert "served 1.2 (modern, 2026-07-28, stdio, 1 session) answered" in done.stdout
    assert "with 16 in flight" in done.stdout
    assert "calls were cancelled in flight" in done.stdout
    assert "opening sessions: " in done.stderr  # while it ran
    document = Document.read(tmp_path / "run.json")
    assert {row.transport for row in document.rows} == {"stdio"}
    # A part ends with a tenth of the calls, of which those that were cancelled count in none.
    assert 8 <= len(document.rows) <= 10
    assert document.details["total"]["count"] > 50
    assert document.details["failed"] == 0
    text = (tmp_path / "run.html").read_text()
    assert text.index("answered") < text.index("<svg") < text.index('<h2 id="s1">Figures')
    assert "http://" not in re.sub(r"http://www\.w3\.org\S*", "", text)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_crossed_limits_end_with_a_code_of_their_own(mcp: Mcp, tmp_path: Path, era: str) -> None:
    (tmp_path / "calls.jsonl").write_text(
        '{"tool": "add", "arguments": {"a": 1}, "weight": 3}\n{"tool": "refuse"}\n'
        '{"method": "resources/read", "params": {"uri": "nothing://here"}}\n'
    )
    with serving(SERVED, "--listen", "http://127.0.0.1:0/mcp") as (_, (port,)):
        at = f"http://127.0.0.1:{port}/mcp"
        limits = ("--fail-if", "p99>1us", "--fail-if", "errors>0", "--fail-if", "throughput<1")
        load = ("--sessions", "3", "--rate", "200", "--calls-file", "calls.jsonl", "--era", era, "-q")
        done = mcp("bench", at, *load, *FEW, *limits, "--header", "X-Key:secret", "--json", "run.json")
    assert done.returncode == 6, done.stderr
    assert "crossed: p99>1us: p99 is" in done.stderr
    assert "crossed: errors>0: errors is" in done.stderr
    assert "throughput<1" not in done.stderr
    assert re.search(r"^tool error +\d+ +no, because", done.stdout, re.MULTILINE)
    assert re.search(r"^rpc error -32\d+ ", done.stdout, re.MULTILINE)
    assert re.search(r"^add +\d+ ", done.stdout, re.MULTILINE)
    assert "secret" not in (tmp_path / "run.json").read_text() + done.stdout + done.stderr


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_load_over_a_socket(mcp: Mcp, started: Any, scheme: str, tmp_path: Path) -> None:
    at = f"{scheme}://127.0.0.1:0" + ("/mcp" if scheme == "ws" else "")
    with started("serve", str(SERVED), "--listen", at, stderr=-1) as process:
        found = re.search(r" at (\S+)", announced(process.stderr))
        assert found is not None
        done = mcp(
            "bench", found[1], "add", "a=1", "--calls", "200", "--warm-up", "0", "--sessions", "2", "-q"
        )
    assert done.returncode == 0, done.stderr
    assert "0 failed" in done.stdout
    assert done.stderr == ""


def test_a_load_that_fails_altogether_says_why_in_one_line(mcp: Mcp, url: str) -> None:
    done = mcp("bench", url, "refuse", "--calls", "40", "--warm-up", "0", "-q")
    assert done.returncode == 1
    assert "mcp-actors: every call failed (tool error, 40 of 40): no, because" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_tool_that_is_not_there(mcp: Mcp, url: str) -> None:
    done = mcp("bench", url, "ad")
    assert done.returncode == 2
    assert "the server has no tool 'ad'; did you mean 'add'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stdio:x", "name a TOOL"),
        ("stdio:x add --calls-file {file}", "name a TOOL"),
        ("stdio:x --calls-file {file}", "line 1 is not JSON"),
        ("stdio:x add --rate 5 --window 3", "exclude each other"),
        ("stdio:x add --ramp 5", "write two rates"),
        ("stdio:x add --ramp 10:5", "above the first"),
        ("stdio:x add --ramp 1:5 --calls 10", "--ramp takes --duration"),
        ("stdio:x add --fail-if p99", "p99>50ms"),
        ("stdio:x add --fail-if knee<5", "give --ramp FROM:TO"),
        ("stdio:x add --fail-if regression", "--compare OLD.json NEW.json"),
        ("stdio:x add --html nowhere/a.html", "there is no folder nowhere"),
        ("stdio:x add a", "is no argument"),
        ("--compare {file}", "Missing argument 'B.json'"),
        ("--compare {file} {file}", "is no file of figures that mcp-actors bench --json wrote"),
    ],
)
def test_wrong_usage(mcp: Mcp, tmp_path: Path, words: str, said: str) -> None:
    (tmp_path / "file").write_text("{")
    done = mcp("bench", *shlex.split(words.format(file="file")))
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


async def test_the_requests_of_a_recording_are_calls(url: str, tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    async with Client(RecordingTransport(client_transport(url), file)) as client:
        for _ in range(3):
            await client.call_tool("add", {"a": 1})
        await client.call_tool("echo", {"value": {"x": 1}})
    calls = read_calls(file)
    assert {(call.label, call.weight) for call in calls if call.method == "tools/call"} == {
        ("add", 3),
        ("echo", 1),
    }
    assert all("_meta" not in call.params for call in calls)
    assert {call.method for call in calls} <= {"tools/call", "tools/list"}


def made_up(*, us: float = 100.0, seed: int = 1, window: int = 16) -> Document:
    """A run of ten parts, each of a hundred calls."""
    chance = random.Random(seed)
    options = {
        "size": "bench",
        "rounds": 10,
        "seconds": 1.0,
        "seed": seed,
        "url": "tcp://a:1",
        "version": "v",
    }
    options |= {"calls": ["add"], "sessions": 1, "cancel_share": 0.0, "warm_up": 0.0}
    document = Document({"processor": "made up"}, {"mcp-actors": "0"}, "", "2026-01-01", options)
    at: dict[str, int | str] = {"in_flight": window}
    for turn in range(1, 11):
        here = us * chance.uniform(0.98, 1.02)
        took = [(here / 1e6 * chance.lognormvariate(0, 0.2), 1) for _ in range(100)]
        metrics = {"per_second": 1e6 / here, "p50_us": here, "p90_us": 1.5 * here, "p99_us": 2 * here}
        document.rows.append(
            ResultRow(turn, "bench", "tcp", "modern", "a\u202eb", at, metrics, encoded(took), 0.1)
        )
    total = {
        "count": 1000,
        "mean": us / 1e6,
        "p50": us / 1e6,
        "p90": us / 1e6,
        "p95": us / 1e6,
        "p99": 2 * us / 1e6,
    }
    total |= {"p99.9": 3 * us / 1e6, "max": 4 * us / 1e6}
    stage = {
        "at": at,
        "seconds": 1.0,
        "per_second": 1e6 / us,
        "held": True,
        "unsent": 0,
        "total": total,
        "failed": 0,
    }
    document.details = {
        "stages": [stage | {"began": [0.1 * number for number in range(10)]}],
        "ramp": False,
        "total": total,
        "failed": 2,
        "failures": {"tool error": {"count": 2, "example": "<b>\x1b[31mno"}},
        "calls": {},
        "cancelled": {"sent": 5, "answered": total | {"count": 3}, "ended": total | {"count": 1}},
    }
    return document


def test_two_runs_are_compared(mcp: Mcp, tmp_path: Path) -> None:
    made_up().write(tmp_path / "a.json")
    made_up(us=150.0, seed=2).write(tmp_path / "b.json")
    made_up(window=4).write(tmp_path / "c.json")
    done = mcp("bench", "--compare", "a.json", "b.json")
    assert done.returncode == 0, done.stderr
    assert re.search(r"throughput, 1/s .* 0\.6\dx \(0\.\d+ to 0\.\d+\)  worse$", done.stdout, re.MULTILINE)
    assert mcp("bench", "--compare", "a.json", "b.json", "--fail-if", "regression").returncode == 6
    same = mcp("bench", "--compare", "a.json", "a.json", "--fail-if", "regression")
    assert (same.returncode, "worse" in same.stdout) == (0, False)
    assert "nothing can be compared" in mcp("bench", "--compare", "a.json", "c.json").stdout


def test_the_page_and_the_text_obey_nothing_that_a_server_said() -> None:
    document = made_up()
    text = page(document)
    assert "<b>" not in text
    assert "\x1b" not in "\n".join(summary_lines(document))
    assert "\u202e" not in "\n".join(summary_lines(document))
    for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(drawn)
    titles = re.findall(r'class="title">([^<]+)<', text)
    assert titles == [
        "Answered in each part of the run",
        "Latency in each part of the run",
        "How long calls took",
        "Latency by percentile",
        "Failed calls in each part of the run",
    ]
    assert not re.search(r"\d us\b|>us<", text)
    assert figures(document.details)["errors"] == 2
    assert "5 calls were cancelled in flight; 3 were answered all the same" in text
    assert "1 got nothing more" in text


def ramp() -> Document:
    """A ramp in which the second rate was missed by the load, and the fourth not held."""
    document = made_up()
    first = document.details["stages"][0]
    rows, document.rows, stages = document.rows, [], []
    for place, rate in enumerate((100, 200, 400, 800)):
        at: dict[str, int | str] = {"arrivals_per_second": rate}
        stages.append(first | {"at": at, "held": place in (0, 2), "missed": place == 1, "per_second": rate})
        document.rows += [dataclasses.replace(row, at=at, metrics={**row.metrics}) for row in rows]
    document.rows[-1].metrics["failed_share"] = 25.0
    document.details |= {"stages": stages, "ramp": True}
    return document


def test_the_page_of_a_ramp_marks_its_knee_and_says_values_under_the_pointer() -> None:
    text = page(ramp())
    drawn = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    plots = {str(each.get("aria-label")): each for each in drawn}
    for name in ("Answered beside asked for", "Latency against the rate"):
        marks = [mark.findtext("text") for mark in plots[name].findall("g[@class='mark']")]
        assert marks == ["knee 400/s", "not judged"]
        hits = [str(hit.get("aria-label")) for hit in plots[name].findall("g[@class='hit']")]
        assert [hit.partition(",")[0] for hit in hits] == ["100", "200", "400", "800"]
        assert all(hit.get("tabindex") == "0" for hit in plots[name].findall("g[@class='hit']"))
    assert hits[2] == "400, p50 0.1, p90 0.1, p99 0.2"
    bars = plots["How long calls took at 400/s"]
    counts = [str(hit.get("aria-label")).split(", ")[1] for hit in bars.findall("g[@class='hit']")]
    assert sum(int(each.split()[0].replace(",", "")) for each in counts) == 1000
    errors = plots["Failed calls in each part of the run"].findall("g[@class='hit']")
    assert str(errors[-1].get("aria-label")).endswith("failed 25")
    assert [str(each.get("aria-label")).endswith("failed 0") for each in errors[:-1]] == [True] * 39
    assert "not judged" in text.partition("Figures</h2>")[2]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.00000012, "0.00012 ms"), (0.00085, "0.85 ms"), (0.0123, "12.3 ms"), (12.3456, "12,346 ms")],
)
def test_durations_have_one_unit(seconds: float, said: str) -> None:
    assert milliseconds(seconds) == said


def test_the_commands_of_the_page_are_commands() -> None:
    found = re.findall(r"^\$? ?mcp-actors bench (.*)$", PAGE, re.MULTILINE)
    assert len(found) == 6
    for words in found:
        arguments = shlex.split(words)
        if "--calls-file" in arguments or "--compare" in arguments:
            options = {each for each in arguments if each.startswith("--")}
            assert options <= {name for each in command.params for name in each.opts}, words
        else:
            assert command.make_context("bench", arguments).params["url"], words


def test_the_program_of_the_page_records_a_load(
    mcp: Mcp, tmp_path: Path, environment: dict[str, str]
) -> None:
    for name in ("record_calls.py", "weather.py"):
        (tmp_path / name).write_text(programs()[name])
    python = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}
    command = [sys.executable, "record_calls.py"]
    subprocess.run(command, cwd=tmp_path, env=environment | python, check=True, timeout=LIMIT)
    target = f"stdio:{shlex.join([sys.executable, str(tmp_path / 'weather.py')])}"
    done = mcp("bench", target, "--calls-file", "recorded.jsonl", "--calls", "40", "--warm-up", "0", "-q")
    assert done.returncode == 0, done.stderr
    assert "0 failed" in done.stdout


def test_without_the_extra_it_is_said_what_to_install(tmp_path: Path, environment: dict[str, str]) -> None:
    program = "import sys; sys.modules['hdrh'] = None; from mcp_actors.cli import main; main()"
    command = [sys.executable, "-c", program, "bench", "stdio:x", "add"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert done.returncode == 2
    assert "pip install 'hdrhistogram>=0.10'" in done.stderr
    assert "Traceback" not in done.stderr
