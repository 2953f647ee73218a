"""``ctx.once``: what a call does once, in however many runs its function begins again.

A function runs again from its start for each question that a stateless client has answered (MCP 2026-07-28, Multi
Round-Trip Requests), and at another node when that of a restartable task has gone. Where an outcome is kept:

===================================  ===================================================================================
the call                             its outcomes
===================================  ===================================================================================
waits while its client is asked      are nowhere: its function has one run
is stateless, in its first run       are in the ``requestState``, sealed
is stateless, in a later run         are there too, and in the shared state: a client may send one retry twice
is a restartable task                are in the shared state
===================================  ===================================================================================

The seal has room for `MOST_SEALED` bytes of them, and for others a note that they are in the shared state. There an
effect is claimed in one atomic step before it begins: see `mcp_actors._server.claims`.
"""

from __future__ import annotations

import builtins
import inspect
import secrets
import time
import types
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import trio

from mcp_actors._schema.convert import ConversionError
from mcp_actors._schema.returned import conversion, output_encoder
from mcp_actors._schema.signature import function_hints
from mcp_actors._server.claims import Claim, ClaimEntry, Claims, entry_with_outcome, replace
from mcp_actors._server.invoke import body_of, is_async
from mcp_actors._wire.codec import encode_value
from mcp_actors.abc import OpenState
from mcp_actors.errors import (
    CallCancelled,
    OnceConflict,
    OnceFailed,
    OutcomeUnknown,
    RpcError,
    SharedStateUnavailable,
    ToolError,
)
from mcp_actors.supervision.containment import is_cancelled
from mcp_actors.supervision.logging import log
from mcp_actors.supervision.printable import encodable, text_of

__all__ = ["LONGEST_CALL", "MOST_SEALED", "CallEffects", "Effect", "boxed", "failure", "is_awaitable"]

MOST_SEALED = 4096
"""Bytes of all outcomes of a call that its ``requestState`` has; others are in the shared state."""
LONGEST_CALL = 86400.0
"""Seconds from the first question of a stateless call to the last retry that is taken: so long are its effects kept."""
MOST_EFFECTS = 256
"""CallEffects of one call, which all are in its ``requestState``."""
LONGEST_NAME = 200
# Characters of an exception's text that are kept.
_LONGEST_TEXT = 1000

# An outcome, as JSON has it: ["value", V], ["tool", TEXT], ["rpc", CODE, MESSAGE, DATA], ["error", TEXT], ["unknown"],
# or ["stored"], which says that it is in the shared state.
_Outcome = list[Any]
_STORED: _Outcome = ["stored"]
_UNKNOWN: _Outcome = ["unknown"]
_UNKNOWN_SIZE = len(encode_value(_UNKNOWN))


class _Met(NamedTuple):
    """An effect that an earlier run of the call has met."""

    name: str
    function: str
    outcome: _Outcome


