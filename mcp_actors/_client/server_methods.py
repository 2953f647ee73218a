"""The part of a client that knows its server: what was agreed, and the methods of tools, resources and prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.pages import AllPages
from mcp_actors._client.requests import Requests, call_options
from mcp_actors._client.subscriptions import Subscriptions
from mcp_actors._client.task_requests import TaskRequests
from mcp_actors._client.tool_methods import ToolMethods
from mcp_actors._eras.era import EraName
from mcp_actors.errors import INVALID_PARAMS, ResourceNotFound, RpcError
from mcp_actors.types import (
    CompleteResult,
    Completion,
    CompletionReference,
    DiscoverResult,
    GetPromptResult,
    Implementation,
    InputResponse,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    ServerCapabilities,
)

__all__ = ["ServerMethods"]


class ServerMethods(ToolMethods):
    """The part of `Client` that says what was agreed with the server, and calls methods of the protocol.

    Every method may be cancelled: the server is then sent a cancellation, and nothing more of the call arrives.
    """

    def __init__(self, requests: Requests, subscriptions: Subscriptions, connectivity: Connectivity) -> None:
        super().__init__(TaskRequests(requests, connectivity, subscriptions))
        self._subscriptions = subscriptions

    # -- what was agreed -------------------------------------------------------------------------------------------

    @property
    def era(self) -> EraName:
        """Whether sessions are spoken with the server; raises `LocalProtocolError` before the client is entered."""
        return self._requests.negotiated.era.name

    @property
    def version(self) -> str:
        """The protocol version that was agreed; raises as `era` does."""
        return self._requests.negotiated.era.version

    @property
    def server_info(self) -> Implementation:
        """The server's name and version, for display only; raises as `era` does.

        A stateless server need not tell them (MCP 2026-07-28, Base Protocol, ``_meta``): then both are empty.
        """
        return self._requests.negotiated.info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declared; raises as `era` does."""
        return self._requests.negotiated.capabilities

    @property
    def instructions(self) -> str | None:
        """The server's text for the model, if it has one; raises as `era` does."""
        return self._requests.negotiated.instructions

    @property
    def discovered(self) -> DiscoverResult | None:
        """The answer to ``server/discover``, for ``prior_discover``; ``None`` in a session. Raises as `era` does."""
        return self._requests.negotiated.discovered

    # -- resources -------------------------------------------------------------------------------------------------

    async def list_resources(
        self, cursor: str | None = None, *, refresh: bool = False
    ) -> ListResourcesResult:
        """Returns one page of the resources; `resources` iterates over all of them.

        MCP 2026-07-28, Resources, Listing Resources.

        Args:
            cursor: The ``next_cursor`` of the page before; by default the first page.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.

        Raises:
            LocalProtocolError: The server did not declare resources, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """
        page: ListResourcesResult = await self._list("resources/list", cursor, refresh)
        return page

    def resources(self, *, refresh: bool = False) -> AsyncIterator[Resource]:
        """Iterates over all resources; each page is requested when it is needed. Raises as `list_resources` does."""
        list_page = partial(self.list_resources, refresh=refresh)
        return AllPages(list_page, lambda page: page.resources)

    async def list_resource_templates(
        self, cursor: str | None = None, *, refresh: bool = False
    ) -> ListResourceTemplatesResult:
        """Returns one page of the resource templates; `resource_templates` iterates over all of them.

        MCP 2026-07-28, Resources, Resource Templates. Arguments and errors are those of `list_resources`.
        """
        page: ListResourceTemplatesResult = await self._list("resources/templates/list", cursor, refresh)
        return page

    def resource_templates(self, *, refresh: bool = False) -> AsyncIterator[ResourceTemplate]:
        """Iterates over all resource templates; each page is requested when it is needed. Raises as the list does."""
        list_page = partial(self.list_resource_templates, refresh=refresh)
        return AllPages(list_page, lambda page: page.resource_templates)

    async def read_resource(
        self,
        uri: str,
        *,
        timeout: float | None = None,
        cap: float | None = None,
        refresh: bool = False,
        answers: Mapping[str, InputResponse] | None = None,
        state: str | None = None,
    ) -> ReadResourceResult:
        """Reads a resource. MCP 2026-07-28, Resources, Reading Resources.

        Args:
            uri: The resource.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.

        Raises:
            ResourceNotFound: The server has no such resource.
            LocalProtocolError: The server did not declare resources, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """
        try:
            options = call_options(self._long_call, timeout, cap)
            result: ReadResourceResult = await self._requests.call(
                "resources/read", {"uri": uri}, options, answers, state, refresh
            )
            return result
        except RpcError as error:
            # The revisions have two codes for it; the stateless one is told apart by its data.
            if error.code == INVALID_PARAMS and isinstance(error.data, dict) and error.data.get("uri") == uri:
                raise ResourceNotFound(uri) from error
            raise

    async def subscribe_resource(self, uri: str) -> None:
        """Subscribes to a resource until its session ends, or `unsubscribe_resource`; `listen` does it in both eras.

        MCP 2025-11-25, Resources, Subscriptions; no stateless server has it. Changes are
        reported to ``on_change`` and to every `Listener` of the resource.

        Args:
            uri: The resource.

        Raises:
            LocalProtocolError: The server did not declare resources.subscribe, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """
        await self._subscriptions.keep(uri)

    async def unsubscribe_resource(self, uri: str) -> None:
        """Takes `subscribe_resource` back; raises as it does. A `Listener` of the same resource goes on."""
        await self._subscriptions.give_back(uri)

    # -- prompts and completion ------------------------------------------------------------------------------------

    async def list_prompts(self, cursor: str | None = None, *, refresh: bool = False) -> ListPromptsResult:
        """Returns one page of the prompts; `prompts` iterates over all of them.

        MCP 2026-07-28, Prompts, Listing Prompts.

        Args:
            cursor: The ``next_cursor`` of the page before; by default the first page.
            refresh: Whether the server is asked even if an earlier answer is good still, as it said itself.

        Raises:
            LocalProtocolError: The server did not declare prompts, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """
        page: ListPromptsResult = await self._list("prompts/list", cursor, refresh)
        return page

    def prompts(self, *, refresh: bool = False) -> AsyncIterator[Prompt]:
        """Iterates over all prompts; each page is requested when it is needed. Raises as `list_prompts` does."""
        list_page = partial(self.list_prompts, refresh=refresh)
        return AllPages(list_page, lambda page: page.prompts)

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
        """Fills in a prompt. MCP 2026-07-28, Prompts, Getting a Prompt.

        Args:
            name: The prompt.
            arguments: Its arguments; all are text.
            timeout: Seconds without an answer or a progress report; by default the client's.
            cap: Seconds in all; by default the client's.
            answers: The answers to an `InputRequired` that an earlier call raised, by its keys.
            state: The state of that `InputRequired`.

        Raises:
            LocalProtocolError: The server did not declare prompts, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
            InputRequired: The server asks for input, and the client has ``answer_input=False``.
        """
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = dict(arguments)
        options = call_options(self._long_call, timeout, cap)
        result: GetPromptResult = await self._requests.call("prompts/get", params, options, answers, state)
        return result

    async def complete(
        self, ref: CompletionReference, argument: str, value: str, context: Mapping[str, str] | None = None
    ) -> Completion:
        """Asks for completions of an argument that the user is typing. MCP 2026-07-28, Completion.

        Args:
            ref: The prompt or resource template.
            argument: The name of its argument.
            value: What was typed so far.
            context: The other arguments that have a value already.

        Returns:
            At most 100 values, and whether there are more.

        Raises:
            LocalProtocolError: The server did not declare completions, or the client is not connected.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer cannot be understood.
            CallTimeout: The server did not answer in time.
            ConnectionLost: The connection ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """
        requests = self._requests
        params: dict[str, Any] = {
            "ref": requests.negotiated.era.unstructure(ref),
            "argument": {"name": argument, "value": value},
        }
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        result: CompleteResult = await requests.call("completion/complete", params)
        return result.completion

    async def _list(self, method: str, cursor: str | None, refresh: bool) -> Any:
        params = {} if cursor is None else {"cursor": cursor}
        return await self._requests.call(method, params, refresh=refresh)
