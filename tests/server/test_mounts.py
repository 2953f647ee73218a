"""Servers in a server: what is mounted is shown, called, told of changes and ended as if it were the host's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Literal

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from mcp_actors import Client, Context, Server, SyncContext
from mcp_actors.client import Event
from mcp_actors.errors import InsufficientScope, LocalProtocolError, RpcError, UpstreamUnavailable
from mcp_actors.extensions import ServerExtension
from mcp_actors.gateway import Gateway
from mcp_actors.server import Caller, Component
from mcp_actors.supervision.principal import Principal
from mcp_actors.types import Implementation, PromptReference
from tests.server.test_access import Authenticating

pytestmark = pytest.mark.slow

ERAS = ["2025-11-25", "2026-07-28"]
EACH_ERA = pytest.mark.parametrize("era", ERAS)


def make_library(name: str = "library") -> Server:
    server = Server(name)

    @server.tool
    def find(title: str, year: int = 0) -> str:
        """Find a book."""
        return f"{title} {year}"

    @server.tool(inline=True)
    def count(most: int) -> int:
        return most

    @server.resource("library://books/{title}")
    def book(title: str) -> str:
        return f"the text of {title}"

    @server.resource("library://index")
    def index() -> str:
        return "Krabat, Momo"

    @server.prompt
    def recommend(mood: Literal["sad", "glad"], author: str = "") -> str:
        return f"Recommend for the {mood}"

    @server.completion(prompt="recommend", argument="author")
    def author(text: str) -> list[str]:
        return [each for each in ("Ende", "Lindgren") if each.startswith(text)]

    return server


def make_host() -> Server:
    host = Server("host")

    @host.tool
    def find() -> str:
        return "found by the host"

    return host


async def names(client: Client) -> list[str]:
    return [each.name async for each in client.tools()]


@EACH_ERA
async def test_everything_is_there_under_its_name(era: str) -> None:
    host = make_host()
    host.mount("lib", make_library())
    async with Client(host, era=era) as client:
        assert await names(client) == ["find", "lib_find", "lib_count"]
        assert (await client.call_tool("find")).text == "found by the host"
        assert (await client.call_tool("lib_find", {"title": "Momo", "year": 1973})).text == "Momo 1973"
        assert (await client.call_tool("lib_count", {"most": 3})).data == 3
        assert [each.uri async for each in client.resources()] == ["library://index"]
        assert [each.uri_template async for each in client.resource_templates()] == [
            "library://books/{title}"
        ]
        assert (await client.read_resource("library://index")).text == "Krabat, Momo"
        assert (await client.read_resource("library://books/Momo")).text == "the text of Momo"
        assert [each.name async for each in client.prompts()] == ["lib_recommend"]
        prompt = await client.get_prompt("lib_recommend", {"mood": "sad"})
        assert prompt.messages[0].content.text == "Recommend for the sad"  # type: ignore[union-attr]
        by_function = await client.complete(PromptReference("lib_recommend"), "author", "L")
        by_annotation = await client.complete(PromptReference("lib_recommend"), "mood", "g")
        assert (by_function.values, by_annotation.values) == (["Lindgren"], ["glad"])
        with pytest.raises(RpcError, match="did you mean 'lib_find'"):
            await client.call_tool("lib_fnd")


async def test_names_may_be_others_and_some_may_be_left_out() -> None:
    host = make_host()
    host.mount(
        "a", make_library(), prefix="", rename={"find": "search"}, exclude=["count", "library://index"]
    )
    host.mount("b", make_library(), include=["find"])
    async with Client(host) as client:
        assert await names(client) == ["find", "search", "b_find"]
        assert [each.uri async for each in client.resources()] == []
        assert (await client.call_tool("search", {"title": "Momo"})).text == "Momo 0"


@pytest.mark.parametrize(
    ("taken", "settings", "said"),
    [
        ("tool", {"prefix": ""}, "cannot show its tool 'find': there is already a tool 'find'"),
        ("resource", {}, "cannot show its resource 'library://index'"),
    ],
)
def test_a_name_that_is_taken_is_refused_and_nothing_is_shown(
    taken: str, settings: dict[str, Any], said: str
) -> None:
    host = make_host()
    if taken == "resource":
        host.add_resource("library://index", lambda: "", name="index")
    before = len(host.tools), len(host.resources), len(host.prompts)
    with pytest.raises(LocalProtocolError, match=said):
        host.mount("lib", make_library(), **settings)
    assert (len(host.tools), len(host.resources), len(host.prompts)) == before
    host.mount("lib", make_library(), exclude=["library://*", "find"])
    assert "lib_count" in host.tools


def test_a_name_that_comes_later_and_is_taken_is_refused_where_it_is_registered() -> None:
    host, library = make_host(), make_library()
    host.mount("lib", library)
    host.add_tool(lambda: "", name="lib_late")
    with pytest.raises(LocalProtocolError, match="'lib' cannot show its tool 'late'"):
        library.add_tool(lambda: "", name="late")
    assert "late" not in library.tools


@pytest.mark.parametrize("made", ["itself", "above", "twice", "gateway", "nothing"])
def test_what_cannot_be_mounted_is_refused(made: str) -> None:
    host, middle = make_host(), Server("middle")
    host.mount("middle", middle)
    if made == "gateway":
        with pytest.raises(TypeError, match="cannot be mounted: what a gateway offers"):
            host.mount("g", Gateway([]))
    elif made == "nothing":
        with pytest.raises(TypeError, match="give a Server object"):
            host.mount("g", "http://127.0.0.1/mcp")  # type: ignore[arg-type]
    elif made == "twice":
        with pytest.raises(LocalProtocolError, match="there is already a mount 'middle'"):
            host.mount("middle", Server("other"))
    else:
        with pytest.raises(LocalProtocolError, match="would contain itself"):
            middle.mount("up", middle if made == "itself" else host)


@EACH_ERA
async def test_what_is_registered_and_removed_later_comes_and_goes(era: str) -> None:
    host, middle, library = make_host(), Server("middle"), make_library()
    middle.mount("lib", library)
    host.mount("mid", middle)
    changes: list[str] = []
    changed = trio.Event()

    def noted(kind: str, uri: str | None) -> None:
        nonlocal changed
        changes.append(kind)
        changed.set()
        changed = trio.Event()

    async with Client(host, era=era, on_change=noted) as client:
        assert "mid_lib_find" in await names(client)
        await wait_all_tasks_blocked()
        for change in (
            lambda: library.add_tool(lambda: "now", name="late"),
            lambda: library.remove_tool("find"),
        ):
            waiting = changed
            change()
            with trio.fail_after(20):
                await waiting.wait()
        assert await names(client) == ["find", "mid_lib_count", "mid_lib_late"]
        assert (await client.call_tool("mid_lib_late")).text == "now"
    assert set(changes) == {"tools"}


@EACH_ERA
async def test_a_function_runs_in_its_own_server(era: str) -> None:
    log: list[str] = []

    def make(name: str) -> Server:
        @asynccontextmanager
        async def lifespan(server: Server) -> AsyncIterator[str]:
            log.append(f"into {server.name}")
            yield f"the state of {server.name}"
            log.append(f"out of {server.name}")

        server = Server(name, lifespan=lifespan)

        @server.tool
        async def where(ctx: Context) -> str:
            return f"{ctx.server.name}: {ctx.state}"

        @server.tool(name="plain")
        def in_thread(ctx: SyncContext) -> str:
            return f"{ctx.server.name}: {ctx.state}"

        return server

    host, middle, inner = make("host"), make("middle"), make("inner")
    middle.mount("in", inner)
    host.mount("mid", middle)
    host.mount("in", inner)
    async with Client(host, era=era) as client:
        assert log == ["into host", "into middle", "into inner", "into inner"]
        for tool, server in (("mid_in_", "inner"), ("mid_", "middle"), ("in_", "inner"), ("", "host")):
            for kind in ("where", "plain"):
                said = (await client.call_tool(tool + kind)).text
                assert said == f"{server}: the state of {server}"
    assert sorted(log[4:]) == ["out of host", "out of inner", "out of inner", "out of middle"]
    assert log[-1] == "out of host"


@EACH_ERA
@pytest.mark.parametrize("order", ["before", "after"])
async def test_middleware_runs_inside_of_that_of_the_host(era: str, order: str) -> None:
    host, library = make_host(), make_library()
    seen: list[str] = []

    def watch(server: Server, name: str) -> None:
        @server.middleware
        async def watched(ctx: Context, call_next: Any) -> Any:
            target = ctx.params.get("name") or ctx.params.get("uri") or ctx.params.get("ref", {}).get("name")
            if ctx.method in ("tools/call", "resources/read", "prompts/get", "completion/complete"):
                seen.append(f"{name} {ctx.server.name} {target}")
            return await call_next()

    if order == "before":
        watch(library, "inner")
    host.mount("lib", library)
    if order == "after":
        watch(library, "inner")
    watch(host, "outer")
    async with Client(host, era=era) as client:
        # What a text stands for is still repaired behind middleware.
        assert (await client.call_tool("lib_count", {"most": "3"})).text == "3"
        assert (await client.read_resource("library://books/Momo")).text == "the text of Momo"
        await client.get_prompt("lib_recommend", {"mood": "sad"})
        assert (await client.complete(PromptReference("lib_recommend"), "author", "E")).values == ["Ende"]
        assert (await client.call_tool("find")).text == "found by the host"
    assert seen == [
        "outer host lib_count",
        "inner library count",
        "outer host library://books/Momo",
        "inner library library://books/Momo",
        "outer host lib_recommend",
        "inner library recommend",
        "outer host lib_recommend",
        "inner library recommend",
        "outer host find",
    ]


@EACH_ERA
async def test_one_that_is_mounted_while_the_host_serves_is_shown_when_its_lifespan_is_entered(
    era: str,
) -> None:
    go = trio.Event()

    @asynccontextmanager
    async def slow(server: Server) -> AsyncIterator[str]:
        await go.wait()
        yield "ready"

    host, late = make_host(), Server("late", lifespan=slow)

    @late.tool
    async def state(ctx: Context) -> str:
        return str(ctx.state)

    async with Client(host, era=era) as client:
        host.mount("late", late)
        await wait_all_tasks_blocked()
        assert await names(client) == ["find"]
        go.set()
        await wait_all_tasks_blocked()
        assert (await client.call_tool("late_state")).text == "ready"


async def test_a_lifespan_that_fails_costs_its_mount() -> None:
    @asynccontextmanager
    async def failing(server: Server) -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    host, late = make_host(), Server("late", lifespan=failing)
    late.add_tool(lambda: "", name="tool")
    with capture_logs() as lines:
        async with Client(host) as client:
            host.mount("late", late)
            await wait_all_tasks_blocked()
            assert await names(client) == ["find"]
            assert (await client.call_tool("find")).text == "found by the host"
            host.unmount("late")
    assert [each["event"] for each in lines if each["log_level"] == "error"] == [
        "a mount is not shown: its lifespan has failed"
    ]
    host.mount("late", late)
    with pytest.raises(ValueError, match="no database"):
        await host.serve()


async def test_a_lifespan_that_crashes_later_costs_the_calls_of_its_mount() -> None:
    crash = trio.Event()

    async def fail() -> None:
        await crash.wait()
        raise ValueError("the database is gone")

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            yield

    host, library = make_host(), make_library()
    inner = Server("inner", lifespan=lifespan)
    inner.add_tool(lambda: "fine", name="tool")
    host.mount("in", inner)
    host.mount("lib", library)
    with capture_logs() as lines:
        async with Client(host) as client:
            assert (await client.call_tool("in_tool")).text == "fine"
            crash.set()
            await wait_all_tasks_blocked()
            with pytest.raises(UpstreamUnavailable, match="'in'"):
                await client.call_tool("in_tool")
            assert (await client.call_tool("lib_find", {"title": "Momo"})).text == "Momo 0"
    assert [each["task"] for each in lines if each["log_level"] == "error"] == ["mount in"]


async def test_a_call_in_flight_goes_on_when_its_server_is_unmounted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    left: list[float] = []

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        yield "open"
        left.append(trio.current_time())

    inner = Server("inner", lifespan=lifespan)

    @inner.tool
    async def slow(ctx: Context) -> str:
        await trio.sleep(10)
        return f"{ctx.state} at the end"

    host = make_host()
    host.mount("in", inner)
    begun = trio.current_time()
    async with Client(host) as client, trio.open_nursery() as nursery:
        texts: list[str] = []

        async def call() -> None:
            texts.append((await client.call_tool("in_slow")).text)

        nursery.start_soon(call)
        await trio.sleep(1)
        host.unmount("in")
        assert await names(client) == ["find"]
        with pytest.raises(RpcError, match="unknown tool"):
            await client.call_tool("in_slow")
        await trio.sleep(11)
        assert texts == ["open at the end"]
        assert [at - begun for at in left] == [pytest.approx(10, abs=1)]
        host.mount("in", inner)
        await wait_all_tasks_blocked()
        assert "in_slow" in await names(client)
    with pytest.raises(LocalProtocolError, match="there is no mount 'out'"):
        host.unmount("out")


async def test_scopes_of_the_mount_count_beside_those_of_what_it_shows() -> None:
    library = make_library()
    library.add_tool(lambda: "stored", name="store", scopes=["write"])
    host = make_host()
    host.mount("lib", library, scopes=["library"])

    async def seen_with(*scopes: str) -> tuple[list[str], str]:
        transport = Authenticating(Principal("ann", scopes=list(scopes)))
        async with trio.open_nursery() as nursery:
            await nursery.start(host.serve, transport)
            async with Client(transport) as client:
                listed = await names(client)
                try:
                    answer = (await client.call_tool("lib_store")).text
                except InsufficientScope as error:
                    answer = " ".join(sorted(error.data["scopes"]))
            nursery.cancel_scope.cancel()
        return listed, answer

    assert await seen_with() == (["find"], "library write")
    assert await seen_with("library") == (["find", "lib_find", "lib_count"], "library write")
    assert await seen_with("library", "write") == (["find", "lib_find", "lib_count", "lib_store"], "stored")


@EACH_ERA
async def test_updates_of_resources_arrive_and_subscribers_are_reported(era: str) -> None:
    host, library = make_host(), make_library()
    reported: list[str] = []
    library.on_subscribe = lambda uri: reported.append(f"first {uri}")
    library.on_unsubscribe = lambda uri: reported.append(f"last {uri}")
    host.mount("lib", library)
    async with Client(host, era=era) as client:
        async with client.listen(uris=("library://index",)) as events:
            await wait_all_tasks_blocked()
            library.resource_updated("library://index")
            assert await anext(events) == Event("resource_updated", "library://index")
        await wait_all_tasks_blocked()
    assert reported == ["first library://index", "last library://index"]


async def test_methods_and_notifications_are_taken_over() -> None:
    host, one, two = make_host(), Server("one"), Server("two")
    taken: list[str] = []

    for server in (host, one, two):

        @server.notification("notifications/my")
        async def mine(ctx: Context, text: str) -> None:
            taken.append(f"{ctx.server.name} {text}")

    @one.method("my/reverse")
    async def reverse(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"text": params["text"][::-1], "by": ctx.server.name}

    host.mount("one", one)
    host.mount("two", two)
    async with Client(host) as client:
        answer = await client.request("my/reverse", {"text": "abc"})
        assert (answer["text"], answer["by"]) == ("cba", "one")
        await client.notify("notifications/my", {"text": "x"})
        await wait_all_tasks_blocked()
        assert sorted(taken) == ["host x", "one x", "two x"]
        host.unmount("one")
        with pytest.raises(RpcError):
            await client.request("my/reverse", {"text": "abc"})


async def test_tools_that_become_tasks_work_in_the_host() -> None:
    inner = Server("inner")

    @inner.tool(task="optional")
    async def long(ctx: Context) -> str:
        return f"done by {ctx.server.name}"

    host = make_host()
    host.mount("in", inner)
    async with Client(host) as client:
        task = await client.start_tool("in_long")
        assert (await task.result()).text == "done by inner"


async def test_an_extension_that_the_host_does_not_offer_is_refused() -> None:
    inner = Server("inner", extensions=[ServerExtension("org.example/x")])
    with pytest.raises(LocalProtocolError, match="which its host does not offer"):
        make_host().mount("in", inner)


async def test_several_lifespans_are_entered_in_turn() -> None:
    log: list[str] = []

    def make(name: str) -> Any:
        @asynccontextmanager
        async def lifespan(server: Server) -> AsyncIterator[str]:
            log.append(f"into {name}")
            yield name
            log.append(f"out of {name}")

        return lifespan

    server = Server("s", lifespan=[make("a"), make("b")])

    @server.tool
    async def state(ctx: Context) -> list[str]:
        return list(ctx.state)

    async with Client(server) as client:
        assert (await client.call_tool("state")).text == '["a","b"]'
    assert log == ["into a", "into b", "out of b", "out of a"]


async def test_one_that_is_mounted_while_the_host_starts_is_entered_too() -> None:
    go = trio.Event()

    @asynccontextmanager
    async def slow(server: Server) -> AsyncIterator[None]:
        await go.wait()
        yield

    host, first, second = make_host(), Server("first", lifespan=slow), make_library()
    host.mount("first", first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(nursery.start, host.serve, "memory:starting")
        await wait_all_tasks_blocked()
        host.mount("lib", second)
        go.set()
        await wait_all_tasks_blocked()
        async with Client("memory:starting") as client:
            assert (await client.call_tool("lib_find", {"title": "Momo"})).text == "Momo 0"
        nursery.cancel_scope.cancel()


async def test_a_mounted_server_may_have_its_first_task_later() -> None:
    host, inner = make_host(), Server("inner")
    host.add_tool(lambda: "", name="own", task="optional")
    host.mount("in", inner)

    @inner.tool(task="optional")
    async def long() -> str:
        return "done"

    async with Client(host) as client:
        task = await client.start_tool("in_long")
        assert (await task.result()).text == "done"


def test_a_method_that_comes_later_and_is_taken_is_refused_where_it_is_added() -> None:
    async def answer(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {}

    host, inner = make_host(), Server("inner")
    host.mount("in", inner)
    host.method("my/method")(answer)
    with pytest.raises(LocalProtocolError, match="'my/method', which 'host' answers already"):
        inner.method("my/method")(answer)
    host.unmount("in")
    inner.method("my/method")(answer)


async def test_updates_of_what_is_not_shown_stay_hidden() -> None:
    host, library = make_host(), make_library()
    reported: list[str] = []
    library.on_subscribe = reported.append
    host.mount("lib", library, include=["library://books/{title}"])
    async with Client(host, era="modern") as client:
        # A client of sessions is refused what is not there.
        async with client.listen(uris=("library://index", "library://books/Momo")) as events:
            await wait_all_tasks_blocked()
            library.resource_updated("library://index")
            library.resource_updated("library://books/Momo")
            assert await anext(events) == Event("resource_updated", "library://books/Momo")
    assert reported == ["library://books/Momo"]


async def test_middleware_of_notifications_runs_whenever_it_was_added() -> None:
    seen: list[str] = []

    class Watching:
        async def __call__(self, ctx: Context, call_next: Any) -> Any:
            return await call_next()

        async def notification(self, ctx: Context, call_next: Any) -> Any:
            seen.append(f"round {ctx.server.name}")
            return await call_next()

    host, inner = make_host(), Server("inner")

    @inner.notification("notifications/my")
    async def mine(text: str) -> None:
        seen.append(text)

    host.mount("in", inner)
    inner.middleware(Watching())
    async with Client(host) as client:
        await client.notify("notifications/my", {"text": "x"})
        await wait_all_tasks_blocked()
    assert seen == ["round inner", "x"]


async def test_two_hundred_clients_list_a_thousand_components_that_change_and_see_nobody_elses() -> None:
    def is_of(caller: Caller, component: Component) -> bool:
        return "common" in component.tags or caller.peer.info.name in component.tags

    servers = [Server(f"level {level}", page_size=500) for level in range(4)]
    for host, inner in pairwise(servers):
        host.mount("in", inner)
    outermost, innermost = servers[0], servers[-1]

    def add(number: int, owner: str) -> None:
        innermost.add_tool(lambda: owner, name=f"tool_{number}_{owner}", tags=[owner], visible=is_of)

    for number in range(600):
        add(number, "common")
    for number in range(600, 1000):
        add(number, f"user-{number % 200}")
    left = 0

    async def change() -> None:
        # All that is there before and after has to be in each list, whatever comes and goes meanwhile.
        number = 1000
        while left < 200:
            owner = f"user-{number % 200}"
            add(number, owner)
            await trio.lowlevel.checkpoint()
            innermost.remove_tool(f"tool_{number}_{owner}")
            number += 1

    async def list_all(user: int) -> None:
        nonlocal left
        owner = f"user-{user}"
        async with Client(outermost, info=Implementation(owner, "1"), era="modern") as client:
            names = [each.name async for each in client.tools()]
            assert len(set(names)) == len(names)
            owners = Counter(name.rpartition("_")[2] for name in names)
            assert set(owners) == {"common", owner}
            assert owners["common"] == 600
            assert owners[owner] >= 2
            assert (await client.call_tool(f"in_in_in_tool_{600 + user}_{owner}")).text == owner
            other = user ^ 1
            with pytest.raises(RpcError):
                await client.call_tool(f"in_in_in_tool_{600 + other}_user-{other}")
        left += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        for user in range(200):
            nursery.start_soon(list_all, user)
