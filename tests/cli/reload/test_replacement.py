"""A server that takes the place of another one while it serves: what its clients see, and what begins and ends when.

``REPLACEMENT_ROUNDS`` makes it more random rounds.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mcp_actors import Client, Context, Limits, LocalProtocolError, RpcError, Server
from mcp_actors.abc.discovery import client_transport
from mcp_actors.cli.reload.replacement import MOST_FORMER, ReplaceableServer
from mcp_actors.extensions import ServerExtension, Serving
from mcp_actors.testing import raw_client
from tests.scripted_peers import EVERY, LEGACY, MODERN, ask, begin, call, meta, modern, nothing_comes
from tests.server.asking import HELLO, accept, ask_tool
from tests.server.asking import make_server as asking_server

ROUNDS = int(os.environ.get("REPLACEMENT_ROUNDS", "40"))
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"


class Maker:
    """Makes servers that are numbered, and notes when their lifespans begin and end."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def __call__(self, number: int, **options: Any) -> Server:
        @asynccontextmanager
        async def lifespan(server: Server) -> AsyncIterator[int]:
            self.noted.append(f"enter {number}")
            try:
                yield number
                await trio.lowlevel.checkpoint()
                self.noted.append(f"leave {number}")
            except BaseException:
                self.noted.append(f"abort {number}")
                raise

        server = Server("numbered", version=str(number), lifespan=lifespan, **options)

        @server.tool
        async def which(ctx: Context, seconds: float = 0) -> str:
            """Says the number of its server, and that of its state."""
            await trio.sleep(seconds)
            return f"{number} {ctx.state} {ctx.server.info.version}"

        return server


@pytest.fixture
def make() -> Maker:
    return Maker()


@asynccontextmanager
async def serving(server: Server, transport: Any) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        yield
        server.stop()


def text(answer: dict[str, Any]) -> str:
    said: str = answer["result"]["content"][0]["text"]
    return said


@pytest.mark.parametrize("version", EVERY)
async def test_calls_in_flight_end_with_the_old_server_and_all_others_are_the_new_ones(
    version: str, make: Maker, autojump_clock: MockClock
) -> None:
    server = ReplaceableServer(make(1))
    async with raw_client(server) as peer:
        await begin(peer, version)
        arguments: dict[str, Any] = {"name": "which", "arguments": {"seconds": 50}}
        if version == MODERN:
            arguments["_meta"] = meta()
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": arguments})
        await wait_all_tasks_blocked()
        await server.replace(make(2))
        assert text(await call(peer, version, 2, "which")) == "2 2 2"
        assert make.noted == ["enter 1", "enter 2"]
        answer = await peer.receive()
        assert (answer["id"], text(answer)) == (1, "1 1 1")
        await trio.sleep(1)
        assert make.noted == ["enter 1", "enter 2", "leave 1"]
        assert text(await call(peer, version, 3, "which")) == "2 2 2"
    assert make.noted[-1] == "abort 2"  # the client's block cancels the server


async def test_the_end_of_the_server_leaves_what_is_open_without_cancelling_it(make: Maker) -> None:
    server = ReplaceableServer(make(1))
    transport: Any = client_transport("memory:")
    async with serving(server, transport):
        await server.replace(make(2))
    assert sorted(make.noted) == ["enter 1", "enter 2", "leave 1", "leave 2"]
    with pytest.raises(LocalProtocolError, match="while it serves"):
        await server.replace(make(3))


@pytest.mark.parametrize("version", LEGACY)
async def test_sessions_survive_and_hear_of_the_lists_that_differ_and_of_no_others(
    version: str, make: Maker, autojump_clock: MockClock
) -> None:
    async def visits(ctx: Context) -> int:
        assert ctx.session is not None
        seen: list[int] = ctx.session.get(list)
        seen.append(1)
        return len(seen)

    first, second, third, fourth = (make(n) for n in range(1, 5))
    for each in (first, second, third, fourth):
        each.add_tool(visits)
    third.add_tool(lambda: 1, name="more")
    fourth.add_tool(lambda: 1, name="more")
    fourth.add_prompt(lambda: "p", name="prompt")
    server = ReplaceableServer(first)
    async with raw_client(server) as peer:
        await begin(peer, version)
        assert text(await call(peer, version, 1, "visits")) == "1"
        [session] = server.tree().sessions
        await server.replace(second)
        await nothing_comes(peer)
        await server.replace(third)
        assert (await peer.receive())["method"] == TOOLS_CHANGED
        await nothing_comes(peer)
        await server.replace(fourth)
        # No server before had prompts.
        assert (await peer.receive())["method"] == PROMPTS_CHANGED
        await nothing_comes(peer)
        assert text(await call(peer, version, 2, "visits")) == "2"
        assert [each.name for each in server.tree().sessions] == [session.name]
        listed = (await ask(peer, version, 3, "tools/list"))["result"]["tools"]
        assert [each["name"] for each in listed] == ["which", "visits", "more"]


