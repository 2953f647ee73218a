"""What a request needs to be opened, on connections that carry both eras; sans I/O."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_actors._eras.client_negotiation import ClientNegotiation, request_meta
from mcp_actors._eras.era import Invocation, Method, NotAnswered
from mcp_actors._eras.legacy import LEGACY
from mcp_actors._eras.modern import LATEST_MODERN, MODERN, STATE_LIFETIME, StateSealer
from mcp_actors._eras.server_negotiation import VERSIONS, ServerNegotiation
from mcp_actors._wire.codec import JsonRpcRequest
from mcp_actors.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError, UnsupportedVersion
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import ClientCapabilities, Implementation, RootsCapability
from tests.messages import CAPABILITIES, CLIENT_INFO, LOG_LEVEL, VERSION, initialize_params, modern_meta

META = modern_meta()


def opening(*versions: str, **custom: Method) -> ServerNegotiation:
    return ServerNegotiation(versions or VERSIONS, custom)


def request(method: str, params: Any = None, id: int | str = 1) -> JsonRpcRequest:
    return JsonRpcRequest(id, method, None if params is None else msgspec.Raw(msgspec.json.encode(params)))


def modern(method: str, params: dict[str, Any] | None = None, **meta: Any) -> JsonRpcRequest:
    return request(method, {**(params or {}), "_meta": {**META, **meta}})


def refusal(opening: ServerNegotiation | ClientNegotiation, message: JsonRpcRequest) -> RpcError:
    with pytest.raises(RpcError) as refused:
        opening.open(message)
    return refused.value


def initialize(opening: ServerNegotiation, version: str = "2025-11-25") -> Invocation:
    return opening.open(request("initialize", initialize_params(version)))


# -- modern --------------------------------------------------------------------------------------------------------


def test_a_modern_request_explains_itself() -> None:
    invocation = opening().open(
        modern(
            "tools/call",
            {"name": "f"},
            progressToken=0,
            traceparent="00-1-1-01",
            **{CLIENT_INFO: {"name": "me", "version": "7"}, LOG_LEVEL: "error"},
        )
    )
    assert invocation.era is LATEST_MODERN
    assert invocation.params == {"name": "f"}
    assert invocation.progress_token == 0  # zero is a token
    assert invocation.log_level == "error"
    assert invocation.peer.info == Implementation("me", "7")
    assert invocation.meta["traceparent"] == "00-1-1-01"


def test_client_info_is_a_courtesy() -> None:
    assert opening().open(modern("tools/list")).peer.info is None


@pytest.mark.parametrize(
    "meta",
    [
        None,
        5,
        [],
        {},
        {CAPABILITIES: {}},
        {VERSION: "2026-07-28"},
        {VERSION: "2026-07-28", CAPABILITIES: None},
        {VERSION: "2026-07-28", CAPABILITIES: []},
        {VERSION: 20260728, CAPABILITIES: {}},
        {VERSION: None, CAPABILITIES: {}},
    ],
)
def test_discover_without_the_required_metadata_is_malformed(meta: Any) -> None:
    params = {} if meta is None else {"_meta": meta}
    assert refusal(opening(), request("server/discover", params)).code == INVALID_PARAMS
    assert refusal(opening(), request("server/discover", None)).code == INVALID_PARAMS


@pytest.mark.parametrize(
    "meta",
    [
        {VERSION: "2026-07-28"},
        {VERSION: 20260728, CAPABILITIES: {}},
        {VERSION: "2026-07-28", CAPABILITIES: "none"},
        {**META, "progressToken": 1.5},
        {**META, "progressToken": True},
        {**META, LOG_LEVEL: "loud"},
        {**META, LOG_LEVEL: 3},
        {**META, LOG_LEVEL: ["info"]},
    ],
)
def test_malformed_metadata_is_invalid_params(meta: dict[str, Any]) -> None:
    assert refusal(opening(), request("tools/list", {"_meta": meta})).code == INVALID_PARAMS


@pytest.mark.parametrize("asked", ["1999-01-01", "2099-01-01", "v999.0.0", "", "2025-11-25"])
def test_an_unknown_version_is_told_what_there_is(asked: str) -> None:
    """A revision with sessions cannot be asked for in this form either."""
    error = refusal(opening(), modern("tools/list", **{VERSION: asked}))
    assert isinstance(error, UnsupportedVersion)
    assert error.code == -32022
    assert error.data == {"supported": list(VERSIONS), "requested": asked}


def test_keys_come_before_the_version_and_the_version_before_the_method() -> None:
    missing_key = request("acme/unknown", {"_meta": {VERSION: "1999-01-01"}})
    assert refusal(opening(), missing_key).code == INVALID_PARAMS
    assert refusal(opening(), modern("acme/unknown", **{VERSION: "1999-01-01"})).code == -32022
    assert refusal(opening(), modern("acme/unknown", progressToken=[])).code == METHOD_NOT_FOUND


@pytest.mark.parametrize(
    "gone",
    ["initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/get"],
)
def test_what_only_sessions_have_does_not_exist(gone: str) -> None:
    both = opening()
    initialize(both)
    assert refusal(both, modern(gone)).code == METHOD_NOT_FOUND


@pytest.mark.parametrize(
    "params", [{"inputResponses": []}, {"inputResponses": "x"}, {"requestState": 5}, {"requestState": {}}]
)
def test_a_malformed_retry_is_invalid_params(params: dict[str, Any]) -> None:
    assert refusal(opening(), modern("tools/call", {"name": "f", **params})).code == INVALID_PARAMS


def test_a_retry_carries_answers_and_state_beside_the_same_params() -> None:
    retry = modern("tools/call", {"name": "f", "inputResponses": {"a": {}}, "requestState": "s"})
    invocation = opening().open(retry)
    assert invocation.params == {"name": "f"}
    assert invocation.answers == {"a": {}}
    assert invocation.state == "s"


def test_only_three_methods_read_a_retry() -> None:
    invocation = opening().open(modern("tools/list", {"requestState": "s"}))
    assert invocation.state is None
    asking = {name for name, method in LATEST_MODERN.server_methods.items() if method.may_ask}
    assert asking == {"tools/call", "prompts/get", "resources/read"}


# -- both on one connection ----------------------------------------------------------------------------------------


def test_each_message_is_judged_by_itself() -> None:
    both = opening()
    assert both.open(modern("tools/list")).era.name == "modern"
    assert initialize(both, "2025-06-18").era.version == "2025-06-18"
    assert both.open(modern("tools/list")).era.name == "modern"
    assert both.open(request("tools/list")).era.version == "2025-06-18"
    assert both.open(request("tools/list", {"_meta": {"progressToken": 1}})).era.version == "2025-06-18"


def test_a_modern_request_opens_no_session() -> None:
    both = opening()
    both.open(modern("tools/list"))
    error = refusal(both, request("tools/list"))
    assert error.code == INVALID_REQUEST
    assert error.data == {"supported": list(LEGACY)}


def test_params_that_are_no_object_are_refused() -> None:
    assert refusal(opening(), request("ping", [1])).code == INVALID_PARAMS
    assert refusal(opening(), request("ping", "x")).code == INVALID_PARAMS


def test_a_modern_server_names_its_versions_to_a_legacy_client() -> None:
    modern_only = opening(*MODERN)
    for name in ("initialize", "ping", "tools/list"):
        error = refusal(modern_only, request(name, {}))
        assert error.code == INVALID_REQUEST
        assert "2026-07-28" in error.message
        assert error.data == {"supported": ["2026-07-28"]}
    assert modern_only.open(modern("tools/list")).era is LATEST_MODERN


def test_a_legacy_server_names_its_versions_to_a_modern_client() -> None:
    legacy_only = opening(*LEGACY)
    error = refusal(legacy_only, modern("server/discover"))
    assert error.code == -32022
    assert error.data == {"supported": list(LEGACY), "requested": "2026-07-28"}
    assert initialize(legacy_only).era.version == "2025-11-25"


def test_a_narrow_server_offers_the_newest_it_has() -> None:
    narrow = opening("2024-11-05", "2025-03-26")
    assert initialize(narrow, "2025-11-25").era.version == "2025-03-26"
    assert narrow.batches
    assert not opening().batches


def test_a_method_of_the_users_own_exists_in_every_era() -> None:
    mine = Method("acme/thing", dict, dict)
    both = ServerNegotiation(VERSIONS, {"acme/thing": mine})
    assert both.open(modern("acme/thing")).method is mine
    assert refusal(both, request("acme/thing")).code == INVALID_REQUEST  # a session begins with initialize
    initialize(both)
    assert both.open(request("acme/thing")).method is mine


# -- a client's side -----------------------------------------------------------------------------------------------


def test_a_client_is_asked_for_nothing_but_pings_before_the_handshake() -> None:
    client = ClientNegotiation()
    assert client.open(request("ping")).method.name == "ping"
    assert refusal(client, request("roots/list")).code == METHOD_NOT_FOUND


@pytest.mark.parametrize("version", list(LEGACY))
def test_which_questions_exist_in_a_session(version: str) -> None:
    client = ClientNegotiation()
    client.era = LEGACY[version]
    assert client.open(request("sampling/createMessage", {})).era.version == version
    if version < "2025-06-18":
        assert refusal(client, request("elicitation/create", {})).code == METHOD_NOT_FOUND
    else:
        assert client.open(request("elicitation/create", {})).method.name == "elicitation/create"
    assert refusal(client, request("tools/list", {})).code == METHOD_NOT_FOUND
    assert client.batches == (version == "2025-03-26")


def test_a_modern_server_sends_no_requests() -> None:
    """What it sends all the same gets no answer."""
    client = ClientNegotiation()
    client.era = LATEST_MODERN
    for name in ("ping", "roots/list", "sampling/createMessage", "elicitation/create"):
        with pytest.raises(NotAnswered, match=name):
            client.open(request(name, {}))


def test_the_metadata_of_each_request() -> None:
    info, capabilities = (
        Implementation("me", "1"),
        ClientCapabilities(roots=RootsCapability(list_changed=True)),
    )
    assert request_meta(LEGACY["2025-11-25"], info, capabilities, "info") == {}
    assert request_meta(LATEST_MODERN, info, capabilities, "info") == {
        VERSION: "2026-07-28",
        CAPABILITIES: {"roots": {}},  # changes of roots are not told any more
        CLIENT_INFO: {"name": "me", "version": "1"},
        LOG_LEVEL: "info",
    }
    assert LOG_LEVEL not in request_meta(LATEST_MODERN, info, capabilities, None)


# -- The sealed state: opens for the call it was made for, for nothing else, and not for ever ------------

SEALER = StateSealer(b"0123456789abcdef0123456789abcdef")
CALL: dict[str, Any] = {
    "method": "tools/call",
    "target": {"name": "pay", "arguments": {"sum": 3, "to": "Zoë"}},
    "principal": Principal("alice"),
    "now": 1_000_000.0,
}
PAYLOAD = {"answers": {"confirm": {"action": "accept", "content": {"sure": True}}}, "round": 2}
STATE = SEALER.seal(PAYLOAD, **CALL)


def refusal_request_state(text: Any, sealer: StateSealer = SEALER, **changed: Any) -> str:
    with pytest.raises(RpcError) as caught:
        sealer.open(text, **{**CALL, **changed})
    assert caught.value.code == -32602
    # By which the clients of the official SDK tell it from wrong arguments.
    assert caught.value.data == {"reason": "invalid_request_state"}
    return caught.value.message


def test_it_opens_for_the_same_call() -> None:
    assert SEALER.open(STATE, **CALL) == PAYLOAD


def test_nothing_of_it_can_be_read_and_no_two_states_are_alike() -> None:
    state, again = (SEALER.seal({"answers": "A" * 300}, **CALL) for _ in range(2))
    assert state != again
    seen = urlsafe_b64decode(state + "=" * (-len(state) % 4))
    assert not any(part in seen for part in (b"answers", b"AAAA"))
    # A stream of its own for each state: what two states have in common cannot be found out from both together.
    other = urlsafe_b64decode(again + "=" * (-len(again) % 4))
    assert len({a ^ b for a, b in zip(seen[48:], other[48:], strict=True)}) > 100


def test_it_opens_in_another_process_with_the_same_key() -> None:
    assert StateSealer(b"0123456789abcdef0123456789abcdef").open(STATE, **CALL) == PAYLOAD


def test_the_order_of_arguments_does_not_matter() -> None:
    target = {"arguments": {"to": "Zoë", "sum": 3}, "name": "pay"}
    assert SEALER.open(STATE, **{**CALL, "target": target}) == PAYLOAD


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "prompts/get"},
        {"target": {"name": "pay", "arguments": {"sum": 3000, "to": "Zoë"}}},
        {"target": {"name": "pay", "arguments": {"sum": "3", "to": "Zoë"}}},
        {"target": {"name": "steal", "arguments": {"sum": 3, "to": "Zoë"}}},
        {"target": None},
        {"principal": Principal("bob")},
        {"principal": None},
        {"principal": Principal("")},
        {"principal": Principal("alice", client="an app")},
        {"principal": Principal("alice", "https://as.test")},
    ],
)
def test_it_is_bound_to_the_call_and_the_principal(changed: dict[str, Any]) -> None:
    assert refusal_request_state(STATE, **changed) == "requestState was not issued for this request"


def test_nobody_and_the_empty_name_are_not_the_same_principal() -> None:
    anonymous = SEALER.seal(PAYLOAD, **{**CALL, "principal": None})
    assert (
        refusal_request_state(anonymous, principal=Principal(""))
        == "requestState was not issued for this request"
    )


def test_no_name_is_made_to_look_like_a_principal_of_an_issuer() -> None:
    of_issuer = Principal("alice", "https://as.test", "an app")
    state = SEALER.seal(PAYLOAD, **{**CALL, "principal": of_issuer})
    namesake = Principal(of_issuer.key)
    assert namesake.key != of_issuer.key
    assert refusal_request_state(state, principal=namesake) == "requestState was not issued for this request"


def test_another_key_does_not_open_it() -> None:
    assert "not issued" in refusal_request_state(STATE, StateSealer(b"another key, also long enough"))


def test_it_expires() -> None:
    just_in_time = {**CALL, "now": CALL["now"] + STATE_LIFETIME - 1}
    assert SEALER.open(STATE, **just_in_time) == PAYLOAD
    assert refusal_request_state(STATE, now=CALL["now"] + STATE_LIFETIME) == "requestState has expired"


def test_the_lifetime_can_be_set() -> None:
    short = StateSealer(b"0123456789abcdef", lifetime=10)
    state = short.seal(PAYLOAD, **CALL)
    assert "expired" in refusal_request_state(state, short, now=CALL["now"] + 11)
    assert repr(short) == "<StateSealer lifetime=10s>"


@pytest.mark.parametrize("position", range(len(STATE)))
def test_no_character_can_be_changed(position: int) -> None:
    for other in "AZaz09-_=.+/ \n\x00é":
        if other != STATE[position]:
            assert refusal_request_state(STATE[:position] + other + STATE[position + 1 :])


@pytest.mark.parametrize("position", range(len(STATE)))
def test_no_character_can_be_left_out_or_added(position: int) -> None:
    assert refusal_request_state(STATE[:position] + STATE[position + 1 :])
    assert refusal_request_state(STATE[:position] + "A" + STATE[position:])
    assert refusal_request_state(STATE[:position])


@pytest.mark.parametrize(
    "text", ["", "AAAA", "=", STATE + "=", STATE + "\n", "é" + STATE, None, 3, {}, b"AAAA"]
)
def test_what_is_no_state_is_refused(text: Any) -> None:
    assert refusal_request_state(text).startswith("requestState ")


@settings(deadline=None)
@given(text=st.text())
def test_any_text_is_refused(text: str) -> None:
    assert refusal_request_state(text).startswith("requestState ")


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        StateSealer(b"short")


def test_the_state_is_small_and_travels_in_json_and_headers() -> None:
    assert len(STATE) < 220
    assert set(STATE) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@pytest.mark.parametrize(
    ("versions", "meant"),
    [
        (VERSIONS, "2025-03-26"),
        (("2024-11-05", "2025-11-25"), "2024-11-05"),
        (("2025-06-18", "2025-11-25"), None),
    ],
)
def test_a_lone_request_without_a_revision_means_the_last_one_that_had_no_header(
    versions: tuple[str, ...], meant: str | None
) -> None:
    asked = request("ping")
    if meant is None:
        with pytest.raises(RpcError) as refused:
            opening(*versions).open_alone(asked, "legacy", {})
        assert refused.value.code == INVALID_REQUEST
    else:
        assert opening(*versions).open_alone(asked, "legacy", {}).era.version == meant
