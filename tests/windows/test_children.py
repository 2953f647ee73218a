"""The stdio client with the branches for Windows, over real processes: jobs, Ctrl-Break, and how a child ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .pretended import run_in_windows

# A child that ignores the end of its input and SIGTERM, with another one that does the same and holds its pipes.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = os.fork()
if grandchild: os.write(1, b"%d %d\\n" % (os.getpid(), grandchild))
time.sleep(1000)
"""
# One that ends when it is asked.
POLITE = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(1000)"
# One that ends with its input, and leaves a process behind that holds its pipes.
LEAVES_ONE_BEHIND = STUBBORN.replace(
    "time.sleep(1000)", "time.sleep(0 if grandchild and not os.read(0, 1) else 1000)"
)
ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()
print("last words", file=sys.stderr)
sys.exit(3)
"""
DIES = "import os; os.write(1, b'x' * 100000 + b'\\n'); os._exit(4)"

# Each is a child, what is done with it, and the settings of the system.
SCENARIOS: dict[str, tuple[str, str, dict[str, object]]] = {
    # These end as soon as the machine has a moment for it.
    "echo": (ECHO, "echo", {"grace": 10}),
    "polite": (POLITE, "leave", {"kill_after": 10}),
    "stubborn": (STUBBORN, "leave", {}),
    "leaves one behind": (LEAVES_ONE_BEHIND, "leave", {}),
    "no console": (STUBBORN, "leave", {"console": False}),
    "CreateJobObjectW": (POLITE, "leave", {"failing": ["CreateJobObjectW"], "console": False}),
    "SetInformationJobObject": (POLITE, "leave", {"failing": ["SetInformationJobObject"], "console": False}),
    "AssignProcessToJobObject": (
        POLITE,
        "leave",
        {"failing": ["AssignProcessToJobObject"], "console": False},
    ),
    "NtResumeProcess": (ECHO, "echo", {"failing": ["NtResumeProcess"]}),
    "dies": (DIES, "dies", {"grace": 10}),
}
PROGRAM = """
import json, os, sys
from tests.windows.pretended import pretend
from tests.windows.system import FakeLibrary, fake_msvcrt, open_process_as_windows
libraries = []
open_process_as_windows(libraries)
pretend(kernel32=lambda: libraries[-1], msvcrt=fake_msvcrt())
import trio, trio.testing
from pathlib import Path
from mcp_actors.abc import Frame
from mcp_actors.errors import ConnectFailed
from mcp_transports.stdio import StdioClientTransport
from mcp_transports.stdio.windows.kernel32 import kernel32

def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False

async def ending(channel):
    try:
        while True:
            await channel.receive_many()
    except (trio.EndOfChannel, trio.BrokenResourceError) as error:
        return type(error).__name__

async def play(code, way, settings):
    library = FakeLibrary(console=settings.get("console", True), failing=frozenset(settings.get("failing", ())))
    libraries.append(library)
    kernel32.cache_clear()
    said = {"received": [], "pids": []}
    waits = {"grace": settings.get("grace", 0.2), "kill_after": settings.get("kill_after", 0.2)}
    transport = StdioClientTransport([sys.executable, "-c", code], **waits, stderr=None)
    try:
        with trio.fail_after(60):
            async with transport.connect() as channel:
                if way == "echo":
                    await channel.send_many([Frame(b"1"), Frame(b"x" * 300_000)])
                    while len(said["received"]) < 2:
                        said["received"] += [len(each.data) for each in await channel.receive_many()]
                elif way == "dies":
                    said["received"] = [len((await channel.receive()).data)]
                    said["ending"] = await ending(channel)
                elif way == "leave":
                    said["pids"] = [int(each) for each in (await channel.receive()).data.split()]
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(ending, channel)  # a read is under way when the channel is closed
                        await trio.testing.wait_all_tasks_blocked()
                        nursery.cancel_scope.cancel()
            said["report"] = channel.loss_report()
    except ConnectFailed as error:
        said["failed"] = str(error)
    said["running"] = [runs(pid) for pid in said["pids"]]
    return {**said, "calls": library.calls, "open": len(library.open), "suspended": len(library.suspended)}

