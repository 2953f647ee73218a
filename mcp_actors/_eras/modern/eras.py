"""The stateless revisions as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mcp_actors._eras.convert import make_converter
from mcp_actors._eras.era import Era, Invocation, Method
from mcp_actors._eras.modern.client_rules import CLIENT_RULES
from mcp_actors._eras.modern.meta_keys import SERVER_INFO
from mcp_actors._eras.modern.methods import (
    CLIENT_METHODS,
    CLIENT_NOTIFICATIONS,
    SERVER_METHODS,
    SERVER_NOTIFICATIONS,
)
from mcp_actors.errors import INTERNAL_ERROR, INVALID_PARAMS, URL_ELICITATION_REQUIRED, ResourceNotFound

__all__ = ["LATEST_MODERN", "MODERN"]

# A URL is visited for an input-required result, and what is not found are wrong params (SEP-2164).
ERROR_CODES = {ResourceNotFound.CODE: INVALID_PARAMS, URL_ELICITATION_REQUIRED: INTERNAL_ERROR}

# What the revisions with sessions had and the stateless ones dropped.
_ABSENT: dict[str, frozenset[str]] = {
    "RootsCapability": frozenset({"list_changed"}),
    "ClientCapabilities": frozenset({"tasks"}),
    "ServerCapabilities": frozenset({"tasks"}),
    "Tool": frozenset({"execution"}),
    "ElicitUrlParams": frozenset({"elicitation_id"}),
}


def _make_seal(unstructure: Callable[[Any], Any]) -> Callable[..., dict[str, Any]]:
    def seal(result: Any, method: Method, stamp: Mapping[str, Any]) -> dict[str, Any]:
        """The result with its type, caching hints where they belong, and who sent it.

        ``stamp`` may have ``ttl_ms`` and ``cache_scope`` for results that say nothing of it themselves, and
        ``server_info``, a ready JSON object. ``None`` is the empty result; a plain dict is not changed.
        """
        if result is None:
            body: dict[str, Any] = {}
        else:
            body = result.copy() if result.__class__ is dict else unstructure(result)
        kind = body.setdefault("resultType", "complete")
        if method.cacheable and kind == "complete":
            # Without a word from the server nothing may be reused, least of all by somebody else.
            if "ttlMs" not in body:
                body["ttlMs"] = stamp.get("ttl_ms", 0)
            if "cacheScope" not in body:
                body["cacheScope"] = stamp.get("cache_scope", "private")
        info = stamp.get("server_info")
        if info is not None:
            meta = body.get("_meta")
            body["_meta"] = {**meta, SERVER_INFO: info} if meta else {SERVER_INFO: info}
        return body

    return seal


def _wanted_log_level(invocation: Invocation) -> str | None:
    """Each request says it, and one that says nothing wants no messages (MCP 2026-07-28, Logging)."""
    return invocation.log_level


def _make_era(revision: str) -> Era:
    converter = make_converter(_ABSENT)
    return Era(
        name="modern",
        version=revision,
        converter=converter,
        server_methods=SERVER_METHODS,
        client_methods=CLIENT_METHODS,
        client_notifications=CLIENT_NOTIFICATIONS,
        server_notifications=SERVER_NOTIFICATIONS,
        client=CLIENT_RULES,
        seal=_make_seal(converter.unstructure),
        error_codes=ERROR_CODES,
        wanted_log_level=_wanted_log_level,
        asks_by_retry=True,
        declares_in_requests=True,
    )


MODERN: Mapping[str, Era] = MappingProxyType({"2026-07-28": _make_era("2026-07-28")})
"""Oldest first."""

LATEST_MODERN = MODERN["2026-07-28"]
