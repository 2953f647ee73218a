"""The answers to requests that are not served, exactly as RFC 6750, RFC 9449 and RFC 9728 have them.

A refusal says the code of the RFC and a fixed text: nothing of a token, and nothing about what is wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import attrs
import msgspec

from mcp_actors.auth.challenges import format_challenge
from mcp_actors.auth.server.documents import PROOF_ALGORITHMS_ACCEPTED, metadata_url
from mcp_actors.auth.server.settings import ResourceServer

__all__ = ["Answers", "Denial"]

Header = tuple[str, str]

_TEXTS = {
    "unauthorized": "An access token is needed.",
    "invalid_request": "The Authorization header must have exactly one access token.",
    "invalid_token": "The access token is not valid for this server.",
    "insufficient_scope": "The access token lacks a scope that this needs.",
    "invalid_dpop_proof": "The DPoP proof is not valid for this request.",
    "use_dpop_nonce": "The DPoP proof needs the nonce of this server.",
    "temporarily_unavailable": "The access token cannot be verified at present.",
}
_JSON = ("Content-Type", "application/json")
_NO_STORE = ("Cache-Control", "no-store")


@attrs.frozen
class Denial:
    """The answer to a request that is not served: a whole HTTP response."""

    status: int
    headers: tuple[Header, ...]
    body: bytes

    def __repr__(self) -> str:
        return f"<Denial {self.status}>"


class Answers:
    """The answers of one protected server. Those that are always the same are made once.

    Args:
        settings: The settings of the server.
    """

    def __init__(self, settings: ResourceServer) -> None:
        self._place = {"resource_metadata": metadata_url(settings.resource)}
        self._scope = {"scope": " ".join(settings.scopes)} if settings.scopes else {}
        self._algorithms = {"algs": " ".join(PROOF_ALGORITHMS_ACCEPTED)}
        self._dpop = settings.dpop
        own: Literal["Bearer", "DPoP"] = "DPoP" if settings.dpop == "required" else "Bearer"
        self.no_credentials = self._denial(401, "unauthorized", *self._invitations())
        self.malformed = self._refusal(400, "invalid_request", own)
        self.invalid_token = self._refusal(401, "invalid_token", own)
        self.invalid_bound_token = self._refusal(401, "invalid_token", "DPoP")
        self.invalid_proof = self._refusal(401, "invalid_dpop_proof", "DPoP")

    def insufficient_scope(self, scopes: Iterable[str], *, bound: bool) -> Denial:
        """Returns the answer to a caller who lacks scopes; ``scopes`` are all that it shall ask for."""
        scheme: Literal["Bearer", "DPoP"] = "DPoP" if bound else "Bearer"
        return self._refusal(403, "insufficient_scope", scheme, {"scope": " ".join(scopes)})

    def use_nonce(self, nonce: str) -> Denial:
        """Returns the answer to a proof without a nonce that is good (RFC 9449 section 9)."""
        challenge = format_challenge("DPoP", {"error": "use_dpop_nonce", **self._place})
        return self._denial(401, "use_dpop_nonce", challenge, more=(("DPoP-Nonce", nonce),))

    def unavailable(self, retry_after: float) -> Denial:
        """Returns the answer while nobody can say whether a token is valid.

        It has no challenge: a client that is sent one throws its token away, which may be good.
        """
        after = ("Retry-After", str(max(1, math.ceil(min(retry_after, 3600.0)))))
        return self._denial(503, "temporarily_unavailable", more=(after,))

    def _invitations(self) -> list[str]:
        """The challenges of all schemes that are served, without an error (RFC 6750 section 3.1)."""
        params = {**self._place, **self._scope}
        found = [] if self._dpop == "required" else [format_challenge("Bearer", params)]
        if self._dpop != "no":
            found.append(format_challenge("DPoP", {**self._algorithms, **params}))
        return found

    def _refusal(
        self, status: int, error: str, scheme: Literal["Bearer", "DPoP"], more: dict[str, str] | None = None
    ) -> Denial:
        params = {"error": error, "error_description": _TEXTS[error]}
        if scheme == "DPoP":
            params |= self._algorithms
        params |= self._place
        params |= more if more is not None else self._scope if error == "invalid_token" else {}
        return self._denial(status, error, format_challenge(scheme, params))

    def _denial(self, status: int, error: str, *challenges: str, more: tuple[Header, ...] = ()) -> Denial:
        body = msgspec.json.encode({"error": error, "error_description": _TEXTS[error]})
        lines = tuple(("WWW-Authenticate", each) for each in challenges)
        return Denial(status, (_JSON, _NO_STORE, *lines, *more), body)
