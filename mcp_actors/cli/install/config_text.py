"""A configuration as text: JSON, with or without comments, in which an edit leaves the rest as it is.

It is read for the places of its members. What lies outside of the entries is only checked, by Python's own reader where
the text has no comments: the file of a client may have tens of MiB of other things.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NoReturn

import attrs

__all__ = [
    "ConfigText",
    "Damaged",
    "Foreign",
    "Member",
    "Members",
    "Span",
    "found_entry",
    "read_config",
    "value_of",
    "with_entry",
    "without_entry",
]


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
_COMMENT = "there is a comment, which this client does not read"
# Levels of a text that may have comments: less than what Python's own reader takes, which reads the entries.
MAX_DEPTH = 200
# The members of the file itself and those of the servers are kept; what lies deeper is only read.
_KEPT_DEPTH = 2


class _NoConstant(Exception):
    """Python's own reader takes NaN and infinities, which are not JSON."""


def _no_constant(name: str) -> NoReturn:
    raise _NoConstant(name)


# Integers become floats, because very long ones would take long to convert.
_CHECK = json.JSONDecoder(parse_int=float, parse_constant=_no_constant)


class Damaged(Exception):
    """The text is not JSON, or has comments that the client cannot read. The message says where."""


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
    """The members of the value, if it is an object and not too deep to matter."""
    lead: int
    """The place where the blanks before it begin."""
    after_line: bool
    """Whether a comment that ends with its line comes before them."""
    comma: int | None = None
    """The place of the comma after it."""


@attrs.define
class Members:
    """An object: its members, and where a further one would go."""

    start: int
    end: int = -1
    each: list[Member] = attrs.Factory(list)
    last: Span = Span(0, 0)
    """What comes before the closing brace, apart from blanks: a value, a comma, a comment or the opening brace."""

    def named(self, name: str) -> list[Member]:
        """Returns the members of a name: more than one if the name is repeated."""
        return [member for member in self.each if member.name == name]


@attrs.frozen
class ConfigText:
    """A text that was read."""

    text: str
    root: Members | None
    """``None`` if it has only blanks and comments."""

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


@attrs.frozen
class _Token:
    kind: str
    start: int
    end: int
    text: str


def value_of(text: str) -> Any:
    """Returns the value of a text that may have comments, and that was read before as a part of a configuration."""
    kept: list[str] = []
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token in ("}", "]") and kept and kept[-1] == ",":
            kept.pop()
        if found.lastgroup not in ("space", "line", "block"):
            kept.append(token)
    return json.loads(" ".join(kept))


def read_config(text: str, section: str, *, comments: bool) -> ConfigText:
    """Reads a text.

    Args:
        text: The text, without a byte order mark.
        section: The name of the member that holds the entries.
        comments: Whether comments and a comma before a closing brace or bracket are allowed.

    Raises:
        Damaged: It is not JSON, or its outermost value is not an object.
    """
    return _ConfigReader(text, section, comments).read()


class _ConfigReader:
    def __init__(self, text: str, section: str, comments: bool) -> None:
        self._text = text
        self._section = section
        self._comments = comments
        self._stack: list[_Open] = []
        self._next = _Next.VALUE
        self._root: Members | None = None
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
        return ConfigText(self._text, self._root)

    def _tokens(self) -> Iterator[_Token]:
        place, end = 0, len(self._text)
        while place < end:
            if self._is_only_checked(place):
                yield (token := self._checked(place))
                place = token.end
                continue
            found = _TOKEN.match(self._text, place)
            if found is None:
                raise self._damaged(place, f"{self._next.value} was expected")
            kind = str(found.lastgroup)
            if kind in ("line", "block"):
                if not self._comments:
                    raise self._damaged(place, _COMMENT)
                yield _Token("comment", place, found.end(), "")
            elif kind != "space":
                yield _Token(kind, place, found.end(), found.group() if kind == "mark" else "")
            place = found.end()

    def _is_only_checked(self, place: int) -> bool:
        """Returns whether a value begins here that has no comments and whose inside does not matter."""
        if (
            self._comments
            or not self._stack
            or self._next is not _Next.VALUE
            or self._text[place] in " \t\r\n"
        ):
            return False
        return len(self._stack) == _KEPT_DEPTH or self._stack[-1].name != self._section

    def _checked(self, place: int) -> _Token:
        try:
            _, end = _CHECK.raw_decode(self._text, place)
        except json.JSONDecodeError as error:
            comment = self._text.startswith(("//", "/*"), error.pos)
            what = _COMMENT if comment else f"{error.msg[:1].lower()}{error.msg[1:]}"
            raise self._damaged(error.pos, what) from None
        except _NoConstant:
            raise self._damaged(place, "it has NaN or an infinity, which is not JSON") from None
        except RecursionError:
            raise self._damaged(place, "it is nested too deep") from None
        return _Token("word", place, end, "")

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
        kept = is_object and (
            not self._stack or (len(self._stack) == 1 and self._stack[0].name == self._section)
        )
        members = Members(token.start, last=Span(token.start, token.end)) if kept else None
        if not self._stack:
            self._root = members
        self._stack.append(_Open(is_object, members, token.start))
        self._next = _Next.KEY_OR_END if is_object else _Next.VALUE_OR_END

    def _scalar(self, token: _Token) -> None:
        if not self._stack:
            raise self._damaged(token.start, "the whole is no object")
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
        opened.name = ""
        self._next = _Next.COMMA_OR_END

    def _damaged(self, place: int, what: str) -> Damaged:
        before = self._text[:place]
        line = before.count("\n") + 1
        column = place - (before.rfind("\n") + 1) + 1
        return Damaged(f"line {line}, column {column}: {what}")


