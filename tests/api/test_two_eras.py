"""One server, both eras, one pipe: each message is judged by itself, and ids share one table."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Context, Server
from mcp_actors.testing import raw_client
from tests.messages import CLIENT_INFO, LOG_LEVEL

from .peers import (
    CAPABILITIES,
    EVERY,
    LEGACY,
    MODERN,
    SERVER_INFO,
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
