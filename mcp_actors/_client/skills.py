"""Skills of a server (SEP-2640): their entries, and their files, which are what the entries say or are not used.

Nothing is read before it is asked for. A file that was read is kept by its digest, so that it is read once; it is kept
in memory, where nobody else changes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.pages import AllPages
from mcp_actors._client.requests import Requests
from mcp_actors._eras.era import read_result
from mcp_actors._wire.skill_format import (
    MOST_BYTES,
    MOST_FILES,
    SKILLS,
    check_entry,
    digest_of,
    file_uri,
    is_same,
    path_of,
    read_frontmatter,
    relative,
)
from mcp_actors.errors import LocalProtocolError, RemoteProtocolError, SkillRefused
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable
from mcp_actors.types import ListResourcesResult, ReadResourceResult, Resource
from mcp_actors.types.skills import Skill, SkillResource

__all__ = ["ClientSkills", "SkillPage", "read_skill", "read_skill_page", "written_skill"]

# Characters of what a server sends that the log shows.
_SHOWN = 200


class SkillPage(NamedTuple):
    """One page of entries."""

    skills: list[Skill]
    next_cursor: str | None


class ClientSkills:
    """The skills of the server of one client.

    Args:
        requests: Makes the requests.
        connectivity: Knows what the server has declared.
        keep: Bytes of files that are kept.
    """

    def __init__(self, requests: Requests, connectivity: Connectivity, keep: int) -> None:
        self._requests = requests
        self._connectivity = connectivity
        self._keep = keep
        self._kept: dict[tuple[str, str], bytes] = {}
        self._size = 0
        self._clears = 0

    def __repr__(self) -> str:
        return f"<ClientSkills keeps {len(self._kept)} files>"

    def all(self) -> AsyncIterator[Skill]:
        """Iterates over the entries that a server lists."""
        return AllPages(self._page, lambda page: page.skills)

    async def get(self, uri: str) -> Skill:
        """Asks for one entry.

        Raises:
            LocalProtocolError: The server did not declare the extension.
            RemoteProtocolError: It answers with what is no entry, or that of another skill.
            McpError: What else a request raises.
        """
        self._declared()
        raw = (await self._requests.request("skills/get", {"uri": uri}, self._requests.options)).get("skill")
        try:
            skill = read_skill(raw)
        except ValueError as error:
            raise RemoteProtocolError(
                f"the answer to skills/get is no skill: {printable(str(error), _SHOWN)}"
            ) from None
        if skill.uri != uri:
            raise RemoteProtocolError("the answer to skills/get is another skill")
        return skill

    async def load(self, skill: Skill, options: CallOptions) -> str:
        """Reads the ``SKILL.md``; see `Client.load_skill`."""
        content = await self._file(skill, skill.uri, options)
        try:
            frontmatter = read_frontmatter(content)
        except ValueError as error:
            raise SkillRefused(skill.uri, "frontmatter", str(error)) from None
        if not is_same(frontmatter, dict(skill.frontmatter)):
            names = frontmatter.keys() | skill.frontmatter.keys()
            different = sorted(
                each
                for each in names
                if each not in frontmatter
                or each not in skill.frontmatter
                or not is_same(frontmatter[each], skill.frontmatter[each])
            )
            what = f"the frontmatter has another {', '.join(different)} than the entry"
            raise SkillRefused(skill.uri, "frontmatter", what)
        return content.decode()

    async def file(self, skill: Skill, path: str, options: CallOptions) -> bytes:
        """Reads one file; see `Client.read_skill_file`."""
        try:
            named = path_of(skill.root, path) if urlsplit(path).scheme else path
            wanted = relative(named)
        except ValueError as error:
            raise SkillRefused(path, "unlisted", str(error)) from None
        if isinstance(skill.resources, str):
            return await self._file(skill, file_uri(skill.root, wanted), options)
        # However either side writes its name: it is asked for by the URI that the entry has.
        uri = next((each.uri for each in skill.resources if path_of(skill.root, each.uri) == wanted), None)
        if uri is None:
            raise SkillRefused(
                file_uri(skill.root, wanted), "unlisted", "the entry of the skill has no such file"
            )
        return await self._file(skill, uri, options)

    def directory(self, uri: str) -> AsyncIterator[Resource]:
        """Iterates over what is in a folder; see `Client.directory`."""
        return AllPages(partial(self._directory_page, uri), lambda page: page.resources)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _page(self, cursor: str | None) -> SkillPage:
        self._declared()
        params = {} if cursor is None else {"cursor": cursor}
        return read_skill_page(await self._requests.request("skills/list", params, self._requests.options))

    async def _directory_page(self, uri: str, cursor: str | None) -> ListResourcesResult:
        if self._declared().get("directoryRead") is not True:
            raise LocalProtocolError(
                "the server did not declare directoryRead, so no folder can be read of it"
            )
        params = {"uri": uri} if cursor is None else {"uri": uri, "cursor": cursor}
        method = "resources/directory/read"
        result = await self._requests.request(method, params, self._requests.options)
        page: ListResourcesResult = read_result(
            self._connectivity.negotiated.era, result, ListResourcesResult
        )
        return page

    def _declared(self) -> Mapping[str, Any]:
        """Returns the settings of the extension; raises `LocalProtocolError` if the server did not declare it."""
        settings = (self._connectivity.negotiated.capabilities.extensions or {}).get(SKILLS)
        if not isinstance(settings, Mapping):
            raise LocalProtocolError(f"the server did not declare {SKILLS!r}, so it has no skills to ask for")
        return settings

    async def _file(self, skill: Skill, uri: str, options: CallOptions) -> bytes:
        if isinstance(skill.resources, str):
            content = await self._fetched(uri, options)
            if len(content) > MOST_BYTES:
                raise SkillRefused(
                    uri, "limits", f"it has {len(content):,} bytes, and a skill has {MOST_BYTES:,}"
                )
            return content
        if len(skill.resources) > MOST_FILES or skill.size > MOST_BYTES:
            raise SkillRefused(
                skill.uri,
                "limits",
                f"it has {len(skill.resources):,} files and {skill.size:,} bytes, and this client takes {MOST_FILES} "
                f"files and {MOST_BYTES:,} bytes",
            )
        listed = next((each for each in skill.resources if each.uri == uri), None)
        if listed is None:
            raise SkillRefused(uri, "unlisted", "the entry of the skill has no such file")
        if self._clears != self._requests.cache.clears:
            # The server, or the access to it, may be another one.
            self._clears, self._size = self._requests.cache.clears, 0
            self._kept.clear()
        kept = self._kept.get((uri, listed.digest))
        if kept is not None:
            return kept
        content = await self._fetched(uri, options)
        if len(content) != listed.size:
            what = f"it has {len(content):,} bytes, and {listed.size:,} by the entry of the skill"
            raise SkillRefused(uri, "size", what)
        if digest_of(content) != listed.digest:
            raise SkillRefused(uri, "digest", "it has another SHA-256 than by the entry of the skill")
        self._put((uri, listed.digest), content)
        return content

    async def _fetched(self, uri: str, options: CallOptions) -> bytes:
        # An answer that is kept by its time may be older than the entry.
        result: ReadResourceResult = await self._requests.call(
            "resources/read", {"uri": uri}, options, refresh=True
        )
        # A resource may have parts, and a file of a skill is one.
        if len(result.contents) != 1:
            raise RemoteProtocolError(
                f"{printable(uri, _SHOWN)} is no file: it has {len(result.contents)} contents"
            )
        return result.to_bytes()

    def _put(self, key: tuple[str, str], content: bytes) -> None:
        if len(content) > self._keep:
            return
        while self._size + len(content) > self._keep:
            self._size -= len(self._kept.pop(next(iter(self._kept))))
        self._kept[key] = content
        self._size += len(content)


def read_skill_page(result: Mapping[str, Any]) -> SkillPage:
    """Returns one page of entries; those that must not be used are left out, which is logged.

    Raises:
        RemoteProtocolError: It is no page.
    """
    entries, following = result.get("skills"), result.get("nextCursor")
    if not isinstance(entries, list) or not isinstance(following, str | None):
        raise RemoteProtocolError("the answer to skills/list has no array 'skills'")
    found: list[Skill] = []
    problems: list[str] = []
    for entry in entries:
        try:
            found.append(read_skill(entry))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        log.warning(
            "skills of a server are left out: they must not be used",
            number=len(problems),
            first=printable(problems[0], _SHOWN),
        )
    return SkillPage(found, following)


def read_skill(entry: Any) -> Skill:
    """Returns an entry as an object; raises `ValueError` for one that must not be used."""
    check_entry(entry)
    resources = entry["resources"]
    if isinstance(resources, list):
        resources = tuple(SkillResource(each["uri"], each["digest"], each["size"]) for each in resources)
    meta = entry.get("_meta")
    return Skill(entry["uri"], entry["frontmatter"], resources, meta=meta if isinstance(meta, dict) else None)


def written_skill(skill: Skill) -> dict[str, Any]:
    """Returns an entry as JSON values."""
    resources: Any = skill.resources
    if not isinstance(resources, str):
        resources = [{"uri": each.uri, "digest": each.digest, "size": each.size} for each in resources]
    entry = {"uri": skill.uri, "frontmatter": dict(skill.frontmatter), "resources": resources}
    return {**entry, "_meta": dict(skill.meta)} if skill.meta else entry
