"""The part of a context that asks the client: its person, its model, its folders.

=======================  ===========================  =========================================================
question                 method                       the client must have declared
=======================  ===========================  =========================================================
`ElicitFormParams`       ``elicitation/create``       ``elicitation``: with ``form``, or empty, which means form
`ElicitUrlParams`        ``elicitation/create``       ``elicitation.url``
`CreateMessageParams`    ``sampling/createMessage``   ``sampling``, with ``sampling.tools`` for tools and
                                                      ``sampling.context`` for ``includeContext``
`ListRootsParams`        ``roots/list``               ``roots``
=======================  ===========================  =========================================================
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, get_args, overload

import attrs
import trio

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._actors.outbound_call import CallOptions
from mcp_actors._eras.era import Era, structured
from mcp_actors._eras.vocabulary import history_problem, named
from mcp_actors._schema.convert import ConversionError
from mcp_actors._schema.returned import conversion
from mcp_actors._schema.signature import JsonType
from mcp_actors._server.scope import ServerScope
from mcp_actors.abc import TaskState
from mcp_actors.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallTimeout,
    LocalProtocolError,
    McpError,
    MissingCapability,
    RemoteProtocolError,
    RpcError,
    invalid_params,
)
from mcp_actors.supervision.logging import log
from mcp_actors.types import TextContent
from mcp_actors.types.records import record

__all__ = [
    "FormResult",
    "Questions",
    "answer_later",
    "answers_or_question",
    "ask_by_requests",
    "ask_by_retry",
    "flat_form",
    "hosts_tasks",
    "input_required",
    "missing_capability",
    "read_answer",
    "read_recorded",
]


T = TypeVar("T")


@record(eq=False, repr=False)
class FormResult(t.ElicitResult, Generic[T]):
    """The reaction of the user to a form that was asked for by a class: ``data`` is an object of it.

    ``data`` is ``None`` unless ``action`` is ``"accept"``; ``content`` is the same as JSON has it.
    """

    data: T | None = attrs.field(default=None, kw_only=True)


class Questions:
    """The part of `Context` that asks the client."""

    __slots__ = ()

    call: InboundCall
    _scope: ServerScope
    _kept: dict[str, Any]

    def _key_of(self, question: t.InputRequest) -> str:
        """Returns the key of the next question of this function, the same one in each run of it."""
        raise NotImplementedError

    @overload
    async def elicit(
        self,
        message: str,
        schema: type[T],
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> FormResult[T]: ...

    @overload
    async def elicit(
        self,
        message: str,
        schema: Mapping[str, Any],
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> t.ElicitResult: ...

    async def elicit(
        self,
        message: str,
        schema: Mapping[str, Any] | type[T],
        *,
        key: str | None = None,
        ttl: float | None = None,
    ) -> t.ElicitResult:
        """Asks the person at the client to fill in a form. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Elicitation.

        Args:
            message: The question, for the person.
            schema: The form: a flat JSON Schema, or a class with such fields (text, numbers, booleans, choices): a
                dataclass, an attrs class, a `TypedDict` or a pydantic model.
            key: The name of the question in every run of the function; by default one that counts up.
            ttl: As `ask`.

        Returns:
            What the person did (``action``) and, if that was to accept, the ``content`` of the form, which fits the
            schema; for a class, ``data`` is an object of it.

        Raises:
            LocalProtocolError: No form can ask for what ``schema`` describes; else as `ask`.
            TypeError: The class cannot be described by a schema.
            McpError: As `ask`.
        """
        if isinstance(schema, Mapping):
            question = t.ElicitFormParams(message=message, requested_schema=flat_form(schema))
            result: t.ElicitResult = await self._ask_one(question, key, ttl)
            return result
        form = _form_of(schema)
        question = t.ElicitFormParams(message=message, requested_schema=form.schema)
        return self._filled_in(await self._ask_one(question, key, ttl), form.made)

    async def elicit_url(
        self, message: str, url: str | Callable[[str], str], *, key: str | None = None
    ) -> t.ElicitResult:
        """Asks the person to do something at a URL. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Elicitation. The result says whether the person agreed to open the URL, not what came of it:
        what handles the page tells the client of a session by `Server.elicitation_complete`, with the elicitation's id.

        Args:
            message: The reason, for the person.
            url: The page; it must hold no secrets. Or a function that is given the elicitation's id, an unguessable
                text that is another one in each run, and returns the page.
            key: The name of the question in every run of the function; by default one that counts up.

        Raises:
            McpError: As `ask`.
            Exception: What ``url`` raises.
        """
        id = secrets.token_urlsafe(16)
        page = url if isinstance(url, str) else url(id)
        question = t.ElicitUrlParams(message=message, url=page, elicitation_id=id)
        result: t.ElicitResult = await self._ask_one(question, key)
        return result

    async def sample(
        self,
        messages: str | Sequence[t.SamplingMessage],
        *,
        max_tokens: int,
        key: str | None = None,
        ttl: float | None = None,
        **more: Any,
    ) -> t.CreateMessageResult:
        """Asks the client's model. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Sampling.

        Args:
            messages: The messages, or the text of one message of the user.
            max_tokens: How many tokens the model may generate.
            key: The name of the question in every run of the function; by default one that counts up.
            ttl: As `ask`.
            more: Further fields of `~mcp_actors.types.CreateMessageParams`. ``tools`` need the client's capability
                ``sampling.tools``, and ``include_context`` needs ``sampling.context``.

        Raises:
            TypeError: `~mcp_actors.types.CreateMessageParams` has no such field.
            McpError: As `ask`.
        """
        if isinstance(messages, str):
            messages = [t.SamplingMessage(role="user", content=TextContent(text=messages))]
        question = t.CreateMessageParams(messages=list(messages), max_tokens=max_tokens, **more)
        result: t.CreateMessageResult = await self._ask_one(question, key, ttl)
        return result

    async def list_roots(self, *, key: str | None = None) -> list[t.Root]:
        """Asks for the folders that the server may work in. Code before this line may run again: see `ask`.

        MCP 2026-07-28, Roots.

        Args:
            key: The name of the question in every run of the function; by default one that counts up.

        Raises:
            McpError: As `ask`.
        """
        return list((await self._ask_one(t.ListRootsParams(), key)).roots)

    async def ask(
        self, questions: Mapping[str, t.InputRequest], *, ttl: float | None = None
    ) -> dict[str, Any]:
        """Asks the client several things at once. Code before this line may run again.

        A legacy client is sent requests while this call waits, each for at most `Limits.ask_timeout` seconds. To a
        modern client the call is answered with an input-required result (MCP 2026-07-28, Multi Round-Trip Requests):
        this never returns, the function sees `trio.Cancelled`, and the client's retry runs it again from its start with
        the recorded answers. So side effects belong after the last question, and keys must be the same in each run;
        those made by default are, as long as the questions come in the same order.

        Cancelled, it sends a cancellation of the question that a legacy client has not answered yet.

        Args:
            questions: The questions by their keys: params objects of `mcp_actors.types`, such as `ElicitFormParams`.
            ttl: Seconds for which a legacy client that has tasks of its own may take instead (MCP 2025-11-25, Tasks).

        Returns:
            The answers by the same keys: `ElicitResult`, `CreateMessageResult` or `ListRootsResult`.

        Raises:
            MissingCapability: The client did not declare that it can answer; nothing was sent. If the function does
                not catch it, it answers the call.
            LocalProtocolError: There is no session, or the request is a modern one that is neither for a tool nor for
                a prompt nor for a resource, or a question is longer than the connection carries, or the tool uses and
                tool results of a sampling question do not belong together.
            RpcError: A legacy client answered with an error, or the answer that a modern one's retry carries is
                malformed.
            RemoteProtocolError: A legacy client's answer is malformed, does not fit the form, or has a root whose
                URI is not ``file://``.
            CallTimeout: A legacy client did not answer within `Limits.ask_timeout` seconds.
            ConnectionLost: The connection ended before the answer.
            SessionExpired: The session ended before the answer.
        """
        invocation = self.call.invocation
        peer, era = invocation.peer, invocation.era
        for each in questions.values():
            if isinstance(each, t.CreateMessageParams) and (problem := history_problem(each.messages)):
                raise LocalProtocolError(problem)
            needed = missing_capability(each, peer.raw_capabilities, era)
            if needed is not None:
                raise MissingCapability(needed)
        if (voice := self.call.client_link) is not None:
            return dict(await voice.ask(questions))
        if not era.asks_by_retry:
            # Also for a question that fails: what the function returns then follows from that.
            self._kept.update(dict.fromkeys(questions))
            return await ask_by_requests(self.call, self._scope, questions, ttl)
        if not invocation.method.may_ask:
            raise LocalProtocolError(
                f"protocol version {era.version} lets {invocation.method.name} ask for nothing"
            )
        return await ask_by_retry(self.call, self._scope, self._kept, questions)

    async def _ask_one(self, question: t.InputRequest, key: str | None, ttl: float | None = None) -> Any:
        if key is None:
            key = self._key_of(question)
        return (await self.ask({key: question}, ttl=ttl))[key]

    def _filled_in(self, answer: t.ElicitResult, made: Callable[[Any], T]) -> FormResult[T]:
        """The answer with an object of the class that was asked for; raises as `read_answer` and `read_recorded`."""
        data: T | None = None
        if answer.action == "accept":
            try:
                data = made(answer.content or {})
            except ConversionError as error:
                text = f"the client's answer does not fit the form: {error}"
                if self.call.invocation.era.asks_by_retry:
                    raise invalid_params(text) from None
                raise RemoteProtocolError(text) from None
        return FormResult(answer.action, answer.content, meta=answer.meta, extra=answer.extra, data=data)


# -- The two ways to ask: by requests in a session, or by a result, after which the client calls again ---


async def ask_by_requests(
    call: InboundCall, scope: ServerScope, questions: Mapping[str, t.InputRequest], ttl: float | None
) -> dict[str, Any]:
    """Sends one question after the other, each for at most `Limits.ask_timeout` seconds, and returns the answers.

    With a ``ttl`` a client that has tasks may answer in so many seconds, see `mcp_actors._server.questions`.

    Cancelled, it sends a cancellation of the question that is not answered yet. Raises what `Context.ask` raises.
    """
    answers: dict[str, Any] = {}
    for key, each in questions.items():
        if isinstance(each, t.ElicitUrlParams) and each.elicitation_id is not None:
            answers[key] = await _send_to_url(call, scope, each, each.elicitation_id, ttl)
        else:
            answers[key] = await _answer(call, scope, each, ttl)
    return answers


async def _answer(
    call: InboundCall, scope: ServerScope, question: t.InputRequest, ttl: float | None
) -> t.InputResponse:
    seconds, era, method = scope.limits.ask_timeout, call.invocation.era, question.method
    params = era.unstructure(question)
    if ttl is not None and hosts_tasks(call.invocation.peer.raw_capabilities, era, method):
        raw = await answer_later(call, method, params, ttl, seconds)
    else:
        raw = await call.ask(method, params, idle=seconds, cap=seconds)
    return read_answer(question, raw, era)


async def _send_to_url(
    call: InboundCall, scope: ServerScope, question: t.ElicitUrlParams, id: str, ttl: float | None
) -> t.InputResponse:
    """Asks for a visit to a URL. Once that is agreed to, the client can be notified of its end by the id."""
    session = scope.session_of(call.owner)
    if session is not None:
        # Before the answer, since the person may be done before the client says that they have begun.
        scope.elicitations.begin(id, session)
    agreed = False
    try:
        answer = await _answer(call, scope, question, ttl)
        agreed = isinstance(answer, t.ElicitResult) and answer.action == "accept"
        return answer
    finally:
        if not agreed:
            scope.elicitations.forget(id)


async def ask_by_retry(
    call: InboundCall, scope: ServerScope, kept: dict[str, Any], questions: Mapping[str, t.InputRequest]
) -> dict[str, Any]:
    """Returns the answers that the request carries; if one is missing, ends the call with the questions.

    ``kept`` are the answers that the function has used so far, and what the next round carries. Raises what
    `Context.ask` raises.
    """
    answers, question = answers_or_question(call, scope, kept, questions)
    if question is not None:
        await call.replace(question)
    await trio.lowlevel.checkpoint()
    return answers


def answers_or_question(
    call: InboundCall, scope: ServerScope, kept: dict[str, Any], questions: Mapping[str, t.InputRequest]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the answers that the request carries and, if one is missing, the result that asks for it."""
    era, recorded = call.invocation.era, scope.recorded_answers(call.invocation)
    answers = {key: read_recorded(each, key, recorded, era) for key, each in questions.items()}
    missing = {key: each for key, each in questions.items() if answers[key] is None}
    if missing:
        kept.update((key, recorded[key]) for key in questions if key in recorded)
        state = scope.seal_answers(call.invocation, kept, scope.effects_of(call), call.approval)
        return answers, input_required(missing, state, era)
    kept.update((key, recorded[key]) for key in questions)
    return answers, None


