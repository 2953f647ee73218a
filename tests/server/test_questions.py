"""Calls that ask for input in the stateless revision, seen from the wire: every rule of the rounds."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors import Context, MissingCapability, ResourceNotFound, RpcError, Server
from mcp_actors._eras.modern import StateSealer
from mcp_actors._eras.vocabulary import history_problem
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import ScriptedPeer, raw_client
from mcp_actors.types import SamplingMessage, TextContent, ToolResultContent, ToolUseContent
from tests.scripted_peers import EVERY, LEGACY, MODERN, SERVER_INFO, ask, begin, modern
from tests.scripted_peers import meta as modern_meta
from tests.server.asking import ALL, FORM, HELLO, KEY, ROOTS, accept, ask_tool, make_server


async def test_the_shape_of_a_question() -> None:
    async with raw_client(make_server()) as peer:
        result = (await ask_tool(peer, 1, "twice", **HELLO))["result"]
        assert set(result) == {
            "resultType",
            "inputRequests",
            "requestState",
            "_meta",
        }  # no caching hints on it
        assert result["resultType"] == "input_required"
        assert result["_meta"][SERVER_INFO]["name"] == "asking"
        assert result["inputRequests"] == {
            "first": {
                "method": "elicitation/create",
                "params": {"mode": "form", "message": "First name?", "requestedSchema": FORM},
            }
        }
        assert isinstance(result["requestState"], str)


async def test_round_after_round_until_there_is_an_answer() -> None:
    async with raw_client(make_server()) as peer:
        first = (await ask_tool(peer, 1, "twice", **HELLO))["result"]
        answers: dict[str, Any] = {"first": accept("Ada")}
        second = (
            await ask_tool(
                peer, 2, "twice", **HELLO, inputResponses=answers, requestState=first["requestState"]
            )
        )["result"]
        assert second["inputRequests"]["last"]["params"]["message"] == "Last name of Ada?"
        assert list(second["inputRequests"]) == ["last"]  # what was answered is not asked again
        answers = {"last": accept("Lovelace")}
        third = (
            await ask_tool(
                peer, 3, "twice", **HELLO, inputResponses=answers, requestState=second["requestState"]
            )
        )["result"]
        assert third["resultType"] == "complete"
        assert third["content"][0]["text"] == "Hello Ada Lovelace"


async def test_any_process_with_the_key_goes_on() -> None:
    async with raw_client(make_server()) as here, raw_client(make_server()) as there:
        first = (await ask_tool(here, 1, "twice", **HELLO))["result"]
        answers = {"first": accept("Ada")}
        second = (
            await ask_tool(
                there, 1, "twice", **HELLO, inputResponses=answers, requestState=first["requestState"]
            )
        )["result"]
        answers = {"last": accept("L")}
        third = (
            await ask_tool(
                here, 2, "twice", **HELLO, inputResponses=answers, requestState=second["requestState"]
            )
        )["result"]
        assert third["content"][0]["text"] == "Hello Ada L"


async def test_answers_without_state_are_good_too() -> None:
    async with raw_client(make_server()) as peer:
        answers = {"first": accept("Ada"), "last": accept("L"), "unknown": {"what": "ever"}}
        result = (await ask_tool(peer, 1, "twice", **HELLO, inputResponses=answers))["result"]
        assert result["content"][0]["text"] == "Hello Ada L"


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_is_an_answer(action: str) -> None:
    async with raw_client(make_server()) as peer:
        result = (await ask_tool(peer, 1, "twice", **HELLO, inputResponses={"first": {"action": action}}))[
            "result"
        ]
        assert result["content"][0]["text"] == f"no name: {action}"


async def test_missing_answers_are_asked_for_again() -> None:
    async with raw_client(make_server()) as peer:
        first = (await ask_tool(peer, 1, "both"))["result"]
        assert set(first["inputRequests"]) == {"name", "where"}
        for id, retry in enumerate(({}, {"inputResponses": {}}, {"inputResponses": {"other": {}}})):
            again = (await ask_tool(peer, f"r{id}", "both", requestState=first["requestState"], **retry))[
                "result"
            ]
            assert set(again["inputRequests"]) == {"name", "where"}
        half = {"inputResponses": {"where": ROOTS}, "requestState": first["requestState"]}
        second = (await ask_tool(peer, 2, "both", **half))["result"]
        assert set(second["inputRequests"]) == {"name"}
        rest = {"inputResponses": {"name": accept("Ada")}, "requestState": second["requestState"]}
        assert (await ask_tool(peer, 3, "both", **rest))["result"]["content"][0][
            "text"
        ] == "Ada in ['file:///a']"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        "yes",
        [],
        {},
        {"action": "maybe"},
        {"action": "accept"},
        {"action": "accept", "content": []},
        {"action": "accept", "content": {"name": 5}},
        {"action": "accept", "content": {}},
    ],
)
async def test_an_answer_that_is_none_is_invalid(answer: Any) -> None:
    async with raw_client(make_server()) as peer:
        error = (await ask_tool(peer, 1, "twice", **HELLO, inputResponses={"first": answer}))["error"]
        assert error["code"] == -32602
        assert "first" in error["message"]


async def test_keys_by_default_are_the_same_in_each_run() -> None:
    async with raw_client(make_server()) as peer:
        (key,) = (await ask_tool(peer, 1, "roots"))["result"]["inputRequests"]
        result = (await ask_tool(peer, 2, "roots", inputResponses={key: ROOTS}))["result"]
        assert result["content"][0]["text"] == "file:///a"


async def test_a_handler_cannot_swallow_the_question() -> None:
    async with raw_client(make_server()) as peer:
        assert (await ask_tool(peer, 1, "shielded"))["result"]["resultType"] == "input_required"


async def test_prompts_and_resources_ask_too() -> None:
    async with raw_client(make_server()) as peer:
        for method, params in (("prompts/get", {"name": "letter"}), ("resources/read", {"uri": "x://n"})):
            first = (await modern(peer, method, method, params, capabilities=ALL))["result"]
            assert first["resultType"] == "input_required"
            assert "ttlMs" not in first
            (key,) = first["inputRequests"]
            retry = {**params, "inputResponses": {key: ROOTS}, "requestState": first["requestState"]}
            second = (await modern(peer, method, method, retry, capabilities=ALL))["result"]
            assert second["resultType"] == "complete"


async def test_a_method_that_cannot_ask_fails_instead_of_going_in_circles() -> None:
    async with raw_client(make_server()) as peer:
        answer = await modern(peer, 1, "acme/ask", {}, capabilities=ALL)
        assert answer["error"]["code"] == -32603
        await begin(peer, "2025-11-25", {"roots": {}})
        await peer.send(
            {"jsonrpc": "2.0", "id": 2, "method": "acme/ask"}
        )  # a session can be asked at any time
        question = await peer.receive()
        assert question["method"] == "roots/list"


# -- Calls that ask for input: what may be asked of whom, whose state is good for what, and how sessions are asked ---

# -- capabilities --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "declared", "required"),
    [
        ("twice", {}, {"elicitation": {"form": {}}}),
        ("twice", {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        ("visit", {"elicitation": {}}, {"elicitation": {"url": {}}}),
        ("visit", {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}),
        ("draw", {"elicitation": {}}, {"sampling": {}}),
        ("roots", {}, {"roots": {}}),
        ("both", {"elicitation": {}}, {"roots": {}}),
    ],
)
async def test_only_what_this_very_request_declared_is_asked(
    tool: str, declared: dict[str, Any], required: dict[str, Any]
) -> None:
    async with raw_client(make_server()) as peer:
        arguments = HELLO if tool == "twice" else {}
        assert "result" in await ask_tool(
            peer, 1, tool, **arguments
        )  # an earlier request of the same client had it all
        error = (await ask_tool(peer, 2, tool, declared, **arguments))["error"]
        assert error["code"] == -32021
        assert error["data"] == {"requiredCapabilities": required}


async def test_an_empty_elicitation_means_forms() -> None:
    async with raw_client(make_server()) as peer:
        assert "result" in await ask_tool(peer, 1, "twice", {"elicitation": {}}, **HELLO)


async def test_a_url_has_no_id_here() -> None:
    async with raw_client(make_server()) as peer:
        result = (await ask_tool(peer, 1, "visit"))["result"]
        (question,) = result["inputRequests"].values()
        assert question["params"] == {"mode": "url", "message": "Go there", "url": "https://example.org/x"}


# -- the state -----------------------------------------------------------------------------------------------------


async def a_state(peer: ScriptedPeer) -> str:
    return str((await ask_tool(peer, "state", "twice", **HELLO))["result"]["requestState"])


async def test_a_tampered_state_is_refused() -> None:
    async with raw_client(make_server()) as peer:
        state = await a_state(peer)
        other = "B" if state[0] == "A" else "A"
        for id, bad in enumerate(
            (state[:-1], state + "A", other + state[1:], "", "!", "ü", state.swapcase(), " " + state)
        ):
            error = (await ask_tool(peer, id, "twice", **HELLO, requestState=bad))["error"]
            assert error["code"] == -32602, bad


@pytest.mark.parametrize("tool", ["never_asks", "inline"])
async def test_a_forged_state_is_refused_even_by_who_does_not_look(tool: str) -> None:
    async with raw_client(make_server()) as peer:
        assert (await ask_tool(peer, 1, tool, requestState="forged"))["error"]["code"] == -32602
        assert "result" in await ask_tool(peer, 2, tool)


async def test_a_state_is_good_for_its_own_call_only() -> None:
    async with raw_client(make_server()) as peer:
        state = await a_state(peer)
        others: list[tuple[str, dict[str, Any]]] = [
            ("twice", {"arguments": {"greeting": "Goodbye"}}),
            ("twice", {}),
            ("both", HELLO),
        ]
        for id, (tool, params) in enumerate(others):
            assert (await ask_tool(peer, id, tool, **params, requestState=state))["error"]["code"] == -32602
        params = {"name": "twice", **HELLO, "requestState": state}
        assert (await modern(peer, 9, "prompts/get", params, capabilities=ALL))["error"]["code"] == -32602
        assert "result" in await ask_tool(peer, 10, "twice", **HELLO, requestState=state)


async def test_a_state_of_another_server_is_refused() -> None:
    async with raw_client(make_server(b"a" * 32)) as one, raw_client(make_server(b"b" * 32)) as other:
        state = await a_state(one)
        assert (await ask_tool(other, 1, "twice", **HELLO, requestState=state))["error"]["code"] == -32602


async def test_a_state_expires_and_belongs_to_somebody() -> None:
    sealer = StateSealer(KEY)
    target = {"name": "twice", **HELLO}
    forever = 10.0**11

    def sealed(now: float, principal: Principal | None) -> str:
        return sealer.seal(
            {"answers": {"first": accept("Ada")}},
            method="tools/call",
            target=target,
            principal=principal,
            now=now,
        )

    async with raw_client(make_server()) as peer:
        good = (await ask_tool(peer, 1, "twice", **HELLO, requestState=sealed(forever, None)))["result"]
        assert list(good["inputRequests"]) == ["last"]
        for id, bad in enumerate(
            (sealed(0, None), sealed(forever, Principal("somebody")), sealed(forever, Principal("")))
        ):
            error = (await ask_tool(peer, f"r{id}", "twice", **HELLO, requestState=bad))["error"]
            assert error["code"] == -32602


# -- the same functions in a session -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_session_is_asked_by_requests(version: str) -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, version, {"elicitation": {}})
        params = {"name": "twice", **HELLO}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        for name in ("Ada", "L"):
            question = await peer.receive()
            assert question["method"] == "elicitation/create"
            assert ("mode" in question["params"]) == (version == "2025-11-25")
            await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": accept(name)})
        assert (await peer.receive())["result"]["content"][0]["text"] == "Hello Ada L"


@pytest.mark.parametrize(
    ("version", "tool", "declared"),
    [
        ("2025-11-25", "visit", {"elicitation": {}}),
        ("2025-11-25", "twice", {"elicitation": {"url": {}}}),
        ("2025-06-18", "draw", {}),
        ("2024-11-05", "roots", {}),
    ],
)
async def test_a_session_is_not_asked_what_it_did_not_declare(
    version: str, tool: str, declared: dict[str, Any]
) -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, version, declared)
        params = {"name": tool, **(HELLO if tool == "twice" else {})}
        answer = await peer.request(1, "tools/call", params)
        assert answer["error"]["code"] == -32602  # sessions have no code of its own for that
        assert answer["error"]["data"].keys() == {"requiredCapabilities"}


async def test_revisions_without_forms_are_not_asked_for_one() -> None:
    """Whatever they declare: the method does not exist there."""
    for version in ("2024-11-05", "2025-03-26"):
        async with raw_client(make_server()) as peer:
            await begin(peer, version, {"elicitation": {}})
            answer = await peer.request(1, "tools/call", {"name": "twice", **HELLO})
            assert "error" in answer


async def test_an_unusable_answer_of_a_session_fails_the_call_alone() -> None:
    async with raw_client(make_server()) as peer:
        await begin(peer, "2025-11-25", {"roots": {}})
        for id, (answer, code) in enumerate(
            [
                ({"result": {"roots": 5}}, None),
                ({"result": {}}, None),
                ({"error": {"code": -1, "message": "User rejected"}}, -1),
            ]
        ):
            params = {"name": "roots"}
            await peer.send({"jsonrpc": "2.0", "id": f"c{id}", "method": "tools/call", "params": params})
            question = await peer.receive()
            await peer.send({"jsonrpc": "2.0", "id": question["id"], **answer})
            outcome = await peer.receive()
            if code is None:
                assert outcome["result"]["isError"] is True
                assert "RemoteProtocolError" in outcome["result"]["content"][0]["text"]
            else:
                assert outcome["error"]["code"] == code


# -- What a server may ask of a client, what a client may answer, and the codes of what neither may do ---

USE, OTHER = ToolUseContent("1", "add", {}), ToolUseContent("2", "add", {})
RESULT, OTHERS = ToolResultContent("1", []), ToolResultContent("2", [])
TEXT = TextContent("hi")


def conversation(*turns: tuple[str, Any]) -> list[SamplingMessage]:
    return [SamplingMessage(role, content) for role, content in turns]  # type: ignore[arg-type]


BALANCED = [
    conversation(("user", TEXT)),
    conversation(("assistant", USE), ("user", RESULT)),
    conversation(("user", TEXT), ("assistant", [TEXT, USE, OTHER]), ("user", [OTHERS, RESULT])),
]
UNBALANCED = [
    conversation(("assistant", USE)),
    conversation(("user", RESULT)),
    conversation(("assistant", USE), ("user", TEXT)),
    conversation(("assistant", USE), ("user", [RESULT, TEXT])),
    conversation(("assistant", USE), ("user", OTHERS)),
    conversation(("assistant", [USE, OTHER]), ("user", RESULT)),
    conversation(("assistant", USE), ("assistant", RESULT)),
    conversation(("user", USE), ("user", RESULT)),
    conversation(("assistant", USE), ("user", TEXT), ("user", RESULT)),
]


@pytest.mark.parametrize("messages", BALANCED)
def test_uses_with_their_results_are_right(messages: list[SamplingMessage]) -> None:
    assert history_problem(messages) is None


@pytest.mark.parametrize("messages", UNBALANCED)
async def test_a_history_that_does_not_belong_together_is_not_sent(messages: list[SamplingMessage]) -> None:
    server = Server("asks")
    raised: list[str] = []

    @server.tool
    async def draw(ctx: Context) -> None:
        """Asks a model."""
        try:
            await ctx.sample(messages, max_tokens=5)
        except Exception as error:
            raised.append(type(error).__name__)

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25", {"sampling": {"tools": {}}})
        assert "result" in await peer.request(1, "tools/call", {"name": "draw"})
    assert raised == ["LocalProtocolError"]


@pytest.mark.parametrize(
    ("version", "sampling", "context", "may"),
    [
        ("2025-11-25", {}, "thisServer", False),
        ("2025-11-25", {"context": {}}, "allServers", True),
        ("2025-11-25", {}, "none", True),
        ("2025-06-18", {}, "thisServer", True),
        (MODERN, {}, "thisServer", False),
        (MODERN, {"context": {}}, "thisServer", True),
    ],
)
async def test_the_context_of_other_servers_is_for_clients_that_declare_it(
    version: str, sampling: Any, context: Any, may: bool
) -> None:
    server = Server("asks")
    missing: list[Any] = []

    @server.tool
    async def draw(ctx: Context) -> None:
        """Asks a model."""
        try:
            await ctx.sample("hi", max_tokens=5, include_context=context)
        except MissingCapability as error:
            missing.append(error.data["requiredCapabilities"])

    async with raw_client(server) as peer:
        await begin(peer, version, {"sampling": sampling})
        meta = {} if version != MODERN else {"_meta": modern_meta({"sampling": sampling})}
        params = {"name": "draw", "arguments": {}, **meta}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        first = await peer.receive()
    asked = first.get("method") == "sampling/createMessage" or "inputRequests" in first.get("result", {})
    assert asked == may
    assert missing == ([] if may else [{"sampling": {"context": {}}}])


@pytest.mark.parametrize(
    ("uri", "good"),
    [("file:///a", True), ("FILE:///a", True), ("file://host/a", True), ("https://a/", False), ("/a", False)],
)
async def test_roots_are_files(uri: str, good: bool) -> None:
    server = Server("asks")
    got: list[str] = []

    @server.tool
    async def look(ctx: Context) -> None:
        """Asks for roots."""
        try:
            got.extend(root.uri for root in await ctx.list_roots())
        except Exception as error:
            got.append(type(error).__name__)

    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25", {"roots": {}})
        params = {"name": "look", "arguments": {}}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        question = await peer.receive()
        answer = {"roots": [{"uri": uri}]}
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        await peer.receive()
    assert got == ([uri] if good else ["RemoteProtocolError"])


@pytest.mark.parametrize("version", EVERY)
async def test_errors_have_codes_of_the_clients_own_revision(version: str) -> None:
    server = Server("fails")
    errors = {
        "gone": ResourceNotFound("x://gone"),
        "bare": RpcError(-32002, "gone"),
        "needy": MissingCapability({"roots": {}}),
        "visit": RpcError(-32042, "sign in", {"elicitations": []}),
        "own": RpcError(-31999, "mine"),
    }

    @server.method("acme/fail")
    async def fail(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        raise errors[params["how"]]

    async with raw_client(server) as peer:
        await begin(peer, version)
        codes = {
            how: (await ask(peer, version, how, "acme/fail", {"how": how}))["error"]["code"] for how in errors
        }
    modern, visits = version not in LEGACY, version == "2025-11-25"
    assert codes == {
        "gone": -32602 if modern else -32002,
        "bare": -32602 if modern else -32002,
        "needy": -32021 if modern else -32602,
        "visit": -32042 if visits else -32603,
        "own": -31999,
    }
