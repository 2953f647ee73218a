"""Signals at any moment of the start of a command: always the documented end, and nothing is left.

Twice. In one process, which forks at many of its calls of functions, from the moment on at which it catches signals; so
the moments are the same each time. And with real processes, at random moments of a seed, before that too.

``MCP_ACTORS_STARTS=200 pytest -n 0 -s tests/cli/test_start_signals.py`` starts more of them and prints what it saw.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM

import attrs
import pytest

from tests.cli.conftest import LIMIT, checkout_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        sys.platform != "linux", reason="looks into /proc, and forks in the middle of everything"
    ),
]

STARTS = int(os.environ.get("MCP_ACTORS_STARTS", "10"))
"""Starts of the workers, and half as many of the other commands: in CI few, by hand many."""
SEED = int(os.environ.get("MCP_ACTORS_SEED", "7"))
EVERY = 2_500
"""Calls of functions from one moment to the next. A start has 20,000 to 120,000."""
INTERRUPTED = Path(__file__).with_name("interrupted.py")

GOOD = """
from mcp_actors import Server
server = Server("good")

@server.tool
def add(a: int) -> int:
    return a
"""
PROGRAMS = {
    "good": GOOD,
    "slow": f"import time\ntime.sleep(0.3)\n{GOOD}",
    "hangs": f"import time\ntime.sleep(1000)\n{GOOD}",
    # Which no signal handler of Python can interrupt, as in a library written in C.
    "deaf": "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\ntime.sleep(1000)\n",
    "swallows": """
import time
open("begun", "w").close()
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
""",
    "raises": "1 / 0\n",
    "dies": "import os\nos._exit(3)\n",
    "lifespan": """
from contextlib import asynccontextmanager
import trio
from mcp_actors import Server

@asynccontextmanager
async def hangs(server):
    await trio.sleep(1000)
    yield

server = Server("never ready", lifespan=hangs)
""",
}


@attrs.frozen
class Command:
    """A command line, and the exit codes by which it may end when it was interrupted at its start."""

    words: str
    codes: frozenset[int] = frozenset({0})

    def words_in(self, folder: Path) -> list[str]:
        stdio = shlex.quote(f"stdio:{sys.executable} -m mcp_actors serve {folder}/good.py")
        http = "--listen http://127.0.0.1:0/mcp"
        return shlex.split(self.words.format(at=folder, http=http, stdio=stdio))


SERVING = {
    "plain": Command("serve {at}/good.py {http} --workers 2"),
    "admin": Command("serve {at}/good.py {http} --workers 2 --admin unix:{at}/admin"),
    "unix": Command("serve {at}/good.py --listen unix:{at}/socket --workers 2"),
    "sqlite": Command("serve {at}/good.py {http} --workers 2 --shared sqlite:///{at}/state.db"),
    "slow": Command("serve {at}/slow.py {http} --workers 2"),
    "hangs": Command("serve {at}/hangs.py {http} --workers 2"),
    "deaf": Command("serve {at}/deaf.py {http} --workers 2"),
    "swallows": Command("serve {at}/swallows.py {http} --workers 2"),
    "lifespan": Command("serve {at}/lifespan.py {http} --workers 2"),
    # The failure may come before the signal.
    "raises": Command("serve {at}/raises.py {http} --workers 2", frozenset({0, 1})),
    "dies": Command("serve {at}/dies.py {http} --workers 2", frozenset({0, 1})),
}
OTHERS = {
    "serve": Command("serve {at}/good.py {http} --admin unix:{at}/admin"),
    "serve hangs": Command("serve {at}/hangs.py {http}"),
    "serve swallows": Command("serve {at}/swallows.py {http}"),
    "serve stdio": Command("serve {at}/good.py"),
    "gateway": Command("gateway {at}/mcp.json {http}"),
    "check": Command("gateway {at}/mcp.json --check", frozenset({0, 130})),
    "bridge": Command("bridge {stdio} http://127.0.0.1:0/mcp"),
    "rest": Command("rest {stdio} http://127.0.0.1:0/mcp"),
    "top": Command("top unix:{at}/nothing", frozenset({1, 130})),
    "list": Command("list {stdio}", frozenset({0, 130})),
    "call": Command("call {stdio} add a=1", frozenset({0, 130})),
    "inspect": Command("inspect {stdio}", frozenset({0, 4, 5, 130})),
    "bench": Command("bench {stdio} add a=1 --duration 1", frozenset({0, 130})),
    "demo": Command("demo --sessions 5 --seconds 0.2", frozenset({0, 130})),
    "install": Command(
        "install {at}/good.py --client cursor --config {at}/client.json --dry-run", frozenset({0, 130})
    ),
}

NEVER_BEGIN = ("serve hangs", "serve swallows")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The path of a Unix socket is short.
    folder = tmp_path_factory.mktemp("s")
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    server = {"command": sys.executable, "args": ["-m", "mcp_actors", "serve", str(folder / "good.py")]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"one": server}}))
    return folder


# -- one process, at many of its calls --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["workers", *(each for each in OTHERS if each not in NEVER_BEGIN)])
def test_a_command_ends_as_documented_whenever_it_is_interrupted(name: str, folder: Path) -> None:
    command = OTHERS.get(name, SERVING["admin"])
    out = folder / "moments"
    first = random.Random(f"{SEED} {name}").randrange(EVERY)
    ran = subprocess.run(
        [sys.executable, "-P", str(INTERRUPTED), str(EVERY), str(first), str(out), *command.words_in(folder)],
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10 * LIMIT,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    moments = [json.loads(line) for line in out.read_text().splitlines()]
    if 130 in command.codes:
        said = {"mcp-actors: interrupted\n"}
        if name == "install":
            # While it tries out what it is to install, it can say more.
            said.add("mcp-actors: interrupted; nothing was changed\n")
        assert [each for each in moments if each[1] != 130 or each[2] not in said] == []
    else:
        # A server may have begun to serve when it learns that it has to stop.
        said = re.compile(r"(serving .*\n|live view .*\n)*")
        assert [each for each in moments if each[1] != 0 or not said.fullmatch(each[2])] == []
    assert len(moments) > 3
    print(f"{name}: {len(moments)} moments")


FIRST = """
import runpy, signal, sys
before, given = set(sys.modules), signal.signal
def look(number, handler):
    if number == signal.SIGTERM:
        print(*sorted(each for each in set(sys.modules) - before if each.partition(".")[0] in {ours}))
        sys.exit()
    return given(number, handler)
