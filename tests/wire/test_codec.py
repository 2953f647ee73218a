"""Examples of every form of message and of every way to be none."""

from __future__ import annotations

import gc
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcp_actors._wire import codec
from mcp_actors._wire.codec import (
    MAX_PARTS,
    JsonRpcError,
    JsonRpcNotification,
    JsonRpcRequest,
    JsonRpcResult,
    decode,
    decode_value,
)
from mcp_actors.errors import INVALID_REQUEST, PARSE_ERROR, LocalProtocolError, MalformedMessage


def refused(data: bytes, **options: Any) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as caught:
        codec.decode(data, **options)
    return caught.value


def value(raw: Any) -> Any:
    return codec.decode_value(raw)


# -- the four forms ---------------------------------------------------------------------------------------------------


def test_request() -> None:
    message = codec.decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1]}}')
    assert isinstance(message, JsonRpcRequest)
    assert (message.id, message.method, value(message.params)) == (1, "m", {"a": [1]})


def test_request_without_params() -> None:
    assert codec.decode(b'{"jsonrpc":"2.0","id":"x","method":"m"}') == JsonRpcRequest("x", "m", None)


def test_notification() -> None:
    message = codec.decode(b'{"method":"n","params":{},"jsonrpc":"2.0"}')
    assert isinstance(message, JsonRpcNotification)
    assert (message.method, value(message.params)) == ("n", {})


@pytest.mark.parametrize("result", ["{}", "null", "[1]", '"text"', "0"])
def test_reply_with_any_result(result: str) -> None:
    message = codec.decode(f'{{"jsonrpc":"2.0","id":7,"result":{result}}}'.encode())
    assert isinstance(message, JsonRpcResult)
    assert message.id == 7
    assert value(message.result) == json.loads(result)


def test_failure() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no","data":[1]}}'
    assert codec.decode(data) == JsonRpcError(1, -32601, "no", [1])


@pytest.mark.parametrize("id", ["", '"id":null,'])
def test_failure_without_id_or_with_null(id: str) -> None:
    """Older peers answer what they could not read with a null id; the newest schema leaves the id out."""
    data = f'{{"jsonrpc":"2.0",{id}"error":{{"code":-32700,"message":"no"}}}}'.encode()
    assert codec.decode(data) == JsonRpcError(None, -32700, "no", None)


def test_unknown_members_are_passed_over() -> None:
    assert codec.decode(b'{"jsonrpc":"2.0","id":1,"method":"m","extra":{"id":2}}') == JsonRpcRequest(
        1, "m", None
    )


@pytest.mark.parametrize("space", [b" ", b"\t", b"\r", b"\n"])
def test_white_space_round_a_message(space: bytes) -> None:
    data = space + b'{"jsonrpc":"2.0",' + space + b'"id":1,"method":"m"}' + space
    assert codec.decode(data) == JsonRpcRequest(1, "m", None)


# -- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [0, 1, -1, 2**53, 2**63 - 1, -(2**63), "", "1", "0", "ü", "a\nb", "\x00"])
def test_an_id_keeps_its_json_type(id: int | str) -> None:
    message = codec.decode(codec.encode_request(id, "m", {}))
    assert isinstance(message, JsonRpcRequest)
    assert (type(message.id), message.id) == (type(id), id)
    answer = json.loads(codec.encode_reply(message.id, {}))
    assert (type(answer["id"]), answer["id"]) == (type(id), id)


@pytest.mark.parametrize("id", ["null", "true", "false", "1.5", "[]", "{}", "1e400", "-0.5"])
@pytest.mark.parametrize("form", ['"method":"m"', '"result":{}'])
def test_what_is_no_id(id: str, form: str) -> None:
    error = refused(f'{{"jsonrpc":"2.0","id":{id},{form}}}'.encode())
    assert (error.code, error.id) in {(INVALID_REQUEST, None), (PARSE_ERROR, None)}


@pytest.mark.parametrize("form", ['"method":"m"', '"result":{}'])
def test_an_id_is_as_long_as_the_limit_and_no_longer(form: str) -> None:
    longest = "x" * codec.LONGEST_ID
    message = codec.decode(f'{{"jsonrpc":"2.0","id":"{longest}",{form}}}'.encode())
    assert isinstance(message, JsonRpcRequest | JsonRpcResult)
    assert message.id == longest
    assert refused(f'{{"jsonrpc":"2.0","id":"{longest}x",{form}}}'.encode()).code == INVALID_REQUEST