async def test_a_listener_hears_of_changes_of_every_server(make: Maker, autojump_clock: MockClock) -> None:
    servers = [make(n) for n in range(3)]
    for number, each in enumerate(servers):
        each.add_resource("x://a", lambda: "a", name="a")
        each.add_tool(lambda: 1, name=f"tool{number}")
    server = ReplaceableServer(servers[0])
    async with raw_client(server) as peer:
        asked = {"toolsListChanged": True, "resourceSubscriptions": ["x://a"]}
        params = {"notifications": asked, "_meta": meta()}
        await peer.send({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params})
        assert (await peer.receive())["params"]["notifications"] == asked
        for each in servers[1:]:
            await server.replace(each)
            assert (await peer.receive())["method"] == TOOLS_CHANGED
            each.resource_updated("x://a")
            assert (await peer.receive())["params"]["uri"] == "x://a"
        await trio.sleep(1)
        # A stream that lasts as long as its client keeps no former server.
        assert sorted(make.noted) == ["enter 0", "enter 1", "enter 2", "leave 0", "leave 1"]


async def test_resources_that_clients_subscribed_to_are_told_to_the_new_server(make: Maker) -> None:
    told: list[str] = []
    servers = [make(1), make(2)]
    for number, each in enumerate(servers):
        each.add_resource("x://a", lambda: "a", name="a")
        each.on_subscribe = lambda uri, n=number: told.append(f"subscribe {n} {uri}")  # type: ignore[misc]
        each.on_unsubscribe = lambda uri, n=number: told.append(f"unsubscribe {n} {uri}")  # type: ignore[misc]
    server = ReplaceableServer(servers[0])
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        await peer.request(1, "resources/subscribe", {"uri": "x://a"})
        await server.replace(servers[1])
        assert told == ["subscribe 0 x://a", "subscribe 1 x://a", "unsubscribe 0 x://a"]
        servers[1].resource_updated("x://a")
        assert (await peer.receive())["params"] == {"uri": "x://a"}
        await peer.request(2, "resources/unsubscribe", {"uri": "x://a"})
        assert told[-1] == "unsubscribe 1 x://a"


async def test_a_tool_that_disappears_ends_its_calls_and_takes_no_more(
    make: Maker, autojump_clock: MockClock
) -> None:
    first, second = make(1), make(2)

    async def gone() -> str:
        await trio.sleep(10)
        return "the last one"

    first.add_tool(gone)
    server = ReplaceableServer(first)
    async with Client(server) as client, trio.open_nursery() as nursery:

        async def one_more() -> None:
            assert (await client.call_tool("gone")).text == "the last one"

        nursery.start_soon(one_more)
        await wait_all_tasks_blocked()
        await server.replace(second)
        with pytest.raises(Exception, match="unknown tool"):
            await client.call_tool("gone")


def fails_to_begin() -> Server:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        raise OSError("no such database")
        yield

    return Server("failing", lifespan=lifespan)


def hangs_at_its_begin() -> Server:
    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        await trio.sleep_forever()
        yield

    return Server("hanging", lifespan=lifespan)


def has_an_extension_that_fails() -> Server:
    extension = ServerExtension("com.example/failing")

    @extension.serving
    @asynccontextmanager
    async def fail(serving: Serving) -> AsyncIterator[None]:
        raise OSError("no such database")
        yield

    return Server("failing", extensions=[extension])


@pytest.mark.parametrize("broken", [fails_to_begin, hangs_at_its_begin, has_an_extension_that_fails])
async def test_the_former_server_serves_on_when_the_new_one_does_not_begin(
    broken: Callable[[], Server], make: Maker, autojump_clock: MockClock
) -> None:
    server = ReplaceableServer(make(1))
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        with trio.move_on_after(10) as waited:
            with pytest.raises(OSError, match="no such database"):
                await server.replace(broken())
        assert waited.cancelled_caught == (broken is hangs_at_its_begin)
        assert text(await call(peer, "2025-11-25", 1, "which")) == "1 1 1"
        await server.replace(make(2))
        assert text(await call(peer, "2025-11-25", 2, "which")) == "2 2 2"


