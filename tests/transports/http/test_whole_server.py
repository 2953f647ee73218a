"""A real server over real sockets, used by many peers at once, good and bad ones: what is left when they are gone."""

from __future__ import annotations

import gc
import json
import os
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from mcp_actors import Context, Limits, Server
from mcp_actors.errors import ConnectFailed, LocalProtocolError
from mcp_transports.http.server import HttpLimits, HttpServerTransport, Refusal, Request
from tests.messages import LEGACY, MODERN, modern_meta, modern_request
from tests.transports.http.site import (
    BATCHING,
    BOTH,
    INITIALIZED,
    Site,
    bare,
    call,
    initialize,
    message_of,
    modern,
    site,
    text,
)
from tests.transports.lines import open_descriptors

from .raw import RawPeer, eventually

pytestmark = pytest.mark.slow

MIXED = int(os.environ.get("MCP_MIXED_REQUESTS", "10000"))
PEERS = 40
STREAMS = 1_000
LINES_OF_FLOOD = 200
LONG = "x" * 100_000


class SiteWholeServer:
    """A server, where it is, and what it has noticed."""

    def __init__(self, limits: HttpLimits) -> None:
        self.server = server = Server("site", limits=Limits(drain_grace=1_000))
        self.transport = HttpServerTransport("http://127.0.0.1:0/mcp", limits=limits, max_sessions=5_000)
        self.port = 0
        self.running = 0
        self.cancelled = 0
        self.nursery: Any = None

        @server.tool
        async def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        async def hold(ctx: Context) -> None:
            self.running += 1
            try:
                await ctx.progress(1)
                await trio.sleep_forever()
            except trio.Cancelled:
                self.cancelled += 1
                raise
            finally:
                self.running -= 1

        @server.tool
        async def flood(lines: int, ctx: Context) -> str:
            for line in range(1, lines + 1):
                await ctx.progress(line, message=LONG)
            return "all told"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def peer(self) -> RawPeer:
        return RawPeer(await trio.open_tcp_stream("127.0.0.1", self.port))

    @asynccontextmanager
    async def peers(self) -> AsyncIterator[RawPeer]:
        peer = await self.peer()
        try:
            yield peer
        finally:
            with trio.CancelScope(shield=True):
                await peer.aclose()


@asynccontextmanager
async def site_whole_server(limits: HttpLimits | None = None) -> AsyncIterator[SiteWholeServer]:
    each = SiteWholeServer(limits or HttpLimits())
    async with trio.open_nursery() as nursery:
        each.nursery = nursery
        (url,) = await nursery.start(each.server.serve, each.transport)
        each.port = int(url.rpartition(":")[2].partition("/")[0])
        yield each
        nursery.cancel_scope.cancel()


def http(body: Any, *headers: str, method: str = "POST") -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} /mcp HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def modern_whole_server(
    tool: str, arguments: Any, token: Any = None, *, method: str = "tools/call", version: str = MODERN
) -> bytes:
    meta = modern_meta(version=version, **({} if token is None else {"progressToken": token}))
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return http(body, f"MCP-Protocol-Version: {version}", f"Mcp-Method: {method}", f"Mcp-Name: {tool}")


