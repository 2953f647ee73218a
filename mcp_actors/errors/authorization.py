"""Access that could not be had: what the client's side of authorization raises.

None of these texts repeats a token, a code, a secret or a text of an unverified answer.
"""

from __future__ import annotations

from mcp_actors.errors.connection import ConnectFailed

__all__ = [
    "AuthorizationError",
    "AuthorizationFailed",
    "AuthorizationUnavailable",
    "DiscoveryFailed",
    "LoginFailed",
    "LoginRequired",
    "MetadataMismatch",
    "RegistrationFailed",
    "TokenRefused",
    "TokenStoreFailed",
    "UrlRefused",
]


class AuthorizationError(ConnectFailed):
    """The server demands authorization, and access could not be had. The request was not carried out."""

    def as_new(self) -> AuthorizationError:
        """Returns an exception of its own that says the same: one that is raised twice mixes up two tracebacks."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        copy.__cause__ = self.__cause__
        return copy


class LoginRequired(AuthorizationError):
    """A person must log in, and there is nobody who could: no terminal and no browser.

    Args:
        message: What to do, such as a command to run once.
        url: The URL to open, if the program may hand it to a person; ``None`` if no login was begun.
    """

    def __init__(self, message: str, url: str | None = None) -> None:
        super().__init__(message)
        self.url = url


class LoginFailed(AuthorizationError):
    """The login ended without an authorization code: refused, out of time, or with an answer that proves nothing."""


class AuthorizationFailed(AuthorizationError):
    """The server refuses a token that was issued for it just now, or asks for more scopes again and again."""


class DiscoveryFailed(AuthorizationError):
    """No usable metadata of the server or of its authorization server was found."""


class MetadataMismatch(AuthorizationError):
    """A document speaks for another resource or issuer than the one it was asked about. Nothing was sent there."""


class UrlRefused(AuthorizationError):
    """A URL that came from the network must not be used: its scheme, or the address that it leads to."""


class RegistrationFailed(AuthorizationError):
    """There is no client id for this authorization server, and none could be registered."""


class TokenRefused(AuthorizationError):
    """The authorization server refused to issue a token.

    Args:
        message: What was asked for, and what to do next.
        error: The code of RFC 6749 section 5.2, such as ``"invalid_grant"``.
    """

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class AuthorizationUnavailable(AuthorizationError):
    """The authorization server cannot be reached or is out of order: the same may succeed later. Tokens are kept."""


class TokenStoreFailed(AuthorizationError):
    """The store of tokens cannot be read or written. What it holds is left as it is."""
