"""Calls of a client that are made again, and those that never are."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mcp_actors import Client, Server
from mcp_actors.client import ClientCall, SendNext
from mcp_actors.errors import CallTimeout, ConnectionLost, Overloaded, RpcError, Unavailable
from mcp_actors.middleware import Retry
from mcp_actors.types import CallToolResult, TextContent, ToolAnnotations


class Failing:
    """Middleware inside of the one that is tested: fails so many times with an error, then lets calls pass."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left = times
        self.error = error
        self.attempts: list[float] = []
        self.caps: list[float] = []

    async def __call__(self, call: ClientCall, call_next: SendNext) -> Any:
        if call.method == "tools/list" and call.refresh:
            return await call_next()
        self.attempts.append(trio.current_time())
        self.caps.append(call.options.cap)
        if self.left:
            self.left -= 1
            raise self.error
        return await call_next()


LOST = ConnectionLost("it broke")


def make_server() -> Server:
    server = Server("s")
    server.add_tool(lambda: "x", name="plain", description="Not idempotent.", inline=True)
    for hint in ("idempotent_hint", "read_only_hint"):
        server.add_tool(
            lambda: "x",
            name=hint,
            description="It is.",
            inline=True,
            annotations=ToolAnnotations(**{hint: True}),
        )

    @server.resource("x://1", name="one")
    async def one() -> str:
        return "x"

    return server


async def test_reads_are_made_again_with_growing_pauses(autojump_clock: Any) -> None:
    failing, retry = Failing(2, LOST), Retry(pause=1.0)
    async with Client(make_server(), middleware=[retry, failing]) as client:
        assert (await client.read_resource("x://1")).contents
    first, second, third = failing.attempts
    assert 0.5 <= second - first <= 1.0
    assert 1.0 <= third - second <= 2.0
    assert retry.made_again == 2
    assert failing.caps[0] == 300
    assert failing.caps[2] < failing.caps[1] < 300


async def test_after_the_last_attempt_it_raises_what_that_raised(autojump_clock: Any) -> None:
    failing = Failing(100, LOST)
    async with Client(make_server(), middleware=[Retry(4), failing]) as client:
        with pytest.raises(ConnectionLost, match="it broke"):
            await client.list_tools()
    assert len(failing.attempts) == 4


@pytest.mark.parametrize("error", [LOST, Overloaded("server", 1, 1)])
async def test_a_tool_is_called_once_unless_it_is_known_to_be_idempotent(
    error: Exception, autojump_clock: Any
) -> None:
    async def attempts(tool: str, *, listed: bool = True, **options: Any) -> int:
        failing = Failing(1, error)
        async with Client(make_server(), middleware=[Retry(**options), failing]) as client:
            if listed:
                await client.list_tools(refresh=True)
            try:
                await client.call_tool(tool)
            except type(error):
                assert len(failing.attempts) == 1
        return len(failing.attempts)

    assert await attempts("plain") == 1
    assert await attempts("idempotent_hint") == 2
    assert await attempts("read_only_hint") == 2
    assert await attempts("idempotent_hint", listed=False) == 1
    assert await attempts("plain", tools=["plain"]) == 2


async def test_a_request_of_another_kind_is_made_once() -> None:
    """Nobody knows what it does, so it may not be done twice."""
    failing, retry = Failing(1, LOST), Retry()
    async with Client(make_server(), middleware=[retry, failing]) as client:
        with pytest.raises(ConnectionLost):
            await client.request("acme/pay", {"amount": 1})
    assert (len(failing.attempts), retry.made_again) == (1, 0)


async def test_what_one_server_says_of_its_tool_is_not_true_of_another_one(autojump_clock: Any) -> None:
    retry, other, calls = Retry(), Server("other"), 0

    @other.tool
    async def idempotent_hint() -> str:
        nonlocal calls
        calls += 1
        raise Overloaded("server", 1, 1)

    async with (
        Client(make_server(), middleware=[retry]) as knowing,
        Client(other, middleware=[retry]) as client,
    ):
        await knowing.list_tools()
        with pytest.raises(Overloaded):
            await client.call_tool("idempotent_hint")
    assert calls == 1