def test_the_id_of_a_broken_request_is_told() -> None:
    assert refused(b'{"jsonrpc":"1.0","id":5,"method":"m"}').id == 5
    assert refused(b'{"jsonrpc":"2.0","id":"5","method":7}').id == "5"
    assert refused(b'{"jsonrpc":"2.0","id":true,"method":7}').id is None


# -- envelopes -------------------------------------------------------------------------------------------
#
# Are none.


@pytest.mark.parametrize(
    "text",
    [
        "1",
        '"text"',
        "null",
        "true",
        "{}",
        '{"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","id":1}',
        '{"id":1,"method":"m"}',
        '{"jsonrpc":2.0,"id":1,"method":"m"}',
        '{"jsonrpc":"1.0","id":1,"method":"m"}',
        '{"JSONRPC":"2.0","id":1,"method":"m"}',
        '{"jsonrpc\\u0000":"2.0","id":1,"method":"m"}',
        '{"jsonrpc":"2.0","id":1,"method":null}',
        '{"jsonrpc":"2.0","id":1,"method":"m","result":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"m","error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","result":{}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        '{"jsonrpc":"2.0","id":1,"error":{"message":"m"}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":"m"}}',
        '{"jsonrpc":"2.0","id":1,"error":null}',
        '{"jsonrpc":"2.0","id":1,"error":"text"}',
    ],
)
def test_json_that_is_no_message(text: str) -> None:
    assert refused(text.encode()).code == INVALID_REQUEST


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"[",
        b"}",
        b'{"jsonrpc":"2.0","id":1,"method":"m"',
        b'{"jsonrpc":"2.0","id":1,"method":"m"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m"} {}',
        b"{'jsonrpc':'2.0'}",
        b'{"jsonrpc":"2.0","id":1,"method":"m",}',
        b'{"jsonrpc":"2.0","id":01,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":NaN}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":Infinity}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\x01"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"\\x"}}',
        b"\xef\xbb\xbf{}",
        b"Content-Length: 2",
        b"hello",
    ],
)
def test_what_is_not_json(data: bytes) -> None:
    error = refused(data)
    assert (error.code, error.id) == (PARSE_ERROR, None)


@pytest.mark.parametrize(
    "bad",
    [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80"],
    ids=["ff", "cut", "overlong", "surrogate", "beyond", "cut-3", "continuation"],
)
def test_invalid_utf8_is_refused_and_never_repaired(bad: bytes) -> None:
    error = refused(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"' + bad + b'"}}')
    assert (error.code, error.id) == (PARSE_ERROR, None)
    assert "UTF-8" in str(error)


# -- members ---------------------------------------------------------------------------------------------
#
# Occur twice.


@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}',
        '{"jsonrpc":"2.0","id":1,"method":"m","method":"n"}',
        '{"jsonrpc":"2.0","id":1,"method":"m","params":{},"params":{}}',
        '{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"m"}',
        '{"jsonrpc":"2.0","id":1,"result":{},"result":{}}',
        '{"jsonrpc":"2.0","id":1,"\\u0069d":2,"method":"m"}',
        '{"jsonrpc":"2.0","id":1,"i\\u0064":2,"method":"m"}',
        '{"jsonrpc":"2.0","id":1,"method":"m","\\u006Dethod":"n"}',
        '{"jsonrpc":"2.0","id":1,"method":"m","\\u0070arams":{},"params":{}}',
        '{"jsonrpc":"2.0","id":1,"result":{},"resul\\u0074":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"m","jso\\u006erpc":"2.0"}',
        '{"jsonrpc":"2.0","id":1,"id" :2,"method":"m"}',
        # As short as can be: nowhere is more room than for the second member.
        '{"jsonrpc":"2.0","id":1,"id":2,"method":"","params":0}',
        '{"jsonrpc":"2.0","id":1,"id":2,"result":0}',
        '{"id":1,"jsonrpc":"2.0","result":0,"id":2}',
        '{"id":1,"jsonrpc":"2.0","result":0,"result":1}',
    ],
)
def test_a_doubled_member_is_refused(text: str) -> None:
    assert refused(text.encode()).code == INVALID_REQUEST


LONG = json.dumps({"text": "lorem ipsum " * 1000, "id": [1, 2]}, separators=(",", ":"))


