"""Providers: what they have is listed page by page, found by its name, checked, mounted and told of as the rest."""

from __future__ import annotations

import base64
from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from mcp_actors import Client, Context, Provided, ProvidedPage, Provider, Server
from mcp_actors.client import Event
from mcp_actors.errors import (
    InsufficientScope,
    LocalProtocolError,
    NotAllowed,
    ResourceNotFound,
    RpcError,
    UpstreamUnavailable,
)
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.server import Caller, Component, ComponentKind
from mcp_actors.telemetry import Metrics
from mcp_actors.types import PromptReference, ResourceTemplateReference
from tests.server.test_visibility import client_of, hosted
from tests.transports.test_every_binding import ALLOWED, garbage

ERAS = ["2025-11-25", "2026-07-28"]
EACH_ERA = pytest.mark.parametrize("era", ERAS)


def colour(shade: Literal["red", "green"]) -> str:
    return f"it is {shade}"


def of(name: str) -> str:
    return f"of {name}"


class Shelf(Provider):
    """Has numbered components of each kind, makes them anew each time, and notes what it is asked."""

    def __init__(self, number: int = 3, prefix: str = "n", **options: Any) -> None:
        self.number = number
        self.prefix = prefix
        self.options = options
        self.asked: list[tuple[Any, ...]] = []
        self.fails: Callable[[], Any] | None = None

    def name(self, kind: ComponentKind, number: int) -> str:
        name = {"tool": "{}", "prompt": "{}", "resource": "{}://x", "template": "{}://of/{{name}}"}[kind]
        return name.format(f"{self.prefix}{number}")

    def make(self, kind: ComponentKind, name: str) -> Provided:
        match kind:
            case "tool":

                async def answer() -> str:
                    return name

                return Provided.tool(answer, name=name, **self.options)
            case "prompt":
                return Provided.prompt(colour, name=name, **self.options)
            case "resource":
                return Provided.resource(name, lambda: name, name=name, **self.options)
        return Provided.resource(name, of, **self.options)

    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        self.asked.append(("list", kind, cursor, limit))
        if self.fails is not None:
            await self.fails()
        begin = int(cursor or 0)
        end = min(begin + limit, self.number)
        following = str(end) if end < self.number else None
        return ProvidedPage([self.make(kind, self.name(kind, each)) for each in range(begin, end)], following)

    async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
        self.asked.append(("get", kind, name))
        if self.fails is not None:
            await self.fails()
        host, _, path = name.partition("://")
        number = host.removeprefix(self.prefix)
        if not number.isdecimal() or int(number) >= self.number:
            return None
        if name == self.name(kind, int(number)):
            return self.make(kind, name)
        if kind == "resource" and path.startswith("of/"):
            return self.make("template", f"{host}://of/{{name}}")
        return None


async def failing() -> None:
    raise KeyError("no such table")


def serving(*providers: Provider, **options: Any) -> Server:
    server = Server("s", **options)
    for each in providers:
        server.add_provider(each)
    return server


async def tools(client: Client) -> list[str]:
    return [each.name async for each in client.tools()]


async def listed(client: Client) -> list[str]:
    found = await tools(client)
    found += [f"prompt {each.name}" async for each in client.prompts()]
    found += [each.uri async for each in client.resources()]
    return found + [each.uri_template async for each in client.resource_templates()]


# -- lists and calls ---


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_what_a_provider_has_is_listed_and_used(is_mounted: bool, era: str) -> None:
    server = hosted(serving(Shelf(2)), is_mounted)
    async with Client(server, era=era) as client:
        assert await listed(client) == [
            *("n0", "n1", "prompt n0", "prompt n1"),
            *("n0://x", "n1://x", "n0://of/{name}", "n1://of/{name}"),
        ]
        assert (await client.call_tool("n1")).text == "n1"
        prompt = await client.get_prompt("n1", {"shade": "red"})
        assert prompt.messages[0].content.text == "it is red"  # type: ignore[union-attr]
        assert (await client.read_resource("n1://x")).text == "n1://x"
        assert (await client.read_resource("n1://of/me")).text == "of me"
        completed = await client.complete(PromptReference("n1"), "shade", "g")
        assert completed.values == ["green"]
        assert (await client.complete(ResourceTemplateReference("n1://of/{name}"), "name", "")).values == []


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_what_no_provider_has_is_unknown(is_mounted: bool, era: str) -> None:
    server = hosted(serving(Shelf()), is_mounted)
    async with Client(server, era=era) as client:
        for use in (
            lambda: client.call_tool("n9"),
            lambda: client.get_prompt("n9", {}),
            lambda: client.complete(PromptReference("n9"), "shade", "g"),
            lambda: client.complete(PromptReference("n1"), "size", "g"),
        ):
            with pytest.raises(RpcError, match=r"unknown|has no argument") as caught:
                await use()  # type: ignore[no-untyped-call]
            assert caught.value.code == -32602
        for uri in ("n9://x", "n1://of/..%2Fsecret"):
            with pytest.raises(ResourceNotFound):
                await client.read_resource(uri)


