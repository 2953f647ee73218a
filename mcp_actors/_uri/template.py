"""URI templates (RFC 6570, all four levels), matched against URIs.

The RFC defines expansion only. Matching is its reverse as far as there is one. Where a split is ambiguous, earlier
variables take as much as they can, and an optional part is taken to be there whenever it can be.
"""

from __future__ import annotations

from urllib.parse import quote

from mcp_actors._uri.match import match_steps, plain_pattern, steps_of
from mcp_actors._uri.parse import PRINTABLE, Expression, parse

__all__ = ["LONGEST_URI", "UriTemplate"]

# Characters of a URI. Servers of HTTP commonly take 8 KiB (RFC 9110 section 4.1 asks for 8000 octets at least); a
# longer one would keep the event loop busy while it is matched and decoded.
LONGEST_URI = 8192


class UriTemplate:
    """A template. Two are equal when their texts are.

    Raises `ValueError` for a text that is malformed, longer than 4096 characters or with more than 64 variables.
    """

    __slots__ = ("_head", "_parts", "_pattern", "_steps", "_tail", "text", "variables")

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = tuple(parse(text))
        #: The names of the variables, in the order in which they first stand.
        self.variables = tuple(
            dict.fromkeys(
                variable.name
                for part in self._parts
                if isinstance(part, Expression)
                for variable in part.variables
            )
        )
        parts = self._parts
        self._head = parts[0] if parts and isinstance(parts[0], str) else ""
        inner = parts[1:] if self._head else parts
        self._tail = inner[-1] if inner and isinstance(inner[-1], str) else ""
        self._steps = tuple(steps_of(inner[:-1] if self._tail else inner))
        self._pattern = plain_pattern(self._steps)

    def match(self, uri: str) -> dict[str, str] | None:
        """Returns the values of the variables, percent-decoded, or ``None`` if the URI does not match the template.

        ``{var}`` matches at least one character, and none of ``/ ? #``; ``{+var}`` and ``{/var*}`` also match ``/``.
        An expression with another operator than ``+`` may be absent from the URI, and its variables are then absent
        from the result. Query parameters may have any order, but must all be in the template. A list is one string
        with the separators of the URI. The length in ``{var:3}`` is an upper bound. A URI of more than `LONGEST_URI`
        characters matches nothing.
        """
        if len(uri) > LONGEST_URI:
            return None
        if not uri.isascii():
            uri = quote(uri, safe=PRINTABLE)
        if not uri.startswith(self._head) or not uri.endswith(self._tail):
            return None
        if len(uri) < len(self._head) + len(self._tail):
            return None
        inner = uri[len(self._head) : len(uri) - len(self._tail)]
        return match_steps(self._steps, self._pattern, inner.encode("ascii"))

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, UriTemplate) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"
