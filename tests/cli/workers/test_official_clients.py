"""All workers are replaced while the official SDKs' clients call over connections that they keep.

``WORKER_ROUNDS`` makes it more replacements.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trio
from interop.installation import Peers

from tests.cli.conftest import Started

from .test_workers import MANY, ROUNDS, SERVER, replace_workers, serving

PROGRAMS = Path(__file__).parent / "peers"
CONNECTIONS = 2


def commands(peers: Peers, url: str) -> dict[str, list[str]]:
    python, typescript = str(PROGRAMS / "calling.py"), str(PROGRAMS / "calling.mjs")
    node = [str(peers.node), typescript, str(peers.modules), url, str(CONNECTIONS)]
    return {
        "python v1, legacy": [str(peers.python_v1), python, url, str(CONNECTIONS), "v1"],
        "python v2, modern": [str(peers.python), python, url, str(CONNECTIONS), "auto"],
        "typescript v1, legacy": [*node, "sdk"],
        "typescript v2, modern": [*node, "auto"],
    }


@contextmanager
def calling(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_workers_are_replaced_and_no_call_of_an_official_client_fails(
    started: Started, peers: Peers, tmp_path: Path
) -> None:
    (tmp_path / "several.py").write_text(SERVER)
    target, words = str(tmp_path / "several.py"), ["--listen", "http://127.0.0.1:0/mcp", "--workers", "2"]
    async with serving(started, target, *words, limit=MANY) as (url, process):
        with ExitStack() as stack:
            clients = {
                name: stack.enter_context(calling(command)) for name, command in commands(peers, url).items()
            }
            for client in clients.values():
                assert client.stdout is not None
                assert await trio.to_thread.run_sync(client.stdout.readline) == "calling\n"
            for _ in range(ROUNDS):
                await replace_workers(process)
            for name, client in clients.items():
                said, _ = await trio.to_thread.run_sync(client.communicate)
                outcome = json.loads(said)
                print(f"{name}: {outcome['answered']} calls answered, {ROUNDS} replacements")
                assert outcome["failed"] == [], name
                assert outcome["answered"] > CONNECTIONS, name
