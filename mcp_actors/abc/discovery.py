"""The registry of what enters from further outside: a transport by the scheme of its URL, an extension by its name.

A binding is published under its scheme in the entry-point group ``mcp_actors.transports``; the value names a callable
``from_url(url, **options)`` that returns an object fulfilling `~mcp_actors.abc.ServerTransport`,
`~mcp_actors.abc.ClientTransport` or both. The bindings of this project are published in the same way::

    [project.entry-points."mcp_actors.transports"]
    pigeon = "my_package.pigeon:from_url"

Extensions that a server offers by itself are in the group ``mcp_actors.extensions``, the classes of applications for
web servers of other programs in ``mcp_actors.applications``, what servers can be made of in ``mcp_actors.sources``, and
transports of HTTP clients in ``mcp_actors.http``.

Entry points are read when the first name that is not this project's own is looked up, and an object is imported when
it is used.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from mcp_actors.abc import ClientTransport, ServerTransport
from mcp_actors.errors import TransportNotFound

__all__ = [
    "FromUrl",
    "client_transport",
    "find_application",
    "find_extension",
    "find_http",
    "find_source",
    "installed_schemes",
    "register_transport",
    "server_transport",
]

FromUrl = Callable[..., ServerTransport | ClientTransport]
"""A function that makes a transport from a URL, and from options by keyword."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")  # RFC 3986 section 3.1, after lower-casing

# What this project publishes, by the last word of the group: reading the metadata of everything that is installed takes
# longer than importing one of these.
_OURS = {
    "transports": {
        "stdio": "mcp_transports.stdio:from_url",
        "memory": "mcp_transports.memory:from_url",
        "http": "mcp_transports.http:from_url",
        "https": "mcp_transports.http:from_url",
        "http+unix": "mcp_transports.http:from_url",
        "ws": "mcp_transports.websocket:from_url",
        "wss": "mcp_transports.websocket:from_url",
        "tcp": "mcp_transports.sockets:from_url",
        "unix": "mcp_transports.sockets:from_url",
    },
    "applications": {"asgi": "mcp_transports.http.asgi:AsgiApp"},
    "extensions": {
        "tasks": "mcp_actors.tasks:Tasks",
        "idempotency": "mcp_actors._server.idempotency:Idempotency",
    },
    "http": {"checked": "mcp_transports.auth.fetcher:CheckedTransport"},
    "sources": {
        "asgi": "mcp_actors.openapi.in_process:make_server",
        "openapi": "mcp_actors.openapi.api:make_server",
    },
}

