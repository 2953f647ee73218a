"""Decodes and encodes messages, strictly: one JSON value, valid UTF-8, bounded depth, no repeated member names.

A message is decoded once. Its ``params`` and ``result`` stay raw JSON until code decodes them that knows their type.
"""

from __future__ import annotations

import gc
import importlib
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_actors.errors import INVALID_REQUEST, LocalProtocolError, MalformedMessage

__all__ = [
    "COLLECTOR_PAUSES",
    "LONGEST_ID",
    "MAX_DEPTH",
    "JsonRpcError",
    "JsonRpcMessage",
    "JsonRpcNotification",
    "JsonRpcRequest",
    "JsonRpcResult",
    "RequestId",
    "check_text",
    "decode",
    "decode_text",
    "decode_value",
    "encode_failure",
    "encode_notification",
    "encode_params",
    "encode_reply",
    "encode_request",
    "encode_value",
]


# -- the four forms of JSON-RPC messages, with their payloads still encoded ----------------------------------------
#
# None of them can be part of a reference cycle, so the garbage collector need not track them (``gc=False``).

# The JSON type of an id matters: "1" is not 1. MCP does not allow null.
RequestId = int | str


class JsonRpcRequest(msgspec.Struct, frozen=True, gc=False):
    """A request. The answer is one `JsonRpcResult` or `JsonRpcError` with the same id.

    ``params`` is the raw JSON, ``None`` when absent.
    """

    id: RequestId
    method: str
    params: msgspec.Raw | None = None


class JsonRpcNotification(msgspec.Struct, frozen=True, gc=False):
    """A message that is never answered. ``params`` is the raw JSON, ``None`` when absent.

    ``about`` is the request of ours that it came with, where the binding tells that; the message does not say it.
    """

    method: str
    params: msgspec.Raw | None = None
    about: RequestId | None = None


class JsonRpcResult(msgspec.Struct, frozen=True, gc=False):
    """A successful answer; ``result`` is the raw JSON."""

    id: RequestId
    result: msgspec.Raw


class JsonRpcError(msgspec.Struct, frozen=True, gc=False):
    """An error answer; ``id`` is ``None`` if the request was unreadable."""

    id: RequestId | None
    code: int
    message: str
    data: Any = None


JsonRpcMessage = JsonRpcRequest | JsonRpcNotification | JsonRpcResult | JsonRpcError


# Levels of nesting. No real message needs more, and CPython's own limit differs between versions.
MAX_DEPTH = 128
# Messages of a batch: as many as a connection may have in flight. Each entry becomes several objects, so without a
# limit two bytes of a hostile batch would cost a kilobyte.
MAX_BATCH = 1024
# Arrays, objects and members of objects in a message. Each becomes an object of some hundred bytes or a place in a
# table, so without a limit three bytes of a hostile message would cost a hundred, and 16 MiB seconds in which nobody
# else is served. This many take a fifth of a second. Other elements of arrays cost less than the bytes that bring them.
MAX_PARTS = 500_000
# Bytes that a long message may have beside its params or result, if it looks as if a member were repeated there: only a
# hostile one has more, and looking at all of it would take seconds.
MAX_REST = 64 * 1024
# Bytes of a value from which on the garbage collector pauses while it is decoded: a decoded value has no cycles, and
# passes over millions of new objects took most of the time.
COLLECTOR_PAUSES = 256 * 1024
# Characters of an id, which each answer repeats: with a longer one an answer could be too long to be sent.
LONGEST_ID = 1024

# Length in bytes from which on it is faster to search a message in parts.
LONG = 2048


class _ErrorMember(msgspec.Struct):
    code: int
    message: str
    data: Any = None


class _Incoming(msgspec.Struct, gc=False):
    jsonrpc: str | UnsetType = UNSET
    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: _ErrorMember | UnsetType = UNSET


class _ReplyOut(msgspec.Struct, gc=False):
    jsonrpc: str
    id: RequestId
    result: Any


class _RequestOut(msgspec.Struct, gc=False):
    jsonrpc: str
    id: RequestId
    method: str
    params: Any


class _NotificationOut(msgspec.Struct, omit_defaults=True, gc=False):
    jsonrpc: str
    method: str
    params: Any = None


_decode_incoming = msgspec.json.Decoder(_Incoming).decode
_decode_any = msgspec.json.Decoder().decode
_decode_array = msgspec.json.Decoder(Annotated[list[Raw], msgspec.Meta(max_length=MAX_BATCH)]).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode

