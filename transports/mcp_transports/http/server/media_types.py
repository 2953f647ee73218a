"""Reads ``Content-Type`` and ``Accept``, as far as this protocol needs them.

RFC 9110 sections 8.3 and 12.5.1. The protocol asks for JSON in every POST, and for both types in its ``Accept`` (MCP
2025-11-25, Transports, Sending Messages to the Server; MCP 2026-07-28, Streamable HTTP, Sending Messages).
"""

from __future__ import annotations

__all__ = ["EVENTS", "JSON", "USUAL_ACCEPT", "accepts_both", "accepts_events", "accepts_json", "is_json"]

JSON = "application/json"
EVENTS = "text/event-stream"
# The ``Accept`` headers that official clients send. Each accepts both types, so a caller may look here first.
USUAL_ACCEPT = frozenset({f"{JSON}, {EVENTS}", f"{EVENTS}, {JSON}"})


def is_json(content_type: str | None) -> bool:
    """Whether a body is declared as JSON.

    A body is always read as UTF-8, so no other charset may be declared. The type is required because a web page of
    another origin cannot send it without a preflight (Fetch standard, CORS-safelisted request-header).
    """
    if content_type is None:
        return False
    kind, *parameters = (part.strip(" \t").lower() for part in content_type.split(";"))
    charsets = (value for name, _, value in (each.partition("=") for each in parameters) if name == "charset")
    return kind == JSON and all(charset.strip('"') in ("utf-8", "utf8") for charset in charsets)


def accepts_both(accept: str | None) -> bool:
    """Whether an answer may be JSON as well as an event stream."""
    return accepts_json(accept) and accepts_events(accept)


def accepts_json(accept: str | None) -> bool:
    """Whether an answer may be JSON."""
    return _accepts(accept, JSON)


def accepts_events(accept: str | None) -> bool:
    """Whether an answer may be an event stream."""
    return _accepts(accept, EVENTS)


def _accepts(accept: str | None, wanted: str) -> bool:
    if accept is None:
        return False
    ranges = {wanted, wanted.partition("/")[0] + "/*", "*/*"}
    for part in accept.lower().split(","):
        kind, *parameters = (each.strip(" \t") for each in part.split(";"))
        if kind in ranges and not any(_is_weight_zero(each) for each in parameters):
            return True
    return False


def _is_weight_zero(parameter: str) -> bool:
    """Whether a parameter is ``q=0``, which says that its media range is not acceptable (RFC 9110 section 12.4.2)."""
    name, _, value = parameter.partition("=")
    return name == "q" and value.startswith("0") and not value.strip("0.")
