"""Reads docstrings in the three styles people write: Google, NumPy, reST.

A model is shown the prose and, apart from it, one line for each parameter. What the function returns or raises is left
out: its schema and its results say so.

docstring_parser 0.18 drops notes and all text behind a section, and griffelib 2.4 takes 40 ms to import: hence our own.
"""

from __future__ import annotations

import inspect
import re

import msgspec

__all__ = ["Docstring", "read_docstring"]

_PARAMETERS = frozenset(
    {
        *("args", "arguments", "parameters", "params", "attributes", "fields", "members", "variables"),
        *("keyword args", "keyword arguments", "other parameters"),
    }
)
_OUTCOMES = frozenset(
    {"returns", "return", "yields", "yield", "raises", "raise", "except", "exceptions", "warns", "receives"}
)

_GOOGLE_HEADER = re.compile(r"([A-Za-z][A-Za-z ]*):\s*\Z")
_GOOGLE_ENTRY = r"(\*{0,2}[A-Za-z_]\w*)\s*(?:\([^)]*\)|\[[^\]]*\])?\s*:(?:\s+(.*))?\Z"
_NUMPY_RULE = re.compile(r"-{3,}\s*\Z")
_NUMPY_ENTRY = r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?\Z"
_REST_FIELD = re.compile(r":(\w+)((?:\s+[^:]+)?):(?:\s+(.*))?\Z")
_REST_PARAMETERS = frozenset(
    ["param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var", "attr"]
)


class Docstring(msgspec.Struct, frozen=True):
    """A docstring in two parts.

    ``description`` is the prose without the sections on parameters, results and exceptions; it may be empty.
    ``parameters`` has the text for each parameter that has one.
    """

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Docstring:
    """Reads a docstring of any style, or of none. Text that is not recognised is prose. Never raises."""
    if not text:
        return Docstring("", {})
    reader = _Reader(inspect.cleandoc(text).splitlines())
    reader.read()
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(reader.prose)).strip()
    return Docstring(
        description, {name: " ".join(words) for name, words in reader.parameters.items() if words}
    )


class _Reader:
    """Reads the lines once. ``at`` is the next line; every method that reads lines advances it."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.prose: list[str] = []
        self.parameters: dict[str, list[str]] = {}

    def read(self) -> None:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if (title := self._numpy_title(self.at)) in _PARAMETERS | _OUTCOMES:
                self.at += 2
                self._numpy_section(keep=title in _PARAMETERS)
            elif (title := _google_title(line)) in _PARAMETERS | _OUTCOMES:
                # The first line stands beside the quotes, so its indentation says nothing about the others.
                indent = _indent(line) if self.at else -1
                self.at += 1
                self._google_section(indent, keep=title in _PARAMETERS)
            elif field := _REST_FIELD.match(line):
                self.at += 1
                self._rest_field(field)
            else:
                self.prose.append(line.rstrip())
                self.at += 1

    def _numpy_title(self, at: int) -> str:
        if at + 1 < len(self.lines) and _NUMPY_RULE.match(self.lines[at + 1]):
            return self.lines[at].strip().lower()
        return ""

    def _google_section(self, indent: int, *, keep: bool) -> None:
        """Reads all that is indented deeper than the header; entries start at the first such depth."""
        depth = None
        words: list[str] | None = None
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.strip():
                if _indent(line) <= indent:
                    return
                depth = _indent(line) if depth is None else depth
                entry = re.match(_GOOGLE_ENTRY, line.strip()) if _indent(line) <= depth else None
                if entry:
                    words = self._start(entry[1], entry[2]) if keep else None
                elif words is not None:
                    words.append(line.strip())
            self.at += 1

    def _numpy_section(self, *, keep: bool) -> None:
        words: list[list[str]] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if self._numpy_title(self.at):
                return
            if line.strip():
                if _indent(line) == 0:
                    entry = re.match(_NUMPY_ENTRY, line)
                    if not entry:
                        return
                    words = [self._start(name, None) for name in entry[1].split(",")] if keep else []
                for each in words if _indent(line) else []:
                    each.append(line.strip())
            self.at += 1

    def _rest_field(self, field: re.Match[str]) -> None:
        words: list[str] = []
        name = field[2].split()[-1] if field[2].split() else ""
        if field[1] in _REST_PARAMETERS and name:
            words = self._start(name, field[3])
        while self.at < len(self.lines) and self.lines[self.at].startswith((" ", "\t")):
            words.append(self.lines[self.at].strip())
            self.at += 1

    def _start(self, name: str, first: str | None) -> list[str]:
        words = self.parameters[name.strip().lstrip("*")] = [first.strip()] if first else []
        return words


def _google_title(line: str) -> str:
    header = _GOOGLE_HEADER.match(line.strip())
    return header[1].lower() if header else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
