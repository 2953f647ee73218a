"""Parses the text of a URI template (RFC 6570 section 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import msgspec

__all__ = [
    "MAX_TEMPLATE",
    "MAX_VARIABLES",
    "OPERATORS",
    "PRINTABLE",
    "Expression",
    "Operator",
    "Variable",
    "parse",
]

# Characters; far more than a person writes.
MAX_TEMPLATE = 4096
MAX_VARIABLES = 64

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
"""The printable ASCII characters without the space: everything else is percent-encoded in a literal."""

_NAME = r"(?:\w|%[0-9A-Fa-f]{2})+(?:\.(?:\w|%[0-9A-Fa-f]{2})+)*"
_VARIABLE = rf"(?a)({_NAME})(?::([1-9][0-9]{{0,3}})|(\*))?"
# The characters that may not be outside of braces (RFC 6570 section 2.1).
_BAD_LITERAL = r"[\x00-\x20\"'<>\\^`{|}\x7f]|%(?![0-9A-Fa-f]{2})"


class Operator(msgspec.Struct, frozen=True):
    """One row of the table in RFC 6570 appendix A."""

    first: str
    separator: str
    named: bool = False
    reserved: bool = False


OPERATORS = {
    "": Operator("", ","),
    "+": Operator("", ",", reserved=True),
    "#": Operator("#", ",", reserved=True),
    ".": Operator(".", "."),
    "/": Operator("/", "/"),
    ";": Operator(";", ";", named=True),
    "?": Operator("?", "&", named=True),
    "&": Operator("&", "&", named=True),
}


class Variable(msgspec.Struct, frozen=True):
    name: str
    prefix: int | None
    explode: bool


class Expression(msgspec.Struct, frozen=True):
    operator: str
    variables: tuple[Variable, ...]


def parse(text: str) -> Iterator[str | Expression]:
    """Yields the literals, percent-encoded where necessary, and the expressions. Raises `ValueError`."""
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"a URI template may have {MAX_TEMPLATE} characters, this one has {len(text)}")
    count = at = 0
    while at < len(text):
        opening = text.find("{", at)
        literal = text[at:] if opening < 0 else text[at:opening]
        if literal:
            yield _literal(literal, at, text)
        if opening < 0:
            return
        closing = text.find("}", opening)
        if closing < 0:
            raise ValueError(f"URI template {text!r}: the brace at {opening} is never closed")
        expression = _expression(text[opening + 1 : closing], text)
        count += len(expression.variables)
        if count > MAX_VARIABLES:
            raise ValueError(f"a URI template may have {MAX_VARIABLES} variables, {text!r} has more")
        yield expression
        at = closing + 1


def _literal(literal: str, at: int, text: str) -> str:
    bad = re.search(_BAD_LITERAL, literal)
    if bad:
        raise ValueError(f"URI template {text!r}: {bad[0]!r} at {at + bad.start()} may not stand there")
    return quote(literal, safe=PRINTABLE)


def _expression(inside: str, text: str) -> Expression:
    operator = inside[:1] if inside[:1] in OPERATORS else ""
    variables = []
    for each in inside[len(operator) :].split(","):
        found = re.fullmatch(_VARIABLE, each)
        if not found:
            raise ValueError(f"URI template {text!r}: {{{inside}}} is no expression")
        variables.append(Variable(found[1], int(found[2]) if found[2] else None, bool(found[3])))
    return Expression(operator, tuple(variables))
