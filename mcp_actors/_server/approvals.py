"""Approvals: a person agrees to one call of a tool, as it will run, before its function begins.

The question is made of the arguments that the function gets, and of a preview of what it would do. A client with a
session is asked while the call waits. A stateless client sends the call again with the answer (MCP 2026-07-28, Multi
Round-Trip Requests): its state is sealed to the tool, the arguments and the caller, and has what was asked, until when
it may be answered, and an id that is good for one run:

===========================================  =========================================================================
what comes back                              what the function does
===========================================  =========================================================================
an answer without the state of a question    nothing: the person is asked
accepted                                     runs, once
declined, or closed without an answer        nothing
accepted after `APPROVAL_TIME`               nothing
accepted, and the preview is another now     nothing
the same approval once more                  nothing: the first run may have done it
===========================================  =========================================================================

What was not approved is an error of the tool, `NotApproved`, which the model reads. A function that asks more goes on
in later rounds, each of which has an approval of its own in its state.
"""

from __future__ import annotations

import hashlib
import secrets
import string
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec
import trio

from mcp_actors import types as t
from mcp_actors._eras.modern import STATE_LIFETIME
from mcp_actors._server.context import Context
from mcp_actors._server.invoke import Function
from mcp_actors.errors import CallTimeout, LocalProtocolError, MissingCapability, NotApproved
from mcp_actors.errors.connection import ApprovalReason
from mcp_actors.supervision.printable import printable

__all__ = ["APPROVALS", "APPROVAL_TIME", "ApprovedBy", "Confirmation", "approve", "confirmed"]

APPROVALS = "mcp-actors/approvals"
"""The extension of a server that has pages for approvals."""
ApprovedBy = Literal["form", "page"]
"""Whether the client shows the question, or a page of the server does: `mcp_actors.extensions.ApprovalPages`."""

APPROVAL_TIME = 600.0
"""Seconds that a person has to approve a call."""
LONGEST_VALUE, LONGEST_MESSAGE = 500, 4000
"""Characters of one value in a question, and of the whole."""
PAGE_WAIT = 20.0
"""Seconds that a request of a stateless client waits for a page, before the client is asked to open it again."""
# The key of the question, and of the member of the state that has what was asked.
_KEY = "mcp-actors/approval"
# A form without fields: the answer is what the person does with it.
_FORM = {"type": "object", "properties": {}, "required": []}


class Approval(msgspec.Struct, frozen=True):
    """The part of a call's state that is about its approval."""

    id: str
    message: str
    """A digest of what the person was asked."""
    until: float
    """Seconds since the epoch."""
    given: bool = False


