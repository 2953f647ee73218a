"""One server, both eras, one pipe: each message is judged by itself, and ids share one table."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, MissingCapability, Server
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import (
    Annotations,
    AudioContent,
    CallToolResult,
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitResult,
    EmbeddedResource,
    Icon,
    ResourceLink,
    SamplingCapability,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from tests.messages import CLIENT_INFO, LOG_LEVEL, SERVER_INFO, modern_meta
from tests.scripted_peers import (
    CAPABILITIES,
    EVERY,
    LEGACY,
    MODERN,
    VERSION,
    ask,
    begin,
    call,
    meta,
    modern,
    without_meta,
)


def make_server(**options: Any) -> Server:
    server = Server("two", version="3", title="Two eras", instructions="be kind", **options)

    @server.tool
    async def era_of(ctx: Context) -> str:
        """Which era calls."""
        return ctx.peer.version

    @server.tool
    async def wait() -> str:
        """Never ends."""
        await trio.sleep_forever()
        return ""

    return server


async def text(answer: dict[str, Any]) -> str:
    return str(answer["result"]["content"][0]["text"])


async def test_both_eras_interleaved_on_one_pipe() -> None:
    async with raw_client(make_server()) as peer:
        assert await text(await call(peer, MODERN, 1, "era_of")) == MODERN
        await peer.initialize("2025-06-18")
        assert await text(await call(peer, "2025-06-18", 2, "era_of")) == "2025-06-18"
        assert await text(await call(peer, MODERN, "3", "era_of")) == MODERN
        assert await text(await call(peer, "2025-06-18", 4, "era_of")) == "2025-06-18"


@pytest.mark.parametrize("second", EVERY[2:])
@pytest.mark.parametrize("first", EVERY[2:])
async def test_an_id_in_flight_is_taken_in_every_era(first: str, second: str) -> None:
    """Two answers to one id could be told apart by nobody: the second request is refused, the first lives on."""
    async with raw_client(make_server()) as peer:
        session = next((version for version in (first, second) if version != MODERN), MODERN)
        await begin(peer, session)
        form = {version: MODERN if version == MODERN else session for version in (first, second)}
        waiting: dict[str, Any] = {"name": "wait"}
        if form[first] == MODERN:
            waiting["_meta"] = meta()
        await peer.send({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": waiting})
        refused = await call(peer, form[second], 7, "era_of")
        assert refused["error"]["code"] == -32600
        assert await text(
            await call(peer, form[second], "7", "era_of")
        )  # a string is another id than the number
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        await wait_all_tasks_blocked()  # an id is free when its handler has cleaned up
        assert await text(await call(peer, form[second], 7, "era_of"))


async def test_cancelled_finds_a_modern_call_beside_a_session(autojump_clock: MockClock) -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-11-25")
        params = {"name": "wait", "_meta": meta()}
        await peer.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params})
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
        assert await text(await call(peer, MODERN, 6, "era_of")) == MODERN
        with trio.move_on_after(60) as waited:
            await peer.receive()
        assert waited.cancelled_caught  # nothing is ever sent for it


# -- legacy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEGACY)
async def test_the_handshake_of_each_revision(version: str) -> None:
    async with raw_client(make_server()) as peer:
        result = await peer.initialize(version)
        assert result["protocolVersion"] == version
        assert result["instructions"] == "be kind"
        assert result["serverInfo"]["name"] == "two"
        assert ("title" in result["serverInfo"]) == (version >= "2025-06-18")
        assert set(result) == {"protocolVersion", "capabilities", "serverInfo", "instructions"}


async def test_for_an_unknown_version_the_newest_is_offered() -> None:
    for asked in ("2030-01-01", MODERN, "2024-10-07"):
        async with raw_client(make_server()) as peer:
            assert (await peer.initialize(asked))["protocolVersion"] == "2025-11-25"


async def test_before_initialize_only_a_ping_is_answered() -> None:
    async with raw_client(make_server()) as peer:
        assert (await peer.request(1, "ping"))["result"] == {}
        for method in ("tools/list", "tools/call", "logging/setLevel", "acme/unknown", "resources/subscribe"):
            error = (await peer.request(2, method))["error"]
            assert error["code"] == -32600
            assert all(version in error["message"] for version in LEGACY)
        assert (await peer.initialize("2025-06-18"))["protocolVersion"] == "2025-06-18"


async def test_a_second_initialize_is_refused_and_the_session_lives() -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-06-18")
        params = {
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        assert (await peer.request(2, "initialize", params))["error"]["code"] == -32600
        assert await text(await call(peer, "2025-06-18", 3, "era_of")) == "2025-06-18"


@pytest.mark.parametrize("initialized", ["notifications/initialized", "initialized", None])
async def test_requests_are_good_once_initialize_is_answered(initialized: str | None) -> None:
    async with raw_client(make_server()) as peer:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "0"},
        }
        await peer.request(1, "initialize", params)
        if initialized is not None:
            await peer.send({"jsonrpc": "2.0", "method": initialized})
        assert await text(await call(peer, "2025-11-25", 2, "era_of")) == "2025-11-25"
        assert (await peer.request(3, "ping"))["result"] == {}


# -- modern --------------------------------------------------------------------------------------------------------


async def test_discover_says_what_there_is() -> None:
    async with raw_client(make_server(ttl_ms=5, cache_scope="public")) as peer:
        result = (await modern(peer, 1, "server/discover"))["result"]
        assert result["resultType"] == "complete"
        assert result["_meta"][SERVER_INFO] == {"name": "two", "version": "3", "title": "Two eras"}
        assert without_meta(result) == {
            "supportedVersions": list(EVERY),
            "capabilities": {"logging": {}, "tools": {"listChanged": True}},
            "instructions": "be kind",
            "ttlMs": 5,
            "cacheScope": "public",
        }


async def test_modern_refusals_on_the_wire() -> None:
    async with raw_client(make_server()) as peer:
        assert (await peer.request(1, "server/discover"))["error"]["code"] == -32602
        assert (await modern(peer, 2, "initialize", {"protocolVersion": MODERN}))["error"]["code"] == -32601
        assert (await modern(peer, 3, "ping"))["error"]["code"] == -32601
        error = (await modern(peer, 4, "tools/list", **{VERSION: "1999-01-01"}))["error"]
        assert error["code"] == -32022
        assert error["data"] == {"supported": list(EVERY), "requested": "1999-01-01"}
        params = {"_meta": {VERSION: MODERN}}
        error = (await peer.request(5, "tools/list", params))["error"]
        assert error["code"] == -32602
        assert CAPABILITIES in error["message"]


@pytest.mark.parametrize(
    ("versions", "method", "code"),
    [
        (LEGACY, "server/discover", -32022),
        (LEGACY, "tools/list", -32022),
        ((MODERN,), "initialize", -32600),
        ((MODERN,), "ping", -32600),
        ((MODERN,), "tools/list", -32600),
    ],
)
async def test_a_server_of_one_era_names_its_versions_to_the_other(
    versions: tuple[str, ...], method: str, code: int
) -> None:
    async with raw_client(make_server(versions=versions)) as peer:
        answer = await (modern(peer, 1, method) if versions == LEGACY else peer.request(1, method))
        assert answer["error"]["code"] == code
        assert answer["error"]["data"]["supported"] == list(versions)


async def test_supported_versions_are_those_of_discover() -> None:
    versions = ("2025-11-25", MODERN)
    async with raw_client(make_server(versions=versions)) as peer:
        result = (await modern(peer, 1, "server/discover"))["result"]
        assert result["supportedVersions"] == list(versions)
        error = (await modern(peer, 2, "tools/list", **{VERSION: "2024-11-05"}))["error"]
        assert error["data"]["supported"] == list(versions)


def test_versions_that_nobody_knows_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="2025-11-25"):
        Server("s", versions=("2025-11-26",))
    with pytest.raises(ValueError, match="2025-11-25"):
        Server("s", versions=())


async def test_nothing_is_remembered_between_modern_requests() -> None:
    """Capabilities, identity and log level are those of each request."""
    server = Server("s")

    @server.tool
    async def who(ctx: Context) -> str:
        """Who asks."""
        name = ctx.peer.info.name if ctx.peer.info else "nobody"
        return f"{name} {ctx.log_level} {sorted(ctx.peer.raw_capabilities)}"

    async with raw_client(server) as peer:
        rich = {
            CLIENT_INFO: {"name": "anna", "version": "1"},
            LOG_LEVEL: "debug",
        }
        answer = await modern(peer, 1, "tools/call", {"name": "who"}, capabilities={"roots": {}}, **rich)
        assert await text(answer) == "anna debug ['roots']"
        assert await text(await call(peer, MODERN, 2, "who")) == "nobody None []"


# -- stamps --------------------------------------------------------------------------------------------------------

CACHEABLE = ("server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list")


def stamped_server() -> Server:
    server = make_server(ttl_ms=1000, cache_scope="public")
    server.add_resource("x://a", lambda: "text", name="a")
    server.add_resource("x://{b}", lambda b: "text", name="b")
    server.add_prompt(lambda: "text", name="p")
    return server


REQUESTS: dict[str, dict[str, Any]] = {
    "tools/list": {},
    "tools/call": {"name": "era_of"},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "x://a"},
    "prompts/list": {},
    "prompts/get": {"name": "p"},
}


async def test_every_modern_result_is_stamped() -> None:
    async with raw_client(stamped_server()) as peer:
        for method, params in {"server/discover": {}, **REQUESTS}.items():
            result = (await modern(peer, method, method, params))["result"]
            assert result["resultType"] == "complete", method
            assert result["_meta"][SERVER_INFO]["name"] == "two", method
            cacheable = method in (*CACHEABLE, "resources/read")
            assert ("ttlMs" in result, "cacheScope" in result) == (cacheable, cacheable), method
            if cacheable:
                assert (result["ttlMs"], result["cacheScope"]) == (1000, "public")


@pytest.mark.parametrize("version", LEGACY)
async def test_no_legacy_result_is_stamped(version: str) -> None:
    async with raw_client(stamped_server()) as peer:
        await peer.initialize(version)
        for method, params in REQUESTS.items():
            result = (await peer.request(method, method, params))["result"]
            assert not {"resultType", "ttlMs", "cacheScope", "_meta"} & set(result), method
        assert (await peer.request("p", "ping"))["result"] == {}
        assert (await peer.request("l", "logging/setLevel", {"level": "info"}))["result"] == {}
        for method in ("resources/subscribe", "resources/unsubscribe"):
            assert (await peer.request(method, method, {"uri": "x://a"}))["result"] == {}


async def test_what_a_handler_says_of_its_own_result_stays() -> None:
    server = Server("s")

    @server.method("acme/thing")
    async def thing(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"echo": params, "_meta": {"acme/x": 1}}

    async with raw_client(server) as peer:
        result = (await modern(peer, 1, "acme/thing", {"a": 1}))["result"]
        assert without_meta(result) == {"echo": {"a": 1}}
        assert result["_meta"]["acme/x"] == 1
        assert SERVER_INFO in result["_meta"]
        await peer.initialize("2025-11-25")
        result = (await peer.request(2, "acme/thing", {"a": 1}))["result"]
        assert result == {"echo": {"a": 1}, "_meta": {"acme/x": 1}}


async def test_a_relayed_result_of_the_other_era_loses_its_stamps() -> None:
    """Middleware that hands on what it got elsewhere need not know who asks."""
    server = make_server()

    @server.middleware
    async def relay(ctx: Context, call_next: Any) -> Any:
        return {"tools": [], "resultType": "complete", "ttlMs": 5, "cacheScope": "public"}

    async with raw_client(server) as peer:
        await peer.initialize("2025-11-25")
        assert (await peer.request(1, "tools/list"))["result"] == {"tools": []}
        result = (await modern(peer, 2, "tools/list"))["result"]
        assert without_meta(result) == {"tools": [], "ttlMs": 5, "cacheScope": "public"}


# -- malformed -----------------------------------------------------------------------------------------------------


async def test_every_broken_envelope_is_answered_and_the_connection_goes_on(
    autojump_clock: MockClock,
) -> None:
    rows: list[tuple[bytes, int, Any]] = [
        (b"{", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"[" * 2000 + b"]" * 2000, -32700, None),
        (b"[]", -32600, None),
        (b"5", -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":2,"method":5}', -32600, 2),
        (b'{"jsonrpc":"2.0","id":3,"method":"ping","params":[]}', -32602, 3),
    ]
    async with raw_client(make_server()) as peer:
        for data, code, id in rows:
            await peer.send(data)
            answer = await peer.receive()
            assert answer["error"]["code"] == code, data[:60]
            assert answer.get("id", None) == id, data[:60]
            assert ("id" in answer) == (id is not None)  # null is never sent
        assert (await peer.request(9, "ping"))["result"] == {}


async def test_notifications_are_never_answered(autojump_clock: MockClock) -> None:
    async with raw_client(make_server()) as peer:
        await peer.initialize("2025-11-25")
        for params in (
            None,
            {},
            {"requestId": None},
            {"requestId": True},
            {"requestId": 99},
            {"requestId": [1]},
        ):
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            await peer.send(message if params is None else {**message, "params": params})
        for method in ("notifications/unknown", "tools/list", "ping", "notifications/roots/list_changed"):
            await peer.send({"jsonrpc": "2.0", "method": method, "params": {}})
        await peer.send({"jsonrpc": "2.0", "id": 77, "result": {}})  # an answer to nothing
        with trio.move_on_after(60) as waited:
            await peer.receive()
        assert waited.cancelled_caught
        assert (await ask(peer, "2025-11-25", 1, "ping"))["result"] == {}


async def test_ids_keep_their_json_type() -> None:
    async with raw_client(make_server()) as peer:
        for id in (0, -1, 2**53, "", "0", "ü"):
            answer = await modern(peer, id, "tools/list")
            assert type(answer["id"]) is type(id)
            assert answer["id"] == id


# -- Rules that the client and the server both check: what one of them lets out, the other one takes -----

COMPLETE = "notifications/elicitation/complete"


async def accept(question: Any) -> ElicitResult:
    return ElicitResult("accept", {"name": "x"} if hasattr(question, "requested_schema") else None)


async def sample(question: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(question.include_context), model="m")


@pytest.mark.parametrize("url", [None, "memory:ends", "ws://127.0.0.1:0/ws", "http://127.0.0.1:0/mcp"])
async def test_a_program_hears_that_the_person_is_done_at_a_url(url: str | None) -> None:
    server = Server("asks")
    asked: list[str] = []
    heard: list[Any] = []
    told = trio.Event()

    @server.tool
    async def sign_in(ctx: Context) -> str:
        def page(id: str) -> str:
            asked.append(id)
            return "https://example.org/in"

        return (await ctx.elicit_url("Sign in", page)).action

    def on_notification(method: str, params: dict[str, Any]) -> None:
        heard.append((method, params))
        told.set()

    async with trio.open_nursery() as nursery:
        target: Any = server
        if url is not None:
            (target,) = await nursery.start(server.serve, url)
        async with Client(
            target, era="2025-11-25", elicitation=accept, on_notification=on_notification
        ) as client:
            assert (await client.call_tool("sign_in")).text == "accept"
            with trio.fail_after(60):
                # Over HTTP the stream on which it comes is opened beside the first call.
                while not (told.is_set() or server.elicitation_complete(asked[0])):
                    assert (await client.call_tool("sign_in")).text == "accept"
                    asked.pop(0)
                await told.wait()
        nursery.cancel_scope.cancel()
    assert heard == [(COMPLETE, {"elicitationId": asked[0]})]


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("context", [None, {}])
@pytest.mark.parametrize("included", ["none", "thisServer", "allServers"])
async def test_the_context_of_other_servers_is_asked_for_where_it_is_given(
    version: str, context: Any, included: Any
) -> None:
    server = Server("asks")

    @server.tool
    async def draw(ctx: Context) -> str:
        try:
            answer = await ctx.sample("hi", max_tokens=5, include_context=included)
        except MissingCapability:
            return "not declared"
        assert isinstance(answer.content, TextContent)
        return answer.content.text

    capabilities = ClientCapabilities(sampling=SamplingCapability(context=context))
    async with Client(server, era=version, sampling=sample, capabilities=capabilities) as client:
        text = (await client.call_tool("draw")).text
    may = included == "none" or context is not None or version < "2025-11-25"
    assert text == (included if may else "not declared")


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("root", ["file:///a", "FILE:///a", "File://host/a"])
async def test_the_roots_that_a_client_may_have_are_those_that_a_server_takes(
    version: str, root: str
) -> None:
    server = Server("asks")

    @server.tool
    async def look(ctx: Context) -> str:
        return " ".join(each.uri for each in await ctx.list_roots())

    async with Client(server, era=version, roots=[root]) as client:
        assert (await client.call_tool("look")).text == root


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize(
    "capability", [ElicitationCapability(), ElicitationCapability(form={}), ElicitationCapability(url={})]
)
async def test_only_questions_that_are_answered_are_asked(
    version: str, capability: ElicitationCapability
) -> None:
    server = Server("asks")

    @server.tool
    async def form(ctx: Context) -> str:
        fields = {"type": "object", "properties": {"name": {"type": "string"}}}
        try:
            return (await ctx.elicit("Who?", fields)).action
        except MissingCapability:
            return "not asked"

    @server.tool
    async def visit(ctx: Context) -> str:
        try:
            return (await ctx.elicit_url("Sign in", "https://example.org/in")).action
        except MissingCapability:
            return "not asked"

    capabilities = ClientCapabilities(elicitation=capability)
    async with Client(server, era=version, elicitation=accept, capabilities=capabilities) as client:
        answered = ((await client.call_tool("form")).text, (await client.call_tool("visit")).text)
    has_url = capability.url is not None and version >= "2025-11-25"
    has_form = capability.url is None and version >= "2025-06-18"
    assert answered == ("accept" if has_form else "not asked", "accept" if has_url else "not asked")


# -- What a revision does not know never reaches its clients: each kind of message, through a real server ---

ICONS = [Icon("https://example.org/i.png", mime_type="image/png", sizes=["48x48"], theme="dark")]
STAMP = "2026-01-01T00:00:00Z"


@attrs.define
class Point:
    x: int
    y: int


def make_server_stripping() -> Server:
    server = Server(
        "ladder",
        version="1",
        title="Ladder",
        description="Steps",
        website_url="https://example.org",
        icons=ICONS,
    )

    @server.tool(
        title="A point",
        icons=ICONS,
        meta={"acme/x": 1},
        annotations=ToolAnnotations(title="P", read_only_hint=True),
    )
    async def point() -> Point:
        """Where."""
        return Point(1, 2)

    @server.tool
    async def numbers() -> list[int]:
        """Some numbers."""
        return [1, 2]

    @server.tool
    async def media() -> CallToolResult:
        """One block of each kind."""
        return CallToolResult(
            [
                TextContent(
                    "t", annotations=Annotations(priority=0.5, last_modified=STAMP), meta={"acme/x": 1}
                ),
                AudioContent("UklGRg==", "audio/wav"),
                ResourceLink("x://a", "a", title="A", description="the first"),
                EmbeddedResource(TextResourceContents("x://a", "text", meta={"acme/x": 1})),
            ]
        )

    @server.tool
    async def work(ctx: Context) -> str:
        """Reports progress."""
        await ctx.progress(1, 2.5, "half way")
        return "done"

    @server.tool
    async def draw(ctx: Context) -> str:
        """Asks a model."""
        blocks = [TextContent("one"), TextContent("two", meta={"acme/x": 1})]
        params = CreateMessageParams([SamplingMessage("user", blocks)], 10)
        return str((await ctx.ask({"q": params}))["q"].content.text)

    server.add_prompt(greet, title="Greeting", icons=ICONS, meta={"acme/x": 1})
    server.add_resource(
        "x://a",
        lambda: TextResourceContents("x://a", "text", meta={"acme/x": 1}),
        name="a",
        title="A",
        icons=ICONS,
        meta={"acme/x": 1},
        annotations=Annotations(audience=["user"], last_modified=STAMP),
    )
    server.add_resource("x://{b}", lambda b: "text", name="b", title="B", icons=ICONS, meta={"acme/x": 1})

    @server.completion(prompt="greet", argument="name")
    async def names(value: str, settled: dict[str, str]) -> list[str]:
        return [value, *settled.values()]

    return server


async def greet(name: str) -> str:
    """Greets."""
    return name


async def result(peer: ScriptedPeer, version: str, method: str, **params: Any) -> Any:
    return (await ask(peer, version, method, method, params))["result"]


# One member that is younger than the first revision, for each kind of answer: (method, params, where, since).
ANSWERS: list[tuple[str, dict[str, Any], tuple[str | int, ...], str]] = [
    ("tools/list", {}, ("tools", 0, "annotations"), "2025-03-26"),
    ("tools/list", {}, ("tools", 0, "icons"), "2025-11-25"),
    ("tools/list", {}, ("tools", 1, "outputSchema"), "2025-06-18"),
    ("tools/call", {"name": "point"}, ("structuredContent",), "2025-06-18"),
    ("tools/call", {"name": "numbers"}, ("structuredContent",), "2025-06-18"),
    ("tools/call", {"name": "media"}, ("content", 0, "annotations", "lastModified"), "2025-06-18"),
    (
        "tools/call",
        {"name": "media"},
        ("content", 1, "mimeType"),
        "2025-03-26",
    ),  # audio is told in words before
    ("tools/call", {"name": "media"}, ("content", 2, "uri"), "2025-06-18"),  # and so is a link
    ("tools/call", {"name": "media"}, ("content", 3, "resource", "_meta"), "2025-06-18"),
    ("prompts/list", {}, ("prompts", 0, "title"), "2025-06-18"),
    ("prompts/list", {}, ("prompts", 0, "icons"), "2025-11-25"),
    ("resources/list", {}, ("resources", 0, "annotations", "lastModified"), "2025-06-18"),
    ("resources/list", {}, ("resources", 0, "icons"), "2025-11-25"),
    ("resources/templates/list", {}, ("resourceTemplates", 0, "title"), "2025-06-18"),
    ("resources/read", {"uri": "x://a"}, ("contents", 0, "_meta"), "2025-06-18"),
]


@pytest.mark.parametrize("version", EVERY)
class TestEachRevision:
    """A server writes whatever it sends in the revision that its client speaks.

    What each revision knows is the affair of ``eras/test_era.py``.
    """

    async def test_answers(self, version: str) -> None:
        async with raw_client(make_server_stripping()) as peer:
            await begin(peer, version)
            for method, params, (*way, member), first in ANSWERS:
                found = await result(peer, version, method, **params)
                for step in way:
                    found = found[step]
                assert (member in found) == (version >= first), (method, way, member)

    async def test_what_cannot_be_said_is_told_in_words(self, version: str) -> None:
        async with raw_client(make_server_stripping()) as peer:
            await begin(peer, version)
            numbers = (await call(peer, version, 1, "numbers"))["result"]
            assert numbers["content"] == [{"type": "text", "text": "[1,2]"}]
            _, _, link, _ = (await call(peer, version, 2, "media"))["result"]["content"]
            assert "x://a" in (link["uri"] if version >= "2025-06-18" else link["text"])

    async def test_introduction(self, version: str) -> None:
        async with raw_client(make_server_stripping()) as peer:
            if version == MODERN:
                info = (await result(peer, version, "server/discover"))["_meta"][SERVER_INFO]
            else:
                info = (await peer.initialize(version))["serverInfo"]
            assert ("title" in info) == (version >= "2025-06-18")
            assert ("icons" in info) == (version >= "2025-11-25")

    async def test_progress(self, version: str) -> None:
        async with raw_client(make_server_stripping()) as peer:
            await begin(peer, version)
            for token in (0, "", 5, "t"):  # presence counts, not truth
                meta: dict[str, Any] = {"progressToken": token}
                if version == MODERN:
                    meta |= modern_meta()
                params = {"name": "work", "_meta": meta}
                await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                report = (await peer.receive())["params"]
                message = {"message": "half way"} if version >= "2025-03-26" else {}
                assert report == {"progressToken": token, "progress": 1, "total": 2.5, **message}
                assert type(report["progressToken"]) is type(token)
                assert (await peer.receive())["id"] == 1

    async def test_completion_context(self, version: str) -> None:
        async with raw_client(make_server_stripping()) as peer:
            await begin(peer, version)
            params = {
                "ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "name", "value": "a"},
                "context": {"arguments": {"other": "b"}},
            }
            completion = (await result(peer, version, "completion/complete", **params))["completion"]
            assert completion["values"] == ["a", "b"]  # what came is used, whatever the revision

    async def test_sampling_in_the_form_of_the_revision(self, version: str) -> None:
        async with raw_client(make_server_stripping()) as peer:
            answer = {"role": "assistant", "content": {"type": "text", "text": "ok"}, "model": "m"}
            if version == MODERN:
                params = {"name": "draw"}
                first = (await modern(peer, 1, "tools/call", params, capabilities={"sampling": {}}))["result"]
                messages = first["inputRequests"]["q"]["params"]["messages"]
            else:
                await begin(peer, version, {"sampling": {}})
                await peer.send(
                    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "draw"}}
                )
                question = await peer.receive()
                messages = question["params"]["messages"]
                await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
                assert (await peer.receive())["result"]["content"][0]["text"] == "ok"
            if version >= "2025-11-25":
                assert [len(message["content"]) for message in messages] == [2]
            else:  # one block a message
                assert [message["content"]["text"] for message in messages] == ["one", "two"]


async def test_unknown_members_that_arrive_are_no_fault() -> None:
    for version in EVERY:
        async with raw_client(make_server_stripping()) as peer:
            await begin(peer, version)
            params = {"name": "point", "arguments": {}, "acme": {"x": 1}, "task": {"ttl": 5}}
            assert "result" in await ask(peer, version, 1, "tools/call", params)
