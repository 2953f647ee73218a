"""The results and errors of upstreams on their way back to the caller.

=====================================  =============================================================================
the revision of the caller             a result of another revision
=====================================  =============================================================================
is 2025-11-25 or 2026-07-28            passes as it came, but for what says who has answered, and for the stamps of
                                       results that only the revisions without sessions have
is an earlier one                      is read into the objects of the protocol, which that revision then writes
=====================================  =============================================================================

==============================================  ====================================================================
the request of the gateway ended with           the client is sent
==============================================  ====================================================================
an error of the server                          that error: its code, message and data
-32602 with ``requiredCapabilities``            `MissingCapability`, which has a code in each revision
an error about the gateway's own messages       `UpstreamMisbehaved`: it is about one hop, and not about the client
no answer in time                               `UpstreamTimeout`
no connection, session or access                `UpstreamUnavailable`
an answer that cannot be understood             `UpstreamMisbehaved`
a request that cannot be sent                   -32602, with the reason
==============================================  ====================================================================

The text of an exception of the gateway may hold a command line, a URL with a password or what a program printed. The
log has it, and clients do not see it.
"""

from __future__ import annotations

from typing import Any

from mcp_actors._client.tool_results import wraps
from mcp_actors._eras.era import RESULT_STAMPS, Era, Method, read_result
from mcp_actors._eras.modern import SERVER_INFO
from mcp_actors.errors import (
    INVALID_PARAMS,
    AuthorizationError,
    CallTimeout,
    ConnectFailed,
    HeaderMismatch,
    LocalProtocolError,
    McpError,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
    SessionExpired,
    TaskCancelled,
    Unavailable,
    UnsupportedVersion,
    UpstreamMisbehaved,
    UpstreamTimeout,
    UpstreamUnavailable,
    invalid_params,
)
from mcp_actors.gateway.forwarded_apps import result_in_gateway
from mcp_actors.gateway.upstream import Lease
from mcp_actors.server import Context
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable, without_paths
from mcp_actors.types import CallToolResult, InputRequiredResult, Tool

__all__ = ["asks_for_input", "failure_for_client", "failure_of", "result_for_caller", "result_of_tool"]

# Characters of an exception's text in the log.
LONGEST_TEXT = 300


def asks_for_input(era: Era, result: dict[str, Any]) -> bool:
    """Whether a result asks the client for something, MCP 2026-07-28, Multi Round-Trip Requests."""
    return era.asks_by_retry and result.get("resultType") == "input_required"


def result_for_caller(ctx: Context[Any], lease: Lease, result: dict[str, Any]) -> Any:
    """Returns a result in a form that the caller's revision can write; ``result`` may be changed for that.

    Raises:
        UpstreamMisbehaved: It is not a result of the request.
    """
    meta = result.get("_meta")
    if meta is not None and not isinstance(meta, dict):
        # Each hop adds members of its own to it: who has answered, what was repaired, the task that it belongs to.
        raise UpstreamMisbehaved(lease.upstream.settings.name, "the _meta of its answer is no object")
    invocation = ctx.call.invocation
    method, own = invocation.method, invocation.era
    if method.name == "tools/call":
        result = result_in_gateway(lease.upstream.names, result)
    answer = result if lease.era is own else _converted(lease, own, method, result)
    return _with_hints(ctx, answer) if method.cacheable else answer


async def result_of_tool(ctx: Context[Any], tool: Tool, answer: Any) -> CallToolResult:
    """Returns what `result_for_caller` returned for a call of a tool as an object, for a function that looks at it.

    An answer that asks the client for input ends the call with it.

    Args:
        ctx: The call.
        tool: The tool as its server has listed it.
        answer: The answer.

    Raises:
        RemoteProtocolError: It is malformed.
    """
    if isinstance(answer, CallToolResult):
        result = answer
    elif isinstance(answer, InputRequiredResult) or asks_for_input(ctx.era, answer):
        # The function runs again from its start when the client has answered.
        await ctx.call.replace(answer)
    else:
        result = read_result(ctx.era, answer, CallToolResult)
    if tool.output_schema is not None and wraps(tool.name, tool.output_schema):
        result.wrapped = isinstance(result.structured_content, dict) and "result" in result.structured_content
    return result


