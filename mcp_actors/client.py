"""The client's face: one object, the same for both eras and every transport."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, TypeVar

import trio

from mcp_actors._actors.limits import Limits
from mcp_actors._actors.pending import ProgressCallback
from mcp_actors._actors.session import Session, SessionStatistics
from mcp_actors._capabilities.answers import Answers, ElicitationHandler, Roots, SamplingHandler
from mcp_actors._capabilities.broadcast import Event
from mcp_actors._capabilities.listening import Listener
from mcp_actors._capabilities.notices import LogHandler, Notices
from mcp_actors._capabilities.output_check import OutputCheck
from mcp_actors._capabilities.response_cache import ResponseCache
from mcp_actors._connection import Agreement, Terms, read
from mcp_actors._eras.era import Era, Method
from mcp_actors._eras.probe import versions_for
from mcp_actors._eras.requesting import request_meta
from mcp_actors._logs import log
from mcp_actors._supervisor import Supervisor, Target
from mcp_actors.errors import (
    INVALID_PARAMS,
    InputRequired,
    LocalProtocolError,
    RemoteProtocolError,
    ResourceNotFound,
    RpcError,
)
from mcp_actors.types import (
    LOGGING_LEVELS,
    CallToolResult,
    CompleteResult,
    Completion,
    CompletionReference,
    GetPromptResult,
    Implementation,
    InputResponse,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    LoggingLevel,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    ServerCapabilities,
    SubscriptionFilter,
    Tool,
)

__all__ = ["Client"]

T = TypeVar("T")


class Client:
    """A client of one server, used as ``async with Client(target) as client``.

    ``target`` is a `Server` (in memory), a URL (``"stdio:COMMAND ARG…"``) or a `~mcp_actors.abc.ClientTransport`.

    ``era`` is ``"auto"`` (find out), ``"legacy"``, ``"modern"`` or one protocol version. ``sampling``,
    ``elicitation`` and ``roots`` answer what servers ask; what is not given is not declared. ``sampling_tools``
    declares that sampling may use tools. ``on_log(level, data, logger)`` and ``on_change(kind, uri)``, sync or async,
    are told in the order of arrival. ``timeout`` (seconds without an answer or progress, 30) and ``cap`` (seconds in
    all, 300) bound every call; `math.inf` switches one off. With ``answer_input=False`` a server's request for input
    raises `InputRequired` instead of being answered, at most ``max_rounds`` times for one call. ``probe_timeout`` is
    how long a silent server is taken for a modern one. ``restart=True`` connects again when the connection is lost;
    calls in flight fail all the same, for nobody knows what became of them.

    Entering raises `ConnectFailed`, `ConnectionLost`, `CallTimeout` or `UnsupportedVersion`.
    """

    def __init__(
        self,
        target: Target,
        *,
        era: str = "auto",
        info: Implementation | None = None,
        sampling: SamplingHandler | None = None,
        sampling_tools: bool = False,
        elicitation: ElicitationHandler | None = None,
        roots: Roots | None = None,
        on_log: LogHandler | None = None,
        on_change: Callable[[str, str | None], Awaitable[None] | None] | None = None,
        log_level: LoggingLevel = "info",
        timeout: float = 30.0,
        cap: float = 300.0,
        answer_input: bool = True,
        max_rounds: int = 10,
        probe_timeout: float = 5.0,
        restart: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.timeout = timeout
        self.cap = cap
        self.answer_input = answer_input
        self.max_rounds = max_rounds
        self._info = info or Implementation("mcp-actors", "0.1.0")
        self._answers = Answers(sampling, sampling_tools, elicitation, roots, busy=self._asked)
        self._log_level: str | None = log_level if on_log is not None else None
        self._cache = ResponseCache()
        self._outputs = OutputCheck()
        self._listeners: dict[int, Listener] = {}
        self._notices = Notices(on_log, on_change, self._heard)
        self._meta: dict[str, Any] = {}
        terms = Terms(versions_for(era), self._info, self._answers, probe_timeout, timeout)
        self._supervisor = Supervisor(
            target,
            terms,
            limits or Limits(),
            restart,
            on_notification=self._notices.put,
            on_agreed=self._agreed,
        )

    def __repr__(self) -> str:
        return f"<Client {self._supervisor!r}>"

    async def __aenter__(self) -> Client:
        await self._supervisor.open()
        try:
            self._supervisor.start_soon(self._notices.run)
            if self._notices.on_change is not None and self.era == "modern":
                self._supervisor.start_soon(self._follow_lists)
        except BaseException:
            await self._supervisor.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._supervisor.close()

    async def aclose(self) -> None:
        """Closes the connection; calls in flight raise `ConnectionLost`. Legal from any task, any number of times."""
        await self._supervisor.stop()

    # -- who is there ----------------------------------------------------------------------------------------------

    @property
    def era(self) -> Literal["legacy", "modern"]:
        """Which kind of protocol the server speaks with us."""
        return self._agreement.era.name

    @property
    def version(self) -> str:
        """The protocol revision that was agreed."""
        return self._agreement.era.version

    @property
    def server_info(self) -> Implementation | None:
        """The server's name and version, for display only."""
        return self._agreement.info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """What the server declared."""
        return self._agreement.capabilities

    @property
    def instructions(self) -> str | None:
        """What the server wants the model to know."""
        return self._agreement.instructions

    @property
    def _agreement(self) -> Agreement:
        agreement = self._supervisor.agreement
        if agreement is None:
            raise LocalProtocolError("not connected: use 'async with Client(...) as client'")
        return agreement

    # -- tools -----------------------------------------------------------------------------------------------------

    async def list_tools(self, cursor: str | None = None) -> ListToolsResult:
        """One page of the tools; see `tools` for all of them."""
        page: ListToolsResult = await self._list("tools/list", cursor)
        self._outputs.learn(page.tools)
        return page

    def tools(self) -> AsyncIterator[Tool]:
        """All tools, page by page."""
        return _all_pages(self.list_tools, lambda page: page.tools)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> CallToolResult:
        """Calls a tool; a failure inside the tool is a result with ``is_error``, not an exception.

        ``timeout`` and ``cap`` (seconds) override the client's. ``on_progress(p)``, sync or async, sees ``p.progress``,
        ``p.total`` and ``p.message`` in wire order, and all of them before this returns. ``answers`` and ``state``
        retry a call that raised `InputRequired`. Cancelled, the server is told. Structured content is checked
        against the tool's output schema if the tool was listed; raises `RemoteProtocolError` if it does not fit.
        """
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        result: CallToolResult = await self._call(
            "tools/call", params, timeout, cap, on_progress, meta, answers, state
        )
        self._outputs.check(name, result)
        return result

    # -- resources -------------------------------------------------------------------------------------------------

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        """One page of the resources; see `resources` for all of them."""
        return await self._list("resources/list", cursor)

    def resources(self) -> AsyncIterator[Resource]:
        """All resources, page by page."""
        return _all_pages(self.list_resources, lambda page: page.resources)

    async def list_resource_templates(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """One page of the resource templates; see `resource_templates` for all of them."""
        return await self._list("resources/templates/list", cursor)

    def resource_templates(self) -> AsyncIterator[ResourceTemplate]:
        """All resource templates, page by page."""
        return _all_pages(self.list_resource_templates, lambda page: page.resource_templates)

    async def read_resource(
        self, uri: str, *, timeout: float | None = None, cap: float | None = None
    ) -> ReadResourceResult:
        """Reads a resource; raises `ResourceNotFound`."""
        try:
            return await self._call("resources/read", {"uri": uri}, timeout, cap)
        except RpcError as error:
            # The revisions have two codes for it; the stateless one is told apart by its data.
            if error.code == INVALID_PARAMS and isinstance(error.data, dict) and error.data.get("uri") == uri:
                raise ResourceNotFound(uri) from error
            raise

    async def subscribe_resource(self, uri: str) -> None:
        """Subscribes for the rest of a legacy session; `listen` does it in both eras, and ends it too."""
        await self._call("resources/subscribe", {"uri": uri})

    async def unsubscribe_resource(self, uri: str) -> None:
        """Takes `subscribe_resource` back."""
        await self._call("resources/unsubscribe", {"uri": uri})

    # -- prompts and completion ------------------------------------------------------------------------------------

    async def list_prompts(self, cursor: str | None = None) -> ListPromptsResult:
        """One page of the prompts; see `prompts` for all of them."""
        return await self._list("prompts/list", cursor)

    def prompts(self) -> AsyncIterator[Prompt]:
        """All prompts, page by page."""
        return _all_pages(self.list_prompts, lambda page: page.prompts)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        cap: float | None = None,
    ) -> GetPromptResult:
        """Fills in a prompt; all arguments are text."""
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        return await self._call("prompts/get", params, timeout, cap)

    async def complete(
        self, ref: CompletionReference, argument: str, value: str, context: Mapping[str, str] | None = None
    ) -> Completion:
        """Asks for completions of ``value``; ``context`` holds the arguments that are settled already."""
        params: dict[str, Any] = {
            "ref": self._agreement.era.unstructure(ref),
            "argument": {"name": argument, "value": value},
        }
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        result: CompleteResult = await self._call("completion/complete", params)
        return result.completion

    # -- the connection --------------------------------------------------------------------------------------------

    async def ping(self, *, timeout: float | None = None) -> None:
        """Asks a legacy server whether it is alive; a modern one has no ping, so its discovery is asked instead."""
        method = "ping" if self.era == "legacy" else "server/discover"
        await self.request(method, timeout=timeout)

    async def set_log_level(self, level: LoggingLevel) -> None:
        """The least severe log message that is wanted, from now on."""
        if level not in LOGGING_LEVELS:
            raise LocalProtocolError(f"no such level: {level!r}; use one of {', '.join(LOGGING_LEVELS)}")
        self._log_level = level
        if self.era == "legacy":
            await self._call("logging/setLevel", {"level": level})
        else:
            self._agreed(self._agreement)

    async def roots_changed(self) -> None:
        """Tells a legacy server to list the roots anew; a modern one asks when it needs them."""
        if self.era == "legacy":
            await self._session.notify("notifications/roots/list_changed")

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Sends any request and returns its raw result: for methods of your own."""
        return await self._send(method, dict(params or {}), timeout, None, None, None, progress=False)

    @asynccontextmanager
    async def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: tuple[str, ...] = (),
    ) -> AsyncIterator[Listener]:
        """Subscribes to changes for the length of the block; iterate over what it yields. Works in both eras.

        When the block is entered the subscription is in force. Raises what a call raises.
        """
        listener = Listener(
            SubscriptionFilter(
                tools_list_changed=tools or None,
                prompts_list_changed=prompts or None,
                resources_list_changed=resources or None,
                resource_subscriptions=list(uris) or None,
            )
        )
        subscribe = self._listen_legacy if self.era == "legacy" else self._listen_modern
        async with subscribe(listener):
            yield listener

    @asynccontextmanager
    async def _listen_legacy(self, listener: Listener) -> AsyncIterator[None]:
        uris = listener.filter.resource_subscriptions or []
        key = self._session.outbound.next_id()
        self._listeners[key] = listener
        try:
            for uri in uris:
                await self.subscribe_resource(uri)
            yield
        finally:
            del self._listeners[key]
            with trio.move_on_after(1, shield=True):
                for uri in uris:
                    if not any(
                        uri in (other.filter.resource_subscriptions or ())
                        for other in self._listeners.values()
                    ):
                        await self._quietly(self.unsubscribe_resource(uri))

    async def _quietly(self, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception as error:
            log.debug("could not unsubscribe", error=str(error))

    @asynccontextmanager
    async def _listen_modern(self, listener: Listener) -> AsyncIterator[None]:
        id = self._session.outbound.next_id()
        self._listeners[id] = listener
        scope = trio.CancelScope()
        self._supervisor.start_soon(lambda: self._hold_open(id, listener, scope))
        try:
            with trio.fail_after(self.timeout):
                await listener.acknowledged.wait()
            listener.raise_if_lost()
            yield
        finally:
            scope.cancel(reason="the listener is no longer wanted")
            self._listeners.pop(id, None)

    async def _hold_open(self, id: int, listener: Listener, scope: trio.CancelScope) -> None:
        filter = self._agreement.era.unstructure(listener.filter)
        params = {"notifications": filter, "_meta": dict(self._meta)}
        lost: BaseException | None = None
        try:
            with scope:
                await self._session.request(
                    "subscriptions/listen", params, idle=math.inf, cap=math.inf, id=id
                )
        except Exception as error:
            lost = error
        finally:
            listener.end(lost)

    async def _follow_lists(self) -> None:
        """A modern server tells of changes only to who listens."""
        gates = self._agreement.gates
        wanted = {kind: kind in gates for kind in ("tools", "prompts", "resources")}
        try:
            async with self.listen(**wanted) as events:  # type: ignore[arg-type]
                async for event in events:
                    self._notices.changed(event.kind, event.uri)
        except Exception as error:
            log.debug("changes are no longer followed", error=str(error))

    # -- watching --------------------------------------------------------------------------------------------------

    def tree(self) -> SessionStatistics:
        """The live actor tree of this client: calls in both directions, the link and its mailbox."""
        return self._session.statistics()

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _session(self) -> Session:
        return self._supervisor.session

    def _agreed(self, agreement: Agreement) -> None:
        self._meta = request_meta(agreement.era, self._info, self._answers.capabilities, self._log_level)
        self._cache.clear()

    def _heard(self, event: Event | None, subscription: Any) -> None:
        """A change notification arrived: the cache forgets, and who listens for it is told."""
        if event is None:
            listener = self._listeners.get(subscription)
            if listener is not None:
                listener.acknowledged.set()
            return
        self._cache.invalidate(event.kind, event.uri)
        for id, listener in self._listeners.items():
            if subscription is None or subscription == id:
                listener.deliver(event.kind, event.uri)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """While the server waits for us, our calls to it are not idle."""
        held = [pending.deadline for pending in self._session.outbound.pending.values()]
        for deadline in held:
            deadline.hold()
        try:
            yield
        finally:
            for deadline in held:
                deadline.release()
                self._supervisor.watch(deadline)

    async def _list(self, method: str, cursor: str | None) -> Any:
        return await self._call(method, {} if cursor is None else {"cursor": cursor})

    def _method(self, name: str) -> Method:
        agreement = self._agreement
        method = agreement.era.server_methods.get(name)
        if method is None:
            raise LocalProtocolError(f"{name} does not exist in protocol version {agreement.era.version}")
        if method.gate is not None and method.gate not in agreement.gates:
            raise LocalProtocolError(
                f"the server did not declare {method.gate!r}, so {name} cannot be asked of it"
            )
        return method

    async def _call(
        self,
        name: str,
        params: dict[str, Any],
        timeout: float | None = None,
        cap: float | None = None,
        on_progress: ProgressCallback | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> Any:
        """Sends a request of the protocol, answers what the server asks on the way, and reads the typed result."""
        method = self._method(name)
        era = self._agreement.era
        if method.cacheable and (cached := self._cache.get(name, params, trio.current_time())) is not None:
            await trio.lowlevel.checkpoint()
            return read(era, cached, method.result)
        asked = params
        if answers is not None or state is not None:
            asked = self._retry(
                params, {key: era.unstructure(each) for key, each in (answers or {}).items()}, state
            )
        for _ in range(self.max_rounds + 1):
            result = await self._send(
                name, dict(asked), timeout, cap, on_progress, meta, progress=method.may_ask
            )
            kind = result.get("resultType", "complete")
            if kind == "complete":
                if method.cacheable and asked is params:
                    self._cache.put(name, params, result, trio.current_time())
                return read(era, result, method.result)
            if kind != "input_required" or not method.may_ask:
                raise RemoteProtocolError(
                    f"the server answered {name} with a result of the unknown type {kind!r}"
                )
            asked = await self._answered(params, result, era)
        raise RemoteProtocolError(f"the server still asks for input after {self.max_rounds} rounds")

    async def _answered(self, params: dict[str, Any], result: dict[str, Any], era: Era) -> dict[str, Any]:
        """The params of the retry: the same ones, with answers and the untouched state."""
        questions = self._answers.read_requests(result.get("inputRequests"), era)
        state = result.get("requestState")
        if state is not None and not isinstance(state, str):
            raise RemoteProtocolError("requestState must be a string")
        if not self.answer_input:
            raise InputRequired(questions, state)
        answers = {key: era.unstructure(await self._answers.fulfil(each)) for key, each in questions.items()}
        return self._retry(params, answers, state)

    @staticmethod
    def _retry(params: dict[str, Any], answers: dict[str, Any], state: str | None) -> dict[str, Any]:
        retry = dict(params)
        if answers:
            retry["inputResponses"] = answers
        if state is not None:
            retry["requestState"] = state
        return retry

    async def _send(
        self,
        method: str,
        params: dict[str, Any],
        timeout: float | None,
        cap: float | None,
        on_progress: ProgressCallback | None,
        meta: Mapping[str, Any] | None,
        *,
        progress: bool,
    ) -> dict[str, Any]:
        session = await self._supervisor.live_session()
        if self._meta or meta:
            params["_meta"] = {**self._meta, **(meta or {})}
        return await session.request(
            method,
            params,
            idle=self.timeout if timeout is None else timeout,
            cap=self.cap if cap is None else cap,
            on_progress=on_progress,
            progress=progress,
        )


async def _all_pages(
    list_page: Callable[[str | None], Awaitable[Any]], entries: Callable[[Any], list[T]]
) -> AsyncIterator[T]:
    cursor: str | None = None
    while True:
        page = await list_page(cursor)
        for entry in entries(page):
            yield entry
        cursor = page.next_cursor
        # An empty string is a cursor like any other; only its absence ends the list.
        if cursor is None:
            return
