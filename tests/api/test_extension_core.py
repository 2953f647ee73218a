"""An extension that one revision has in its core: there that revision's rules hold, elsewhere those of extensions."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_actors import Client, Context, Server
from mcp_actors.errors import MethodNotFound, MissingCapability, RpcError
from mcp_actors.extensions import AskedRequest, ClientExtension, ServerExtension
from mcp_actors.types import CreateMessageResult, TextContent

from .peers import EVERY, LEGACY, MODERN

ID = "io.modelcontextprotocol/tasks"
CORE = "2025-11-25"
GONE = {"tasks/get", "tasks/cancel"}


def tasks(core: dict[str, Any]) -> ServerExtension:
    extension = ServerExtension(ID, core=core)

    async def answer(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"method": ctx.method}

    for name in ("tasks/get", "tasks/cancel"):
        extension.method(name, target="taskId")(answer)
    for name in ("tasks/list", "tasks/result"):
        extension.method(name, target="taskId", core=True)(answer)
    return extension


async def answered(client: Client) -> dict[str, str]:
    answers = {}
    for name in ("tasks/get", "tasks/cancel", "tasks/list", "tasks/result"):
        try:
            answers[name] = (await client.request(name, {"taskId": "1"}))["method"]
        except RpcError as error:
            answers[name] = type(error).__name__
    return answers


@pytest.mark.parametrize("version", EVERY)
@pytest.mark.parametrize("declares", [True, False])
async def test_each_revision_has_its_own_methods(version: str, declares: bool) -> None:
    server = Server("s", extensions=[tasks({"tasks": {"list": {}, "cancel": {}}})])
    extensions = {ID: {}} if declares else {}
    async with Client(server, era=version, extensions=extensions, tasks=False) as client:
        answers = await answered(client)
        declared = client.server_capabilities.tasks
    refusal = MissingCapability.__name__ if version == MODERN else MethodNotFound.__name__
    every = {name: name for name in answers}
    expected = {
        name: name if declares and name in GONE else (refusal if name in GONE else "MethodNotFound")
        for name in answers
    }
    assert answers == (every if version == CORE else expected)
    assert declared == ({"list": {}, "cancel": {}} if version == CORE else None)


async def test_what_the_core_capability_leaves_out_is_no_method() -> None:
    server = Server("s", extensions=[tasks({"tasks": {"cancel": {}}})])
    async with Client(server, era=CORE) as client:
        answers = await answered(client)
    assert [name for name, answer in answers.items() if answer == "MethodNotFound"] == ["tasks/list"]


async def test_without_the_core_capability_the_extension_is_negotiated() -> None:
    server = Server("s", extensions=[tasks({})])
    async with Client(server, era=CORE, extensions={ID: {}}) as client:
        assert set((await answered(client)).values()) == {"MethodNotFound"}


@pytest.mark.parametrize("version", LEGACY)
async def test_a_client_declares_the_core_where_there_is_one_and_answers_it(version: str) -> None:
    extension = ClientExtension(ID, core={"tasks": {"list": {}}})

    @extension.method("tasks/list")
    async def listed(request: AskedRequest) -> dict[str, Any]:
        return {"tasks": [], "asked": dict(request.params)}

    server = Server("s")
    seen: list[Any] = []

    @server.tool
    async def ask(ctx: Context) -> None:
        """Asks the client for its tasks."""
        seen.append(ctx.peer.raw_capabilities.get("tasks"))
        try:
            seen.append(await ctx.call.ask("tasks/list", {"cursor": "x"}, idle=5, cap=5))
        except MethodNotFound:
            seen.append("MethodNotFound")

    async with Client(server, era=version, extensions=[extension]) as client:
        await client.call_tool("ask")
    has_core = [{"list": {}}, {"tasks": [], "asked": {"cursor": "x"}}]
    assert seen == (has_core if version == CORE else [None, "MethodNotFound"])


async def test_a_function_runs_round_a_request_of_the_server() -> None:
    extension = ClientExtension(ID, core={"tasks": {}})
    kept: list[Any] = []

    @extension.around("sampling/createMessage", when=lambda params: "task" in params)
    async def around(request: AskedRequest, call_next: Any) -> dict[str, Any]:
        kept.append(await call_next())
        return {"task": {"taskId": "1"}}

    async def sampling(question: Any) -> Any:
        from_server.append(question.max_tokens)
        return CreateMessageResult("assistant", TextContent("hi"), "model")

    from_server: list[int] = []
    server = Server("s")
    answers: list[Any] = []

    @server.tool
    async def ask(ctx: Context) -> None:
        """Asks the client's model, as a task and plainly."""
        question = {"messages": [], "maxTokens": 5}
        answers.append(await ctx.call.ask("sampling/createMessage", {**question, "task": {}}, idle=5, cap=5))
        answers.append(await ctx.call.ask("sampling/createMessage", question, idle=5, cap=5))

    async with Client(server, era=CORE, extensions=[extension], sampling=sampling) as client:
        await client.call_tool("ask")
    assert from_server == [5, 5]
    assert answers[0] == {"task": {"taskId": "1"}}
    assert answers[1] == kept[0]