# A message that repeats a member has at least this length, without its method and its payload. A longer one that has
# each member once has these quotation marks, without those of a string as id.
_SHORT_REQUEST = len('{"jsonrpc":"2.0","id":0,"id":0,"method":"","params":}')
_SHORT_REPLY = len('{"jsonrpc":"2.0","id":0,"id":0,"result":}')
_QUOTES_OF_REQUEST = '{"jsonrpc":"2.0","id":0,"method":"","params":}'.count('"')
_QUOTES_OF_REPLY = '{"jsonrpc":"2.0","id":0,"result":}'.count('"')

# Bytes that are split at their quotes at once, so that the pieces stay in the processor's caches.
_SPLIT_BYTES = 16 * 1024
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{}:"))


def decode(
    data: bytes, *, max_depth: int = MAX_DEPTH
) -> JsonRpcMessage | list[JsonRpcMessage | MalformedMessage]:
    """Decodes one frame: a message, or a list for a JSON-RPC batch (JSON-RPC 2.0, section 6).

    Malformed entries of a batch are errors in the list.

    Raises:
        MalformedMessage: with the code -32700 for a frame that is not JSON and -32600 for other JSON.
    """
    # Each level needs two bytes and a bracket. Where that is not too many, the text needs no other look.
    if not data.isascii() or (
        len(data) > 2 * max_depth and (len(data) >= LONG or data.count(b"{") + data.count(b"[") > max_depth)
    ):
        _check_text(data, max_depth)
    if data[:1] != b"{" and data.lstrip()[:1] == b"[":
        return _decode_batch(data)
    return _decode_one(data)


def decode_value(raw: bytes | Raw) -> Any:
    """Decodes a JSON value that `decode` left raw. Raises `MalformedMessage` if it is not JSON."""
    pauses = len(raw) > COLLECTOR_PAUSES and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedMessage(f"invalid JSON: {error}") from None
    finally:
        if pauses:
            gc.enable()


def decode_text(text: str) -> Any:
    """Decodes JSON that a peer sent inside of a string, with the limits that messages have.

    Raises:
        MalformedMessage: It is not JSON, too deep, or has too many parts.
    """
    data = text.encode(errors="replace")
    _check_text(data, MAX_DEPTH)
    return decode_value(data)


encode_value = _encode
"""Encodes a plain JSON value. Raises `TypeError` for a value that JSON does not have."""


def encode_reply(id: RequestId, result: Any) -> bytes:
    """Encodes an answer. Raises `TypeError` and `ValueError` for what JSON cannot hold."""
    try:
        return _encode(_ReplyOut("2.0", id, result))
    except UnicodeEncodeError as error:
        raise ValueError(_where_half_a_pair("result", result) or str(error)) from None


