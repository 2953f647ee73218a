"""A refusal of a request: what was sent, what came back, and what the challenges in it demand."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mcp_actors.auth.challenges import first_parameter, parse_challenges

__all__ = ["Answered", "Demand", "SentRequest"]


# Tokens that one request is sent with: an old one, a new one, and those of two step-ups and of others meanwhile.
MAX_TOKENS = 6


@attrs.define
class SentRequest:
    """A request that was refused, and all its sendings so far.

    Args:
        method: Its HTTP method.
        url: Its URL.
        operation: The operation that it carries, such as ``"tools/call:name"``, or nothing.
        token: The access token that it carried last, if any.
    """

    method: str
    url: str
    operation: str = ""
    token: str | None = attrs.field(default=None, repr=False)
    former_tokens: int = attrs.field(default=0, init=False)
    """How many times it was sent with another token before, or without any."""
    is_repeated: bool = attrs.field(default=False, init=False)
    """Whether it was sent twice with the last token, as it is for a nonce."""

    def sent_again(self, token: str | None) -> None:
        """Takes note of one more sending, with a token."""
        self.is_repeated = token == self.token
        if not self.is_repeated:
            self.former_tokens += 1
            self.token = token

    @property
    def is_given_up(self) -> bool:
        """Whether it was sent with so many tokens that no other one can be of use."""
        return self.former_tokens >= MAX_TOKENS - 1


@attrs.frozen
class Answered:
    """The answer to a request, as far as authorization is concerned.

    Args:
        status: Its HTTP status.
        challenges: Its ``WWW-Authenticate`` field lines.
        nonce: Its ``DPoP-Nonce``.
    """

    status: int
    challenges: Sequence[str] = ()
    nonce: str | None = attrs.field(default=None, repr=False)


@attrs.frozen
class Demand:
    """The demands of a response: the parameters of its challenges that matter."""

    hint: str | None = None
    scope: str | None = None
    error: str | None = None
    dpop_algorithms: tuple[str, ...] = ()
    is_for_dpop: bool = False
    """Whether it is only satisfied by a token that is bound to a key."""

    @classmethod
    def of(cls, lines: Sequence[str]) -> Demand:
        """Returns the demands of the ``WWW-Authenticate`` field lines of a response."""
        challenges = parse_challenges(lines)
        schemes = {each.scheme for each in challenges}
        algorithms = next((each.params.get("algs", "") for each in challenges if each.scheme == "dpop"), "")
        return cls(
            first_parameter(challenges, "resource_metadata"),
            first_parameter(challenges, "scope"),
            first_parameter(challenges, "error"),
            tuple(algorithms.split()),
            "dpop" in schemes and "bearer" not in schemes,
        )
