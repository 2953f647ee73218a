"""``mcp-actors record``, ``mock``, ``diff`` and ``bridge --chaos``."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SERVED, Mcp
from tests.cli.test_serve import serving

pytestmark = pytest.mark.slow

SERVER = '''
import pathlib
from mcp_actors import Server

server = Server("{name}")

@server.tool
def add(a: int, b: int) -> int:
    """{says}"""
    return a {sign} b

@server.tool
def other() -> str:
    """Never changes."""
    return "ok"
'''


def url_of(*words: str) -> str:
    return "stdio:" + shlex.join([sys.executable, "-m", "mcp_actors", *words])


@pytest.fixture
def first(tmp_path: Path) -> str:
    (tmp_path / "first.py").write_text(SERVER.format(name="adder", says="Adds.", sign="+"))
    return url_of("serve", str(tmp_path / "first.py"))


@pytest.fixture
def second(tmp_path: Path) -> str:
    (tmp_path / "second.py").write_text(SERVER.format(name="adder", says="Adds numbers.", sign="-"))
    return url_of("serve", str(tmp_path / "second.py"))


@pytest.fixture
def day(mcp: Mcp, tmp_path: Path, first: str) -> Path:
    """A recording of a call of `add`, and of a list."""
    path = tmp_path / "day.jsonl"
    ran = mcp("call", url_of("record", first, str(path)), "add", "a=1", "b=2")
    assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr
    return path


def test_a_call_is_recorded_and_played(mcp: Mcp, day: Path) -> None:
    if sys.platform != "win32":
        assert stat.S_IMODE(os.stat(day).st_mode) == 0o600
    mock = url_of("mock", str(day))
    ran = mcp("call", mock, "add", "a=1", "b=2")
    assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr
    ran = mcp("call", mock, "add", "a=1", "b=3")
    assert ran.returncode == 7
    assert "the recording has no tools/call with these params" in ran.stderr
    ran = mcp("list", mock, "--json")
    assert {each["name"] for each in json.loads(ran.stdout)["tools"]} == {"add", "other"}


def test_a_recording_is_compared_with_a_server_of_today(mcp: Mcp, day: Path, first: str, second: str) -> None:
    ran = mcp("diff", str(day), first)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "requests compared, 0 with another answer" in ran.stdout
    ran = mcp("diff", str(day), second)
    assert ran.returncode == 6
    assert '-      "description": "Adds.",\n+      "description": "Adds numbers.",' in ran.stdout
    assert 'tools/call add {"a": 1, "b": 2}' in ran.stdout
    assert '-    "structuredContent": 3\n+    "structuredContent": -1' in ran.stdout
    found = json.loads(mcp("diff", str(day), second, "--json").stdout)
    assert len(found["differences"]) == 2


NAMED = """
from mcp_actors import Server

server = Server("named")

@server.tool
def run(execution: {type}) -> str:
    return "done"

@server.tool
def {name}() -> str:
    return "done"
"""


def test_nothing_that_a_server_has_named_itself_is_left_aside(mcp: Mcp, tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text(NAMED.format(type="int", name="other"))
    (tmp_path / "after.py").write_text(NAMED.format(type="str", name="execution"))
    day, before = tmp_path / "day.jsonl", url_of("serve", str(tmp_path / "before.py"))
    assert mcp("list", url_of("record", before, str(day))).returncode == 0
    assert mcp("diff", str(day), before).returncode == 0
    ran = mcp("diff", str(day), url_of("serve", str(tmp_path / "after.py")))
    assert ran.returncode == 6, ran.stdout + ran.stderr
    assert '+    "execution": {' in ran.stdout
    assert '+            "type": "string"' in ran.stdout


SKILLED = """
from mcp_actors import Server

server = Server("skilled")
server.add_skill({{"SKILL.md": "---\\nname: refunds\\ndescription: {says}\\n---\\n", "parts/a.md": "a"}})
"""
READ = """
import sys
import trio
from mcp_actors import Client

async def main() -> None:
    async with Client(sys.argv[1]) as client:
        async for skill in client.skills():
            await client.load_skill(await client.get_skill(skill.uri))
        assert [each async for each in client.directory("skill://refunds")]

trio.run(main)
"""


def test_skills_are_compared_as_well(mcp: Mcp, tmp_path: Path) -> None:
    day = tmp_path / "day.jsonl"
    (tmp_path / "before.py").write_text(SKILLED.format(says="Refund."))
    (tmp_path / "after.py").write_text(SKILLED.format(says="Refund it."))
    before, after = (url_of("serve", str(tmp_path / f"{name}.py")) for name in ("before", "after"))
    (tmp_path / "read.py").write_text(READ)
    words = [sys.executable, str(tmp_path / "read.py"), url_of("record", before, str(day))]
    subprocess.run(words, check=True, timeout=60)
    ran = mcp("diff", str(day), before)
    assert (ran.returncode, ran.stdout) == (0, "4 requests compared, 0 with another answer\n"), ran.stderr
    ran = mcp("diff", str(day), after)
    assert ran.returncode == 6, ran.stdout + ran.stderr
    for request in (
        "skills/list",
        "skills/get skill://refunds/SKILL.md",
        "resources/read skill://refunds/SKILL.md",
    ):
        assert f"{request}\n" in ran.stdout
    assert '+        "description": "Refund it.",' in ran.stdout
    (tmp_path / "without.py").write_text("from mcp_actors import Server\nserver = Server('without')\n")
    ran = mcp("diff", str(day), url_of("serve", str(tmp_path / "without.py")))
    assert ran.returncode == 6, ran.stdout + ran.stderr
    assert '+    "code": -32601' in ran.stdout


def test_no_header_is_recorded(mcp: Mcp, tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    with serving(SERVED, "--listen", "http://127.0.0.1:0/mcp") as (_, (port,)):
        at = f"http://127.0.0.1:{port}/mcp"
        secret = ["--header", "Authorization: Bearer s3cr3t-token", "--header", "X-Api-Key: s3cr3t-key"]
        ran = mcp("list", url_of("record", at, str(path), *secret))
    assert ran.returncode == 0, ran.stderr
    assert "tools/list" in path.read_text()
    assert "s3cr3t" not in path.read_text()


def test_a_bridge_disturbs_a_connection_in_the_same_way_each_time(mcp: Mcp, first: str) -> None:
    ran = mcp("call", url_of("bridge", first, "stdio:", "--chaos", "latency=20ms jitter=5ms"), "other")
    assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr
    lossy = url_of(
        "bridge", first, "stdio:", "--chaos", "lose-answers=100%", "--timeout", "1", "--era", "legacy"
    )
    ran = mcp("call", lossy, "other")
    assert ran.returncode == 7
    assert "the server 'bridge': no answer and no progress for 1 s (code 504)" in ran.stderr
    ran = mcp("bridge", first, "stdio:", "--chaos", "slow=1s")
    assert ran.returncode == 2
    assert "--chaos: there is no 'slow=1s'" in ran.stderr


def test_what_is_no_recording_is_wrong_usage(mcp: Mcp, tmp_path: Path, first: str) -> None:
    (tmp_path / "day.jsonl").write_text("{}")
    for words in (["mock", "day.jsonl"], ["diff", "day.jsonl", first], ["mock", "nothing.jsonl"]):
        assert mcp(*words).returncode == 2
    assert mcp("record", first, "no/such/folder/day.jsonl").returncode == 1