def encode_failure(id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    # No schema of MCP allows a null id, so an error about an unreadable request has no id member.
    return _encode(
        {"jsonrpc": "2.0", "error": error} if id is None else {"jsonrpc": "2.0", "id": id, "error": error}
    )


def encode_request(id: RequestId, method: str, params: Any) -> bytes:
    """Encodes a request.

    Raises:
        TypeError: There is a value that JSON does not have; the message says where.
        LocalProtocolError: There is a text with half of a surrogate pair; the message says where.
    """
    try:
        return _encode(_RequestOut("2.0", id, method, params))
    except (TypeError, UnicodeEncodeError) as error:
        raise _unsendable(method, params, error) from None


def encode_params(method: str, params: Any) -> bytes:
    """Encodes the params of a request by themselves, to find its answer by; raises as `encode_request`."""
    try:
        return _encode(params)
    except (TypeError, UnicodeEncodeError) as error:
        raise _unsendable(method, params, error) from None


def _unsendable(method: str, params: Any, error: Exception) -> Exception:
    if isinstance(error, TypeError):
        return TypeError(_where_not_json(method, params) or str(error))
    return _refusal(
        _where_half_a_pair("the method", method) or _where_half_a_pair(method, params) or str(error)
    )


def _where_not_json(place: str, value: Any) -> str:
    """Names the first value inside of ``value`` that JSON does not have; nothing for a value that JSON can hold."""
    inside = _inside(place, value)
    if inside is None:
        try:
            encode_value(value)
        except TypeError:
            return f"{place} is a {type(value).__name__}, which JSON does not have"
        return ""
    return next((found for found in (_where_not_json(*each) for each in inside) if found), "")


def _where_half_a_pair(place: str, value: Any) -> str:
    """Names the first half of a surrogate pair inside of ``value``: Python's texts can have one, and UTF-8 cannot."""
    inside = _inside(place, value)
    if inside is None:
        position = _half_a_pair(value)
        return "" if position is None else _half_at(place, position)
    for name in value if isinstance(value, dict) else ():
        if (position := _half_a_pair(name)) is not None:
            return f"{place} has a name with half of a surrogate pair at position {position}"
    return next((found for found in (_where_half_a_pair(*each) for each in inside) if found), "")


def _half_at(place: str, position: int) -> str:
    return f"{place} has half of a surrogate pair at position {position}"


def _half_a_pair(value: Any) -> int | None:
    try:
        encode_value(value)
    except UnicodeEncodeError as error:
        return error.start
    return None


def _inside(place: str, value: Any) -> list[tuple[str, Any]] | None:
    """The values inside of a container with their places; ``None`` for another value."""
    if isinstance(value, dict):
        return [(f"{place}.{key}", each) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{place}[{index}]", each) for index, each in enumerate(value)]
    return None


def _refusal(where: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{where}, which UTF-8 cannot carry, and nothing was sent: replace it, as "
        "text.encode(errors='replace').decode() does"
    )


def check_text(place: str, text: str) -> None:
    """Raises the `LocalProtocolError` of `encode_request` for a text of a request that is sent in another place too."""
    position = _half_a_pair(text)
    if position is not None:
        raise _refusal(_half_at(place, position))


def encode_notification(method: str, params: Any = None) -> bytes:
    """Encodes a notification; raises as `encode_request`."""
    try:
        return _encode(_NotificationOut("2.0", method, params))
    except (TypeError, UnicodeEncodeError) as error:
        raise _unsendable(method, params, error) from None


def _check_text(data: bytes, max_depth: int) -> None:
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"invalid UTF-8 at byte {error.start}") from None
    # Each part needs a byte.
    if _has_more_brackets(data, max_depth) or (
        len(data) > MAX_PARTS and data.count(b":") + data.count(b"{") + data.count(b"[") > MAX_PARTS
    ):
        structure = _outside_of_strings(data).translate(None, _NOT_STRUCTURE)
        if len(structure) - structure.count(b"]") - structure.count(b"}") > MAX_PARTS:
            raise MalformedMessage(f"more than {MAX_PARTS} arrays, objects and members of objects")
        if _is_deeper(structure.translate(None, b":"), max_depth):
            raise MalformedMessage(f"nested deeper than {max_depth} levels")


def _outside_of_strings(data: bytes) -> bytes:
    """Returns the bytes between the strings. It is linear for every input; an unclosed string ends with the data.

    A regular expression takes twenty times as long for millions of short strings.
    """
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside, in_string = [], 0
    for start in range(0, len(data), _SPLIT_BYTES):
        pieces = data[start : start + _SPLIT_BYTES].split(b'"')
        outside.append(b"".join(pieces[in_string::2]))
        in_string ^= (len(pieces) - 1) & 1
    return b"".join(outside)


def _has_more_brackets(data: bytes, number: int) -> bool:
    if len(data) < LONG:
        return data.count(b"{") + data.count(b"[") > number
    # Where brackets are rare, searching for the next one is ten times as fast as counting them all.
    for bracket in (b"{", b"["):
        place = data.find(bracket)
        while place >= 0:
            number -= 1
            if number < 0:
                return True
            place = data.find(bracket, place + 1)
    return False


def _is_deeper(brackets: bytes, max_depth: int) -> bool:
    depth = 0
    for bracket in brackets:
        if bracket in b"[{":
            depth += 1
            if depth > max_depth:
                return True
        else:
            depth -= 1
    return False


def _decode_batch(data: bytes) -> list[JsonRpcMessage | MalformedMessage]:
    try:
        entries = _decode_array(data)
    except msgspec.ValidationError:
        raise MalformedMessage(f"a batch of more than {MAX_BATCH} messages", code=INVALID_REQUEST) from None
    except msgspec.DecodeError as error:
        raise MalformedMessage(f"invalid JSON: {error}") from None
    if not entries:
        raise MalformedMessage("an empty batch", code=INVALID_REQUEST)
    return [_decode_entry(entry) for entry in entries]


def _decode_entry(entry: Raw) -> JsonRpcMessage | MalformedMessage:
    try:
        return _decode_one(bytes(entry))
    except MalformedMessage as error:
        return error


def _decode_one(data: bytes) -> JsonRpcMessage:
    try:
        message = _decode_incoming(data)
    except msgspec.ValidationError as error:
        raise MalformedMessage(
            f"not a JSON-RPC message: {error}", code=INVALID_REQUEST, id=_readable_id(data)
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedMessage(f"invalid JSON: {error}") from None
    id = message.id
    if message.error is UNSET and message.jsonrpc == "2.0" and (id.__class__ is int or id.__class__ is str):
        # A message of a common form that has no room for another member repeats none, and needs no other check.
        method, params, result = message.method, message.params, message.result
        if method is UNSET:
            if result is not UNSET and (
                (room := len(data) - len(result)) < _SHORT_REPLY
                or _has_each_member_once(data, id, result, room - _SHORT_REPLY, _QUOTES_OF_REPLY)
            ):
                return JsonRpcResult(id, result)
        elif (
            result is UNSET
            and params is not UNSET
            and (
                (room := len(data) - len(method) - len(params)) < _SHORT_REQUEST
                or _has_each_member_once(data, id, params, room - _SHORT_REQUEST, _QUOTES_OF_REQUEST)
            )
        ):
            return JsonRpcRequest(id, method, params)
    if _may_repeat_members(data, message) and _repeats_members(data, message):
        raise MalformedMessage("a member name occurs twice", code=INVALID_REQUEST)
    if len(data) > LONGEST_ID and isinstance(id, str) and len(id) > LONGEST_ID:
        raise MalformedMessage(
            f"the id has {len(id)} characters, the limit is {LONGEST_ID}", code=INVALID_REQUEST
        )
    if message.jsonrpc != "2.0":
        raise MalformedMessage('"jsonrpc" must be "2.0"', code=INVALID_REQUEST, id=_readable_id(data))
    classified = _classify(message)
    if classified is None:
        raise MalformedMessage(
            "neither a request, a notification nor a response", code=INVALID_REQUEST, id=_readable_id(data)
        )
    return classified


def _classify(message: _Incoming) -> JsonRpcMessage | None:
    """The form follows from the members (JSON-RPC 2.0, sections 4 and 5); ``None`` for any other combination."""
    id = message.id
    if message.method is not UNSET:
        if message.result is not UNSET or message.error is not UNSET or id is None:
            return None
        params = None if message.params is UNSET else message.params
        return (
            JsonRpcNotification(message.method, params)
            if id is UNSET
            else JsonRpcRequest(id, message.method, params)
        )
    if message.error is not UNSET:
        if message.result is not UNSET:
            return None
        error = message.error
        return JsonRpcError(None if id is UNSET else id, error.code, error.message, error.data)
    if message.result is not UNSET and id is not UNSET and id is not None:
        return JsonRpcResult(id, message.result)
    return None


def _readable_id(data: bytes) -> RequestId | None:
    try:
        value = _decode_any(_decode_members(data)["id"])
    except (msgspec.DecodeError, KeyError, RecursionError):
        return None
    is_id = type(value) is int or (isinstance(value, str) and len(value) <= LONGEST_ID)
    return value if is_id else None


def _has_each_member_once(data: bytes, id: RequestId, payload: Raw, excess: int, quotes: int) -> bool:
    """A cheap test for a request with params or a result; false says nothing.

    ``excess`` is by how much the message is longer than it would have to be to repeat a member, were its id one digit.
    Blanks make it longer, too; but another member, and a mark inside of a string, brings more quotation marks.
    """
    if id.__class__ is str:
        if len(id) > LONGEST_ID:
            return False
        excess -= len(id) + 1
        quotes += 2
    else:
        excess -= len(str(id)) - 1
    if excess < 0:
        return True
    if len(data) >= LONG:
        return _around(data, payload).count(b'"') == quotes
    return data.count(b'"') - bytes(payload).count(b'"') == quotes


def _may_repeat_members(data: bytes, message: _Incoming) -> bool:
    """A cheap test, which is exact when it returns false. A name is repeated literally or is spelled with escapes.

    Only the members of this form of message are searched for: a repeated one was decoded, so it decided the form.
    """
    if len(data) >= LONG:
        data = _around(data, message.params if message.method is not UNSET else message.result)
    count = data.count
    if message.method is not UNSET:
        repeated = count(b'"method"') > 1 or count(b'"params"') > 1
    else:
        repeated = count(b'"result"') > 1 or count(b'"error"') > 1
    return (
        repeated
        or count(b'"id"') > 1
        or count(b'"jsonrpc"') > 1
        or (b"\\u00" in data and (b"\\u006" in data or b"\\u007" in data))
    )


def _around(data: bytes, payload: Raw | UnsetType) -> bytes:
    """The message with ``0`` for its payload, which contains no members of the message itself."""
    if payload is UNSET:
        return data
    raw = bytes(payload)
    place = data.find(raw[:64])
    return data[:place] + b"0" + data[place + len(raw) :] if data.startswith(raw, place) else data


def _repeats_members(data: bytes, message: _Incoming) -> bool:
    """The exact test; of a long request, notification or result it looks at no more than `MAX_REST` bytes."""
    repeated = False
    if len(data) >= LONG:
        payload = message.params if message.method is not UNSET else message.result
        data = _around(data, payload)
        if payload is not UNSET and len(data) > MAX_REST:
            return True

    def last_call_is_outermost(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeated
        names = [name for name, _ in pairs]
        repeated = len(set(names)) < len(names)

    # Imported where it is used: few messages come here. Numbers stay text, because CPython refuses to convert very long
    # ones.
    importlib.import_module("json").loads(
        data, object_pairs_hook=last_call_is_outermost, parse_int=str, parse_float=str
    )
    return repeated
