"""One entry put into a configuration, or taken out; every other character stays what it is and where it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from mcp_actors.cli.install.config_text import ConfigText, Member, Members, value_of

__all__ = ["Foreign", "found_entry", "with_entry", "without_entry"]

_DEFAULT_INDENT = "  "


class Foreign(Exception):
    """The text is JSON, but not what such a client has in it. The message says what is odd."""


@attrs.frozen
class _Splice:
    """A part of the text, and what stands there afterwards."""

    start: int
    end: int
    text: str


def found_entry(config: ConfigText, section: str, name: str) -> str | None:
    """Returns the text of the entry of a name, ``None`` if there is none.

    Raises:
        Foreign: The section is no object, or it or the entry stands there twice.
    """
    servers = _section(config, section)
    member = None if servers is None or servers.members is None else _only(servers.members, name)
    return None if member is None else config.of(member.value)


def with_entry(config: ConfigText, section: str, name: str, entry: Mapping[str, Any] | str) -> str:
    """Returns the text with an entry of that name, which takes the place of the one that is there.

    Args:
        config: The text as it is.
        section: The name of the member that holds the entries. It is made if it is not there.
        name: That of the entry.
        entry: It, as an object, which is laid out as its neighbours are, or as the text that it shall be.

    Raises:
        Foreign: The section is no object, or it or the entry stands there twice.
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
        Foreign: The section is no object, or it or the entry stands there twice.
        LookupError: There is no such entry.
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
        raise Foreign(f"{name!r} stands there {len(found)} times")
    return found[0] if found else None


@attrs.frozen
class _Layout:
    """The manner in which a text is laid out."""

    newline: str
    unit: str
    """The blanks of one level; empty if the text stands on one line."""

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
    # A comment may stand before the first member on its line.
    return _Layout(newline, _indent_of(text, first) or _DEFAULT_INDENT)


def _inserted(
    config: ConfigText,
    members: Members,
    layout: _Layout,
    outer: str,
    name: str,
    value: Mapping[str, Any] | str,
) -> list[_Splice]:
    """A member more, behind all that is there, comments included."""
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
    """A member less: its comma goes with it, and comments stay."""
    text = config.text
    place = members.each.index(member)
    is_last = place == len(members.each) - 1
    end = member.value.end if member.comma is None else member.comma + 1
    if not is_last:
        # The blanks before it stay, because what stands before them may be a comment that ends with its line. A
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
    """Two parts that only blanks separate are one."""
    first, second = splices
    if text[first.end : second.start].strip():
        return [first, _Splice(second.start, second.start + 1, "")]
    return [_Splice(first.start, second.end, "")]


def _blanks(text: str, place: int) -> int:
    return len(text) - place - len(text[place:].lstrip(" \t\r\n"))


def _spliced(text: str, splices: list[_Splice]) -> str:
    """Returns the text with its parts replaced; of two at one place the earlier one stands first."""
    parts, end = [], 0
    for splice in sorted(splices, key=lambda each: each.start):
        parts += [text[end : splice.start], splice.text]
        end = splice.end
    return "".join([*parts, text[end:]])
