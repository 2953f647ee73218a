"""Any byte string at all gets an envelope, a list or a `MalformedMessage`; what we encode comes back as it was."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_actors._wire import codec
from mcp_actors._wire.codec import JsonRpcError, JsonRpcNotification, JsonRpcRequest, JsonRpcResult
from mcp_actors.errors import INVALID_REQUEST, PARSE_ERROR, MalformedMessage

ENVELOPES = (JsonRpcRequest, JsonRpcNotification, JsonRpcResult, JsonRpcError)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
IDS = INT64 | TEXT
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)

# JSON that is nearly a message: the right names with anything at all in them.
NAMES = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "extra"])
NEARLY = st.dictionaries(NAMES, VALUES | st.just("2.0") | st.just({"code": 1, "message": "m"}))


def still_raw(raw: msgspec.Raw) -> None:
    """What a message left undecoded is JSON by its form; a number or an escape in it may still be out of range."""
    try:
        codec.decode_value(raw)
    except MalformedMessage:
        assert b"e" in bytes(raw).lower() or b"\\" in bytes(raw) or len(bytes(raw)) > 300


def decoded(data: bytes) -> object:
    """What `decode` gave, checked to be one of the three things it may give."""
    try:
        result: object = codec.decode(data)
    except MalformedMessage as error:
        result = error
    for entry in result if isinstance(result, list) else [result]:
        assert isinstance(entry, (*ENVELOPES, MalformedMessage))
        if isinstance(entry, MalformedMessage):
            assert entry.code in {PARSE_ERROR, INVALID_REQUEST}
            assert entry.id is None or type(entry.id) in {int, str}
            continue
        for raw in (getattr(entry, "params", None), getattr(entry, "result", None)):
            if raw is not None:
                still_raw(raw)
    return result


@settings(max_examples=200)
@given(st.binary(max_size=200))
@example(b"\xff")
@example(b'{"jsonrpc":"2.0","id":1e999,"method":"m"}')
@example(b'{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"m"}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1e999}}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"m","params":123456789012345678901234567890}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}')
@example(b'{"jsonrpc":"2.0","id":1,"\\u0069d":1,"params":{"a":"\\ud800"}}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"\\u0069d":' + b"1" * 5000 + b"}}")
@example(b"[" * 127 + b"]" * 127)
@example(b'"' * 3 + b"[" * 200)
def test_any_bytes(data: bytes) -> None:
    decoded(data)


@settings(max_examples=120)
@given(
    st.lists(
        st.sampled_from(list(b'{}[]":,\\ \n0123456789.eE+-truefalsn\x00\xff"id"jsonrpcu006dmethod')),
        max_size=60,
    )
)
def test_any_bytes_that_json_is_made_of(data: list[int]) -> None:
    decoded(bytes(data))


@settings(max_examples=150)
@given(NEARLY | st.lists(NEARLY, max_size=3) | VALUES)
def test_any_json(value: Any) -> None:
    decoded(json.dumps(value, ensure_ascii=False).encode())
    decoded(json.dumps(value).encode())


@settings(max_examples=120)
@given(IDS, OBJECTS, st.data())
def test_a_message_cut_or_changed_anywhere(
    id: int | str, params: dict[str, Any], data: st.DataObject
) -> None:
    message = codec.encode_request(id, "tools/call", params)
    position = data.draw(st.integers(0, len(message) - 1))
    decoded(message[:position])
    decoded(message[:position] + data.draw(st.binary(min_size=1, max_size=3)) + message[position + 1 :])


@given(IDS, TEXT, st.none() | OBJECTS)
def test_requests_come_back(id: int | str, method: str, params: dict[str, Any] | None) -> None:
    message = codec.decode(codec.encode_request(id, method, params if params is not None else {}))
    assert isinstance(message, JsonRpcRequest)
    assert (type(message.id), message.id, message.method) == (type(id), id, method)
    assert message.params is not None
    assert codec.decode_value(message.params) == (params or {})


@given(TEXT, st.none() | OBJECTS)
def test_notifications_come_back(method: str, params: dict[str, Any] | None) -> None:
    message = codec.decode(codec.encode_notification(method, params))
    assert isinstance(message, JsonRpcNotification)
    assert message.method == method
    assert (message.params and codec.decode_value(message.params)) == params


@given(IDS, VALUES)
def test_replies_come_back(id: int | str, result: Any) -> None:
    message = codec.decode(codec.encode_reply(id, result))
    assert isinstance(message, JsonRpcResult)
    assert (type(message.id), message.id) == (type(id), id)
    assert codec.decode_value(message.result) == result


@given(st.none() | IDS, st.integers(-(2**31), 2**31), TEXT, VALUES)
def test_failures_come_back(id: int | str | None, code: int, text: str, data: Any) -> None:
    assert codec.decode(codec.encode_failure(id, code, text, data)) == JsonRpcError(id, code, text, data)


@given(st.lists(OBJECTS, min_size=1, max_size=5))
def test_batches_come_back(batch: list[dict[str, Any]]) -> None:
    data = b"[" + b",".join(codec.encode_request(n, "m", params) for n, params in enumerate(batch)) + b"]"
    messages = codec.decode(data)
    assert isinstance(messages, list)
    assert [(type(entry), getattr(entry, "id", None)) for entry in messages] == [
        (JsonRpcRequest, n) for n in range(len(batch))
    ]


@given(IDS, VALUES)
def test_a_frame_is_one_line_without_a_null_id(id: int | str, value: Any) -> None:
    for data in (
        codec.encode_request(id, "m", value),
        codec.encode_reply(id, value),
        codec.encode_failure(None, 1, "m", value),
    ):
        assert b"\n" not in data
        assert json.loads(data).get("id", 0) is not None


MESSAGE = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {}}


@given(st.sampled_from(sorted(MESSAGE)), st.integers(0, len(MESSAGE)), st.data())
def test_any_member_doubled_in_any_spelling(name: str, place: int, data: st.DataObject) -> None:
    escaped = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    pairs = zip(name, escaped, strict=True)
    spelled = "".join(f"\\u{ord(letter):04x}" if escape else letter for letter, escape in pairs)
    members = [f"{json.dumps(key)}:{json.dumps(value)}" for key, value in MESSAGE.items()]
    members.insert(place, f'"{spelled}":{json.dumps(MESSAGE[name])}')
    with pytest.raises(MalformedMessage) as caught:
        codec.decode(("{" + ",".join(members) + "}").encode())
    assert caught.value.code == INVALID_REQUEST
