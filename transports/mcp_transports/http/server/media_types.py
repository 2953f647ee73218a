"""What a client sends and takes: the two headers about media types, read as far as this protocol needs them."""

from __future__ import annotations

__all__ = ["is_json", "takes_both", "takes_events", "takes_json"]

_JSON = "application/json"
_EVENTS = "text/event-stream"
# What official clients send: known without looking closer.
_USUAL_CONTENT_TYPE = "application/json"
_USUAL_ACCEPT = frozenset({"application/json, text/event-stream", "text/event-stream, application/json"})


def is_json(content_type: str | None) -> bool:
    """Whether a body is declared as JSON. It is always read as UTF-8, so no other charset may be declared.

    A page of another origin cannot send this type without asking first (CORS), hence it is required.
    """
    if content_type == _USUAL_CONTENT_TYPE:
        return True
    if content_type is None:
        return False
    kind, *parameters = (part.strip(" \t").lower() for part in content_type.split(";"))
    charsets = (value for name, _, value in (each.partition("=") for each in parameters) if name == "charset")
    return kind == _JSON and all(charset.strip('"') in ("utf-8", "utf8") for charset in charsets)


def takes_both(accept: str | None) -> bool:
    """Whether an answer may be JSON or an event stream, as the protocol asks of every POST."""
    return accept in _USUAL_ACCEPT or (takes_json(accept) and takes_events(accept))


def takes_json(accept: str | None) -> bool:
    return _takes(accept, _JSON)


def takes_events(accept: str | None) -> bool:
    return _takes(accept, _EVENTS)


def _takes(accept: str | None, wanted: str) -> bool:
    if accept is None:
        return False
    ranges = {wanted, wanted.partition("/")[0] + "/*", "*/*"}
    for part in accept.lower().split(","):
        kind, *parameters = (each.strip(" \t") for each in part.split(";"))
        if kind in ranges and not any(_is_zero(each) for each in parameters):
            return True
    return False


def _is_zero(parameter: str) -> bool:
    """``q=0`` says that this one is not taken."""
    name, _, value = parameter.partition("=")
    return name == "q" and value.startswith("0") and not value.strip("0.")