@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"2.0","id":1,"id":2,"method":"m","params":%s}',
        '{"jsonrpc":"2.0","id":1,"method":"m","params":%s,"id":2}',
        '{"jsonrpc":"2.0","id":1,"method":"m","params":%s,"method":"n"}',
        '{"jsonrpc":"2.0","id":1,"method":"m","params":{},"params":%s}',
        '{"jsonrpc":"2.0","id":1,"method":"m","params":%s,"params":{}}',
        '{"jsonrpc":"2.0","id":1,"result":%s,"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","id":1,"result":%s,"\\u0069d":2}',
        '{"jsonrpc":"2.0","id":1,"method":"m","x":%s,"id":2}',
    ],
)
def test_a_doubled_member_of_a_long_message_is_refused(text: str) -> None:
    assert refused(text.replace("%s", LONG).encode()).code == INVALID_REQUEST


def test_a_long_payload_that_occurs_twice_is_doubled_or_not_by_its_names() -> None:
    twice = '{"jsonrpc":"2.0","id":1,"method":"m","params":%s,"params":%s}'.replace("%s", LONG)
    assert refused(twice.encode()).code == INVALID_REQUEST
    once = '{"jsonrpc":"2.0","x":%s,"id":1,"method":"m","params":%s}'.replace("%s", LONG)
    message = codec.decode(once.encode())
    assert isinstance(message, JsonRpcRequest)
    assert value(message.params) == json.loads(LONG)


@pytest.mark.parametrize(
    "params",
    [{"id": 1, "method": "m", "params": {"id": 2}}, {"text": '"id" "id" "method"'}, {"text": "idm\u0001"}],
)
def test_the_same_name_further_in_is_no_double(params: Any) -> None:
    message = codec.decode(codec.encode_request(1, "m", params))
    assert isinstance(message, JsonRpcRequest)
    assert value(message.params) == params


def test_an_escaped_name_that_occurs_once_is_read() -> None:
    assert codec.decode(b'{"jsonrpc":"2.0","\\u0069d":1,"method":"m"}') == JsonRpcRequest(1, "m", None)


# -- depth ------------------------------------------------------------------------------------------------------------


def test_a_long_message_is_measured_as_a_short_one_is() -> None:
    text = b'"' + b"x" * 5000 + b'"'
    deep = b"[" * (codec.MAX_DEPTH - 1) + text + b"]" * (codec.MAX_DEPTH - 1)
    assert codec.decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % deep)
    assert "deeper" in str(refused(b'{"jsonrpc":"2.0","id":1,"method":"m","params":[%b]}' % deep))
    wide = b"[" + b"[]," * 5000 + text + b"]"
    assert codec.decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":%b}' % wide)


def nested(levels: int, opening: str = "[", closing: str = "]") -> bytes:
    """A request whose params hold ``levels`` levels; two more are round them."""
    inner = opening * levels + "1" + closing * levels
    return f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{inner}}}}}'.encode()


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_bounded(opening: str, closing: str) -> None:
    assert isinstance(codec.decode(nested(codec.MAX_DEPTH - 2, opening, closing)), JsonRpcRequest)
    error = refused(nested(codec.MAX_DEPTH - 1, opening, closing))
    assert (error.code, error.id) == (PARSE_ERROR, None)
    assert isinstance(codec.decode(nested(3, opening, closing), max_depth=5), JsonRpcRequest)
    assert refused(nested(4, opening, closing), max_depth=5).code == PARSE_ERROR


@pytest.mark.parametrize("levels", [10_000, 1_000_000])
def test_absurd_depth_costs_nothing_but_an_error(levels: int) -> None:
    assert refused(nested(levels)).code == PARSE_ERROR
    assert refused(b"[" * levels).code == PARSE_ERROR
    assert refused(b'{"a":' * levels).code == PARSE_ERROR


@pytest.mark.parametrize("tail", ['"' + "a" * 100_000, '"' + '\\"' * 100_000, '"a" "' * 100_000, '"\\'])
def test_an_unclosed_string_after_many_brackets_costs_nothing_either(tail: str) -> None:
    """Looking for strings takes linear time; with backtracking this test would not end."""
    assert refused(b"[]" * codec.MAX_DEPTH + tail.encode()).code == PARSE_ERROR


def test_a_very_long_number_beside_an_escaped_name() -> None:
    """The slower search for doubled names meets what CPython refuses to convert."""
    data = b'{"jsonrpc":"2.0","\\u0069d":1,"method":"m","params":{"a":' + b"1" * 5000 + b"}}"
    assert isinstance(codec.decode(data), JsonRpcRequest)


