"""An application with the settings of our own listener: authorization, resumption, plain JSON and HTTP+SSE."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from structlog.testing import capture_logs

from mcp_actors import Context, Server
from mcp_actors.abc.http import AsgiServer
from mcp_actors.supervision.principal import Principal
from mcp_transports.http.server import Refusal, Request
from tests import messages
from tests.shared.spanning import Spanning
from tests.transports.http.asgi.test_requests import (
    HOST,
    INITIALIZE,
    POSTED,
    SECONDS,
    Exchange,
    Site,
    ask,
    call,
    modern,
    on_asyncio,
    scope_of,
    session,
    until,
)
from tests.transports.http.protected import NO_TOKEN, RESOURCE, WELL_KNOWN, resource_server

PUBLIC = (b"host", b"mcp.example.org")
GOT = (HOST, (b"accept", b"text/event-stream"))


def bearer(token: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {token}".encode()


@on_asyncio
async def test_a_protected_application_takes_tokens_and_shows_its_documents() -> None:
    site = Site(auth=resource_server(), allowed_hosts=["mcp.example.org"])
    posted = (PUBLIC, *POSTED[1:])
    refused = await ask(site.app, INITIALIZE, headers=posted)
    assert (refused.status, refused.headers[b"www-authenticate"].decode()) == (401, NO_TOKEN)
    headers = (*posted, bearer("ann"))
    begun = await ask(site.app, INITIALIZE, headers=headers)
    assert begun.status == 200
    mine = (*headers, (b"mcp-session-id", begun.headers[b"mcp-session-id"]))
    others = (*posted, bearer("bob"), (b"mcp-session-id", begun.headers[b"mcp-session-id"]))
    assert (await ask(site.app, messages.INITIALIZED, headers=mine)).status == 202
    assert (await ask(site.app, call("add", a=1, b=2), headers=others)).status == 404
    assert (await ask(site.app, call("add", a=1, b=2), headers=mine)).status == 200


@on_asyncio
async def test_the_documents_are_found_wherever_the_application_is_mounted() -> None:
    site = Site(auth=resource_server(), allowed_hosts=["mcp.example.org"])
    (document,) = (each for each in site.app.documents if each.endswith("/mcp"))
    assert document == f"{WELL_KNOWN}/mcp"
    mounts = [
        ("", document),
        (WELL_KNOWN, document),  # Starlette since 0.33, as ASGI says
        (WELL_KNOWN, "/mcp"),  # older frameworks
    ]
    for root, path in mounts:
        answer = await ask(site.app, method="GET", path=path, headers=(PUBLIC,), root_path=root)
        assert answer.status == 200, (root, path)
        assert json.loads(answer.body)["resource"] == RESOURCE


@on_asyncio
async def test_a_function_that_authenticates_decides_and_names_the_caller() -> None:
    async def authenticate(request: Request) -> Principal | Refusal:
        if request.headers.get("x-key") != "right":
            return Refusal(401, "no key", headers=[("www-authenticate", "Key")])
        return Principal("ann", "us", "an app")

    site = Site(authenticate=authenticate)
    body, headers = modern("add", a=1, b=2)
    refused = await ask(site.app, body, headers=headers)
    assert (refused.status, refused.headers[b"www-authenticate"]) == (401, b"Key")
    answer = await ask(site.app, body, headers=(*headers, (b"x-key", b"right")))
    assert b'"3"' in answer.body


@on_asyncio
async def test_answers_are_plain_json_where_that_is_wanted() -> None:
    site = Site(json_replies=True)
    headers = await session(site.app)
    answer = await ask(site.app, call("add", a=1, b=2), headers=headers)
    assert answer.headers[b"content-type"] == b"application/json"
    assert json.loads(answer.body)["result"]["content"][0]["text"] == "3"


async def opened(app: Any, scope: dict[str, Any], body: Any = None) -> tuple[Exchange, asyncio.Task[None]]:
    """Begins a request whose answer goes on."""
    exchange = Exchange()
    exchange.incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode() if body else b""})
    task = asyncio.ensure_future(app(scope, exchange.receive, exchange.send))
    await asyncio.wait_for(exchange.has_begun.wait(), SECONDS)
    return exchange, task


def ids(exchange: Exchange) -> list[bytes]:
    return re.findall(rb"^id: ?(\S+)", exchange.body, re.MULTILINE)


@on_asyncio
async def test_a_client_that_lost_its_stream_gets_the_rest() -> None:
    site = Site()
    gate = asyncio.Event()

    @site.server.tool(loop="asyncio")
    async def late(ctx: Context) -> str:
        await ctx.progress(1)
        await gate.wait()
        return "the rest"

    headers = await session(site.app)
    first, task = await opened(
        site.app, scope_of("POST", "/mcp", headers), messages.call(7, "late", token="t")
    )
    await until(lambda: b'"progress":1' in first.body)
    first.incoming.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(task, SECONDS)
    gate.set()
    resumed = (*headers, (b"last-event-id", ids(first)[-1]))
    answer = await ask(site.app, b"", headers=resumed, method="GET")
    assert answer.status == 200
    assert b"the rest" in answer.body
    assert b'"progress"' not in answer.body


@on_asyncio
async def test_a_client_of_http_sse_calls_below_the_mount() -> None:
    site = Site()
    events, task = await opened(site.app, scope_of("GET", "/tools/sse", GOT, root_path="/tools"))
    await until(lambda: b"endpoint" in events.body)
    found = re.search(rb"data: ?(\S+)", events.body)
    assert found is not None
    path, _, query = found[1].decode().partition("?")

    async def post(message: Any) -> None:
        posted = await ask(site.app, message, path=path, root_path="/tools", query_string=query.encode())
        assert posted.status == 202

    await post(messages.initialize(0, "2024-11-05"))
    await until(lambda: b"serverInfo" in events.body)
    await post(messages.INITIALIZED)
    await post(call("add", a=1, b=2))
    await until(lambda: b'"3"' in events.body)
    events.incoming.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(task, SECONDS)


@on_asyncio
async def test_whoever_mounts_it_wrongly_is_told_once_where_it_is() -> None:
    site = Site()
    with capture_logs() as logs:
        for _ in range(2):
            assert (await ask(site.app, INITIALIZE, path="/mcp/x", root_path="/mcp")).status == 404
        assert (await ask(site.app, b"", path="/favicon.ico", method="GET")).status == 404
    told = [each for each in logs if "no MCP is served" in each["event"]]
    assert [(each["path"], each["served"]) for each in told] == [("/mcp/x", "/mcp/mcp")]


@on_asyncio
async def test_a_list_that_is_one_string_names_its_setting() -> None:
    with pytest.raises(ValueError, match=r"allowed_hosts is a list: write \['mcp.example.org'\]"):
        Site(allowed_hosts="mcp.example.org")


FORKED = """
import asyncio, os
from tests.transports.http.asgi.test_requests import INITIALIZE, ask
from mcp_actors import Server

