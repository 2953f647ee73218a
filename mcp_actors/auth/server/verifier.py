"""The verification of access tokens: the interface, and one for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import attrs

from mcp_actors.auth.effects import Fetch, Fetched, FetchFailed
from mcp_actors.principal import Principal

__all__ = ["Expected", "Fetching", "StaticVerifier", "TokenInvalid", "Verifier", "VerifierUnavailable"]

Fetching = Callable[[Fetch], Awaitable[Fetched | FetchFailed]]
"""A function that makes an HTTP request. Equal requests at one time are one."""


class TokenInvalid(Exception):
    """A token must not be served. The caller is told so, and never why.

    Args:
        reason: A few fixed words for the log of this server, with nothing of the token in them.
        remembered_for: Seconds for which the same token is refused without being verified again.
    """

    def __init__(self, reason: str, remembered_for: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remembered_for = remembered_for


class VerifierUnavailable(Exception):
    """Nobody can say at present whether a token is valid, such as without a connection to the authorization server.

    Args:
        retry_after: Seconds after which the caller may try again.
    """

    def __init__(self, retry_after: float = 5.0) -> None:
        super().__init__("the access token cannot be verified at present")
        self.retry_after = retry_after


@attrs.frozen
class Expected:
    """A token has to have one of these issuers and one of these audiences, character by character.

    ``leeway`` is the number of seconds by which clocks may differ.
    """

    issuers: tuple[str, ...]
    audiences: tuple[str, ...]
    leeway: float


class Verifier(Protocol):
    """Verifies access tokens. One object may be shared by any number of servers."""

    @property
    def remembered_for(self) -> float:
        """Seconds for which a valid token counts as verified, unless it expires before."""

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        """Returns the principal of a token, with its scopes as they were granted.

        A token that is bound to a key (RFC 7800) has it in ``claims["cnf"]["jkt"]`` of the principal: proofs are asked
        for then. Cancelled, nothing is left behind.

        Args:
            token: The token.
            expected: The issuers and audiences that are served.
            fetch: Makes HTTP requests, with the limits of metadata.
            now: Seconds since the epoch.

        Raises:
            TokenInvalid: The token must not be served.
            VerifierUnavailable: The same token may be valid: nobody can say at present.
        """


class StaticVerifier:
    """Knows its tokens from the start, for tests. A `Verifier`.

    Args:
        principals: The principal of each token.

    Raises:
        TypeError: One of them is no `Principal`.
    """

    remembered_for = 0.0

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._principals = dict(principals)
        for each in self._principals.values():
            if not isinstance(each, Principal):
                raise TypeError(
                    f"a token stands for a Principal, such as Principal('ann', scopes=[…]), not {type(each).__name__}"
                )

    def __repr__(self) -> str:
        return f"<StaticVerifier {len(self._principals)} tokens>"

    async def verify(self, token: str, expected: Expected, fetch: Fetching, now: float) -> Principal:
        """Returns the principal of a token. Never waits.

        Raises:
            TokenInvalid: The token is unknown.
        """
        principal = self._principals.get(token)
        if principal is None:
            raise TokenInvalid("unknown token")
        return principal
