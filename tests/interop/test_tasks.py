"""Tasks with others. Those of MCP 2025-11-25 with the official SDKs' first generations, which have them as experiments,
both ways.

Those of the stateless revision (SEP-2663) with the requester of the extension's own project, and with FastMCP, both
ways; the official suite plays them, too.
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
from mcp_actors.client import Progress
from mcp_actors.errors import TaskCancelled

from .installation import Peers, find_node, install_separately
from .servers import DRIVERS
from .user import LEGACY, LIMIT, MODERN, User, rows, stdio, text_of

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
    user, messages, seen = User(), list[str | None](), trio.Event()
    user.answer = {"name": "Ada"}

    def on_progress(report: Progress) -> None:
        messages.append(report.message)
        seen.set()

    target = stdio(peers.python_v1, DRIVERS / "python_v1_tasks_server.py")
    with trio.fail_after(LIMIT):
        async with Client(target, **user.options()) as client:
            assert client.version == LEGACY
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def let_it_go_on() -> None:
                    await seen.wait()
                    await client.call_tool("go_on")

                worked = await client.call_tool("work", on_progress=on_progress)
            assert text_of(worked.content) == "worked"
            # A look shows where the task stands: a step that is over by then is not seen.
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


# -- The extension of the stateless revision -------------------------------------------------------------------------


def test_the_official_requester_at_our_server(peers: Peers) -> None:
    node, modules = find_node(Path(sys.executable)), install_separately("ext-tasks")
    seen = seen_by([str(node), str(DRIVERS / "typescript_tasks_client.mjs"), str(modules), *OURS])
    assert seen == {
        "declared": {},
        "tools": ["work", "ask", "forever", "broken", "later"],
        "capabilities": {
            "inventory": "known-handles",
            "execution": True,
            "cancellation": True,
            "inputResponses": True,
            "requestedRetention": False,
        },
        "work": ["task", "completed", "completed", "3 steps"],
        "ask": ["task", "completed", "completed", "accept: Ada"],
        "later": ["immediate", None, "completed", "accept: Ada"],
        "broken": ["task", "completed", "completed", "broken: ValueError: it is broken"],
        "forever": "cancelled",
        "resumed": "2 steps",
        "unknown": -32602,
        "asked": [["task", "Who?"], ["request", "Who, when you have the time?"]],
    }


def fastmcp(*arguments: str) -> list[str]:
    return [str(install_separately("fastmcp-tasks")), str(DRIVERS / "fastmcp_task_programs.py"), *arguments]


def test_fastmcp_at_our_server(peers: Peers) -> None:
    assert seen_by(fastmcp("call", *OURS)) == {
        "asked": ["Who?"],
        "work": "3 steps",
        "ask": "accept: Ada",
        "broken": True,
        "started": "working",
        "cancelled": "cancelled",
    }


async def test_our_client_at_fastmcp(peers: Peers) -> None:
    user = User()
    user.answer = {"name": "Ada"}
    with trio.fail_after(LIMIT):
        async with Client(fastmcp("serve"), **user.options()) as client:
            assert client.version == MODERN
            assert text_of((await client.call_tool("work", {"steps": 3})).content) == "3 steps"
            handle = await client.start_tool("ask")
            assert text_of((await handle.result()).content) == "accept: Ada"
            waits = await client.start_tool("forever")
            await waits.cancel()
            with pytest.raises(TaskCancelled):
                await waits.result()
            broken = await client.start_tool("broken")
            assert (await broken.result()).is_error
