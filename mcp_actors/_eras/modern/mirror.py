"""Header mirroring: HTTP headers that repeat parts of the body, so that proxies need not read the body (SEP-2243).

A client makes the headers (`mirrored`). A server must refuse a request whose headers differ from its body. The
checks are written in the order in which they apply: the version header is present, *the metadata keys are present*, the
two agree, *the version is served*, then all the others; those in italics are in ``request.py``. Header names are in
lower case. Annotations in a tool's input schema decide which parameters are mirrored: see ``annotations.py``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_actors._eras.modern.annotations import PARAM_PREFIX, MirroredParam
from mcp_actors._eras.modern.methods import SERVER_METHODS
from mcp_actors.errors import HeaderMismatch, LocalProtocolError

__all__ = [
    "METHOD_HEADER",
    "NAME_HEADER",
    "PARAM_PREFIX",
    "VERSION_HEADER",
    "check_names",
    "check_params",
    "check_version",
    "decode_value",
    "encode_value",
    "mirrored",
    "version_header",
]

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"

# The marks of a value in base64; they are case-sensitive.
_PREFIX, _SUFFIX = "=?base64?", "?="
# Larger integers lose digits in languages whose numbers are doubles.
MAX_INTEGER = 2**53 - 1
# 42.0 is 42. Beside leading zeros there are as many digits as MAX_INTEGER has: a longer number is never legal.
_INTEGER_TEXT = re.compile(r"(-?0*[0-9]{1,16})(?:\.0+)?")
# Characters of a value that an error message quotes.
_SHOWN = 80


# -- values ------------------------------------------------------------------------------------------------------------


def encode_value(text: str) -> str:
    """Returns the header value for a text: the text itself if a header can hold it, otherwise the marked base64 of it.

    The value is printable ASCII without a space at its ends. Raises `UnicodeEncodeError` for lone surrogates.
    """
    if _is_plain(text) and text == text.strip(" ") and not _is_marked(text):
        return text
    return f"{_PREFIX}{base64.b64encode(text.encode()).decode('ascii')}{_SUFFIX}"


def decode_value(value: str) -> str:
    """Returns the text that a header value stands for, without white space at its ends.

    A value without both marks is literal. Raises `HeaderMismatch` for characters that no header may contain, and for
    marked base64 with a wrong alphabet, wrong padding or content that is not UTF-8.
    """
    value = value.strip(" \t")
    # A tab between two characters is legal (RFC 9110 section 5.5), though our client encodes it.
    if not _is_plain(value) and not _is_plain(value.replace("\t", " ")):
        raise HeaderMismatch("a header value holds characters that are not allowed in it")
    if not _is_marked(value) or len(value) < len(_PREFIX) + len(_SUFFIX):
        return value
    try:
        return binascii.a2b_base64(value[len(_PREFIX) : -len(_SUFFIX)], strict_mode=True).decode()
    except ValueError:
        raise HeaderMismatch(f"a header value is not base64 of UTF-8: {_shown(value)}") from None


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_marked(text: str) -> bool:
    return text.startswith(_PREFIX) and text.endswith(_SUFFIX)


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")


# -- the client --------------------------------------------------------------------------------------------------------


def mirrored(
    version: str,
    method: str,
    params: Mapping[str, Any],
    annotated: Sequence[MirroredParam] = (),
    target: str | None = None,
) -> dict[str, str]:
    """Returns the headers of a request or notification.

    ``annotated`` are the mirrored parameters of the tool that it calls, and ``target`` is that of a method of an
    extension (`Method.target`). Raises `LocalProtocolError` for a method or an
    integer that a header cannot hold.
    """
    if not _is_plain(method) or method != method.strip(" "):
        raise LocalProtocolError(f"a method must be printable ASCII to be sent over HTTP: {_shown(method)}")
    metadata = {VERSION_HEADER: version, METHOD_HEADER: method}
    known = SERVER_METHODS.get(method)
    if known is not None:
        target = known.target
    if target is not None:
        name = params.get(target)
        if isinstance(name, str):
            metadata[NAME_HEADER] = encode_value(name)
    if annotated:
        arguments = params.get("arguments")
        for param in annotated:
            value = _value_at(arguments, param.path)
            if _is_integer(value) and abs(value) > MAX_INTEGER:
                raise LocalProtocolError(
                    f"{'.'.join(param.path)} is sent in a header too, so it must be within ±{MAX_INTEGER}"
                )
            text = _text_of(value)
            if text is not None:
                metadata[param.header] = encode_value(text)
    return metadata


def _value_at(arguments: Any, path: Sequence[str]) -> Any:
    """The value at a path; ``None`` if it is absent, since neither is mirrored."""
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _is_integer(value: Any) -> bool:
    """Whether a value is an integer in JSON Schema: 42.0 is, true is not."""
    return type(value) is int or (type(value) is float and value.is_integer())


def _text_of(value: Any) -> str | None:
    """The text of a value; ``None`` if it is absent or of a type that an annotated parameter cannot have."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if _is_integer(value) else None


