"""Prompts: messages that a person picks and fills in (MCP, Server Features, Prompts)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import Continuation
from mcp_actors._actors.responses import InvalidResult
from mcp_actors._schema.signature import InvalidArguments, read_signature
from mcp_actors._server.content import UnreadFiles, as_blocks
from mcp_actors._server.context import Context
from mcp_actors._server.dependencies import function
from mcp_actors._server.invoke import Function, Handler, Loop, name_of, string_param, with_files_read
from mcp_actors._server.registry import Registry
from mcp_actors._server.sources import list_result, with_entry
from mcp_actors._server.text_arguments import TextArgument, TextArguments
from mcp_actors._server.visibility import Exposure, make_exposure
from mcp_actors.errors import invalid_params
from mcp_actors.types import Icon

__all__ = ["Prompts"]


class _PromptEntry(msgspec.Struct, frozen=True, eq=False):
    key: str
    serial: int
    prompt: t.Prompt
    arguments: TextArguments
    function: Function
    scopes: frozenset[str]
    exposure: Exposure


class Prompts(Registry[_PromptEntry]):
    """The prompts of one server and the handlers of ``prompts/list`` and ``prompts/get``."""

    what = "prompt"
    shown_as = "prompt"

    def add(self, call: Callable[..., Any], **options: Any) -> t.Prompt:
        """Adds ``call`` as a prompt and returns how clients see it; see `entry` for the options.

        Raises what `entry` does, and `LocalProtocolError` for a name that is taken.
        """
        entry = self.entry(call, serial=self.next_serial(), **options)
        self.insert(entry)
        return entry.prompt

    def entry(
        self,
        call: Callable[..., Any],
        *,
        serial: int = 0,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: Sequence[Icon] = (),
        meta: Mapping[str, Any] | None = None,
        inline: bool = False,
        loop: Loop = None,
        scopes: Iterable[str] = (),
        **exposed: Any,
    ) -> _PromptEntry:
        """Makes the entry of a prompt.

        Its parameters are the prompt's arguments, optional when they have a default, described by the docstring. They
        come as text, which is read for parameters of other types. It returns a string or a content block (one message
        of the user), a `PromptMessage`, a list of these, or a whole `GetPromptResult`. A caller needs all ``scopes``.
        What is ``exposed`` says who sees it: see `make_exposure`.

        Raises `TypeError` for a parameter that nothing can be written for.
        """
        name = name_of(call) if name is None else name
        signature = read_signature(call, injected=self._injected)
        arguments = TextArguments(signature, of=f"prompt {name!r}")
        exposure, meta = make_exposure("prompt", name, meta, **exposed)
        prompt = t.Prompt(
            name,
            title=title,
            description=description or signature.description or title or name,
            arguments=[_listed(argument) for argument in arguments.by_name.values()] or None,
            icons=list(icons) or None,
            meta=meta,
        )
        ready = function(
            call,
            injected_name=signature.injected_name,
            for_sync=self._for_sync,
            inline=inline,
            threads=self._threads,
            loop=loop,
        )
        return _PromptEntry(name, serial, prompt, arguments, ready, frozenset(scopes), exposure)

    def get(self, name: str) -> t.Prompt | None:
        """The prompt as clients see it, or ``None``."""
        entry = self.by_key.get(name)
        return None if entry is None else entry.prompt

    def handlers(self) -> Mapping[str, Handler]:
        return {"prompts/list": self._list, "prompts/get": self._get}

    def _list(self, ctx: Context) -> t.ListPromptsResult | Continuation:
        rows = self.seen_by(ctx, self.listing(), "prompts")
        return list_result(self, ctx, "prompts", rows, t.ListPromptsResult)

    def _get(self, ctx: Context) -> Any:
        name = string_param(ctx.params, "name")
        return with_entry(self, ctx, "prompt", name, partial(self._answer, ctx, name))

    def _answer(
        self, ctx: Context, name: str, entry: _PromptEntry | None
    ) -> t.GetPromptResult | Continuation:
        if entry is None:
            raise invalid_params(f"unknown prompt: {name}")
        arguments = _bound(entry, ctx.params)
        if not entry.function.inline:
            return Continuation(_run, entry, ctx, arguments)
        value = entry.function.call(ctx, arguments)
        try:
            return _result(value, entry.prompt)
        except UnreadFiles:
            return Continuation(_read, entry, value)


async def _run(entry: _PromptEntry, ctx: Context, arguments: dict[str, Any]) -> t.GetPromptResult:
    value = await entry.function.call(ctx, arguments)
    try:
        return _result(value, entry.prompt)
    except UnreadFiles:
        return await _read(entry, value)


async def _read(entry: _PromptEntry, value: Any) -> t.GetPromptResult:
    return _result(await with_files_read(value), entry.prompt)


def _listed(argument: TextArgument) -> t.PromptArgument:
    return t.PromptArgument(
        argument.name, title=argument.title, description=argument.description, required=argument.required
    )


def _bound(entry: _PromptEntry, params: Mapping[str, Any]) -> dict[str, Any]:
    # Unlike a tool's, wrong arguments of a prompt are an error of the protocol: no model is waiting for them.
    arguments = params.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise invalid_params("'arguments' must be an object")
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise invalid_params(f"argument {name!r} must be a string")
        if name not in entry.arguments.by_name:
            raise invalid_params(f"unknown argument: {name}")
    for argument in entry.arguments.by_name.values():
        if argument.required and argument.name not in arguments:
            raise invalid_params(f"missing argument: {argument.name}")
    try:
        return entry.arguments.bind(arguments)
    except InvalidArguments as error:
        raise invalid_params(str(error)) from None


def _result(value: Any, prompt: t.Prompt) -> t.GetPromptResult:
    if isinstance(value, t.GetPromptResult):
        return value
    messages = []
    for item in value if isinstance(value, list | tuple) else (value,):
        blocks = None if isinstance(item, t.PromptMessage) else as_blocks(item)
        if blocks is not None:
            messages += [t.PromptMessage("user", block) for block in blocks]
        elif isinstance(item, t.PromptMessage):
            messages.append(item)
        else:
            raise InvalidResult(
                f"{type(item).__name__}; a prompt returns strings, content blocks, PromptMessages or a GetPromptResult"
            )
    return t.GetPromptResult(messages, prompt.description)
