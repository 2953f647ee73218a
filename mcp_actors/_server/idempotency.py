"""Calls with keys: one that was lost and is made again is answered from what the first one left.

::

    @server.tool(idempotent=timedelta(hours=24))
    async def transfer(cents: int, to: str) -> Receipt: ...

    receipt = await client.call_tool("transfer", {"cents": 4200, "to": "Ann"}, key="order-4711", returns=Receipt)

The answer is kept in the server's shared state under the caller, the tool and the key, with a digest of the arguments:

=======================================  =============================================================================
a call with a key that was used before   what it gets
=======================================  =============================================================================
while the first one runs                 the same answer: it waits, at any node
after the answer                         the same answer
with other arguments                     `KeyConflict`
after its process died, or was stopped   `OutcomeUnknown`: its function is never begun again
while the shared state is away           `SharedStateUnavailable`: nothing was begun
=======================================  =============================================================================

A function that was called with a key runs on when the connection of its caller is lost, for at most the time for which
its answer is kept; whoever calls with the key then hears of its progress. It is cancelled when its caller says so
(``notifications/cancelled``; over HTTP a stateless client has no way to say it), when an operator ends its call, and
when the server stops. An answer is kept whatever it says, but for one that says that nothing was begun: arguments that
do not fit, and `Overloaded`, `ServerStopping` or `InsufficientScope` where the function itself has not raised it.

Callers are told apart by their principals. Those that are not authenticated are one caller: the key and the arguments
of a call together open its answer.

Each round of questions to a stateless client (MCP 2026-07-28, Multi Round-Trip Requests) has an answer of its own under
the key. Once the last one is there, it is the answer to the first one, too.

It is an extension of the protocol (SEP-2133), `IDEMPOTENCY`. A call carries its key in ``_meta`` as `KEY`, and the
listed tool says in its ``_meta`` that it takes keys.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import trio

from mcp_actors._actors.limits import WEIGHED_BYTES, HeldBytes
from mcp_actors._eras.era import IDEMPOTENCY, KEY
from mcp_actors._server.claims import ClaimEntry, entry_with_outcome, load, replace
from mcp_actors._server.components import VERSION
from mcp_actors._server.context import Context, holder_of
from mcp_actors._server.features import Features
from mcp_actors._server.middleware import CallNext
from mcp_actors._server.questions import answers_or_question, ask_by_requests
from mcp_actors._server.server_extension import ServerExtension, Serving, detached, outcome
from mcp_actors._wire.codec import encode_value
from mcp_actors.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InsufficientScope,
    KeyConflict,
    OutcomeUnknown,
    Overloaded,
    RpcError,
    ServerStopping,
    SharedStateUnavailable,
    invalid_params,
)
from mcp_actors.supervision.budget import Budget
from mcp_actors.supervision.containment import start
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.task_kinds import KEYED_CALL
from mcp_actors.types import InputRequest, InputResponse

__all__ = ["IDEMPOTENCY", "KEY", "Idempotency"]

LONGEST_KEY = 256
_MIB = 1024 * 1024
# Seconds between two attempts to write to a shared state that is away, at first and at last, and seconds in which a
# claim of which nothing was begun is given back.
RETRY_FIRST, RETRY_LAST, RELEASE_BOUND = 0.1, 5.0, 30.0
CLAIM_MARGIN = 86_400.0
"""Seconds for which a claim is kept longer than its function may run.

