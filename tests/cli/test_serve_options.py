"""An option of ``serve``, ``gateway`` and ``bridge`` is declared once, and arrives wherever something is served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_actors.cli import main
from mcp_actors.cli.serve_options import EVERY, sections_of

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
        file.write(f"{{options.probe}} {{worker}}")
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