# -- One entry put in or taken out; every other character stays what it is and where it is -------------

_DEFAULT_INDENT = "  "


class Foreign(Exception):
    """The text is JSON, but not in the form of this client. The message says what is odd."""


@attrs.frozen
class _Splice:
    """A part of the text, and what replaces it."""

    start: int
    end: int
    text: str


def found_entry(config: ConfigText, section: str, name: str) -> str | None:
    """Returns the text of the entry of a name, ``None`` if it is missing.

    Raises:
        Foreign: The section is not an object, or it or the entry occurs twice.
    """
    servers = _section(config, section)
    member = None if servers is None or servers.members is None else _only(servers.members, name)
    return None if member is None else config.of(member.value)


def with_entry(config: ConfigText, section: str, name: str, entry: Mapping[str, Any] | str) -> str:
    """Returns the text with an entry of that name, which takes the place of the one that is there.

    Args:
        config: The text as it is.
        section: The name of the member that holds the entries. It is made if it is not there.
        name: The name of the entry.
        entry: The entry as an object, which is laid out as its neighbours are, or as its final text.

    Raises:
        Foreign: The section is not an object, or it or the entry occurs twice.
    """
    text = config.text
    layout = _layout(config)
    if config.root is None:
        whole = layout.written(
            {section: {name: entry if isinstance(entry, Mapping) else value_of(entry)}}, ""
        )
        gap = "" if not text or text.endswith("\n") else layout.newline
        return f"{text}{gap}{whole}{layout.newline}"
    servers = _section(config, section)
    if servers is None:
        value = {name: entry if isinstance(entry, Mapping) else value_of(entry)}
        return _spliced(text, _inserted(config, config.root, layout, "", section, value))
    assert servers.members is not None
    outer = _indent_of(text, servers.key.start)
    member = _only(servers.members, name)
    if member is None:
        return _spliced(text, _inserted(config, servers.members, layout, outer, name, entry))
    own = _indent_of(text, member.key.start)
    fresh = layout.written(entry, own) if isinstance(entry, Mapping) else entry
    return _spliced(text, [_Splice(member.value.start, member.value.end, fresh)])


def without_entry(config: ConfigText, section: str, name: str) -> str:
    """Returns the text without the entry of a name, which is there.

    Raises:
        Foreign: The section is not an object, or it or the entry occurs twice.
        LookupError: The entry does not exist.
    """
    servers = _section(config, section)
    member = None if servers is None or servers.members is None else _only(servers.members, name)
    if servers is None or servers.members is None or member is None:
        raise LookupError(name)
    return _spliced(config.text, _removed(config, servers.members, member))


def _section(config: ConfigText, section: str) -> Member | None:
    member = None if config.root is None else _only(config.root, section)
    if member is not None and member.members is None:
        raise Foreign(f"{section!r} is no object")
    return member


def _only(members: Members, name: str) -> Member | None:
    found = members.named(name)
    if len(found) > 1:
        raise Foreign(f"{name!r} occurs {len(found)} times")
    return found[0] if found else None


@attrs.frozen
class _Layout:
    """The manner in which a text is laid out."""

    newline: str
    unit: str
    """The blanks of one level; empty if the text is on one line."""

    def written(self, value: object, outer: str) -> str:
        """Returns a value in this manner, as a member of what is indented by ``outer``."""
        if not self.unit:
            return json.dumps(value, ensure_ascii=False)
        lines = json.dumps(value, ensure_ascii=False, indent=self.unit).split("\n")
        return f"{self.newline}{outer}".join(lines)