app = Server("x").asgi()

async def asked():
    return (await ask(app, INITIALIZE)).status

def fork():
    child = os.fork()
    if child == 0:
        print(asyncio.run(asked()), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

fork()
loop = asyncio.new_event_loop()
print(loop.run_until_complete(asked()))
fork()
print(loop.run_until_complete(asked()))
"""


def test_forks_serve_an_application_of_their_parent_before_and_after_it_served() -> None:
    """The parent never closes its loop: the end of the interpreter ends its server, and no line is printed for that."""
    # Python warns of forks of processes with threads: from 3.12 on, and only where it notices the threads.
    command = [sys.executable, "-u", "-W", "ignore:This process", "-c", FORKED]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 3, check=False)
    assert (ran.stdout.split(), ran.stderr) == (["200"] * 4, "")


# -- Applications that are nodes of one server: sessions are found at any of them ------------------------


def node(shared: Spanning) -> AsgiServer:
    server = Server("node", shared=shared)

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool(loop="asyncio")
    async def thinks(ctx: Context) -> str:
        await ctx.progress(1)
        return await asyncio.sleep(0, "done")

    return server.asgi()


def text(exchange: Any) -> str:
    result: str = json.loads(exchange.body)["result"]["content"][0]["text"]
    return result


@on_asyncio
async def test_a_session_of_one_application_is_served_by_another() -> None:
    shared = Spanning()
    a, b = node(shared), node(shared)
    async with a.lifespan(), b.lifespan():
        headers = await session(a)
        assert text(await ask(b, call("add", a=1, b=2), headers=headers)) == "3"
        assert text(await ask(b, call("thinks"), headers=headers)) == "done"
        sessions = [each.statistics().sessions for each in (a, b)]
        assert [each and each.open for each in sessions] == [1, 0]
        assert (await ask(b, headers=headers, method="DELETE")).status == 200
        assert (await ask(a, call("add", a=1, b=2), headers=headers)).status == 404
