"""The answer of a server to one message of ours, as a value: nothing of it is trusted, and all is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mcp_actors._wire.codec import decode_text
from mcp_actors.errors import MalformedMessage
from mcp_actors.printable import printable

__all__ = ["Malformed", "ServerAnswer", "is_id", "read_messages", "shown"]

# Characters of a peer's text that a report shows.
SHOWN = 120


def shown(value: object) -> str:
    """Returns a value of a peer for a report: cut, and without characters that do something to a terminal."""
    text = value if isinstance(value, str) else repr(value)
    cut = printable(text, SHOWN + 1)
    quoted = cut if len(cut) <= SHOWN else f"{cut[:SHOWN]}…"
    return f'"{quoted}"' if isinstance(value, str) else quoted


def is_id(value: object) -> bool:
    """Whether a value can be the id of a request: a string or an integer, and never null."""
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


@attrs.frozen
class Malformed:
    """A frame that is no JSON-RPC message, with the reason and its beginning."""

    reason: str
    start: str


def read_messages(data: bytes) -> list[dict[str, Any] | Malformed]:
    """Decodes one frame, or the entries of a batch. Never raises."""
    start = shown(data[:200].decode("utf-8", "replace"))
    try:
        value = decode_text(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return [Malformed(f"invalid UTF-8 at byte {error.start}", start)]
    except MalformedMessage as error:
        return [Malformed(str(error), start)]
    entries: Iterable[Any] = value if isinstance(value, list) else (value,)
    return [
        each if isinstance(each, dict) else Malformed("JSON that is no object", start) for each in entries
    ]


@attrs.frozen(kw_only=True)
class ServerAnswer:
    """All that came until a request was answered, or was no longer waited for."""

    era: str
    method: str
    id: int | str | None = None
    """The id of our request; ``None`` for what is none."""
    messages: tuple[dict[str, Any], ...] = ()
    """Every message that came, the reply included."""
    malformed: tuple[Malformed, ...] = ()
    reply: Mapping[str, Any] | None = None
    """The result or error that has our id, or an error without any id where the binding says whose it is."""
    gone: str | None = None
    """Why there is no reply: a timeout, or the end of the connection."""
    seconds: float = 0.0
    size: int = 0
    """Bytes of the frames that came."""
    status: int | None = None
    """The HTTP status; ``None`` for a binding without."""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    streamed: bool = False
    """Whether the response was a stream of events."""
    ended: bool = True
    """Whether the HTTP response came to its end by itself."""
    asked: Mapping[str, Any] = attrs.field(factory=dict)
    """The ``_meta`` that our request carried."""

    @property
    def result(self) -> dict[str, Any] | None:
        """The result, if there is one and it is an object."""
        found = None if self.reply is None else self.reply.get("result")
        return found if isinstance(found, dict) else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error, if there is one and it is an object."""
        found = None if self.reply is None else self.reply.get("error")
        return found if isinstance(found, dict) else None

    @property
    def code(self) -> int | None:
        """The code of the error, if it is an integer."""
        found = (self.error or {}).get("code")
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @property
    def media_type(self) -> str:
        """The media type of the HTTP response, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def summary(self) -> str:
        """Returns in a few words what was answered, for findings."""
        status = "" if self.status is None else f"HTTP {self.status}"
        if self.error is not None:
            said = f"error {shown(self.error.get('code'))} {shown(self.error.get('message'))}"
        elif self.result is not None:
            said = "a result"
        elif self.reply is not None:
            said = "a response that is neither a result nor an error"
        elif self.status is not None and self.gone is None:
            said = f"no JSON-RPC response ({self.media_type or 'no media type'})"
        else:
            came = f"; what came is no message: {self.malformed[0].reason}" if self.malformed else ""
            said = f"no answer ({self.gone or 'nothing came'}{came})"
        return f"{status} with {said}" if status else said
