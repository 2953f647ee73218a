"""Access by a token that the program has already."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcp_actors.auth import BearerToken
from mcp_actors.auth.client.authorization import Answered, SentRequest
from mcp_actors.auth.effects import Ask, Steps
from mcp_actors.errors import AuthorizationError, AuthorizationFailed

__all__ = ["BearerAccess"]

# As `BearerToken` has it.
_TOKEN = re.compile(r"[\x21-\x7e]+")


class BearerAccess:
    """The state of a `BearerToken` at one server, in the shape of `mcp_actors.auth.client.authorization.Authorization`.

    Args:
        settings: The token, or the function that returns it.
        server: The server's URL, as it may be shown.
    """

    refresh_due = False

    def __init__(self, settings: BearerToken, server: str) -> None:
        self.token: str | None = None
        self._settings = settings
        self._server = server
        if isinstance(settings.token, str):
            self.token = settings.token

    def __repr__(self) -> str:
        return f"<BearerAccess {self._server}>"

    def restore(self) -> Steps[None]:
        """Asks the program for the token."""
        if callable(self._settings.token):
            yield from self._asked()

    def renew(self) -> Steps[None]:
        """Does nothing: nobody knows when the token ends."""
        yield from ()

    def headers(self, method: str, url: str) -> Sequence[tuple[str, str]]:
        """Returns the headers of a request."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def note(self, url: str, nonce: str | None) -> None:
        """Does nothing: these tokens are bound to no key."""

    def succeeded(self, operation: str) -> None:
        """Does nothing: nobody can be asked for more scopes."""

    def sends_again(self, sent: SentRequest, answer: Answered) -> bool:
        """Whether the token has changed meanwhile."""
        has_changed = self.token is not None and sent.token != self.token
        return answer.status == 401 and has_changed and not sent.is_given_up

    def react(self, sent: SentRequest, answer: Answered) -> Steps[bool]:
        """Asks the program for another token, once for a request.

        Raises:
            AuthorizationFailed: There is no other token.
        """
        if answer.status != 401:
            return False
        if callable(self._settings.token) and sent.former_tokens == 0:
            yield from self._asked()
            if self.token != sent.token:
                return True
        raise AuthorizationFailed(
            f"{self._server} refuses the bearer token: is it meant for this server, and has it not expired?"
        )

    def log_in(self) -> Steps[None]:
        """Asks the program for the token."""
        yield from self.restore()

    def log_out(self) -> Steps[None]:
        """Forgets a token that the program was asked for."""
        if callable(self._settings.token):
            self.token = None
        yield from ()

    def _asked(self) -> Steps[None]:
        assert callable(self._settings.token)
        token = yield Ask(self._settings.token)
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise AuthorizationError(
                "the function of BearerToken must return a text of visible ASCII characters without spaces, "
                f"and returned {'such a one with others' if isinstance(token, str) else type(token).__name__}"
            )
        self.token = token
