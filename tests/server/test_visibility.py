"""Who sees what: rules, switches, tags and versions, in lists, calls, completions, subscriptions and notifications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from mcp_actors import Client, Context, Server
from mcp_actors.client import Event
from mcp_actors.errors import InsufficientScope, LocalProtocolError, NotAllowed, ResourceNotFound, RpcError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.server import Caller, Component
from mcp_actors.supervision.principal import Principal
from mcp_actors.testing import connected_pair
from mcp_actors.types import PromptReference, Resource, ResourceTemplateReference
from mcp_transports.memory import MemoryTransport
from tests.server.test_access import Authenticating
from tests.transports.test_every_binding import ALLOWED, garbage

ERAS = ["2025-11-25", "2026-07-28"]
EACH_ERA = pytest.mark.parametrize("era", ERAS)


def is_ann(caller: Caller, component: Component) -> bool:
    return caller.principal is not None and caller.principal.subject == "ann"


def fill(server: Server, **options: Any) -> Server:
    """One open component of each kind and a secret one, which has the options."""

    def text() -> str:
        return "text"

    def of(name: str) -> str:
        return f"of {name}"

    def ask(colour: Literal["red", "green"]) -> str:
        return colour

    for word, more in (("open", {}), ("secret", options)):
        server.add_tool(text, name=word, **more)
        server.add_prompt(ask, name=word, **more)
        server.add_resource(f"{word}://x", text, **more)
        server.add_resource(f"{word}s://{{name}}", of, name=word, **more)
    return server


async def listed(client: Client) -> list[str]:
    """The secret components that a client is listed."""
    found = [f"tool {each.name}" async for each in client.tools()]
    found += [f"prompt {each.name}" async for each in client.prompts()]
    found += [f"resource {each.uri}" async for each in client.resources()]
    found += [f"template {each.uri_template}" async for each in client.resource_templates()]
    assert sum("open" in each for each in found) == 4
    return [each.partition(" ")[0] for each in found if "secret" in each]


async def used(client: Client, prefix: str = "") -> dict[str, type[Exception] | None]:
    """What became of each use of the secret components."""
    secret = f"{prefix}secret"
    uses: dict[str, Callable[[], Any]] = {
        "tool": lambda: client.call_tool(secret),
        "prompt": lambda: client.get_prompt(secret, {"colour": "red"}),
        "completion": lambda: client.complete(PromptReference(secret), "colour", "r"),
        "resource": lambda: client.read_resource("secret://x"),
        "template": lambda: client.read_resource("secrets://x"),
        "of template": lambda: client.complete(ResourceTemplateReference("secrets://{name}"), "name", ""),
    }
    return {name: await became(use, use_of_unknown(client, name), secret) for name, use in uses.items()}


async def became(
    use: Callable[[], Any], use_of_unknown: Callable[[], Any], name: str
) -> type[Exception] | None:
    """The error of a use, which says no more than that of a name that nothing has."""
    failures: list[RpcError] = []
    for each in (use, use_of_unknown):
        try:
            await each()
        except RpcError as error:
            failures.append(error)
    *used, unknown = failures
    assert [each.message for each in used if type(each) is type(unknown)] in (
        [],
        [unknown.message.replace("nil", name)],
    )
    return type(used[0]) if used else None


def use_of_unknown(client: Client, name: str) -> Callable[[], Any]:
    return {
        "tool": lambda: client.call_tool("nil"),
        "prompt": lambda: client.get_prompt("nil", {"colour": "red"}),
        "completion": lambda: client.complete(PromptReference("nil"), "colour", "r"),
        "resource": lambda: client.read_resource("nil://x"),
        "template": lambda: client.read_resource("nils://x"),
        "of template": lambda: client.complete(ResourceTemplateReference("nils://{name}"), "name", ""),
    }[name]


USES = ("tool", "prompt", "completion", "resource", "template", "of template")
ALL = ["tool", "prompt", "resource", "template"]
UNKNOWN = {each: ResourceNotFound if each in ("resource", "template") else RpcError for each in USES}


@asynccontextmanager
async def client_of(server: Server, subject: str | None, era: str, **options: Any) -> AsyncIterator[Client]:
    transport = Authenticating(None if subject is None else Principal(subject, scopes=["some"]))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        async with Client(transport, era=era, **options) as client:
            yield client
        nursery.cancel_scope.cancel()


def hosted(server: Server, is_mounted: bool, **options: Any) -> Server:
    if not is_mounted:
        return server
    host = Server("host", **options)
    host.mount("inner", server, prefix="")
    return host


HIDING: dict[str, Callable[[], Server]] = {
    "visible": lambda: fill(Server("s"), visible=is_ann),
    "visible of the server": lambda: fill(
        Server("s", visible=lambda caller, component: "open" in component.name or is_ann(caller, component))
    ),
    "auth": lambda: fill(Server("s"), auth=is_ann),
}


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize("how", HIDING)
async def test_a_rule_hides_from_those_whom_it_denies(how: str, is_mounted: bool, era: str) -> None:
    server = hosted(HIDING[how](), is_mounted)
    async with client_of(server, "ann", era) as ann:
        assert await listed(ann) == ALL
        became = await used(ann)
        # The variable of the template has no values to complete with, and is known.
        assert {**became, "of template": None} == dict.fromkeys(USES)
    async with client_of(server, "bob", era) as bob:
        assert await listed(bob) == []
        assert await used(bob) == (dict.fromkeys(USES, NotAllowed) if how == "auth" else UNKNOWN)


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize(
    "selected",
    [
        lambda s: s.hide("secret", "secret://x", "secrets://{name}"),
        lambda s: s.hide(tags=["hidden"]),
        lambda s: [s.hide(kind=each, tags=["hidden", "other"]) for each in ALL],
    ],
)
async def test_a_switch_hides_from_all_and_shows_again(
    selected: Callable[[Any], Any], is_mounted: bool, era: str
) -> None:
    server = fill(Server("s"), tags=["hidden"])
    selected(server)
    async with Client(hosted(server, is_mounted), era=era) as client:
        assert await listed(client) == []
        assert await used(client) == UNKNOWN
        server.show(tags=["hidden"])
        server.show("secret")
        for uri in ("secret://x", "secrets://{name}"):
            server.show(uri)
        for kind in ALL:
            server.show(kind=kind, tags=["hidden", "other"])  # type: ignore[arg-type]
        assert await listed(client) == ALL
        server.hide("secret", kind="tool")
        assert await listed(client) == ALL[1:]


async def test_one_resource_of_a_template_is_hidden_by_its_uri() -> None:
    server = Server("s")
    server.add_resource(
        "notes://{name}",
        lambda name: name,
        name="notes",
        list=lambda: [Resource(f"notes://{n}", n) for n in "ab"],
    )
    server.hide("notes://a")
    async with Client(server) as client:
        assert [each.uri async for each in client.resources()] == ["notes://b"]
        assert [each.uri_template async for each in client.resource_templates()] == ["notes://{name}"]
        assert (await client.read_resource("notes://b")).text == "b"
        with pytest.raises(ResourceNotFound):
            await client.read_resource("notes://a")


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_a_rule_is_asked_about_each_resource_of_a_template(is_mounted: bool) -> None:
    asked: list[Component] = []

    def own(caller: Caller, component: Component) -> bool:
        asked.append(component)
        assert caller.principal is not None
        return component.kind == "template" or component.name.startswith(
            f"notes://{caller.principal.subject}/"
        )

    server = Server("s")
    server.add_resource(
        "notes://{person}/{name}",
        lambda person, name: name,
        name="notes",
        visible=own,
        tags=["t"],
        meta={"m": 1},
    )
    async with client_of(hosted(server, is_mounted), "ann", "2026-07-28") as ann:
        assert (await ann.read_resource("notes://ann/a")).text == "a"
        with pytest.raises(ResourceNotFound):
            await ann.read_resource("notes://bob/a")
    assert Component("resource", "notes://bob/a", frozenset({"t"}), None, {"m": 1}) in asked
    assert {each.name for each in asked if each.kind == "template"} == {"notes://{person}/{name}"}


async def test_the_first_that_serves_a_uri_decides() -> None:
    server = Server("s")
    server.add_resource("notes://a", lambda: "hidden", name="a", visible=lambda caller, component: False)
    server.add_resource("notes://{name}", lambda name: "by the template", name="notes")
    async with Client(server) as client:
        assert (await client.read_resource("notes://b")).text == "by the template"
        with pytest.raises(ResourceNotFound):
            await client.read_resource("notes://a")


@EACH_ERA
async def test_a_rule_knows_the_caller_and_the_component(era: str) -> None:
    seen: list[tuple[Any, ...]] = []

    def rule(caller: Caller, component: Component) -> bool:
        session = None if caller.session is None else caller.session.name
        seen.append((component, caller.principal, caller.server.name, caller.state, session, caller.request))
        return True

    @asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[str]:
        yield f"the state of {server.name}"

    inner, host = (
        Server("inner", lifespan=lifespan, visible=rule),
        Server("host", lifespan=lifespan, visible=rule),
    )
    inner.add_tool(lambda: None, name="tool", tags=["a"], version="2", meta={"m": 1})
    host.mount("in", inner)
    async with client_of(host, "ann", era) as client:
        await client.call_tool("in_tool")
    tool = Component("tool", "in_tool", frozenset({"a"}), "2", {"m": 1})
    own = Component("tool", "tool", frozenset({"a"}), "2", {"m": 1})
    assert [(each[0] == tool, each[2], each[3]) for each in seen[:1]] == [(True, "host", "the state of host")]
    assert [(each[0] == own, each[2], each[3]) for each in seen[1:2]] == [
        (True, "inner", "the state of inner")
    ]
    assert {each[1] for each in seen} == {Principal("ann")}
    assert all(each[4] is not None and each[5] is None for each in seen)


async def test_what_auth_raises_answers_the_call_and_what_else_fails_refuses() -> None:
    def broken(caller: Caller, component: Component) -> bool:
        raise KeyError("no such team")

    def told(caller: Caller, component: Component) -> bool:
        raise RpcError(-32050, "ask your team")

    server = Server("s")
    server.add_tool(lambda: None, name="a", visible=broken)
    server.add_tool(lambda: None, name="b", auth=broken)
    server.add_tool(lambda: None, name="c", auth=told)
    server.add_tool(lambda: None, name="d", visible=told)
    with capture_logs() as lines:
        async with Client(server) as client:
            assert [each.name async for each in client.tools()] == []
            for name, kind, code in (
                ("a", RpcError, -32602),
                ("b", NotAllowed, 403),
                ("c", RpcError, -32050),
                ("d", RpcError, -32602),
            ):
                with pytest.raises(kind) as caught:
                    await client.call_tool(name)
                assert caught.value.code == code
    errors = {each["event"] for each in lines if each["log_level"] == "error"}
    assert errors == {"visible= failed, so a tool is hidden", "auth= failed, so a tool is hidden"}


@pytest.mark.parametrize("how", ["visible", "auth"])
async def test_a_rule_that_would_have_to_be_awaited_hides(how: Literal["visible", "auth"]) -> None:
    async def ask(caller: Caller) -> bool:
        return False

    rule: Any = lambda caller, component: ask(caller)  # noqa: E731
    server = Server("s")
    server.add_tool(lambda: None, name="secret", **{how: rule})
    with capture_logs() as lines:
        async with Client(server) as client:
            assert [each.name async for each in client.tools()] == []
            with pytest.raises(RpcError):
                await client.call_tool("secret")
    assert f"{how}= failed, so a tool is hidden" in {each["event"] for each in lines}


async def test_a_gateway_hides_what_its_rule_would_have_to_await() -> None:
    async def ask(name: str) -> bool:
        return True

    upstream = Server("up")
    upstream.add_tool(lambda: None, name="secret")
    rule: Any = lambda principal, upstream, kind, name: ask(name)  # noqa: E731
    with capture_logs() as lines:
        async with Client(Gateway([Upstream(name="up", target=upstream)], visible=rule)) as client:
            assert [each.name async for each in client.tools()] == []
    assert "visible= of the gateway failed, so something is hidden" in {each["event"] for each in lines}


async def test_what_is_hidden_runs_nothing_and_its_scopes_are_not_told() -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="a", visible=lambda caller, component: False, scopes=["x"])
    server.add_tool(lambda: None, name="b", visible=lambda caller, component: True, scopes=["x"])
    ran: list[str] = []

    @server.middleware
    async def noted(ctx: Context, call_next: Any) -> Any:
        ran.append(ctx.method)
        return await call_next()

    async with client_of(server, "ann", "2026-07-28") as ann:
        ran.clear()
        with pytest.raises(RpcError, match="unknown tool: a ") as caught:
            await ann.call_tool("a")
        assert not isinstance(caught.value, InsufficientScope)
        with pytest.raises(InsufficientScope):
            await ann.call_tool("b")
        with pytest.raises(RpcError, match=r"^unknown tool: aa \("):
            await ann.call_tool("aa")
    assert ran == ["tools/call"]


async def test_lists_all_shows_what_auth_refuses_and_not_what_is_hidden() -> None:
    server = Server("s", lists_all=True)
    for word in ("auth", "visible"):
        server.add_tool(lambda: None, name=word, **{word: lambda caller, component: False})  # type: ignore[arg-type]
    async with Client(server) as client:
        assert [each.name async for each in client.tools()] == ["auth"]
        with pytest.raises(NotAllowed):
            await client.call_tool("auth")


@pytest.mark.parametrize("how", [*HIDING, "session", "all"])
async def test_a_list_that_differs_by_caller_is_not_kept_for_others(how: str) -> None:
    server = (HIDING.get(how) or (lambda: fill(Server("s"))))()
    public = Server("public", cache_scope="public")
    public.mount("s", server, prefix="")

    @public.tool
    async def switch(ctx: Context) -> None:
        assert ctx.session is not None
        ctx.session.hide("secret")

    async with connected_pair(public, era="modern") as client:
        if how == "session":
            await client.call_tool("switch")
        elif how == "all":
            server.hide("secret")
        pages: list[Any] = [await client.list_tools(), await client.list_prompts()]
        pages += [await client.list_resources(), await client.list_resource_templates()]
        expected = "public" if how == "all" else "private"
        assert [each.cache_scope for each in pages] == [expected] * 4


# -- tags and versions ------------------------------------------------------------------------------------------------


@EACH_ERA
async def test_tags_and_versions_are_shown_in_meta(era: str) -> None:
    server = fill(Server("s"), tags=["b", "a"], version="2.0", meta={"mine": 1})
    expected = {"mine": 1, "mcp-actors/tags": ["a", "b"], "mcp-actors/version": "2.0"}
    async with Client(server, era=era) as client:
        found: list[Any] = [each async for each in client.tools()]
        found += [each async for each in client.prompts()]
        found += [each async for each in client.resources()]
        found += [each async for each in client.resource_templates()]
    assert [each.meta for each in found] == [None, expected] * 4


def make_versions(**options: Any) -> Server:
    server = Server("s")
    server.add_tool(lambda: None, name="before")
    for version in ("2.0", "10.0", "2.0rc1"):
        server.add_tool(lambda v=version: v, name="tool", version=version, **options)
        server.add_prompt(lambda v=version: v, name="prompt", version=version, **options)
        server.add_resource("a://x", lambda v=version: v, name="x", version=version, **options)
        server.add_resource("b://{n}", lambda n, v=version: v, name="b", version=version, **options)
    server.add_tool(lambda: None, name="after")
    return server


async def answers(client: Client, version: str | None, prefix: str = "") -> list[str]:
    meta = {} if version is None else {"mcp-actors/version": version}
    prompt = await client.request("prompts/get", {"name": f"{prefix}prompt", "_meta": meta})
    found = [(await client.call_tool(f"{prefix}tool", meta=meta)).text]
    found.append(prompt["messages"][0]["content"]["text"])
    for uri in ("a://x", "b://x"):
        read = await client.request("resources/read", {"uri": uri, "_meta": meta})
        found.append(read["contents"][0]["text"])
    return found


@EACH_ERA
@pytest.mark.parametrize("layered", [False, True])
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_the_newest_version_is_listed_and_another_one_can_be_asked_for(
    is_mounted: bool, layered: bool, era: str
) -> None:
    server = make_versions()
    host = hosted(server, is_mounted)
    if layered:

        @server.middleware
        async def nothing(ctx: Context, call_next: Any) -> Any:
            return await call_next()

    async with Client(host, era=era) as client:
        tools = [each async for each in client.tools()]
        assert [each.name for each in tools] == ["before", "tool", "after"]
        assert tools[1].meta == {
            "mcp-actors/version": "10.0",
            "mcp-actors/versions": ["10.0", "2.0", "2.0rc1"],
        }
        assert await answers(client, None) == ["10.0"] * 4
        for version in ("10.0", "2.0", "2.0rc1"):
            assert await answers(client, version) == [version] * 4
        with pytest.raises(RpcError, match="unknown tool: tool"):
            await client.call_tool("tool", meta={"mcp-actors/version": "3"})
        assert (await client.call_tool("before", meta={"mcp-actors/version": "3"})).text == ""
        server.remove_tool("tool")
        assert [each.name async for each in client.tools()] == ["before", "after"]


@pytest.mark.parametrize("layered", [False, True])
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_the_newest_version_that_a_caller_may_see_counts(is_mounted: bool, layered: bool) -> None:
    def old_for_others(caller: Caller, component: Component) -> bool:
        return component.version in (None, "2.0") or is_ann(caller, component)

    server = make_versions(visible=old_for_others)
    if layered:

        @server.middleware
        async def nothing(ctx: Context, call_next: Any) -> Any:
            return await call_next()

    async with client_of(hosted(server, is_mounted), "bob", "2026-07-28") as bob:
        tools = [each async for each in bob.tools()]
        assert [each.name for each in tools] == ["before", "tool", "after"]
        assert tools[1].meta == {"mcp-actors/version": "2.0"}
        assert await answers(bob, None) == ["2.0"] * 4
        with pytest.raises(RpcError, match="unknown tool: tool"):
            await bob.call_tool("tool", meta={"mcp-actors/version": "10.0"})


async def test_a_host_decides_which_version_runs_behind_middleware() -> None:
    server = make_versions()

    @server.middleware
    async def nothing(ctx: Context, call_next: Any) -> Any:
        return await call_next()

    host = Server("host", visible=lambda caller, component: component.version in (None, "2.0"))
    host.mount("in", server)
    async with Client(host) as client:
        assert await answers(client, None, "in_") == ["2.0"] * 4


async def test_scopes_of_one_version_leave_the_others() -> None:
    server = Server("s")
    server.add_tool(lambda: "new", name="tool", version="2", scopes=["other"])
    server.add_tool(lambda: "old", name="tool", version="1", scopes=["some"])
    async with client_of(server, "ann", "2026-07-28") as ann:
        assert [(each.meta or {})["mcp-actors/version"] async for each in ann.tools()] == ["1"]
        assert (await ann.call_tool("tool")).text == "old"
        with pytest.raises(InsufficientScope):
            await ann.call_tool("tool", meta={"mcp-actors/version": "2"})


async def test_pages_go_on_behind_a_name_whichever_version_was_shown() -> None:
    server = Server("s", page_size=1, visible=lambda caller, component: component.version != "2")
    server.add_tool(lambda: None, name="tool", version="1")
    server.add_tool(lambda: None, name="next")
    server.add_tool(lambda: None, name="tool", version="2")
    async with Client(server) as client:
        assert [each.name async for each in client.tools()] == ["tool", "next"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"version": "1"}, "there is already a tool 'tool'; remove"),
        ({"version": "1"}, {}, "there is already a tool 'tool'; remove"),
        ({"version": "1"}, {"version": "1"}, "there is already a tool 'tool' of the version '1'"),
    ],
)
def test_two_of_one_name_are_two_versions(first: Any, second: Any, message: str) -> None:
    server, host = Server("s"), Server("host")
    server.add_tool(lambda: None, name="tool", **first)
    host.mount("in", server)
    with pytest.raises(LocalProtocolError, match=message):
        server.add_tool(lambda: None, name="tool", **second)


def test_versions_of_two_servers_are_not_versions_of_one() -> None:
    host, inner = Server("host"), Server("inner")
    inner.add_tool(lambda: None, name="tool", version="1")
    host.add_tool(lambda: None, name="in_tool", version="2")
    with pytest.raises(LocalProtocolError, match="cannot show its tool 'tool'"):
        host.mount("in", inner)
    host.remove_tool("in_tool")
    host.mount("in", inner)
    with pytest.raises(LocalProtocolError, match="there is already a tool 'in_tool'"):
        host.add_tool(lambda: None, name="in_tool", version="2")
    inner.add_tool(lambda: None, name="tool", version="2")
    host.unmount("in")
    assert len(host.tools) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": "admin"}, "write a list of tags"),
        ({"tags": [1]}, "such as"),
        ({"version": 2}, "write a string"),
        ({"visible": True}, "a function of caller and component"),
        ({"auth": "ann"}, "a function of caller and component"),
    ],
)
def test_options_are_checked_when_they_are_written(options: Any, message: str) -> None:
    server = Server("s")
    for add in (server.tool, server.prompt):
        with pytest.raises(TypeError, match=message):
            add(**options)(lambda: "never")


def test_a_rule_decides_at_once() -> None:
    async def rule(caller: Caller, component: Component) -> bool:
        return True

    with pytest.raises(TypeError, match="write a plain def"):
        Server("s", visible=rule)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write a plain def"):
        Server("s").add_tool(lambda: None, name="t", auth=rule)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="version=''"):
        Server("s").add_tool(lambda: None, name="t", version="")


@pytest.mark.parametrize(
    ("switch", "error", "message"),
    [
        (lambda s: s.hide(), TypeError, "says nothing"),
        (lambda s: s.show(tags="admin"), TypeError, "write a list of tags"),
        (lambda s: s.hide(1), TypeError, "takes names and tags"),
        (lambda s: s.hide(kind="tools"), ValueError, "write one of tool, prompt"),
        (lambda s: [s.hide(str(n)) for n in range(1001)], LocalProtocolError, "1000 switches"),
    ],
)
def test_switches_are_checked(switch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        switch(Server("s"))


def test_the_same_switch_is_kept_once() -> None:
    server = Server("s")
    for _ in range(2000):
        server.hide("a")
        server.show("a")
    assert repr(server._features.visibility) == "<Visibility rule=False switches=1>"


# -- sessions and notifications ---------------------------------------------------------------------------------------


class Crowd:
    """Clients of one server, each with the events that it was told of."""

    def __init__(self, server: Server, era: str, *uris: str) -> None:
        self.server, self.era, self.uris = server, era, uris
        self.events: dict[str, list[Event]] = {}

    @asynccontextmanager
    async def client(self, subject: str) -> AsyncIterator[Client]:
        events: list[Event] = []
        self.events[subject], note = events, events.append

        async def follow(listener: Any) -> None:
            async for event in listener:
                note(event)

        async with (
            client_of(self.server, subject, self.era) as client,
            trio.open_nursery() as nursery,
            client.listen(tools=True, prompts=True, resources=True, uris=self.uris) as listener,
        ):
            nursery.start_soon(follow, listener)
            await listed(client)
            await wait_all_tasks_blocked()
            yield client
            nursery.cancel_scope.cancel()

    async def told(self) -> dict[str, list[str]]:
        await wait_all_tasks_blocked()
        found: dict[str, list[str]] = {
            name: sorted(each.kind for each in events) for name, events in self.events.items()
        }
        for events in self.events.values():
            events.clear()
        return found


@asynccontextmanager
async def two(server: Server, era: str) -> AsyncIterator[tuple[Crowd, Client, Client]]:
    crowd = Crowd(server, era)
    async with trio.open_nursery() as nursery:
        async with crowd.client("ann") as ann, crowd.client("bob") as bob:
            yield crowd, ann, bob
        nursery.cancel_scope.cancel()


LISTS = ["prompts", "resources", "tools"]


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_only_those_are_told_whose_list_has_changed(is_mounted: bool, era: str) -> None:
    inner = fill(Server("s"), visible=is_ann, tags=["hidden"])
    server = hosted(inner, is_mounted)
    async with two(server, era) as (crowd, ann, _):
        inner.hide(tags=["hidden"])
        assert await crowd.told() == {"ann": LISTS, "bob": []}
        assert await listed(ann) == []
        inner.show("secret", kind="tool")
        assert await crowd.told() == {"ann": ["tools"], "bob": []}
        inner.add_tool(lambda: None, name="secret2", visible=is_ann)
        assert await crowd.told() == {"ann": ["tools"], "bob": []}
        inner.hide("open", kind="prompt")
        assert await crowd.told() == {"ann": ["prompts"], "bob": ["prompts"]}
        inner.hide("nothing")
        inner.remove_tool("secret2")
        assert await crowd.told() == {"ann": ["tools"], "bob": []}
        inner.add_tool(lambda: None, name="more")
        assert await crowd.told() == {"ann": ["tools"], "bob": ["tools"]}


@EACH_ERA
async def test_updates_of_what_is_hidden_are_not_told(era: str) -> None:
    server = fill(Server("s"), tags=["hidden"])
    crowd = Crowd(server, era, "open://x", "secret://x")
    async with crowd.client("ann"):
        server.resource_updated("secret://x")
        assert await crowd.told() == {"ann": ["resource_updated"]}
        server.hide(tags=["hidden"], kind="resource")
        assert await crowd.told() == {"ann": ["resources"]}
        server.resource_updated("secret://x")
        assert await crowd.told() == {"ann": []}
        server.resource_updated("open://x")
        assert await crowd.told() == {"ann": ["resource_updated"]}


@pytest.mark.parametrize(
    ("how", "error"), [({"visible": is_ann}, ResourceNotFound), ({"auth": is_ann}, NotAllowed)]
)
async def test_what_is_hidden_cannot_be_subscribed_to(how: Any, error: type[Exception]) -> None:
    server = fill(Server("s"), **how)
    async with client_of(server, "bob", "2025-11-25") as bob:
        with pytest.raises(error):
            await bob.subscribe_resource("secret://x")
    async with client_of(server, "ann", "2025-11-25") as ann:
        await ann.subscribe_resource("secret://x")


@EACH_ERA
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_a_session_has_switches_of_its_own(is_mounted: bool, era: str) -> None:
    inner = fill(Server("s"), tags=["hidden"])

    @inner.tool
    async def unlock(ctx: Context) -> None:
        assert ctx.session is not None
        ctx.session.show(tags=["hidden"])

    @inner.tool
    def lock(ctx: Context, kind: str) -> None:
        assert ctx.session is not None
        ctx.session.hide("secret", kind=kind)  # type: ignore[arg-type]

    inner.hide(tags=["hidden"])
    async with two(hosted(inner, is_mounted), era) as (crowd, ann, bob):
        assert (await listed(ann), await listed(bob)) == ([], [])
        await ann.call_tool("unlock")
        assert await crowd.told() == {"ann": LISTS, "bob": []}
        assert (await listed(ann), await listed(bob)) == (ALL, [])
        assert {**await used(ann), "of template": None} == dict.fromkeys(USES)
        assert await used(bob) == UNKNOWN
        await ann.call_tool("lock", {"kind": "tool"})
        assert await crowd.told() == {"ann": ["tools"], "bob": []}
        assert (await listed(ann), await listed(bob)) == (ALL[1:], [])
        await bob.call_tool("lock", {"kind": "tool"})
        assert await crowd.told() == {"ann": [], "bob": []}


@EACH_ERA
async def test_the_program_says_that_its_rules_decide_otherwise_now(era: str) -> None:
    members = {"ann"}
    server = fill(
        Server("s"),
        visible=lambda caller, component: (
            caller.principal is not None and caller.principal.subject in members
        ),
    )
    async with two(server, era) as (crowd, _, bob):
        server.visibility_changed()
        assert await crowd.told() == {"ann": [], "bob": []}
        members.add("bob")
        await trio.to_thread.run_sync(server.visibility_changed)
        assert await crowd.told() == {"ann": [], "bob": LISTS}
        assert await listed(bob) == ALL


@EACH_ERA
async def test_a_first_rule_while_it_serves_hides_at_once(era: str) -> None:
    server = fill(Server("s"))
    async with two(server, era) as (crowd, ann, bob):
        server.add_tool(lambda: None, name="secret2", visible=is_ann)
        await crowd.told()
        assert [await listed(each) for each in (ann, bob)] == [["tool", *ALL], ALL]


# -- without sessions, and behind a gateway ---------------------------------------------------------------------------


async def test_a_gateway_in_front_shows_what_it_sees_itself() -> None:
    server = fill(Server("s"), tags=["hidden"])
    server.hide(tags=["hidden"])
    transport = MemoryTransport()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, transport)
        gateway = Gateway([])
        gateway.mount("up", transport, prefix="")
        async with Client(gateway) as client:
            assert await listed(client) == []
            assert set((await used(client)).values()) <= {RpcError, ResourceNotFound}
            server.show(tags=["hidden"])
            with trio.fail_after(30):
                while await listed(client) != ALL:
                    await trio.lowlevel.checkpoint()
            assert {**await used(client), "of template": None} == dict.fromkeys(USES)
        nursery.cancel_scope.cancel()


async def test_a_gateway_hides_what_it_has_itself() -> None:
    gateway = Gateway([], cache_scope="public")
    gateway.mount("up", fill(Server("up")), prefix="up_", exclude=["open://*", "opens://*", "secret*"])
    fill(gateway, visible=is_ann)
    async with connected_pair(gateway, era="modern") as client:
        assert (await client.list_tools()).cache_scope == "private"
    async with client_of(gateway, "bob", "2026-07-28") as bob:
        assert [each.name async for each in bob.tools()] == ["open", "up_open"]
        assert await used(bob) == UNKNOWN
        assert (await bob.list_tools()).cache_scope == "private"
    async with client_of(gateway, "ann", "2026-07-28") as ann:
        assert (await ann.call_tool("secret")).text == "text"


@pytest.mark.parametrize("how", ["visible", "auth"])
async def test_no_task_begins_for_what_is_hidden(how: str) -> None:
    ran: list[str] = []

    async def before(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
        ran.append("before")
        return arguments

    async def work() -> str:
        ran.append("work")
        return "done"

    server = Server("s")
    options: dict[str, Any] = {how: is_ann}
    server.add_tool(work, task="optional", before_task=before, **options)
    params = {"name": "work", "arguments": {}, "task": {}}
    async with client_of(server, "bob", "2025-11-25") as bob:
        with pytest.raises(RpcError, match="unknown tool: work" if how == "visible" else "may not use"):
            await bob.request("tools/call", params)
        assert ran == []
    async with client_of(server, "ann", "2025-11-25") as ann:
        assert "task" in await ann.request("tools/call", params)
    assert ran[0] == "before"


@EACH_ERA
async def test_a_call_that_is_refused_is_freed_at_once(era: str) -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="refused", auth=lambda caller, component: False)

    async def use() -> None:
        async with Client(server, era=era) as client:
            with pytest.raises(NotAllowed):
                await client.call_tool("refused")

    assert await garbage(use) < ALLOWED
