"""A group of clients for programs that do not run on Trio: how it is made, entered and left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from mcp_actors.bridges.asyncio_bridge import AsyncioBridge
from mcp_actors.bridges.client_faces import ClientFace
from mcp_actors.bridges.face_parts import EngineBlock
from mcp_actors.bridges.faces import AsyncioFace, Face, Opened, SyncFace
from mcp_actors.bridges.thread_bridge import ThreadBridge
from mcp_actors.errors import LocalProtocolError

__all__ = ["AsyncioGroupFace", "SyncGroupFace"]


class GroupFace(Face):
    """A group of clients for programs without Trio; its originals are made by ``_make``."""

    _make: Callable[..., Any]
    _client: type[ClientFace]

    def __init__(
        self, servers: Any, *, options_for: Callable[[str], Mapping[str, Any]] | None = None, **options: Any
    ) -> None:
        opened = Opened()
        known: dict[str, dict[str, Any]] = {}

        def adapted_for(name: str) -> dict[str, Any]:
            if options_for is not None and name not in known:
                known[name] = self._client._for_engine(opened, options_for(name))
            return known.get(name, {})

        # What all groups take beside the options of clients has no functions in it.
        adapted = self._client._for_engine(opened, options)
        super().__init__(type(self)._make(servers, options_for=adapted_for, **adapted), opened)
        for name in self._original.names:
            # The function of the program is called here, and not in the engine.
            adapted_for(name)
        self._block = EngineBlock(self._original)

    def _begin(self, bridge: AsyncioBridge | ThreadBridge) -> EngineBlock:
        if self._opened.engine is not None:
            raise LocalProtocolError("a ClientGroup is good for one block; make a new one")
        self._opened.engine, self._opened.bridge = bridge.engine, bridge
        return self._block

    def _faced(self, value: Any) -> Any:
        return self._client._of(value, self) if type(value) is self._client._make else value


class AsyncioGroupFace(GroupFace, AsyncioFace):
    """A group of clients for asyncio programs."""

    _usage = "async with ClientGroup(...) as group"

    def __getitem__(self, name: str) -> Any:
        return self._faced(self._original[name])

    async def __aenter__(self) -> Self:
        bridge = AsyncioBridge.of_running_loop()
        await self._begin(bridge).enter_from_asyncio(bridge)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._block.leave_from_asyncio(self._bridge())


class SyncGroupFace(GroupFace, SyncFace):
    """A group of clients for programs without a loop."""

    _usage = "with ClientGroup(...) as group"

    def __getitem__(self, name: str) -> Any:
        return self._faced(self._original[name])

    def __enter__(self) -> Self:
        bridge = ThreadBridge()
        self._begin(bridge).enter_from_thread(bridge)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bridge().call(self._block.leave)
