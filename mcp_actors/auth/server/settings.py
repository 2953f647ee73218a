"""The settings of a protected server."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import attrs

from mcp_actors.auth.server.jwt_verifier import JwtVerifier
from mcp_actors.auth.server.scopes import checked_scopes
from mcp_actors.auth.server.verifier import Expected, Verifier
from mcp_actors.auth.url_policy import UrlPolicy

__all__ = ["ResourceServer"]

_RESOURCE = re.compile(r"https?://[^/?#@\s\"\\]+(/[^?#\s\"\\]*)?(\?[^#\s\"\\]*)?", re.ASCII)


def _issuers(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _checked_resource(settings: ResourceServer, _: object, resource: str) -> None:
    if not _RESOURCE.fullmatch(resource) or not resource.isascii():
        raise ValueError(
            f"resource is {resource!r}: give the public URL of this server, with https:// and no fragment"
        )


def _checked_issuers(settings: ResourceServer, _: object, issuers: tuple[str, ...]) -> None:
    if not issuers:
        raise ValueError("issuer is empty: give the URL that the authorization server calls itself")
    wrong = [each for each in issuers if not each.startswith(("https://", "http://"))]
    if wrong:
        raise ValueError(
            f"issuer is {wrong[0]!r}: give the URL that the authorization server calls itself, with https://"
        )


def _checked_dpop(settings: ResourceServer, _: object, dpop: str) -> None:
    if dpop not in ("no", "allowed", "required"):
        raise ValueError(f"dpop is {dpop!r}: give 'no', 'allowed' or 'required'")


@attrs.frozen(kw_only=True, eq=False)
class ResourceServer:
    """A server that is protected by the access tokens of an authorization server (MCP 2026-07-28, Authorization).

    Args:
        resource: The public URL of this server as its clients have it, such as ``https://host/mcp``. It is published
            verbatim, and a token has to have it as its audience. ``Host`` and forwarded headers are never asked.
        issuer: The issuer that the tokens have, verbatim, or several; its metadata is found by this URL.
        scopes: Scopes that every request needs. They are published, and asked for in the challenge.
        verifier: How tokens are verified. By default they are JWTs (needs the extra ``auth``).
        implies: Maps a scope to those that it includes, over any number of steps.
        audiences: More audiences that a token may have in place of ``resource``.
        dpop: Whether tokens that are bound to a key (RFC 9449) are served: ``"no"``, ``"allowed"`` beside others, or
            ``"required"``. The two need the extra ``auth``.
        dpop_nonces: Whether each proof must have a nonce of this server, so that none can be made in advance, and none
            is good after a restart.
        name: The name of this server, for the persons who log in.
        mirror_metadata: Whether the metadata of the first issuer is served here as well, where the clients of MCP
            2025-03-26 look for it.
        leeway: Seconds by which the clocks of the authorization server and of this machine may differ.
        url_policy: Which URLs in the metadata of the issuer may be used.

    Raises:
        ValueError: ``resource`` or ``issuer`` are no such URLs, ``dpop`` is none of the three, or a scope has
            characters that no scope has.
        TypeError: ``scopes`` is one text.
        ImportError: The extra ``auth`` is missing, and the verifier needs it.
    """

    resource: str = attrs.field(validator=_checked_resource)
    issuer: tuple[str, ...] = attrs.field(converter=_issuers, validator=_checked_issuers)
    scopes: tuple[str, ...] = attrs.field(default=(), converter=checked_scopes)
    verifier: Verifier = attrs.field(factory=JwtVerifier)
    implies: Mapping[str, Collection[str]] = attrs.field(factory=dict)
    audiences: tuple[str, ...] = attrs.field(default=(), converter=_issuers)
    dpop: Literal["no", "allowed", "required"] = attrs.field(default="no", validator=_checked_dpop)
    dpop_nonces: bool = False
    name: str | None = None
    mirror_metadata: bool = False
    leeway: float = 30.0
    url_policy: UrlPolicy = attrs.field(factory=UrlPolicy)

    @property
    def expected(self) -> Expected:
        """The issuers and audiences that a token has to have."""
        return Expected(self.issuer, (self.resource, *self.audiences), self.leeway)
