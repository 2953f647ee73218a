"""Tasks of MCP 2025-11-25 with the official SDKs' first generations, which have them as experiments, both ways.

No official SDK has the extension of the stateless revision yet; the official suite plays that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mcp_actors import Client
from mcp_actors.errors import TaskCancelled

from .installation import Peers
from .servers import DRIVERS
from .user import LEGACY, LIMIT, User, rows, stdio, text_of

OURS = [sys.executable, str(Path(__file__).parent / "task_server.py")]


def seen_by(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_the_official_python_client_at_our_server(peers: Peers) -> None:
    seen = seen_by([str(peers.python_v1), str(DRIVERS / "python_v1_tasks_client.py"), *OURS])
    id = seen.pop("id")
    assert seen == {
        "declared": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
        "support": {"work": "required", "ask": "optional", "forever": "optional", "broken": "optional", "later": None},
        "created": ["working", 30_000],
        "states": ["completed", "working"],
        "result": ["3 steps", {"io.modelcontextprotocol/related-task": {"taskId": id}}],
        "listed": [id],
        "answered": "accept: Ada",
        "cancelled": "cancelled",
        "twice": -32602,
        "unknown": -32602,
        "broken": ["failed", True],
        "not augmented": -32601,
        "later": "accept: Ada",
        "asked": ["plain", "task"],
    }  # fmt: skip


def test_the_official_typescript_client_at_our_server(peers: Peers) -> None:
    driver = DRIVERS / "typescript_v1_tasks_client.mjs"
    seen = seen_by([str(peers.node), str(driver), str(peers.modules), *OURS])
    assert seen == {
        "work": [["taskCreated", "working"], ["result", "3 steps"]],
        "ask": ["result", "accept: Ada"],
        "listed": ["completed", "completed"],
        "cancelled": "cancelled",
        "later": "accept: Ada",
        "asked": ["plain", "task"],
    }


async def test_our_client_at_the_official_python_server(peers: Peers) -> None:
    user, messages = User(), list[str | None]()
    user.answer = {"name": "Ada"}
    target = stdio(peers.python_v1, DRIVERS / "python_v1_tasks_server.py")
    with trio.fail_after(LIMIT):
        async with Client(target, **user.options()) as client:
            assert client.version == LEGACY
            worked = await client.call_tool("work", on_progress=lambda each: messages.append(each.message))
            assert text_of(worked.content) == "worked"
            # A look shows where the task stands: a step that is over by then is not seen.
            assert messages
            assert set(messages) <= {"step 1", "step 2", "step 3"}
            handle = await client.start_tool("ask")
            assert text_of((await handle.result()).content) == "accept: Ada"
            assert handle.id in [each.id async for each in client.tasks()]
            assert text_of((await client.call_tool("ask_later")).content) == "accept: Ada"
            assert text_of((await client.call_tool("host")).content) == "accept: Ada"
            waits = await client.start_tool("forever")
            await waits.cancel()
            with pytest.raises(TaskCancelled):
                await waits.result()
            failed = await client.start_tool("broken")
            assert [each.status async for each in failed.updates()][-1] == "failed"


@rows("everything", ("stdio", "auto"), ("http", "auto"))
async def test_our_client_at_the_reference_server(target: str, era: str) -> None:
    user = User()
    user.answer = {"interpretation": "technical", "name": "Ada"}
    with trio.fail_after(LIMIT):
        async with Client(target, era=era, **user.options()) as client:
            arguments = {"topic": "tides", "ambiguous": True}
            report = await client.call_tool("simulate-research-query", arguments)
            assert text_of(report.content).startswith("# Research Report: tides (technical)")
            sampled = await client.call_tool("trigger-sampling-request-async", {"prompt": "hello"})
            assert "[COMPLETED]" in text_of(sampled.content)