def _converted(lease: Lease, own: Era, method: Method, result: dict[str, Any]) -> Any:
    era, name = lease.era, lease.upstream.settings.name
    meta = result.get("_meta")
    if meta is not None:
        # Who has answered is said by each hop of itself.
        meta.pop(SERVER_INFO, None)
        if not meta:
            del result["_meta"]
    if method.result is dict:
        return result
    if not own.has_all_results or (era.asks_by_retry and result.get("resultType", "complete") != "complete"):
        try:
            return read_result(era, result, method.result)
        except RemoteProtocolError as error:
            raise failure_for_client(name, error) from error
    if not era.asks_by_retry:
        # A server with sessions does not know these members: it cannot ask, nor say what may be reused, by them.
        for stamp in RESULT_STAMPS:
            result.pop(stamp, None)
    return result


def _with_hints(ctx: Context[Any], answer: Any) -> Any:
    """Returns a result whose caching hints are no wider and no longer than those of the upstream.

    One that says nothing must not be reused. What an upstream calls public is private where the gateway knows its
    callers: the gateway decides which of them may read it.
    """
    private = ctx.principal is not None
    if isinstance(answer, dict):
        answer = {"ttlMs": 0, "cacheScope": "private", **answer}
        if private:
            answer["cacheScope"] = "private"
    else:
        answer.ttl_ms = answer.ttl_ms or 0
        answer.cache_scope = "private" if private else answer.cache_scope or "private"
    return answer


def failure_of(lease: Lease, error: McpError) -> RpcError:
    """Returns the error that the caller is sent, and takes note of what a request says of its upstream by failing."""
    upstream = lease.upstream
    if isinstance(error, RpcError):
        upstream.answered(lease.connection)
    elif isinstance(error, CallTimeout):
        upstream.timed_out(lease.connection)
    return failure_for_client(upstream.settings.name, error)


def failure_for_client(upstream: str, error: McpError) -> RpcError:
    """Returns the error that a client is sent in place of ``error``, which is logged where the client does not see it.

    Args:
        upstream: The name of the server.
        error: What a request to it raised.
    """
    if isinstance(error, HeaderMismatch | UnsupportedVersion):
        failure: RpcError = UpstreamMisbehaved(upstream, f"it refused a message with the code {error.code}")
    elif isinstance(error, RpcError):
        return _with_code_of_caller(error)
    elif isinstance(error, CallTimeout):
        return UpstreamTimeout(upstream, error.clock, error.seconds)
    elif isinstance(error, LocalProtocolError):
        return invalid_params(f"the server {upstream!r} cannot be sent this request: {error}")
    elif isinstance(error, Unavailable):
        failure = UpstreamUnavailable(upstream, "it cannot serve the request now", error.retry_after)
    elif isinstance(error, RemoteProtocolError):
        failure = UpstreamMisbehaved(upstream, "its answer cannot be understood")
    else:
        failure = UpstreamUnavailable(upstream, _why_not(error))
    log.warning(
        "a request failed at an upstream",
        upstream=upstream,
        error=printable(without_paths(str(error)), LONGEST_TEXT),
    )
    return failure


def _with_code_of_caller(error: RpcError) -> RpcError:
    """Returns the error that has a code of its own in the caller's revision, if it is about a missing capability."""
    required = error.data.get("requiredCapabilities") if isinstance(error.data, dict) else None
    if error.code != INVALID_PARAMS or not isinstance(required, dict):
        return error
    return RpcError.from_wire(MissingCapability.CODE, error.message, error.data)


def _why_not(error: McpError) -> str:
    if isinstance(error, AuthorizationError):
        return "the gateway has no access to it"
    if isinstance(error, ConnectFailed):
        return "it cannot be connected to"
    if isinstance(error, TaskCancelled):
        return "it has cancelled the task that the call became"
    if isinstance(error, SessionExpired):
        return "it has forgotten the session"
    return "the connection was lost during the call"
