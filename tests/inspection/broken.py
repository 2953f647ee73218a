"""One server for each rule, which breaks that rule and no other."""

from __future__ import annotations

from typing import Any

import attrs

from tests.inspection.fake_server import (
    CAPABILITIES,
    DECLARED,
    INFO,
    LEGACY,
    MODERN,
    VERSION,
    Change,
    Exchange,
)

CLIENT_INFO = "io.modelcontextprotocol/clientInfo"


@attrs.frozen
class Broken:
    """A way to break a rule, and where it shows."""

    change: Change
    binding: str = "stream"
    eras: tuple[str, ...] = ("modern", "legacy")
    streams: bool = True
    token: str | None = None


def _succeeds(method: str, **result: Any) -> Change:
    """The server gives a result where it should refuse."""

    def change(exchange: Exchange) -> None:
        if exchange.method == method and exchange.replies and "error" in exchange.reply:
            exchange.succeed(**result)
            exchange.status = 200

    return change


def _where(era: str, method: str, change: Change) -> Change:
    """The change for results of one method in one era."""

    def chosen(exchange: Exchange) -> None:
        if (
            exchange.method == method
            and exchange.is_modern is (era == "modern")
            and exchange.result is not None
        ):
            change(exchange)

    return chosen


def _result(era: str, method: str, **members: Any) -> Change:
    """Other members of a result; `None` leaves one out."""

    def change(exchange: Exchange) -> None:
        result = exchange.result
        assert result is not None
        for name, value in members.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = value

    return _where(era, method, change)


def _code(method: str, code: int, instead_of: int | None = None) -> Change:
    """Another code where a method is refused."""

    def change(exchange: Exchange) -> None:
        if exchange.method == method and exchange.replies and "error" in exchange.reply:
            error = exchange.reply["error"]
            error["code"] = code if instead_of in (None, error["code"]) else error["code"]

    return change


def _echoed_version(exchange: Exchange) -> None:
    if exchange.method == "initialize":
        exchange.succeed(
            protocolVersion=exchange.params["protocolVersion"], capabilities=DECLARED, serverInfo=INFO
        )


def _newest_for_newest(exchange: Exchange) -> None:
    """Names the newest but one for all, and the newest for it."""
    if exchange.method == "initialize":
        other = LEGACY[-2] if exchange.params["protocolVersion"] != LEGACY[-2] else LEGACY[-1]
        exchange.succeed(protocolVersion=other, capabilities=DECLARED, serverInfo=INFO)


def _string_ids(exchange: Exchange) -> None:
    for reply in exchange.replies:
        if isinstance(reply, dict) and isinstance(reply.get("id"), str):
            reply["id"] = reply["id"].upper()


def _no_contents(exchange: Exchange) -> None:
    if exchange.method == "resources/read" and exchange.is_modern and exchange.meta.get(VERSION) == MODERN:
        exchange.succeed(contents=[], ttlMs=0, cacheScope="public")


def _no_such_method(exchange: Exchange) -> None:
    if "no-such-method" in exchange.method:
        exchange.succeed()
        exchange.status = 200


def _answers_notifications(exchange: Exchange) -> None:
    if exchange.method == "notifications/cancelled":
        exchange.replies = [{"jsonrpc": "2.0", "id": "nobody", "result": {}}]


def _no_batches(exchange: Exchange) -> None:
    if exchange.data.startswith(b"["):
        exchange.replies = []


def _without_needed(key: str) -> Change:
    def change(exchange: Exchange) -> None:
        if exchange.method == "server/discover" and key not in exchange.meta:
            exchange.succeed(supportedVersions=["2026-07-28"], capabilities={}, ttlMs=0, cacheScope="public")
            exchange.status = 200

    return change


def _no_nameless_clients(exchange: Exchange) -> None:
    discovered = exchange.is_modern and exchange.method == "server/discover" and exchange.result is not None
    if discovered and CLIENT_INFO not in exchange.meta:
        exchange.fail(-32602, 400)


def _without_versions(exchange: Exchange) -> None:
    if exchange.method == "initialize":
        exchange.reply["error"].pop("data", None)


def _late_acknowledgment(exchange: Exchange) -> None:
    if exchange.method == "subscriptions/listen":
        meta = exchange.replies[0]["params"]["_meta"]
        early = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}}
        exchange.replies.insert(0, early)


def _list_fails(era: str) -> Change:
    return _where(era, "prompts/list", lambda exchange: exchange.fail(-32603))


def _undeclared(exchange: Exchange) -> None:
    result = exchange.result
    if exchange.method in ("initialize", "server/discover") and result is not None:
        result["capabilities"] = {"prompts": {}, "resources": {}}


def _items(method: str, member: str, items: list[Any]) -> Change:
    """Other items in a list, on its only page."""

    def change(exchange: Exchange) -> None:
        if exchange.method == method and "cursor" not in exchange.params and exchange.result is not None:
            exchange.result[member] = items
            exchange.result.pop("nextCursor", None)

    return change


def _tools(*tools: dict[str, Any]) -> Change:
    return _items("tools/list", "tools", list(tools))