# -- Questions that a client answers later, by a task of its own (MCP 2025-11-25, Tasks) ---

# Seconds between two looks at a task, whatever its client says, and where it says nothing: people are slow.
SHORTEST_PAUSE, USUAL_PAUSE, LONGEST_PAUSE = 0.1, 1.0, 60.0
# Seconds for cancelling a task of the client whose answer is not needed any more.
CANCEL_BOUND = 2.0
# Characters of the longest id that is taken from a client.
LONGEST_ID = 256


def hosts_tasks(declared: Mapping[str, Any], era: Era, method: str) -> bool:
    """Whether a client answers a method later, as a task of its own. MCP 2025-11-25, Tasks, Capabilities."""
    place: Any = declared
    for name in ("tasks", "requests", *method.split("/")):
        place = place.get(name) if isinstance(place, dict) else None
    return isinstance(place, dict) and "tasks/get" in era.client_methods


async def answer_later(
    call: InboundCall, method: str, params: Mapping[str, Any], ttl: float, seconds: float
) -> dict[str, Any]:
    """Asks, waits until the client's task has ended, and returns the answer. Cancelled, it cancels the task.

    Args:
        call: The call that asks.
        method: The question's method.
        params: Its params.
        ttl: Seconds that the client has.
        seconds: Seconds that it has for each message about the task.

    Raises:
        RpcError: The client answered with an error, or the task was cancelled there.
        RemoteProtocolError: What the client says of the task is malformed.
        CallTimeout: The time is up, or the client does not answer any more.
        ConnectionLost, SessionExpired: The client has gone.
    """
    asked = {**params, "task": {"ttl": round(ttl * 1000)}}
    created = await call.ask(method, asked, idle=seconds, cap=seconds)
    task = created.get("task")
    if not isinstance(task, dict):
        # A client that does not know tasks ignores the wish, and answers at once.
        return created
    id = task.get("taskId")
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
        raise RemoteProtocolError("the client's task has no id")
    ended = False
    try:
        with trio.move_on_after(ttl):
            # What is asked by the task itself comes while its result is waited for: Input Required Status.
            while (status := _status(task)) == "working":
                await trio.sleep(_pause(task.get("pollInterval")))
                task = await call.ask("tasks/get", {"taskId": id}, idle=seconds, cap=seconds)
            ended = status != "input_required"
            if status == "cancelled":
                raise RpcError(INTERNAL_ERROR, f"the client has cancelled its task for {method}")
            answer = await call.ask("tasks/result", {"taskId": id}, idle=math.inf, cap=math.inf)
            ended = True
            return answer
        raise CallTimeout(method, "cap", ttl)
    finally:
        if not ended:
            with trio.move_on_after(CANCEL_BOUND, shield=True):
                await _cancel(call, id)


