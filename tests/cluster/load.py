"""The clients of a run: which there are, how they are started, and what they noted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.installation import Peers

from .processes import START_LIMIT, Cluster, Program

__all__ = ["CLIENTS", "Load", "Row"]

PROGRAMS = Path(__file__).parent / "clients"
CLIENTS = {
    "python-v1-legacy": 5,
    "python-v2-auto": 4,
    "python-v2-legacy": 2,
    "typescript-v1-legacy": 4,
    "typescript-v2-auto": 3,
    "ours-legacy": 4,
    "ours-modern": 4,
}
"""Each client's share of the sessions."""
FEW = 100  # sessions; with fewer a run is to be short, and leaves out what another client shows as well
FEWER = {client: share for client, share in CLIENTS.items() if client != "python-v2-legacy"}
BEGIN = 0.4  # seconds that a session may take to begin, besides those for all
LATE = 130.0  # seconds that a client may take for its last calls

Row = dict[str, Any]


@dataclass
class Load:
    """The programs that make the load of one run; files that are there tell them to begin and to end."""

    cluster: Cluster
    peers: Peers
    sessions: int

    def __post_init__(self) -> None:
        clients = FEWER if self.sessions < FEW else CLIENTS
        shares = sum(clients.values())
        # An even number, because each session publishes what another one of the same program listens to.
        self.share = {
            client: max(2, round(self.sessions * share / shares / 2) * 2) for client, share in clients.items()
        }
        self.started = {client: self.start(client, sessions) for client, sessions in self.share.items()}

    def begin(self) -> None:
        """Tells the programs to begin, which may have started long before, and waits for every session's first time."""
        (self.cluster.folder / "begin").touch()
        for client, program in self.started.items():
            self.cluster.until_true(
                lambda client=client, program=program: self.connected(program) == self.share[client],
                lambda client=client, program=program: f"{client} does not connect:\n{program.text[-3000:]}",
                limit=BEGIN * self.sessions + START_LIMIT,
            )

    def connected(self, program: Program) -> int:
        rows = noted(program.text)
        return len({row["session"] for row in rows if row["kind"] == "connect" and row["end"] == "right"})

    def end(self) -> None:
        """Tells the programs to begin nothing more."""
        (self.cluster.folder / "over").touch()

    def start(self, client: str, sessions: int) -> Program:
        language, version, mode = (
            client.split("-") if client.count("-") == 2 else ("ours", *client.split("-"))
        )
        arguments = [self.cluster.url, str(sessions), str(self.cluster.folder)]
        if language == "typescript":
            kind = {"v1": "sdk", "v2": "client"}[version]
            command = [
                str(self.peers.node),
                str(PROGRAMS / "typescript.mjs"),
                str(self.peers.modules),
                kind,
                mode,
            ]
        elif language == "ours":
            command = [sys.executable, str(PROGRAMS / "ours.py"), mode]
        elif version == "v1":
            command = [str(self.peers.python_v1), str(PROGRAMS / "python_v1.py")]
        else:
            command = [str(self.peers.python), str(PROGRAMS / "python_v2.py"), mode]
        return self.cluster.start("clients", f"client-{client}", [*command, *arguments])

    def rows(self) -> list[Row]:
        """Waits for the ends of the programs and returns all that they noted."""
        for program in self.started.values():
            program.wait(LATE)
        return [row for program in self.started.values() for row in noted(program.text)]


def noted(text: str) -> Iterator[Row]:
    """The rows among the lines of a program, which may say more, such as warnings."""
    for line in text.splitlines():
        if line.startswith('{"client":'):
            yield json.loads(line)
