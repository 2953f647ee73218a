"""Approvals in a gateway, for the tools of servers that ask nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_actors import Client, Context, Server
from mcp_actors.errors import ConfigurationError
from mcp_actors.gateway import Gateway, Upstream
from mcp_actors.gateway.server_entries import read_server_entries
from mcp_actors.server import Argument, Reshape
from mcp_actors.testing import raw_client
from mcp_actors.types import ElicitFormParams, ElicitResult, ElicitUrlParams, ToolAnnotations
from tests.gateway.worlds import IN_MEMORY, OVER_HTTP, World
from tests.messages import modern_meta
from tests.server.asking import ALL, FORM

APPROVAL = "mcp-actors/approval"


class Disk:
    def __init__(self) -> None:
        self.server = Server("disk", mask_errors=False)
        self.done: list[str] = []
        hints = {
            "reads": ToolAnnotations(read_only_hint=True),
            "adds": ToolAnnotations(destructive_hint=False),
            "destroys": ToolAnnotations(destructive_hint=True),
            "says_nothing": None,
        }
        for name, each in hints.items():
            self.add(name, each)

        @self.server.tool
        async def delete_asking(ctx: Context) -> str:
            answer = await ctx.elicit("name please", FORM)
            assert answer.content is not None
            self.done.append("delete_asking")
            return str(answer.content["name"])

    def add(self, name: str, hints: ToolAnnotations | None) -> None:
        async def function(path: str = "a") -> str:
            self.done.append(name)
            return f"{name} {path}"

        self.server.add_tool(function, name=name, annotations=hints)


class Person:
    def __init__(self, action: Any = "accept") -> None:
        self.action = action
        self.asked: list[str] = []

    async def __call__(self, question: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
        self.asked.append(question.message)
        return ElicitResult(self.action, {"name": "x"} if question.message == "name please" else {})


@pytest.mark.parametrize("world", IN_MEMORY + OVER_HTTP, ids=str)
async def test_a_person_approves_what_a_server_does(world: World) -> None:
    disk, person = Disk(), Person()
    async with world.connected(
        disk.server, settings={"confirm": ["delete_*", "destructive"]}, elicitation=person
    ) as client:
        await client.list_tools()
        for name in ("reads", "adds", "destroys", "says_nothing"):
            assert (await client.call_tool(f"x_{name}", {"path": "b"})).text == f"{name} b"
        assert (await client.call_tool("x_delete_asking")).text == "x"
    assert person.asked == [
        'Call destroys of x with {"path":"b"}?',
        'Call says_nothing of x with {"path":"b"}?',
        "Call delete_asking of x with {}?",
        "name please",
    ]
    assert disk.done == ["reads", "adds", "destroys", "says_nothing", "delete_asking"]


@pytest.mark.parametrize("world", IN_MEMORY + OVER_HTTP, ids=str)
async def test_what_is_declined_is_not_passed_on(world: World) -> None:
    disk = Disk()
    async with world.connected(
        disk.server, settings={"confirm": ["*"]}, elicitation=Person("decline")
    ) as client:
        await client.list_tools()
        result = await client.call_tool("x_reads")
    assert result.is_error
    assert "the person has declined it" in result.text
    assert disk.done == []


@pytest.mark.parametrize("world", IN_MEMORY, ids=str)
async def test_a_client_that_asks_nobody_passes_nothing_on(world: World) -> None:
    disk = Disk()
    async with world.connected(disk.server, settings={"confirm": ["*"]}) as client:
        assert "this client cannot ask one" in (await client.call_tool("x_reads")).text
    assert disk.done == []


async def test_an_approval_of_a_gateway_is_good_once_and_for_its_arguments() -> None:
    disk = Disk()
    gateway = Gateway([Upstream(name="x", target=disk.server, confirm=["*"])])
    async with raw_client(gateway) as peer:

        async def call(id: int, path: str, **retry: Any) -> Any:
            params = {"name": "x_reads", "arguments": {"path": path}, "_meta": modern_meta(ALL), **retry}
            answer = await peer.request(id, "tools/call", params)
            return answer.get("result") or answer["error"]

        forged = {"inputResponses": {APPROVAL: {"action": "accept", "content": {}}}}
        asked = await call(1, "a", **forged)
        retry = {**forged, "requestState": asked["requestState"]}
        assert (await call(2, "b", **retry))["code"] == -32602
        assert (await call(3, "a", **retry))["content"][0]["text"] == "reads a"
        assert "used already" in (await call(4, "a", **retry))["content"][0]["text"]
    assert disk.done == ["reads"]


async def test_what_a_tool_was_reshaped_to_is_what_is_approved() -> None:
    disk, person = Disk(), Person()
    shape = Reshape(name="look", arguments={"path": Argument(name="where")})
    gateway = Gateway([Upstream(name="x", target=disk.server, confirm=["reads"], tools={"reads": shape})])
    async with Client(gateway, elicitation=person) as client:
        await client.list_tools()
        assert (await client.call_tool("look", {"where": "c"})).text == "reads c"
    assert person.asked == ['Call reads of x with {"path":"c"}?']


async def test_two_gateways_ask_one_after_the_other() -> None:
    disk, person = Disk(), Person()
    inner = Gateway([Upstream(name="x", target=disk.server, confirm=["*"])])
    outer = Gateway([Upstream(name="y", target=inner, confirm=["*"])])
    async with Client(outer, elicitation=person) as client:
        await client.list_tools()
        assert (await client.call_tool("y_x_reads")).text == "reads a"
    assert person.asked == ["Call x_reads of y with {}?", "Call reads of x with {}?"]


async def test_long_arguments_are_cut_and_say_so() -> None:
    disk, person = Disk(), Person()
    gateway = Gateway([Upstream(name="x", target=disk.server, confirm=["*"])])
    async with Client(gateway, elicitation=person) as client:
        await client.call_tool("x_reads", {"path": "a\n" * 5000})
    (asked,) = person.asked
    assert asked.endswith("… 15011 characters in all?")
    assert len(asked) < 3200


def test_a_configuration_says_what_is_approved(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    entry = {"url": "http://127.0.0.1:1/mcp", "confirm": ["delete_*", "destructive"]}
    path.write_text(json.dumps({"mcpServers": {"disk": entry}}))
    (found,) = read_server_entries(path)
    assert found.gateway.given()["confirm"] == ["delete_*", "destructive"]
    path.write_text(json.dumps({"mcpServers": {"disk": {**entry, "confirm": "destructive"}}}))
    with pytest.raises(ConfigurationError, match="confirm"):
        read_server_entries(path)
