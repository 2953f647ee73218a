"""The exceptions of this HTTP server, beside those of the system and of Trio."""

from __future__ import annotations

__all__ = ["ResponseStateError"]


class ResponseStateError(RuntimeError):
    """A method of a `Response` was called that its state does not allow, such as a second answer."""
