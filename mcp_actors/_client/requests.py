"""The requests of a client, each from the method and its params to the typed result.

`Requests.call` is for methods of the protocol. Inside of the client's middleware it takes these steps:

1. The revision must have the method, and the server must have declared what the method requires.
2. A fresh answer in `ResponseCache` is the result (MCP 2026-07-28, Caching). Lists and reads that are asked for at
   the same time are one request (`Flights`), and other processes may have an answer (`SharedAnswers`).
3. `Requests.send` sends the request in the present session, or waits for the session that is on its way. Where the
   channel carries headers, `HeaderMirroring` repeats parts of the request in them (MCP 2026-07-28, Streamable HTTP,
   Standard and Custom Headers). A request of which nothing was begun is sent again (`Repetition`).
4. A result of an extension's kind is finished by the extension. A result that asks for input is answered by the
   client's handlers, and the request is sent again with the answers, `ClientOptions.max_rounds` times at most
   (MCP 2026-07-28, Multi Round-Trip Requests).

`Requests.request` and `Requests.send` are for any method, and return what the server sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from mcp_actors._actors.outbound import OutboundCalls
from mcp_actors._actors.outbound_call import CallOptions, OutboundCall, ProgressCallback
from mcp_actors._actors.session import Session
from mcp_actors._client.cache import (
    STALE,
    Flights,
    KnownAnswer,
    ResponseCache,
    SharedAnswers,
    validated,
)
from mcp_actors._client.client_extension import AnsweredCall, Extensions
from mcp_actors._client.connectivity import Connectivity, Negotiated
from mcp_actors._client.options import ClientCall, ClientOptions, guarded, sent_through
from mcp_actors._client.pages import FEW_PAGES, AllPages
from mcp_actors._client.repetition import REFUSALS, Repetition, may_be_repeated
from mcp_actors._client.request_handlers import RequestHandlers
from mcp_actors._client.tool_results import ListedSchemas
from mcp_actors._eras.era import ETAG, ETAGS, READS, Era, Event, EventKind, Method, read_result
from mcp_actors._eras.modern import ENVELOPE, MirroredParam
from mcp_actors._wire.codec import encode_params
from mcp_actors.errors import (
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    HeaderMismatch,
    InputRequired,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RpcError,
)
from mcp_actors.supervision.logging import log
from mcp_actors.types import InputRequest, InputResponse, ListToolsResult, Tool

__all__ = [
    "HeaderMirroring",
    "Requests",
    "call_options",
    "callers_meta",
]

T = TypeVar("T")


class Requests:
    """Makes requests in whatever session the client has at the moment.

    Args:
        options: The client's options.
        connectivity: Where a session is waited for while there is not one.
        handlers: Answer what the server asks for on the way.
    """

    def __init__(self, options: ClientOptions, connectivity: Connectivity, handlers: RequestHandlers) -> None:
        self.options = options.call
        self.cache = ResponseCache(options.limits.cache_bytes)
        self.flights = Flights()
        self.shared = SharedAnswers.of(options)
        self.schemas = ListedSchemas(options.arguments)
        self.middleware = tuple(options.middleware)
        self.client_options = options
        self.extensions = Extensions(
            handlers.capabilities.extensions or {},
            {kind: made for each in options.in_use for kind, made in each.results.items()},
            {name: target for each in options.in_use for name, target in each.targets.items()},
        )
        self.on_stale: Callable[[], None] = lambda: None
        """Is called when the server is another one, or has changed a list."""
        self._connectivity = connectivity
        self.handlers = handlers
        self.streams: dict[Any, Any] = {}
        """The `mcp_actors._client.tool_streams.PartStream` of each call that takes parts, by its token."""
        # The results of the last handshake; before the first one no method is available.
        self._session: Session | None = None
        self._era: Era | None = None
        self._methods: Mapping[str, Method] = {}
        self._mirroring: HeaderMirroring | None = None
        self._validates = False

    def __repr__(self) -> str:
        return f"<Requests {self._era.version if self._era else '-'} {self.cache!r}>"

    def connected(self, session: Session, negotiated: Negotiated) -> None:
        """Makes requests in ``session`` from now on."""
        era, declared = negotiated.era, negotiated.declared
        self._session = session
        self._era = era
        self._methods = {
            name: method
            for name, method in era.server_methods.items()
            if method.requires is None or method.requires in declared
        }
        mirrors = era.client.mirrored is not None and session.link.channel.mirrors
        self._mirroring = HeaderMirroring(era, self.extensions.targets) if mirrors else None
        self._validates = ETAGS in (negotiated.capabilities.extensions or {})
        self.cache.clear()
        self.flights.close()
        self.on_stale()

    @property
    def session(self) -> Session | None:
        """The session of the last handshake; ``None`` before the first one."""
        return self._session

    def has_method(self, name: str) -> bool:
        """Whether the revision has a method, and the server has declared what it requires."""
        return name in self._methods

    def require(self, name: str) -> None:
        """Raises `LocalProtocolError` if a method cannot be asked for, or the client is not connected."""
        if name not in self._methods:
            self._not_available(name)

    def new_access(self) -> list[EventKind]:
        """Forgets all answers: they were for another caller or other scopes. Returns which lists may be different ones.

        A resource that was read is another caller's, too.
        """
        self.cache.forget()
        self.flights.close()
        kinds: list[EventKind] = ["tools", "prompts", "resources"]
        return [kind for kind in kinds if f"{kind}/list" in self._methods]

    def changed(self, event: Event) -> None:
        """Forgets what was known of something that has changed on the server."""
        self.cache.invalidate(event.kind)
        self.flights.close(*STALE[event.kind])
        if self.shared is not None:
            self.shared.doubt(event.kind)
        if event.uri is None:
            self.on_stale()
        if event.kind == "tools":
            self.schemas.forget()
            if self._mirroring is not None:
                self._mirroring.forget()

    # -- one request -----------------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
        refresh: bool = False,
        raw: Collection[str] = (),
    ) -> Awaitable[Any]:
        """Sends a request of the protocol, answers what the server asks on the way, and returns the typed result.

        All of that happens inside of the client's middleware, which may change it. Cancelled, the server is sent a
        cancellation.

        Args:
            name: The method.
            params: Its parameters, without ``_meta``; they are not changed.
            options: How the request is made; by default as the client's options say.
            answers: The answers to an `InputRequired`, by its keys.
            state: The state of an `InputRequired`.
            refresh: Whether the server is asked although there is an answer that is good still.
            raw: Further kinds of results, which are returned as they are.

        Raises:
            LocalProtocolError: The revision has no such method, the server did not declare it, or it cannot be sent.
            RpcError: The server answered with an error.
            RemoteProtocolError: The server's answer cannot be understood, or it asks without an end.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
            CallTimeout: A clock of ``options`` ran out.
            DeadlineExceeded: The server has stopped at the deadline of the request, or no time is left to send it in.
            ConnectionLost: There is no connection, or it ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session.
        """
        if not self.middleware:
            return self._call(name, params, options, answers, state, refresh, raw)
        call = ClientCall(
            method=name,
            params=params,
            options=options or self.options,
            answers=answers,
            state=state,
            refresh=refresh,
            raw=raw,
            client=self,
        )
        return sent_through(self.middleware, call, self._called)

    def request(self, method: str, params: dict[str, Any], options: CallOptions) -> Awaitable[dict[str, Any]]:
        """Sends any request of the program, inside of its middleware, and returns the raw result; raises as `call`."""
        if not self.middleware:
            return self.send(method, params, options)
        call = ClientCall(method=method, params=params, options=options, client=self)
        return sent_through(self.middleware, call, self._sent)

    async def _called(self, call: ClientCall) -> Any:
        return await self._call(
            call.method, dict(call.params), call.options, call.answers, call.state, call.refresh, call.raw
        )

    async def _sent(self, call: ClientCall) -> dict[str, Any]:
        return await self.send(call.method, dict(call.params), call.options)

    def _call(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
        refresh: bool = False,
        raw: Collection[str] = (),
    ) -> Awaitable[Any]:
        # One coroutine less for each call of a tool.
        if name not in READS or answers is not None or state is not None:
            return self._ask(name, params, options or self.options, answers, state, raw)
        return self._found_or_read(name, params, options, refresh, raw)

    async def _found_or_read(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions | None,
        refresh: bool,
        raw: Collection[str],
    ) -> Any:
        """Returns the answer that there is, or reads it in one flight with others."""
        method = self._methods.get(name) or self._not_available(name)
        if method.cacheable and not refresh:
            cached = self.cache.get(name, params, trio.current_time())
            if cached is not None:
                await trio.lowlevel.checkpoint()
                return read_result(self.spoken(), cached, method.result)
        options = options or self.options
        read = partial(self._read, name, params, options, refresh, raw)
        if raw or not self.flights.takes(options):
            return await read(options)
        # One that goes its own way from here on asks with what is left of its time.
        return await self.flights.share(
            (name, encode_params(name, params), options.idle, options.cap, refresh), options, read
        )

    async def _read(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions,
        refresh: bool,
        raw: Collection[str],
        left: CallOptions,
    ) -> Any:
        """Makes a request for a list or a resource, or finds the answer that another process was given."""
        shared = self.shared if self._methods[name].cacheable else None
        if shared is None:
            return await self._ask(name, params, left, None, None, raw, refresh)
        negotiated = self._connectivity.negotiated
        place = shared.place_of(name, params, negotiated)
        found = None if refresh else await shared.get(place)
        if found is not None:
            self.cache.put(name, params, found, trio.current_time(), self.cache.changes)
            return read_result(self.spoken(), found, self._methods[name].result)
        changes = self.cache.changes
        result = await self._ask(name, params, left, None, None, raw, refresh)
        kept = self.cache.fresh(name, params, trio.current_time()) if changes == self.cache.changes else None
        if kept is not None:
            await shared.put(place, *kept)
        return result

    async def _ask(
        self,
        name: str,
        params: dict[str, Any],
        options: CallOptions,
        answers: Mapping[str, InputResponse] | None,
        state: str | None,
        raw: Collection[str],
        refresh: bool = False,
    ) -> Any:
        """Sends a request, and answers what the server asks on the way."""
        method = self._methods.get(name) or self._not_available(name)
        known: KnownAnswer | None = None
        if self._validates and name in READS and answers is None and state is None:
            known = self.cache.known(name, params)
            if refresh or known is not None:
                meta = {**(options.meta or {}), ETAG: "" if known is None else known.etag}
                options = attrs.evolve(options, meta=meta)
        asked = params
        if answers is not None or state is not None:
            era = self.spoken()
            asked = _retry(
                params, {key: era.unstructure(each) for key, each in (answers or {}).items()}, state
            )
        changes, results = self.cache.changes, self.extensions.results
        # Only the results of extensions have to be waited for within what is left of the call's time.
        began = trio.current_time() if results else 0.0
        max_rounds = self.client_options.max_rounds
        for round in range(max_rounds + 1):
            try:
                session = self._session
                if session is None or self._mirroring is not None or not session.outbound.is_plain:
                    result = await self.send(name, asked, options)
                else:
                    result = await self._send_in(session, name, asked, options)
            except RpcError as error:
                if round < max_rounds and await self._has_visited_urls(error):
                    continue
                if error.code == INVALID_PARAMS and "cursor" in params:
                    # The pages before it led nowhere: none of them is good any more.
                    self.cache.discard(name)
                raise
            if result.__class__ is not dict:
                return result
            kind = result.get("resultType", "complete")
            if kind == "complete":
                # MCP 2026-07-28, Caching: the result of a retry with input is not cacheable.
                if name in READS and asked is params:
                    if self._validates:
                        result = validated(result, known)
                    now = trio.current_time()
                    self.cache.put(name, params, result, now, changes, may_be_fresh=method.cacheable)
                return read_result(self.spoken(), result, method.result)
            if kind in raw:
                return result
            made = results.get(kind) if isinstance(kind, str) else None
            if made is not None and self.spoken().declares_in_requests:
                call = AnsweredCall(name, asked, options, self.send, began)
                return read_result(self.spoken(), await made(call, result), method.result)
            if kind != "input_required" or not method.may_ask:
                raise RemoteProtocolError(
                    f"the server answered {name} with a result of the unknown type {kind!r}"
                )
            era = self.spoken()
            questions, state = self._questions(result, era)
            if not self.client_options.answer_input:
                raise InputRequired(questions, state)
            # No question is asked in the last round, because its answer could not be sent.
            if round < max_rounds:
                asked = _retry(params, await self.handlers.fulfil_all(questions, era), state)
        raise RemoteProtocolError(f"the server still asks for input after {max_rounds} rounds")

    async def _send_in(
        self, session: Session, method: str, params: dict[str, Any], options: CallOptions
    ) -> Any:
        """As `send` does, in a session that is there, where nothing is mirrored and telemetry observes nothing.

        A result of a common form is returned as an object of its class.
        """
        outbound = session.outbound
        read = self.spoken().read_tool_result if method == "tools/call" else None
        pending = None
        try:
            pending, outlet = outbound.begin(method, params, options)
            return await outbound.finish(pending, outlet, options, read=read)
        except REFUSALS as refusal:
            if not may_be_repeated(refusal, options):
                raise
            repetition = Repetition(
                options, self._connectivity, None if pending is None else pending.deadline
            )
            options = await repetition.wait(refusal, session)
        finally:
            if self.flights.open and method not in READS:
                # What it has done may not be in answers that are on their way.
                self.flights.close()
        return await self.send(method, params, options, repetition)

    async def send(
        self,
        method: str,
        params: dict[str, Any],
        options: CallOptions,
        repetition: Repetition | None = None,
    ) -> dict[str, Any]:
        """Sends any request and returns its result as the server sent it; raises as `call` does.

        It is sent again while nothing of it was begun, within the time of the call: see `Repetition`. A call of a tool
        that the server refuses for what was mirrored of it is sent once more after the tools were listed.

        Args:
            repetition: The attempts that were made before.
        """
        if repetition is None:
            repetition = Repetition(options, self._connectivity)
        may_list = True
        while True:
            session, mirroring = self._session, self._mirroring
            if session is None or session.outbound.ended:
                session = await self._connectivity.live_session(options.idle)
                mirroring = self._mirroring
            listings = 0 if mirroring is None else mirroring.listings
            metadata = None if mirroring is None else mirroring.metadata_of(method, params)
            try:
                return await session.outbound.request(method, params, options, metadata=metadata)
            except HeaderMismatch as mismatch:
                if mirroring is None or method != "tools/call" or not may_list:
                    raise
                may_list = False
                try:
                    await self._list_tools_again(mirroring, listings, options)
                except (RpcError, ProtocolError):
                    raise mismatch from None
            except REFUSALS as refusal:
                options = await repetition.wait(refusal, session)
            finally:
                if self.flights.open and method not in READS:
                    self.flights.close()

    def begin(
        self, method: str, params: dict[str, Any], options: CallOptions
    ) -> tuple[OutboundCalls, OutboundCall] | None:
        """Sends any request once, for a caller that waits without a task (`OutboundCall.when_done`).

        It fails where `send` would send it again (`may_be_repeated`). Returns ``None`` if it cannot be sent at once.
        """
        session, mirroring = self._session, self._mirroring
        if session is None or session.outbound.ended:
            return None
        metadata = None if mirroring is None else mirroring.metadata_of(method, params)
        pending, _ = session.outbound.begin(method, params, options, metadata=metadata)
        if pending.unsent is not None:
            session.outbound.forget(pending)
            return None
        return session.outbound, pending

    def metadata_of(self, method: str, params: dict[str, Any]) -> dict[str, str] | None:
        """Returns what is mirrored of a request outside the body; ``None`` where nothing is."""
        return None if self._mirroring is None else self._mirroring.metadata_of(method, params)

    async def list_tools(
        self, cursor: str | None, options: CallOptions | None = None, refresh: bool = False
    ) -> ListToolsResult:
        """Returns one page of the tools, without those that must not be called over this connection."""
        return self._learned(await self.call("tools/list", _page(cursor), options, refresh=refresh))

    def list_again(self, name: str, params: dict[str, Any]) -> Awaitable[Any]:
        """Has the server list something for the client itself, whatever was listed before; raises as `call`."""
        return self._call(name, params, refresh=True)

    def learn_tools(self, tools: list[Tool]) -> list[Tool]:
        """Takes note of what listed tools mirror, and returns those that may be called over this connection."""
        return tools if self._mirroring is None else self._mirroring.learn(tools)

    def _learned(self, page: ListToolsResult) -> ListToolsResult:
        page.tools = self.learn_tools(page.tools)
        return page

    async def _list_tools_again(
        self, mirroring: HeaderMirroring, listings: int, options: CallOptions
    ) -> None:
        """Lists the tools to learn what they mirror, unless that was done since there were ``listings``.

        Calls that fail together do it once; the next one takes over from one that failed or was cancelled.
        """
        async with mirroring.listing:
            if mirroring.listings != listings:
                return
            self.cache.discard("tools/list")
            # The progress callback and the metadata belong to the call that failed.
            options = CallOptions(idle=options.idle, cap=options.cap)

            async def list_page(cursor: str | None) -> ListToolsResult:
                # This request is the client's own, so the program's middleware does not see it.
                return self._learned(await self._call("tools/list", _page(cursor), options))

            async for _ in AllPages(
                list_page,
                lambda page: page.tools,
                most_pages=FEW_PAGES,
                most_seconds=options.cap,
                is_cut=True,
            ):
                pass
            mirroring.listings += 1

    # -- checks, and questions of the server ------------------------------------------------------------------------

    def spoken(self) -> Era:
        """Returns the revision of the connection."""
        assert self._era is not None
        return self._era

    def _not_available(self, name: str) -> Method:
        """Raises why a method cannot be asked for."""
        negotiated = self._connectivity.negotiated
        method = negotiated.era.server_methods.get(name)
        if method is None:
            raise LocalProtocolError(f"{name} does not exist in protocol version {negotiated.era.version}")
        raise LocalProtocolError(
            f"the server did not declare {method.requires!r}, so {name} cannot be asked of it"
        )

    def _questions(self, result: dict[str, Any], era: Era) -> tuple[dict[str, InputRequest], str | None]:
        state = result.get("requestState")
        if state is not None and not isinstance(state, str):
            raise RemoteProtocolError("requestState must be a string")
        return self.handlers.read_requests(result.get("inputRequests"), era), state

    async def _has_visited_urls(self, error: RpcError) -> bool:
        """Whether the server asked for visits to URLs by an error, and they were made: then the call is made again.

        MCP 2025-11-25, Elicitation, URL Elicitation Required Error.
        """
        if error.code != URL_ELICITATION_REQUIRED or not self.client_options.answer_input:
            return False
        era = self.spoken()
        return era.client.visits_urls_on_error and await self.handlers.visit(error.data, era)


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
        on_progress=None if on_progress is None else guarded("on_progress", on_progress),
        wants_progress=defaults.wants_progress,
        meta=None if meta is None else callers_meta(meta),
        sends_deadline=defaults.sends_deadline,
    )


def callers_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a caller may add to a request's ``_meta``: all but what is the engine's own."""
    return {key: value for key, value in meta.items() if key not in ENVELOPE}


