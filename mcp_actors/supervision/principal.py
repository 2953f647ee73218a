"""The caller that a transport has authenticated."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mcp_actors.types.records import ValueRecord, frozen_record

__all__ = ["STREAM_GRACE", "Principal"]

STREAM_GRACE = 60.0
"""Seconds that a stream may outlive the token it was opened with.

A longer time would let withdrawn access go on, and a shorter one would not cover clocks that differ.
"""


def _key(principal: Principal) -> str:
    # A name that begins as the text of three parts does could be made to look like one.
    if principal.issuer is None and principal.client is None and not principal.subject.startswith("["):
        return principal.subject
    # Imported where it is used, which is in servers with access tokens.
    dumps = importlib.import_module("json").dumps
    key: str = dumps([principal.issuer, principal.client, principal.subject], ensure_ascii=False)
    return key


def _frozen(scopes: Iterable[str]) -> frozenset[str]:
    return frozenset(scopes)


@frozen_record(eq=False, repr=False)
class Principal(ValueRecord):
    """The caller that a transport has authenticated: the owner of sessions, streams and states. It holds no token.

    Two are equal if issuer, client and subject are: a new token of the same user and client, with other scopes, is the
    same principal (MCP 2026-07-28, Security Best Practices, State Handle Hijacking).

    Args:
        subject: Who it is, such as the ``sub`` of an access token, or a name that a program's own check gave.
        issuer: The authorization server that vouches for the subject; ``None`` for a program's own check.
        client: The OAuth client that acts for the subject; ``None`` if that is not known.
        scopes: What the caller may do, everything implied by another scope included.
        claims: What else is known, such as the claims of the token.
        expires_at: Seconds since the epoch at which the access ends; ``None`` if that is not known.
    """

    subject: str
    issuer: str | None = None
    client: str | None = None
    scopes: frozenset[str] = attrs.field(default=frozenset(), converter=_frozen, eq=False)
    claims: Mapping[str, Any] = attrs.field(factory=dict, eq=False, repr=False)
    expires_at: float | None = attrs.field(default=None, eq=False, repr=False)
    key: str = attrs.field(init=False, eq=False, repr=False, default=attrs.Factory(_key, takes_self=True))
    """A text that is the same for equal principals only."""

    def seconds_left(self, now: float) -> float:
        """Returns the seconds for which a stream of this caller may stay open.

        They end `STREAM_GRACE` seconds after its access, so that a client that renews its token in time has a minute to
        come back with that. Infinite if it is not known when the access ends.

        Args:
            now: Seconds since the epoch.
        """
        return math.inf if self.expires_at is None else max(self.expires_at - now, 0.0) + STREAM_GRACE

    # Every request of a session is compared with the owner of it, so this is not left to the base.
    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        assert isinstance(other, Principal)
        mine, others = (self.subject, self.issuer, self.client), (other.subject, other.issuer, other.client)
        return mine == others

    def __hash__(self) -> int:
        return hash((self.subject, self.issuer, self.client))

    def __str__(self) -> str:
        return self.subject
