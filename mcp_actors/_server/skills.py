"""Skills: folders of instructions that a server hands to models, file by file, as resources (SEP-2640).

`SkillProvider` has the files of all skills of a server, which are resources like any others: they are listed, read,
hidden, counted and mounted as those of every provider. What the extension adds is answered by `SkillMethods`: entries
of skills with a digest and the size of each file, and the lists of what is in a folder.

Contents are read once, when a skill is added, and are kept: so what a client reads is always what its entry says, and
no path of a client ever reaches the file system. `SkillFolder` looks again whether the files have changed, if it is to.
Each ``SKILL.md`` is a skill, in a skill too: there it is a file of the outer one as well.
"""

from __future__ import annotations

import bisect
import math
import mimetypes
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._eras.era import Method
from mcp_actors._server.components import ComponentKind
from mcp_actors._server.context import Context
from mcp_actors._server.features import Features
from mcp_actors._server.invoke import uri_param
from mcp_actors._server.provider import Provided, ProvidedPage, Provider, ProviderSource
from mcp_actors._server.registry import page
from mcp_actors._server.visibility import Caller, caller_of
from mcp_actors._wire.codec import encode_value
from mcp_actors._wire.skill_format import (
    DIRECTORY,
    MANIFEST,
    MOST_BYTES,
    MOST_FILES,
    SKILLS,
    check_path,
    check_published,
    digest_of,
    file_uri,
    read_frontmatter,
    root_of,
)
from mcp_actors.errors import LocalProtocolError, ResourceNotFound, UpstreamUnavailable, invalid_params
from mcp_actors.supervision.logging import log

__all__ = ["SkillFolder", "SkillMethods", "make_skills", "methods_of", "place_of"]

# Skills of one server, and bytes of all of them, which are kept in memory.
MOST_SKILLS = 1_000
MOST_BYTES_OF_ALL = 256 * 1024 * 1024
# Levels of folders below the one that is given.
DEEPEST = 20
# Seconds between two looks whether a file has changed, and for one look at a slow disk.
LOOK_EVERY = 1.0
LOOK_WAIT = 60.0
# Files of which entries are made in one turn of the loop.
_ENTRIES_A_TURN = 10

Contents = str | bytes | Callable[..., Any]
"""What a file has: text, bytes, or a function that makes it when it is read."""
Files = Mapping[str, Contents]
_Stamp = tuple[int, int, int]


# -- one skill -------------------------------------------------------------------------------------------------------


class ServedSkill(msgspec.Struct, frozen=True, eq=False):
    """One skill of a server."""

    key: str
    """The URI of its ``SKILL.md``."""
    entry: dict[str, Any]
    """What clients are sent of it."""
    files: Mapping[str, Provided]
    """Its files by their URIs; those of a skill in it included."""
    size: int
    """Bytes that are kept of it."""
    serial: int = 0

    @property
    def root(self) -> str:
        """The URI of its folder."""
        return self.key.rpartition("/")[0]


def place_of(folder: str) -> str:
    """Returns the beginning of the URIs of skills in a folder; raises `ValueError` for one that leads away."""
    if not folder:
        return "skill://"
    check_path(folder)
    return f"{file_uri('skill:/', folder)}/"


def make_skills(folder: str, files: Files, options: Mapping[str, Any]) -> list[ServedSkill]:
    """Makes a skill of files, and one more of each ``SKILL.md`` below that is one of a skill.

    Args:
        folder: What `place_of` has returned.
        files: The files by their paths below the folder of the skill.
        options: Those of resources that all files have.

    Raises:
        ValueError: It is not a skill, or has too much.
        TypeError: A file has other contents.
        ImportError: The library for YAML is not installed.
    """
    for path in files:
        if not isinstance(path, str):
            raise TypeError(f"{path!r:.80} is no path of a file")
        check_path(path)
    manifest = files.get(MANIFEST)
    if not isinstance(manifest, str | bytes):
        raise ValueError(f"a skill has a {MANIFEST}, which is a text")
    frontmatter = read_frontmatter(_bytes(manifest))
    root = folder + frontmatter["name"]
    provided = {file_uri(root, path): _provided(root, path, each, options) for path, each in files.items()}
    provided[file_uri(root, MANIFEST)] = _provided(root, MANIFEST, manifest, options, frontmatter)
    _check_no_file_is_a_folder(files)
    return [_made(root, files, frontmatter, provided), *_nested(root, files, provided, options)]


