"""The page of the live view in a real browser: what it shows, and what a peer's names can make of it."""

from __future__ import annotations

import trio

from mcp_actors import Client, RpcError, Server
from mcp_actors.types import Implementation
from mcp_transports.admin import AdminTransport

from .chromium import LIMIT
from .tab import Tab

HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'


async def test_it_shows_calls_as_text_and_cancels_one(browser: str) -> None:
    server, lines, caught = Server("watched"), list[str](), list[RpcError]()

    @server.tool(name=HOSTILE)
    async def hold(name: str) -> str:
        await trio.sleep_forever()
        return name

    async def call(client: Client) -> None:
        try:
            await client.call_tool(HOSTILE, {"name": "x"})
        except RpcError as error:
            caught.append(error)

    admin = AdminTransport("http://127.0.0.1:0", interval=0.2, say=lines.append)
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab, trio.open_nursery() as nursery:
            url, _ = await nursery.start(server.serve, "http://127.0.0.1:0/mcp", admin)
            async with Client(url, era="legacy", info=Implementation(HOSTILE, "1")) as client:
                async with trio.open_nursery() as calls:
                    calls.start_soon(call, client)
                    await tab.visit(lines[0].removeprefix("live view at "))
                    while not await tab.evaluate("document.querySelectorAll('button').length === 2"):
                        await trio.lowlevel.checkpoint()
                    text = await tab.evaluate("document.body.textContent")
                    # The client's name, and that of the tool.
                    assert text.count(HOSTILE) == 2
                    assert "tools/call" in text
                    assert await tab.evaluate("document.querySelectorAll('svg').length") == 8
                    assert await tab.evaluate("document.querySelectorAll('img').length") == 0
                    await tab.evaluate(
                        "window.confirm = () => true; document.querySelector('button').click()"
                    )
                assert await tab.evaluate("typeof window.owned") == "undefined"
            # A page of its own cannot be given markup, even by mistake.
            assert await tab.evaluate(
                "try { document.body.innerHTML = '<b>x</b>' } catch (error) { error.name }"
            ) == ("TypeError")
            nursery.cancel_scope.cancel()
    assert "an operator of the server" in str(caught[0])


async def test_without_its_token_it_shows_nothing_of_the_server(browser: str) -> None:
    server = Server("watched")
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab, trio.open_nursery() as nursery:
            admin = AdminTransport("http://127.0.0.1:0", token="a-token-of-an-operator")
            _, where = await nursery.start(server.serve, "http://127.0.0.1:0/mcp", admin)
            await tab.visit(f"{where}/#wrong")
            while "token is missing or wrong" not in await tab.evaluate("document.body.textContent"):
                await trio.lowlevel.checkpoint()
            assert "watched" not in await tab.evaluate("document.querySelector('header').textContent")
            nursery.cancel_scope.cancel()


async def test_a_token_with_a_percent_sign_opens_it(browser: str) -> None:
    token = "100%-secret-of-operators"
    with trio.fail_after(LIMIT):
        async with Tab.open(browser) as tab, trio.open_nursery() as nursery:
            admin = AdminTransport("http://127.0.0.1:0", token=token)
            _, where = await nursery.start(Server("watched").serve, "http://127.0.0.1:0/mcp", admin)
            await tab.visit(f"{where}/#{token}")
            while "watched" not in await tab.evaluate("document.querySelector('header').textContent"):
                await trio.lowlevel.checkpoint()
            assert "1 node" in await tab.evaluate("document.querySelector('#state').textContent")
            nursery.cancel_scope.cancel()
