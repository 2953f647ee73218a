"""The differences between dispatchers, as a value."""

from __future__ import annotations

import msgspec

__all__ = ["DispatchRules"]


class DispatchRules(msgspec.Struct, frozen=True):
    """The differences between dispatchers of different sides and carriers."""

    answers_malformed: bool
    """Whether broken frames are answered: servers answer, clients count."""
    repeated_ids: bool = False
    """Whether requests in flight may have the same id, since each has an outlet of its own."""
    session: bool = True
    """Whether there is a session: without one nothing is remembered, and the client cannot be sent requests."""
