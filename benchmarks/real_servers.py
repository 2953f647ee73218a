"""Eight servers of others behind one gateway, which is called a great many times while their processes are killed.

::

    python -m benchmarks.real_servers --calls 20000
    python -m benchmarks.real_servers --calls 200 --legacy 0 --points 2     # a small one

Servers from npm and PyPI are installed once, into the cache of the suite. ``mcp-actors gateway`` serves them on stdio
and HTTP as a process of its own, and clients of both eras make mixed calls, several at a time. Every so many calls, the
process of a server is killed. Each call has to be answered rightly or to fail with an error that says why, within a
time; at points between, the gateway is measured: its tasks, descriptors, children and memory. At the end no process
may be left. Raises `AssertionError` otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from benchmarks.crashing_server import DIES_AT
from benchmarks.suite.peers import NODE_WHEEL, Peer, default_cache
from benchmarks.suite.process import resident_kib
from benchmarks.suite.server import ROOT, free_port
from mcp_actors import Client
from mcp_actors.cli.top.screen import client_of
from mcp_actors.errors import Overloaded, RpcError, UpstreamTimeout, UpstreamUnavailable
from mcp_actors.supervision.task_kinds import CALL_WORKER, CONNECTION_WRITER, SOCKET_CONNECTION

__all__ = ["Levels", "RealServers", "configuration", "installed"]

# Seconds. An error must come long before, also if a process is being started that many wait for.
ANSWER_WITHIN = 90.0
QUIET_WITHIN = 90.0
GONE_WITHIN = 30.0
LOOK_EVERY = 0.1
AT_A_TIME = 4
# The first points are left out of what is compared: caches of the interpreter and of the engine fill for a while.
WARM_POINT = 2
# The allocator keeps pages for itself, clients keep connections, and a session has a clock once it needed one. A
# connection to a server that is left over has nine tasks.
SPARE_KIB, SPARE_TASKS, SPARE_DESCRIPTORS = 8 * 1024, 6, 12
# Tasks that stay once they were needed: one that writes for each connection to which something had to wait, one for
# each call that was in flight beside others, and one for each connection that a client keeps. How many of them there
# are says how much was done at one time, and not how much is left of it.
KEPT_TASKS = frozenset({CONNECTION_WRITER.name, CALL_WORKER.name, SOCKET_CONNECTION.name})
GATEWAY = [sys.executable, "-m", "mcp_actors", "gateway"]
ALLOWED = (UpstreamUnavailable, UpstreamTimeout, Overloaded)

PACKAGES = Peer(
    "real_servers",
    "servers of others",
    "",
    pip=("mcp-server-git==2026.10.19", "fastmcp==4.1.2", NODE_WHEEL),
    npm=(
        "@modelcontextprotocol/server-everything@2026.8.31",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "@modelcontextprotocol/server-memory@2026.8.31",
        "mcp-time-linux-x64@0.4.0",
    ),
    shown="@modelcontextprotocol/server-everything",
)
# It needs the first generation of the SDK, which cannot share an environment with the second.
SQLITE_PACKAGES = Peer(
    "real_sqlite_server",
    "a server of others",
    "",
    pip=("mcp-server-sqlite==2025.4.25", "mcp>=1.20,<2"),
    shown="mcp-server-sqlite",
)


def installed(cache: Path) -> dict[str, str]:
    """Returns what starts the servers, which are installed if they are not there. Raises `LoadError`."""
    found = PACKAGES.prepare(cache)
    found["environment"] = str(next(cache.glob("real_servers-*/python/bin/python")))
    return found | {"sqlite": SQLITE_PACKAGES.prepare(cache)["python"]}


def configuration(found: dict[str, str], folder: Path) -> dict[str, Any]:
    """Returns a configuration as hosts have it. What the servers keep is in ``folder``, where they run too."""
    modules = Path(found["modules"]) / "node_modules"
    official = modules / "@modelcontextprotocol"
    binary = modules / "mcp-time-linux-x64" / "bin" / "mcp-time"
    node = found["node"]
    servers: dict[str, dict[str, Any]] = {
        "everything": {"command": node, "args": [str(official / "server-everything/dist/index.js")]},
        "files": {"command": node, "args": [str(official / "server-filesystem/dist/index.js"), str(folder)]},
        "memory": {
            "command": node,
            "args": [str(official / "server-memory/dist/index.js")],
            "env": {"MEMORY_FILE_PATH": str(folder / "memory.json")},
        },
        "git": {
            "command": found["environment"],
            "args": ["-m", "mcp_server_git", "--repository", str(folder / "repository")],
        },
        "sqlite": {
            "command": str(Path(found["sqlite"]).parent / "mcp-server-sqlite"),
            "args": ["--db-path", str(folder / "items.db")],
        },
        "time": {"command": str(binary)},
        "fast": {"command": found["environment"], "args": [str(ROOT / "benchmarks" / "fastmcp_server.py")]},
        "crashing": {"command": sys.executable, "args": [str(ROOT / "benchmarks" / "crashing_server.py")]},
    }
    return {"mcpServers": {name: {**entry, "cwd": str(folder)} for name, entry in servers.items()}}


@dataclass(frozen=True)
class CallKind:
    """A tool in the gateway; ``weight`` says how often it is called, ``expected`` a part of its answer."""

    tool: str
    weight: int
    arguments: Callable[[int], dict[str, Any]]
    expected: Callable[[int], str]


def kinds(folder: Path) -> list[CallKind]:
    """Returns the calls that are mixed. Their answers depend on a number that is another one each time."""
    repository = {"repo_path": str(folder / "repository")}
    note = str(folder / "note.txt")
    compared = {"time_b": "2026-01-02T00:00:00Z"}
    return [
        CallKind("everything_echo", 20, lambda n: {"message": f"no {n}"}, lambda n: f"no {n}"),
        CallKind("everything_get-sum", 15, lambda n: {"a": n, "b": 1}, lambda n: f"is {n + 1}"),
        CallKind("everything_get-tiny-image", 3, lambda _: {}, lambda _: "image/png"),
        CallKind("files_read_text_file", 10, lambda _: {"path": note}, lambda _: "a note"),
        CallKind("files_list_directory", 5, lambda _: {"path": str(folder)}, lambda _: "note.txt"),
        CallKind("memory_search_nodes", 6, lambda n: {"query": f"nobody {n}"}, lambda _: "entities"),
        CallKind("memory_open_nodes", 6, lambda n: {"names": [f"nobody {n}"]}, lambda _: "relations"),
        CallKind("git_git_status", 1, lambda _: repository, lambda _: "branch"),
        CallKind("git_git_log", 1, lambda _: repository, lambda _: "the first"),
        CallKind("sqlite_read_query", 8, lambda n: {"query": f"select {n} as it"}, lambda n: str(n)),
        CallKind("sqlite_list_tables", 4, lambda _: {}, lambda _: "items"),
        CallKind("time_current_time", 8, lambda _: {"timezone": "UTC"}, lambda _: "20"),
        CallKind(
            "time_compare_time", 4, lambda _: {"time_a": "2026-01-01T00:00:00Z", **compared}, lambda _: "-1"
        ),
        CallKind("fast_multiply", 15, lambda n: {"a": n, "b": 3}, lambda n: str(n * 3)),
        CallKind("crashing_next_number", 3, lambda _: {}, lambda _: ""),
    ]


@dataclass(frozen=True)
class Levels:
    """What the gateway's process holds while no call is in flight; ``tasks`` is without `KEPT_TASKS`."""

    tasks: int
    descriptors: int
    children: int
    kib: int

    def is_no_more_than(self, warm: Levels) -> bool:
        return (
            self.tasks <= warm.tasks + SPARE_TASKS
            and self.descriptors <= warm.descriptors + SPARE_DESCRIPTORS
            and self.children <= warm.children
            and self.kib <= warm.kib + SPARE_KIB
        )


