"""The client that the official conformance suite drives: ``everything_client.py URL``.

The suite names the scenario in ``MCP_CONFORMANCE_SCENARIO``, the protocol revision in
``MCP_CONFORMANCE_PROTOCOL_VERSION`` and, for some scenarios, gives data in ``MCP_CONFORMANCE_CONTEXT`` (JSON).
Each scenario is one coroutine in ``SCENARIOS``; those of authorization have the default one and differ in how access is
had (``GRANTS``). The URL may have any scheme that has a binding. Exit code 0 is success.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
import trio

from mcp_actors import Client, McpError, RpcError
from mcp_actors.auth import AuthorizationCode, ClientCredentials, EnterpriseManaged, OAuth, WorkloadIdentity
from mcp_actors.auth.effects import RedirectAnswer
from mcp_actors.errors import LoginFailed
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
)

__all__ = ["SCENARIOS", "main", "play"]

LIMIT = 25.0
"""Seconds for a whole scenario: the suite kills after thirty and then says nothing about why."""

NUMBERS = {"a": 2, "b": 3}

Scenario = Callable[[Client, Mapping[str, Any]], Awaitable[None]]


async def accept_defaults(params: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    """Agrees and writes nothing: the client itself fills the defaults in."""
    return ElicitResult(action="accept", content={})


async def confirm(params: ElicitFormParams | ElicitUrlParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"confirmed": True})


async def decline_to_sample(params: CreateMessageParams) -> CreateMessageResult:
    raise RpcError(-1, "there is no model here")


async def list_tools(client: Client, context: Mapping[str, Any]) -> None:
    """Lists every page of tools and calls none."""
    async for _ in client.tools():
        pass


async def say_something(client: Client, context: Mapping[str, Any]) -> None:
    """One more request after the introduction: some of the suite's servers declare nothing that could be listed."""
    if client.server_capabilities.tools is not None:
        await list_tools(client, context)
    elif client.era == "legacy":
        await client.ping()
    else:
        await client.request("server/discover")


async def call_first_tool(client: Client, context: Mapping[str, Any]) -> None:
    """The default drive: list the tools, call the first."""
    tools = [tool async for tool in client.tools()]
    if tools:
        await client.call_tool(tools[0].name, NUMBERS)


async def call_add_numbers(client: Client, context: Mapping[str, Any]) -> None:
    await list_tools(client, context)
    await client.call_tool("add_numbers", NUMBERS)


async def call_with_elicitation(client: Client, context: Mapping[str, Any]) -> None:
    await list_tools(client, context)
    await client.call_tool("test_client_elicitation_defaults", {})


async def call_and_reconnect(client: Client, context: Mapping[str, Any]) -> None:
    await list_tools(client, context)
    await client.call_tool("test_reconnection", {})


async def several_requests(client: Client, context: Mapping[str, Any]) -> None:
    """Each of them must carry the metadata."""
    await say_something(client, context)
    await say_something(client, context)


async def rounds_with_state(client: Client, context: Mapping[str, Any]) -> None:
    """An unrelated call runs beside the rounds: nothing of theirs may show up in it."""
    await list_tools(client, context)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "test_mrtr_echo_state", {})
        nursery.start_soon(client.call_tool, "test_mrtr_unrelated", {})
    await client.call_tool("test_mrtr_no_state", {})
    await client.call_tool("test_mrtr_unrelated", {})
    await client.call_tool("test_mrtr_no_result_type", {})


async def tools_resources_prompts(client: Client, context: Mapping[str, Any]) -> None:
    for tool in [tool async for tool in client.tools()]:
        await client.call_tool(tool.name, {})
    for resource in [resource async for resource in client.resources()]:
        await client.read_resource(resource.uri)
    for prompt in [prompt async for prompt in client.prompts()]:
        await client.get_prompt(prompt.name, {argument.name: "value" for argument in prompt.arguments or ()})


async def calls_from_context(client: Client, context: Mapping[str, Any]) -> None:
    await list_tools(client, context)
    for call in context.get("toolCalls", ()):
        await client.call_tool(call["name"], call["arguments"])


async def call_every_tool(client: Client, context: Mapping[str, Any]) -> None:
    """Those with malformed header annotations are not listed by the client, so they are not called."""
    for tool in [tool async for tool in client.tools()]:
        await client.call_tool(tool.name, dict.fromkeys(tool.input_schema.get("required", ()), "value"))


