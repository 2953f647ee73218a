"""Deployments under the load of official clients: two nodes behind a proxy, or two workers of one supervisor.

A deployment stops one node after the other and starts each anew at its address, or sends SIGHUP to the supervisor.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.installation import Peers
from interop.servers import free_port

from tests.redis_server import RedisServer

from .served import STATE_KEY

__all__ = ["ARRANGEMENTS", "Deployed", "commands", "run"]

PROGRAM = Path(__file__).parent / "served.py"
CALLING = Path(__file__).parent / "peers"
START_LIMIT = 60.0  # seconds until a program serves; it takes about two, and more on a busy machine
END_LIMIT = 120.0  # seconds until clients have their last answers
DELAY = 1.5
"""Seconds that a node serves on when it is to stop: the proxies know it then."""
HAPROXY = """
defaults
    mode http
    timeout connect 2s
    timeout check 2s
    timeout client 60s
    timeout server 60s
    retries 3
    option redispatch 1
frontend front
    bind 127.0.0.1:{port}
    default_backend nodes
backend nodes
    balance roundrobin
    option httpchk GET /health/ready
    default-server check inter 200ms fall 2 rise 1
{servers}
"""
NGINX = """
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream nodes {{
        {servers}
        keepalive 32;
        keepalive_timeout 1s;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://nodes;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;
            proxy_read_timeout 120s;
            proxy_connect_timeout 2s;
        }}
    }}
}}
"""


@dataclass
class Deployed:
    """What is served, and how it is replaced."""

    url: str
    deploy: Callable[[], None]
    notes: Path
    outputs: list[Path] = field(default_factory=list)

    def begun(self) -> dict[str, int]:
        """How often each client has begun a session, by name."""
        names = self.notes.read_text().split() if self.notes.exists() else []
        return {name: names.count(name) for name in names}


class Node:
    """A process that serves at one address, again and again."""

    def __init__(self, folder: Path, name: str, port: int, words: Sequence[str], *arguments: str) -> None:
        self.port = port
        self.output = folder / f"{name}.log"
        notes = folder / "begun"
        self._command = [
            *(sys.executable, "-m", "mcp_actors", "serve", str(PROGRAM)),
            *("--listen", f"http://127.0.0.1:{port}/mcp", "--health", "/health", "--log-level", "info"),
            *("--drain", "40", *words, "--", str(notes), *arguments),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, STATE_KEY: "k" * 32},
            )
        until(self._is_ready, START_LIMIT, lambda: f"it does not serve:\n{self.output.read_text()[-3000:]}")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(END_LIMIT)

    def replace_workers(self, count: int) -> None:
        """Has the supervisor replace its workers, and waits until it has."""
        assert self.process is not None
        before = self.output.read_text().count(REPLACED)
        self.process.send_signal(signal.SIGHUP)
        until(
            lambda: self.output.read_text().count(REPLACED) > before,
            END_LIMIT * count,
            lambda: f"the workers are not replaced:\n{self.output.read_text()[-3000:]}",
        )

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


REPLACED = "every worker was replaced"


def until(holds: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, complaint()
        time.sleep(0.05)


@contextmanager
def behind_proxy(folder: Path, proxy: str) -> Iterator[Deployed]:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        port = free_port()
        words = [
            "--drain-delay",
            str(DELAY),
            "--allow-host",
            f"127.0.0.1:{port}",
            "--allow-host",
            "127.0.0.1",
        ]
        nodes = [Node(folder, name, free_port(), words, redis.url) for name in ("one", "two")]
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        run_proxy(stack, folder, proxy, port, [node.port for node in nodes])

        def deploy() -> None:
            for node in nodes:
                node.stop()
                node.start()
                # The proxy has to know of it before the other one stops.
                time.sleep(DELAY)

        yield Deployed(
            f"http://127.0.0.1:{port}/mcp", deploy, folder / "begun", [node.output for node in nodes]
        )


def run_proxy(stack: ExitStack, folder: Path, proxy: str, port: int, ports: Sequence[int]) -> None:
    config = folder / f"{proxy}.conf"
    program = shutil.which(proxy) or shutil.which(proxy, path="/usr/sbin:/usr/local/sbin")
    assert program is not None, f"{proxy} is needed: apt-get install --no-install-recommends {proxy}"
    if proxy == "haproxy":
        servers = "".join(f"    server n{each} 127.0.0.1:{each}\n" for each in ports)
        config.write_text(HAPROXY.format(port=port, servers=servers))
        command = [program, "-db", "-f", str(config)]
    else:
        servers = " ".join(f"server 127.0.0.1:{each} max_fails=0;" for each in ports)
        config.write_text(NGINX.format(port=port, servers=servers, folder=folder))
        command = [program, "-c", str(config), "-e", f"{folder}/error.log", "-g", "daemon off;"]
    with (folder / f"{proxy}.log").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    stack.callback(process.wait)
    stack.callback(process.terminate)

    def accepts() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    until(accepts, START_LIMIT, lambda: f"{proxy} does not serve:\n{(folder / f'{proxy}.log').read_text()}")


@contextmanager
def of_workers(folder: Path, shared: str) -> Iterator[Deployed]:
    with ExitStack() as stack:
        words, redis = ["--workers", "2"], []
        if shared == "redis":
            redis = [stack.enter_context(RedisServer()).url]
        else:
            words += ["--shared", f"sqlite://{folder}/tasks.db"]
        node = Node(folder, "workers", free_port(), words, *redis)
        stack.callback(node.kill)
        node.start()
        yield Deployed(
            f"http://127.0.0.1:{node.port}/mcp",
            lambda: node.replace_workers(2),
            folder / "begun",
            [node.output],
        )


ARRANGEMENTS: Mapping[str, Callable[[Path], Any]] = {
    "haproxy": lambda folder: behind_proxy(folder, "haproxy"),
    "nginx": lambda folder: behind_proxy(folder, "nginx"),
    "workers, redis": lambda folder: of_workers(folder, "redis"),
    "workers": lambda folder: of_workers(folder, "none"),
}


def commands(peers: Peers, url: str, longest: float) -> dict[str, list[str]]:
    """The programs of the clients, by name."""
    script, node = (
        str(CALLING / "calling.py"),
        [str(peers.node), str(CALLING / "calling.mjs"), str(peers.modules)],
    )
    kinds: dict[str, tuple[list[str], str]] = {
        "python-v1": ([str(peers.python_v1), script], "v1"),
        "python-v2-legacy": ([str(peers.python), script], "legacy"),
        "python-v2-modern": ([str(peers.python), script], "auto"),
        "fastmcp": ([str(peers.fastmcp), script], "fastmcp"),
        "typescript-v1": (node, "sdk"),
        "typescript-v2-legacy": (node, "legacy"),
        "typescript-v2-modern": (node, "auto"),
    }
    return {
        name: [*program, f"{url}?{name}", name, mode, str(longest)] for name, (program, mode) in kinds.items()
    }


def run(peers: Peers, arrangement: str, folder: Path, deploys: int, longest: float) -> dict[str, Any]:
    """Deploys so many times, and returns what came of it by client, with the number of sessions it has begun."""
    reports: dict[str, Any] = {}
    with ARRANGEMENTS[arrangement](folder) as deployed, ExitStack() as stack:
        clients: dict[str, subprocess.Popen[str]] = {}
        for name, words in commands(peers, deployed.url, longest).items():
            with (folder / f"{name}.err").open("w") as errors:
                clients[name] = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
                )
            stack.enter_context(clients[name])
            stack.callback(clients[name].kill)
        for name, client in clients.items():
            assert client.stdout is not None
            line = client.stdout.readline()
            assert line == "calling\n", f"{name}: {line}{(folder / f'{name}.err').read_text()[-3000:]}"
        for number in range(deploys):
            began = time.monotonic()
            deployed.deploy()
            print(f"{arrangement}: deployment {number + 1} took {time.monotonic() - began:.1f} s", flush=True)
        for client in clients.values():
            assert client.stdin is not None
            client.stdin.close()
        for name, client in clients.items():
            assert client.stdout is not None
            said = client.stdout.read()
            # A client that a failure has ended says nothing any more.
            last = (folder / f"{name}.err").read_text()[-1000:]
            reports[name] = json.loads(said) if said else {"failed": [f"the client ended: {last}"]}
            reports[name]["begun"] = deployed.begun().get(name, 0)
            print(f"{arrangement}: {name}: {json.dumps(reports[name])}", flush=True)
    return reports
