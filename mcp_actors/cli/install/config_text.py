"""JSON, with or without comments, read for the places of its members, so that an edit leaves the rest as it is.

Nothing here is recursive, so that no nesting is too deep, and a text is read once, so that none takes long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum

import attrs

__all__ = ["ConfigText", "Damaged", "Member", "Members", "Span", "read_config"]

_TOKEN = re.compile(
    r"""
      (?P<space>   [ \t\r\n]++ )
    | (?P<string>  " (?: [^"\\\x00-\x1f]++ | \\ (?: ["\\/bfnrt] | u[0-9a-fA-F]{4} ) )*+ " )
    | (?P<mark>    [{}\[\]:,] )
    | (?P<word>    (?: true | false | null | -? (?: 0 | [1-9][0-9]*+ ) (?: \.[0-9]++ )? (?: [eE][+-]?[0-9]++ )? )
                   (?! [A-Za-z0-9_.+-] ) )
    | (?P<line>    // [^\n\r]*+ )
    | (?P<block>   /\* (?s: .*? ) \*/ )
    """,
    re.VERBOSE,
)
# What stands in these is not for the eyes of whoever looks over a shoulder.
_SECRET = frozenset({"env", "headers"})
# Levels: less than what Python's own reader of JSON takes, which reads the entries.
MAX_DEPTH = 200
# The members of the file itself and those of the servers are kept; what lies deeper is only read.
_KEPT_DEPTH = 2


class Damaged(Exception):
    """The text is no JSON, or has comments where the client reads none. The message says where."""


@attrs.frozen
class Span:
    """A part of the text."""

    start: int
    end: int


@attrs.frozen
class Member:
    """A member of an object."""

    name: str
    key: Span
    value: Span
    members: Members | None
    """Those of the value, if it is an object and not too deep to be of interest."""
    lead: int
    """Where the blanks before it begin."""
    after_line: bool
    """Whether what stands before them is a comment that ends with its line."""
    comma: int | None = None
    """The place of the comma behind it."""


@attrs.define
class Members:
    """An object: its members, and where a further one would go."""

    start: int
    end: int = -1
    each: list[Member] = attrs.Factory(list)
    last: Span = Span(0, 0)
    """What stands before the closing brace and is no blank: a value, a comma, a comment or the opening brace."""

    def named(self, name: str) -> list[Member]:
        """Returns the members of a name: more than one if it stands there twice."""
        return [member for member in self.each if member.name == name]


@attrs.frozen
class ConfigText:
    """A text that was read."""

    text: str
    root: Members | None
    """``None`` if there is nothing in it but blanks and comments."""
    secrets: list[Span] = attrs.field(repr=False)
    """The texts inside of ``env`` and ``headers``."""

    def of(self, span: Span) -> str:
        """Returns a part of the text."""
        return self.text[span.start : span.end]


class _Next(Enum):
    """The tokens that may come next."""

    VALUE = "a value"
    VALUE_OR_END = "a value or ]"
    KEY = "a name in quotes"
    KEY_OR_END = "a name in quotes or }"
    COLON = "a colon"
    COMMA_OR_END = "a comma or the end of what was opened"
    NOTHING = "nothing more"


@attrs.define
class _Open:
    """An object or a list that is not closed yet."""

    is_object: bool
    members: Members | None
    started: int
    name: str = ""
    key: Span = Span(0, 0)
    lead: int = 0
    after_line: bool = False

    @property
    def hides(self) -> bool:
        return self.name in _SECRET


@attrs.frozen
class _Token:
    kind: str
    start: int
    end: int
    text: str


def read_config(text: str, *, comments: bool) -> ConfigText:
    """Reads a text.

    Args:
        text: It, without a byte order mark.
        comments: Whether comments and a comma before a closing brace or bracket are allowed.

    Raises:
        Damaged: It is no JSON, or its outermost value is no object.
    """
    return _ConfigReader(text, comments).read()


class _ConfigReader:
    def __init__(self, text: str, comments: bool) -> None:
        self._text = text
        self._comments = comments
        self._stack: list[_Open] = []
        self._hidden = 0  # how many of the stack are inside of a member that hides its texts
        self._next = _Next.VALUE
        self._root: Members | None = None
        self._secrets: list[Span] = []
        self._before: _Token | None = None

    def read(self) -> ConfigText:
        for token in self._tokens():
            if token.kind == "comment":
                self._before = token
                continue
            self._take(token)
            self._before = token
        if self._stack:
            raise self._damaged(len(self._text), "the text ends too early")
        return ConfigText(self._text, self._root, self._secrets)

    def _tokens(self) -> Iterator[_Token]:
        place, end = 0, len(self._text)
        while place < end:
            found = _TOKEN.match(self._text, place)
            if found is None:
                raise self._damaged(place, f"{self._next.value} was expected")
            kind = str(found.lastgroup)
            if kind in ("line", "block"):
                if not self._comments:
                    raise self._damaged(place, "there is a comment, which this client does not read")
                yield _Token("comment", place, found.end(), "")
            elif kind != "space":
                yield _Token(kind, place, found.end(), found.group() if kind == "mark" else "")
            place = found.end()

    def _take(self, token: _Token) -> None:
        match self._next, token.text or token.kind:
            case ((_Next.VALUE | _Next.VALUE_OR_END), ("{" | "[")):
                self._open(token)
            case ((_Next.VALUE | _Next.VALUE_OR_END), ("string" | "word")):
                self._scalar(token)
            case ((_Next.KEY | _Next.KEY_OR_END), "string"):
                opened = self._stack[-1]
                opened.name, opened.key = self._name(token), Span(token.start, token.end)
                if self._before is not None:
                    opened.lead = self._before.end
                    opened.after_line = self._text.startswith("//", self._before.start)
                self._hidden += opened.hides
                self._next = _Next.COLON
            case _Next.COLON, ":":
                self._next = _Next.VALUE
            case _Next.COMMA_OR_END, ",":
                self._comma(token)
            case ((_Next.KEY_OR_END | _Next.COMMA_OR_END), "}") if self._stack[-1].is_object:
                self._close(token)
            case ((_Next.VALUE_OR_END | _Next.COMMA_OR_END), "]") if not self._stack[-1].is_object:
                self._close(token)
            case _:
                raise self._damaged(token.start, f"{self._next.value} was expected")

    def _name(self, token: _Token) -> str:
        name: str = json.loads(self._text[token.start : token.end])
        return name

    def _open(self, token: _Token) -> None:
        if len(self._stack) == MAX_DEPTH:
            raise self._damaged(token.start, f"it is nested more than {MAX_DEPTH} levels deep")
        is_object = token.text == "{"
        if not self._stack and not is_object:
            raise self._damaged(token.start, "the whole is no object")
        kept = is_object and len(self._stack) < _KEPT_DEPTH and all(each.is_object for each in self._stack)
        members = Members(token.start, last=Span(token.start, token.end)) if kept else None
        if not self._stack:
            self._root = members
        self._stack.append(_Open(is_object, members, token.start))
        self._next = _Next.KEY_OR_END if is_object else _Next.VALUE_OR_END

    def _scalar(self, token: _Token) -> None:
        if not self._stack:
            raise self._damaged(token.start, "the whole is no object")
        if token.kind == "string" and self._hidden:
            self._secrets.append(Span(token.start, token.end))
        self._has_value(Span(token.start, token.end), None)

    def _comma(self, token: _Token) -> None:
        opened = self._stack[-1]
        if opened.members is not None:
            opened.members.each[-1] = attrs.evolve(opened.members.each[-1], comma=token.start)
        if self._comments:
            self._next = _Next.KEY_OR_END if opened.is_object else _Next.VALUE_OR_END
        else:
            self._next = _Next.KEY if opened.is_object else _Next.VALUE

    def _close(self, token: _Token) -> None:
        closed = self._stack.pop()
        if closed.members is not None:
            closed.members.end = token.end
            if self._before is not None:
                closed.members.last = Span(self._before.start, self._before.end)
        if self._stack:
            self._has_value(Span(closed.started, token.end), closed.members)
        else:
            self._next = _Next.NOTHING

    def _has_value(self, value: Span, members: Members | None) -> None:
        opened = self._stack[-1]
        if opened.members is not None:
            opened.members.each.append(
                Member(opened.name, opened.key, value, members, opened.lead, opened.after_line)
            )
        if opened.is_object:
            self._hidden -= opened.hides
        opened.name = ""
        self._next = _Next.COMMA_OR_END

    def _damaged(self, place: int, what: str) -> Damaged:
        before = self._text[:place]
        line = before.count("\n") + 1
        column = place - (before.rfind("\n") + 1) + 1
        return Damaged(f"line {line}, column {column}: {what}")
