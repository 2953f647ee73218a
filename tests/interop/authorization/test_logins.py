"""Our client logs in at a real authorization server, to be let in by our server and by those of others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from interop.user import LEGACY, MODERN

from .ours import Person, connected, serving, whoami
from .programs import Issuer

VERSIONS = {"legacy": LEGACY, "modern": MODERN}
CLIENTS: dict[str, dict[str, Any]] = {
    "registers": {},
    "has-a-document": {"client_metadata_url": "https://client.test/metadata.json"},
    "is-registered": {"client_id": "registered", "client_secret": "registered-secret"},
}
SERVERS = ["ours", "fastmcp", "python"]
Reach = Callable[[str], Any]


@pytest.fixture
def reach(guarded: Callable[[str], str], issuer: Issuer) -> Reach:
    """The URL of a protected server, ours or one of others."""

    @asynccontextmanager
    async def reached(server: str) -> AsyncIterator[str]:
        if server == "ours":
            async with serving(issuer) as url:
                yield url
        else:
            yield guarded(server)

    return reached


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("era", VERSIONS)
@pytest.mark.parametrize("server", SERVERS)
async def test_login(reach: Reach, server: str, era: str, client: str) -> None:
    person = Person()
    auth = person.auth(settings={"dpop": None}, **CLIENTS[client])
    with capture_logs() as logged:
        async with reach(server) as url:
            async with connected(url, auth, era) as session:
                assert session.version == VERSIONS[era]
                first = await whoami(session)
                shown = repr((session, auth, session.tree()))
            # A second client shares what the first one was given.
            async with connected(url, auth, era) as session:
                assert await whoami(session) == first
    assert (first["subject"], first["scopes"]) == ("alice", ["mcp:read"])
    known = CLIENTS[client].get("client_id") or CLIENTS[client].get("client_metadata_url")
    assert known is None or first["client"] == known
    assert person.logins == 1
    secrets = person.store.secrets
    assert len(secrets) >= 2  # an access token and a refresh token
    assert not [secret for secret in secrets if secret in f"{logged}{shown}"]


async def test_login_over_websocket(issuer: Issuer) -> None:
    person = Person()
    async with serving(issuer, "ws") as url:
        async with connected(url, person.auth()) as session:
            assert (await whoami(session))["subject"] == "alice"
    assert person.logins == 1


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("era", VERSIONS)
async def test_step_up(issuer: Issuer, era: str, client: str) -> None:
    """The tool needs a scope of its own: the person is asked once more, and the calls go on."""
    person = Person()
    async with serving(issuer) as url, connected(url, person.auth(**CLIENTS[client]), era) as session:
        before = await whoami(session)
        result = await session.call_tool("write", {})
        assert result.content[0].text == "written"
        after = await whoami(session)
    assert (before["scopes"], after["scopes"]) == (["mcp:read"], ["mcp:read", "mcp:write"])
    assert person.logins == 2
    # This issuer lets a client that registered itself ask for nothing beyond that, so it has to register anew.
    assert (before["client"] == after["client"]) == (client != "registers")