signal.signal = look
sys.argv[1:] = ["list", "stdio:nothing"]
runpy.run_module("mcp_actors", run_name="__main__", alter_sys=True)
"""


def test_signals_are_caught_before_anything_else_is_loaded(folder: Path) -> None:
    ours = (
        "mcp_actors",
        "mcp_transports",
        "trio",
        "attr",
        "attrs",
        "msgspec",
        "structlog",
        "click",
        "cattrs",
    )
    ran = subprocess.run(
        [sys.executable, "-c", FIRST.format(ours=ours)],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["mcp_actors", "mcp_actors.cli", "mcp_actors.cli.start"]


# -- a program that is being loaded -----------------------------------------------------------------------

LOADS = """
import atexit, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
atexit.register(lambda: (child.kill(), child.wait(), pathlib.Path("at exit").touch()))
try:
    pathlib.Path("begun").touch()
    time.sleep(1000)
except KeyboardInterrupt as error:
    {does}
finally:
    pathlib.Path("left").touch()
"""


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
@pytest.mark.parametrize("does", ["raise", "raise ImportError from error", "sys.exit('no')", "pass"])
def test_a_program_that_is_being_loaded_can_clean_up(
    does: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "loads.py").write_text(LOADS.format(does=does) + GOOD)
    with running(["serve", "loads.py", "--listen", "http://127.0.0.1:0/mcp"], tmp_path) as process:
        until((tmp_path / "begun").exists)
        process.send_signal(number)
        assert ending(process, tmp_path) == (0, "")
        assert (tmp_path / "left").exists()
        assert (tmp_path / "at exit").exists()
        assert left_of(process) == []


def test_a_program_that_does_not_obey_is_ended_soon(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(PROGRAMS["swallows"])
    with running(["serve", "deaf.py"], tmp_path) as process:
        until((tmp_path / "begun").exists)
        process.send_signal(SIGTERM)
        assert ending(process, tmp_path) == (0, "")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(LOADS.format(does="pathlib.Path('cleans').touch(); time.sleep(1000)"))
    with running(["serve", "slow.py"], tmp_path) as process:
        until((tmp_path / "begun").exists)
        process.send_signal(SIGINT)
        until((tmp_path / "cleans").exists)
        process.send_signal(SIGINT)
        assert ending(process, tmp_path) == (0, "")


FORKS = """
import os, pathlib, signal
if os.fork() == 0:
    found = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    pathlib.Path("found").write_text(str(found == [signal.default_int_handler, signal.SIG_DFL]))
    os._exit(0)
os.wait()
"""


def test_a_process_that_the_program_forks_has_the_usual_handlers(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS + GOOD)
    with running(["serve", "forks.py"], tmp_path) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert ending(process, tmp_path) == (0, "")
    assert (tmp_path / "found").read_text() == "True"


def test_what_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As a shell does it for what runs in the background of a script."""
    (tmp_path / "slow.py").write_text("import time\nopen('begun', 'w')\ntime.sleep(0.2)\n" + GOOD)
    with running(["serve", "slow.py"], tmp_path, ignored=SIGINT) as process:
        until((tmp_path / "begun").exists)
        process.send_signal(SIGINT)
        assert process.stdin is not None
        process.stdin.close()
        assert ending(process, tmp_path) == (0, "")