It is there while the function cleans up, and when a clock has jumped; a key whose process died is refused for so long.
"""
MOST_COUNTED = 100_000
"""Answers that one node counts by their callers."""
# Seconds in which functions may clean up when the server has stopped.
CLEANUP_BOUND = 2.0
# What is written in place of an answer that nobody will ever know.
_UNKNOWN: dict[str, Any] = {"unknown": True}


class Idempotency(ServerExtension):
    """Keeps the answers to calls with keys; see `mcp_actors.extensions.Idempotency`.

    A server with a tool that is registered with ``idempotent=`` has one with these defaults.

    Args:
        running: Calls with keys that run at once at one node, 1000; one principal or, without one, one address, may
            have half of them. The function of each holds what a call holds.
        per_caller: Answers that are kept for one principal or, without one, one address, by each node: 10,000. The
            oldest ones are dropped first, with a warning in the log.
        bytes_per_caller: Bytes of these answers: 16 MiB, a quarter of what the state in memory has room for.

    Raises:
        ValueError: A number is less than 1.
    """

    def __init__(
        self, *, running: int = 1000, per_caller: int = 10_000, bytes_per_caller: int = 16 * _MIB
    ) -> None:
        super().__init__(IDEMPOTENCY)
        for name, value in (("running", running), ("per_caller", per_caller)):
            if value < 1:
                raise ValueError(f"{name}={value!r}: at least one call with a key has to fit")
        if bytes_per_caller < 1:
            raise ValueError(f"bytes_per_caller={bytes_per_caller!r}: answers need room")
        self._running = running
        self._bounds = (per_caller, bytes_per_caller)
        self._nodes: list[_KeyedNode] = []
        self.serving(self._serve)
        self.around("tools/call", when=lambda params: False, meta=KEY)(self._call)

    @asynccontextmanager
    async def _serve(self, serving: Serving) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            node = _KeyedNode(serving, nursery, Budget(self._running), *self._bounds)
            self._nodes.append(node)
            try:
                yield
            finally:
                self._nodes.remove(node)
                await node.stop()
                nursery.cancel_scope.cancel(reason="the server has stopped")

    def offered(self, features: Features) -> None:
        """Is called by the server that it is given to. It runs outside of what makes tasks of calls."""
        super().offered(features)
        around = features.around["tools/call"]
        around.insert(0, around.pop())

    def goes_on_from(self, former: object) -> bool:
        """Whether ``former`` kept answers, too: then the calls that run are the same."""
        if isinstance(former, Idempotency):
            self._nodes = former._nodes
            return True
        return False

    async def _call(self, ctx: Context, call_next: CallNext) -> Any:
        key, tool = ctx.meta[KEY], ctx.params.get("name")
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
            raise invalid_params(f"the key of a call is a text of 1 to {LONGEST_KEY} characters")
        seconds = ctx.server._features.tools.answers_kept(tool)
        if not isinstance(tool, str) or not seconds:
            raise invalid_params(
                f"the tool {tool!r:.200} keeps no answers, so that nothing was begun: call it without a key"
            )
        if not self._nodes:
            raise ServerStopping()
        node = next((each for each in self._nodes if each.serves(ctx)), self._nodes[0])
        return await node.answer(ctx, call_next, _KeyedPlace.of(ctx, tool, key), seconds)


class _KeyedPlace(NamedTuple):
    """The place of an answer in the shared state, and what tells its request from others with the same key."""

    tool: str
    key: str
    of_round: str
    """The key in the shared state, which says nothing of what it is made of."""
    of_first: str
    """That of the first round of the call."""
    digest: str
    size: int
    """Bytes of what the function holds of the request."""

    @classmethod
    def of(cls, ctx: Context, tool: str, key: str) -> _KeyedPlace:
        principal, invocation = ctx.principal, ctx.call.invocation
        owner = "" if principal is None else principal.key
        version = ctx.params.get(VERSION, ctx.meta.get(VERSION))
        request = _encoded([ctx.params.get("arguments") or {}, invocation.answers or {}, version])
        return cls(
            tool,
            key,
            _digest(["answer", owner, tool, key, invocation.state or ""]),
            _digest(["answer", owner, tool, key, ""]),
            hashlib.sha256(request).hexdigest(),
            len(request),
        )

    def check(self, entry: ClaimEntry) -> None:
        """Raises `KeyConflict` if an entry is that of another request."""
        if entry.digest != self.digest:
            raise KeyConflict(self.tool, self.key)

    def unknown(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"{self.tool}, key {self.key}")


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _digest(value: list[str]) -> str:
    return hashlib.sha256(_encoded(value)).hexdigest()


class _KeyedRun:
    """A call with a key that runs here; the `mcp_actors.extensions.Voice` of its function.

    Args:
        place: Where its answer is kept.
        seconds: How long it may run, and is kept.
    """

    def __init__(self, place: _KeyedPlace, seconds: float) -> None:
        self.place = place
        self.seconds = seconds
        # The end of the server gives it as much time as calls, and then cancels this scope.
        self.scope = trio.CancelScope(shield=True)
        self.answered = trio.Event()
        self.ended = trio.Event()
        """Behind `answered`: what is kept of it is kept, and it is forgotten here."""
        self.has_begun = False
        self.decided = trio.Event()
        """It is known whether the function begins."""
        self.waiting = 0
        """Callers that wait for the answer."""
        self.answer: Mapping[str, Any] | None = None
        """``{"result": …}`` or ``{"error": …}``; ``None`` if it was begun elsewhere."""
        self.refusal: RpcError | None = None
        """The reason why nothing was begun."""
        self.client: Context | None = None
        """The call of the caller that came last, as long as that waits."""
        self.ctx: Context | None = None
        """The context of the function."""
        self.held: HeldBytes | None = None
        self.question: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<call with a key of {self.place.tool}>"

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Passes a report of progress on to the caller that waits."""
        reports = None if self.client is None else self.client.call.reports
        if reports is not None:
            await _unless_gone(reports.report(progress, total, message))

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Passes a notification of the function on to the caller that waits."""
        if self.client is not None:
            await _unless_gone(self.client.call.notify(method, params))

    def stop(self) -> None:
        """Is called where a plain call gets no more beats; those of the callers go on."""

    async def ask(self, questions: Mapping[str, InputRequest]) -> Mapping[str, InputResponse]:
        """Asks the caller that waits: a session's client now, and a stateless one by the answer to this round.

        Raises:
            ConnectionLost: Nobody waits who could answer.
            McpError: As `Context.ask`.
        """
        ctx = self.ctx
        assert ctx is not None
        if not ctx.era.asks_by_retry:
            if self.client is None:
                raise ConnectionLost(f"the client that called {self.place.tool} has gone")
            return await ask_by_requests(self.client.call, self.client._scope, questions, None)
        answers, self.question = answers_or_question(ctx.call, ctx._scope, ctx._kept, questions)
        if self.question is not None:
            self.scope.cancel(reason="the client is asked for input; its retry runs this function again")
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return answers


async def _unless_gone(sent: Awaitable[None]) -> None:
    try:
        await sent
    except trio.BrokenResourceError:
        log.debug("the caller of a call with a key has gone")


class _KeyedNode:
    """The calls with keys of one `Server.serve`."""

    def __init__(
        self, serving: Serving, nursery: trio.Nursery, places: Budget, per_caller: int, bytes_per_caller: int
    ) -> None:
        self._serving = serving
        self._shared = serving.shared
        self._nursery = nursery
        self._places = places
        self._kept = _KeptAnswers(per_caller, bytes_per_caller)
        self._runs: dict[str, _KeyedRun] = {}
        self._is_stopping = False

    def serves(self, ctx: Context) -> bool:
        """Whether a call came to its `Server.serve`, whose end is the end of the function, too."""
        return self._serving.has_call(ctx)

    async def answer(self, ctx: Context, call_next: CallNext, place: _KeyedPlace, seconds: float) -> Any:
        """Returns the answer to a call. Cancelled by its caller, it cancels the function; otherwise that runs on.

        Raises:
            KeyConflict: The key belongs to another request.
            OutcomeUnknown: Nobody knows what came of the first call.
            SharedStateUnavailable: Nothing was begun, or the answer of another node cannot be read.
            RpcError: The answer.
        """
        while True:
            run = self._runs.get(place.of_round)
            if run is None:
                run = self._begin(ctx, call_next, place, seconds)
            elif run.place.digest != place.digest:
                if run.has_begun:
                    raise KeyConflict(place.tool, place.key)
                # Another node may have a call with the key: then it is this one's, and not that of the one found here.
                await run.decided.wait()
                continue
            await self._wait(ctx, run)
            if run.refusal is not None:
                raise RpcError.from_wire(run.refusal.code, run.refusal.message, run.refusal.data)
            if run.answer is not None:
                return _answered(run.answer, place)
            claims, what = ctx._scope.claims, place.unknown().data["what"]
            found = await entry_with_outcome(self._shared, claims, place.of_round, what, place.check)
            if found is not None:
                return _answered(found.outcome, place)
            # Nothing was begun by the one that had claimed it.

    async def _wait(self, ctx: Context, run: _KeyedRun) -> None:
        run.client = ctx
        run.waiting += 1
        try:
            await run.answered.wait()
        finally:
            run.waiting -= 1
            if run.client is ctx:
                run.client = None
            if not run.waiting and (ctx.call.withdrawn or ctx.call.state == "replaced"):
                run.scope.cancel(reason="its caller has cancelled the call")

    def _begin(self, ctx: Context, call_next: CallNext, place: _KeyedPlace, seconds: float) -> _KeyedRun:
        """Starts a call that is not known here. Never waits; raises `Overloaded` and `ServerStopping`."""
        if self._is_stopping:
            raise ServerStopping()
        holder = holder_of(ctx)
        over = self._places.charge(holder, 1)
        if over is not None:
            raise Overloaded.for_tasks("running calls with keys", over, self._places.limit_of(over))
        run = _KeyedRun(place, seconds)
        memory = ctx.call.owner.limiters.memory
        try:
            run.ctx = later = detached(ctx, run, with_answers=True)
            if memory is not None and place.size >= WEIGHED_BYTES:
                # The call gives its own bytes back when its caller goes; the function has them still.
                run.held = memory.hold(ctx.call.invocation, place.size)
        except BaseException:
            self._places.release(holder, 1)
            raise
        self._runs[place.of_round] = run
        start(
            self._nursery,
            KEYED_CALL,
            self._go,
            run,
            partial(call_next, later),
            holder,
            about=place.tool,
            on_crash=lambda error: None,
        )
        return run

    async def _go(self, run: _KeyedRun, function: Callable[[], Awaitable[Any]], holder: str | None) -> None:
        ctx = run.ctx
        assert ctx is not None
        claims = ctx._scope.claims
        claim = claims.begin(self._shared, run)
        entry = ClaimEntry(claim, digest=run.place.digest)
        try:
            if not await self._is_claimed(run, entry):
                self._forget(run)
                if run.refusal is not None:
                    # The state may have the claim all the same.
                    await self._release(run, entry)
            elif run.scope.cancel_called:
                await self._release(run, entry)
            else:
                run.has_begun = True
                run.decided.set()
                run.answer = answer = await self._outcome(run, ctx, function)
                run.answered.set()
                # Callers of this node find the answer here until it is kept.
                if _says_that_nothing_was_begun(ctx, answer):
                    await self._release(run, entry)
                else:
                    await self._keep(run.place, entry, answer, run.seconds, holder)
        finally:
            self._forget(run)
            claims.end(claim)
            self._places.release(holder, 1)
            if run.held is not None:
                run.held.leave()
            # Nothing that the caller sent is kept behind the answer.
            run.ctx = None
            run.ended.set()

    def _forget(self, run: _KeyedRun) -> None:
        """The next call with its key asks the shared state."""
        if self._runs.get(run.place.of_round) is run:
            del self._runs[run.place.of_round]
        run.decided.set()
        run.answered.set()

    async def _is_claimed(self, run: _KeyedRun, entry: ClaimEntry) -> bool:
        """Whether the function may begin, as nobody has begun it before."""
        claimed = False
        try:
            # Not cancelled in between: it would not be known whose claim there is. The state bounds how long it takes.
            with trio.CancelScope(shield=True):
                seconds = run.seconds + CLAIM_MARGIN
                claimed = await replace(self._shared, run.place.of_round, None, entry, seconds)
        except SharedStateUnavailable as error:
            run.refusal = error
        return claimed

    async def _release(self, run: _KeyedRun, entry: ClaimEntry) -> None:
        """Gives a claim back of which nothing was begun; callers at other nodes wait for that."""
        with trio.move_on_after(RELEASE_BOUND):
            await self._write(run.place.of_round, entry, None, RELEASE_BOUND)

    async def _outcome(
        self, run: _KeyedRun, ctx: Context, function: Callable[[], Awaitable[Any]]
    ) -> Mapping[str, Any]:
        with run.scope, trio.move_on_after(run.seconds):
            return await outcome(ctx, function)
        return _UNKNOWN if run.question is None else {"result": run.question}

    # -- what is kept ----------------------------------------------------------------------------------------------

    async def _keep(
        self,
        place: _KeyedPlace,
        before: ClaimEntry,
        answer: Mapping[str, Any],
        seconds: float,
        holder: str | None,
    ) -> None:
        """Keeps an answer; while the state is away, it tries again, and those who call at other nodes wait."""
        after = ClaimEntry(before.claim, answer, before.digest)
        size = len(encode_value(answer))
        with trio.move_on_after(seconds):
            # First, so that it makes room.
            await self._drop_oldest(holder, place.of_round, size, seconds)
            await self._write(place.of_round, before, after, seconds)
            if place.of_first != place.of_round and not _asks(answer):
                await self._drop_oldest(holder, place.of_first, size, seconds)
                await self._replace_first(place, after, seconds)

    async def _replace_first(self, place: _KeyedPlace, after: ClaimEntry, seconds: float) -> None:
        """Makes the last answer of a call that has asked the one to its first round."""
        try:
            first = await load(self._shared, place.of_first)
            if first is not None:
                answered = ClaimEntry(after.claim, after.outcome, first.digest)
                await replace(self._shared, place.of_first, first, answered, seconds)
        except SharedStateUnavailable as error:
            log.warning(
                "a call with a key that is made anew will be asked again", tool=place.tool, cause=error.cause
            )

    async def _write(self, key: str, before: ClaimEntry, after: ClaimEntry | None, seconds: float) -> None:
        pause = RETRY_FIRST
        while True:
            try:
                with trio.CancelScope(shield=True):
                    await replace(self._shared, key, before, after, seconds)
                return
            except SharedStateUnavailable as error:
                log.warning("the answer to a call with a key is not kept yet", cause=error.cause)
            await trio.sleep(pause)
            pause = min(pause * 2, RETRY_LAST)

    async def _drop_oldest(self, holder: str | None, key: str, size: int, seconds: float) -> None:
        for each in self._kept.add(holder, key, size, trio.current_time() + seconds):
            log.warning(
                "the oldest answer to a call with a key is dropped: its caller has too many", caller=holder
            )
            try:
                entry = await load(self._shared, each)
                if entry is not None and entry.outcome is not None:
                    await replace(self._shared, each, entry, None, 1.0)
            except SharedStateUnavailable as error:
                log.debug("an answer is kept until its time is up", cause=error.cause)

    # -- the end of the server -------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Gives the functions as much time as calls, then cancels them: their outcomes are unknown."""
        self._is_stopping = True
        server = self._serving.server
        with trio.CancelScope(shield=True):
            await self._wait_until_ended(server.limits.drain_grace if server.stopping else 0.0)
            for each in self._runs.values():
                each.scope.cancel(reason="the server has stopped")
            await self._wait_until_ended(CLEANUP_BOUND)

    async def _wait_until_ended(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while self._runs:
                await next(iter(self._runs.values())).ended.wait()


class _CountedAnswer(NamedTuple):
    holder: str | None
    size: int
    until: float


class _KeptAnswers:
    """The answers that one node has kept, oldest first, `MOST_COUNTED` at most; those before are counted no more.

    Args:
        number: Answers of one caller.
        bytes: Bytes of these.
    """

    def __init__(self, number: int, bytes: int) -> None:
        self._number, self._bytes = number, bytes
        self._answers: OrderedDict[str, _CountedAnswer] = OrderedDict()
        self._keys: dict[str | None, OrderedDict[str, None]] = {}
        self._sizes: dict[str | None, int] = {}

    def __repr__(self) -> str:
        return f"<_KeptAnswers {len(self._answers)} answers of {len(self._keys)} callers>"

    def add(self, holder: str | None, key: str, size: int, until: float) -> list[str]:
        """Counts an answer, and returns the keys of those of its caller that have to be dropped for it."""
        now = trio.current_time()
        while self._answers:
            oldest = next(iter(self._answers))
            if self._answers[oldest].until > now and len(self._answers) < MOST_COUNTED:
                break
            self._forget(oldest)
        self._forget(key)
        self._answers[key] = _CountedAnswer(holder, size, until)
        keys = self._keys.setdefault(holder, OrderedDict())
        keys[key] = None
        self._sizes[holder] = self._sizes.get(holder, 0) + size
        dropped: list[str] = []
        while len(keys) > 1 and (len(keys) > self._number or self._sizes[holder] > self._bytes):
            dropped.append(next(iter(keys)))
            self._forget(dropped[-1])
        return dropped

    def _forget(self, key: str) -> None:
        answer = self._answers.pop(key, None)
        if answer is None:
            return
        keys = self._keys[answer.holder]
        del keys[key]
        self._sizes[answer.holder] -= answer.size
        if not keys:
            del self._keys[answer.holder], self._sizes[answer.holder]


def _answered(answer: Mapping[str, Any], place: _KeyedPlace) -> Any:
    if "result" in answer:
        return answer["result"]
    if "error" in answer:
        error = answer["error"]
        raise RpcError.from_wire(error["code"], error["message"], error.get("data"))
    raise place.unknown()


def _asks(answer: Mapping[str, Any]) -> bool:
    result = answer.get("result")
    return isinstance(result, dict) and result.get("resultType") == "input_required"


def _says_that_nothing_was_begun(ctx: Context, answer: Mapping[str, Any]) -> bool:
    if ctx.call.refused:
        return True
    # What the function raises says nothing of what it did before.
    if "error" not in answer or ctx.call.raised:
        return False
    error = RpcError.from_wire(
        answer["error"]["code"], answer["error"]["message"], answer["error"].get("data")
    )
    return isinstance(error, Overloaded | InsufficientScope) or (
        isinstance(error, ServerStopping | DeadlineExceeded) and not error.begun
    )