async def test_no_more_is_read_than_is_asked_for() -> None:
    shelf = Shelf(1_000_000)
    server = serving(shelf, page_size=10)
    server.add_tool(lambda: None, name="own")
    async with Client(server, era="2026-07-28") as client:
        first = await client.request("tools/list", {})
        assert [each["name"] for each in first["tools"]] == ["own", *(f"n{each}" for each in range(9))]
        second = await client.request("tools/list", {"cursor": first["nextCursor"]})
        assert [each["name"] for each in second["tools"]] == [f"n{each}" for each in range(9, 19)]
        await client.call_tool("n77")
    assert shelf.asked == [
        ("list", "tool", None, 9),
        ("list", "tool", "9", 10),
        ("get", "tool", "n77"),
    ]


@EACH_ERA
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_a_list_goes_on_from_one_to_the_next(is_mounted: bool, size: int, era: str) -> None:
    server = serving(Shelf(3), Shelf(0), Shelf(2, "m"), page_size=size)
    server.add_tool(lambda: None, name="own")
    async with Client(hosted(server, is_mounted, page_size=size), era=era) as client:
        assert await tools(client) == ["own", "n0", "n1", "n2", "m0", "m1"]


class Whole(Shelf):
    """Knows no pages."""

    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        assert cursor is None
        return ProvidedPage([self.make(kind, self.name(kind, each)) for each in range(self.number)])


async def test_a_provider_that_returns_more_is_shown_on_several_pages() -> None:
    async with Client(serving(Whole(7), Shelf(1, "m"), page_size=3)) as client:
        assert await tools(client) == [*(f"n{each}" for each in range(7)), "m0"]


async def test_what_is_registered_goes_first_and_then_the_first_provider() -> None:
    server = serving(Shelf(2), Shelf(2), page_size=1_000)
    server.add_tool(lambda: "own", name="n0")
    async with Client(server) as client:
        assert await tools(client) == ["n0", "n1"]
        assert (await client.call_tool("n0")).text == "own"
        server.hide("n0")
        with pytest.raises(RpcError, match="unknown tool"):
            await client.call_tool("n0")


@EACH_ERA
async def test_a_provider_is_added_and_removed_while_it_is_served(era: str) -> None:
    server, shelf = Server("s", capabilities=["tools"]), Shelf()
    events: list[Event] = []
    async with Client(server, era=era) as client, trio.open_nursery() as nursery:
        nursery.start_soon(collect, client, events)
        await wait_all_tasks_blocked()
        server.add_provider(shelf)
        with pytest.raises(LocalProtocolError, match="added already"):
            server.add_provider(shelf)
        await wait_all_tasks_blocked()
        assert await tools(client) == ["n0", "n1", "n2"]
        server.remove_provider(shelf)
        with pytest.raises(LocalProtocolError, match="was not added"):
            server.remove_provider(shelf)
        await wait_all_tasks_blocked()
        assert await tools(client) == []
        with pytest.raises(RpcError, match="unknown tool"):
            await client.call_tool("n0")
        shelf.changed("tool")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [each.kind for each in events] == ["tools", "tools"]


async def collect(client: Client, events: list[Event]) -> None:
    async with client.listen(tools=True) as changes:
        async for each in changes:
            events.append(each)  # noqa: PERF401 - the list is read meanwhile


