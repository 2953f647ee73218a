"""A request over HTTP as the program behind a binding sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mcp_actors.principal import Principal

__all__ = ["HttpRequest"]


class HttpRequest(Protocol):
    """The HTTP request that brought a message or opened a connection.

    Nothing of it but ``principal`` is authenticated by being here.
    """

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names, and values as they came."""

    @property
    def peer(self) -> str:
        """The address that it came from, ``"127.0.0.1:4711"`` or ``"unix"``; behind a proxy, that of the proxy."""

    @property
    def path(self) -> str:
        """The path of its target."""

    @property
    def query(self) -> str:
        """The part of its target after ``?``; empty without one."""

    @property
    def principal(self) -> Principal | None:
        """The caller that the binding authenticated, with the scopes of the latest token it showed for this."""
