"""Attempts to have something done twice by one key, to learn what others were answered, or to use up what they need."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import trio
import trio.testing

from mcp_actors import Client, Context, Server
from mcp_actors.errors import (
    KeyConflict,
    NotAllowed,
    OutcomeUnknown,
    Overloaded,
    RpcError,
)
from mcp_actors.extensions import KEY
from mcp_actors.server import Limits
from mcp_actors.shared import MemoryShared
from mcp_actors.shared.memory import MemoryValueStore
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import ScriptedPeer, raw_client
from tests.messages import CAPABILITIES, MODERN, VERSION, cancelled, modern_meta, request
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
    async with (
        client_of(bank.server, ANN, era=era) as one,
        client_of(bank.server, other, era=era) as two,
        client_of(bank.server, Principal("ann", scopes=["more"]), era=era) as again,
    ):
        texts = [
            await client.call_tool("transfer", {"cents": 5}, key="a", returns=str)
            for client in (one, two, again)
        ]
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


# -- the end of others, and of time ------------------------------------------------------------------------------------


async def test_a_function_does_not_end_with_another_serve() -> None:
    bank = Bank()
    async with trio.open_nursery() as nursery:
        other = trio.CancelScope()

        async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
            with other:
                await bank.server.serve(Authenticating(None), task_status=task_status)

        async def call() -> None:
            assert await client.call_tool("slow", key="a", returns=str) == "slowly"

        await nursery.start(serve)
        async with Client(bank.server) as client, trio.open_nursery() as calls:
            calls.start_soon(call)
            await bank.begun.wait()
            other.cancel()
            await trio.testing.wait_all_tasks_blocked()
            bank.gate.set()
    assert bank.ends == []


async def test_one_of_which_nothing_was_begun_is_begun_by_one_that_waits_at_another_node(
    autojump_clock: Any,
) -> None:
    shared = MemoryShared()
    here, there = Bank(shared), Bank(shared)

    @here.server.middleware
    async def refuse_later(ctx: Context, call_next: Any) -> Any:
        if ctx.method == "tools/call":
            await trio.sleep(5)
            raise Overloaded("server", 1, 1)
        return await call_next()

    async with Client(here.server) as one, Client(there.server) as two, trio.open_nursery() as nursery:

        async def refused() -> None:
            with pytest.raises(Overloaded):
                await one.call_tool("transfer", {"cents": 5}, key="a", cap=6)

        nursery.start_soon(refused)
        await trio.sleep(1)
        assert await two.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 1"
    assert (here.done, there.done) == ([], [5])


async def test_a_function_that_cleans_up_for_longer_than_its_answer_is_kept_is_not_begun_again(
    autojump_clock: Any,
) -> None:
    shared = MemoryShared(clock=trio.current_time)
    done: list[str] = []

    def node() -> Server:
        server = Server("s", shared=shared)

        @server.tool(idempotent=timedelta(seconds=5))
        async def slow() -> str:
            done.append("begun")
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)
                done.append("cleaned up")

        return server

    async with Client(node()) as one, Client(node()) as two:

        async def call(client: Client) -> None:
            with pytest.raises(OutcomeUnknown):
                await client.call_tool("slow", key="a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, one)
            for _ in range(12):
                await trio.sleep(0.9)
                nursery.start_soon(call, two)
    assert done == ["begun", "cleaned up"]


@pytest.mark.parametrize(
    "jump", [-timedelta(days=400), -timedelta(hours=1), timedelta(hours=1), timedelta(hours=23)]
)
async def test_a_clock_that_jumps_has_nothing_done_twice(jump: timedelta, autojump_clock: Any) -> None:
    now = [1.7e9]
    shared = MemoryShared(clock=lambda: now[0])
    here, there = Bank(shared), Bank(shared)
    answers: list[str] = []

    async def call(client: Client) -> None:
        answers.append(await client.call_tool("slow", key="a", returns=str))

    async with Client(here.server) as one, Client(there.server) as two, trio.open_nursery() as nursery:
        nursery.start_soon(call, one)
        await here.begun.wait()
        now[0] += jump.total_seconds()
        nursery.start_soon(call, two)
        await trio.sleep(5)
        here.gate.set()
        await trio.sleep(5)
        nursery.start_soon(call, two)
        nursery.start_soon(call, one)
    assert answers == ["slowly"] * 4
    assert (here.done, there.done) == (["slow"], [])


# -- what others need --------------------------------------------------------------------------------------------------


async def test_many_that_wait_for_one_answer_leave_others_their_places() -> None:
    bank = Bank()
    server = bank.server
    server.limits = Limits(max_in_flight=64, max_waiting=0)
    async with peer_of(server, ANN) as peer, client_of(server, BOB) as other:
        for number in range(200):
            await peer.send(keyed(number, "slow", {}, "a"))
        await bank.begun.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert await other.call_tool("transfer", {"cents": 5}, key="a", returns=str) == "5 to Ann, number 2"
        bank.gate.set()
        answers = Counter(["result" in await peer.receive() for _ in range(200)])
    # Each waits in a place of its connection, as any other call does, and holds none of the calls with keys.
    assert answers == {True: 64, False: 136}
    assert bank.done == ["slow", 5]


async def test_calls_with_keys_of_one_caller_leave_others_their_places() -> None:
    bank = Bank(running=10)
    async with peer_of(bank.server, ANN) as peer, client_of(bank.server, BOB) as other:
        for number in range(20):
            await peer.send(keyed(number, "slow", {}, f"key-{number}"))
        await trio.testing.wait_all_tasks_blocked()
        assert bank.done == ["slow"] * 5
        assert (await other.call_tool("transfer", {"cents": 5}, key="a")).text
        bank.gate.set()


async def test_one_that_waits_at_another_node_asks_no_more_once_its_caller_has_gone(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    shared = MemoryShared()
    here, there = Bank(shared), Bank(shared)
    loads: list[str] = []
    load = MemoryValueStore.load

    async def counted(self: MemoryValueStore, key: str) -> bytes | None:
        loads.append(key)
        return await load(self, key)

    monkeypatch.setattr(MemoryValueStore, "load", counted)
    async with Client(here.server) as one, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: one.call_tool("slow", key="a"))
        await here.begun.wait()
        async with peer_of(there.server, None) as two:
            await two.send(keyed(1, "slow", {}, "a"))
            await trio.sleep(60)
            # Less and less often: once a second at last.
            assert 50 < len(loads) < 75
            await two.send(cancelled(1, _meta=modern_meta()))
            await trio.sleep(2)
            asked_until_then = len(loads)
            await trio.sleep(60)
            assert len(loads) == asked_until_then
        here.gate.set()
    assert there.done == []


async def test_answers_that_do_not_fit_into_the_state_make_room_by_the_oldest_of_their_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MemoryValueStore.__init__.__kwdefaults__, "max_bytes", 22_000)
    bank = Bank(bytes_per_caller=18_000)

    @bank.server.tool(idempotent=DAY)
    async def large() -> str:
        return "x" * 5000

    async with Client(bank.server, timeout=30) as client:
        for number in range(20):
            assert (await client.call_tool("large", key=f"key-{number}")).text
