"""The messages that tests send by hand, as values: nothing of the engine takes part in making them."""

from __future__ import annotations

from typing import Any

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LEGACY = LEGACY_VERSIONS[-1]
BATCHING = "2025-03-26"
"""The one revision with batches."""
MODERN = "2026-07-28"

PREFIX = "io.modelcontextprotocol/"
VERSION = PREFIX + "protocolVersion"
CAPABILITIES = PREFIX + "clientCapabilities"
CLIENT_INFO = PREFIX + "clientInfo"
SERVER_INFO = PREFIX + "serverInfo"
LOG_LEVEL = PREFIX + "logLevel"
SUBSCRIPTION_ID = PREFIX + "subscriptionId"
TASKS = PREFIX + "tasks"
TASKS_DECLARED = {"extensions": {TASKS: {}}}
"""What a client declares in each stateless request that has nothing else to declare."""

INFO = {"name": "test", "version": "1"}

Message = dict[str, Any]


# -- of either side ----------------------------------------------------------------------------------------------------


def request(id: Any, method: str, params: Any = None) -> Message:
    """A request, with empty ``params`` where none are given."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {} if params is None else params}


def notification(method: str, **params: Any) -> Message:
    """A notification, without ``params`` where none are given."""
    return {"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {})


def result(to: Message | Any, value: Any = None) -> Message:
    """The answer to a request, which is given whole or by its id."""
    id = to["id"] if isinstance(to, dict) else to
    return {"jsonrpc": "2.0", "id": id, "result": {} if value is None else value}


def error(to: Message | Any, code: int, message: str = "no", data: Any = None) -> Message:
    """The refusal of a request, which is given whole or by its id."""
    id = to["id"] if isinstance(to, dict) else to
    details = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": id, "error": details}


def cancelled(id: Any, **more: Any) -> Message:
    return notification("notifications/cancelled", requestId=id, **more)


def progressed(token: Any, progress: float, **more: Any) -> Message:
    return notification("notifications/progress", progressToken=token, progress=progress, **more)


# -- of a client -------------------------------------------------------------------------------------------------------


def initialize_params(version: str = LEGACY, capabilities: Any = None) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": INFO}


def initialize(id: Any = 0, version: str = LEGACY, capabilities: Any = None) -> Message:
    return request(id, "initialize", initialize_params(version, capabilities))


INITIALIZED = notification("notifications/initialized")


def call(id: Any, tool: str, /, *, token: Any = None, **arguments: Any) -> Message:
    """A ``tools/call`` of a session."""
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return request(id, "tools/call", {"name": tool, "arguments": arguments, **meta})


def modern_meta(capabilities: Any = None, version: str = MODERN, **more: Any) -> dict[str, Any]:
    """The ``_meta`` that every request of the stateless revision carries."""
    return {VERSION: version, CAPABILITIES: capabilities or {}, **more}


def modern_request(
    id: Any, method: str, params: Any = None, capabilities: Any = None, version: str = MODERN, **meta: Any
) -> Message:
    """A request of the stateless revision; what else is given goes into ``_meta``."""
    return request(id, method, {**(params or {}), "_meta": modern_meta(capabilities, version, **meta)})


def modern_call(id: Any, tool: str, /, **arguments: Any) -> Message:
    """A ``tools/call`` of the stateless revision."""
    return modern_request(id, "tools/call", {"name": tool, "arguments": arguments})


def accept(**content: Any) -> dict[str, Any]:
    """The answer of a person who filled in a form."""
    return {"action": "accept", "content": content}


# -- of a server -------------------------------------------------------------------------------------------------------

TEXT = {"content": [{"type": "text", "text": "done"}]}
"""The result of a tool."""


def initialize_result(version: str = LEGACY, capabilities: Any = None, **more: Any) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": capabilities or {}, "serverInfo": INFO, **more}


def discover_result(capabilities: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": capabilities or {},
        "ttlMs": 0,
        "cacheScope": "private",
        **more,
    }