@pytest.mark.parametrize(
    "error", [RpcError(-32603, "no"), CallTimeout("tools/list", "idle", 1.0), KeyError("x")]
)
async def test_what_was_answered_or_ran_out_of_time_is_not_made_again(error: Exception) -> None:
    failing = Failing(1, error)
    async with Client(make_server(), middleware=[Retry(), failing]) as client:
        with pytest.raises(type(error)):
            await client.list_tools()
    assert len(failing.attempts) == 1


async def test_a_server_that_says_when_is_obeyed_within_bounds(autojump_clock: Any) -> None:
    failing = Failing(1, Overloaded.for_caller("calls", 1, 3.0))
    async with Client(make_server(), middleware=[Retry(), failing]) as client:
        await client.list_tools()
    assert failing.attempts[1] - failing.attempts[0] == pytest.approx(3.0)
    failing = Failing(1, Overloaded.for_caller("calls", 1, 3600.0))
    async with Client(make_server(), middleware=[Retry(), failing]) as client:
        with pytest.raises(Overloaded):
            await client.list_tools()


async def test_what_stands_before_a_server_is_obeyed_too(autojump_clock: Any) -> None:
    failing = Failing(1, Unavailable("503", retry_after=2.0))
    async with Client(make_server(), middleware=[Retry(), failing]) as client:
        await client.list_tools()
    assert failing.attempts[1] - failing.attempts[0] == pytest.approx(2.0)


async def test_the_attempts_of_two_of_them_do_not_multiply(autojump_clock: Any) -> None:
    failing, outer, inner = Failing(100, LOST), Retry(3), Retry(3)
    async with Client(make_server(), middleware=[outer, inner, failing]) as client:
        with pytest.raises(ConnectionLost):
            await client.list_tools()
    assert len(failing.attempts) == 3
    assert (outer.made_again, inner.made_again) == (2, 0)


async def test_all_attempts_together_have_the_time_of_one_call(autojump_clock: Any) -> None:
    failing = Failing(100, LOST)
    async with Client(
        make_server(), cap=5.0, middleware=[Retry(100, pause=1.0, most=1.0), failing]
    ) as client:
        start = trio.current_time()
        with pytest.raises(ConnectionLost):
            await client.list_tools()
        assert trio.current_time() - start <= 5.0


async def test_cancelled_between_attempts_it_makes_no_more(autojump_clock: Any) -> None:
    failing = Failing(100, LOST)
    async with Client(make_server(), middleware=[Retry(pause=4.0), failing]) as client:
        with trio.move_on_after(1.0) as scope:
            await client.list_tools()
        assert scope.cancelled_caught
        await trio.sleep(100)
    assert len(failing.attempts) == 1


async def test_a_task_is_never_begun_twice(autojump_clock: Any) -> None:
    calls: list[dict[str, Any]] = []

    async def lost(call: ClientCall, call_next: SendNext) -> Any:
        calls.append(dict(call.params))
        raise LOST

    retry = Retry(tools=["t"])
    call = ClientCall(method="tools/call", params={"name": "t", "task": {}}, options=_options())
    with pytest.raises(ConnectionLost):
        await retry(call, lambda other=None: lost(other or call, _never))
    assert len(calls) == 1


async def _never(call: ClientCall | None = None) -> Any:
    return CallToolResult([TextContent("x")])


def _options() -> Any:
    return Client(make_server())._requests.options


def test_a_retry_after_that_is_none_is_none() -> None:
    for told in (None, "soon", True, -1, 1e300, float("nan"), [1]):
        error = RpcError.from_wire(429, "too many", {"retryAfterMs": told})
        assert isinstance(error, Overloaded)
        assert error.retry_after is None
    assert RpcError.from_wire(429, "too many", None).retry_after is None  # type: ignore[attr-defined]
    assert RpcError.from_wire(429, "too many", {"retryAfterMs": 250}).retry_after == 0.25  # type: ignore[attr-defined]


def test_one_text_is_no_list_of_tools() -> None:
    with pytest.raises(TypeError, match=r"\['count'\] for example"):
        Retry(tools="count")