class CallEffects:
    """The effects of one call.

    Args:
        id: The unguessable id of the call, which is the same in all its runs; ``None`` for a call that has one run.
        until: The time in seconds since the epoch until which a later run may begin.
        is_claimed: Whether effects are claimed in the shared state before they begin.
        met: The effects that earlier runs have met, as `sealed` has them.
    """

    __slots__ = ("_is_claimed", "_met", "_position", "_running", "_sealed", "id", "until")

    def __init__(self, id: str | None, until: float, is_claimed: bool, met: Sequence[_Met] = ()) -> None:
        self.id = id
        self.until = until
        self._is_claimed = is_claimed
        self._met = [*met]
        # Those that this run has met; the others behind them are still expected, in this order.
        self._position = 0
        self._running = ""
        self._sealed = -1

    @classmethod
    def of_new_call(cls) -> CallEffects:
        """Returns those of a stateless call that has just begun."""
        return cls(secrets.token_urlsafe(16), time.time() + LONGEST_CALL, False)

    @classmethod
    def of_retry(cls, state: Mapping[str, Any]) -> CallEffects:
        """Returns those of a retry with what `sealed` has put into its state, if that is from a function."""
        if "call" not in state:
            return cls.of_new_call()
        return cls(state["call"], state["until"], True, [_Met(*each) for each in state.get("once", ())])

    def sealed(self) -> dict[str, Any]:
        """Returns what a retry needs to go on.

        Raises:
            OnceConflict: The function asks in the middle of an effect, which the question would cut off; or it has not
                come to an effect that an earlier run had met before.
        """
        if self._running:
            raise OnceConflict(
                f"{self._running!r} asks the client in the middle of ctx.once, which would begin it again with the "
                "answer: ask before it, or behind it"
            )
        if self._position < len(self._met):
            name = self._met[self._position].name
            raise OnceConflict(
                f"an earlier run of this call had run {name!r} once before it asked, and this run has not"
            )
        state: dict[str, Any] = {"call": self.id, "until": self.until}
        if self._met:
            state["once"] = self._met
        return state

    async def begin(
        self, shared: OpenState, claims: Claims, name: str, function: Callable[..., Any]
    ) -> Effect:
        """Returns the effect of a name, which either is to be run now, or `is_over`.

        Raises:
            OnceConflict: It does not fit to what this run or an earlier one has done.
            OutcomeUnknown: It was begun, and nobody knows what came of it.
            SharedStateUnavailable: The state cannot be reached; it was not begun.
            TypeError: JSON cannot have what the function returns.
        """
        effect = Effect(self, shared, claims, name, function)
        met = self._next(name, effect.function)
        # Before it waits: another one that comes meanwhile, or a question, has no order with it.
        self._running = name
        try:
            if met is not None and met.outcome != _STORED:
                effect.outcome = met.outcome
                await trio.lowlevel.checkpoint()
            elif met is not None or self._is_claimed:
                await effect.claim(may_begin=met is None)
            else:
                await trio.lowlevel.checkpoint()
        except BaseException:
            self.ended()
            raise
        if effect.outcome is not None:
            self.ended()
            if met is None:
                self.meet(effect, len(encode_value(effect.outcome)))
        return effect

    def _next(self, name: str, function: str) -> _Met | None:
        """Returns what an earlier run has met in this place."""
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or encodable(name) != name:
            raise TypeError(f"ctx.once takes a name of 1 to {LONGEST_NAME} characters, and then a function")
        if self._running:
            raise OnceConflict(
                f"ctx.once({name!r}) begins while {self._running!r} runs: the effects of a call have one order, so "
                "await one after the other, or put both into one function"
            )
        position = self._position
        if position and any(each.name == name for each in self._met[:position]):
            raise OnceConflict(
                f"ctx.once({name!r}) is used twice in one call: give each effect a name of its own"
            )
        if position == len(self._met):
            if position == MOST_EFFECTS:
                raise OnceConflict(
                    f"a call has at most {MOST_EFFECTS} effects: put several into one function"
                )
            return None
        met = self._met[position]
        if met.name != name:
            raise OnceConflict(
                f"ctx.once({name!r}) comes where an earlier run of this call had {met.name!r}: what is before a "
                "question must be the same in each run"
            )
        if met.function != function:
            raise OnceConflict(
                f"ctx.once({name!r}) has {function}, and an earlier run of this call had {met.function}: the server has"
                " changed in between; call again"
            )
        self._position += 1
        return met

    def ended(self) -> None:
        """The effect that ran runs no longer."""
        self._running = ""

    def meet(self, effect: Effect, size: int) -> None:
        """Takes note of an effect that is over, with an outcome of so many bytes."""
        assert effect.outcome is not None
        self._position += 1
        if self.has_room(size):
            self._met.append(_Met(effect.name, effect.function, effect.outcome))
            self._sealed += size
        else:
            self._met.append(_Met(effect.name, effect.function, _STORED))

    def has_room(self, size: int) -> bool:
        """Whether an outcome of so many bytes is sealed; if not, it belongs into the shared state."""
        if self._sealed < 0:
            self._sealed = sum([len(encode_value(each.outcome)) for each in self._met])
        return self.id is None or self._sealed + size <= MOST_SEALED