async def echo_schema(client: Client, context: Mapping[str, Any]) -> None:
    """Sends the schema back as it came, keyword for keyword."""
    schemas = {tool.name: tool.input_schema async for tool in client.tools()}
    await client.call_tool("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})


async def list_skills(client: Client, context: Mapping[str, Any]) -> None:
    """Lists what there is, and reads none of it."""
    async for _ in client.skills():
        pass


async def load_skills(client: Client, context: Mapping[str, Any]) -> None:
    """Loads each skill with all of its files: one that cannot be verified ends the client."""
    for skill in [skill async for skill in client.skills()]:
        await client.load_skill(skill)
        for each in skill.resources:
            await client.read_skill_file(skill, each.uri)


SCENARIOS: dict[str, Scenario] = {
    "initialize": say_something,
    "tools_call": call_add_numbers,
    "elicitation-sep1034-client-defaults": call_with_elicitation,
    "sse-retry": call_and_reconnect,
    "request-metadata": several_requests,
    "sep-2322-client-request-state": rounds_with_state,
    "http-standard-headers": tools_resources_prompts,
    "http-custom-headers": calls_from_context,
    "http-invalid-tool-headers": call_every_tool,
    "json-schema-ref-no-deref": list_tools,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2640-client-no-prefetch": list_skills,
    "sep-2640-client-verify-digest": load_skills,
    "sep-2640-client-verify-frontmatter": load_skills,
    "sep-2640-client-verify-size": load_skills,
}

HANDLERS: dict[str, dict[str, Any]] = {
    "elicitation-sep1034-client-defaults": {"elicitation": accept_defaults},
    "request-metadata": {"elicitation": confirm, "sampling": decline_to_sample, "roots": ["file:///tmp"]},
    "sep-2322-client-request-state": {"elicitation": confirm},
}
"""What the client of a scenario answers; each handler is also a declared capability."""


# Nobody serves this document: the suite wants to see its URL as the client id.
CLIENT_METADATA_URL = "https://conformance-test.local/client-metadata.json"


class FollowedRedirects:
    """A browser without a person: the suite's login page asks nothing and redirects at once. A `Browser`."""

    uri = "http://127.0.0.1:3000/callback"

    @asynccontextmanager
    async def open_redirect(self, registered: Sequence[str] = ()) -> AsyncIterator[FollowedRedirects]:
        yield self

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        async with httpx2.AsyncClient() as browser:
            while not url.startswith(self.uri):
                response = await browser.get(url)
                url = urljoin(url, response.headers["location"])
        answer = parse_qsl(urlsplit(url).query)
        if not accepts(answer):
            raise LoginFailed("the answer belongs to another login")
        return answer


def log_in(context: Mapping[str, Any]) -> OAuth:
    """The default: a login, as a client that was registered beforehand if the scenario has such a one."""
    known = {name: context[name] for name in ("client_id", "client_secret", "issuer") if name in context}
    return OAuth(
        AuthorizationCode(browser=FollowedRedirects(), client_metadata_url=CLIENT_METADATA_URL, **known)
    )


def log_in_registered(context: Mapping[str, Any]) -> OAuth:
    """A login of a client that registers itself, for a scenario that looks at what it says of itself there."""
    return OAuth(AuthorizationCode(browser=FollowedRedirects()))


def use_secret(context: Mapping[str, Any]) -> OAuth:
    return OAuth(ClientCredentials(client_id=context["client_id"], client_secret=context["client_secret"]))


def use_private_key(context: Mapping[str, Any]) -> OAuth:
    return OAuth(
        ClientCredentials(
            client_id=context["client_id"],
            private_key=context["private_key_pem"],
            algorithm=context["signing_algorithm"],
        )
    )


def ask_the_enterprise(context: Mapping[str, Any]) -> OAuth:
    names = ("idp_issuer", "idp_token_endpoint", "idp_client_id", "client_id", "client_secret")
    given = {name: context[name] for name in names}
    return OAuth(EnterpriseManaged(id_token=lambda: str(context["idp_id_token"]), **given))


def ask_the_platform(context: Mapping[str, Any]) -> OAuth:
    valid = str(context["valid_jwt"])
    return OAuth(WorkloadIdentity(assertion=lambda audience: valid, client_id=context["client_id"]))


GRANTS: dict[str, Callable[[Mapping[str, Any]], OAuth]] = {
    "auth/client-credentials-jwt": use_private_key,
    "auth/client-credentials-basic": use_secret,
    "auth/enterprise-managed-authorization": ask_the_enterprise,
    "auth/offline-access-scope": log_in_registered,
    "auth/wif-jwt-bearer": ask_the_platform,
}
"""The scenarios of authorization in which nobody logs in, or not by the default."""


def authorization(scenario: str, context: Mapping[str, Any]) -> OAuth | None:
    return GRANTS.get(scenario, log_in)(context) if scenario.startswith("auth/") else None


async def play(url: str, scenario: str, version: str | None, context: Mapping[str, Any]) -> None:
    """Plays one scenario against ``url``.

    Raises what the client raises, and ``TooSlowError`` after ``LIMIT`` seconds.
    """
    drive = SCENARIOS.get(scenario, call_first_tool)
    auth = authorization(scenario, context)
    with trio.fail_after(LIMIT):
        async with Client(url, era=version or "auto", auth=auth, **HANDLERS.get(scenario, {})) as client:
            await drive(client, context)


def main(argv: list[str], environment: Mapping[str, str]) -> int:
    """Reads the scenario from the environment and plays it; 1 for a failure, 2 for wrong usage."""
    if len(argv) != 2:
        print("usage: everything_client.py URL", file=sys.stderr)
        return 2
    scenario = environment.get("MCP_CONFORMANCE_SCENARIO", "initialize")
    version = environment.get("MCP_CONFORMANCE_PROTOCOL_VERSION")
    context = json.loads(environment.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    try:
        trio.run(play, argv[1], scenario, version, context)
    except (McpError, trio.TooSlowError) as error:
        print(f"{scenario}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv, os.environ))
