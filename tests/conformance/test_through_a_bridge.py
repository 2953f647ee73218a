"""The official suite plays against our everything server with a bridge in between, which speaks the other era with it.

A scenario that passes without the bridge passes through it, but for the few that look at what is one hop's own.
``MCP_BRIDGE_CONFORMANCE=all`` plays the stateless revision at a server of sessions too, which takes half a minute.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.installation import Peers
from interop.servers import Launch, Served

from .scenarios import LEGACY, MODERN, SERVER
from .suite import Suite

HERE = Path(__file__).parent
ROWS = [(LEGACY, "modern")]
if os.environ.get("MCP_BRIDGE_CONFORMANCE") == "all":
    ROWS += [(LEGACY, "legacy"), (MODERN, "modern"), (MODERN, "legacy")]
CANNOT_BE: dict[tuple[str, str], set[str]] = {
    # A server that closes the stream of a call does so on its own hop: the bridge comes back for the answer itself.
    (LEGACY, "modern"): {"server-sse-polling"},
    (LEGACY, "legacy"): {"server-sse-polling"},
    (MODERN, "modern"): set(),
    (MODERN, "legacy"): {
        # A request has no name that its server has chosen, and these look for that name.
        "input-required-result-basic-elicitation",
        "input-required-result-ignore-extra-params",
        # The server asks for one thing after the other, where it could ask for all at once in the other era.
        "input-required-result-multiple-input-requests",
        "tasks-mrtr-input",
        # The call is a task from the beginning, for a server with sessions makes it one before it asks.
        "tasks-mrtr-composition",
        # SEP-2663 wants the error where a server cannot answer without a task: the bridge runs the task and waits.
        "tasks-required-task-error",
    },
}


@contextmanager
def served(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "mcp_actors", *arguments]
    program = Served(Launch(command, r"^serving .*:(\d+)/mcp$"))
    try:
        yield f"http://127.0.0.1:{program.port()}/mcp"
    finally:
        code = program.stop()
    assert (code, "Traceback" in program.output) == (0, False), program.output


@pytest.mark.parametrize(("revision", "era"), ROWS)
def test_what_passes_without_a_bridge_passes_through_it(
    peers: Peers, tmp_path: Path, revision: str, era: str
) -> None:
    anywhere = "http://127.0.0.1:0/mcp"
    with (
        served("serve", str(HERE / "everything_server.py"), "--listen", anywhere) as server,
        served("bridge", "--era", era, server, anywhere) as bridge,
    ):
        outcomes = Suite(peers, tmp_path).against_server(bridge, revision)
    assert set(outcomes) >= set(SERVER[revision])
    complaints = {name: outcomes[name].complaint() for name in SERVER[revision]}
    failed = {name for name, complaint in complaints.items() if complaint}
    assert failed == CANNOT_BE[revision, era], "\n".join(complaints[name] for name in sorted(failed))
