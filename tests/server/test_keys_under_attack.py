"""Attempts to have something done twice by one key, to learn the answers of others, or to use up what others need."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Server
from mcp_actors.errors import (
    KeyConflict,
    NotAllowed,
    Overloaded,
    RpcError,
)
from mcp_actors.extensions import KEY
from mcp_actors.server import Limits
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import ScriptedPeer, raw_client
from tests.messages import CAPABILITIES, MODERN, VERSION, modern_meta, request
from tests.server.asking import ALL, accept
from tests.server.test_access import Authenticating
from tests.server.test_idempotency import DAY, ERAS, Bank

ANN, BOB = Principal("ann"), Principal("bob")


@asynccontextmanager
async def client_of(server: Server, principal: Principal | None, **options: Any) -> AsyncIterator[Client]:
    """A client of a server that has authenticated its peer."""
    async with trio.open_nursery() as nursery:
        transport = Authenticating(principal)
        await nursery.start(server.serve, transport)
        async with Client(transport, **options) as client:
            yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def peer_of(server: Server, principal: Principal | None) -> AsyncIterator[ScriptedPeer]:
    async with trio.open_nursery() as nursery:
        transport = Authenticating(principal)
        await nursery.start(server.serve, transport)
        async with transport.connect() as channel:
            yield ScriptedPeer(channel)
        nursery.cancel_scope.cancel()


def keyed(id: Any, tool: str, arguments: Any, key: Any, **retry: Any) -> dict[str, Any]:
    meta = modern_meta(ALL) if key is None else {**modern_meta(ALL), KEY: key}
    return request(id, "tools/call", {"name": tool, "arguments": arguments, "_meta": meta, **retry})


async def asked(peer: ScriptedPeer, message: dict[str, Any] | bytes) -> Any:
    await peer.send(message)
    return await peer.receive()


def retry_of(answer: dict[str, Any], name: str = "x") -> dict[str, Any]:
    result = answer["result"]
    responses = {key: accept(name) for key in result["inputRequests"]}
    return {"inputResponses": responses, "requestState": result["requestState"]}


# -- the answers of others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "other",
    [BOB, None, Principal(""), Principal("ann", issuer="https://x"), Principal("ann", client="c")],
    ids=["bob", "nobody", "empty", "issuer", "client"],
)
async def test_each_caller_has_keys_of_its_own(other: Principal | None, era: str) -> None:
    bank = Bank()
    texts = []
    async with (
        client_of(bank.server, ANN, era=era) as one,
        client_of(bank.server, other, era=era) as two,
        client_of(bank.server, Principal("ann", scopes=["more"]), era=era) as again,
    ):
        for client in (one, two, again):
            texts.append(await client.call_tool("transfer", {"cents": 5}, key="a", returns=str))  # noqa: PERF401 - in turn
        # Other arguments say nothing of what another caller has sent.
        assert (await two.call_tool("transfer", {"cents": 6}, key="b")).text
        assert (await one.call_tool("transfer", {"cents": 7}, key="b")).text
    assert texts == ["5 to Ann, number 1", "5 to Ann, number 2", "5 to Ann, number 1"]


async def test_one_that_runs_is_another_callers_own() -> None:
    bank = Bank()
    async with client_of(bank.server, ANN) as one, client_of(bank.server, BOB) as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: one.call_tool("slow", key="a"))
            await bank.begun.wait()
            nursery.start_soon(lambda: two.call_tool("slow", key="a"))
            await trio.testing.wait_all_tasks_blocked()
            assert bank.done == ["slow", "slow"]
            bank.gate.set()


async def test_callers_that_are_not_authenticated_are_one_and_need_the_arguments() -> None:
    bank = Bank()
    async with Client(bank.server) as one, Client(bank.server) as two:
        text = await one.call_tool("transfer", {"cents": 5, "to": "Bob"}, key="a", returns=str)
        with pytest.raises(KeyConflict) as caught:
            await two.call_tool("transfer", {"cents": 5, "to": "Eve"}, key="a")
        assert "Bob" not in str(caught.value)
        assert await two.call_tool("transfer", {"cents": 5, "to": "Bob"}, key="a", returns=str) == text


async def test_a_state_of_another_caller_opens_nothing() -> None:
    bank = Bank()
    async with peer_of(bank.server, ANN) as one, peer_of(bank.server, BOB) as two:
        first = await asked(one, keyed(1, "asks", {}, "a"))
        stolen = await asked(two, keyed(1, "asks", {}, "a", **retry_of(first)))
        assert stolen["error"]["code"] == -32602
        assert "requestState" in stolen["error"]["message"]
        # Nor while the call of its owner runs, nor behind its answer.
        await asked(one, keyed(2, "asks", {}, "a", **retry_of(first)))
        stolen = await asked(two, keyed(2, "asks", {}, "a", **retry_of(first)))
        assert stolen["error"]["code"] == -32602


@pytest.mark.parametrize("key", ["b", None])
async def test_a_state_belongs_to_the_key_that_it_was_given_with(key: str | None) -> None:
    bank = Bank()
    async with raw_client(bank.server) as peer:
        other = await asked(peer, keyed(1, "asks", {}, key))
        borrowed = await asked(peer, keyed(2, "asks", {}, "a", **retry_of(other)))
        assert borrowed["error"]["code"] == -32602
        own = await asked(peer, keyed(3, "asks", {}, "a"))
        returned = await asked(peer, keyed(4, "asks", {}, key, **retry_of(own)))
        assert returned["error"]["code"] == -32602


async def test_answers_that_were_not_asked_for_are_part_of_the_request() -> None:
    bank = Bank()
    async with raw_client(bank.server) as peer:
        first = await asked(peer, keyed(1, "asks", {}, "a"))
        forged = {key: accept("x") for key in first["result"]["inputRequests"]}
        other = await asked(peer, keyed(2, "asks", {}, "a", inputResponses=forged))
        assert other["error"]["data"] == {"reason": "key_conflict"}
        for state in ("", "x", first["result"]["requestState"][:-2], 7):
            wrong = await asked(peer, keyed(3, "asks", {}, "a", inputResponses=forged, requestState=state))
            assert "error" in wrong, state
    assert bank.done == ["asks"]


# -- rights that end ---------------------------------------------------------------------------------------------------


async def test_who_may_not_call_a_tool_any_more_does_not_get_its_answers() -> None:
    allowed, seen = [True], [True]
    server = Server("s")
    server.add_tool(lambda: "secret", name="ruled", idempotent=DAY, auth=lambda caller, component: allowed[0])
    server.add_tool(
        lambda: "secret", name="hidden", idempotent=DAY, visible=lambda caller, component: seen[0]
    )
    server.add_tool(lambda: "secret", name="scoped", idempotent=DAY, scopes=["pay"])
    async with (
        client_of(server, Principal("ann", scopes=["pay"])) as client,
        client_of(server, ANN) as later,
    ):
        for name in ("ruled", "hidden", "scoped"):
            assert await client.call_tool(name, key="a", returns=str) == "secret"
        allowed[0] = seen[0] = False
        with pytest.raises(NotAllowed):
            await client.call_tool("ruled", key="a")
        with pytest.raises(RpcError, match="unknown tool"):
            await client.call_tool("hidden", key="a")
        with pytest.raises(RpcError, match="scope"):
            await later.call_tool("scoped", key="a")


async def test_another_version_of_a_tool_is_another_request() -> None:
    server = Server("s")
    for version in ("1", "2"):
        server.add_tool(lambda version=version: version, name="v", version=version, idempotent=DAY)
    async with raw_client(server) as peer:
        meta = {**modern_meta(), KEY: "a"}
        first = await asked(peer, request(1, "tools/call", {"name": "v", "arguments": {}, "_meta": meta}))
        assert "error" not in first
        meta["mcp-actors/version"] = "1"
        other = await asked(peer, request(2, "tools/call", {"name": "v", "arguments": {}, "_meta": meta}))
        assert other["error"]["data"] == {"reason": "key_conflict"}


# -- forms of keys and arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["\x00", "\n\x1b[31m", "\u202e", "\ufeff", " ", "é", unicodedata.normalize("NFD", "é"), "🔑" * 256]
)
async def test_any_text_is_a_key(key: str) -> None:
    bank = Bank()
    async with Client(bank.server) as client:
        text = await client.call_tool("transfer", {"cents": 5}, key=key, returns=str)
        assert await client.call_tool("transfer", {"cents": 5}, key=key, returns=str) == text
        with pytest.raises(KeyConflict) as caught:
            await client.call_tool("transfer", {"cents": 6}, key=key)
        assert not set("\x00\n\x1b\u202e") & set(str(caught.value).partition("\n")[0])
        # A text that looks the same is another key.
        other = key + "\u200b" if len(key) < 256 else key[1:]
        assert (await client.call_tool("transfer", {"cents": 6}, key=other)).text
    assert bank.done == [5, 6]


async def test_half_a_pair_of_surrogates_begins_nothing() -> None:
    bank = Bank()
    async with raw_client(bank.server) as peer:
        text = (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"transfer","arguments":%s,'
            b'"_meta":{"%s":"%s","%s":{},"%s":"%s"}}}'
        )
        words = (VERSION.encode(), MODERN.encode(), CAPABILITIES.encode(), KEY.encode())
        for arguments, key in ((b'{"cents":5}', b"\\ud800"), (b'{"cents":5,"to":"\\udc00"}', b"a")):
            answer = await asked(peer, text % (arguments, *words, key))
            assert "error" in answer
    assert bank.done == []


JSON_FORMS = ["1", "1.0", '"1"', "true", "[1]", "null", "1e0", "18446744073709551617", "-0.0"]


async def test_values_that_are_alike_are_other_arguments() -> None:
    seen: list[Any] = []
    server = Server("s")

    @server.tool(idempotent=DAY)
    async def note(value: Any) -> str:
        seen.append(value)
        return repr(value)

    async with raw_client(server) as peer:

        async def call(arguments: str) -> Any:
            meta = f'{{"{VERSION}":"{MODERN}","{CAPABILITIES}":{{}},"{KEY}":"a"}}'
            params = f'{{"name":"note","arguments":{arguments},"_meta":{meta}}}'
            return await asked(
                peer, f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode()
            )

        first = await call('{"value":{"a":1,"b":"\\u00e9"}}')
        # The order, the spelling and the space say nothing; nor does a member that a later one of its name replaces.
        for same in ('{"value": {"b":"é", "a":1}}', '{"value":7,"value":{"a":2,"b":"é","a":1}}'):
            assert (await call(same))["result"] == first["result"]
        for form in JSON_FORMS:
            other = await call(f'{{"value":{{"a":{form if form != "1" else "2"},"b":"é"}}}}')
            assert other["error"]["data"] == {"reason": "key_conflict"}, form
        assert (await call('{"value":{"a":1,"b":"e\\u0301"}}'))["error"]["data"] == {"reason": "key_conflict"}
        assert (await call('{"value":[{"a":1,"b":"é"},{}]}'))["error"]["data"] == {"reason": "key_conflict"}
    assert len(seen) == 1


async def test_names_and_keys_do_not_run_into_each_other() -> None:
    done: list[str] = []
    server = Server("s")
    for name in ("pay", "pay_a"):
        server.add_tool(lambda name=name: done.append(name), name=name, idempotent=DAY)
    async with Client(server) as client:
        for name, key in (("pay", "_ab"), ("pay_a", "b"), ("pay", '","'), ("pay", "pay"), ("pay", '["pay')):
            await client.call_tool(name, key=key)
    assert len(done) == 5


async def test_long_arguments_are_weighed_while_their_function_runs() -> None:
    begun: list[str] = []
    server = Server("s", limits=Limits(in_flight_bytes=500_000))

    @server.tool(idempotent=DAY)
    async def slow(text: str) -> None:
        begun.append(text[:1])
        await trio.sleep_forever()

    async with client_of(server, ANN) as client, client_of(server, BOB) as other:
        # The caller goes each time without a word, as over HTTP, and its functions run on.
        async with peer_of(server, ANN) as peer:
            for number in range(8):
                await peer.send(keyed(number, "slow", {"text": "a" * 100_000}, f"key-{number}"))
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded, match="bytes"):
            await client.call_tool("slow", {"text": "b" * 400_000}, key="b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: other.call_tool("slow", {"text": "c" * 200_000}, key="c"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert "c" in begun