def legacy(method: str, session: str | None = None, id: Any = 1, **params: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    named = [] if session is None else [f"Mcp-Session-Id: {session}", f"MCP-Protocol-Version: {LEGACY}"]
    return http(body, *named)


INITIALIZE = legacy(
    "initialize", protocolVersion=LEGACY, capabilities={}, clientInfo={"name": "t", "version": "1"}
)


async def begin(peer: RawPeer) -> str:
    await peer.send(INITIALIZE)
    answer = await peer.answer()
    assert answer.status == 200
    return answer.headers["mcp-session-id"]


# -- kinds of peers --------------------------------------------------------------------------------------
#
# Each worth some requests.


async def good(peer: RawPeer, _: random.Random) -> int:
    await peer.send(modern_whole_server("add", {"a": 1, "b": 2}) * 32)
    for _each in range(32):
        answer = await peer.answer()
        assert json.loads(answer.body)["result"]["structuredContent"] == 3
    return 32


async def good_session(peer: RawPeer, _: random.Random) -> int:
    session = await begin(peer)
    calls = [legacy("tools/call", session, id, name="add", arguments={"a": id, "b": 2}) for id in range(32)]
    await peer.send(b"".join(calls))
    for id in range(32):
        assert json.loads((await peer.answer()).body)["id"] == id
    await peer.send(http(None, f"Mcp-Session-Id: {session}", method="DELETE"))
    assert (await peer.answer()).status == 200
    return 34


REFUSED = [
    (http(b"{"), 400),
    (http(b"\xff\xfe"), 400),
    (http([]), 400),
    (http({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}), 400),
    (legacy("tools/list", "no-such-session"), 404),
    (http(None, "Mcp-Session-Id: nobody", method="DELETE"), 404),
    (http(b"", method="PUT"), 405),
    (
        modern_whole_server("add", {"a": 1, "b": 2}).replace(b"Host: localhost", b"Host: evil.example.com"),
        403,
    ),
    (modern_whole_server("add", {"a": 1, "b": 2}).replace(b"Mcp-Name: add", b"Mcp-Name: ad"), 400),
    (modern_whole_server("add", {"a": 1, "b": 2}, version="v999.0.0"), 400),
    (modern_whole_server("add", {"a": 1, "b": 2}, method="tools/none"), 404),
    (modern_whole_server("add", {"a": 1}), 200),
]


async def refused(peer: RawPeer, _: random.Random) -> int:
    await peer.send(b"".join(request for request, _status in REFUSED))
    for request, status in REFUSED:
        assert (await peer.answer()).status == status, request
    return len(REFUSED)


async def leaves(peer: RawPeer, chance: random.Random) -> int:
    """Leaves in the middle: of a head, of a body, of its call, of a stream."""
    request = modern_whole_server("hold", {}, token=1 if chance.random() < 0.5 else None)
    cut = chance.choice([5, len(request) - 5, len(request)])
    await peer.send(request[:cut])
    if cut == len(request) and chance.random() < 0.5:
        await peer.stream.receive_some(
            10
        ) if b"progressToken" in request else await trio.lowlevel.checkpoint()
    return 1


async def leaves_session(peer: RawPeer, _: random.Random) -> int:
    """Opens a session and its stream, begins a call, is never seen again; somebody else ends the session."""
    session = await begin(peer)
    await peer.send(legacy("tools/call", session, 5, name="hold", arguments={}, _meta={"progressToken": 1}))
    await peer.until(b"notifications/progress")
    return 2


KINDS: list[Callable[[RawPeer, random.Random], Awaitable[int]]] = [
    *[good] * 8,
    *[good_session] * 8,
    *[refused] * 4,
    *[leaves] * 4,
]


@pytest.mark.long
async def test_thousands_of_mixed_requests_leave_nothing() -> None:
    chance = random.Random(7)
    async with site_whole_server() as each:
        done = 0

        async def work() -> None:
            nonlocal done
            while done < MIXED:
                async with each.peers() as peer:
                    made = await chance.choice(KINDS)(peer, chance)
                done += made

        async with each.peers() as peer:  # whatever is made once is made
            await good(peer, chance)
        before = trio.lowlevel.current_statistics().tasks_living, open_descriptors()
        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                for _ in range(PEERS):
                    nursery.start_soon(work)
        assert done >= MIXED
        # The tasks that calls ran in wait for others: no more of them than ran at once.
        spare = 2 * PEERS
        await eventually(lambda: trio.lowlevel.current_statistics().tasks_living <= before[0] + spare)
        await eventually(lambda: open_descriptors() <= before[1])

        def left() -> tuple[Any, ...]:
            tree = each.server.tree()
            return each.running, tree.sessions, tree.exchanges, tree.limiter.inside

        # The last peer that left was perhaps not noticed yet: when they began, such a connection was counted too.
        await eventually(lambda: left() == (0, (), (), 0))
        gc.collect()
        statistics = each.transport.statistics()
        assert statistics.event_streams == 0


async def test_sessions_left_behind_end_with_the_server_and_their_calls_with_them() -> None:
    async with site_whole_server() as each:
        for _ in range(20):
            async with each.peers() as peer:
                await leaves_session(peer, random.Random(0))
        assert each.running == 20  # that the stream went is no reason to end the call
        assert len(each.server.tree().sessions) == 20
    assert (each.running, each.cancelled) == (0, 20)


async def test_a_stalled_reader_holds_nobody_but_itself() -> None:
    """One stops reading a stream that is far longer than any buffer; a thousand others go on."""
    # A busy machine takes its time for the others, for which the stalled one is not dropped.
    limits = HttpLimits(write_buffer=64 * 1024, max_buffered=1024 * 1024, write_timeout=600)
    async with site_whole_server(limits) as each, each.peers() as stalled:
        await stalled.send(modern_whole_server("flood", {"lines": LINES_OF_FLOOD}, token=1))
        await eventually(lambda: len(each.server.tree().exchanges) == 1)
        live = [await each.peer() for _ in range(STREAMS)]
        try:
            with trio.fail_after(300):
                for _ in range(3):
                    for peer in live:
                        await peer.send(modern_whole_server("add", {"a": 1, "b": 2}))
                    for peer in live:
                        assert (await peer.answer()).status == 200
            # It is still there, waited for and bounded: the call makes no more than the buffers take.
            assert len(each.server.tree().exchanges) == 1
            told = await stalled.answer()
            assert told.body.count(b"notifications/progress") >= LINES_OF_FLOOD - 1
            assert b"all told" in told.body
        finally:
            for peer in live:
                await peer.aclose()


@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_a_thousand_open_streams_are_no_reason_not_to_end(how: str) -> None:
    async with site_whole_server() as each:
        before = open_descriptors()
        peers = [await each.peer() for _ in range(STREAMS)]
        for number, peer in enumerate(peers):
            if number % 2:
                session = await begin(peer)
                await peer.send(http(None, f"Mcp-Session-Id: {session}", method="GET"))
            else:
                params = {"notifications": {"toolsListChanged": True}}
                body = modern_request(1, "subscriptions/listen", params)
                mirrored = [f"MCP-Protocol-Version: {MODERN}", "Mcp-Method: subscriptions/listen"]
                await peer.send(http(body, *mirrored))
        for peer in peers:
            await peer.until(b"text/event-stream")
        assert each.transport.statistics().event_streams == STREAMS
        # Nothing here is worth waiting for: a drain that waited for it would outlast the patience of the peers.
        if how == "stopped":
            each.server.stop()
        else:
            each.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            endings = [await peer.rest() for peer in peers]
        if how == "stopped":
            # A subscription ends with the result that says so; the chunked bodies of both kinds are complete.
            assert sum(b"subscriptionId" in each and b'"result"' in each for each in endings) == STREAMS / 2
            assert all(each.endswith(b"0\r\n\r\n") for each in endings)
        for peer in peers:
            with trio.CancelScope(shield=True):
                await peer.aclose()
        with trio.CancelScope(shield=True):
            await eventually(lambda: open_descriptors() <= before)


# -- A real server behind the endpoint, over real sockets: both eras, sessions that are lost and found, HTTP+SSE ---

# -- the modern era ---------------------------------------------------------------------------------------------------


async def test_both_eras_are_served_at_one_url() -> None:
    async with site() as at:
        message, headers = modern(1, "add", a=1, b=2)
        response = await at.post(message, **headers)
        assert response.headers["content-type"] == "application/json"
        assert text(response.json()) == "3"
        session = await at.open()
        assert text((await at.post(call(1, "add", a=2, b=2), session)).json()) == "4"
        assert text((await at.post(message, **headers)).json()) == "3"
        unknown = {**message, "method": "ping"}
        response = await at.post(unknown, **{**headers, "mcp-method": "ping"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)
        response = await at.post(message, **{**headers, "mcp-name": "other"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)


@pytest.mark.parametrize("name", ["wait", "silent"])
async def test_a_modern_client_that_hangs_up_cancels_its_call(name: str) -> None:
    async with site() as at:
        message, headers = modern(1, name)
        async with at.stream("POST", message, **headers):
            await eventually(lambda: bool(at.server.tree().exchanges))
            await trio.testing.wait_all_tasks_blocked()  # so that its function has begun
        await eventually(lambda: not at.server.tree().exchanges)
        assert at.ends == (["cancelled"] if name == "wait" else [])


# -- the legacy era ---------------------------------------------------------------------------------------------------


async def test_a_lost_call_goes_on_and_is_found_again() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session) as events:
            primer = await anext(events)
            assert primer.id
            assert primer.data == b""
            progress = await anext(events)
            assert json.loads(progress.data)["params"]["progress"] == 1
        at.go.set()
        await eventually(lambda: at.ends == ["finished"])
        async with at.stream("GET", None, session, **{"last-event-id": progress.id or ""}) as events:
            rest = [json.loads(event.data) async for event in events]
        assert rest[0]["params"]["progress"] == 2
        assert text(rest[1]) == "waited"
        assert len(rest) == 2


async def test_a_stream_that_the_server_closes_is_taken_up_again() -> None:
    async with site(retry=5) as at:
        session = await at.open()
        async with at.stream("POST", call(1, "leave"), session) as events:
            seen = [event async for event in events]
        assert seen[0].data == b""
        assert [event.retry for event in seen if event.retry is not None] == [5]
        async with at.stream("GET", None, session, **{"last-event-id": seen[0].id or ""}) as events:
            at.go.set()
            assert text(await message_of(events)) == "welcome back"


async def test_a_question_travels_on_the_stream_of_its_call() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("POST", call(1, "ask"), session) as events:
            question = await message_of(events)
            assert question["method"] == "elicitation/create"
            answer = {"action": "accept", "content": {"name": "Ann"}}
            reply = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
            assert (await at.post(reply, session)).status_code == 202
            assert text(await message_of(events)) == "hello Ann"


async def test_a_call_that_is_cancelled_by_message_gets_no_answer() -> None:
    async with site() as at:
        session = await at.open()
        params = {"requestId": 1, "reason": "enough"}
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        async with at.stream("POST", call(1, "wait"), session) as events:
            await message_of(events)
            assert (await at.post(cancel, session)).status_code == 202
            assert [event async for event in events] == []
        assert at.ends == ["cancelled"]
        responses: list[httpx2.Response] = []

        async def call_silently() -> None:
            responses.append(await at.post(call(1, "silent"), session))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_silently)
            await eventually(lambda: bool(at.server.tree().sessions[0].calls))
            await at.post(cancel, session)
        assert (responses[0].status_code, responses[0].content) == (202, b"")


async def test_one_id_in_flight_twice_is_two_calls() -> None:
    async with site() as at:
        session = await at.open()
        answers = {}

        async def ask(a: int) -> None:
            answers[a] = text((await at.post(call(1, "add", a=a, b=0), session)).json())

        async with trio.open_nursery() as nursery:
            for a in range(20):
                nursery.start_soon(ask, a)
        assert answers == {a: str(a) for a in range(20)}


async def test_a_batch_is_answered_whole_where_its_revision_has_them() -> None:
    async with site() as at:
        session = await at.open(BATCHING)
        batch = [call(1, "add", a=1, b=1), INITIALIZED, call(2, "add", a=2, b=2)]
        response = await at.post(batch, session)
        assert {each["id"]: text(each) for each in response.json()} == {1: "2", 2: "4"}
        at.go.set()
        async with at.stream("POST", [call(1, "wait"), call(2, "add", a=2, b=2)], session) as events:
            messages = [json.loads(event.data) async for event in events]
        answers = [each for message in messages if isinstance(message, list) for each in message]
        assert {each["id"] for each in answers} == {1, 2}
        session = await at.open()
        response = await at.post(batch, session)
        assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)


