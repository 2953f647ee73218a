"""The stdio client with children of Windows: what they are given, what they say, and that none is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from running import PATIENCE, PROGRAMS, all_end, connected, is_running, python, served

from mcp_actors.abc import Frame
from mcp_actors.errors import ConnectFailed, ConnectionLost
from mcp_transports.stdio import StdioClientTransport

# It ignores the end of its input, and starts another one that does the same with its pipes.
STUBBORN = """
import os, subprocess, sys, time
code = "import time; time.sleep(600)"
print(os.getpid(), subprocess.Popen([sys.executable, "-c", code]).pid, flush=True)
time.sleep(600)
"""
# It ends with its input, and leaves a process behind that holds its pipes.
LEAVES_ONE_BEHIND = STUBBORN.replace("\ntime.sleep(600)", "\nsys.stdin.read()")
ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()
print("last words", file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_is_called(era: str, tmp_path: Path) -> None:
    told: list[str | None] = []
    with trio.fail_after(PATIENCE):
        async with connected(served(str(tmp_path / "end")), era=era) as client:
            result = await client.call_tool(
                "forecast",
                {"city": "Köln", "days": 2},
                on_progress=lambda report: told.append(report.message),
            )
            assert result.data == {"Köln": [20, 21]}
            assert told == ["asking for day 1", "asking for day 2"]
            assert (await client.call_tool("in_a_thread", {"text": "€"})).text == "€ ä"
            assert (await client.read_resource("weather://Berlin/now")).text == "Berlin: sunny"
            with trio.move_on_after(0.5) as scope:
                await client.call_tool("wait_for_ever")
            assert scope.cancelled_caught
            while await client.call_tool("count_cancelled", returns=int) != 1:
                pass
            child = await client.call_tool("pid", returns=int)
    assert not is_running(child)
    assert (tmp_path / "end").read_text() == "ended in order"


async def test_other_output_of_a_server_does_not_reach_the_protocol() -> None:
    lines: list[str] = []
    with trio.fail_after(PATIENCE):
        async with connected(served(stderr=lines.append)) as client:
            assert (await client.call_tool("speak")).text == "''"
    assert sorted(lines) == ["printed", "said by a command", "written"]


async def test_standard_error_is_read_in_the_code_page() -> None:
    lines: list[str] = []
    with trio.fail_after(PATIENCE):
        async with connected(served(stderr=lines.append)) as client:
            await client.call_tool("complain", {"text": "Fähre"})
    assert "Fähre" in lines


@pytest.mark.parametrize("env", [None, {"A": "1"}, {"path": ""}], ids=["none", "one", "no path"])
async def test_a_child_gets_what_no_program_can_do_without(env: dict[str, str] | None) -> None:
    with trio.fail_after(PATIENCE):
        async with connected(served(env=env)) as client:
            assert (await client.call_tool("variable", {"name": "SystemRoot"})).text != "None"
            assert (await client.call_tool("variable", {"name": "A"})).text == repr((env or {}).get("A"))


async def test_large_messages_pass_both_ways_at_once() -> None:
    message = Frame(bytes(range(33, 127)) * 20_000)
    with trio.fail_after(PATIENCE):
        async with python(ECHO).connect() as channel, trio.open_nursery() as nursery:
            nursery.start_soon(channel.send_many, [message, message])
            assert await channel.receive() == message
            assert await channel.receive() == message


# -- What goes wrong -------------------------------------------------------------------------------


async def test_a_child_that_dies_is_reported_with_its_exit_code() -> None:
    with trio.fail_after(PATIENCE):
        async with connected(served()) as client:
            with pytest.raises(ConnectionLost, match="it exited with code 7"):
                await client.call_tool("die", {"code": 7})


async def test_a_child_that_dies_at_its_start_is_quoted() -> None:
    code = "import sys; sys.stderr.write('no luck'); sys.exit(5)"
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost, match=r"(?s)code 5.*no luck"):
        async with connected(python(code)):
            pass


@pytest.mark.parametrize(
    ("command", "cwd", "reason"),
    [
        (["no-such-program"], None, "there is no command 'no-such-program'"),
        ([r"C:\no\such.exe"], None, r"there is no command 'C:\\\\no\\\\such.exe'"),
        ([sys.executable], r"C:\no\such\place", r"the working directory 'C:\\\\no\\\\such\\\\place': "),
    ],
)
async def test_what_cannot_be_started_is_named(command: list[str], cwd: str | None, reason: str) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(ConnectFailed, match=reason):
        async with StdioClientTransport(command, cwd=cwd).connect():
            pass


# -- How a child ends ------------------------------------------------------------------------------


async def test_a_child_ends_with_its_input() -> None:
    with trio.fail_after(PATIENCE):
        async with python(ECHO, grace=PATIENCE).connect() as channel:
            await channel.send(Frame(b"1"))
            assert (await channel.receive()).data == b"1"
    assert channel.loss_report() == {"exit_code": 3, "stderr": ("last words",)}


@pytest.mark.parametrize("code", [STUBBORN, LEAVES_ONE_BEHIND], ids=["stubborn", "leaves one behind"])
@pytest.mark.parametrize("way", ["leave", "raise", "cancel"])
async def test_nobody_is_left(code: str, way: str) -> None:
    pids: list[int] = []
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        try:
            async with python(code, grace=0.5, kill_after=0.2).connect() as channel:
                pids = [int(word) for word in (await channel.receive()).data.split()]
                assert all(map(is_running, pids))
                if way == "raise":
                    raise KeyError("mine")
                if way == "cancel":
                    scope.cancel()
                    await trio.sleep_forever()
        except KeyError:
            assert way == "raise"
    assert scope.cancelled_caught == (way == "cancel")
    assert len(pids) == 2
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("detached", [False, True])
async def test_what_a_child_has_started_ends_with_it(detached: bool) -> None:
    with trio.fail_after(PATIENCE):
        async with connected(served()) as client:
            started = await client.call_tool("start_another", {"detached": detached}, returns=int)
            assert is_running(started)
    assert not is_running(started)


async def test_a_dead_child_is_over_though_another_process_holds_its_pipes() -> None:
    code = STUBBORN.replace("\ntime.sleep(600)", "\nsys.stdin.readline(); os._exit(4)")
    with trio.fail_after(PATIENCE):
        async with python(code, kill_after=0.2).connect() as channel:
            pids = [int(word) for word in (await channel.receive()).data.split()]
            await channel.send(Frame(b"end"))
            with pytest.raises(trio.EndOfChannel):
                await channel.receive()
            assert channel.loss_report()["exit_code"] == 4
    assert await all_end(pids)


async def test_children_do_not_hold_each_others_pipes() -> None:
    with trio.fail_after(PATIENCE):
        async with python(ECHO, grace=PATIENCE).connect() as first, python(ECHO).connect() as second:
            for channel in (first, second):
                await channel.send(Frame(b"up"))
                await channel.receive()
            await first.aclose()
            assert await all_end([first.pid])  # type: ignore[attr-defined]
            await second.send(Frame(b"still here"))
            assert (await second.receive()).data == b"still here"


async def test_children_end_by_themselves_when_their_parent_is_ended() -> None:
    command = [sys.executable, str(PROGRAMS / "parent.py")]
    with trio.fail_after(PATIENCE):
        process: Any = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        said = b""
        while not said.endswith(b"\n"):
            said += await process.stdout.receive_some()
        pids = [int(word) for word in said.split()]
        assert [is_running(pid) for pid in pids] == [True] * 4
        process.terminate()  # as the task manager does it: the process has no say
        await process.wait()
        await process.stdout.aclose()
        assert await all_end(pids)