class _Shown(string.Formatter):
    """Writes values on one line, none longer than `LONGEST_VALUE`, so that no argument writes the question."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return printable(format(value, format_spec) if format_spec else str(value), LONGEST_VALUE)


class Confirmation(msgspec.Struct, frozen=True):
    """The way in which the approval of a tool is asked for.

    Args:
        template: The question, as `str.format` has it.
        defaults: The values of parameters that a call leaves out.
        preview: Finds what ``{preview}`` stands for.
        of_preview: The parameters that it takes.
    """

    template: str
    defaults: Mapping[str, Any]
    preview: Function | None
    of_preview: frozenset[str]

    @classmethod
    def of(
        cls,
        template: str,
        properties: Mapping[str, Any],
        defaults: Mapping[str, Any],
        preview: tuple[Function, frozenset[str]] | None,
    ) -> Confirmation:
        """Returns the one of a tool.

        Args:
            template: The question.
            properties: The tool's parameters, each with its schema.
            defaults: The values of those that have one, of their own types.
            preview: The function, and the parameters that it takes.

        Raises:
            ValueError: The question has what the tool has not, or the preview takes what the tool has not.
        """
        known = {*properties, *(() if preview is None else ("preview",))}
        try:
            used = {
                str(field).partition(".")[0].partition("[")[0]
                for _, field, _, _ in _Shown().parse(template)
                if field is not None
            }
        except ValueError as error:
            raise ValueError(f"confirm={template!r} cannot be formatted: {error}") from None
        if not used <= known:
            raise ValueError(
                f"confirm={template!r} has {{{min(used - known)}}}, which is neither a parameter of the tool"
                + (" nor the preview" if preview is not None else ", and there is no preview=")
            )
        if preview is not None and not preview[1] <= properties.keys():
            raise ValueError(
                f"preview= takes {min(preview[1] - properties.keys())!r}, which the tool does not"
            )
        if preview is not None and "preview" in properties:
            raise ValueError("the tool has a parameter 'preview', which is what preview= finds in confirm=")
        said = {name: each["default"] for name, each in properties.items() if "default" in each}
        known_defaults = {name: each for name, each in defaults.items() if name in properties}
        return cls(
            template, {**said, **known_defaults}, *((None, frozenset()) if preview is None else preview)
        )

    async def message(self, ctx: Context, arguments: Mapping[str, Any]) -> str:
        """Returns the question for a call; raises what the preview raises."""
        values: dict[str, Any] = {**self.defaults, **arguments}
        if self.preview is not None:
            # Of what the function will get, and not of a default of the preview's own.
            taken = {name: values[name] for name in self.of_preview if name in values}
            found = self.preview.call(ctx, taken)
            values["preview"] = found if self.preview.inline else await found
        return _Shown().vformat(self.template, (), _WithDefaults(values))[:LONGEST_MESSAGE]


class _WithDefaults(dict[str, Any]):
    """The values of a call; what it leaves out, without a default, has nothing to show."""

    def __missing__(self, name: str) -> str:
        return "-"


def confirmed(
    function: Function,
    confirmation: Confirmation,
    by: ApprovedBy,
    values: Callable[[dict[str, Any]], Any],
) -> Function:
    """Returns a function that runs once a person has approved the call.

    Args:
        function: The function of the tool.
        confirmation: How it is asked for.
        by: Where it is asked.
        values: Returns the values by the names of the parameters, of what the function is given.
    """

    if by not in get_args(ApprovedBy):
        raise ValueError(f'confirm_by={by!r}: write "form" or "page"')

    async def call(ctx: Context, arguments: dict[str, Any]) -> Any:
        await approve(ctx, await confirmation.message(ctx, values(arguments)), by)
        outcome = function.call(ctx, arguments)
        return outcome if function.inline else await outcome

    return Function(call, inline=False)


async def approve(ctx: Context, message: str, by: ApprovedBy = "form") -> None:
    """Returns once a person has approved what ``message`` says. Cancelled, it withdraws the question.

    Raises:
        NotApproved: The person has not, or nobody could be asked.
        SharedStateUnavailable: It is not known whether the approval was used before; nothing was begun.
        McpError: What `Context.ask` raises besides.
    """
    call = ctx.call
    if not ctx.era.asks_by_retry or call.was_answered:
        await _judge(ctx, message, by, secrets.token_urlsafe(16), APPROVAL_TIME)
        return
    digest = hashlib.sha256(message.encode("utf-8", "surrogatepass")).hexdigest()
    sealed = ctx._scope.sealed_approval(call.invocation)
    if sealed is None:
        # What comes without a question approves nothing.
        _take_answer(ctx)
        call.approval = Approval(secrets.token_urlsafe(16), digest, time.time() + APPROVAL_TIME)
        await _asked(ctx, message, by, call.approval.id)
        raise AssertionError("a question without an answer ends the run")
    found = msgspec.convert(sealed, Approval)
    call.approval = found
    if found.until < time.time():
        raise NotApproved("expired")
    if found.message != digest:
        raise NotApproved("changed")
    if not found.given:
        await _judge(ctx, message, by, found.id, PAGE_WAIT)
        # It is no answer to anybody else, such as a server to which the call is passed on.
        _take_answer(ctx)
    shared = ctx._scope.shared
    assert shared is not None
    # Whose use it was has to be known. The state bounds how long it takes.
    with trio.CancelScope(shield=True):
        is_first = await shared.values.replace(f"approval {found.id}", None, b"used", STATE_LIFETIME)
    if not is_first:
        raise NotApproved("used")
    call.approval = Approval(secrets.token_urlsafe(16), digest, time.time() + STATE_LIFETIME, given=True)


def _take_answer(ctx: Context) -> None:
    invocation = ctx.call.invocation
    ctx._kept.pop(_KEY, None)
    if invocation.answers and _KEY in invocation.answers:
        invocation.answers = {key: each for key, each in invocation.answers.items() if key != _KEY}


async def _judge(ctx: Context, message: str, by: ApprovedBy, id: str, seconds: float) -> None:
    """Asks, and returns if the answer is yes; raises `NotApproved`.

    Args:
        ctx: The call.
        message: The question.
        by: Where it is asked.
        id: The unguessable id of the question.
        seconds: How long a page is waited for.
    """
    action = await _asked(ctx, message, by, id)
    if by == "page" and action == "accept":
        # That the page was opened approves nothing.
        action = await _pages(ctx).decision(id, seconds)
        if not ctx.era.asks_by_retry:
            ctx.server.elicitation_complete(id)
        if action is None and seconds < APPROVAL_TIME:
            _take_answer(ctx)
            await _asked(ctx, message, by, id)
    if action != "accept":
        raise NotApproved(_REASONS[action])


_REASONS: dict[str | None, ApprovalReason] = {"decline": "declined", "cancel": "dismissed", None: "expired"}


async def _asked(ctx: Context, message: str, by: ApprovedBy, id: str) -> str:
    question: t.InputRequest = t.ElicitFormParams(message=message, requested_schema=dict(_FORM))
    if by == "page":
        pages = _pages(ctx)
        await pages.open(id, message, None if ctx.principal is None else ctx.principal.subject)
        question = t.ElicitUrlParams(message=message, url=pages.address(id), elicitation_id=id)
    try:
        answers = await ctx.ask({_KEY: question})
    except MissingCapability:
        raise NotApproved("impossible") from None
    except CallTimeout:
        raise NotApproved("expired") from None
    action: str = answers[_KEY].action
    return action


def _pages(ctx: Context) -> Any:
    """The `mcp_actors.extensions.ApprovalPages` of the server."""
    pages = ctx.server._features.extensions.get(APPROVALS)
    if pages is None:
        raise LocalProtocolError(
            "a person has to approve this on a page, and there is none: write Server(extensions=[ApprovalPages(…)])"
        )
    return pages
