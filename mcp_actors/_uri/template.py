"""URI templates, RFC 6570, all four levels: written out from values, and matched against URIs.

The RFC defines expansion only. Matching is its reverse as far as there is one. Where a split is ambiguous, earlier
variables take as much as they can, and an optional part is taken to be there whenever it can be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from mcp_actors._uri.match import match_steps, plain_pattern, steps_of
from mcp_actors._uri.parse import (
    OPERATORS,
    PRINTABLE,
    Expression,
    Operator,
    Variable,
    parse,
)

__all__ = ["UriTemplate"]

_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_RESERVED = ":/?#[]@!$&'()*+,;="
_TRIPLET_OR_OTHER = re.compile(r"(%[0-9A-Fa-f]{2})|([^%]+|%)")


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

    def expand(self, /, **values: Any) -> str:
        """Writes the URI for the values: strings, numbers, booleans, lists of them, or dicts.

        A variable that is absent or ``None``, or an empty list or dict, is undefined and leaves no trace (§2.3).
        Names with dots go through ``**{...}``. Raises `ValueError` for a list or dict where a length is given.
        """
        return "".join(
            part if isinstance(part, str) else _expand(part, values, self.text) for part in self._parts
        )

    def match(self, uri: str) -> dict[str, str] | None:
        """Returns the values of the variables, percent-decoded, or ``None`` if the URI does not match the template.

        ``{var}`` matches at least one character, and none of ``/ ? #``; ``{+var}`` and ``{/var*}`` also match ``/``.
        An expression with another operator than ``+`` may be absent from the URI, and its variables are then absent
        from the result. Query parameters may have any order, but must all be in the template. A list is one string
        with the separators of the URI. The length in ``{var:3}`` is an upper bound.
        """
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


def _expand(expression: Expression, values: Mapping[str, Any], text: str) -> str:
    operator = OPERATORS[expression.operator]
    written = []
    for variable in expression.variables:
        value = values.get(variable.name)
        if value is None or (isinstance(value, (list, tuple, Mapping)) and not value):
            continue
        if isinstance(value, (list, tuple, Mapping)):
            if variable.prefix is not None:
                raise ValueError(
                    f"URI template {text!r}: {variable.name} is cut to a length and must be a string"
                )
            written.append(_expand_many(variable, value, operator))
        else:
            cut = _text(value)[: variable.prefix]
            written.append(_named(variable.name, _encoded(cut, operator), operator))
    return operator.first + operator.separator.join(written) if written else ""


def _expand_many(variable: Variable, value: Sequence[Any] | Mapping[str, Any], operator: Operator) -> str:
    if isinstance(value, Mapping):
        pairs = [
            (_encoded(str(name), operator), _encoded(_text(each), operator)) for name, each in value.items()
        ]
        if variable.explode:
            # With names of its own, as `name=value` whatever the operator is.
            empty = operator.if_empty if operator.named else "="
            return operator.separator.join(f"{name}={each}" if each else name + empty for name, each in pairs)
        return _named(variable.name, ",".join(part for pair in pairs for part in pair), operator)
    items = [_encoded(_text(each), operator) for each in value]
    if variable.explode:
        return operator.separator.join(_named(variable.name, each, operator) for each in items)
    return _named(variable.name, ",".join(items), operator)


def _named(name: str, encoded: str, operator: Operator) -> str:
    if not operator.named:
        return encoded
    return f"{name}={encoded}" if encoded else name + operator.if_empty


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _encoded(value: str, operator: Operator) -> str:
    if not operator.reserved:
        return quote(value, safe=_UNRESERVED)
    # Triplets that are there already stay as they are (section 3.2.3).
    return _TRIPLET_OR_OTHER.sub(
        lambda found: found[1] or quote(found[2], safe=_UNRESERVED + _RESERVED), value
    )
