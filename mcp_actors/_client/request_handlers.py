"""The client's side of a connection: how it answers what servers ask."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import attrs

from mcp_actors._actors.continuation import Continuation
from mcp_actors._actors.inbound_call import InboundCall
from mcp_actors._eras.era import Era, structured
from mcp_actors.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RemoteProtocolError, RpcError
from mcp_actors.types import (
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    ElicitationCapability,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequest,
    InputResponse,
    ListRootsParams,
    ListRootsResult,
    Root,
    RootsCapability,
    SamplingCapability,
    SamplingMessage,
    ToolResultContent,
    ToolUseContent,
    fill_defaults,
)

__all__ = ["ElicitationHandler", "RequestHandlers", "Roots", "SamplingHandler"]

SamplingHandler = Callable[[CreateMessageParams], Awaitable[CreateMessageResult]]
ElicitationHandler = Callable[[ElicitFormParams | ElicitUrlParams], Awaitable[ElicitResult]]
Roots = Sequence[Root | str] | Callable[[], Awaitable[Sequence[Root | str]]]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@attrs.define(eq=False)
class RequestHandlers:
    """Answers questions with the handlers that the client was given; what it was not given it did not declare.

    ``busy`` is entered while a handler runs: a call of ours during which the server asks us is not idle.
    """

    sampling: SamplingHandler | None = None
    sampling_tools: bool = False
    elicitation: ElicitationHandler | None = None
    roots: Roots | None = None
    busy: Callable[[], AbstractContextManager[None]] = _nothing
    stamp: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def capabilities(self) -> ClientCapabilities:
        """What is declared to servers."""
        return ClientCapabilities(
            sampling=SamplingCapability(tools={} if self.sampling_tools else None) if self.sampling else None,
            elicitation=ElicitationCapability(form={}, url={}) if self.elicitation else None,
            roots=RootsCapability(list_changed=True) if self.roots is not None else None,
        )

    # -- as the responder of a session (legacy) ----------------------------------------------------------------------

    def respond(self, call: InboundCall) -> Any:
        """Answers a legacy server's request: a ping on the spot, everything else in the call's own task."""
        invocation = call.invocation
        if invocation.method.name == "ping":
            return {}
        question = self._question(invocation.method.name, invocation.params, invocation.era)
        return Continuation(self.fulfil, question)

    # -- for both eras -----------------------------------------------------------------------------------------------

    def read_requests(self, requests: Any, era: Era) -> dict[str, InputRequest]:
        """The questions of an input-required result. Raises `RemoteProtocolError` for what we cannot be asked."""
        if requests is None:
            return {}
        if not isinstance(requests, dict):
            raise RemoteProtocolError("inputRequests must be an object")
        try:
            return {key: self._embedded(each, era) for key, each in requests.items()}
        except RpcError as error:
            raise RemoteProtocolError(f"the server asks what it must not: {error.message}") from None

    async def visit(self, required: Any, era: Era) -> bool:
        """Asks the person to go through the urls of a -32042, one after the other; whether all were agreed to.

        The handler returns when the person is done, or has declined.
        """
        entries = required.get("elicitations") if isinstance(required, dict) else None
        if self.elicitation is None or not isinstance(entries, list) or not entries:
            return False
        for entry in entries:
            if not isinstance(entry, dict) or entry.get("mode") != "url":
                return False
            answer = await self.fulfil(self._question("elicitation/create", entry, era))
            if not isinstance(answer, ElicitResult) or answer.action != "accept":
                return False
        return True

    def _embedded(self, request: Any, era: Era) -> InputRequest:
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            raise RpcError(INVALID_PARAMS, "an input request needs a method")
        params = request.get("params", {})
        if not isinstance(params, dict):
            raise RpcError(INVALID_PARAMS, "the params of an input request must be an object")
        return self._question(request["method"], params, era)

    def _question(self, method: str, params: dict[str, Any], era: Era) -> InputRequest:
        if method == "sampling/createMessage" and self.sampling is not None:
            question = structured(era, params, CreateMessageParams)
            self._check_sampling(question)
            return question
        if method == "elicitation/create" and self.elicitation is not None:
            if params.get("mode", "form") == "form":
                return structured(era, params, ElicitFormParams)
            if "url" not in era.unstructure(self.capabilities)["elicitation"]:
                raise RpcError(INVALID_PARAMS, "this client did not declare elicitation.url")
            return structured(era, params, ElicitUrlParams)
        if method == "roots/list" and self.roots is not None:
            return structured(era, params, ListRootsParams)
        raise RpcError(METHOD_NOT_FOUND, f"this client did not declare that it answers {method}")

    async def fulfil(self, question: InputRequest) -> InputResponse:
        """Runs the handler for one question."""
        with self.busy():
            if isinstance(question, CreateMessageParams):
                assert self.sampling is not None
                return await self.sampling(question)
            if isinstance(question, ListRootsParams):
                return ListRootsResult(
                    [each if isinstance(each, Root) else Root(each) for each in await self._roots()]
                )
            assert self.elicitation is not None
            result = await self.elicitation(question)
        if isinstance(question, ElicitFormParams) and result.action == "accept":
            # Defaults fill what the person left out.
            return attrs.evolve(result, content=fill_defaults(question.requested_schema, result.content))
        return result

    async def _roots(self) -> Sequence[Root | str]:
        assert self.roots is not None
        if not callable(self.roots):
            return self.roots
        roots = self.roots()
        return await roots if inspect.isawaitable(roots) else roots

    def _check_sampling(self, params: CreateMessageParams) -> None:
        """Tools need the sub-capability; tool results stand alone and answer each use before them: else -32602."""
        if not self.sampling_tools and (params.tools is not None or params.tool_choice is not None):
            raise RpcError(INVALID_PARAMS, "this client did not declare sampling.tools")
        open_uses: set[str] = set()
        for message in params.messages:
            blocks = _blocks(message)
            results = [block for block in blocks if isinstance(block, ToolResultContent)]
            if results and len(results) < len(blocks):
                raise RpcError(INVALID_PARAMS, "a message with tool results must hold nothing else")
            if open_uses != {block.tool_use_id for block in results}:
                raise RpcError(
                    INVALID_PARAMS, "every tool use needs its result in the next message, and no other"
                )
            open_uses = {block.id for block in blocks if isinstance(block, ToolUseContent)}
        if open_uses:
            raise RpcError(INVALID_PARAMS, f"tool uses without a result: {', '.join(sorted(open_uses))}")


def _blocks(message: SamplingMessage) -> Sequence[Any]:
    return message.content if isinstance(message.content, list) else [message.content]
