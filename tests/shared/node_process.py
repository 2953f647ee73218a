"""Nodes of a server that are processes, for tests that kill them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import trio

from mcp_actors import Client
from mcp_actors.errors import ConnectFailed

__all__ = ["NodeProcess"]

PATIENCE = 120.0
"""Seconds for a node to listen: it takes about one, and more on a busy machine."""


class NodeProcess:
    """One node, a process of its own at a socket, which can be killed and started again.

    Args:
        program: The file of its server.
        name: Names its socket, beside the program.
        shared: The URL of the state that it has in common with others.
    """

    def __init__(self, program: Path, name: str, shared: str) -> None:
        self._socket = program.with_name(f"{name}.sock")
        self.url = f"unix:{self._socket}"
        self._program = [
            *(sys.executable, "-m", "mcp_actors", "serve", str(program)),
            *("--listen", self.url, "--shared", shared),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._program, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def listens(self) -> None:
        with trio.fail_after(PATIENCE):
            while True:
                assert self._process is not None
                assert self._process.poll() is None
                try:
                    async with Client(self.url):
                        return
                except ConnectFailed:
                    await trio.sleep(0.05)
