"""The ``Authorization`` header of a request to a protected resource (RFC 6750 section 2.1, RFC 9449 section 7.1)."""

from __future__ import annotations

import re
from typing import Literal

import attrs

__all__ = ["MAX_TOKEN", "Credentials", "MalformedCredentials", "read_credentials"]

# Characters. Tokens of real authorization servers with many groups have a few thousand.
MAX_TOKEN = 16 * 1024

Scheme = Literal["Bearer", "DPoP"]

_SCHEME = re.compile(r"(?i:(bearer)|(dpop))(?![!#$%&'*+.^_`|~0-9A-Za-z-])")
_TOKEN = re.compile(r" +([A-Za-z0-9._~+/-]+=*)[ \t]*")


class MalformedCredentials(Exception):
    """The header has one of our schemes, and not one token."""


@attrs.frozen
class Credentials:
    """An access token and the scheme that it came with."""

    scheme: Scheme
    token: str = attrs.field(repr=False)

    @property
    def field(self) -> str:
        """The header in the one spelling that a token has: the case of a scheme and the spaces behind it are free."""
        return f"{self.scheme} {self.token}"


def read_credentials(field: str | None) -> Credentials | None:
    """Returns the credentials of a request, ``None`` without any and for the schemes of others.

    Args:
        field: The value of ``Authorization``.

    Raises:
        MalformedCredentials: There is none, or more than one, or a longer one than is allowed.
    """
    scheme = None if field is None else _SCHEME.match(field)
    if scheme is None or field is None:
        return None
    found = _TOKEN.fullmatch(field, scheme.end())
    if found is None or len(found[1]) > MAX_TOKEN:
        raise MalformedCredentials
    return Credentials("Bearer" if scheme[1] else "DPoP", found[1])
