"""The errors that clients of a gateway are sent for what went wrong between the gateway and an upstream.

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
from mcp_actors.logging import log
from mcp_actors.printable import printable, without_paths

__all__ = ["failure_for_client"]

# Characters of an exception's text in the log.
LONGEST_TEXT = 300


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
    """Returns the error of which the caller's revision has a code of its own; revisions with sessions have none."""
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