def test_many_brackets_side_by_side_or_in_strings_are_not_deep() -> None:
    params = {"flat": [[] for _ in range(1000)], "text": "[{" * 1000, "quotes": '\\"[[[[\\\\"' * 100}
    message = codec.decode(codec.encode_request(1, "m", params))
    assert isinstance(message, JsonRpcRequest)
    assert value(message.params) == params


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_keeps_order_and_good_entries() -> None:
    batch = codec.decode(
        b' [{"jsonrpc":"2.0","id":1,"method":"a"}, 5, {"jsonrpc":"2.0","method":"b"}, {"jsonrpc":"2.0","id":"x"}]'
    )
    assert isinstance(batch, list)
    assert batch[0] == JsonRpcRequest(1, "a", None)
    assert batch[2] == JsonRpcNotification("b", None)
    broken = [entry for entry in batch if isinstance(entry, MalformedMessage)]
    assert [(error.code, error.id) for error in broken] == [(INVALID_REQUEST, None), (INVALID_REQUEST, "x")]


def test_an_empty_batch_is_no_message() -> None:
    assert refused(b"[]").code == INVALID_REQUEST
    assert refused(b" [ ] ").code == INVALID_REQUEST


def test_a_batch_in_a_batch_is_a_broken_entry() -> None:
    batch = codec.decode(b'[[{"jsonrpc":"2.0","id":1,"method":"a"}]]')
    assert isinstance(batch, list)
    assert isinstance(batch[0], MalformedMessage)


def test_a_batch_that_is_cut_off_is_not_json() -> None:
    assert refused(b'[{"jsonrpc":"2.0","id":1,"method":"a"},').code == PARSE_ERROR


# -- encoding ---------------------------------------------------------------------------------------------------------


def test_a_null_id_is_never_sent() -> None:
    assert json.loads(codec.encode_failure(None, -32700, "no")) == {
        "jsonrpc": "2.0",
        "error": {"code": -32700, "message": "no"},
    }


def test_a_failure_has_data_only_when_there_is_some() -> None:
    assert "data" not in json.loads(codec.encode_failure(1, -1, "m"))["error"]
    assert json.loads(codec.encode_failure(1, -1, "m", {"a": 0}))["error"]["data"] == {"a": 0}


def test_a_notification_without_params_has_no_such_member() -> None:
    assert json.loads(codec.encode_notification("n")) == {"jsonrpc": "2.0", "method": "n"}
    assert json.loads(codec.encode_notification("n", {})) == {"jsonrpc": "2.0", "method": "n", "params": {}}


@pytest.mark.parametrize("text", ["line\nbreak", "\r\n", "\u2028\u2029\x85", "\x00", "\U0001f600", "\ufeff"])
def test_a_frame_has_no_line_break_in_it(text: str) -> None:
    data = codec.encode_reply(text, {text: [text]})
    assert b"\n" not in data
    assert b"\r" not in data
    assert json.loads(data)["result"] == {text: [text]}


@pytest.mark.parametrize("bad", [object(), {1: {object(): 1}}, {"a": {1, object()}}])
def test_what_json_cannot_hold_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError):
        codec.encode_reply(1, bad)


HALVES = [
    (
        {"arguments": {"x": {"y": ["a", "b\ud800c"]}}},
        ".arguments.x.y[1] has half of a surrogate pair at position 1",
    ),
    ({"arguments": {"x\udfff": 1}}, ".arguments has a name with half of a surrogate pair at position 1"),
    ({"a": ({"b": "\ud800"},)}, ".a[0].b has half of a surrogate pair at position 0"),
]


@pytest.mark.parametrize(("value", "text"), HALVES)
def test_half_of_a_surrogate_pair_is_not_sent(value: Any, text: str) -> None:
    """Python strings can hold half a character; UTF-8 cannot."""
    with pytest.raises(LocalProtocolError, match=re.escape("tools/call" + text)):
        codec.encode_request(1, "tools/call", value)
    with pytest.raises(LocalProtocolError, match=re.escape("x/y" + text)):
        codec.encode_notification("x/y", value)
    with pytest.raises(ValueError, match=re.escape("result" + text)):
        codec.encode_reply(1, value)


