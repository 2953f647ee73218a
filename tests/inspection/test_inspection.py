"""What an inspection reports, and what servers that are hostile or gone can make of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Server, SyncContext
from mcp_actors.cli.inspect.conversation import Bounds
from mcp_actors.cli.inspect.inspection import ServerReport, inspect_server
from mcp_actors.cli.inspect.rules import RULES
from mcp_actors.errors import ConnectFailed
from mcp_actors.types import ToolAnnotations
from tests.inspection.broken import BROKEN
from tests.inspection.fake_server import URL, Exchange, FakeHttp, FakeServer, FakeStream

BINDINGS = pytest.mark.parametrize("transport", [FakeStream, FakeHttp])
ESCAPE = "\x1b[31mred\x1b]0;title\x07\u202e"


@BINDINGS
async def test_what_a_server_is(autojump_clock: MockClock, transport: type[FakeStream]) -> None:
    report = await inspect_server(transport(FakeServer()), url=URL, in_flight=4)
    modern, legacy = report.eras
    assert (modern.versions, modern.inspected) == (("2026-07-28",), "2026-07-28")
    assert legacy.versions == ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
    assert (modern.server_name, modern.server_version) == ("fake", "1")
    assert modern.capabilities == ("tools", "resources", "prompts", "logging")
    assert modern.extensions == ("com.example/one",)
    tools = modern.lists["tools"]
    assert (tools.count, tools.pages, tools.names, tools.stopped) == (2, 2, ("one", "two"), None)
    measured = [(each.method, each.in_flight) for each in legacy.latency]
    assert measured == [("ping", 1), ("ping", 4), ("tools/list", 1), ("tools/list", 4)]
    assert [each.answered for each in legacy.latency] == [30, 48, 30, 48]
    assert all(each.failed == 0 for each in (*legacy.latency, *modern.latency))
    assert report.authorization is None
    assert json.loads(json.dumps(report.to_json()))["violates"] is False


async def test_the_tokens_of_tools_are_those_of_all_that_models_are_offered(
    autojump_clock: MockClock,
) -> None:
    def many(exchange: Exchange) -> None:
        if exchange.method == "tools/list" and exchange.result is not None:
            tools = [{"name": f"tool_{each}", "inputSchema": {"type": "object"}} for each in range(300)]
            tools[1]["_meta"] = {"ui": {"visibility": ["app"]}}
            tools[2]["_meta"] = "junk"
            exchange.result["tools"] = tools
            exchange.result.pop("nextCursor", None)

    report = await inspect_server(FakeStream(FakeServer(many)), url=URL, in_flight=0)
    tokens = report.eras[-1].lists["tools"].tokens
    assert tokens.keys() == {f"tool_{each}" for each in range(300)} - {"tool_1"}


@BINDINGS
async def test_tools_are_called_only_where_that_was_allowed(
    autojump_clock: MockClock, transport: type[FakeStream]
) -> None:
    server = FakeServer()
    await inspect_server(transport(server), url=URL, in_flight=2)
    assert server.calls == []
    report = await inspect_server(transport(server), url=URL, in_flight=0, call=True)
    # Only "one" says that it only reads.
    assert set(server.calls) == {"one", "mcp-actors-inspect-no-such-name"}
    assert report.findings == ()


async def test_authorization_is_described_without_credentials(autojump_clock: MockClock) -> None:
    report = await inspect_server(FakeHttp(FakeServer(token="t")), url=URL, in_flight=0)
    assert report.eras == ()
    assert report.authorization is not None
    assert (report.authorization.status, report.authorization.challenges) == (401, ("bearer",))
    assert report.authorization.metadata_urls == (
        "http://127.0.0.1:9/.well-known/oauth-protected-resource/mcp",
    )
    assert {each.rule for each in report.outcomes} == {"refused-by-401", "wrong-token", "resource-metadata"}
    assert report.findings == ()


async def test_metadata_at_another_origin_are_not_asked_for(autojump_clock: MockClock) -> None:
    def elsewhere(exchange: Exchange) -> None:
        if "www-authenticate" in exchange.answered:
            exchange.answered["www-authenticate"] = 'Bearer resource_metadata="http://10.0.0.1/secret"'

    report = await inspect_server(FakeHttp(FakeServer(elsewhere, token="t")), url=URL, in_flight=0)
    results = {each.rule: each.result for each in report.outcomes}
    assert results["resource-metadata"] == "not applicable"


# -- servers that are hostile, slow or gone ------------------------------------------------------------------------


async def test_a_server_that_says_nothing(autojump_clock: MockClock) -> None:
    def silent(exchange: Exchange) -> None:
        exchange.replies = []

    report = await inspect_server(FakeStream(FakeServer(silent)), in_flight=16)
    assert report.eras == ()
    assert report.seconds <= 30


async def test_nobody_is_there(autojump_clock: MockClock) -> None:
    class Nobody(FakeStream):
        def connect(self):  # type: ignore[no-untyped-def]
            raise ConnectFailed("nobody is there")

    with pytest.raises(ConnectFailed, match="nobody is there"):
        await inspect_server(Nobody(FakeServer()))


@BINDINGS
async def test_pages_without_an_end(autojump_clock: MockClock, transport: type[FakeStream]) -> None:
    def endless(exchange: Exchange) -> None:
        if exchange.method == "tools/list" and exchange.result is not None:
            number = (
                int(exchange.params.get("cursor", "0")) if exchange.params.get("cursor", "0").isdigit() else 0
            )
            exchange.result["nextCursor"] = str(number + 1)

    server = FakeServer(endless)
    bounds = Bounds(pages=5)
    report = await inspect_server(transport(server), url=URL, in_flight=0, bounds=bounds)
    assert report.eras[0].lists["tools"].pages <= 5
    assert report.eras[0].lists["tools"].stopped is not None


async def test_a_cursor_that_comes_twice(autojump_clock: MockClock) -> None:
    def circle(exchange: Exchange) -> None:
        if exchange.method == "tools/list" and exchange.result is not None:
            exchange.result["nextCursor"] = "1"

    report = await inspect_server(FakeStream(FakeServer(circle)), in_flight=0)
    assert report.eras[0].lists["tools"].stopped == "a cursor came twice, so that the pages would never end"


async def test_a_flood_of_messages(autojump_clock: MockClock) -> None:
    log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}

    def flood(exchange: Exchange) -> None:
        if exchange.method == "ping":
            exchange.replies = [log] * 2000

    report = await inspect_server(
        FakeStream(FakeServer(flood, eras=("legacy",))),
        in_flight=0,
        bounds=Bounds(messages=100, total_bytes=100_000),
    )
    assert report.stopped is not None
    assert report.received_bytes < 300_000
    assert "not checked" in {each.result for each in report.outcomes}


async def test_more_bytes_than_are_read(autojump_clock: MockClock) -> None:
    def big(exchange: Exchange) -> None:
        if exchange.method == "prompts/list" and exchange.result is not None:
            exchange.result["more"] = "x" * 100_000

    report = await inspect_server(
        FakeStream(FakeServer(big)), in_flight=0, bounds=Bounds(total_bytes=150_000)
    )
    assert report.stopped is not None
    assert "no more are read" in report.stopped
    assert report.received_bytes < 300_000


@BINDINGS
async def test_measuring_leaves_enough_of_the_bound_for_the_rules(
    autojump_clock: MockClock, transport: type[FakeStream]
) -> None:
    def long(exchange: Exchange) -> None:
        if exchange.method == "tools/list" and exchange.result is not None:
            exchange.result["more"] = "x" * 250_000

    report = await inspect_server(transport(FakeServer(long)), url=URL, in_flight=16)
    assert report.stopped is None
    assert "not checked" not in {each.result for each in report.outcomes}
    # Answers of this length are asked for one by one only.
    measured = [(each.method, each.in_flight) for each in report.eras[1].latency]
    assert measured == [("ping", 1), ("ping", 16), ("tools/list", 1)]
    assert report.received_bytes < Bounds().total_bytes / 2


async def test_what_is_no_message_is_told_where_nothing_else_came(autojump_clock: MockClock) -> None:
    def garbled(exchange: Exchange) -> None:
        exchange.replies = ["no object"]

    report = await inspect_server(FakeStream(FakeServer(garbled)), in_flight=0)
    assert report.stopped is not None
    assert "no answer within 10 s; what came is no message: JSON that is no object" in report.stopped


async def test_the_bound_holds_while_the_speed_is_measured(autojump_clock: MockClock) -> None:
    pings = 0

    def longer_and_longer(exchange: Exchange) -> None:
        nonlocal pings
        if exchange.method == "ping" and exchange.result is not None:
            pings += 1
            # Only those are long that are asked for at once.
            exchange.result["more"] = "x" * (0 if pings <= 31 else 50_000)

    with capture_logs() as logs:
        bounds = Bounds(total_bytes=500_000)
        server = FakeServer(longer_and_longer)
        report = await inspect_server(FakeHttp(server), url=URL, in_flight=16, bounds=bounds)
    assert report.stopped is not None
    assert "no more are read" in report.stopped
    assert logs == []


async def test_a_server_that_ends_at_a_message_that_is_no_json(autojump_clock: MockClock) -> None:
    def ends(exchange: Exchange) -> None:
        if exchange.message is None:
            exchange.replies, exchange.status = [], 0

    server = FakeServer(ends)
    transport = FakeStream(server)
    report = await inspect_server(transport, in_flight=0)
    # It is started again, and nothing else is held against it.
    assert {each.rule for each in report.findings} == {"bad-json"}
    assert report.stopped is None


class GoneFor:
    """A server that answers nothing any more after a request for a prompt."""

    def __init__(self) -> None:
        self.is_gone = False

    def __call__(self, exchange: Exchange) -> None:
        self.is_gone = self.is_gone or exchange.method == "prompts/get"
        if self.is_gone:
            exchange.replies, exchange.status = [], 0


@BINDINGS
async def test_nothing_is_held_against_a_server_after_it_is_gone(
    autojump_clock: MockClock, transport: type[FakeStream]
) -> None:
    report = await inspect_server(transport(FakeServer(GoneFor())), url=URL, in_flight=0)
    assert {each.rule for each in report.findings} == {"unknown-prompt"}
    assert report.stopped is not None
    assert "unknown-prompt" in report.stopped


@BINDINGS
async def test_all_of_it_has_an_end(autojump_clock: MockClock, transport: type[FakeStream]) -> None:
    def mute(exchange: Exchange) -> None:
        if exchange.method not in ("server/discover", "initialize", "ping"):
            exchange.replies = []

    began = trio.current_time()
    bounds = Bounds(total_time=60)
    report = await inspect_server(FakeStream(FakeServer(mute)), url=URL, in_flight=16, bounds=bounds)
    assert trio.current_time() - began <= 61
    assert report.stopped is not None


async def test_connections_are_counted(autojump_clock: MockClock) -> None:
    transport = FakeStream(FakeServer())
    report = await inspect_server(transport, in_flight=0, bounds=Bounds(connections=3))
    assert transport.connections == 3
    assert report.stopped is not None


@BINDINGS
async def test_no_character_of_a_server_does_something_to_a_terminal(
    autojump_clock: MockClock, transport: type[FakeStream]
) -> None:
    def coloured(exchange: Exchange) -> None:
        for reply in exchange.replies:
            if isinstance(reply, dict) and isinstance(reply.get("error"), dict):
                reply["error"].update(message=ESCAPE, code=ESCAPE)
            result = reply.get("result") if isinstance(reply, dict) else None
            if result is not None and "capabilities" in result:
                result["capabilities"] = {**result["capabilities"], ESCAPE: {}, "extensions": {ESCAPE: {}}}
                result["serverInfo"] = {"name": ESCAPE * 100, "version": ESCAPE}
            for tool in (result or {}).get("tools", ()):
                tool["name"] = ESCAPE
        exchange.answered["content-type"] = (
            f"application/{ESCAPE}" if not exchange.streamed else "text/event-stream"
        )

    report = await inspect_server(transport(FakeServer(coloured)), url=URL, in_flight=0)
    assert report.findings
    everything = json.dumps(attrs.asdict(report), ensure_ascii=False)
    assert not any(each in everything for each in ("\x1b", "\x07", "\u202e"))
    assert max(len(each.observed) for each in report.findings) < 500


def no_check_failed(report: ServerReport) -> bool:
    return "the check itself failed" not in json.dumps(report.to_json())


JUNK = [None, 7, "x", [], [1], {}, {"a": []}]


@pytest.mark.slow
@BINDINGS
@pytest.mark.parametrize("junk", JUNK, ids=str)
async def test_any_json_in_any_place(
    autojump_clock: MockClock, transport: type[FakeStream], junk: object
) -> None:
    """Each member of each result in turn is something else than it should be."""
    for member in (
        "capabilities",
        "protocolVersion",
        "supportedVersions",
        "serverInfo",
        "tools",
        "resources",
        "_meta",
    ):

        def change(exchange: Exchange, member: str = member) -> None:
            if exchange.result is not None and member in exchange.result:
                exchange.result[member] = junk

        report = await inspect_server(transport(FakeServer(change)), url=URL, in_flight=2, call=True)
        assert no_check_failed(report)

    def whole(exchange: Exchange) -> None:
        exchange.replies = [junk for _ in exchange.replies]

    report = await inspect_server(transport(FakeServer(whole)), url=URL, in_flight=2, call=True)
    assert report.eras == ()


@BINDINGS
@pytest.mark.parametrize("junk", JUNK, ids=str)
async def test_any_json_as_item_or_error(
    autojump_clock: MockClock, transport: type[FakeStream], junk: object
) -> None:
    def change(exchange: Exchange) -> None:
        for name in ("tools", "resources", "resourceTemplates", "prompts", "content"):
            if exchange.result is not None and name in exchange.result:
                exchange.result[name] = [
                    junk,
                    {"name": junk, "inputSchema": junk, "uri": junk, "arguments": junk},
                ]
        if exchange.replies and isinstance(exchange.replies[-1], dict) and "error" in exchange.reply:
            exchange.reply["error"] = junk

    report = await inspect_server(transport(FakeServer(change)), url=URL, in_flight=2, call=True)
    assert report.violates
    assert no_check_failed(report)


# -- Every rule finds the server that breaks it, and finds nothing at one that follows all of them -------

# Where breaking one rule cannot be done without another.
ALSO = {
    # A client cannot tell a media type that is wrong from a body that is no answer.
    "media-types": {"empty-ping", "same-id", "batches"},
    # The error that breaks this rule is in place of the one that another rule wants.
    "foreign-codes": {"unknown-prompt"},
}


async def inspected(server: FakeServer, binding: str) -> ServerReport:
    bare = FakeHttp(server) if server.token is not None else None
    transport = FakeHttp(server, server.token) if binding == "http" else FakeStream(server)
    return await inspect_server(transport, url=URL, bare=bare, call=True, in_flight=0)


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "JSON"])
@pytest.mark.parametrize("eras", [("modern", "legacy"), ("modern",), ("legacy",)], ids="+".join)
@pytest.mark.parametrize("binding", ["stream", "http"])
async def test_a_server_that_follows_all_rules(
    autojump_clock: MockClock, binding: str, eras: tuple[str, ...], streams: bool
) -> None:
    report = await inspected(FakeServer(eras=eras, streams=streams), binding)
    assert report.findings == ()
    assert [each.era for each in report.eras] == list(eras)
    assert {each.result for each in report.outcomes} <= {"followed", "not applicable"}


async def test_each_rule_is_followed_somewhere(autojump_clock: MockClock) -> None:
    servers = [
        (FakeServer(), "stream"),
        (FakeServer(token="t"), "http"),
        (FakeServer(eras=("modern",)), "http"),
    ]
    followed = {
        each.rule
        for server, binding in servers
        for each in (await inspected(server, binding)).outcomes
        if each.result == "followed"
    }
    assert followed == {rule.name for rule in RULES}


def test_each_rule_has_a_server_that_breaks_it_and_a_place() -> None:
    assert sorted(BROKEN) == sorted(rule.name for rule in RULES)
    assert all(rule.legacy is not None or rule.modern is not None for rule in RULES)


@pytest.mark.parametrize("rule", BROKEN)
async def test_the_rule_finds_who_breaks_it(autojump_clock: MockClock, rule: str) -> None:
    broken = BROKEN[rule]
    server = FakeServer(broken.change, eras=broken.eras, streams=broken.streams, token=broken.token)
    report = await inspected(server, broken.binding)
    assert {each.rule for each in report.findings} == {rule} | ALSO.get(rule, set())
    row = next(each for each in RULES if each.name == rule)
    own = [each for each in report.findings if each.rule == rule]
    assert {each.severity for each in own} == {row.severity}
    assert all(each.source in (str(row.legacy), str(row.modern)) for each in own)
    assert report.violates is any(each.severity == "error" for each in report.findings)


async def test_a_header_that_nginx_takes_away_is_not_missed(autojump_clock: MockClock) -> None:
    broken = BROKEN["unbuffered-streams"]

    def behind_nginx(exchange: Exchange) -> None:
        broken.change(exchange)
        exchange.answered["server"] = "nginx/1.27"

    report = await inspected(FakeServer(behind_nginx, eras=broken.eras), broken.binding)
    [outcome] = [each for each in report.outcomes if each.rule == "unbuffered-streams"]
    assert (outcome.result, outcome.reason) == (
        "not applicable",
        "nginx obeys this header, and does not pass it on",
    )


# -- Our own servers over real bindings: nothing is found at them, and every rule about the binding is checked ---


def make_server() -> Server:
    server = Server("inspected", version="1")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def counted(ctx: SyncContext) -> dict[str, int]:
        """Counts."""
        return {"n": 1}

    @server.resource("a:one")
    def one() -> str:
        return "one"

    @server.prompt
    def greet(who: str = "you") -> str:
        return f"Hello, {who}!"

    return server


@asynccontextmanager
async def served(url: str) -> AsyncIterator[str]:
    server = make_server()
    async with trio.open_nursery() as nursery:
        where: Any = await nursery.start(server.serve, url)
        yield where[0] if isinstance(where, tuple) else str(where)
        nursery.cancel_scope.cancel()


def results(report: ServerReport) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in report.outcomes:
        found.setdefault(each.result, set()).add(each.rule)
    return found


async def test_streamable_http() -> None:
    async with served("http://127.0.0.1:0/mcp") as url:
        with trio.fail_after(120):
            report = await inspect_server(url, call=True, in_flight=4)
    assert report.findings == ()
    assert [each.era for each in report.eras] == ["modern", "legacy"]
    followed = results(report)["followed"]
    assert {"foreign-origin", "ended-session", "name-header", "structured-content", "media-types"} <= followed
    assert "not checked" not in results(report)
    assert {each.in_flight for each in report.eras[0].latency} == {1, 4}


@pytest.mark.parametrize("url", ["ws://127.0.0.1:0/ws", "tcp://127.0.0.1:0", "memory:inspected"])
async def test_channels(url: str) -> None:
    async with served(url) as where:
        with trio.fail_after(120):
            report = await inspect_server(where, call=True, in_flight=4)
    assert report.findings == ()
    assert [each.era for each in report.eras] == ["modern", "legacy"]
    assert {"batches", "bad-json", "structured-content"} <= results(report)["followed"]
