from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from interop.installation import Peers
from interop.servers import Launch, Served

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

Started = Callable[..., AbstractContextManager[Served]]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Makes this checkout importable where the frameworks are, with the bindings that it declares."""
    declared = tmp_path_factory.mktemp("declared")
    metadata = declared / "mcp_actors-0.dist-info"
    metadata.mkdir()
    ours = importlib.metadata.distribution("mcp-actors")
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(ours.read_text(name) or "")
    path = os.pathsep.join([str(ROOT), str(ROOT / "transports"), str(declared)])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def started(peers: Peers, environment: dict[str, str]) -> Started:
    """Starts a program of ``programs`` for a block, whose end it does not survive.

    It says with ``serving …:PORT`` that it serves.
    """

    @contextmanager
    def start(name: str, *words: str, **more: str) -> Iterator[Served]:
        command = [str(peers.worlds), str(PROGRAMS / name), *words]
        served = Served(Launch(command, r"^serving .*:(\d+)/", {**environment, **more}))
        try:
            yield served
        finally:
            served.stop()

    return start
