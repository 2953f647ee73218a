"""An option of ``serve``, ``gateway`` and ``bridge`` is declared once, and arrives wherever something is served."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcp_actors import Server
from mcp_actors.cli import main
from mcp_actors.cli.failures import WrongUsage
from mcp_actors.cli.serve_options import EVERY, ServeOptions, equip, known_limits, sections_of
from mcp_actors.errors import McpError, Overloaded
from mcp_actors.sync import Client
from tests.cli.conftest import ROOT, Mcp, Started
from tests.cli.test_gateway import serving

pytestmark = pytest.mark.slow

SECONDS = 60
# What is run at the start of every Python process of the test: one more option, and a note where it arrives.
ONE_MORE = """
import os, attrs
from mcp_actors.cli import serve_options

@attrs.frozen(kw_only=True)
class WithOneMore(serve_options.ServeOptions):
    probe: str | None = serve_options._option("--probe", "For operators", metavar="WORD", help="One more.")

def routes_beside(server, options, worker=None, beside=serve_options.routes_beside):
    with open(os.path.join({folder!r}, f"arrived-{{os.getpid()}}"), "w") as file:
        file.write(f"{{options.probe}} {{worker and worker.number}}")
    return beside(server, options, worker)

serve_options.ServeOptions, serve_options.routes_beside = WithOneMore, routes_beside
"""
SERVER = "from mcp_actors import Server\nserver = Server('one')\n"


def arrived(folder: Path, words: list[str], addresses: int = 1) -> list[str]:
    """What the processes of a command have noted by the time when it serves."""
    (folder / "sitecustomize.py").write_text(ONE_MORE.format(folder=str(folder)))
    (folder / "one.py").write_text(SERVER)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "mcp_actors", *words, "--probe", "here"]
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            while said.count("serving ") < addresses:
                line = process.stderr.readline()
                assert line, said
                said += line
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)
    return sorted(file.read_text() for file in folder.glob("arrived-*"))


URL = "http://127.0.0.1:0/mcp"


def test_it_arrives_at_serve(tmp_path: Path) -> None:
    assert arrived(tmp_path, ["serve", "one.py", "--listen", URL]) == ["here None"]


def test_it_arrives_at_each_worker_of_serve(tmp_path: Path) -> None:
    words = ["serve", "one.py", "--listen", URL, "--workers", "2"]
    assert arrived(tmp_path, words) == ["here 1", "here 2"]


def test_it_arrives_at_a_gateway_and_a_bridge(tmp_path: Path) -> None:
    gateway, bridge = tmp_path / "gateway", tmp_path / "bridge"
    gateway.mkdir()
    bridge.mkdir()
    upstream = {"command": sys.executable, "args": ["-m", "mcp_actors", "serve", "one.py"]}
    (gateway / "mcp.json").write_text(json.dumps({"mcpServers": {"one": upstream}}))

    assert "here None" in arrived(gateway, ["gateway", "mcp.json", "--listen", URL])
    assert "here None" in arrived(
        bridge, ["bridge", f"stdio:{sys.executable} -m mcp_actors serve one.py", URL]
    )


@pytest.mark.parametrize("command", EVERY)
def test_the_help_has_each_option_in_its_section(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])

    shown = capsys.readouterr().out
    for section in sections_of(command):
        assert f"{section.title}:" in shown
        assert all(f"  {name} " in shown for name in section.options)


# -- ``--limit`` and ``--middleware`` -----------------------------------------------------------------------------

MIDDLEWARE = """
async def louder(ctx, call_next):
    result = await call_next()
    if ctx.method == "tools/call":
        result.content[0].text += "!"
    return result

def sync(ctx, call_next):
    return None
"""
GREETS = """
from mcp_actors import Server
server = Server("greets")

@server.tool
def greet() -> str:
    return "hello"

@server.tool
def limits() -> dict[str, float]:
    return {"beat": server.limits.beat, "in_flight": server.limits.max_in_flight}
