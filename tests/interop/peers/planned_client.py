"""Clients of the official Python SDK and of FastMCP do what a plan says, over HTTP, all at once.

Usage: planned_client.py < connections.json, a list of {kind: "python"|"fastmcp", mode: "legacy"|"auto", url, plan}.
A plan is a list of steps, each of which is a key for the report, a method of `Conversation` and its arguments. It
prints a list of reports in the order of the connections. The environment has the packages of the kinds that are asked
for, and nothing of ours.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import anyio
from mcp import Client, MCPError
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

LIMIT = 280.0  # seconds for everything
PATIENCE = 40.0  # seconds until something that was promised must have happened
ROOT = "file:///home/peer"
KEY = "mcp-actors/key"
REFERENCES = {"ref/prompt": PromptReference, "ref/resource": ResourceTemplateReference}


def plain(model: Any) -> Any:
    """What went over the wire, as JSON."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class User:
    """A person, a model, a log window, and the report about them."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {"logs": [], "asked": [], "updated": [], "steps": {}}

    async def sample(self, *args: Any) -> CreateMessageResult:
        self.report["asked"].append("sampling/createMessage")
        return CreateMessageResult(
            role="assistant", content=TextContent(type="text", text="I am the model"), model="fake-1"
        )

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.report["asked"].append("elicitation/create")
        names = params.requested_schema["required"]
        return ElicitResult(action="accept", content={name: f"my {name}" for name in names})

    async def roots(self, context: Any) -> ListRootsResult:
        self.report["asked"].append("roots/list")
        return ListRootsResult(roots=[Root(uri=ROOT)])

    async def log(self, params: Any) -> None:
        self.report["logs"].append(params.data)

    async def notified(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/resources/updated":
            self.report["updated"].append(str(message.params.uri))


class Conversation:
    """One connection of the official client."""

    def __init__(self, mode: str, url: str) -> None:
        self.user = User()
        self.client: Any = Client(
            streamable_http_client(url),
            mode=mode,
            read_timeout_seconds=LIMIT,
            log_level="info",
            sampling_callback=self.user.sample,
            elicitation_callback=self.user.elicit,
            list_roots_callback=self.user.roots,
            logging_callback=self.user.log,
            message_handler=self.user.notified,
        )

    async def run(self, plan: list[Any]) -> dict[str, Any]:
        report = self.user.report
        async with self.client:
            report["version"] = self.client.protocol_version
            if report["version"] < "2026":
                await self.client.set_logging_level("info")
            for key, method, *args in plan:
                try:
                    report["steps"][key] = await getattr(self, method)(*args)
                except MCPError as error:
                    told = {"code": error.code, "message": error.message, "data": error.error.data}
                    report["steps"][key] = {"error": told}
        return report

    async def list(self) -> dict[str, Any]:
        client = self.client
        return {
            "tools": [each.name for each in (await client.list_tools()).tools],
            "resources": [str(each.uri) for each in (await client.list_resources()).resources],
            "templates": [
                each.uri_template for each in (await client.list_resource_templates()).resource_templates
            ],
            "prompts": [each.name for each in (await client.list_prompts()).prompts],
        }

    async def make(self, name: str, arguments: dict[str, Any], on_progress: Any = None) -> Any:
        return await self.client.call_tool(name, arguments, progress_callback=on_progress)

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        reported: list[Any] = []

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            reported.append([done, total])

        return {**plain(await self.make(name, arguments, on_progress)), "reported": reported}

    async def keyed(self, name: str, arguments: dict[str, Any], key: str) -> dict[str, Any]:
        return plain(await self.client.call_tool(name, arguments, meta={KEY: key}))

    async def cancel(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with anyio.CancelScope() as scope:

            async def on_progress(done: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await self.make(name, arguments, on_progress)
        return {"ended": "cancelled" if scope.cancelled_caught else "returned"}

    async def read(self, uri: str) -> Any:
        return plain(await self.client.read_resource(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return plain(await self.client.get_prompt(name, arguments))

    async def complete(self, ref: dict[str, Any], argument: dict[str, str]) -> Any:
        return plain(await self.client.complete(REFERENCES[ref["type"]].model_validate(ref), argument))

    async def subscribe(
        self, uri: str, name: str, arguments: dict[str, Any], is_told: bool = True
    ) -> dict[str, Any]:
        """Subscribes, calls the tool that changes the resource, and waits until that is told, if it is."""
        updated = self.user.report["updated"]
        if self.client.protocol_version < "2026":
            await self.client.subscribe_resource(uri)
            await self.make(name, arguments)
            with anyio.move_on_after(PATIENCE):
                while uri not in updated:  # noqa: ASYNC110 - simplest
                    await anyio.sleep(0.01)
            await self.client.unsubscribe_resource(uri)
            return {"honored": True, "updated": uri in updated}
        async with self.client.listen(resource_subscriptions=[uri]) as subscription:
            honored = uri in plain(subscription.honored).get("resourceSubscriptions", ())
            await self.make(name, arguments)
            event = None
            if honored and is_told:
                with anyio.move_on_after(PATIENCE):
                    event = await subscription.__anext__()
        return {"honored": honored, "updated": event is not None and str(event.uri) == uri}


class FastConversation(Conversation):
    """One connection of FastMCP's client, which has no subscriptions."""

    def __init__(self, mode: str, url: str) -> None:
        import fastmcp

        self.user = User()
        self.client = fastmcp.Client(
            url,
            mode=mode,
            timeout=LIMIT,
            sampling_handler=self.user.sample,
            elicitation_handler=self.fill,
            log_handler=self.user.log,
            message_handler=self.user.notified,
            roots=self.list_roots,
        )

    async def fill(self, message: str, kind: Any, params: Any, context: Any) -> Any:
        answer = await self.user.elicit(context, params)
        return answer.content

    async def list_roots(self, context: Any) -> Any:
        return (await self.user.roots(context)).roots

    async def list(self) -> dict[str, Any]:
        client = self.client
        return {
            "tools": [each.name for each in await client.list_tools()],
            "resources": [str(each.uri) for each in await client.list_resources()],
            "templates": [each.uri_template for each in await client.list_resource_templates()],
            "prompts": [each.name for each in await client.list_prompts()],
        }

    async def keyed(self, name: str, arguments: dict[str, Any], key: str) -> dict[str, Any]:
        return plain(await self.client.call_tool_mcp(name, arguments, meta={KEY: key}))

    async def make(self, name: str, arguments: dict[str, Any], on_progress: Any = None) -> Any:
        return await self.client.call_tool_mcp(name, arguments, progress_handler=on_progress)

    async def read(self, uri: str) -> Any:
        return plain(await self.client.read_resource_mcp(uri))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return plain(await self.client.get_prompt_mcp(name, arguments))

    async def complete(self, ref: dict[str, Any], argument: dict[str, str]) -> Any:
        return plain(await self.client.complete_mcp(REFERENCES[ref["type"]].model_validate(ref), argument))

    async def subscribe(
        self, uri: str, name: str, arguments: dict[str, Any], is_told: bool = True
    ) -> dict[str, Any]:
        return {"honored": False, "updated": False}


KINDS = {"python": Conversation, "fastmcp": FastConversation}


async def main() -> None:
    connections = json.load(sys.stdin)
    reports: list[Any] = [None] * len(connections)

    async def one(number: int, connection: dict[str, Any]) -> None:
        conversation = KINDS[connection["kind"]](connection["mode"], connection["url"])
        reports[number] = await conversation.run(connection["plan"])

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as group:
            for number, connection in enumerate(connections):
                group.start_soon(one, number, connection)
    print(json.dumps(reports))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the SDK warns about every feature that the newest revision deprecates
    anyio.run(main)
