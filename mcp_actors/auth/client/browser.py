"""The login of a person: the interface; `mcp_transports.auth` has the ready-made ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from mcp_actors.auth.effects import RedirectAnswer

__all__ = ["Browser", "Redirect"]


class Redirect(Protocol):
    """A place that a login comes back to, open for one login."""

    @property
    def uri(self) -> str:
        """The redirect URI."""

    async def log_in(self, url: str, accepts: Callable[[RedirectAnswer], bool]) -> RedirectAnswer:
        """Sends the person to ``url`` and waits for the answer that ``accepts`` returns true for.

        The caller bounds the wait by cancelling it. Answers that are not accepted are refused and do not end it.

        Raises:
            LoginRequired: There is nobody who could log in.
            LoginFailed: The person gave up.
        """


@runtime_checkable
class Browser(Protocol):
    """Shows a person the login of an authorization server."""

    def open_redirect(self, registered: Sequence[str] = ()) -> AbstractAsyncContextManager[Redirect]:
        """Opens the place that the login comes back to, for the length of an ``async with`` block.

        ``registered`` has the redirect URIs of the client's registration, if there is one: one of them is used if
        possible, with another port where only the port differs and it cannot be had.
        """
