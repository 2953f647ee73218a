"""The requests that the state machines of authorization make of the outside world.

A machine is a generator: it yields one of these, is sent the answer that its class names, and returns its result. It is
driven by `mcp_transports.auth` under Trio, and by a loop of a few lines in tests.

The modules that need a library for signatures are loaded by `signatures` when a setting asks for them, because the
library is in the optional extra ``auth``.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import attrs

__all__ = [
    "Ask",
    "Effect",
    "Fetch",
    "FetchFailed",
    "Fetched",
    "LoadRecord",
    "Lock",
    "LogIn",
    "OpenRedirect",
    "RedirectAnswer",
    "Steps",
    "SwapRecord",
    "Unlock",
    "signatures",
]

T = TypeVar("T")

# Bytes of a metadata document or a token response.
MAX_BODY_BYTES = 256 * 1024

RedirectAnswer = Sequence[tuple[str, str]]
"""The parameters that an authorization server sent back, form-decoded, in their order, repeated ones included."""


@attrs.frozen
class Fetched:
    """A whole HTTP response. ``headers`` has lower-case names, one entry for each field line."""

    status: int
    headers: Sequence[tuple[str, str]] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)

    def header(self, name: str) -> str | None:
        """Returns the first value of a header; ``name`` is in lower case."""
        return next((value for each, value in self.headers if each == name), None)


@attrs.frozen
class FetchFailed:
    """The request failed before a response; ``reason`` is safe to show. ``refused`` if the URL must not be used."""

    reason: str
    refused: bool = False


@attrs.frozen
class Fetch:
    """An HTTP request; the answer is a `Fetched` or a `FetchFailed`.

    ``redirects`` is how many redirections may be followed: of metadata some, of everything else none. The driver
    checks every URL against the `UrlPolicy`, and no redirection takes ``headers`` to another origin.
    """

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = attrs.field(default=(), repr=False)
    body: bytes | None = attrs.field(default=None, repr=False)
    redirects: int = 0
    max_bytes: int = MAX_BODY_BYTES


@attrs.frozen
class LoadRecord:
    """Reads the record of a key from the token store; the answer is a `StoredRecord` or ``None``."""

    key: str


@attrs.frozen
class SwapRecord:
    """Replaces a record if it still has the generation that was read; the answer is whether it had.

    ``expected`` is ``None`` for a record that is not there yet, and ``value`` is ``None`` to delete it.
    """

    key: str
    expected: int | None
    value: Mapping[str, Any] | None = attrs.field(repr=False)


@attrs.frozen
class Lock:
    """Takes the lock of a key, which other processes may share; the answer is ``None``. Never held round a login."""

    key: str


@attrs.frozen
class Unlock:
    """Gives the lock of a key back; the answer is ``None``. The driver gives back what a machine that ended holds."""

    key: str


@attrs.frozen
class OpenRedirect:
    """Opens the place that a login comes back to; the answer is its redirect URI.

    ``registered`` has the redirect URIs of the client's registration, if there is one: one of them is used if possible.
    """

    registered: Sequence[str] = ()


@attrs.frozen
class LogIn:
    """Sends a person to ``url`` and waits for an answer; the answer is a `RedirectAnswer`.

    An answer for which ``accepts`` returns false is refused, and the next one is waited for: it belongs to no login.
    """

    url: str = attrs.field(repr=False)
    accepts: Callable[[RedirectAnswer], bool] = attrs.field(repr=False)


@attrs.frozen
class Ask:
    """Calls a function of the program, sync or async, such as that for an ID token; the answer is its result."""

    function: Callable[..., Any | Awaitable[Any]]
    arguments: Sequence[Any] = attrs.field(default=(), repr=False)


Effect = Fetch | LoadRecord | SwapRecord | Lock | Unlock | OpenRedirect | LogIn | Ask
Steps = Generator[Effect, Any, T]
"""A machine that returns a ``T``."""


def signatures(module: str) -> Any:
    """Returns the module of this name, one of those that need joserfc.

    Raises:
        ImportError: joserfc is missing; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = f"{module} needs a library for signatures: pip install 'joserfc>=1.8'"
        raise ImportError(message, name=error.name) from error