# -- the server --------------------------------------------------------------------------------------------------------


def version_header(metadata: Mapping[str, str]) -> str:
    """Returns the version in the header. Raises `HeaderMismatch` if the header is missing."""
    version = metadata.get(VERSION_HEADER)
    if version is None:
        raise _missing(VERSION_HEADER)
    return version.strip(" \t")


def check_version(metadata: Mapping[str, str], version: str) -> None:
    """Raises `HeaderMismatch` unless the header has the same version as ``_meta``."""
    header = metadata.get(VERSION_HEADER)
    if header != version:
        if header is None:
            raise _missing(VERSION_HEADER)
        if header.strip(" \t") != version:
            raise _differs(VERSION_HEADER, header, version)


def check_names(
    metadata: Mapping[str, str], method: str, params: Mapping[str, Any], target: str | None
) -> None:
    """Raises `HeaderMismatch` unless the headers have the method and the name of its target.

    ``target`` is the member of ``params`` with this name (`Method.target`); without one the header is not checked.
    """
    header = metadata.get(METHOD_HEADER)
    if header != method:
        if header is None:
            raise _missing(METHOD_HEADER)
        if header.strip(" \t") != method:
            raise _differs(METHOD_HEADER, header, method)
    if target is not None:
        name = params.get(target)
        # A name that is no string counts as absent: it is refused with the params later, but a header for it here.
        _check_text(metadata, NAME_HEADER, name if isinstance(name, str) else None)


def check_params(
    metadata: Mapping[str, str], annotated: Sequence[MirroredParam], arguments: Mapping[str, Any] | None
) -> None:
    """Raises `HeaderMismatch` unless each annotated parameter equals its header; an absent one must have none."""
    for param in annotated:
        value = _value_at(arguments, param.path)
        if _is_integer(value):
            _check_integer(metadata, param.header, int(value))
        else:
            _check_text(metadata, param.header, _text_of(value))


def _check_text(metadata: Mapping[str, str], name: str, text: str | None) -> None:
    header = metadata.get(name)
    if header is None:
        if text is not None:
            raise _missing(name)
        return
    if text is None:
        raise HeaderMismatch(f"header mismatch: {name} is sent, but the body has no such value")
    if decode_value(header) != text:
        raise _differs(name, header, text)


def _check_integer(metadata: Mapping[str, str], name: str, number: int) -> None:
    header = metadata.get(name)
    if header is None:
        raise _missing(name)
    if abs(number) > MAX_INTEGER:
        raise HeaderMismatch(f"header mismatch: {name} must be within ±{MAX_INTEGER}")
    match = _INTEGER_TEXT.fullmatch(decode_value(header))
    if match is None or int(match[1]) != number:
        raise _differs(name, header, str(number))


def _missing(name: str) -> HeaderMismatch:
    return HeaderMismatch(f"header mismatch: {name} is missing")


def _differs(name: str, header: str, text: str) -> HeaderMismatch:
    return HeaderMismatch(f"header mismatch: {name} says {_shown(header)}, the body says {_shown(text)}")
