"""From a URL to a transport, through the scheme in front of the colon.

A binding is published under its scheme in the entry-point group ``mcp_actors.transports``; the value names a callable
``from_url(url, **options)`` that returns an object fulfilling `~mcp_actors.abc.ServerTransport`,
`~mcp_actors.abc.ClientTransport` or both. The bindings of this project come through the same door::

    [project.entry-points."mcp_actors.transports"]
    pigeon = "my_package.pigeon:from_url"

Nothing is looked up before the first URL is.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mcp_actors.abc import ClientTransport, ServerTransport
from mcp_actors.errors import TransportNotFound

__all__ = ["FromUrl", "client_transport", "installed_schemes", "register_transport", "server_transport"]

FromUrl = Callable[..., ServerTransport | ClientTransport]

_GROUP = "mcp_actors.transports"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")  # RFC 3986 §3.1, after lower-casing

_registered: dict[str, FromUrl] = {}


class _EntryPoint(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    def load(self) -> Any: ...


def client_transport(url: str, **options: Any) -> ClientTransport:
    """The transport that connects to ``url``; nothing is opened yet. ``options`` are those of its binding.

    Raises `TransportNotFound` when no binding is installed for its scheme, when the binding cannot be imported, or
    when the URL is one that is only ever served.
    """
    transport = _find(url)(url, **options)
    if not isinstance(transport, ClientTransport):
        raise TransportNotFound(f"{url!r} can be served, not connected to")
    return transport


def server_transport(url: str, **options: Any) -> ServerTransport:
    """The transport that serves at ``url``; nothing is opened yet. See `client_transport` for the rest."""
    transport = _find(url)(url, **options)
    if not isinstance(transport, ServerTransport):
        raise TransportNotFound(f"{url!r} can be connected to, not served")
    return transport


def register_transport(scheme: str, from_url: FromUrl) -> None:
    """Adds a binding for this process without an entry point; it goes before an installed one of the same scheme."""
    if not _SCHEME.fullmatch(scheme.lower()):
        raise ValueError(f"{scheme!r} is no URL scheme: a letter, then letters, digits, '+', '-' and '.'")
    _registered[scheme.lower()] = from_url


def installed_schemes() -> tuple[str, ...]:
    """The schemes that URLs may have, sorted; nothing of the bindings is imported to tell."""
    return tuple(sorted({*_registered, *_entry_points()}))


def _find(url: str) -> FromUrl:
    scheme, colon, _ = url.partition(":")
    scheme = scheme.lower()
    if not colon or not _SCHEME.fullmatch(scheme):
        raise TransportNotFound(f"{url!r} is no transport URL; one begins with {_or_list()}")
    if scheme in _registered:
        return _registered[scheme]
    entry_point = _entry_points().get(scheme)
    if entry_point is None:
        raise TransportNotFound(f"no transport is installed for {scheme!r} ({url!r}); {_what_there_is()}")
    try:
        loaded: FromUrl = entry_point.load()
    except Exception as error:
        # Foreign code is imported here: whatever it raises, only its own scheme is out of order.
        raise TransportNotFound(
            f"the transport for {scheme!r} cannot be imported from {entry_point.value!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return loaded


@functools.cache
def _entry_points() -> Mapping[str, _EntryPoint]:
    # Loaded late: it takes 7 ms and more, which a program that hands over transport objects never pays.
    metadata = importlib.import_module("importlib.metadata")
    found: dict[str, _EntryPoint] = {}
    for entry_point in metadata.entry_points(group=_GROUP):
        found.setdefault(entry_point.name.lower(), entry_point)  # the first on the path wins, as with modules
    return found


def _or_list() -> str:
    schemes = installed_schemes()
    return (
        " or ".join(f"'{scheme}:'" for scheme in schemes) if schemes else f"a scheme, but {_what_there_is()}"
    )


def _what_there_is() -> str:
    schemes = installed_schemes()
    if not schemes:
        return (
            "no transport at all is installed: this looks like a checkout without its metadata, "
            "'pip install -e .' in it adds the entry points"
        )
    return (
        f"installed are: {', '.join(schemes)}. Install a distribution with an entry point in the group {_GROUP!r}, "
        "or call mcp_actors.discovery.register_transport"
    )
