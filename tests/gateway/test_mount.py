"""Servers that are added to a gateway, before it serves and while it does."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mcp_actors import Client, Server
from mcp_actors.errors import ConfigurationError, RpcError
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


WRONG: list[tuple[Any, str]] = [
    ("bad url", "is not a transport URL"),
    ("foo://bar", "no transport is installed for 'foo'"),
    ("http:///mcp", "the URL names no host"),
    (7, "int"),
]


@pytest.mark.parametrize(("target", "says"), WRONG, ids=str)
async def test_a_target_that_is_none_is_refused_where_it_is_written(target: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"server 'one', target: .*{says}"):
        Gateway([Upstream(name="one", target=target)])
    gateway = Gateway([])
    with pytest.raises(ConfigurationError, match=says):
        gateway.mount("one", target)
    gateway.mount("one", make_server())
    async with Client(gateway) as client:
        assert "one_add" in {tool.name async for tool in client.tools()}


async def test_a_function_that_returns_no_target_costs_its_own_upstream_and_one_line(
    autojump_clock: MockClock,
) -> None:
    wrong = Upstream(name="wrong", target=lambda: "http:///mcp")
    with capture_logs() as logs:
        async with Client(Gateway([wrong, Upstream(name="good", target=make_server())])) as client:
            assert "good_add" in {tool.name async for tool in client.tools()}
            with pytest.raises(RpcError, match="the server 'wrong' is not available"):
                await client.call_tool("wrong_add")
    (told,) = [each for each in logs if each["log_level"] in ("warning", "error")]
    assert told["event"] == "an upstream cannot be connected to"
    assert told["error"].startswith("its target cannot be used: the URL names no host")
