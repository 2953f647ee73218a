"""Every tool of the everything server that can become a task, called both ways."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mcp_actors import Server
from mcp_actors._server.tools import TaskRules
from mcp_actors.examples.everything import server as everything

from .talking import ASKED, CORE, EXTENSION, make_server, talking

PLAIN = [
    ("test_simple_text", {}),
    ("test_image_content", {}),
    ("test_multiple_content_types", {}),
    ("test_error_handling", {}),
    ("add", {"a": 1, "b": 2}),
    ("divide", {"a": 1, "b": 0}),
    ("echo", {"text": "x"}),
    ("json_schema_2020_12_tool", {"nonsense": 1}),
]


def as_tasks() -> Server:
    """The tools of the everything server, all of which may become tasks."""
    server = make_server(poll_interval=0.01)
    for entry in everything._features.tools:
        server._features.tools.insert(
            msgspec.structs.replace(entry, rules=TaskRules("optional", False, None))
        )
    return server


@pytest.mark.parametrize("version", [CORE, EXTENSION])
@pytest.mark.parametrize(("name", "arguments"), PLAIN)
async def test_results_are_those_of_the_plain_call(
    name: str, arguments: dict[str, Any], version: str
) -> None:
    params = {"name": name, "arguments": arguments}
    async with talking(as_tasks(), version, ASKED) as talk:
        plain = await talk.result("tools/call", params)
    async with talking(as_tasks(), version) as talk:
        id = await talk.begin(name, arguments)
        task = await talk.until(id)
        result = task.get("result") or await talk.result("tasks/result", {"taskId": id})
    if version == CORE:
        assert result.pop("_meta") == {"io.modelcontextprotocol/related-task": {"taskId": id}}
    assert result == plain
