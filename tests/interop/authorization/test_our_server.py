"""The clients of others log in to our server: over Streamable HTTP, in both eras."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from interop.installation import Peers
from mcp_actors.auth import IntrospectionVerifier

from .identity_provider import Signer
from .ours import serving
from .programs import CLIENTS, Issuer, drive

every_client = pytest.mark.parametrize("client", CLIENTS)


async def driven(peers: Peers, client: str, url: str, **settings: object) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(drive, peers, client, url, **settings))


@every_client
@pytest.mark.parametrize("known", ["registers", "has-a-document", "is-registered"])
async def test_login_and_refresh(peers: Peers, issuer: Issuer, client: str, known: str) -> None:
    settings = {
        "registers": {},
        "has-a-document": {"metadata_url": "https://client.test/metadata.json"},
        "is-registered": {"client_id": "registered", "client_secret": "registered-secret"},
    }[known]
    async with serving(issuer) as url:
        report = await driven(peers, client, url, tools=["whoami", "expire", "whoami"], **settings)
    person = {"subject": "alice", "client": report["client_id"], "scopes": ["mcp:read"]}
    assert [json.loads(text) for _, text in report["calls"]] == [person, person]
    assert report["version"] == CLIENTS[client]
    assert (report["logins"], report["tokens"]) == (1, 2)


@every_client
@pytest.mark.parametrize("grant", ["secret", "key"])
async def test_machine(peers: Peers, issuer: Issuer, signer: Signer, client: str, grant: str) -> None:
    settings = {
        "secret": {"client_id": "machine", "client_secret": "machine-secret"},
        "key": {"client_id": "machine-with-key", "private_key": signer.private_pem},
    }[grant]
    async with serving(issuer) as url:
        report = await driven(peers, client, url, grant=grant, **settings)
    ((_, text),) = report["calls"]
    assert json.loads(text)["client"] == settings["client_id"]


@every_client
async def test_introspection(peers: Peers, issued: Callable[..., Issuer], client: str) -> None:
    verifier = IntrospectionVerifier(client_id="resource-server", client_secret="resource-server-secret")
    async with serving(issued(opaque=True), verifier=verifier) as url:
        report = await driven(peers, client, url)
    ((_, text),) = report["calls"]
    assert json.loads(text)["subject"] == "alice"


@pytest.mark.parametrize("client", list(CLIENTS))
async def test_step_up(peers: Peers, issuer: Issuer, client: str) -> None:
    """The tool that needs a scope of its own leads to a second login of the same client.

    One that registers itself fails there: it may ask for no more than it registered for, and does not register anew.
    """
    settings = {"client_id": "registered", "client_secret": "registered-secret"}
    async with serving(issuer) as url:
        report = await driven(peers, client, url, tools=["whoami", "write", "whoami"], **settings)
    (_, before), written, (_, after) = report["calls"]
    assert written == ["write", "written"]
    assert json.loads(before)["scopes"] == ["mcp:read"]
    assert json.loads(after)["scopes"] == ["mcp:read", "mcp:write"]
    assert report["logins"] == 2
