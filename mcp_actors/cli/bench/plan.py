"""A load as data: what one process sends, to which server, for how long; and its messages, encoded in advance."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs

from mcp_actors._eras.legacy import REVISIONS
from mcp_actors._eras.modern import CAPABILITIES, CLIENT_INFO, LATEST_MODERN, VERSION
from mcp_actors.testing import Recording

__all__ = [
    "LEGACY_VERSION",
    "META",
    "MODERN_VERSION",
    "MOST_BYTES",
    "MOST_CALLS",
    "CallMix",
    "Calls",
    "Era",
    "LoadError",
    "LoadPlan",
    "Message",
    "PlannedCall",
    "Stage",
    "answer_to",
    "cancelled",
    "check_sums",
    "id_of",
    "notification",
    "opening",
    "ramp_stages",
    "read_calls",
    "request",
    "tool_call",
]


Era = Literal["legacy", "modern"]

LEGACY_VERSION, MODERN_VERSION = REVISIONS[-1], LATEST_MODERN.version
META = {VERSION: MODERN_VERSION, CAPABILITIES: {}, CLIENT_INFO: {"name": "load", "version": "1"}}


class LoadError(Exception):
    """The server did not answer correctly, so no figure can be given."""


RAMP_STAGES = 10
SLICES = 10
# Slices of each stage of a ramp, which is shorter.
SLICES_OF_A_STAGE = 4


@attrs.frozen
class Stage:
    """A part of a load: ``window`` requests in flight, or ``rate`` requests a second, whichever is not 0.

    It ends after ``seconds`` or after ``calls`` requests, if that is not 0.
    """

    seconds: float
    window: int = 0
    rate: float = 0.0
    calls: int = 0
    slices: int = SLICES

    @property
    def at(self) -> dict[str, int | str]:
        return {"arrivals_per_second": round(self.rate)} if self.rate else {"in_flight": self.window}


@attrs.frozen
class LoadPlan:
    """Everything that a load process needs to know. ``headers`` may be secrets: they are in no result.

    ``through_client`` says that the transport's own client is needed, and ``login`` that it uses a stored login.
    """

    url: str
    era: Era
    version: str
    calls: list[PlannedCall]
    stages: list[Stage]
    sessions: int = 1
    warm_up: float = 0.0
    cancel_share: float = 0.0
    timeout: float = 30.0
    seed: int = 0
    through_client: bool = False
    login: bool = False
    headers: dict[str, str] = attrs.field(factory=dict, repr=False)

    def to_json(self) -> str:
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LoadPlan:
        members: dict[str, Any] = json.loads(text)
        members["calls"] = [PlannedCall(**each) for each in members["calls"]]
        members["stages"] = [Stage(**each) for each in members["stages"]]
        return cls(**members)


def ramp_stages(low: float, high: float, seconds: float) -> list[Stage]:
    """Returns stages from one rate to another, each by the same factor above the one before."""
    factor = (high / low) ** (1 / (RAMP_STAGES - 1))
    each = seconds / RAMP_STAGES
    rates = [low * factor**number for number in range(RAMP_STAGES)]
    return [Stage(each, rate=rate, slices=SLICES_OF_A_STAGE) for rate in rates]


# -- Messages as bytes: sending one costs almost nothing during the measurement ------------------------

SAMPLE = 200
_ID = re.compile(rb'"id": ?(\d+)')


class Message(NamedTuple):
    """An encoded message, with the values that HTTP mirrors in headers."""

    data: bytes
    id: int | None = None
    method: str = ""
    name: str = ""

    def headers(self, era: Era, version: str = "") -> dict[str, str]:
        if era == "legacy":
            return {} if self.method == "initialize" else {"mcp-protocol-version": version or LEGACY_VERSION}
        named = {"mcp-name": self.name} if self.name else {}
        return {"mcp-protocol-version": MODERN_VERSION, "mcp-method": self.method} | named


def _encoded(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0"} | message, separators=(",", ":")).encode()


def request(era: Era, id: int, method: str, params: dict[str, Any], *, progress: bool = False) -> Message:
    meta: dict[str, Any] = {"progressToken": id} if progress else {}
    if era == "modern":
        meta |= META
    if meta:
        params = params | {"_meta": meta}
    name = str(params.get("name") or params.get("uri") or "")
    return Message(_encoded({"id": id, "method": method, "params": params}), id, method, name)


def notification(method: str, params: dict[str, Any] | None = None) -> Message:
    return Message(_encoded({"method": method} | ({"params": params} if params else {})), None, method)


def cancelled(id: int) -> Message:
    return notification("notifications/cancelled", {"requestId": id, "reason": "no longer wanted"})


def opening(era: Era, id: int, version: str = "") -> Message:
    """The first request of a connection; ``version`` is the revision that a legacy one asks for, or the latest."""
    if era == "modern":
        return request(era, id, "server/discover", {})
    params = {
        "protocolVersion": version or LEGACY_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "load", "version": "1"},
    }
    return request(era, id, "initialize", params)


class Calls:
    """Calls of a tool ``(a, b) -> {total}``: ``calls[id]`` asks for ``id + 1``."""

    def __init__(self, era: Era, tool: str = "add") -> None:
        data = request(
            era, 987654321, "tools/call", {"name": tool, "arguments": {"a": 987654321, "b": 1}}
        ).data
        self._template = data.replace(b"%", b"%%").replace(b"987654321", b"%d")
        self._tool = tool

    def __getitem__(self, id: int) -> Message:
        return Message(self._template % (id, id), id, "tools/call", self._tool)


def id_of(data: bytes) -> int | None:
    """Returns the id of an answer; ``None`` for a notification."""
    match = _ID.search(data)
    return int(match[1]) if match else None


def answer_to(data: bytes) -> dict[str, Any]:
    """The result in an answer. Raises `LoadError` for an error."""
    answer = json.loads(data)
    result = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(result, dict) or result.get("isError"):
        raise LoadError(f"not a good answer: {data[:300]!r}")
    return result


def check_sums(answers: Sequence[bytes], chance: random.Random) -> None:
    """Checks that every answer is a result and, in a sample, the right sum."""
    for data in answers:
        if b'"error"' in data or b'"isError":true' in data:
            raise LoadError(f"not a good answer: {data[:300]!r}")
    for data in chance.sample(answers, min(SAMPLE, len(answers))):
        id = id_of(data)
        if id is None or answer_to(data).get("structuredContent") != {"total": id + 1}:
            raise LoadError(f"a wrong sum: {data[:300]!r}")


# -- Calls: one, or several with weights, from a file that a person wrote or that was recorded ---------

# Different calls of one file, and its size.
MOST_CALLS, MOST_BYTES = 1000, 16 * 2**20
# Requests of a recording that belong to its connection and not to its load.
_NOT_CALLS = frozenset(
    {"initialize", "server/discover", "ping", "subscriptions/listen", "logging/setLevel"}
    | {"resources/subscribe", "resources/unsubscribe"}
)
_MEMBERS = {"tool", "arguments", "method", "params", "weight"}


@attrs.frozen
class PlannedCall:
    """A request, and how often it is sent in comparison to the others."""

    method: str
    params: dict[str, Any]
    weight: float = 1.0

    @property
    def label(self) -> str:
        """The name under which it is counted."""
        name = self.params.get("name") or self.params.get("uri") or ""
        return str(name) if self.method == "tools/call" else f"{self.method} {name}".strip()


def tool_call(name: str, arguments: dict[str, Any], weight: float = 1.0) -> PlannedCall:
    """Returns the call of a tool."""
    return PlannedCall("tools/call", {"name": name, "arguments": arguments}, weight)


class CallMix:
    """Draws calls by their weights, and makes the message of each."""

    def __init__(self, era: Era, calls: Sequence[PlannedCall], chance: random.Random) -> None:
        self.labels = list(dict.fromkeys(call.label for call in calls))
        self._rests = [_rest(era, call) for call in calls]
        self._numbers = [self.labels.index(call.label) for call in calls]
        self._weights = list(itertools.accumulate(call.weight for call in calls))
        self._chance = chance
        self._several = len(calls) > 1

    def draw(self, id: int) -> tuple[Message, int]:
        """Returns the next message, and the number of its label."""
        index = 0
        if self._several:
            index = self._chance.choices(range(len(self._rests)), cum_weights=self._weights)[0]
        rest, method, name = self._rests[index]
        return Message(b'{"jsonrpc":"2.0","id":%d%b' % (id, rest), id, method, name), self._numbers[index]


def _rest(era: Era, call: PlannedCall) -> tuple[bytes, str, str]:
    """Returns, encoded once, everything after the id, and what HTTP mirrors in headers."""
    params = call.params | ({"_meta": META} if era == "modern" else {})
    text = json.dumps({"method": call.method, "params": params}, separators=(",", ":"), ensure_ascii=False)
    name = str(params.get("name") or params.get("uri") or "")
    return b"," + text[1:].encode(), call.method, name


def read_calls(path: Path) -> list[PlannedCall]:
    """Reads a file of weighted calls, a JSON object a line, or a recording of `mcp_actors.testing`.

    Raises:
        ValueError: The file is neither, is too large, or has no calls; the text says in which line.
        OSError: It cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES // 2**20} MiB")
    lines = path.read_text("utf-8").splitlines()
    if lines and lines[0].startswith('{"recording"'):
        calls = _recorded(Recording.load(path))
    else:
        calls = [_written(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not calls:
        raise ValueError(f"{path} has no calls")
    if len(calls) > MOST_CALLS:
        raise ValueError(f"{path} has {len(calls)} different calls; {MOST_CALLS} is the most")
    return calls


def _written(number: int, line: str) -> PlannedCall:
    try:
        members = json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error
    if not isinstance(members, dict) or not ("tool" in members) ^ ("method" in members):
        raise ValueError(
            f'line {number}: write {{"tool": …, "arguments": …}} or {{"method": …, "params": …}}'
        )
    unknown = sorted(members.keys() - _MEMBERS)
    if unknown:
        raise ValueError(f"line {number}: {unknown[0]} is not a member of a call")
    weight = members.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e9:
        raise ValueError(f"line {number}: the weight is to be a number above 0")
    given = members.get("arguments" if "tool" in members else "params", {})
    name = members.get("tool", members.get("method"))
    if not isinstance(name, str) or not isinstance(given, dict):
        raise ValueError(f"line {number}: a name is text, and arguments and params are objects")
    return tool_call(name, given, weight) if "tool" in members else PlannedCall(name, given, weight)


def _recorded(recording: Recording) -> list[PlannedCall]:
    """Equal requests are one call, with their number as its weight; answers are not looked at."""
    found: dict[str, PlannedCall] = {}
    for connection in recording.connections:
        for method, params in _requests(recording, connection):
            key = json.dumps([method, params], sort_keys=True)
            before = found.get(key)
            found[key] = PlannedCall(method, params, before.weight + 1 if before else 1)
    return list(found.values())


def _requests(recording: Recording, connection: int) -> Iterable[tuple[str, dict[str, Any]]]:
    for side, frame in recording.script(connection):
        if side != "client":
            continue
        try:
            message = json.loads(frame.data)
        except ValueError:
            continue
        for each in message if isinstance(message, list) else [message]:
            if not isinstance(each, dict) or "id" not in each or not isinstance(each.get("method"), str):
                continue
            params = each.get("params") or {}
            if each["method"] not in _NOT_CALLS and isinstance(params, dict):
                # What a client says of itself or of one call must not be repeated for other calls.
                yield each["method"], {name: value for name, value in params.items() if name != "_meta"}
