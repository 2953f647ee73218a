"""The documents that a protected server shows to everybody: the metadata of the resource (RFC 9728 section 3)."""

from __future__ import annotations

from collections.abc import Awaitable

from mcp_transports.http.server.authentication import Authentication
from mcp_transports.http.server.error_responses import Refusal, method_not_allowed
from mcp_transports.http.server.http_exchange import HttpExchange
from mcp_transports.http.server.origin_policy import OriginPolicy

__all__ = ["answer_document"]

# An hour: clients fetch them anew when they are refused, which is when something has changed.
_HEADERS = (("Access-Control-Allow-Origin", "*"), ("Cache-Control", "max-age=3600"))
# Some clients send MCP-Protocol-Version with it (MCP 2025-03-26, Discovery Headers), which needs a preflight.
_PREFLIGHT = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "GET, HEAD"),
    ("Access-Control-Allow-Headers", "*"),
)
_METHODS = ("GET", "HEAD", "OPTIONS")


def answer_document(
    exchange: HttpExchange, authentication: Authentication | None, policy: OriginPolicy
) -> bool:
    """Answers a request for a public document, now or later, and returns whether it was one.

    Pages of every origin may read it. The ``Host`` must be one that is served, as for all requests.
    """
    request = exchange.request
    if authentication is None or request.path not in authentication.documents:
        return False
    refusal = policy.check(request.headers.get("host"), None).refusal
    exchange.headers = ()
    if refusal is not None:
        exchange.refuse(Refusal(403, refusal))
    elif request.method == "OPTIONS":
        exchange.answer(204, headers=(("allow", ", ".join(_METHODS)), *_PREFLIGHT))
    elif request.method in _METHODS:
        document = authentication.document(request.path)
        if isinstance(document, bytes):
            exchange.answer(200, document, _HEADERS)
        else:
            exchange.run(lambda: _later(exchange, document))
    else:
        exchange.refuse(method_not_allowed(*_METHODS))
    return True


async def _later(exchange: HttpExchange, waiting: Awaitable[bytes | Refusal]) -> None:
    document = await waiting
    if isinstance(document, Refusal):
        exchange.refuse(document)
    else:
        exchange.answer(200, document, _HEADERS)
