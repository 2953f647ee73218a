"""The definitions of servers as a person has approved them, and what a client does about those that differ.

A server may give a tool another description after a person has approved it, and that description is read by a model.
A lock file keeps what was approved: of each server its instructions, and the definitions of its tools, prompts,
resource templates and skills, each with the SHA-256 of its JSON in one fixed form. Two definitions are the same if that
form is the same: the order of keys does not count, everything else does. That of a skill has the SHA-256 of its files,
which are compared with it when they are read.

============== =======================================================================================================
a definition   what becomes of it
============== =======================================================================================================
as approved    it is listed and can be used
changed        it is left out of lists, its use is refused with `DefinitionChanged`, and the log shows the difference
not approved   the same
missing        it is reported, because nothing else shows that it is gone
============== =======================================================================================================

`LockFile` is the file, `ServerLock` what was approved of one server, and `LockGate` the innermost middleware of a
client that compares. It has the server list its tools before the first call and again whenever the list may be another
one, so that a change between listing and calling is found, too. The gateway uses `ServerLock` alone, where it reads
lists.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from mcp_actors._client.connectivity import Connectivity, Negotiated
from mcp_actors._client.options import ClientCall, SendNext
from mcp_actors._client.pages import AllPages
from mcp_actors._client.requests import Requests
from mcp_actors._client.skills import read_skill, read_skill_page, written_skill
from mcp_actors._eras.era import Era
from mcp_actors._wire.codec import MAX_DEPTH
from mcp_actors._wire.skill_format import SKILLS
from mcp_actors._wire.yaml_text import is_within
from mcp_actors.errors import ConfigurationError, DefinitionChanged
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import printable, safe, safe_json
from mcp_actors.types import Prompt, ResourceTemplate, Skill, Tool

__all__ = ["LOCKED_KINDS", "Drift", "LockFile", "LockGate", "ServerLock", "approved_now", "as_server_lock"]

FORMAT = 1
# Bytes of a lock file that are read: eight times what a gateway reads of one list.
MAX_BYTES = 64 * 1024 * 1024
# Levels of nesting in a lock file. Those of a message are fewer, so that no definition has as many.
MAX_LEVELS = 2 * MAX_DEPTH
# Seconds for which a comparison is relied on, where the server does not say that a list has changed.
GOOD_FOR = 60.0
# Times that definitions are read before one use, where each time a change was reported meanwhile.
_MOST_LOOKS = 3
# Characters of a difference that the log shows.
LONGEST_LOGGED = 2000
# Definitions of one server of which the log says something.
MOST_LOGGED = 1000
_SHOWN = 200
# How a tool runs as a task depends on the revision and changes nothing of what a model reads; gateways note in the
# second one which of them an entry has come through.
_LEFT_OUT = "execution"
_LEFT_OUT_OF_META = "mcp-actors/gateways"


@attrs.frozen
class _Kind:
    """A list whose entries are locked."""

    name: str
    """Its member of the file."""
    what: str
    """Names an entry for a person."""
    method: str
    use: str | None
    """The method that uses an entry; ``None`` if nothing names it."""
    attribute: str
    """The attribute of a page that has the entries."""
    key: str
    """The attribute of an entry that it is known by."""
    of: type
    capability: str

    def is_declared(self, negotiated: Negotiated) -> bool:
        """Whether a server says that it has such a list."""
        names = negotiated.declared | (negotiated.capabilities.extensions or {}).keys()
        return self.capability in names

    def read(self, item: Any, era: Era) -> Any:
        """Returns an entry of JSON as an object; raises whatever the conversion raises."""
        return read_skill(item) if self.of is Skill else era.structure(item, self.of)

    async def page(self, requests: Requests, cursor: str | None) -> Any:
        """Has the server list a page for the client itself; raises as `Requests.call` does."""
        params = {} if cursor is None else {"cursor": cursor}
        if self.of is Skill:
            return read_skill_page(await requests.send(self.method, params, requests.options))
        return await requests.list_again(self.method, params)


KINDS: Mapping[str, _Kind] = {
    kind.name: kind
    for kind in (
        _Kind("tools", "tool", "tools/list", "tools/call", "tools", "name", Tool, "tools"),
        _Kind("prompts", "prompt", "prompts/list", "prompts/get", "prompts", "name", Prompt, "prompts"),
        _Kind(
            "resourceTemplates",
            "resource template",
            "resources/templates/list",
            None,
            "resource_templates",
            "uri_template",
            ResourceTemplate,
            "resources",
        ),
        _Kind("skills", "skill", "skills/list", None, "skills", "uri", Skill, SKILLS),
    )
}
LOCKED_KINDS = {kind.method: kind.name for kind in KINDS.values()}
"""The members of the file by the methods that list what is in them."""
_LISTED = {kind.method: kind for kind in KINDS.values()}
_USED = {kind.use: kind for kind in KINDS.values() if kind.use is not None}
_INSTRUCTIONS = "instructions"
_SERVER = "server"


@attrs.frozen
class Drift:
    """One difference between what a server offers and what was approved of it."""

    kind: str
    """``"tool"``, ``"prompt"``, ``"resource template"``, ``"skill"``, ``"instructions"`` or ``"server"``."""
    name: str
    """Its name, the template, or the URI of a skill; of instructions the name of the server."""
    change: Literal["changed", "added", "missing"]
    """``"added"`` says that it was not approved, ``"missing"`` that it was, and is not offered any more."""
    diff: str = attrs.field(repr=False)
    """The difference as a unified diff of JSON, for a person; characters that cannot be seen are escaped."""

    def __str__(self) -> str:
        said = {
            "changed": "is not what was approved",
            "added": "was not approved",
            "missing": "was approved and is not there any more",
        }
        return f"the {self.kind} {shown_name(self.name)} {said[self.change]}"


def shown_name(name: str) -> str:
    """Returns a name in quotation marks, and spelled out if it is not ASCII: many characters look like others."""
    cut = name[:_SHOWN]
    return repr(cut) if cut.isascii() else f"{printable(cut, _SHOWN)!r} ({cut!a})"


def canonical(definition: Any) -> str:
    """Returns the JSON text of a definition that is the same for equal definitions: keys in order, ASCII, no blanks."""
    return json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fingerprint(definition: Any) -> str:
    """Returns the SHA-256 of a definition, as hexadecimal digits."""
    return hashlib.sha256(canonical(definition).encode()).hexdigest()


def definition_of(entry: Any, era: Era) -> dict[str, Any]:
    """Returns a tool, a prompt, a template or a skill as JSON, without what says nothing about it."""
    found = written_skill(entry) if isinstance(entry, Skill) else dict(era.unstructure(entry))
    found.pop(_LEFT_OUT, None)
    meta = found.get("_meta")
    if isinstance(meta, dict) and _LEFT_OUT_OF_META in meta:
        found["_meta"] = {key: value for key, value in meta.items() if key != _LEFT_OUT_OF_META}
        if not found["_meta"]:
            del found["_meta"]
    return found


def _change(approved: str | None, offered: str | None) -> Literal["changed", "added", "missing"]:
    if not approved:
        return "added"
    return "changed" if offered else "missing"


def _diff(approved: Any, offered: Any) -> str:
    before = [] if approved is None else _lines(approved)
    after = [] if offered is None else _lines(offered)
    lines = difflib.unified_diff(before, after, "approved", "offered", n=2, lineterm="")
    return "\n".join(lines)


def _lines(definition: Any) -> list[str]:
    """A definition for a person: each line of a text is a line here."""
    text = json.dumps(_broken_up(definition), indent=2, sort_keys=True, ensure_ascii=False)
    return safe(safe_json(text)).splitlines()


def _broken_up(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _broken_up(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_broken_up(each) for each in value]
    if isinstance(value, str) and "\n" in value:
        return value.split("\n")
    return value


# -- what was approved -----------------------------------------------------------------------------------------------


class ServerLock:
    """The approved definitions of one server: `LockFile` has them; `Client` and `Upstream` of gateways take them.

    Several clients may have the same one: a difference is then logged once for all of them.

    Args:
        server: The name that the server gave itself; an empty text if it gave none.
        instructions: Its instructions.
        definitions: The definitions by ``"tools"``, ``"prompts"``, ``"resourceTemplates"`` and ``"skills"``, and by
            their names, of skills by their URIs.
    """

    def __init__(
        self,
        server: str = "",
        instructions: str | None = None,
        definitions: Mapping[str, Mapping[str, Any]] = {},
    ) -> None:
        self.server = server
        self.instructions = instructions
        self.definitions = {name: dict(definitions.get(name, {})) for name in KINDS}
        self._sums = {
            name: {key: fingerprint(each) for key, each in found.items()}
            for name, found in self.definitions.items()
        }
        self._logged: set[tuple[str, str, str]] = set()

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={len(found)}" for name, found in self.definitions.items())
        return f"<ServerLock of {self.server or 'a server without a name'} {counts}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerLock) and self.as_json() == other.as_json()

    def __hash__(self) -> int:
        return hash((self.server, *map(len, self.definitions.values())))

    def server_drift(self, server: str) -> Drift | None:
        """Returns how the name that a server gives itself differs from the approved one, ``None`` if it does not.

        Its title and version are not compared: a version changes with each release, and neither is read by a model.
        """
        if server == self.server:
            return None
        change = _change(self.server, server)
        return Drift(_SERVER, server or self.server, change, _diff(self.server or None, server or None))

    def drift_of(self, kind: str, name: str, definition: Any, server: str | None = None) -> Drift | None:
        """Returns how a definition differs from what was approved, ``None`` if it does not.

        Args:
            kind: A member of the file, such as ``"tools"``.
            name: Its name, or the template.
            definition: The definition as JSON, of `definition_of`.
            server: The name that the server gives itself; ``None`` if that is not compared. Under another name it is
                another server, unless none was approved.
        """
        what = KINDS[kind].what
        if name not in self._sums[kind]:
            return Drift(what, name, "added", _diff(None, definition))
        approved = self.definitions[kind][name]
        if (other := self._other_server(server)) is not None:
            return Drift(what, name, "changed", other)
        if self._sums[kind][name] == fingerprint(definition):
            return None
        return Drift(what, name, "changed", _diff(approved, definition))

    def instructions_drift(self, offered: str | None, server: str | None = None) -> Drift | None:
        """Returns how the instructions of a server differ from those that were approved, ``None`` if they do not.

        Args:
            offered: Those that it has.
            server: As of `drift_of`.
        """
        named = server or self.server
        if (offered or None) == (self.instructions or None):
            other = self._other_server(server) if offered else None
            return None if other is None else Drift(_INSTRUCTIONS, named, "changed", other)
        change = _change(self.instructions, offered)
        return Drift(_INSTRUCTIONS, named, change, _diff(self.instructions or None, offered or None))

    def _other_server(self, server: str | None) -> str | None:
        """Returns what is shown of a definition that another server has; ``None`` if it is the approved one."""
        if not self.server or server is None or self.server == server:
            return None
        return safe(f"--- approved of the server {self.server!r}\n+++ offered by the server {server!r}")

    def missing(self, kind: str, names: Iterable[str]) -> list[Drift]:
        """Returns what was approved and is not among the ``names`` that the server has listed."""
        gone = self.definitions[kind].keys() - set(names)
        of = KINDS[kind].what
        return [
            Drift(of, name, "missing", _diff(self.definitions[kind][name], None)) for name in sorted(gone)
        ]

    def differences(self, offered: ServerLock) -> list[Drift]:
        """Returns how what a server offers, as `Client.approve` returns it, differs from what was approved."""
        found = _of_server(self, offered.instructions, offered.server)
        for kind, definitions in offered.definitions.items():
            each = (self.drift_of(kind, name, it, offered.server) for name, it in definitions.items())
            found += [drift for drift in each if drift is not None]
            found += self.missing(kind, definitions)
        return found

    def kept(self, kind: str, entries: Iterable[Any], era: Era, server: str) -> tuple[list[Any], list[Drift]]:
        """Returns the entries that are as they were approved, and how the others differ, which is logged once."""
        good: list[Any] = []
        drifts: list[Drift] = []
        for entry in entries:
            name = getattr(entry, KINDS[kind].key)
            drift = self.drift_of(kind, name, definition_of(entry, era), server)
            if drift is None:
                good.append(entry)
            else:
                drifts.append(drift)
        self.log(drifts, server)
        return good, drifts

    def require_skill(self, item: Any, era: Era, server: str) -> None:
        """Compares the answer to ``skills/get``; what is no entry is left to whoever reads it.

        Raises:
            DefinitionChanged: It is another one than was approved, which is logged once, or was not approved.
        """
        try:
            skill = read_skill(item)
        except ValueError:
            return
        drift = self.drift_of("skills", skill.uri, definition_of(skill, era), server)
        if drift is not None:
            self.log([drift], server)
            raise DefinitionChanged(drift.kind, drift.name, drift.change, drift.diff)

    def shown_instructions(self, offered: str | None, server: str) -> str | None:
        """Returns the instructions of a server if they are as approved, and else ``None``, which is logged once."""
        drift = self.instructions_drift(offered, server)
        if drift is None:
            return offered
        self.log([drift], server)
        return None

    def log(self, drifts: Iterable[Drift], server: str) -> None:
        """Logs each difference once."""
        for drift in drifts:
            about = (drift.kind, drift.name, fingerprint(drift.diff))
            if about in self._logged or len(self._logged) >= MOST_LOGGED:
                continue
            self._logged.add(about)
            log.warning(
                "a definition is not what the lock has"
                + ("" if drift.change == "missing" else ", so that it is hidden"),
                server=printable(server or self.server, _SHOWN),
                kind=drift.kind,
                name=shown_name(drift.name),
                change=drift.change,
                diff=drift.diff[:LONGEST_LOGGED],
            )

    # -- as JSON -----------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Returns it as the file has it."""
        found: dict[str, Any] = {"server": self.server} if self.server else {}
        if self.instructions:
            found[_INSTRUCTIONS] = _entry(self.instructions)
        for name, definitions in self.definitions.items():
            found[name] = {key: _entry(each) for key, each in definitions.items()}
        return found

    @classmethod
    def of_json(cls, value: Any, file: str, name: str) -> ServerLock:
        """Reads what the file has of one server; raises `ConfigurationError` for anything else."""

        def wrong(problem: str, member: str) -> ConfigurationError:
            return ConfigurationError(problem, file=file, server=name, member=member)

        def read(entry: Any, member: str) -> Any:
            if not isinstance(entry, dict) or "definition" not in entry or "sha256" not in entry:
                raise wrong("it has no definition with its sha256", member)
            if fingerprint(entry["definition"]) != entry["sha256"]:
                raise wrong(
                    "its sha256 is of another definition: the file was edited by hand, or merged; write it again",
                    member,
                )
            return entry["definition"]

        if not isinstance(value, dict):
            raise wrong("it is not an object", "servers")
        server = value.get("server", "")
        instructions = None if _INSTRUCTIONS not in value else read(value[_INSTRUCTIONS], _INSTRUCTIONS)
        if not isinstance(server, str) or not isinstance(instructions, str | None):
            raise wrong("it is not a text", "server")
        definitions: dict[str, dict[str, Any]] = {}
        for kind in KINDS:
            entries = value.get(kind, {})
            if not isinstance(entries, dict):
                raise wrong("it is not an object", kind)
            definitions[kind] = {key: read(each, f"{kind}.{key}") for key, each in entries.items()}
        return cls(server, instructions, definitions)