async def test_a_mount_shows_providers_that_come_later_and_hides_them_with_itself() -> None:
    inner, host = Server("inner"), Server("host", capabilities=["tools"])
    host.mount("a", inner)
    shelf = Shelf(1)
    async with Client(host) as client:
        inner.add_provider(shelf)
        assert await tools(client) == ["a_n0"]
        assert (await client.call_tool("a_n0")).text == "n0"
        inner.remove_provider(shelf)
        assert await tools(client) == []
        inner.add_provider(shelf)
        host.unmount("a")
        assert await tools(client) == []


@EACH_ERA
@pytest.mark.parametrize("has_middleware", [False, True])
async def test_a_provider_is_shown_through_three_mounts(has_middleware: bool, era: str) -> None:
    server = serving(Shelf(2, tags=["a"]), page_size=1)
    for number in range(3):
        host = Server(f"host {number}", page_size=1)
        host.mount(f"m{number}", server)
        if has_middleware:

            @host.middleware
            async def passing(ctx: Context, call_next: Any) -> Any:
                return await call_next()

        server = host
    async with Client(server, era=era) as client:
        assert await tools(client) == ["m2_m1_m0_n0", "m2_m1_m0_n1"]
        assert (await client.call_tool("m2_m1_m0_n1")).text == "n1"
        assert (await client.read_resource("n1://of/me")).text == "of me"
        completed = await client.complete(PromptReference("m2_m1_m0_n1"), "shade", "g")
        assert completed.values == ["green"]
        server.hide(tags=["a"])
        assert await listed(client) == []
        with pytest.raises(RpcError, match="unknown tool"):
            await client.call_tool("m2_m1_m0_n1")


async def test_a_mounted_provider_runs_in_its_server_and_through_its_middleware() -> None:
    inner, host = Server("inner"), Server("host")
    ran: list[str] = []

    class Asking(Shelf):
        def make(self, kind: ComponentKind, name: str) -> Provided:
            def who(ctx: Context) -> str:
                return str(ctx.server.name)

            return Provided.tool(who, name=name)

        async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
            ran.append(caller.server.name)
            return await super().get(kind, name, caller)

    inner.add_provider(Asking())
    host.mount("a", inner)
    async with Client(host) as client:
        assert (await client.call_tool("a_n0")).text == "inner"

        @inner.middleware
        async def noted(ctx: Context, call_next: Any) -> Any:
            ran.append(ctx.params["name"])
            return await call_next()

        assert (await client.call_tool("a_n0")).text == "inner"
    assert ran == ["inner", "inner", "n0", "inner"]


# -- cursors ---


@EACH_ERA
async def test_a_cursor_is_good_for_its_list_and_its_caller_alone(era: str) -> None:
    server = serving(Shelf(9), page_size=2)
    async with client_of(server, "ann", era) as ann:
        cursor = (await ann.request("tools/list", {}))["nextCursor"]
        assert len(cursor) < 200
        raw = base64.urlsafe_b64decode(cursor[1:] + "==")
        assert b"ann" not in raw
        forged = "." + base64.urlsafe_b64encode(raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:]).decode().rstrip(
            "="
        )
        assert forged != cursor
        for wrong in (forged, cursor + "A", cursor[:-4], ".", "", "x", 7):
            with pytest.raises(RpcError, match="cursor") as caught:
                await ann.request("tools/list", {"cursor": wrong})
            assert caught.value.code == -32602
        with pytest.raises(RpcError, match="invalid cursor"):
            await ann.request("prompts/list", {"cursor": cursor})
    async with client_of(server, "bob", era) as bob:
        with pytest.raises(RpcError, match="invalid cursor"):
            await bob.request("tools/list", {"cursor": cursor})


async def test_a_cursor_finds_its_provider_among_others() -> None:
    first, second, third = Shelf(1, "a"), Whole(3, "b"), Shelf(1, "c")

    class Another(Shelf):
        pass

    server = serving(first, Another(3, "b"), third, page_size=2)
    async with Client(server, era="2026-07-28") as client:
        cursor = (await client.request("tools/list", {}))["nextCursor"]
        server.remove_provider(first)
        rest = await client.request("tools/list", {"cursor": cursor})
        assert [each["name"] for each in rest["tools"]] == ["b1", "b2"]
        server = serving(first, second, third, page_size=2)
    async with Client(server, era="2026-07-28") as client:
        cursor = (await client.request("tools/list", {}))["nextCursor"]
        server.remove_provider(second)
        rest = await client.request("tools/list", {"cursor": cursor})
        assert [each["name"] for each in rest["tools"]] == ["c0"]