async def test_changed_lists_are_told_on_the_standalone_stream() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("GET", None, session) as events:
            assert (await anext(events)).data == b""
            assert (await at.http.get(at.url, headers=bare(session))).status_code == 409
            at.server.remove_tool("add")
            assert (await message_of(events))["method"] == "notifications/tools/list_changed"


async def test_json_replies_and_no_sessions() -> None:
    async with site(json_replies=True) as at:
        at.go.set()
        session = await at.open()
        assert text((await at.post(call(1, "wait"), session)).json()) == "waited"
    async with site(sessions=False) as at:
        response = await at.post(initialize(LEGACY))
        assert "mcp-session-id" not in response.headers
        assert (await at.post(INITIALIZED)).status_code == 202
        response = await at.post(call(1, "add", a=1, b=2), **{"mcp-protocol-version": LEGACY})
        assert text(response.json()) == "3"


async def test_a_deleted_session_takes_its_calls_along() -> None:
    async with site() as at:
        session = await at.open()
        async with at.stream("POST", call(1, "wait"), session) as events:
            await message_of(events)
            headers = {"mcp-session-id": session, "mcp-protocol-version": "1999-01-01"}
            assert (await at.http.delete(at.url, headers=headers)).status_code == 400
            assert (await at.http.delete(at.url, headers={"mcp-session-id": session})).status_code == 200
            assert [event async for event in events] == []
        await eventually(lambda: at.ends == ["cancelled"])
        assert (await at.post(call(2, "add", a=1, b=1), session)).status_code == 404
        assert not at.server.tree().sessions


