"""Functions in worker threads: whatever leaves one ends its call alone."""

from __future__ import annotations

import pytest

from mcp_actors import Client, Server


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
            result = await client.call_tool("fails")
            assert result.is_error
            assert result.content[0].text == f"fails: {kind.__name__}: in a thread"
        assert (await client.call_tool("works")).content[0].text == "works"
