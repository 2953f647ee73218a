"""A refusal of a request: what was sent, what came back, and what the challenges in it demand."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mcp_actors.auth.challenges import first_parameter, parse_challenges

__all__ = ["Answered", "Demand", "SentRequest"]


@attrs.frozen
class SentRequest:
    """A request that was sent.

    Args:
        method: Its HTTP method.
        url: Its URL.
        operation: The operation that it carries, such as ``"tools/call:name"``, or nothing.
        token: The access token that it carried, if any.
        attempt: How often it was sent before.
    """

    method: str
    url: str
    operation: str = ""
    token: str | None = attrs.field(default=None, repr=False)
    attempt: int = 0


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
