"""The names and attributes of spans and of durations, by OpenTelemetry's semantic conventions for MCP."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from mcp_actors.abc.telemetry import CallEnding, ObservedRequest
from mcp_actors.telemetry.labels import TARGETED, Names, network_of

__all__ = ["Described", "Descriptions", "error_type", "span_attributes"]

# Characters of a URI in an attribute.
_LONGEST = 1024


class Described:
    """The name of a span, and the attributes that all spans of such requests have: one for each kind of request."""

    __slots__ = ("durations", "fixed", "name")

    def __init__(self, method: str, label: str | None, version: str | None, transport: str | None) -> None:
        self.name = method if label is None else f"{method} {label}"
        self.fixed: dict[str, Any] = {"mcp.method.name": method}
        if label is not None and method in TARGETED:
            self.fixed[TARGETED[method]] = label
        if method == "tools/call":
            self.fixed["gen_ai.operation.name"] = "execute_tool"
        if version is not None:
            self.fixed["mcp.protocol.version"] = version
        if transport is not None:
            self.fixed["network.transport"] = transport
        # By the type of the error: the attributes of a duration are the same objects for each call.
        self.durations: dict[str | None, dict[str, Any]] = {None: self.fixed}

    def duration(self, error: str | None, code: int | None) -> dict[str, Any]:
        """Returns the attributes of the duration of a call that ended so."""
        found = self.durations.get(error)
        if found is None:
            found = {**self.fixed, "error.type": error}
            if code is not None:
                found["rpc.response.status_code"] = str(code)
            # Codes of errors are the program's own, or a peer's: their number is bounded.
            if len(self.durations) < 32:
                self.durations[error] = found
            else:
                return {**self.fixed, "error.type": "_OTHER"}
        return found


def span_attributes(request: ObservedRequest, described: Described, label: str | None) -> dict[str, Any]:
    """Returns the attributes of the span of one request."""
    attributes = dict(described.fixed)
    if request.id is not None:
        attributes["jsonrpc.request.id"] = str(request.id)
    target = request.target
    if target is not None and target != label:
        name = TARGETED.get(request.method, "mcp.resource.uri")
        attributes[name] = target[:_LONGEST]
    return attributes


def add_address(attributes: dict[str, Any], side: str, peer: str) -> None:
    """Adds the address and the port of the other end, if it has any: ``client.address`` or ``server.address``."""
    address, port = _address_of(peer)
    if address:
        attributes[f"{side}.address"] = address
    if port is not None:
        attributes[f"{side}.port"] = port


@lru_cache(maxsize=2048)
def _address_of(peer: str) -> tuple[str, int | None]:
    """Returns the host, or the path of a Unix socket, and the port; of a URL the rest is left out."""
    if network_of(peer) == "pipe":
        return "", None
    if "://" not in peer:
        if peer.startswith("unix:"):
            return peer.removeprefix("unix:")[:_LONGEST], None
        peer = f"//{peer}"
    try:
        place = urlsplit(peer)
        if place.scheme.endswith("unix"):
            return unquote(place.netloc or place.path)[:_LONGEST], None
        return (place.hostname or "")[:_LONGEST], place.port
    except ValueError:
        return "", None


def error_type(ending: CallEnding) -> str | None:
    """Returns ``error.type`` for an ending, ``None`` for one that is no error."""
    kind = ending.kind
    if kind in ("answered", "input_required"):
        return None
    if kind == "error":
        return "_OTHER" if ending.code is None else str(ending.code)
    return kind


class Descriptions:
    """The descriptions of all kinds of requests, made when the first one comes. Their number is bounded."""

    def __init__(self, most: int = 2048) -> None:
        self._names = Names()
        self._most = most
        self._known: dict[tuple[str, str | None, str | None, str], Described] = {}

    def of(self, request: ObservedRequest, outbound: bool) -> tuple[Described, str | None]:
        """Returns the description of a request, and the label of its target."""
        label = self._names.label_of(request, outbound)
        key = request.method, label, request.version, network_of(request.peer)
        described = self._known.get(key)
        if described is None:
            if len(self._known) >= self._most:
                self._known.clear()
            described = self._known[key] = Described(*key)
        return described, label