def _page(cursor: str | None) -> dict[str, Any]:
    return {} if cursor is None else {"cursor": cursor}


def _retry(params: dict[str, Any], answers: dict[str, Any], state: str | None) -> dict[str, Any]:
    """Returns the params of a retry: the same ones, with answers and the untouched state."""
    retry = dict(params)
    if answers:
        retry["inputResponses"] = answers
    if state is not None:
        retry["requestState"] = state
    return retry


# -- headers ---------------------------------------------------------------------------------------------------------


class HeaderMirroring:
    """Makes the metadata of the requests of one connection; knows the annotations of the tools that were listed in it.

    A tool that was not listed mirrors none of its parameters. If it has annotations the server refuses the call, and
    the tools have to be listed. ``targets`` are the members of params that say what extensions' methods are about.
    """

    def __init__(self, era: Era, targets: Mapping[str, str]) -> None:
        assert era.client.mirrored is not None
        self._version = era.version
        self._mirrored = era.client.mirrored
        self._targets = targets
        self._find_params = era.client.mirrored_params
        self._annotated: dict[str, tuple[MirroredParam, ...]] = {}
        self._refused: dict[str, str] = {}
        self.listing = trio.Lock()
        """Is held while the tools are listed because a server refused a call."""
        self.listings = 0
        """How often that was done."""

    def __repr__(self) -> str:
        return f"<HeaderMirroring annotated={len(self._annotated)} refused={len(self._refused)}>"

    def metadata_of(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        """Returns what is mirrored of a request.

        Raises:
            LocalProtocolError: The tool was left out of its list, or a value cannot be written in a header.
        """
        annotated = self._params_of(params.get("name")) if method == "tools/call" else ()
        return self._mirrored(self._version, method, params, annotated, self._targets.get(method))

    def learn(self, tools: Iterable[Tool]) -> list[Tool]:
        """Takes note of listed tools and returns those that may be called: one with a bad annotation may not."""
        return [tool for tool in tools if self._is_usable(tool)]

    def forget(self) -> None:
        """Forgets all annotations: the tools have changed, and have to be listed again."""
        self._annotated.clear()
        self._refused.clear()

    def _is_usable(self, tool: Tool) -> bool:
        refused = self._refused.pop(tool.name, None)
        self._annotated.pop(tool.name, None)
        try:
            annotated = self._find_params(tool.input_schema)
        except ValueError as error:
            reason = self._refused[tool.name] = str(error)
            # Lists are read again and again; the reason is logged once.
            if refused != reason:
                log.warning("tool left out: a header cannot be made of it", tool=tool.name, reason=reason)
            return False
        if annotated:
            self._annotated[tool.name] = annotated
        return True

    def _params_of(self, name: Any) -> tuple[MirroredParam, ...]:
        if not isinstance(name, str):
            return ()
        if name in self._refused:
            raise LocalProtocolError(f"the tool {name!r} cannot be called: {self._refused[name]}")
        return self._annotated.get(name, ())