def _made(
    root: str, files: Files, frontmatter: dict[str, Any], provided: Mapping[str, Provided]
) -> ServedSkill:
    uri = file_uri(root, MANIFEST)
    root_of(uri)
    check_published(frontmatter)
    kept = {path: _bytes(each) for path, each in files.items() if isinstance(each, str | bytes)}
    size = sum(map(len, kept.values()))
    if len(files) > MOST_FILES or size > MOST_BYTES:
        raise ValueError(
            f"the skill {frontmatter['name']!r} has {len(files):,} files and {size:,} bytes; clients take {MOST_FILES} "
            f"files and {MOST_BYTES:,} bytes"
        )
    resources: Any = "dynamic"
    if len(kept) == len(files):
        resources = [
            {"uri": file_uri(root, path), "digest": digest_of(each), "size": len(each)}
            for path, each in sorted(kept.items())
        ]
    entry = {"uri": uri, "frontmatter": frontmatter, "resources": resources}
    try:
        encode_value(entry)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"JSON cannot hold the frontmatter of {frontmatter['name']!r}: {error}") from None
    return ServedSkill(uri, entry, provided, size)


def _nested(
    root: str, files: Files, provided: dict[str, Provided], options: Mapping[str, Any]
) -> Iterator[ServedSkill]:
    for path in sorted(files):
        folder, _, name = path.rpartition("/")
        if name != MANIFEST or not folder:
            continue
        inner = {
            each.removeprefix(f"{folder}/"): files[each] for each in files if each.startswith(f"{folder}/")
        }
        manifest = inner[MANIFEST]
        try:
            frontmatter = read_frontmatter(_bytes(manifest)) if isinstance(manifest, str | bytes) else {}
            if frontmatter.get("name") != folder.rpartition("/")[2]:
                raise ValueError("its folder has another name")
            inner_root = file_uri(root, folder)
            manifest_uri = file_uri(inner_root, MANIFEST)
            provided[manifest_uri] = _provided(inner_root, MANIFEST, manifest, options, frontmatter)
            shown = {uri: provided[uri] for uri in (file_uri(inner_root, each) for each in inner)}
            yield _made(inner_root, inner, frontmatter, shown)
        except ValueError as error:
            # An example of a skill, or a template for one: a file of the outer one, and nothing else.
            log.debug("a SKILL.md in a skill is no skill of its own", file=path, error=str(error))


def _provided(
    root: str,
    path: str,
    contents: Any,
    options: Mapping[str, Any],
    frontmatter: Mapping[str, Any] | None = None,
) -> Provided:
    """Makes the resource of a file; with ``frontmatter`` it is the ``SKILL.md`` of a skill."""
    uri = file_uri(root, path)
    name = path.rpartition("/")[2]
    shown: dict[str, Any] = {"name": name, "mime_type": _type_of(name), **options}
    if frontmatter is not None:
        shown.update(name=frontmatter["name"], description=frontmatter["description"])
    if isinstance(contents, str | bytes):
        kept = _bytes(contents)
        shown.update(size=len(kept), inline=True)
        return Provided("resource", uri, partial(_read, kept), shown)
    if not callable(contents):
        raise TypeError(f"{path!r}: a file has text, bytes or a function, and no {type(contents).__name__}")
    return Provided("resource", uri, contents, shown)


def _read(kept: bytes) -> str | bytes:
    # Text where it is the same in UTF-8, so that a model can read it.
    try:
        return kept.decode()
    except UnicodeDecodeError:
        return kept


def _bytes(contents: str | bytes) -> bytes:
    return contents.encode() if isinstance(contents, str) else bytes(contents)


def _type_of(name: str) -> str:
    if name.endswith((".md", ".markdown")):
        return "text/markdown"
    return mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream"


