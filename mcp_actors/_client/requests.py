"""How a client's call of the protocol runs: gate, cache, metadata, answering what the server asks, typed result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import trio

from mcp_actors._actors.outbound_call import CallOptions, ProgressCallback
from mcp_actors._actors.session import Session
from mcp_actors._client.handshake import Negotiated, read
from mcp_actors._client.header_mirroring import HeaderMirroring
from mcp_actors._client.request_handlers import RequestHandlers
from mcp_actors._client.response_cache import ResponseCache
from mcp_actors._client.supervisor import Supervisor
from mcp_actors._eras.client_negotiation import request_meta
from mcp_actors._eras.era import Era, Method
from mcp_actors.errors import (
    INVALID_PARAMS,
    HeaderMismatch,
    InputRequired,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RpcError,
    SessionExpired,
)
from mcp_actors.types import Implementation, InputRequest, InputResponse

__all__ = ["Requests", "all_pages", "call_options"]

URL_ELICITATION_REQUIRED = -32042

T = TypeVar("T")


class Requests:
    """Calls methods of whatever server the supervisor is connected to. Times are seconds."""

    def __init__(
        self,
        info: Implementation,
        answers: RequestHandlers,
        log_level: str | None,
        default_log_level: str | None,
        *,
        options: CallOptions,
        answer_input: bool,
        max_rounds: int,
    ) -> None:
        self.options = options
        self.cache = ResponseCache()
        self.mirroring = HeaderMirroring(self.call, self.cache)
        self.log_level = log_level
        self._default_log_level = default_log_level
        self._info = info
        self._answers = answers
        self._answer_input = answer_input
        self._max_rounds = max_rounds
        self._supervisor: Supervisor | None = None
        self._negotiated: Negotiated | None = None

    def __repr__(self) -> str:
        return f"<Requests {self._negotiated.era.version if self._negotiated else '-'} {self.cache!r}>"

    def attach(self, supervisor: Supervisor) -> None:
        """Whose connection to use."""
        self._supervisor = supervisor

    def connected(self, session: Session, negotiated: Negotiated) -> None:
        """A handshake was made: from now on this is how requests look."""
        if negotiated is not self._negotiated:
            self.mirroring.forget()
        self._negotiated = negotiated
        self.describe_us_to(session)
        self.cache.clear()

    def describe_us_to(self, session: Session) -> None:
        """Sets what every request of ``session`` carries about this client."""
        level = self.log_level or self._default_log_level
        era = self.negotiated.era
        session.outbound.meta = request_meta(era, self._info, self._answers.capabilities, level)

    @property
    def negotiated(self) -> Negotiated:
        if self._negotiated is None:
            raise LocalProtocolError("not connected: use 'async with Client(...) as client'")
        return self._negotiated

    async def call(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> Any:
        """Sends a request of the protocol, answers what the server asks on the way, and reads the typed result."""
        era = self.negotiated.era
        method = self._method(name)
        if method.cacheable and (cached := self.cache.get(name, params, trio.current_time())) is not None:
            await trio.lowlevel.checkpoint()
            return read(era, cached, method.result)
        asked = params
        if answers is not None or state is not None:
            asked = _retry(
                params, {key: era.unstructure(each) for key, each in (answers or {}).items()}, state
            )
        changes = self.cache.changes
        for round in range(self._max_rounds + 1):
            try:
                result = await self.send(name, asked, options or self.options)
            except RpcError as error:
                if round < self._max_rounds and await self._went_there(error, era):
                    continue
                if error.code == INVALID_PARAMS and "cursor" in params:
                    # The pages before it led nowhere: none of them is good any more.
                    self.cache.discard(name)
                raise
            kind = result.get("resultType", "complete")
            if kind == "complete":
                # What came of a retry is not cacheable.
                if method.cacheable and asked is params:
                    self.cache.put(name, params, result, trio.current_time(), changes)
                return read(era, result, method.result)
            if kind != "input_required" or not method.may_ask:
                raise RemoteProtocolError(
                    f"the server answered {name} with a result of the unknown type {kind!r}"
                )
            questions, state = self._questions(result, era)
            if not self._answer_input:
                raise InputRequired(questions, state)
            # Nobody is asked when there is no round left in which the answer could be sent.
            if round < self._max_rounds:
                asked = _retry(params, await self._answered(questions, era), state)
        raise RemoteProtocolError(f"the server still asks for input after {self._max_rounds} rounds")

    async def send(self, method: str, params: dict[str, Any], options: CallOptions) -> dict[str, Any]:
        """Sends any request, with the metadata of the era, and returns its raw result.

        A call of a tool that its server refuses for what was mirrored is made once more, after listing the tools.
        """
        listings = self.mirroring.listings
        try:
            return await self._request(method, params, options)
        except HeaderMismatch as mismatch:
            if method != "tools/call" or not self.mirroring.active:
                raise
            try:
                await self.mirroring.list_anew(listings, options)
            except (RpcError, ProtocolError):
                raise mismatch from None
        return await self._request(method, params, options)

    async def _request(self, method: str, params: dict[str, Any], options: CallOptions) -> dict[str, Any]:
        assert self._supervisor is not None
        session = self._supervisor.live() or await self._supervisor.live_session(options.idle)
        try:
            return await self._request_in(session, method, params, options)
        except SessionExpired as expired:
            # What a forgotten session refused was not done: it is asked once more in the new one, which all who
            # met the same refusal wait for together.
            if not expired.never_run or not self._supervisor.restarts:
                raise
            session = await self._supervisor.live_session(options.idle, session)
            return await self._request_in(session, method, params, options)

    def _request_in(
        self, session: Session, method: str, params: dict[str, Any], options: CallOptions
    ) -> Awaitable[dict[str, Any]]:
        metadata = self.mirroring.image(session, self.negotiated.era, method, params)
        return session.request(method, params, options, metadata=metadata)

    def _method(self, name: str) -> Method:
        negotiated = self.negotiated
        method = negotiated.era.server_methods.get(name)
        if method is None:
            raise LocalProtocolError(f"{name} does not exist in protocol version {negotiated.era.version}")
        if method.requires is not None and method.requires not in negotiated.declared:
            raise LocalProtocolError(
                f"the server did not declare {method.requires!r}, so {name} cannot be asked of it"
            )
        return method

    def _questions(self, result: dict[str, Any], era: Era) -> tuple[dict[str, InputRequest], str | None]:
        state = result.get("requestState")
        if state is not None and not isinstance(state, str):
            raise RemoteProtocolError("requestState must be a string")
        return self._answers.read_requests(result.get("inputRequests"), era), state

    async def _went_there(self, error: RpcError, era: Era) -> bool:
        """One legacy revision asks for a visit to a url by an error; after the visit the call is made again."""
        asks = error.code == URL_ELICITATION_REQUIRED and era.name == "legacy" and self._answer_input
        return asks and await self._answers.visit(error.data, era)

    async def _answered(self, questions: Mapping[str, InputRequest], era: Era) -> dict[str, Any]:
        return {key: era.unstructure(await self._answers.fulfil(each)) for key, each in questions.items()}

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While the server waits for us, our calls to it are not idle."""
        assert self._supervisor is not None
        held = [pending.deadline for pending in self._supervisor.session.outbound.pending.values()]
        for deadline in held:
            deadline.hold()
        try:
            yield
        finally:
            for deadline in held:
                deadline.release()
                self._supervisor.watch(deadline)


