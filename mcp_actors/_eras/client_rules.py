"""The differences for clients between the revisions with sessions and the stateless ones, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

__all__ = ["ClientRules"]


class ClientRules(msgspec.Struct, frozen=True):
    """The client's side of an era; `Era.client` of each revision, made by `legacy` and `modern`."""

    handshake_method: str
    """The request that opens a connection."""
    ping_method: str
    """The request that only asks whether the server is alive."""
    log_level_method: str | None
    """The request that sets the log level; ``None`` where each request carries it in its ``_meta``."""
    listen_method: str | None
    """The request that subscribes for as long as it is not answered; ``None`` where a session is told unasked."""
    visits_urls_on_error: bool
    """Whether a server asks for a visit to a URL by the error -32042, after which the call is made again."""
    request_meta: Callable[[str, Any, Any, str | None], dict[str, Any]]
    """Makes what each request carries in its ``_meta``, of the version, the client's capabilities and info as JSON,
    and the log level."""
    mirrored: Callable[..., dict[str, str]] | None
    """Makes what is mirrored of a request in headers, of the version, the method, the params, the annotated parameters
    of the tool and the target of an extension's method; ``None`` where requests mirror nothing of their own."""
    mirrored_params: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Finds the parameters that a tool's input schema wants mirrored; raises `ValueError` for a bad annotation."""