"""


def test_limits_and_middleware_arrive_with_and_without_workers(
    started: Started, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "greets.py").write_text(GREETS)
    (tmp_path / "louder.py").write_text(MIDDLEWARE)
    (tmp_path / "mcp-actors.toml").write_text(
        "[serve.limit]\nbeat = 2.5\nmax_in_flight = 7\nhttp.body_bytes = '4KiB'\n"
    )
    words = ["serve", "greets.py", "--listen", URL, "--middleware", "louder:louder"]
    for more in ([], ["--workers", "1"]):
        with serving(started, *words, *more) as (_, (place,)), Client(place) as client:
            assert client.call_tool("greet").text == "hello!"
            assert client.call_tool("limits").structured_content == {"beat": 2.5, "in_flight": 7}
            with pytest.raises(McpError):
                client.call_tool("greet", {"much": "x" * 5000})


def test_those_of_upstreams_arrive_at_a_gateway(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(
        "import os, trio\nfrom mcp_actors import Server\nserver = Server('slow')\n"
        "@server.tool\nasync def wait() -> str:\n    open('begun', 'w').close()\n"
        "    while not os.path.exists('done'):\n        await trio.sleep(0.01)\n    return 'done'\n"
        "@server.tool\ndef now() -> str:\n    return 'now'\nserver.run()\n"
    )
    upstream = {"command": sys.executable, "args": ["slow.py"], "era": "modern"}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"one": upstream}}))
    words = ["gateway", "mcp.json", "--listen", URL, "--limit", "upstream.max_in_flight=1"]
    with serving(started, *words) as (_, (place,)), Client(place) as client, ThreadPoolExecutor(1) as calls:
        assert client.call_tool("one_now").text == "now"
        call = calls.submit(client.call_tool, "one_wait")
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        with pytest.raises(Overloaded):
            client.call_tool("one_now")
        (tmp_path / "done").touch()
        assert call.result(SECONDS).text == "done"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--limit", "max_inflight=1"],
            "--limit: there is no limit 'max_inflight'; did you mean 'max_in_flight'?",
        ),
        (
            ["--limit", "body_bytes=1"],
            "--limit: there is no limit 'body_bytes'; did you mean 'http.body_bytes'?",
        ),
        (["--limit", "beat"], "--limit beat: write beat=VALUE with a number, such as 0.5 or inf"),
        (["--limit", "beat=soon"], "--limit beat: write beat=VALUE with a number, such as 0.5 or inf"),
        (
            ["--limit", "max_in_flight=0.5"],
            "--limit max_in_flight: write max_in_flight=VALUE with a whole number",
        ),
        (
            ["--limit", "max_in_flight=inf"],
            "--limit max_in_flight: write max_in_flight=VALUE with a whole number",
        ),
        (
            ["--listen", URL, "--limit", "http.body_bytes=0"],
            "--limit http.body_bytes must be greater than zero, not 0",
        ),
        (["--limit", "max_in_flight=0"], "--limit max_in_flight is at least 1, not 0"),
        (["--limit", "upstream.max_in_flight=0"], "--limit upstream.max_in_flight is at least 1, not 0"),
        (
            ["--listen", URL, "--limit", "http.max_sessions=0"],
            "max_sessions must be greater than zero, not 0",
        ),
        (["--drain", "nan"], "Invalid value for '--drain': 'nan' is not a valid number."),
        (["--middleware", "louder"], "--middleware takes MODULE:FUNCTION, not 'louder'"),
        (["--middleware", "nowhere:f"], "--middleware nowhere:f: there is no module nowhere"),
        (["--middleware", "louder:quieter"], "--middleware louder:quieter: louder has no quieter"),
        (["--middleware", "louder:sync"], "--middleware louder:sync: "),
    ],
)
def test_a_limit_or_a_middleware_that_cannot_be_is_wrong_usage(
    mcp: Mcp, tmp_path: Path, words: list[str], says: str
) -> None:
    (tmp_path / "greets.py").write_text(GREETS)
    (tmp_path / "louder.py").write_text(MIDDLEWARE)
    result = mcp("serve", "greets.py", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_each_documented_limit_of_a_server_has_a_name() -> None:
    """The page names them by the class of which they are arguments."""
    page = (ROOT / "docs" / "reference" / "limits.md").read_text()
    known = set(known_limits())
    prefixes = {
        "Limits": "",
        "HttpLimits": "http.",
        "HttpServerTransport": "http.",
        "WebSocketServerTransport": "websocket.",
        "TcpTransport": "sockets.",
    }
    named = re.findall(r"`(\w+)(?:\.(\w+)|\(([\w=, ]+)\))`", page)
    found = {
        prefixes[name] + each
        for name, member, arguments in named
        if name in prefixes
        for each in ([member] if member else re.findall(r"(\w+)=", arguments))
    }
    # That is what has the others.
    found -= {"http.limits"}
    assert len(found) > 30
    assert found <= known
    upstream = re.findall(r"`Upstream\((max_\w+)=\)`", page)
    assert {f"upstream.{each}" for each in upstream} <= known


@pytest.mark.parametrize(
    ("own", "given", "then"),
    [(None, None, 0.25), (None, 2.0, 2.0), (None, 0.0, None), (1.5, None, 1.5), (1.5, 0.0, None)],
)
def test_what_serves_watches_its_loop_unless_it_is_told_otherwise(
    own: float | None, given: float | None, then: float | None
) -> None:
    server = Server("watched", watchdog=own)
    equip(server, ServeOptions(watchdog=given))
    assert server.watchdog == then


def test_large_results_are_kept_where_the_command_line_says_so() -> None:
    server = Server("large")
    equip(server, ServeOptions(spill=2048))
    assert "spill_read" in server.tools
    assert "spill_search" in server.tools
    taken = Server("taken")
    taken.add_tool(lambda: None, name="spill_read")
    for options in (ServeOptions(spill=2048), ServeOptions(watchdog=0.001)):
        with pytest.raises(WrongUsage, match=r"--(spill|watchdog)"):
            equip(taken, options)
