"""Makes a message of a frame that has arrived, or says what came instead."""

from __future__ import annotations

from mcp_actors._wire.codec import decode
from mcp_actors._wire.messages import JsonRpcError, JsonRpcMessage, JsonRpcNotification
from mcp_actors.abc import Frame, NoAnswer, Waiting
from mcp_actors.errors import MalformedMessage

__all__ = ["Received", "received"]

# Characters that are told of what came instead of a message: a line for a person.
BEGINNING = 200

Received = JsonRpcMessage | NoAnswer | Waiting | MalformedMessage | list[JsonRpcMessage | MalformedMessage]


def received(frame: Frame) -> Received:
    """Returns the message in a frame; what is none is returned as a `MalformedMessage`."""
    try:
        return decode(frame.data) if frame.about is None else _about(frame)
    except MalformedMessage as error:
        if isinstance(frame, Waiting):
            return frame
        error.beginning = _beginning(frame.data)
        return error


def _beginning(data: bytes) -> str:
    text = data[: 4 * BEGINNING].decode("utf-8", "replace")
    return text if len(text) <= BEGINNING and len(data) <= 4 * BEGINNING else f"{text[:BEGINNING]} …"


def _about(frame: Frame) -> Received:
    """A binding knows which request of ours this is about, even when the message itself does not say."""
    if isinstance(frame, NoAnswer):
        return frame
    message = decode(frame.data)
    if isinstance(message, JsonRpcError) and message.id is None and frame.about is not None:
        return JsonRpcError(frame.about, message.code, message.message, message.data)
    if isinstance(message, JsonRpcNotification):
        return JsonRpcNotification(message.method, message.params, frame.about)
    return message
