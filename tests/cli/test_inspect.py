"""``mcp-actors inspect``."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_actors.cli.inspect.rules import RULES
from tests.cli.conftest import SERVED, Ran
from tests.cli.test_serve import serving
from tests.pages import ROOT, with_table

pytestmark = pytest.mark.slow

BROKEN = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "\\x1b[31mred", "version": "1"}
        answer["result"] = {"protocolVersion": version, "capabilities": {}, "serverInfo": info}
    else:
        answer["result"] = {"text": "yes"}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A URL that starts a server which says yes to everything."""
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    return "stdio:" + shlex.join([sys.executable, str(script)])


def test_a_server_that_follows_the_rules(mcp: Callable[..., Ran]) -> None:
    with serving(SERVED, "--listen", "http://127.0.0.1:0/mcp") as (_, (port,)):
        done = mcp("inspect", f"http://127.0.0.1:{port}/mcp", "--in-flight", "4", "--tokens")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    costs = [int(each) for each in re.findall(r"^ +(\d+)  \w+$", done.stdout, re.MULTILINE)]
    assert costs == sorted(costs, reverse=True) != []
    assert f"tools cost {sum(costs):,} tokens in each prompt, estimated" in done.stdout
    for said in (
        "modern era",
        "legacy era",
        "served 1.2",
        "nothing was found that violates a rule",
        "tools/list",
    ):
        assert said in done.stdout
    assert "0 violated" in done.stdout


def test_a_server_that_violates_them(mcp: Callable[..., Ran], broken: str) -> None:
    done = mcp("inspect", broken, "--json", "--in-flight", "0")
    assert done.returncode == 4, done.stderr
    report = json.loads(done.stdout)
    assert report["violates"] is True
    found = {each["rule"]: each for each in report["findings"]}
    assert {"unknown-version", "empty-ping", "unknown-method"} <= set(found)
    assert found["unknown-method"]["source"].startswith("MCP 2024-11-05, Overview")
    assert [each["era"] for each in report["eras"]] == ["legacy"]
    assert "\x1b" not in done.stdout


def test_rules_are_left_out_and_chosen(mcp: Callable[..., Ran], broken: str) -> None:
    def outcomes(*words: str) -> tuple[int, set[str], set[str]]:
        done = mcp("inspect", broken, "--json", "--in-flight", "0", *words)
        report = json.loads(done.stdout)
        found = {each["rule"] for each in report["findings"]}
        return done.returncode, {each["rule"] for each in report["outcomes"]}, found

    _, everything, found = outcomes()
    assert outcomes("--ignore", "empty-ping") == (4, everything - {"empty-ping"}, found - {"empty-ping"})
    assert outcomes("--only", "empty-ping") == (4, {"empty-ping"}, {"empty-ping"})
    # It knows no batches, which no client sends.
    assert outcomes("--only", "batches") == (0, {"batches"}, {"batches"})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ignore", "empty-pings"], "there is no rule 'empty-pings'; did you mean 'empty-ping'?"),
        (["--only", "zzz"], "there is no rule 'zzz'; there are: "),
    ],
)
def test_rules_that_are_not_there(mcp: Callable[..., Ran], words: list[str], says: str) -> None:
    done = mcp("inspect", "stdio:true", *words)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


def test_the_text_says_rule_place_and_observation(mcp: Callable[..., Ran], broken: str) -> None:
    done = mcp("inspect", broken, "--in-flight", "0")
    assert done.returncode == 4
    assert "error   empty-ping (legacy era)" in done.stdout
    assert "MCP 2024-11-05, Ping, Behavior Requirements" in done.stdout
    assert '- the result of ping has members: "text"' in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["http://127.0.0.1:9/mcp"], 1, "is the server running there?"),
        (["pigeon:coop"], 2, "no transport is installed"),
        (["stdio:true"], 1, "there is no MCP server"),
        (["stdio:cat", "--in-flight", "1000"], 2, "in-flight"),
    ],
)
def test_nothing_to_inspect(mcp: Callable[..., Ran], words: list[str], code: int, said: str) -> None:
    done = mcp("inspect", *words)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_it_looks_at_every_era_and_takes_no_era(mcp: Callable[..., Ran], broken: str) -> None:
    result = mcp("inspect", broken, "--era", "legacy")
    assert result.returncode == 2
    assert "No such option" in result.stderr


# -- The page has the table of rules as it is. ``python -m tests.cli.test_inspect`` writes it there ------

PAGE = ROOT / "docs" / "how-to" / "inspect.md"


def table_of_rules() -> str:
    rows = [
        f"| `{rule.name}` | {rule.severity} | {rule.text} | "
        f"{'; '.join(str(place) for place in (rule.legacy, rule.modern) if place is not None)} |"
        for rule in RULES
    ]
    return "\n".join(["| rule | | demand | place |", "|---|---|---|---|", *rows]) + "\n"


def test_the_page_has_the_rules() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text(), "rules", table_of_rules())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), "rules", table_of_rules()))