def call_options(
    defaults: CallOptions,
    timeout: float | None,
    cap: float | None = None,
    on_progress: ProgressCallback | None = None,
    meta: Mapping[str, Any] | None = None,
) -> CallOptions:
    """Returns the options of one call: what is not given is as in ``defaults``."""
    if timeout is None and cap is None and on_progress is None and not meta:
        return defaults
    return CallOptions(
        idle=defaults.idle if timeout is None else timeout,
        cap=defaults.cap if cap is None else cap,
        on_progress=on_progress,
        wants_progress=defaults.wants_progress,
        meta=meta,
    )


def _retry(params: dict[str, Any], answers: dict[str, Any], state: str | None) -> dict[str, Any]:
    """The params of the retry: the same ones, with answers and the untouched state."""
    retry = dict(params)
    if answers:
        retry["inputResponses"] = answers
    if state is not None:
        retry["requestState"] = state
    return retry


async def all_pages(
    list_page: Callable[[str | None], Awaitable[Any]], entries: Callable[[Any], list[T]]
) -> AsyncIterator[T]:
    """Every entry of a list, page by page; the next page is asked for when it is needed."""
    cursor: str | None = None
    while True:
        page = await list_page(cursor)
        for entry in entries(page):
            yield entry
        cursor = page.next_cursor
        # An empty string is a cursor like any other; only its absence ends the list.
        if cursor is None:
            return