ENDS = """
import os, signal
from mcp_actors.cli.start import Start

class Last:
    def __del__(self, kill=os.kill, own=os.getpid()):
        kill(own, {number})

Start(["serve", "good.py", "--workers=2"]).catch()
# It is destroyed when Python takes the modules apart, behind all that is called at the end.
last = Last()
"""


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGHUP])
def test_a_signal_while_the_interpreter_ends_changes_nothing(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS.format(number=int(number)))
    ended = subprocess.run([sys.executable, "ends.py"], cwd=tmp_path, env=environment(tmp_path), check=False)
    assert ended.returncode == 0


# -- real processes, at random moments --------------------------------------------------------------------


@pytest.fixture(scope="module")
def span(folder: Path) -> float:
    """Seconds in which most of a start is over here and now."""
    began = time.monotonic()
    with running(SERVING["plain"].words_in(folder), folder) as process:
        until(lambda: "serving " in (folder / "said").read_text())
        taken = time.monotonic() - began
        process.send_signal(SIGTERM)
        assert ending(process, folder)[0] == 0
    return taken * 1.2


@pytest.mark.parametrize("commands", [SERVING, OTHERS], ids=["workers", "others"])
def test_real_processes_end_as_documented_at_random_moments(
    commands: dict[str, Command], folder: Path, span: float
) -> None:
    chance = random.Random(SEED)
    ends: Counter[object] = Counter()
    wrong: list[object] = []
    slowest = 0.0
    names = list(commands)
    for at in range(STARTS if commands is SERVING else STARTS // 2):
        name = names[at % len(names)] if len(names) < STARTS else chance.choice(names)
        sent = chance.choice(SEQUENCES)
        if commands is OTHERS:
            # What SIGHUP does to a command without workers is for the system to say.
            sent = tuple(each for each in sent if each != SIGHUP)
        found = interrupt(commands[name], sent, chance, span, folder)
        ends[found.end if found.caught else "before"] += 1
        slowest = max(slowest, found.seconds)
        if found.complaints:
            wrong.append((name, sent, found))
    print(f"{ends.total()} starts ended by {dict(ends)}; the slowest {slowest:.2f} s after its first signal")
    assert wrong == []


SEQUENCES = [
    (SIGTERM,),
    (SIGINT,),
    (SIGHUP, SIGTERM),
    (SIGHUP, SIGHUP, SIGHUP, SIGINT),
    (SIGTERM, SIGTERM),
    (SIGINT, SIGTERM),
]


@attrs.frozen
class Interrupted:
    """What became of a start, as a person or another program sees it."""

    caught: bool
    end: int
    seconds: float
    complaints: list[str]
    said: str


def interrupt(
    command: Command, sent: tuple[signal.Signals, ...], chance: random.Random, span: float, folder: Path
) -> Interrupted:
    """Starts a command, and sends it signals: the first at a random moment, the others soon after."""
    with running(command.words_in(folder), folder) as process:
        time.sleep(chance.uniform(0, span))
        caught = catches(process.pid, SIGTERM)
        began = time.monotonic()
        for number in sent:
            process.send_signal(number)
            time.sleep(chance.choice([0, 0.001, 0.05, 0.3]))
        code, said = ending(process, folder)
        seconds = time.monotonic() - began
        complaints = []
        # Before a line of ours has run, a signal does what the system and Python do with it.
        if code not in command.codes and (caught or code not in (1, *(-each for each in sent))):
            complaints.append(f"exit code {code}")
        if caught and "Traceback" in said:
            complaints.append("a traceback")
        complaints += [f"{each} is left" for each in left_of(process)]
    for path in folder.iterdir():
        if path.is_socket():
            complaints.append(f"{path.name} is left")
            path.unlink()
    return Interrupted(caught, code, seconds, complaints, said)


# -- processes ---------------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    return checkout_environment() | {"HOME": str(folder)}


@contextmanager
def running(
    words: list[str], folder: Path, ignored: signal.Signals | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, of which nothing is left behind the block."""
    before = None if ignored is None else signal.signal(ignored, signal.SIG_IGN)
    said = (folder / "said").open("wb")
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mcp_actors", *words],
            env=environment(folder),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
    finally:
        if ignored is not None:
            signal.signal(ignored, before)
    with said, process:
        try:
            yield process
        finally:
            for pid in members(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def ending(process: subprocess.Popen[bytes], folder: Path) -> tuple[int, str]:
    """The exit code of a process, and what it has written to standard error."""
    return process.wait(LIMIT), (folder / "said").read_text(errors="replace")


def left_of(process: subprocess.Popen[bytes]) -> list[str]:
    """The command lines of what is left of a session, if anything stays there."""
    end = time.monotonic() + LIMIT / 4
    while members(process.pid) and time.monotonic() < end:
        time.sleep(0.02)
    lines = []
    for pid in members(process.pid):
        with suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return lines


def members(session: int) -> list[int]:
    """The processes of a session that live."""
    found = []
    for each in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            state, _, _, of, *_ = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append(int(each))
    return found


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, or ignores it."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(status.partition(f"{name}:")[2].split()[0], 16) for name in ("SigCgt", "SigIgn")]
    return any(mask >> (number - 1) & 1 for mask in masks)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