class Effect:
    """One effect in one run of a call."""

    __slots__ = (
        "__weakref__",
        "_claim",
        "_claims",
        "_described",
        "_effects",
        "_is_open",
        "_shared",
        "name",
        "outcome",
    )

    def __init__(
        self, effects: CallEffects, shared: OpenState, claims: Claims, name: str, function: Callable[..., Any]
    ) -> None:
        self._effects = effects
        self._shared = shared
        self._claims = claims
        self._claim: Claim | None = None
        self.name = name
        # Before it begins: a type that JSON does not have is no reason to lose an outcome.
        self._described = _described(function)
        self.outcome: _Outcome | None = None
        self._is_open = True

    @property
    def function(self) -> str:
        """The name of the function, which is the same one while the server is the same."""
        return self._described.name

    @property
    def is_async(self) -> bool:
        """Whether the function has to be awaited."""
        return self._described.is_async

    @property
    def is_over(self) -> bool:
        """Whether an earlier run has its outcome."""
        return self.outcome is not None

    def recall(self) -> Any:
        """Returns what the function has returned, or raises for what it has raised, in an earlier run.

        Raises:
            ToolError, RpcError: It raised this.
            OnceFailed: It raised anything else.
            OutcomeUnknown: It was cut off.
            OnceConflict: What it returned is not of the type that it returns now.
        """
        assert self.outcome is not None
        kind, *rest = self.outcome
        if kind == "value":
            return self._made(rest[0])
        if kind == "tool":
            raise ToolError(rest[0])
        if kind == "rpc":
            raise RpcError.from_wire(rest[0], rest[1], rest[2])
        if kind == "unknown":
            raise OutcomeUnknown(self.name)
        raise OnceFailed(self.name, rest[0])

    def _made(self, value: Any) -> Any:
        if value.__class__ in self._described.form.plain:
            return value
        try:
            return self._described.form.decode(value)
        except ConversionError as error:
            raise OnceConflict(
                f"ctx.once({self.name!r}): what it returned before is not what {self.function} returns: {error}"
            ) from None

    async def returned(self, value: Any) -> Any:
        """Keeps what the function has returned, and returns it as each later run gets it.

        Raises:
            TypeError: JSON cannot have it, or it cannot be made of JSON again as the declared type. That is kept as the
                outcome.
            SharedStateUnavailable: It is too large for the seal, and the shared state cannot be reached.
        """
        is_plain = value.__class__ in self._described.form.plain
        try:
            data = encode_value(["value", value if is_plain else self._described.form.encode(value)])
            # Once there and back, so that the first run does not see another value than the later ones.
            outcome = ["value", value] if is_plain else msgspec.json.decode(data)
            made = value if is_plain else self._described.form.decode(outcome[1])
        except Exception as error:
            problem = TypeError(
                f"ctx.once({self.name!r}): {self.function} returned what cannot be kept: {error}"
            )
            await self._keep(["error", f"TypeError: {problem}"])
            raise problem from None
        await self._keep(outcome, len(data))
        return made

    async def raised(self, error: BaseException, retry_errors: bool) -> None:
        """Keeps what the function has raised.

        Args:
            error: What it has raised.
            retry_errors: Whether an exception means that nothing was done, so that a later run may begin it again.
        """
        if is_cancelled() or isinstance(error, CallCancelled) or not isinstance(error, Exception):
            # Those who wait for it at other nodes learn it from the state.
            await self._keep(_UNKNOWN)
        elif retry_errors:
            await self._release()
        else:
            await self._keep(failure(error))

    async def over(self, outcome: list[Any] | None) -> None:
        """Keeps the outcome of a function that ran in another process; ``None`` lets a later run begin it again.

        Raises:
            SharedStateUnavailable: It is too large for the seal, and the shared state cannot be reached.
        """
        if outcome is None:
            await self._release()
        else:
            await self._keep(outcome)

    def lost(self) -> None:
        """Ends an effect that has no outcome, as it was cut off: nobody knows what it has done.

        It is not begun again. Does nothing where it has an outcome, or was released. Allowed in any thread, when its
        call waits for nothing else.
        """
        if self._is_open:
            self._end(_UNKNOWN, _UNKNOWN_SIZE)

    # -- in the shared state ---------------------------------------------------------------------------------------

    async def claim(self, may_begin: bool) -> None:
        """Claims the effect for this run, or finds or waits for the outcome of another one; raises as `begin` of those.

        Args:
            may_begin: Whether it may be begun; if not, its outcome has to be there.
        """
        claim = self._claims.begin(self._shared, self)
        try:
            # Not cancelled in between: it would not be known whose claim there is. The state bounds how long it takes.
            with trio.CancelScope(shield=True):
                if may_begin and await self._replace(None, ClaimEntry(claim)):
                    self._claim = claim
                    return
            found = await entry_with_outcome(self._shared, self._claims, self._key, self.name)
            if found is None:
                raise OutcomeUnknown(self.name)
            self.outcome = found.outcome
        finally:
            if self._claim is None:
                self._claims.end(claim)

    async def _keep(self, outcome: _Outcome, size: int | None = None) -> None:
        claim = self._claim
        size = len(encode_value(outcome)) if size is None else size
        is_large = outcome is not _UNKNOWN and not self._effects.has_room(size)
        if claim is not None or is_large:
            before = None if claim is None else ClaimEntry(claim)
            try:
                # The effect is done, so that its outcome is kept whether its call is cancelled or not.
                with trio.CancelScope(shield=True):
                    await self._replace(before, ClaimEntry(claim or ("", ""), outcome))
            except SharedStateUnavailable as error:
                if is_large:
                    self._end(_UNKNOWN, _UNKNOWN_SIZE)
                    raise
                log.warning(
                    "the outcome of an effect is not in the shared state", effect=self.name, cause=error.cause
                )
        self._end(outcome, size)

    async def _release(self) -> None:
        self._is_open = False
        self._effects.ended()
        claim, self._claim = self._claim, None
        if claim is None:
            return
        try:
            with trio.CancelScope(shield=True):
                await self._replace(ClaimEntry(claim), None)
        except SharedStateUnavailable as error:
            log.warning(
                "the claim of an effect that failed is not released", effect=self.name, cause=error.cause
            )
        finally:
            self._claims.end(claim)

    def _end(self, outcome: _Outcome, size: int) -> None:
        self._is_open = False
        self.outcome = outcome
        self._effects.meet(self, size)
        self._effects.ended()
        if self._claim is not None:
            self._claims.end(self._claim)

    @property
    def _key(self) -> str:
        return encode_value(["once", self._effects.id, self.name]).decode()

    async def _replace(self, before: ClaimEntry | None, after: ClaimEntry | None) -> bool:
        seconds = max(self._effects.until - time.time(), 1.0)
        return await replace(self._shared, self._key, before, after, seconds)


