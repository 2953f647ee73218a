"""Functions in worker threads: whatever leaves one ends its call alone."""

from __future__ import annotations

import pytest

from mcp_actors import Client, RpcError, Server


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", [SystemExit, BaseException, GeneratorExit, ValueError])
async def test_what_a_function_in_a_thread_raises_ends_its_call_alone(
    kind: type[BaseException], era: str
) -> None:
    server = Server("threads")

    @server.tool
    def fails() -> None:
        raise kind("in a thread")

    @server.tool
    def works() -> str:
        return "works"

    async with Client(server, era=era) as client:
        for _ in range(100):
            with pytest.raises(RpcError, match="internal error"):
                await client.call_tool("fails")
        assert (await client.call_tool("works")).content[0].text == "works"
