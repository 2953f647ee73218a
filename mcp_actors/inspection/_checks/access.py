"""Checks of a server that asks for authorization, without any credentials."""

from __future__ import annotations

from urllib.parse import urlsplit

from mcp_actors.auth.challenges import first_parameter, parse_challenges
from mcp_actors.auth.metadata import json_object
from mcp_actors.auth.urls import covers, protected_resource_urls, same_origin
from mcp_actors.inspection.answers import ServerAnswer, shown
from mcp_actors.inspection.http_conversation import HttpConversation
from mcp_actors.inspection.inspected import SpokenEra
from mcp_actors.inspection.rule import NotApplicable

__all__ = ["describes_itself", "metadata_urls", "refuses_by_401", "wrong_token"]


async def refuses_by_401(spoken: SpokenEra) -> list[str]:
    """A request without credentials is refused with 401."""
    status = spoken.handshake.status
    return [] if status == 401 else [f"a request without credentials was refused with HTTP {status}, not 401"]


async def wrong_token(spoken: SpokenEra) -> list[str]:
    """A token that the server never accepted is refused with 401."""
    headers = {"authorization": "Bearer mcp-actors-inspect-no-such-token"}
    answer = await spoken.conversation.ask("server/discover", headers=headers, keep=False)
    return (
        []
        if answer.status == 401
        else [f"a token that does not exist was answered by {answer.summary()}, not by 401"]
    )


def metadata_urls(spoken: SpokenEra) -> list[str]:
    """Returns the places of the metadata of the protected resource: that of the challenge, else the well-known ones."""
    challenges = parse_challenges([spoken.handshake.headers.get("www-authenticate", "")])
    named = first_parameter(challenges, "resource_metadata")
    url = spoken.server.url
    return [named] if named is not None else [] if url is None else protected_resource_urls(url)


async def describes_itself(spoken: SpokenEra) -> list[str]:
    """The metadata of the protected resource are where they belong, and name authorization servers."""
    url = spoken.server.url
    if url is None or not isinstance(spoken.conversation, HttpConversation):
        raise NotApplicable("it has no URL of HTTP")
    urls = metadata_urls(spoken)
    if not all(same_origin(each, url) for each in urls):
        raise NotApplicable("its metadata are at another origin, which is not asked")
    answer: ServerAnswer | None = None
    for each in urls:
        parts = urlsplit(each)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        answer = await spoken.conversation.exchange(
            "GET", {"accept": "application/json"}, None, "GET", path=path, keep=False
        )
        if answer.status == 200:
            break
    if answer is None or answer.status != 200:
        said = "nowhere" if answer is None else f"answered by {answer.summary()}"
        return [f"the metadata of the protected resource are {said}"]
    document = json_object(answer.body) or {}
    found = []
    servers = document.get("authorization_servers")
    if not isinstance(servers, list) or not servers:
        found.append(f"the metadata name as authorization_servers {shown(servers)}")
    resource = document.get("resource")
    if not isinstance(resource, str) or not covers(resource, url):
        found.append(f"the metadata are those of the resource {shown(resource)}")
    return found
