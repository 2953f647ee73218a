"""Texts of peers as people may see them: a terminal obeys some characters, and others hide, or turn the writing round.

A character is shown if `str.isprintable` says so, which control characters, marks of direction and characters without
a width are not.
"""

from __future__ import annotations

import re

__all__ = [
    "encodable",
    "masked_uri",
    "printable",
    "safe",
    "safe_json",
    "spelled_out",
    "text_of",
    "without_paths",
    "without_places",
]

# Looked at one by one: so long as a text is ASCII, it costs nothing.
_SUSPECT = r"[^\n\t\x20-\x7e]"
_LINE_BREAKS = r" *+[\t\r\n][ \t\r\n]*+"
# A URL with a host, and what follows that, but for a full stop or the like behind it.
_PATH = r"""(?i)\b(https?|wss?)://([^\s/?\#'"]++)[/?\#](?:[^\s'"]*[^\s'":;,.)])?"""
# What is hardly a part of a path, an address or a host's name: words of letters alone, and numbers shorter than ports.
_WORD = r"[(\[]?(?:[^\W\d_]+(?:['\u2019][^\W\d_]+)*|[A-Z_]+|-?\d{1,3}(?:\.\d)?)[)\]]?[.,:;!?]*"
# A quotation, up to the end of the text if nothing closes it.
_QUOTED = r"""(?s)(?<!\w)(['"]).*?(?:\1(?!\w)|\Z)"""
# They are not printable for Python, and do no harm.
_BLANKS = frozenset(
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)


def encodable(text: str) -> str:
    """Returns a text with ``?`` for each half of a surrogate pair, which UTF-8 cannot hold, and so JSON cannot."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def text_of(error: BaseException) -> str:
    """Returns the text of an exception, `encodable`; a sentence in its place if reading it raises."""
    try:
        return encodable(str(error))
    except Exception as failure:
        return f"its text cannot be read ({type(failure).__name__})"


def printable(text: str, longest: int) -> str:
    """Returns the first ``longest`` characters of a text on one line: a blank for blanks with a line break or tabulator
    among them, and ``?`` for each other character that is not printable.
    """
    cut = text[:longest]
    if cut.isprintable():
        return cut
    return "".join(each if each.isprintable() else "?" for each in re.sub(_LINE_BREAKS, " ", cut))


def spelled_out(text: str) -> str:
    """Returns a text on one line, with an escape such as ``\\x1b`` for each character that is not printable."""
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def safe(text: str) -> str:
    """Returns a text as `spelled_out` does, but for line feeds, tabulators and blanks, which stay."""
    return re.sub(_SUSPECT, lambda found: found[0] if _is_harmless(found[0]) else _escape(found[0]), text)


def safe_json(text: str) -> str:
    """Returns a JSON text of the same value, in which such characters are escaped as JSON has it."""
    return re.sub(
        _SUSPECT, lambda found: found[0] if _is_harmless(found[0]) else _json_escape(found[0]), text
    )


def masked_uri(uri: str) -> str:
    """Returns a URI with ``***`` for its user information, its query and its fragment, which may hold secrets."""
    uri = re.sub(r"^([^/?#]*//)[^/?#]*@", r"\1***@", uri, count=1)
    uri = re.sub(r"\?[^#]*", "?***", uri, count=1)
    return re.sub(r"(?s)#.*", "#***", uri, count=1)


def without_paths(text: str) -> str:
    """Returns a text whose URLs of HTTP and WebSocket end with their host: some services have a key in the path."""
    return re.sub(_PATH, r"\1://\2/...", text)


def without_places(text: str) -> str:
    """Returns the cause of a failure for anybody to read: ``...`` stands for where it names files, hosts and ports.

    Only plain words and short numbers are kept, since a path may look like anything. Everything between two places goes
    with them, because paths have blanks. The name of a host or file that looks like any other word is kept.
    """
    words = re.sub(_QUOTED, "/", text).split()
    places = [number for number, word in enumerate(words) if not re.fullmatch(_WORD, word)]
    if not places:
        return text
    return " ".join([*words[: places[0]], "...", *words[places[-1] + 1 :]])


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character in _BLANKS


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
