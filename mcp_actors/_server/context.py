"""What a tool, resource or prompt function is handed when it asks for a `Context`."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.era import Era, Peer
from mcp_actors._schema.signature import JsonType
from mcp_actors._server.client_requests import (
    flat_form,
    input_required,
    missing_capability,
    read_answer,
    read_recorded,
)
from mcp_actors._server.scope import ServerScope
from mcp_actors._wire.messages import RequestId
from mcp_actors.errors import LocalProtocolError, MissingCapability
from mcp_actors.logging import logger
from mcp_actors.types import (
    LOGGING_LEVELS,
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequest,
    ListRootsParams,
    LoggingLevel,
    Root,
    SamplingMessage,
    TextContent,
)

__all__ = ["Context"]

_RANK = {level: rank for rank, level in enumerate(LOGGING_LEVELS)}

_TRACE_KEYS = ("traceparent", "tracestate", "baggage")


class Context:
    """One call, seen from the function that answers it. Good only while that function runs.

    A function gets it by annotating a parameter with this class; the parameter is not part of any schema. ``call`` is
    the actor behind it.
    """

    __slots__ = ("_asked", "_kept", "_last_progress", "_logger", "_scope", "call", "params")

    def __init__(self, call: InboundCall, scope: ServerScope) -> None:
        self.call = call
        self.params = call.invocation.params
        """The params as they arrived, without ``_meta``."""
        self._scope = scope
        self._kept: dict[str, Any] = {}
        self._asked = 0
        self._last_progress = -math.inf
        self._logger: Any = None

    def __repr__(self) -> str:
        return f"<Context of {self.call!r}>"

    # -- who asks, and what for ------------------------------------------------------------------------------------

    @property
    def request_id(self) -> RequestId:
        """The JSON-RPC id, with its JSON type."""
        return self.call.id

    @property
    def method(self) -> str:
        """The protocol method, such as ``tools/call``."""
        return self.call.invocation.method.name

    @property
    def meta(self) -> dict[str, Any]:
        """The request's ``_meta``, unknown keys included."""
        return self.call.invocation.meta

    @property
    def trace(self) -> dict[str, str]:
        """The W3C trace context of the request: ``traceparent``, ``tracestate`` and ``baggage``, those that came."""
        meta = self.meta
        return {key: value for key in _TRACE_KEYS if isinstance(value := meta.get(key), str)}

    @property
    def era(self) -> Era:
        """The protocol revision of this call."""
        return self.call.invocation.era

    @property
    def peer(self) -> Peer:
        """The client: ``version``, ``capabilities`` and ``info``. Said by itself, so never a reason to trust it."""
        return self.call.invocation.peer

    @property
    def principal(self) -> str | None:
        """Who the transport authenticated, or ``None``."""
        return self.call.invocation.principal

    @property
    def log_level(self) -> str | None:
        """The least severe level that the client wants to hear, ``None`` when it wants none."""
        return self.era.wanted_log_level(self.call.invocation)

    @property
    def server(self) -> Any:
        """The `Server` that answers."""
        return self._scope.server

    @property
    def state(self) -> Any:
        """What the server's lifespan yielded."""
        return self._scope.state

    @property
    def logger(self) -> Any:
        """A structlog logger bound to this session and request. For the operator; `log` is for the client."""
        if self._logger is None:
            self._logger = logger().bind(
                session=self.call.owner.name, request=self.call.id, method=self.method
            )
        return self._logger

    # -- telling the client ----------------------------------------------------------------------------------------

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Reports progress, if the client asked for it. It must grow: a report that does not is not sent.

        Waits while the client reads slower than this is called. A checkpoint in any case.
        """
        await trio.lowlevel.checkpoint()
        token = self.call.invocation.progress_token
        if token is None or progress <= self._last_progress:
            return
        self._last_progress = progress
        params: dict[str, Any] = {"progressToken": token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None and self.era.progress_message:
            params["message"] = message
        await self.call.notify("notifications/progress", params)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification that belongs to this call: for custom methods. Waits while the client reads slowly."""
        await self.call.notify(method, params)

    async def log(self, level: LoggingLevel, data: Any, logger: str | None = None) -> None:
        """Sends a log message (any JSON value) to the client, if it wants to hear this level. Never put secrets in."""
        if level not in _RANK:
            raise LocalProtocolError(f"no such level: {level!r}; use one of {', '.join(LOGGING_LEVELS)}")
        await trio.lowlevel.checkpoint()
        wanted = self.log_level
        if wanted is None or _RANK[level] < _RANK.get(wanted, 0):  # type: ignore[call-overload]
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        await self.call.notify("notifications/message", params)

    def close_stream(self) -> None:
        """Lets go of the HTTP connection that waits for this call; the client comes back for the rest of it.

        For long calls of clients that do so by themselves. Elsewhere, and in other bindings, nothing happens.
        """
        self.call.close_stream()

    # -- asking the client -----------------------------------------------------------------------------------------

    async def elicit(
        self, message: str, schema: Mapping[str, Any] | type, *, key: str | None = None
    ) -> ElicitResult:
        """Code before this line may run again. Asks the person at the client to fill in a form.

        ``schema`` is a flat JSON Schema or a class with such fields (text, numbers, yes or no, choices); raises
        `LocalProtocolError` for any other. See `ask` for the rest.
        """
        requested = schema if isinstance(schema, Mapping) else JsonType(schema).schema
        question = ElicitFormParams(message=message, requested_schema=flat_form(requested))
        result: ElicitResult = await self._ask_one(question, key)
        return result

    async def elicit_url(self, message: str, url: str, *, key: str | None = None) -> ElicitResult:
        """Code before this line may run again. Asks the person to do something at ``url``; see `ask`."""
        # One of the revisions wants an id by which the end could be told; nothing is made of it.
        question = ElicitUrlParams(message=message, url=url, elicitation_id=secrets.token_urlsafe(16))
        result: ElicitResult = await self._ask_one(question, key)
        return result

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        key: str | None = None,
        **more: Any,
    ) -> CreateMessageResult:
        """Code before this line may run again. Asks the client's model; ``more`` are fields of `CreateMessageParams`.

        See `ask`.
        """
        if isinstance(messages, str):
            messages = [SamplingMessage(role="user", content=TextContent(text=messages))]
        question = CreateMessageParams(messages=list(messages), max_tokens=max_tokens, **more)
        result: CreateMessageResult = await self._ask_one(question, key)
        return result

    async def list_roots(self, *, key: str | None = None) -> list[Root]:
        """Code before this line may run again. Asks which folders the client wants to be worked in; see `ask`."""
        return list((await self._ask_one(ListRootsParams(), key)).roots)

    async def ask(self, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
        """Code before this line may run again. Asks the client several things at once.

        A legacy client is sent requests while this call waits. A modern one gets an input-required result: the call
        ends here, and the client's retry runs the function again from its start, with the recorded answers at
        hand. So whatever has side effects belongs after the last question; keys must be the same in each run
        (those made by default are, as long as the questions come in the same order).

        Raises `MissingCapability` when the client did not declare that it can answer, before anything is sent,
        `RemoteProtocolError` for an answer that does not fit, and `LocalProtocolError` in a modern request that is
        neither for a tool nor for a prompt nor for a resource. Cancellation withdraws the questions.
        """
        for each in questions.values():
            needed = missing_capability(each, self.peer.raw_capabilities, self.era)
            if needed is not None:
                raise MissingCapability(needed)
        if not self.era.asks_by_retry:
            return await self._ask_now(questions)
        if not self.call.invocation.method.may_ask:
            raise LocalProtocolError(
                f"protocol version {self.era.version} lets {self.method} ask for nothing"
            )
        return await self._ask_by_retry(questions)

    async def _ask_one(self, question: InputRequest, key: str | None) -> Any:
        if key is None:
            self._asked += 1
            key = f"{question.method.partition('/')[0]}-{self._asked}"
        return (await self.ask({key: question}))[key]

    async def _ask_now(self, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
        seconds = self._scope.limits.ask_timeout
        answers: dict[str, Any] = {}
        for key, each in questions.items():
            raw = await self.call.ask(each.method, self.era.unstructure(each), idle=seconds, cap=seconds)
            answers[key] = read_answer(each, raw, self.era)
        return answers

    async def _ask_by_retry(self, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
        recorded = self._scope.recorded_answers(self.call.invocation)
        answers = {key: read_recorded(each, key, recorded, self.era) for key, each in questions.items()}
        missing = {key: each for key, each in questions.items() if answers[key] is None}
        if missing:
            for key in questions:
                if key in recorded:
                    self._kept[key] = recorded[key]
            state = self._scope.seal_answers(self.call.invocation, self._kept)
            await self.call.replace(input_required(missing, state, self.era))
        await trio.lowlevel.checkpoint()
        self._kept.update((key, recorded[key]) for key in questions)
        return answers
