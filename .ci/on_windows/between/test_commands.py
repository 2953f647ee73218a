"""The program ``mcp-actors`` of Windows: every command that talks to a server, and what it refuses there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import trio
from conftest import LISTEN, PATIENCE, PATIENT, PROGRAMS, Windows, serving
from environment import in_wine

from mcp_actors import Client

SERVED = in_wine(PROGRAMS / "served.py")
PATIENTLY = ["--timeout", str(PATIENCE)]
EVERYTHING = "mcp_actors.examples.everything"


@pytest.fixture(scope="module")
def child(windows: Windows) -> str:
    """The URL that starts `served.py` as a child of a program of Windows."""
    return f'stdio:"{in_wine(windows.environment.python)}" "{SERVED}"'


def test_help(windows: Windows) -> None:
    done = windows.mcp("--help")
    assert done.code == 0, done.output
    assert "Serve, inspect and call Model Context Protocol servers" in done.output


def test_a_server_is_listed_called_and_read(windows: Windows, child: str) -> None:
    listed = windows.mcp("list", child, *PATIENTLY)
    assert listed.code == 0, listed.output
    assert "Forecast for a city." in listed.output
    called = windows.mcp("call", child, "forecast", "city=Köln", "days:=2", *PATIENTLY)
    assert called.code == 0, called.output
    assert "Köln" in called.output  # in a pipe it is UTF-8, whatever the code page is
    page = windows.mcp("read", child, "weather://Köln/now", *PATIENTLY)
    assert (page.code, page.output.strip()) == (0, "Köln: sunny")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["serve", SERVED, "--listen", "http://127.0.0.1:0/mcp", "--workers", "2"], 2, "--workers is for other"),
        (["list", "unix:///tmp/x"], 2, "no Unix sockets on Windows"),
        (["list", r"unix://C:\x"], 2, "no Unix sockets on Windows"),
        (["list", "stdio:no-such-program"], 1, "there is no command 'no-such-program'"),
        (["list", "http://127.0.0.1:9/mcp"], 1, "mcp-actors: "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_sentence(
    windows: Windows, words: list[str], code: int, says: str
) -> None:
    done = windows.mcp(*words)
    assert done.code == code, done.output
    assert says in done.output
    assert "Traceback" not in done.output


def test_a_port_that_is_taken_is_said(windows: Windows, windows_server: dict[str, str]) -> None:
    done = windows.mcp("serve", SERVED, "--listen", windows_server["http"])
    assert done.code == 1, done.output
    assert "take another port" in done.output


def test_a_gateway_to_a_child_to_node_and_to_linux(
    windows: Windows, linux_server: dict[str, str], tmp_path: Path
) -> None:
    home = windows.environment
    script = in_wine(home.project / "tests" / "interop" / "peers" / "typescript_server.mjs")
    servers = {
        "child": {"command": in_wine(home.python), "args": [SERVED]},
        "node": {"command": in_wine(home.node), "args": [script, in_wine(home.home / "node"), "stdio"]},
        "linux": {"url": linux_server["http"]},
    }
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    checked = windows.mcp("gateway", in_wine(config), "--check")
    assert checked.code == 0, checked.output

    async def ask(url: str) -> None:
        with trio.fail_after(PATIENCE):
            async with Client(url, **PATIENT) as client:
                # An upstream that starts slowly is tried again, and its tools come with it.
                names: set[str] = set()
                while not {"child_forecast", "node_echo", "linux_forecast"} <= names:
                    names = {tool.name async for tool in client.tools(refresh=True)}
                for name in ("child", "linux"):
                    result = await client.call_tool(f"{name}_forecast", {"city": "a", "days": 2})
                    assert result.data == {"a": [20, 21]}
                assert (await client.call_tool("node_echo", {"message": "gruß"})).text == "gruß"

    command = windows.command("-m", "mcp_actors", "gateway", in_wine(config), *LISTEN[:2])
    with serving(command, home.variables()) as urls:
        trio.run(ask, urls["http"])


def test_bench(windows: Windows, windows_server: dict[str, str], tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    load = ["--duration", "1", "--warm-up", "0.2", "--quiet", "--fail-if", "errors>0"]
    done = windows.mcp(
        "bench", windows_server["tcp"], "forecast", "city=a", *load, "--json", in_wine(figures)
    )
    assert done.code == 0, done.output
    assert json.loads(figures.read_text(encoding="utf-8"))


def test_inspect(windows: Windows) -> None:
    python = in_wine(windows.environment.python)
    done = windows.mcp(
        "inspect", f'stdio:"{python}" -m mcp_actors serve {EVERYTHING}', "--json", "--in-flight", "4"
    )
    assert done.code == 0, done.output
    assert json.loads(done.output)


def test_demo(windows: Windows) -> None:
    done = windows.mcp("demo", "--sessions", "20", "--seconds", "1", "--json")
    assert done.code == 0, done.output
    assert re.search(r'"errors": ?0', done.output), done.output