# -- HTTP+SSE ---------------------------------------------------------------------------------------------------------


async def test_http_and_sse_beside_it() -> None:
    async with site() as at:
        base = at.url.removesuffix("/mcp")
        async with at.stream("GET", path="/sse") as events:
            first = await anext(events)
            assert first.event == "endpoint"
            endpoint = base + first.data.decode()
            for message in (initialize("2024-11-05"), INITIALIZED, call(1, "add", a=1, b=2)):
                assert (await at.http.post(endpoint, json=message)).status_code == 202
            assert (await message_of(events))["result"]["protocolVersion"] == "2024-11-05"
            assert text(await message_of(events)) == "3"
            assert at.transport.statistics().http_sse_connections == 1
        await eventually(lambda: at.transport.statistics().http_sse_connections == 0)
        assert (await at.http.post(endpoint, json=INITIALIZED)).status_code == 404


# -- where, and until when --------------------------------------------------------------------------------------------


async def test_a_stop_ends_open_streams_and_lets_calls_finish() -> None:
    at = Site()
    with trio.fail_after(60):
        async with at.http, trio.open_nursery() as nursery:
            (at.url,) = await nursery.start(at.server.serve, at.transport)
            session = await at.open()
            async with (
                at.stream("GET", None, session) as standalone,
                at.stream("GET", path="/sse") as pipe,
                at.stream("POST", call(1, "wait"), session) as events,
            ):
                await message_of(events)
                at.server.stop()
                assert [event.event async for event in pipe] == ["endpoint"]
                assert not [event async for event in standalone if event.is_message]
                at.go.set()
                messages = [json.loads(event.data) async for event in events]
                assert text(messages[-1]) == "waited"
    assert at.ends == ["finished"]
    assert repr(at.transport) == "<HttpServerTransport http://127.0.0.1:0/mcp: not served>"