def _check_no_file_is_a_folder(files: Files) -> None:
    folders = {path[:at] for path in files for at, each in enumerate(path) if each == "/"}
    if both := sorted(folders & files.keys()):
        raise ValueError(f"{both[0]!r} is a file and a folder")


# -- the skills of a folder ------------------------------------------------------------------------------------------


class SkillFolder:
    """The skills of a folder, or the one that it is itself.

    Links are refused, because they may lead anywhere, and so is everything that is neither a file nor a folder. Names
    that begin with a dot, and ``__pycache__``, are left out.

    Args:
        folder: The folder.
        options: Those of resources that all files have.

    Raises:
        LocalProtocolError: There is no such folder, something in it cannot be served, or there is too much.
        ImportError: The library for YAML is not installed.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._folder = folder
        self._options = dict(options)
        self._stamps: Mapping[str, _Stamp] | None = None
        self._contents: dict[str, tuple[_Stamp, bytes]] = {}
        self._made: dict[str, tuple[dict[str, bytes], list[ServedSkill]]] = {}
        self.skills: list[ServedSkill] = []
        if not folder.is_dir():
            raise LocalProtocolError(f"{str(folder)!r} is no folder of skills")

    def __repr__(self) -> str:
        return f"<SkillFolder of {len(self.skills)} skills>"

    def read(self) -> bool:
        """Reads what has changed since the last time, and returns whether anything has; raises as the class does.

        What cannot be served is not tried again before something has changed.
        """
        stamps = dict(_stamps(self._folder))
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        known = self._contents
        self._contents = {
            path: known[path]
            if path in known and known[path][0] == stamp
            else (stamp, _content(self._folder, path))
            for path, stamp in stamps.items()
        }
        contents = {path: each for path, (_, each) in self._contents.items()}
        made = {top: self._make(top, contents) for top in _tops(contents)}
        if not made:
            raise LocalProtocolError(f"no folder in {str(self._folder)!r} has a {MANIFEST}")
        self._made = made
        self.skills = [each for _, skills in made.values() for each in skills]
        return True

    def _make(self, top: str, contents: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[ServedSkill]]:
        below = f"{top}/" if top else ""
        files = {path.removeprefix(below): each for path, each in contents.items() if path.startswith(below)}
        if top in self._made and self._made[top][0] == files:
            return self._made[top]
        # The folder itself may be a skill.
        above, _, name = (top or self._folder.name).rpartition("/")
        try:
            place = place_of(above)
            made = make_skills(place, files, self._options)
            if made[0].root != place + name:
                own = made[0].entry["frontmatter"]["name"]
                raise ValueError(f"its folder is called {name!r}, and not {own!r}, as the skill in it is")
        except ValueError as error:
            raise LocalProtocolError(f"{str(self._folder / top / MANIFEST)!r}: {error}") from None
        return files, made


def _tops(paths: Iterable[str]) -> list[str]:
    """Returns the folders with a ``SKILL.md`` that lie in no other such folder."""
    found: list[str] = []
    folders = sorted(path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] == MANIFEST)
    for each in folders:
        if not any(top == "" or each.startswith(f"{top}/") for top in found):
            found.append(each)
    return found


def _stamps(folder: Path, below: str = "", depth: int = 0) -> Iterator[tuple[str, _Stamp]]:
    """The files of a folder by their paths, each with what changes when it does."""
    if depth > DEEPEST:
        raise LocalProtocolError(f"{str(folder / below)!r} lies more than {DEEPEST} folders deep")
    with os.scandir(folder / below) as found:
        entries = sorted(found, key=lambda each: each.name)
    number = 0
    for each in entries:
        if each.name.startswith(".") or each.name == "__pycache__":
            continue
        path = f"{below}{each.name}"
        status = each.stat(follow_symlinks=False)
        is_junction = getattr(each, "is_junction", lambda: False)()
        if each.is_symlink() or is_junction:
            raise LocalProtocolError(
                f"{each.path!r} is a link: a skill has files of its own, so copy what it leads to"
            )
        if stat.S_ISDIR(status.st_mode):
            yield from _stamps(folder, f"{path}/", depth + 1)
        elif stat.S_ISREG(status.st_mode):
            number += 1
            if number > MOST_FILES or status.st_size > MOST_BYTES:
                raise LocalProtocolError(
                    f"{each.path!r}: a skill has {MOST_FILES} files and {MOST_BYTES:,} bytes at most"
                )
            yield path, (status.st_mtime_ns, status.st_size, status.st_ino)
        else:
            raise LocalProtocolError(f"{each.path!r} is neither a file nor a folder")


def _content(folder: Path, path: str) -> bytes:
    """Reads a file; what has become a link or a pipe since it was looked at is refused, and not waited for."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        file = os.open(folder / path, flags)
    except OSError as error:
        raise LocalProtocolError(f"{str(folder / path)!r} cannot be read: {error.strerror}") from None
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise LocalProtocolError(f"{str(folder / path)!r} is not a file")
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise LocalProtocolError(f"{str(folder / path)!r} has more than {MOST_BYTES:,} bytes")
    return content


