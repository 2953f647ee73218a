"""The part of a client for messages of any method: those of extensions, of its own, and subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mcp_actors._argument_checks import require_trio
from mcp_actors._client.connectivity import Connectivity
from mcp_actors._client.listener import Listener
from mcp_actors._client.requests import Requests, call_options, callers_meta
from mcp_actors._client.server_methods import ServerMethods
from mcp_actors._client.subscriptions import Subscriptions
from mcp_actors.types import SubscriptionFilter

__all__ = ["AnyMethods"]


class AnyMethods(ServerMethods):
    """The part of `Client` that sends messages of any method, and listens."""

    def __init__(self, requests: Requests, subscriptions: Subscriptions, connectivity: Connectivity) -> None:
        super().__init__(requests, subscriptions, connectivity)
        self._connectivity = connectivity

    @property
    def extensions(self) -> Mapping[str, Any]:
        """The extensions that both sides have declared (SEP-2133): the server's settings, by their ids.

        Raises:
            LocalProtocolError: The client has not been entered.
        """
        declared = self._requests.negotiated.capabilities.extensions or {}
        return {id: settings for id, settings in declared.items() if id in self._requests.extensions.declared}

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Sends any request and returns its raw result: for methods that are not part of the protocol.

        Cancelled, the server is sent a cancellation.

        Args:
            method: The method.
            params: Its parameters, as JSON values; ``_meta`` is added to, and says of the client what the client is.
            timeout: Seconds without an answer; by default the client's.

        Raises:
            LocalProtocolError: The request cannot be sent: it is too long, or its method fits no header.
            RpcError: The server answered with an error.
            RemoteProtocolError: The answer is no object.
            CallTimeout: The server did not answer in time.
            ConnectionLost: There is no connection, or it ended before the answer.
            ConnectFailed: The connection was lost and could not be made again.
            SessionExpired: The server has forgotten the session while the request was in flight.
        """
        options = call_options(self._requests.options, timeout)
        sent = dict(params or {})
        if isinstance(sent.get("_meta"), Mapping):
            sent["_meta"] = callers_meta(sent["_meta"])
        return await self._requests.request(method, sent, options)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Sends any notification: for methods that are not part of the protocol. Nobody answers it.

        Args:
            method: The method, as `Server.notification` names it.
            params: Its parameters, as JSON values.

        Raises:
            LocalProtocolError: The client is not connected, the notification is too long, or its method fits no header.
            ConnectionLost: The connection has ended.
        """
        sent = dict(params or {})
        session = self._connectivity.session
        if self._requests.extensions.declared and self._requests.negotiated.era.declares_in_requests:
            # Nothing else tells a server without sessions that its sender has an extension.
            sent["_meta"] = {**sent.get("_meta", {}), **session.outbound.meta}
        metadata = self._requests.metadata_of(method, sent)
        await session.notify(method, sent, metadata)

    @asynccontextmanager
    async def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: tuple[str, ...] = (),
        members: Mapping[str, Sequence[str]] | None = None,
    ) -> AsyncIterator[Listener]:
        """Subscribes to changes for the length of the block, in both eras; iterate over what it yields.

        MCP 2026-07-28, Subscriptions; MCP 2025-11-25, Resources, Subscriptions. When the block is entered the
        subscription is in force, as far as ``Listener.honored`` says; leaving it waits at most one second for the
        server to take it back.

        Args:
            tools: Whether changes of the list of tools are wanted.
            prompts: Whether changes of the list of prompts are wanted.
            resources: Whether changes of the list of resources are wanted.
            uris: The resources whose updates are wanted.
            members: Keys for the members of the filter that extensions have, such as ``{"taskIds": [id]}``. What the
                server says of them goes to the extension's functions of notifications, and what it has granted is in
                ``Listener.honored.extra``. A session has no such members.

        Raises:
            SubscriptionLost: The server refused, or the connection ended; also raised by the iteration, later.
            CallTimeout: The server did not confirm in time.
            LocalProtocolError: The client is not connected, or the server did not declare subscriptions.
            McpError: What else `request` raises.
        """
        require_trio("client.listen(...)", "Client")
        listener = Listener(
            SubscriptionFilter(
                tools_list_changed=tools or None,
                prompts_list_changed=prompts or None,
                resources_list_changed=resources or None,
                resource_subscriptions=list(uris) or None,
                extra={member: list(keys) for member, keys in (members or {}).items()},
            )
        )
        async with self._subscriptions.opened(listener):
            yield listener
