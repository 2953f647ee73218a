"""A target is reloaded while the official SDKs' clients call over connections that they keep.

``RELOAD_ROUNDS`` makes it more reloads.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

import trio
from interop.installation import Peers

from tests.cli.conftest import Started
from tests.cli.workers.test_official_clients import CONNECTIONS, calling, commands
from tests.cli.workers.test_workers import MANY, serving

ROUNDS = int(os.environ.get("RELOAD_ROUNDS", "4"))
SERVER = """
import trio
from mcp_actors import Server
server = Server("reloaded")

@server.tool
async def pid() -> int:
    await trio.sleep(0.05)
    return NUMBER
"""


async def test_a_target_is_reloaded_and_no_call_of_an_official_client_fails(
    started: Started, peers: Peers, tmp_path: Path
) -> None:
    target = tmp_path / "target.py"
    target.write_text(SERVER.replace("NUMBER", "1"))
    words = ["--listen", "http://127.0.0.1:0/mcp", "--reload"]
    async with serving(started, str(target), *words, limit=MANY) as (url, process):
        with ExitStack() as stack:
            clients = {
                name: stack.enter_context(calling(command)) for name, command in commands(peers, url).items()
            }
            for client in clients.values():
                assert client.stdout is not None
                assert await trio.to_thread.run_sync(client.stdout.readline) == "calling\n"
            for number in range(ROUNDS):
                # Every second one has an error, and the one before it serves on.
                target.write_text(SERVER.replace("NUMBER", str(number)) + "1 / 0\n" * (number % 2))
                assert process.stderr is not None
                wanted = "ZeroDivisionError" if number % 2 else "reloaded in"
                while wanted not in await trio.to_thread.run_sync(process.stderr.readline):
                    pass
            for name, client in clients.items():
                said, _ = await trio.to_thread.run_sync(client.communicate)
                outcome = json.loads(said)
                print(f"{name}: {outcome['answered']} calls answered, {ROUNDS} changes")
                assert outcome["failed"] == [], name
                assert outcome["answered"] > CONNECTIONS, name
