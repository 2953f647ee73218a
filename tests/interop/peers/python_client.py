"""The official Python SDK's client drives a server and prints one JSON report.

Usage: python_client.py legacy|auto stdio COMMAND [ARG...]
       python_client.py legacy|auto http|sse URL

Runs in an environment of its own that has the package ``mcp`` and nothing of ours. It calls what an everything
server has; the tests decide whether the report is right.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)

LIMIT = 180.0  # seconds for the whole run
PATIENCE = 40.0  # seconds until something that was promised must have happened
WATCHED = "test://watched-resource"


CONNECTIONS = {
    "stdio": lambda command, *args: StdioServerParameters(command=command, args=list(args)),
    "http": streamable_http_client,
    "sse": sse_client,
}
"""What each binding is opened with."""


def plain(model: Any) -> Any:
    """What went over the wire, as JSON."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class Drive:
    """One connection, and the report about it."""

    def __init__(self, mode: str, binding: str, *address: str) -> None:
        self.report: dict[str, Any] = {"logs": [], "asked": [], "notified": []}
        self.mode = mode
        self.client = Client(
            CONNECTIONS[binding](*address),
            mode=mode,
            read_timeout_seconds=LIMIT,
            log_level="info",
            sampling_callback=self.sample,
            elicitation_callback=self.elicit,
            list_roots_callback=self.roots,
            logging_callback=self.log,
            message_handler=self.notified,
        )

    async def sample(self, context: Any, params: Any) -> CreateMessageResult:
        self.report["asked"].append(["sampling/createMessage", plain(params)])
        return CreateMessageResult(
            role="assistant", content=TextContent(type="text", text="I am the model"), model="fake-1"
        )

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.report["asked"].append(["elicitation/create", plain(params)])
        names = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={name: f"my {name}" for name in names})

    async def roots(self, context: Any) -> ListRootsResult:
        self.report["asked"].append(["roots/list", {}])
        return ListRootsResult(roots=[Root(uri="file:///home/peer", name="home")])

    async def log(self, params: Any) -> None:
        self.report["logs"].append([params.level, params.data])

    async def notified(self, message: Any) -> None:
        if hasattr(message, "method"):
            self.report["notified"].append(message.method)

    async def attempt(self, name: str, call: Any) -> None:
        """Notes the result of a call, or the error that the server sent."""
        try:
            self.report[name] = plain(await call)
        except MCPError as error:
            self.report[name] = {
                "error": {"code": error.code, "message": error.message, "data": error.error.data}
            }

    async def run(self) -> dict[str, Any]:
        async with self.client:
            await self.introduction()
            await self.calls()
            await self.reading()
            await self.prompting()
            await self.cancelling()
            await self.subscribing()
            await self.together()
        self.report["closed"] = True
        return self.report

    async def introduction(self) -> None:
        client, report = self.client, self.report
        report["version"] = client.protocol_version
        report["server"] = plain(client.server_info) if client.server_info else None
        report["capabilities"] = plain(client.server_capabilities)
        report["instructions"] = client.instructions
        if client.protocol_version < "2026":
            await self.attempt("ping", client.send_ping())
            await self.attempt("set_level", client.set_logging_level("info"))
        tools = await client.list_tools()
        report["tools"] = {tool.name: plain(tool) for tool in tools.tools}
        report["resources"] = {each.uri: plain(each) for each in (await client.list_resources()).resources}
        templates = (await client.list_resource_templates()).resource_templates
        report["templates"] = {each.uri_template: plain(each) for each in templates}
        report["prompts"] = {each.name: plain(each) for each in (await client.list_prompts()).prompts}

    async def calls(self) -> None:
        client, report = self.client, self.report
        for name in (
            "test_simple_text",
            "test_image_content",
            "test_embedded_resource",
            "test_tool_with_logging",
            "test_error_handling",
        ):
            await self.attempt(name, client.call_tool(name, {}))
        progress: list[Any] = []

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            progress.append([done, total, message])

        await self.attempt(
            "test_tool_with_progress",
            client.call_tool("test_tool_with_progress", {}, progress_callback=on_progress),
        )
        report["progress"] = progress
        await self.attempt("test_reconnection", client.call_tool("test_reconnection", {}))
        arguments = {"region": " Zürich ", "limit": 3}
        await self.attempt("test_custom_header", client.call_tool("test_custom_header", arguments))
        await self.attempt("echo", client.call_tool("echo", {"message": "gruß 🐍\n\u2028"}))
        await self.attempt("add", client.call_tool("add", {"a": 2, "b": 3.5}))
        await self.attempt("wrong_arguments", client.call_tool("add", {"a": "two", "b": 3}))
        await self.attempt("unknown_tool", client.call_tool("no_such_tool", {}))
        await self.attempt("test_sampling", client.call_tool("test_sampling", {"prompt": "Who are you?"}))
        await self.attempt("test_elicitation", client.call_tool("test_elicitation", {"message": "Tell me"}))

    async def reading(self) -> None:
        for uri in (
            "test://static-text",
            "test://static-binary",
            "test://template/123/data",
            "test://nothing",
        ):
            await self.attempt(uri, self.client.read_resource(uri))
        await self.attempt(
            "complete_template",
            self.client.complete(
                ResourceTemplateReference(type="ref/resource", uri="test://template/{id}/data"),
                {"name": "id", "value": "7"},
            ),
        )

    async def prompting(self) -> None:
        client = self.client
        await self.attempt("test_simple_prompt", client.get_prompt("test_simple_prompt"))
        arguments = {"arg1": "one", "arg2": "two"}
        await self.attempt(
            "test_prompt_with_arguments", client.get_prompt("test_prompt_with_arguments", arguments)
        )
        await self.attempt(
            "complete_prompt",
            client.complete(
                PromptReference(type="ref/prompt", name="test_prompt_with_arguments"),
                {"name": "arg1", "value": "par"},
            ),
        )

    async def cancelling(self) -> None:
        """Gives a call up in the middle, and waits until the server says that it noticed."""
        running = anyio.Event()

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            running.set()

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                arguments = {"seconds": 60.0, "steps": 1000}
                group.start_soon(self.client.call_tool, "sleep", arguments, None, on_progress)
                await running.wait()
                group.cancel_scope.cancel()
        with anyio.move_on_after(PATIENCE):
            while (await self.activity())["sleeping"] > 0:  # noqa: ASYNC110 - only asking can tell
                await anyio.sleep(0.02)
        self.report["activity"] = await self.activity()

    async def activity(self) -> dict[str, int]:
        result = await self.client.call_tool("activity", {})
        return json.loads(result.content[0].text)

    async def subscribing(self) -> None:
        client, report = self.client, self.report
        if client.protocol_version >= "2026":
            async with client.listen(resource_subscriptions=[WATCHED]) as subscription:
                report["honored"] = plain(subscription.honored)
                await client.call_tool("touch", {"text": "modern touch"})
                if WATCHED in report["honored"].get("resourceSubscriptions", ()):
                    with anyio.fail_after(PATIENCE):
                        event = await subscription.__anext__()
                    report["event"] = [type(event).__name__, event.uri]
        else:
            await self.attempt("subscribe", client.subscribe_resource(WATCHED))
            await client.call_tool("touch", {"text": "legacy touch"})
            with anyio.move_on_after(0 if "error" in report["subscribe"] else PATIENCE):
                while "notifications/resources/updated" not in report["notified"]:  # noqa: ASYNC110 - simplest
                    await anyio.sleep(0.01)
            await self.attempt("unsubscribe", client.unsubscribe_resource(WATCHED))
        await self.attempt("watched", client.read_resource(WATCHED))

    async def together(self) -> None:
        """Fifty calls at once on the one connection: each gets its own answer."""
        answers: dict[int, str] = {}

        async def one(number: int) -> None:
            result = await self.client.call_tool("echo", {"message": f"message {number}"})
            answers[number] = result.content[0].text

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)
        self.report["together"] = all(answers[number] == f"message {number}" for number in range(50))


async def main() -> None:
    with anyio.fail_after(LIMIT):
        report = await Drive(*sys.argv[1:]).run()
    print(json.dumps(report))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK warns about every feature that the newest revision deprecates
    anyio.run(main)
