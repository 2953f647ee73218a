"""The way by which a function that no call waits for any more tells and asks its client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mcp_actors import types as t

__all__ = ["Voice"]


class Voice(Protocol):
    """Takes what a detached function tells and asks its client; an extension gives it (`mcp_actors.extensions`)."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Takes a report of progress: `Context.progress`."""

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Takes a notification: `Context.log` and `Context.notify`."""

    async def ask(self, questions: Mapping[str, t.InputRequest]) -> Mapping[str, t.InputResponse]:
        """Returns the client's answers by the same keys: `Context.ask`. The client has declared that it can answer."""

    def stop(self) -> None:
        """Is called by the engine when a call gets no more beats; a voice has none."""