@pytest.mark.parametrize("slow", ["lifespan", "extension"])
async def test_a_server_ends_while_another_one_is_about_to_take_its_place(
    slow: str, make: Maker, autojump_clock: MockClock
) -> None:
    extension = ServerExtension("com.example/slow")

    @asynccontextmanager
    async def begin_slowly(_: object) -> AsyncIterator[None]:
        await trio.sleep(5)
        yield
        make.noted.append("leave slow")

    extension.serving(begin_slowly)
    second = Server("slow", lifespan=begin_slowly) if slow == "lifespan" else make(2, extensions=[extension])
    server = ReplaceableServer(make(1))
    refused: list[LocalProtocolError] = []

    async def replace() -> None:
        try:
            await server.replace(second)
        except LocalProtocolError as error:
            refused.append(error)

    transport: Any = client_transport("memory:")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with serving(server, transport):
                # By a task that the server does not know, and so does not cancel.
                nursery.start_soon(replace)
                await trio.sleep(1)
    (error,) = refused
    assert "while it serves" in str(error)
    entered = [each for each in make.noted if each.startswith("enter")]
    assert len([each for each in make.noted if each.startswith(("leave", "abort"))]) >= len(entered)


async def test_what_the_first_lifespan_raises_is_raised_by_serve() -> None:
    with pytest.raises(OSError, match="no such database"):
        await ReplaceableServer(fails_to_begin()).serve(client_transport("memory:"))  # type: ignore[arg-type]


async def test_an_extension_is_entered_before_and_left_after_the_last_call(
    make: Maker, autojump_clock: MockClock
) -> None:
    def with_extension(number: int) -> Server:
        extension = ServerExtension("com.example/noting")

        @extension.serving
        @asynccontextmanager
        async def note(serving: Serving) -> AsyncIterator[None]:
            make.noted.append(f"extension {number} of {serving.state} {serving.server.info.version}")
            yield
            make.noted.append(f"extension {number} ends")

        @extension.method("com.example/number")
        async def answer(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
            await trio.sleep(5)
            return {"number": number}

        return make(number, extensions=[extension])

    server = ReplaceableServer(with_extension(1))
    capabilities = {"extensions": {"com.example/noting": {}}}
    async with raw_client(server) as peer, trio.open_nursery() as nursery:

        async def replace_soon() -> None:
            await trio.sleep(1)
            await server.replace(with_extension(2))

        nursery.start_soon(replace_soon)
        answer = await modern(peer, 1, "com.example/number", capabilities=capabilities)
        assert answer["result"]["number"] == 1
        answer = await modern(peer, 2, "com.example/number", capabilities=capabilities)
        assert answer["result"]["number"] == 2
    assert make.noted[:6] == [
        "enter 1",
        "extension 1 of 1 1",
        "enter 2",
        "extension 2 of 2 2",
        "extension 1 ends",
        "leave 1",
    ]


async def test_a_custom_method_that_only_the_new_server_has_is_answered_on_the_old_connection(
    make: Maker,
) -> None:
    new = make(2)

    @new.method("com.example/new")
    async def answer(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"state": ctx.state}

    server = ReplaceableServer(make(1))
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        assert (await peer.request(1, "com.example/new"))["error"]["code"] == -32601
        await server.replace(new)
        assert (await peer.request(2, "com.example/new"))["result"] == {"state": 2}
        await server.replace(make(3))
        assert (await peer.request(3, "com.example/new"))["error"]["code"] == -32601


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_skills_are_those_of_the_new_server(make: Maker, era: str) -> None:
    def skilled(number: int) -> Server:
        server = make(number)
        for name in ("same", f"only-{number}"):
            text = f"---\nname: {name}\ndescription: Of {number}\n---\n"
            server.add_skill({"SKILL.md": text, "a": str(number)})
        return server

    server = ReplaceableServer(skilled(1))
    async with Client(server, era=era) as client, client.listen(resources=True) as listener:
        assert {each.name async for each in client.skills()} == {"same", "only-1"}
        new = skilled(2)
        await server.replace(new)
        assert (await anext(listener)).kind == "resources"
        skills = {each.name: each async for each in client.skills()}
        assert skills.keys() == {"same", "only-2"}
        assert await client.read_skill_file(skills["same"], "a") == b"2"
        new.remove_skill(skills["only-2"].uri)
        assert (await anext(listener)).kind == "resources"
        assert [each.name async for each in client.skills()] == ["same"]


async def test_a_server_that_has_taken_a_place_is_served_and_takes_no_more_extensions(make: Maker) -> None:
    server, new = ReplaceableServer(make(1)), make(2)
    async with raw_client(server):
        await server.replace(new)
        with pytest.raises(LocalProtocolError, match="before"):
            new.add_extension(ServerExtension("com.example/late"))


async def test_a_question_that_the_old_server_asked_is_answered_to_the_new_one() -> None:
    server = ReplaceableServer(asking_server(b"a" * 32))
    async with raw_client(server) as peer:
        asked = (await ask_tool(peer, 1, "twice", **HELLO))["result"]
        await server.replace(asking_server(b"b" * 32))
        answers = {"first": accept("Ada")}
        again = await ask_tool(
            peer, 2, "twice", **HELLO, inputResponses=answers, requestState=asked["requestState"]
        )
        assert again["result"]["inputRequests"]["last"]["params"]["message"] == "Last name of Ada?"


async def test_it_is_served_once(make: Maker) -> None:
    server = ReplaceableServer(make(1))
    async with raw_client(server):
        with pytest.raises(LocalProtocolError, match="is served once"):
            await server.serve(client_transport("memory:"))  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="is served once"):
        await server.serve(client_transport("memory:"))  # type: ignore[arg-type]