def _of_server(lock: ServerLock, instructions: str | None, server: str) -> list[Drift]:
    """Returns how the name and the instructions of a server differ from those that were approved."""
    drifts = lock.server_drift(server), lock.instructions_drift(instructions, server)
    return [each for each in drifts if each is not None]


def _entry(definition: Any) -> dict[str, Any]:
    return {"definition": definition, "sha256": fingerprint(definition)}


class LockFile:
    """The file that ``mcp-actors lock`` writes: what was approved of each server.

    It is JSON with keys in order and a member on each line, so that a version control system shows what has changed.

    Args:
        servers: What was approved, by the names of the servers in a configuration.
        path: Where it was read, for messages.
    """

    def __init__(self, servers: Mapping[str, ServerLock], path: str = "the lock") -> None:
        self.servers = dict(servers)
        self.path = path

    def __repr__(self) -> str:
        return f"<LockFile {self.path} of {', '.join(self.servers)}>"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> LockFile:
        """Reads a file.

        Raises:
            ConfigurationError: It cannot be read, is not a lock file, or has a definition that is not that of its hash.
        """
        file = os.fspath(path)
        try:
            with open(Path(file).expanduser(), "rb") as source:
                data = source.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(f"it cannot be read: {error.strerror}", file=file) from error
        if len(data) > MAX_BYTES:
            raise ConfigurationError(f"it is larger than {MAX_BYTES >> 20} MiB", file=file)
        try:
            value = json.loads(data)
        except ValueError as error:
            raise ConfigurationError(f"it is not JSON: {error}", file=file) from error
        except RecursionError:
            value = None
        if value is None or not is_within(value, MAX_BYTES, MAX_LEVELS):
            problem = f"it is nested deeper than {MAX_LEVELS} levels, as no definition is: write it again"
            raise ConfigurationError(problem, file=file)
        servers = value.get("servers") if isinstance(value, dict) else None
        if not isinstance(servers, dict):
            raise ConfigurationError("it is not a lock file: mcp-actors lock writes one", file=file)
        if value.get("lock") != FORMAT:
            raise ConfigurationError(f"it has a format that is not known here, not {FORMAT}", file=file)
        return cls({name: ServerLock.of_json(each, file, name) for name, each in servers.items()}, file)

    def text(self) -> str:
        """Returns the text of the file."""
        servers = {name: each.as_json() for name, each in self.servers.items()}
        whole = {"lock": FORMAT, "servers": servers}
        return safe_json(json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False)) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file: it is there as a whole or as it was before.

        Raises:
            OSError: It cannot be written.
        """
        target = Path(path).expanduser()
        handle, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
                file.write(self.text())
                file.flush()
                os.fsync(file.fileno())
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
            os.chmod(made, mode)
            os.replace(made, target)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise

    def of(self, name: str) -> ServerLock:
        """Returns what was approved of a server of a configuration: nothing, if the file does not have it."""
        return self.servers.get(name) or ServerLock()

    def sole(self) -> ServerLock:
        """Returns what was approved of its one server.

        Raises:
            ConfigurationError: It has several servers, or none.
        """
        if len(self.servers) != 1:
            names = ", ".join(map(shown_name, self.servers)) or "none"
            raise ConfigurationError(
                f"one client has one server, and the file has {len(self.servers)} ({names:.200}): give "
                "LockFile.read(path).of(name) in a program, and to a command the file that "
                "'mcp-actors lock URL -o FILE' writes of that server alone",
                file=self.path,
            )
        return next(iter(self.servers.values()))


def as_server_lock(given: str | os.PathLike[str] | ServerLock) -> ServerLock:
    """Returns the ``lock`` that a program has given to a client: that of the one server of a file, or itself.

    Raises:
        ConfigurationError: What `LockFile.read` and `LockFile.sole` raise.
        TypeError: It is something else.
    """
    if isinstance(given, ServerLock):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"lock is the path of a lock file or a ServerLock, not {type(given).__name__}")
    return LockFile.read(given).sole()


# -- what a client does ----------------------------------------------------------------------------------------------


class LockGate:
    """Compares what the server of a client offers with what was approved: the innermost middleware of that client.

    Args:
        lock: What was approved.
    """

    def __init__(self, lock: ServerLock) -> None:
        self._lock = lock
        # The differences of each kind as the server was last listed, by names.
        self._drifts: dict[str, dict[str, Drift]] = {}
        self._good_until: dict[str, float] = {}
        self._turns = {kind: trio.Lock() for kind in KINDS}

    def __repr__(self) -> str:
        return f"<LockGate {self._lock!r}>"

    def bind(self, requests: Requests, connectivity: Connectivity) -> None:
        """Takes what makes the requests of the client, and what knows its server."""
        self._requests, self._connectivity = requests, connectivity
        requests.on_stale = self.forget

    def forget(self) -> None:
        """The connection is another one, or a list has changed: everything is compared again before it is used."""
        self._good_until.clear()

    async def __call__(self, call: ClientCall, call_next: SendNext) -> Any:
        """Leaves out of a list what is not as approved, and refuses its use."""
        listed, used = _LISTED.get(call.method), _USED.get(call.method)
        if listed is not None:
            page = await call_next()
            return self._raw_page(listed, page) if isinstance(page, dict) else self._page(listed, page)
        if used is not None and isinstance(name := call.params.get("name"), str):
            await self._require(used, name)
        result = await call_next()
        if call.method == "skills/get":
            negotiated = self._negotiated
            self._lock.require_skill(result.get("skill"), negotiated.era, negotiated.info.name)
        return result

    @property
    def shown_instructions(self) -> str | None:
        """The instructions of the server, if they are as approved."""
        negotiated = self._negotiated
        return self._lock.shown_instructions(negotiated.instructions, negotiated.info.name)

    @property
    def _negotiated(self) -> Negotiated:
        return self._connectivity.negotiated

    async def check(self) -> list[Drift]:
        """Has the server list everything, and returns all differences; raises as a list does."""
        negotiated = self._negotiated
        found = _of_server(self._lock, negotiated.instructions, negotiated.info.name)
        for kind in KINDS.values():
            found += await self._look(kind)
        return found

    def _page(self, kind: _Kind, page: Any) -> Any:
        setattr(page, kind.attribute, self._kept(kind, getattr(page, kind.attribute)))
        return page

    def _raw_page(self, kind: _Kind, page: dict[str, Any]) -> dict[str, Any]:
        era, items = self._negotiated.era, page.get(kind.name)
        good: list[Any] = []
        for item in items if isinstance(items, list) else ():
            try:
                entry = kind.read(item, era)
            except Exception as error:  # the converter raises whatever the member's own conversion raised
                log.debug("an entry cannot be compared with the lock", error=str(error))
                continue
            if self._kept(kind, [entry]):
                good.append(item)
        return {**page, kind.name: good}

    def _kept(self, kind: _Kind, entries: Iterable[Any]) -> list[Any]:
        negotiated = self._negotiated
        good, drifts = self._lock.kept(kind.name, entries, negotiated.era, negotiated.info.name)
        self._drifts.setdefault(kind.name, {}).update({each.name: each for each in drifts})
        return good

    async def _require(self, kind: _Kind, name: str) -> None:
        """Raises `DefinitionChanged` unless what is used is as it was approved."""
        async with self._turns[kind.name]:
            for _ in range(_MOST_LOOKS):
                if trio.current_time() < self._good_until.get(kind.name, -math.inf):
                    break
                # A change that is reported meanwhile makes what was read stale at once.
                await self._look(kind)
        drift = self._drifts[kind.name].get(name)
        if drift is None and name not in self._lock.definitions[kind.name]:
            drift = Drift(kind.what, name, "added", "the server does not list it")
        if drift is not None:
            raise DefinitionChanged(drift.kind, name, drift.change, drift.diff)

    async def _look(self, kind: _Kind) -> list[Drift]:
        """Has the server list one kind to the end, and compares."""
        negotiated = self._negotiated
        drifts: list[Drift] = []
        names: set[str] = set()
        if kind.is_declared(negotiated):
            # What changes while the list is read makes it stale at once.
            self._good_until[kind.name] = trio.current_time() + GOOD_FOR
            try:
                async for entry in _entries(self._requests, kind):
                    names.add(getattr(entry, kind.key))
                    drifts += self._lock.kept(kind.name, [entry], negotiated.era, negotiated.info.name)[1]
            except BaseException:
                self._good_until.pop(kind.name, None)
                raise
        gone = self._lock.missing(kind.name, names)
        self._lock.log(gone, negotiated.info.name)
        self._drifts[kind.name] = {each.name: each for each in (*gone, *drifts)}
        return [*drifts, *gone]


async def approved_now(requests: Requests, negotiated: Negotiated) -> ServerLock:
    """Returns what a server offers at present, to be approved.

    Args:
        requests: Make the requests of a client without a lock.
        negotiated: What was agreed with the server.

    Raises:
        McpError: What a list raises.
    """
    definitions: dict[str, dict[str, Any]] = {}
    for kind in KINDS.values():
        found = definitions[kind.name] = {}
        if kind.is_declared(negotiated):
            async for entry in _entries(requests, kind):
                found[getattr(entry, kind.key)] = definition_of(entry, negotiated.era)
    return ServerLock(negotiated.info.name, negotiated.instructions, definitions)


def _entries(requests: Requests, kind: _Kind) -> AsyncIterator[Any]:
    """Has the server list one kind to the end, for the client itself."""

    return AllPages(partial(kind.page, requests), lambda page: getattr(page, kind.attribute))
