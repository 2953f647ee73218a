"""Checks of what a server does over HTTP: origins, headers, sessions, and authorization without any credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from mcp_actors._eras.modern import VERSION
from mcp_actors.auth.metadata import first_parameter, json_object, parse_challenges
from mcp_actors.auth.urls import covers, protected_resource_urls, same_origin
from mcp_actors.cli.inspect.conversation import Headers, ServerAnswer, make_meta, shown
from mcp_actors.cli.inspect.http_conversation import SESSION_HEADER, VERSION_HEADER, HttpConversation
from mcp_actors.cli.inspect.inspected import NotApplicable, SpokenEra, initialize
from mcp_actors.cli.inspect.message_checks import NO_NAME, NO_URI, cheapest
from mcp_actors.errors import HeaderMismatch, UnsupportedVersion

__all__ = [
    "describes_itself",
    "ended_sessions",
    "foreign_origin",
    "get_of_sessions",
    "get_without_sessions",
    "metadata_urls",
    "method_header",
    "missing_version_header",
    "name_header",
    "refuses_by_401",
    "session_needed",
    "version_header",
    "visible_session_id",
    "wrong_token",
    "wrong_version",
]


FOREIGN_ORIGIN = "http://mcp-actors-inspect.invalid"
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_MISMATCH = HeaderMismatch.CODE
NO_VERSION = "1999-12-31"


def _http(spoken: SpokenEra) -> HttpConversation:
    assert isinstance(spoken.conversation, HttpConversation)
    return spoken.conversation


async def foreign_origin(spoken: SpokenEra) -> list[str]:
    """A request of a page from elsewhere is refused with 403, at a server on this machine."""
    if not spoken.server.is_local:
        raise NotApplicable("a server that is not on this machine may let pages of every origin in")
    answer = await spoken.conversation.ask(cheapest(spoken), headers={"origin": FOREIGN_ORIGIN})
    if answer.status != 403:
        return [f"a request with the Origin {FOREIGN_ORIGIN} was answered by {answer.summary()}, not by 403"]
    return []


# -- With sessions -------------------------------------------------------------------------------------


async def visible_session_id(spoken: SpokenEra) -> list[str]:
    """A session id has visible ASCII characters only."""
    session = spoken.handshake.headers.get(SESSION_HEADER)
    if session is None:
        raise NotApplicable("it gives out no session ids")
    return [] if _VISIBLE.fullmatch(session) else ["the session id has characters outside of 0x21 to 0x7E"]


async def session_needed(spoken: SpokenEra) -> list[str]:
    """A request without a session id is refused with 400 where one was given out."""
    if _http(spoken).session is None:
        raise NotApplicable("it gives out no session ids")
    answer = await spoken.conversation.ask("ping", headers={SESSION_HEADER: None})
    if answer.status != 400 and answer.result is None:
        return [f"a request without a session id was answered by {answer.summary()}, not by 400"]
    return []


async def ended_sessions(spoken: SpokenEra) -> list[str]:
    """A request of a session that was ended is answered with 404."""
    async with spoken.server.fresh(spoken.era) as another:
        assert isinstance(another, HttpConversation)
        await initialize(another, spoken.era)
        if another.session is None:
            raise NotApplicable("it gives out no session ids")
        ended = await another.exchange("DELETE", another.headers(None, {}), None, "DELETE")
        if ended.status not in (200, 202, 204):
            raise NotApplicable(f"it ends no session at the wish of a client (HTTP {ended.status})")
        answer = await another.ask("ping")
        another.session = None
    if answer.status != 404:
        return [f"a request of a session that was ended was answered by {answer.summary()}, not by 404"]
    return []


async def wrong_version(spoken: SpokenEra) -> list[str]:
    """A version header that names no version is refused with 400."""
    answer = await spoken.conversation.ask("ping", headers={VERSION_HEADER: NO_VERSION})
    if answer.status != 400:
        return [
            f"the header MCP-Protocol-Version: {NO_VERSION} was answered by {answer.summary()}, not by 400"
        ]
    return []


async def get_of_sessions(spoken: SpokenEra) -> list[str]:
    """A GET is answered with a stream of events or with 405."""
    answer = await _http(spoken).exchange(
        "GET", _http(spoken).headers(None, {}), None, "GET", enough=lambda _: True
    )
    if answer.status == 405 or (answer.status == 200 and answer.media_type == "text/event-stream"):
        return []
    return [f"a GET was answered by {answer.summary()}, neither with a stream of events nor with 405"]


# -- Without sessions ----------------------------------------------------------------------------------


async def get_without_sessions(spoken: SpokenEra) -> list[str]:
    """GET and DELETE are answered with 405."""
    if len(spoken.server.spoken) > 1:
        raise NotApplicable("it speaks revisions with sessions too")
    found = []
    for verb in ("GET", "DELETE"):
        answer = await _http(spoken).exchange(
            verb, _http(spoken).headers(None, {}), None, verb, enough=lambda _: True
        )
        if answer.status != 405:
            found.append(f"{verb} was answered by {answer.summary()}, not by 405")
    return found


async def _refused(
    spoken: SpokenEra, method: str, headers: Headers, what: str, params: Mapping[str, str] | None = None
) -> list[str]:
    answer = await spoken.conversation.ask(method, params, headers=headers)
    if answer.status == 400 and answer.code == _MISMATCH:
        return []
    return [f"{what} was answered by {answer.summary()}, not by HTTP 400 with {_MISMATCH}"]


async def version_header(spoken: SpokenEra) -> list[str]:
    """A version header that differs from the body is refused."""
    meta = {**make_meta(spoken.era), VERSION: NO_VERSION}
    answer = await spoken.conversation.ask("server/discover", meta=meta)
    # The version of the body is one that no server speaks, and both rules apply.
    if answer.status == 400 and answer.code in (_MISMATCH, UnsupportedVersion.CODE):
        return []
    return [f"a version header that differs from the body was answered by {answer.summary()}"]


async def missing_version_header(spoken: SpokenEra) -> list[str]:
    """A request without the version header is refused by a server that does not speak the revisions without it."""
    if len(spoken.server.spoken) > 1:
        raise NotApplicable("it speaks revisions with sessions too, some of which have no such header")
    what = "a request without the version header"
    return await _refused(spoken, "server/discover", {VERSION_HEADER: None}, what)


async def method_header(spoken: SpokenEra) -> list[str]:
    """A header Mcp-Method that is missing or differs from the body is refused."""
    method = "server/discover"
    found = await _refused(
        spoken, method, {"mcp-method": "tools/list"}, "a header Mcp-Method that differs from the body"
    )
    return found + await _refused(
        spoken, method, {"mcp-method": None}, "a request without the header Mcp-Method"
    )


async def name_header(spoken: SpokenEra) -> list[str]:
    """A header Mcp-Name that is missing or differs from the body is refused."""
    if spoken.declares("prompts"):
        method, params = "prompts/get", {"name": NO_NAME}
    elif spoken.declares("resources"):
        method, params = "resources/read", {"uri": NO_URI}
    else:
        raise NotApplicable("it has no prompts and no resources, and tools are not called for this")
    what = f"{method} with a header Mcp-Name that differs from the body"
    found = await _refused(spoken, method, {"mcp-name": "another"}, what, params)
    what = f"{method} without the header Mcp-Name"
    return found + await _refused(spoken, method, {"mcp-name": None}, what, params)


# -- Servers that ask for authorization ----------------------------------------------------------------


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
    """The metadata of the protected resource is where it belongs, and names authorization servers."""
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
