"""The types of the ASGI specification, version 3.0."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__ = ["AsgiApplication", "AsgiMessage", "AsgiReceive", "AsgiSend"]

AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
AsgiApplication = Callable[[AsgiMessage, AsgiReceive, AsgiSend], Awaitable[None]]
"""An ASGI application, such as one of Starlette, FastAPI or Quart. It is run on Trio."""
