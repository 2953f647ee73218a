"""The control experiment: the clients of others log in to the servers of others, each without anything of ours."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from interop.installation import Peers

from .identity_provider import Signer
from .programs import CLIENTS, SERVERS, Issuer, drive

pytestmark = pytest.mark.parametrize("server", SERVERS)


@pytest.mark.parametrize("client", CLIENTS)
def test_login_and_refresh(
    peers: Peers, guarded: Callable[[str], str], issuer: Issuer, server: str, client: str
) -> None:
    report = drive(peers, client, guarded(server), tools=["whoami", "expire", "whoami"])
    known = {"subject": "alice", "client": report["client_id"], "scopes": ["mcp:read"]}
    assert [json.loads(text) for _, text in report["calls"]] == [known, known]
    assert report["version"] == CLIENTS[client]
    assert (report["logins"], report["tokens"]) == (1, 2)
    assert issuer.count(f"granted refresh_token {report['client_id']}", 1) == 1


@pytest.mark.parametrize("client", ["python-auto", "typescript-auto"])
@pytest.mark.parametrize("grant", ["secret", "key"])
def test_machine(
    peers: Peers, guarded: Callable[[str], str], signer: Signer, server: str, client: str, grant: str
) -> None:
    settings = {
        "secret": {"client_id": "machine", "client_secret": "machine-secret"},
        "key": {"client_id": "machine-with-key", "private_key": signer.private_pem},
    }[grant]
    report = drive(peers, client, guarded(server), grant=grant, **settings)
    ((_, text),) = report["calls"]
    assert json.loads(text)["client"] == settings["client_id"]
