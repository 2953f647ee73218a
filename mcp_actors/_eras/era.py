"""An era as a value: one object per protocol revision, made by `legacy` and `modern`, read by every floor above."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
from cattrs import Converter

from mcp_actors._wire.envelope import RequestId
from mcp_actors.types.capabilities import ClientCapabilities, Implementation

__all__ = ["Era", "Invocation", "Method", "Peer"]


@attrs.frozen
class Method:
    """One request method of one revision. A method absent from an era's table does not exist in it: -32601.

    ``gate`` is the dotted capability that the *receiver* must have declared (``"resources.subscribe"``).
    ``target`` names the member of ``params`` that says what is meant (a tool's name, a resource's uri).
    """

    name: str
    params: type
    result: type
    gate: str | None = None
    target: str | None = None
    cacheable: bool = False
    may_ask: bool = False


@attrs.define(eq=False)
class Peer:
    """What the other side said of itself: once per session (legacy) or in every request (modern)."""

    version: str
    capabilities: ClientCapabilities
    info: Implementation | None = None
    log_level: str | None = None


@attrs.frozen(eq=False)
class Era:
    """One protocol revision.

    ``server_methods`` are the requests that a server answers, ``client_methods`` those that a client answers (in the
    modern era they travel inside input-required results). ``seal`` turns a typed or plain result into the JSON object
    that goes on the wire of this revision.
    """

    name: Literal["legacy", "modern"]
    version: str
    converter: Converter
    server_methods: Mapping[str, Method]
    client_methods: Mapping[str, Method]
    client_notifications: frozenset[str]
    server_notifications: frozenset[str]
    seal: Callable[[Any, Method, Mapping[str, Any]], dict[str, Any]]
    resource_not_found: int
    batches: bool = False

    def structure(self, value: Any, cls: type) -> Any:
        """JSON to the neutral vocabulary; what this revision does not know is kept in ``extra``."""
        return self.converter.structure(value, cls)

    def unstructure(self, value: Any) -> Any:
        """The neutral vocabulary to JSON; what this revision does not know is left out."""
        return self.converter.unstructure(value)


@attrs.define(eq=False)
class Invocation:
    """A request whose envelope, version, metadata and method were found good: ready for a handler.

    ``params`` is the decoded object without ``_meta``; ``progress_token`` is ``None`` when none was given (0 and ""
    are tokens). ``answers`` and ``state`` are what a retry after an input-required result carried.
    """

    era: Era
    method: Method
    params: dict[str, Any]
    meta: dict[str, Any]
    peer: Peer
    id: RequestId
    progress_token: RequestId | None = None
    log_level: str | None = None
    answers: Mapping[str, Any] | None = None
    state: str | None = None
