"""The ``WWW-Authenticate`` header: read and written (RFC 9110 section 11, RFC 6750 section 3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

__all__ = ["Challenge", "first_parameter", "format_challenge", "parse_challenges"]

# Characters that are read, of all field lines of one response together.
MAX_CHARACTERS = 32 * 1024

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_PARAMETER = re.compile(
    rf'[\s,]*({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"=][^\s,"]*))(?=[\s,]|$)', re.DOTALL
)
_SCHEME = re.compile(rf"[\s,]*({_TOKEN})(?:\s+([A-Za-z0-9._~+/-]+=*)(?=\s*(?:,|$)))?(?=[\s,]|$)")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


@attrs.frozen
class Challenge:
    """One challenge: its scheme and the names of its parameters in lower case, the values as they came."""

    scheme: str
    params: Mapping[str, str] = attrs.field(factory=dict)


def parse_challenges(lines: Iterable[str]) -> list[Challenge]:
    """Returns the challenges of the ``WWW-Authenticate`` field lines of a response. Never raises.

    Of a parameter that is repeated the first value counts. A line that stops making sense is read up to there, and of
    a response beyond the limit the beginning.
    """
    found: list[Challenge] = []
    left = MAX_CHARACTERS
    for whole in lines:
        if left <= 0:
            break
        line, at = whole[:left], 0
        left -= len(line) + 1
        params: dict[str, str] | None = None
        while at < len(line):
            match = None if params is None else _PARAMETER.match(line, at)
            if match is not None and params is not None:
                value = match[3] if match[2] is None else _ESCAPED.sub(r"\1", match[2])
                params.setdefault(match[1].lower(), value)
            else:
                match = _SCHEME.match(line, at)
                if match is None:
                    break
                params = {}
                found.append(Challenge(match[1].lower(), params))
            at = match.end()
    return found


def first_parameter(challenges: Iterable[Challenge], name: str) -> str | None:
    """Returns a parameter of the first ``Bearer`` or ``DPoP`` challenge that has it, ``None`` if none does."""
    return next(
        (
            each.params[name]
            for each in challenges
            if each.scheme in ("bearer", "dpop") and name in each.params
        ),
        None,
    )


def format_challenge(scheme: str, params: Mapping[str, str]) -> str:
    """Returns a challenge as one field value, which no value can break out of.

    Every value is quoted. Characters that neither a header nor the attributes of RFC 6750 section 3 may have become
    spaces, and quotes and backslashes become apostrophes.
    """
    quoted = (f'{name}="{_UNPRINTABLE.sub(" ", value).translate(_QUOTES)}"' for name, value in params.items())
    return f"{scheme} {', '.join(quoted)}".rstrip()


_QUOTES = str.maketrans({'"': "'", "\\": "'"})