def test_a_name_of_a_method_with_half_of_a_surrogate_pair_is_not_sent() -> None:
    for encode in (
        lambda: codec.encode_request(1, "\ud800", {}),
        lambda: codec.encode_notification("\ud800"),
    ):
        with pytest.raises(LocalProtocolError, match="the method has half of a surrogate pair at position 0"):
            encode()


def test_a_value_left_raw_that_is_broken_inside() -> None:
    with pytest.raises(MalformedMessage):
        codec.decode_value(b"{")


def test_a_batch_is_bounded() -> None:
    entry = b'{"jsonrpc":"2.0","method":"a"}'
    batch = codec.decode(b"[" + b",".join([entry] * 1024) + b"]")
    assert isinstance(batch, list)
    assert len(batch) == 1024
    assert refused(b"[" + b"1," * 1024 + b"1]").code == INVALID_REQUEST


# -- the time and the memory that one message takes ------------------------------------------------------------------


def long_call(payload: bytes, beside: bytes = b"") -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"m"' + beside + b',"params":{"a":' + payload + b"}}"


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("one", [b"[]", b"{}", b'{"a":1}', b"[[]]"])
def test_a_message_of_nothing_but_brackets_is_refused(one: bytes, times: int) -> None:
    parts = one.count(b"[") + one.count(b"{") + one.count(b":")
    many = b"[" + b",".join([one] * (times * MAX_PARTS // parts)) + b"]"
    with pytest.raises(MalformedMessage, match="arrays, objects and members"):
        decode(long_call(many))


def members(count: int) -> bytes:
    return b"{" + b",".join(b'"%x":0' % number for number in range(count)) + b"}"


@pytest.mark.parametrize("times", [1, 3])
def test_a_message_of_nothing_but_members_is_refused(times: int) -> None:
    with pytest.raises(MalformedMessage, match="arrays, objects and members"):
        decode(long_call(members(times * MAX_PARTS)))


def test_as_many_parts_as_are_allowed_are_taken() -> None:
    # The message and its params are objects too, with five members.
    message = decode(long_call(members(MAX_PARTS - 8)))
    assert isinstance(message, JsonRpcRequest)
    assert message.params is not None
    assert len(decode_value(message.params)["a"]) == MAX_PARTS - 8


def test_elements_that_are_no_containers_are_not_counted() -> None:
    message = decode(long_call(b"[" + b"0.5," * 2 * MAX_PARTS + b"0.5]"))
    assert isinstance(message, JsonRpcRequest)


@pytest.mark.parametrize("one", [b"[{", b"a:", b'\\"[', b'\\\\\\"{', b"\\n:"])
def test_structure_in_strings_is_none(one: bytes) -> None:
    text = b'"' + one * 2 * MAX_PARTS + b'"'
    message = decode(long_call(text))
    assert isinstance(message, JsonRpcRequest)
    assert message.params is not None
    assert decode_value(message.params)["a"] == decode_value(text)


@pytest.mark.parametrize("before", [b'"\\\\"', b'"\\\\\\""', b'"\\"["', b'""', b'"' + b"x" * 20_000 + b'"'])
def test_structure_after_a_string_is_seen(before: bytes) -> None:
    deep = b"[" * 128 + b"]" * 128
    assert "deeper" in str(refused(long_call(b"[" + before + b"," + deep + b"]")))


def test_a_long_message_with_a_repeated_member_is_refused_whatever_its_payload() -> None:
    payload = b"[" + b"1," * 100_000 + b"1]"
    for beside in (b',"id":2', b',"params":' + payload, b',"x":{"id":1,"y":' + payload + b"}"):
        with pytest.raises(MalformedMessage, match="twice"):
            decode(long_call(payload, beside))
    # The same names elsewhere are no repetition.
    for beside in (b',"x":{"id":1}', b""):
        assert isinstance(
            decode(long_call(b'{"id":1,"id":2,"method":"x","p":' + payload + b"}", beside)), JsonRpcRequest
        )


def test_the_collector_is_as_it_was_after_a_long_value() -> None:
    long = b"[" + b"[]," * 100_000 + b"[]]"
    assert len(decode_value(long)) == 100_001
    assert gc.isenabled()
    with pytest.raises(MalformedMessage):
        decode_value(long + b"x")
    assert gc.isenabled()
    gc.disable()
    try:
        decode_value(long)
        assert not gc.isenabled()
    finally:
        gc.enable()


# -- Any byte string at all gets an envelope, a list or a `MalformedMessage`; what we encode comes back as it was ---

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


@pytest.mark.slow
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
