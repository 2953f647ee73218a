"""Servers that are added to a gateway, before it serves and while it does."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.gateway import Gateway, Upstream
from tests.gateway.upstreams import make_server


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_is_mounted_while_the_gateway_serves_is_listed_and_called(
    era: str, autojump_clock: MockClock
) -> None:
    gateway = Gateway([])
    gateway.mount("before", make_server())
    kinds: list[str] = []
    async with Client(gateway, era=era, on_change=lambda kind, uri: kinds.append(kind)) as client:
        assert {tool.name async for tool in client.tools()} >= {"before_add"}
        await trio.sleep(5)
        kinds.clear()
        gateway.mount("after", make_server(), prefix="late-")
        await trio.sleep(5)
        assert "tools" in kinds
        assert {tool.name async for tool in client.tools()} >= {"before_add", "late-add"}
        assert (await client.call_tool("late-add", {"a": 1, "b": 2})).text == "3"
        assert [each.name for each in gateway.tree().upstreams] == ["before", "after"]


def test_a_name_is_given_once_and_a_bridge_has_one_server() -> None:
    gateway = Gateway([Upstream(name="one", target=Server("s"))])
    with pytest.raises(ValueError, match="two upstreams have the name 'one'"):
        gateway.mount("one", Server("t"))
    with pytest.raises(TypeError, match="colour"):
        gateway.mount("two", Server("t"), colour="red")
    with pytest.raises(ValueError, match="has no others"):
        Gateway([Upstream(name="one", target=Server("s"))], presents=True).mount("two", Server("t"))