class RealServers:
    """Clients of one gateway, their calls, and the processes that are killed meanwhile.

    Args:
        folder: Where the servers run, and by which their processes are known.
        pid: The gateway's process.
        clients: The clients, which are open.
        seed: Says what is called and killed.
    """

    def __init__(self, folder: Path, pid: int, clients: list[Client], seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.slowest = 0.0
        self.kills = 0
        self._folder = folder
        self._pid = pid
        self._clients = clients
        self._chance = random.Random(seed)
        self._kinds = kinds(folder)
        self._weights = [kind.weight for kind in self._kinds]
        self._number = 0

    async def calls(self, count: int, calls_of_a_kill: int) -> None:
        """Makes so many calls, and kills a server after each ``calls_of_a_kill``."""
        last = self._number + count

        async def one_after_another(client: Client) -> None:
            while self._number < last:
                self._number += 1
                if self._number % calls_of_a_kill == 0:
                    self._kill()
                [kind] = self._chance.choices(self._kinds, self._weights)
                await self._call(client, kind, self._number)

        async with trio.open_nursery() as nursery:
            for client in self._clients:
                for _ in range(AT_A_TIME):
                    nursery.start_soon(one_after_another, client)
        # However the kills fell: of these, at least one ends its server.
        [dying] = [kind for kind in self._kinds if kind.tool.startswith("crashing")]
        for _ in range(DIES_AT):
            self._number += 1
            await self._call(self._clients[0], dying, self._number)

    async def _call(self, client: Client, kind: CallKind, number: int) -> None:
        began = trio.current_time()
        with trio.move_on_after(ANSWER_WITHIN) as scope:
            try:
                result = await client.call_tool(kind.tool, kind.arguments(number))
            except ALLOWED as error:
                outcome = f"{type(error).__name__}"
            except RpcError as error:
                raise AssertionError(
                    f"{kind.tool} failed with {error!r} {error.code} {error.data}"
                ) from error
            else:
                text = repr([result.content, result.structured_content])
                right = kind.expected(number) in text
                # A server that shares its file with other processes may tell that it was locked.
                assert right or result.is_error, f"{kind.tool} no {number} was answered with {text[:300]}"
                outcome = "a tool's error" if result.is_error else "answered"
        assert not scope.cancelled_caught, f"{kind.tool} was not answered within {ANSWER_WITHIN:g} s"
        self.outcomes[outcome] += 1
        self.slowest = max(self.slowest, trio.current_time() - began)

    def _kill(self) -> None:
        there = children_of(self._pid)
        if there:
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(there), signal.SIGKILL)
                self.kills += 1

    async def levels(self, admin: str) -> Levels:
        """Calls each server once more, so that each has its connections, and returns the levels when all is quiet.

        That is when no call is in flight and no server is being started again.
        """
        lasting = [kind for kind in self._kinds if not kind.tool.startswith("crashing")]
        for client in self._clients:
            for kind in {kind.tool.partition("_")[0]: kind for kind in lasting}.values():
                self._number += 1
                await self._call(client, kind, self._number)
        deadline = trio.current_time() + QUIET_WITHIN
        while True:
            snapshot = await client_of(admin, None).snapshot()
            node = snapshot.nodes[0]
            starting = [each.name for each in node.upstreams if each.state != "connected"]
            if not (node.calls or starting) or trio.current_time() > deadline:
                break
            await trio.sleep(LOOK_EVERY)
        assert not node.calls, f"calls are left: {node.calls[:3]}"
        assert not starting, f"servers are not connected: {starting}"
        kept = sum(kind.tasks for kind in node.kinds if kind.name in KEPT_TASKS)
        children = len(children_of(self._pid))
        most = 2 * AT_A_TIME * len(self._clients) + children + len(self._clients)
        assert kept <= most, f"{kept} tasks are kept for what is done at one time, which can be {most}"
        return Levels(
            sum(kind.tasks for kind in node.kinds) - kept,
            len(os.listdir(f"/proc/{self._pid}/fd")),
            children,
            resident_kib(self._pid),
        )


