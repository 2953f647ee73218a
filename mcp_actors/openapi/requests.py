"""The arguments of a call as an HTTP request: every style of parameter, and every kind of body, of OpenAPI 3.

Nothing that a model writes gets out of its place: a value is percent-encoded, a path keeps its number of segments, and
a header has no line break.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec

from mcp_actors.errors import ToolError
from mcp_actors.openapi.document import object_of, text_of
from mcp_actors.openapi.operations import Body, Operation, OperationArgument

__all__ = ["RequestParts", "request_parts"]

# What stays as it is where a parameter says `allowReserved`, but for what ends a value (RFC 3986 section 2.2).
_RESERVED = "!$'()*,/:;@?"
# RFC 9110 section 5.5: what a header may have, in latin-1.
_HEADER = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class RequestParts(msgspec.Struct):
    """A request before anybody's credentials are in it. ``path`` and ``query`` are percent-encoded."""

    method: str
    path: str
    query: list[str]
    headers: list[tuple[str, str]]
    cookies: list[str]
    content: bytes | None

    def add_query(self, name: str, value: str) -> None:
        self.query.append(f"{_encoded(name)}={_encoded(value)}")

    def add_header(self, name: str, value: str) -> None:
        """Raises `ToolError` for a value that no header can have."""
        self.headers.append((name, _header_value(name, value)))

    def add_cookie(self, name: str, value: str) -> None:
        self.cookies.append(f"{_encoded(name)}={_encoded(value)}")


def request_parts(operation: Operation, arguments: Mapping[str, Any]) -> RequestParts:
    """Makes a request of arguments that fit the input schema of the operation.

    Raises:
        ToolError: A value cannot stand where it goes; the text says why to the model.
    """
    parts = RequestParts(operation.method, operation.path, [], [], [], None)
    for each in operation.arguments:
        if each.name not in arguments:
            continue
        value = arguments[each.name]
        if each.place == "path":
            parts.path = parts.path.replace(f"{{{each.wire}}}", _in_path(each, value))
        elif value is None:
            continue
        elif each.place == "query":
            parts.query += _in_query(each, value)
        elif each.place == "header":
            parts.headers.append((each.wire, _header_value(each.name, _simple(each, value))))
        else:
            parts.cookies += _in_query(each, value)
    if operation.body is not None:
        _add_body(parts, operation.body, arguments)
    return parts


# -- parameters (OpenAPI, Style Values) ------------------------------------------------------------------------------


def _in_path(argument: OperationArgument, value: Any) -> str:
    if value is None or value in ("", [], {}):
        raise ToolError(f"{argument.name}: must not be empty, because it is a part of the path")
    if any(step in (".", "..") for text in _texts(value) for step in re.split(r"[/\\]", text)):
        # RFC 3986 section 5.2.4: they are taken out of a path, which then is that of another operation.
        raise ToolError(f"{argument.name}: a part of a path cannot be '.' or '..'")
    if argument.as_json:
        return _encoded(_json(value))
    if argument.style == "label":
        text = "." + _joined(argument, value, "." if argument.explode else ",")
        if text in (".", ".."):
            raise ToolError(f"{argument.name}: a part of a path cannot be '.' or '..'")
        return text
    if argument.style != "matrix":
        return _joined(argument, value, ",")
    name = _encoded(argument.wire)
    if argument.explode and isinstance(value, dict):
        return "".join(f";{_encoded(key)}={_encoded(_text(each))}" for key, each in value.items())
    if argument.explode and isinstance(value, list):
        return "".join(f";{name}={_encoded(_text(each))}" for each in value)
    return f";{name}={_joined(argument, value, ',')}"


def _joined(argument: OperationArgument, value: Any, by: str) -> str:
    if isinstance(value, list):
        return by.join(_encoded(_text(each)) for each in value)
    if isinstance(value, dict):
        between = "=" if argument.explode else by
        return by.join(f"{_encoded(key)}{between}{_encoded(_text(each))}" for key, each in value.items())
    return _encoded(_text(value))


def _simple(argument: OperationArgument, value: Any) -> str:
    """The text of a header, which is not percent-encoded."""
    if argument.as_json:
        return _json(value)
    if isinstance(value, list):
        return ",".join(map(_text, value))
    if isinstance(value, dict):
        between = "=" if argument.explode else ","
        return ",".join(f"{key}{between}{_text(each)}" for key, each in value.items())
    return _text(value)


def _in_query(argument: OperationArgument, value: Any) -> list[str]:
    """The pairs of a query or of cookies, encoded."""
    name = argument.wire
    if argument.as_json:
        return [f"{_encoded(name)}={_encoded(_json(value))}"]
    return list(_pairs(name, value, argument.style, argument.explode, argument.allow_reserved))