# -- who sees what ---


def is_ann(caller: Caller, component: Component) -> bool:
    return caller.principal is not None and caller.principal.subject == "ann"


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"visible": is_ann}, None),
        ({"auth": is_ann}, NotAllowed),
        ({"scopes": ["other"]}, InsufficientScope),
    ],
)
async def test_rules_count_for_what_a_provider_has(
    options: dict[str, Any], refusal: Any, is_mounted: bool, era: str
) -> None:
    server = hosted(serving(Shelf(2, **options), Shelf(1, "open")), is_mounted)
    async with client_of(server, "bob", era) as bob:
        assert await listed(bob) == ["open0", "prompt open0", "open0://x", "open0://of/{name}"]
        for use, unknown in (
            (lambda: bob.call_tool("n0"), "unknown tool: n0"),
            (lambda: bob.get_prompt("n0", {"shade": "red"}), "unknown prompt: n0"),
            (lambda: bob.complete(PromptReference("n0"), "shade", ""), "unknown prompt: n0"),
            (lambda: bob.read_resource("n0://x"), "n0://x"),
            (lambda: bob.read_resource("n0://of/me"), "n0://of/me"),
        ):
            with pytest.raises(RpcError if refusal is None else refusal) as caught:
                await use()  # type: ignore[no-untyped-call]
            assert refusal is not None or unknown in str(caught.value)
    if "scopes" not in options:
        async with client_of(server, "ann", era) as ann:
            assert len(await listed(ann)) == 12
            assert (await ann.call_tool("n0")).text == "n0"


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_switches_count_and_their_changes_are_told(is_mounted: bool, era: str) -> None:
    inner = serving(Shelf(2, tags=["a"]), Shelf(1, "m"))
    events: list[Event] = []
    async with (
        Client(hosted(inner, is_mounted), era=era) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(collect, client, events)
        assert await tools(client) == ["n0", "n1", "m0"]
        await wait_all_tasks_blocked()
        inner.hide(tags=["a"])
        await wait_all_tasks_blocked()
        assert [each.kind for each in events] == ["tools"]
        assert await tools(client) == ["m0"]
        with pytest.raises(RpcError, match="unknown tool: n0"):
            await client.call_tool("n0")
        inner.show("n1")
        assert await tools(client) == ["n1", "m0"]
        nursery.cancel_scope.cancel()


async def test_a_page_of_what_a_caller_does_not_see_has_a_cursor() -> None:
    shelf = Shelf(1_000, visible=lambda caller, component: component.name == "n999")
    async with Client(serving(shelf, page_size=5), era="2026-07-28") as client:
        page = await client.request("tools/list", {})
        assert page["tools"] == []
        assert page["nextCursor"]
        assert len(shelf.asked) == 10
        assert await tools(client) == ["n999"]


async def test_a_version_is_asked_for() -> None:
    async with Client(serving(Shelf(version="2")), era="2026-07-28") as client:
        metas = [each.meta async for each in client.tools()]
        assert metas[0] == {"mcp-actors/version": "2"}
        wanted = {"name": "n0", "_meta": {"mcp-actors/version": "1"}}
        with pytest.raises(RpcError, match="unknown tool"):
            await client.request("tools/call", wanted)
        wanted["_meta"] = {"mcp-actors/version": "2"}
        assert (await client.request("tools/call", wanted))["content"][0]["text"] == "n0"


class Personal(Shelf):
    """Has other components for each caller, as many as the table says."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = {"ann": 1, "bob": 2}

    async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
        number = int(name.removeprefix("n"))
        return self.make(kind, name) if number < self._number(caller) else None

    def _number(self, caller: Caller) -> int:
        assert caller.principal is not None
        return self.numbers[caller.principal.subject]

    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        return ProvidedPage([self.make(kind, f"n{each}") for each in range(self._number(caller))])

    def fingerprint(self, kind: ComponentKind, caller: Caller) -> Hashable | None:
        return self._number(caller)


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_those_are_told_whose_list_has_changed(is_mounted: bool, era: str) -> None:
    provider, told = Personal(), []
    server = hosted(serving(provider), is_mounted)
    async with (
        client_of(server, "ann", era) as ann,
        client_of(server, "bob", era) as bob,
        trio.open_nursery() as nursery,
    ):
        events: dict[str, list[Event]] = {"ann": [], "bob": []}
        for name, client in (("ann", ann), ("bob", bob)):
            nursery.start_soon(collect, client, events[name])
            assert len(await tools(client)) == provider.numbers[name]
            assert (await client.call_tool("n0")).text == "n0"
        with pytest.raises(RpcError, match="unknown tool"):
            await ann.call_tool("n1")
        assert (await bob.call_tool("n1")).text == "n1"
        await wait_all_tasks_blocked()
        provider.numbers["bob"] = 3
        provider.changed("tool")
        await wait_all_tasks_blocked()
        told += [(name, len(each)) for name, each in events.items()]
        nursery.cancel_scope.cancel()
    assert told == [("ann", 0), ("bob", 1)]


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_what_a_provider_serves_is_subscribed_to(is_mounted: bool, era: str) -> None:
    inner = serving(Shelf(1, visible=is_ann))
    server = hosted(inner, is_mounted)
    heard: dict[str, list[str | None]] = {"ann": [], "bob": []}

    async def follow(client: Client, name: str) -> None:
        try:
            async with client.listen(uris=("n0://x",)) as subscription:
                async for event in subscription:
                    heard[name].append(event.uri)
        except ResourceNotFound:
            heard[name].append("refused")

    async with (
        client_of(server, "ann", era) as ann,
        client_of(server, "bob", era) as bob,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(follow, ann, "ann")
        nursery.start_soon(follow, bob, "bob")
        await wait_all_tasks_blocked()
        inner.resource_updated("n0://x")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard["ann"] == ["n0://x"]
    assert heard["bob"] in ([], ["refused"])


# -- what fails ---


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_provider_costs_its_own_part_alone(
    how: str, is_mounted: bool, era: str, autojump_clock: trio.testing.MockClock
) -> None:
    bad, good = Shelf(2, "bad"), Shelf(2, "good")
    bad.fails = failing if how == "fails" else trio.sleep_forever
    messages: list[str] = []
    events: list[Event] = []

    def note(level: str, data: Any, logger: str | None) -> None:
        messages.append(str(data))

    with capture_logs() as lines:
        async with (
            Client(
                hosted(serving(bad, good), is_mounted), era=era, on_log=note, log_level="warning"
            ) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(collect, client, events)
            await wait_all_tasks_blocked()
            began = trio.current_time()
            assert await tools(client) == ["good0", "good1"]
            assert trio.current_time() - began == (0 if how == "fails" else 5)
            # It is known by now where this one is, and that lists need not wait.
            began = trio.current_time()
            assert (await client.call_tool("good1")).text == "good1"
            assert how == "fails" or await tools(client) == ["good0", "good1"]
            assert trio.current_time() == began
            with pytest.raises(UpstreamUnavailable, match="Shelf"):
                await client.call_tool("bad1")
            bad.fails = None
            assert (await client.call_tool("bad1")).text == "bad1"
            await wait_all_tasks_blocked()
            assert [each.kind for each in events] == ["tools"]
            assert await tools(client) == ["bad0", "bad1", "good0", "good1"]
            nursery.cancel_scope.cancel()
    assert "the list of tools is not complete" in messages[0]
    assert all(
        "of a provider" in each["event"] for each in lines if each["log_level"] in ("error", "warning")
    )


@pytest.mark.parametrize(
    "page",
    [
        None,
        [],
        ProvidedPage(None),  # type: ignore[arg-type]
        ProvidedPage([Provided.tool(colour)] * 5_001),
        ProvidedPage([], "x" * 1_025),
        ProvidedPage([], 7),  # type: ignore[arg-type]
    ],
)
async def test_a_malformed_page_is_left_out(page: Any) -> None:
    class Malformed(Shelf):
        async def list(
            self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int
        ) -> ProvidedPage:
            return page  # type: ignore[no-any-return]

    with capture_logs() as lines:
        async with Client(serving(Malformed(), Shelf(1))) as client:
            assert await tools(client) == ["n0"]
    assert [each["event"] for each in lines if each["log_level"] == "error"] == [
        "a provider returned what cannot be used"
    ]


async def test_a_page_that_leads_to_itself_ends() -> None:
    class Circle(Shelf):
        async def list(
            self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int
        ) -> ProvidedPage:
            return ProvidedPage([self.make(kind, "n0")], "again")

    with capture_logs() as lines:
        async with Client(serving(Circle())) as client:
            assert await tools(client) == ["n0"]
    assert len([each for each in lines if each["log_level"] == "error"]) == 1


async def test_what_cannot_be_shown_is_left_out() -> None:
    def unusable(*names: str) -> None: ...

    mirrored = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}}

    class Mixed(Whole):
        def make(self, kind: ComponentKind, name: str) -> Any:
            made: dict[str, Any] = {
                "n0": Provided.tool(unusable, name=name),
                "n1": Provided.prompt(colour, name=name),
                "n2": "a text",
                "n3": Provided.tool(lambda arguments: None, name=name, input_schema=mirrored),
            }
            return made.get(name) or Provided.tool(lambda: name, name="n4" if name == "n5" else name)

    with capture_logs() as lines:
        async with Client(serving(Mixed(6))) as client:
            assert await tools(client) == ["n4"]
            for name in ("n0", "n1", "n2", "n3", "n5"):
                with pytest.raises(UpstreamUnavailable):
                    await client.call_tool(name)
    assert {each["log_level"] for each in lines if "provider" in each} == {"error"}


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_a_call_that_is_cancelled_cancels_its_provider(is_mounted: bool, era: str) -> None:
    shelf, ended = Shelf(), []

    async def hanging() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    shelf.fails = hanging
    with capture_logs() as lines:
        async with Client(hosted(serving(shelf), is_mounted), era=era) as client:
            for use in (lambda: client.call_tool("n0"), lambda: tools(client)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use)
                    await wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            assert ended == [True, True]
            shelf.fails = None
            # It was not too slow: lists wait for it as before.
            assert await tools(client) == ["n0", "n1", "n2"]
    assert [each["event"] for each in lines if each["log_level"] == "error"] == []


@EACH_ERA
async def test_a_provider_without_an_end_is_read_as_far_as_clients_ask(era: str) -> None:
    class Endless(Shelf):
        async def list(
            self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int
        ) -> ProvidedPage:
            self.asked.append(("list", kind, cursor, limit))
            return ProvidedPage([], str(int(cursor or 0) + 1))

    endless = Endless()
    async with Client(serving(endless), era=era) as client:
        page = await client.request("tools/list", {})
        assert page["tools"] == []
        assert len(endless.asked) == 10
        await client.request("tools/list", {"cursor": page["nextCursor"]})
        assert endless.asked[10][2] == "10"


HOSTILE = ["a\r\nb", "\x1b[31m", "\u202e", "../..", "a" * 1_025, "a" * 100_000]


@EACH_ERA
@pytest.mark.parametrize("name", HOSTILE)
async def test_names_are_what_a_provider_and_a_client_make_of_them(name: str, era: str) -> None:
    class Hostile(Shelf):
        def name(self, kind: ComponentKind, number: int) -> str:
            return name if number == 1 else super().name(kind, number)

        async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
            self.asked.append(("get", kind, name))
            return self.make(kind, "other")

    shelf, shown = Hostile(), len(name) <= 1_024
    with capture_logs() as lines:
        async with Client(serving(shelf), era=era) as client:
            assert await tools(client) == ["n0", name, "n2"] if shown else ["n0", "n2"]
            with pytest.raises(UpstreamUnavailable if shown else RpcError):
                await client.call_tool(name)
    assert [each for each in shelf.asked if each[0] == "get"] == ([("get", "tool", name)] if shown else [])
    text = str([each for each in lines if "provider" in each])
    assert len(text) < 1_000
    assert text.isprintable()


@EACH_ERA
async def test_what_has_asked_a_provider_is_freed_at_once(era: str) -> None:
    class Keeping(Shelf):
        """Makes each component once: the classes of its arguments are freed by the collector alone."""

        @lru_cache  # noqa: B019 - it has as many as the test
        def make(self, kind: ComponentKind, name: str) -> Provided:
            return super().make(kind, name)

    shelf, wrong = Keeping(2, auth=lambda caller, component: component.name != "n1"), Shelf(1, "wrong")
    wrong.fails = failing
    server = serving(shelf, wrong, page_size=1)

    async def use() -> None:
        async with Client(server, era=era) as client:
            await listed(client)
            await client.call_tool("n0")
            for name in ("n1", "none"):
                with pytest.raises(RpcError):
                    await client.call_tool(name)
            with pytest.raises(RpcError):
                await client.read_resource("none://x")

    assert await garbage(use) < ALLOWED


async def test_an_error_of_the_protocol_is_sent() -> None:
    async def refusing() -> None:
        raise RpcError(-32050, "pay first")

    shelf = Shelf()
    shelf.fails = refusing
    async with Client(serving(shelf)) as client:
        with pytest.raises(RpcError, match="pay first") as caught:
            await client.call_tool("n0")
        assert caught.value.code == -32050
        assert await tools(client) == []


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda: Server("s").add_provider(Shelf), TypeError, "is no provider"),
        (lambda: Server("s").add_provider(Shelf(), wait=0), ValueError, "wait"),
        (lambda: serving(type("Odd", (Shelf,), {"kinds": ["tools"]})()), ValueError, "no kind 'tools'"),
        (
            lambda: Gateway([Upstream(name="u", target=Server("u"))]).add_provider(Shelf()),
            TypeError,
            "as an upstream",
        ),
        (lambda: Provided.tool(colour, task="optional"), TypeError, "task="),
        (lambda: Provided.resource("a://{b}", of, list=list), TypeError, "list="),
        (lambda: Provided.resource("a", of), TypeError, "no scheme"),
        (lambda: Provided.tool(colour, wrong=1), TypeError, "no option wrong="),
    ],
)
def test_what_to_write_instead_is_said(wrong: Callable[[], Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        wrong()


# -- search, telemetry, a gateway in front ---


@EACH_ERA
async def test_what_a_provider_has_is_searched(era: str) -> None:
    shelf = Shelf(10_000_000, description="Count the sheep in the meadow before the night falls.")
    server = serving(shelf, budget=500, page_size=10)
    async with Client(server, era=era) as client:
        assert await tools(client) == ["search_tools", "call_tool"]
        found = await client.call_tool("search_tools", {"query": "count sheep", "limit": 2})
        assert len(found.structured_content["tools"]) == 2  # type: ignore[call-overload, index]
        called = await client.call_tool("call_tool", {"name": "n9000000", "arguments": {}})
        assert called.text == "n9000000"
    # Of a list that has no end a part is read.
    assert len([each for each in shelf.asked if each[0] == "list"]) == 40


async def test_telemetry_has_a_bounded_number_of_their_names() -> None:
    metrics = Metrics()
    server = serving(Shelf(5_000), telemetry=metrics)
    async with Client(server) as client:
        for number in range(1_200):
            await client.call_tool(f"n{number}")
    assert "n7" in metrics.text()
    assert "n1199" not in metrics.text()


@EACH_ERA
async def test_a_gateway_in_front_shows_what_a_provider_has(era: str) -> None:
    gateway = Gateway([Upstream(name="shelf", target=serving(Shelf(3), page_size=2), prefix="s_")])
    async with Client(gateway, era=era) as client:
        assert await tools(client) == ["s_n0", "s_n1", "s_n2"]
        assert (await client.call_tool("s_n2")).text == "n2"
        assert (await client.read_resource("n2://of/me")).text == "of me"


async def test_a_gateway_calls_what_it_does_not_list() -> None:
    shelf = Shelf(1_000_000)
    gateway = Gateway([Upstream(name="shelf", target=serving(shelf), prefix="s_")])
    async with Client(gateway) as client:
        assert (await client.call_tool("s_n999999")).text == "n999999"
    assert shelf.asked == [("get", "tool", "n999999")]


# -- modules of a folder ---

ISSUES = '''
from mcp_actors import prompt, resource, tool

@tool
def create(title: str) -> str:
    """Create an issue."""
    return f"created {title}"

@tool(name="close", tags=["writes"])
async def close_issue(number: int) -> str:
    return f"closed {number}"

@prompt
def issues(mood: str = "calm") -> str:
    return f"a {mood} issue"

@resource("issues://{number}")
def issue(number: int) -> str:
    return f"issue {number}"

@resource("issues://open")
def opened() -> str:
    return "1, 2"

def unmarked() -> None: ...
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "issues.py").write_text(ISSUES)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "pulls.py").write_text(
        "from mcp_actors import tool\n@tool\ndef merge() -> str:\n  return 'merged'\n"
    )
    (tmp_path / "_private.py").write_text("raise AssertionError")
    return tmp_path


@EACH_ERA
async def test_the_files_of_a_folder_are_shown(folder: Path, era: str) -> None:
    server = Server("s", page_size=2)
    server.add_modules(folder)
    async with Client(server, era=era) as client:
        assert await listed(client) == [
            *("close", "hub_pulls_merge", "issues_create"),
            *("prompt issues", "issues://open", "issues://{number}"),
        ]
        assert (await client.call_tool("issues_create", {"title": "a"})).text == "created a"
        assert (await client.call_tool("close", {"number": 7})).text == "closed 7"
        assert (await client.call_tool("hub_pulls_merge")).text == "merged"
        assert (await client.read_resource("issues://7")).text == "issue 7"
        assert (await client.read_resource("issues://open")).text == "1, 2"
        assert (await client.get_prompt("issues")).messages[0].content.text == "a calm issue"  # type: ignore[union-attr]


async def test_a_file_that_has_changed_is_loaded_again(
    folder: Path, mock_clock: trio.testing.MockClock
) -> None:
    server = Server("s")
    server.add_modules(str(folder), reload=True)
    merged = folder / "hub" / "pulls.py"
    async with Client(server) as client:
        assert "hub_pulls_merge" in await tools(client)
        merged.write_text(merged.read_text().replace("merged", "merged anew").replace("merge(", "join("))
        mock_clock.jump(1)
        assert "hub_pulls_join" in await tools(client)
        assert (await client.call_tool("hub_pulls_join")).text == "merged anew"
        merged.write_text("this is no Python")
        mock_clock.jump(1)
        with capture_logs() as lines:
            assert "hub_pulls_join" in await tools(client)
        assert [each["event"] for each in lines] == ["a module is not loaded again"]
        merged.unlink()
        mock_clock.jump(1)
        assert "hub_pulls_join" not in await tools(client)


def test_a_provider_that_was_too_slow_in_one_run_is_asked_in_the_next() -> None:
    class Slow(Shelf):
        seconds = 10.0

        async def list(self, *arguments: Any) -> ProvidedPage:
            await trio.sleep(self.seconds)
            return await super().list(*arguments)

    shelf, server = Slow(), Server("s")
    server.add_provider(shelf, wait=1)

    async def number(after: float) -> int:
        clock.jump(after)
        async with Client(server) as client:
            return len(await tools(client))

    clock = trio.testing.MockClock(autojump_threshold=0.01)
    assert trio.run(number, 1000.0, clock=clock) == 0
    shelf.seconds = 0.0
    clock = trio.testing.MockClock()
    assert trio.run(number, 0.0, clock=clock) == 3


def test_files_are_looked_at_by_the_clock_of_each_run(folder: Path) -> None:
    server = Server("s")
    server.add_modules(str(folder), reload=True)

    async def has_merge(after: float) -> bool:
        clock.jump(after)
        async with Client(server) as client:
            return "hub_pulls_merge" in await tools(client)

    clock = trio.testing.MockClock()
    assert trio.run(has_merge, 1000.0, clock=clock)
    (folder / "hub" / "pulls.py").unlink()
    clock = trio.testing.MockClock()
    assert not trio.run(has_merge, 0.0, clock=clock)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("def f(", SyntaxError, "never closed"),
        ("from mcp_actors import tool\n@tool(name='close')\ndef f(): ...", LocalProtocolError, "'close'"),
        ("from mcp_actors import tool\n@tool\ndef f(*names): ...", TypeError, "names"),
        ("from mcp_actors import tool\ntool('f')", TypeError, "is not a function"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    folder: Path, text: str, kind: type[Exception], said: str
) -> None:
    (folder / "more.py").write_text(text)
    server = Server("s")
    with pytest.raises(kind, match=said):
        server.add_modules(folder)
    assert server.capabilities.tools is None or not server._features.sources


def test_a_folder_that_is_not_there_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="is no folder"):
        Server("s").add_modules("nowhere")