async def test_a_unix_socket_and_a_second_server_there(tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"
    url = f"http+unix://{str(path).replace('/', '%2F')}/mcp"
    async with site(url=url) as at:
        assert at.url == url
        async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path))) as http:
            response = await http.post("http://localhost/mcp", json=initialize(LEGACY), headers=BOTH)
            assert response.status_code == 200
        with pytest.raises(LocalProtocolError):
            await at.transport.serve(None)  # type: ignore[arg-type]
        with pytest.raises(ConnectFailed):
            await Site(url=url).server.serve(HttpServerTransport(url))
    assert not path.exists()


def test_what_cannot_be_served_is_said_at_once() -> None:
    for url in (
        "ftp://x/mcp",
        "http:///mcp",
        "http://127.0.0.1/mcp?x=1",
        "https://127.0.0.1/mcp",
        "http+unix:///x",
    ):
        with pytest.raises(ValueError, match=r"URL|ssl_context"):
            HttpServerTransport(url)
    with pytest.raises(ValueError, match="ssl_context"):
        HttpServerTransport("http://127.0.0.1/mcp", ssl_context=ssl.create_default_context())
    for path in ("/sse", "/messages"):
        with pytest.raises(ValueError, match="sse_path"):
            HttpServerTransport(f"http://127.0.0.1{path}")
    HttpServerTransport("http://127.0.0.1/sse", sse_path=None)
    assert (
        repr(HttpServerTransport("http://[::1]:8000"))
        == "<HttpServerTransport http://[::1]:8000/mcp: not served>"
    )
    assert (
        repr(HttpServerTransport("http://localhost/"))
        == "<HttpServerTransport http://localhost/: not served>"
    )


