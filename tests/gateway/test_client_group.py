"""Many servers as one program's: names, failures that cost their own server alone, calls to all at once, endings."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mcp_actors import (
    CallTimeout,
    Client,
    ClientGroup,
    ConnectFailed,
    ConnectionLost,
    Context,
    LocalProtocolError,
    Server,
    TransportNotFound,
)
from mcp_actors.abc import FrameChannel
from mcp_actors.auth import BearerToken
from mcp_actors.errors import ConfigurationError, MissingVariable
from mcp_actors.gateway.client_group import GroupNames
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.types import CallToolResult, ElicitResult
from mcp_transports.memory import memory_channel_pair
from tests.gateway.upstreams import cancel_after

SERVES = Path(__file__).with_name("serves.py")


def echoing(name: str = "echo", **options: Any) -> Server:
    server = Server(name, **options)

    @server.tool
    async def echo(text: str) -> str:
        return f"{name}: {text}"

    @server.tool
    async def wait() -> str:
        await trio.sleep_forever()
        return "never"

    @server.prompt
    def greet(who: str) -> str:
        return f"{name} greets {who}"

    @server.resource("note://one")
    def note() -> str:
        return name

    return server


class Silent:
    """A transport to a server that never answers: it hangs while connecting, or at the handshake."""

    def __init__(self, *, connects: bool) -> None:
        self.left = 0
        self._connects = connects

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FrameChannel]:
        near, self._far = memory_channel_pair()
        try:
            if not self._connects:
                await trio.sleep_forever()
            yield near
        finally:
            self.left += 1


def text_of(result: object) -> str:
    assert isinstance(result, CallToolResult)
    return result.text


# -- names --------------------------------------------------------------------------------------------------------


async def test_tools_and_prompts_have_the_names_of_their_servers() -> None:
    async with ClientGroup({"one": echoing("one"), "my server": echoing("two")}) as group:
        tools = await group.tools()
        assert [tool.name for tool in tools] == [
            "one__echo",
            "one__wait",
            "my_server__echo",
            "my_server__wait",
        ]
        assert text_of(await group.call_tool("my_server__echo", {"text": "x"})) == "two: x"
        assert [prompt.name for prompt in await group.prompts()] == ["one__greet", "my_server__greet"]
        result = await group.get_prompt("one__greet", {"who": "Ada"})
        assert result.messages[0].content.text == "one greets Ada"  # type: ignore[union-attr]
        resources = await group.resources()
        assert {name: [each.uri for each in all_] for name, all_ in resources.items()} == {
            "one": ["note://one"],
            "my server": ["note://one"],
        }
        assert (await group["my server"].read_resource("note://one")).text == "two"
        assert await group.resource_templates() == {"one": [], "my server": []}
        assert (group.names, dict(group.failures)) == (("one", "my server"), {})
        assert repr(group) == "<ClientGroup 2 of 2 servers>"


async def test_a_name_that_belongs_to_no_server_is_refused() -> None:
    async with ClientGroup({"one": echoing()}, separator="-") as group:
        assert text_of(await group.call_tool("one-echo", {"text": "x"})) == "echo: x"
        for name in ("echo", "one", "one__echo", "two-echo", ""):
            with pytest.raises(LocalProtocolError, match="no server of this group"):
                await group.call_tool(name, {})


@pytest.mark.parametrize(
    ("names", "separator"),
    [(["a", "a_"], "_"), (["a", "a__b"], "__"), (["a b", "a_b"], "__"), (["a", "ab"], "")],
)
def test_names_that_could_not_be_told_apart_are_refused(names: list[str], separator: str) -> None:
    with pytest.raises(ValueError, match="could not be told apart"):
        GroupNames(names, separator)


def test_each_name_is_split_as_it_was_made() -> None:
    names = GroupNames(["a", "b_", "c__d", "ä"], "__")
    for server in ["a", "b_", "c__d", "ä"]:
        for own in ["x", "_x", "__x", "a__x", ""]:
            assert names.split(names.of(server, own)) == (server, own)
    assert names.split("c__x") is None
    with pytest.raises(ValueError, match="letters, digits"):
        GroupNames(["a"], "/")


_server_names = st.lists(st.text("ab_ ä-", min_size=1, max_size=4), unique=True, max_size=5)


@given(_server_names, st.sampled_from(["__", "_", "-", ""]), st.text("ab_-", max_size=5))
def test_a_name_leads_to_one_server_or_the_group_is_refused(
    servers: list[str], separator: str, own: str
) -> None:
    try:
        names = GroupNames(servers, separator)
    except ValueError:
        prefixes = [re.sub("[ ä]", "_", name) + separator for name in servers]
        assert any(a.startswith(b) for a, b in itertools.permutations(prefixes, 2))
        return
    for server in servers:
        assert names.split(names.of(server, own)) == (server, own)


# -- failures -----------------------------------------------------------------------------------------------------


async def test_a_server_that_fails_costs_itself_alone(autojump_clock: Any) -> None:
    servers = {
        "good": echoing(),
        "refused": "memory:nobody-serves-this",
        "silent": Silent(connects=False),
        "mute": Silent(connects=True),
        "other": echoing("other"),
    }
    with capture_logs() as logs:
        async with ClientGroup(servers, connect_timeout=7) as group:
            assert trio.current_time() >= 7
            assert list(group.failures) == ["refused", "silent", "mute"]
            assert "no answer within 7 seconds" in str(group.failures["silent"])
            assert [tool.name for tool in await group.tools()] == [
                "good__echo",
                "good__wait",
                "other__echo",
                "other__wait",
            ]
            with pytest.raises(ConnectFailed, match="silent: there was no answer") as caught:
                group["silent"]
            assert caught.value.__cause__ is group.failures["silent"]
            with pytest.raises(ConnectFailed, match=r"^refused: "):
                await group.call_tool("refused__echo", {"text": "x"})
            with pytest.raises(KeyError):
                group["nobody"]
    assert [each["server"] for each in logs] == ["refused", "silent", "mute"]


async def test_the_handshake_has_the_clocks_of_its_client(autojump_clock: Any) -> None:
    silent = Silent(connects=True)
    with capture_logs():
        async with ClientGroup({"good": echoing(), "mute": silent}, timeout=4, probe_timeout=2) as group:
            assert trio.current_time() < 10
            assert isinstance(group.failures["mute"], CallTimeout)
            assert silent.left == 1


async def test_an_entry_of_a_configuration_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GROUP_KEY", raising=False)
    config = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": [str(SERVES), "x"]}
    servers = {
        "good": entry,
        "keyless": {**entry, "env": {"KEY": "${GROUP_KEY}"}},
        "off": {**entry, "disabled": True},
        "none": {"command": str(tmp_path / "nothing")},
    }
    config.write_text(json.dumps({"mcpServers": servers}))
    with capture_logs():
        async with ClientGroup(config, required=["good"]) as group:
            assert list(group.failures) == ["keyless", "none"]
            assert isinstance(group.failures["keyless"], MissingVariable)
            assert (await group.call_tool("good__started", {"names": []})).data["args"] == "x"
            monkeypatch.setenv("GROUP_KEY", "k")
            client = await group.reconnect("keyless")
            assert client is group["keyless"]
            assert (await group.call_tool("keyless__started", {"names": ["KEY"]})).data["KEY"] == "k"
            assert list(group.failures) == ["none"]


async def test_a_required_server_that_fails_ends_the_others_at_once(autojump_clock: Any) -> None:
    silent = Silent(connects=False)
    group = ClientGroup({"silent": silent, "refused": "memory:nobody-serves-this"}, required=["refused"])
    with capture_logs(), pytest.raises(ConnectFailed):
        async with group:
            raise AssertionError("it is not entered")
    assert trio.current_time() < 5
    assert silent.left == 1


async def test_a_list_that_cannot_be_had_is_a_failure_until_it_can() -> None:
    fails = True

    async def failing(call: Any, call_next: Callable[[], Any]) -> Any:
        if fails and call.method == "tools/list":
            raise KeyError("mine")
        return await call_next()

    servers = {"good": echoing(), "bad": echoing("bad")}
    options = {"bad": {"middleware": [failing]}}
    async with ClientGroup(servers, options_for=lambda name: options.get(name, {})) as group:
        with capture_logs() as logs:
            assert [tool.name for tool in await group.tools()] == ["good__echo", "good__wait"]
        assert [(each["server"], each["list"]) for each in logs] == [("bad", "tools")]
        assert list(group.failures) == ["bad"]
        fails = False
        assert len(await group.tools()) == 4
        assert not group.failures


async def test_a_list_without_an_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_actors.gateway.client_group.MAX_LISTED", 1)
    with capture_logs():
        async with ClientGroup({"long": echoing()}) as group:
            assert await group.tools() == []
            assert "more than 1 entries" in str(group.failures["long"])


async def test_a_server_that_crashes_later_is_started_again(tmp_path: Path) -> None:
    script = tmp_path / "crashes.py"
    script.write_text(
        "import os\nfrom mcp_actors import Server\nserver = Server('crashes')\n"
        "@server.tool\nasync def crash() -> str:\n    os._exit(3)\n"
        "@server.tool\nasync def pid() -> int:\n    return os.getpid()\n"
        "server.run()\n"
    )
    lost: list[str] = []

    def noting(name: str) -> dict[str, Any]:
        return {"on_lost": lambda error: lost.append(name)}

    servers = {"crashes": [sys.executable, str(script)], "good": echoing()}
    async with ClientGroup(servers, options_for=noting) as group:
        before = (await group.call_tool("crashes__pid")).data
        with pytest.raises(ConnectionLost):
            await group.call_tool("crashes__crash")
        assert text_of(await group.call_tool("good__echo", {"text": "x"})) == "echo: x"
        assert (await group.call_tool("crashes__pid")).data != before
        assert (lost, dict(group.failures)) == (["crashes"], {})


async def test_a_lost_connection_is_a_failure_until_it_is_made_again() -> None:
    async with ClientGroup({"one": echoing()}, restart=False) as group:
        await group["one"].aclose()
        assert isinstance(group.failures["one"], ConnectionLost)
        await group.reconnect("one")
        assert not group.failures


# -- calls to all at once -----------------------------------------------------------------------------------------


async def test_many_calls_at_once_each_fail_alone(autojump_clock: Any) -> None:
    async with ClientGroup({"one": echoing("one"), "two": echoing("two")}) as group:
        outcomes = await group.call_all(
            [
                ("one__echo", {"text": "a"}),
                ("one__wait", None),
                ("two__echo", {"text": 1}),
                ("three__echo", {"text": "b"}),
                ("two__echo", {"text": object()}),
                ("two__echo", {"text": "c"}),
            ],
            timeout=3,
        )
    first, late, wrong, unknown, no_json, last = outcomes
    assert (text_of(first), text_of(last)) == ("one: a", "two: c")
    assert isinstance(wrong, CallToolResult)
    assert wrong.is_error
    assert [type(each) for each in (late, unknown, no_json)] == [CallTimeout, LocalProtocolError, TypeError]


async def test_a_function_is_called_with_each_client_and_fails_alone() -> None:
    async def name_of(client: Client) -> str:
        if client.server_info.name == "ends":
            raise SystemExit(3)
        return client.server_info.name

    servers = {"one": echoing("one"), "ends": echoing("ends"), "away": "tcp://127.0.0.1:1"}
    with capture_logs() as logs:
        async with ClientGroup(servers) as group:
            outcomes = await group.for_each(name_of)
    assert list(outcomes) == ["one", "ends", "away"]
    assert outcomes["one"] == "one"
    assert "SystemExit(3)" in str(outcomes["ends"])
    assert isinstance(outcomes["away"], ConnectFailed)
    assert [each["event"] for each in logs][-1] == "group work failed"


async def test_only_so_many_calls_are_in_flight_at_a_time() -> None:
    server, running, most = Server("counting"), 0, 0

    @server.tool
    async def count() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.testing.wait_all_tasks_blocked()
        running -= 1
        return most

    async with ClientGroup({"one": server}, at_once=3) as group:
        outcomes = await group.call_all([("one__count", None)] * 10)
    assert all(isinstance(each, CallToolResult) for each in outcomes)
    assert most == 3


async def test_cancelling_calls_to_all_cancels_them_at_their_servers() -> None:
    server, cancelled = Server("waiting"), []

    @server.tool
    async def wait(name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(name)

    async with ClientGroup({"one": server, "two": server}) as group:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    group.call_all, [("one__wait", {"name": "1"}), ("two__wait", {"name": "2"})]
                )
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(cancelled) == ["1", "2"]


async def test_options_may_be_those_of_one_server() -> None:
    """A host has to say which server asks the person."""
    server = Server("asking")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return str(answer.content)

    def options_for(name: str) -> dict[str, Any]:
        async def answer(question: Any) -> ElicitResult:
            return ElicitResult("accept", {"name": name})

        return {"elicitation": answer}

    async with ClientGroup({"one": server, "two": server}, options_for=options_for) as group:
        outcomes = await group.call_all([("one__ask", None), ("two__ask", None)])
    assert [text_of(each) for each in outcomes] == ["{'name': 'one'}", "{'name': 'two'}"]


# -- beginnings and ends ------------------------------------------------------------------------------------------


async def test_leaving_the_block_closes_all_and_ends_what_is_in_flight(autojump_clock: Any) -> None:
    outcomes: list[Any] = []

    async def call(group: ClientGroup) -> None:
        outcomes.extend(await group.call_all([("one__wait", None), ("two__wait", None)]))

    async with trio.open_nursery() as nursery:
        async with ClientGroup({"one": echoing(), "two": echoing()}) as group:
            nursery.start_soon(call, group)
            await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() < 10
    assert [type(each) for each in outcomes] == [ConnectionLost, ConnectionLost]
    with pytest.raises(LocalProtocolError):
        await group.reconnect("one")


async def test_cancelled_at_any_turn_nothing_is_left() -> None:
    """The block is cancelled after each number of turns that entering it, using it and leaving it take."""
    finished = False
    for turns in range(0, 400, 3):
        open_lifespans = 0

        @asynccontextmanager
        async def lifespan(_server: Server) -> AsyncIterator[None]:
            nonlocal open_lifespans
            open_lifespans += 1
            try:
                yield
            finally:
                open_lifespans -= 1

        servers = {"one": echoing(lifespan=lifespan), "two": echoing(lifespan=lifespan)}
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_after, turns, scope)
                async with ClientGroup(servers) as group:
                    await group.tools()
                    await group.call_all([("one__echo", {"text": "x"}), ("two__echo", {"text": "x"})])
                nursery.cancel_scope.cancel()
                finished = True
        assert open_lifespans == 0
        if finished:
            break
    assert finished


async def test_what_the_block_raises_leaves_it_unchanged_and_it_is_entered_once() -> None:
    group = ClientGroup({"one": echoing()})
    with pytest.raises(KeyError, match="mine"):
        async with group:
            raise KeyError("mine")
    with pytest.raises(LocalProtocolError, match="good for one"):
        async with group:
            raise AssertionError("it is not entered")


async def test_a_group_that_is_not_open_says_so() -> None:
    group = ClientGroup({"one": echoing()})
    with pytest.raises(LocalProtocolError, match="not open"):
        await group.tools()
    with pytest.raises(ConnectFailed, match="one: it is not connected"):
        group["one"]


def test_without_trio_it_says_what_to_do() -> None:
    async def enter() -> None:
        async with ClientGroup({}):
            raise AssertionError("it is not entered")

    with pytest.raises(RuntimeError, match="runs on Trio"):
        enter().send(None)


# -- what a group is made of ----------------------------------------------------------------------------------------


async def test_targets_entries_and_configurations_may_all_be_given() -> None:
    entry = {"url": "memory:group"}
    config = {"mcpServers": {"one": entry}}
    given: list[Any] = [
        config,
        {"servers": {"one": entry}},
        json.dumps(config),
        read_server_entries(config),
        list(read_server_entries(config)),
        {"one": entry, "two": echoing()},
        {"one": "memory:group"},
    ]
    assert [ClientGroup(each).names for each in given] == [
        *[("one",)] * 5,
        ("one", "two"),
        ("one",),
    ]
    assert ClientGroup({"servers": echoing()}).names == ("servers",)


@pytest.mark.parametrize(
    ("servers", "options", "error"),
    [
        ({"one": echoing()}, {"elicitaton": None}, TypeError),
        ({"one": echoing()}, {"timeout": "5"}, TypeError),
        ({"one": Server}, {}, TypeError),
        ({1: echoing()}, {}, TypeError),
        (5, {}, TypeError),
        ({"one": "dodo://x"}, {}, TransportNotFound),
        ({"one": echoing()}, {"required": ["two"]}, ValueError),
        ({"one": echoing()}, {"at_once": 0}, ValueError),
        ({"one": {"command": 1}}, {}, ConfigurationError),
        ("/nowhere/mcp.json", {}, ConfigurationError),
    ],
)
def test_a_mistake_is_told_where_the_group_is_made(
    servers: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        ClientGroup(servers, **options)


def test_access_is_for_servers_at_urls_without_credentials() -> None:
    made: dict[str, Client] = {}
    servers = {
        "url": "https://a.example/mcp",
        "memory": echoing(),
        "entry": {"url": "https://b.example/mcp"},
        "with headers": {"url": "https://b.example/mcp", "headers": {"X-A": "b"}},
        "own": {"url": "https://c.example/mcp", "headers": {"Authorization": "Bearer x"}},
    }
    group = ClientGroup(servers, auth=BearerToken("t"))
    for name, member in group._members.items():
        made[name] = member.make()
    assert {name: client._options.auth is not None for name, client in made.items()} == {
        "url": True,
        "memory": False,
        "entry": True,
        "with headers": False,
        "own": False,
    }
