"""The units that cross a channel: encoded messages, with what a binding may need to place them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mcp_actors.errors import McpError

__all__ = ["Frame", "NoAnswer", "RequestId", "Waiting"]

# Of a JSON-RPC request, with its JSON type; null is no id in MCP.
RequestId = int | str


class Frame(msgspec.Struct, gc=False):
    """One encoded JSON-RPC message (or batch) and what a binding may need to place it.

    ``data`` holds no newline. ``metadata`` is what the protocol mirrors outside the body, under the lower-case names of
    HTTP headers; bindings that carry nothing but bodies ignore it. The rest is set on frames that the engine sends:

    - ``about`` is the id of the inbound request that the message belongs to, and ``last`` is true for the message that
      ends that request;
    - ``method`` is the method of a request or notification, and ``request`` the id of a request;
    - ``cancels`` is the id of the request of ours that a ``notifications/cancelled`` takes back;
    - ``refusal`` is the error code of an answer to what could not be served as it stands, for bindings that tell that
      by a status of their own too, and ``scopes`` are those that its caller needs, for bindings with challenges.

    On a frame that a client's channel yields, ``about`` is the request of ours that it answers, where the binding
    knows: an error without an id finds its way by it.
    """

    data: bytes
    about: RequestId | None = None
    last: bool = False
    metadata: Mapping[str, str] | None = None
    method: str | None = None
    request: RequestId | None = None
    cancels: RequestId | None = None
    refusal: int | None = None
    scopes: frozenset[str] | None = None


class NoAnswer(Frame, gc=True):
    """The reason why the request of ours with the id ``about`` gets no answer; a channel yields it among its frames.

    For bindings in which one request can fail while the connection goes on. ``data`` is empty.
    """

    reason: McpError | None = None


class Waiting(Frame):
    """A person is asked, to log in, say, before requests of ours can go on; with ``over``, that has ended somehow.

    A client's channel that has to wait for people yields both, and bounds the wait. In between no clock of our calls
    runs, nor of the handshake: neither the server nor the connection is slow. ``data`` is empty.
    """

    over: bool = False