async def test_a_server_of_the_modern_era_alone() -> None:
    server = Server("modern", versions=[MODERN])
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, httpx2.AsyncClient() as http:
            (url,) = await nursery.start(server.serve, HttpServerTransport("http://127.0.0.1:0/mcp"))
            for method in ("GET", "DELETE"):
                response = await http.request(method, url, headers={"accept": "text/event-stream"})
                assert (response.status_code, response.headers["allow"]) == (405, "POST")
            response = await http.post(url, json=initialize(LEGACY), headers=BOTH)
            assert (response.status_code, response.json()["error"]["code"]) == (400, -32020)
            nursery.cancel_scope.cancel()


async def test_each_call_knows_who_it_is_from_and_nobody_else_learns_why_that_failed(
    logs: list[MutableMapping[str, Any]],
) -> None:
    async def who(request: Request) -> str | Refusal | None:
        await trio.lowlevel.checkpoint()
        token = request.headers.get("authorization", "")
        if token == "broken":
            raise RuntimeError("secret of the token service")
        return token or Refusal(401, "no token", headers=(("www-authenticate", "Bearer"),))

    async with site(authenticate=who) as at:

        @at.server.tool
        async def whoami(ctx: Context) -> str:
            await trio.lowlevel.checkpoint()
            return str(ctx.principal)

        message, headers = modern(1, "whoami")
        found: list[str] = []

        async def ask(name: str) -> None:
            found.append(name + text((await at.post(message, **headers, authorization=name)).json()))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, f"user{number % 2}")
        assert set(found) == {"user0user0", "user1user1"}
        opened = await at.post(initialize(LEGACY), authorization="ann")
        session = opened.headers["mcp-session-id"]
        assert text((await at.post(call(1, "whoami"), session, authorization="ann")).json()) == "ann"
        assert (await at.post(call(1, "whoami"), session, authorization="bob")).status_code == 404
        refused = await at.post(message, **headers)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        failed = await at.post(message, **headers, authorization="broken")
        assert failed.status_code == 500
        assert "secret" not in failed.text
        assert any("secret" in str(each.get("exc_info")) for each in logs)


async def test_a_listener_that_answers_nobody_says_so(logs: list[MutableMapping[str, Any]]) -> None:
    async with site(url="http://0.0.0.0:0/mcp") as at:
        assert any("allowed_hosts" in each["event"] for each in logs)
        response = await at.http.post(at.url, json=initialize(LEGACY), headers=BOTH)
        assert response.status_code == 403
    logs.clear()
    async with site(url="http://0.0.0.0:0/mcp", allowed_hosts=["0.0.0.0"]) as at:
        assert (await at.post(initialize(LEGACY))).status_code == 200
    assert not any("allowed_hosts" in each["event"] for each in logs)
