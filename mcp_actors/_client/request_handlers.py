"""The client's answers to requests of servers: sampling, elicitation and roots.

In the revisions with sessions these are requests of the server (MCP 2025-11-25, Client Features); in the stateless ones
they are part of a result that asks for input (MCP 2026-07-28, Multi Round-Trip Requests).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from mcp_actors._actors.inbound_call import Continuation, InboundCall
from mcp_actors._actors.outbound import KINDS
from mcp_actors._client.client_extension import AskedRequest
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.options import ClientOptions, as_roots, declared_capabilities, guarded
from mcp_actors._eras.era import Era, Invocation, structured
from mcp_actors._eras.vocabulary import history_problem
from mcp_actors.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
)
from mcp_actors.types import (
    CreateMessageParams,
    CreateMessageResult,
    ElicitFormParams,
    ElicitResult,
    ElicitUrlParams,
    InputRequest,
    InputResponse,
    ListRootsParams,
    ListRootsResult,
    Root,
    SamplingCapability,
    fill_defaults,
    validate_form_answer,
)

__all__ = ["RequestHandlers"]


class RequestHandlers:
    """Answers with the handlers that the client was given; what it was not given it does not declare.

    Args:
        options: The client's options, with the handlers.
        connectivity: The client's calls in its session are not idle while a handler runs.
    """

    def __init__(self, options: ClientOptions, connectivity: Connectivity) -> None:
        self.stamp: Mapping[str, Any] = {}
        self.beats = None
        self.telemetry = options.telemetry
        if options.telemetry is not None:  # it enters the classes of observed calls
            importlib.import_module("mcp_actors._actors.observed")
        self.call_class = KINDS[options.telemetry is not None].inbound
        self._connectivity = connectivity
        self._roots: Callable[[], Any] | Sequence[Root] | None
        self._sampling = options.sampling and guarded("sampling", options.sampling)
        self._elicitation = options.elicitation and guarded("elicitation", options.elicitation)
        roots = options.roots
        if callable(roots):
            self._roots = guarded("roots", roots)
        else:
            self._roots = None if roots is None else as_roots(roots)
        self._methods = {name: f for each in options.in_use for name, f in each.methods.items()}
        self._arounds = [
            (name, around)
            for each in options.in_use
            for name, arounds in each.arounds.items()
            for around in arounds
        ]
        self.capabilities = declared_capabilities(options)
        """What is declared to servers."""

    def __repr__(self) -> str:
        names = [
            name for name in ("sampling", "elicitation", "roots") if getattr(self, f"_{name}") is not None
        ]
        return f"<RequestHandlers {', '.join(names) or 'none'}>"

    # -- as the responder of a session (legacy) ----------------------------------------------------------------------

    def is_registered(self, method: str, target: str) -> bool:
        """Nothing that a server asks for has a name."""
        return False

    def runs_in_place(self, method: str, target: str | None) -> bool:
        """Every function runs in a task."""
        return False

    def respond(self, call: InboundCall) -> Any:
        """Answers a ping at once, and everything else in a task of its own.

        Raises:
            RpcError: This client did not declare that it can answer.
        """
        invocation = call.invocation
        if invocation.method.name == "ping":
            return {}
        params = invocation.params
        if self._methods or self._arounds:
            continuation = self._of_extensions(invocation)
            if continuation is not None:
                return continuation
        if invocation.meta:
            params = {**params, "_meta": invocation.meta}
        question = self._question(invocation.method.name, params, invocation.era)
        return Continuation(self.fulfil, question)

    def _of_extensions(self, invocation: Invocation) -> Continuation | None:
        """Returns what an extension of this client does with a request; ``None`` if none has to do with it."""
        name, params, era = invocation.method.name, invocation.params, invocation.era
        asked = AskedRequest(name, params, invocation.meta)
        if name in self._methods:
            return Continuation(guarded(name, self._methods[name]), asked)
        for method, around in self._arounds:
            if method == name and around.when(params):

                async def call_next() -> dict[str, Any]:
                    question = self._question(name, {**params, "_meta": invocation.meta}, era)
                    answer: dict[str, Any] = era.unstructure(await self.fulfil(question))
                    return answer

                return Continuation(guarded(name, around.function), asked, call_next)
        return None

    def failure(self, call: InboundCall, error: BaseException) -> BaseException:
        """Returns the error as it is: a server is not sent the text of what the program's own functions raise."""
        return error

    # -- for both eras -----------------------------------------------------------------------------------------------

    def read_requests(self, requests: Any, era: Era) -> dict[str, InputRequest]:
        """Returns the questions of a result that asks for input; raises `RemoteProtocolError` for any not declared."""
        if requests is None:
            return {}
        if not isinstance(requests, dict):
            raise RemoteProtocolError("inputRequests must be an object")
        try:
            return {key: self._embedded(each, era) for key, each in requests.items()}
        except RpcError as error:
            raise RemoteProtocolError(f"the server asks what it must not: {error.message}") from None

    async def visit(self, required: Any, era: Era) -> bool:
        """Asks the person to visit the URLs of an error -32042, one after the other; whether all were agreed to.

        The elicitation handler returns when the person is done, or has declined. Raises what it raises.
        """
        entries = required.get("elicitations") if isinstance(required, dict) else None
        if self._elicitation is None or not isinstance(entries, list) or not entries:
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
        if method == "sampling/createMessage" and self._sampling is not None:
            question = structured(era, params, CreateMessageParams)
            self._check_sampling(question, era)
            return question
        if method == "elicitation/create":
            return self._elicited(params, era)
        if method == "roots/list" and self._roots is not None:
            return structured(era, params, ListRootsParams)
        raise RpcError(METHOD_NOT_FOUND, f"this client did not declare that it answers {method}")

    def _elicited(self, params: dict[str, Any], era: Era) -> InputRequest:
        """Returns a question to the person; raises -32602 for a mode that was not declared.

        MCP 2025-11-25, Elicitation, Error Handling.
        """
        declared = era.unstructure(self.capabilities).get("elicitation")
        if declared is None:
            raise RpcError(INVALID_PARAMS, "this client did not declare that it answers elicitation/create")
        mode = "form" if params.get("mode", "form") == "form" else "url"
        own = self.capabilities.elicitation
        # Without any member only forms are declared, and in the revisions without members nothing else exists.
        has_form = own is not None and (own.form is not None or own.url is None)
        if not has_form if mode == "form" else "url" not in declared:
            raise RpcError(INVALID_PARAMS, f"this client did not declare elicitation.{mode}")
        if mode == "form":
            return structured(era, params, ElicitFormParams)
        return structured(era, params, ElicitUrlParams)

    async def fulfil(self, question: InputRequest) -> InputResponse:
        """Returns the handler's answer to one question; an `Exception` of the handler leaves as it is."""
        with self._peer_waits():
            if isinstance(question, CreateMessageParams):
                assert self._sampling is not None
                message: CreateMessageResult = await _outcome_of(self._sampling(question))
                return message
            if isinstance(question, ListRootsParams):
                return ListRootsResult(list(await self._list_roots()))
            assert self._elicitation is not None
            result: ElicitResult = await _outcome_of(self._elicitation(question))
        if isinstance(question, ElicitFormParams) and result.action == "accept":
            # Defaults fill what the person left out.
            content = fill_defaults(question.requested_schema, result.content)
            problems = validate_form_answer(question.requested_schema, content)
            if problems:
                raise LocalProtocolError(
                    f"the elicitation handler accepted with an answer that does not fit the form, so it was not sent: "
                    f"{'; '.join(problems)}"
                )
            return attrs.evolve(result, content=content)
        return result

    async def fulfil_all(self, questions: Mapping[str, InputRequest], era: Era) -> dict[str, Any]:
        """Returns the handlers' answers as JSON, by key; an `Exception` of a handler leaves as it is."""
        return {key: era.unstructure(await self.fulfil(each)) for key, each in questions.items()}

    async def _list_roots(self) -> Sequence[Root]:
        assert self._roots is not None
        if not callable(self._roots):
            return self._roots
        roots = await _outcome_of(self._roots())
        try:
            return as_roots(roots)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from None

    @contextmanager
    def _peer_waits(self) -> Iterator[None]:
        """While the server waits for us, our calls to it are not idle."""
        if not self._connectivity.is_connected:
            yield
            return
        outbound = self._connectivity.session.outbound
        held = [pending.deadline for pending in outbound.pending.values()]
        for deadline in held:
            deadline.hold()
        try:
            yield
        finally:
            for deadline in held:
                deadline.release()
                outbound.clock.watch(deadline)

    def _check_sampling(self, params: CreateMessageParams, era: Era) -> None:
        """Raises -32602 for what was not declared, and for tool results that do not answer the uses before them.

        MCP 2025-11-25, Sampling, Capabilities; Message Content Constraints.
        """
        declared = self.capabilities.sampling or SamplingCapability()
        if declared.tools is None and (params.tools is not None or params.tool_choice is not None):
            raise RpcError(INVALID_PARAMS, "this client did not declare sampling.tools")
        wants_context = (params.include_context or "none") != "none"
        if declared.context is None and wants_context and era.declares_sampling_context:
            raise RpcError(INVALID_PARAMS, "this client did not declare sampling.context")
        problem = history_problem(params.messages)
        if problem is not None:
            raise RpcError(INVALID_PARAMS, problem)


async def _outcome_of(returned: Any) -> Any:
    """Returns the answer of a handler, which may be a plain or an async function."""
    return await returned if inspect.isawaitable(returned) else returned