class _ChangingOrder:
    """The same tools in another order every second time."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "tools/list" and exchange.is_modern and exchange.result is not None:
            self.times += 1
            names = ["one", "two"] if self.times % 2 else ["two", "one"]
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            exchange.result["tools"] = tools
            exchange.result.pop("nextCursor", None)


def _second_page_is_public(exchange: Exchange) -> None:
    if exchange.method == "tools/list" and exchange.params.get("cursor") == "1" and exchange.is_modern:
        assert exchange.result is not None
        exchange.result["cacheScope"] = "public"


def _extensions(exchange: Exchange) -> None:
    if exchange.method == "server/discover" and exchange.result is not None:
        exchange.result["capabilities"] = {**exchange.result["capabilities"], "extensions": {"tasks": {}}}


def _strangers_get_403(exchange: Exchange) -> None:
    if exchange.verb != "metadata" and "authorization" not in (exchange.headers or {}):
        exchange.status = 403


def _any_origin(exchange: Exchange) -> None:
    if exchange.headers is not None and "origin" in exchange.headers:
        exchange.status = 200
        discovered = {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {},
            "ttlMs": 0,
            "cacheScope": "public",
        }
        exchange.succeed(**(discovered if exchange.is_modern else {}))


def _blank_session(exchange: Exchange) -> None:
    if "mcp-session-id" in exchange.answered:
        exchange.answered["mcp-session-id"] += " "


def _legacy_status(status: int, becomes: int, header: str, present: bool) -> Change:
    def change(exchange: Exchange) -> None:
        headers = exchange.headers or {}
        if exchange.method == "ping" and exchange.status == status and (header in headers) is present:
            exchange.status = becomes

    return change


def _wrong_version_served(exchange: Exchange) -> None:
    if (exchange.headers or {}).get("mcp-protocol-version") == "1999-12-31" and exchange.method == "ping":
        exchange.succeed()
        exchange.status = 200
        exchange.answered["content-type"] = "application/json"


def _verb(verb: str, status: int) -> Change:
    def change(exchange: Exchange) -> None:
        if exchange.verb == verb:
            exchange.status, exchange.streamed = status, False

    return change


def _served_despite(*headers: str) -> Change:
    """A request whose headers are wrong is served as if they were not."""

    def change(exchange: Exchange) -> None:
        if not exchange.replies or (exchange.reply.get("error") or {}).get("code") != -32020:
            return
        own = exchange.headers or {}
        version = own.get("mcp-protocol-version")
        wrong = {
            "mcp-protocol-version": version is not None and version != exchange.meta.get(VERSION),
            "no version": version is None,
            "mcp-method": version is not None and own.get("mcp-method") != exchange.method,
            "mcp-name": exchange.method == "prompts/get" and own.get("mcp-method") == exchange.method,
        }
        if any(wrong[each] for each in headers):
            exchange.fail(-32602, 200)

    return change


def _metadata(exchange: Exchange) -> None:
    if exchange.verb == "metadata":
        exchange.body = b'{"resource": "http://127.0.0.1:9/mcp", "authorization_servers": []}'


def _wrong_token_is_403(exchange: Exchange) -> None:
    if "no-such-token" in (exchange.headers or {}).get("authorization", ""):
        exchange.status = 403


def _bad_json(exchange: Exchange) -> None:
    if exchange.message is None and exchange.verb == "POST" and exchange.replies:
        exchange.reply["error"]["code"] = -32600


def _each_reply(change: Any) -> Change:
    def all_of_them(exchange: Exchange) -> None:
        for reply in exchange.replies:
            if isinstance(reply, dict):
                change(reply)

    return all_of_them


def _old_version(reply: dict[str, Any]) -> None:
    reply["jsonrpc"] = "1.0"


def _text_codes(reply: dict[str, Any]) -> None:
    if "error" in reply:
        reply["error"].pop("message")


def _null_id(exchange: Exchange) -> None:
    if exchange.message is None and exchange.verb == "POST" and exchange.replies:
        exchange.reply["id"] = None


def _before(data: Any) -> Change:
    def change(exchange: Exchange) -> None:
        if exchange.method == "tools/list" and exchange.result is not None:
            exchange.replies.insert(0, data)

    return change


def _own_code(exchange: Exchange) -> None:
    if exchange.method == "completion/complete" or (exchange.method == "prompts/get" and exchange.is_modern):
        exchange.reply["error"]["code"] = -32050


def _plain_text(exchange: Exchange) -> None:
    if exchange.method == "ping" and exchange.result is not None:
        exchange.answered["content-type"] = "text/plain"


def _open_stream(exchange: Exchange) -> None:
    if exchange.method == "tools/list" and exchange.result is not None:
        exchange.ended = False


def _buffered(exchange: Exchange) -> None:
    exchange.answered.pop("x-accel-buffering", None)


def _session_id(exchange: Exchange) -> None:
    if exchange.method == "tools/list":
        exchange.answered["mcp-session-id"] = "s"


QUESTION = {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
LOG = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hello"}}
OBJECT = {"type": "object"}

BROKEN: dict[str, Broken] = {
    "initialize-result": Broken(_result("legacy", "initialize", serverInfo={"name": "x"})),
    "same-version": Broken(_newest_for_newest, eras=("legacy",)),
    "unknown-version": Broken(_echoed_version, eras=("legacy",)),
    "empty-ping": Broken(_result("legacy", "ping", resultType="complete")),
    "discover": Broken(_result("modern", "server/discover", supportedVersions=["2026-07-28", 7])),
    "unsupported-version": Broken(_code("server/discover", -32600, instead_of=-32022), eras=("modern",)),
    "required-capabilities": Broken(_without_needed(CAPABILITIES)),
    "required-version": Broken(_without_needed(VERSION), "http"),
    "optional-client-info": Broken(_no_nameless_clients),
    "refusal-names-versions": Broken(_without_versions, eras=("modern",)),
    "same-id": Broken(_string_ids),
    "unknown-method": Broken(_no_such_method),
    "no-answer-to-notifications": Broken(_answers_notifications),
    "batches": Broken(_no_batches),
    "unknown-resource": Broken(
        _succeeds("resources/read", contents=[], ttlMs=0, cacheScope="public"), eras=("modern",)
    ),
    "unknown-resource-in-session": Broken(_code("resources/read", -32602), eras=("legacy",)),
    "unknown-prompt": Broken(_code("prompts/get", 0), eras=("legacy",)),
    "unknown-cursor": Broken(_code("prompts/list", 0)),
    "unknown-log-level": Broken(_code("logging/setLevel", -32603)),
    "subscription-acknowledged": Broken(_late_acknowledgment, "http"),
    "declared-lists": Broken(_list_fails("modern"), eras=("modern",)),
    "declared-lists-in-session": Broken(_list_fails("legacy"), eras=("legacy",)),
    "undeclared-lists": Broken(_undeclared),
    "tools": Broken(_tools({"name": "one", "inputSchema": None})),
    "tool-schemas": Broken(_tools({"name": "one", "inputSchema": {**OBJECT, "required": "all"}})),
    "tool-names": Broken(_tools({"name": "one of many", "inputSchema": OBJECT})),
    "tool-order": Broken(_ChangingOrder()),
    "header-annotations": Broken(
        _tools(
            {
                "name": "one",
                "inputSchema": {**OBJECT, "properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
            }
        )
    ),
    "resources": Broken(_items("resources/list", "resources", [{"uri": "no uri", "name": "one"}])),
    "prompts": Broken(_items("prompts/list", "prompts", [{"title": "one"}])),
    "one-cache-scope": Broken(_second_page_is_public),
    "extension-ids": Broken(_extensions),
    "unknown-tool": Broken(_succeeds("tools/call", content=[])),
    "content": Broken(_result("modern", "tools/call", content=[{"type": "hologram"}])),
    "structured-content": Broken(_result("modern", "tools/call", structuredContent={"n": "one"})),
    "foreign-origin": Broken(_any_origin, "http"),
    "visible-session-id": Broken(_blank_session, "http"),
    "session-needed": Broken(_legacy_status(400, 403, "mcp-session-id", False), "http"),
    "ended-session": Broken(_legacy_status(404, 400, "mcp-session-id", True), "http"),
    "wrong-version-header": Broken(_wrong_version_served, "http"),
    "get-in-session": Broken(_verb("GET", 404), "http"),
    "get-without-session": Broken(_verb("GET", 404), "http", eras=("modern",)),
    "version-header": Broken(_served_despite("mcp-protocol-version"), "http"),
    "missing-version-header": Broken(_served_despite("no version"), "http", eras=("modern",)),
    "method-header": Broken(_served_despite("mcp-method"), "http"),
    "name-header": Broken(_served_despite("mcp-name"), "http"),
    "refused-by-401": Broken(_strangers_get_403, "http", token="t"),
    "wrong-token": Broken(_wrong_token_is_403, "http", token="t"),
    "resource-metadata": Broken(_metadata, "http", token="t"),
    "bad-json": Broken(_bad_json),
    "messages": Broken(_each_reply(_old_version)),
    "errors": Broken(_each_reply(_text_codes)),
    "null-ids": Broken(_null_id, "http"),
    "only-messages": Broken(_before(b"listening on port 8000")),
    "no-requests": Broken(_where("modern", "tools/list", lambda each: each.replies.insert(0, QUESTION))),
    "result-type": Broken(_result("modern", "prompts/list", resultType=None)),
    "server-info": Broken(_result("modern", "prompts/list", _meta=None)),
    "caching-hints": Broken(_result("modern", "prompts/list", ttlMs=-1)),
    "foreign-codes": Broken(_own_code, eras=("modern",)),
    "unwanted-logs": Broken(_where("modern", "tools/list", lambda each: each.replies.insert(0, LOG))),
    "media-types": Broken(_plain_text, "http", streams=False),
    "streams-end": Broken(_open_stream, "http"),
    "unbuffered-streams": Broken(_buffered, "http", eras=("modern",)),
    "no-session-ids": Broken(_session_id, "http", eras=("modern",)),
}