async def test_a_server_that_was_served_is_refused_and_changes_nothing(make: Maker) -> None:
    server, second, elsewhere = ReplaceableServer(make(1)), make(2), make(3)
    async with raw_client(server) as peer, raw_client(elsewhere):
        await begin(peer, "2025-11-25")
        await server.replace(second)
        for each in (second, elsewhere):
            with pytest.raises(LocalProtocolError, match="was served already"):
                await server.replace(each)
        assert text(await call(peer, "2025-11-25", 1, "which")) == "2 2 2"


async def test_of_two_replacements_at_once_one_waits_for_the_other(
    make: Maker, autojump_clock: MockClock
) -> None:
    server = ReplaceableServer(make(1))
    async with raw_client(server) as peer:
        await begin(peer, "2025-11-25")
        async with trio.open_nursery() as nursery:
            for number in (2, 3):
                nursery.start_soon(server.replace, make(number))
        last = text(await call(peer, "2025-11-25", 1, "which"))[0]
        await trio.sleep(1)
        assert sorted(make.noted) == sorted(
            ["enter 1", "enter 2", "enter 3", "leave 1", "leave 2" if last == "3" else "leave 3"]
        )


async def test_limits_and_versions_stay_those_of_the_start(make: Maker) -> None:
    limits = Limits(max_in_flight=7)
    server = ReplaceableServer(make(1, limits=limits, versions=["2025-06-18"]))
    async with raw_client(server) as peer:
        await begin(peer, "2025-06-18")
        new = make(2, limits=Limits(max_in_flight=8))
        with structlog.testing.capture_logs() as logs:
            await server.replace(new)
        assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
            "the server has other limits now: those of the start are used",
            "the server has other versions now: those of the start are used",
        ]
        assert new.limits == limits
        assert new.versions == ("2025-06-18",)
        assert text(await call(peer, "2025-06-18", 1, "which")) == "2 2 2"


async def test_of_too_many_former_servers_the_oldest_ends(make: Maker, autojump_clock: MockClock) -> None:
    server = ReplaceableServer(make(0))
    refused: list[tuple[int, str]] = []

    async def call_which(client: Client, number: int) -> None:
        try:
            await client.call_tool("which", {"seconds": 10_000})
        except RpcError as error:
            refused.append((number, str(error)))

    async with Client(server) as client, trio.open_nursery() as nursery:
        for number in range(MOST_FORMER + 1):
            nursery.start_soon(call_which, client, number)
            await wait_all_tasks_blocked()
            assert "leave 0" not in make.noted
            await server.replace(make(number + 1))
        with trio.fail_after(60):
            while "leave 0" not in make.noted:  # noqa: ASYNC110 - virtual time
                await trio.sleep(1)
        assert "leave 1" not in make.noted
        assert [number for number, _ in refused] == [0]
        assert "replaced" in refused[0][1]
        assert (await client.call_tool("which")).text.startswith(f"{MOST_FORMER + 1} ")
        nursery.cancel_scope.cancel()


async def test_at_random_every_call_is_answered_by_one_server_and_every_lifespan_ends(
    make: Maker, autojump_clock: MockClock
) -> None:
    rng = random.Random(15)
    server = ReplaceableServer(make(0))
    answered: list[str] = []
    transport: Any = client_transport("memory:")
    async with serving(server, transport), Client(transport) as old, Client(transport, era=MODERN) as new:

        async def calls(client: Client) -> None:
            await trio.sleep(rng.random() * ROUNDS)
            answered.append((await client.call_tool("which", {"seconds": rng.random() * 3})).text)

        async with trio.open_nursery() as nursery:
            for _ in range(ROUNDS * 4):
                nursery.start_soon(calls, rng.choice([old, new]))
            for number in range(1, ROUNDS + 1):
                await trio.sleep(rng.random() * 2)
                await server.replace(make(number))
        await trio.sleep(1)
        assert len(answered) == ROUNDS * 4
        assert all(len(set(each.split())) == 1 for each in answered)
        assert sorted(make.noted) == sorted(
            [*(f"enter {n}" for n in range(ROUNDS + 1)), *(f"leave {n}" for n in range(ROUNDS))]
        )