_registered: dict[str, FromUrl] = {}


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
        ValueError: for a text that is not a URL scheme.
    """
    if not _SCHEME.fullmatch(scheme.lower()):
        raise ValueError(f"{scheme!r} is not a URL scheme: a letter, then letters, digits, '+', '-' and '.'")
    _registered[scheme.lower()] = from_url


def installed_schemes() -> tuple[str, ...]:
    """Returns the schemes of all bindings, sorted. No binding is imported for it."""
    return tuple(sorted({*_registered, *_OURS["transports"], *_entry_points("transports")}))


def find_application(name: str) -> Callable[..., Any]:
    """Returns what makes an application of a server for the web server of a program, such as ``asgi``.

    Raises:
        LookupError: No distribution has published it.
        ImportError: It cannot be imported.
    """
    found: Callable[..., Any] = _found("applications", name)
    return found


def find_extension(name: str) -> Callable[[], Any]:
    """Returns what makes an extension of servers, such as ``tasks``.

    Raises:
        LookupError: No distribution has published it.
        ImportError: It cannot be imported.
    """
    found: Callable[[], Any] = _found("extensions", name)
    return found


def find_http(name: str) -> Callable[..., Any]:
    """Returns what makes a transport of an HTTP client, such as ``checked`` for URLs that came from the network.

    Raises:
        LookupError: No distribution has published it.
        ImportError: It cannot be imported.
    """
    found: Callable[..., Any] = _found("http", name)
    return found


def find_source(name: str) -> Callable[..., Any]:
    """Returns what makes a server of something else, such as ``openapi`` of a document.

    Raises:
        LookupError: No distribution has published it.
        ImportError: It cannot be imported.
    """
    found: Callable[..., Any] = _found("sources", name)
    return found


def _found(group: str, name: str) -> Any:
    published = _published(group, name)
    if published is None:
        raise LookupError(
            f"no {name!r} is installed: no distribution has it in the entry-point group 'mcp_actors.{group}'"
        )
    return _load(published)


def _find(url: str) -> FromUrl:
    scheme, colon, _ = url.partition(":")
    scheme = scheme.lower()
    if not colon or not _SCHEME.fullmatch(scheme):
        raise TransportNotFound(
            f"{url!r} is not a transport URL; one begins with {_url_beginnings()}{_meant(url)}"
        )
    _require_port(url)
    if scheme in _registered:
        return _registered[scheme]
    published = _published("transports", scheme)
    if published is None:
        host = re.fullmatch(r"[\w.-]+:\d+(/.*)?", url)
        meant = f"for an HTTP server write http://{url}{'' if host[1] else '/mcp'}; " if host else ""
        raise TransportNotFound(
            f"no transport is installed for {scheme!r} ({url!r}); {meant}{_installed_bindings()}"
        )
    try:
        loaded: FromUrl = _load(published)
    except Exception as error:
        # The imported code is not ours: whatever it raises, only its own scheme is unusable.
        raise TransportNotFound(
            f"the transport for {scheme!r} cannot be imported from {published!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return loaded


def _published(group: str, name: str) -> str | None:
    """Returns where an object is, as ``module:name``; ``None`` if no distribution has published it."""
    return _OURS[group].get(name) or _entry_points(group).get(name)


def _load(published: str) -> Any:
    module, _, names = published.partition(":")
    return functools.reduce(getattr, filter(None, names.split(".")), importlib.import_module(module))


@functools.cache
def _entry_points(group: str) -> Mapping[str, str]:
    # Imported late: it takes 7 ms, and programs that pass transport objects do not need it.
    metadata = importlib.import_module("importlib.metadata")
    found: dict[str, str] = {}
    for entry_point in metadata.entry_points(group=f"mcp_actors.{group}"):
        # The first on the path wins, as with modules. Extras behind the name say nothing that is needed to load it.
        found.setdefault(entry_point.name.lower(), entry_point.value.partition("[")[0].strip())
    return found


# What follows them is no authority: C:\socket has no port.
_OF_PATHS = ("unix:", "http+unix:")


def _require_port(url: str) -> None:
    """Raises `ValueError` for a port outside of the range, the same for every binding."""
    if "://" not in url or url.lower().startswith(_OF_PATHS):
        return
    authority = re.match(r"[^:]+://(?:[^/?#]*@)?(?:\[[^\]]*\]|[^/?#:]*):([^/?#@]*)(?:[/?#]|$)", url)
    if authority and authority[1] and not (authority[1].isdecimal() and int(authority[1]) < 65536):
        raise ValueError(f"the port of a URL is a number from 0 to 65535, not {authority[1]!r:.80}")


# The names that other SDKs have for transports.
_WORDS = {
    "http": "http://127.0.0.1:8000/mcp",
    "sse": "http://127.0.0.1:8000/mcp",
    "stdio": "stdio:",
    "streamable-http": "http://127.0.0.1:8000/mcp",
    "streamable_http": "http://127.0.0.1:8000/mcp",
    "websocket": "ws://127.0.0.1:8000/mcp",
}


def _meant(text: str) -> str:
    """Returns what to write instead of a text that has no scheme, where that can be guessed."""
    if text.lower() in _WORDS:
        return f"; write '{_WORDS[text.lower()]}'"
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
        f"'mcp_actors.transports', or call mcp_actors.abc.discovery.register_transport"
    )
