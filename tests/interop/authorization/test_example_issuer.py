"""The clients of others, and a real browser, log in at the example authorization server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio
from browser.tab import Tab

from interop.installation import Peers
from interop.servers import free_port
from mcp_actors.auth import AuthorizationCode, OAuth
from mcp_actors.auth.effects import Fetched
from mcp_actors.errors import LoginFailed
from mcp_actors.examples.issuer.clients import machine_client, read_public_key
from mcp_transports.auth.browsers import LoopbackBrowser
from tests.examples.test_issuer_serving import NOTES, Person, Site
from tests.examples.test_issuer_serving import serving as issuing

from .identity_provider import Signer
from .ours import connected, serving, whoami
from .programs import CLIENTS, drive

DOCUMENT = "https://client.test/metadata.json"
DESCRIBED = {
    "client_id": DOCUMENT,
    "client_name": "a client with a document",
    "redirect_uris": ["http://127.0.0.1/callback"],
    "grant_types": ["authorization_code", "refresh_token"],
    "token_endpoint_auth_method": "none",
}
every_client = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture
async def site(signer: Signer) -> AsyncIterator[Site]:
    machines = [
        machine_client("machine", ["mcp:read"], secret="machine-secret"),
        machine_client("machine-with-key", ["mcp:read"], key=read_public_key(signer.public_pem)),
    ]
    async with issuing(machines=machines) as found:
        found.documents[DOCUMENT] = Fetched(200, [], json.dumps(DESCRIBED).encode())
        yield found


async def driven(peers: Peers, client: str, url: str, **settings: object) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(drive, peers, client, url, **settings))


# -- The official clients -------------------------------------------------------------------------


@every_client
@pytest.mark.parametrize("known", ["registers", "has-a-document"])
async def test_login_and_refresh(peers: Peers, site: Site, client: str, known: str) -> None:
    settings = {"metadata_url": DOCUMENT} if known == "has-a-document" else {}
    async with serving(site.issuer) as url:
        report = await driven(peers, client, url, tools=["whoami", "expire", "whoami"], **settings)
    person = {"subject": "ann", "client": report["client_id"], "scopes": ["mcp:read"]}
    assert [json.loads(text) for _, text in report["calls"]] == [person, person]
    assert (report["client_id"] == DOCUMENT) == (known == "has-a-document")
    assert report["version"] == CLIENTS[client]
    assert (report["logins"], report["tokens"]) == (1, 2)


@every_client
async def test_step_up(peers: Peers, site: Site, client: str) -> None:
    async with serving(site.issuer) as url:
        report = await driven(peers, client, url, tools=["whoami", "write", "whoami"])
    (_, before), written, (_, after) = report["calls"]
    assert json.loads(before)["scopes"] == ["mcp:read"]
    assert written == ["write", "written"]
    assert json.loads(after)["scopes"] == ["mcp:read", "mcp:write"]
    assert report["logins"] == 2


@every_client
@pytest.mark.parametrize("grant", ["secret", "key"])
async def test_machine(peers: Peers, site: Site, signer: Signer, client: str, grant: str) -> None:
    settings = {
        "secret": {"client_id": "machine", "client_secret": "machine-secret"},
        "key": {"client_id": "machine-with-key", "private_key": signer.private_pem},
    }[grant]
    async with serving(site.issuer) as url:
        report = await driven(peers, client, url, grant=grant, **settings)
    ((_, text),) = report["calls"]
    assert json.loads(text)["client"] == settings["client_id"]


@pytest.mark.parametrize("client", ["typescript-legacy", "typescript-auto"])
async def test_proofs(peers: Peers, site: Site, client: str) -> None:
    async with serving(site.issuer, dpop="required") as url:
        report = await driven(peers, client, url, dpop=True, tools=["whoami", "whoami"])
    assert [name for name, text in report["calls"] if '"ann"' in text] == ["whoami", "whoami"]


async def test_the_referee(peers: Peers, site: Site) -> None:
    """Of the official conformance suite: the scenarios for authorization servers. A person logs in in one of them."""
    port = free_port()
    client_id = await site.register(redirect_uris=[f"http://127.0.0.1:{port}/callback"])
    program = peers.package("@modelcontextprotocol/conformance") / "dist" / "index.js"
    words = ["--url", site.issuer.url, "--client-id", client_id, "--resource", NOTES, "--port", str(port)]
    process = await trio.lowlevel.open_process(
        [str(peers.node), str(program), "authorization", *words], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said, url = "", None
    try:
        async for chunk in process.stdout:
            said += chunk.decode()
            if url is None and "Waiting" in said:
                url = re.search(rf"{site.issuer.url}/authorize\S+", said)
                assert url is not None, said
                await Person().open(url[0])
        assert await process.wait() == 0, said
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
    assert "Total: 3 passed, 0 failed" in said


# -- A real browser -------------------------------------------------------------------------------

HOSTILE = "data:text/html,<title>hostile</title>"
POST = """(() => {
  const form = document.body.appendChild(document.createElement('form'));
  form.method = 'post';
  form.action = %s;
  for (const [name, value] of %s) {
    const field = form.appendChild(document.createElement('input'));
    field.name = name;
    field.value = value;
  }
  form.submit();
})()"""


async def test_a_person_logs_in(browser: str, site: Site) -> None:
    to_open, opened = trio.open_memory_channel[str](1)
    shown: list[str] = []

    async def person() -> None:
        async with Tab.open(browser) as tab:
            await tab.visit(await opened.receive())
            shown.append(await tab.evaluate("document.title"))
            shown.append(
                await tab.evaluate("getComputedStyle(document.querySelector('header')).borderTopWidth")
            )
            assert await tab.evaluate("document.querySelectorAll('button').length") == 3
            await tab.click("#user-bob")
            shown.append(await tab.evaluate("document.body.innerText"))

    auth = OAuth(AuthorizationCode(browser=LoopbackBrowser(open=to_open.send), client_name="<b>tests</b>"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(person)
        async with serving(site.issuer) as url, connected(url, auth) as session:
            known = await whoami(session)
    assert (known["subject"], known["scopes"]) == ("bob", ["mcp:read"])
    # The style of the page is allowed by its policy, and the redirection of its form.
    assert shown[:2] == ["Let <b>tests</b> in?", "2px"]
    assert shown[2] == "The login is over. Close this page and go back to the program."


async def test_a_person_refuses(browser: str, site: Site) -> None:
    to_open, opened = trio.open_memory_channel[str](1)

    async def person() -> None:
        async with Tab.open(browser) as tab:
            await tab.visit(await opened.receive())
            await tab.click("#deny")

    auth = OAuth(AuthorizationCode(browser=LoopbackBrowser(open=to_open.send)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(person)
        async with serving(site.issuer) as url:
            with pytest.raises(LoginFailed, match="access_denied"):
                async with connected(url, auth):
                    pytest.fail("nobody was let in")


async def test_another_page_cannot_answer_for_the_person(browser: str, site: Site) -> None:
    client_id = await site.register()
    async with Tab.open(browser) as tab:
        await tab.visit(f"{site.issuer.url}{site.login(client_id)}")
        ticket = await tab.evaluate("document.querySelector('[name=ticket]').value")
        fields = json.dumps([["ticket", ticket], ["user", "ann"]])
        for page in (HOSTILE, f"{site.issuer.url.replace('127.0.0.1', 'localhost')}/jwks"):
            await tab.visit(page)
            before = await tab.evaluate("location.href")
            await tab.evaluate(POST % (json.dumps(f"{site.issuer.url}/consent"), fields))
            await tab.loaded()
            assert await tab.evaluate("location.href") != before
            text = await tab.evaluate("document.body.innerText")
            assert "Forbidden" in text or "another page" in text, text
    # No answer was taken: the page that was opened still waits for one.
    assert site.issuer._consents.get(ticket) is not None
