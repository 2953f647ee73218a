"""Tools that ask the client for something while they run, tools that become tasks, and tools that change the offer.

Each is written once. For a client of the legacy era an ``await`` here is a request to it; for one of the modern
era the call ends with an input-required result, and the function runs again, from the top, once the answers are
there.
"""

from __future__ import annotations

import json
from typing import Any

import trio

from mcp_actors import Context, RpcError, ToolError
from mcp_actors.examples.everything.app import server
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ListRootsParams,
    SamplingMessage,
    TextContent,
)

__all__ = ["APPEARING_PROMPT", "APPEARING_TOOL", "ask_for_a_name"]


APPEARING_TOOL = "appearing_tool"
APPEARING_PROMPT = "appearing_prompt"


def form(required: list[str] | None = None, **properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of a form; every property is required unless ``required`` says otherwise."""
    if required is None:
        required = list(properties)
    return {"type": "object", "properties": properties, "required": required}


def field(answer: ElicitResult, name: str) -> str:
    """Returns what the user wrote into that field, or says that there is nothing."""
    return str((answer.content or {}).get(name, "nobody"))


def said(message: CreateMessageResult) -> str:
    """The text of the model's answer."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    return " ".join(block.text for block in blocks if isinstance(block, TextContent)) or "No response"


def outcome(answer: ElicitResult) -> str:
    return f"action={answer.action}, content={json.dumps(answer.content or {}, sort_keys=True)}"


@server.tool
async def test_sampling(prompt: str, *, ctx: Context) -> str:
    """Asks the client's model to continue the prompt."""
    return f"LLM response: {said(await ctx.sample(prompt, max_tokens=100))}"


@server.tool
async def test_elicitation(message: str, *, ctx: Context) -> str:
    """Asks the user for a name and an address."""
    schema = form(
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    return f"User response: {outcome(await ctx.elicit(message, schema))}"


@server.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with a default for each primitive type."""
    schema = form(
        [],
        name={"type": "string", "description": "User name", "default": "John Doe"},
        age={"type": "integer", "description": "User age", "default": 30},
        score={"type": "number", "description": "User score", "default": 95.5},
        status={
            "type": "string",
            "description": "User status",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        verified={"type": "boolean", "description": "Verification status", "default": True},
    )
    answer = await ctx.elicit("Please review and update the form fields with defaults", schema)
    return f"Elicitation completed: {outcome(answer)}"


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks for a choice in each of the five forms that a choice may have."""
    plain = ["option1", "option2", "option3"]
    titles = ("First Option", "Second Option", "Third Option")
    titled = [{"const": f"value{number}", "title": title} for number, title in enumerate(titles, 1)]
    schema = form(
        [],
        untitledSingle={"type": "string", "description": "Select one option", "enum": plain},
        titledSingle={"type": "string", "description": "Select one option by title", "oneOf": titled},
        legacyEnum={
            "type": "string",
            "description": "Select one option, titled in the old way",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        untitledMulti={
            "type": "array",
            "description": "Select several options",
            "minItems": 1,
            "maxItems": 3,
            "items": {"type": "string", "enum": plain},
        },
        titledMulti={
            "type": "array",
            "description": "Select several options by title",
            "minItems": 1,
            "maxItems": 3,
            "items": {"anyOf": titled},
        },
    )
    answer = await ctx.elicit("Please select options from the enum fields", schema)
    return f"Elicitation completed: {outcome(answer)}"


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Reports progress, then asks."""
    await ctx.progress(50, 100, "about to ask")
    answer = await ctx.elicit("Go on?", form(ok={"type": "boolean"}), key="go_on")
    return f"Streaming complete: {outcome(answer)}"


@server.tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Asks for a name and greets."""
    answer = await ctx.elicit("What is your name?", form(name={"type": "string"}), key="user_name")
    return f"Hello, {field(answer, 'name')}!"


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Asks the client's model for a capital."""
    answer = await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")
    return f"The model says: {said(answer)}"


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Asks which folders the client works on."""
    roots = await ctx.list_roots(key="client_roots")
    return f"{len(roots)} root(s): {', '.join(root.uri for root in roots)}"


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Asks for a confirmation; what the server must remember meanwhile travels with the question."""
    answer = await ctx.elicit("Please confirm", form(ok={"type": "boolean"}), key="confirm")
    return f"state-ok: {outcome(answer)}"


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Asks for a confirmation; state that somebody changed on the way is refused."""
    answer = await ctx.elicit("Please confirm", form(ok={"type": "boolean"}), key="confirm")
    return f"integrity-ok: {outcome(answer)}"


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Asks for three things at once."""
    answers = await ctx.ask(
        {
            "user_name": ElicitFormParams(
                message="What is your name?", requested_schema=form(name={"type": "string"})
            ),
            "greeting": CreateMessageParams(
                messages=[SamplingMessage(role="user", content=TextContent(text="Generate a greeting"))],
                max_tokens=50,
            ),
            "client_roots": ListRootsParams(),
        }
    )
    name, greeting = field(answers["user_name"], "name"), said(answers["greeting"])
    return f"Name: {name}; Greeting: {greeting}; Roots: {len(answers['client_roots'].roots)}"


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Asks twice, one question after the other."""
    text = {"type": "string"}
    name = await ctx.elicit("Step 1: What is your name?", form(name=text), key="step1")
    color = await ctx.elicit("Step 2: What is your favorite color?", form(color=text), key="step2")
    return f"{field(name, 'name')} likes {field(color, 'color')}"


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Asks only for what the client said that it can answer."""
    questions: dict[str, ElicitFormParams | CreateMessageParams] = {}
    if ctx.peer.capabilities.elicitation is not None:
        questions["elicit_input"] = ElicitFormParams(
            message="Elicitation input", requested_schema=form(value={"type": "string"})
        )
    if ctx.peer.capabilities.sampling is not None:
        questions["sample_input"] = CreateMessageParams(
            messages=[SamplingMessage(role="user", content=TextContent(text="Sample request"))], max_tokens=50
        )
    if not questions:
        return "No supported capabilities declared"
    answers = await ctx.ask(questions)
    return f"capabilities-ok: {', '.join(sorted(answers))}"


async def appeared() -> str:
    """A tool that comes and goes."""
    return "I was not always here"


@server.tool
async def test_trigger_tool_change(ctx: Context) -> str:
    """Adds a tool, or removes it when it is there."""
    if APPEARING_TOOL in ctx.server.tools:
        ctx.server.remove_tool(APPEARING_TOOL)
        return "removed"
    ctx.server.add_tool(appeared, name=APPEARING_TOOL)
    return "added"


@server.tool
async def test_trigger_prompt_change(ctx: Context) -> str:
    """Adds a prompt, or removes it when it is there."""
    if APPEARING_PROMPT in ctx.server.prompts:
        ctx.server.remove_prompt(APPEARING_PROMPT)
        return "removed"
    ctx.server.add_prompt(appeared, name=APPEARING_PROMPT)
    return "added"


# -- Tools whose calls become tasks, for clients that can do that (SEP-2663; MCP 2025-11-25, Tasks) ------

NAME = form(name={"type": "string", "description": "Your name"})
CONFIRM = form(confirm={"type": "boolean", "description": "Whether to go on"})


@server.tool
async def greet(name: str) -> str:
    """Greets somebody, at once."""
    return f"Hello, {name}!"


@server.tool(task="optional")
async def slow_compute(seconds: float = 1, label: str = "", *, ctx: Context) -> str:
    """Computes for some seconds, and says how far it is."""
    done = 0.0
    while done < seconds:
        step = min(1.0, seconds - done)
        await trio.sleep(step)
        done += step
        await ctx.progress(done, seconds)
    return f"Computed {label} for {seconds:g} seconds"


@server.tool(task="required")
async def failing_job() -> str:
    """Fails in a way that the model should see."""
    raise ToolError("This job always fails")


@server.tool(task="required")
async def protocol_error_job() -> str:
    """Fails with an error of the protocol."""
    raise RpcError(-32603, "This job ends with a protocol error")


@server.tool(task="optional")
async def confirm_delete(filename: str = "file.txt", *, ctx: Context) -> str:
    """Asks before it deletes a file; nothing is deleted in fact."""
    answer = await ctx.elicit(f"Delete {filename}?", CONFIRM, key="confirm")
    agreed = answer.action == "accept" and bool((answer.content or {}).get("confirm"))
    return f"Deleted {filename}" if agreed else f"Kept {filename}"


@server.tool(task="optional")
async def multi_input(*, ctx: Context) -> str:
    """Asks two things at once."""
    answers = await ctx.ask(
        {
            "first": ElicitFormParams(message="What is your first name?", requested_schema=NAME),
            "last": ElicitFormParams(message="What is your last name?", requested_schema=NAME),
        }
    )
    return f"Hello, {field(answers['first'], 'name')} {field(answers['last'], 'name')}!"


async def ask_for_a_name(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Runs before the task exists: it asks for what the client has left out."""
    if "user_name" in arguments:
        return arguments
    answer = await ctx.elicit("What is your name?", NAME, key="user_name")
    return {**arguments, "user_name": field(answer, "name")}


@server.tool(name="test_tool_with_task", task="required", before_task=ask_for_a_name)
async def greet_later(user_name: str | None = None) -> str:
    """Greets the person who was asked for a name before the task began."""
    await trio.sleep(0.1)
    return f"Hello, {user_name or 'nobody'}!"
