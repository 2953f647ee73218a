"""The calls of a load: one, or several with weights, from a file that a person wrote or that was recorded."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from mcp_actors.bench.eras import META, Era
from mcp_actors.bench.messages import Message
from mcp_actors.testing import Recording

__all__ = ["MOST_BYTES", "MOST_CALLS", "CallMix", "PlannedCall", "read_calls", "tool_call"]

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
    """Encoded once: everything behind the id, and what HTTP mirrors in headers."""
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
        raise ValueError(f"line {number}: {unknown[0]} is no member of a call")
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
                # What the client said of itself and of one call is not said again for others.
                yield each["method"], {name: value for name, value in params.items() if name != "_meta"}