def children_of(pid: int) -> list[int]:
    """Returns the processes that it has started and that are not ended."""
    found = []
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in each.read_text().split()]
    return [child for child in found if not is_dead(child)]


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def processes_in(folder: Path) -> list[str]:
    """Returns the commands of all processes whose working directory is there or below."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(each / "cwd")).is_relative_to(folder) and not is_dead(int(each.name)):
                found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
    return found


def prepare_folder(folder: Path) -> None:
    """Puts there what the servers are asked about."""
    (folder / "note.txt").write_text("a note")
    repository = folder / "repository"
    repository.mkdir()
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.com"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "the first"]):
        subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True)
    script = "import sqlite3; sqlite3.connect('items.db').execute('create table items (name)')"
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)


@asynccontextmanager
async def clients_of(folder: Path, legacy: int, modern: int) -> AsyncIterator[tuple[int, list[Client], str]]:
    """Starts the gateway: its process, its clients, the first of which is on its stdio, and its live view."""
    config = folder / "servers.json"
    port, admin = free_port(), f"unix:{folder}/admin.sock"
    url = f"http://127.0.0.1:{port}/mcp"
    command = [*GATEWAY, str(config), "--listen", "stdio:", "--listen", url, "--admin", admin]
    before = set(children_of(os.getpid()))
    async with AsyncExitStack() as stack:
        first = Client(command, era="legacy", timeout=ANSWER_WITHIN, cap=ANSWER_WITHIN)
        await stack.enter_async_context(first)
        [pid] = set(children_of(os.getpid())) - before
        eras = ["legacy"] * legacy + ["modern"] * modern
        others = [Client(url, era=era, timeout=ANSWER_WITHIN, cap=ANSWER_WITHIN) for era in eras]
        for client in others:
            await stack.enter_async_context(client)
        yield pid, [first, *others], admin


async def measure(folder: Path, options: argparse.Namespace) -> None:
    """Runs the whole. Raises `AssertionError` for what is not as it is to be."""
    started = time.monotonic()
    async with clients_of(folder, options.legacy, options.modern) as (pid, clients, admin):
        servers = RealServers(folder, pid, clients, options.seed)
        warm: Levels | None = None
        for point in range(options.points + 1):
            if point:
                await servers.calls(options.calls // options.points, options.calls_of_a_kill)
            levels = await servers.levels(admin)
            line = f"{servers.outcomes.total():,} calls, {servers.kills} kills, {time.monotonic() - started:.0f} s"
            print(line, asdict(levels), flush=True)
            if point == min(WARM_POINT, options.points - 1):
                warm = levels
            assert warm is None or levels.is_no_more_than(warm), f"grown from {warm}: {levels}"
    print(dict(servers.outcomes), f"the slowest took {servers.slowest:.1f} s")


def all_gone(folder: Path) -> None:
    """Waits until no process is left. Raises `AssertionError` if one stays."""
    deadline = time.monotonic() + GONE_WITHIN
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    assert not left, f"processes are left: {left}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_servers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument(
        "--calls-of-a-kill", type=int, default=40, help="a server is killed after each so many"
    )
    parser.add_argument(
        "--legacy", type=int, default=2, help="legacy clients over HTTP, beside the one on stdio"
    )
    parser.add_argument("--modern", type=int, default=3, help="modern clients over HTTP")
    parser.add_argument("--points", type=int, default=10, help="at which the gateway is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where the servers are installed")
    options = parser.parse_args(arguments)
    found = installed(options.cache)
    with tempfile.TemporaryDirectory(prefix="mcp-real-") as name:
        folder = Path(name).resolve()
        prepare_folder(folder)
        (folder / "servers.json").write_text(json.dumps(configuration(found, folder)))
        trio.run(measure, folder, options)
        all_gone(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