# -- all skills of a server ------------------------------------------------------------------------------------------


class SkillProvider(Provider):
    """The files of the skills of one server. ``resources/list`` has each ``SKILL.md``, and no other file."""

    kinds: tuple[ComponentKind, ...] = ("resource",)

    def __init__(self, updated: Callable[[str], None]) -> None:
        self._updated = updated
        self._added: Sequence[ServedSkill] = ()
        self._folders: Sequence[SkillFolder] = ()
        self._reloaded: list[SkillFolder] = []
        self._is_looking = False
        self._looked_at = -math.inf
        self._index([])

    def __repr__(self) -> str:
        return f"<SkillProvider of {len(self.skills)} skills>"

    def add(self, skills: list[ServedSkill]) -> None:
        """Adds skills; raises `LocalProtocolError` if one is there already, or there are too many."""
        self._use([*self._added, *skills], self._folders)

    def add_folder(self, folder: SkillFolder, *, reload: bool) -> None:
        """Adds the skills of a folder that was read; raises as `add` does."""
        self._use(self._added, [*self._folders, folder])
        if reload:
            self._reloaded.append(folder)

    def remove(self, uri: str) -> None:
        """Removes a skill that `add` has added, with those in it; raises `LocalProtocolError` if there is none."""
        root = uri.rpartition("/")[0]
        left = [each for each in self._added if each.key != uri and not each.root.startswith(f"{root}/")]
        if all(each.key != uri for each in self._added):
            raise LocalProtocolError(f"add_skill() has added no skill {uri!r}")
        self._use(left, self._folders)

    async def look(self) -> None:
        """Reads folders again that have changed. What cannot be served stays as it was, which is logged."""
        # A server may be served again by another run of Trio, whose clock has nothing in common with that of the first.
        if self._is_looking or 0 <= trio.current_time() - self._looked_at < LOOK_EVERY:
            return
        self._is_looking = True
        try:
            for folder in self._reloaded:
                former = folder.skills
                try:
                    if await trio.to_thread.run_sync(folder.read):
                        self._use(self._added, self._folders)
                except (LocalProtocolError, OSError) as error:
                    folder.skills = former
                    log.error("a folder of skills is not read again", error=str(error))
        finally:
            self._is_looking = False
            self._looked_at = trio.current_time()

    async def list(self, kind: ComponentKind, caller: Caller, cursor: str | None, limit: int) -> ProvidedPage:
        """See `Provider.list`; the cursor is the last URI of the page before."""
        await self.look()
        begin = 0 if cursor is None else bisect.bisect_right(self._uris, cursor)
        shown = self._uris[begin : begin + limit]
        following = shown[-1] if begin + limit < len(self._uris) else None
        return ProvidedPage([self.files[each] for each in shown], following)

    async def get(self, kind: ComponentKind, name: str, caller: Caller) -> Provided | None:
        """See `Provider.get`."""
        await self.look()
        return self.files.get(name)

    def _use(self, added: Sequence[ServedSkill], folders: Sequence[SkillFolder]) -> None:
        skills = [*added, *(skill for folder in folders for skill in folder.skills)]
        size = sum(each.size for each in skills)
        if len(skills) > MOST_SKILLS or size > MOST_BYTES_OF_ALL:
            raise LocalProtocolError(
                f"{len(skills):,} skills of {size:,} bytes are too many: a server has {MOST_SKILLS:,}, of "
                f"{MOST_BYTES_OF_ALL:,} bytes together"
            )
        former, digests = self.skills, self._digests
        self._index(skills)
        self._added, self._folders = tuple(added), tuple(folders)
        if [each.entry for each in former.values()] != [each.entry for each in self.skills.values()]:
            self.changed("resource")
        for uri, digest in digests.items():
            if self._digests.get(uri) != digest:
                self._updated(uri)

    def _index(self, skills: Iterable[ServedSkill]) -> None:
        """Finds skills, files and folders by their URIs from now on; nothing has changed if it raises."""
        by_uri: dict[str, ServedSkill] = {}
        files: dict[str, Provided] = {}
        folders: dict[str, dict[str, Provided | None]] = {}
        for number, skill in enumerate(sorted(skills, key=lambda each: each.key), 1):
            if skill.key in by_uri:
                raise LocalProtocolError(f"there is already a skill {skill.key!r}")
            by_uri[skill.key] = msgspec.structs.replace(skill, serial=number)
            for uri, each in skill.files.items():
                files[uri] = each
                child: Provided | None = each
                while uri != skill.root:
                    above = uri.rpartition("/")[0]
                    folders.setdefault(above, {}).setdefault(uri, child)
                    uri, child = above, None
        self.skills: dict[str, ServedSkill] = by_uri
        self.files: dict[str, Provided] = files
        self.folders: dict[str, dict[str, Provided | None]] = folders
        self._digests = {
            each["uri"]: each["digest"]
            for skill in by_uri.values()
            if skill.entry["resources"] != "dynamic"
            for each in skill.entry["resources"]
        }
        self._uris = sorted(by_uri)