async def main():
    return {name: await play(*each) for name, each in json.loads(sys.argv[1]).items()}

print(json.dumps(trio.run(main)))
"""


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    said: dict[str, Any] = json.loads(run_in_windows(PROGRAM, json.dumps(SCENARIOS)))
    return said


@pytest.mark.slow
def test_no_handle_is_left_open(played: dict[str, Any]) -> None:
    assert {name: said["open"] for name, said in played.items()} == dict.fromkeys(SCENARIOS, 0)


def test_a_child_echoes_and_ends_when_its_input_does(played: dict[str, Any]) -> None:
    said = played["echo"]

    assert said["received"] == [1, 300_000]
    assert said["report"] == {"exit_code": 3, "stderr": ["last words"]}
    # In the job before it runs, so that none of its processes can escape; a group of its own, and suspended.
    names = [
        each
        for each in said["calls"]
        if each not in ("OpenProcess", "CloseHandle", "QueryInformationJobObject")
    ]
    assert names == [
        "GetConsoleCP", "open_process 0x204", "CreateJobObjectW", "SetInformationJobObject",
        "AssignProcessToJobObject", "NtResumeProcess",
    ]  # fmt: skip
    assert said["suspended"] == 0


def test_a_polite_child_ends_by_ctrl_break(played: dict[str, Any]) -> None:
    said = played["polite"]

    assert said["running"] == [False]
    assert "GenerateConsoleCtrlEvent" in said["calls"]
    assert "TerminateJobObject" not in said["calls"]


@pytest.mark.parametrize("name", ["stubborn", "leaves one behind"])
def test_nobody_is_left(name: str, played: dict[str, Any]) -> None:
    said = played[name]

    assert said["running"] == [False, False]
    assert "TerminateJobObject" in said["calls"]


def test_without_a_console_nobody_is_asked_and_no_window_opens(played: dict[str, Any]) -> None:
    said = played["no console"]

    assert said["running"] == [False, False]
    assert "open_process 0x8000004" in said["calls"]
    assert "GenerateConsoleCtrlEvent" not in said["calls"]


@pytest.mark.parametrize(
    "failing", ["CreateJobObjectW", "SetInformationJobObject", "AssignProcessToJobObject"]
)
def test_a_child_without_a_job_is_ended_alone(failing: str, played: dict[str, Any]) -> None:
    said = played[failing]

    assert said["running"] == [False]
    assert said["report"]["exit_code"] == -9


def test_a_child_that_does_not_run_is_refused(played: dict[str, Any]) -> None:
    said = played["NtResumeProcess"]

    assert "did not let the new process run" in said["failed"]
    assert "report" not in said


def test_the_end_comes_after_what_a_dead_child_has_written(played: dict[str, Any]) -> None:
    said = played["dies"]

    assert said["received"] == [100_000]
    assert said["ending"] == "EndOfChannel"
    assert said["report"]["exit_code"] == 4


STDERR_PROGRAM = """
import json, locale
from tests.windows.pretended import pretend
from tests.windows.system import fake_msvcrt
pretend(kernel32=lambda: None, msvcrt=fake_msvcrt())
locale.getpreferredencoding = lambda _: "cp1252"
from mcp_transports.stdio.child import STDERR_LINE_BYTES, StderrTail
lines = []
tail = StderrTail(5, lines.append)
for each in ("Fähre".encode("cp1252"), "Fähre".encode(), b"x" * (STDERR_LINE_BYTES - 1) + "ä".encode()):
    tail.feed(each + b"\\r\\n")
print(json.dumps([line[-5:] for line in lines]))
"""


def test_standard_error_may_be_in_the_code_page() -> None:
    assert json.loads(run_in_windows(STDERR_PROGRAM)) == ["Fähre", "Fähre", "xxxx\N{REPLACEMENT CHARACTER}"]
