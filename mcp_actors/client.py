"""The client's face: one object, the same for both eras and every transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs

from mcp_actors._actors.dispatcher import SessionStatistics
from mcp_actors._actors.limits import Limits
from mcp_actors._actors.outbound_call import CallOptions, ProgressCallback
from mcp_actors._client.handshake import HandshakeOptions, Negotiated
from mcp_actors._client.listener import Listener
from mcp_actors._client.notifications import LogHandler, Notifications
from mcp_actors._client.output_validation import OutputValidation
from mcp_actors._client.request_handlers import ElicitationHandler, RequestHandlers, Roots, SamplingHandler
from mcp_actors._client.requests import Requests, all_pages, call_options
from mcp_actors._client.subscriptions import Subscriptions
from mcp_actors._client.supervisor import Supervisor, Target
from mcp_actors._eras.changes import Event
from mcp_actors._eras.probe import versions_for
from mcp_actors.errors import (
    INVALID_PARAMS,
    LocalProtocolError,
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

VERSION = "0.1.0"
DEFAULT_LOG_LEVEL = "info"


class Client:
    """A client of one server, used as ``async with Client(target) as client``.

    ``target`` is a `Server` (in memory), a URL (``"stdio:COMMAND ARG…"``) or a `~mcp_actors.abc.ClientTransport`.

    ``era`` is ``"auto"`` (find out), ``"legacy"``, ``"modern"`` or one protocol version. ``sampling``,
    ``elicitation`` and ``roots`` answer what servers ask; what is not given is not declared. ``sampling_tools``
    declares that sampling may use tools. ``on_log(level, data, logger)`` and ``on_change(kind, uri)``, sync or async,
    are told in the order of arrival. ``log_level`` is the least severe message that is wanted; by default a modern
    server is asked for ``"info"`` when there is an ``on_log``, and a session is left as its server likes it.
    ``timeout`` (seconds without an answer or progress, 30) and ``cap`` (seconds in all, 300) bound every call;
    `math.inf` switches one off. With ``answer_input=False`` a server's request for input raises `InputRequired`
    instead of being answered, at most ``max_rounds`` times for one call. ``probe_timeout`` is how long a silent server
    is taken for a modern one. ``restart=True`` connects again when the connection is lost; calls in flight fail all
    the same, for nobody knows what became of them.

    Entering raises `ConnectFailed`, `ConnectionLost`, `CallTimeout`, `UnsupportedVersion` when no version is common,
    `RpcError` and `RemoteProtocolError` when the server refuses or answers what cannot be understood.
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
        log_level: LoggingLevel | None = None,
        timeout: float = 30.0,
        cap: float = 300.0,
        answer_input: bool = True,
        max_rounds: int = 10,
        probe_timeout: float = 5.0,
        restart: bool = False,
        limits: Limits | None = None,
    ) -> None:
        answers = RequestHandlers(
            sampling, sampling_tools, elicitation, roots, busy=lambda: self._requests.asked()
        )
        self._has_roots = roots is not None
        self._plain = CallOptions(idle=timeout, cap=cap)
        self._asking = attrs.evolve(self._plain, wants_progress=True)
        info = info or Implementation("mcp-actors", VERSION)
        self._requests = Requests(
            info,
            answers,
            log_level,
            DEFAULT_LOG_LEVEL if on_log is not None else None,
            options=self._plain,
            answer_input=answer_input,
            max_rounds=max_rounds,
        )
        self._notifications = Notifications(
            on_log,
            on_change,
            self._heard,
            lambda subscription: self._subscriptions.acknowledged(subscription),
            lambda subscription, reason: self._subscriptions.cancelled(subscription, reason),
        )
        self._supervisor = Supervisor(
            target,
            HandshakeOptions(
                versions_for(era), info, answers, probe_timeout, timeout, lambda: self._requests.log_level
            ),
            limits or Limits(),
            restart,
            on_notification=self._notifications.put,
            on_connected=self._requests.connected,
        )
        self._requests.attach(self._supervisor)
        self._subscriptions = Subscriptions(self._supervisor, self._requests)
        self._outputs = OutputValidation()

    def __repr__(self) -> str:
        return f"<Client {self._supervisor!r}>"

    async def __aenter__(self) -> Client:
        await self._supervisor.open()
        try:
            self._supervisor.start_soon(self._notifications.run)
            if self._notifications.on_change is not None and self.era == "modern":
                self._supervisor.start_soon(lambda: self._subscriptions.follow(self._notifications.changed))
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
        return self._negotiated.era.name

    @property
    def version(self) -> str:
        """The protocol revision that was agreed."""
        return self._negotiated.era.version

    @property
    def server_info(self) -> Implementation | None:
        """The server's name and version, for display only."""
        return self._negotiated.info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """What the server declared."""
        return self._negotiated.capabilities

    @property
    def instructions(self) -> str | None:
        """What the server wants the model to know."""
        return self._negotiated.instructions

    # -- tools -----------------------------------------------------------------------------------------------------

    async def list_tools(self, cursor: str | None = None) -> ListToolsResult:
        """One page of the tools; see `tools` for all of them.

        Over HTTP a modern server's tool is left out, with a warning, if its parameters are to be sent in headers that
        cannot be; calling it raises `LocalProtocolError`.
        """
        page = await self._requests.mirroring.list_tools(cursor)
        self._outputs.learn(page.tools)
        return page

    def tools(self) -> AsyncIterator[Tool]:
        """All tools, page by page."""
        return all_pages(self.list_tools, lambda page: page.tools)

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
        options = call_options(self._asking, timeout, cap, on_progress, meta)
        result: CallToolResult = await self._requests.call("tools/call", params, options, answers, state)
        self._outputs.check(name, result)
        return result

    # -- resources -------------------------------------------------------------------------------------------------

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        """One page of the resources; see `resources` for all of them."""
        page: ListResourcesResult = await self._list("resources/list", cursor)
        return page

    def resources(self) -> AsyncIterator[Resource]:
        """All resources, page by page."""
        return all_pages(self.list_resources, lambda page: page.resources)

    async def list_resource_templates(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """One page of the resource templates; see `resource_templates` for all of them."""
        page: ListResourceTemplatesResult = await self._list("resources/templates/list", cursor)
        return page

    def resource_templates(self) -> AsyncIterator[ResourceTemplate]:
        """All resource templates, page by page."""
        return all_pages(self.list_resource_templates, lambda page: page.resource_templates)

    async def read_resource(
        self,
        uri: str,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> ReadResourceResult:
        """Reads a resource; raises `ResourceNotFound`. The rest is as in `call_tool`."""
        try:
            options = call_options(self._asking, timeout, cap)
            result: ReadResourceResult = await self._requests.call(
                "resources/read", {"uri": uri}, options, answers, state
            )
            return result
        except RpcError as error:
            # The revisions have two codes for it; the stateless one is told apart by its data.
            if error.code == INVALID_PARAMS and isinstance(error.data, dict) and error.data.get("uri") == uri:
                raise ResourceNotFound(uri) from error
            raise

    async def subscribe_resource(self, uri: str) -> None:
        """Subscribes for the rest of a legacy session; `listen` does it in both eras, and ends it too."""
        await self._subscriptions.keep(uri)

    async def unsubscribe_resource(self, uri: str) -> None:
        """Takes `subscribe_resource` back."""
        await self._subscriptions.give_back(uri)

    # -- prompts and completion ------------------------------------------------------------------------------------

    async def list_prompts(self, cursor: str | None = None) -> ListPromptsResult:
        """One page of the prompts; see `prompts` for all of them."""
        page: ListPromptsResult = await self._list("prompts/list", cursor)
        return page

    def prompts(self) -> AsyncIterator[Prompt]:
        """All prompts, page by page."""
        return all_pages(self.list_prompts, lambda page: page.prompts)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> GetPromptResult:
        """Fills in a prompt; all arguments are text. The rest is as in `call_tool`."""
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        options = call_options(self._asking, timeout, cap)
        result: GetPromptResult = await self._requests.call("prompts/get", params, options, answers, state)
        return result

    async def complete(
        self, ref: CompletionReference, argument: str, value: str, context: Mapping[str, str] | None = None
    ) -> Completion:
        """Asks for completions of ``value``; ``context`` holds the arguments that are settled already."""
        params: dict[str, Any] = {
            "ref": self._negotiated.era.unstructure(ref),
            "argument": {"name": argument, "value": value},
        }
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        result: CompleteResult = await self._requests.call("completion/complete", params)
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
        self._requests.log_level = level
        if self.era == "legacy":
            await self._requests.call("logging/setLevel", {"level": level})
        else:
            self._requests.describe_us_to(self._supervisor.session)

    async def roots_changed(self) -> None:
        """Tells a legacy server to list the roots anew; a modern one asks when it needs them.

        Raises `LocalProtocolError` in a client without roots.
        """
        if not self._has_roots:
            raise LocalProtocolError("this client was given no roots, so none of them can change")
        if self.era == "legacy":
            await self._supervisor.session.notify("notifications/roots/list_changed")

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Sends any request and returns its raw result: for methods of your own."""
        return await self._requests.send(method, dict(params or {}), call_options(self._plain, timeout))

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
        async with self._subscriptions.opened(listener):
            yield listener

    # -- watching --------------------------------------------------------------------------------------------------

    def tree(self) -> SessionStatistics:
        """The live actor tree of this client: calls in both directions, the link and its mailbox."""
        return self._supervisor.session.statistics()

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _negotiated(self) -> Negotiated:
        return self._requests.negotiated

    def _heard(self, event: Event, subscription: Any) -> None:
        self._requests.cache.invalidate(event.kind, event.uri)
        if event.kind == "tools":
            self._outputs.forget()
            self._requests.mirroring.forget()
        self._subscriptions.heard(event, subscription)

    async def _list(self, method: str, cursor: str | None) -> Any:
        return await self._requests.call(method, {} if cursor is None else {"cursor": cursor})
