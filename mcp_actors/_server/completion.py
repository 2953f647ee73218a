"""Completion of prompt arguments and template variables (MCP, Server Features, Utilities, Completion)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import attrs
import msgspec

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._schema.signature import injected_parameter, provided_parameters
from mcp_actors._server.context import Context
from mcp_actors._server.dependencies import function
from mcp_actors._server.invoke import (
    ForSync,
    Function,
    Handler,
    Loop,
    WorkerThreads,
    string_param,
    uri_param,
)
from mcp_actors._server.prompts import Prompts
from mcp_actors._server.registry import NO_SCOPES
from mcp_actors._server.resources import Resources
from mcp_actors._server.sources import with_entry
from mcp_actors._server.text_arguments import TextArgument
from mcp_actors.errors import LocalProtocolError, invalid_params

__all__ = ["MAX_VALUES", "Completions"]

MAX_VALUES = 100
"""How many values one answer may hold, by the protocol."""

_Key = tuple[Literal["prompt", "resource"], str, str]


class _CompletionEntry(msgspec.Struct, frozen=True, eq=False):
    names: tuple[str, ...]
    function: Function


class Completions:
    """The completion functions of one server and the handler of ``completion/complete``.

    What a function completes is looked up in ``prompts`` and ``resources`` when it is asked for, so the order of
    registration does not matter. An argument whose annotation lists its values completes by itself.
    """

    def __init__(
        self,
        *,
        injected: type,
        for_sync: ForSync,
        threads: WorkerThreads,
        prompts: Prompts,
        resources: Resources,
    ) -> None:
        self._injected = injected
        self._for_sync = for_sync
        self._threads = threads
        self._prompts = prompts
        self._resources = resources
        self._entries: dict[_Key, _CompletionEntry] = {}
        self.followers: tuple[Any, ...] = ()
        """Other servers in which this one is mounted: each has ``inserted(key, entry)`` and ``removed(key)``."""

    def add(
        self,
        call: Callable[..., Any],
        *,
        argument: str,
        prompt: str | None = None,
        resource: str | None = None,
        inline: bool = False,
        loop: Loop = None,
    ) -> None:
        """Has ``call`` complete ``argument`` of the prompt, or of the resource template (its text), that is named.

        ``call`` takes what is typed so far and, if it wants them, the arguments that have a value already (a mapping of
        strings) and the context. It returns strings, best first, or a `Completion`. Of a sequence longer than 100
        the rest is only counted; of an iterator no more than 101 values are drawn.

        Raises `TypeError` unless exactly one of ``prompt`` and ``resource`` is given or when ``call`` takes other
        arguments, `LocalProtocolError` when there is a function for it already.
        """
        if (prompt is None) == (resource is None):
            raise TypeError(
                "a completion is for a prompt or for a resource template: give one of prompt=, resource="
            )
        key: _Key = (
            ("prompt", prompt, argument) if prompt is not None else ("resource", str(resource), argument)
        )
        if key in self._entries:
            raise LocalProtocolError(
                f"there is already a completion of {argument!r} for the {key[0]} {key[1]!r}"
            )
        injected_name = injected_parameter(call, self._injected)
        ready = function(
            call,
            injected_name=injected_name,
            for_sync=self._for_sync,
            inline=inline,
            threads=self._threads,
            draw=_completion,
            loop=loop,
        )
        self.insert(key, _CompletionEntry(_parameters(call, injected_name), ready))

    def remove(self, *, argument: str, prompt: str | None = None, resource: str | None = None) -> None:
        """Raises `LocalProtocolError` when there is no such completion."""
        key: _Key = (
            ("prompt", prompt, argument) if prompt is not None else ("resource", str(resource), argument)
        )
        if not self.discard(key):
            raise LocalProtocolError(f"there is no completion of {argument!r} for the {key[0]} {key[1]!r}")

    def insert(self, key: _Key, entry: _CompletionEntry) -> None:
        """Adds a function that was made ready."""
        self._entries[key] = entry
        for each in self.followers:
            each.inserted(key, entry)

    def discard(self, key: _Key) -> bool:
        """Removes a function; returns whether there was one."""
        if self._entries.pop(key, None) is None:
            return False
        for each in self.followers:
            each.removed(key)
        return True

    def has(self, key: _Key) -> bool:
        """Whether a function completes an argument."""
        return key in self._entries

    def entries(self) -> list[tuple[_Key, _CompletionEntry]]:
        """All functions, each with what it completes."""
        return list(self._entries.items())

    def scopes_of(self, ref: object) -> frozenset[str]:
        """The scopes that a caller needs for completions of what ``ref`` names: those of the prompt or resource."""
        if not isinstance(ref, dict):
            return NO_SCOPES
        if ref.get("type") == "ref/prompt":
            return self._prompts.scopes_of(ref.get("name"))
        return self._resources.scopes_of(ref.get("uri"))

    def handlers(self) -> Mapping[str, Handler]:
        return {"completion/complete": self._complete}

    def _complete(self, ctx: Context) -> Any:
        asked = _asked_for(ctx.params)
        kind, target, _ = asked.key
        use = partial(self._answer, ctx, asked)
        if kind == "prompt":
            return with_entry(self._prompts, ctx, "prompt", target, use)
        return with_entry(self._resources, ctx, "template", target, use)

    def _answer(self, ctx: Context, asked: _Asked, entry: Any) -> t.CompleteResult | Continuation:
        kind, target, name = asked.key
        if entry is None:
            raise invalid_params(f"unknown {kind}: {target}")
        is_resource = kind == "resource" and entry.template is None
        declared = None if is_resource else entry.arguments.by_name.get(name)
        if declared is None:
            raise invalid_params(f"the {kind} {target} has no argument {name}")
        found = self._entries.get(asked.key, declared)
        if isinstance(found, TextArgument):
            return t.CompleteResult(_beginning_with(asked.value, found.choices))
        arguments = _arguments(found, ctx.params, asked.value)
        if not found.function.inline:
            return Continuation(_run, found, ctx, arguments)
        return t.CompleteResult(_completion(found.function.call(ctx, arguments)))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Completions of {len(self._entries)} arguments>"


class _Asked(NamedTuple):
    """The argument that is to be completed, and its value so far."""

    key: _Key
    value: str


def _asked_for(params: Mapping[str, Any]) -> _Asked:
    ref = _object_param(params, "ref")
    argument = _object_param(params, "argument")
    name, value = string_param(argument, "name"), string_param(argument, "value")
    kind = ref.get("type")
    if kind == "ref/prompt":
        return _Asked(("prompt", string_param(ref, "name"), name), value)
    if kind == "ref/resource":
        return _Asked(("resource", uri_param(ref), name), value)
    raise invalid_params("'ref.type' must be 'ref/prompt' or 'ref/resource'")


async def _run(entry: _CompletionEntry, ctx: Context, arguments: dict[str, Any]) -> t.CompleteResult:
    return t.CompleteResult(_completion(await entry.function.call(ctx, arguments)))


def _object_param(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name)
    if not isinstance(value, dict):
        raise invalid_params(f"{name!r} must be an object")
    return value


def _parameters(call: Callable[..., Any], injected_name: str | None) -> tuple[str, ...]:
    filled = {injected_name, *provided_parameters(call)}
    parameters = [each for each in inspect.signature(call).parameters.values() if each.name not in filled]
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if len(named) != len(parameters) or not 1 <= len(named) <= 2:
        raise TypeError(
            f"{call!r}: a completion takes what is typed so far and, if it likes, the other arguments"
        )
    return tuple(each.name for each in named)


def _arguments(entry: _CompletionEntry, params: Mapping[str, Any], value: str) -> dict[str, Any]:
    if len(entry.names) == 1:
        return {entry.names[0]: value}
    context = params.get("context")
    settled = context.get("arguments") if isinstance(context, dict) else None
    if settled is None:
        settled = {}
    if not isinstance(settled, dict) or not all(isinstance(each, str) for each in settled.values()):
        raise invalid_params("'context.arguments' must be an object of strings")
    return {entry.names[0]: value, entry.names[1]: settled}


def _beginning_with(value: str, choices: Iterable[str]) -> t.Completion:
    wanted = value.casefold()
    return _first([choice for choice in choices if choice.casefold().startswith(wanted)])


def _completion(found: Any) -> t.Completion:
    if isinstance(found, t.Completion):
        if len(found.values) <= MAX_VALUES:
            return found
        total = len(found.values) if found.total is None else found.total
        return attrs.evolve(found, values=found.values[:MAX_VALUES], total=total, has_more=True)
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise InvalidResult(f"{type(found).__name__}; a completion returns strings or a Completion")
    return _first(found)


def _first(found: Iterable[Any]) -> t.Completion:
    values = list(islice(found, MAX_VALUES + 1))
    if not all(isinstance(value, str) for value in values):
        raise InvalidResult("values that are not strings")
    if len(values) <= MAX_VALUES:
        return t.Completion(values, len(values), False)
    return t.Completion(values[:MAX_VALUES], len(found) if isinstance(found, Sized) else None, True)