class _SkillRow(NamedTuple):
    """A skill, or what is in a folder, for one caller."""

    key: str
    serial: int
    value: Any


class SkillMethods:
    """Answers ``skills/list``, ``skills/get`` and ``resources/directory/read``, also for what is mounted in a server.

    Who sees a file of a skill as a resource sees it here, and who sees a ``SKILL.md`` sees the skill.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._source: ProviderSource | None = None

    def __repr__(self) -> str:
        own = None if self._source is None else self._source.provider
        return f"<SkillMethods {own!r}>"

    def declare_in(self, host: Features) -> None:
        """Has a server that shows these features offer the extension; raises as `methods_of`."""
        methods_of(host)

    def add(self, skills: list[ServedSkill]) -> None:
        """Adds skills; raises what `SkillProvider.add` raises, and `TypeError` for a file that cannot be served."""
        self._own(skills).add(skills)

    def add_folder(self, folder: SkillFolder, *, reload: bool) -> None:
        """Adds the skills of a folder that was read; raises as `add` does."""
        self._own(folder.skills).add_folder(folder, reload=reload)

    def remove(self, uri: str) -> None:
        """Removes a skill; raises what `SkillProvider.remove` raises."""
        self._own(()).remove(uri)

    def _own(self, skills: Iterable[ServedSkill]) -> SkillProvider:
        """Returns the provider of the server itself, once all files of new skills are known to be served by it."""
        features = self._features
        if self._source is None:
            provider = SkillProvider(lambda uri: features.bus.publish("resource_updated", uri))
            self._source = features.add_provider(provider, "skills", LOOK_WAIT)
        for skill in skills:
            # The files that are kept differ by nothing that could be refused, and an entry costs a millisecond.
            for uri, each in skill.files.items():
                if uri == skill.key or not each.options.get("inline"):
                    self._source.entry(each)
        found = self._source.provider
        assert isinstance(found, SkillProvider)
        return found

    async def list(self, ctx: Context) -> dict[str, Any]:
        """Answers ``skills/list``. An entry is on one page as a whole."""
        rows: list[_SkillRow] = []
        taken: set[str] = set()
        for source, provider in self._providers():
            await provider.look()
            shown = [each for each in provider.skills.values() if each.key not in taken]
            for uri in await self._seen(ctx, source, [each.key for each in shown]):
                taken.add(uri)
                rows.append(_SkillRow(uri, len(rows) + 1, provider.skills[uri].entry))
        size = self._features.resources.page_size
        shown_rows, cursor = page(rows, ctx.params, kind="skills", size=size, weigh=_weight)
        return self._stamped({"skills": [each.value for each in shown_rows]}, cursor)

    async def get(self, ctx: Context) -> dict[str, Any]:
        """Answers ``skills/get``."""
        uri = uri_param(ctx.params)
        for _, provider in self._providers():
            await provider.look()
            skill = provider.skills.get(uri)
            if skill is not None:
                try:
                    await self._features.resources.check_provided(ctx, uri)
                except ResourceNotFound:
                    continue
                return self._stamped({"skill": skill.entry}, None)
        raise invalid_params(f"no skill is served at {uri:.200}")

    async def read_directory(self, ctx: Context) -> t.ListResourcesResult:
        """Answers ``resources/directory/read``."""
        uri = uri_param(ctx.params)
        resources = self._features.resources
        rows: list[_SkillRow] = []
        for source, provider in self._providers():
            await provider.look()
            children = provider.folders.get(uri)
            if not children:
                continue
            files = [child for child, provided in children.items() if provided is not None]
            seen = await self._seen(ctx, source, files)
            for child, provided in sorted(children.items()):
                if provided is None and await self._sees_some_of(ctx, source, child):
                    found = t.Resource(child, child.rpartition("/")[2], mime_type=DIRECTORY)
                elif child in seen:
                    found = seen[child].listed
                else:
                    continue
                rows.append(_SkillRow(child, len(rows) + 1, found))
            break
        if not rows:
            raise invalid_params(f"{uri:.200} is not a directory resource")
        shown, cursor = page(rows, ctx.params, kind="directory", size=resources.page_size)
        return t.ListResourcesResult(
            [each.value for each in shown], cursor, cache_scope=resources.list_cache_scope
        )

    def _providers(self) -> Iterator[tuple[Any, SkillProvider]]:
        for source in self._features.sources:
            provider = source.provider
            if isinstance(provider, SkillProvider):
                yield source, provider

    async def _sees_some_of(self, ctx: Context, source: Any, folder: str) -> bool:
        """Whether a caller is listed a file in a folder, at any depth."""
        for uri in source.provider.files:
            if uri.startswith(f"{folder}/") and await self._seen(ctx, source, [uri]):
                return True
        return False

    async def _seen(self, ctx: Context, source: Any, uris: Iterable[str]) -> dict[str, Any]:
        """Returns the entries of those files that a caller is listed, by their URIs."""
        resources, caller, found = self._features.resources, caller_of(ctx), {}
        for number, uri in enumerate(uris, 1):
            if number % _ENTRIES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            try:
                entry = None if uri in resources.by_key else await source.get(caller, "resource", uri)
            except UpstreamUnavailable:
                # It is in the log.
                entry = None
            if entry is not None and resources.lists(caller, entry):
                found[uri] = entry
        return found

    def _stamped(self, result: dict[str, Any], cursor: str | None) -> dict[str, Any]:
        if cursor is not None:
            result["nextCursor"] = cursor
        scope = self._features.resources.list_cache_scope
        if scope is not None:
            result["cacheScope"] = scope
        return result


def _weight(found: _SkillRow) -> int:
    return len(encode_value(found.value))


def methods_of(features: Features) -> SkillMethods:
    """Returns what answers the methods of the extension; they are offered with the first call.

    Servers that show these features offer them, too.

    Raises:
        LocalProtocolError: A method is answered already, the extension is declared by the program itself, or a server
            that does not offer it yet serves.
    """
    found: SkillMethods | None = features.skills
    if found is None:
        for each in features.mounts:
            methods_of(each.host._features)
        found = SkillMethods(features)
        answers = {
            "skills/list": found.list,
            "skills/get": found.get,
            "resources/directory/read": found.read_directory,
        }
        methods = {
            Method(name, dict, dict, cacheable=True): partial(Continuation, answer)
            for name, answer in answers.items()
        }
        features.declare_skills(found, SKILLS, {"directoryRead": True}, methods)
    return found