def boxed(function: Callable[..., Any], *arguments: Any) -> tuple[Any]:
    """Calls a function in a thread. Trio would refuse a coroutine from there, and lose it."""
    return (function(*arguments),)


def is_awaitable(value: object) -> bool:
    """Whether a function has only made what is to be awaited, as a ``lambda`` does that calls an ``async def``."""
    return hasattr(type(value), "__await__")


def failure(error: Exception) -> _Outcome:
    """Returns the outcome of a function that has raised ``error``, without what JSON cannot hold."""
    if isinstance(error, ToolError):
        return ["tool", text_of(error)[:_LONGEST_TEXT]]
    if not isinstance(error, RpcError):
        return ["error", f"{type(error).__qualname__}: {text_of(error)[:_LONGEST_TEXT]}"]
    try:
        encode_value(error.data)
    except (TypeError, ValueError):
        return ["rpc", error.code, encodable(error.message), None]
    return ["rpc", error.code, encodable(error.message), error.data]


class _KeptForm(NamedTuple):
    """The way in which a value of one type is kept."""

    plain: frozenset[type]
    """The classes of which every exact instance is what JSON makes of it, and fits the type."""
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


class _Described(NamedTuple):
    """A function with everything decided that can be decided before it is called."""

    name: str
    """The same one while the server is the same."""
    is_async: bool
    form: _KeptForm


# By what has the annotations of a function, for as long as that is there.
_known: weakref.WeakKeyDictionary[Any, _Described] = weakref.WeakKeyDictionary()


def _described(function: Callable[..., Any]) -> _Described:
    """Raises `TypeError` for what is no function, and for a result that has no form in JSON."""
    # A method is another object each time.
    key = function.__func__ if isinstance(function, types.MethodType) else function
    try:
        found = _known.get(key)
    except TypeError:  # some callables of C cannot be referred to weakly
        found = None
    if found is None:
        found = _description(function)
        with suppress(TypeError):
            _known[key] = found
    return found


def _description(function: Callable[..., Any]) -> _Described:
    if not callable(function):
        raise TypeError(f"ctx.once takes a name and then a function, not {function!r:.80}")
    body = inspect.unwrap(body_of(function))
    body = getattr(body, "__func__", body)
    name = f"{getattr(body, '__module__', '')}.{getattr(body, '__qualname__', type(body).__qualname__)}"
    return _Described(name, is_async(function), _form_of(_return_type(function, body)))


def _return_type(function: Callable[..., Any], body: Any) -> Any:
    # Most have the name of a class, or a class: with a function that is new in each call it pays not to resolve more.
    if body is function and isinstance(body, types.FunctionType):
        hint = body.__annotations__.get("return", Any)
        if hint is None or hint == "None":
            return type(None)
        if isinstance(hint, str):
            hint = body.__globals__.get(hint, getattr(builtins, hint, hint))
        if isinstance(hint, type):
            return hint
    try:
        hint = function_hints(function).get("return", Any)
    except (TypeError, NameError, AttributeError):
        return Any
    return type(None) if hint is None else hint


_PLAIN: frozenset[type] = frozenset({str, int, bool, type(None)})


def _form(hint: Any) -> _KeptForm:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members: tuple[Any, ...] = typing.get_args(hint) if is_union else (hint,)
    if hint is Any:
        members = tuple(_PLAIN)
    is_plain = all(isinstance(each, type) and each in _PLAIN for each in members)
    return _KeptForm(
        frozenset(members if is_plain else ()), output_encoder(hint, lambda: None), conversion(hint)
    )


# A function that is defined in another one is a new one in each call.
_remembered = lru_cache(256)(_form)


def _form_of(hint: Any) -> _KeptForm:
    try:
        return _remembered(hint)
    except TypeError:
        # It cannot be hashed, such as one that is annotated with a dict; or has no form, which raises once more.
        return _form(hint)