def _pairs(name: str, value: Any, style: str, explode: bool, reserved: bool) -> Iterator[str]:
    def written(text: str) -> str:
        return quote(text, safe=_RESERVED) if reserved else _encoded(text)

    if style == "deepObject":
        for path, each in _leaves(name, value):
            yield f"{_encoded(path)}={written(_text(each))}"
    elif isinstance(value, dict):
        if explode:
            for key, each in value.items():
                yield f"{_encoded(key)}={written(_text(each))}"
        elif value:
            by = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}.get(style, ",")
            steps = [step for key, each in value.items() for step in (key, _text(each))]
            yield f"{_encoded(name)}={by.join(map(written, steps))}"
    elif isinstance(value, list):
        if explode:
            for each in value:
                yield f"{_encoded(name)}={written(_text(each))}"
        elif value:
            by = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}.get(style, ",")
            yield f"{_encoded(name)}={by.join(written(_text(each)) for each in value)}"
    else:
        yield f"{_encoded(name)}={written(_text(value))}"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of an object as ``name[member][0]``: OpenAPI has one level of it, and APIs have more."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(f"{name}[{key}]", each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _leaves(f"{name}[{index}]", each)
    elif value is not None:
        yield name, value


def _text(value: Any) -> str:
    """The text of a value. Below the first level there is no style but JSON."""
    return value if isinstance(value, str) else _json(value)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in (key, _text(each))]
    return map(_text, value) if isinstance(value, list) else [_text(value)]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _encoded(text: str) -> str:
    return quote(text, safe="")


def _header_value(name: str, text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ToolError(f"{name}: a header has no line breaks and no characters beyond latin-1")
    return text


# -- bodies ----------------------------------------------------------------------------------------------------------


def _add_body(parts: RequestParts, body: Body, arguments: Mapping[str, Any]) -> None:
    if body.argument:
        if body.argument not in arguments:
            return
        value = arguments[body.argument]
    else:
        value = {member: arguments[name] for name, member in body.members.items() if name in arguments}
        if not value and not body.required:
            return
    media_type = body.media_type
    if body.kind == "json":
        media_type = "application/json" if "*" in media_type else media_type
        parts.content = msgspec.json.encode(value)
    elif body.kind == "form":
        pairs = (pair for name, each in value.items() for pair in _form_pairs(body, name, each))
        parts.content = "&".join(pairs).encode("ascii")
    elif body.kind == "text":
        parts.content = _text(value).encode()
        if "charset" not in media_type:
            media_type += "; charset=utf-8"
    elif body.kind == "bytes":
        _, parts.content, own_type = _file(body.argument, value)
        if media_type.endswith("*") or "octet-stream" in media_type:
            media_type = own_type or "application/octet-stream"
    else:
        request = httpx2.Request("POST", "http://form.invalid", files=list(_form_parts(body, value)))
        parts.content = request.read()
        media_type = request.headers["content-type"]
    parts.add_header("content-type", media_type)


def _form_pairs(body: Body, name: str, value: Any) -> Iterator[str]:
    """The pairs of a member of a form (OpenAPI, Encoding Object); HTML has no null, so it is an empty text."""
    if value is None:
        yield f"{_encoded(name)}="
        return
    encoding = object_of(body.encoding.get(name))
    style = text_of(encoding.get("style"))
    if isinstance(value, dict) and not style:
        yield f"{_encoded(name)}={_encoded(_json(value))}"
        return
    explode = encoding.get("explode", style in ("", "form"))
    yield from _pairs(name, value, style or "form", explode is True, encoding.get("allowReserved") is True)


def _form_parts(body: Body, value: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str | None, bytes, str]]]:
    for name, each in value.items():
        encoding = object_of(body.encoding.get(name))
        own_type = text_of(encoding.get("contentType")).partition(",")[0].strip()
        for item in each if isinstance(each, list) and _is_repeated(each, name in body.files) else [each]:
            if name in body.files:
                filename, content, media_type = _file(name, item)
                if not media_type and own_type and "*" not in own_type:
                    media_type = own_type
                yield name, (filename, content, media_type or "application/octet-stream")
            elif isinstance(item, (dict, list)):
                yield name, (None, _json(item).encode(), own_type or "application/json")
            elif item is not None:
                yield name, (None, _text(item).encode(), own_type or "text/plain; charset=utf-8")


def _is_repeated(values: Sequence[Any], are_files: bool) -> bool:
    return are_files or not any(isinstance(each, (dict, list)) for each in values)


def _file(name: str, value: Any) -> tuple[str, bytes, str]:
    """The name, the bytes and the media type of what a model has written for a file."""
    given = object_of(value)
    if "base64" in given:
        try:
            content = base64.b64decode(given["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise ToolError(f"{name}: its member base64 is not Base64") from None
    elif "text" in given:
        content = str(given["text"]).encode()
    else:
        raise ToolError(f"{name}: a file needs the member text or base64")
    media_type = str(given.get("media_type") or "")
    if not _HEADER.fullmatch(media_type):
        raise ToolError(f"{name}: its media_type has characters that it cannot have")
    filename = re.sub(r'[\x00-\x1f\x7f"\\/]', "_", str(given.get("filename") or name))
    return filename, content, media_type
