"""The programs of this room: authorization servers, protected servers of others, and clients of others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop.installation import Peers
from interop.servers import Launch, Served, free_port
from interop.user import LEGACY, MODERN

__all__ = ["CLIENTS", "PROGRAMS", "SERVERS", "Issuer", "drive", "issuing", "protected", "rotating"]

PROGRAMS = Path(__file__).parent / "peers"
CLIENTS = {
    "python-legacy": LEGACY,
    "python-auto": MODERN,
    "typescript-legacy": LEGACY,
    "typescript-auto": MODERN,
}
"""Clients of others, and the revision that each agrees on with a server that has both eras."""

LIMIT = 150.0  # seconds for one client of others; it takes about two

NANOIDP_SETTINGS = """
config_version: 1
server: {{host: 127.0.0.1, port: {port}}}
oauth:
  issuer: "{issuer}"
  audience: "{resource}"
  token_expiry_minutes: 5
  refresh_token_rotation: true
  require_pkce: true
  scopes_supported: [openid, offline_access, "mcp:read", "mcp:write"]
  dynamic_registration: {{enabled: true}}
  clients: [{{client_id: resource-server, client_secret: resource-server-secret}}]
login: {{mode: persona, auto_login: true}}
jwt: {{keys_dir: "{keys}"}}
"""
NANOIDP_USERS = "{config_version: 1, users: {alice: {password: alice, email: alice@example.org}}}"


# Seconds within which a server writes of what it has done, on a loaded machine.
SAID_WITHIN = 40.0


class Issuer:
    """A running authorization server, and what it said that it did."""

    def __init__(self, url: str, served: Served) -> None:
        self.url = url
        self._served = served

    @property
    def events(self) -> list[str]:
        return self._served.output.splitlines()

    def count(self, event: str, due: int = 0) -> int:
        """How many events begin so, once ``due`` are there: a server may write of one after it has answered."""

        def counted() -> int:
            return sum(line.startswith(event) for line in self.events)

        self._served.wait_until(lambda: counted() >= due, SAID_WITHIN)
        return counted()


@contextmanager
def _running(launch: Launch) -> Iterator[Served]:
    served = Served(launch)
    try:
        served.port()
        yield served
    finally:
        served.stop()


@contextmanager
def issuing(peers: Peers, **settings: object) -> Iterator[Issuer]:
    """An oidc-provider with these settings, until the end of the ``with``; see the head of its program."""
    program = PROGRAMS / "authorization_server.mjs"
    command = [str(peers.node), str(program), str(peers.modules), json.dumps(settings)]
    with _running(Launch(command, r"^serving http://127\.0\.0\.1:(\d+)$")) as served:
        yield Issuer(f"http://127.0.0.1:{served.port()}", served)


@contextmanager
def rotating(peers: Peers, directory: Path, resource: str) -> Iterator[Issuer]:
    """A nanoidp, which changes its key when it is told to."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = NANOIDP_SETTINGS.format(port=port, issuer=url, resource=resource, keys=directory / "keys")
    (directory / "settings.yaml").write_text(settings)
    (directory / "users.yaml").write_text(NANOIDP_USERS)
    program = peers.nanoidp.parent / "nanoidp"
    command = [str(program), "--config", str(directory), "--port", str(port), "--profile", "oauth21"]
    with _running(Launch(command, r"Running on http://127\.0\.0\.1:(\d+)")) as served:
        yield Issuer(url, served)


def _fastmcp(peers: Peers) -> list[str]:
    return [str(peers.fastmcp), str(PROGRAMS / "fastmcp_server.py")]


def _python(peers: Peers) -> list[str]:
    return [str(peers.python), str(PROGRAMS / "python_server.py")]


SERVERS: dict[str, Callable[[Peers], list[str]]] = {"fastmcp": _fastmcp, "python": _python}


@contextmanager
def protected(peers: Peers, server: str, issuer: Issuer) -> Iterator[str]:
    """The URL of a server of others that takes the tokens of an issuer."""
    resource = f"http://127.0.0.1:{free_port()}/mcp"
    command = [*SERVERS[server](peers), issuer.url, resource]
    with _running(Launch(command, r"running on http://127\.0\.0\.1:(\d+)")):
        yield resource


def drive(peers: Peers, client: str, url: str, **settings: object) -> dict[str, Any]:
    """Lets a client of others log in and call; ``client`` is a language and a mode, such as ``python-legacy``."""
    language, mode = client.split("-")
    if language == "python":
        command = [str(peers.python), str(PROGRAMS / "python_client.py")]
    else:
        command = [str(peers.node), str(PROGRAMS / "typescript_client.mjs"), str(peers.modules)]
    command += [mode, json.dumps(settings), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, f"{client} failed with {done.returncode}:\n{done.stderr[-6000:]}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report