def _indent_of(text: str, place: int) -> str:
    """Returns the blanks before a place that is the first thing in its line, and nothing for any other."""
    start = max(text.rfind("\n", 0, place), text.rfind("\r", 0, place)) + 1
    before = text[start:place]
    return before if start and not before.strip(" \t") else ""


def _layout(config: ConfigText) -> _Layout:
    text, root = config.text, config.root
    newline = "\r\n" if "\r\n" in text else "\n"
    if root is None or not root.each:
        return _Layout(newline, _DEFAULT_INDENT)
    first = root.each[0].key.start
    on_its_own = any(mark in text[root.start : first] for mark in "\r\n")
    if not on_its_own:
        return _Layout(newline, "")
    # A comment may come before the first member on its line.
    return _Layout(newline, _indent_of(text, first) or _DEFAULT_INDENT)


def _inserted(
    config: ConfigText,
    members: Members,
    layout: _Layout,
    outer: str,
    name: str,
    value: Mapping[str, Any] | str,
) -> list[_Splice]:
    """Yields the parts that add a member after all others, comments included."""
    text = config.text
    inner = outer + layout.unit
    if members.each and layout.unit:
        inner = _indent_of(text, members.each[0].key.start) or inner
    shown = value if isinstance(value, str) else layout.written(value, inner)
    member = f"{json.dumps(name, ensure_ascii=False)}: {shown}"
    splices = []
    trailing = ""
    if members.each:
        last = members.each[-1]
        if last.comma is None:
            splices.append(_Splice(last.value.end, last.value.end, ","))
        else:
            trailing = ","
    after_line = text.startswith("//", members.last.start)
    if layout.unit or after_line:
        member = f"{layout.newline}{inner}{member}"
    elif members.each:
        member = f" {member}"
    blank = text[members.last.end : members.end - 1]
    closing = ""
    if layout.unit and "\n" not in blank and "\r" not in blank:
        closing = f"{layout.newline}{outer}"
    splices.append(_Splice(members.last.end, members.last.end, f"{member}{trailing}{closing}"))
    return splices


def _removed(config: ConfigText, members: Members, member: Member) -> list[_Splice]:
    """Yields the parts that remove a member and its comma; comments stay."""
    text = config.text
    place = members.each.index(member)
    is_last = place == len(members.each) - 1
    end = member.value.end if member.comma is None else member.comma + 1
    inside = text[members.start + 1 : member.key.start], text[member.value.end : members.end - 1]
    left = inside[0] + inside[1].replace(",", "", member.comma is not None)
    if len(members.each) == 1 and not left.strip() and "\n" in left.replace("\r", "\n"):
        # The line breaks came with the entry: an empty object is on one line where people and programs write one.
        return [_Splice(members.start + 1, members.end - 1, "")]
    if not is_last:
        # The blanks before it stay, because the text before them may be a comment that ends with its line. A
        # comment between it and its comma stays too.
        splices = [_Splice(member.key.start, member.value.end, "")]
        assert member.comma is not None
        splices.append(_Splice(member.comma, end + _blanks(text, end), ""))
        return _joined(text, splices)
    # The comment before it ends with its line, so a line has to end there still.
    needed = member.after_line and text[end:].lstrip(" \t")[:1] not in ("\r", "\n")
    splices = [_Splice(member.key.start if needed else member.lead, member.value.end, "")]
    before = members.each[place - 1] if place else None
    if member.comma is not None:
        splices.append(_Splice(member.comma, end, ""))
    elif before is not None and before.comma is not None:
        splices.insert(0, _Splice(before.comma, before.comma + 1, ""))
    return splices


def _joined(text: str, splices: list[_Splice]) -> list[_Splice]:
    """Joins two parts that only blanks separate."""
    first, second = splices
    if text[first.end : second.start].strip():
        return [first, _Splice(second.start, second.start + 1, "")]
    return [_Splice(first.start, second.end, "")]


def _blanks(text: str, place: int) -> int:
    return len(text) - place - len(text[place:].lstrip(" \t\r\n"))


def _spliced(text: str, splices: list[_Splice]) -> str:
    """Returns the text with its parts replaced; of two at one place the earlier one comes first."""
    parts, end = [], 0
    for splice in sorted(splices, key=lambda each: each.start):
        parts += [text[end : splice.start], splice.text]
        end = splice.end
    return "".join([*parts, text[end:]])
