"""URI templates (RFC 6570, all four levels), matched against URIs.

The RFC defines expansion only. Matching is its reverse as far as there is one. Where a split is ambiguous, earlier
variables take as much as they can, and an optional part is taken to be there whenever it can be.

`leads_away` says which values must not get into a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec

__all__ = [
    "LONGEST_URI",
    "MAX_TEMPLATE",
    "MAX_VARIABLES",
    "OPERATORS",
    "PRINTABLE",
    "Expression",
    "Operator",
    "Step",
    "UriTemplate",
    "Variable",
    "leads_away",
    "match_steps",
    "parse",
    "plain_pattern",
    "steps_of",
]


# -- parsing the text of a template (RFC 6570 section 2) -----------------------------------------------------------

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
        raise ValueError(f"URI template {text!r}: {bad[0]!r} at {at + bad.start()} is not allowed there")
    return quote(literal, safe=PRINTABLE)


def _expression(inside: str, text: str) -> Expression:
    operator = inside[:1] if inside[:1] in OPERATORS else ""
    variables = []
    for each in inside[len(operator) :].split(","):
        found = re.fullmatch(_VARIABLE, each)
        if not found:
            raise ValueError(f"URI template {text!r}: {{{inside}}} is not an expression")
        variables.append(Variable(found[1], int(found[2]) if found[2] else None, bool(found[3])))
    return Expression(operator, tuple(variables))


# -- matching a URI, in time linear in its length ------------------------------------------------------------------
#
# The URI comes from any peer, so the matching must not backtrack: positions in the URI are the bits of one large
# integer, and every part of the template is a few shifts, masks and additions on it.


class Step(msgspec.Struct, frozen=True):
    """A part of a URI: the text ``prefix``, then, if ``stops`` is not ``None``, at least one character not in it.

    ``variables`` are those that get their values from this run of characters: one variable, or several whose
    ``name=value`` pairs are separated by ``separator``.
    """

    prefix: bytes
    stops: bytes | None = None
    optional: bool = False
    variables: tuple[Variable, ...] = ()
    separator: str = ""


def match_steps(
    steps: tuple[Step, ...], pattern: re.Pattern[bytes] | None, uri: bytes
) -> dict[str, str] | None:
    """Returns the values of the variables in ``uri``, or ``None`` if the steps do not match all of it.

    ``pattern`` is the result of `plain_pattern` for the steps.
    """
    if pattern is None:
        spans = _Matching(uri).run(steps)
    else:
        found = pattern.fullmatch(uri)
        spans = found and list(zip((step for step in steps if step.variables), found.groups(), strict=True))
    return None if spans is None else _collect(spans)


def plain_pattern(steps: Sequence[Step]) -> re.Pattern[bytes] | None:
    """Returns a regular expression for templates in which each value ends at a character that it cannot contain.

    There is only one way to split a URI then, so the runs are possessive and never backtrack. ``None`` for templates
    that need more.
    """
    pattern = b""
    for step, following in zip(steps, [*steps[1:], None], strict=False):
        if step.optional or any(variable.prefix for variable in step.variables):
            return None
        pattern += re.escape(step.prefix)
        if step.stops is not None:
            if following is not None and (not following.prefix or following.prefix[0] not in step.stops):
                return None
            pattern += b"([^" + re.escape(step.stops) + b"]++)" if step.stops else b"(.++)"
    return re.compile(pattern, re.DOTALL)


def steps_of(parts: Sequence[str | Expression]) -> Iterator[Step]:
    """Returns the steps of a URI that a template of these parts makes."""
    query: Step | None = None
    for part in parts:
        # A query that continues in the next expression is one run: nothing shows where the first part ends.
        if query is not None:
            if isinstance(part, Expression) and part.operator == "&":
                query = msgspec.structs.replace(query, variables=query.variables + part.variables)
                continue
            yield query
            query = None
        if isinstance(part, str):
            yield Step(part.encode("ascii"))
        elif part.operator in ("?", "&"):
            query = Step(part.operator.encode(), b"#", True, part.variables, "&")
        elif part.operator == ";":
            yield Step(b";", b"/?#", True, part.variables, ";")
        else:
            yield from _value_steps(part)
    if query is not None:
        yield query


def _value_steps(expression: Expression) -> Iterator[Step]:
    operator = OPERATORS[expression.operator]
    many = len(expression.variables) > 1
    stops = "" if operator.reserved else "/?#"
    if many and not operator.reserved:
        stops += operator.separator
    for index, variable in enumerate(expression.variables):
        prefix = operator.separator if index else operator.first
        # An exploded list contains the separators.
        allowed = operator.separator if variable.explode and not operator.reserved else ""
        own = "".join(char for char in stops if char not in allowed)
        yield Step(prefix.encode(), own.encode(), bool(prefix), (variable,))


class _Matching:
    """The matching of one URI of ``size`` bytes.

    The character at ``p`` is bit ``size - 1 - p``, the gap before it is bit ``size - p``, and the end of the URI is
    bit 0. So adding a mask extends a run of characters to the left by carrying.
    """

    def __init__(self, uri: bytes) -> None:
        self.uri = uri
        self.size = len(uri)
        self._masks: dict[tuple[bytes, bool], int] = {}
        self._splits = self._legal_splits()

    def run(self, steps: tuple[Step, ...]) -> list[tuple[Step, bytes]] | None:
        """Returns the runs of characters that the steps match, or ``None`` if they do not match all of the URI."""
        # From the end of the URI: the gaps where each step may end, and those where it may begin.
        ends: list[int] = []
        begins: list[int] = []
        reached = 1
        for step in reversed(steps):
            ends.append(reached)
            begins.append(self._before(step, reached))
            reached = begins[-1] | reached if step.optional else begins[-1]
        if not reached >> self.size & 1:
            return None
        ends.reverse()
        begins.reverse()
        at = 0
        found: list[tuple[Step, bytes]] = []
        for index, step in enumerate(steps):
            if step.optional and not begins[index] >> (self.size - at) & 1:
                continue
            at += len(step.prefix)
            if step.stops is not None:
                fitting = ends[index] & self._run_from(step.stops, at)
                for later in range(index + 1, len(steps)):
                    if not steps[later].optional:
                        break
                    if preferred := fitting & begins[later]:
                        fitting = preferred
                        break
                end = self.size - ((fitting & -fitting).bit_length() - 1)
                found.append((step, self.uri[at:end]))
                at = end
        return found

    def _before(self, step: Step, reached: int) -> int:
        """The gaps at which ``step`` may begin if it ends at one of ``reached``."""
        if step.stops is not None:
            inside = self._mask(step.stops, inverted=True)
            begun = (reached & inside) << 1
            reached = ((begun & inside) + inside) ^ inside | begun
        for at in range(len(step.prefix), 0, -1):
            reached = (reached & self._mask(step.prefix[at - 1 : at])) << 1
        return reached & self._splits

    def _run_from(self, stops: bytes, at: int) -> int:
        """The gaps at which a run that begins at ``at`` may end."""
        run = _run_without(stops).match(self.uri, at)
        end = run.end() if run else at
        return (1 << (self.size - at)) - (1 << (self.size - end))

    def _mask(self, chars: bytes, *, inverted: bool = False) -> int:
        """The positions of the characters that are in ``chars``, or that are not."""
        mask = self._masks.get((chars, inverted))
        if mask is None:
            mask = int(self.uri.translate(_table(chars, inverted)) or b"0", 2)
            self._masks[chars, inverted] = mask
        return mask

    def _legal_splits(self) -> int:
        """The gaps that are not inside a percent-encoded character."""
        everywhere = (1 << (self.size + 1)) - 1
        if b"%" not in self.uri:
            return everywhere
        hexadecimal = self._mask(b"0123456789abcdefABCDEF")
        triplets = self._mask(b"%") & (hexadecimal << 1) & (hexadecimal << 2)
        # The triplets that continue a UTF-8 character of several bytes.
        continued = triplets & (self._mask(b"89abAB") << 1) & (triplets >> 3)
        return everywhere & ~(triplets | triplets >> 1 | continued << 1)


@lru_cache(maxsize=512)
def _table(chars: bytes, inverted: bool) -> bytes:
    return bytes(ord("1") if (each in chars) is not inverted else ord("0") for each in range(256))


@lru_cache(maxsize=512)
def _run_without(stops: bytes) -> re.Pattern[bytes]:
    return re.compile(b"[^" + re.escape(stops) + b"]+" if stops else b".+", re.DOTALL)


def _collect(spans: list[tuple[Step, bytes]]) -> dict[str, str] | None:
    """The values by variable; ``None`` if a variable has two different values or a value is not UTF-8."""
    values: dict[str, str] = {}
    cut: list[tuple[Variable, str]] = []
    try:
        for step, span in spans:
            for variable, value in _named_values(step, span):
                if variable.prefix is not None:
                    cut.append((variable, value))
                elif values.setdefault(variable.name, value) != value:
                    return None
    except ValueError:  # a name that is not in the template, or bytes that are not UTF-8
        return None
    for variable, value in cut:
        whole = values.setdefault(variable.name, value)
        if len(value) > (variable.prefix or 0) or whole[: variable.prefix] != value:
            return None
    return values


def _named_values(step: Step, span: bytes) -> Iterator[tuple[Variable, str]]:
    if not step.separator:
        yield step.variables[0], unquote_to_bytes(span).decode()
        return
    by_name = {variable.name: variable for variable in step.variables}
    lists: dict[str, list[str]] = {}
    for pair in span.decode().split(step.separator):
        name, _, value = pair.partition("=")
        if name not in by_name:
            raise ValueError(name)
        text = unquote_to_bytes(value).decode()
        if by_name[name].explode:
            lists.setdefault(name, []).append(text)
        else:
            yield by_name[name], text
    for name, texts in lists.items():
        yield by_name[name], ",".join(texts)


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
        #: The names of the variables, in the order in which they first appear.
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


# -- The screen for values of templates ------------------------------------------------------------------------------
#
# Functions put them into paths of files. What is refused does not depend on the system, so that a server behaves the
# same everywhere.

# Windows opens the device, whatever stands behind a dot or a colon, and in any folder.
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|com[0-9\u00b9\u00b2\u00b3]|lpt[0-9\u00b9\u00b2\u00b3]) *([.:]|\Z)",
    re.IGNORECASE,
)
_DRIVE = re.compile(r"[A-Za-z]:")
# A proxy decodes a URI once and a careless function once more; a peer could make each of 8,000 characters a decoding.
MOST_DECODINGS = 8


def leads_away(value: str) -> bool:
    """Whether a value would, as a path, lead out of the folder that it is looked up in, or to no file at all.

    These are ``..`` as a component, absolute paths and those with a drive, a NUL, and the devices of Windows, in the
    value itself and in whatever further decoding of its percent signs makes of it. One that can be decoded more than
    `MOST_DECODINGS` times is meant for nothing else.
    """
    if value.isalnum():
        return _DEVICES.match(value) is not None
    for _ in range(MOST_DECODINGS + 1):
        parts = value.replace("\\", "/").split("/")
        # Windows drops blanks and dots at the end of a name.
        if "\0" in value or any(part.rstrip(" ") == ".." or _DEVICES.match(part) for part in parts):
            return True
        if (not parts[0] and len(parts) > 1) or _DRIVE.match(value):
            return True
        decoded = unquote(value)
        if decoded == value:
            return False
        value = decoded
    return True