def _status(task: Mapping[str, Any]) -> str:
    status = task.get("status")
    if not isinstance(status, str) or status not in get_args(TaskState):
        raise RemoteProtocolError("the client's task is in no state that tasks have")
    return status


async def _cancel(call: InboundCall, id: str) -> None:
    # On the stream of a call that is cancelled nothing more is sent.
    stream = call if call.state == "running" else None
    options = CallOptions(idle=CANCEL_BOUND, cap=CANCEL_BOUND)
    try:
        await call.owner.request("tasks/cancel", {"taskId": id}, options, call=stream)
    except McpError as error:
        log.debug("a client's task could not be cancelled", task=id[:6], error=str(error))


def _pause(wish: Any) -> float:
    if isinstance(wish, bool) or not isinstance(wish, int | float) or not 0 < wish < math.inf:
        return USUAL_PAUSE
    return max(min(wish, LONGEST_PAUSE * 1000) / 1000, SHORTEST_PAUSE)


# -- What the questions need, and their answers ---

_FIELD_TYPES = frozenset({"string", "number", "integer", "boolean", "array"})

_ANSWERS = {
    "elicitation/create": "ElicitResult",
    "sampling/createMessage": "CreateMessageResult",
    "roots/list": "ListRootsResult",
}


def missing_capability(
    question: t.InputRequest, declared: Mapping[str, Any], era: Era
) -> dict[str, Any] | None:
    """Returns the capability that the client did not declare, in the form of the error's data, or ``None``."""
    if question.method not in era.client_methods:
        # A capability that the agreed revision does not have means nothing.
        declared = {}
    if isinstance(question, t.CreateMessageParams):
        sampling = declared.get("sampling")
        if not isinstance(sampling, Mapping):
            return {"sampling": {}}
        if (question.tools is not None or question.tool_choice is not None) and "tools" not in sampling:
            return {"sampling": {"tools": {}}}
        wants_context = question.include_context not in (None, "none")
        if wants_context and era.declares_sampling_context and "context" not in sampling:
            return {"sampling": {"context": {}}}
        return None
    if isinstance(question, t.ListRootsParams):
        return None if isinstance(declared.get("roots"), Mapping) else {"roots": {}}
    elicitation = declared.get("elicitation")
    if isinstance(question, t.ElicitUrlParams):
        return (
            None
            if isinstance(elicitation, Mapping) and "url" in elicitation
            else {"elicitation": {"url": {}}}
        )
    if not isinstance(elicitation, Mapping) or ("url" in elicitation and "form" not in elicitation):
        return {"elicitation": {"form": {}}}
    return None


