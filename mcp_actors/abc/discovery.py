"""Finds the transport for a URL by its scheme.

A binding is published under its scheme in the entry-point group ``mcp_actors.transports``; the value names a callable
``from_url(url, **options)`` that returns an object fulfilling `~mcp_actors.abc.ServerTransport`,
`~mcp_actors.abc.ClientTransport` or both. The bindings of this project are published in the same way::

    [project.entry-points."mcp_actors.transports"]
    pigeon = "my_package.pigeon:from_url"

Entry points are read when the first URL with another scheme than those of this project is looked up, and a binding is
imported when a URL has its scheme.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from mcp_actors.abc import ClientTransport, ServerTransport
from mcp_actors.errors import TransportNotFound

__all__ = ["FromUrl", "client_transport", "installed_schemes", "register_transport", "server_transport"]

FromUrl = Callable[..., ServerTransport | ClientTransport]

_GROUP = "mcp_actors.transports"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")  # RFC 3986 section 3.1, after lower-casing

# The bindings of this project, as it publishes them: reading the metadata of everything that is installed takes longer
# than importing one of them.
_OURS = {
    "stdio": "mcp_transports.stdio",
    "memory": "mcp_transports.memory",
    "http": "mcp_transports.http",
    "https": "mcp_transports.http",
    "http+unix": "mcp_transports.http",
    "ws": "mcp_transports.websocket",
    "wss": "mcp_transports.websocket",
    "tcp": "mcp_transports.sockets",
    "unix": "mcp_transports.sockets",
}

_registered: dict[str, FromUrl] = {}


class _EntryPoint(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    def load(self) -> Any: ...


def client_transport(url: str, **options: Any) -> ClientTransport:
    """Returns a transport that connects to ``url``; nothing is opened yet.

    Args:
        options: the options of the binding, such as those of
            `~mcp_transports.http.client.client_transport.HttpClientTransport`.

    Raises:
        TransportNotFound: if no binding is installed for the scheme, if the binding cannot be imported, and if the
            binding can only serve at this URL.
        ValueError: from the binding, for a URL or an option that it does not accept.
        TypeError: from the binding, for an option that it does not have.
    """
    transport = _find(url)(url, **options)
    if not isinstance(transport, ClientTransport):
        raise TransportNotFound(f"{url!r} can be served, not connected to")
    return transport


def server_transport(url: str, **options: Any) -> ServerTransport:
    """Returns a transport that serves at ``url``; nothing is opened yet.

    Args:
        options: the options of the binding.

    Raises:
        TransportNotFound: if no binding is installed for the scheme, if the binding cannot be imported, and if the
            binding can only connect to this URL.
        ValueError: from the binding, for a URL or an option that it does not accept.
        TypeError: from the binding, for an option that it does not have.
    """
    transport = _find(url)(url, **options)
    if not isinstance(transport, ServerTransport):
        raise TransportNotFound(f"{url!r} can be connected to, not served")
    return transport


def register_transport(scheme: str, from_url: FromUrl) -> None:
    """Adds a binding to this process without an entry point.

    Args:
        scheme: the URL scheme, in any case. A binding that is installed for it is no longer used.
        from_url: makes the transport, when called with the URL and the options that a program gave.

    Raises:
        ValueError: for a text that is no URL scheme.
    """
    if not _SCHEME.fullmatch(scheme.lower()):
        raise ValueError(f"{scheme!r} is no URL scheme: a letter, then letters, digits, '+', '-' and '.'")
    _registered[scheme.lower()] = from_url


def installed_schemes() -> tuple[str, ...]:
    """Returns the schemes of all bindings, sorted. No binding is imported for it."""
    return tuple(sorted({*_registered, *_OURS, *_entry_points()}))


def _find(url: str) -> FromUrl:
    scheme, colon, _ = url.partition(":")
    scheme = scheme.lower()
    if not colon or not _SCHEME.fullmatch(scheme):
        raise TransportNotFound(
            f"{url!r} is no transport URL; one begins with {_url_beginnings()}{_meant(url)}"
        )
    _require_port(url)
    if scheme in _registered:
        return _registered[scheme]
    entry_point = _our_entry_point(scheme) or _entry_points().get(scheme)
    if entry_point is None:
        host = re.fullmatch(r"[\w.-]+:\d+(/.*)?", url)
        meant = f"for an HTTP server write http://{url}{'' if host[1] else '/mcp'}; " if host else ""
        raise TransportNotFound(
            f"no transport is installed for {scheme!r} ({url!r}); {meant}{_installed_bindings()}"
        )
    try:
        loaded: FromUrl = entry_point.load()
    except Exception as error:
        # The imported code is not ours: whatever it raises, only its own scheme is unusable.
        raise TransportNotFound(
            f"the transport for {scheme!r} cannot be imported from {entry_point.value!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return loaded


class _OurEntryPoint(NamedTuple):
    name: str
    module: str

    @property
    def value(self) -> str:
        return f"{self.module}:from_url"

    def load(self) -> Any:
        return importlib.import_module(self.module).from_url


def _our_entry_point(scheme: str) -> _EntryPoint | None:
    module = _OURS.get(scheme)
    return None if module is None else _OurEntryPoint(scheme, module)


@functools.cache
def _entry_points() -> Mapping[str, _EntryPoint]:
    # Imported late: it takes 7 ms, and programs that pass transport objects do not need it.
    metadata = importlib.import_module("importlib.metadata")
    found: dict[str, _EntryPoint] = {}
    for entry_point in metadata.entry_points(group=_GROUP):
        found.setdefault(entry_point.name.lower(), entry_point)  # the first on the path wins, as with modules
    return found


def _require_port(url: str) -> None:
    """Raises `ValueError` for a port that is none, the same for every binding."""
    if "://" not in url:
        return
    authority = re.match(r"[^:]+://(?:[^/?#]*@)?(?:\[[^\]]*\]|[^/?#:]*):([^/?#@]*)(?:[/?#]|$)", url)
    if authority and authority[1] and not (authority[1].isdecimal() and int(authority[1]) < 65536):
        raise ValueError(f"the port of a URL is a number from 0 to 65535, not {authority[1]!r:.80}")


def _meant(text: str) -> str:
    """Returns what to write instead of a text that has no scheme, where that can be guessed."""
    if " " in text:
        return f"; to start this command write 'stdio:{text}'"
    if text.endswith(".py"):
        return f"; to start this file as a server write 'stdio:python {text}', or Client(Path({text!r}))"
    if re.match(r"[\w.-]+:\d+", text):
        return f"; for an HTTP server write http://{text}"
    return ""


def _url_beginnings() -> str:
    return " or ".join(f"'{scheme}:'" for scheme in installed_schemes())


def _installed_bindings() -> str:
    return (
        f"installed are: {', '.join(installed_schemes())}. Install a distribution with an entry point in the group "
        f"{_GROUP!r}, or call mcp_actors.abc.discovery.register_transport"
    )
