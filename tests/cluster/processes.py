"""Three nodes, Redis, and HAProxy in front of the nodes, each at a place of a network of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .network import Network, mortal, open_network
from .node_program import STATE_KEY

__all__ = ["NODES", "Cluster", "ProgramMissing", "open_cluster"]

NODES = ("one", "two", "three")
PLACES = (*NODES, "redis", "proxy", "clients")
PORT, REDIS_PORT = 8000, 6379
PROGRAM = Path(__file__).parent / "node_program.py"
START_LIMIT = (
    60.0  # seconds until a program accepts connections; it takes about one, and more on a busy machine
)
STOP_LIMIT = 40.0  # seconds between SIGTERM and SIGKILL; a node that drains lets calls end


class ProgramMissing(Exception):
    """A program is not installed; the text says which package has it."""


# No affinity: the next request goes to the next node, whatever its session or its client. What HAProxy does by itself
# is to connect: a connection that was refused or not made is tried at another node, because no node has seen anything
# of the request. No request is ever sent twice (there is no `retry-on`). When health checks find that a node is gone,
# its connections are closed, so that a client learns it then, and not when a clock of its own has run out.
CONFIGURATION = """
global
    maxconn 5000
    log stdout format raw local0 info
defaults
    mode http
    log global
    option httplog
    timeout connect 2s
    timeout check 2s
    timeout client 60s
    timeout server 60s
    timeout queue 5s
    retries 3
    option redispatch 1
frontend front
    bind :{port}
    default_backend nodes
backend nodes
    balance roundrobin
    default-server check inter 500ms fall 2 rise 2 on-marked-down shutdown-sessions
{servers}
"""


@dataclass
class Program:
    """A process of a cluster. What it writes goes into a file."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self, limit: float = STOP_LIMIT) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.process.args!r} does not end:\n{self.text[-3000:]}") from None


@dataclass
class Cluster:
    """What runs. `url` is HAProxy's, for programs at the place ``clients``."""

    network: Network
    folder: Path
    running: dict[str, Program] = field(default_factory=dict)
    nodes_started: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.network.reached('proxy')}:{PORT}/mcp"

    def node_url(self, node: str) -> str:
        return f"http://{self.network.reached(node)}:{PORT}/mcp"

    def start(self, place: str, name: str, command: list[str], **environment: str) -> Program:
        output = self.folder / f"{name}.out"
        given = [f"{key}={value}" for key, value in environment.items()]
        with output.open("ab") as file:
            process = subprocess.Popen(
                mortal(["env", *given, *self.network.command(place, command)]),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        program = Program(process, output)
        self.running[name] = program
        return program

    def start_all(self) -> None:
        """Starts Redis, the nodes and HAProxy.

        Raises:
            ProgramMissing: HAProxy or Redis is not installed.
        """
        self.start_redis()
        self.start_nodes(*NODES)
        self.start_proxy()

    def start_redis(self) -> None:
        command = [
            _installed("redis-server"),
            "--bind",
            self.network.address("redis"),
            "--protected-mode",
            "no",
        ]
        command += ["--save", "", "--appendonly", "no", "--port", str(REDIS_PORT), "--dir", str(self.folder)]
        self.until(self.start("redis", "redis", command), "Ready to accept connections")

    def start_proxy(self) -> None:
        servers = "".join(f"    server {node} {self.network.reached(node)}:{PORT}\n" for node in NODES)
        configuration = self.folder / "haproxy.cfg"
        configuration.write_text(CONFIGURATION.format(port=PORT, servers=servers))
        proxy = self.start("proxy", "haproxy", [_installed("haproxy"), "-db", "-f", str(configuration)])
        connect = f"import socket; socket.create_connection(({self.network.reached('proxy')!r}, {PORT}), 5)"
        command = self.network.command("clients", [sys.executable, "-c", connect])
        self.until_true(
            lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
            lambda: f"HAProxy does not serve:\n{proxy.text}",
            lambda: proxy.process.poll() is None,
        )

    def start_nodes(self, *nodes: str) -> None:
        """Starts nodes, anew if they have run before, and waits until they serve."""
        for node, program in {node: self._start_node(node) for node in nodes}.items():
            self.until(program, "serving ")
            self.running[node] = program

    def _start_node(self, node: str) -> Program:
        self.nodes_started += 1
        command = [sys.executable, "-m", "mcp_actors", "serve", str(PROGRAM)]
        command += ["--listen", f"http://{self.network.address(node)}:{PORT}/mcp"]
        for place in (node, "proxy"):
            command += ["--allow-host", self.network.reached(place)]
        command += ["--shared", f"redis://{self.network.reached('redis')}:{REDIS_PORT}"]
        named = f"{node}-{self.nodes_started}"
        return self.start(node, named, [*command, "--", named], **{STATE_KEY: "k" * 32})

    def until(self, program: Program, said: str) -> None:
        self.until_true(
            lambda: said in program.text,
            lambda: f"{program.process.args!r} does not say {said!r}:\n{program.text[-3000:]}",
            lambda: program.process.poll() is None,
        )

    def until_true(
        self,
        condition: Callable[[], bool],
        complaint: Callable[[], str],
        possible: Callable[[], bool] = lambda: True,
        limit: float = START_LIMIT,
    ) -> None:
        end = time.monotonic() + limit
        while not condition():
            assert time.monotonic() < end, complaint()
            assert possible(), complaint()
            time.sleep(0.05)

    def kill(self, node: str) -> None:
        self.running[node].process.kill()
        self.running[node].process.wait()

    def drain(self, node: str) -> tuple[int, float]:
        """Tells a node to stop, and returns its exit code and the seconds that it took."""
        began = time.monotonic()
        self.running[node].process.send_signal(signal.SIGTERM)
        return self.running[node].wait(), time.monotonic() - began

    def memory(self, node: str) -> int:
        """Returns the kilobytes that a node has in memory."""
        status = Path(f"/proc/{self.running[node].process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    def stop(self) -> None:
        for program in self.running.values():
            program.process.kill()
        for program in self.running.values():
            program.process.wait()


def _installed(program: str) -> str:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise ProgramMissing(f"{program} is needed: apt-get install --no-install-recommends {program}")
    return path


@contextmanager
def open_cluster(folder: Path) -> Iterator[Cluster]:
    """Makes the network, in which nothing runs yet, and ends all that is started there however the block ends."""
    with open_network(PLACES, (PORT, REDIS_PORT)) as network:
        cluster = Cluster(network, folder)
        try:
            yield cluster
        finally:
            cluster.stop()
