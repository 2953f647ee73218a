"""The scopes that are asked for, and how often more are (MCP 2026-07-28, Authorization, Scope Selection Strategy)."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["StepUps", "read_scopes", "scopes_to_ask_for", "union"]

# Scopes of one request: an authorization request is a URL, and that has bounds.
MAX_SCOPES = 200
# Characters of one scope.
MAX_SCOPE = 256
# Authorizations with more scopes for one operation, and refusals after them for all operations of a server together.
MAX_STEP_UPS = 2
# Operations whose step-ups are counted.
MAX_OPERATIONS = 1024

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749 section 3.3
_OFFLINE = "offline_access"


def read_scopes(text: object) -> tuple[str, ...]:
    """Returns the scopes of a text that came from the network, each once, in their order; nonsense is left out."""
    return union(text.split()) if isinstance(text, str) else ()


def union(*parts: Iterable[str]) -> tuple[str, ...]:
    """Returns the scopes of all parts, each once, in their order."""
    every = dict.fromkeys(scope for part in parts for scope in part)
    return tuple([each for each in every if len(each) <= MAX_SCOPE and _SCOPE.fullmatch(each)][:MAX_SCOPES])


def scopes_to_ask_for(
    challenge: str | None,
    resource: Iterable[str],
    configured: Iterable[str],
    *,
    before: Iterable[str] = (),
    authorization_server: Iterable[str] | None = None,
) -> tuple[str, ...]:
    """Returns the scopes of the next authorization; none of them means that the parameter is left out.

    The challenge is authoritative, and without a scope in it the metadata of the resource is.

    Args:
        challenge: The ``scope`` of the challenge.
        resource: The scopes in the metadata of the resource.
        configured: The scopes that the user asks for beyond those.
        before: The scopes that were asked for at this resource before.
        authorization_server: The scopes that the authorization server lists, if a refresh token is wanted: with
            ``offline_access`` among them it is asked for too (SEP-2207).
    """
    named = tuple(resource) if challenge is None else read_scopes(challenge)
    found = union(before, named, configured)
    if found and authorization_server is not None and _OFFLINE in authorization_server:
        found = union(found, (_OFFLINE,))
    return found


class StepUps:
    """Counts the authorizations with more scopes of one server, for as long as the program runs."""

    def __init__(self) -> None:
        # By operation: the step-ups since it last succeeded.
        self._counts: dict[str, int] = {}
        # Operations that were refused in spite of a step-up, since one succeeded.
        self._in_vain = 0

    def begin(self, operation: str) -> bool:
        """Counts a refusal for a lack of scopes, and returns whether one more authorization is allowed."""
        count = self._counts.get(operation, 0)
        if count:
            self._in_vain += 1
        if count >= MAX_STEP_UPS or self._in_vain >= MAX_STEP_UPS:
            return False
        if len(self._counts) >= MAX_OPERATIONS:
            self._counts.clear()
        self._counts[operation] = count + 1
        return True

    def succeeded(self, operation: str) -> None:
        """Forgets what an operation that has succeeded had needed."""
        if self._counts.pop(operation, None) is not None:
            self._in_vain = 0