class _Form(NamedTuple):
    """The form of a class, which is the same each time."""

    schema: dict[str, Any]
    made: Callable[[Any], Any]


def _form_of(cls: Any) -> _Form:
    try:
        return _remembered(cls)
    except TypeError:
        # It cannot be hashed, or cannot be described, which raises once more.
        return _described(cls)


def _described(cls: Any) -> _Form:
    return _Form(flat_form(JsonType(cls).schema), conversion(cls))


# As many as are used over and over; a class that is made in a function is another one each time.
_remembered = lru_cache(maxsize=256)(_described)


def flat_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema of an object as forms have it: one level, and instead of null a member may be absent.

    Raises `LocalProtocolError` for what no form can ask for.
    """
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise LocalProtocolError("the schema of a form must be that of an object")
    return {**schema, "properties": {name: _field(name, each) for name, each in properties.items()}}


def _field(name: str, schema: Any) -> dict[str, Any]:
    field = dict(schema) if isinstance(schema, Mapping) else {}
    forms = [form for form in field.get("anyOf", ()) if form != {"type": "null"}]
    if len(forms) == 1:
        del field["anyOf"]
        field |= forms[0]
        if field.get("default", "") is None:
            del field["default"]
    items = field.get("items", {})
    if field.get("type") not in _FIELD_TYPES or (
        field["type"] == "array" and not ("enum" in items or "anyOf" in items)
    ):
        raise LocalProtocolError(
            f"{name!r} is neither text nor a number nor yes or no nor a choice: no form can ask for it"
        )
    return field


def read_answer(question: t.InputRequest, raw: Any, era: Era) -> t.InputResponse:
    """The typed answer. Raises `RemoteProtocolError` when it is not what was asked for."""
    try:
        answer: t.InputResponse = structured(era, raw, named(_ANSWERS[question.method]))
    except RpcError as error:
        raise RemoteProtocolError(
            f"the client's answer to {question.method} is malformed: {error.message}"
        ) from None
    if (
        isinstance(question, t.ElicitFormParams)
        and isinstance(answer, t.ElicitResult)
        and answer.action == "accept"
    ):
        problems = t.validate_form_answer(question.requested_schema, answer.content or {})
        if problems:
            raise RemoteProtocolError(f"the client's answer does not fit the form: {'; '.join(problems)}")
    if isinstance(answer, t.ListRootsResult):
        for root in answer.roots:
            # MCP 2025-11-25, Roots, Data Types. The scheme of a URI is the same in capitals (RFC 3986 section 3.1).
            if root.uri[:7].lower() != "file://":
                raise RemoteProtocolError(f"the client's root {root.uri[:200]!r} is not a file:// URI")
    return answer


def read_recorded(
    question: t.InputRequest, key: str, recorded: Mapping[str, Any], era: Era
) -> t.InputResponse | None:
    """The answer among those that a retry carried, or ``None``. A malformed one is -32602."""
    if key not in recorded:
        return None
    try:
        return read_answer(question, recorded[key], era)
    except RemoteProtocolError as error:
        raise RpcError(INVALID_PARAMS, f"inputResponses[{key!r}]: {error}") from None


def input_required(questions: Mapping[str, t.InputRequest], state: str, era: Era) -> dict[str, Any]:
    """The result that asks; its requests carry neither id nor ``_meta``."""
    requests = {
        key: {"method": each.method, "params": era.unstructure(each)} for key, each in questions.items()
    }
    return {"resultType": "input_required", "inputRequests": requests, "requestState": state}
