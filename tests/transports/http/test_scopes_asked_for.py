"""Handlers that find out for themselves that a scope is missing, and methods of the program's own that need scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mcp_actors import Context
from mcp_actors.errors import InsufficientScope, RpcError
from tests import messages
from tests.messages import INITIALIZED, LEGACY, MODERN
from tests.transports.http.protected import bearer, lacking, protected_site
from tests.transports.http.site import Site, call, initialize, message_of, modern, text

METHOD = "acme/publish"


@asynccontextmanager
async def asking_site(**options: Any) -> AsyncIterator[Site]:
    async with protected_site(**options) as at:

        @at.server.tool
        async def save(folder: str, ctx: Context) -> str:
            assert ctx.principal is not None
            if f"files:{folder}" not in ctx.principal.scopes:
                raise InsufficientScope({f"files:{folder}"})
            return "saved"

        @at.server.tool
        async def slow_save(ctx: Context) -> str:
            await ctx.progress(1)
            raise InsufficientScope({"files:write"})

        @at.server.tool
        async def upstream() -> str:
            raise RpcError.from_wire(
                403, "the access token lacks a scope", {"scopes": ["admin:everything"], "reason": "x"}
            )

        @at.server.method(METHOD, scopes=["files:write"])
        async def publish(params: dict[str, Any], ctx: Context) -> dict[str, Any]:
            at.ends.append("published")
            return {"published": params["what"]}

        yield at


async def opened(at: Site) -> str:
    session = (await at.post(initialize(LEGACY), **bearer("ann"))).headers["mcp-session-id"]
    await at.post(INITIALIZED, session, **bearer("ann"))
    return str(session)


async def in_era(at: Site, era: str, name: str, **arguments: Any) -> tuple[Any, dict[str, str]]:
    if era == "modern":
        return modern(1, name, **arguments)
    return call(1, name, **arguments), {"mcp-session-id": await opened(at)}


@pytest.mark.parametrize("json_replies", [False, True])
@pytest.mark.parametrize(
    ("era", "challenge"),
    [("modern", "files:write mcp:use"), ("legacy", "files:write mcp:use files:read")],
)
async def test_a_scope_that_a_handler_misses_is_challenged(
    era: str, challenge: str, json_replies: bool
) -> None:
    async with asking_site(json_replies=json_replies) as at:
        message, headers = await in_era(at, era, "save", folder="write")
        refused = await at.post(message, **headers, **bearer("ann"))
        assert (refused.status_code, refused.headers.get_list("www-authenticate")) == (
            403,
            [lacking(challenge)],
        )
        assert refused.headers["cache-control"] == "no-store"
        assert refused.json()["id"] == 1
        error = refused.json()["error"]
        assert error["data"] == {"reason": "insufficient_scope", "scopes": ["files:write"]}
        # The step-up leads to a token with which the same call is served.
        served = await at.post(message, **headers, **bearer("ann-more"))
        assert text(served.json()) == "saved"


async def test_a_scope_that_is_missing_after_the_stream_has_begun_is_an_error_in_it() -> None:
    async with asking_site() as at:
        message, headers = modern(1, "slow_save")
        async with at.stream("POST", message, **headers, **bearer("ann")) as events:
            assert (await message_of(events))["method"] == "notifications/progress"
            assert (await message_of(events))["error"]["data"]["scopes"] == ["files:write"]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_scopes_of_another_server_are_not_asked_of_our_callers(era: str) -> None:
    async with asking_site() as at:
        message, headers = await in_era(at, era, "upstream")
        refused = await at.post(message, **headers, **bearer("ann"))
        assert refused.json()["error"]["code"] == 403
        assert "www-authenticate" not in refused.headers


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_method_of_the_programs_own_needs_its_scopes(era: str) -> None:
    params = {"what": "a page"}
    async with asking_site() as at:
        if era == "modern":
            message = messages.modern_request(1, METHOD, params)
            headers = {"mcp-protocol-version": MODERN, "mcp-method": METHOD}
            scopes = "files:write mcp:use"
        else:
            message, headers = messages.request(1, METHOD, params), {"mcp-session-id": await opened(at)}
            scopes = "files:write mcp:use files:read"
        refused = await at.post(message, **headers, **bearer("ann"))
        assert (refused.status_code, refused.headers["www-authenticate"]) == (403, lacking(scopes))
        assert at.ends == []
        served = await at.post(message, **headers, **bearer("ann-more"))
        assert served.json()["result"]["published"] == "a page"


def test_scopes_are_a_list() -> None:
    with pytest.raises(TypeError, match="give a set or a list"):
        InsufficientScope("files:write")
