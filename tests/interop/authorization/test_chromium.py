"""A person logs in in a real browser, through the pages of a real authorization server: our client and our server."""

from __future__ import annotations

from collections.abc import Callable

import trio
from browser.tab import Tab

from mcp_actors.auth import AuthorizationCode, OAuth
from mcp_transports.auth.browsers import LoopbackBrowser

from .ours import connected, serving, whoami
from .programs import Issuer


async def test_whole_login(browser: str, issued: Callable[..., Issuer]) -> None:
    issuer = issued(consent=True)
    to_open, opened = trio.open_memory_channel[str](1)
    pages: list[str] = []

    async def person() -> None:
        async with Tab.open(browser) as tab:
            await tab.visit(await opened.receive())
            pages.append(await tab.evaluate("document.title"))
            await tab.write("#user", "bob")
            await tab.click("#log-in")
            pages.append(await tab.evaluate("document.title"))
            await tab.click("#consent")
            pages.append(await tab.evaluate("document.body.innerText"))

    auth = OAuth(AuthorizationCode(browser=LoopbackBrowser(open=to_open.send), client_name="the tests"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(person)
        async with serving(issuer) as url, connected(url, auth) as session:
            known = await whoami(session)
    assert (known["subject"], known["scopes"]) == ("bob", ["mcp:read"])
    assert pages == ["Log in", "Consent", "The login is over. Close this page and go back to the program."]
    assert [issuer.count(f"showed {page}", 1) for page in ("login", "consent")] == [1, 1]
