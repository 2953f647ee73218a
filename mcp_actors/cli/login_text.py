"""A login in words for a person: who, where, for what and until when. Never its tokens."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence

import attrs

from mcp_actors.platform.command_lines import join_words
from mcp_actors.printable import spelled_out

__all__ = ["LoginStatus", "expiry_in_words", "login_lines", "subject_of"]

# Characters of a part of a token that is looked at, and of a subject that is shown.
LONGEST_CLAIMS = 64 * 1024
LONGEST_SUBJECT = 200
# Characters that are shown of a fact.
LONGEST_FACT = 2000

_UNITS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


@attrs.frozen
class LoginStatus:
    """The facts of a login. ``expires_at`` is in seconds since the epoch; ``None`` if it is not known."""

    issuer: str
    resource: str
    client_id: str
    scopes: Sequence[str]
    expires_at: float | None
    refreshable: bool
    token: str = attrs.field(repr=False)


def login_lines(status: LoginStatus, url: str) -> list[str]:
    """Returns what a person is told about a login."""
    return [f"  {f'{name}:':<10} {_on_one_line(text)}" for name, text in _facts(status, url)]


def _on_one_line(text: str) -> str:
    """Spells out all that is not printable: a line feed in a name would make up another fact."""
    return spelled_out(text[:LONGEST_FACT])


def _facts(status: LoginStatus, url: str) -> Iterator[tuple[str, str]]:
    yield "issuer", status.issuer
    yield "resource", status.resource
    yield "client", status.client_id
    subject = subject_of(status.token)
    if subject is not None:
        yield "subject", f"{subject} (as the token says)"
    yield "scopes", " ".join(status.scopes) or "not known"
    yield "expires", expiry_in_words(status.expires_at, time.time())
    if status.refreshable:
        yield "renewal", "by itself, without a login"
    else:
        yield "renewal", f"none; then run: mcp-actors login {join_words([url])}"


def expiry_in_words(expires_at: float | None, now: float) -> str:
    """Returns when a token ends, for a person."""
    if expires_at is None:
        return "not known; the authorization server did not say"
    remaining = expires_at - now
    size, unit = next((each for each in _UNITS if abs(remaining) >= each[0]), _UNITS[-1])
    count = int(abs(remaining) / size)
    length = f"{count} {unit}{'' if count == 1 else 's'}"
    try:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expires_at))
    except (OverflowError, ValueError, OSError):
        return "not known; the authorization server said a time that no calendar has"
    return f"in {length} ({at})" if remaining > 0 else f"{length} ago ({at})"


def subject_of(token: str) -> str | None:
    """Returns the ``sub`` of a token that is a JWT; nothing verifies it, so it is for people to read only."""
    parts = token.split(".")
    if len(parts) != 3 or len(parts[1]) > LONGEST_CLAIMS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    subject = claims.get("sub") if isinstance(claims, dict) else None
    return subject[:LONGEST_SUBJECT] if isinstance(subject, str) and subject else None
