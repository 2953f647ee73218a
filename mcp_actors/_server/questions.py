"""The part of a context that asks the client: its person, its model, its folders."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import attrs

from mcp_actors import types as t
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.sampling_history import history_problem
from mcp_actors._schema.pydantic_types import ConversionError
from mcp_actors._schema.returned import conversion
from mcp_actors._schema.signature import JsonType
from mcp_actors._server.asking import ask_by_requests, ask_by_retry
from mcp_actors._server.client_requests import flat_form, missing_capability
from mcp_actors._server.scope import ServerScope
from mcp_actors.errors import LocalProtocolError, MissingCapability, RemoteProtocolError, invalid_params
from mcp_actors.types import TextContent

__all__ = ["FormResult", "Questions"]

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
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
        question = t.ElicitFormParams(message=message, requested_schema=flat_form(JsonType(schema).schema))
        made = conversion(schema)
        return self._filled_in(await self._ask_one(question, key, ttl), made)

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
            RemoteProtocolError: A legacy client's answer is malformed, does not fit the form, or has a root that is no
                ``file://`` URI.
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
        if (voice := self.call.voice) is not None:
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
