"""Calls of a client that are made again when the connection has failed."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import attrs
import trio

from mcp_actors._client.options import ClientCall, SendNext
from mcp_actors.errors import (
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    SessionExpired,
    SharedStateUnavailable,
    Unavailable,
)
from mcp_actors.supervision.arguments import require_number
from mcp_actors.types import ListToolsResult

__all__ = ["Retry"]

# The requests that change nothing, or the same whether they are made once or twice.
IDEMPOTENT = frozenset(
    {
        "tools/list",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "completion/complete",
        "logging/setLevel",
        "tasks/list",
    }
)
# The failures after which the same request may well be answered.
_PASSING = (ConnectionLost, ConnectFailed, SessionExpired, Unavailable, Overloaded, SharedStateUnavailable)
# Attempts, and seconds of pauses, that a program may ask for: an hour.
MOST_ATTEMPTS = 1000
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 3600.0
# Tools of a server whose annotations are remembered; the rest counts as not idempotent.
MAX_TOOLS = 10_000


class Retry:
    """Middleware of a client: makes a call again that failed for the connection or a limit, where that does no harm.

    Made again are lists, reads, prompts and completions, and calls of tools that are known to be idempotent: by
    ``tools``, or by the server's own hint, ``idempotentHint`` or ``readOnlyHint``, once the client has listed them.
    Nothing else is ever made twice, whatever it failed with. A call that ran out of its time is not made again, and
    neither is one that the server answered. Inside of another `Retry` it lets calls pass, so that attempts do not
    multiply. It is for a client with ``restart=True``, or over HTTP.

    Args:
        attempts: How often a call is made at most.
        pause: Seconds before the second attempt; it doubles with each one, with a random part so that many clients do
            not come back together. A server that says when to come again is obeyed.
        most: Seconds of the longest pause; where a server asks for a longer one, the call fails instead.
        tools: Names of tools that are idempotent, whatever their server says.

    Raises:
        ValueError: A number is out of range.
        TypeError: One of them is not a number, or ``tools`` is one text.
    """

    for_side: ClassVar = "client"

    def __init__(
        self, attempts: int = 3, *, pause: float = 0.1, most: float = 5.0, tools: Collection[str] = ()
    ) -> None:
        if isinstance(tools, str):
            raise TypeError(f"tools is a list of names, [{tools!r}] for example, not a text")
        require_number("Retry(attempts=)", attempts, 1, MOST_ATTEMPTS, whole=True)
        require_number("Retry(most=)", most, SHORTEST_PAUSE, LONGEST_PAUSE)
        require_number("Retry(pause=)", pause, SHORTEST_PAUSE, most)
        self.attempts = attempts
        self.pause = pause
        self.most = most
        self.made_again = 0
        """Attempts after a first one, since the start."""
        self._tools = frozenset(tools)
        # By client, the tools that its server says are idempotent: another server may have one of the same name.
        self._hints: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Retry attempts={self.attempts} made_again={self.made_again}>"

    async def __call__(self, call: ClientCall, call_next: SendNext, /) -> Any:
        """Makes a call, and makes it again; raises what the last attempt raised."""
        if not self._may_be_repeated(call):
            return self._learn(call, await call_next())
        ends = trio.current_time() + call.options.cap
        pause = self.pause
        attempt, number = attrs.evolve(call, retried=True), 1
        while True:
            try:
                return self._learn(call, await call_next(attempt))
            except _PASSING as error:
                wait = self._wait(error, pause)
                left = ends - trio.current_time() - wait
                if number == self.attempts or wait > self.most or left <= 0:
                    raise
            pause = min(pause * 2, self.most)
            await trio.sleep(wait)
            self.made_again += 1
            number += 1
            # All attempts together have the time of one call.
            attempt = attrs.evolve(attempt, options=attrs.evolve(call.options, cap=left))

    def _wait(self, error: Exception, pause: float) -> float:
        asked = error.retry_after if isinstance(error, Overloaded | Unavailable) else None
        wait = pause * random.uniform(0.5, 1.0)
        return wait if asked is None else max(asked, wait)

    def _may_be_repeated(self, call: ClientCall) -> bool:
        if call.retried:
            return False
        if call.method != "tools/call":
            return call.method in IDEMPOTENT
        # A task that was begun would be begun twice.
        if "task" in call.params:
            return False
        name = call.params.get("name")
        if not isinstance(name, str):
            return False
        return name in self._tools or (call.client is not None and name in self._hints.get(call.client, ()))

    def _learn(self, call: ClientCall, result: Any) -> Any:
        if isinstance(result, ListToolsResult) and call.client is not None:
            known = self._hints.setdefault(call.client, set())
            for tool in result.tools:
                hints = tool.annotations
                if hints is not None and (hints.idempotent_hint or hints.read_only_hint):
                    if len(known) < MAX_TOOLS:
                        known.add(tool.name)
                else:
                    known.discard(tool.name)
        return result
