"""The gateways: which hops each can make, and the command that makes one.

A hop is a pair of bindings: the one that the gateway serves, and the one over which it reaches its upstream. The rows
of `PEERS` say what is installed for each.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.peers import OURS, PROGRAMS
from mcp_actors.supervision.platform import join_words

__all__ = ["GATEWAYS", "GatewayProgram", "Hop", "UpstreamPlace", "chain_of"]

Hop = tuple[str, str]
# The URL of an upstream, or the command that starts one.
UpstreamPlace = str | list[str]
Commands = Callable[[dict[str, str], str, UpstreamPlace], list[str]]

BINDINGS = ("stdio", "http")
ALL_HOPS = frozenset((served, reached) for served in BINDINGS for reached in BINDINGS)
TO_HTTP, TO_STDIO = ("stdio", "http"), ("http", "stdio")


@dataclass(frozen=True)
class GatewayProgram:
    """``command`` is given what `Peer.prepare` returned, the URL to serve at, and the upstream."""

    command: Commands
    hops: frozenset[Hop] = ALL_HOPS

    def can(self, chain: Sequence[str]) -> bool:
        """Whether it can make every hop of a chain of bindings."""
        return self.hops.issuperset(itertools.pairwise(chain))


def chain_of(served: str, reached: str, hops: int) -> tuple[str, ...]:
    """Returns the bindings of a chain from its client to its server: the two take turns."""
    first, second = served, reached
    return tuple(first if number % 2 == 0 else second for number in range(hops + 1))


def port_of(url: str) -> str:
    return url.rpartition(":")[2].partition("/")[0]


def ours(prepared: dict[str, str], url: str, upstream: UpstreamPlace) -> list[str]:
    reached = upstream if isinstance(upstream, str) else f"stdio:{join_words(upstream)}"
    return [prepared["python"], "-m", "mcp_actors", "bridge", reached, url]


def fastmcp(prepared: dict[str, str], url: str, upstream: UpstreamPlace) -> list[str]:
    return [prepared["python"], str(PROGRAMS / "fastmcp_proxy.py"), url, json.dumps(upstream)]


def mcp_proxy(prepared: dict[str, str], url: str, upstream: UpstreamPlace) -> list[str]:
    command = [str(Path(prepared["python"]).parent / "mcp-proxy"), "--log-level", "ERROR"]
    if isinstance(upstream, str):
        return [*command, "--transport", "streamablehttp", upstream]
    return [*command, "--port", port_of(url), "--pass-environment", "--", *upstream]


def supergateway(prepared: dict[str, str], url: str, upstream: UpstreamPlace) -> list[str]:
    """Over HTTP with sessions: without them it starts a process for each request."""
    command = [prepared["node"], f"{prepared['modules']}/node_modules/supergateway/dist/index.js"]
    command += ["--logLevel", "none"]
    if isinstance(upstream, str):
        return [*command, "--streamableHttp", upstream]
    served = ["--outputTransport", "streamableHttp", "--stateful", "--port", port_of(url)]
    return [*command, "--stdio", shlex.join(upstream), *served]


def mcp_remote(prepared: dict[str, str], url: str, upstream: UpstreamPlace) -> list[str]:
    """It keeps tokens in a folder, of which this one needs none."""
    command = ["env", f"MCP_REMOTE_CONFIG_DIR={prepared['modules']}/tokens", prepared["node"]]
    command += [f"{prepared['modules']}/node_modules/mcp-remote/dist/proxy.js", str(upstream)]
    return [*command, "--transport", "http-only", "--silent"]


GATEWAYS = {
    OURS: GatewayProgram(ours),
    "mcp_proxy": GatewayProgram(mcp_proxy, frozenset({TO_HTTP, TO_STDIO})),
    "fastmcp_proxy": GatewayProgram(fastmcp),
    "supergateway": GatewayProgram(supergateway, frozenset({TO_HTTP, TO_STDIO})),
    "mcp_remote": GatewayProgram(mcp_remote, frozenset({TO_HTTP})),
}
