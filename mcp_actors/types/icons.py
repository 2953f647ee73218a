"""Icons."""

from __future__ import annotations

from typing import Any

import attrs

from mcp_actors.types.vocabulary import Vocabulary

__all__ = ["Icon"]


@attrs.define(eq=False, repr=False)
class Icon(Vocabulary):
    """An image for a server, tool, prompt or resource. It comes from the peer, so it is untrusted.

    ``src`` is an https or ``data:`` URI, ``sizes`` are like ``"48x48"`` or ``"any"``, ``theme`` is ``"light"`` or
    ``"dark"`` (any text is accepted, so that a wrong icon does not make a list unreadable).
    """

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: str | None = None
    extra: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
