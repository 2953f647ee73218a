"""Redis as others run it: behind TLS, watched by Sentinels, or as a Cluster. Each is real processes on this machine."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trustme
from interop.servers import free_port

__all__ = ["PASSWORD", "Deployment", "cluster", "one_behind_tls", "watched_by_sentinels"]

PASSWORD = "s3cr3t/with:marks?"
PRIMARY = "shop"
_PATIENCE = 60.0
_ANSWERED = 3.0  # seconds after which a process counts as one that answers nothing


class Deployment:
    """Processes of one program, each with a folder and a port of its own."""

    def __init__(self, program: str = "redis-server") -> None:
        path = shutil.which(program)
        assert path is not None, f"{program} is not installed: apt-get install redis-server"
        self._program = path
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self.password_file = self.folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.url = ""

    def start(self, *lines: str, port: int, mode: tuple[str, ...] = ()) -> None:
        """Starts a process that is configured by lines, as in its file."""
        home = self.folder / str(port)
        home.mkdir()
        always = [f"dir {home}", 'save ""', "bind 127.0.0.1", f"logfile {home}/log"]
        (home / "redis.conf").write_text("\n".join([*always, *lines, ""]))
        self.start_again(port, *mode)

    def start_again(self, port: int, *mode: str) -> None:
        """Starts a process that was killed, with the file that it has."""
        file = self.folder / str(port) / "redis.conf"
        self._processes[port] = subprocess.Popen(
            [self._program, str(file), *mode], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self, port: int) -> None:
        """Ends a process at once."""
        process = self._processes.pop(port)
        process.kill()
        process.wait()

    def pause(self, port: int) -> None:
        """Has a process answer nothing; it is there, and goes on later."""
        self._processes[port].send_signal(signal.SIGSTOP)

    def go_on(self, port: int) -> None:
        """Ends `pause`."""
        self._processes[port].send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends all processes."""
        for port in list(self._processes):
            self.kill(port)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, port: int, *command: str, password: str = PASSWORD) -> str:
        """Runs a command of Redis, and returns its answer as ``redis-cli`` prints it; empty without one."""
        words = ["redis-cli", "-p", str(port), *(["-a", password, "--no-auth-warning"] if password else [])]
        try:
            done = subprocess.run([*words, *command], capture_output=True, timeout=_ANSWERED, check=False)
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout.decode().strip()

    def log(self, port: int) -> str:
        """What a process has logged so far."""
        file = self.folder / str(port) / "log"
        return file.read_text() if file.exists() else ""

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until something holds."""
        end = time.monotonic() + _PATIENCE
        while not holds():
            logs = "\n".join(f"{each}:\n{each.read_text()[-1500:]}" for each in self.folder.glob("*/log"))
            assert time.monotonic() < end, f"{what}\n{logs}"
            time.sleep(0.05)


@contextmanager
def _deployment(program: str = "redis-server") -> Iterator[Deployment]:
    with ExitStack() as stack:
        deployment = Deployment(program)
        stack.callback(deployment.end)
        yield deployment


@contextmanager
def one_behind_tls(program: str = "redis-server") -> Iterator[Deployment]:
    """One server that takes TLS only, from clients with a certificate and a password."""
    with _deployment(program) as made:
        authority = trustme.CA()
        own, client = authority.issue_cert("localhost"), authority.issue_cert("node@example.org")
        for name, blob in (
            ("ca.pem", authority.cert_pem),
            ("own.pem", own.cert_chain_pems[0]),
            ("own.key", own.private_key_pem),
            ("client.pem", client.cert_chain_pems[0]),
            ("client.key", client.private_key_pem),
        ):
            blob.write_to_path(str(made.folder / name))
        port = free_port()
        made.start(
            "port 0",
            f"tls-port {port}",
            f"tls-ca-cert-file {made.folder}/ca.pem",
            f"tls-cert-file {made.folder}/own.pem",
            f"tls-key-file {made.folder}/own.key",
            "tls-auth-clients yes",
            f'requirepass "{PASSWORD}"',
            port=port,
        )
        made.until(lambda: "Ready to accept" in made.log(port), "it does not start")
        tls = f"ssl_ca_certs={made.folder}/ca.pem&ssl_certfile={made.folder}/client.pem"
        tls += f"&ssl_keyfile={made.folder}/client.key"
        made.url = f"rediss://localhost:{port}?{tls}&password_file={made.password_file}"
        yield made


class Watched(Deployment):
    """A primary, its replica, and three Sentinels."""

    sentinels: list[int]

    def primary(self) -> int:
        """The port of the primary, as the Sentinels that answer say."""
        for port in self.sentinels:
            lines = self.ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY, password="").splitlines()
            if len(lines) == 2:
                return int(lines[1])
        return 0


@contextmanager
def watched_by_sentinels() -> Iterator[Watched]:
    """A primary and a replica with a password, and three Sentinels, of which two have to agree."""
    made = Watched()
    with ExitStack() as stack:
        stack.callback(made.end)
        primary, replica = free_port(), free_port()
        passwords = f'requirepass "{PASSWORD}"', f'masterauth "{PASSWORD}"'
        made.start(f"port {primary}", *passwords, port=primary)
        made.start(f"port {replica}", *passwords, f"replicaof 127.0.0.1 {primary}", port=replica)
        made.until(lambda: "state=online" in made.ask(primary, "INFO", "replication"), "no replica comes")
        made.sentinels = [free_port() for _ in range(3)]
        for port in made.sentinels:
            made.start(
                f"port {port}",
                f"sentinel monitor {PRIMARY} 127.0.0.1 {primary} 2",
                f'sentinel auth-pass {PRIMARY} "{PASSWORD}"',
                f"sentinel down-after-milliseconds {PRIMARY} 1000",
                f"sentinel failover-timeout {PRIMARY} 5000",
                port=port,
                mode=("--sentinel",),
            )

        def all_see_all() -> bool:
            said = [made.ask(each, "SENTINEL", "MASTER", PRIMARY, password="") for each in made.sentinels]
            return all(
                dict(zip(each.splitlines()[::2], each.splitlines()[1::2], strict=False)).items()
                >= {"num-other-sentinels": "2", "num-slaves": "1", "flags": "master"}.items()
                for each in said
            )

        made.until(all_see_all, "the sentinels do not see each other")
        hosts = ",".join(f"127.0.0.1:{each}" for each in made.sentinels)
        made.url = f"redis+sentinel://{hosts}/{PRIMARY}?password_file={made.password_file}"
        yield made


class Cluster(Deployment):
    """Three primaries, each with a replica."""

    nodes: list[int]

    def owner(self, slot: int) -> int:
        """The port of the server that has a slot, as one says that answers."""
        for port in self.nodes:
            for line in self.ask(port, "CLUSTER", "NODES").splitlines():
                (
                    _,
                    address,
                    flags,
                    *_,
                ) = line.split(" ")
                ranges = line.split(" ")[8:]
                if "master" not in flags or "fail" in flags:
                    continue
                for each in ranges:
                    first, _, last = each.partition("-")
                    if first.isdigit() and int(first) <= slot <= int(last or first):
                        return int(address.partition("@")[0].rpartition(":")[2])
        return 0


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A Cluster of six servers with a password."""
    made = Cluster()
    with ExitStack() as stack:
        stack.callback(made.end)
        made.nodes = [free_port() for _ in range(6)]
        for port in made.nodes:
            made.start(
                f"port {port}",
                f"cluster-port {free_port()}",
                "cluster-enabled yes",
                "cluster-node-timeout 2000",
                f'requirepass "{PASSWORD}"',
                f'masterauth "{PASSWORD}"',
                port=port,
            )
        for port in made.nodes:
            made.until(lambda port=port: made.ask(port, "PING") == "PONG", "a server does not answer")  # type: ignore[misc]
        hosts = [f"127.0.0.1:{port}" for port in made.nodes]
        words = ["redis-cli", "-a", PASSWORD, "--cluster", "create", *hosts]
        done = subprocess.run(
            [*words, "--cluster-replicas", "1", "--cluster-yes"],
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()

        def is_whole() -> bool:
            said = [made.ask(each, "CLUSTER", "INFO") for each in made.nodes]
            links = [made.ask(each, "INFO", "replication") for each in made.nodes]
            return all("cluster_state:ok" in each for each in said) and all(
                "master_link_status:up" in each for each in links if "role:slave" in each
            )

        made.until(is_whole, "the cluster does not come together")
        # One that will be killed may be among them: the others are learned from it.
        made.url = f"redis+cluster://{','.join(hosts[:2])}?password_file={made.password_file}"
        yield made
