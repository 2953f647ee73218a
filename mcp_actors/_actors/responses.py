"""Error responses as frames, and how an answer is sent without waiting.

A successful response is made by its call (`mcp_actors._actors.inbound_call`). A refusal is an error response to a
message that cannot be served as it is; bindings with a status of their own, such as HTTP, map it to that.
"""

from __future__ import annotations

from typing import Any

import trio

from mcp_actors._eras.era import InvalidResult, Invocation
from mcp_actors._wire.codec import RequestId, encode_failure
from mcp_actors.abc import Frame, Outlet
from mcp_actors.errors import (
    INTERNAL_ERROR,
    InsufficientScope,
    LocalProtocolError,
    MethodNotFound,
    MissingCapability,
    Overloaded,
    RpcError,
)
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import encodable

__all__ = [
    "InvalidResult",
    "error_frame",
    "failure_frame",
    "post_answer",
    "refusal_frame",
    "too_long",
    "too_long_frame",
]

# Characters of an error's message that are sent. Most of a longer one repeats what the peer sent.
LONGEST_MESSAGE = 2048


_REFUSALS = (MethodNotFound, MissingCapability, Overloaded, InsufficientScope)


def too_long_frame(id: RequestId | None, size: int, longest: int) -> Frame:
    """Returns the error response in place of one of ``size`` bytes that an outlet refused as too long."""
    return error_frame(id, INTERNAL_ERROR, too_long(size, longest))


def too_long(size: int, longest: int) -> str:
    """Returns the message of that error."""
    return f"the answer is too long to be sent: it has {size} bytes, the limit is {longest}"


def failure_frame(invocation: Invocation, error: BaseException) -> Frame:
    """Returns the error response for what a handler raised. Only an `RpcError` reaches the peer with its text."""
    if not isinstance(error, RpcError):
        log.error("handler failed", method=invocation.method.name, id=invocation.id, exc_info=error)
        error = RpcError(INTERNAL_ERROR, "internal error")
    code = invocation.era.error_codes.get(error.code, error.code)
    encode = refusal_frame if isinstance(error, _REFUSALS) else error_frame
    frame = encode(invocation.id, code, error.message, error.data)
    if isinstance(error, InsufficientScope):
        frame.scopes = error.needed
    return frame


def post_answer(frame: Frame, outlet: Outlet) -> None:
    """Sends an answer without waiting, or in its place the error that it is too long to be sent."""
    try:
        try:
            outlet.post(frame)
        except LocalProtocolError:
            outlet.post(too_long_frame(frame.about, len(frame.data), outlet.longest))
    except LocalProtocolError as error:
        # An outlet that takes less than an error without data is useless to any client.
        log.warning("answer not sent", id=frame.about, error=str(error))
    except trio.BrokenResourceError:
        log.debug("answer not sent: the connection is gone", id=frame.about)


def error_frame(id: RequestId | None, code: int, message: str, data: Any = None) -> Frame:
    """Returns an error response, with a long message cut.

    Data that JSON cannot hold is left out, and so is half of a surrogate pair, so that the answer is not lost.
    """
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]}… (cut, it has {len(message)} characters)"
    try:
        encoded = encode_failure(id, code, message, data)
    except (TypeError, ValueError):
        log.warning("error data cannot be encoded", id=id, code=code)
        encoded = encode_failure(id, code, encodable(message))
    return Frame(encoded, id, True)


def refusal_frame(id: RequestId | None, code: int, message: str, data: Any = None) -> Frame:
    """Returns an error response that is marked as a refusal for bindings that map it."""
    frame = error_frame(id, code, message, data)
    frame.refusal = code
    return frame
